//! Ranks that end while others need them.

use crate::support::{Watchdog, fails as fails_with, on_all, one_fails, pattern};
use osier::requests::wait_any;
use osier::testing::Network;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, Error, ErrorKind, Op, Source, Type, View};
use std::cell::Cell;

const DEAD: ErrorKind = ErrorKind::RankDead;

thread_local! {
    /// Rank 1 keeps its communicators, as a process that is killed does.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// As `support::fails`. A rank that unwinds drops its communicators
/// first and is known to have failed a little later, so one may be told of either;
/// of one that keeps them, only of its failure.
#[track_caller]
fn fails<T>(result: Result<T, Error>, kind: ErrorKind, parts: &[&str]) -> Error {
    let kind = match &result {
        Err(e) if kind == DEAD && e.kind() == ErrorKind::Closed && !KEEPS.get() => {
            ErrorKind::Closed
        }
        _ => kind,
    };
    fails_with(result, kind, parts)
}

/// Runs `f` on `n` ranks, of which rank 1 fails after it, in both ways.
fn both_ways(n: usize, f: impl Fn(Communicator) + Sync) {
    both_ways_on(&Network::all(), n, f);
}

/// The same where all arrives that a rank has sent before it fails: of a network a prefix does.
fn both_ways_on_host(n: usize, f: impl Fn(Communicator) + Sync) {
    both_ways_on(&Network::within_host(), n, f);
}

fn both_ways_on(networks: &[Network], n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    for (network, keeps) in networks.iter().flat_map(|n| [(n, false), (n, true)]) {
        one_fails(network, n, |comm| {
            keep(&comm, keeps);
            let me = comm.rank();
            f(comm);
            me == 1
        });
    }
}

fn keep(comm: &Communicator, keeps: bool) {
    KEEPS.set(keeps);
    if keeps && comm.rank() == 1 {
        std::mem::forget(comm.clone());
    }
}

/// Every operation that needs rank 1 of 3, which is gone or about to go.
fn needs_rank_1(comm: &Communicator) {
    let mut b = vec![0u8; 100];
    let large = pattern(1_000_000, 0);
    let who = ["rank 1"];
    fails(comm.recv(&mut b, 1, 0), DEAD, &["rank 1", "tag 0"]);
    fails(comm.recv(&mut b, 1, ANY_TAG), DEAD, &who);
    fails(comm.recv_vec::<u8>(1, 0), DEAD, &who);
    fails(comm.probe(1, 0), DEAD, &who);
    fails(comm.mprobe(1, 0), DEAD, &who);
    fails(comm.ssend(&large, 1, 0), DEAD, &["rank 1", "1000000"]);
    fails(comm.ssend(&[1u8], 1, 0), DEAD, &who);
    fails(comm.send(&large, 1, 0), DEAD, &who);
    while comm.iprobe(1, 0).is_ok() {
        std::thread::yield_now();
    }
    while comm.improbe(1, 0).is_ok() {
        std::thread::yield_now();
    }
    let result = comm.irecv(vec![0u8; 8], 1, 0).and_then(|r| r.wait());
    fails(result, DEAD, &who);
    let result = comm
        .irecv(vec![0u8; 8], 1, 0)
        .and_then(|r| comm.block_on(r));
    fails(result, DEAD, &who);
    let result = comm.issend(large.clone(), 1, 0).and_then(|r| r.wait());
    fails(result, DEAD, &who);
    let result = comm.scope(|s| s.irecv(&mut b, 1, 0).map(drop));
    fails(result, DEAD, &who);
}

/// The other one that lives.
const PEER: [usize; 3] = [2, usize::MAX, 0];

fn survivors_go_on(comm: &Communicator) {
    fails(comm.recv(&mut [0u8], ANY_SOURCE, 8), DEAD, &["rank 1"]);
    assert_eq!(comm.acknowledge_failures(), [1]);
    let peer = PEER[comm.rank()];
    for n in [8, 5_000, 300_000] {
        let mut got = vec![0; n];
        comm.sendrecv(&pattern(n, comm.rank()), peer, 7, &mut got, ANY_SOURCE, 7)
            .expect("the living");
        assert!(got == pattern(n, peer));
    }
}

#[test]
fn error_names_the_failed_rank() {
    both_ways(3, |comm| {
        if comm.rank() != 1 {
            needs_rank_1(&comm);
            survivors_go_on(&comm);
        }
    });
}

#[test]
fn pending_wait_fails_when_its_peer_dies() {
    for way in 0..9 {
        both_ways(2, |comm| {
            if comm.rank() == 1 {
                comm.barrier().expect("almost waiting");
                return;
            }
            let mut b = [0u64; 4];
            let large = pattern(2_000_000, 0);
            comm.barrier().expect("almost waiting");
            let result = match way {
                0 => comm.recv(&mut b, 1, 0).map(drop),
                1 => comm.recv(&mut b, ANY_SOURCE, ANY_TAG).map(drop),
                2 => comm.probe(1, ANY_TAG).map(drop),
                3 => comm.mprobe(ANY_SOURCE, 0).map(drop),
                4 => comm.ssend(&large, 1, 0),
                5 => comm.barrier(),
                // Who hears of it before is told at the call.
                6 => comm
                    .irecv(vec![0u8], 1, 0)
                    .and_then(|receive| wait_any(&mut vec![receive]).expect("one").1.map(drop)),
                7 => comm.irecv(vec![0u8], 1, 0).and_then(|mut receive| {
                    while !receive.test() {
                        std::thread::yield_now();
                    }
                    receive.wait().map(drop)
                }),
                _ => comm.allreduce(&[1u8], &mut [0u8], Op::Sum),
            };
            fails(result, DEAD, &["rank 1"]);
        });
    }
}

#[test]
fn pending_future_fails_when_its_peer_dies() {
    both_ways(2, |comm| {
        if comm.rank() == 1 {
            comm.barrier().expect("almost waiting");
            return;
        }
        let receive = comm.irecv(vec![0u8], 1, 0).expect("irecv");
        let send = comm.issend(pattern(1_000_000, 0), 1, 0).expect("issend");
        comm.barrier().expect("almost waiting");
        fails(crate::futures::foreign_block_on(receive), DEAD, &["rank 1"]);
        fails(crate::futures::foreign_block_on(send), DEAD, &["rank 1"]);
    });
}

#[test]
fn any_source_receives_while_another_rank_lives() {
    both_ways(3, |comm| {
        if comm.rank() == 1 {
            return;
        }
        while comm.failed_ranks().is_empty() {
            std::thread::yield_now();
        }
        if comm.rank() == 2 {
            for i in 0..20u64 {
                comm.send(&i, 0, 0).expect("send");
            }
            return;
        }
        // It is told again as long as nobody has taken note.
        for _ in 0..2 {
            fails(comm.recv(&mut [0u8], ANY_SOURCE, 9), DEAD, &["rank 1"]);
            fails(comm.probe(ANY_SOURCE, 9), DEAD, &["rank 1"]);
            fails(comm.iprobe(ANY_SOURCE, 9), DEAD, &["rank 1"]);
        }
        assert_eq!(comm.failed_ranks(), [1]);
        assert_eq!(comm.acknowledge_failures(), [1]);
        for i in 0..20u64 {
            let mut got = u64::MAX;
            if i % 2 == 0 {
                let status = comm.probe(ANY_SOURCE, ANY_TAG).expect("probe");
                assert_eq!(status.source(), Some(2));
            }
            comm.recv(&mut got, ANY_SOURCE, 0).expect("recv");
            assert_eq!(got, i);
        }
        // Now nobody is left: one has failed, one has finalized.
        let both = ["rank 1", "rank 2"];
        let closed = ErrorKind::Closed;
        fails(comm.recv(&mut [0u8], ANY_SOURCE, 0), closed, &both);
        fails(comm.probe(ANY_SOURCE, ANY_TAG), closed, &both);
        assert!(comm.iprobe(ANY_SOURCE, ANY_TAG).expect("none").is_none());
    });
}

/// A master hands out work to whoever asks; a worker fails in the middle of it.
#[test]
fn a_master_goes_on_without_a_worker_that_fails() {
    const TASKS: u64 = 60;
    both_ways(4, |comm| {
        if comm.rank() != 0 {
            let mut done = 0;
            loop {
                let mut task = u64::MAX;
                comm.send(&[0u64], 0, 0).expect("asks");
                comm.recv(&mut task, 0, 1).expect("an answer");
                if task == u64::MAX {
                    return;
                }
                if comm.rank() == 1 && done == 3 {
                    return; // and dies with its task
                }
                comm.send(&[task, task * task], 0, 2).expect("a result");
                done += 1;
            }
        }
        let mut open: Vec<u64> = (0..TASKS).collect();
        let mut given = [None; 4];
        let mut results = vec![0; TASKS as usize];
        let mut told = 0;
        let mut living = 3;
        // Three tasks with their results, and the fourth: on a busy machine the others would else
        // do all of it before rank 1 comes to the task that it dies with.
        let mut first = std::iter::repeat_n(1usize, 7);
        while living > 0 {
            let source = first.next().map_or(ANY_SOURCE, Source::from);
            match comm.recv_vec::<u64>(source, ANY_TAG) {
                Ok((message, status)) => {
                    let from = status.source().expect("a rank");
                    if let [task, square] = message[..] {
                        assert_eq!(given[from].take(), Some(task));
                        results[task as usize] = square;
                        continue;
                    }
                    let task = open.pop();
                    living -= usize::from(task.is_none());
                    given[from] = task;
                    let answered = comm.send(&task.unwrap_or(u64::MAX), from, 1);
                    assert!(answered.is_ok() || from == 1, "{answered:?}");
                }
                Err(e) => {
                    let e = fails::<()>(Err(e), DEAD, &["rank 1"]);
                    told += 1;
                    // It may be known before that it has dropped the communicator.
                    while comm.failed_ranks().is_empty() {
                        std::thread::yield_now();
                    }
                    assert_eq!(comm.acknowledge_failures(), [1], "{e}");
                    // Somebody else does what it had.
                    open.extend(given[1].take());
                    living -= 1;
                }
            }
        }
        assert_eq!(told, 1);
        // Its task may come back after the others were sent home.
        for task in open {
            results[task as usize] = task * task;
        }
        assert!(results.iter().zip(0..).all(|(r, n)| *r == n * n));
    });
}

/// Receives from any source end with the failure, and have taken no message.
#[test]
fn receives_that_end_with_a_failure_take_nothing() {
    both_ways_on_host(3, |comm| {
        if comm.rank() == 1 {
            comm.send(&[11u8], 0, 3).expect("its last word");
            return;
        }
        while comm.failed_ranks().is_empty() {
            std::thread::yield_now();
        }
        comm.acknowledge_failures();
        if comm.rank() == 2 {
            comm.recv(&mut [0u8], 0, 8).expect("rank 0 is told");
            comm.send(&[22u8], 0, 3).expect("send");
            return;
        }
        // What it sent before is there, and meets the first.
        let first = comm.irecv(vec![0u8], ANY_SOURCE, 3).expect("irecv");
        assert_eq!(first.wait().expect("it was sent").0, [11]);
        let second = comm.irecv(vec![0u8], ANY_SOURCE, 3).expect("irecv");
        comm.send(&[1u8], 2, 8).expect("it lives");
        assert_eq!(second.wait().expect("the living").0, [22]);
    });
    both_ways(3, |comm| {
        if comm.rank() == 1 {
            for to in [0, 2] {
                comm.recv(&mut [0u8], to, 1).expect("posted");
            }
            return;
        }
        if comm.rank() == 0 {
            let mut all: Vec<_> = (0..3)
                .map(|_| comm.irecv(vec![0u8], ANY_SOURCE, 3).expect("irecv"))
                .collect();
            comm.send(&[1u8], 1, 1).expect("posted");
            for receive in &mut all {
                while !receive.test() {
                    std::thread::yield_now();
                }
            }
            for receive in all {
                fails(receive.wait(), DEAD, &["rank 1", "any rank"]);
            }
            let late = comm.irecv(vec![0u8], ANY_SOURCE, 3).map(drop);
            fails(late, DEAD, &["rank 1"]);
            assert_eq!(comm.acknowledge_failures(), [1]);
            comm.send(&[1u8], 2, 4).expect("go");
            let (got, _) = comm.recv_vec::<u8>(ANY_SOURCE, 3).expect("the living");
            assert_eq!(got, [2]);
            return;
        }
        comm.send(&[1u8], 1, 1).expect("posted");
        comm.recv(&mut [0u8], 0, 4).expect("go");
        comm.send(&[2u8], 0, 3).expect("send");
    });
}

#[test]
fn messages_sent_before_a_death_are_received() {
    both_ways_on_host(2, |comm| {
        if comm.rank() == 1 {
            for i in 0..100u64 {
                comm.send(&i, 0, 0).expect("send");
            }
            // Gaps, so that nobody can wait for our memory to be read.
            let gaps = Type::vector(10_000, 1, 2, &Type::of::<u8>()).and_then(|t| t.commit());
            let gaps = gaps.expect("a type");
            let mut wide = vec![0u8; 20_000];
            let payload = pattern(10_000, 1);
            wide.iter_mut()
                .step_by(2)
                .zip(&payload)
                .for_each(|(w, p)| *w = *p);
            let view = View::new(&wide, 0, &gaps, 1).expect("view");
            comm.send(&view, 0, 1).expect("eager, in fragments");
            return;
        }
        fails(comm.recv(&mut [0u8], 1, 9), DEAD, &["rank 1"]);
        for i in 0..100u64 {
            let mut got = u64::MAX;
            comm.recv(&mut got, 1, 0).expect("recv");
            assert_eq!(got, i);
        }
        let (got, _) = comm.recv_vec::<u8>(1, 1).expect("recv");
        assert!(got == pattern(10_000, 1));
        fails(comm.recv(&mut [0u8], 1, 0), DEAD, &["rank 1"]);
    });
}

/// Rank 1 ends without its transfers: by unwinding, which waits for nothing.
fn dies_in_the_middle(
    begin: impl Fn(&Communicator) + Sync,
    survive: impl Fn(&Communicator) + Sync,
) {
    both_ways(2, |comm| match comm.rank() {
        1 => begin(&comm),
        _ => survive(&comm),
    });
}

#[test]
fn a_sender_dies_in_mid_stream() {
    const N: usize = 2 << 20;
    let gaps = Type::vector(N, 1, 2, &Type::of::<u64>()).and_then(|t| t.commit());
    let gaps = gaps.expect("a type");
    for polls in [0, 1, 10, 50] {
        dies_in_the_middle(
            |comm| {
                let memory = vec![5u64; 2 * N];
                let view = View::new(&memory, 0, &gaps, 1).expect("view");
                comm.barrier().expect("posted");
                let request = comm.scope(|s| {
                    let mut request = s.isend(&view, 0, 0)?;
                    for _ in 0..polls {
                        request.test();
                        std::thread::yield_now();
                    }
                    Err::<(), _>(osier::Error::new(ErrorKind::Argument, "enough"))
                });
                drop(request);
            },
            |comm| {
                let receive = comm.irecv(vec![0u64; N], 1, 0).expect("irecv");
                comm.barrier().expect("posted");
                match receive.wait() {
                    Ok((got, _)) => assert!(got.iter().all(|x| *x == 5)),
                    // Its scope has cancelled it before it ended.
                    Err(e) if e.kind() == ErrorKind::Cancelled => {
                        assert!(e.to_string().contains("rank 1"), "{e}");
                    }
                    Err(e) => drop(fails::<()>(Err(e), DEAD, &["rank 1"])),
                }
                fails(comm.barrier(), DEAD, &["rank 1"]);
            },
        );
    }
}

#[test]
fn an_announced_message_dies_with_its_sender() {
    dies_in_the_middle(
        |comm| {
            std::mem::forget(comm.isend(pattern(1_000_000, 0), 0, 0));
            comm.send(&[1u8], 0, 1).expect("send");
            let mut token = [0u8];
            comm.recv(&mut token, 0, 2).expect("it was seen");
        },
        |comm| {
            let mut one = [0u8];
            comm.recv(&mut one, 1, 1).expect("after the announcement");
            assert_eq!(comm.probe(1, 0).expect("probe").bytes(), 1_000_000);
            let message = comm.mprobe(1, 0).expect("mprobe");
            comm.send(&[1u8], 1, 2).expect("go");
            fails(comm.recv(&mut one, 1, 5), DEAD, &["rank 1"]);
            fails(message.recv_vec::<u8>(), DEAD, &["rank 1", "1000000"]);
            fails(comm.recv(&mut one, 1, 0), DEAD, &["rank 1"]);
            assert!(comm.iprobe(1, ANY_TAG).is_err());
        },
    );
}

#[test]
fn a_receiver_dies_in_mid_stream() {
    const N: usize = 2 << 20;
    let gaps = Type::vector(N, 1, 2, &Type::of::<u64>()).and_then(|t| t.commit());
    let gaps = gaps.expect("a type");
    for strided in [false, true] {
        dies_in_the_middle(
            |comm| {
                let mut receive = comm.irecv(vec![0u64; N], 0, 0).expect("irecv");
                comm.barrier().expect("posted");
                for _ in 0..10 {
                    receive.test();
                }
                std::mem::forget(receive);
            },
            |comm| {
                comm.barrier().expect("posted");
                let memory = vec![5u64; 2 * N];
                let view = View::new(&memory, 0, &gaps, 1).expect("view");
                let result = match strided {
                    true => comm.send(&view, 1, 0),
                    false => comm.send(&memory[..N], 1, 0),
                };
                if let Err(e) = result {
                    fails::<()>(Err(e), DEAD, &["rank 1"]);
                }
                fails(comm.barrier(), DEAD, &["rank 1"]);
            },
        );
    }
}

#[test]
fn communicators_without_the_dead_rank_still_work() {
    on_all(4, |comm| {
        // Ranks of the part are 0, 1, 2 for 3, 2, 0 of the world.
        let part = comm.split((comm.rank() != 1).then_some(0), -(comm.rank() as i64));
        let part = part.expect("split");
        let reversed = comm.split(Some(0), -(comm.rank() as i64));
        let reversed = reversed.expect("split").expect("a color");
        let Some(part) = part else { return };
        fails(comm.recv(&mut [0u8], 1, 0), DEAD, &["rank 1"]);
        // The dead one is rank 2 there.
        let e = fails(reversed.recv(&mut [0u8], 2, 0), DEAD, &["rank 2"]);
        assert!(!e.to_string().contains("rank 1 "), "{e}");
        for _ in 0..10 {
            let mut sum = [0u64];
            part.allreduce(&[comm.rank() as u64], &mut sum, Op::Sum)
                .expect("allreduce");
            assert_eq!(sum, [5]);
        }
        let new = part.dup().expect("dup");
        new.barrier().expect("barrier");
        fails(comm.barrier(), DEAD, &[]);
    });
}

#[test]
fn a_communicator_made_after_a_death_knows_it() {
    on_all(3, |comm| {
        // Rank 2 leaves while the two others make communicators with it in
        // them: the duplicate needs the first rank's word only.
        if comm.rank() == 2 {
            return;
        }
        fails(comm.recv(&mut [0u8], 2, 0), DEAD, &["rank 2"]);
        if let Ok(new) = comm.dup() {
            fails(new.recv(&mut [0u8], 2, 0), DEAD, &["rank 2"]);
        }
    });
}

#[test]
fn a_death_ends_the_collective_of_all_that_depend_on_it() {
    use osier_collectives::Algorithm;
    for algorithm in [
        Algorithm::Binomial,
        Algorithm::Chain,
        Algorithm::RecursiveDoubling,
        Algorithm::OnePhase,
        Algorithm::Direct,
        Algorithm::DirectSlices,
    ] {
        both_ways(4, |comm| {
            comm.use_algorithm(Some((algorithm.clone(), 1)));
            if comm.rank() == 1 {
                return;
            }
            for bytes in [8, 20_000, 2_000_000] {
                let (data, mut sums) = (vec![1u8; bytes], vec![0u8; bytes]);
                let result = comm.allreduce(&data, &mut sums, Op::Sum);
                fails(result, DEAD, &["allreduce", "rank 1"]);
            }
            // Nobody leaves before all have heard: it would be the next to blame.
            if comm.rank() == 0 {
                for living in [2, 3] {
                    comm.recv(&mut [0u8], living, 1).expect("it lives");
                }
                for living in [2, 3] {
                    comm.send(&[0u8], living, 2).expect("it lives");
                }
            } else {
                comm.send(&[0u8], 0, 1).expect("it lives");
                comm.recv(&mut [0u8], 0, 2).expect("it lives");
            }
        });
    }
}
