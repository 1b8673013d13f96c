//! Communicators without a parent, and sessions.

use crate::support::{Watchdog, fails, on_all};
use osier::testing::{Network, universes_on};
use osier::{Communicator, ErrorKind, Group, Op, Session, Universe};
use std::collections::HashSet;
use std::sync::Mutex;

fn universes(n: usize, f: impl Fn(&Universe) + Sync) {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        universes_on(&network, n, &f);
    }
}

fn sum_of(comm: &Communicator) -> u64 {
    let mut sum = [0];
    comm.allreduce(&[comm.rank() as u64 + 1], &mut sum, Op::Sum)
        .expect("sum");
    sum[0]
}

#[test]
fn groups_need_no_parent() {
    universes(5, |universe| {
        let session = universe.session();
        let world = session.group("mpi://WORLD").expect("world");
        assert_eq!(world.size(), 5);
        let own = session.group("mpi://SELF").expect("self");
        assert_eq!(own.world_rank(0), Some(session.rank()));
        let all = session.create_from_group(&world, "all").expect("all");
        assert_eq!((all.rank(), sum_of(&all)), (session.rank(), 15));
        let alone = session.create_from_group(&own, "all").expect("own");
        assert_eq!(sum_of(&alone), 1);
        // Only members call; ranks stand as the group says; the same tag may
        // be used again.
        for ranks in [&[4, 1, 3][..], &[1, 4], &[2, 0, 1, 3, 4], &[3]] {
            let group = world.incl(ranks).expect("group");
            if ranks.contains(&session.rank()) {
                let comm = session.create_from_group(&group, "part").expect("part");
                assert_eq!(comm.group(), &group);
                assert_eq!(sum_of(&comm), (ranks.len() * (ranks.len() + 1) / 2) as u64);
            }
        }
        // Two groups.
        let (a, b) = ([3, 0], [1, 4, 2]);
        let groups = [a.as_slice(), &b].map(|r| world.incl(r).expect("group"));
        let side = usize::from(b.contains(&session.rank()));
        let inter = session
            .intercomm_create_from_groups(&groups[side], 0, &groups[1 - side], 0, "two")
            .expect("inter");
        assert_eq!(inter.group(), &groups[side]);
        assert_eq!(inter.remote_group().expect("inter"), &groups[1 - side]);
        // Leader 3 of the first group comes after leader 1 of the second.
        let merged = inter.merge(false).expect("merge");
        assert_eq!(
            merged.group().world_ranks().collect::<Vec<_>>(),
            [1, 4, 2, 3, 0]
        );
        assert_eq!(sum_of(&merged), 15);
    });
}

#[test]
fn threads_create_at_once_told_apart_by_tags() {
    const THREADS: usize = 4;
    let contexts = Mutex::new(HashSet::new());
    universes(4, |universe| {
        let session = universe.session();
        let world = session.group("mpi://WORLD").expect("world");
        std::thread::scope(|s| {
            for thread in 0..THREADS {
                let (session, world, contexts) = (&session, &world, &contexts);
                s.spawn(move || {
                    for round in 0..10 {
                        // Another part of the world in each thread and round.
                        let skip = (thread + round) % 5;
                        let skipped: &[usize] = if skip < 4 { &[skip] } else { &[] };
                        let group = world.excl(skipped).expect("group");
                        if group.rank_of(session.rank()).is_none() {
                            continue;
                        }
                        let tag = format!("thread {thread}");
                        let comm = session.create_from_group(&group, &tag).expect("made");
                        let n = group.size() as u64;
                        assert_eq!(sum_of(&comm), n * (n + 1) / 2);
                        let mut who = [thread as u64];
                        comm.bcast(&mut who, 0).expect("bcast");
                        assert_eq!(who, [thread as u64]);
                        if comm.rank() == 0 {
                            assert!(contexts.lock().expect("lock").insert(comm.context()));
                        }
                    }
                });
            }
        });
        universe.world().barrier().expect("barrier");
        contexts.lock().expect("lock").clear();
        universe.world().barrier().expect("barrier");
    });
}

#[test]
fn create_group_needs_members_only() {
    on_all(5, |comm| {
        let group = comm.group().incl(&[4, 0, 2]).expect("group");
        if group.rank_of(comm.rank()).is_some() {
            let part = comm.create_group(&group, 7).expect("part");
            assert_eq!(part.group(), &group);
            assert_eq!(sum_of(&part), 6);
            let inner = part.create_group(&group.incl(&[1, 0]).expect("group"), 7);
            match part.rank() {
                2 => drop(fails(inner, ErrorKind::Rank, &["no member", "hint"])),
                _ => assert_eq!(sum_of(&inner.expect("inner")), 3),
            }
        } else {
            fails(
                comm.create_group(&group, 7),
                ErrorKind::Rank,
                &["no member", "hint"],
            );
        }
        fails(
            comm.create_group(comm.group(), -1),
            ErrorKind::Tag,
            &["hint"],
        );
        let strange = Group::from_world_ranks(&[comm.rank(), 17]).expect("group");
        fails(
            comm.create_group(&strange, 0),
            ErrorKind::Group,
            &["rank 17", "hint"],
        );
        // Disjoint groups in one call of create.
        let mine = if comm.rank() < 2 {
            [0, 1].as_slice()
        } else {
            &[4, 2, 3]
        };
        let group = comm.group().incl(mine).expect("group");
        let part = comm.create(&group).expect("create").expect("a member");
        assert_eq!(part.group(), &group);
        comm.barrier().expect("barrier");
    });
}

#[test]
fn members_with_different_groups_all_get_an_error() {
    universes(4, |universe| {
        let session = universe.session();
        let world = session.group("mpi://WORLD").expect("world");
        let mine = match session.rank() {
            2 => world.incl(&[0, 1, 3, 2]).expect("group"),
            _ => world.clone(),
        };
        // Rank 2 is rank 3 of its group and looks elsewhere: what it hears is
        // not certain, but that it is an error is.
        let made = session.create_from_group(&world.incl(&[0, 1, 2, 3]).expect("g"), "x");
        assert_eq!(sum_of(&made.expect("they agree")), 10);
        let long = "x".repeat(256);
        fails(
            session.create_from_group(&mine, &long),
            ErrorKind::Tag,
            &["256", "hint"],
        );
        let others = world.excl(&[session.rank()]).expect("group");
        fails(
            session.create_from_group(&others, "y"),
            ErrorKind::Rank,
            &["no member", "hint"],
        );
        fails(
            session.create_from_group(&Group::empty(), "y"),
            ErrorKind::Rank,
            &["hint"],
        );
        fails(
            session.group("mpi://NOWHERE"),
            ErrorKind::Argument,
            &["mpi://WORLD", "hint"],
        );
        let (a, b) = (
            world.incl(&[0, 1]).expect("g"),
            world.incl(&[1, 2]).expect("g"),
        );
        fails(
            session.intercomm_create_from_groups(&a, 0, &b, 0, "z"),
            ErrorKind::Argument,
            &["both sides", "disjoint"],
        );
        fails(
            session.intercomm_create_from_groups(&a, 0, &Group::empty(), 0, "z"),
            ErrorKind::Argument,
            &["2 and 0 ranks"],
        );
        // Every rank passes a tree of the same shape with another order at the
        // end: ranks 0 and 1 agree with each other and not with 2 and 3.
        let other = Group::from_world_ranks(&[0, 1, 2]).expect("group");
        if session.rank() < 3 {
            let given = if session.rank() == 1 {
                Group::from_world_ranks(&[0, 1, 3]).expect("group")
            } else {
                other
            };
            let made = session.create_from_group(&given, "w");
            fails(made, ErrorKind::Argument, &["different groups", "hint"]);
        }
        universe.world().barrier().expect("barrier");
    });
}

#[test]
fn a_dead_member_is_an_error_for_the_living() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        let survivors = Mutex::new(0);
        let run = || {
            universes_on(&network, 4, |universe| {
                if universe.world().rank() == 2 {
                    return;
                }
                let session = universe.session();
                let world = session.group("mpi://WORLD").expect("world");
                let made = session.create_from_group(&world, "x");
                fails(made, ErrorKind::RankDead, &[]);
                let rest = world.excl(&[2]).expect("group");
                let comm = session.create_from_group(&rest, "x").expect("the living");
                assert_eq!(sum_of(&comm), 6);
                *survivors.lock().expect("lock") += 1;
            })
        };
        run();
        assert_eq!(survivors.into_inner().expect("lock"), 3);
    }
}

#[test]
fn sessions_outlive_each_other() {
    universes(2, |universe| {
        let first = universe.session();
        let second = first.another();
        let world = second.group("mpi://WORLD").expect("world");
        let one = first.create_from_group(&world, "one").expect("one");
        drop(first);
        let two = second.create_from_group(&world, "two").expect("two");
        assert_eq!((sum_of(&one), sum_of(&two)), (3, 3));
        assert_eq!(
            second.info().get("thread_level"),
            Some("MPI_THREAD_MULTIPLE")
        );
        let size = second.process_sets().info("mpi://SELF").expect("info");
        assert_eq!(size.get("mpi_size"), Some("1"));
    });
    // Without a launcher, a session is a job of one rank.
    let session = Session::init().expect("alone");
    let names: Vec<&str> = session.process_sets().names().collect();
    assert_eq!(names, ["mpi://WORLD", "mpi://SELF"]);
    let world = session.group("mpi://WORLD").expect("world");
    assert_eq!(
        sum_of(&session.create_from_group(&world, "").expect("alone")),
        1
    );
}

/// The end of a session waits for what was sent on its communicators, not for others'.
#[test]
fn a_session_ends_beside_messages_of_the_world() {
    universes(2, |universe| {
        let (world, large) = (universe.world(), vec![7u8; 1 << 21]);
        if world.rank() == 0 {
            universe.attach_automatic().expect("room");
            world.bsend(&large, 1, 0).expect("a send");
            let session = universe.session();
            let group = session.group("mpi://SELF").expect("a group");
            let comm = session.create_from_group(&group, "x").expect("one");
            session.attach_automatic().expect("room");
            comm.bsend(&[1u8], 0, 0).expect("a send");
            comm.recv(&mut [0u8], 0, 0).expect("it");
            drop(comm);
            drop(session);
            // Only now the other rank asks for the large one.
            world.send(&[1u8], 1, 1).expect("a send");
            universe.detach_buffer();
        } else {
            let mut got = vec![0u8; 1 << 21];
            world.recv(&mut [0u8], 0, 1).expect("a word");
            world.recv(&mut got, 0, 0).expect("the large one");
            assert_eq!(got, large);
        }
    });
}
