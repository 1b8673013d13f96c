//! Metadata of device memory between ranks: offers, layouts, and ready events.
//!
//! What is done with them is in [`super::device_get`], [`super::device_put`] and
//! [`super::device_pipeline`]. Invariant: 2 of [`super::device_get`].

use super::device_get;
use crate::device::UnderWay;
use crate::device::export::{ExportedEvent, ReadyEvent};
use crate::error::Error;
use crate::progress::arrival::Arrival;
use crate::progress::lane::Lane;
use crate::progress::links::Links;
use crate::progress::op::{Exposed, Op};
use crate::progress::port::Port;
use crate::protocol::device::Class;
use crate::wire;
use crate::wire::offer::{LAYOUT_BYTES, LAYOUT_PART_BYTES, LAYOUTS, LayoutRef, Offer, When};
use osier_datatype::{Datatype, Layout};
use osier_kernels::{DeviceError, DeviceSlice, DeviceView};
use osier_transports::{Incoming, PostError, TransportError};
use std::collections::VecDeque;

/// Layouts between two ranks, per direction.
#[derive(Default)]
pub(crate) struct Layouts {
    /// Sent to the peer: by slot, with the time of their last use.
    sent: Vec<(Layout, u64)>,
    clock: u64,
    /// One of which the peer has a part.
    leaving: Option<Leaving>,
    /// Too long to be sent, and the bytes that they were allowed.
    too_long: VecDeque<(Layout, usize)>,
    /// Received from the peer, by slot.
    received: Vec<Option<Layout>>,
    /// The parts of the one that comes, and its slot.
    coming: Option<(u32, Vec<u8>)>,
}

/// A layout on its way, part by part.
struct Leaving {
    layout: Layout,
    slot: usize,
    wire: Vec<u8>,
    posted: usize,
}

/// Layouts that are known to be too long.
const TOO_LONG: usize = 16;
/// A layout of more than one part is sent for a message that is as many times as long.
const BYTES_PER_LAYOUT_BYTE: usize = 4;

/// A made offer, and the event it names.
pub(crate) struct MadeOffer {
    offer: Box<Offer>,
    /// Ours until the receiver has answered.
    _event: Option<ExportedEvent>,
    /// READY is to follow when the memory's ready event has passed.
    waits: Option<UnderWay>,
}

impl MadeOffer {
    /// Whether READY is still to be sent.
    pub fn waits(&self) -> bool {
        self.waits.is_some()
    }

    /// READY was sent, or the message takes another protocol.
    pub fn stop_waiting(&mut self) {
        self.waits = None;
    }
}

/// Outcome of offering a send's memory.
pub(crate) enum Offering {
    /// Not needed, or not possible.
    None,
    /// Made: it is in `rare.exposed`.
    Made,
    Full,
    Failed(TransportError),
    Broken(Error),
}

/// Device memory of another process.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub offer: Box<Offer>,
    /// Of each instance; `None`: unknown.
    layout: Option<Layout>,
    /// State of its ready event.
    pub readiness: Readiness,
}

/// The owner's report of a ready event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// READY will follow.
    Pending,
    /// Passed, or named by the offer.
    Known,
    /// It has failed.
    Never,
}

impl Remote {
    /// Whether its layout is known.
    pub fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// What the layout costs like; of one that is not known the worst.
    pub fn class(&self) -> Class {
        let layout = self.layout.as_ref();
        layout.map_or(Class::Listed, |layout| {
            Class::of(
                layout,
                usize::try_from(self.offer.count).unwrap_or(usize::MAX),
            )
        })
    }

    /// Packed bytes of what lies there.
    pub fn packed_bytes(&self) -> Option<usize> {
        let count = usize::try_from(self.offer.count).ok()?;
        self.layout.as_ref()?.size().checked_mul(count)
    }

    pub fn view(&self, slice: &DeviceSlice<u8>) -> Result<DeviceView<u8>, DeviceError> {
        let size = |n: u64| {
            usize::try_from(n).map_err(|_| DeviceError::Unavailable("too large an offer".into()))
        };
        let unknown = || DeviceError::Unavailable("its layout is unknown".into());
        let layout = self.layout.as_ref().ok_or_else(unknown)?;
        DeviceView::new(
            slice,
            size(self.offer.origin)?,
            layout,
            size(self.offer.count)?,
        )
    }
}

/// Offers the memory of a device send, if its peer may open it.
pub(crate) fn offer(port: &mut Port, handle: u32) -> Offering {
    let Some(op) = port.ops.get(handle) else {
        return Offering::None;
    };
    if op.has_offered() {
        return Offering::Made;
    }
    let Some(memory) = op.view.as_device().cloned() else {
        return Offering::None;
    };
    let (peer, total) = (op.peer, op.total);
    if op.has_failed() || !opens_devices(port, peer) || total == 0 {
        return Offering::None;
    }
    let Ok((key, origin)) = memory.key() else {
        return Offering::None;
    };
    // Handles of events name processes by their numbers.
    let numbered = port.links.sharing(peer).process_numbers;
    let (event, when) = match memory.ready_event(&port.devices, numbered) {
        Ok(ReadyEvent::Passed) => (None, When::Passed),
        Ok(ReadyEvent::Event(exported)) => {
            let handle = exported.handle;
            (Some(exported), When::Event(handle))
        }
        Ok(ReadyEvent::Later) => (None, When::Signalled),
        Err(e) => return Offering::Broken(port.device_error(handle, e)),
    };
    let (layout, count) = memory.instances();
    let (layout, origin, count) = match layout.contiguous_at(count) {
        Some(base) => (
            LayoutRef::Contiguous,
            origin.wrapping_add_signed(base as i64),
            total,
        ),
        None => match send_layout(port, peer, layout, total) {
            Ok(layout) => (layout, origin, count),
            Err(PostError::Full) => return Offering::Full,
            Err(PostError::Failed(e)) => return Offering::Failed(e),
        },
    };
    let made = MadeOffer {
        offer: Box::new(Offer {
            key,
            origin,
            count: count as u64,
            layout,
            when,
        }),
        _event: event,
        waits: (when == When::Signalled).then(|| UnderWay::new(&port.devices)),
    };
    if let Some(rare) = port.rare(handle) {
        rare.exposed = Some(Exposed::Device(made));
    }
    if when == When::Signalled {
        port.staged.push(handle);
    }
    Offering::Made
}

/// Sends READY for an announced message if its memory may be used, or never will.
/// True if it was sent.
pub(crate) fn send_ready(port: &mut Port, handle: u32) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return false;
    };
    if !op.is_announced() {
        return false; // not announced yet
    }
    let (peer, memory) = (op.peer, op.view.as_device().cloned());
    let aux = match memory.map(|memory| memory.is_valid()) {
        Some(Ok(true)) => 0,
        Some(Ok(false)) => return false,
        Some(Err(e)) => {
            let e = port.device_error(handle, e);
            if let Some(rare) = port.rare(handle) {
                rare.error = Some(e);
            }
            wire::NEVER
        }
        None => wire::NEVER,
    };
    if let Some(made) = port.ops.get_mut(handle).and_then(Op::offer) {
        made.stop_waiting();
    }
    port.control(peer, wire::head(wire::READY, aux, handle, 0));
    true
}

/// Whether a peer is another process that may open our devices' memory.
pub(crate) fn opens_devices(port: &Port, peer: u32) -> bool {
    port.links.sharing(peer).devices
}

/// Whether other processes may need the device while a message to or from a peer is on its way:
/// that is one of them, or it is this rank itself, which copies so for calls with others.
pub(crate) fn turns_matter(links: &Links, own: u32, peer: u32) -> bool {
    links.sharing(peer).devices || peer == own
}

/// The offer in an RTS.
pub(crate) fn offered(port: &Port, handle: u32) -> Option<Box<Offer>> {
    match &port.ops.get(handle)?.rare.as_ref()?.exposed {
        Some(Exposed::Device(made)) => Some(made.offer.clone()),
        _ => None,
    }
}

/// Sends a layout to a peer for a message of `total` bytes, unless the peer has it.
pub(crate) fn send_layout(
    port: &mut Port,
    peer: u32,
    layout: &Layout,
    total: usize,
) -> Result<LayoutRef, PostError> {
    // One that has begun comes first, also one of another message.
    send_parts(port, peer)?;
    let part = LAYOUT_PART_BYTES.min(port.links.max_payload(peer));
    let known = port.peers[peer as usize].layouts.get_or_insert_default();
    known.clock += 1;
    let clock = known.clock;
    if let Some(at) = known
        .sent
        .iter()
        .position(|(sent, _)| sent.id() == layout.id())
    {
        known.sent[at].1 = clock;
        return Ok(LayoutRef::Slot(at as u16));
    }
    let limit = (total / BYTES_PER_LAYOUT_BYTE).min(LAYOUT_BYTES).max(part);
    let refused = |(long, allowed): &(Layout, usize)| long.id() == layout.id() && limit <= *allowed;
    if known.too_long.iter().any(refused) {
        return Ok(LayoutRef::Absent);
    }
    let Some(wire) = layout.to_wire(limit) else {
        known.too_long.truncate(TOO_LONG - 1);
        known.too_long.push_front((layout.clone(), limit));
        return Ok(LayoutRef::Absent);
    };
    let slot = match known.sent.len() {
        n if n < LAYOUTS => n,
        _ => {
            let oldest = known.sent.iter().enumerate().min_by_key(|(_, sent)| sent.1);
            oldest.map_or(0, |(at, _)| at)
        }
    };
    known.leaving = Some(Leaving {
        layout: layout.clone(),
        slot,
        wire,
        posted: 0,
    });
    send_parts(port, peer)?;
    Ok(LayoutRef::Slot(slot as u16))
}

/// Sends what is left of a layout that has begun to leave.
fn send_parts(port: &mut Port, peer: u32) -> Result<(), PostError> {
    let part = LAYOUT_PART_BYTES.min(port.links.max_payload(peer)).max(1);
    loop {
        let layouts = port.peers[peer as usize].layouts.as_mut();
        let Some(known) = layouts.filter(|known| known.leaving.is_some()) else {
            return Ok(());
        };
        let Some(leaving) = &mut known.leaving else {
            return Ok(());
        };
        let rest = &leaving.wire[leaving.posted..];
        let bytes = rest.len().min(part);
        let more = match bytes < rest.len() {
            true => wire::MORE,
            false => 0,
        };
        let fill = |at: *mut u8| {
            // SAFETY: invariant 2 of `protocols`: room for this part of the wire form.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), at, bytes) }
        };
        let head = wire::head(wire::LAYOUT, more, leaving.slot as u32, 0);
        match port.links.post_with(peer, head, bytes, fill) {
            Ok(_) => leaving.posted += bytes,
            // The peer keeps the parts that it has until the rest comes.
            Err(e) => return Err(e),
        }
        if more == 0
            && let Some(Leaving { layout, slot, .. }) = known.leaving.take()
        {
            let sent = (layout, known.clock);
            match known.sent.get_mut(slot) {
                Some(old) => *old = sent,
                None => known.sent.push(sent),
            }
        }
    }
}

pub(crate) fn on_layout(port: &mut Port, message: &Incoming, slot: u32) -> bool {
    let (bytes, more) = (message.payload.len(), message.head.aux);
    let known = port.peers[message.peer as usize]
        .layouts
        .get_or_insert_default();
    let (of, mut wire) = known.coming.take().unwrap_or((slot, Vec::new()));
    let begun = wire.len();
    let sound = of == slot
        && (slot as usize) < LAYOUTS
        && bytes <= LAYOUT_PART_BYTES
        && begun + bytes <= LAYOUT_BYTES
        && matches!(more, 0 | wire::MORE);
    if !sound {
        return false;
    }
    wire.resize(begun + bytes, 0);
    // SAFETY: invariant 1 of `protocols`: not released yet, as long as the vector has grown.
    unsafe {
        std::ptr::copy_nonoverlapping(message.payload.as_ptr(), wire[begun..].as_mut_ptr(), bytes);
    }
    if more == wire::MORE {
        known.coming = Some((slot, wire));
        return true;
    }
    let layout = Layout::from_wire(&wire);
    let sound = layout.is_some();
    if known.received.len() <= slot as usize {
        known.received.resize(slot as usize + 1, None);
    }
    known.received[slot as usize] = layout;
    sound
}

/// The memory that an announcement offers, with the layout as it is now: invariant 2.
/// A missing or damaged layout is counted; the message takes a protocol that needs
/// none.
pub(crate) fn remote(port: &mut Port, peer: u32, offer: Box<Offer>) -> Box<Remote> {
    let layout = match offer.layout {
        LayoutRef::Contiguous => Some(u8::layout()),
        LayoutRef::Absent => None,
        LayoutRef::Slot(slot) => {
            let received = port.peers[peer as usize].layouts.as_ref();
            let layout = received.and_then(|all| all.received.get(usize::from(slot))?.clone());
            port.counters.malformed += u64::from(layout.is_none());
            layout
        }
    };
    let readiness = match offer.when {
        When::Signalled => Readiness::Pending,
        When::Passed | When::Event(_) => Readiness::Known,
    };
    Box::new(Remote {
        offer,
        layout,
        readiness,
    })
}

impl Lane {
    /// The memory that a peer's announcement has offered may be used, or never will.
    pub(crate) fn on_ready(&mut self, peer: u32, send: u32, aux: u16) -> bool {
        let readiness = match aux {
            0 => Readiness::Known,
            wire::NEVER => Readiness::Never,
            _ => return false,
        };
        let waits = |remote: &Remote| remote.readiness == Readiness::Pending;
        for handle in self.port.staged.clone() {
            if self.port.ops.get(handle).is_some_and(|op| op.peer == peer)
                && let Some(mapped) = device_get::state(&mut self.port, handle)
                && !mapped.writes
                && mapped.other == send
            {
                let awaited = waits(&mapped.remote);
                mapped.remote.readiness = readiness;
                return awaited;
            }
        }
        // Nobody has received it yet.
        let arrivals: Vec<u32> = self.arrivals.handles().collect();
        for arrival in arrivals {
            if let Some(arrived) = self.arrivals.get_mut(arrival)
                && arrived.envelope.source == peer
                && let Arrival::Rts { send: s, offer, .. } = &mut arrived.what
                && *s == send
                && let Some(remote) = &mut offer.memory
            {
                let awaited = waits(remote);
                remote.readiness = readiness;
                return awaited;
            }
        }
        // It takes another protocol, or has ended.
        true
    }
}
