//! Operations that are enqueued on streams: the host waits for none of them, ranks as
//! threads, on the driver that the tests of `kernels/` choose.

#[path = "device_collectives.rs"]
mod collectives;
#[path = "../kernels/tests/support/mod.rs"]
mod driver;
#[path = "../kernels/tests/support/of_others.rs"]
mod of_others;
#[path = "device_partitions.rs"]
mod partitions;
#[path = "ranks/support.rs"]
#[allow(dead_code)]
mod support;

use osier::devices::{Callback, DeviceSlice, DeviceView, Graph, Stream, copy};
use osier::errors::ErrorHandler;
use osier::testing::{Network, ranks_on};
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, PROC_NULL, Type};
use osier_kernels::Context;
use osier_kernels::debug::Debug as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use support::{Watchdog, fails, pattern};

/// A stream for each rank, made before any is held: a real driver may wait for the device when
/// it makes one.
fn streams(context: &Context, ranks: usize) -> Vec<Stream> {
    let streams = (0..ranks).map(|_| Stream::new(context).unwrap());
    streams.collect()
}

/// One test at a time, and a watchdog of it. Ranks that end give memory back, for which a driver
/// waits until the device is idle; a function of another test's that holds a stream would wait
/// for that in turn.
fn alone() -> (Watchdog, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Watchdog::start(), one)
}

/// Runs two ranks with a stream each.
fn on_streams(networks: &[Network], f: impl Fn(&Communicator, &Stream) + Sync) {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    for network in networks {
        let streams = streams(&context, 2);
        ranks_on(network, 2, |comm| f(&comm, &streams[comm.rank()]));
    }
}

fn upload(stream: &Stream, bytes: &[u8], to: &DeviceSlice<u8>) {
    let from = driver::upload(stream, bytes);
    copy::copy(stream, &from.after_stream(stream), &to.after_stream(stream)).unwrap();
}

fn memory(stream: &Stream, bytes: usize) -> DeviceSlice<u8> {
    DeviceSlice::new(stream, bytes).unwrap().into_inner()
}

/// A stream that does nothing until it is told to.
#[derive(Clone, Default)]
struct Late(Arc<(Mutex<bool>, Condvar)>);

impl Late {
    fn hold(&self, stream: &Stream) {
        let semaphore = self.0.clone();
        let wait = move || {
            let mut open = semaphore.0.lock().unwrap();
            while !*open {
                open = semaphore.1.wait(open).unwrap();
            }
        };
        stream.call(&Callback::new(wait)).unwrap();
    }

    fn go(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Sizes of each protocol: one chunk, several.
const SIZES: [usize; 5] = [0, 5, 9000, 80_000, (2 << 20) + 77];

/// The buffer is written right behind the send, and read right behind the receive; the
/// host waits only at the end, in the driver.
#[test]
fn work_behind_an_operation_waits_for_it() {
    on_streams(&Network::all(), |comm, stream| {
        let (own, other) = (comm.rank(), 1 - comm.rank());
        let on = comm.on_stream(stream);
        for (tag, n) in SIZES.into_iter().enumerate() {
            if comm.transport(other).unwrap() == "sim" && n > 100_000 {
                continue;
            }
            let (from, mut to) = (memory(stream, n), memory(stream, n));
            let copied = memory(stream, n);
            for round in 0..4usize {
                let seed = n + 10 * round;
                upload(stream, &pattern(n, seed + own), &from);
                copy::fill(stream, &to.after_stream(stream), 9).unwrap();
                match (round, own) {
                    (0, _) => {
                        on.sendrecv(&from, other, tag, &mut to, other, tag).unwrap();
                    }
                    (1, _) => {
                        let received = on.irecv(&mut to, other, tag).unwrap();
                        let sent = on.isend(&from, other, tag).unwrap();
                        on.wait_all([&received, &sent]).unwrap();
                    }
                    (2, 0) | (3, 1) => {
                        on.ssend(&from, other, tag).unwrap();
                        on.recv(&mut to, ANY_SOURCE, ANY_TAG).unwrap();
                    }
                    _ => {
                        let received = on.recv(&mut to, other, tag).unwrap();
                        on.rsend(&from, other, tag).unwrap();
                        assert_eq!(received.wait().unwrap().bytes(), n);
                    }
                }
                copy::copy(
                    stream,
                    &to.after_stream(stream),
                    &copied.after_stream(stream),
                )
                .unwrap();
                copy::fill(stream, &from.after_stream(stream), 7).unwrap();
                copy::fill(stream, &to.after_stream(stream), 8).unwrap();
                // No call of Osier until the stream is done.
                stream.synchronize().unwrap();
                assert!(
                    driver::download(stream, &copied) == pattern(n, seed + other),
                    "{n} bytes, round {round}"
                );
            }
            on.synchronize().unwrap();
        }
    });
}

/// A host that asks a stream that waits gets its thread back at once, and other streams
/// go on.
#[test]
fn host_and_other_streams_continue_while_one_stream_waits() {
    on_streams(&Network::all(), |comm, stream| {
        let n = 70_000;
        let late = Late::default();
        let mut slice = memory(stream, n);
        let on = comm.on_stream(stream);
        if comm.rank() == 0 {
            late.hold(stream);
            upload(stream, &pattern(n, 1), &slice);
            let sent = on.send(&slice, 1, 1).unwrap();
            assert!(!sent.is_over() && !stream.is_done().unwrap());
            // A message of another communicator, from the host.
            let beside = comm.dup().unwrap();
            beside.send(&[1u8, 2], 1, 2).unwrap();
            assert!(sent.status().is_none());
            late.go();
            sent.wait().unwrap();
        } else {
            let received = on.recv(&mut slice, 0, 1).unwrap();
            let beside = comm.dup().unwrap();
            let mut two = [0u8; 2];
            beside.recv(&mut two, 0, 2).unwrap();
            assert!(two == [1, 2]);
            stream.synchronize().unwrap();
            assert_eq!(received.status().unwrap().unwrap().bytes(), n);
            assert!(driver::download(stream, &slice) == pattern(n, 1));
        }
    });
}

/// A message whose stream waits holds up no later one to the same peer, whoever has posted
/// what first; and what matches it is its receive, not theirs.
#[test]
fn later_messages_pass_one_whose_stream_waits() {
    on_streams(&Network::all(), |comm, stream| {
        // First uses come before a stream is held, here by the program itself.
        let _ = comm.on_stream(stream);
        let other = Stream::new(stream.context()).unwrap();
        for (round, n) in [1, 3000, 8192, 70_000].into_iter().enumerate() {
            let (posted, to_host) = (round % 2 == 0, round / 2 == 0);
            let slice = memory(stream, n);
            stream.synchronize().unwrap();
            if comm.rank() == 0 {
                let late = Late::default();
                late.hold(stream);
                upload(stream, &pattern(n, round), &slice);
                let held = comm.isend(slice.after_stream(stream), 1, 1).unwrap();
                // Of the same tag, from the host; and of a device that is ready.
                comm.send(&[7u8, round as u8], 1, 1).unwrap();
                let ready = driver::upload(&other, &pattern(n, 90));
                let ready = comm.isend(ready.after_stream(&other), 1, 2).unwrap();
                comm.send(&[8u8], 1, 3).unwrap();
                comm.recv(&mut [0u8], 1, 4).unwrap();
                assert!(!stream.is_done().unwrap());
                late.go();
                held.wait().unwrap();
                ready.wait().unwrap();
                continue;
            }
            let (mut host, mut two) = (vec![0u8; n], [0u8; 2]);
            let mut lent = slice.after_stream(stream);
            comm.scope(|s| {
                if !posted {
                    comm.recv(&mut [0u8], 0, 3)?;
                }
                let first = match to_host {
                    true => s.irecv(&mut host, 0, 1)?,
                    false => s.irecv(&mut lent, 0, 1)?,
                };
                s.irecv(&mut two, 0, 1)?.wait()?;
                let ready = memory(&other, n);
                comm.recv(&mut ready.after_stream(&other), 0, 2)?;
                assert!(driver::download(&other, &ready) == pattern(n, 90));
                if posted {
                    comm.recv(&mut [0u8], 0, 3)?;
                }
                comm.send(&[0u8], 0, 4)?;
                assert_eq!(first.wait()?.bytes(), n);
                Ok(())
            })
            .unwrap();
            assert_eq!(two, [7, round as u8]);
            let got = match to_host {
                true => host,
                false => driver::download(stream, &slice),
            };
            assert!(got == pattern(n, round), "{n} bytes");
        }
    });
}

/// One stream waits for what was enqueued on another.
#[test]
fn stream_waits_for_operation_of_another_stream() {
    on_streams(&[Network::Shm], |comm, stream| {
        let other = Stream::new(stream.context()).unwrap();
        let n = 30_000;
        let mut slice = memory(stream, n);
        let ready = stream.record().unwrap();
        other.wait(&ready).unwrap();
        if comm.rank() == 0 {
            upload(stream, &pattern(n, 4), &slice);
            comm.on_stream(stream).send(&slice, 1, 0).unwrap();
        } else {
            let received = comm.on_stream(stream).irecv(&mut slice, 0, 0).unwrap();
            comm.on_stream(&other).wait(&received).unwrap();
            assert!(driver::download(&other, &slice) == pattern(n, 4));
            // Over already: nothing to wait for.
            comm.on_stream(stream).wait(&received).unwrap();
            received.wait().unwrap();
        }
        stream.synchronize().unwrap();
    });
}

#[test]
fn stream_goes_on_after_an_error_is_reported_once() {
    on_streams(&[Network::Shm], |comm, stream| {
        let on = comm.on_stream(stream);
        let slice = memory(stream, 1000);
        let mut half = slice.slice(..500).unwrap();
        copy::fill(stream, &slice.after_stream(stream), 1).unwrap();
        on.send(&slice, PROC_NULL, 0).unwrap();
        fails(on.send(&slice, 7, 0), ErrorKind::Rank, &["rank 7"]);
        fails(on.probe(0, 0), ErrorKind::Unavailable, &["probe", "hint"]);
        if comm.rank() == 0 {
            for _ in 0..2 {
                on.send(&slice, 1, 3).unwrap();
            }
            on.synchronize().unwrap();
            comm.barrier().unwrap();
        } else {
            // By the handle.
            let told = on.recv(&mut half, 0, 3).unwrap();
            stream.synchronize().unwrap();
            fails(told.wait(), ErrorKind::Truncated, &["1000", "500"]);
            on.send(&slice, PROC_NULL, 0).unwrap();
            // By the next call.
            drop(on.recv(&mut half, 0, 3).unwrap());
            stream.synchronize().unwrap();
            let told = on.send(&slice, PROC_NULL, 0);
            fails(told, ErrorKind::Truncated, &["earlier", "1000", "500"]);
            on.send(&slice, PROC_NULL, 0).unwrap();
            on.synchronize().unwrap();
            comm.barrier().unwrap();
        }
    });
}

/// The other rank ends, or drops its communicator: no stream stays blocked.
#[test]
fn a_dead_peer_releases_streams() {
    for drops in [false, true] {
        let died = AtomicBool::new(false);
        on_streams(&Network::all(), |comm, stream| {
            let sub = comm.dup().unwrap();
            if comm.rank() == 1 {
                comm.barrier().unwrap();
                if !drops {
                    died.store(true, Ordering::Release);
                }
                return; // both communicators go; the rank, too
            }
            let (mut slice, big) = (memory(stream, 100), memory(stream, 3 << 20));
            copy::fill(stream, &big.after_stream(stream), 1).unwrap();
            let second = Stream::new(stream.context()).unwrap();
            let received = sub.on_stream(stream).recv(&mut slice, 1, 0).unwrap();
            second.wait(&stream.record().unwrap()).unwrap_or(());
            let sent = sub.on_stream(&second).issend(&slice, 1, 0).unwrap();
            comm.barrier().unwrap();
            stream.synchronize().unwrap();
            let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
            for over in [received, sent] {
                let e = over.wait().unwrap_err();
                assert!(kinds.contains(&e.kind()), "{e}");
                assert!(e.to_string().contains("rank 1"), "{e}");
            }
        });
    }
}

/// Communicator and rank go away while a stream waits.
#[test]
fn leaving_releases_streams() {
    let Some(context) = driver::context() else {
        return;
    };
    let _alone = alone();
    let stream = Stream::new(&context).unwrap();
    let slice = memory(&stream, 100);
    ranks_on(&Network::Shm, 2, |comm| {
        if comm.rank() == 0 {
            let never = comm
                .on_stream(&stream)
                .recv(&mut slice.clone(), 1, 0)
                .unwrap();
            assert!(!never.is_over());
        }
        comm.barrier().unwrap();
    });
    stream.synchronize().unwrap();
}

/// A stream waits for a limited number of operations; calls that have it wait for more wait
/// themselves, which is reported, and none is lost.
#[test]
fn calls_wait_while_a_stream_is_full() {
    on_streams(&[Network::Shm], |comm, stream| {
        const ALL: usize = 600;
        if comm.rank() == 1 {
            comm.recv(&mut [0u8], 0, 1).unwrap();
            for i in 0..ALL {
                comm.send(&[i as u8], 0, 0).unwrap();
            }
            return;
        }
        let (on, bytes) = (comm.on_stream(stream), memory(stream, ALL));
        let kept = || osier::internals::kept_of_streams(comm);
        std::thread::scope(|scope| {
            let enqueues = scope.spawn(|| {
                for i in 0..ALL {
                    let mut byte = bytes.slice(i..=i).unwrap();
                    drop(on.recv(&mut byte, 1, 0).unwrap());
                }
            });
            // The next one is posted, and no stream waits for it.
            let deep = osier::internals::MOST_HELD;
            while kept() <= deep {
                std::thread::yield_now();
            }
            assert!(!enqueues.is_finished() && kept() == deep + 1);
            comm.send(&[0u8], 1, 1).unwrap();
        });
        on.synchronize().unwrap();
        assert!(driver::download(stream, &bytes) == (0..ALL).map(|i| i as u8).collect::<Vec<_>>());
    });
}

/// Operations that no stream waits for take no room: messages that come later match them.
#[test]
fn very_many_operations_are_begun_without_a_wait() {
    on_streams(&[Network::Shm], |comm, stream| {
        const ALL: usize = 600;
        let (on, bytes) = (comm.on_stream(stream), memory(stream, ALL));
        let other = 1 - comm.rank();
        for i in 0..ALL {
            let mut byte = bytes.slice(i..=i).unwrap();
            drop(on.irecv(&mut byte, other, 0).unwrap());
        }
        for i in 0..ALL {
            comm.send(&[i as u8], other, 0).unwrap();
        }
        on.synchronize().unwrap();
        assert!(driver::download(stream, &bytes) == (0..ALL).map(|i| i as u8).collect::<Vec<_>>());
    });
}

/// As torch captures: nobody but the driver's graph owns what a launch needs, and calls of
/// other threads, here of the progress thread and of the other rank, would spoil the capture.
#[test]
fn graphs_of_others_send_and_receive_at_each_launch() {
    on_streams(&Network::all(), |comm, stream| {
        let (own, other) = (comm.rank(), 1 - comm.rank());
        for n in [5usize, 5000, 90_000] {
            let (from, mut to) = (memory(stream, n), memory(stream, n));
            let sum = memory(stream, n);
            let mut handle = None;
            let work = || {
                let on = comm.on_stream(stream);
                let got = on.irecv(&mut to, other, 1).unwrap();
                let sent = on.isend(&from, other, 1).unwrap();
                on.wait_all([&sent, &got]).unwrap();
                copy::copy(stream, &to.after_stream(stream), &sum.after_stream(stream)).unwrap();
                handle = Some(got);
            };
            let meet = || comm.barrier().unwrap();
            let graph = of_others::OfOthers::capture(stream, of_others::GLOBAL, work, meet);
            let graph = graph.unwrap_or_else(|code| panic!("the capture was spoiled: {code}"));
            for round in 0..4usize {
                upload(stream, &pattern(n, round + own), &from);
                graph.launch(stream);
                assert!(driver::download(stream, &sum) == pattern(n, round + other));
            }
            assert_eq!(handle.unwrap().wait().unwrap().bytes(), n);
            comm.on_stream(stream).synchronize().unwrap();
            drop(graph);
            // Its end would spoil the other rank's next capture.
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn graphs_send_and_receive_at_each_launch() {
    on_streams(&Network::all(), |comm, stream| {
        let (own, other) = (comm.rank(), 1 - comm.rank());
        for n in [7usize, 5000, 90_000] {
            let (from, mut to) = (memory(stream, n), memory(stream, n));
            let sum = memory(stream, n);
            for slice in [&from, &to, &sum] {
                copy::fill(stream, &slice.after_stream(stream), 0).unwrap();
            }
            let every = Type::vector(n.div_ceil(2), 1, 2, &Type::of::<u8>()).unwrap();
            let every = every.commit().unwrap();
            let part = |slice: &DeviceSlice<u8>| DeviceView::new(slice, 0, &every, 1).unwrap();
            let mut handles = Vec::new();
            let graph = Graph::capture(stream, |stream| {
                let on = comm.on_stream(stream);
                let got = on.irecv(&mut part(&to), other, 1).unwrap();
                let sent = on.isend(&part(&from), other, 1).unwrap();
                on.wait_all([&sent, &got]).unwrap();
                copy::copy(stream, &to.after_stream(stream), &sum.after_stream(stream))?;
                copy::fill(stream, &from.after_stream(stream), 0)?;
                on.sendrecv(&sum, other, 2, &mut to, other, 2).unwrap();
                handles.push(got);
                Ok(())
            })
            .unwrap();
            let tick = |bytes: &[u8]| -> Vec<u8> {
                let keep = |(i, b): (usize, &u8)| if i % 2 == 0 { *b } else { 0 };
                bytes.iter().enumerate().map(keep).collect()
            };
            for round in 0..5usize {
                upload(stream, &pattern(n, round + own), &from);
                graph.launch(stream, &[]).unwrap();
                if round % 2 == 0 {
                    stream.synchronize().unwrap();
                    assert_eq!(handles[0].wait().unwrap().bytes(), n.div_ceil(2));
                }
                let mut expected = tick(&pattern(n, round + other));
                let mine = tick(&pattern(n, round + own));
                assert!(driver::download(stream, &from) == vec![0; n]);
                let got = driver::download(stream, &sum);
                for (i, byte) in expected.iter_mut().enumerate() {
                    if i % 2 == 1 && round > 0 {
                        // What the second exchange of the round before has left.
                        *byte = got[i];
                    }
                }
                assert!(got == expected, "{n} bytes, round {round}");
                let back = driver::download(stream, &to);
                let even = |v: &[u8]| v.iter().step_by(2).copied().collect::<Vec<_>>();
                assert!(even(&back) == even(&mine), "{n} bytes, round {round}");
            }
            comm.on_stream(stream).synchronize().unwrap();
        }
    });
}

#[test]
fn capture_of_unsupported_call_is_refused_by_name() {
    on_streams(&[Network::Shm], |comm, stream| {
        let (slice, mut into) = (memory(stream, 100), memory(stream, 100));
        copy::fill(stream, &slice.after_stream(stream), 3).unwrap();
        let on = comm.on_stream(stream);
        let before = on.irecv(&mut into, 1 - comm.rank(), 5).unwrap();
        let mut captured = None;
        let graph = Graph::capture(stream, |stream| {
            let on = comm.on_stream(stream);
            let told = on.wait(&before);
            fails(told, ErrorKind::Device, &["captured", "outside"]);
            // A call of the host has no ready event in the capture.
            let told = comm.send(&slice.after_stream(stream), 0, 6);
            fails(told, ErrorKind::Device, &["captured"]);
            captured = Some(on.isend(&slice, PROC_NULL, 0).unwrap());
            Ok(())
        });
        drop(graph.unwrap());
        assert!(captured.unwrap().is_over());
        on.send(&slice, 1 - comm.rank(), 5).unwrap();
        on.wait(&before).unwrap();
        on.synchronize().unwrap();
    });
}

/// Every call that fails runs the handler of its communicator, once.
#[test]
fn failed_stream_call_runs_the_handler() {
    on_streams(&[Network::Shm], |comm, stream| {
        let comm = comm.dup().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        comm.set_error_handler(ErrorHandler::custom(move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let mut slice = memory(stream, 10);
        let (on, bad) = (comm.on_stream(stream), comm.size());
        let check = |name: &str, failed: osier::Result<()>| {
            assert!(failed.is_err(), "{name}");
            assert_eq!(runs.swap(0, Ordering::Relaxed), 1, "{name}");
        };
        check("send", on.send(&slice, bad, 0).map(drop));
        check("ssend", on.ssend(&slice, bad, 0).map(drop));
        check("rsend", on.rsend(&slice, bad, 0).map(drop));
        check("isend", on.isend(&slice, 0, -1).map(drop));
        check("issend", on.issend(&slice, bad, 0).map(drop));
        check("recv", on.recv(&mut slice, bad, 0).map(drop));
        check("irecv", on.irecv(&mut slice, bad, 0).map(drop));
        let both = on.sendrecv(&slice, bad, 0, &mut slice.clone(), 0, 0);
        check("sendrecv", both.map(drop));
        check("bsend", on.bsend(&slice, bad, 0).map(drop));
        check("irsend", on.irsend(&slice, bad, 0).map(drop));
        let replaced = on.sendrecv_replace(&mut slice, bad, 0, 0, 0);
        check("sendrecv_replace", replaced.map(drop));
        check("probe", on.probe(0, 0));
        // A message that is longer than its receive.
        let own = comm.rank();
        let mut short = slice.slice(..3).unwrap();
        let mut long = || {
            let received = on.irecv(&mut short, own, 1).unwrap();
            on.send(&slice, own, 1).unwrap();
            received
        };
        check("Enqueued::wait", long().wait().map(drop));
        let told = long();
        stream.synchronize().unwrap();
        while !told.is_over() {}
        check("Enqueued::status", told.status().unwrap().map(drop));
        drop(long());
        check("synchronize", on.synchronize());
        let beside = Graph::capture(stream, |stream| {
            let on = comm.on_stream(stream);
            check("wait", on.wait(&told));
            check("wait_all", on.wait_all([&told]));
            Ok(())
        });
        drop(beside.unwrap());
        on.synchronize().unwrap();
    });
}

/// Where streams cannot wait for words in memory, the call says so, and takes back what
/// it has begun.
#[test]
fn call_is_refused_where_streams_cannot_wait_for_memory() {
    let Some(library) = driver::emulated() else {
        return;
    };
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_words", "--ignored", "--nocapture"])
        .debug("cuda-library", &library)
        .env("OSIER_EMULATED_FAIL", "cuStreamWaitValue32:1:801")
        .output()
        .unwrap();
    let told = [run.stdout, run.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
#[ignore = "run by call_is_refused_where_streams_cannot_wait_for_memory"]
fn child_without_words() {
    let context = driver::context().unwrap();
    let _alone = alone();
    ranks_on(&Network::Shm, 1, |comm| {
        let stream = Stream::new(&context).unwrap();
        let on = comm.on_stream(&stream);
        let (mut one, two) = (memory(&stream, 10), memory(&stream, 10));
        copy::fill(&stream, &one.after_stream(&stream), 1).unwrap();
        copy::fill(&stream, &two.after_stream(&stream), 2).unwrap();
        let told = on.recv(&mut one, 0, 0);
        fails(told, ErrorKind::Unavailable, &["wait for words", "hint"]);
        // Nothing receives there.
        comm.send(&two.after_stream(&stream), 0, 0).unwrap();
        assert!(driver::download(&stream, &one) == [1; 10]);
        on.recv(&mut one, 0, 0).unwrap();
        assert!(driver::download(&stream, &one) == [2; 10]);
    });
}

#[test]
fn copies_are_sent_while_the_buffer_is_used_again() {
    on_streams(&Network::all(), |comm, stream| {
        let (on, other) = (comm.on_stream(stream), 1 - comm.rank());
        let (mine, theirs) = (comm.rank(), other);
        for (at, bytes) in SIZES.into_iter().enumerate() {
            let tag = at as u32;
            let mut data = memory(stream, bytes);
            upload(stream, &pattern(bytes, mine), &data);
            // Both send first; nobody waits for the other.
            let sent = on.bsend(&data, other, tag).unwrap();
            upload(stream, &vec![0; bytes], &data);
            on.recv(&mut data, other, tag).unwrap();
            assert!(driver::download(stream, &data) == pattern(bytes, theirs));
            on.sendrecv_replace(&mut data, other, tag, other, tag)
                .unwrap();
            assert!(driver::download(stream, &data) == pattern(bytes, mine));
            on.synchronize().unwrap();
            sent.wait().unwrap();
            // With gaps, which stay.
            if bytes % 8 == 0 && bytes > 0 {
                let every = Type::vector(bytes / 8, 4, 8, &Type::of::<u8>()).unwrap();
                let every = every.commit().unwrap();
                let view = DeviceView::new(&data, 4, &every, 1);
                let Ok(mut view) = view else { continue };
                on.sendrecv_replace(&mut view, other, tag, other, tag)
                    .unwrap();
                let want: Vec<u8> = pattern(bytes, mine)
                    .into_iter()
                    .zip(pattern(bytes, theirs))
                    .enumerate()
                    .map(|(i, (here, there))| if i % 8 < 4 { here } else { there })
                    .collect();
                assert!(driver::download(stream, &data) == want, "{bytes}");
            }
        }
        let data = memory(stream, 64);
        Graph::capture(stream, |_| {
            fails(
                on.bsend(&data, other, 0),
                ErrorKind::Unavailable,
                &["captured"],
            );
            Ok::<(), osier::devices::DeviceError>(())
        })
        .map(drop)
        .unwrap();
        let far = on.bsend(&data, other + 7, 0);
        fails(far, ErrorKind::Rank, &[]);
        on.synchronize().unwrap();
    });
}
