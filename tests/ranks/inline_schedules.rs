//! Short collectives, by inline schedules.

use crate::support::{Random, fails, on_all};
use osier::{Communicator, Datatype, ErrorKind, Op, Type, ViewMut};
use std::time::Duration;

/// A late rank makes the others leave the rest of the call to a run.
fn nap(random: &mut Random) {
    match random.below(24) {
        0 => std::thread::sleep(Duration::from_micros(100)),
        1..4 => std::thread::yield_now(),
        _ => {}
    }
}

fn data(rank: usize, n: usize, round: u64) -> Vec<u64> {
    let of = |i: usize| (rank as u64 + 1) * 1000 + i as u64 * 7 + round;
    (0..n).map(of).collect()
}

fn sum(ranks: std::ops::Range<usize>, n: usize, round: u64) -> Vec<u64> {
    let mut all = vec![0; n];
    for rank in ranks {
        for (a, b) in all.iter_mut().zip(data(rank, n, round)) {
            *a += b;
        }
    }
    all
}

fn round(comm: &Communicator, random: &mut Random, round: u64) {
    let (rank, size) = (comm.rank(), comm.size());
    let n = [0, 1, 5, 8, 37, 256, 300][round as usize % 7];
    let root = round as usize % size;
    let mine = data(rank, n, round);
    let mut got = vec![u64::MAX; n];
    nap(random);
    match round % 6 {
        0 => comm.barrier().unwrap(),
        1 => {
            let mut all = data(if rank == root { root } else { 77 }, n, round);
            comm.bcast(&mut all, root).unwrap();
            assert_eq!(all, data(root, n, round));
        }
        2 => {
            comm.reduce(&mine, &mut got, root, Op::Sum).unwrap();
            let want = match rank == root {
                true => sum(0..size, n, round),
                false => vec![u64::MAX; n],
            };
            assert_eq!(got, want);
        }
        3 => {
            comm.allreduce(&mine, &mut got, Op::Sum).unwrap();
            assert_eq!(got, sum(0..size, n, round));
        }
        4 => {
            comm.scan(&mine, &mut got, Op::Sum).unwrap();
            assert_eq!(got, sum(0..rank + 1, n, round));
        }
        _ => {
            comm.exscan(&mine, &mut got, Op::Sum).unwrap();
            if rank > 0 {
                assert_eq!(got, sum(0..rank, n, round));
            }
        }
    }
}

#[test]
fn late_ranks_leave_the_rest_to_runs() {
    for size in [2, 3, 4, 5, 8] {
        on_all(size, |comm| {
            let mut random = Random::new(comm.rank() as u64 + 100 * size as u64);
            for at in 0..700 {
                round(&comm, &mut random, at);
            }
        });
    }
}

#[test]
fn inline_call_matches_call_that_runs_as_schedule() {
    let every = Type::vector(4, 1, 2, &u64::datatype()).unwrap();
    let every = every.commit().unwrap();
    on_all(2, |comm| {
        for at in 0..200u64 {
            // A result with gaps goes the long way, one without the short one.
            let mine = [at + comm.rank() as u64; 4];
            if at % 2 == comm.rank() as u64 {
                let mut got = [7u64; 7];
                let mut to = ViewMut::new(&mut got, 0, &every, 1).unwrap();
                comm.allreduce(&mine, &mut to, Op::Max).unwrap();
                assert_eq!(got, [at + 1, 7, at + 1, 7, at + 1, 7, at + 1]);
            } else {
                let mut got = [0; 4];
                comm.allreduce(&mine, &mut got, Op::Max).unwrap();
                assert_eq!(got, [at + 1; 4]);
            }
        }
    });
}

#[test]
fn both_ranks_get_an_error_when_their_counts_differ() {
    on_all(2, |comm| {
        // Too many bytes do not fit; too few are counted.
        let (n, kind) = match comm.rank() {
            0 => (5, ErrorKind::Truncated),
            _ => (8, ErrorKind::Argument),
        };
        let mut warm = vec![0u32; n];
        comm.barrier().unwrap();
        for _ in 0..3 {
            let e = comm.allreduce(&vec![1u32; n], &mut warm, Op::Sum);
            fails(e, kind, &["allreduce", "20"]);
        }
        comm.barrier().unwrap();
    });
}
