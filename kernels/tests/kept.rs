//! Plain memory that nobody has is kept: had again without a call of the driver, and given
//! back where memory runs out.

mod support;

use osier_kernels::debug::Debug as _;
use osier_kernels::{
    Callback, Context, DeviceSlice, Kind, Memory, Pinned, Stream, StreamSemaphore, copy,
};
use std::sync::{Arc, mpsc};
use support::context;

const MIB: usize = 1 << 20;

fn plain(stream: &Stream, bytes: usize) -> DeviceSlice<u8> {
    let made = DeviceSlice::<u8>::with_kind(stream, Kind::Plain, bytes);
    made.unwrap().into_inner()
}

/// A stream that this holds until the answer is dropped, as a program may by itself.
fn held(context: &Context) -> (Stream, mpsc::Sender<()>) {
    let stream = Stream::new(context).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let hold = Callback::new(move || {
        let _ = wait.lock().map(|wait| wait.recv());
    });
    stream.call(&hold).unwrap();
    (stream, go)
}

/// A driver frees plain memory when all work is done, also of a stream that waits for what
/// this thread does next: dropping must not call it.
#[test]
fn memory_is_dropped_and_had_again_while_a_stream_is_held() {
    let Some(context) = context() else { return };
    let (held, go) = held(&context);
    let stream = Stream::new(&context).unwrap();
    let first = plain(&stream, 3 * MIB);
    let at = first.address();
    drop(first);
    let second = plain(&stream, 3 * MIB - 5000);
    assert_eq!(second.address(), at);
    drop(second);
    // Much less memory gets a block of its own.
    assert_ne!(plain(&stream, MIB).address(), at);
    drop(go);
    held.synchronize().unwrap();
}

/// A driver may register memory when all work is done, also of a stream that a semaphore holds: then
/// only what is registered already is had.
#[test]
fn memory_is_not_registered_while_a_semaphore_holds_a_stream() {
    let Some(context) = context() else { return };
    let pages = || Arc::new(vec![0u64; 1 << 12]);
    let register = |pages: &Arc<Vec<u64>>| {
        let at = pages.as_ptr().cast_mut().cast();
        // SAFETY: the vector is the owner, and nothing reads or writes it.
        unsafe { Memory::registered_unless_held(&context, at, 8 << 12, pages.clone()) }.unwrap()
    };
    let (first, second) = (pages(), pages());
    let known = register(&first).unwrap();
    let stream = Stream::new(&context).unwrap();
    let semaphore = StreamSemaphore::new(&context).unwrap();
    semaphore.hold(&stream).unwrap();
    assert!(context.is_held());
    assert!(register(&second).is_none());
    let again = register(&first).unwrap();
    assert_eq!(again.address(), known.address());
    semaphore.open();
    stream.synchronize().unwrap();
    assert!(register(&second).is_some());
}

/// Work of the stream may be under way on it: what comes later on this stream waits for it,
/// and on another stream does not.
#[test]
fn the_order_of_a_stream_is_enough() {
    let Some(context) = context() else { return };
    let (stream, go) = held(&context);
    let other = Stream::new(&context).unwrap();
    let bytes: Vec<u8> = (0..5 * MIB).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    let staged = Pinned::from_slice(&context, &bytes).unwrap();
    let first = plain(&stream, bytes.len());
    let at = first.address();
    let onto = first.after_stream(&stream);
    copy::copy(&stream, &staged.on_device(&stream), &onto).unwrap();
    drop((first, onto));
    let elsewhere = plain(&other, bytes.len());
    assert_ne!(elsewhere.address(), at);
    let again = plain(&stream, bytes.len());
    assert_eq!(again.address(), at);
    let mut back = Pinned::from_slice(&context, &vec![0u8; bytes.len()]).unwrap();
    let from = again.after_stream(&stream);
    copy::copy(&stream, &from, &back.on_device(&stream)).unwrap();
    drop(go);
    stream.synchronize().unwrap();
    assert!(back.host().unwrap() == bytes);
}

#[test]
#[ignore = "run by memory_that_runs_out_is_given_back"]
fn child_with_little_memory() {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    drop((plain(&stream, 20 * MIB), plain(&stream, 20 * MIB)));
    // Of another kind, and larger than any block that is kept.
    let pooled = DeviceSlice::<u8>::with_kind(&stream, Kind::Pool, 40 * MIB).unwrap();
    let full = DeviceSlice::<u8>::with_kind(&stream, Kind::Plain, 40 * MIB);
    assert!(full.unwrap_err().is_out_of_memory());
    drop(pooled);
    stream.synchronize().unwrap();
    plain(&stream, 40 * MIB);
    assert_eq!(context.give_back_kept(), 40 * MIB);
    assert_eq!(context.give_back_kept(), 0);
}

#[test]
#[ignore = "run by nothing_is_kept_where_that_is_said"]
fn child_that_keeps_nothing() {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    drop(plain(&stream, MIB));
    assert_eq!(context.give_back_kept(), 0);
}

fn child(test: &str, prepare: impl FnOnce(&mut std::process::Command)) {
    let Some(driver) = support::emulated() else {
        return;
    };
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored"]);
    command.debug("cuda-library", driver);
    command.env("OSIER_EMULATED_QUIET", "1");
    prepare(&mut command);
    let run = command.output().unwrap();
    let told = [run.stdout, run.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn memory_that_runs_out_is_given_back() {
    child("child_with_little_memory", |command| {
        command.env("OSIER_EMULATED_MEMORY", "64M");
    });
}

#[test]
fn nothing_is_kept_where_that_is_said() {
    child("child_that_keeps_nothing", |command| {
        command.debug("kept-plain", "0");
    });
}
