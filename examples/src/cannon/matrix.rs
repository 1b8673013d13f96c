//! Entries of the factors, which follow from their indices and a seed.

use std::ops::Range;

use super::plan::Plan;
use crate::hash::mix;

/// One of the two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// The left one.
    A,
    /// The right one.
    B,
}

/// The entry of a factor with `n` columns, at least -1 and below 1.
#[inline]
pub fn entry(n: usize, seed: u64, factor: Factor, row: usize, column: usize) -> f64 {
    let stream = mix(seed ^ ((factor as u64) << 63));
    let bits = mix(stream ^ (row as u64 * n as u64 + column as u64)) >> 11;
    bits as f64 / (1u64 << 52) as f64 - 1.0
}

/// Fills a block, row by row.
pub fn fill(
    plan: &Plan,
    seed: u64,
    factor: Factor,
    (rows, columns): (Range<usize>, Range<usize>),
    into: &mut [f64],
) {
    let entries = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
    for (value, (row, column)) in into.iter_mut().zip(entries) {
        *value = entry(plan.n, seed, factor, row, column);
    }
}
