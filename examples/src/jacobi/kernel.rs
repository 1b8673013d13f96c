//! The arithmetic: one sweep, the residual, the comparison and the checksum.
//!
//! A row along x is contiguous, and the neighbors of its points lie in five
//! rows, so the inner loops run over slices of equal length: the compiler
//! drops the bounds checks and vectorises.
//!
//! A sweep is bound by memory: an update reads 8 B and writes 8 B that no cache
//! holds. One rank made 379 and 489 M updates/s of a 256^3 grid, 6.1 and
//! 7.8 GB/s, beside 6.5 and 5.6 GB/s of the loop `b[i] = a[i] / 2` in the same
//! minute; 2 ranks 447, 4 ranks 405 M updates/s (2 cores of a Xeon, model 143,
//! under KVM, busy with other work, 2026-11-21).

use std::ops::Range;

use super::decomposition::Block;
use super::mode::Mode;
use super::rows::{Old, Reader, Rows};
use crate::hash;

const SIXTH: f64 = 1.0 / 6.0;

/// Points of a block along z, y and x; its first interior point is 1, 1, 1.
pub type Points = [Range<usize>; 3];

/// The interior points of a block.
pub fn interior(block: &Block) -> Points {
    block.points.map(|n| 1..n + 1)
}

/// The interior points in parts: those that are updated without the ghosts of the sides in
/// `waits`, which may be none, and a layer for each of these sides. A point is in one part.
/// Sides are numbered as in [`super::halo::Neighbors`].
pub fn split(block: &Block, waits: [bool; 6]) -> (Points, Vec<Points>) {
    let mut inner = interior(block);
    let mut layers = Vec::new();
    for (side, _) in waits.iter().enumerate().filter(|(_, waits)| **waits) {
        let along = inner[side / 2].clone();
        if along.is_empty() {
            continue;
        }
        let (layer, rest) = match side % 2 {
            0 => (along.start..along.start + 1, along.start + 1..along.end),
            _ => (along.end - 1..along.end, along.start..along.end - 1),
        };
        let mut points = inner.clone();
        points[side / 2] = layer;
        layers.push(points);
        inner[side / 2] = rest;
    }
    (inner, layers)
}

/// One sweep: each of these points of `new` becomes the mean of its six neighbors in the old
/// field. The order of the additions is part of the result. `between` is called after each
/// plane of a tile.
pub fn sweep(old: &Old<'_>, new: &mut [f64], points: &Points, mut between: impl FnMut()) {
    let [zs, ys, xs] = points;
    let tile = tile_rows(old.block);
    let mut reader = Reader::new(old);
    for y0 in ys.clone().step_by(tile) {
        for z in zs.clone() {
            for y in y0..ys.end.min(y0 + tile) {
                let at = old.block.at(z, y, xs.start);
                let rows = reader.rows(z, y, xs);
                update_row(&rows, &mut new[at..at + xs.len()]);
            }
            between();
        }
    }
}

#[inline]
fn update_row(rows: &Rows<'_>, out: &mut [f64]) {
    let n = out.len();
    let (west, east) = (&rows.west[..n], &rows.east[..n]);
    let (south, north) = (&rows.south[..n], &rows.north[..n]);
    let (down, up) = (&rows.down[..n], &rows.up[..n]);
    for i in 0..n {
        out[i] = (west[i] + east[i] + south[i] + north[i] + down[i] + up[i]) * SIXTH;
    }
}

/// Rows along y of a tile: three planes of the old field and one of the new
/// stay in a second-level cache while a tile is swept along z.
fn tile_rows(block: &Block) -> usize {
    const CACHE_BYTES: usize = 1 << 20;
    let row_bytes = block.sizes()[2] * size_of::<f64>();
    (CACHE_BYTES / (4 * row_bytes)).max(8)
}

/// Sum of the squares of (sum of neighbors - 6 u): the residual without its
/// factor. Needs the points behind all sides. Summed by rows, then planes, so that the rounding
/// of a sum over many points stays near that of a sum over few.
pub fn residual_squares(old: &Old<'_>) -> f64 {
    let [nz, ny, nx] = old.block.points;
    let mut reader = Reader::new(old);
    let mut total = 0.0;
    for z in 1..=nz {
        let mut plane = 0.0;
        for y in 1..=ny {
            plane += residual_row(&reader.rows(z, y, &(1..nx + 1)));
        }
        total += plane;
    }
    total
}

#[inline]
fn residual_row(rows: &Rows<'_>) -> f64 {
    const LANES: usize = 8;
    let n = rows.here.len();
    let (here, west, east) = (rows.here, &rows.west[..n], &rows.east[..n]);
    let (south, north) = (&rows.south[..n], &rows.north[..n]);
    let (down, up) = (&rows.down[..n], &rows.up[..n]);
    let residual =
        |i: usize| (west[i] + east[i] + south[i] + north[i] + down[i] + up[i]) - 6.0 * here[i];
    let mut lanes = [0.0; LANES];
    let whole = n - n % LANES;
    for first in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let r = residual(first + lane);
            *sum += r * r;
        }
    }
    let rest: f64 = (whole..n).map(|i| residual(i) * residual(i)).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Writes the mode into the interior.
pub fn start(field: &mut [f64], block: &Block, mode: &Mode) {
    mode.rows(block, |z, y, scale, sines| {
        let at = block.at(z + 1, y + 1, 1);
        for (point, sine) in field[at..at + sines.len()].iter_mut().zip(sines) {
            *point = scale * sine;
        }
    });
}

/// Largest difference to the mode times `decay`; infinite if a point is NaN,
/// since a NaN loses every comparison.
pub fn max_error(field: &[f64], block: &Block, mode: &Mode, decay: f64) -> f64 {
    let mut largest = 0.0;
    mode.rows(block, |z, y, scale, sines| {
        let at = block.at(z + 1, y + 1, 1);
        for (point, sine) in field[at..at + sines.len()].iter().zip(sines) {
            let error = (point - scale * sine * decay).abs();
            if error.is_nan() {
                largest = f64::INFINITY;
            }
            if error > largest {
                largest = error;
            }
        }
    });
    largest
}

/// A sum of hashes of (global index, bits): the sum of the ranks' sums hashes
/// the whole field, in whatever order and however it is cut.
pub fn checksum(field: &[f64], block: &Block, grid: [usize; 3]) -> u64 {
    let [nz, ny, nx] = block.points;
    let mut sum = 0u64;
    for z in 0..nz {
        for y in 0..ny {
            let row = (block.first[0] + z) * grid[1] + block.first[1] + y;
            let first = (row * grid[2] + block.first[2]) as u64;
            let at = block.at(z + 1, y + 1, 1);
            sum = hash::checksum(&field[at..at + nx], first).wrapping_add(sum);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::{block, noise};
    use super::*;

    #[test]
    fn rows_equal_the_formula_at_each_point() {
        let block = block();
        let old = noise(block.elements());
        let mut new = vec![-1.0; old.len()];
        sweep(&Old::new(&old, &block), &mut new, &interior(&block), || {});
        let u = |z, y, x| old[block.at(z, y, x)];
        let mut squares = 0.0;
        for z in 0..=block.points[0] + 1 {
            for y in 0..=block.points[1] + 1 {
                for x in 0..=block.points[2] + 1 {
                    let interior = (1..=block.points[0]).contains(&z)
                        && (1..=block.points[1]).contains(&y)
                        && (1..=block.points[2]).contains(&x);
                    if !interior {
                        assert_eq!(new[block.at(z, y, x)], -1.0, "ghosts are not touched");
                        continue;
                    }
                    let sum = u(z, y, x - 1)
                        + u(z, y, x + 1)
                        + u(z, y - 1, x)
                        + u(z, y + 1, x)
                        + u(z - 1, y, x)
                        + u(z + 1, y, x);
                    assert_eq!(new[block.at(z, y, x)], sum * SIXTH);
                    squares += (sum - 6.0 * u(z, y, x)).powi(2);
                }
            }
        }
        let fast = residual_squares(&Old::new(&old, &block));
        assert!((fast - squares).abs() <= 1e-13 * squares);
    }

    #[test]
    fn parts_of_a_sweep_are_the_sweep() {
        for points in [[3, 40, 13], [1, 2, 3], [2, 1, 1], [1, 1, 1]] {
            let block = Block {
                first: [0; 3],
                points,
            };
            let old = noise(block.elements());
            let mut whole = vec![-1.0; old.len()];
            sweep(
                &Old::new(&old, &block),
                &mut whole,
                &interior(&block),
                || {},
            );
            for waits in 0..64 {
                let waits = [0, 1, 2, 3, 4, 5].map(|side| waits >> side & 1 == 1);
                let (inner, layers) = split(&block, waits);
                let parts = || std::iter::once(&inner).chain(&layers);
                let sizes = parts().map(|p| p.iter().map(Range::len).product::<usize>());
                assert_eq!(sizes.sum::<usize>(), points.iter().product::<usize>());
                let mut new = vec![-1.0; old.len()];
                for part in parts() {
                    sweep(&Old::new(&old, &block), &mut new, part, || {});
                }
                assert!(new == whole, "{points:?}, {waits:?}");
                // What is left in the middle touches no side that is waited for.
                for side in 0..6 {
                    let along = &inner[side / 2];
                    let reached = match side % 2 {
                        0 => along.start == 1,
                        _ => along.end == points[side / 2] + 1,
                    };
                    assert!(!waits[side] || !reached || along.is_empty());
                }
            }
        }
    }

    #[test]
    fn the_checksum_sees_each_bit_and_place() {
        let block = block();
        let grid = [10, 50, 20];
        let mut field = noise(block.elements());
        let sum = checksum(&field, &block, grid);
        let (a, b) = (block.at(1, 1, 1), block.at(3, 40, 13));
        field.swap(a, b);
        assert_ne!(checksum(&field, &block, grid), sum, "two points swapped");
        field.swap(a, b);
        assert_eq!(checksum(&field, &block, grid), sum);
        field[a] = f64::from_bits(field[a].to_bits() ^ 1);
        assert_ne!(checksum(&field, &block, grid), sum, "one bit");
        field[a] = f64::from_bits(field[a].to_bits() ^ 1);
        field[block.at(0, 0, 0)] = 5.0;
        assert_eq!(checksum(&field, &block, grid), sum, "ghosts do not count");
    }

    #[test]
    fn an_error_and_a_nan_are_seen() {
        let block = block();
        let mode = Mode::new([10, 50, 20], None).expect("it fits");
        let mut field = vec![0.0; block.elements()];
        start(&mut field, &block, &mode);
        assert_eq!(max_error(&field, &block, &mode, 1.0), 0.0);
        field[block.at(2, 2, 2)] += 1e-3;
        assert!((max_error(&field, &block, &mode, 1.0) - 1e-3).abs() < 1e-15);
        field[block.at(1, 1, 1)] = f64::NAN;
        assert_eq!(max_error(&field, &block, &mode, 1.0), f64::INFINITY);
    }
}
