//! Parts in the memory of devices, and accesses with buffers there.
//!
//! An allocation of a rank is reached by kernels of the others: as it is in one process, opened in
//! another: by its handle, by descriptors, which all ranks hand over when the window is made, or,
//! of a pool, in the pool, anew for each access. So an access between devices that are linked is
//! one launch, from layout to layout, and nothing goes through the host. Where one side lies on the
//! host, or the devices are not linked, it is packed into pinned memory, or unpacked from there.
//!
//! ```text
//!                     part on a device         part on the host
//! buffer on a device  one kernel, or           kernel -> pinned -> as from the host
//!                     kernel -> pinned
//!                     -> kernel
//! buffer on the host  pinned -> kernel         (as everywhere)
//!
//! record of a rank, 136 bytes
//! byte 0         8       16          24        32
//!      where     bytes   place in    address   key of the
//!      it lies   of the  the alloc.  of the    allocation
//!      (u64)     part    (bytes)     Memory
//!      where: 0 on the host, 1 on a device, 2 the rank cannot export it
//! ```
//!
//! # Invariants
//! 1. An allocation is kept until all ranks have given the window back, as a part on the host
//!    (invariant 1 of [`super::raw`]). The address of a rank's `Memory` is used by ranks of its
//!    process alone.
//! 2. What an access touches lies inside of the part: checked before, and when its view is made.
//! 3. The caller of an unsafe function keeps its contract: buffers of the host are readable, or
//!    writable and nobody else's.
//!
//! # Sources
//! S. Potluri et al., "Extending OpenSHMEM for GPU Computing", IPDPS 2013: one-sided access to
//! memory of devices by CUDA IPC. Here kernels copy from layout to layout.

use super::accesses::element_of;
use super::far::{Bytes, Far, Local, What};
use super::raw::{RawWindow, Updates};
use crate::comm::Communicator;
use osier_datatype::{Basic, Element, Layout, Type};
use osier_engine::device::descriptors::Asked;
use osier_engine::device::direct::Direct;
use osier_engine::device::{DeviceMemory, PoolLoan};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::reach::{Placement, Reach, supported};
use osier_engine::rma::update::{Change, Update};
use osier_engine::view::{RawView, Shape};
use osier_kernels::handle::{Key, OpenPool, Piece, export_pieces};
use osier_kernels::plan::update::{AtomicChange, kernel_of};
use osier_kernels::{
    After, Context, DeviceError, DeviceId, DeviceSlice, DeviceView, Event, Link, Memory, Ordered,
    Packer, Space, Stream,
};
use osier_transports::cuda_ipc::{self, NAME_BYTES};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the others know of a rank's part on a device.
#[derive(Clone, Copy)]
struct Record {
    bytes: u64,
    place: u64,
    memory: u64,
    key: Key,
}

impl Record {
    const HEAD: usize = 32;
    const BYTES: usize = (Self::HEAD + Key::WIRE_BYTES).next_multiple_of(8);

    fn of(part: &DeviceSlice<u8>) -> Result<Self> {
        let (at, memory) = (part.address(), part.memory());
        let key = Key::of(memory, at..at + part.bytes() as u64)?;
        Ok(Self {
            bytes: part.bytes() as u64,
            place: at - key.start,
            memory: Arc::as_ptr(memory).expose_provenance() as u64,
            key,
        })
    }

    /// `Ok(None)`: the part lies on the host; an error: the rank cannot tell of it.
    fn to_wire(record: &Result<Option<Self>>) -> [u8; Self::BYTES] {
        let mut w = [0; Self::BYTES];
        if record.is_err() {
            w[..8].copy_from_slice(&2u64.to_le_bytes());
        }
        if let Ok(Some(record)) = record {
            w[..8].copy_from_slice(&1u64.to_le_bytes());
            w[8..16].copy_from_slice(&record.bytes.to_le_bytes());
            w[16..24].copy_from_slice(&record.place.to_le_bytes());
            w[24..32].copy_from_slice(&record.memory.to_le_bytes());
            w[Self::HEAD..][..Key::WIRE_BYTES].copy_from_slice(&record.key.to_wire());
        }
        w
    }

    /// `Some(None)`: the part lies on the host; `None`: the rank could not tell of it.
    fn from_wire(w: &[u8]) -> Option<Option<Self>> {
        let (there, rest) = w.split_first_chunk::<8>()?;
        let (bytes, rest) = rest.split_first_chunk::<8>()?;
        let (place, rest) = rest.split_first_chunk::<8>()?;
        let (memory, rest) = rest.split_first_chunk::<8>()?;
        match u64::from_le_bytes(*there) {
            0 => Some(None),
            1 => Some(Some(Self {
                bytes: u64::from_le_bytes(*bytes),
                place: u64::from_le_bytes(*place),
                memory: u64::from_le_bytes(*memory),
                key: Key::from_wire(rest.get(..Key::WIRE_BYTES)?)?,
            })),
            _ => None,
        }
    }
}

/// Parts of a window that lie on devices.
pub(super) struct OnDevices {
    records: Box<[Option<Record>]>,
    opened: Box<[OnceLock<Opened>]>,
    /// Descriptors of parts that are opened by them, until they are.
    pieces: Mutex<Vec<Vec<Piece>>>,
    own: Option<DeviceSlice<u8>>,
    /// Elements with an atomic are updated by kernels' atomics, by all ranks that reach the part.
    by_atomics: bool,
    /// By rank: its part is served by a thread of its own.
    is_far: Box<[bool]>,
    /// The way to such parts, if any rank has one to any other.
    far: Option<Far>,
}

/// A part as this rank has opened it.
enum Opened {
    Part(DeviceSlice<u8>),
    /// It is opened in its pool for each access.
    Pooled(Arc<Pooled>),
}

/// A part in a pool of another process.
struct Pooled {
    pool: OpenPool,
    context: Context,
    key: Key,
    /// The rank that has it, and the device that opens it.
    owner: (u32, i32),
    place: usize,
    bytes: usize,
}

impl OnDevices {
    /// What all ranks tell of theirs. Collective.
    #[track_caller]
    pub fn exchange(
        comm: &Communicator,
        own: Option<DeviceSlice<u8>>,
        updates: Updates,
    ) -> Result<Self> {
        // Where one cannot, all have an error.
        let record = own.as_ref().map(Record::of).transpose();
        let mut all = vec![0u8; Record::BYTES * comm.size()];
        comm.allgather(&Record::to_wire(&record), &mut all)?;
        record?;
        let records = all.chunks_exact(Record::BYTES).enumerate();
        let parse = |(rank, wire): (usize, &[u8])| {
            Record::from_wire(wire).ok_or_else(|| {
                let message = format!("rank {rank} cannot export its part of a window");
                Error::new(ErrorKind::Unavailable, message)
            })
        };
        let records: Vec<Option<Record>> = records.map(parse).collect::<Result<_>>()?;
        let pieces = hand_over(comm, &records, own.as_ref())?;
        let far = |(rank, record): (usize, &Option<Record>)| {
            let record = record.as_ref().filter(|_| rank != comm.rank());
            record.is_some_and(|record| unreached(comm, own.as_ref(), rank, record).is_some())
        };
        let is_far: Box<[bool]> = records.iter().enumerate().map(far).collect();
        // All ranks reach all of them by atomics, or none uses any.
        let mut lacks = [u8::from(updates == Updates::Many), 0];
        lacks[1] = u8::from(is_far.contains(&true));
        for (rank, record) in records.iter().enumerate() {
            let Some(record) = record.as_ref().filter(|_| !is_far[rank]) else {
                continue;
            };
            // A thread of the same process has the device's own context.
            let has = comm.lane().lock().sharing(rank as u32).process
                || context_for(own.as_ref(), &record.key.device)
                    .is_ok_and(|context| context.has_atomics_on(&record.key.device));
            lacks[0] |= u8::from(!has);
        }
        comm.allreduce_in_place(&mut lacks, &crate::Op::Max)?;
        let far = match lacks[1] {
            0 => None,
            _ => {
                // An owner serves others while its process holds streams. No rank leaves the call
                // below before all have come to it.
                if let Some(own) = &own {
                    comm.core().devices.prepare(own.memory().context());
                }
                Some(Far::open(comm)?)
            }
        };
        Ok(Self {
            is_far,
            far,
            by_atomics: lacks[0] == 0,
            opened: records.iter().map(|_| OnceLock::new()).collect(),
            records: records.into(),
            pieces: Mutex::new(pieces),
            own,
        })
    }

    /// Bytes of a rank's part, if it lies on a device.
    pub fn bytes_of(&self, rank: usize) -> Option<u64> {
        let record = self.records.get(rank)?.as_ref()?;
        Some(record.bytes)
    }

    /// Where a rank's part lies from an address on at which any number is aligned, if its elements
    /// are updated by atomics.
    fn atomics_at(&self, rank: usize) -> Option<u64> {
        let record = self.records.get(rank)?.as_ref()?;
        self.by_atomics.then_some(record.key.start + record.place)
    }

    /// This rank's part.
    pub fn own(&self) -> Option<&DeviceSlice<u8>> {
        self.own.as_ref()
    }

    /// The way to a rank's part, if a thread of its owner serves it for this rank.
    pub fn far(&self, rank: usize) -> Option<&Far> {
        self.far
            .as_ref()
            .filter(|_| self.is_far.get(rank) == Some(&true))
    }

    /// Where others ask for this rank's part, if any does not reach it.
    pub fn served(&self) -> Option<&Far> {
        self.far.as_ref().filter(|_| self.own.is_some())
    }

    /// The same for the thread that serves: of the own part.
    pub fn for_service(&self) -> Self {
        Self {
            records: self.records.clone(),
            opened: self.records.iter().map(|_| OnceLock::new()).collect(),
            pieces: Mutex::default(),
            own: self.own.clone(),
            by_atomics: self.by_atomics,
            is_far: self.is_far.clone(),
            far: None,
        }
    }

    /// The device of a rank's part, if it lies on one.
    pub fn device_of(&self, rank: usize) -> Option<DeviceId> {
        Some(self.records.get(rank)?.as_ref()?.key.device)
    }

    /// A rank's part, as kernels of this rank reach it all the time; `None`: it lies on the host.
    pub fn slice_of(&self, comm: &Communicator, rank: usize) -> Result<Option<DeviceSlice<u8>>> {
        match self.part(comm, rank)? {
            None => Ok(None),
            Some(Opened::Part(part)) => Ok(Some(part.clone())),
            Some(Opened::Pooled(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the part of rank {rank} lies in a pool of another process"),
            )),
        }
    }

    /// A rank's part, as kernels of this rank reach it; `None`: it lies on the host.
    fn part(&self, comm: &Communicator, rank: usize) -> Result<Option<&Opened>> {
        let Some(Some(record)) = self.records.get(rank) else {
            return Ok(None);
        };
        if let Some(part) = self.opened[rank].get() {
            return Ok(Some(part));
        }
        let part = match &self.own {
            Some(own) if rank == comm.rank() => Opened::Part(own.clone()),
            _ => self.open(comm, rank, record)?,
        };
        Ok(Some(self.opened[rank].get_or_init(|| part)))
    }

    fn open(&self, comm: &Communicator, rank: usize, record: &Record) -> Result<Opened> {
        let sharing = comm.lane().lock().sharing(rank as u32);
        let (bytes, key) = (record.bytes as usize, &record.key);
        if sharing.process {
            let memory = std::ptr::with_exposed_provenance::<Memory>(record.memory as usize);
            // SAFETY: invariant 1: of `Arc::as_ptr` in this process, and alive.
            unsafe { Arc::increment_strong_count(memory) };
            // SAFETY: invariant 1: the count of just now.
            let memory = unsafe { Arc::from_raw(memory) };
            let before = (key.start + record.place - memory.address()) as usize;
            let part = DeviceSlice::<u8>::of(memory)?.slice(before..before + bytes)?;
            return Ok(Opened::Part(part));
        }
        if let Some(why) = unreached(comm, self.own.as_ref(), rank, record) {
            return Err(of_unreached(rank, record, &why));
        }
        let devices = &comm.core().devices;
        let context = context_for(self.own.as_ref(), &key.device)?;
        let reach = supported(key.made, Placement::between(context.link(&key.device)));
        let pieces = match reach {
            Reach::Descriptors | Reach::Pool => {
                let mut all = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut all[rank])
            }
            _ => Vec::new(),
        };
        let world = comm.lane().lock().world_rank(rank as u32).unwrap_or(0);
        let owner = (world, context.ordinal());
        let place = record.place as usize;
        if reach == Reach::Pool {
            let pool = devices.open_pool(owner, &context, key, &pieces)?;
            let key = *key;
            return Ok(Opened::Pooled(Arc::new(Pooled {
                pool,
                context,
                key,
                owner,
                place,
                bytes,
            })));
        }
        let opened = devices.open(owner, &context, key, &pieces)?;
        let memory = opened
            .ok_or_else(|| of_unreached(rank, record, "there is no room for more mappings"))?;
        let part = DeviceSlice::<u8>::of(memory)?.slice(place..place.saturating_add(bytes))?;
        Ok(Opened::Part(part))
    }
}

/// Why kernels of this rank do not reach the part of another; none: they do.
fn unreached(
    comm: &Communicator,
    own: Option<&DeviceSlice<u8>>,
    rank: usize,
    record: &Record,
) -> Option<String> {
    let sharing = comm.lane().lock().sharing(rank as u32);
    if sharing.process {
        return None;
    }
    if !sharing.devices || !comm.core().devices.opens() {
        return Some("its process shares no devices".into());
    }
    let key = &record.key;
    let context = match context_for(own, &key.device) {
        Ok(context) => context,
        Err(e) => return Some(e.to_string()),
    };
    match supported(key.made, Placement::between(context.link(&key.device))) {
        Reach::No(why) => Some(why.into()),
        Reach::Pool if has_threads(comm) => Some(
            "other ranks of this process may have it open (hint: plain or mapped memory)".into(),
        ),
        _ => None,
    }
}

#[cold]
fn of_unreached(rank: usize, record: &Record, why: &str) -> Error {
    let message = format!(
        "the part of rank {rank} of a window, {} memory of a device: {why}",
        record.key.made.name()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Whether other ranks are threads of this process.
fn has_threads(comm: &Communicator) -> bool {
    let lane = comm.lane().lock();
    let mut others = (0..comm.size()).filter(|rank| *rank != comm.rank());
    others.any(|rank| lane.sharing(rank as u32).process)
}

/// The context that opens memory of a device of another process: that of the own part, if it is
/// linked to it.
fn context_for(own: Option<&DeviceSlice<u8>>, device: &DeviceId) -> Result<Context> {
    let context = match own {
        Some(own) => own.memory().context().clone(),
        None => Context::new(0)?,
    };
    Ok(match context.link(device) {
        Link::Apart => context_of(device)?.unwrap_or(context),
        _ => context,
    })
}

/// The context of a device, if this process sees it.
fn context_of(id: &DeviceId) -> Result<Option<Context>> {
    let all = osier_kernels::devices()?;
    let found = all.iter().find(|device| device.id == *id);
    Ok(found
        .map(|device| Context::new(device.ordinal))
        .transpose()?)
}

/// Descriptors of parts that other processes open by them, by rank. Collective: nobody has to
/// answer later.
#[track_caller]
fn hand_over(
    comm: &Communicator,
    records: &[Option<Record>],
    own: Option<&DeviceSlice<u8>>,
) -> Result<Vec<Vec<Piece>>> {
    const WORDS: usize = 1 + NAME_BYTES / 8;
    let by_descriptors = |record: &Option<Record>| {
        let made = record.as_ref().map(|record| record.key.made);
        let reach = made.map(|made| supported(made, Placement::Device));
        matches!(reach, Some(Reach::Descriptors | Reach::Pool))
    };
    let mut all: Vec<Vec<Piece>> = records.iter().map(|_| Vec::new()).collect();
    // All ranks have the same records.
    if !records.iter().any(by_descriptors) {
        return Ok(all);
    }
    let devices = &comm.core().devices;
    let asks = |(rank, record): (usize, &Option<Record>)| {
        let sharing = comm.lane().lock().sharing(rank as u32);
        let other = rank != comm.rank() && !sharing.process && sharing.devices;
        let asks = other && by_descriptors(record) && devices.opens();
        // Who gets none has an error when it uses the part.
        asks.then(|| Asked::of(devices, sharing.process_id).ok())
            .flatten()
    };
    let asked: Vec<Option<Asked>> = records.iter().enumerate().map(asks).collect();
    let mut words = vec![0u64; WORDS * records.len()];
    for (words, asked) in words.chunks_exact_mut(WORDS).zip(&asked) {
        if let Some(asked) = asked {
            words[0] = asked.number;
            for (word, name) in words[1..].iter_mut().zip(asked.name.chunks_exact(8)) {
                *word = u64::from_le_bytes(name.try_into().unwrap_or_default());
            }
        }
    }
    let mut wanted = vec![0u64; words.len()];
    comm.alltoall(&words, &mut wanted)?;
    for words in wanted.chunks_exact(WORDS) {
        if let (Some(own), true) = (own, words[0] != 0) {
            let mut name = words[1..].iter().flat_map(|word| word.to_le_bytes());
            let name = std::array::from_fn(|_| name.next().unwrap_or(0));
            let range = own.address()..own.address() + own.bytes() as u64;
            let pieces = export_pieces(own.memory().context(), range);
            // Who waits for it has an error when it uses the part.
            let _ = pieces.map(|pieces| cuda_ipc::send(&name, words[0], &pieces));
        }
    }
    comm.barrier()?;
    for (pieces, asked) in all.iter_mut().zip(&asked) {
        *pieces = asked.as_ref().and_then(Asked::take).unwrap_or_default();
    }
    Ok(all)
}

/// The remote side of an access.
#[derive(Clone)]
enum There {
    View(Bytes),
    /// Instances of a layout, and where the first has its origin, from the part's first byte on.
    Pooled(Arc<Pooled>, (Layout, usize, isize)),
}

impl There {
    fn of(opened: &Opened, target: &RawView) -> Result<Self> {
        Ok(match opened {
            Opened::Part(part) => There::View(view_of(part, &instances(target)?)?),
            Opened::Pooled(pooled) => There::Pooled(pooled.clone(), instances(target)?),
        })
    }

    fn context(&self) -> &Context {
        match self {
            There::View(view) => view.buffer().memory().context(),
            There::Pooled(pooled, _) => &pooled.context,
        }
    }

    /// The bytes, for work on a stream.
    fn on(&self, stream: &Stream) -> std::result::Result<Bytes, DeviceError> {
        let (pooled, target) = match self {
            There::View(view) => return Ok(view.clone()),
            There::Pooled(pooled, target) => (pooled, target),
        };
        let memory = pooled.key.open_in(&pooled.pool, stream)?;
        let place = pooled.place..pooled.place.saturating_add(pooled.bytes);
        let part = DeviceSlice::<u8>::of(memory)?.slice(place)?;
        view_of(&part, target)
    }

    /// What keeps other accesses from memory of a pool until this one is complete.
    #[track_caller]
    fn loan(&self, comm: &Communicator) -> Option<PoolLoan> {
        let There::Pooled(pooled, _) = self else {
            return None;
        };
        let core = comm.core();
        let lend = || (core.devices).lend(pooled.owner, pooled.key.identity);
        Some(core.wait_until(lend))
    }
}

/// Accesses on streams that are not known to be complete.
#[derive(Default)]
pub(super) struct Enqueued(Mutex<Vec<Event>>);

impl Enqueued {
    /// Whether all have ended, well or not.
    pub fn are_complete(&self) -> bool {
        let mut events = self.events();
        events.retain(|event| event.is_passed() == Ok(false));
        events.is_empty()
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pinned memory of the host for packed bytes.
struct Staged {
    at: *mut u8,
    slice: DeviceSlice<u8>,
}

impl Staged {
    fn new(context: &Context, bytes: usize) -> Result<Self> {
        let memory = Memory::pinned(context, bytes)?;
        let at = memory.host().ok_or_else(|| {
            let message = "pinned memory without an address of the host";
            Error::new(ErrorKind::Device, message)
        })?;
        Ok(Self {
            at,
            slice: DeviceSlice::of(memory)?.slice(..bytes)?,
        })
    }

    /// The packed bytes of a view of the host.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn of_host(context: &Context, view: &RawView) -> Result<Self> {
        let staged = Self::new(context, view.bytes())?;
        // SAFETY: invariant 3: all bytes, and as many of this call.
        unsafe { view.pack(0..view.bytes(), staged.at) };
        Ok(staged)
    }

    /// The bytes as instances of a layout without gaps.
    fn view(&self, layout: &Layout, count: usize) -> Result<Bytes> {
        Ok(Ordered::new(
            DeviceView::new(&self.slice, 0, layout, count)?,
            After::Now,
        ))
    }

    /// The bytes.
    fn bytes(&self) -> Result<Bytes> {
        self.view(&Layout::of::<u8>(), self.slice.bytes())
    }

    /// The bytes as elements.
    fn bytes_of(&self, element: Element) -> Result<Bytes> {
        let Element::Basic(basic) = element else {
            return self.bytes();
        };
        let layout = Type::basic(basic).commit()?;
        self.view(&layout, self.slice.bytes() / basic.size())
    }

    /// As the host has them.
    fn on_host(&self) -> RawView {
        RawView::untyped(self.at, self.slice.bytes())
    }
}

/// Instances of a target, and where the first has its origin, from the part's first byte on.
fn instances(target: &RawView) -> Result<(Layout, usize, isize)> {
    let origin = target.origin.addr().cast_signed();
    let dense = |layout: Layout| {
        let count = target.bytes.checked_div(layout.size()).unwrap_or(0);
        let ahead = layout.contiguous_at(count).unwrap_or(0);
        (layout, count, origin.wrapping_sub(ahead))
    };
    Ok(match &target.shape {
        Shape::Untyped => (Layout::of::<u8>(), target.bytes, origin),
        Shape::Slice(layout) => dense(layout()),
        Shape::Uniform(basic) => dense(Type::basic(*basic).commit()?),
        Shape::Dense(layout) => dense(layout.clone()),
        Shape::Loose(layout, count) => (layout.clone(), *count, origin),
        Shape::Device(_) | Shape::Section(..) | Shape::Parts(_) | Shape::Combining(_) => {
            let message = "a target of a window that is no instances of a layout";
            return Err(Error::new(ErrorKind::Datatype, message));
        }
    })
}

/// A view of a part: [`instances`] of it.
fn view_of(
    part: &DeviceSlice<u8>,
    (layout, count, origin): &(Layout, usize, isize),
) -> std::result::Result<Bytes, DeviceError> {
    let at = part.address().wrapping_add_signed(*origin as i64);
    // Invariant 2.
    let view = DeviceView::around(part, at, layout, *count)?;
    Ok(Ordered::new(view, After::Now))
}

impl RawWindow {
    /// The way to a rank's part on a device, if a thread of its owner serves it for this rank.
    #[inline]
    pub(super) fn far(&self, rank: usize) -> Option<&Far> {
        self.0.devices.as_ref()?.far(rank)
    }

    /// This rank's own target, as messages have it.
    pub(super) fn own_view(&self, target: &RawView) -> Result<Bytes> {
        match self.there(self.comm().rank(), target)? {
            Some(There::View(view)) => Ok(view),
            _ => Err(of_no_device()),
        }
    }

    /// Updates elements of this rank's part for another rank; what was there.
    #[track_caller]
    pub(super) fn update_own(
        &self,
        (change, element): (Change, Element),
        given: &[u8],
        target: &RawView,
    ) -> Result<Vec<u8>> {
        let (own, bytes) = (self.comm().rank(), target.bytes());
        let whole = element.size() > 0 && bytes.is_multiple_of(element.size());
        if !whole || (change != Change::Keep && given.len() != bytes) {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "an update of {bytes} bytes by {}, of {element}",
                    given.len()
                ),
            ));
        }
        let there = self.there(own, target)?.ok_or_else(of_no_device)?;
        let mut before = osier_engine::view::zeroed_vec::<u8>(bytes)?;
        let was = RawView::untyped(before.as_mut_ptr(), bytes);
        let operand = RawView::untyped(given.as_ptr().cast_mut(), given.len());
        let atomic = atomic_of(change);
        if self.is_atomic_on_device(atomic, element, own, target) {
            self.update_by_atomics((atomic, element), &operand, (there, target), Some(&was))?;
            return Ok(before);
        }
        let update = Update::new(change, element)?;
        self.known(own)?.part.alone(&self.path(own), || {
            // SAFETY: invariant 3: a vector of as many bytes.
            unsafe { self.get_by_device(&was, own, target) }?;
            if change == Change::Keep {
                return Ok(());
            }
            let mut next = before.clone();
            // SAFETY: invariant 3: vectors of as many bytes.
            unsafe { update.packed(next.as_mut_ptr(), given.as_ptr(), bytes) }?;
            let next = RawView::untyped(next.as_mut_ptr(), bytes);
            // SAFETY: invariant 3: a vector of as many bytes.
            unsafe { self.put_by_device(&next, own, target) }
        })?;
        Ok(before)
    }

    /// Asks the owner of a target, and waits: the answer's word, and what has come to the host.
    #[track_caller]
    fn ask(
        &self,
        far: &Far,
        (rank, target): (usize, &RawView),
        what: What,
        given: Option<Local>,
        room: Option<Local>,
    ) -> Result<(u64, Vec<u8>)> {
        let asking = far.begin(rank, (what, None), instances(target)?, given, room)?;
        asking.wait()
    }

    /// Asks the owner of a target for its elements, or what they were before an update.
    ///
    /// # Safety
    /// The bytes of `to` are writable, and nobody else uses them.
    #[track_caller]
    unsafe fn ask_for(
        &self,
        far: &Far,
        place: (usize, &RawView),
        what: What,
        given: Option<Local>,
        to: &RawView,
    ) -> Result<()> {
        let (_, bytes) = self.ask(far, place, what, given, Some(Local::room(to)?))?;
        if to.as_device().is_none() {
            // SAFETY: invariant 3: no more bytes than the view has.
            unsafe { to.unpack(0..bytes.len().min(to.bytes()), bytes.as_ptr()) };
        }
        Ok(())
    }

    /// Whether an access is not one of the host's alone.
    #[inline]
    pub(super) fn needs_device(&self, rank: usize, local: &[&RawView]) -> bool {
        let on_device = |devices: &OnDevices| devices.bytes_of(rank).is_some();
        local.iter().any(|view| view.as_device().is_some())
            || self.0.devices.as_ref().is_some_and(on_device)
    }

    /// The target of an access, if it lies on a device.
    fn there(&self, rank: usize, target: &RawView) -> Result<Option<There>> {
        let opened = match &self.0.devices {
            Some(devices) => devices.part(self.comm(), rank)?,
            None => None,
        };
        opened.map(|opened| There::of(opened, target)).transpose()
    }

    /// Runs work on a buffer and a target by the device that has the buffer, and waits for its end.
    #[track_caller]
    fn run(
        &self,
        local: Bytes,
        there: There,
        queue: impl FnOnce(&Packer, &Stream, &Bytes, &Bytes) -> std::result::Result<Event, DeviceError>
        + Send
        + 'static,
    ) -> Result<()> {
        let core = self.comm().core();
        let loan = there.loan(self.comm());
        let context = local.buffer().memory().context().clone();
        let mut views = vec![local.clone()];
        if let There::View(view) = &there {
            // Of another device of this process.
            context.reach(view.buffer().memory())?;
            views.push(view.clone());
        }
        let mut direct = Direct::queued_behind(&core.devices, &context, &views, move |p, s| {
            let remote = there.on(s)?;
            let event = queue(p, s, &local, &remote)?;
            // Memory of a pool is given back on the stream.
            drop(remote);
            match there {
                There::View(_) => Ok(event),
                There::Pooled(..) => s.record(),
            }
        })?;
        let ended = core.wait_until(|| match direct.is_over() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(e) => Some(Err(e.into())),
        });
        drop(loan);
        ended
    }

    /// Whether the device of a buffer does not reach a target.
    fn is_apart(local: &Bytes, there: &There) -> bool {
        let on_host = match there {
            There::View(view) => !matches!(view.buffer().memory().space(), Space::Device(_)),
            There::Pooled(..) => false,
        };
        let (own, other) = (local.buffer().memory().context(), there.context());
        !on_host && own.link(&other.id()) == Link::Apart
    }

    /// Copies as many packed bytes as both sides have, to the target or from there.
    #[track_caller]
    fn copy(&self, local: Bytes, there: There, puts: bool) -> Result<()> {
        let bytes = local.buffer().packed_bytes();
        if Self::is_apart(&local, &there) {
            let staged = Staged::new(there.context(), bytes)?;
            let here = There::View(staged.bytes()?);
            return match puts {
                true => {
                    self.copy(local, here, true)?;
                    self.copy(staged.bytes()?, there, true)
                }
                false => {
                    self.copy(staged.bytes()?, there, false)?;
                    self.copy(local, here, false)
                }
            };
        }
        self.run(local, there, move |packer, stream, local, there| {
            let (from, to) = match puts {
                true => (local, there),
                false => (there, local),
            };
            packer.copy(stream, from, to, 0..bytes, None)
        })
    }

    /// The packed bytes of a buffer on a device, in pinned memory for another or for the host.
    #[track_caller]
    fn staged(&self, memory: &DeviceMemory, reader: Option<&Context>) -> Result<Staged> {
        let view = memory.view()?.clone();
        let context = reader.unwrap_or_else(|| view.buffer().memory().context());
        let staged = Staged::new(context, memory.bytes())?;
        self.copy(view, There::View(staged.bytes()?), true)?;
        Ok(staged)
    }

    /// As [`RawWindow::put`], where one side lies on a device.
    ///
    /// # Safety
    /// As there; the access is sound.
    #[track_caller]
    pub(super) unsafe fn put_by_device(
        &self,
        from: &RawView,
        rank: usize,
        target: &RawView,
    ) -> Result<()> {
        let bytes = target.bytes();
        if bytes == 0 {
            return Ok(());
        }
        if let Some(far) = self.far(rank) {
            // SAFETY: invariant 3.
            let given = unsafe { Local::given(from) }?;
            let place = (rank, target);
            return (self.ask(far, place, What::Put, Some(given), None)).map(drop);
        }
        match (from.as_device(), self.there(rank, target)?) {
            (Some(memory), Some(there)) => self.copy(memory.view()?.clone(), there, true),
            (Some(memory), None) => {
                let staged = self.staged(memory, None)?;
                let part = &self.known(rank)?.part;
                // SAFETY: invariants 2 and 3; pinned memory of this call.
                unsafe { part.put(&self.path(rank), &staged.on_host(), target) }.map(drop)
            }
            (None, Some(there)) => {
                // SAFETY: invariant 3.
                let staged = unsafe { Staged::of_host(there.context(), from) }?;
                self.copy(staged.bytes()?, there, true)
            }
            (None, None) => unreachable!("no side lies on a device"),
        }
    }

    /// As [`RawWindow::get`], where one side lies on a device.
    ///
    /// # Safety
    /// As there; the access is sound.
    #[track_caller]
    pub(super) unsafe fn get_by_device(
        &self,
        to: &RawView,
        rank: usize,
        target: &RawView,
    ) -> Result<()> {
        let bytes = target.bytes();
        if bytes == 0 {
            return Ok(());
        }
        if let Some(far) = self.far(rank) {
            // SAFETY: invariant 3.
            return unsafe { self.ask_for(far, (rank, target), What::Get, None, to) };
        }
        match (to.as_device(), self.there(rank, target)?) {
            (Some(memory), Some(there)) => self.copy(memory.view()?.clone(), there, false),
            (Some(memory), None) => {
                let view = memory.view()?.clone();
                let staged = Staged::new(view.buffer().memory().context(), bytes)?;
                let part = &self.known(rank)?.part;
                // SAFETY: invariants 2 and 3; pinned memory of this call.
                unsafe { part.get(&self.path(rank), &staged.on_host(), target) }?;
                self.copy(view, There::View(staged.bytes()?), false)
            }
            (None, Some(there)) => {
                let staged = Staged::new(there.context(), bytes)?;
                self.copy(staged.bytes()?, there, false)?;
                // SAFETY: invariant 3: all bytes, from as many of this call.
                unsafe { to.unpack(0..bytes, staged.at) };
                Ok(())
            }
            (None, None) => unreachable!("no side lies on a device"),
        }
    }

    /// As [`RawWindow::update`], where one side lies on a device.
    ///
    /// # Safety
    /// As there; the access is sound.
    #[track_caller]
    pub(super) unsafe fn update_by_device(
        &self,
        change: Change,
        given: &RawView,
        rank: usize,
        target: &RawView,
        before: Option<&RawView>,
    ) -> Result<()> {
        let bytes = target.bytes();
        if let Some(far) = self.far(rank) {
            let element = target.signature().and_then(|s| element_of(change, &s));
            let what = What::Update {
                change,
                element: element.ok_or_else(|| of_pairs(rank))?,
                reads: before.is_some(),
            };
            let given = match change {
                Change::Keep => None,
                // SAFETY: invariant 3.
                _ => Some(unsafe { Local::given(given) }?),
            };
            let place = (rank, target);
            return match before {
                // SAFETY: invariant 3.
                Some(before) => unsafe { self.ask_for(far, place, what, given, before) },
                None => self.ask(far, place, what, given, None).map(drop),
            };
        }
        let Some(there) = self.there(rank, target)? else {
            return self.update_through_host(change, given, rank, target, before);
        };
        if let Some(what) = self.atomic_on_device(change, rank, target)? {
            return self.update_by_atomics(what, given, (there, target), before);
        }
        self.known(rank)?.part.alone(&self.path(rank), || {
            if let Some(before) = before {
                // SAFETY: invariant 3.
                unsafe { self.get_by_device(before, rank, target) }?;
            }
            let operator = match change {
                Change::Keep => return Ok(()),
                // SAFETY: invariant 3.
                Change::Replace => return unsafe { self.put_by_device(given, rank, target) },
                Change::Combine(operator) => operator,
            };
            let on_device = match given.as_device() {
                Some(memory) => Some((memory, memory.view()?.clone())),
                None => None,
            };
            let given = match on_device {
                Some((_, view)) if !Self::is_apart(&view, &there) => view,
                other => {
                    let staged = match other {
                        Some((memory, _)) => self.staged(memory, Some(there.context()))?,
                        // SAFETY: invariant 3.
                        None => unsafe { Staged::of_host(there.context(), given) }?,
                    };
                    let element = instances(target)?.0.signature().uniform();
                    let element = element.ok_or_else(|| of_pairs(rank))?;
                    let packed = Type::basic(element).commit()?;
                    staged.view(&packed, bytes / element.size())?
                }
            };
            self.run(given, there.clone(), move |packer, stream, given, there| {
                packer.combine(stream, operator, given, there, 0..bytes, None)
            })
        })
    }

    /// The change and the element, if kernels update the elements of a target by atomics.
    fn atomic_on_device(
        &self,
        change: Change,
        rank: usize,
        target: &RawView,
    ) -> Result<Option<(AtomicChange, Element)>> {
        let change = atomic_of(change);
        let element = instances(target)?
            .0
            .signature()
            .uniform()
            .map(Element::from);
        let fits =
            element.is_some_and(|element| self.is_atomic_on_device(change, element, rank, target));
        Ok(element.filter(|_| fits).map(|element| (change, element)))
    }

    /// Whether kernels make a change of the elements of a target by atomics: all ranks say the
    /// same of an element.
    fn is_atomic_on_device(
        &self,
        change: AtomicChange,
        element: Element,
        rank: usize,
        target: &RawView,
    ) -> bool {
        let devices = self.0.devices.as_ref();
        let place = devices.and_then(|devices| devices.atomics_at(rank));
        let Some(place) = place.filter(|_| kernel_of(change, element).is_some()) else {
            return false;
        };
        let (place, mut fits) = (place as usize, true);
        let size = element.size();
        target.runs(|run| {
            let start = place.wrapping_add(run.start);
            fits &= start.is_multiple_of(size) && run.len().is_multiple_of(size);
        });
        fits
    }

    /// Updates elements by atomics of kernels of the device that opened them.
    #[track_caller]
    fn update_by_atomics(
        &self,
        what: (AtomicChange, Element),
        given: &RawView,
        (there, target): (There, &RawView),
        before: Option<&RawView>,
    ) -> Result<()> {
        let (context, bytes) = (there.context().clone(), target.bytes());
        // Atomics work where the device of the part reaches it.
        let there_too = |view: &Bytes| view.buffer().memory().context() == &context;
        let was = match before {
            Some(_) => Some(Staged::new(&context, bytes)?),
            None if what.0 == AtomicChange::Keep => return Ok(()),
            None => None,
        };
        let operand = match (given.as_device(), &was) {
            // Nothing is given.
            (_, Some(was)) if what.0 == AtomicChange::Keep => was.bytes_of(what.1)?,
            (Some(memory), _) if there_too(memory.view()?) => memory.view()?.clone(),
            (Some(memory), _) => self.staged(memory, Some(&context))?.bytes_of(what.1)?,
            (None, _) => {
                // SAFETY: invariant 3.
                let staged = unsafe { Staged::of_host(&context, given) }?;
                staged.bytes_of(what.1)?
            }
        };
        let to = was
            .as_ref()
            .map(|was| Ordered::new(was.slice.clone(), After::Now));
        self.run(operand, there, move |packer, stream, given, there| {
            packer.update(stream, what, given, there, to.as_ref(), 0..bytes)
        })?;
        let (Some(before), Some(was)) = (before, was) else {
            return Ok(());
        };
        match before.as_device() {
            Some(memory) => self.copy(memory.view()?.clone(), There::View(was.bytes()?), false),
            None => {
                // SAFETY: invariant 3: all bytes, from as many of this call.
                unsafe { before.unpack(0..bytes, was.at) };
                Ok(())
            }
        }
    }

    /// Buffers of devices for a part on the host.
    #[track_caller]
    fn update_through_host(
        &self,
        change: Change,
        given: &RawView,
        rank: usize,
        target: &RawView,
        before: Option<&RawView>,
    ) -> Result<()> {
        let bytes = target.bytes();
        let of_device = |view: &RawView| view.as_device().cloned();
        let staged_given = match of_device(given) {
            Some(memory) if change != Change::Keep => Some(self.staged(&memory, None)?),
            _ => None,
        };
        let staged_before = match before.and_then(of_device) {
            Some(memory) => {
                let view = memory.view()?.clone();
                let staged = Staged::new(view.buffer().memory().context(), bytes)?;
                Some((staged, view))
            }
            None => None,
        };
        let on_host = staged_given.as_ref().map(Staged::on_host);
        let given = match (&on_host, change) {
            (Some(staged), _) => staged,
            // It is not looked at.
            (None, Change::Keep) => target,
            (None, _) => given,
        };
        let was = staged_before.as_ref().map(|(staged, _)| staged.on_host());
        let before = was.as_ref().or(before);
        // SAFETY: invariant 3; pinned memory of this call.
        unsafe { self.update(change, given, rank, target, before) }?;
        match staged_before {
            Some((staged, view)) => self.copy(view, There::View(staged.bytes()?), false),
            None => Ok(()),
        }
    }

    /// As [`RawWindow::compare_and_swap`], of a part on a device.
    #[track_caller]
    pub(super) fn swap_by_device(
        &self,
        rank: usize,
        target: &RawView,
        (expected, new): (u64, u64),
    ) -> Result<u64> {
        if let Some(far) = self.far(rank) {
            let what = What::Swap { expected, new };
            let (before, _) = self.ask(far, (rank, target), what, None, None)?;
            return Ok(before);
        }
        let word = match target.bytes() {
            1 => Some(Basic::U8),
            2 => Some(Basic::U16),
            4 => Some(Basic::U32),
            8 => Some(Basic::U64),
            _ => None,
        };
        let change = AtomicChange::CompareSwap(expected);
        if let Some(word) = word.map(Element::from)
            && self.is_atomic_on_device(change, word, rank, target)
            && let Some(there) = self.there(rank, target)?
        {
            let mut there_before = 0u64;
            let given = RawView::untyped((&raw const new).cast_mut().cast(), target.bytes());
            let before = RawView::untyped((&raw mut there_before).cast(), target.bytes());
            self.update_by_atomics((change, word), &given, (there, target), Some(&before))?;
            // SAFETY: a word of our own.
            return Ok(unsafe { before.origin.cast::<u64>().read() });
        }
        self.known(rank)?.part.alone(&self.path(rank), || {
            let mut there = 0u64;
            let word = RawView::untyped((&raw mut there).cast(), target.bytes());
            // SAFETY: invariant 3: a word of our own, of at least as many bytes.
            unsafe { self.get_by_device(&word, rank, target) }?;
            // SAFETY: a word of our own.
            let there = unsafe { word.origin.cast::<u64>().read() };
            if there == expected {
                let new = RawView::untyped((&raw const new).cast_mut().cast(), target.bytes());
                // SAFETY: invariant 3: a word of our own, of at least as many bytes.
                unsafe { self.put_by_device(&new, rank, target) }?;
            }
            Ok(there)
        })
    }

    /// Enqueues a copy between a buffer on a device and a rank's part on a stream; the event behind
    /// it, or none in a capture. The access is sound.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        local: &Bytes,
        rank: usize,
        (target, puts): (&RawView, bool),
    ) -> Result<Option<Event>> {
        if target.bytes() == 0 {
            return match stream.is_captured()? {
                true => Ok(None),
                false => Ok(Some(stream.record()?)),
            };
        }
        let there = match self.far(rank) {
            Some(_) => None,
            None => self.there(rank, target)?,
        };
        let there = match there {
            Some(There::View(view)) if reaches(stream, &view) => view,
            there => {
                // Where packed bytes go through pinned memory, and whose.
                let staged = match &there {
                    _ if self.far(rank).is_some() => None,
                    None => Some(local.buffer().memory().context()),
                    Some(There::View(view)) => Some(view.buffer().memory().context()),
                    Some(There::Pooled(..)) => None,
                };
                return self.enqueue_by_thread(stream, local, (rank, target, puts), staged);
            }
        };
        let (from, to) = match puts {
            true => (local, &there),
            false => (&there, local),
        };
        stream.context().reach(there.buffer().memory())?;
        let devices = &self.comm().core().devices;
        devices.copy(stream, from, to, target.bytes())?;
        if stream.is_captured()? {
            return Ok(None);
        }
        let event = stream.record()?;
        self.is_used_until(&event);
        Ok(Some(event))
    }

    /// The window is given back behind an event, and not sooner.
    pub(super) fn is_used_until(&self, event: &Event) {
        let mut enqueued = self.0.enqueued.events();
        enqueued.retain(|event| event.is_passed() != Ok(true));
        enqueued.push(event.clone());
    }

    /// Waits for accesses on streams.
    #[cold]
    #[track_caller]
    pub(super) fn settle_enqueued(&self) -> Result<()> {
        let events = std::mem::take(&mut *self.0.enqueued.events());
        let mut events = events.into_iter();
        let passed = self.comm().core().wait_until(|| {
            while let Some(event) = events.as_slice().first() {
                match event.is_passed() {
                    Ok(true) => drop(events.next()),
                    Ok(false) => return None,
                    Err(e) => return Some(Err(e.into())),
                }
            }
            Some(Ok(()))
        });
        match self.0.streams.get() {
            Some(Ok(streams)) => passed.and(streams.failed()),
            _ => passed,
        }
    }
}

/// Whether kernels of a stream use a part on a device in place.
fn reaches(stream: &Stream, there: &Bytes) -> bool {
    let context = there.buffer().memory().context();
    stream.context().link(&context.id()) != Link::Apart
}

/// A change by atomics.
fn atomic_of(change: Change) -> AtomicChange {
    match change {
        Change::Keep => AtomicChange::Keep,
        Change::Replace => AtomicChange::Replace,
        Change::Combine(operator) => AtomicChange::Combine(operator),
    }
}

#[cold]
fn of_no_device() -> Error {
    let message = "an access by messages to a part that does not lie on a device";
    Error::new(ErrorKind::Unavailable, message)
}

#[cold]
fn of_pairs(rank: usize) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "an update of pairs of rank {rank}'s part on a device by those of the host (hint: a \
             buffer on the device)"
        ),
    )
}
