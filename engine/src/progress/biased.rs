//! Biased lock: cheap for the thread that had it last.
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
//! Each hand has a `busy` of its own, because an owner may be delayed between
//! its load of the hand and its store, and then store to a hand that has ended.
//! The last hand is shared for good.
//!
//! The lock is held while a thread spins for its own message. A thread that
//! wants in announces itself; the holder sees that on its next turn and steps
//! aside.
//!
//! # Invariants
//! 1. The thread that set the present hand's `busy` is in, and no other.
//! 2. While a hand has an owner, only the owner writes its `busy`, but for the
//!    thread that begins the hand, which is the owner.
//! 3. A hand ends only under `turn`, after a barrier has shown that its owner
//!    is outside; an owner that comes later sees `wanted`, or the next hand.
//! 4. The lock is not reentrant: a thread that is inside and asks again gets no from
//!    [`BiasedLock::try_lock`], and ends the process in [`BiasedLock::lock`]. In an owned
//!    hand a thread recognises itself by owner and `busy`, which by invariant 2 only it has
//!    set; in the shared hand by `owner`, which the thread inside writes and clears.
//! 5. A system call on numbers touches no memory of the process.
//!
//! # Model
//! `loom_*` below runs this code under loom, with two hands instead of sixteen.
//! The barrier in all threads becomes a fence of the taker, and the owner's
//! compiler fence a fence, too. That is enough: the barrier makes the owner pass
//! a fence at some place of its own. Between its store of `busy` and its load
//! of `wanted`, that is the fence of the model. Before the store, the owner
//! loads `wanted` after the barrier, so after it was set: it stays outside,
//! which the model also contains. After the load, the store has been seen.
//! Checked by hand that it fails without the owner's fence, without the
//! taker's barrier, with `busy` released relaxed or read relaxed by the taker,
//! and without the owner's second load of the hand.
//!
//! # Sources
//! Quickly reacquirable locks: D. Dice, M. Moir, W. Scherer, "Quickly
//! Reacquirable Locks", Sun Microsystems Laboratories, 2003. The barrier that
//! only the taker pays for: `membarrier(2)`, PRIVATE_EXPEDITED.

use super::sync::{
    AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, fence_by_others, this_thread, wait_a_bit,
};
use std::sync::{PoisonError, TryLockError};

/// A lock that has changed hands this often becomes shared: this hand prefers
/// no thread.
const SHARED: usize = if cfg!(loom) { 2 } else { 16 };

/// A time in which one thread is preferred.
#[derive(Default)]
struct Hand {
    owner: AtomicUsize,
    busy: AtomicU32,
}

pub(crate) struct BiasedLock {
    /// The present one of `hands`.
    hand: AtomicUsize,
    hands: [Hand; SHARED + 1],
    wanted: AtomicU32,
    /// Held to change hands.
    turn: Mutex<()>,
}

impl BiasedLock {
    /// A lock that prefers this thread; `biased` if barriers in all threads
    /// can be had.
    pub fn new(biased: bool) -> Self {
        let hands = std::array::from_fn(|_| Hand::default());
        let lock = Self {
            hand: AtomicUsize::new(if biased { 0 } else { SHARED }),
            hands,
            wanted: AtomicU32::new(0),
            turn: Mutex::new(()),
        };
        lock.hands[0].owner.store(this_thread(), Ordering::Relaxed);
        lock
    }

    /// Waits until this thread is in. A thread that is inside already ends the process
    /// with a message (invariant 4).
    #[inline]
    pub fn lock(&self) {
        if !self.enter() {
            self.lock_slow();
        }
    }

    /// Lets others in. By the thread that is in.
    #[inline]
    pub fn unlock(&self) {
        // The hand does not change while this thread is inside.
        let at = self.hand.load(Ordering::Relaxed);
        let hand = &self.hands[at];
        if at >= SHARED {
            hand.owner.store(NOBODY, Ordering::Relaxed);
        }
        hand.busy.store(0, Ordering::Release);
    }

    /// Whether this thread is inside.
    pub fn is_held_here(&self) -> bool {
        let hand = &self.hands[self.hand.load(Ordering::Acquire)];
        hand.owner.load(Ordering::Relaxed) == this_thread()
            && hand.busy.load(Ordering::Relaxed) != 0
    }

    /// The two cheap paths to the lock.
    #[inline(always)]
    fn enter(&self) -> bool {
        let at = self.hand.load(Ordering::Acquire);
        if at >= SHARED {
            return self.enter_shared();
        }
        let hand = &self.hands[at];
        if hand.owner.load(Ordering::Relaxed) != this_thread() {
            return false;
        }
        if hand.busy.load(Ordering::Relaxed) != 0 {
            return false; // this thread is inside (invariant 4)
        }
        hand.busy.store(1, Ordering::Relaxed);
        // The taker's barrier makes a fence of this.
        fence_by_others();
        // Acquire: a thread that sees the taker inside sees its hand, too.
        if self.wanted.load(Ordering::Acquire) == 0 && self.hand.load(Ordering::Relaxed) == at {
            return true;
        }
        hand.busy.store(0, Ordering::Release);
        false
    }

    #[inline]
    fn enter_shared(&self) -> bool {
        let Hand { owner, busy } = &self.hands[SHARED];
        let entered = busy.load(Ordering::Relaxed) == 0
            && busy
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if entered {
            owner.store(this_thread(), Ordering::Relaxed);
        }
        entered
    }

    #[cold]
    fn lock_slow(&self) {
        if self.is_held_here() {
            reentered();
        }
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
    /// a thread is inside and `patient` is not set.
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

    /// Takes the lock, unless another thread has it.
    pub fn try_lock(&self) -> bool {
        if self.enter() {
            return true;
        }
        let at = self.hand.load(Ordering::Acquire);
        let hand = &self.hands[at];
        if at >= SHARED
            || hand.owner.load(Ordering::Relaxed) == this_thread()
            || hand.busy.load(Ordering::Relaxed) != 0
        {
            return false;
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let taken = self.take_over(&turn, false);
        drop(turn);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    /// Whether another thread waits to get in.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

/// A lock that is free has no owner in the shared hand: no thread has this number.
const NOBODY: usize = 0;

/// Ends the process: this thread asks for a lock that it holds. With it the thread would
/// have the lane twice, and a wait for it would never end.
#[cold]
fn reentered() -> ! {
    // Nothing is allocated here: an allocator that communicates would come here again.
    eprintln!(
        "osier: a call was made on a communicator from code that the library runs while it \
         holds this communicator; the process ends (hint: a memory allocator must not \
         communicate; anything else is a fault of Osier, please report it)"
    );
    std::process::abort()
}

#[cfg(not(loom))]
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: invariant 5.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether locks may be biased in this process: asks the kernel to allow
/// barriers in all of its threads.
pub fn bias_offered() -> bool {
    !cfg!(miri) && membarrier(REGISTER_PRIVATE_EXPEDITED)
}

#[cfg(not(loom))]
fn barrier_in_all_threads() {
    let done = membarrier(PRIVATE_EXPEDITED);
    debug_assert!(done, "registered before any lane was biased");
}

#[cfg(loom)]
fn barrier_in_all_threads() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Guarded {
        lock: BiasedLock,
        value: UnsafeCell<u32>,
    }

    // SAFETY: invariant 1: the value is reached under the lock only; loom notices if not.
    unsafe impl Sync for Guarded {}
    // SAFETY: invariant 1: the value is reached under the lock only, and is a number.
    unsafe impl Send for Guarded {}

    impl Guarded {
        fn count(&self) {
            // SAFETY: invariant 1: callers have taken the lock; loom checks that no other
            // thread is here.
            self.value.with_mut(|v| unsafe { *v += 1 });
            self.lock.unlock();
        }
    }

    fn model(biased: bool, other: fn(&Guarded) -> u32, third: Option<fn(&Guarded) -> u32>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(if third.is_some() { 2 } else { 4 });
        builder.check(move || {
            let guarded = Arc::new(Guarded {
                lock: BiasedLock::new(biased),
                value: UnsafeCell::new(0),
            });
            let threads: Vec<_> = std::iter::once(other)
                .chain(third)
                .map(|f| {
                    let guarded = guarded.clone();
                    loom::thread::spawn(move || f(&guarded))
                })
                .collect();
            let mut expected = twice(&guarded);
            for thread in threads {
                expected += thread.join().expect("it ends");
            }
            guarded.lock.lock();
            // SAFETY: invariant 1: under the lock.
            let counted = guarded.value.with(|v| unsafe { *v });
            assert_eq!(counted, expected);
        });
    }

    fn once(guarded: &Guarded) -> u32 {
        guarded.lock.lock();
        guarded.count();
        1
    }

    fn twice(guarded: &Guarded) -> u32 {
        once(guarded) + once(guarded)
    }

    fn perhaps(guarded: &Guarded) -> u32 {
        if !guarded.lock.try_lock() {
            return 0;
        }
        guarded.count();
        1
    }

    #[test]
    fn loom_two_threads_take_turns() {
        model(true, twice, None);
    }

    #[test]
    fn loom_three_threads_take_turns() {
        model(true, once, Some(once));
    }

    #[test]
    fn loom_a_try_beside_the_owner() {
        model(true, perhaps, None);
        model(true, perhaps, Some(once));
    }

    #[test]
    fn loom_a_shared_lock() {
        model(false, once, Some(perhaps));
    }
}
