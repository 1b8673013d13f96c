//! Short device messages by BAR1 window: the processor reads and writes device memory itself.

use super::{DeviceMemory, Devices};
use crate::protocol::device::{Means, Move, SHORT_BYTES};
use osier_kernels::{DeviceError, Memory};
use std::sync::Arc;

/// One run of a device's memory that the processor reaches, and may use now.
pub struct Run {
    memory: Arc<Memory>,
    at: u64,
}

impl Run {
    /// Reads the first bytes.
    ///
    /// # Errors
    /// It is not reached after all.
    pub fn read(&self, to: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read_through_bar1(self.at, to)
    }

    /// Writes the first bytes.
    ///
    /// # Errors
    /// It is not reached after all.
    pub fn write(&self, from: &[u8]) -> Result<(), DeviceError> {
        self.memory.write_through_bar1(self.at, from)
    }
}

impl Devices {
    /// Where the processor reaches a short message: one run in memory with a BAR1 window.
    pub fn reached_by_processor(&self, memory: &DeviceMemory, bytes: usize) -> Option<Run> {
        if bytes == 0 || bytes > SHORT_BYTES || osier_kernels::bar1::available().is_err() {
            return None;
        }
        let (layout, count) = memory.instances();
        let base = layout.contiguous_at(count)?;
        let view = memory.view().ok()?.buffer();
        let at = view.origin().wrapping_add_signed(base as i64);
        let reached = view.memory().has_bar1(at, bytes);
        reached.then(|| Run {
            memory: view.memory().clone(),
            at,
        })
    }

    /// Where the processor is to move a short message itself: it reaches the memory, which
    /// is one run and valid now, and nothing is predicted to be quicker.
    pub fn bar1(&self, memory: &DeviceMemory, what: Move, bytes: usize) -> Option<Run> {
        let run = self.reached_by_processor(memory, bytes)?;
        let quickest = self
            .model()
            .means(memory.end(), what, bytes, (true, false))
            .0;
        (quickest == Means::Bar1Window && memory.is_valid() == Ok(true)).then_some(run)
    }
}
