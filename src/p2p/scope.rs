//! Transfers of borrowed memory that end with a scope.
//!
//! # Invariants
//! 1. Memory lent to a scope stays borrowed until the scope's function has
//!    returned or unwound and every transfer is complete or revoked: `'scope`
//!    outlives the function, as in `std::thread::scope`.
//! 2. `pending` has the handle of each transfer that no call has waited for.

use super::message::Message;
use super::partitioned::{self, Side};
use super::started::{Begun, Started};
use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::Pattern;
use osier_engine::progress::lane::{Mode, Outcome, Posted};
use osier_engine::progress::window::Handle;
use osier_engine::trace::event::Kind;
use osier_engine::view::{Buffer, BufferMut, RawView};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Where transfers of borrowed memory are posted; see
/// [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'env Communicator,
    pending: RefCell<Pending>,
    runs: ScopedRuns,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Collectives that no call has waited for.
#[derive(Debug, Default)]
pub(crate) struct ScopedRuns(RefCell<Vec<u32>>);

impl ScopedRuns {
    pub fn add(&self, run: u32) {
        self.0.borrow_mut().push(run);
    }

    pub fn remove(&self, run: u32) {
        let mut runs = self.0.borrow_mut();
        if let Some(at) = runs.iter().position(|r| *r == run) {
            runs.swap_remove(at);
        }
    }
}

/// Grows with the transfers in flight, not with those begun.
#[derive(Default)]
pub(super) struct Pending {
    /// Partitioned requests that were set up.
    hosted: Vec<Arc<dyn Side>>,
    handles: Vec<Option<Handle>>,
    free: Vec<usize>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (handles, hosted) = (&self.handles, self.hosted.len());
        write!(f, "Pending {{ {handles:?}, {hosted} partitioned }}")
    }
}

impl Pending {
    pub(super) fn add(&mut self, handle: Handle) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.handles[at] = Some(handle);
                at
            }
            None => {
                self.handles.push(Some(handle));
                self.handles.len() - 1
            }
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        if self.handles[at].take().is_some() {
            self.free.push(at);
        }
    }
}

/// A transfer in flight in a scope.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let (mine, mut theirs) = ([comm.rank()], [9]);
/// let peer = 1 - comm.rank();
/// comm.scope(|s| {
///     let got = s.irecv(&mut theirs, peer, 0)?;
///     s.isend(&mine, peer, 0)?; // the scope waits for this one
///     assert_eq!(got.wait()?.source(), Some(peer));
///     Ok(())
/// })?;
/// assert_eq!(theirs, [peer]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Debug)]
pub struct ScopedRequest<'scope> {
    comm: &'scope Communicator,
    pending: &'scope RefCell<Pending>,
    state: State,
}

#[derive(Debug)]
enum State {
    Pending { handle: Handle, at: usize },
    Done(Result<Status>),
}

impl Communicator {
    /// Runs `f`, which may post transfers of memory that it borrows. When `f`
    /// has returned `Ok`, the scope waits for all of them; when it returned an
    /// error or unwinds, it revokes those that are not complete.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let mine = [comm.rank() as u64];
    /// let mut other = [0u64];
    /// let peer = 1 - comm.rank();
    /// comm.scope(|s| {
    ///     s.irecv(&mut other, peer, 0)?;
    ///     s.isend(&mine, peer, 0)?;
    ///     Ok(())
    /// })
    /// .unwrap();
    /// assert_eq!(other, [peer as u64]);
    /// # });
    /// ```
    ///
    /// The memory stays borrowed until the scope has ended:
    ///
    /// ```compile_fail
    /// # osier::testing::ranks(1, |comm| {
    /// let mut data = [0u64];
    /// comm.scope(|s| {
    ///     s.irecv(&mut data, 0, 0)?;
    ///     data[0] = 1; // still borrowed by the receive
    ///     Ok(())
    /// })
    /// .unwrap();
    /// # });
    /// ```
    ///
    /// and what is lent must outlive the scope:
    ///
    /// ```compile_fail
    /// # osier::testing::ranks(1, |comm| {
    /// comm.scope(|s| {
    ///     let mut data = [0u64];
    ///     s.irecv(&mut data, 0, 0)?; // gone before the scope ends
    ///     Ok(())
    /// })
    /// .unwrap();
    /// # });
    /// ```
    ///
    /// A request cannot leave its scope:
    ///
    /// ```compile_fail
    /// # osier::testing::ranks(1, |comm| {
    /// let data = [0u64];
    /// let request = comm.scope(|s| s.isend(&data, 0, 0)).unwrap();
    /// # });
    /// ```
    ///
    /// All buffers are the caller's again when the call returns, whatever it returns.
    ///
    /// # Errors
    /// The error of `f`, after its transfers are revoked; else the first error of a transfer or
    /// collective for which `f` did not wait, after all are complete. A request for which `f`
    /// waited returned its error there.
    #[track_caller]
    pub fn scope<'env, R>(
        &'env self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        self.reported(self.may_wait("scope"))?;
        let scope = Scope {
            comm: self,
            pending: RefCell::default(),
            runs: ScopedRuns::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let mut first = None;
        let result = {
            let revoker = Revoker(&scope.pending, &scope.runs, self);
            let result = f(&scope);
            if result.is_ok() {
                first = self.finish_runs(&scope.runs);
                std::mem::forget(revoker);
            }
            result
        };
        let pending = scope.pending.take();
        if let Some(e) = self.wait_many(pending.handles) {
            first.get_or_insert(e);
        }
        if result.is_ok() {
            for side in pending.hosted {
                if let Err(e) = partitioned::complete(&*side) {
                    first.get_or_insert(e);
                }
            }
        }
        match first {
            Some(e) => Err(self.raise(e)),
            None => result,
        }
    }
}

impl Communicator {
    /// Waits for collectives; the first error.
    #[track_caller]
    fn finish_runs(&self, runs: &ScopedRuns) -> Option<Error> {
        let mut first = None;
        loop {
            let Some(run) = runs.0.borrow_mut().pop() else {
                return first;
            };
            if let Err(e) = self.finish_collective(run) {
                first.get_or_insert(e);
            }
        }
    }
}

/// Revokes what is pending, unless it is forgotten.
struct Revoker<'a>(&'a RefCell<Pending>, &'a ScopedRuns, &'a Communicator);

impl Drop for Revoker<'_> {
    fn drop(&mut self) {
        let pending = self.0.take();
        for handle in pending.handles.into_iter().flatten() {
            self.2.revoke_handle(handle);
        }
        for run in self.1.0.take() {
            self.2.give_up_collective(run);
        }
        for side in pending.hosted {
            partitioned::revoke(&*side);
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Begins to send (standard mode).
    ///
    /// The buffer may be read meanwhile; counts, types and order are as of
    /// [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Communicator::send`], of what is known at the call; what happens later is an error
    /// of [`ScopedRequest::wait`], or of the scope.
    #[inline]
    #[track_caller]
    pub fn isend<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &'scope B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        let (dest, tag) = (dest.into(), tag.into());
        if let Some((dest, tag)) = names::exact(dest.into(), tag.into(), self.comm.peer_count())
            && self.comm.core().trace.is_none()
            && let Some(bytes) = buffer.lend(|view| {
                let now = self.comm.send_now(view.as_raw(), dest, tag);
                now.then_some(view.bytes())
            })
        {
            return Ok(self.done(Status::new(dest as usize, tag, bytes)));
        }
        self.send_raw(buffer.view().raw(), dest, tag, Mode::Standard)
    }

    /// Begins to send; complete when the receiver has begun to receive
    /// (synchronous mode).
    ///
    /// # Errors
    /// As [`Scope::isend`].
    #[track_caller]
    pub fn issend<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &'scope B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        self.send_raw(
            buffer.view().raw(),
            dest.into(),
            tag.into(),
            Mode::Synchronous,
        )
    }

    /// Begins to receive.
    ///
    /// The buffer stays borrowed until the scope ends, also when the receive is complete.
    ///
    /// # Errors
    /// As [`Communicator::recv`], of what is known at the call; what happens later is an error
    /// of [`ScopedRequest::wait`], or of the scope.
    #[inline]
    #[track_caller]
    pub fn irecv<B: BufferMut + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<ScopedRequest<'scope>> {
        let (source, tag, peers) = (source.into(), tag.into(), self.comm.peer_count());
        if let Some((source, tag)) = names::exact(source, tag, peers) {
            let posted = buffer.lend_mut(|view| self.comm.post_view(view.as_raw(), source, tag));
            // Not by a closure: reports name the caller's line.
            let begun = match posted {
                Some(posted) => Some(posted),
                None => {
                    let view = buffer.view_mut();
                    self.comm.begin_view(view.as_raw(), source, tag)
                }
            };
            match begun {
                Some(Begun::Received(bytes)) => {
                    return Ok(self.done(Status::new(source as usize, tag, bytes)));
                }
                Some(Begun::Posted(handle)) => return Ok(self.pending(handle)),
                None => {}
            }
        }
        let pattern = self.comm.reported(names::pattern(source, tag, peers))?;
        self.recv_raw(buffer.view_mut().raw(), pattern)
    }

    /// As [`Scope::isend`], where the caller knows that the receive is posted
    /// (ready mode); see [`Communicator::rsend`].
    ///
    /// # Errors
    /// As [`Scope::isend`].
    #[inline]
    #[track_caller]
    pub fn irsend<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &'scope B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        self.send_raw(buffer.view().raw(), dest.into(), tag.into(), Mode::Ready)
    }

    /// As [`Communicator::bsend`]; the request is complete at once, and the buffer
    /// is borrowed for the call only.
    ///
    /// # Errors
    /// As [`Communicator::bsend`].
    #[track_caller]
    pub fn ibsend<B: Buffer + ?Sized>(
        &'scope self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest<'scope>> {
        self.comm.bsend(buffer, dest, tag)?;
        Ok(self.done(Status::EMPTY))
    }

    /// Begins to receive a message that a matched probe has taken.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the message is of another communicator; else as
    /// [`Message::recv`].
    #[track_caller]
    pub fn imrecv<B: BufferMut + ?Sized>(
        &'scope self,
        mut message: Message,
        buffer: &'scope mut B,
    ) -> Result<ScopedRequest<'scope>> {
        if message.communicator().context() != self.comm.context() {
            return Err(self.comm.raise(Error::new(
                ErrorKind::Argument,
                "a message of another communicator than the scope's (hint: use a scope of its communicator)",
            )));
        }
        let posted = message.post(buffer.view_mut().raw());
        Ok(self.request(self.comm.reported(posted)?))
    }

    /// Has the scope see to the end of a partitioned request.
    pub(super) fn host(&self, side: Arc<dyn Side>) {
        self.pending.borrow_mut().hosted.push(side);
    }

    /// Its collectives.
    pub(crate) fn runs(&self) -> &ScopedRuns {
        &self.runs
    }

    /// The communicator.
    pub fn communicator(&self) -> &'env Communicator {
        self.comm
    }

    #[inline]
    #[track_caller]
    pub(crate) fn send_raw(
        &'scope self,
        view: RawView,
        dest: Rank,
        tag: Tag,
        mode: Mode,
    ) -> Result<ScopedRequest<'scope>> {
        let tag = self.comm.reported(tag.check())?;
        let dest = self.comm.reported(dest.check(self.comm.peer_count()))?;
        let Some(dest) = dest else {
            return Ok(self.done(Status::EMPTY));
        };
        let _span = self.comm.span(Kind::Isend, dest, tag, view.bytes());
        if mode != Mode::Synchronous && self.comm.send_now(&view, dest, tag) {
            return Ok(self.request(Some(Posted::Done(Outcome {
                source: dest,
                tag,
                bytes: view.bytes(),
            }))));
        }
        let posted = self.comm.isend_unseen(view, dest, tag, mode);
        let posted = self.comm.reported(posted)?;
        Ok(self.request(Some(posted)))
    }

    #[inline]
    #[track_caller]
    pub(crate) fn recv_raw(
        &'scope self,
        view: RawView,
        pattern: Option<Pattern>,
    ) -> Result<ScopedRequest<'scope>> {
        match pattern {
            Some(pattern) => {
                let posted = self.comm.reported(self.comm.irecv_raw(view, pattern))?;
                Ok(self.request(Some(posted)))
            }
            None => Ok(self.done(Status::EMPTY)),
        }
    }

    /// A request that is complete.
    #[inline]
    fn done(&'scope self, status: Status) -> ScopedRequest<'scope> {
        ScopedRequest {
            comm: self.comm,
            pending: &self.pending,
            state: State::Done(Ok(status)),
        }
    }

    /// One under way.
    #[inline]
    fn pending(&'scope self, handle: Handle) -> ScopedRequest<'scope> {
        let at = self.pending.borrow_mut().add(handle);
        ScopedRequest {
            comm: self.comm,
            pending: &self.pending,
            state: State::Pending { handle, at },
        }
    }

    #[inline]
    pub(super) fn request<P: Into<Started>>(
        &'scope self,
        posted: Option<P>,
    ) -> ScopedRequest<'scope> {
        match posted.map(P::into) {
            None => self.done(Status::EMPTY),
            Some(Started::Done(outcome)) => self.done(outcome.into()),
            Some(Started::Pending(handle)) => self.pending(handle),
        }
    }
}

impl ScopedRequest<'_> {
    /// The operation, if its memory may be in use.
    pub(super) fn handle(&self) -> Option<Handle> {
        match self.state {
            State::Pending { handle, .. } => Some(handle),
            State::Done(_) => None,
        }
    }

    /// Whether its memory may be in use.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending { .. })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As [`Communicator::send`] or [`Communicator::recv`], of the transfer.
    #[track_caller]
    pub fn wait(self) -> Result<Status> {
        let result = match self.state {
            State::Done(result) => result,
            State::Pending { handle, at } => {
                let result = self.comm.wait_handle(handle);
                self.pending.borrow_mut().remove(at);
                result.map(Status::from)
            }
        };
        self.comm.reported(result)
    }

    /// Makes progress; true if the request is complete:
    /// [`ScopedRequest::wait`] will not block then.
    pub fn test(&mut self) -> bool {
        let State::Pending { handle, at } = self.state else {
            return true;
        };
        let core = self.comm.core();
        core.check_deaths();
        let result = core.with(self.comm.lane(), |lane| {
            if !lane.is_over(handle) {
                lane.progress_awake();
            }
            lane.end(handle)
        });
        match result {
            Some(result) => {
                self.pending.borrow_mut().remove(at);
                self.state = State::Done(result.map(Status::from));
                true
            }
            None => {
                core.give_turn();
                false
            }
        }
    }

    /// Makes progress; the status if the request is complete. Leaves it as it
    /// is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.test();
        match &mut self.state {
            State::Done(Err(e)) => Some(Err(self.comm.raise_in_place(e))),
            State::Done(result) => Some(result.clone()),
            State::Pending { .. } => None,
        }
    }

    /// Cancels a receive that no message has matched: it is complete, and
    /// [`Status::cancelled`] says so. False if the request continues as
    /// before, as any send does.
    pub fn cancel(&mut self) -> bool {
        let State::Pending { handle, at } = self.state else {
            return false;
        };
        let core = self.comm.core();
        let cancelled = core.with(self.comm.lane(), |lane| lane.cancel_posted(handle));
        if cancelled {
            self.pending.borrow_mut().remove(at);
            self.state = State::Done(Ok(Status::CANCELLED));
        }
        cancelled
    }

    /// Cancels a receive, or cancels a send. A message in flight may
    /// be lost.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    pub fn revoke(self) -> Result<()> {
        if let State::Pending { handle, at } = self.state {
            self.comm.revoke_handle(handle);
            self.pending.borrow_mut().remove(at);
        }
        Ok::<(), Error>(())
    }
}

impl Waitable for ScopedRequest<'_> {
    type Output = Status;

    fn test(&mut self) -> bool {
        ScopedRequest::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Status> {
        ScopedRequest::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        ScopedRequest::status(self)
    }
}

impl sealed::Notifies for ScopedRequest<'_> {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(self.comm.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.comm.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let State::Pending { handle, at } = self.state else {
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
                self.pending.borrow_mut().remove(at);
                self.state = State::Done(result.map(Status::from));
                true
            }
            None => false,
        }
    }
}
