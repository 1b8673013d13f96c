//! Memory that is attached to a dynamic window: the owner's list, and what others know of it.
//!
//! The list lies where peers reach it, with words about it in the owner's sync block:
//!
//! ```text
//! sync block, byte 64     72      80         88
//!             version     number  room       where the list lies
//!             odd: it is  of      of the     (base of a region of the sync block's kind
//!             changing    ranges  list       and owner)
//!
//! list        32 bytes for each range: address u64, key of the region (its size is the range's)
//! ```
//!
//! # Invariants
//! 1. Only the owner writes words and list, one thread at a time; what is read is what was there
//!    between two looks at one even version.
//! 2. A list that was replaced is kept as long as the window: others may still read it.
//! 3. Attached memory stays where it is until it is detached, and nobody uses it then: the
//!    program's promise.

use super::memory::Held;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::rma::{Part, Path, Place};
use osier_engine::view::RawView;
use osier_transports::{RegionKey, RegionKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const VERSION_AT: usize = 64;
const NUMBER_AT: usize = 72;
const ROOM_AT: usize = 80;
const LIST_AT: usize = 88;
const ENTRY_BYTES: usize = 8 + RegionKey::WIRE_BYTES;
/// Ranges that the first list has room for.
const FIRST_ROOM: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The owner's list.
#[derive(Default)]
pub struct List {
    ranges: BTreeMap<u64, RegionKey>,
    room: usize,
    /// The last one is in use.
    lists: Vec<(Held, RegionKey)>,
    /// Attached memory that the window keeps.
    kept: Vec<Held>,
}

/// What a rank knows of another's list.
#[derive(Default)]
pub struct Seen {
    version: u64,
    parts: BTreeMap<u64, Part>,
}

fn refused(what: &str, at: u64) -> Error {
    Error::new(ErrorKind::WindowRange, format!("{what} at {at:#x}"))
}

impl List {
    /// Attaches memory.
    ///
    /// # Safety
    /// Invariant 3; `sync` is this rank's own sync block.
    pub unsafe fn attach(
        &mut self,
        (core, lane): (&Core, &LaneCell),
        sync: *mut u8,
        at: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let start = at.expose_provenance() as u64;
        let end = start.checked_add(bytes as u64);
        let end = end.ok_or_else(|| refused("memory behind the address space", start))?;
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(other, key)| *other + key.bytes > start || *other == start) {
            return Err(refused("memory that is attached already", start));
        }
        // SAFETY: invariant 3.
        let key = unsafe { lane.lock().export_window(at, bytes) }?;
        self.ranges.insert(start, key);
        // SAFETY: the caller's contract.
        unsafe { self.publish(core, lane, sync) }
    }

    /// Attaches memory that the window keeps as long as the list.
    ///
    /// # Safety
    /// `sync` is this rank's own sync block.
    pub unsafe fn attach_kept(
        &mut self,
        of: (&Core, &LaneCell),
        sync: *mut u8,
        held: Held,
    ) -> Result<()> {
        // SAFETY: invariant 3: it is never detached; the caller's contract.
        unsafe { self.attach(of, sync, held.at(), held.bytes()) }?;
        self.kept.push(held);
        Ok(())
    }

    /// Detaches what begins there.
    ///
    /// # Safety
    /// `sync` is this rank's own sync block.
    pub unsafe fn detach(
        &mut self,
        (core, lane): (&Core, &LaneCell),
        sync: *mut u8,
        at: usize,
    ) -> Result<()> {
        let start = at as u64;
        let key = self.ranges.remove(&start);
        let key = key.ok_or_else(|| refused("memory that is not attached", start))?;
        // SAFETY: the caller's contract.
        let published = unsafe { self.publish(core, lane, sync) };
        lane.lock().unexport_window(&key);
        published
    }

    /// Writes list and words.
    ///
    /// # Safety
    /// `sync` is this rank's own sync block.
    unsafe fn publish(&mut self, core: &Core, lane: &LaneCell, sync: *mut u8) -> Result<()> {
        let number = self.ranges.len();
        if number > self.room || self.lists.is_empty() {
            let room = number.next_power_of_two().max(FIRST_ROOM);
            let held = Held::zeroed(core, room * ENTRY_BYTES)?;
            // SAFETY: invariant 2.
            let key = unsafe { lane.lock().export_window(held.at(), held.bytes()) }?;
            self.lists.push((held, key));
            self.room = room;
        }
        let Some((held, key)) = self.lists.last() else {
            return Ok(());
        };
        let word = |at: usize| {
            let at = sync.wrapping_add(at).cast();
            // SAFETY: the caller's contract: an aligned word of the block, used by atomics.
            unsafe { AtomicU64::from_ptr(at) }
        };
        let version = word(VERSION_AT);
        let before = version.load(Ordering::Relaxed);
        version.store(before + 1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        for (place, (start, key)) in self.ranges.iter().enumerate() {
            let mut entry = [0u8; ENTRY_BYTES];
            entry[..8].copy_from_slice(&start.to_le_bytes());
            entry[8..].copy_from_slice(&key.to_wire());
            let to = held.at().wrapping_add(place * ENTRY_BYTES);
            // SAFETY: invariant 1; there is room for each entry.
            unsafe { std::ptr::copy_nonoverlapping(entry.as_ptr(), to, ENTRY_BYTES) };
        }
        word(NUMBER_AT).store(number as u64, Ordering::Relaxed);
        word(ROOM_AT).store(self.room as u64, Ordering::Relaxed);
        word(LIST_AT).store(key.base, Ordering::Relaxed);
        version.store(before + 2, Ordering::Release);
        Ok(())
    }
}

impl Seen {
    /// The part of a rank's attached memory that a target view of absolute addresses lies in, and
    /// the view from its first byte on.
    pub fn find(
        seen: &Mutex<Seen>,
        path: &Path<'_>,
        (of, key): (&Part, &RegionKey),
        target: &RawView,
    ) -> Result<(Part, RawView)> {
        let mut seen = lock(seen);
        let version = of.word(path, VERSION_AT)?;
        if version != seen.version {
            seen.read(path, (of, key))?;
        }
        let (start, end) = target.span();
        let found = seen.parts.range(..=start as u64).next_back();
        let inside = |(base, part): &(&u64, &Part)| end as u64 <= **base + part.bytes() as u64;
        let (base, part) = found.filter(inside).ok_or_else(|| {
            Error::new(
                ErrorKind::WindowRange,
                format!(
                    "bytes {start:#x} to {end:#x} of rank {}: no memory that it has attached",
                    path.peer
                ),
            )
        })?;
        let target = target.moved_by(0usize.wrapping_sub(*base as usize));
        Ok((*part, target))
    }

    /// Reads a rank's list.
    fn read(&mut self, path: &Path<'_>, (of, key): (&Part, &RegionKey)) -> Result<()> {
        let (version, bytes) = loop {
            let version = of.word(path, VERSION_AT)?;
            if version % 2 == 1 {
                path.core.progress_awake();
                continue;
            }
            let number = of.word(path, NUMBER_AT)? as usize;
            let room = of.word(path, ROOM_AT)?;
            let list = RegionKey {
                base: of.word(path, LIST_AT)?,
                bytes: room.saturating_mul(ENTRY_BYTES as u64),
                ..*key
            };
            if of.word(path, VERSION_AT)? != version {
                continue;
            }
            if number as u64 > room {
                return Err(of_nobody(path.peer));
            }
            let mut bytes = vec![0u8; number * ENTRY_BYTES];
            if number > 0 {
                let to = RawView::untyped(bytes.as_mut_ptr(), bytes.len());
                let from = RawView::untyped(std::ptr::null_mut(), bytes.len());
                let place = path.place(&list);
                // SAFETY: invariant 2; the sync block is the window's.
                let list = unsafe { of.beside(place, list.bytes as usize) };
                // SAFETY: a vector of as many bytes, and the list has them by the check.
                unsafe { list.get(path, &to, &from) }?;
            }
            if of.word(path, VERSION_AT)? == version {
                break (version, bytes);
            }
        };
        let mut ranges: Vec<(u64, RegionKey)> = Vec::new();
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let (start, wire) = entry.split_at(8);
            let start = u64::from_le_bytes(start.try_into().unwrap_or_default());
            let range = RegionKey::from_wire(wire).ok_or_else(|| of_nobody(path.peer))?;
            match ranges.last_mut() {
                Some((before, last)) if goes_on((*before, last), (start, &range)) => {
                    last.bytes += range.bytes;
                }
                _ => ranges.push((start, range)),
            }
        }
        let mut parts = BTreeMap::new();
        for (start, range) in ranges {
            let place = match path.peer == path.own {
                true => Place::At(std::ptr::with_exposed_provenance_mut(start as usize)),
                false => path.place(&range),
            };
            // SAFETY: invariant 3; the sync block is the window's.
            let part = unsafe { of.beside(place, range.bytes as usize) };
            parts.insert(start, part);
        }
        self.version = version;
        self.parts = parts;
        Ok(())
    }
}

/// Whether a range begins where the one before ends, also as transports name them: an access may
/// lie in both.
fn goes_on((before, last): (u64, &RegionKey), (start, range): (u64, &RegionKey)) -> bool {
    let by_place = matches!(range.kind, RegionKind::Process | RegionKind::Window);
    let same = (last.kind, last.owner) == (range.kind, range.owner);
    by_place && same && before + last.bytes == start && last.base + last.bytes == range.base
}

fn of_nobody(rank: u32) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("the list of rank {rank}'s attached memory is none that a rank writes"),
    )
}
