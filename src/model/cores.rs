//! Places threads on cores: measuring threads on cores of their own (left to
//! itself, a busy system keeps two threads that communicate on one),
//! and ranks that are threads where the launcher wants them; says where a thread is.

use std::mem::{MaybeUninit, size_of};

/// Confines the calling thread to the n-th processor that it may use. If there
/// are fewer, or without permission, it stays on its processors.
pub(crate) fn bind(n: usize) {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is writable for its size.
    if unsafe { libc::sched_getaffinity(0, bytes, &raw mut set) } != 0 {
        return;
    }
    let allowed = (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number lies within the set.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    if let Some(cpu) = allowed.clone().nth(n) {
        confine(&[cpu]);
    }
}

/// The processor on which the calling thread runs at the moment.
pub(crate) fn here() -> Option<u32> {
    // SAFETY: it takes nothing, and touches no memory of the program.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).ok()
}

/// Confines the calling thread to these processors. Without permission it
/// stays on its processors.
pub(crate) fn confine(cpus: &[usize]) {
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    for cpu in cpus {
        // SAFETY: `set` is a valid set; numbers beyond it are ignored.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: the set is readable for its size.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}
