//! Pipelined copy between devices of two processes: bounce buffers on the sender's device.
//!
//! ```text
//! sender                              receiver
//! RTS total, offer              ->    (match)
//!                               <-    FD_REQUEST number, socket   once: its memory for slots
//! a descriptor, by a socket     ->    opens it, and keeps it
//!                               <-    SLOT_CTS on the device
//! SLOT place ...                ->    its kernel unpacks there; or copies it to its own
//!                                     device first, and unpacks it there
//!                               <-    SLOT_CREDIT n               as soon as it is unpacked, or
//!                                                               copied
//! ```
//!
//! From SLOT_CTS on slots go as those of the host's memory do ([`super::host_pipeline`]), with the
//! same rules for revoking, cancellation and death.
//!
//! # Invariants
//! 1. The memory for slots is opened before the first slot is asked for, so that each
//!    slot that comes can be read.
//!
//! # Sources
//! The pipelined protocol of W. Wu, G. Bosilca, R. vandeVaart, S. Jeaugey, J. Dongarra,
//! "GPU-Aware Non-contiguous Data Movement In Open MPI", HPDC 2016: fragments of device
//! memory, acknowledged as early as the receiver's copy. There both sides agree first,
//! here the receiver alone decides, which knows both.

use super::{device_get, host_pipeline, host_staged};
use crate::device::bounce::Inbound;
use crate::device::{Devices, UnderWay};
use crate::progress::op::Bounce;
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols::{self, Device};
use crate::protocol::reach::Placement;
use crate::wire;
use crate::wire::offer::Want;
use osier_kernels::{Context, DeviceId, Memory};
use osier_transports::AmHead;
use std::sync::Arc;

/// A receive whose sender's memory for slots is opened first.
#[derive(Debug)]
pub(crate) struct Opening {
    pub send: u32,
    /// The sender's device.
    device: DeviceId,
    want: Want,
    asked: bool,
    devices: Arc<Devices>,
    _under_way: UnderWay,
}

impl Opening {
    /// What tells the sender that it is over.
    pub fn end(&self) -> AmHead {
        wire::head(wire::FIN, wire::OUTCOME_DONE, self.send, 0)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.devices.descriptors.forget(self.want.number);
    }
}

/// The device of an operation's memory.
pub(crate) fn context_of(port: &Port, handle: u32) -> Option<Context> {
    let memory = port.ops.get(handle)?.view.as_device()?;
    let view = memory.view().ok()?;
    Some(view.buffer().memory().context().clone())
}

/// Begins to receive a message in slots on its sender's device. False: it cannot be.
pub(crate) fn begin_on_device(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    device: &DeviceId,
) -> bool {
    let Some(context) = context_of(port, handle) else {
        return false;
    };
    let owner = (port.members[peer as usize], context.ordinal());
    match port.devices.open_slots(owner, &context, device, None) {
        Ok(Some(memory)) => {
            ask_device_slots(port, handle, peer, send, (device, memory));
            return true;
        }
        Ok(None) => {}
        Err(_) => return false,
    }
    let process = port.links.sharing(peer).process_id;
    let Ok((number, socket)) = port.devices.descriptors.ask(process) else {
        return false;
    };
    let opening = Opening {
        send,
        device: *device,
        want: Want { number, socket },
        asked: false,
        devices: port.devices.clone(),
        _under_way: UnderWay::new(&port.devices),
    };
    protocols::begin_device_work(port, handle, Device::Opening(opening));
    advance_opening(port, handle);
    true
}

/// Asks whether a sender's memory for slots can be opened. True if it moved.
pub(crate) fn advance_opening(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let peer = op.peer;
    let Some(Device::Opening(opening)) = op.protocol.device() else {
        return false;
    };
    let (send, want, device) = (opening.send, opening.want, opening.device);
    if !opening.asked {
        let head = wire::head(wire::FD_REQUEST, wire::OF_SLOTS, send, handle);
        let posted = device_get::post_want(port, peer, head, want);
        let op = port.ops.get_mut(handle);
        if let Some(Device::Opening(opening)) = op.and_then(|op| op.protocol.device_mut()) {
            opening.asked = posted;
        }
        return posted;
    }
    let Some(pieces) = port.devices.descriptors.take(want.number) else {
        return false;
    };
    let Some(context) = context_of(port, handle) else {
        return false;
    };
    let owner = (port.members[peer as usize], context.ordinal());
    let opened = (port.devices).open_slots(owner, &context, &device, Some(&pieces));
    match opened {
        Ok(Some(memory)) => ask_device_slots(port, handle, peer, send, (&device, memory)),
        _ => device_get::go_without(port, handle, peer, send),
    }
    true
}

/// Asks the sender of an announced message for slots on its device.
pub(crate) fn ask_device_slots(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    (device, memory): (&DeviceId, Arc<Memory>),
) {
    if let Some(how) = port.peers[peer as usize].dead {
        let e = port.death_error(handle, peer, how);
        return port.finish(handle, Some(e));
    }
    let Some(context) = context_of(port, handle) else {
        return;
    };
    let linked = Placement::between(context.link(device)) == Placement::Linked;
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    op.stream();
    let (total, own) = (op.total, op.view.as_device().cloned());
    port.peers[peer as usize]
        .incoming
        .push((send, Target::Op(handle)));
    let transfer = own.map(|own| Inbound::of_peer(&port.devices, &own, total, (memory, linked)));
    match transfer {
        Some(Ok(inbound)) => protocols::set_bounce(port, handle, Bounce::In(inbound)),
        Some(Err(e)) => {
            // A receive that fails drops what comes.
            let e = port.device_error(handle, e);
            host_staged::fail_inbound(port, handle, e);
        }
        None => {}
    }
    let linked = if linked { wire::LINKED } else { 0 };
    let ask = (send, wire::DEVICE_SLOTS | linked);
    let due = match host_staged::inbound(port, handle) {
        Some(transfer) => transfer.ask_slots(ask),
        None => Ok(Some(ask)),
    };
    host_pipeline::send_slot_cts(port, handle, peer, due);
}
