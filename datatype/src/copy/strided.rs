//! Kernels for blocks of one width at constant distances.
//!
//! The width is a constant inside of each kernel, so that a block is one or a
//! few loads and stores; where the machine has wider vectors the same body is
//! compiled for them (`simd`). Widths without a kernel of their own are two
//! pieces of constant width that may overlap each other.
//!
//! A nest is copied in the order that suits both sides, not always its own:
//!
//! | nest | order |
//! |---|---|
//! | one level, or a long innermost one | its own: a kernel per row, or vector by vector (`simd::permuted`) |
//! | a long level over a few short ones (`columns`) | tiles of rows, block by block: a kernel per block |
//! | an outer level steps within a cache line, the innermost beyond (`transposed`) | tiles of both, so that each line is touched once |
//!
//! The invariants are those of [`super`], by number.

use super::{Direction, copy, long, simd};
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
/// Blocks of a row worth choosing how to copy it, each time.
const LONG: usize = 512;
/// Blocks of short levels that are copied one kernel each.
const FEW: usize = 64;
/// Bytes of a tile whose columns are copied one after the other, on the side
/// that spreads further.
const TILE_BYTES: usize = 16 << 10;
/// Strides within which neighbors share cache lines.
const NEAR: usize = 64;
/// Rows of a transposed tile: as many pages as the first-level TLB holds with
/// ease.
const TILE_ROWS: usize = 64;

/// Distances from which a row asks for its lines ahead of time ([`ahead`]); nearer ones the
/// processor foresees itself, and asking costs up to an eighth.
const FAR: usize = 1024;
/// Blocks from which it does so: their lines make 2 MiB, as much as second-level caches hold.
const FAR_BLOCKS: usize = 32 << 10;

/// One loop: a level with its distance on the packed side.
#[derive(Clone, Copy, Default)]
struct Loop {
    count: usize,
    memory: isize,
    packed: usize,
}

/// Nests that fit on the stack; deeper ones go level by level.
const DEEPEST: usize = 8;

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
    match *levels {
        // SAFETY: invariants 1 and 3: one block.
        [] => unsafe { copy::<D>(at, packed, width) },
        // SAFETY: invariant 1, which the caller upholds.
        [one] => unsafe { row::<D>(one.count, at, one.stride, packed, width) },
        [outer, ref inner @ ..] if levels.len() > DEEPEST => {
            let step = inner.iter().fold(width, |bytes, level| bytes * level.count);
            let (mut at, mut packed) = (at, packed);
            for _ in 0..outer.count {
                // SAFETY: invariants 1 and 3: one iteration of the level.
                unsafe { nest::<D>(inner, width, at, packed) };
                at = at.wrapping_offset(outer.stride);
                packed = packed.wrapping_add(step);
            }
        }
        _ => {
            let mut loops = [Loop::default(); DEEPEST];
            let mut step = width;
            for (level, slot) in levels.iter().zip(&mut loops[..levels.len()]).rev() {
                *slot = Loop {
                    count: level.count,
                    memory: level.stride,
                    packed: step,
                };
                step *= level.count;
            }
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { ordered::<D>(&loops[..levels.len()], width, at, packed) }
        }
    }
}

/// The kernel for rows of `count` dense blocks on the packed side, short ones too.
pub(super) fn dense<D: Direction>(count: usize, width: usize, stride: isize) -> Kernel {
    let gathered = || simd::gathered::<D>(width, stride).filter(|_| count >= SHORT);
    simd::dense::<D>(width, stride)
        .or_else(gathered)
        .unwrap_or_else(|| kernel::<D>(width))
}

/// A row of dense blocks on the packed side.
///
/// # Safety
/// As [`Kernel`].
unsafe fn row<D: Direction>(
    count: usize,
    at: *mut u8,
    stride: isize,
    packed: *mut u8,
    width: usize,
) {
    if let Some(kernel) = simd::dense::<D>(width, stride) {
        // SAFETY: invariants 1 and 4: the kernel is for this width and stride.
        return unsafe { kernel(count, at, stride, packed, width, width) };
    }
    // SAFETY: invariant 1, which the caller upholds.
    let done = unsafe { simd::permuted::<D>(count, at, stride, packed, width) };
    let at = at.wrapping_offset(stride.wrapping_mul(done as isize));
    let packed = packed.wrapping_add(width * done);
    let left = count - done;
    let kernel = simd::gathered::<D>(width, stride).unwrap_or_else(|| kernel::<D>(width));
    if left >= FAR_BLOCKS && stride.unsigned_abs() >= FAR && width <= NEAR {
        // SAFETY: invariants 1, 3 and 4: the blocks left; the kernel is for this width.
        unsafe { ahead(kernel, left, at, stride, packed, width) }
    } else {
        // SAFETY: invariants 1, 3 and 4: the blocks left; the kernel is for this width.
        unsafe { kernel(left, at, stride, packed, width, width) }
    }
}

/// Blocks that [`ahead`] asks for at a time.
const BATCH: usize = 8;
/// Blocks between what [`ahead`] asks for and what is copied meanwhile.
const LEAD: usize = 96;

/// A row whose blocks are far apart: asks for the lines of later blocks before each
/// batch, since what processors prefetch by themselves ends with the page.
///
/// # Safety
/// As [`Kernel`], which must be for this width and stride.
unsafe fn ahead(
    kernel: Kernel,
    count: usize,
    at: *mut u8,
    stride: isize,
    packed: *mut u8,
    width: usize,
) {
    let (mut at, mut packed) = (at, packed);
    let mut left = count;
    while left > 0 {
        let blocks = left.min(BATCH);
        for i in LEAD..LEAD + blocks.min(left.saturating_sub(LEAD)) {
            simd::prefetch(at.wrapping_offset(stride.wrapping_mul(i as isize)));
        }
        // SAFETY: invariants 1, 3 and 4: the next blocks of the row.
        unsafe { kernel(blocks, at, stride, packed, width, width) };
        at = at.wrapping_offset(stride.wrapping_mul(blocks as isize));
        packed = packed.wrapping_add(blocks * width);
        left -= blocks;
    }
}

/// Picks the order of at least two loops.
///
/// # Safety
/// As `super::part`.
unsafe fn ordered<D: Direction>(loops: &[Loop], width: usize, at: *mut u8, packed: *mut u8) {
    let innermost = loops.len() - 1;
    let inner = loops[innermost];
    if inner.count >= SHORT && inner.memory.unsigned_abs() > NEAR {
        let near = |l: &Loop| l.count >= 4 && l.memory.unsigned_abs() <= NEAR / 2;
        if let Some(across) = loops[..innermost].iter().rposition(near)
            && let Some(kernel) = transposing::<D>(width)
        {
            let outer = loops[across];
            let mut rest = [Loop::default(); DEEPEST];
            rest[..across].copy_from_slice(&loops[..across]);
            rest[across..innermost - 1].copy_from_slice(&loops[across + 1..innermost]);
            for_each(&rest[..innermost - 1], at, packed, &mut |at, packed| {
                // SAFETY: invariant 1, which the caller upholds.
                unsafe { transposed::<D>(kernel, outer, inner, width, at, packed) }
            });
            return;
        }
    }
    let mut few = 1;
    let mut along = innermost;
    while along > 0 && loops[along].count < SHORT && few * loops[along].count <= FEW {
        few *= loops[along].count;
        along -= 1;
    }
    let (outer, long, short) = (&loops[..along], loops[along], &loops[along + 1..]);
    if short.is_empty() || long.count <= loops[innermost].count {
        let rows = &loops[..innermost];
        if inner.count >= LONG {
            for_each(rows, at, packed, &mut |at, packed| {
                // SAFETY: invariants 1 and 3: one row.
                unsafe { row::<D>(inner.count, at, inner.memory, packed, width) }
            });
            return;
        }
        let kernel = dense::<D>(inner.count, width, inner.memory);
        for_each(rows, at, packed, &mut |at, packed| {
            // SAFETY: invariants 1 and 4: the kernel is for this width and stride.
            unsafe { kernel(inner.count, at, inner.memory, packed, width, width) }
        });
        return;
    }
    let kernel = kernel::<D>(width);
    let spread = long.memory.unsigned_abs().max(long.packed);
    let tile = (TILE_BYTES / spread.max(1)).max(SHORT);
    for_each(outer, at, packed, &mut |mut at, mut packed| {
        let mut left = long.count;
        while left > 0 {
            let rows = left.min(tile);
            for_each(short, at, packed, &mut |at, packed| {
                // SAFETY: invariants 1 and 3: one block of `rows` iterations of the long level.
                unsafe { kernel(rows, at, long.memory, packed, long.packed, width) }
            });
            at = at.wrapping_offset((rows as isize).wrapping_mul(long.memory));
            packed = packed.wrapping_add(rows * long.packed);
            left -= rows;
        }
    });
}

/// Runs `body` at all places of the loops.
#[inline(always)]
fn for_each(loops: &[Loop], at: *mut u8, packed: *mut u8, body: &mut impl FnMut(*mut u8, *mut u8)) {
    match *loops {
        [] => body(at, packed),
        [one] => rows(one, at, packed, body),
        [outer, inner] => rows(outer, at, packed, &mut |at, packed| {
            rows(inner, at, packed, body);
        }),
        [outer, ref inner @ ..] => rows(outer, at, packed, &mut |at, packed| {
            deep(inner, at, packed, body);
        }),
    }
}

/// [`for_each`] out of line, for three loops and more.
fn deep(loops: &[Loop], at: *mut u8, packed: *mut u8, body: &mut dyn FnMut(*mut u8, *mut u8)) {
    let Some((outer, inner)) = loops.split_first() else {
        return body(at, packed);
    };
    rows(*outer, at, packed, &mut |at, packed| {
        deep(inner, at, packed, body);
    });
}

#[inline(always)]
fn rows(l: Loop, at: *mut u8, packed: *mut u8, body: &mut impl FnMut(*mut u8, *mut u8)) {
    let (mut at, mut packed) = (at, packed);
    for _ in 0..l.count {
        body(at, packed);
        at = at.wrapping_offset(l.memory);
        packed = packed.wrapping_add(l.packed);
    }
}

/// Columns that a [`Transposed`] kernel takes at a time.
const ACROSS: usize = 8;

/// Copies `rows` x [`ACROSS`] blocks: rows lie `row` bytes apart in memory and
/// dense on the packed side, columns `column` apart in memory and
/// `packed_column` on the packed side.
///
/// Unsafe to call: as [`Kernel`].
type Transposed = unsafe fn(
    rows: usize,
    memory: *mut u8,
    row: isize,
    column: isize,
    packed: *mut u8,
    packed_column: usize,
);

fn transposing<D: Direction>(width: usize) -> Option<Transposed> {
    Some(match width {
        1 => across::<D, 1>,
        2 => across::<D, 2>,
        4 => across::<D, 4>,
        8 => across::<D, 8>,
        12 => across::<D, 12>,
        16 => across::<D, 16>,
        24 => across::<D, 24>,
        32 => across::<D, 32>,
        _ => return None,
    })
}

unsafe fn across<D: Direction, const W: usize>(
    rows: usize,
    memory: *mut u8,
    row: isize,
    column: isize,
    packed: *mut u8,
    packed_column: usize,
) {
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..rows {
        for i in 0..ACROSS {
            let memory = memory.wrapping_offset(column.wrapping_mul(i as isize));
            let packed = packed.wrapping_add(packed_column.wrapping_mul(i));
            // SAFETY: invariants 1 and 3: one of the caller's blocks.
            unsafe { copy::<D>(memory, packed, W) };
        }
        memory = memory.wrapping_offset(row);
        packed = packed.wrapping_add(W);
    }
}

/// An outer loop within cache lines over an inner one beyond them, by tiles:
/// lines and pages of the memory side are met once for many columns.
///
/// # Safety
/// As `super::part`.
unsafe fn transposed<D: Direction>(
    tile: Transposed,
    outer: Loop,
    inner: Loop,
    width: usize,
    at: *mut u8,
    packed: *mut u8,
) {
    let single = kernel::<D>(width);
    let mut first = 0;
    while first < inner.count {
        let rows = (inner.count - first).min(TILE_ROWS);
        let mut at = at.wrapping_offset((first as isize).wrapping_mul(inner.memory));
        let mut packed = packed.wrapping_add(first * width);
        let (groups, rest) = (outer.count / ACROSS, outer.count % ACROSS);
        for _ in 0..groups {
            // SAFETY: invariants 1 and 3: these rows of the next columns.
            unsafe { tile(rows, at, inner.memory, outer.memory, packed, outer.packed) };
            at = at.wrapping_offset(outer.memory.wrapping_mul(ACROSS as isize));
            packed = packed.wrapping_add(outer.packed * ACROSS);
        }
        for _ in 0..rest {
            // SAFETY: invariants 1 and 3: these rows of one more column.
            unsafe { single(rows, at, inner.memory, packed, width, width) };
            at = at.wrapping_offset(outer.memory);
            packed = packed.wrapping_add(outer.packed);
        }
        first += rows;
    }
}

/// The kernel for a width, at any strides.
pub(super) fn kernel<D: Direction>(width: usize) -> Kernel {
    if let Some(kernel) = simd::wide::<D>(width) {
        return kernel;
    }
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
        24 => words::<D, 3>,
        28 => fixed::<D, 28>,
        32 => fixed::<D, 32>,
        40 => fixed::<D, 40>,
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

/// Blocks of three words: word by word, since wider accesses would straddle cache
/// lines every other block.
///
/// # Safety
/// As [`Kernel`].
unsafe fn words<D: Direction, const N: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    _width: usize,
) {
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..count {
        for word in 0..N {
            let (memory, packed) = (memory.wrapping_add(8 * word), packed.wrapping_add(8 * word));
            // SAFETY: invariants 1 and 3: a word of one of the caller's blocks.
            unsafe { copy::<D>(memory, packed, 8) };
        }
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}

/// Blocks of a constant width, four at a time.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
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
            // SAFETY: invariants 1 and 3: one of the caller's blocks.
            unsafe { copy::<D>(memory, packed, W) };
        }
        memory = memory.wrapping_offset(memory_stride.wrapping_mul(4));
        packed = packed.wrapping_add(packed_stride.wrapping_mul(4));
        left -= 4;
    }
    for _ in 0..left {
        // SAFETY: invariants 1 and 3: one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, W) };
        memory = memory.wrapping_offset(memory_stride);
        packed = packed.wrapping_add(packed_stride);
    }
}

/// Blocks of `P..=2 * P` bytes: the first and the last `P` of them.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn halves<D: Direction, const P: usize>(
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
        // SAFETY: invariants 1 and 3: the first bytes of one of the caller's blocks.
        unsafe { copy::<D>(memory, packed, P) };
        let (end, packed_end) = (memory.wrapping_add(second), packed.wrapping_add(second));
        // SAFETY: invariants 1 and 3: its last bytes.
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
    let places = (0..count).map(|i| {
        (
            memory.wrapping_offset(memory_stride.wrapping_mul(i as isize)),
            packed.wrapping_add(packed_stride.wrapping_mul(i)),
        )
    });
    // SAFETY: invariants 1 and 3: the caller's blocks.
    unsafe { long::<D>(places, width) }
}
