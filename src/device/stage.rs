//! A message on its way between a device and the host's memory.
//!
//! The packed message is cut into pieces, each in a chunk of the pool, several at a
//! time, so that kernels work on some while others travel.
//!
//! ```text
//! Outbound   kernel packs piece 1 | engine sends piece 0, or hands its chunk over
//! Inbound    engine receives piece 1, or is handed it | kernel unpacks piece 0
//! ```
//!
//! Between ranks that share memory the sender hands its chunks over: the receiver's
//! kernel reads what the sender's has written, and no byte is copied by the host. The
//! chunks lie on the host, or on the sender's device where the receiver opens them there;
//! on a linked device it may copy them to its own first.
//!
//! # Invariants
//! 1. The host reads and writes a chunk only while no kernel uses it, and the sender
//!    none that it has handed over.
//! 2. Chunks and the stream are given back when no work is under way on them.

use super::pool::{Chunk, Claim, Handed, Kind, Place};
use super::{Device, DeviceMemory, Devices, Late, UnderWay, passed};
use crate::protocol::device::{
    self, Class, End, Means, Model, Move, Pipeline, Place as Where, SHORT_BYTES,
};
use crate::wire;
use osier_kernels::{
    DeviceError, DeviceSlice, DeviceView, Engine, Event, Memory, Ordered, Stream, copy,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What moves a message of one run: for short ones whichever is quicker to begin.
fn engine(model: &Model, end: End, what: Move, bytes: usize) -> Engine {
    match bytes <= SHORT_BYTES && model.means(end, what, bytes, false).0 == Means::Kernel {
        true => Engine::Kernel,
        false => Engine::Copies,
    }
}

/// A device's stream, lent to a transfer.
#[derive(Debug)]
struct Lent {
    device: Arc<Device>,
    stream: Option<Stream>,
}

impl Lent {
    fn new(devices: &Devices, view: &Ordered<DeviceView<u8>>) -> Result<Lent, DeviceError> {
        let device = devices.of(view.buffer().memory().context());
        Ok(Lent {
            stream: Some(device.stream()?),
            device,
        })
    }

    fn stream(&self) -> Result<&Stream, DeviceError> {
        let gone = || DeviceError::Unavailable("the stream was given back".into());
        self.stream.as_ref().ok_or_else(gone)
    }

    /// Something on the stream has failed: it is not used again.
    fn spoil(&mut self) {
        self.stream = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            super::lock(&self.device.streams).push(stream);
        }
    }
}

/// A part of a message that a send has put into a chunk.
#[derive(Debug)]
struct Piece {
    chunk: Chunk,
    bytes: usize,
    /// Passes when it is packed.
    event: Option<Event>,
}

/// Packs a message ahead of the engine: by kernels, or by whoever sends, on the host.
#[derive(Debug)]
pub(crate) struct Outbound {
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
    /// What is packed, or being packed, and not over.
    pieces: VecDeque<Piece>,
    idle: Vec<Chunk>,
    /// Bytes of the first piece that the engine has taken.
    taken: usize,
    /// Pieces are handed over, so many of them by now.
    handed: Option<usize>,
    /// They lie on the device.
    on_device: bool,
    /// Its receiver is told, once the bytes are valid, that there are none to hand over.
    refuses: bool,
    under_way: Option<UnderWay>,
}

impl Outbound {
    /// Begins to pack.
    pub fn new(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        claim: Claim,
    ) -> Result<Outbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes();
        let lent = Lent::new(devices, &view)?;
        let end = memory.end();
        let mut outbound = Outbound::of(devices, bytes, claim, end, Some((lent, view)));
        outbound.advance()?;
        Ok(outbound)
    }

    /// Of bytes on the host, for chunks that are handed over.
    pub fn of_host(devices: &Arc<Devices>, bytes: usize) -> Outbound {
        let end = End {
            place: Where::Host,
            class: Class::Run,
        };
        Outbound::of(devices, bytes, Claim::Send, end, None)
    }

    fn of(
        devices: &Arc<Devices>,
        bytes: usize,
        claim: Claim,
        end: End,
        from: Option<(Lent, Ordered<DeviceView<u8>>)>,
    ) -> Outbound {
        Outbound {
            devices: devices.clone(),
            blocks: from
                .as_ref()
                .map(|(l, _)| l.device.model.pack_blocks(end.class)),
            late: from.as_ref().map_or(Late::never(), |(_, v)| Late::of(v)),
            engine: engine(&devices.model(), end, Move::Fill, bytes),
            from,
            plan: devices.model().pieces(end, bytes),
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
        let lent = Lent::new(devices, &view)?;
        let end = memory.end();
        let mut outbound = Outbound::of(devices, bytes, Claim::Send, end, Some((lent, view)));
        let to = End {
            place: Where::Device,
            class: end.class,
        };
        outbound.plan = devices.model().device_pieces(end, to, bytes, linked);
        if let Some((lent, _)) = &outbound.from {
            outbound.blocks = Some(lent.device.model.copy_blocks(end.class, Class::Run));
        }
        outbound.handed = Some(0);
        outbound.on_device = true;
        let chunk = outbound.chunk()?;
        outbound.idle.extend(chunk);
        Ok(outbound)
    }

    /// Whether pieces lie on the device.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// A chunk for the next piece; none now.
    fn chunk(&mut self) -> Result<Option<Chunk>, DeviceError> {
        if let Some(chunk) = self.idle.pop() {
            return Ok(Some(chunk));
        }
        let kind = match self.handed {
            Some(_) => Kind::Shared,
            None => Kind::Any,
        };
        let context = self.from.as_ref().map(|(lent, _)| &lent.device.context);
        let want = self.plan.fragment.min(self.bytes - self.queued);
        let least = device::LEAST_FRAGMENT_BYTES;
        let pool = match (&self.from, self.on_device) {
            (Some((lent, _)), true) => &lent.device.chunks,
            _ => self.devices.pool(),
        };
        // Whoever waits for its producer is as one that waits for its receive.
        let claim = match self.claim {
            Claim::Send if self.late.is_late()? => Claim::Announced,
            claim => claim,
        };
        let chunk = pool.take(context, (want, least), claim, kind)?;
        if chunk.is_none() && self.wants_memory() {
            self.note(); // nobody rings when memory is there
        }
        Ok(chunk)
    }

    /// Whether it waits for memory that others have.
    fn wants_memory(&self) -> bool {
        self.claim != Claim::Announced && self.starves()
    }

    fn wants_chunk(&self) -> bool {
        self.queued < self.bytes && self.pieces.len() < self.plan.depth
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        let context = match &self.from {
            Some((lent, _)) if self.wants_chunk() => lent.device.context.clone(),
            _ => return Ok(()),
        };
        let _held = context.hold()?;
        while self.wants_chunk() {
            let Some(chunk) = self.chunk()? else {
                return Ok(());
            };
            let start = self.queued;
            let bytes = chunk.bytes().min(self.bytes - start);
            let event = self.pack(start..start + bytes, &chunk)?;
            self.pieces.push_back(Piece {
                chunk,
                bytes,
                event: Some(event),
            });
            self.queued += bytes;
            self.note();
        }
        Ok(())
    }

    fn pack(&self, range: Range<usize>, to: &Chunk) -> Result<Event, DeviceError> {
        let Some((lent, view)) = &self.from else {
            return Err(DeviceError::Unavailable("a message of the host".into()));
        };
        let stream = lent.stream()?;
        let room = to.on_device(&lent.device.context, range.len())?;
        let room = room.after_stream(stream);
        let packer = &lent.device.packer;
        packer.pack_by(self.engine, stream, view, range, &room, self.blocks)
    }

    /// Puts the next piece of a host's message into a chunk. False: there is no room.
    pub fn fill(&mut self, pack: impl FnOnce(Range<usize>, *mut u8)) -> Result<bool, DeviceError> {
        if self.from.is_some() || !self.wants_chunk() {
            return Ok(false);
        }
        let Some(chunk) = self.chunk()? else {
            return Ok(false);
        };
        let bytes = chunk.bytes().min(self.bytes - self.queued);
        pack(self.queued..self.queued + bytes, chunk.host());
        self.pieces.push_back(Piece {
            chunk,
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

    /// Notes that no kernel is under way, and none waits for memory, if so.
    pub fn look(&mut self) {
        let mut works = self.wants_memory() || self.refuses;
        for piece in &mut self.pieces {
            // What fails is told to the next that asks.
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
        let host = piece.chunk.host().wrapping_add(self.taken);
        Ok((host, piece.bytes - self.taken))
    }

    /// The engine has taken so many bytes more.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.pieces.front().is_some_and(|p| p.bytes <= self.taken) {
            self.taken = 0;
            self.forget();
        }
    }

    /// The first piece is over.
    fn forget(&mut self) {
        if let Some(piece) = self.pieces.pop_front()
            && self.queued < self.bytes
        {
            self.idle.push(piece.chunk);
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
        let chunks = self.pieces.iter_mut().map(|piece| &mut piece.chunk);
        chunks.chain(&mut self.idle).for_each(Chunk::meet);
    }

    /// From now on pieces are handed over. False where there is no memory for that: then
    /// nothing has changed, and its receive still has to ask for it.
    pub fn hand_over(&mut self) -> bool {
        let shared = |piece: &Piece| piece.chunk.place(piece.bytes).is_some();
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

    /// Whether its receiver is told later that nothing is handed over, as the bytes are
    /// not valid yet.
    pub fn refuses_later(&mut self) -> bool {
        self.refuses = self.late.is_late() == Ok(true);
        if self.refuses {
            self.note();
        }
        self.refuses
    }

    /// Whether its receiver is to be told now.
    pub fn refuses_now(&mut self) -> bool {
        // What fails is told to whoever takes the bytes.
        let now = self.refuses && self.late.is_late() != Ok(true);
        self.refuses &= !now;
        now
    }

    /// Whether pieces are handed over.
    pub fn hands_over(&self) -> bool {
        self.handed.is_some()
    }

    /// The next piece to be handed over, once it is packed, and its bytes.
    pub fn next_handed(&mut self) -> Result<Option<(Place, usize)>, DeviceError> {
        self.advance()?;
        let next = self.handed.and_then(|at| self.pieces.get_mut(at));
        let Some(piece) = next else {
            return Ok(None);
        };
        if !passed(&mut piece.event)? {
            return Ok(None);
        }
        Ok(piece.chunk.place(piece.bytes).map(|p| (p, piece.bytes)))
    }

    /// It was.
    pub fn handed(&mut self) {
        self.handed = self.handed.map(|handed| handed + 1);
    }

    /// The receiver has taken so many pieces. False: it had not got them.
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
        self.handed == Some(self.pieces.len()) && !self.wants_chunk()
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

    /// Whether kernels are under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Waits on the host until bytes are ready (blocking).
    pub fn wait(&mut self) -> Result<(), DeviceError> {
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

/// Bytes that wait for memory from which a kernel unpacks.
enum Waiting {
    Bytes(Vec<u8>),
    /// A peer's chunk on the host that our device does not reach.
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
    Own(Chunk),
    /// A peer's chunk, which it is told of.
    Handed,
}

/// A peer's chunks on its device.
struct Peer {
    memory: Arc<Memory>,
    /// Copies of chunks to our own device, which are unpacked there.
    copies: Option<Lent>,
}

/// Unpacks a message to a device behind the engine.
pub(crate) struct Inbound {
    devices: Arc<Devices>,
    lent: Lent,
    view: Ordered<DeviceView<u8>>,
    plan: Pipeline,
    /// Of each kernel.
    blocks: u32,
    engine: Engine,
    /// Bytes that will be unpacked.
    bytes: usize,
    /// Bytes that lie in chunks, or are unpacked.
    written: usize,
    /// Bytes that kernels have been queued for.
    queued: usize,
    /// Chunks for the next bytes; the first has some already.
    room: VecDeque<Chunk>,
    /// Kernels and copies that may be under way, in order.
    kernels: VecDeque<(Option<Event>, Source)>,
    peer: Option<Peer>,
    /// Copies of a peer's chunks that kernels unpack.
    copied_chunks: VecDeque<(Option<Event>, Chunk)>,
    idle: Vec<Chunk>,
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
    /// Pieces that were handed over, and of these those that are done and not told.
    handed: usize,
    done: usize,
    under_way: Option<UnderWay>,
    /// Bytes that the host has copied.
    pub copied: u64,
    /// Chunks that were copied to the own device first.
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
    /// Of a message of so many bytes, of which those that do not fit the view are
    /// never written.
    pub fn new(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        message: usize,
    ) -> Result<Inbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes().min(message);
        let (end, lent) = (memory.end(), Lent::new(devices, &view)?);
        Ok(Inbound {
            devices: devices.clone(),
            blocks: lent.device.model.unpack_blocks(end.class),
            engine: engine(&devices.model(), end, Move::Empty, bytes),
            lent,
            late: Late::of(&view),
            view,
            plan: devices.model().pieces(end, bytes),
            bytes,
            written: 0,
            queued: 0,
            room: VecDeque::new(),
            kernels: VecDeque::new(),
            peer: None,
            copied_chunks: VecDeque::new(),
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

    /// Of a message that comes in chunks of its sender's device, opened here.
    pub fn of_peer(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        message: usize,
        (peer, linked): (Arc<Memory>, bool),
    ) -> Result<Inbound, DeviceError> {
        let mut inbound = Inbound::new(devices, memory, message)?;
        let end = memory.end();
        let model = inbound.lent.device.model;
        let from = End {
            place: Where::Device,
            class: end.class,
        };
        inbound.plan = devices.model().device_pieces(from, end, message, linked);
        inbound.blocks = model.copy_blocks(end.class, Class::Run);
        let chunk = inbound.plan.fragment;
        let chunks = (chunk, message.div_ceil(chunk));
        let copies = match model.copies_first(end, linked, chunks) {
            true => Some(Lent::new(devices, &inbound.view)?),
            false => None,
        };
        inbound.peer = Some(Peer {
            memory: peer,
            copies,
        });
        Ok(inbound)
    }

    /// A chunk that its sender has handed over.
    pub fn handed(&self, place: Place) -> Option<Handed> {
        match &self.peer {
            Some(peer) => Handed::on_peer(&peer.memory, place),
            None => self.devices.pool().handed(place),
        }
    }

    /// Whether chunks of its sender's device come.
    pub fn is_on_peer(&self) -> bool {
        self.peer.is_some()
    }

    fn note(&mut self) {
        if self.under_way.is_none() {
            self.under_way = Some(UnderWay::new(&self.devices));
        }
    }

    /// A chunk for bytes to come; none now.
    fn chunk(&mut self, bytes: usize) -> Result<Option<Chunk>, DeviceError> {
        if let Some(chunk) = self.idle.pop() {
            return Ok(Some(chunk));
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

    /// Copies bytes to chunks as far as there are some, and unpacks those that are full.
    fn put(&mut self, from: *const u8, bytes: usize) -> Result<usize, DeviceError> {
        let mut done = 0;
        while done < bytes {
            // A sender that is asked for its bytes has room for those.
            if self.room.is_empty() && self.send.is_none() {
                let rest = self.bytes - self.written;
                match self.chunk(self.plan.fragment.min(rest))? {
                    Some(chunk) => self.room.push_back(chunk),
                    None => break,
                }
            }
            let Some(chunk) = self.room.front() else {
                break;
            };
            let filled = self.written - self.queued;
            let n = (chunk.bytes() - filled).min(bytes - done);
            let to = chunk.host().wrapping_add(filled);
            // SAFETY: a chunk of ours that no kernel uses, with room for `n` bytes; the
            // caller has `bytes` readable ones.
            unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(done), to, n) };
            done += n;
            self.copied += n as u64;
            self.written += n;
            if filled + n == chunk.bytes() || self.written == self.bytes {
                self.unpack_room()?;
            }
        }
        Ok(done)
    }

    /// Unpacks the first chunk of the room.
    fn unpack_room(&mut self) -> Result<(), DeviceError> {
        let Some(chunk) = self.room.pop_front() else {
            return Ok(());
        };
        let range = self.queued..self.written;
        let packed = chunk.on_device(&self.lent.device.context, range.len())?;
        let event = self.unpack(packed.after_stream(self.lent.stream()?), range)?;
        self.kernels.push_back((Some(event), Source::Own(chunk)));
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
        // SAFETY: the caller's contract; the vector has as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from.wrapping_add(done), rest.as_mut_ptr(), rest.len());
        }
        self.copied += rest.len() as u64;
        self.waiting.push_back(Waiting::Bytes(rest));
        self.note();
        Ok(true)
    }

    /// Takes a peer's chunk, of which `bytes` bytes fit the view.
    pub fn take_handed(&mut self, handed: Handed, bytes: usize) -> Result<(), DeviceError> {
        self.handed += 1;
        if bytes == 0 {
            self.kernels.push_back((None, Source::Handed));
            return self.advance();
        }
        let context = &self.lent.device.context;
        let reached = handed.on_device(context, bytes);
        if handed.host().is_none() {
            return self.take_from_peer(&reached?);
        }
        match reached.ok().filter(|_| self.waiting.is_empty()) {
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
        let Some((copied, chunk, own)) = self.copy_first(packed)? else {
            let event = self.unpack(packed.after_stream(self.lent.stream()?), range)?;
            self.kernels.push_back((Some(event), Source::Handed));
            return Ok(());
        };
        self.note();
        self.copied_first += 1;
        (self.kernels).push_back((Some(copied.clone()), Source::Handed));
        // Whatever follows, the copy is under way.
        self.copied_chunks.push_back((Some(copied.clone()), chunk));
        let event = self.unpack(own.after(&copied), range)?;
        if let Some((last, _)) = self.copied_chunks.back_mut() {
            *last = Some(event);
        }
        Ok(())
    }

    /// Copies bytes to a chunk of our own device, if that is how they go and there is
    /// one.
    fn copy_first(
        &self,
        packed: &DeviceSlice<u8>,
    ) -> Result<Option<(Event, Chunk, DeviceSlice<u8>)>, DeviceError> {
        let Some(copies) = self.peer.as_ref().and_then(|peer| peer.copies.as_ref()) else {
            return Ok(None);
        };
        let device = &self.lent.device;
        let _held = device.context.hold()?;
        let bytes = packed.len();
        let size = (bytes, bytes);
        let chunk = match self.copied_chunks.len() < self.plan.depth.max(2) {
            true => (device.chunks).take(Some(&device.context), size, Claim::Copy, Kind::Shared),
            false => Ok(None),
        };
        // Without one it is unpacked where it lies.
        let Ok(Some(chunk)) = chunk else {
            return Ok(None);
        };
        let own = chunk.on_device(&device.context, bytes)?;
        let stream = copies.stream()?;
        let to = own.after_stream(stream);
        let event = copy::copy(stream, &packed.after_stream(stream), &to)?;
        Ok(Some((event, chunk, own)))
    }

    /// Looks which kernels are done, and goes on with what waits.
    fn advance(&mut self) -> Result<(), DeviceError> {
        while let Some((event, _)) = self.kernels.front_mut() {
            if !passed(event)? {
                break;
            }
            match self.kernels.pop_front() {
                // What nobody has asked for takes memory when it comes.
                Some((_, Source::Own(chunk)))
                    if self.written < self.bytes && self.send.is_some() =>
                {
                    self.idle.push(chunk);
                }
                Some((_, Source::Handed)) => self.done += 1,
                _ => {}
            }
        }
        while let Some((event, _)) = self.copied_chunks.front_mut() {
            if !passed(event)? {
                break;
            }
            self.copied_chunks.pop_front();
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

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool {
        self.kernels.is_empty() && self.copied_chunks.is_empty() && self.waiting.is_empty()
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

    /// Pieces of the peer that are done and were not told of yet.
    pub fn done(&mut self) -> Result<usize, DeviceError> {
        self.advance()?;
        self.handed -= self.done;
        Ok(std::mem::take(&mut self.done))
    }

    /// Gives up: waits for kernels, and says how many pieces of the peer were not told
    /// of yet.
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
            // Whole units, as GO counts them.
            let Some(chunk) = self.chunk(self.plan.fragment)? else {
                break;
            };
            may += chunk.bytes();
            self.room.push_back(chunk);
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
    /// that waits would keep its chunks. The send, if it is to begin now.
    pub fn ask_chunks(&mut self, send: (u32, u16)) -> Result<Option<(u32, u16)>, DeviceError> {
        self.hands = Some(send);
        self.begin_chunks()
    }

    /// The send that is to begin to hand pieces over now.
    pub fn begin_chunks(&mut self) -> Result<Option<(u32, u16)>, DeviceError> {
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

    /// Whether kernels are under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    fn wait_for_kernels(&mut self) {
        let mut failed = false;
        let copies = self.copied_chunks.iter_mut().map(|(event, _)| event);
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
    /// As [`Outbound`]'s.
    fn drop(&mut self) {
        self.wait_for_kernels();
    }
}
