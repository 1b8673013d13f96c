//! Rows of short blocks, dense on the packed side: at distances that a constant pattern
//! serves, and words at any distance. Nothing is prepared, so a row may be short.
//!
//! The invariants are those of `super::super`, by number.

use super::super::strided::{Kernel, fixed};
use super::super::{Direction, Pack};
use std::arch::x86_64::*;

/// A kernel for blocks at twice their width from each other, or side by side in
/// reverse order, packed densely.
pub(in super::super) fn dense<D: Direction>(width: usize, memory_stride: isize) -> Option<Kernel> {
    if memory_stride == -(width as isize) && is_x86_feature_detected!("avx2") {
        return match width {
            1 => Some(reversed_1::<D>),
            2 => Some(reversed_2::<D>),
            4 => Some(reversed_4::<D>),
            8 => Some(reversed_8::<D>),
            16 => Some(reversed_16::<D>),
            _ => None,
        };
    }
    if memory_stride != 2 * width as isize || !is_x86_feature_detected!("avx512bw") {
        return None;
    }
    match width {
        1 => Some(every_second_1::<D>),
        2 => Some(every_second_2::<D>),
        4 => Some(every_second_4::<D>),
        8 => Some(every_second_8::<D>),
        _ => None,
    }
}

/// Distances at which the lines of a row share few sets of a cache: there reads that
/// wait for each other cost more than the stores that they save.
const CONFLICTING: usize = 4096;

/// A kernel for packing words at any distance: several are read before they are
/// written as vectors, so that more of them are under way where each read misses.
pub(in super::super) fn gathered<D: Direction>(
    width: usize,
    memory_stride: isize,
) -> Option<Kernel> {
    if !D::PACK || memory_stride.unsigned_abs().is_multiple_of(CONFLICTING) {
        return None;
    }
    match width {
        4 => Some(gathered_4),
        8 => Some(gathered_8),
        _ => None,
    }
}

/// Every second element of 1, 2 or 4 bytes: a vector of memory is read under a
/// mask and narrowed to half a vector, or widened and written under a mask.
macro_rules! every_second {
    ($name:ident, $width:literal, $mask:literal, $load:ident, $narrow:ident, $widen:ident, $store:ident) => {
        /// # Safety
        /// As [`Kernel`], with strides of one and two widths; AVX-512 F and BW.
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn $name<D: Direction>(
            count: usize,
            memory: *mut u8,
            memory_stride: isize,
            packed: *mut u8,
            packed_stride: usize,
            width: usize,
        ) {
            const STEP: usize = 32 / $width;
            let (mut memory, mut packed) = (memory, packed);
            for _ in 0..count / STEP {
                if D::PACK {
                    // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                    let wide = unsafe { $load($mask, memory.cast()) };
                    // SAFETY: invariants 1 and 6: as many blocks fill half a vector.
                    unsafe { _mm256_storeu_si256(packed.cast(), $narrow(wide)) };
                } else {
                    // SAFETY: invariants 1 and 6: as many blocks fill half a vector.
                    let narrow = unsafe { _mm256_loadu_si256(packed.cast()) };
                    // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
                    unsafe { $store(memory.cast(), $mask, $widen(narrow)) };
                }
                memory = memory.wrapping_add(64);
                packed = packed.wrapping_add(32);
            }
            let rest = count % STEP;
            // SAFETY: invariants 1 and 3: the caller's last blocks.
            unsafe { fixed::<D, $width>(rest, memory, memory_stride, packed, packed_stride, width) }
        }
    };
}

every_second!(
    every_second_1,
    1,
    0x5555_5555_5555_5555,
    _mm512_maskz_loadu_epi8,
    _mm512_cvtepi16_epi8,
    _mm512_cvtepu8_epi16,
    _mm512_mask_storeu_epi8
);
every_second!(
    every_second_2,
    2,
    0x5555_5555,
    _mm512_maskz_loadu_epi16,
    _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32,
    _mm512_mask_storeu_epi16
);
every_second!(
    every_second_4,
    4,
    0x5555,
    _mm512_maskz_loadu_epi32,
    _mm512_cvtepi64_epi32,
    _mm512_cvtepu32_epi64,
    _mm512_mask_storeu_epi32
);

/// Every second element of 8 bytes: two vectors of memory to one packed.
///
/// # Safety
/// As [`Kernel`], with strides of one and two widths; AVX-512 F.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn every_second_8<D: Direction>(
    count: usize,
    memory: *mut u8,
    memory_stride: isize,
    packed: *mut u8,
    packed_stride: usize,
    width: usize,
) {
    const EVEN: __mmask8 = 0x55;
    let evens = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    let lower = _mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0);
    let upper = _mm512_setr_epi64(4, 0, 5, 0, 6, 0, 7, 0);
    let (mut memory, mut packed) = (memory, packed);
    for _ in 0..count / 8 {
        let second = memory.wrapping_add(64);
        if D::PACK {
            // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
            let a = unsafe { _mm512_maskz_loadu_epi64(EVEN, memory.cast()) };
            // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
            let b = unsafe { _mm512_maskz_loadu_epi64(EVEN, second.cast()) };
            let dense = _mm512_permutex2var_epi64(a, evens, b);
            // SAFETY: invariants 1 and 6: eight blocks fill a vector.
            unsafe { _mm512_storeu_si512(packed.cast(), dense) };
        } else {
            // SAFETY: invariants 1 and 6: eight blocks fill a vector.
            let dense = unsafe { _mm512_loadu_si512(packed.cast()) };
            let (a, b) = (
                _mm512_permutexvar_epi64(lower, dense),
                _mm512_permutexvar_epi64(upper, dense),
            );
            // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
            unsafe { _mm512_mask_storeu_epi64(memory.cast(), EVEN, a) };
            // SAFETY: invariants 1 and 5: the mask leaves the caller's blocks.
            unsafe { _mm512_mask_storeu_epi64(second.cast(), EVEN, b) };
        }
        memory = memory.wrapping_add(128);
        packed = packed.wrapping_add(64);
    }
    let rest = count % 8;
    // SAFETY: invariants 1 and 3: the caller's last blocks.
    unsafe { fixed::<D, 8>(rest, memory, memory_stride, packed, packed_stride, width) }
}

/// Vectors of blocks side by side in reverse order: each is turned around as a whole.
macro_rules! reversed {
    ($name:ident, $width:literal, $vector:ident, $turned:expr) => {
        /// # Safety
        /// As [`Kernel`], with strides of minus one and one width; AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn $name<D: Direction>(
            count: usize,
            memory: *mut u8,
            memory_stride: isize,
            packed: *mut u8,
            packed_stride: usize,
            width: usize,
        ) {
            const VECTOR: usize = 32;
            const STEP: usize = VECTOR / $width;
            // A vector of memory begins with the last of its blocks.
            let mut end = memory.wrapping_add($width);
            let mut packed = packed;
            for _ in 0..count / STEP {
                let low = end.wrapping_sub(VECTOR);
                let (from, to) = if D::PACK {
                    (low, packed)
                } else {
                    (packed, low)
                };
                // SAFETY: invariants 1 and 3: the bytes of `STEP` blocks.
                let $vector = unsafe { _mm256_loadu_si256(from.cast()) };
                // SAFETY: invariants 1 and 3: the bytes of `STEP` blocks.
                unsafe { _mm256_storeu_si256(to.cast(), $turned) };
                end = low;
                packed = packed.wrapping_add(VECTOR);
            }
            let memory = end.wrapping_sub($width);
            let rest = count % STEP;
            // SAFETY: invariants 1 and 3: the caller's last blocks.
            unsafe { fixed::<D, $width>(rest, memory, memory_stride, packed, packed_stride, width) }
        }
    };
}

/// Turns the halves of a vector around, and each by the 16 places given.
macro_rules! turned {
    ($vector:ident, $($place:literal)*) => {
        _mm256_permute4x64_epi64::<0b01_00_11_10>(_mm256_shuffle_epi8(
            $vector,
            _mm256_broadcastsi128_si256(_mm_setr_epi8($($place),*)),
        ))
    };
}

reversed!(
    reversed_1,
    1,
    v,
    turned!(v, 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0)
);
reversed!(
    reversed_2,
    2,
    v,
    turned!(v, 14 15 12 13 10 11 8 9 6 7 4 5 2 3 0 1)
);
reversed!(
    reversed_4,
    4,
    v,
    turned!(v, 12 13 14 15 8 9 10 11 4 5 6 7 0 1 2 3)
);
reversed!(
    reversed_8,
    8,
    v,
    _mm256_permute4x64_epi64::<0b00_01_10_11>(v)
);
reversed!(
    reversed_16,
    16,
    v,
    _mm256_permute4x64_epi64::<0b01_00_11_10>(v)
);

/// Words that are read one by one and written by vectors.
macro_rules! gathered {
    ($name:ident, $width:literal, $vectors:literal, $int:ty, $word:ident, $vector:expr) => {
        /// # Safety
        /// As [`Kernel`], for packing, with the packed blocks dense; SSE2.
        #[target_feature(enable = "sse2")]
        unsafe fn $name(
            count: usize,
            memory: *mut u8,
            memory_stride: isize,
            packed: *mut u8,
            packed_stride: usize,
            width: usize,
        ) {
            const VECTOR: usize = 16;
            const VECTORS: usize = $vectors;
            const STEP: usize = VECTORS * VECTOR / $width;
            let (mut memory, mut packed) = (memory, packed);
            for _ in 0..count / STEP {
                let vectors: [__m128i; VECTORS] = std::array::from_fn(|n| {
                    let first = n * VECTOR / $width;
                    let $word = |i: usize| {
                        let i = (first + i) as isize;
                        let block = memory.wrapping_offset(memory_stride.wrapping_mul(i));
                        // SAFETY: invariants 1 and 3: one of the caller's blocks.
                        unsafe { block.cast::<$int>().read_unaligned() }
                    };
                    $vector
                });
                for (n, vector) in vectors.into_iter().enumerate() {
                    let to = packed.wrapping_add(n * VECTOR);
                    // SAFETY: invariants 1 and 3: the bytes of the blocks that were read.
                    unsafe { _mm_storeu_si128(to.cast(), vector) };
                }
                memory = memory.wrapping_offset(memory_stride.wrapping_mul(STEP as isize));
                packed = packed.wrapping_add(VECTORS * VECTOR);
            }
            let rest = count % STEP;
            // SAFETY: invariants 1 and 3: the caller's last blocks.
            unsafe {
                fixed::<Pack, $width>(rest, memory, memory_stride, packed, packed_stride, width)
            }
        }
    };
}

gathered!(
    gathered_4,
    4,
    2,
    i32,
    word,
    _mm_setr_epi32(word(0), word(1), word(2), word(3))
);
gathered!(
    gathered_8,
    8,
    8,
    i64,
    word,
    _mm_set_epi64x(word(1), word(0))
);
