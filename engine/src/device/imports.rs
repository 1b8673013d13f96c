//! Import cache: opened memory and events of other processes.
//!
//! # Invariants
//! 1. What is found for a key was opened for this key, of the same rank: its identity is
//!    the exporter's number of the allocation, so memory that was freed and allocated
//!    anew is not found. What it replaces is let go.
//! 2. The limits bound the number of mappings and their bytes; those that are let go
//!    count until they are closed.
//!    Memory for slots counts as none: there is one for each rank and device.
//! 3. Memory of a pool is open for one transfer, and for one at a time; what is kept is
//!    the pool, of other libraries' pools for one allocation.
//! 4. A mapping is closed by [`Imports::sweep`], when its caller knows that no transfer is
//!    in flight, and not before the work on it is done: closing synchronises the device.
//!    Only what keeps memory from being opened is closed at once
//!    ([`Imports::sweep_overlapping`]), that other messages do not wait for a quiet moment
//!    which steady traffic never has.

use super::settings;
use crate::env;
use crate::error::Result;
use osier_kernels::handle::{EventHandle, Key, Made, OpenPool};
use osier_kernels::{Context, DeviceError, DeviceId, Event, Memory};
use std::ops::Range;
use std::sync::Arc;

/// Pools of other libraries that are kept open.
const OTHER_POOLS: usize = 16;
/// Events of other processes that are kept open.
const EVENTS: usize = 256;

/// How much may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub mappings: usize,
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            mappings: 256,
            bytes: 1 << 40,
        }
    }
}

impl Limits {
    /// As the environment has it.
    pub fn from_env() -> Result<Limits> {
        let mut limits = Limits::default();
        if let Some(n) = env::debug("device-mappings", |text| {
            env::bounded(text, settings::MAPPINGS_BOUNDS)
        })? {
            limits.mappings = n as usize;
        }
        if let Some(n) = env::debug("device-mapped", |text| {
            env::bounded(text, settings::MAPPED_BOUNDS)
        })? {
            limits.bytes = n;
        }
        Ok(limits)
    }
}

/// What is to be done to use memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It is open.
    Open,
    /// It can be opened.
    Free,
    /// There is no room now.
    None,
}

#[derive(Debug)]
struct Mapping<M> {
    /// The exporter's rank in the world, and the device that opened it.
    owner: (u32, i32),
    key: Key,
    memory: Arc<M>,
    /// When it was last used.
    used: u64,
}

/// A mapping that was let go: whose memory it is, where the exporter had it, its bytes.
#[derive(Debug)]
struct Gone<M> {
    owner: u32,
    device: DeviceId,
    range: Range<u64>,
    memory: Arc<M>,
}

impl<M> Gone<M> {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.memory) == 1
    }
}

/// What is open; `M` is [`Memory`].
#[derive(Debug)]
pub struct Imports<M = Memory> {
    limits: Limits,
    open: Vec<Mapping<M>>,
    /// Let go, to be closed.
    gone: Vec<Gone<M>>,
    events: Vec<((u32, i32), EventHandle, Event)>,
    /// By owner, the pool's device and, of other libraries' pools, the allocation for
    /// which it was opened; else 0.
    pools: Vec<((u32, i32), DeviceId, u64, OpenPool)>,
    /// Let go, to be closed.
    gone_pools: Vec<OpenPool>,
    /// Memory that ranks pack their slots into, by owner and device.
    slots: Vec<((u32, i32), DeviceId, Arc<M>)>,
    /// Memory of pools that a transfer has open: owner, identity.
    lent: Vec<((u32, i32), u64)>,
    clock: u64,
}

impl<M> Default for Imports<M> {
    fn default() -> Imports<M> {
        Imports {
            limits: Limits::default(),
            open: Vec::new(),
            gone: Vec::new(),
            events: Vec::new(),
            pools: Vec::new(),
            gone_pools: Vec::new(),
            slots: Vec::new(),
            lent: Vec::new(),
            clock: 0,
        }
    }
}

impl<M> Imports<M> {
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Bytes of mappings, those included that are to be closed.
    fn bytes(&self) -> u64 {
        let open: u64 = self.open.iter().map(|m| m.key.bytes).sum();
        open + self.gone_bytes()
    }

    fn gone_bytes(&self) -> u64 {
        let bytes = |gone: &Gone<M>| gone.range.end - gone.range.start;
        self.gone.iter().map(bytes).sum()
    }

    /// Mappings, those included that are to be closed.
    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.gone.len()
    }

    fn let_go(&mut self, at: usize) {
        let old = self.open.swap_remove(at);
        self.gone.push(Gone {
            owner: old.owner.0,
            device: old.key.device,
            range: old.key.start..old.key.start.saturating_add(old.key.bytes),
            memory: old.memory,
        });
    }

    /// Whether the memory of a key is open, or can be opened. Makes room for a later use
    /// where it cannot.
    pub fn room(&mut self, owner: (u32, i32), key: &Key) -> Room {
        if matches!(key.made, Made::SharedPool | Made::OtherPool) {
            return match self.pool(owner, key) {
                _ if self.limits.mappings == 0 => Room::None,
                Some(_) => Room::Open,
                None => Room::Free,
            };
        }
        if self.open.iter().any(|m| m.owner == owner && m.key == *key) {
            return Room::Open;
        }
        match self.make_room(owner, key) {
            true => Room::Free,
            false => Room::None,
        }
    }

    /// The memory of a key: found, or opened now. `Ok(None)`: there is no room for it
    /// yet; room is made for a later use.
    pub fn get(
        &mut self,
        owner: (u32, i32),
        key: &Key,
        open: impl FnOnce() -> std::result::Result<Arc<M>, DeviceError>,
    ) -> std::result::Result<Option<Arc<M>>, DeviceError> {
        self.clock += 1;
        let known = |m: &Mapping<M>| m.owner == owner && m.key == *key;
        if let Some(found) = self.open.iter_mut().find(|m| known(m)) {
            found.used = self.clock;
            return Ok(Some(found.memory.clone()));
        }
        if !self.make_room(owner, key) {
            return Ok(None);
        }
        let memory = open()?;
        self.open.push(Mapping {
            owner,
            key: *key,
            memory: memory.clone(),
            used: self.clock,
        });
        Ok(Some(memory))
    }

    /// Whether there is room for one more.
    fn make_room(&mut self, owner: (u32, i32), key: &Key) -> bool {
        // What lay there before is gone, and the driver may refuse to map it twice.
        let range = key.start..key.start.saturating_add(key.bytes);
        let stale = |m: &Mapping<M>| {
            m.owner.0 == owner.0
                && m.key.device == key.device
                && m.key.start < range.end
                && range.start < m.key.start + m.key.bytes
                && m.key != *key
        };
        // Of mapped memory the parts that messages touch are keys that overlap.
        if key.made != Made::Mapped {
            while let Some(at) = self.open.iter().position(stale) {
                self.let_go(at);
            }
        }
        if key.bytes > self.limits.bytes || self.limits.mappings == 0 {
            return false;
        }
        let (mut mappings, mut bytes) = (self.len(), self.bytes());
        if mappings < self.limits.mappings && bytes + key.bytes <= self.limits.bytes {
            return true;
        }
        // Closing now would wait for the device: let the oldest go, of those that no
        // transfer uses.
        mappings -= self.gone.len();
        bytes -= self.gone_bytes();
        while mappings >= self.limits.mappings || bytes + key.bytes > self.limits.bytes {
            let idle = self.open.iter().enumerate();
            let idle = idle.filter(|(_, m)| Arc::strong_count(&m.memory) == 1);
            let Some((at, _)) = idle.min_by_key(|(_, m)| m.used) else {
                break;
            };
            mappings -= 1;
            bytes -= self.open[at].key.bytes;
            self.let_go(at);
        }
        false
    }

    /// The pool of another rank's memory, if it is open.
    pub fn pool(&self, owner: (u32, i32), key: &Key) -> Option<OpenPool> {
        let named = pool_of(key);
        let mut pools = self.pools.iter();
        let found = pools.find(|(o, d, n, _)| *o == owner && (*d, *n) == named);
        found.map(|(_, _, _, pool)| pool.clone())
    }

    /// Keeps a pool that was opened, unless there is one already; of those that are open
    /// for one allocation, the newest.
    pub fn keep_pool(&mut self, owner: (u32, i32), key: &Key, pool: &OpenPool) {
        if self.pool(owner, key).is_some() {
            return;
        }
        let (device, allocation) = pool_of(key);
        let passing = |(_, _, named, _): &(_, _, u64, OpenPool)| *named != 0;
        if allocation != 0
            && self.pools.iter().filter(|pool| passing(pool)).count() >= OTHER_POOLS
            && let Some(oldest) = self.pools.iter().position(passing)
        {
            let (_, _, _, pool) = self.pools.remove(oldest);
            self.gone_pools.push(pool);
        }
        self.pools.push((owner, device, allocation, pool.clone()));
    }

    /// The memory that a rank packs its slots into on a device, if it is open.
    pub fn slots(&self, owner: (u32, i32), device: &DeviceId) -> Option<Arc<M>> {
        let mut slots = self.slots.iter();
        let found = slots.find(|(o, d, _)| *o == owner && d == device);
        found.map(|(_, _, memory)| memory.clone())
    }

    /// Keeps it, now that it was opened.
    pub fn keep_slots(&mut self, owner: (u32, i32), device: &DeviceId, memory: &Arc<M>) {
        self.slots.push((owner, *device, memory.clone()));
    }

    /// Whether anything is opened at all.
    pub fn opens(&self) -> bool {
        self.limits.mappings > 0
    }

    /// Lends memory of a pool to a transfer. False: another has it.
    pub fn lend(&mut self, owner: (u32, i32), identity: u64) -> bool {
        let free = !self.lent.contains(&(owner, identity));
        if free {
            self.lent.push((owner, identity));
        }
        free
    }

    /// It gives it back.
    pub fn give_back(&mut self, owner: (u32, i32), identity: u64) {
        self.lent.retain(|lent| *lent != (owner, identity));
    }

    /// Lets all mappings of a rank go.
    pub fn forget(&mut self, rank: u32) {
        while let Some(at) = self.open.iter().position(|m| m.owner.0 == rank) {
            self.let_go(at);
        }
        self.events.retain(|(owner, _, _)| owner.0 != rank);
        let of_rank = |(owner, ..): &mut ((u32, i32), DeviceId, u64, OpenPool)| owner.0 == rank;
        let pools = self.pools.extract_if(.., of_rank);
        self.gone_pools.extend(pools.map(|(_, _, _, pool)| pool));
        let gone = |(owner, _, _): &mut ((u32, i32), DeviceId, Arc<M>)| owner.0 == rank;
        let slots = self.slots.extract_if(.., gone);
        self.gone
            .extend(slots.map(|((owner, _), device, memory)| Gone {
                owner,
                device,
                range: 0..0,
                memory,
            }));
    }

    /// Mappings let go and unused, to be closed by dropping them: invariant 4.
    #[must_use]
    pub fn sweep(&mut self) -> (Vec<Arc<M>>, Vec<OpenPool>) {
        let pools = self
            .gone_pools
            .extract_if(.., |pool| pool.is_idle())
            .collect();
        let idle = self.gone.extract_if(.., |gone| gone.is_idle());
        (idle.map(|gone| gone.memory).collect(), pools)
    }

    /// Mappings let go and unused where the memory of a key lies: they keep it from being
    /// opened, and are closed by dropping them.
    #[must_use]
    pub fn sweep_overlapping(&mut self, owner: (u32, i32), key: &Key) -> Vec<Arc<M>> {
        let end = key.start.saturating_add(key.bytes);
        let in_the_way = |gone: &mut Gone<M>| {
            (gone.owner, gone.device) == (owner.0, key.device)
                && gone.range.start < end
                && key.start < gone.range.end
                && gone.is_idle()
        };
        let found = self.gone.extract_if(.., in_the_way);
        found.map(|gone| gone.memory).collect()
    }

    /// An event of another rank, opened once.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn event(
        &mut self,
        owner: (u32, i32),
        context: &Context,
        handle: &EventHandle,
    ) -> std::result::Result<Event, DeviceError> {
        let known = |(o, h, _): &&((u32, i32), EventHandle, Event)| *o == owner && h == handle;
        if let Some((_, _, event)) = self.events.iter().find(known) {
            return Ok(event.clone());
        }
        if self.events.len() == EVENTS {
            self.events.remove(0);
        }
        let event = Event::import(context, handle)?;
        self.events.push((owner, *handle, event.clone()));
        Ok(event)
    }
}

/// What names a pool: its device, and the allocation if it is another library's.
fn pool_of(key: &Key) -> (DeviceId, u64) {
    match key.made {
        Made::OtherPool => (key.device, key.identity),
        _ => (key.device, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(identity: u64, start: u64, bytes: u64) -> Key {
        Key {
            made: Made::Plain,
            device: [0; 16],
            identity,
            start,
            bytes,
            handle: [0; 64],
        }
    }

    fn limited(mappings: usize, bytes: u64) -> Imports<Key> {
        let mut imports = Imports::default();
        imports.limit(Limits { mappings, bytes });
        imports
    }

    fn get(imports: &mut Imports<Key>, rank: u32, key: Key) -> Option<Arc<Key>> {
        imports.get((rank, 0), &key, || Ok(Arc::new(key))).unwrap()
    }

    #[test]
    fn reused_address_opens_the_new_memory() {
        let mut imports = limited(10, 1000);
        let (old, new) = (key(1, 100, 50), key(2, 100, 50));
        assert_eq!(*get(&mut imports, 0, old).unwrap(), old);
        assert_eq!(*get(&mut imports, 0, new).unwrap(), new);
        // The old one waits to be closed; that of another rank is not concerned.
        assert_eq!(*get(&mut imports, 1, old).unwrap(), old);
        assert_eq!(imports.len(), 3);
        assert_eq!(imports.sweep().0.len(), 1);
        assert_eq!(
            *get(&mut imports, 0, key(3, 140, 60)).unwrap(),
            key(3, 140, 60)
        );
        assert_eq!(imports.sweep().0.len(), 1);
    }

    #[test]
    fn mapping_in_use_is_not_closed() {
        let mut imports = limited(1, 1000);
        let first = get(&mut imports, 0, key(1, 0, 10)).unwrap();
        assert!(get(&mut imports, 0, key(2, 100, 10)).is_none());
        assert!(imports.sweep().0.is_empty());
        drop(first);
        // The oldest goes, is closed, and then there is room.
        assert!(get(&mut imports, 0, key(2, 100, 10)).is_none());
        assert!(get(&mut imports, 0, key(2, 100, 10)).is_none());
        assert_eq!(imports.sweep().0.len(), 1);
        assert!(get(&mut imports, 0, key(2, 100, 10)).is_some());
    }

    proptest! {
        /// What is found is what was asked for, and the bounds hold.
        #[test]
        fn mappings_stay_within_their_limits(uses in proptest::collection::vec((0..3u32, 0..8u64, 0..3u64, any::<bool>(), any::<bool>()), 1..200)) {
            let mut imports = limited(4, 300);
            let mut held = Vec::new();
            for (rank, place, identity, hold, sweep) in uses {
                let key = key(identity, place * 40, 60);
                if let Some(found) = get(&mut imports, rank, key) {
                    prop_assert_eq!(*found, key);
                    held.extend(hold.then_some(found));
                }
                if sweep {
                    held.clear();
                    drop(imports.sweep());
                }
                prop_assert!(imports.len() <= 4 && imports.bytes() <= 300);
            }
        }
    }
}
