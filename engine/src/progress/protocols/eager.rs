//! Eager: a message leaves without asking, whole or in fragments, within credit.
//!
//! ```text
//! Queued -> Done                        whole
//!        -> Eager -> Done               EAGER_FIRST, FRAGMENT ...
//!        -> (Eager ->) AwaitAck -> Done synchronous: ACK
//! ```
//!
//! Fragments of a message that an RTS announced leave like these, once its receiver has
//! asked for them.

use super::outbox::Step;
use super::{host_pipeline, host_staged};
use crate::progress::op::{Mode, Protocol};
use crate::progress::pace::Write;
use crate::progress::port::Port;
use crate::progress::protocols::host_staged::Source;
use crate::protocol::cost::{IN_PARTS_BYTES, LEAST_IN_PARTS, WHOLE_BYTES};
use crate::trace::event::Kind;
use crate::wire;
use osier_transports::PostError;

/// A send whose fragments leave within credit.
pub(crate) struct Sending {
    /// Bytes that have left.
    pub moved: usize,
    /// It is synchronous, and was not acknowledged yet.
    pub awaits_ack: bool,
}

/// A receive whose bytes come in order.
#[derive(Default)]
pub(crate) struct Receiving {
    /// Bytes that have come.
    pub moved: usize,
}

/// Posts the first message of a send, or all of it.
pub(crate) fn start_eager(port: &mut Port, handle: u32) -> Step {
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let (peer, tag, bytes) = (op.peer, op.tag, op.total);
    let fragment = fragment_bytes(port, peer, bytes);
    let since = port.trace_stamp();
    let checked = port.check.as_ref().map_or(0, |_| wire::CHECKED);
    let source = match host_staged::source(port, handle) {
        Ok(Source::NotReady) => return Step::NotReady,
        Ok(source) => source,
        Err(e) => return Step::Broken(e),
    };
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let synchronous = op.mode == Mode::Synchronous;
    let aux = u16::from(synchronous) | checked;
    if aux == 0 && matches!(source, Source::View) && in_parts(port, handle) {
        port.trace_start(Kind::Eager, peer, tag, bytes, since);
        sent(port, handle);
        return Step::Moved;
    }
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let whole = bytes <= fragment;
    let (kind, moved, payload) = match whole {
        true => (wire::EAGER, bytes, bytes),
        false => (wire::EAGER_FIRST, fragment - wire::TOTAL_BYTES, fragment),
    };
    let view = &op.view;
    let how = match source {
        Source::View if !whole => port.peers[peer as usize].pace.next(moved),
        _ => Write::PLAIN,
    };
    let mut took_ns = 0;
    let fill = |to: *mut u8| {
        let mut to = to;
        if !whole {
            let total = wire::eager_first_total(bytes as u64, tag).to_le_bytes();
            // SAFETY: invariant 2 of `protocols`: room for a fragment, which is longer than
            // this.
            unsafe { std::ptr::copy_nonoverlapping(total.as_ptr(), to, wire::TOTAL_BYTES) };
            to = to.wrapping_add(wire::TOTAL_BYTES);
        }
        match source {
            // SAFETY: invariant 3 of `protocols`: the send is pending, and the room ends after
            // these bytes (invariant 2 of `protocols`).
            Source::View => took_ns = unsafe { how.pack(view, 0..moved, to) },
            // SAFETY: invariants 2 and 3 of `protocols`; of packed bytes there are as many
            // (invariant 4 of `host_staged`).
            _ => unsafe { source.put(view, 0..moved, to) },
        }
    };
    let head = wire::head(kind, aux, tag, handle);
    match port.links.post_with(peer, head, payload, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    op.protocol = Protocol::Eager(Sending {
        moved,
        awaits_ack: synchronous,
    });
    if let (Source::View, false) = (&source, whole) {
        port.peers[peer as usize].pace.wrote(how, moved, took_ns);
    }
    host_staged::took(port, handle, moved);
    if whole {
        port.trace_start(Kind::Eager, peer, tag, bytes, since);
        sent(port, handle);
    } else {
        port.peers[peer as usize].streams.push_back(handle);
        port.trace_start(Kind::EagerFirst, peer, tag, bytes, since);
    }
    Step::Moved
}

/// Posts a message of the host's memory whole, in parts that its receiver reads while the next
/// are written; false where the transport does not, or has no room.
fn in_parts(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let (peer, bytes) = (op.peer, op.total);
    if !(LEAST_IN_PARTS..=IN_PARTS_BYTES).contains(&bytes) {
        return false;
    }
    // Messages up to there are written plainly, as where they leave whole.
    let paced = bytes > WHOLE_BYTES;
    let how = match paced {
        true => port.peers[peer as usize].pace.next(bytes),
        false => Write::PLAIN,
    };
    let view = &op.view;
    let mut took_ns = 0;
    // SAFETY: invariant 3 of `protocols`: the send is pending, and there is room for the
    // range (invariant 2 of `protocols`).
    let fill = |range, to: *mut u8| took_ns += unsafe { how.pack(view, range, to) };
    let head = wire::head(wire::EAGER, 0, op.tag, 0);
    if !port.links.post_parts(peer, head, bytes, fill) {
        return false;
    }
    op.protocol = Protocol::Eager(Sending {
        moved: bytes,
        awaits_ack: false,
    });
    if paced {
        port.peers[peer as usize].pace.wrote(how, bytes, took_ns);
    }
    true
}

pub(crate) fn fragment_bytes(port: &Port, peer: u32, bytes: usize) -> usize {
    port.peers[peer as usize]
        .selection
        .costs()
        .fragment_bytes(bytes)
        .min(port.links.max_payload(peer))
}

/// Posts the next fragment of a stream.
pub(crate) fn fragment(port: &mut Port, handle: u32) -> Step {
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved; // revoked meanwhile
    };
    let Some((at, open)) = op.fragments() else {
        return Step::Moved;
    };
    let peer = op.peer;
    if host_pipeline::hands_over(port, handle) {
        return host_pipeline::hand(port, handle);
    }
    if at >= open {
        return Step::Moved; // until the receiver asks for more
    }
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved;
    };
    let mut n = fragment_bytes(port, peer, op.total).min(open - at);
    let source = match host_staged::source(port, handle) {
        Ok(Source::NotReady) => return Step::NotReady,
        Ok(source) => source,
        Err(e) => return Step::Broken(e),
    };
    if let Source::Packed(_, ready) = source {
        n = n.min(ready);
    }
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved;
    };
    let since = port.trace_stamp();
    let head = wire::head(wire::FRAGMENT, 0, handle, 0);
    let view = &op.view;
    let how = match source {
        Source::View => port.peers[peer as usize].pace.next(n),
        _ => Write::PLAIN,
    };
    let mut took_ns = 0;
    let fill = |to: *mut u8| match source {
        // SAFETY: invariant 3 of `protocols`: the send is pending, and there is room for `n`
        // bytes (invariant 2 of `protocols`).
        Source::View => took_ns = unsafe { how.pack(view, at..at + n, to) },
        // SAFETY: invariants 2 and 3 of `protocols`; of packed bytes there are as many
        // (invariant 4 of `host_staged`).
        _ => unsafe { source.put(view, at..at + n, to) },
    };
    match port.links.post_with(peer, head, n, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    if let Source::View = source {
        port.peers[peer as usize].pace.wrote(how, n, took_ns);
    }
    host_staged::took(port, handle, n);
    port.trace_piece(Kind::Fragment, peer, n, since);
    if port.ops.get_mut(handle).is_some_and(|op| op.sent(n)) {
        sent(port, handle);
    }
    Step::Moved
}

/// All bytes of a send have left its memory.
pub(crate) fn sent(port: &mut Port, handle: u32) {
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    match &op.protocol {
        Protocol::Eager(sending) if sending.awaits_ack => op.protocol = Protocol::AwaitAck,
        _ => port.finish(handle, None),
    }
}

pub(crate) fn on_ack(port: &mut Port, peer: u32, handle: u32) -> bool {
    port.trace_piece(Kind::Ack, peer, 0, port.trace_stamp());
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    let synchronous = op.mode == Mode::Synchronous;
    match &mut op.protocol {
        Protocol::AwaitAck => port.finish(handle, None),
        Protocol::Eager(sending) if synchronous => sending.awaits_ack = false,
        Protocol::Streaming(_) if synchronous => {}
        Protocol::Cancelling => {}
        _ => return false,
    }
    true
}
