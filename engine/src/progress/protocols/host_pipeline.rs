//! Pipelined copy through shared host memory: bounce buffers are handed over.
//!
//! ```text
//! sender                              receiver
//! RTS total, on a device        ->    (match)
//!                               <-    SLOT_CTS        hand slots over
//! SLOT place ...                ->    its kernel, or the host, unpacks there
//!                               <-    SLOT_CREDIT n   in order; the slots are packed anew
//! ```
//!
//! The slots are the sender's, whichever end is a device: a kernel of its has packed
//! them, or the host has; a kernel of the receiver's unpacks them, or the host does. So
//! between two devices the host copies nothing, and between a device and a host once.
//!
//! SLOT_CTS may ask for slots on the sender's device instead ([`super::device_pipeline`]).
//!
//! # Invariants
//! 1. A slot is the receiver's from SLOT to SLOT_CREDIT, or to the FIN that answers a
//!    cancellation; the sender keeps it until then, even if the send fails.
//! 2. A send is complete when all of its slots were taken.
//! 3. Each SLOT_CTS is answered by slots, by one SLOT that says there are none (then the
//!    receiver asks for fragments), or by CANCEL.

use super::outbox::Step;
use super::{device_get, device_memory, eager, host_staged, rendezvous};
use crate::device::bounce::Outbound;
use crate::device::pool::{Claim, SlotAddress};
use crate::error::Error;
use crate::progress::op::{Bounce, Op, Protocol};
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols;
use crate::trace::event::Kind;
use crate::wire;
use osier_kernels::DeviceError;
use osier_transports::{Incoming, PostError};

/// Asks the sender of an announced message to hand slots over.
pub(crate) fn ask_slots(port: &mut Port, handle: u32, peer: u32, send: u32) {
    if let Some(how) = port.peers[peer as usize].dead {
        let e = port.death_error(handle, peer, how);
        return port.finish(handle, Some(e));
    }
    port.peers[peer as usize]
        .incoming
        .push((send, Target::Op(handle)));
    let to_device = |op: &Op| op.view.as_device().is_some();
    if port.ops.get(handle).is_some_and(to_device) {
        // A receive that fails drops what comes.
        host_staged::begin_inbound(port, handle);
    }
    let asked = match host_staged::inbound(port, handle) {
        Some(transfer) => transfer.ask_slots((send, 0)),
        None => Ok(Some((send, 0))),
    };
    send_slot_cts(port, handle, peer, asked);
}

/// Asks a send for slots, when that is due. True if anything was said.
pub(crate) fn send_slot_cts(
    port: &mut Port,
    handle: u32,
    peer: u32,
    due: Result<Option<(u32, u16)>, DeviceError>,
) -> bool {
    match due {
        Ok(None) => return false,
        Ok(Some((send, aux))) => {
            port.control(peer, wire::head(wire::SLOT_CTS, aux, send, 0));
        }
        Err(e) => {
            let e = port.device_error(handle, e);
            host_staged::fail_inbound(port, handle, e);
        }
    }
    true
}

/// Whether a send is announced and pending, so that it can answer its receiver.
///
/// # Errors
/// Whether the request was legal all the same: the send was revoked or has failed, which
/// the receiver did not know; an answer says so.
pub(crate) fn may_answer(port: &mut Port, peer: u32, handle: u32) -> Result<(), bool> {
    let Some(op) = port.send_op(peer, handle) else {
        return Err(false);
    };
    let cancelling = match &op.protocol {
        Protocol::RtsSent(sent) => sent.cancelling,
        // The receiver does not know of it yet.
        Protocol::Cancelling => return Err(true),
        _ => return Err(false),
    };
    if op.has_failed() {
        return Err(host_staged::report_failure(port, peer, handle));
    }
    if cancelling {
        // It does not know if it was about to open our memory.
        rendezvous::cancel(port, peer, handle);
        return Err(true);
    }
    Ok(())
}

/// The receiver wants slots.
pub(crate) fn on_slot_cts(port: &mut Port, peer: u32, handle: u32, aux: u16) -> bool {
    if let Err(sound) = may_answer(port, peer, handle) {
        return sound;
    }
    let on_device = aux & wire::DEVICE_SLOTS;
    let begun = match on_device {
        0 => begin_handing(port, handle),
        _ => Ok(begin_handing_on_device(
            port,
            handle,
            aux & wire::LINKED != 0,
        )),
    };
    match begun {
        Ok(true) => rendezvous::grant(port, peer, handle, None),
        Ok(false) if on_device == 0 && refuses_later(port, handle) => {}
        Ok(false) => {
            let none = wire::head(wire::SLOT, wire::NO_SLOTS | on_device, handle, 0);
            port.control(peer, none);
        }
        Err(e) => {
            if let Some(rare) = port.rare(handle) {
                rare.error = Some(e);
            }
            return host_staged::report_failure(port, peer, handle);
        }
    }
    true
}

/// Whether a send that has no memory to hand over says so when its bytes are valid:
/// the memory that is taken for them then waits for no stream of the user's.
pub(crate) fn refuses_later(port: &mut Port, handle: u32) -> bool {
    let op = port.ops.get_mut(handle);
    op.and_then(Op::outbound)
        .is_some_and(Outbound::refuses_later)
}

/// Says so, when that is due. True if it was said.
pub(crate) fn refuse_slots(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let (peer, announced) = (op.peer, op.is_announced());
    let due = op.outbound().is_some_and(Outbound::refuses_now);
    if due && announced {
        port.control(peer, wire::head(wire::SLOT, wire::NO_SLOTS, handle, 0));
    }
    due
}

/// Makes a send hand slots over. False where it has no memory for that, or its peer does not
/// reach it.
pub(crate) fn begin_handing(port: &mut Port, handle: u32) -> Result<bool, Error> {
    let Some(op) = port.ops.get_mut(handle) else {
        return Ok(false);
    };
    let sharing = port.links.sharing(op.peer);
    let reached = sharing.process || sharing.host_memory;
    if let Some(outbound) = op.outbound() {
        return Ok(reached && outbound.hand_over());
    }
    let others = device_memory::turns_matter(&port.links, port.own, op.peer);
    let made = match op.view.as_device().cloned() {
        Some(memory) => Outbound::new(&port.devices, &memory, Claim::Announced, others),
        None => Ok(Outbound::of_host(&port.devices, op.total)),
    };
    let mut transfer = made.map_err(|e| port.device_error(handle, e))?;
    let shared = reached && transfer.hand_over();
    let keep = shared
        || port
            .ops
            .get(handle)
            .is_some_and(|op| op.view.as_device().is_some());
    if keep {
        protocols::set_bounce(port, handle, Bounce::Out(transfer));
    }
    Ok(shared)
}

/// Makes a send hand slots over on its device. False where it has no memory for
/// that.
pub(crate) fn begin_handing_on_device(port: &mut Port, handle: u32, linked: bool) -> bool {
    let memory = (port.ops.get(handle)).and_then(|op| op.view.as_device().cloned());
    let transfer = memory.map(|memory| Outbound::on_device(&port.devices, &memory, linked));
    let Some(Ok(outbound)) = transfer else {
        return false;
    };
    protocols::set_bounce(port, handle, Bounce::Out(outbound));
    true
}

/// Whether a send hands slots over.
pub(crate) fn hands_over(port: &mut Port, handle: u32) -> bool {
    let outbound = port.ops.get_mut(handle).and_then(Op::outbound);
    outbound.is_some_and(|outbound| outbound.hands_over())
}

/// Whether a send continues when its receiver has taken something.
pub(crate) fn waits_for_receiver(port: &mut Port, handle: u32) -> bool {
    let outbound = port.ops.get_mut(handle).and_then(Op::outbound);
    outbound.is_some_and(|outbound| outbound.waits_for_receiver())
}

/// Hands the next slot over.
pub(crate) fn hand(port: &mut Port, handle: u32) -> Step {
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let peer = op.peer;
    if op.fragments().is_none_or(|(moved, _)| moved == op.total) {
        return Step::Moved;
    }
    let Some(rare) = &mut op.rare else {
        return Step::Moved;
    };
    let Some(Bounce::Out(transfer)) = &mut rare.bounce else {
        return Step::Moved;
    };
    let view = &op.view;
    let mut filled = 0;
    let next = transfer
        .fill(|range, to| {
            filled = range.len();
            // SAFETY: invariant 3 of `protocols`: the send is pending; the slot is as long
            // as the range, and the host's alone (invariant 1 of `device::bounce`).
            unsafe { view.pack(range, to) };
        })
        .and_then(|_| transfer.next_handed());
    port.counters.copied += filled as u64;
    let (place, bytes) = match next {
        Ok(Some(next)) => next,
        Ok(None) if transfer.waits_for_receiver() => return Step::Moved,
        Ok(None) => return Step::NotReady,
        Err(e) => return Step::Broken(port.device_error(handle, e)),
    };
    let on_device = match transfer.is_on_device() {
        true => wire::DEVICE_SLOTS,
        false => 0,
    };
    let since = port.trace_stamp();
    let body = place.to_wire();
    let fill = |to: *mut u8| {
        // SAFETY: invariant 2 of `protocols`: room for the body.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
    };
    let head = wire::head(wire::SLOT, on_device, handle, 0);
    match port.links.post_with(peer, head, body.len(), fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    port.trace_piece(Kind::Fragment, peer, bytes, since);
    match on_device {
        0 => port.counters.handed += 1,
        _ => port.counters.device_slots += 1,
    }
    if let Some(op) = port.ops.get_mut(handle) {
        op.sent(bytes);
        if let Some(outbound) = op.outbound() {
            outbound.handed();
        }
    }
    Step::Moved
}

/// The receiver has taken slots.
pub(crate) fn on_slot_credit(port: &mut Port, peer: u32, handle: u32, pieces: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    let left = match &op.protocol {
        Protocol::Streaming(stream) => op.total - stream.moved,
        Protocol::Cancelling => 1,
        _ => return false,
    };
    let granted = !matches!(op.protocol, Protocol::Cancelling);
    let Some(transfer) = op.outbound() else {
        return false;
    };
    let waited = transfer.waits_for_receiver();
    if !transfer.returned(usize::from(pieces)) {
        return false;
    }
    let lends = transfer.lends();
    if left == 0 && !lends {
        eager::sent(port, handle);
    } else if waited && granted && left > 0 {
        port.peers[peer as usize].streams.push_back(handle);
        port.mark_busy(peer);
    }
    true
}

/// The next bytes of a message lie in a slot of its sender.
pub(crate) fn on_slot(port: &mut Port, message: &Incoming, send: u32) -> bool {
    let peer = message.peer;
    let incoming = &mut port.peers[peer as usize].incoming;
    let Some(at) = incoming.iter().position(|(s, _)| *s == send) else {
        return false;
    };
    let target = incoming[at].1;
    if message.head.aux & wire::NO_SLOTS != 0 {
        incoming.remove(at);
        match target {
            Target::Op(handle) if message.head.aux & wire::DEVICE_SLOTS != 0 => {
                device_get::go_without(port, handle, peer, send);
            }
            Target::Op(handle) => rendezvous::ask_fragments(port, handle, peer, send),
            Target::Discard(_) => {
                port.peers[peer as usize].incoming.push((send, target));
                port.control(peer, wire::head(wire::CTS, 0, send, 0));
            }
            Target::Arrival(_) => return false,
        }
        return true;
    }
    let mut body = [0; SlotAddress::WIRE_BYTES];
    if message.payload.len() != body.len() {
        return false;
    }
    // SAFETY: invariant 1 of `protocols`: not released yet, as long as the array.
    unsafe {
        std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
    }
    let Some(place) = SlotAddress::from_wire(&body) else {
        return false;
    };
    let bytes = place.bytes as usize;
    let on_device = message.head.aux & wire::DEVICE_SLOTS != 0;
    let since = port.trace_stamp();
    let left = match target {
        Target::Discard(left) => {
            let left = left.saturating_sub(bytes);
            port.peers[peer as usize].incoming[at].1 = Target::Discard(left);
            port.control(peer, wire::head(wire::SLOT_CREDIT, 1, send, 0));
            left
        }
        Target::Op(handle) => {
            let slot = match host_staged::inbound(port, handle) {
                Some(transfer) if transfer.is_on_peer() == on_device => transfer.handed(place),
                None if !on_device => port.devices.pool().handed(place),
                _ => None,
            };
            let (Some(slot), Some(op)) = (slot, port.ops.get_mut(handle)) else {
                return false;
            };
            let moved = op.received();
            let left = op.total - moved;
            if bytes > left || bytes == 0 {
                return false;
            }
            let room = op.view.bytes().min(op.total);
            let start = moved.min(room);
            let end = (moved + bytes).min(room);
            op.receive_more(bytes);
            if op.view.as_device().is_none() {
                let Some(from) = slot.host() else {
                    return false;
                };
                // SAFETY: invariant 1: the slot is ours until we say that it is taken, and as
                // long as the range; the receive is pending (invariant 3 of `protocols`).
                unsafe { op.view.unpack(start..end, from) };
                port.counters.copied += (end - start) as u64;
                port.control(peer, wire::head(wire::SLOT_CREDIT, 1, send, 0));
                if left == bytes {
                    port.received(handle);
                }
            } else {
                let Some(transfer) = host_staged::inbound(port, handle) else {
                    return false;
                };
                transfer.from = Some(send);
                if let Err(e) = transfer.take_handed(slot, end - start) {
                    let e = port.device_error(handle, e);
                    host_staged::fail_inbound(port, handle, e);
                } else if left == bytes {
                    host_staged::drain(port, handle);
                }
            }
            left - bytes
        }
        Target::Arrival(_) => return false,
    };
    port.trace_piece(Kind::FragmentIn, peer, bytes, since);
    let incoming = &mut port.peers[peer as usize].incoming;
    if left == 0
        && let Some(at) = incoming.iter().position(|(s, _)| *s == send)
    {
        incoming.remove(at);
    }
    true
}

/// Returns to the sender the slots that our device has read. True if there were
/// any.
pub(crate) fn report_taken(port: &mut Port, handle: u32) -> bool {
    let Some(transfer) = host_staged::inbound(port, handle) else {
        return false;
    };
    let Some(send) = transfer.from else {
        return false;
    };
    // The next call returns an error of it.
    let done = transfer.done().unwrap_or(0);
    say_taken(port, handle, send, done)
}

/// Gives back what the sender of a receive that ends early has handed over, after
/// waiting for our device.
pub(crate) fn give_slots_back(port: &mut Port, handle: u32) {
    let Some(transfer) = host_staged::inbound(port, handle) else {
        return;
    };
    if let Some(send) = transfer.from {
        let lent = transfer.give_up();
        say_taken(port, handle, send, lent);
    }
}

pub(crate) fn say_taken(port: &mut Port, handle: u32, send: u32, slots: usize) -> bool {
    let Some(peer) = port.ops.get(handle).map(|op| op.peer) else {
        return false;
    };
    let mut left = slots;
    while left > 0 {
        let n = u16::try_from(left).unwrap_or(u16::MAX);
        port.control(peer, wire::head(wire::SLOT_CREDIT, n, send, 0));
        left -= usize::from(n);
    }
    slots > 0
}

/// Ends a send whose device has failed in the middle.
pub(crate) fn break_off(port: &mut Port, peer: u32, handle: u32, e: Error) {
    rendezvous::cancel(port, peer, handle);
    let outbound = port.ops.get_mut(handle).and_then(Op::outbound);
    let Some(outbound) = outbound.filter(|outbound| outbound.lends()) else {
        return host_staged::end_send(port, handle, Some(e));
    };
    outbound.stop();
    // Until the receiver answers: invariant 1.
    if let Some(op) = port.ops.get_mut(handle) {
        op.protocol = Protocol::Cancelling;
        op.rare().error = Some(e);
    }
}
