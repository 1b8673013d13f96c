//! Barriers as stages of signals: validity and predicted cost.
//!
//! A stage is a set of signals (from, to); a rank ends a stage when its signals are
//! sent and come.
//!
//! # Sources
//! J. C. Meyer, PhD thesis, NTNU 2012, sections 5.3 to 5.6: patterns, check (equation
//! 5.1) and cost (equation 5.4). The search over all paths is a longest path by
//! dynamic programming here, which gives the same.

use super::matrix::Matrix;
use crate::algorithms::Tree;

/// Signals by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    size: u32,
    stages: Vec<Vec<(u32, u32)>>,
}

/// One of a rank's in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// In which stage.
    pub stage: u32,
    /// To another, or from it.
    pub raised: bool,
    /// The other.
    pub peer: u32,
}

impl Signal {
    pub(super) fn renamed(self, peer: u32) -> Self {
        Self { peer, ..self }
    }
}

impl Stages {
    /// From signals.
    pub fn of(size: u32, stages: Vec<Vec<(u32, u32)>>) -> Self {
        Self { size, stages }
    }

    /// All to rank 0 and back.
    pub fn linear(size: u32) -> Self {
        let up: Vec<_> = (1..size).map(|r| (r, 0)).collect();
        Self::of(size, vec![up]).and_back()
    }

    /// Rank r signals r + 2^k in stage k.
    pub fn dissemination(size: u32) -> Self {
        let rounds = size.next_power_of_two().ilog2();
        let stage = |k: u32| (0..size).map(|r| (r, (r + (1 << k)) % size)).collect();
        Self::of(size, (0..rounds).map(stage).collect())
    }

    /// Up a binomial tree and back.
    pub fn tree(size: u32) -> Self {
        Self::tree_up(size).and_back()
    }

    fn tree_up(size: u32) -> Self {
        let rounds = size.next_power_of_two().ilog2();
        let stage = |k: u32| {
            let ranks = (0..size).filter(move |r| r % (2 << k) == 1 << k);
            ranks.map(|r| (r, r - (1 << k))).collect()
        };
        Self::of(size, (0..rounds).map(stage).collect())
    }

    /// Only the way up of a tree, over some ranks of a matrix.
    pub fn up(tree: Tree, size: u32) -> Self {
        match tree {
            Tree::Linear => Self::of(size, vec![(1..size).map(|r| (r, 0)).collect()]),
            _ => Self::tree_up(size),
        }
    }

    /// Its reversal, turned around.
    #[must_use]
    pub fn back(&self) -> Self {
        let turned = |stage: &Vec<(u32, u32)>| stage.iter().map(|(i, j)| (*j, *i)).collect();
        Self::of(self.size, self.stages.iter().rev().map(turned).collect())
    }

    /// Followed by its own reversal, turned around.
    #[must_use]
    pub fn and_back(self) -> Self {
        let back = self.back();
        self.then(back)
    }

    /// One behind the other.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.stages.extend(next.stages);
        self
    }

    /// Of other ranks in the same stages; behind the shorter one nothing follows.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        for (at, stage) in other.stages.into_iter().enumerate() {
            match self.stages.get_mut(at) {
                Some(here) => here.extend(stage),
                None => self.stages.push(stage),
            }
        }
        self
    }

    /// Among `size` ranks of which `real` are these.
    #[must_use]
    pub fn renamed(&self, size: u32, real: impl Fn(u32) -> u32) -> Self {
        let named = |stage: &Vec<(u32, u32)>| {
            let pairs = stage.iter().map(|(i, j)| (real(*i), real(*j)));
            pairs.collect()
        };
        Self::of(size, self.stages.iter().map(named).collect())
    }

    /// Without stages in which nothing happens.
    #[must_use]
    pub fn without_empty(mut self) -> Self {
        self.stages.retain(|stage| !stage.is_empty());
        self
    }

    /// What each rank does: what it raises in a stage before what it waits for.
    pub fn by_rank(&self) -> Vec<Vec<Signal>> {
        let mut ranks = vec![Vec::new(); self.size as usize];
        for (stage, signals) in (0..).zip(&self.stages) {
            for raised in [true, false] {
                for (from, to) in signals {
                    let (rank, peer) = if raised { (*from, *to) } else { (*to, *from) };
                    ranks[rank as usize].push(Signal {
                        stage,
                        raised,
                        peer,
                    });
                }
            }
        }
        ranks
    }

    /// Signals by stage.
    pub fn stages(&self) -> &[Vec<(u32, u32)>] {
        &self.stages
    }

    /// Is it a barrier? If not: a rank, and another of whose arrival it never hears.
    pub fn check(&self) -> Result<(), (u32, u32)> {
        let words = self.size.div_ceil(64) as usize;
        let mut knows = vec![vec![0u64; words]; self.size as usize];
        for (rank, set) in knows.iter_mut().enumerate() {
            set[rank / 64] |= 1 << (rank % 64);
        }
        for stage in &self.stages {
            let before = knows.clone();
            for (from, to) in stage {
                for (mine, theirs) in knows[*to as usize].iter_mut().zip(&before[*from as usize]) {
                    *mine |= theirs;
                }
            }
        }
        for (rank, set) in knows.iter().enumerate() {
            for other in 0..self.size {
                if set[other as usize / 64] >> (other % 64) & 1 == 0 {
                    return Err((rank as u32, other));
                }
            }
        }
        Ok(())
    }

    /// When the last rank is through, in ns, by equation 5.4: in a stage a rank pays
    /// twice the latencies of its signals and the largest of their overheads, at
    /// least its own for doing nothing. `rank(i)` is the matrix's number of rank i.
    pub fn cost_ns(&self, matrix: &Matrix, rank: impl Fn(u32) -> u32) -> f64 {
        let mut at = vec![0.0f64; self.size as usize];
        // The last thing that a rank did: whom it signalled, and in which stage.
        let mut signalled = vec![(u32::MAX, usize::MAX); self.size as usize];
        for (number, stage) in self.stages.iter().enumerate() {
            let mut spent: Vec<(f64, f64)> = (0..self.size)
                .map(|i| (0.0, matrix.overhead_ns(rank(i), rank(i))))
                .collect();
            for (i, j) in stage {
                let (latency, overhead) = &mut spent[*i as usize];
                *latency += 2.0 * matrix.latency_ns(rank(*i), rank(*j));
                // A receiver that has been waiting for this one is ready.
                let (whom, when) = signalled[*j as usize];
                let waits = whom == *i && when != usize::MAX && when + 1 < number;
                let from = if waits { rank(*j) } else { rank(*i) };
                *overhead = overhead.max(matrix.overhead_ns(from, rank(*j)));
            }
            let through: Vec<f64> = at.iter().zip(&spent).map(|(t, s)| t + s.0 + s.1).collect();
            let mut next = through.clone();
            for (i, j) in stage {
                next[*j as usize] = next[*j as usize].max(through[*i as usize]);
                signalled[*i as usize] = (*j, number);
            }
            at = next;
        }
        at.into_iter().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_barriers_and_break_without_a_signal() {
        for size in 1..70 {
            for stages in [
                Stages::linear(size),
                Stages::dissemination(size),
                Stages::tree(size),
            ] {
                assert_eq!(stages.check(), Ok(()), "{size} ranks");
            }
            let mut tree = Stages::tree(size);
            for stage in 0..tree.stages.len() {
                for signal in 0..tree.stages[stage].len() {
                    let gone = tree.stages[stage].remove(signal);
                    assert!(tree.check().is_err(), "{size} ranks, stage {stage}");
                    tree.stages[stage].insert(signal, gone);
                }
            }
        }
    }

    /// With equal costs: c per stage on the longest path.
    #[test]
    fn equal_costs_give_the_textbook_counts() {
        let matrix = Matrix::of(64, |i, j| {
            if i == j {
                (0.0, 0.0, 0.0)
            } else {
                (1.0, 0.0, 0.0)
            }
        });
        let id = |i| i;
        for size in [2, 8, 64] {
            let rounds = f64::from(u32::ilog2(size));
            assert_eq!(Stages::dissemination(size).cost_ns(&matrix, id), rounds);
            // Up and down, though what goes down finds its receiver ready.
            let tree = Stages::tree(size).cost_ns(&matrix, id);
            assert!(rounds <= tree && tree <= 2.0 * rounds, "{size}: {tree}");
        }
    }
}
