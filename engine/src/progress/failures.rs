//! Failure handling of a lane: what the end of a peer does to a communicator.
//!
//! ```text
//!            finalized                      failed
//! sends      end with Closed                end with RankDead
//! receives   stay; see `closing`         end with RankDead
//!   from any source                         end with RankDead, until acknowledged
//! ```
//!
//! # Invariants
//! 1. What the peer had posted before is handled first; then every operation that needs
//!    it ends, with its rank, and nothing that it began is kept. Receives that only a
//!    finalized rank could meet are left to their owners, who may still cancel them.
//! 2. While a failure is not acknowledged, no receive from any source is posted: those that
//!    are end without a message, later ones are refused.
//! 3. A receive from any source ends when all others have failed, acknowledged or not.

use super::arrival::Arrival;
use super::closing::Left;
use super::lane::Lane;
use super::links::Links;
use super::op::Op;
use super::peer::{PeerState, Target};
use super::protocols::{device_get, host_staged};
use crate::error::{Error, ErrorKind};
use crate::exec::executor::Gone;
use crate::matching::Pattern;
use osier_transports::Death;

impl Lane {
    /// How a peer ended, if it has.
    pub fn death(&self, peer: u32) -> Option<Death> {
        self.port.peers[peer as usize].dead
    }

    /// Whether what a peer has sent is delayed, so that its end is to be told later.
    pub fn is_awaited(&mut self, peer: u32) -> bool {
        self.port.links.is_awaited(peer)
    }

    /// Fails operations that need peers whose messages were overwritten. True if there are
    /// any.
    pub(crate) fn check_overwritten(&mut self) -> bool {
        let mut any = false;
        while let Some(peer) = self.port.links.overwritten() {
            self.peer_ended(peer, Death::Overwritten);
            any = true;
        }
        any
    }

    /// A peer has ended: what it sent before is still received, what needs it
    /// fails.
    pub fn peer_ended(&mut self, peer: u32, how: Death) {
        if self.port.peers[peer as usize].dead.is_some() {
            return;
        }
        self.settle_window();
        while let Some(message) = self.port.links.poll() {
            self.handle(&message);
        }
        self.port.peers[peer as usize].dead = Some(how);
        self.port.finished |= self.port.accesses.peer_is_gone(peer, &how.to_string());
        self.port.wake_ended_accesses();
        self.port.peers[peer as usize].blocked = true;
        self.troubles += 1;
        self.executor.stop_graphs(Gone::of(peer, how));
        let error = |lane: &Lane, handle: u32| Some(lane.port.death_error(handle, peer, how));
        // Receives before sends: kernels of a send may be behind a stream that a receive
        // blocks.
        if how.is_failure() {
            self.failures.push(peer);
            self.unacknowledged += 1;
            let posted = self.posted.queue(&mut self.port.ops);
            for handle in posted.take_all_from(peer) {
                let e = error(self, handle);
                self.port.finish(handle, e);
            }
            self.end_receives_from_any(peer, how);
            self.ends_for_agreements(peer, Some(how));
        } else {
            self.peer_left(peer, Left::Finalized);
        }
        let state = &mut self.port.peers[peer as usize];
        state.control.clear();
        state.starts.clear();
        state.streams.clear();
        state.edges.clear();
        self.get.forget_pushes(peer);
        self.get.fail_shared_pulls(&mut self.port, peer, how);
        device_get::fail_mapped(&mut self.port, peer, how);
        let state = &mut self.port.peers[peer as usize];
        for (_, target) in std::mem::take(&mut state.incoming) {
            match target {
                Target::Op(handle) => {
                    let e = error(self, handle);
                    self.port.finish(handle, e);
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
                    a.envelope.source == peer && matches!(a.what, Arrival::Rts { .. })
                })
            })
            .collect();
        for arrival in announced {
            self.forget_arrival(arrival);
        }
        let sends: Vec<u32> = self
            .port
            .ops
            .handles()
            .filter(|h| {
                self.port.ops.get(*h).is_some_and(|op| {
                    op.is_send() && op.peer == peer && !op.is_done() && !op.drains()
                })
            })
            .collect();
        for handle in sends {
            let e = error(self, handle);
            host_staged::end_send(&mut self.port, handle, e);
        }
        self.tell_of_revocation();
        // What was opened of it is used no more.
        self.port.devices.sweep();
        self.edges_lost(peer);
    }

    /// Ends the posted receives from any source (invariant 2). None of them has met a
    /// message.
    fn end_receives_from_any(&mut self, peer: u32, how: Death) {
        let from_any = |h: &u32| {
            let op = self.port.ops.get(*h);
            op.and_then(|op| op.pattern)
                .is_some_and(|p| p.source.is_none())
        };
        let all: Vec<u32> = self.posted.outside().iter().filter(from_any).collect();
        for handle in all {
            let e = self.port.death_error(handle, peer, how);
            self.end_posted(handle, e);
        }
    }

    /// Ends a receive that is posted.
    pub(crate) fn end_posted(&mut self, handle: u32, e: Error) {
        if let Some(key) = self.port.ops.get_mut(handle).and_then(Op::take_posted) {
            self.posted.outside_mut().cancel(key);
        }
        self.port.finish(handle, Some(e));
    }

    /// The failed rank for which a receive of this pattern fails, if for one.
    pub(crate) fn failed_source(&self, pattern: Pattern) -> Option<(u32, Death)> {
        if self.failures.is_empty() {
            return None;
        }
        if let Some(source) = pattern.source {
            let how = self.port.peers[source as usize].dead?;
            return how.is_failure().then_some((source, how));
        }
        let nobody_lives = self.failures.len() + 1 >= self.port.peers.len();
        if self.unacknowledged == 0 && !nobody_lives {
            return None;
        }
        let mut failed = self.failed().into_iter();
        let of = |peer: u32| &self.port.peers[peer as usize];
        let named = failed.find(|peer| nobody_lives || !of(*peer).acknowledged)?;
        of(named).dead.map(|how| (named, how))
    }

    fn failed(&self) -> Vec<u32> {
        self.port.peers.those(PeerState::has_failed)
    }

    /// Peers that have failed, in the order in which that was learnt.
    pub fn failures(&self) -> &[u32] {
        &self.failures
    }

    /// Peers whose failure is acknowledged, in the same order.
    pub fn acknowledged_failures(&self) -> Vec<u32> {
        let of = |peer: &u32| self.port.peers[*peer as usize].acknowledged;
        self.failures.iter().copied().filter(of).collect()
    }

    /// Peers that have failed, in order.
    pub fn failed_peers(&self) -> Vec<usize> {
        self.failed()
            .into_iter()
            .map(|peer| peer as usize)
            .collect()
    }

    /// Those whose failure is acknowledged, or that have left without one.
    pub fn acknowledged_peers(&self) -> Vec<usize> {
        let holds =
            |state: &PeerState| state.acknowledged || state.left.is_some() && !state.has_failed();
        let acknowledged = self.port.peers.those(holds);
        acknowledged.into_iter().map(|peer| peer as usize).collect()
    }

    /// Makes receives from any source continue without the peers that have failed so far;
    /// returns these peers.
    pub fn acknowledge_failures(&mut self) -> Vec<usize> {
        self.acknowledge_first(usize::MAX);
        self.failed_peers()
    }

    /// The same of as many as this that were learnt of first.
    pub fn acknowledge_first(&mut self, count: usize) {
        for peer in self.failures.iter().take(count) {
            self.port.peers[*peer as usize].acknowledged = true;
        }
        self.unacknowledged = self.failures.len() - self.acknowledged_failures().len();
    }

    /// A message that can no longer come whole.
    pub(crate) fn forget_arrival(&mut self, arrival: u32) {
        if let Some(arrived) = self.arrivals.remove(arrival)
            && let Some(key) = arrived.queued
        {
            self.unexpected.remove(key);
        }
    }
}

/// The error of what needs a rank that has ended, with what the transport to it knows besides.
#[cold]
pub(crate) fn ended_over(links: &Links, what: &str, peer: u32, how: Death) -> Error {
    let e = ended(what, peer, how);
    match links.why(peer) {
        None => e,
        Some(why) => Error::new(e.kind(), format!("{what}: rank {peer} {how}: {why}")),
    }
}

/// The error of what needs a rank that has ended.
pub(crate) fn ended(what: &str, peer: u32, how: Death) -> Error {
    let kind = match how.is_failure() {
        true => ErrorKind::RankDead,
        false => ErrorKind::Closed,
    };
    Error::new(kind, format!("{what}: rank {peer} {how}"))
}
