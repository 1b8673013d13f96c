//! Numbers that depend on a seed alone.

/// Numbers that a seed decides.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// A number that depends on all of `from`.
pub fn mix(from: impl IntoIterator<Item = u64>) -> u64 {
    from.into_iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^ (hash >> 32)
    })
}
