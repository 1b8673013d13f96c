//! Ordered group of ranks that takes part in a phase of a plan.

use std::sync::Arc;

/// Ranks in an order. An index is a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// `first`, `first + 1`, ...
    Range {
        /// First rank.
        first: u32,
        /// Ranks.
        size: u32,
    },
    /// As listed; no rank twice. For few.
    List(Arc<[u32]>),
    /// All ranks in another order.
    Permuted(Arc<Permutation>),
}

/// All ranks in an order, and the place of each in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    order: Vec<u32>,
    index: Vec<u32>,
    /// Whose order it is.
    name: &'static str,
}

impl Permutation {
    /// From ranks in order.
    ///
    /// # Panics
    /// If a rank is missing or listed twice.
    pub fn of(order: Vec<u32>) -> Self {
        let mut index = vec![u32::MAX; order.len()];
        for (at, rank) in order.iter().enumerate() {
            let place = index.get_mut(*rank as usize).expect("ranks 0 to P - 1");
            assert_eq!(*place, u32::MAX, "rank {rank} twice");
            *place = at as u32;
        }
        Self {
            order,
            index,
            name: "the machine's order",
        }
    }

    /// The same with another name.
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Whose order it is.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The ranks.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The place of a rank.
    pub fn index(&self, rank: u32) -> u32 {
        self.index[rank as usize]
    }

    /// Whether ranks come as they are numbered.
    pub fn is_identity(&self) -> bool {
        self.order.is_sorted()
    }

    /// The parts of a machine one after the other, those with `root` first at every
    /// level: a chain in this order leaves each part once.
    pub fn by_place(places: &[Vec<u32>], root: u32) -> Self {
        let home = &places[root as usize];
        let mut order: Vec<u32> = (0..places.len() as u32).collect();
        order.sort_by_key(|rank| {
            let place = &places[*rank as usize];
            let common = place.iter().zip(home).take_while(|(a, b)| a == b).count();
            (place.len() - common, place, *rank != root, *rank)
        });
        Self::of(order)
    }
}

impl Group {
    /// Ranks 0 to `size - 1`.
    pub const fn all(size: u32) -> Self {
        Self::Range { first: 0, size }
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        match self {
            Self::Range { size, .. } => *size,
            Self::List(list) => list.len() as u32,
            Self::Permuted(all) => all.order.len() as u32,
        }
    }

    /// The rank at an index.
    #[inline]
    pub fn rank(&self, index: u32) -> u32 {
        match self {
            Self::Range { first, .. } => first + index,
            Self::List(list) => list[index as usize],
            Self::Permuted(all) => all.order[index as usize],
        }
    }

    /// The index of a rank.
    #[inline]
    pub fn index(&self, rank: u32) -> Option<u32> {
        match self {
            Self::Range { first, size } => rank.checked_sub(*first).filter(|i| i < size),
            Self::List(list) => list.iter().position(|r| *r == rank).map(|i| i as u32),
            Self::Permuted(all) => all.index.get(rank as usize).copied(),
        }
    }
}
