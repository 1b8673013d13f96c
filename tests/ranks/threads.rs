//! Many threads of one rank at once.

use crate::support::{Random, on_all, on_threads, pattern};
use osier::requests::wait_any;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, Op};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Long enough that whoever waits has gone to sleep.
const NAP: Duration = Duration::from_millis(15);

const SIZES: [usize; 4] = [8, 3_000, 70_000, 300_000];

fn bounce(comm: &Communicator, tag: usize, rounds: usize) {
    let peer = comm.rank() ^ 1;
    for i in 0..rounds {
        let n = SIZES[(i * i + tag) % if i % 8 == 0 { 4 } else { 2 }];
        let mut got = vec![0; n];
        if comm.rank() & 1 == 0 {
            comm.send(&pattern(n, tag + i), peer, tag).expect("send");
            comm.recv(&mut got, peer, tag).expect("recv");
        } else {
            comm.recv(&mut got, peer, tag).expect("recv");
            comm.ssend(&pattern(n, tag + i), peer, tag).expect("ssend");
        }
        assert!(got == pattern(n, tag + i), "round {i}, tag {tag}");
    }
}

#[test]
fn threads_share_a_communicator() {
    on_threads(2, |comm| {
        std::thread::scope(|s| {
            for tag in 0..4 {
                let comm = &comm;
                s.spawn(move || bounce(comm, tag, 150));
            }
        });
    });
}

#[test]
fn threads_have_communicators_of_their_own() {
    on_threads(2, |comm| {
        let own: Vec<_> = (0..4).map(|_| comm.dup().expect("dup")).collect();
        std::thread::scope(|s| {
            for (i, comm) in own.iter().enumerate() {
                s.spawn(move || bounce(comm, 7 * i, 150));
            }
        });
    });
}

#[test]
fn threads_mix_communicators_requests_and_probes() {
    on_threads(4, |comm| {
        let other = comm.dup().expect("dup");
        std::thread::scope(|s| {
            let (comm, other) = (&comm, &other);
            s.spawn(move || bounce(comm, 1, 80));
            s.spawn(move || bounce(other, 1, 80));
            s.spawn(move || {
                let (me, n) = (other.rank(), other.size());
                for i in 0..30 {
                    let mut requests: Vec<_> = (0..n)
                        .map(|from| other.irecv(vec![0; 5_000], from, 50).expect("irecv"))
                        .collect();
                    for to in 0..n {
                        let data = pattern(5_000, i + me);
                        drop(other.isend(data, to, 50).expect("isend"));
                    }
                    while let Some((_, result)) = wait_any(&mut requests) {
                        let (got, status) = result.expect("received");
                        let from = status.source().expect("a sender");
                        assert!(got == pattern(5_000, i + from));
                    }
                }
            });
            s.spawn(move || {
                let (me, n) = (comm.rank(), comm.size());
                for i in 0..30 {
                    let to = (me + 1) % n;
                    comm.send(&pattern(100, i), to, 60).expect("send");
                    let message = comm.mprobe(ANY_SOURCE, 60).expect("mprobe");
                    let (got, _) = message.recv_vec::<u8>().expect("recv");
                    assert!(got == pattern(100, i));
                }
            });
        });
        comm.barrier().expect("barrier");
    });
}

/// One rank naps between messages, so that all threads of the other have gone
/// to sleep: one on the doorbell, the others behind it.
#[test]
fn sleepers_are_woken() {
    const THREADS: usize = 4;
    on_threads(2, |comm| {
        let own: Vec<_> = (0..THREADS).map(|_| comm.dup().expect("dup")).collect();
        let rounds = 12;
        std::thread::scope(|s| {
            for (tag, own) in own.iter().enumerate() {
                let comm = &comm;
                s.spawn(move || {
                    // Half of the threads share a communicator.
                    let comm = if tag % 2 == 0 { comm } else { own };
                    let mut random = Random::new(tag as u64);
                    for i in 0..rounds {
                        let (n, naps) = (SIZES[random.below(4)], random.below(3));
                        if comm.rank() == 0 {
                            let mut got = vec![0; n];
                            comm.recv(&mut got, 1, tag).expect("recv");
                            assert!(got == pattern(n, i));
                            comm.send(&got, 1, tag).expect("answer");
                        } else {
                            std::thread::sleep(NAP * naps as u32);
                            comm.send(&pattern(n, i), 0, tag).expect("send");
                            let mut answer = vec![0; n];
                            comm.recv(&mut answer, 0, tag).expect("answer");
                            assert!(answer == pattern(n, i));
                        }
                    }
                });
            }
        });
    });
}

/// The one that sleeps on the doorbell gets its own message first and goes;
/// another must take its place.
#[test]
fn the_place_at_the_doorbell_is_handed_on() {
    const THREADS: usize = 6;
    on_threads(2, |comm| {
        for round in 0..6u64 {
            let mut order: Vec<usize> = (0..THREADS).collect();
            Random::new(round).shuffle(&mut order);
            let woken = AtomicUsize::new(0);
            std::thread::scope(|s| {
                if comm.rank() == 0 {
                    for tag in 0..THREADS {
                        let (comm, woken) = (&comm, &woken);
                        s.spawn(move || {
                            let mut got = 0u64;
                            if tag % 3 == 2 {
                                comm.probe(1, tag).expect("probe");
                            }
                            comm.recv(&mut got, 1, tag).expect("recv");
                            assert_eq!(got, tag as u64);
                            woken.fetch_add(1, Ordering::SeqCst);
                        });
                    }
                } else {
                    for tag in order {
                        std::thread::sleep(NAP);
                        comm.send(&(tag as u64), 0, tag).expect("send");
                    }
                }
            });
            if comm.rank() == 0 {
                assert_eq!(woken.into_inner(), THREADS);
            }
        }
    });
}

/// A thread that waits finishes the receive of another thread, which sleeps.
#[test]
fn threads_of_a_single_rank_talk() {
    on_all(1, |comm| {
        std::thread::scope(|s| {
            let comm = &comm;
            for tag in 0..3usize {
                s.spawn(move || {
                    for i in 0..15u64 {
                        let mut got = u64::MAX;
                        comm.recv(&mut got, 0, 2 * tag).expect("recv");
                        assert_eq!(got, i);
                        comm.send(&got, 0, 2 * tag + 1).expect("answer");
                    }
                });
                s.spawn(move || {
                    for i in 0..15u64 {
                        std::thread::sleep(NAP * u32::from(i % 4 == 0));
                        comm.send(&i, 0, 2 * tag).expect("send");
                        let mut got = u64::MAX;
                        comm.recv(&mut got, 0, 2 * tag + 1).expect("answer");
                        assert_eq!(got, i);
                    }
                });
            }
        });
    });
}

#[test]
fn collectives_of_several_communicators_run_at_once() {
    on_threads(4, |comm| {
        let own: Vec<_> = (0..3).map(|_| comm.dup().expect("dup")).collect();
        std::thread::scope(|s| {
            for (i, comm) in own.iter().enumerate() {
                s.spawn(move || {
                    for round in 0..60u64 {
                        let mut sum = [0; 2];
                        let mine = [comm.rank() as u64, round + i as u64];
                        comm.allreduce(&mine, &mut sum, Op::Sum).expect("allreduce");
                        assert_eq!(sum, [6, 4 * (round + i as u64)]);
                        comm.barrier().expect("barrier");
                    }
                });
            }
        });
    });
}

#[test]
fn more_ranks_than_cores_go_on() {
    on_all(16, |comm| {
        let (me, n) = (comm.rank(), comm.size());
        for round in 0..15usize {
            let mut sum = [0u64];
            comm.allreduce(&[me as u64], &mut sum, Op::Sum)
                .expect("sum");
            assert_eq!(sum, [120]);
            let peer = me ^ (1 + round % (n - 1)).min(n - 1);
            let bytes = SIZES[round % 4];
            let mut got = vec![0; bytes];
            if peer < n {
                comm.sendrecv(&pattern(bytes, me), peer, round, &mut got, peer, ANY_TAG)
                    .expect("sendrecv");
                assert!(got == pattern(bytes, peer));
            }
        }
        comm.barrier().expect("barrier");
    });
}
