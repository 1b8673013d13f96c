//! Messages along the edges of task graphs: without matching, for the graph that has the lane.
//!
//! ```text
//! sender                          receiver
//! EDGE_RUN id, run             -> the id stands for this run in what follows
//! EDGE id:place, elements      -> the graph's slot; what does not fit comes in parts ([`parts`])
//! EDGE_LONG id:place, bytes    -> a receive into the slot, of a message that is sent with the
//!                                 id and place as its tag ([`long`])
//!                              <- EDGE_CREDIT id:place, messages; no more; or ASKED
//! EDGE_FAILED id:place, why    -> no more messages come on this branch
//! EDGE_ENDED place, run        -> the same, to a peer that has asked: its producer has ended
//! ```
//!
//! A place is a branch's place in the letter that one rank sent the other when the graph was
//! built. Several runs of a graph may be under way: each has an id at its sender, in the upper
//! bits of the place, so that a short message is one cell of the transport. What an id stands
//! for is said before the first message that has it. Messages of a run that has not begun here
//! are kept, those of one that has ended are dropped, and questions about it answered: all of its
//! tasks have ended.
//!
//! # Invariants
//! 1. Messages to a peer leave in the order in which they were posted, and parts of one follow
//!    each other.
//! 2. A peer sends no more messages of a run that has not begun here than it has credit for;
//!    no more than [`MOST_EARLY`] are kept, since a corrupted peer might send more.
//! 3. The room that a transport grants holds as many bytes as were asked for.
//! 4. An id is used for another run only when all that was sent with it has left.

mod long;
mod parts;

use super::lane::Lane;
use crate::wire;
use long::{Arriving, Sent};
use osier_transports::{AmHead, Incoming, PostError};
use parts::Parts;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A graph that runs on a lane. Its functions are called under the lane's lock: they run no
/// code of the user's.
pub trait EdgeSink: Send {
    /// Whether this thread may hand it messages; otherwise they wait for one that may.
    fn may_touch(&self) -> bool;
    /// Takes what is to be sent because of what came.
    fn take_posts(&mut self) -> Vec<Post>;
    /// Whether what came since this was asked fires tasks of a worker that polls.
    fn has_fired(&mut self) -> bool;
    /// A message has come. False: it is malformed.
    fn put(&mut self, peer: u32, place: u32, packed: &[u8]) -> bool;
    /// Where the packed bytes of a long message are to be written; valid until the sink is
    /// told that they are there, or is dropped. `None`: it is malformed.
    fn room(&mut self, peer: u32, place: u32, bytes: usize) -> Option<*mut u8>;
    /// A long message is in its room.
    fn arrived(&mut self, peer: u32, place: u32);
    /// A peer has read messages, or wants no more ([`NO_MORE`]). It asks whether the producer has
    /// ended ([`ASKED`]): that is also handed by threads that may not touch the run. False: it
    /// is malformed.
    fn credit(&mut self, peer: u32, place: u32, messages: u32) -> bool;
    /// No more messages come on a branch. False: it is malformed.
    fn failed(&mut self, peer: u32, place: u32, why: &str) -> bool;
    /// The producer of a branch has ended. False: it is malformed.
    fn ended(&mut self, peer: u32, place: u32) -> bool;
    /// A peer has failed, or has finalized or left the communicator (`orderly`).
    fn gone(&mut self, peer: u32, how: &str, orderly: bool);
}

/// Packed elements of a message, which stay where they are.
pub trait EdgeMemory: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// A message along an edge, to a peer.
pub struct Post {
    pub peer: u32,
    pub place: u32,
    pub what: What,
}

/// What a message along an edge is.
pub enum What {
    /// Packed elements.
    Elements(Arc<dyn EdgeMemory>),
    /// Messages that were read, or [`NO_MORE`].
    Credit(u32),
    /// Why no more come.
    Failed(String),
    /// The producer has ended.
    Ended,
}

/// A run of the graph that has a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeRun {
    /// Counted from 1, the same on all ranks.
    number: u32,
    /// Of this rank's messages.
    id: u8,
}

impl EdgeRun {
    /// Counted from 1, the same on all ranks.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// Credit of a peer whose tasks have all ended.
pub const NO_MORE: u32 = u32::MAX;
/// Credit that asks to be told of the producer's end.
pub const ASKED: u32 = u32::MAX - 1;
/// Bits of a branch's place; the id of the run lies above.
const PLACE_BITS: u32 = 26;
/// Most branches from one rank to another.
pub const MOST_PLACES: u32 = 1 << PLACE_BITS;
/// Most runs of a graph at once: id and place are a tag of the user's range.
pub const MOST_RUNS: usize = 1 << (31 - PLACE_BITS);
/// In the aux of EDGE_RUN: its sender takes no part in the run.
const ABANDONED: u16 = 256;
/// Polls of a worker that end at the first message which fires a task, or without one, between
/// two that look after everything the lane has.
const SHORT_TURNS: u32 = 16;
/// Most messages that are kept for a run that has not begun.
const MOST_EARLY: usize = 1 << 20;
/// Longest text of a failure.
const TEXT_BYTES: usize = 1000;

/// Peer, and id and place of a message.
pub(super) type At = (u32, u32);

/// The place of a message.
fn place_of((_, low): At) -> u32 {
    low & (MOST_PLACES - 1)
}

/// The id of a message.
fn id_of((_, low): At) -> u32 {
    low >> PLACE_BITS
}

/// Whether a message asks to be told of a producer's end.
fn is_question(kind: u8, payload: &[u8]) -> bool {
    kind == wire::EDGE_CREDIT && payload == ASKED.to_le_bytes()
}

/// A message that waits for room.
pub(crate) struct Kept {
    pub head: AmHead,
    pub payload: Box<[u8]>,
}

/// A message that waits for its run, or for a thread that may hand it to the run.
pub(super) enum Early {
    Message {
        kind: u8,
        at: At,
        payload: Vec<u8>,
    },
    Gone {
        peer: u32,
        how: String,
        orderly: bool,
    },
}

/// A run that was opened here and has not ended.
pub(super) struct Active {
    run: EdgeRun,
    /// Once it has begun.
    sink: Option<Box<dyn EdgeSink>>,
    /// By peer: it knows what the id stands for.
    told: Vec<bool>,
    /// What came before it began, or was polled by a thread that may not touch it.
    early: VecDeque<Early>,
    /// Messages that come in parts.
    parts: BTreeMap<At, Parts>,
}

/// What a lane keeps of the graph that has it.
#[derive(Default)]
pub(crate) struct Edges {
    /// The lane is a graph's.
    of_graph: bool,
    /// The number of the run that was opened last.
    opened: u32,
    active: Vec<Active>,
    /// By peer and id: the number of the run, or 0.
    heard: Vec<Option<Box<[u32; MOST_RUNS]>>>,
    /// Of runs that are not open here, by number.
    early: BTreeMap<u32, VecDeque<Early>>,
    /// Messages in `early`.
    kept: usize,
    /// Long messages that have not left.
    sent: Vec<Sent>,
    /// Long messages on their way here, by the number of their run.
    arriving: BTreeMap<(u32, At), Arriving>,
    /// Counts polls by workers; a message has fired a task of the one that polls.
    turns: u32,
    fired: bool,
    /// Runs that have ended with long messages on their way to their slots.
    closing: Vec<(u32, Box<dyn EdgeSink>)>,
}

impl Edges {
    fn of(&mut self, number: u32) -> Option<&mut Active> {
        self.active.iter_mut().find(|a| a.run.number == number)
    }

    fn has_arriving(&self, number: u32) -> bool {
        let mut arriving = self.arriving.keys();
        arriving.any(|(of, _)| *of == number)
    }

    fn position(&self, number: u32) -> Option<usize> {
        self.active.iter().position(|a| a.run.number == number)
    }
}

impl Lane {
    /// The lane is a graph's from now on: messages along edges may come. Others refuse them.
    pub fn becomes_graphs(&mut self) {
        self.edges.of_graph = true;
    }

    /// Opens the next run: what comes for it is kept until it begins. `None`: [`MOST_RUNS`]
    /// are open.
    pub fn open_edges(&mut self) -> Option<EdgeRun> {
        let edges = &mut self.edges;
        let used = |id: &u8| edges.active.iter().any(|a| a.run.id == *id);
        let id = (0..MOST_RUNS as u8).find(|id| !used(id))?;
        edges.opened = edges.opened.wrapping_add(1).max(1);
        let number = edges.opened;
        let early = edges.early.remove(&number).unwrap_or_default();
        edges.kept -= early.len();
        let run = EdgeRun { number, id };
        edges.active.push(Active {
            run,
            sink: None,
            told: vec![false; self.port.peers.len()],
            early,
            parts: BTreeMap::new(),
        });
        Some(run)
    }

    /// A run begins: its messages, those among them that have come, go to the sink.
    pub fn begin_edges(&mut self, run: EdgeRun, sink: Box<dyn EdgeSink>) {
        if let Some(active) = self.edges.of(run.number) {
            active.sink = Some(sink);
        }
        for peer in 0..self.port.peers.len() as u32 {
            self.edges_lost_of(run.number, peer);
        }
    }

    /// A run has ended, or does not begin: its messages are dropped from now on. What is
    /// returned is to be dropped without the lane.
    pub fn end_edges(&mut self, run: EdgeRun) -> Option<Box<dyn EdgeSink>> {
        let at = self.edges.active.iter().position(|a| a.run == run)?;
        let active = self.edges.active.swap_remove(at);
        for early in active.early {
            if let Early::Message { kind, at, payload } = early {
                if kind == wire::EDGE_LONG {
                    // Its sender waits for a receive.
                    self.refuse_long(at);
                }
                self.answer_for_ended(run.number, at, kind, &payload);
            }
        }
        let sink = active.sink?;
        if self.edges.has_arriving(run.number) {
            self.edges.closing.push((run.number, sink));
            return None;
        }
        Some(sink)
    }

    /// Tells the others that this rank takes no part in a run that it has opened.
    pub fn abandon_edges(&mut self, run: EdgeRun) {
        for peer in 0..self.port.peers.len() as u32 {
            let aux = u16::from(run.id) | ABANDONED;
            self.post_kept(peer, wire::head(wire::EDGE_RUN, aux, run.number, 0), &[]);
        }
        drop(self.end_edges(run));
    }

    /// Tells the runs that a peer has ended, if it has.
    pub(crate) fn edges_lost(&mut self, peer: u32) {
        for at in 0..self.edges.active.len() {
            let number = self.edges.active[at].run.number;
            self.edges_lost_of(number, peer);
        }
    }

    fn edges_lost_of(&mut self, number: u32, peer: u32) {
        let state = &self.port.peers[peer as usize];
        let (how, orderly) = match (state.dead, state.left) {
            (Some(how), _) => (how.to_string(), !how.is_failure()),
            (None, Some(_)) => ("has dropped the graph".into(), true),
            (None, None) => return,
        };
        if self.edges.of(number).is_some_and(|a| a.sink.is_some()) {
            // What it sent before was handled, but for long messages that have just arrived.
            if !self.edges.arriving.is_empty() {
                self.settle_arriving();
            }
            self.hand(number, Early::Gone { peer, how, orderly });
        }
    }

    // Sending.

    /// Posts credit for messages that were read, or [`NO_MORE`].
    pub fn post_edge_credit(&mut self, run: EdgeRun, peer: u32, place: u32, messages: u32) {
        let low = self.name_run(run, peer, place);
        let head = wire::head(wire::EDGE_CREDIT, 0, low, 0);
        self.post_kept(peer, head, &messages.to_le_bytes());
    }

    /// Posts that a branch will have no more messages.
    pub fn post_edge_failed(&mut self, run: EdgeRun, peer: u32, place: u32, why: &str) {
        let mut why = why;
        while why.len() > TEXT_BYTES {
            why = &why[..why.char_indices().last().map_or(0, |(at, _)| at)];
        }
        let low = self.name_run(run, peer, place);
        let head = wire::head(wire::EDGE_FAILED, 0, low, 0);
        self.post_kept(peer, head, why.as_bytes());
    }

    /// Posts that the producer of a branch has ended, to a peer that has asked; the run may
    /// have ended, too.
    pub fn post_edge_ended(&mut self, run: EdgeRun, peer: u32, place: u32) {
        self.post_ended(run.number, peer, place);
    }

    fn post_ended(&mut self, number: u32, peer: u32, place: u32) {
        let head = wire::head(wire::EDGE_ENDED, 0, place, 0);
        self.post_kept(peer, head, &number.to_le_bytes());
    }

    /// The low half of the argument of a run's message, of which the peer knows the id.
    #[inline]
    fn name_run(&mut self, run: EdgeRun, peer: u32, place: u32) -> u32 {
        let active = self.edges.active.iter().find(|a| a.run == run);
        if active.is_some_and(|a| !a.told[peer as usize]) {
            self.tell_run(run, peer);
        }
        u32::from(run.id) << PLACE_BITS | place
    }

    #[cold]
    fn tell_run(&mut self, run: EdgeRun, peer: u32) {
        let aux = run.id.into();
        self.post_kept(peer, wire::head(wire::EDGE_RUN, aux, run.number, 0), &[]);
        if let Some(active) = self.edges.of(run.number) {
            active.told[peer as usize] = true;
        }
    }

    /// As [`Lane::post_kept`], of two parts.
    pub(super) fn post_kept_parts(&mut self, peer: u32, head: AmHead, parts: [&[u8]; 2]) {
        let [front, rear] = parts;
        self.post_filled(peer, head, front.len() + rear.len(), |to| {
            // SAFETY: invariant 3: there is room for both.
            unsafe { std::ptr::copy_nonoverlapping(front.as_ptr(), to, front.len()) };
            let to = to.wrapping_add(front.len());
            // SAFETY: invariant 3: there is room for both.
            unsafe { std::ptr::copy_nonoverlapping(rear.as_ptr(), to, rear.len()) };
        });
    }

    /// Posts a message, or keeps it until there is room.
    #[inline]
    pub(super) fn post_kept(&mut self, peer: u32, head: AmHead, payload: &[u8]) {
        self.post_filled(peer, head, payload.len(), |to| {
            // SAFETY: invariant 3: there is room for the payload.
            unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) }
        });
    }

    /// As [`Lane::post_kept`], of as many bytes as `fill` writes where it is told.
    #[inline]
    pub(super) fn post_filled(
        &mut self,
        peer: u32,
        head: AmHead,
        bytes: usize,
        fill: impl Fn(*mut u8),
    ) {
        let state = &mut self.port.peers[peer as usize];
        if state.dead.is_some() {
            return;
        }
        if state.edges.is_empty() {
            match self.port.links.post_with(peer, head, bytes, &fill) {
                Ok(()) => return self.has_just_sent(),
                Err(PostError::Full) => {}
                // Its end is noticed elsewhere.
                Err(PostError::Failed(_)) => return,
            }
        }
        let mut payload = vec![0; bytes].into_boxed_slice();
        fill(payload.as_mut_ptr());
        let state = &mut self.port.peers[peer as usize];
        state.edges.push_back(Kept { head, payload });
        self.port.mark_busy(peer);
    }

    /// Whether all that a run has sent has left.
    pub fn edges_have_left(&mut self, run: EdgeRun) -> bool {
        self.settle_sent();
        self.port.busy.is_empty() && !self.edges.sent.iter().any(|sent| sent.is_of(run.number))
    }

    /// Posts what a run wants to be sent because of what came.
    #[inline]
    fn post_for_run(&mut self, at: usize) {
        let Active { run, sink, .. } = &mut self.edges.active[at];
        let run = *run;
        let posts = match sink {
            Some(sink) => {
                self.edges.fired |= sink.has_fired();
                sink.take_posts()
            }
            None => return,
        };
        for Post { peer, place, what } in posts {
            match what {
                What::Elements(memory) => self.post_edge_memory(run, peer, place, &memory),
                What::Credit(messages) => self.post_edge_credit(run, peer, place, messages),
                What::Failed(why) => self.post_edge_failed(run, peer, place, &why),
                What::Ended => self.post_edge_ended(run, peer, place),
            }
        }
    }

    // Receiving.

    /// As [`Lane::progress`], by a worker of a graph that has the lane.
    #[inline]
    pub fn progress_for_graph(&mut self) -> bool {
        let mut any = false;
        if !self.edges.sent.is_empty() {
            any |= self.settle_sent();
        }
        // Before what is kept, where the end of their sender may be.
        if !self.edges.arriving.is_empty() {
            any |= self.settle_arriving();
        }
        for at in 0..self.edges.active.len() {
            let active = &self.edges.active[at];
            let waits = !active.early.is_empty();
            if waits && active.sink.as_ref().is_some_and(|sink| sink.may_touch()) {
                self.hand_early(at);
            }
        }
        // A task that can run goes before everything else, but not for ever.
        self.edges.turns = self.edges.turns.wrapping_add(1);
        if self.port.busy.is_empty() && !self.edges.turns.is_multiple_of(SHORT_TURNS) {
            for _ in 0..SHORT_TURNS {
                let Some(message) = &self.port.links.poll() else {
                    return any;
                };
                self.handle(message);
                any = true;
                if self.edges.fired {
                    self.edges.fired = false;
                    return any;
                }
            }
        }
        self.edges.fired = false;
        self.progress() || any
    }

    /// Hands a run what has waited for it.
    #[cold]
    fn hand_early(&mut self, at: usize) {
        let number = self.edges.active[at].run.number;
        let mut early = std::mem::take(&mut self.edges.active[at].early);
        for early in early.drain(..) {
            let sound = self.hand(number, early);
            self.port.counters.malformed += u64::from(!sound);
        }
        // Kept for its memory.
        let now = &mut self.edges.active[at].early;
        if now.is_empty() {
            *now = early;
        }
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
        let (peer, head) = (message.peer, message.head);
        let (low, high) = wire::halves(head.arg);
        if !self.edges.of_graph || high != 0 {
            return false;
        }
        if head.kind == wire::EDGE_RUN {
            return self.on_edge_run(peer, head.aux, low);
        }
        let at = (peer, low);
        if head.kind == wire::EDGE_ENDED {
            return head.aux == 0 && self.on_edge_ended(at, payload);
        }
        let heard = self.edges.heard.get(peer as usize).and_then(Option::as_ref);
        let number = heard.and_then(|heard| heard.get(id_of(at) as usize));
        let number = number.copied().unwrap_or(0);
        if head.aux != 0 || number == 0 {
            return false;
        }
        let Some(run) = self.edges.position(number) else {
            return self.take_for_none(number, at, head.kind, payload);
        };
        let active = &self.edges.active[run];
        let may_touch = active.sink.as_ref().is_some_and(|sink| sink.may_touch());
        if !may_touch || !active.early.is_empty() {
            return self.keep_for(run, at, head.kind, payload);
        }
        self.take_edge(run, at, head.kind, payload)
    }

    /// What an id of a peer stands for.
    #[cold]
    fn on_edge_run(&mut self, peer: u32, aux: u16, number: u32) -> bool {
        let (id, flags) = (usize::from(aux & (ABANDONED - 1)), aux & !(ABANDONED - 1));
        if id >= MOST_RUNS || flags & !ABANDONED != 0 || number == 0 {
            return false;
        }
        if flags != 0 {
            let (how, orderly) = ("takes no part in this run".into(), true);
            return self.hand_or_keep(number, Early::Gone { peer, how, orderly });
        }
        let peers = self.port.peers.len();
        let heard = &mut self.edges.heard;
        heard.resize_with(peers, || None);
        let ids = heard[peer as usize].get_or_insert_with(|| Box::new([0; MOST_RUNS]));
        // By two ids two messages could be on their way to one slot.
        if (0..MOST_RUNS).any(|other| other != id && ids[other] == number) {
            return false;
        }
        ids[id] = number;
        true
    }

    /// The producer of a branch has ended; the message names the run by its number.
    #[cold]
    fn on_edge_ended(&mut self, at: At, payload: &[u8]) -> bool {
        let number = payload.try_into().map_or(0, u32::from_le_bytes);
        // What this rank has asked about was opened here.
        let ahead = number.wrapping_sub(self.edges.opened) as i32 > 0;
        if number == 0 || ahead || id_of(at) != 0 {
            return false;
        }
        let Some(run) = self.edges.position(number) else {
            return true;
        };
        let active = &self.edges.active[run];
        let may_touch = active.sink.as_ref().is_some_and(|sink| sink.may_touch());
        if !may_touch || !active.early.is_empty() {
            return self.keep_for(run, at, wire::EDGE_ENDED, payload);
        }
        self.take_edge(run, at, wire::EDGE_ENDED, payload)
    }

    /// Answers a question about a run that has ended here.
    fn answer_for_ended(&mut self, number: u32, at: At, kind: u8, payload: &[u8]) {
        if is_question(kind, payload) {
            self.post_ended(number, at.0, place_of(at));
        }
    }

    fn hand_or_keep(&mut self, number: u32, early: Early) -> bool {
        match self.edges.of(number) {
            Some(_) => self.hand(number, early),
            None => self.keep_early(number, early),
        }
    }

    /// A message of a run that is not open: not yet, or no more.
    #[cold]
    fn take_for_none(&mut self, number: u32, at: At, kind: u8, payload: &[u8]) -> bool {
        if (number.wrapping_sub(self.edges.opened) as i32) > 0 {
            let payload = payload.into();
            return self.keep_early(number, Early::Message { kind, at, payload });
        }
        if kind == wire::EDGE_LONG {
            self.refuse_long(at);
        }
        self.answer_for_ended(number, at, kind, payload);
        true
    }

    #[cold]
    fn keep_early(&mut self, number: u32, early: Early) -> bool {
        if (number.wrapping_sub(self.edges.opened) as i32) <= 0 {
            return true;
        }
        if self.edges.kept >= MOST_EARLY {
            return false;
        }
        self.edges.kept += 1;
        let of_run = self.edges.early.entry(number).or_default();
        of_run.push_back(early);
        true
    }

    /// Keeps a message for a run that has not begun, or for a thread that may touch it.
    #[cold]
    fn keep_for(&mut self, run: usize, at: At, kind: u8, payload: &[u8]) -> bool {
        let active = &mut self.edges.active[run];
        if active.sink.is_some() && is_question(kind, payload) {
            // Any thread may note it; the worker may be in a task for long.
            return self.take_edge(run, at, kind, payload);
        }
        if active.early.len() >= MOST_EARLY {
            return false;
        }
        let mut kept = self.buffer(payload.len());
        kept.extend_from_slice(payload);
        let active = &mut self.edges.active[run];
        active.early.push_back(Early::Message {
            kind,
            at,
            payload: kept,
        });
        // Its worker may sleep.
        self.port.finished = true;
        true
    }

    /// Hands something to an open run, or keeps it there.
    fn hand(&mut self, number: u32, early: Early) -> bool {
        let Some(run) = self.edges.position(number) else {
            return true;
        };
        let active = &mut self.edges.active[run];
        let touched = active.sink.as_mut().filter(|sink| sink.may_touch());
        let Some(sink) = touched.filter(|_| active.early.is_empty()) else {
            active.early.push_back(early);
            self.port.finished = true;
            return true;
        };
        match early {
            Early::Gone { peer, how, orderly } => {
                sink.gone(peer, &how, orderly);
                self.post_for_run(run);
                true
            }
            Early::Message { kind, at, payload } => {
                let sound = self.take_edge(run, at, kind, &payload);
                self.recycle(payload);
                sound
            }
        }
    }

    /// Hands a message to a run that has begun and may be touched.
    #[inline]
    fn take_edge(&mut self, run: usize, at: At, kind: u8, payload: &[u8]) -> bool {
        if !self.edges.arriving.is_empty()
            && kind != wire::EDGE_CREDIT
            && self.waits_behind_long(self.edges.active[run].run.number, at, kind, payload)
        {
            return true;
        }
        let Active { sink, parts, .. } = &mut self.edges.active[run];
        let Some(sink) = sink else {
            return true;
        };
        let (peer, place) = (at.0, place_of(at));
        let sound = match kind {
            wire::EDGE if !parts.is_empty() => return self.end_parts(run, at, payload),
            wire::EDGE => sink.put(peer, place, payload),
            wire::EDGE_FIRST => return self.begin_parts(run, at, payload),
            wire::EDGE_PART => return self.add_part(run, at, payload),
            wire::EDGE_CREDIT => {
                let messages = payload.try_into().map(u32::from_le_bytes);
                messages.is_ok_and(|messages| sink.credit(peer, place, messages))
            }
            wire::EDGE_FAILED => {
                let why = String::from_utf8_lossy(payload);
                sink.failed(peer, place, &why)
            }
            wire::EDGE_ENDED => sink.ended(peer, place),
            wire::EDGE_LONG if parts.contains_key(&at) => {
                self.refuse_long(at);
                return false;
            }
            wire::EDGE_LONG => return self.on_edge_long(run, at, payload),
            _ => return false,
        };
        self.post_for_run(run);
        sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::links::{Links, Remote};
    use crate::protocol::cost::LinkCosts;
    use crate::protocol::select::Selection;

    #[test]
    fn a_run_has_one_id_of_a_peer() {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let mut lane = Lane::new(0, 2, Links::new(0, Remote::None), selection);
        lane.becomes_graphs();
        assert!(lane.on_edge_run(1, 3, 1) && lane.on_edge_run(1, 4, 2));
        assert!(lane.on_edge_run(1, 3, 1), "said once more");
        assert!(!lane.on_edge_run(1, 5, 1), "by another id");
        assert!(lane.on_edge_run(1, 3, 7), "an id is used again");
    }
}
