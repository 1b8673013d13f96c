//! Export of device memory to other processes: key and ready event.
//!
//! # Invariants
//! 1. An event that a peer knows belongs to one transfer until the peer has answered: no
//!    other transfer records it before.
//! 2. Nothing here waits on the host.

use super::{Device, DeviceMemory, Devices, lock};
use crate::protocol::reach::{Placement, supported};
use osier_kernels::handle::{EventHandle, Key, Made, Piece, export_pieces};
use osier_kernels::{After, DeviceError, DeviceView, Event, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Ready event of memory, for another process.
#[derive(Debug)]
pub enum ReadyEvent {
    /// At once.
    Passed,
    /// When this event has passed.
    Event(ExportedEvent),
    /// When the memory's own event has passed, which no peer can open.
    Later,
}

/// An event exported to another process; returned to the pool when dropped.
#[derive(Debug)]
pub struct ExportedEvent {
    device: Arc<Device>,
    event: Event,
    pub handle: EventHandle,
    /// The stream that waits for the ready event.
    stream: Stream,
}

impl Drop for ExportedEvent {
    fn drop(&mut self) {
        // A stream that still waits for a producer would hold up its next user.
        if self.event.is_passed() == Ok(true) {
            self.device.context.give_stream(self.stream.clone());
        }
        lock(&self.device.exported_events).push((self.event.clone(), self.handle));
    }
}

impl DeviceMemory {
    /// The key of its allocation, and where in it the first instance has its origin.
    ///
    /// # Errors
    /// It cannot be handed over, or the driver knows no such memory.
    pub fn key(&self) -> Result<(Key, u64), DeviceError> {
        let view = self.view()?.buffer();
        let key = Key::of(view.memory(), self.range(view))?;
        Ok((key, view.origin().wrapping_sub(key.start)))
    }

    /// Whether another process on its device may open it.
    pub fn is_opened_elsewhere(&self) -> bool {
        let made = self
            .view()
            .and_then(|view| Made::of(view.buffer().memory()));
        made.is_ok_and(|made| supported(made, Placement::Device).is_there())
    }

    /// Whether its ready event has passed.
    ///
    /// # Errors
    /// What is awaited has failed.
    pub fn is_valid(&self) -> Result<bool, DeviceError> {
        match self.view()?.ready_event() {
            _ if self.ready => Ok(true),
            After::Event(event) => event.is_passed(),
            After::Stream(_) => Ok(false),
            After::Now => Ok(true),
        }
    }

    /// Descriptors of the memory that its key names.
    ///
    /// # Errors
    /// It is no mapped memory, or the driver refuses.
    pub fn pieces(&self) -> Result<Vec<Piece>, DeviceError> {
        let view = self.view()?.buffer();
        view.memory().check_lives()?;
        export_pieces(view.memory().context(), self.range(view))
    }

    /// The addresses that a view touches; its origin, too, so that it lies behind what is
    /// opened.
    fn range(&self, view: &DeviceView<u8>) -> Range<u64> {
        let (low, high) = view.layout().span(view.count());
        let place = |offset: isize| view.origin().wrapping_add_signed(offset as i64);
        place(low.min(0))..place(high)
    }

    /// From when another process may use it; `tells`: it can open an event.
    ///
    /// # Errors
    /// What is awaited has failed.
    pub fn ready_event(
        &self,
        devices: &Arc<Devices>,
        tells: bool,
    ) -> Result<ReadyEvent, DeviceError> {
        let view = self.view()?;
        let event = match view.ready_event() {
            After::Event(event) => event,
            After::Stream(_) => return Ok(ReadyEvent::Later), // not settled: nobody sends it
            After::Now => return Ok(ReadyEvent::Passed),
        };
        if event.is_passed()? {
            return Ok(ReadyEvent::Passed);
        }
        let context = view.buffer().memory().context();
        // A stream that waits for it would hold up those that share the hardware's queue.
        if !tells || context.holds_streams() {
            return Ok(ReadyEvent::Later);
        }
        let device = devices.of(context);
        Ok(export_event(&device, event).map_or(ReadyEvent::Later, ReadyEvent::Event))
    }
}

/// An event of other processes that passes with one of ours.
fn export_event(device: &Arc<Device>, event: &Event) -> Result<ExportedEvent, DeviceError> {
    let stream = device.stream()?;
    stream.wait(event)?;
    let kept = lock(&device.exported_events).pop();
    let (event, handle) = match kept {
        Some((event, handle)) => {
            event.record_again(&stream)?;
            (event, handle)
        }
        None => {
            let event = Event::shared(&stream)?;
            let handle = event.export()?;
            (event, handle)
        }
    };
    Ok(ExportedEvent {
        device: device.clone(),
        event,
        handle,
        stream,
    })
}
