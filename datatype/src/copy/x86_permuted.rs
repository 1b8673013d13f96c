//! Rows of short blocks at short distances: a vector of memory holds several whole
//! blocks, which one permutation puts side by side.
//!
//! ```text
//! memory  |a a . . . b b . . . c c . . .|   a vector, read under a mask
//! packed  |a a b b c c|                     or |c c b b a a| where the row goes backwards
//! ```
//!
//! Up to four vectors fill one of the packed side. Unpacking is the same backwards:
//! each vector is permuted out of the packed one and written under the mask.
//!
//! The invariants are those of `super::super`, by number.

use super::super::Direction;
use std::arch::x86_64::*;

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Gaps that are worth it. With wider ones a vector holds too few blocks; and a masked
/// write costs more than the blocks' own where it misses the caches.
const GAP_PACKED: usize = 32;
const GAP_UNPACKED: usize = 16;
/// Blocks of a row that are worth preparing a pattern of words, or of bytes.
const WORTH_WORDS: usize = 192;
const WORTH_BYTES: usize = 512;

/// Copies the first blocks of a row, as far as whole vectors go, and returns how many.
/// None of a row that has no pattern or is not worth one.
///
/// # Safety
/// As [`Kernel`](super::super::strided::Kernel), with the packed blocks dense.
#[inline]
pub(in super::super) unsafe fn permuted<D: Direction>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    width: usize,
) -> usize {
    if count < WORTH_WORDS {
        return 0;
    }
    let distance = memory_stride.unsigned_abs();
    let widest = if D::PACK { GAP_PACKED } else { GAP_UNPACKED };
    let near = distance >= width && distance - width <= widest && distance + width <= VECTOR;
    if !near || !is_x86_feature_detected!("avx512f") {
        return 0;
    }
    if (width | distance).is_multiple_of(4) {
        // SAFETY: invariants 1 and 4: the machine has the features.
        return unsafe { words::<D>(count, memory, memory_stride, packed, width) };
    }
    if count < WORTH_BYTES
        || !is_x86_feature_detected!("avx512bw")
        || !is_x86_feature_detected!("avx512vbmi")
    {
        return 0;
    }
    // SAFETY: invariants 1 and 4: the machine has the features.
    unsafe { bytes::<D>(count, memory, memory_stride, packed, width) }
}

/// Which element of a vector is which one of the packed blocks.
struct Pattern<const LANES: usize> {
    /// Blocks of one vector.
    blocks: usize,
    /// Elements of these blocks.
    elements: usize,
    /// The elements of memory that belong to a block.
    mask: u64,
    /// Of each packed element its place in memory.
    from: [u8; LANES],
    /// Of each element of memory its place among the packed ones.
    to: [u8; LANES],
}

impl<const LANES: usize> Pattern<LANES> {
    /// Of blocks of `width` elements.
    fn new(width: usize, memory_stride: isize) -> Self {
        let distance = memory_stride.unsigned_abs();
        let blocks = (LANES - width) / distance + 1;
        let (mut mask, mut from, mut to) = (0, [0; LANES], [0; LANES]);
        let mut packed = 0;
        for i in 0..blocks {
            let block = if memory_stride < 0 { blocks - 1 - i } else { i };
            for i in 0..width {
                let place = block * distance + i;
                mask |= 1 << place;
                from[packed] = place as u8;
                to[place] = packed as u8;
                packed += 1;
            }
        }
        Self {
            blocks,
            elements: packed,
            mask,
            from,
            to,
        }
    }
}

macro_rules! permuted {
    (
        $name:ident, $steps:ident, $features:literal, $unit:literal, $int:ty, $mask:ty,
        $load:ident, $store:ident, $permute:ident, $merge:ident
    ) => {
        /// # Safety
        /// As [`permuted`](permuted()), for blocks and distances of whole elements; the features.
        unsafe fn $name<D: Direction>(
            count: usize,
            memory: *mut u8,
            memory_stride: isize,
            packed: *mut u8,
            width: usize,
        ) -> usize {
            const LANES: usize = VECTOR / $unit;
            let pattern = Pattern::<LANES>::new(width / $unit, memory_stride / $unit);
            let steps = match LANES / pattern.elements {
                0..2 => $steps::<D, 1>,
                2..4 => $steps::<D, 2>,
                4.. => $steps::<D, 4>,
            };
            // SAFETY: invariants 1 and 4, which the caller upholds.
            unsafe { steps(&pattern, count, memory, memory_stride, packed) }
        }

        /// Fills each packed vector from `N` of memory, or the other way round.
        ///
        /// # Safety
        /// As [`permuted`](permuted()), with the pattern of the row; the features.
        #[target_feature(enable = $features)]
        unsafe fn $steps<D: Direction, const N: usize>(
            pattern: &Pattern<{ VECTOR / $unit }>,
            count: usize,
            memory: *mut u8,
            memory_stride: isize,
            packed: *mut u8,
        ) -> usize {
            const LANES: usize = VECTOR / $unit;
            let Pattern {
                blocks, elements, ..
            } = *pattern;
            let mask = pattern.mask as $mask;
            let (mut places, mut kept) = ([_mm512_setzero_si512(); N], [0 as $mask; N]);
            for n in 0..N {
                let mut of: [$int; LANES] = [0; LANES];
                for (at, place) in of.iter_mut().enumerate() {
                    if !D::PACK {
                        *place = (pattern.to[at] as usize + n * elements) as $int;
                    } else if let Some(at) =
                        at.checked_sub(n * elements).filter(|&at| at < elements)
                    {
                        *place = pattern.from[at] as $int;
                        kept[n] |= 1 << (n * elements + at);
                    }
                }
                // SAFETY: invariant 4: a vector is as large as the array.
                places[n] = unsafe { _mm512_loadu_si512(of.as_ptr().cast()) };
            }
            let bytes = elements * $unit;
            let Some(room) = (count / blocks * bytes).checked_sub(VECTOR) else {
                return 0;
            };
            let steps = (room / (N * bytes) + 1).min(count / (N * blocks));
            let stride = memory_stride.wrapping_mul(blocks as isize);
            // A vector of a row that goes backwards begins with the last of its blocks.
            let low = stride.wrapping_sub(memory_stride).min(0);
            let (mut memory, mut packed) = (memory.wrapping_offset(low), packed);
            for _ in 0..steps {
                let next = |n: usize| memory.wrapping_offset(stride.wrapping_mul(n as isize));
                if D::PACK {
                    let mut dense = _mm512_setzero_si512();
                    for n in 0..N {
                        // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                        let vector = unsafe { $load(mask, next(n).cast()) };
                        dense = $merge(dense, kept[n], places[n], vector);
                    }
                    if N * bytes <= VECTOR / 2 {
                        // SAFETY: invariants 1 and 6: a whole vector fits before the end.
                        unsafe {
                            _mm256_storeu_si256(packed.cast(), _mm512_castsi512_si256(dense))
                        };
                    } else {
                        // SAFETY: invariants 1 and 6: a whole vector fits before the end.
                        unsafe { _mm512_storeu_si512(packed.cast(), dense) };
                    }
                } else {
                    // SAFETY: invariants 1 and 6: a whole vector fits before the end.
                    let dense = unsafe { _mm512_loadu_si512(packed.cast()) };
                    for n in 0..N {
                        let vector = $permute(places[n], dense);
                        // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                        unsafe { $store(next(n).cast(), mask, vector) };
                    }
                }
                memory = next(N);
                packed = packed.wrapping_add(N * bytes);
            }
            steps * N * blocks
        }
    };
}

permuted!(
    words,
    word_steps,
    "avx512f",
    4,
    u32,
    __mmask16,
    _mm512_maskz_loadu_epi32,
    _mm512_mask_storeu_epi32,
    _mm512_permutexvar_epi32,
    _mm512_mask_permutexvar_epi32
);
permuted!(
    bytes,
    byte_steps,
    "avx512f,avx512bw,avx512vbmi",
    1,
    u8,
    __mmask64,
    _mm512_maskz_loadu_epi8,
    _mm512_mask_storeu_epi8,
    _mm512_permutexvar_epi8,
    _mm512_mask_permutexvar_epi8
);
