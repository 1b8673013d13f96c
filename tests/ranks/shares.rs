//! Reductions of which ranks get shares that differ, beside a naive program: a reduction at rank 0,
//! and a message with each share.

use crate::support::{Random, fails, on_all, on_shm};
use osier::operators::function;
use osier::{Communicator, Datatype, ErrorKind, IN_PLACE, Op, Order, Type, View};

/// Counts of a round, which all ranks draw alike: some are 0, and one may have nearly all.
fn counts(seed: usize, size: usize) -> Vec<usize> {
    let mut random = Random::new(seed as u64);
    let near = [1, 3, 30, 900, 5000][random.below(5)];
    let one = random.below(2 * size);
    (0..size)
        .map(|rank| match random.below(4) {
            0 => 0,
            _ if rank == one => 4 * near,
            _ => random.below(near + 1),
        })
        .collect()
}

fn term(seed: usize, rank: usize, at: usize) -> f64 {
    1.0 / (1 + (seed + rank * 17 + at * 5) % 1000) as f64
}

/// The share of this rank by a naive program.
fn naive(comm: &Communicator, mine: &[f64], counts: &[usize]) -> Vec<f64> {
    let mut all = vec![0.0; mine.len()];
    comm.allreduce(mine, &mut all, Op::Sum).expect("summed");
    let start: usize = counts[..comm.rank()].iter().sum();
    all[start..start + counts[comm.rank()]].to_vec()
}

fn round(comm: &Communicator, seed: usize) {
    let rank = comm.rank();
    let counts = counts(seed, comm.size());
    let total: usize = counts.iter().sum();
    let mine: Vec<f64> = (0..total).map(|at| term(seed, rank, at)).collect();
    // Sums have the same bits, wherever they are made.
    let right = naive(comm, &mine, &counts);
    let told = format!("round {seed}: {counts:?}");
    let share = match seed % 6 {
        0 | 1 => {
            let mut share = vec![0.0; counts[rank]];
            comm.reduce_scatter(&mine, &mut share, &counts, Op::Sum)
                .expect("combined");
            share
        }
        2 => {
            let mut data = mine;
            comm.reduce_scatter(&IN_PLACE, &mut data, &counts, Op::Sum)
                .expect("combined in place");
            data.truncate(counts[rank]);
            data
        }
        3 => {
            let room = vec![0.0; counts[rank]];
            let request = comm.ireduce_scatter(mine, room, &counts, Op::Sum);
            request.expect("begun").wait().expect("combined").1
        }
        4 => {
            let room = vec![0.0; counts[rank]];
            let request = comm.reduce_scatter_init(mine, room, &counts, Op::Sum);
            let mut request = request.expect("set up");
            for _ in 0..3 {
                request.start().expect("started");
                request.wait().expect("combined");
            }
            request.into_buffers().expect("inactive").1
        }
        _ => {
            // Every second number, by a function of the user.
            let spread: Vec<f64> = mine.iter().flat_map(|n| [*n, 9.0]).collect();
            let every = Type::subarray(&[2], &[1], &[0], Order::C, &f64::datatype());
            let every = every.expect("type").commit().expect("commit");
            let view = View::new(&spread, 0, &every, total).expect("view");
            let mut share = vec![0.0; counts[rank]];
            let sum = function(|a: f64, b: f64| a + b).commutative();
            comm.reduce_scatter(&view, &mut share, &counts, sum)
                .expect("combined by a function");
            share
        }
    };
    assert_eq!(share, right, "{told}");
}

#[test]
fn shares_that_differ_are_those_of_a_naive_program() {
    for size in 1..=5 {
        on_shm(size, |comm| {
            for seed in 0..60 {
                if seed % 7 == comm.rank() {
                    for _ in 0..200 {
                        std::thread::yield_now();
                    }
                }
                round(&comm, 100 * size + seed);
            }
            // On a part of the ranks, too.
            let part = comm
                .split(Some((comm.rank() % 2) as u32), 0)
                .expect("split");
            if let Some(part) = part {
                for seed in 0..12 {
                    round(&part, seed);
                }
            }
        });
    }
    on_all(3, |comm| (0..6).for_each(|seed| round(&comm, seed)));
}

/// Ranks with other counts are told so, and the communicator can be used again.
#[test]
fn counts_that_differ_are_told() {
    on_shm(3, |comm| {
        for n in [1, 40, 1000] {
            // Of as many elements in all.
            let counts = match comm.rank() {
                1 => [2 * n, n, n],
                _ => [n, 2 * n, n],
            };
            let mine = vec![1u64; 4 * n];
            let mut share = vec![0u64; counts[comm.rank()]];
            let result = comm.reduce_scatter(&mine, &mut share, &counts, Op::Sum);
            fails(result, ErrorKind::Argument, &["rank", "counts"]);
            comm.barrier().expect("goes on");
        }
        round(&comm, 5);
    });
}
