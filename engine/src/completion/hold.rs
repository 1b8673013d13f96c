//! Streams and graphs of devices that an operation holds.
//!
//! # Invariants
//! 1. A [`Hold`] counts as a waiter of the rank's progress thread; dropping it
//!    releases the stream and lowers the count.
//! 2. Dropping one takes no lane's lock: it is dropped under one.

use osier_kernels::{StreamSemaphore, Valve};
use std::sync::{Arc, Mutex, PoisonError};

/// A rank that makes progress while streams wait.
pub trait Drives: Send + Sync {
    /// Counts a stream that waits, and wakes the progress thread.
    fn begin_drive(self: Arc<Self>);
    /// Takes back one [`Drives::begin_drive`].
    fn end_drive(&self);
}

/// Stops a graph while operations that it has begun are in flight.
pub struct Latch {
    pub valve: Valve,
    under_way: Mutex<usize>,
}

impl Latch {
    pub fn new(valve: Valve) -> Arc<Latch> {
        Arc::new(Latch {
            valve,
            under_way: Mutex::new(0),
        })
    }

    /// A launch has begun an operation; no driver call.
    pub fn shut(&self) {
        self.count(1);
    }

    /// An operation has ended.
    pub fn ended(&self) {
        self.count(-1);
    }

    fn count(&self, more: isize) {
        let under_way = self.under_way.lock();
        let mut under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        *under_way = under_way.saturating_add_signed(more);
        self.valve.set(*under_way == 0);
    }

    /// Whether none is.
    pub fn is_idle(&self) -> bool {
        *self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            == 0
    }
}

/// A stream that waits.
pub struct Hold {
    rank: Arc<dyn Drives>,
    /// Opens as it is dropped.
    _semaphore: Option<StreamSemaphore>,
    latch: Option<Arc<Latch>>,
}

impl Hold {
    /// By a stream semaphore.
    pub fn new(rank: &Arc<impl Drives + 'static>, semaphore: StreamSemaphore) -> Hold {
        rank.clone().begin_drive();
        Hold {
            rank: rank.clone(),
            _semaphore: Some(semaphore),
            latch: None,
        }
    }

    /// By a kernel that waits for other ranks: one that has failed is noticed meanwhile.
    pub fn by_kernel(rank: &Arc<impl Drives + 'static>) -> Hold {
        rank.clone().begin_drive();
        Hold {
            rank: rank.clone(),
            _semaphore: None,
            latch: None,
        }
    }

    /// A launched graph.
    pub fn launched(rank: &Arc<impl Drives + 'static>, latch: &Arc<Latch>) -> Hold {
        rank.clone().begin_drive();
        Hold {
            rank: rank.clone(),
            _semaphore: None,
            latch: Some(latch.clone()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(latch) = &self.latch {
            latch.ended();
        }
        self.rank.end_drive();
    }
}
