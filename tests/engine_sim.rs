//! The real engine under random traffic on the simulated network. A failure
//! prints its seed; `OSIER_SEED=... cargo test --test engine_sim one_seed`
//! repeats it.

use osier::testing::traffic::{Failure, Report, Traffic, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn plain() -> Traffic {
    Traffic::default()
}

fn deadly() -> Traffic {
    Traffic {
        deaths: true,
        ..Traffic::default()
    }
}

fn corrupt() -> Traffic {
    Traffic {
        corruption: true,
        ..Traffic::default()
    }
}

/// Plays seeds from `first` on, on all cores, until `enough` says so.
fn play(
    options: &Traffic,
    first: u64,
    enough: impl Fn(u64) -> bool + Sync,
) -> Result<Report, Failure> {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let outcome = Mutex::new(Ok(Report::default()));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|s| {
        for _ in 0..cores {
            s.spawn(|| {
                let mut sum = Report::default();
                while !failed.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if enough(n) {
                        break;
                    }
                    match run(first.wrapping_add(n), options) {
                        Ok(report) => sum += report,
                        Err(failure) => {
                            failed.store(true, Ordering::Relaxed);
                            *outcome.lock().unwrap() = Err(failure);
                        }
                    }
                }
                if let Ok(total) = &mut *outcome.lock().unwrap() {
                    *total += sum;
                }
            });
        }
    });
    outcome.into_inner().unwrap()
}

fn seeds(options: &Traffic, count: u64) -> Report {
    let start = Instant::now();
    match play(options, 0, |n| n >= count) {
        Ok(report) => {
            let seconds = start.elapsed().as_secs_f64();
            println!("{:.0} seeds/s: {report:?}", count as f64 / seconds);
            report
        }
        Err(failure) => panic!("{failure}"),
    }
}

/// A number from the environment.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_traffic_under_many_seeds() {
    let r = seeds(&plain(), 100_000);
    // Every path was taken, not only the easy ones.
    for (what, count) in [
        ("truncated", r.truncated),
        ("unexpected", r.unexpected),
        ("announced", r.announced),
        ("pulled", r.pulled),
        ("refused posts", r.refused),
        ("direct", r.direct),
        ("probed", r.probed),
        ("matched", r.matched),
        ("withdrawn", r.withdrawn),
        ("revoked", r.revoked),
        ("detached", r.detached),
    ] {
        assert!(count > 1000, "only {count} messages {what}");
    }
    assert_eq!((r.runs, r.malformed, r.stuck), (100_000, 0, 0));
}

#[test]
fn survivors_go_on_without_the_dead() {
    let r = seeds(&deadly(), 20_000);
    assert!(r.deaths > 5_000, "only {} deaths", r.deaths);
    assert!(r.lost > 5_000, "only {} operations met a death", r.lost);
}

#[test]
fn corrupted_bytes_do_no_harm() {
    let r = seeds(&corrupt(), 20_000);
    assert!(r.corrupted > 5_000, "only {} corrupted", r.corrupted);
    assert!(r.malformed > 1_000 && r.damaged > 1_000, "{r:?}");
}

#[test]
fn a_seed_decides_everything() {
    for options in [plain(), deadly(), corrupt()] {
        for seed in 0..200 {
            assert_eq!(run(seed, &options).unwrap(), run(seed, &options).unwrap());
        }
    }
}

/// Seeds that once failed, or do without the fix that is named.
#[test]
fn regressions() {
    let seeds = [
        // A start without room keeps its export when it is revoked.
        (4, plain()),
        // Starts overtaken by a short message.
        (49, plain()),
        // A revoke crosses the receiver's GO.
        (173, plain()),
        // A message outlives its sender and begins what never ends.
        (2, deadly()),
        (298, deadly()),
        // Two streams under one corrupted handle.
        (22, corrupt()),
    ];
    for (seed, options) in seeds {
        if let Err(failure) = run(seed, &options) {
            panic!("{failure}");
        }
    }
}

/// Repeats the seed in `OSIER_SEED`, in each kind of traffic.
#[test]
fn one_seed() {
    let Some(seed) = variable("OSIER_SEED") else {
        return;
    };
    for options in [plain(), deadly(), corrupt()] {
        match run(seed, &options) {
            Ok(report) => println!("{options:?}: {report:?}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Plays from `OSIER_SOAK_SEED` on for `OSIER_SOAK_SECONDS`.
#[test]
#[ignore = "as long as wanted"]
fn soak() {
    let seconds = variable("OSIER_SOAK_SECONDS").unwrap_or(10);
    let first = variable("OSIER_SOAK_SEED").unwrap_or(1) << 24;
    let start = Instant::now();
    let end = Duration::from_secs(seconds);
    let mut total = Report::default();
    let mut round = 0;
    while start.elapsed() < end {
        // A second of each kind in turn.
        for options in [plain(), deadly(), corrupt()] {
            let from = first + (round << 32);
            let until = (start.elapsed() + Duration::from_secs(1)).min(end);
            match play(&options, from, |_| start.elapsed() >= until) {
                Ok(report) => total += report,
                Err(failure) => panic!("{failure}"),
            }
            println!(
                "{:>5.0} s  {:>9} runs  {:>10} messages  {:>6} deaths  {:>6} corrupted  seeds from {from}",
                start.elapsed().as_secs_f64(),
                total.runs,
                total.received + total.truncated,
                total.deaths,
                total.corrupted,
            );
        }
        round += 1;
    }
}
