//! The engine of one communicator on one rank.
//!
//! Single-threaded and never blocking: calls post operations, [`Lane::progress`]
//! moves them, [`Lane::take`] collects what has finished. The same code runs on
//! shared memory and on the simulated network.
//!
//! ```text
//! send     Starting -> Streaming -> Done          eager
//!                   -> AwaitAck  -> Done          eager, synchronous
//!          Starting -> Announced -> Streaming -> Done      GO
//!                                -> Done                   FINISH
//!          Streaming -> Withdrawn -> gone                  revoked, FINISH
//! receive  Posted -> Streaming -> Done
//!                 -> Pulling   -> Done
//! ```
//!
//! # Invariants
//! 1. Starts to one peer leave in the order in which they were posted;
//!    control messages and fragments may pass them.
//! 2. An operation finishes exactly once, and its memory is not touched
//!    afterwards.
//! 3. Every stream of a peer has exactly one target until its last byte.

use super::checked::{LaneCheck, OpCheck};
use super::lane_close::Left;
use super::lane_pull::{Pull, Push};
use super::lane_runs::{NO_RUN, Runs};
use super::links::Links;
use super::offers::{Layouts, Made, Remote};
use super::owed::{Foreign, Owed};
use super::pace::Pace;
use super::slab::Slab;
use super::staged::Stage;
#[cfg(debug_assertions)]
use super::steps::{self, Phase};
use super::traced::LaneTrace;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::device::Devices;
use crate::diagnose::waits::{hear, listens, resigns};
use crate::error::{Error, ErrorKind, Result};
use crate::matching::{Envelope, Pattern, PostedKey, PostedQueue, UnexpectedKey, UnexpectedQueue};
use crate::protocol::eager::{ReceiverCredit, SenderCredit};
use crate::protocol::select::Selection;
use crate::view::RawView;
use crate::wire;
use osier_transports::shm::Death;
use osier_transports::{AmHead, Incoming, PostError, RegionKey, TransportErrorKind};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

/// What a finished receive says about its message; bytes is the packed size
/// of what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub source: u32,
    pub tag: u32,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Streaming,
    Announced,
    AwaitAck,
    /// Revoked in the middle of a stream; the receiver is to answer.
    Withdrawn,
    Posted,
    Pulling,
    /// All bytes have come, and a device unpacks them.
    Draining,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

pub(super) struct Op {
    pub state: State,
    pub direction: Direction,
    pub view: RawView,
    /// Destination, or source once it is known.
    pub peer: u32,
    pub tag: u32,
    /// Bytes sent or received so far.
    pub moved: usize,
    /// Bytes of the whole message.
    pub total: usize,
    pub synchronous: bool,
    /// Its receive is said to be posted.
    pub ready: bool,
    /// Of a run that receives at the same time.
    pub crossing: bool,
    pub acked: bool,
    /// Nobody waits: free it when it is done.
    pub detached: bool,
    pub posted: Option<PostedKey>,
    pub pattern: Option<Pattern>,
    /// The run that it is a step of, and which; see `lane_runs`.
    pub run: u32,
    pub instance: u32,
    /// The user's line that posted it: every function on the way here from
    /// the public one is `#[track_caller]`.
    pub site: &'static Location<'static>,
    /// The message's number in a timeline, or 0.
    pub number: u32,
    /// What few operations need.
    pub rare: Option<Box<Rare>>,
}

#[derive(Default)]
pub(super) struct Rare {
    pub key: Option<RegionKey>,
    pub error: Option<Error>,
    pub waker: Option<Waker>,
    /// Where to leave which number at the end.
    pub notify: Option<(Arc<Ready>, u64)>,
    /// Memory that must live until the end.
    pub owner: Option<Box<dyn Any + Send>>,
    /// What is checked of it, until it gives its memory back.
    pub check: Option<Box<OpCheck>>,
    /// Its bytes between the host and a device.
    pub stage: Option<Stage>,
    /// Bytes up to which the receiver lets a send go; `None`: all.
    pub window: Option<usize>,
    /// What the receiver is told of a device's memory.
    pub offer: Option<Made>,
    /// Streams that wait for its end.
    pub holds: Vec<Hold>,
    /// A failing run gave it up, for this rank of the job.
    pub blame: Option<u32>,
}

impl Op {
    #[inline(always)]
    #[track_caller]
    pub fn new(direction: Direction, state: State, view: RawView, peer: u32, tag: u32) -> Self {
        Self {
            site: Location::caller(),
            state,
            direction,
            view,
            peer,
            tag,
            moved: 0,
            total: 0,
            synchronous: false,
            ready: false,
            crossing: false,
            acked: false,
            detached: false,
            posted: None,
            pattern: None,
            run: NO_RUN,
            instance: 0,
            number: 0,
            rare: None,
        }
    }

    pub fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Key of the exported memory.
    pub fn key(&self) -> Option<RegionKey> {
        self.rare.as_ref()?.key
    }

    /// It uses its memory no longer; the memory's owner is to go to [`Owed::drop`].
    #[must_use = "it is dropped without the lane"]
    pub fn forget_memory(&mut self) -> Option<Foreign> {
        self.view = RawView::empty();
        let rare = self.rare.as_mut()?;
        match &mut rare.stage {
            Some(Stage::Out(stage)) if stage.lends() => stage.stop(),
            stage => *stage = None,
        }
        rare.offer = None;
        rare.check = None;
        rare.holds.clear();
        rare.owner.take().map(Foreign::Value)
    }

    pub fn take_key(&mut self) -> Option<RegionKey> {
        self.rare.as_mut()?.key.take()
    }
}

/// A message that no receive has asked for.
pub(super) enum Arrival {
    Whole {
        data: Vec<u8>,
        ack: Option<u32>,
    },
    Stream {
        send: u32,
        total: usize,
        data: Vec<u8>,
        ack: bool,
    },
    Announced {
        send: u32,
        total: usize,
        offer: Offer,
    },
    /// In place of a message: its run has failed.
    Poison {
        culprit: u32,
    },
}

/// What a sender says of the memory that it announces.
#[derive(Debug)]
pub(super) struct Offer {
    pub key: Option<RegionKey>,
    pub on_device: bool,
    /// Its bytes were not valid yet: they wait for a stream of the user's.
    pub late: bool,
    /// Device memory that may be opened here.
    pub memory: Option<Box<Remote>>,
}

impl Arrival {
    pub fn bytes(&self) -> usize {
        match self {
            Arrival::Whole { data, .. } => data.len(),
            Arrival::Stream { total, .. } | Arrival::Announced { total, .. } => *total,
            Arrival::Poison { .. } => 0,
        }
    }
}

pub(super) struct Arrived {
    pub what: Arrival,
    /// Its place in the queue, unless a matched probe took it out.
    pub queued: Option<UnexpectedKey>,
    pub envelope: Envelope,
    /// Its number in a timeline, or 0.
    pub number: u32,
    /// What its sender told of it, if it is checked.
    pub told: Option<Box<wire::Told>>,
}

/// Where the fragments of a peer's send go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Op(u32),
    Arrival(u32),
    /// Bytes still to come that nobody wants.
    Discard(usize),
}

/// On lines of its own, as invariant 3 of the lane's cell asks.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct PeerState {
    pub sender: SenderCredit,
    pub receiver: ReceiverCredit,
    pub control: VecDeque<AmHead>,
    pub starts: VecDeque<u32>,
    pub streams: VecDeque<u32>,
    pub incoming: Vec<(u32, Target)>,
    /// Layouts of devices' memory that were told.
    pub layouts: Option<Box<Layouts>>,
    /// How it has ended.
    pub dead: Option<Death>,
    /// Its failure is known to the program: receives from any source go on without it.
    pub acknowledged: bool,
    /// It has left, and all that it sent was handled.
    pub left: Option<Left>,
    /// It was sent something, so that the transport learns when it closes.
    pub asked: bool,
    /// It is about to be.
    pub to_ask: bool,
    pub busy: bool,
    /// Starts wait, or are checked, or it is dead: nothing may be sent past
    /// them.
    pub blocked: bool,
}

impl PeerState {
    /// Whether it has ended without finalizing.
    pub fn has_failed(&self) -> bool {
        self.dead.is_some_and(Death::is_failure)
    }
}

/// Send mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Standard,
    Synchronous,
    /// As `Standard`; where somebody checks, the receive must be posted.
    Ready,
}

/// An operation that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is over already.
    Done(Outcome),
    /// Ask for it by this handle.
    Pending(u32),
}

/// A message taken out of the queue by a matched probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    pub arrival: u32,
    pub outcome: Outcome,
}

/// Counters that tests and `osier info` read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub malformed: u64,
    pub unexpected: u64,
    pub announced: u64,
    pub pulled: u64,
    /// Bytes of messages from or to devices that the host has copied, each time.
    pub copied: u64,
    /// Chunks that were handed over.
    pub handed: u64,
    /// Chunks that were handed over on the device.
    pub device_chunks: u64,
    /// Chunks that were copied from a linked device to the own one first.
    pub copied_first: u64,
    /// Ends of messages of devices that the processor has read or written itself.
    pub apertures: u64,
    /// Kernels that copied from a peer's device memory, or to it, and their bytes.
    pub kernels: u64,
    pub kernel_bytes: u64,
    /// Combinations of runs that kernels have made.
    pub combined: u64,
}

pub struct Lane {
    pub(super) links: Links,
    pub(super) own: u32,
    pub(super) posted: PostedQueue,
    pub(super) unexpected: UnexpectedQueue<u32>,
    pub(super) arrivals: Slab<Arrived>,
    pub(super) ops: Slab<Op>,
    pub(super) peers: Vec<PeerState>,
    pub(super) busy: Vec<u32>,
    pub(super) pulls: VecDeque<Pull>,
    pub(super) pushes: VecDeque<Push>,
    /// Receives whose bytes go to a device.
    pub(super) staged: Vec<u32>,
    pub(super) runs: Runs,
    pub(super) devices: Arc<Devices>,
    pub(super) selection: Arc<Selection>,
    pub(super) always_eager: usize,
    pub(super) counters: Counters,
    /// Peers that have ended; of these, those that have failed, and whose failure is not
    /// acknowledged.
    pub(super) dead_count: usize,
    pub(super) failed_count: usize,
    pub(super) unacknowledged: usize,
    /// Peers that have left.
    pub(super) left_count: usize,
    /// Foreign code that is to run without the lock.
    pub(super) owed: Owed,
    /// Something finished since the flag was last taken.
    pub finished: bool,
    /// Counts times at which anything moved.
    pub(super) moved: u64,
    /// Context of the communicator, and its members' ranks in the world, for
    /// reports.
    pub(super) context: u64,
    pub(super) members: Arc<[u32]>,
    /// How long a thread that waits here leaves the peer alone.
    pub pace: Pace,
    /// Nobody will receive here any more.
    pub(super) refusing: bool,
    /// The source that a thread probes for.
    pub probed: Option<u32>,
    /// How sends ended that nobody waited for, since the lane refuses.
    pub lost: Vec<Error>,
    spare: Vec<Vec<u8>>,
    /// Packed bytes of the short message that is posted next.
    pub(super) scratch: Vec<u8>,
    /// Which, while it is begun.
    pub(super) scratch_of: Option<u32>,
    #[expect(clippy::vec_box, reason = "boxes to be used again")]
    spare_rare: Vec<Box<Rare>>,
    idle_polls: u32,
    pub(super) trace: Option<Box<LaneTrace>>,
    pub(super) check: Option<Box<LaneCheck>>,
    /// Number of the message that is being handled, if somebody records.
    pub(super) handling: u32,
    /// The last thing done here was a send that left at once.
    just_sent: bool,
}

/// Set in the internal tags of partitioned transfers.
pub const PARTITIONED_TAG: u32 = 0x4000_0000;

/// Kept buffers of unexpected messages, and the largest of them.
const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES: usize = 4096;

/// Polls in vain after which a caller that never sleeps looks for peers that
/// have dropped the communicator.
pub(super) const IDLE_POLLS: u32 = 1024;

impl Lane {
    /// Protocols are chosen otherwise from now on. Any two ends understand each other,
    /// whatever either chooses by.
    pub fn use_selection(&mut self, selection: Arc<Selection>) {
        self.always_eager = whole_message(&selection, &self.links);
        self.selection = selection;
    }

    pub fn new(own: u32, size: usize, links: Links, selection: Arc<Selection>) -> Self {
        Self {
            always_eager: whole_message(&selection, &links),
            links,
            own,
            posted: PostedQueue::new(),
            unexpected: UnexpectedQueue::new(),
            arrivals: Slab::new(),
            ops: Slab::new(),
            peers: (0..size).map(|_| PeerState::default()).collect(),
            busy: Vec::new(),
            pulls: VecDeque::new(),
            pushes: VecDeque::new(),
            staged: Vec::new(),
            runs: Runs::default(),
            devices: Arc::default(),
            selection,
            counters: Counters::default(),
            dead_count: 0,
            failed_count: 0,
            unacknowledged: 0,
            left_count: 0,
            owed: Owed::default(),
            finished: false,
            moved: 0,
            context: 0,
            members: Arc::default(),
            pace: Pace::default(),
            refusing: false,
            probed: None,
            lost: Vec::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
            scratch_of: None,
            spare_rare: Vec::new(),
            idle_polls: 0,
            trace: None,
            check: None,
            handling: 0,
            just_sent: false,
        }
    }

    /// Says that a message has left at once.
    #[inline]
    pub(super) fn has_just_sent(&mut self) {
        self.just_sent = true;
    }

    /// Whether a message has left at once since this was last asked.
    #[inline]
    pub fn take_just_sent(&mut self) -> bool {
        std::mem::take(&mut self.just_sent)
    }

    /// Says whose lane it is, for reports.
    pub fn name(&mut self, context: u64, members: Arc<[u32]>) {
        self.context = context;
        self.members = members;
    }

    /// Says what the rank keeps of its devices.
    pub fn use_devices(&mut self, devices: Arc<Devices>) {
        self.devices = devices;
    }

    /// Tells a timeline of everything from here on; before the first message.
    pub fn record_to(&mut self, trace: Box<LaneTrace>) {
        self.trace = Some(trace);
    }

    /// Moves everything that can move now. True if anything did.
    pub fn progress(&mut self) -> bool {
        let mut any = false;
        // Bounded, so that a flood does not keep the caller from its own end.
        for _ in 0..64 {
            let Some(message) = &self.links.poll() else {
                break;
            };
            self.handle(message);
            any = true;
        }
        if !self.busy.is_empty() {
            any |= self.push();
        }
        if !self.pulls.is_empty() || !self.pushes.is_empty() {
            any |= self.advance_one_sided();
        }
        if !self.staged.is_empty() {
            any |= self.advance_staged();
        }
        if self.runs.work() {
            any |= self.advance_works();
        }
        if self.runs.have_events() {
            any |= self.advance_runs();
        }
        self.moved += u64::from(any);
        any
    }

    /// As [`Lane::progress`], for callers that ask again and again and never
    /// sleep: looks now and then for peers that have dropped the communicator.
    pub fn progress_awake(&mut self) {
        if self.progress() {
            return;
        }
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if self.idle_polls.is_multiple_of(IDLE_POLLS) {
            self.check_closed();
        }
    }

    /// Operations and messages under way that need this rank's progress.
    pub fn outstanding(&self) -> usize {
        self.ops.len() + self.busy.len() + self.pulls.len() + self.pushes.len() + self.runs.len()
    }

    /// Sends that the peers still need this rank for.
    pub fn unfinished_sends(&self) -> bool {
        !self.busy.is_empty()
            || self.runs.unfinished()
            || self.ops.handles().any(|h| {
                self.ops
                    .get(h)
                    .is_some_and(|op| op.direction == Direction::Send && op.state != State::Done)
            })
    }

    /// Whether runs are not over.
    pub fn has_runs(&self) -> bool {
        self.runs.unfinished()
    }

    /// Name of the transport to a peer.
    pub fn transport(&self, peer: u32) -> &'static str {
        self.links.transport(peer)
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        let mut c = self.counters;
        c.malformed += self.links.malformed();
        c
    }

    /// Posts a message of which nothing is checked, for tests. False: there is no room now.
    pub fn post_as_is(&mut self, peer: u32, head: AmHead, body: &[u8]) -> bool {
        let fill = |to: *mut u8| {
            // SAFETY: room for the body.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
        };
        !matches!(
            self.links.post_with(peer, head, body.len(), fill),
            Err(PostError::Full)
        )
    }

    /// Handles one message and gives it back to its endpoint.
    pub(super) fn handle(&mut self, message: &Incoming) {
        let (low, high) = wire::halves(message.head.arg);
        let peer = message.peer;
        if self.dead_count != 0 && self.peers[peer as usize].dead.is_some() {
            // It outlived its sender. What it belongs to has failed already,
            // and what it begins might never end.
            return self.links.release(message);
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Handles, message.head.kind);
        self.handling = self.trace_handled(peer, message.head.kind);
        let sound = match message.head.kind {
            wire::EAGER => self.on_eager(message, low, high),
            wire::FRAGMENT => self.on_fragment(message, low),
            wire::FIRST => self.on_first(message, low, high),
            wire::ANNOUNCE => self.on_announce(message, low, high),
            wire::GO => self.on_go(peer, low, message.head.aux),
            wire::FINISH => self.on_finish(peer, low, message.head.aux),
            wire::ACK => self.on_ack(peer, low),
            wire::CREDIT => self.peers[peer as usize].sender.give(u64::from(low)),
            wire::WITHDRAW => self.on_withdraw(peer, low, message.head.aux, high),
            wire::SHARE => self.on_share(message, low, high),
            wire::PUSHED => self.on_pushed(peer, low, message.head.aux != 0),
            wire::CHECK => self.on_check(message),
            wire::STAGE => self.on_stage(peer, low, message.head.aux),
            wire::CHUNK => self.on_chunk(message, low),
            wire::TAKEN => self.on_taken(peer, low, message.head.aux),
            wire::LAYOUT => self.on_layout(message, low),
            wire::POISON => self.on_poison(peer, low, high),
            wire::WANT => self.on_want(message, low, high),
            wire::WITHOUT => self.on_without(peer, low),
            wire::PLACE => self.on_place(message, low, high),
            wire::PLACED => self.on_placed(peer, low, message.head.aux),
            wire::READY => self.on_ready(peer, low, message.head.aux),
            _ => false,
        };
        if !sound {
            self.counters.malformed += 1;
        }
        self.links.release(message);
        #[cfg(debug_assertions)]
        steps::at(Phase::Handled, message.head.kind);
    }

    /// Ends an operation.
    pub(super) fn finish(&mut self, handle: u32, error: Option<Error>) {
        if self.check.is_some() {
            self.followed(handle);
        }
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        debug_assert_ne!(op.state, State::Done, "an operation finishes once");
        op.state = State::Done;
        self.finished = true;
        if error.is_some() {
            op.rare().error = error;
        }
        if let Some(rare) = &mut op.rare {
            rare.stage = None;
            rare.offer = None;
            rare.holds.clear();
            self.owed.wake(rare.waker.take());
            if let Some((ready, token)) = rare.notify.take() {
                ready.push(token);
            }
            if let Some(key) = rare.key.take() {
                self.links.unexport(&key);
            }
        }
        if op.run != NO_RUN {
            let (run, instance) = (op.run, op.instance);
            return self.run_event(run, instance, handle);
        }
        if op.detached {
            let error = self.free(handle);
            if self.refusing {
                self.lost.extend(error);
            }
        }
    }

    /// Result of an operation, once it is over; frees the handle. An error for a handle that
    /// was freed: two threads of a C program waited for one request.
    #[inline]
    pub fn take(&mut self, handle: u32) -> Option<Result<Outcome>> {
        let Some(op) = self.ops.get_mut(handle) else {
            return Some(Err(completed_elsewhere()));
        };
        if op.state != State::Done {
            if listens() {
                hear(self.asked(handle));
                if resigns() && self.resign(handle) {
                    return self.take(handle);
                }
            }
            return None;
        }
        let outcome = Outcome {
            source: op.peer,
            tag: op.tag,
            bytes: op.total,
        };
        let rare = op.rare.take();
        self.ops.discard(handle);
        let error = rare.and_then(|rare| self.recycle_rare(rare));
        Some(match error {
            Some(e) => Err(e),
            None => Ok(outcome),
        })
    }

    /// What few operations need, of one that lives.
    pub(super) fn rare(&mut self, handle: u32) -> Option<&mut Rare> {
        let op = self.ops.get_mut(handle)?;
        if op.rare.is_none() {
            op.rare = Some(self.spare_rare.pop().unwrap_or_default());
        }
        op.rare.as_deref_mut()
    }

    /// Keeps an ended operation's box for another; the error that was in it.
    fn recycle_rare(&mut self, mut rare: Box<Rare>) -> Option<Error> {
        let error = rare.error.take();
        self.owed.drop(rare.waker.take().map(Foreign::Waker));
        self.owed.drop(rare.owner.take().map(Foreign::Value));
        if self.spare_rare.len() < SPARE_BUFFERS {
            *rare = Rare::default();
            self.spare_rare.push(rare);
        }
        error
    }

    /// Frees an operation, whatever its state; the error that it had.
    pub(super) fn free(&mut self, handle: u32) -> Option<Error> {
        let rare = self.ops.remove(handle)?.rare?;
        self.recycle_rare(rare)
    }

    /// Whether foreign code waits for the lane's release.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owed.any()
    }

    /// Frees an operation that is over without an error. False if it is not.
    pub(super) fn succeeded(&mut self, handle: u32) -> bool {
        let done = self.ops.get(handle).is_some_and(|op| {
            op.state == State::Done && op.rare.as_ref().is_none_or(|rare| rare.error.is_none())
        });
        if done {
            self.free(handle);
        }
        done
    }

    /// Whether an operation is over; `take` will return its result.
    #[inline]
    pub fn is_done(&self, handle: u32) -> bool {
        self.ops
            .get(handle)
            .is_none_or(|op| op.state == State::Done)
    }

    /// Has a waker called when the operation is over. It was cloned without the lane: the
    /// clone is foreign code, too.
    pub fn set_waker(&mut self, handle: u32, waker: Waker) {
        let unused = match self.ops.get_mut(handle) {
            Some(op) => op.rare().waker.replace(waker),
            None => Some(waker),
        };
        self.owed.drop(unused.map(Foreign::Waker));
    }

    /// Has a number left in a list when the operation is over. False if it is
    /// over already; nothing is left then.
    pub fn notify(&mut self, handle: u32, ready: &Arc<Ready>, token: u64) -> bool {
        if resigns() && self.resign(handle) {
            return false;
        }
        match self.ops.get_mut(handle) {
            Some(op) if op.state != State::Done => {}
            _ => return false,
        }
        if let Some(rare) = self.rare(handle) {
            rare.notify = Some((ready.clone(), token));
        }
        if listens() {
            hear(self.asked(handle));
        }
        true
    }

    /// Earliest unexpected message that matches.
    pub fn probe(&mut self, pattern: Pattern) -> Option<Outcome> {
        let Some((_, envelope, arrival)) = self.unexpected.peek(pattern) else {
            self.probed_in_vain(pattern);
            return None;
        };
        let bytes = self.arrivals.get(*arrival)?.what.bytes();
        Some(Outcome {
            source: envelope.source,
            tag: envelope.tag,
            bytes,
        })
    }

    /// Takes the earliest unexpected message that matches out of the queue.
    pub fn matched_probe(&mut self, pattern: Pattern) -> Option<Matched> {
        let Some((envelope, arrival)) = self.unexpected.take(pattern) else {
            self.probed_in_vain(pattern);
            return None;
        };
        let arrived = self.arrivals.get_mut(arrival)?;
        arrived.queued = None;
        Some(Matched {
            arrival,
            outcome: Outcome {
                source: envelope.source,
                tag: envelope.tag,
                bytes: arrived.what.bytes(),
            },
        })
    }

    /// Queues a message without payload.
    pub(super) fn control(&mut self, peer: u32, head: AmHead) {
        let state = &mut self.peers[peer as usize];
        if state.dead.is_some() {
            return;
        }
        if state.control.is_empty() {
            match self.links.post_with(peer, head, 0, |_| {}) {
                Ok(()) => return,
                Err(PostError::Full) => {}
                // Its peer waits for it, so it must go once there is memory.
                Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::OutOfMemory => {}
                Err(PostError::Failed(_)) => return, // its death or close is noticed elsewhere
            }
        }
        state.control.push_back(head);
        self.mark_busy(peer);
    }

    pub(super) fn mark_busy(&mut self, peer: u32) {
        let state = &mut self.peers[peer as usize];
        if !state.busy {
            state.busy = true;
            self.busy.push(peer);
        }
    }

    /// Buffer for an unexpected message.
    pub(super) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        if bytes <= SPARE_BYTES
            && let Some(mut b) = self.spare.pop()
        {
            b.clear();
            return b;
        }
        Vec::with_capacity(bytes.max(64))
    }

    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && (1..=SPARE_BYTES).contains(&buffer.capacity()) {
            self.spare.push(buffer);
        }
    }

    /// What an operation is, for messages: "send to rank 3, tag 7 (8 bytes, shm)".
    pub fn describe(&self, handle: u32) -> String {
        let Some(op) = self.ops.get(handle) else {
            return "finished operation".into();
        };
        let bytes = op.view.bytes();
        match op.direction {
            Direction::Send => describe("send to", Some(op.peer), op.tag, bytes, &self.links),
            Direction::Receive => {
                let source = op.pattern.map_or(Some(op.peer), |p| p.source);
                let tag = match op.pattern.map(|p| p.tag) {
                    Some(crate::matching::TagPattern::Any) => None,
                    _ => Some(op.tag),
                };
                match tag {
                    Some(tag) => describe("receive from", source, tag, bytes, &self.links),
                    None => {
                        let who = source.map_or("any rank".into(), |s| format!("rank {s}"));
                        format!("receive from {who}, any tag ({bytes} bytes)")
                    }
                }
            }
        }
    }
}

#[cold]
fn completed_elsewhere() -> Error {
    Error::new(
        ErrorKind::Argument,
        "another thread has completed this request (hint: only one thread waits for a request)",
    )
}

/// Largest message that always goes at once and in one piece.
fn whole_message(selection: &Selection, links: &Links) -> usize {
    let most = links
        .capabilities()
        .map_or(usize::MAX, |c| c.max_payload_bytes)
        .min(selection.always_eager());
    let whole = |n: usize| n <= selection.costs().fragment_bytes(n);
    if whole(most) {
        return most;
    }
    let mut n = crate::protocol::cost::MIN_FRAGMENT_BYTES.min(most);
    while n * 2 <= most && whole(n * 2) {
        n *= 2;
    }
    n
}

pub(super) fn describe(
    what: &str,
    peer: Option<u32>,
    tag: u32,
    bytes: usize,
    links: &Links,
) -> String {
    let who = peer.map_or("any rank".into(), |p| format!("rank {p}"));
    let by = peer.map_or("any transport", |p| links.transport(p));
    if tag & crate::matching::INTERNAL_TAG != 0 {
        let how = if tag & PARTITIONED_TAG != 0 {
            "of a partitioned transfer"
        } else {
            "in a collective"
        };
        return format!("{what} {who} {how} ({bytes} bytes, {by})");
    }
    format!("{what} {who}, tag {tag} ({bytes} bytes, {by})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::TagPattern;
    use crate::progress::links::Remote;
    use crate::protocol::cost::LinkCosts;

    #[test]
    fn take_of_a_freed_operation_is_an_error() {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let mut lane = Lane::new(0, 1, Links::new(0, Remote::None), selection);
        let pattern = Pattern {
            source: Some(0),
            tag: TagPattern::Exact(7),
        };
        let posted = lane.irecv(RawView::empty(), pattern).expect("posted");
        let Posted::Pending(handle) = posted else {
            panic!("{posted:?}")
        };
        assert!(lane.take(handle).is_none());
        lane.free(handle);
        let taken = lane.take(handle).expect("an end").expect_err("an error");
        assert_eq!(taken.kind(), ErrorKind::Argument);
        // The next operation has the same slot, and another handle.
        let next = lane.irecv(RawView::empty(), pattern).expect("posted");
        assert_ne!(next, posted);
        assert!(lane.take(handle).is_some_and(|end| end.is_err()));
    }
}
