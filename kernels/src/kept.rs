//! Memory that nobody has: kept, to be had again.
//!
//! Pinning takes a driver about a millisecond, allocating plain memory of a device some
//! hundred microseconds, and giving back waits for the work of the device, whatever it is
//! for; where the host or the program holds a stream meanwhile that never ends. Memory of
//! the device that is kept stays open in the processes that have opened it, too.
//!
//! # Invariants
//! 1. What is kept has no owner and no work on it.
//! 2. No more bytes are kept than the limit; what is more goes back to the driver.

use crate::debug;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of pinned memory that are kept of a device's.
pub(crate) const MOST_PINNED_BYTES: usize = 64 << 20;
/// Least memory of an allocation.
const LEAST_BYTES: usize = 4 << 10;

/// Blocks of up to this size serve any smaller request.
const ANY_BYTES: usize = 256 << 10;

/// Memory with its address for the host, if it has one, and for devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub host: *mut u8,
    pub at: u64,
    /// A size of [`size_class`].
    pub bytes: usize,
}

// SAFETY: nobody owns the memory (invariant 1).
unsafe impl Send for Block {}

impl Block {
    /// Whether it serves a request of such a class: it is not much larger.
    pub fn serves(&self, class: usize) -> bool {
        (class..=most_for(class)).contains(&self.bytes)
    }
}

/// What is kept of a device's.
#[derive(Debug)]
pub(crate) struct Kept {
    most_bytes: usize,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    by_size: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

/// The size that an allocation gets: at most an eighth more than was asked for.
pub(crate) fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(LEAST_BYTES);
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(1))
}

/// The largest block that serves a class.
fn most_for(class: usize) -> usize {
    class.saturating_mul(2).max(ANY_BYTES)
}

/// Most bytes of plain memory of a device that are kept: all, unless the developer says
/// otherwise. A device that has no more is given them back.
pub(crate) fn most_plain_bytes() -> usize {
    let said = debug::value(debug::KEPT_PLAIN);
    let said = said.and_then(|text| text.to_str()?.parse().ok());
    said.unwrap_or(usize::MAX)
}

impl Kept {
    /// With a limit in bytes.
    pub fn new(most_bytes: usize) -> Kept {
        Kept {
            most_bytes,
            blocks: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest block that serves a class.
    pub fn take(&self, class: usize) -> Option<Block> {
        let mut kept = self.lock();
        let (&size, blocks) = kept.by_size.range_mut(class..=most_for(class)).next()?;
        let block = blocks.pop()?;
        if blocks.is_empty() {
            kept.by_size.remove(&size);
        }
        kept.bytes -= size;
        Some(block)
    }

    /// Keeps memory; false if the limit would be exceeded.
    pub fn give(&self, block: Block) -> bool {
        let mut kept = self.lock();
        let room = block.bytes <= self.most_bytes.saturating_sub(kept.bytes);
        if room {
            kept.bytes += block.bytes;
            kept.by_size.entry(block.bytes).or_default().push(block);
        }
        room
    }

    /// All of it, kept no more.
    pub fn drain(&self) -> Vec<Block> {
        let mut kept = self.lock();
        kept.bytes = 0;
        let blocks = std::mem::take(&mut kept.by_size).into_values();
        blocks.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_little_more_than_asked_for() {
        for bytes in (0..70_000).chain([1 << 20, (1 << 20) + 1, 300 << 20]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class >= LEAST_BYTES);
            assert!(class <= LEAST_BYTES || class - bytes <= bytes / 4);
            assert_eq!(size_class(class), class);
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_had_again() {
        let kept = Kept::new(MOST_PINNED_BYTES);
        let block = |bytes| Block {
            host: std::ptr::null_mut(),
            at: bytes as u64,
            bytes,
        };
        let most = MOST_PINNED_BYTES / (8 << 20);
        for _ in 0..most {
            assert!(kept.give(block(8 << 20)));
        }
        assert!(!kept.give(block(4096)));
        assert!(kept.take(4096).is_none());
        assert_eq!(kept.take(8 << 20).unwrap().bytes, 8 << 20);
        assert!(kept.give(block(4096)));
        assert_eq!(kept.take(4096).unwrap().at, 4096);
        assert!(kept.give(block(4096)));
        assert_eq!(kept.drain().len(), most);
        assert!(kept.take(4096).is_none());
    }
}
