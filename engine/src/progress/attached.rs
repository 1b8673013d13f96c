//! Attached buffer of buffered sends.
//!
//! # Invariants
//! 1. Pieces do not overlap, and a piece's memory is used only by the send
//!    that holds it, until it drops it.
//! 2. The vector is not touched while a piece of it lives.
//! 3. A message that fits in the circular queue of MPI's model fits here: a new piece
//!    goes behind the last one if there is room, then to the front, then
//!    anywhere. What lives in our buffer also lives in the model's, which frees
//!    in order only.
//! 4. The lock is a leaf: pieces are dropped under a lane's lock.
//! 5. `base` is the address of the vector's first byte: its elements do not move while it
//!    is the pool's.
//!
//! # Sources
//! MPI 5.0, section 3.6, with the model implementation of 3.6.1.

use super::core::Core;
use crate::completion::ready::Ready;
use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::view::zeroed_vec;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a communicator or a universe keeps its attached buffer.
#[derive(Default)]
pub struct Attached(Mutex<Option<Arc<Pool>>>);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Pool {
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

// SAFETY: invariants 2 and 5: an address into the vector that goes along, tied to no thread.
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
pub struct Piece {
    pool: Arc<Pool>,
    memory: PieceMemory,
}

enum PieceMemory {
    Part { start: usize, origin: *mut u8 },
    Own(Vec<u8>),
}

// SAFETY: invariants 1 and 2: the memory is the piece's alone, of a pool that it keeps alive.
unsafe impl Send for Piece {}

impl Piece {
    pub fn origin(&mut self) -> *mut u8 {
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
    pub fn new(memory: Option<Vec<u8>>) -> Self {
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
    pub fn check(&self, bytes: usize) -> Result<()> {
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
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Piece> {
        if self.capacity.is_none() {
            let v = zeroed_vec(bytes)?;
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

    pub fn is_empty(&self) -> bool {
        lock(&self.space).live == 0
    }

    /// The vector, if no piece of it lives, and `None` in its place where there is none. A
    /// thread that has the pool still gets no piece any more.
    fn take(&self) -> Option<Option<Vec<u8>>> {
        let mut space = lock(&self.space);
        (space.live == 0).then(|| {
            let memory = std::mem::take(&mut space.memory);
            self.capacity.is_some().then_some(memory)
        })
    }

    /// Has a number left in a list when it is empty; true if it is so already.
    pub fn notify(&self, ready: &Arc<Ready>, token: u64) -> bool {
        let mut space = lock(&self.space);
        if space.live > 0 {
            space.notify.push((ready.clone(), token));
        }
        space.live == 0
    }

    /// As [`Pool::is_empty`]; reports the messages in it to a thread that listens.
    pub fn is_drained(&self, core: &Core) -> bool {
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

    pub fn attach(&self, pool: Pool) -> Result<()> {
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

    pub fn pool(&self) -> Option<Arc<Pool>> {
        lock(&self.0).clone()
    }

    /// Messages in it; `None` if none is attached.
    pub fn live(&self) -> Option<usize> {
        self.pool().map(|pool| lock(&pool.space).live)
    }

    #[track_caller]
    pub fn detach(&self, core: &Core) -> Option<Vec<u8>> {
        let pool = lock(&self.0).take()?;
        core.wait_until(|| pool.is_drained(core).then(|| pool.take()).flatten())
    }

    #[track_caller]
    pub fn flush(&self, core: &Core) {
        if let Some(pool) = self.pool() {
            core.wait_until(|| pool.is_drained(core).then_some(()));
        }
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

    /// A thread may take a piece between the check that the pool is empty and the pool's
    /// end.
    #[test]
    fn a_pool_with_a_piece_keeps_its_vector() {
        let pool = Arc::new(Pool::new(Some(vec![0; 100])));
        let piece = pool.reserve(60).expect("room");
        assert!(pool.take().is_none(), "a piece lives");
        drop(piece);
        let memory = pool.take().expect("none lives").expect("a vector");
        assert_eq!(memory.len(), 100);
        assert!(pool.reserve(1).is_err(), "there is no memory any more");
        let automatic = Arc::new(Pool::new(None));
        assert_eq!(automatic.take(), Some(None));
    }

    proptest! {
        #[test]
        fn pool_takes_every_piece_that_the_model_takes(steps in proptest::collection::vec((1usize..40, any::<u16>(), any::<bool>()), 1..200)) {
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
