//! System calls of the launcher, as `Result`s.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use libc::{c_int, pid_t};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It called `exit` with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled {
        /// The signal.
        signal: i32,
        /// Whether it left a core file.
        core: bool,
    },
}

/// The answer of [`reap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// This child ended.
    Child(pid_t, End),
    /// Children are left, all of them alive.
    NoneYet,
    /// No child is left.
    NoneLeft,
}

fn cvt(ret: c_int) -> io::Result<c_int> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// Asks once for a child that has ended.
pub fn reap() -> io::Result<Reaped> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid < 0 {
            let e = io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ECHILD) => return Ok(Reaped::NoneLeft),
                _ => return Err(e),
            }
        }
        if pid == 0 {
            return Ok(Reaped::NoneYet);
        }
        return Ok(if libc::WIFSIGNALED(status) {
            let end = End::Signaled {
                signal: libc::WTERMSIG(status),
                core: libc::WCOREDUMP(status),
            };
            Reaped::Child(pid, end)
        } else {
            Reaped::Child(pid, End::Exited(libc::WEXITSTATUS(status)))
        });
    }
}

/// Sends a signal to a process (`pid > 0`) or a process group (`pid < 0`).
pub fn kill(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: a system call without pointers.
    cvt(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// The process group of a process.
pub fn group_of(pid: pid_t) -> io::Result<pid_t> {
    // SAFETY: a system call without pointers.
    cvt(unsafe { libc::getpgid(pid) })
}

/// The process group in the foreground of a terminal.
pub fn foreground_group(terminal: BorrowedFd<'_>) -> io::Result<pid_t> {
    // SAFETY: a system call without pointers.
    cvt(unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) })
}

/// The process group of the caller.
pub fn own_group() -> pid_t {
    // SAFETY: a system call without pointers, which cannot fail.
    unsafe { libc::getpgrp() }
}

/// Adopts descendants whose parents end before them.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: this option takes a number.
    cvt(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Lets children become zombies, whatever the parent of this process wanted.
pub fn default_sigchld() {
    // SAFETY: `SIG_DFL` is a valid disposition and SIGCHLD a valid signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// The soft limit on open files.
pub fn open_files_limit() -> io::Result<u64> {
    Ok(nofile()?.rlim_cur)
}

fn nofile() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    cvt(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    Ok(limit)
}

/// Raises the soft limit on open files to the hard one, at most to 2^20:
/// some programs close every descriptor up to the limit when they start.
pub fn raise_open_files_limit() -> io::Result<()> {
    let mut limit = nofile()?;
    let wanted = limit.rlim_max.min(1 << 20);
    if limit.rlim_cur < wanted {
        limit.rlim_cur = wanted;
        // SAFETY: `limit` is readable.
        cvt(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(())
}

/// Makes reads and writes of a descriptor return instead of wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a system call without pointers.
    let flags = cvt(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: a system call without pointers.
    cvt(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Lets the programs that this process executes inherit a descriptor.
pub fn set_inherited(fd: RawFd) -> io::Result<()> {
    // SAFETY: a system call without pointers.
    cvt(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop)
}

/// Opens the file behind a descriptor once more, so that its mode can be
/// non-blocking without that of the processes that share the descriptor.
pub fn reopen_nonblocking(fd: BorrowedFd<'_>, write: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(!write)
        .write(write)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// An entry for [`poll`].
pub fn interest(fd: BorrowedFd<'_>, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    }
}

/// Waits until a descriptor is ready or `timeout` has passed.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is writable for its length, `timeout` is null or
    // readable, and a null signal mask leaves the mask as it is.
    let ret = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout,
            std::ptr::null(),
        )
    };
    match cvt(ret) {
        Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
            for fd in fds {
                fd.revents = 0;
            }
            Ok(())
        }
        other => other.map(drop),
    }
}

fn signal_set(signals: &[c_int]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is writable.
    cvt(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
    // SAFETY: `sigemptyset` has initialized it.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: `set` is an initialized set.
        cvt(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
    }
    Ok(set)
}

/// Signals as something to poll.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
    before: SignalMask,
}

/// Which signals a process blocks.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalMask")
    }
}

impl SignalMask {
    /// Blocks all signals and returns the mask before.
    pub fn block_all() -> io::Result<SignalMask> {
        let mut all = signal_set(&[])?;
        // SAFETY: `all` is writable.
        cvt(unsafe { libc::sigfillset(&raw mut all) })?;
        let mut before = signal_set(&[])?;
        // SAFETY: `all` is readable and `before` writable.
        cvt(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) })?;
        Ok(SignalMask(before))
    }

    /// Gives the calling process this mask. Async-signal-safe.
    pub fn apply(&self) -> io::Result<()> {
        let set = &raw const self.0;
        // SAFETY: `set` is readable; null asks for no old mask.
        cvt(unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) }).map(drop)
    }
}

/// Does something that may start threads which stay, and which have all signals blocked. A
/// process's signal goes to any thread that does not block it, so a thread of a library would
/// take those that [`SignalFd`] waits for: the end of a child, and with it the job's.
///
/// # Errors
/// The system refuses.
pub fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> io::Result<T> {
    let before = SignalMask::block_all()?;
    let done = act();
    before.apply()?;
    Ok(done)
}

impl SignalFd {
    /// Blocks these signals in this process; they are read here instead.
    pub fn new(signals: &[c_int]) -> io::Result<SignalFd> {
        let set = signal_set(signals)?;
        let mut before = signal_set(&[])?;
        // SAFETY: `set` is readable and `before` writable.
        cvt(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) })?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is readable; -1 asks for a new descriptor.
        let fd = cvt(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: `fd` is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalFd {
            fd,
            before: SignalMask(before),
        })
    }

    /// The mask that this process had before, for those that it starts.
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }

    /// The next signal, if one has come.
    pub fn next(&self) -> Option<c_int> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        // SAFETY: `info` is writable for its size.
        let n = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                info.as_mut_ptr().cast(),
                size_of::<libc::signalfd_siginfo>(),
            )
        };
        if n != size_of::<libc::signalfd_siginfo>() as isize {
            return None;
        }
        // SAFETY: the kernel has filled all of it.
        let info = unsafe { info.assume_init() };
        c_int::try_from(info.ssi_signo).ok()
    }

    /// An entry for [`poll`].
    pub fn interest(&self) -> libc::pollfd {
        use std::os::fd::AsFd;
        interest(self.fd.as_fd(), libc::POLLIN)
    }
}

/// The name of a signal.
pub fn signal_name(signal: c_int) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGTSTP => "SIGTSTP",
        libc::SIGCONT => "SIGCONT",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        _ => "a real-time signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calling thread blocks the signal of a child's end.
    fn blocks_child() -> bool {
        let mut now = signal_set(&[]).unwrap();
        // SAFETY: null asks for no change; `now` is writable.
        cvt(unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now) }).unwrap();
        // SAFETY: `now` is an initialized set.
        unsafe { libc::sigismember(&raw const now, libc::SIGCHLD) == 1 }
    }

    #[test]
    fn threads_that_stay_get_no_signals() {
        let thread = with_signals_blocked(|| std::thread::spawn(blocks_child)).unwrap();
        assert!(thread.join().unwrap());
        assert!(!blocks_child());
    }
}
