//! Cartesian topologies: ranks on a grid, as pure arithmetic.
//!
//! Ranks run in row-major order: the last coordinate varies fastest.
//!
//! # Invariants
//! 1. A topology's number of positions fits 32 bits and no dimension is 0, so
//!    products of dimensions do not overflow.
//!
//! # Sources
//! MPI Forum, "MPI: A Message-Passing Interface Standard", version 5.0,
//! sections 8.5.1 to 8.5.6.

mod dims;
mod error;

pub use dims::dims_create;
pub use error::CartError;

/// A grid with a rank on each position.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let ring = comm.cart_create(&[2], &[true])?.expect("two ranks");
/// let cart = ring.cart().expect("a grid");
/// assert_eq!(cart.coords_of(1)?, [1]);
/// assert_eq!(cart.periods(), [true]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
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
    /// [`CartError::WrongLength`], if the lists differ in length;
    /// [`CartError::ZeroDimension`], if an extent is 0; [`CartError::TooManyPositions`], if
    /// there are more than 2^32 - 1.
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
    /// [`CartError::WrongLength`], if there is not one coordinate per dimension;
    /// [`CartError::CoordinateOutOfRange`], if one is off the grid in a dimension that does not
    /// wrap around.
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
    /// [`CartError::RankOutOfRange`], if the rank is not on the grid.
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
    /// [`CartError::RankOutOfRange`] or [`CartError::NoSuchDimension`], if the grid has no such
    /// rank or dimension.
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
        let neighbor = |by: i128| {
            let there = self.place(dim, here as i128 + by)?;
            Some(rank - here * stride + there * stride)
        };
        let by = displacement as i128;
        Ok((neighbor(-by), neighbor(by)))
    }

    /// The part of the grid in which a rank's coordinates of the dropped
    /// dimensions are fixed: its number among all such parts, the rank's place
    /// there, and its shape. `remain` says which dimensions stay.
    ///
    /// # Errors
    /// [`CartError::RankOutOfRange`], if the grid has no such rank; [`CartError::WrongLength`],
    /// if `remain` has not one entry per dimension.
    pub fn sub(&self, rank: usize, remain: &[bool]) -> Result<(usize, usize, Self), CartError> {
        check_length("flags", remain.len(), self.dims.len())?;
        let coords = self.coords_of(rank)?;
        let (mut slice, mut place) = (0, 0);
        let mut sub = Self {
            dims: Vec::new(),
            periods: Vec::new(),
            size: 1,
        };
        for (dim, (&extent, &stays)) in self.dims.iter().zip(remain).enumerate() {
            if stays {
                place = place * extent + coords[dim];
                sub.dims.push(extent);
                sub.periods.push(self.periods[dim]);
                sub.size *= extent;
            } else {
                slice = slice * extent + coords[dim];
            }
        }
        Ok((slice, place, sub))
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
mod tests;
