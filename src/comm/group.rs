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
//! MPI Forum, "MPI: A Message-Passing Interface Standard", version 4.1, section
//! 7.3.2 (group constructors). A range whose stride leads away from its last
//! rank is an error here, as in MPICH, rather than an empty list.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// An ordered set of job-wide ranks. Cloning is cheap.
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

/// From world rank to rank in the group.
enum Inverse {
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
    fn of(ranks: &[u32]) -> Self {
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

    fn rank_of(&self, world: u32) -> Option<usize> {
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

/// Why a group could not be made or asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// A rank is not below the group's size.
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// Size of the group.
        size: usize,
    },
    /// A rank was named twice.
    DuplicateRank {
        /// The rank.
        rank: usize,
    },
    /// A world rank does not fit 32 bits.
    RankTooLarge {
        /// The rank.
        rank: usize,
    },
    /// A range has stride 0.
    ZeroStride {
        /// Start of the range.
        first: usize,
        /// End of the range.
        last: usize,
    },
    /// The stride of a range leads away from its last rank.
    StrideSign {
        /// Start of the range.
        first: usize,
        /// End of the range.
        last: usize,
        /// The stride.
        stride: isize,
    },
}

impl GroupError {
    /// What to look at.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::RankOutOfRange { .. } => {
                "ranks count from 0 within the group given, not within the whole job"
            }
            Self::DuplicateRank { .. } => "each member may be named once; do two ranges overlap?",
            Self::RankTooLarge { .. } => "was a negative number cast to usize?",
            Self::ZeroStride { .. } => "use stride 1 for a single rank or consecutive ranks",
            Self::StrideSign { .. } => "counting down takes a negative stride",
        })
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RankOutOfRange { rank, size } => {
                write!(f, "rank {rank} is out of range in a group of {size}")
            }
            Self::DuplicateRank { rank } => {
                write!(f, "rank {rank} is named more than once")
            }
            Self::RankTooLarge { rank } => write!(f, "rank {rank} does not fit 32 bits"),
            Self::ZeroStride { first, last } => {
                write!(f, "range from rank {first} to {last} has stride 0")
            }
            Self::StrideSign {
                first,
                last,
                stride,
            } => write!(
                f,
                "range from rank {first} never reaches {last} with stride {stride}"
            ),
        }
    }
}

impl std::error::Error for GroupError {}

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
    /// If `world` does not fit 32 bits.
    pub fn single(world: usize) -> Result<Self, GroupError> {
        Self::from_world_ranks(&[world])
    }

    /// The world ranks given, in this order.
    ///
    /// # Errors
    /// If a rank appears twice or does not fit 32 bits.
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
    /// If a rank is out of range or named twice.
    pub fn incl(&self, ranks: &[usize]) -> Result<Self, GroupError> {
        self.marks(ranks.iter().copied())?;
        let worlds = ranks.iter().map(|&rank| self.world(rank));
        Ok(Self::from_distinct(worlds.collect()))
    }

    /// The members without these ranks, in this group's order.
    ///
    /// # Errors
    /// If a rank is out of range or named twice.
    pub fn excl(&self, ranks: &[usize]) -> Result<Self, GroupError> {
        let marks = self.marks(ranks.iter().copied())?;
        let left = self.worlds().zip(marks).filter(|(_, gone)| !gone);
        Ok(Self::from_distinct(left.map(|(world, _)| world).collect()))
    }

    /// The members in these ranges, in the order given.
    ///
    /// # Errors
    /// If a stride is 0 or leads away from the last rank, a rank is out of
    /// range, or two ranges overlap.
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
    /// If a rank is out of range in `self`.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(ranks: &[usize]) -> Group {
        Group::from_world_ranks(ranks).unwrap()
    }

    fn list(group: &Group) -> Vec<usize> {
        group.world_ranks().collect()
    }

    fn range(first: usize, last: usize, stride: isize) -> RankRange {
        RankRange {
            first,
            last,
            stride,
        }
    }

    #[test]
    fn consecutive_ranks_need_no_table() {
        for group in [
            Group::empty(),
            Group::identity(1 << 31),
            group(&[5]),
            group(&[3, 4, 5]),
            Group::identity(9).excl(&[0, 8]).unwrap(),
        ] {
            assert!(matches!(group.0, Members::Range(_)), "{group:?}");
        }
        assert_eq!(Group::identity(1 << 31).rank_of(12345), Some(12345));
        assert_eq!(
            Group::identity(4).difference(&Group::identity(4)),
            Group::empty()
        );
        assert!(group(&[]).is_empty());
    }

    #[test]
    fn far_apart_members_are_found() {
        let group = group(&[4_000_000_000, 7, 1_000_000]);
        assert_eq!(group.rank_of(1_000_000), Some(2));
        assert_eq!(group.rank_of(4_000_000_000), Some(0));
        assert_eq!(group.rank_of(8), None);
        assert_eq!(group.rank_of(usize::MAX), None);
        assert_eq!(group.world_rank(1), Some(7));
        assert_eq!(group.world_rank(3), None);
    }

    #[test]
    fn ranges_as_in_the_standard() {
        // The example of MPI 4.1, section 7.3.2.
        let ranks: Vec<usize> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|rank| rank + 10).into();
        let chosen = group(&ranks)
            .range_incl(&[range(6, 7, 1), range(1, 6, 2), range(9, 8, -1)])
            .map(|group| list(&group));
        assert_eq!(chosen, Ok(vec![16, 17, 11, 13, 15, 19, 18]));
        let left = group(&ranks).range_excl(&[range(9, 0, -3)]).unwrap();
        assert_eq!(list(&left), [11, 12, 14, 15, 17, 18]);
    }

    #[test]
    fn wrong_arguments_are_told_apart() {
        let four = Group::identity(4);
        let huge = usize::MAX;
        let cases = [
            (four.incl(&[0, 4]), "rank 4 is out of range in a group of 4"),
            (four.excl(&[2, 1, 2]), "rank 2 is named more than once"),
            (
                Group::from_world_ranks(&[9, 7, 9]),
                "rank 9 is named more than once",
            ),
            (
                Group::single(huge),
                "rank 18446744073709551615 does not fit 32 bits",
            ),
            (
                four.range_incl(&[range(0, 3, 0)]),
                "range from rank 0 to 3 has stride 0",
            ),
            (
                four.range_incl(&[range(3, 0, 1)]),
                "range from rank 3 never reaches 0 with stride 1",
            ),
            (
                four.range_incl(&[range(0, huge, 1)]),
                "rank 18446744073709551615 is out of range in a group of 4",
            ),
            (
                four.range_excl(&[range(0, 2, 1), range(3, 1, -1)]),
                "rank 2 is named more than once",
            ),
            (
                four.range_incl(&[range(huge, 0, isize::MIN)]),
                "rank 18446744073709551615 is out of range in a group of 4",
            ),
        ];
        for (result, message) in cases {
            let error = result.unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(error.hint().is_some());
        }
        // A stride may be longer than the range.
        let one = four.range_incl(&[range(1, 3, isize::MAX)]).unwrap();
        assert_eq!(list(&one), [1]);
        let out = four.translate_ranks(&[4], &four);
        assert_eq!(out, Err(GroupError::RankOutOfRange { rank: 4, size: 4 }));
    }

    #[test]
    fn comparison() {
        let a = group(&[3, 1, 2]);
        assert_eq!(a.compare(&a.clone()), GroupComparison::Ident);
        assert_eq!(a.compare(&group(&[3, 1, 2])), GroupComparison::Ident);
        assert_eq!(a.compare(&group(&[1, 2, 3])), GroupComparison::Similar);
        assert_eq!(a.compare(&group(&[1, 2, 4])), GroupComparison::Unequal);
        assert_eq!(a.compare(&group(&[1, 2])), GroupComparison::Unequal);
        let none = Group::identity(7).intersection(&group(&[9]));
        assert_eq!(none.compare(&Group::empty()), GroupComparison::Ident);
    }

    /// Distinct world ranks in any order, near together or far apart.
    fn members() -> impl Strategy<Value = Vec<usize>> {
        (
            proptest::collection::hash_set(0..24_usize, 0..12),
            prop_oneof![Just(1), Just(3), Just(1_000_003)],
            any::<bool>(),
        )
            .prop_map(|(set, scale, sorted)| {
                let mut ranks: Vec<usize> = set.into_iter().map(|rank| rank * scale).collect();
                if sorted {
                    ranks.sort_unstable();
                }
                ranks
            })
    }

    proptest! {
        #[test]
        fn sets_equal_lists(a in members(), b in members()) {
            let (ga, gb) = (group(&a), group(&b));
            prop_assert_eq!(list(&ga), a.clone());
            prop_assert_eq!(ga.size(), a.len());
            let both: Vec<usize> = a.iter().copied().filter(|r| b.contains(r)).collect();
            let only_a: Vec<usize> = a.iter().copied().filter(|r| !b.contains(r)).collect();
            let only_b = b.iter().copied().filter(|r| !a.contains(r));
            let either: Vec<usize> = a.iter().copied().chain(only_b).collect();
            prop_assert_eq!(list(&ga.intersection(&gb)), both);
            prop_assert_eq!(list(&ga.difference(&gb)), only_a);
            prop_assert_eq!(list(&ga.union(&gb)), either);
            prop_assert_eq!(ga == gb, a == b);
            let position = |list: &[usize], rank| list.iter().position(|&r| r == rank);
            for rank in (0..30).map(|r| r * 3).chain(a.iter().copied()) {
                prop_assert_eq!(gb.rank_of(rank), position(&b, rank));
            }
            let all: Vec<usize> = (0..a.len()).collect();
            let expected: Vec<_> = a.iter().map(|&rank| position(&b, rank)).collect();
            prop_assert_eq!(ga.translate_ranks(&all, &gb), Ok(expected));
            let (mut sorted_a, mut sorted_b) = (a.clone(), b.clone());
            sorted_a.sort_unstable();
            sorted_b.sort_unstable();
            let comparison = if a == b {
                GroupComparison::Ident
            } else if sorted_a == sorted_b {
                GroupComparison::Similar
            } else {
                GroupComparison::Unequal
            };
            prop_assert_eq!(ga.compare(&gb), comparison);
        }

        #[test]
        fn incl_and_excl_equal_lists(a in members(), picks in prop::collection::vec(0..14_usize, 0..6)) {
            let ga = group(&a);
            let mut distinct = picks.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let valid = distinct.len() == picks.len() && picks.iter().all(|&rank| rank < a.len());
            let incl = ga.incl(&picks).ok().map(|group| list(&group));
            let excl = ga.excl(&picks).ok().map(|group| list(&group));
            prop_assert_eq!(incl, valid.then(|| picks.iter().map(|&rank| a[rank]).collect()));
            let left = (0..a.len()).filter(|rank| !picks.contains(rank)).map(|rank| a[rank]);
            prop_assert_eq!(excl, valid.then(|| left.collect()));
        }
    }
}
