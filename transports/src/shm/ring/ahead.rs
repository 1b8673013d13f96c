//! Prefetch of the cells behind those that are read.
//!
//! A consumer that has fallen behind finds line after line full. The next one is fetched while
//! the messages of this one are handled. One that has caught up does not: it would take the
//! line from the producer, which writes it.
//!
//! # Invariants
//! 1. Every processor of x86-64 has the prefetch of `fetch`, which reads nothing that a
//!    program sees, at whatever address.

use super::RingMemory;

/// Cells of a line.
const LINE: u64 = 4;

/// How long a consumer has found what it asked for.
#[derive(Default)]
pub(super) struct Ahead {
    found: u64,
}

impl Ahead {
    /// A short message was taken; the next cell is this one.
    #[inline(always)]
    pub fn took(&mut self, memory: &RingMemory, next: u64) {
        self.found += 1;
        if next & (LINE - 1) == 0 && self.found >= LINE {
            // SAFETY: invariant 7 of `ring`, by the contract of the consumer's `new`.
            fetch(std::ptr::from_ref(unsafe { memory.cell(next + LINE) }).cast());
        }
    }

    /// A message of several cells was taken, from one cell to another.
    #[inline]
    pub fn took_cells(&mut self, memory: &RingMemory, from: u64, to: u64) {
        self.found += to - from;
        if from / LINE != to / LINE && self.found >= LINE {
            // SAFETY: invariant 7 of `ring`, by the contract of the consumer's `new`.
            fetch(std::ptr::from_ref(unsafe { memory.cell(to + LINE) }).cast());
        }
    }

    /// Nothing was there.
    #[inline(always)]
    pub fn nothing(&mut self) {
        self.found = 0;
    }
}

/// Has a line fetched to be read.
#[inline(always)]
fn fetch(line: *const i8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: invariant 1.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}
