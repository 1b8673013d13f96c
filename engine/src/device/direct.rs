//! Device-to-device copy by one kernel, without the host.

use super::{Device, Devices, UnderWay, passed};
use crate::protocol::device::Class;
use osier_kernels::{Context, DeviceError, DeviceView, Event, Ordered, Packer, Stream};
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

/// A copy from layout to layout in flight.
#[derive(Debug)]
pub struct Direct {
    device: Arc<Device>,
    /// None: not to be used again.
    stream: Option<Stream>,
    event: Option<Event>,
    under_way: Option<UnderWay>,
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
            How::Writes | How::WritesAndReturns => (own, &other),
            How::Reads | How::ReadsAndReturns => (&other, own),
        };
        let class = |view: &DeviceView<u8>| Class::of(view.layout(), view.count());
        let (read, written) = (class(from.buffer()), class(to.buffer()));
        let blocks = Some(device.model.copy_blocks(read, written, linked));
        let mut event = (device.packer).copy(&stream, from, to, 0..bytes, blocks)?;
        drop(other);
        if matches!(how, How::ReadsAndReturns | How::WritesAndReturns) {
            event = stream.record()?;
        }
        Ok(Direct {
            device,
            stream: Some(stream),
            event: Some(event),
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
        let stream = device.stream()?;
        match queue(&device.packer, &stream) {
            Ok(event) => Ok(Direct {
                device,
                stream: Some(stream),
                event: Some(event),
                under_way: Some(UnderWay::new(devices)),
            }),
            Err(e) => {
                // A part of it may run.
                if let Ok(event) = stream.record() {
                    let _ = event.synchronize();
                }
                Err(e)
            }
        }
    }

    /// Passes behind it; none: it has passed.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// Whether all bytes lie there.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        let ended = passed(&mut self.event)?;
        if ended {
            self.under_way = None;
        }
        Ok(ended)
    }
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
            super::lock(&self.device.streams).push(stream);
        }
    }
}
