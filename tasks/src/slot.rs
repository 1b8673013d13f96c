//! Slots: where the messages of a branch lie until their consumers have read them.
//!
//! A message is a sequence of elements. A short one lies in the slot, which is one cache
//! line; a longer one in memory of the slot's own that is used again, or that its producer
//! gave away.
//!
//! # Invariants
//! 1. While a slot is free only the writer of its branch touches it: the task that has the
//!    output port, or the thread that handles messages from its rank.
//! 2. Between [`Slot::publish`] and the release of the last reader the contents are only
//!    read; but a sole reader may take the memory.
//! 3. `heap` and `capacity` are the memory of a `Vec` of elements of the branch's type, or
//!    dangling and 0.
//! 4. All calls for a slot name the same element type.
//! 5. Callers of unsafe functions keep what these ask of them.

use crate::describe::Element;
use crate::sync::{AtomicBool, AtomicU32, Ordering, add};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

/// Longest message that lies in a slot.
pub const INLINE_BYTES: usize = 32;
/// Strictest alignment of elements there.
const INLINE_ALIGN: usize = 8;

/// Most elements of a message that lies in a slot.
pub fn most_short(element: &Element) -> usize {
    match element.align <= INLINE_ALIGN {
        true => INLINE_BYTES / element.bytes.max(1),
        false => 0,
    }
}

struct Contents {
    /// Elements.
    len: usize,
    /// Elements that have room at `heap`.
    capacity: usize,
    heap: *mut u8,
    short: [MaybeUninit<u64>; INLINE_BYTES / 8],
}

/// Place of one message.
#[repr(align(64))]
pub struct Slot {
    /// Consumers that have not read it.
    readers: AtomicU32,
    /// The message lies at `heap`. Part of the contents, here for the sake of the size.
    on_heap: UnsafeCell<bool>,
    /// The last message was longer than a slot.
    was_long: AtomicBool,
    contents: UnsafeCell<Contents>,
}

// SAFETY: invariants 1 and 2: one thread writes while the slot is free, others read after
// `publish`, and the elements are `Send + Sync` by their trait.
unsafe impl Sync for Slot {}
// SAFETY: the memory at `heap` belongs to the slot (invariant 3).
unsafe impl Send for Slot {}

impl Slot {
    pub fn free() -> Self {
        Self {
            readers: AtomicU32::new(0),
            on_heap: UnsafeCell::new(false),
            was_long: AtomicBool::new(false),
            contents: UnsafeCell::new(Contents {
                len: 0,
                capacity: 0,
                heap: std::ptr::null_mut(),
                short: [MaybeUninit::uninit(); INLINE_BYTES / 8],
            }),
        }
    }

    /// Whether all consumers of the last message have read it.
    #[inline]
    pub fn is_free(&self) -> bool {
        // SeqCst: behind a producer's word that it waits for the slot.
        self.readers.load(Ordering::SeqCst) == 0
    }

    /// Where a message of this many elements is to be written.
    ///
    /// # Safety
    /// The slot is free and the caller its writer (invariant 1), `element` is the branch's
    /// (invariant 4).
    #[inline]
    pub unsafe fn room(&self, element: &Element, len: usize) -> *mut u8 {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, on_heap) = unsafe { self.contents_mut() };
        contents.len = len;
        *on_heap = len > most_short(element);
        self.was_long.store(*on_heap, Ordering::Relaxed);
        match *on_heap {
            false => contents.short.as_mut_ptr().cast(),
            true => {
                if contents.capacity < len {
                    // SAFETY: invariant 3, and the caller's contract.
                    unsafe { contents.grow(element, len) };
                }
                contents.heap
            }
        }
    }

    /// As [`Slot::room`], of a message as long as another rank says. `None`: there is no
    /// memory for it.
    ///
    /// # Safety
    /// As [`Slot::room`].
    pub unsafe fn try_room(&self, element: &Element, len: usize) -> Option<*mut u8> {
        let layout = Layout::from_size_align(element.bytes.checked_mul(len)?, element.align);
        let layout = layout.ok()?;
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, _) = unsafe { self.contents_mut() };
        if contents.capacity < len && layout.size() > 0 {
            // SAFETY: invariants 3 and 5: the caller's contract.
            unsafe { contents.free(element) };
            // SAFETY: invariant 5: the layout is not empty.
            let heap = unsafe { alloc(layout) };
            if heap.is_null() {
                return None;
            }
            (contents.heap, contents.capacity) = (heap, len);
        }
        // SAFETY: invariant 5: the caller's contract.
        Some(unsafe { self.room(element, len) })
    }

    /// As [`Slot::room`] of a message that lies in the slot; `None`: it does not fit there.
    ///
    /// # Safety
    /// As [`Slot::room`]; `most` is [`most_short`] of the branch's element.
    #[inline]
    pub unsafe fn short_room(&self, most: usize, len: usize) -> Option<*mut u8> {
        if len > most {
            return None;
        }
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, on_heap) = unsafe { self.contents_mut() };
        (contents.len, *on_heap) = (len, false);
        self.was_long.store(false, Ordering::Relaxed);
        Some(contents.short.as_mut_ptr().cast())
    }

    /// Gives the slot the memory of a message that its producer no longer needs.
    ///
    /// # Safety
    /// As [`Slot::room`]; `heap` and `capacity` are of a `Vec` of elements of the branch's
    /// type, of which `len` are initialised, and which the caller forgets.
    pub unsafe fn give(&self, element: &Element, heap: *mut u8, len: usize, capacity: usize) {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, on_heap) = unsafe { self.contents_mut() };
        // SAFETY: invariant 3.
        unsafe { contents.free(element) };
        (contents.heap, contents.capacity) = (heap, capacity);
        (contents.len, *on_heap) = (len, true);
        self.was_long
            .store(len > most_short(element), Ordering::Relaxed);
    }

    /// Whether the last message here was longer than a slot, be it taken or not.
    #[inline]
    pub fn was_long(&self) -> bool {
        self.was_long.load(Ordering::Relaxed)
    }

    /// Whether the slot has memory for long messages.
    ///
    /// # Safety
    /// The slot is free and the caller its writer (invariant 1).
    pub unsafe fn has_memory(&self) -> bool {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        unsafe { self.contents_mut() }.0.capacity > 0
    }

    /// Takes over the memory of another slot of the branch.
    ///
    /// # Safety
    /// Both are free, the caller is their writer (invariant 1), and this one has no memory.
    pub unsafe fn take_memory(&self, other: &Slot) {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (from, _) = unsafe { other.contents_mut() };
        let memory = (from.heap, from.capacity);
        (from.heap, from.capacity) = (std::ptr::null_mut(), 0);
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (to, _) = unsafe { self.contents_mut() };
        (to.heap, to.capacity) = memory;
    }

    /// The message may be read, by this many consumers.
    #[inline]
    pub fn publish(&self, readers: u32) {
        self.readers.store(readers, Ordering::Release);
    }

    /// The message, and how many elements it has.
    ///
    /// # Safety
    /// The caller has a message here that it has not released (invariant 2).
    #[inline]
    pub unsafe fn message(&self) -> (*const u8, usize) {
        // SAFETY: invariant 5: the caller's contract: contents are only read.
        let contents = unsafe { &*self.contents.get() };
        // SAFETY: invariant 5: the caller's contract: contents are only read.
        let at = match unsafe { *self.on_heap.get() } {
            true => contents.heap.cast_const(),
            false => contents.short.as_ptr().cast(),
        };
        (at, contents.len)
    }

    /// Takes the memory of a message, with number and room of its elements; `None` if it lies
    /// in the slot. The message is empty afterwards.
    ///
    /// # Safety
    /// As [`Slot::message`], and the caller is the only consumer.
    pub unsafe fn take(&self) -> Option<(*mut u8, usize, usize)> {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, on_heap) = unsafe { self.contents_mut() };
        if !*on_heap {
            return None;
        }
        let taken = (contents.heap, contents.len, contents.capacity);
        contents.heap = std::ptr::null_mut();
        (contents.len, contents.capacity, *on_heap) = (0, 0, false);
        Some(taken)
    }

    /// A consumer has read the message. True: it was the last, and the slot is free.
    #[inline]
    pub fn release(&self, alone: bool) -> bool {
        // SeqCst: before the look whether the producer waits for it.
        add(&self.readers, 1u32.wrapping_neg(), alone, Ordering::SeqCst) == 1
    }

    /// Gives back the memory of a slot that is not used any more.
    ///
    /// # Safety
    /// Nobody else uses the slot; `element` is the branch's (invariant 4).
    pub unsafe fn clear(&self, element: &Element) {
        // SAFETY: invariant 5: the caller's contract: nobody else is here.
        let (contents, on_heap) = unsafe { self.contents_mut() };
        // SAFETY: invariant 3.
        unsafe { contents.free(element) };
        (contents.len, *on_heap) = (0, false);
    }

    /// # Safety
    /// Nobody else reads or writes the contents (invariants 1 and 2).
    #[expect(clippy::mut_from_ref, reason = "the caller is alone with the contents")]
    #[inline]
    unsafe fn contents_mut(&self) -> (&mut Contents, &mut bool) {
        // SAFETY: invariant 5: the caller's contract.
        let contents = unsafe { &mut *self.contents.get() };
        // SAFETY: invariant 5: the caller's contract.
        let on_heap = unsafe { &mut *self.on_heap.get() };
        (contents, on_heap)
    }
}

impl Contents {
    /// # Safety
    /// `element` is the branch's (invariants 3 and 4), nobody reads the contents.
    #[cold]
    unsafe fn grow(&mut self, element: &Element, len: usize) {
        // SAFETY: invariant 5: the caller's contract.
        unsafe { self.free(element) };
        let layout = memory_of(element, len);
        if layout.size() == 0 {
            self.heap = std::ptr::without_provenance_mut(element.align);
        } else {
            // SAFETY: invariant 5: the layout is not empty.
            self.heap = unsafe { alloc(layout) };
            if self.heap.is_null() {
                handle_alloc_error(layout);
            }
        }
        self.capacity = len;
    }

    /// # Safety
    /// As [`Contents::grow`].
    unsafe fn free(&mut self, element: &Element) {
        let layout = memory_of(element, self.capacity);
        if layout.size() > 0 {
            // SAFETY: invariant 3: allocated with this layout, as a `Vec` does.
            unsafe { dealloc(self.heap, layout) };
        }
        (self.heap, self.capacity) = (std::ptr::null_mut(), 0);
    }
}

/// What a `Vec` of elements allocates.
fn memory_of(element: &Element, capacity: usize) -> Layout {
    let bytes = element.bytes.checked_mul(capacity);
    bytes
        .and_then(|bytes| Layout::from_size_align(bytes, element.align).ok())
        .unwrap_or_else(|| {
            panic!(
                "a message of {capacity} elements of {} bytes",
                element.bytes
            )
        })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn read<T: Copy>(slot: &Slot) -> Vec<T> {
        // SAFETY: invariant 2: the tests have published, and not released.
        let (at, len) = unsafe { slot.message() };
        if len == 0 {
            return Vec::new();
        }
        // SAFETY: invariant 4: elements of the type that was written.
        unsafe { std::slice::from_raw_parts(at.cast(), len) }.to_vec()
    }

    fn write<T: osier_datatype::Datatype>(slot: &Slot, values: &[T]) {
        assert!(slot.is_free());
        // SAFETY: invariants 1 and 4: it is free, and only this thread is here.
        let to = unsafe { slot.room(&Element::of::<T>(), values.len()) };
        // SAFETY: invariant 1: there is room for the values.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to.cast(), values.len()) };
        slot.publish(1);
    }

    #[test]
    fn a_slot_is_one_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    fn short_and_long_messages_take_turns_in_a_slot() {
        let slot = Slot::free();
        let element = Element::of::<u32>();
        for len in [3usize, 8, 9, 4000, 2, 0, 5000, 100] {
            let values: Vec<u32> = (0..len as u32).collect();
            write(&slot, &values);
            assert_eq!(read::<u32>(&slot), values);
            assert!(!slot.is_free());
            assert!(slot.release(false));
        }
        // SAFETY: invariant 4, and nobody else is here.
        unsafe { slot.clear(&element) };
    }

    #[test]
    fn memory_moves_from_slot_to_slot() {
        let (one, other) = (Slot::free(), Slot::free());
        let element = Element::of::<u64>();
        write(&one, &[1u64; 100]);
        // SAFETY: invariant 2: published, and not released.
        let at = unsafe { one.message() }.0;
        assert!(one.release(false) && one.was_long());
        // SAFETY: invariant 1: both are free, and only this thread is here.
        unsafe { other.take_memory(&one) };
        // SAFETY: invariant 1: it is free, and only this thread is here.
        assert!(unsafe { other.has_memory() });
        // SAFETY: invariant 1: it is free, and only this thread is here.
        assert!(!unsafe { one.has_memory() });
        write(&other, &[2u64; 90]);
        write(&one, &[3u64; 4]);
        // SAFETY: invariant 2: published, and not released.
        assert_eq!(unsafe { other.message() }.0, at);
        assert_eq!(
            (read::<u64>(&one), read::<u64>(&other)),
            (vec![3; 4], vec![2; 90])
        );
        assert!(!one.was_long() && one.release(false) && other.release(false));
        // SAFETY: invariant 4, and nobody else is here.
        unsafe { other.clear(&element) };
    }

    #[test]
    fn memory_moves_through_a_slot_without_a_copy() {
        let slot = Slot::free();
        let element = Element::of::<u64>();
        write(&slot, &[1u64; 100]);
        assert!(slot.release(false));
        let mut values = vec![7u64; 50];
        let at = values.as_mut_ptr();
        let (len, capacity) = (values.len(), values.capacity());
        std::mem::forget(values);
        // SAFETY: invariant 3: the memory of a vector of the slot's type, which is forgotten.
        unsafe { slot.give(&element, at.cast(), len, capacity) };
        slot.publish(1);
        // SAFETY: invariant 2: published, and the only consumer.
        let (heap, len, capacity) = unsafe { slot.take() }.expect("on the heap");
        assert_eq!(heap.cast::<u64>(), at);
        // SAFETY: invariant 3: the vector that was forgotten.
        let back = unsafe { Vec::from_raw_parts(heap.cast::<u64>(), len, capacity) };
        assert_eq!(back, [7; 50]);
        assert!(slot.release(false));
        // SAFETY: invariant 4, and nobody else is here.
        unsafe { slot.clear(&element) };
    }
}
