//! Schedules of small programs with windows, up to a bound: what is on its way goes on in every order
//! with a few deviations from the first.
//!
//! Ranks run in turn on one thread, and the network lets one message or operation through whenever
//! polls find nothing for some time. A schedule is the list of places in which another than the first
//! went; it always gives the same run.
//!
//! # Sources
//! M. Emmi, S. Qadeer, Z. Rakamarić, "Delay-Bounded Scheduling", POPL 2011: a deterministic scheduler
//! and a bounded number of deviations from it. Here each costs one, whatever it passes over.

use crate::support::Watchdog;
use osier::rma::{Updates, Window};
use osier::testing::ranks_scheduled;
use osier::{Communicator, Op, Result};
use osier_transports::sim::SimOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a rank does with a window of two cells a rank.
type Program = fn(&Communicator, &Window<i64>) -> Result<()>;

/// Schedules of a job, if `OSIER_TEST=schedules=N` does not say otherwise.
const SCHEDULES: u64 = 300;
/// Deviations of a schedule.
const DEVIATIONS: usize = 3;

/// Networks whose ranks reach parts by operations, and by messages that owners serve.
fn networks() -> [SimOptions; 2] {
    [true, false].map(|one_sided| SimOptions {
        get: one_sided,
        put: one_sided,
        atomics: one_sided,
        latency_ns: 0..=0,
        ns_per_byte: 0.0,
        ..SimOptions::default()
    })
}

/// What a run was.
#[derive(Debug, PartialEq)]
struct Played {
    /// The steps in which the program itself runs.
    own: std::ops::Range<u32>,
    /// What there was to choose from at each step.
    widths: Vec<u8>,
    /// All that arrived, in its order, until each rank's end.
    traces: Vec<u64>,
}

fn play(options: &SimOptions, ranks: usize, program: Program, choices: &[(u32, u8)]) -> Played {
    let (first, last) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
    let (traces, widths) = ranks_scheduled(options, ranks, choices, |comm, net| {
        let window = comm.window_for::<i64>(2, Updates::Many).expect("a window");
        comm.barrier().expect("no errors");
        let now = || net.choices().len() as u32;
        first.fetch_min(now(), Ordering::Relaxed);
        program(&comm, &window).expect("no errors");
        last.fetch_max(now(), Ordering::Relaxed);
        window.free().expect("no errors");
        net.trace_hash()
    });
    Played {
        own: first.into_inner()..last.into_inner(),
        widths,
        traces,
    }
}

/// Plays schedules, the fewest deviations first; how many, and whether there are no more.
fn explore(options: &SimOptions, ranks: usize, program: Program) -> (u64, bool) {
    let most = crate::asked::number("schedules").unwrap_or(SCHEDULES);
    let mut played = 0;
    let mut level: Vec<Vec<(u32, u8)>> = vec![Vec::new()];
    for deviations in 0..=DEVIATIONS {
        let mut next = Vec::new();
        // Those of a level from all over the program, if not all are played.
        let stride = (level.len() as u64).div_ceil((most - played).max(1)) as usize;
        let complete = stride == 1;
        for schedule in level.iter().step_by(stride) {
            let _watchdog = Watchdog::start();
            let run = || play(options, ranks, program, schedule);
            let Ok(Played { own, widths, .. }) = catch_unwind(AssertUnwindSafe(run)) else {
                panic!(
                    "{ranks} ranks, one-sided {}, schedule {schedule:?}",
                    options.put
                );
            };
            played += 1;
            let first = schedule.last().map_or(own.start, |(at, _)| at + 1);
            for at in first..own.end.min(widths.len() as u32) {
                for choice in 1..widths[at as usize] {
                    let mut more = schedule.clone();
                    more.push((at, choice));
                    next.push(more);
                }
            }
        }
        if !complete || played >= most {
            return (played, false);
        }
        if deviations == DEVIATIONS || next.is_empty() {
            break;
        }
        level = next;
    }
    (played, true)
}

fn explore_all(program: Program) {
    for options in networks() {
        for ranks in [2, 3] {
            let (played, complete) = explore(&options, ranks, program);
            assert!(played > 1, "nothing to choose from");
            println!(
                "{ranks} ranks, one-sided {}: {played} schedules{}",
                options.put,
                if complete { ", all" } else { "" }
            );
        }
    }
}

/// Each rank reads and writes under a lock of its own.
fn counts_alone(comm: &Communicator, window: &Window<i64>) -> Result<()> {
    for _ in 0..2 {
        let locked = window.lock(0)?;
        let mut value = [0];
        locked.get(&mut value, 0, 0)?;
        locked.put(&[value[0] + 1], 0, 0)?;
        locked.unlock()?;
    }
    comm.barrier()?;
    let locked = window.lock_shared(0)?;
    let mut value = [0];
    locked.get(&mut value, 0, 0)?;
    assert_eq!(value, [2 * comm.size() as i64]);
    locked.unlock()
}

#[test]
fn locks_keep_ranks_apart() {
    explore_all(counts_alone);
}

/// Rank 0 writes both cells under a lock; the others read them, together.
fn writes_beside_readers(comm: &Communicator, window: &Window<i64>) -> Result<()> {
    let target = comm.size() - 1;
    for round in 1..3 {
        if comm.rank() == 0 {
            let locked = window.lock(target)?;
            locked.put(&[round], target, 0)?;
            locked.put(&[round], target, 1)?;
            locked.unlock()?;
        } else {
            let locked = window.lock_shared(target)?;
            let (mut one, mut two) = ([0], [0]);
            locked.get(&mut one, target, 0)?;
            locked.get(&mut two, target, 1)?;
            locked.unlock()?;
            assert_eq!(one, two);
        }
    }
    Ok(())
}

#[test]
fn shared_locks_see_all_of_a_write_or_nothing() {
    explore_all(writes_beside_readers);
}

/// Writes that are under way when their call returns are there behind a flush, and behind an unlock.
fn flushes_and_unlocks(comm: &Communicator, window: &Window<i64>) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let next = (rank + 1) % size;
    let all = window.lock_all();
    let first = all.rput(10 + rank as i64, next, 0)?;
    all.flush(next)?;
    // The owner is told by a message of its own, which overtakes nothing that was flushed.
    comm.send(&[1u8], next, 7)?;
    comm.recv(&mut [0u8], (rank + size - 1) % size, 7)?;
    let mut own = [0];
    all.get(&mut own, rank, 0)?;
    assert_eq!(own, [10 + ((rank + size - 1) % size) as i64]);
    first.wait()?;
    // Not waited for: the unlock does.
    drop(all.rput(20 + rank as i64, next, 1)?);
    all.unlock()?;
    comm.send(&[2u8], next, 7)?;
    comm.recv(&mut [0u8], (rank + size - 1) % size, 7)?;
    let locked = window.lock_shared(rank)?;
    locked.get(&mut own, rank, 1)?;
    locked.unlock()?;
    assert_eq!(own, [20 + ((rank + size - 1) % size) as i64]);
    Ok(())
}

#[test]
fn what_was_flushed_or_unlocked_is_there() {
    explore_all(flushes_and_unlocks);
}

/// The last rank exposes its part to the others twice, who write and add.
fn posts_and_starts(comm: &Communicator, window: &Window<i64>) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let target = size - 1;
    for round in 1..3i64 {
        if rank == target {
            let origins = comm.group().incl(&(0..target).collect::<Vec<_>>())?;
            let mut posted = window.post(&origins)?;
            match round {
                1 => posted.wait()?,
                _ => {
                    while !posted.test()? {}
                    posted.wait()?;
                }
            }
            let there = window.to_vec()?;
            let (n, sum) = (target as i64, (0..target as i64).sum::<i64>());
            assert_eq!(there, [round, round * (n + sum)]);
        } else {
            let started = window.start(&comm.group().incl(&[target])?)?;
            if rank == 0 {
                started.put(&[round], target, 0)?;
            }
            started.accumulate(&[1 + rank as i64], target, 1, Op::Sum)?;
            started.complete()?;
        }
    }
    Ok(())
}

#[test]
fn targets_wait_for_all_that_started() {
    explore_all(posts_and_starts);
}

#[test]
fn a_schedule_is_a_run() {
    let programs: [Program; 4] = [
        counts_alone,
        writes_beside_readers,
        flushes_and_unlocks,
        posts_and_starts,
    ];
    for (at, program) in programs.into_iter().enumerate() {
        for options in networks() {
            for ranks in [2, 3] {
                let _watchdog = Watchdog::start();
                let first = play(&options, ranks, program, &[]);
                let choices = [(first.own.start + 2, 1), (first.own.start + 5, 1)];
                for choices in [&[][..], &choices] {
                    let run = play(&options, ranks, program, choices);
                    for _ in 0..4 {
                        let again = play(&options, ranks, program, choices);
                        assert_eq!(again, run, "program {at}, {ranks} ranks, {choices:?}");
                    }
                }
            }
        }
    }
}
