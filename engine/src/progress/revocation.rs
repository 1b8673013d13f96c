//! Revoked communicators: all members learn that one has revoked it, and what waits there ends.
//!
//! ```text
//! receives, probes              end when this rank learns of it, as do later ones
//! sends that have not left      the same
//! sends that have               end when the receiver has the message, refuses it as it knows
//!                               of the revocation, too, or ends
//! collectives                   fail; a call whose memory others may read ends when they are
//!                               known to read no more
//! agreements                    go on
//! ```
//!
//! The rank that revokes does not wait. Messages that have met a receive, or that a matched probe
//! has taken, are delivered, as their memory is in use.
//!
//! # Invariants
//! 1. A rank says that it has retired when none of its calls reads memory of peers any more: they
//!    have failed, or wait only until others have read. None begins later.
//! 2. A rank that knows of a revocation passes it on, also when others end ([`crate::flood`]).
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013 (ULFM: `MPIX_Comm_revoke`).

use super::arrival::Arrival;
use super::lane::Lane;
use super::op::Protocol;
use super::port::Port;
use super::protocols::host_staged;
use crate::error::{Error, ErrorKind};
use crate::exec::executor::Gone;
use crate::exec::in_segment::At;
use crate::flood::Flood;
use crate::wire;
use std::task::Waker;

/// What a lane knows of its revocation.
#[derive(Debug)]
pub(crate) struct Revocation {
    flood: Flood,
    /// No call reads here any more, and peers that need to know have been told.
    retired: bool,
}

impl Port {
    /// The error of what a revoked communicator does not do.
    #[cold]
    pub(crate) fn revoked(&self, what: &str) -> Error {
        let context = self.context;
        Error::new(
            ErrorKind::Revoked,
            format!(
                "{what}: the communicator (context {context:#x}) is revoked (hint: agree and \
                 shrink still work on it)"
            ),
        )
    }
}

impl Lane {
    /// Whether a member has revoked the communicator.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revocation.is_some()
    }

    /// An error, if the communicator is revoked.
    pub fn revoked_error(&self, what: &str) -> Option<Error> {
        self.is_revoked().then(|| self.port.revoked(what))
    }

    /// Calls this when the communicator is revoked, without the lane; at once, if it is.
    pub fn on_revocation(&mut self, waker: Waker) {
        match self.is_revoked() {
            true => self.port.owed.wake(Some(waker)),
            false => self.when_revoked.push(waker),
        }
    }

    /// Revokes the communicator: ends what waits here, and tells the others.
    pub fn revoke_communicator(&mut self) {
        if self.is_revoked() {
            return;
        }
        let size = self.port.peers.len() as u32;
        self.revocation = Some(Revocation {
            flood: Flood::new(self.port.own, size),
            retired: false,
        });
        self.port.is_revoked = true;
        self.troubles += 1;
        self.port.peers.block();
        self.tell_of_revocation();
        self.end_all_receives();
        self.end_unsent();
        self.refuse_arrivals();
        self.executor.stop_graphs(Gone::All);
        for waker in std::mem::take(&mut self.when_revoked) {
            self.port.owed.wake(Some(waker));
        }
        self.port.finished = true;
    }

    /// A peer has revoked the communicator, or knows that another has.
    pub(crate) fn on_revoke(&mut self, peer: u32, aux: u16) -> bool {
        if aux & !wire::RETIRED != 0 {
            return false;
        }
        self.revoke_communicator();
        if aux & wire::RETIRED != 0 {
            self.port.peers[peer as usize].retired = true;
            self.port.finished = true;
        }
        true
    }

    /// Tells those who are to be told and have not been, where the lane is revoked.
    pub(crate) fn tell_of_revocation(&mut self) {
        let Some(revocation) = &mut self.revocation else {
            return;
        };
        let peers = &self.port.peers;
        let ended = |peer: u32| {
            let state = &peers[peer as usize];
            state.dead.is_some() || state.left.is_some()
        };
        for peer in revocation.flood.to_tell(ended) {
            self.port.control(peer, wire::head(wire::REVOKE, 0, 0, 0));
        }
    }

    /// Tells the peers whose memory calls of this rank may have read that none does any more, once
    /// that is so (invariant 1). Not within a call.
    pub(crate) fn retire(&mut self) {
        let due = self.revocation.as_ref().is_some_and(|r| !r.retired);
        if !due || self.executor.any_reads() {
            return;
        }
        if let Some(revocation) = &mut self.revocation {
            revocation.retired = true;
        }
        if !self.port.links.has_collective() {
            return;
        }
        let (own, size) = (self.port.own, self.port.peers.len() as u32);
        for peer in (0..size).filter(|peer| *peer != own) {
            let head = wire::head(wire::REVOKE, wire::RETIRED, 0, 0);
            self.port.control(peer, head);
        }
    }

    /// Whether a peer, of which nothing comes any more, may still read memory in this call.
    pub(crate) fn still_reads(&mut self, at: At, peer: u32) -> bool {
        if self.gone_in_segment(peer).is_some() {
            return false;
        }
        let has_failed = matches!(self.failed_flag(at, peer), Ok(Some(_)) | Err(_));
        let segment = u16::MAX;
        !has_failed && !matches!(self.is_past(At { segment, ..at }, peer), Ok(true) | Err(_))
    }

    fn end_all_receives(&mut self) {
        let queue = self.posted.queue(&mut self.port.ops);
        let all: Vec<u32> = queue.iter().collect();
        for handle in all {
            let e = self.port.revoked(&self.port.describe(handle));
            self.end_posted(handle, e);
        }
    }

    /// Ends sends of which nothing has left.
    fn end_unsent(&mut self) {
        let queued: Vec<(u32, u32)> = (self.port.ops.handles())
            .filter_map(|handle| {
                let op = self.port.ops.get(handle)?;
                let queued = op.is_send() && matches!(op.protocol, Protocol::Queued(_));
                queued.then_some((handle, op.peer))
            })
            .collect();
        for (handle, peer) in queued {
            let e = self.port.revoked(&self.port.describe(handle));
            let starts = &mut self.port.peers[peer as usize].starts;
            starts.retain(|start| *start != handle);
            host_staged::end_send(&mut self.port, handle, Some(e));
        }
    }

    /// No receive will meet what has come.
    fn refuse_arrivals(&mut self) {
        let arrivals: Vec<u32> = self.arrivals.handles().collect();
        for arrival in arrivals {
            let Some(arrived) = self.arrivals.get_mut(arrival) else {
                continue;
            };
            if arrived.queued.is_none() {
                continue; // a matched probe has taken it
            }
            let peer = arrived.envelope.source;
            let announced = matches!(arrived.what, Arrival::Rts { .. });
            if let Some(send) = arrived.what.take_answer() {
                self.refuse_send(peer, send);
            }
            if announced {
                self.forget_arrival(arrival);
            }
        }
    }
}
