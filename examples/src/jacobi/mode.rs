//! The eigenmode that the field starts from, and what becomes of it.
//!
//! On a grid of `N` interior points along each axis, all with the same
//! spacing and zero on the boundary, `u = sin(a i) sin(b j) sin(c k)` with
//! `a = pi KX / (NX + 1)` and so on is an eigenvector of the sweep: the mean
//! of the six neighbors is `lambda u`, `lambda = (cos a + cos b + cos c) / 3`.

use std::f64::consts::PI;

use osier::{Error, ErrorKind, Result};

use super::decomposition::Block;
use super::options::Triple;

/// A discrete eigenmode. All triples are along z, y, x.
#[derive(Clone, Debug)]
pub struct Mode {
    /// `1 - lambda`, which has more digits than `lambda`.
    deficit: f64,
    /// Largest value on the grid.
    amplitude: f64,
    /// The sine along each axis, from the first point to the last.
    sines: [Vec<f64>; 3],
}

impl Mode {
    /// The mode with the given half waves, or with 3x2x1 if they fit.
    ///
    /// # Errors
    /// If an axis has fewer points than half waves.
    pub fn new(grid: [usize; 3], waves: Option<Triple>) -> Result<Self> {
        let waves = match waves {
            Some(waves) => waves.zyx(),
            None => [0, 1, 2].map(|d| grid[d].min(d + 1)),
        };
        if (0..3).any(|d| waves[d] > grid[d]) {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "--mode {} on --grid {} (hint: at most one half wave per point)",
                    Triple::from_zyx(waves),
                    Triple::from_zyx(grid)
                ),
            ));
        }
        let angle = [0, 1, 2].map(|d| PI * waves[d] as f64 / (grid[d] as f64 + 1.0));
        // 1 - cos a = 2 sin^2 (a / 2), without cancellation.
        let deficit = angle
            .map(|a| 2.0 * (a / 2.0).sin().powi(2))
            .iter()
            .sum::<f64>()
            / 3.0;
        let sines = [0, 1, 2].map(|d| {
            let sine = |i: usize| (angle[d] * (i as f64 + 1.0)).sin();
            (0..grid[d]).map(sine).collect::<Vec<_>>()
        });
        let largest = |s: &Vec<f64>| s.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        Ok(Self {
            deficit,
            amplitude: sines.iter().map(largest).product(),
            sines,
        })
    }

    /// What a number of sweeps multiply the field by.
    pub fn decay(&self, sweeps: usize) -> f64 {
        if sweeps == 0 {
            return 1.0;
        }
        // By the logarithm: powers of lambda would lose digits.
        let lambda = 1.0 - self.deficit;
        let log = if lambda > 0.0 {
            (-self.deficit).ln_1p()
        } else {
            (-lambda).ln()
        };
        let sign = if lambda < 0.0 && sweeps % 2 == 1 {
            -1.0
        } else {
            1.0
        };
        sign * (log * sweeps as f64).exp()
    }

    /// Largest value of the field after a number of sweeps.
    pub fn amplitude(&self, sweeps: usize) -> f64 {
        self.amplitude * self.decay(sweeps).abs()
    }

    /// Largest error that is no mistake: 1e-12 of the field, or where sweeps
    /// are so many that rounding may exceed it, what rounding can do. A sweep
    /// adds at most four units of the last place of its largest value and
    /// never enlarges earlier errors.
    pub fn error_limit(&self, sweeps: usize) -> f64 {
        let decay = self.decay(1).abs();
        let sum = if decay < 1.0 {
            (1.0 - self.decay(sweeps).abs()) / (1.0 - decay)
        } else {
            sweeps as f64
        };
        let rounding = 4.0 * f64::EPSILON * self.amplitude * (sum + 1.0);
        rounding.max(1e-12 * self.amplitude(sweeps))
    }

    /// Calls `row(z, y, scale, sines along x)` for each row of a block, local
    /// indices from 0. A point's initial value is the scale times the sine.
    pub fn rows(&self, block: &Block, mut row: impl FnMut(usize, usize, f64, &[f64])) {
        let along = |d: usize| &self.sines[d][block.first[d]..block.first[d] + block.points[d]];
        for (z, sz) in along(0).iter().enumerate() {
            for (y, sy) in along(1).iter().enumerate() {
                row(z, y, sz * sy, along(2));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_is_a_power_of_the_eigenvalue() {
        for (grid, waves) in [
            ([9, 8, 7], [3, 2, 1]),
            ([5, 5, 5], [5, 5, 5]),
            ([4, 4, 4], [1, 1, 1]),
        ] {
            let mode = Mode::new(grid, Some(Triple(waves))).expect("it fits");
            let [z, y, x] = grid.map(|n| n as f64 + 1.0);
            let [a, b, c] = waves.map(|k| PI * k as f64);
            let lambda = ((a / x).cos() + (b / y).cos() + (c / z).cos()) / 3.0;
            for sweeps in [0, 1, 2, 7, 100] {
                let power = lambda.powi(sweeps);
                let error = mode.decay(sweeps as usize) - power;
                assert!(error.abs() <= 1e-13 * power.abs(), "{sweeps} sweeps");
            }
        }
    }

    #[test]
    fn a_mode_fits_or_says_why() {
        assert!(Mode::new([1, 1, 1], None).is_ok());
        let e = Mode::new([4, 4, 4], Some(Triple([5, 1, 1]))).expect_err("too many");
        assert!(e.to_string().contains("hint"));
    }
}
