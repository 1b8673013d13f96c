//! A lane's part in agreements: their messages, in parts where they are long, and the ends of
//! peers. What is agreed how: [`crate::agree`].
//!
//! # Invariants
//! 1. A message that is handled is released behind its handler.

use super::lane::Lane;
use crate::agree::{Agreements, Out, Value};
use crate::diagnose::page::{Operation, WaitTag};
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::wire;
use osier_transports::{Death, Incoming};
use std::collections::HashMap;

/// Most bytes of a message in parts: sets of all members of the largest jobs, four times.
const MOST_BYTES: usize = 1 << 28;

/// Agreements of a lane, from its first one on.
pub(crate) struct Agreeing {
    all: Agreements,
    /// Begins of messages whose other parts have not come, by peer.
    parts: HashMap<u32, Vec<u8>>,
}

impl Lane {
    /// The agreements of this lane, with what is known of ends.
    fn agreeing(&mut self) -> &mut Agreeing {
        let port = &self.port;
        self.agreeing.get_or_insert_with(|| {
            let size = port.peers.len() as u32;
            let mut all = Agreements::new(port.own, size);
            if self.dead_count > 0 || port.left_count > 0 {
                for peer in 0..size {
                    let state = &port.peers[peer as usize];
                    if state.dead == Some(Death::Apart) {
                        all.cut_off();
                    }
                    if state.dead.is_some() || state.left.is_some() {
                        // Nothing was begun, so there is nothing to send.
                        all.ended(peer, &mut Out::new());
                    }
                }
            }
            let parts = HashMap::new();
            Box::new(Agreeing { all, parts })
        })
    }

    /// Takes part in the next agreement of all members; its number. `flags` and `number` are
    /// those of [`Value`].
    pub fn agree(&mut self, flags: u64, number: u64) -> u64 {
        let of = |ranks: Vec<usize>| ranks.into_iter().map(|rank| rank as u32).collect();
        let failed = of(self.failed_peers());
        let acknowledged = of(self.acknowledged_peers());
        let mut out = Out::new();
        let value = Value {
            flags,
            failed,
            acknowledged,
            number,
        };
        let number = self.agreeing().all.begin(value, &mut out);
        self.send_all(out);
        number
    }

    /// The result of an agreement, once, or nothing as long as it is not decided.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if all other ranks go on without this one.
    pub fn agreed(&mut self, number: u64) -> Option<Result<Value>> {
        let agreeing = self.agreeing();
        let taken = agreeing.all.take(number);
        let awaited = agreeing.all.awaits(number);
        if taken.is_none()
            && let Some(peer) = awaited
        {
            // So that the transport finds out whether it is still there.
            self.probes(Some(peer));
            if listens() {
                hear(Asked {
                    peer: Some(self.in_world(peer)),
                    tag: WaitTag::Collective,
                    context: self.port.context,
                    ..Asked::of(Operation::Receive)
                });
            }
        }
        taken.map(|result| {
            result.map_err(|_| {
                let mut apart = self.port.peers.those(|s| s.dead == Some(Death::Apart));
                let why = apart.pop().and_then(|peer| self.port.links.why(peer));
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                let what = format!("this rank is cut off from all others{why}");
                Error::new(ErrorKind::RankDead, what)
            })
        })
    }

    /// Part of a message of an agreement; `more` says that others follow.
    pub(crate) fn on_agree(&mut self, message: &Incoming, more: bool) -> bool {
        let peer = message.peer;
        // SAFETY: invariant 1.
        let bytes = unsafe { message.payload.to_vec() };
        let parts = &mut self.agreeing().parts;
        let mut whole = parts.remove(&peer).unwrap_or_default();
        whole.extend(bytes);
        if whole.len() > MOST_BYTES {
            return false;
        }
        if more {
            self.agreeing().parts.insert(peer, whole);
            return true;
        }
        let mut out = Out::new();
        let sound = self.agreeing().all.take_message(peer, &whole, &mut out);
        self.send_all(out);
        // Somebody may wait for what was decided.
        self.port.finished = true;
        sound
    }

    fn send_all(&mut self, out: Out) {
        for (peer, bytes) in out {
            let most = self.port.links.max_payload(peer).max(1);
            let parts = bytes.len().div_ceil(most);
            for (at, part) in bytes.chunks(most).enumerate() {
                let aux = if at + 1 < parts { wire::MORE } else { 0 };
                self.post_kept(peer, wire::head(wire::AGREE, aux, 0, 0), part);
            }
        }
    }

    /// A peer takes no part any more.
    pub(crate) fn ends_for_agreements(&mut self, peer: u32, how: Option<Death>) {
        let Some(agreeing) = &mut self.agreeing else {
            return;
        };
        let mut out = Out::new();
        agreeing.parts.remove(&peer);
        if how == Some(Death::Apart) {
            agreeing.all.cut_off();
        }
        agreeing.all.ended(peer, &mut out);
        self.send_all(out);
        self.port.finished = true;
    }
}
