//! Waits for work that has nothing to do with the caller, as a real driver has them.
//!
//! # Sources
//! CUDA C++ Programming Guide 12.2: lazy loading. `cuMemFree`, `cuMemFreeHost` and closing
//! memory of other processes are known to wait for the device; a stream takes about a
//! thousand works that wait, and a call that finds it full holds up those for other streams
//! (forums.developer.nvidia.com/t/220629 and 68937; Oneflow, pull request 890).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Handle;
use crate::driver::driver;
use crate::fault::Result;
use crate::settings::settings;

/// Works that wait in a stream, of which one more holds up the thread that queues it, as the
/// launch queue of a real driver does; and with it every other call, for the lock is held.
const MOST_QUEUED: usize = 1000;

/// Threads that wait for room.
static WAITING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The stream whose queue this thread has filled.
    static FILLED: Cell<Option<Handle>> = const { Cell::new(None) };
}

/// Notes that this thread has queued work on a stream; `length` is the queue's length now.
pub fn queued(stream: Handle, length: usize) {
    FILLED.set((length > MOST_QUEUED).then_some(stream));
}

/// Waits until the queue that this thread has filled has room.
pub fn wait_for_room() -> Result {
    let Some(stream) = FILLED.take() else {
        return Ok(());
    };
    let driver = driver()?;
    WAITING.fetch_add(1, Ordering::SeqCst);
    driver.wait_until(driver.lock(), |state| {
        let queue = state.streams.get(&stream).map(|s| s.queue.len());
        queue.is_none_or(|length| length <= MOST_QUEUED)
    });
    // Under the lock, so that nobody misses it.
    let state = driver.lock();
    WAITING.fetch_sub(1, Ordering::SeqCst);
    drop(state);
    driver.done.notify_all();
    Ok(())
}

/// Waits while another thread waits for room in a queue.
pub fn wait_for_others() -> Result {
    if WAITING.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    let driver = driver()?;
    driver.wait_until(driver.lock(), |_| WAITING.load(Ordering::SeqCst) == 0);
    Ok(())
}

/// Calls that wait for work which has nothing to do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Known to: frees, closing, unpinning, loading of kernels. (Unmapping is known not to.)
    Always,
    /// A driver may: making memory and streams, pinning.
    Perhaps,
}

/// Waits for all work of the thread's context, as a real driver does in the middle of some
/// calls: if a stream is held, the call blocks. The wait counts as no synchronization, so a
/// program that relies on it is still reported.
pub fn wait_for_context(waits: Waits) -> Result {
    if waits == Waits::Perhaps && !settings().waits_all {
        return Ok(());
    }
    let driver = driver()?;
    let mut state = driver.lock();
    // Who needs a context says so itself.
    let Ok(context) = state.current() else {
        return Ok(());
    };
    let ticket = state.ticket();
    driver.wait_until(state, |s| s.drained(context, ticket));
    Ok(())
}
