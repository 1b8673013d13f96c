//! What a group cannot be asked.

use std::fmt;

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
