//! Teams of kernels: a symmetric heap on devices as kernels of its ranks use it while they run.
//!
//! ```text
//! argument   table of heaps, on the device     heap of rank 0, 1, ... as this device reaches it
//!            words of the barrier, in the heap
//!            barriers so far, on the device
//!            status, pinned                    set when a rank has died or the team is dropped
//!            ring, pinned                      what is for ranks elsewhere (`ring`)
//! ```
//!
//! A thread of the team looks for ranks that have died, every few ms: a kernel that waits for one of
//! them is told, although no rank is in a call. Where ranks are elsewhere it takes what kernels post.
//!
//! # Invariants
//! 1. The status word is pinned memory of the team's, used by atomics alone.
//! 2. The heap's parts are there as long as the window, which the team keeps, and which is given back
//!    behind the kernels that the team has launched.
//!
//! # Sources
//! OpenSHMEM 1.5 and NVSHMEM's documentation 2.10: symmetric memory used by kernels.

use super::device::OnDevices;
use super::raw::RawWindow;
use super::ring::{Ring, SLOTS, Touched};
use super::symmetric::{Symmetric, SymmetricHeap};
use crate::comm::Communicator;
use osier_datatype::Datatype;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_kernels::{Context, DeviceSlice, Event, Kernel, Memory, Pinned, Stream, copy};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Words of a barrier: one for each round.
const BARRIER_WORDS: usize = 32;
/// How often the team looks for ranks that have died.
const LOOK: Duration = Duration::from_millis(5);

/// Status words of kernels.
const RANK_DIED: u32 = 1;
const TEAM_ENDED: u32 = 2;
const ACCESS_FAILED: u32 = 3;

/// Looks at a ring without anything new before the thread sleeps, and how long it does. Not tuned.
const LOOKS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);

/// A team as kernels take it: `osier_team` of `osier_device.cuh`, by value, alone or as a part of a
/// kernel's own argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Team {
    heaps: u64,
    barrier: u64,
    epoch: u64,
    status: u64,
    bytes: u64,
    ring: u64,
    tickets: u64,
    slots: u32,
    rank: u32,
    size: u32,
    unused: u32,
}

/// A symmetric heap on devices, as kernels of all of its ranks use it while they run: they write to
/// and read from each other, raise signals, wait for them, and meet at barriers, by the functions of
/// [`DEVICE_HEADER`](crate::devices::DEVICE_HEADER).
///
/// Kernels of different ranks that wait for each other have to run at the same time: each is
/// launched with no more blocks than its device runs at once, on a stream that nothing else
/// holds up. What they write is ordered by signals, and for the host by the end of the kernel.
///
/// A heap that a device does not reach, of a rank elsewhere, is reached by messages: kernels post in a
/// ring of the host's what a thread of the team then sends. What comes from elsewhere is written by
/// copies and short kernels, for which the device has room beside the team's.
///
/// Dropping the team ends waits of its kernels, and so does the death of one of its ranks.
///
/// ```no_run
/// use osier::devices::{Context, Kernel, Stream};
/// use osier::rma::{DeviceTeam, Team};
///
/// # fn main() -> osier::Result<()> {
/// // `struct shift { osier_team team; double* field; osier_word* arrived; osier_word round; }`
/// #[repr(C)]
/// #[derive(Clone, Copy)]
/// struct Shift { team: Team, field: u64, arrived: u64, round: u64 }
///
/// let universe = osier::init()?;
/// let world = universe.world();
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let heap = world.symmetric_heap_on(&context, 1 << 20)?;
/// let field = heap.alloc::<f64>(2048)?;
/// let arrived = heap.alloc::<u64>(1)?;
/// let team = heap.team()?;
/// let image = std::fs::read("shift.ptx").expect("an image");
/// let kernel = Kernel::load(&context, &image, "shift")?;
/// let argument = Shift {
///     team: team.argument(),
///     field: team.address_of(&field, 0)?,
///     arrived: team.address_of(&arrived, 0)?,
///     round: 1,
/// };
/// // SAFETY: the kernel's parameter is `shift`, and it touches the heap alone.
/// let event = unsafe { team.launch(&kernel, &stream, (1, 256), &argument, &[]) }?;
/// event.synchronize()?;
/// team.check()?;
/// # Ok(())
/// # }
/// ```
pub struct DeviceTeam {
    window: RawWindow,
    argument: Team,
    /// The heaps, the table, the count of barriers, the status.
    memory: Vec<Arc<Memory>>,
    /// What launches have named.
    touched: Arc<Touched>,
    _words: Symmetric<u64>,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

/// What the team and its thread use.
struct Shared {
    status: Arc<Memory>,
    ended: AtomicBool,
    /// Why an access to a rank elsewhere has failed.
    failed: OnceLock<Error>,
}

impl Shared {
    /// The word that kernels read.
    fn word(&self) -> Option<&AtomicU32> {
        let at = self.status.host()?;
        // SAFETY: invariant 1: pinned memory of at least a word, aligned to more.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Ends the waits of kernels, unless they were ended before.
    fn end(&self, why: u32) {
        if let Some(word) = self.word() {
            let order = Ordering::Relaxed;
            let _ = word.compare_exchange(0, why, order, order);
        }
    }

    /// Ends them because of an access.
    fn fail(&self, e: Error) {
        let why = match e.kind() {
            ErrorKind::RankDead => RANK_DIED,
            _ => ACCESS_FAILED,
        };
        let _ = self.failed.set(e);
        self.end(why);
    }
}

impl std::fmt::Debug for DeviceTeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceTeam")
            .field("argument", &self.argument)
            .finish_non_exhaustive()
    }
}

impl SymmetricHeap {
    /// A team of kernels that use this heap, which lies on devices. Collective.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Unavailable`] on all ranks, if the device of one reaches the heap of
    /// another without atomics, or a heap lies on the host; as [`SymmetricHeap::alloc`], of 256
    /// bytes; of kind [`ErrorKind::Device`], if the driver refuses.
    #[track_caller]
    pub fn team(&self) -> Result<DeviceTeam> {
        let made = self.make_team();
        self.communicator().reported(made)
    }

    #[track_caller]
    fn make_team(&self) -> Result<DeviceTeam> {
        let comm = self.communicator();
        let words = self.alloc::<u64>(BARRIER_WORDS)?;
        let made = self.own_team(words);
        // All ranks have a team, or none has.
        let mut lacks = [u8::from(made.is_err())];
        comm.allreduce_in_place(&mut lacks, &crate::Op::Max)?;
        let made = made?;
        match lacks[0] {
            0 => Ok(made),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                "a team of kernels: another rank cannot be one of it (it has the reason)",
            )),
        }
    }

    fn own_team(&self, words: Symmetric<u64>) -> Result<DeviceTeam> {
        let (window, comm) = (self.window().clone(), self.communicator());
        let devices = window.devices().ok_or_else(on_host)?;
        let own = devices.own().ok_or_else(on_host)?;
        let context = own.memory().context().clone();
        let stream = Stream::new(&context)?;
        let mut memory = Vec::new();
        let mut heaps = Vec::with_capacity(comm.size());
        for rank in 0..comm.size() {
            if window.far(rank).is_some() {
                heaps.push(0);
                continue;
            }
            let heap = reached(devices, comm, &context, rank)?;
            heaps.push(heap.address());
            memory.push(heap.memory().clone());
        }
        let table = DeviceSlice::<u64>::new(&stream, heaps.len())?;
        let staged = Pinned::from_slice(&context, &heaps)?;
        copy::copy(&stream, &staged.on_device(&stream), &table)?.synchronize()?;
        let table = table.into_inner();
        // Barriers so far, and tickets of the ring.
        let counts = DeviceSlice::<u64>::new(&stream, 2)?;
        copy::fill(&stream, &counts, 0)?.synchronize()?;
        let counts = counts.into_inner();
        let touched = Arc::new(Touched::default());
        let ring = match heaps.contains(&0) {
            true => {
                // Messages need kernels while those of the team run.
                comm.core().devices.prepare(&context);
                Some(Ring::new((&window, self.bytes()), &context, &touched)?)
            }
            false => None,
        };
        let (of_ring, ring_at) = match &ring {
            Some(ring) => ring.memory().map(|(memory, at)| (Some(memory), at))?,
            None => (None, 0),
        };
        let status = Memory::pinned(&context, size_of::<u64>())?;
        let shared = Arc::new(Shared {
            status: status.clone(),
            ended: AtomicBool::new(false),
            failed: OnceLock::new(),
        });
        match shared.word() {
            Some(word) => word.store(0, Ordering::Relaxed),
            None => {
                let message = "pinned memory without an address of the host";
                return Err(Error::new(ErrorKind::Device, message));
            }
        }
        let argument = Team {
            heaps: table.address(),
            barrier: own.address() + words.start() as u64,
            epoch: counts.address(),
            status: DeviceSlice::<u32>::of(status.clone())?.address(),
            bytes: self.bytes() as u64,
            ring: ring_at,
            tickets: counts.address() + size_of::<u64>() as u64,
            slots: SLOTS,
            rank: comm.rank() as u32,
            size: comm.size() as u32,
            unused: 0,
        };
        memory.extend([table.memory().clone(), counts.memory().clone(), status]);
        memory.extend(of_ring);
        let watcher = watch(comm, &shared, ring)?;
        Ok(DeviceTeam {
            window,
            argument,
            memory,
            touched,
            _words: words,
            shared,
            watcher: Some(watcher),
        })
    }
}

/// The heap of a rank as kernels of a device use it.
fn reached(
    devices: &OnDevices,
    comm: &Communicator,
    context: &Context,
    rank: usize,
) -> Result<DeviceSlice<u8>> {
    let heap = devices.slice_of(comm, rank)?.ok_or_else(on_host)?;
    let device = devices.device_of(rank).ok_or_else(on_host)?;
    if !context.has_atomics_on(&device) {
        let message = format!(
            "a team of kernels: device {} does not reach the heap of rank {rank} by atomics (hint: \
             osier topo shows how devices are joined)",
            context.ordinal()
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    context.reach(heap.memory())?;
    Ok(heap)
}

/// A thread that tells kernels of ranks that have died, and takes what they post for ranks elsewhere.
fn watch(
    comm: &Communicator,
    shared: &Arc<Shared>,
    mut ring: Option<Ring>,
) -> Result<JoinHandle<()>> {
    let (core, lane) = (Arc::downgrade(comm.core()), comm.weak_lane());
    let shared = shared.clone();
    let look = move || -> Option<bool> {
        let (core, lane) = (Weak::upgrade(&core)?, Weak::upgrade(&lane)?);
        core.check_deaths();
        Some(lane.lock().an_ended_rank().is_some())
    };
    let run = move || {
        osier_kernels::own_thread();
        let (mut looked, mut idle) = (Instant::now(), 0u32);
        while !shared.ended.load(Ordering::Acquire) {
            match ring.as_mut().map(Ring::advance) {
                None => {}
                Some(Ok(true)) => idle = 0,
                Some(Ok(false)) => idle = idle.saturating_add(1),
                Some(Err(e)) => {
                    shared.fail(e);
                    ring = None;
                }
            }
            if ring.is_none() || looked.elapsed() >= LOOK {
                match look() {
                    None => return shared.end(TEAM_ENDED),
                    Some(true) => return shared.end(RANK_DIED),
                    Some(false) => looked = Instant::now(),
                }
            }
            match &ring {
                None => std::thread::park_timeout(LOOK),
                Some(_) if idle > LOOKS => std::thread::park_timeout(PAUSE),
                Some(_) => std::thread::yield_now(),
            }
        }
    };
    let thread = std::thread::Builder::new().name("osier-team".into());
    thread.spawn(run).map_err(|e| {
        let message = format!("a team of kernels needs a thread: {e}");
        Error::new(ErrorKind::Unavailable, message)
    })
}

impl DeviceTeam {
    /// What kernels take.
    pub fn argument(&self) -> Team {
        self.argument
    }

    /// Whether kernels of this rank load, store and add in the heap of a rank themselves; what they do
    /// to that of one elsewhere a thread of the host does for them. False if there is no such rank.
    pub fn reaches(&self, rank: usize) -> bool {
        rank < self.window.comm().size() && self.window.far(rank).is_none()
    }

    /// Where an element of this rank lies, as kernels name it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WindowRange`], if there is no such element; of kind
    /// [`ErrorKind::Argument`], if it is of another heap.
    pub fn address_of<T: Datatype>(&self, elements: &Symmetric<T>, at: usize) -> Result<u64> {
        let found = self.find(elements, at);
        self.window.comm().reported(found)
    }

    fn find<T: Datatype>(&self, elements: &Symmetric<T>, at: usize) -> Result<u64> {
        if !elements.is_of(&self.window) {
            let message = "elements of another heap than the team's";
            return Err(Error::new(ErrorKind::Argument, message));
        }
        if at >= elements.len() {
            let message = format!("element {at} of {}", elements.len());
            return Err(Error::new(ErrorKind::WindowRange, message));
        }
        let own = self.window.devices().and_then(OnDevices::own);
        let own = own.ok_or_else(on_host)?;
        Ok(own.address() + (elements.start() + at * size_of::<T>()) as u64)
    }

    /// Queues `grid` blocks of `threads` threads of a kernel of the team, as [`Kernel::launch`] does.
    /// `touched` is the memory that it uses beside the heap, which is kept until it has completed, also
    /// where the team is dropped before.
    ///
    /// # Safety
    /// The kernel's one parameter is by value of a type with the layout of `A`; what it points at
    /// lies in the heap or in `touched`, and the stream is ordered after the work that wrote it.
    ///
    /// # Errors
    /// As [`Kernel::launch`].
    pub unsafe fn launch<A: Copy>(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        (grid, threads): (u32, u32),
        argument: &A,
        touched: &[&Arc<Memory>],
    ) -> Result<Event> {
        let mut all: Vec<&Arc<Memory>> = self.memory.iter().collect();
        all.extend(touched);
        self.touched.add(touched);
        // SAFETY: the caller's contract.
        let launched = unsafe { kernel.launch(stream, (grid, threads), argument, &all) };
        let launched = launched.map_err(Error::from);
        if let Ok(event) = &launched {
            // Invariant 2.
            self.window.is_used_until(event);
        }
        self.window.comm().reported(launched)
    }

    /// Whether waits of kernels were ended, and why.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if a rank of the team has died; that of an access to a rank
    /// elsewhere which has failed.
    pub fn check(&self) -> Result<()> {
        let status = self.shared.word().map(|word| word.load(Ordering::Relaxed));
        let comm = self.window.comm();
        match status {
            Some(ACCESS_FAILED) => {
                let failed = self.shared.failed.get().cloned();
                let failed = failed.map(|e| e.context("a team of kernels"));
                comm.reported(failed.map_or(Ok(()), Err))
            }
            Some(RANK_DIED) => {
                let ended = comm.lane().lock().an_ended_rank();
                let who = ended.map_or("a rank".into(), |rank| format!("rank {rank}"));
                let message = format!("a team of kernels: {who} has ended, and waits end");
                comm.reported(Err(Error::new(ErrorKind::RankDead, message)))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for DeviceTeam {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.end(TEAM_ENDED);
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            let _ = watcher.join();
        }
    }
}

#[cold]
fn on_host() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "a team of kernels: the heap of a rank lies on the host (hint: symmetric_heap_on)",
    )
}
