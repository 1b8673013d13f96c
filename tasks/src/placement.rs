//! Placement: which rank has which task. Pure.
//!
//! # Invariants
//! 1. [`Placed::owner`] and [`Placed::own`] agree: a rank's own tasks are those whose owner
//!    it is, each once, in the order of their numbers.
//! 2. Of block-like placements a rank enumerates its own tasks in time and memory of their
//!    number; a function is asked about all.

use crate::space::Space;
use std::fmt;
use std::sync::Arc;

/// Tells the rank of a task by its coordinates.
pub type Owner = dyn Fn(&[usize]) -> usize + Send + Sync;

/// How the tasks of a family are dealt to ranks.
#[derive(Clone)]
pub enum Placement {
    /// Blocks of a grid of ranks that is chosen: its blocks are as near to cubes as the
    /// number of ranks allows.
    Block,
    /// Blocks of this grid of ranks, which has an extent for each of the space.
    Grid(Vec<usize>),
    /// The tasks by their numbers in turn.
    Cyclic,
    /// Blocks of these extents in turn over a grid of ranks.
    BlockCyclic { block: Vec<usize>, grid: Vec<usize> },
    /// By a function, the same on all ranks.
    Function(Arc<Owner>),
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Block => write!(f, "Block"),
            Placement::Grid(grid) => write!(f, "Grid({grid:?})"),
            Placement::Cyclic => write!(f, "Cyclic"),
            Placement::BlockCyclic { block, grid } => {
                write!(f, "BlockCyclic {{ block: {block:?}, grid: {grid:?} }}")
            }
            Placement::Function(_) => write!(f, "Function"),
        }
    }
}

/// A placement that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// A grid or a block with other than one positive extent for each of the space.
    Extents {
        given: Vec<usize>,
        space: Vec<usize>,
    },
    /// A grid of more ranks than there are.
    Ranks { grid: Vec<usize>, ranks: usize },
    /// A function that names a rank which does not exist.
    NoSuchRank {
        at: Vec<usize>,
        rank: usize,
        ranks: usize,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::Extents { given, space } => write!(
                f,
                "{given:?} is no grid or block of a space of {space:?} \
                 (hint: one positive extent for each of the space)"
            ),
            PlacementError::Ranks { grid, ranks } => {
                write!(f, "a grid of {grid:?} ranks, but there are {ranks}")
            }
            PlacementError::NoSuchRank { at, rank, ranks } => {
                write!(f, "{at:?} is placed on rank {rank}, but there are {ranks}")
            }
        }
    }
}

impl std::error::Error for PlacementError {}

/// A placement for a number of ranks.
pub struct Placed {
    space: Space,
    ranks: usize,
    how: How,
}

enum How {
    Blocks(Vec<usize>),
    Cyclic,
    BlockCyclic { block: Vec<usize>, grid: Vec<usize> },
    Function(Arc<Owner>),
}

impl Placed {
    /// # Errors
    /// Grid or block do not fit the space or the ranks. What a function answers is checked
    /// when it is asked.
    pub fn new(
        placement: &Placement,
        space: &Space,
        ranks: usize,
    ) -> Result<Placed, PlacementError> {
        let fits = |given: &[usize]| {
            let extents = space.extents();
            if given.len() == extents.len() && given.iter().all(|e| *e > 0) {
                return Ok(());
            }
            Err(PlacementError::Extents {
                given: given.into(),
                space: extents.into(),
            })
        };
        let within = |grid: &[usize]| {
            fits(grid)?;
            match grid.iter().try_fold(1usize, |n, e| n.checked_mul(*e)) {
                Some(n) if n <= ranks => Ok(()),
                _ => Err(PlacementError::Ranks {
                    grid: grid.into(),
                    ranks,
                }),
            }
        };
        let how = match placement {
            Placement::Block => How::Blocks(grid(space.extents(), ranks)),
            Placement::Grid(grid) => {
                within(grid)?;
                How::Blocks(grid.clone())
            }
            Placement::Cyclic => How::Cyclic,
            Placement::BlockCyclic { block, grid } => {
                fits(block)?;
                within(grid)?;
                How::BlockCyclic {
                    block: block.clone(),
                    grid: grid.clone(),
                }
            }
            Placement::Function(owner) => How::Function(owner.clone()),
        };
        Ok(Placed {
            space: space.clone(),
            ranks,
            how,
        })
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The rank of a task of the space.
    ///
    /// # Errors
    /// A function names a rank that does not exist.
    pub fn owner(&self, at: &[usize]) -> Result<usize, PlacementError> {
        let extents = self.space.extents();
        let in_grid = |grid: &[usize], place: &dyn Fn(usize) -> usize| {
            (0..grid.len()).fold(0, |rank, d| rank * grid[d] + place(d))
        };
        Ok(match &self.how {
            How::Blocks(grid) => in_grid(grid, &|d| block_of(at[d], extents[d], grid[d])),
            How::Cyclic => {
                let number = self.space.number(at).unwrap_or(0);
                (number % self.ranks as u64) as usize
            }
            How::BlockCyclic { block, grid } => in_grid(grid, &|d| at[d] / block[d] % grid[d]),
            How::Function(owner) => {
                let rank = owner(at);
                if rank >= self.ranks {
                    return Err(PlacementError::NoSuchRank {
                        at: at.into(),
                        rank,
                        ranks: self.ranks,
                    });
                }
                rank
            }
        })
    }

    /// The numbers of a rank's tasks.
    ///
    /// # Errors
    /// A function names a rank that does not exist.
    pub fn own(&self, rank: usize) -> Result<Vec<u64>, PlacementError> {
        let extents = self.space.extents();
        if self.space.is_empty() {
            return Ok(Vec::new());
        }
        match &self.how {
            How::Blocks(grid) => {
                let parts = |d: usize, part: usize| {
                    (first(part, extents[d], grid[d])..first(part + 1, extents[d], grid[d]))
                        .collect()
                };
                Ok(self.product(rank, grid, parts))
            }
            How::Cyclic => Ok((rank as u64..self.space.len())
                .step_by(self.ranks)
                .collect()),
            How::BlockCyclic { block, grid } => {
                let parts = |d: usize, part: usize| {
                    (part * block[d]..extents[d])
                        .step_by(block[d] * grid[d])
                        .flat_map(|from| from..(from + block[d]).min(extents[d]))
                        .collect()
                };
                Ok(self.product(rank, grid, parts))
            }
            How::Function(_) => {
                let mut own = Vec::new();
                let mut at = vec![0; extents.len()];
                for number in 0..self.space.len() {
                    self.space.write_at(number, &mut at);
                    if self.owner(&at)? == rank {
                        own.push(number);
                    }
                }
                Ok(own)
            }
        }
    }

    /// Numbers of the tasks whose coordinates a rank of the grid has in every dimension.
    fn product(
        &self,
        rank: usize,
        grid: &[usize],
        parts: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Vec<u64> {
        let mut rest = rank;
        let mut lists = vec![Vec::new(); grid.len()];
        for d in (0..grid.len()).rev() {
            lists[d] = parts(d, rest % grid[d]);
            rest /= grid[d];
        }
        if rest > 0 {
            return Vec::new(); // outside the grid
        }
        let mut numbers = vec![0u64];
        for (list, extent) in lists.iter().zip(self.space.extents()) {
            let extent = *extent as u64;
            numbers = numbers
                .iter()
                .flat_map(|n| list.iter().map(move |at| n * extent + *at as u64))
                .collect();
        }
        numbers
    }
}

/// The first coordinate of a part, of `parts` parts of an extent that differ by one at most;
/// a single coordinate is the first part's.
fn first(part: usize, extent: usize, parts: usize) -> usize {
    (part as u128 * extent as u128).div_ceil(parts as u128) as usize
}

/// The part that a coordinate lies in.
fn block_of(at: usize, extent: usize, parts: usize) -> usize {
    (at as u128 * parts as u128 / extent as u128) as usize
}

/// A grid of exactly `ranks` ranks, whose blocks are as near to cubes as its factors allow:
/// the largest factors first, each to the dimension with the longest blocks.
pub fn grid(extents: &[usize], ranks: usize) -> Vec<usize> {
    let mut grid = vec![1usize; extents.len()];
    let mut factors = Vec::new();
    let mut rest = ranks.max(1);
    let mut factor = 2;
    while factor * factor <= rest {
        while rest.is_multiple_of(factor) {
            factors.push(factor);
            rest /= factor;
        }
        factor += 1;
    }
    if rest > 1 {
        factors.push(rest);
    }
    for factor in factors.into_iter().rev() {
        // extent / grid compared without division; the first of equal ones.
        let longer = |a: usize, b: usize| {
            extents[a] as u128 * grid[b] as u128 > extents[b] as u128 * grid[a] as u128
        };
        let longest = (1..grid.len()).fold(0, |best, d| if longer(d, best) { d } else { best });
        grid[longest] *= factor;
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(placement: &Placement, extents: &[usize], ranks: usize) {
        let space = Space::new(extents).expect("a space");
        let placed = Placed::new(placement, &space, ranks).expect("a placement");
        let mut seen = vec![false; space.len() as usize];
        for rank in 0..ranks {
            let own = placed.own(rank).expect("own tasks");
            assert!(own.is_sorted(), "{placement:?} {extents:?}");
            for number in own {
                assert_eq!(placed.owner(&space.at(number)), Ok(rank), "{placement:?}");
                assert!(!std::mem::replace(&mut seen[number as usize], true));
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{placement:?} {extents:?}");
    }

    #[test]
    fn every_task_has_one_owner_who_knows_it() {
        for extents in [vec![1], vec![7], vec![5, 9], vec![4, 3, 6], vec![0, 3]] {
            for ranks in 1..9 {
                check(&Placement::Block, &extents, ranks);
                check(&Placement::Cyclic, &extents, ranks);
                let by_sum = Arc::new(move |at: &[usize]| at.iter().sum::<usize>() % ranks);
                check(&Placement::Function(by_sum), &extents, ranks);
                for size in 1..4 {
                    let placement = Placement::BlockCyclic {
                        block: vec![size; extents.len()],
                        grid: grid(&extents, ranks),
                    };
                    check(&placement, &extents, ranks);
                }
            }
        }
    }

    #[test]
    fn grids_follow_the_extents() {
        assert_eq!(grid(&[64, 64], 6), [3, 2]);
        assert_eq!(grid(&[100, 10], 4), [4, 1]);
        assert_eq!(grid(&[8, 8, 8], 8), [2, 2, 2]);
        assert_eq!(grid(&[5], 7), [7]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let space = Space::new(&[4, 4]).expect("a space");
        let refused = |placement| {
            Placed::new(&placement, &space, 4)
                .err()
                .map(|e| e.to_string())
        };
        let text = refused(Placement::Grid(vec![4])).expect("an error");
        assert!(text.contains("[4]") && text.contains("[4, 4]"), "{text}");
        let text = refused(Placement::Grid(vec![5, 1])).expect("an error");
        assert!(text.contains("[5, 1] ranks, but there are 4"), "{text}");
        let block = vec![0, 1];
        let text = refused(Placement::BlockCyclic {
            block,
            grid: vec![2, 2],
        });
        assert!(text.expect("an error").contains("[0, 1]"));
        let placed = Placed::new(&Placement::Function(Arc::new(|_| 9)), &space, 4);
        let error = placed
            .expect("not asked yet")
            .own(0)
            .expect_err("no rank 9");
        assert!(error.to_string().contains("rank 9"), "{error}");
    }
}
