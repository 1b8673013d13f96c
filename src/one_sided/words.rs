//! Elements in the lower bytes of words, for compare-and-swap.
//!
//! # Invariants
//! 1. Any bytes are a value of a datatype, and none of a dense one is padding.

use osier_datatype::{Basic, Datatype};
use osier_engine::error::{Error, ErrorKind, Result};

/// An element of zeroes.
#[inline]
pub(super) fn zeroed<T: Datatype>() -> T {
    // SAFETY: invariant 1.
    unsafe { std::mem::zeroed() }
}

/// An element that is an integer of at most eight bytes, in memory order.
///
/// # Errors
/// Of kind [`ErrorKind::Datatype`]: it is none.
#[inline]
pub(super) fn word_of<T: Datatype>(value: &T) -> Result<u64> {
    let size = size_of::<T>();
    if !T::BASIC.is_some_and(is_swapped) || size > size_of::<u64>() {
        return Err(Error::new(
            ErrorKind::Datatype,
            "a compare-and-swap of elements that are no integers of at most eight bytes",
        ));
    }
    let mut word = 0u64;
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: invariant 1: `size` bytes of the element, at most the eight of a word.
    unsafe { std::ptr::copy_nonoverlapping(from, (&raw mut word).cast(), size) };
    Ok(word)
}

/// The element of [`word_of`].
#[inline]
pub(super) fn value_of<T: Datatype>(word: u64) -> T {
    debug_assert!(size_of::<T>() <= size_of::<u64>(), "of `word_of`");
    let mut value = zeroed::<T>();
    let bytes = size_of::<T>().min(size_of::<u64>());
    let from = (&raw const word).cast::<u8>();
    // SAFETY: invariant 1: `bytes` is at most the size of each.
    unsafe { std::ptr::copy_nonoverlapping(from, (&raw mut value).cast(), bytes) };
    value
}

/// Whether MPI has compare-and-swap for a type.
fn is_swapped(basic: Basic) -> bool {
    use osier_datatype::BasicKind as K;
    matches!(
        basic.kind(),
        K::Signed | K::Unsigned | K::Boolean | K::Logical | K::Opaque
    )
}
