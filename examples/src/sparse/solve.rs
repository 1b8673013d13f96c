//! Triangular solves with factors that lie on several ranks.
//!
//! Supernodes go one after the other, as in the synchronous factorization: the owner solves
//! with the diagonal block, multiplies what is below (or above) it, and sends each rank the
//! part of the product that belongs to its supernodes, by blocking calls.
//!
//! # Invariants
//! 1. A place of the right-hand side is changed once for each supernode, in the order of
//!    supernodes: the result has the same bits on any number of ranks.

use super::analysis::Analysis;
use super::analysis::symbolic::{Block, Symbolic};
use super::factor::{Deal, Factors};
use osier::{Communicator, Result};

/// Solves for one right-hand side, which all ranks have; all get the solution. Collective.
///
/// # Errors
/// As [`Communicator::send`], [`Communicator::recv`] and [`Communicator::allgatherv`].
pub fn solve(
    comm: &Communicator,
    analysis: &Analysis,
    deal: Deal,
    factors: &Factors,
    right: &[f64],
) -> Result<Vec<f64>> {
    let place = |row: &u32| analysis.scale_rows[*row as usize] * right[*row as usize];
    let mut solver = Solver {
        comm,
        symbolic: &analysis.symbolic,
        deal,
        y: analysis.rows.iter().map(place).collect(),
        letters: vec![Vec::new(); deal.ranks],
    };
    for k in 0..analysis.symbolic.supernodes() {
        solver.forward(k, &factors.columns[k])?;
    }
    for k in (0..analysis.symbolic.supernodes()).rev() {
        solver.backward(k, &factors.columns[k])?;
    }
    let y = solver.gather()?;
    let mut x = vec![0.0; y.len()];
    for (column, y) in analysis.columns.iter().zip(y) {
        x[*column as usize] = analysis.scale_columns[*column as usize] * y;
    }
    Ok(x)
}

struct Solver<'a> {
    comm: &'a Communicator,
    symbolic: &'a Symbolic,
    deal: Deal,
    /// The right-hand side, which becomes the solution; that of own supernodes is kept.
    y: Vec<f64>,
    /// What goes to each rank.
    letters: Vec<Vec<f64>>,
}

impl Solver<'_> {
    /// With the lower factor's column of a supernode.
    fn forward(&mut self, k: usize, column: &[f64]) -> Result<()> {
        let symbolic = self.symbolic;
        let blocks = symbolic
            .updates_by(k)
            .iter()
            .map(|b| &symbolic.blocks()[*b as usize]);
        let parts = |block: &Block| {
            let meets = block.meets.start as usize..block.meets.end as usize;
            (block.target as usize, meets)
        };
        let mut product = vec![0.0; symbolic.rows(k).len()];
        if self.deal.is_own(k) {
            let height = symbolic.height(k);
            let own = symbolic.columns_of(k);
            let (width, begin) = (own.len(), own.start);
            for step in 0..width {
                let value = self.y[begin + step];
                let lower = &column[step * height..][..height];
                for (y, lower) in self.y[begin..own.end].iter_mut().zip(lower).skip(step + 1) {
                    *y -= lower * value;
                }
                for (sum, lower) in product.iter_mut().zip(&lower[width..]) {
                    *sum += lower * value;
                }
            }
            for block in blocks.clone() {
                let (target, meets) = parts(block);
                if !self.deal.is_own(target) {
                    self.letters[self.deal.owner(target)].extend(&product[meets]);
                }
            }
            self.send()?;
        } else if self.deal.receives(symbolic, k) {
            let own = blocks
                .clone()
                .map(parts)
                .filter(|(target, _)| self.deal.is_own(*target));
            let length = own.clone().map(|(_, meets)| meets.len()).sum();
            let mut letter = vec![0.0; length];
            self.comm.recv(&mut letter[..], self.deal.owner(k), 0)?;
            let mut at = 0;
            for (_, meets) in own {
                let part = &letter[at..at + meets.len()];
                at += part.len();
                product[meets].copy_from_slice(part);
            }
        } else {
            return Ok(());
        }
        for (target, meets) in blocks.map(parts) {
            if self.deal.is_own(target) {
                for (row, value) in symbolic.rows(k)[meets.clone()].iter().zip(&product[meets]) {
                    self.y[*row as usize] -= value;
                }
            }
        }
        Ok(())
    }

    /// With the upper factor's column of a supernode.
    fn backward(&mut self, k: usize, column: &[f64]) -> Result<()> {
        let symbolic = self.symbolic;
        let blocks = &symbolic.blocks()[symbolic.updates_of(k)];
        if self.deal.is_own(k) {
            let (height, own) = (symbolic.height(k), symbolic.columns_of(k));
            let begin = own.start;
            for step in (0..own.len()).rev() {
                let upper = &column[step * height..][..=step];
                let value = self.y[begin + step] / upper[step];
                self.y[begin + step] = value;
                for (y, upper) in self.y[begin..].iter_mut().zip(&upper[..step]) {
                    *y -= upper * value;
                }
            }
            for block in blocks {
                let source = block.source as usize;
                let width = symbolic.width(source);
                let mut product = vec![0.0; width];
                let meets = block.meets.start as usize..block.meets.end as usize;
                let values = column[block.offset..].chunks_exact(width);
                for (own, upper) in symbolic.rows(source)[meets].iter().zip(values) {
                    let value = self.y[*own as usize];
                    for (sum, upper) in product.iter_mut().zip(upper) {
                        *sum += upper * value;
                    }
                }
                match self.deal.owner(source) {
                    rank if rank == self.deal.rank => self.subtract(source, &product),
                    rank => self.letters[rank].extend(&product),
                }
            }
            return self.send();
        }
        let own = blocks.iter().map(|block| block.source as usize);
        let own: Vec<usize> = own.filter(|source| self.deal.is_own(*source)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let length = own.iter().map(|source| symbolic.width(*source)).sum();
        let mut letter = vec![0.0; length];
        self.comm.recv(&mut letter[..], self.deal.owner(k), 0)?;
        let mut at = 0;
        for source in own {
            let width = symbolic.width(source);
            self.subtract(source, &letter[at..at + width]);
            at += width;
        }
        Ok(())
    }

    fn subtract(&mut self, source: usize, product: &[f64]) {
        let own = &mut self.y[self.symbolic.columns_of(source)];
        for (y, value) in own.iter_mut().zip(product) {
            *y -= value;
        }
    }

    /// Sends the letters that are not empty.
    fn send(&mut self) -> Result<()> {
        for (rank, letter) in self.letters.iter_mut().enumerate() {
            if !letter.is_empty() {
                self.comm.send(&letter[..], rank, 0)?;
                letter.clear();
            }
        }
        Ok(())
    }

    /// The solution of all ranks.
    fn gather(self) -> Result<Vec<f64>> {
        let Solver {
            comm,
            symbolic,
            deal,
            mut y,
            ..
        } = self;
        let columns = |rank| {
            let own = Deal { rank, ..deal }.own(symbolic);
            own.flat_map(|k| symbolic.columns_of(k))
        };
        let own: Vec<f64> = columns(deal.rank).map(|j| y[j]).collect();
        let counts: Vec<usize> = (0..deal.ranks).map(|rank| columns(rank).count()).collect();
        let mut starts = vec![0; deal.ranks];
        for rank in 1..deal.ranks {
            starts[rank] = starts[rank - 1] + counts[rank - 1];
        }
        let mut all = vec![0.0; y.len()];
        comm.allgatherv(&own, &mut all, &counts, &starts)?;
        let places = (0..deal.ranks).flat_map(columns);
        for (j, value) in places.zip(all) {
            y[j] = value;
        }
        Ok(y)
    }
}
