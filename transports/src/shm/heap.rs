//! Osier's allocator: memory that peers map read-only and pull from with one
//! copy.
//!
//! Each rank owns a window of the job's heap file. Free ranges are kept by
//! address and merged with their neighbors; the window grows at its top.
//!
//! # Invariants
//! 1. A range that `alloc` returns lies in one step of the window, below `top`, and was
//!    populated when the window grew over it; no other rank writes the window.
//! 2. A range is either free or given out once: only `take` and growth give out, only
//!    `give` takes back, both under the lock.

use super::mapping::{self, Steps};
use super::segment::Segment;
use crate::contract::{TransportError, TransportErrorKind};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

const ALIGN: u64 = 64;
const GROW: u64 = 2 << 20;

#[derive(Default)]
struct Ranges {
    /// Offset and size of each free range; no two touch within a step.
    free: BTreeMap<u64, u64>,
    top: u64,
}

impl Ranges {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &size) = self.free.iter().find(|(_, size)| **size >= bytes)?;
        self.free.remove(&offset);
        if size > bytes {
            self.free.insert(offset + bytes, size - bytes);
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
            && !mapping::begins_step(offset)
        {
            self.free.remove(&before);
            offset = before;
            bytes += size;
        }
        if !mapping::begins_step(offset + bytes)
            && let Some(size) = self.free.remove(&(offset + bytes))
        {
            bytes += size;
        }
        self.free.insert(offset, bytes);
    }
}

/// One rank's window.
pub(crate) struct Heap {
    window: OnceLock<Steps>,
    ranges: Mutex<Ranges>,
}

impl Heap {
    pub fn new() -> Self {
        Self {
            window: OnceLock::new(),
            ranges: Mutex::new(Ranges::default()),
        }
    }

    /// Zeroed memory of at least `bytes` bytes, aligned to a cache line.
    pub fn alloc(
        &self,
        segment: &Segment,
        rank: usize,
        bytes: usize,
    ) -> Result<*mut u8, TransportError> {
        let window = self.window.get_or_init(|| segment.window(rank, true));
        let want = (bytes.max(1) as u64)
            .checked_next_multiple_of(ALIGN)
            .filter(|b| *b <= window.bytes())
            .ok_or_else(|| {
                TransportError::new(
                    TransportErrorKind::OutOfMemory,
                    format!(
                        "{bytes} bytes do not fit a heap window of {} GiB",
                        window.bytes() >> 30
                    ),
                )
            })?;
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset) = ranges.take(want) {
            let at = window
                .at(offset, want)
                .inspect_err(|_| ranges.give(offset, want))?;
            // SAFETY: invariants 1 and 2, which `take` upholds.
            unsafe { std::ptr::write_bytes(at, 0, want as usize) };
            return Ok(at);
        }
        let grow = want.next_multiple_of(GROW);
        let offset = window.fit(ranges.top, grow).ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::OutOfMemory,
                format!(
                    "the rank's {} GiB of heap are used up",
                    window.bytes() >> 30
                ),
            )
        })?;
        segment.charge(grow)?;
        let at = window
            .at(offset, grow)
            // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
            .and_then(|at| unsafe { mapping::populate(at, grow, true) }.map(|()| at))
            .inspect_err(|_| segment.discharge(grow))?;
        ranges.top = offset + grow;
        if grow > want {
            ranges.give(offset + want, grow - want);
        }
        Ok(at)
    }

    /// Gives back what `alloc` returned for `bytes`.
    pub fn free(&self, ptr: *const u8, bytes: usize) {
        let want = (bytes.max(1) as u64).next_multiple_of(ALIGN);
        if let Some(offset) = self.offset_of(ptr, bytes) {
            self.ranges
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .give(offset, want);
        }
    }

    /// Offset in the window of memory that lies there.
    #[inline]
    pub fn offset_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        self.window.get()?.offset_of(ptr, bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_with_both_neighbors() {
        let mut r = Ranges::default();
        r.give(0, 64);
        r.give(128, 64);
        r.give(64, 64);
        assert_eq!(r.free.into_iter().collect::<Vec<_>>(), [(0, 192)]);
    }

    #[test]
    fn allocations_do_not_overlap_and_come_zeroed() {
        let segment = Segment::create(2, 0, 1).expect("shared memory");
        let heap = Heap::new();
        let mut held: Vec<(*mut u8, usize)> = Vec::new();
        for i in 0..200usize {
            let bytes = i * 977 % 5000 + 1;
            let p = heap.alloc(&segment, 1, bytes).expect("room");
            for k in 0..bytes {
                // SAFETY: invariant 1: just allocated.
                let at = unsafe { p.add(k) };
                // SAFETY: invariant 1: just allocated.
                assert_eq!(unsafe { at.read() }, 0);
            }
            // SAFETY: invariant 1: just allocated.
            unsafe { std::ptr::write_bytes(p, i as u8 | 1, bytes) };
            for (q, n) in &held {
                assert!(p as usize + bytes <= *q as usize || *q as usize + n <= p as usize);
            }
            held.push((p, bytes));
            if i % 3 == 0 {
                let (q, n) = held.swap_remove(i % held.len());
                heap.free(q, n);
            }
        }
    }

    #[test]
    fn a_limit_gives_an_error_that_names_it() {
        let segment = Segment::create(1, 4 << 20, 1).expect("shared memory");
        let heap = Heap::new();
        let e = heap
            .alloc(&segment, 0, 8 << 20)
            .expect_err("over the limit");
        assert_eq!(e.kind(), TransportErrorKind::OutOfMemory);
        assert!(e.to_string().contains("OSIER_SHM_LIMIT"), "{e}");
        heap.alloc(&segment, 0, 1 << 20).expect("still usable");
    }
}
