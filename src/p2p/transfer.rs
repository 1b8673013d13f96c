//! One transfer as its owner sees it: under way, over, or taken.
//!
//! What requests of all kinds are made of; the memory is theirs.

use super::started::Started;
use super::status::Status;
use crate::comm::Communicator;
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Core;
use osier_engine::progress::suspend;
use osier_engine::progress::window::Handle;
use osier_engine::trace::event::Kind;
use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

enum State {
    Pending(Handle),
    Done(Result<Status>),
    Taken,
}

/// A transfer in flight, without its memory.
pub(super) struct Transfer {
    comm: Communicator,
    state: State,
    /// Counted among those that a foreign executor waits for.
    counted: bool,
}

impl Transfer {
    /// The posted operation; `None` if the peer is `PROC_NULL`.
    pub fn new(comm: &Communicator, posted: Option<Started>) -> Self {
        let mut transfer = Self::taken(comm);
        transfer.begin(posted);
        transfer
    }

    /// None yet: see [`Transfer::begin`].
    pub fn taken(comm: &Communicator) -> Self {
        Self {
            comm: comm.clone(),
            state: State::Taken,
            counted: false,
        }
    }

    /// Begins, or begins again.
    pub fn begin(&mut self, posted: Option<Started>) {
        self.state = match posted {
            None => State::Done(Ok(Status::EMPTY)),
            Some(Started::Done(outcome)) => State::Done(Ok(outcome.into())),
            Some(Started::Pending(handle)) => State::Pending(handle),
        };
    }

    /// Begins one that is under way.
    #[inline(always)]
    pub fn begin_pending(&mut self, handle: Handle) {
        self.state = State::Pending(handle);
    }

    /// Begins a transfer that is complete already.
    #[inline(always)]
    pub fn begin_done(&mut self, peer: u32, tag: u32, bytes: usize) {
        self.state = State::Done(Ok(Status::new(peer as usize, tag, bytes)));
    }

    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// Whether it has begun and its result was not taken.
    pub fn is_active(&self) -> bool {
        !matches!(self.state, State::Taken)
    }

    /// Whether its memory may be in use.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending(_))
    }

    /// Of the operation whose result was not taken.
    pub fn handle(&self) -> Option<u32> {
        match self.state {
            State::Pending(handle) => self.core().with(self.comm.lane(), |l| l.op_of(handle)),
            _ => None,
        }
    }

    pub fn core(&self) -> &Arc<Core> {
        self.comm.core()
    }

    /// Makes progress; true if it is complete.
    pub fn test(&mut self) -> bool {
        let State::Pending(handle) = self.state else {
            return true;
        };
        let core = self.comm.core();
        core.check_deaths();
        let asked = self.comm.trace_ask();
        let result = core.with(self.comm.lane(), |lane| {
            if !lane.is_over(handle) {
                lane.progress_awake();
            }
            lane.end(handle)
        });
        if result.is_some() {
            self.comm.trace_found(Kind::Test, asked, None);
        }
        match result {
            Some(result) => {
                self.state = State::Done(result.map(Status::from));
                true
            }
            None => {
                core.give_way();
                false
            }
        }
    }

    /// Names it to the lane, unless it is known to be over.
    #[inline]
    pub fn under_way(&self) -> Option<Handle> {
        match self.state {
            State::Pending(handle) => Some(handle),
            _ => None,
        }
    }

    /// Its end was taken from the lane.
    #[inline]
    pub fn forget(&mut self) {
        self.state = State::Taken;
    }

    /// The result of one that is known to have succeeded.
    #[inline]
    pub fn take_success(&mut self) -> Option<Status> {
        match self.state {
            State::Done(Ok(status)) => {
                self.state = State::Taken;
                Some(status)
            }
            _ => None,
        }
    }

    /// Waits for its end, and takes the result.
    #[track_caller]
    pub fn wait(&mut self) -> Result<Status> {
        if let State::Pending(handle) = self.state {
            self.comm.reported(self.comm.may_wait("wait"))?;
            let result = self.comm.wait_handle(handle);
            self.state = State::Done(result.map(Status::from));
        }
        self.take()
    }

    /// Result of a complete transfer.
    pub fn take(&mut self) -> Result<Status> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Done(result) => self.comm.reported(result),
            _ => Err(self.comm.raise(Error::new(
                ErrorKind::Argument,
                "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
            ))),
        }
    }

    /// Makes progress; the result if it is complete. Takes nothing.
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.test();
        match &mut self.state {
            State::Done(Err(e)) => Some(Err(self.comm.raise_in_place(e))),
            State::Done(result) => Some(result.clone()),
            State::Taken => Some(Ok(Status::EMPTY)),
            State::Pending(_) => None,
        }
    }

    /// Takes back a receive that no message has met.
    pub fn cancel(&mut self) -> bool {
        let State::Pending(handle) = self.state else {
            return false;
        };
        let core = self.comm.core();
        let cancelled = core.with(self.comm.lane(), |lane| lane.cancel_posted(handle));
        if cancelled {
            self.state = State::Done(Ok(Status::CANCELLED));
        }
        cancelled
    }

    /// Makes it stop using its memory, whatever becomes of its message.
    #[track_caller]
    pub fn revoke(&mut self) {
        if let State::Pending(handle) = self.state {
            self.comm.revoke_handle(handle);
        }
        self.state = State::Taken;
    }

    /// Polls it for a future's sake.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.test() {
            let State::Pending(handle) = self.state else {
                return Poll::Ready(());
            };
            let driven = is_driven(context.waker());
            let mut waker = (!driven).then(|| context.waker().clone());
            let done = self.comm.core().with(self.comm.lane(), |lane| {
                let Some(op) = lane.op_of(handle) else {
                    return true;
                };
                if lane.any_left() {
                    // A future is a wait: no other call would end it.
                    lane.resign(op);
                }
                if let Some(waker) = waker.take() {
                    lane.set_waker(op, waker);
                }
                lane.is_done(op)
            });
            if !done {
                if !driven && !suspend::awaits() && !self.counted {
                    self.counted = true;
                    self.comm.core().future_waits();
                }
                return Poll::Pending;
            }
            self.test();
        }
        self.uncount();
        Poll::Ready(())
    }

    /// Pushes `token` to `ready` at the end; true if it is complete already.
    pub fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let State::Pending(handle) = self.state else {
            return true;
        };
        let core = self.comm.core();
        let result = core.with(self.comm.lane(), |lane| {
            if lane
                .op_of(handle)
                .is_some_and(|op| lane.notify(op, ready, token))
            {
                return None;
            }
            lane.end(handle)
        });
        match result {
            Some(result) => {
                self.state = State::Done(result.map(Status::from));
                true
            }
            None => false,
        }
    }

    /// Detaches it: a send completes by itself, a receive that no message has matched is
    /// cancelled. `owner` lives as long as its memory is used. Waits for a sender's device
    /// that may write the memory.
    pub fn detach(&mut self, owner: impl FnOnce() -> Box<dyn Any + Send>) {
        if let State::Pending(handle) = self.state {
            let owner = owner();
            let written = self.comm.core().with(self.comm.lane(), |lane| {
                let op = lane.settle(handle);
                lane.set_owner(op, owner);
                if lane.is_placed(op) {
                    return Some(op);
                }
                lane.detach(op);
                None
            });
            if let Some(op) = written {
                self.comm.revoke_raw(op);
            }
        }
        self.state = State::Taken;
    }

    /// Detaches it: it completes by itself, a receive too.
    pub fn let_go(&mut self, owner: impl FnOnce() -> Box<dyn Any + Send>) {
        if let State::Pending(handle) = self.state {
            let owner = owner();
            self.comm.core().with(self.comm.lane(), |lane| {
                let op = lane.settle(handle);
                lane.set_owner(op, owner);
                lane.let_go(op);
            });
        }
        self.state = State::Taken;
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.uncount();
    }
}

/// The waker of [`Communicator::block_on`]: that thread polls anyway.
pub(super) fn driven_waker() -> Waker {
    // SAFETY: the functions of the table ignore the data pointer.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &DRIVEN)) }
}

static DRIVEN: RawWakerVTable = RawWakerVTable::new(
    |_| RawWaker::new(std::ptr::null(), &DRIVEN),
    |_| {},
    |_| {},
    |_| {},
);

pub(crate) fn is_driven(waker: &Waker) -> bool {
    std::ptr::eq(waker.vtable(), &DRIVEN)
}
