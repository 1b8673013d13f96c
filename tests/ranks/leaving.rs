//! Ranks that finalize while others still have receives that only they could meet.

use crate::support::{Watchdog, fails, on_machine};
use osier::requests::{WaitSet, test_some, wait_any};
use osier::testing::{Network, ranks_on};
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};

const LEFT: ErrorKind = ErrorKind::Closed;

/// Runs `f` on `n` ranks that finalize at its end, rank 0 last: `gone` waits until so many
/// others have returned from `f`.
fn leaving(n: usize, f: impl Fn(Communicator, &dyn Fn(usize)) + Sync) {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        let over = AtomicUsize::new(0);
        ranks_on(&network, n, |comm| {
            let rank = comm.rank();
            let own = comm.clone();
            f(comm, &|number| {
                while over.load(Ordering::Acquire) < number {
                    // They may need our progress for what they send.
                    own.iprobe(rank, 0x7fff).expect("nothing comes");
                    std::thread::yield_now();
                }
            });
            if rank != 0 {
                over.fetch_add(1, Ordering::Release);
            }
        });
    }
}

/// Asks until the end of the others is known, and some more.
fn often(mut ask: impl FnMut()) {
    for _ in 0..3000 {
        ask();
        std::thread::yield_now();
    }
}

/// Three ranks, standing receives, and ranks that finalize at different moments.
#[test]
fn unreachable_receives_stay_pending_and_can_be_cancelled() {
    leaving(3, |comm, gone| {
        if comm.rank() != 0 {
            return;
        }
        let mut standing: Vec<_> = [Some(1), None, Some(2), None]
            .map(|source| match source {
                Some(rank) => comm.irecv(vec![0u8], rank, 7),
                None => comm.irecv(vec![0u8], ANY_SOURCE, ANY_TAG),
            })
            .into_iter()
            .map(|posted| posted.expect("irecv"))
            .collect();
        for number in 0..3 {
            gone(number);
            often(|| {
                assert!(test_some(&mut standing).is_empty());
                for source in [1, 2] {
                    assert!(comm.iprobe(source, 0).expect("no error").is_none());
                    assert!(comm.improbe(source, 0).expect("no error").is_none());
                }
                assert!(comm.iprobe(ANY_SOURCE, 0).expect("no error").is_none());
            });
        }
        // Posted afterwards, too.
        standing.push(comm.irecv(vec![0u8], 1, 8).expect("irecv"));
        often(|| assert!(test_some(&mut standing).is_empty()));
        for mut receive in standing {
            assert!(receive.cancel());
            assert!(receive.wait().expect("cancelled").1.cancelled());
        }
    });
}

#[test]
fn unreachable_blocking_waits_name_the_rank_that_left() {
    for way in 0..9 {
        leaving(3, |comm, gone| {
            if comm.rank() != 0 {
                return;
            }
            if way % 2 == 0 {
                gone(2);
            }
            let mut b = [0u8];
            let both = ["rank 1", "rank 2"];
            let irecv = |source: usize| comm.irecv(vec![0u8], source, 5).expect("irecv");
            match way {
                0 | 1 => drop(fails(comm.recv(&mut b, 1, 5), LEFT, &["rank 1", "tag 5"])),
                2 => drop(fails(comm.recv(&mut b, ANY_SOURCE, 5), LEFT, &both)),
                3 => drop(fails(comm.probe(2, 5), LEFT, &["rank 2"])),
                4 => drop(fails(comm.mprobe(ANY_SOURCE, ANY_TAG), LEFT, &both)),
                5 => drop(fails(irecv(2).wait(), LEFT, &["rank 2"])),
                6 => {
                    let result = comm.scope(|s| s.irecv(&mut b, 2, 5).map(drop));
                    fails(result, LEFT, &["rank 2"]);
                }
                7 => {
                    let mut all = vec![irecv(1), irecv(2)];
                    for _ in 0..2 {
                        let (_, result) = wait_any(&mut all).expect("one");
                        fails(result, LEFT, &["rank"]);
                    }
                }
                _ => {
                    // More than a report of waits has room for.
                    let mut set = WaitSet::new();
                    for n in 0..40 {
                        set.add(n, irecv(1 + n % 2)).expect("add");
                    }
                    for (n, result) in set.wait_all() {
                        fails(result, LEFT, &[["rank 1", "rank 2"][n % 2]]);
                    }
                }
            }
        });
    }
}

/// As long as one request can still end, a wait for any of them goes on.
#[test]
fn wait_any_ignores_unreachable_receives() {
    leaving(3, |comm, gone| {
        match comm.rank() {
            0 => {
                gone(1);
                let mut set = WaitSet::new();
                let mut all = Vec::new();
                for n in 0..40 {
                    let receive = comm.irecv(vec![0u8], 1, n).expect("irecv");
                    set.add(n, receive).expect("add");
                    all.push(comm.irecv(vec![0u8], 1, n).expect("irecv"));
                }
                let living = |tag: u32| comm.irecv(vec![0u8], 2, tag).expect("irecv");
                all.push(living(1));
                set.add(99, living(2)).expect("add");
                comm.send(&[1u8], 2, 0).expect("all is posted");
                let (at, result) = wait_any(&mut all).expect("one");
                assert_eq!((at, result.expect("it lives").0), (40, vec![1]));
                let (n, result) = set.wait().expect("one");
                assert_eq!((n, result.expect("it lives").0), (99, vec![2]));
                for mut receive in all {
                    assert!(receive.cancel());
                }
            }
            2 => {
                comm.recv(&mut [0u8], 0, 0).expect("all is posted");
                // Rank 0 sleeps by now, or will find it at once.
                comm.send(&[1u8], 0, 1).expect("send");
                comm.send(&[2u8], 0, 2).expect("send");
            }
            _ => {}
        }
    });
}

/// A future is a wait, whoever drives it.
#[test]
fn unreachable_futures_end_with_an_error() {
    for gone_first in [false, true] {
        leaving(3, |comm, gone| {
            if comm.rank() != 0 {
                return;
            }
            if gone_first {
                gone(2);
            }
            let irecv = |n: u32| match n {
                0 => comm.irecv(vec![0u8], 1, n).expect("irecv"),
                _ => comm.irecv(vec![0u8], ANY_SOURCE, n).expect("irecv"),
            };
            for n in [0, 1] {
                fails(comm.block_on(irecv(n)), LEFT, &["rank 1"]);
                let result = crate::futures::foreign_block_on(irecv(n));
                fails(result, LEFT, &["rank 1"]);
            }
        });
    }
}

#[test]
fn what_a_rank_sent_before_it_finalized_is_received() {
    leaving(2, |comm, gone| {
        if comm.rank() == 1 {
            for n in 0..100u64 {
                comm.send(&n, 0, 0).expect("send");
            }
            return;
        }
        gone(1);
        for n in 0..100u64 {
            let mut got = u64::MAX;
            match n % 2 {
                0 => comm.recv(&mut got, ANY_SOURCE, 0).expect("recv"),
                _ => comm.recv(&mut got, 1, 0).expect("recv"),
            };
            assert_eq!(got, n);
        }
        fails(comm.recv(&mut [0u8], 1, 0), LEFT, &["rank 1"]);
    });
}

/// What needs a rank that has left, and cannot be cancelled, ends at once.
#[test]
fn sends_and_collectives_fail_when_their_peer_has_left() {
    on_machine(2, |comm| {
        if comm.rank() == 1 {
            return;
        }
        fails(comm.recv(&mut [0u8], 1, 0), LEFT, &["rank 1"]);
        fails(comm.ssend(&[1u8], 1, 0), LEFT, &["rank 1"]);
        fails(comm.send(&vec![1u8; 2_000_000], 1, 0), LEFT, &["rank 1"]);
        let mut barrier = comm.ibarrier().expect("ibarrier");
        while !barrier.test() {
            std::thread::yield_now();
        }
        assert!(barrier.wait().is_err());
        assert!(comm.failed_ranks().is_empty());
    });
}
