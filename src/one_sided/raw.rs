//! Windows in bytes: what all forms of them share.
//!
//! A window has a communicator of its own, a duplicate of the one it was made on: barriers of
//! fences and the words of post and start travel there. What a rank must know to reach another's
//! part is exchanged when the window is made, and looked into when the part is first used.
//!
//! ```text
//! record of a rank, 80 bytes
//! byte 0     24         48        56     64              68        69
//!      data  sync block address   unit   holder          by lock   made
//!      key   key        (u64)     (u64)  of data (u32)
//! ```
//!
//! Parts of a shared window lie one behind the other in memory of its rank 0.
//!
//! # Invariants
//! 1. The own part and its sync block are kept until all ranks have given the window back: by
//!    [`RawWindow::free`], which waits for them, or behind a barrier that the last handle
//!    begins. Where that fails, they are never given back.
//! 2. Addresses of a target view count from the first byte of a part, and lie inside: checked
//!    before each access.
//! 3. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! MPI 5.0, chapter 12.

#![allow(
    clippy::missing_errors_doc,
    reason = "not published: what windows and the C interface need"
)]

use super::attached::{List, Seen};
use super::memory::Held;
use crate::coll::Collective;
use crate::comm::{Communicator, Group};
use osier_datatype::{Basic, Element, Layout, Operator, Signature};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::WithThread;
use osier_engine::rma::update::{Change, Update};
use osier_engine::rma::word::Hold;
use osier_engine::rma::{LockOf, Part, Path, Place, SYNC_BYTES};
use osier_engine::view::{RawView, copy_contiguous};
use osier_transports::RegionKey;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Of messages that begin and end exposure.
const POST_TAG: i32 = 1;
const COMPLETE_TAG: i32 = 2;

/// What the others know of a rank's part.
#[derive(Clone, Copy)]
struct Record {
    data: RegionKey,
    sync: RegionKey,
    address: u64,
    unit: u64,
    /// The rank whose memory the part lies in.
    holder: u32,
    by_lock: bool,
}

impl Record {
    const BYTES: usize = 80;
    const KEY: usize = RegionKey::WIRE_BYTES;

    /// `None`: the rank has not made its part.
    fn to_wire(record: Option<&Record>) -> [u8; Self::BYTES] {
        let mut w = [0; Self::BYTES];
        let Some(record) = record else {
            return w;
        };
        w[..Self::KEY].copy_from_slice(&record.data.to_wire());
        w[Self::KEY..2 * Self::KEY].copy_from_slice(&record.sync.to_wire());
        w[48..56].copy_from_slice(&record.address.to_le_bytes());
        w[56..64].copy_from_slice(&record.unit.to_le_bytes());
        w[64..68].copy_from_slice(&record.holder.to_le_bytes());
        w[68] = record.by_lock.into();
        w[69] = 1;
        w
    }

    fn from_wire(w: &[u8]) -> Option<Record> {
        let (data, rest) = w.split_at_checked(Self::KEY)?;
        let (sync, rest) = rest.split_at_checked(Self::KEY)?;
        let (address, rest) = rest.split_first_chunk::<8>()?;
        let (unit, rest) = rest.split_first_chunk::<8>()?;
        let (holder, rest) = rest.split_first_chunk::<4>()?;
        let &[by_lock, 1, ..] = rest else {
            return None;
        };
        Some(Record {
            data: RegionKey::from_wire(data)?,
            sync: RegionKey::from_wire(sync).filter(|key| key.bytes == SYNC_BYTES as u64)?,
            address: u64::from_le_bytes(*address),
            unit: u64::from_le_bytes(*unit),
            holder: u32::from_le_bytes(*holder),
            by_lock: by_lock != 0,
        })
    }
}

/// A part that was looked into.
struct Known {
    part: Part,
    /// Where it lies, if it is used by address and not dynamic; else null.
    at: *mut u8,
    /// It is locked, shared, by the epoch on all ranks.
    by_all: AtomicBool,
    /// What is known of its attached memory, in a dynamic window.
    attached: Option<Mutex<Seen>>,
}

// SAFETY: invariant 1: an address that is tied to no thread.
unsafe impl Send for Known {}
// SAFETY: invariant 1: whoever has a reference learns the address, and nothing more.
unsafe impl Sync for Known {}

impl Known {
    /// Where the bytes of a target lie, if they are one run of the part that is used by address.
    #[inline]
    fn run(&self, target: &RawView) -> Option<*mut u8> {
        let start = target.as_contiguous()?.addr();
        let inside = start.checked_add(target.bytes())? <= self.part.bytes();
        (inside && !self.at.is_null()).then(|| self.at.wrapping_add(start))
    }
}

/// Where the bytes of a view lie, if they are one run on the host of as many bytes as that at
/// `there`, and apart from it.
#[inline]
fn flat(view: &RawView, there: *mut u8, bytes: usize) -> Option<*mut u8> {
    let at = view.as_contiguous()?;
    let apart = at.addr().abs_diff(there.addr()) >= bytes;
    (apart && view.bytes() == bytes).then_some(at)
}

/// The own part, or the memory of all of a shared window.
struct Own {
    data: Held,
    sync: Held,
    /// Of data and sync block.
    keys: [RegionKey; 2],
}

impl Own {
    /// Exports memory, and a sync block for it.
    fn new(comm: &Communicator, data: Held) -> Result<Self> {
        let sync = Held::zeroed(comm.core(), SYNC_BYTES)?;
        let mut lane = comm.lane().lock();
        // SAFETY: invariant 1.
        let data_key = unsafe { lane.export_window(data.at(), data.bytes()) }?;
        // SAFETY: invariant 1.
        let sync_key = unsafe { lane.export_window(sync.at(), sync.bytes()) }?;
        Ok(Self {
            data,
            sync,
            keys: [data_key, sync_key],
        })
    }
}

struct Inner {
    comm: Communicator,
    records: Box<[Record]>,
    known: Box<[OnceLock<Known>]>,
    /// Epochs on all ranks that are open here.
    on_all: Mutex<usize>,
    own: Option<Own>,
    /// This rank's attached memory, in a dynamic window.
    list: Option<Mutex<List>>,
    /// Serves others while this rank computes, where they need it.
    serves: Option<WithThread>,
}

/// A window in bytes. Clones are the same window.
#[derive(Clone)]
pub struct RawWindow(Arc<Inner>);

/// A window that no handle has any more, until all ranks have given it back.
struct Grave {
    /// A barrier, behind which nobody uses the memory.
    over: Option<Collective<()>>,
    memory: Option<(Own, Option<Mutex<List>>)>,
    comm: Communicator,
    _serves: Option<WithThread>,
}

impl Grave {
    /// Whether nothing is left to wait for. The memory is given back then, if all ranks have
    /// given the window back.
    fn is_over(&mut self) -> bool {
        if self.over.as_mut().is_some_and(|over| !over.test()) {
            return false;
        }
        let ended = self.over.take().map(Collective::wait);
        match (self.memory.take(), ended) {
            (Some((own, _)), Some(Ok(()))) => drop(own.give_back(&self.comm)),
            // Invariant 1: a rank has failed, and others may still use it.
            (memory, _) => std::mem::forget(memory),
        }
        true
    }
}

impl Own {
    fn give_back(self, comm: &Communicator) -> Held {
        let mut lane = comm.lane().lock();
        self.keys.iter().for_each(|key| lane.unexport_window(key));
        self.data
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else {
            return;
        };
        // Invariant 1.
        match self.comm.ibarrier() {
            Ok(over) => {
                let mut grave = Grave {
                    over: Some(over),
                    memory: Some((own, self.list.take())),
                    comm: self.comm.clone(),
                    _serves: self.serves.take(),
                };
                self.comm.member().keep(Box::new(move || grave.is_over()));
            }
            Err(_) => std::mem::forget((own, self.list.take())),
        }
    }
}

/// What updates of a rank's part of a window are like: how they are kept apart.
///
/// An element that others update at the same time is right in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updates {
    /// Of many elements at once: each call takes a lock of the part.
    #[default]
    Many,
    /// Of single elements, by many ranks at the same time, such as counters: an atomic of the
    /// processor for each, where all ranks use the part by address and the element has at most
    /// eight bytes.
    Single,
}

/// What a rank brings to a window.
pub enum Brought {
    /// Zeroed memory is to be allocated.
    Bytes(usize),
    /// The same, behind that of the rank before: parts of a shared window.
    Shared(usize),
    /// Memory that is there.
    Memory(Held),
    /// Memory is attached later.
    Dynamic,
}

impl RawWindow {
    /// Makes a window. Collective. `unit` is the rank's displacement unit in bytes.
    ///
    /// # Errors
    /// As [`Communicator::window`].
    #[track_caller]
    pub fn make(
        comm: &Communicator,
        brought: Result<Brought>,
        unit: u64,
        updates: Updates,
    ) -> Result<Self> {
        if comm.is_inter() {
            return Err(Error::new(
                ErrorKind::Communicator,
                "a window on an intercommunicator (hint: merge it first)",
            ));
        }
        comm.member().sweep();
        // A duplicate would copy attributes.
        let comm = comm.split(Some(0), 0)?;
        let comm = comm.ok_or_else(|| {
            let message = "a window's communicator has no members";
            Error::new(ErrorKind::Communicator, message)
        })?;
        let dynamic = matches!(brought, Ok(Brought::Dynamic));
        let brought = match brought {
            Ok(Brought::Shared(bytes)) => return Self::make_shared(comm, bytes, unit, updates),
            Ok(Brought::Bytes(bytes)) => Held::zeroed(comm.core(), bytes),
            Ok(Brought::Memory(held)) => Ok(held),
            Ok(Brought::Dynamic) => Ok(Held::promised(std::ptr::null_mut(), 0)),
            Err(e) => Err(e),
        };
        let own = brought.and_then(|data| Own::new(&comm, data));
        let record = own.as_ref().ok().map(|own| Record {
            data: own.keys[0],
            sync: own.keys[1],
            address: own.data.at().expose_provenance() as u64,
            unit,
            holder: comm.rank() as u32,
            // What will be attached may lie anywhere.
            by_lock: dynamic || updates == Updates::Many || !is_reached_by_all(&comm, &own.keys[0]),
        });
        let records = exchange(&comm, record.as_ref());
        Self::of(comm, own?, records?, dynamic)
    }

    /// A window whose parts rank 0 allocates.
    #[track_caller]
    fn make_shared(comm: Communicator, bytes: usize, unit: u64, updates: Updates) -> Result<Self> {
        let mut sizes = vec![0u64; comm.size()];
        comm.allgather(&[bytes as u64], &mut sizes)?;
        let total = sizes
            .iter()
            .try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
        let total = total.and_then(|total| usize::try_from(total).ok());
        let data = match total {
            Some(total) if comm.rank() == 0 => Held::zeroed(comm.core(), total),
            Some(_) => Ok(Held::promised(std::ptr::null_mut(), 0)),
            None => Err(Error::new(
                ErrorKind::OutOfMemory,
                "a shared window that exceeds the address space",
            )),
        };
        let own = data.and_then(|data| Own::new(&comm, data));
        let own = own.and_then(|own| match is_reached_by_all(&comm, &own.keys[1]) {
            true => Ok(own),
            false => Err(Error::new(
                ErrorKind::Unavailable,
                "a shared window of ranks that share no memory",
            )),
        });
        let record = own.as_ref().ok().map(|own| Record {
            data: own.keys[0],
            sync: own.keys[1],
            address: 0,
            unit,
            holder: 0,
            by_lock: updates == Updates::Many,
        });
        let records = exchange(&comm, record.as_ref());
        let (own, mut records) = (own?, records?);
        let (whole, mut before) = (records[0].data, 0);
        for (record, bytes) in records.iter_mut().zip(sizes) {
            record.data = RegionKey {
                base: whole.base + before,
                bytes,
                ..whole
            };
            before += bytes;
        }
        Self::of(comm, own, records, false)
    }

    fn of(comm: Communicator, own: Own, records: Vec<Record>, dynamic: bool) -> Result<Self> {
        let known = records.iter().map(|_| OnceLock::new()).collect();
        let serves = {
            let lane = comm.lane().lock();
            let mut keys = own.keys.iter();
            !keys.all(|key| lane.is_used_without_us(key))
        };
        let serves = serves.then(|| comm.core().with_progress_thread());
        Ok(Self(Arc::new(Inner {
            comm,
            records: records.into(),
            known,
            on_all: Mutex::new(0),
            own: Some(own),
            list: dynamic.then(Mutex::default),
            serves,
        })))
    }

    /// Runs `f` on this rank's list of attached memory and its sync block.
    fn with_list<R>(&self, f: impl FnOnce(&mut List, *mut u8) -> Result<R>) -> Result<R> {
        let inner = &*self.0;
        let (Some(list), Some(own)) = (&inner.list, &inner.own) else {
            let message = "memory is attached to dynamic windows only";
            return Err(Error::new(ErrorKind::Argument, message));
        };
        f(
            &mut list.lock().unwrap_or_else(PoisonError::into_inner),
            own.sync.at(),
        )
    }

    /// Lets others use memory of this rank, by its addresses.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WindowRange`], if a part of it is attached already; of kind
    /// [`ErrorKind::Argument`], if the window is not dynamic.
    ///
    /// # Safety
    /// The memory stays where it is until it is detached or the window is given back, and
    /// whoever uses it meanwhile knows that others do, too.
    pub unsafe fn attach(&self, at: *mut u8, bytes: usize) -> Result<()> {
        let comm = self.comm();
        let of = (&**comm.core(), comm.lane());
        // SAFETY: the caller's contract; the sync block is this rank's own.
        self.with_list(|list, sync| unsafe { list.attach(of, sync, at, bytes) })
    }

    /// Takes back what [`RawWindow::attach`] has attached from an address on.
    ///
    /// # Errors
    /// As there; of kind [`ErrorKind::WindowRange`], if nothing is attached that begins there.
    pub fn detach(&self, at: usize) -> Result<()> {
        let comm = self.comm();
        let of = (&**comm.core(), comm.lane());
        // SAFETY: the sync block is this rank's own.
        self.with_list(|list, sync| unsafe { list.detach(of, sync, at) })
    }

    /// Memory that a program vouches for, until the window is given back.
    ///
    /// # Safety
    /// `bytes` bytes at `at` stay where they are until [`RawWindow::free`] returns, and whoever
    /// uses them meanwhile knows that others do, too.
    pub unsafe fn promised(at: *mut u8, bytes: usize) -> Brought {
        Brought::Memory(Held::promised(at, bytes))
    }

    /// The window's own communicator.
    pub fn comm(&self) -> &Communicator {
        &self.0.comm
    }

    /// The way to a rank.
    #[inline]
    fn path(&self, rank: usize) -> Path<'_> {
        let comm = &self.0.comm;
        Path {
            core: comm.core(),
            lane: comm.lane(),
            own: comm.rank() as u32,
            peer: rank as u32,
        }
    }

    /// A rank's part.
    #[inline]
    fn known(&self, rank: usize) -> Result<&Known> {
        match self.0.known.get(rank).and_then(OnceLock::get) {
            Some(known) => Ok(known),
            None => self.look_into(rank),
        }
    }

    #[cold]
    fn look_into(&self, rank: usize) -> Result<&Known> {
        let inner = &*self.0;
        let (Some(record), Some(cell)) = (inner.records.get(rank), inner.known.get(rank)) else {
            return Err(Error::new(
                ErrorKind::Rank,
                format!("rank {rank} of a window of {}", inner.records.len()),
            ));
        };
        let own = inner.own.as_ref();
        let place = |holder: usize, key: &RegionKey, of: fn(&Own) -> (&Held, &RegionKey)| {
            match own.map(of) {
                // Nothing of it is reached.
                _ if key.bytes == 0 => Place::Region(*key),
                Some((held, whole)) if holder == inner.comm.rank() => {
                    let before = (key.base - whole.base) as usize;
                    Place::At(held.at().wrapping_add(before))
                }
                _ => self.path(holder).place(key),
            }
        };
        let holder = record.holder as usize;
        let data = place(holder, &record.data, |own| (&own.data, &own.keys[0]));
        let sync = place(rank, &record.sync, |own| (&own.sync, &own.keys[1]));
        let bytes = record.data.bytes as usize;
        // SAFETY: invariant 1; sync blocks are made by `make` on every rank.
        let part = unsafe { Part::new(data, sync, bytes, record.by_lock) };
        let at = part.address().filter(|_| inner.list.is_none());
        Ok(cell.get_or_init(|| Known {
            part,
            at: at.unwrap_or(std::ptr::null_mut()),
            by_all: AtomicBool::new(false),
            attached: inner.list.as_ref().map(|_| Mutex::default()),
        }))
    }

    /// Bytes of a rank's part.
    pub fn bytes_of(&self, rank: usize) -> Result<usize> {
        let record = self.0.records.get(rank);
        record.map(|r| r.data.bytes as usize).ok_or_else(|| {
            let message = format!("rank {rank} of a window of {}", self.0.records.len());
            Error::new(ErrorKind::Rank, message)
        })
    }

    /// A rank's displacement unit in bytes.
    pub fn unit_of(&self, rank: usize) -> Option<usize> {
        self.0.records.get(rank).map(|r| r.unit as usize)
    }

    /// Where a rank's part lies here, if it is used by address and has bytes.
    pub fn address_of(&self, rank: usize) -> Result<Option<*mut u8>> {
        Ok(self.known(rank)?.part.address())
    }

    /// Where a rank's own part lies in its process.
    pub fn own_address(&self, rank: usize) -> Option<u64> {
        self.0.records.get(rank).map(|r| r.address)
    }

    /// How a rank's part is reached: `address`, `cross-memory attach`, `transport` or
    /// `messages`.
    pub fn reach_of(&self, rank: usize) -> Result<&'static str> {
        Ok(self.known(rank)?.part.reach())
    }

    /// Runs `f` on the part that an access goes to, with the target's bytes from the part's
    /// first on, once the access is sound.
    #[inline]
    fn with_part<R>(
        &self,
        what: &str,
        rank: usize,
        local: &[&RawView],
        target: &RawView,
        f: impl FnOnce(&Part, &RawView) -> Result<R>,
    ) -> Result<R> {
        let known = self.known(rank)?;
        if let Some(seen) = &known.attached
            && target.bytes() > 0
        {
            let sync = (&known.part, &self.0.records[rank].sync);
            let (part, target) = Seen::find(seen, &self.path(rank), sync, target)?;
            check(what, rank, local, &part, &target)?;
            return f(&part, &target);
        }
        check(what, rank, local, &known.part, target)?;
        f(&known.part, target)
    }

    /// Where `bytes` bytes at `offset` of a rank's part lie, if it is used by address, they lie
    /// inside, and apart from as many at `local`.
    #[inline]
    pub fn flat(
        &self,
        rank: usize,
        offset: usize,
        local: *const u8,
        bytes: usize,
    ) -> Option<*mut u8> {
        let known = self.0.known.get(rank)?.get()?;
        let inside = offset.checked_add(bytes)? <= known.part.bytes();
        let at = known.at.wrapping_add(offset);
        let apart = local.addr().abs_diff(at.addr()) >= bytes;
        (inside && apart && !known.at.is_null()).then_some(at)
    }

    /// As [`RawWindow::update`], of one element of a predefined type, `bytes` bytes at `offset` of
    /// a rank's part that is used by address; `None`: that is the way of it, or it is not
    /// sound.
    ///
    /// # Safety
    /// An element is readable at `given`, unless the change keeps, and writable at `before`.
    #[inline]
    #[track_caller]
    pub unsafe fn update_flat(
        &self,
        change: Change,
        (basic, bytes): (Basic, usize),
        rank: usize,
        offset: usize,
        (given, before): (*const u8, *mut u8),
    ) -> Option<Result<()>> {
        let at = self.flat(rank, offset, before, bytes)?;
        if given.addr().abs_diff(at.addr()) < bytes {
            return None;
        }
        let update = Update::new(change, basic.into()).ok()?;
        let known = self.0.known.get(rank)?.get()?;
        let path = self.path(rank);
        let memory = (given, Some(before));
        // SAFETY: invariants 1 to 3; apart by the checks.
        Some(unsafe { (known.part).update_run(&path, &update, at, memory, bytes) })
    }

    /// Writes `from` to `target`, a view that counts from the first byte of a rank's part; in a
    /// window with attached memory, of addresses there.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// The bytes of `from` are readable.
    #[inline]
    pub unsafe fn put(&self, from: &RawView, rank: usize, target: &RawView) -> Result<()> {
        if let Some(to) = self.known(rank)?.run(target)
            && let Some(from) = flat(from, to, target.bytes())
        {
            // SAFETY: invariants 1 to 3; apart, as `flat` says.
            unsafe { copy_contiguous(from, to, target.bytes()) };
            return Ok(());
        }
        self.with_part("put", rank, &[from], target, |part, target| {
            // SAFETY: invariants 2 and 3; apart by the check.
            unsafe { part.put(&self.path(rank), from, target) }
        })
    }

    /// Reads `target`, as [`RawWindow::put`] has it, to `to`.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// The bytes of `to` are writable, and nobody else uses them.
    #[inline]
    pub unsafe fn get(&self, to: &RawView, rank: usize, target: &RawView) -> Result<()> {
        if let Some(from) = self.known(rank)?.run(target)
            && let Some(to) = flat(to, from, target.bytes())
        {
            // SAFETY: invariants 1 to 3; apart, as `flat` says.
            unsafe { copy_contiguous(from, to, target.bytes()) };
            return Ok(());
        }
        self.with_part("get", rank, &[to], target, |part, target| {
            // SAFETY: invariants 2 and 3; apart by the check.
            unsafe { part.get(&self.path(rank), to, target) }
        })
    }

    /// What a change does to the elements of a target.
    #[inline]
    fn update_of(&self, change: Change, rank: usize, target: &RawView) -> Result<Update> {
        let pairs = matches!(change, Change::Combine(Operator::MinLoc | Operator::MaxLoc));
        let element = match target.basic() {
            Some(basic) if !pairs => Some(basic.into()),
            _ => target.signature().and_then(|s| element_of(change, &s)),
        };
        Update::new(change, element.ok_or_else(|| of_several_types(rank))?)
    }

    /// Updates the elements of `target`, as [`RawWindow::put`] has it, by those of `given`; what
    /// was there goes to `before`. `given` is looked at unless the change keeps.
    ///
    /// # Errors
    /// As `Epoch::accumulate`.
    ///
    /// # Safety
    /// The bytes of `given` are readable, those of `before` writable and nobody else's.
    #[track_caller]
    pub unsafe fn update(
        &self,
        change: Change,
        given: &RawView,
        rank: usize,
        target: &RawView,
        before: Option<&RawView>,
    ) -> Result<()> {
        let keeps = change == Change::Keep;
        if target.bytes() == 0 {
            // Of no type.
            return self.known(rank).map(drop);
        }
        let update = self.update_of(change, rank, target)?;
        let known = self.known(rank)?;
        let bytes = target.bytes();
        if let Some(at) = known.run(target)
            && let Some(given) = match keeps {
                true => Some(std::ptr::null_mut()),
                false => flat(given, at, bytes),
            }
            && let Some(before) = match before {
                Some(before) => flat(before, at, bytes).map(Some),
                None => Some(None),
            }
        {
            let path = self.path(rank);
            // SAFETY: invariants 1 to 3; apart, as `flat` says.
            return unsafe { (known.part).update_run(&path, &update, at, (given, before), bytes) };
        }
        let both = [before.unwrap_or(given), given];
        let local = match (before, keeps) {
            (Some(_), false) => &both[..],
            (Some(_), true) => &both[..1],
            (None, false) => &both[1..],
            (None, true) => &[],
        };
        self.with_part("accumulate", rank, local, target, |part, target| {
            let mut packed = Vec::new();
            let operand = match given.as_contiguous() {
                Some(at) => at.cast_const(),
                None if keeps => std::ptr::null(),
                None => {
                    packed.resize(bytes, 0u8);
                    // SAFETY: invariant 3: all bytes, and a vector of as many.
                    unsafe { given.pack(0..bytes, packed.as_mut_ptr()) };
                    packed.as_ptr()
                }
            };
            let mut was = Vec::new();
            let to = before.map(|view| match view.as_contiguous() {
                Some(at) => at,
                None => {
                    was.resize(bytes, 0u8);
                    was.as_mut_ptr()
                }
            });
            let path = self.path(rank);
            // SAFETY: invariants 2 and 3.
            unsafe { part.update(&path, &update, target, operand, to) }?;
            if let Some(before) = before.filter(|_| !was.is_empty()) {
                // SAFETY: invariant 3: all bytes, from a vector of as many.
                unsafe { before.unpack(0..bytes, was.as_ptr()) };
            }
            Ok(())
        })
    }

    /// Replaces an element of `size` bytes by `new` if it is `expected`, both in the lower bytes
    /// of words; what was there.
    #[track_caller]
    pub fn compare_and_swap(
        &self,
        rank: usize,
        (at, size): (usize, usize),
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        let known = self.known(rank)?;
        if !known.at.is_null() {
            let path = self.path(rank);
            return (known.part).compare_and_swap(&path, (at, size), expected, new);
        }
        let target = RawView::untyped(std::ptr::without_provenance_mut(at), size);
        self.with_part("compare-and-swap", rank, &[], &target, |part, target| {
            let at = (target.origin.addr(), size);
            part.compare_and_swap(&self.path(rank), at, expected, new)
        })
    }

    /// What was written to a rank's part can be seen by it behind this.
    #[inline]
    pub fn flush(&self, rank: usize) -> Result<()> {
        self.known(rank)?.part.flush();
        Ok(())
    }

    /// As [`RawWindow::flush`], of all ranks.
    #[inline]
    pub fn flush_all(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Locks a rank's part.
    #[track_caller]
    pub fn lock(&self, rank: usize, hold: Hold) -> Result<()> {
        let known = self.known(rank)?;
        known.part.lock(&self.path(rank), LockOf::Epochs, hold)
    }

    /// Gives the lock of a rank's part back.
    pub fn unlock(&self, rank: usize, hold: Hold) -> Result<()> {
        let part = &self.known(rank)?.part;
        part.flush();
        part.unlock(&self.path(rank), LockOf::Epochs, hold)
    }

    /// Opens an epoch on all ranks. Each is locked when it is first used.
    pub fn lock_all(&self) {
        *self.on_all() += 1;
    }

    fn on_all(&self) -> std::sync::MutexGuard<'_, usize> {
        let on_all = &self.0.on_all;
        on_all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the lock of a rank's part, in an epoch on all ranks.
    #[inline]
    #[track_caller]
    pub fn lock_of_all(&self, rank: usize) -> Result<()> {
        let known = self.known(rank)?;
        if known.by_all.load(Ordering::Acquire) {
            return Ok(());
        }
        let _alone = self.on_all();
        if !known.by_all.load(Ordering::Relaxed) {
            let path = self.path(rank);
            known.part.lock(&path, LockOf::Epochs, Hold::Shared)?;
            known.by_all.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Closes an epoch on all ranks.
    pub fn unlock_all(&self) -> Result<()> {
        self.flush_all();
        let mut open = self.on_all();
        *open -= 1;
        if *open > 0 {
            return Ok(());
        }
        let mut first = Ok(());
        for (rank, cell) in self.0.known.iter().enumerate() {
            if let Some(known) = cell.get()
                && known.by_all.swap(false, Ordering::AcqRel)
            {
                let unlocked = self.unlock(rank, Hold::Shared);
                first = first.and(unlocked);
            }
        }
        first
    }

    /// Ends what was begun before, on all ranks. Collective.
    #[track_caller]
    pub fn fence(&self) -> Result<()> {
        self.flush_all();
        self.comm().barrier()
    }

    /// The members of a group, as ranks of the window.
    pub fn ranks_of(&self, group: &Group) -> Result<Vec<usize>> {
        let own = self.comm().group();
        let rank = |world: usize| {
            own.rank_of(world).ok_or_else(|| {
                let message = format!("world rank {world} is no rank of the window");
                Error::new(ErrorKind::Group, message)
            })
        };
        group.world_ranks().map(rank).collect()
    }

    /// Tells ranks that they may use this rank's part.
    pub fn post(&self, origins: &[usize]) -> Result<()> {
        let nothing: [u8; 0] = [];
        let mut ranks = origins.iter();
        ranks.try_for_each(|rank| self.comm().send(&nothing, *rank, POST_TAG))
    }

    /// Waits until ranks have told that their parts may be used.
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Result<()> {
        self.hear(targets, POST_TAG)
    }

    #[track_caller]
    fn hear(&self, ranks: &[usize], tag: i32) -> Result<()> {
        for rank in ranks {
            self.comm().recv(&mut [0u8; 0], *rank, tag)?;
        }
        Ok(())
    }

    /// Tells ranks that this one uses their parts no more.
    pub fn complete(&self, targets: &[usize]) -> Result<()> {
        self.flush_all();
        let nothing: [u8; 0] = [];
        let mut ranks = targets.iter();
        ranks.try_for_each(|rank| self.comm().send(&nothing, *rank, COMPLETE_TAG))
    }

    /// Waits until ranks use this rank's part no more.
    #[track_caller]
    pub fn wait(&self, origins: &[usize]) -> Result<()> {
        self.hear(origins, COMPLETE_TAG)
    }

    /// Takes those out of a list that use this rank's part no more. True if none is left.
    pub fn test(&self, origins: &mut Vec<usize>) -> Result<bool> {
        while let Some(rank) = origins.last() {
            match self.comm().iprobe(*rank, COMPLETE_TAG)? {
                None => return Ok(false),
                Some(_) => self.comm().recv(&mut [0u8; 0], *rank, COMPLETE_TAG)?,
            };
            origins.pop();
        }
        Ok(true)
    }

    /// Waits until all ranks give the window back; the value whose memory this rank's part was.
    /// Collective.
    #[track_caller]
    pub fn free(self) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut inner = Arc::into_inner(self.0).ok_or_else(|| {
            let message = "a window that has other handles (hint: drop its epochs first)";
            Error::new(ErrorKind::Argument, message)
        })?;
        inner.comm.barrier()?;
        let own = inner.own.take();
        Ok(own.and_then(|own| own.give_back(&inner.comm).into_value()))
    }
}

/// Checks views of an access to a part.
#[inline]
fn check(what: &str, rank: usize, local: &[&RawView], part: &Part, target: &RawView) -> Result<()> {
    let inside = part.holds(target);
    for view in local {
        if view.bytes() != target.bytes() {
            return Err(of_two_lengths(what, rank, view, target));
        }
        if view.as_device().is_some() {
            return Err(of_device(what, rank));
        }
        if let Some(at) = part.address()
            && inside
            && view.overlaps(&target.moved_by(at.addr()))
        {
            return Err(overlapping(what, rank));
        }
    }
    match inside {
        true => Ok(()),
        false => Err(outside(what, rank, target, part.bytes())),
    }
}

/// Whether all ranks use memory by address that this one has exported.
fn is_reached_by_all(comm: &Communicator, key: &RegionKey) -> bool {
    let lane = comm.lane().lock();
    let mut ranks = 0..comm.size() as u32;
    ranks.all(|rank| lane.is_reached_by_address(rank, key))
}

/// What all ranks know of their parts; an error, if one could not make its part.
fn exchange(comm: &Communicator, record: Option<&Record>) -> Result<Vec<Record>> {
    let mut all = vec![0u8; Record::BYTES * comm.size()];
    comm.allgather(&Record::to_wire(record), &mut all)?;
    let records = all.chunks_exact(Record::BYTES).enumerate();
    let parse = |(rank, wire): (usize, &[u8])| {
        Record::from_wire(wire).ok_or_else(|| {
            let message = format!("rank {rank} could not make its part of a window");
            Error::new(ErrorKind::Unavailable, message)
        })
    };
    records.map(parse).collect()
}

/// What a change is made of in elements of a signature.
fn element_of(change: Change, signature: &Signature) -> Option<Element> {
    match change {
        Change::Combine(operator) => operator.element_of(signature),
        Change::Replace | Change::Keep => match signature.uniform() {
            Some(basic) => Some(basic.into()),
            None => Operator::MinLoc.element_of(signature),
        },
    }
}

/// A view of a rank's part: `count` instances of a layout, the first at byte `at`.
pub fn target_of(at: usize, layout: &Layout, count: usize) -> Result<RawView> {
    RawView::at(std::ptr::without_provenance_mut(at), layout, count)
}

#[cold]
fn of_two_lengths(what: &str, rank: usize, local: &RawView, target: &RawView) -> Error {
    Error::new(
        ErrorKind::Datatype,
        format!(
            "{what} of {} bytes, and {} bytes of rank {rank} (hint: both have the same elements)",
            local.bytes(),
            target.bytes()
        ),
    )
}

#[cold]
fn of_device(what: &str, rank: usize) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{what} with rank {rank} and memory of a device: windows have host memory yet"),
    )
}

#[cold]
fn overlapping(what: &str, rank: usize) -> Error {
    Error::new(
        ErrorKind::WindowConflict,
        format!("{what} with rank {rank}: the buffer overlaps the bytes of the window"),
    )
}

#[cold]
fn of_several_types(rank: usize) -> Error {
    Error::new(
        ErrorKind::Datatype,
        format!(
            "accumulate with rank {rank}: elements of no one predefined type (hint: all elements \
             of an accumulate have the same type)"
        ),
    )
}

#[cold]
fn outside(what: &str, rank: usize, target: &RawView, bytes: usize) -> Error {
    let (start, end) = target.span();
    let (start, end) = (start.cast_signed(), end.cast_signed());
    Error::new(
        ErrorKind::WindowRange,
        format!("{what} with rank {rank}: bytes {start} to {end} of a part of {bytes} bytes"),
    )
}
