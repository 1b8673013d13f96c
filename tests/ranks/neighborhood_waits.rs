//! Calls on neighborhoods wait for neighbors, and for no other rank.

use crate::support::{Random, Watchdog, fails, on_shm, one_fails};
use osier::testing::Network;
use osier::{Communicator, ErrorKind, Op};

/// A graph of these edges.
fn graph(comm: &Communicator, edges: &[(usize, usize)]) -> Communicator {
    let me = comm.rank();
    let into = edges.iter().filter(|edge| edge.1 == me);
    let sources: Vec<usize> = into.map(|edge| edge.0).collect();
    let out = edges.iter().filter(|edge| edge.0 == me);
    let destinations: Vec<usize> = out.map(|edge| edge.1).collect();
    comm.dist_graph_create_adjacent(&sources, &destinations, None, false)
        .expect("a graph")
}

/// One call in the form of this number: every rank sends `n` numbers along each edge.
fn swap(comm: &Communicator, form: usize, n: usize, number: usize) {
    let edges = comm.dist_graph().expect("a graph");
    let (ins, outs) = (edges.sources().len(), edges.destinations().len());
    let out: Vec<usize> = (0..outs)
        .flat_map(|at| {
            let to = edges.destinations()[at].rank;
            vec![number * 100 + comm.rank() * 10 + to; n]
        })
        .collect();
    let wanted: Vec<usize> = (0..ins)
        .flat_map(|at| vec![number * 100 + edges.sources()[at].rank * 10 + comm.rank(); n])
        .collect();
    let mut got = vec![0usize; ins * n];
    match form {
        0 => comm.neighbor_alltoall(&out, &mut got).expect("swapped"),
        1 => {
            let request = comm.ineighbor_alltoall(out, got).expect("begun");
            (_, got) = request.wait().expect("swapped");
        }
        _ => {
            let request = comm.neighbor_alltoall_init(out, got);
            let mut request = request.expect("set up");
            request.start().expect("started");
            request.wait().expect("swapped");
            got = request.buffers().expect("done").1.clone();
        }
    }
    assert_eq!(got, wanted, "call {number}, form {form}, {n} numbers");
}

/// Two pairs of a communicator of four: one pair makes all of its calls before the other begins,
/// whichever has the rank that makes segments.
#[test]
fn pairs_do_not_wait_for_other_pairs() {
    let pairs = [(0, 1), (1, 0), (2, 3), (3, 2)];
    for first in [0, 2] {
        on_shm(4, |comm| {
            let four = graph(&comm, &pairs);
            let me = comm.rank();
            let of_first = me == first || me == first + 1;
            if !of_first {
                comm.recv(&mut [0u8], (me + 2) % 4, 7).expect("told");
            }
            for number in 0..60 {
                // A persistent call has a segment of its own, which the lowest rank makes.
                let form = number % if first == 0 { 3 } else { 2 };
                swap(&four, form, [1, 40, 3000, 20_000][number % 4], number);
            }
            if of_first {
                comm.send(&[1u8], (me + 2) % 4, 7).expect("sent");
            }
        });
    }
}

/// A chain in one direction: who is at its end never delays one that is not its neighbor.
#[test]
fn who_sends_waits_for_its_own_readers() {
    on_shm(4, |comm| {
        // 3 reads of nobody, 0 of 1 only; 2 begins when 1 is through with all calls.
        let chain = graph(&comm, &[(1, 0), (3, 2)]);
        if comm.rank() == 2 {
            comm.recv(&mut [0u8], 1, 7).expect("told");
        }
        for number in 0..40 {
            swap(
                &chain,
                number % 2,
                [1, 40, 3000, 20_000][number % 4],
                number,
            );
        }
        if comm.rank() == 1 {
            comm.send(&[1u8], 2, 7).expect("sent");
        }
    });
}

/// Calls on the neighborhood and of all ranks follow one another in any order, with late ranks:
/// slots of the one kind change hands, those of the other do not.
#[test]
fn calls_of_all_kinds_follow_one_another() {
    for seed in 0..6u64 {
        let mut dice = Random::new(seed);
        let size = 2 + dice.below(4);
        let edges: Vec<(usize, usize)> = (0..dice.below(3 * size + 1))
            .map(|_| (dice.below(size), dice.below(size)))
            .collect();
        let calls: Vec<[usize; 4]> = (0..250)
            .map(|_| [dice.below(6), dice.below(3), dice.below(4), dice.below(64)])
            .collect();
        on_shm(size, |comm| {
            println!("seed {seed}");
            let graph = graph(&comm, &edges);
            let n = |at: usize| [1, 30, 700, 9000][at];
            for (number, [kind, form, length, late]) in calls.iter().copied().enumerate() {
                if late == comm.rank() {
                    for _ in 0..100 {
                        std::thread::yield_now();
                    }
                }
                let n = n(length);
                match kind {
                    0..3 => swap_whole(&graph, form, n, number),
                    3 => {
                        let (mine, mut sums) = (vec![comm.rank() + number; n], vec![0; n]);
                        graph.allreduce(&mine, &mut sums, Op::Sum).expect("summed");
                        let all = number * size + size * (size - 1) / 2;
                        assert_eq!(sums, vec![all; n], "call {number}");
                    }
                    4 => {
                        let mut all = vec![0; n * size];
                        let mine = vec![comm.rank() * 7 + number; n];
                        graph.allgather(&mine, &mut all).expect("gathered");
                        for (rank, block) in all.chunks_exact(n).enumerate() {
                            assert_eq!(block, vec![rank * 7 + number; n], "call {number}");
                        }
                    }
                    _ => {
                        let root = number % size;
                        let mut data = vec![if comm.rank() == root { number } else { 0 }; n];
                        graph.bcast(&mut data, root).expect("told");
                        assert_eq!(data, vec![number; n], "call {number}");
                    }
                }
            }
        });
    }
}

/// As [`swap`], or a neighbor_allgather.
fn swap_whole(comm: &Communicator, form: usize, n: usize, number: usize) {
    if number.is_multiple_of(2) {
        return swap(comm, form, n, number);
    }
    let edges = comm.dist_graph().expect("a graph");
    let wanted: Vec<usize> = (edges.sources().iter())
        .flat_map(|source| vec![number * 10 + source.rank; n])
        .collect();
    let mut got = vec![0usize; wanted.len()];
    let mine = vec![number * 10 + comm.rank(); n];
    comm.neighbor_allgather(&mine, &mut got).expect("gathered");
    assert_eq!(got, wanted, "call {number}, {n} numbers");
}

/// A rank that fails in its call is an error of those that read from it, and of no one else.
#[test]
fn a_failure_is_told_to_readers_alone() {
    on_shm(4, |comm| {
        let ring = graph(&comm, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
        for round in 0..6 {
            let mut got = [0u32];
            // One of two elements for one destination.
            let odd: &[u32] = if comm.rank() == 2 { &[1, 2] } else { &[7] };
            let result = match comm.rank() {
                2 => ring.neighbor_alltoallv(odd, (&[3], &[0]), &mut got, (&[1], &[0])),
                _ => ring.neighbor_alltoall(odd, &mut got),
            };
            match comm.rank() {
                2 => drop(fails(result, ErrorKind::Argument, &["3 elements"])),
                3 => drop(fails(result, ErrorKind::Cancelled, &["rank 2"])),
                _ => result.unwrap_or_else(|e| panic!("round {round}: {e}")),
            }
        }
        swap(&ring, 0, 5, 1);
    });
}

/// A neighbor's death is reported; of another rank's nobody hears.
#[test]
fn the_death_of_a_stranger_is_none_of_a_pairs_affairs() {
    let _watchdog = Watchdog::start();
    one_fails(&Network::Shm, 4, |comm| {
        let four = graph(&comm, &[(0, 2), (2, 0), (1, 3), (3, 1), (3, 3)]);
        let me = comm.rank();
        for number in 0..6 {
            swap(&four, number % 3, [1, 3000][number % 2], number);
        }
        if me == 1 {
            return true;
        }
        if me == 3 {
            let mut got = [0u8; 2];
            let first = four.neighbor_alltoall(&[1u8, 2], &mut got);
            let result = first.and_then(|()| {
                let second = four.neighbor_alltoall(&[1u8, 2], &mut got);
                second.and_then(|()| four.neighbor_alltoall(&[1u8, 2], &mut got))
            });
            let e = result.expect_err("a dead neighbor");
            assert!(
                matches!(e.kind(), ErrorKind::RankDead | ErrorKind::Closed),
                "{e}"
            );
            comm.send(&[1u8], 0, 3).expect("it lives");
            comm.recv(&mut [0u8], 0, 4).expect("it lives");
        } else {
            for number in 0..40 {
                swap(&four, number % 2, [1, 3000][number % 2], number);
            }
            if me == 0 {
                comm.recv(&mut [0u8], 3, 3).expect("it lives");
                comm.send(&[1u8], 3, 4).expect("it lives");
                comm.send(&[1u8], 2, 4).expect("it lives");
            } else {
                comm.recv(&mut [0u8], 0, 4).expect("it lives");
            }
        }
        false
    });
}
