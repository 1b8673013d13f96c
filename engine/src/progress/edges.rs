//! Messages along the edges of task graphs: without matching, for the graph that has the lane.
//!
//! ```text
//! sender                         receiver
//! EDGE place, packed elements ->  the graph's slot; what does not fit comes in parts
//!                             <-  EDGE_CREDIT place, messages; no more; or ASKED
//! EDGE_FAILED place, why      ->  no more messages come on this branch
//! EDGE_FAILED place, 1        ->  the same, to a peer that has asked: its producer has ended
//! ```
//!
//! A place is a branch's place in the letter that one rank sent the other when the graph was
//! built. Messages carry the number of the run: those of a run that has not begun here are
//! kept, those of an earlier one are dropped, and questions about it answered: all of its tasks have
//! ended.
//!
//! # Invariants
//! 1. Messages to a peer leave in the order in which they were posted, and parts of one follow
//!    each other.
//! 2. A peer sends no more messages of a run that has not begun here than it has credit for;
//!    no more than [`MOST_EARLY`] are kept, since a corrupted peer might send more.
//! 3. The room that a transport grants holds as many bytes as were asked for.

use super::lane::Lane;
use crate::wire;
use osier_transports::{AmHead, Incoming, PostError};
use std::collections::{BTreeMap, VecDeque};

/// A graph that runs on a lane. Its functions are called under the lane's lock: they run no
/// code of the user's.
pub trait EdgeSink: Send {
    /// Takes what is to be sent because of what came.
    fn take_posts(&mut self) -> Vec<Post>;
    /// A worker of the graph polls: handles what other threads have left it. Returns how many
    /// of these messages were malformed.
    fn settle(&mut self) -> u64;
    /// Whether a peer has a branch of this place.
    fn has_branch(&self, peer: u32, place: u32) -> bool;
    /// A message has come. False: it is malformed.
    fn put(&mut self, peer: u32, place: u32, packed: &[u8]) -> bool;
    /// A peer has read messages, wants no more ([`NO_MORE`]), or asks whether the producer has
    /// ended ([`ASKED`]). False: it is malformed.
    fn credit(&mut self, peer: u32, place: u32, messages: u32) -> bool;
    /// No more messages come on a branch. False: it is malformed.
    fn failed(&mut self, peer: u32, place: u32, why: &str) -> bool;
    /// The producer of a branch has ended. False: it is malformed.
    fn ended(&mut self, peer: u32, place: u32) -> bool;
    /// A peer has failed, or has finalized or left the communicator (`orderly`).
    fn gone(&mut self, peer: u32, how: &str, orderly: bool);
}

/// A message along an edge, to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    pub peer: u32,
    pub place: u32,
    pub what: What,
}

/// What a message along an edge is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Packed elements.
    Elements(Vec<u8>),
    /// Messages that were read, or [`NO_MORE`].
    Credit(u32),
    /// Why no more come.
    Failed(String),
    /// The producer has ended.
    Ended,
}

/// Credit of a peer whose tasks have all ended.
pub const NO_MORE: u32 = u32::MAX;
/// Credit that asks to be told of the producer's end.
pub const ASKED: u32 = u32::MAX - 1;
/// Most messages that are kept for a run that has not begun.
const MOST_EARLY: usize = 1 << 20;
/// Longest text of a failure.
const TEXT_BYTES: usize = 1000;

/// A message that waits for room.
pub(crate) struct Kept {
    pub head: AmHead,
    pub payload: Box<[u8]>,
}

/// A message of a run that has not begun here.
struct Early {
    peer: u32,
    head: AmHead,
    payload: Box<[u8]>,
}

/// What a lane keeps of the graph that has it.
#[derive(Default)]
pub(crate) struct Edges {
    /// The lane is a graph's.
    of_graph: bool,
    /// The number of the run, counted from 1, and who takes its messages.
    run: u16,
    sink: Option<Box<dyn EdgeSink>>,
    early: VecDeque<Early>,
    /// By peer and place: the parts of a message that have come.
    parts: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Lane {
    /// The lane is a graph's from now on: messages along edges may come. Others refuse them.
    pub fn becomes_graphs(&mut self) {
        self.edges.of_graph = true;
    }

    /// A run begins: its messages, those among them that have come, go to the sink.
    pub fn begin_edges(&mut self, run: u16, sink: Box<dyn EdgeSink>) {
        self.edges.run = run;
        self.edges.sink = Some(sink);
        self.edges.parts.clear();
        for message in std::mem::take(&mut self.edges.early) {
            let sound = self.take_edge(message.peer, message.head, &message.payload);
            self.port.counters.malformed += u64::from(!sound);
        }
        for peer in 0..self.port.peers.len() as u32 {
            self.edges_lost(peer);
        }
    }

    /// A run has ended: its messages are dropped from now on.
    pub fn end_edges(&mut self) -> Option<Box<dyn EdgeSink>> {
        self.edges.parts.clear();
        self.edges.sink.take()
    }

    /// Tells the graph that a peer is gone, if it is.
    pub(crate) fn edges_lost(&mut self, peer: u32) {
        let state = &self.port.peers[peer as usize];
        let (how, orderly) = match (state.dead, state.left) {
            (Some(how), _) => (how.to_string(), !how.is_failure()),
            (None, Some(_)) => ("has dropped the graph".into(), true),
            (None, None) => return,
        };
        // What it sent before was handled.
        if let Some(sink) = &mut self.edges.sink {
            sink.gone(peer, &how, orderly);
            self.post_for_sink();
        }
    }

    /// Posts a message of an edge, in parts if it is long, or keeps it until there is room.
    pub fn post_edge(&mut self, run: u16, peer: u32, place: u32, packed: &[u8]) {
        let most = self.port.links.max_payload(peer).max(1);
        let mut rest = packed;
        while rest.len() > most {
            let (part, more) = rest.split_at(most);
            self.post_kept(peer, wire::head(wire::EDGE_PART, run, place, 0), part);
            rest = more;
        }
        self.post_kept(peer, wire::head(wire::EDGE, run, place, 0), rest);
    }

    /// Posts credit for messages that were read, or [`NO_MORE`].
    pub fn post_edge_credit(&mut self, run: u16, peer: u32, place: u32, messages: u32) {
        let head = wire::head(wire::EDGE_CREDIT, run, place, messages);
        self.post_kept(peer, head, &[]);
    }

    /// Posts that a branch will have no more messages.
    pub fn post_edge_failed(&mut self, run: u16, peer: u32, place: u32, why: &str) {
        let mut why = why;
        while why.len() > TEXT_BYTES {
            why = &why[..why.char_indices().last().map_or(0, |(at, _)| at)];
        }
        let head = wire::head(wire::EDGE_FAILED, run, place, 0);
        self.post_kept(peer, head, why.as_bytes());
    }

    /// Posts that the producer of a branch has ended, to a peer that has asked.
    pub fn post_edge_ended(&mut self, run: u16, peer: u32, place: u32) {
        self.post_kept(peer, wire::head(wire::EDGE_FAILED, run, place, 1), &[]);
    }

    #[inline]
    fn post_kept(&mut self, peer: u32, head: AmHead, payload: &[u8]) {
        let state = &mut self.port.peers[peer as usize];
        if state.dead.is_some() {
            return;
        }
        if state.edges.is_empty() {
            let fill = |to: *mut u8| {
                // SAFETY: invariant 3: there is room for the payload.
                unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) }
            };
            match self.port.links.post_with(peer, head, payload.len(), fill) {
                Ok(()) => return self.has_just_sent(),
                Err(PostError::Full) => {}
                // Its end is noticed elsewhere.
                Err(PostError::Failed(_)) => return,
            }
        }
        let state = &mut self.port.peers[peer as usize];
        state.edges.push_back(Kept {
            head,
            payload: payload.into(),
        });
        self.port.mark_busy(peer);
    }

    /// As [`Lane::progress`], by a worker of the graph that has the lane.
    #[inline]
    pub fn progress_for_graph(&mut self) -> bool {
        if let Some(sink) = &mut self.edges.sink {
            self.port.counters.malformed += sink.settle();
            self.post_for_sink();
        }
        self.progress()
    }

    /// Handles a message of an edge.
    #[inline]
    pub(crate) fn on_edge(&mut self, message: &Incoming) -> bool {
        let (at, bytes) = (message.payload.as_ptr(), message.payload.len());
        let payload: &[u8] = match bytes {
            0 => &[],
            // SAFETY: invariant 1 of `protocols`: not released yet.
            _ => unsafe { std::slice::from_raw_parts(at, bytes) },
        };
        self.take_edge(message.peer, message.head, payload)
    }

    /// Posts what the sink wants to be sent.
    #[inline]
    fn post_for_sink(&mut self) {
        let posts = match &mut self.edges.sink {
            Some(sink) => sink.take_posts(),
            None => return,
        };
        let run = self.edges.run;
        for Post { peer, place, what } in posts {
            match what {
                What::Elements(packed) => self.post_edge(run, peer, place, &packed),
                What::Credit(messages) => self.post_edge_credit(run, peer, place, messages),
                What::Failed(why) => self.post_edge_failed(run, peer, place, &why),
                What::Ended => self.post_edge_ended(run, peer, place),
            }
        }
    }

    #[inline]
    fn take_edge(&mut self, peer: u32, head: AmHead, payload: &[u8]) -> bool {
        if !self.edges.of_graph {
            return false;
        }
        let ahead = head.aux.wrapping_sub(self.edges.run) as i16;
        let sink = match &mut self.edges.sink {
            Some(sink) if ahead == 0 => sink,
            _ if ahead <= 0 => return self.answer_for_ended(peer, head),
            _ => return self.keep_early(peer, head, payload),
        };
        let (place, high) = wire::halves(head.arg);
        let sound = match head.kind {
            wire::EDGE if !self.edges.parts.is_empty() => self.take_last_part(peer, place, payload),
            wire::EDGE => sink.put(peer, place, payload),
            wire::EDGE_CREDIT => sink.credit(peer, place, high),
            wire::EDGE_FAILED if high == 1 => sink.ended(peer, place),
            wire::EDGE_FAILED => {
                let why = String::from_utf8_lossy(payload);
                sink.failed(peer, place, &why)
            }
            _ => {
                let known = sink.has_branch(peer, place);
                if known {
                    let parts = self.edges.parts.entry((peer, place)).or_default();
                    parts.extend_from_slice(payload);
                }
                known
            }
        };
        self.post_for_sink();
        sound
    }

    /// A message of a run that has ended here.
    #[cold]
    fn answer_for_ended(&mut self, peer: u32, head: AmHead) -> bool {
        let (place, messages) = wire::halves(head.arg);
        if head.kind == wire::EDGE_CREDIT && messages == ASKED {
            self.post_edge_ended(head.aux, peer, place);
        }
        true
    }

    #[cold]
    fn take_last_part(&mut self, peer: u32, place: u32, payload: &[u8]) -> bool {
        let Edges { sink, parts, .. } = &mut self.edges;
        let Some(sink) = sink else {
            return true;
        };
        match parts.remove(&(peer, place)) {
            None => sink.put(peer, place, payload),
            Some(mut whole) => {
                whole.extend_from_slice(payload);
                sink.put(peer, place, &whole)
            }
        }
    }

    #[cold]
    fn keep_early(&mut self, peer: u32, head: AmHead, payload: &[u8]) -> bool {
        if self.edges.early.len() >= MOST_EARLY {
            return false;
        }
        self.edges.early.push_back(Early {
            peer,
            head,
            payload: payload.into(),
        });
        true
    }
}
