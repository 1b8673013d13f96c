//! Keeper: a process that outlives the launcher, to leave no process behind.
//!
//! It leads the process group of the job and reads a pipe whose other end
//! only the launcher holds. When that end closes, which the kernel does even
//! after `kill -9`, the keeper kills the group with all that the ranks have
//! started in it, and itself.
//!
//! # Invariants
//! 1. It is forked while the launcher has one thread, so that its child may
//!    run any code.
//! 2. Both ends of the pipe close on exec: no rank holds one.
//! 3. It kills only after it leads a group of its own.
//! 4. It is born with all signals blocked: those that are passed on to its
//!    group never end it, however late it runs first.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;

use libc::pid_t;

use super::sys::SignalMask;

/// The launcher's side of the keeper.
#[derive(Debug)]
pub struct Keeper {
    pid: pid_t,
    /// Held, never written: its end is the message.
    _launcher_lives: PipeWriter,
}

impl Keeper {
    /// Forks the keeper. Called before this process starts any thread.
    pub fn start() -> io::Result<Keeper> {
        let (reader, writer) = io::pipe()?;
        let before = SignalMask::block_all()?;
        // SAFETY: invariant 1, upheld by the caller: `main` starts no thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(writer);
            keep(&reader);
        }
        let failure = io::Error::last_os_error();
        before.apply()?;
        if pid < 0 {
            return Err(failure);
        }
        // Both sides do this, so that the group exists for both whoever runs
        // first. It fails only after the keeper has died; its end is noticed
        // like that of any child.
        // SAFETY: a system call without pointers.
        unsafe { libc::setpgid(pid, pid) };
        Ok(Keeper {
            pid,
            _launcher_lives: writer,
        })
    }

    /// Its process, which is also the number of the job's process group.
    pub fn group(&self) -> pid_t {
        self.pid
    }
}

/// The keeper's life.
fn keep(launcher: &PipeReader) -> ! {
    // SAFETY: a system call without pointers.
    if unsafe { libc::setpgid(0, 0) } != 0 {
        exit();
    }
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"osier-keeper".as_ptr()) };
    // The pipe becomes descriptor 0 and everything else is closed: standard
    // output too, or a reader of it would wait for the keeper.
    // SAFETY: a system call without pointers; whatever was descriptor 0 is
    // not used again in this process.
    if unsafe { libc::dup2(launcher.as_raw_fd(), 0) } != 0 {
        exit();
    }
    // SAFETY: a system call without pointers; nothing here uses another
    // descriptor than 0 from now on.
    if unsafe { libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) } != 0 {
        for fd in 1..4096 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
    let mut byte = 0_u8;
    loop {
        // SAFETY: `byte` is writable for one byte.
        let n = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
        if n == 0 || (n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted) {
            break;
        }
    }
    // SAFETY: a system call without pointers; by invariant 3 the group is the
    // job's.
    unsafe { libc::kill(0, libc::SIGKILL) };
    exit();
}

fn exit() -> ! {
    // SAFETY: ends the process without running anything of the launcher's.
    unsafe { libc::_exit(1) }
}
