//! Findings of `OSIER_CHECK`, and correct twins without any.

use crate::support::Watchdog;
use osier::testing::{Network, universes_checked};
use osier::{Datatype, Type, Universe, View, ViewMut};
use osier_engine::check::{Check, Checks, Finding, Setting};

/// Runs `f` on two ranks, on one network after the other; what each rank has
/// found by the time it has left.
fn found(checks: &str, f: impl Fn(&Universe) + Sync) -> Vec<Vec<Checks>> {
    let _watchdog = Watchdog::start();
    let checks: Setting = checks.parse().expect("a setting");
    let run = |network: &Network| {
        universes_checked(network, checks, 2, |u| {
            f(u);
            u.checks()
        })
    };
    Network::all().iter().map(run).collect()
}

/// Asserts how many findings of a kind each rank has; the texts of all.
#[track_caller]
fn expect(runs: &[Vec<Checks>], check: Check, counts: [u64; 2]) -> Vec<String> {
    let mut texts = Vec::new();
    for ranks in runs {
        for (rank, checks) in ranks.iter().enumerate() {
            let all: Vec<Finding> = checks.findings();
            for other in Check::ALL {
                let wanted = if other == check { counts[rank] } else { 0 };
                assert_eq!(
                    checks.count(other),
                    wanted,
                    "{other:?} of rank {rank}: {all:?}"
                );
            }
            texts.extend(all.iter().map(ToString::to_string));
        }
    }
    texts
}

/// Messages of these sizes, in f64s, go whole, in fragments and by rendezvous.
const SIZES: [usize; 4] = [1, 100, 3_000, 200_000];

#[test]
fn types_that_do_not_match_are_named_with_both_lines() {
    for n in SIZES {
        for early in [false, true] {
            let send_line = line!() + 5;
            let runs = found("signature", |u| {
                let world = u.world();
                if world.rank() == 0 {
                    world.barrier().expect("a barrier");
                    world.send(&vec![1.5f64; n], 1, 7).expect("a send");
                    return;
                }
                if early {
                    world.barrier().expect("a barrier");
                    world.probe(0, 7).expect("a probe");
                    let mut to = vec![0i64; n];
                    world.recv(&mut to, 0, 7).expect("a receive");
                } else {
                    let request = world.irecv(vec![0i64; n], 0, 7).expect("a receive");
                    world.barrier().expect("a barrier");
                    request.wait().expect("a message");
                }
            });
            let texts = expect(&runs, Check::Signature, [0, 1]);
            for text in &texts {
                assert!(text.contains("rank 0, tag 7"), "{text}");
                assert!(text.contains(&format!("f64 x {n} ")), "{text}");
                assert!(text.contains(&format!("i64 x {n} ")), "{text}");
                let sent = format!("{}:{}", file!(), send_line);
                assert!(text.contains(&sent), "{text}: {sent}");
                assert_eq!(text.matches(file!()).count(), 2, "{text}");
            }
        }
    }
}

#[test]
fn equal_signatures_in_other_layouts_are_no_finding() {
    let runs = found("all", |u| {
        let world = u.world();
        let column = Type::vector(50, 1, 2, &f64::datatype()).expect("a vector");
        let column = column.commit().expect("a layout");
        for n in SIZES {
            if world.rank() == 0 {
                world.send(&vec![2.0f64; n], 1, 1).expect("a send");
            } else {
                // Shorter than the receive.
                let mut to = vec![0.0f64; n + 1];
                world.recv(&mut to, 0, 1).expect("a receive");
            }
        }
        let matrix = [1.0f64; 100];
        let mut to = [0.0f64; 50];
        let (own, other) = (world.rank(), 1 - world.rank());
        let mine = View::new(&matrix, own, &column, 1).expect("a view");
        world
            .scope(|s| {
                s.irecv(&mut to, other, 2)?;
                s.isend(&mine, other, 2)?;
                Ok(())
            })
            .expect("an exchange");
        let mut both = [(0i32, 0.5f32); 3].iter().map(|p| p.0).collect::<Vec<_>>();
        world
            .sendrecv_replace(&mut both, other, 3, other, 3)
            .expect("an exchange");
        let mut sum = [0.0];
        world
            .allreduce(&[1.0], &mut sum, osier::Op::Sum)
            .expect("a sum");
    });
    for check in Check::ALL {
        expect(&runs, check, [0, 0]);
    }
}

#[test]
fn memory_that_two_receives_write_is_found() {
    let runs = found("buffers", |u| {
        let world = u.world();
        let mut memory = [0u64; 8];
        let layout = u64::layout();
        if world.rank() == 1 {
            world.barrier().expect("a barrier");
            for tag in 0..2 {
                world.send(&[3u64; 6], 0, tag).expect("a send");
            }
            return;
        }
        let base = memory.as_mut_ptr().cast::<u8>();
        let at = |element: usize| {
            let origin = base.wrapping_add(8 * element);
            // SAFETY: not so, on purpose; both write the same numbers, and
            // one thread does it.
            unsafe { ViewMut::from_raw(origin, &layout, 6) }.expect("a view")
        };
        let (mut first, mut second) = (at(0), at(2));
        world
            .scope(|s| {
                s.irecv(&mut first, 1, 0)?;
                s.irecv(&mut second, 1, 1)?;
                world.barrier()
            })
            .expect("two messages");
    });
    for text in expect(&runs, Check::Buffers, [1, 0]) {
        assert!(text.contains("tag 0") && text.contains("tag 1"), "{text}");
        assert_eq!(text.matches(file!()).count(), 2, "{text}");
    }
}

#[test]
fn interleaved_receives_and_shared_sends_are_no_finding() {
    let runs = found("buffers", |u| {
        let world = u.world();
        let mut memory = [0u64; 64];
        let every = Type::vector(32, 1, 2, &u64::datatype()).expect("a vector");
        let every = every.commit().expect("a layout");
        if world.rank() == 1 {
            world.barrier().expect("a barrier");
            let data = [3u64; 32];
            world
                .scope(|s| {
                    s.issend(&data, 0, 0)?;
                    s.issend(&data, 0, 1)?;
                    Ok(())
                })
                .expect("two sends");
            return;
        }
        let base = memory.as_mut_ptr();
        let at = |element: usize| {
            let origin = base.wrapping_add(element).cast();
            // SAFETY: the two layouts share no byte.
            unsafe { ViewMut::from_raw(origin, &every, 1) }.expect("a view")
        };
        let (mut even, mut odd) = (at(0), at(1));
        world
            .scope(|s| {
                s.irecv(&mut even, 1, 0)?;
                s.irecv(&mut odd, 1, 1)?;
                world.barrier()
            })
            .expect("two messages");
        assert_eq!(memory, [3; 64]);
    });
    expect(&runs, Check::Buffers, [0, 0]);
}

#[test]
fn a_buffer_that_changes_while_it_is_sent_is_found() {
    for n in [1, 200_000] {
        let runs = found("buffers", |u| {
            let world = u.world();
            if world.rank() == 1 {
                world.barrier().expect("a barrier");
                world.recv(&mut vec![0u64; n], 0, 5).expect("a receive");
                return;
            }
            let mut memory = vec![1u64; n];
            let base = memory.as_mut_ptr();
            // SAFETY: not so, on purpose; one thread reads and writes, but for
            // what the peer reads after the barrier.
            let view = unsafe { View::from_raw(base.cast(), &u64::layout(), n) };
            let view = view.expect("a view");
            world
                .scope(|s| {
                    s.issend(&view, 1, 5)?;
                    // SAFETY: it is ours.
                    unsafe { base.write(9) };
                    world.barrier()
                })
                .expect("a send");
        });
        for text in expect(&runs, Check::Buffers, [1, 0]) {
            assert!(
                text.contains("rank 1, tag 5") && text.contains(file!()),
                "{text}"
            );
        }
    }
}

#[test]
fn leaked_objects_are_named_at_the_end() {
    let runs = found("leaks", |u| {
        let world = u.world();
        let other = world.dup().expect("a duplicate");
        let third = world.dup().expect("a duplicate");
        if world.rank() == 0 {
            // From itself: the other may have left, which ends what needs it.
            let request = world.irecv(vec![0u8; 4], 0, 3).expect("a receive");
            std::mem::forget(request);
            std::mem::forget(other);
        }
        drop(third);
        let _freed = u.checks().track("datatype", "a column");
    });
    let texts = expect(&runs, Check::Leaks, [2, 0]);
    assert_eq!(texts.len(), 2 * Network::all().len());
    for pair in texts.chunks(2) {
        let (request, comm) = (&pair[0], &pair[1]);
        assert!(
            request.contains("never completed") && request.contains("tag 3"),
            "{request}"
        );
        assert!(comm.contains("communicator"), "{comm}");
        assert!(
            request.contains(file!()) && comm.contains(file!()),
            "{request}{comm}"
        );
    }
}

#[test]
fn a_ready_send_without_its_receive_is_named() {
    for n in SIZES {
        let runs = found("ready", |u| {
            let world = u.world();
            let peer = 1 - world.rank();
            let (mut first, mut second) = (vec![0f64; n], vec![0f64; n]);
            // Posted before.
            let request = world.irecv(vec![0f64; n], peer, 1).expect("irecv");
            world.barrier().expect("posted");
            world.rsend(&vec![1.5f64; n], peer, 1).expect("rsend");
            request.wait().expect("received");
            world
                .sendrecv(&[0u8], peer, 9, &mut [0u8], peer, 9)
                .expect("in step");
            // Too early: it is here before anybody asks for it.
            if world.rank() == 0 {
                let sent = world.irsend(vec![2.5f64; n], 1, 2).expect("irsend");
                world.send(&[0u8], 1, 3).expect("send");
                sent.wait().expect("sent");
                // An ordinary send may be early.
                world.send(&second, 1, 4).expect("send");
            } else {
                world.recv(&mut [0u8], 0, 3).expect("it is here");
                world.recv(&mut first, 0, 2).expect("received");
                assert!(first.iter().all(|x| *x == 2.5));
                world.probe(0, 4).expect("probe");
                world.recv(&mut second, 0, 4).expect("received");
            }
        });
        for text in expect(&runs, Check::Ready, [0, 1]) {
            for part in ["ready-mode", "rank 0, tag 2", "checks.rs:", "hint"] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
        }
    }
}

/// Communicators of one rank and intercommunicators, dropped in time: nothing
/// is left. One that is forgotten is named once, without what the library keeps
/// behind it.
#[test]
fn dropped_communicators_of_one_rank_are_no_leak() {
    for forget in [false, true] {
        let runs = found("all", |u| {
            let world = u.world();
            let color = world.rank() as u32;
            let own = world.split(Some(color), 0).expect("a split");
            let own = own.expect("a color");
            let bridge = Some((world, 1 - world.rank()));
            let inter = own.intercomm_create(0, bridge, 1).expect("two sides");
            let again = inter.dup().expect("a duplicate");
            let mut theirs = [0u64];
            again
                .sendrecv(&[7u64], 0, 2, &mut theirs, 0, 2)
                .expect("across the sides");
            let merged = again.merge(color == 1).expect("both");
            merged.barrier().expect("both");
            let alone = u.own().dup().expect("a duplicate");
            alone.barrier().expect("alone");
            if forget {
                std::mem::forget(inter);
            }
        });
        let texts = expect(&runs, Check::Leaks, [u64::from(forget); 2]);
        for text in texts {
            assert!(
                text.contains("communicator") && text.contains(file!()),
                "{text}"
            );
        }
    }
}

/// Every way in which calls can differ is an error on both ranks, with both lines; and the
/// next call goes well.
#[test]
fn collective_calls_that_differ_are_named() {
    use osier::{Communicator, Op, Result};
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [(Call, Call, &[&str]); 10] = [
        (
            |c| c.bcast(&mut [0u64], 0),
            |c| c.barrier(),
            &["other calls", "bcast, root 0, u64 x 1, 8 bytes", "barrier"],
        ),
        (
            |c| c.bcast(&mut [0u64], 0),
            |c| c.bcast(&mut [0u64], 1),
            &["other roots", "root 0", "root 1"],
        ),
        (
            |c| c.allreduce(&[1u8], &mut [0u8], Op::Sum),
            |c| c.allreduce(&[1u8], &mut [0u8], Op::Max),
            &["other operators", "MPI_SUM", "MPI_MAX"],
        ),
        (
            |c| c.allgather(&[1u8], &mut [0u8; 2]),
            |c| c.allgather(&[1u8; 3], &mut [0u8; 6]),
            &["other counts", "u8 x 1", "u8 x 3"],
        ),
        (
            |c| c.allreduce(&[1u32], &mut [0u32], Op::Sum),
            |c| c.allreduce(&[1f32], &mut [0f32], Op::Sum),
            &["other types", "u32 x 1", "f32 x 1"],
        ),
        (
            |c| c.allgather(&[1u8], &mut [0u8; 2]),
            |c| c.allgatherv(&[1u8], &mut [0u8; 2], &[1, 1], &[0, 1]),
            &["other calls", "allgather,", "allgatherv"],
        ),
        (
            |c| c.reduce_scatter(&[1u8; 3], &mut [0u8; 2][c.rank()..], &[2, 1], Op::Sum),
            |c| c.reduce_scatter(&[1u8; 3], &mut [0u8; 2][..c.rank() + 1], &[1, 2], Op::Sum),
            &["other counts", "reduce_scatter"],
        ),
        (
            |c| {
                c.iallreduce(vec![1u8], vec![0u8], Op::Sum)?
                    .wait()
                    .map(drop)
            },
            |c| c.ibarrier()?.wait(),
            &["other calls", "allreduce", "barrier"],
        ),
        (
            |c| {
                let mut all = c.barrier_init()?;
                all.start()?;
                all.wait()
            },
            |c| {
                let mut all = c.bcast_init(vec![0u8; 4], 1)?;
                all.start()?;
                all.wait()
            },
            &["other calls", "barrier", "bcast, nonblocking", "root 1"],
        ),
        (
            |c| c.barrier(),
            |c| c.ibarrier()?.wait(),
            &["one call waits, and one does not", "nonblocking"],
        ),
    ];
    let runs = found("collectives", |u| {
        let world = u.world();
        for (mine, theirs, parts) in &calls {
            let call = if world.rank() == 0 { mine } else { theirs };
            let e = call(world).expect_err(parts[0]).to_string();
            for part in *parts {
                assert!(e.contains(part), "{part:?}: {e}");
            }
            assert!(e.contains("rank 0") && e.contains("rank 1"), "{e}");
            assert_eq!(e.matches(file!()).count(), 2, "{e}");
            world.barrier().expect("goes on");
        }
        // What is right is left in peace: blocks that only their ranks know, other layouts, two
        // groups.
        let rank = world.rank();
        let mut all = [0u8; 3];
        world
            .gatherv(&vec![1u8; rank + 1], &mut all, &[1, 2], &[0, 1], 0)
            .expect("gatherv");
        let own = world
            .split(Some(rank as u32), 0)
            .expect("split")
            .expect("a color");
        let inter = own
            .intercomm_create(0, Some((world, 1 - rank)), 0)
            .expect("two");
        let root = if rank == 0 { osier::ROOT } else { 0.into() };
        inter.bcast(&mut [rank], root).expect("bcast");
        let mut theirs = vec![0u8; 1 + rank];
        inter
            .allgather(&vec![1u8; 2 - rank], &mut theirs)
            .expect("allgather");
        // An error of one rank alone is its own, and the other hears of it.
        let room = vec![0u8; 2 + rank];
        let e = world.allgather(&[1u8], &mut room.clone());
        assert!(e.is_err());
        world.barrier().expect("goes on");
    });
    let texts = expect(&runs, Check::Collectives, [10, 0]);
    for text in &texts {
        assert!(text.contains("collective calls do not match"), "{text}");
        assert!(text.contains("hint"), "{text}");
    }
}
