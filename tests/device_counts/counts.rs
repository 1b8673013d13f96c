//! Calls with counts within one group.

use crate::memory::{
    Draw, Maker, Mem, Rank, Spaces, by_plan, counts, layouts, on_devices, plans, scattered,
};
use osier::testing::Network;
use osier::{IN_PLACE, Op};

/// All calls with counts of one group.
fn calls_with_counts(rank: &Rank<'_>, seed: usize) {
    let (me, n) = (rank.twin.rank(), rank.twin.size());
    let mut draw = Draw(seed as u64);
    let kinds = layouts();
    let kind = &kinds[draw.below(3)].clone();
    let root = draw.below(n);
    let in_place = draw.yes(3);
    let blocks = counts(&mut draw, n);
    let (places, room) = scattered(&mut draw, &blocks);
    let at = |maker: &Maker<'_>, who: bool| maker.mem(kind, if who { room } else { 0 }, seed + 50);
    let own = |maker: &Maker<'_>, who: usize| maker.mem(kind, blocks[who], seed + who);

    rank.alike(
        "gatherv",
        seed,
        |maker| vec![own(maker, me), at(maker, me == root)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            match in_place && me == root {
                true => comm.gatherv(&IN_PLACE, recv, &blocks, &places, root),
                false => comm.gatherv(send, recv, &blocks, &places, root),
            }
        },
    );
    rank.alike(
        "scatterv",
        seed,
        |maker| vec![at(maker, me == root), own(maker, me)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            match in_place && me == root {
                true => comm.scatterv(
                    send,
                    &blocks,
                    &places,
                    &mut osier::collectives::InPlace,
                    root,
                ),
                false => comm.scatterv(send, &blocks, &places, recv, root),
            }
        },
    );
    rank.alike(
        "allgatherv",
        seed,
        |maker| vec![own(maker, me), at(maker, true)],
        |comm, all| {
            let [send, recv] = all else { panic!() };
            match in_place {
                true => comm.allgatherv(&IN_PLACE, recv, &blocks, &places),
                false => comm.allgatherv(send, recv, &blocks, &places),
            }
        },
    );

    // What rank i sends to rank j; in place both ways alike.
    let table: Vec<Vec<usize>> = (0..n).map(|_| counts(&mut draw, n)).collect();
    let between = |i: usize, j: usize| match in_place {
        true => table[i.min(j)][i.max(j)],
        false => table[i][j],
    };
    let gives: Vec<usize> = (0..n).map(|to| between(me, to)).collect();
    let gets: Vec<usize> = (0..n).map(|from| between(from, me)).collect();
    let mut mine = Draw((seed * 100 + me) as u64);
    let (from, sent) = scattered(&mut mine, &gives);
    let (to, got) = scattered(&mut mine, &gets);
    rank.alike(
        "alltoallv",
        seed,
        |maker| {
            vec![
                maker.mem(kind, sent, seed + me),
                maker.mem(kind, got, seed + 50 + me),
            ]
        },
        |comm, all| {
            let [send, recv] = all else { panic!() };
            match in_place {
                true => comm.alltoallv(&IN_PLACE, (&[], &[]), recv, (&gets, &to)),
                false => comm.alltoallv(send, (&gives, &from), recv, (&gets, &to)),
            }
        },
    );
    // Layouts of both ends differ: three elements each.
    let other = |i: usize, j: usize| &kinds[1 + (i + j) % 2];
    rank.alike(
        "alltoallw",
        seed,
        |maker| {
            let send = (0..n).map(|to| maker.mem(other(me, to), between(me, to), seed + to));
            let recv = (0..n).map(|from| maker.mem(other(me, from + 1), between(from, me), from));
            send.chain(recv).collect()
        },
        |comm, all| {
            let (send, recv) = all.split_at_mut(n);
            comm.alltoallw(send, recv)
        },
    );
    let all: usize = blocks.iter().sum();
    let result = if in_place { all } else { blocks[me] };
    rank.alike(
        "reduce_scatter",
        seed,
        |maker| {
            vec![
                maker.mem(&kinds[0], all, seed + me),
                maker.mem(&kinds[0], result, 3),
            ]
        },
        |comm, mem| {
            let [send, recv] = mem else { panic!() };
            match in_place {
                true => comm.reduce_scatter(&IN_PLACE, recv, &blocks, Op::Sum)?,
                false => comm.reduce_scatter(send, recv, &blocks, Op::Sum)?,
            }
            // The rest of what was in place is anybody's.
            if in_place {
                let share = blocks[me];
                let sums = recv.contents()[..share].to_vec();
                *recv = Mem::new(None, sums, &kinds[0].0, share);
            }
            Ok(())
        },
    );
}

/// Whatever counts, layouts, places and plans are, memory is that of the same call of the host.
#[test]
fn calls_with_counts_are_those_of_the_host() {
    for n in 1..=5 {
        let networks = match n {
            3 => Network::all(),
            _ => vec![Network::Shm],
        };
        on_devices(&networks, n, |comm, stream| {
            let twin = comm.dup().unwrap();
            for (at, plan) in plans().iter().enumerate() {
                by_plan(comm, plan);
                for spaces in [Spaces::Devices, Spaces::Mixed] {
                    let rank = Rank {
                        comm,
                        twin: &twin,
                        stream,
                        spaces,
                        what: format!("{n} ranks, {plan:?}, {spaces:?}"),
                    };
                    let mixed = usize::from(spaces == Spaces::Mixed);
                    calls_with_counts(&rank, 1000 * n + 10 * at + mixed);
                }
            }
        });
    }
}
