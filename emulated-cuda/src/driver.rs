//! The driver's state: devices, contexts, streams, events, graphs, behind one lock.
//!
//! # Invariants
//! 1. A handle is never used twice, so a stale one is told from a wrong one.
//! 2. Tickets grow: within a stream, and between streams where order is asked for.
//! 3. Whoever changes a queue wakes the worker; the worker wakes all who wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use crate::abi::{self, Code, Handle};
use crate::fault::{Fault, Result, legacy};
use crate::graph::{Capture, Graph, UserObject};
use crate::ipc::{Opened, SharedEvent};
use crate::memory::{Arena, File, Memory};
use crate::multicast::Multicast;
use crate::order::{self, Order};
use crate::random::Random;
use crate::settings::settings;
use crate::waits;
use crate::work::{Item, Op};

/// What a handle stands for; also its upper bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Object {
    /// `CUcontext`.
    Context = 1,
    /// `CUstream`.
    Stream,
    /// `CUevent`.
    Event,
    /// `CUmodule`.
    Module,
    /// `CUfunction`.
    Function,
    /// `CUmemoryPool`.
    Pool,
    /// `CUmemGenericAllocationHandle`: physical memory, or a multicast object.
    Physical,
    /// `CUgraph`.
    Graph,
    /// `CUgraphExec`.
    Executable,
    /// `CUuserObject`.
    UserObject,
}

const OBJECTS: [(Object, &str); 10] = [
    (Object::Context, "context"),
    (Object::Stream, "stream"),
    (Object::Event, "event"),
    (Object::Module, "module"),
    (Object::Function, "function"),
    (Object::Pool, "memory pool"),
    (Object::Physical, "allocation handle"),
    (Object::Graph, "graph"),
    (Object::Executable, "executable graph"),
    (Object::UserObject, "user object"),
];

/// Why a handle of this kind is not valid.
pub fn stale(kind: Object, handle: Handle) -> Fault {
    let name = |k: u64| OBJECTS.iter().find(|(o, _)| *o as u64 == k).map(|o| o.1);
    let wanted = name(kind as u64).unwrap_or("object");
    let text = match name(handle >> 56) {
        Some(found) if found == wanted => format!("0x{handle:x} is a {found} that was destroyed"),
        Some(found) => format!("0x{handle:x}: {found} given where {wanted} is expected"),
        None => format!("0x{handle:x} is no {wanted}"),
    };
    let code = match kind {
        Object::Context => abi::ERROR_INVALID_CONTEXT,
        _ => abi::ERROR_INVALID_HANDLE,
    };
    Fault::named(code, text)
}

/// A GPU.
#[derive(Debug)]
pub struct Device {
    /// Its plain memory.
    pub arena: Arena,
    /// Bytes in use, of all kinds.
    pub used: u64,
    /// The primary context.
    pub primary: Handle,
    /// How often it is retained.
    pub retained: u32,
    /// Pools: the default, and the current one.
    pub default_pool: Handle,
    /// The pool of `cuMemAllocAsync`.
    pub pool: Handle,
}

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its device.
    pub device: usize,
    /// False for a primary context that nobody retains, or one that was destroyed.
    pub alive: bool,
    /// Flags of its creation.
    pub flags: u32,
    /// Contexts whose memory kernels of this one may use.
    pub peers: BTreeSet<Handle>,
    /// Set by an error of queued work; every later call returns it.
    pub sticky: Option<Code>,
    /// Its legacy default stream.
    pub legacy: Handle,
}

/// A queue of the hardware: of a context, for streams of one priority, and its number. A wait in
/// it holds up all that was queued behind it, of whatever stream. Streams of the usual priority
/// have a queue each here: tests run side by side in one process, and share none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel(Handle, i32, u64);

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its context.
    pub context: Handle,
    /// `CU_STREAM_NON_BLOCKING` or 0.
    pub flags: u32,
    /// Its priority.
    pub priority: i32,
    /// Work, oldest first; the first may be running.
    pub queue: VecDeque<Item>,
    /// The queue of the hardware that it shares with other streams.
    pub channel: Option<Channel>,
    /// Tickets of the waits among its work.
    pub waits: VecDeque<u64>,
    /// The capture that it takes part in, and the nodes its next node comes after.
    pub capture: Option<(Handle, Vec<usize>)>,
    /// Destroyed, but with work left.
    pub destroyed: bool,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its context.
    pub context: Handle,
    /// Flags of its creation.
    pub flags: u32,
    /// How often it was recorded.
    pub recorded: u64,
    /// Records that have not happened yet: those of several streams happen in any order.
    pub pending: BTreeSet<u64>,
    /// When.
    pub at: Option<Instant>,
    /// If it was recorded in a capturing stream: the capture and the nodes.
    pub captured: Option<(Handle, Vec<usize>)>,
    /// Counters that other processes see.
    pub shared: Option<Arc<SharedEvent>>,
    /// Destroyed, but still in a queue.
    pub destroyed: bool,
}

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    /// Its device.
    pub device: usize,
    /// Its memory; none if it was imported.
    pub arena: Option<Arena>,
    /// The exporter's file.
    pub imported: Option<Arc<File>>,
    /// Whether it may be exported.
    pub exportable: bool,
    /// Whether it was: only then its allocations have names for other processes.
    pub exported: bool,
    /// Devices whose kernels reach what is imported into it, as bits.
    pub access: u64,
    /// Attributes that are set and read back.
    pub attributes: HashMap<u32, u64>,
    /// Bytes in use, now and at most.
    pub used: u64,
    /// At most.
    pub high: u64,
}

/// Physical memory of `cuMemCreate`.
#[derive(Debug)]
pub struct Physical {
    /// Its device.
    pub device: usize,
    /// The memory.
    pub file: Arc<File>,
    /// Holders: the handle, and mappings.
    pub holders: u32,
    /// Whether it may be exported as a descriptor.
    pub exportable: bool,
    /// Counted against the device, as it was made here.
    pub counted: bool,
    /// How often the handle is held: once since it was made, and once per retain.
    pub handles: u32,
    /// It is no memory, but a multicast object; the file is what its processes share.
    pub multicast: Option<Arc<Multicast>>,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    /// GPUs.
    pub devices: Vec<Device>,
    /// Memory.
    pub memory: Memory,
    /// Contexts.
    pub contexts: HashMap<Handle, Context>,
    /// Streams, in a fixed order, so that a seed draws the same.
    pub streams: BTreeMap<Handle, Stream>,
    /// Events; a destroyed one stays until it has happened.
    pub events: HashMap<Handle, Event>,
    /// Modules: context and names of kernels, or none for binaries.
    pub modules: HashMap<Handle, (Handle, Option<BTreeSet<String>>)>,
    /// Functions: module and name.
    pub functions: HashMap<Handle, (Handle, String)>,
    /// Pools.
    pub pools: HashMap<Handle, Pool>,
    /// Physical memory.
    pub physical: HashMap<Handle, Physical>,
    /// Graphs.
    pub graphs: HashMap<Handle, Graph>,
    /// Executable graphs, with their context of creation.
    pub executables: HashMap<Handle, Arc<Graph>>,
    /// Counts of user objects that the user holds.
    pub user_objects: HashMap<Handle, Vec<Arc<UserObject>>>,
    /// Memory of other processes that is open by a handle.
    pub opened: Vec<Opened>,
    /// Captures under way, by the graph that they build.
    pub captures: HashMap<Handle, Capture>,
    /// Who knows what of whom.
    pub order: Order,
    /// Draws the order of work.
    pub random: Random,
    /// Streams of each priority that were made so far.
    pub made: HashMap<i32, u64>,
    /// Whose default streams: thread and context.
    pub thread_streams: HashMap<(std::thread::ThreadId, Handle), Handle>,
    next_handle: u64,
    next_ticket: u64,
}

/// The lock and its two conditions.
pub struct Driver {
    state: Mutex<State>,
    /// There is work.
    pub work: Condvar,
    /// Some work is done.
    pub done: Condvar,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// `cuInit`.
pub fn start() -> Result {
    if settings().machine.visible.is_empty() {
        return Err(Fault::plain(abi::ERROR_NO_DEVICE));
    }
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(|e| e.into_inner());
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let state = State::new()?;
    let _ = DRIVER.set(Driver {
        state: Mutex::new(state),
        work: Condvar::new(),
        done: Condvar::new(),
    });
    std::thread::Builder::new()
        .name("emulated-gpu".into())
        .spawn(crate::worker::run)
        .map_err(|e| Fault::named(abi::ERROR_OPERATING_SYSTEM, format!("no thread: {e}")))?;
    Ok(())
}

/// Whether `cuInit` was called.
pub fn is_initialised() -> bool {
    DRIVER.get().is_some()
}

/// The driver, after `cuInit`.
pub fn driver() -> Result<&'static Driver> {
    DRIVER
        .get()
        .ok_or_else(|| Fault::named(abi::ERROR_NOT_INITIALIZED, "cuInit was not called"))
}

impl Driver {
    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until the condition holds.
    pub fn wait_until(
        &self,
        mut guard: MutexGuard<'_, State>,
        mut holds: impl FnMut(&State) -> bool,
    ) {
        while !holds(&guard) {
            guard = self.done.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// The lock of the driver, after `cuInit`.
pub fn lock() -> Result<MutexGuard<'static, State>> {
    Ok(driver()?.lock())
}

/// The thread's stack of contexts.
pub fn with_current<T>(f: impl FnOnce(&mut Vec<Handle>) -> T) -> T {
    CURRENT.with_borrow_mut(f)
}

impl State {
    fn new() -> Result<State> {
        let count = settings().machine.devices();
        let mut state = State {
            devices: Vec::new(),
            memory: Memory::new(count, settings().isolation)?,
            contexts: HashMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            pools: HashMap::new(),
            physical: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            user_objects: HashMap::new(),
            opened: Vec::new(),
            captures: HashMap::new(),
            order: Order::default(),
            random: Random::new(settings().seed),
            made: HashMap::new(),
            thread_streams: HashMap::new(),
            next_handle: 1,
            next_ticket: 1,
        };
        for device in 0..count {
            let primary = state.new_context(device, 0, false);
            let pool = state.new_pool(device, false)?;
            state.devices.push(Device {
                arena: Arena::new(device)?,
                used: 0,
                primary,
                retained: 0,
                default_pool: pool,
                pool,
            });
        }
        Ok(state)
    }

    /// A new handle.
    pub fn handle(&mut self, kind: Object) -> Handle {
        self.next_handle += 1;
        ((kind as u64) << 56) | (self.next_handle << 4)
    }

    /// The next ticket.
    pub fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// A context with its default stream.
    pub fn new_context(&mut self, device: usize, flags: u32, alive: bool) -> Handle {
        let handle = self.handle(Object::Context);
        let legacy = self.new_stream(handle, 0, 0);
        self.contexts.insert(
            handle,
            Context {
                device,
                alive,
                flags,
                peers: BTreeSet::new(),
                sticky: None,
                legacy,
            },
        );
        handle
    }

    /// A stream.
    pub fn new_stream(&mut self, context: Handle, flags: u32, priority: i32) -> Handle {
        let handle = self.handle(Object::Stream);
        let channel = (priority != 0).then(|| {
            let made = self.made.entry(priority).or_default();
            *made += 1;
            Channel(context, priority, *made % settings().connections)
        });
        self.streams.insert(
            handle,
            Stream {
                context,
                flags,
                priority,
                queue: VecDeque::new(),
                channel,
                waits: VecDeque::new(),
                capture: None,
                destroyed: false,
            },
        );
        handle
    }

    /// A pool.
    pub fn new_pool(&mut self, device: usize, exportable: bool) -> Result<Handle> {
        let handle = self.handle(Object::Pool);
        self.pools.insert(
            handle,
            Pool {
                device,
                arena: Some(Arena::new(device)?),
                imported: None,
                exportable,
                exported: false,
                access: 1 << device,
                attributes: HashMap::new(),
                used: 0,
                high: 0,
            },
        );
        Ok(handle)
    }

    /// The device of a caller's number.
    pub fn device(&mut self, number: i32) -> Result<&mut Device> {
        let device = index(number)?;
        Ok(&mut self.devices[device])
    }

    /// A context that may be used.
    pub fn context(&self, handle: Handle) -> Result<&Context> {
        let context = self
            .contexts
            .get(&handle)
            .ok_or_else(|| stale(Object::Context, handle))?;
        if !context.alive {
            return Err(Fault::named(
                abi::ERROR_CONTEXT_IS_DESTROYED,
                format!("the context of device {} was released", context.device),
            ));
        }
        match context.sticky {
            Some(code) => Err(Fault::plain(code)),
            None => Ok(context),
        }
    }

    /// The thread's current context.
    pub fn current(&self) -> Result<Handle> {
        let handle = with_current(|c| c.last().copied()).unwrap_or(0);
        if handle == 0 {
            return Err(Fault::named(
                abi::ERROR_INVALID_CONTEXT,
                "no context is current in this thread (hint: cuCtxSetCurrent)",
            ));
        }
        self.context(handle)?;
        Ok(handle)
    }

    /// Device of the current context.
    pub fn current_device(&self) -> Result<usize> {
        let current = self.current()?;
        Ok(self.context(current)?.device)
    }

    /// The stream behind a handle of the caller, which must be of the current
    /// context.
    pub fn stream_of(&mut self, handle: Handle) -> Result<Handle> {
        let current = self.current()?;
        match handle {
            0 | abi::STREAM_LEGACY => {
                legacy();
                Ok(self.context(current)?.legacy)
            }
            abi::STREAM_PER_THREAD => {
                let key = (std::thread::current().id(), current);
                if let Some(&stream) = self.thread_streams.get(&key) {
                    return Ok(stream);
                }
                let stream = self.new_stream(current, 0, 0);
                self.thread_streams.insert(key, stream);
                Ok(stream)
            }
            _ => {
                let stream = self
                    .streams
                    .get(&handle)
                    .filter(|s| !s.destroyed)
                    .ok_or_else(|| stale(Object::Stream, handle))?;
                let context = stream.context;
                let device = self.context(context)?.device;
                if context != current {
                    let here = self.context(current)?.device;
                    return Err(Fault::named(
                        abi::ERROR_INVALID_CONTEXT,
                        format!(
                            "wrong context: the stream belongs to device {device}, and that of device {here} is current"
                        ),
                    ));
                }
                Ok(handle)
            }
        }
    }

    /// The stream behind a handle.
    pub fn stream_mut(&mut self, handle: Handle) -> Result<&mut Stream> {
        self.streams
            .get_mut(&handle)
            .ok_or_else(|| stale(Object::Stream, handle))
    }

    /// An event of any context.
    pub fn event(&mut self, handle: Handle) -> Result<&mut Event> {
        self.events
            .get_mut(&handle)
            .filter(|e| !e.destroyed)
            .ok_or_else(|| stale(Object::Event, handle))
    }

    /// Takes bytes of a device's memory into account.
    pub fn charge(&mut self, device: usize, bytes: u64) -> Result {
        let limit = settings().memory_bytes as u64;
        let used = self.devices[device].used;
        if used + bytes > limit {
            return Err(Fault::named(
                abi::ERROR_OUT_OF_MEMORY,
                format!(
                    "device {device} has {used} of {limit} bytes in use, and {bytes} more are asked for"
                ),
            ));
        }
        self.devices[device].used += bytes;
        Ok(())
    }

    /// Gives bytes back.
    pub fn uncharge(&mut self, device: usize, bytes: u64) {
        self.devices[device].used -= bytes;
    }

    /// Queues work, or makes it a node of the graph that the stream captures.
    pub fn submit(&mut self, stream: Handle, op: Op) -> Result<u64> {
        let uses = op.uses(self);
        let accesses = match settings().order {
            true => op.accesses(self),
            false => order::Accesses::default(),
        };
        let host = self.order.host();
        let ticket = self.ticket();
        let target = self.stream_mut(stream)?;
        if let Some((graph, after)) = &mut target.capture {
            let (graph, after) = (*graph, std::mem::take(after));
            let node = self.capture(graph)?.graph.add(op, after);
            if let Some((_, frontier)) = &mut self.stream_mut(stream)?.capture {
                *frontier = vec![node];
            }
            return Ok(0);
        }
        if op.is_wait() {
            target.waits.push_back(ticket);
        }
        target.queue.push_back(Item {
            ticket,
            op,
            uses,
            accesses,
            told: order::Accesses::default(),
            host,
            begun: 0,
        });
        waits::queued(stream, target.queue.len());
        if let Ok(driver) = driver() {
            driver.work.notify_all();
        }
        Ok(ticket)
    }

    /// Work that still uses a range, in words.
    pub fn user_of(&self, start: u64, end: u64) -> Option<String> {
        self.streams.iter().find_map(|(&handle, stream)| {
            stream
                .queue
                .iter()
                .find(|item| item.uses.iter().any(|&(s, e)| s < end && start < e))
                .map(|item| format!("{} queued on stream 0x{handle:x}", item.op.name()))
        })
    }

    /// An error if queued work uses an allocation that is to be freed.
    pub fn check_unused(&self, start: u64, end: u64, what: &str) -> Result {
        match self.user_of(start, end) {
            None => Ok(()),
            Some(user) => Err(Fault::named(
                abi::ERROR_ILLEGAL_STATE,
                format!(
                    "free before use has ended: {what} is used by {user} (hint: synchronise, or free in stream order)"
                ),
            )),
        }
    }

    /// An error of queued work: every later call in the context returns it.
    pub fn poison(&mut self, context: Handle, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.sticky.get_or_insert(code);
        }
        // What comes after never runs, but events that others wait for happen.
        let mut marks = Vec::new();
        for stream in self.streams.values_mut().filter(|s| s.context == context) {
            stream.waits.clear();
            for item in stream.queue.drain(..) {
                if let Op::Record(event, generation) = item.op {
                    marks.push((event, generation));
                }
            }
        }
        for (event, generation) in marks {
            self.happen(event, generation);
        }
    }

    /// A record of an event has happened.
    pub fn happen(&mut self, event: Handle, generation: u64) {
        if let Some(event) = self.events.get_mut(&event) {
            event.pending.remove(&generation);
            event.at = Some(Instant::now());
            if let Some(shared) = &event.shared {
                shared.happen(generation);
            }
        }
    }

    /// True when no stream of the context has work older than the ticket.
    pub fn drained(&self, context: Handle, ticket: u64) -> bool {
        self.streams
            .values()
            .filter(|s| s.context == context)
            .all(|s| s.queue.front().is_none_or(|item| item.ticket > ticket))
    }

    /// The physical memory of a handle.
    pub fn physical(&mut self, handle: Handle) -> Result<&mut Physical> {
        self.physical
            .get_mut(&handle)
            .ok_or_else(|| stale(Object::Physical, handle))
    }

    /// A pool.
    pub fn pool(&mut self, handle: Handle) -> Result<&mut Pool> {
        self.pools
            .get_mut(&handle)
            .ok_or_else(|| stale(Object::Pool, handle))
    }

    /// Lets go of physical memory once.
    pub fn release_physical(&mut self, handle: Handle) {
        let Some(physical) = self.physical.get_mut(&handle) else {
            return;
        };
        physical.holders -= 1;
        if physical.holders > 0 {
            return;
        }
        let Some(gone) = self.physical.remove(&handle) else {
            return;
        };
        if gone.counted {
            self.uncharge(gone.device, gone.file.bytes);
        }
        for bound in gone.multicast.iter().flat_map(|object| object.take_bound()) {
            self.release_physical(bound);
        }
    }
}

/// Waits for a ticket of a stream.
pub fn wait_for(guard: MutexGuard<'_, State>, stream: Handle, ticket: u64) -> Result {
    let driver = driver()?;
    let context = guard.streams.get(&stream).map_or(0, |s| s.context);
    driver.wait_until(guard, |state| {
        state
            .streams
            .get(&stream)
            .is_none_or(|s| s.queue.front().is_none_or(|item| item.ticket > ticket))
    });
    let mut state = driver.lock();
    state.context(context)?;
    state.order.host_waited(stream);
    Ok(())
}

/// The device of a caller's number, as an index.
pub fn index(number: i32) -> Result<usize> {
    let visible = &settings().machine.visible;
    let device = usize::try_from(number).ok().and_then(|n| visible.get(n));
    device.copied().ok_or_else(|| {
        Fault::named(
            abi::ERROR_INVALID_DEVICE,
            format!("there is no device {number} among {}", visible.len()),
        )
    })
}

/// The caller's number of a device; of a hidden one, that of no device.
pub fn ordinal(device: usize) -> i32 {
    (settings().machine.ordinal(device)).map_or(-1, |ordinal| ordinal as i32)
}
