//! Hashes of numbered values: checksums that do not depend on how values are spread over
//! ranks, and test data that each rank makes for itself.

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014), one step ahead so that 0 is
/// no fixed point.
#[inline]
pub fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A sum of hashes of (number, bits) over values that are numbered from `first`: the sum of
/// such sums hashes all values, in whatever order and however they are cut.
pub fn checksum(values: &[f64], first: u64) -> u64 {
    let numbered = values.iter().zip(first..);
    numbered.fold(0, |sum, (value, number)| {
        sum.wrapping_add(mix(mix(number) ^ value.to_bits()))
    })
}
