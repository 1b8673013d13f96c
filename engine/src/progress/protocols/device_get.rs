//! Rendezvous by get between devices: a kernel of the receiver reads opened memory.
//!
//! ```text
//! sender                          receiver
//! [LAYOUT slot]             ->    keeps it
//! RTS total, offer          ->    (match) opens the memory, or finds it open
//!                                 when the ready event has passed: one kernel, from layout
//!                                 to layout
//!                           <-    FIN
//! ```
//!
//! Memory that goes by descriptors is asked for once, before it is opened:
//!
//! ```text
//!                           <-    FD_REQUEST number, socket
//! descriptors, by a socket  ->
//! ```
//!
//! Where an event cannot be exported, the offer says that READY will follow; the receiver
//! matches and opens the memory meanwhile.
//!
//! Of an exportable pool, the pool is asked for; its memory is open for one message only,
//! and closed before FIN.
//!
//! What cannot go this way is asked for by CTS, as any message.
//!
//! # Invariants
//! 1. No work of ours waits on a device for an event of another process: it is asked
//!    about on the host, and what is behind it is queued when it has passed. A process
//!    that dies passes no more events, and nothing of ours is stuck behind them.
//! 2. A layout is sent before the first offer that names it, on the same channel, and
//!    a slot that is sent anew has no offers in flight: the receiver takes the layout
//!    when the offer comes.
//! 3. Opened memory is closed when no transfer of this rank is under way on a device.

use super::device_memory::{Readiness, Remote};
use super::rendezvous::RtsSent;
use super::{device_memory, device_pipeline, host_pipeline, rendezvous};
use crate::device::direct::{Direct, How};
use crate::device::imports::Room;
use crate::device::{DeviceMemory, Devices, PoolLoan, Through, UnderWay};
use crate::progress::op::Protocol;
use crate::progress::port::Port;
use crate::progress::protocols::{self, Device};
use crate::protocol::reach::{Placement, Reach, supported};
use crate::wire;
use crate::wire::offer::{Want, When};
use osier_kernels::handle::{Made as Kind, OpenPool, Piece};
use osier_kernels::{After, DeviceError, DeviceSlice, DeviceView, Event, Ordered, Stream};
use osier_transports::Death;
use osier_transports::{AmHead, Incoming, cuda_ipc};
use std::sync::Arc;

/// A message that our device reads from another process's memory, or writes there.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The other side's operation.
    pub other: u32,
    pub remote: Remote,
    /// It is a send: our device writes.
    pub writes: bool,
    opened: Opened,
    /// Whose memory it is, and our device.
    owner: (u32, i32),
    own: Arc<DeviceMemory>,
    bytes: usize,
    /// What is awaited first.
    event: Option<Event>,
    copy: Option<Direct>,
    /// What the other side is asked for, and whether it was.
    want: Option<(Want, bool)>,
    /// The other side has died meanwhile.
    dead: Option<Death>,
    _under_way: UnderWay,
    devices: Arc<Devices>,
}

/// What a message is read from, or written to.
#[derive(Debug)]
enum Opened {
    Not,
    View(DeviceView<u8>),
    /// Memory of a pool, opened with the copy; lent to us by then.
    Pool(OpenPool, Option<PoolLoan>),
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some((want, _)) = self.want {
            self.devices.descriptors.forget(want.number);
        }
    }
}

/// What became of opening memory.
enum Opening {
    Done,
    /// There is no room for another mapping, or our own memory has failed.
    NoRoom,
    /// It is not as long as the message.
    Malformed,
}

enum Step {
    Waits,
    Ended,
    /// No kernel reaches both: nothing was done.
    Refused,
    Failed(DeviceError),
}

impl Mapped {
    /// What tells the other side that it is over.
    pub fn end(&self) -> AmHead {
        match self.writes {
            false => wire::head(wire::FIN, wire::OUTCOME_DONE, self.other, 0),
            true => wire::head(wire::PUT_DONE, 0, self.other, 0),
        }
    }

    /// The other side's operation, and whether nothing was queued for it.
    pub fn waits_for(&self, other: u32) -> bool {
        self.other == other && self.copy.is_none()
    }

    /// Whether nothing was queued yet.
    pub fn is_idle(&self) -> bool {
        self.copy.is_none()
    }

    fn advance(&mut self) -> Step {
        if self.writes && self.copy.is_none() {
            // Until then it can be given up.
            let ready_event = self.own.view().map(Ordered::ready_event);
            match ready_event.and_then(|ready_event| match ready_event {
                After::Event(event) => event.is_passed(),
                After::Stream(_) | After::Now => Ok(true),
            }) {
                Ok(true) => {}
                Ok(false) => return Step::Waits,
                Err(e) => return Step::Failed(e),
            }
        }
        match self.remote.readiness {
            Readiness::Known => {}
            Readiness::Pending => return Step::Waits,
            Readiness::Never => return Step::Refused,
        }
        if let Some(event) = &self.event {
            match event.is_passed() {
                Ok(true) => {}
                Ok(false) => return Step::Waits,
                Err(_) => return Step::Refused,
            }
        }
        if let (Opened::Pool(_, loan @ None), None) = (&mut self.opened, &self.copy) {
            *loan = (self.devices).lend(self.owner, self.remote.offer.key.identity);
            if loan.is_none() {
                return Step::Waits;
            }
        }
        let copy = match (&mut self.copy, &self.opened) {
            (Some(copy), _) => copy,
            (None, Opened::Not) => return Step::Waits,
            (None, _) => match self.begin() {
                Ok(copy) => self.copy.insert(copy),
                Err(_) => return Step::Refused,
            },
        };
        match copy.is_over() {
            Ok(true) => Step::Ended,
            Ok(false) => Step::Waits,
            Err(e) => Step::Failed(e),
        }
    }

    /// Opens the other side's memory, with the descriptors that it has sent.
    ///
    /// # Errors
    /// The reason why it cannot be opened.
    fn open(&mut self, given: &[Piece]) -> Result<Opening, String> {
        let Ok(own) = self.own.view() else {
            return Ok(Opening::NoRoom);
        };
        let context = own.buffer().memory().context();
        let (devices, owner, offer) = (&self.devices, self.owner, &self.remote.offer);
        let key = &offer.key;
        let from = match key.made {
            Kind::SharedPool | Kind::OtherPool => devices
                .open_pool(owner, context, key, given)
                .map(|pool| Some(Opened::Pool(pool, None))),
            _ => devices
                .open(owner, context, key, given)
                .and_then(|memory| {
                    memory
                        .map(|memory| self.remote.view(&DeviceSlice::of(memory)?))
                        .transpose()
                })
                .map(|view| view.map(Opened::View)),
        };
        let event = match &offer.when {
            When::Event(event) => devices.opened_event(owner, context, event).map(Some),
            When::Passed | When::Signalled => Ok(None),
        };
        let opened = from.and_then(|from| Ok(from.zip(Some(event?))));
        let Some((from, event)) = opened.map_err(|e| e.to_string())? else {
            return Ok(Opening::NoRoom);
        };
        let offered = self.remote.packed_bytes();
        let fits = match self.writes {
            true => offered >= Some(self.bytes),
            false => offered == Some(self.bytes),
        };
        if !fits {
            return Ok(Opening::Malformed);
        }
        self.opened = from;
        self.event = event;
        Ok(Opening::Done)
    }

    /// Queues the kernel.
    fn begin(&self) -> Result<Direct, DeviceError> {
        let own = self.own.view()?;
        let context = own.buffer().memory().context();
        // An event has passed, so that nothing waits for it.
        let ordered = |view: DeviceView<u8>, stream: &Stream| match &self.event {
            Some(event) => view.after(event),
            None => view.after_stream(stream),
        };
        let other = |stream: &Stream| match &self.opened {
            Opened::View(view) => Ok(ordered(view.clone(), stream)),
            Opened::Pool(pool, _) => {
                let memory = self.remote.offer.key.open_in(pool, stream)?;
                let view = self.remote.view(&DeviceSlice::of(memory)?)?;
                Ok(ordered(view, stream))
            }
            Opened::Not => Err(DeviceError::Unavailable("memory is not open".into())),
        };
        let how = match (self.writes, &self.opened) {
            (true, Opened::Pool(..)) => How::WritesAndReturns,
            (true, _) => How::Writes,
            (false, Opened::Pool(..)) => How::ReadsAndReturns,
            (false, _) => How::Reads,
        };
        let linked = context.id() != self.remote.offer.key.device;
        Direct::new(
            &self.devices,
            context,
            own,
            other,
            (how, self.bytes, linked),
        )
    }
}

/// Begins to read a message from its sender's memory, or to write it to its
/// receiver's, if that can be opened here. `Ok(false)`: nothing was begun.
///
/// # Errors
/// Nothing was begun because somebody refused, for this reason.
pub(crate) fn begin_mapped(
    port: &mut Port,
    handle: u32,
    peer: u32,
    other: u32,
    remote: &Remote,
) -> Result<bool, String> {
    let Some(op) = port.ops.get(handle) else {
        return Ok(false);
    };
    let (total, writes) = (op.total, op.is_send());
    let Some(own) = op.view.as_device().cloned() else {
        return Ok(false);
    };
    let Ok(view) = own.view() else {
        return Ok(false); // told by the transfer
    };
    let context = view.buffer().memory().context().clone();
    let key = &remote.offer.key;
    let placement = Placement::between(context.link(&key.device));
    let owner = (port.members[peer as usize], context.ordinal());
    let room = port.devices.has_room(owner, key);
    let want = match (room, supported(key.made, placement)) {
        (_, Reach::No(_)) | (Room::None, _) => return Ok(false),
        (Room::Free, Reach::Descriptors | Reach::Pool) => {
            match port
                .devices
                .descriptors
                .ask(port.links.sharing(peer).process_id)
            {
                Ok((number, socket)) => Some((Want { number, socket }, false)),
                Err(e) => return Err(e.to_string()),
            }
        }
        _ => None,
    };
    let mut mapped = Mapped {
        other,
        remote: remote.clone(),
        writes,
        opened: Opened::Not,
        owner,
        own,
        bytes: total,
        event: None,
        copy: None,
        want,
        dead: None,
        _under_way: UnderWay::new(&port.devices),
        devices: port.devices.clone(),
    };
    if want.is_none() {
        let opening = mapped.open(&[]);
        if !has_opened(port, opening)? {
            return Ok(false);
        }
    }
    let device = match writes {
        true => Device::Write(mapped),
        false => Device::Get(mapped),
    };
    protocols::begin_device_work(port, handle, device);
    advance_mapped(port, handle);
    Ok(true)
}

/// Says once why memory is not opened that could be.
pub(crate) fn say(port: &Port, made: Kind, placement: Placement, why: &str) {
    port.devices.say_once(made, placement, Through::Host, why);
}

/// Whether memory was opened; counts what is malformed.
fn has_opened(port: &mut Port, opening: Result<Opening, String>) -> Result<bool, String> {
    Ok(match opening? {
        Opening::Done => true,
        Opening::NoRoom => false,
        Opening::Malformed => {
            port.counters.malformed += 1;
            false
        }
    })
}

/// Asks for descriptors, and opens the memory when they have come. True if anything
/// moved.
pub(crate) fn fetch(port: &mut Port, handle: u32) -> bool {
    let Some(peer) = port.ops.get(handle).map(|op| op.peer) else {
        return false;
    };
    let Some(mapped) = state(port, handle) else {
        return false;
    };
    let other = mapped.other;
    let Some((want, asked)) = mapped.want else {
        return false;
    };
    let of = match mapped.writes {
        true => wire::OF_RECEIVE,
        false => 0,
    };
    if !asked {
        let posted = post_want(
            port,
            peer,
            wire::head(wire::FD_REQUEST, of, other, handle),
            want,
        );
        if let Some(mapped) = state(port, handle) {
            mapped.want = Some((want, posted));
        }
        return posted;
    }
    let Some(pieces) = port.devices.descriptors.take(want.number) else {
        return false;
    };
    let context = device_pipeline::context_of(port, handle);
    let Some(mapped) = state(port, handle) else {
        return false;
    };
    mapped.want = None;
    let (key, writes) = (mapped.remote.offer.key, mapped.writes);
    let opening = mapped.open(&pieces);
    if let (Err(why), Some(context), false) = (&opening, context, writes) {
        let placement = Placement::between(context.link(&key.device));
        say(port, key.made, placement, why);
    }
    if !has_opened(port, opening).unwrap_or(false) {
        go_without(port, handle, peer, other);
    }
    true
}

/// Asks the other side for descriptors. False: there was no room to say so.
pub(crate) fn post_want(port: &mut Port, peer: u32, head: AmHead, want: Want) -> bool {
    let body = want.to_wire();
    let fill = |to: *mut u8| {
        // SAFETY: invariant 2 of `protocols`: room for the body.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
    };
    port.links.post_with(peer, head, body.len(), fill).is_ok()
}

/// Asks for the bytes of a message whose memory cannot be read; or says that they
/// cannot be written.
pub(crate) fn go_without(port: &mut Port, handle: u32, peer: u32, send: u32) {
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    if op.is_send() {
        if let Protocol::Device(_) = op.protocol {
            op.protocol = Protocol::RtsSent(RtsSent { cancelling: false });
        }
        let head = wire::head(wire::PUT_DONE, wire::NOT_WRITTEN, send, 0);
        return port.control(peer, head);
    }
    op.stream();
    if let Some(rare) = &mut op.rare {
        rare.bounce = None;
    }
    match port.links.sharing(peer).host_memory {
        true => host_pipeline::ask_slots(port, handle, peer, send),
        false => rendezvous::ask_fragments(port, handle, peer, send),
    }
}

/// The other side of a message wants descriptors of its memory, or of the memory for
/// slots on its device.
pub(crate) fn on_fd_request(port: &mut Port, message: &Incoming, own: u32, other: u32) -> bool {
    let mut body = [0; Want::BYTES];
    if message.payload.len() != body.len() {
        return false;
    }
    // SAFETY: invariant 1 of `protocols`: not released yet, as long as the array.
    unsafe {
        std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
    }
    let (peer, what) = (message.peer, message.head.aux);
    let Some(want) = Want::from_wire(&body) else {
        return false;
    };
    let offered = port.ops.get(own).is_some_and(|op| {
        op.peer == peer
            && match what {
                wire::OF_SLOTS => op.is_announced(),
                0 => op.is_announced() && device_memory::offered(port, own).is_some(),
                wire::OF_RECEIVE => matches!(op.protocol.device(), Some(Device::Put(_))),
                _ => false,
            }
    });
    let op = port.ops.get(own).filter(|_| offered);
    let memory = op.and_then(|op| op.view.as_device().cloned());
    let sent = memory.is_some_and(|memory| {
        let pieces = match what {
            wire::OF_SLOTS => memory.view().and_then(|view| {
                let context = view.buffer().memory().context();
                port.devices.slot_pieces(context)
            }),
            _ => memory.pieces(),
        };
        pieces.is_ok_and(|pieces| cuda_ipc::send(&want.socket, want.number, &pieces).is_ok())
    });
    if !sent {
        port.control(peer, wire::head(wire::FD_REFUSED, 0, other, 0));
    }
    true
}

/// There are no descriptors of a message's memory.
pub(crate) fn on_fd_refused(port: &mut Port, peer: u32, handle: u32) -> bool {
    if port.ops.get(handle).is_none_or(|op| op.peer != peer) {
        return false;
    }
    let why = "its descriptors could not be sent";
    let device = port.ops.get(handle).and_then(|op| op.protocol.device());
    let (other, made) = match device {
        Some(Device::Get(mapped) | Device::Write(mapped)) if mapped.want.is_some() => {
            (mapped.other, Some(mapped.remote.offer.key.made))
        }
        Some(Device::Opening(opening)) => (opening.send, None),
        _ => return false,
    };
    if let Some(made) = made {
        say(port, made, Placement::Device, why);
    }
    go_without(port, handle, peer, other);
    true
}

pub(crate) fn state(port: &mut Port, handle: u32) -> Option<&mut Mapped> {
    match port.ops.get_mut(handle)?.protocol.device_mut()? {
        Device::Get(mapped) | Device::Write(mapped) => Some(mapped),
        _ => None,
    }
}

/// Advances a message that is read from opened memory, or written there. True if it moved.
pub(crate) fn advance_mapped(port: &mut Port, handle: u32) -> bool {
    let fetched = fetch(port, handle);
    let Some(mapped) = state(port, handle) else {
        return fetched;
    };
    let (other, dead, before) = (mapped.other, mapped.dead, mapped.copy.is_some());
    let writes = mapped.writes;
    let mapped_bytes = mapped.bytes;
    let step = mapped.advance();
    let begun = !before && mapped.copy.is_some();
    let Some(peer) = port.ops.get(handle).map(|op| op.peer) else {
        return false;
    };
    if begun {
        port.note_kernel(mapped_bytes);
    }
    match (step, dead) {
        (Step::Waits, _) => return begun || fetched,
        // Nobody can say that the memory was whole until the end.
        (_, Some(how)) => {
            protocols::end_device_work(port, handle);
            let e = port.death_error(handle, peer, how);
            port.finish(handle, Some(e));
        }
        (Step::Ended, None) => {
            protocols::end_device_work(port, handle);
            match writes {
                true => port.finish(handle, None),
                false => port.received(handle),
            }
        }
        (Step::Refused, None) => go_without(port, handle, peer, other),
        (Step::Failed(e), None) => {
            match writes {
                true => rendezvous::cancel(port, peer, handle),
                false => protocols::end_device_work(port, handle),
            }
            let e = port.device_error(handle, e);
            port.finish(handle, Some(e));
        }
    }
    port.devices.sweep();
    true
}

/// What has not begun ends with the death of its peer.
pub(crate) fn fail_reached(port: &mut Port, handle: u32, peer: u32, how: Death) {
    protocols::end_device_work(port, handle);
    let e = port.death_error(handle, peer, how);
    port.finish(handle, Some(e));
}

/// A peer has died: what was read from its memory cannot be relied on.
pub(crate) fn fail_mapped(port: &mut Port, peer: u32, how: Death) {
    for at in (0..port.staged.len()).rev() {
        let handle = port.staged[at];
        if port.ops.get(handle).is_none_or(|op| op.peer != peer) {
            continue;
        }
        let op = port.ops.get_mut(handle);
        let begun = match op.and_then(|op| op.protocol.device_mut()) {
            // A kernel that runs is waited for, and then the operation fails.
            Some(Device::Get(mapped) | Device::Write(mapped)) => {
                mapped.dead = Some(how);
                mapped.copy.is_some()
            }
            Some(Device::Opening(_)) => false,
            Some(Device::Put(placed)) => !placed.is_under_way(),
            Some(Device::Copy(_)) | None => true,
        };
        if !begun {
            fail_reached(port, handle, peer, how);
        }
    }
    if let Some(&rank) = port.members.get(peer as usize) {
        port.devices.forget(rank);
    }
}
