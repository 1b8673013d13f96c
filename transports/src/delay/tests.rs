//! On the clock of the simulated network, which adds nothing of its own unless a test says so.

use super::*;
use crate::loopback::Loopback;
use crate::sim::{SimEndpoint, SimNet, SimOptions};

type OverSim = Delayed<SimEndpoint, Box<dyn Fn() -> u64>>;

const HEAD: AmHead = AmHead {
    kind: 3,
    aux: 4,
    arg: 0,
};

fn still() -> SimOptions {
    SimOptions {
        latency_ns: 0..=0,
        ns_per_byte: 0.0,
        ..SimOptions::default()
    }
}

fn delay(latency_ns: u64, ns_per_mib: u64) -> Delay {
    Delay {
        latency_ns,
        ns_per_mib,
    }
}

fn over(net: &SimNet, delay: Delay) -> Vec<OverSim> {
    let members: Vec<u32> = (0..net.options().ranks).collect();
    let each = members.iter().map(|rank| {
        let clock = net.clone();
        let now: Box<dyn Fn() -> u64> = Box::new(move || clock.now_ns());
        Delayed::new(net.endpoint(*rank, 7, &members), delay, now, "delayed sim")
    });
    each.collect()
}

fn receive<E: Endpoint, C: Fn() -> u64>(end: &mut Delayed<E, C>) -> Option<(Peer, u64, Vec<u8>)> {
    let m = end.poll()?;
    assert_eq!((m.head.kind, m.head.aux), (HEAD.kind, HEAD.aux));
    // SAFETY: not yet released.
    let payload = unsafe { m.payload.to_vec() };
    end.release(&m);
    Some((m.peer, m.head.arg, payload))
}

fn post(end: &mut OverSim, to: Peer, arg: u64, payload: &[u8]) -> bool {
    match end.post(to, AmHead { arg, ..HEAD }, payload) {
        Ok(()) => true,
        Err(PostError::Full) => false,
        Err(PostError::Failed(e)) => panic!("{e}"),
    }
}

#[test]
fn message_is_visible_when_its_time_has_come() {
    let net = SimNet::new(still());
    let mut ends = over(&net, delay(1_000, 0));
    net.advance(50);
    assert!(post(&mut ends[0], 1, 9, b"abc"));
    assert_eq!(receive(&mut ends[1]), None);
    assert_eq!(ends[1].next_due_ns(), Some(1_050));
    net.advance(999);
    assert_eq!(receive(&mut ends[1]), None);
    net.advance(1);
    assert_eq!(receive(&mut ends[1]), Some((0, 9, b"abc".to_vec())));
    assert_eq!(ends[1].next_due_ns(), None);
    assert_eq!(receive(&mut ends[1]), None);
}

/// A receiver that comes late has not waited for less than it should, nor waits for more.
#[test]
fn late_receiver_finds_the_message_at_once() {
    let net = SimNet::new(still());
    let mut ends = over(&net, delay(1_000, 0));
    assert!(post(&mut ends[0], 1, 1, b"x") && post(&mut ends[0], 1, 2, &[]));
    net.advance(1_000);
    assert_eq!(receive(&mut ends[1]), Some((0, 1, b"x".to_vec())));
    assert_eq!(receive(&mut ends[1]), Some((0, 2, Vec::new())));
}

#[test]
fn fragments_take_as_long_as_the_whole() {
    let net = SimNet::new(still());
    // One ns for each byte.
    let mut ends = over(&net, delay(1_000, MIB));
    for arg in 0..3 {
        assert!(post(&mut ends[0], 1, arg, &[7; 4096]));
    }
    for arg in 0..3 {
        assert_eq!(receive(&mut ends[1]), None);
        assert_eq!(ends[1].next_due_ns(), Some(1_000 + 4096 * (arg + 1)));
        net.advance(ends[1].next_due_ns().expect("held") - net.now_ns());
        assert_eq!(receive(&mut ends[1]), Some((0, arg, vec![7; 4096])));
    }
    // A link that is free again makes nobody wait.
    net.advance(10_000);
    assert!(post(&mut ends[0], 1, 3, &[7; 100]));
    assert_eq!(receive(&mut ends[1]), None);
    assert_eq!(ends[1].next_due_ns(), Some(net.now_ns() + 1_100));
}

/// Random latencies, sizes and polls: all arrives, unchanged, in each sender's order, and none
/// too early.
#[test]
fn order_bytes_and_least_delay_hold_over_a_random_network() {
    const EACH: u64 = 200;
    for seed in 0..20 {
        let net = SimNet::new(SimOptions {
            ranks: 3,
            seed,
            latency_ns: 0..=3_000,
            ..SimOptions::default()
        });
        let added = delay(700 * (seed % 4), 1_000_000 * (seed % 3));
        let mut ends = over(&net, added);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut posted_ns = [[0u64; EACH as usize]; 2];
        let (mut next, mut expected) = ([0u64; 2], [0u64; 2]);
        while expected.iter().any(|n| *n < EACH) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let from = (random % 2) as usize;
            let number = next[from];
            if number < EACH && random & 4 != 0 {
                let bytes = vec![number as u8; (random >> 8) as usize % 3_000];
                if post(&mut ends[from], 2, number, &bytes) {
                    posted_ns[from][number as usize] = net.now_ns();
                    next[from] += 1;
                }
            }
            if random & 8 != 0 {
                // What is taken from below so is not shown before its turn.
                let awaited = ends[2].is_awaited(from as u32);
                let all = next[from] == expected[from];
                assert!(!(awaited && all), "seed {seed}: nothing is under way");
            }
            if let Some((peer, number, payload)) = receive(&mut ends[2]) {
                let peer = peer as usize;
                assert_eq!(number, expected[peer], "seed {seed}");
                expected[peer] += 1;
                assert!(payload.iter().all(|byte| *byte == number as u8));
                let least = posted_ns[peer][number as usize]
                    + added.latency_ns
                    + added.of_bytes(payload.len());
                assert!(net.now_ns() >= least, "seed {seed}: {number} is early");
            } else {
                net.advance(random >> 40 & 511);
            }
        }
        assert_eq!(ends[2].next_due_ns(), None);
    }
}

#[test]
fn last_words_of_a_dead_sender_are_awaited() {
    let net = SimNet::new(still());
    let mut ends = over(&net, delay(1_000, 0));
    assert!(!ends[1].is_awaited(0));
    assert!(post(&mut ends[0], 1, 1, b"last"));
    net.kill(0);
    assert!(ends[1].is_awaited(0));
    assert_eq!(receive(&mut ends[1]), None);
    net.advance(1_000);
    assert!(ends[1].is_awaited(0));
    assert_eq!(receive(&mut ends[1]), Some((0, 1, b"last".to_vec())));
    assert!(!ends[1].is_awaited(0));
}

/// A rank's messages to itself are those of a thread of its process.
#[test]
fn threads_of_a_process_are_not_delayed() {
    let mut end = Delayed::new(Loopback::new(0), delay(1_000_000, 0), || 5, "delayed self");
    let head = |arg| AmHead { arg, ..HEAD };
    end.post(0, head(1), b"a").expect("room");
    assert!(end.is_awaited(0), "taken from below, not handed out");
    end.post(0, head(2), b"b").expect("room");
    for (arg, payload) in [(1, b"a"), (2, b"b")] {
        assert_eq!(receive(&mut end), Some((0, arg, payload.to_vec())));
    }
    assert!(!end.is_awaited(0));
    assert!(end.sharing(0).process);
    let mut memory = 7u64;
    // SAFETY: the memory outlives the key.
    let key = unsafe { end.export_to(0, (&raw mut memory).cast(), 8, true) }.expect("exported");
    assert!(end.mapped(0, &key).is_some());
}

#[test]
fn other_processes_share_nothing() {
    let net = SimNet::new(SimOptions {
        mapped: true,
        ..still()
    });
    let mut ends = over(&net, delay(0, 0));
    let end = &mut ends[0];
    let shared = end.sharing(1);
    assert!(!shared.process && !shared.host_memory && !shared.devices);
    let mut memory = 7u64;
    let at = &raw mut memory;
    // SAFETY: the memory outlives the keys.
    let exported = unsafe { end.export_to(1, at.cast(), 8, true) };
    let refused = exported.expect_err("refused");
    assert_eq!(refused.kind(), TransportErrorKind::Unavailable);
    assert!(refused.to_string().contains("delayed"), "{refused}");
    // SAFETY: the memory outlives the keys.
    assert!(unsafe { end.export(at.cast(), 8) }.is_err());
    // SAFETY: the memory outlives the keys.
    let key = unsafe { end.below().export(at.cast(), 8) }.expect("exported below");
    // SAFETY: the memory is eight bytes long and ours.
    assert!(unsafe { end.get(1, &key, 0, at.cast(), 8) }.is_err());
    // SAFETY: the memory is eight bytes long and ours.
    assert!(unsafe { end.put(1, &key, 0, at.cast(), 8) }.is_err());
    assert!(end.atomic(1, &key, 0, AtomicOp::Load).is_err());
    assert!(end.mapped(1, &key).is_none());
    let most = end.capabilities().max_payload_bytes;
    assert!(
        most.is_multiple_of(PAYLOAD_ALIGN) && most > 32_000,
        "{most}"
    );
    assert!(post(&mut ends[0], 1, 0, &vec![1; most]));
}

/// What no delayed endpoint posts: too short for a time, or with one that is still to come.
#[test]
fn wrong_times_do_no_harm() {
    let net = SimNet::new(still());
    let mut ends = over(&net, delay(100, 0));
    net.advance(10);
    let raw = ends[0].below_mut();
    raw.post(1, HEAD, b"abc").expect("room");
    raw.post(1, HEAD, &u64::MAX.to_le_bytes()).expect("room");
    assert_eq!(receive(&mut ends[1]), None);
    assert_eq!(ends[1].malformed(), 1);
    assert_eq!(ends[1].next_due_ns(), Some(110));
    net.advance(100);
    assert_eq!(receive(&mut ends[1]), Some((0, 0, Vec::new())));
}

#[test]
fn what_is_held_is_bounded_and_nothing_is_lost() {
    let net = SimNet::new(still());
    let mut ends = over(&net, delay(1_000, 0));
    let (sender, receiver) = ends.split_at_mut(1);
    let (sender, receiver) = (&mut sender[0], &mut receiver[0]);
    let bytes = vec![5; sender.capabilities().max_payload_bytes];
    let mut sent = 0;
    loop {
        while post(sender, 1, sent, &bytes) {
            sent += 1;
        }
        let before = receiver.held_bytes;
        assert_eq!(receive(receiver), None);
        if receiver.held_bytes == before {
            break;
        }
    }
    let most = HELD_BYTES + bytes.len() + HELD_OVERHEAD_BYTES;
    assert!((HELD_BYTES..most).contains(&receiver.held_bytes));
    assert!(receiver.is_awaited(0));
    net.advance(1_000);
    for arg in 0..sent {
        assert_eq!(receive(receiver).map(|m| (m.0, m.1)), Some((0, arg)));
    }
    assert_eq!(receiver.held_bytes, 0);
    assert!(post(sender, 1, sent, &bytes), "credit came back");
}

#[test]
fn delays_are_shown_with_units() {
    assert_eq!(delay(20_000, 0).to_string(), "20us");
    assert_eq!(
        delay(1_500, 2_000_000_000).to_string(),
        "1500ns and 2s per MiB"
    );
    assert_eq!(delay(0, 0).to_string(), "0ns");
}
