//! Groups: ordered sets of ranks, as values.
//!
//! A group lists the job-wide ranks ("world ranks") of its members; the place
//! in the list is the rank within the group. Nothing here communicates.
//!
//! # Invariants
//! 1. No world rank appears twice.
//! 2. Consecutive ascending world ranks are kept as a range, without a table:
//!    the world group costs the same for any number of ranks.
//! 3. A table is immutable and shared by clones, and so is its inverse, which
//!    is built at the first look-up.
//!
//! # Sources
//! MPI Forum, "MPI: A Message-Passing Interface Standard", version 5.0, section
//! 7.3.2 (group constructors). A range whose stride leads away from its last
//! rank is an error here, as in MPICH, rather than an empty list.

mod error;
mod inverse;

pub use error::GroupError;

use inverse::Inverse;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// An ordered set of job-wide ranks. Cloning is cheap.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let all = comm.group();
/// let first = all.incl(&[0])?;
/// assert_eq!(all.difference(&first).size(), comm.size() - 1);
/// assert_eq!(first.rank_of(0), Some(0));
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone)]
pub struct Group(Members);

#[derive(Clone)]
enum Members {
    Range(Range<u32>),
    Table(Arc<Table>),
}

struct Table {
    ranks: Box<[u32]>,
    inverse: OnceLock<Inverse>,
}

/// How two groups relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupComparison {
    /// Same members in the same order.
    Ident,
    /// Same members in another order.
    Similar,
    /// Different members.
    Unequal,
}

/// An arithmetic sequence of ranks, for [`Group::range_incl`]: `first`,
/// `first + stride`, ... up to and possibly including `last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankRange {
    /// Where it starts.
    pub first: usize,
    /// Where it ends at the latest.
    pub last: usize,
    /// The step; negative to count down, never 0.
    pub stride: isize,
}

impl Group {
    /// The group without members.
    pub const fn empty() -> Self {
        Self(Members::Range(0..0))
    }

    /// The world ranks 0 to `size - 1` in order.
    pub fn identity(size: u32) -> Self {
        Self(Members::Range(0..size))
    }

    /// One member.
    ///
    /// # Errors
    /// [`GroupError::RankTooLarge`], if `world` is 2^32 - 1 or above.
    pub fn single(world: usize) -> Result<Self, GroupError> {
        Self::from_world_ranks(&[world])
    }

    /// The world ranks given, in this order.
    ///
    /// # Errors
    /// [`GroupError::DuplicateRank`], if a rank appears twice, or
    /// [`GroupError::RankTooLarge`], if it is 2^32 - 1 or above.
    pub fn from_world_ranks(ranks: &[usize]) -> Result<Self, GroupError> {
        let small: Vec<u32> = ranks
            .iter()
            .map(|&rank| match u32::try_from(rank) {
                Ok(small) if small != u32::MAX => Ok(small),
                _ => Err(GroupError::RankTooLarge { rank }),
            })
            .collect::<Result<_, _>>()?;
        let mut sorted = small.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let rank = pair[0] as usize;
            return Err(GroupError::DuplicateRank { rank });
        }
        Ok(Self::from_distinct(small))
    }

    /// Upholds invariant 2.
    fn from_distinct(ranks: Vec<u32>) -> Self {
        let consecutive = ranks.windows(2).all(|pair| pair[1] == pair[0] + 1);
        Self(match (consecutive, ranks.first(), ranks.last()) {
            (true, Some(&first), Some(&last)) => Members::Range(first..last + 1),
            (true, ..) => Members::Range(0..0),
            (false, ..) => Members::Table(Arc::new(Table {
                ranks: ranks.into_boxed_slice(),
                inverse: OnceLock::new(),
            })),
        })
    }

    /// Number of members.
    #[inline]
    pub fn size(&self) -> usize {
        match &self.0 {
            Members::Range(range) => range.len(),
            Members::Table(table) => table.ranks.len(),
        }
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// The rank in this group of the process with this world rank; `None` if it
    /// is not a member. Constant time.
    #[inline]
    pub fn rank_of(&self, world: usize) -> Option<usize> {
        let world = u32::try_from(world).ok()?;
        match &self.0 {
            Members::Range(range) => range
                .contains(&world)
                .then(|| (world - range.start) as usize),
            Members::Table(table) => table
                .inverse
                .get_or_init(|| Inverse::of(&table.ranks))
                .rank_of(world),
        }
    }

    /// The world rank of member `rank`; `None` if there are not that many.
    #[inline]
    pub fn world_rank(&self, rank: usize) -> Option<usize> {
        match &self.0 {
            Members::Range(range) if rank < range.len() => Some(range.start as usize + rank),
            Members::Range(_) => None,
            Members::Table(table) => table.ranks.get(rank).map(|&world| world as usize),
        }
    }

    /// The world ranks of all members, in group order.
    pub fn world_ranks(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.size()).map(|rank| self.world(rank) as usize)
    }

    /// The world rank of a member that exists.
    fn world(&self, rank: usize) -> u32 {
        match &self.0 {
            Members::Range(range) => range.start + rank as u32,
            Members::Table(table) => table.ranks[rank],
        }
    }

    fn contains(&self, world: u32) -> bool {
        self.rank_of(world as usize).is_some()
    }

    fn worlds(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.size()).map(|rank| self.world(rank))
    }

    fn out_of_range(&self, rank: usize) -> GroupError {
        let size = self.size();
        GroupError::RankOutOfRange { rank, size }
    }

    /// Marks the ranks given.
    fn marks(&self, ranks: impl Iterator<Item = usize>) -> Result<Vec<bool>, GroupError> {
        let mut marks = vec![false; self.size()];
        for rank in ranks {
            let mark = marks.get_mut(rank).ok_or_else(|| self.out_of_range(rank))?;
            if std::mem::replace(mark, true) {
                return Err(GroupError::DuplicateRank { rank });
            }
        }
        Ok(marks)
    }

    /// The members with these ranks, in the order given.
    ///
    /// # Errors
    /// [`GroupError::RankOutOfRange`], if a rank is not below the group's size, or
    /// [`GroupError::DuplicateRank`], if it is named twice.
    pub fn incl(&self, ranks: &[usize]) -> Result<Self, GroupError> {
        self.marks(ranks.iter().copied())?;
        let worlds = ranks.iter().map(|&rank| self.world(rank));
        Ok(Self::from_distinct(worlds.collect()))
    }

    /// The members without these ranks, in this group's order.
    ///
    /// # Errors
    /// [`GroupError::RankOutOfRange`], if a rank is not below the group's size, or
    /// [`GroupError::DuplicateRank`], if it is named twice.
    pub fn excl(&self, ranks: &[usize]) -> Result<Self, GroupError> {
        let marks = self.marks(ranks.iter().copied())?;
        let left = self.worlds().zip(marks).filter(|(_, gone)| !gone);
        Ok(Self::from_distinct(left.map(|(world, _)| world).collect()))
    }

    /// The members in these ranges, in the order given.
    ///
    /// # Errors
    /// [`GroupError::ZeroStride`], [`GroupError::StrideSign`], if a stride leads away from the
    /// last rank, [`GroupError::RankOutOfRange`], or [`GroupError::DuplicateRank`], if two
    /// ranges have a rank in common.
    pub fn range_incl(&self, ranges: &[RankRange]) -> Result<Self, GroupError> {
        self.incl(&self.expand(ranges)?)
    }

    /// The members outside these ranges, in this group's order.
    ///
    /// # Errors
    /// As [`Group::range_incl`].
    pub fn range_excl(&self, ranges: &[RankRange]) -> Result<Self, GroupError> {
        self.excl(&self.expand(ranges)?)
    }

    fn expand(&self, ranges: &[RankRange]) -> Result<Vec<usize>, GroupError> {
        let mut ranks = Vec::new();
        let mut seen = vec![false; self.size()];
        for range in ranges {
            let RankRange {
                first,
                last,
                stride,
            } = *range;
            if stride == 0 {
                return Err(GroupError::ZeroStride { first, last });
            }
            if first != last && (first < last) != (stride > 0) {
                return Err(GroupError::StrideSign {
                    first,
                    last,
                    stride,
                });
            }
            let step = stride.unsigned_abs();
            let steps = first.abs_diff(last) / step;
            let nth = |i: usize| match stride {
                1.. => first + i * step,
                _ => first - i * step,
            };
            // Both ends in range bounds the number of steps as well.
            if let Some(rank) = [first, nth(steps)].into_iter().find(|&r| r >= self.size()) {
                return Err(self.out_of_range(rank));
            }
            for rank in (0..=steps).map(nth) {
                if std::mem::replace(&mut seen[rank], true) {
                    return Err(GroupError::DuplicateRank { rank });
                }
                ranks.push(rank);
            }
        }
        Ok(ranks)
    }

    /// All members of `self`, then those of `other` that are not in `self`.
    pub fn union(&self, other: &Self) -> Self {
        let new = other.worlds().filter(|&world| !self.contains(world));
        Self::from_distinct(self.worlds().chain(new).collect())
    }

    /// The members of `self` that are in `other`, in the order of `self`.
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.worlds().filter(|&world| other.contains(world));
        Self::from_distinct(both.collect())
    }

    /// The members of `self` that are not in `other`, in the order of `self`.
    pub fn difference(&self, other: &Self) -> Self {
        let left = self.worlds().filter(|&world| !other.contains(world));
        Self::from_distinct(left.collect())
    }

    /// How `self` and `other` relate.
    pub fn compare(&self, other: &Self) -> GroupComparison {
        if self == other {
            GroupComparison::Ident
        } else if self.size() == other.size() && self.worlds().all(|world| other.contains(world)) {
            GroupComparison::Similar
        } else {
            GroupComparison::Unequal
        }
    }

    /// For each of these ranks of `self`, the rank of the same process in
    /// `other`, or `None` if it is not a member there. Linear time.
    ///
    /// # Errors
    /// [`GroupError::RankOutOfRange`], if a rank is not below the size of `self`.
    pub fn translate_ranks(
        &self,
        ranks: &[usize],
        other: &Self,
    ) -> Result<Vec<Option<usize>>, GroupError> {
        let translate = |&rank: &usize| match self.world_rank(rank) {
            Some(world) => Ok(other.rank_of(world)),
            None => Err(self.out_of_range(rank)),
        };
        ranks.iter().map(translate).collect()
    }
}

/// Same members in the same order.
impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Members::Range(a), Members::Range(b)) => a == b || (a.is_empty() && b.is_empty()),
            (Members::Table(a), Members::Table(b)) => Arc::ptr_eq(a, b) || a.ranks == b.ranks,
            // Invariant 2: a table is never a range.
            _ => false,
        }
    }
}

impl Eq for Group {}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Members::Range(range) => write!(f, "Group({range:?})"),
            Members::Table(table) => write!(f, "Group({:?})", table.ranks),
        }
    }
}

#[cfg(test)]
mod tests;
