//! Random numbers that only depend on a seed.
//!
//! # Sources
//! SplitMix64: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom
//! Number Generators", OOPSLA 2014, figure 17.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// The sequence that belongs to some numbers: a stream of its own for each
    /// different list.
    pub(super) fn of(parts: &[u64]) -> Self {
        let mut state = 0;
        for part in parts {
            state = Self(state ^ part).next();
        }
        Self(state)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if there is none. The bias is at most
    /// `end / 2^64`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let mut rng = Rng(1234567);
        assert_eq!(rng.next(), 6457827717110365317);
        assert_eq!(rng.next(), 3203168211198807973);
    }

    #[test]
    fn streams_differ_and_ranges_hold() {
        assert_ne!(Rng::of(&[1, 2]).next(), Rng::of(&[2, 1]).next());
        let mut rng = Rng::of(&[7]);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
    }
}
