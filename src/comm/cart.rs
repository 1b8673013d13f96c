//! Cartesian topologies: ranks on a grid, as pure arithmetic.
//!
//! Ranks run in row-major order: the last coordinate varies fastest.
//!
//! # Invariants
//! 1. A topology's number of positions fits 32 bits and no dimension is 0, so
//!    products of dimensions do not overflow.
//!
//! # Sources
//! - MPI Forum, "MPI: A Message-Passing Interface Standard", version 4.1,
//!   sections 8.5.1 to 8.5.6.
//! - J. L. Träff, F. D. Lübbe, "Specification Guideline Violations by
//!   MPI_Dims_create", EuroMPI 2015: "as close to each other as possible" read
//!   as the least difference between largest and smallest dimension; libraries
//!   that divide greedily miss it. Here ties go to the smaller largest
//!   dimension, and the search is bounded by the roots of what is left.

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

/// Fills the zeros in `dims` so that the product is `nodes` and the filled
/// entries are as close to each other as possible, in non-increasing order.
/// Other entries stay. On error `dims` is left as it was.
///
/// # Errors
/// If `nodes` is 0 or above 2^32 - 1, or not a multiple of the entries given,
/// or not equal to their product where none is free.
pub fn dims_create(nodes: usize, dims: &mut [usize]) -> Result<(), CartError> {
    if nodes == 0 || u32::try_from(nodes).is_err() {
        return Err(CartError::BadNodeCount { nodes });
    }
    let free = dims.iter().filter(|&&dim| dim == 0).count();
    let fixed = (dims.iter().filter(|&&dim| dim != 0))
        .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
        .filter(|product| nodes.is_multiple_of(*product));
    let left = match fixed {
        Some(fixed) if free > 0 || fixed == nodes => nodes / fixed,
        _ => {
            let dims = dims.to_vec();
            return Err(CartError::NotDivisible { nodes, dims });
        }
    };
    let mut factors = balanced(left as u64, free).into_iter();
    for dim in dims.iter_mut().filter(|dim| **dim == 0) {
        *dim = factors.next().unwrap_or(1) as usize;
    }
    Ok(())
}

/// `count` factors of `product`, non-increasing, largest - smallest least.
fn balanced(product: u64, count: usize) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let mut search = Search {
        divisors: divisors(product),
        chosen: Vec::with_capacity(count),
        best: Vec::new(),
        difference: u64::MAX,
        steps: STEPS,
    };
    search.descend(product, count, product);
    search.best
}

/// Factors tried after which the best so far is taken. No count below 2^20 that
/// was tried (all multiples of 720, for one) takes 900 in up to 8 dimensions;
/// this bounds the time for absurd grids.
const STEPS: u32 = 1_000_000;

struct Search {
    /// Ascending.
    divisors: Vec<u64>,
    chosen: Vec<u64>,
    best: Vec<u64>,
    /// Largest - smallest of `best`.
    difference: u64,
    steps: u32,
}

impl Search {
    /// Tries all ways to write `left` as `count` factors, each at most `limit`,
    /// smallest possible largest factor first.
    fn descend(&mut self, left: u64, count: usize, limit: u64) {
        let root = floor_root(left, count);
        let largest = |chosen: &[u64], next| chosen.first().copied().unwrap_or(next);
        // Nothing is left to share out; keeps the depth below 32 in any case.
        if count == 1 || left == 1 {
            if left > limit {
                return;
            }
            let difference = largest(&self.chosen, left) - left;
            // The first found among equals has the smallest largest factor.
            if self.best.is_empty() || difference < self.difference {
                self.difference = difference;
                self.best.clone_from(&self.chosen);
                self.best.resize(self.chosen.len() + count, left);
            }
            return;
        }
        // The largest of `count` factors is at least the root.
        let from = self.divisors.partition_point(|&divisor| {
            (divisor as u128)
                .checked_pow(count as u32)
                .is_some_and(|power| power < left as u128)
        });
        for i in from..self.divisors.len() {
            let factor = self.divisors[i];
            if factor > limit {
                return;
            }
            // The smallest is at most the root.
            if !self.best.is_empty() && largest(&self.chosen, factor) - root >= self.difference {
                return;
            }
            if !left.is_multiple_of(factor) {
                continue;
            }
            if !self.best.is_empty() && self.steps == 0 {
                return;
            }
            self.steps = self.steps.saturating_sub(1);
            self.chosen.push(factor);
            self.descend(left / factor, count - 1, factor);
            self.chosen.pop();
        }
    }
}

/// The largest number whose `count`-th power is at most `value`, which is not 0.
fn floor_root(value: u64, count: usize) -> u64 {
    let fits = |root: u64| {
        u32::try_from(count)
            .ok()
            .and_then(|count| root.checked_pow(count))
            .is_some_and(|power| power <= value)
    };
    let (mut low, mut high) = (1, value);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// All divisors, ascending; `value` fits 32 bits, so at most 2^16 divisions.
fn divisors(value: u64) -> Vec<u64> {
    let mut small: Vec<u64> = (1..)
        .take_while(|divisor| divisor * divisor <= value)
        .filter(|divisor| value.is_multiple_of(*divisor))
        .collect();
    let large = small.iter().rev().map(|divisor| value / divisor);
    let large: Vec<u64> = large.filter(|divisor| divisor * divisor > value).collect();
    small.extend(large);
    small
}

/// A grid with a rank on each position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CartTopology {
    dims: Vec<usize>,
    periods: Vec<bool>,
    size: usize,
}

impl CartTopology {
    /// A grid of these extents; dimension `i` wraps around if `periods[i]`. No
    /// dimension at all gives a single position.
    ///
    /// # Errors
    /// If the lists differ in length, an extent is 0, or there are more than
    /// 2^32 - 1 positions.
    pub fn new(dims: &[usize], periods: &[bool]) -> Result<Self, CartError> {
        check_length("periods", periods.len(), dims.len())?;
        if let Some(dim) = dims.iter().position(|&extent| extent == 0) {
            return Err(CartError::ZeroDimension { dim });
        }
        let size = (dims.iter())
            .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
            .filter(|&size| u32::try_from(size).is_ok())
            .ok_or_else(|| CartError::TooManyPositions {
                dims: dims.to_vec(),
            })?;
        Ok(Self {
            dims: dims.to_vec(),
            periods: periods.to_vec(),
            size,
        })
    }

    /// Extent of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Which dimensions wrap around.
    pub fn periods(&self) -> &[bool] {
        &self.periods
    }

    /// Number of positions.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The rank at these coordinates, wrapped around in periodic dimensions.
    ///
    /// # Errors
    /// If their number is wrong or one is off the grid.
    pub fn rank_of(&self, coords: &[isize]) -> Result<usize, CartError> {
        check_length("coordinates", coords.len(), self.dims.len())?;
        let mut rank = 0;
        for (dim, &coordinate) in coords.iter().enumerate() {
            let extent = self.dims[dim];
            let Some(place) = self.place(dim, coordinate as i128) else {
                return Err(CartError::CoordinateOutOfRange {
                    dim,
                    coordinate,
                    extent,
                });
            };
            rank = rank * extent + place;
        }
        Ok(rank)
    }

    /// The coordinate on the grid, wrapped around if periodic.
    fn place(&self, dim: usize, coordinate: i128) -> Option<usize> {
        let extent = self.dims[dim] as i128;
        if self.periods[dim] {
            Some(coordinate.rem_euclid(extent) as usize)
        } else {
            (0..extent)
                .contains(&coordinate)
                .then_some(coordinate as usize)
        }
    }

    /// The coordinates of a rank.
    ///
    /// # Errors
    /// If the rank is not on the grid.
    pub fn coords_of(&self, rank: usize) -> Result<Vec<usize>, CartError> {
        self.check_rank(rank)?;
        let mut coords = vec![0; self.dims.len()];
        let mut left = rank;
        for (coordinate, extent) in coords.iter_mut().zip(&self.dims).rev() {
            *coordinate = left % extent;
            left /= extent;
        }
        Ok(coords)
    }

    /// For a shift of all data by `displacement` along `dim`: the rank that
    /// `rank` receives from and the one that it sends to; `None` beyond an edge.
    ///
    /// # Errors
    /// If there is no such rank or dimension.
    pub fn shift(
        &self,
        rank: usize,
        dim: usize,
        displacement: isize,
    ) -> Result<(Option<usize>, Option<usize>), CartError> {
        self.check_rank(rank)?;
        let Some(&extent) = self.dims.get(dim) else {
            let dims = self.dims.len();
            return Err(CartError::NoSuchDimension { dim, dims });
        };
        let stride: usize = self.dims[dim + 1..].iter().product();
        let here = rank / stride % extent;
        let neighbour = |by: i128| {
            let there = self.place(dim, here as i128 + by)?;
            Some(rank - here * stride + there * stride)
        };
        let by = displacement as i128;
        Ok((neighbour(-by), neighbour(by)))
    }

    fn check_rank(&self, rank: usize) -> Result<(), CartError> {
        if rank < self.size {
            return Ok(());
        }
        let size = self.size;
        Err(CartError::RankOutOfRange { rank, size })
    }
}

fn check_length(what: &'static str, given: usize, dims: usize) -> Result<(), CartError> {
    if given == dims {
        return Ok(());
    }
    Err(CartError::WrongLength { what, given, dims })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn created(nodes: usize, dims: &[usize]) -> Result<Vec<usize>, CartError> {
        let mut dims = dims.to_vec();
        dims_create(nodes, &mut dims).map(|()| dims)
    }

    #[test]
    fn dims_create_as_in_the_standard() {
        // The examples of MPI 4.1, section 8.5.2.
        assert_eq!(created(6, &[0, 0]), Ok(vec![3, 2]));
        assert_eq!(created(7, &[0, 0]), Ok(vec![7, 1]));
        assert_eq!(created(6, &[0, 3, 0]), Ok(vec![2, 3, 1]));
        let error = created(7, &[0, 3, 0]).unwrap_err();
        assert!(matches!(error, CartError::NotDivisible { nodes: 7, .. }));
    }

    #[test]
    fn dims_create_balances() {
        assert_eq!(created(1, &[0, 0, 0]), Ok(vec![1, 1, 1]));
        assert_eq!(created(16, &[0, 0, 0]), Ok(vec![4, 2, 2]));
        assert_eq!(created(64, &[0, 0, 0]), Ok(vec![4, 4, 4]));
        assert_eq!(created(72, &[0, 0]), Ok(vec![9, 8]));
        assert_eq!(created(1200, &[0, 0, 0]), Ok(vec![12, 10, 10]));
        assert_eq!(created(720_720, &[0, 0]), Ok(vec![858, 840]));
        assert_eq!(created(12, &[3, 4]), Ok(vec![3, 4]));
        assert_eq!(created(1, &[]), Ok(vec![]));
    }

    #[test]
    fn dims_create_is_quick_for_any_grid() {
        let start = std::time::Instant::now();
        for (nodes, count) in [
            (u32::MAX as usize, 2),
            (1 << 31, 5),
            (4_294_967_291, 3),
            (3_491_888_400, 4),
            (3_491_888_400, 9),
            (3_491_888_400, 100),
            (2_205_403_200, 16),
            (3_491_888_400, 100_000),
        ] {
            let dims = created(nodes, &vec![0; count]).unwrap();
            assert_eq!(dims.iter().product::<usize>(), nodes);
            assert!(dims.is_sorted_by(|a, b| a >= b), "{dims:?}");
        }
        println!("{:?}", start.elapsed());
    }

    #[test]
    fn wrong_arguments_are_told_apart() {
        let grid = CartTopology::new(&[3, 4], &[false, true]).unwrap();
        let cases = [
            (
                created(0, &[0]).err(),
                "cannot lay out 0 ranks: expected 1 to 2^32 - 1",
            ),
            (
                created(8, &[3, 0]).err(),
                "cannot lay out 8 ranks as [3, 0]: no whole number of ranks fits the free dimensions",
            ),
            (
                created(8, &[2, 2]).err(),
                "cannot lay out 8 ranks as [2, 2]: no whole number of ranks fits the free dimensions",
            ),
            (
                created(8, &[usize::MAX, 2, 0]).err(),
                "cannot lay out 8 ranks as [18446744073709551615, 2, 0]: \
                 no whole number of ranks fits the free dimensions",
            ),
            (
                CartTopology::new(&[2, 0], &[true; 2]).err(),
                "dimension 1 of the grid is 0",
            ),
            (
                CartTopology::new(&[1 << 20, 1 << 20], &[true; 2]).err(),
                "a grid of [1048576, 1048576] has more than 2^32 - 1 positions",
            ),
            (
                CartTopology::new(&[2, 2], &[true]).err(),
                "1 periods for a grid of 2 dimensions",
            ),
            (
                grid.rank_of(&[1]).err(),
                "1 coordinates for a grid of 2 dimensions",
            ),
            (
                grid.rank_of(&[-1, 0]).err(),
                "coordinate -1 is outside dimension 0 of extent 3, which is not periodic",
            ),
            (
                grid.coords_of(12).err(),
                "rank 12 is out of range on a grid of 12",
            ),
            (
                grid.shift(12, 0, 1).err(),
                "rank 12 is out of range on a grid of 12",
            ),
            (
                grid.shift(0, 2, 1).err(),
                "dimension 2 of a grid of 2 dimensions",
            ),
        ];
        for (error, message) in cases {
            let error = error.unwrap();
            assert_eq!(error.to_string(), message);
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn edges_and_wrapping() {
        let grid = CartTopology::new(&[3, 4], &[false, true]).unwrap();
        assert_eq!(grid.size(), 12);
        assert_eq!(grid.coords_of(7), Ok(vec![1, 3]));
        assert_eq!(grid.rank_of(&[1, -1]), Ok(7));
        assert_eq!(grid.rank_of(&[0, isize::MIN]), Ok(0));
        assert_eq!(grid.shift(7, 0, 1), Ok((Some(3), Some(11))));
        assert_eq!(grid.shift(3, 0, 1), Ok((None, Some(7))));
        assert_eq!(grid.shift(11, 0, 1), Ok((Some(7), None)));
        assert_eq!(grid.shift(7, 1, 1), Ok((Some(6), Some(4))));
        assert_eq!(grid.shift(7, 1, 4), Ok((Some(7), Some(7))));
        assert_eq!(grid.shift(7, 0, 0), Ok((Some(7), Some(7))));
        assert_eq!(grid.shift(7, 0, isize::MIN), Ok((None, None)));
        let point = CartTopology::new(&[], &[]).unwrap();
        assert_eq!((point.size(), point.rank_of(&[])), (1, Ok(0)));
        assert_eq!(point.coords_of(0), Ok(vec![]));
    }

    /// The least difference between largest and smallest of `count` factors.
    fn least_difference(left: usize, count: usize, min: usize, max: usize) -> usize {
        if count == 0 {
            return if left == 1 { max - min } else { usize::MAX };
        }
        (1..=left)
            .filter(|factor| left.is_multiple_of(*factor))
            .map(|factor| {
                least_difference(left / factor, count - 1, min.min(factor), max.max(factor))
            })
            .min()
            .unwrap_or(usize::MAX)
    }

    fn grid() -> impl Strategy<Value = CartTopology> {
        proptest::collection::vec((1..6_usize, any::<bool>()), 1..5).prop_map(|dims| {
            let (dims, periods): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            CartTopology::new(&dims, &periods).unwrap()
        })
    }

    proptest! {
        #[test]
        fn dims_create_finds_the_least_difference(nodes in 1..400_usize, count in 1..5_usize) {
            let dims = created(nodes, &vec![0; count]).unwrap();
            prop_assert_eq!(dims.iter().product::<usize>(), nodes);
            prop_assert!(dims.is_sorted_by(|a, b| a >= b));
            let least = least_difference(nodes, count, usize::MAX, 0);
            prop_assert_eq!(dims[0] - dims[count - 1], least);
        }

        #[test]
        fn dims_create_keeps_what_is_given(
            nodes in 1..200_usize,
            dims in proptest::collection::vec(0..5_usize, 0..5),
        ) {
            let fixed: usize = dims.iter().filter(|&&dim| dim != 0).product();
            let possible = nodes.is_multiple_of(fixed) && (dims.contains(&0) || fixed == nodes);
            match created(nodes, &dims) {
                Ok(filled) => {
                    prop_assert!(possible);
                    prop_assert_eq!(filled.iter().product::<usize>(), nodes);
                    let kept = dims.iter().zip(&filled).all(|(&dim, &now)| dim == 0 || dim == now);
                    prop_assert!(kept);
                }
                Err(_) => prop_assert!(!possible),
            }
        }

        #[test]
        fn ranks_and_coordinates_are_inverse(grid in grid(), turns in -3..4_isize) {
            for rank in 0..grid.size() {
                let coords = grid.coords_of(rank).unwrap();
                let turned: Vec<isize> = (0..coords.len())
                    .map(|dim| {
                        let turns = if grid.periods()[dim] { turns } else { 0 };
                        coords[dim] as isize + turns * grid.dims()[dim] as isize
                    })
                    .collect();
                prop_assert_eq!(grid.rank_of(&turned), Ok(rank));
            }
        }

        #[test]
        fn shift_equals_coordinates(grid in grid(), by in -9..10_isize) {
            for rank in 0..grid.size() {
                for dim in 0..grid.dims().len() {
                    let at = |by: isize| {
                        let mut coords: Vec<isize> = grid.coords_of(rank).unwrap()
                            .into_iter().map(|coordinate| coordinate as isize).collect();
                        coords[dim] += by;
                        grid.rank_of(&coords).ok()
                    };
                    let (source, dest) = grid.shift(rank, dim, by).unwrap();
                    prop_assert_eq!((source, dest), (at(-by), at(by)));
                    // Who I send to receives from me.
                    if let Some(dest) = dest {
                        prop_assert_eq!(grid.shift(dest, dim, by).unwrap().0, Some(rank));
                    }
                }
            }
        }
    }
}
