//! Revoked communicators: what waits on them ends, what was lent is not read, and the ranks go on.

use crate::support::{Random, Watchdog, fails, on_all, on_threads, one_fails, pattern};
use osier::requests::{WaitSet, wait_any};
use osier::testing::{Network, ranks_on};
use osier::{ANY_SOURCE, Communicator, ErrorKind, IN_PLACE, Op};

fn sum(comm: &Communicator) -> u64 {
    let mut sum = [0u64];
    comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("a sum");
    sum[0]
}

/// What a rank does on a communicator that another one revokes.
type Waits = fn(&Communicator) -> osier::Result<()>;

const WAITS: [(&str, Waits); 12] = [
    ("receive", |comm| comm.recv(&mut [0u8], 0, 1).map(drop)),
    ("receive from any", |comm| {
        comm.recv(&mut [0u8], ANY_SOURCE, 1).map(drop)
    }),
    ("probe", |comm| comm.probe(0, 1).map(drop)),
    ("long send", |comm| comm.send(&vec![1u8; 3 << 20], 0, 1)),
    ("synchronous send", |comm| comm.ssend(&[1u8], 0, 1)),
    ("barrier", |comm| comm.barrier()),
    ("allreduce", |comm| {
        comm.allreduce(&[1u64], &mut [0u64], Op::Sum)
    }),
    ("long allreduce", |comm| {
        let mine = vec![1u64; 1 << 17];
        comm.allreduce(&mine, &mut vec![0u64; 1 << 17], Op::Sum)
    }),
    ("long alltoall", |comm| {
        let mine = vec![1u8; comm.size() << 18];
        comm.alltoall(&mine, &mut vec![0u8; comm.size() << 18])
    }),
    ("long allgather", |comm| {
        comm.allgather(&vec![1u8; 1 << 18], &mut vec![0u8; comm.size() << 18])
    }),
    ("bcast", |comm| comm.bcast(&mut vec![0u8; 1 << 20], 0)),
    ("dup", |comm| comm.dup().map(drop)),
];

/// All ranks but rank 0 wait for it, which revokes.
#[test]
fn whatever_waits_ends() {
    on_all(4, |comm| {
        for (name, waits) in WAITS {
            let own = comm.dup().expect("a duplicate");
            match own.rank() {
                0 => {
                    assert!(!own.is_revoked(), "{name}");
                    own.revoke();
                }
                _ => {
                    let Err(e) = waits(&own) else {
                        panic!("{name} by {:?} has no error", own.transport(0));
                    };
                    assert_eq!(e.kind(), ErrorKind::Revoked, "{name}: {e}");
                }
            }
            assert!(own.is_revoked(), "{name}");
            // Every later call is refused, on every rank.
            for (name, waits) in WAITS {
                let e = waits(&own).expect_err(name);
                assert_eq!(e.kind(), ErrorKind::Revoked, "later {name}: {e}");
            }
            fails(
                own.isend(vec![0u8], 0, 1),
                ErrorKind::Revoked,
                &["send to rank 0"],
            );
            fails(
                own.irecv(vec![0u8], 0, 1),
                ErrorKind::Revoked,
                &["receive from rank 0", "agree and shrink"],
            );
            let mut all = [own.rank() as u64];
            let later = own.allreduce(&IN_PLACE, &mut all, Op::Sum);
            fails(later, ErrorKind::Revoked, &["hint"]);
            let agreed = own.agree(!(1 << own.rank())).expect("an agreement");
            assert_eq!((agreed.flags, agreed.failed), (!0b1111, vec![]), "{name}");
            let living = own.shrink().expect("a communicator");
            assert!(!living.is_revoked());
            assert_eq!(sum(&living), 4, "{name}");
            own.revoke(); // again
        }
        assert_eq!(sum(&comm), 4, "its parent is another communicator");
    });
}

/// Requests that are in flight, of all kinds, and messages that no receive has asked for.
#[test]
fn requests_in_flight_end() {
    on_all(3, |comm| {
        let own = comm.dup().expect("a duplicate");
        let next = (own.rank() + 1) % 3;
        own.send(&[7u8], next, 9).expect("a short send");
        let received = own.irecv(vec![0u8], ANY_SOURCE, 1).expect("a receive");
        let sent = own.isend(vec![1u8; 1 << 20], next, 2).expect("a send");
        let summed = match own.rank() {
            2 => None,
            _ => {
                let summed = own.iallreduce(vec![1u64; 1 << 14], vec![0u64; 1 << 14], Op::Sum);
                Some(summed.expect("a collective"))
            }
        };
        comm.barrier().expect("all have begun");
        if own.rank() == 2 {
            own.revoke();
        }
        fails(received.wait(), ErrorKind::Revoked, &["any rank"]);
        fails(sent.wait(), ErrorKind::Revoked, &["send to"]);
        if let Some(summed) = summed {
            fails(summed.wait(), ErrorKind::Revoked, &["allreduce"]);
        }
        // What came before cannot be received any more.
        let before = own.recv(&mut [0u8], (own.rank() + 2) % 3, 9);
        fails(before, ErrorKind::Revoked, &["tag 9"]);
        assert!(own.iprobe(ANY_SOURCE, 9).is_err());
        assert_eq!(sum(&own.shrink().expect("a communicator")), 3);
    });
}

/// The first of the others knows that it has died, and revokes if it has heard nothing else; the
/// others wait for ranks that live.
#[test]
fn a_rank_that_revokes_and_dies_is_heard() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        for n in [2, 3, 5] {
            one_fails(&network, n, |comm| {
                let own = comm.dup().expect("a duplicate");
                let rank = own.rank();
                if rank == n - 1 {
                    own.revoke();
                    return true;
                }
                let from = if rank == 0 { n - 1 } else { rank - 1 };
                let e = own.recv(&mut [0u8], from, 1).expect_err("an error");
                let dead = rank == 0 && e.kind() == ErrorKind::RankDead;
                assert!(dead || e.kind() == ErrorKind::Revoked, "{e}");
                if rank == 0 {
                    own.revoke();
                }
                let living = own.shrink().expect("a communicator");
                assert!(living.size() == n - 1, "{living:?}");
                assert_eq!(sum(&living), n as u64 - 1);
                false
            });
        }
    }
}

/// Persistent calls that were started in another order at each rank, and one beside calls in order:
/// each waits for ranks that are in another call.
#[test]
fn calls_in_other_orders_end() {
    on_threads(3, |comm| {
        for bytes in [8, 200_000] {
            let own = comm.dup().expect("a duplicate");
            let (rank, size) = (own.rank(), own.size());
            let call = || {
                let (mine, all) = (vec![1u8; bytes], vec![0u8; bytes * size]);
                own.allgather_init(mine, all).expect("a request")
            };
            let mut calls = [call(), call(), call()];
            for call in &mut calls {
                call.start().expect("started");
                call.wait().expect("a call");
            }
            comm.barrier().expect("alive");
            calls[rank].start().expect("started");
            let in_order = (rank == 1).then(|| {
                let (mine, all) = (vec![1u8; bytes], vec![0u8; bytes * size]);
                own.iallgather(mine, all).expect("a call")
            });
            comm.barrier().expect("alive");
            if rank == 2 {
                own.revoke();
            }
            fails(calls[rank].wait(), ErrorKind::Revoked, &["allgather"]);
            if let Some(in_order) = in_order {
                fails(in_order.wait(), ErrorKind::Revoked, &["allgather"]);
            }
            fails(calls[0].start(), ErrorKind::Revoked, &["hint"]);
            assert_eq!(sum(&own.shrink().expect("a communicator")), 3);
        }
    });
}

/// Ranks that have nothing to do there pass a revocation on, though they only test requests of
/// another communicator.
#[test]
fn idle_members_pass_it_on() {
    on_threads(4, |comm| {
        let own = comm.dup().expect("a duplicate");
        match own.rank() {
            0 => {
                comm.barrier().expect("all are there");
                own.revoke();
                comm.recv(&mut [0u8], 3, 7).expect("it has heard");
            }
            3 => {
                comm.barrier().expect("all are there");
                let waited = own.recv(&mut [0u8], 0, 1);
                fails(waited, ErrorKind::Revoked, &["rank 0"]);
                for to in [0, 1, 2] {
                    comm.send(&[1u8], to, 7).expect("send");
                }
            }
            _ => {
                let mut heard = comm.irecv(vec![0u8], 3, 7).expect("a receive");
                comm.barrier().expect("all are there");
                while !heard.test() {}
            }
        }
    });
}

/// A matched probe has taken a message before, and another message has not been asked for.
#[test]
fn messages_that_are_matched_are_delivered() {
    on_threads(2, |comm| {
        let own = comm.dup().expect("a duplicate");
        for bytes in [1, 3 << 20] {
            let own = own.dup().expect("a duplicate");
            match own.rank() {
                0 => {
                    let matched = own.issend(pattern(bytes, 1), 1, 1).expect("a send");
                    let lost = own.issend(pattern(bytes, 2), 1, 2).expect("a send");
                    comm.recv(&mut [0u8; 0], 1, 0).expect("it is matched");
                    own.revoke();
                    matched.wait().expect("delivered");
                    fails(lost.wait(), ErrorKind::Revoked, &["tag 2"]);
                }
                _ => {
                    let message = own.mprobe(0, 1).expect("a message");
                    comm.send(&[0u8; 0], 0, 0).expect("send");
                    while !own.is_revoked() {}
                    let mut received = vec![0u8; bytes];
                    message.recv(&mut received).expect("delivered");
                    assert!(received == pattern(bytes, 1));
                }
            }
            assert_eq!(own.agree(1).expect("an agreement").flags, 1);
        }
    });
}

/// A set that is only tested gets its agreements.
#[test]
fn a_set_that_is_tested_gets_its_agreements() {
    on_all(3, |comm| {
        let mut set = WaitSet::new();
        for key in 0..4u64 {
            set.add(key, comm.iagree(key)).expect("added");
        }
        let mut seen = 0;
        while seen < 4 {
            if let Some((key, agreed)) = set.test() {
                assert_eq!(agreed.expect("an agreement").flags, key);
                seen += 1;
            }
        }
    });
}

/// Several agreements are in flight, in sets of requests and as futures.
#[test]
fn agreements_need_not_be_waited_for_at_once() {
    on_all(3, |comm| {
        let flags = |round: usize| !(1u64 << (comm.rank() + 3 * round));
        let mut pending: Vec<_> = (0..6).map(|round| comm.iagree(flags(round))).collect();
        let smaller = comm.ishrink().expect("begun");
        drop(comm.iagree(0));
        let expected = |round: usize| !(0b111u64 << (3 * round));
        let mut rounds: Vec<usize> = (0..6).collect();
        while !pending.is_empty() {
            let (at, agreed) = wait_any(&mut pending).expect("one is complete");
            let round = rounds.swap_remove(at);
            assert_eq!(agreed.expect("an agreement").flags, expected(round));
        }
        assert_eq!(sum(&smaller.wait().expect("a communicator")), 3);
        let (first, second) = comm.block_on(async {
            let first = comm.iagree(flags(0));
            let second = comm.iagree(flags(1));
            (second.await, first.await)
        });
        assert_eq!(first.expect("an agreement").flags, expected(1));
        assert_eq!(second.expect("an agreement").flags, expected(0));
        let mut one = comm.iagree(u64::MAX);
        while !one.test() {}
        assert_eq!(one.wait().expect("an agreement").flags, u64::MAX);
    });
}

/// Members that make other calls at the same place are told, and stay in step.
#[test]
fn who_agrees_where_others_shrink_is_told() {
    on_all(3, |comm| {
        for one in 0..3 {
            let hint = ["some members agree where others shrink"];
            match comm.rank() == one {
                true => fails(comm.shrink(), ErrorKind::Argument, &hint),
                false => fails(comm.agree(1), ErrorKind::Argument, &hint),
            };
            assert_eq!(comm.agree(1).expect("an agreement").flags, 1);
        }
        assert_eq!(sum(&comm.shrink().expect("a communicator")), 3);
    });
}

/// Both groups of an intercommunicator agree, shrink and learn of a revocation.
#[test]
fn two_groups_go_on_without_a_rank_that_fails() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        for failing in [0, 1, 4] {
            one_fails(&network, 5, |comm| {
                let rank = comm.rank();
                let side = comm.split(Some(u32::from(rank > 1)), 0).expect("split");
                let side = side.expect("a color");
                let bridge = Some((&comm, if rank > 1 { 0 } else { 2 }));
                let inter = side.intercomm_create(0, bridge, 7).expect("two sides");
                let agreed = inter.agree(!(1 << rank)).expect("an agreement");
                assert_eq!((agreed.flags, agreed.failed), (!0b11111, vec![]));
                if rank == failing {
                    return true;
                }
                let waited = match rank {
                    0 | 2 => {
                        inter.revoke();
                        Ok(())
                    }
                    _ => inter.recv(&mut [0u8], 1, 3).map(drop),
                };
                if let Err(e) = waited {
                    let kinds = [ErrorKind::Revoked, ErrorKind::RankDead];
                    assert!(kinds.contains(&e.kind()), "{e}");
                }
                while !inter.is_revoked() {
                    std::thread::yield_now();
                }
                fails(inter.barrier(), ErrorKind::Revoked, &["barrier"]);
                fails(inter.ssend(&[0u8], 0, 3), ErrorKind::Revoked, &["rank 0"]);
                let there = (failing > 1) != (rank > 1);
                let place = if failing > 1 { failing - 2 } else { failing };
                let agreed = inter.iagree(1).wait().expect("an agreement");
                let expected = if there { vec![place] } else { vec![] };
                assert_eq!((agreed.flags, agreed.failed), (1, expected));
                assert!(!agreed.acknowledged);
                while there && inter.failed_ranks().is_empty() {
                    std::thread::yield_now();
                }
                // Each acknowledges failures of both sides, when it knows of them.
                let acknowledged = || {
                    inter.acknowledge_failures();
                    inter.agree(1).expect("an agreement").acknowledged
                };
                while !acknowledged() {}
                let living = inter.ishrink().expect("begun").wait().expect("two groups");
                assert!(living.is_inter());
                let of =
                    |first: bool| if first { 2 } else { 3 } - usize::from((failing < 2) == first);
                assert_eq!(living.size(), of(rank < 2));
                assert_eq!(living.remote_size().expect("two groups"), of(rank > 1));
                assert_eq!(sum(&living), of(rank > 1) as u64);
                false
            });
        }
    }
}

/// Messages and collectives are under way when a rank revokes. A rank that gets an error
/// overwrites its buffers at once; one that gets none has the right bytes.
#[test]
fn memory_is_not_read_behind_an_error() {
    on_threads(4, |comm| {
        let rounds = if crate::support::simulated(&comm) {
            5
        } else {
            30
        };
        for round in 0..rounds {
            revoked_at_random(&comm, round, 80_000);
        }
        // Short calls, of which many are under way.
        for round in 0..4 * rounds {
            revoked_at_random(&comm, round, 24);
        }
    });
}

fn revoked_at_random(comm: &Communicator, round: usize, bytes: usize) {
    let own = comm.dup().expect("a duplicate");
    let (rank, size) = (own.rank(), own.size());
    // The same on all ranks; the rank that revokes does so somewhere among its own calls.
    let mut shared = Random::new(round as u64 * 2 + 1);
    let revokes = shared.below(size);
    let at = shared.below(if bytes > 1000 { 8 } else { 40 });
    let mut call = 0;
    // Buffers of calls, which must stay as they are behind these.
    let mut behind = Vec::new();
    loop {
        if rank == revokes && call == at {
            own.revoke();
        }
        let what = shared.below(5);
        let mut mine = pattern(bytes, rank + call);
        let mut all = vec![0u8; bytes * size];
        let peer = rank ^ 1;
        let result = match what {
            0 => own.allgather(&mine, &mut all),
            1 => {
                let sent = pattern(bytes * size, rank + call);
                let result = own.alltoall(&sent, &mut all);
                if result.is_ok() {
                    for (from, got) in all.chunks(bytes).enumerate() {
                        let whole = pattern(bytes * size, from + call);
                        assert!(got == &whole[rank * bytes..][..bytes], "{round}: {call}");
                    }
                }
                result
            }
            2 => own
                .sendrecv(&mine, peer, 5, &mut all[..bytes], peer, 5)
                .map(drop),
            3 => {
                let root = call % size;
                let mut data = pattern(bytes, root + call);
                if rank != root {
                    data.fill(0);
                }
                let result = own.bcast(&mut data, root);
                if result.is_ok() {
                    assert!(data == pattern(bytes, root + call), "{round}: {call}");
                }
                data.fill(0xee);
                result
            }
            _ => {
                let sum = own.allreduce(&mine, &mut all[..bytes], Op::BitXor);
                if sum.is_ok() {
                    let mut expected = vec![0u8; bytes];
                    for from in 0..size {
                        let theirs = pattern(bytes, from + call);
                        expected.iter_mut().zip(theirs).for_each(|(a, b)| *a ^= b);
                    }
                    assert!(all[..bytes] == expected, "{round}: {call}");
                }
                sum
            }
        };
        match (&result, what) {
            (Ok(()), 0) => {
                for (from, got) in all.chunks(bytes).enumerate() {
                    assert!(got == pattern(bytes, from + call), "{round}: {call}");
                }
            }
            (Ok(()), 2) => {
                assert!(
                    all[..bytes] == pattern(bytes, peer + call),
                    "{round}: {call}"
                );
            }
            _ => {}
        }
        // No rank may read or write these any more.
        mine.fill(0xee);
        all.fill(0xee);
        behind.push((mine, all));
        if let Err(e) = result {
            assert_eq!(e.kind(), ErrorKind::Revoked, "{round}: {call}: {e}");
            break;
        }
        call += 1;
    }
    let living = own.shrink().expect("a communicator");
    assert_eq!(living.size(), size);
    for (call, (mine, all)) in behind.iter().enumerate() {
        let same = |bytes: &[u8]| bytes.iter().all(|b| *b == 0xee);
        assert!(same(mine) && same(all), "{round}: {call}");
    }
}

/// A communicator of one rank.
#[test]
fn one_rank_alone_is_revoked() {
    ranks_on(&Network::Shm, 1, |comm| {
        let own = comm.dup().expect("a duplicate");
        assert_eq!(sum(&own), 1);
        own.revoke();
        let later = own.allreduce(&[1u64], &mut [0u64], Op::Sum);
        fails(later, ErrorKind::Revoked, &["hint"]);
        fails(own.send(&[1u8], 0, 0), ErrorKind::Revoked, &["send"]);
        fails(own.barrier(), ErrorKind::Revoked, &["barrier"]);
        assert_eq!(own.agree(5).expect("an agreement").flags, 5);
        assert_eq!(sum(&own.shrink().expect("a communicator")), 1);
    });
}
