//! Device to device within a process: a kernel that reaches both memories copies.
//!
//! ```text
//! sender                              receiver
//! RTS total, its view           ->    (match) one kernel, of either device
//!                               <-    FIN
//! ```
//!
//! # Invariants
//! 1. A send that tells its memory by a description counts it, and keeps it in place and
//!    as it is until its receiver is done (invariant 4 of [`super`]): the key holds the
//!    address of that [`DeviceMemory`]. Nobody reads there through the key itself.
//! 2. Such a key is followed only where the peer is a rank of our own process, so what it
//!    names has the type and the layout that we know. It is believed, as is all that this
//!    process tells itself.

use crate::device::direct::{Direct, How};
use crate::device::{DeviceMemory, Devices, Through};
use crate::progress::port::Port;
use crate::progress::protocols::{self, Device};
use crate::protocol::reach::Placement;
use crate::wire;
use osier_kernels::handle::Made;
use osier_kernels::{DeviceError, DeviceView, Ordered};
use osier_transports::{AmHead, RegionKey, RegionKind};
use std::sync::Arc;

/// A receive that a kernel copies, while the send waits for FIN.
#[derive(Debug)]
pub(crate) struct Copying {
    direct: Direct,
    send: u32,
}

impl Copying {
    /// The message that ends it.
    pub fn end(&self) -> AmHead {
        wire::head(wire::FIN, wire::OUTCOME_DONE, self.send, 0)
    }
}

/// Begins a copy between buffers of one process, by the kernel of a device that reaches
/// both: the receiver's, else the sender's.
///
/// # Errors
/// Neither does, or the driver refuses.
fn direct(
    devices: &Arc<Devices>,
    from: &Ordered<DeviceView<u8>>,
    to: &Ordered<DeviceView<u8>>,
    bytes: usize,
) -> Result<Direct, DeviceError> {
    let (source, target) = (from.buffer().memory(), to.buffer().memory());
    let (there, here) = (source.context(), target.context());
    match here.reach(source) {
        Ok(()) => Direct::new(
            devices,
            here,
            to,
            |_| Ok(from.clone()),
            (How::Reads, bytes, there != here),
        ),
        Err(why) => {
            there.reach(target).map_err(|_| why)?;
            Direct::new(
                devices,
                there,
                from,
                |_| Ok(to.clone()),
                (How::Writes, bytes, true),
            )
        }
    }
}

/// What a send says of its memory to a receiver of the same process.
pub(crate) fn device_key(port: &mut Port, handle: u32) -> Option<RegionKey> {
    let op = port.ops.get(handle)?;
    let memory = op.view.as_device()?;
    memory.check().ok()?;
    let (peer, total, at) = (op.peer, op.total, Arc::as_ptr(memory));
    if op.has_failed() || !port.links.sharing(peer).process {
        return None;
    }
    // SAFETY: invariant 1: the operation keeps its view, and what lies there is not read
    // through the key but by `begin_direct`.
    let key = unsafe { port.links.export(peer, at.cast(), total) }.ok()?;
    (key.kind == RegionKind::Local).then_some(RegionKey {
        kind: RegionKind::Described,
        ..key
    })
}

/// Copies a message of the same process from device to device, if a kernel reaches
/// both. False: nothing was begun.
pub(crate) fn begin_direct(
    port: &mut Port,
    handle: u32,
    peer: u32,
    send: u32,
    key: RegionKey,
) -> bool {
    let Some(op) = port.ops.get(handle) else {
        return false;
    };
    let (total, room) = (op.total, op.view.bytes());
    let Some(to) = op.view.as_device().cloned() else {
        return false;
    };
    let local = RegionKey {
        kind: RegionKind::Local,
        ..key
    };
    if total > room || !port.links.sharing(peer).process {
        return false;
    }
    let Some(at) = port.links.mapped(peer, &local) else {
        return false;
    };
    // SAFETY: invariants 1 and 2: a rank of our process says that its send's view lies there,
    // and keeps it until it is told that we are done, which follows.
    let from = unsafe { &*at.cast::<DeviceMemory>() };
    let (Ok(from), Ok(to)) = (from.view(), to.view()) else {
        return false;
    };
    let direct = match direct(&port.devices, from, to, total) {
        Ok(direct) => direct,
        Err(why) => {
            say_apart(port, from, to, &why);
            return false;
        }
    };
    port.note_kernel(total);
    let copying = Copying { direct, send };
    protocols::begin_device_work(port, handle, Device::Copy(copying));
    true
}

/// Says once why a message between two devices of this process takes a longer way.
pub(crate) fn say_apart(
    port: &Port,
    from: &Ordered<DeviceView<u8>>,
    to: &Ordered<DeviceView<u8>>,
    why: &DeviceError,
) {
    let (source, target) = (from.buffer().memory(), to.buffer().memory());
    let link = target.context().link(&source.context().id());
    if source.context() != target.context()
        && let Ok(made) = Made::of(source)
    {
        let (placement, why) = (Placement::within(link), why.to_string());
        port.devices.say_once(made, placement, Through::Host, &why);
    }
}

/// Asks whether a copy has ended. True if it has.
pub(crate) fn advance(port: &mut Port, handle: u32) -> bool {
    let op = port.ops.get_mut(handle);
    let ended = match op.and_then(|op| op.protocol.device_mut()) {
        Some(Device::Copy(copying)) => copying.direct.is_over(),
        _ => return false,
    };
    if let Ok(false) = ended {
        return false;
    }
    protocols::end_device_work(port, handle);
    match ended {
        Ok(_) => port.received(handle),
        Err(e) => {
            let e = port.device_error(handle, e);
            port.finish(handle, Some(e));
        }
    }
    true
}
