//! A lane behind its lock.
//!
//! Nearly always one thread uses a communicator, so the lock is biased: the
//! thread that had it last takes it with a store and a load, without an atomic
//! exchange. That matters beyond its own few nanoseconds: an exchange waits
//! until every earlier store has left the store buffer, and the earlier store
//! is the previous message, whose cache line must first be fetched from the
//! peer.
//!
//! ```text
//! hand = a thread's   that thread:  busy := 1; if wanted = 0 and the hand is
//!                                   still this one, it is in
//!                     any other:    wanted += 1; barrier in all threads;
//!                                   wait for busy = 0; begin the next hand
//! hand = SHARED       exchange busy, as any spin lock
//! ```
//!
//! Each hand has a `busy` of its own, because an owner may be held up between
//! its look at the hand and its store, and then store to a hand that is over.
//! The last hand is shared for good.
//!
//! The lock is held while a thread spins for its own message. A thread that
//! wants in announces itself; the holder sees that on its next turn and steps
//! aside.
//!
//! # Invariants
//! 1. `lane` is touched only by the thread that set the present hand's `busy`.
//! 2. While a hand has an owner, only the owner writes its `busy`, but for the
//!    thread that begins the hand, which is the owner.
//! 3. A hand ends only under `turn`, after a barrier has shown that its owner
//!    is outside; an owner that comes later sees `wanted`, or the next hand.
//! 4. Wakers are called after the lock is released.
//!
//! # Sources
//! Quickly reacquirable locks: D. Dice, M. Moir, W. Scherer, "Quickly
//! Reacquirable Locks", Sun Microsystems Laboratories, 2003. The barrier that
//! only the taker pays for: `membarrier(2)`, PRIVATE_EXPEDITED.

use super::lane::Lane;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A lane that has changed hands so often becomes shared: nobody is preferred
/// in this hand.
const SHARED: usize = 16;

/// A time in which one thread is preferred.
#[derive(Default)]
struct Hand {
    owner: AtomicUsize,
    busy: AtomicU32,
}

pub(crate) struct LaneCell {
    /// The present one of `hands`.
    hand: AtomicUsize,
    hands: [Hand; SHARED + 1],
    wanted: AtomicU32,
    /// Operations under way when the lock was last released, for threads
    /// that only want to help.
    outstanding: AtomicUsize,
    /// Held to change hands.
    turn: Mutex<()>,
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

/// A number that no other living thread has.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl LaneCell {
    /// A lane; `biased` if barriers in all threads can be had.
    pub fn new(lane: Lane, biased: bool) -> Self {
        let hands = std::array::from_fn(|_| Hand::default());
        let cell = Self {
            hand: AtomicUsize::new(if biased { 0 } else { SHARED }),
            hands,
            wanted: AtomicU32::new(0),
            outstanding: AtomicUsize::new(0),
            turn: Mutex::new(()),
            lane: UnsafeCell::new(lane),
        };
        cell.hands[0].owner.store(this_thread(), Ordering::Relaxed);
        cell
    }

    #[inline]
    pub fn lock(&self) -> LaneGuard<'_> {
        if !self.enter() {
            self.lock_slow();
        }
        LaneGuard { cell: self }
    }

    /// The two ways in that cost little.
    #[inline]
    fn enter(&self) -> bool {
        let at = self.hand.load(Ordering::Acquire);
        if at >= SHARED {
            return self.enter_shared();
        }
        let hand = &self.hands[at];
        if hand.owner.load(Ordering::Relaxed) != this_thread() {
            return false;
        }
        hand.busy.store(1, Ordering::Relaxed);
        // The taker's barrier makes a fence of this.
        compiler_fence(Ordering::SeqCst);
        // Acquire: whoever sees that the taker is in sees its hand, too.
        if self.wanted.load(Ordering::Acquire) == 0 && self.hand.load(Ordering::Relaxed) == at {
            return true;
        }
        hand.busy.store(0, Ordering::Release);
        false
    }

    #[inline]
    fn enter_shared(&self) -> bool {
        let busy = &self.hands[SHARED].busy;
        busy.load(Ordering::Relaxed) == 0
            && busy
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut turns = 0u32;
        if self.hand.load(Ordering::Acquire) < SHARED {
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if self.take_over(&turn, true) {
                drop(turn);
                self.wanted.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        while !self.enter_shared() {
            wait_a_bit(&mut turns);
        }
        self.wanted.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins the next hand, inside. False if the lane is shared by now, or if
    /// somebody is inside and `patient` is not set.
    fn take_over(&self, _turn: &MutexGuard<'_, ()>, patient: bool) -> bool {
        let at = self.hand.load(Ordering::Acquire);
        if at >= SHARED {
            return false;
        }
        barrier_in_all_threads();
        let mut turns = 0u32;
        while self.hands[at].busy.load(Ordering::Acquire) != 0 {
            if !patient {
                return false;
            }
            wait_a_bit(&mut turns);
        }
        let next = &self.hands[at + 1];
        next.owner.store(this_thread(), Ordering::Relaxed);
        next.busy.store(1, Ordering::Relaxed);
        self.hand.store(at + 1, Ordering::Release);
        true
    }

    /// The lane, if it has operations under way and nobody holds it.
    pub fn try_lock_to_help(&self) -> Option<LaneGuard<'_>> {
        if self.outstanding.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.try_lock()
    }

    /// The lane, if nobody holds it.
    pub fn try_lock(&self) -> Option<LaneGuard<'_>> {
        if self.enter() {
            return Some(LaneGuard { cell: self });
        }
        let at = self.hand.load(Ordering::Acquire);
        let hand = &self.hands[at];
        if at >= SHARED
            || hand.owner.load(Ordering::Relaxed) == this_thread()
            || hand.busy.load(Ordering::Relaxed) != 0
        {
            return None;
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let taken = self.take_over(&turn, false);
        drop(turn);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        // Not `then_some`: a guard that is made and dropped gives the lock back.
        taken.then(|| LaneGuard { cell: self })
    }

    /// Whether another thread waits for the lane.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

fn wait_a_bit(turns: &mut u32) {
    *turns += 1;
    if *turns < 100 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether locks may be biased in this process: asks the kernel to allow
/// barriers in all of its threads.
pub(crate) fn bias_offered() -> bool {
    !cfg!(miri) && membarrier(REGISTER_PRIVATE_EXPEDITED)
}

fn barrier_in_all_threads() {
    let done = membarrier(PRIVATE_EXPEDITED);
    debug_assert!(done, "registered before any lane was biased");
}

impl Deref for LaneGuard<'_> {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        // SAFETY: the guard exists, so this thread set `busy` (invariant 1).
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
        let outstanding = self.outstanding();
        if self.cell.outstanding.load(Ordering::Relaxed) != outstanding {
            self.cell.outstanding.store(outstanding, Ordering::Relaxed);
        }
        // The hand does not change while this thread is inside.
        let busy = &self.cell.hands[self.cell.hand.load(Ordering::Relaxed)].busy;
        if self.wakers.is_empty() {
            busy.store(0, Ordering::Release);
            return;
        }
        let wakers = std::mem::take(&mut self.wakers);
        busy.store(0, Ordering::Release);
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

    fn cell(biased: bool) -> LaneCell {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let links = Links::new(0, Remote::None);
        LaneCell::new(Lane::new(0, 1, links, selection), biased && bias_offered())
    }

    #[test]
    fn a_try_in_vain_leaves_the_lock_alone() {
        for biased in [true, false] {
            let cell = cell(biased);
            let guard = cell.lock();
            std::thread::scope(|s| {
                s.spawn(|| {
                    assert!(cell.try_lock().is_none());
                    assert!(cell.try_lock().is_none(), "the first try gave it back");
                });
            });
            drop(guard);
            std::thread::scope(|s| {
                s.spawn(|| assert!(cell.try_lock().is_some()));
            });
            drop(cell.lock());
        }
    }

    #[test]
    fn threads_exclude_each_other() {
        for biased in [true, false] {
            let cell = cell(biased);
            let rounds = if biased { 2_000 } else { 20_000 };
            std::thread::scope(|s| {
                for id in 0..4usize {
                    let cell = &cell;
                    s.spawn(move || {
                        for round in 0..rounds {
                            // The set of changes of a lane's own counter shows
                            // whether two threads were ever inside.
                            let mut guard = if (round + id) % 5 == 0 {
                                match cell.try_lock() {
                                    Some(guard) => guard,
                                    None => continue,
                                }
                            } else {
                                cell.lock()
                            };
                            let before = guard.dead_count;
                            guard.dead_count = before + 1;
                            std::hint::black_box(&guard.dead_count);
                            assert_eq!(guard.dead_count, before + 1);
                            guard.dead_count = before;
                        }
                    });
                }
            });
            assert_eq!(cell.lock().dead_count, 0);
        }
    }

    /// The bias changes hands only a few times per lane: many lanes.
    #[test]
    fn threads_exclude_each_other_while_the_bias_changes_hands() {
        for _ in 0..500 {
            let cell = cell(true);
            let inside = AtomicUsize::new(0);
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| {
                        for round in 0..60 {
                            let guard = cell.lock();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            if round % 8 == 0 {
                                std::thread::yield_now();
                            }
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                            drop(guard);
                        }
                    });
                }
            });
        }
    }
}
