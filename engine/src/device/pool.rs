//! Bounce-buffer pool: slots of slabs that a rank keeps on the host, and on each device for
//! other processes that may open it.
//!
//! ```text
//! slab     4 MiB of the job's shared memory, registered with the driver by ranks with
//!          a device: once by its owner, once by each peer that a slot was handed to
//! slot    part of a slab that one transfer has
//! ```
//!
//! Where there is no shared memory, or no more of it, slabs are pinned memory of the
//! process, whose slots no peer gets. A device has one slab, as large as its
//! limit, which each peer opens once.
//!
//! # Invariants
//! 1. Slabs are no more than the limit; they stay until the rank goes, so that nothing
//!    is registered or pinned per message. While the host holds a stream none is made or
//!    registered, if the rank has some to go on with: the driver may wait for the stream. A peer's
//!    slots are copied meanwhile.
//! 2. A slot belongs to one transfer until it is dropped, and is dropped only when no
//!    kernel uses it.
//! 3. [`Shares`] decides the most that each transfer may have and the memory kept for
//!    it, so that none waits in a circle. (On a device only sends and copies take slots, and copies
//!    do without: nothing is kept there.)
//! 4. `host` is the first of a slab's `bytes` bytes, all mapped, readable and writable as
//!    long as the slab, or null where it lies on a device: reserved by this rank or, of a
//!    peer's slab, checked by [`ShmRank::shared`] to be, in memory that the job keeps
//!    mapped; or pinned memory that `memory` counts. Nothing of it is tied to a thread.

use super::lock;
pub use super::shares::Claim;
use super::shares::Shares;
use crate::protocol::device::LEAST_FRAGMENT_BYTES;
use osier_kernels::{Context, DeviceError, DeviceSlice, Memory};
use osier_transports::shm::{Job, ShmRank};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Least memory of a slot; others are multiples.
const UNIT_BYTES: usize = 4 << 10;
/// Memory that is reserved, and registered, at a time, where the limit allows it.
const SLAB_BYTES: usize = 4 << 20;
/// Kept for each kind of transfer of a message that has met its receive: a slot of a
/// long one.
const RESERVE_BYTES: usize = LEAST_FRAGMENT_BYTES;
/// All that is kept.
const RESERVED_BYTES: usize = Claim::KEPT * RESERVE_BYTES;
/// Least limit: what is kept, and a slot for all.
pub const LEAST_LIMIT_BYTES: usize = RESERVED_BYTES + LEAST_FRAGMENT_BYTES;

/// Which memory will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that can be handed to a peer.
    Shared,
    /// That, or pinned memory of the process where there is none.
    Any,
}

/// A rank's slots.
#[derive(Default)]
pub struct Pool {
    rank: Option<ShmRank>,
    /// Slabs lie on this device.
    device: Option<Context>,
    limit: usize,
    state: Mutex<State>,
    /// Slabs of peers.
    peers: Mutex<Vec<Arc<Slab>>>,
    /// A slab was not made, or not registered, because a stream is held.
    put_off: AtomicBool,
}

#[derive(Default)]
struct State {
    slabs: Vec<Arc<Slab>>,
    total: usize,
    /// Of slots but those of `reserves`.
    shares: Shares,
    /// What is kept for claims, in shared memory and, where a device does not reach that,
    /// in pinned memory of the process; made when it is needed first.
    reserves: [[Option<Arc<Slab>>; 2]; Claim::KEPT],
    /// Bytes of their slots.
    reserved: usize,
    /// Why there is no shared memory.
    refused: Option<DeviceError>,
}

impl State {
    /// Of a pool of `bytes` bytes beside those kept.
    fn of(bytes: usize) -> Mutex<State> {
        Mutex::new(State {
            shares: Shares::new(bytes),
            ..State::default()
        })
    }
}

/// A run of host memory of which transfers take slots.
struct Slab {
    host: *mut u8,
    bytes: usize,
    backing: Backing,
    memory: OnceLock<Result<Arc<Memory>, DeviceError>>,
    /// Units that are taken.
    taken: Mutex<Vec<bool>>,
}

/// Where a slab lies.
enum Backing {
    /// In the job's shared memory, here.
    Shared(ShmRank, u64),
    /// In pinned memory of the process.
    Private,
    /// On a device, for other processes, too.
    Device,
}

impl Backing {
    /// Whether slots can be handed to a peer.
    fn is_shared(&self) -> bool {
        !matches!(self, Backing::Private)
    }
}

// SAFETY: invariant 4: an address that is valid on any thread.
unsafe impl Send for Slab {}
// SAFETY: invariants 2 and 4: a shared slab gives slots out under its lock; the owner of
// a slot alone touches its bytes.
unsafe impl Sync for Slab {}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Pool")
            .field("limit", &self.limit)
            .field("total", &state.total)
            .field("shares", &state.shares)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of at most `limit` bytes, of the job's shared memory where there is one.
    pub fn new(rank: Option<ShmRank>, limit: usize) -> Pool {
        let limit = limit.max(LEAST_LIMIT_BYTES) / UNIT_BYTES * UNIT_BYTES;
        Pool {
            rank,
            limit,
            state: State::of(limit - RESERVED_BYTES),
            ..Pool::default()
        }
    }

    /// A pool of `limit` bytes of a device's memory, allocated when the first are taken;
    /// 0: there are none.
    pub fn on_device(context: &Context, limit: usize) -> Pool {
        let limit = limit / UNIT_BYTES * UNIT_BYTES;
        Pool {
            device: Some(context.clone()),
            limit,
            state: State::of(limit),
            ..Pool::default()
        }
    }

    /// The memory of a device's pool, for processes that open it.
    ///
    /// # Errors
    /// There is none.
    pub fn exported(&self) -> Result<Arc<Memory>, DeviceError> {
        let none = || DeviceError::Unavailable("no slots on the device".into());
        let context = self.device.as_ref().ok_or_else(none)?;
        let mut state = lock(&self.state);
        if state.slabs.is_empty() {
            self.grow(&mut state, Some(context), 1, Kind::Shared)?;
        }
        state.slabs.first().ok_or_else(none)?.memory(context)
    }

    /// Makes what is kept, and a slab, ahead. What fails is tried again when it is needed.
    pub fn prepare(&self, context: &Context) {
        for claim in [Claim::Send, Claim::Window, Claim::Copy] {
            let _ = self.keeps(Some(context), claim);
        }
        let mut state = lock(&self.state);
        let reached = |slab: &Arc<Slab>| slab.memory(context).is_ok();
        if !state.slabs.iter().any(reached) {
            let _ = self.grow(&mut state, Some(context), UNIT_BYTES, Kind::Any);
        }
    }

    /// Whether [`Pool::catch_up`] has something to do.
    pub fn has_put_off(&self) -> bool {
        self.put_off.load(Ordering::Relaxed)
    }

    /// Registers what was not registered while a stream was held, and makes a slab if none was
    /// made then. What is not possible now is put off again.
    pub fn catch_up(&self, context: &Context) {
        if self.device.is_some()
            || context.is_held()
            || !self.put_off.swap(false, Ordering::Relaxed)
        {
            return;
        }
        for slab in lock(&self.peers).iter() {
            self.reach(slab, context);
        }
        let mut state = lock(&self.state);
        let slabs = state.slabs.iter();
        let reached = slabs.filter(|slab| self.reaches(slab, context)).count();
        if reached == state.slabs.len() {
            let _ = self.grow(&mut state, Some(context), UNIT_BYTES, Kind::Any);
        }
    }

    /// A slab as a device sees it, registered now unless a stream is held: `None`.
    fn reach(&self, slab: &Slab, context: &Context) -> Option<Result<Arc<Memory>, DeviceError>> {
        let memory = slab.memory_unless_held(context);
        if memory.is_none() {
            self.put_off.store(true, Ordering::Relaxed);
        }
        memory
    }

    fn reaches(&self, slab: &Slab, context: &Context) -> bool {
        self.reach(slab, context)
            .is_some_and(|memory| memory.is_ok())
    }

    /// A slot of `bytes` bytes, or of fewer, but at least `least`. None: others have
    /// the rest.
    ///
    /// # Errors
    /// There is none, and no transfer will give any back.
    pub fn take(
        self: &Arc<Self>,
        context: Option<&Context>,
        (bytes, least): (usize, usize),
        claim: Claim,
        kind: Kind,
    ) -> Result<Option<Slot>, DeviceError> {
        let mut state = lock(&self.state);
        let round = |bytes: usize| bytes.max(1).next_multiple_of(UNIT_BYTES);
        let (mut want, least) = (round(bytes), round(least.min(bytes)));
        // As receivers ask for them: in whole units of the least.
        let halved = |want: usize| {
            let half = round(want / 2).max(least);
            half - half % least
        };
        loop {
            match self.take_exactly(&mut state, context, want, claim, kind) {
                Ok(Some(slot)) => return Ok(Some(slot)),
                Ok(None) if want > least => want = halved(want),
                // It may have memory of its own, now or when it waits for less.
                Err(e) if self.device.is_some() => return Err(e),
                Err(e) if claim.kept().is_none() && kind == Kind::Any => return Err(e),
                Ok(None) | Err(_) => break,
            }
        }
        let Some(which) = claim.kept().filter(|_| self.device.is_none()) else {
            return Ok(None);
        };
        let Some(slab) = self.reserve(&mut state, which, context, kind)? else {
            return Ok(None);
        };
        let bytes = round(bytes).min(RESERVE_BYTES);
        let whole = slab.take(RESERVE_BYTES);
        Ok(whole.map(|start| {
            state.reserved += RESERVE_BYTES;
            Slot {
                pool: self.clone(),
                slab,
                start,
                bytes,
                claim,
                kept: true,
            }
        }))
    }

    /// Makes sure that what is kept for a claim can be handed to a peer.
    ///
    /// # Errors
    /// It cannot.
    pub fn keeps(&self, context: Option<&Context>, claim: Claim) -> Result<(), DeviceError> {
        let Some(which) = claim.kept() else {
            return Ok(());
        };
        let mut state = lock(&self.state);
        self.reserve(&mut state, which, context, Kind::Shared)
            .map(drop)
    }

    /// What is kept for a claim, in memory of this kind that a device reaches.
    fn reserve(
        &self,
        state: &mut State,
        which: usize,
        context: Option<&Context>,
        kind: Kind,
    ) -> Result<Option<Arc<Slab>>, DeviceError> {
        let [shared, pinned] = &mut state.reserves[which];
        let mut refused = state.refused.clone();
        if let (None, Some(rank), None) = (&shared, &self.rank, &refused) {
            match Slab::shared(rank, RESERVE_BYTES) {
                Ok(fresh) => *shared = Some(Arc::new(fresh)),
                Err(why) => refused = Some(why),
            }
        }
        if let Some(slab) = shared {
            match context.map(|context| slab.memory(context)) {
                None | Some(Ok(_)) => return Ok(Some(slab.clone())),
                Some(Err(why)) => refused = Some(why),
            }
        }
        match (kind, context) {
            (Kind::Any, Some(context)) => {
                if pinned.is_none() {
                    *pinned = Some(Arc::new(Slab::pinned(context, RESERVE_BYTES)?));
                }
                Ok(pinned.clone())
            }
            _ => Err(refused.unwrap_or_else(no_shared)),
        }
    }

    fn take_exactly(
        self: &Arc<Self>,
        state: &mut State,
        context: Option<&Context>,
        bytes: usize,
        claim: Claim,
        kind: Kind,
    ) -> Result<Option<Slot>, DeviceError> {
        if !state.shares.allows(claim, bytes) {
            return Ok(None);
        }
        let found = |slab: &Arc<Slab>| {
            let reached = context.is_none_or(|context| self.reaches(slab, context));
            let fits = reached && (slab.backing.is_shared() || kind == Kind::Any);
            let start = fits.then(|| slab.take(bytes)).flatten()?;
            Some((slab.clone(), start))
        };
        let fresh = |state: &mut State| -> Result<Option<(Arc<Slab>, usize)>, DeviceError> {
            let Some(slab) = self.grow(state, context, bytes, kind)? else {
                return Ok(None);
            };
            // A stream may be held since.
            if context.is_some_and(|context| !self.reaches(&slab, context)) {
                return Ok(None);
            }
            Ok(slab.take(bytes).map(|start| (slab, start)))
        };
        let taken = match state.slabs.iter().find_map(found) {
            Some(taken) => Some(taken),
            None => fresh(state)?,
        };
        let Some((slab, start)) = taken else {
            return Ok(None);
        };
        state.shares.take(claim, bytes);
        Ok(Some(Slot {
            pool: self.clone(),
            slab,
            start,
            bytes,
            claim,
            kept: false,
        }))
    }

    /// Another slab, if the limit allows one of this size.
    fn grow(
        &self,
        state: &mut State,
        context: Option<&Context>,
        bytes: usize,
        kind: Kind,
    ) -> Result<Option<Arc<Slab>>, DeviceError> {
        if let Some(context) = &self.device {
            return self.grow_on_device(state, context);
        }
        let left = state.shares.all() - state.total;
        if bytes > left {
            return Ok(None);
        }
        // There is some to go on with, which comes back.
        let prepared =
            !state.slabs.is_empty() || state.reserves.iter().flatten().any(Option::is_some);
        if prepared && context.is_some_and(Context::is_held) {
            self.put_off.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        // All of it that a slab has room for, in whole granules where it can be.
        let size = SLAB_BYTES.min(left).max(bytes);
        let mut slab = None;
        if let (Some(rank), None) = (&self.rank, &state.refused) {
            match Slab::shared(rank, size) {
                Ok(fresh) => match context.and_then(|context| self.reach(&fresh, context)) {
                    Some(Err(why)) => state.refused = Some(why),
                    _ => slab = Some(fresh),
                },
                Err(why) => state.refused = Some(why),
            }
        }
        if slab.is_none() && kind == Kind::Any {
            let Some(context) = context else {
                return Ok(None);
            };
            slab = Some(Slab::pinned(context, size)?);
        }
        let Some(slab) = slab else {
            let shared = |slab: &Arc<Slab>| slab.backing.is_shared();
            if state.slabs.iter().any(shared) {
                return Ok(None); // they come back
            }
            return Err(state.refused.clone().unwrap_or_else(no_shared));
        };
        let slab = Arc::new(slab);
        state.total += size;
        state.slabs.push(slab.clone());
        Ok(Some(slab))
    }

    /// Bytes of slots that transfers have now.
    pub fn used(&self) -> usize {
        let state = lock(&self.state);
        state.reserved + state.shares.used()
    }

    /// The one slab of a device.
    fn grow_on_device(
        &self,
        state: &mut State,
        context: &Context,
    ) -> Result<Option<Arc<Slab>>, DeviceError> {
        if !state.slabs.is_empty() {
            return Ok(None); // its slots come back
        }
        if let Some(why) = &state.refused {
            return Err(why.clone());
        }
        let made = match self.limit {
            0 => Err(DeviceError::Unavailable(
                "OSIER_DEBUG: device-slots is 0".into(),
            )),
            limit => Slab::on_device(context, limit),
        };
        match made {
            Ok(slab) => {
                let slab = Arc::new(slab);
                state.total = slab.bytes;
                state.slabs.push(slab.clone());
                Ok(Some(slab))
            }
            Err(why) => {
                state.refused = Some(why.clone());
                Err(why)
            }
        }
    }

    /// Most bytes that it will ever hold.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

fn no_shared() -> DeviceError {
    DeviceError::Unavailable("there is no memory that ranks share".into())
}

impl Slab {
    fn new(host: *mut u8, bytes: usize, backing: Backing) -> Slab {
        Slab {
            host,
            bytes,
            backing,
            memory: OnceLock::new(),
            taken: Mutex::new(vec![false; bytes / UNIT_BYTES]),
        }
    }

    /// Fresh shared memory.
    fn shared(rank: &ShmRank, bytes: usize) -> Result<Slab, DeviceError> {
        let full = |e: osier_transports::TransportError| DeviceError::Unavailable(e.to_string());
        let (at, host) = rank.reserve_shared(bytes as u64).map_err(full)?;
        Ok(Slab::new(host, bytes, Backing::Shared(rank.clone(), at)))
    }

    fn pinned(context: &Context, bytes: usize) -> Result<Slab, DeviceError> {
        let memory = Memory::pinned(context, bytes)?;
        let lost = || DeviceError::Unavailable("pinned memory has no host address".into());
        let slab = Slab::new(memory.host().ok_or_else(lost)?, bytes, Backing::Private);
        let _ = slab.memory.set(Ok(memory));
        Ok(slab)
    }

    /// Memory of a device that other processes may open.
    fn on_device(context: &Context, bytes: usize) -> Result<Slab, DeviceError> {
        let memory = Memory::in_pieces(context, &[bytes])?;
        let slab = Slab::new(std::ptr::null_mut(), bytes, Backing::Device);
        let _ = slab.memory.set(Ok(memory));
        Ok(slab)
    }

    /// A slab of a peer.
    fn of_peer(rank: &ShmRank, at: u64, bytes: usize) -> Option<Slab> {
        let host = rank.shared(at, bytes as u64)?;
        Some(Slab::new(host, bytes, Backing::Shared(rank.clone(), at)))
    }

    /// As a device sees it; registered by the first that asks.
    fn memory(&self, context: &Context) -> Result<Arc<Memory>, DeviceError> {
        let register = || {
            let owner = self.owner()?;
            // SAFETY: invariant 4: the job, which keeps the arena mapped, is the owner.
            unsafe { Memory::registered(context, self.host, self.bytes, owner) }
        };
        self.memory.get_or_init(register).clone()
    }

    /// As [`Slab::memory`], but `None` where it is not registered and a stream is held.
    fn memory_unless_held(&self, context: &Context) -> Option<Result<Arc<Memory>, DeviceError>> {
        if let Some(memory) = self.memory.get() {
            return Some(memory.clone());
        }
        let registered = self.owner().and_then(|owner| {
            let (host, bytes) = (self.host, self.bytes);
            // SAFETY: invariant 4: the job, which keeps the arena mapped, is the owner.
            unsafe { Memory::registered_unless_held(context, host, bytes, owner) }
        });
        let registered = registered.transpose()?;
        // Another thread has got the same.
        Some(self.memory.get_or_init(|| registered).clone())
    }

    /// What keeps memory mapped that ranks share.
    fn owner(&self) -> Result<Arc<Job>, DeviceError> {
        match &self.backing {
            Backing::Shared(rank, _) => Ok(Arc::new(rank.job().clone())),
            _ => Err(DeviceError::Unavailable("a slab without memory".into())),
        }
    }

    /// First byte of free units, which are taken now.
    fn take(&self, bytes: usize) -> Option<usize> {
        let (mut taken, units) = (lock(&self.taken), bytes.div_ceil(UNIT_BYTES));
        let mut run = 0;
        let end = taken.iter().position(|&taken| {
            run = if taken { 0 } else { run + 1 };
            run == units
        })?;
        let start = end + 1 - units;
        taken[start..=end].fill(true);
        Some(start * UNIT_BYTES)
    }

    fn give(&self, start: usize, bytes: usize) {
        let first = start / UNIT_BYTES;
        lock(&self.taken)[first..first + bytes.div_ceil(UNIT_BYTES)].fill(false);
    }
}

/// Host memory of one transfer, given back when it is dropped.
pub struct Slot {
    pool: Arc<Pool>,
    slab: Arc<Slab>,
    start: usize,
    bytes: usize,
    claim: Claim,
    /// It is all of what is kept for the claim.
    kept: bool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({} bytes)", self.bytes)
    }
}

impl Slot {
    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the host; of a device's slot none.
    pub fn host(&self) -> *mut u8 {
        self.slab.host.wrapping_add(self.start)
    }

    /// Its first bytes as a device sees them.
    pub fn on_device(
        &self,
        context: &Context,
        bytes: usize,
    ) -> Result<DeviceSlice<u8>, DeviceError> {
        let all = DeviceSlice::of(self.slab.memory(context)?)?;
        all.slice(self.start..self.start + bytes)
    }

    /// How a peer finds its first bytes.
    pub fn place(&self, bytes: usize) -> Option<SlotAddress> {
        let slab = match self.slab.backing {
            Backing::Shared(_, slab) => slab,
            // There is one.
            Backing::Device => 0,
            Backing::Private => return None,
        };
        Some(SlotAddress {
            slab,
            slab_bytes: self.slab.bytes as u64,
            start: self.start as u64,
            bytes: bytes as u64,
        })
    }

    /// Both ends of its message have met.
    pub fn meet(&mut self) {
        if self.kept {
            return; // of a claim that has met
        }
        let mut state = lock(&self.pool.state);
        state.shares.give(self.claim, self.bytes);
        state.shares.take(Claim::Send, self.bytes);
        self.claim = Claim::Send;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        if self.kept {
            self.slab.give(self.start, RESERVE_BYTES);
            state.reserved -= RESERVE_BYTES;
        } else {
            self.slab.give(self.start, self.bytes);
            state.shares.give(self.claim, self.bytes);
        }
    }
}

/// Where a slot lies in the job's shared memory, or in the slab of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAddress {
    pub slab: u64,
    pub slab_bytes: u64,
    pub start: u64,
    pub bytes: u64,
}

impl SlotAddress {
    pub const WIRE_BYTES: usize = 32;

    /// Writes the wire form.
    pub fn to_wire(self) -> [u8; Self::WIRE_BYTES] {
        let mut w = [0; Self::WIRE_BYTES];
        let words = [self.slab, self.slab_bytes, self.start, self.bytes];
        for (at, word) in words.into_iter().enumerate() {
            w[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        w
    }

    /// Parses the wire form; `None` for what is no part of a slab.
    pub fn from_wire(bytes: &[u8; Self::WIRE_BYTES]) -> Option<SlotAddress> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or([0; 8]));
        let place = SlotAddress {
            slab: word(0),
            slab_bytes: word(8),
            start: word(16),
            bytes: word(24),
        };
        let inside = place.start.checked_add(place.bytes)? <= place.slab_bytes;
        (inside && place.slab_bytes <= isize::MAX as u64).then_some(place)
    }
}

impl Pool {
    /// A slot that a peer has handed over; none if it is not reserved.
    pub fn handed(&self, place: SlotAddress) -> Option<Handed> {
        let slab = self.peer_slab(&place)?;
        Some(Handed {
            memory: Lies::Host(slab),
            start: usize::try_from(place.start).ok()?,
            bytes: usize::try_from(place.bytes).ok()?,
        })
    }

    /// A peer's slab, registered once.
    fn peer_slab(&self, place: &SlotAddress) -> Option<Arc<Slab>> {
        let mut known = lock(&self.peers);
        let same = |slab: &&Arc<Slab>| {
            slab.bytes as u64 == place.slab_bytes
                && matches!(slab.backing, Backing::Shared(_, at) if at == place.slab)
        };
        if let Some(slab) = known.iter().find(same) {
            return Some(slab.clone());
        }
        let bytes = usize::try_from(place.slab_bytes).ok()?;
        let slab = Arc::new(Slab::of_peer(self.rank.as_ref()?, place.slab, bytes)?);
        known.push(slab.clone());
        Some(slab)
    }
}

/// A peer's slot, which is ours until we say that we have taken it.
pub struct Handed {
    memory: Lies,
    start: usize,
    bytes: usize,
}

/// Where a peer's slot lies.
enum Lies {
    Host(Arc<Slab>),
    /// In memory of a device that was opened.
    Device(Arc<Memory>),
}

impl Handed {
    /// A slot in a device's memory that was opened; none if it is not inside.
    pub fn on_peer(memory: &Arc<Memory>, place: SlotAddress) -> Option<Handed> {
        let (start, bytes) = (
            usize::try_from(place.start).ok()?,
            usize::try_from(place.bytes).ok()?,
        );
        let inside = start.checked_add(bytes)? <= memory.bytes();
        inside.then(|| Handed {
            memory: Lies::Device(memory.clone()),
            start,
            bytes,
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the host, unless it lies on a device.
    pub fn host(&self) -> Option<*const u8> {
        match &self.memory {
            Lies::Host(slab) => Some(slab.host.wrapping_add(self.start)),
            Lies::Device(_) => None,
        }
    }

    /// Its first bytes, where it lies on a device.
    pub fn on_peers_device(&self, bytes: usize) -> Option<Result<DeviceSlice<u8>, DeviceError>> {
        match &self.memory {
            Lies::Host(_) => None,
            Lies::Device(memory) => Some(self.part(memory.clone(), bytes)),
        }
    }

    /// Its first bytes as a device sees them, where it lies on the host. None: the device does not
    /// reach it, or would have to register it first while a stream is held ([`Pool::catch_up`]).
    pub fn on_host(&self, pool: &Pool, context: &Context, bytes: usize) -> Option<DeviceSlice<u8>> {
        let Lies::Host(slab) = &self.memory else {
            return None;
        };
        let memory = pool.reach(slab, context)?.ok()?;
        self.part(memory, bytes).ok()
    }

    fn part(&self, memory: Arc<Memory>, bytes: usize) -> Result<DeviceSlice<u8>, DeviceError> {
        DeviceSlice::of(memory)?.slice(self.start..self.start + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a peer writes is a place in a slab or none, and is looked for without
        /// arithmetic that overflows; where nothing is shared there is none.
        #[test]
        fn places_are_checked(words in any::<[u64; 4]>(), small in any::<[bool; 4]>()) {
            let mut wire = [0; SlotAddress::WIRE_BYTES];
            for (at, word) in words.into_iter().enumerate() {
                let word = if small[at] { word % 10_000 } else { word };
                wire[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
            }
            if let Some(place) = SlotAddress::from_wire(&wire) {
                prop_assert!(place.start + place.bytes <= place.slab_bytes);
                prop_assert_eq!(place.to_wire(), wire);
                prop_assert!(Pool::new(None, LEAST_LIMIT_BYTES).handed(place).is_none());
            }
        }
    }
}
