//! Values by rank, of which few are there: memory grows with those, not with the ranks.
//!
//! An array of the first [`WIDTH`] ranks, and for the others a tree whose nodes are made when
//! something below them is.

use std::sync::OnceLock;

/// Children of a node.
const WIDTH: usize = 32;

enum Node<T> {
    Values(Box<[OnceLock<T>]>),
    Nodes(Box<[OnceLock<Node<T>>]>),
}

fn empty<T>() -> Box<[OnceLock<T>]> {
    (0..WIDTH).map(|_| OnceLock::new()).collect()
}

impl<T> Node<T> {
    /// A node whose children have `below` indices each.
    fn new(below: usize) -> Self {
        match below {
            1 => Node::Values(empty()),
            _ => Node::Nodes(empty()),
        }
    }

    /// Calls `f` for all values below, whose indices begin with `first`.
    fn each(&self, first: usize, below: usize, f: &mut impl FnMut(usize, &T)) {
        match self {
            Node::Values(values) => {
                for (at, value) in values.iter().enumerate() {
                    value.get().into_iter().for_each(|v| f(first + at, v));
                }
            }
            Node::Nodes(nodes) => {
                for (at, node) in nodes.iter().enumerate() {
                    let first = first + at * below;
                    (node.get().into_iter()).for_each(|node| node.each(first, below / WIDTH, f));
                }
            }
        }
    }
}

/// Values of some of a number of ranks.
pub(super) struct Sparse<T> {
    ranks: usize,
    first: Box<[OnceLock<T>]>,
    /// Indices below each child of the root.
    below: usize,
    root: OnceLock<Node<T>>,
}

impl<T> Sparse<T> {
    pub fn new(ranks: usize) -> Self {
        let mut below = 1usize;
        while below.saturating_mul(WIDTH) < ranks {
            below *= WIDTH;
        }
        Self {
            ranks,
            first: (0..ranks.min(WIDTH)).map(|_| OnceLock::new()).collect(),
            below,
            root: OnceLock::new(),
        }
    }

    /// The value of a rank, if it is there.
    #[inline]
    pub fn get(&self, rank: usize) -> Option<&T> {
        match self.first.get(rank) {
            Some(value) => value.get(),
            None => self.get_below(rank),
        }
    }

    fn get_below(&self, rank: usize) -> Option<&T> {
        let (mut node, mut at, mut below) = (self.root.get()?, rank, self.below);
        loop {
            match node {
                Node::Values(values) => return values.get(at)?.get(),
                Node::Nodes(nodes) => {
                    node = nodes.get(at / below)?.get()?;
                    at %= below;
                    below /= WIDTH;
                }
            }
        }
    }

    /// The value of a rank, which is made if it is not there; none of ranks that there are not.
    pub fn get_or_init(&self, rank: usize, make: impl FnOnce() -> T) -> Option<&T> {
        if let Some(value) = self.first.get(rank) {
            return Some(value.get_or_init(make));
        }
        if rank >= self.ranks {
            return None;
        }
        let root = self.root.get_or_init(|| Node::new(self.below));
        let (mut node, mut at, mut below) = (root, rank, self.below);
        loop {
            match node {
                Node::Values(values) => return Some(values.get(at)?.get_or_init(make)),
                Node::Nodes(nodes) => {
                    let child = nodes.get(at / below)?;
                    node = child.get_or_init(|| Node::new(below / WIDTH));
                    at %= below;
                    below /= WIDTH;
                }
            }
        }
    }

    /// Calls `f` for all values that are there, by rank.
    pub fn each(&self, mut f: impl FnMut(usize, &T)) {
        for (rank, value) in self.first.iter().enumerate() {
            value.get().into_iter().for_each(|v| f(rank, v));
        }
        if let Some(root) = self.root.get() {
            root.each(0, self.below, &mut f);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn nodes<T>(node: &Node<T>) -> usize {
        match node {
            Node::Values(_) => 1,
            Node::Nodes(below) => {
                1 + below
                    .iter()
                    .filter_map(|n| Some(nodes(n.get()?)))
                    .sum::<usize>()
            }
        }
    }

    #[test]
    fn values_are_those_of_a_map() {
        for ranks in [0, 1, 31, 32, 33, 1000, 1024, 1025, 65_536] {
            let (sparse, mut map) = (Sparse::new(ranks), BTreeMap::new());
            for step in 0..200 {
                let rank = step * 7919 % (ranks + 3);
                let value = sparse.get_or_init(rank, || step).copied();
                let wanted = (rank < ranks).then(|| *map.entry(rank).or_insert(step));
                assert_eq!(value, wanted, "{rank} of {ranks}");
            }
            for rank in 0..ranks + 40 {
                assert_eq!(sparse.get(rank), map.get(&rank), "{rank} of {ranks}");
            }
            let mut all = BTreeMap::new();
            sparse.each(|rank, value| assert_eq!(all.insert(rank, *value), None));
            assert_eq!(all, map);
        }
    }

    #[test]
    fn memory_grows_with_the_values() {
        let sparse = Sparse::new(1 << 20);
        assert!(sparse.root.get().is_none());
        for rank in 0..64 {
            sparse.get_or_init(rank << 14, || rank);
        }
        assert!(nodes(sparse.root.get().unwrap()) <= 1 + 3 * 64);
    }
}
