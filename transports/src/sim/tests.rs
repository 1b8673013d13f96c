use super::*;
use crate::contract::{
    AmHead, AtomicOp, Endpoint, OneSided, PostError, RegionKind, TransportError, TransportErrorKind,
};

fn head(arg: u64) -> AmHead {
    AmHead {
        kind: 1,
        aux: 2,
        arg,
    }
}

fn net(options: SimOptions) -> SimNet {
    SimNet::new(options)
}

fn everyone(net: &SimNet, channel: u64) -> Vec<SimEndpoint> {
    let members: Vec<u32> = (0..net.options().ranks).collect();
    members
        .iter()
        .map(|r| net.endpoint(*r, channel, &members))
        .collect()
}

/// Polls once and returns sender, `arg` and payload.
fn receive(end: &mut SimEndpoint) -> Option<(u32, u64, Vec<u8>)> {
    let m = end.poll()?;
    // SAFETY: not yet released.
    let payload = unsafe { m.payload.to_vec() };
    end.release(&m);
    Some((m.peer, m.head.arg, payload))
}

/// Moves the clock until an operation ends.
fn end_of(end: &mut SimEndpoint) -> (u64, Result<u64, TransportErrorKind>) {
    loop {
        if let Some((number, outcome)) = end.poll_completion() {
            return (number, outcome.map_err(|e| e.kind()));
        }
        assert!(end.net().advance_to_next_event(), "operation is lost");
    }
}

fn kind(e: PostError) -> Option<TransportErrorKind> {
    match e {
        PostError::Full => None,
        PostError::Failed(e) => Some(e.kind()),
    }
}

/// Every rank posts `count` messages to every rank, itself included; returns
/// (receiver, sender, number) in the order of delivery.
fn exchange(options: SimOptions, count: u64) -> (Vec<(u32, u32, u64)>, SimNet) {
    let net = net(options);
    let mut ends = everyone(&net, 7);
    let ranks = ends.len();
    let mut posted = vec![vec![0u64; ranks]; ranks];
    let mut trace = Vec::new();
    let total = count as usize * ranks * ranks;
    while trace.len() < total {
        let mut moved = false;
        for (r, end) in ends.iter_mut().enumerate() {
            for (to, n) in posted[r].iter_mut().enumerate() {
                let payload = vec![*n as u8; *n as usize % 60];
                if *n < count && end.post(to as u32, head(*n), &payload).is_ok() {
                    *n += 1;
                    moved = true;
                }
            }
            while let Some((from, n, payload)) = receive(end) {
                assert_eq!(payload, vec![n as u8; n as usize % 60]);
                trace.push((r as u32, from, n));
                moved = true;
            }
        }
        assert!(moved || net.advance_to_next_event(), "deadlock");
    }
    (trace, net)
}

#[test]
fn messages_of_a_pair_stay_in_order_and_none_is_lost() {
    for seed in 0..50 {
        let options = SimOptions {
            ranks: 4,
            seed,
            capacity_messages: 1 + seed as usize % 5,
            ..SimOptions::default()
        };
        let (trace, net) = exchange(options, 20);
        let mut next = [[0; 4]; 4];
        for (to, from, n) in trace {
            assert_eq!(n, next[to as usize][from as usize], "seed {seed}");
            next[to as usize][from as usize] += 1;
        }
        assert_eq!(next, [[20; 4]; 4]);
        let stats = net.stats();
        assert_eq!((stats.posted, stats.delivered), (320, 320));
        assert_eq!(net.in_flight(), InFlight::default());
    }
}

#[test]
fn the_seed_decides_everything() {
    let run = |seed| {
        let options = SimOptions {
            ranks: 3,
            seed,
            ..SimOptions::default()
        };
        let (trace, net) = exchange(options, 10);
        (trace, net.trace_hash(), net.now_ns())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
    assert_ne!(run(5).1, run(6).1);
}

#[test]
fn pairs_and_channels_are_reordered() {
    let mut swapped = [0; 2];
    for seed in 0..100 {
        let net = net(SimOptions {
            ranks: 3,
            seed,
            ..SimOptions::default()
        });
        let mut ends = everyone(&net, 1);
        let mut other = net.endpoint(0, 2, &[0, 2]);
        let mut other_to = net.endpoint(2, 2, &[0, 2]);
        ends[0].post(2, head(0), &[]).unwrap();
        ends[1].post(2, head(1), &[]).unwrap();
        other.post(1, head(2), &[]).unwrap();
        let mut order = Vec::new();
        while net.advance_to_next_event() {
            order.extend(receive(&mut ends[2]).map(|m| m.1));
            order.extend(receive(&mut other_to).map(|m| m.1));
        }
        assert_eq!(order.len(), 3);
        let at = |n| order.iter().position(|o| *o == n);
        swapped[0] += usize::from(at(1) < at(0));
        swapped[1] += usize::from(at(2) < at(0));
    }
    assert!(swapped.iter().all(|s| (20..80).contains(s)), "{swapped:?}");
}

#[test]
fn capacity_is_per_pair_and_comes_back_with_the_release() {
    let net = net(SimOptions {
        ranks: 3,
        capacity_messages: 2,
        ..SimOptions::default()
    });
    let mut ends = everyone(&net, 1);
    ends[0].post(1, head(0), &[]).unwrap();
    ends[0].post(1, head(1), &[]).unwrap();
    let mut filled = false;
    let full = ends[0].post_with(1, head(2), 0, |_| filled = true);
    assert_eq!((full.map_err(kind), filled), (Err(None), false));
    ends[0].post(2, head(0), &[]).unwrap();
    assert!(net.advance_to_next_event());
    net.advance(1_000_000);
    let m = ends[1].poll().unwrap();
    assert_eq!(ends[0].post(1, head(2), &[]).map_err(kind), Err(None));
    ends[1].release(&m);
    ends[0].post(1, head(2), &[]).unwrap();
    assert_eq!(net.stats().refused, 2);
}

#[test]
fn messages_wait_for_an_endpoint_and_vanish_after_it() {
    let net = net(SimOptions {
        capacity_messages: 3,
        ..SimOptions::default()
    });
    let mut a = net.endpoint(0, 9, &[1, 0]);
    for n in 0..3 {
        a.post(0, head(n), &[n as u8]).unwrap();
    }
    assert!(matches!(a.post(0, head(3), &[]), Err(PostError::Full)));
    while net.advance_to_next_event() {}
    let mut b = net.endpoint(1, 9, &[1, 0]);
    assert_eq!(receive(&mut b), Some((1, 0, vec![0])));
    assert_eq!(receive(&mut b), Some((1, 1, vec![1])));
    drop(b);
    for n in 0..10 {
        a.post(0, head(n), &[]).unwrap();
    }
    let stats = net.stats();
    assert_eq!((stats.posted, stats.delivered), (13, 2));
    assert_eq!(stats.dropped_closed, 11);
    assert_eq!(net.in_flight().messages, 0);
}

#[test]
fn a_close_does_not_overtake_what_was_posted_before() {
    let net = net(SimOptions::default());
    let mut ends = everyone(&net, 1);
    let mut b = ends.pop().unwrap();
    let a = &mut ends[0];
    assert!(!a.closed(1));
    b.post(0, head(7), &[1]).unwrap();
    drop(b);
    assert!(!a.closed(1), "its last message is on its way");
    net.advance(1_000_000);
    assert_eq!(receive(a), Some((1, 7, vec![1])));
    assert!(a.closed(1) && !a.closed(0) && !a.closed(9));
}

#[test]
fn senders_that_are_no_members_are_counted() {
    let net = net(SimOptions::default());
    let mut a = net.endpoint(0, 1, &[0, 1]);
    let mut b = net.endpoint(1, 1, &[1]);
    a.post(1, head(0), &[1, 2]).unwrap();
    net.advance(1_000_000);
    assert!(b.poll().is_none());
    assert_eq!(b.malformed(), 1);
    let beyond = b.post(1, head(0), &[]).map_err(kind);
    assert_eq!(beyond, Err(Some(TransportErrorKind::Invalid)));
    let long = a.post(1, head(0), &vec![0; 40_000]).map_err(kind);
    assert_eq!(long, Err(Some(TransportErrorKind::Invalid)));
}

#[test]
fn released_payloads_are_overwritten() {
    let net = net(SimOptions::default());
    let mut ends = everyone(&net, 1);
    ends[0].post(1, head(0), &[1, 2, 3]).unwrap();
    net.advance(1_000_000);
    let m = ends[1].poll().unwrap();
    ends[1].release(&m);
    // SAFETY: the simulation keeps the buffer for the next message.
    assert_eq!(unsafe { m.payload.to_vec() }, [0xDD; 3]);
}

#[test]
fn death_keeps_what_was_sent_and_loses_what_comes() {
    let net = net(SimOptions {
        ranks: 3,
        capacity_messages: 4,
        ..SimOptions::default()
    });
    let mut ends = everyone(&net, 1);
    ends[0].post(1, head(10), &[]).unwrap();
    ends[1].post(0, head(11), &[]).unwrap();
    ends[2].post(0, head(12), &[]).unwrap();
    let seen = net.generation();
    net.kill(0);
    net.kill(0);
    assert!(net.generation() > seen);
    assert_eq!((net.death_epoch(), net.dead_ranks()), (1, vec![0]));
    assert!(net.is_dead(0) && !net.is_dead(1));
    net.finalize(0);
    assert!(!net.has_finalized(0), "it has failed before");
    for n in 0..10 {
        ends[1].post(0, head(n), &[0; 100]).unwrap();
    }
    net.advance(1_000_000);
    assert_eq!(receive(&mut ends[1]), Some((0, 10, vec![])));
    assert!(ends[0].poll().is_none());
    let own = ends[0].post(1, head(0), &[]);
    let Err(PostError::Failed(e)) = own else {
        panic!("a dead rank posted");
    };
    assert_eq!(e.kind(), TransportErrorKind::PeerDead);
    assert_eq!(e.to_string(), "rank 0 of the simulation is dead");
    let stats = net.stats();
    assert_eq!((stats.dropped_dead, stats.delivered), (12, 1));
    assert_eq!(net.in_flight().messages, 0);
}

#[test]
fn a_rank_dies_of_each_of_its_steps() {
    let run = |step: u64| {
        let net = net(SimOptions::default());
        let mut ends = everyone(&net, 1);
        net.kill_at_step(0, step);
        let posted = (0..3)
            .filter(|n| ends[0].post(1, head(*n), &[]).is_ok())
            .count();
        net.advance(1_000_000);
        assert!(ends[0].poll().is_none());
        let mut received = 0;
        while receive(&mut ends[1]).is_some() {
            received += 1;
        }
        assert_eq!(received, posted);
        (posted, net.steps(0), net.is_dead(0))
    };
    assert_eq!(run(1), (0, 1, true));
    assert_eq!(run(2), (1, 2, true));
    assert_eq!(run(4), (3, 4, true));
    assert_eq!(run(5), (3, 4, false));
}

#[test]
fn one_sided_operations_touch_memory_only_at_their_end() {
    let net = net(SimOptions::default());
    let mut ends = everyone(&net, 1);
    let mut words = [1u64, 2, 3, 4];
    let at = words.as_mut_ptr();
    // SAFETY: `words` outlives every use of the key.
    let key = unsafe { ends[1].export(at.cast(), 32) }.unwrap();
    assert_eq!((key.kind, key.owner), (RegionKind::Sim, 1));
    let mut two = [0u64; 2];
    let to = two.as_mut_ptr();
    // SAFETY: `two` lives until the end of the operation.
    let got = unsafe { ends[0].get(1, &key, 8, to.cast(), 16) }.unwrap();
    assert_eq!(got, OneSided::Pending(1));
    assert!(ends[0].poll_completion().is_none());
    assert_eq!(net.in_flight().operations, 1);
    // SAFETY: `two` is alive.
    assert_eq!(unsafe { to.read_volatile() }, 0);
    assert_eq!(end_of(&mut ends[0]), (1, Ok(0)));
    // SAFETY: `two` is alive.
    assert_eq!(unsafe { to.cast::<[u64; 2]>().read() }, [2, 3]);
    // SAFETY: `two` lives until the end of the operation.
    let put = unsafe { ends[0].put(1, &key, 16, to.cast_const().cast(), 16) }.unwrap();
    assert_eq!(put, OneSided::Pending(2));
    assert_eq!(end_of(&mut ends[0]), (2, Ok(0)));
    let mut run = |offset, op| {
        let started = ends[0].atomic(1, &key, offset, op).map_err(|e| e.kind())?;
        assert!(matches!(started, OneSided::Pending(_)));
        end_of(&mut ends[0]).1
    };
    assert_eq!(run(0, AtomicOp::Add(4)), Ok(1));
    assert_eq!(run(0, AtomicOp::Swap(9)), Ok(5));
    let (expected, new) = (9, 7);
    assert_eq!(run(0, AtomicOp::CompareSwap { expected, new }), Ok(9));
    assert_eq!(run(0, AtomicOp::CompareSwap { expected, new }), Ok(7));
    assert_eq!(run(0, AtomicOp::Load), Ok(7));
    assert_eq!(run(4, AtomicOp::Load), Err(TransportErrorKind::Invalid));
    assert_eq!(run(32, AtomicOp::Load), Err(TransportErrorKind::Invalid));
    assert_eq!(words, [7, 2, 2, 3]);
    assert_eq!(net.in_flight().operations, 0);
}

#[test]
fn operations_end_in_any_order() {
    let mut swapped = 0;
    for seed in 0..50 {
        let net = net(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let mut ends = everyone(&net, 1);
        let word = [5u64];
        // SAFETY: `word` outlives every use of the key.
        let key = unsafe { ends[1].export(word.as_ptr().cast(), 8) }.unwrap();
        for n in 1..=2 {
            let started = ends[0].atomic(1, &key, 0, AtomicOp::Load).unwrap();
            assert_eq!(started, OneSided::Pending(n));
        }
        let (first, outcome) = end_of(&mut ends[0]);
        assert_eq!(outcome, Ok(5));
        swapped += usize::from(first == 2);
        assert_eq!(end_of(&mut ends[0]).0, 3 - first);
    }
    assert!((10..40).contains(&swapped), "{swapped}");
}

#[test]
fn regions_are_reached_only_as_they_were_exported() {
    use TransportErrorKind::{Invalid, Malformed, PeerDead};
    let net = net(SimOptions {
        ranks: 3,
        ..SimOptions::default()
    });
    let mut ends = everyone(&net, 1);
    let bytes = [1u8; 64];
    // SAFETY: `bytes` outlives every use of the key.
    let key = unsafe { ends[1].export(bytes.as_ptr(), 64) }.unwrap();
    let mut into = [0u8; 64];
    let to = into.as_mut_ptr();
    let read = |ends: &mut [SimEndpoint], peer, key: &RegionKey, offset, n| {
        // SAFETY: at most 64 bytes, and `into` outlives the operation.
        let started = unsafe { ends[0].get(peer, key, offset, to, n) }.map_err(|e| e.kind())?;
        assert!(matches!(started, OneSided::Pending(_)));
        end_of(&mut ends[0]).1
    };
    assert_eq!(read(&mut ends, 1, &key, 0, 64), Ok(0));
    assert_eq!(read(&mut ends, 1, &key, 64, 0), Ok(0));
    assert_eq!(read(&mut ends, 1, &key, 1, 64), Err(Invalid));
    assert_eq!(read(&mut ends, 1, &key, u64::MAX, 2), Err(Invalid));
    assert_eq!(read(&mut ends, 2, &key, 0, 1), Err(Malformed));
    let with = |change: fn(&mut RegionKey)| {
        let mut k = key;
        change(&mut k);
        k
    };
    let local = with(|k| k.kind = RegionKind::Local);
    assert_eq!(read(&mut ends, 1, &local, 0, 1), Err(Malformed));
    let larger = with(|k| k.bytes += 1);
    assert_eq!(read(&mut ends, 1, &larger, 0, 1), Err(Malformed));
    let moved = with(|k| k.base += 1);
    assert_eq!(read(&mut ends, 1, &moved, 0, 1), Err(Malformed));
    // SAFETY: as above.
    let again = unsafe { ends[1].export(bytes.as_ptr(), 64) }.unwrap();
    assert_eq!((again, net.exports(1), net.exports(0)), (key, 2, 0));
    assert!(net.unexport(&key));
    assert_eq!(read(&mut ends, 1, &key, 0, 1), Ok(0));
    assert!(net.unexport(&key));
    assert!(!net.unexport(&key));
    assert_eq!(read(&mut ends, 1, &key, 0, 1), Err(Malformed));
    // SAFETY: as above.
    unsafe { ends[1].export(bytes.as_ptr(), 64) }.unwrap();
    net.forget_exports(1);
    assert_eq!(net.exports(1), 0);
    assert_eq!(read(&mut ends, 1, &key, 0, 1), Err(Malformed));
    // SAFETY: as above.
    unsafe { ends[1].export(bytes.as_ptr(), 64) }.unwrap();
    net.kill(1);
    assert_eq!(read(&mut ends, 1, &key, 0, 1), Err(PeerDead));
    assert_eq!(net.in_flight().operations, 0);
    assert!(net.stats().failed_operations >= 5);
}

#[test]
fn death_ends_pending_operations_untouched() {
    for victim in 0..2 {
        let net = net(SimOptions::default());
        let mut ends = everyone(&net, 1);
        let source = [3u8; 8];
        // SAFETY: `source` outlives every use of the key.
        let key = unsafe { ends[1].export(source.as_ptr(), 8) }.unwrap();
        let mut into = [0u8; 8];
        // SAFETY: `into` outlives the operation.
        unsafe { ends[0].get(1, &key, 0, into.as_mut_ptr(), 8) }.unwrap();
        net.kill(victim);
        let dead = Err(TransportErrorKind::PeerDead);
        assert_eq!(end_of(&mut ends[0]), (1, dead));
        assert_eq!(into, [0; 8]);
    }
}

#[test]
fn absent_abilities_are_refused() {
    let net = net(SimOptions {
        get: false,
        put: false,
        atomics: false,
        ..SimOptions::default()
    });
    let mut ends = everyone(&net, 1);
    let can = ends[0].capabilities();
    assert!(!can.get && !can.put && !can.atomics && !can.export_plain);
    let mut word = [0u64];
    let at = word.as_mut_ptr().cast::<u8>();
    // SAFETY: `word` outlives the call.
    let refused = unsafe { ends[1].export(at, 8) }.map_err(|e| e.kind());
    assert_eq!(refused, Err(TransportErrorKind::Unavailable));
    let key = RegionKey {
        kind: RegionKind::Sim,
        owner: 1,
        base: at.expose_provenance() as u64,
        bytes: 8,
    };
    let of = |r: Result<OneSided, TransportError>| r.map_err(|e| e.kind());
    let refused = Err(TransportErrorKind::Unavailable);
    // SAFETY: `word` is alive, and the call is refused.
    assert_eq!(of(unsafe { ends[0].get(1, &key, 0, at, 8) }), refused);
    // SAFETY: as above.
    assert_eq!(of(unsafe { ends[0].put(1, &key, 0, at, 8) }), refused);
    assert_eq!(of(ends[0].atomic(1, &key, 0, AtomicOp::Load)), refused);
}

#[test]
fn regions_are_mapped_on_request() {
    for mapped in [false, true] {
        let net = net(SimOptions {
            mapped,
            ..SimOptions::default()
        });
        let mut ends = everyone(&net, 1);
        let bytes = [1u8; 16];
        // SAFETY: `bytes` outlives every use of the key.
        let key = unsafe { ends[1].export(bytes.as_ptr(), 16) }.unwrap();
        let at = ends[0].mapped(1, &key);
        assert_eq!(at, mapped.then_some(bytes.as_ptr()));
        net.kill(1);
        assert_eq!(ends[0].mapped(1, &key), None);
    }
}

#[test]
fn corruption_changes_one_byte_of_one_message() {
    for seed in 0..100 {
        let net = net(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let mut ends = everyone(&net, 1);
        net.corrupt_next(0, 1);
        ends[1].post(0, head(0), &[5; 4]).unwrap();
        ends[0].post(1, head(0), &[5; 4]).unwrap();
        ends[0].post(1, head(0), &[5; 4]).unwrap();
        net.advance(1_000_000);
        let mut changed = |r: usize| {
            let m = ends[r].poll().unwrap();
            // SAFETY: not yet released.
            let payload = unsafe { m.payload.to_vec() };
            ends[r].release(&m);
            let AmHead { kind, aux, arg } = m.head;
            let pairs = [kind.into(), aux.into(), arg].into_iter().zip([1u64, 2, 0]);
            pairs.filter(|(is, was)| is != was).count()
                + payload.iter().filter(|b| **b != 5).count()
        };
        assert_eq!((changed(0), changed(1), changed(1)), (0, 1, 0));
        assert_eq!(net.stats().corrupted, 1);
    }
}

#[test]
fn threads_move_the_clock_themselves() {
    const RANKS: u32 = 4;
    const ROUNDS: u64 = 200;
    let net = net(SimOptions {
        ranks: RANKS,
        capacity_messages: 2,
        auto_advance: true,
        ..SimOptions::default()
    });
    let members: Vec<u32> = (0..RANKS).collect();
    std::thread::scope(|s| {
        for rank in 0..RANKS {
            let (net, members) = (net.clone(), &members);
            s.spawn(move || {
                let mut end = net.endpoint(rank, 3, members);
                let (mut sent, mut received) = (0, 0);
                while received < ROUNDS || sent < ROUNDS {
                    let seen = net.generation();
                    let mut moved = false;
                    if sent < ROUNDS && end.post((rank + 1) % RANKS, head(sent), &[1; 9]).is_ok() {
                        sent += 1;
                        moved = true;
                    }
                    if let Some((from, n, _)) = receive(&mut end) {
                        assert_eq!((from, n), ((rank + RANKS - 1) % RANKS, received));
                        received += 1;
                        moved = true;
                    }
                    if !moved {
                        net.wait_generation_change(seen, Duration::from_secs(10));
                    }
                }
            });
        }
    });
    let stats = net.stats();
    assert_eq!(stats.delivered, u64::from(RANKS) * ROUNDS);
    assert!(net.now_ns() > 0);
}

#[test]
fn waiting_ends_by_time_and_by_news() {
    let net = net(SimOptions::default());
    let seen = net.generation();
    let still = net.wait_generation_change(seen, Duration::from_millis(1));
    assert_eq!(still, seen);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| net.wait_generation_change(seen, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(5));
        net.kill(1);
        assert!(waiter.join().unwrap() > seen);
    });
    let seen = net.generation();
    net.notify();
    assert_ne!(
        net.wait_generation_change(seen, Duration::from_secs(60)),
        seen
    );
}

#[test]
fn misuse_of_members_is_loud() {
    let refused = |members: &'static [u32]| {
        std::panic::catch_unwind(|| net(SimOptions::default()).endpoint(0, 1, members)).is_err()
    };
    assert!(refused(&[0, 0]) && refused(&[1]) && refused(&[0, 2]));
    let net = net(SimOptions::default());
    let _end = net.endpoint(0, 1, &[0]);
    let twice = std::panic::catch_unwind(|| net.endpoint(0, 1, &[0]));
    assert!(twice.is_err());
}

/// Prints, never fails: `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_run() {
    let runs = 1000;
    let start = Instant::now();
    for seed in 0..runs {
        let options = SimOptions {
            ranks: 4,
            seed,
            ..SimOptions::default()
        };
        exchange(options, 10);
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / runs as f64;
    println!("sim, 4 ranks, 160 messages: {us:.1} us per run");
}
