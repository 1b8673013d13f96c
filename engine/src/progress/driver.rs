//! The lane as the executor's driver: steps of plans become its operations.

use super::failures::ended;
use super::lane::Lane;
use super::op::{Mode, Outcome, Posted, Protocol};
use crate::check::Site;
use crate::device::Devices;
use crate::diagnose::waits::{hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::{
    Driver, Executor, Gone, Lost, NO_RUN, NOBODY, OperationEnd, REVOKED, StepEnd,
};
use crate::exec::foreign::Foreign;
use crate::exec::run::Combination;
use crate::exec::step::Started;
use crate::matching::Pattern;
use crate::view::RawView;
use crate::wire;
use std::sync::Arc;
use std::task::Waker;

impl From<Posted> for Started<u32> {
    #[inline]
    fn from(posted: Posted) -> Self {
        match posted {
            Posted::Done(Outcome { bytes, .. }) => Started::Done(bytes),
            Posted::Pending(handle) => Started::Later(handle),
        }
    }
}

impl Lane {
    /// Operations of a run that have not ended.
    pub(crate) fn steps_under_way(&self, run: u32) -> impl Iterator<Item = u32> {
        self.port.ops.handles().filter(move |h| {
            let op = self.port.ops.get(*h);
            op.is_some_and(|op| op.run == run && !op.is_done())
        })
    }
}

impl Driver for Lane {
    #[inline]
    fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    #[inline]
    fn own(&self) -> u32 {
        self.port.own
    }

    fn post_send(
        &mut self,
        view: RawView,
        to: u32,
        tag: u32,
        crossing: bool,
        site: Site,
    ) -> Result<Started<u32>> {
        if self.send_now(&view, to, tag) {
            return Ok(Started::Done(view.bytes()));
        }
        self.act_for(Some(site));
        let posted = self.isend_from(view, to, tag, Mode::Standard, crossing, site.line());
        self.act_for(None);
        posted.map(Started::from)
    }

    fn post_receive(
        &mut self,
        view: RawView,
        from: u32,
        tag: u32,
        site: Site,
    ) -> Result<Started<u32>> {
        self.act_for(Some(site));
        let posted = self.irecv(view, Pattern::exact(from, tag));
        self.act_for(None);
        let posted = posted?;
        if let Posted::Pending(handle) = posted
            && let Some(op) = self.port.ops.get_mut(handle)
        {
            op.site = site.line();
        }
        Ok(posted.into())
    }

    fn adopt(&mut self, handle: u32, run: u32, instance: u32) {
        if let Some(op) = self.port.ops.get_mut(handle) {
            (op.run, op.instance) = (run, instance);
        }
        // It may have failed at the call.
        if self.port.is_done(handle) {
            self.port.run_event(run, instance, handle);
        }
    }

    #[inline]
    fn has_ends(&self) -> bool {
        !self.port.ended.is_empty()
    }

    fn next_end(&mut self) -> Option<StepEnd> {
        self.port.ended.pop_front()
    }

    fn take_end(&mut self, handle: u32) -> Option<OperationEnd> {
        let op = self.port.ops.get(handle)?;
        let (peer, room) = (op.peer, op.is_receive().then(|| op.view.bytes()));
        let result = self.take(handle)?;
        Some(OperationEnd {
            // A receive's peer is its message's source.
            peer: result.as_ref().map_or(peer, |outcome| outcome.source),
            room,
            result: result.map(|outcome| outcome.bytes),
        })
    }

    fn operations(&self, run: u32) -> Vec<u32> {
        self.steps_under_way(run).collect()
    }

    #[inline]
    fn hear(&self, run: u32) {
        if listens() {
            self.steps_under_way(run)
                .for_each(|op| hear(self.asked(op)));
            if let Some(tag) = self.executor.waits_in_kernel(run) {
                self.asked_in_kernel(tag).for_each(hear);
            }
            if let Some((peer, tag)) = self.executor.awaits_flag(run) {
                hear(self.asked_of_flag(peer, tag));
            }
        }
    }

    fn stop(&mut self, handle: u32, failed_rank: u32) -> Option<u32> {
        let op = self.port.ops.get_mut(handle)?;
        let (run, instance, peer, tag) = (op.run, op.instance, op.peer, op.tag);
        op.run = NO_RUN;
        if op.is_posted() {
            let owner = op.forget_memory();
            op.detached = true;
            self.port.owed.drop(owner);
            return Some(instance);
        }
        let queued = matches!(op.protocol, Protocol::Queued(_));
        if op.is_send() && !queued {
            op.rare().blame = Some(failed_rank);
        }
        if !self.revoke(handle) {
            if let Some(op) = self.port.ops.get_mut(handle) {
                op.run = run;
            }
            return None;
        }
        if queued {
            self.poison(peer, tag, failed_rank);
        }
        Some(instance)
    }

    fn discard(&mut self, from: u32, tag: u32) {
        let posted = self.irecv(RawView::empty(), Pattern::exact(from, tag));
        if let Ok(Posted::Pending(handle)) = posted {
            self.let_go(handle);
        }
        self.port.failed_rank = NOBODY;
    }

    fn poison(&mut self, to: u32, tag: u32, failed_rank: u32) {
        if to == self.port.own {
            return; // a copy of its own, whose other end is given up, too
        }
        self.port
            .control(to, wire::head(wire::POISON, 0, tag, failed_rank));
    }

    fn failed_rank(&mut self, peer: u32, error: &Error) -> u32 {
        let failed_rank = std::mem::replace(&mut self.port.failed_rank, NOBODY);
        if failed_rank == NOBODY && matches!(error.kind(), ErrorKind::RankDead | ErrorKind::Closed)
        {
            let member = self.port.members.get(peer as usize);
            return member.copied().unwrap_or(NOBODY);
        }
        match error.kind() {
            ErrorKind::Revoked if failed_rank == NOBODY => REVOKED,
            _ => failed_rank,
        }
    }

    fn devices(&self) -> &Arc<Devices> {
        &self.port.devices
    }

    fn lost(&mut self, tag: u32) -> Option<Lost> {
        let ended_peers = || {
            let peers = 0..self.port.peers.len() as u32;
            peers.filter_map(|peer| self.death(peer).map(|how| (peer, how)))
        };
        // One that has failed, rather than one that left because of it.
        let named = ended_peers().max_by_key(|(_, how)| how.is_failure());
        let gone = ended_peers().map(|(peer, how)| Gone::of(peer, how));
        let gone = gone.reduce(Gone::and);
        let poisoned = self.poisoned_by(tag);
        if let (Some((peer, how)), Some(gone)) = (named, gone) {
            let world = self.port.members.get(peer as usize);
            return Some(Lost {
                error: ended("reduction in one kernel", peer, how),
                failed_rank: world.copied().unwrap_or(NOBODY),
                gone: poisoned.map_or(gone, |_| Gone::All),
            });
        }
        if let Some(error) = self.revoked_error("reduction in one kernel") {
            return Some(Lost {
                error,
                failed_rank: REVOKED,
                gone: Gone::All,
            });
        }
        let (peer, failed_rank) = poisoned?;
        let error = self.meets_poison(peer, failed_rank);
        self.port.failed_rank = NOBODY;
        Some(Lost {
            error,
            failed_rank,
            gone: Gone::All,
        })
    }

    fn size(&self) -> u32 {
        self.port.peers.len() as u32
    }

    fn count_combined(&mut self) {
        self.port.counters.combined += 1;
    }

    fn count_crossed(&mut self, bytes: usize) {
        self.port.counters.crossed += bytes as u64;
    }

    fn combine(&mut self, run: u32, instance: u32, combination: Combination) {
        self.port.owed.combine(run, instance, combination);
    }

    fn drop_later(&mut self, value: Option<Foreign>) {
        self.port.owed.drop(value);
    }

    fn run_is_over(&mut self, waker: Option<Waker>) {
        self.port.finished = true;
        self.port.owed.wake(waker);
    }
}
