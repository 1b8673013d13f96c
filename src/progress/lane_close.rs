//! A communicator's end, seen from both sides.
//!
//! A rank that drops a communicator receives nothing on it any more. Its peers
//! find out when they are about to sleep: the transport says whose end is
//! closed. Shared memory says so of peers that something was sent to, so a peer
//! that is only waited for is sent an empty report of credit, once.
//!
//! Sends that the dropped communicator still has under way go on. Meanwhile it
//! refuses what comes in, so that two ranks that drop a communicator with a
//! message for each other do not wait for ever.
//!
//! # Invariants
//! 1. A receive fails for a closed peer only after everything that the peer
//!    posted before was handled: a channel is closed behind its last message.
//! 2. A lane that refuses has no receives, and answers each message that its
//!    sender waits for.

use super::lane::{Arrival, Direction, Lane, State};
use crate::error::{Error, ErrorKind};
use crate::matching::Pattern;
use crate::wire;

impl Lane {
    /// Ends what waits for peers that have dropped the communicator. True if
    /// anything was learnt.
    pub fn check_closed(&mut self) -> bool {
        let overwritten = self.check_overwritten();
        if self.peers.len() > 1 {
            self.ask_awaited();
        }
        let closed: Vec<u32> = (0..self.peers.len() as u32)
            .filter(|p| self.links.closed(*p))
            .collect();
        if closed.is_empty() {
            return overwritten;
        }
        let mut learnt = overwritten;
        // What a peer posted before it closed may still end an operation.
        while self.progress() {}
        for &peer in &closed {
            learnt |= !std::mem::replace(&mut self.peers[peer as usize].closed, true);
            for handle in self.posted.take_all_from(peer) {
                let e = self.closed_error(handle, peer);
                self.finish(handle, Some(e));
                learnt = true;
            }
        }
        let waiting: Vec<(u32, u32)> = self
            .ops
            .handles()
            .filter_map(|h| {
                let op = self.ops.get(h)?;
                let stuck = op.direction == Direction::Send
                    && op.state != State::Done
                    && closed.contains(&op.peer);
                stuck.then_some((h, op.peer))
            })
            .collect();
        for (handle, peer) in waiting {
            let e = self.closed_error(handle, peer);
            let state = &mut self.peers[peer as usize];
            state.starts.retain(|h| *h != handle);
            state.streams.retain(|h| *h != handle);
            self.finish(handle, Some(e));
            learnt = true;
        }
        learnt
    }

    fn closed_error(&self, handle: u32, peer: u32) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!(
                "{}: rank {peer} has dropped the communicator (context {:#x})",
                self.describe(handle),
                self.context
            ),
        )
    }

    /// Why nothing will come from a source that has dropped the communicator.
    pub(super) fn closed_source(&self, pattern: Pattern, what: &str) -> Option<Error> {
        let peer = pattern.source?;
        self.peers[peer as usize].closed.then(|| {
            Error::new(
                ErrorKind::Closed,
                format!(
                    "{what}: rank {peer} has dropped the communicator (context {:#x})",
                    self.context
                ),
            )
        })
    }

    /// Sends something to each peer that is waited for, so that the transport
    /// learns of its end.
    fn ask_awaited(&mut self) {
        let mut any = false;
        for peer in self.posted.sources().chain(self.probed) {
            let state = &mut self.peers[peer as usize];
            if !state.asked && peer != self.own {
                (state.asked, state.to_ask, any) = (true, true, true);
            }
        }
        if !any {
            return;
        }
        for peer in 0..self.peers.len() {
            if std::mem::take(&mut self.peers[peer].to_ask) {
                self.control(peer as u32, wire::head(wire::CREDIT, 0, 0, 0));
            }
        }
    }

    /// Nobody will receive here any more: messages that their senders wait
    /// for are refused, those that have come and those to come.
    pub fn refuse(&mut self) {
        self.refusing = true;
        let arrivals: Vec<u32> = self.arrivals.handles().collect();
        for arrival in arrivals {
            let Some(arrived) = self.arrivals.get(arrival) else {
                continue;
            };
            let peer = arrived.envelope.source;
            let send = match arrived.what {
                Arrival::Whole { ack, .. } => ack,
                Arrival::Stream { send, ack, .. } => ack.then_some(send),
                Arrival::Announced { send, .. } => Some(send),
                Arrival::Poison { .. } => None,
            };
            if let Some(send) = send {
                self.refuse_send(peer, send);
            }
        }
    }

    /// Tells a sender that nobody will receive its message.
    pub(super) fn refuse_send(&mut self, peer: u32, send: u32) {
        self.control(
            peer,
            wire::head(wire::FINISH, wire::OUTCOME_CLOSED, send, 0),
        );
    }

    /// The receiver of a send has dropped the communicator.
    pub(super) fn refused(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return false;
        };
        let (state, peer) = (op.state, op.peer);
        let e = self.closed_error(handle, peer);
        match state {
            State::Announced | State::AwaitAck => self.finish(handle, Some(e)),
            // Its bytes go on to a receiver that drops them.
            State::Streaming if op.synchronous => {
                if let Some(rare) = self.rare(handle) {
                    rare.error = Some(e);
                }
                if let Some(op) = self.ops.get_mut(handle) {
                    op.acked = true;
                }
            }
            State::Withdrawn => self.finish(handle, None),
            _ => return false,
        }
        true
    }
}
