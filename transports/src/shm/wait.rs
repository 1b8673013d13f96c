//! Asymmetric sleep and wake (membarrier): no fence on the senders' side.
//!
//! A rank that goes to sleep sets its flag, makes every running thread of the
//! job pass a barrier, and looks once more; a sender publishes, then looks at
//! the flag. Without the barrier both could miss each other, because a
//! processor may load the flag before its store is seen. The barrier costs the
//! sleeper microseconds and the sender nothing.
//!
//! # Invariants
//! 1. A system call on descriptors and numbers, or on memory of ours of the length that is
//!    said, touches no other memory of the process.
//!
//! # Sources
//! The store-buffering pattern: P. Sewell et al., "x86-TSO", CACM 53(7), 2010.
//! The asymmetric barrier: `membarrier(2)`, command GLOBAL_EXPEDITED.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

const QUERY: libc::c_int = 0;
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: invariant 1.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Whether the kernel offers the barrier.
pub(crate) fn membarrier_offered() -> bool {
    let offered = membarrier(QUERY);
    let both = libc::c_long::from(GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED);
    offered > 0 && offered & both == both
}

/// Lets others' barriers reach this process.
pub(crate) fn register() -> bool {
    membarrier(REGISTER_GLOBAL_EXPEDITED) == 0
}

/// Makes all registered processes of the machine pass a barrier.
pub(crate) fn barrier_all() {
    membarrier(GLOBAL_EXPEDITED);
}

/// Sleeps until the bell rings, one of `others` is readable, or time is up;
/// resets the bell. False: time is up.
pub(crate) fn sleep(bell: &OwnedFd, others: &[i32], timeout: Duration) -> bool {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // Without an allocation where the bell is alone.
    let mut alone = [entry(bell.as_raw_fd())];
    let mut several = Vec::new();
    let fds: &mut [libc::pollfd] = if others.is_empty() {
        &mut alone
    } else {
        several.push(alone[0]);
        several.extend(others.iter().copied().map(entry));
        &mut several
    };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let entries = fds.len() as libc::nfds_t;
    // SAFETY: invariant 1: the array is ours and holds as many entries as said; so is the time.
    let n = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            entries,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    if n > 0 && fds[0].revents != 0 {
        drain(bell);
    }
    n != 0
}

/// Resets the bell.
pub(crate) fn drain(bell: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: invariant 1: eight bytes from our own non-blocking eventfd.
    unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
}
