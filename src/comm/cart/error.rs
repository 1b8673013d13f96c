//! What a grid cannot be asked.

use std::fmt;

/// Why a grid could not be made or asked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CartError {
    /// Fewer than 1 or more than 2^32 - 1 processes.
    BadNodeCount {
        /// The number given.
        nodes: usize,
    },
    /// The dimensions that are given do not divide the number of processes.
    NotDivisible {
        /// The processes.
        nodes: usize,
        /// The dimensions as given, 0 where free.
        dims: Vec<usize>,
    },
    /// A dimension is 0 in a finished grid.
    ZeroDimension {
        /// Which one.
        dim: usize,
    },
    /// The grid has more than 2^32 - 1 positions.
    TooManyPositions {
        /// The dimensions given.
        dims: Vec<usize>,
    },
    /// Two lists that should have one entry per dimension differ in length.
    WrongLength {
        /// What the list holds.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The number of dimensions.
        dims: usize,
    },
    /// A rank is not on the grid.
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// Number of positions.
        size: usize,
    },
    /// A coordinate is off the grid in a dimension that is not periodic.
    CoordinateOutOfRange {
        /// Which dimension.
        dim: usize,
        /// The coordinate.
        coordinate: isize,
        /// Extent of the dimension.
        extent: usize,
    },
    /// There is no such dimension.
    NoSuchDimension {
        /// The number given.
        dim: usize,
        /// The number of dimensions.
        dims: usize,
    },
}

impl CartError {
    /// What to look at.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::BadNodeCount { .. } => "pass the size of the communicator",
            Self::NotDivisible { .. } => {
                "leave more dimensions free (0) or run on a multiple of the fixed ones"
            }
            Self::ZeroDimension { .. } => "dims_create replaces zeros by balanced extents",
            Self::TooManyPositions { .. } => "a grid has at most one position per rank",
            Self::WrongLength { .. } => "give one entry per dimension",
            Self::RankOutOfRange { .. } => "ranks left over belong to no grid",
            Self::CoordinateOutOfRange { .. } => "only periodic dimensions wrap around",
            Self::NoSuchDimension { .. } => "dimensions count from 0",
        })
    }
}

impl fmt::Display for CartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadNodeCount { nodes } => {
                write!(f, "cannot lay out {nodes} ranks: expected 1 to 2^32 - 1")
            }
            Self::NotDivisible { nodes, dims } => write!(
                f,
                "cannot lay out {nodes} ranks as {dims:?}: no whole number of ranks fits the free dimensions"
            ),
            Self::ZeroDimension { dim } => write!(f, "dimension {dim} of the grid is 0"),
            Self::TooManyPositions { dims } => {
                write!(f, "a grid of {dims:?} has more than 2^32 - 1 positions")
            }
            Self::WrongLength { what, given, dims } => {
                write!(f, "{given} {what} for a grid of {dims} dimensions")
            }
            Self::RankOutOfRange { rank, size } => {
                write!(f, "rank {rank} is out of range on a grid of {size}")
            }
            Self::CoordinateOutOfRange {
                dim,
                coordinate,
                extent,
            } => write!(
                f,
                "coordinate {coordinate} is outside dimension {dim} of extent {extent}, which is not periodic"
            ),
            Self::NoSuchDimension { dim, dims } => {
                write!(f, "dimension {dim} of a grid of {dims} dimensions")
            }
        }
    }
}

impl std::error::Error for CartError {}
