//! Jobs that stand still: for ever, or only for a while.
//!
//! `exercise looks-stuck HOW`: a thread of rank 0 waits for something that comes, and all else
//! waits for it. `exercise stuck HOW`: nothing comes. `exercise outsider WHAT`: another
//! process, of which something comes. `tests/still.rs` has the lists.

mod looks;
mod stuck;

pub use looks::{looks_stuck, outsider};
pub use stuck::stuck;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// How long what only looks stuck stands still: several times as long as the tests give a job
/// before it probably hangs.
const LONG: Duration = Duration::from_millis(1_800);

/// The result of a system call that must not fail.
#[track_caller]
fn done(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

/// A descriptor that a system call has opened.
#[track_caller]
fn opened(result: i32) -> OwnedFd {
    // SAFETY: the call has just opened it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(done(result)) }
}

/// Runs a future as executors do: its thread sleeps until a waker wakes it.
fn parked<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

fn eventfd(flags: i32) -> OwnedFd {
    // SAFETY: a system call without pointers.
    opened(unsafe { libc::eventfd(0, flags) })
}

/// Sleeps in epoll until one of these is readable.
fn epoll(fds: &[i32]) {
    // SAFETY: a system call without pointers.
    let epoll = opened(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    for fd in fds {
        let (epoll, event) = (epoll.as_raw_fd(), &raw mut event);
        // SAFETY: the event is a local, alive for the call.
        done(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, *fd, event) });
    }
    // SAFETY: room for one event, which is a local, alive for the call.
    done(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, -1) });
}

/// A semaphore that lives as long as the process.
fn semaphore() -> &'static Semaphore {
    // SAFETY: a semaphore may begin as zeros; `sem_init` makes it one.
    let semaphore = Box::leak(Box::new(Semaphore(unsafe { std::mem::zeroed() })));
    // SAFETY: it is ours alone until this function returns, and never moves.
    done(unsafe { libc::sem_init(&raw mut semaphore.0, 0, 0) });
    semaphore
}

struct Semaphore(libc::sem_t);

// SAFETY: the C library's functions on it may be called by any thread.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    fn at(&self) -> *mut libc::sem_t {
        (&raw const self.0).cast_mut()
    }

    /// Sleeps until it is posted; a signal's handler does not end that.
    fn wait(&self) {
        loop {
            // SAFETY: a semaphore that lives for ever.
            if unsafe { libc::sem_wait(self.at()) } == 0 {
                return;
            }
            assert_eq!(
                std::io::Error::last_os_error().raw_os_error(),
                Some(libc::EINTR)
            );
        }
    }
}
