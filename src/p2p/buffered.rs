//! Buffered sends: a copy into a buffer that the program has attached, and
//! from there like any send.
//!
//! A communicator's own buffer comes first, then that of the session that it
//! stems from, then the one of the rank's universe. Memory is owned: attaching gives a vector, detaching waits until
//! nothing in it is needed and gives it back.
//!
//! # Sources
//! MPI 5.0, section 3.6, with the model implementation of 3.6.1.

use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::comm::{Communicator, Session};
use crate::names::{Rank, Tag};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::attached::Pool;
use osier_engine::progress::core::Core;
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::progress::no_wait::refused;
use osier_engine::view::{Buffer, RawView};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes of an attached buffer that a message needs beside its packed size
/// (MPI's `MPI_BSEND_OVERHEAD`).
pub const BSEND_OVERHEAD: usize = 0;

/// The calls of an owner of an attached buffer.
macro_rules! buffer_calls {
    ($whose:literal) => {
        #[doc = concat!("Gives ", $whose, " a buffer for [`Communicator::bsend`](crate::Communicator::bsend).")]
        ///
        /// # Errors
        /// Of kind [`ErrorKind::Buffer`](crate::ErrorKind::Buffer), if one is attached already.
        pub fn attach_buffer(&self, memory: Vec<u8>) -> $crate::Result<()> {
            self.buffers_reported(self.attached().attach($crate::p2p::Pool::new(Some(memory))))
        }

        #[doc = concat!("Has memory for each buffered send of ", $whose, " allocated as it comes, without a limit (MPI's `MPI_BUFFER_AUTOMATIC`).")]
        ///
        /// # Errors
        /// Of kind [`ErrorKind::Buffer`](crate::ErrorKind::Buffer), if one is attached already.
        pub fn attach_automatic(&self) -> $crate::Result<()> {
            self.buffers_reported(self.attached().attach($crate::p2p::Pool::new(None)))
        }

        /// Waits until every message in the attached buffer has left it, and
        /// gives it back; `None` if none is attached, or an automatic one.
        #[track_caller]
        pub fn detach_buffer(&self) -> Option<Vec<u8>> {
            self.attached().detach(self.buffers_core())
        }

        /// Waits until every message in the attached buffer has left it.
        #[track_caller]
        pub fn flush_buffer(&self) {
            self.attached().flush(self.buffers_core());
        }

        /// As `flush_buffer`, as a request.
        pub fn iflush_buffer(&self) -> $crate::p2p::FlushRequest {
            let comm = self.buffers_comm().cloned();
            $crate::p2p::FlushRequest::of(self.buffers_core(), comm, self.attached().pool())
        }
    };
}

pub(crate) use buffer_calls;

impl Communicator {
    buffer_calls!("this communicator");

    fn buffers_core(&self) -> &Arc<Core> {
        self.core()
    }

    fn buffers_comm(&self) -> Option<&Communicator> {
        Some(self)
    }

    fn buffers_reported<T>(&self, result: Result<T>) -> Result<T> {
        self.reported(result)
    }

    /// Copies the message to the attached buffer and returns (buffered mode).
    /// It is the communicator's buffer, or else that of the [`Session`] that it
    /// stems from, or else the one of the [`Universe`](crate::Universe). A message that can leave at once is not copied.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// comm.attach_buffer(vec![0; 1 << 20])?;
    /// let (peer, mine) = (1 - comm.rank(), vec![comm.rank() as u64; 100_000]);
    /// comm.bsend(&mine, peer, 0)?; // both may do this before they receive
    /// let mut theirs = vec![0u64; 100_000];
    /// comm.recv(&mut theirs, peer, 0)?;
    /// assert_eq!(comm.detach_buffer().map(|b| b.len()), Some(1 << 20));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Buffer`], if no buffer is attached, or there is no room in it, with
    /// the sizes; else as [`Communicator::send`], of what is known at the call.
    #[track_caller]
    pub fn bsend<B: Buffer + ?Sized>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let tag = self.reported(tag.into().check())?;
        let dest = self.reported(dest.into().check(self.peer_count()))?;
        self.reported(self.bsend_raw(buffer.view().raw(), dest, tag))
    }

    /// The view is readable for the call.
    #[track_caller]
    pub(super) fn bsend_raw(&self, view: RawView, dest: Option<u32>, tag: u32) -> Result<()> {
        let own = self.attached().pool();
        let session = || self.session_attached()?.pool();
        let pool = own.or_else(session);
        let pool = pool.or_else(|| self.core().attached.pool()).ok_or_else(|| {
            Error::new(
                ErrorKind::Buffer,
                "buffered send: no buffer is attached (hint: attach_buffer, on the communicator, its session or the universe)",
            )
        })?;
        let Some(dest) = dest else {
            return Ok(());
        };
        let bytes = view.bytes();
        pool.check(bytes)?;
        if self.send_now(&view, dest, tag) {
            return Ok(());
        }
        let mut piece = match pool.reserve(bytes) {
            Ok(piece) => piece,
            Err(_) => {
                // Some may have been delivered and not been handled.
                self.core().progress_all();
                pool.reserve(bytes)?
            }
        };
        let origin = piece.origin();
        // SAFETY: the buffer is borrowed, and the piece has as many bytes,
        // which nothing else uses (invariant 1).
        unsafe { view.pack_all(&self.core().devices, origin) }?;
        let copy = view.packed_at(origin);
        let posted = self.isend_raw(copy, dest, tag, Mode::Standard)?;
        if let Posted::Pending(handle) = posted {
            self.core().with(self.lane(), |lane| {
                lane.set_owner(handle, Box::new(piece));
                lane.detach(handle);
            });
        }
        Ok(())
    }
}

/// For communicators that were made of the session, and their duplicates and
/// parts, unless they have a buffer of their own.
impl Session {
    buffer_calls!("this session");

    fn buffers_core(&self) -> &Arc<Core> {
        &self.member().core
    }

    fn buffers_comm(&self) -> Option<&Communicator> {
        None
    }

    fn buffers_reported<T>(&self, result: Result<T>) -> Result<T> {
        self.reported(result)
    }
}

/// Over when the attached buffer is empty.
#[must_use = "nobody waits for a request that is dropped"]
pub struct FlushRequest {
    core: Arc<Core>,
    /// Of a session's buffer there is none.
    comm: Option<Communicator>,
    pool: Option<Arc<Pool>>,
}

impl FlushRequest {
    pub(crate) fn of(
        core: &Arc<Core>,
        comm: Option<Communicator>,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let core = core.clone();
        Self { core, comm, pool }
    }

    /// Makes progress and asks whether the buffer is empty.
    pub fn test(&mut self) -> bool {
        if !self.is_over() {
            self.core.progress_awake();
        }
        self.is_over()
    }

    /// Waits until the buffer is empty.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Task`], in a task of a graph, unless the buffer is empty.
    #[track_caller]
    pub fn wait(self) -> Result<Status> {
        if self.core.must_not_wait() && !self.is_over() {
            return Err(refused("wait"));
        }
        self.core
            .wait_until(|| self.is_over().then_some(Ok(Status::EMPTY)))
    }

    fn is_over(&self) -> bool {
        let pool = self.pool.as_ref();
        pool.is_none_or(|pool| pool.is_drained(&self.core))
    }
}

impl Future for FlushRequest {
    type Output = Result<Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.get_mut().test() {
            return Poll::Ready(Ok(Status::EMPTY));
        }
        // Pieces are dropped where no waker may be called.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Waitable for FlushRequest {
    type Output = Status;

    fn test(&mut self) -> bool {
        FlushRequest::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Status> {
        FlushRequest::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        FlushRequest::test(self).then_some(Ok(Status::EMPTY))
    }
}

impl sealed::Notifies for FlushRequest {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(&self.core)
    }

    fn raise(&self, e: Error) -> Error {
        match &self.comm {
            Some(comm) => comm.raise(e),
            None => e,
        }
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let Some(pool) = &self.pool else {
            return true;
        };
        pool.notify(ready, token) || pool.is_drained(&self.core)
    }
}
