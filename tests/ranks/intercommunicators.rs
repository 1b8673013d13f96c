//! Intercommunicators.

use crate::support::{Watchdog, fails, on_all, on_machine, on_threads, one_fails, pattern};
use osier::communicators::{Comparison, SplitType};
use osier::testing::Network;
use osier::topology::dims_create;
use osier::{ANY_SOURCE, Communicator, ErrorKind, Op, PROC_NULL, ROOT};

/// The low and the high ranks of a communicator, joined; `low` is the number
/// of low ranks.
fn halves(comm: &Communicator, low: usize, tag: u32) -> Communicator {
    let is_low = comm.rank() < low;
    let side = comm.split(Some(u32::from(is_low)), 0).expect("split");
    let side = side.expect("a color");
    let other_leader = if is_low { low } else { 0 };
    let bridge = (side.rank() == 0).then_some((comm, other_leader));
    side.intercomm_create(0, bridge, tag).expect("two sides")
}

/// Every rank sends to every remote rank.
fn check_across(inter: &Communicator, what: usize) {
    let remote = inter.remote_group().expect("inter").clone();
    let me = inter.group().world_rank(inter.rank()).expect("me");
    for (round, bytes) in [8, 5_000, 150_000].into_iter().enumerate() {
        let tag = what * 8 + round;
        let sends: Vec<_> = (0..remote.size())
            .map(|to| {
                let data = pattern(bytes, what + me * 13 + to);
                inter.isend(data, to, tag).expect("isend")
            })
            .collect();
        for _ in 0..remote.size() {
            let (got, status) = inter.recv_vec::<u8>(ANY_SOURCE, tag).expect("recv");
            let from = status.source().expect("a sender");
            let world = remote.world_rank(from).expect("a remote rank");
            assert!(got == pattern(bytes, what + world * 13 + inter.rank()));
        }
        for send in sends {
            send.wait().expect("send");
        }
    }
}

#[test]
fn messages_go_to_the_remote_group() {
    for (n, low) in [(2, 1), (5, 2), (5, 4)] {
        on_all(n, |comm| {
            let inter = halves(&comm, low, 3);
            let (own, other) = if comm.rank() < low {
                (low, n - low)
            } else {
                (n - low, low)
            };
            assert!(inter.is_inter() && !comm.is_inter());
            assert_eq!(
                (inter.size(), inter.remote_size().expect("inter")),
                (own, other)
            );
            let me = comm.rank();
            assert_eq!(inter.rank(), if me < low { me } else { me - low });
            check_across(&inter, 1);
            fails(inter.send(&[1u8], other, 0), ErrorKind::Rank, &["hint"]);
            inter.send(&[1u8], PROC_NULL, 0).expect("nobody");
            // What one group does on a duplicate does not meet the other.
            let twin = inter.dup().expect("dup");
            assert_eq!(twin.compare(&inter), Comparison::Congruent);
            assert_eq!(inter.compare(&inter.clone()), Comparison::Ident);
            assert_eq!(comm.compare(&inter), Comparison::Unequal);
            drop(inter);
            check_across(&twin, 2);
        });
    }
}

#[test]
fn collectives_exchange_data_between_groups() {
    on_all(5, |comm| {
        let inter = halves(&comm, 2, 0);
        let low = comm.rank() < 2;
        for _ in 0..3 {
            inter.barrier().expect("barrier");
        }
        // Low rank 1 is the root.
        let root = match comm.rank() {
            0 => PROC_NULL,
            1 => ROOT,
            _ => 1.into(),
        };
        let mut data = [comm.rank() as u64; 3];
        inter.bcast(&mut data, root).expect("bcast");
        assert_eq!(data, if low { [comm.rank() as u64; 3] } else { [1; 3] });
        let mut all = [0u64; 6];
        let into = if comm.rank() == 1 { 6 } else { 0 };
        let mine = [inter.rank() as u64, 7];
        inter.gather(&mine, &mut all[..into], root).expect("gather");
        assert_eq!(
            all,
            if comm.rank() == 1 {
                [0, 7, 1, 7, 2, 7]
            } else {
                [0; 6]
            }
        );
        // Each side gets the other's; the sides may pass different counts.
        let mine = vec![comm.rank() as u64; if low { 3 } else { 1 }];
        let mut all = vec![0u64; if low { 3 } else { 6 }];
        inter.allgather(&mine, &mut all).expect("allgather");
        let expected: &[u64] = if low { &[2, 3, 4] } else { &[0, 0, 0, 1, 1, 1] };
        assert_eq!(all, expected);
        let mut sum = [0u64];
        inter
            .allreduce(&[comm.rank() as u64], &mut sum, Op::Sum)
            .expect("sum");
        assert_eq!(sum, [if low { 9 } else { 1 }]);
        inter.barrier().expect("barrier");
    });
}

#[test]
fn sides_merge_split_and_shrink() {
    on_machine(6, |comm| {
        let inter = halves(&comm, 2, 0);
        let low = comm.rank() < 2;
        let worlds = |c: &Communicator| c.group().world_ranks().collect::<Vec<_>>();
        for (low_high, high_high, order) in [
            (false, true, [0, 1, 2, 3, 4, 5]),
            (true, false, [2, 3, 4, 5, 0, 1]),
            (false, false, [0, 1, 2, 3, 4, 5]),
            (true, true, [0, 1, 2, 3, 4, 5]),
        ] {
            let merged = inter
                .merge(if low { low_high } else { high_high })
                .expect("merge");
            assert_eq!(worlds(&merged), order);
            assert!(!merged.is_inter());
            let mut sum = [0u64];
            merged.allreduce(&[1u64], &mut sum, Op::Sum).expect("sum");
            assert_eq!(sum, [6]);
        }
        // Ranks of a side that do not agree: an error for all.
        fails(
            inter.merge(comm.rank() % 2 == 0),
            ErrorKind::Argument,
            &["high", "hint"],
        );
        // Color 0: 0 | 5, 3 (by key); color 1 is on the low side only, color 2
        // on the high side only.
        let (color, key) = [(0, 0), (1, 0), (2, 0), (0, 9), (2, 1), (0, 4)][comm.rank()];
        let part = inter.split(Some(color), key).expect("split");
        match part {
            None => assert!(color != 0),
            Some(part) => {
                let remote: Vec<_> = part.remote_group().expect("inter").world_ranks().collect();
                let both = (worlds(&part), remote);
                let (a, b) = (vec![0], vec![5, 3]);
                assert_eq!(both, if low { (a, b) } else { (b, a) });
                check_across(&part, 4);
                let all = part.merge(low).expect("merge");
                assert_eq!(worlds(&all), [5, 3, 0]);
            }
        }
        // By what they share: all ranks of this machine, and nobody.
        let part = inter.split_type(Some(SplitType::Shared), -(comm.rank() as i64));
        let part = part.expect("split_type").expect("shared memory");
        assert_eq!(
            worlds(&part),
            if low { vec![1, 0] } else { vec![5, 4, 3, 2] }
        );
        check_across(&part, 7);
        assert!(inter.split_type(None, 0).expect("split_type").is_none());
        // A part of each side, in another order; then nobody of one side.
        let mine = if low { vec![1] } else { vec![3, 0] };
        let group = inter.group().incl(&mine).expect("group");
        let part = inter.create(&group).expect("create");
        assert_eq!(part.is_some(), [1, 2, 5].contains(&comm.rank()));
        if let Some(part) = part {
            assert_eq!(worlds(&part), if low { vec![1] } else { vec![5, 2] });
            check_across(&part, 5);
        }
        let group = inter
            .group()
            .incl(if low { &[0] } else { &[] })
            .expect("group");
        assert!(inter.create(&group).expect("create").is_none());
        check_across(&inter, 6);
    });
}

#[test]
fn joins_on_an_intercommunicator_and_at_once() {
    on_threads(4, |comm| {
        // The bridge may be an intercommunicator: its remote ranks count.
        let inter = halves(&comm, 2, 1);
        let alone = comm
            .split(Some(comm.rank() as u32), 0)
            .expect("split")
            .expect("a color");
        let pair = alone
            .intercomm_create(0, Some((&inter, inter.rank())), 9)
            .expect("pairs");
        let partner = pair.remote_group().expect("inter").world_rank(0);
        assert_eq!(partner, Some((comm.rank() + 2) % 4));
        check_across(&pair, 7);
        // Several at once between the same leaders, in another order here than
        // there: tags tell them apart.
        let tags: Vec<u32> = (0..6).collect();
        let made: Vec<(u32, Communicator)> = std::thread::scope(|s| {
            let threads: Vec<_> = tags
                .iter()
                .map(|&tag| {
                    let (comm, alone) = (comm.clone(), alone.clone());
                    s.spawn(move || {
                        // Threads share no communicator for collective calls.
                        let leader = (comm.rank() + 2) % 4;
                        let own = alone.create_group(alone.group(), tag).expect("own");
                        let made = own.intercomm_create(0, Some((&comm, leader)), tag);
                        (tag, made.expect("joined"))
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("thread"))
                .collect()
        });
        for (tag, inter) in &made {
            let mut theirs = [0u64; 2];
            let mine = [u64::from(*tag), inter.context()];
            inter
                .sendrecv(&mine, 0, 0, &mut theirs, 0, 0)
                .expect("swap");
            assert_eq!(mine, theirs);
        }
    });
}

#[test]
fn wrong_calls_on_intercommunicators_are_refused() {
    on_all(4, |comm| {
        let kind = ErrorKind::Argument;
        fails(comm.remote_size(), kind, &["no remote group", "hint"]);
        fails(comm.merge(false), kind, &["merge", "no remote group"]);
        let side = comm
            .split(Some(comm.rank() as u32 / 2), 0)
            .expect("split")
            .expect("a color");
        let bridge = (side.rank() == 0).then_some((&comm, 9));
        let at_leader: &[&str] = if side.rank() == 0 {
            &["rank 9"]
        } else {
            &["leader 0", "hint"]
        };
        let kinds = if side.rank() == 0 {
            ErrorKind::Rank
        } else {
            kind
        };
        fails(side.intercomm_create(0, bridge, 0), kinds, at_leader);
        fails(
            side.intercomm_create(2, None, 0),
            ErrorKind::Rank,
            &["leader 2", "hint"],
        );
        fails(
            side.intercomm_create(0, None, -1),
            ErrorKind::Tag,
            &["tag -1"],
        );
        fails(side.intercomm_create(0, None, 0), kind, &[]);
        // The other leader is in the own group.
        let bridge = (comm.rank() == 0).then_some((&comm, 1));
        fails(comm.intercomm_create(0, bridge, 0), kind, &[]);
        let inter = halves(&comm, 1, 0);
        fails(
            inter.intercomm_create(0, None, 0),
            kind,
            &["two groups already"],
        );
        let mut dims = [0];
        dims_create(inter.size(), &mut dims).expect("dims");
        let between = ErrorKind::Communicator;
        fails(
            inter.cart_create(&dims, &[true]),
            between,
            &["no topology", "merge"],
        );
        fails(
            inter.graph_create(&[], &[], true),
            between,
            &["no topology"],
        );
        fails(inter.cart_sub(&[true]), kind, &["no grid"]);
        fails(
            inter.dist_graph_create_adjacent(&[], &[], None, false),
            between,
            &["no topology"],
        );
        fails(
            inter.create_group(inter.group(), 0),
            between,
            &["create works"],
        );
        check_across(&inter, 3);
    });
}

#[test]
fn operations_fail_when_a_rank_of_the_other_side_dies() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        one_fails(&network, 4, |comm| {
            let inter = halves(&comm, 3, 0);
            if comm.rank() == 3 {
                // It dies with the communicator, without dropping it before.
                std::mem::forget(inter);
                return true;
            }
            let kind = ErrorKind::RankDead;
            fails(inter.barrier(), kind, &["barrier"]);
            fails(inter.merge(false), kind, &["merge"]);
            fails(inter.split(Some(0), 0), kind, &[]);
            // Nobody is left who could send.
            fails(inter.recv(&mut [0u8], ANY_SOURCE, 0), kind, &["rank 0"]);
            fails(inter.ssend(&[0u8], 0, 0), kind, &["rank 0"]);
            false
        });
    }
}
