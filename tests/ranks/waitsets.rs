//! Wait sets and generalised requests.

use crate::support::{Random, fails, on_all, pattern};
use osier::requests::{
    AnyRequest, Callbacks, WaitSet, Waitable, status_all, status_any, status_some, wait_any,
    wait_some,
};
use osier::testing::{Network, universes_on};
use osier::{ErrorKind, Status};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Of many posted receives few end: only those are looked at.
#[test]
fn a_wait_set_looks_only_at_what_is_over() {
    const POSTED: usize = 10_000;
    const SENT: usize = 100;
    on_all(2, |comm| {
        let mut random = Random::new(5);
        let mut tags: Vec<usize> = (0..POSTED).collect();
        random.shuffle(&mut tags);
        if comm.rank() == 1 {
            comm.barrier().expect("posted");
            for tag in &tags[..SENT] {
                comm.send(&[*tag as u64], 0, *tag).expect("send");
            }
            comm.barrier().expect("taken");
            for tag in &tags[SENT..] {
                comm.send(&[*tag as u64], 0, *tag).expect("send");
            }
            return;
        }
        let mut set = WaitSet::new();
        for tag in 0..POSTED {
            let request = comm.irecv(vec![0u64], 1, tag).expect("irecv");
            set.add(tag, request).expect("add");
        }
        let before = set.examined();
        assert!(before <= POSTED as u64);
        comm.barrier().expect("posted");
        for _ in 0..SENT {
            let (tag, result) = set.wait().expect("not empty");
            assert_eq!(result.expect("received").0, [tag as u64]);
        }
        assert_eq!(set.examined() - before, SENT as u64);
        assert!(set.test().is_none());
        assert_eq!(set.examined() - before, SENT as u64, "looked at idle ones");
        comm.barrier().expect("taken");
        let mut over = 0;
        while !set.is_empty() {
            over += set.wait_some().len();
        }
        assert_eq!(over, POSTED - SENT);
        assert_eq!(set.examined() - before, POSTED as u64);
        assert!(set.wait().is_none());
    });
}

/// Prints what a request costs in a set of 10^4, and by waiting for any.
#[test]
#[ignore = "a measurement"]
fn time_per_request_of_ten_thousand() {
    use std::time::Instant;
    const POSTED: usize = 10_000;
    crate::support::on_shm(2, |comm| {
        for round in 0..5 {
            if comm.rank() == 1 {
                comm.barrier().expect("posted");
                for tag in 0..POSTED {
                    comm.send(&[tag as u64], 0, tag).expect("send");
                }
                comm.barrier().expect("taken");
                continue;
            }
            let start = Instant::now();
            let mut set = WaitSet::new();
            for tag in 0..POSTED {
                let request = comm.irecv(vec![0u64], 1, tag).expect("irecv");
                set.add(tag, request).expect("add");
            }
            let posted = start.elapsed();
            comm.barrier().expect("posted");
            let start = Instant::now();
            while let Some((tag, result)) = set.wait() {
                assert_eq!(result.expect("received").0, [tag as u64]);
            }
            let waited = start.elapsed();
            comm.barrier().expect("taken");
            let ns = |d: std::time::Duration| d.as_nanos() as f64 / POSTED as f64;
            println!(
                "round {round}: post and add {:.0} ns, wait {:.0} ns per request; {} looks at {POSTED}",
                ns(posted),
                ns(waited),
                set.examined()
            );
        }
    });
}

#[test]
fn requests_of_all_kinds_wait_together() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        comm.attach_automatic().expect("attach");
        let mut borrowed = vec![0u8; 300_000];
        let data = pattern(300_000, 1);
        let mut replaced = comm
            .isendrecv_replace(pattern(50_000, 2), peer, 2, peer, 2)
            .expect("isendrecv_replace");
        assert!(replaced.status().is_none_or(|r| r.is_ok()));
        let (general, completer) = comm.generalized_request(Callbacks::new());
        let mut completer = Some(completer);
        comm.scope(|s| {
            let mut set: WaitSet<&str, AnyRequest<'_>> = WaitSet::new();
            set.add(
                "received",
                AnyRequest::new(s.irecv(&mut borrowed, peer, 1)?),
            )?;
            set.add("general", AnyRequest::new(general))?;
            set.add("replaced", AnyRequest::new(replaced))?;
            set.add(
                "both",
                AnyRequest::new(comm.isendrecv(vec![1u8], peer, 3, vec![0u8], peer, 3)?),
            )?;
            comm.bsend(&pattern(400_000, 4), peer, 4)?;
            set.add("flushed", AnyRequest::new(comm.iflush_buffer()))?;
            set.add("sent", AnyRequest::new(s.isend(&data, peer, 1)?))?;
            let (got, _) = comm.recv_vec::<u8>(peer, 4)?;
            assert!(got == pattern(400_000, 4));
            let mut over = Vec::new();
            while let Some((key, result)) = set.wait() {
                result?;
                over.push(key);
                if over.len() == 5 {
                    completer.take().expect("one").complete();
                }
            }
            assert_eq!(over.pop(), Some("general"));
            over.sort_unstable();
            assert_eq!(over, ["both", "flushed", "received", "replaced", "sent"]);
            Ok(())
        })
        .expect("scope");
        assert!(borrowed == pattern(300_000, 1));
    });
}

#[test]
fn members_can_be_cancelled_and_taken_out() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut set = WaitSet::new();
        let a = set
            .add('a', comm.irecv(vec![0u8; 8], peer, 1).expect("irecv"))
            .expect("add");
        let b = set
            .add('b', comm.irecv(vec![0u8; 8], peer, 2).expect("irecv"))
            .expect("add");
        assert!(set.get_mut(a).expect("in the set").cancel());
        let (key, result) = set.remove(a).map(|(k, r)| (k, r.wait())).expect("there");
        assert!(key == 'a' && result.expect("over").1.cancelled());
        assert!(set.remove(a).is_none() && set.get_mut(a).is_none());
        // In the same slot, under another name.
        let c = set
            .add('c', comm.irecv(vec![0u8; 8], peer, 3).expect("irecv"))
            .expect("add");
        assert!(set.get_mut(a).is_none() && set.get_mut(c).is_some());
        let (_, taken) = set.remove(b).expect("there");
        comm.send(&[2u8; 8], peer, 2).expect("send");
        comm.send(&[3u8; 8], peer, 3).expect("send");
        assert_eq!(taken.wait().expect("received").0, [2; 8]);
        let all = set.wait_all();
        assert_eq!(all.len(), 1);
        assert!(all.iter().all(|(k, r)| *k == 'c' && r.is_ok()));
        assert_eq!(set.len(), 0);
    });
}

/// One that is cancelled is over, and the set gives it back.
#[test]
fn members_that_are_cancelled_come_back() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut set = WaitSet::new();
        for tag in 0..3u32 {
            let request = comm.irecv(vec![0u8; 8], peer, tag).expect("irecv");
            let member = set.add(tag, request).expect("add");
            assert!(set.get_mut(member).expect("in the set").cancel());
        }
        for tag in 0..3 {
            let (key, result) = set.wait().expect("one");
            assert!(key == tag && result.expect("over").1.cancelled());
        }
        assert!(set.is_empty());
    });
}

#[test]
fn statuses_are_read_without_freeing() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut requests: Vec<_> = (0..4)
            .map(|tag| comm.irecv(vec![0u8; 8], peer, tag).expect("irecv"))
            .collect();
        assert!(status_any(&mut requests).is_none());
        assert!(status_all(&mut requests).is_none());
        comm.barrier().expect("posted");
        comm.send(&[2u8; 3], peer, 2).expect("send");
        let (at, status) = loop {
            if let Some(over) = status_any(&mut requests) {
                break over;
            }
        };
        assert_eq!((at, status.expect("fine").bytes()), (2, 3));
        assert_eq!(status_some(&mut requests).len(), 1, "still there");
        comm.barrier().expect("read");
        for tag in [0, 1, 3] {
            comm.send(&[1u8; 5], peer, tag).expect("send");
        }
        let all = loop {
            if let Some(all) = status_all(&mut requests) {
                break all.expect("fine");
            }
        };
        assert_eq!(all.iter().map(Status::bytes).sum::<usize>(), 18);
        assert!(requests.iter_mut().all(Waitable::test));
        for (at, request) in requests.into_iter().enumerate() {
            assert_eq!(request.wait().expect("fine").1, all[at]);
        }
    });
}

#[test]
fn generalized_requests_call_back() {
    on_all(2, |comm| {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let log = |what: &'static str| {
            let calls = calls.clone();
            move || calls.lock().expect("log").push(what)
        };
        let (query, free) = (log("query"), log("free"));
        let cancelled = calls.clone();
        let callbacks = Callbacks::new()
            .query(move || {
                query();
                let mut status = Status::new(1, 2, 24);
                status.set_cancelled(true);
                Ok(status)
            })
            .cancel(move |complete| {
                let what = if complete { "cancel late" } else { "cancel" };
                cancelled.lock().expect("log").push(what);
            })
            .free(free);
        let (mut request, completer) = comm.generalized_request(callbacks);
        assert!(!request.test() && request.status().is_none());
        request.cancel();
        std::thread::scope(|s| {
            s.spawn(|| completer.complete());
            while !request.test() {}
        });
        request.cancel();
        let first = request.status().expect("complete").expect("fine");
        assert_eq!(first.count::<u64>(), Some(3));
        let status = request.wait().expect("complete");
        assert!(status.cancelled() && status == first);
        let calls = calls.lock().expect("log");
        assert_eq!(*calls, ["cancel", "cancel late", "query", "free"]);
    });
}

#[test]
fn generalized_requests_wake_those_who_wait() {
    on_all(1, |comm| {
        let done = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for way in 0..4 {
                let (request, completer) = comm.generalized_request(Callbacks::new());
                let (comm, done) = (comm.clone(), &done);
                s.spawn(move || {
                    match way {
                        0 => drop(request.wait().expect("complete")),
                        1 => drop(comm.block_on(request).expect("complete")),
                        2 => {
                            let mut all = vec![request];
                            let (at, result) = wait_any(&mut all).expect("one");
                            assert!(at == 0 && result.is_ok());
                        }
                        _ => assert_eq!(wait_some(&mut vec![request]).len(), 1),
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
                s.spawn(move || {
                    // Long enough for the other to sleep, most often.
                    std::thread::sleep(std::time::Duration::from_millis(30));
                    completer.complete();
                });
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), 4);
        let (request, completer) = comm.generalized_request(Callbacks::new());
        drop(completer);
        fails(request.wait(), ErrorKind::Cancelled, &["completer"]);
    });
}

#[test]
fn a_wait_set_is_of_one_rank() {
    universes_on(&Network::Shm, 1, |universe| {
        let other = osier::Universe::alone().expect("a job of its own");
        let (a, _a) = universe.world().generalized_request(Callbacks::new());
        let (b, _b) = other.world().generalized_request(Callbacks::new());
        let mut set = WaitSet::new();
        set.add(1, a).expect("the first");
        fails(set.add(2, b).map(drop), ErrorKind::Argument, &["one set"]);
    });
}
