//! From world rank to rank in a group.

use std::collections::HashMap;

/// From world rank to rank in the group.
pub(crate) enum Inverse {
    /// For members that lie close together: indexed by world rank - `first`,
    /// `ABSENT` in the gaps.
    Dense { first: u32, ranks: Box<[u32]> },
    /// For the rest.
    Sparse(HashMap<u32, u32>),
}

const ABSENT: u32 = u32::MAX;

/// A table of at most this many entries per member is preferred to hashing.
const DENSE_PER_MEMBER: usize = 8;

impl Inverse {
    pub fn of(ranks: &[u32]) -> Self {
        let first = ranks.iter().copied().min().unwrap_or(0);
        let last = ranks.iter().copied().max().unwrap_or(0);
        let span = (last - first) as usize + 1;
        let numbered = ranks.iter().zip(0..);
        if span > DENSE_PER_MEMBER * ranks.len() {
            return Self::Sparse(numbered.map(|(&world, rank)| (world, rank)).collect());
        }
        let mut dense = vec![ABSENT; span].into_boxed_slice();
        for (&world, rank) in numbered {
            dense[(world - first) as usize] = rank;
        }
        Self::Dense {
            first,
            ranks: dense,
        }
    }

    pub fn rank_of(&self, world: u32) -> Option<usize> {
        match self {
            Self::Dense { first, ranks } => {
                let at = world.checked_sub(*first)? as usize;
                let rank = *ranks.get(at)?;
                (rank != ABSENT).then_some(rank as usize)
            }
            Self::Sparse(ranks) => ranks.get(&world).map(|&rank| rank as usize),
        }
    }
}
