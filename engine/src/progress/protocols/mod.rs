//! Protocols: each moves the bytes of a message in one way.
//!
//! | module | protocol |
//! |---|---|
//! | [`outbox`] | order of sends to a peer; which protocol a send begins with |
//! | [`eager`] | at once, whole or in fragments |
//! | [`rendezvous`] | announced first; the receiver says how it comes |
//! | [`get`] | rendezvous by get on the host, the rear part put by the sender |
//! | [`host_staged`] | between a device and the host, staged in bounce buffers |
//! | [`host_pipeline`] | pipelined copy: bounce buffers handed over between processes |
//! | [`device_copy`] | device to device within a process |
//! | [`device_get`] | rendezvous by get from another process's device |
//! | [`device_put`] | rendezvous by put to another process's device |
//! | [`device_pipeline`] | pipelined copy through bounce buffers on the sender's device |
//! | [`device_memory`] | what ranks tell each other of devices' memory |
//!
//! A protocol owns its states; what protocols share is [`super::port::Port`].
//!
//! # Invariants
//! 1. The payload of an incoming message is readable for the length that it says until
//!    the message is released, or while `take_next` shows it: that is the endpoint's
//!    contract. [`super::lane::Lane`] releases a message behind the handler that it
//!    calls. Who has sent it may change the bytes meanwhile: they are copied once, by
//!    address, and parsed from the copy.
//! 2. An endpoint calls what fills a message with room for as many bytes as the post
//!    says, which is nobody else's until that returns.
//! 3. An operation that is not over may use the memory of its view, a send to read it and
//!    a receive to write it, within [`RawView::bytes`](crate::view::RawView::bytes):
//!    whoever posts it keeps that memory until then, and who takes it back first ends the
//!    operation or empties its view (invariant 1 of the view). A send's total is its
//!    view's length; what a receive takes is cut to its view.
//! 4. Memory of which a peer was told where it is, for it to read or to write, is kept
//!    until that peer has said that it is done, or has ended: the operation is not over
//!    before.

pub(crate) mod device_copy;
pub(crate) mod device_get;
pub(crate) mod device_memory;
pub(crate) mod device_pipeline;
pub(crate) mod device_put;
pub(crate) mod eager;
pub(crate) mod get;
pub(crate) mod host_pipeline;
pub(crate) mod host_staged;
pub(crate) mod outbox;
pub(crate) mod rendezvous;

use self::device_get::Mapped;
use self::device_pipeline::Opening;
use self::device_put::Placed;
use crate::device::UnderWay;
use crate::device::bounce::{Inbound, Outbound};
use crate::device::direct::Direct;
use crate::error::Error;
use crate::progress::op::Op;
use crate::progress::port::Port;

/// A message between the host and a device.
#[derive(Debug)]
pub(crate) enum DeviceTransfer {
    Out(Outbound),
    In(Inbound),
    /// The receiver's device copies; the send waits for FIN.
    Direct(Direct, u32),
    /// Our device reads memory of another process, or writes it.
    Mapped(Box<Mapped>),
    /// The sender's memory for slots is opened.
    Opening(Box<Opening>),
    /// The sender's device writes our memory.
    Placed(Box<Placed>),
    /// A send that is announced, and whose receiver is to be told when its memory's ready event
    /// has passed.
    Later {
        _waits: UnderWay,
    },
}

impl Op {
    pub(crate) fn transfer(&mut self) -> Option<&mut DeviceTransfer> {
        self.rare.as_mut()?.transfer.as_mut()
    }

    /// Whether its device has failed before it began, which its receiver is to learn.
    pub(crate) fn has_failed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.error.is_some())
    }
}

/// Looks after the messages of devices. True if anything moved.
pub(crate) fn advance_transfers(port: &mut Port) -> bool {
    let mut any = false;
    let mut at = 0;
    while let Some(&handle) = port.staged.get(at) {
        match port.ops.get_mut(handle).and_then(Op::transfer) {
            None => {
                port.staged.swap_remove(at);
                continue;
            }
            // What fails is told to whoever takes the next bytes.
            Some(DeviceTransfer::Out(transfer)) => {
                transfer.look();
                any |= host_pipeline::refuse_slots(port, handle);
                any |= host_staged::advance_draining(port, handle);
            }
            Some(DeviceTransfer::In(_)) => any |= host_staged::advance_inbound(port, handle),
            Some(DeviceTransfer::Mapped(_)) => any |= device_get::advance_mapped(port, handle),
            Some(DeviceTransfer::Opening(_)) => {
                any |= device_pipeline::advance_opening(port, handle)
            }
            Some(DeviceTransfer::Placed(_)) => any |= device_put::advance_placed(port, handle),
            Some(DeviceTransfer::Later { .. }) => any |= device_memory::tell_ready(port, handle),
            Some(DeviceTransfer::Direct(transfer, _)) => match transfer.is_over() {
                Ok(false) => {}
                over => {
                    device_copy::end_direct(port, handle);
                    match over {
                        Ok(_) => port.received(handle),
                        Err(e) => {
                            let e = port.device_error(handle, e);
                            port.finish(handle, Some(e));
                        }
                    }
                    any = true;
                }
            },
        }
        at += 1;
    }
    if port.staged.is_empty() {
        // What was let go while a transfer was under way, as by a death.
        port.devices.sweep();
    }
    any
}

/// Operations that hold something of a device's message.
pub(crate) fn staged_transfers(port: &Port) -> usize {
    let holds = |handle: &&u32| {
        let rare = port.ops.get(**handle).and_then(|op| op.rare.as_ref());
        rare.is_some_and(|rare| rare.transfer.is_some())
    };
    port.staged.iter().filter(holds).count()
}

/// Whether devices work on messages of this lane.
pub(crate) fn devices_work(port: &Port) -> bool {
    let works = |op: &Op| match op.rare.as_ref().and_then(|rare| rare.transfer.as_ref()) {
        Some(DeviceTransfer::In(transfer)) => transfer.is_under_way(),
        Some(DeviceTransfer::Out(transfer)) => transfer.is_under_way(),
        Some(
            DeviceTransfer::Direct(..)
            | DeviceTransfer::Mapped(_)
            | DeviceTransfer::Opening(_)
            | DeviceTransfer::Later { .. },
        ) => true,
        Some(DeviceTransfer::Placed(placed)) => placed.is_under_way(),
        None => false,
    };
    let mut staged = port
        .staged
        .iter()
        .filter_map(|handle| port.ops.get(*handle));
    staged.any(works)
}

/// That a send's memory was freed while its receiver could read it: then nobody knows
/// what it has read.
pub(crate) fn freed(port: &Port, handle: u32) -> Option<Error> {
    let memory = port.ops.get(handle)?.view.as_device()?;
    let gone = memory.check_lives().err()?;
    Some(port.device_error(handle, gone))
}
