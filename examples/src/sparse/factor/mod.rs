//! The numeric factorization, in variants that end with the same bits.
//!
//! | variant | communication |
//! |---|---|
//! | [`sequential()`] | none: the reference |
//! | [`synchronous()`] | one panel after the other, by blocking calls |
//! | [`overlapped()`] | look-ahead: receives are posted early, panels sent as soon as they are factored |
//! | [`by_graph()`] | a task for each update and each panel, messages along edges |
//!
//! # Invariants
//! 1. A column is updated by its sources in ascending order, each as [`kernel`] does.
//! 2. Supernodes are dealt to ranks in turn, by blocks of some; only a column's owner holds
//!    its values.

mod graph;
pub mod kernel;
mod overlapped;
mod sequential;
mod synchronous;

pub use graph::{Built, by_graph};
pub use overlapped::overlapped;
pub use sequential::sequential;
pub use synchronous::synchronous;

use super::analysis::Analysis;
use super::analysis::symbolic::Symbolic;
use super::matrix::larger;
use crate::hash::checksum;
use kernel::largest_of_upper;

/// Which rank has which supernode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    /// Number of ranks.
    pub ranks: usize,
    /// The rank that asks.
    pub rank: usize,
    /// Supernodes in a row that one rank has.
    pub block: usize,
}

impl Deal {
    /// The rank that has a supernode.
    pub fn owner(self, k: usize) -> usize {
        k / self.block % self.ranks
    }

    /// Whether the asking rank has it.
    pub fn is_own(self, k: usize) -> bool {
        self.owner(k) == self.rank
    }

    /// The supernodes of the asking rank.
    pub fn own(self, symbolic: &Symbolic) -> impl Iterator<Item = usize> + use<> {
        (0..symbolic.supernodes()).filter(move |k| self.is_own(*k))
    }

    /// Other ranks that need a panel, ascending.
    pub fn needed_by(self, symbolic: &Symbolic, k: usize) -> Vec<usize> {
        let mut ranks: Vec<usize> = targets(symbolic, k).map(|j| self.owner(j)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| *rank != self.owner(k));
        ranks
    }

    /// Whether the asking rank needs the panel of another.
    pub fn receives(self, symbolic: &Symbolic, k: usize) -> bool {
        !self.is_own(k) && targets(symbolic, k).any(|j| self.is_own(j))
    }
}

fn targets(symbolic: &Symbolic, k: usize) -> impl Iterator<Item = usize> + '_ {
    let blocks = symbolic.updates_by(k).iter();
    blocks.map(|block| symbolic.blocks()[*block as usize].target as usize)
}

/// The factored columns of a rank.
#[derive(Clone, Debug)]
pub struct Factors {
    /// The column of each supernode; empty: another rank has it.
    pub columns: Vec<Vec<f64>>,
    /// Pivots that were replaced, in these columns.
    pub replaced: u64,
}

impl Factors {
    /// The entries of the matrix in this rank's columns, before anything is factored.
    fn filled(analysis: &Analysis, deal: Deal) -> Self {
        let column = |k| match deal.is_own(k) {
            true => kernel::fill(analysis, k),
            false => Vec::new(),
        };
        Factors {
            columns: (0..analysis.symbolic.supernodes()).map(column).collect(),
            replaced: 0,
        }
    }

    /// Factors the panel of an own column that has all updates.
    fn factor(&mut self, analysis: &Analysis, k: usize) {
        let column = &mut self.columns[k];
        self.replaced += kernel::factor(&analysis.symbolic, k, column, analysis.tiny);
    }

    /// Applies one block's update to an own column.
    fn update(&mut self, symbolic: &Symbolic, block: u32, panel: &[f64]) {
        let block = &symbolic.blocks()[block as usize];
        let column = &mut self.columns[block.target as usize];
        kernel::update(symbolic, block, panel, column);
    }

    /// Largest absolute value of the upper factor in the own columns.
    pub fn largest_of_upper(&self, symbolic: &Symbolic) -> f64 {
        let columns = self.columns.iter().enumerate();
        let own = columns.filter(|(_, column)| !column.is_empty());
        let of = |(k, column): (usize, &Vec<f64>)| largest_of_upper(symbolic, k, column);
        own.map(of).fold(0.0, larger)
    }

    /// A number that depends on every bit of the own columns; those of all ranks, added,
    /// do not depend on how supernodes are dealt.
    pub fn checksum(&self, symbolic: &Symbolic) -> u64 {
        let (mut sum, mut first) = (0u64, 0);
        for (k, column) in self.columns.iter().enumerate() {
            sum = sum.wrapping_add(checksum(column, first));
            first += symbolic.length(k) as u64;
        }
        sum
    }
}

/// Floating-point operations of a supernode: its panel, and the updates of its column.
pub fn flops(symbolic: &Symbolic, k: usize) -> f64 {
    let updates = &symbolic.blocks()[symbolic.updates_of(k)];
    let updates = updates.iter().map(|block| symbolic.update_flops(block));
    symbolic.factor_flops(k) + updates.sum::<f64>()
}
