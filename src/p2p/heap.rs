//! Buffers in Osier's shared heap.

use crate::comm::Communicator;
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::progress::core::Core;
use osier_engine::view::zeroed_vec;
use osier_engine::view::{Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, View, ViewMut};
use osier_transports::shm::ShmRank;
use std::ops::{Deref, DerefMut};

/// A buffer that peers on the same machine read in place: a message from it
/// costs one copy. Where there is no shared memory it is plain memory.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let mut mine = comm.alloc::<f64>(100_000)?;
/// mine.fill(comm.rank() as f64);
/// let mut theirs = vec![0.0; 100_000];
/// comm.sendrecv(&mine, peer, 0, &mut theirs, peer, 0)?;
/// assert_eq!(theirs[99_999], peer as f64);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct HeapBuffer<T: Datatype> {
    memory: Memory<T>,
}

enum Memory<T> {
    Shared {
        rank: ShmRank,
        ptr: *mut T,
        len: usize,
    },
    Plain(Vec<T>),
}

// SAFETY: the buffer owns its memory, and `T` is `Send`.
unsafe impl<T: Datatype> Send for HeapBuffer<T> {}
// SAFETY: shared access only reads, and `T` is `Sync`.
unsafe impl<T: Datatype> Sync for HeapBuffer<T> {}

impl<T: Datatype> HeapBuffer<T> {
    fn new(core: &Core, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            crate::Error::new(
                crate::ErrorKind::OutOfMemory,
                format!("{len} elements exceed the address space"),
            )
        })?;
        let memory = match core.transport.shm() {
            Some(rank) => Memory::Shared {
                ptr: rank.heap_alloc(bytes, align_of::<T>())?.cast(),
                rank: rank.clone(),
                len,
            },
            None => Memory::Plain(zeroed_vec(len)?),
        };
        Ok(Self { memory })
    }

    /// Whether peers read it in place.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared { .. })
    }
}

impl Communicator {
    /// A buffer that peers on this machine read in place, zeroed.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), if there is no room.
    pub fn alloc<T: Datatype>(&self, len: usize) -> Result<HeapBuffer<T>> {
        self.reported(HeapBuffer::new(self.core(), len))
    }
}

impl<T: Datatype> Deref for HeapBuffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.memory {
            // SAFETY: ours, `len` zeroed or written elements, aligned for them.
            Memory::Shared { ptr, len, .. } => unsafe { std::slice::from_raw_parts(*ptr, *len) },
            Memory::Plain(v) => v,
        }
    }
}

impl<T: Datatype> DerefMut for HeapBuffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            // SAFETY: as for `deref`; peers map it read-only and read only
            // while a transfer borrows the buffer.
            Memory::Shared { ptr, len, .. } => unsafe {
                std::slice::from_raw_parts_mut(*ptr, *len)
            },
            Memory::Plain(v) => v,
        }
    }
}

impl<T: Datatype> Drop for HeapBuffer<T> {
    fn drop(&mut self) {
        if let Memory::Shared { rank, ptr, .. } = &self.memory {
            // SAFETY: allocated there, given back once, and no transfer outlives the buffer
            // or its borrow.
            unsafe { rank.heap_free(ptr.cast()) };
        }
    }
}

impl<T: Datatype> Buffer for HeapBuffer<T> {
    #[inline]
    fn view(&self) -> View<'_> {
        (**self).view()
    }
}

impl<T: Datatype> BufferMut for HeapBuffer<T> {
    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        (**self).view_mut()
    }
}

// SAFETY: the memory stays in place when the buffer is moved.
unsafe impl<T: Datatype> OwnedBuffer for HeapBuffer<T> {}
// SAFETY: as above, with no other owner.
unsafe impl<T: Datatype> OwnedBufferMut for HeapBuffer<T> {}
