//! Outbox: sends to a peer in the order in which they were posted, and control messages.
//!
//! ```text
//! posted -> starts -> (eager | announced)
//!                        '-> streams: fragments, in turn
//! ```
//!
//! # Invariants
//! 1. Starts to one peer leave in the order in which they were posted; control messages
//!    and fragments may pass them.

use super::device_memory::Offering;
use super::{device_copy, device_memory, device_put, host_pipeline, host_staged};
use super::{eager, rendezvous};
use crate::error::{Error, ErrorKind};
use crate::progress::op::{Exposed, Mode, Op, Protocol};
use crate::progress::port::Port;
use crate::progress::protocols::host_staged::Source;
use crate::protocol::Protocol as Answer;
use crate::protocol::cost::IN_PARTS_BYTES;
use crate::protocol::select::Memory;
use osier_transports::{PostError, RegionKind, TransportError, TransportErrorKind};

/// Fragments posted per peer before the lane polls again.
const FRAGMENTS_PER_ROUND: usize = 8;

/// A send of which nothing has left.
pub(crate) struct Queued {
    /// Of a run that receives at the same time.
    pub crossing: bool,
}

/// How far a send has come by one call.
pub(crate) enum Step {
    Moved,
    Full,
    /// A device has not packed it yet.
    NotReady,
    Failed(TransportError),
    /// A device has failed.
    Broken(Error),
}

/// Posts what is queued, as far as there is credit. True if anything left.
pub(crate) fn push(port: &mut Port) -> bool {
    let mut any = false;
    let mut at = 0;
    while at < port.busy.len() {
        let peer = port.busy[at];
        any |= push_peer(port, peer);
        let state = &mut port.peers[peer as usize];
        let queues = [state.starts.len(), state.streams.len(), state.edges.len()];
        if state.control.is_empty() && queues == [0; 3] {
            state.busy = false;
            port.busy.swap_remove(at);
        } else {
            at += 1;
        }
    }
    any
}

/// Posts what is queued to one peer. True if anything left.
pub(crate) fn push_peer(port: &mut Port, peer: u32) -> bool {
    let mut any = false;
    while let Some(&head) = port.peers[peer as usize].control.front() {
        match port.links.post_with(peer, head, 0, |_| {}) {
            Err(PostError::Full) => return any,
            // Kept for later, but it does not hide from sends that memory
            // is full.
            Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::OutOfMemory => break,
            Ok(()) | Err(PostError::Failed(_)) => {
                port.peers[peer as usize].control.pop_front();
                any = true;
            }
        }
    }
    while let Some(kept) = port.peers[peer as usize].edges.pop_front() {
        let fill = |to: *mut u8| {
            // SAFETY: invariant 2 of `protocols`: room for the payload.
            unsafe { std::ptr::copy_nonoverlapping(kept.payload.as_ptr(), to, kept.payload.len()) }
        };
        let bytes = kept.payload.len();
        if let Err(PostError::Full) = port.links.post_with(peer, kept.head, bytes, fill) {
            port.peers[peer as usize].edges.push_front(kept);
            return any;
        }
        any = true;
    }
    while let Some(&handle) = port.peers[peer as usize].starts.front() {
        // What its producer waits for may be behind it.
        let hurry = port.peers[peer as usize].starts.len() > 1;
        match start(port, handle, hurry) {
            Step::Full => return any,
            // Fragments of other messages are sent: its producer may need them.
            Step::NotReady => break,
            Step::Moved => {
                port.peers[peer as usize].starts.pop_front();
            }
            Step::Failed(e) => {
                port.peers[peer as usize].starts.pop_front();
                fail(port, handle, &e);
            }
            Step::Broken(e) => {
                // Its turn comes again, to notify the receiver.
                host_staged::breaks(port, handle, e);
            }
        }
        any = true;
    }
    let state = &mut port.peers[peer as usize];
    state.blocked =
        !state.starts.is_empty() || state.dead.is_some() || port.is_revoked || port.check.is_some();
    for _ in 0..FRAGMENTS_PER_ROUND {
        let Some(handle) = port.peers[peer as usize].streams.pop_front() else {
            break;
        };
        match eager::fragment(port, handle) {
            Step::Full => {
                port.peers[peer as usize].streams.push_front(handle);
                return any;
            }
            Step::NotReady => {
                port.peers[peer as usize].streams.push_back(handle);
                continue;
            }
            Step::Moved => {
                let more = port
                    .ops
                    .get_mut(handle)
                    .is_some_and(|op| op.fragments().is_some_and(|(moved, open)| moved < open));
                if more && !host_pipeline::waits_for_receiver(port, handle) {
                    port.peers[peer as usize].streams.push_front(handle);
                }
            }
            Step::Broken(e) => host_pipeline::break_off(port, peer, handle, e),
            Step::Failed(e) => {
                // The receiver waits for the rest.
                rendezvous::cancel(port, peer, handle);
                fail(port, handle, &e);
            }
        }
        any = true;
    }
    any
}

/// Ends a send that its transport refused.
pub(crate) fn fail(port: &mut Port, handle: u32, e: &TransportError) {
    let kind = Error::from(e.clone()).kind();
    let what = port.describe(handle);
    let error = match port.ops.get(handle).map(|op| op.peer) {
        // The transport counts the ranks of the job, not ours.
        Some(peer) if kind == ErrorKind::RankDead => {
            Error::new(kind, format!("{what}: rank {peer} is dead"))
        }
        _ => Error::new(kind, format!("{what}: {e}")),
    };
    host_staged::end_send(port, handle, Some(error));
}

/// Posts the first message of a send; in a hurry, it is rather announced than kept
/// waiting for a producer.
pub(crate) fn start(port: &mut Port, handle: u32, hurry: bool) -> Step {
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved; // revoked meanwhile
    };
    let (peer, bytes) = (op.peer, op.total);
    let synchronous = op.mode == Mode::Synchronous;
    let crossing = matches!(op.protocol, Protocol::Queued(Queued { crossing: true }));
    if op.has_failed() {
        return rendezvous::send_rts(port, handle);
    }
    let on_device = op.view.as_device().is_some();
    let mut at_once = on_device && host_staged::is_eager(port, handle);
    port.scratch_of = None;
    if on_device {
        // A long message is announced at once, and packed meanwhile.
        let offered = match at_once {
            true => Offering::None,
            false => device_memory::offer(port, handle),
        };
        match offered {
            Offering::Made | Offering::None => {}
            Offering::Full => return Step::Full,
            Offering::Failed(e) => return Step::Failed(e),
            Offering::Broken(e) => return Step::Broken(e),
        }
        let made = matches!(offered, Offering::Made);
        if at_once || (!made && device_copy::device_key(port, handle).is_none()) {
            match host_staged::source(port, handle) {
                Ok(Source::NotReady) if at_once => {
                    match host_staged::must_not_wait(port, handle, hurry) {
                        true => at_once = false,
                        false => return Step::NotReady,
                    }
                }
                Ok(_) => {}
                Err(e) => return Step::Broken(e),
            }
        }
    }
    if port.check.is_some() {
        match port.tell(handle) {
            Ok(()) => {}
            Err(PostError::Full) => return Step::Full,
            Err(PostError::Failed(e)) => return Step::Failed(e),
        }
    }
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let mut memory = Memory::Private;
    if bytes > port.peers[peer as usize].always_eager
        && let Some(ptr) = op.view.as_contiguous()
    {
        if op.key().is_none() {
            // SAFETY: invariant 4 of `protocols`: a send that sends the key keeps its memory
            // until its receiver is done; one that does not withdraws it.
            let key = unsafe { port.links.export(peer, ptr, bytes) }.ok();
            if key.is_some()
                && let Some(rare) = port.rare(handle)
            {
                rare.exposed = key.map(Exposed::Host);
            }
        }
        memory = match port.ops.get(handle).and_then(Op::key).map(|k| k.kind) {
            Some(RegionKind::Heap) => Memory::Heap,
            // Within a process too (`Local`), so that a send waits for
            // its receive from the same size on wherever ranks live.
            Some(_) => Memory::Plain,
            None => Memory::Private,
        };
    }
    let selection = &port.peers[peer as usize].selection;
    let eager = match on_device {
        true => at_once,
        false if crossing => bytes <= selection.crossing_max(memory),
        false => {
            // In place of fragments that are announced; not of a copy by the receiver.
            let in_parts = bytes <= IN_PARTS_BYTES
                && selection.answer(bytes, memory) == Answer::Fragments
                && !synchronous
                && port.links.has_parts(peer);
            bytes <= selection.eager_max(memory) || in_parts
        }
    };
    let credit = eager && port.peers[peer as usize].sender.take(bytes);
    let step = match credit {
        true => eager::start_eager(port, handle),
        false => rendezvous::send_rts(port, handle),
    };
    if credit && !matches!(step, Step::Moved) {
        port.peers[peer as usize]
            .sender
            .give(crate::protocol::eager::cost(bytes));
    }
    if let Step::Moved = step
        && let Some(op) = port.ops.get_mut(handle)
        && !op.is_announced()
        && let Some(key) = op.take_key()
    {
        port.links.unexport(&key);
    }
    step
}

/// Stops a send from reading its memory. True once it has.
pub(crate) fn revoke_send(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return true;
    };
    let peer = op.peer;
    match &op.protocol {
        Protocol::Queued(_) => {
            // A start that found no room may have exported its memory.
            let key = op.take_key();
            port.peers[peer as usize].starts.retain(|h| *h != handle);
            port.free(handle);
            if let Some(key) = key {
                port.links.unexport(&key);
            }
            true
        }
        Protocol::AwaitAck => {
            let owner = op.forget_memory();
            op.detached = true;
            port.owed.drop(owner);
            true
        }
        Protocol::Eager(_) | Protocol::Streaming(_) => {
            let all = op.fragments().is_some_and(|(moved, _)| moved == op.total);
            let owner = op.forget_memory();
            op.detached = true;
            port.owed.drop(owner);
            // If it has all of it, the receiver gives the slots back.
            if !all {
                // The handle stays until the receiver answers, so that what it
                // says meanwhile meets no other operation.
                op.protocol = Protocol::Cancelling;
                port.peers[peer as usize].streams.retain(|h| *h != handle);
                rendezvous::cancel(port, peer, handle);
            }
            true
        }
        Protocol::Device(_) => device_put::stop_writing(port, handle),
        _ => {
            // The peer may read our memory until it answers.
            if port.ops.get_mut(handle).is_some_and(Op::ask_once) {
                rendezvous::cancel(port, peer, handle);
            }
            false
        }
    }
}
