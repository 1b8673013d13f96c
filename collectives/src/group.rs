//! Some ranks in an order: who takes part in a phase of a plan.

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
    /// As listed; no rank twice.
    List(Arc<[u32]>),
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
        }
    }

    /// The rank at an index.
    #[inline]
    pub fn rank(&self, index: u32) -> u32 {
        match self {
            Self::Range { first, .. } => first + index,
            Self::List(list) => list[index as usize],
        }
    }

    /// The index of a rank.
    #[inline]
    pub fn index(&self, rank: u32) -> Option<u32> {
        match self {
            Self::Range { first, size } => rank.checked_sub(*first).filter(|i| i < size),
            Self::List(list) => list.iter().position(|r| *r == rank).map(|i| i as u32),
        }
    }
}
