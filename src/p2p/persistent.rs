//! Transfers that are set up once and begun again and again.
//!
//! A request is inactive, or active from its start until its result is taken.
//! Only an inactive one gives access to its buffer.
//!
//! # Invariants
//! 1. While a transfer is in flight its buffer is out of reach: it is owned or
//!    borrowed by the request, which hands it out only when nothing uses it.
//! 2. Leaking a request leaks the buffer it owns; one that borrows belongs to a
//!    scope, which completes or revokes what was started whatever becomes of
//!    the request.
//! 3. Starting allocates nothing once as many transfers have been in flight
//!    before (`tests/allocations.rs` counts); buffered mode may, as its copies
//!    do.
//!
//! # Sources
//! MPI 5.0, section 3.9.

use super::scope::{Scope, ScopedRequest};
use super::started::Started;
use super::status::Status;
use super::transfer::Transfer;
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{Pattern, TagPattern};
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::lane::{Mode, Outcome};
use osier_engine::view::{Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, RawView};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A request that can be started again when it is complete.
pub trait Startable {
    /// Begins the transfer.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request is active; else as the request's own
    /// `start`.
    #[track_caller]
    fn start(&mut self) -> Result<()>;
}

/// Starts all, in order; stops at the first error.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let mut send = comm.send_init(vec![0u64; 4], peer, 0)?;
/// let mut recv = comm.recv_init(vec![0u64; 4], peer, 0)?;
/// for round in 0..10 {
///     send.buffer_mut()?.fill(round);
///     osier::persistent::start_all([&mut recv as &mut dyn osier::persistent::Startable, &mut send])?;
///     send.wait()?;
///     recv.wait()?;
///     assert_eq!(recv.buffer()?[..], [round; 4]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// # Errors
/// The first error of a request's own `start`; requests behind it are not started.
#[track_caller]
pub fn start_all<'a, R: Startable + ?Sized + 'a>(
    requests: impl IntoIterator<Item = &'a mut R>,
) -> Result<()> {
    for request in requests {
        request.start()?;
    }
    Ok(())
}

/// What to post at each start.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Nobody,
    Send { dest: u32, tag: u32, mode: Mode },
    Buffered { dest: u32, tag: u32 },
    Receive(Pattern),
}

/// Source and tag of a pattern that has both.
#[inline(always)]
fn exact(pattern: Pattern) -> Option<(u32, u32)> {
    match (pattern.source, pattern.tag) {
        (Some(source), TagPattern::Exact(tag)) => Some((source, tag)),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum How {
    Mode(Mode),
    Buffered,
}

impl Plan {
    fn send(comm: &Communicator, dest: Rank, tag: Tag, how: How) -> Result<Plan> {
        let tag = tag.check()?;
        Ok(match (dest.check(comm.peer_count())?, how) {
            (None, _) => Plan::Nobody,
            (Some(dest), How::Mode(mode)) => Plan::Send { dest, tag, mode },
            (Some(dest), How::Buffered) => Plan::Buffered { dest, tag },
        })
    }

    fn receive(comm: &Communicator, source: Source, tag: TagSelector) -> Result<Plan> {
        let pattern = names::pattern(source, tag, comm.peer_count())?;
        Ok(pattern.map_or(Plan::Nobody, Plan::Receive))
    }

    #[track_caller]
    fn post(self, comm: &Communicator, view: &RawView) -> Result<Option<Started>> {
        if comm.core().trace.is_none()
            && let Some(started) = self.post_within(&mut comm.lane().lock(), view)
        {
            return Ok(Some(started));
        }
        let view = view.clone();
        match self {
            Plan::Nobody => Ok(None),
            Plan::Send { dest, tag, mode } => {
                let posted = comm.isend_raw(view, dest, tag, mode)?;
                Ok(Some(posted.into()))
            }
            Plan::Buffered { dest, tag } => {
                comm.bsend_raw(view, Some(dest), tag)?;
                Ok(None)
            }
            Plan::Receive(pattern) => {
                let posted = comm.irecv_raw(view, pattern)?;
                Ok(Some(posted.into()))
            }
        }
    }

    /// Posts a send that leaves at once, or a receive of a known source and tag; `None`: it
    /// needs more, and nothing has happened.
    #[inline]
    #[track_caller]
    fn post_within(self, lane: &mut LaneGuard<'_>, view: &RawView) -> Option<Started> {
        match self {
            Plan::Send { dest, tag, mode } => {
                let bytes = view.bytes();
                let source = dest;
                let sent = mode != Mode::Synchronous && lane.send_now(view, dest, tag);
                sent.then_some(Started::Done(Outcome { source, tag, bytes }))
            }
            Plan::Receive(pattern) => {
                let (source, tag) = exact(pattern)?;
                let begun = lane.begin_exact(view, source, tag)?;
                Some(Started::of_receive(begun, source, tag))
            }
            Plan::Nobody | Plan::Buffered { .. } => None,
        }
    }
}

#[cold]
fn started_twice() -> Error {
    Error::new(
        ErrorKind::Argument,
        "start of a persistent request that is active (hint: wait for it first)",
    )
}

#[cold]
fn buffer_in_use() -> Error {
    Error::new(
        ErrorKind::Argument,
        "the buffer of a persistent request is in use while it is in flight (hint: wait for it first)",
    )
}

macro_rules! inits {
    ($(#[$doc:meta])* $name:ident, $how:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank or tag.
        pub fn $name<B: OwnedBuffer>(
            &self,
            buffer: B,
            dest: impl Into<Rank>,
            tag: impl Into<Tag>,
        ) -> Result<Persistent<B>> {
            let plan = self.reported(Plan::send(self, dest.into(), tag.into(), $how))?;
            Ok(Persistent::new(self, plan, buffer, |b| b.view().raw()))
        }
    };
}

impl Communicator {
    inits! {
        /// Sets up a send of a buffer that the request owns (standard mode).
        send_init, How::Mode(Mode::Standard)
    }
    inits! {
        /// As [`Communicator::send_init`], in synchronous mode.
        ssend_init, How::Mode(Mode::Synchronous)
    }
    inits! {
        /// As [`Communicator::send_init`], in ready mode; see
        /// [`Communicator::rsend`].
        rsend_init, How::Mode(Mode::Ready)
    }
    inits! {
        /// As [`Communicator::send_init`], in buffered mode; see
        /// [`Communicator::bsend`].
        bsend_init, How::Buffered
    }

    /// Sets up a receive into a buffer that the request owns.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such source or tag.
    pub fn recv_init<B: OwnedBufferMut>(
        &self,
        buffer: B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Persistent<B>> {
        let plan = self.reported(Plan::receive(self, source.into(), tag.into()))?;
        Ok(Persistent::new(self, plan, buffer, |b| b.view_mut().raw()))
    }
}

/// A transfer that was set up once and can be started again and again; owns
/// its buffer.
///
/// Waiting for an inactive request returns at once, with an empty status. As a
/// future, `(&mut request).await` waits and leaves it inactive. Dropped while
/// active, it is as a [`Request`](super::Request) that is dropped.
///
/// The buffer cannot stay borrowed across a start:
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut send = comm.send_init(vec![0u64; 4], 1, 0)?;
/// let buffer = send.buffer_mut()?;
/// send.start()?;
/// buffer[0] = 1; // the transfer reads it
/// # Ok(())
/// # }
/// ```
///
/// and borrowed memory cannot be handed over:
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut data = [0u64; 4];
/// let recv = comm.recv_init(&mut data[..], 1, 0)?; // could be leaked
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let mut send = comm.send_init(vec![0u64; 4], peer, 0)?;
/// let mut recv = comm.recv_init(vec![0u64; 4], peer, 0)?;
/// for round in 0..3 {
///     send.buffer_mut()?.fill(round);
///     recv.start()?;
///     send.start()?;
///     send.wait()?;
///     recv.wait()?;
///     assert_eq!(recv.buffer()?[..], [round; 4]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct Persistent<B: OwnedBuffer> {
    transfer: Transfer,
    plan: Plan,
    buffer: Option<B>,
    view: fn(&mut B) -> RawView,
    /// What it says, of memory of the host, until the buffer may have been exchanged.
    prepared: Option<RawView>,
}

impl<B: OwnedBuffer> Persistent<B> {
    fn new(comm: &Communicator, plan: Plan, buffer: B, view: fn(&mut B) -> RawView) -> Self {
        Self {
            transfer: Transfer::taken(comm),
            plan,
            buffer: Some(buffer),
            view,
            prepared: None,
        }
    }

    /// Begins the transfer.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is active; else as [`Communicator::isend`] or
    /// [`Communicator::irecv`].
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        // No closure: the caller's source line passes through.
        let started = self.start_unreported();
        self.transfer.communicator().reported(started)
    }

    #[track_caller]
    fn start_unreported(&mut self) -> Result<()> {
        if self.transfer.is_active() {
            return Err(started_twice());
        }
        let of_device;
        let view = match &self.prepared {
            Some(view) => view,
            None => {
                let buffer = self.buffer.as_mut().ok_or_else(buffer_in_use)?;
                let view = (self.view)(buffer);
                // A device's says behind what its stream has by now: each start anew.
                match view.as_device() {
                    Some(_) => {
                        of_device = view;
                        &of_device
                    }
                    None => self.prepared.insert(view),
                }
            }
        };
        let posted = self.plan.post(self.transfer.communicator(), view)?;
        self.transfer.begin(posted);
        Ok(())
    }

    /// As [`Persistent::start`] within the lane, if it is inactive, was started before, and
    /// needs no more than to be posted; false: nothing has happened.
    #[inline]
    #[track_caller]
    pub(super) fn start_within(&mut self, lane: &mut LaneGuard<'_>) -> bool {
        if self.transfer.is_active() {
            return false;
        }
        let Some(view) = &self.prepared else {
            return false;
        };
        if let Plan::Receive(pattern) = self.plan
            && let (Some((source, tag)), Some(origin)) = (exact(pattern), view.as_contiguous())
            && let Some(posted) = lane.post_behind(origin, view.bytes(), source, tag)
        {
            self.transfer.begin_pending(posted);
            return true;
        }
        if let Plan::Send { dest, tag, mode } = self.plan
            && mode != Mode::Synchronous
        {
            let sent = lane.send_now(view, dest, tag);
            if sent {
                self.transfer.begin_done(dest, tag, view.bytes());
            }
            return sent;
        }
        self.start_receive_within(lane)
    }

    #[inline(never)]
    #[track_caller]
    fn start_receive_within(&mut self, lane: &mut LaneGuard<'_>) -> bool {
        let view = self.prepared.as_ref();
        let started = view.and_then(|view| self.plan.post_within(lane, view));
        let begins = started.is_some();
        if begins {
            self.transfer.begin(started);
        }
        begins
    }

    /// What it is made of.
    pub(super) fn transfer(&mut self) -> &mut Transfer {
        &mut self.transfer
    }

    /// Whether it was started and not waited for since.
    pub fn is_active(&self) -> bool {
        self.transfer.is_active()
    }

    /// Of its operation, while that is not known to be complete.
    pub(crate) fn handle(&self) -> Option<u32> {
        self.transfer.handle()
    }

    /// Waits for the end; the request is inactive then.
    ///
    /// # Errors
    /// As [`Communicator::send`] or [`Communicator::recv`], of the transfer. The request is
    /// inactive then, too.
    #[track_caller]
    pub fn wait(&mut self) -> Result<Status> {
        if !self.transfer.is_active() {
            return Ok(Status::EMPTY);
        }
        self.transfer.wait()
    }

    /// Makes progress; true if the transfer is complete, so that
    /// [`Persistent::wait`] will not block.
    pub fn test(&mut self) -> bool {
        self.transfer.test()
    }

    /// The status if the transfer is complete. Leaves the request as it is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.transfer.status()
    }

    /// Cancels a receive that no message has met; see
    /// [`Request::cancel`](super::Request::cancel).
    pub fn cancel(&mut self) -> bool {
        self.transfer.cancel()
    }

    /// The buffer.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the transfer is in flight.
    pub fn buffer(&self) -> Result<&B> {
        match &self.buffer {
            Some(buffer) if !self.transfer.is_pending() => Ok(buffer),
            _ => Err(self.transfer.communicator().raise(buffer_in_use())),
        }
    }

    /// The buffer, to fill it or to exchange it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the transfer is in flight.
    pub fn buffer_mut(&mut self) -> Result<&mut B> {
        self.prepared = None;
        match &mut self.buffer {
            Some(buffer) if !self.transfer.is_pending() => Ok(buffer),
            _ => Err(self.transfer.communicator().raise(buffer_in_use())),
        }
    }

    /// Waits for the end, and gives back the buffer.
    ///
    /// # Errors
    /// As [`Persistent::wait`]; the buffer is dropped then.
    #[track_caller]
    pub fn into_buffer(mut self) -> Result<B> {
        self.wait()?;
        let buffer = self.buffer.take().ok_or_else(buffer_in_use);
        self.transfer.communicator().reported(buffer)
    }
}

impl<B: OwnedBuffer> Startable for Persistent<B> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        Persistent::start(self)
    }
}

impl<B: OwnedBuffer + Unpin> Future for Persistent<B> {
    type Output = Result<Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.transfer.is_active() {
            return Poll::Ready(Ok(Status::EMPTY));
        }
        this.transfer.poll(context).map(|()| this.transfer.take())
    }
}

/// Gives the request back, inactive, to be started again.
impl<B: OwnedBuffer> Waitable for Persistent<B> {
    type Output = (Self, Status);

    fn test(&mut self) -> bool {
        Persistent::test(self)
    }

    #[track_caller]
    fn finish(mut self) -> Result<(Self, Status)> {
        let status = Persistent::wait(&mut self)?;
        Ok((self, status))
    }

    fn status(&mut self) -> Option<Result<Status>> {
        Persistent::status(self)
    }
}

impl<B: OwnedBuffer> sealed::Notifies for Persistent<B> {
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

impl<B: OwnedBuffer> Drop for Persistent<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.transfer.detach(|| Box::new(buffer));
        }
    }
}

macro_rules! scoped_inits {
    ($(#[$doc:meta])* $name:ident, $how:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank or tag.
        pub fn $name<B: Buffer + ?Sized>(
            &'scope self,
            buffer: &'scope mut B,
            dest: impl Into<Rank>,
            tag: impl Into<Tag>,
        ) -> Result<ScopedPersistent<'scope, 'env, B>> {
            let comm = self.communicator();
            let plan = comm.reported(Plan::send(comm, dest.into(), tag.into(), $how))?;
            Ok(ScopedPersistent {
                scope: self,
                plan,
                buffer,
                view: |b| b.view().raw(),
                request: None,
            })
        }
    };
}

impl<'scope, 'env> Scope<'scope, 'env> {
    scoped_inits! {
        /// Sets up a send of memory that the scope borrows (standard mode).
        send_init, How::Mode(Mode::Standard)
    }
    scoped_inits! {
        /// As [`Scope::send_init`], in synchronous mode.
        ssend_init, How::Mode(Mode::Synchronous)
    }
    scoped_inits! {
        /// As [`Scope::send_init`], in ready mode; see
        /// [`Communicator::rsend`].
        rsend_init, How::Mode(Mode::Ready)
    }
    scoped_inits! {
        /// As [`Scope::send_init`], in buffered mode; see
        /// [`Communicator::bsend`].
        bsend_init, How::Buffered
    }

    /// Sets up a receive into memory that the scope borrows.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such source or tag.
    pub fn recv_init<B: BufferMut + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<ScopedPersistent<'scope, 'env, B>> {
        let comm = self.communicator();
        let plan = comm.reported(Plan::receive(comm, source.into(), tag.into()))?;
        Ok(ScopedPersistent {
            scope: self,
            plan,
            buffer,
            view: |b| b.view_mut().raw(),
            request: None,
        })
    }
}

/// As [`Persistent`], of memory that a scope borrows; the memory is reached
/// through the request until the scope ends.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let (mut mine, mut theirs) = ([0u64; 4], [0u64; 4]);
/// comm.scope(|s| {
///     let mut send = s.send_init(&mut mine[..], peer, 0)?;
///     let mut recv = s.recv_init(&mut theirs[..], peer, 0)?;
///     for round in 0..10 {
///         send.buffer_mut()?.fill(round);
///         recv.start()?;
///         send.start()?;
///         send.wait()?;
///         recv.wait()?;
///         assert_eq!(recv.buffer()?, [round; 4]);
///     }
///     Ok(())
/// })?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// The memory itself stays lent:
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut mine = [0u64; 4];
/// comm.scope(|s| {
///     let mut send = s.send_init(&mut mine[..], 1, 0)?;
///     send.start()?;
///     mine[0] = 1; // still borrowed, also if `send` was dropped or leaked
///     Ok(())
/// })
/// # }
/// ```
pub struct ScopedPersistent<'scope, 'env, B: ?Sized> {
    scope: &'scope Scope<'scope, 'env>,
    plan: Plan,
    buffer: &'scope mut B,
    view: fn(&mut B) -> RawView,
    request: Option<ScopedRequest<'scope>>,
}

impl<B: ?Sized> ScopedPersistent<'_, '_, B> {
    /// Begins the transfer.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is active; else as [`Communicator::isend`] or
    /// [`Communicator::irecv`].
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        let comm = self.scope.communicator();
        if self.request.is_some() {
            return Err(comm.raise(started_twice()));
        }
        let view = (self.view)(self.buffer);
        let posted = self.plan.post(comm, &view);
        self.request = Some(self.scope.request(comm.reported(posted)?));
        Ok(())
    }

    /// Whether it was started and not waited for since.
    pub fn is_active(&self) -> bool {
        self.request.is_some()
    }

    /// Waits for the end; the request is inactive then.
    ///
    /// # Errors
    /// As [`Communicator::send`] or [`Communicator::recv`], of the transfer. The request is
    /// inactive then, too.
    #[track_caller]
    pub fn wait(&mut self) -> Result<Status> {
        match self.request.take() {
            Some(request) => request.wait(),
            None => Ok(Status::EMPTY),
        }
    }

    /// Makes progress; true if the transfer is complete.
    pub fn test(&mut self) -> bool {
        self.request.as_mut().is_none_or(ScopedRequest::test)
    }

    /// The status if the transfer is complete. Leaves the request as it is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        match &mut self.request {
            Some(request) => request.status(),
            None => Some(Ok(Status::EMPTY)),
        }
    }

    /// Cancels a receive that no message has met.
    pub fn cancel(&mut self) -> bool {
        self.request.as_mut().is_some_and(ScopedRequest::cancel)
    }

    /// The memory.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the transfer is in flight.
    pub fn buffer(&self) -> Result<&B> {
        match &self.request {
            Some(request) if request.is_pending() => {
                Err(self.scope.communicator().raise(buffer_in_use()))
            }
            _ => Ok(self.buffer),
        }
    }

    /// The memory, to fill it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the transfer is in flight.
    pub fn buffer_mut(&mut self) -> Result<&mut B> {
        match &self.request {
            Some(request) if request.is_pending() => {
                Err(self.scope.communicator().raise(buffer_in_use()))
            }
            _ => Ok(self.buffer),
        }
    }
}

impl<B: ?Sized> Startable for ScopedPersistent<'_, '_, B> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        ScopedPersistent::start(self)
    }
}

/// Gives the request back, inactive, to be started again.
impl<B: ?Sized> Waitable for ScopedPersistent<'_, '_, B> {
    type Output = (Self, Status);

    fn test(&mut self) -> bool {
        ScopedPersistent::test(self)
    }

    #[track_caller]
    fn finish(mut self) -> Result<(Self, Status)> {
        let status = ScopedPersistent::wait(&mut self)?;
        Ok((self, status))
    }

    fn status(&mut self) -> Option<Result<Status>> {
        ScopedPersistent::status(self)
    }
}

impl<B: ?Sized> sealed::Notifies for ScopedPersistent<'_, '_, B> {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(self.scope.communicator().core())
    }

    fn raise(&self, e: Error) -> Error {
        self.scope.communicator().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.request
            .as_mut()
            .is_none_or(|r| sealed::Notifies::notify(r, ready, token))
    }
}
