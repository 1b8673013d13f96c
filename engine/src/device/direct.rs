//! Device-to-device copy by one kernel, without the host.

use super::{Device, Devices, UnderWay, passed};
use crate::protocol::device::Class;
use osier_kernels::{After, Context, DeviceError, DeviceView, Event, Ordered, Packer, Stream};
use std::sync::Arc;

/// What a kernel does with the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Reads,
    /// The memory is given back on its stream before the copy completes.
    ReadsAndReturns,
    Writes,
    /// As well.
    WritesAndReturns,
}

/// Queues a transfer's work on its stream; the event behind it.
type Queue = Box<dyn FnOnce(&Packer, &Stream) -> Result<Event, DeviceError> + Send>;

/// A copy from layout to layout in flight.
pub struct Direct {
    device: Arc<Device>,
    /// None: not to be used again, or not needed yet.
    stream: Option<Stream>,
    event: Option<Event>,
    /// What is to be queued when these events have passed.
    later: Option<(Vec<Event>, Queue)>,
    under_way: Option<UnderWay>,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct")
            .field("stream", &self.stream)
            .field("event", &self.event)
            .field("is_later", &self.later.is_some())
            .finish_non_exhaustive()
    }
}

impl Direct {
    /// Begins to copy the first bytes of one view to another's, by a kernel of a device
    /// that has one of them, `own`; the other gets its stream. `linked`: it is another
    /// device's.
    ///
    /// # Errors
    /// The kernel does not reach both, they share a byte, or the driver refuses; nothing
    /// is in flight then.
    pub fn new(
        devices: &Arc<Devices>,
        context: &Context,
        own: &Ordered<DeviceView<u8>>,
        other: impl FnOnce(&Stream) -> Result<Ordered<DeviceView<u8>>, DeviceError>,
        (how, bytes, linked): (How, usize, bool),
    ) -> Result<Direct, DeviceError> {
        let device = devices.of(context);
        let stream = device.stream()?;
        let other = other(&stream)?;
        let (from, to) = match how {
            How::Writes | How::WritesAndReturns => (own.clone(), other),
            How::Reads | How::ReadsAndReturns => (other, own.clone()),
        };
        let class = |view: &DeviceView<u8>| Class::of(view.layout(), view.count());
        let (read, written) = (class(from.buffer()), class(to.buffer()));
        let blocks = Some(device.model.copy_blocks(read, written, linked));
        let late = late(context, [&from, &to])?;
        let queue = move |packer: &Packer, stream: &Stream| {
            let event = packer.copy(stream, &from, &to, 0..bytes, blocks)?;
            // Memory of a pool is given back on its stream.
            drop((from, to));
            match how {
                How::ReadsAndReturns | How::WritesAndReturns => stream.record(),
                How::Reads | How::Writes => Ok(event),
            }
        };
        let (event, later): (_, Option<(_, Queue)>) = match late.is_empty() {
            true => (Some(queue(&device.packer, &stream)?), None),
            false => (None, Some((late, Box::new(queue)))),
        };
        Ok(Direct {
            device,
            stream: Some(stream),
            event,
            later,
            under_way: Some(UnderWay::new(devices)),
        })
    }

    /// Begins what is queued on a stream that nothing else uses.
    ///
    /// # Errors
    /// Those of the call that queues; nothing is in flight then.
    pub fn queued(
        devices: &Arc<Devices>,
        context: &Context,
        queue: impl FnOnce(&Packer, &Stream) -> Result<Event, DeviceError>,
    ) -> Result<Direct, DeviceError> {
        let device = devices.of(context);
        let (stream, event) = begin(&device, queue)?;
        Ok(Direct {
            device,
            stream: Some(stream),
            event: Some(event),
            later: None,
            under_way: Some(UnderWay::new(devices)),
        })
    }

    /// As [`Direct::queued`], of work on these views: when they are valid, where the stream
    /// that makes them so may wait for a message.
    ///
    /// # Errors
    /// As there.
    pub fn queued_behind<'v>(
        devices: &Arc<Devices>,
        context: &Context,
        views: impl IntoIterator<Item = &'v Ordered<DeviceView<u8>>>,
        queue: impl FnOnce(&Packer, &Stream) -> Result<Event, DeviceError> + Send + 'static,
    ) -> Result<Direct, DeviceError> {
        let late = late(context, views)?;
        if late.is_empty() {
            return Direct::queued(devices, context, queue);
        }
        Ok(Direct {
            device: devices.of(context),
            stream: None,
            event: None,
            later: Some((late, Box::new(queue))),
            under_way: Some(UnderWay::new(devices)),
        })
    }

    /// Passes behind it; none: it has passed.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// Whether all bytes lie there.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        if let Some((late, _)) = &mut self.later {
            while let Some(event) = late.last() {
                if !event.is_passed()? {
                    return Ok(false);
                }
                late.pop();
            }
        }
        if let Some((_, queue)) = self.later.take() {
            self.event = match &self.stream {
                Some(stream) => Some(queue(&self.device.packer, stream)?),
                None => {
                    let (stream, event) = begin(&self.device, queue)?;
                    self.stream = Some(stream);
                    Some(event)
                }
            };
        }
        let ended = passed(&mut self.event)?;
        if ended {
            self.under_way = None;
        }
        Ok(ended)
    }
}

/// Queues work on a stream that nothing else uses.
fn begin(
    device: &Device,
    queue: impl FnOnce(&Packer, &Stream) -> Result<Event, DeviceError>,
) -> Result<(Stream, Event), DeviceError> {
    let stream = device.stream()?;
    match queue(&device.packer, &stream) {
        Ok(event) => Ok((stream, event)),
        Err(e) => {
            // A part of it may run.
            if let Ok(event) = stream.record() {
                let _ = event.synchronize();
            }
            Err(e)
        }
    }
}

/// The events that have to pass before anything is queued on these views: none, but where a
/// stream may wait for a message. What waits behind it would hold up that message, if the
/// hardware has one queue for both.
fn late<'v>(
    context: &Context,
    views: impl IntoIterator<Item = &'v Ordered<DeviceView<u8>>>,
) -> Result<Vec<Event>, DeviceError> {
    let mut late = Vec::new();
    if !context.holds_streams() {
        return Ok(late);
    }
    for view in views {
        if let After::Event(event) = view.ready_event()
            && !event.is_passed()?
        {
            late.push(event.clone());
        }
    }
    Ok(late)
}

impl Drop for Direct {
    /// Waits for the kernel of a transfer that ends early: the user may use the memory
    /// at once.
    fn drop(&mut self) {
        if let Some(event) = self.event.take()
            && event.synchronize().is_err()
        {
            self.stream = None;
        }
        if let Some(stream) = self.stream.take() {
            self.device.context.give_stream(stream);
        }
    }
}
