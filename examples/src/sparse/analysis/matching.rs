//! Rows for the diagonal: a matching of rows and columns whose product of absolute values is
//! largest, and scales that make these entries 1 and all others at most 1.
//!
//! Maximizing a product is minimizing the sum of `c(i, j) = ln max_i |a(i, j)| - ln |a(i, j)|`.
//! Columns are matched one after another along a shortest augmenting path of reduced costs
//! `c(i, j) - u(i) - v(j)`, found as Dijkstra does.
//!
//! # Invariants
//! 1. Reduced costs are at least 0 up to rounding, and 0 on the matching.
//!
//! # Sources
//! I. Duff, J. Koster, "On Algorithms for Permuting Large Entries to the Diagonal of a Sparse
//! Matrix", SIAM J. Matrix Anal. Appl. 22(4), 2001, sections 2 to 4.

use super::super::matrix::Matrix;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

/// A matching of all columns.
#[derive(Clone, Debug)]
pub struct Matching {
    /// The row of each column's diagonal entry.
    pub row_of: Vec<u32>,
    /// What each row is multiplied by.
    pub scale_rows: Vec<f64>,
    /// What each column is multiplied by.
    pub scale_columns: Vec<f64>,
}

/// A matrix that is singular whatever its values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructurallySingular {
    /// Columns that could be matched.
    pub matched: usize,
    /// A column that could not.
    pub column: usize,
}

/// Finds the matching of a square matrix.
///
/// # Errors
/// There is no matching of all columns.
pub fn maximum_product(matrix: &Matrix) -> Result<Matching, StructurallySingular> {
    let n = matrix.columns();
    let mut state = State::new(matrix);
    state.begin();
    let mut refused = None;
    for column in 0..n {
        if state.row_of[column] == NONE && !state.augment(column) {
            refused = refused.or(Some(column));
        }
    }
    if let Some(column) = refused {
        let matched = state.row_of.iter().filter(|row| **row != NONE).count();
        return Err(StructurallySingular { matched, column });
    }
    let scale_rows = state.u.iter().map(|u| u.exp()).collect();
    let scales = state.v.iter().zip(&state.largest);
    let scale_columns = scales.map(|(v, largest)| (v - largest.ln()).exp());
    Ok(Matching {
        scale_columns: scale_columns.collect(),
        scale_rows,
        row_of: state.row_of,
    })
}

struct State<'a> {
    matrix: &'a Matrix,
    /// Largest absolute value of each column.
    largest: Vec<f64>,
    u: Vec<f64>,
    v: Vec<f64>,
    /// Row of a column, column of a row.
    row_of: Vec<u32>,
    column_of: Vec<u32>,
    /// Of the search that is under way: length of the shortest path to each row so far, the
    /// column before it there, whether the length is final.
    length: Vec<f64>,
    before: Vec<u32>,
    is_final: Vec<bool>,
    reached: Vec<u32>,
}

impl<'a> State<'a> {
    fn new(matrix: &'a Matrix) -> Self {
        let n = matrix.columns();
        let largest = |j| {
            matrix
                .column(j)
                .fold(0.0f64, |most, (_, a)| most.max(a.abs()))
        };
        Self {
            matrix,
            largest: (0..n).map(largest).collect(),
            u: vec![f64::INFINITY; n],
            v: vec![0.0; n],
            row_of: vec![NONE; n],
            column_of: vec![NONE; n],
            length: vec![f64::INFINITY; n],
            before: vec![NONE; n],
            is_final: vec![false; n],
            reached: Vec::new(),
        }
    }

    /// Rows of a column with their costs.
    fn costs(&self, j: usize) -> impl Iterator<Item = (usize, f64)> + use<'a> {
        let largest = self.largest[j].ln();
        let cost = move |(i, a): (usize, f64)| (i, largest - a.abs().ln());
        self.matrix.column(j).map(cost)
    }

    /// Dual variables to begin with, and the matching that they allow at once.
    fn begin(&mut self) {
        let n = self.matrix.columns();
        for j in 0..n {
            for (i, cost) in self.costs(j) {
                self.u[i] = self.u[i].min(cost);
            }
        }
        for u in &mut self.u {
            // A row without entries.
            *u = if u.is_finite() { *u } else { 0.0 };
        }
        for j in 0..n {
            let left = self.costs(j).map(|(i, cost)| cost - self.u[i]);
            let least = left.fold(f64::INFINITY, f64::min);
            self.v[j] = if least.is_finite() { least } else { 0.0 };
            let is_free = |(i, cost): &(usize, f64)| {
                cost - self.u[*i] - self.v[j] == 0.0 && self.column_of[*i] == NONE
            };
            if let Some((i, _)) = self.costs(j).find(is_free) {
                (self.row_of[j], self.column_of[i]) = (i as u32, j as u32);
            }
        }
    }

    /// Matches one more column; false: there is no augmenting path.
    fn augment(&mut self, root: usize) -> bool {
        let mut queue = BinaryHeap::new();
        let (mut column, mut so_far) = (root, 0.0f64);
        let mut scanned = vec![root];
        // The shortest path to a row that is not matched.
        let mut best = f64::INFINITY;
        let end = loop {
            for (i, cost) in self.costs(column) {
                let length = so_far + (cost - self.u[i] - self.v[column]).max(0.0);
                if self.is_final[i] || length >= self.length[i] || length >= best {
                    continue;
                }
                if self.length[i].is_infinite() {
                    self.reached.push(i as u32);
                }
                (self.length[i], self.before[i]) = (length, column as u32);
                if self.column_of[i] == NONE {
                    best = length;
                }
                // Bits of numbers that are not negative are ordered as these are.
                queue.push(Reverse((length.to_bits(), i as u32)));
            }
            let row = loop {
                match queue.pop() {
                    None => break None,
                    Some(Reverse((bits, i))) => {
                        let i = i as usize;
                        if !self.is_final[i] && self.length[i].to_bits() == bits {
                            break Some(i);
                        }
                    }
                }
            };
            let Some(i) = row else { break None };
            if self.column_of[i] == NONE {
                break Some(i);
            }
            self.is_final[i] = true;
            (column, so_far) = (self.column_of[i] as usize, self.length[i]);
            scanned.push(column);
        };
        if let Some(end) = end {
            let least = self.length[end];
            for i in &self.reached {
                let i = *i as usize;
                if self.is_final[i] {
                    self.u[i] += self.length[i] - least;
                }
            }
            let mut i = end;
            loop {
                let j = self.before[i] as usize;
                let next = std::mem::replace(&mut self.row_of[j], i as u32);
                self.column_of[i] = j as u32;
                if j == root {
                    break;
                }
                i = next as usize;
            }
            for j in scanned {
                let own = self.row_of[j] as usize;
                let cost = self.costs(j).find(|(i, _)| *i == own);
                self.v[j] = cost.map_or(0.0, |(i, cost)| cost - self.u[i]);
            }
        }
        for i in self.reached.drain(..) {
            self.length[i as usize] = f64::INFINITY;
            self.is_final[i as usize] = false;
        }
        end.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(rows: &[&[f64]]) -> Matrix {
        let n = rows.len();
        let places = (0..n * n).map(|at| (at / n, at % n));
        let triplets = places.map(|(i, j)| (i as u32, j as u32, rows[i][j]));
        Matrix::from_triplets(n, n, &triplets.collect::<Vec<_>>())
    }

    /// The largest product over all permutations.
    fn best(rows: &[Vec<f64>], used: &mut Vec<bool>, column: usize) -> f64 {
        if column == rows.len() {
            return 1.0;
        }
        let mut most = 0.0f64;
        for i in 0..rows.len() {
            if !used[i] && rows[i][column] != 0.0 {
                used[i] = true;
                most = most.max(rows[i][column].abs() * best(rows, used, column + 1));
                used[i] = false;
            }
        }
        most
    }

    #[test]
    fn the_product_is_largest_and_scales_bound_the_rest() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        for n in 1..7 {
            for _ in 0..60 {
                let mut entry = || {
                    if random() < 0.5 {
                        0.0
                    } else {
                        random() * 8.0 - 4.0
                    }
                };
                let rows: Vec<Vec<f64>> =
                    (0..n).map(|_| (0..n).map(|_| entry()).collect()).collect();
                let slices: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
                let most = best(&rows, &mut vec![false; n], 0);
                let found = match maximum_product(&dense(&slices)) {
                    Ok(found) => found,
                    Err(e) => {
                        assert!(e.matched < n && most == 0.0, "{e:?} {most}");
                        continue;
                    }
                };
                let product: f64 = (0..n)
                    .map(|j| rows[found.row_of[j] as usize][j].abs())
                    .product();
                assert!((product - most).abs() <= 1e-12 * most, "{product} {most}");
                for (i, row) in rows.iter().enumerate() {
                    for (j, a) in row.iter().enumerate() {
                        let scaled = (found.scale_rows[i] * a * found.scale_columns[j]).abs();
                        assert!(scaled <= 1.0 + 1e-12, "{scaled}");
                        if found.row_of[j] as usize == i {
                            assert!(scaled >= 1.0 - 1e-12, "{scaled}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_matched_is_counted() {
        let singular = dense(&[&[1.0, 1.0, 0.0], &[0.0, 0.0, 2.0], &[0.0, 0.0, 3.0]]);
        let error = maximum_product(&singular).expect_err("two rows for one column");
        assert_eq!((error.matched, error.column), (2, 1));
    }
}
