//! Cross-memory attach: the kernel copies between two processes.
//!
//! # Invariants
//! 1. Callers vouch for local memory: it is valid for as many bytes as they say, for what
//!    the call does with it.
//! 2. The kernel checks the remote side: what is not mapped there is an error.
//! 3. The stage has room for [`STAGED_BYTES`] behind each place within its first page, is
//!    this thread's alone, and is no other memory of a transfer.
//! 4. A list names runs of the remote process, as many as the system takes.
//!
//! # Sources
//! `process_vm_readv(2)`; on its use for message passing: B. Goglin,
//! S. Moreaud, "KNEM: a Generic and Scalable Kernel-Assisted Intra-node MPI
//! Communication Framework", JPDC 73(2), 2013.

use crate::contract::{TransportError, TransportErrorKind};
use std::cell::RefCell;
use std::ops::Range;

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

/// Copies between memory here and runs of another process, one behind the other.
///
/// # Safety
/// `local` is valid for `bytes` bytes for what `call` does; as many are named by `remote`, a list
/// of at most [`MOST_RUNS`].
unsafe fn transfer(
    call: Call,
    what: &str,
    pid: u32,
    mut remote: &mut [libc::iovec],
    (local, bytes): (*mut u8, usize),
) -> Result<(), TransportError> {
    let mut done = 0;
    while done < bytes {
        // At most 1 GiB a call: the system cuts longer ones at 2 GiB.
        let n = (bytes - done).min(1 << 30);
        let l = libc::iovec {
            iov_base: local.wrapping_add(done).cast(),
            iov_len: n,
        };
        let (list, runs) = (remote.as_ptr(), remote.len() as libc::c_ulong);
        // SAFETY: invariant 1 for the local memory, 2 and 4 for the remote.
        let got = unsafe { call(pid as libc::pid_t, &raw const l, 1, list, runs, 0) };
        if got > 0 {
            done += got as usize;
            remote = behind(remote, got as usize);
            continue;
        }
        let e = std::io::Error::last_os_error();
        if got < 0 && e.raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        if got == 0 || e.raw_os_error() == Some(libc::EFAULT) {
            let at = remote.first().map_or(0, |run| run.iov_base.addr());
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("{what} process {pid}: {n} bytes from {at:#x} on are not mapped there"),
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

/// What is left of a list behind its first bytes.
fn behind(list: &mut [libc::iovec], mut bytes: usize) -> &mut [libc::iovec] {
    let mut whole = 0;
    while let Some(run) = list.get(whole)
        && run.iov_len <= bytes
    {
        bytes -= run.iov_len;
        whole += 1;
    }
    let list = &mut list[whole..];
    if let Some(first) = list.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(bytes);
        first.iov_len -= bytes;
    }
    list
}

/// A run of another process.
fn run(at: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(at as usize),
        iov_len: bytes,
    }
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

/// Where [`STAGED_BYTES`] of the stage lie half a page away from a remote end.
fn beside(stage: &mut Vec<u8>, remote: u64) -> *mut u8 {
    stage.resize(STAGED_BYTES + PAGE, 0);
    let base = stage.as_mut_ptr();
    let wanted = (remote as usize).wrapping_add(PAGE / 2);
    base.wrapping_add(wanted.wrapping_sub(base.addr()) % PAGE)
}

/// Has a transfer done by parts that stop over half a page away from the remote end, where
/// both ways are quick.
fn staged(
    remote: u64,
    bytes: usize,
    mut each: impl FnMut(*mut u8, usize, usize) -> Result<(), TransportError>,
) -> Result<(), TransportError> {
    STAGE.with_borrow_mut(|stage| {
        let base = beside(stage, remote);
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
        let list = &mut [run(remote, bytes)];
        // SAFETY: invariant 1, by the caller's contract.
        return unsafe { transfer(libc::process_vm_readv, what, pid, list, (to, bytes)) };
    }
    staged(remote, bytes, |stage, at, n| {
        let part = &mut [run(remote + at as u64, n)];
        // SAFETY: invariant 3.
        unsafe { transfer(libc::process_vm_readv, what, pid, part, (stage, n)) }?;
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
        let (list, own) = (&mut [run(remote, bytes)], (from.cast_mut(), bytes));
        // SAFETY: invariant 1, by the caller's contract; the call only reads local memory.
        return unsafe { transfer(libc::process_vm_writev, what, pid, list, own) };
    }
    staged(remote, bytes, |stage, at, n| {
        // SAFETY: invariants 1 and 3: the caller's to read, and there is room.
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at), stage, n) };
        let part = &mut [run(remote + at as u64, n)];
        // SAFETY: invariant 3: written just now.
        unsafe { transfer(libc::process_vm_writev, what, pid, part, (stage, n)) }
    })
}

/// Whether the system lets this process read another one.
pub(crate) fn permits(pid: u32) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // Nothing is mapped there: rights are looked at first.
    let there = run(0, 1);
    let (pid, here, there) = (pid as libc::pid_t, &raw const here, &raw const there);
    // SAFETY: invariants 1 and 2: a byte of ours.
    let read = unsafe { libc::process_vm_readv(pid, here, 1, there, 1, 0) };
    read >= 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Most runs of one call: what the system takes.
pub(crate) const MOST_RUNS: usize = 1024;
/// Bytes between two runs that are read and dropped rather than named: a run of a list takes 330
/// ns on a Xeon of 2.5 GHz, a byte in one that is longer 0.11.
const GAP_BYTES: u64 = 2048;
/// Runs of a list that take as long as a call: a span replaces at least as many.
const SPAN_RUNS: usize = 3;

/// Runs in groups: long ones by themselves, since how they lie matters ([`slow`]); others in one
/// list.
fn groups(runs: &[Range<u64>]) -> impl Iterator<Item = &[Range<u64>]> {
    let is_short = |run: &Range<u64>| run.end - run.start <= PAGE as u64;
    let groups = runs.chunk_by(move |one, next| is_short(one) && is_short(next));
    groups.flat_map(|group| group.chunks(MOST_RUNS))
}

fn bytes_of(runs: &[Range<u64>]) -> usize {
    runs.iter().map(|run| (run.end - run.start) as usize).sum()
}

/// How many runs at the front lie one behind the other, with short gaps, in a span that the stage
/// has room for.
fn in_a_span(runs: &[Range<u64>]) -> usize {
    let Some(first) = runs.first() else {
        return 0;
    };
    let follow = |pair: &&[Range<u64>]| {
        let gap = pair[1].start.checked_sub(pair[0].end);
        gap.is_some_and(|gap| gap <= GAP_BYTES) && pair[1].end - first.start <= STAGED_BYTES as u64
    };
    1 + runs.windows(2).take_while(follow).count()
}

/// Reads runs of another process's memory that lie behind `base`, one behind the other.
///
/// # Safety
/// `to` is writable for the bytes of all.
pub(crate) unsafe fn read_runs(
    pid: u32,
    base: u64,
    runs: &[Range<u64>],
    to: *mut u8,
) -> Result<(), TransportError> {
    let mut done = 0;
    for mut group in groups(runs) {
        while !group.is_empty() {
            let (at, spanned) = (to.wrapping_add(done), in_a_span(group));
            let n = match spanned < SPAN_RUNS {
                true => group.len(),
                false => spanned,
            };
            let (now, rest) = group.split_at(n);
            let (bytes, first) = (bytes_of(now), base + now[0].start);
            match (n, spanned < SPAN_RUNS) {
                // SAFETY: invariant 1: a part of what the caller vouches for.
                (1, _) => unsafe { read(pid, first, at, bytes) }?,
                // SAFETY: invariant 1: a part of what the caller vouches for.
                (_, true) => unsafe { read_list(pid, base, now, (at, bytes)) }?,
                // SAFETY: invariant 1: a part of what the caller vouches for.
                (_, false) => unsafe { read_span(pid, base, now, at) }?,
            }
            done += bytes;
            group = rest;
        }
    }
    Ok(())
}

/// # Safety
/// As [`transfer`]; at most [`MOST_RUNS`].
unsafe fn read_list(
    pid: u32,
    base: u64,
    runs: &[Range<u64>],
    own: (*mut u8, usize),
) -> Result<(), TransportError> {
    let mut list = list(base, runs);
    let what = "reading memory of";
    // SAFETY: invariants 1 and 4.
    unsafe { transfer(libc::process_vm_readv, what, pid, &mut list, own) }
}

fn list(base: u64, runs: &[Range<u64>]) -> Vec<libc::iovec> {
    let one = |range: &Range<u64>| run(base + range.start, (range.end - range.start) as usize);
    runs.iter().map(one).collect()
}

/// Reads runs of a span ([`in_a_span`]), and what lies between.
///
/// # Safety
/// As [`read_runs`].
unsafe fn read_span(
    pid: u32,
    base: u64,
    runs: &[Range<u64>],
    to: *mut u8,
) -> Result<(), TransportError> {
    let (first, last) = match runs {
        [one] => (one, one),
        [first, .., last] => (first, last),
        [] => return Ok(()),
    };
    let (at, bytes) = (base + first.start, (last.end - first.start) as usize);
    STAGE.with_borrow_mut(|stage| {
        let (from, span) = (beside(stage, at), &mut [run(at, bytes)]);
        let what = "reading memory of";
        // SAFETY: invariant 3: a span has no more bytes.
        unsafe { transfer(libc::process_vm_readv, what, pid, span, (from, bytes)) }?;
        let mut done = 0;
        for one in runs {
            let n = (one.end - one.start) as usize;
            let from = from.wrapping_add((one.start - first.start) as usize);
            // SAFETY: invariants 1 and 3: read just now, and the caller's to write.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(done), n) };
            done += n;
        }
        Ok(())
    })
}

/// Writes runs of another process's memory that lie behind `base`, one behind the other.
///
/// # Safety
/// `from` is readable for the bytes of all.
pub(crate) unsafe fn write_runs(
    pid: u32,
    base: u64,
    runs: &[Range<u64>],
    from: *const u8,
) -> Result<(), TransportError> {
    let mut done = 0;
    for group in groups(runs) {
        let (at, bytes) = (from.wrapping_add(done), bytes_of(group));
        match group {
            // SAFETY: invariant 1: a part of what the caller vouches for.
            [run] => unsafe { write(pid, base + run.start, at, bytes) }?,
            _ => {
                let (mut list, own) = (list(base, group), (at.cast_mut(), bytes));
                let what = "writing memory of";
                // SAFETY: invariants 1 and 4; the call only reads local memory.
                unsafe { transfer(libc::process_vm_writev, what, pid, &mut list, own) }?;
            }
        }
        done += bytes;
    }
    Ok(())
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

    /// Runs of all kinds, of this process itself: what lies between is not touched.
    #[test]
    fn runs_are_read_and_written_in_their_order() {
        let pid = std::process::id();
        let from: Vec<u8> = (0..400_000u32).map(|i| (i / 5 + i) as u8).collect();
        let base = from.as_ptr().expose_provenance() as u64;
        // Number of runs, bytes and distance.
        let shapes = [
            (1, 8, 8),
            (2, 8, 64),
            (3, 8, 64),
            (2000, 8, 64),
            (2000, 100, 200),
            (70, 100, 5000),
            (40, 5000, 9000),
        ];
        for (count, bytes, stride) in shapes {
            let mut runs: Vec<Range<u64>> = (0..count)
                .map(|run| run * stride..run * stride + bytes)
                .collect();
            for order in 0..3 {
                match order {
                    1 => runs.reverse(),
                    // A long one and short ones, forth and back.
                    2 => {
                        runs.push(100..5000);
                        runs.push(10..11);
                        runs.push(20..22);
                    }
                    _ => {}
                }
                let sum = bytes_of(&runs);
                let wanted: Vec<u8> = (runs.iter())
                    .flat_map(|run| from[run.start as usize..run.end as usize].iter().copied())
                    .collect();
                let mut to = vec![0u8; sum + 1];
                // SAFETY: invariant 1: the vector has as many bytes.
                if let Err(e) = unsafe { read_runs(pid, base, &runs, to.as_mut_ptr()) } {
                    return crate::needs::missing("attach", e);
                }
                assert!(
                    to[..sum] == wanted && to[sum] == 0,
                    "{count} {bytes} {stride} {order}"
                );
                let mut there = vec![0u8; from.len()];
                let at = there.as_mut_ptr().expose_provenance() as u64;
                // SAFETY: invariant 1: the vector has as many bytes.
                unsafe { write_runs(pid, at, &runs, wanted.as_ptr()) }.unwrap();
                let mut model = vec![0u8; from.len()];
                for run in &runs {
                    let run = run.start as usize..run.end as usize;
                    model[run.clone()].copy_from_slice(&from[run]);
                }
                assert!(there == model, "{count} {bytes} {stride} {order}");
            }
        }
        // Nothing is mapped in the first page.
        let runs = [0..8, 16..24];
        // SAFETY: invariants 1 and 2.
        let e = unsafe { write_runs(pid, 64, &runs, from.as_ptr()) }.unwrap_err();
        assert_eq!(e.kind(), TransportErrorKind::Invalid, "{e}");
    }

    #[test]
    fn lists_go_on_behind_what_was_moved() {
        let mut list = [run(100, 10), run(200, 20), run(300, 5)];
        let left = |list: &[libc::iovec]| -> Vec<(usize, usize)> {
            list.iter()
                .map(|r| (r.iov_base.addr(), r.iov_len))
                .collect()
        };
        let list = behind(&mut list, 0);
        assert_eq!(left(list), [(100, 10), (200, 20), (300, 5)]);
        let list = behind(list, 10);
        assert_eq!(left(list), [(200, 20), (300, 5)]);
        let list = behind(list, 3);
        assert_eq!(left(list), [(203, 17), (300, 5)]);
        let list = behind(list, 19);
        assert_eq!(left(list), [(302, 3)]);
        assert!(behind(list, 3).is_empty());
    }
}
