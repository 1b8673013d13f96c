//! Device memory in messages: resources of a transfer and of a rank.
//!
//! The engine moves bytes of the host. So a message in device memory goes through host
//! memory that kernels reach ([`pool`]): they pack into it and unpack from it, piece by
//! piece, while other pieces are in flight ([`bounce`]). Between processes that share
//! memory a piece is packed by the one and unpacked by the other where it lies. Where a
//! kernel reaches both ends it copies from layout to layout ([`direct`]); memory of other
//! processes is opened for that ([`export`], [`imports`]).
//!
//! # Invariants
//! 1. Nothing here waits on the host, but for what is named "blocking" and for
//!    transfers that are given up in the middle.
//! 2. A kernel of a transfer runs behind the ready event from which the user's buffer is
//!    valid, and on a stream that no other transfer uses meanwhile: one that waits for
//!    its producer delays no other.
//!
//! # Sources
//! The copy-in/out protocol of W. Wu, G. Bosilca, R. vandeVaart, S. Jeaugey,
//! J. Dongarra, "GPU-Aware Non-contiguous Data Movement In Open MPI", HPDC 2016.

pub mod bar1;
pub mod bounce;
pub mod crossing;
pub mod descriptors;
pub mod direct;
pub mod export;
pub mod imports;
pub mod pool;
pub mod settings;
mod shares;

use crate::protocol::cost::LinkCosts;
use crate::protocol::device::{
    Class, End, LEAST_DEVICE_SLOT_BYTES, Model, Reductions, Space, Turns,
};
use crate::protocol::reach::Placement;
use crate::protocol::select::Pipelining;
use descriptors::Descriptors;
use imports::{Imports, Limits, Room};
use osier_datatype::{Datatype, Layout};
use osier_kernels::handle::{
    EventHandle, Key, Made, OpenPool, Piece, export_pieces, import_pieces,
};
use osier_kernels::{
    After, Context, DeviceError, DeviceId, DeviceView, Event, Memory, Ordered, Packer, Stream,
};
use osier_transports::shm::ShmRank;
use pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What a view of a device's memory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Only its description is read.
    Inspect,
    /// To send it.
    Read,
    /// To receive into it.
    Write,
}

/// What a transfer holds of a device's memory: the allocation lives as long.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The transfer returns the error, if it could not be handed over.
    view: Result<Ordered<DeviceView<u8>>, DeviceError>,
    layout: Layout,
    count: usize,
    /// It was valid when it was handed over.
    ready: bool,
}

/// Views of it move between threads, and another rank of the process reads it.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<DeviceMemory>();
};

impl DeviceMemory {
    /// A view, valid from a ready event on that is fixed now, or that is left open because
    /// nothing will be moved.
    pub fn new<T: Datatype>(view: Ordered<DeviceView<T>>, use_: Use) -> DeviceMemory {
        let (layout, count) = (view.buffer().layout().clone(), view.buffer().count());
        // The calls that follow return an error of it.
        let context = view.buffer().memory().context().clone();
        let _held = (use_ != Use::Inspect).then(|| context.hold().ok());
        let ready = use_ != Use::Inspect && is_ready(view.ready_event());
        let view = view.map(DeviceView::erased);
        let view = match ready {
            true => Ordered::new(view.into_inner(), After::Now),
            false => view,
        };
        DeviceMemory {
            ready,
            view: match use_ {
                Use::Inspect => Ok(view),
                Use::Write if layout.self_overlaps(count) => Err(DeviceError::Overlap { count }),
                Use::Read | Use::Write => view.settled(),
            },
            layout,
            count,
        }
    }

    /// Memory that cannot be handed over.
    pub fn failed(error: DeviceError, layout: Layout) -> DeviceMemory {
        DeviceMemory {
            view: Err(error),
            layout,
            count: 0,
            ready: false,
        }
    }

    /// Bytes of a device as elements that they are whole ones of.
    pub fn of_elements(view: Ordered<DeviceView<u8>>, element: &Layout) -> DeviceMemory {
        let whole = view.buffer().packed_bytes() / element.size().max(1) * element.size();
        let run = view.buffer().run(0..whole, element);
        let count = run.as_ref().map_or(0, DeviceView::count);
        let none = || DeviceError::Unavailable("elements with gaps".into());
        DeviceMemory {
            view: run.ok_or_else(none).map(|run| view.map(|_| run)),
            layout: element.clone(),
            count,
            ready: false,
        }
    }

    /// Some of its packed bytes as elements of a layout without gaps, if they are one run
    /// of whole ones.
    pub fn run(&self, packed: Range<usize>, element: &Layout) -> Option<DeviceMemory> {
        let view = self.view.as_ref().ok()?;
        let run = view.buffer().run(packed, element)?;
        Some(DeviceMemory {
            layout: element.clone(),
            count: run.count(),
            view: Ok(view.clone().map(|_| run)),
            ready: self.ready,
        })
    }

    /// Some of its packed bytes, if they are whole instances.
    pub fn section(&self, packed: Range<usize>) -> Option<DeviceMemory> {
        let view = self.view.as_ref().ok()?;
        let part = view.buffer().instances(packed)?;
        Some(DeviceMemory {
            layout: self.layout.clone(),
            count: part.count(),
            view: Ok(view.clone().map(|_| part)),
            ready: self.ready,
        })
    }

    /// Address of its first instance there, or 0.
    pub fn origin(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.buffer().origin())
    }

    /// Packed bytes.
    pub fn bytes(&self) -> usize {
        self.layout.size() * self.count
    }

    /// Instances of a layout.
    pub fn instances(&self) -> (&Layout, usize) {
        (&self.layout, self.count)
    }

    /// What a message of it costs like.
    pub fn end(&self) -> End {
        End {
            space: Space::Device,
            class: Class::of(&self.layout, self.count),
        }
    }

    /// Whether it can be used.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.view().map(drop)
    }

    /// Whether memory of another library was not freed.
    pub fn check_lives(&self) -> Result<(), DeviceError> {
        self.view()?.buffer().memory().check_lives()
    }

    /// Whether its ready event has not come: some stream's work, which
    /// may wait for anything.
    pub fn is_late(&self) -> bool {
        self.view()
            .is_ok_and(|view| Late::of(view).is_late() == Ok(true))
    }

    pub fn view(&self) -> Result<&Ordered<DeviceView<u8>>, DeviceError> {
        self.view.as_ref().map_err(Clone::clone)
    }
}

/// What a message goes through that cannot be copied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Host memory.
    Host,
    /// Slots on the sender's device.
    Device,
}

/// What a rank keeps of the devices that its messages have touched.
#[derive(Debug, Default)]
pub struct Devices {
    known: Mutex<Vec<Arc<Device>>>,
    /// Host memory that kernels reach.
    pool: Arc<Pool>,
    /// Memory of each device for slots, in bytes.
    slots: usize,
    /// Ranks of the job.
    ranks: usize,
    pipelining: Mutex<Pipelining>,
    /// Where reductions combine.
    reductions: Mutex<Reductions>,
    /// Most bytes of an eager message; `None`: as the costs say.
    eager_max: Option<usize>,
    /// Predicts what messages take.
    model: Option<Model>,
    /// Transfers with work on a device that is not known to be complete.
    under_way: AtomicUsize,
    /// What was opened of other processes.
    imports: Mutex<Imports>,
    /// What was asked for of them.
    pub descriptors: Descriptors,
    /// Who says what is said.
    rank: OnceLock<u32>,
    said: Mutex<Vec<(Made, Placement, Through)>>,
}

impl Devices {
    /// Of a rank whose peers share memory with it, or not. A wrong limit is an error
    /// where a rank joins its job.
    pub fn new(rank: Option<ShmRank>, costs: &LinkCosts) -> Devices {
        let limit = settings::pinned_limit().unwrap_or(settings::PINNED_LIMIT_BYTES);
        let mut model = Model::unlimited(costs);
        // Some messages at a time.
        model.limits.memory = model.limits.memory.min(limit / 4);
        let slots = settings::device_slots().unwrap_or(settings::DEVICE_SLOTS_BYTES);
        let (least, most) = (2 * LEAST_DEVICE_SLOT_BYTES, model.limits.device_memory);
        model.limits.device_memory = (slots / 4).max(least).min(most);
        Devices {
            ranks: rank.as_ref().map_or(1, |rank| rank.job().ranks()),
            pool: Arc::new(Pool::new(rank, limit)),
            slots,
            pipelining: Mutex::new(settings::pipeline().unwrap_or_default()),
            reductions: Mutex::new(settings::device_reductions().unwrap_or_default()),
            eager_max: settings::device_eager().unwrap_or_default(),
            model: Some(model),
            ..Devices::default()
        }
    }

    /// When messages come in slots on the device.
    pub fn pipelining(&self) -> Pipelining {
        *lock(&self.pipelining)
    }

    /// Largest message that goes at once, given the one that the costs say.
    pub fn eager_max(&self, costs: usize) -> usize {
        self.eager_max.unwrap_or(costs)
    }

    /// Says when.
    pub fn pipeline(&self, when: Pipelining) {
        *lock(&self.pipelining) = when;
    }

    /// Where reductions of a device's memory combine.
    pub fn reductions(&self) -> Reductions {
        *lock(&self.reductions)
    }

    /// Says where.
    pub fn reduce(&self, where_: Reductions) {
        *lock(&self.reductions) = where_;
    }

    /// Predicts what messages take.
    pub fn model(&self) -> Model {
        (self.model).unwrap_or_else(|| Model::unlimited(&LinkCosts::default()))
    }

    /// Host memory that kernels reach.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What a rank keeps, as the environment has it.
    pub fn configure(&self, rank: u32, limits: Limits) {
        let _ = self.rank.set(rank);
        lock(&self.imports).limit(limits);
    }

    /// The rank, once it is known.
    pub fn rank(&self) -> Option<u32> {
        self.rank.get().copied()
    }

    /// Memory of another process; `None` if there is no room for it now.
    pub fn open(
        &self,
        owner: (u32, i32),
        context: &Context,
        key: &Key,
        given: &[Piece],
    ) -> Result<Option<Arc<Memory>>, DeviceError> {
        let mut imports = lock(&self.imports);
        let opened = imports.get(owner, key, || key.open(context, given));
        let opened = match opened {
            Err(e) if e.is_already_mapped() => {
                // The exporter has freed what is open there, and allocated anew.
                let closed = imports.sweep_overlapping(owner, key);
                drop(closed);
                osier_kernels::reap();
                imports.get(owner, key, || key.open(context, given))
            }
            opened => opened,
        };
        if !matches!(opened, Ok(None)) {
            context.tried(&key.device, &opened);
        }
        opened
    }

    /// The pool of another process's memory: found, or opened by its descriptor.
    pub fn open_pool(
        &self,
        owner: (u32, i32),
        context: &Context,
        key: &Key,
        given: &[Piece],
    ) -> Result<OpenPool, DeviceError> {
        let mut imports = lock(&self.imports);
        if let Some(known) = imports.pool(owner, key) {
            return Ok(known);
        }
        let [(_, descriptor)] = given else {
            let why = "its pool came without a descriptor";
            return Err(DeviceError::Unavailable(why.into()));
        };
        let pool = OpenPool::open(context, descriptor);
        context.tried(&key.device, &pool);
        let pool = pool?;
        imports.keep_pool(owner, key, &pool);
        Ok(pool)
    }

    /// The device memory of another rank's slots: found, or opened by the key that it
    /// has sent.
    pub fn open_slots(
        &self,
        owner: (u32, i32),
        context: &Context,
        device: &DeviceId,
        given: Option<&[Piece]>,
    ) -> Result<Option<Arc<Memory>>, DeviceError> {
        let mut imports = lock(&self.imports);
        if let Some(known) = imports.slots(owner, device) {
            return Ok(Some(known));
        }
        let Some(given) = given else {
            return Ok(None);
        };
        let memory = import_pieces(context, given);
        context.tried(device, &memory);
        let memory = memory?;
        imports.keep_slots(owner, device, &memory);
        Ok(Some(memory))
    }

    /// Whether memory of other processes is opened at all.
    pub fn opens(&self) -> bool {
        lock(&self.imports).opens()
    }

    /// Bytes of slots on devices that transfers have now.
    pub fn used_slots(&self) -> usize {
        let known = lock(&self.known);
        known.iter().map(|device| device.slots.used()).sum()
    }

    /// Descriptors of the memory for slots on a device.
    ///
    /// # Errors
    /// There is none, or the driver refuses.
    pub fn slot_pieces(&self, context: &Context) -> Result<Vec<Piece>, DeviceError> {
        let memory = self.of(context).slots.exported()?;
        let start = memory.address();
        export_pieces(context, start..start + memory.bytes() as u64)
    }

    /// Lends memory of another process's pool to a transfer, which gives it back by
    /// dropping this; none while another has it.
    pub fn lend(self: &Arc<Self>, owner: (u32, i32), identity: u64) -> Option<PoolLoan> {
        let free = lock(&self.imports).lend(owner, identity);
        free.then(|| PoolLoan(self.clone(), owner, identity))
    }

    /// Whether memory of another process is open, or there is room to open it.
    pub fn has_room(&self, owner: (u32, i32), key: &Key) -> Room {
        lock(&self.imports).room(owner, key)
    }

    /// An event of another process.
    pub fn opened_event(
        &self,
        owner: (u32, i32),
        context: &Context,
        handle: &EventHandle,
    ) -> Result<Event, DeviceError> {
        lock(&self.imports).event(owner, context, handle)
    }

    /// Allocations of other processes that are open.
    pub fn mappings(&self) -> usize {
        lock(&self.imports).len()
    }

    /// A rank is gone: its memory and events are not used any more.
    pub fn forget(&self, rank: u32) {
        lock(&self.imports).forget(rank);
        self.sweep();
    }

    /// Closes mappings that were let go, if no transfer is in flight.
    pub fn sweep(&self) {
        if !self.is_busy() {
            let closed = lock(&self.imports).sweep();
            drop(closed);
        }
    }

    /// Says once why messages of a kind of memory take a slower path, and its cost.
    pub fn say_once(&self, made: Made, placement: Placement, through: Through, why: &str) {
        let mut said = lock(&self.said);
        if said.contains(&(made, placement, through)) {
            return;
        }
        said.push((made, placement, through));
        let rank = self.rank.get().copied().unwrap_or(0);
        let how = match through {
            Through::Host => {
                "go through pinned memory of the host, two copies over the bus instead of one \
                 kernel"
            }
            Through::Device => {
                "are packed into memory of its device and unpacked from there, two kernels \
                 instead of one"
            }
        };
        crate::diagnose::tell(format_args!(
            "rank {rank}: messages from {} memory ({}) {how}: {why}",
            made.name(),
            placement.name(),
        ));
    }

    /// Whether a device works on a message: its end rings no doorbell.
    pub fn is_busy(&self) -> bool {
        self.under_way() != 0
    }

    /// Transfers with work on a device that is not known to be complete.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Has a stream copy a message from one layout to another.
    pub fn copy<T: Datatype>(
        &self,
        stream: &Stream,
        from: &Ordered<DeviceView<T>>,
        to: &Ordered<DeviceView<T>>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let device = self.of(stream.context());
        let copied = device.packer.copy(stream, from, to, 0..bytes, None);
        copied.map(drop)
    }

    /// Does first uses of a device ahead: streams are about to be held, by messages that
    /// need what a driver may make only when they are not. Costs nothing once it is done;
    /// what fails here fails again where it is used, and is told there.
    pub fn prepare(&self, context: &Context) {
        if self.pool.has_put_off() {
            self.pool.catch_up(context);
        }
        let device = self.of(context);
        if device.prepared.load(Ordering::Acquire) {
            return;
        }
        let done = context.prepare(|| self.pool.prepare(context));
        device.prepared.store(done, Ordering::Release);
    }

    fn of(&self, context: &Context) -> Arc<Device> {
        let mut known = lock(&self.known);
        if let Some(device) = known.iter().find(|d| &d.context == context) {
            return device.clone();
        }
        let share = settings::pack_multiprocessors().unwrap_or_default();
        if let (None, Some(share)) = (context.packing_limit(), share) {
            context.limit_packing(Some(share.of(context.multiprocessors())));
        }
        let mut model = self.model();
        model.limits.blocks = context.packing_blocks();
        let crowded = osier_kernels::device_count().is_ok_and(|count| self.ranks > count);
        let device = Arc::new(Device {
            model,
            in_turns: crowded && !context.has_mps(),
            slots: Arc::new(Pool::on_device(context, self.slots)),
            context: context.clone(),
            packer: Packer::new(context),
            exported_events: Mutex::default(),
            prepared: AtomicBool::new(false),
        });
        known.push(device.clone());
        device
    }
}

/// One device: its packer, and what transfers lend.
struct Device {
    context: Context,
    packer: Packer,
    /// Other processes may have it by turns: they do not share it, and there are more ranks
    /// than devices.
    in_turns: bool,
    /// With the blocks that this device has for messages.
    model: Model,
    /// Memory that other processes open, for slots.
    slots: Arc<Pool>,
    /// Events that other processes can open and no transfer uses now.
    exported_events: Mutex<Vec<(Event, EventHandle)>>,
    /// Whether first uses were done ahead.
    prepared: AtomicBool,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Device {
    fn stream(&self) -> Result<Stream, DeviceError> {
        self.context.take_stream()
    }

    /// Whether processes may have the device by turns while data is on its way: `others` says
    /// whether another process has a part in that.
    fn turns(&self, others: bool) -> Turns {
        match others && self.in_turns {
            true => Turns::Receiver,
            false => Turns::None,
        }
    }
}

/// Memory of another process's pool that a transfer has open.
#[derive(Debug)]
pub struct PoolLoan(Arc<Devices>, (u32, i32), u64);

impl Drop for PoolLoan {
    fn drop(&mut self) {
        lock(&self.0.imports).give_back(self.1, self.2);
    }
}

/// Counts a transfer that has work on a device.
#[derive(Debug)]
pub struct UnderWay(Arc<Devices>);

impl UnderWay {
    pub fn new(devices: &Arc<Devices>) -> UnderWay {
        devices.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(devices.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether memory is valid already. One question to a stream that has no work left spares it the
/// record of an event, and a stream of ours the wait for that.
fn is_ready(ready_event: &After) -> bool {
    match ready_event {
        // Asking a stream that is captured would end the capture.
        After::Stream(stream) => stream.is_captured() == Ok(false) && stream.is_done() == Ok(true),
        After::Now => true,
        After::Event(_) => false,
    }
}

/// A ready event that may not have come yet. What waits for it waits for work of the user's,
/// which may wait for other messages: it must not hold memory that these need.
#[derive(Debug)]
struct Late(Option<Event>);

impl Late {
    fn of(view: &Ordered<DeviceView<u8>>) -> Late {
        Late(match view.ready_event() {
            After::Event(event) => Some(event.clone()),
            After::Stream(_) => None, // not settled: nothing is moved
            After::Now => None,
        })
    }

    /// Of memory of the host.
    fn never() -> Late {
        Late(None)
    }

    fn is_late(&mut self) -> Result<bool, DeviceError> {
        passed(&mut self.0).map(|passed| !passed)
    }

    /// Waits on the host until it has come (blocking).
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.0.as_ref().map_or(Ok(()), Event::synchronize)
    }
}

/// Whether an event has passed; one that has is forgotten.
fn passed(event: &mut Option<Event>) -> Result<bool, DeviceError> {
    if let Some(pending) = event {
        if !pending.is_passed()? {
            return Ok(false);
        }
        *event = None;
    }
    Ok(true)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
