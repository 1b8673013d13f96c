//! The one association for operators that round: a balanced tree in rank order.
//!
//! ```text
//! P = 6, so 4 + 2:   ((0 1) (2 3)) (4 5)      leaves of a full tree: 0+1, 2+3, 4, 5
//! ```
//!
//! Let 2^k be the largest power of two that is not above P. The first 2 (P - 2^k)
//! ranks are paired; pairs and other ranks, in order, are the leaves of the full
//! binary tree of 2^k leaves. It depends on P alone, and binomial trees, recursive
//! doubling and recursive halving between nearest neighbors first all make it
//! without a detour. Prefixes (scan) have a tree of their own: the full subtrees of
//! ranks whose union the prefix is, from the right.
//!
//! # Sources
//! The folding of a number of ranks that is no power of two: R. Rabenseifner,
//! J. L. Träff, "More Efficient Reduction Algorithms for Non-Power-of-Two Number of
//! Processors in Message-Passing Parallel Systems", EuroPVM/MPI 2004.

/// How `size` ranks are folded to a power of two. Indices of the folded group are
/// called leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// A power of two.
    pub leaves: u32,
    /// Leaves that are pairs; the first ones.
    pub pairs: u32,
}

impl Fold {
    /// For `size` ranks.
    pub const fn of(size: u32) -> Self {
        let leaves = 1 << size.ilog2();
        Self {
            leaves,
            pairs: size - leaves,
        }
    }

    /// The leaf to which an index belongs.
    pub const fn leaf(self, index: u32) -> u32 {
        if index < 2 * self.pairs {
            index / 2
        } else {
            index - self.pairs
        }
    }

    /// First index of a leaf; of `leaves`, the number of indices.
    pub const fn first(self, leaf: u32) -> u32 {
        if leaf < self.pairs {
            2 * leaf
        } else {
            leaf + self.pairs
        }
    }

    /// The other index of its leaf.
    pub const fn partner(self, index: u32) -> Option<u32> {
        if index < 2 * self.pairs {
            Some(index ^ 1)
        } else {
            None
        }
    }
}

/// Combines `size` operands as the association says: `combine(left, right)`.
pub fn reduce<T>(
    size: u32,
    mut operand: impl FnMut(u32) -> T,
    mut combine: impl FnMut(T, T) -> T,
) -> T {
    let fold = Fold::of(size);
    let mut values: Vec<T> = (0..fold.leaves)
        .map(|leaf| {
            let first = fold.first(leaf);
            let value = operand(first);
            match fold.partner(first) {
                Some(second) => {
                    let right = operand(second);
                    combine(value, right)
                }
                None => value,
            }
        })
        .collect();
    while values.len() > 1 {
        let mut pairs = values.into_iter();
        let mut next = Vec::with_capacity(pairs.len() / 2);
        while let (Some(left), Some(right)) = (pairs.next(), pairs.next()) {
            next.push(combine(left, right));
        }
        values = next;
    }
    values.pop().expect("at least one operand")
}

/// Combines operands 0 to `size - 1` as prefixes do: aligned blocks of powers of
/// two, each balanced, joined from the right.
pub fn prefix<T>(
    size: u32,
    mut operand: impl FnMut(u32) -> T,
    mut combine: impl FnMut(T, T) -> T,
) -> T {
    let mut end = size;
    let mut value: Option<T> = None;
    while end > 0 {
        let block = 1 << end.trailing_zeros();
        end -= block;
        let left = reduce(block, |i| operand(end + i), &mut combine);
        value = Some(match value {
            None => left,
            Some(right) => combine(left, right),
        });
    }
    value.expect("at least one operand")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(size: u32, f: fn(u32, &mut dyn FnMut(u32) -> String) -> String) -> String {
        f(size, &mut |i| i.to_string())
    }

    #[test]
    fn trees() {
        let balanced = |size| {
            text(size, |size, leaf| {
                reduce(size, leaf, |a, b| format!("({a} {b})"))
            })
        };
        let scan = |size| {
            text(size, |size, leaf| {
                prefix(size, leaf, |a, b| format!("({a} {b})"))
            })
        };
        assert_eq!(balanced(1), "0");
        assert_eq!(balanced(3), "((0 1) 2)");
        assert_eq!(balanced(6), "(((0 1) (2 3)) (4 5))");
        assert_eq!(balanced(8), "(((0 1) (2 3)) ((4 5) (6 7)))");
        assert_eq!(scan(7), "(((0 1) (2 3)) ((4 5) 6))");
    }
}
