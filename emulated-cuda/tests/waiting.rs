//! Kernels that wait in memory for other blocks, other kernels, the host, and kernels of
//! another process.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;

use common::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn kernels_wait_for_each_other() {
    for isolation in ["keys", "windows"] {
        for seed in ["1", "2", "3"] {
            let set = [
                ("OSIER_EMULATED_ISOLATION", isolation),
                ("OSIER_EMULATED_SEED", seed),
            ];
            passes("child_waits", &set);
        }
    }
}

fn is_done(stream: u64) -> bool {
    match cu!(cuStreamQuery(stream => u64)) {
        0 => true,
        600 => false,
        code => panic!("{code}: {}", fault()),
    }
}

#[test]
#[ignore = "a child of kernels_wait_for_each_other"]
fn child_waits() {
    start();
    // Loaded first: a driver may wait for what runs.
    let [relay, together, ping] = ["relay", "together", "ping"].map(kernel);
    let ping_of = |stream: u64, [mine, theirs]: [u64; 2], rounds: u32, first: u32| {
        let arguments = [
            address(&mine),
            address(&theirs),
            address(&rounds),
            address(&first),
        ];
        assert_eq!(launch(ping, 1, 1, 0, stream, &arguments), 0);
    };
    // Blocks of a kernel, at a barrier behind it.
    let turn = alloc(4);
    put(turn, &[0u32]);
    assert_eq!(launch(relay, 16, 64, 0, 0, &[address(&turn)]), 0);
    assert_eq!(get::<u32>(turn, 1), [16]);
    // Two kernels of a device; work of other streams goes on.
    let (a, b) = (stream(), stream());
    let words = alloc(8);
    for round in 1..=3u32 {
        put(words, &[0u32; 2]);
        ping_of(a, [words, words + 4], 50 * round, 1);
        put(turn, &[round]);
        assert_eq!(get::<u32>(turn, 1), [round]);
        assert!(!is_done(a));
        ping_of(b, [words + 4, words], 50 * round, 0);
        assert_eq!(synchronize(), 0);
        assert_eq!(get::<u32>(words, 2), [50 * round; 2]);
    }
    // Up to as many blocks as the device has room for run at once: 4 processors of 2048
    // threads each. More wait for the host.
    let gate = pinned(4);
    // SAFETY: an aligned word of pinned memory.
    let gate_word = unsafe { AtomicU32::from_ptr(gate as *mut u32) };
    put(turn, &[0u32]);
    let arguments = [address(&turn), address(&gate)];
    assert_eq!(launch(together, 8, 1024, 0, a, &arguments), 0);
    assert_eq!(cu!(cuStreamSynchronize(a => u64)), 0);
    assert_eq!(get::<u32>(turn, 1), [8]);
    put(turn, &[0u32]);
    assert_eq!(launch(together, 9, 1024, 0, a, &arguments), 0);
    while get::<u32>(turn, 1) != [8] {}
    for _ in 0..100 {
        assert_eq!(get::<u32>(turn, 1), [8]);
    }
    assert!(!is_done(a));
    gate_word.store(1, Ordering::Release);
    assert_eq!(cu!(cuStreamSynchronize(a => u64)), 0);
    assert_eq!(get::<u32>(turn, 1), [9]);
    // In a graph, beside another node.
    let mut graph = 0u64;
    let mut executable = 0u64;
    put(words, &[0u32; 2]);
    let forked = event(2);
    let joined = event(2);
    assert_eq!(cu!(cuStreamBeginCapture_v2(a => u64, 2 => u32)), 0);
    assert_eq!(cu!(cuEventRecord(forked => u64, a => u64)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(b => u64, forked => u64, 0 => u32)), 0);
    ping_of(a, [words, words + 4], 20, 1);
    ping_of(b, [words + 4, words], 20, 0);
    assert_eq!(cu!(cuEventRecord(joined => u64, b => u64)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(a => u64, joined => u64, 0 => u32)), 0);
    assert_eq!(cu!(cuStreamEndCapture(a => u64, &mut graph => *mut u64)), 0);
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(
            &mut executable => *mut u64, graph => u64, 0 => u64
        )),
        0
    );
    for _ in 0..3 {
        put(words, &[0u32; 2]);
        assert_eq!(cu!(cuGraphLaunch(executable => u64, a => u64)), 0);
        assert_eq!(synchronize(), 0);
        assert_eq!(get::<u32>(words, 2), [20; 2]);
    }
}

#[test]
fn kernels_of_two_processes_wait_for_each_other() {
    passes("child_parent", &[]);
}

const ROUNDS: u32 = 200;

#[test]
#[ignore = "a child of kernels_of_two_processes_wait_for_each_other"]
fn child_parent() {
    start();
    let words = alloc(8);
    put(words, &[0u32; 2]);
    let (theirs, first) = (words + 4, 1u32);
    let arguments = [
        address(&words),
        address(&theirs),
        address(&ROUNDS),
        address(&first),
    ];
    let mut memory = Handle([0; 64]);
    assert_eq!(
        cu!(cuIpcGetMemHandle(&mut memory => *mut Handle, words => u64)),
        0
    );
    let s = stream();
    assert_eq!(launch(kernel("ping"), 1, 1, 0, s, &arguments), 0);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_peer", "--ignored", "--nocapture"])
        .env("TEST_MEMORY", hex(&memory.0))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    assert_eq!(cu!(cuStreamSynchronize(s => u64)), 0);
    assert_eq!(get::<u32>(words, 2), [ROUNDS; 2]);
}

#[test]
#[ignore = "a child of child_parent"]
fn child_peer() {
    start();
    let memory = Handle(unhex(&std::env::var("TEST_MEMORY").unwrap()));
    let mut words = 0u64;
    assert_eq!(
        cu!(cuIpcOpenMemHandle_v2(&mut words => *mut u64, memory => Handle, 1 => u32)),
        0,
        "{}",
        fault()
    );
    let (mine, first) = (words + 4, 0u32);
    let arguments = [
        address(&mine),
        address(&words),
        address(&ROUNDS),
        address(&first),
    ];
    assert_eq!(launch(kernel("ping"), 1, 1, 0, 0, &arguments), 0);
    assert_eq!(synchronize(), 0);
    println!("done");
    std::io::stdout().flush().unwrap();
}
