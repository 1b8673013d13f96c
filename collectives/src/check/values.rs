//! Symbolic values: which contributions, combined how.
//!
//! # Invariants
//! 1. Equal numbers mean equal expressions, brackets included.
//! 2. No expression has a contribution twice.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Mixes the words it is given; for keys that nobody chooses in bad faith.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        let product = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 29);
    }
}

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// An expression over ranks' contributions. 0 is none; 1 + r is rank r's own.
pub(super) type Expr = u32;
pub(super) const UNDEFINED: Expr = 0;

enum Set {
    /// Ranks `first` to `end - 1`, in this order.
    Run(u32, u32),
    /// Others, or in another order.
    Mask(Box<[u64]>),
}

/// All expressions of a check.
pub(super) struct Values {
    ranks: u32,
    sets: Vec<Set>,
    known: Map<(u32, u32), Expr>,
}

impl Values {
    pub(super) fn new(ranks: u32) -> Self {
        let mut sets = vec![Set::Run(0, 0)];
        sets.extend((0..ranks).map(|r| Set::Run(r, r + 1)));
        Self {
            ranks,
            sets,
            known: Map::default(),
        }
    }

    pub(super) fn own(rank: u32) -> Expr {
        1 + rank
    }

    /// The rank whose own contribution it is.
    pub(super) fn owner(&self, expr: Expr) -> Option<u32> {
        (1..=self.ranks).contains(&expr).then(|| expr - 1)
    }

    fn mask(&self, expr: Expr) -> Box<[u64]> {
        match &self.sets[expr as usize] {
            Set::Mask(mask) => mask.clone(),
            Set::Run(first, end) => {
                let mut mask = vec![0u64; self.ranks.div_ceil(64) as usize];
                for rank in *first..*end {
                    mask[rank as usize / 64] |= 1 << (rank % 64);
                }
                mask.into()
            }
        }
    }

    /// `left op right`; or a rank whose contribution both have.
    pub(super) fn combine(&mut self, left: Expr, right: Expr) -> Result<Expr, u32> {
        if let Some(known) = self.known.get(&(left, right)) {
            return Ok(*known);
        }
        let set = match (&self.sets[left as usize], &self.sets[right as usize]) {
            (Set::Run(first, middle), Set::Run(next, end)) if middle == next => {
                Set::Run(*first, *end)
            }
            _ => {
                let mut mask = self.mask(left);
                for (at, (mine, other)) in mask.iter_mut().zip(self.mask(right)).enumerate() {
                    let both = *mine & other;
                    if both != 0 {
                        return Err(at as u32 * 64 + both.trailing_zeros());
                    }
                    *mine |= other;
                }
                Set::Mask(mask)
            }
        };
        let expr = self.sets.len() as Expr;
        self.sets.push(set);
        self.known.insert((left, right), expr);
        Ok(expr)
    }

    /// Does it have the ranks `first` to `end - 1`, all and only these, in order?
    pub(super) fn is_run(&self, expr: Expr, first: u32, end: u32) -> bool {
        matches!(self.sets[expr as usize], Set::Run(a, b) if (a, b) == (first, end))
    }

    /// The same, in any order; or a rank that is missing or too much.
    pub(super) fn covers(&self, expr: Expr, first: u32, end: u32) -> Result<(), u32> {
        if self.is_run(expr, first, end) {
            return Ok(());
        }
        let mask = self.mask(expr);
        for rank in 0..self.ranks {
            let has = mask[rank as usize / 64] >> (rank % 64) & 1 == 1;
            if has != (first..end).contains(&rank) {
                return Err(rank);
            }
        }
        Ok(())
    }
}
