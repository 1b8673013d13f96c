//! A lane behind its lock.
//!
//! The lock is taken once per call and held while a thread spins for its own
//! message, so that an expected message costs one uncontended exchange. A
//! thread that wants in announces itself; the holder sees that on its next
//! turn and steps aside.
//!
//! # Invariants
//! 1. `lane` is touched only by the thread that set `held`.
//! 2. Wakers are called after the lock is released.

use super::lane::Lane;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(crate) struct LaneCell {
    held: AtomicBool,
    wanted: AtomicU32,
    lane: UnsafeCell<Lane>,
}

// SAFETY: the lane is reached through the lock only (invariant 1), and it is
// `Send`: its raw addresses are not tied to a thread.
unsafe impl Sync for LaneCell {}
// SAFETY: as above.
unsafe impl Send for LaneCell {}

/// The right to use a lane.
pub(crate) struct LaneGuard<'a> {
    cell: &'a LaneCell,
}

impl LaneCell {
    pub fn new(lane: Lane) -> Self {
        Self {
            held: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            lane: UnsafeCell::new(lane),
        }
    }

    #[inline]
    pub fn lock(&self) -> LaneGuard<'_> {
        if self.held.swap(true, Ordering::Acquire) {
            self.lock_slow();
        }
        LaneGuard { cell: self }
    }

    #[cold]
    fn lock_slow(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut turns = 0u32;
        loop {
            if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire) {
                break;
            }
            turns += 1;
            if turns < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    /// The lane, if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<LaneGuard<'_>> {
        // Not `then_some`: a guard that is made and dropped gives the lock back.
        (!self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire))
            .then(|| LaneGuard { cell: self })
    }

    /// Whether another thread waits for the lane.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

impl Deref for LaneGuard<'_> {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        // SAFETY: the guard exists, so this thread set `held` (invariant 1).
        unsafe { &*self.cell.lane.get() }
    }
}

impl DerefMut for LaneGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Lane {
        // SAFETY: as for `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.cell.lane.get() }
    }
}

impl Drop for LaneGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.wakers.is_empty() {
            self.cell.held.store(false, Ordering::Release);
            return;
        }
        let wakers = std::mem::take(&mut self.wakers);
        self.cell.held.store(false, Ordering::Release);
        for waker in wakers {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::links::{Links, Remote};
    use crate::protocol::cost::LinkCosts;
    use crate::protocol::select::Selection;
    use std::sync::Arc;

    #[test]
    fn a_try_in_vain_leaves_the_lock_alone() {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let links = Links::new(0, Remote::None);
        let cell = LaneCell::new(Lane::new(0, 1, links, selection));
        let guard = cell.lock();
        assert!(cell.try_lock().is_none());
        assert!(cell.try_lock().is_none(), "the first try gave it back");
        drop(guard);
        assert!(cell.try_lock().is_some());
    }
}
