//! Random numbers that depend on a seed only.

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// SplitMix64, or no dice at all.
#[derive(Clone)]
pub(super) enum Rng {
    Seeded(u64),
    /// Always the last: for runs whose acts leave nothing to chance.
    Last,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self::Seeded(mix(seed))
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let Self::Seeded(state) = self else {
            return end - 1;
        };
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mix(*state)) * end as u128) >> 64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
