//! Multicast objects: stores that reach memory of several devices, of this process and of
//! another, and what is refused.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;

use common::*;
use std::io::Write;
use std::process::{Command, Stdio};

const BYTES: usize = 4 << 20;
const ON: (&str, &str) = ("OSIER_EMULATED_MULTICAST", "1");
const GPUS: (&str, &str) = ("OSIER_EMULATED_GPUS", "3");

/// `CUmulticastObjectProp`.
#[repr(C)]
struct Prop {
    devices: u32,
    bytes: usize,
    handle_types: u64,
    flags: u64,
}

fn prop(devices: u32, bytes: usize) -> Prop {
    Prop {
        devices,
        bytes,
        handle_types: 1,
        flags: 0,
    }
}

fn create(prop: &Prop) -> (u32, u64) {
    let mut object = 0u64;
    let code = cu!(cuMulticastCreate(&mut object => *mut u64, prop => *const Prop));
    (code, object)
}

fn object(devices: u32) -> u64 {
    let (code, object) = create(&prop(devices, BYTES));
    assert_eq!(code, 0, "{}", fault());
    object
}

fn add(object: u64, device: i32) -> u32 {
    cu!(cuMulticastAddDevice(object => u64, device => i32))
}

/// Physical memory of a device.
fn physical(device: u32, bytes: usize, exportable: bool) -> u64 {
    let mut properties = [0u32; 8];
    (properties[0], properties[1], properties[2]) = (1, u32::from(exportable), 1);
    properties[3] = device;
    let mut handle = 0u64;
    assert_eq!(
        cu!(cuMemCreate(&mut handle => *mut u64, bytes => usize, properties.as_ptr() => *const u32, 0 => u64)),
        0,
        "{}",
        fault()
    );
    handle
}

fn bind(object: u64, at: usize, memory: u64, from: usize, bytes: usize) -> u32 {
    cu!(cuMulticastBindMem(
        object => u64, at => usize, memory => u64, from => usize, bytes => usize, 0 => u64
    ))
}

fn reserve(bytes: usize) -> u64 {
    let mut at = 0u64;
    assert_eq!(
        cu!(cuMemAddressReserve(&mut at => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64)),
        0
    );
    at
}

fn map(at: u64, handle: u64, bytes: usize) -> u32 {
    cu!(cuMemMap(at => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64))
}

fn give(at: u64, bytes: usize, device: u32) -> u32 {
    let access = [1u32, device, 3];
    cu!(cuMemSetAccess(at => u64, bytes => usize, access.as_ptr() => *const u32, 1 => usize))
}

/// Maps a handle for a device.
fn mapped(handle: u64, device: u32) -> u64 {
    let at = reserve(BYTES);
    assert_eq!(map(at, handle, BYTES), 0, "{}", fault());
    assert_eq!(give(at, BYTES, device), 0, "{}", fault());
    at
}

/// An object of devices 0 and 1, and the memory bound to it, mapped for its device.
fn pair() -> (u64, [u64; 2]) {
    let object = object(2);
    assert_eq!((add(object, 0), add(object, 1)), (0, 0), "{}", fault());
    let memory = [0, 1].map(|device| {
        let memory = physical(device, BYTES, true);
        assert_eq!(bind(object, 0, memory, 0, BYTES), 0, "{}", fault());
        mapped(memory, device)
    });
    (object, memory)
}

fn spread(kernel: u64, threads: u32, at: u64, first: u64) -> u32 {
    let done = launch(kernel, 1, threads, 0, 0, &[address(&at), address(&first)]);
    assert_eq!(done, 0, "{}", fault());
    synchronize()
}

fn attribute(number: u32) -> i32 {
    let mut value = -1;
    let code = cu!(cuDeviceGetAttribute(&mut value => *mut i32, number => u32, 0 => i32));
    assert_eq!(code, 0);
    value
}

#[test]
fn a_store_reaches_all_devices() {
    for isolation in ["keys", "windows"] {
        passes(
            "child_stores",
            &[ON, GPUS, ("OSIER_EMULATED_ISOLATION", isolation)],
        );
    }
}

#[test]
#[ignore = "a child of a_store_reaches_all_devices"]
fn child_stores() {
    let first = start();
    assert_eq!((attribute(132), attribute(75), attribute(76)), (1, 9, 0));
    let (object, memory) = pair();
    let at = mapped(object, 0);
    assert_eq!(spread(kernel("spread"), 100, at + 800, 1 << 40), 0);
    assert_eq!(spread(kernel("spread_vectors"), 50, at + 4096, 7), 0);
    let words: Vec<u64> = (0..100).map(|i| (1 << 40) + i).collect();
    for memory in memory {
        assert_eq!(get::<u64>(memory + 800, 100), words);
        assert_eq!(
            get::<u32>(memory + 4096, 200),
            (7..207).collect::<Vec<u32>>()
        );
    }
    // From the other device, by a mapping of its own; in two halves of memory that is
    // larger than what is bound.
    context(1);
    let there = mapped(object, 1);
    assert_eq!(spread(kernel("spread"), 3, there, 5), 0);
    assert_eq!(memory.map(|at| get::<u64>(at, 3)), [[5, 6, 7]; 2]);
    // Memory goes, but not what is bound; a new kernel meets what is bound then.
    for device in [0u64, 1] {
        assert_eq!(
            cu!(cuMulticastUnbind(object => u64, device as i32 => i32, 0 => usize, BYTES => usize)),
            0,
            "{}",
            fault()
        );
        let large = physical(device as u32, 2 * BYTES, true);
        assert_eq!(bind(object, 0, large, BYTES, BYTES), 0, "{}", fault());
        let seen = reserve(2 * BYTES);
        assert_eq!(map(seen, large, 2 * BYTES), 0, "{}", fault());
        assert_eq!(give(seen, 2 * BYTES, device as u32), 0);
        if device == 1 {
            assert_eq!(spread(kernel("spread"), 3, there, 50), 0);
            assert_eq!(get::<u64>(seen + BYTES as u64, 3), [50, 51, 52]);
            assert_eq!(get::<u64>(seen, 1), [0]);
        }
    }
    assert_eq!(get::<u64>(memory[0], 3), [5, 6, 7]);
    // By address.
    assert_eq!(
        cu!(cuMulticastUnbind(object => u64, 0 => i32, 0 => usize, BYTES => usize)),
        0
    );
    assert_eq!(
        cu!(cuMulticastBindAddr(
            object => u64, 0 => usize, memory[0] => u64, BYTES => usize, 0 => u64
        )),
        0,
        "{}",
        fault()
    );
    assert_eq!(cu!(cuCtxSetCurrent(first => u64)), 0);
    assert_eq!(spread(kernel("spread"), 2, at, 9), 0);
    assert_eq!(get::<u64>(memory[0], 3), [9, 10, 7]);
    // The object goes with its last mapping.
    assert_eq!(cu!(cuMemRelease(object => u64)), 0);
    assert_ne!(add(object, 2), 0);
    assert_eq!(spread(kernel("spread"), 1, at, 1), 0);
    for at in [at, there] {
        assert_eq!(cu!(cuMemUnmap(at => u64, BYTES => usize)), 0, "{}", fault());
        assert_eq!(cu!(cuMemAddressFree(at => u64, BYTES => usize)), 0);
    }
    assert_eq!(cu!(cuMemRelease(object => u64)), 400);
}

#[test]
fn other_accesses_are_refused() {
    for case in ["load", "store", "askew", "ungiven", "unbound", "plain"] {
        for isolation in ["keys", "windows"] {
            let set = [
                ON,
                GPUS,
                ("OSIER_EMULATED_ISOLATION", isolation),
                ("TEST_CASE", case),
            ];
            passes("child_refused", &set);
        }
    }
}

#[test]
#[ignore = "a child of other_accesses_are_refused"]
fn child_refused() {
    start();
    let (object, memory) = pair();
    let at = mapped(object, 0);
    let (mut one, n) = (1u32, 0u64);
    let code = match std::env::var("TEST_CASE").unwrap().as_str() {
        "load" => {
            // Copies are not for it either, nor is a part beyond.
            let to = cu!(cuMemcpyDtoH_v2(&mut one => *mut u32, at => u64, 4 => usize));
            let from = cu!(cuMemcpyHtoD_v2(at => u64, &one => *const u32, 4 => usize));
            assert_eq!((to, from), (1, 1));
            assert_eq!(
                launch(
                    kernel("add_one"),
                    1,
                    1,
                    0,
                    0,
                    &[address(&at), address(&one)]
                ),
                0
            );
            (synchronize(), 700)
        }
        "store" => {
            assert_eq!(
                launch(kernel("beyond"), 1, 1, 0, 0, &[address(&at), address(&n)]),
                0
            );
            (synchronize(), 700)
        }
        "askew" => (spread(kernel("spread"), 1, at + 4, 0), 716),
        "ungiven" => {
            context(1);
            (spread(kernel("spread"), 1, at, 0), 700)
        }
        "unbound" => {
            let unbound =
                cu!(cuMulticastUnbind(object => u64, 1 => i32, 0 => usize, BYTES => usize));
            assert_eq!(unbound, 0);
            (spread(kernel("spread"), 1, at, 0), 700)
        }
        _ => (spread(kernel("spread"), 1, memory[0], 0), 700),
    };
    assert_eq!(code.0, code.1);
}

#[test]
fn objects_are_made_in_order() {
    passes("child_order", &[ON, GPUS]);
}

#[test]
#[ignore = "a child of objects_are_made_in_order"]
fn child_order() {
    start();
    let mut least = 0usize;
    let mut best = 0usize;
    let asked = prop(2, BYTES);
    for (place, option) in [(&mut least, 0u32), (&mut best, 1)] {
        assert_eq!(
            cu!(cuMulticastGetGranularity(
                place => *mut usize, &asked => *const Prop, option => u32
            )),
            0
        );
    }
    assert_eq!((least, best), (BYTES, 2 * BYTES));
    for refused in [
        prop(0, BYTES),
        prop(2, 0),
        prop(2, BYTES / 2),
        Prop {
            handle_types: 2,
            ..prop(2, BYTES)
        },
        Prop {
            flags: 1,
            ..prop(2, BYTES)
        },
    ] {
        assert_eq!(create(&refused).0, 1);
    }
    let object = object(2);
    let memory = [0, 1, 2].map(|device| physical(device, 2 * BYTES, true));
    assert_eq!(add(object, 7), 101);
    assert_eq!(add(object, 0), 0);
    assert_eq!(add(object, 0), 1);
    // Binding and mapping wait for the last device.
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        add(object, 1)
    });
    assert_eq!(bind(object, 0, memory[0], 0, BYTES), 0, "{}", fault());
    assert_eq!(late.join().unwrap(), 0);
    assert_eq!(add(object, 2), 1);
    // Memory of other devices, what is there already, what is too much or not whole.
    assert_eq!(bind(object, 0, memory[2], 0, BYTES), 101);
    assert_eq!(bind(object, 0, memory[0], BYTES, BYTES), 1);
    assert_eq!(bind(object, 0, memory[1], 0, 2 * BYTES), 1);
    assert_eq!(bind(object, BYTES, memory[1], 0, BYTES), 1);
    assert_eq!(bind(object, 0, memory[1], 2 * BYTES, BYTES), 1);
    assert_eq!(bind(object, 0, memory[1], BYTES / 2, BYTES), 1);
    assert_eq!(bind(object, 0, memory[1], 0, BYTES / 2), 1);
    assert_eq!(bind(object, 0, memory[1], 0, 0), 1);
    assert_eq!(bind(object, 0, physical(1, BYTES, false), 0, BYTES), 1);
    assert_eq!(bind(object, 0, object, 0, BYTES), 1);
    assert_eq!(bind(memory[0], 0, memory[1], 0, BYTES), 1);
    assert_eq!(bind(object, 0, memory[1], 0, BYTES), 0, "{}", fault());
    let unbind = |at: usize, bytes: usize| cu!(cuMulticastUnbind(object => u64, 1 => i32, at => usize, bytes => usize));
    assert_eq!(unbind(0, 2 * BYTES), 1);
    assert_eq!(unbind(BYTES, BYTES), 1);
    assert_eq!((unbind(0, BYTES), unbind(0, BYTES)), (0, 1));
    // A mapping is of whole granules, for devices that take part.
    let at = reserve(2 * BYTES);
    assert_eq!(map(at, object, BYTES / 2), 1);
    assert_eq!(map(at, object, 2 * BYTES), 1);
    assert_eq!(map(at, object, BYTES), 0, "{}", fault());
    assert_eq!(give(at, BYTES, 2), 101);
    assert_eq!(give(at, BYTES, 1), 0);
    let mut again = 0u64;
    assert_eq!(
        cu!(cuMemRetainAllocationHandle(&mut again => *mut u64, at => u64)),
        0
    );
    assert_eq!(again, object);
    // One that never gets its devices is an error here; a driver waits for ever.
    let (code, incomplete) = create(&prop(2, BYTES));
    assert_eq!(code, 0);
    assert_eq!(map(reserve(BYTES), incomplete, BYTES), 401);
    assert!(
        fault().contains("waits for 2 of its 2 devices"),
        "{}",
        fault()
    );
}

#[test]
fn devices_are_on_one_switch() {
    let pairs = ("OSIER_EMULATED_LINKS", "switch:18,0-2:4");
    passes("child_switch", &[ON, GPUS, pairs]);
}

#[test]
#[ignore = "a child of devices_are_on_one_switch"]
fn child_switch() {
    start();
    let object = object(2);
    assert_eq!(
        (add(object, 0), add(object, 2), add(object, 1)),
        (0, 101, 0)
    );
}

#[test]
fn without_multicast_there_are_no_objects() {
    passes("child_off", &[GPUS]);
    passes("child_off", &[ON, ("OSIER_EMULATED_MIG", "2")]);
}

#[test]
#[ignore = "a child of without_multicast_there_are_no_objects"]
fn child_off() {
    start();
    assert_eq!((attribute(132), attribute(75)), (0, 8));
    assert_eq!(create(&prop(2, BYTES)).0, 801);
    // Nor kernels for the devices that have it.
    let ptx = c".version 8.1\n.target sm_90\n.visible .entry spread(\n)\n";
    let mut module = 0u64;
    let code =
        cu!(cuModuleLoadData(&mut module => *mut u64, ptx.as_ptr() => *const std::ffi::c_char));
    assert_eq!(code, 218);
}

#[test]
fn processes_share_an_object() {
    passes("child_parent", &[ON, GPUS]);
}

#[test]
#[ignore = "a child of processes_share_an_object"]
fn child_parent() {
    start();
    let object = object(2);
    assert_eq!(add(object, 0), 0);
    let mut fd = -1i32;
    assert_eq!(
        cu!(cuMemExportToShareableHandle(&mut fd => *mut i32, object => u64, 1 => u32, 0 => u64)),
        0,
        "{}",
        fault()
    );
    // SAFETY: an open descriptor; the copy stays open in children.
    let inherited = unsafe { libc::dup(fd) };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_peer", "--ignored", "--nocapture"])
        .env("TEST_FD", inherited.to_string())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // Waits for the device of the child.
    let memory = physical(0, BYTES, true);
    assert_eq!(bind(object, 0, memory, 0, BYTES), 0, "{}", fault());
    // What a kernel of the child meets before that is an error.
    writeln!(child.stdin.take().unwrap(), "bound").unwrap();
    let (memory, at) = (mapped(memory, 0), mapped(object, 0));
    while get::<u64>(memory, 1) != [11] {}
    assert_eq!(spread(kernel("spread"), 1, at + 64, 12), 0);
    assert!(child.wait().unwrap().success());
    assert_eq!(get::<u64>(memory, 1), [11]);
}

#[test]
#[ignore = "a child of child_parent"]
fn child_peer() {
    start();
    context(1);
    let fd: u64 = std::env::var("TEST_FD").unwrap().parse().unwrap();
    let mut object = 0u64;
    assert_eq!(
        cu!(cuMemImportFromShareableHandle(&mut object => *mut u64, fd => u64, 1 => u32)),
        0,
        "{}",
        fault()
    );
    assert_eq!(add(object, 1), 0, "{}", fault());
    let memory = physical(1, BYTES, true);
    assert_eq!(bind(object, 0, memory, 0, BYTES), 0, "{}", fault());
    let (memory, at) = (mapped(memory, 1), mapped(object, 1));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "bound\n");
    assert_eq!(spread(kernel("spread"), 1, at, 11), 0, "{}", fault());
    while get::<u64>(memory + 64, 1) != [12] {}
}
