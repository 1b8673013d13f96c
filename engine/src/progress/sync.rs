//! Atomics and locks of the standard library, or loom's.
//!
//! # Invariants
//! 1. On x86-64 Linux the first word that the segment register `fs` shows is the address
//!    of the thread's control block, for as long as the thread runs (System V ABI,
//!    thread-local storage, variant II).

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

/// The cheap side of a barrier that another thread makes all threads pass:
/// here it only binds the compiler. loom knows no barrier in other threads, so
/// there both sides are fences; see `biased.rs` for why that is enough.
#[inline(always)]
pub(crate) fn fence_by_others() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A number that no other living thread has: the address of its control block, which
/// Linux' ABI keeps in the first word that the segment register shows. In a shared library a
/// variable of the thread's own is reached by a call.
#[cfg(all(not(loom), not(miri), target_os = "linux", target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    let block: usize;
    // SAFETY: invariant 1: one word is read, and nothing else touched.
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) block,
            options(nostack, preserves_flags, readonly, pure)
        );
    }
    block
}

/// A number that no other living thread has: the address of a variable of its own.
#[cfg(all(
    not(loom),
    any(miri, not(target_os = "linux"), not(target_arch = "x86_64"))
))]
#[inline]
pub(crate) fn this_thread() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

/// loom's threads share one thread of the system.
#[cfg(loom)]
pub(crate) fn this_thread() -> usize {
    loom::thread_local! {
        static HERE: Box<u8> = Box::new(0);
    }
    HERE.with(|here| std::ptr::from_ref(&**here) as usize)
}

pub(crate) fn wait_a_bit(turns: &mut u32) {
    *turns += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *turns < 100 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
