//! The blocks of the matrix, and which rank has which.

use std::ops::Range;

/// How blocks are dealt to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    /// Rows of blocks in turn.
    Rows,
    /// Columns of blocks in turn.
    Columns,
}

/// A matrix, cut into square blocks; those of the last row and column may be smaller.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    lengths: [usize; 2],
    block: usize,
    deal: Deal,
    ranks: usize,
}

impl Tiling {
    /// Of sequences of these lengths, the first one down the rows, in blocks of this extent,
    /// for a number of ranks; all at least 1.
    pub fn new(lengths: [usize; 2], block: usize, deal: Deal, ranks: usize) -> Self {
        Self {
            lengths,
            block,
            deal,
            ranks,
        }
    }

    /// Rows and columns of blocks.
    pub fn extents(&self) -> [usize; 2] {
        self.lengths.map(|length| length.div_ceil(self.block))
    }

    /// Letters of the first sequence in a row of blocks.
    pub fn rows(&self, row: usize) -> Range<usize> {
        self.part(row, self.lengths[0])
    }

    /// Letters of the second sequence in a column of blocks.
    pub fn columns(&self, column: usize) -> Range<usize> {
        self.part(column, self.lengths[1])
    }

    fn part(&self, at: usize, length: usize) -> Range<usize> {
        at * self.block..((at + 1) * self.block).min(length)
    }

    /// The block of a cell, by the numbers of its letters from 0.
    pub fn block_of(&self, cell: [usize; 2]) -> [usize; 2] {
        cell.map(|at| at / self.block)
    }

    /// The rank that has a block.
    pub fn owner(&self, [row, column]: [usize; 2]) -> usize {
        match self.deal {
            Deal::Rows => row % self.ranks,
            Deal::Columns => column % self.ranks,
        }
    }

    /// Rows or columns of blocks that a rank has.
    pub fn lines(&self, rank: usize) -> usize {
        let [rows, columns] = self.extents();
        let lines = match self.deal {
            Deal::Rows => rows,
            Deal::Columns => columns,
        };
        (lines + self.ranks - 1 - rank) / self.ranks
    }

    /// Blocks that a rank has.
    pub fn blocks(&self, rank: usize) -> usize {
        self.lines(rank) * self.across()
    }

    /// Blocks of a line.
    fn across(&self) -> usize {
        let [rows, columns] = self.extents();
        match self.deal {
            Deal::Rows => columns,
            Deal::Columns => rows,
        }
    }

    /// The number of a block among those of its rank.
    pub fn number(&self, [row, column]: [usize; 2]) -> usize {
        match self.deal {
            Deal::Rows => row / self.ranks * self.across() + column,
            Deal::Columns => column / self.ranks * self.across() + row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_number_at_one_rank() {
        for deal in [Deal::Rows, Deal::Columns] {
            for ranks in 1..6 {
                let tiling = Tiling::new([10, 17], 4, deal, ranks);
                assert_eq!(tiling.extents(), [3, 5]);
                let mut seen: Vec<_> = (0..ranks)
                    .map(|rank| vec![false; tiling.blocks(rank)])
                    .collect();
                for row in 0..3 {
                    for column in 0..5 {
                        let block = [row, column];
                        let seen = &mut seen[tiling.owner(block)][tiling.number(block)];
                        assert!(!std::mem::replace(seen, true));
                        let cell = [tiling.rows(row).start, tiling.columns(column).end - 1];
                        assert_eq!(tiling.block_of(cell), block);
                    }
                }
                assert!(seen.iter().flatten().all(|seen| *seen), "{deal:?} {ranks}");
            }
        }
    }

    #[test]
    fn the_last_blocks_are_smaller() {
        let tiling = Tiling::new([10, 3], 4, Deal::Rows, 1);
        assert_eq!((tiling.rows(2), tiling.columns(0)), (8..10, 0..3));
    }
}
