//! A message on its way between a device and the host's pinned memory.
//!
//! The packed message is cut into chunks; chunk `i` goes through buffer `i mod` 2, so
//! that a kernel works on one while the engine sends or receives the other.
//!
//! ```text
//! Outbound   kernel packs chunk 1 | engine sends chunk 0
//! Inbound    engine receives chunk 1 | kernel unpacks chunk 0
//! ```
//!
//! # Invariants
//! 1. The engine reads and writes a buffer only while no kernel uses it.
//! 2. Buffers and the stream are given back when no work is under way on them.

use super::{Device, DeviceMemory, Devices, UnderWay, passed};
use crate::protocol::cost::MAX_FRAGMENT_BYTES;
use crate::protocol::eager;
use crate::wire;
use osier_kernels::{DeviceError, DeviceSlice, DeviceView, Event, Ordered, Stream};
use std::sync::Arc;

/// Bytes of a chunk, and of those of short messages.
const CHUNK_BYTES: usize = 1 << 20;
const SHORT_CHUNK_BYTES: usize = 64 << 10;
/// Buffers of a transfer.
const BUFFERS: usize = 2;

// A fragment is sent from one chunk, and an eager message needs no window.
const _: () = assert!(MAX_FRAGMENT_BYTES <= SHORT_CHUNK_BYTES);
const _: () = assert!(eager::LIMIT_BYTES <= (BUFFERS * CHUNK_BYTES) as u64);
const _: () = assert!(SHORT_CHUNK_BYTES.is_multiple_of(wire::WINDOW_BYTES));
const _: () = assert!(CHUNK_BYTES.is_multiple_of(wire::WINDOW_BYTES));

/// What both directions have: a device's stream and buffers, lent.
#[derive(Debug)]
struct Lent {
    devices: Arc<Devices>,
    device: Arc<Device>,
    stream: Option<Stream>,
    slots: Vec<Slot>,
    chunk: usize,
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct Slot {
    buffer: DeviceSlice<u8>,
    event: Option<Event>,
}

impl Lent {
    fn new(
        devices: &Arc<Devices>,
        view: &Ordered<DeviceView<u8>>,
        bytes: usize,
    ) -> Result<Lent, DeviceError> {
        let device = devices.of(view.buffer().memory().context());
        let chunk = match bytes <= SHORT_CHUNK_BYTES {
            true => SHORT_CHUNK_BYTES,
            false => CHUNK_BYTES,
        };
        let mut lent = Lent {
            devices: devices.clone(),
            stream: Some(device.stream()?),
            device,
            slots: Vec::new(),
            chunk,
            under_way: None,
        };
        for _ in 0..bytes.div_ceil(chunk).min(BUFFERS) {
            let buffer = lent.device.buffer(chunk)?;
            lent.slots.push(Slot {
                buffer,
                event: None,
            });
        }
        Ok(lent)
    }

    fn stream(&self) -> Result<&Stream, DeviceError> {
        let gone = || DeviceError::Unavailable("the stream was given back".into());
        self.stream.as_ref().ok_or_else(gone)
    }

    fn slot(&mut self, at: usize) -> &mut Slot {
        let slots = self.slots.len();
        &mut self.slots[at / self.chunk % slots]
    }

    /// Looks which kernels are done.
    fn poll(&mut self) -> Result<bool, DeviceError> {
        let mut done = true;
        for slot in &mut self.slots {
            done &= passed(&mut slot.event)?;
        }
        self.look();
        Ok(done)
    }

    /// Notes that no kernel is under way, if so.
    fn look(&mut self) {
        if self.slots.iter().all(|slot| slot.event.is_none()) {
            self.under_way = None;
        }
    }

    fn note(&mut self, at: usize, event: Event) {
        self.slot(at).event = Some(event);
        if self.under_way.is_none() {
            self.under_way = Some(UnderWay::new(&self.devices));
        }
    }

    /// Whether no kernel uses the buffer of a chunk any more.
    fn is_free(&mut self, at: usize) -> Result<bool, DeviceError> {
        let free = passed(&mut self.slot(at).event)?;
        self.look();
        Ok(free)
    }

    /// Where on the host the chunk's byte lies, and bytes until the chunk's end.
    fn host(&mut self, at: usize) -> Result<(*mut u8, usize), DeviceError> {
        let offset = at % self.chunk;
        let rest = self.chunk - offset;
        let host = self.slot(at).buffer.memory().host();
        let lost = || DeviceError::Unavailable("pinned memory has no host address".into());
        Ok((host.ok_or_else(lost)?.wrapping_add(offset), rest))
    }
}

impl Drop for Lent {
    /// Waits for kernels of a transfer that ends early: the user may use the memory
    /// at once.
    fn drop(&mut self) {
        let mut idle = true;
        for slot in std::mem::take(&mut self.slots) {
            let done = slot.event.is_none_or(|event| event.synchronize().is_ok());
            idle &= done;
            if done {
                super::lock(&self.device.buffers).push(slot.buffer);
            }
        }
        if let (true, Some(stream)) = (idle, self.stream.take()) {
            super::lock(&self.device.streams).push(stream);
        }
    }
}

/// Packs a message of a device ahead of the engine.
#[derive(Debug)]
pub(crate) struct Outbound {
    lent: Lent,
    view: Ordered<DeviceView<u8>>,
    bytes: usize,
    /// Bytes that kernels have been queued for.
    queued: usize,
    /// Bytes that the engine has taken.
    taken: usize,
}

impl Outbound {
    /// Begins to pack.
    pub fn new(devices: &Arc<Devices>, memory: &DeviceMemory) -> Result<Outbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes();
        let mut outbound = Outbound {
            lent: Lent::new(devices, &view, bytes)?,
            view,
            bytes,
            queued: 0,
            taken: 0,
        };
        outbound.advance()?;
        Ok(outbound)
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        let chunk = self.lent.chunk;
        while self.queued < self.bytes && self.queued < (self.taken / chunk + BUFFERS) * chunk {
            let (start, end) = (self.queued, self.bytes.min(self.queued + chunk));
            let stream = self.lent.stream()?.clone();
            let room = self.lent.slot(start).buffer.slice(0..end - start)?;
            let event = self.lent.device.packer.pack(
                &stream,
                &self.view,
                start..end,
                &room.after_stream(&stream),
                None,
            )?;
            self.lent.note(start, event);
            self.queued = end;
        }
        Ok(())
    }

    /// The packed bytes from where the engine is that lie in one piece: none if they
    /// are not packed yet.
    pub fn ready(&mut self) -> Result<(*const u8, usize), DeviceError> {
        self.advance()?;
        let at = self.taken;
        if at >= self.queued || !self.lent.is_free(at)? {
            return Ok((std::ptr::null(), 0));
        }
        let (host, rest) = self.lent.host(at)?;
        Ok((host, rest.min(self.bytes - at)))
    }

    /// The engine has taken so many bytes more.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Looks which kernels are done.
    pub fn look(&mut self) {
        if self.lent.poll().is_err() {
            self.lent.under_way = None; // told by the next that asks
        }
    }

    /// Whether kernels are under way.
    pub fn is_under_way(&self) -> bool {
        self.lent.under_way.is_some()
    }

    /// Waits on the host until bytes are ready (blocking).
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        self.advance()?;
        let at = self.taken;
        if let Some(event) = &self.lent.slot(at).event {
            event.synchronize()?;
        }
        Ok(())
    }
}

/// Unpacks a message to a device behind the engine.
#[derive(Debug)]
pub(crate) struct Inbound {
    lent: Lent,
    view: Ordered<DeviceView<u8>>,
    /// Bytes that will be unpacked.
    bytes: usize,
    /// Bytes that the engine has written.
    written: usize,
    /// Bytes that kernels have been queued for.
    queued: usize,
    /// Bytes up to which the sender was asked to send; `None`: all.
    asked: Option<usize>,
    /// The send that is asked.
    pub send: Option<u32>,
}

impl Inbound {
    /// Room for a message of so many bytes, of which those that do not fit the view are
    /// never written.
    pub fn new(
        devices: &Arc<Devices>,
        memory: &DeviceMemory,
        message: usize,
    ) -> Result<Inbound, DeviceError> {
        let view = memory.view()?.clone();
        let bytes = view.buffer().packed_bytes().min(message);
        Ok(Inbound {
            lent: Lent::new(devices, &view, bytes)?,
            view,
            bytes,
            written: 0,
            queued: 0,
            asked: None,
            send: None,
        })
    }

    /// Where the next bytes go, and how many lie there in one piece: none while the
    /// buffer is unpacked, or when there are enough.
    pub fn room(&mut self) -> Result<(*mut u8, usize), DeviceError> {
        let at = self.written;
        if at >= self.bytes || !self.lent.is_free(at)? {
            return Ok((std::ptr::null_mut(), 0));
        }
        let (host, rest) = self.lent.host(at)?;
        Ok((host, rest.min(self.bytes - at)))
    }

    /// The engine has written so many bytes there.
    pub fn wrote(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.written += bytes;
        if !self.written.is_multiple_of(self.lent.chunk) && self.written < self.bytes {
            return Ok(());
        }
        let (start, end) = (self.queued, self.written);
        let stream = self.lent.stream()?.clone();
        let packed = self.lent.slot(start).buffer.slice(0..end - start)?;
        let event = self.lent.device.packer.unpack(
            &stream,
            &packed.after_stream(&stream),
            start..end,
            &self.view,
            None,
        )?;
        self.lent.note(start, event);
        self.queued = end;
        Ok(())
    }

    /// Whether all bytes lie in the device's memory.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        Ok(self.lent.poll()? && self.written >= self.bytes)
    }

    /// How many bytes more the sender may send, if any: `Some(None)` says all.
    pub fn ask(&mut self, unit: usize) -> Result<Option<Option<usize>>, DeviceError> {
        let chunk = self.lent.chunk;
        let Some(asked) = self.asked else {
            return Ok(None);
        };
        // The chunk behind those that were asked for needs the buffer of the one that
        // is two before it.
        let mut may = asked;
        while may < self.bytes {
            let before = may.checked_sub(BUFFERS * chunk);
            if before.is_some_and(|before| before + chunk > self.queued)
                || !self.lent.is_free(may)?
            {
                break;
            }
            may += chunk;
        }
        if may >= self.bytes {
            self.asked = None;
            return Ok(Some(None));
        }
        if may == asked {
            return Ok(None);
        }
        self.asked = Some(may);
        Ok(Some(Some((may - asked) / unit)))
    }

    /// From now on the sender sends as much as it is asked for.
    pub fn ask_stepwise(&mut self, send: u32) {
        self.asked = Some(0);
        self.send = Some(send);
    }

    /// Whether the sender waits to be asked for more.
    pub fn asks(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether kernels are under way.
    pub fn is_under_way(&self) -> bool {
        self.lent.under_way.is_some()
    }
}

/// A message from one place of a device to another, without the host.
#[derive(Debug)]
pub(crate) struct Direct {
    lent: Lent,
    event: Option<Event>,
}

impl Direct {
    /// Begins to copy the first bytes of one view to another's. None where no kernel
    /// reaches both.
    pub fn new(
        devices: &Arc<Devices>,
        from: &DeviceMemory,
        to: &DeviceMemory,
        bytes: usize,
    ) -> Option<Direct> {
        let (from, to) = (from.view().ok()?, to.view().ok()?);
        if from.buffer().memory().context() != to.buffer().memory().context() {
            return None;
        }
        let mut lent = Lent::new(devices, to, 0).ok()?;
        let stream = lent.stream().ok()?.clone();
        let event = (lent.device.packer)
            .copy(&stream, from, to, 0..bytes, None)
            .ok()?;
        lent.under_way = Some(UnderWay::new(devices));
        Some(Direct {
            lent,
            event: Some(event),
        })
    }

    /// Whether all bytes lie there.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        let over = passed(&mut self.event)?;
        if over {
            self.lent.under_way = None;
        }
        Ok(over)
    }
}

impl Drop for Direct {
    /// As [`Lent`]'s.
    fn drop(&mut self) {
        if let Some(event) = self.event.take()
            && event.synchronize().is_err()
        {
            self.lent.stream = None; // not to be used again
        }
    }
}
