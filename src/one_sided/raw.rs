//! Windows in bytes: what all forms of them share.
//!
//! A window has a communicator of its own, a duplicate of the one it was made on: barriers of
//! fences and the words of post and start travel there. What a rank must know to reach another's
//! part is exchanged when the window is made, and looked into when the part is first used.
//!
//! Parts of a shared window lie one behind the other in memory of its rank 0.
//!
//! # Invariants
//! 1. The own part and its sync block are kept until all ranks have given the window back: by
//!    [`RawWindow::free`], which waits for them, or behind a barrier that the last handle
//!    begins. Where that fails, they are never given back.
//! 2. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! MPI 5.0, chapter 12.

#![allow(
    clippy::missing_errors_doc,
    reason = "not published: what windows and the C interface need"
)]

use super::attached::{List, Seen};
use super::check::Watch;
use super::combined::Combined;
use super::device::{Enqueued, OnDevices};
use super::far::Service;
use super::memory::Held;
use super::record::{Record, Records, exchange, is_reached_by_all};
use super::requests::Pool;
use super::streams::Streams;
use crate::coll::Collective;
use crate::comm::Communicator;
use osier_datatype::Layout;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::WithThread;
use osier_engine::rma::ways::{WAYS, Way};
use osier_engine::rma::{Part, Path, Place, sync_bytes};
use osier_engine::view::View;
use osier_kernels::DeviceSlice;
use osier_transports::by_rank::Sparse;
use osier_transports::{RegionKey, RegionKind};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A part that was looked into.
pub(super) struct Known {
    pub part: Part,
    pub record: Record,
    /// Where it lies, if it is used by address, not dynamic and not checked; else null.
    pub at: *mut u8,
    /// It is locked, shared, by the epoch on all ranks.
    pub by_all: AtomicBool,
    /// What is known of its attached memory, in a dynamic window.
    pub attached: Option<Mutex<Seen>>,
}

// SAFETY: invariant 1: an address that is tied to no thread.
unsafe impl Send for Known {}
// SAFETY: invariant 1: whoever has a reference learns the address, and nothing more.
unsafe impl Sync for Known {}

/// The own part, or the memory of all of a shared window.
struct Own {
    data: Held,
    sync: Held,
    /// Of data and sync block.
    keys: [RegionKey; 2],
    /// What is known of all parts, where this rank keeps that for the others.
    table: Option<(Held, RegionKey)>,
}

impl Own {
    /// Exports memory, and a sync block for it.
    fn new(comm: &Communicator, data: Held) -> Result<Self> {
        // SAFETY: invariant 1.
        let data_key = unsafe { (comm.lane().lock()).export_window(data.at(), data.bytes()) }?;
        let sync = Held::zeroed(comm.core(), sync_bytes(&data_key)).and_then(|sync| {
            // SAFETY: invariant 1.
            let key = unsafe { (comm.lane().lock()).export_window(sync.at(), sync.bytes()) }?;
            Ok((sync, key))
        });
        let (sync, key) = sync.inspect_err(|_| comm.lane().lock().unexport_window(&data_key))?;
        Ok(Self {
            data,
            sync,
            keys: [data_key, key],
            table: None,
        })
    }
}

pub(super) struct Inner {
    pub comm: Communicator,
    records: Records,
    pub known: Sparse<Known>,
    /// Looks for conflicting accesses, where that is asked for.
    pub watch: Option<Watch>,
    /// Parts on devices, if there are any, and accesses on streams.
    pub devices: Option<OnDevices>,
    pub enqueued: Enqueued,
    /// Makes those of them that streams do not make themselves, once there is one.
    pub streams: OnceLock<Result<Streams>>,
    /// Accesses that are under way behind their calls.
    pub under_way: Pool,
    /// Short writes that are kept until they are flushed.
    pub combined: Combined,
    /// Epochs on all ranks that are open here.
    pub on_all: Mutex<usize>,
    /// Accesses by way.
    ways: [AtomicU64; WAYS],
    own: Option<Own>,
    /// This rank's attached memory, in a dynamic window.
    list: Option<Mutex<List>>,
    /// Serves others while this rank computes, where they need it.
    serves: Option<WithThread>,
    /// Serves the part on a device to those that do not reach it.
    service: Option<Service>,
}

/// A window in bytes. Clones are the same window.
#[derive(Clone)]
pub struct RawWindow(pub(super) Arc<Inner>);

/// A window that no handle has any more, until all ranks have given it back.
struct PendingFree {
    /// This rank's accesses on streams: the barrier begins behind them.
    enqueued: Enqueued,
    /// And those under way behind their calls.
    under_way: Pool,
    /// A barrier, behind which nobody uses the memory.
    barrier: Option<Collective<()>>,
    memory: Option<(Own, Option<Mutex<List>>)>,
    comm: Communicator,
    _serves: Option<WithThread>,
    _service: Option<Service>,
}

impl PendingFree {
    /// Whether nothing is left to wait for. The memory is given back then, if all ranks have
    /// given the window back.
    fn is_done(&mut self) -> bool {
        let ended = self.comm.lane().lock().an_ended_rank();
        if let Some(ended) = ended {
            // Not all come any more. Who waits for this rank is to learn that it has left.
            let barrier = self.barrier.take().into_iter();
            barrier.for_each(|barrier| barrier.give_up_for(ended));
            std::mem::forget(self.memory.take());
            return true;
        }
        if self.barrier.is_none() {
            if !self.enqueued.are_complete() || !self.under_way.advance(&self.comm) {
                return false;
            }
            self.barrier = self.comm.ibarrier().ok();
        }
        if self.barrier.as_mut().is_some_and(|barrier| !barrier.test()) {
            return false;
        }
        let ended = self.barrier.take().map(Collective::wait);
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
        Part::serve_no_more(comm.core(), self.sync.at());
        let mut lane = comm.lane().lock();
        let table = self.table.iter().map(|(_, key)| key);
        (self.keys.iter().chain(table)).for_each(|key| lane.unexport_window(key));
        self.data
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else {
            return;
        };
        // Invariant 1.
        let mut pending = PendingFree {
            enqueued: std::mem::take(&mut self.enqueued),
            under_way: std::mem::take(&mut self.under_way),
            barrier: None,
            memory: Some((own, self.list.take())),
            comm: self.comm.clone(),
            _serves: self.serves.take(),
            _service: self.service.take(),
        };
        if !pending.is_done() {
            self.comm.member().keep(Box::new(move || pending.is_done()));
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
    /// eight bytes. Where a part lies on a device, an atomic of the kernels of all ranks, if the
    /// links between their devices have atomics.
    Single,
}

/// Where the memory of a rank's part comes from, as MPI's flavors of windows.
pub enum Flavor {
    /// Zeroed memory is to be allocated.
    Allocate(usize),
    /// The same, behind that of the rank before: parts of a shared window.
    Shared(usize),
    /// Memory that is there.
    Create(Held),
    /// Memory is attached later.
    Dynamic,
    /// Memory of a device.
    Device(DeviceSlice<u8>),
}

impl RawWindow {
    /// Makes a window. Collective. `unit` is the rank's displacement unit in bytes.
    ///
    /// # Errors
    /// As [`Communicator::window`].
    #[track_caller]
    pub fn make(
        comm: &Communicator,
        flavor: Result<Flavor>,
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
        let dynamic = matches!(flavor, Ok(Flavor::Dynamic));
        let on_device = match &flavor {
            Ok(Flavor::Device(part)) => Some(part.clone()),
            _ => None,
        };
        let memory = match flavor {
            Ok(Flavor::Shared(bytes)) => return Self::make_shared(comm, bytes, unit, updates),
            Ok(Flavor::Allocate(bytes)) => Held::zeroed(comm.core(), bytes),
            Ok(Flavor::Create(held)) => Ok(held),
            Ok(Flavor::Dynamic) => Ok(Held::promised(std::ptr::null_mut(), 0)),
            Ok(Flavor::Device(part)) => {
                // Invariant 1, of the allocation.
                let kept = Box::new(part.memory().clone());
                Ok(Held::of_value(std::ptr::null_mut(), 0, kept))
            }
            Err(e) => Err(e),
        };
        let own = memory.and_then(|data| Own::new(&comm, data));
        let record = own.as_ref().ok().map(|own| Record {
            data: own.keys[0],
            sync: own.keys[1],
            address: match &on_device {
                Some(part) => part.address(),
                None => own.data.at().expose_provenance() as u64,
            },
            unit,
            holder: comm.rank() as u32,
            // What will be attached may lie anywhere; of devices all ranks say it together.
            by_lock: dynamic
                || on_device.is_some()
                || updates == Updates::Many
                || !is_reached_by_all(&comm, &own.keys[0]),
            on_device: on_device.is_some(),
            mapped: is_reached_by_all(&comm, &own.keys[1]),
        });
        let records = exchange(&comm, record.as_ref());
        let (own, mut records) = (own?, records?);
        let devices = match records.iter().any(|record| record.on_device) {
            true => Some(OnDevices::exchange(&comm, on_device, updates)?),
            false => None,
        };
        for (rank, record) in records.iter_mut().enumerate() {
            let bytes = devices.as_ref().and_then(|devices| devices.bytes_of(rank));
            record.data.bytes = bytes.unwrap_or(record.data.bytes);
        }
        Self::of(comm, own, (records, devices), dynamic)
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
            on_device: false,
            mapped: true,
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
        Self::of(comm, own, (records, None), false)
    }

    fn of(
        comm: Communicator,
        mut own: Own,
        (records, devices): (Vec<Record>, Option<OnDevices>),
        dynamic: bool,
    ) -> Result<Self> {
        let known = Sparse::new(records.len());
        let served = devices.as_ref().and_then(OnDevices::served);
        let all = served.map(|_| records.clone());
        let records = match Records::keep(&comm, records) {
            Ok((records, table)) => {
                own.table = table;
                records
            }
            Err(e) => {
                // Invariant 1: others may have made the window.
                std::mem::forget(own);
                return Err(e);
            }
        };
        let serves = {
            let lane = comm.lane().lock();
            let mut keys = own.keys.iter();
            !keys.all(|key| lane.is_used_without_us(key))
        };
        let serves = serves.then(|| comm.core().with_progress_thread());
        let (data, sync) = (&own.data, &own.sync);
        if own.keys[0].kind == RegionKind::Process && data.bytes() > 0 {
            // SAFETY: invariant 1; `give_back` ends it.
            unsafe { Part::serve(comm.core(), sync.at(), data.at(), data.bytes()) };
        }
        let service = match (served, all) {
            (Some(far), Some(all)) => {
                let window = Self::for_service(&comm, all, devices.as_ref());
                Some(Service::start(window, far)?)
            }
            _ => None,
        };
        let watch = Watch::of(&comm);
        Ok(Self(Arc::new(Inner {
            comm,
            watch,
            devices,
            enqueued: Enqueued::default(),
            streams: OnceLock::new(),
            under_way: Pool::default(),
            combined: Combined::default(),
            records,
            known,
            on_all: Mutex::new(0),
            ways: Default::default(),
            own: Some(own),
            list: dynamic.then(Mutex::default),
            serves,
            service,
        })))
    }

    /// A handle for the thread that serves the part of this rank: it knows the window, and keeps
    /// nothing that its ranks give back.
    fn for_service(
        comm: &Communicator,
        records: Vec<Record>,
        devices: Option<&OnDevices>,
    ) -> RawWindow {
        let known = Sparse::new(records.len());
        Self(Arc::new(Inner {
            comm: comm.clone(),
            watch: None,
            devices: devices.map(OnDevices::for_service),
            enqueued: Enqueued::default(),
            streams: OnceLock::new(),
            under_way: Pool::default(),
            combined: Combined::default(),
            records: Records::Own(records.into()),
            known,
            on_all: Mutex::new(0),
            ways: Default::default(),
            own: None,
            list: None,
            serves: None,
            service: None,
        }))
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

    /// Lets others use memory by its addresses as long as the window lives, and keeps it.
    ///
    /// # Errors
    /// As [`RawWindow::attach`].
    pub(super) fn attach_kept(&self, held: Held) -> Result<()> {
        let comm = self.comm();
        let of = (&**comm.core(), comm.lane());
        // SAFETY: the sync block is this rank's own.
        self.with_list(|list, sync| unsafe { list.attach_kept(of, sync, held) })
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

    /// Memory that a program vouches for, until the window is given back: of the host, or of a
    /// device ([`View::found`]).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// `bytes` bytes at `at` stay where they are until [`RawWindow::free`] returns, and whoever
    /// uses them meanwhile knows that others do, too.
    pub unsafe fn found(at: *mut u8, bytes: usize) -> Result<Flavor> {
        // SAFETY: invariant 2.
        let view = unsafe { View::found(at, &Layout::of::<u8>(), bytes) }?;
        let Some(memory) = view.as_raw().as_device() else {
            return Ok(Flavor::Create(Held::promised(at, bytes)));
        };
        let memory = memory.view()?.buffer().memory().clone();
        let before = at.addr() - memory.address() as usize;
        let part = DeviceSlice::<u8>::of(memory)?.slice(before..before + bytes)?;
        Ok(Flavor::Device(part))
    }

    /// The window's own communicator.
    pub fn comm(&self) -> &Communicator {
        &self.0.comm
    }

    /// Whether accesses are looked at for conflicts.
    pub fn is_checked(&self) -> bool {
        self.0.watch.is_some()
    }

    /// Accesses of the window are in no epoch, as if it was locked on all ranks for good.
    pub(super) fn is_without_epochs(&self) {
        if let Some(watch) = &self.0.watch {
            watch.locked_all();
        }
    }

    /// Whether it is the same window.
    pub(super) fn is(&self, other: &RawWindow) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its parts on devices, if any lies there.
    pub(super) fn devices(&self) -> Option<&OnDevices> {
        self.0.devices.as_ref()
    }

    /// This rank, as locks name it.
    #[inline(always)]
    pub(super) fn own_rank(&self) -> u32 {
        self.0.comm.rank() as u32
    }

    /// The way to a rank.
    #[inline]
    pub(super) fn path(&self, rank: usize) -> Path<'_> {
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
    pub(super) fn known(&self, rank: usize) -> Result<&Known> {
        match self.0.known.get(rank) {
            Some(known) => Ok(known),
            None => self.look_into(rank),
        }
    }

    #[cold]
    fn look_into(&self, rank: usize) -> Result<&Known> {
        let inner = &*self.0;
        let record = inner.records.get(rank)?;
        let own = inner.own.as_ref();
        let place = |holder: usize,
                     (key, of_device): (&RegionKey, bool),
                     of: fn(&Own) -> (&Held, &RegionKey)| {
            match own.map(of) {
                // Nothing of it is reached, or not by the host.
                _ if key.bytes == 0 || of_device => Place::Region(*key),
                Some((held, whole)) if holder == inner.comm.rank() => {
                    let before = (key.base - whole.base) as usize;
                    Place::At(held.at().wrapping_add(before))
                }
                _ => self.path(holder).place(key),
            }
        };
        let holder = record.holder as usize;
        let data = place(holder, (&record.data, record.on_device), |own| {
            (&own.data, &own.keys[0])
        });
        let sync = place(rank, (&record.sync, false), |own| (&own.sync, &own.keys[1]));
        let bytes = record.data.bytes as usize;
        // SAFETY: invariant 1; sync blocks are made by `make` on every rank.
        let part = unsafe { Part::new(data, sync, bytes, record.by_lock) };
        let part = part.served_by(inner.comm.core().selection.costs());
        let is_short = inner.list.is_none() && inner.watch.is_none();
        let at = part.address().filter(|_| is_short);
        let known = inner.known.get_or_init(rank, || Known {
            part,
            record,
            at: at.unwrap_or(std::ptr::null_mut()),
            by_all: AtomicBool::new(false),
            attached: inner.list.as_ref().map(|_| Mutex::default()),
        });
        known.ok_or_else(|| {
            let message = format!("rank {rank} of a window of {}", inner.records.len());
            Error::new(ErrorKind::Rank, message)
        })
    }

    /// Whether this rank has what is known of all parts, in place of a table that rank 0 keeps.
    pub fn has_all_records(&self) -> bool {
        matches!(self.0.records, Records::Own(_))
    }

    /// Bytes of a rank's part.
    pub fn bytes_of(&self, rank: usize) -> Result<usize> {
        Ok(self.known(rank)?.record.data.bytes as usize)
    }

    /// A rank's displacement unit in bytes.
    pub fn unit_of(&self, rank: usize) -> Option<usize> {
        self.known(rank)
            .ok()
            .map(|known| known.record.unit as usize)
    }

    /// Where a rank's part lies here, if it is used by address and has bytes.
    pub fn address_of(&self, rank: usize) -> Result<Option<*mut u8>> {
        Ok(self.known(rank)?.part.address())
    }

    /// Where a rank's own part lies in its process.
    pub fn own_address(&self, rank: usize) -> Option<u64> {
        self.known(rank).ok().map(|known| known.record.address)
    }

    /// How a rank's part is reached: `address`, `cross-memory attach`, `transport`, `messages`
    /// or `kernels`.
    pub fn reach_of(&self, rank: usize) -> Result<Way> {
        let known = self.known(rank)?;
        match self.needs_device(rank, &[]) {
            true => Ok(self.device_way(rank)),
            false => Ok(known.part.reach()),
        }
    }

    /// How an access goes that is not the host's alone.
    pub(super) fn device_way(&self, rank: usize) -> Way {
        match self.far(rank) {
            Some(_) => Way::Messages,
            None => Way::Kernel,
        }
    }

    /// Counts an access that did not go by address.
    #[inline]
    pub(super) fn count(&self, way: Way) {
        if let Some(counter) = self.0.ways.get(way as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Accesses of this rank that went some way; of those by address only those that took a
    /// longer look.
    pub fn count_of(&self, way: Way) -> u64 {
        let counter = self.0.ways.get(way as usize);
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// This rank's part, if it lies on a device.
    pub fn own_on_device(&self) -> Option<&DeviceSlice<u8>> {
        self.0.devices.as_ref()?.own()
    }

    /// Wakes a rank that waits for a change of its part, behind such a change.
    #[inline]
    pub(super) fn tell(&self, rank: usize) -> Result<()> {
        self.known(rank)?.part.tell(&self.path(rank))
    }

    /// Waits until this rank's own part is as `wanted` finds it.
    #[track_caller]
    pub(super) fn await_change<R>(
        &self,
        what: impl Fn() -> String,
        wanted: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let own = self.comm().rank();
        let known = self.known(own)?;
        known.part.await_change(&self.path(own), what, wanted)
    }

    /// Waits until all ranks give the window back; the value whose memory this rank's part was.
    /// Collective.
    #[track_caller]
    pub fn free(self) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        self.settle()?;
        let mut inner = Arc::into_inner(self.0).ok_or_else(|| {
            let message = "a window that has other handles (hint: drop its epochs first)";
            Error::new(ErrorKind::Argument, message)
        })?;
        if let Some(watch) = &inner.watch {
            watch.fenced(&inner.comm)?;
        }
        // What was opened is closed before its owner frees it.
        if inner.devices.take().is_some() {
            inner.comm.core().devices.sweep();
        }
        inner.comm.barrier()?;
        inner.service.take().into_iter().for_each(Service::join);
        let own = inner.own.take();
        Ok(own.and_then(|own| own.give_back(&inner.comm).into_value()))
    }
}
