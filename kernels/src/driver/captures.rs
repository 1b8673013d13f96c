//! Calls that a capture may forbid, though they have nothing to do with it.
//!
//! A capture in the mode "global", which is torch's, forbids every thread calls such as a
//! question about an event or an allocation, and is spoiled by them; in the mode
//! "thread-local", its own thread. A thread in the mode "relaxed" is free of that. This
//! crate's calls concern no capture of others, so that they are made relaxed.
//!
//! # Invariants
//! 1. A thread of the user has its own mode again behind each call.
//!
//! # Sources
//! CUDA Driver API reference 12.0: `cuThreadExchangeStreamCaptureMode`.

use super::{Driver, abi};
use std::cell::Cell;
use std::ffi::c_uint;

#[derive(Clone, Copy, PartialEq)]
enum Thread {
    /// Of the user.
    Users,
    /// Of this library, with the mode it began with.
    Own,
    /// Of this library, relaxed.
    OwnRelaxed,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread::Users) };
}

/// The calling thread is the library's: it stays relaxed from its first call on, which
/// spares two calls for each question about an event.
pub fn own_thread() {
    THREAD.set(match THREAD.get() {
        Thread::Users => Thread::Own,
        own => own,
    });
}

/// The mode that the thread had, for when the call is done.
pub struct Relaxed<'a> {
    driver: &'a Driver,
    before: Option<c_uint>,
}

/// Makes the thread relaxed; what the driver lacks is not needed.
pub fn beside_captures(driver: &Driver) -> Relaxed<'_> {
    let thread = THREAD.get();
    let before = match thread {
        Thread::OwnRelaxed => None,
        Thread::Users | Thread::Own => exchange(driver, abi::CAPTURE_RELAXED),
    };
    if thread == Thread::Own {
        THREAD.set(Thread::OwnRelaxed);
    }
    Relaxed {
        driver,
        before: before.filter(|&mode| thread == Thread::Users && mode != abi::CAPTURE_RELAXED),
    }
}

/// The mode before, where the driver has modes.
fn exchange(driver: &Driver, mut mode: c_uint) -> Option<c_uint> {
    // SAFETY: a place for one mode.
    let exchanged = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
    exchanged.is_ok().then_some(mode)
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(self.driver, before);
        }
    }
}
