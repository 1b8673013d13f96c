//! Columns of blocks in turn around a ring of ranks: what the synchronous and the
//! hand-overlapped program share.
//!
//! Rank `p` has the columns `p`, `p + ranks`, ... and fills one after the other from the top,
//! a row of blocks behind the rank before it. The right border of a block goes to the next
//! rank; from the last rank to rank 0 it waits there until rank 0 begins its next column.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! 2011, section 3.2: both programs, and their mapping by columns.

use std::collections::VecDeque;

use osier::{Communicator, Result};

use super::matrix::Matrix;

/// How borders come from the rank before and go to the next one.
pub trait Link {
    /// The left border of the next block.
    ///
    /// # Errors
    /// Communication fails.
    fn take(&mut self) -> Result<Vec<u8>>;

    /// Sends the right border of a block.
    ///
    /// # Errors
    /// Communication fails.
    fn give(&mut self, border: Vec<u8>) -> Result<()>;

    /// Waits until all has been sent.
    ///
    /// # Errors
    /// Communication fails.
    fn finish(&mut self) -> Result<()>;
}

/// Fills the blocks of this rank. Collective.
///
/// # Errors
/// Communication fails.
pub fn fill(matrix: &Matrix, place: &Place, link: &mut dyn Link) -> Result<()> {
    let mut top = Vec::new();
    walk(place, link, |[row, column], left| {
        if row == 0 {
            top = matrix.topmost(column);
        }
        matrix.fill([row, column], left, &mut top);
    })
}

/// Calls a function for each block of a rank with its left border, which it makes the right one.
fn walk(
    place: &Place,
    link: &mut dyn Link,
    mut fill: impl FnMut([usize; 2], &mut Vec<u8>),
) -> Result<()> {
    for column in (place.rank..place.columns).step_by(place.ranks) {
        for (row, height) in place.heights.iter().enumerate() {
            let mut border = match column {
                0 => vec![0; *height],
                _ => link.take()?,
            };
            fill([row, column], &mut border);
            if column + 1 < place.columns {
                link.give(border)?;
            }
        }
    }
    link.finish()
}

/// Where a rank stands in the ring, and the columns of blocks that go around.
#[derive(Clone, Debug)]
pub struct Place {
    /// Ranks of the ring.
    pub ranks: usize,
    /// This one.
    pub rank: usize,
    /// Columns of blocks.
    columns: usize,
    /// Rows of the borders of one column.
    heights: Vec<usize>,
}

impl Place {
    /// This rank's, of a matrix that is dealt by columns.
    pub fn of(comm: &Communicator, matrix: &Matrix) -> Self {
        let [rows, columns] = matrix.tiling.extents();
        Self {
            ranks: comm.size(),
            rank: comm.rank(),
            columns,
            heights: (0..rows).map(|row| matrix.tiling.rows(row).len()).collect(),
        }
    }

    /// Borders that come in all.
    pub fn borders(&self) -> usize {
        let own = (self.columns + self.ranks - 1 - self.rank) / self.ranks;
        // None come for column 0, which is there in any case.
        (own - usize::from(self.rank == 0)) * self.heights.len()
    }

    /// The rank that borders come from.
    pub fn previous(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// The rank that borders go to.
    pub fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    /// Memory for a border, by its number among those that come.
    pub fn room(&self, number: usize) -> Vec<u8> {
        vec![0; self.heights[number % self.heights.len()]]
    }
}

/// The ring of a single rank.
#[derive(Debug, Default)]
pub struct Alone(VecDeque<Vec<u8>>);

impl Link for Alone {
    fn take(&mut self) -> Result<Vec<u8>> {
        // A column is complete before the next one begins.
        Ok(self.0.pop_front().unwrap_or_default())
    }

    fn give(&mut self, border: Vec<u8>) -> Result<()> {
        self.0.push_back(border);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlapped::Posted;
    use super::super::synchronous::Blocking;
    use super::*;
    use osier::testing::ranks;

    /// A border of a block.
    fn border([row, column]: [usize; 2], height: usize) -> Vec<u8> {
        (0..height)
            .map(|at| (at * 7 + row * 31 + column * 3) as u8)
            .collect()
    }

    /// Every block gets the border of the block at its left.
    fn goes_around(
        n: usize,
        columns: usize,
        heights: &[usize],
        link: impl Fn(&Communicator, Place) -> Box<dyn Link + '_> + Sync,
    ) {
        let blocks = ranks(n, |comm| {
            let place = Place {
                ranks: n,
                rank: comm.rank(),
                columns,
                heights: heights.into(),
            };
            let mut link = link(&comm, place.clone());
            let mut blocks = 0;
            walk(&place, &mut *link, |[row, column], left| {
                let expected = match column {
                    0 => vec![0; heights[row]],
                    _ => border([row, column - 1], heights[row]),
                };
                assert!(*left == expected, "{n} ranks: row {row}, column {column}");
                *left = border([row, column], heights[row]);
                blocks += 1;
            })
            .expect("the ring turns");
            blocks
        });
        assert_eq!(blocks.iter().sum::<usize>(), columns * heights.len());
    }

    /// Short borders leave at once; the long ones here by rendezvous, whose sends wait for
    /// their receives: nobody may wait for itself around the ring.
    #[test]
    fn borders_go_around_the_ring() {
        for n in 2..=4 {
            for columns in [1, 2, 3, 4, 5, 9] {
                for rows in [1, 2, 3, 7] {
                    for height in [1, 300_000] {
                        let mut heights = vec![height; rows];
                        heights[rows - 1] = height / 3 + 1;
                        goes_around(n, columns, &heights, |comm, place| {
                            Box::new(Blocking::new(comm, place))
                        });
                        for window in [1, 3] {
                            goes_around(n, columns, &heights, |comm, place| {
                                Box::new(Posted::new(comm, place, window).expect("posted"))
                            });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn one_rank_keeps_its_borders() {
        goes_around(1, 4, &[5, 5, 2], |_, _| Box::new(Alone::default()));
    }
}
