//! Cross-memory attach: the kernel copies between two processes.
//!
//! # Invariants
//! 1. Callers vouch for local memory: it is valid for as many bytes as they say, for what
//!    the call does with it.
//! 2. The kernel checks the remote side: what is not mapped there is an error.
//! 3. The stage has room for [`STAGED_BYTES`] behind each place within its first page, is
//!    this thread's alone, and is no other memory of a transfer.
//!
//! # Sources
//! `process_vm_readv(2)`; on its use for message passing: B. Goglin,
//! S. Moreaud, "KNEM: a Generic and Scalable Kernel-Assisted Intra-node MPI
//! Communication Framework", JPDC 73(2), 2013.

use crate::contract::{TransportError, TransportErrorKind};
use std::cell::RefCell;

/// Lets other processes of the same user read this one where the system asks
/// for consent first.
pub(crate) fn allow() {
    if std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() == "1")
    {
        // SAFETY: invariant 2: a system call that touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// # Safety
/// `local` is valid for `bytes` bytes for what `call` does.
unsafe fn transfer(
    call: Call,
    what: &str,
    pid: u32,
    remote: u64,
    local: *mut u8,
    bytes: usize,
) -> Result<(), TransportError> {
    let mut done = 0;
    while done < bytes {
        // At most 1 GiB a call: the system cuts longer ones at 2 GiB.
        let n = (bytes - done).min(1 << 30);
        let l = libc::iovec {
            iov_base: local.wrapping_add(done).cast(),
            iov_len: n,
        };
        let r = libc::iovec {
            iov_base: (remote as usize + done) as *mut libc::c_void,
            iov_len: n,
        };
        // SAFETY: invariant 1 for the local memory, 2 for the remote.
        let got = unsafe { call(pid as libc::pid_t, &raw const l, 1, &raw const r, 1, 0) };
        if got > 0 {
            done += got as usize;
            continue;
        }
        let e = std::io::Error::last_os_error();
        if got < 0 && e.raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        if got == 0 || e.raw_os_error() == Some(libc::EFAULT) {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("{what} process {pid}: {n} bytes at {remote:#x} are not mapped there"),
            ));
        }
        return Err(TransportError::os(
            format!(
                "{what} process {pid} (hint: the system must allow process_vm_readv between processes of one user)"
            ),
            &e,
        ));
    }
    Ok(())
}

const PAGE: usize = 4096;
/// Bytes that go by the [`STAGE`] at a time: half of a second-level cache.
const STAGED_BYTES: usize = 128 << 10;

thread_local! {
    /// Where bytes stop over whose ends lie so that the system copies slowly.
    static STAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Whether the system takes five times as long from there to here: it copies by `rep
/// movsb`, and where what is written lies 1 to 31 bytes ahead of what is read, each within
/// its page, some processors take both for the same memory.
fn slow(from: usize, to: usize, bytes: usize) -> bool {
    bytes > PAGE && (1..32).contains(&(to.wrapping_sub(from) % PAGE))
}

/// Has a transfer done by parts that stop over half a page away from the remote end, where
/// both ways are quick.
fn staged(
    remote: u64,
    bytes: usize,
    mut each: impl FnMut(*mut u8, usize, usize) -> Result<(), TransportError>,
) -> Result<(), TransportError> {
    STAGE.with_borrow_mut(|stage| {
        stage.resize(STAGED_BYTES + PAGE, 0);
        let base = stage.as_mut_ptr();
        let wanted = (remote as usize).wrapping_add(PAGE / 2);
        let base = base.wrapping_add(wanted.wrapping_sub(base.addr()) % PAGE);
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(STAGED_BYTES);
            each(base, done, n)?;
            done += n;
        }
        Ok(())
    })
}

/// Reads another process's memory.
///
/// # Safety
/// `to` is writable for `bytes` bytes.
pub(crate) unsafe fn read(
    pid: u32,
    remote: u64,
    to: *mut u8,
    bytes: usize,
) -> Result<(), TransportError> {
    let what = "reading memory of";
    if !slow(remote as usize, to.addr(), bytes) {
        // SAFETY: invariant 1, by the caller's contract.
        return unsafe { transfer(libc::process_vm_readv, what, pid, remote, to, bytes) };
    }
    staged(remote, bytes, |stage, at, n| {
        let part = remote + at as u64;
        // SAFETY: invariant 3.
        unsafe { transfer(libc::process_vm_readv, what, pid, part, stage, n) }?;
        // SAFETY: invariants 1 and 3: read just now, and the caller's to write.
        unsafe { std::ptr::copy_nonoverlapping(stage, to.wrapping_add(at), n) };
        Ok(())
    })
}

/// Writes another process's memory.
///
/// # Safety
/// `from` is readable for `bytes` bytes.
pub(crate) unsafe fn write(
    pid: u32,
    remote: u64,
    from: *const u8,
    bytes: usize,
) -> Result<(), TransportError> {
    let what = "writing memory of";
    if !slow(from.addr(), remote as usize, bytes) {
        let from = from.cast_mut();
        // SAFETY: invariant 1, by the caller's contract; the call only reads local memory.
        return unsafe { transfer(libc::process_vm_writev, what, pid, remote, from, bytes) };
    }
    staged(remote, bytes, |stage, at, n| {
        // SAFETY: invariants 1 and 3: the caller's to read, and there is room.
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at), stage, n) };
        let part = remote + at as u64;
        // SAFETY: invariant 3: written just now.
        unsafe { transfer(libc::process_vm_writev, what, pid, part, stage, n) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this process itself, for all places of both ends within pages.
    #[test]
    fn bytes_arrive_from_and_at_all_places() {
        let pid = std::process::id();
        let from: Vec<u8> = (0..STAGED_BYTES + 3 * PAGE)
            .map(|i| (i / 3) as u8)
            .collect();
        for bytes in [1, PAGE, PAGE + 1, STAGED_BYTES + 77] {
            for ahead in [0, 1, 16, 31, 32] {
                let mut to = vec![0u8; from.len()];
                let start = from.as_ptr().addr() + ahead;
                let at = start.wrapping_sub(to.as_ptr().addr()) % PAGE;
                let place = to.as_mut_ptr().wrapping_add(at);
                // SAFETY: invariant 1: within both, which are different.
                let read = unsafe { read(pid, from.as_ptr().addr() as u64, place, bytes) };
                if let Err(e) = read {
                    return crate::needs::missing("attach", e);
                }
                assert_eq!(to[at..at + bytes], from[..bytes], "{bytes} {ahead}");
                to.fill(0);
                let place = to.as_mut_ptr().expose_provenance() + at;
                // SAFETY: invariant 1: within both, which are different.
                unsafe { write(pid, place as u64, from.as_ptr(), bytes) }.unwrap();
                assert_eq!(to[at..at + bytes], from[..bytes], "{bytes} {ahead}");
                assert!(to[..at].iter().chain(&to[at + bytes..]).all(|b| *b == 0));
            }
        }
    }
}
