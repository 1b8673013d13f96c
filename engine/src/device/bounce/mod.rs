//! Staging between a device and the host: state of one transfer.
//!
//! The packed message is cut into pieces, each in a slot of the pool, several at a
//! time, so that kernels work on some while others travel.
//!
//! ```text
//! Outbound   kernel packs piece 1 | engine sends piece 0, or hands its slot over
//! Inbound    engine receives piece 1, or is handed it | kernel unpacks piece 0
//! ```
//!
//! Between ranks that share memory the sender hands its slots over: the receiver's
//! kernel reads what the sender's has written, and no byte is copied by the host. The
//! slots lie on the host, or on the sender's device where the receiver opens them there;
//! on a linked device it may copy them to its own first.
//!
//! # Invariants
//! 1. The host reads and writes a slot only while no kernel uses it, and the sender
//!    none that it has handed over.
//! 2. Slots and the stream are given back when no work on them is in flight.
//! 3. Bytes that come are readable, for the length given, until the call returns: by the
//!    contract of [`Inbound::take`], or because they have waited here.

mod inbound;
mod outbound;

pub use inbound::Inbound;
pub use outbound::Outbound;

use super::{Device, Devices, lock};
use crate::protocol::device::{Between, End, Means, Model, Move, SHORT_BYTES, Turns};
use osier_kernels::{DeviceError, DeviceView, Engine, Ordered, Stream};
use std::sync::Arc;

/// What moves a message of one run: short ones a kernel where that tells its end itself, for
/// behind a copy come an event and a store; else whichever is quicker to begin. Where another
/// process may have the device's turn, a copy engine, which needs none.
fn engine(
    model: &Model,
    lent: Option<&Lent>,
    end: End,
    what: (Move, usize),
    turns: Turns,
) -> Engine {
    let ((what, bytes), turns) = (what, turns.are_taken());
    let tells = || lent.is_some_and(|lent| lent.stream().is_ok_and(Stream::tells_ends));
    let quicker = || model.means(end, what, bytes, (false, turns)).0 == Means::Kernel;
    match bytes <= SHORT_BYTES && (!turns && tells() || quicker()) {
        true => Engine::Kernel,
        false => Engine::Copies,
    }
}

/// What lies between two processes that have slots on a device, or on two that are linked.
fn between(device: &Device, linked: bool) -> Between {
    Between {
        linked,
        turns: match !linked && !device.context.has_mps() {
            true => Turns::Receiver,
            false => Turns::None,
        },
        ..Between::default()
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

    /// Whether the other end of a message, of another process on this machine or not, may have
    /// the device by turns.
    fn turns(&self, other_process: bool) -> Turns {
        match other_process && self.device.in_turns {
            true => Turns::Receiver,
            false => Turns::None,
        }
    }

    /// Something on the stream has failed: it is not used again.
    fn spoil(&mut self) {
        self.stream = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            lock(&self.device.streams).push(stream);
        }
    }
}
