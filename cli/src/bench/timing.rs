//! Repetitions and their medians.
//!
//! A repetition runs the body `n` times between two readings of the clock,
//! `n` found before so that it takes about [`REPETITION`]. The value is the
//! median over repetitions, like that of the programs for the peers; twelfths
//! of a repetition are timed besides, for the best and the 99th of 100.

use std::time::{Duration, Instant};

use osier::Communicator;

use super::Result;
use super::options::Effort;

/// What a repetition takes.
const REPETITION: Duration = Duration::from_millis(10);
const REPETITIONS: u64 = 9;
const PARTS: u64 = 12;

/// Seconds of one iteration.
#[derive(Clone, Copy, Debug)]
pub struct Seconds {
    pub median: f64,
    pub min: f64,
    pub p99: f64,
    /// Least and greatest of the repetitions.
    pub spread: [f64; 2],
}

impl Seconds {
    /// So many times as long.
    pub fn times(self, factor: f64) -> Seconds {
        Seconds {
            median: self.median * factor,
            min: self.min * factor,
            p99: self.p99 * factor,
            spread: self.spread.map(|seconds| seconds * factor),
        }
    }

    /// The extremes of something that is computed from seconds, the lesser first.
    pub fn spread_of(&self, value: impl Fn(f64) -> f64) -> [f64; 2] {
        let [one, other] = self.spread.map(value);
        [one.min(other), one.max(other)]
    }
}

/// Times `body(n)`, which runs `n` iterations, on all ranks of `comm` at
/// once; without one on this thread alone.
pub fn measure(
    comm: Option<&Communicator>,
    effort: &Effort,
    mut body: impl FnMut(u64) -> Result<()>,
) -> Result<Seconds> {
    let barrier = || -> Result<()> {
        if let Some(comm) = comm {
            comm.barrier()?;
        }
        Ok(())
    };
    let mut n = effort.iterations.unwrap_or(1);
    if let Some(warmup) = effort.warmup {
        barrier()?;
        body(warmup)?;
    }
    while effort.warmup.is_none() || effort.iterations.is_none() {
        // The shortest of five: where ranks share cores, the first iterations of all wait for
        // ranks that are still starting.
        let mut took = Duration::MAX;
        for _ in 0..5 {
            barrier()?;
            let start = Instant::now();
            body(n)?;
            took = took.min(start.elapsed());
        }
        let mut next = [n];
        if effort.iterations.is_none() && took < REPETITION / 2 {
            let scale = REPETITION.as_secs_f64() / took.as_secs_f64().max(1e-9);
            next[0] = (n as f64 * scale.min(8.0)) as u64 + 1;
        }
        if let Some(comm) = comm {
            comm.bcast(&mut next, 0)?;
        }
        if next[0] == n {
            break;
        }
        n = next[0];
    }
    let mut whole = Vec::new();
    let mut parts = Vec::new();
    for _ in 0..effort.repetitions.unwrap_or(REPETITIONS) {
        barrier()?;
        let start = Instant::now();
        let mut last = start;
        let mut done = 0;
        for part in 1..=PARTS {
            let until = n * part / PARTS;
            if until == done {
                continue;
            }
            body(until - done)?;
            let now = Instant::now();
            parts.push((now - last).as_secs_f64() / (until - done) as f64);
            (last, done) = (now, until);
        }
        whole.push((last - start).as_secs_f64() / n as f64);
    }
    parts.sort_by(f64::total_cmp);
    Ok(Seconds {
        spread: [
            whole.iter().copied().fold(f64::INFINITY, f64::min),
            whole.iter().copied().fold(0.0, f64::max),
        ],
        median: median(&mut whole),
        min: parts[0],
        p99: parts[(parts.len() - 1) * 99 / 100],
    })
}

/// The median; the mean of the two in the middle of an even number.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return f64::NAN;
    }
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn iterations_and_warmup_are_counted() {
        let effort = Effort {
            iterations: Some(30),
            warmup: Some(5),
            repetitions: Some(4),
        };
        let mut runs = 0;
        let seconds = measure(None, &effort, |n| {
            runs += n;
            Ok(())
        })
        .unwrap();
        assert_eq!(runs, 5 + 4 * 30);
        assert!(seconds.min <= seconds.p99);
        let [least, greatest] = seconds.spread;
        assert!(least <= seconds.median && seconds.median <= greatest);
        assert_eq!(seconds.spread_of(|s| -s), [-greatest, -least]);
    }
}
