//! Epochs of a window: which calls are allowed when. Pure, but for the words of the quick look.
//!
//! | state | opened by | accesses to | closed by |
//! |---|---|---|---|
//! | fence | `MPI_Win_fence` | all | the next fence that says so |
//! | started | `MPI_Win_start` | its group | `MPI_Win_complete` |
//! | locked | `MPI_Win_lock` | one target each | `MPI_Win_unlock` |
//! | all | `MPI_Win_lock_all` | all | `MPI_Win_unlock_all` |
//!
//! A fence leaves an epoch behind that another kind may replace: programs fence, and lock then.
//!
//! # Sources
//! MPI 5.0, section 12.5.

use crate::abi::*;
use crate::fail::{Fail, Res};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a target is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Shared,
    Exclusive,
    /// The program says that no other lock is in the way (`MPI_MODE_NOCHECK`).
    Unchecked,
}

/// State of one window at one rank.
#[derive(Default)]
pub struct Epochs {
    fence: bool,
    started: Option<Vec<usize>>,
    posted: Option<Vec<usize>>,
    locked: BTreeMap<usize, Held>,
    /// Whether targets are locked when they are first used.
    all: Option<bool>,
}

/// What an access must do first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    AtOnce,
    /// Lock the target, in an epoch on all.
    OfAll,
}

/// Nothing is open.
const IDLE: u64 = 0;
/// The states say it.
const ASK: u64 = 1;
const ANY: u64 = 2;
const ALL: u64 = 3;
/// One target is locked, and nothing else is open: twice the target, and one more if it is locked
/// alone. The states do not have it.
const ONE: u64 = 4;

/// What most accesses, and locks of one target, need to know.
#[derive(Default)]
pub struct Quick(AtomicU64);

fn one(target: usize, held: Held) -> u64 {
    ONE + 2 * target as u64 + u64::from(held == Held::Exclusive)
}

impl Quick {
    /// What an access to a target must do first; none: [`Epochs::access`] says it.
    #[inline]
    pub fn look(&self, target: usize) -> Option<Allowed> {
        match self.0.load(Ordering::Relaxed) {
            ANY => Some(Allowed::AtOnce),
            ALL => Some(Allowed::OfAll),
            IDLE | ASK => None,
            one => ((one - ONE) / 2 == target as u64).then_some(Allowed::AtOnce),
        }
    }

    /// Notes that a target is locked where nothing was open; `alone`: no other thread may be in a
    /// call. False: the states have to know.
    #[inline]
    pub fn lock(&self, target: usize, held: Held, alone: bool) -> bool {
        held != Held::Unchecked && self.replace(IDLE, one(target, held), alone)
    }

    /// Notes that the target is locked no more that alone was open; how it was held.
    #[inline]
    pub fn unlock(&self, target: usize, alone: bool) -> Option<Held> {
        let word = self.0.load(Ordering::Relaxed);
        let held = [Held::Exclusive, Held::Shared]
            .into_iter()
            .find(|held| word == one(target, *held))?;
        self.replace(word, IDLE, alone).then_some(held)
    }

    /// Replaces the word if it is `seen`. An atomic exchange waits for stores to other ranks'
    /// memory, so a thread that is alone makes none.
    #[inline]
    fn replace(&self, seen: u64, word: u64, alone: bool) -> bool {
        let order = Ordering::Relaxed;
        if !alone {
            return self.0.compare_exchange(seen, word, order, order).is_ok();
        }
        let same = self.0.load(order) == seen;
        if same {
            self.0.store(word, order);
        }
        same
    }
}

#[cold]
fn out_of(what: &str) -> Fail {
    Fail::new(MPI_ERR_RMA_SYNC, what.to_owned())
}

impl Epochs {
    fn is_passive(&self) -> bool {
        self.all.is_some() || !self.locked.is_empty()
    }

    /// Takes over what the quick word alone has; until [`Epochs::note`] it says nothing.
    pub fn settle(&mut self, quick: &Quick) {
        let word = quick.0.swap(ASK, Ordering::Relaxed);
        if let Some(one) = word.checked_sub(ONE) {
            let held = match one % 2 {
                0 => Held::Shared,
                _ => Held::Exclusive,
            };
            self.fence = false;
            self.locked.insert((one / 2) as usize, held);
        }
    }

    /// Leaves a summary behind.
    pub fn note(&self, quick: &Quick) {
        let word = match self.all {
            Some(true) => ALL,
            Some(false) => ANY,
            None if self.started.is_some() || !self.locked.is_empty() => ASK,
            None if self.fence => ANY,
            None => IDLE,
        };
        quick.0.store(word, Ordering::Relaxed);
    }

    pub fn access(&self, target: usize) -> Res<Allowed> {
        if let Some(targets) = &self.started {
            return match targets.contains(&target) {
                true => Ok(Allowed::AtOnce),
                false => Err(out_of(
                    "an access to a rank that MPI_Win_start did not name",
                )),
            };
        }
        match self.all {
            Some(true) => return Ok(Allowed::OfAll),
            Some(false) => return Ok(Allowed::AtOnce),
            None => {}
        }
        if !self.locked.is_empty() {
            return match self.locked.contains_key(&target) {
                true => Ok(Allowed::AtOnce),
                false => Err(out_of("an access to a rank that is not locked")),
            };
        }
        match self.fence {
            true => Ok(Allowed::AtOnce),
            false => Err(out_of(
                "an access outside of an epoch (hint: MPI_Win_fence, MPI_Win_start or MPI_Win_lock opens one)",
            )),
        }
    }

    pub fn fence(&mut self, assert: c_int) -> Res {
        if self.is_passive() {
            return Err(out_of("MPI_Win_fence while a lock is held"));
        }
        if self.started.is_some() || self.posted.is_some() {
            return Err(out_of(
                "MPI_Win_fence between MPI_Win_start or MPI_Win_post and their ends",
            ));
        }
        self.fence = assert & MPI_MODE_NOSUCCEED == 0;
        Ok(())
    }

    pub fn start(&mut self, targets: Vec<usize>) -> Res {
        if self.started.is_some() || self.is_passive() {
            return Err(out_of("MPI_Win_start in another epoch of accesses"));
        }
        self.fence = false;
        self.started = Some(targets);
        Ok(())
    }

    pub fn complete(&mut self) -> Res<Vec<usize>> {
        let started = self.started.take();
        started.ok_or_else(|| out_of("MPI_Win_complete without MPI_Win_start"))
    }

    pub fn post(&mut self, origins: Vec<usize>) -> Res {
        if self.posted.is_some() {
            return Err(out_of(
                "MPI_Win_post in an epoch that another one has opened",
            ));
        }
        self.posted = Some(origins);
        Ok(())
    }

    /// The ranks that use this rank's part and have not completed; with none left the exposure epoch ends.
    pub fn posted(&mut self) -> Res<&mut Vec<usize>> {
        let posted = self.posted.as_mut();
        posted.ok_or_else(|| out_of("MPI_Win_wait or MPI_Win_test without MPI_Win_post"))
    }

    pub fn exposed_no_more(&mut self) {
        self.posted = None;
    }

    pub fn may_lock(&self, target: usize) -> Res {
        if self.started.is_some() || self.all.is_some() {
            return Err(out_of("MPI_Win_lock in another epoch of accesses"));
        }
        match self.locked.contains_key(&target) {
            true => Err(out_of("MPI_Win_lock of a rank that is locked already")),
            false => Ok(()),
        }
    }

    pub fn locked(&mut self, target: usize, held: Held) {
        self.fence = false;
        self.locked.insert(target, held);
    }

    pub fn unlock(&mut self, target: usize) -> Res<Held> {
        let held = self.locked.remove(&target);
        held.ok_or_else(|| out_of("MPI_Win_unlock of a rank that is not locked"))
    }

    pub fn lock_all(&mut self, checked: bool) -> Res {
        if self.started.is_some() || self.is_passive() {
            return Err(out_of("MPI_Win_lock_all in another epoch of accesses"));
        }
        self.fence = false;
        self.all = Some(checked);
        Ok(())
    }

    /// Whether targets were locked.
    pub fn unlock_all(&mut self) -> Res<bool> {
        let all = self.all.take();
        all.ok_or_else(|| out_of("MPI_Win_unlock_all without MPI_Win_lock_all"))
    }

    /// Whether a target may be flushed.
    pub fn flush(&self, target: Option<usize>) -> Res {
        let held = match target {
            Some(target) => self.locked.contains_key(&target),
            None => !self.locked.is_empty(),
        };
        match held || self.all.is_some() {
            true => Ok(()),
            false => Err(out_of("a flush of a rank that is not locked")),
        }
    }

    pub fn may_be_freed(&self) -> Res {
        match self.is_passive() || self.started.is_some() || self.posted.is_some() {
            true => Err(out_of("MPI_Win_free in an epoch that was not closed")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(result: Res<impl std::fmt::Debug>) -> c_int {
        result.expect_err("out of its epoch").code()
    }

    #[test]
    fn accesses_need_an_epoch_for_their_target() {
        let mut epochs = Epochs::default();
        let sync = MPI_ERR_RMA_SYNC;
        assert_eq!(class(epochs.access(0)), sync);
        epochs.fence(0).expect("free");
        assert_eq!(epochs.access(5).ok(), Some(Allowed::AtOnce));
        epochs.fence(MPI_MODE_NOSUCCEED).expect("free");
        assert_eq!(class(epochs.access(5)), sync);
        epochs.may_lock(1).expect("free");
        epochs.locked(1, Held::Shared);
        assert_eq!(class(epochs.may_lock(1)), sync);
        assert_eq!(class(epochs.access(0)), sync);
        assert!(epochs.access(1).is_ok() && epochs.flush(Some(1)).is_ok());
        assert_eq!(class(epochs.flush(Some(0))), sync);
        assert_eq!(class(epochs.fence(0)), sync);
        assert_eq!(class(epochs.lock_all(true)), sync);
        assert_eq!(class(epochs.may_be_freed()), sync);
        assert_eq!(epochs.unlock(1).ok(), Some(Held::Shared));
        assert_eq!(class(epochs.unlock(1)), sync);
        epochs.lock_all(true).expect("free");
        assert_eq!(epochs.access(7).ok(), Some(Allowed::OfAll));
        assert_eq!(class(epochs.start(vec![1])), sync);
        assert_eq!(epochs.unlock_all().ok(), Some(true));
        assert_eq!(class(epochs.unlock_all()), sync);
        epochs.start(vec![1, 3]).expect("free");
        assert!(epochs.access(3).is_ok());
        assert_eq!(class(epochs.access(2)), sync);
        assert_eq!(epochs.complete().ok(), Some(vec![1, 3]));
        assert_eq!(class(epochs.complete()), sync);
        assert_eq!(class(epochs.posted()), sync);
        epochs.post(vec![2]).expect("free");
        assert_eq!(class(epochs.post(vec![2])), sync);
        epochs.exposed_no_more();
        epochs.may_be_freed().expect("closed");
    }

    #[test]
    fn the_summary_says_what_the_states_do() {
        let (mut epochs, quick) = (Epochs::default(), Quick::default());
        let same = |epochs: &Epochs, quick: &Quick| {
            epochs.note(quick);
            for target in 0..4 {
                if let Some(allowed) = quick.look(target) {
                    assert_eq!(epochs.access(target).ok(), Some(allowed));
                }
            }
        };
        same(&epochs, &quick);
        assert_eq!(quick.look(0), None);
        epochs.fence(0).expect("free");
        same(&epochs, &quick);
        assert_eq!(quick.look(3), Some(Allowed::AtOnce));
        assert!(!quick.lock(1, Held::Shared, true), "a fence is open");
        epochs.locked(2, Held::Exclusive);
        epochs.locked(3, Held::Unchecked);
        same(&epochs, &quick);
        epochs.unlock(2).expect("locked");
        epochs.unlock(3).expect("locked");
        epochs.lock_all(true).expect("free");
        same(&epochs, &quick);
        assert_eq!(quick.look(0), Some(Allowed::OfAll));
    }

    #[test]
    fn a_lone_lock_is_known_by_the_word() {
        let (mut epochs, quick) = (Epochs::default(), Quick::default());
        let both = [Held::Shared, Held::Exclusive];
        for (held, alone) in [false, true]
            .iter()
            .flat_map(|alone| both.map(|h| (h, *alone)))
        {
            assert!(quick.lock(5, held, alone));
            assert!(!quick.lock(6, held, alone), "one is open");
            assert_eq!(
                (quick.look(5), quick.look(4)),
                (Some(Allowed::AtOnce), None)
            );
            let unlocked = [4, 5].map(|target| quick.unlock(target, alone));
            assert_eq!(unlocked, [None, Some(held)]);
            assert_eq!((quick.unlock(5, alone), quick.look(5)), (None, None));
        }
        assert!(!quick.lock(5, Held::Unchecked, true));
        assert!(quick.lock(0, Held::Exclusive, false));
        epochs.settle(&quick);
        assert!(epochs.may_lock(0).is_err() && epochs.access(0).is_ok());
        epochs.note(&quick);
        assert_eq!((quick.look(0), quick.unlock(0, true)), (None, None));
        assert_eq!(epochs.unlock(0).ok(), Some(Held::Exclusive));
        epochs.note(&quick);
        assert!(quick.lock(0, Held::Shared, false));
    }
}
