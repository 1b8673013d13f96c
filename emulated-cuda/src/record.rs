//! What a kernel touches: its compiler reports each access here, and neighbors are
//! joined at once.
//!
//! # Invariants
//! 1. Only the worker thread runs kernels and takes what they have told.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use crate::fiber::STACK;
use crate::isolation;
use crate::order::{Accesses, Ranges, merge};

/// Ranges that may still grow: a thread of the pack kernels has four words under way.
const OPEN: usize = 8;
/// Closed ranges from which on they are merged.
const CLOSED: usize = 1 << 16;

#[derive(Debug)]
struct Ways {
    open: [(u64, u64); OPEN],
    next: usize,
    closed: Ranges,
    limit: usize,
}

impl Ways {
    const fn new() -> Ways {
        Ways {
            open: [(0, 0); OPEN],
            next: 0,
            closed: Vec::new(),
            limit: CLOSED,
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        for range in &mut self.open {
            if range.0 <= start && end <= range.1 {
                return;
            }
            if start == range.1 {
                range.1 = end;
                return;
            }
            if end == range.0 {
                range.0 = start;
                return;
            }
        }
        self.closed.push(self.open[self.next]);
        self.open[self.next] = (start, end);
        self.next = (self.next + 1) % OPEN;
        if self.closed.len() >= self.limit {
            merge(&mut self.closed);
            self.limit = CLOSED.max(2 * self.closed.len());
        }
    }

    fn take(&mut self) -> Ranges {
        let mut all = std::mem::take(&mut self.closed);
        all.extend(std::mem::replace(&mut self.open, [(0, 0); OPEN]));
        self.limit = CLOSED;
        all
    }
}

/// Reads and writes, of device memory and of other memory apart: what a kernel reads of
/// its arguments must not close the ranges of the first.
struct Recorder(UnsafeCell<[[Ways; 2]; 2]>);

/// Whether something was written atomically to memory that the host reads.
struct Told(UnsafeCell<bool>);

// SAFETY: invariant 1.
unsafe impl Sync for Told {}

static TOLD: Told = Told(UnsafeCell::new(false));

// SAFETY: invariant 1.
unsafe impl Sync for Recorder {}

static RECORDER: Recorder = Recorder(UnsafeCell::new([
    [Ways::new(), Ways::new()],
    [Ways::new(), Ways::new()],
]));

/// Called by kernels: bytes at an address are read (0), written (1), or written atomically
/// (2): others agree by them, and what order that makes is not known.
pub extern "C" fn note(address: *const c_void, bytes: usize, write: c_int) {
    let start = address as u64;
    if write == 2 {
        // SAFETY: invariant 1.
        unsafe { *TOLD.0.get() |= !isolation::is_device(start) };
        return;
    }
    let here = (&raw const start) as u64;
    let stack = STACK as u64;
    if start.wrapping_sub(here).wrapping_add(stack) < 2 * stack {
        return;
    }
    // SAFETY: invariant 1, and nothing is called while the borrow lives that leads here.
    let recorder = unsafe { &mut *RECORDER.0.get() };
    let ways = &mut recorder[usize::from(!isolation::is_device(start))];
    ways[usize::from(write != 0)].add(start, start.wrapping_add(bytes as u64));
}

/// What kernels have told since the last call.
pub fn take() -> Accesses {
    // SAFETY: as in `note`; no kernel runs.
    let recorder = unsafe { &mut *RECORDER.0.get() };
    // SAFETY: invariant 1.
    let tells_host = unsafe { std::mem::take(&mut *TOLD.0.get()) };
    let mut all = Accesses {
        tells_host,
        ..Accesses::default()
    };
    for ways in recorder {
        all.reads.extend(ways[0].take());
        all.writes.extend(ways[1].take());
    }
    all
}
