//! Places the measuring threads on cores of their own: left to itself, a busy
//! system keeps two threads that talk with each other on one.

use std::mem::{MaybeUninit, size_of};

/// Confines the calling thread to the n-th processor that it may use. Without
/// so many, or without permission, it stays where it is.
pub(super) fn bind(n: usize) {
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
    let Some(cpu) = allowed.clone().nth(n) else {
        return;
    };
    // SAFETY: all zeros is the empty set.
    let mut one: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the number lies within the set.
    unsafe { libc::CPU_SET(cpu, &mut one) };
    // SAFETY: the set is readable for its size.
    unsafe { libc::sched_setaffinity(0, bytes, &raw const one) };
}
