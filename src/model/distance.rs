//! Distance of two cores at the moment: how long a cache line takes from one to the other.
//!
//! On a virtual machine two cores are now next to each other and now not: the host moves them
//! every few seconds or minutes, and what one writes and the other reads takes several times as
//! long. Costs measured in one of these states do not hold in the other, so each set of costs
//! has the distance at which it was measured.
//!
//! # Invariants
//! 1. Each thread stores to a line of its own, and waits for the other's. The second answers each
//!    trip, and the first makes all trips, or stores one that is beyond all: so both end.

use super::cores;
use super::hardware::Hardware;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Within this factor two times of a line are one distance: those of one state differ by a
/// tenth, those of two by a factor of 3 to 5 (2-core virtual machine, AMD EPYC of family 25,
/// 2026-11-25).
const ALIKE: f64 = 1.5;
/// Round trips of a reading, and readings, of which the median counts: a few may be disturbed.
const TRIPS: u64 = 100;
const READINGS: usize = 9;
/// Fewer say nothing.
const LEAST_READINGS: usize = 4;
/// Looks at a line before the core is offered to others, and the time is looked at.
const PATIENCE: u32 = 1 << 12;
/// Beside other work.
const LIMIT: Duration = Duration::from_millis(10);

/// Whether two times of a line are of one distance.
pub fn alike(a_ns: f64, b_ns: f64) -> bool {
    a_ns.max(b_ns) <= ALIKE * a_ns.min(b_ns)
}

/// How long a line takes between the first two processors that this thread may use, in ns; none
/// if there is one processor, or as [`line_between_ns`].
pub fn line_ns() -> Option<f64> {
    match Hardware::bound_to()[..] {
        [first, second, ..] => line_between_ns([first, second]),
        _ => None,
    }
}

/// The same between these processors, by two threads that are bound to them; none if other work
/// keeps either of them from answering. Takes a millisecond where both are idle, and ten at most.
pub fn line_between_ns(processors: [usize; 2]) -> Option<f64> {
    let [first, second] = processors;
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    // The first reading warms up.
    let last = TRIPS * (READINGS as u64 + 1);
    let began = Instant::now();
    let readings = std::thread::scope(|s| {
        s.spawn(|| {
            cores::confine(&[second]);
            for trip in 1..=last {
                wait_for(&there.0, trip, None);
                back.0.store(trip, Ordering::Release);
            }
        });
        // A thread of its own: the caller stays where it is.
        let asks = s.spawn(|| {
            cores::confine(&[first]);
            let mut readings = Vec::with_capacity(READINGS + 1);
            for reading in 0..=READINGS as u64 {
                let start = Instant::now();
                for trip in reading * TRIPS + 1..=(reading + 1) * TRIPS {
                    there.0.store(trip, Ordering::Release);
                    if !wait_for(&back.0, trip, Some(began)) {
                        // The other stops at once.
                        there.0.store(u64::MAX, Ordering::Release);
                        return readings;
                    }
                }
                readings.push(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
            }
            readings
        });
        asks.join()
    });
    let mut readings = readings.ok()?;
    if readings.len() < LEAST_READINGS {
        return None;
    }
    let readings = &mut readings[1..];
    readings.sort_by(f64::total_cmp);
    // Of few the disturbed ones are more.
    let middle = readings[(readings.len() - 1) / 2];
    Some((10.0 * middle).round() / 10.0)
}

/// Waits for an answer; whether it came in time.
fn wait_for(line: &AtomicU64, trip: u64, began: Option<Instant>) -> bool {
    let mut looks = 0u32;
    while line.load(Ordering::Acquire) < trip {
        looks += 1;
        if looks.is_multiple_of(PATIENCE) {
            if began.is_some_and(|began| began.elapsed() > LIMIT) {
                return false;
            }
            // Both may be on one core where binding is not allowed.
            std::thread::yield_now();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time() {
        assert!(line_ns().is_none_or(|ns| ns > 1.0 && ns.is_finite()));
    }

    #[test]
    fn one_distance_is_within_a_factor() {
        for (a, b, is) in [(40.0, 41.0, true), (40.0, 60.0, true), (160.0, 40.0, false)] {
            assert_eq!(alike(a, b), is);
            assert_eq!(alike(b, a), is);
        }
    }
}
