//! Read-only queries of a lane, for reports and the test bed.

use super::arrival::Arrival;
use super::lane::Lane;
use super::op::{Mode, Outcome, Protocol};
use super::protocols;
use crate::diagnose::page::{Operation, WaitTag};
use crate::diagnose::waits::{Asked, hear, listens};
use crate::matching::{INTERNAL_TAG, Pattern, TagPattern};
use crate::protocol::eager;
use crate::wire;
use std::any::Any;

/// Counts of what a lane still keeps; all zero when everything is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub operations: usize,
    pub posted: usize,
    pub unexpected: usize,
    pub arrivals: usize,
    pub pulls: usize,
    pub busy: usize,
    pub queued: usize,
    pub incoming: usize,
}

impl Lane {
    /// Whether one-sided transfers or posts are in flight, which may proceed
    /// without a message, or messages whose time has not come.
    pub fn unsettled(&self) -> bool {
        !(self.port.busy.is_empty() && self.get.is_idle())
            || self.next_due_ns().is_some()
            || protocols::devices_work(&self.port)
            || self.executor.devices_work()
    }

    /// When the next delayed message is visible, by the machine's monotonic clock in ns.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.port.links.next_due_ns()
    }

    /// Whether a peer is known to be dead.
    pub fn knows_dead(&self, peer: u32) -> bool {
        self.port.peers[peer as usize].dead.is_some()
    }

    /// Whether a receive from any source is posted while a failure is not acknowledged.
    pub fn breaks_acknowledgement(&self) -> bool {
        let from_any = |handle: u32| {
            let pattern = self.port.ops.get(handle).and_then(|op| op.pattern);
            pattern.is_some_and(|pattern| pattern.source.is_none())
        };
        self.unacknowledged > 0 && self.posted.outside().iter().any(from_any)
    }

    /// Grows whenever anything moves in [`Lane::progress`].
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Describes a pending operation, for reports.
    #[cold]
    pub(crate) fn asked(&self, handle: u32) -> Asked {
        let Some(op) = self.port.ops.get(handle) else {
            return Asked::OTHER;
        };
        let (operation, peer, tag) = match (op.pattern, &op.protocol) {
            (None, _) if op.mode == Mode::Synchronous => {
                (Operation::SynchronousSend, Some(op.peer), exact(op.tag))
            }
            (None, _) => (Operation::Send, Some(op.peer), exact(op.tag)),
            (Some(p), Protocol::Posted(Some(_))) => (Operation::Receive, p.source, tag_of(p)),
            (Some(_), _) => (Operation::Receive, Some(op.peer), exact(op.tag)),
        };
        Asked {
            operation,
            peer: peer.map(|p| self.in_world(p)),
            tag,
            context: self.port.context,
            bytes: op.view.bytes() as u64,
            posted: Some(self.site_of(op)),
            unreachable: self.is_unreachable(handle),
            what: None,
        }
    }

    /// What a run waits for whose step is a kernel that waits for all other ranks.
    #[cold]
    pub(crate) fn asked_in_kernel(&self, tag: u32) -> impl Iterator<Item = Asked> {
        let others = (0..self.port.peers.len() as u32).filter(|peer| *peer != self.port.own);
        others.map(move |peer| Asked {
            peer: Some(self.in_world(peer)),
            tag: exact(tag),
            context: self.port.context,
            ..Asked::of(Operation::Receive)
        })
    }

    /// What a run waits for that waits for a peer's flag.
    #[cold]
    pub(crate) fn asked_of_flag(&self, peer: u32, tag: u32) -> Asked {
        Asked {
            peer: Some(self.in_world(peer)),
            tag: exact(tag),
            context: self.port.context,
            ..Asked::of(Operation::Receive)
        }
    }

    /// Tells a thread that listens of a probe in vain.
    pub(crate) fn probed_in_vain(&self, pattern: Pattern) {
        if listens() {
            hear(Asked {
                peer: pattern.source.map(|p| self.in_world(p)),
                tag: tag_of(pattern),
                context: self.port.context,
                unreachable: self.unreachable(pattern).is_some(),
                ..Asked::of(Operation::Probe)
            });
        }
    }

    /// Sends that the peers still need this rank for.
    pub fn asked_sends(&self) -> Vec<Asked> {
        self.port
            .ops
            .handles()
            .filter(|h| {
                self.port
                    .ops
                    .get(*h)
                    .is_some_and(|op| op.is_send() && !op.is_done())
            })
            .map(|h| self.asked(h))
            .collect()
    }

    /// Unfinished sends whose memory's owner this is true of.
    pub fn asked_owned(&self, owner: &dyn Fn(&dyn Any) -> bool) -> Vec<Asked> {
        let owned = |h: &u32| {
            let op = self.port.ops.get(*h).filter(|op| !op.is_done());
            let its = op.and_then(|op| op.rare.as_ref()?.owner.as_deref());
            its.is_some_and(|its| owner(its))
        };
        let owned = self.port.ops.handles().filter(owned);
        owned.map(|h| self.asked(h)).collect()
    }

    /// Context of the communicator.
    pub fn context(&self) -> u64 {
        self.port.context
    }

    /// A peer's rank in the world.
    pub fn in_world(&self, peer: u32) -> u32 {
        self.port
            .members
            .get(peer as usize)
            .copied()
            .unwrap_or(peer)
    }

    /// The message that a receive has met, once it has.
    pub fn met(&self, handle: u32) -> Option<Outcome> {
        let op = self.port.ops.get(handle)?;
        let met = !matches!(
            op.protocol,
            Protocol::Posted(Some(_)) | Protocol::Done { met: false }
        );
        (op.is_receive() && met).then_some(Outcome {
            source: op.peer,
            tag: op.tag,
            bytes: op.total,
        })
    }

    /// Whether a send waits only for the acknowledgement of its match.
    pub fn awaits_ack(&self, handle: u32) -> bool {
        self.port
            .ops
            .get(handle)
            .is_some_and(|op| matches!(op.protocol, Protocol::AwaitAck))
    }

    /// Credit taken from a peer, and credit owed to it.
    pub fn credits(&self, peer: u32) -> (u64, u64) {
        let peer = &self.port.peers[peer as usize];
        (peer.sender.out(), peer.receiver.owed())
    }

    /// What is still there.
    pub fn leftovers(&self) -> Leftovers {
        let (mut queued, mut incoming) = (0, 0);
        self.port.peers.each(|_, peer| {
            queued += peer.control.len() + peer.starts.len() + peer.streams.len();
            incoming += peer.incoming.len();
        });
        Leftovers {
            operations: self.port.ops.len() + self.posted.in_window(),
            posted: self.posted.len(),
            unexpected: self.unexpected.len(),
            arrivals: self.arrivals.len(),
            pulls: self.get.len(),
            busy: self.port.busy.len(),
            queued,
            incoming,
        }
    }

    /// Sources and tags of messages that no receive has asked for, and their bytes; none of
    /// poison.
    pub fn messages(&self) -> Vec<(u32, u32, Option<usize>)> {
        let arrivals = self.arrivals.handles().filter_map(|a| self.arrivals.get(a));
        let bytes = |what: &Arrival| match what {
            Arrival::Poison { .. } => None,
            other => Some(other.bytes()),
        };
        let each = arrivals.map(|a| (a.envelope.source, a.envelope.tag, bytes(&a.what)));
        each.collect()
    }

    /// Operations that are not detached.
    pub fn attended(&self) -> usize {
        let ops = self.port.ops.handles().filter_map(|h| self.port.ops.get(h));
        ops.filter(|op| !op.detached).count() + self.posted.in_window()
    }

    /// Credit of a peer's eager messages that no receive has taken yet.
    pub fn unreceived(&self, peer: u32) -> u64 {
        let arrivals = self.arrivals.handles().filter_map(|a| self.arrivals.get(a));
        arrivals
            .filter(|a| a.envelope.source == peer)
            .map(|a| match &a.what {
                Arrival::Rts { .. } | Arrival::Poison { .. } => 0,
                other => eager::cost(other.bytes()),
            })
            .sum()
    }

    /// Credit that waits to be returned to a peer.
    pub fn queued_credit(&self, peer: u32) -> u64 {
        let control = &self.port.peers[peer as usize].control;
        control
            .iter()
            .filter(|head| head.kind == wire::CREDIT)
            .map(|head| u64::from(wire::halves(head.arg).0))
            .sum()
    }

    /// Whether messages to itself are in flight.
    pub fn talks_to_itself(&self) -> bool {
        self.port.links.looped() > 0
    }
}

fn exact(tag: u32) -> WaitTag {
    if tag & INTERNAL_TAG != 0 {
        return WaitTag::Collective;
    }
    WaitTag::Exact(tag)
}

fn tag_of(pattern: Pattern) -> WaitTag {
    match pattern.tag {
        TagPattern::Exact(tag) => exact(tag),
        TagPattern::Any => WaitTag::Any,
    }
}
