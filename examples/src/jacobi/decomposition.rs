//! Which rank owns which points, and which of its tasks.
//!
//! ```text
//!           0 1 2 3 4 5 6 7 8 9       10 points along an axis over 3 ranks:
//! ghost -> . [0 1 2] [3 4 5] [6 7 8 9] . <- boundary: always zero
//! ```
//!
//! In a task graph the block of a rank is cut in the same way into blocks of tasks.

use osier::{Error, ErrorKind, Result};

use super::options::{Factor, Triple};

/// Tasks of a rank where neither the user nor the grid says otherwise.
const USUAL_FACTOR: usize = 4;

/// A grid of points over a grid of ranks. All triples are along z, y, x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decomposition {
    /// Interior points of the whole grid.
    pub grid: [usize; 3],
    /// Ranks along each dimension.
    pub ranks: [usize; 3],
    /// Blocks of a rank along each dimension: one, unless tasks have them.
    pub factor: [usize; 3],
}

/// The points of one rank, or of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Global indices of the first point.
    pub first: [usize; 3],
    /// Points along z, y and x, without ghosts.
    pub points: [usize; 3],
}

impl Decomposition {
    /// A decomposition over `size` ranks: the wanted one, or one that fits.
    ///
    /// # Errors
    /// If there is none in which each rank has a point.
    pub fn new(size: usize, grid: Triple, ranks: Option<Triple>) -> Result<Self> {
        let points = grid.zyx();
        let argument = |text| Err(Error::new(ErrorKind::Argument, text));
        // The array with its ghosts must have an address for each byte.
        let bytes = points
            .iter()
            .map(|n| n.saturating_add(2))
            .try_fold(size_of::<f64>(), usize::checked_mul);
        if bytes.is_none_or(|b| b > isize::MAX as usize) {
            return argument(format!(
                "--grid {grid}: more points than memory has addresses"
            ));
        }
        let ranks = match ranks {
            Some(ranks) => {
                let product = ranks.0.iter().try_fold(1, |a: usize, b| a.checked_mul(*b));
                if product != Some(size) {
                    return argument(format!(
                        "--ranks {ranks}: the job has {size} rank{} (hint: the product must be that number; give no --ranks to have them chosen)",
                        if size == 1 { "" } else { "s" }
                    ));
                }
                if !fits(&points, &ranks.zyx()) {
                    return argument(format!(
                        "--ranks {ranks} over --grid {grid}: more ranks than points along a dimension (hint: each rank needs a point)"
                    ));
                }
                ranks.zyx()
            }
            None => match choose(size, &points) {
                Some(ranks) => ranks,
                None => {
                    return argument(format!(
                        "{size} ranks do not fit --grid {grid} (hint: each rank needs a point; take a larger grid or fewer ranks)"
                    ));
                }
            },
        };
        Ok(Self {
            grid: points,
            ranks,
            factor: [1; 3],
        })
    }

    /// The same ranks with several blocks each, one for each task.
    ///
    /// # Errors
    /// If there are more tasks than points along a dimension.
    pub fn over_tasks(self, factor: Option<Factor>) -> Result<Self> {
        let most = [0, 1, 2].map(|d| self.grid[d] / self.ranks[d]);
        let argument = |given: String, what: String, hint: &str| {
            let text = format!(
                "--factor {given} on --grid {} over {} ranks: {what} (hint: {hint})",
                Triple::from_zyx(self.grid),
                Triple::from_zyx(self.ranks)
            );
            Err(Error::new(ErrorKind::Argument, text))
        };
        let factor = match factor {
            Some(Factor::Shape(shape)) if fits(&most, &shape.zyx()) => shape.zyx(),
            Some(Factor::Shape(shape)) => {
                return argument(
                    shape.to_string(),
                    "more tasks than points along a dimension".into(),
                    &format!("at most {}", Triple::from_zyx(most)),
                );
            }
            Some(Factor::Number(number)) => match choose(number, &most) {
                Some(factor) => factor,
                None => {
                    return argument(
                        number.to_string(),
                        format!(
                            "no shape of {number} tasks fits the {} points of a rank",
                            Triple::from_zyx(most)
                        ),
                        "each task needs a point; name another number, or one along each dimension as in 1x2x2",
                    );
                }
            },
            None => {
                // Blocks of a rank read each other's layers where they lie, so small faces gain
                // nothing; rows and planes stay whole.
                let layers = |n: usize| (n <= most[0]).then_some([n, 1, 1]);
                let mut fitting = (1..=USUAL_FACTOR).rev();
                fitting
                    .find_map(|n| layers(n).or_else(|| choose(n, &most)))
                    .unwrap_or([1; 3])
            }
        };
        Ok(Self { factor, ..self })
    }

    /// Blocks along each dimension.
    pub fn blocks(&self) -> [usize; 3] {
        [0, 1, 2].map(|d| self.ranks[d] * self.factor[d])
    }

    /// The coordinates of the blocks of the rank at these coordinates, in row-major order.
    pub fn of_rank(&self, coords: &[usize]) -> Vec<[usize; 3]> {
        let along = |d: usize| (0..self.factor[d]).map(move |n| coords[d] * self.factor[d] + n);
        let planes = along(0).flat_map(|z| along(1).map(move |y| [z, y]));
        planes
            .flat_map(|[z, y]| along(2).map(move |x| [z, y, x]))
            .collect()
    }

    /// The block at the given coordinates in the grid of blocks. Blocks differ
    /// by at most one point along each dimension.
    pub fn block(&self, coords: &[usize]) -> Block {
        let blocks = self.blocks();
        let first = |d: usize, at: usize| {
            let wide = self.grid[d] as u128 * at as u128 / blocks[d] as u128;
            wide as usize
        };
        let start = [0, 1, 2].map(|d| first(d, coords[d]));
        let end = [0, 1, 2].map(|d| first(d, coords[d] + 1));
        Block {
            first: start,
            points: [0, 1, 2].map(|d| end[d] - start[d]),
        }
    }

    /// Points of the whole grid.
    pub fn points(&self) -> usize {
        self.grid.iter().product()
    }
}

impl Block {
    /// Sizes of the array: the points and a ghost on each side.
    pub fn sizes(&self) -> [usize; 3] {
        self.points.map(|n| n + 2)
    }

    /// Elements of the array.
    pub fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Element of the array that holds a point; ghosts are at 0 and at
    /// `points + 1`.
    #[inline]
    pub fn at(&self, z: usize, y: usize, x: usize) -> usize {
        let [_, sy, sx] = self.sizes();
        (z * sy + y) * sx + x
    }
}

fn fits(grid: &[usize; 3], ranks: &[usize; 3]) -> bool {
    grid.iter()
        .zip(ranks)
        .all(|(points, ranks)| ranks <= points)
}

/// Of all that fit, the one with the smallest faces; among equals the one that
/// cuts z, then y, most, since those faces have the longest rows. On a cube
/// this is what [`osier::topology::dims_create`] gives, which knows no grid.
fn choose(size: usize, grid: &[usize; 3]) -> Option<[usize; 3]> {
    let mut best = None;
    for z in (1..=size).rev().filter(|z| size.is_multiple_of(*z)) {
        let left = size / z;
        for y in (1..=left).rev().filter(|y| left.is_multiple_of(*y)) {
            let ranks = [z, y, left / y];
            if fits(grid, &ranks) {
                let cut = |d: usize| {
                    let face = grid[(d + 1) % 3] as u128 * grid[(d + 2) % 3] as u128;
                    face * (ranks[d] as u128 - 1)
                };
                let cost = cut(0) + cut(1) + cut(2);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, ranks));
                }
            }
        }
    }
    best.map(|(_, ranks)| ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_grid_once() {
        let parts =
            Decomposition::new(12, Triple([7, 10, 5]), Some(Triple([2, 3, 2]))).expect("it fits");
        let mut seen = vec![0; parts.points()];
        for z in 0..2 {
            for y in 0..3 {
                for x in 0..2 {
                    let block = parts.block(&[z, y, x]);
                    for d in 0..3 {
                        let least = parts.grid[d] / parts.ranks[d];
                        assert!((least..=least + 1).contains(&block.points[d]));
                    }
                    for k in 0..block.points[0] {
                        for j in 0..block.points[1] {
                            for i in 0..block.points[2] {
                                let [z, y, x] =
                                    [block.first[0] + k, block.first[1] + j, block.first[2] + i];
                                seen[(z * 10 + y) * 7 + x] += 1;
                            }
                        }
                    }
                }
            }
        }
        assert!(seen.iter().all(|n| *n == 1));
    }

    #[test]
    fn tasks_have_the_points_of_their_rank() {
        let ranks = Decomposition::new(6, Triple([7, 10, 5]), Some(Triple([1, 3, 2])));
        let ranks = ranks.expect("it fits");
        for factor in ["1", "3", "4", "2x3x1", "7x3x2"] {
            let tasks = ranks.over_tasks(Some(factor.parse().expect("a factor")));
            let tasks = tasks.expect(factor);
            for coords in [[0, 0, 0], [1, 2, 0], [1, 1, 0]] {
                let whole = ranks.block(&coords);
                let own = tasks.of_rank(&coords);
                assert_eq!(own.len(), tasks.factor.iter().product::<usize>());
                let points = own.iter().map(|at| tasks.block(at).points);
                let points = points.map(|n| n.iter().product::<usize>());
                assert_eq!(
                    points.sum::<usize>(),
                    whole.points.iter().product::<usize>()
                );
                assert_eq!(tasks.block(&own[0]).first, whole.first);
            }
        }
        let usual = |size, grid| {
            let ranks = Decomposition::new(size, Triple(grid), None).expect("it fits");
            ranks.over_tasks(None).expect("some fit").factor
        };
        assert_eq!(usual(1, [64; 3]), [4, 1, 1]);
        assert_eq!(usual(1, [64, 64, 3]), [1, 2, 2]);
        assert_eq!(usual(1, [3, 1, 1]), [1, 1, 3]);
        assert_eq!(usual(1, [1; 3]), [1; 3]);
        for factor in [Factor::Number(11), Factor::Shape(Triple([8, 1, 1]))] {
            let e = ranks.over_tasks(Some(factor)).expect_err("too many");
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }

    #[test]
    fn a_decomposition_fits_or_says_why() {
        let ranks = |size, grid| Decomposition::new(size, Triple(grid), None).map(|d| d.ranks);
        for size in [1, 2, 3, 4, 6, 8, 12, 16, 30] {
            let mut dims = [0; 3];
            osier::topology::dims_create(size, &mut dims).expect("dims");
            assert_eq!(ranks(size, [64; 3]).expect("cube"), dims);
        }
        assert_eq!(ranks(4, [64, 64, 1]).expect("plate"), [1, 2, 2]);
        assert_eq!(ranks(4, [7, 1, 1]).expect("rod"), [1, 1, 4]);
        assert_eq!(ranks(8, [2, 100, 3]).expect("uneven"), [1, 8, 1]);
        for (size, grid, wanted) in [
            (5, [4, 4, 4], None),
            (28, [3, 3, 3], None),
            (4, [8, 8, 8], Some([2, 2, 2])),
            (4, [8, 8, 3], Some([1, 1, 4])),
            (4, [8, 8, 8], Some([usize::MAX, 2, 2])),
            (1, [usize::MAX, 1, 1], None),
            (1, [1 << 30; 3], None),
        ] {
            let e = Decomposition::new(size, Triple(grid), wanted.map(Triple));
            let e = e.expect_err("does not fit");
            assert_eq!(e.kind(), ErrorKind::Argument);
        }
    }
}
