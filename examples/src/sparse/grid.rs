//! A matrix of convection and diffusion on a grid of N x N x N points, for scale.
//!
//! `-div grad u + v . grad u` on the unit cube, zero on the boundary, by differences along
//! the axes: seven points, of which the first derivative takes those upwind. The velocity
//! turns around the middle of each layer and rises; its strength varies from point to point,
//! as seeded. The matrix is multiplied by the square of the spacing. It is unsymmetric in
//! its values, symmetric in its pattern, and its rows are diagonally dominant.

use super::matrix::Matrix;
use crate::hash::mix;

/// The matrix of `points` along each axis. At the grid Peclet number `peclet`, convection
/// over one spacing is that many times as strong as diffusion.
pub fn convection_diffusion(points: usize, peclet: f64, seed: u64) -> Matrix {
    let number = |at: [usize; 3]| (at[0] * points + at[1]) * points + at[2];
    let mut triplets = Vec::with_capacity(7 * points.pow(3));
    for point in 0..points.pow(3) {
        let at = [
            point / (points * points),
            point / points % points,
            point % points,
        ];
        let [z, y, x] = at.map(|i| 2.0 * (i as f64 + 1.0) / (points as f64 + 1.0) - 1.0);
        let strength = peclet * (0.5 + uniform(seed, point as u64));
        let turning = [0.5 * (1.0 - z * z), -x * (1.0 - y * y), y * (1.0 - x * x)];
        let mut diagonal = 0.0;
        for (axis, velocity) in turning.into_iter().enumerate() {
            let speed = strength * velocity;
            for (down, upwind) in [(true, speed.max(0.0)), (false, (-speed).max(0.0))] {
                diagonal += 1.0 + upwind;
                let mut neighbor = at;
                match down {
                    true if at[axis] > 0 => neighbor[axis] -= 1,
                    false if at[axis] + 1 < points => neighbor[axis] += 1,
                    _ => continue,
                }
                let column = number(neighbor) as u32;
                triplets.push((point as u32, column, -1.0 - upwind));
            }
        }
        triplets.push((point as u32, point as u32, diagonal));
    }
    Matrix::from_triplets(points.pow(3), points.pow(3), &triplets)
}

/// A number in 0..1 of a seed and a place.
fn uniform(seed: u64, place: u64) -> f64 {
    (mix(mix(seed) ^ place) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_dominant_and_neighbors_mutual() {
        let matrix = convection_diffusion(4, 3.0, 1);
        assert_eq!(matrix.entries(), 64 + 6 * 4 * 4 * 3);
        let mut off = [0.0; 64];
        let mut unequal = false;
        for j in 0..64 {
            for (i, value) in matrix.column(j) {
                let mirrored = matrix.column(i).find(|(k, _)| *k == j);
                let (_, mirrored) = mirrored.expect("a neighbor");
                unequal |= mirrored != value;
                off[i] += if i == j { value } else { -value.abs() };
            }
        }
        assert!(unequal);
        assert!(off.iter().all(|sum| *sum > -1e-12));
        assert_ne!(matrix, convection_diffusion(4, 3.0, 2));
        assert_eq!(matrix, convection_diffusion(4, 3.0, 1));
    }
}
