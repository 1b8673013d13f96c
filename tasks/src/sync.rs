//! Atomics and locks of the standard library, or loom's.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use std::sync::{PoisonError, TryLockError};

/// The lock, whatever a thread that held it did.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same if nobody holds it.
pub(crate) fn try_lock<T>(m: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match m.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Lets who holds a lock for a few instructions go on.
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

/// Adds to a word, and returns what it was. Where one thread alone changes it, that is a load
/// and a store.
#[inline(always)]
pub(crate) fn add(word: &AtomicU32, by: u32, alone: bool, order: Ordering) -> u32 {
    if !alone {
        return word.fetch_add(by, order);
    }
    let before = word.load(Ordering::Relaxed);
    word.store(before.wrapping_add(by), Ordering::Relaxed);
    before
}

/// Makes a word 0, and returns what it was; as [`add`]. An exchange would wait for all stores
/// before it, of which one may be a message on its way to another core.
#[inline(always)]
pub(crate) fn take(word: &AtomicU32, alone: bool, order: Ordering) -> u32 {
    if !alone {
        return word.swap(0, order);
    }
    let before = word.load(Ordering::Relaxed);
    word.store(0, Ordering::Relaxed);
    before
}

/// Between a write and a read of another word, all SeqCst, in two threads: one sees the other.
/// The words' own order is enough, but loom takes it for acquire and release.
#[inline(always)]
pub(crate) fn in_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
