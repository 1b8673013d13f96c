//! The messages of a partitioned transfer and their states.
//!
//! ```text
//! send      IDLE <-> WRITING
//!           IDLE -> POSTING -> PENDING -> DONE or FAILED
//! receive   IDLE -> PENDING -> DONE or FAILED
//! ```
//!
//! # Invariants
//! 1. One thread has a part in state WRITING or POSTING: the one that set it.
//! 2. A thread that waits for a part that is not posted yet finds a number in its
//!    list when any part is posted.

use crate::comm::Communicator;
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, Result};
use osier_engine::progress::lane::Posted;
use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;

pub(super) const IDLE: u64 = 0;
pub(super) const WRITING: u64 = 1;
pub(super) const POSTING: u64 = 2;
const DONE: u64 = 3;
/// Ended with an error, which is the transfer's.
const FAILED: u64 = 4;
/// With the handle in the low half.
const PENDING: u64 = 1 << 32;

/// The messages of a transfer.
pub struct Parts {
    comm: Communicator,
    states: Box<[AtomicU64]>,
    /// Those before are done.
    cursor: AtomicUsize,
    error: Mutex<Option<Error>>,
    /// The list of a thread that waits for a post.
    notify: Mutex<Option<(Arc<Ready>, u64)>>,
}

impl Parts {
    pub(super) fn new(comm: &Communicator, count: usize) -> Self {
        Self {
            comm: comm.clone(),
            states: (0..count).map(|_| AtomicU64::new(IDLE)).collect(),
            cursor: AtomicUsize::new(0),
            error: Mutex::new(None),
            notify: Mutex::new(None),
        }
    }

    pub(super) fn state(&self, at: usize) -> Option<&AtomicU64> {
        self.states.get(at)
    }

    pub(super) fn reset(&self) {
        self.cursor.store(0, Ordering::Relaxed);
        *lock(&self.error) = None;
        for state in &self.states {
            state.store(IDLE, Ordering::Relaxed);
        }
    }

    /// Records the result of a post.
    pub(super) fn posted(&self, at: usize, posted: Result<Posted>) -> Result<()> {
        let (state, result) = match posted {
            Ok(Posted::Done(_)) => (DONE, Ok(())),
            Ok(Posted::Pending(handle)) => (PENDING | u64::from(handle), Ok(())),
            Err(e) => {
                self.fail(e.clone());
                (FAILED, Err(e))
            }
        };
        self.states[at].store(state, Ordering::Release);
        if let Some((ready, token)) = lock(&self.notify).take() {
            ready.push(token);
        }
        result
    }

    fn fail(&self, e: Error) {
        lock(&self.error).get_or_insert(e);
    }

    /// Whether a part has ended; takes its result.
    pub(super) fn settle(&self, at: usize) -> bool {
        let state = self.states[at].load(Ordering::Acquire);
        if state & PENDING == 0 {
            return state >= DONE;
        }
        let core = self.comm.core();
        // Only one of several threads gets the result; the others ask again.
        let result = core.with(self.comm.lane(), |lane| lane.take(state as u32));
        match result {
            Some(result) => {
                let ended = match result {
                    Ok(_) => DONE,
                    Err(e) => {
                        self.fail(e);
                        FAILED
                    }
                };
                self.states[at].store(ended, Ordering::Release);
                true
            }
            None => false,
        }
    }

    /// Whether a part has ended with an error.
    pub(super) fn has_failed(&self, at: usize) -> bool {
        self.states[at].load(Ordering::Acquire) == FAILED
    }

    /// Transfers whose results were not taken.
    pub(super) fn under_way(&self) -> usize {
        let pending = |state: &&AtomicU64| state.load(Ordering::Relaxed) & PENDING != 0;
        self.states.iter().filter(pending).count()
    }

    /// The first part that has not ended.
    fn first_open(&self) -> Option<usize> {
        let mut at = self.cursor.load(Ordering::Relaxed);
        while at < self.states.len() && self.settle(at) {
            at += 1;
        }
        self.cursor.fetch_max(at, Ordering::Relaxed);
        (at < self.states.len()).then_some(at)
    }

    pub(super) fn all_settled(&self) -> bool {
        self.first_open().is_none()
    }

    /// Whether all posted parts have ended.
    pub(super) fn posted_settled(&self) -> bool {
        (0..self.states.len()).all(|at| self.is_idle(at) || self.settle(at))
    }

    pub(super) fn is_idle(&self, at: usize) -> bool {
        self.states[at].load(Ordering::Acquire) < POSTING
    }

    /// Number of parts that have not ended.
    pub(super) fn open(&self) -> usize {
        let ended = |s: &&AtomicU64| matches!(s.load(Ordering::Relaxed), DONE | FAILED);
        self.states.len() - self.states.iter().filter(ended).count()
    }

    /// Number of parts that were never posted.
    pub(super) fn idle(&self) -> usize {
        (0..self.states.len())
            .filter(|at| self.is_idle(*at))
            .count()
    }

    /// Pushes a number to `ready` when more is known of the first part that
    /// has not ended. True if all have.
    pub(super) fn notify(&self, ready: &Arc<Ready>, token: u64) -> bool {
        while let Some(at) = self.first_open() {
            let state = self.states[at].load(Ordering::Acquire);
            if state & PENDING != 0 {
                let core = self.comm.core();
                let told =
                    |handle| core.with(self.comm.lane(), |lane| lane.notify(handle, ready, token));
                if told(state as u32) {
                    return false;
                }
                continue;
            }
            *lock(&self.notify) = Some((ready.clone(), token));
            // A thread that posts reads `notify` after it has changed the state.
            if self.states[at].load(Ordering::Acquire) < DONE {
                return false;
            }
            lock(&self.notify).take();
        }
        true
    }

    /// The first error, if any; takes it.
    pub(super) fn result(&self) -> Result<()> {
        match lock(&self.error).take() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// The first error, which stays where it is; the handler sees it once.
    pub(super) fn peek(&self) -> Result<()> {
        // No lock while the handler runs.
        let Some(e) = lock(&self.error).clone() else {
            return Ok(());
        };
        let e = self.comm.raise(e);
        *lock(&self.error) = Some(e.clone());
        Err(e)
    }

    /// Detaches pending parts, with their memory's owner.
    pub(super) fn detach(&self, owner: &Arc<dyn Any + Send + Sync>) {
        self.comm.core().with(self.comm.lane(), |lane| {
            for state in &self.states {
                let state = state.load(Ordering::Acquire);
                if state & PENDING != 0 {
                    lane.set_owner(state as u32, Box::new(owner.clone()));
                    lane.detach(state as u32);
                }
            }
        });
    }

    /// Makes pending parts stop using their memory.
    #[track_caller]
    pub(super) fn revoke(&self) {
        for state in &self.states {
            let now = state.load(Ordering::Acquire);
            if now & PENDING != 0 {
                self.comm.revoke_raw(now as u32);
                state.store(DONE, Ordering::Release);
            }
        }
    }
}
