//! Product of two blocks, added to a third: packed panels, and a square of sums that the
//! compiler keeps in vector registers.
//!
//! ```text
//! for columns jc of B, MOST_COLUMNS at a time
//!   for the inner index, MOST_INNER at a time: pack B
//!     for rows of A, MOST_ROWS at a time: pack A
//!       for each ROWS x COLUMNS of C: its sum over the inner index; C += sum
//! ```
//!
//! The sum of an entry of C depends on the inner extent alone: products in ascending order of
//! the inner index, MOST_INNER of them added to 0, then to C.
//!
//! # Sources
//! K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
//! 34(3), 2008, section 4 (packing and the order of loops).

use std::cell::RefCell;

/// Rows of A in a panel.
const ROWS: usize = 4;
/// Columns of B in a panel: with as many rows, the sums fill half of 16 registers of 128 bits.
const COLUMNS: usize = 4;
const MOST_INNER: usize = 256;
const MOST_ROWS: usize = 64;
const MOST_COLUMNS: usize = 512;

thread_local! {
    /// Memory of packed panels of A and B.
    static PACKED: RefCell<(Vec<f64>, Vec<f64>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Rows and columns of C, and the inner extent.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of B and C.
    pub columns: usize,
    /// Columns of A, rows of B.
    pub inner: usize,
}

/// C += A B, each by rows. `between` is called now and then.
///
/// # Panics
/// A slice is shorter than its extents.
pub fn multiply(
    extents: Extents,
    (a, b): (&[f64], &[f64]),
    c: &mut [f64],
    mut between: impl FnMut(),
) {
    let Extents {
        rows,
        columns,
        inner,
    } = extents;
    PACKED.with_borrow_mut(|(packed_a, packed_b)| {
        for j in (0..columns).step_by(MOST_COLUMNS) {
            let some_columns = MOST_COLUMNS.min(columns - j);
            for k in (0..inner).step_by(MOST_INNER) {
                let depth = MOST_INNER.min(inner - k);
                pack_columns(
                    packed_b,
                    &b[k * columns + j..],
                    columns,
                    (depth, some_columns),
                );
                for i in (0..rows).step_by(MOST_ROWS) {
                    let some_rows = MOST_ROWS.min(rows - i);
                    pack_rows(packed_a, &a[i * inner + k..], inner, (some_rows, depth));
                    add_panels(
                        (packed_a, packed_b),
                        depth,
                        &mut c[i * columns + j..],
                        columns,
                        (some_rows, some_columns),
                    );
                    between();
                }
            }
        }
    });
}

/// Panels of ROWS rows, each by columns; rows that are missing are 0.
fn pack_rows(packed: &mut Vec<f64>, a: &[f64], stride: usize, (rows, depth): (usize, usize)) {
    packed.clear();
    packed.resize(rows.next_multiple_of(ROWS) * depth, 0.0);
    for (panel, first) in packed
        .chunks_exact_mut(ROWS * depth)
        .zip((0..rows).step_by(ROWS))
    {
        for r in 0..ROWS.min(rows - first) {
            let row = &a[(first + r) * stride..][..depth];
            for (column, value) in panel.chunks_exact_mut(ROWS).zip(row) {
                column[r] = *value;
            }
        }
    }
}

/// Panels of COLUMNS columns, each by rows; columns that are missing are 0.
fn pack_columns(packed: &mut Vec<f64>, b: &[f64], stride: usize, (depth, columns): (usize, usize)) {
    packed.clear();
    packed.resize(columns.next_multiple_of(COLUMNS) * depth, 0.0);
    let panels = packed.chunks_exact_mut(COLUMNS * depth);
    for (panel, first) in panels.zip((0..columns).step_by(COLUMNS)) {
        let width = COLUMNS.min(columns - first);
        for (k, row) in panel.chunks_exact_mut(COLUMNS).enumerate() {
            row[..width].copy_from_slice(&b[k * stride + first..][..width]);
        }
    }
}

fn add_panels(
    (a, b): (&[f64], &[f64]),
    depth: usize,
    c: &mut [f64],
    stride: usize,
    (rows, columns): (usize, usize),
) {
    for (b, j) in b
        .chunks_exact(COLUMNS * depth)
        .zip((0..columns).step_by(COLUMNS))
    {
        for (a, i) in a.chunks_exact(ROWS * depth).zip((0..rows).step_by(ROWS)) {
            let sums = product(a, b);
            for (r, sums) in sums.iter().enumerate().take(rows - i) {
                let row = &mut c[(i + r) * stride + j..][..COLUMNS.min(columns - j)];
                for (value, sum) in row.iter_mut().zip(sums) {
                    *value += sum;
                }
            }
        }
    }
}

/// The product of two panels.
#[inline]
fn product(a: &[f64], b: &[f64]) -> [[f64; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    let (a, b) = (a.as_chunks::<ROWS>().0, b.as_chunks::<COLUMNS>().0);
    for (a, b) in a.iter().zip(b) {
        for r in 0..ROWS {
            for x in 0..COLUMNS {
                sums[r][x] += a[r] * b[x];
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let value = |i: u64| mix(mix(seed) ^ i) as f64 / u64::MAX as f64 - 0.5;
        (0..n as u64).map(value).collect()
    }

    #[test]
    fn panels_add_in_the_order_of_a_plain_loop() {
        for (rows, columns, inner) in [
            (1, 1, 1),
            (4, 4, 4),
            (3, 5, 7),
            (8, 16, 256),
            (67, 9, 300),
            (5, 515, 30),
            (130, 33, 513),
            (2, 3, 0),
            (0, 3, 2),
        ] {
            let (a, b) = (noise(rows * inner, 1), noise(inner * columns, 2));
            let mut c = noise(rows * columns, 3);
            let mut expected = c.clone();
            for i in 0..rows {
                for j in 0..columns {
                    for first in (0..inner).step_by(MOST_INNER) {
                        let mut sum = 0.0;
                        for k in first..inner.min(first + MOST_INNER) {
                            sum += a[i * inner + k] * b[k * columns + j];
                        }
                        expected[i * columns + j] += sum;
                    }
                }
            }
            let extents = Extents {
                rows,
                columns,
                inner,
            };
            let mut called = 0;
            multiply(extents, (&a, &b), &mut c, || called += 1);
            assert!(c == expected, "{extents:?}");
            assert_eq!(called > 0, rows * inner > 0);
        }
    }
}
