//! Rendezvous by put between devices: a kernel of the sender writes.
//!
//! ```text
//! sender                              receiver
//! RTS total, offer              ->    (match) cannot open that, but may be opened
//!                               <-    [LAYOUT slot]
//!                               <-    PUT_OFFER offer
//! opens the memory, or finds it
//! open; one kernel, from layout
//! to layout
//! PUT_DONE                      ->
//! ```
//!
//! The sender does as a receiver does that reads ([`super::device_get`]), the other way
//! round. What it cannot open it answers by PUT_DONE, not written, and the message goes
//! another way.
//!
//! # Invariants
//! 1. From PUT_OFFER to PUT_DONE, or the sender's death, the receive keeps its memory: who
//!    revokes it asks the sender to give up, and waits for PUT_DONE.
//! 2. A PUT_OFFER is answered by one PUT_DONE, or by CANCEL.
//! 3. A sender queues its kernel when both ready events have passed; until then either side
//!    can give up.

use super::device_memory::Remote;
use super::{device_get, device_memory, device_pipeline, host_pipeline, rendezvous};
use crate::device::UnderWay;
use crate::device::export::{ExportedEvent, ReadyEvent};
use crate::error::{Error, ErrorKind};
use crate::progress::op::Op;
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols::{self, Device};
use crate::wire;
use crate::wire::offer::{LayoutRef, Offer, When};
use osier_kernels::DeviceId;
use osier_kernels::handle::Key;
use osier_transports::{AmHead, Incoming, PostError};

/// A receive into memory that the sender's device writes.
#[derive(Debug)]
pub(crate) struct Placed {
    send: u32,
    /// The sender's device.
    device: DeviceId,
    key: Key,
    origin: u64,
    /// Ours until the sender has answered.
    event: Option<ExportedEvent>,
    /// While it has not been said.
    unreported: Option<UnderWay>,
    /// The sender was asked to give up.
    stopped: bool,
    /// The table ranks slots on the sender's device next, if it does not write.
    slots_next: bool,
}

impl Placed {
    /// FIN for the sender, if no other answer was sent.
    pub fn end(&self) -> AmHead {
        wire::head(wire::FIN, wire::OUTCOME_DONE, self.send, 0)
    }

    /// Whether nothing was sent to the sender yet.
    pub fn is_under_way(&self) -> bool {
        self.unreported.is_some()
    }
}

/// Asks the sender of an announced message to write it to our memory. False: it
/// cannot.
pub(crate) fn begin_place(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    remote: &Remote,
    slots_next: bool,
) -> bool {
    let memory = (port.ops.get(handle)).and_then(|op| op.view.as_device().cloned());
    let Some((memory, Ok((key, origin)))) = memory.map(|m| (m.clone(), m.key())) else {
        return false;
    };
    let (layout, count) = memory.instances();
    if layout.contiguous_at(count).is_none()
        && let Ok(LayoutRef::Absent) | Err(PostError::Failed(_)) =
            device_memory::send_layout(port, peer, layout, memory.bytes())
    {
        return false;
    }
    let tells = port.links.sharing(peer).process_numbers;
    let event = match memory.ready_event(&port.devices, tells) {
        Ok(ReadyEvent::Passed) => None,
        Ok(ReadyEvent::Event(exported)) => Some(exported),
        Ok(ReadyEvent::Later) | Err(_) => return false,
    };
    let placed = Placed {
        send,
        device: remote.offer.key.device,
        key,
        origin,
        event,
        unreported: Some(UnderWay::new(&port.devices)),
        stopped: false,
        slots_next,
    };
    protocols::begin_device_work(port, handle, Device::Put(placed));
    advance_placed(port, handle);
    true
}

pub(crate) fn state(port: &mut Port, handle: u32) -> Option<&mut Placed> {
    match port.ops.get_mut(handle)?.protocol.device_mut()? {
        Device::Put(placed) => Some(placed),
        _ => None,
    }
}

/// Tells the sender where our memory is. True if it moved.
pub(crate) fn advance_placed(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get(handle) else {
        return false;
    };
    let (peer, memory) = (op.peer, op.view.as_device().cloned());
    let (Some(memory), Some(placed)) = (memory, state(port, handle)) else {
        return false;
    };
    if placed.unreported.is_none() {
        return false;
    }
    let (send, device) = (placed.send, placed.device);
    let (key, mut origin) = (placed.key, placed.origin);
    let event = placed.event.as_ref().map(|exported| exported.handle);
    let when = event.map_or(When::Passed, When::Event);
    let (layout, mut count) = memory.instances();
    let layout = match layout.contiguous_at(count) {
        Some(base) => {
            origin = origin.wrapping_add_signed(base as i64);
            count *= layout.size();
            Ok(LayoutRef::Contiguous)
        }
        None => device_memory::send_layout(port, peer, layout, memory.bytes()),
    };
    let layout = match layout {
        Ok(LayoutRef::Absent) => {
            go_otherwise(port, handle, peer, send, &device);
            return true;
        }
        Ok(layout) => layout,
        Err(PostError::Full) => return false,
        Err(PostError::Failed(_)) => {
            go_otherwise(port, handle, peer, send, &device);
            return true;
        }
    };
    let offer = Offer {
        key,
        origin,
        count: count as u64,
        layout,
        when,
    };
    let body = offer.to_wire();
    let fill = |to: *mut u8| {
        // SAFETY: invariant 2 of `protocols`: room for the body.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
    };
    let head = wire::head(wire::PUT_OFFER, 0, send, handle);
    if port.links.post_with(peer, head, body.len(), fill).is_err() {
        return false;
    }
    if let Some(placed) = state(port, handle) {
        placed.unreported = None;
    }
    port.peers[peer as usize]
        .incoming
        .push((send, Target::Op(handle)));
    true
}

/// Goes on with a message that was not written: in slots.
pub(crate) fn go_otherwise(port: &mut Port, handle: u32, peer: u32, send: u32, device: &DeviceId) {
    let slots_next = state(port, handle).is_some_and(|placed| placed.slots_next);
    if !slots_next || !device_pipeline::begin_on_device(port, handle, peer, send, device) {
        device_get::go_without(port, handle, peer, send);
    }
}

/// The receiver of an announced message wants it written to its memory, or not any
/// more.
pub(crate) fn on_put_offer(port: &mut Port, message: &Incoming, send: u32, receive: u32) -> bool {
    let peer = message.peer;
    if message.head.aux & wire::GIVE_UP != 0 {
        if writes_to(port, send, receive) {
            device_get::go_without(port, send, peer, receive);
            port.finish(send, None);
        }
        return true;
    }
    if message.payload.len() != Offer::BYTES {
        return false;
    }
    let mut body = [0; Offer::BYTES];
    // SAFETY: invariant 1 of `protocols`: not released yet, as long as the array.
    unsafe {
        std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
    }
    // Whoever places knows the ready event, or does not place.
    let offer = Offer::from_wire(&body).filter(|offer| offer.when != When::Signalled);
    let Some(offer) = offer else {
        return false;
    };
    if let Err(sound) = host_pipeline::may_answer(port, peer, send) {
        return sound;
    }
    let remote = device_memory::remote(port, peer, Box::new(offer));
    if device_get::begin_mapped(port, send, peer, receive, &remote) != Ok(true) {
        device_get::go_without(port, send, peer, receive);
    }
    true
}

/// Whether a send is about to write to a receive.
pub(crate) fn writes_to(port: &mut Port, handle: u32, receive: u32) -> bool {
    let device = port.ops.get(handle).and_then(|op| op.protocol.device());
    matches!(device, Some(Device::Write(mapped)) if mapped.waits_for(receive))
}

/// Gives up to write. False: the send is to be asked again.
pub(crate) fn stop_writing(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return true;
    };
    let peer = op.peer;
    let receive = match op.protocol.device() {
        Some(Device::Write(mapped)) if mapped.is_idle() => mapped.other,
        _ => return false, // a kernel runs
    };
    device_get::go_without(port, handle, peer, receive);
    if let Some(op) = port.ops.get_mut(handle) {
        op.ask_once();
    }
    rendezvous::cancel(port, peer, handle);
    false
}

/// The sender has written a message to our memory, or not.
pub(crate) fn on_put_done(port: &mut Port, peer: u32, handle: u32, aux: u16) -> bool {
    let theirs = |op: &&mut Op| op.is_receive() && op.peer == peer;
    let Some(op) = port.ops.get_mut(handle).filter(theirs) else {
        return false;
    };
    let Some(Device::Put(placed)) = op.protocol.device() else {
        return false;
    };
    if placed.is_under_way() {
        return false;
    }
    let (send, device, stopped) = (placed.send, placed.device, placed.stopped);
    let incoming = &mut port.peers[peer as usize].incoming;
    incoming.retain(|(s, _)| *s != send);
    match (aux & wire::NOT_WRITTEN != 0, stopped) {
        (false, _) => port.received(handle),
        (true, false) => go_otherwise(port, handle, peer, send, &device),
        (true, true) => {
            let what = port.describe(handle);
            let e = Error::new(ErrorKind::Cancelled, format!("{what}: given up"));
            port.finish(handle, Some(e));
        }
    }
    true
}

/// Whether the sender's device may write a receive's memory.
pub(crate) fn is_placed(port: &mut Port, handle: u32) -> bool {
    state(port, handle).is_some_and(|placed| !placed.is_under_way())
}

/// Asks the sender not to write, where it may. True: nobody writes our memory.
pub(crate) fn stop_placed(port: &mut Port, handle: u32) -> bool {
    let Some(peer) = port.ops.get(handle).map(|op| op.peer) else {
        return true;
    };
    let Some(placed) = state(port, handle) else {
        return true;
    };
    if placed.is_under_way() {
        return true;
    }
    if !std::mem::replace(&mut placed.stopped, true) {
        let send = placed.send;
        port.control(
            peer,
            wire::head(wire::PUT_OFFER, wire::GIVE_UP, send, handle),
        );
    }
    false
}
