//! Devices and their primary contexts.
//!
//! # Invariants
//! 1. A context is the device's primary one, retained once per process and
//!    shared with all other users of the device in it (the runtime API, other
//!    libraries). It is kept until the process ends and never reset: making one
//!    anew takes long, and handles of the old one would be void.
//! 2. Whatever context the thread had before a call is current after it.

use crate::bar1::Bar1Windows;
use crate::driver::{Driver, abi};
use crate::error::{DeviceError, Result};
use crate::graph::Captures;
use crate::kept::{Kept, MOST_PINNED_BYTES, most_plain_bytes};
use crate::launch::Kernels;
use crate::stream::Stream;
use crate::stream_semaphore::StreamSemaphores;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_uint};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Thread blocks per multiprocessor that keep it full: 2048 threads. A kernel of which fewer
/// are resident at once gets fewer (`launch.rs`).
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Allocations of other devices of which it is remembered that they were opened.
const MOST_OPENED: usize = 4096;

/// What a device is, without a context on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Names it in all processes: of a slice of a GPU (MIG), the slice.
    pub id: DeviceId,
    /// Its place on the PCI bus, if it has one; slices of a GPU share it.
    pub pci: Option<String>,
    /// Its memory, in bytes.
    pub memory_bytes: usize,
    /// Compute capability: major, minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// Kinds of memory: stream-ordered pools.
    pub pools: bool,
    /// Memory by mapping.
    pub mapping: bool,
    /// Mapped memory goes to other processes as a file descriptor.
    pub descriptors: bool,
    /// Managed memory.
    pub managed: bool,
    /// Kernels of several processes run on it at once: the multi-process service (MPS) is
    /// on. Else processes take turns.
    pub mps: bool,
    /// Devices whose memory this one reaches.
    pub peers: Vec<i32>,
}

impl DeviceInfo {
    /// [`DeviceInfo::id`] as text: what `nvidia-smi -L` says behind `GPU-` or `MIG-`.
    pub fn uuid(&self) -> String {
        let mut text = String::new();
        for (at, byte) in self.id.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        text
    }
}

/// All devices, as they are.
///
/// # Errors
/// No driver, or it refuses.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let driver = Driver::get()?;
    let count = driver.device_count()? as i32;
    if count == 0 {
        return Err(DeviceError::Unavailable(
            "the driver shows no device".into(),
        ));
    }
    (0..count)
        .map(|ordinal| info(driver, ordinal, count))
        .collect()
}

/// Number of devices that the driver shows.
///
/// # Errors
/// No driver, or it refuses.
pub fn device_count() -> Result<usize> {
    Driver::get()?.device_count()
}

fn info(driver: &Driver, ordinal: i32, count: i32) -> Result<DeviceInfo> {
    let device = device(driver, ordinal)?;
    let flag = |which| attribute(driver, device, which).is_ok_and(|value| value != 0);
    let mut memory_bytes = 0;
    // SAFETY: a place for one number.
    unsafe { driver.cuDeviceTotalMem_v2(&mut memory_bytes, device) }?;
    let mut peers = Vec::new();
    for peer in (0..count).filter(|&peer| peer != ordinal) {
        let mut can = 0;
        let other = self::device(driver, peer)?;
        // SAFETY: a place for one number.
        unsafe { driver.cuDeviceCanAccessPeer(&mut can, device, other) }?;
        if can != 0 {
            peers.push(peer);
        }
    }
    let name = text(|at, length| {
        // SAFETY: room for `length` characters.
        unsafe { driver.cuDeviceGetName(at, length, device) }
    })?;
    let pci = text(|at, length| {
        // SAFETY: room for `length` characters.
        unsafe { driver.cuDeviceGetPCIBusId(at, length, device) }
    });
    Ok(DeviceInfo {
        ordinal,
        name,
        id: uuid(driver, device)?,
        pci: pci.ok(),
        memory_bytes,
        capability: (
            attribute(driver, device, abi::DEVICE_CAPABILITY_MAJOR)?,
            attribute(driver, device, abi::DEVICE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(driver, device, abi::DEVICE_MULTIPROCESSORS)?,
        pools: flag(abi::DEVICE_MEMORY_POOLS),
        mapping: flag(abi::DEVICE_VIRTUAL_MEMORY),
        descriptors: flag(abi::DEVICE_POSIX_HANDLES),
        managed: flag(abi::DEVICE_MANAGED_MEMORY),
        mps: has_mps(driver, device),
        peers,
    })
}

fn device(driver: &Driver, ordinal: i32) -> Result<abi::Device> {
    let mut device = 0;
    // SAFETY: a place for one number.
    unsafe { driver.cuDeviceGet(&mut device, ordinal) }?;
    Ok(device)
}

fn attribute(driver: &Driver, device: abi::Device, which: c_uint) -> Result<i32> {
    let mut value = 0;
    // SAFETY: a place for one number.
    unsafe { driver.cuDeviceGetAttribute(&mut value, which, device) }?;
    Ok(value)
}

/// Whether processes share the device by the multi-process service. Drivers before 12.4 do
/// not tell; then it is on where its control pipe is, as its own documentation has it.
fn has_mps(driver: &Driver, device: abi::Device) -> bool {
    attribute(driver, device, abi::DEVICE_MPS).map_or_else(
        |_| {
            let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
            let folder = folder.unwrap_or_else(|| "/tmp/nvidia-mps".into());
            std::path::Path::new(&folder).join("control").exists()
        },
        |on| on != 0,
    )
}

fn text(fill: impl FnOnce(*mut c_char, i32) -> Result<()>) -> Result<String> {
    let mut bytes = [0u8; 256];
    fill(bytes.as_mut_ptr().cast(), 255)?;
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// A device's UUID, of a slice its own. Drivers before 11.4 have no slices' UUIDs, and tell
/// that of the GPU.
fn uuid(driver: &Driver, device: abi::Device) -> Result<DeviceId> {
    let mut id = abi::Uuid::default();
    match driver.has("cuDeviceGetUuid_v2") {
        // SAFETY: a place for one UUID.
        true => unsafe { driver.cuDeviceGetUuid_v2(&mut id, device) }?,
        // SAFETY: as above.
        false => unsafe { driver.cuDeviceGetUuid(&mut id, device) }?,
    }
    Ok(id.0)
}

/// The primary context of a device; cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    driver: &'static Driver,
    ordinal: i32,
    device: abi::Device,
    context: abi::Context,
    multiprocessors: i32,
    capability: (i32, i32),
    mps: bool,
    multicast: bool,
    pools: bool,
    shares_pools: bool,
    /// The pool that other processes may open.
    shared_pool: OnceLock<Result<abi::MemoryPool>>,
    events: Mutex<Vec<abi::Event>>,
    kernels: Kernels,
    captures: Captures,
    semaphores: StreamSemaphores,
    /// The driver has refused to have streams store words.
    no_words: AtomicBool,
    /// Whether first uses were done ahead.
    prepared: Mutex<bool>,
    /// For messages, by number; nobody uses them now.
    streams: Mutex<BTreeMap<u64, Stream>>,
    /// Numbers of streams for messages.
    stream_numbers: AtomicU64,
    pinned: Kept,
    plain: Kept,
    /// Devices whose plain memory this one reaches, as bits.
    linked: AtomicU64,
    /// Multiprocessors for packing; 0: all.
    packing: AtomicU32,
    id: DeviceId,
    /// What is known of other devices.
    links: Mutex<Vec<(DeviceId, Link)>>,
    /// Allocations of other devices that were opened for this one, by number.
    opened: Mutex<BTreeSet<u64>>,
    /// What the processor reaches of memory that other libraries keep.
    bar1_windows: Mutex<Bar1Windows>,
}

/// Names a device in all processes, whatever `CUDA_VISIBLE_DEVICES` leaves each to see: its
/// UUID; of a slice of a GPU (MIG), the slice's.
pub type DeviceId = [u8; 16];

/// How a device reaches another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It is the same.
    Same,
    /// Its kernels can be given the other's memory.
    Linked,
    /// This process does not see the other: whether its memory can be opened is known when
    /// that was tried once ([`Context::tried`]).
    Hidden,
    /// They cannot.
    Apart,
}

impl Context {
    /// The context of device `ordinal`.
    ///
    /// # Errors
    /// No driver, no such device, or the driver refuses.
    pub fn new(ordinal: i32) -> Result<Context> {
        static CONTEXTS: Mutex<Vec<Context>> = Mutex::new(Vec::new());
        let driver = Driver::get()?;
        let mut contexts = CONTEXTS.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = contexts.iter().find(|known| known.ordinal() == ordinal) {
            return Ok(known.clone());
        }
        let device = device(driver, ordinal)?;
        let multiprocessors = attribute(driver, device, abi::DEVICE_MULTIPROCESSORS)?;
        let capability = (
            attribute(driver, device, abi::DEVICE_CAPABILITY_MAJOR)?,
            attribute(driver, device, abi::DEVICE_CAPABILITY_MINOR)?,
        );
        let pools = attribute(driver, device, abi::DEVICE_MEMORY_POOLS).is_ok_and(|v| v != 0);
        let descriptors = abi::HANDLE_POSIX_FD as i32;
        let shares_pools = pools
            && attribute(driver, device, abi::DEVICE_POOL_HANDLES)
                .is_ok_and(|kinds| kinds & descriptors != 0);
        let mut context = abi::Context::NULL;
        // SAFETY: a place for one context; kept until the process ends.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        let context = Context(Arc::new(Inner {
            driver,
            ordinal,
            device,
            context,
            multiprocessors,
            capability,
            mps: has_mps(driver, device),
            multicast: attribute(driver, device, abi::DEVICE_MULTICAST).is_ok_and(|v| v != 0),
            pools,
            shares_pools,
            shared_pool: OnceLock::new(),
            events: Mutex::new(Vec::new()),
            kernels: Kernels::default(),
            captures: Captures::default(),
            semaphores: StreamSemaphores::default(),
            no_words: AtomicBool::new(false),
            prepared: Mutex::new(false),
            streams: Mutex::default(),
            stream_numbers: AtomicU64::new(0),
            pinned: Kept::new(MOST_PINNED_BYTES),
            plain: Kept::new(most_plain_bytes()),
            linked: AtomicU64::new(0),
            id: uuid(driver, device)?,
            links: Mutex::default(),
            opened: Mutex::default(),
            bar1_windows: Mutex::default(),
            packing: AtomicU32::new(0),
        }));
        if context.has_pools() {
            context.keep_pool_memory();
        }
        contexts.push(context.clone());
        Ok(context)
    }

    /// The device's number.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// Streaming multiprocessors of the device.
    pub fn multiprocessors(&self) -> u32 {
        self.0.multiprocessors.max(1) as u32
    }

    /// Leaves packing, and what else a [`Packer`](crate::Packer) does, at most so many
    /// multiprocessors from now on, so that kernels of the program keep the others. No
    /// launch has more thread blocks than that, whoever asks for more: the device may
    /// place each on a multiprocessor of its own. `None`: all.
    pub fn limit_packing(&self, multiprocessors: Option<u32>) {
        let limit = multiprocessors.map_or(0, |limit| limit.max(1));
        self.0.packing.store(limit, Ordering::Relaxed);
    }

    /// What [`Context::limit_packing`] was told.
    pub fn packing_limit(&self) -> Option<u32> {
        let limit = self.0.packing.load(Ordering::Relaxed);
        (limit != 0).then_some(limit)
    }

    /// Most thread blocks of a launch: one for each multiprocessor under a limit, else
    /// as many as fill the device.
    pub fn packing_blocks(&self) -> u32 {
        let full = self.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR;
        self.packing_limit().unwrap_or(full)
    }

    /// Compute capability: major, minor.
    pub fn capability(&self) -> (i32, i32) {
        self.0.capability
    }

    /// Whether kernels of several processes run at once: the multi-process service is on.
    pub fn has_mps(&self) -> bool {
        self.0.mps
    }

    /// Whether a switch stores to several devices at once for this one
    /// ([`MulticastGroup`](crate::MulticastGroup)).
    pub fn has_multicast(&self) -> bool {
        self.0.multicast
    }

    /// Whether the device has stream-ordered pools.
    pub fn has_pools(&self) -> bool {
        self.0.pools
    }

    /// Whether other processes may open pools of the device.
    pub fn shares_pools(&self) -> bool {
        self.0.shares_pools
    }

    pub(crate) fn shared_pool_or(
        &self,
        make: impl FnOnce() -> Result<abi::MemoryPool>,
    ) -> Result<abi::MemoryPool> {
        self.0.shared_pool.get_or_init(make).clone()
    }

    /// Whether a pool is the one that other processes may open.
    pub(crate) fn is_shared_pool(&self, pool: u64) -> bool {
        let own = self.0.shared_pool.get();
        matches!(own, Some(Ok(own)) if own.0 as u64 == pool)
    }

    /// Lets kernels and copies of this device reach the memory of another: plain
    /// memory, as [`Kind::Plain`](crate::Kind::Plain) is; a pool has rights of its own.
    ///
    /// # Errors
    /// They are not linked, or the driver refuses.
    pub fn enable_peer(&self, peer: &Context) -> Result<()> {
        let driver = self.enter()?;
        // SAFETY: both contexts are retained.
        match unsafe { driver.cuCtxEnablePeerAccess(peer.0.context, 0) } {
            Err(error) if error.code() == Some(abi::PEER_ACCESS_ALREADY_ENABLED) => {}
            done => done?,
        }
        let bit = 1u64.checked_shl(peer.ordinal() as u32).unwrap_or(0);
        self.0.linked.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    /// The device's name in all processes.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// How this device reaches another; asked of the driver once.
    pub fn link(&self, other: &DeviceId) -> Link {
        if *other == self.0.id {
            return Link::Same;
        }
        let mut links = self.0.links.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, link)) = links.iter().find(|(known, _)| known == other) {
            return *link;
        }
        let link = self.ask_link(other).unwrap_or(Link::Apart);
        links.push((*other, link));
        link
    }

    fn ask_link(&self, other: &DeviceId) -> Result<Link> {
        let driver = self.0.driver;
        for ordinal in 0..driver.device_count()? as i32 {
            let device = device(driver, ordinal)?;
            if uuid(driver, device)? == *other {
                let mut can = 0;
                // SAFETY: a place for one number.
                unsafe { driver.cuDeviceCanAccessPeer(&mut can, self.0.device, device) }?;
                return Ok(match can {
                    0 => Link::Apart,
                    _ => Link::Linked,
                });
            }
        }
        Ok(Link::Hidden)
    }

    /// Memory of another process on a device was opened, or could not be: decides once how
    /// a device that this process does not see is reached. Memory that has run out, or an
    /// address that is in use, decides nothing.
    pub fn tried<T>(&self, other: &DeviceId, opened: &Result<T>) {
        let passing = |error: &DeviceError| error.is_out_of_memory() || error.is_already_mapped();
        let link = match opened {
            Ok(_) => Link::Linked,
            Err(error) if error.code().is_some() && !passing(error) => Link::Apart,
            Err(_) => return,
        };
        let mut links = self.0.links.lock().unwrap_or_else(|e| e.into_inner());
        let known = links.iter_mut().find(|(known, _)| known == other);
        if let Some((_, known @ Link::Hidden)) = known {
            *known = link;
        }
    }

    /// What the processor reaches of memory on the device that other libraries keep.
    pub(crate) fn bar1_windows_of_others(&self) -> &Mutex<Bar1Windows> {
        &self.0.bar1_windows
    }

    /// Does something once for an allocation of another device, by its number.
    pub(crate) fn opens_once(
        &self,
        identity: u64,
        open: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut opened = self.0.opened.lock().unwrap_or_else(|e| e.into_inner());
        if opened.contains(&identity) {
            return Ok(());
        }
        open()?;
        if opened.len() >= MOST_OPENED {
            opened.clear(); // asking again does no harm
        }
        opened.insert(identity);
        Ok(())
    }

    /// Whether [`Context::enable_peer`] was called for a device.
    pub(crate) fn reaches(&self, ordinal: i32) -> bool {
        let bit = 1u64.checked_shl(ordinal as u32).unwrap_or(0);
        self.0.linked.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn device(&self) -> abi::Device {
        self.0.device
    }

    /// The kernels of this device.
    pub(crate) fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    /// Words of semaphores that nobody uses.
    pub(crate) fn semaphores(&self) -> &StreamSemaphores {
        &self.0.semaphores
    }

    /// Whether the host holds a stream, or a graph may have it do so: work that is queued behind
    /// an event may then wait for a message.
    pub fn holds_streams(&self) -> bool {
        self.semaphores().any_holds()
    }

    /// Whether streams can store words, as far as it is known.
    pub(crate) fn can_raise_words(&self) -> bool {
        !self.0.no_words.load(Ordering::Relaxed) && self.0.driver.has("cuStreamWriteValue32_v2")
    }

    pub(crate) fn cannot_raise_words(&self) {
        self.0.no_words.store(true, Ordering::Relaxed);
    }

    pub(crate) fn preparation(&self) -> &Mutex<bool> {
        &self.0.prepared
    }

    /// Pinned memory that nobody has.
    pub(crate) fn kept_pinned(&self) -> &Kept {
        &self.0.pinned
    }

    /// Plain memory of the device that nobody has.
    pub(crate) fn kept_plain(&self) -> &Kept {
        &self.0.plain
    }

    /// Captures of streams of this device.
    pub(crate) fn captures(&self) -> &Captures {
        &self.0.captures
    }

    /// Makes this context current until the guard goes: many calls in between ask the
    /// driver once, not each. Nothing else may change the thread's context meanwhile.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn hold(&self) -> Result<Held> {
        let entered = self.enter()?;
        let before = HELD.replace(Some(self.ordinal()));
        Ok(Held {
            before,
            _entered: entered,
            _thread: PhantomData,
        })
    }

    /// Makes this context current until the guard goes: invariant 2.
    pub(crate) fn enter(&self) -> Result<Entered> {
        let driver = self.0.driver;
        if HELD.get() == Some(self.ordinal()) {
            return Ok(Entered {
                driver,
                pushed: false,
                held: None,
            });
        }
        let mut current = abi::Context::NULL;
        // SAFETY: a place for one context.
        unsafe { driver.cuCtxGetCurrent(&mut current) }?;
        let pushed = current != self.0.context;
        if pushed {
            // SAFETY: the context is retained while `self` lives.
            unsafe { driver.cuCtxPushCurrent_v2(self.0.context) }?;
        }
        // What is held below is not current meanwhile.
        let held = if pushed { HELD.take() } else { None };
        Ok(Entered {
            driver,
            pushed,
            held,
        })
    }

    /// A stream for messages that nobody uses now, or a new one ([`Stream::uncaptured`]). All
    /// ranks of the process share them: to make one may wait until none is held, so a rank that
    /// comes later must find some. The first made of those that are free: a driver gives streams
    /// the hardware's queues in turn, so those in use share none until there are more than queues.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn take_stream(&self) -> Result<Stream> {
        let kept = self.kept_streams().pop_first();
        kept.map_or_else(|| Stream::uncaptured(self), |(_, stream)| Ok(stream))
    }

    /// Gives back a stream of [`Context::take_stream`], whose work is done.
    pub fn give_stream(&self, stream: Stream) {
        self.kept_streams().insert(stream.number(), stream);
    }

    /// The number of the next stream for messages.
    pub(crate) fn next_stream_number(&self) -> u64 {
        self.0.stream_numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn kept_streams(&self) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
        self.0.streams.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An event of the pool, or a new one, without timing.
    pub(crate) fn take_event(&self) -> Result<abi::Event> {
        let mut pool = self.0.events.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(event) = pool.pop() {
            return Ok(event);
        }
        drop(pool);
        let driver = self.enter()?;
        let mut event = abi::Event::NULL;
        // SAFETY: a place for one event.
        unsafe { driver.cuEventCreate(&mut event, abi::EVENT_DISABLE_TIMING) }?;
        Ok(event)
    }

    /// Gives an event back to the pool.
    pub(crate) fn give_event(&self, event: abi::Event) {
        let mut pool = self.0.events.lock().unwrap_or_else(|e| e.into_inner());
        pool.push(event);
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({})", self.ordinal())
    }
}

thread_local! {
    /// The device whose context this thread holds.
    static HELD: Cell<Option<i32>> = const { Cell::new(None) };
}

/// A context that stays current on this thread.
#[must_use = "the context is current while it lives"]
pub struct Held {
    before: Option<i32>,
    _entered: Entered,
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// A context that is current on this thread.
pub(crate) struct Entered {
    driver: &'static Driver,
    pushed: bool,
    /// Of the context below, if this one was pushed over it.
    held: Option<i32>,
}

impl std::ops::Deref for Entered {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            if self.held.is_some() {
                HELD.set(self.held);
            }
            let mut popped = abi::Context::NULL;
            // SAFETY: `enter` pushed.
            let _ = unsafe { self.driver.cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
