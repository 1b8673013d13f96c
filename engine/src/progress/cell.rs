//! A lane behind its lock.
//!
//! # Invariants
//! 1. `lane` is touched only by the thread that is inside [`BiasedLock`], as its
//!    [`LaneGuard`] proves.
//! 2. Foreign code (wakers, `Drop` of values of the user, reduction functions) runs after
//!    the lock is released: see [`super::owed`].
//! 3. A lane shares no cache line with anything else, nor do its peers and
//!    operations: what another thread writes beside it would cost each message
//!    the line. Two lines each, because the processor fetches lines in pairs.

use super::biased::BiasedLock;
use super::core::Core;
use super::lane::Lane;
use super::owed::is_put_off;
use super::suspend::lanes;
use crate::exec::executor;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use super::biased::bias_offered;

#[repr(align(128))]
pub struct LaneCell {
    lock: BiasedLock,
    /// Operations under way when the lock was last released, for threads
    /// that only want to help.
    outstanding: AtomicUsize,
    /// The core whose threads sleep until something ends; none in tests.
    core: Weak<Core>,
    lane: UnsafeCell<Lane>,
}

// SAFETY: invariant 1: one thread at a time reaches the lane, which is `Send`: its raw
// addresses are not tied to a thread.
unsafe impl Sync for LaneCell {}
// SAFETY: invariant 1: what holds for threads that share it holds for one that gets it; the
// lane is `Send`.
unsafe impl Send for LaneCell {}

/// The right to use a lane.
pub struct LaneGuard<'a> {
    cell: &'a LaneCell,
}

impl LaneCell {
    /// A lane; `biased` if barriers in all threads can be had.
    pub fn new(lane: Lane, biased: bool, core: Weak<Core>) -> Self {
        Self {
            lock: BiasedLock::new(biased),
            outstanding: AtomicUsize::new(0),
            core,
            lane: UnsafeCell::new(lane),
        }
    }

    /// Waits for the lane. A thread that holds it already ends the process with a message.
    #[inline]
    pub fn lock(&self) -> LaneGuard<'_> {
        self.lock.lock();
        lanes::count(1);
        LaneGuard { cell: self }
    }

    /// The lane, if it has operations in flight and its lock is free.
    pub fn try_lock_to_help(&self) -> Option<LaneGuard<'_>> {
        if self.outstanding.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.try_lock()
    }

    /// The lane, if no thread has its lock, this one included.
    pub fn try_lock(&self) -> Option<LaneGuard<'_>> {
        // Not `then_some`: a guard that is made and dropped gives the lock back.
        self.lock.try_lock().then(|| {
            lanes::count(1);
            LaneGuard { cell: self }
        })
    }

    /// Whether another thread waits for the lane.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.lock.wanted()
    }
}

impl Deref for LaneGuard<'_> {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        // SAFETY: invariant 1: the guard is used while its thread is inside only.
        unsafe { &*self.cell.lane.get() }
    }
}

impl DerefMut for LaneGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Lane {
        // SAFETY: invariant 1: this thread is inside, and the guard is borrowed mutably, so
        // there is no other reference.
        unsafe { &mut *self.cell.lane.get() }
    }
}

impl Drop for LaneGuard<'_> {
    // Of each message: a call would store what the guard has.
    #[inline(always)]
    fn drop(&mut self) {
        if self.port.owed.any() && !is_put_off() {
            self.release_and_settle();
        } else {
            self.release();
        }
    }
}

impl LaneGuard<'_> {
    /// Releases the lane where nothing has changed since it was locked that another thread
    /// goes by, but for [`Lane::post_behind`]: nothing is owed, and what was in flight is.
    #[inline(always)]
    pub fn release_as_it_was(self) {
        let cell = self.cell;
        std::mem::forget(self);
        lanes::count(-1);
        cell.lock.unlock();
    }

    #[inline(always)]
    fn release(&mut self) {
        let outstanding = self.outstanding();
        if self.cell.outstanding.load(Ordering::Relaxed) != outstanding {
            self.cell.outstanding.store(outstanding, Ordering::Relaxed);
        }
        lanes::count(-1);
        self.cell.lock.unlock();
    }

    /// Releases the lane, runs the foreign code that it owes, and continues the steps
    /// whose functions have run, which may owe more.
    #[cold]
    fn release_and_settle(&mut self) {
        // Dropped behind the last release: it may be the last that holds the core.
        let core = self.cell.core.upgrade();
        while self.port.owed.any() {
            let owed = std::mem::take(&mut self.port.owed);
            self.release();
            let ends = owed.settle();
            self.cell.lock.lock();
            lanes::count(1);
            for (run, instance, end) in ends {
                executor::combined(&mut **self, run, instance, end);
            }
            if let Some(core) = &core {
                core.after(self);
            }
        }
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Pattern;
    use crate::progress::lane::Posted;
    use crate::progress::links::{Links, Remote};
    use crate::protocol::cost::LinkCosts;
    use crate::protocol::select::Selection;
    use crate::view::RawView;
    use std::sync::Arc;

    fn cell(biased: bool) -> LaneCell {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let links = Links::new(0, Remote::None);
        LaneCell::new(
            Lane::new(0, 1, links, selection),
            biased && bias_offered(),
            Weak::new(),
        )
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
    fn a_thread_that_holds_the_lane_gets_it_no_second_time() {
        for biased in [true, false] {
            let cell = cell(biased);
            for _ in 0..3 {
                let guard = cell.lock();
                assert!(cell.try_lock().is_none());
                assert!(cell.lock.is_held_here());
                drop(guard);
                assert!(!cell.lock.is_held_here());
            }
            assert!(cell.try_lock().is_some());
        }
    }

    /// Runs itself in a process of its own.
    #[test]
    fn a_thread_that_insists_ends_the_process_with_a_message() {
        const CHILD: &str = "OSIER_TEST_REENTERS";
        const THIS: &str =
            "progress::cell::tests::a_thread_that_insists_ends_the_process_with_a_message";
        if let Ok(how) = std::env::var(CHILD) {
            let cell = cell(how == "biased");
            let _guard = cell.lock();
            drop(cell.lock());
            return;
        }
        for how in ["biased", "shared"] {
            let test = std::env::current_exe().expect("our path");
            let child = std::process::Command::new(test)
                .args(["--exact", THIS, "--nocapture"])
                .env(CHILD, how)
                .output()
                .expect("a process");
            let stderr = String::from_utf8_lossy(&child.stderr);
            assert!(!child.status.success(), "{how}: {stderr}");
            assert!(
                stderr.contains("while it holds this communicator"),
                "{how}: {stderr}"
            );
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
                            let before = guard.troubles;
                            guard.troubles = before + 1;
                            std::hint::black_box(&guard.troubles);
                            assert_eq!(guard.troubles, before + 1);
                            guard.troubles = before;
                        }
                    });
                }
            });
            assert_eq!(cell.lock().troubles, 0);
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

    /// Prints, never fails: `cargo test --release -p osier --lib cost_of_the_lock
    /// -- --ignored --nocapture`. A thread's messages to itself and the lock
    /// alone, each with and without the lock; least of many batches.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_the_lock() {
        const ROUNDS: u32 = 20_000;
        fn least(mut round: impl FnMut()) -> f64 {
            let batch = |_| {
                let start = std::time::Instant::now();
                (0..ROUNDS).for_each(|_| round());
                start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
            };
            (0..200).map(batch).fold(f64::INFINITY, f64::min)
        }
        fn to_self(lane: &mut Lane, out: &mut u64, into: &mut u64) {
            let view = |at: &mut u64| RawView::untyped(std::ptr::from_mut(at).cast(), 8);
            assert!(lane.send_now(&view(out), 0, 1));
            let received = lane.irecv(view(into), Pattern::exact(0, 1));
            assert!(matches!(received, Ok(Posted::Done(_))));
        }
        for biased in [true, false] {
            let mut cell = cell(biased);
            let (mut out, mut into) = (7, 0);
            let touch = |lane: &mut Lane| {
                std::hint::black_box(&mut lane.moved);
            };
            let with = least(|| touch(&mut std::hint::black_box(&cell).lock()));
            let without = least(|| touch(std::hint::black_box(&mut cell).lane.get_mut()));
            println!("biased {biased}: lock and unlock {with:.2} ns, without {without:.2} ns");
            let with =
                least(|| to_self(&mut std::hint::black_box(&cell).lock(), &mut out, &mut into));
            let without = least(|| {
                to_self(
                    std::hint::black_box(&mut cell).lane.get_mut(),
                    &mut out,
                    &mut into,
                );
            });
            println!("biased {biased}: 8 bytes to self {with:.2} ns, without {without:.2} ns");
        }
    }
}
