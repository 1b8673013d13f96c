//! Operations that are captured in a graph, and done at each launch.
//!
//! ```text
//! graph            call: shut, ring | ... | wait until open
//! progress thread                   post ... done: open
//! ```
//!
//! The driver's thread only rings; the progress thread posts the operation, or starts the
//! collective, as it was captured. By then the graph's work before it is done, so its buffers
//! are valid.
//!
//! # Invariants
//! 1. The graph keeps what it rings, and that keeps the buffers and the communicator.
//! 2. A graph does not run beside itself, so a latch is shut behind all waits of the
//!    launch before. Of a graph that others made executable twice, launches that run at
//!    once wait for each other's operations.

use super::once::{Once, State};
use super::{Enqueued, Kind, address, lock};
use crate::comm::Communicator;
use crate::p2p::status::Status;
use osier_engine::completion::hold::{Hold, Latch};
use osier_engine::diagnose::waits::{Asked, hear};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::enqueued::Launched;
use osier_engine::view::RawView;
use osier_kernels::{Callback, Stream, Valve};
use std::sync::{Arc, Mutex};

/// What each launch begins. Its buffers may be used when it rings.
pub(crate) trait Work: Send + Sync {
    /// An error that every launch would have.
    fn check(&self) -> Result<()>;
    fn begin(&self, comm: &Communicator) -> State;
}

/// A send or a receive.
pub(super) struct Message {
    pub kind: Kind,
    pub view: RawView,
}

impl Work for Message {
    fn check(&self) -> Result<()> {
        match self.view.as_device() {
            Some(memory) => Ok(memory.check()?),
            None => Ok(()),
        }
    }

    fn begin(&self, comm: &Communicator) -> State {
        State::begun(self.kind.post(comm, self.view.clone()))
    }
}

/// A captured operation.
pub(super) struct Captured {
    comm: Communicator,
    work: Box<dyn Work>,
    latch: Arc<Latch>,
    stream: usize,
    launches: Mutex<Launches>,
}

/// What launches have begun.
#[derive(Default)]
struct Launches {
    last: Option<Arc<Once>>,
    /// The first before that has failed, whose error no call has returned.
    failed: Option<Arc<Once>>,
}

impl Captured {
    /// Captures the begin of an operation.
    pub fn new(comm: &Communicator, stream: &Stream, work: Box<dyn Work>) -> Result<Arc<Captured>> {
        work.check()?;
        let captured = Arc::new(Captured {
            comm: comm.clone(),
            work,
            latch: Latch::new(Valve::new(stream.context())?),
            stream: address(stream),
            launches: Mutex::default(),
        });
        let rings = captured.clone();
        stream.call(&Callback::new(move || {
            rings.latch.shut();
            if !rings.comm.core().ring(rings.clone()) {
                rings.latch.ended();
            }
        }))?;
        Ok(captured)
    }

    /// Has a captured stream wait for each launch's operation.
    pub fn hold(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        if !stream.is_captured()? {
            return Err(Error::new(
                ErrorKind::Device,
                "a stream that is not captured waits for a captured operation (hint: wait \
                 inside of the capture, or for the graph)",
            ));
        }
        stream.keep(self.clone())?;
        Ok(self.latch.valve.hold(stream)?)
    }

    pub fn is_idle(&self) -> bool {
        self.latch.is_idle()
    }

    fn last(&self) -> Option<Arc<Once>> {
        lock(&self.launches).last.clone()
    }

    /// Tells a thread that listens what the last launch waits for.
    #[cold]
    pub fn tell(&self) {
        match self.last() {
            Some(last) if !last.poll(&self.comm) => {}
            // A launch that no thread has begun yet.
            _ => hear(Asked::OTHER),
        }
    }

    pub fn result(&self) -> Option<Result<Status>> {
        let last = self.last()?;
        last.poll(&self.comm);
        last.result()
    }

    /// Keeps what a launch has begun. Of those before the communicator keeps one at most,
    /// whose error no call has returned, however many launches there are.
    fn keep(&self, state: State) {
        let (comm, all) = (&self.comm, self.comm.on_streams());
        let before = std::mem::take(&mut *lock(&self.launches));
        let unsettled = |once: &Arc<Once>| !all.settle(comm, once);
        let mut failed = before.failed.filter(unsettled);
        if let Some(last) = before.last.filter(unsettled) {
            match failed {
                Some(_) => all.forget(&last),
                None => failed = Some(last),
            }
        }
        let last = Some(all.add(self.stream, state));
        *lock(&self.launches) = Launches { last, failed };
    }
}

impl Launched for Captured {
    fn begin(&self) {
        let comm = &self.comm;
        let state = self.work.begin(comm);
        let awaited = match state {
            State::Pending(awaited) => Some(awaited),
            State::Ended { .. } => None,
        };
        self.keep(state);
        match awaited {
            Some(awaited) => awaited.hold(comm, Hold::launched(comm.core(), &self.latch)),
            None => self.latch.ended(),
        }
    }

    fn latch(&self) -> &Arc<Latch> {
        &self.latch
    }
}

/// Enqueued handles are shared between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Enqueued>();
};
