//! Dimensions for a number of ranks: as close to each other as possible.
//!
//! # Sources
//! - MPI Forum, "MPI: A Message-Passing Interface Standard", version 5.0,
//!   section 8.5.2.
//! - J. L. Träff, F. D. Lübbe, "Specification Guideline Violations by
//!   MPI_Dims_create", EuroMPI 2015: "as close to each other as possible" read
//!   as the least difference between largest and smallest dimension; libraries
//!   that divide greedily miss it. Here ties go to the smaller largest
//!   dimension, and the search is bounded by the roots of what is left.

use super::CartError;

/// Fills the zeros in `dims` so that the product is `nodes` and the filled
/// entries are as close to each other as possible, in non-increasing order.
/// Other entries stay. On error `dims` is left as it was.
///
/// # Errors
/// [`CartError::BadNodeCount`], if `nodes` is 0 or above 2^32 - 1;
/// [`CartError::NotDivisible`], if it is no multiple of the product of the entries that are
/// not 0, or not equal to it where none is 0.
pub fn dims_create(nodes: usize, dims: &mut [usize]) -> Result<(), CartError> {
    if nodes == 0 || u32::try_from(nodes).is_err() {
        return Err(CartError::BadNodeCount { nodes });
    }
    let free = dims.iter().filter(|&&dim| dim == 0).count();
    let fixed = (dims.iter().filter(|&&dim| dim != 0))
        .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
        .filter(|product| nodes.is_multiple_of(*product));
    let left = match fixed {
        Some(fixed) if free > 0 || fixed == nodes => nodes / fixed,
        _ => {
            let dims = dims.to_vec();
            return Err(CartError::NotDivisible { nodes, dims });
        }
    };
    let mut factors = balanced(left as u64, free).into_iter();
    for dim in dims.iter_mut().filter(|dim| **dim == 0) {
        *dim = factors.next().unwrap_or(1) as usize;
    }
    Ok(())
}

/// `count` factors of `product`, non-increasing, largest - smallest least.
fn balanced(product: u64, count: usize) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let mut search = Search {
        divisors: divisors(product),
        chosen: Vec::with_capacity(count),
        best: Vec::new(),
        difference: u64::MAX,
        steps: STEPS,
    };
    search.descend(product, count, product);
    search.best
}

/// Factors tried after which the best so far is taken. No count below 2^20 that
/// was tried (all multiples of 720, for one) takes 900 in up to 8 dimensions;
/// this bounds the time for absurd grids.
const STEPS: u32 = 1_000_000;

struct Search {
    /// Ascending.
    divisors: Vec<u64>,
    chosen: Vec<u64>,
    best: Vec<u64>,
    /// Largest - smallest of `best`.
    difference: u64,
    steps: u32,
}

impl Search {
    /// Tries all ways to write `left` as `count` factors, each at most `limit`,
    /// smallest possible largest factor first.
    fn descend(&mut self, left: u64, count: usize, limit: u64) {
        let root = floor_root(left, count);
        let largest = |chosen: &[u64], next| chosen.first().copied().unwrap_or(next);
        // Nothing is left to share out; keeps the depth below 32 in any case.
        if count == 1 || left == 1 {
            if left > limit {
                return;
            }
            let difference = largest(&self.chosen, left) - left;
            // The first found among equals has the smallest largest factor.
            if self.best.is_empty() || difference < self.difference {
                self.difference = difference;
                self.best.clone_from(&self.chosen);
                self.best.resize(self.chosen.len() + count, left);
            }
            return;
        }
        // The largest of `count` factors is at least the root.
        let from = self.divisors.partition_point(|&divisor| {
            (divisor as u128)
                .checked_pow(count as u32)
                .is_some_and(|power| power < left as u128)
        });
        for i in from..self.divisors.len() {
            let factor = self.divisors[i];
            if factor > limit {
                return;
            }
            // The smallest is at most the root.
            if !self.best.is_empty() && largest(&self.chosen, factor) - root >= self.difference {
                return;
            }
            if !left.is_multiple_of(factor) {
                continue;
            }
            if !self.best.is_empty() && self.steps == 0 {
                return;
            }
            self.steps = self.steps.saturating_sub(1);
            self.chosen.push(factor);
            self.descend(left / factor, count - 1, factor);
            self.chosen.pop();
        }
    }
}

/// The largest number whose `count`-th power is at most `value`, which is not 0.
fn floor_root(value: u64, count: usize) -> u64 {
    let fits = |root: u64| {
        u32::try_from(count)
            .ok()
            .and_then(|count| root.checked_pow(count))
            .is_some_and(|power| power <= value)
    };
    let (mut low, mut high) = (1, value);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// All divisors, ascending; `value` fits 32 bits, so at most 2^16 divisions.
fn divisors(value: u64) -> Vec<u64> {
    let mut small: Vec<u64> = (1..)
        .take_while(|divisor| divisor * divisor <= value)
        .filter(|divisor| value.is_multiple_of(*divisor))
        .collect();
    let large = small.iter().rev().map(|divisor| value / divisor);
    let large: Vec<u64> = large.filter(|divisor| divisor * divisor > value).collect();
    small.extend(large);
    small
}
