//! Deferred foreign code of a lane: wakers to call, values of the user to drop, reduction
//! functions to run.
//!
//! ```text
//! lane (locked)    a receive ends, a request is given up, a step is ready -> Owed
//! LaneGuard::drop  releases the lock -> settles what was owed
//!                  takes the lock again where functions were run: their steps are complete
//! ```
//!
//! # Invariants
//! 1. Nothing of this runs while this thread holds a lane or another lock of the library,
//!    so it may call whatever it likes. A call that releases a lane while it holds another
//!    lock says so by [`Later`].
//! 2. A step whose function is owed or runs counts as an operation of its run in flight:
//!    the run's memory and operator outlive it.
//! 3. A panic of a waker or of a value's `Drop` ends there: the panic hook has reported it.
//!    The thread that happens to release the lane may be in a call that lent a buffer to an
//!    operation, which must not unwind while that is in flight. A panic of a reduction function
//!    belongs to the call that waits for the collective ([`Combined`]).

use super::cell::LaneCell;
use super::suspend::NoSuspension;
use crate::exec::executor::Combined;
use crate::exec::foreign::Foreign;
use crate::exec::run::Combination;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// Locks of the library under which this thread may release lanes, and whether it has
    /// released one that owes.
    static HELD: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// Whether a lane that this thread releases has to keep what it owes.
pub(crate) fn is_put_off() -> bool {
    let (held, _) = HELD.get();
    if held > 0 {
        HELD.set((held, true));
    }
    held > 0
}

/// Locks of the library under which this thread may release lanes.
#[inline]
pub(crate) fn locks_held() -> u32 {
    HELD.get().0
}

/// To be made before a lock of the library is taken under which lanes are released, and so
/// to be dropped behind it: then this lane, one of those, settles what it owes.
pub struct Later<'a>(&'a LaneCell);

impl<'a> Later<'a> {
    pub fn begin(lane: &'a LaneCell) -> Self {
        let (held, owes) = HELD.get();
        HELD.set((held + 1, owes));
        Self(lane)
    }
}

impl Drop for Later<'_> {
    fn drop(&mut self) {
        let (held, owes) = HELD.get();
        HELD.set((held - 1, owes && held > 1));
        if owes && held == 1 {
            drop(self.0.lock());
        }
    }
}

/// Run, step and end of such a step.
pub(crate) type Ended = (u32, u32, Combined);

/// A step of a run.
struct Step {
    run: u32,
    instance: u32,
    combination: Combination,
}

#[derive(Default)]
pub(crate) struct Owed {
    /// Whether anything is owed: one load for each release of a lane.
    any: bool,
    wake: Vec<Waker>,
    drop: Vec<Foreign>,
    combine: Vec<Step>,
}

impl Owed {
    #[inline]
    pub fn any(&self) -> bool {
        self.any
    }

    /// A waker is to be called.
    pub fn wake(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.any = true;
            self.wake.push(waker);
        }
    }

    /// A value is to be dropped.
    pub fn drop(&mut self, value: Option<Foreign>) {
        if let Some(value) = value {
            self.any = true;
            self.drop.push(value);
        }
    }

    /// A function is to be run, which takes this step of a run.
    pub fn combine(&mut self, run: u32, instance: u32, combination: Combination) {
        self.any = true;
        self.combine.push(Step {
            run,
            instance,
            combination,
        });
    }

    /// Runs everything, without any lock: how the steps that were run have ended.
    #[cold]
    pub fn settle(self) -> Vec<Ended> {
        let _bound = NoSuspension::begin();
        for waker in self.wake {
            contain(|| waker.wake());
        }
        for value in self.drop {
            contain(|| drop(value));
        }
        let combined = |step: Step| {
            let end = catch_unwind(AssertUnwindSafe(|| step.combination.execute()));
            (step.run, step.instance, end)
        };
        self.combine.into_iter().map(combined).collect()
    }
}

/// Runs foreign code whose panic ends here (invariant 3), also one of dropping the payload.
fn contain(f: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else {
        return;
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
}
