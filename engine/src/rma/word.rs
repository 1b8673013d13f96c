//! A lock of shared and exclusive holders in one word, by atomics that may be remote.
//!
//! ```text
//! bit 0..24          24..56                     62              63
//!     shared         exclusive holder + 1       one that wants  some that wait
//!     holders        0: none                    it alone waits  may sleep
//! ```
//!
//! A free lock is taken and given back by one atomic each. Who finds it held marks the word
//! before it waits: bit 62 keeps further shared holders out while some hold it, so that one who
//! wants it alone comes to it; bit 63 tells the holder that leaves it free to clear both marks
//! and to wake the others.
//!
//! # Invariants
//! 1. A rank is the exclusive holder only by a compare-and-swap of a word without holders.
//! 2. A shared holder has added one to a word without an exclusive holder. Whoever adds to
//!    another takes it back, and wakes as one that unlocks.
//! 3. A mark is set only in a word with holders, and bit 63 is cleared by the one that left it
//!    without: it wakes all after that. So none that has seen a mark sleeps through the end.
//! 4. Bit 62 keeps nobody out of a word without holders: one that gave up leaves it behind.
//! 5. A word that nobody adds to, because the lock is never shared, changes while a rank holds it
//!    by marks alone. A store that gives it back may overwrite one that was set since its holder
//!    looked: a waiter tries again between its mark and its sleep, and each sleep has a timeout.
//!
//! # Sources
//! Marks for those that wait in the lock's word: U. Drepper, "Futexes Are Tricky", 2011,
//! section 5; here by remote atomics, and with shared holders.

use crate::error::Result;
use osier_transports::AtomicOp;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most shared holders.
const SHARED: u64 = (1 << 24) - 1;
const HOLDER_AT: u32 = 24;
const HOLDER: u64 = (u32::MAX as u64) << HOLDER_AT;
const WANTED_ALONE: u64 = 1 << 62;
const WAITED_FOR: u64 = 1 << 63;
const MARKS: u64 = WANTED_ALONE | WAITED_FOR;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// With others that want it shared.
    Shared,
    /// Alone.
    Exclusive,
}

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is held now.
    Taken,
    /// Others have it.
    Held(Holders),
}

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holders {
    /// The rank that has it alone.
    pub alone: Option<u32>,
    /// Shared holders.
    pub shared: u32,
}

fn holder(rank: u32) -> u64 {
    (u64::from(rank) + 1) << HOLDER_AT
}

fn holders(word: u64) -> Holders {
    let alone = (word & HOLDER) >> HOLDER_AT;
    Holders {
        alone: alone.checked_sub(1).map(|rank| rank as u32),
        shared: (word & SHARED) as u32,
    }
}

fn is_free(word: u64) -> bool {
    word & (SHARED | HOLDER) == 0
}

fn cas(expected: u64, new: u64) -> AtomicOp {
    AtomicOp::CompareSwap { expected, new }
}

/// Takes a lock whose word is mapped alone for `rank`, if nobody has it or waits; false: not so.
#[inline(always)]
pub fn take_free(word: &AtomicU64, rank: u32) -> bool {
    // Invariant 1.
    let (taken, seen) = (Ordering::AcqRel, Ordering::Relaxed);
    word.compare_exchange(0, holder(rank), taken, seen).is_ok()
}

/// Gives a lock back that `rank` has taken alone, if nobody waits for it: a full barrier, too;
/// false: not so.
#[inline(always)]
pub fn give_back_unwaited(word: &AtomicU64, rank: u32) -> bool {
    let (given, seen) = (Ordering::AcqRel, Ordering::Relaxed);
    word.compare_exchange(holder(rank), 0, given, seen).is_ok()
}

/// Gives a lock back by a store that `rank` has taken alone and that is never shared, if nobody waits
/// for it; false: not so. `load` and `store` are of the word, and release what was written before.
#[inline(always)]
pub fn give_back_alone(rank: u32, (load, store): (impl FnOnce() -> u64, impl FnOnce(u64))) -> bool {
    // Invariant 5.
    let unwaited = load() == holder(rank);
    if unwaited {
        store(0);
    }
    unwaited
}

/// Takes a lock for `rank`, if nobody has it. `apply` performs an atomic on the word, and gives
/// the value before; `wake` is called where others are to try again.
///
/// # Errors
/// Those of `apply`.
#[inline]
pub fn try_lock(
    hold: Hold,
    rank: u32,
    mut apply: impl FnMut(AtomicOp) -> Result<u64>,
    wake: impl FnMut(),
) -> Result<Tried> {
    match hold {
        Hold::Exclusive => match apply(cas(0, holder(rank)))? {
            0 => Ok(Tried::Taken),
            before => take_from(before, hold, rank, &mut apply),
        },
        Hold::Shared => {
            let before = apply(AtomicOp::Add(1))?;
            if before & HOLDER == 0 && (before & WANTED_ALONE == 0 || before & SHARED == 0) {
                return Ok(Tried::Taken);
            }
            unlock(hold, rank, apply, wake)?;
            Ok(Tried::Held(holders(before)))
        }
    }
}

/// Takes a lock whose word was `seen`, if nobody has it.
fn take_from(
    mut seen: u64,
    hold: Hold,
    rank: u32,
    apply: &mut impl FnMut(AtomicOp) -> Result<u64>,
) -> Result<Tried> {
    loop {
        let new = match hold {
            Hold::Exclusive if is_free(seen) => holder(rank) | seen & WAITED_FOR,
            Hold::Shared if is_free(seen) || seen & (HOLDER | WANTED_ALONE) == 0 => seen + 1,
            _ => return Ok(Tried::Held(holders(seen))),
        };
        let before = apply(cas(seen, new))?;
        if before == seen {
            return Ok(Tried::Taken);
        }
        seen = before;
    }
}

/// An attempt of one that waits: where others have the lock it leaves its marks if `marked`
/// says so, and is woken then.
///
/// # Errors
/// Those of `apply`.
pub fn try_again(
    hold: Hold,
    rank: u32,
    marked: bool,
    mut apply: impl FnMut(AtomicOp) -> Result<u64>,
) -> Result<Tried> {
    let marks = match hold {
        _ if !marked => 0,
        Hold::Exclusive => MARKS,
        Hold::Shared => WAITED_FOR,
    };
    let mut seen = apply(AtomicOp::Load)?;
    loop {
        let held = match take_from(seen, hold, rank, &mut apply)? {
            Tried::Taken => return Ok(Tried::Taken),
            Tried::Held(held) => held,
        };
        seen = apply(AtomicOp::Load)?;
        if is_free(seen) {
            continue;
        }
        if seen & marks == marks {
            return Ok(Tried::Held(held));
        }
        let before = apply(cas(seen, seen | marks))?;
        if before == seen {
            return Ok(Tried::Held(held));
        }
        seen = before;
    }
}

/// Gives a lock back that `rank` has.
///
/// # Errors
/// Those of `apply`.
#[inline]
pub fn unlock(
    hold: Hold,
    rank: u32,
    mut apply: impl FnMut(AtomicOp) -> Result<u64>,
    wake: impl FnMut(),
) -> Result<()> {
    let mine = match hold {
        Hold::Exclusive => holder(rank),
        Hold::Shared => 1,
    };
    let before = apply(AtomicOp::Add(mine.wrapping_neg()))?;
    let left = before.wrapping_sub(mine);
    if left & WAITED_FOR != 0 && is_free(left) {
        return call(left, apply, wake);
    }
    Ok(())
}

/// As [`unlock`], of a lock that nobody holds shared and whose word is mapped: by a store where
/// nobody waits ([`give_back_alone`]), which takes a few ns less than an atomic.
///
/// # Errors
/// Those of `apply`.
#[inline(always)]
pub fn unlock_alone(
    rank: u32,
    by: (impl FnOnce() -> u64, impl FnOnce(u64)),
    apply: impl FnMut(AtomicOp) -> Result<u64>,
    wake: impl FnMut(),
) -> Result<()> {
    match give_back_alone(rank, by) {
        true => Ok(()),
        false => unlock_waited(rank, apply, wake),
    }
}

/// As [`unlock`], of a lock that is held alone and may be waited for.
#[cold]
fn unlock_waited(
    rank: u32,
    apply: impl FnMut(AtomicOp) -> Result<u64>,
    wake: impl FnMut(),
) -> Result<()> {
    unlock(Hold::Exclusive, rank, apply, wake)
}

/// Clears the marks of a word that was left free, and wakes those that wait.
#[cold]
fn call(
    mut seen: u64,
    mut apply: impl FnMut(AtomicOp) -> Result<u64>,
    mut wake: impl FnMut(),
) -> Result<()> {
    // Whoever has it by now finds marks again when others come.
    while seen & MARKS != 0 {
        let before = apply(cas(seen, seen & !MARKS))?;
        if before == seen {
            break;
        }
        seen = before;
    }
    wake();
    Ok(())
}

/// Takes a lock back that a rank held alone when it ended. True if this call did.
///
/// # Errors
/// Those of `apply`.
pub fn release_of(
    ended: u32,
    mut apply: impl FnMut(AtomicOp) -> Result<u64>,
    wake: impl FnMut(),
) -> Result<bool> {
    let mut seen = apply(AtomicOp::Load)?;
    loop {
        if seen & HOLDER != holder(ended) {
            return Ok(false);
        }
        let before = apply(cas(seen, seen & !HOLDER))?;
        if before == seen {
            call(seen & !HOLDER, apply, wake)?;
            return Ok(true);
        }
        seen = before;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn on(word: &Cell<u64>) -> impl FnMut(AtomicOp) -> Result<u64> {
        |op| {
            let before = word.get();
            word.set(match op {
                AtomicOp::Add(n) => before.wrapping_add(n),
                AtomicOp::Swap(n) => n,
                AtomicOp::CompareSwap { expected, new } if before == expected => new,
                AtomicOp::CompareSwap { .. } | AtomicOp::Load => before,
            });
            Ok(before)
        }
    }

    fn take(word: &Cell<u64>, hold: Hold, rank: u32) -> Tried {
        try_lock(hold, rank, on(word), || {}).expect("no errors")
    }

    fn give(word: &Cell<u64>, hold: Hold, rank: u32) -> bool {
        let woken = Cell::new(false);
        unlock(hold, rank, on(word), || woken.set(true)).expect("no errors");
        woken.get()
    }

    #[test]
    fn one_holds_it_alone_or_several_share_it() {
        let word = Cell::new(0);
        assert_eq!(take(&word, Hold::Exclusive, 7), Tried::Taken);
        let held = Tried::Held(Holders {
            alone: Some(7),
            shared: 0,
        });
        assert_eq!(take(&word, Hold::Exclusive, 8), held);
        assert_eq!(take(&word, Hold::Shared, 8), held);
        assert!(!give(&word, Hold::Exclusive, 7), "nobody waits");
        assert_eq!(word.get(), 0);
        for rank in 0..3 {
            assert_eq!(take(&word, Hold::Shared, rank), Tried::Taken);
        }
        let shared = Tried::Held(Holders {
            alone: None,
            shared: 3,
        });
        assert_eq!(take(&word, Hold::Exclusive, u32::MAX - 1), shared);
        for rank in 0..3 {
            assert!(!give(&word, Hold::Shared, rank));
        }
        assert_eq!(word.get(), 0);
    }

    #[test]
    fn who_waits_is_woken_by_one_that_would_store() {
        let (word, woken) = (AtomicU64::new(0), Cell::new(0));
        let apply = |op: AtomicOp| Ok(op.apply(&word));
        let give = |rank| {
            let load = || word.load(Ordering::Relaxed);
            let store = |value| word.store(value, Ordering::Release);
            unlock_alone(rank, (load, store), apply, || woken.set(woken.get() + 1))
        };
        let take = || try_lock(Hold::Exclusive, 4, apply, || {}).expect("no errors");
        assert_eq!(take(), Tried::Taken);
        give(4).expect("no errors");
        assert_eq!((take(), woken.get()), (Tried::Taken, 0));
        let tried = try_again(Hold::Exclusive, 2, true, apply).expect("no errors");
        assert!(matches!(tried, Tried::Held(Holders { alone: Some(4), .. })));
        give(4).expect("no errors");
        assert_eq!((word.load(Ordering::Relaxed), woken.get()), (0, 1));
    }

    #[test]
    fn who_wants_it_alone_keeps_others_out_and_is_woken() {
        let word = Cell::new(0);
        assert_eq!(take(&word, Hold::Shared, 0), Tried::Taken);
        assert_eq!(take(&word, Hold::Shared, 1), Tried::Taken);
        let tried = try_again(Hold::Exclusive, 2, true, on(&word)).expect("no errors");
        assert!(matches!(tried, Tried::Held(Holders { shared: 2, .. })));
        assert!(matches!(take(&word, Hold::Shared, 3), Tried::Held(_)));
        assert!(!give(&word, Hold::Shared, 0), "one still has it");
        assert!(give(&word, Hold::Shared, 1), "the last wakes");
        assert_eq!(word.get(), 0, "no marks are left");
        let tried = try_again(Hold::Exclusive, 2, true, on(&word)).expect("no errors");
        assert_eq!(tried, Tried::Taken);
        assert!(!give(&word, Hold::Exclusive, 2));
    }

    /// One that wanted it alone gives up: what it has marked keeps nobody out for good.
    #[test]
    fn marks_of_one_that_gave_up_keep_nobody_out() {
        let word = Cell::new(0);
        assert_eq!(take(&word, Hold::Shared, 0), Tried::Taken);
        try_again(Hold::Exclusive, 2, true, on(&word)).expect("no errors");
        assert!(give(&word, Hold::Shared, 0));
        assert_eq!(take(&word, Hold::Shared, 1), Tried::Taken);
        assert_eq!(take(&word, Hold::Shared, 3), Tried::Taken);
    }

    #[test]
    fn a_lock_of_a_rank_that_has_ended_is_released_once() {
        let word = Cell::new(0);
        assert_eq!(take(&word, Hold::Exclusive, 4), Tried::Taken);
        try_again(Hold::Shared, 1, true, on(&word)).expect("no errors");
        let woken = Cell::new(0);
        let release =
            |rank| release_of(rank, on(&word), || woken.set(woken.get() + 1)).expect("no errors");
        assert!(!release(3), "another rank's");
        assert!(release(4));
        assert!(!release(4));
        assert_eq!((word.get(), woken.get()), (0, 1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    fn on(word: &AtomicU64) -> impl FnMut(AtomicOp) -> Result<u64> {
        |op| {
            Ok(match op {
                AtomicOp::Add(n) => word.fetch_add(n, Ordering::AcqRel),
                AtomicOp::Swap(n) => word.swap(n, Ordering::AcqRel),
                AtomicOp::Load => word.load(Ordering::Acquire),
                AtomicOp::CompareSwap { expected, new } => word
                    .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                    .unwrap_or_else(|before| before),
            })
        }
    }

    /// How often waiters were woken, and where they sleep.
    #[derive(Default)]
    struct Calls(Mutex<usize>, Condvar);

    impl Calls {
        fn heard(&self) -> usize {
            *self.0.lock().expect("no panic")
        }

        fn wake(&self) {
            *self.0.lock().expect("no panic") += 1;
            self.1.notify_all();
        }

        fn sleep(&self, heard: usize) {
            let mut calls = self.0.lock().expect("no panic");
            while *calls == heard {
                calls = self.1.wait(calls).expect("no panic");
            }
        }
    }

    /// As a rank waits: it sleeps only if nobody has woken it since its last attempt.
    fn lock(hold: Hold, rank: u32, word: &AtomicU64, calls: &Calls) {
        let taken = |tried: Result<Tried>| tried.expect("no errors") == Tried::Taken;
        if taken(try_lock(hold, rank, on(word), || calls.wake())) {
            return;
        }
        loop {
            let heard = calls.heard();
            if taken(try_again(hold, rank, true, on(word))) {
                return;
            }
            calls.sleep(heard);
        }
    }

    /// Exclusive holders exclude all others, and no wakeup is lost: else the model does not end.
    fn play<const RANKS: usize>(holds: [Hold; RANKS]) {
        loom::model(move || {
            let word = Arc::new(AtomicU64::new(0));
            let calls = Arc::new(Calls::default());
            let inside = Arc::new(AtomicUsize::new(0));
            let threads: Vec<_> = (0u32..)
                .zip(holds)
                .map(|(rank, hold)| {
                    let (word, calls, inside) = (word.clone(), calls.clone(), inside.clone());
                    thread::spawn(move || {
                        lock(hold, rank, &word, &calls);
                        let weight = if hold == Hold::Exclusive { 100 } else { 1 };
                        let others = inside.fetch_add(weight, Ordering::Relaxed);
                        assert!(others == 0 || hold == Hold::Shared && others < 100);
                        inside.fetch_sub(weight, Ordering::Relaxed);
                        unlock(hold, rank, on(&word), || calls.wake()).expect("no errors");
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert_eq!(word.load(Ordering::Acquire) & !MARKS, 0);
        });
    }

    /// Who gives it back by a store excludes others. One that waits may sleep longer, as its mark may
    /// be lost: here it gives up.
    #[test]
    fn loom_given_back_by_a_store() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let inside = Arc::new(AtomicUsize::new(0));
            let threads: Vec<_> = (0..2)
                .map(|rank| {
                    let (word, inside) = (word.clone(), inside.clone());
                    thread::spawn(move || {
                        let taken =
                            |tried: Result<Tried>| tried.expect("no errors") == Tried::Taken;
                        let again = || taken(try_again(Hold::Exclusive, rank, true, on(&word)));
                        let mut has = taken(try_lock(Hold::Exclusive, rank, on(&word), || {}));
                        for _ in 0..2 {
                            has = has || again();
                        }
                        if !has {
                            return;
                        }
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        let load = || word.load(Ordering::Relaxed);
                        let store = |value| word.store(value, Ordering::Release);
                        unlock_alone(rank, (load, store), on(&word), || {}).expect("no errors");
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            // What is left is not asked: loom lets a store lie before another thread's atomic that
            // has read what the store replaces.
        });
    }

    #[test]
    fn loom_two_that_want_it_alone() {
        play([Hold::Exclusive, Hold::Exclusive]);
    }

    #[test]
    fn loom_one_alone_and_one_shared() {
        play([Hold::Exclusive, Hold::Shared]);
    }

    #[test]
    fn loom_three_that_want_it_alone() {
        play([Hold::Exclusive; 3]);
    }

    #[test]
    fn loom_one_alone_and_two_shared() {
        play([Hold::Shared, Hold::Exclusive, Hold::Shared]);
    }
}
