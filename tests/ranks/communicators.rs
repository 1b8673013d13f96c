//! Communicators: contexts, groups, topologies, ends.

use crate::support::{Random, fails, on_all, on_shm, pattern};
use osier::requests::wait_any;
use osier::topology::dims_create;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, Group, Op};
use std::collections::HashSet;
use std::sync::Mutex;

/// Passes a number around.
fn check_ring(comm: &Communicator, what: u64) {
    let (me, n) = (comm.rank(), comm.size());
    let mut got = 0u64;
    let mine = what * 1000 + me as u64;
    let left = (me + n - 1) % n;
    comm.sendrecv(&mine, (me + 1) % n, 0, &mut got, left, ANY_TAG)
        .expect("ring");
    assert_eq!(got, what * 1000 + left as u64);
}

#[test]
fn messages_stay_in_their_communicator() {
    on_all(3, |comm| {
        let others = [comm.dup(), comm.dup(), comm.dup()].map(|c| c.expect("dup"));
        let all: Vec<&Communicator> = std::iter::once(&comm).chain(&others).collect();
        for bytes in [16, 3_000, 200_000] {
            // The same sources and tags everywhere, in another order here than there.
            let mut order: Vec<usize> = (0..all.len()).collect();
            Random::new(comm.rank() as u64).shuffle(&mut order);
            let sends: Vec<_> = order
                .iter()
                .flat_map(|&c| (0..3).map(move |to| (c, to)))
                .map(|(c, to)| all[c].isend(pattern(bytes, c * 9 + comm.rank()), to, 0))
                .collect();
            order.reverse();
            for &c in &order {
                for _ in 0..3 {
                    let mut got = vec![0; bytes];
                    let status = all[c].recv(&mut got, ANY_SOURCE, ANY_TAG).expect("recv");
                    let from = status.source().expect("a sender");
                    assert!(got == pattern(bytes, c * 9 + from), "communicator {c}");
                }
            }
            for send in sends {
                send.expect("isend").wait().expect("send");
            }
            comm.barrier().expect("barrier");
        }
    });
}

#[test]
fn contexts_are_unique_and_never_used_again() {
    let seen = Mutex::new(HashSet::new());
    on_shm(4, |comm| {
        let mut held = Vec::new();
        let mut note = |c: Communicator| {
            if c.rank() == 0 {
                assert!(seen.lock().expect("lock").insert(c.context()), "twice");
            }
            check_ring(&c, c.context() & 0xffff);
            held.push(c);
            if held.len() > 3 {
                held.remove(0);
            }
        };
        note(comm.clone());
        for round in 0..12u32 {
            note(comm.dup().expect("dup"));
            let half = comm.split(Some(comm.rank() as u32 % 2), 0).expect("split");
            let half = half.expect("a color");
            note(half.dup().expect("dup"));
            note(half);
            if let Some(c) = comm
                .split((comm.rank() as u32 != round % 4).then_some(7), 0)
                .expect("split")
            {
                note(c);
            }
        }
    });
    assert!(seen.into_inner().expect("lock").len() > 12 * 6);
}

#[test]
fn splits_have_the_members_and_the_order_asked_for() {
    on_all(6, |comm| {
        let me = comm.rank();
        // Colors 0 and 1 by parity, order reversed; rank 4 takes no part.
        let color = (me != 4).then_some(me as u32 % 2);
        let part = comm.split(color, -(me as i64)).expect("split");
        match part {
            None => assert_eq!(me, 4),
            Some(part) => {
                let members: Vec<usize> = part.group().world_ranks().collect();
                assert_eq!(members, [vec![2, 0], vec![5, 3, 1]][me % 2]);
                assert_eq!(part.group().rank_of(me), Some(part.rank()));
                check_ring(&part, me as u64 % 2);
                let mut sum = [0u64];
                part.allreduce(&[me as u64], &mut sum, Op::Sum)
                    .expect("sum");
                assert_eq!(sum, [[2, 9][me % 2]]);
            }
        }
        // Equal keys: by rank. Extreme colors and keys.
        let all = comm
            .split(Some(u32::MAX), i64::MIN)
            .expect("split")
            .expect("a color");
        assert_eq!((all.rank(), all.size()), (me, 6));
        assert!(comm.split(None, 0).expect("split").is_none());
        let shared = comm.split_shared(0).expect("split_shared");
        assert_eq!(shared.size(), 6);
        check_ring(&shared, 1);
        let single = comm
            .split(Some(me as u32), 0)
            .expect("split")
            .expect("a color");
        assert_eq!((single.rank(), single.size()), (0, 1));
        check_ring(&single, 2);
        single.barrier().expect("barrier");
        assert_eq!(single.transport(0).expect("itself"), "self");
    });
}

#[test]
fn communicators_are_made_from_groups() {
    on_all(5, |comm| {
        let group = comm.group().incl(&[3, 0, 4]).expect("group");
        match comm.create(&group).expect("create") {
            Some(c) => {
                assert_eq!(c.rank(), [1, 9, 9, 0, 2][comm.rank()]);
                assert_eq!(
                    c.group().compare(&group),
                    osier::communicators::GroupComparison::Ident
                );
                check_ring(&c, 5);
                // One of a part of a part, whose ranks are numbered anew.
                let inner = c.group().excl(&[1]).expect("group");
                let part = c.create(&inner).expect("create");
                assert_eq!(part.is_none(), comm.rank() == 0);
                if let Some(part) = part {
                    assert_eq!(part.group().world_ranks().collect::<Vec<_>>(), [3, 4]);
                    check_ring(&part, 6);
                }
                let foreign = Group::single(1).expect("group");
                fails(
                    c.create(&foreign),
                    ErrorKind::Group,
                    &["rank 1", "no member"],
                );
            }
            None => assert!([1, 2].contains(&comm.rank())),
        }
    });
}

#[test]
fn grids_have_neighbors() {
    on_all(7, |comm| {
        let mut dims = [0, 0];
        dims_create(6, &mut dims).expect("dims");
        assert_eq!(dims, [3, 2]);
        let cart = comm.cart_create(&dims, &[true, false]).expect("grid");
        assert_eq!(cart.is_none(), comm.rank() == 6);
        let Some(cart) = cart else { return };
        let topology = cart.cart().expect("a topology").clone();
        let duplicate = cart.dup().expect("dup");
        assert_eq!(duplicate.cart().expect("kept").dims(), &dims[..]);
        for axis in 0..2 {
            let (source, dest) = topology.shift(cart.rank(), axis, 1).expect("shift");
            assert_eq!(source.is_none(), axis == 1 && cart.rank().is_multiple_of(2));
            let mut got = u64::MAX;
            let status = cart
                .sendrecv(&(cart.rank() as u64), dest, 0, &mut got, source, 0)
                .expect("shift");
            assert_eq!(status.source(), source);
            assert_eq!(got, source.map_or(u64::MAX, |s| s as u64));
        }
        fails(
            cart.cart_create(&[7], &[true]),
            ErrorKind::Argument,
            &["7 ranks", "6", "hint"],
        );
        fails(cart.cart_create(&[2, 2], &[true]), ErrorKind::Argument, &[]);
        fails(cart.cart_create(&[0], &[true]), ErrorKind::Argument, &[]);
    });
}

#[test]
fn dropping_one_communicator_leaves_the_others() {
    on_all(3, |comm| {
        for round in 0..30usize {
            let a = comm.dup().expect("dup");
            let b = comm.dup().expect("dup");
            check_ring(&a, 1);
            // Everybody at a time of their own.
            if (comm.rank() + round) % 2 == 0 {
                drop(a);
                check_ring(&b, 2);
            } else {
                check_ring(&b, 2);
                drop(a);
            }
            check_ring(&comm, 3);
            check_ring(&b, 4);
        }
    });
}

#[test]
fn a_clone_keeps_a_communicator() {
    on_all(2, |comm| {
        let a = comm.dup().expect("dup");
        let b = a.clone();
        assert_eq!(a.context(), b.context());
        drop(a);
        check_ring(&b, 1);
        let request = b.irecv(vec![0u8; 4], 1 - comm.rank(), 0).expect("irecv");
        drop(b);
        let c = comm.dup().expect("dup");
        check_ring(&c, 2);
        drop(request);
    });
}

#[test]
fn detached_sends_outlive_their_communicator() {
    on_all(2, |comm| {
        for bytes in [8, 100_000, 1_000_000] {
            let other = comm.dup().expect("dup");
            if comm.rank() == 0 {
                for i in 0..10 {
                    drop(other.isend(pattern(bytes, i), 1, i).expect("isend"));
                }
                drop(other);
                comm.barrier().expect("dropped");
            } else {
                comm.barrier().expect("dropped");
                for i in (0..10).rev() {
                    let (got, _) = other.recv_vec::<u8>(0, i).expect("recv");
                    assert!(got == pattern(bytes, i));
                }
            }
        }
    });
}

#[test]
fn sends_to_a_rank_that_has_dropped_the_communicator_end() {
    on_all(2, |comm| {
        for way in 0..10 {
            let other = comm.dup().expect("dup");
            let mut token = [0u8];
            if comm.rank() == 1 {
                // One message, so that the channel was in use.
                other.recv(&mut token, 0, 0).expect("recv");
                drop(other);
                comm.send(&[1u8], 0, 0).expect("it is dropped");
                comm.recv(&mut token, 0, 1).expect("rank 0 has seen it");
                continue;
            }
            other.send(&[1u8], 1, 0).expect("send");
            let data = pattern(1_000_000, 0);
            let early = (way < 3).then(|| other.issend(data.clone(), 1, 1));
            comm.recv(&mut token, 1, 0).expect("it is dropped");
            let issend = || early.unwrap_or_else(|| other.issend(data.clone(), 1, 1));
            let result = match way {
                0 | 3 => issend().and_then(|r| r.wait()).map(drop),
                1 | 4 => issend()
                    .and_then(|r| wait_any(&mut vec![r]).expect("one").1)
                    .map(drop),
                2 | 5 => issend().and_then(|r| other.block_on(r)).map(drop),
                6 => issend()
                    .and_then(|mut r| {
                        while !r.test() {
                            std::thread::yield_now();
                        }
                        r.wait()
                    })
                    .map(drop),
                7 => issend()
                    .and_then(crate::futures::foreign_block_on)
                    .map(drop),
                8 => other.send(&data, 1, 1),
                _ => other.scope(|s| s.issend(&data, 1, 1).map(drop)),
            };
            fails(result, ErrorKind::Closed, &["rank 1", "1000000"]);
            comm.send(&[1u8], 1, 1).expect("rank 0 has seen it");
        }
    });
}

#[test]
fn many_communicators_come_and_go() {
    on_all(4, |comm| {
        let mut kept = vec![comm.clone()];
        let mut random = Random::new(11); // the same on all ranks
        for round in 0..40u64 {
            let from = &kept[random.below(kept.len())];
            let new = from.dup().expect("dup");
            check_ring(&new, round);
            kept.push(new);
            if kept.len() > 6 {
                kept.remove(1 + random.below(5));
            }
        }
        for (i, c) in kept.iter().enumerate() {
            check_ring(c, i as u64);
        }
    });
}
