//! The real engine under random traffic on the simulated network. A failure is
//! cut down and printed as a timeline, with the command that repeats it;
//! `OSIER_TEST=seed=... cargo test -p osier-bed --test engine_sim one_seed -- --ignored` plays a whole seed.

#[path = "../../tests/asked.rs"]
mod asked;

use osier_bed::{
    Bounds, Calls, Failure, Fault, Report, Traffic, Wrong, collectives, explore_all, replay, run,
};
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

/// Operations of lanes only, as the seeds of `regressions` mean them.
fn of_lanes(options: Traffic) -> Traffic {
    Traffic {
        requests: false,
        ..options
    }
}

fn checked(options: Traffic) -> Traffic {
    Traffic {
        // Ready sends are drawn whether their receives are posted or not.
        checks: "signature,buffers,leaks".parse().expect("a setting"),
        ..options
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
#[test]
fn random_traffic_under_many_seeds() {
    let r = seeds(&plain(), 70_000);
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
        ("cancelled", r.withdrawn),
        ("revoked", r.revoked),
        ("detached", r.detached),
        ("cancelled", r.cancelled),
        ("ready", r.ready),
        ("buffered", r.buffered),
        ("without room", r.full),
        ("flushed", r.flushed),
        ("persistent", r.persistent),
        ("exchanged", r.exchanged),
        ("partitions", r.partitions),
        ("generalised", r.general),
        ("waited for", r.waited),
        ("across", r.across),
    ] {
        assert!(count > 1000, "only {count} messages {what}");
    }
    assert_eq!((r.runs, r.malformed, r.stuck), (70_000, 0, 0));
}

#[test]
fn survivors_go_on_without_the_dead() {
    let r = seeds(&deadly(), 15_000);
    assert!(r.deaths > 5_000, "only {} deaths", r.deaths);
    assert!(r.lost > 5_000, "only {} operations met a death", r.lost);
    for (what, count) in [
        ("ranks finalized", r.finalized),
        ("failures were acknowledged", r.acknowledged),
        ("receives from any source were told", r.told),
        ("receives were given up", r.resigned),
    ] {
        assert!(count > 100, "only {count} {what}");
    }
}

/// Collective calls of seeds, `OSIER_TEST=call-seed=N` alone if it is set.
fn calls(count: u64, deaths: bool, checks: &str) -> Calls {
    let checks = checks.parse().expect("a setting");
    let (first, count) = match asked::number("call-seed") {
        Some(seed) => (seed, 1),
        None => (0, asked::number("calls").unwrap_or(count)),
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let sum = Mutex::new(Calls::default());
    std::thread::scope(|s| {
        for core in 0..cores {
            let sum = &sum;
            s.spawn(move || {
                for seed in (first + core..first + count).step_by(cores as usize) {
                    match collectives(seed, deaths, checks) {
                        Ok(report) => *sum.lock().unwrap() += report,
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    println!("{sum:?}");
    sum
}

#[test]
fn collective_calls_under_many_seeds() {
    let r = calls(750, false, "off");
    assert!(r.lost == 0 && r.deaths == 0);
    assert!(
        r.ended > 15_000 && r.persistent > 1500 && r.across > 1500,
        "{r:?}"
    );
}

/// Every call of a collective ends where a rank dies, with its name, and nothing of it is
/// left for a later one.
#[test]
fn collective_calls_name_the_dead() {
    let r = calls(750, true, "off");
    assert!(r.deaths > 350 && r.lost > 1500, "{r:?}");
    calls(100, true, "all");
}

#[test]
fn checks_leave_collective_calls_in_peace() {
    let r = calls(100, false, "all");
    assert!(r.ended > 2000, "{r:?}");
}

/// Checks find nothing in traffic that is right, deaths or not.
#[test]
fn checked_traffic_has_no_findings() {
    let r = seeds(&checked(plain()), 3_500);
    assert!(r.persistent > 1000 && r.partitions > 1000, "{r:?}");
    let r = seeds(&checked(deadly()), 1_500);
    assert!(r.lost > 1000, "{r:?}");
}

#[test]
fn corrupted_bytes_do_no_harm() {
    let r = seeds(&corrupt(), 10_000);
    assert!(r.corrupted > 5_000, "only {} corrupted", r.corrupted);
    assert!(r.malformed > 1_000 && r.damaged > 1_000, "{r:?}");
}

#[test]
fn a_seed_decides_everything() {
    for options in [plain(), deadly(), corrupt(), checked(plain())] {
        for seed in 0..200 {
            assert_eq!(run(seed, &options).unwrap(), run(seed, &options).unwrap());
        }
    }
}

/// Explores and prints what was explored; (schedules, deaths).
fn explored(bounds: &Bounds) -> (usize, usize) {
    let start = Instant::now();
    match explore_all(bounds, &[]) {
        Ok(all) => {
            for one in &all {
                println!("{one}");
            }
            let sends = |kind| all.iter().any(|e| e.kinds.contains(&kind));
            for kind in [
                "EAGER",
                "EAGER_FIRST",
                "FRAGMENT",
                "RTS",
                "CTS",
                "FIN",
                "ACK",
                "CANCEL",
                "REAR_PUT",
                "REAR_DONE",
            ] {
                assert!(sends(kind), "no job sends {kind}");
            }
            let schedules = all.iter().map(|e| e.schedules).sum();
            let deaths = all.iter().map(|e| e.deaths).sum();
            println!(
                "{} jobs, {schedules} schedules, {deaths} deaths, {:.1} s",
                all.len(),
                start.elapsed().as_secs_f64()
            );
            (schedules, deaths)
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn small_jobs_under_all_schedules_and_deaths() {
    let (schedules, deaths) = explored(&Bounds {
        deviations: bound("deviations", 5),
        schedules: bound("schedules", 5_000),
        deviations_with_death: 2,
        schedules_with_death: bound("deadly", 150),
    });
    assert!(schedules > 100_000, "only {schedules} schedules");
    assert!(deaths > 100_000, "only {deaths} deaths");
}

/// A bound from the environment, or the one of the tests.
fn bound(name: &str, default: usize) -> usize {
    asked::number(name).map_or(default, |n| n as usize)
}

/// The exploration, too, finds what goes wrong on purpose.
#[test]
fn faults_on_purpose_are_found_by_exploring() {
    use Wrong::{KeepCredit, Lose, Overtake, Repeat, ShortCopy};
    let bounds = Bounds {
        deviations: 3,
        schedules: 500,
        deviations_with_death: 0,
        schedules_with_death: 0,
    };
    for (kind, what) in [
        (Some(EAGER), Lose),
        (Some(EAGER), Repeat),
        (Some(EAGER), Overtake),
        (Some(FRAGMENT), Overtake),
        (Some(RTS), Overtake),
        (Some(FRAGMENT), Repeat),
        (Some(CANCEL), Lose),
        (None, KeepCredit),
        (None, ShortCopy),
    ] {
        let faults = [(0, 1), (1, 0)].map(|(from, to)| Fault {
            from,
            to,
            kind,
            what,
        });
        let failure = match explore_all(&bounds, &faults) {
            Ok(_) => panic!("{what:?} of kind {kind:?} is not found"),
            Err(failure) => failure,
        };
        println!("{what:?} of kind {kind:?}:\n{failure}\n");
        assert!(
            failure.messages <= 3 && failure.ranks <= 3 && failure.acts <= 12,
            "{what:?} of kind {kind:?} is not cut down:\n{failure}"
        );
        let again = replay(&failure.case).expect_err("it fails again");
        assert_eq!(again.timeline, failure.timeline);
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
        // A revoke crosses the receiver's CTS.
        (173, plain()),
        // A message outlives its sender and begins what never ends.
        (2, deadly()),
        (298, deadly()),
        // Two streams under one corrupted handle.
        (22, corrupt()),
    ];
    for (seed, options) in seeds {
        if let Err(failure) = run(seed, &of_lanes(options)) {
            panic!("{failure}");
        }
    }
}

/// Repeats the seed of `OSIER_TEST=seed=N`, in each kind of traffic.
#[test]
#[ignore = "repeats the seed of OSIER_TEST"]
fn one_seed() {
    let seed = asked::number("seed").expect("OSIER_TEST=seed=N");
    for options in [checked(plain()), plain(), deadly(), corrupt()] {
        match run(seed, &options) {
            Ok(report) => println!("{options:?}: {report:?}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Repeats what a failure has printed.
#[test]
#[ignore = "repeats the case of OSIER_TEST"]
fn one_case() {
    let case = asked::text("case").expect("OSIER_TEST=case=...");
    match replay(&case) {
        Ok(report) => println!("no rule is broken: {report:?}"),
        Err(failure) => panic!("{failure}"),
    }
}

/// Kinds of messages on the wire (`engine/src/wire.rs`).
const EAGER: u8 = 1;
const FRAGMENT: u8 = 3;
const RTS: u8 = 4;
const CTS: u8 = 5;
const FIN: u8 = 6;
const ACK: u8 = 7;
const CREDIT: u8 = 8;
const CANCEL: u8 = 9;
const REAR_DONE: u8 = 11;

/// What goes wrong on purpose is found, cut down to a handful of acts, and
/// breaks the same rule when its line is played again.
#[test]
fn faults_on_purpose_are_found_and_cut_down() {
    use Wrong::{KeepCredit, Lose, Overtake, Repeat, ShortCopy};
    let faults = [
        (Some(EAGER), Lose),
        (Some(EAGER), Repeat),
        (Some(EAGER), Overtake),
        (None, KeepCredit),
        (Some(FRAGMENT), Lose),
        (Some(FRAGMENT), Overtake),
        (Some(RTS), Lose),
        (Some(RTS), Repeat),
        (Some(CTS), Lose),
        (Some(CTS), Repeat),
        (Some(FIN), Lose),
        (Some(FIN), Repeat),
        (Some(ACK), Lose),
        (Some(ACK), Repeat),
        (Some(CREDIT), Lose),
        (Some(CREDIT), Repeat),
        (Some(CANCEL), Lose),
        (Some(REAR_DONE), Lose),
        (None, ShortCopy),
    ];
    for (kind, what) in faults {
        let (from, to) = (0, 1);
        let options = Traffic {
            every_step: true,
            faults: vec![Fault {
                from,
                to,
                kind,
                what,
            }],
            ..Traffic::default()
        };
        let Some(failure) = (0..5_000).find_map(|seed| run(seed, &options).err()) else {
            panic!("{what:?} of kind {kind:?} is not found");
        };
        println!("{what:?} of kind {kind:?}:\n{failure}\n");
        // Credit returns once half a mebibyte was received.
        let many = kind == Some(CREDIT);
        assert!(
            many || failure.messages <= 4 && failure.ranks <= 3 && failure.acts <= 12,
            "{what:?} of kind {kind:?} is not cut down:\n{failure}"
        );
        let again = replay(&failure.case).expect_err("it fails again");
        assert_eq!(again.timeline, failure.timeline);
    }
}

/// Programs of one kind in a row, at most.
const CHUNK: u64 = 10_000;

/// Plays `runs` random programs from seed `first` on: of ten groups six are plain, two
/// have deaths, one has corruption, and one all checks. A run fails if its
/// hang is not seen, or one is seen that is none, as by any other rule.
fn programs(first: u64, runs: u64) {
    let start = Instant::now();
    let kinds = [
        ("plain", 6, plain()),
        ("deaths", 2, deadly()),
        ("corruption", 1, corrupt()),
        ("checks", 1, checked(plain())),
    ];
    let turns: Vec<usize> = (0..kinds.len())
        .flat_map(|k| std::iter::repeat_n(k, kinds[k].1))
        .collect();
    let mut totals = vec![Report::default(); kinds.len()];
    let mut done = 0;
    // Few are of all kinds, too.
    let in_a_row = CHUNK.min(runs.div_ceil(10));
    for &kind in turns.iter().cycle() {
        if done == runs {
            break;
        }
        let (name, _, options) = &kinds[kind];
        let (from, count) = (first + done, in_a_row.min(runs - done));
        match play(options, from, |n| n >= count) {
            Ok(report) => totals[kind] += report,
            Err(failure) => panic!("{failure}"),
        }
        done += count;
        println!(
            "{:>6.0} s  {done:>9} programs; seeds {from} to {} with {name}",
            start.elapsed().as_secs_f64(),
            from + count - 1,
        );
    }
    for ((name, ..), total) in kinds.iter().zip(totals) {
        println!("{name}: {total:?}");
    }
}

/// Plays from `seed` of `OSIER_TEST` on for its `seconds`, or as many programs as its
/// `runs`.
#[test]
#[ignore = "as long as wanted"]
fn soak() {
    if let Some(runs) = asked::number("runs") {
        return programs(asked::number("seed").unwrap_or(0), runs);
    }
    let seconds = asked::number("seconds").unwrap_or(10);
    let first = asked::number("seed").unwrap_or(1) << 24;
    let start = Instant::now();
    let end = Duration::from_secs(seconds);
    let mut total = Report::default();
    let mut round = 0;
    let mut schedules = 500;
    let mut exploring = Duration::ZERO;
    while start.elapsed() < end {
        // Small jobs, farther each time, as long as there is time for it.
        if exploring * 3 < end.saturating_sub(start.elapsed()) {
            let before = start.elapsed();
            explored(&Bounds {
                deviations: 12,
                schedules,
                deviations_with_death: 4,
                schedules_with_death: schedules / 20,
            });
            exploring = start.elapsed() - before;
            schedules *= 2;
        }
        // Then seconds of each kind of traffic in turn.
        for options in [plain(), deadly(), corrupt()] {
            let from = first + (round << 32);
            let until = (start.elapsed() + Duration::from_secs(1 << round.min(6))).min(end);
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
