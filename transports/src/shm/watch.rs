//! Ends of processes, where no launcher records them: the ranks of a job that was started by
//! a launcher of others look whether the processes of the others are there, each time one has
//! slept for its time.
//!
//! # Invariants
//! 1. What is recorded is the end of a process that has joined the job and has not finalized,
//!    by its number in this rank's own namespace.
//! 2. Every pointer that is handed to the system is ours for the call, and descriptors that it
//!    returns are closed by who asked for them.
//!
//! # Sources
//! Linux man-pages 6.7, `pidfd_open(2)`: a descriptor of a process is readable when it has
//! ended, also before its parent has waited for it.

use super::rank::ShmRank;
use crate::death::Death;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

impl ShmRank {
    /// Records the ends that nobody has recorded.
    #[cold]
    pub(super) fn look_for_ended(&self) {
        let job = self.job();
        for rank in (0..job.ranks()).filter(|rank| *rank != self.rank()) {
            let control = job.control(rank);
            // The namespace is written behind the number, so that both are there.
            let here = control.namespace.load(Ordering::Acquire) == self.namespace();
            let pid = control.pid.load(Ordering::Relaxed);
            if here && pid != 0 && job.death(rank).is_none() && has_ended(pid) == Some(true) {
                job.mark_dead(rank, Death::Ended);
            }
        }
    }
}

/// Whether a process has ended; `None`: the system does not say.
fn has_ended(pid: u32) -> Option<bool> {
    // SAFETY: invariant 2: a number and no flags; it returns a new descriptor, or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        let why = std::io::Error::last_os_error().raw_os_error();
        return (why == Some(libc::ESRCH)).then_some(true);
    }
    // SAFETY: invariant 2: the system has just opened it for this call alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: invariant 2: one entry of ours.
    let n = unsafe { libc::poll(&mut entry, 1, 0) };
    (n >= 0).then_some(n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_has_ended_before_and_after_it_was_waited_for() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        assert_eq!(has_ended(std::process::id()), Some(false));
        assert_eq!(has_ended(child.id()), Some(false));
        drop(child.stdin.take());
        while has_ended(child.id()) != Some(true) {
            std::thread::yield_now();
        }
        child.wait().expect("its end");
        assert_eq!(has_ended(child.id()), Some(true));
    }
}
