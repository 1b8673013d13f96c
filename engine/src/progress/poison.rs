//! Abort propagation: messages that will not come, because their collective has failed at
//! the peer.
//!
//! POISON takes the place of one message of a plan, and names the failed rank if there is
//! one. The receive that it matches ends with an error, its run fails in turn, and so the
//! failure follows the edges of the plan.
//!
//! # Sources
//! M. Bauer, S. Treichler, E. Slaughter, A. Aiken, "Legion", SC 2012: poisoned events.

use super::arrival::Arrival;
use super::lane::Lane;
use super::op::Protocol;
use crate::error::{Error, ErrorKind};
use crate::exec::executor::{NOBODY, REVOKED};
use crate::matching::{Envelope, INTERNAL_TAG};

impl Lane {
    /// A peer's run has failed.
    pub(crate) fn on_poison(&mut self, peer: u32, tag: u32, failed_rank: u32) -> bool {
        let envelope = Envelope { source: peer, tag };
        if tag & INTERNAL_TAG == 0 {
            return false;
        }
        match self.posted.take(envelope, &mut self.port.ops) {
            Some(handle) => {
                if let Some(op) = self.port.ops.get_mut(handle) {
                    op.protocol = Protocol::Posted(None);
                }
                self.finish_poisoned(handle, peer, failed_rank);
                true
            }
            None => self
                .arrive(envelope, Arrival::Poison { failed_rank }, None)
                .is_some(),
        }
    }

    /// Who has sent a poison of a tag that no receive takes, and for which failed rank.
    pub(crate) fn poisoned_by(&self, tag: u32) -> Option<(u32, u32)> {
        self.arrivals.handles().find_map(|at| {
            let arrived = self.arrivals.get(at)?;
            match arrived.what {
                Arrival::Poison { failed_rank } if arrived.envelope.tag == tag => {
                    Some((arrived.envelope.source, failed_rank))
                }
                _ => None,
            }
        })
    }

    /// Ends a receive whose message will not come.
    pub(crate) fn finish_poisoned(&mut self, handle: u32, peer: u32, failed_rank: u32) {
        let e = self.poisoned(peer, failed_rank);
        self.port.failed_rank = failed_rank;
        self.port.finish(handle, Some(e));
        self.port.failed_rank = NOBODY;
    }

    /// The error of a receive that meets poison.
    fn poisoned(&mut self, peer: u32, failed_rank: u32) -> Error {
        if failed_rank == REVOKED {
            self.revoke_communicator();
            return self
                .port
                .revoked(&format!("collective, as rank {peer} knows"));
        }
        let Some(failed_rank) = (failed_rank != NOBODY).then_some(failed_rank) else {
            return Error::new(
                ErrorKind::Cancelled,
                format!("rank {peer} has failed in this collective (hint: its own error says why)"),
            );
        };
        let member = self
            .port
            .members
            .iter()
            .position(|world| *world == failed_rank);
        let who = match member {
            Some(rank) => format!("rank {rank}"),
            None => format!("rank {failed_rank} of the job"),
        };
        let state = member.map(|rank| &self.port.peers[rank]);
        let kind = match state.is_some_and(|s| s.left.is_some() && !s.has_failed()) {
            true => ErrorKind::Closed,
            false => ErrorKind::RankDead,
        };
        Error::new(
            kind,
            format!("{who} is dead or has left, as rank {peer} has found in this collective"),
        )
    }

    /// The error of a receive whose poison came before it.
    pub(crate) fn meets_poison(&mut self, peer: u32, failed_rank: u32) -> Error {
        self.port.failed_rank = failed_rank;
        self.poisoned(peer, failed_rank)
    }
}
