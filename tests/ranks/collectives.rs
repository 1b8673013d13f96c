//! Every collective by every algorithm, against what a naive program would give.

use crate::support::{Random, on_shm, pattern};
use osier::collectives::InPlace;
use osier::operators::function;
use osier::{Communicator, IN_PLACE, Op, Order, Type, View, ViewMut};
use osier_collectives::{Algorithm, Call, Operation};

/// Runs a check by every algorithm that is for the operation, whole and in segments,
/// and by the one that is chosen.
fn by_all(comm: &Communicator, operation: Operation, mut check: impl FnMut(&str)) {
    check("chosen");
    let call = Call::new(operation, comm.size() as u32);
    for algorithm in Algorithm::IN_SEGMENT.into_iter().chain(Algorithm::FLAT) {
        if algorithm.keeps(&call).is_none() {
            continue;
        }
        for segments in [1, 5, 40] {
            if algorithm.in_segment() && algorithm != Algorithm::OnePhase && segments > 1 {
                continue;
            }
            comm.use_algorithm(Some((algorithm.clone(), segments)));
            check(&format!("{algorithm} in {segments}"));
        }
    }
    comm.use_algorithm(None);
}

const SIZES: [usize; 5] = [0, 1, 3, 1000, 40_000];

#[test]
fn barriers_hold_all_back() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for size in 1..=9 {
        let entered = AtomicUsize::new(0);
        on_shm(size, |comm| {
            let mut round = 0;
            by_all(&comm, Operation::Barrier, |how| {
                round += 1;
                entered.fetch_add(1, Ordering::SeqCst);
                comm.barrier().expect("barrier");
                let seen = entered.load(Ordering::SeqCst);
                assert!(seen >= round * comm.size(), "{how}: {seen}");
            });
        });
    }
}

#[test]
fn broadcasts() {
    for size in 1..=9 {
        on_shm(size, |comm| {
            by_all(&comm, Operation::Bcast, |how| {
                for (n, bytes) in SIZES.into_iter().enumerate() {
                    let root = (n * 3 + 1) % comm.size();
                    let right = pattern(bytes, root + n);
                    let mut data = if comm.rank() == root {
                        right.clone()
                    } else {
                        vec![0; bytes]
                    };
                    comm.bcast(&mut data, root).expect("bcast");
                    assert!(data == right, "{how}, {bytes} bytes from {root}");
                }
            });
        });
    }
}

#[test]
fn broadcasts_between_layouts() {
    let column = Type::subarray(&[40, 50], &[40, 1], &[0, 7], Order::C, &Type::of::<f64>());
    let column = column.and_then(|t| t.commit()).expect("a column");
    on_shm(4, |comm| {
        by_all(&comm, Operation::Bcast, |how| {
            let mut matrix = vec![0.0; 40 * 50];
            let mut dense = vec![0.0; 40];
            let value = |row: usize| (row * row) as f64;
            if comm.rank() == 2 {
                (0..40).for_each(|row| matrix[row * 50 + 7] = value(row));
            }
            if comm.rank() % 2 == 0 {
                let mut view = ViewMut::new(&mut matrix, 0, &column, 1).expect("view");
                comm.bcast(&mut view, 2).expect("bcast");
                dense = (0..40).map(|row| matrix[row * 50 + 7]).collect();
                assert_eq!(matrix.iter().filter(|x| **x != 0.0).count(), 39, "{how}");
            } else {
                comm.bcast(&mut dense, 2).expect("bcast");
            }
            assert!((0..40).all(|row| dense[row] == value(row)), "{how}");
        });
    });
}

#[test]
fn gathers() {
    for size in 1..=9 {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            by_all(&comm, Operation::Gather, |how| {
                for (n, bytes) in SIZES.into_iter().enumerate() {
                    let root = (n * 5 + 2) % size;
                    let right: Vec<u8> = (0..size).flat_map(|r| pattern(bytes, r + n)).collect();
                    let mine = pattern(bytes, rank + n);
                    let mut all = vec![0; if rank == root { bytes * size } else { 0 }];
                    comm.gather(&mine, &mut all, root).expect("gather");
                    assert!(rank != root || all == right, "{how}, {bytes} bytes");
                    if rank == root {
                        all.fill(0);
                        all[rank * bytes..][..bytes].copy_from_slice(&mine);
                        comm.gather(&IN_PLACE, &mut all, root).expect("in place");
                        assert!(all == right, "{how}, {bytes} bytes, in place");
                    } else {
                        comm.gather(&mine, &mut all, root).expect("gather");
                    }
                }
            });
            by_all(&comm, Operation::Allgather, |how| {
                for (n, bytes) in SIZES.into_iter().enumerate() {
                    let right: Vec<u8> = (0..size).flat_map(|r| pattern(bytes, r + n)).collect();
                    let mine = pattern(bytes, rank + n);
                    let mut all = vec![0; bytes * size];
                    comm.allgather(&mine, &mut all).expect("allgather");
                    assert!(all == right, "{how}, {bytes} bytes");
                    all.fill(0);
                    all[rank * bytes..][..bytes].copy_from_slice(&mine);
                    comm.allgather(&IN_PLACE, &mut all).expect("in place");
                    assert!(all == right, "{how}, {bytes} bytes, in place");
                }
            });
        });
    }
}

/// Numbers whose sum depends on the order.
fn rough(n: usize, seed: usize) -> Vec<f64> {
    let mut random = Random::new(seed as u64 + 1);
    (0..n)
        .map(|_| {
            let exponent = random.below(40) as i32 - 20;
            (random.below(1000) as f64 - 500.0) * 2f64.powi(exponent)
        })
        .collect()
}

#[test]
fn sums_have_the_same_bits_by_every_algorithm() {
    for size in 1..=9usize {
        on_shm(size, |comm| {
            for (n, count) in [1usize, 7, 3000].into_iter().enumerate() {
                let inputs: Vec<Vec<f64>> = (0..size).map(|r| rough(count, r * 10 + n)).collect();
                let right = osier_collectives::balanced::reduce(
                    size as u32,
                    |r| inputs[r as usize].clone(),
                    |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a + b).collect(),
                );
                let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                by_all(&comm, Operation::Allreduce, |how| {
                    let mut sums = vec![0.0; count];
                    comm.allreduce(&inputs[comm.rank()], &mut sums, Op::Sum)
                        .expect("sum");
                    assert_eq!(bits(&sums), bits(&right), "{how}");
                    let mut sums = inputs[comm.rank()].clone();
                    comm.allreduce(&IN_PLACE, &mut sums, Op::Sum).expect("sum");
                    assert_eq!(bits(&sums), bits(&right), "{how}, in place");
                });
            }
        });
    }
}

/// Lengths in turn: what one call has beside its flag says nothing to the next.
#[test]
fn short_and_long_sums_in_turn() {
    for size in [2, 4, 5, 8, 9] {
        on_shm(size, |comm| {
            let (rank, ranks) = (comm.rank() as u64, comm.size() as u64);
            for operation in [Operation::Allreduce, Operation::Reduce] {
                by_all(&comm, operation, |how| {
                    for (turn, count) in [1, 8, 4, 300, 2, 9000, 1].into_iter().enumerate() {
                        let mine: Vec<u64> = (0..count).map(|i| (rank + 1) * (i + 3)).collect();
                        let sum = |i: u64| (i + 3) * ranks * (ranks + 1) / 2;
                        let right: Vec<u64> = (0..count).map(sum).collect();
                        let mut sums = vec![0u64; count as usize];
                        let root = turn % comm.size();
                        match operation {
                            Operation::Allreduce => comm.allreduce(&mine, &mut sums, Op::Sum),
                            _ => comm.reduce(&mine, &mut sums, root, Op::Sum),
                        }
                        .expect("sum");
                        if operation == Operation::Allreduce || comm.rank() == root {
                            assert!(sums == right, "{how}, {count}");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn what_does_not_commute_is_combined_in_rank_order() {
    // 2 x 2 matrices of integers.
    let product = |a: [u32; 4], b: [u32; 4]| {
        let dot = |r: usize, c: usize| {
            a[2 * r]
                .wrapping_mul(b[c])
                .wrapping_add(a[2 * r + 1].wrapping_mul(b[c + 2]))
        };
        [dot(0, 0), dot(0, 1), dot(1, 0), dot(1, 1)]
    };
    for size in 1..=9 {
        on_shm(size, |comm| {
            let matrix = |r: usize, i: usize| [r as u32 + 1, i as u32, 3, r as u32 + 7];
            let count = 500;
            let right: Vec<[u32; 4]> = (0..count)
                .map(|i| (1..comm.size()).fold(matrix(0, i), |sum, r| product(sum, matrix(r, i))))
                .collect();
            by_all(&comm, Operation::Allreduce, |how| {
                let mine: Vec<_> = (0..count).map(|i| matrix(comm.rank(), i)).collect();
                let mut all = vec![[0; 4]; count];
                comm.allreduce(&mine, &mut all, function(product))
                    .expect("product");
                assert!(all == right, "{how}");
                // Any brackets, in rank order.
                all.fill([0; 4]);
                comm.allreduce(&mine, &mut all, function(product).exact())
                    .expect("product");
                assert!(all == right, "{how}, exact");
                // Any order.
                let plus = function(|a: u64, b: u64| a + b).exact().commutative();
                let mut sums = vec![0; 500];
                comm.allreduce(&vec![comm.rank() as u64 + 1; 500], &mut sums, plus)
                    .expect("sum");
                let sum: u64 = (1..=comm.size() as u64).sum();
                assert!(sums.iter().all(|s| *s == sum), "{how}");
            });
        });
    }
}

/// A function that rounds has one association, whether it commutes or not.
#[test]
fn what_commutes_and_rounds_keeps_its_bits() {
    for size in [3, 5, 8] {
        on_shm(size, |comm| {
            let mine = rough(700, comm.rank());
            let mut right = vec![0.0f64; 700];
            comm.allreduce(&mine, &mut right, Op::Sum).expect("sum");
            by_all(&comm, Operation::Allreduce, |how| {
                let mut sums = vec![0.0f64; 700];
                let plus = function(|a: f64, b: f64| a + b).commutative();
                comm.allreduce(&mine, &mut sums, plus).expect("sum");
                let same = sums
                    .iter()
                    .zip(&right)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{how}");
            });
        });
    }
}

#[test]
fn operands_with_gaps() {
    let every = Type::vector(20, 1, 3, &Type::of::<i32>()).and_then(|t| t.commit());
    let every = every.expect("every third");
    on_shm(5, |comm| {
        by_all(&comm, Operation::Allreduce, |how| {
            let mine: Vec<i32> = (0..58).map(|i| i * (comm.rank() as i32 + 1)).collect();
            let mut sums = vec![-1; 58];
            let from = View::new(&mine, 0, &every, 1).expect("view");
            let mut to = ViewMut::new(&mut sums, 0, &every, 1).expect("view");
            comm.allreduce(&from, &mut to, Op::Sum).expect("sum");
            for (i, sum) in sums.iter().enumerate() {
                let right = if i % 3 == 0 { i as i32 * 15 } else { -1 };
                assert_eq!(*sum, right, "{how}, {i}");
            }
        });
    });
}

#[test]
fn operators_are_refused_where_they_are_not_defined() {
    on_shm(2, |comm| {
        let mut out = [0.0f64];
        let refused = comm.allreduce(&[1.0f64], &mut out, Op::BitAnd);
        let e = refused.expect_err("no bits of floats");
        assert!(e.to_string().contains("MPI_BAND"), "{e}");
        let mut sum = [0u64];
        comm.allreduce(&[2u64], &mut sum, Op::Sum).expect("goes on");
        assert_eq!(sum, [4]);
    });
}

#[test]
fn all_ranks_get_an_error_when_one_passes_wrong_arguments() {
    on_shm(3, |comm| {
        let mut all = vec![0u8; if comm.rank() == 1 { 5 } else { 6 }];
        let e = comm.allgather(&[1u8, 2], &mut all);
        let e = e.expect_err("rank 1's buffer has 5 bytes");
        assert!(e.to_string().contains("allgather"), "{e}");
        comm.barrier().expect("goes on");
    });
}

#[test]
fn an_operator_that_panics_ends_its_own_call() {
    let panics = std::panic::catch_unwind(|| {
        on_shm(1, |comm| {
            comm.barrier().expect("barrier");
        });
    });
    assert!(panics.is_ok());
    on_shm(2, |comm| {
        let mut sum = [0u64];
        let rank = comm.rank();
        let call = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let bad = function(|a: u64, b: u64| match rank {
                0 => panic!("on purpose"),
                _ => a + b,
            });
            comm.allreduce(&[1u64], &mut sum, bad)
        }));
        assert_eq!(call.is_err(), rank == 0);
        comm.barrier().expect("goes on");
    });
}

#[test]
fn reductions_to_one_rank_and_prefixes() {
    for size in 1..=9usize {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let plus = |a: Vec<f64>, b: Vec<f64>| -> Vec<f64> {
                a.iter().zip(&b).map(|(a, b)| a + b).collect()
            };
            let inputs: Vec<Vec<f64>> = (0..size).map(|r| rough(700, r)).collect();
            let operand = |r: u32| inputs[r as usize].clone();
            let all = osier_collectives::balanced::reduce(size as u32, operand, plus);
            by_all(&comm, Operation::Reduce, |how| {
                for root in [0, size - 1] {
                    let mine = rank == root;
                    let mut sums = vec![0.0; if mine { 700 } else { 0 }];
                    comm.reduce(&inputs[rank], &mut sums, root, Op::Sum)
                        .expect("reduce");
                    assert!(!mine || bits(&sums) == bits(&all), "{how}");
                    let mut sums = inputs[rank].clone();
                    let reduced = match mine {
                        true => comm.reduce(&IN_PLACE, &mut sums, root, Op::Sum),
                        false => comm.reduce(&inputs[rank], &mut sums, root, Op::Sum),
                    };
                    reduced.expect("in place");
                    assert!(!mine || bits(&sums) == bits(&all), "{how}, in place");
                }
            });
            // Exact, so that the naive order is as good as any.
            let mine: Vec<i64> = (0..700).map(|i| (i * (rank + 2)) as i64).collect();
            let below = |r: usize| -> Vec<i64> {
                let factor: usize = (0..r).map(|r| r + 2).sum();
                (0..700).map(|i| (i * factor) as i64).collect()
            };
            by_all(&comm, Operation::Scan, |how| {
                let mut sums = vec![0i64; 700];
                comm.scan(&mine, &mut sums, Op::Sum).expect("scan");
                assert!(sums == below(rank + 1), "{how}");
                let mut sums = mine.clone();
                comm.scan(&IN_PLACE, &mut sums, Op::Sum).expect("scan");
                assert!(sums == below(rank + 1), "{how}, in place");
            });
            by_all(&comm, Operation::Exscan, |how| {
                let mut sums = vec![-1i64; 700];
                comm.exscan(&mine, &mut sums, Op::Sum).expect("exscan");
                match rank {
                    0 => assert!(sums == vec![-1; 700], "{how}"),
                    _ => assert!(sums == below(rank), "{how}"),
                }
            });
        });
    }
}

#[test]
fn shares_are_scattered_and_exchanged() {
    for size in 1..=9 {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            by_all(&comm, Operation::Scatter, |how| {
                for (n, bytes) in SIZES.into_iter().enumerate() {
                    let root = (n * 7 + 1) % size;
                    let all: Vec<u8> = (0..size).flat_map(|r| pattern(bytes, r + n)).collect();
                    let mut mine = vec![0; bytes];
                    comm.scatter(&all, &mut mine, root).expect("scatter");
                    assert!(mine == pattern(bytes, rank + n), "{how}, {bytes} bytes");
                    let scattered = match rank == root {
                        true => comm.scatter(&all, &mut InPlace, root),
                        false => comm.scatter(&all, &mut mine, root),
                    };
                    scattered.expect("in place");
                }
            });
            by_all(&comm, Operation::Alltoall, |how| {
                for (n, bytes) in SIZES.into_iter().enumerate() {
                    let share = |from: usize, to: usize| pattern(bytes, from * 16 + to + n);
                    let mine: Vec<u8> = (0..size).flat_map(|to| share(rank, to)).collect();
                    let right: Vec<u8> = (0..size).flat_map(|from| share(from, rank)).collect();
                    let mut got = vec![0; bytes * size];
                    comm.alltoall(&mine, &mut got).expect("alltoall");
                    assert!(got == right, "{how}, {bytes} bytes");
                    let mut both = mine.clone();
                    comm.alltoall(&IN_PLACE, &mut both).expect("in place");
                    assert!(both == right, "{how}, {bytes} bytes, in place");
                }
            });
            by_all(&comm, Operation::ReduceScatter, |how| {
                let mine: Vec<u32> = (0..size * 90).map(|i| (i * (rank + 1)) as u32).collect();
                let factor: usize = (1..=size).sum();
                let mut share = vec![0u32; 90];
                comm.reduce_scatter_block(&mine, &mut share, Op::Sum)
                    .expect("shares");
                for (i, sum) in share.iter().enumerate() {
                    assert_eq!(*sum as usize, (rank * 90 + i) * factor, "{how}");
                }
            });
        });
    }
}

/// Where blocks of these lengths start, one behind the other.
fn starts_of(lens: &[usize]) -> Vec<usize> {
    (0..lens.len()).map(|at| lens[..at].iter().sum()).collect()
}

#[test]
fn contributions_of_different_lengths() {
    for size in 1..=6 {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            // Rank 1 has nothing; there are gaps between blocks.
            let count = |r: usize| if r == 1 { 0 } else { r * 3 + 1 };
            let counts: Vec<usize> = (0..size).map(count).collect();
            let starts: Vec<usize> = (0..size).map(|r| (size - 1 - r) * 20).collect();
            let block =
                |r: usize| -> Vec<u32> { (0..counts[r]).map(|i| (r * 100 + i) as u32).collect() };
            let mut right = vec![u32::MAX; size * 20];
            for r in 0..size {
                right[starts[r]..][..counts[r]].copy_from_slice(&block(r));
            }
            let mine = block(rank);
            let mut all = vec![u32::MAX; size * 20];
            comm.gatherv(&mine, &mut all, &counts, &starts, size - 1)
                .expect("gatherv");
            assert!(rank != size - 1 || all == right);
            let mut share = vec![0; counts[rank]];
            comm.scatterv(&right, &counts, &starts, &mut share, 0)
                .expect("scatterv");
            assert_eq!(share, mine);
            let mut all = vec![u32::MAX; size * 20];
            comm.allgatherv(&mine, &mut all, &counts, &starts)
                .expect("allgatherv");
            assert_eq!(all, right);
            let lens = |from: usize, to: usize| from + to;
            let sent: Vec<usize> = (0..size).map(|to| lens(rank, to)).collect();
            let got: Vec<usize> = (0..size).map(|from| lens(from, rank)).collect();
            let message = |from: usize, to: usize| vec![(from * 50 + to) as u16; lens(from, to)];
            let out: Vec<u16> = (0..size).flat_map(|to| message(rank, to)).collect();
            let right: Vec<u16> = (0..size).flat_map(|from| message(from, rank)).collect();
            let mut into = vec![0; right.len()];
            let (from, to) = (
                (&sent[..], &starts_of(&sent)[..]),
                (&got[..], &starts_of(&got)[..]),
            );
            comm.alltoallv(&out, from, &mut into, to)
                .expect("alltoallv");
            assert_eq!(into, right);
            let data: Vec<i64> = (0..counts.iter().sum::<usize>())
                .map(|i| i as i64)
                .collect();
            let mut share = vec![0i64; counts[rank]];
            comm.reduce_scatter(&data, &mut share, &counts, Op::Max)
                .expect("reduce_scatter");
            assert_eq!(share, data[starts_of(&counts)[rank]..][..counts[rank]]);
            for each in [0, 1, 5, 600, 20_000] {
                let term = |of: usize, i: usize| (of * 7 + i % 100) as f64;
                let data: Vec<f64> = (0..each * size).map(|i| term(rank, i)).collect();
                let mut share = vec![0.0; each];
                comm.reduce_scatter(&data, &mut share, &vec![each; size], Op::Sum)
                    .expect("equal shares");
                let sum = |i| (0..size).map(|of| term(of, rank * each + i)).sum::<f64>();
                let right: Vec<f64> = (0..each).map(sum).collect();
                assert_eq!(share, right, "{each} on {size} ranks");
            }
        });
    }
}

/// Roots, operations and lengths change from call to call, and ranks make the calls at different
/// times, so that some ranks are several calls ahead of others: all get the right results.
#[test]
fn calls_of_all_kinds_in_turn() {
    for size in 2..=5 {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            // The same on all ranks, but for when they come.
            let (mut all, mut own) = (Random::new(77 + size as u64), Random::new(rank as u64 + 1));
            for round in 0..600 {
                let root = all.below(size);
                let n = [0, 1, 4, 60, 500, 3000, 20_000][all.below(7)];
                let kind = all.below(8);
                let value = |of: usize, at: usize| (round + 10 * of + at % 7) as u64;
                let vector = |of: usize| -> Vec<u64> { (0..n).map(|at| value(of, at)).collect() };
                let parts =
                    |of: usize| -> Vec<u64> { (0..size).flat_map(|_| vector(of)).collect() };
                let sum: Vec<u64> = (0..n)
                    .map(|at| (0..size).map(|of| value(of, at)).sum())
                    .collect();
                let each: Vec<u64> = (0..size).flat_map(vector).collect();
                for _ in 0..own.below(4) * own.below(3000) {
                    std::hint::spin_loop();
                }
                let is_root = rank == root;
                let there = |right: &[u64]| if is_root { right.to_vec() } else { Vec::new() };
                let mine = vector(rank);
                let mut one = vec![0; n];
                let mut of_all = vec![0; if is_root || kind > 4 { n * size } else { 0 }];
                let (got, right) = match kind {
                    0 | 1 => {
                        let right = vector(root);
                        if is_root {
                            one.clone_from(&right);
                        }
                        comm.bcast(&mut one, root).expect("bcast");
                        (one, right)
                    }
                    2 => {
                        one.truncate(if is_root { n } else { 0 });
                        comm.reduce(&mine, &mut one, root, Op::Sum).expect("reduce");
                        (one, there(&sum))
                    }
                    3 => {
                        comm.gather(&mine, &mut of_all, root).expect("gather");
                        (of_all, there(&each))
                    }
                    4 => {
                        let from = there(&parts(root));
                        comm.scatter(&from, &mut one, root).expect("scatter");
                        (one, vector(root))
                    }
                    5 => {
                        comm.alltoall(&parts(rank), &mut of_all).expect("alltoall");
                        (of_all, each)
                    }
                    6 => {
                        comm.allgather(&mine, &mut of_all).expect("allgather");
                        (of_all, each)
                    }
                    _ => {
                        comm.allreduce(&mine, &mut one, Op::Sum).expect("allreduce");
                        (one, sum)
                    }
                };
                assert!(
                    got == right,
                    "call {round} of kind {kind}, {n} elements, root {root}"
                );
            }
        });
    }
}

#[test]
fn collectives_in_flight_at_once_give_their_results() {
    for size in 1..=5usize {
        on_shm(size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let mut sums = Vec::new();
            let mut copies = Vec::new();
            for round in 0..40usize {
                let n = [1, 50, 9000][round % 3];
                let mine = vec![(rank + round) as u64; n];
                sums.push(
                    comm.iallreduce(mine, vec![0u64; n], Op::Sum)
                        .expect("begun"),
                );
                let root = round % size;
                let data = if rank == root {
                    pattern(n, round)
                } else {
                    vec![0; n]
                };
                copies.push(comm.ibcast(data, root).expect("begun"));
                if round % 8 == 0 {
                    comm.ibarrier().expect("begun").wait().expect("barrier");
                }
            }
            if rank % 2 == 0 {
                copies.reverse();
            }
            for (at, copy) in copies.into_iter().enumerate() {
                let round = if rank % 2 == 0 { 39 - at } else { at };
                let data = match at % 2 {
                    0 => copy.wait(),
                    _ => comm.block_on(copy),
                };
                let data = data.expect("bcast");
                assert!(data == pattern(data.len(), round));
            }
            let sums = osier::requests::wait_all(sums).expect("sums");
            for (round, (_, sum)) in sums.into_iter().enumerate() {
                let right: usize = (0..size).map(|r| r + round).sum();
                assert!(sum.iter().all(|s| *s == right as u64));
            }
        });
    }
}

#[test]
fn dropped_collective_completes_on_all_ranks() {
    on_shm(3, |comm| {
        let data = vec![comm.rank() as u64; 30_000];
        if comm.rank() == 0 {
            let begun = comm.iallreduce(data, vec![0u64; 30_000], Op::Sum);
            drop(begun.expect("begun"));
        } else {
            let mut sums = vec![0u64; 30_000];
            comm.allreduce(&data, &mut sums, Op::Sum).expect("sums");
            assert!(sums.iter().all(|s| *s == 3));
        }
        comm.barrier().expect("barrier");
    });
}

/// Prints, never fails: `cargo test --release -p osier-test-programs --test ranks time_of_small_collectives --
/// --ignored --nocapture`. 8-byte calls of two ranks beside the same written with `send`
/// and `recv`, as the first version had them; in turn, medians.
#[test]
#[ignore = "a measurement"]
fn time_of_small_collectives() {
    const CALLS: u32 = 2000;
    on_shm(2, |comm| {
        let other = 1 - comm.rank();
        let mut sum = [0u64];
        let mut naive_sum = || {
            let mut sum = [1u64];
            let mut got = [0u64];
            if comm.rank() == 1 {
                comm.send(&sum, 0, 0).expect("send");
                comm.recv(&mut sum, 0, 0).expect("recv");
            } else {
                comm.recv(&mut got, 1, 0).expect("recv");
                sum[0] += got[0];
                comm.send(&sum, 1, 0).expect("send");
            }
        };
        let mut naive_barrier = || {
            let mut token = [0u8];
            comm.sendrecv(&[1u8], other, 1, &mut token, other, 1)
                .expect("token");
        };
        let mut new_sum = || comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("sum");
        let mut new_barrier = || comm.barrier().expect("barrier");
        let mut ways: [(&str, &mut dyn FnMut()); 4] = [
            ("allreduce, send and recv", &mut naive_sum),
            ("allreduce", &mut new_sum),
            ("barrier, sendrecv", &mut naive_barrier),
            ("barrier", &mut new_barrier),
        ];
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..200 {
            for (way, times) in ways.iter_mut().zip(&mut times) {
                let start = std::time::Instant::now();
                (0..CALLS).for_each(|_| (way.1)());
                times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
            }
        }
        if comm.rank() == 0 {
            for ((name, _), times) in ways.iter().zip(&mut times) {
                times.sort_by(f64::total_cmp);
                println!("{name:<26} {:7.1} ns", times[times.len() / 2]);
            }
        }
    });
}
