//! The engine of one communicator on one rank.
//!
//! Single-threaded and never blocking: calls post operations, [`Lane::progress`]
//! moves them, [`Lane::take`] collects what has finished. The same code runs on
//! shared memory and on the simulated network.
//!
//! A lane matches, and switches: each active message goes to the protocol that it belongs
//! to ([`super::protocols`]), with the [`Port`] that they share. The states of an operation
//! are those of [`super::op::Protocol`].
//!
//! # Invariants
//! 1. Starts to one peer leave in the order in which they were posted;
//!    control messages and fragments may pass them.
//! 2. An operation finishes exactly once, and its memory is not touched
//!    afterwards.
//! 3. Every stream of a peer has exactly one target until its last byte.

use super::agreements::Agreeing;
use super::arrival::Arrived;
use super::backoff::{self, Backoff};
use super::early_look::EarlyLook;
use super::edges::Edges;
use super::links::Links;
pub use super::op::{Mode, Outcome, Posted};
pub use super::port::Counters;
use super::port::Port;
use super::protocols;
use super::protocols::get::Get;
use super::protocols::{
    device_get, device_memory, device_put, eager, host_pipeline, outbox, rendezvous,
};
use super::revocation::Revocation;
#[cfg(debug_assertions)]
use super::steps::{self, Phase};
use super::traced::LaneTrace;
use super::window::PostedReceives;
use crate::completion::ready::Ready;
use crate::device::Devices;
use crate::diagnose::waits::{hear, listens, resigns};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::{self, Executor};
use crate::exec::foreign::Foreign;
use crate::matching::{Pattern, UnexpectedQueue};
use crate::protocol::select::Selection;
use crate::slab::Slab;
use crate::wire;
use osier_transports::{AmHead, Incoming, PostError};
use std::sync::Arc;
use std::task::Waker;

/// A message taken out of the queue by a matched probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    pub arrival: u32,
    pub outcome: Outcome,
}

/// The engine of one communicator on one rank.
pub struct Lane {
    pub(crate) port: Port,
    pub(crate) posted: PostedReceives,
    pub(crate) unexpected: UnexpectedQueue<u32>,
    pub(crate) arrivals: Slab<Arrived>,
    /// Rendezvous by get, and the parts that senders write.
    pub(crate) get: Get,
    pub executor: Executor,
    /// Of a task graph that runs here.
    pub(crate) edges: Edges,
    pub(crate) agreeing: Option<Box<Agreeing>>,
    pub(crate) revocation: Option<Revocation>,
    /// To be called then.
    pub(crate) when_revoked: Vec<Waker>,
    /// Peers that have ended, plus one if the communicator is revoked; 0 lets calls take the
    /// shortest ways.
    pub(crate) troubles: usize,
    /// Peers that have failed, in the order in which that was learnt; how many of them are not
    /// acknowledged.
    pub(crate) failures: Vec<u32>,
    pub(crate) unacknowledged: usize,
    /// Counts times at which anything moved.
    pub(crate) moved: u64,
    /// How long a thread that waits here leaves the peer alone.
    backoff: Backoff,
    /// The source that a thread probes for.
    pub(crate) probed: Option<u32>,
    /// It probes for messages of any source.
    pub(crate) probes_any: bool,
    spare: Vec<Vec<u8>>,
    idle_polls: u32,
    /// Whether receives look for their messages before they are posted.
    pub(crate) early_look: EarlyLook,
    /// Receives that are posted behind others before the next poll.
    pub(crate) unpolled: u32,
    /// The last thing done here was a send that left at once.
    just_sent: bool,
}

/// Set in the internal tags of partitioned transfers.
pub const PARTITIONED_TAG: u32 = 0x4000_0000;

/// Kept buffers of unexpected messages, and the largest of them.
pub(crate) const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES: usize = 4096;

/// Messages that one call of progress handles: bounded, so that a flood does not keep the
/// caller from its own end,
const HANDLED_AT_ONCE: usize = 64;
/// and where sends wait for room, which a peer makes that waits for ours.
pub(super) const HANDLED_BETWEEN_POSTS: usize = 8;

/// Empty polls after which a caller that never sleeps checks for peers that
/// have dropped the communicator.
pub(crate) const IDLE_POLLS: u32 = 1024;

impl Lane {
    /// Protocols are chosen otherwise from now on. Any two ends understand each other,
    /// whatever either chooses by.
    pub fn use_selection(&mut self, selection: Arc<Selection>) {
        let Port { peers, links, .. } = &mut self.port;
        peers.select_by(links, &selection);
    }

    pub fn new(own: u32, size: usize, links: Links, selection: Arc<Selection>) -> Self {
        Self {
            port: Port::new(own, size, links, selection),
            posted: PostedReceives::new(),
            unexpected: UnexpectedQueue::new(),
            arrivals: Slab::new(),
            get: Get::default(),
            executor: Executor::default(),
            edges: Edges::default(),
            agreeing: None,
            revocation: None,
            when_revoked: Vec::new(),
            troubles: 0,
            failures: Vec::new(),
            unacknowledged: 0,
            moved: 0,
            backoff: Backoff::default(),
            probed: None,
            probes_any: false,
            spare: Vec::new(),
            idle_polls: 0,
            early_look: EarlyLook::default(),
            unpolled: 0,
            just_sent: false,
        }
    }

    /// Whether an operation has ended; `take` will return its result.
    #[inline]
    pub fn is_done(&self, handle: u32) -> bool {
        self.port.is_done(handle)
    }

    /// What an operation is, for messages: "send to rank 3, tag 7 (8 bytes, shm)".
    pub fn describe(&self, handle: u32) -> String {
        self.port.describe(handle)
    }

    /// Whether the sender's device may write a receive's memory.
    pub fn is_placed(&mut self, handle: u32) -> bool {
        device_put::is_placed(&mut self.port, handle)
    }

    /// Operations that hold something of a device's message.
    pub fn staged_transfers(&self) -> usize {
        protocols::staged_transfers(&self.port)
    }

    /// Makes threads that wait for the lane check again after its release.
    pub fn mark_finished(&mut self) {
        self.port.finished = true;
    }

    /// Whether something finished since this was last asked.
    #[inline]
    pub fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.port.finished)
    }

    /// Says that a message has left at once.
    #[inline]
    pub(crate) fn has_just_sent(&mut self) {
        self.just_sent = true;
    }

    /// Whether the last short message has crossed one of its peer, so that the next one of the
    /// peer is under way, too.
    #[inline]
    pub fn awaits_exchange(&self) -> bool {
        self.port.links.has_crossed()
    }

    /// After this many polls in a row have found nothing: spin-loop hints until the next one.
    #[inline]
    pub fn quiet_after(&mut self, misses: u32) -> u32 {
        match self.awaits_exchange() {
            true => backoff::GAP,
            false => self.backoff.missed(misses),
        }
    }

    /// A poll has found something, after this many that have not.
    #[inline]
    pub fn found_after(&mut self, misses: u32) {
        if !self.awaits_exchange() {
            self.backoff.found(misses);
        }
    }

    /// Whether a message has left at once since this was last asked.
    #[inline]
    pub fn take_just_sent(&mut self) -> bool {
        std::mem::take(&mut self.just_sent)
    }

    /// Says whose lane it is, for reports.
    pub fn name(&mut self, context: u64, members: Arc<[u32]>) {
        self.port.context = context;
        self.port.members = members;
    }

    /// Says what the rank keeps of its devices.
    pub fn use_devices(&mut self, devices: Arc<Devices>) {
        self.port.devices = devices;
    }

    /// Tells a timeline of everything from here on; before the first message.
    pub fn record_to(&mut self, trace: Box<LaneTrace>) {
        self.settle_window();
        self.port.trace = Some(trace);
    }

    /// The lane's part in a timeline, if one is recorded.
    pub fn recorded(&self) -> Option<&LaneTrace> {
        self.port.trace.as_deref()
    }

    /// Moves everything that can move now. True if anything did.
    pub fn progress(&mut self) -> bool {
        let any = self.progress_in_call();
        if self.is_revoked() {
            self.retire();
        }
        any
    }

    /// The same within a call that takes its steps itself.
    pub fn progress_in_call(&mut self) -> bool {
        let mut any = false;
        let at_once = match self.port.busy.is_empty() {
            true => HANDLED_AT_ONCE,
            false => HANDLED_BETWEEN_POSTS,
        };
        for _ in 0..at_once {
            if self.posted.in_window() != 0 && self.serve_window() {
                any = true;
                continue;
            }
            let Some(message) = &self.port.links.poll() else {
                break;
            };
            self.handle(message);
            any = true;
        }
        if !self.port.busy.is_empty() {
            any |= outbox::push(&mut self.port);
        }
        if !self.get.is_idle() || !self.port.accesses.is_idle() {
            any |= self.get.advance_one_sided(&mut self.port);
        }
        if !self.port.staged.is_empty() {
            any |= protocols::advance_transfers(&mut self.port);
        }
        if self.executor.uses_devices() {
            any |= executor::advance_device_steps(self);
        }
        if self.executor.awaits_flags() {
            any |= executor::advance_flags(self);
        }
        any |= executor::advance(self);
        self.moved += u64::from(any);
        any
    }

    /// As [`Lane::progress`], for callers that poll in a loop and never sleep:
    /// checks now and then for peers that have dropped the communicator.
    pub fn progress_awake(&mut self) {
        if self.progress() {
            return;
        }
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if self.idle_polls.is_multiple_of(IDLE_POLLS) {
            self.check_closed();
        }
    }

    /// Operations and messages in flight that need this rank's progress.
    pub fn outstanding(&self) -> usize {
        let posted = self.port.ops.len() + self.posted.in_window();
        let one_sided = self.get.len() + self.port.accesses.len();
        let agreements = self.open_agreements();
        posted + self.port.busy.len() + one_sided + self.executor.len() + agreements
    }

    /// Sends that the peers still need this rank for.
    pub fn unfinished_sends(&self) -> bool {
        !self.port.busy.is_empty()
            || self.executor.unfinished()
            || self.port.ops.handles().any(|h| {
                self.port
                    .ops
                    .get(h)
                    .is_some_and(|op| op.is_send() && !op.is_done())
            })
    }

    /// A thread waits for a message of a source, or of any, without a receive.
    pub fn probes(&mut self, source: Option<u32>) {
        self.probed = source;
        self.probes_any = source.is_none();
    }

    /// Whether runs are in flight.
    pub fn has_runs(&self) -> bool {
        self.executor.unfinished()
    }

    /// Whether a peer and this rank may open each other's memory of devices: as threads of one
    /// process (true), or by what they export.
    pub fn shares_devices(&self, peer: u32) -> Option<bool> {
        let sharing = self.port.links.sharing(peer);
        (sharing.process || sharing.devices).then_some(sharing.process)
    }

    /// The process that a peer is of, if its number counts here.
    pub fn process_id(&self, peer: u32) -> Option<u32> {
        self.port.links.sharing(peer).process_id
    }

    /// Whether plans of its ranks may have their flags in a segment.
    pub fn has_segment(&self) -> bool {
        self.port.links.has_collective()
    }

    /// Name of the transport to a peer.
    pub fn transport(&self, peer: u32) -> &'static str {
        self.port.links.transport(peer)
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        let mut c = self.port.counters;
        c.malformed += self.port.links.malformed();
        c
    }

    /// Posts a message of which nothing is checked, for tests. False: there is no room now.
    pub fn post_as_is(&mut self, peer: u32, head: AmHead, body: &[u8]) -> bool {
        let fill = |to: *mut u8| {
            // SAFETY: invariant 2 of `protocols`: room for the body.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
        };
        !matches!(
            self.port.links.post_with(peer, head, body.len(), fill),
            Err(PostError::Full)
        )
    }

    /// Handles one message and gives it back to its endpoint.
    pub(crate) fn handle(&mut self, message: &Incoming) {
        let (low, high) = wire::halves(message.head.arg);
        let peer = message.peer;
        if self.troubles != 0 && self.port.peers[peer as usize].dead.is_some() {
            // It outlived its sender. What it belongs to has failed already,
            // and what it begins might never end.
            return self.port.links.release(message);
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Handles, message.head.kind);
        self.port.handling = self.port.trace_handled(peer, message.head.kind);
        let sound = match message.head.kind {
            wire::EAGER => self.on_eager(message, low, high),
            wire::FRAGMENT => self.on_fragment(message, low),
            wire::EAGER_FIRST => self.on_first(message, low, high),
            wire::RTS => self.on_rts(message, low, high),
            wire::CTS => rendezvous::on_cts(&mut self.port, peer, low, message.head.aux),
            wire::FIN => {
                if message.head.aux == wire::OUTCOME_REVOKED {
                    self.revoke_communicator();
                }
                rendezvous::on_fin(&mut self.port, peer, low, message.head.aux)
            }
            wire::ACK => eager::on_ack(&mut self.port, peer, low),
            wire::CREDIT => self.port.peers[peer as usize].sender.give(u64::from(low)),
            wire::CANCEL => self.on_cancel(peer, low, message.head.aux, high),
            wire::REAR_PUT => self.get.on_rear_put(&mut self.port, message, low, high),
            wire::REAR_DONE => {
                self.get
                    .on_rear_done(&mut self.port, peer, low, message.head.aux != 0)
            }
            wire::CHECK => self.on_check(message),
            wire::SLOT_CTS => {
                host_pipeline::on_slot_cts(&mut self.port, peer, low, message.head.aux)
            }
            wire::SLOT => host_pipeline::on_slot(&mut self.port, message, low),
            wire::SLOT_CREDIT => {
                host_pipeline::on_slot_credit(&mut self.port, peer, low, message.head.aux)
            }
            wire::LAYOUT => device_memory::on_layout(&mut self.port, message, low),
            wire::POISON => self.on_poison(peer, low, high),
            wire::FD_REQUEST => device_get::on_fd_request(&mut self.port, message, low, high),
            wire::FD_REFUSED => device_get::on_fd_refused(&mut self.port, peer, low),
            wire::PUT_OFFER => device_put::on_put_offer(&mut self.port, message, low, high),
            wire::PUT_DONE => device_put::on_put_done(&mut self.port, peer, low, message.head.aux),
            wire::READY => self.on_ready(peer, low, message.head.aux),
            wire::EDGE..=wire::EDGE_FIRST => self.on_edge(message),
            wire::ACCESS => self.on_access(message, low, high),
            wire::ACCESS_DATA => self.on_access_data(message, low),
            wire::ACCESS_DONE => self.on_access_done(message, low),
            wire::AGREE => self.on_agree(message, message.head.aux == wire::MORE),
            wire::REVOKE => self.on_revoke(peer, message.head.aux),
            _ => false,
        };
        if !sound {
            self.port.counters.malformed += 1;
        }
        self.port.links.release(message);
        #[cfg(debug_assertions)]
        steps::at(Phase::Handled, message.head.kind);
    }

    /// Result of a complete operation; frees the handle. An error for a handle that
    /// was freed: two threads of a C program waited for one request.
    #[inline]
    pub fn take(&mut self, handle: u32) -> Option<Result<Outcome>> {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return Some(Err(completed_elsewhere()));
        };
        if !op.is_done() {
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
        self.port.ops.discard(handle);
        let error = rare.and_then(|rare| self.port.recycle_rare(rare));
        Some(match error {
            Some(e) => Err(e),
            None => Ok(outcome),
        })
    }

    /// Whether foreign code waits for the lane's release.
    #[inline]
    pub fn owes(&self) -> bool {
        self.port.owed.any()
    }

    /// Frees an operation that completed without an error. False if it has not.
    pub(crate) fn succeeded(&mut self, handle: u32) -> bool {
        let done = self.port.ops.get(handle).is_some_and(|op| {
            op.is_done() && op.rare.as_ref().is_none_or(|rare| rare.error.is_none())
        });
        if done {
            self.port.free(handle);
        }
        done
    }

    /// Calls a waker when the operation completes. It was cloned without the lane: the
    /// clone is foreign code, too.
    pub fn set_waker(&mut self, handle: u32, waker: Waker) {
        let unused = match self.port.ops.get_mut(handle) {
            Some(op) => op.rare().waker.replace(waker),
            None => Some(waker),
        };
        self.port.owed.drop(unused.map(Foreign::Waker));
    }

    /// Pushes a number to a list when the operation completes. False if it is
    /// complete already; nothing is pushed then.
    pub fn notify(&mut self, handle: u32, ready: &Arc<Ready>, token: u64) -> bool {
        if resigns() && self.resign(handle) {
            return false;
        }
        match self.port.ops.get_mut(handle) {
            Some(op) if !op.is_done() => {}
            _ => return false,
        }
        if let Some(rare) = self.port.rare(handle) {
            rare.notify = Some((ready.clone(), token));
        }
        if listens() {
            hear(self.asked(handle));
        }
        true
    }

    /// Earliest unexpected message that matches.
    pub fn probe(&mut self, pattern: Pattern) -> Option<Outcome> {
        let found = self
            .unexpected
            .peek(pattern)
            .filter(|_| !self.port.is_revoked);
        let Some((_, envelope, arrival)) = found else {
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
        let taken = match self.is_revoked() {
            true => None,
            false => self.unexpected.take(pattern),
        };
        let Some((envelope, arrival)) = taken else {
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

    /// Buffer for an unexpected message.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        if bytes <= SPARE_BYTES
            && let Some(mut b) = self.spare.pop()
        {
            b.clear();
            return b;
        }
        Vec::with_capacity(bytes.max(64))
    }

    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && (1..=SPARE_BYTES).contains(&buffer.capacity()) {
            self.spare.push(buffer);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::TagPattern;
    use crate::progress::links::Remote;
    use crate::protocol::cost::LinkCosts;
    use crate::view::RawView;

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
        lane.port.free(handle);
        let taken = lane.take(handle).expect("an end").expect_err("an error");
        assert_eq!(taken.kind(), ErrorKind::Argument);
        // The next operation has the same slot, and another handle.
        let next = lane.irecv(RawView::empty(), pattern).expect("posted");
        assert_ne!(next, posted);
        assert!(lane.take(handle).is_some_and(|end| end.is_err()));
    }
}
