//! More ranks than threads: what blocks suspends the rank, on one worker and on two.

#[allow(dead_code, reason = "shared with tests of ranks as threads")]
#[path = "ranks/support.rs"]
mod support;

use crate::support::{Watchdog, fails, one_fails};
use osier::requests::{Callbacks, WaitSet, wait_all, wait_any};
use osier::task::{give_turn, ranks, ranks_async};
use osier::testing::Network;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, Op};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const N: usize = 16;

/// On one worker, and on two.
fn on_workers(n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    for workers in [1, 2] {
        let ended = ranks(n, workers, &f).expect("ranks");
        assert_eq!(ended.len(), n);
    }
}

#[test]
fn results_come_in_rank_order() {
    let _watchdog = Watchdog::start();
    for workers in [1, 2, 3, 100] {
        let numbers = ranks(5, workers, |comm| (comm.rank(), comm.size())).expect("ranks");
        assert_eq!(numbers, [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]);
    }
}

#[test]
fn no_ranks_and_no_workers_are_refused() {
    for (n, workers) in [(0, 1), (1, 0), (1 << 30, 1)] {
        let parts = ["virtual ranks on", "hint"];
        fails(ranks(n, workers, |_| ()), ErrorKind::Argument, &parts);
    }
}

#[test]
fn ring() {
    on_workers(N, |comm| {
        let (next, previous) = ((comm.rank() + 1) % N, (comm.rank() + N - 1) % N);
        for bytes in [8, 4000, 100_000] {
            let mut token = vec![comm.rank() as u8; bytes];
            for _ in 0..3 {
                if comm.rank() == 0 {
                    comm.send(&token, next, 7).expect("send");
                    comm.recv(&mut token, previous, 7).expect("recv");
                } else {
                    comm.recv(&mut token, previous, 7).expect("recv");
                    comm.send(&token, next, 7).expect("send");
                }
                assert!(token.iter().all(|byte| *byte == 0));
            }
        }
    });
}

#[test]
fn collectives() {
    on_workers(N, |comm| {
        let rank = comm.rank();
        for elements in [1, 1000, 40_000] {
            let mut sums = vec![0u64; elements];
            comm.allreduce(&vec![rank as u64; elements], &mut sums, Op::Sum)
                .expect("allreduce");
            assert!(sums.iter().all(|sum| *sum == (N * (N - 1) / 2) as u64));
        }
        for _ in 0..3 {
            comm.barrier().expect("barrier");
            let out: Vec<usize> = (0..N).map(|to| rank * N + to).collect();
            let mut into = vec![0; N];
            comm.alltoall(&out, &mut into).expect("alltoall");
            let expected: Vec<usize> = (0..N).map(|from| from * N + rank).collect();
            assert_eq!(into, expected);
        }
        let mut word = [if rank == 5 { 17 } else { 0 }];
        comm.bcast(&mut word, 5).expect("bcast");
        assert_eq!(word, [17]);
    });
}

#[test]
fn many_ranks_on_one_worker() {
    const MANY: usize = 64;
    let _watchdog = Watchdog::start();
    ranks(MANY, 1, |comm| {
        let rank = comm.rank();
        let (next, previous) = ((rank + 1) % MANY, (rank + MANY - 1) % MANY);
        let mut token = [0usize];
        for round in 0..100 {
            comm.sendrecv(&[rank + round], next, 0, &mut token, previous, 0)
                .expect("sendrecv");
            assert_eq!(token, [previous + round]);
        }
        let mut sum = [0usize];
        for _ in 0..20 {
            comm.allreduce(&[rank], &mut sum, Op::Sum)
                .expect("allreduce");
            assert_eq!(sum, [MANY * (MANY - 1) / 2]);
            comm.barrier().expect("barrier");
        }
        let out: Vec<usize> = (0..MANY).map(|to| rank * MANY + to).collect();
        let mut into = vec![0; MANY];
        comm.alltoall(&out, &mut into).expect("alltoall");
        assert!((0..MANY).all(|from| into[from] == from * MANY + rank));
    })
    .expect("ranks");
}

#[test]
fn split_and_dup() {
    on_workers(N, |comm| {
        let dup = comm.dup().expect("dup");
        let half = comm
            .split(Some((comm.rank() % 2) as u32), comm.rank() as i64)
            .expect("split")
            .expect("a color");
        assert_eq!((half.size(), half.rank()), (N / 2, comm.rank() / 2));
        let mut sum = [0usize];
        half.allreduce(&[comm.rank()], &mut sum, Op::Sum)
            .expect("allreduce");
        let sums = [N / 2 * (N / 2 - 1), N / 2 * (N / 2)];
        assert_eq!(sum[0], sums[comm.rank() % 2]);
        // The same tag on another communicator is another message.
        let peer = comm.rank() ^ 1;
        dup.send(&[1u8], peer, 3).expect("send");
        comm.send(&[2u8], peer, 3).expect("send");
        let mut got = [0u8];
        comm.recv(&mut got, peer, 3).expect("recv");
        assert_eq!(got, [2]);
        dup.recv(&mut got, peer, 3).expect("recv");
        assert_eq!(got, [1]);
    });
}

#[test]
fn probes_and_loops_that_ask() {
    on_workers(N, |comm| {
        if comm.rank() == 0 {
            let mut sum = 0;
            for turn in 1..N {
                let status = match turn % 2 {
                    0 => comm.probe(ANY_SOURCE, ANY_TAG).expect("probe"),
                    _ => loop {
                        if let Some(status) = comm.iprobe(ANY_SOURCE, ANY_TAG).expect("iprobe") {
                            break status;
                        }
                    },
                };
                let source = status.source().expect("a source");
                let mut got = vec![0u8; status.bytes()];
                comm.recv(&mut got, source, ANY_TAG).expect("recv");
                assert_eq!(got.len(), source);
                sum += source;
            }
            assert_eq!(sum, N * (N - 1) / 2);
        } else {
            let mut sent = comm.issend(vec![0u8; comm.rank()], 0, 1).expect("issend");
            while !sent.test() {}
            sent.wait().expect("wait");
            let mut barrier = comm.ibarrier().expect("ibarrier");
            while !barrier.test() {}
            barrier.wait().expect("wait");
            return;
        }
        comm.barrier().expect("barrier");
    });
}

#[test]
fn waits_for_several() {
    on_workers(N, |comm| {
        let others = || (0..N).filter(|other| *other != comm.rank());
        let receives = |tag: u32| -> Vec<_> {
            others()
                .map(|other| comm.irecv(vec![0usize], other, tag).expect("irecv"))
                .collect()
        };
        let (all, mut any, set_of) = (receives(0), receives(1), receives(2));
        let mut set = WaitSet::new();
        for (key, request) in set_of.into_iter().enumerate() {
            set.add(key, request).expect("add");
        }
        for tag in [2, 1, 0] {
            for other in others() {
                comm.send(&[comm.rank()], other, tag).expect("send");
            }
        }
        let got: Vec<usize> = wait_all(all)
            .expect("wait")
            .into_iter()
            .map(|(v, _)| v[0])
            .collect();
        assert_eq!(got, others().collect::<Vec<_>>());
        let mut sum = 0;
        while let Some((_, result)) = wait_any(&mut any) {
            sum += result.expect("received").0[0];
        }
        for (_, result) in set.wait_all() {
            sum += result.expect("received").0[0];
        }
        assert_eq!(sum, 2 * others().sum::<usize>());
    });
}

/// A worker that sleeps is woken by ranks of another, and by time.
#[test]
fn workers_that_sleep_are_woken() {
    let _watchdog = Watchdog::start();
    let waiter = Mutex::new(String::new());
    ranks(4, 2, |comm| {
        // Ranks 0 and 1 are one worker's, 2 and 3 the other's, which looks until that one sleeps.
        let mut token = [0u8];
        if comm.rank() == 0 {
            let thread = std::fs::read_link("/proc/thread-self").expect("of Linux");
            *waiter.lock().expect("no panic") = format!("/proc/{}/stat", thread.display());
        }
        comm.barrier().expect("barrier");
        for round in 0..5u8 {
            if comm.rank() == 2 {
                let stat = waiter.lock().expect("no panic").clone();
                let sleeps = || {
                    let stat = std::fs::read_to_string(&stat).expect("a thread");
                    stat.rsplit(')')
                        .next()
                        .is_some_and(|rest| rest.starts_with(" S"))
                };
                while !sleeps() {
                    std::thread::yield_now();
                }
                comm.send(&[round], 0, 0).expect("send");
                comm.send(&[round], 1, 0).expect("send");
            } else if comm.rank() < 2 {
                comm.recv(&mut token, 2, 0).expect("recv");
                assert_eq!(token, [round]);
            }
            comm.barrier().expect("barrier");
        }
    })
    .expect("ranks");
}

#[test]
fn a_rank_that_panics_is_dead_for_the_others() {
    for network in Network::virtual_ranks() {
        one_fails(&network, 8, |comm| {
            if comm.rank() == 3 {
                // Unwinds with a request under way.
                let _later = comm.irecv(vec![0u8], 4, 1);
                return true;
            }
            let mut got = [0u8];
            let error = comm.recv(&mut got, 3, 0);
            fails(error, ErrorKind::RankDead, &["rank 3"]);
            false
        });
    }
}

/// Destructors of a rank that unwinds may wait; meanwhile others are not taken for ranks that
/// unwind.
#[test]
fn others_run_while_a_rank_unwinds() {
    struct Waits(Communicator);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.send(&[1u8], 1, 0).expect("send");
            self.0.recv(&mut [0u8], 1, 0).expect("recv");
        }
    }
    let _watchdog = Watchdog::start();
    let rest = AtomicUsize::new(0);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ranks(3, 1, |comm| {
            if comm.rank() == 0 {
                let _waits = Waits(comm);
                std::panic::resume_unwind(Box::new("thrown"));
            }
            if comm.rank() == 1 {
                comm.recv(&mut [0u8], 0, 0).expect("recv");
                // Rank 0 is in its destructor; rank 2 ends, and rank 1 sees it finalize.
                fails(comm.recv(&mut [0u8], 2, 0), ErrorKind::Closed, &["rank 2"]);
                comm.send(&[1u8], 0, 0).expect("send");
            } else {
                give_turn();
            }
            rest.fetch_add(1, Ordering::Relaxed);
        })
    }));
    let panic = result.expect_err("the panic is passed on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"thrown"));
    assert_eq!(rest.into_inner(), 2);
}

#[test]
fn stacks_are_used_again() {
    let _watchdog = Watchdog::start();
    for round in 0..10 {
        let sums = ranks(8, 1 + round % 2, |comm| {
            // Some depth, so that stacks are not only begun.
            let bytes = std::hint::black_box([comm.rank() as u8; 100_000]);
            comm.barrier().expect("barrier");
            bytes.iter().map(|b| usize::from(*b)).sum::<usize>()
        });
        let sums = sums.expect("ranks");
        assert_eq!(sums[7], 700_000);
    }
}

#[test]
fn jobs_of_virtual_ranks_nest() {
    let _watchdog = Watchdog::start();
    let sums = ranks(3, 1, |comm| {
        let inner = ranks(4, 1, |inner| {
            let mut sum = [0usize];
            inner
                .allreduce(&[inner.rank()], &mut sum, Op::Sum)
                .expect("allreduce");
            sum[0]
        });
        let mut sum = [0usize];
        let own = inner.expect("ranks").into_iter().sum::<usize>();
        comm.allreduce(&[own], &mut sum, Op::Sum)
            .expect("allreduce");
        sum[0]
    });
    assert_eq!(sums.expect("ranks"), [72, 72, 72]);
}

/// The workers of a graph on a virtual rank: its own thread, and one more.
#[test]
fn graphs_of_tasks_on_virtual_ranks() {
    use osier::task::{Context, Description, Graph, Next, Placement};
    for graph_workers in [1, 2] {
        on_workers(4, |comm| {
            // Each task adds its number to what comes from the left.
            let mut row = Description::new();
            let cells = row.family("cell", &[12], Placement::Cyclic);
            let (right, left) = (
                row.output::<u64>(cells, "right"),
                row.input::<u64>(cells, "left"),
            );
            row.connect(right, left, |[i]: [usize; 1]| (i < 11).then_some([i + 1]));
            row.tasks(cells, move |[i]: [usize; 1]| {
                move |cx: &mut Context<'_>| {
                    let sum = cx.get(left).map_or(0, |message| message[0]) + i as u64;
                    cx.put(right, &[sum]);
                    if i == 11 {
                        assert_eq!(sum, 66);
                    }
                    Ok(Next::Done)
                }
            });
            let graph = Graph::build(&comm, row).expect("a graph");
            for _ in 0..3 {
                assert_eq!(graph.run_by(graph_workers).expect("a run").tasks, 3);
            }
        });
    }
}

#[test]
fn asynchronous_ranks() {
    let _watchdog = Watchdog::start();
    for workers in [1, 2] {
        let turns = ranks_async(N, workers, async |comm| {
            // Stays on its worker: it need not be `Send`.
            let own = Rc::new(Cell::new(0));
            let (next, previous) = ((comm.rank() + 1) % N, (comm.rank() + N - 1) % N);
            for round in 0..4usize {
                let got = comm.irecv(vec![0usize], previous, 0).expect("irecv");
                let sent = comm
                    .isend(vec![comm.rank() + round], next, 0)
                    .expect("isend");
                sent.await.expect("sent");
                own.set(own.get() + got.await.expect("received").0[0]);
            }
            comm.ibarrier().expect("ibarrier").await.expect("barrier");
            // What blocks suspends this rank, too.
            let mut sum = [0usize];
            comm.allreduce(&[own.get()], &mut sum, Op::Sum)
                .expect("allreduce");
            sum[0]
        });
        let sum = 4 * (N * (N - 1) / 2) + 6 * N;
        assert_eq!(turns.expect("ranks"), vec![sum; N]);
    }
}

/// A future is polled once it was woken, and not while others communicate.
#[test]
fn idle_futures_are_not_polled() {
    let _watchdog = Watchdog::start();
    let polls = AtomicUsize::new(0);
    ranks_async(3, 1, async |comm| {
        if comm.rank() == 2 {
            let got = comm.irecv(vec![0u8], 0, 9).expect("irecv");
            let mut got = std::pin::pin!(got);
            std::future::poll_fn(|context| {
                polls.fetch_add(1, Ordering::Relaxed);
                got.as_mut()
                    .poll(context)
                    .map(|r| drop(r.expect("received")))
            })
            .await;
            return;
        }
        let peer = 1 - comm.rank();
        for _ in 0..1000 {
            let got = comm.irecv(vec![0u8], peer, 1).expect("irecv");
            comm.isend(vec![1u8], peer, 1)
                .expect("isend")
                .await
                .expect("sent");
            got.await.expect("received");
        }
        if comm.rank() == 0 {
            comm.send(&[1u8], 2, 9).expect("send");
        }
    })
    .expect("ranks");
    // The first, and that of the message; a wait of 0.1 s describes itself by one more.
    let polls = polls.into_inner();
    assert!((2..20).contains(&polls), "{polls}");
}

/// Wakers of others than the library, called on this worker and on another thread.
#[test]
fn futures_of_others_wake_their_rank() {
    let _watchdog = Watchdog::start();
    for workers in [1, 2] {
        let sums = ranks_async(2, workers, async |comm| {
            let (request, completer) = comm.generalized_request(Callbacks::new());
            let thread = std::thread::spawn(move || completer.complete());
            request.await.expect("completed");
            thread.join().expect("it ends");
            comm.rank()
        });
        assert_eq!(sums.expect("ranks"), [0, 1]);
    }
}

/// Prints, never fails: `cargo test --release -p osier-test-programs --test virtual_ranks cost_of
/// -- --ignored --nocapture`. Least of several batches.
#[test]
#[ignore = "a measurement"]
fn cost_of_virtual_ranks() {
    use osier::testing::ranks_on;
    fn least(comm: &Communicator, calls: u32, mut batch: impl FnMut()) -> f64 {
        let ns = |_| {
            comm.barrier().expect("barrier");
            let start = std::time::Instant::now();
            batch();
            start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        };
        (0..400).map(ns).fold(f64::INFINITY, f64::min)
    }
    let first = |network: &Network, n: usize, f: &(dyn Fn(&Communicator) -> f64 + Sync)| {
        ranks_on(network, n, |comm| f(&comm))[0]
    };
    let networks = [
        ("1 worker", Network::Virtual(1)),
        ("2 workers", Network::Virtual(2)),
        ("threads", Network::Shm),
    ];
    const CALLS: u32 = 200;
    for n in [2, 64] {
        let turn = first(&Network::Virtual(1), n, &|comm| {
            least(comm, CALLS, || {
                (0..CALLS).for_each(|_| assert!(give_turn()))
            })
        });
        println!(
            "{:.1} ns for a turn of each of {n} ranks, {:.1} each",
            turn,
            turn / n as f64
        );
    }
    for (name, network) in &networks {
        let ping = first(network, 2, &|comm| {
            let (mut got, peer) = ([0u64], 1 - comm.rank());
            least(comm, 2 * CALLS, || {
                for _ in 0..CALLS {
                    if comm.rank() == 0 {
                        comm.send(&[1u64], peer, 0).expect("send");
                        comm.recv(&mut got, peer, 0).expect("recv");
                    } else {
                        comm.recv(&mut got, peer, 0).expect("recv");
                        comm.send(&[1u64], peer, 0).expect("send");
                    }
                }
            })
        });
        println!("{name}: {ping:.0} ns for 8 bytes in one direction");
    }
    for (name, network) in &networks {
        let sum = first(network, 8, &|comm| {
            let mut sum = [0u64];
            least(comm, 20, || {
                for _ in 0..20 {
                    comm.allreduce(&[1u64], &mut sum, Op::Sum)
                        .expect("allreduce");
                }
            })
        });
        println!(
            "{name}: {:.2} us for an allreduce of 8 bytes among 8 ranks",
            sum / 1e3
        );
    }
    // Ranks 0 and 1 exchange while the others wait for a message.
    for idle in [0, 6, 62] {
        let ping = first(&Network::Virtual(1), 2 + idle, &|comm| {
            let mut got = [0u64];
            if comm.rank() > 1 {
                comm.recv(&mut got, 0, 1).expect("recv");
                return 0.0;
            }
            let peer = 1 - comm.rank();
            let exchange = |calls: u32, got: &mut [u64; 1]| {
                for _ in 0..calls {
                    comm.sendrecv(&[1u64], peer, 0, got, peer, 0)
                        .expect("sendrecv");
                }
            };
            let mut batch = |_| {
                let start = std::time::Instant::now();
                exchange(CALLS, &mut got);
                start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
            };
            let took = (0..400).map(&mut batch).fold(f64::INFINITY, f64::min);
            if comm.rank() == 0 {
                (2..comm.size()).for_each(|to| comm.send(&[1u64], to, 1).expect("send"));
            }
            took
        });
        println!("{ping:.0} ns for an exchange beside {idle} idle ranks");
    }
}
