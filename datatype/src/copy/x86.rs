//! Kernels for x86-64 vectors beyond SSE2, picked when the machine has them.
//!
//! AVX2: the bodies of `strided` and `list` once more, for blocks of 32 bytes and
//! longer, which then move by 32 bytes; longer ones of up to `super::CALL_BYTES` piece
//! by piece. AVX-512: masks. Rows of short blocks have modules of their own: those
//! without anything to prepare (`rows`), and those whose pattern is worth it (`permuted`).
//!
//! Masks keep accesses inside of payload: masked-off bytes are neither read nor
//! written nor can they fault, so gaps may lie outside of the buffer or belong
//! to another thread.
//!
//! The invariants are those of [`super`], by number.

#[path = "x86_permuted.rs"]
mod permuted;
#[path = "x86_rows.rs"]
mod rows;

pub(super) use permuted::permuted;
pub(super) use rows::{dense, gathered};

use super::list::{Done, Equal, Offset, each, equal_fixed, equal_halves};
use super::strided::{Kernel, fixed, halves};
use super::{Direction, copy, in_pieces};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Copies a long block past the caches: whole lines go to memory without being
/// read first. [`fence`] must follow before anybody else may look.
///
/// # Safety
/// As `super::copy`.
pub(super) unsafe fn stream<D: Direction>(memory: *mut u8, packed: *mut u8, length: usize) {
    const LINE: usize = 64;
    let to = if D::PACK { packed } else { memory };
    let head = to.align_offset(LINE).min(length);
    // SAFETY: invariants 1 and 3: the bytes before the first whole line.
    unsafe { copy::<D>(memory, packed, head) };
    let lines = (length - head) / LINE;
    let (mut memory, mut packed) = (memory.wrapping_add(head), packed.wrapping_add(head));
    for _ in 0..lines {
        let (from, to) = match D::PACK {
            true => (memory, packed),
            false => (packed, memory),
        };
        for at in (0..LINE).step_by(16) {
            // SAFETY: invariants 1 and 3: 16 bytes of the line that is read.
            let vector = unsafe { _mm_loadu_si128(from.wrapping_add(at).cast()) };
            // SAFETY: invariants 1 and 3: 16 bytes of the line that is written, aligned to it.
            unsafe { _mm_stream_si128(to.wrapping_add(at).cast(), vector) };
        }
        memory = memory.wrapping_add(LINE);
        packed = packed.wrapping_add(LINE);
    }
    // SAFETY: invariants 1 and 3: the bytes after the last whole line.
    unsafe { copy::<D>(memory, packed, length - head - lines * LINE) }
}

/// Copies by vectors, reading so far ahead of what is written that no read waits for a
/// write that only looks as if it were of the same bytes.
///
/// # Safety
/// As `std::ptr::copy_nonoverlapping`.
#[inline(never)]
pub(super) unsafe fn by_vectors(from: *const u8, to: *mut u8, bytes: usize) {
    const VECTORS: usize = 16;
    const BLOCK: usize = VECTORS * 16;
    let mut at = 0;
    while at + BLOCK <= bytes {
        let mut block = [MaybeUninit::<__m128i>::uninit(); VECTORS];
        for (n, vector) in block.iter_mut().enumerate() {
            // SAFETY: invariants 1 and 3: 16 bytes of a block that is read.
            vector.write(unsafe { _mm_loadu_si128(from.wrapping_add(at + 16 * n).cast()) });
        }
        for (n, vector) in block.iter().enumerate() {
            // SAFETY: invariant 3: all of the block was written just now.
            let vector = unsafe { vector.assume_init() };
            // SAFETY: invariants 1 and 3: 16 bytes of the block that is written.
            unsafe { _mm_storeu_si128(to.wrapping_add(at + 16 * n).cast(), vector) };
        }
        at += BLOCK;
    }
    // SAFETY: invariants 1 and 3: what is left, less than a block.
    unsafe {
        std::ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), bytes - at);
    }
}

/// Orders what [`stream`] wrote before all later stores.
pub(super) fn fence() {
    // SAFETY: invariant 4: every x86-64 machine has SSE.
    unsafe { _mm_sfence() }
}

/// Asks for the line of a place, which need not be valid.
#[inline(always)]
pub(super) fn prefetch(place: *const u8) {
    // SAFETY: invariant 4: every x86-64 machine has SSE; a prefetch reads nothing and
    // does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
}

/// Copies blocks of one length of at least `super::PIECE` bytes.
///
/// # Safety
/// Each place (memory, packed) is as for `super::copy`, with `length` bytes.
pub(super) unsafe fn pieces<D: Direction>(
    places: impl Iterator<Item = (*mut u8, *mut u8)>,
    length: usize,
) {
    #[target_feature(enable = "avx2")]
    unsafe fn wide<D: Direction>(places: impl Iterator<Item = (*mut u8, *mut u8)>, length: usize) {
        for (memory, packed) in places {
            // SAFETY: invariant 1, which the caller upholds.
            unsafe { in_pieces::<D>(memory, packed, length) };
        }
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: invariants 1 and 4: the machine has the features.
        return unsafe { wide::<D>(places, length) };
    }
    for (memory, packed) in places {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { copy::<D>(memory, packed, length) };
    }
}

/// Copies blocks of unequal length.
///
/// # Safety
/// As `super::list::each`.
pub(super) unsafe fn uneven<D: Direction, O: Offset>(
    offsets: &[O],
    lengths: impl Iterator<Item = usize>,
    at: *mut u8,
    packed: *mut u8,
) {
    #[target_feature(enable = "avx2")]
    unsafe fn wide<D: Direction, O: Offset>(
        offsets: &[O],
        lengths: impl Iterator<Item = usize>,
        at: *mut u8,
        packed: *mut u8,
    ) {
        // SAFETY: invariant 1, which the caller upholds.
        unsafe { each::<D, O>(offsets, lengths, at, packed) }
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: invariants 1 and 4: the machine has the features.
        return unsafe { wide::<D, O>(offsets, lengths, at, packed) };
    }
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { each::<D, O>(offsets, lengths, at, packed) }
}

/// # Safety
/// As [`Kernel`]; AVX2.
#[target_feature(enable = "avx2")]
unsafe fn fixed_avx2<D: Direction, const W: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { fixed::<D, W>(count, memory, memory_stride, packed, packed_stride, width) }
}

/// # Safety
/// As [`Kernel`], for blocks of `P..=2 * P` bytes; AVX2.
#[target_feature(enable = "avx2")]
unsafe fn halves_avx2<D: Direction, const P: usize>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { halves::<D, P>(count, memory, memory_stride, packed, packed_stride, width) }
}

/// # Safety
/// As [`Equal`]; AVX2.
#[target_feature(enable = "avx2")]
unsafe fn equal_fixed_avx2<D: Direction, O: Offset, const W: usize>(
    offsets: &[O],
    at: *mut u8,
    packed: *mut u8,
    length: usize,
) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { equal_fixed::<D, O, W>(offsets, at, packed, length) }
}

/// # Safety
/// As [`Equal`], for blocks of `P..=2 * P` bytes; AVX2.
#[target_feature(enable = "avx2")]
unsafe fn equal_halves_avx2<D: Direction, O: Offset, const P: usize>(
    offsets: &[O],
    at: *mut u8,
    packed: *mut u8,
    length: usize,
) {
    // SAFETY: invariant 1, which the caller upholds.
    unsafe { equal_halves::<D, O, P>(offsets, at, packed, length) }
}

/// Picks a kernel of constant width, or of two overlapping halves.
macro_rules! by_width {
    ($width:expr, $fixed:ident, $halves:ident, [$($w:literal)*]) => {
        match $width {
            $($w => Some($fixed!($w)),)*
            33..=63 => Some($halves!(32)),
            65..=127 => Some($halves!(64)),
            129..=256 => Some($halves!(128)),
            _ => None,
        }
    };
}

/// The kernel for blocks of 32 to 256 bytes at any strides.
pub(super) fn wide<D: Direction>(width: usize) -> Option<Kernel> {
    if width < 32 || !is_x86_feature_detected!("avx2") {
        return None;
    }
    macro_rules! whole {
        ($w:literal) => {
            fixed_avx2::<D, $w> as Kernel
        };
    }
    macro_rules! pieces {
        ($p:literal) => {
            halves_avx2::<D, $p> as Kernel
        };
    }
    by_width!(
        width,
        whole,
        pieces,
        [32 36 40 44 48 52 56 64 72 80 88 92 96 104 112 120 128 160 192 256]
    )
}

/// The kernel for listed blocks of one length of 32 to 256 bytes.
pub(super) fn wide_equal<D: Direction, O: Offset>(length: usize) -> Option<Equal<O>> {
    if length < 32 || !is_x86_feature_detected!("avx2") {
        return None;
    }
    macro_rules! whole {
        ($w:literal) => {
            equal_fixed_avx2::<D, O, $w> as Equal<O>
        };
    }
    macro_rules! pieces {
        ($p:literal) => {
            equal_halves_avx2::<D, O, $p> as Equal<O>
        };
    }
    by_width!(
        length,
        whole,
        pieces,
        [32 40 48 56 64 80 92 96 112 128 160 192 256]
    )
}

/// Copies blocks of unequal length, none longer than `longest`, until a whole
/// vector no longer fits before `end`; the caller copies the rest.
///
/// On the packed side every block moves a whole vector: what it writes too much
/// the next block overwrites.
///
/// # Safety
/// As `super::part`; offsets and lengths are those of blocks in the range.
pub(super) unsafe fn masked<D: Direction, O: Offset>(
    longest: usize,
    offsets: &[O],
    lengths: &[u32],
    at: *mut u8,
    packed: *mut u8,
    end: *mut u8,
) -> Done {
    let wide = is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi2");
    match longest {
        // SAFETY: invariants 1 and 4: the machine has the features.
        1..=16 if wide => unsafe { masked_16::<D, O>(offsets, lengths, at, packed, end) },
        // SAFETY: invariants 1 and 4: the machine has the features.
        17..=32 if wide => unsafe { masked_32::<D, O>(offsets, lengths, at, packed, end) },
        // SAFETY: invariants 1 and 4: the machine has the features.
        33..=64 if wide => unsafe { masked_64::<D, O>(offsets, lengths, at, packed, end) },
        _ => Done::default(),
    }
}

macro_rules! masked {
    ($name:ident, $vector:literal, $mask:ty, $load_masked:ident, $store_masked:ident, $load:ident, $store:ident) => {
        /// # Safety
        /// As [`masked()`], with blocks of at most this many bytes.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
        unsafe fn $name<D: Direction, O: Offset>(
            offsets: &[O],
            lengths: &[u32],
            at: *mut u8,
            packed: *mut u8,
            end: *mut u8,
        ) -> Done {
            let mut bytes = 0;
            let Some(room) = (end as usize - packed as usize).checked_sub($vector) else {
                return Done::default();
            };
            let mut blocks = 0;
            for (offset, &length) in offsets.iter().zip(lengths) {
                if bytes > room {
                    break;
                }
                let mask = _bzhi_u64(u64::MAX, length) as $mask;
                let memory = at.wrapping_offset(offset.bytes());
                let packed = packed.wrapping_add(bytes);
                if D::PACK {
                    // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                    let block = unsafe { $load_masked(mask, memory.cast()) };
                    // SAFETY: invariants 1 and 6: a vector fits before the end.
                    unsafe { $store(packed.cast(), block) };
                } else {
                    // SAFETY: invariants 1 and 6: a vector fits before the end.
                    let block = unsafe { $load(packed.cast()) };
                    // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                    unsafe { $store_masked(memory.cast(), mask, block) };
                }
                bytes += length as usize;
                blocks += 1;
            }
            Done { blocks, bytes }
        }
    };
}

masked!(
    masked_16,
    16,
    __mmask16,
    _mm_maskz_loadu_epi8,
    _mm_mask_storeu_epi8,
    _mm_loadu_si128,
    _mm_storeu_si128
);
masked!(
    masked_32,
    32,
    __mmask32,
    _mm256_maskz_loadu_epi8,
    _mm256_mask_storeu_epi8,
    _mm256_loadu_si256,
    _mm256_storeu_si256
);
masked!(
    masked_64,
    64,
    __mmask64,
    _mm512_maskz_loadu_epi8,
    _mm512_mask_storeu_epi8,
    _mm512_loadu_si512,
    _mm512_storeu_si512
);
