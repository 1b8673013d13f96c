//! What is known before any number is computed: order, scales, blocks of the factors.
//!
//! ```text
//! matching -> pattern of B + B^T -> ordering -> postorder -> symbolic
//! ```
//!
//! Pivots are static: rows are permuted so that large entries lie on the diagonal, and rows
//! and columns scaled. All ranks compute the same from the same matrix.
//!
//! # Sources
//! X. Li, J. Demmel, "SuperLU_DIST: A Scalable Distributed-Memory Sparse Direct Solver for
//! Unsymmetric Linear Systems", ACM TOMS 29(2), 2003, section 2. Here the pattern of the
//! factors is that of `B + B^T`, which is a superset.

pub mod matching;
pub mod ordering;
mod pattern;
pub mod symbolic;

use super::matrix::Matrix;
use super::read::{BadFile, Source};
use pattern::Pattern;
use symbolic::{Symbolic, Widths};

/// The order in which columns are eliminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// Approximate minimum degree.
    Degree,
    /// Nested dissection of a cube of this number of points along each axis.
    Dissection(usize),
}

/// A matrix that is ready to be factored.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The permuted and scaled matrix.
    pub matrix: Matrix,
    /// Row of the original matrix at each place.
    pub rows: Vec<u32>,
    /// Column of the original matrix at each place.
    pub columns: Vec<u32>,
    /// What each row of the original matrix is multiplied by.
    pub scale_rows: Vec<f64>,
    /// What each column of the original matrix is multiplied by.
    pub scale_columns: Vec<f64>,
    /// The blocks of the factors.
    pub symbolic: Symbolic,
    /// Pivots smaller than this are replaced by it.
    pub tiny: f64,
}

impl Analysis {
    /// Analyses a square matrix.
    ///
    /// # Errors
    /// It is structurally singular.
    pub fn new(source: &Source, ordering: Ordering, widths: Widths) -> Result<Self, BadFile> {
        let matrix = &source.matrix;
        let matching = matching::maximum_product(matrix).map_err(|e| BadFile {
            file: source.name.clone(),
            line: source.line,
            what: format!(
                "a structurally singular matrix: {} of {} columns have a row of their own, and \
                 column {} has none, expected one for each",
                e.matched,
                matrix.columns(),
                e.column + 1
            ),
        })?;
        let pattern = Pattern::symmetrized(matrix, &matching.row_of);
        let order = match ordering {
            Ordering::Degree => ordering::minimum_degree(&pattern),
            Ordering::Dissection(points) => ordering::nested_dissection([points; 3]),
        };
        let pattern = pattern.permuted(&order);
        let post = symbolic::postorder(&pattern);
        let pattern = pattern.permuted(&post);
        let symbolic = Symbolic::new(&pattern, widths);

        let columns: Vec<u32> = post.iter().map(|at| order[*at as usize]).collect();
        let row_of = |column: &u32| matching.row_of[*column as usize];
        let rows: Vec<u32> = columns.iter().map(row_of).collect();
        let matrix = matrix.scaled_and_permuted(
            &inverse(&rows),
            &inverse(&columns),
            &matching.scale_rows,
            &matching.scale_columns,
        );
        Ok(Analysis {
            tiny: f64::EPSILON.sqrt() * matrix.column_norm(),
            matrix,
            rows,
            columns,
            scale_rows: matching.scale_rows,
            scale_columns: matching.scale_columns,
            symbolic,
        })
    }
}

fn inverse(permutation: &[u32]) -> Vec<u32> {
    let mut inverse = vec![0; permutation.len()];
    for (to, from) in permutation.iter().enumerate() {
        inverse[*from as usize] = to as u32;
    }
    inverse
}
