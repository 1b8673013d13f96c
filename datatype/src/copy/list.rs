//! Kernels for listed blocks.

use super::{Direction, copy, strided};
use crate::form::Level;
use crate::list::List;
use std::ops::Range;

/// Lists of at most so many blocks are copied block by block over many
/// iterations.
const SHORT: usize = 16;
/// Iterations that make this worth it.
const LONG: usize = 8;
const TILE_BYTES: usize = 8 << 10;

/// Copies a range of the packed bytes of a list.
///
/// # Safety
/// As `super::part`.
pub(super) unsafe fn part<D: Direction>(
    list: &List,
    at: *mut u8,
    range: Range<usize>,
    packed: *mut u8,
) {
    let mut packed = packed;
    let (mut first, skip) = list.seek(range.start);
    let (last, rest) = list.seek(range.end);
    if skip > 0 {
        let (offset, length) = list.block(first);
        let end = if first == last { rest } else { length };
        let memory = at.wrapping_offset(offset).wrapping_add(skip);
        // SAFETY: bytes `skip..end` of block `first`.
        unsafe { copy::<D>(memory, packed, end - skip) };
        packed = packed.wrapping_add(end - skip);
        first += 1;
    }
    for i in first..last {
        let (offset, length) = list.block(i);
        // SAFETY: block `i` lies in the range.
        unsafe { copy::<D>(at.wrapping_offset(offset), packed, length) };
        packed = packed.wrapping_add(length);
    }
    if rest > 0 && first <= last {
        let (offset, _) = list.block(last);
        // SAFETY: the first bytes of block `last`.
        unsafe { copy::<D>(at.wrapping_offset(offset), packed, rest) };
    }
}

/// Whether a list under these levels goes block by block.
pub(super) fn in_columns(levels: &[Level], list: &List) -> bool {
    list.len() <= SHORT && levels.last().is_some_and(|level| level.count >= LONG)
}

/// Copies a short list under at least one level.
///
/// # Safety
/// As `super::part`.
pub(super) unsafe fn columns<D: Direction>(
    levels: &[Level],
    list: &List,
    at: *mut u8,
    packed: *mut u8,
) {
    let row = list.bytes();
    let (mut at, mut packed) = (at, packed);
    if let [level] = levels {
        let tile = (TILE_BYTES / row).max(LONG);
        let mut left = level.count;
        while left > 0 {
            let rows = left.min(tile);
            let mut column = packed;
            for i in 0..list.len() {
                let (offset, length) = list.block(i);
                let memory = at.wrapping_offset(offset);
                let kernel = strided::kernel::<D>(length);
                // SAFETY: block `i` of `rows` iterations.
                unsafe { kernel(rows, memory, level.stride, column, row, length) };
                column = column.wrapping_add(length);
            }
            at = at.wrapping_offset((rows as isize).wrapping_mul(level.stride));
            packed = packed.wrapping_add(rows * row);
            left -= rows;
        }
    } else if let Some((level, inner)) = levels.split_first() {
        let step = inner.iter().fold(row, |bytes, level| bytes * level.count);
        for _ in 0..level.count {
            // SAFETY: one iteration of the level.
            unsafe { columns::<D>(inner, list, at, packed) };
            at = at.wrapping_offset(level.stride);
            packed = packed.wrapping_add(step);
        }
    }
}
