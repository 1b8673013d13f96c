//! Requests that own their buffers: futures, and transfers that outlive the
//! function that began them.

use super::names::{self, Rank, Source, Status, Tag, TagSelector};
use super::view::{OwnedBuffer, OwnedBufferMut};
use super::waits::Waitable;
use super::waits::sealed::OnCommunicator;
use crate::comm::Communicator;
use crate::error::Result;
use crate::progress::lane::{Mode, Posted};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

enum State {
    Pending(u32),
    Done(Result<Status>),
    Taken,
}

/// A transfer under way that owns its buffer.
///
/// It is a [`Future`] of any executor; [`Request::wait`] blocks instead.
/// Dropping it lets a send go on by itself and cancels a receive that no
/// message has met; the buffer lives until nothing uses it. Leaking it leaks
/// the buffer and no more.
///
/// Borrowed memory cannot be handed over, because nothing would stop its owner
/// from using it:
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) {
/// let data = [1.0f64; 8];
/// let request = comm.isend(&data, 1, 0); // a reference owns nothing
/// # }
/// ```
#[must_use = "a request that is dropped is detached"]
pub struct Request<B: OwnedBuffer> {
    comm: Communicator,
    state: State,
    buffer: Option<B>,
    /// Counted among those that a foreign executor waits for.
    counted: bool,
}

impl Communicator {
    /// Begins to send a buffer that the request owns (standard mode).
    #[track_caller]
    pub fn isend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.isend_mode(buffer, dest.into(), tag.into(), Mode::Standard)
    }

    /// Begins to send a buffer that the request owns; over when the receiver
    /// has begun to receive (synchronous mode).
    #[track_caller]
    pub fn issend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.isend_mode(buffer, dest.into(), tag.into(), Mode::Synchronous)
    }

    #[track_caller]
    fn isend_mode<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: Rank,
        tag: Tag,
        mode: Mode,
    ) -> Result<Request<B>> {
        let tag = tag.check()?;
        let state = match dest.check(self.peer_count())? {
            Some(dest) => self.isend_raw(buffer.view().raw(), dest, tag, mode)?.into(),
            None => State::Done(Ok(Status::EMPTY)),
        };
        Ok(Request::new(self, state, buffer))
    }

    /// Begins to receive into a buffer that the request owns.
    #[track_caller]
    pub fn irecv<B: OwnedBufferMut>(
        &self,
        mut buffer: B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Request<B>> {
        let state = match names::pattern(source.into(), tag.into(), self.peer_count())? {
            Some(pattern) => self.irecv_raw(buffer.view_mut().raw(), pattern)?.into(),
            None => State::Done(Ok(Status::EMPTY)),
        };
        Ok(Request::new(self, state, buffer))
    }

    /// Runs a future to its end; this thread drives the communication that it
    /// waits for.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = driven_waker();
        let mut context = Context::from_waker(&waker);
        self.core()
            .wait_until(|| match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
    }
}

impl From<Posted> for State {
    fn from(posted: Posted) -> Self {
        match posted {
            Posted::Done(outcome) => State::Done(Ok(outcome.into())),
            Posted::Pending(handle) => State::Pending(handle),
        }
    }
}

impl<B: OwnedBuffer> Request<B> {
    fn new(comm: &Communicator, state: State, buffer: B) -> Self {
        Self {
            comm: comm.clone(),
            state,
            buffer: Some(buffer),
            counted: false,
        }
    }

    /// Waits for the end; gives back the buffer.
    #[track_caller]
    pub fn wait(mut self) -> Result<(B, Status)> {
        if let State::Pending(handle) = self.state {
            let result = self.comm.wait_raw(Posted::Pending(handle));
            self.state = State::Done(result.map(Status::from));
        }
        self.output()
    }

    /// Makes progress and asks whether the request is over; [`Request::wait`]
    /// will not block then.
    pub fn test(&mut self) -> bool {
        let State::Pending(handle) = self.state else {
            return true;
        };
        let core = self.comm.core();
        core.check_deaths();
        let result = core.with(self.comm.lane(), |lane| {
            if !lane.is_done(handle) {
                lane.progress_awake();
            }
            lane.take(handle)
        });
        match result {
            Some(result) => {
                self.state = State::Done(result.map(Status::from));
                true
            }
            None => false,
        }
    }

    /// Cancels a receive, or withdraws a send, and gives back the buffer. A
    /// message that was under way may be lost.
    #[track_caller]
    pub fn revoke(mut self) -> Option<B> {
        if let State::Pending(handle) = self.state {
            self.comm.revoke_raw(handle);
            self.state = State::Taken;
        }
        self.buffer.take()
    }

    fn output(&mut self) -> Result<(B, Status)> {
        match (
            std::mem::replace(&mut self.state, State::Taken),
            self.buffer.take(),
        ) {
            (State::Done(result), Some(buffer)) => result.map(|status| (buffer, status)),
            _ => Err(crate::Error::new(
                crate::ErrorKind::Argument,
                "a request that was polled after its end",
            )),
        }
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }
}

impl<B: OwnedBuffer + Unpin> Future for Request<B> {
    type Output = Result<(B, Status)>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.test() {
            let State::Pending(handle) = this.state else {
                return Poll::Ready(this.output());
            };
            let waker = context.waker();
            let driven = is_driven(waker);
            let done = this.comm.core().with(this.comm.lane(), |lane| {
                if !driven {
                    lane.set_waker(handle, waker);
                }
                lane.is_done(handle)
            });
            if !done {
                if !driven && !this.counted {
                    this.counted = true;
                    this.comm.core().future_waits();
                }
                return Poll::Pending;
            }
            this.test();
        }
        this.uncount();
        Poll::Ready(this.output())
    }
}

impl<B: OwnedBuffer> Waitable for Request<B> {
    type Output = (B, Status);

    fn test(&mut self) -> bool {
        Request::test(self)
    }

    #[track_caller]
    fn wait(self) -> Result<(B, Status)> {
        Request::wait(self)
    }
}

impl<B: OwnedBuffer> OnCommunicator for Request<B> {
    fn communicator(&self) -> &Communicator {
        &self.comm
    }
}

impl<B: OwnedBuffer> Drop for Request<B> {
    fn drop(&mut self) {
        self.uncount();
        if let State::Pending(handle) = self.state
            && let Some(buffer) = self.buffer.take()
        {
            self.comm.core().with(self.comm.lane(), |lane| {
                lane.set_owner(handle, Box::new(buffer));
                lane.detach(handle);
            });
        }
    }
}

/// The waker of [`Communicator::block_on`]: that thread polls anyway.
fn driven_waker() -> Waker {
    // SAFETY: the functions of the table ignore the data pointer.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &DRIVEN)) }
}

static DRIVEN: RawWakerVTable = RawWakerVTable::new(
    |_| RawWaker::new(std::ptr::null(), &DRIVEN),
    |_| {},
    |_| {},
    |_| {},
);

fn is_driven(waker: &Waker) -> bool {
    std::ptr::eq(waker.vtable(), &DRIVEN)
}
