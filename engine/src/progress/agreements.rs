//! A lane's part in agreements: their messages, in parts where they are long, and the ends of
//! peers. What is agreed how: [`crate::agree`].
//!
//! # Invariants
//! 1. A message that is handled is released behind its handler.

use super::lane::Lane;
use crate::agree::{Agreements, Out, Value};
use crate::completion::ready::Ready;
use crate::diagnose::page::{Operation, WaitTag};
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::foreign::Foreign;
use crate::wire;
use osier_transports::{Death, Incoming};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// Most bytes of a message in parts: sets of all members of the largest jobs, four times.
const MOST_BYTES: usize = 1 << 28;

/// Agreements of a lane, from its first one on.
pub(crate) struct Agreeing {
    all: Agreements,
    /// Those that calls have asked for, and of these the ones that wait until all before are
    /// decided.
    asked: u64,
    waiting: VecDeque<Waiting>,
    /// Wakers and lists of requests to notify when an agreement is decided, or this rank is cut
    /// off.
    wakers: Vec<(u64, Waker)>,
    ready: Vec<(u64, Arc<Ready>, u64)>,
    /// Begins of messages whose other parts have not come, by peer.
    parts: HashMap<u32, Vec<u8>>,
}

/// An agreement that is not begun.
struct Waiting {
    number: u64,
    /// What this rank gives, without failures.
    value: Value,
    /// Its result will not be taken.
    given_up: bool,
}

impl Lane {
    /// The agreements of this lane, with what is known of ends.
    fn agreeing(&mut self) -> &mut Agreeing {
        let port = &self.port;
        self.agreeing.get_or_insert_with(|| {
            let size = port.peers.len() as u32;
            let mut all = Agreements::new(port.own, size);
            if self.troubles > 0 || port.left_count > 0 {
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
            Box::new(Agreeing {
                all,
                asked: 0,
                waiting: VecDeque::new(),
                wakers: Vec::new(),
                ready: Vec::new(),
                parts: HashMap::new(),
            })
        })
    }

    /// Takes part in the next agreement of all members, when those before are decided; its
    /// number. Failures are added to `value`.
    pub fn agree(&mut self, value: Value) -> u64 {
        let agreeing = self.agreeing();
        let asked = agreeing.asked;
        agreeing.asked += 1;
        // One that was cut off begins none any more.
        if !agreeing.all.is_cut_off() {
            agreeing.waiting.push_back(Waiting {
                number: asked,
                value,
                given_up: false,
            });
        }
        self.agreements_go_on();
        asked
    }

    /// Agreements that are asked for and not decided.
    pub(crate) fn open_agreements(&self) -> usize {
        let Some(agreeing) = &self.agreeing else {
            return 0;
        };
        agreeing.waiting.len() + usize::from(agreeing.all.awaits().is_some())
    }

    /// Begins agreements that wait, and notifies the waiters of those that are complete.
    fn agreements_go_on(&mut self) {
        while self.agreeing().all.may_begin() {
            let Some(asked) = self.agreeing().waiting.pop_front() else {
                break;
            };
            let of = |ranks: Vec<usize>| ranks.into_iter().map(|rank| rank as u32).collect();
            let value = Value {
                failed: of(self.failed_peers()),
                acknowledged: of(self.acknowledged_peers()),
                ..asked.value
            };
            let mut out = Out::new();
            let all = &mut self.agreeing().all;
            all.begin(value, &mut out);
            if asked.given_up {
                all.give_up(asked.number);
            }
            self.send_all(out);
        }
        let Agreeing {
            all,
            wakers,
            ready,
            waiting,
            ..
        } = self.agreeing();
        if all.is_cut_off() {
            waiting.clear();
        }
        let over: Vec<_> = wakers.extract_if(.., |(n, _)| all.is_over(*n)).collect();
        for (_, ready, token) in ready.extract_if(.., |(n, _, _)| all.is_over(*n)) {
            ready.push(token);
        }
        for (_, waker) in over {
            self.port.owed.wake(Some(waker));
        }
        // A thread may wait for what was decided.
        self.port.finished = true;
    }

    /// Calls a waker when an agreement completes, unless it is complete already. The waker was
    /// cloned without the lane.
    pub fn set_agreement_waker(&mut self, number: u64, waker: Waker) {
        let agreeing = self.agreeing();
        let before = agreeing.wakers.iter_mut().find(|(n, _)| *n == number);
        let unused = match before {
            _ if agreeing.all.is_over(number) => Some(waker),
            Some((_, before)) => Some(std::mem::replace(before, waker)),
            None => {
                agreeing.wakers.push((number, waker));
                None
            }
        };
        self.port.owed.drop(unused.map(Foreign::Waker));
    }

    /// Pushes a number to a list when an agreement completes. False if it is complete already;
    /// nothing is pushed then.
    pub fn notify_of_agreement(&mut self, number: u64, ready: &Arc<Ready>, token: u64) -> bool {
        let agreeing = self.agreeing();
        if agreeing.all.is_over(number) {
            return false;
        }
        agreeing.ready.retain(|(n, _, _)| *n != number);
        agreeing.ready.push((number, ready.clone(), token));
        self.asked_for_agreement();
        true
    }

    /// The result of an agreement is not taken any more.
    pub fn give_up_agreement(&mut self, number: u64) {
        let agreeing = self.agreeing();
        agreeing.all.give_up(number);
        let waiting = agreeing.waiting.iter_mut().find(|w| w.number == number);
        if let Some(waiting) = waiting {
            waiting.given_up = true;
        }
        agreeing.ready.retain(|(n, _, _)| *n != number);
        let mut wakers = agreeing.wakers.extract_if(.., |(n, _)| *n == number);
        let waker = wakers.next().map(|(_, waker)| Foreign::Waker(waker));
        drop(wakers);
        self.port.owed.drop(waker);
    }

    /// Whether the result of an agreement can be taken.
    pub fn is_agreed(&mut self, number: u64) -> bool {
        self.agreeing().all.is_over(number)
    }

    /// The member that agreements wait for.
    pub(crate) fn awaited_for_agreement(&self) -> Option<u32> {
        self.agreeing
            .as_ref()
            .and_then(|agreeing| agreeing.all.awaits())
    }

    fn asked_for_agreement(&self) {
        if let Some(peer) = self.awaited_for_agreement().filter(|_| listens()) {
            hear(Asked {
                peer: Some(self.in_world(peer)),
                tag: WaitTag::Collective,
                context: self.port.context,
                ..Asked::of(Operation::Receive)
            });
        }
    }

    /// The result of an agreement, once, or nothing as long as it is not decided.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if all other ranks go on without this one.
    pub fn agreed(&mut self, number: u64) -> Option<Result<Value>> {
        let taken = self.agreeing().all.take(number);
        if taken.is_none() {
            self.asked_for_agreement();
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
        self.agreements_go_on();
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
        self.agreements_go_on();
    }
}
