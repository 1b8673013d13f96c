//! Buffers, streams and contexts that are freed while messages need them: `exercise
//! device-lifetime HOW`.
//!
//! Rank 1 gives something up in the middle of its transfers with rank 0: by safe means,
//! which keep it as long as it is needed, or behind the library's back, by the driver's raw
//! functions. Rank 0 gets the message, or an error that names rank 1; nobody waits for ever,
//! and the bytes beside the buffers, and those of whoever got the memory next, stay.

use crate::devices::driver_function;
use crate::mapped::Device;
use osier::devices::{DeviceSlice, Kind, Memory, Stream, copy};
use osier::{Communicator, ErrorKind};
use osier_bed::devices::{device_traffic, device_use};
use std::ffi::{c_int, c_uint, c_void};

/// Several pieces.
const BYTES: usize = 3 << 20;
const EDGE: usize = 4096;

/// The driver's functions, as a program calls them that manages its memory by itself.
mod raw {
    use super::*;

    pub fn allocate(bytes: usize) -> u64 {
        let mut at = 0;
        // SAFETY: the driver's function of this name has this type.
        let f: extern "C" fn(*mut u64, usize) -> c_int =
            unsafe { std::mem::transmute(driver_function(c"cuMemAlloc_v2")) };
        assert_eq!(f(&mut at, bytes), 0);
        at
    }

    pub fn free(at: u64) {
        // SAFETY: as above.
        let f: extern "C" fn(u64) -> c_int =
            unsafe { std::mem::transmute(driver_function(c"cuMemFree_v2")) };
        assert_eq!(f(at), 0);
    }

    pub fn stream() -> *mut c_void {
        let mut stream = std::ptr::null_mut();
        // SAFETY: as above.
        let f: extern "C" fn(*mut *mut c_void, c_uint) -> c_int =
            unsafe { std::mem::transmute(driver_function(c"cuStreamCreate")) };
        assert_eq!(f(&mut stream, 1), 0);
        stream
    }

    pub fn destroy(stream: *mut c_void) {
        // SAFETY: as above.
        let f: extern "C" fn(*mut c_void) -> c_int =
            unsafe { std::mem::transmute(driver_function(c"cuStreamDestroy_v2")) };
        assert_eq!(f(stream), 0);
    }

    pub fn reset() {
        // SAFETY: as above.
        let f: extern "C" fn(c_int) -> c_int =
            unsafe { std::mem::transmute(driver_function(c"cuDevicePrimaryCtxReset_v2")) };
        assert_eq!(f(0), 0);
    }
}

pub fn run(comm: &Communicator, how: &str) {
    let device = Device::of(comm);
    let _current = device.stream().context().hold().expect("a context");
    match how {
        "freed-send" => freed(comm, &device, true),
        "freed-receive" => freed(comm, &device, false),
        "stream" => stream_destroyed(comm, &device),
        "dropped" => dropped(comm),
        "BAR1 windows" => bar1_windows(comm, &device),
        "context" => return context_reset(comm, &device),
        _ => panic!("{how}?"),
    }
    // Everybody goes on.
    let (me, other) = (comm.rank(), 1 - comm.rank());
    let from = device.with(Kind::Plain, &vec![40 + me as u8; BYTES]);
    let to = device.with(Kind::Plain, &vec![0; BYTES]);
    let mut into = to.after_stream(device.stream());
    comm.sendrecv(
        &from.after_stream(device.stream()),
        other,
        60,
        &mut into,
        other,
        60,
    )
    .expect("both go on");
    assert!(device.bytes(&to) == vec![40 + other as u8; BYTES]);
    comm.barrier().expect("both go on");
    assert_eq!(device_use(comm), Default::default());
    super::through(comm);
}

/// That an error names rank 1.
fn names(e: &osier::Error) {
    let kinds = [ErrorKind::Cancelled, ErrorKind::RankDead, ErrorKind::Closed];
    assert!(
        kinds.contains(&e.kind()) && e.to_string().contains("rank 1"),
        "{e}"
    );
}

/// A buffer of rank 0 within edges, and a check of these.
fn edged(device: &Device) -> (DeviceSlice<u8>, impl Fn(&str) -> Vec<u8>) {
    let all = device.with(Kind::Plain, &vec![5; BYTES + 2 * EDGE]);
    let inner = all.slice(EDGE..EDGE + BYTES).expect("inside");
    let check = move |what: &str| {
        let bytes = device.bytes(&all);
        let edges = bytes[..EDGE].iter().chain(&bytes[EDGE + BYTES..]);
        assert!(edges.into_iter().all(|b| *b == 5), "{what}: the edges");
        bytes[EDGE..EDGE + BYTES].to_vec()
    };
    (inner, check)
}

/// Rank 1 frees memory that it has handed over, and somebody else gets it.
fn freed(comm: &Communicator, device: &Device, sends: bool) {
    let stream = device.stream();
    if comm.rank() == 0 {
        let (inner, check) = edged(device);
        comm.recv(&mut [0u8], 1, 2).expect("told");
        let mut own = inner.after_stream(stream);
        let result = match sends {
            true => comm.recv(&mut own, 1, 1).map(drop),
            false => comm.send(&own, 1, 1),
        };
        check("freed");
        // Memory that was offered to be opened may have been read all the same, whatever lay
        // there: that is told to its owner.
        if let Err(e) = result {
            names(&e);
        }
        return;
    }
    let at = raw::allocate(BYTES);
    let found = |at| {
        // SAFETY: memory of the driver's, which is promised to live until it is not used;
        // a broken promise is what this is about.
        let memory = unsafe { Memory::found(stream.context(), at, BYTES) };
        DeviceSlice::<u8>::of(memory.expect("memory")).expect("bytes")
    };
    let slice = found(at);
    copy::fill(stream, &slice.after_stream(stream), 7).expect("a fill");
    stream.synchronize().expect("filled");
    let own = slice.after_stream(stream);
    let request = match sends {
        true => comm.isend(own, 0, 1).expect("begun"),
        false => comm.irecv(own, 0, 1).expect("begun"),
    };
    // What is packed ahead is packed.
    while device_use(comm).under_way > 0 {
        let _ = comm.iprobe(0, 77);
    }
    raw::free(at);
    let again = raw::allocate(BYTES);
    let next = found(again);
    copy::fill(stream, &next.after_stream(stream), 9).expect("a fill");
    stream.synchronize().expect("filled");
    comm.send(&[1u8], 0, 2).expect("told");
    let e = request.wait().expect_err("it was freed");
    assert_eq!(e.kind(), ErrorKind::Device, "{e}");
    assert!(e.to_string().contains("freed"), "{e}");
    assert!(
        device.bytes(&next) == vec![9; BYTES],
        "written by a message"
    );
    drop(next);
    raw::free(again);
}

/// Short messages by BAR1 windows of memory that comes and goes, mostly at one address.
fn bar1_windows(comm: &Communicator, device: &Device) {
    let (me, other) = (comm.rank(), 1 - comm.rank());
    let stream = device.stream();
    let mut kept = Vec::new();
    for round in 0..120u8 {
        let at = raw::allocate(70_000);
        // SAFETY: it lives as long as the slice is used, but for what is refused below.
        let memory = unsafe { Memory::found(stream.context(), at + 300, 1000) };
        let slice = DeviceSlice::<u8>::of(memory.expect("memory")).expect("bytes");
        let ready = || slice.after_stream(stream);
        copy::fill(stream, &ready(), round + me as u8).expect("a fill");
        stream.synchronize().expect("filled");
        let before = device_traffic(comm).bar1_windows;
        if me == round as usize % 2 {
            let sent = slice.slice(..64).map(|part| part.after_stream(stream));
            comm.send(&sent.expect("inside"), other, 1).expect("sent");
        } else {
            let part = slice.slice(10..74).map(|part| part.after_stream(stream));
            comm.recv(&mut part.expect("inside"), other, 1)
                .expect("received");
            let mut right = vec![round + me as u8; 1000];
            right[10..74].fill(round + other as u8);
            assert!(device.bytes(&slice) == right, "round {round}");
        }
        // All that are kept live, so that in the end there is no room for more.
        let moved = device_traffic(comm).bar1_windows - before;
        assert!(moved == 1 || kept.len() > 20, "round {round}");
        if round % 4 == 3 {
            kept.push(slice);
            continue;
        }
        raw::free(at);
        let sent = comm.isend(ready(), other, 1).expect("begun");
        // The other's, which it cannot send either.
        let e = comm.recv(&mut [0u8; 1000], other, 1);
        let e = e.expect_err("it was freed");
        assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
        let e = sent.wait().expect_err("it was freed");
        assert!(e.to_string().contains("freed"), "{e}");
    }
}

/// Rank 1 destroys a stream of its own on which its buffers become valid, and which waits
/// for messages; then it uses that.
fn stream_destroyed(comm: &Communicator, device: &Device) {
    let n = 200_000;
    if comm.rank() == 0 {
        let to = device.with(Kind::Plain, &vec![0; n]);
        let mut into = to.after_stream(device.stream());
        for (tag, byte) in [(1, 100), (2, 101), (3, 102), (4, 103)] {
            if tag == 3 {
                let from = device.with(Kind::Plain, &vec![byte; n]);
                let from = from.after_stream(device.stream());
                comm.send(&from, 1, 3).expect("sent");
                continue;
            }
            comm.recv(&mut into, 1, tag).expect("received");
            assert!(device.bytes(&to) == vec![byte; n], "message {tag}");
        }
        let mut begun = [0u8];
        comm.recv(&mut begun, 1, 5).expect("told");
        if begun[0] == 1 {
            names(&comm.recv(&mut into, 1, 6).expect_err("a failed send"));
        }
        return;
    }
    let handle = raw::stream();
    // SAFETY: a stream of the driver's, which is promised to live; see above.
    let stream = unsafe { Stream::from_raw(device.stream().context(), handle) };
    let buffer = || device.with(Kind::Plain, &vec![0; n]);
    let all = [buffer(), buffer(), buffer(), buffer()];
    device.stream().synchronize().expect("filled");
    let fill = |at: usize, times: u8| {
        for i in 0..times {
            let byte = 100 + at as u8 - (times - 1 - i);
            copy::fill(&stream, &all[at].after_stream(&stream), byte).expect("a fill");
        }
    };
    fill(0, 20);
    let first = comm
        .isend(all[0].after_stream(&stream), 0, 1)
        .expect("begun");
    fill(1, 20);
    let on = comm.on_stream(&stream);
    let second = on.send(&all[1], 0, 2).expect("enqueued");
    let third = on.recv(&mut all[2].clone(), 0, 3).expect("enqueued");
    fill(3, 20);
    let fourth = on.send(&all[3], 0, 4).expect("enqueued");
    raw::destroy(handle);
    first.wait().expect("sent");
    second.wait().expect("sent");
    fourth.wait().expect("sent");
    third.wait().expect("received");
    assert!(device.bytes(&all[2]) == vec![102; n]);
    // It is gone now: what uses it is refused.
    let refused = on
        .send(&all[0], 0, 7)
        .and_then(|sent| sent.wait().map(drop));
    assert_eq!(refused.expect_err("no stream").kind(), ErrorKind::Device);
    let sent = comm.isend(all[0].after_stream(&stream), 0, 6);
    let begun = u8::from(sent.is_ok());
    comm.send(&[begun], 0, 5).expect("told");
    let failed = sent.and_then(|sent| sent.wait().map(drop));
    assert_eq!(failed.expect_err("no stream").kind(), ErrorKind::Device);
}

/// Rank 1 drops all that it has: it is kept until nobody needs it.
fn dropped(comm: &Communicator) {
    let device = Device::of(comm);
    for kind in [Kind::Plain, Kind::Pool, Kind::SharedPool, Kind::Mapped] {
        let requests = {
            let device = Device::of(comm);
            let stream = device.another_stream();
            let [from, to] = [0, 1].map(|_| device.with(kind, &vec![0; BYTES]));
            device.stream().synchronize().expect("filled");
            for byte in 1..=8 {
                copy::fill(&stream, &from.after_stream(&stream), byte).expect("a fill");
            }
            let other = 1 - comm.rank();
            let sent = comm.isend(from.after_stream(&stream), other, 1);
            let got = comm.irecv(to.after_stream(&stream), other, 1);
            (sent.expect("begun"), got.expect("begun"), to)
        };
        // Whatever was given back would be here.
        for _ in 0..3 {
            drop(device.with(kind, &vec![77; BYTES]));
        }
        let (sent, got, to) = requests;
        got.wait().expect("received");
        sent.wait().expect("sent");
        assert!(device.bytes(&to) == vec![8; BYTES], "{kind:?}");
    }
}

/// Rank 1 loses its context, with all memory, streams and events, in the middle.
fn context_reset(comm: &Communicator, device: &Device) {
    let stream = device.stream();
    if comm.rank() == 0 {
        let (inner, check) = edged(device);
        let to = inner.after_stream(stream);
        let late = comm.irecv(to, 1, 1).expect("begun");
        let from = device.with(Kind::Plain, &vec![3; BYTES]);
        let sent = comm.isend(from.after_stream(stream), 1, 2).expect("begun");
        for result in [late.wait().map(drop), sent.wait().map(drop)] {
            if let Err(e) = result {
                names(&e);
            }
        }
        check("reset");
        comm.send(&[1u8], 1, 70).expect("the host's messages go on");
        drop((inner, from));
        crate::devices::nothing_left(comm, 1);
        return super::through(comm);
    }
    let from = device.with(Kind::Plain, &vec![7; BYTES]);
    let to = device.with(Kind::Pool, &vec![7; BYTES]);
    let sent = comm.isend(from.after_stream(stream), 0, 1).expect("begun");
    let got = comm.irecv(to.after_stream(stream), 0, 2).expect("begun");
    raw::reset();
    // Whatever they say, they end.
    println!("{:?} {:?}", sent.wait().map(drop), got.wait().map(drop));
    comm.recv(&mut [0u8], 0, 70)
        .expect("the host's messages go on");
    super::through(comm);
}
