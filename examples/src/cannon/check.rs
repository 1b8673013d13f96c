//! Whether C is right: the same additions without messages, and a plain triple loop.
//!
//! # Sources
//! N. J. Higham, "Accuracy and stability of numerical algorithms", 2nd edition, SIAM, 2002,
//! section 3.1: a sum of n products, in whatever order, is off by at most
//! gamma_n = n u / (1 - n u) times the sum of their absolute values, u = 2^-53.

use super::kernel::{Extents, multiply};
use super::matrix::{Factor, fill};
use super::plan::Plan;

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Checked {
    /// Entries whose bits differ from those of the same additions without messages.
    pub other_bits: u64,
    /// Largest difference to the triple loop.
    pub largest: f64,
    /// Largest difference as a share of what rounding can do to its entry; infinite for NaN.
    pub of_limit: f64,
}

impl Checked {
    /// Whether the product is right.
    pub fn passes(&self) -> bool {
        self.other_bits == 0 && self.of_limit <= 1.0
    }
}

/// C_ij by the steps of a plan, one after the other.
pub fn product_by_blocks(plan: &Plan, seed: u64, i: usize, j: usize) -> Vec<f64> {
    let (rows, columns) = (plan.range(i), plan.range(j));
    let mut sum = Vec::new();
    for layer in 0..plan.layers {
        let mut part = vec![0.0; rows.len() * columns.len()];
        for step in plan.steps(layer) {
            let inner = plan.range(plan.inner(i, j, step));
            let extents = Extents {
                rows: rows.len(),
                columns: columns.len(),
                inner: inner.len(),
            };
            let mut a = vec![0.0; rows.len() * inner.len()];
            let mut b = vec![0.0; inner.len() * columns.len()];
            fill(plan, seed, Factor::A, (rows.clone(), inner.clone()), &mut a);
            fill(plan, seed, Factor::B, (inner, columns.clone()), &mut b);
            multiply(extents, (&a, &b), &mut part, || {});
        }
        match layer {
            0 => sum = part,
            _ => add(&mut sum, &part),
        }
    }
    sum
}

/// Adds the partial sums of a layer.
pub fn add(sum: &mut [f64], part: &[f64]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}

/// Compares C_ij with both.
pub fn check(plan: &Plan, seed: u64, (i, j): (usize, usize), c: &[f64]) -> Checked {
    let expected = product_by_blocks(plan, seed, i, j);
    let pairs = c.iter().zip(&expected);
    let missing = c.len().abs_diff(expected.len());
    let differ = pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count() + missing;
    let mut checked = Checked {
        other_bits: differ as u64,
        ..Checked::default()
    };

    let (n, rows, columns) = (plan.n, plan.range(i), plan.range(j));
    let width = columns.len();
    let mut b = vec![0.0; n * width];
    fill(plan, seed, Factor::B, (0..n, columns), &mut b);
    let (mut a, mut sums, mut sizes) = (vec![0.0; n], vec![0.0; width], vec![0.0; width]);
    // A sum passes through as many roundings as it has products, and one for each layer.
    let roundings = (n + plan.layers) as f64 * (f64::EPSILON / 2.0);
    let gamma = roundings / (1.0 - roundings);
    for (row, c) in rows.zip(c.chunks_exact(width)) {
        fill(plan, seed, Factor::A, (row..row + 1, 0..n), &mut a);
        sums.fill(0.0);
        sizes.fill(0.0);
        for (a, b) in a.iter().zip(b.chunks_exact(width)) {
            for ((sum, size), b) in sums.iter_mut().zip(&mut sizes).zip(b) {
                let product = a * b;
                *sum += product;
                *size += product.abs();
            }
        }
        for ((value, sum), size) in c.iter().zip(&sums).zip(&sizes) {
            let off = (value - sum).abs();
            // Both sums round.
            let limit = 2.0 * gamma * size;
            let of_limit = match off {
                0.0 => 0.0,
                off if off.is_nan() => f64::INFINITY,
                off => off / limit,
            };
            checked.largest = checked.largest.max(off);
            checked.of_limit = checked.of_limit.max(of_limit);
        }
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_an_error_and_a_nan_are_seen() {
        let plan = Plan {
            n: 13,
            blocks: 3,
            layers: 2,
        };
        let right = product_by_blocks(&plan, 5, 2, 1);
        let of = |c: &[f64]| check(&plan, 5, (2, 1), c);
        assert!(of(&right).passes());
        assert!(!check(&plan, 6, (2, 1), &right).passes());
        let mut bit = right.clone();
        bit[3] = f64::from_bits(bit[3].to_bits() ^ 1);
        assert_eq!((of(&bit).other_bits, of(&bit).of_limit <= 1.0), (1, true));
        let mut off = right.clone();
        off[0] += 1e-10;
        assert!(of(&off).of_limit > 1.0);
        let mut nan = right.clone();
        nan[7] = f64::NAN;
        assert!(of(&nan).of_limit.is_infinite());
        assert!(!of(&right[1..]).passes());
    }
}
