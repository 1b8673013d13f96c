//! Kernels for listed blocks.
//!
//! Equal lengths: as for strides, with the offset loaded. Unequal ones up to a
//! vector: one masked move each, without a branch on the length, where the
//! machine has masks (`simd`). Otherwise a branch per block picks two moves of
//! constant width that may overlap each other.
//!
//! The invariants are those of [`super`], by number.

use super::{Direction, copy, long, simd, strided};
use crate::form::Level;
use crate::list::{Lengths, List, Offsets};
use std::ops::Range;

/// So many blocks at most are copied one by one over many iterations.
const SHORT: usize = 64;
/// Iterations that make this worth it.
const LONG: usize = 8;
/// Bytes of a tile on the side that spreads further.
const TILE_BYTES: usize = 16 << 10;

/// Blocks of a list: offsets as they are stored.
pub(super) trait Offset: Copy {
    fn bytes(self) -> isize;
}

impl Offset for i32 {
    #[inline(always)]
    fn bytes(self) -> isize {
        self as isize
    }
}

impl Offset for i64 {
    #[inline(always)]
    fn bytes(self) -> isize {
        self as isize
    }
}

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
    let end = packed.wrapping_add(range.len());
    let mut packed = packed;
    let (mut first, skip) = list.seek(range.start);
    let (last, rest) = list.seek(range.end);
    if skip > 0 {
        let (offset, length) = list.block(first);
        let end = if first == last { rest } else { length };
        let memory = at.wrapping_offset(offset).wrapping_add(skip);
        // SAFETY: invariants 1 and 3: bytes `skip..end` of block `first`.
        unsafe { copy::<D>(memory, packed, end - skip) };
        packed = packed.wrapping_add(end - skip);
        first += 1;
    }
    if first > last {
        return;
    }
    // SAFETY: invariants 1 and 3: these blocks lie in the range, `end` is where it ends.
    unsafe { blocks::<D>(list, first..last, at, packed, end) };
    if rest > 0 {
        let (offset, _) = list.block(last);
        let memory = at.wrapping_offset(offset);
        // SAFETY: invariants 1 and 3: the first bytes of block `last` end the range.
        unsafe { copy::<D>(memory, end.wrapping_sub(rest), rest) };
    }
}

/// Copies whole blocks; the packed side is valid up to `end`.
///
/// # Safety
/// As `super::part`.
unsafe fn blocks<D: Direction>(
    list: &List,
    range: Range<usize>,
    at: *mut u8,
    packed: *mut u8,
    end: *mut u8,
) {
    match &list.offsets {
        Offsets::Narrow(offsets) => {
            let offsets = &offsets[range.clone()];
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { with_offsets::<D, i32>(list, offsets, range, at, packed, end) }
        }
        Offsets::Wide(offsets) => {
            let offsets = &offsets[range.clone()];
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { with_offsets::<D, i64>(list, offsets, range, at, packed, end) }
        }
    }
}

unsafe fn with_offsets<D: Direction, O: Offset>(
    list: &List,
    offsets: &[O],
    range: Range<usize>,
    at: *mut u8,
    packed: *mut u8,
    end: *mut u8,
) {
    match &list.lengths {
        Lengths::Equal(length) => {
            // SAFETY: invariants 1 and 4: the kernel is for this length.
            unsafe { equal::<D, O>(*length)(offsets, at, packed, *length) }
        }
        Lengths::Narrow(lengths) => {
            let lengths = &lengths[range];
            // SAFETY: invariants 1 and 4: no block is longer than `longest`.
            let done =
                unsafe { simd::masked::<D, O>(list.longest, offsets, lengths, at, packed, end) };
            // SAFETY: invariants 1 and 3, for the blocks left.
            unsafe {
                simd::uneven::<D, O>(
                    &offsets[done.blocks..],
                    lengths[done.blocks..].iter().map(|&length| length as usize),
                    at,
                    packed.wrapping_add(done.bytes),
                )
            }
        }
        Lengths::Wide(lengths) => {
            let lengths = lengths[range].iter().map(|&length| length as usize);
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { simd::uneven::<D, O>(offsets, lengths, at, packed) }
        }
    }
}

/// How far a kernel came.
#[derive(Default)]
pub(super) struct Done {
    pub blocks: usize,
    pub bytes: usize,
}

/// Copies listed blocks of one length.
///
/// Unsafe to call: the blocks must be valid on both sides, in the direction's
/// sense, and the two sides must not overlap.
pub(super) type Equal<O> = unsafe fn(offsets: &[O], at: *mut u8, packed: *mut u8, length: usize);

/// The kernel for blocks of one length.
fn equal<D: Direction, O: Offset>(length: usize) -> Equal<O> {
    if let Some(kernel) = simd::wide_equal::<D, O>(length) {
        return kernel;
    }
    match length {
        1 => equal_fixed::<D, O, 1>,
        2 => equal_fixed::<D, O, 2>,
        3 => equal_fixed::<D, O, 3>,
        4 => equal_fixed::<D, O, 4>,
        6 => equal_fixed::<D, O, 6>,
        8 => equal_fixed::<D, O, 8>,
        12 => equal_fixed::<D, O, 12>,
        20 => equal_fixed::<D, O, 20>,
        16 => equal_fixed::<D, O, 16>,
        24 => equal_fixed::<D, O, 24>,
        32 => equal_fixed::<D, O, 32>,
        48 => equal_fixed::<D, O, 48>,
        64 => equal_fixed::<D, O, 64>,
        128 => equal_fixed::<D, O, 128>,
        5..=7 => equal_halves::<D, O, 4>,
        9..=15 => equal_halves::<D, O, 8>,
        17..=31 => equal_halves::<D, O, 16>,
        33..=63 => equal_halves::<D, O, 32>,
        65..=127 => equal_halves::<D, O, 64>,
        129..=256 => equal_halves::<D, O, 128>,
        _ => any::<D, O>,
    }
}

/// Blocks of a constant length, four at a time.
///
/// # Safety
/// As [`Equal`].
#[inline(always)]
pub(super) unsafe fn equal_fixed<D: Direction, O: Offset, const W: usize>(
    offsets: &[O],
    at: *mut u8,
    packed: *mut u8,
    _length: usize,
) {
    let mut packed = packed;
    let (fours, rest) = offsets.as_chunks::<4>();
    for four in fours {
        for offset in four {
            // SAFETY: invariants 1 and 3: one of the caller's blocks.
            unsafe { copy::<D>(at.wrapping_offset(offset.bytes()), packed, W) };
            packed = packed.wrapping_add(W);
        }
    }
    for offset in rest {
        // SAFETY: invariants 1 and 3: one of the caller's blocks.
        unsafe { copy::<D>(at.wrapping_offset(offset.bytes()), packed, W) };
        packed = packed.wrapping_add(W);
    }
}

/// Blocks of `P..=2 * P` bytes.
///
/// # Safety
/// As [`Equal`].
#[inline(always)]
pub(super) unsafe fn equal_halves<D: Direction, O: Offset, const P: usize>(
    offsets: &[O],
    at: *mut u8,
    packed: *mut u8,
    length: usize,
) {
    let mut packed = packed;
    for offset in offsets {
        let memory = at.wrapping_offset(offset.bytes());
        // SAFETY: invariants 1, 3 and 4: one of the caller's blocks, of `P..=2 * P` bytes.
        unsafe { two::<D, P>(memory, packed, length) };
        packed = packed.wrapping_add(length);
    }
}

unsafe fn any<D: Direction, O: Offset>(offsets: &[O], at: *mut u8, packed: *mut u8, length: usize) {
    let places = offsets.iter().enumerate().map(|(i, offset)| {
        (
            at.wrapping_offset(offset.bytes()),
            packed.wrapping_add(i * length),
        )
    });
    // SAFETY: invariants 1 and 3: the caller's blocks.
    unsafe { long::<D>(places, length) }
}

/// Blocks of unequal length, with a branch on each.
///
/// # Safety
/// The blocks are valid on both sides, as for `super::copy`, and dense on the packed one.
#[inline(always)]
pub(super) unsafe fn each<D: Direction, O: Offset>(
    offsets: &[O],
    lengths: impl Iterator<Item = usize>,
    at: *mut u8,
    packed: *mut u8,
) {
    let mut packed = packed;
    for (offset, length) in offsets.iter().zip(lengths) {
        // SAFETY: invariants 1 and 3: one of the caller's blocks.
        unsafe { one::<D>(at.wrapping_offset(offset.bytes()), packed, length) };
        packed = packed.wrapping_add(length);
    }
}

/// One block of any length, without a call for the short ones.
///
/// # Safety
/// As `super::copy`.
#[inline(always)]
unsafe fn one<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    match length {
        // SAFETY: invariants 1 and 4: the length fits the halves.
        8..=16 => unsafe { two::<D, 8>(memory, packed, length) },
        // SAFETY: invariants 1 and 4: the length fits the halves.
        17..=32 => unsafe { two::<D, 16>(memory, packed, length) },
        // SAFETY: invariants 1 and 4: the length fits the halves.
        33..=64 => unsafe { two::<D, 32>(memory, packed, length) },
        // SAFETY: invariants 1 and 4: the length fits the halves.
        65..=128 => unsafe { two::<D, 64>(memory, packed, length) },
        // SAFETY: invariants 1 and 4: the length fits the halves.
        4..=7 => unsafe { two::<D, 4>(memory, packed, length) },
        // SAFETY: invariant 1, which the caller upholds.
        _ => unsafe { copy::<D>(memory, packed, length) },
    }
}

/// The first and the last `P` bytes of a block of `P..=2 * P` bytes.
///
/// # Safety
/// As `super::copy`.
#[inline(always)]
unsafe fn two<D: Direction, const P: usize>(memory: *mut u8, packed: *mut u8, length: usize) {
    let second = length - P;
    // SAFETY: invariants 1 and 3: the first bytes of the block.
    unsafe { copy::<D>(memory, packed, P) };
    let (memory, packed) = (memory.wrapping_add(second), packed.wrapping_add(second));
    // SAFETY: invariants 1 and 3: the last bytes of the block.
    unsafe { copy::<D>(memory, packed, P) };
}

/// The level along which a list under these levels goes block by block: the
/// first from inside that is long, if few blocks lie below it.
pub(super) fn along(levels: &[Level], list: &List) -> Option<usize> {
    let mut few = list.len();
    for (i, level) in levels.iter().enumerate().rev() {
        if few > SHORT {
            return None;
        }
        if level.count >= LONG {
            return Some(i);
        }
        few *= level.count;
    }
    None
}

/// Copies a list under levels block by block: tiles of the level [`along`], in
/// each a kernel for every block below it.
///
/// # Safety
/// As `super::part`, with `along` as the index of a level.
pub(super) unsafe fn columns<D: Direction>(
    levels: &[Level],
    along: usize,
    list: &List,
    at: *mut u8,
    packed: *mut u8,
) {
    let Some((level, inner)) = levels.split_first() else {
        return;
    };
    let row = inner
        .iter()
        .fold(list.bytes(), |bytes, level| bytes * level.count);
    let (mut at, mut packed) = (at, packed);
    if along > 0 {
        for _ in 0..level.count {
            // SAFETY: invariants 1 and 3: one iteration of the level.
            unsafe { columns::<D>(inner, along - 1, list, at, packed) };
            at = at.wrapping_offset(level.stride);
            packed = packed.wrapping_add(row);
        }
        return;
    }
    let spread = row.max(level.stride.unsigned_abs());
    let tile = (TILE_BYTES / spread).max(LONG);
    let mut left = level.count;
    while left > 0 {
        let rows = left.min(tile);
        let below = Below {
            rows,
            stride: level.stride,
            row,
            list,
        };
        // SAFETY: invariants 1 and 3: `rows` iterations of all that lies below the level.
        unsafe { below.all::<D>(inner, at, packed) };
        at = at.wrapping_offset((rows as isize).wrapping_mul(level.stride));
        packed = packed.wrapping_add(rows * row);
        left -= rows;
    }
}

/// What is copied for each block below a level.
struct Below<'a> {
    rows: usize,
    stride: isize,
    /// Packed bytes of one row.
    row: usize,
    list: &'a List,
}

impl Below<'_> {
    /// # Safety
    /// As [`columns`].
    unsafe fn all<D: Direction>(&self, levels: &[Level], at: *mut u8, packed: *mut u8) {
        let (mut at, mut packed) = (at, packed);
        if let Some((level, inner)) = levels.split_first() {
            let step = inner
                .iter()
                .fold(self.list.bytes(), |bytes, level| bytes * level.count);
            for _ in 0..level.count {
                // SAFETY: invariants 1 and 3: one iteration of the level.
                unsafe { self.all::<D>(inner, at, packed) };
                at = at.wrapping_offset(level.stride);
                packed = packed.wrapping_add(step);
            }
            return;
        }
        for i in 0..self.list.len() {
            let (offset, length) = self.list.block(i);
            let memory = at.wrapping_offset(offset);
            let kernel = strided::kernel::<D>(length);
            // SAFETY: invariants 1 and 3: block `i` of all rows.
            unsafe { kernel(self.rows, memory, self.stride, packed, self.row, length) };
            packed = packed.wrapping_add(length);
        }
    }
}
