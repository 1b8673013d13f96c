//! Kernels for blocks of one width at constant distances.

use super::{Direction, copy};
use crate::form::Level;

/// Copies `count` blocks of `width` bytes, `memory_stride` apart on the memory
/// side and `packed_stride` apart on the packed side.
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
    // SAFETY: forwarded to the caller; the kernel is for this width.
    unsafe { nest_with(kernel::<D>(width), levels, width, at, packed) }
}

unsafe fn nest_with(kernel: Kernel, levels: &[Level], width: usize, at: *mut u8, packed: *mut u8) {
    match *levels {
        // SAFETY: one block.
        [] => unsafe { kernel(1, at, 0, packed, width, width) },
        // SAFETY: one level of blocks.
        [one] => unsafe { kernel(one.count, at, one.stride, packed, width, width) },
        // SAFETY: forwarded to the caller.
        [outer, inner] if inner.count < SHORT && outer.count > inner.count => unsafe {
            tiles(kernel, outer, inner, width, at, packed)
        },
        [outer, inner] => {
            let step = inner.count * width;
            let (mut at, mut packed) = (at, packed);
            for _ in 0..outer.count {
                // SAFETY: one iteration of the outer level.
                unsafe { kernel(inner.count, at, inner.stride, packed, width, width) };
                at = at.wrapping_offset(outer.stride);
                packed = packed.wrapping_add(step);
            }
        }
        [outer, ref inner @ ..] => {
            let step = inner.iter().fold(width, |bytes, level| bytes * level.count);
            let (mut at, mut packed) = (at, packed);
            for _ in 0..outer.count {
                // SAFETY: one iteration of the outer level.
                unsafe { nest_with(kernel, inner, width, at, packed) };
                at = at.wrapping_offset(outer.stride);
                packed = packed.wrapping_add(step);
            }
        }
    }
}

/// A long level over a short one, with the loops exchanged inside of tiles that
/// stay in the first-level cache.
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

/// The kernel for a width.
pub(super) fn kernel<D: Direction>(width: usize) -> Kernel {
    match width {
        1 => fixed::<D, 1>,
        2 => fixed::<D, 2>,
        3 => fixed::<D, 3>,
        4 => fixed::<D, 4>,
        6 => fixed::<D, 6>,
        8 => fixed::<D, 8>,
        12 => fixed::<D, 12>,
        16 => fixed::<D, 16>,
        20 => fixed::<D, 20>,
        24 => fixed::<D, 24>,
        32 => fixed::<D, 32>,
        40 => fixed::<D, 40>,
        48 => fixed::<D, 48>,
        64 => fixed::<D, 64>,
        96 => fixed::<D, 96>,
        128 => fixed::<D, 128>,
        _ => any::<D>,
    }
}

/// Blocks of a constant width.
unsafe fn fixed<D: Direction, const W: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    _width: usize,
) {
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..count {
        // SAFETY: one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, W) };
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}

/// Blocks of any width.
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
