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
//! 4. Of objects that only a communicator's calls make, as requests, a program has several
//!    threads at a time in calls only if it was given MPI_THREAD_MULTIPLE. Elsewhere nothing
//!    is exchanged atomically there: that would wait until a message that was just posted
//!    has left the processor. (Info, error handlers and sessions are for all threads,
//!    always.)
//! 5. A free slot is on the stack, or in the hands of the one thread that took it. Whoever
//!    changes the stack counts, so that a top that went and came back is not taken for the
//!    same (wrong only after 2^32 changes between a look and an exchange).

use crate::abi::Handle;
use crate::leaks;
use crate::state;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << 14;
const INDEX_BITS: u32 = 26;

// In this order: an object's first words, which few ask more of, share a line with these.
#[repr(C)]
struct Slot<T> {
    generation: AtomicU32,
    /// Of a free slot: the one below it, as in `Table::free`.
    below: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    /// Ends the life of the object with this handle; true for one caller.
    #[inline]
    fn ends(&self, handle: Handle, alone: bool) -> bool {
        let had = (handle >> 32) as u32;
        if alone {
            let there = self.generation.load(Ordering::Relaxed) == had;
            if there {
                let over = had.wrapping_add(1);
                self.generation.store(over, Ordering::Relaxed);
            }
            return there;
        }
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.generation
            .compare_exchange(had, had.wrapping_add(1), success, failure)
            .is_ok()
    }
}

/// What [`Table::end_words`] has found.
pub enum Found<R> {
    /// The object has ended.
    Ends(R),
    Stays(R),
}

/// The upper half of a stack's next state.
fn changed(top: u64) -> u64 {
    ((top >> 32).wrapping_add(1)) << 32
}

/// All objects of one kind.
pub struct Table<T> {
    tag: u32,
    /// Invariant 4.
    of_calls: bool,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    /// The stack of free slots: index of its top and one, 0 for none, and in the upper half
    /// how often it has changed.
    free: AtomicU64,
    /// Slots that were ever in use.
    used: Mutex<u32>,
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
            of_calls: false,
            chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS],
            free: AtomicU64::new(0),
            used: Mutex::new(0),
        }
    }

    /// Of objects that only a communicator's calls make.
    pub const fn of_calls(kind: u32) -> Self {
        let mut table = Self::new(kind);
        table.of_calls = true;
        table
    }

    /// Whether no other thread is in a call meanwhile.
    #[inline]
    fn is_alone(&self) -> bool {
        self.of_calls && !state::has_threads()
    }

    fn used(&self) -> MutexGuard<'_, u32> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free slot.
    #[inline]
    fn take_free(&self) -> Option<u32> {
        let mut top = self.free.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)?;
            // Another thread may take it meanwhile; then the exchange fails (invariant 1
            // lets us look).
            let below = self.slot(index)?.below.load(Ordering::Relaxed);
            let next = changed(top) | u64::from(below);
            match self.exchange(top, next) {
                Ok(()) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    /// Makes a slot a free one.
    #[inline]
    fn give_free(&self, index: u32, slot: &Slot<T>) {
        let mut top = self.free.load(Ordering::Relaxed);
        loop {
            slot.below.store(top as u32, Ordering::Relaxed);
            let next = changed(top) | u64::from(index + 1);
            match self.exchange(top, next) {
                Ok(()) => return,
                Err(now) => top = now,
            }
        }
    }

    #[inline]
    fn exchange(&self, top: u64, next: u64) -> Result<(), u64> {
        if self.is_alone() {
            self.free.store(next, Ordering::Relaxed);
            return Ok(());
        }
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let exchanged = self.free.compare_exchange_weak(top, next, success, failure);
        exchanged.map(drop)
    }

    /// A slot that was never in use.
    #[cold]
    fn take_new(&self) -> u32 {
        let mut used = self.used();
        let index = *used;
        *used += 1;
        self.grow(index);
        index
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
    #[inline(always)]
    pub fn insert(&self, value: T) -> Handle {
        self.insert_with(|| value)
    }

    /// Takes an object in, which is made where it stays: nothing is left then that could fail
    /// while it is on its way, which would keep it in memory of its own.
    #[inline(always)]
    pub fn insert_with(&self, make: impl FnOnce() -> T) -> Handle {
        let index = match self.take_free() {
            Some(index) => index,
            None => self.take_new(),
        };
        let Some(slot) = self.slot(index) else {
            // More objects than a handle can number.
            std::process::abort();
        };
        // SAFETY: a slot that was taken from the free ones has no object, and no other
        // user.
        unsafe { slot.value.get().cast::<T>().write(make()) };
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.generation.store(generation, Ordering::Release);
        let number = self.tag << INDEX_BITS | index;
        let handle = (generation as usize) << 32 | number as usize;
        leaks::made(handle);
        handle
    }

    /// Room for a slot, under the lock.
    fn grow(&self, index: u32) {
        let Some(chunk) = self.chunks.get((index >> CHUNK_BITS) as usize) else {
            return;
        };
        if chunk.load(Ordering::Relaxed).is_null() {
            let slots: Box<[Slot<T>]> = (0..CHUNK)
                .map(|_| Slot {
                    generation: AtomicU32::new(0),
                    below: AtomicU32::new(0),
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect();
            chunk.store(Box::leak(slots).as_mut_ptr(), Ordering::Release);
        }
    }

    /// Takes an object out.
    pub fn remove(&'static self, handle: Handle) -> Option<T> {
        let slot = self.live(handle)?;
        if !slot.ends(handle, self.is_alone()) {
            return None;
        }
        // SAFETY: it was there, and whoever made the generation even has it alone.
        let value = unsafe { slot.value.get().cast::<T>().read() };
        leaks::freed(handle);
        self.give_free(handle as u32 & ((1 << INDEX_BITS) - 1), slot);
        Some(value)
    }

    /// Uses an object, for its sole user, and takes it out if `end` says that it has ended and
    /// nothing of it is to be dropped: what it found.
    #[inline(always)]
    pub fn end_words<R>(
        &'static self,
        handle: Handle,
        end: impl FnOnce(&mut T) -> Option<Found<R>>,
    ) -> Option<Found<R>> {
        let slot = self.live(handle)?;
        // SAFETY: an odd generation: it is there, and stays by invariant 3, which gives the
        // caller sole use of it.
        let found = end(unsafe { &mut *slot.value.get().cast::<T>() })?;
        if let Found::Stays(_) = found {
            return Some(found);
        }
        if !slot.ends(handle, self.is_alone()) {
            return None;
        }
        leaks::freed(handle);
        self.give_free(handle as u32 & ((1 << INDEX_BITS) - 1), slot);
        Some(found)
    }

    /// Drops an object where it is; false if it was not there.
    #[inline]
    pub fn discard(&'static self, handle: Handle) -> bool {
        let Some(slot) = self.live(handle) else {
            return false;
        };
        if !slot.ends(handle, self.is_alone()) {
            return false;
        }
        leaks::freed(handle);
        // SAFETY: it was there, and whoever made the generation even has it alone.
        unsafe { slot.value.get().cast::<T>().drop_in_place() };
        self.give_free(handle as u32 & ((1 << INDEX_BITS) - 1), slot);
        true
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
        let used = *self.used();
        (0..used)
            .filter_map(|index| self.handle_of(self.tag << INDEX_BITS | index))
            .collect()
    }
}

/// The number that stands for a handle outside of C.
pub fn to_number(handle: Handle) -> i32 {
    handle as u32 as i32
}
