//! Accesses that nothing orders are an error, whatever the schedule was; those that
//! something orders are none.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;

use common::*;
use std::sync::atomic::{AtomicU32, Ordering};

const ILLEGAL_STATE: u32 = 401;

fn fill(at: u64, bytes: usize, s: u64) {
    assert_eq!(
        cu!(cuMemsetD8Async(at => u64, 7 => u8, bytes => usize, s => u64)),
        0
    );
}

fn copy(to: u64, from: u64, bytes: usize, s: u64) {
    assert_eq!(
        cu!(cuMemcpyAsync(to => u64, from => u64, bytes => usize, s => u64)),
        0
    );
}

fn record(s: u64) -> u64 {
    let e = event(2);
    assert_eq!(cu!(cuEventRecord(e => u64, s => u64)), 0);
    e
}

fn wait(s: u64, e: u64) {
    assert_eq!(cu!(cuStreamWaitEvent(s => u64, e => u64, 0 => u32)), 0);
}

/// A word of pinned memory.
fn shared(at: u64) -> &'static AtomicU32 {
    // SAFETY: an aligned word, which nobody frees.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

/// A kernel writes bytes, and a number into a word behind that, or before it; it ends when the gate has
/// that number. Returns when the host has read the word.
fn tell_and_wait(s: u64, (at, n): (u64, u32), (word, gate, number): (u64, u64, u32), early: bool) {
    let (f, early) = (kernel("tell_and_wait"), u32::from(early));
    let arguments = [
        address(&at),
        address(&n),
        address(&word),
        address(&number),
        address(&gate),
        address(&early),
    ];
    assert_eq!(launch(f, 1, 64, 0, s, &arguments), 0);
    while shared(word).load(Ordering::Acquire) != number {
        std::hint::spin_loop();
    }
}

/// Runs a case of `child_is_reported`, whose works nothing orders, with several seeds.
/// Queues so much on a stream that the other, which is drawn as often, has long done
/// its one work when this is over; nobody is told.
fn keep_busy(s: u64, at: u64) {
    for _ in 0..200 {
        fill(at, 8, s);
    }
}

fn reported(case: &str, told: &str) {
    for seed in ["1", "2", "3", "4"] {
        let variables = [("TEST_CASE", case), ("OSIER_EMULATED_SEED", seed)];
        passes("child_is_reported", &variables);
        let out = again("child_is_reported", &variables);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            text.contains("unordered access") && text.contains(told),
            "{case}, seed {seed}: {text}"
        );
    }
    let variables = [("TEST_CASE", case), ("OSIER_EMULATED_ORDER", "unchecked")];
    let out = again("child_is_reported", &variables);
    assert!(
        !out.status.success(),
        "{case}: nothing is reported unchecked"
    );
}

#[test]
fn what_nothing_orders_is_reported() {
    reported("write and read", "a copy");
    reported("long ago", "a fill");
    reported("an event before", "a fill");
    reported("freed", "a stream-ordered allocation");
    reported("kernels", "kernel add_one");
    reported("a word of the device", "a fill");
    reported("graph", "a graph");
    reported("told too early", "tell_and_wait");
}

#[test]
#[ignore = "a child of what_nothing_orders_is_reported"]
fn child_is_reported() {
    start();
    let (s, t) = (stream(), stream());
    let (a, b) = (alloc(4096), alloc(4096));
    match std::env::var("TEST_CASE").unwrap().as_str() {
        "write and read" => {
            fill(a, 4096, s);
            copy(b, a + 4000, 10, t);
        }
        // It is over, but the program does not know.
        "long ago" => {
            fill(a, 4096, s);
            keep_busy(t, b);
            fill(a + 4095, 1, t);
        }
        "an event before" => {
            fill(b, 4096, s);
            let e = record(s);
            fill(a, 4096, s);
            wait(t, e);
            copy(b, a, 1, t);
        }
        "freed" => {
            let mut at = 0u64;
            assert_eq!(
                cu!(cuMemAllocAsync(&mut at => *mut u64, 64 => usize, s => u64)),
                0
            );
            wait(t, record(s));
            fill(at, 64, t);
            keep_busy(s, b);
            assert_eq!(cu!(cuMemFreeAsync(at => u64, s => u64)), 0);
        }
        "kernels" => {
            let (f, n, from) = (kernel("add_one"), 100u32, a + 4 * 99);
            assert_eq!(launch(f, 1, 128, 0, s, &[address(&a), address(&n)]), 0);
            assert_eq!(launch(f, 1, 128, 0, t, &[address(&from), address(&n)]), 0);
        }
        // The host cannot read what the kernel says.
        "a word of the device" => {
            let (f, n, number) = (kernel("tell"), 4096u32, 1u32);
            let told = [address(&a), address(&n), address(&b), address(&number)];
            assert_eq!(launch(f, 1, 128, 0, s, &told), 0);
            keep_busy(t, b + 64);
            fill(a, 1, t);
        }
        // What it writes behind the word that the host has read, though the kernel runs on.
        "told too early" => {
            let (word, gate) = (pinned(8), pinned(8));
            tell_and_wait(s, (a, 4096), (word, gate, 1), true);
            copy(b, a, 1, t);
            let _ = cu!(cuStreamSynchronize(t => u64));
            shared(gate).store(1, Ordering::Release);
        }
        "graph" => {
            let (f, n) = (kernel("add_one"), 100u32);
            assert_eq!(cu!(cuStreamBeginCapture_v2(s => u64, 2 => u32)), 0);
            assert_eq!(launch(f, 1, 128, 0, s, &[address(&a), address(&n)]), 0);
            let (mut graph, mut run) = (0u64, 0u64);
            assert_eq!(cu!(cuStreamEndCapture(s => u64, &mut graph => *mut u64)), 0);
            assert_eq!(
                cu!(cuGraphInstantiateWithFlags(&mut run => *mut u64, graph => u64, 0 => u64)),
                0
            );
            assert_eq!(cu!(cuGraphLaunch(run => u64, s => u64)), 0);
            copy(b, a + 396, 4, t);
        }
        other => panic!("no case {other}"),
    }
    assert_eq!(synchronize(), ILLEGAL_STATE);
}

#[test]
fn what_something_orders_is_not_reported() {
    for seed in ["1", "2", "3", "4"] {
        passes("child_is_in_order", &[("OSIER_EMULATED_SEED", seed)]);
    }
}

#[test]
#[ignore = "a child of what_something_orders_is_not_reported"]
fn child_is_in_order() {
    start();
    let (s, t, u) = (stream(), stream(), stream());
    let (a, b) = (alloc(4096), alloc(4096));
    // Other bytes.
    fill(a, 100, s);
    fill(a + 100, 100, t);
    copy(b, a, 100, s);
    copy(b + 100, a + 100, 100, t);
    // Both read.
    copy(b + 200, a, 50, s);
    assert_eq!(synchronize(), 0);
    copy(b + 300, a, 50, t);
    copy(b + 400, a, 50, u);
    assert_eq!(synchronize(), 0);
    // By events, over a third stream.
    fill(a, 4096, s);
    wait(t, record(s));
    wait(u, record(t));
    copy(b, a, 4096, u);
    // By the host: waiting for a stream, for an event, and asking until it says yes.
    assert_eq!(cu!(cuStreamSynchronize(u => u64)), 0);
    fill(a, 4096, s);
    assert_eq!(cu!(cuEventSynchronize(record(s) => u64)), 0);
    fill(a, 4096, t);
    let e = record(t);
    while cu!(cuEventQuery(e => u64)) == 600 {
        std::thread::yield_now();
    }
    fill(a, 4096, u);
    while cu!(cuStreamQuery(u => u64)) == 600 {
        std::thread::yield_now();
    }
    // By a flag that the host reads.
    let flag = pinned(8);
    fill(a, 4096, s);
    assert_eq!(
        cu!(cuStreamWriteValue32_v2(s => u64, flag => u64, 5 => u32, 0 => u32)),
        0
    );
    // SAFETY: an aligned word of pinned memory.
    let seen = unsafe { AtomicU32::from_ptr(flag as *mut u32) };
    while seen.load(Ordering::Acquire) != 5 {
        std::thread::yield_now();
    }
    fill(a, 4096, t);
    // Ordered by a kernel's last store, which the host reads before the kernel has completed.
    let f = kernel("tell");
    assert_eq!(cu!(cuStreamSynchronize(t => u64)), 0);
    for number in 6..206u32 {
        let n = 4096u32;
        let told = [address(&a), address(&n), address(&flag), address(&number)];
        assert_eq!(launch(f, 1, 128, 0, s, &told), 0);
        while seen.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        fill(a, 4096, t);
        assert_eq!(cu!(cuStreamSynchronize(t => u64)), 0);
    }
    // By a word that a kernel has released, which waits then until the host opens a gate.
    let gate = pinned(8);
    for number in 206..406u32 {
        tell_and_wait(s, (a, 4096), (flag, gate, number), false);
        copy(b, a, 4096, t);
        assert_eq!(cu!(cuStreamSynchronize(t => u64)), 0);
        shared(gate).store(number, Ordering::Release);
    }
    assert_eq!(synchronize(), 0, "{}", fault());
    // By an event that is recorded again elsewhere while its first record is waited for:
    // the wait is for the first.
    let semaphore = pinned(8);
    assert_eq!(
        cu!(cuStreamWaitValue32_v2(s => u64, semaphore => u64, 1 => u32, 0 => u32)),
        0
    );
    fill(a, 4096, s);
    let e = record(s);
    wait(t, e);
    fill(a, 4096, t);
    assert_eq!(cu!(cuEventRecord(e => u64, u => u64)), 0);
    assert_eq!(cu!(cuEventSynchronize(e => u64)), 0);
    assert_eq!(cu!(cuStreamQuery(t => u64)), 600);
    // SAFETY: an aligned word of pinned memory.
    unsafe { AtomicU32::from_ptr(semaphore as *mut u32) }.store(1, Ordering::Release);
    assert_eq!(cu!(cuStreamSynchronize(t => u64)), 0);
    // By the legacy default stream.
    let mut blocking = 0u64;
    assert_eq!(cu!(cuStreamCreate(&mut blocking => *mut u64, 0 => u32)), 0);
    assert_eq!(cu!(cuStreamSynchronize(t => u64)), 0);
    fill(b, 4096, blocking);
    fill(b, 4096, 0);
    fill(b, 4096, blocking);
    // A synchronous copy.
    put(a, &[1u32; 1024]);
    fill(a, 4096, s);
    let (f, n, half) = (kernel("add_one"), 500u32, a + 2048);
    wait(t, record(s));
    assert_eq!(launch(f, 4, 128, 0, s, &[address(&a), address(&n)]), 0);
    assert_eq!(launch(f, 4, 128, 0, t, &[address(&half), address(&n)]), 0);
    assert_eq!(synchronize(), 0, "{}", fault());
}

/// What kernels of two streams do with a word that one tells the other by.
const RELEASED: u32 = 0;
const FENCED: u32 = 1;
const UNORDERED: u32 = 2;
const COUNTED: u32 = 3;

/// One kernel writes bytes and says so in a word of the device, another waits for the word and
/// reads them.
fn hand_on(tells: u32, hears: u32) -> u32 {
    start();
    let [hand_on, take_over] = ["hand_on", "take_over"].map(kernel);
    let (s, t) = (stream(), stream());
    let (data, word, sums) = (alloc(4096), alloc(4), alloc(4 * 64));
    assert_eq!(cu!(cuMemsetD8_v2(word => u64, 0 => u8, 4 => usize)), 0);
    assert_eq!(synchronize(), 0);
    let (n, one) = (4096u32, 1u32);
    let waits = [
        address(&data),
        address(&n),
        address(&word),
        address(&one),
        address(&sums),
        address(&hears),
    ];
    assert_eq!(launch(take_over, 1, 64, 0, s, &waits), 0);
    let writes = [address(&data), address(&n), address(&word), address(&tells)];
    assert_eq!(launch(hand_on, 1, 64, 0, t, &writes), 0);
    let ended = synchronize();
    if ended == 0 {
        let all: u32 = (0..4096u32).map(|i| (i + 1) & 0xff).sum();
        assert_eq!(get::<u32>(sums, 64).iter().sum::<u32>(), all);
    }
    ended
}

#[test]
fn kernels_order_each_other_by_words() {
    for seed in ["1", "2", "3", "4"] {
        for case in ["released", "fenced", "counted", "released, fenced"] {
            let variables = [("TEST_CASE", case), ("OSIER_EMULATED_SEED", seed)];
            passes("child_hands_on", &variables);
        }
        let relayed = [("OSIER_EMULATED_SEED", seed)];
        passes("child_relays", &relayed);
    }
}

#[test]
fn a_missing_release_or_acquire_is_reported() {
    for seed in ["1", "2", "3", "4"] {
        for case in ["no release", "no acquire", "neither"] {
            let variables = [("TEST_CASE", case), ("OSIER_EMULATED_SEED", seed)];
            let out = again("child_hands_on", &variables);
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(
                text.contains("unordered access") && text.contains("kernel"),
                "{case}, seed {seed}: {text}"
            );
        }
    }
}

#[test]
#[ignore = "a child of kernels_order_each_other_by_words"]
fn child_hands_on() {
    let (tells, hears) = match std::env::var("TEST_CASE").unwrap().as_str() {
        "released" => (RELEASED, RELEASED),
        "fenced" => (FENCED, FENCED),
        "counted" => (COUNTED, RELEASED),
        "released, fenced" => (RELEASED, FENCED),
        "no release" => (UNORDERED, RELEASED),
        "no acquire" => (RELEASED, UNORDERED),
        "neither" => (UNORDERED, UNORDERED),
        other => panic!("no case {other}"),
    };
    assert_eq!(hand_on(tells, hears), 0, "{}", fault());
}

/// Over a third kernel, which counts in the word that the last one waits for; and over the host, which
/// copies a value into a word.
#[test]
#[ignore = "a child of kernels_order_each_other_by_words"]
fn child_relays() {
    start();
    let [hand_on, take_over] = ["hand_on", "take_over"].map(kernel);
    let streams = [stream(), stream(), stream()];
    let (a, b, word, sums) = (alloc(256), alloc(256), alloc(4), alloc(4 * 64));
    assert_eq!(cu!(cuMemsetD8_v2(word => u64, 0 => u8, 4 => usize)), 0);
    assert_eq!(synchronize(), 0);
    let (n, two, none) = (256u32, 2u32, 0u32);
    for (data, stream) in [(a, streams[0]), (b, streams[1])] {
        let writes = [
            address(&data),
            address(&n),
            address(&word),
            address(&COUNTED),
        ];
        assert_eq!(launch(hand_on, 1, 64, 0, stream, &writes), 0);
    }
    for data in [a, b] {
        let waits = [
            address(&data),
            address(&n),
            address(&word),
            address(&two),
            address(&sums),
            address(&RELEASED),
        ];
        assert_eq!(launch(take_over, 1, 64, 0, streams[2], &waits), 0);
    }
    assert_eq!(synchronize(), 0, "{}", fault());
    // The host waits for a kernel, and tells another by a copy.
    let waits = [
        address(&a),
        address(&n),
        address(&word),
        address(&7u32),
        address(&sums),
        address(&RELEASED),
    ];
    let writes = [address(&a), address(&n), address(&b), address(&none)];
    assert_eq!(launch(take_over, 1, 64, 0, streams[2], &waits), 0);
    assert_eq!(launch(hand_on, 1, 64, 0, streams[0], &writes), 0);
    assert_eq!(cu!(cuStreamSynchronize(streams[0] => u64)), 0);
    let seven = 7u32;
    let from = std::ptr::from_ref(&seven) as u64;
    assert_eq!(
        cu!(cuMemcpyAsync(word => u64, from => u64, 4 => usize, streams[1] => u64)),
        0
    );
    assert_eq!(synchronize(), 0, "{}", fault());
}
