//! Sparse matrices by columns.
//!
//! # Invariants
//! 1. `starts` ascends from 0 to the number of entries; the row indices of a column ascend
//!    strictly and are below `rows`. No entry is zero.

/// A sparse matrix in compressed columns, indices from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    /// Column `j` has the entries `starts[j]..starts[j + 1]`.
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
}

impl Matrix {
    /// From (row, column, value) in any order. Values of one place are added, and those that
    /// are zero left out.
    ///
    /// # Panics
    /// An index is out of range.
    pub fn from_triplets(rows: usize, columns: usize, triplets: &[(u32, u32, f64)]) -> Self {
        let mut starts = vec![0; columns + 1];
        for (_, column, _) in triplets {
            starts[*column as usize + 1] += 1;
        }
        for j in 0..columns {
            starts[j + 1] += starts[j];
        }
        let mut next = starts.clone();
        let mut entries = vec![(0u32, 0.0f64); triplets.len()];
        for (row, column, value) in triplets {
            assert!((*row as usize) < rows, "row {row} of {rows}");
            let at = &mut next[*column as usize];
            entries[*at] = (*row, *value);
            *at += 1;
        }
        let mut matrix = Matrix {
            rows,
            starts: vec![0],
            indices: Vec::new(),
            values: Vec::new(),
        };
        for j in 0..columns {
            let column = &mut entries[starts[j]..starts[j + 1]];
            column.sort_by_key(|(row, _)| *row);
            for same in column.chunk_by(|a, b| a.0 == b.0) {
                let value: f64 = same.iter().map(|(_, value)| value).sum();
                if value != 0.0 {
                    matrix.indices.push(same[0].0);
                    matrix.values.push(value);
                }
            }
            matrix.starts.push(matrix.indices.len());
        }
        matrix
    }

    /// From the arrays of [`Matrix::arrays`].
    pub fn from_arrays(rows: usize, starts: &[u64], indices: Vec<u32>, values: Vec<f64>) -> Self {
        Matrix {
            rows,
            starts: starts.iter().map(|start| *start as usize).collect(),
            indices,
            values,
        }
    }

    /// Where each column begins, row indices, values.
    pub fn arrays(&self) -> (Vec<u64>, &[u32], &[f64]) {
        let starts = self.starts.iter().map(|start| *start as u64).collect();
        (starts, &self.indices, &self.values)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.starts.len() - 1
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.indices.len()
    }

    /// Rows and values of a column.
    pub fn column(&self, j: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let at = self.starts[j]..self.starts[j + 1];
        let rows = self.indices[at.clone()].iter().map(|row| *row as usize);
        rows.zip(self.values[at].iter().copied())
    }

    /// Row indices of a column.
    pub fn rows_of(&self, j: usize) -> &[u32] {
        &self.indices[self.starts[j]..self.starts[j + 1]]
    }

    /// The matrix whose entry `(row[i], column[j])` is this one's `(i, j)`, multiplied by the
    /// scales of its row and column.
    pub fn scaled_and_permuted(
        &self,
        row: &[u32],
        column: &[u32],
        scale_rows: &[f64],
        scale_columns: &[f64],
    ) -> Matrix {
        let mut triplets = Vec::with_capacity(self.entries());
        for j in 0..self.columns() {
            for (i, value) in self.column(j) {
                let scaled = scale_rows[i] * value * scale_columns[j];
                triplets.push((row[i], column[j], scaled));
            }
        }
        Matrix::from_triplets(self.rows, self.columns(), &triplets)
    }

    /// `b - A x`.
    pub fn residual(&self, x: &[f64], b: &[f64]) -> Vec<f64> {
        let mut r = b.to_vec();
        for (j, x) in x.iter().enumerate() {
            for (i, value) in self.column(j) {
                r[i] -= value * x;
            }
        }
        r
    }

    /// `A x`.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        let r = self.residual(x, &vec![0.0; self.rows]);
        r.into_iter().map(|value| -value).collect()
    }

    /// Largest sum of absolute values over a row, and most entries of a row.
    pub fn row_norm(&self) -> (f64, usize) {
        let mut sums = vec![(0.0f64, 0usize); self.rows];
        for (row, value) in self.indices.iter().zip(&self.values) {
            let sum = &mut sums[*row as usize];
            *sum = (sum.0 + value.abs(), sum.1 + 1);
        }
        let most = |a: (f64, usize), b: &(f64, usize)| (a.0.max(b.0), a.1.max(b.1));
        sums.iter().fold((0.0, 0), most)
    }

    /// Largest sum of absolute values over a column.
    pub fn column_norm(&self) -> f64 {
        let sum = |j: usize| self.column(j).map(|(_, value)| value.abs()).sum::<f64>();
        (0..self.columns()).map(sum).fold(0.0, f64::max)
    }

    /// Largest absolute value.
    pub fn largest(&self) -> f64 {
        largest(&self.values)
    }
}

/// Largest absolute value; not a number, if one is none.
pub fn largest(values: &[f64]) -> f64 {
    let more = |most: f64, value: &f64| larger(most, value.abs());
    values.iter().fold(0.0, more)
}

/// The larger number; not a number, if one is none.
pub fn larger(a: f64, b: f64) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false => a.max(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triplets_are_sorted_added_and_zeros_left_out() {
        let triplets = [
            (2, 1, 5.0),
            (0, 0, 1.0),
            (2, 0, 4.0),
            (0, 0, 2.0),
            (1, 0, 1.0),
            (1, 0, -1.0),
        ];
        let matrix = Matrix::from_triplets(3, 2, &triplets);
        assert_eq!(matrix.column(0).collect::<Vec<_>>(), [(0, 3.0), (2, 4.0)]);
        assert_eq!(matrix.column(1).collect::<Vec<_>>(), [(2, 5.0)]);
        assert_eq!(matrix.times(&[1.0, 2.0]), [3.0, 0.0, 14.0]);
        assert_eq!(matrix.row_norm(), (9.0, 2));
        assert_eq!(matrix.column_norm(), 7.0);
        let (starts, indices, values) = matrix.arrays();
        let copy = Matrix::from_arrays(3, &starts, indices.to_vec(), values.to_vec());
        assert_eq!(copy, matrix);
    }

    #[test]
    fn what_is_no_number_is_the_largest() {
        assert_eq!(largest(&[1.0, -3.0]), 3.0);
        assert!(largest(&[f64::NAN, 1.0]).is_nan());
        assert!(largest(&[1.0, f64::NAN]).is_nan());
    }
}
