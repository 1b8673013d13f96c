//! Ranks that have left a communicator, by dropping it or by finalizing, seen from both sides.
//!
//! A rank that drops a communicator receives nothing on it any more. Its peers
//! find out when they are about to sleep: the transport says whose end is
//! closed. Shared memory says so of peers that something was sent to, so a peer
//! that is only waited for is sent an empty report of credit, once. A rank that
//! finalizes says so to all ([`Lane::peer_ended`]).
//!
//! Sends that the dropped communicator still has in flight complete. Meanwhile it
//! refuses what comes in, so that two ranks that drop a communicator with a
//! message for each other do not wait for ever.
//!
//! A rank that has left has not failed. Sends to it end with an error, because their
//! messages are lost. A receive that only such ranks could meet is unreachable: it stays
//! posted, so that tests say "not complete" and its owner may cancel it. It ends with an
//! error where a caller waits for nothing else: when a blocking wait finds all of its
//! operations unreachable ([`crate::diagnose::waits::resigns`]), when a future is
//! polled, when a stream waits, and in collectives and partitioned transfers, which no
//! caller can cancel.
//!
//! # Invariants
//! 1. A peer counts as one that has left only after everything that it posted before was
//!    handled: a channel is closed behind its last message.
//! 2. A lane that refuses has no receives, and answers each message that its
//!    sender waits for.
//! 3. What is unreachable stays so: a peer that has left does not come back.

use super::lane::Lane;

use crate::error::{Error, ErrorKind};
use crate::matching::{INTERNAL_TAG, Pattern, TagPattern};
use crate::wire;

/// Members of a communicator of whom each is asked where any is waited for.
const MOST_ASKED: usize = 256;

/// How a peer left a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It has dropped the communicator.
    Dropped,
    /// It has finalized.
    Finalized,
}

impl Lane {
    /// Ends sends to peers that have dropped the communicator, and takes note of them. True
    /// if anything was learnt.
    pub fn check_closed(&mut self) -> bool {
        let overwritten = self.check_overwritten();
        if self.port.peers.len() > 1 {
            self.ask_awaited();
        }
        let links = &mut self.port.links;
        let closed: Vec<u32> = (0..self.port.peers.len() as u32)
            .filter(|p| links.closed(*p))
            .collect();
        // What was posted since it was known that a peer had left.
        let mut learnt = self.end_unowned();
        if closed.is_empty() {
            return learnt | overwritten;
        }
        learnt |= overwritten;
        // What a peer posted before it closed may still end an operation.
        while self.progress() {}
        for &peer in &closed {
            if self.port.peers[peer as usize].left.is_none() {
                learnt = true;
                self.peer_left(peer, Left::Dropped);
            }
        }
        let waiting: Vec<(u32, u32)> = self
            .port
            .ops
            .handles()
            .filter_map(|h| {
                let op = self.port.ops.get(h)?;
                let stuck = op.is_send() && !op.is_done() && closed.contains(&op.peer);
                stuck.then_some((h, op.peer))
            })
            .collect();
        for (handle, peer) in waiting {
            let e = self.port.left_error(handle, peer);
            let state = &mut self.port.peers[peer as usize];
            state.starts.retain(|h| *h != handle);
            state.streams.retain(|h| *h != handle);
            self.port.finish(handle, Some(e));
            learnt = true;
        }
        learnt
    }

    /// A peer has left, and all its messages were handled: ends operations without a caller
    /// that could cancel, and wakes futures of receives that are unreachable now.
    pub(crate) fn peer_left(&mut self, peer: u32, how: Left) {
        let state = &mut self.port.peers[peer as usize];
        self.port.left_count += usize::from(state.left.is_none());
        state.left = Some(how);
        self.end_unowned();
        self.ends_for_agreements(peer, None);
        self.edges_lost(peer);
        self.tell_of_revocation();
        (self.port.accesses).peer_is_gone(peer, "has given the window back");
        // Somebody may sleep in a wait that is hopeless now.
        self.port.finished = true;
    }

    /// Ends unreachable receives that no caller can cancel; wakes the futures of others.
    /// True if any ended.
    fn end_unowned(&mut self) -> bool {
        if self.port.left_count == 0 {
            return false;
        }
        let all: Vec<u32> = self.posted.queue(&mut self.port.ops).iter().collect();
        let mut any = false;
        for handle in all {
            let Some(gone) = self.gone_source(handle) else {
                continue;
            };
            let Some(op) = self.port.ops.get_mut(handle) else {
                continue;
            };
            let held = op.rare.as_ref().is_some_and(|rare| !rare.holds.is_empty());
            if held || op.detached || op.pattern.is_some_and(is_internal) {
                self.end_unreachable(handle, gone);
                any = true;
            } else if let Some(waker) = op.rare.as_mut().and_then(|rare| rare.waker.take()) {
                self.port.owed.wake(Some(waker));
            }
        }
        any
    }

    /// Whether any peer has left.
    pub fn any_left(&self) -> bool {
        self.port.left_count != 0
    }

    /// Of the ranks that could send what a pattern accepts, one that has left, if all have
    /// left or failed.
    pub(crate) fn unreachable(&self, pattern: Pattern) -> Option<u32> {
        if self.port.left_count == 0 {
            return None;
        }
        if let Some(source) = pattern.source {
            return self.port.peers[source as usize].left.map(|_| source);
        }
        let mut others = (0..self.port.peers.len() as u32).filter(|peer| *peer != self.port.own);
        let gone = |peer: u32| {
            let state = &self.port.peers[peer as usize];
            state.left.is_some() || state.dead.is_some()
        };
        match others.clone().all(gone) {
            true => others.find(|peer| self.port.peers[*peer as usize].left.is_some()),
            false => None,
        }
    }

    /// As [`Lane::unreachable`], of a receive that is posted.
    fn gone_source(&self, handle: u32) -> Option<u32> {
        let op = self.port.ops.get(handle)?;
        if !op.is_posted() {
            return None;
        }
        self.unreachable(op.pattern?)
    }

    /// Whether an operation is a receive that no rank is left to meet.
    pub(crate) fn is_unreachable(&self, handle: u32) -> bool {
        self.port.left_count != 0 && self.gone_source(handle).is_some()
    }

    /// Ends a receive that no rank is left to meet. True if it was one.
    #[cold]
    pub fn resign(&mut self, handle: u32) -> bool {
        let Some(peer) = self.gone_source(handle) else {
            return false;
        };
        self.end_unreachable(handle, peer);
        true
    }

    fn end_unreachable(&mut self, handle: u32, peer: u32) {
        let from_any = self
            .port
            .ops
            .get(handle)
            .and_then(|op| op.pattern)
            .is_some_and(|p| p.source.is_none());
        let e = match from_any {
            true => self.all_left(&self.port.describe(handle)),
            false => self.port.left_error(handle, peer),
        };
        self.end_posted(handle, e);
    }

    /// The error of what any rank could have met; names them, up to a few.
    fn all_left(&self, what: &str) -> Error {
        let others = (0..self.port.peers.len() as u32).filter(|peer| *peer != self.port.own);
        let each = others.filter_map(|peer| {
            let state = &self.port.peers[peer as usize];
            Some(match (state.dead, state.left) {
                (Some(how), _) => format!("rank {peer} {how}"),
                (None, Some(_)) => format!("rank {peer} has dropped the communicator"),
                (None, None) => return None,
            })
        });
        let mut each: Vec<String> = each.collect();
        let more = each.len().saturating_sub(MOST_NAMED);
        each.truncate(MOST_NAMED);
        if more > 0 {
            each.push(format!("and {more} more"));
        }
        let message = format!(
            "{what}: no rank is left that could send: {}",
            each.join(", ")
        );
        Error::new(ErrorKind::Closed, message)
    }

    /// Why nothing that a pattern accepts will come, if all that could send it have left.
    pub(crate) fn left_source(&self, pattern: Pattern, what: &str) -> Option<Error> {
        let peer = self.unreachable(pattern)?;
        Some(match pattern.source {
            Some(_) => self.port.left(what, peer),
            None => self.all_left(what),
        })
    }

    /// Sends something to each peer that is waited for, so that the transport
    /// learns of its end. Who waits for any of some ranks on other hosts asks each.
    fn ask_awaited(&mut self) {
        let mut any = false;
        let awaited = self.awaited_for_agreement();
        for peer in self.posted.sources().chain(self.probed).chain(awaited) {
            let state = &mut self.port.peers[peer as usize];
            if !state.asked && peer != self.port.own {
                (state.asked, state.to_ask, any) = (true, true, true);
            }
        }
        if (self.posted.takes_from_any() || self.probes_any) && self.port.peers.len() <= MOST_ASKED
        {
            for peer in 0..self.port.peers.len() as u32 {
                let asked = self.port.peers[peer as usize].asked;
                if !asked && peer != self.port.own && self.port.links.is_told_late(peer) {
                    let state = &mut self.port.peers[peer as usize];
                    (state.asked, state.to_ask, any) = (true, true, true);
                }
            }
        }
        if !any {
            return;
        }
        for peer in self.port.peers.those(|state| state.to_ask) {
            self.port.peers[peer as usize].to_ask = false;
            self.port.control(peer, wire::head(wire::CREDIT, 0, 0, 0));
        }
    }

    /// Nobody will receive here any more: messages that their senders wait
    /// for are refused, those that have come and those to come.
    pub fn refuse(&mut self) {
        self.port.refusing = true;
        let arrivals: Vec<u32> = self.arrivals.handles().collect();
        for arrival in arrivals {
            let Some(arrived) = self.arrivals.get_mut(arrival) else {
                continue;
            };
            let peer = arrived.envelope.source;
            if let Some(send) = arrived.what.take_answer() {
                self.refuse_send(peer, send);
            }
        }
    }

    /// Answers a sender that its message will not be received.
    pub(crate) fn refuse_send(&mut self, peer: u32, send: u32) {
        let outcome = match self.port.is_revoked {
            true => wire::OUTCOME_REVOKED,
            false => wire::OUTCOME_CLOSED,
        };
        self.port
            .control(peer, wire::head(wire::FIN, outcome, send, 0));
    }
}

/// Most ranks that an error names.
const MOST_NAMED: usize = 8;

/// Whether a receive belongs to a collective or a partitioned transfer.
pub(crate) fn is_internal(pattern: Pattern) -> bool {
    matches!(pattern.tag, TagPattern::Exact(tag) if tag & INTERNAL_TAG != 0)
}
