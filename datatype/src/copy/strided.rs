//! Kernels for blocks of one width at constant distances.
//!
//! The width is a constant inside of each kernel, so that a block is one or a
//! few loads and stores. Widths without a kernel of their own are two pieces of
//! constant width that may overlap each other.

use super::{Direction, copy, simd};
use crate::form::Level;

/// Copies `count` blocks of `width` bytes, `memory_stride` apart on the memory
/// side and `packed_stride` apart on the packed side.
///
/// Unsafe to call: the blocks must be valid on both sides, in the direction's
/// sense, and the two sides must not overlap.
pub(super) type Kernel = unsafe fn(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
);

/// Blocks of a level worth a loop of its own.
const SHORT: usize = 16;
/// Packed bytes of a tile whose columns are copied one after the other.
const TILE_BYTES: usize = 8 << 10;

/// Copies a nest of blocks of `width` bytes.
///
/// # Safety
/// As `super::part`.
pub(super) unsafe fn nest<D: Direction>(
    levels: &[Level],
    width: usize,
    at: *mut u8,
    packed: *mut u8,
) {
    let kernel = kernel::<D>(width);
    match *levels {
        // SAFETY: one block.
        [] => unsafe { copy::<D>(at, packed, width) },
        [.., outer, inner] if inner.count < SHORT && outer.count > inner.count => {
            let rows = &levels[..levels.len() - 2];
            let step = outer.count * inner.count * width;
            for_each(rows, step, at, packed, &mut |at, packed| {
                // SAFETY: forwarded to the caller.
                unsafe { tiles(kernel, outer, inner, width, at, packed) }
            });
        }
        [ref rows @ .., inner] => {
            let kernel = simd::dense::<D>(width, inner.stride).unwrap_or(kernel);
            let step = inner.count * width;
            for_each(rows, step, at, packed, &mut |at, packed| {
                // SAFETY: forwarded to the caller; both kernels are for this width.
                unsafe { kernel(inner.count, at, inner.stride, packed, width, width) }
            });
        }
    }
}

/// Runs `row` at all places of the levels; a row has `step` packed bytes.
#[inline(always)]
fn for_each(
    levels: &[Level],
    step: usize,
    at: *mut u8,
    packed: *mut u8,
    row: &mut impl FnMut(*mut u8, *mut u8),
) {
    match *levels {
        [] => row(at, packed),
        [one] => rows(one, step, at, packed, row),
        [outer, inner] => {
            let plane = inner.count * step;
            rows(outer, plane, at, packed, &mut |at, packed| {
                rows(inner, step, at, packed, row);
            });
        }
        [outer, ref inner @ ..] => {
            let all = inner.iter().fold(step, |bytes, level| bytes * level.count);
            rows(outer, all, at, packed, &mut |at, packed| {
                deep(inner, step, at, packed, row);
            });
        }
    }
}

/// [`for_each`] out of line, for nests of four levels and more.
fn deep(
    levels: &[Level],
    step: usize,
    at: *mut u8,
    packed: *mut u8,
    row: &mut dyn FnMut(*mut u8, *mut u8),
) {
    let Some((outer, inner)) = levels.split_first() else {
        return row(at, packed);
    };
    let all = inner.iter().fold(step, |bytes, level| bytes * level.count);
    rows(*outer, all, at, packed, &mut |at, packed| {
        deep(inner, step, at, packed, row);
    });
}

#[inline(always)]
fn rows(
    level: Level,
    step: usize,
    at: *mut u8,
    packed: *mut u8,
    row: &mut impl FnMut(*mut u8, *mut u8),
) {
    let (mut at, mut packed) = (at, packed);
    for _ in 0..level.count {
        row(at, packed);
        at = at.wrapping_offset(level.stride);
        packed = packed.wrapping_add(step);
    }
}

/// A long level over a short one, with the loops exchanged inside of tiles that
/// stay in the first-level cache.
///
/// # Safety
/// As `super::part`; the kernel is for this width.
unsafe fn tiles(
    kernel: Kernel,
    outer: Level,
    inner: Level,
    width: usize,
    at: *mut u8,
    packed: *mut u8,
) {
    let row = inner.count * width;
    let tile = (TILE_BYTES / row).max(1);
    let (mut at, mut packed) = (at, packed);
    let mut left = outer.count;
    while left > 0 {
        let rows = left.min(tile);
        for column in 0..inner.count {
            let memory = at.wrapping_offset((column as isize).wrapping_mul(inner.stride));
            let packed = packed.wrapping_add(column * width);
            // SAFETY: one column of `rows` iterations of the outer level.
            unsafe { kernel(rows, memory, outer.stride, packed, row, width) };
        }
        at = at.wrapping_offset((rows as isize).wrapping_mul(outer.stride));
        packed = packed.wrapping_add(rows * row);
        left -= rows;
    }
}

/// The kernel for a width, at any strides.
pub(super) fn kernel<D: Direction>(width: usize) -> Kernel {
    match width {
        1 => fixed::<D, 1>,
        2 => fixed::<D, 2>,
        3 => fixed::<D, 3>,
        4 => fixed::<D, 4>,
        8 => fixed::<D, 8>,
        12 => fixed::<D, 12>,
        16 => fixed::<D, 16>,
        24 => fixed::<D, 24>,
        32 => fixed::<D, 32>,
        48 => fixed::<D, 48>,
        64 => fixed::<D, 64>,
        96 => fixed::<D, 96>,
        128 => fixed::<D, 128>,
        5..=7 => halves::<D, 4>,
        9..=15 => halves::<D, 8>,
        17..=31 => halves::<D, 16>,
        33..=63 => halves::<D, 32>,
        65..=127 => halves::<D, 64>,
        129..=256 => halves::<D, 128>,
        _ => any::<D>,
    }
}

/// Blocks of a constant width, four at a time.
///
/// # Safety
/// As [`Kernel`].
pub(super) unsafe fn fixed<D: Direction, const W: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    _width: usize,
) {
    let (mut memory, mut packed) = (memory, packed);
    let mut left = count;
    while left >= 4 {
        for i in 0..4 {
            let memory = memory.wrapping_offset(memory_stride.wrapping_mul(i as isize));
            let packed = packed.wrapping_add(packed_stride.wrapping_mul(i));
            // SAFETY: one of the caller's blocks.
            unsafe { copy::<D>(memory, packed, W) };
        }
        memory = memory.wrapping_offset(memory_stride.wrapping_mul(4));
        packed = packed.wrapping_add(packed_stride.wrapping_mul(4));
        left -= 4;
    }
    for _ in 0..left {
        // SAFETY: one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, W) };
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}

/// Blocks of `P..=2 * P` bytes: the first and the last `P` of them.
///
/// # Safety
/// As [`Kernel`].
unsafe fn halves<D: Direction, const P: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
) {
    let second = width - P;
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..count {
        // SAFETY: the first bytes of one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, P) };
        let (end, packed_end) = (memory.wrapping_add(second), packed.wrapping_add(second));
        // SAFETY: its last bytes.
        unsafe { copy::<D>(end, packed_end, P) };
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}

/// Blocks of any width.
///
/// # Safety
/// As [`Kernel`].
unsafe fn any<D: Direction>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
) {
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..count {
        // SAFETY: one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, width) };
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}
