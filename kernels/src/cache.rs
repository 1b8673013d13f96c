//! Plan cache of one device: plans and their lists.
//!
//! # Invariants
//! 1. Lists are uploaded once per layout, count and cache, in the order of the
//!    stream that needs them first; other streams wait for that, not the host. The
//!    host waits only where a long list runs ahead of its upload by several parts.
//! 2. What is kept stays below the limit in bytes and [`ENTRIES`], but for the newest
//!    entry.

use crate::copy::note;
use crate::error::{DeviceError, Result};
use crate::memory::{Kind, Memory};
use crate::plan::Plan;
use crate::plan::arguments::Tables;
use crate::plan::parts::{PART, Sink, feed};
use crate::plan::transfer::PlacedPlan;
use crate::slice::{DeviceSlice, Pinned};
use crate::stream::{Event, Stream};
use osier_datatype::Layout;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A plan, and its lists on the device.
pub(crate) struct Prepared {
    /// Keeps the layout's number its own.
    _layout: Layout,
    pub plan: Plan,
    pub tables: Tables,
    on_device: Option<(DeviceSlice<u8>, Event)>,
    /// The host has seen the lists arrive, so that nobody waits for them.
    arrived: AtomicBool,
}

impl Prepared {
    /// Uploads lists on a stream; beside a capture on one of their own. What is
    /// ready of a long list is told meanwhile, but for a capture.
    fn new(
        stream: &Stream,
        layout: &Layout,
        count: usize,
        ready: &mut Ready<'_>,
    ) -> Result<Prepared> {
        if stream.capture()?.is_some() {
            let beside = Stream::new(stream.context())?;
            let prepared = Prepared::new(&beside, layout, count, &mut |_, _| Ok(()))?;
            prepared.arrive()?;
            return Ok(prepared);
        }
        let mut upload = Upload::new(stream, ready);
        let fed = feed(layout, count, PART, &mut upload);
        let (plan, tables) = fed.inspect_err(|_| {
            // What is ready may be in use already.
            let _ = note(stream, upload.place.as_ref().map(|place| place.memory()));
        })?;
        let on_device = match (upload.place, upload.event) {
            (Some(place), Some(event)) => Some((place, event)),
            _ => None,
        };
        Ok(Prepared {
            _layout: layout.clone(),
            plan,
            tables,
            on_device,
            arrived: AtomicBool::new(false),
        })
    }

    /// Waits on the host for the lists.
    fn arrive(&self) -> Result<()> {
        if let Some((_, ready)) = &self.on_device
            && !self.arrived.load(Ordering::Acquire)
        {
            ready.synchronize()?;
            self.arrived.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.on_device
            .as_ref()
            .map_or(0, |(place, _)| place.bytes())
    }

    /// Makes a stream wait for the lists.
    pub fn order(&self, stream: &Stream) -> Result<()> {
        let Some((_, ready)) = &self.on_device else {
            return Ok(());
        };
        if self.arrived.load(Ordering::Acquire) {
            return Ok(());
        }
        if stream.capture()?.is_some() {
            // An event from outside is nothing that a capture may wait for.
            return self.arrive();
        }
        match ready.is_passed()? {
            true => self.arrived.store(true, Ordering::Release),
            false => stream.wait(ready)?,
        }
        Ok(())
    }

    /// The plan for a layout's origin at an address.
    pub fn at(&self, origin: u64) -> PlacedPlan<'_> {
        let lists = self.on_device.as_ref();
        PlacedPlan {
            plan: &self.plan,
            tables: &self.tables,
            tables_at: lists.map_or(0, |(place, _)| place.address()),
            origin,
        }
    }

    /// The lists' memory, for whoever queues work that reads them.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.on_device.as_ref().map(|(place, _)| place.memory())
    }
}

/// Told of what is ready: a plan in the making, and packed bytes.
pub(crate) type Ready<'a> = dyn FnMut(PlacedPlan<'_>, u64) -> Result<()> + 'a;

/// Pinned buffers through which lists go, in turn, and bytes of each.
pub(crate) const STAGES: usize = 4;
pub(crate) const STAGE_BYTES: usize = 256 << 10;

/// Lists on the way to the device.
struct Upload<'a, 'b> {
    stream: &'a Stream,
    /// Where copies are queued: beside the kernels, if there are many.
    copies: Stream,
    ready: &'a mut Ready<'b>,
    place: Option<DeviceSlice<u8>>,
    stages: Vec<Pinned<u8>>,
    turn: usize,
    event: Option<Event>,
}

impl<'a, 'b> Upload<'a, 'b> {
    fn new(stream: &'a Stream, ready: &'a mut Ready<'b>) -> Upload<'a, 'b> {
        Upload {
            stream,
            copies: stream.clone(),
            ready,
            place: None,
            stages: Vec::new(),
            turn: 0,
            event: None,
        }
    }
}

impl Sink for Upload<'_, '_> {
    type Error = DeviceError;

    fn begin(&mut self, bytes: usize) -> Result<()> {
        let place = DeviceSlice::<u8>::with_kind(self.stream, Kind::Pool, bytes)?;
        let stages = bytes.div_ceil(STAGE_BYTES).min(STAGES);
        if stages > 1 {
            self.copies = Stream::new(self.stream.context())?;
            place.order(&self.copies)?;
        }
        self.place = Some(place.into_inner());
        let (context, stage) = (self.stream.context(), vec![0; bytes.min(STAGE_BYTES)]);
        for _ in 0..stages {
            self.stages.push(Pinned::from_slice(context, &stage)?);
        }
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        let mut at = at as usize;
        for piece in bytes.chunks(STAGE_BYTES) {
            let stages = self.stages.len();
            let stage = &mut self.stages[self.turn];
            self.turn = (self.turn + 1) % stages;
            // Waits for the copy that used it before.
            stage.host()?[..piece.len()].copy_from_slice(piece);
            let from = stage.on_device(&self.copies).into_inner();
            let from = from.slice(..piece.len())?.after_stream(&self.copies);
            let to = place.slice(at..at + piece.len())?;
            let event = crate::copy::copy(&self.copies, &from, &to.after_stream(&self.copies))?;
            self.event = Some(event);
            at += piece.len();
        }
        Ok(())
    }

    fn ready(&mut self, plan: &Plan, tables: &Tables, bytes: u64) -> Result<()> {
        if let Some(event) = &self.event
            && self.copies != *self.stream
        {
            self.stream.wait(event)?;
        }
        let place = PlacedPlan {
            plan,
            tables,
            tables_at: self.place.as_ref().map_or(0, DeviceSlice::address),
            origin: 0,
        };
        (self.ready)(place, bytes)
    }
}

/// Plans of one device.
pub(crate) struct Cache {
    kept: Mutex<Kept<(usize, usize), Arc<Prepared>>>,
}

impl Cache {
    /// One that keeps at most so many bytes of lists.
    pub fn new(limit_bytes: usize) -> Cache {
        Cache {
            kept: Mutex::new(Kept::new(limit_bytes)),
        }
    }

    /// The plan of `count` instances of a layout, if it is kept.
    pub fn known(&self, layout: &Layout, count: usize) -> Option<Arc<Prepared>> {
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        kept.find(&(layout.id(), count)).cloned()
    }

    /// The plan of `count` instances of a layout.
    ///
    /// Where it has to be made, `ready` is told of the packed bytes before which
    /// all have their places, as soon as that is so; the plan is for an origin at
    /// 0. It may queue work for them on the stream.
    pub fn prepared(
        &self,
        stream: &Stream,
        layout: &Layout,
        count: usize,
        ready: &mut Ready<'_>,
    ) -> Result<Arc<Prepared>> {
        let key = (layout.id(), count);
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(prepared) = kept.find(&key) {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::new(stream, layout, count, ready)?);
        kept.insert(key, prepared.clone(), prepared.bytes());
        Ok(prepared)
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.kept.lock().unwrap_or_else(|e| e.into_inner()).bytes
    }
}

/// Values that were used last, up to a number of bytes; at least the newest.
struct Kept<K, V> {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<K, (V, usize, u64)>,
}

/// Plans without lists cost a little, too.
const ENTRY_BYTES: usize = 1024;

/// Most entries: each list is an allocation, and looking for the oldest takes longer the
/// more there are.
const ENTRIES: usize = 4096;

impl<K: Hash + Eq + Clone, V> Kept<K, V> {
    fn new(limit: usize) -> Kept<K, V> {
        Kept {
            limit,
            bytes: 0,
            clock: 0,
            entries: HashMap::new(),
        }
    }

    fn find(&mut self, key: &K) -> Option<&V> {
        self.clock += 1;
        let (value, _, used) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value)
    }

    fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.clock += 1;
        self.bytes += bytes + ENTRY_BYTES;
        self.entries
            .insert(key, (value, bytes + ENTRY_BYTES, self.clock));
        while (self.bytes > self.limit && self.entries.len() > 1) || self.entries.len() > ENTRIES {
            let oldest = self.entries.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            if let Some((_, bytes, _)) = self.entries.remove(&key) {
                self.bytes -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_used_last() {
        let mut kept = Kept::new(3 * (ENTRY_BYTES + 100));
        for key in 0..3 {
            kept.insert(key, key, 100);
        }
        assert!(kept.find(&0).is_some());
        kept.insert(3, 3, 100);
        assert!(kept.find(&1).is_none());
        assert!(kept.find(&0).is_some());
        kept.insert(4, 4, 1 << 30);
        assert_eq!(kept.entries.len(), 1);
        assert!(kept.find(&4).is_some());
        kept.insert(5, 5, 0);
        assert_eq!(kept.bytes, ENTRY_BYTES);
    }

    #[test]
    fn keeps_so_many_entries() {
        let mut kept = Kept::new(usize::MAX);
        for key in 0..ENTRIES + 3 {
            kept.insert(key, key, 0);
        }
        assert_eq!(kept.entries.len(), ENTRIES);
        assert!(kept.find(&2).is_none());
        assert!(kept.find(&3).is_some());
    }
}
