//! The rows of the old field that a sweep reads, in the block's array and behind its sides.
//!
//! ```text
//!              north                behind a side: ghosts of the array, the array of the
//!      west  [ here ]  east         neighboring block, or a face that has come
//!              south                (down and up likewise)
//! ```
//!
//! Across z and y a row behind a side is read where it lies. A row with a neighbor along x is
//! copied with the points before and behind it, so that its neighbors are slices, too.

use std::ops::Range;

use super::decomposition::Block;

/// The row of a point and the five that hold its neighbors, in step: element
/// `i` of each belongs to point `i`.
pub struct Rows<'a> {
    pub here: &'a [f64],
    pub west: &'a [f64],
    pub east: &'a [f64],
    pub south: &'a [f64],
    pub north: &'a [f64],
    pub down: &'a [f64],
    pub up: &'a [f64],
}

/// Where the points behind a side of a block are read.
#[derive(Clone, Copy, Debug)]
pub enum Behind<'a> {
    /// In the ghosts of the block's array.
    Ghosts,
    /// In the array of the neighboring block, which has the same points along the side.
    Neighbor(&'a [f64], &'a Block),
    /// In a face, row by row, as [`super::layers::copy_face`] makes it.
    Face(&'a [f64]),
}

/// The field before a sweep: the array of a block, and where the points behind its sides are.
/// Sides are numbered as in [`super::halo::Neighbors`].
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    /// The array.
    pub field: &'a [f64],
    /// Its block.
    pub block: &'a Block,
    /// By side.
    pub behind: [Behind<'a>; 6],
}

impl<'a> Old<'a> {
    /// An array whose ghosts are filled.
    pub fn new(field: &'a [f64], block: &'a Block) -> Self {
        Self {
            field,
            block,
            behind: [Behind::Ghosts; 6],
        }
    }

    /// `x` of the row `z`, `y`, which is in the block's array or behind one of its sides across
    /// z or y.
    fn row(&self, z: usize, y: usize, x: Range<usize>) -> &'a [f64] {
        let [nz, ny, _] = self.block.points;
        let side = match (z, y) {
            (0, _) => 0,
            _ if z > nz => 1,
            (_, 0) => 2,
            _ if y > ny => 3,
            _ => return slice(self.field, self.block, z, y, &x),
        };
        self.row_behind(side, z, y, x)
    }

    /// `x` of the row `z`, `y` behind a side.
    fn row_behind(&self, side: usize, z: usize, y: usize, x: Range<usize>) -> &'a [f64] {
        let block = self.block;
        match self.behind[side] {
            Behind::Ghosts => slice(self.field, block, z, y, &x),
            Behind::Neighbor(field, other) => {
                // The layer of the other block next to this one.
                let mut at = [z, y];
                let layer = match side % 2 {
                    0 => other.points[side / 2],
                    _ => 1,
                };
                match at.get_mut(side / 2) {
                    Some(across) => {
                        *across = layer;
                        slice(field, other, at[0], at[1], &x)
                    }
                    None => slice(field, other, z, y, &(layer..layer + 1)),
                }
            }
            Behind::Face(face) => {
                let [_, ny, nx] = block.points;
                match side / 2 {
                    0 => &face[(y - 1) * nx..][x.start - 1..x.end - 1],
                    1 => &face[(z - 1) * nx..][x.start - 1..x.end - 1],
                    _ => &face[(z - 1) * ny + y - 1..][..1],
                }
            }
        }
    }

    /// The row `z`, `y` with the points before and behind it, copied.
    fn widen(&self, z: usize, y: usize, wide: &mut Vec<f64>) {
        let nx = self.block.points[2];
        wide.clear();
        wide.extend_from_slice(self.row_behind(4, z, y, 0..1));
        wide.extend_from_slice(slice(self.field, self.block, z, y, &(1..nx + 1)));
        wide.extend_from_slice(self.row_behind(5, z, y, nx + 1..nx + 2));
    }
}

/// The rows of a sweep, one after the other, and memory for those that are copied.
pub struct Reader<'a> {
    old: Old<'a>,
    /// Rows along z and y whose neighbors are all in the block's array,
    inside: [Range<usize>; 2],
    /// unless there are neighbors along x, with which they are copied to here.
    wide: Option<Vec<f64>>,
}

impl<'a> Reader<'a> {
    /// Of the old field.
    pub fn new(old: &Old<'a>) -> Self {
        let ghosts = |side: usize| matches!(old.behind[side], Behind::Ghosts);
        let inside = [0, 1].map(|d| {
            let (low, high) = (ghosts(2 * d), ghosts(2 * d + 1));
            2 - usize::from(low)..old.block.points[d] + usize::from(high)
        });
        Self {
            old: *old,
            inside,
            wide: (!ghosts(4) || !ghosts(5)).then(Vec::new),
        }
    }

    /// The rows about points `x` of the row `z`, `y`; interior points count from 1.
    #[inline]
    pub fn rows(&mut self, z: usize, y: usize, x: &Range<usize>) -> Rows<'_> {
        let [zs, ys] = &self.inside;
        if self.wide.is_some() || !zs.contains(&z) || !ys.contains(&y) {
            return self.rows_at_side(z, y, x);
        }
        let Old { field, block, .. } = self.old;
        let row = |z, y, from| {
            let at = block.at(z, y, from);
            &field[at..at + x.len()]
        };
        Rows {
            here: row(z, y, x.start),
            west: row(z, y, x.start - 1),
            east: row(z, y, x.start + 1),
            south: row(z, y - 1, x.start),
            north: row(z, y + 1, x.start),
            down: row(z - 1, y, x.start),
            up: row(z + 1, y, x.start),
        }
    }

    /// As [`Reader::rows`], of a row with a neighbor that may be behind a side.
    #[cold]
    fn rows_at_side(&mut self, z: usize, y: usize, x: &Range<usize>) -> Rows<'_> {
        let old = self.old;
        let middle = match &mut self.wide {
            None => slice(old.field, old.block, z, y, &(x.start - 1..x.end + 1)),
            Some(wide) => {
                old.widen(z, y, wide);
                &wide[x.start - 1..x.end + 1]
            }
        };
        let n = x.len();
        Rows {
            west: &middle[..n],
            here: &middle[1..n + 1],
            east: &middle[2..n + 2],
            south: old.row(z, y - 1, x.clone()),
            north: old.row(z, y + 1, x.clone()),
            down: old.row(z - 1, y, x.clone()),
            up: old.row(z + 1, y, x.clone()),
        }
    }
}

/// `x` of a row of an array.
fn slice<'a>(field: &'a [f64], block: &Block, z: usize, y: usize, x: &Range<usize>) -> &'a [f64] {
    let at = block.at(z, y, x.start);
    &field[at..at + x.len()]
}

#[cfg(test)]
pub mod tests {
    use super::super::kernel::{interior, residual_squares, sweep};
    use super::super::layers::{copy_face, fill_ghosts};
    use super::*;
    use crate::hash::mix;

    pub fn block() -> Block {
        Block {
            first: [2, 3, 4],
            points: [3, 40, 13],
        }
    }

    pub fn noise(n: usize) -> Vec<f64> {
        (0..n as u64)
            .map(|i| mix(i) as f64 / u64::MAX as f64)
            .collect()
    }

    #[test]
    fn points_behind_sides_may_be_ghosts_neighbors_or_faces() {
        let block = block();
        let old = noise(block.elements());
        let points = interior(&block);
        for which in 0..64 {
            // The neighbor's array holds the ghosts of each side in its layer next to the block.
            let others: Vec<(Vec<f64>, Block)> =
                (0..6).map(|side| beyond(&old, &block, side)).collect();
            let faces: Vec<Vec<f64>> = (0..6)
                .map(|side| {
                    let mut face = Vec::new();
                    copy_face(&others[side].0, &others[side].1, side ^ 1, &mut face);
                    face
                })
                .collect();
            let behind = |side: usize, neighbor: bool| match which >> side & 1 {
                0 => Behind::Ghosts,
                _ if neighbor => Behind::Neighbor(&others[side].0, &others[side].1),
                _ => Behind::Face(&faces[side]),
            };
            let mut ghostless = old.clone();
            for side in (0..6).filter(|side| which >> side & 1 == 1) {
                let gone = vec![f64::NAN; faces[side].len()];
                fill_ghosts(&mut ghostless, &block, side, &gone).expect("its size");
            }
            let mut expected = vec![-1.0; old.len()];
            sweep(&Old::new(&old, &block), &mut expected, &points, || {});
            let squares = residual_squares(&Old::new(&old, &block));
            for neighbor in [false, true] {
                let read = Old {
                    field: &ghostless,
                    block: &block,
                    behind: [0, 1, 2, 3, 4, 5].map(|side| behind(side, neighbor)),
                };
                let mut new = vec![-1.0; old.len()];
                sweep(&read, &mut new, &points, || {});
                assert!(new == expected, "{which:06b}, {neighbor}");
                assert_eq!(residual_squares(&read), squares, "{which:06b}, {neighbor}");
            }
        }
    }

    /// A block behind a side, of another depth, with the side's ghosts next to it.
    fn beyond(old: &[f64], block: &Block, side: usize) -> (Vec<f64>, Block) {
        let d = side / 2;
        let mut other = *block;
        other.points[d] = 2;
        let mut field = vec![f64::NAN; other.elements()];
        let (from, to) = match side % 2 {
            0 => (0, 2),
            _ => (block.points[d] + 1, 1),
        };
        let mut points = interior(block);
        points[d] = from..from + 1;
        let [zs, ys, xs] = points;
        for z in zs {
            for y in ys.clone() {
                for x in xs.clone() {
                    let mut at = [z, y, x];
                    at[d] = to;
                    field[other.at(at[0], at[1], at[2])] = old[block.at(z, y, x)];
                }
            }
        }
        (field, other)
    }
}
