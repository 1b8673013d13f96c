//! Messages from and to the memory of devices.
//!
//! The engine's protocols stay as they are: a send takes its packed bytes from a stage
//! as they become ready, a receive puts them into one ([`crate::device::stage`]).
//!
//! ```text
//! send     Starting   waits for its first chunk, if the message is short
//!          Streaming  fragments as far as chunks are packed
//! receive  Streaming  bytes into pinned memory
//!          Draining   the device unpacks the rest -> Done
//! ```
//!
//! Ranks that share memory hand chunks over ([`super::chunks`]). Between others a long
//! message is sent as far as its receiver has chunks: GO says how many units of
//! [`wire::WINDOW_BYTES`] may come, and further ones follow as chunks are unpacked. So
//! what waits on the host is bounded by the stage, whatever the message's size.
//!
//! # Invariants
//! 1. A send that waits for its device holds up later starts to its peer, which must
//!    not overtake it, and nothing else; if it waits for its producer, and not for its
//!    own kernel, it is announced instead as soon as there are any.
//! 2. An operation with a stage is in `staged`: it is looked after as long as a device
//!    may work for it.
//! 3. Whoever ends a windowed receive early lets its sender go on: the rest is dropped
//!    as it comes.

use super::lane::{Lane, Op, State, Target};
use super::mapped::Mapped;
use super::place::Placed;
use super::reached::Opening;
use crate::device::direct::{Direct, How};
use crate::device::pool::Claim;
use crate::device::stage::{Inbound, Outbound};
use crate::device::{DeviceMemory, Devices, Through, UnderWay};
use crate::error::{Error, ErrorKind};
use crate::protocol::device::{Between, Move, Way};
use crate::protocol::reach::Placement;
use crate::view::RawView;
use crate::wire;
use osier_kernels::handle::Made;
use osier_kernels::{DeviceError, DeviceView, Ordered};
use osier_transports::{RegionKey, RegionKind};
use std::ops::Range;
use std::sync::Arc;

/// A message between the host and a device.
#[derive(Debug)]
pub(super) enum Stage {
    Out(Outbound),
    In(Inbound),
    /// The receiver's device copies; the send waits for FINISH.
    Direct(Direct, u32),
    /// Our device reads memory of another process, or writes it.
    Mapped(Box<Mapped>),
    /// The sender's memory for chunks is opened.
    Opening(Box<Opening>),
    /// The sender's device writes our memory.
    Placed(Box<Placed>),
    /// A send that is announced, and whose receiver is to be told when its memory's moment
    /// has passed.
    Later {
        _waits: UnderWay,
    },
}

/// Packed bytes that a send posts next.
pub(super) enum Source {
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
    pub(super) unsafe fn put(&self, view: &RawView, packed: Range<usize>, to: *mut u8) {
        match self {
            // SAFETY: the caller's contract.
            Source::Packed(from, _) => unsafe {
                std::ptr::copy_nonoverlapping(*from, to, packed.len());
            },
            // SAFETY: the caller's contract.
            _ => unsafe { view.pack(packed, to) },
        }
    }
}

/// Refuses memory with a moment in the work of a graph, which nobody outside can wait for.
#[inline]
pub(super) fn check_moment(view: &RawView) -> Result<(), Error> {
    match view.as_device().map(|memory| memory.check()) {
        Some(Err(e @ DeviceError::Capture(_))) => Err(e.into()),
        _ => Ok(()),
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
        Ok(()) => Direct::new(devices, here, to, |_| Ok(from.clone()), (How::Reads, bytes)),
        Err(why) => {
            there.reach(target).map_err(|_| why)?;
            Direct::new(
                devices,
                there,
                from,
                |_| Ok(to.clone()),
                (How::Writes, bytes),
            )
        }
    }
}

impl Op {
    pub(super) fn stage(&mut self) -> Option<&mut Stage> {
        self.rare.as_mut()?.stage.as_mut()
    }

    /// Whether its device has failed before it began, which its receiver is to learn.
    pub(super) fn has_failed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.error.is_some())
    }

    /// Bytes up to which the receiver lets a send go.
    pub(super) fn window(&self) -> usize {
        let window = self.rare.as_ref().and_then(|rare| rare.window);
        window.unwrap_or(self.total)
    }
}

impl Lane {
    /// Where the next bytes of a send are; begins to pack at the first call.
    pub(super) fn source(&mut self, handle: u32) -> Result<Source, Error> {
        let Some(op) = self.ops.get_mut(handle) else {
            return Ok(Source::View);
        };
        let Some(memory) = op.view.as_device() else {
            return Ok(Source::View);
        };
        let (memory, state) = (memory.clone(), op.state);
        if op.total == 0 {
            let nothing = Source::Packed(std::ptr::dangling(), 0);
            let usable = memory.check().map(|()| nothing);
            return usable.map_err(|e| self.device_error(handle, e));
        }
        if state == State::Starting
            && self.ops.get_mut(handle).and_then(Op::stage).is_none()
            && let Some(source) = self.read_aperture(handle, &memory)
        {
            return Ok(source);
        }
        let claim = match state {
            State::Starting if self.goes_at_once(handle) => Claim::Short,
            State::Starting => Claim::Announced,
            _ => Claim::Send,
        };
        let ready = match self.ops.get_mut(handle).and_then(Op::stage) {
            Some(Stage::Out(stage)) => stage.ready(),
            _ => Outbound::new(&self.devices, &memory, claim).and_then(|mut stage| {
                let ready = stage.ready();
                if let Some(rare) = self.rare(handle) {
                    rare.stage = Some(Stage::Out(stage));
                }
                self.staged.push(handle);
                ready
            }),
        };
        match ready {
            Ok((_, 0)) => Ok(Source::NotReady),
            Ok((from, bytes)) => Ok(Source::Packed(from, bytes)),
            Err(e) => Err(self.device_error(handle, e)),
        }
    }

    /// The bytes of a short message, read by the processor; none where something else is
    /// quicker, or its moment has not passed.
    fn read_aperture(&mut self, handle: u32, memory: &DeviceMemory) -> Option<Source> {
        let total = self.ops.get(handle)?.total;
        if !self.goes_at_once(handle) {
            return None;
        }
        if self.scratch_of == Some(handle) {
            return Some(Source::Packed(self.scratch.as_ptr(), total));
        }
        let run = self.devices.aperture(memory, Move::Fill, total)?;
        self.scratch.resize(total, 0);
        run.read(&mut self.scratch).ok()?;
        self.scratch_of = Some(handle);
        self.counters.apertures += 1;
        self.counters.copied += total as u64;
        Some(Source::Packed(self.scratch.as_ptr(), total))
    }

    /// Writes a message that has come whole into a device's memory by the processor. False:
    /// something else is quicker, its moment has not passed, or a stream waits for it, for
    /// work that was queued before need not see such writes.
    fn write_aperture(&mut self, handle: u32, from: *const u8, bytes: usize) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return false;
        };
        let wanted = op.view.bytes().min(op.total);
        let rare = op.rare.as_ref();
        let begun = rare.is_some_and(|rare| rare.stage.is_some() || !rare.holds.is_empty());
        if begun || op.moved != 0 || bytes != op.total || wanted == 0 {
            return false;
        }
        let Some(memory) = op.view.as_device().cloned() else {
            return false;
        };
        let Some(run) = self.devices.aperture(&memory, Move::Empty, wanted) else {
            return false;
        };
        // SAFETY: callers pass `bytes` readable bytes, which are no fewer.
        let from = unsafe { std::slice::from_raw_parts(from, wanted) };
        if run.write(from).is_err() {
            return false;
        }
        self.counters.apertures += 1;
        self.counters.copied += wanted as u64;
        if let Some(op) = self.ops.get_mut(handle) {
            op.moved = bytes;
        }
        self.received(handle);
        true
    }

    /// Whether a message of a device goes at once, without an announcement. Whoever may
    /// wait for the receive anyway is announced where one kernel is expected to be quicker.
    pub(super) fn goes_at_once(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return true;
        };
        let most = self.devices.eager_max(self.selection.device_eager_max());
        match op.total <= most {
            true if op.total == 0 || op.has_failed() => true,
            true => !(op.synchronous || op.ready) || !self.announcing_pays(handle),
            false => false,
        }
    }

    /// Whether a kernel of a receiver that is a device, too, would read a short message
    /// sooner than it would come through the host.
    fn announcing_pays(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return false;
        };
        if op.rare.as_ref().is_some_and(|rare| rare.offer.is_some()) {
            return true; // decided
        }
        let (peer, total) = (op.peer, op.total);
        let Some(memory) = op.view.as_device().cloned() else {
            return false;
        };
        let near = match self.links.shares_process(peer) {
            true => true,
            false => self.opens_devices(peer) && memory.is_opened_elsewhere(),
        };
        let end = memory.end();
        // The other side is taken to be like this one.
        let reached = self.devices.reached_by_processor(&memory, total).is_some();
        let between = Between {
            apertures: (reached, reached),
            ..Between::default()
        };
        let model = self.devices.model();
        let ns = |way| model.predict_between(end, end, total, way, between).ns;
        near && ns(Way::Kernel) < ns(Way::Bounce)
    }

    /// The device of a send has failed before anything was posted. The message is
    /// announced all the same, so that its receiver is told instead of waiting.
    pub(super) fn breaks(&mut self, handle: u32, e: Error) {
        let Some((peer, total)) = self.ops.get(handle).map(|op| (op.peer, op.total)) else {
            return;
        };
        if total == 0 {
            self.peers[peer as usize].starts.pop_front();
            return self.finish(handle, Some(e));
        }
        if let Some(rare) = self.rare(handle) {
            rare.stage = None;
            rare.error = Some(e);
        }
    }

    /// Tells the receiver of an announced message that it will not come.
    pub(super) fn tell_failure(&mut self, peer: u32, handle: u32) -> bool {
        self.withdraw(peer, handle);
        let e = self.rare(handle).and_then(|rare| rare.error.take());
        self.finish(handle, e);
        true
    }

    /// Whether a short message that is not packed yet is to be announced: there is no
    /// memory for it, or others wait behind it and its producer may wait for them.
    pub(super) fn must_not_wait(&mut self, handle: u32, hurry: bool) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return false;
        };
        let late = hurry && op.view.as_device().is_some_and(|memory| memory.is_late());
        match op.stage() {
            Some(Stage::Out(stage)) if late || stage.starves() => {
                stage.announced();
                true
            }
            _ => false,
        }
    }

    /// So many bytes of a send were posted.
    pub(super) fn took(&mut self, handle: u32, bytes: usize) {
        if let Some(Stage::Out(stage)) = self.ops.get_mut(handle).and_then(Op::stage) {
            stage.took(bytes);
            self.counters.copied += bytes as u64;
        }
    }

    /// That a send's memory was freed while its receiver could read it: then nobody knows
    /// what it has read.
    pub(super) fn freed(&self, handle: u32) -> Option<Error> {
        let memory = self.ops.get(handle)?.view.as_device()?;
        let gone = memory.check_lives().err()?;
        Some(self.device_error(handle, gone))
    }

    pub(super) fn device_error(&self, handle: u32, e: DeviceError) -> Error {
        Error::from(e).context(self.describe(handle))
    }

    /// Makes room for a message to a device. False: the receive has failed.
    pub(super) fn begin_inbound(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return false;
        };
        let total = op.total;
        let Some(memory) = op.view.as_device().cloned() else {
            return false;
        };
        match Inbound::new(&self.devices, &memory, total) {
            Ok(stage) => {
                if let Some(rare) = self.rare(handle) {
                    rare.stage = Some(Stage::In(stage));
                }
                self.staged.push(handle);
                true
            }
            Err(e) => {
                let e = self.device_error(handle, e);
                self.fail_inbound(handle, e);
                false
            }
        }
    }

    pub(super) fn inbound(&mut self, handle: u32) -> Option<&mut Inbound> {
        match self.ops.get_mut(handle)?.stage()? {
            Stage::In(stage) => Some(stage),
            _ => None,
        }
    }

    /// Takes the next bytes of a message to a device.
    pub(super) fn stage_bytes(&mut self, handle: u32, from: *const u8, bytes: usize) {
        if self.write_aperture(handle, from, bytes) {
            return;
        }
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        let room = op.view.bytes().min(op.total);
        let wanted = bytes.min(room - op.moved.min(room));
        op.moved += bytes;
        let whole = op.moved >= op.total;
        if self.inbound(handle).is_none() && !self.begin_inbound(handle) {
            return;
        }
        let Some(stage) = self.inbound(handle) else {
            return;
        };
        // SAFETY: callers pass `bytes` readable bytes.
        match unsafe { stage.take(from, wanted) } {
            Ok(true) => {}
            // It has not been asked for these.
            Ok(false) => {
                self.counters.malformed += 1;
                let what = self.describe(handle);
                let e = Error::new(
                    ErrorKind::Malformed,
                    format!("{what}: more bytes came than the receiver has asked for"),
                );
                return self.fail_inbound(handle, e);
            }
            Err(e) => {
                let e = self.device_error(handle, e);
                return self.fail_inbound(handle, e);
            }
        }
        if whole {
            self.drain(handle);
        }
    }

    /// All bytes of a message to a device have come.
    pub(super) fn drain(&mut self, handle: u32) {
        let over = self.inbound(handle).map(Inbound::is_over);
        self.tell_taken(handle);
        match over {
            Some(Ok(false)) => {
                if let Some(op) = self.ops.get_mut(handle) {
                    op.state = State::Draining;
                }
            }
            Some(Err(e)) => {
                let e = self.device_error(handle, e);
                self.fail_inbound(handle, e);
            }
            Some(Ok(true)) | None => {
                if let Some(stage) = self.inbound(handle) {
                    let (copied, first) = (stage.copied, stage.copied_first);
                    self.counters.copied += copied;
                    self.counters.copied_first += first;
                }
                self.received(handle);
            }
        }
    }

    /// Ends a receive in the middle; what still comes is dropped.
    pub(super) fn fail_inbound(&mut self, handle: u32, e: Error) {
        self.open_window(handle);
        self.discard_rest(handle);
        self.finish(handle, Some(e));
    }

    /// What a send says of its memory to a receiver of the same process.
    pub(super) fn device_key(&mut self, handle: u32) -> Option<RegionKey> {
        let op = self.ops.get(handle)?;
        let memory = op.view.as_device()?;
        memory.check().ok()?;
        let (peer, total, at) = (op.peer, op.total, Arc::as_ptr(memory));
        if op.has_failed() || !self.links.shares_process(peer) {
            return None;
        }
        // SAFETY: the operation keeps its view until FINISH; what lies there is not read
        // through the key but by `begin_direct`.
        let key = unsafe { self.links.export(peer, at.cast(), total) }.ok()?;
        (key.kind == RegionKind::Local).then_some(RegionKey {
            kind: RegionKind::Described,
            ..key
        })
    }

    /// Copies a message of the same process from device to device, if a kernel reaches
    /// both. False: nothing was begun.
    pub(super) fn begin_direct(
        &mut self,
        handle: u32,
        peer: u32,
        send: u32,
        key: RegionKey,
    ) -> bool {
        let Some(op) = self.ops.get(handle) else {
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
        if total > room || !self.links.shares_process(peer) {
            return false;
        }
        let Some(at) = self.links.mapped(peer, &local) else {
            return false;
        };
        // SAFETY: a rank of our process says that its send's view lies there, and keeps
        // it until FINISH, which follows.
        let from = unsafe { &*at.cast::<DeviceMemory>() };
        let (Ok(from), Ok(to)) = (from.view(), to.view()) else {
            return false;
        };
        let begun = direct(&self.devices, from, to, total);
        let stage = match begun {
            Ok(stage) => stage,
            Err(why) => {
                self.say_apart(from, to, &why);
                return false;
            }
        };
        if let Some(rare) = self.rare(handle) {
            rare.stage = Some(Stage::Direct(stage, send));
        }
        if let Some(op) = self.ops.get_mut(handle) {
            op.state = State::Draining;
            op.moved = total;
        }
        self.note_kernel(total);
        self.staged.push(handle);
        true
    }

    /// Says once why a message between two devices of this process takes a longer way.
    fn say_apart(
        &self,
        from: &Ordered<DeviceView<u8>>,
        to: &Ordered<DeviceView<u8>>,
        why: &DeviceError,
    ) {
        let (source, target) = (from.buffer().memory(), to.buffer().memory());
        let link = target.context().link(&source.context().bus_id());
        if source.context() != target.context()
            && let Ok(made) = Made::of(source)
        {
            let (placement, why) = (Placement::within(link), why.to_string());
            self.devices.say_once(made, placement, Through::Host, &why);
        }
    }

    /// Ends a copy from device to device, after waiting for it if it is under way, and
    /// tells the sender.
    pub(super) fn end_direct(&mut self, handle: u32) {
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        let peer = op.peer;
        let Some(rare) = &mut op.rare else {
            return;
        };
        let end = match &rare.stage {
            Some(Stage::Direct(_, send)) => wire::head(wire::FINISH, wire::OUTCOME_DONE, *send, 0),
            Some(Stage::Mapped(mapped)) => mapped.end(),
            Some(Stage::Opening(opening)) => opening.end(),
            Some(Stage::Placed(placed)) => placed.end(),
            _ => return,
        };
        rare.stage = None;
        self.control(peer, end);
    }

    /// Lets the sender of a receive that ends early go on: invariant 3.
    pub(super) fn open_window(&mut self, handle: u32) {
        self.give_chunks_back(handle);
        let Some(stage) = self.inbound(handle) else {
            return;
        };
        if let Some(send) = stage.asks()
            && let Some(peer) = self.ops.get(handle).map(|op| op.peer)
        {
            self.control(peer, wire::head(wire::GO, 0, send, 0));
        }
    }

    /// Asks for the fragments of an announced message to a device, as far as there is
    /// memory for them.
    pub(super) fn open_stepwise(&mut self, handle: u32, send: u32) {
        if self.inbound(handle).is_none() && !self.begin_inbound(handle) {
            // It has failed: what comes is dropped.
            let Some(peer) = self.ops.get(handle).map(|op| op.peer) else {
                return;
            };
            return self.control(peer, wire::head(wire::GO, 0, send, 0));
        }
        if let Some(stage) = self.inbound(handle) {
            stage.ask_stepwise(send);
        }
        self.advance_inbound(handle);
    }

    /// Asks for all of a short message for which our memory is late: its bytes are kept, as
    /// if they had come at once, so that its sender does not wait for our streams. False: it
    /// is none.
    pub(super) fn keep_short(&mut self, handle: u32, peer: u32, send: u32) -> bool {
        let most = self.selection.device_eager_max();
        let short = self.ops.get(handle).filter(|op| op.total <= most);
        let late = short.is_some_and(|op| op.view.as_device().is_some_and(|m| m.is_late()));
        if !late || self.peers[peer as usize].dead.is_some() {
            return false;
        }
        let incoming = &mut self.peers[peer as usize].incoming;
        incoming.push((send, Target::Op(handle)));
        // A receive that fails drops what comes.
        self.begin_inbound(handle);
        self.control(peer, wire::head(wire::GO, 0, send, 0));
        true
    }

    /// Looks after the messages of devices. True if anything moved.
    pub(super) fn advance_staged(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(&handle) = self.staged.get(at) {
            match self.ops.get_mut(handle).and_then(Op::stage) {
                None => {
                    self.staged.swap_remove(at);
                    continue;
                }
                // What fails is told to whoever takes the next bytes.
                Some(Stage::Out(stage)) => {
                    stage.look();
                    any |= self.refuse_chunks(handle);
                }
                Some(Stage::In(_)) => any |= self.advance_inbound(handle),
                Some(Stage::Mapped(_)) => any |= self.advance_mapped(handle),
                Some(Stage::Opening(_)) => any |= self.advance_opening(handle),
                Some(Stage::Placed(_)) => any |= self.advance_placed(handle),
                Some(Stage::Later { .. }) => any |= self.tell_ready(handle),
                Some(Stage::Direct(stage, _)) => match stage.is_over() {
                    Ok(false) => {}
                    over => {
                        self.end_direct(handle);
                        match over {
                            Ok(_) => self.received(handle),
                            Err(e) => {
                                let e = self.device_error(handle, e);
                                self.finish(handle, Some(e));
                            }
                        }
                        any = true;
                    }
                },
            }
            at += 1;
        }
        if self.staged.is_empty() {
            // What was let go while a transfer was under way, as by a death.
            self.devices.sweep();
        }
        any
    }

    fn advance_inbound(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return false;
        };
        let (peer, state) = (op.peer, op.state);
        if state == State::Draining {
            self.drain(handle);
            return self.is_done(handle);
        }
        let told = self.tell_taken(handle);
        let Some(stage) = self.inbound(handle) else {
            return told;
        };
        if stage.hands.is_some() {
            let due = stage.begin_chunks();
            return self.say_stage(handle, peer, due) || told;
        }
        let send = stage.send;
        match stage.ask() {
            Ok(None) => told,
            Ok(more) => {
                if let Some(send) = send {
                    self.control(peer, wire::head(wire::GO, units(more), send, 0));
                }
                true
            }
            Err(e) => {
                let e = self.device_error(handle, e);
                self.fail_inbound(handle, e);
                true
            }
        }
    }

    /// Operations that hold something of a device's message.
    pub fn staged_transfers(&self) -> usize {
        let holds = |handle: &&u32| {
            let rare = self.ops.get(**handle).and_then(|op| op.rare.as_ref());
            rare.is_some_and(|rare| rare.stage.is_some())
        };
        self.staged.iter().filter(holds).count()
    }

    /// Whether devices work on messages of this lane.
    pub(super) fn devices_work(&self) -> bool {
        let works = |op: &Op| match op.rare.as_ref().and_then(|rare| rare.stage.as_ref()) {
            Some(Stage::In(stage)) => stage.is_under_way(),
            Some(Stage::Out(stage)) => stage.is_under_way(),
            Some(
                Stage::Direct(..) | Stage::Mapped(_) | Stage::Opening(_) | Stage::Later { .. },
            ) => true,
            Some(Stage::Placed(placed)) => placed.is_under_way(),
            None => false,
        };
        let mut staged = self
            .staged
            .iter()
            .filter_map(|handle| self.ops.get(*handle));
        staged.any(works)
    }
}

/// The units that GO carries; 0 says all.
fn units(more: Option<Option<usize>>) -> u16 {
    more.flatten()
        .map_or(0, |units| u16::try_from(units).unwrap_or(u16::MAX))
}
