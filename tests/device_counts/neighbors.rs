//! Calls on grids and graphs.

use crate::memory::{Draw, Maker, Rank, Spaces, by_plan, counts, layouts, on_devices, scattered};
use osier::testing::Network;
use osier_collectives::Algorithm;

/// All calls of a neighborhood with so many blocks in and out at this rank: `seed` is all
/// ranks', counts of an edge are those of its sender.
fn calls_of_neighbors(rank: &Rank<'_>, seed: usize, sources: &[usize], to: &[usize]) {
    let me = rank.twin.rank();
    let mut draw = Draw(seed as u64);
    let kinds = layouts();
    let kind = &kinds[draw.below(3)].clone();
    let each = draw.below(700);
    // What a rank gives to all, and what to each; edges of one pair are alike.
    let gives = |from: usize| counts(&mut Draw((seed * 7 + from) as u64), 1)[0];
    let edge = |from: usize, to: usize| counts(&mut Draw((seed * 91 + from * 8 + to) as u64), 1)[0];
    let equal = |maker: &Maker<'_>, blocks: usize, seed| maker.mem(kind, each * blocks, seed);
    rank.alike(
        "neighbor_allgather",
        seed,
        |maker| vec![equal(maker, 1, seed + me), equal(maker, sources.len(), 9)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.neighbor_allgather(send, recv)
        },
    );
    rank.alike(
        "neighbor_alltoall",
        seed,
        |maker| {
            vec![
                equal(maker, to.len(), seed + me),
                equal(maker, sources.len(), 9),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.neighbor_alltoall(send, recv)
        },
    );
    let mut mine = Draw((seed * 100 + me) as u64);
    let blocks: Vec<usize> = sources.iter().map(|from| gives(*from)).collect();
    let (places, room) = scattered(&mut mine, &blocks);
    rank.alike(
        "neighbor_allgatherv",
        seed,
        |maker| {
            vec![
                maker.mem(kind, gives(me), seed + me),
                maker.mem(kind, room, 9),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.neighbor_allgatherv(send, recv, &blocks, &places)
        },
    );
    let given: Vec<usize> = to.iter().map(|to| edge(me, *to)).collect();
    let got: Vec<usize> = sources.iter().map(|from| edge(*from, me)).collect();
    let (from_at, sent) = scattered(&mut mine, &given);
    let (to_at, taken) = scattered(&mut mine, &got);
    rank.alike(
        "neighbor_alltoallv",
        seed,
        |maker| vec![maker.mem(kind, sent, seed + me), maker.mem(kind, taken, 9)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.neighbor_alltoallv(send, (&given, &from_at), recv, (&got, &to_at))
        },
    );
    rank.alike(
        "neighbor_alltoallw",
        seed,
        |maker| {
            let send = given.iter().enumerate();
            let send = send.map(|(at, n)| maker.mem(&kinds[1 + at % 2], *n, seed + at));
            let recv = got.iter().enumerate();
            let recv = recv.map(|(at, n)| maker.mem(&kinds[2 - at % 2], *n, 60 + at));
            send.chain(recv).collect()
        },
        |comm, all| {
            let (send, recv) = all.split_at_mut(given.len());
            comm.neighbor_alltoallw(send, recv)
        },
    );
}

#[test]
fn calls_of_neighbors_are_those_of_the_host() {
    for n in 1..=5 {
        on_devices(&[Network::Shm], n, |comm, stream| {
            let me = comm.rank();
            for seed in 0..2 {
                // Each rank's edges: to the next, to itself and to others as drawn, some twice.
                let mut draw = Draw(seed as u64 + 5);
                let edges: Vec<Vec<usize>> = (0..n)
                    .map(|from| {
                        let more = (0..draw.below(4)).map(|_| draw.0 as usize % n);
                        let mut all: Vec<usize> = more.collect();
                        all.push((from + 1) % n);
                        all.extend((0..draw.below(3)).map(|_| draw.below(n)));
                        all
                    })
                    .collect();
                let to = &edges[me];
                let met = |from: usize| {
                    edges[from]
                        .iter()
                        .filter(|to| **to == me)
                        .map(move |_| from)
                };
                let sources: Vec<usize> = (0..n).flat_map(met).collect();
                let graph = comm.dist_graph_create_adjacent(&sources, to, None, false);
                let graph = graph.unwrap();
                let ring = comm.cart_create(&[n], &[true]).unwrap().unwrap();
                let around = [(me + n - 1) % n, (me + 1) % n];
                for (comm, sources, to) in [
                    (&graph, &sources[..], &to[..]),
                    (&ring, &around[..], &around[..]),
                ] {
                    let twin = comm.dup().unwrap();
                    for stays in [None, Some(true)] {
                        let plan = stays.map(|stays| (Algorithm::Linear, 1, stays));
                        by_plan(comm, &plan);
                        twin.use_algorithm_on_devices(Algorithm::Linear, 1, false);
                        for spaces in [Spaces::Devices, Spaces::Mixed] {
                            let what = format!("{n} ranks, stays {stays:?}, {spaces:?}");
                            let twin = &twin;
                            let rank = Rank {
                                comm,
                                twin,
                                stream,
                                spaces,
                                what,
                            };
                            calls_of_neighbors(&rank, 10 * seed + n, sources, to);
                        }
                    }
                }
            }
        });
    }
}
