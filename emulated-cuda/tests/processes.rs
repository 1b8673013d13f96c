//! What two processes share: memory and events by handles.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;

use common::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    bytes
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

#[test]
fn another_process_opens_memory_and_events() {
    start();
    let at = alloc(100_000);
    let data: Vec<u32> = (0..25_000).collect();
    put(at, &data);
    let s = stream();
    let e = event(2 | 4);
    let mut memory = Handle([0; 64]);
    let mut shared = Handle([0; 64]);
    assert_eq!(
        cu!(cuIpcGetMemHandle(&mut memory => *mut Handle, at => u64)),
        0
    );
    assert_eq!(
        cu!(cuIpcGetEventHandle(&mut shared => *mut Handle, e => u64)),
        0
    );
    let mut again = 0u64;
    assert_eq!(
        cu!(cuIpcOpenMemHandle_v2(&mut again => *mut u64, memory => Handle, 1 => u32)),
        201
    );
    // The child waits for our event, which happens once the gate opens.
    let gate = pinned(8);
    assert_eq!(
        cu!(cuStreamWaitValue32_v2(s => u64, gate => u64, 1 => u32, 0 => u32)),
        0
    );
    assert_eq!(
        cu!(cuMemsetD32Async(at => u64, 77 => u32, 1 => usize, s => u64)),
        0
    );
    assert_eq!(cu!(cuEventRecord(e => u64, s => u64)), 0);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_opens", "--ignored", "--nocapture"])
        .env("TEST_MEMORY", hex(&memory.0))
        .env("TEST_EVENT", hex(&shared.0))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let waits = lines
        .by_ref()
        .map_while(Result::ok)
        .any(|l| l.contains("child waits"));
    assert!(waits, "the child has not come to its wait");
    // SAFETY: an aligned word of pinned memory.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(gate as *mut u32) }
        .store(1, std::sync::atomic::Ordering::Release);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    assert_eq!(
        get::<u32>(at + 99_996, 1),
        [4321],
        "what the child has written"
    );
}

#[test]
#[ignore = "a child of another_process_opens_memory_and_events"]
fn child_opens() {
    start();
    let memory = Handle(unhex(&std::env::var("TEST_MEMORY").unwrap()));
    let shared = Handle(unhex(&std::env::var("TEST_EVENT").unwrap()));
    let (mut at, mut e) = (0u64, 0u64);
    assert_eq!(
        cu!(cuIpcOpenMemHandle_v2(&mut at => *mut u64, memory => Handle, 1 => u32)),
        0,
        "{}",
        fault()
    );
    assert_eq!(
        cu!(cuIpcOpenEventHandle(&mut e => *mut u64, shared => Handle)),
        0,
        "{}",
        fault()
    );
    assert_eq!(get::<u32>(at + 4, 10), (1..11).collect::<Vec<u32>>());
    let (s, host) = (stream(), pinned(8));
    assert_eq!(cu!(cuEventQuery(e => u64)), 600);
    assert_eq!(cu!(cuStreamWaitEvent(s => u64, e => u64, 0 => u32)), 0);
    assert_eq!(
        cu!(cuMemcpyDtoHAsync_v2(host => u64, at => u64, 4 => usize, s => u64)),
        0
    );
    println!("child waits");
    std::io::stdout().flush().unwrap();
    assert_eq!(cu!(cuStreamSynchronize(s => u64)), 0);
    // SAFETY: pinned memory that no queued work uses.
    assert_eq!(unsafe { (host as *const u32).read() }, 77);
    put(at + 99_996, &[4321u32]);
    assert_eq!(cu!(cuIpcCloseMemHandle(at => u64)), 0);
}
