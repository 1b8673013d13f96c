//! Calls with counts, again and again, beside a naive program: each block alone by a message.
//!
//! Lengths are around those at which a block goes beside a flag, to a page, to a slot elsewhere,
//! or by a message; of any layout, in place, on parts of a communicator, in all forms.

use crate::support::{Random, fails, on_all, on_shm, pattern};
use osier::{Communicator, Datatype, ErrorKind, IN_PLACE, Layout, Op, Order, Type, View, ViewMut};

/// Of a block that a rank sends to another in a round, which all ranks draw alike.
fn length(seed: usize, from: usize, to: usize) -> usize {
    let mut random = Random::new((seed * 1009 + from * 31 + to * 7 + 1) as u64);
    let near = [0, 24, 600, 1848, 4096, 21_824, 32_768, 65_536][random.below(8)];
    match random.below(4) {
        0 => near,
        1 => near + random.below(9),
        2 => near.saturating_sub(random.below(9)),
        _ => random.below(near + 1),
    }
}

fn block(seed: usize, from: usize, to: usize) -> Vec<u8> {
    pattern(length(seed, from, to), seed + from * 5 + to)
}

/// Blocks one behind the other, with some room between: counts, displacements, and the whole.
fn laid(blocks: &[Vec<u8>], gap: usize) -> (Vec<usize>, Vec<usize>, Vec<u8>) {
    let counts: Vec<usize> = blocks.iter().map(Vec::len).collect();
    let (mut starts, mut all) = (Vec::new(), Vec::new());
    for block in blocks {
        starts.push(all.len());
        all.extend_from_slice(block);
        all.resize(all.len() + gap, 0xee);
    }
    (counts, starts, all)
}

/// The layout of bytes in every second place.
fn every_second() -> Layout {
    let every = Type::subarray(&[2], &[1], &[0], Order::C, &u8::datatype());
    every.expect("type").commit().expect("commit")
}

/// The same bytes there.
fn spread(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [*byte, 0xaa]).collect()
}

/// One round of calls in one form: blocking with plain memory, nonblocking, persistent, and of
/// memory with gaps.
fn round(comm: &Communicator, seed: usize, form: usize) {
    let (size, rank) = (comm.size(), comm.rank());
    let root = seed % size;
    let gap = seed % 3;
    let mine: Vec<Vec<u8>> = (0..size).map(|to| block(seed, rank, to)).collect();
    let theirs: Vec<Vec<u8>> = (0..size).map(|from| block(seed, from, rank)).collect();
    let (send_counts, send_at, send) = laid(&mine, gap);
    let (recv_counts, recv_at, right) = laid(&theirs, gap);
    let from = (&send_counts[..], &send_at[..]);
    let into = (&recv_counts[..], &recv_at[..]);
    let empty = vec![0xee; right.len()];
    let got = match form {
        0 => {
            let mut recv = empty;
            comm.alltoallv(&send, from, &mut recv, into).expect("call");
            recv
        }
        1 => {
            let request = comm.ialltoallv(send, empty, from, into).expect("begun");
            request.wait().expect("call").1
        }
        2 => {
            let request = comm.alltoallv_init(send, empty, from, into);
            let mut request = request.expect("init");
            for _ in 0..3 {
                request.start().expect("start");
                request.wait().expect("call");
            }
            request.into_buffers().expect("inactive").1
        }
        _ => {
            let every = every_second();
            let (from_memory, mut memory) = (spread(&send), spread(&empty));
            let send = View::new(&from_memory, 0, &every, send.len()).expect("view");
            let n = empty.len();
            let mut recv = ViewMut::new(&mut memory, 0, &every, n).expect("view");
            comm.alltoallv(&send, from, &mut recv, into).expect("call");
            assert!(memory.iter().skip(1).step_by(2).all(|byte| *byte == 0xaa));
            memory.into_iter().step_by(2).collect()
        }
    };
    assert!(got == right, "alltoallv {seed} {form}");

    // Of what a rank gives to all, it is the block to itself.
    let given: Vec<Vec<u8>> = (0..size).map(|of| block(seed, of, of)).collect();
    let (counts, at, all) = laid(&given, gap);
    let own = given[rank].clone();
    let mut gathered = vec![0xee; all.len()];
    match (form, rank == root) {
        (3, true) => {
            // In place, at the root alone.
            gathered[at[rank]..][..counts[rank]].copy_from_slice(&own);
            comm.gatherv(&IN_PLACE, &mut gathered, &counts, &at, root)
        }
        (1, _) => {
            let room = std::mem::take(&mut gathered);
            let request = comm.igatherv(own.clone(), room, &counts, &at, root);
            let ended = request.and_then(osier::collectives::Collective::wait);
            ended.map(|(_, all)| gathered = all)
        }
        _ => comm.gatherv(&own, &mut gathered, &counts, &at, root),
    }
    .expect("gatherv");
    let expected = if rank == root {
        all.clone()
    } else {
        vec![0xee; all.len()]
    };
    assert!(gathered == expected, "gatherv {seed} {form}");

    let mut part = vec![0u8; own.len()];
    match (form, rank == root) {
        (3, true) => {
            comm.scatterv(&all, &counts, &at, &mut osier::collectives::InPlace, root)
                .expect("scatterv");
            part.copy_from_slice(&own);
        }
        _ => comm
            .scatterv(&all, &counts, &at, &mut part, root)
            .expect("scatterv"),
    }
    assert!(part == own, "scatterv {seed} {form}");

    let mut everything = vec![0xee; all.len()];
    if form == 3 {
        everything[at[rank]..][..counts[rank]].copy_from_slice(&own);
        comm.allgatherv(&IN_PLACE, &mut everything, &counts, &at)
    } else {
        comm.allgatherv(&own, &mut everything, &counts, &at)
    }
    .expect("allgatherv");
    assert!(everything == all, "allgatherv {seed} {form}");

    // Equal counts, blocks anywhere.
    let n = counts[0];
    let given: Vec<Vec<u8>> = (0..size).map(|of| pattern(n, seed + of)).collect();
    let (counts, at, all) = laid(&given, gap);
    let mut everything = vec![0xee; all.len()];
    comm.allgatherv(&given[rank], &mut everything, &counts, &at)
        .expect("allgatherv");
    assert!(
        everything == all,
        "allgatherv of equal counts {seed} {form}"
    );

    in_place(comm, seed, form);

    let views = |blocks: &[Vec<u8>]| blocks.to_vec();
    let mut recv: Vec<Vec<u8>> = theirs.iter().map(|b| vec![0; b.len()]).collect();
    comm.alltoallw(&views(&mine), &mut recv).expect("alltoallw");
    assert!(recv == theirs, "alltoallw {seed} {form}");
}

/// Blocks that take the place of those that leave: as long, both ways.
fn in_place(comm: &Communicator, seed: usize, form: usize) {
    let (size, rank) = (comm.size(), comm.rank());
    let gift = |from: usize, to: usize| {
        let n = length(seed + 7, from.min(to), from.max(to));
        pattern(n, seed + from * 3 + to)
    };
    let mine: Vec<_> = (0..size).map(|to| gift(rank, to)).collect();
    let theirs: Vec<_> = (0..size).map(|from| gift(from, rank)).collect();
    let (counts, at, mut memory) = laid(&mine, seed % 3);
    let right = laid(&theirs, seed % 3).2;
    let nothing: (&[usize], &[usize]) = (&[], &[]);
    let into = (&counts[..], &at[..]);
    match form {
        1 => {
            let every = every_second();
            let mut wide = spread(&memory);
            let mut view = ViewMut::new(&mut wide, 0, &every, memory.len()).expect("view");
            let ended = comm.alltoallv(&IN_PLACE, nothing, &mut view, into);
            ended.expect("in place, with gaps");
            assert!(wide.iter().skip(1).step_by(2).all(|byte| *byte == 0xaa));
            memory = wide.into_iter().step_by(2).collect();
        }
        2 => {
            let begun = comm.ialltoallv(IN_PLACE, memory, nothing, into);
            memory = begun.expect("begun").wait().expect("call").1;
        }
        _ => {
            let ended = comm.alltoallv(&IN_PLACE, nothing, &mut memory, into);
            ended.expect("in place");
        }
    }
    assert!(memory == right, "alltoallv in place {seed} {form}");
}

#[test]
fn calls_with_counts_give_what_messages_give() {
    for ranks in [2, 3, 5] {
        on_all(ranks, |comm| {
            for seed in 0..40 {
                round(&comm, seed, seed % 4);
            }
            // Among calls of other kinds, and on a part.
            let half = comm
                .split(Some((comm.rank() % 2) as u32), 0)
                .expect("split");
            for seed in 100..124 {
                if let Some(half) = &half {
                    round(half, seed, seed % 4);
                }
                let mut sum = [0u64; 40];
                comm.allreduce(&[1u64; 40], &mut sum, Op::Sum).expect("sum");
                assert_eq!(sum, [comm.size() as u64; 40]);
                round(&comm, seed, 0);
            }
        });
    }
}

/// Both ends know the length of a block; where they do not agree, it is an error, as of messages.
#[test]
fn counts_that_do_not_agree_are_errors() {
    on_shm(2, |comm| {
        let rank = comm.rank();
        for (sent, expected) in [
            (8, 16),
            (16, 8),
            (30, 3000),
            (3000, 30),
            (70_000, 8),
            (8, 70_000),
            (70_000, 70_001),
        ] {
            for _ in 0..3 {
                let (one, none) = ([sent, sent], [0, sent]);
                let send = vec![1u8; 2 * sent];
                let wanted = match rank {
                    0 => [sent, sent],
                    _ => [expected, sent],
                };
                let mut recv = vec![0u8; wanted[0] + wanted[1]];
                let result =
                    comm.alltoallv(&send, (&one, &none), &mut recv, (&wanted, &[0, wanted[0]]));
                if rank == 1 {
                    let e = result.expect_err("they differ");
                    let kinds = [ErrorKind::Truncated, ErrorKind::Argument];
                    assert!(kinds.contains(&e.kind()), "{e}");
                }
            }
            comm.barrier().expect("goes on");
        }
    });
}

/// A call that is kept has other counts than its peer's: an error of the kind that messages have, and
/// the next calls go on.
#[test]
fn kept_calls_find_other_counts() {
    on_shm(3, |comm| {
        let rank = comm.rank();
        let call = |mine: [usize; 3], theirs: [usize; 3]| {
            let places = |n: &[usize; 3]| [0, n[0], n[0] + n[1]];
            let send = vec![rank as u8; mine.iter().sum()];
            let mut recv = vec![9u8; theirs.iter().sum()];
            let (from, into) = (places(&mine), places(&theirs));
            let result = comm.alltoallv(&send, (&mine, &from), &mut recv, (&theirs, &into));
            result.map(|()| recv)
        };
        for round in 0..40 {
            let n = [1, 8, 100, 5000, 40_000][round % 5];
            let right: Vec<u8> = (0..3u8).flat_map(|from| vec![from; n]).collect();
            assert_eq!(call([n; 3], [n; 3]).expect("swapped"), right);
            if round % 4 == 3 {
                // Rank 1 expects one byte more of rank 0.
                let theirs = if rank == 1 { [n + 1, n, n] } else { [n; 3] };
                let result = call([n; 3], theirs);
                match rank {
                    1 => drop(fails(result, ErrorKind::Argument, &["rank 0"])),
                    _ => drop(result),
                }
                comm.barrier().expect("goes on");
            }
        }
    });
}
