//! METG(50 %): the smallest granularity of tasks at which half of the peak is left. Pure.
//!
//! A sweep has a point for each size of a task's work, from large to small. Granularity is the
//! elapsed time of all cores for a task, what the task costs besides its work included.
//!
//! # Sources
//! E. Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
//! Performance", SC20, section IV: minimum effective task granularity.

use std::fmt;

/// Share of the peak.
const EFFICIENCY: f64 = 0.5;
/// A sweep with a greater one was beside another peak.
const MOST: f64 = 1.5;

/// One size of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub granularity_us: f64,
    pub flops_per_s: f64,
}

/// Why a sweep has no METG.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rejected {
    /// All sizes are efficient: it ended too early.
    NoneBelow,
    /// No size is.
    AllBelow,
    /// More than the peak by far.
    Above(f64),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::NoneBelow => write!(f, "no size below an efficiency of {EFFICIENCY}"),
            Rejected::AllBelow => write!(f, "no size with an efficiency of {EFFICIENCY}"),
            Rejected::Above(e) => write!(f, "an efficiency of {e:.2}, above {MOST}"),
        }
    }
}

/// METG of a sweep, in us, beside a peak in flop/s of the same cores.
///
/// # Errors
/// The sweep is to be rejected.
pub fn metg(sweep: &[Point], peak: f64) -> Result<f64, Rejected> {
    let efficiency = |point: &Point| point.flops_per_s / peak;
    if let Some(above) = sweep.iter().map(efficiency).find(|e| *e > MOST) {
        return Err(Rejected::Above(above));
    }
    if sweep.iter().all(|point| efficiency(point) >= EFFICIENCY) {
        return Err(Rejected::NoneBelow);
    }
    let efficient = sweep
        .iter()
        .enumerate()
        .filter(|(_, point)| efficiency(point) >= EFFICIENCY);
    let smallest = efficient.min_by(|a, b| a.1.granularity_us.total_cmp(&b.1.granularity_us));
    let (at, last) = smallest.ok_or(Rejected::AllBelow)?;
    match sweep.get(at + 1) {
        Some(next) if next.granularity_us < last.granularity_us => {
            let (above, below) = (efficiency(last), efficiency(next));
            let part = (EFFICIENCY - below) / (above - below);
            let step = last.granularity_us - next.granularity_us;
            Ok(next.granularity_us + part * step)
        }
        _ => Ok(last.granularity_us),
    }
}

/// The peak by the sizes of a sweep of kernels alone, from large to small: the most of the larger
/// half. What disturbs a size makes it slower, never faster.
pub fn peak(kernels: &[Point]) -> Option<f64> {
    let larger = &kernels[..kernels.len().div_ceil(2)];
    let rates = larger.iter().map(|point| point.flops_per_s);
    rates.max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(points: &[(f64, f64)]) -> Vec<Point> {
        let point = |(granularity_us, flops_per_s): &(f64, f64)| Point {
            granularity_us: *granularity_us,
            flops_per_s: *flops_per_s,
        };
        points.iter().map(point).collect()
    }

    #[test]
    fn between_two_sizes_it_is_where_half_of_the_peak_is() {
        let points = sweep(&[
            (8.0, 95.0),
            (4.0, 80.0),
            (2.0, 60.0),
            (1.0, 40.0),
            (0.9, 20.0),
        ]);
        assert_eq!(metg(&points, 100.0), Ok(1.5));
        // Exactly there.
        assert_eq!(metg(&points, 120.0), Ok(2.0));
        // By the inverse of the model: t = work + 1, of which the work counts.
        let model: Vec<(f64, f64)> = (0..12)
            .map(|half| 1000.0 / f64::from(1 << half))
            .map(|work| (work + 1.0, 100.0 * work / (work + 1.0)))
            .collect();
        let found = metg(&sweep(&model), 100.0).unwrap();
        assert!((found - 2.0).abs() < 0.02, "{found}");
    }

    #[test]
    fn a_next_size_that_takes_longer_is_not_asked() {
        let points = sweep(&[(8.0, 95.0), (2.0, 60.0), (2.5, 20.0)]);
        assert_eq!(metg(&points, 100.0), Ok(2.0));
    }

    #[test]
    fn a_dip_among_large_sizes_does_no_harm() {
        let points = sweep(&[(8.0, 30.0), (4.0, 90.0), (2.0, 75.0), (1.5, 25.0)]);
        assert_eq!(metg(&points, 100.0), Ok(1.75));
    }

    #[test]
    fn sweeps_without_a_crossing_or_above_the_peak_are_rejected() {
        let points = sweep(&[(8.0, 95.0), (4.0, 80.0)]);
        assert_eq!(metg(&points, 100.0), Err(Rejected::NoneBelow));
        assert_eq!(metg(&points, 1000.0), Err(Rejected::AllBelow));
        assert_eq!(metg(&[], 100.0), Err(Rejected::NoneBelow));
        assert_eq!(metg(&points, 50.0), Err(Rejected::Above(1.9)));
    }

    #[test]
    fn the_peak_is_that_of_large_kernels() {
        let kernels = sweep(&[
            (8.0, 100.0),
            (4.0, 10.0),
            (2.0, 102.0),
            (1.0, 150.0),
            (0.5, 40.0),
        ]);
        assert_eq!(peak(&kernels), Some(102.0));
        assert_eq!(peak(&[]), None);
    }
}
