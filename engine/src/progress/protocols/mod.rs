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

use self::device_copy::Copying;
use self::device_get::Mapped;
use self::device_pipeline::Opening;
use self::device_put::Placed;
use self::eager::{Receiving, Sending};
use self::outbox::Queued;
use self::rendezvous::{RtsSent, Streaming};
use crate::error::Error;
use crate::matching::PostedKey;
use crate::progress::op::{Bounce, Exposed, Op};
use crate::progress::port::Port;

/// What moves the bytes of an operation, and how far that is.
///
/// ```text
/// send     Queued -> Done                              eager, whole
///                 -> Eager -> Done                     eager, in fragments
///                 -> (Eager ->) AwaitAck -> Done       eager, synchronous
///                 -> RtsSent -> Streaming -> Done      CTS, SLOT_CTS
///                            -> Write -> Done          PUT_OFFER
///                            -> (Draining ->) Done     FIN
///          Eager, Streaming -> Cancelling -> gone      revoked, FIN
/// receive  Posted -> Stream -> Done
///                 -> Reading -> Done                   `get` has the rest
///                 -> Copy, Get -> Done                 our kernel copies
///                 -> Put -> Done                       the sender's kernel writes
///                 -> Opening -> Stream                 slots on the sender's device
///          Stream -> Draining -> Done                  our kernels unpack
///          Get, Put -> Opening, Stream                it cannot be opened
///          Write -> RtsSent                           it cannot be opened
/// ```
pub(crate) enum Protocol {
    /// A send in the outbox, of which nothing has left.
    Queued(Queued),
    /// A send whose fragments leave within credit.
    Eager(Sending),
    /// A send that has left, and whose match is to be acknowledged.
    AwaitAck,
    /// A send that is announced.
    RtsSent(RtsSent),
    /// A send whose receiver lets fragments go, or slots.
    Streaming(Streaming),
    /// A send that was revoked in the middle; the receiver is to answer.
    Cancelling,
    /// A receive; the key is its place among those that are posted.
    Posted(Option<PostedKey>),
    /// A receive whose bytes come in order.
    Stream(Receiving),
    /// A receive that reads its sender's memory.
    Reading,
    /// A device moves the bytes, or is about to.
    Device(OnDevice),
    /// A receive whose bytes a device unpacks; a send that has ended, while kernels that
    /// pack it ahead still read its memory.
    Draining,
    /// It has ended; of a receive, whether it has met a message.
    Done { met: bool },
}

/// What a device does for an operation, dropped out of line: one comparison is all that an
/// operation of the host's memory pays, 2 % of the instructions of a nonblocking call else.
pub(crate) struct OnDevice(Option<Box<Device>>);

impl Drop for OnDevice {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn end(_: Option<Box<Device>>) {}
        end(self.0.take());
    }
}

/// What a device does for an operation.
#[derive(Debug)]
pub(crate) enum Device {
    /// Of a receive: copies within this process.
    Copy(Copying),
    /// Of a receive: reads the sender's memory.
    Get(Mapped),
    /// Of a send: writes the receiver's memory.
    Write(Mapped),
    /// Of a receive: the sender's device writes our memory.
    Put(Placed),
    /// Of a receive: opens the sender's memory for slots.
    Opening(Opening),
}

impl Protocol {
    /// What a device does for it.
    pub fn device(&self) -> Option<&Device> {
        match self {
            Protocol::Device(device) => device.0.as_deref(),
            _ => None,
        }
    }

    /// What a device does for it, to be advanced.
    pub fn device_mut(&mut self) -> Option<&mut Device> {
        match self {
            Protocol::Device(device) => device.0.as_deref_mut(),
            _ => None,
        }
    }

    /// Bytes of a receive of `total` bytes that have come; of those that a device brings
    /// all, as no more messages bring any.
    #[inline]
    pub fn received(&self, total: usize) -> usize {
        match self {
            Protocol::Stream(stream) => stream.moved,
            Protocol::Draining | Protocol::Device(_) | Protocol::Done { .. } => total,
            _ => 0,
        }
    }
}

/// What a device is asked about for an operation.
#[derive(Clone, Copy)]
enum Work {
    Copy,
    /// Our device reads memory of another process, or writes it.
    Mapped,
    Opening,
    Placed,
    Out,
    In,
    /// The ready event of the memory that a send has offered.
    ReadyEvent,
}

impl Work {
    fn of(op: &Op) -> Option<Work> {
        if let Some(device) = op.protocol.device() {
            return Some(match device {
                Device::Copy(_) => Work::Copy,
                Device::Get(_) | Device::Write(_) => Work::Mapped,
                Device::Opening(_) => Work::Opening,
                Device::Put(_) => Work::Placed,
            });
        }
        let rare = op.rare.as_ref()?;
        match (&rare.bounce, &rare.exposed) {
            (Some(Bounce::Out(_)), _) => Some(Work::Out),
            (Some(Bounce::In(_)), _) => Some(Work::In),
            (None, Some(Exposed::Device(made))) if made.waits() => Some(Work::ReadyEvent),
            _ => None,
        }
    }
}

impl Op {
    /// Whether its device has failed before it began, which its receiver is to learn.
    pub(crate) fn has_failed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.error.is_some())
    }
}

/// Gives an operation its bounce buffers, which are asked about from now on.
pub(crate) fn set_bounce(port: &mut Port, handle: u32, bounce: Bounce) {
    if let Some(rare) = port.rare(handle) {
        rare.bounce = Some(bounce);
    }
    if let Some(made) = port.ops.get_mut(handle).and_then(Op::offer) {
        made.stop_waiting();
    }
    port.staged.push(handle);
}

/// Has a device move the bytes of an operation.
pub(crate) fn begin_device_work(port: &mut Port, handle: u32, device: Device) {
    if let Some(op) = port.ops.get_mut(handle) {
        op.protocol = Protocol::Device(OnDevice(Some(Box::new(device))));
        if let Some(made) = op.offer() {
            made.stop_waiting();
        }
    }
    port.staged.push(handle);
}

/// Ends what a device does for an operation, after waiting for a kernel that runs, and
/// sends the other side the end.
pub(crate) fn end_device_work(port: &mut Port, handle: u32) {
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    let end = match op.protocol.device() {
        Some(Device::Copy(copying)) => copying.end(),
        Some(Device::Get(mapped) | Device::Write(mapped)) => mapped.end(),
        Some(Device::Opening(opening)) => opening.end(),
        Some(Device::Put(placed)) => placed.end(),
        None => return,
    };
    let peer = op.peer;
    op.protocol = Protocol::Draining;
    port.control(peer, end);
}

/// Asks devices about the messages that they work on. True if anything moved.
pub(crate) fn advance_transfers(port: &mut Port) -> bool {
    let mut any = false;
    let mut at = 0;
    while let Some(&handle) = port.staged.get(at) {
        any |= match port.ops.get(handle).and_then(Work::of) {
            None => {
                port.staged.swap_remove(at);
                continue;
            }
            Some(Work::Out) => host_staged::advance_outbound(port, handle),
            Some(Work::In) => host_staged::advance_inbound(port, handle),
            Some(Work::Mapped) => device_get::advance_mapped(port, handle),
            Some(Work::Opening) => device_pipeline::advance_opening(port, handle),
            Some(Work::Placed) => device_put::advance_placed(port, handle),
            Some(Work::ReadyEvent) => device_memory::send_ready(port, handle),
            Some(Work::Copy) => device_copy::advance(port, handle),
        };
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
    let holds = |handle: &&u32| port.ops.get(**handle).and_then(Work::of).is_some();
    port.staged.iter().filter(holds).count()
}

/// Whether devices work on messages of this lane.
pub(crate) fn devices_work(port: &Port) -> bool {
    let works = |op: &Op| match (Work::of(op), op.protocol.device()) {
        (None, _) => false,
        (_, Some(Device::Put(placed))) => placed.is_under_way(),
        (Some(Work::In | Work::Out), _) => {
            let bounce = op.rare.as_ref().and_then(|rare| rare.bounce.as_ref());
            match bounce {
                Some(Bounce::Out(outbound)) => outbound.is_under_way(),
                Some(Bounce::In(inbound)) => inbound.is_under_way(),
                None => false,
            }
        }
        _ => true,
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
