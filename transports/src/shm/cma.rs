//! Cross-memory attach: the kernel copies between two processes.
//!
//! # Sources
//! `process_vm_readv(2)`; on its use for message passing: B. Goglin,
//! S. Moreaud, "KNEM: a Generic and Scalable Kernel-Assisted Intra-node MPI
//! Communication Framework", JPDC 73(2), 2013.

use crate::contract::{TransportError, TransportErrorKind};

/// Lets other processes of the same user read this one where the system asks
/// for consent first.
pub(crate) fn allow() {
    if std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() == "1")
    {
        // SAFETY: a system call without pointers.
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
        // SAFETY: local memory is valid by the caller's contract; the kernel
        // checks the remote side.
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
    // SAFETY: the caller's contract.
    unsafe {
        transfer(
            libc::process_vm_readv,
            "reading memory of",
            pid,
            remote,
            to,
            bytes,
        )
    }
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
    // SAFETY: the caller's contract; the call only reads local memory.
    unsafe {
        transfer(
            libc::process_vm_writev,
            "writing memory of",
            pid,
            remote,
            from.cast_mut(),
            bytes,
        )
    }
}
