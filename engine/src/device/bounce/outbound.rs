//! Sender's bounce buffers: pieces are packed ahead of the engine. Invariants: [`super`].
//! Invariants: [`super`].

use super::{Lent, engine};
use crate::device::pool::{Claim, Kind, Slot, SlotAddress};
use crate::device::{DeviceMemory, Devices, Late, UnderWay, passed};
use crate::protocol::device::{self, Class, End, Move, Pipeline, Space, Turns};
use osier_kernels::{DeviceError, DeviceView, Engine, Event, Ordered};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A part of a message that a send has put into a slot.
#[derive(Debug)]
struct Piece {
    slot: Slot,
    bytes: usize,
    /// Passes when it is packed.
    event: Option<Event>,
}

/// Packs a message ahead of the engine: by kernels, or by the sending thread.
#[derive(Debug)]
pub struct Outbound {
    devices: Arc<Devices>,
    from: Option<(Lent, Ordered<DeviceView<u8>>)>,
    plan: Pipeline,
    /// Of each kernel.
    blocks: Option<u32>,
    engine: Engine,
    claim: Claim,
    /// What its kernels wait for.
    late: Late,
    bytes: usize,
    /// Bytes that have a piece.
    queued: usize,
    /// Pieces that are packed, or being packed, and not taken.
    pieces: VecDeque<Piece>,
    idle: Vec<Slot>,
    /// Bytes of the first piece that the engine has taken.
    taken: usize,
    /// Number of pieces handed over so far, if any are.
    handed: Option<usize>,
    /// They lie on the device.
    on_device: bool,
    /// It refuses its receiver any slot, once the bytes are valid.
    refuses: bool,
    under_way: Option<UnderWay>,
}

impl Outbound {
    /// Begins to pack. `others`: processes that may have the device by turns meanwhile.
    pub fn new(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        claim: Claim,
        others: bool,
    ) -> Result<Outbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes();
        let lent = Lent::new(devices, &view);
        let (end, turns) = (memory.end(), lent.device.turns(others));
        let mut outbound = Outbound::of(devices, bytes, claim, (end, turns), Some((lent, view)));
        outbound.advance()?;
        Ok(outbound)
    }

    /// Of bytes on the host, for slots that are handed over.
    pub fn of_host(devices: &Arc<Devices>, bytes: usize) -> Outbound {
        let end = End {
            space: Space::Host,
            class: Class::Run,
        };
        Outbound::of(devices, bytes, Claim::Send, (end, Turns::None), None)
    }

    fn of(
        devices: &Arc<Devices>,
        bytes: usize,
        claim: Claim,
        (end, turns): (End, Turns),
        from: Option<(Lent, Ordered<DeviceView<u8>>)>,
    ) -> Outbound {
        Outbound {
            devices: devices.clone(),
            blocks: from
                .as_ref()
                .map(|(l, _)| l.device.model.pack_blocks(end.class)),
            late: from.as_ref().map_or(Late::never(), |(_, v)| Late::of(v)),
            engine: engine(
                &devices.model(),
                from.as_ref().map(|(lent, _)| &lent.device.context),
                end,
                (Move::Fill, bytes),
                turns,
            ),
            from,
            plan: devices.model().pieces(end, bytes, turns),
            claim,
            bytes,
            queued: 0,
            pieces: VecDeque::new(),
            idle: Vec::new(),
            taken: 0,
            handed: None,
            on_device: false,
            refuses: false,
            under_way: None,
        }
    }

    /// For pieces that are handed over on the device.
    ///
    /// # Errors
    /// There is no memory for them, and there will be none.
    pub fn on_device(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        linked: bool,
    ) -> Result<Outbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes();
        let lent = Lent::new(devices, &view);
        let end = memory.end();
        let ends = (end, Turns::None);
        let mut outbound = Outbound::of(devices, bytes, Claim::Send, ends, Some((lent, view)));
        let to = End {
            space: Space::Device,
            class: end.class,
        };
        if let Some((lent, _)) = &outbound.from {
            let between = super::between(&lent.device, linked);
            outbound.plan = devices.model().device_pieces(end, to, bytes, between);
            outbound.blocks = Some(lent.device.model.copy_blocks(end.class, Class::Run, false));
        }
        outbound.handed = Some(0);
        outbound.on_device = true;
        let slot = outbound.slot()?;
        outbound.idle.extend(slot);
        Ok(outbound)
    }

    /// Whether pieces lie on the device.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// A slot for the next piece; none now.
    fn slot(&mut self) -> Result<Option<Slot>, DeviceError> {
        if let Some(slot) = self.idle.pop() {
            return Ok(Some(slot));
        }
        let must_be_late = self.must_be_late()?;
        let kind = match self.handed {
            Some(_) => Kind::Shared,
            None => Kind::Any,
        };
        let context = self.from.as_ref().map(|(lent, _)| &lent.device.context);
        let want = self.plan.fragment.min(self.bytes - self.queued);
        let least = device::LEAST_FRAGMENT_BYTES;
        let pool = match (&self.from, self.on_device) {
            (Some((lent, _)), true) => &lent.device.slots,
            _ => self.devices.pool(),
        };
        // Whoever waits for its producer is as one that waits for its receive.
        let claim = match self.claim {
            Claim::Send if self.late.is_late()? => Claim::Announced,
            claim => claim,
        };
        let slot = match must_be_late {
            true => None,
            false => pool.take(context, (want, least), claim, kind)?,
        };
        if slot.is_none() && self.wants_memory() {
            self.note(); // nobody rings when memory is there
        }
        Ok(slot)
    }

    /// Whether nothing may be queued yet: behind its producer, which may wait for a message, it
    /// would hold up what shares the hardware's queue with its stream.
    fn must_be_late(&mut self) -> Result<bool, DeviceError> {
        let holds = |(lent, _): &(Lent, _)| lent.device.context.holds_streams();
        Ok(self.from.as_ref().is_some_and(holds) && self.late.is_late()?)
    }

    /// Whether it waits for memory that others have.
    fn wants_memory(&self) -> bool {
        self.claim != Claim::Announced && self.starves()
    }

    fn wants_slot(&self) -> bool {
        self.queued < self.bytes && self.pieces.len() < self.plan.depth
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        let context = match &self.from {
            Some((lent, _)) if self.wants_slot() => lent.device.context.clone(),
            _ => return Ok(()),
        };
        let _held = context.hold()?;
        while self.wants_slot() {
            let Some(slot) = self.slot()? else {
                return Ok(());
            };
            let start = self.queued;
            let bytes = slot.bytes().min(self.bytes - start);
            let event = self.pack(start..start + bytes, &slot)?;
            self.pieces.push_back(Piece {
                slot,
                bytes,
                event: Some(event),
            });
            self.queued += bytes;
            self.note();
        }
        Ok(())
    }

    fn pack(&self, range: Range<usize>, to: &Slot) -> Result<Event, DeviceError> {
        let Some((lent, view)) = &self.from else {
            return Err(DeviceError::Unavailable("a message of the host".into()));
        };
        let stream = lent.stream()?;
        let room = to.on_device(&lent.device.context, range.len())?;
        let room = room.after_stream(stream);
        let packer = &lent.device.packer;
        packer.pack_by(self.engine, stream, view, range, &room, self.blocks)
    }

    /// Puts the next piece of a host's message into a slot. False: there is no room.
    pub fn fill(&mut self, pack: impl FnOnce(Range<usize>, *mut u8)) -> Result<bool, DeviceError> {
        if self.from.is_some() || !self.wants_slot() {
            return Ok(false);
        }
        let Some(slot) = self.slot()? else {
            return Ok(false);
        };
        let bytes = slot.bytes().min(self.bytes - self.queued);
        pack(self.queued..self.queued + bytes, slot.host());
        self.pieces.push_back(Piece {
            slot,
            bytes,
            event: None,
        });
        self.queued += bytes;
        self.under_way = None;
        Ok(true)
    }

    fn note(&mut self) {
        if self.under_way.is_none() {
            self.under_way = Some(UnderWay::new(&self.devices));
        }
    }

    /// Whether kernels still read the user's memory. A failed one does not.
    pub fn packs(&mut self) -> bool {
        let mut events = self.pieces.iter_mut().map(|piece| &mut piece.event);
        events.any(|event| matches!(passed(event), Ok(false)))
    }

    /// Notes whether no kernel is in flight, and none waits for memory.
    pub fn poll_kernels(&mut self) {
        let mut works = self.wants_memory() || self.refuses;
        for piece in &mut self.pieces {
            // The next call returns an error of it.
            works |= matches!(passed(&mut piece.event), Ok(false));
        }
        if !works {
            self.under_way = None;
        }
    }

    /// The packed bytes from where the engine is that lie in one piece: none if they
    /// are not packed yet.
    pub fn ready(&mut self) -> Result<(*const u8, usize), DeviceError> {
        self.advance()?;
        let Some(piece) = self.pieces.front_mut() else {
            return Ok((std::ptr::null(), 0));
        };
        if !passed(&mut piece.event)? {
            return Ok((std::ptr::null(), 0));
        }
        let host = piece.slot.host().wrapping_add(self.taken);
        Ok((host, piece.bytes - self.taken))
    }

    /// The engine has taken `bytes` bytes more.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.pieces.front().is_some_and(|p| p.bytes <= self.taken) {
            self.taken = 0;
            self.forget();
        }
    }

    /// Drops the first piece, which was taken.
    fn forget(&mut self) {
        if let Some(piece) = self.pieces.pop_front()
            && self.queued < self.bytes
        {
            self.idle.push(piece.slot);
        }
    }

    /// It was announced, and waits for its receive from now on.
    pub fn announced(&mut self) {
        if self.claim == Claim::Short {
            self.claim = Claim::Announced;
        }
    }

    /// Whether it has no memory, though some is wanted.
    pub fn starves(&self) -> bool {
        self.pieces.is_empty() && self.queued < self.bytes
    }

    /// Its receive is there.
    pub fn meet(&mut self) {
        self.claim = Claim::Send;
        let slots = self.pieces.iter_mut().map(|piece| &mut piece.slot);
        slots.chain(&mut self.idle).for_each(Slot::meet);
    }

    /// From now on pieces are handed over. False where there is no memory for that: then
    /// nothing has changed, and its receive still has to ask for it.
    pub fn hand_over(&mut self) -> bool {
        let shared = |piece: &Piece| piece.slot.place(piece.bytes).is_some();
        let context = self.from.as_ref().map(|(lent, _)| &lent.device.context);
        let keeps = || self.devices.pool().keeps(context, Claim::Send).is_ok();
        let all = self.pieces.iter().all(shared);
        if !all || (self.queued < self.bytes && !keeps()) {
            return false;
        }
        self.meet();
        self.handed = Some(0);
        true
    }

    /// Whether it refuses its receiver slots later, because the bytes are not
    /// valid yet.
    pub fn refuses_later(&mut self) -> bool {
        self.refuses = self.late.is_late() == Ok(true);
        if self.refuses {
            self.note();
        }
        self.refuses
    }

    /// Whether it has to refuse its receiver now.
    pub fn refuses_now(&mut self) -> bool {
        // The call that takes the bytes returns an error of it.
        let now = self.refuses && self.late.is_late() != Ok(true);
        self.refuses &= !now;
        now
    }

    /// Whether pieces are handed over.
    pub fn hands_over(&self) -> bool {
        self.handed.is_some()
    }

    /// The next piece to be handed over, once it is packed, and its bytes.
    pub fn next_handed(&mut self) -> Result<Option<(SlotAddress, usize)>, DeviceError> {
        self.advance()?;
        let next = self.handed.and_then(|at| self.pieces.get_mut(at));
        let Some(piece) = next else {
            return Ok(None);
        };
        if !passed(&mut piece.event)? {
            return Ok(None);
        }
        Ok(piece.slot.place(piece.bytes).map(|p| (p, piece.bytes)))
    }

    /// It was.
    pub fn handed(&mut self) {
        self.handed = self.handed.map(|handed| handed + 1);
    }

    /// The receiver has taken `pieces` pieces. False: it had fewer.
    pub fn returned(&mut self, pieces: usize) -> bool {
        match self.handed {
            Some(handed) if pieces <= handed => self.handed = Some(handed - pieces),
            _ => return false,
        }
        (0..pieces).for_each(|_| self.forget());
        true
    }

    /// Whether nothing can be handed over before the receiver has taken something.
    pub fn waits_for_receiver(&self) -> bool {
        self.handed == Some(self.pieces.len()) && !self.wants_slot()
    }

    /// Whether the receiver has pieces.
    pub fn lends(&self) -> bool {
        self.handed.is_some_and(|handed| handed > 0)
    }

    /// Reads the user's memory no longer. What was handed over stays until the receiver
    /// answers.
    pub fn stop(&mut self) {
        self.wait_for_kernels();
        self.pieces.truncate(self.handed.unwrap_or(0));
        self.from = None;
        self.queued = self.bytes;
        self.idle.clear();
        self.under_way = None;
    }

    fn wait_for_kernels(&mut self) {
        let mut failed = false;
        for piece in &mut self.pieces {
            let event = piece.event.take();
            failed |= event.is_some_and(|event| event.synchronize().is_err());
        }
        if let (true, Some((lent, _))) = (failed, &mut self.from) {
            lent.spoil();
        }
    }

    /// Whether kernels are in flight.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Waits on the host until bytes are ready (blocking).
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        if self.must_be_late()? {
            self.late.synchronize()?;
        }
        self.advance()?;
        match self.pieces.front() {
            Some(piece) => piece.event.as_ref().map_or(Ok(()), Event::synchronize),
            None => Err(DeviceError::Unavailable(format!(
                "{} bytes of pinned memory are in use (hint: raise OSIER_PINNED_LIMIT)",
                self.devices.pool().limit()
            ))),
        }
    }
}

impl Drop for Outbound {
    /// Waits for kernels of a transfer that ends early: the user may use the memory
    /// at once.
    fn drop(&mut self) {
        self.wait_for_kernels();
    }
}
