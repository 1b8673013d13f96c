//! Allocations: device memory (plain, from a stream-ordered pool, mapped),
//! pinned host memory, managed memory; host memory of others, registered.
//!
//! # Invariants
//! 1. An allocation outlives all work that was queued on it through this crate:
//!    each use leaves an event, and the last owner hands the memory back behind
//!    these events. Who passes raw addresses on answers for that alone.
//! 2. Giving back never waits on the host. Memory of a pool goes back in the order of a
//!    stream; plain and pinned memory is kept (`kept.rs`), plain memory for later work of
//!    its stream at once. Other kinds are put aside while work is under way or the host
//!    holds a stream, and freed by the next allocation, or the next call of [`reap`], that
//!    finds neither: the driver's call may wait for other work on the device. A kernel that
//!    has said that it is done is under way until the driver knows it, too.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream ordered allocator, virtual memory
//! management.

use crate::bar1::Bar1Windows;
use crate::classify::{buffer, classify};
use crate::device::Context;
use crate::driver::{Driver, abi};
use crate::error::{DeviceError, Result};
use crate::kept::{Block, size_class};
use crate::stream::{Event, Stream};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Where memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Pageable host memory.
    Host,
    /// Host memory that devices reach.
    Pinned,
    /// Memory of one device.
    Device(i32),
    /// Memory that moves between host and devices by itself.
    Managed,
}

/// How device memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// By itself; other processes may open it by a handle, and keep it open between
    /// messages. Memory that is dropped is kept for the next allocation, as a pool does
    /// ([`Context::give_back_kept`]).
    #[default]
    Plain,
    /// From the device's pool, in the order of a stream: quick to allocate and to free;
    /// no other process opens it.
    Pool,
    /// The same from a pool of its own that other processes may open; its memory is not
    /// given back to the device before the process ends.
    SharedPool,
    /// Physical memory, mapped; other processes may open it by a descriptor.
    Mapped,
    /// Managed memory.
    Managed,
}

#[derive(Debug)]
pub(crate) enum Region {
    Plain(Block),
    Managed,
    Pool {
        home: Stream,
    },
    Mapped {
        /// In the order of their addresses, with their bytes.
        pieces: Vec<(abi::AllocationHandle, usize)>,
        mapped_bytes: usize,
    },
    Pinned(Block),
    /// Memory of the host that its owner keeps, and the driver has pinned.
    Registered {
        host: *mut u8,
        _owner: Arc<dyn Any + Send + Sync>,
    },
    Opened,
    /// Memory of others; not given back.
    Foreign {
        /// The driver's number of the allocation, if it was asked for.
        buffer: Option<u64>,
    },
}

// SAFETY: the host pointer is the allocation's own; who may touch the bytes is
// decided by the types above this one.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// One allocation.
#[derive(Debug)]
pub struct Memory {
    context: Context,
    at: abi::DevicePointer,
    bytes: usize,
    space: Space,
    region: Region,
    /// The last use on each stream.
    uses: Mutex<Vec<(Stream, Event)>>,
    /// Other devices that it was opened for, as bits.
    reached: AtomicU64,
    /// What the processor reaches of it.
    bar1_windows: Mutex<Bar1Windows>,
}

impl Memory {
    /// Allocates device memory; `stream` orders an allocation of a pool, whose
    /// bytes may be used on it at once and elsewhere behind an event.
    ///
    /// A device without pools answers [`Kind::Pool`] with plain memory, one whose pools
    /// go to no other process [`Kind::SharedPool`] as [`Kind::Pool`].
    ///
    /// # Errors
    /// Out of memory ([`DeviceError::is_out_of_memory`]), or the driver refuses.
    pub fn allocate(stream: &Stream, kind: Kind, bytes: usize) -> Result<Arc<Memory>> {
        reap();
        let context = stream.context();
        if stream.capture()?.is_some() {
            return Err(DeviceError::Capture(
                "an allocation (hint: allocate before the capture begins)",
            ));
        }
        match Memory::ask_for(stream, kind, bytes) {
            Err(error) if error.is_out_of_memory() && context.give_back_kept() > 0 => {
                Memory::ask_for(stream, kind, bytes)
            }
            done => done,
        }
    }

    fn ask_for(stream: &Stream, kind: Kind, bytes: usize) -> Result<Arc<Memory>> {
        let context = stream.context();
        let driver = context.enter()?;
        // An empty allocation is an error for the driver.
        let size = bytes.max(1);
        let ordinal = context.ordinal();
        let mut at = 0;
        let (space, region) = match kind {
            Kind::SharedPool if context.shares_pools() => {
                let pool = context.shared_pool()?;
                // SAFETY: a place for one address; stream and pool live.
                unsafe { driver.cuMemAllocFromPoolAsync(&mut at, size, pool, stream.raw()) }?;
                let home = stream.clone();
                (Space::Device(ordinal), Region::Pool { home })
            }
            Kind::Pool | Kind::SharedPool if context.has_pools() => {
                // SAFETY: a place for one address; the stream lives.
                unsafe { driver.cuMemAllocAsync(&mut at, size, stream.raw()) }?;
                let home = stream.clone();
                (Space::Device(ordinal), Region::Pool { home })
            }
            Kind::Plain | Kind::Pool | Kind::SharedPool => {
                let block = plain(stream, size_class(bytes))?;
                at = block.at;
                (Space::Device(ordinal), Region::Plain(block))
            }
            Kind::Managed => {
                // SAFETY: a place for one address.
                unsafe { driver.cuMemAllocManaged(&mut at, size, abi::MEM_ATTACH_GLOBAL) }?;
                (Space::Managed, Region::Managed)
            }
            Kind::Mapped => {
                let prop = property(context);
                let mapped = size.next_multiple_of(granularity(context, &prop)?);
                let mut handle = 0;
                // SAFETY: a place for one handle; the property is complete.
                unsafe { driver.cuMemCreate(&mut handle, mapped, &prop, 0) }?;
                return Memory::map(context, vec![(handle, mapped)], bytes);
            }
        };
        Ok(Memory::with(context, at, bytes, space, region))
    }

    /// Allocates pinned host memory that all devices reach.
    ///
    /// # Errors
    /// Out of memory, or the driver refuses.
    pub fn pinned(context: &Context, bytes: usize) -> Result<Arc<Memory>> {
        reap();
        let size = size_class(bytes);
        if let Some(block) = context.kept_pinned().take(size) {
            let region = Region::Pinned(block);
            return Ok(Memory::with(
                context,
                block.at,
                bytes,
                Space::Pinned,
                region,
            ));
        }
        let driver = context.enter()?;
        let flags = abi::HOST_ALLOC_PORTABLE | abi::HOST_ALLOC_DEVICEMAP;
        let mut host = std::ptr::null_mut();
        // SAFETY: a place for one pointer.
        unsafe { driver.cuMemHostAlloc(&mut host, size, flags) }?;
        let mut at = 0;
        // SAFETY: a place for one address; the memory was allocated mapped.
        unsafe { driver.cuMemHostGetDevicePointer_v2(&mut at, host, 0) }?;
        let region = Region::Pinned(Block {
            host: host.cast(),
            at,
            bytes: size,
        });
        Ok(Memory::with(context, at, bytes, Space::Pinned, region))
    }

    /// Memory of the host that the driver pins, so that all devices reach it; `owner`
    /// keeps it mapped. Pages are pinned whole. Memory that is registered already is
    /// the same again, whoever asks: the driver knows an address once in a process.
    ///
    /// Registering, and giving back, may wait for work on the device.
    ///
    /// # Safety
    /// `bytes` at `host` are mapped, readable and writable, while `owner` lives.
    ///
    /// # Errors
    /// The driver refuses.
    pub unsafe fn registered(
        context: &Context,
        host: *mut u8,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Memory>> {
        let mut known = registrations();
        if let Some(memory) = find_registered(&mut known, host, bytes) {
            return Ok(memory);
        }
        reap();
        // SAFETY: the caller's contract.
        unsafe { register(context, &mut known, (host, bytes), owner) }
    }

    /// As [`Memory::registered`], but never waits for a stream that the host holds: while there
    /// is one only memory that is registered already is returned, and for other `None`.
    ///
    /// # Safety
    /// As [`Memory::registered`].
    ///
    /// # Errors
    /// The driver refuses.
    pub unsafe fn registered_unless_held(
        context: &Context,
        host: *mut u8,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Option<Arc<Memory>>> {
        let mut known = registrations();
        if let Some(memory) = find_registered(&mut known, host, bytes) {
            return Ok(Some(memory));
        }
        reap();
        // SAFETY: the caller's contract.
        let register = || unsafe { register(context, &mut known, (host, bytes), owner) };
        context.unless_held(register).transpose()
    }

    /// Memory of another library on this device.
    ///
    /// # Safety
    /// `bytes` at `at` are valid until the last clone is dropped and the work
    /// queued on them is done.
    pub unsafe fn foreign(context: &Context, at: u64, bytes: usize) -> Arc<Memory> {
        let space = Space::Device(context.ordinal());
        let region = Region::Foreign { buffer: None };
        Memory::with(context, at, bytes, space, region)
    }

    /// Memory of another library, found by the driver: as [`Memory::foreign`], but
    /// checked, now and whenever work is queued on it: what was freed meanwhile is refused
    /// ([`DeviceError::Freed`]), even where somebody else has the address by then. Work
    /// that is queued already is not called back.
    ///
    /// # Safety
    /// As [`Memory::foreign`].
    ///
    /// # Errors
    /// The driver knows no device memory there, perhaps because it was freed; the
    /// bytes reach out of its allocation; or it is of another device.
    pub unsafe fn found(context: &Context, at: u64, bytes: usize) -> Result<Arc<Memory>> {
        let place = classify(context, at)?;
        if place.space == Space::Host {
            return Err(DeviceError::Unavailable(format!(
                "the driver knows no memory at {at:#x} (hint: was it freed, or is it host memory?)"
            )));
        }
        if let Space::Device(memory) = place.space
            && memory != context.ordinal()
        {
            return Err(DeviceError::WrongDevice {
                what: "view",
                memory,
                stream: context.ordinal(),
            });
        }
        let start = i128::from(at) - i128::from(place.start);
        let end = start + bytes as i128;
        if end > place.bytes as i128 {
            return Err(DeviceError::Bounds {
                range: start..end,
                bytes: place.bytes,
            });
        }
        let region = Region::Foreign {
            buffer: Some(place.buffer),
        };
        Ok(Memory::with(context, at, bytes, place.space, region))
    }

    pub(crate) fn opened(context: &Context, at: u64, bytes: usize) -> Arc<Memory> {
        let space = Space::Device(context.ordinal());
        Memory::with(context, at, bytes, space, Region::Opened)
    }

    /// Memory of another process's pool, given back in the order of a stream.
    pub(crate) fn lent(home: &Stream, at: u64, bytes: usize) -> Arc<Memory> {
        let context = home.context();
        let space = Space::Device(context.ordinal());
        let home = home.clone();
        Memory::with(context, at, bytes, space, Region::Pool { home })
    }

    /// Allocates mapped memory of several pieces in a row, as memory that grows has.
    ///
    /// # Errors
    /// As [`Memory::allocate`].
    pub fn in_pieces(context: &Context, pieces: &[usize]) -> Result<Arc<Memory>> {
        reap();
        let driver = context.enter()?;
        let prop = property(context);
        let granule = granularity(context, &prop)?;
        let mut made = Vec::new();
        for bytes in pieces {
            let bytes = (*bytes).max(1).next_multiple_of(granule);
            let mut handle = 0;
            // SAFETY: a place for one handle; the property is complete.
            if let Err(error) = unsafe { driver.cuMemCreate(&mut handle, bytes, &prop, 0) } {
                release(&driver, &made);
                return Err(error);
            }
            made.push((handle, bytes));
        }
        let bytes = made.iter().map(|(_, bytes)| bytes).sum();
        Memory::map(context, made, bytes)
    }

    /// Maps pieces in a row, which are then ours, readable and writable.
    pub(crate) fn map(
        context: &Context,
        pieces: Vec<(abi::AllocationHandle, usize)>,
        bytes: usize,
    ) -> Result<Arc<Memory>> {
        let mapped = Memory::map_pieces(context, &pieces, 0);
        let (at, mapped_bytes) = mapped.inspect_err(|_| {
            if let Ok(driver) = context.enter() {
                release(&driver, &pieces);
            }
        })?;
        let region = Region::Mapped {
            pieces,
            mapped_bytes,
        };
        let space = Space::Device(context.ordinal());
        Ok(Memory::with(context, at, bytes, space, region))
    }

    /// Maps a handle that somebody else gives back, at a multiple of `alignment`.
    pub(crate) fn map_kept(
        context: &Context,
        handle: abi::AllocationHandle,
        bytes: usize,
        alignment: usize,
    ) -> Result<Arc<Memory>> {
        let (at, mapped_bytes) = Memory::map_pieces(context, &[(handle, bytes)], alignment)?;
        let region = Region::Mapped {
            pieces: Vec::new(),
            mapped_bytes,
        };
        let space = Space::Device(context.ordinal());
        Ok(Memory::with(context, at, bytes, space, region))
    }

    /// Address and bytes of pieces mapped in a row, readable and writable.
    fn map_pieces(
        context: &Context,
        pieces: &[(abi::AllocationHandle, usize)],
        alignment: usize,
    ) -> Result<(abi::DevicePointer, usize)> {
        let driver = context.enter()?;
        let prop = property(context);
        let mapped_bytes = pieces.iter().map(|(_, bytes)| bytes).sum();
        let mut at = 0;
        let undo = |error, at, mapped| {
            if mapped > 0 {
                // SAFETY: mapped below.
                let _ = unsafe { driver.cuMemUnmap(at, mapped) };
            }
            if at != 0 {
                // SAFETY: reserved below.
                let _ = unsafe { driver.cuMemAddressFree(at, mapped_bytes) };
            }
            error
        };
        // SAFETY: a place for one address.
        unsafe { driver.cuMemAddressReserve(&mut at, mapped_bytes, alignment, 0, 0) }
            .map_err(|error| undo(error, 0, 0))?;
        let mut done = 0;
        for (handle, piece) in pieces {
            // SAFETY: inside a fresh reservation, behind the pieces before.
            unsafe { driver.cuMemMap(at + done as u64, *piece, 0, *handle, 0) }
                .map_err(|error| undo(error, at, done))?;
            done += piece;
        }
        let access = abi::AccessDesc {
            location: prop.location,
            flags: abi::ACCESS_READ_WRITE,
        };
        // SAFETY: the range was just mapped.
        unsafe { driver.cuMemSetAccess(at, mapped_bytes, &access, 1) }
            .map_err(|error| undo(error, at, mapped_bytes))?;
        Ok((at, mapped_bytes))
    }

    fn with(
        context: &Context,
        at: abi::DevicePointer,
        bytes: usize,
        space: Space,
        region: Region,
    ) -> Arc<Memory> {
        Arc::new(Memory {
            context: context.clone(),
            at,
            bytes,
            space,
            region,
            uses: Mutex::new(Vec::new()),
            reached: AtomicU64::new(0),
            bar1_windows: Mutex::default(),
        })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn bar1_windows(&self) -> &Mutex<Bar1Windows> {
        &self.bar1_windows
    }

    /// Whether it was opened for a device ([`Context::reach`]).
    pub(crate) fn is_reached_by(&self, context: &Context) -> bool {
        self.reached.load(Ordering::Relaxed) & bit(context) != 0
    }

    /// It was.
    pub(crate) fn reached_by(&self, context: &Context) {
        self.reached.fetch_or(bit(context), Ordering::Relaxed);
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Size in bytes, as asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lives.
    pub fn space(&self) -> Space {
        self.space
    }

    /// The context it was made in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The address on the host, of pinned or registered memory.
    pub fn host(&self) -> Option<*mut u8> {
        match self.region {
            Region::Pinned(Block { host, .. }) | Region::Registered { host, .. } => Some(host),
            _ => None,
        }
    }

    /// Whether work of a stream may touch it: it is of the stream's device, was opened for
    /// that, or is plain memory of one that is linked.
    pub(crate) fn check_stream(&self, what: &'static str, stream: &Stream) -> Result<()> {
        let here = stream.context();
        let plain = matches!(
            self.region,
            Region::Plain(_) | Region::Managed | Region::Opened | Region::Foreign { .. }
        );
        self.check_lives()?;
        match self.space {
            Space::Device(memory)
                if memory != here.ordinal()
                    && !(plain && here.reaches(memory))
                    && !self.is_reached_by(here) =>
            {
                Err(DeviceError::WrongDevice {
                    what,
                    memory,
                    stream: stream.context().ordinal(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether memory that another library keeps is still what was found.
    ///
    /// # Errors
    /// It was freed, or the driver refuses.
    pub fn check_lives(&self) -> Result<()> {
        match self.region {
            Region::Foreign {
                buffer: Some(found),
            } if buffer(&self.context, self.at)? != found => Err(DeviceError::Freed {
                at: self.at,
                bytes: self.bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Waits on the host for all uses noted so far.
    pub(crate) fn wait_for_uses(&self) -> Result<()> {
        let uses = self.uses.lock().unwrap_or_else(|e| e.into_inner()).clone();
        uses.iter().try_for_each(|(_, event)| event.synchronize())
    }

    /// Notes that work was queued on a stream: invariant 1.
    pub(crate) fn used_on(&self, stream: &Stream, event: &Event) {
        let mut uses = self.uses.lock().unwrap_or_else(|e| e.into_inner());
        match uses.iter_mut().find(|(known, _)| known == stream) {
            Some((_, last)) => *last = event.clone(),
            None => uses.push((stream.clone(), event.clone())),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.bar1_windows));
        let uses = std::mem::take(&mut *self.uses.lock().unwrap_or_else(|e| e.into_inner()));
        let region = std::mem::replace(&mut self.region, Region::Foreign { buffer: None });
        if let Region::Pool { home } = &region
            && home.capture().is_ok_and(|capture| capture.is_none())
        {
            let waited = uses
                .iter()
                .all(|(stream, event)| stream == home || home.wait(event).is_ok());
            if waited && let Ok(driver) = self.context.enter() {
                // SAFETY: the last owner goes, and the stream waits for all uses.
                let _ = unsafe { driver.cuMemFreeAsync(self.at, home.raw()) };
            }
            // Else the device has failed: its memory goes with the context.
            return;
        }
        if matches!(region, Region::Foreign { .. }) {
            return;
        }
        let retired = Retired {
            context: self.context.clone(),
            at: self.at,
            region,
            uses,
        };
        if let Some(later) = retired.free_if_idle() {
            let mut waiting = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
            waiting.push(later);
        }
    }
}

/// A device among those that memory was opened for; 0 where there are too many.
fn bit(context: &Context) -> u64 {
    1u64.checked_shl(context.ordinal() as u32).unwrap_or(0)
}

/// Memory without an owner, on which work is still under way: invariant 2.
struct Retired {
    context: Context,
    at: abi::DevicePointer,
    region: Region,
    /// The last use on each stream.
    uses: Vec<(Stream, Event)>,
}

static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

/// Plain memory of a size class: memory that was dropped and is kept, or whose last use is
/// earlier work of the same stream; else the driver's.
fn plain(stream: &Stream, class: usize) -> Result<Block> {
    let context = stream.context();
    if let Some(block) = context.kept_plain().take(class) {
        return Ok(block);
    }
    let in_order = |retired: &mut Retired| {
        let fits = matches!(&retired.region, Region::Plain(block) if block.serves(class));
        fits && retired.context == *context && retired.uses.iter().all(|(used, _)| used == stream)
    };
    let found = {
        let mut waiting = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
        waiting.extract_if(.., in_order).next()
    };
    if let Some(Region::Plain(block)) = found.map(|retired| retired.region) {
        return Ok(block);
    }
    let driver = context.enter()?;
    let mut at = 0;
    // SAFETY: a place for one address.
    unsafe { driver.cuMemAlloc_v2(&mut at, class) }?;
    Ok(Block {
        host: std::ptr::null_mut(),
        at,
        bytes: class,
    })
}

/// Memory of the host that is registered in this process.
fn registrations() -> MutexGuard<'static, Vec<Weak<Memory>>> {
    static KNOWN: Mutex<Vec<Weak<Memory>>> = Mutex::new(Vec::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find_registered(
    known: &mut Vec<Weak<Memory>>,
    host: *mut u8,
    bytes: usize,
) -> Option<Arc<Memory>> {
    known.retain(|memory| memory.strong_count() > 0);
    let same = |memory: &Arc<Memory>| memory.host() == Some(host) && memory.bytes == bytes;
    known.iter().filter_map(Weak::upgrade).find(same)
}

/// Registers memory that is not known yet.
///
/// # Safety
/// As [`Memory::registered`].
unsafe fn register(
    context: &Context,
    known: &mut Vec<Weak<Memory>>,
    (host, bytes): (*mut u8, usize),
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<Arc<Memory>> {
    let driver = context.enter()?;
    let flags = abi::HOST_REGISTER_PORTABLE | abi::HOST_REGISTER_DEVICEMAP;
    // SAFETY: the caller's contract.
    unsafe { driver.cuMemHostRegister_v2(host.cast(), bytes, flags) }?;
    let region = Region::Registered {
        host,
        _owner: owner,
    };
    let mut at = 0;
    // SAFETY: a place for one address; the memory was just registered, mapped.
    let found = unsafe { driver.cuMemHostGetDevicePointer_v2(&mut at, host.cast(), 0) };
    let memory = Memory::with(context, at, bytes, Space::Pinned, region);
    found?;
    known.push(Arc::downgrade(&memory));
    Ok(memory)
}

impl Context {
    /// Gives the driver the plain memory of the device that is kept although nobody has it,
    /// for other libraries to use; returns how many bytes that were. The driver may wait for
    /// all work of the device, so nothing is given back while the host holds a stream, or a graph
    /// with messages runs. An allocation of this crate that finds no memory does so by itself.
    pub fn give_back_kept(&self) -> usize {
        let freed = self.unless_held(|| {
            let driver = self.enter().ok()?;
            let blocks = self.kept_plain().drain();
            for block in &blocks {
                // SAFETY: nobody owns it and nothing runs on it.
                let _ = unsafe { driver.cuMemFree_v2(block.at) };
            }
            Some(blocks.iter().map(|block| block.bytes).sum())
        });
        freed.flatten().unwrap_or(0)
    }
}

/// Frees what was dropped while work on it was under way and is idle now.
pub fn reap() {
    let idle: Vec<Retired> = {
        let mut waiting = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
        waiting
            .extract_if(.., |retired| retired.is_idle())
            .collect()
    };
    let later: Vec<Retired> = idle.into_iter().filter_map(Retired::free_if_idle).collect();
    if !later.is_empty() {
        let mut waiting = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
        waiting.extend(later);
    }
}

impl Retired {
    /// Failed work touches memory no more.
    fn is_idle(&self) -> bool {
        // Giving back to a pool is work on its stream, not for a capture.
        if let Region::Pool { home } = &self.region
            && !home.capture().is_ok_and(|capture| capture.is_none())
        {
            return false;
        }
        self.uses
            .iter()
            .all(|(_, event)| event.is_passed().unwrap_or(true))
    }

    /// Whether the driver knows that it is idle.
    fn is_settled(&self) -> bool {
        self.uses
            .iter()
            .all(|(_, event)| event.is_settled().unwrap_or(true))
    }

    /// Frees it, or gives it back because work is under way or a stream is held by the host:
    /// the driver's free may wait for that, and the host for us.
    fn free_if_idle(self) -> Option<Retired> {
        if !self.is_idle() {
            return Some(self);
        }
        if matches!(self.region, Region::Pool { .. }) {
            self.free();
            return None;
        }
        let context = self.context.clone();
        let given = match self.region {
            Region::Pinned(block) => context.kept_pinned().give(block),
            Region::Plain(block) => context.kept_plain().give(block),
            _ => false,
        };
        if given {
            return None;
        }
        if !self.is_settled() {
            return Some(self);
        }
        let mut kept = Some(self);
        let _freed = context.unless_held(|| kept.take().map(Retired::free));
        kept
    }

    /// What fails here is reported by the next use of the device.
    fn free(self) {
        let Ok(driver) = self.context.enter() else {
            return;
        };
        match self.region {
            Region::Plain(_) | Region::Managed => {
                // SAFETY: nobody owns it and nothing runs on it.
                let _ = unsafe { driver.cuMemFree_v2(self.at) };
            }
            Region::Pinned(block) => {
                // SAFETY: as above.
                let _ = unsafe { driver.cuMemFreeHost(block.host.cast()) };
            }
            Region::Registered { host, .. } => {
                // SAFETY: as above; its owner goes afterwards.
                let _ = unsafe { driver.cuMemHostUnregister(host.cast()) };
            }
            Region::Opened => {
                // SAFETY: as above.
                let _ = unsafe { driver.cuIpcCloseMemHandle(self.at) };
            }
            Region::Mapped {
                pieces,
                mapped_bytes,
            } => {
                // SAFETY: as above.
                let _ = unsafe { driver.cuMemUnmap(self.at, mapped_bytes) };
                // SAFETY: nothing is mapped there any more.
                let _ = unsafe { driver.cuMemAddressFree(self.at, mapped_bytes) };
                release(&driver, &pieces);
            }
            Region::Pool { home } => {
                // SAFETY: as above.
                let _ = unsafe { driver.cuMemFreeAsync(self.at, home.raw()) };
            }
            Region::Foreign { .. } => {}
        }
    }
}

/// Gives handles of ours back.
fn release(driver: &Driver, pieces: &[(abi::AllocationHandle, usize)]) {
    for (handle, _) in pieces {
        // SAFETY: the handle is ours.
        let _ = unsafe { driver.cuMemRelease(*handle) };
    }
}

fn property(context: &Context) -> abi::AllocationProp {
    abi::AllocationProp {
        kind: abi::ALLOCATION_PINNED,
        handle_kinds: abi::HANDLE_POSIX_FD,
        location: abi::Location {
            kind: abi::LOCATION_DEVICE,
            id: context.device(),
        },
        win32: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

fn granularity(context: &Context, prop: &abi::AllocationProp) -> Result<usize> {
    let driver = context.enter()?;
    let mut bytes = 0;
    // SAFETY: a place for one number; the property is complete.
    unsafe { driver.cuMemGetAllocationGranularity(&mut bytes, prop, abi::GRANULARITY_MINIMUM) }?;
    Ok(bytes.max(1))
}
