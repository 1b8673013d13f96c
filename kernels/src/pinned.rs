//! Pinned memory of the host that nobody has: kept, to be had again.
//!
//! Pinning takes a driver about a millisecond, and giving back waits for the work of the
//! device, whatever it is for; where the host holds a stream meanwhile that never ends.
//!
//! # Invariants
//! 1. What is kept has no owner and no work on it.
//! 2. Less than [`MOST_BYTES`] are kept; what is more goes back to the driver.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes that are kept of a device's.
const MOST_BYTES: usize = 64 << 20;
/// Least memory of an allocation.
const LEAST_BYTES: usize = 4 << 10;

/// Blocks of up to so many bytes serve any smaller request.
const ANY_BYTES: usize = 256 << 10;

/// Memory with its address for the host and for devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PinnedBlock {
    pub host: *mut u8,
    pub at: u64,
    /// A size of [`size_class`].
    pub bytes: usize,
}

// SAFETY: nobody owns the memory (invariant 1).
unsafe impl Send for PinnedBlock {}

/// What is kept of a device's.
#[derive(Debug, Default)]
pub(crate) struct PinnedCache(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_size: BTreeMap<usize, Vec<PinnedBlock>>,
    bytes: usize,
}

/// The size that an allocation gets: at most an eighth more than was asked for.
pub(crate) fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(LEAST_BYTES);
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(1))
}

impl PinnedCache {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest block of at least this size that is kept and not much larger.
    pub fn take(&self, bytes: usize) -> Option<PinnedBlock> {
        let mut kept = self.lock();
        let most = (2 * bytes).max(ANY_BYTES);
        let (&size, blocks) = kept.by_size.range_mut(bytes..=most).next()?;
        let block = blocks.pop()?;
        if blocks.is_empty() {
            kept.by_size.remove(&size);
        }
        kept.bytes -= size;
        Some(block)
    }

    /// Keeps memory, or returns it if [`MOST_BYTES`] would be exceeded.
    pub fn give(&self, block: PinnedBlock) -> Result<(), PinnedBlock> {
        let mut kept = self.lock();
        if kept.bytes + block.bytes > MOST_BYTES {
            return Err(block);
        }
        kept.bytes += block.bytes;
        kept.by_size.entry(block.bytes).or_default().push(block);
        Ok(())
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
        let cache = PinnedCache::default();
        let block = |bytes| PinnedBlock {
            host: std::ptr::null_mut(),
            at: bytes as u64,
            bytes,
        };
        let most = MOST_BYTES / (8 << 20);
        for _ in 0..most {
            assert!(cache.give(block(8 << 20)).is_ok());
        }
        assert!(cache.give(block(4096)).is_err());
        assert!(cache.take(4096).is_none());
        assert_eq!(cache.take(8 << 20).unwrap().bytes, 8 << 20);
        assert!(cache.give(block(4096)).is_ok());
        assert_eq!(cache.take(4096).unwrap().at, 4096);
    }
}
