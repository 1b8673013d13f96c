use super::*;
use crate::Death;
use crate::contract::{AmHead, AtomicOp, Endpoint, OneSided, PostError, RegionKey, RegionKind};
use crate::sync::{AtomicU64, Ordering};

fn pair() -> (ShmRank, ShmRank) {
    let job = Job::create(&JobOptions {
        ranks: 2,
        limit_bytes: None,
    })
    .expect("shared memory");
    let a = ShmRank::join(&job, 0).expect("rank 0");
    let b = ShmRank::join(&job, 1).expect("rank 1");
    (a, b)
}

fn head(kind: u8, arg: u64) -> AmHead {
    AmHead { kind, aux: 7, arg }
}

fn next(e: &mut ShmEndpoint) -> (u32, AmHead, Vec<u8>) {
    for _ in 0..1_000_000 {
        if let Some(m) = e.poll() {
            // SAFETY: invariant 3 of `endpoint`: not released yet.
            let bytes = unsafe { m.payload.to_vec() };
            e.release(&m);
            return (m.peer, m.head, bytes);
        }
    }
    panic!("no message");
}

#[test]
fn messages_cross_and_rings_grow() {
    let (a, b) = pair();
    let mut ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    for i in 0..3000u64 {
        let most = MAX_PAYLOAD_BYTES as u64;
        let bytes: Vec<u8> = (0..(i * 131 % (most + 1))).map(|k| (k + i) as u8).collect();
        ea.post(1, head(3, i), &bytes).expect("credit");
        let (peer, h, got) = next(&mut eb);
        assert_eq!((peer, h), (0, head(3, i)));
        assert_eq!(got, bytes);
    }
    assert_eq!(a.malformed() + b.malformed(), 0);
}

/// Messages of one cell: the fifth answer to a stream gets a larger ring, else the seventeenth.
#[test]
fn the_ring_of_answers_grows_early() {
    for (streamed, grows_at) in [(40, 5), (0, 17)] {
        let (a, b) = pair();
        let mut ea = a.endpoint(5, vec![0, 1]);
        let mut eb = b.endpoint(5, vec![0, 1]);
        for n in 0..streamed {
            ea.post(1, head(3, n), b"message").expect("room");
            next(&mut eb);
        }
        let mut answer = |n| {
            eb.post(0, head(3, n), b"").expect("room");
            next(&mut ea);
            a.job().segment().reserved_bytes()
        };
        let small = answer(1);
        for n in 2..grows_at {
            assert_eq!(answer(n), small, "answer {n} to {streamed}");
        }
        assert!(answer(grows_at) > small, "answer {grows_at} to {streamed}");
    }
}

/// A rank sleeps with a post that found no room; its peer makes room, which is no post.
#[test]
fn a_sleeper_without_room_is_woken_when_there_is_some() {
    let (a, b) = pair();
    let mut ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    let mut posted = 0;
    while ea.post(1, head(3, posted), b"message").is_ok() {
        posted += 1;
    }
    let mut roused = false;
    a.sleep(
        &[],
        || std::time::Duration::from_secs(60),
        || {
            let again = ea.post(1, head(3, posted), b"message");
            assert!(matches!(again, Err(PostError::Full)));
            (0..posted).for_each(|n| assert_eq!(next(&mut eb).1, head(3, n)));
            roused = a.job().control(0).sleeping.load(Ordering::Relaxed) == 0;
            // The bell has been rung, or nobody would end the sleep.
            roused
        },
    );
    assert!(roused);
}

#[test]
fn a_message_waits_for_a_channel_that_opens_later() {
    let (a, b) = pair();
    let mut ea = a.endpoint(9, vec![1, 0]);
    ea.post(0, head(1, 42), b"early").expect("credit");
    let mut other = b.endpoint(8, vec![0, 1]);
    assert!(other.poll().is_none());
    let mut eb = b.endpoint(9, vec![1, 0]);
    assert_eq!(next(&mut eb).2, b"early");
}

#[test]
fn a_closed_channel_is_told_to_the_sender() {
    let (a, b) = pair();
    let mut ea = a.endpoint(9, vec![0, 1]);
    let eb = b.endpoint(9, vec![0, 1]);
    ea.post(1, head(1, 1), b"x").expect("credit");
    drop(eb);
    b.drain_inbox();
    assert!(ea.closed(1));
    let Err(PostError::Failed(e)) = ea.post(1, head(1, 1), &[0; 100]) else {
        panic!("expected an error");
    };
    assert_eq!(e.kind(), crate::TransportErrorKind::PeerClosed);
}

#[test]
fn death_is_an_error_of_the_sender() {
    let (a, _b) = pair();
    let mut ea = a.endpoint(9, vec![0, 1]);
    let epoch = a.job().death_epoch();
    a.job().mark_dead(1, Death::Signaled(9));
    assert_ne!(a.job().death_epoch(), epoch);
    let Err(PostError::Failed(e)) = ea.post(1, head(1, 1), b"x") else {
        panic!("expected an error");
    };
    assert!(e.to_string().contains("signal 9"), "{e}");
}

/// A rank that finalizes has not failed, however its process ends, and peers learn of it once
/// nothing of it is left.
#[test]
fn finalizing_is_no_failure() {
    let (a, b) = pair();
    let (job, mut ea) = (a.job().clone(), a.endpoint(9, vec![0, 1]));
    let eb = b.endpoint(9, vec![0, 1]);
    let epoch = job.death_epoch();
    b.finalize();
    drop(b);
    assert_eq!((job.death(1), job.death_epoch()), (None, epoch));
    // It may still be reading its rings.
    drop(eb);
    assert_eq!(job.death(1), Some(Death::Finalized));
    assert_ne!(job.death_epoch(), epoch);
    job.mark_dead(1, Death::Signaled(9));
    assert_eq!(job.death(1), Some(Death::Finalized));
    let Err(PostError::Failed(e)) = ea.post(1, head(1, 1), b"x") else {
        panic!("expected an error");
    };
    assert_eq!(e.kind(), crate::TransportErrorKind::PeerClosed);
    assert!(e.to_string().contains("has finalized"), "{e}");
    // Its process ends before it has let go of all.
    a.finalize();
    job.mark_dead(0, Death::Exited(3));
    assert_eq!(job.death(0), Some(Death::Finalized));
}

#[test]
fn a_process_that_does_not_finalize_fails_with_any_code() {
    let (a, b) = pair();
    let job = a.job().clone();
    drop(b);
    assert_eq!(job.death(1), None);
    job.mark_dead(1, Death::Exited(0));
    let how = job.death(1).expect("it has ended");
    assert!(how.is_failure());
    assert_eq!(how.to_string(), "exited with code 0 without finalizing");
}

#[test]
fn a_rank_is_taken_once() {
    let (a, _b) = pair();
    let Err(e) = ShmRank::join(a.job(), 1) else {
        panic!("joined twice");
    };
    assert!(e.to_string().contains("already taken"), "{e}");
}

#[test]
fn heap_is_read_in_place_and_plain_memory_through_a_key() {
    let (a, b) = pair();
    let mut ea = a.endpoint(1, vec![0, 1]);
    let mut eb = b.endpoint(1, vec![0, 1]);
    let p = a.heap_alloc(10_000, 1).expect("room");
    // SAFETY: invariant 1 of `heap`: just allocated.
    unsafe { std::ptr::write_bytes(p, 0xab, 10_000) };
    // SAFETY: invariant 5 of `endpoint`: alive until the end of the test.
    let key = unsafe { ea.export(p, 10_000) }.expect("exportable");
    assert_eq!(key.kind, RegionKind::Heap);
    let key = RegionKey::from_wire(&key.to_wire()).expect("round trip");
    let mut to = vec![0u8; 5000];
    // SAFETY: invariant 5 of `endpoint`: `to` has 5000 bytes.
    let done = unsafe { eb.get(0, &key, 5000, to.as_mut_ptr(), 5000) }.expect("readable");
    assert_eq!(done, OneSided::Done(0));
    assert!(to.iter().all(|b| *b == 0xab));
    // SAFETY: invariant 5 of `endpoint`: `to` has 5000 bytes.
    unsafe { eb.get(0, &key, 5001, to.as_mut_ptr(), 5000) }.expect_err("outside");
    // SAFETY: invariant 5 of `endpoint`: only read on error.
    unsafe { eb.put(0, &key, 0, to.as_ptr(), 8) }.expect_err("read-only");

    let words = [
        crate::sync::AtomicU64::new(40),
        crate::sync::AtomicU64::new(0),
    ];
    // SAFETY: invariant 5 of `endpoint`: alive until the end of the test.
    let key = unsafe { eb.export_to(0, words.as_ptr().cast_mut().cast(), 16, true) };
    let key = key.expect("exportable");
    let before = ea.atomic(1, &key, 0, AtomicOp::Add(2)).expect("atomic");
    assert_eq!(before, OneSided::Done(40));
    let before = ea
        .atomic(
            1,
            &key,
            0,
            AtomicOp::CompareSwap {
                expected: 42,
                new: 7,
            },
        )
        .expect("atomic");
    assert_eq!(before, OneSided::Done(42));
    assert_eq!(words[0].load(crate::sync::Ordering::Relaxed), 7);
    ea.atomic(1, &key, 4, AtomicOp::Load)
        .expect_err("unaligned");
    ea.atomic(1, &key, 16, AtomicOp::Load).expect_err("outside");
}

#[test]
fn sleep_ends_with_a_message() {
    let (a, b) = pair();
    let mut eb = b.endpoint(1, vec![0, 1]);
    let t = std::thread::spawn(move || {
        let mut ea = a.endpoint(1, vec![0, 1]);
        ea.post(1, head(1, 1), b"wake").expect("credit");
        (a, ea)
    });
    let got = loop {
        if let Some(m) = eb.poll() {
            eb.release(&m);
            break m.head.arg;
        }
        let mut seen = None;
        b.sleep(
            &[],
            || std::time::Duration::from_secs(30),
            || {
                seen = eb.poll();
                seen.is_none()
            },
        );
        if let Some(m) = seen {
            eb.release(&m);
            break m.head.arg;
        }
    };
    assert_eq!(got, 1);
    drop(t.join());
}

#[test]
fn two_threads_stream_both_ways() {
    let (a, b) = pair();
    let run = |r: ShmRank, me: u32| {
        move || {
            let mut e = r.endpoint(77, vec![0, 1]);
            let (mut sent, mut got) = (0u64, 0u64);
            while sent < 20_000 || got < 20_000 {
                if sent < 20_000 {
                    let bytes = vec![sent as u8; (sent * 97 % 3000) as usize];
                    match e.post(1 - me, head(2, sent), &bytes) {
                        Ok(()) => sent += 1,
                        Err(PostError::Full) => {}
                        Err(PostError::Failed(e)) => panic!("{e}"),
                    }
                }
                if let Some(m) = e.poll() {
                    assert_eq!(m.head.arg, got);
                    // SAFETY: invariant 3 of `endpoint`: not released yet.
                    let bytes = unsafe { m.payload.to_vec() };
                    assert_eq!(bytes, vec![got as u8; (got * 97 % 3000) as usize]);
                    e.release(&m);
                    got += 1;
                }
            }
            e
        }
    };
    let ta = std::thread::spawn(run(a, 0));
    let tb = std::thread::spawn(run(b, 1));
    let (ea, eb) = (ta.join().expect("rank 0"), tb.join().expect("rank 1"));
    drop((ea, eb));
}

#[test]
fn memory_of_the_same_process_is_reached_by_address() {
    let (a, b) = pair();
    let ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    let mut words = [7u64, 8, 9];
    let at = words.as_mut_ptr();
    // SAFETY: invariant 5 of `endpoint`: `words` outlives every use of the key.
    let key = unsafe { ea.export_to(1, at.cast(), 24, true) }.expect("a key");
    assert_eq!(key.kind, RegionKind::Local);
    assert_eq!(RegionKey::from_wire(&key.to_wire()), Some(key));
    assert_eq!(eb.mapped(0, &key), Some(at.cast_const().cast()));
    let mut got = [0u64];
    // SAFETY: invariant 5 of `endpoint`: eight bytes are writable.
    let done = unsafe { eb.get(0, &key, 8, got.as_mut_ptr().cast(), 8) };
    assert_eq!((done.expect("get"), got), (OneSided::Done(0), [8]));
    // SAFETY: invariant 5 of `endpoint`: eight bytes are readable.
    let done = unsafe { eb.put(0, &key, 16, got.as_ptr().cast(), 8) };
    assert_eq!(done.expect("put"), OneSided::Done(0));
    let before = eb.atomic(0, &key, 0, AtomicOp::Add(1)).expect("atomic");
    assert_eq!(before, OneSided::Done(7));
    assert_eq!(words, [8, 8, 8]);
    // SAFETY: invariant 5 of `endpoint`: refused before anything is touched.
    let beyond = unsafe { eb.get(0, &key, 20, got.as_mut_ptr().cast(), 8) };
    assert!(beyond.is_err(), "beyond the region");
}

#[test]
fn an_address_from_another_process_is_refused() {
    let (a, b) = pair();
    let ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    let mut words = [7u64];
    // SAFETY: invariant 5 of `endpoint`: `words` outlives every use of the key.
    let key = unsafe { ea.export_to(1, words.as_mut_ptr().cast(), 8, true) }.expect("a key");
    // Rank 0 is another process from here on, and shows a key that says it
    // is ours.
    let other = 1;
    a.job().control(0).pid.store(other, Ordering::Relaxed);
    assert_eq!(eb.mapped(0, &key), None);
    let mut got = [0u64];
    // SAFETY: invariant 5 of `endpoint`: eight bytes are writable.
    let done = unsafe { eb.get(0, &key, 0, got.as_mut_ptr().cast(), 8) };
    assert!(done.is_err());
    // SAFETY: invariant 5 of `endpoint`: eight bytes are readable.
    let done = unsafe { eb.put(0, &key, 0, got.as_ptr().cast(), 8) };
    assert!(done.is_err());
    assert!(eb.atomic(0, &key, 0, AtomicOp::Load).is_err());
    // SAFETY: invariant 5 of `endpoint`: eight bytes are writable.
    let back = unsafe { eb.export_to(0, got.as_mut_ptr().cast(), 8, true) };
    assert_ne!(back.expect("a key").kind, RegionKind::Local);
}

/// Two processes may have one number, each in a namespace of its own.
#[test]
fn a_number_of_another_namespace_is_another_process() {
    let (a, b) = pair();
    let ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    assert!(ea.sharing(1).process);
    let mut words = [7u64];
    // SAFETY: invariant 5 of `endpoint`: `words` outlives every use of the key.
    let key = unsafe { ea.export(words.as_mut_ptr().cast(), 8) }.expect("a key");
    assert_eq!(key.kind, RegionKind::Process);
    let space = &a.job().control(0).namespace;
    space.store(!space.load(Ordering::Relaxed), Ordering::Relaxed);
    assert!(!eb.sharing(0).process);
    // It was asked: what is written there later changes nothing.
    space.store(!space.load(Ordering::Relaxed), Ordering::Relaxed);
    assert!(!eb.sharing(0).process);
    // SAFETY: invariant 5 of `endpoint`: eight bytes are writable.
    let done = unsafe { eb.get(0, &key, 0, words.as_mut_ptr().cast(), 8) };
    let e = done.expect_err("another process may have this number");
    assert_eq!(e.kind(), crate::TransportErrorKind::Unavailable);
    // SAFETY: invariant 5 of `endpoint`: eight bytes are readable.
    let done = unsafe { eb.put(0, &key, 0, words.as_ptr().cast(), 8) };
    assert!(done.is_err());
    // SAFETY: invariant 5 of `endpoint`: nobody uses the key.
    let back = unsafe { eb.export_to(0, words.as_mut_ptr().cast(), 8, false) };
    assert!(back.is_err());
}

/// Mailbox, cells and byte ring in any mixture and any state of credit, rings
/// growing on the way: each side receives what the other posted, in order.
#[test]
fn the_mailbox_and_the_rings_are_one_stream() {
    for seed in 0..20u64 {
        let (a, b) = pair();
        // The lower number at either index.
        let members = if seed % 2 == 0 {
            vec![0, 1]
        } else {
            vec![1, 0]
        };
        let mut ends = [a.endpoint(3, members.clone()), b.endpoint(3, members)];
        let peer = if seed % 2 == 0 { [1, 0] } else { [0, 1] };
        let mut state = seed * 2 + 1;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 33) % n
        };
        let body =
            |n: u64, bytes: u64| -> Vec<u8> { (0..bytes).map(|k| (k * 3 + n) as u8).collect() };
        let (mut posted, mut taken) = ([0u64; 2], [0u64; 2]);
        let mut sizes: [std::collections::VecDeque<u64>; 2] = Default::default();
        for _ in 0..3000 {
            let side = random(2) as usize;
            for _ in 0..random(6) {
                let bytes = match random(8) {
                    0..4 => random(17),
                    4..6 => random(120),
                    6 => random(3000),
                    _ => random(32_769),
                };
                let n = posted[side];
                // Both forms of the fixed part.
                let arg = if random(3) == 0 { n << 32 | n } else { n };
                let head = AmHead {
                    kind: 1,
                    aux: n as u16,
                    arg,
                };
                match ends[side].post(peer[side], head, &body(n, bytes)) {
                    Ok(()) => {
                        posted[side] += 1;
                        sizes[side].push_back(bytes);
                    }
                    Err(PostError::Full) => break,
                    Err(e) => panic!("seed {seed}: {e:?}"),
                }
            }
            let side = random(2) as usize;
            for _ in 0..random(6) {
                let Some(m) = ends[side].poll() else { break };
                let n = taken[1 - side];
                taken[1 - side] += 1;
                // SAFETY: invariant 3 of `endpoint`: not released yet.
                let got = unsafe { m.payload.to_vec() };
                assert_eq!(m.head.aux, n as u16, "seed {seed}");
                assert_eq!(m.head.arg & 0xffff_ffff, n, "seed {seed}");
                let bytes = sizes[1 - side].pop_front().expect("posted");
                assert_eq!(got, body(n, bytes), "seed {seed}");
                ends[side].release(&m);
            }
        }
        for side in [0, 1] {
            while let Some(m) = ends[side].poll() {
                taken[1 - side] += 1;
                ends[side].release(&m);
            }
        }
        assert_eq!(posted, taken, "seed {seed}");
        assert_eq!(a.malformed() + b.malformed(), 0);
    }
}

/// Where payloads are checked, each byte of one that was written over is found.
#[test]
fn overwritten_payloads_are_found_where_they_are_checked() {
    for (n, bytes) in [8usize, 9, 14, 96, 97, 500, 5000, 30_000]
        .into_iter()
        .cycle()
        .take(80)
        .enumerate()
    {
        let (a, b) = pair();
        a.check_payloads();
        b.check_payloads();
        let mut ea = a.endpoint(5, vec![0, 1]);
        let mut eb = b.endpoint(5, vec![0, 1]);
        let body: Vec<u8> = (0..bytes).map(|i| (i * 7 + 0x51) as u8).collect();
        ea.post(1, head(2, 77), &body).expect("room");
        assert_eq!(next(&mut eb).2, body);
        ea.post(1, head(2, 77), &body).expect("room");
        // Its newest place in the arena, at a byte that differs from run to run.
        let arena = &a.job().segment().arena;
        let end = a.job().segment().reserved_bytes();
        let word = |at: u64| {
            let at = arena.at(at, 1).expect("inside");
            // SAFETY: invariant 2 of `mapping`: inside the arena, an atomic.
            unsafe { &*at.cast::<std::sync::atomic::AtomicU8>() }
        };
        let first = segment_of(&body);
        let found: Vec<u64> = (0..end - first.len() as u64)
            .filter(|at| {
                (0..first.len()).all(|i| word(at + i as u64).load(Ordering::Relaxed) == first[i])
            })
            .collect();
        let at = found.last().expect("it lies there") + (n * 31 % first.len()) as u64;
        word(at).fetch_xor(0x40, Ordering::Relaxed);
        let got = (0..20).find_map(|_| eb.poll());
        assert!(got.is_none(), "{bytes} bytes were taken");
        assert_eq!(eb.overwritten(), Some(0), "{bytes} bytes");
    }
}

/// The beginning of a payload that lies together in shared memory: six bytes of a cell.
fn segment_of(body: &[u8]) -> &[u8] {
    match body.len() {
        97.. => &body[..90],
        n => &body[..n.min(6)],
    }
}

/// Each word of a ring's and a mailbox's messages, changed while nobody has taken them: the
/// receiver gets what was sent, or hears that it was overwritten; it never takes another
/// kind, argument or length.
#[test]
fn overwritten_words_are_never_other_messages() {
    let mut unheard = 0;
    for (seed, word) in (0..600u64).zip((0..600u64).map(|n| n % 300)) {
        let (a, b) = pair();
        let mut ea = a.endpoint(5, vec![0, 1]);
        let mut eb = b.endpoint(5, vec![0, 1]);
        // So that there is a mailbox, and the ring has grown.
        for n in 0..40 {
            ea.post(1, head(1, n), b"first").expect("room");
            eb.post(0, head(1, n), b"first").expect("room");
            next(&mut ea);
            next(&mut eb);
        }
        let arena = &a.job().segment().arena;
        let before = a.job().segment().reserved_bytes();
        let sizes = [3usize, 20, 96, 2000, 5000, 40, 8, 300];
        for (n, bytes) in sizes.into_iter().enumerate() {
            // In the line, the area, cells, and both rings.
            let arg = (n as u64) << 40 | 77;
            ea.post(1, head(2, arg), &vec![n as u8; bytes])
                .expect("room");
        }
        // A word of some block of the rank that sends.
        let pages = (0..before / 4096).map(|page| page * 4096);
        let blocks: Vec<u64> = pages
            .filter(|at| {
                b.open_block(*at)
                    .is_some_and(|(block, _)| block.source == 0)
            })
            .collect();
        let block = blocks[seed as usize % blocks.len()];
        // Behind its header.
        let at = arena.at(block + 64 + 8 * (word % 150), 8).expect("inside");
        // SAFETY: invariant 2 of `mapping`: inside the arena, aligned, an atomic.
        let at = unsafe { &*at.cast::<AtomicU64>() };
        let value = match seed % 4 {
            0 => 0,
            1 => u64::MAX,
            _ => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word << 33,
        };
        at.store(value, Ordering::Relaxed);
        let mut taken = 0;
        for _ in 0..40 {
            let Some(m) = eb.poll() else { continue };
            let n = (m.head.arg >> 40) as usize;
            assert_eq!((m.peer, m.head.kind, m.head.aux), (0, 2, 7), "{seed}");
            assert_eq!((n, m.head.arg as u8), (taken, 77), "{seed}");
            assert_eq!(m.payload.len(), sizes[n], "{seed}");
            eb.release(&m);
            taken += 1;
        }
        let heard = eb.overwritten();
        assert!(taken == sizes.len() || heard == Some(0), "{seed}: {taken}");
        unheard += u32::from(heard.is_some());
    }
    assert!(unheard > 20, "only {unheard} of 600 words are looked at");
}

/// Flags, what is said with them, and slots cross; slots change hands by turns.
#[test]
fn flags_tell_of_slots_that_change_hands() {
    let (a, b) = pair();
    let mut ea = a.endpoint(5, vec![0, 1]);
    let mut eb = b.endpoint(5, vec![0, 1]);
    // The lowest member makes the segment.
    assert!(eb.collective(0).expect("memory").is_none());
    let ca = ea.collective(0).expect("memory").expect("made");
    let cb = eb.collective(0).expect("memory").expect("found");
    let mut before: Vec<*mut u8> = Vec::new();
    for call in 0..60u32 {
        let (set, turn) = ((call & 1) as usize, (call / 2) as u16);
        for bytes in [500usize, 40_000] {
            let at = ca.own_slot(set, bytes, turn).expect("memory");
            // Whose turn is on the other's slot waits for it to be made.
            let theirs = cb.own_slot(set, bytes, turn).expect("memory");
            let at = match at {
                Ok(at) => at,
                Err(rank) => {
                    assert_eq!(rank, 1);
                    ca.own_slot(set, bytes, turn)
                        .expect("memory")
                        .expect("by now")
                }
            };
            let theirs = theirs.expect("the other has made its own");
            assert_ne!(at, theirs);
            // SAFETY: invariant 1 of `collective`: room for as many bytes.
            unsafe { std::ptr::write_bytes(at, call as u8, bytes) };
            let seen = cb.slot_of(0, set, bytes, turn).expect("a slot");
            let mut got = vec![0xff; bytes];
            // SAFETY: invariant 1 of `collective`: the vector has as many bytes.
            unsafe { seen.read(0, got.as_mut_ptr(), bytes) }.expect("inside");
            assert!(
                got.iter().all(|byte| *byte == call as u8),
                "{call}: {bytes}"
            );
            if bytes == 500 {
                before.push(at);
            }
        }
        let said = Said {
            bytes: 500,
            done: call,
            turn,
        };
        let raised = Raised { call, progress: 9 };
        assert_ne!(cb.flag(0, set).expect("sound"), Some(raised));
        // What is that short comes with the flag.
        let beside = ca.own_slot(set, 8, turn).expect("memory").expect("own");
        // SAFETY: invariant 1 of `collective`: room for as many bytes.
        unsafe { std::ptr::write_bytes(beside, call as u8, 8) };
        ca.raise(set, raised, said);
        assert_eq!(cb.flag(0, set).expect("sound"), Some(raised));
        assert_eq!(cb.said(0, set, call).expect("sound"), said);
        let mut got = [0xff; 8];
        let seen = cb.slot_of(0, set, 8, turn).expect("beside the flag");
        // SAFETY: invariant 1 of `collective`: as many bytes.
        unsafe { seen.read(0, got.as_mut_ptr(), 8) }.expect("inside");
        assert_eq!(got, [call as u8; 8]);
    }
    assert_ne!(before[0], before[2], "turns change the place");
    assert_eq!(before[0], before[4]);
    assert_eq!(a.malformed() + b.malformed(), 0);
}

/// Who writes over words of a segment makes them unreadable.
#[test]
fn overwritten_words_of_a_segment_are_found() {
    let mut found = 0;
    for seed in 0..400u64 {
        let (a, b) = pair();
        let mut ea = a.endpoint(5, vec![0, 1]);
        let mut eb = b.endpoint(5, vec![0, 1]);
        let ca = ea.collective(0).expect("memory").expect("made");
        let said = Said {
            bytes: 40_000,
            done: 6,
            turn: 3,
        };
        let raised = Raised {
            call: 7,
            progress: 1,
        };
        assert!(ca.own_slot(1, 40_000, 0).expect("memory").is_ok());
        ca.set_done(Done {
            call: 6,
            segments: 0,
        });
        ca.raise(1, raised, said);
        let cb = eb.collective(0).expect("memory").expect("found");
        let list = a.segments_of(0).load(Ordering::Relaxed);
        let page = a.pages(list, 1).expect("the first page");
        // A word of the flag's line, or of what the rank says of itself.
        let at = [2048, 2056, 2064, 3968, 3984][seed as usize % 5];
        // SAFETY: invariant 2 of `mapping`: inside the arena, aligned, an atomic.
        let word = unsafe { &*page.wrapping_add(at).cast::<AtomicU64>() };
        let value = word.load(Ordering::Relaxed);
        let other = match seed % 3 {
            0 => u64::MAX,
            1 => value ^ 1 << (seed % 64),
            _ => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        word.store(other, Ordering::Relaxed);
        let flag = cb.flag(0, 1);
        let heard = match &flag {
            Ok(Some(got)) if *got == raised => match cb.said(0, 1, 7) {
                Ok(got) => {
                    assert_eq!(got, said, "{seed}");
                    cb.done(0).is_err() || cb.slot_of(0, 1, 40_000, 0).is_err()
                }
                Err(_) => true,
            },
            Ok(_) => false,
            Err(_) => true,
        };
        found += u32::from(heard);
    }
    assert!(found > 380, "{found} of 400");
}

/// A segment is used again for another channel when all members have left, and slots when
/// nobody reads them.
#[test]
fn segments_and_slots_are_used_again() {
    let (a, b) = pair();
    let mut used = 0;
    for channel in 5..40 {
        let mut ea = a.endpoint(channel, vec![0, 1]);
        let mut eb = b.endpoint(channel, vec![0, 1]);
        let call = 3;
        for endpoint in [&mut ea, &mut eb] {
            let c = endpoint.collective(0).expect("memory").expect("there");
            assert!(c.own_slot(1, 40_000, 0).expect("memory").is_ok());
            assert_eq!(c.flag(0, 0).expect("clear"), None);
            let said = Said {
                bytes: 1,
                done: 0,
                turn: 0,
            };
            c.raise(1, Raised { call, progress: 1 }, said);
            c.set_done(Done {
                call: call + 1,
                segments: 0,
            });
        }
        if channel == 8 {
            used = a.job().segment().reserved_bytes();
        }
    }
    assert_eq!(a.job().segment().reserved_bytes(), used);
}
