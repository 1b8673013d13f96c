//! What opens and closes epochs of a window: locks, fences, post and start.

#![allow(
    clippy::missing_errors_doc,
    reason = "not published: what windows and the C interface need"
)]

use super::raw::RawWindow;
use crate::comm::Group;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::LockOf;
use osier_engine::rma::shares::Shares;
use osier_engine::rma::word::Hold;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Of messages that begin and end exposure.
const POST_TAG: i32 = 1;
const COMPLETE_TAG: i32 = 2;

impl RawWindow {
    /// Locks a rank's part.
    #[inline]
    #[track_caller]
    pub fn lock(&self, rank: usize, hold: Hold) -> Result<()> {
        if hold == Hold::Exclusive
            && self.0.watch.is_none()
            && let Some(known) = self.0.known.get(rank)
            && known.part.lock_at_once(self.comm().rank() as u32)
        {
            return Ok(());
        }
        self.lock_any(rank, hold)
    }

    #[inline(never)]
    #[track_caller]
    fn lock_any(&self, rank: usize, hold: Hold) -> Result<()> {
        self.take(rank, hold)?;
        if let Some(watch) = &self.0.watch {
            watch.locked(rank);
        }
        Ok(())
    }

    #[track_caller]
    fn take(&self, rank: usize, hold: Hold) -> Result<()> {
        let known = self.known(rank)?;
        let left = |ended: u32| {
            let ended = ended as usize;
            let part = &self.known(ended)?.part;
            part.left_of(&self.path(ended), rank as u32)
        };
        let shares = self.shares(hold)?;
        let noted = shares.as_ref().map(|shares| shares.takes(rank as u32));
        let taken = known.part.lock(&self.path(rank), hold, left);
        if let (Some(shares), Some(at)) = (shares, noted) {
            match &taken {
                Ok(()) => shares.held(rank as u32, at),
                Err(_) => shares.left(at),
            }
        }
        taken
    }

    /// Where this rank notes what it has locked together with others.
    fn shares(&self, hold: Hold) -> Result<Option<Shares<'_>>> {
        match hold {
            Hold::Exclusive => Ok(None),
            Hold::Shared => Ok(self.known(self.comm().rank())?.part.shares()),
        }
    }

    /// Gives the lock of a rank's part back.
    #[inline]
    #[track_caller]
    pub fn unlock(&self, rank: usize, hold: Hold) -> Result<()> {
        // By address, so nothing is under way; and not checked.
        if hold == Hold::Exclusive
            && let Some(known) = self.0.known.get(rank)
            && !known.at.is_null()
            && !self.has_unsettled()
            && known.part.unlock_at_once(self.comm().rank() as u32)
        {
            return Ok(());
        }
        self.unlock_any(rank, hold)
    }

    #[inline(never)]
    #[track_caller]
    fn unlock_any(&self, rank: usize, hold: Hold) -> Result<()> {
        // Whatever has failed, nobody else is to wait for the lock.
        let flushed = self.flush(rank);
        if let Some(watch) = &self.0.watch {
            watch.unlocked(rank);
        }
        flushed.and(self.give_back(rank, hold))
    }

    fn give_back(&self, rank: usize, hold: Hold) -> Result<()> {
        let part = &self.known(rank)?.part;
        let shares = self.shares(hold)?;
        let noted = shares.as_ref().map(|shares| shares.gives(rank as u32));
        let given = part.unlock(&self.path(rank), LockOf::Epochs, hold);
        if let (Some(shares), Some(at)) = (shares, noted) {
            shares.left(at);
        }
        given
    }

    /// Opens an epoch on all ranks. Each is locked when it is first used.
    pub fn lock_all(&self) {
        *self.on_all() += 1;
        if let Some(watch) = &self.0.watch {
            watch.locked_all();
        }
    }

    fn on_all(&self) -> std::sync::MutexGuard<'_, usize> {
        let on_all = &self.0.on_all;
        on_all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the lock of a rank's part, in an epoch on all ranks.
    #[inline]
    #[track_caller]
    pub fn lock_of_all(&self, rank: usize) -> Result<()> {
        let known = self.known(rank)?;
        if known.by_all.load(Ordering::Acquire) {
            return Ok(());
        }
        let _alone = self.on_all();
        if !known.by_all.load(Ordering::Relaxed) {
            self.take(rank, Hold::Shared)?;
            known.by_all.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Closes an epoch on all ranks.
    pub fn unlock_all(&self) -> Result<()> {
        let first = self.flush_all();
        if let Some(watch) = &self.0.watch {
            watch.unlocked_all();
        }
        let mut open = self.on_all();
        *open -= 1;
        if *open > 0 {
            return first;
        }
        let mut all = Ok(());
        self.0.known.each(|rank, known| {
            if known.by_all.swap(false, Ordering::AcqRel) {
                let unlocked = self.give_back(rank, Hold::Shared);
                all = std::mem::replace(&mut all, Ok(())).and(unlocked);
            }
        });
        first.and(all)
    }

    /// Ends what was begun before, on all ranks. Collective.
    #[track_caller]
    pub fn fence(&self) -> Result<()> {
        // The others wait here in any case.
        let flushed = self.flush_all();
        self.comm().barrier()?;
        let checked = match &self.0.watch {
            None => Ok(()),
            Some(watch) => watch.fenced(self.comm()),
        };
        flushed.and(checked)
    }

    /// The members of a group, as ranks of the window.
    pub fn ranks_of(&self, group: &Group) -> Result<Vec<usize>> {
        let own = self.comm().group();
        let rank = |world: usize| {
            own.rank_of(world).ok_or_else(|| {
                let message = format!("world rank {world} is no rank of the window");
                Error::new(ErrorKind::Group, message)
            })
        };
        group.world_ranks().map(rank).collect()
    }

    /// Tells ranks that they may use this rank's part.
    pub fn post(&self, origins: &[usize]) -> Result<()> {
        if let Some(watch) = &self.0.watch {
            watch.posted(origins);
        }
        let nothing: [u8; 0] = [];
        let mut ranks = origins.iter();
        ranks.try_for_each(|rank| self.comm().send(&nothing, *rank, POST_TAG))
    }

    /// Waits until ranks have told that their parts may be used.
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Result<()> {
        self.hear(targets, POST_TAG)?;
        if let Some(watch) = &self.0.watch {
            watch.started(targets);
        }
        Ok(())
    }

    #[track_caller]
    fn hear(&self, ranks: &[usize], tag: i32) -> Result<()> {
        for rank in ranks {
            self.comm().recv(&mut [0u8; 0], *rank, tag)?;
        }
        Ok(())
    }

    /// Tells ranks that this one uses their parts no more.
    pub fn complete(&self, targets: &[usize]) -> Result<()> {
        let flushed = self.flush_all();
        let told = match &self.0.watch {
            None => Ok(()),
            Some(watch) => watch.completes(self.comm(), targets),
        };
        let nothing: [u8; 0] = [];
        let mut ranks = targets.iter();
        let sent = ranks.try_for_each(|rank| self.comm().send(&nothing, *rank, COMPLETE_TAG));
        flushed.and(told).and(sent)
    }

    /// Waits until ranks use this rank's part no more.
    #[track_caller]
    pub fn wait(&self, origins: &[usize]) -> Result<()> {
        self.hear(origins, COMPLETE_TAG)?;
        match &self.0.watch {
            None => Ok(()),
            Some(watch) => watch.waited(self.comm(), origins),
        }
    }

    /// Takes those out of a list that use this rank's part no more. True if none is left.
    pub fn test(&self, origins: &mut Vec<usize>) -> Result<bool> {
        while let Some(rank) = origins.last() {
            match self.comm().iprobe(*rank, COMPLETE_TAG)? {
                None => return Ok(false),
                Some(_) => self.comm().recv(&mut [0u8; 0], *rank, COMPLETE_TAG)?,
            };
            if let Some(watch) = &self.0.watch {
                watch.waited(self.comm(), &[*rank])?;
            }
            origins.pop();
        }
        Ok(true)
    }
}
