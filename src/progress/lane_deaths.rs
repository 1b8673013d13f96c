//! What the death of a peer does to a communicator.
//!
//! # Invariants
//! 1. What the peer had posted before is handled first; then every operation that needs
//!    it ends, with its rank, and nothing that it began is kept.
//! 2. A receive from any source ends when nobody is left who could send.

use super::lane::{Arrival, Direction, Lane, State, Target};
use crate::error::{Error, ErrorKind};
use osier_transports::shm::Death;

impl Lane {
    /// How a peer ended, if it has.
    pub fn death(&self, peer: u32) -> Option<Death> {
        self.peers[peer as usize].dead
    }

    /// Fails what needs peers whose messages somebody has written over. True if there are
    /// such.
    pub(super) fn check_overwritten(&mut self) -> bool {
        let mut any = false;
        while let Some(peer) = self.links.overwritten() {
            self.peer_died(peer, Death::Overwritten);
            any = true;
        }
        any
    }

    /// A peer has died: what it sent before is still received, what needs it
    /// fails.
    pub fn peer_died(&mut self, peer: u32, how: Death) {
        if self.peers[peer as usize].dead.is_some() {
            return;
        }
        while let Some(message) = self.links.poll() {
            self.handle(&message);
        }
        self.peers[peer as usize].dead = Some(how);
        self.peers[peer as usize].blocked = true;
        self.dead_count += 1;
        let error = |lane: &Lane, handle: u32| Some(lane.death_error(handle, peer, how));
        for handle in self.posted.take_all_from(peer) {
            let e = error(self, handle);
            self.finish(handle, e);
        }
        let state = &mut self.peers[peer as usize];
        state.control.clear();
        state.starts.clear();
        state.streams.clear();
        self.forget_pushes(peer);
        self.fail_shared_pulls(peer, how);
        self.fail_mapped(peer, how);
        let state = &mut self.peers[peer as usize];
        for (_, target) in std::mem::take(&mut state.incoming) {
            match target {
                Target::Op(handle) => {
                    let e = error(self, handle);
                    self.finish(handle, e);
                }
                Target::Arrival(arrival) => self.forget_arrival(arrival),
                Target::Discard(_) => {}
            }
        }
        let announced: Vec<u32> = self
            .arrivals
            .handles()
            .filter(|a| {
                self.arrivals.get(*a).is_some_and(|a| {
                    a.envelope.source == peer && matches!(a.what, Arrival::Announced { .. })
                })
            })
            .collect();
        for arrival in announced {
            self.forget_arrival(arrival);
        }
        let sends: Vec<u32> = self
            .ops
            .handles()
            .filter(|h| {
                self.ops.get(*h).is_some_and(|op| {
                    op.direction == Direction::Send && op.peer == peer && op.state != State::Done
                })
            })
            .collect();
        for handle in sends {
            let e = error(self, handle);
            self.finish(handle, e);
        }
        // What was opened of it is used no more.
        self.devices.sweep();
        if self.dead_count + 1 >= self.peers.len() {
            // Nobody is left who could satisfy a receive from any source.
            let orphans: Vec<u32> = self
                .posted
                .iter()
                .filter(|h| {
                    self.ops
                        .get(*h)
                        .and_then(|op| op.pattern)
                        .is_some_and(|p| p.source.is_none())
                })
                .collect();
            for handle in orphans {
                if let Some(key) = self.ops.get_mut(handle).and_then(|op| op.posted.take()) {
                    self.posted.cancel(key);
                }
                let e = error(self, handle);
                self.finish(handle, e);
            }
        }
    }

    /// A message that can no longer come whole.
    fn forget_arrival(&mut self, arrival: u32) {
        if let Some(arrived) = self.arrivals.remove(arrival)
            && let Some(key) = arrived.queued
        {
            self.unexpected.remove(key);
        }
    }

    pub(super) fn death_error(&self, handle: u32, peer: u32, how: Death) -> Error {
        Error::new(
            ErrorKind::RankDead,
            format!("{}: rank {peer} {how}", self.describe(handle)),
        )
    }
}
