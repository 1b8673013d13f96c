//! Sequences from a seed: random ones, and mutations of given ones.

/// SplitMix64, a generator of 64-bit numbers: small, and the same everywhere.
///
/// # Sources
/// G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of four bases.
    fn base(&mut self) -> u8 {
        b"ACGT"[(self.draw() >> 62) as usize]
    }
}

/// A sequence of bases, each as likely as the others; `None` if there is no memory for it.
pub fn random(length: usize, seed: u64) -> Option<Vec<u8>> {
    let mut random = SplitMix64::new(seed);
    let mut letters = Vec::new();
    letters.try_reserve_exact(length).ok()?;
    letters.extend((0..length).map(|_| random.base()));
    Some(letters)
}

/// A mutation: each letter changes with probability `rate`, and then, as likely as each
/// other, becomes another base, is deleted, or gets a base in front of it.
pub fn mutate(letters: &[u8], rate: f64, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut mutated = Vec::with_capacity(letters.len());
    for letter in letters {
        if random.unit() >= rate {
            mutated.push(*letter);
            continue;
        }
        match random.draw() % 3 {
            0 => loop {
                let base = random.base();
                if base != *letter {
                    mutated.push(base);
                    break;
                }
            },
            1 => {}
            _ => mutated.extend([random.base(), *letter]),
        }
    }
    mutated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_decide() {
        assert_eq!(random(usize::MAX, 1), None);
        assert_ne!(random(10_000, 1), random(10_000, 2));
        let letters = random(10_000, 1).expect("memory");
        assert_eq!(random(10_000, 1).as_ref(), Some(&letters));
        assert_eq!(mutate(&letters, 0.0, 7), letters);
        let mutated = mutate(&letters, 0.1, 7);
        assert_eq!(mutated, mutate(&letters, 0.1, 7));
        assert_ne!(mutated, mutate(&letters, 0.1, 8));
        // As many insertions as deletions, but for chance.
        assert!(
            mutated.len().abs_diff(letters.len()) < 200,
            "{}",
            mutated.len()
        );
        let all = mutate(&letters, 1.0, 3);
        assert!(all.len().abs_diff(letters.len()) < 600, "{}", all.len());
    }
}
