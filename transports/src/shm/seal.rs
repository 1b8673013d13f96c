//! Check bits of shared words.
//!
//! A rank that writes where it must not overwrites words of rings and mailboxes. The first
//! word of each cell carries a number of 16 bits, by which its reader knows that it is new;
//! sealed, that number is mixed with the other 48 bits, so that of 65536 overwritten words
//! one looks new and one looks old. What else describes a message, its other words, carries
//! check bits where it has room for them.
//!
//! # Invariants
//! 1. A word is sealed by itself: it is stored at once and loaded at once, so a reader never
//!    sees the number of one writing with the bits of another.
//! 2. Memory of zeros, and of ones, is no sealed word of number 0 or 1: cells are sealed
//!    before they are found.
//!
//! # Sources
//! Multiplicative mixing: D. Knuth, "The Art of Computer Programming", vol. 3, section 6.4.

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const START: u64 = 0x5bd1_e995_1b56_c4e9;

/// The upper 48 bits, with a number that is sealed with them.
#[inline(always)]
pub(crate) fn sealed(upper: u64, number: u64) -> u64 {
    upper | (number ^ bits(upper)) & 0xffff
}

/// The number that a word was sealed with.
#[inline(always)]
pub(crate) fn number(word: u64) -> u64 {
    (word ^ bits(word)) & 0xffff
}

#[inline(always)]
fn bits(word: u64) -> u64 {
    ((word >> 16) ^ START).wrapping_mul(MIX) >> 48
}

/// 16 check bits of a word.
#[inline(always)]
pub(crate) fn check(word: u64) -> u64 {
    (word ^ START).wrapping_mul(MIX) >> 48
}

/// Mixes another word into what becomes check bits.
#[inline(always)]
pub(crate) fn mix(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(23) ^ word).wrapping_mul(MIX)
}

/// 16 check bits of bytes that others may change meanwhile.
///
/// # Safety
/// `from` is readable for `bytes` bytes.
pub(crate) unsafe fn check_bytes(from: *const u8, bytes: usize) -> u64 {
    let mut sum = START ^ bytes as u64;
    for at in (0..bytes).step_by(8) {
        let (mut word, n) = ([0u8; 8], (bytes - at).min(8));
        // SAFETY: inside by the caller's contract (invariant 3 of `mapping`: a copy).
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at), word.as_mut_ptr(), n) };
        sum = mix(sum, u64::from_ne_bytes(word));
    }
    sum >> 48
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_sealed_word_is_seen() {
        let mut taken = 0;
        for n in 0..100_000u64 {
            let upper = n.wrapping_mul(MIX) & !0xffff;
            let word = sealed(upper, n & 0xffff);
            assert_eq!(number(word), n & 0xffff);
            // Half of it, as a write of 32 bits does.
            let other = word ^ n.wrapping_mul(START) << 32;
            taken += u32::from(other != word && number(other) == n & 0xffff);
        }
        assert!(taken < 20, "{taken} of 100000");
        for memory in [0, u64::MAX] {
            assert!(!(0..2).contains(&number(memory)));
        }
    }
}
