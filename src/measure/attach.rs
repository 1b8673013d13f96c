//! Times of copies by the kernel from another process.
//!
//! The other process is a child that touches the source and waits.
//!
//! # Invariants
//! 1. Between fork and exit the child makes system calls and touches the
//!    source buffer, and does nothing else: this process may have threads.
//! 2. The child ends when the parent's end of its pipe closes, and is reaped
//!    when [`Child`] is dropped.

use super::shortest;
use osier_engine::error::Result;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::time::Instant;

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
const CALLS: usize = 24;
const MOST_BYTES: usize = 4 << 20;
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// Whether the kernel copies from another process of ours; if not, why.
pub fn permitted() -> io::Result<()> {
    let child = Child::start(LINE_BYTES)?;
    child.read(&mut [0; LINE_BYTES])
}

/// (bytes, ns) of copies.
pub(super) fn times() -> io::Result<Result<Vec<(f64, f64)>>> {
    let child = Child::start(MOST_BYTES)?;
    let mut to = vec![1u8; MOST_BYTES + PAGE_BYTES];
    // Half a page away from the source within its page: other offsets may copy slowly.
    let wanted = child.source.as_ptr().addr() + PAGE_BYTES / 2;
    let start = wanted.wrapping_sub(to.as_ptr().addr()) % PAGE_BYTES;
    let to = &mut to[start..][..MOST_BYTES];
    // Check the permission first.
    child.read(to)?;
    let mut all = Vec::new();
    for bytes in SIZES {
        let to = &mut to[..bytes];
        let taken = shortest(&format!("{bytes} bytes of another process"), || {
            let mut times = Vec::with_capacity(CALLS);
            for _ in 0..CALLS {
                let start = Instant::now();
                child
                    .read(to)
                    .map_err(|e| super::disturbed(&e.to_string()))?;
                times.push(start.elapsed().as_nanos() as f64);
            }
            Ok(times)
        });
        match taken {
            Ok(ns) => all.push((bytes as f64, ns)),
            Err(e) => return Ok(Err(e)),
        }
    }
    Ok(Ok(all))
}

/// A process with a copy of our memory.
struct Child {
    pid: libc::pid_t,
    source: Vec<u8>,
    /// Kept open: closing it ends the child.
    hold: Option<PipeWriter>,
}

impl Child {
    fn start(bytes: usize) -> io::Result<Child> {
        let mut source = vec![0u8; bytes];
        let memory = source.as_mut_ptr();
        let (ours, ready) = io::pipe()?;
        let (theirs, hold) = io::pipe()?;
        // SAFETY: invariant 1.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            live(memory, bytes, &ours, &ready, &theirs, &hold);
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        drop((ready, theirs));
        let child = Child {
            pid,
            source,
            hold: Some(hold),
        };
        let mut byte = [0];
        (&ours).read_exact(&mut byte)?;
        Ok(child)
    }

    /// Copies from the child's memory.
    fn read(&self, to: &mut [u8]) -> io::Result<()> {
        let bytes = to.len().min(self.source.len());
        let local = libc::iovec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: bytes,
        };
        let remote = libc::iovec {
            iov_base: self.source.as_ptr().cast_mut().cast(),
            iov_len: bytes,
        };
        // SAFETY: `to` is writable for `bytes` bytes; the kernel checks the
        // child's side.
        let got = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        match got {
            n if n == bytes.cast_signed() => Ok(()),
            n if n < 0 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.hold = None;
        let mut status = 0;
        // SAFETY: our child, not reaped yet; `status` is writable.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
    }
}

/// The child's body (invariant 1).
fn live(
    memory: *mut u8,
    bytes: usize,
    ours: &PipeReader,
    ready: &PipeWriter,
    theirs: &PipeReader,
    hold: &PipeWriter,
) -> ! {
    // SAFETY: a system call without pointers; the parent's descriptors stay.
    unsafe { libc::close(ours.as_raw_fd()) };
    // SAFETY: as above. Without it the pipe would never end.
    unsafe { libc::close(hold.as_raw_fd()) };
    // As ranks do where the system requires consent.
    // SAFETY: this option takes a number.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    for at in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: within the vector, of which this process has its own copy.
        unsafe { memory.wrapping_add(at).write_volatile(1) };
    }
    let mut byte = 1u8;
    // SAFETY: `byte` is readable for one byte.
    unsafe { libc::write(ready.as_raw_fd(), (&raw const byte).cast(), 1) };
    loop {
        // SAFETY: `byte` is writable for one byte.
        let n = unsafe { libc::read(theirs.as_raw_fd(), (&raw mut byte).cast(), 1) };
        if n == 0 || (n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted) {
            break;
        }
    }
    // SAFETY: ends the process without running anything of the parent's.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_is_read_where_the_system_permits_it() {
        let child = Child::start(4096).unwrap();
        let mut to = [0u8; 4096];
        match child.read(&mut to) {
            // The child has written the first byte of each line, in its copy.
            Ok(()) => {
                assert!(to.iter().step_by(LINE_BYTES).all(|b| *b == 1));
                assert!(child.source.iter().all(|b| *b == 0));
            }
            Err(e) => crate::measure::needs::missing("attach", e),
        }
    }
}
