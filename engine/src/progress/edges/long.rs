//! Long messages along edges: by the lane's protocols, from the memory that the producer gave
//! away to the slot.
//!
//! ```text
//! sender                            receiver
//! EDGE_LONG id:place, bytes      ->  a receive into the slot, tag id:place
//! a send, tag id:place           ->  the slot is full: the consumers are told
//! ```
//!
//! To a peer that shares no memory they go in parts: there would be more steps, each of which a busy
//! worker takes late.
//!
//! What comes on a branch behind a long message waits until that is there, another long one, too:
//! so those of a branch are received in the order in which they are announced and sent.
//!
//! # Invariants
//! 1. The memory of a send is held until the send has ended, the slot of a receive by its sink
//!    until the receive has.

use super::super::lane::Lane;
use super::super::op::{Mode, Outcome, Posted};
use super::{At, EdgeMemory, EdgeRun, Edges, MOST_EARLY, place_of};
use crate::exec::foreign::Foreign;
use crate::matching::Pattern;
use crate::view::RawView;
use crate::wire;
use std::collections::VecDeque;
use std::sync::Arc;

/// A long message that has not left.
pub(super) struct Sent {
    number: u32,
    handle: u32,
    /// Held for the send (invariant 1).
    _memory: Arc<dyn EdgeMemory>,
}

impl Sent {
    pub fn is_of(&self, number: u32) -> bool {
        self.number == number
    }
}

/// A long message on its way.
pub(super) struct Arriving {
    handle: u32,
    bytes: usize,
    /// What has come behind it.
    behind: VecDeque<(u8, Box<[u8]>)>,
}

impl Edges {
    /// As a long message of this branch that arrives is named, if there is one: of a place
    /// without an id.
    fn named_by_id(&self, number: u32, (peer, place): At) -> At {
        let of_peer = (number, (peer, 0))..=(number, (peer, u32::MAX));
        let mut arriving = self.arriving.range(of_peer).map(|((_, at), _)| *at);
        let same = arriving.find(|at| place_of(*at) == place);
        same.unwrap_or((peer, place))
    }
}

impl Lane {
    /// Posts packed elements that stay where they are: a copy if they are few.
    pub fn post_edge_memory(
        &mut self,
        run: EdgeRun,
        peer: u32,
        place: u32,
        memory: &Arc<dyn EdgeMemory>,
    ) {
        let bytes = memory.bytes();
        let sharing = self.port.links.sharing(peer);
        // A message with credit has a slot at its receiver. A peer that cannot read this memory gets
        // fragments without a handshake, each step of which would wait for a task to end.
        let is_read = sharing.process || sharing.host_memory;
        if !is_read || bytes.len() <= self.most_copied_of_edges(peer) {
            return self.post_edge(run, peer, place, bytes);
        }
        if self.port.peers[peer as usize].dead.is_some() {
            return;
        }
        let low = self.name_run(run, peer, place);
        let total = (bytes.len() as u64).to_le_bytes();
        self.post_kept(peer, wire::head(wire::EDGE_LONG, 0, low, 0), &total);
        let view = RawView::untyped(bytes.as_ptr().cast_mut(), bytes.len());
        // What keeps it from being sent is that the peer has ended, which its branches are told.
        if let Ok(Posted::Pending(handle)) = self.isend(view, peer, low, Mode::Standard) {
            self.edges.sent.push(Sent {
                number: run.number,
                handle,
                _memory: memory.clone(),
            });
        }
    }

    /// Forgets the sends that have ended. True if any has.
    #[cold]
    pub(super) fn settle_sent(&mut self) -> bool {
        let before = self.edges.sent.len();
        let mut at = 0;
        while at < self.edges.sent.len() {
            match self.take(self.edges.sent[at].handle) {
                Some(_) => drop(self.edges.sent.swap_remove(at)),
                None => at += 1,
            }
        }
        self.edges.sent.len() < before
    }

    /// A long message is announced, to a run that may be touched.
    #[cold]
    pub(super) fn on_edge_long(&mut self, run: usize, at: At, payload: &[u8]) -> bool {
        let bytes = payload.try_into().map(u64::from_le_bytes);
        let bytes = bytes.ok().and_then(|bytes| usize::try_from(bytes).ok());
        let sink = self.edges.active[run].sink.as_mut();
        let room = sink.zip(bytes).and_then(|(sink, bytes)| {
            let room = sink.room(at.0, place_of(at), bytes)?;
            Some(RawView::untyped(room, bytes))
        });
        let Some(view) = room else {
            self.refuse_long(at);
            return false;
        };
        let bytes = view.bytes();
        // Not by `irecv`, which would poll: this is a message that is being handled.
        match self.post(view, Pattern::exact(at.0, at.1)) {
            Ok(Posted::Done(outcome)) => self.has_arrived(run, at, is_whole(&outcome, bytes)),
            Ok(Posted::Pending(handle)) => {
                let arriving = Arriving {
                    handle,
                    bytes,
                    behind: VecDeque::new(),
                };
                let number = self.edges.active[run].run.number;
                self.edges.arriving.insert((number, at), arriving);
            }
            Err(e) => self.has_arrived(run, at, Err(e.to_string())),
        }
        true
    }

    /// Receives a long message that nobody wants.
    #[cold]
    pub(super) fn refuse_long(&mut self, at: At) {
        let posted = self.post(RawView::empty(), Pattern::exact(at.0, at.1));
        if let Ok(Posted::Pending(handle)) = posted
            && let Some(op) = self.port.ops.get_mut(handle)
        {
            op.detached = true;
        }
    }

    /// Keeps what comes on a branch behind a long message. False: there is none.
    #[cold]
    pub(super) fn waits_behind_long(
        &mut self,
        number: u32,
        at: At,
        kind: u8,
        payload: &[u8],
    ) -> bool {
        let at = match kind {
            wire::EDGE_ENDED => self.edges.named_by_id(number, at),
            _ => at,
        };
        match self.edges.arriving.get_mut(&(number, at)) {
            Some(arriving) if arriving.behind.len() < MOST_EARLY => {
                arriving.behind.push_back((kind, payload.into()));
                true
            }
            Some(_) => true,
            None => false,
        }
    }

    /// A long message is in its slot, or why it is not.
    fn has_arrived(&mut self, run: usize, at: At, ended: Result<(), String>) {
        let (peer, place) = (at.0, place_of(at));
        if let Some(sink) = &mut self.edges.active[run].sink {
            match ended {
                Ok(()) => sink.arrived(peer, place),
                Err(why) => {
                    let why = format!("a message of rank {peer} was cut short: {why}");
                    let _ = sink.failed(peer, place, &why);
                }
            }
        }
        self.post_for_run(run);
    }

    /// Tells the runs of the messages that have arrived. True if any has.
    #[cold]
    pub(super) fn settle_arriving(&mut self) -> bool {
        let edges = &self.edges;
        let may_touch = |number| {
            let run = edges.position(number);
            let sink = run.and_then(|run| edges.active[run].sink.as_ref());
            sink.is_none_or(|sink| sink.may_touch())
        };
        let arriving = edges.arriving.iter();
        let ended = arriving.filter(|((of, _), a)| self.port.is_done(a.handle) && may_touch(*of));
        let ended: Vec<(u32, At)> = ended.map(|(at, _)| *at).collect();
        for (number, at) in &ended {
            if let Some(arriving) = self.edges.arriving.remove(&(*number, *at)) {
                self.end_arriving(*number, *at, arriving);
            }
        }
        !ended.is_empty()
    }

    fn end_arriving(&mut self, number: u32, at: At, arriving: Arriving) {
        let ended = match self.take(arriving.handle) {
            Some(Ok(outcome)) => is_whole(&outcome, arriving.bytes),
            Some(Err(e)) => Err(e.to_string()),
            None => Err("its receive has not ended".into()),
        };
        let whole = ended.is_ok();
        let Some(run) = self.edges.position(number) else {
            for (kind, _) in arriving.behind {
                if kind == wire::EDGE_LONG {
                    self.refuse_long(at);
                }
            }
            return self.release_closing(number);
        };
        self.has_arrived(run, at, ended);
        for (kind, payload) in arriving.behind {
            if !whole {
                // The branch has failed: what came behind is not the next message.
                if kind == wire::EDGE_LONG {
                    self.refuse_long(at);
                }
                continue;
            }
            let sound = self.take_edge(run, at, kind, &payload);
            self.port.counters.malformed += u64::from(!sound);
        }
    }

    /// A run that has ended is dropped once nothing arrives for it, behind the lane's lock.
    fn release_closing(&mut self, number: u32) {
        if self.edges.has_arriving(number) {
            return;
        }
        let closing = &mut self.edges.closing;
        if let Some(at) = closing.iter().position(|(of, _)| *of == number) {
            let (_, sink) = closing.swap_remove(at);
            self.port.owed.drop(Some(Foreign::Value(Box::new(sink))));
        }
    }
}

/// Whether all bytes of a message have come.
fn is_whole(outcome: &Outcome, bytes: usize) -> Result<(), String> {
    match outcome.bytes == bytes {
        true => Ok(()),
        false => Err(format!("{} of {bytes} bytes", outcome.bytes)),
    }
}
