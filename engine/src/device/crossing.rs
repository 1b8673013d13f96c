//! Memory of the host in place of a device's, for calls whose steps the host takes.
//!
//! ```text
//! device memory --fill--> slot of the pool    steps of the call    slot --empty--> device memory
//! ```
//!
//! The steps work in the slot, which is pinned: so each way is one kernel or one copy, and no byte
//! is copied by the host. Where no slot is free, calls copy by messages of the rank to itself.
//!
//! # Invariants
//! 1. A call waits for its peers while it has a slot, so it counts as what is announced: of the
//!    memory such transfers have a part at most.
//! 2. A slot outlives the work on it: a run drops its works before its crossings.

use super::bounce::engine;
use super::direct::Direct;
use super::pool::{Claim, Kind, Slot};
use super::{DeviceMemory, Devices};
use crate::protocol::device::Move;
use osier_kernels::DeviceError;
use std::sync::Arc;

/// Room of the host for the packed bytes of a device's memory.
#[derive(Debug)]
pub struct Crossing {
    devices: Arc<Devices>,
    of: Arc<DeviceMemory>,
    slot: Slot,
    bytes: usize,
}

impl Crossing {
    /// For all of some memory; none if no slot is free.
    pub fn of(devices: &Arc<Devices>, of: &Arc<DeviceMemory>) -> Option<Crossing> {
        let of = of.clone();
        let bytes = of.view().ok()?.buffer().packed_bytes();
        let context = of.view().ok()?.buffer().memory().context().clone();
        let pool = devices.pool();
        let slot = pool.take(Some(&context), (bytes, bytes), Claim::Announced, Kind::Any);
        let slot = slot.ok().flatten().filter(|slot| slot.bytes() >= bytes)?;
        Some(Crossing {
            devices: devices.clone(),
            of,
            slot,
            bytes,
        })
    }

    /// The room, which lives as long as this.
    pub fn host(&self) -> *mut u8 {
        self.slot.host()
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins to fill it from the device's memory, or to empty it there.
    ///
    /// # Errors
    /// The driver refuses; nothing is in flight then.
    pub fn begin(&self, what: Move) -> Result<Direct, DeviceError> {
        let view = self.of.view()?.clone();
        let context = view.buffer().memory().context().clone();
        let device = self.devices.of(&context);
        let (end, all, model) = (self.of.end(), 0..self.bytes, &device.model);
        // The steps between are messages: where processes take turns, peers have theirs.
        let turns = device.turns(true);
        let by = engine(model, Some(&context), end, (what, self.bytes), turns);
        let blocks = match what {
            Move::Fill => model.pack_blocks(end.class),
            Move::Empty => model.unpack_blocks(end.class),
        };
        let room = self.slot.on_device(&context, self.bytes)?;
        let views = [view.clone()];
        Direct::queued_behind(&self.devices, &context, &views, move |packer, stream| {
            let room = room.after_stream(stream);
            match what {
                Move::Fill => packer.pack_by(by, stream, &view, all, &room, Some(blocks)),
                Move::Empty => packer.unpack_by(by, stream, &room, all, &view, Some(blocks)),
            }
        })
    }
}
