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

use super::{Device, Devices};
use crate::protocol::device::{Between, End, Means, Model, Move, SHORT_BYTES, Turns};
use osier_kernels::{Context, DeviceError, DeviceView, Engine, Ordered, Stream};
use std::sync::{Arc, OnceLock};

/// What moves a message of one run: short ones a kernel where that tells its end itself, for
/// behind a copy come an event and a store; else whichever is quicker to begin. Where another
/// process may have the device's turn, a copy engine, which needs none.
pub(super) fn engine(
    model: &Model,
    context: Option<&Context>,
    end: End,
    what: (Move, usize),
    turns: Turns,
) -> Engine {
    let ((what, bytes), turns) = (what, turns.are_taken());
    let tells = || context.is_some_and(Context::tells_ends);
    let quicker = || model.means(end, what, bytes, (false, turns)).0 == Means::Kernel;
    match bytes <= SHORT_BYTES && (!turns && tells() || quicker()) {
        true => Engine::Kernel,
        false if turns => Engine::CopyEngine,
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

/// A device's stream, lent to a transfer when it first needs one: transfers that wait for their
/// ready events may be many, and to make a stream while another is held may wait for that one.
#[derive(Debug)]
struct Lent {
    device: Arc<Device>,
    stream: OnceLock<Stream>,
    spoiled: bool,
}

impl Lent {
    fn new(devices: &Devices, view: &Ordered<DeviceView<u8>>) -> Lent {
        Lent {
            device: devices.of(view.buffer().memory().context()),
            stream: OnceLock::new(),
            spoiled: false,
        }
    }

    fn stream(&self) -> Result<&Stream, DeviceError> {
        if self.spoiled {
            return Err(DeviceError::Unavailable("the stream was given back".into()));
        }
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = self.device.stream()?;
        Ok(self.stream.get_or_init(|| stream))
    }

    /// Something on the stream has failed: it is not used again.
    fn spoil(&mut self) {
        self.spoiled = true;
        self.stream.take();
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.device.context.give_stream(stream);
        }
    }
}
