//! What two processes share: memory and events by handles.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;

use common::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

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
    // The child waits for our event, which happens once the semaphore opens.
    let semaphore = pinned(8);
    assert_eq!(
        cu!(cuStreamWaitValue32_v2(s => u64, semaphore => u64, 1 => u32, 0 => u32)),
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
    unsafe { std::sync::atomic::AtomicU32::from_ptr(semaphore as *mut u32) }
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

/// A descriptor that a child gets under the same number.
fn inherited(fd: i32) -> i32 {
    // SAFETY: an open descriptor; the copy stays open in children.
    let copy = unsafe { libc::dup(fd) };
    assert!(copy >= 0);
    copy
}

/// Starts a test of this file in a process of its own and wants it to pass.
fn child(test: &str, variables: &[(&str, String)]) {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn number(variable: &str) -> u64 {
    std::env::var(variable).unwrap().parse().unwrap()
}

/// A pool goes by descriptor, its memory by handles of 64 bytes.
#[test]
fn another_process_opens_a_pool() {
    start();
    // Pinned memory of device 0, for a descriptor; the rest is 0.
    let mut properties = [0u32; 24];
    (properties[0], properties[1], properties[2]) = (1, 1, 1);
    let (mut pool, mut at, mut fd) = (0u64, 0u64, -1i32);
    assert_eq!(
        cu!(cuMemPoolCreate(&mut pool => *mut u64, properties.as_ptr() => *const u32)),
        0,
        "{}",
        fault()
    );
    let s = stream();
    assert_eq!(
        cu!(cuMemAllocFromPoolAsync(&mut at => *mut u64, 100_000 => usize, pool => u64, s => u64)),
        0
    );
    assert_eq!(cu!(cuStreamSynchronize(s => u64)), 0);
    let data: Vec<u32> = (0..25_000).collect();
    put(at, &data);
    assert_eq!(
        cu!(cuMemPoolExportToShareableHandle(&mut fd => *mut i32, pool => u64, 1 => u32, 0 => u64)),
        0,
        "{}",
        fault()
    );
    let mut memory = Handle([0; 64]);
    assert_eq!(
        cu!(cuMemPoolExportPointer(&mut memory => *mut Handle, at => u64)),
        0
    );
    let variables = [
        ("TEST_FD", inherited(fd).to_string()),
        ("TEST_MEMORY", hex(&memory.0)),
    ];
    child("child_opens_a_pool", &variables);
    assert_eq!(get::<u32>(at + 99_996, 1), [4321]);
}

#[test]
#[ignore = "a child of another_process_opens_a_pool"]
fn child_opens_a_pool() {
    start();
    let memory = Handle(unhex(&std::env::var("TEST_MEMORY").unwrap()));
    let (mut pool, mut at) = (0u64, 0u64);
    let fd = number("TEST_FD");
    assert_eq!(
        cu!(cuMemPoolImportFromShareableHandle(&mut pool => *mut u64, fd => u64, 1 => u32, 0 => u64)),
        0,
        "{}",
        fault()
    );
    assert_eq!(
        cu!(cuMemPoolImportPointer(&mut at => *mut u64, pool => u64, &memory => *const Handle)),
        0,
        "{}",
        fault()
    );
    assert_eq!(get::<u32>(at + 4, 10), (1..11).collect::<Vec<u32>>());
    put(at + 99_996, &[4321u32]);
    // Nothing is allocated from a pool of another process.
    let mut other = 0u64;
    assert_ne!(
        cu!(cuMemAllocFromPoolAsync(&mut other => *mut u64, 100 => usize, pool => u64, 0 => u64)),
        0
    );
}

/// Physical memory goes by descriptor, and is mapped where the other likes.
#[test]
fn another_process_maps_memory() {
    start();
    let bytes = 2usize << 20;
    let mut properties = [0u32; 8];
    (properties[0], properties[1], properties[2]) = (1, 1, 1);
    let (mut handle, mut fd) = (0u64, -1i32);
    assert_eq!(
        cu!(cuMemCreate(&mut handle => *mut u64, bytes => usize, properties.as_ptr() => *const u32, 0 => u64)),
        0
    );
    let at = mapped(handle, bytes);
    put(at, &[7u32, 8, 9]);
    assert_eq!(
        cu!(cuMemExportToShareableHandle(&mut fd => *mut i32, handle => u64, 1 => u32, 0 => u64)),
        0
    );
    child(
        "child_maps_memory",
        &[("TEST_FD", inherited(fd).to_string())],
    );
    assert_eq!(get::<u32>(at + 4096, 1), [4321]);
    // A handle is held as often as it was asked for.
    let mut again = 0u64;
    assert_eq!(
        cu!(cuMemRetainAllocationHandle(&mut again => *mut u64, at => u64)),
        0
    );
    assert_eq!(again, handle);
    assert_eq!(cu!(cuMemRelease(handle => u64)), 0);
    assert_eq!(cu!(cuMemRelease(handle => u64)), 0);
    assert_ne!(cu!(cuMemRelease(handle => u64)), 0);
    // The mapping holds it still.
    assert_eq!(get::<u32>(at, 3), [7, 8, 9]);
}

/// Maps an allocation, readable and writable by device 0.
fn mapped(handle: u64, bytes: usize) -> u64 {
    let mut at = 0u64;
    assert_eq!(
        cu!(cuMemAddressReserve(&mut at => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64)),
        0
    );
    assert_eq!(
        cu!(cuMemMap(at => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64)),
        0,
        "{}",
        fault()
    );
    let access = [1u32, 0, 3];
    assert_eq!(
        cu!(cuMemSetAccess(at => u64, bytes => usize, access.as_ptr() => *const u32, 1 => usize)),
        0
    );
    at
}

#[test]
#[ignore = "a child of another_process_maps_memory"]
fn child_maps_memory() {
    start();
    let mut handle = 0u64;
    let fd = number("TEST_FD");
    assert_eq!(
        cu!(cuMemImportFromShareableHandle(&mut handle => *mut u64, fd => u64, 1 => u32)),
        0,
        "{}",
        fault()
    );
    let at = mapped(handle, 2 << 20);
    assert_eq!(get::<u32>(at, 3), [7, 8, 9]);
    put(at + 4096, &[4321u32]);
}
