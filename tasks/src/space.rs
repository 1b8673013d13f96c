//! Index spaces: coordinates of tasks, and their numbers. Pure.
//!
//! # Invariants
//! 1. Numbers are those of row-major order: the last coordinate runs fastest.
//! 2. The number of coordinates of a space is at least 1, and the product of its extents
//!    fits 64 bits.

use std::fmt;

/// The coordinates `[0, d0) x [0, d1) x ...`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Space {
    extents: Box<[usize]>,
    len: u64,
}

/// Extents that are no space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceError {
    NoExtents,
    TooMany(Vec<usize>),
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpaceError::NoExtents => {
                write!(f, "no extents (hint: a single task has the extents [1])")
            }
            SpaceError::TooMany(extents) => {
                write!(f, "{extents:?} are more than 2^63 tasks")
            }
        }
    }
}

impl std::error::Error for SpaceError {}

impl Space {
    /// # Errors
    /// There are no extents, or their product does not fit.
    pub fn new(extents: &[usize]) -> Result<Space, SpaceError> {
        if extents.is_empty() {
            return Err(SpaceError::NoExtents);
        }
        let product = |len: u64, extent: &usize| len.checked_mul(*extent as u64);
        let len = extents.iter().try_fold(1u64, product);
        match len {
            Some(len) if len <= 1 << 63 => Ok(Space {
                extents: extents.into(),
                len,
            }),
            _ => Err(SpaceError::TooMany(extents.into())),
        }
    }

    pub fn extents(&self) -> &[usize] {
        &self.extents
    }

    /// Number of coordinates, each of which names a task.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of coordinates; `None` if they lie outside, or are more or fewer than
    /// the extents.
    pub fn number(&self, at: &[usize]) -> Option<u64> {
        if at.len() != self.extents.len() {
            return None;
        }
        let mut number = 0u64;
        for (at, extent) in at.iter().zip(&self.extents) {
            if at >= extent {
                return None;
            }
            number = number * *extent as u64 + *at as u64;
        }
        Some(number)
    }

    /// The coordinates behind a number below [`Space::len`].
    pub fn at(&self, number: u64) -> Vec<usize> {
        let mut at = vec![0; self.extents.len()];
        self.write_at(number, &mut at);
        at
    }

    /// As [`Space::at`], into memory of the caller.
    pub fn write_at(&self, mut number: u64, at: &mut [usize]) {
        for (at, extent) in at.iter_mut().zip(&self.extents).rev() {
            let extent = *extent as u64;
            *at = (number % extent) as usize;
            number /= extent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_coordinates_are_inverse() {
        let space = Space::new(&[3, 1, 4]).expect("a space");
        assert_eq!(space.len(), 12);
        let mut number = 0;
        for a in 0..3 {
            for c in 0..4 {
                assert_eq!(space.number(&[a, 0, c]), Some(number));
                assert_eq!(space.at(number), [a, 0, c]);
                number += 1;
            }
        }
        assert_eq!(space.number(&[3, 0, 0]), None);
        assert_eq!(space.number(&[0, 1, 0]), None);
        assert_eq!(space.number(&[0, 0]), None);
    }

    #[test]
    fn spaces_without_a_number_for_each_task_are_refused() {
        assert_eq!(Space::new(&[]), Err(SpaceError::NoExtents));
        let large = [1 << 40, 1 << 40];
        assert_eq!(Space::new(&large), Err(SpaceError::TooMany(large.to_vec())));
        assert!(Space::new(&[0, 7]).expect("an empty space").is_empty());
    }
}
