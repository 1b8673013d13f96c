//! Buffered sends: a copy into a buffer that the program has attached, and
//! from there like any send.
//!
//! A communicator's own buffer comes first, then that of the session that it
//! stems from, then the one of the rank's universe. Memory is owned: attaching gives a vector, detaching waits until
//! nothing in it is needed and gives it back.
//!
//! # Invariants
//! 1. Pieces do not overlap, and a piece's memory is used only by the send
//!    that holds it, until it drops it.
//! 2. The vector is not touched while a piece of it lives.
//! 3. Whatever fits in MPI's model, a circular queue, fits here: a new piece
//!    goes behind the last one if there is room, then to the front, then
//!    anywhere. What lives in our buffer also lives in the model's, which frees
//!    in order only.
//! 4. The lock is a leaf: pieces are dropped under a lane's lock.
//!
//! # Sources
//! MPI 5.0, section 3.6, with the model implementation of 3.6.1.

use super::names::{Rank, Tag};
use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::bootstrap::{Session, Universe};
use crate::comm::Communicator;
use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::core::Core;
use crate::progress::lane::{Mode, Posted};
use crate::progress::ready::Ready;
use crate::view::{Buffer, RawView};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// Bytes of an attached buffer that a message needs beside its packed size
/// (MPI's `MPI_BSEND_OVERHEAD`).
pub const BSEND_OVERHEAD: usize = 0;

/// Where a communicator or a universe keeps its attached buffer.
#[derive(Default)]
pub(crate) struct Attached(Mutex<Option<Arc<Pool>>>);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Pool {
    space: Mutex<Space>,
    /// Length of the vector; `None`: memory for each message is allocated.
    capacity: Option<usize>,
}

struct Space {
    memory: Vec<u8>,
    base: *mut u8,
    /// Pieces in use, by place: first byte and length.
    pieces: Vec<(usize, usize)>,
    /// Behind the piece that was taken last.
    cursor: usize,
    /// Messages in it.
    live: usize,
    /// Who waits until it is empty.
    notify: Vec<(Arc<Ready>, u64)>,
}

// SAFETY: `base` points into `memory`, which the pool owns.
unsafe impl Send for Space {}

impl Space {
    /// Index at which a piece at `start` would stand among the others, if its
    /// bytes are free.
    fn free_at(&self, start: usize, bytes: usize) -> Option<usize> {
        if start.checked_add(bytes)? > self.memory.len() {
            return None;
        }
        let at = self.pieces.partition_point(|(s, _)| *s < start);
        let after = at == 0 || self.pieces[at - 1].0 + self.pieces[at - 1].1 <= start;
        let before = at == self.pieces.len() || start + bytes <= self.pieces[at].0;
        (after && before).then_some(at)
    }

    fn place(&self, bytes: usize) -> Option<(usize, usize)> {
        let ends = self.pieces.iter().map(|(start, n)| start + n);
        [self.cursor, 0]
            .into_iter()
            .chain(ends)
            .find_map(|start| Some((self.free_at(start, bytes)?, start)))
    }

    fn used(&self) -> usize {
        self.pieces.iter().map(|(_, n)| n).sum()
    }
}

/// Memory of one message in a pool.
struct Piece {
    pool: Arc<Pool>,
    memory: PieceMemory,
}

enum PieceMemory {
    Part { start: usize, origin: *mut u8 },
    Own(Vec<u8>),
}

// SAFETY: the memory is the pool's, which the piece keeps alive, and the
// piece's alone (invariant 1).
unsafe impl Send for Piece {}

impl Piece {
    fn origin(&mut self) -> *mut u8 {
        match &mut self.memory {
            PieceMemory::Part { origin, .. } => *origin,
            PieceMemory::Own(v) => v.as_mut_ptr(),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut space = lock(&self.pool.space);
        if let PieceMemory::Part { start, .. } = self.memory {
            let at = space.pieces.partition_point(|(s, _)| *s < start);
            space.pieces.remove(at);
        }
        space.live -= 1;
        if space.live == 0 {
            space.cursor = 0;
            for (ready, token) in space.notify.drain(..) {
                ready.push(token);
            }
        }
    }
}

impl Pool {
    fn new(memory: Option<Vec<u8>>) -> Self {
        let capacity = memory.as_ref().map(Vec::len);
        let mut memory = memory.unwrap_or_default();
        Self {
            capacity,
            space: Mutex::new(Space {
                base: memory.as_mut_ptr(),
                memory,
                pieces: Vec::new(),
                cursor: 0,
                live: 0,
                notify: Vec::new(),
            }),
        }
    }

    /// Refuses a message that can never fit.
    fn check(&self, bytes: usize) -> Result<()> {
        match self.capacity {
            Some(capacity) if bytes > capacity => Err(Error::new(
                ErrorKind::Buffer,
                format!(
                    "buffered send of {bytes} bytes: the attached buffer has {capacity} bytes (hint: attach a larger one, or attach_automatic)"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Memory for a message, not initialised by this one.
    fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Piece> {
        if self.capacity.is_none() {
            let v = super::message::zeroed_vec(bytes)?;
            lock(&self.space).live += 1;
            return Ok(Piece {
                pool: self.clone(),
                memory: PieceMemory::Own(v),
            });
        }
        let mut space = lock(&self.space);
        let Some((at, start)) = space.place(bytes) else {
            let (capacity, used, live) = (space.memory.len(), space.used(), space.live);
            return Err(Error::new(
                ErrorKind::Buffer,
                format!(
                    "buffered send of {bytes} bytes: of the attached buffer's {capacity} bytes {used} are in use by {live} messages (hint: flush_buffer waits until they are delivered)"
                ),
            ));
        };
        space.pieces.insert(at, (start, bytes));
        space.cursor = start + bytes;
        space.live += 1;
        Ok(Piece {
            pool: self.clone(),
            memory: PieceMemory::Part {
                start,
                origin: space.base.wrapping_add(start),
            },
        })
    }

    fn is_empty(&self) -> bool {
        lock(&self.space).live == 0
    }

    /// As [`Pool::is_empty`]; tells a thread that listens which messages are in it.
    fn is_drained(&self, core: &Core) -> bool {
        let empty = self.is_empty();
        if !empty && listens() {
            self.tell(core);
        }
        empty
    }

    #[cold]
    fn tell(&self, core: &Core) {
        let ours = |owner: &dyn Any| {
            let piece = owner.downcast_ref::<Piece>();
            piece.is_some_and(|piece| std::ptr::eq(&*piece.pool, self))
        };
        for sent in core.asked_owned(&ours) {
            hear(Asked {
                operation: Operation::BufferedSend,
                ..sent
            });
        }
    }
}

impl Attached {
    /// Tells it from others that live: the lanes of a session's communicators bear it.
    pub fn mark(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn attach(&self, pool: Pool) -> Result<()> {
        let mut attached = lock(&self.0);
        if attached.is_some() {
            return Err(Error::new(
                ErrorKind::Buffer,
                "a buffer is attached already (hint: detach_buffer gives it back)",
            ));
        }
        *attached = Some(Arc::new(pool));
        Ok(())
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        lock(&self.0).clone()
    }

    /// Messages in it; `None` if none is attached.
    pub(crate) fn live(&self) -> Option<usize> {
        self.pool().map(|pool| lock(&pool.space).live)
    }

    #[track_caller]
    fn detach(&self, core: &Core) -> Option<Vec<u8>> {
        let pool = lock(&self.0).take()?;
        core.wait_until(|| pool.is_drained(core).then_some(()));
        pool.capacity?;
        Some(std::mem::take(&mut lock(&pool.space).memory))
    }

    #[track_caller]
    fn flush(&self, core: &Core) {
        if let Some(pool) = self.pool() {
            core.wait_until(|| pool.is_drained(core).then_some(()));
        }
    }
}

macro_rules! buffer_calls {
    ($whose:literal) => {
        #[doc = concat!("Gives ", $whose, " a buffer for [`Communicator::bsend`]. An error if one is attached.")]
        pub fn attach_buffer(&self, memory: Vec<u8>) -> Result<()> {
            self.buffers_reported(self.attached().attach(Pool::new(Some(memory))))
        }

        #[doc = concat!("Has memory for each buffered send of ", $whose, " allocated as it comes, without a limit (MPI's `MPI_BUFFER_AUTOMATIC`).")]
        pub fn attach_automatic(&self) -> Result<()> {
            self.buffers_reported(self.attached().attach(Pool::new(None)))
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
        pub fn iflush_buffer(&self) -> FlushRequest {
            FlushRequest {
                core: self.buffers_core().clone(),
                comm: self.buffers_comm().cloned(),
                pool: self.attached().pool(),
            }
        }
    };
}

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
    /// stems from, or else the one of the [`Universe`]. A message that can leave at once is not copied. An error
    /// that names the sizes if the buffer is full, and if there is none.
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
                // Some may have been delivered and not been looked at.
                self.core().progress_all();
                pool.reserve(bytes)?
            }
        };
        let origin = piece.origin();
        // SAFETY: the buffer is borrowed, and the piece has as many bytes,
        // which nobody else uses (invariant 1).
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

impl Universe {
    buffer_calls!("this rank");

    fn buffers_core(&self) -> &Arc<Core> {
        self.own().core()
    }

    /// Errors that belong to no communicator are its own's, as in MPI.
    fn buffers_comm(&self) -> Option<&Communicator> {
        Some(self.own())
    }

    fn buffers_reported<T>(&self, result: Result<T>) -> Result<T> {
        self.own().reported(result)
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
    /// Makes progress and asks whether the buffer is empty.
    pub fn test(&mut self) -> bool {
        if !self.is_over() {
            self.core.progress_awake();
        }
        self.is_over()
    }

    /// Waits until the buffer is empty.
    #[track_caller]
    pub fn wait(self) -> Result<Status> {
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
        let mut space = lock(&pool.space);
        let empty = space.live == 0;
        if !empty {
            space.notify.push((ready.clone(), token));
        }
        drop(space);
        empty || pool.is_drained(&self.core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// MPI's model: a circular queue whose entries leave in order.
    struct Model {
        capacity: usize,
        entries: VecDeque<(usize, usize, bool)>,
    }

    impl Model {
        fn reserve(&mut self, bytes: usize) -> Option<usize> {
            let (Some(first), Some(last)) = (self.entries.front(), self.entries.back()) else {
                self.entries.push_back((0, bytes, false));
                return Some(0);
            };
            let end = last.0 + last.1;
            let start = if last.0 >= first.0 {
                // Free: behind the last, and before the first.
                [end, 0]
                    .into_iter()
                    .zip([self.capacity, first.0])
                    .find(|(start, limit)| start + bytes <= *limit)?
                    .0
            } else {
                (end + bytes <= first.0).then_some(end)?
            };
            self.entries.push_back((start, bytes, false));
            Some(start)
        }

        fn release(&mut self, at: usize) {
            self.entries[at].2 = true;
            while self.entries.front().is_some_and(|e| e.2) {
                self.entries.pop_front();
            }
        }
    }

    proptest! {
        #[test]
        fn what_fits_the_model_fits(steps in proptest::collection::vec((1usize..40, any::<u16>(), any::<bool>()), 1..200)) {
            let capacity = 100;
            let pool = Arc::new(Pool::new(Some(vec![0; capacity])));
            let mut model = Model { capacity, entries: VecDeque::new() };
            let mut live: Vec<(usize, usize, Piece)> = Vec::new();
            for (bytes, choice, send) in steps {
                if send || live.is_empty() {
                    if model.reserve(bytes).is_none() {
                        continue;
                    }
                    let piece = pool.reserve(bytes);
                    prop_assert!(piece.is_ok(), "the model has room for {bytes}");
                    let mut piece = piece.expect("asserted");
                    let origin = piece.origin() as usize;
                    for (start, n, _) in &live {
                        prop_assert!(origin + bytes <= *start || start + n <= origin);
                    }
                    live.push((origin, bytes, piece));
                } else {
                    let at = choice as usize % live.len();
                    live.remove(at);
                    // Entries of the model that are not released yet, in order.
                    let alive: Vec<usize> = (0..model.entries.len()).filter(|i| !model.entries[*i].2).collect();
                    model.release(alive[at]);
                }
            }
            drop(live);
            prop_assert!(pool.is_empty());
        }
    }
}
