//! Pack and unpack: loops over the canonical form, no interpreter per block.
//!
//! ```text
//! range of packed bytes -> first part | whole iterations | last part
//!                             |              |                |
//!                          one level in   kernels          one level in
//! ```
//!
//! The range is split along the outermost level; only its ragged ends descend,
//! the whole iterations between run in `nest` and `list`, which pick a kernel
//! with a constant width once per call. Pack and unpack share all of it: a
//! [`Direction`] says which side is read.
//!
//! # Invariants
//! 1. The caller's memory holds every byte that the form touches for the
//!    packed range, and `packed` as many bytes as the range is long; they do
//!    not overlap. Each function has this as its contract, for its part of the range, and
//!    passes it on; who enters (`Layout`) has it from its own caller.
//! 2. Kernels read and write payload bytes only, on the memory side. On the
//!    packed side they stay within the range.
//! 3. A range is split into iterations, bodies, blocks and pieces of blocks that lie side by
//!    side on the packed side, each with the place that the form gives it in memory; so
//!    invariant 1 holds for each part. What a loop takes together ends with the range.
//! 4. A kernel is called for what it was picked for: a constant width is the blocks' width,
//!    halves `P` are of blocks of `P..=2 * P` bytes, vectors and masks of features that
//!    the machine was found to have.
//! 5. A mask has a bit for each byte or element of the caller's blocks and no other: what is
//!    masked off is neither read nor written, and does not fault.
//! 6. On the packed side a whole vector is moved only where it ends within the range; what
//!    packing writes too much belongs to later blocks of the range, which come after it.

mod list;
#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "portable.rs")]
mod simd;
mod strided;

use crate::form::{Body, Form, Level, reach};
use crate::list::Offsets;
use std::ops::Range;

/// Which side is read and which is written.
pub(crate) trait Direction: Copy + 'static {
    /// Whether memory is read and the packed side written.
    const PACK: bool;
}

/// Memory to packed bytes.
#[derive(Clone, Copy)]
pub(crate) struct Pack;

/// Packed bytes to memory.
#[derive(Clone, Copy)]
pub(crate) struct Unpack;

impl Direction for Pack {
    const PACK: bool = true;
}

impl Direction for Unpack {
    const PACK: bool = false;
}

/// Copies `length` bytes in the direction.
///
/// # Safety
/// `memory` and `packed` are valid for `length` bytes and do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    if D::PACK {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { copy_bytes(memory, packed, length) }
    } else {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { copy_bytes(packed, memory, length) }
    }
}

/// From here on the C library may copy by `rep movsb`.
const MOVED_BYTES: usize = 2048;

/// Whether memory lies a little ahead of other memory within its page, as it does where
/// one was allocated behind the other: where `rep movsb` takes ten to fifteen times as
/// long as vectors do on some processors (docs/decisions/0123).
#[inline(always)]
fn just_ahead(to: *const u8, from: *const u8) -> bool {
    const PAGE: usize = 4096;
    const VECTOR: usize = 32;
    let ahead = to.addr().wrapping_sub(from.addr()) % PAGE;
    (1..VECTOR).contains(&ahead)
}

/// Copies bytes, quickly for all positions of both ends within their pages.
///
/// # Safety
/// As `std::ptr::copy_nonoverlapping`.
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > MOVED_BYTES && just_ahead(to, from) {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { simd::by_vectors(from, to, bytes) }
    } else {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
    }
}

/// Bytes of long blocks from which a call copies past the caches. Below, what was
/// written is in a cache for whoever reads it next, which is worth more than the
/// lines that are not read first (docs/decisions/0013).
const STREAM_BYTES: usize = 16 << 20;
/// Blocks up to here are copied by vectors where they stand: a call of `memcpy` for
/// each costs a tenth to a quarter of their time (docs/performance.md). Longer ones are
/// worth what it knows about the machine.
const CALL_BYTES: usize = 3 << 10;

/// Long blocks, one after the other, by the way that suits their sum.
///
/// # Safety
/// Each place (memory, packed) is as for [`copy`], with `length` bytes.
unsafe fn long<D: Direction>(
    places: impl ExactSizeIterator<Item = (*mut u8, *mut u8)>,
    length: usize,
) {
    if places.len().saturating_mul(length) < STREAM_BYTES {
        if places.len() > 1 && (PIECE..=CALL_BYTES).contains(&length) {
            // SAFETY: invariants 1 and 4: no block is shorter than a piece.
            return unsafe { simd::pieces::<D>(places, length) };
        }
        for (memory, packed) in places {
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { copy::<D>(memory, packed, length) };
        }
        return;
    }
    for (memory, packed) in places {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { simd::stream::<D>(memory, packed, length) };
    }
    simd::fence();
}

/// Bytes that [`in_pieces`] moves at a time.
const PIECE: usize = 128;

/// A block of at least [`PIECE`] bytes: vectors that are aligned where they are written
/// (others straddle lines, which costs a store twice), between a first and a last one
/// that may overlap them.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn in_pieces<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    const VECTOR: usize = 32;
    let to = if D::PACK { packed } else { memory };
    let mut at = to.addr().wrapping_neg() % VECTOR;
    if at > 0 {
        // SAFETY: invariants 1 and 3: the first bytes of the block.
        unsafe { copy::<D>(memory, packed, VECTOR) };
    }
    while at + PIECE <= length {
        // SAFETY: invariants 1 and 3: a piece of the block.
        unsafe { copy::<D>(memory.wrapping_add(at), packed.wrapping_add(at), PIECE) };
        at += PIECE;
    }
    while at + VECTOR <= length {
        // SAFETY: invariants 1 and 3: a vector of the block.
        unsafe { copy::<D>(memory.wrapping_add(at), packed.wrapping_add(at), VECTOR) };
        at += VECTOR;
    }
    if at < length {
        let last = length - VECTOR;
        // SAFETY: invariants 1 and 3: the last bytes of the block.
        unsafe { copy::<D>(memory.wrapping_add(last), packed.wrapping_add(last), VECTOR) };
    }
}

/// Levels that fit on the stack; deeper nests go through the heap.
const STACK_LEVELS: usize = 8;

/// Copies the packed bytes `range` of `count` forms, `extent` bytes apart.
///
/// # Safety
/// Invariant 1, with `memory` as the origin and `packed` as the place of the
/// first byte of the range; the range ends within `count * form.bytes`.
pub(crate) unsafe fn instances<D: Direction>(
    form: &Form,
    count: usize,
    extent: isize,
    memory: *mut u8,
    range: Range<usize>,
    packed: *mut u8,
) {
    if range.is_empty() {
        return;
    }
    let at = memory.wrapping_offset(form.base);
    if let (true, Body::Block) = (form.levels.is_empty(), &form.body)
        && (count == 1 || isize::try_from(form.body_bytes) == Ok(extent))
    {
        let at = at.wrapping_add(range.start);
        // SAFETY: invariants 1 and 3: all instances are one run, so these bytes are payload.
        return unsafe { long::<D>([(at, packed)].into_iter(), range.len()) };
    }
    if count == 1 {
        // SAFETY: invariant 1, which the caller upholds.
        return unsafe { part::<D>(&form.levels, form, at, range, packed) };
    }
    let outer = Level {
        count,
        stride: extent,
    };
    let depth = form.levels.len();
    if depth < STACK_LEVELS {
        let mut levels = [outer; STACK_LEVELS];
        levels[1..=depth].copy_from_slice(&form.levels);
        let mut levels = &mut levels[..=depth];
        if depth > 0 && reach(levels[1]) == extent as i128 {
            levels[1].count *= count;
            levels = &mut levels[1..];
        }
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { part::<D>(levels, form, at, range, packed) }
    } else {
        let levels: Vec<Level> = std::iter::once(outer)
            .chain(form.levels.iter().copied())
            .collect();
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { part::<D>(&levels, form, at, range, packed) }
    }
}

/// Packed bytes of a body under these levels.
fn bytes(levels: &[Level], form: &Form) -> usize {
    levels
        .iter()
        .fold(form.body_bytes, |bytes, level| bytes * level.count)
}

/// Copies the packed bytes `range` of the body of `form` under `levels`.
///
/// # Safety
/// As [`instances`], with `at` as the place of the body's offset 0.
unsafe fn part<D: Direction>(
    levels: &[Level],
    form: &Form,
    at: *mut u8,
    range: Range<usize>,
    packed: *mut u8,
) {
    let Some((level, inner)) = levels.split_first() else {
        // SAFETY: invariant 1, which the caller upholds.
        return unsafe { body_part::<D>(form, at, range, packed) };
    };
    let step = bytes(inner, form);
    let place = |i: usize| at.wrapping_offset((i as isize).wrapping_mul(level.stride));
    let mut packed = packed;
    let (mut first, skip) = (range.start / step, range.start % step);
    let (last, rest) = (range.end / step, range.end % step);
    if skip > 0 {
        let end = step.min(range.end - first * step);
        // SAFETY: invariants 1 and 3: iteration `first` holds these bytes.
        unsafe { part::<D>(inner, form, place(first), skip..end, packed) };
        packed = packed.wrapping_add(end - skip);
        first += 1;
    }
    if first < last {
        let count = last - first;
        if inner.len() + 1 < STACK_LEVELS {
            let mut whole = [*level; STACK_LEVELS];
            whole[0].count = count;
            whole[1..=inner.len()].copy_from_slice(inner);
            let levels = &whole[..=inner.len()];
            // SAFETY: invariants 1 and 3: iterations `first..last` are in the range.
            unsafe { all::<D>(levels, form, place(first), packed) };
            packed = packed.wrapping_add(count * step);
        } else {
            for i in first..last {
                // SAFETY: invariants 1 and 3: iteration `i` is in the range.
                unsafe { all::<D>(inner, form, place(i), packed) };
                packed = packed.wrapping_add(step);
            }
        }
    }
    if rest > 0 && first <= last {
        // SAFETY: invariants 1 and 3: iteration `last` holds these bytes.
        unsafe { part::<D>(inner, form, place(last), 0..rest, packed) };
    }
}

/// Copies a range of one body.
///
/// # Safety
/// As [`part`].
unsafe fn body_part<D: Direction>(form: &Form, at: *mut u8, range: Range<usize>, packed: *mut u8) {
    match &form.body {
        Body::Block => {
            let at = at.wrapping_add(range.start);
            // SAFETY: invariants 1 and 3: the block holds these bytes.
            unsafe { copy::<D>(at, packed, range.len()) }
        }
        // SAFETY: invariant 1, which the caller upholds.
        Body::List(blocks) => unsafe { list::part::<D>(blocks, at, range, packed) },
        Body::Each(offsets, inner) => {
            let mut packed = packed;
            let mut next = range.start;
            while next < range.end {
                let (i, skip) = (next / inner.bytes, next % inner.bytes);
                let whole = (range.end - next) / inner.bytes;
                if skip == 0 && whole > 0 {
                    // SAFETY: invariants 1 and 3: the forms at offsets `i..i + whole` are in the range.
                    unsafe { each::<D>(offsets, inner, i..i + whole, at, packed) };
                    packed = packed.wrapping_add(whole * inner.bytes);
                    next += whole * inner.bytes;
                    continue;
                }
                let end = inner.bytes.min(skip + range.end - next);
                let place = at.wrapping_offset(offsets.at(i));
                // SAFETY: invariants 1 and 3: the form at offset `i` holds these bytes.
                unsafe { instances::<D>(inner, 1, 0, place, skip..end, packed) };
                packed = packed.wrapping_add(end - skip);
                next += end - skip;
            }
        }
        Body::Sequence(sequence) => {
            let mut packed = packed;
            let mut next = range.start;
            let mut i = sequence
                .bytes_before
                .partition_point(|&before| before <= next)
                - 1;
            while next < range.end {
                let part = &sequence.parts[i];
                let skip = next - sequence.bytes_before[i];
                let end = part.bytes.min(skip + range.end - next);
                // SAFETY: invariants 1 and 3: part `i` holds these bytes.
                unsafe { instances::<D>(part, 1, 0, at, skip..end, packed) };
                packed = packed.wrapping_add(end - skip);
                next += end - skip;
                i += 1;
            }
        }
    }
}

/// Copies whole forms at listed offsets.
///
/// # Safety
/// As [`part`].
unsafe fn each<D: Direction>(
    offsets: &Offsets,
    inner: &Form,
    range: Range<usize>,
    at: *mut u8,
    packed: *mut u8,
) {
    let at = at.wrapping_offset(inner.base);
    let mut packed = packed;
    if let ([level], Body::Block) = (inner.levels.as_slice(), &inner.body) {
        let width = inner.body_bytes;
        let kernel = strided::dense::<D>(level.count, width, level.stride);
        for i in range {
            let place = at.wrapping_offset(offsets.at(i));
            // SAFETY: invariants 1, 3 and 4: the blocks of form `i`; the kernel is for them.
            unsafe { kernel(level.count, place, level.stride, packed, width, width) };
            packed = packed.wrapping_add(inner.bytes);
        }
        return;
    }
    for i in range {
        let place = at.wrapping_offset(offsets.at(i));
        // SAFETY: invariants 1 and 3: form `i`.
        unsafe { all::<D>(&inner.levels, inner, place, packed) };
        packed = packed.wrapping_add(inner.bytes);
    }
}

/// Copies the body of `form` under `levels`, all of it.
///
/// # Safety
/// As [`part`].
unsafe fn all<D: Direction>(levels: &[Level], form: &Form, at: *mut u8, packed: *mut u8) {
    match &form.body {
        // SAFETY: invariant 1, which the caller upholds.
        Body::Block => unsafe { strided::nest::<D>(levels, form.body_bytes, at, packed) },
        Body::List(blocks) if let Some(along) = list::along(levels, blocks) => {
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { list::columns::<D>(levels, along, blocks, at, packed) }
        }
        _ => {
            let Some((level, inner)) = levels.split_first() else {
                // SAFETY: invariant 1, which the caller upholds.
                return unsafe { body_part::<D>(form, at, 0..form.body_bytes, packed) };
            };
            let step = bytes(inner, form);
            let (mut at, mut packed) = (at, packed);
            for _ in 0..level.count {
                // SAFETY: invariants 1 and 3: one iteration of the level.
                unsafe { all::<D>(inner, form, at, packed) };
                at = at.wrapping_offset(level.stride);
                packed = packed.wrapping_add(step);
            }
        }
    }
}

#[cfg(test)]
mod tests;
