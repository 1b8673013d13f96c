//! The block kernel: borders in, borders out.
//!
//! ```text
//!            top: G[i][j] - G[i][j-1] along the row above the block
//!          +----------------------------+   a cell, from the differences at its left (dv)
//!    left  |  diagonal after diagonal,  |   and its top (dh):
//!  upwards |  the cells of one do not   |     z  = max(pair, dv, dh)
//!          |  depend on each other      |     right:  z - dh
//!          +----------------------------+     bottom: z - dv
//!            and the same at the right and at the bottom, in the same memory
//! ```
//!
//! All values are bytes ([`super::scoring`]), so that the compiler handles as many cells at a
//! time as a vector has bytes. Rows are listed upwards: then the cells of an anti-diagonal
//! have neighboring indices in all four lists.
//!
//! # Sources
//! S. Needleman, C. Wunsch, "A general method applicable to the search for similarities in the
//! amino acid sequence of two proteins", Journal of Molecular Biology 48, 1970. H. Suzuki,
//! M. Kasahara, "Introducing difference recurrence relations for faster semi-global alignment
//! of long sequences", BMC Bioinformatics 19, 2018: the recurrence, there for affine gaps.

use std::iter::zip;
use std::ops::Range;

use super::scoring::{Gains, Scoring};

/// Fills a block: `left` and `top` become its right and bottom border.
///
/// `rows_up` and `left` have an element for each row, from the bottom up; `columns` and `top`
/// one for each column.
///
/// # Panics
/// The lengths do not fit, or a list is empty.
pub fn fill(scoring: &Scoring, rows_up: &[u8], columns: &[u8], left: &mut [u8], top: &mut [u8]) {
    let Gains { alike, unlike, .. } = scoring.gains();
    for (up, along) in diagonals(rows_up.len(), columns.len()) {
        let letters = zip(&rows_up[up.clone()], &columns[along.clone()]);
        let borders = zip(&mut left[up], &mut top[along]);
        for ((a, b), (dv, dh)) in zip(letters, borders) {
            let pair = if a == b { alike } else { unlike };
            let z = pair.max(*dv).max(*dh);
            (*dv, *dh) = (z - *dh, z - *dv);
        }
    }
}

/// A best alignment ends with the pair of the cell's letters.
pub const PAIR: u8 = 0;
/// It comes from the cell above: the row's letter stands against a gap.
pub const ABOVE: u8 = 1;
/// It comes from the cell at the left: the column's letter stands against a gap.
pub const BESIDE: u8 = 2;

/// How a best alignment ends in each cell of a block.
#[derive(Debug)]
pub struct Choices {
    height: usize,
    /// Cells of a diagonal at most.
    stride: usize,
    /// Diagonal after diagonal.
    cells: Vec<u8>,
}

impl Choices {
    /// [`PAIR`], [`ABOVE`] or [`BESIDE`]: the first that is best, of the cell of a row and a
    /// column from 0.
    pub fn of(&self, row: usize, column: usize) -> u8 {
        let diagonal = row + column;
        let first = diagonal.saturating_sub(self.height - 1);
        self.cells[diagonal * self.stride + column - first]
    }
}

/// As [`fill`], and tells how a best alignment ends in each cell.
///
/// # Panics
/// As [`fill`].
pub fn choices(
    scoring: &Scoring,
    rows_up: &[u8],
    columns: &[u8],
    left: &mut [u8],
    top: &mut [u8],
) -> Choices {
    let (height, width) = (rows_up.len(), columns.len());
    let Gains {
        alike,
        unlike,
        taken,
    } = scoring.gains();
    let stride = height.min(width);
    let mut cells = vec![0; (height + width - 1) * stride];
    let diagonals = diagonals(height, width);
    for ((up, along), chosen) in zip(diagonals, cells.chunks_exact_mut(stride)) {
        let letters = zip(&rows_up[up.clone()], &columns[along.clone()]);
        let borders = zip(&mut left[up], &mut top[along]);
        for (((a, b), (dv, dh)), choice) in zip(zip(letters, borders), chosen) {
            let (pair, taken) = if a == b {
                (alike, alike)
            } else {
                (unlike, taken)
            };
            let z = pair.max(*dv).max(*dh);
            let gap = if z == *dh { ABOVE } else { BESIDE };
            *choice = if z == taken { PAIR } else { gap };
            (*dv, *dh) = (z - *dh, z - *dv);
        }
    }
    Choices {
        height,
        stride,
        cells,
    }
}

/// The anti-diagonals of a block: their rows, counted from the bottom, and their columns.
fn diagonals(height: usize, width: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    (0..height + width - 1).map(move |diagonal| {
        let first = diagonal.saturating_sub(height - 1);
        let end = (diagonal + 1).min(width);
        let up = height - 1 + first - diagonal;
        (up..up + (end - first), first..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagonals_have_each_cell_once() {
        for (height, width) in [(1, 1), (1, 5), (4, 1), (3, 5), (6, 2)] {
            let mut seen = vec![0; height * width];
            for (up, along) in diagonals(height, width) {
                let rows: Vec<_> = up.collect();
                assert_eq!(rows.len(), along.len());
                let sums: Vec<_> = zip(&rows, along.clone())
                    .map(|(up, column)| height - 1 - up + column)
                    .collect();
                assert!(sums.iter().all(|sum| *sum == sums[0]));
                for (up, column) in zip(rows, along) {
                    seen[(height - 1 - up) * width + column] += 1;
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{height} {width}");
        }
    }

    #[test]
    fn a_cell_by_hand() {
        let scoring = Scoring::new(1, -1, -2).expect("scores");
        let (mut left, mut top) = ([0], [0]);
        fill(&scoring, b"A", b"A", &mut left, &mut top);
        assert_eq!((left, top), ([5], [5]));
        let choices = choices(&scoring, b"A", b"C", &mut [4], &mut [1]);
        assert_eq!(choices.of(0, 0), BESIDE);
    }
}
