//! Port: what the protocols of a lane share.
//!
//! A protocol owns its states and transitions. It reaches operations, links, peers, devices,
//! counters and the choice by costs through this, and nothing else of the lane: neither the
//! queues of matching, nor runs, nor other protocols' states.

use super::access::Accesses;
use super::checked::LaneCheck;
use super::closing::Left;
use super::failures::ended_over;
use super::in_segment::{CallsOfPersistent, SegmentCalls};
use super::lane::{PARTITIONED_TAG, SPARE_BUFFERS};
use super::links::Links;
use super::op::{Exposed, Mode, Op, Protocol, Rare};
use super::owed::Owed;
use super::peer::{Peers, Target};
use super::protocols::host_staged;
use super::traced::LaneTrace;
use crate::device::Devices;
use crate::error::{Error, ErrorKind};
use crate::exec::executor::{NO_RUN, NOBODY, StepEnd};
use crate::exec::foreign::Foreign;
use crate::matching::{Pattern, TagPattern};
use crate::protocol::select::{Rules, Selection};
use crate::slab::Slab;
use crate::wire;
use osier_kernels::DeviceError;
use osier_transports::Death;
use osier_transports::{AmHead, PostError, TransportErrorKind};
use std::collections::VecDeque;
use std::sync::Arc;

/// Counters that tests and `osier info` read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub malformed: u64,
    pub unexpected: u64,
    pub announced: u64,
    pub pulled: u64,
    /// Bytes of messages from or to devices that the host has copied, each time.
    pub copied: u64,
    /// Slots that were handed over.
    pub handed: u64,
    /// Slots that were handed over on the device.
    pub device_slots: u64,
    /// Slots that were copied from a linked device to the own one first.
    pub copied_first: u64,
    /// Ends of messages of devices that the processor has read or written itself.
    pub bar1_windows: u64,
    /// Kernels that copied from a peer's device memory, or to it, and their bytes.
    pub kernels: u64,
    pub kernel_bytes: u64,
    /// Combinations of runs that kernels have made.
    pub combined: u64,
    /// Bytes that calls whose steps the host takes have had copied from devices or to them.
    pub crossed: u64,
}

/// What the protocols of a lane share; see [`super::port`].
pub struct Port {
    pub(crate) links: Links,
    pub(crate) own: u32,
    pub(crate) ops: Slab<Op>,
    pub(crate) peers: Peers,
    pub(crate) busy: Vec<u32>,
    /// Operations of which an end is a device's.
    pub(crate) staged: Vec<u32>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) counters: Counters,
    /// Peers that have left.
    pub(crate) left_count: usize,
    /// Foreign code that is to run without the lock.
    pub(crate) owed: Owed,
    /// Ends of operations of runs that are not delivered to these.
    pub(crate) ended: VecDeque<StepEnd>,
    /// Who is to blame for the error that is being returned.
    pub(crate) failed_rank: u32,
    /// Something finished since the flag was last taken.
    pub finished: bool,
    /// Context of the communicator, and its members' ranks in the world, for
    /// reports.
    pub(crate) context: u64,
    pub(crate) members: Arc<[u32]>,
    /// A member has revoked the communicator.
    pub(crate) is_revoked: bool,
    /// Nobody will receive here any more.
    pub(crate) refusing: bool,
    /// Errors of sends without a waiting caller, since the lane refuses.
    pub lost: Vec<Error>,
    /// Packed bytes of the short message that is posted next.
    pub(crate) scratch: Vec<u8>,
    /// Which, while it is begun.
    pub(crate) scratch_of: Option<u32>,
    #[expect(clippy::vec_box, reason = "boxes to be used again")]
    pub(crate) spare_rare: Vec<Box<Rare>>,
    pub(crate) trace: Option<Box<LaneTrace>>,
    pub(crate) check: Option<Box<LaneCheck>>,
    /// Number of the message that is being handled, where a trace records.
    pub(crate) handling: u32,
    /// Calls in the segment that the ranks share.
    pub(crate) in_segment: SegmentCalls,
    /// The same of persistent calls, each in its own.
    pub(crate) of_persistent: CallsOfPersistent,
    /// Peers that this rank sends to in calls of neighbors, each once.
    pub(crate) sends_to: Box<[u32]>,
    /// Of a window.
    pub(crate) accesses: Accesses,
}

impl Port {
    pub(crate) fn new(own: u32, size: usize, links: Links, selection: Arc<Selection>) -> Self {
        Self {
            own,
            ops: Slab::new(),
            peers: Peers::new(own, size, &links, &selection),
            links,
            busy: Vec::new(),
            staged: Vec::new(),
            devices: Arc::default(),
            counters: Counters::default(),
            left_count: 0,
            owed: Owed::default(),
            ended: VecDeque::new(),
            failed_rank: NOBODY,
            finished: false,
            context: 0,
            members: Arc::default(),
            is_revoked: false,
            refusing: false,
            lost: Vec::new(),
            scratch: Vec::new(),
            scratch_of: None,
            spare_rare: Vec::new(),
            trace: None,
            check: None,
            handling: 0,
            in_segment: SegmentCalls::default(),
            of_persistent: CallsOfPersistent::default(),
            sends_to: Box::default(),
            accesses: Accesses::default(),
        }
    }
}

impl Port {
    /// Ends an operation.
    pub(crate) fn finish(&mut self, handle: u32, error: Option<Error>) {
        if self.check.is_some() {
            self.followed(handle);
        }
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        debug_assert!(!op.is_done(), "an operation finishes once");
        let met = !matches!(op.protocol, Protocol::Posted(Some(_)));
        op.protocol = Protocol::Done { met };
        self.finished = true;
        if error.is_some() {
            op.rare().error = error;
        }
        if let Some(rare) = &mut op.rare {
            rare.bounce = None;
            rare.holds.clear();
            self.owed.wake(rare.waker.take());
            if let Some((ready, token)) = rare.notify.take() {
                ready.push(token);
            }
            if let Some(Exposed::Host(key)) = rare.exposed.take() {
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

    /// What few operations need, of one that lives.
    pub(crate) fn rare(&mut self, handle: u32) -> Option<&mut Rare> {
        let op = self.ops.get_mut(handle)?;
        if op.rare.is_none() {
            op.rare = Some(self.spare_rare.pop().unwrap_or_default());
        }
        op.rare.as_deref_mut()
    }

    /// Keeps an ended operation's box for another; the error that was in it.
    pub(crate) fn recycle_rare(&mut self, mut rare: Box<Rare>) -> Option<Error> {
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
    pub(crate) fn free(&mut self, handle: u32) -> Option<Error> {
        let rare = self.ops.remove(handle)?.rare?;
        self.recycle_rare(rare)
    }

    /// Whether an operation is complete; `take` will return its result.
    #[inline]
    pub fn is_done(&self, handle: u32) -> bool {
        self.ops.get(handle).is_none_or(Op::is_done)
    }

    /// Queues a message without payload.
    pub(crate) fn control(&mut self, peer: u32, head: AmHead) {
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

    pub(crate) fn mark_busy(&mut self, peer: u32) {
        let state = &mut self.peers[peer as usize];
        if !state.busy {
            state.busy = true;
            self.busy.push(peer);
        }
    }

    /// What an operation is, for messages: "send to rank 3, tag 7 (8 bytes, shm)".
    pub fn describe(&self, handle: u32) -> String {
        let Some(op) = self.ops.get(handle) else {
            return "finished operation".into();
        };
        let bytes = op.view.bytes();
        let Some(Pattern { source, tag }) = op.pattern else {
            return describe("send to", Some(op.peer), op.tag, bytes, &self.links);
        };
        match tag {
            TagPattern::Exact(_) => describe("receive from", source, op.tag, bytes, &self.links),
            TagPattern::Any => {
                let who = source.map_or("any rank".into(), |s| format!("rank {s}"));
                format!("receive from {who}, any tag ({bytes} bytes)")
            }
        }
    }

    /// Nobody wants what is still to come of a message.
    pub(crate) fn discard_rest(&mut self, handle: u32) {
        let Some(op) = self.ops.get(handle) else {
            return;
        };
        let left = op.total.saturating_sub(op.received());
        if left == 0 {
            return; // whoever brings the last bytes forgets it
        }
        let incoming = &mut self.peers[op.peer as usize].incoming;
        for (_, target) in incoming {
            if *target == Target::Op(handle) {
                *target = Target::Discard(left);
            }
        }
    }

    /// The error of an operation that needs a peer which has left.
    pub(crate) fn left_error(&self, handle: u32, peer: u32) -> Error {
        self.left(&self.describe(handle), peer)
    }

    pub(crate) fn left(&self, what: &str, peer: u32) -> Error {
        let how = match self.peers[peer as usize].left {
            Some(Left::Finalized) => "has finalized".to_owned(),
            _ => format!("has dropped the communicator (context {:#x})", self.context),
        };
        Error::new(ErrorKind::Closed, format!("{what}: rank {peer} {how}"))
    }

    /// The receiver of a send has dropped the communicator, or knows that it is revoked.
    pub(crate) fn refused(&mut self, handle: u32, outcome: u16) -> bool {
        let Some(peer) = self.ops.get(handle).map(|op| op.peer) else {
            return false;
        };
        let e = match outcome {
            wire::OUTCOME_REVOKED => self.revoked(&self.describe(handle)),
            _ => self.left_error(handle, peer),
        };
        let Some(op) = self.ops.get_mut(handle) else {
            return false;
        };
        match &mut op.protocol {
            Protocol::RtsSent(_) | Protocol::Device(_) | Protocol::AwaitAck => {
                host_staged::end_send(self, handle, Some(e));
            }
            // Its bytes still go to a receiver, which drops them.
            Protocol::Eager(_) | Protocol::Streaming(_) if op.mode == Mode::Synchronous => {
                if let Protocol::Eager(sending) = &mut op.protocol {
                    sending.awaits_ack = false;
                }
                if let Some(rare) = self.rare(handle) {
                    rare.error = Some(e);
                }
            }
            Protocol::Cancelling => self.finish(handle, None),
            _ => return false,
        }
        true
    }

    pub(crate) fn death_error(&self, handle: u32, peer: u32, how: Death) -> Error {
        ended_over(&self.links, &self.describe(handle), peer, how)
    }

    fn truncation(&self, peer: u32, tag: u32, sent: usize, room: usize) -> Error {
        Error::new(
            ErrorKind::Truncated,
            format!(
                "{}: the message has {sent} bytes, the receive buffer {room}",
                describe("receive from", Some(peer), tag, room, &self.links)
            ),
        )
        .with_envelope(peer, tag)
    }

    /// Ends a receive whose bytes have all come.
    pub(crate) fn received(&mut self, handle: u32) {
        let Some(op) = self.ops.get(handle) else {
            return;
        };
        let room = op.view.bytes();
        if let Some(trials) = &mut self.peers[op.peer as usize].trials {
            trials.received(handle);
        }
        self.trace_received(op.peer, op.tag, op.total, op.number, 0);
        let error = (op.total > room).then(|| self.truncation(op.peer, op.tag, op.total, room));
        self.finish(handle, error);
    }

    /// An operation of a run is complete.
    #[cold]
    pub(crate) fn run_event(&mut self, run: u32, instance: u32, handle: u32) {
        let failed_rank = std::mem::replace(&mut self.failed_rank, NOBODY);
        self.ended.push_back(StepEnd {
            run,
            instance,
            handle,
            failed_rank,
        });
    }

    pub(crate) fn send_op(&mut self, peer: u32, handle: u32) -> Option<&mut Op> {
        self.ops
            .get_mut(handle)
            .filter(|op| op.is_send() && op.peer == peer)
    }

    /// Largest eager message of a device to a peer.
    pub(crate) fn eager_max_of_devices(&self, peer: u32) -> usize {
        let selection = &self.peers[peer as usize].selection;
        self.devices.eager_max(selection.device_eager_max())
    }

    /// What the table of protocols goes by for a peer's messages of devices.
    pub(crate) fn rules(&self, peer: u32) -> Rules {
        Rules {
            model: self.devices.model(),
            device_eager_bytes: self.eager_max_of_devices(peer),
            pipelining: self.devices.pipelining(),
            ..*self.peers[peer as usize].selection.rules()
        }
    }

    /// A kernel copies `bytes` bytes of a message from device to device.
    pub(crate) fn note_kernel(&mut self, bytes: usize) {
        self.counters.pulled += 1;
        self.counters.kernels += 1;
        self.counters.kernel_bytes += bytes as u64;
    }

    pub(crate) fn device_error(&self, handle: u32, e: DeviceError) -> Error {
        Error::from(e).context(self.describe(handle))
    }
}

pub(crate) fn describe(
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
