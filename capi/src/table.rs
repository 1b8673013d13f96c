//! Objects behind handles.
//!
//! ```text
//! handle   63      32 31  30 ..... 26 25 ................ 0
//!          generation  0   1 kind(4)   index of a slot
//! ```
//!
//! The lower half is the number that `MPI_X_toint` gives out: it has the generation that
//! its slot has at the time. No predefined handle is that large.
//!
//! # Invariants
//! 1. Slots are never unmapped, so that any number may be looked up.
//! 2. A slot's generation is odd while it holds an object, and never the same twice.
//! 3. Who has a reference relies on MPI: no thread frees an object that another thread
//!    uses, and no two threads complete one request at the same time.

use crate::abi::Handle;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << 14;
const INDEX_BITS: u32 = 26;

struct Slot<T> {
    generation: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// All objects of one kind.
pub struct Table<T> {
    tag: u32,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<u32>,
    /// Slots that were ever in use.
    used: u32,
}

// SAFETY: objects are reached by invariant 3 only; the rest is atomics and a lock.
unsafe impl<T: Send> Sync for Table<T> {}

/// The lower half of a handle, as a number of its kind.
fn tag_of(number: u32) -> u32 {
    number >> INDEX_BITS
}

impl<T> Table<T> {
    /// Of the given kind, below 16.
    pub const fn new(kind: u32) -> Self {
        Self {
            tag: 16 + kind,
            chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS],
            free: Mutex::new(Free {
                slots: Vec::new(),
                used: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get((index >> CHUNK_BITS) as usize)?;
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        let at = index as usize % CHUNK;
        // SAFETY: within its chunk, which stays (invariant 1).
        Some(unsafe { &*chunk.wrapping_add(at) })
    }

    #[inline]
    fn live(&self, handle: Handle) -> Option<&Slot<T>> {
        let number = handle as u32;
        if tag_of(number) != self.tag {
            return None;
        }
        let slot = self.slot(number & ((1 << INDEX_BITS) - 1))?;
        let generation = slot.generation.load(Ordering::Acquire);
        (generation & 1 == 1 && generation == (handle >> 32) as u32).then_some(slot)
    }

    /// The object of a handle.
    #[inline]
    pub fn get(&'static self, handle: Handle) -> Option<&'static T> {
        let value = self.live(handle)?.value.get().cast::<T>();
        // SAFETY: an odd generation: it is there, and stays by invariant 3.
        Some(unsafe { &*value })
    }

    /// The object of a handle, for its sole user.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "invariant 3")]
    pub fn get_mut(&'static self, handle: Handle) -> Option<&'static mut T> {
        let value = self.live(handle)?.value.get().cast::<T>();
        // SAFETY: as above; the caller's table is one of which invariant 3 promises a
        // sole user.
        Some(unsafe { &mut *value })
    }

    /// Takes an object in.
    pub fn insert(&self, value: T) -> Handle {
        let index = {
            let mut free = self.lock();
            match free.slots.pop() {
                Some(index) => index,
                None => {
                    let index = free.used;
                    free.used += 1;
                    self.grow(index);
                    index
                }
            }
        };
        let Some(slot) = self.slot(index) else {
            // More objects than a handle can number.
            std::process::abort();
        };
        // SAFETY: a slot that was taken from the free ones has no object, and no other
        // user.
        unsafe { slot.value.get().cast::<T>().write(value) };
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.generation.store(generation, Ordering::Release);
        let number = self.tag << INDEX_BITS | index;
        (generation as usize) << 32 | number as usize
    }

    /// Room for a slot, under the lock.
    #[inline]
    fn grow(&self, index: u32) {
        let Some(chunk) = self.chunks.get((index >> CHUNK_BITS) as usize) else {
            return;
        };
        if chunk.load(Ordering::Relaxed).is_null() {
            let slots: Box<[Slot<T>]> = (0..CHUNK)
                .map(|_| Slot {
                    generation: AtomicU32::new(0),
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect();
            chunk.store(Box::leak(slots).as_mut_ptr(), Ordering::Release);
        }
    }

    /// Takes an object out.
    pub fn remove(&'static self, handle: Handle) -> Option<T> {
        let slot = self.live(handle)?;
        let generation = (handle >> 32) as u32;
        slot.generation
            .compare_exchange(
                generation,
                generation.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .ok()?;
        // SAFETY: it was there, and whoever made the generation even has it alone.
        let value = unsafe { slot.value.get().cast::<T>().read() };
        let index = handle as u32 & ((1 << INDEX_BITS) - 1);
        self.lock().slots.push(index);
        Some(value)
    }

    /// The handle whose lower half this is, if its object is there.
    pub fn handle_of(&'static self, number: u32) -> Option<Handle> {
        if tag_of(number) != self.tag {
            return None;
        }
        let slot = self.slot(number & ((1 << INDEX_BITS) - 1))?;
        let generation = slot.generation.load(Ordering::Acquire);
        (generation & 1 == 1).then_some((generation as usize) << 32 | number as usize)
    }

    /// All handles.
    pub fn handles(&'static self) -> Vec<Handle> {
        let used = self.lock().used;
        (0..used)
            .filter_map(|index| self.handle_of(self.tag << INDEX_BITS | index))
            .collect()
    }
}

/// The number that stands for a handle outside of C.
pub fn to_number(handle: Handle) -> i32 {
    handle as u32 as i32
}
