//! Short writes to plain memory of other processes that are kept, and made together at the next
//! flush.
//!
//! A write by itself is a request to the owner, or a system call; many take one of either
//! ([`Part::put_runs`]). Only calls that promise completion with a flush keep any: those of the C
//! interface.
//!
//! # Invariants
//! 1. A run that is kept lies inside of its rank's part.

use super::raw::RawWindow;
use osier_engine::error::Result;
use osier_engine::rma::SERVED_LIMITS;
use osier_engine::view::RawView;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most bytes of a write that is kept. Not tuned.
const MOST_BYTES: usize = 256;

/// Writes to one rank that are kept.
#[derive(Default)]
struct Kept {
    rank: usize,
    runs: Vec<Range<u64>>,
    bytes: Vec<u8>,
}

impl Kept {
    /// Whether one request has room for `bytes` more bytes of a run.
    fn has_room(&self, bytes: usize) -> bool {
        let names = (self.runs.len() + 1) * SERVED_LIMITS.name_bytes;
        names + self.bytes.len() + bytes <= SERVED_LIMITS.bytes
    }

    fn push(&mut self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        match self.runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.runs.push(start..end),
        }
        self.bytes.extend_from_slice(bytes);
    }
}

/// Those of a window.
#[derive(Default)]
pub(super) struct Combined {
    any: AtomicBool,
    kept: Mutex<Kept>,
    /// Threads that write what was kept.
    writers: AtomicUsize,
}

impl Combined {
    /// Whether anything may be kept, or be written right now.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire) || self.writers.load(Ordering::Acquire) != 0
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all, to be written by this thread.
    fn take(&self, kept: &mut Kept) -> Option<Kept> {
        if kept.runs.is_empty() {
            return None;
        }
        self.writers.fetch_add(1, Ordering::AcqRel);
        self.any.store(false, Ordering::Release);
        Some(std::mem::take(kept))
    }
}

impl RawWindow {
    /// As [`RawWindow::put`], except that it may be complete no sooner than at the next flush.
    ///
    /// # Errors
    /// As there, and of puts before.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn put_later(&self, from: &RawView, rank: usize, target: &RawView) -> Result<()> {
        let bytes = target.bytes();
        let (Some(at), Some(to)) = (from.as_contiguous(), target.as_contiguous()) else {
            // SAFETY: the caller's contract.
            return unsafe { self.put(from, rank, target) };
        };
        let part = &self.known(rank)?.part;
        let short = (1..=MOST_BYTES).contains(&bytes) && from.bytes() == bytes;
        let short = short && from.as_device().is_none();
        if !short || !part.is_served() || !part.holds(target) || self.is_checked() {
            // SAFETY: the caller's contract.
            return unsafe { self.put(from, rank, target) };
        }
        // SAFETY: the caller's contract: one run of the host's memory.
        let data = unsafe { std::slice::from_raw_parts(at.cast_const(), bytes) };
        let combined = &self.0.combined;
        let mut kept = combined.kept();
        let full = kept.rank != rank || !kept.has_room(bytes);
        let before = full.then(|| combined.take(&mut kept)).flatten();
        kept.rank = rank;
        // Invariant 1.
        kept.push(to.addr() as u64, data);
        combined.any.store(true, Ordering::Release);
        drop(kept);
        match before {
            Some(before) => self.write(before),
            None => Ok(()),
        }
    }

    /// Makes all writes that are kept, and waits for threads that make some.
    #[track_caller]
    pub(super) fn write_kept(&self) -> Result<()> {
        let combined = &self.0.combined;
        let taken = combined.take(&mut combined.kept());
        let written = taken.map_or(Ok(()), |kept| self.write(kept));
        if combined.writers.load(Ordering::Acquire) != 0 {
            let core = self.comm().core();
            core.wait_until(|| (combined.writers.load(Ordering::Acquire) == 0).then_some(()));
        }
        written
    }

    #[track_caller]
    fn write(&self, mut kept: Kept) -> Result<()> {
        let combined = &self.0.combined;
        let runs = std::mem::take(&mut kept.runs);
        let written = self.known(kept.rank).and_then(|known| {
            // SAFETY: invariant 1, and the bytes of all runs.
            unsafe { (known.part).put_runs(&self.path(kept.rank), runs, kept.bytes.as_ptr()) }
        });
        combined.writers.fetch_sub(1, Ordering::AcqRel);
        written.map(|way| self.count(way))
    }
}
