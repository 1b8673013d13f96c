//! The mark of an owner that sleeps until its part changes.
//!
//! ```text
//! owner    mark = 1;  look at the part;  sleep, unless it is as wanted
//! others   change the part;  if mark != 0: mark = 0, wake the owner
//! ```
//!
//! # Invariants
//! 1. The owner marks before it looks, and others change before they look at the mark, with
//!    sequentially consistent fences between: one of both sees what the other has written. So
//!    none sleeps through a change.
//! 2. A mark is taken back by one that wakes the owner behind that: owners that sleep again
//!    mark again.

use crate::error::Result;
use osier_transports::{AtomicOp, full_fence};

/// Marks that the owner is to be woken, before it looks at its part once more. `apply`
/// performs an atomic on the mark, and gives the value before.
///
/// # Errors
/// Those of `apply`.
pub fn mark(mut apply: impl FnMut(AtomicOp) -> Result<u64>) -> Result<()> {
    if apply(AtomicOp::Load)? == 0 {
        apply(AtomicOp::Swap(1))?;
    }
    // Invariant 1.
    full_fence();
    Ok(())
}

/// Whether the owner is to be woken, once its part has been changed. The mark is gone then.
///
/// # Errors
/// Those of `apply`.
#[inline]
pub fn is_to_wake(mut apply: impl FnMut(AtomicOp) -> Result<u64>) -> Result<bool> {
    // Invariant 1.
    full_fence();
    Ok(apply(AtomicOp::Load)? != 0 && apply(AtomicOp::Swap(0))? != 0)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use loom::thread;

    fn on(word: &AtomicU64) -> impl FnMut(AtomicOp) -> Result<u64> {
        |op| {
            Ok(match op {
                AtomicOp::Load => word.load(Ordering::Acquire),
                AtomicOp::Swap(n) => word.swap(n, Ordering::AcqRel),
                AtomicOp::Add(_) | AtomicOp::CompareSwap { .. } => unreachable!("{op:?}"),
            })
        }
    }

    /// An owner waits for all changes, each of another thread: if a wakeup is lost, the model
    /// does not end.
    fn play(changes: u64) {
        loom::model(move || {
            let part = Arc::new(AtomicU64::new(0));
            let asleep = Arc::new(AtomicU64::new(0));
            let calls = Arc::new(AtomicUsize::new(0));
            let others: Vec<_> = (0..changes)
                .map(|_| {
                    let (part, asleep, calls) = (part.clone(), asleep.clone(), calls.clone());
                    thread::spawn(move || {
                        part.fetch_add(1, Ordering::Release);
                        if is_to_wake(on(&asleep)).expect("no errors") {
                            calls.fetch_add(1, Ordering::AcqRel);
                        }
                    })
                })
                .collect();
            loop {
                let heard = calls.load(Ordering::Acquire);
                mark(on(&asleep)).expect("no errors");
                if part.load(Ordering::Acquire) == changes {
                    break;
                }
                while calls.load(Ordering::Acquire) == heard {
                    thread::yield_now();
                }
            }
            for other in others {
                other.join().expect("no panic");
            }
        });
    }

    #[test]
    fn loom_one_change() {
        play(1);
    }

    #[test]
    fn loom_two_changes() {
        play(2);
    }
}
