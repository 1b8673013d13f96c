//! Threads of the test's own process, which the kernel describes.

use super::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[test]
fn calls_are_parsed() {
    let futex = libc::SYS_futex;
    let at = |operation: u32, timeout: u64| {
        parse_call(&format!(
            "{futex} 0x7f00 {operation:#x} 0x2 {timeout:#x} 0x0 0xffffffff 0x7ffe 0x7ff0"
        ))
    };
    let private = Some(Call::Futex {
        at: 0x7f00,
        private: true,
    });
    assert_eq!(at(0x80, 0), private, "FUTEX_WAIT_PRIVATE");
    assert_eq!(at(0x189, 0), private, "FUTEX_WAIT_BITSET_PRIVATE, realtime");
    let shared = Some(Call::Futex {
        at: 0x7f00,
        private: false,
    });
    assert_eq!(at(0x109, 0), shared, "as of pthread_join");
    assert_eq!(at(0x80, 0x7fff), None, "a time-out");
    assert_eq!(at(0x81, 0), None, "FUTEX_WAKE does not sleep");
    let epoll = libc::SYS_epoll_pwait;
    let wait = |ms: u64| parse_call(&format!("{epoll} 0x5 0x7f 0x8 {ms:#x} 0x0 0x8 0x1 0x2"));
    assert_eq!(wait(0xffff_ffff), Some(Call::Epoll { fd: 5 }));
    assert_eq!(wait(u64::MAX), Some(Call::Epoll { fd: 5 }));
    assert_eq!(wait(0), None);
    assert_eq!(wait(1000), None);
    for other in [
        "running",
        "",
        "-1 0x7ffe 0x7ff0",
        "202",
        "0 0x0 0x1",
        "202 a b c d e f",
    ] {
        assert_eq!(parse_call(other), None, "{other:?}");
    }
}

#[test]
fn memory_of_others_is_not_private() {
    let maps = "\
1000-2000 rw-p 00000000 00:00 0
2000-3000 rw-s 00000000 00:01 7 /dev/shm/x
";
    assert!(files::is_private(maps, 0x1000));
    assert!(files::is_private(maps, 0x1fff));
    assert!(!files::is_private(maps, 0x2000));
    assert!(!files::is_private(maps, 0x3000));
    assert!(!files::is_private("", 0));
}

/// Looks at a thread that runs `f` until it is asleep, or the time is up.
fn looked_at(f: impl FnOnce(mpsc::Sender<u32>) + Send + 'static, asleep: bool) -> Option<Seen> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || f(tell));
    let thread = told.recv().expect("it starts");
    let start = Instant::now();
    loop {
        let seen = Seen::of(Process::own(), thread);
        let long = if asleep { 60 } else { 1 };
        if seen.is_some() == asleep && asleep || start.elapsed() > Duration::from_secs(long) {
            return seen;
        }
        if !asleep && seen.is_some() {
            return seen;
        }
    }
}

fn this_thread() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").expect("a link");
    let number = link.file_name().expect("a number").to_string_lossy();
    number.parse().expect("a number")
}

#[test]
fn a_thread_in_a_futex_sleeps_and_one_with_a_time_out_does_not() {
    let seen = looked_at(
        |tell| {
            tell.send(this_thread()).expect("asked");
            std::thread::park();
        },
        true,
    );
    let seen = seen.expect("asleep");
    assert!(matches!(seen.sleeper.sleep, Sleep::Futex(_)));
    assert!(files::only_threads_wake(
        Process::own(),
        [seen.call].into_iter()
    ));
    // It has not run, so it looks the same.
    let again = Seen::of(Process::own(), seen.sleeper.thread).expect("asleep");
    assert_eq!(again.switches, seen.switches);
    for sleeps in [
        std::thread::sleep as fn(Duration),
        std::thread::park_timeout,
    ] {
        let seen = looked_at(
            move |tell| {
                tell.send(this_thread()).expect("asked");
                sleeps(Duration::from_secs(3));
            },
            false,
        );
        assert!(seen.is_none());
    }
}

/// What a thread in epoll with this descriptor is woken by.
fn epoll_of(fds: &[i32]) -> bool {
    // SAFETY: invariant 1 of `sys`.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    // SAFETY: invariant 2 of `sys`: opened above.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for fd in fds {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: invariant 1 of `sys`: the event is a local, alive for the call.
        let added =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &raw mut event) };
        assert_eq!(added, 0);
    }
    let fd = epoll.as_raw_fd() as u64;
    files::only_threads_wake(Process::own(), [Call::Epoll { fd }].into_iter())
}

fn eventfd(flags: i32) -> OwnedFd {
    // SAFETY: invariant 1 of `sys`.
    let fd = unsafe { libc::eventfd(0, flags) };
    assert!(fd >= 0);
    // SAFETY: invariant 2 of `sys`: opened above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn epoll_of_own_eventfds_and_pairs_is_woken_by_threads() {
    let event = eventfd(libc::EFD_CLOEXEC);
    let (one, other) = UnixStream::pair().expect("a pair");
    assert!(epoll_of(&[event.as_raw_fd(), one.as_raw_fd()]));
    // Its end is what wakes, so it must be here.
    drop(other);
    assert!(!epoll_of(&[one.as_raw_fd()]));
    let (from_outside, _writer) = std::io::pipe().expect("a pipe");
    assert!(!epoll_of(&[from_outside.as_raw_fd()]));
    assert!(!epoll_of(&[event.as_raw_fd(), from_outside.as_raw_fd()]));
}

/// A process that does not outlive its test.
struct Kept(std::process::Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn descriptor_shared_with_another_process_may_wake() {
    let event = eventfd(0);
    let (one, other) = UnixStream::pair().expect("a pair");
    assert!(epoll_of(&[one.as_raw_fd()]));
    let child = std::process::Command::new("sleep")
        .arg("600")
        .stdin(std::os::fd::OwnedFd::from(
            other.try_clone().expect("a copy"),
        ))
        .spawn();
    let child = Kept(child.expect("it starts"));
    assert!(!epoll_of(&[event.as_raw_fd()]), "inherited");
    assert!(
        !epoll_of(&[one.as_raw_fd()]),
        "its other end is the child's input"
    );
    drop(child);
    assert!(epoll_of(&[one.as_raw_fd()]));
}
