//! Slots to send from and receive into: one that is reused, or more than the
//! caches hold.

use osier::buffers::HeapBuffer;
use osier::{Communicator, View, ViewMut};

use super::layout::Shape;
use super::{Memory, Result};

/// Rotation walks this much in every direction: four such pools in a
/// ping-pong of two ranks exceed any last-level cache known to us.
const ROTATED_BYTES: usize = 128 << 20;
/// Rotated slots lie at least a page and a line apart, so that neither a
/// stream prefetcher nor one cache set decides the result.
const MIN_SLOT_BYTES: usize = 4160;
const PAGE_BYTES: usize = 4096;

/// Equal slots in one piece of memory, walked round.
pub struct Pool {
    memory: Store,
    start: usize,
    slot_bytes: usize,
    slots: usize,
}

enum Store {
    Plain(Vec<u8>),
    Heap(HeapBuffer<u8>),
}

impl Pool {
    /// `reused` slots for `span` bytes, or as many as rotation needs. `comm`
    /// gives heap memory.
    pub fn new(
        comm: Option<&Communicator>,
        memory: Memory,
        span: usize,
        rotate: bool,
        reused: usize,
        fill: u8,
    ) -> Result<Pool> {
        let mut slot_bytes = span.max(1).next_multiple_of(64);
        let mut slots = reused;
        if rotate {
            slot_bytes = slot_bytes.max(MIN_SLOT_BYTES);
            slots = slots.max(ROTATED_BYTES / slot_bytes);
        }
        let bytes = slot_bytes * slots;
        let mut memory = match (memory, comm) {
            (Memory::Heap, Some(comm)) => Store::Heap(comm.alloc(bytes + PAGE_BYTES)?),
            _ => {
                let mut v = Vec::new();
                v.try_reserve_exact(bytes + PAGE_BYTES).map_err(|_| {
                    super::Failure::failed(format!("no memory for {slots} buffers of {span} bytes"))
                })?;
                v.resize(bytes + PAGE_BYTES, 0);
                Store::Plain(v)
            }
        };
        let all = memory.bytes_mut();
        let start = all.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        // Touches every page: zeros alone may not.
        all.fill(fill);
        Ok(Pool {
            memory,
            start,
            slot_bytes,
            slots,
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// All slots.
    pub fn all(&self) -> &[u8] {
        &self.memory.bytes()[self.start..][..self.slots * self.slot_bytes]
    }

    /// All slots.
    pub fn all_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.start..][..self.slots * self.slot_bytes]
    }

    /// One slot.
    pub fn slot(&self, at: usize) -> &[u8] {
        &self.all()[at * self.slot_bytes..][..self.slot_bytes]
    }

    /// Bytes between the starts of two slots.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// A view of the shape in each slot.
    pub fn views(&self, shape: &Shape) -> Result<Vec<View<'_>>> {
        self.all()
            .chunks_exact(self.slot_bytes)
            .map(|slot| Ok(View::new(slot, 0, &shape.layout, 1)?))
            .collect()
    }

    /// A view to receive into of the shape in each slot.
    pub fn views_mut(&mut self, shape: &Shape) -> Result<Vec<ViewMut<'_>>> {
        let slot_bytes = self.slot_bytes;
        self.all_mut()
            .chunks_exact_mut(slot_bytes)
            .map(|slot| Ok(ViewMut::new(slot, 0, &shape.layout, 1)?))
            .collect()
    }
}

impl Store {
    fn bytes(&self) -> &[u8] {
        match self {
            Store::Plain(v) => v,
            Store::Heap(b) => b,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Store::Plain(v) => v,
            Store::Heap(b) => b,
        }
    }
}
