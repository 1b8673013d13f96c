//! Contributions that differ: blocks in cells, and messages.

use super::*;
use osier_collectives::{Neighbors, occurrence};
use std::ops::Range;

/// Bytes of the block from a rank to a rank.
type Lengths = Vec<Vec<usize>>;

const OPERATIONS: [Operation; 4] = [
    Operation::Gather,
    Operation::Scatter,
    Operation::Allgather,
    Operation::Alltoall,
];

fn one_behind_the_other(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let ranges = lengths.scan(0, |at, bytes| {
        let start = *at;
        *at += bytes;
        Some(start..*at)
    });
    ranges.collect()
}

fn byte(from: u32, to: u32, at: usize) -> u8 {
    (from as usize * 31 + to as usize * 7 + at) as u8
}

/// What a rank sends to a rank: of calls that give all the same, of no one.
fn block(operation: Operation, from: u32, to: u32, bytes: usize) -> Vec<u8> {
    let to = match operation {
        Operation::Allgather => 0,
        _ => to,
    };
    (0..bytes).map(|at| byte(from, to, at)).collect()
}

/// How each rank's run has ended, whether all results are right, and what is left.
fn play_blocks(
    call: &Call,
    lengths: &Lengths,
    seed: u64,
    faults: (Option<usize>, Option<(u32, usize)>),
) -> (Vec<(u32, Result<()>)>, bool, usize) {
    let (size, root, operation) = (call.size, call.root, call.operation);
    let bytes_of = |from: u32, to: u32| lengths[from as usize][to as usize];
    // Whom a rank sends a block, and gets one from; the rest is empty.
    let (mut inputs, mut wanted) = (Vec::new(), Vec::new());
    for rank in 0..size {
        let all = |ranks: bool, one: bool| match (ranks, one) {
            (true, _) => (0..size).collect::<Vec<u32>>(),
            (_, true) => vec![root],
            _ => Vec::new(),
        };
        let (to, from) = match operation {
            Operation::Gather => (all(false, true), all(rank == root, false)),
            Operation::Scatter => (all(rank == root, false), all(false, true)),
            Operation::Allgather => (vec![rank], all(true, false)),
            _ => (all(true, false), all(true, false)),
        };
        let gives = to
            .iter()
            .map(|to| block(operation, rank, *to, bytes_of(rank, *to)));
        inputs.push(gives.collect::<Vec<_>>());
        let gets = from.iter().map(|from| {
            let to = match operation {
                Operation::Allgather => *from,
                _ => rank,
            };
            block(operation, *from, to, bytes_of(*from, to))
        });
        wanted.push(gets.collect::<Vec<_>>());
    }
    play_these(call, &inputs, &wanted, seed, faults)
}

/// Blocks of a rank.
type OfRank = Vec<Vec<u8>>;

/// The same of what each rank has, and what it must get.
fn play_these(
    call: &Call,
    inputs: &[OfRank],
    wanted: &[OfRank],
    seed: u64,
    faults: (Option<usize>, Option<(u32, usize)>),
) -> (Vec<(u32, Result<()>)>, bool, usize) {
    let plan = Plan::new(call.clone(), Algorithm::OnePhase, 1).expect("for the call");
    let size = call.size;
    let mut sends: Vec<Vec<u8>> = inputs.iter().map(|blocks| blocks.concat()).collect();
    let mut results: Vec<Vec<u8>> = wanted
        .iter()
        .map(|blocks| vec![0; blocks.concat().len()])
        .collect();
    let pieces = |memory: &mut Vec<u8>, blocks: &[Vec<u8>]| {
        let view = RawView::untyped(memory.as_mut_ptr(), memory.len());
        let ranges = one_behind_the_other(blocks.iter().map(Vec::len));
        match ranges.is_empty() {
            true => Pieces::None,
            false => Pieces::Ranges(view, ranges.into()),
        }
    };
    let buffers = (0..size as usize).map(|rank| Buffers {
        send: pieces(&mut sends[rank], &inputs[rank]),
        recv: pieces(&mut results[rank], &wanted[rank]),
        sizes: Sizes::Empty,
        unit: 1,
    });
    let (ends, left) = play_plan(&plan, buffers.collect(), || None, seed, faults);
    let right = |(rank, end): &(u32, Result<()>)| {
        end.is_err() || results[*rank as usize] == wanted[*rank as usize].concat()
    };
    let all = ends.iter().all(right);
    (ends, all, left)
}

fn cases() -> impl Iterator<Item = (Call, Lengths)> {
    OPERATIONS.into_iter().flat_map(|operation| {
        (2..6u32).flat_map(move |size| {
            (0..6u64).map(move |seed| {
                let mut random = Random(seed * 77 + u64::from(size));
                let root = random.below(size as usize) as u32;
                let call = Call::new(operation, size).root(root).varying();
                // All ranks get an allgather's blocks out of one cell, of 64 KiB.
                let most = match operation {
                    Operation::Allgather => 3,
                    _ => 6,
                };
                let mut length = || match random.below(most) {
                    0 => random.below(30),
                    1 => random.below(400),
                    2 => random.below(4000),
                    3 => 30_000 + random.below(3000),
                    4 => 0,
                    _ => 65_000 + random.below(2000),
                };
                let lengths = (0..size).map(|_| (0..size).map(|_| length()).collect());
                (call, lengths.collect())
            })
        })
    })
}

#[test]
fn blocks_of_all_lengths_arrive() {
    let mut played = 0;
    for (call, lengths) in cases() {
        for seed in 0..8 {
            let told = format!("{call:?} {lengths:?} {seed}");
            let (ends, right, left) = play_blocks(&call, &lengths, seed, (None, None));
            assert!(right && left == 0, "{told}: {left} left");
            ends.into_iter().for_each(|(_, end)| end.expect(&told));
            played += 1;
        }
    }
    assert!(played > 700, "{played}");
}

/// Whatever fails at a rank, all runs end, and nothing is left for later ones.
#[test]
fn whatever_fails_ends_every_run_with_cells() {
    let (mut failed, mut fine) = (0, 0);
    for (call, lengths) in cases() {
        for fails_in in 0..12 {
            let seed = fails_in as u64 * 13;
            let told = format!("{call:?} {lengths:?} {fails_in}");
            let faults = (Some(fails_in), None);
            let (ends, right, left) = play_blocks(&call, &lengths, seed, faults);
            assert!(right && left == 0, "{told}: {left} left");
            for (_, end) in ends {
                match end {
                    Ok(()) => fine += 1,
                    Err(_) => failed += 1,
                }
            }
        }
    }
    assert!(failed > 500 && fine > 500, "{failed} failed, {fine} fine");
}

/// Also where one length is a cell's and the other a message's.
#[test]
fn counts_that_differ_are_errors() {
    for (call, lengths) in cases() {
        let size = call.size as usize;
        let plan = Plan::new(call.clone(), Algorithm::OnePhase, 1).expect("for the call");
        if call.operation != Operation::Alltoall {
            continue;
        }
        // Rank 1 expects one byte more of rank 0 than that sends, or one less.
        for more in [true, false] {
            let mut expected = lengths.clone();
            let of = &mut expected[0][1];
            *of = if more { *of + 1 } else { of.saturating_sub(1) };
            if expected == lengths {
                continue;
            }
            let total = |row: &[usize]| row.iter().sum::<usize>();
            let mut sends: Vec<Vec<u8>> = lengths.iter().map(|row| vec![1; total(row)]).collect();
            let into: Lengths = (0..size)
                .map(|to| (0..size).map(|from| expected[from][to]).collect())
                .collect();
            let mut results: Vec<Vec<u8>> = into.iter().map(|row| vec![0; total(row)]).collect();
            let pieces = |memory: &mut Vec<u8>, row: &[usize]| {
                let view = RawView::untyped(memory.as_mut_ptr(), memory.len());
                let ranges = one_behind_the_other(row.iter().copied());
                Pieces::Ranges(view, ranges.into())
            };
            let buffers = (0..size).map(|rank| Buffers {
                send: pieces(&mut sends[rank], &lengths[rank]),
                recv: pieces(&mut results[rank], &into[rank]),
                sizes: Sizes::Empty,
                unit: 1,
            });
            let (ends, left) = play_plan(&plan, buffers.collect(), || None, 5, (None, None));
            assert_eq!(left, 0, "{call:?} {lengths:?} {more} {ends:?}");
            let kind = |rank: usize| ends[rank].1.as_ref().expect_err("differs").kind();
            let kinds = [ErrorKind::Truncated, ErrorKind::Argument];
            assert!(kinds.contains(&kind(1)), "{:?}", ends[1].1);
        }
    }
}

/// Edges in and out of each rank, with several between the same two, and to itself.
fn graph(size: u32, random: &mut Random) -> Neighbors {
    let lists = || vec![Vec::new(); size as usize];
    let (mut sources, mut destinations) = (lists(), lists());
    for _ in 0..random.below(3 * size as usize) {
        let [from, to] = [0, 0].map(|_: u32| random.below(size as usize) as u32);
        sources[to as usize].push(from);
        destinations[from as usize].push(to);
    }
    Neighbors {
        sources,
        destinations,
        ..Neighbors::default()
    }
}

/// Calls on neighborhoods, with what each rank has and must get: of all lengths, or of short ones.
fn neighborhoods(short: bool) -> impl Iterator<Item = (Call, Vec<OfRank>, Vec<OfRank>)> {
    let operations = [Operation::NeighborAllgather, Operation::NeighborAlltoall];
    operations.into_iter().flat_map(move |operation| {
        (2..6u32).flat_map(move |size| {
            (0..8u64).map(move |seed| {
                let mut random = Random(seed * 91 + u64::from(size));
                let graph = graph(size, &mut random);
                let block = |from: u32, to: u32, nth: u32| -> Vec<u8> {
                    // Of an allgather, all get the same.
                    let (to, nth) = match operation {
                        Operation::NeighborAllgather => (0, 0),
                        _ => (to, nth),
                    };
                    let mut random = Random(seed + u64::from(from * 100 + to * 10 + nth));
                    random.below(2);
                    let bytes = match random.below(if short { 3 } else { 6 }) {
                        0 => random.below(30),
                        1 => random.below(400),
                        2 => random.below(4000),
                        3 => 30_000 + random.below(3000),
                        4 => 0,
                        _ => 65_000 + random.below(2000),
                    };
                    (0..bytes).map(|at| byte(from, to + 5 * nth, at)).collect()
                };
                let (mut inputs, mut wanted) = (Vec::new(), Vec::new());
                for rank in 0..size {
                    let to = &graph.destinations[rank as usize];
                    inputs.push(match operation {
                        Operation::NeighborAllgather => vec![block(rank, 0, 0)],
                        _ => (to.iter().enumerate())
                            .map(|(at, to_rank)| block(rank, *to_rank, occurrence(to, at)))
                            .collect(),
                    });
                    let from = &graph.sources[rank as usize];
                    let gets = from.iter().enumerate();
                    wanted.push(
                        gets.map(|(at, source)| block(*source, rank, occurrence(from, at)))
                            .collect(),
                    );
                }
                let call = Call::new(operation, size).varying().on(Arc::new(graph));
                (call, inputs, wanted)
            })
        })
    })
}

#[test]
fn blocks_of_neighbors_arrive() {
    for (call, inputs, wanted) in neighborhoods(false) {
        for seed in 0..8 {
            let told = format!("{call:?} {seed}");
            let (ends, right, left) = play_these(&call, &inputs, &wanted, seed, (None, None));
            assert!(right && left == 0, "{told}: {left} left");
            ends.into_iter().for_each(|(_, end)| end.expect(&told));
        }
    }
}

/// Whatever fails at a rank, its neighbors alone hear of it, and nothing is left.
#[test]
fn whatever_fails_is_told_to_neighbors() {
    let (mut failed, mut fine) = (0, 0);
    for (call, inputs, wanted) in neighborhoods(false) {
        for fails_in in 0..12 {
            let seed = fails_in as u64 * 13;
            let told = format!("{call:?} {fails_in}");
            let faults = (Some(fails_in), None);
            let (ends, right, left) = play_these(&call, &inputs, &wanted, seed, faults);
            assert!(right && left == 0, "{told}: {left} left");
            failed += ends.iter().filter(|(_, end)| end.is_err()).count();
            fine += ends.iter().filter(|(_, end)| end.is_ok()).count();
        }
    }
    assert!(failed > 200 && fine > 500, "{failed} failed, {fine} fine");
}

/// A rank dies at any time: who receives nothing from it ends well.
#[test]
fn a_death_is_told_to_neighbors() {
    let mut failed = 0;
    // Short ones: the net of these tests has no deaths for messages.
    for (call, inputs, wanted) in neighborhoods(true) {
        for at in 0..30usize {
            let dead = at as u32 % call.size;
            let dies = (None, Some((dead, at)));
            let (ends, right, _) = play_these(&call, &inputs, &wanted, at as u64 * 7, dies);
            assert!(right, "{call:?} {at}");
            for (rank, end) in ends {
                let hears = call.sources(rank).contains(&dead);
                assert!(end.is_ok() || hears, "{call:?} {at}: rank {rank} {end:?}");
                failed += usize::from(end.is_err());
            }
        }
    }
    assert!(failed > 20, "{failed}");
}
