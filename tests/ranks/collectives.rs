//! Every collective by every algorithm, against what a naive program would give.

use crate::support::{Random, on_shm, pattern};
use osier::plans::{Algorithm, Call, Operation};
use osier::{Communicator, IN_PLACE, Op, Order, Type, View, ViewMut, function};

/// Runs a check by every algorithm that is for the operation, whole and in segments,
/// and by the one that is chosen.
fn by_all(comm: &Communicator, operation: Operation, mut check: impl FnMut(&str)) {
    check("chosen");
    let call = Call::new(operation, comm.size() as u32);
    for algorithm in Algorithm::FLAT {
        if algorithm.keeps(&call).is_none() {
            continue;
        }
        for segments in [1, 5, 40] {
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
                let right = osier::plans::balanced::reduce(
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
fn a_call_that_makes_no_sense_is_told_to_the_others() {
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
