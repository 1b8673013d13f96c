//! Messages between devices' memory of two processes, by opened memory.
//!
//! ```text
//! sender                          receiver
//! [LAYOUT slot]             ->    keeps it
//! ANNOUNCE total, offer     ->    (match) opens the memory, or finds it open
//!                                 when the moment has passed: one kernel, from layout
//!                                 to layout
//!                           <-    FINISH
//! ```
//!
//! Memory that goes by descriptors is asked for once, before it is opened:
//!
//! ```text
//!                           <-    WANT number, socket
//! descriptors, by a socket  ->
//! ```
//!
//! Of an exportable pool, the pool is asked for; its memory is open for one message only,
//! and closed before FINISH.
//!
//! What cannot go this way is asked for by GO, as any message.
//!
//! # Invariants
//! 1. No work of ours waits on a device for an event of another process: it is asked
//!    about on the host, and what is behind it is queued when it has passed. A process
//!    that dies passes no more events, and nothing of ours is stuck behind them.
//! 2. A layout is told before the first offer that names it, on the same channel, and
//!    a slot that is told anew has no offers on their way: the receiver takes the layout
//!    when the offer comes.
//! 3. Opened memory is closed when no transfer of this rank is under way on a device.

use super::lane::{Direction, Lane, Op, State};
use super::staged::Stage;
use crate::device::direct::Direct;
use crate::device::export::{Moment, Told as ToldEvent};
use crate::device::imports::Room;
use crate::device::{DeviceMemory, Devices, PoolLoan, UnderWay};
use crate::error::Error;
use crate::protocol::reach::{Placement, Reach, Sides, Strategy, strategy, supported};
use crate::wire;
use crate::wire::offer::{LAYOUT_BYTES, LAYOUTS, Offer, Told, Want};
use osier_datatype::{Datatype, Layout};
use osier_kernels::handle::{Made as Kind, OpenPool, Piece};
use osier_kernels::{DeviceError, DeviceSlice, DeviceView, Event, Stream};
use osier_transports::shm::Death;
use osier_transports::{Incoming, PostError, TransportError, cuda_ipc};
use std::sync::Arc;

/// Layouts between two ranks, per direction.
#[derive(Default)]
pub(super) struct Layouts {
    /// Told to the peer: by slot, with the time of their last use.
    told: Vec<(Layout, u64)>,
    clock: u64,
    /// Told by the peer.
    heard: Vec<Option<Layout>>,
}

/// An offer that is made, and the event it names.
pub(super) struct Made {
    offer: Box<Offer>,
    /// Ours until the receiver has answered.
    _event: Option<ToldEvent>,
}

/// What a send can say of its memory.
pub(super) enum Offering {
    /// That is not asked for, or cannot be said.
    None,
    /// All, in `rare.offer`.
    Made,
    /// Not before the moment has passed.
    NotReady,
    Full,
    Failed(TransportError),
    Broken(Error),
}

/// Device memory of another process.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    offer: Box<Offer>,
    /// Of each instance; `None`: not told.
    layout: Option<Layout>,
}

impl Remote {
    /// Packed bytes of what lies there.
    fn packed_bytes(&self) -> Option<usize> {
        let count = usize::try_from(self.offer.count).ok()?;
        self.layout.as_ref()?.size().checked_mul(count)
    }

    fn view(&self, slice: &DeviceSlice<u8>) -> Result<DeviceView<u8>, DeviceError> {
        let size = |n: u64| {
            usize::try_from(n).map_err(|_| DeviceError::Unavailable("too large an offer".into()))
        };
        let told = || DeviceError::Unavailable("its layout was not told".into());
        let layout = self.layout.as_ref().ok_or_else(told)?;
        DeviceView::new(
            slice,
            size(self.offer.origin)?,
            layout,
            size(self.offer.count)?,
        )
    }
}

/// A message that our device reads from another process's memory.
#[derive(Debug)]
pub(super) struct Mapped {
    send: u32,
    remote: Remote,
    from: Opened,
    /// Whose memory it is, and our device.
    owner: (u32, i32),
    to: Arc<DeviceMemory>,
    bytes: usize,
    /// What is awaited first.
    event: Option<Event>,
    copy: Option<Direct>,
    /// What its sender is asked for, and whether it was.
    want: Option<(Want, bool)>,
    /// Its sender has died meanwhile.
    dead: Option<Death>,
    _under_way: UnderWay,
    devices: Arc<Devices>,
}

/// What a message is read from.
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

enum Step {
    Waits,
    Over,
    /// No kernel reaches both: nothing was done.
    Refused,
    Failed(DeviceError),
}

impl Mapped {
    /// The send that waits for FINISH.
    pub fn send(&self) -> u32 {
        self.send
    }

    fn advance(&mut self) -> Step {
        if let Some(event) = &self.event {
            match event.is_passed() {
                Ok(true) => {}
                Ok(false) => return Step::Waits,
                Err(_) => return Step::Refused,
            }
        }
        if let (Opened::Pool(_, loan @ None), None) = (&mut self.from, &self.copy) {
            *loan = (self.devices).lend(self.owner, self.remote.offer.key.identity);
            if loan.is_none() {
                return Step::Waits;
            }
        }
        let copy = match (&mut self.copy, &self.from) {
            (Some(copy), _) => copy,
            (None, Opened::Not) => return Step::Waits,
            (None, _) => match self.begin() {
                Ok(copy) => self.copy.insert(copy),
                Err(_) => return Step::Refused,
            },
        };
        match copy.is_over() {
            Ok(true) => Step::Over,
            Ok(false) => Step::Waits,
            Err(e) => Step::Failed(e),
        }
    }

    /// Queues the kernel.
    fn begin(&self) -> Result<Direct, DeviceError> {
        let to = self.to.view()?;
        let context = to.buffer().memory().context();
        // An event has passed, so that nothing waits for it.
        let ordered = |view: DeviceView<u8>, stream: &Stream| match &self.event {
            Some(event) => view.after(event),
            None => view.after_stream(stream),
        };
        let from = |stream: &Stream| match &self.from {
            Opened::View(view) => Ok(ordered(view.clone(), stream)),
            Opened::Pool(pool, _) => {
                let memory = self.remote.offer.key.open_in(pool, stream)?;
                let view = self.remote.view(&DeviceSlice::of(memory)?)?;
                Ok(ordered(view, stream))
            }
            Opened::Not => Err(DeviceError::Unavailable("memory is not open".into())),
        };
        let returns = matches!(self.from, Opened::Pool(..));
        Direct::new(&self.devices, context, (from, returns), to, self.bytes)
    }
}

impl Lane {
    /// Says where the memory of a device send lies, if its peer may open it.
    pub(super) fn offer(&mut self, handle: u32) -> Offering {
        let Some(op) = self.ops.get(handle) else {
            return Offering::None;
        };
        if op.rare.as_ref().is_some_and(|rare| rare.offer.is_some()) {
            return Offering::Made;
        }
        let Some(memory) = op.view.as_device().cloned() else {
            return Offering::None;
        };
        let (peer, total) = (op.peer, op.total);
        if op.has_failed() || !self.opens_devices(peer) || total == 0 {
            return Offering::None;
        }
        let Ok((key, origin)) = memory.key() else {
            return Offering::None;
        };
        // Handles of events name processes by their numbers.
        let tells = self.links.counts_alike(peer);
        let event = match memory.moment(&self.devices, tells) {
            Ok(Moment::Passed) => None,
            Ok(Moment::Event(told)) => Some(told),
            Ok(Moment::Later) => {
                let waits = UnderWay::new(&self.devices);
                if let Some(rare) = self.rare(handle) {
                    rare.stage = Some(Stage::Later { _waits: waits });
                }
                return Offering::NotReady;
            }
            Err(e) => return Offering::Broken(self.device_error(handle, e)),
        };
        let (layout, count) = memory.instances();
        let (layout, origin, count) = match layout.contiguous_at(count) {
            Some(base) => (Told::Run, origin.wrapping_add_signed(base as i64), total),
            None => match self.tell_layout(peer, layout) {
                Ok(told) => (told, origin, count),
                Err(PostError::Full) => return Offering::Full,
                Err(PostError::Failed(e)) => return Offering::Failed(e),
            },
        };
        let made = Made {
            offer: Box::new(Offer {
                key,
                origin,
                count: count as u64,
                layout,
                event: event.as_ref().map(|told| told.handle),
            }),
            _event: event,
        };
        if let Some(rare) = self.rare(handle) {
            rare.stage = None;
            rare.offer = Some(made);
        }
        Offering::Made
    }

    /// Whether a peer is another process that may open our devices' memory.
    fn opens_devices(&self, peer: u32) -> bool {
        self.links.transport(peer) == "shm" && !self.links.shares_process(peer)
    }

    /// What an announcement says of the memory.
    pub(super) fn offered(&self, handle: u32) -> Option<Box<Offer>> {
        let rare = self.ops.get(handle)?.rare.as_ref()?;
        rare.offer.as_ref().map(|made| made.offer.clone())
    }

    /// Tells a peer a layout, unless it knows it.
    fn tell_layout(&mut self, peer: u32, layout: &Layout) -> Result<Told, PostError> {
        let known = self.peers[peer as usize].layouts.get_or_insert_default();
        known.clock += 1;
        let clock = known.clock;
        if let Some(at) = known
            .told
            .iter()
            .position(|(told, _)| told.id() == layout.id())
        {
            known.told[at].1 = clock;
            return Ok(Told::Slot(at as u16));
        }
        let limit = LAYOUT_BYTES.min(self.links.max_payload(peer));
        let Some(wire) = layout.to_wire(limit) else {
            return Ok(Told::Not);
        };
        let slot = match known.told.len() {
            n if n < LAYOUTS => n,
            _ => {
                let oldest = known.told.iter().enumerate().min_by_key(|(_, told)| told.1);
                oldest.map_or(0, |(at, _)| at)
            }
        };
        let fill = |at: *mut u8| {
            // SAFETY: room for all of the wire form.
            unsafe { std::ptr::copy_nonoverlapping(wire.as_ptr(), at, wire.len()) }
        };
        let head = wire::head(wire::LAYOUT, 0, slot as u32, 0);
        self.links.post_with(peer, head, wire.len(), fill)?;
        let told = &mut self.peers[peer as usize]
            .layouts
            .get_or_insert_default()
            .told;
        match told.get_mut(slot) {
            Some(old) => *old = (layout.clone(), clock),
            None => told.push((layout.clone(), clock)),
        }
        Ok(Told::Slot(slot as u16))
    }

    pub(super) fn on_layout(&mut self, message: &Incoming, slot: u32) -> bool {
        let bytes = message.payload.len();
        if bytes > LAYOUT_BYTES || slot as usize >= LAYOUTS {
            return false;
        }
        let mut wire = vec![0; bytes];
        // SAFETY: not released yet, as long as the vector.
        unsafe {
            std::ptr::copy_nonoverlapping(message.payload.as_ptr(), wire.as_mut_ptr(), bytes);
        }
        let layout = Layout::from_wire(&wire);
        let sound = layout.is_some();
        let heard = &mut self.peers[message.peer as usize]
            .layouts
            .get_or_insert_default()
            .heard;
        if heard.len() <= slot as usize {
            heard.resize(slot as usize + 1, None);
        }
        heard[slot as usize] = layout;
        sound
    }

    /// The memory that an announcement offers, with the layout as it is now: invariant 2.
    /// `None`: it names a layout that was never told.
    pub(super) fn remote(&mut self, peer: u32, offer: Box<Offer>) -> Option<Box<Remote>> {
        let layout = match offer.layout {
            Told::Run => Some(u8::layout()),
            Told::Not => None,
            Told::Slot(slot) => {
                let heard = &self.peers[peer as usize].layouts.as_ref()?.heard;
                Some(heard.get(usize::from(slot))?.clone()?)
            }
        };
        Some(Box::new(Remote { offer, layout }))
    }

    /// Begins to read a message from its sender's memory, if it can be opened here.
    /// False: nothing was begun.
    pub(super) fn begin_mapped(
        &mut self,
        handle: u32,
        peer: u32,
        send: u32,
        remote: &Remote,
    ) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return false;
        };
        let (total, room) = (op.total, op.view.bytes());
        let Some(to) = op.view.as_device().cloned() else {
            return false;
        };
        let Ok(view) = to.view() else {
            return false; // told by the stage
        };
        let context = view.buffer().memory().context().clone();
        let key = &remote.offer.key;
        let placement = Placement::between(context.link(&key.device));
        let sides = Sides {
            placement,
            from: key.made,
            told: remote.layout.is_some(),
            fits: total <= room,
        };
        if let Reach::No(why) = supported(key.made, placement) {
            self.devices.say_once(key.made, placement, why);
        }
        if strategy(&sides) == Strategy::Host {
            return false;
        }
        let owner = (self.members[peer as usize], context.ordinal());
        let room = self.devices.has_room(owner, key);
        let want = match (room, supported(key.made, placement)) {
            (Room::None, _) => return false,
            (Room::Free, Reach::Descriptors | Reach::Pool) => {
                match self.devices.descriptors.ask() {
                    Ok((number, socket)) => Some((Want { number, socket }, false)),
                    Err(e) => {
                        self.devices.say_once(key.made, placement, &e.to_string());
                        return false;
                    }
                }
            }
            _ => None,
        };
        let mut mapped = Mapped {
            send,
            remote: remote.clone(),
            from: Opened::Not,
            owner,
            to,
            bytes: total,
            event: None,
            copy: None,
            want,
            dead: None,
            _under_way: UnderWay::new(&self.devices),
            devices: self.devices.clone(),
        };
        if want.is_none() && !self.open_memory(&mut mapped, peer, &[]) {
            return false;
        }
        if let Some(rare) = self.rare(handle) {
            rare.stage = Some(Stage::Mapped(Box::new(mapped)));
        }
        if let Some(op) = self.ops.get_mut(handle) {
            op.state = State::Draining;
            op.moved = total;
        }
        self.staged.push(handle);
        self.advance_mapped(handle);
        true
    }

    /// Opens what a message is read from. False: it cannot be, or it is not what was
    /// announced.
    fn open_memory(&mut self, mapped: &mut Mapped, peer: u32, given: &[Piece]) -> bool {
        let Ok(to) = mapped.to.view() else {
            return false;
        };
        let context = to.buffer().memory().context().clone();
        let offer = &mapped.remote.offer;
        let owner = (self.members[peer as usize], context.ordinal());
        let (devices, key) = (&self.devices, &offer.key);
        let from = match key.made {
            Kind::SharedPool => devices
                .open_pool(owner, &context, &key.device, given)
                .map(|pool| Some(Opened::Pool(pool, None))),
            _ => devices
                .open(owner, &context, key, given)
                .and_then(|memory| {
                    memory
                        .map(|memory| mapped.remote.view(&DeviceSlice::of(memory)?))
                        .transpose()
                })
                .map(|view| view.map(Opened::View)),
        };
        let event = (offer.event.as_ref())
            .map(|event| devices.opened_event(owner, &context, event))
            .transpose();
        let opened = from.and_then(|from| Ok(from.zip(Some(event?))));
        match opened {
            Ok(Some((from, event))) => {
                let told = mapped.remote.packed_bytes();
                if told != Some(mapped.bytes) {
                    self.counters.malformed += 1;
                    return false;
                }
                mapped.from = from;
                mapped.event = event;
                true
            }
            Ok(None) => false, // no room for another mapping
            Err(e) => {
                let placement = Placement::between(context.link(&offer.key.device));
                self.devices
                    .say_once(offer.key.made, placement, &e.to_string());
                false
            }
        }
    }

    /// Asks for descriptors, and opens the memory when they have come. True if anything
    /// moved.
    fn fetch(&mut self, handle: u32) -> bool {
        let Some(peer) = self.ops.get(handle).map(|op| op.peer) else {
            return false;
        };
        let Some(mapped) = self.mapped(handle) else {
            return false;
        };
        let send = mapped.send;
        let Some((want, asked)) = mapped.want else {
            return false;
        };
        if !asked {
            let body = want.to_wire();
            let fill = |to: *mut u8| {
                // SAFETY: room for the body.
                unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
            };
            let head = wire::head(wire::WANT, 0, send, handle);
            let posted = self.links.post_with(peer, head, body.len(), fill).is_ok();
            if let Some(mapped) = self.mapped(handle) {
                mapped.want = Some((want, posted));
            }
            return posted;
        }
        let Some(pieces) = self.devices.descriptors.take(want.number) else {
            return false;
        };
        let Some(rare) = self.rare(handle) else {
            return false;
        };
        let Some(Stage::Mapped(mut mapped)) = rare.stage.take() else {
            return false;
        };
        mapped.want = None;
        let open = self.open_memory(&mut mapped, peer, &pieces);
        if let Some(rare) = self.rare(handle) {
            rare.stage = Some(Stage::Mapped(mapped));
        }
        if !open {
            self.go_without(handle, peer, send);
        }
        true
    }

    /// Asks for the bytes of a message whose memory cannot be read.
    fn go_without(&mut self, handle: u32, peer: u32, send: u32) {
        if let Some(rare) = self.rare(handle) {
            rare.stage = None;
        }
        if let Some(op) = self.ops.get_mut(handle) {
            op.state = State::Streaming;
            op.moved = 0;
        }
        match self.links.shares_memory(peer) {
            true => self.ask_chunks(handle, peer, send),
            false => self.ask_fragments(handle, peer, send),
        }
    }

    /// The receiver of an announced message wants descriptors of its memory.
    pub(super) fn on_want(&mut self, message: &Incoming, send: u32, receive: u32) -> bool {
        let mut body = [0; Want::BYTES];
        if message.payload.len() != body.len() {
            return false;
        }
        // SAFETY: not released yet, as long as the array.
        unsafe {
            std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
        }
        let peer = message.peer;
        let Some(want) = Want::from_wire(&body) else {
            return false;
        };
        let offered = self.ops.get(send).is_some_and(|op| {
            op.direction == Direction::Send && op.peer == peer && op.state == State::Announced
        });
        let memory = match offered && self.offered(send).is_some() {
            true => self
                .ops
                .get(send)
                .and_then(|op| op.view.as_device().cloned()),
            false => None,
        };
        let sent = memory.is_some_and(|memory| {
            let pieces = memory.pieces();
            pieces.is_ok_and(|pieces| cuda_ipc::send(&want.socket, want.number, &pieces).is_ok())
        });
        if !sent {
            self.control(peer, wire::head(wire::WITHOUT, 0, receive, 0));
        }
        true
    }

    /// There are no descriptors of a message's memory.
    pub(super) fn on_without(&mut self, peer: u32, handle: u32) -> bool {
        if self.ops.get(handle).is_none_or(|op| op.peer != peer) {
            return false;
        }
        let Some(mapped) = self.mapped(handle) else {
            return false;
        };
        let (send, made) = (mapped.send, mapped.remote.offer.key.made);
        if mapped.want.is_none() {
            return false;
        }
        let why = "its descriptors could not be sent";
        self.devices.say_once(made, Placement::Device, why);
        self.go_without(handle, peer, send);
        true
    }

    /// A kernel copies so many bytes of a message from device to device.
    pub(super) fn note_kernel(&mut self, bytes: usize) {
        self.counters.pulled += 1;
        self.counters.kernels += 1;
        self.counters.kernel_bytes += bytes as u64;
    }

    fn mapped(&mut self, handle: u32) -> Option<&mut Mapped> {
        match self.ops.get_mut(handle).and_then(Op::stage)? {
            Stage::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// Looks after a message that is read from opened memory. True if it moved.
    pub(super) fn advance_mapped(&mut self, handle: u32) -> bool {
        let fetched = self.fetch(handle);
        let Some(mapped) = self.mapped(handle) else {
            return fetched;
        };
        let (send, dead, before) = (mapped.send, mapped.dead, mapped.copy.is_some());
        let mapped_bytes = mapped.bytes;
        let step = mapped.advance();
        let begun = !before && mapped.copy.is_some();
        let Some(peer) = self.ops.get(handle).map(|op| op.peer) else {
            return false;
        };
        if begun {
            self.note_kernel(mapped_bytes);
        }
        match (step, dead) {
            (Step::Waits, _) => return begun || fetched,
            // Nobody can say that the memory was whole until the end.
            (_, Some(how)) => {
                self.end_direct(handle);
                let e = self.death_error(handle, peer, how);
                self.finish(handle, Some(e));
            }
            (Step::Over, None) => {
                self.end_direct(handle);
                self.received(handle);
            }
            (Step::Refused, None) => self.go_without(handle, peer, send),
            (Step::Failed(e), None) => {
                self.end_direct(handle);
                let e = self.device_error(handle, e);
                self.finish(handle, Some(e));
            }
        }
        self.devices.sweep();
        true
    }

    /// A peer has died: what was read from its memory cannot be relied on.
    pub(super) fn fail_mapped(&mut self, peer: u32, how: Death) {
        for at in (0..self.staged.len()).rev() {
            let handle = self.staged[at];
            if self.ops.get(handle).is_none_or(|op| op.peer != peer) {
                continue;
            }
            let Some(mapped) = self.mapped(handle) else {
                continue;
            };
            // A kernel that runs is waited for by whoever looks after it.
            mapped.dead = Some(how);
            if mapped.copy.is_none() {
                self.end_direct(handle);
                let e = self.death_error(handle, peer, how);
                self.finish(handle, Some(e));
            }
        }
        if let Some(&rank) = self.members.get(peer as usize) {
            self.devices.forget(rank);
        }
    }
}
