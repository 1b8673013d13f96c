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
use std::sync::atomic::{AtomicBool, Ordering};
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

/// What a window keeps.
#[derive(Default)]
struct All {
    kept: Kept,
    /// Threads that write what was kept.
    writers: usize,
    /// Room for the next, of what was written.
    spare: Kept,
}

impl All {
    /// Takes all, to be written by this thread.
    fn take(&mut self) -> Option<Kept> {
        if self.kept.runs.is_empty() {
            return None;
        }
        self.writers += 1;
        let room = std::mem::take(&mut self.spare);
        Some(std::mem::replace(&mut self.kept, room))
    }
}

/// Writes of a window that are kept.
#[derive(Default)]
pub(super) struct Combined {
    /// Whether any are, or are written right now: changed under the lock.
    any: AtomicBool,
    all: Mutex<All>,
}

impl Combined {
    /// Whether anything may be kept, or be written right now.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn all(&self) -> std::sync::MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken is written, or will never be.
    fn written(&self, mut kept: Kept) {
        kept.runs.clear();
        kept.bytes.clear();
        let mut all = self.all();
        all.spare = kept;
        all.writers -= 1;
        let any = all.writers > 0 || !all.kept.runs.is_empty();
        self.any.store(any, Ordering::Release);
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
        let mut all = combined.all();
        let full = all.kept.rank != rank || !all.kept.has_room(bytes);
        let before = if full { all.take() } else { None };
        all.kept.rank = rank;
        // Invariant 1.
        all.kept.push(to.addr() as u64, data);
        combined.any.store(true, Ordering::Release);
        drop(all);
        match before {
            Some(before) => self.write(before),
            None => Ok(()),
        }
    }

    /// Makes all writes that are kept, and waits for threads that make some.
    #[track_caller]
    pub(super) fn write_kept(&self) -> Result<()> {
        let combined = &self.0.combined;
        let taken = combined.all().take();
        let written = taken.map_or(Ok(()), |kept| self.write(kept));
        if combined.any() {
            let core = self.comm().core();
            core.wait_until(|| (combined.all().writers == 0).then_some(()));
        }
        written
    }

    #[track_caller]
    fn write(&self, kept: Kept) -> Result<()> {
        let written = self.known(kept.rank).and_then(|known| {
            let (path, from) = (self.path(kept.rank), kept.bytes.as_ptr());
            // SAFETY: invariant 1, and the bytes of all runs.
            unsafe { (known.part).put_runs(&path, &kept.runs, from) }
        });
        self.0.combined.written(kept);
        written.map(|way| self.count(way))
    }
}
