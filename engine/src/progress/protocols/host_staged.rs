//! Messages between a device and the host, staged in pinned memory.
//!
//! Eager and rendezvous stay as they are: a send takes its packed bytes from a transfer
//! as they become ready, a receive puts them into one ([`crate::device::bounce`]).
//!
//! ```text
//! send     Queued          waits for its first slot, if the message is short
//!          Eager, Streaming  fragments as far as slots are packed
//! receive  Stream          bytes into pinned memory
//!          Draining        the device unpacks the rest -> Done
//! ```
//!
//! Ranks that share memory hand slots over ([`super::host_pipeline`]). Between others a long
//! message is sent as far as its receiver has slots: CTS says how many units of
//! [`wire::WINDOW_BYTES`] may come, and further ones follow as slots are unpacked. So
//! what waits on the host is bounded by the transfer, whatever the message's size.
//!
//! # Invariants
//! 1. A send that waits for its device holds up later starts to its peer, which must
//!    not overtake it, and nothing else; if it waits for its producer, and not for its
//!    own kernel, it is announced instead as soon as there are any.
//! 2. An operation with a transfer is in `staged`: it is looked after as long as a device
//!    may work for it.
//! 3. Whoever ends a windowed receive early lets its sender go on: the rest is dropped
//!    as it comes.
//! 4. Packed bytes of a [`Source`] stay where they are until it is said that they were
//!    taken. There are as many as it says, and as a send's first message has: no fragment
//!    is longer than the least slot.
//! 5. Bytes of a message to a device are handed to [`stage_bytes`] as many as it is told,
//!    readable until it returns: a part of a payload (invariant 1 of [`super`]), or of
//!    what a lane has kept of a message. What writes a BAR1 window copies them by
//!    address; a peer that changes them meanwhile changes what it sends.

use super::{device_memory, host_pipeline, rendezvous};
use crate::device::DeviceMemory;
use crate::device::bounce::{Inbound, Outbound};
use crate::device::pool::Claim;
use crate::error::{Error, ErrorKind};
use crate::progress::op::{Bounce, Mode, Op, Protocol};
use crate::progress::peer::Target;
use crate::progress::port::Port;
use crate::progress::protocols;
use crate::protocol::device::Move;
use crate::protocol::reach::Placement;
use crate::protocol::select::{DevicePair, Message};
use crate::view::RawView;
use crate::wire;
use osier_kernels::DeviceError;
use std::ops::Range;

/// Packed bytes that a send posts next.
pub(crate) enum Source {
    /// The view's own memory.
    View,
    /// They lie here, so many.
    Packed(*const u8, usize),
    /// Not yet.
    NotReady,
}

impl Source {
    /// Copies packed bytes of a view, the first of which is next.
    ///
    /// # Safety
    /// As [`RawView::pack`]; of packed bytes there are as many.
    #[inline]
    pub(crate) unsafe fn put(&self, view: &RawView, packed: Range<usize>, to: *mut u8) {
        match self {
            // SAFETY: invariant 4: by the caller's contract so many bytes lie there, and `to`
            // has room for them.
            Source::Packed(from, _) => unsafe {
                std::ptr::copy_nonoverlapping(*from, to, packed.len());
            },
            // SAFETY: invariant 3 of `protocols`: the caller's contract is that of packing
            // the view.
            _ => unsafe { view.pack(packed, to) },
        }
    }
}

/// Refuses memory with a ready event in the work of a graph, which nobody outside can wait for.
#[inline(always)]
pub(crate) fn check_ready_event(view: &RawView) -> Result<(), Error> {
    match view.as_device().map(|memory| memory.check()) {
        Some(Err(e @ DeviceError::Capture(_))) => Err(e.into()),
        _ => Ok(()),
    }
}

/// Where the next bytes of a send are; begins to pack at the first call.
pub(crate) fn source(port: &mut Port, handle: u32) -> Result<Source, Error> {
    let Some(op) = port.ops.get_mut(handle) else {
        return Ok(Source::View);
    };
    let Some(memory) = op.view.as_device() else {
        return Ok(Source::View);
    };
    let (memory, queued) = (memory.clone(), matches!(op.protocol, Protocol::Queued(_)));
    let others = device_memory::turns_matter(&port.links, port.own, op.peer);
    if op.total == 0 {
        let nothing = Source::Packed(std::ptr::dangling(), 0);
        let usable = memory.check().map(|()| nothing);
        return usable.map_err(|e| port.device_error(handle, e));
    }
    if queued
        && port.ops.get_mut(handle).and_then(Op::outbound).is_none()
        && let Some(source) = read_bar1(port, handle, &memory)
    {
        return Ok(source);
    }
    let claim = match queued {
        true if is_eager(port, handle) => Claim::Short,
        true => Claim::Announced,
        false => Claim::Send,
    };
    let ready = match port.ops.get_mut(handle).and_then(Op::outbound) {
        Some(outbound) => outbound.ready(),
        None => Outbound::new(&port.devices, &memory, claim, others).and_then(|mut outbound| {
            let ready = outbound.ready();
            protocols::set_bounce(port, handle, Bounce::Out(outbound));
            ready
        }),
    };
    match ready {
        Ok((_, 0)) => Ok(Source::NotReady),
        Ok((from, bytes)) => Ok(Source::Packed(from, bytes)),
        Err(e) => Err(port.device_error(handle, e)),
    }
}

/// The bytes of a short message, read by the processor; none where something else is
/// quicker, or its ready event is pending.
pub(crate) fn read_bar1(port: &mut Port, handle: u32, memory: &DeviceMemory) -> Option<Source> {
    let total = port.ops.get(handle)?.total;
    if !is_eager(port, handle) {
        return None;
    }
    if port.scratch_of == Some(handle) {
        return Some(Source::Packed(port.scratch.as_ptr(), total));
    }
    let run = port.devices.bar1(memory, Move::Fill, total)?;
    port.scratch.resize(total, 0);
    run.read(&mut port.scratch).ok()?;
    port.scratch_of = Some(handle);
    port.counters.bar1_windows += 1;
    port.counters.copied += total as u64;
    Some(Source::Packed(port.scratch.as_ptr(), total))
}

/// Writes a message that has come whole into a device's memory by the processor. False:
/// something else is quicker, its ready event is pending, or a stream waits for it, for
/// work that was queued before need not see such writes.
pub(crate) fn write_bar1(port: &mut Port, handle: u32, from: *const u8, bytes: usize) -> bool {
    let Some(op) = port.ops.get(handle) else {
        return false;
    };
    let wanted = op.view.bytes().min(op.total);
    let rare = op.rare.as_ref();
    let begun = rare.is_some_and(|rare| rare.bounce.is_some() || !rare.holds.is_empty());
    if begun || op.received() != 0 || bytes != op.total || wanted == 0 {
        return false;
    }
    let Some(memory) = op.view.as_device().cloned() else {
        return false;
    };
    let Some(run) = port.devices.bar1(&memory, Move::Empty, wanted) else {
        return false;
    };
    // SAFETY: invariant 5: callers pass `bytes` readable bytes, which are no fewer.
    let from = unsafe { std::slice::from_raw_parts(from, wanted) };
    if run.write(from).is_err() {
        return false;
    }
    port.counters.bar1_windows += 1;
    port.counters.copied += wanted as u64;
    if let Some(op) = port.ops.get_mut(handle) {
        op.receive_more(bytes);
    }
    port.received(handle);
    true
}

/// Whether a message of a device goes eagerly: the sender's choice from the one table. A
/// send that may wait for its receive is announced where one kernel is expected to be quicker.
pub(crate) fn is_eager(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get(handle) else {
        return true;
    };
    // The table, cut: all others of this length are eager.
    let waits = op.mode != Mode::Standard && op.total > 0 && !op.has_failed();
    let short = op.total <= port.eager_max_of_devices(op.peer);
    if !waits || !short {
        return short;
    }
    if op.has_offered() {
        return false; // decided
    }
    let (peer, total) = (op.peer, op.total);
    let Some(memory) = op.view.as_device().cloned() else {
        return true;
    };
    let placement = match port.links.sharing(peer).process {
        true => Some(Placement::Process),
        false => (device_memory::opens_devices(port, peer) && memory.is_opened_elsewhere())
            .then_some(Placement::Device),
    };
    // The other side is taken to be like this one.
    let reached = port.devices.reached_by_processor(&memory, total).is_some();
    let message = Message {
        pair: placement.map(DevicePair::opened),
        waits: true,
        bar1_windows: (reached, reached),
        ..Message::between(memory.end(), memory.end(), total)
    };
    port.rules(peer).is_eager(&message)
}

/// The device of a send has failed before anything was posted. The message is
/// announced all the same, so that its receiver is told instead of waiting.
pub(crate) fn breaks(port: &mut Port, handle: u32, e: Error) {
    let Some((peer, total)) = port.ops.get(handle).map(|op| (op.peer, op.total)) else {
        return;
    };
    if total == 0 {
        port.peers[peer as usize].starts.pop_front();
        return port.finish(handle, Some(e));
    }
    if let Some(rare) = port.rare(handle) {
        rare.bounce = None;
        rare.error = Some(e);
    }
    if let Some(made) = port.ops.get_mut(handle).and_then(Op::offer) {
        made.stop_waiting();
    }
}

/// Tells the receiver of an announced message that it will not come.
pub(crate) fn report_failure(port: &mut Port, peer: u32, handle: u32) -> bool {
    rendezvous::cancel(port, peer, handle);
    let e = port.rare(handle).and_then(|rare| rare.error.take());
    end_send(port, handle, e);
    true
}

/// Whether a short message that is not packed yet is to be announced: there is no
/// memory for it, or others wait behind it and its producer may wait for them.
pub(crate) fn must_not_wait(port: &mut Port, handle: u32, hurry: bool) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let late = hurry && op.view.as_device().is_some_and(|memory| memory.is_late());
    match op.outbound() {
        Some(outbound) if late || outbound.starves() => {
            outbound.announced();
            true
        }
        _ => false,
    }
}

/// Ends a send, at once or when the kernels that pack it ahead of the engine have ended: the
/// user may write its memory then. Progress does not wait for them: they may be behind a
/// stream that a receive blocks, and only progress ends that receive.
pub(crate) fn end_send(port: &mut Port, handle: u32, error: Option<Error>) {
    if !packs(port, handle) {
        return port.finish(handle, error);
    }
    if let Some(rare) = port.rare(handle) {
        rare.error = error;
    }
    if let Some(op) = port.ops.get_mut(handle) {
        op.protocol = Protocol::Draining;
    }
}

/// Whether kernels that pack a send ahead still read its memory.
fn packs(port: &mut Port, handle: u32) -> bool {
    let op = port.ops.get_mut(handle);
    op.and_then(Op::outbound).is_some_and(Outbound::packs)
}

/// Asks the kernels of a send that is packed. True if anything moved.
pub(crate) fn advance_outbound(port: &mut Port, handle: u32) -> bool {
    // A failure is reported to the next that asks for bytes.
    if let Some(outbound) = port.ops.get_mut(handle).and_then(Op::outbound) {
        outbound.poll_kernels();
    }
    host_pipeline::refuse_slots(port, handle) || end_drained(port, handle)
}

/// Ends a send that waited only for its kernels, once they have ended.
fn end_drained(port: &mut Port, handle: u32) -> bool {
    if !port.ops.get(handle).is_some_and(Op::drains) || packs(port, handle) {
        return false;
    }
    let error = port.rare(handle).and_then(|rare| rare.error.take());
    port.finish(handle, error);
    true
}

/// So many bytes of a send were posted.
pub(crate) fn took(port: &mut Port, handle: u32, bytes: usize) {
    if let Some(outbound) = port.ops.get_mut(handle).and_then(Op::outbound) {
        outbound.took(bytes);
        port.counters.copied += bytes as u64;
    }
}

/// Makes room for a message to a device. False: the receive has failed.
pub(crate) fn begin_inbound(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let (total, peer) = (op.total, op.peer);
    let Some(memory) = op.view.as_device().cloned() else {
        return false;
    };
    let others = device_memory::turns_matter(&port.links, port.own, peer);
    match Inbound::new(&port.devices, &memory, total, others) {
        Ok(inbound) => {
            protocols::set_bounce(port, handle, Bounce::In(inbound));
            true
        }
        Err(e) => {
            let e = port.device_error(handle, e);
            fail_inbound(port, handle, e);
            false
        }
    }
}

pub(crate) fn inbound(port: &mut Port, handle: u32) -> Option<&mut Inbound> {
    port.ops.get_mut(handle)?.inbound()
}

/// Takes the next bytes of a message to a device.
pub(crate) fn stage_bytes(port: &mut Port, handle: u32, from: *const u8, bytes: usize) {
    if write_bar1(port, handle, from, bytes) {
        return;
    }
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    let room = op.view.bytes().min(op.total);
    let moved = op.received();
    let wanted = bytes.min(room - moved.min(room));
    op.receive_more(bytes);
    let whole = moved + bytes >= op.total;
    if inbound(port, handle).is_none() && !begin_inbound(port, handle) {
        return;
    }
    let Some(transfer) = inbound(port, handle) else {
        return;
    };
    // SAFETY: invariant 5: callers pass `bytes` readable bytes, of which no more are wanted.
    match unsafe { transfer.take(from, wanted) } {
        Ok(true) => {}
        // It has not been asked for these.
        Ok(false) => {
            port.counters.malformed += 1;
            let what = port.describe(handle);
            let e = Error::new(
                ErrorKind::Malformed,
                format!("{what}: more bytes came than the receiver has asked for"),
            );
            return fail_inbound(port, handle, e);
        }
        Err(e) => {
            let e = port.device_error(handle, e);
            return fail_inbound(port, handle, e);
        }
    }
    if whole {
        drain(port, handle);
    }
}

/// All bytes of a message to a device have come.
pub(crate) fn drain(port: &mut Port, handle: u32) {
    let ended = inbound(port, handle).map(Inbound::is_over);
    host_pipeline::report_taken(port, handle);
    match ended {
        Some(Ok(false)) => {
            if let Some(op) = port.ops.get_mut(handle) {
                op.protocol = Protocol::Draining;
            }
        }
        Some(Err(e)) => {
            let e = port.device_error(handle, e);
            fail_inbound(port, handle, e);
        }
        Some(Ok(true)) | None => {
            if let Some(transfer) = inbound(port, handle) {
                let (copied, first) = (transfer.copied, transfer.copied_first);
                port.counters.copied += copied;
                port.counters.copied_first += first;
            }
            port.received(handle);
        }
    }
}

/// Ends a receive in the middle; what still comes is dropped.
pub(crate) fn fail_inbound(port: &mut Port, handle: u32, e: Error) {
    open_window(port, handle);
    port.discard_rest(handle);
    port.finish(handle, Some(e));
}

/// Lets the sender of a receive that ends early go on: invariant 3.
pub(crate) fn open_window(port: &mut Port, handle: u32) {
    host_pipeline::give_slots_back(port, handle);
    let Some(transfer) = inbound(port, handle) else {
        return;
    };
    if let Some(send) = transfer.asks()
        && let Some(peer) = port.ops.get(handle).map(|op| op.peer)
    {
        port.control(peer, wire::head(wire::CTS, 0, send, 0));
    }
}

/// Asks for the fragments of an announced message to a device, as far as there is
/// memory for them.
pub(crate) fn open_stepwise(port: &mut Port, handle: u32, send: u32) {
    if inbound(port, handle).is_none() && !begin_inbound(port, handle) {
        // It has failed: what comes is dropped.
        let Some(peer) = port.ops.get(handle).map(|op| op.peer) else {
            return;
        };
        return port.control(peer, wire::head(wire::CTS, 0, send, 0));
    }
    if let Some(transfer) = inbound(port, handle) {
        transfer.ask_stepwise(send);
    }
    advance_inbound(port, handle);
}

/// Asks for all of a short message for which our memory is late: its bytes are kept, as
/// if they had come at once, so that its sender does not wait for our streams. False: it
/// is none.
pub(crate) fn keep_short(port: &mut Port, handle: u32, peer: u32, send: u32) -> bool {
    let most = port.peers[peer as usize].selection.device_eager_max();
    let short = port.ops.get(handle).filter(|op| op.total <= most);
    let late = short.is_some_and(|op| op.view.as_device().is_some_and(|m| m.is_late()));
    if !late || port.peers[peer as usize].dead.is_some() {
        return false;
    }
    let incoming = &mut port.peers[peer as usize].incoming;
    incoming.push((send, Target::Op(handle)));
    // A receive that fails drops what comes.
    begin_inbound(port, handle);
    port.control(peer, wire::head(wire::CTS, 0, send, 0));
    true
}

pub(crate) fn advance_inbound(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    let (peer, draining) = (op.peer, matches!(op.protocol, Protocol::Draining));
    if draining {
        drain(port, handle);
        return port.is_done(handle);
    }
    let reported = host_pipeline::report_taken(port, handle);
    let Some(transfer) = inbound(port, handle) else {
        return reported;
    };
    if transfer.hands.is_some() {
        let due = transfer.begin_slots();
        return host_pipeline::send_slot_cts(port, handle, peer, due) || reported;
    }
    let send = transfer.send;
    match transfer.ask() {
        Ok(None) => reported,
        Ok(more) => {
            if let Some(send) = send {
                port.control(peer, wire::head(wire::CTS, units(more), send, 0));
            }
            true
        }
        Err(e) => {
            let e = port.device_error(handle, e);
            fail_inbound(port, handle, e);
            true
        }
    }
}

/// The units that CTS carries; 0 says all.
fn units(more: Option<Option<usize>>) -> u16 {
    more.flatten()
        .map_or(0, |units| u16::try_from(units).unwrap_or(u16::MAX))
}
