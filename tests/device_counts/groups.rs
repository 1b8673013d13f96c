//! Calls between two groups.

use crate::memory::{
    Draw, Maker, Rank, Spaces, by_plan, counts, halves, layouts, on_devices, scattered,
};
use osier::testing::Network;
use osier::{Op, PROC_NULL, ROOT};
use osier_collectives::Algorithm;

/// All calls between two groups; `first`: this rank is in the one with the root.
fn calls_between(rank: &Rank<'_>, seed: usize, first: bool) {
    let (me, own) = (rank.twin.rank(), rank.twin.size());
    let others = rank.twin.remote_size().unwrap();
    let mut draw = Draw(seed as u64);
    let kinds = layouts();
    let kind = &kinds[draw.below(3)].clone();
    let int = &kinds[0];
    let each = draw.below(900);
    let roots = if first { own } else { others };
    let (chosen, takes_part) = (draw.below(roots), !first);
    let root: osier::Rank = match first {
        true if me == chosen => ROOT,
        true => PROC_NULL,
        false => chosen.into(),
    };
    let at_root = first && me == chosen;
    let some = |there: bool, n: usize| if there { n } else { 0 };
    let one = |maker: &Maker<'_>, kind, there, n, seed| maker.mem(kind, some(there, n), seed);

    rank.alike(
        "bcast",
        seed,
        |maker| vec![one(maker, kind, at_root || takes_part, each, seed + me)],
        |comm, all| comm.bcast(&mut all[0], root),
    );
    rank.alike(
        "reduce",
        seed,
        |maker| {
            vec![
                one(maker, int, takes_part, each, seed + me),
                one(maker, int, at_root, each, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.reduce(send, recv, root, Op::Sum)
        },
    );
    rank.alike(
        "gather",
        seed,
        |maker| {
            vec![
                one(maker, kind, takes_part, each, seed + me),
                one(maker, kind, at_root, each * others, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.gather(send, recv, root)
        },
    );
    rank.alike(
        "scatter",
        seed,
        |maker| {
            vec![
                one(maker, kind, at_root, each * others, seed),
                one(maker, kind, takes_part, each, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.scatter(send, recv, root)
        },
    );
    // The side without the root has as many blocks as it has ranks.
    let blocks = counts(&mut draw, if first { others } else { own });
    let (places, room) = scattered(&mut draw, &blocks);
    let block = if takes_part { blocks[me] } else { 0 };
    rank.alike(
        "gatherv",
        seed,
        |maker| {
            vec![
                maker.mem(kind, block, seed + me),
                one(maker, kind, at_root, room, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.gatherv(send, recv, &blocks, &places, root)
        },
    );
    rank.alike(
        "scatterv",
        seed,
        |maker| {
            vec![
                one(maker, kind, at_root, room, seed),
                maker.mem(kind, block, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.scatterv(send, &blocks, &places, recv, root)
        },
    );
    // Sides give different amounts.
    let (mine, theirs) = if first {
        (each, each / 2)
    } else {
        (each / 2, each)
    };
    rank.alike(
        "allgather",
        seed,
        |maker| {
            vec![
                maker.mem(kind, mine, seed + me),
                maker.mem(kind, theirs * others, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.allgather(send, recv)
        },
    );
    rank.alike(
        "alltoall",
        seed,
        |maker| {
            vec![
                maker.mem(kind, mine * others, seed + me),
                maker.mem(kind, theirs * others, 8),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.alltoall(send, recv)
        },
    );
    let of_side = |first: bool, n| counts(&mut Draw((seed * 3 + usize::from(first)) as u64), n);
    let (gives, gets) = (of_side(first, own)[me], of_side(!first, others));
    let (at, room) = scattered(&mut draw, &gets);
    rank.alike(
        "allgatherv",
        seed,
        |maker| vec![maker.mem(kind, gives, seed + me), maker.mem(kind, room, 8)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.allgatherv(send, recv, &gets, &at)
        },
    );
    // Edge by edge, from either side.
    let edge = |from_first: bool, from: usize, to: usize| {
        let seed = seed * 900 + 100 * usize::from(from_first) + 10 * from + to;
        counts(&mut Draw(seed as u64), 1)[0]
    };
    let gives: Vec<usize> = (0..others).map(|to| edge(first, me, to)).collect();
    let gets: Vec<usize> = (0..others).map(|from| edge(!first, from, me)).collect();
    let mut own_draw = Draw((seed * 100 + me + 50 * usize::from(first)) as u64);
    let (from, sent) = scattered(&mut own_draw, &gives);
    let (to, got) = scattered(&mut own_draw, &gets);
    rank.alike(
        "alltoallv",
        seed,
        |maker| vec![maker.mem(kind, sent, seed + me), maker.mem(kind, got, 8)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.alltoallv(send, (&gives, &from), recv, (&gets, &to))
        },
    );
    rank.alike(
        "alltoallw",
        seed,
        |maker| {
            let send = gives.iter().enumerate();
            let send = send.map(|(to, n)| maker.mem(&kinds[1 + (me + to) % 2], *n, seed + to));
            let recv = gets.iter().enumerate();
            let recv = recv.map(|(at, n)| maker.mem(&kinds[2 - (me + at) % 2], *n, at));
            send.chain(recv).collect()
        },
        |comm, all| {
            let (send, recv) = all.split_at_mut(others);
            comm.alltoallw(send, recv)
        },
    );
    rank.alike(
        "allreduce",
        seed,
        |maker| vec![maker.mem(int, each, seed + me), maker.mem(int, each, 8)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            comm.allreduce(send, recv, Op::Max)
        },
    );
    // As many elements on both sides, shared out by each side for itself.
    let all = each / 60 * 60;
    let shares: Vec<usize> = (0..own).map(|r| if r == 0 { all } else { 0 }).collect();
    rank.alike(
        "reduce_scatter",
        seed,
        |maker| {
            vec![
                maker.mem(int, all, seed + me),
                maker.mem(int, shares[me], 8),
            ]
        },
        |comm, mem| {
            let [send, recv] = mem else { panic!() };
            comm.reduce_scatter(send, recv, &shares, Op::Sum)
        },
    );
    rank.alike(
        "reduce_scatter_block",
        seed,
        |maker| vec![maker.mem(int, all, seed + me), maker.mem(int, all / own, 8)],
        |comm, mem| {
            let [send, recv] = mem else { panic!() };
            comm.reduce_scatter_block(send, recv, Op::Sum)
        },
    );
}

#[test]
fn calls_between_groups_are_those_of_the_host() {
    for (n, low) in [(2, 1), (3, 2), (4, 1), (5, 3)] {
        on_devices(&[Network::Shm], n, |comm, stream| {
            let inter = halves(comm, low, 0);
            let twin = inter.dup().unwrap();
            let plans = [
                None,
                Some((Algorithm::Between, 1, true)),
                Some((Algorithm::Between, 3, true)),
            ];
            for (at, plan) in plans.iter().enumerate() {
                by_plan(&inter, plan);
                for spaces in [Spaces::Devices, Spaces::Mixed] {
                    let what = format!("{low} of {n} ranks, {plan:?}, {spaces:?}");
                    let (comm, twin) = (&inter, &twin);
                    let rank = Rank {
                        comm,
                        twin,
                        stream,
                        spaces,
                        what,
                    };
                    for seed in 0..2 {
                        // Roots in either group.
                        let first = (rank.first(low) == (seed == 0)) as usize == 1;
                        calls_between(&rank, 100 * n + 10 * at + seed, first);
                    }
                }
            }
        });
    }
}

impl Rank<'_> {
    /// Whether it is one of the low ranks.
    fn first(&self, low: usize) -> bool {
        self.twin.group().world_rank(self.twin.rank()).unwrap() < low
    }
}
