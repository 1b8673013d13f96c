//! Receiver's bounce buffers: pieces are unpacked behind the engine. Invariants: [`super`].
//! Invariants: [`super`].

use super::{Lent, engine};
use crate::device::pool::{Claim, Handed, Kind, Slot, SlotAddress};
use crate::device::{DeviceMemory, Devices, Late, UnderWay, passed};
use crate::protocol::device::{self, Class, End, Move, Pipeline, Space};
use crate::wire;
use osier_kernels::{DeviceError, DeviceSlice, DeviceView, Engine, Event, Memory, Ordered, copy};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that wait for memory from which a kernel unpacks.
enum Waiting {
    Bytes(Vec<u8>),
    /// A peer's slot on the host that our device does not reach.
    Handed(Handed),
}

impl Waiting {
    fn bytes(&self) -> (*const u8, usize) {
        match self {
            Waiting::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            Waiting::Handed(handed) => (handed.host().unwrap_or(std::ptr::null()), handed.bytes()),
        }
    }
}

/// What a kernel unpacks from.
#[derive(Debug)]
enum Source {
    Own(Slot),
    /// A slot of a peer, which gets it back.
    Handed,
}

/// A peer's slots on its device.
struct Peer {
    memory: Arc<Memory>,
    /// Copies of slots to our own device, which are unpacked there.
    copies: Option<Lent>,
}

/// Unpacks a message to a device behind the engine.
pub struct Inbound {
    devices: Arc<Devices>,
    lent: Lent,
    view: Ordered<DeviceView<u8>>,
    plan: Pipeline,
    /// Of each kernel.
    blocks: u32,
    engine: Engine,
    /// Bytes that will be unpacked.
    bytes: usize,
    /// Bytes that lie in slots, or are unpacked.
    written: usize,
    /// Bytes that kernels have been queued for.
    queued: usize,
    /// Slots for the next bytes; the first has some already.
    room: VecDeque<Slot>,
    /// Kernels and copies that may be in flight, in order.
    kernels: VecDeque<(Option<Event>, Source)>,
    peer: Option<Peer>,
    /// Copies of a peer's slots that kernels unpack.
    copied_slots: VecDeque<(Option<Event>, Slot)>,
    idle: Vec<Slot>,
    /// What came before there was room, and how much of its first part is done.
    waiting: VecDeque<Waiting>,
    waited: usize,
    /// Bytes up to which the sender was asked to send; `None`: all.
    asked: Option<usize>,
    /// The send that is asked.
    pub send: Option<u32>,
    /// The send that hands pieces over.
    pub from: Option<u32>,
    /// The send that is to hand pieces over when our memory may be written, and how.
    pub hands: Option<(u32, u16)>,
    /// What our kernels wait for.
    late: Late,
    /// Pieces that the peer handed over, and of these those done and not returned.
    handed: usize,
    done: usize,
    under_way: Option<UnderWay>,
    /// Bytes that the host has copied.
    pub copied: u64,
    /// Slots that were copied to the own device first.
    pub copied_first: u64,
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbound")
            .field("bytes", &self.bytes)
            .field("written", &self.written)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

impl Inbound {
    /// For a message of `message` bytes, of which those that do not fit the view are
    /// never written. `others`: processes that may have the device by turns meanwhile.
    pub fn new(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        message: usize,
        others: bool,
    ) -> Result<Inbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes().min(message);
        let (end, lent) = (memory.end(), Lent::new(devices, &view));
        let turns = lent.device.turns(others);
        let model = devices.model();
        Ok(Inbound {
            devices: devices.clone(),
            blocks: lent.device.model.unpack_blocks(end.class),
            engine: engine(
                &model,
                Some(&lent.device.context),
                end,
                (Move::Empty, bytes),
                turns,
            ),
            lent,
            late: Late::of(&view),
            view,
            plan: model.pieces(end, bytes, turns),
            bytes,
            written: 0,
            queued: 0,
            room: VecDeque::new(),
            kernels: VecDeque::new(),
            peer: None,
            copied_slots: VecDeque::new(),
            idle: Vec::new(),
            waiting: VecDeque::new(),
            waited: 0,
            asked: None,
            send: None,
            from: None,
            hands: None,
            handed: 0,
            done: 0,
            under_way: None,
            copied: 0,
            copied_first: 0,
        })
    }

    /// Of a message that comes in slots of its sender's device, opened here.
    pub fn of_peer(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        message: usize,
        (peer, linked): (Arc<Memory>, bool),
    ) -> Result<Inbound, DeviceError> {
        let mut inbound = Inbound::new(devices, memory, message, false)?;
        let end = memory.end();
        let model = inbound.lent.device.model;
        let from = End {
            space: Space::Device,
            class: end.class,
        };
        let between = super::between(&inbound.lent.device, linked);
        inbound.plan = devices.model().device_pieces(from, end, message, between);
        let slot = inbound.plan.fragment;
        let slots = (slot, message.div_ceil(slot));
        let copies = match model.copies_first(end, linked, slots) {
            true => Some(Lent::new(devices, &inbound.view)),
            false => None,
        };
        let reads_link = linked && copies.is_none();
        inbound.blocks = model.copy_blocks(end.class, Class::Run, reads_link);
        inbound.peer = Some(Peer {
            memory: peer,
            copies,
        });
        Ok(inbound)
    }

    /// A slot that its sender has handed over.
    pub fn handed(&self, space: SlotAddress) -> Option<Handed> {
        match &self.peer {
            Some(peer) => Handed::on_peer(&peer.memory, space),
            None => self.devices.pool().handed(space),
        }
    }

    /// Whether slots of its sender's device come.
    pub fn is_on_peer(&self) -> bool {
        self.peer.is_some()
    }

    fn note(&mut self) {
        if self.under_way.is_none() {
            self.under_way = Some(UnderWay::new(&self.devices));
        }
    }

    /// A slot for bytes to come; none now.
    fn slot(&mut self, bytes: usize) -> Result<Option<Slot>, DeviceError> {
        if let Some(slot) = self.idle.pop() {
            return Ok(Some(slot));
        }
        let own = |(_, source): &&(Option<Event>, Source)| matches!(source, Source::Own(_));
        let held = self.room.len() + self.kernels.iter().filter(own).count();
        if held >= self.plan.depth || self.late.is_late()? {
            return Ok(None);
        }
        let context = &self.lent.device.context;
        let size = (bytes, device::LEAST_FRAGMENT_BYTES);
        let claim = match self.send {
            Some(_) => Claim::Window,
            None => Claim::Copy,
        };
        self.devices
            .pool()
            .take(Some(context), size, claim, Kind::Any)
    }

    /// Copies bytes to slots as far as there are some, and unpacks those that are full.
    fn put(&mut self, from: *const u8, bytes: usize) -> Result<usize, DeviceError> {
        let mut done = 0;
        while done < bytes {
            // A sender that is asked for its bytes has room for those.
            if self.room.is_empty() && self.send.is_none() {
                let rest = self.bytes - self.written;
                match self.slot(self.plan.fragment.min(rest))? {
                    Some(slot) => self.room.push_back(slot),
                    None => break,
                }
            }
            let Some(slot) = self.room.front() else {
                break;
            };
            let filled = self.written - self.queued;
            let n = (slot.bytes() - filled).min(bytes - done);
            let to = slot.host().wrapping_add(filled);
            // SAFETY: invariants 1 and 3: a slot of ours that no kernel uses, with room for
            // `n` bytes; of the bytes that come as many are left.
            unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(done), to, n) };
            done += n;
            self.copied += n as u64;
            self.written += n;
            if filled + n == slot.bytes() || self.written == self.bytes {
                self.unpack_room()?;
            }
        }
        Ok(done)
    }

    /// Unpacks the first slot of the room.
    fn unpack_room(&mut self) -> Result<(), DeviceError> {
        let Some(slot) = self.room.pop_front() else {
            return Ok(());
        };
        let range = self.queued..self.written;
        let packed = slot.on_device(&self.lent.device.context, range.len())?;
        let event = self.unpack(packed.after_stream(self.lent.stream()?), range)?;
        self.kernels.push_back((Some(event), Source::Own(slot)));
        Ok(())
    }

    fn unpack(
        &mut self,
        packed: Ordered<DeviceSlice<u8>>,
        range: Range<usize>,
    ) -> Result<Event, DeviceError> {
        let _held = self.lent.device.context.hold()?;
        let stream = self.lent.stream()?.clone();
        let (packer, end) = (&self.lent.device.packer, range.end);
        let blocks = Some(self.blocks);
        let event = packer.unpack_by(self.engine, &stream, &packed, range, &self.view, blocks)?;
        self.queued = end;
        self.note();
        Ok(event)
    }

    /// Takes the next bytes, of which there are no more than fit the view. False: there
    /// are more than were asked for.
    ///
    /// # Safety
    /// `bytes` bytes at `from` are readable.
    pub unsafe fn take(&mut self, from: *const u8, bytes: usize) -> Result<bool, DeviceError> {
        self.advance()?;
        let mut done = 0;
        if self.waiting.is_empty() {
            done = self.put(from, bytes)?;
        }
        if done == bytes {
            return Ok(true);
        }
        if self.send.is_some() {
            return Ok(false);
        }
        let mut rest = vec![0; bytes - done];
        // SAFETY: invariant 3: the bytes that come and were not put into slots; the vector
        // has as many.
        unsafe {
            std::ptr::copy_nonoverlapping(from.wrapping_add(done), rest.as_mut_ptr(), rest.len());
        }
        self.copied += rest.len() as u64;
        self.waiting.push_back(Waiting::Bytes(rest));
        self.note();
        Ok(true)
    }

    /// Takes a peer's slot, of which `bytes` bytes fit the view.
    pub fn take_handed(&mut self, handed: Handed, bytes: usize) -> Result<(), DeviceError> {
        self.handed += 1;
        if bytes == 0 {
            self.kernels.push_back((None, Source::Handed));
            return self.advance();
        }
        if let Some(packed) = handed.on_peers_device(bytes) {
            return self.take_from_peer(&packed?);
        }
        let context = &self.lent.device.context;
        let reached = handed.on_host(self.devices.pool(), context, bytes);
        match reached.filter(|_| self.waiting.is_empty()) {
            Some(packed) => {
                let range = self.queued..self.queued + bytes;
                let event = self.unpack(packed.after_stream(self.lent.stream()?), range)?;
                self.written += bytes;
                self.kernels.push_back((Some(event), Source::Handed));
                Ok(())
            }
            None => {
                self.waiting.push_back(Waiting::Handed(handed));
                self.note();
                self.advance()
            }
        }
    }

    /// Takes bytes that lie on the peer's device.
    fn take_from_peer(&mut self, packed: &DeviceSlice<u8>) -> Result<(), DeviceError> {
        let range = self.queued..self.queued + packed.len();
        self.written += packed.len();
        let Some((copied, slot, own)) = self.copy_first(packed)? else {
            let event = self.unpack(packed.after_stream(self.lent.stream()?), range)?;
            self.kernels.push_back((Some(event), Source::Handed));
            return Ok(());
        };
        self.note();
        self.copied_first += 1;
        (self.kernels).push_back((Some(copied.clone()), Source::Handed));
        // The copy is in flight, also if the following calls fail.
        self.copied_slots.push_back((Some(copied.clone()), slot));
        let event = self.unpack(own.after(&copied), range)?;
        if let Some((last, _)) = self.copied_slots.back_mut() {
            *last = Some(event);
        }
        Ok(())
    }

    /// Copies bytes to a slot of our own device, if that is how they go and there is
    /// one.
    fn copy_first(
        &self,
        packed: &DeviceSlice<u8>,
    ) -> Result<Option<(Event, Slot, DeviceSlice<u8>)>, DeviceError> {
        let Some(copies) = self.peer.as_ref().and_then(|peer| peer.copies.as_ref()) else {
            return Ok(None);
        };
        let device = &self.lent.device;
        let _held = device.context.hold()?;
        let bytes = packed.len();
        let size = (bytes, bytes);
        let slot = match self.copied_slots.len() < self.plan.depth.max(2) {
            true => (device.slots).take(Some(&device.context), size, Claim::Copy, Kind::Shared),
            false => Ok(None),
        };
        // Without one it is unpacked where it lies.
        let Ok(Some(slot)) = slot else {
            return Ok(None);
        };
        let own = slot.on_device(&device.context, bytes)?;
        let stream = copies.stream()?;
        let to = own.after_stream(stream);
        let event = copy::copy(stream, &packed.after_stream(stream), &to)?;
        Ok(Some((event, slot, own)))
    }

    /// Finds the kernels that are done, and starts waiting work.
    fn advance(&mut self) -> Result<(), DeviceError> {
        while let Some((event, _)) = self.kernels.front_mut() {
            if !passed(event)? {
                break;
            }
            match self.kernels.pop_front() {
                // A piece that came unasked takes memory when it comes.
                Some((_, Source::Own(slot)))
                    if self.written < self.bytes && self.send.is_some() =>
                {
                    self.idle.push(slot);
                }
                Some((_, Source::Handed)) => self.done += 1,
                _ => {}
            }
        }
        while let Some((event, _)) = self.copied_slots.front_mut() {
            if !passed(event)? {
                break;
            }
            self.copied_slots.pop_front();
        }
        while let Some(first) = self.waiting.front() {
            let (from, bytes) = first.bytes();
            let bytes = bytes.min(self.bytes - self.written + self.waited);
            let from = from.wrapping_add(self.waited);
            self.waited += self.put(from, bytes - self.waited)?;
            if self.waited < bytes {
                break;
            }
            self.waited = 0;
            if let Some(Waiting::Handed(_)) = self.waiting.pop_front() {
                // The next may come when others have had this memory.
                if self.written > self.queued {
                    self.unpack_room()?;
                }
                // Copied: the peer may have it again, in its turn.
                self.kernels.push_back((None, Source::Handed));
            }
        }
        if self.is_idle() && !self.wants_memory() {
            self.under_way = None;
        }
        Ok(())
    }

    /// Whether nothing is in flight.
    fn is_idle(&self) -> bool {
        self.kernels.is_empty() && self.copied_slots.is_empty() && self.waiting.is_empty()
    }

    /// Whether the sender waits for memory that others have, or for ours.
    fn wants_memory(&self) -> bool {
        self.hands.is_some()
            || self.asked == Some(self.queued) && self.room.is_empty() && self.queued < self.bytes
    }

    /// Whether all bytes lie in the device's memory.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        self.advance()?;
        Ok(self.is_idle() && self.written >= self.bytes)
    }

    /// Pieces of the peer that are done and were not returned yet.
    pub fn done(&mut self) -> Result<usize, DeviceError> {
        self.advance()?;
        self.handed -= self.done;
        Ok(std::mem::take(&mut self.done))
    }

    /// Gives up: waits for kernels; the number of pieces of the peer that were not
    /// returned yet.
    pub fn give_up(&mut self) -> usize {
        self.wait_for_kernels();
        self.done = 0;
        std::mem::take(&mut self.handed)
    }

    /// How many bytes more the sender may send, if any: `Some(None)` says all.
    pub fn ask(&mut self) -> Result<Option<Option<usize>>, DeviceError> {
        self.advance()?;
        let Some(asked) = self.asked else {
            return Ok(None);
        };
        let mut may = asked;
        while may < self.bytes {
            // Whole units, as CTS counts them.
            let Some(slot) = self.slot(self.plan.fragment)? else {
                break;
            };
            may += slot.bytes();
            self.room.push_back(slot);
        }
        if may >= self.bytes {
            self.asked = None;
            return Ok(Some(None));
        }
        if may == asked {
            if self.wants_memory() {
                self.note();
            }
            return Ok(None);
        }
        self.asked = Some(may);
        Ok(Some(Some((may - asked) / wire::WINDOW_BYTES)))
    }

    /// From now on the sender sends as much as it is asked for.
    pub fn ask_stepwise(&mut self, send: u32) {
        self.asked = Some(0);
        self.send = Some(send);
    }

    /// Has a send hand pieces over, at once or when our memory may be written: a kernel
    /// that waits would keep its slots. The send, if it is to begin now.
    pub fn ask_slots(&mut self, send: (u32, u16)) -> Result<Option<(u32, u16)>, DeviceError> {
        self.hands = Some(send);
        self.begin_slots()
    }

    /// The send that is to begin to hand pieces over now.
    pub fn begin_slots(&mut self) -> Result<Option<(u32, u16)>, DeviceError> {
        match self.hands {
            Some(_) if self.late.is_late()? => {
                self.note();
                Ok(None)
            }
            _ => Ok(self.hands.take()),
        }
    }

    /// The send that waits to be asked for more, or at all.
    pub fn asks(&self) -> Option<u32> {
        self.hands
            .map(|(send, _)| send)
            .or(self.asked.and(self.send))
    }

    /// Whether kernels are in flight.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    fn wait_for_kernels(&mut self) {
        let mut failed = false;
        let copies = self.copied_slots.iter_mut().map(|(event, _)| event);
        for event in self
            .kernels
            .iter_mut()
            .map(|(event, _)| event)
            .chain(copies)
        {
            let event = event.take();
            failed |= event.is_some_and(|event| event.synchronize().is_err());
        }
        if let (true, Some(peer)) = (failed, &mut self.peer)
            && let Some(copies) = &mut peer.copies
        {
            copies.spoil();
        }
        if failed {
            self.lent.spoil();
        }
    }
}

impl Drop for Inbound {
    /// As [`super::Outbound`]'s.
    fn drop(&mut self) {
        self.wait_for_kernels();
    }
}
