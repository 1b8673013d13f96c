//! Conflicting accesses to windows (`OSIER_CHECK=windows`), and correct twins without any.

use crate::support::Watchdog;
use osier::rma::{Epoch, SignalOp, Window};
use osier::testing::{Network, universes_checked};
use osier::{Communicator, Op, Result, Type};
use osier_engine::check::Check;

/// What each of three ranks has found by the time it has left.
fn found(f: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<String> {
    let _watchdog = Watchdog::start();
    let checks = "windows".parse().expect("a setting");
    let mut texts = Vec::new();
    for network in Network::all() {
        let all = universes_checked(&network, checks, 3, |u| {
            f(u.world()).expect("no errors");
            u.checks()
        });
        let before = texts.len();
        for (rank, checks) in all.iter().enumerate() {
            assert!(rank == 0 || checks.count(Check::Windows) == 0, "{checks:?}");
            texts.extend(checks.findings().iter().map(ToString::to_string));
        }
        assert_eq!((texts.len() - before) as u64, all[0].count(Check::Windows));
        assert!(texts.len() - before <= 1, "{texts:?}");
    }
    texts
}

/// Each network's run has found one conflict, whose text has all these parts.
#[track_caller]
fn conflict(f: impl Fn(&Communicator) -> Result<()> + Sync, parts: &[&str]) {
    let texts = found(f);
    assert_eq!(texts.len(), Network::all().len(), "{texts:?}");
    for (text, part) in texts.iter().flat_map(|t| parts.iter().map(move |p| (t, p))) {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[track_caller]
fn none(f: impl Fn(&Communicator) -> Result<()> + Sync) {
    let texts = found(f);
    assert!(texts.is_empty(), "{texts:?}");
}

/// Runs `f` between fences, of a window of 16 numbers.
fn fenced(comm: &Communicator, f: impl FnOnce(&Epoch<'_, u64>, usize) -> Result<()>) -> Result<()> {
    let window: Window<u64> = comm.window(16)?;
    window.fenced(|epoch| f(epoch, comm.rank()))?;
    window.free().map(drop)
}

fn lines(lines: [u32; 2]) -> [String; 2] {
    lines.map(|line| format!("{}:{line}", file!()))
}

#[test]
fn puts_to_the_same_bytes_are_named_with_both_lines() {
    let here = line!();
    let lines = lines([here + 6, here + 7]);
    let parts = ["put and put of bytes 24 to 32 of rank 0's part"];
    conflict(
        |comm| {
            fenced(comm, |epoch, rank| match rank {
                1 => epoch.put(&[1u64; 2], 0, 2),
                2 => epoch.put(&[2u64; 2], 0, 3),
                _ => Ok(()),
            })
        },
        &[
            parts[0],
            "by rank 1 at",
            "by rank 2 at",
            &lines[0],
            &lines[1],
        ],
    );
}

#[test]
fn a_get_beside_a_put_is_a_conflict() {
    conflict(
        |comm| {
            fenced(comm, |epoch, rank| match rank {
                1 => epoch.put(&1u64, 0, 5),
                2 => epoch.get(&mut [0u64; 16], 0, 0),
                _ => Ok(()),
            })
        },
        &["bytes 40 to 48", "put", "get"],
    );
}

#[test]
fn the_owners_own_reads_and_writes_count() {
    for writes in [false, true] {
        conflict(
            |comm| {
                let window: Window<u64> = comm.window(4)?;
                window.fenced(|epoch| match comm.rank() {
                    0 if writes => window.write(0, &[1, 2]),
                    0 => window.read(0, &mut [0; 2]),
                    1 => epoch.put(&7u64, 0, 1),
                    _ => Ok(()),
                })?;
                window.free().map(drop)
            },
            &[
                "bytes 8 to 16",
                if writes {
                    "write by rank 0"
                } else {
                    "read by rank 0"
                },
            ],
        );
    }
}

#[test]
fn updates_by_different_operators_conflict() {
    conflict(
        |comm| {
            fenced(comm, |epoch, rank| match rank {
                1 => epoch.accumulate(&[1u64; 3], 0, 0, Op::Sum),
                2 => epoch.accumulate(&[1u64; 3], 0, 2, Op::Max),
                _ => Ok(()),
            })
        },
        &["bytes 16 to 24", "update and update"],
    );
}

/// Columns of which one byte is written twice, and others that only lie between.
#[test]
fn layouts_are_compared_block_by_block() {
    let column = |at: usize| {
        move |comm: &Communicator| {
            let column = Type::vector(4, 1, 4, &Type::of::<u64>()).and_then(|t| t.commit())?;
            fenced(comm, |epoch, rank| match rank {
                1 => epoch.put_as(&[1u64; 4], 0, 0, &column, 1),
                2 => epoch.put_as(&[2u64; 4], 0, at, &column, 1),
                _ => Ok(()),
            })
        }
    };
    none(column(1));
    none(column(3));
    conflict(column(0), &["bytes 0 to 8"]);
}

#[test]
fn accesses_in_one_exposure_conflict() {
    conflict(
        |comm| {
            let window: Window<u64> = comm.window(4)?;
            let group = comm.group();
            match comm.rank() {
                0 => window.post(&group.incl(&[1, 2])?)?.wait()?,
                rank => {
                    let started = window.start(&group.incl(&[0])?)?;
                    started.put(&(rank as u64), 0, 1)?;
                    started.complete()?;
                }
            }
            window.free().map(drop)
        },
        &["bytes 8 to 16", "put and put"],
    );
}

/// One after the other the ranks write the same bytes, in exposures of their own.
#[test]
fn exposures_are_told_apart() {
    none(|comm| {
        let window: Window<u64> = comm.window(4)?;
        let group = comm.group();
        for round in 0..3 {
            for writer in [1, 2] {
                match comm.rank() {
                    0 => window.post(&group.incl(&[writer])?)?.wait()?,
                    rank if rank == writer => {
                        let started = window.start(&group.incl(&[0])?)?;
                        started.put(&[round + rank as u64; 4], 0, 0)?;
                        started.complete()?;
                    }
                    _ => {}
                }
            }
        }
        window.free().map(drop)
    });
}

/// What fences, locks, updates, messages and the order of calls keep apart is no conflict.
#[test]
fn correct_programs_have_no_conflicts() {
    none(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let window: Window<u64> = comm.window(8)?;
        for round in 0..4u64 {
            // Apart, then the owner reads, then another writes the same.
            window.fenced(|epoch| epoch.put(&round, 0, rank))?;
            window.read(0, &mut [0; 8])?;
            window.fenced(|epoch| epoch.put(&round, 0, (rank + 1) % size))?;
            // Updates by one operator, and reads by updates.
            window.fenced(|epoch| {
                epoch.accumulate(&[1u64; 8], 0, 0, Op::Sum)?;
                let now = osier::rma::Change::Keep;
                epoch.get_accumulate(&[0u64], &mut [0u64], 0, 1, now)
            })?;
            // One rank's calls are in order.
            window.fenced(|epoch| match rank {
                1 => {
                    epoch.put(&1u64, 0, 0)?;
                    epoch.get(&mut [0u64], 0, 0)?;
                    epoch.put(&2u64, 0, 0)
                }
                _ => Ok(()),
            })?;
            // Under exclusive locks, all write the same.
            let alone = window.lock(0)?;
            let mut there = [0u64; 8];
            alone.get(&mut there, 0, 0)?;
            alone.put(&there.map(|v| v + 1), 0, 0)?;
            alone.unlock()?;
            comm.barrier()?;
            // A token orders what ranks do in an epoch on all.
            let all = window.lock_all();
            if rank > 0 {
                comm.recv(&mut [0u8], rank - 1, 0)?;
            }
            all.put(&[round; 8], 0, 0)?;
            all.flush(0)?;
            if rank + 1 < size {
                comm.send(&[1u8], rank + 1, 0)?;
            }
            all.unlock()?;
            window.fence()?;
        }
        window.free().map(drop)
    });
}

#[test]
fn signals_order_what_is_in_a_symmetric_heap() {
    none(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let heap = comm.symmetric_heap(4096)?;
        let cells = heap.alloc::<u64>(8)?;
        let flag = heap.alloc::<u64>(1)?;
        for round in 1..20u64 {
            let next = (rank + 1) % size;
            cells.put_signal(&[round; 8], next, 0, &flag, 0, SignalOp::Set(round))?;
            flag.wait_until(0, |flag| flag == round)?;
            assert_eq!(cells.to_vec()?, [round; 8]);
            heap.barrier()?;
        }
        drop((cells, flag));
        heap.free()
    });
}
