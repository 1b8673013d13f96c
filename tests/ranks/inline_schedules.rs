//! Short collectives, by inline schedules.

use crate::support::{Random, fails, on_all, on_shm};
use osier::{Communicator, Datatype, ErrorKind, Op, Type, ViewMut};
use osier_collectives::Algorithm;
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

/// One call of those whose pieces lie side by side, of which `n` is the length.
fn pieces(comm: &Communicator, random: &mut Random, round: u64, n: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let root = round as usize % size;
    let all = |of: &dyn Fn(usize) -> Vec<u64>| (0..size).flat_map(of).collect::<Vec<_>>();
    let mine = data(rank, n, round);
    let to_all = data(rank, n * size, round);
    let mut got = vec![u64::MAX; n];
    let mut many = vec![u64::MAX; n * size];
    nap(random);
    match round % 6 {
        0 => {
            comm.gather(&mine, &mut many, root).unwrap();
            let want = all(&|from| data(from, n, round));
            assert!(rank != root || many == want);
        }
        1 => {
            comm.scatter(&to_all, &mut got, root).unwrap();
            assert_eq!(got, data(root, n * size, round)[rank * n..][..n]);
        }
        2 => {
            comm.allgather(&mine, &mut many).unwrap();
            assert_eq!(many, all(&|from| data(from, n, round)));
        }
        3 => {
            comm.alltoall(&to_all, &mut many).unwrap();
            let piece = |from| data(from, n * size, round)[rank * n..][..n].to_vec();
            assert_eq!(many, all(&piece));
        }
        4 => {
            comm.reduce_scatter_block(&to_all, &mut got, Op::Sum)
                .unwrap();
            assert_eq!(got, sum(0..size, n * size, round)[rank * n..][..n]);
        }
        _ => {
            let mut mine = mine;
            comm.allreduce(&osier::IN_PLACE, &mut mine, Op::Max)
                .unwrap();
            assert_eq!(mine, data(size - 1, n, round));
        }
    }
}

/// Plans of one phase, which are worked out when they come a second time, and kept: against a
/// naive program, while ranks are late, and while calls of other lengths take their places.
#[test]
fn kept_calls_give_what_a_naive_program_gives() {
    for size in [2, 3, 4, 5] {
        on_shm(size, |comm| {
            comm.use_algorithm(Some((Algorithm::OnePhase, 1)));
            let mut random = Random::new(comm.rank() as u64 + 100 * size as u64);
            for at in 0..2000 {
                let n = [1, 5, 1, 3, 60, 400][at as usize / 60 % 6];
                match at % 2 {
                    0 => round(&comm, &mut random, at / 2 % 42),
                    _ => pieces(&comm, &mut random, at / 2 % 60, n),
                }
            }
        });
    }
}

/// What one rank keeps is for another count than what another passes.
#[test]
fn ranks_get_an_error_when_a_kept_call_has_another_count_elsewhere() {
    on_shm(2, |comm| {
        comm.use_algorithm(Some((Algorithm::OnePhase, 1)));
        for bad in [1, 0, 1] {
            let count = |n| if comm.rank() == bad { n } else { 1 };
            for n in [1, 1, 1, 2, 1, 1] {
                let mine = vec![1u64; count(n)];
                let mut got = vec![0u64; count(n)];
                let result = comm.allreduce(&mine, &mut got, Op::Sum);
                match n {
                    1 => assert_eq!(
                        (result.map_err(|e| e.to_string()), &got[..]),
                        (Ok(()), &[2][..])
                    ),
                    _ => {
                        let kind = match comm.rank() == bad {
                            true => ErrorKind::Argument,
                            false => ErrorKind::Truncated,
                        };
                        fails(result, kind, &["allreduce"]);
                    }
                }
            }
            comm.barrier().unwrap();
        }
    });
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
