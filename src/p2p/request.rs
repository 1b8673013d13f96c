//! Requests that own their buffers: futures, and transfers that outlive the
//! function that began them.

use super::message::Message;
use super::started::Started;
use super::status::Status;
use super::transfer::{Transfer, driven_waker};
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::progress::window::Handle;
use osier_engine::view::{OwnedBuffer, OwnedBufferMut};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A transfer in flight that owns its buffer.
///
/// It is a [`Future`] of any executor; [`Request::wait`] blocks instead.
/// When it is dropped, a send completes by itself, and a receive that no message
/// has matched is cancelled; the buffer lives until nothing uses it. A receive into a
/// device's memory, of which others have clones, is given up in any case. Leaking it leaks
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
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let got = comm.irecv(vec![0u32; 2], peer, 0)?;
/// let sent = comm.isend(vec![comm.rank() as u32; 2], peer, 0)?;
/// // As futures, one after the other; `wait` does the same without an executor.
/// let (got, _) = comm.block_on(async {
///     sent.await?;
///     got.await
/// })?;
/// assert_eq!(got, [peer as u32; 2]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[must_use = "a request that is dropped is detached"]
pub struct Request<B: OwnedBuffer> {
    transfer: Transfer,
    buffer: Option<B>,
}

impl Communicator {
    /// Begins to send a buffer that the request owns (standard mode).
    ///
    /// The buffer comes back with [`Request::wait`], when it may be used again; the message may
    /// not have been received by then. Counts, types and order are as of
    /// [`Communicator::send`]: a message takes its place among the others when this call begins
    /// it.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let peer = 1 - comm.rank();
    /// let got = comm.irecv(vec![0u8; 3], peer, 0)?;
    /// let sent = comm.isend(vec![comm.rank() as u8; 3], peer, 0)?;
    /// let (got, status) = got.wait()?;
    /// assert_eq!((got, status.bytes()), (vec![peer as u8; 3], 3));
    /// let (_mine, _) = sent.wait()?; // ours again
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send`], of what is known at the call; what happens later is an error
    /// of [`Request::wait`]. The buffer is dropped with the error.
    #[track_caller]
    pub fn isend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.isend_mode(buffer, dest.into(), tag.into(), Mode::Standard)
    }

    /// Begins to send a buffer that the request owns; complete when the receiver
    /// has begun to receive (synchronous mode).
    ///
    /// # Errors
    /// As [`Communicator::isend`].
    #[track_caller]
    pub fn issend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.isend_mode(buffer, dest.into(), tag.into(), Mode::Synchronous)
    }

    /// As [`Communicator::isend`], where the caller knows that the receive is
    /// posted (ready mode); see [`Communicator::rsend`].
    ///
    /// # Errors
    /// As [`Communicator::isend`].
    #[track_caller]
    pub fn irsend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.isend_mode(buffer, dest.into(), tag.into(), Mode::Ready)
    }

    /// As [`Communicator::bsend`]; the request is complete at once and gives the
    /// buffer back.
    ///
    /// # Errors
    /// As [`Communicator::bsend`].
    #[track_caller]
    pub fn ibsend<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        self.bsend(&buffer, dest, tag)?;
        Ok(Request::new(self, None, buffer))
    }

    #[track_caller]
    fn isend_mode<B: OwnedBuffer>(
        &self,
        buffer: B,
        dest: Rank,
        tag: Tag,
        mode: Mode,
    ) -> Result<Request<B>> {
        let tag = self.reported(tag.check())?;
        let posted = match self.reported(dest.check(self.peer_count()))? {
            Some(dest) => {
                let posted = self.isend_raw(buffer.view().raw(), dest, tag, mode);
                Some(self.reported(posted)?.into())
            }
            None => None,
        };
        Ok(Request::new(self, posted, buffer))
    }

    /// Begins to receive into a buffer that the request owns.
    ///
    /// The buffer comes back with [`Request::wait`]. Posted receives meet messages in the order
    /// of the calls.
    ///
    /// # Errors
    /// As [`Communicator::recv`], of what is known at the call; what happens later is an error
    /// of [`Request::wait`]. The buffer is dropped with the error.
    #[track_caller]
    pub fn irecv<B: OwnedBufferMut>(
        &self,
        mut buffer: B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Request<B>> {
        let posted =
            match self.reported(names::pattern(source.into(), tag.into(), self.peer_count()))? {
                Some(pattern) => {
                    let posted = self.start_receive(buffer.view_mut().raw(), pattern);
                    Some(self.reported(posted)?)
                }
                None => None,
            };
        Ok(Request::new(self, posted, buffer))
    }

    /// The request of a receive that [`Communicator::begin_receive`] has posted.
    #[doc(hidden)]
    pub fn adopt_receive<B: OwnedBufferMut>(&self, handle: Handle, buffer: B) -> Request<B> {
        Request::new(self, Some(Started::Pending(handle)), buffer)
    }

    /// Runs a future to its end; this thread drives the communication that it
    /// waits for.
    ///
    /// # Panics
    /// In a task of a graph, unless the future is ready: tasks do not wait.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = driven_waker();
        let mut context = Context::from_waker(&waker);
        if let Err(refused) = self.may_wait("block_on") {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => panic!("{refused}"),
            }
        }
        self.core()
            .drive(|| match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
    }
}

impl Message {
    /// Begins to receive it into a buffer that the request owns.
    ///
    /// # Errors
    /// As [`Message::recv`], of what is known at the call; what happens later is an error of
    /// [`Request::wait`].
    #[track_caller]
    pub fn irecv<B: OwnedBufferMut>(mut self, mut buffer: B) -> Result<Request<B>> {
        let posted = self.post(buffer.view_mut().raw());
        let posted = self.communicator().reported(posted)?;
        Ok(Request::of_posted(self.communicator(), posted, buffer))
    }
}

impl<B: OwnedBuffer> Request<B> {
    pub(super) fn new(comm: &Communicator, posted: Option<Started>, buffer: B) -> Self {
        Self {
            transfer: Transfer::new(comm, posted),
            buffer: Some(buffer),
        }
    }

    /// Of an operation that was posted; `None` if there is nobody to transfer with.
    pub(crate) fn of_posted(comm: &Communicator, posted: Option<Posted>, buffer: B) -> Self {
        Self::new(comm, posted.map(Started::from), buffer)
    }

    /// Waits for the end; gives back the buffer.
    ///
    /// # Errors
    /// As [`Communicator::send`] or [`Communicator::recv`], of the transfer; the buffer is
    /// dropped then. Of kind [`ErrorKind::Argument`], if the request was polled to its end as a
    /// future.
    #[track_caller]
    pub fn wait(mut self) -> Result<(B, Status)> {
        let result = self.transfer.wait();
        self.output(result)
    }

    /// As [`Request::wait`], for layers above that keep requests in place: it is empty
    /// afterwards, and good for nothing but to be dropped.
    #[doc(hidden)]
    #[track_caller]
    pub fn end(&mut self) -> Result<Status> {
        self.transfer.wait()
    }

    /// Makes progress; true if the request is complete: [`Request::wait`] will not
    /// block then.
    pub fn test(&mut self) -> bool {
        self.transfer.test()
    }

    /// Makes progress; the status if the request is complete. Leaves it as it
    /// is ([`Request::wait`] gives the buffer).
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.transfer.status()
    }

    /// Cancels a receive that no message has matched: it is complete, and
    /// [`Status::cancelled`] says so. False if the request continues: a
    /// receive that has matched its message, or any send (MPI deprecates
    /// cancelling sends; [`Request::revoke`] cancels one).
    pub fn cancel(&mut self) -> bool {
        self.transfer.cancel()
    }

    /// Cancels a receive, or cancels a send, and gives back the buffer. A
    /// message in flight may be lost.
    #[track_caller]
    pub fn revoke(mut self) -> Option<B> {
        self.transfer.revoke();
        self.buffer.take()
    }

    /// Detaches the transfer, which completes by itself, a receive too: it takes
    /// its message when that comes. The buffer lives until then.
    pub fn detach(mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.transfer.let_go(|| Box::new(buffer));
        }
    }

    /// Of its operation, while that is not known to be complete.
    pub(crate) fn handle(&self) -> Option<u32> {
        self.transfer.handle()
    }

    /// Polls for the end, and leaves the result where it is.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.transfer.poll(context)
    }

    #[track_caller]
    fn output(&mut self, result: Result<Status>) -> Result<(B, Status)> {
        let status = result?;
        match self.buffer.take() {
            Some(buffer) => Ok((buffer, status)),
            None => Err(Error::new(
                ErrorKind::Argument,
                "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
            )),
        }
    }
}

impl<B: OwnedBuffer + Unpin> Future for Request<B> {
    type Output = Result<(B, Status)>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.transfer.poll(context) {
            Poll::Ready(()) => {
                let result = this.transfer.take();
                Poll::Ready(this.output(result))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<B: OwnedBuffer> Waitable for Request<B> {
    type Output = (B, Status);

    fn test(&mut self) -> bool {
        Request::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<(B, Status)> {
        Request::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        Request::status(self)
    }
}

impl<B: OwnedBuffer> sealed::Notifies for Request<B> {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(self.transfer.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.transfer.communicator().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.transfer.notify(ready, token)
    }
}

impl<B: OwnedBuffer> Drop for Request<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.transfer.detach(|| Box::new(buffer));
        }
    }
}
