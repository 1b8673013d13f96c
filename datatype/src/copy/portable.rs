//! The twin of `x86` for other machines: no kernel, so callers take their own.

use super::list::{Done, Equal, Offset};
use super::strided::Kernel;
use super::{Direction, copy};

/// # Safety
/// As `super::copy`.
pub(super) unsafe fn stream<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    // SAFETY: forwarded to the caller.
    unsafe { copy::<D>(memory, packed, length) }
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

/// # Safety
/// None needed: nothing is copied.
pub(super) unsafe fn comb<D: Direction>(
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
