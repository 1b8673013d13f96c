//! A send and a receive at the same time.

use super::request::Request;
use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::view::{BufferMut, OwnedBuffer, OwnedBufferMut, RawView};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The packed bytes of a view, copied.
fn copy_of(comm: &Communicator, view: &RawView) -> Result<Vec<u8>> {
    let bytes = view.bytes();
    let mut copy = osier_engine::view::zeroed_vec::<u8>(bytes)?;
    // SAFETY: callers pass a view of memory that they hold a borrow of; the
    // copy has as many bytes.
    unsafe { view.pack_all(&comm.core().devices, copy.as_mut_ptr()) }?;
    Ok(copy)
}

impl Communicator {
    /// Sends what is in the buffer, and receives another message into it. A
    /// message that does not leave at once is copied.
    ///
    /// # Errors
    /// As [`Communicator::sendrecv`]; of kind [`ErrorKind::OutOfMemory`], if there is no memory
    /// for the copy.
    #[track_caller]
    pub fn sendrecv_replace<B: BufferMut + ?Sized>(
        &self,
        buffer: &mut B,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<Status> {
        let send_tag = self.reported(send_tag.into().check())?;
        let dest = self.reported(dest.into().check(self.peer_count()))?;
        let pattern = self.reported(names::pattern(
            source.into(),
            recv_tag.into(),
            self.peer_count(),
        ))?;
        self.reported(self.may_wait("sendrecv_replace"))?;
        let view = buffer.view_mut().raw();
        let sent = match dest {
            Some(dest) if !self.send_now(&view, dest, send_tag) => {
                let copy = self.reported(copy_of(self, &view))?;
                let raw = view.packed_at(copy.as_ptr().cast_mut());
                let posted = self.isend_raw(raw, dest, send_tag, Mode::Standard);
                Some(Request::of_posted(self, Some(self.reported(posted)?), copy))
            }
            _ => None,
        };
        // On an error the send completes by itself: it owns its copy.
        let status = match pattern {
            Some(pattern) => self.reported(self.recv_raw(view, pattern))?.into(),
            None => Status::EMPTY,
        };
        if let Some(sent) = sent {
            sent.wait()?;
        }
        Ok(status)
    }

    /// Begins to send one buffer and to receive into another; the request owns
    /// both.
    ///
    /// # Errors
    /// As [`Communicator::isend`] and [`Communicator::irecv`].
    #[track_caller]
    pub fn isendrecv<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: S,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        recv: R,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<SendRecv<S, R>> {
        let recv = self.irecv(recv, source, recv_tag)?;
        let send = self.isend(send, dest, send_tag)?;
        Ok(SendRecv {
            send: Some(send),
            recv: Some(recv),
        })
    }

    /// Begins to send what is in the buffer and to receive another message
    /// into it; the request owns it. What is sent is copied.
    ///
    /// # Errors
    /// As [`Communicator::isendrecv`]; of kind [`ErrorKind::OutOfMemory`], if there is no
    /// memory for the copy.
    #[track_caller]
    pub fn isendrecv_replace<B: OwnedBufferMut>(
        &self,
        mut buffer: B,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<SendRecvReplace<B>> {
        let send_tag = self.reported(send_tag.into().check())?;
        let dest = self.reported(dest.into().check(self.peer_count()))?;
        let pattern = self.reported(names::pattern(
            source.into(),
            recv_tag.into(),
            self.peer_count(),
        ))?;
        let view = buffer.view_mut().raw();
        let copy = match dest {
            Some(_) => self.reported(copy_of(self, &view))?,
            None => Vec::new(),
        };
        let raw = view.packed_at(copy.as_ptr().cast_mut());
        let received = match pattern {
            Some(pattern) => Some(self.reported(self.irecv_raw(view, pattern))?),
            None => None,
        };
        let recv = Request::of_posted(self, received, buffer);
        let posted: Option<Posted> = match dest {
            Some(dest) => {
                let posted = self.isend_raw(raw, dest, send_tag, Mode::Standard);
                Some(self.reported(posted)?)
            }
            None => None,
        };
        Ok(SendRecvReplace(SendRecv {
            send: Some(Request::of_posted(self, posted, copy)),
            recv: Some(recv),
        }))
    }
}

/// A send and a receive in flight that own their buffers; complete when both are.
/// Dropping it drops both, as [`Request`] says.
#[must_use = "a request that is dropped is detached"]
pub struct SendRecv<S: OwnedBuffer, R: OwnedBuffer> {
    send: Option<Request<S>>,
    recv: Option<Request<R>>,
}

fn polled_after_end() -> Error {
    Error::new(
        ErrorKind::Argument,
        "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
    )
}

impl<S: OwnedBuffer, R: OwnedBuffer> SendRecv<S, R> {
    /// Waits for the end of both; gives back both buffers, and the status of
    /// the receive.
    ///
    /// # Errors
    /// As [`Communicator::sendrecv`], after both are complete; of kind [`ErrorKind::Argument`], if
    /// the request was polled to its end as a future.
    #[track_caller]
    pub fn wait(mut self) -> Result<(S, R, Status)> {
        self.output()
    }

    /// Makes progress; true if both are complete.
    pub fn test(&mut self) -> bool {
        let sent = self.send.as_mut().is_none_or(Request::test);
        sent && self.recv.as_mut().is_none_or(Request::test)
    }

    /// The status of the receive if both are complete. Leaves the request as it
    /// is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        let sent = match &mut self.send {
            Some(send) => send.status()?,
            None => Ok(Status::EMPTY),
        };
        let received = self.recv.as_mut()?.status()?;
        Some(sent.and(received))
    }

    #[track_caller]
    fn output(&mut self) -> Result<(S, R, Status)> {
        let (send, recv) = match (self.send.take(), self.recv.take()) {
            (Some(send), Some(recv)) => (send, recv),
            _ => return Err(polled_after_end()),
        };
        let received = recv.wait();
        let (sent, _) = send.wait()?;
        let (recv, status) = received?;
        Ok((sent, recv, status))
    }
}

impl<S: OwnedBuffer + Unpin, R: OwnedBuffer + Unpin> Future for SendRecv<S, R> {
    type Output = Result<(S, R, Status)>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let parts = [
            this.send.as_mut().map(|r| r.poll_end(context)),
            this.recv.as_mut().map(|r| r.poll_end(context)),
        ];
        if parts.iter().flatten().any(Poll::is_pending) {
            return Poll::Pending;
        }
        Poll::Ready(this.output())
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> Waitable for SendRecv<S, R> {
    type Output = (S, R, Status);

    fn test(&mut self) -> bool {
        SendRecv::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Self::Output> {
        SendRecv::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        SendRecv::status(self)
    }
}

impl<S: OwnedBuffer, R: OwnedBuffer> sealed::Notifies for SendRecv<S, R> {
    fn home(&self) -> sealed::Home<'_> {
        match (&self.send, &self.recv) {
            (Some(send), _) => send.home(),
            (_, Some(recv)) => recv.home(),
            // Taken by `output` only, which consumes the request or ends the
            // future.
            (None, None) => unreachable!("a request after its end"),
        }
    }

    fn raise(&self, e: Error) -> Error {
        match (&self.send, &self.recv) {
            (Some(send), _) => send.raise(e),
            (_, Some(recv)) => recv.raise(e),
            (None, None) => e,
        }
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        // One after the other: the second is asked when the first has ended.
        let mut parts = self.send.as_mut().is_none_or(|r| r.notify(ready, token));
        if parts {
            parts = self.recv.as_mut().is_none_or(|r| r.notify(ready, token));
        }
        parts
    }
}

/// Forgets the buffers.
impl<S, R> From<(S, R, Status)> for Status {
    fn from((_, _, status): (S, R, Status)) -> Self {
        status
    }
}

/// As [`SendRecv`], with one buffer for both.
#[must_use = "a request that is dropped is detached"]
pub struct SendRecvReplace<B: OwnedBuffer>(SendRecv<Vec<u8>, B>);

impl<B: OwnedBuffer> SendRecvReplace<B> {
    /// Waits for the end of both; gives back the buffer with what was
    /// received.
    ///
    /// # Errors
    /// As [`Communicator::sendrecv`], after both are complete; of kind [`ErrorKind::Argument`], if
    /// the request was polled to its end as a future.
    #[track_caller]
    pub fn wait(self) -> Result<(B, Status)> {
        let (_, buffer, status) = self.0.wait()?;
        Ok((buffer, status))
    }

    /// Operations of its own: of the send and of the receive.
    pub(crate) fn handles(&self) -> [Option<u32>; 2] {
        let send = self.0.send.as_ref().and_then(Request::handle);
        [send, self.0.recv.as_ref().and_then(Request::handle)]
    }

    /// Makes progress; true if both are complete.
    pub fn test(&mut self) -> bool {
        self.0.test()
    }

    /// The status of the receive if both are complete. Leaves the request as it
    /// is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.0.status()
    }
}

impl<B: OwnedBuffer + Unpin> Future for SendRecvReplace<B> {
    type Output = Result<(B, Status)>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let both = Pin::new(&mut self.get_mut().0).poll(context);
        both.map(|r| r.map(|(_, buffer, status)| (buffer, status)))
    }
}

impl<B: OwnedBuffer> Waitable for SendRecvReplace<B> {
    type Output = (B, Status);

    fn test(&mut self) -> bool {
        self.0.test()
    }

    #[track_caller]
    fn finish(self) -> Result<Self::Output> {
        SendRecvReplace::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        self.0.status()
    }
}

impl<B: OwnedBuffer> sealed::Notifies for SendRecvReplace<B> {
    fn home(&self) -> sealed::Home<'_> {
        self.0.home()
    }

    fn raise(&self, e: Error) -> Error {
        self.0.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.0.notify(ready, token)
    }
}
