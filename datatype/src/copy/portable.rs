//! The twin of `x86` for other machines: no kernel, so callers take their own.
//!
//! The invariants are those of [`super`], by number.

use super::list::{Done, Equal, Offset, each};
use super::strided::Kernel;
use super::{Direction, in_pieces};

/// # Safety
/// As `super::copy`.
pub(super) unsafe fn stream<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { super::copy::<D>(memory, packed, length) }
}

/// # Safety
/// As `std::ptr::copy_nonoverlapping`.
pub(super) unsafe fn by_vectors(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

/// # Safety
/// Each place is as for `super::copy`.
pub(super) unsafe fn pieces<D: Direction>(
    places: impl Iterator<Item = (*mut u8, *mut u8)>,
    length: usize,
) {
    for (memory, packed) in places {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { in_pieces::<D>(memory, packed, length) };
    }
}

/// # Safety
/// As `super::list::each`.
pub(super) unsafe fn uneven<D: Direction, O: Offset>(
    offsets: &[O],
    lengths: impl Iterator<Item = usize>,
    at: *mut u8,
    packed: *mut u8,
) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { each::<D, O>(offsets, lengths, at, packed) }
}

pub(super) fn fence() {}

pub(super) fn wide<D: Direction>(_width: usize) -> Option<Kernel> {
    None
}

pub(super) fn wide_equal<D: Direction, O: Offset>(_length: usize) -> Option<Equal<O>> {
    None
}

pub(super) fn dense<D: Direction>(_width: usize, _memory_stride: isize) -> Option<Kernel> {
    None
}

pub(super) fn gathered<D: Direction>(_width: usize, _memory_stride: isize) -> Option<Kernel> {
    None
}

pub(super) fn prefetch(_place: *const u8) {}

/// # Safety
/// None needed: nothing is copied.
pub(super) unsafe fn permuted<D: Direction>(
    _count: usize,
    _memory: *mut u8,
    _memory_stride: isize,
    _packed: *mut u8,
    _width: usize,
) -> usize {
    0
}

/// # Safety
/// None needed: nothing is copied.
pub(super) unsafe fn masked<D: Direction, O: Offset>(
    _longest: usize,
    _offsets: &[O],
    _lengths: &[u32],
    _at: *mut u8,
    _packed: *mut u8,
    _end: *mut u8,
) -> Done {
    Done::default()
}
