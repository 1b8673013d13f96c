//! Values by rank, of which few are there: memory grows with those, not with the ranks.
//!
//! [`Sparse`] is an array of the first 32 ranks, and for the others a tree whose nodes are
//! made when something below them is. [`ByRank`] has one owner, so that its first ranks are a
//! plain array, and what lies there costs no more than in one.

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

    /// The same for what may change them.
    fn each_mut(&mut self, first: usize, below: usize, f: &mut impl FnMut(usize, &mut T)) {
        match self {
            Node::Values(values) => {
                for (at, value) in values.iter_mut().enumerate() {
                    value.get_mut().into_iter().for_each(|v| f(first + at, v));
                }
            }
            Node::Nodes(nodes) => {
                for (at, node) in nodes.iter_mut().enumerate() {
                    let first = first + at * below;
                    if let Some(node) = node.get_mut() {
                        node.each_mut(first, below / WIDTH, f);
                    }
                }
            }
        }
    }
}

/// Values of some of a number of ranks.
///
/// ```
/// use osier_transports::by_rank::Sparse;
///
/// let sparse = Sparse::new(1_000_000);
/// assert_eq!(sparse.get_or_init(700_000, || "new"), Some(&"new"));
/// assert_eq!(sparse.get_or_init(700_000, || "newer"), Some(&"new"));
/// assert_eq!((sparse.get(3), sparse.get_or_init(1_000_000, || "")), (None, None));
/// ```
pub struct Sparse<T> {
    ranks: usize,
    first: Box<[OnceLock<T>]>,
    /// Indices below each child of the root.
    below: usize,
    root: OnceLock<Node<T>>,
}

impl<T> Sparse<T> {
    /// Without values, for `ranks` ranks.
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

    /// The value of a rank, if it is there, to change it.
    pub fn get_mut(&mut self, rank: usize) -> Option<&mut T> {
        if let Some(value) = self.first.get_mut(rank) {
            return value.get_mut();
        }
        let (mut node, mut at, mut below) = (self.root.get_mut()?, rank, self.below);
        loop {
            match node {
                Node::Values(values) => return values.get_mut(at)?.get_mut(),
                Node::Nodes(nodes) => {
                    node = nodes.get_mut(at / below)?.get_mut()?;
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

    /// The same for what may change them.
    pub fn each_mut(&mut self, mut f: impl FnMut(usize, &mut T)) {
        for (rank, value) in self.first.iter_mut().enumerate() {
            value.get_mut().into_iter().for_each(|v| f(rank, v));
        }
        if let Some(root) = self.root.get_mut() {
            root.each_mut(0, self.below, &mut f);
        }
    }
}

/// Values of one owner, by rank: those of the first 32 ranks are there from the start,
/// others are made when they are to be changed.
///
/// ```
/// use osier_transports::by_rank::ByRank;
///
/// let mut by_rank = ByRank::new(1_000_000, |rank| rank);
/// assert_eq!((by_rank.get(3), by_rank.get(700_000)), (Some(&3), None));
/// if let Some(value) = by_rank.get_or_make(700_000, |rank| rank) {
///     *value += 1;
/// }
/// assert_eq!(by_rank.get(700_000), Some(&700_001));
/// assert!(by_rank.get_or_make(1_000_000, |rank| rank).is_none());
/// ```
pub struct ByRank<T> {
    first: Vec<T>,
    others: Sparse<Box<T>>,
    ranks: usize,
}

impl<T> ByRank<T> {
    /// For `ranks` ranks; `make` makes the values of the first ones.
    pub fn new(ranks: usize, make: impl FnMut(usize) -> T) -> Self {
        Self {
            first: (0..ranks.min(WIDTH)).map(make).collect(),
            others: Sparse::new(ranks.saturating_sub(WIDTH)),
            ranks,
        }
    }

    /// Number of ranks.
    #[inline]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The value of a rank, if it was made.
    #[inline]
    pub fn get(&self, rank: usize) -> Option<&T> {
        match self.first.get(rank) {
            Some(value) => Some(value),
            None => self.get_below(rank),
        }
    }

    #[cold]
    fn get_below(&self, rank: usize) -> Option<&T> {
        Some(self.others.get(rank.checked_sub(WIDTH)?)?)
    }

    /// The value of a rank, if it was made, to change it.
    #[inline]
    pub fn get_mut(&mut self, rank: usize) -> Option<&mut T> {
        match rank < self.first.len() {
            true => self.first.get_mut(rank),
            false => self.get_mut_below(rank),
        }
    }

    #[cold]
    fn get_mut_below(&mut self, rank: usize) -> Option<&mut T> {
        Some(self.others.get_mut(rank.checked_sub(WIDTH)?)?)
    }

    /// The value of a rank, which `make` makes if it is not there; none of ranks that there are
    /// not.
    #[inline]
    pub fn get_or_make(&mut self, rank: usize, make: impl FnOnce(usize) -> T) -> Option<&mut T> {
        match rank < self.first.len() {
            true => self.first.get_mut(rank),
            false => self.get_or_make_below(rank, make),
        }
    }

    #[cold]
    fn get_or_make_below(&mut self, rank: usize, make: impl FnOnce(usize) -> T) -> Option<&mut T> {
        let at = rank.checked_sub(WIDTH)?;
        self.others.get_or_init(at, || Box::new(make(rank)))?;
        self.get_mut_below(rank)
    }

    /// Calls `f` for all values that are there, by rank.
    pub fn each(&self, mut f: impl FnMut(usize, &T)) {
        (self.first.iter().enumerate()).for_each(|(rank, value)| f(rank, value));
        self.others.each(|at, value| f(WIDTH + at, value));
    }

    /// The same for what may change them.
    pub fn each_mut(&mut self, mut f: impl FnMut(usize, &mut T)) {
        (self.first.iter_mut().enumerate()).for_each(|(rank, value)| f(rank, value));
        self.others.each_mut(|at, value| f(WIDTH + at, value));
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
    fn values_of_one_owner_are_those_of_a_map() {
        for ranks in [0, 1, 31, 32, 33, 64, 65, 1000, 1024, 1056, 1057, 65_536] {
            let mut by_rank = ByRank::new(ranks, |rank| rank);
            let mut map: BTreeMap<_, _> = (0..ranks.min(WIDTH)).map(|rank| (rank, rank)).collect();
            for step in 0..200 {
                let rank = step * 7919 % (ranks + 3);
                let value = by_rank.get_or_make(rank, |rank| rank);
                assert_eq!(value.is_some(), rank < ranks, "{rank} of {ranks}");
                value.into_iter().for_each(|value| *value += step);
                if rank < ranks {
                    *map.entry(rank).or_insert(rank) += step;
                }
            }
            for rank in 0..ranks + 40 {
                assert_eq!(by_rank.get(rank), map.get(&rank), "{rank} of {ranks}");
                assert_eq!(by_rank.get_mut(rank), map.get_mut(&rank));
            }
            by_rank.each_mut(|rank, value| *value += rank);
            map.iter_mut().for_each(|(rank, value)| *value += rank);
            let mut all = BTreeMap::new();
            by_rank.each(|rank, value| assert_eq!(all.insert(rank, *value), None));
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
