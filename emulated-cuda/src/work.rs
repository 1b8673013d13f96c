//! What a stream does: operations, what they use, and how one moves on.
//!
//! An operation moves in steps, so that others run between its parts: a copy in
//! random pieces, a batch and a graph in any order that its rules allow.
//!
//! # Invariants
//! 1. [`Op::step`] touches memory only by addresses that it has just found valid,
//!    and while it holds the lock or its item is in a queue: what a queued item
//!    uses cannot be freed (`State::check_unused`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{self, Handle};
use crate::driver::State;
use crate::fault::{Fault, Result};
use crate::graph::{Graph, GraphRun};
use crate::grid::{Grid, Pass};
use crate::ipc::SharedEvent;
use crate::isolation::{self, Isolation};
use crate::kernels::Launch;
use crate::memory::Kind;
use crate::multicast::{self, Window};
use crate::order::{Accesses, Clock};

/// Work in a queue.
#[derive(Debug)]
pub struct Item {
    /// Its place in the order of all submissions.
    pub ticket: u64,
    /// The work.
    pub op: Op,
    /// Address ranges that it uses, as far as they are known.
    pub uses: Vec<(u64, u64)>,
    /// What it touches, kernels apart.
    pub accesses: Accesses,
    /// What its kernels have told; some of it is no memory of the driver.
    pub told: Accesses,
    /// What the host knew when it queued it.
    pub host: Arc<Clock>,
    /// What is queued later has a higher ticket: when its kernel began, or 0.
    pub begun: u64,
}

/// Rows of bytes to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
    /// Distance of rows: target, source.
    pub pitch: (u64, u64),
    /// Distance of slices: target, source.
    pub slice: (u64, u64),
}

impl Shape {
    /// One row.
    pub fn line(bytes: u64) -> Shape {
        Shape {
            width: bytes,
            height: 1,
            depth: 1,
            pitch: (bytes, bytes),
            slice: (bytes, bytes),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        match self.width {
            0 => 0,
            _ => self.height * self.depth,
        }
    }

    /// Where a row begins: target, source.
    pub fn row(&self, index: u64) -> (u64, u64) {
        let (slice, row) = (index / self.height, index % self.height);
        (
            slice * self.slice.0 + row * self.pitch.0,
            slice * self.slice.1 + row * self.pitch.1,
        )
    }

    /// From the first byte to behind the last: target, source.
    pub fn span(&self) -> (u64, u64) {
        match self.rows() {
            0 => (0, 0),
            rows => {
                let (target, source) = self.row(rows - 1);
                (target + self.width, source + self.width)
            }
        }
    }
}

/// A copy, and how far it has come.
#[derive(Clone, Debug)]
pub struct Copy {
    /// First target address.
    pub target: u64,
    /// First source address.
    pub source: u64,
    /// What is copied.
    pub shape: Shape,
    /// Rows done, and bytes of the next row.
    pub done: (u64, u64),
    /// The source as it was when a copy of pageable memory was asked for.
    pub staged: Option<Arc<Vec<u8>>>,
}

/// A fill with a pattern.
#[derive(Clone, Debug)]
pub struct Fill {
    /// First address.
    pub target: u64,
    /// The pattern, and its bytes: 1, 2 or 4.
    pub value: (u32, u64),
    /// Distance of rows.
    pub pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl Fill {
    /// The bytes, and eight of the pattern, if they are one run.
    pub fn pattern(&self) -> Option<((u64, u64), u64)> {
        let (value, bytes) = (u64::from(self.value.0), self.value.1);
        let pattern = match bytes {
            1 => (value & 0xff) * 0x0101_0101_0101_0101,
            2 => (value & 0xffff) * 0x0001_0001_0001_0001,
            _ => value * 0x0000_0001_0000_0001,
        };
        let one = self.height == 1 || self.pitch == self.width;
        let range = (self.target, self.target + self.width * self.height);
        one.then_some((range, pattern))
    }
}

/// A function of the host.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    /// A kernel.
    Kernel(Box<Launch>),
    /// A kernel that has begun.
    Running(Arc<Running>),
    /// A copy.
    Copy(Box<Copy>),
    /// Copies without an order among them.
    Batch(Vec<Copy>),
    /// A fill.
    Fill(Fill),
    /// A host function and its argument.
    Host(HostFunction, usize),
    /// A host function that was begun: whether it has returned.
    Calling(Arc<AtomicBool>),
    /// An event happens: which record of it.
    Record(Handle, u64),
    /// Wait for a record of an event.
    Wait(Handle, u64),
    /// Wait for a record of another process's event.
    WaitShared(Arc<SharedEvent>, u64),
    /// Write a value of 4 or 8 bytes.
    Write(u64, u64, u64),
    /// Wait for a value of 4 or 8 bytes: address, value, bytes, condition.
    Await(u64, u64, u64, u32),
    /// Memory of a stream-ordered allocation is there from now on.
    Allocate(u64),
    /// Memory of a stream-ordered allocation is gone from now on.
    Free(u64),
    /// A graph.
    Graph(Box<GraphRun>),
    /// Nothing: an empty node.
    Nothing,
}

/// How an operation has moved.
pub enum Moved {
    /// It is over.
    Done,
    /// It goes on later.
    More,
    /// It waits for something that polling finds.
    Blocked,
    /// It runs without the lock, and says how far it has come; over, its next step says so.
    Unlocked(Box<dyn FnOnce() -> Result<Pass> + Send>),
}

impl Op {
    /// For messages.
    pub fn name(&self) -> String {
        match self {
            Op::Kernel(launch) => format!("kernel {}", launch.name),
            Op::Running(running) => format!("kernel {}", running.name),
            Op::Copy(_) => "a copy".into(),
            Op::Batch(_) => "a batch of copies".into(),
            Op::Fill(_) => "a fill".into(),
            Op::Host(..) | Op::Calling(_) => "a host function".into(),
            Op::Record(..) | Op::Wait(..) | Op::WaitShared(..) => "an event".into(),
            Op::Write(..) | Op::Await(..) => "a memory operation".into(),
            Op::Allocate(_) | Op::Free(_) => "a stream-ordered allocation".into(),
            Op::Graph(_) => "a graph".into(),
            Op::Nothing => "an empty node".into(),
        }
    }

    /// Ranges in use: exact for copies; for kernels the allocations that words
    /// of their arguments point into.
    pub fn uses(&self, state: &State) -> Vec<(u64, u64)> {
        let copy = |c: &Copy| {
            let (target, source) = c.shape.span();
            [
                (c.target, c.target + target),
                (
                    c.source,
                    c.source + if c.staged.is_some() { 0 } else { source },
                ),
            ]
        };
        match self {
            Op::Copy(c) => copy(c).to_vec(),
            Op::Batch(all) => all.iter().flat_map(copy).collect(),
            Op::Fill(f) if f.height > 0 => {
                vec![(f.target, f.target + f.pitch * (f.height - 1) + f.width)]
            }
            Op::Write(at, _, bytes) | Op::Await(at, _, bytes, _) => vec![(*at, at + bytes)],
            Op::Kernel(launch) => {
                let mut found = Vec::new();
                for words in &launch.arguments {
                    for word in [*words as u64, (words >> 64) as u64] {
                        if let Some(a) = state.memory.find(word)
                            && word != 0
                        {
                            found.push((a.start, a.end()));
                        }
                    }
                }
                found
            }
            Op::Graph(run) => run.uses(state),
            _ => Vec::new(),
        }
    }

    /// Whether the hardware waits there, for another stream or a word.
    pub fn is_wait(&self) -> bool {
        matches!(self, Op::Wait(..) | Op::WaitShared(..) | Op::Await(..))
    }

    /// What it is going to touch; kernels tell afterwards.
    pub fn accesses(&self, state: &State) -> Accesses {
        match self {
            Op::Copy(copy) => copy.accesses(),
            Op::Batch(copies) => {
                let mut all = Accesses::default();
                copies.iter().for_each(|copy| all.extend(copy.accesses()));
                all
            }
            Op::Fill(fill) => Accesses {
                writes: (0..fill.height)
                    .map(|row| fill.target + row * fill.pitch)
                    .map(|at| (at, at + fill.width))
                    .collect(),
                ..Accesses::default()
            },
            // Before and behind it nobody may use what is allocated.
            Op::Allocate(start) | Op::Free(start) => Accesses {
                writes: state
                    .memory
                    .find(*start)
                    .map(|a| (a.start, a.end()))
                    .into_iter()
                    .collect(),
                ..Accesses::default()
            },
            Op::Graph(run) => run.accesses(state),
            _ => Accesses::default(),
        }
    }

    /// Moves on a little. `context` is that of the stream.
    pub fn step(&mut self, state: &mut State, context: Handle) -> Result<Moved> {
        match self {
            Op::Kernel(launch) => {
                let running = Arc::new(Running::new(launch, state, context)?);
                *self = Op::Running(running);
                self.step(state, context)
            }
            Op::Running(running) => Ok(match running.is_over() {
                true => Moved::Done,
                false => {
                    let running = running.clone();
                    Moved::Unlocked(Box::new(move || running.pass()))
                }
            }),
            Op::Copy(copy) => {
                copy.step(state)?;
                Ok(match copy.is_over() {
                    true => Moved::Done,
                    false => Moved::More,
                })
            }
            Op::Batch(copies) => {
                if copies.is_empty() {
                    return Ok(Moved::Done);
                }
                let index = state.random.below(copies.len() as u64) as usize;
                copies[index].step(state)?;
                if copies[index].is_over() {
                    copies.swap_remove(index);
                }
                Ok(match copies.is_empty() {
                    true => Moved::Done,
                    false => Moved::More,
                })
            }
            Op::Fill(fill) => {
                fill.run(state)?;
                Ok(Moved::Done)
            }
            Op::Host(function, argument) => {
                *self = Op::Calling(crate::worker::call(*function, *argument));
                Ok(Moved::Blocked)
            }
            Op::Calling(over) => Ok(match over.load(Ordering::Acquire) {
                true => Moved::Done,
                false => Moved::Blocked,
            }),
            Op::Record(event, generation) => {
                state.happen(*event, *generation);
                Ok(Moved::Done)
            }
            Op::Wait(event, generation) => {
                let happened = state
                    .events
                    .get(event)
                    .is_none_or(|e| !e.pending.contains(generation));
                Ok(if happened {
                    Moved::Done
                } else {
                    Moved::Blocked
                })
            }
            Op::WaitShared(event, generation) => Ok(match event.happened() >= *generation {
                true => Moved::Done,
                false => Moved::Blocked,
            }),
            Op::Write(at, value, bytes) => {
                let at = word(state, *at, *bytes)?;
                match bytes {
                    4 => {
                        // SAFETY: a valid aligned word (`word`), which the host
                        // or a kernel may use at the same time.
                        unsafe { AtomicU32::from_ptr(at as *mut u32) }
                            .store(*value as u32, Ordering::Release);
                    }
                    _ => {
                        // SAFETY: as above.
                        unsafe { AtomicU64::from_ptr(at as *mut u64) }
                            .store(*value, Ordering::Release);
                    }
                }
                Ok(Moved::Done)
            }
            Op::Await(at, value, bytes, condition) => {
                let address = word(state, *at, *bytes)?;
                let (seen, value, sign) = match bytes {
                    4 => {
                        // SAFETY: a valid aligned word (`word`).
                        let seen = unsafe { AtomicU32::from_ptr(address as *mut u32) };
                        let seen = u64::from(seen.load(Ordering::Acquire));
                        (seen, *value & 0xffff_ffff, 1u64 << 31)
                    }
                    _ => {
                        // SAFETY: as above.
                        let seen = unsafe { AtomicU64::from_ptr(address as *mut u64) };
                        (seen.load(Ordering::Acquire), *value, 1u64 << 63)
                    }
                };
                let holds = match *condition & 3 {
                    0 => seen.wrapping_sub(value) & sign == 0,
                    1 => seen == value,
                    2 => seen & value != 0,
                    _ => !(seen | value) & (sign | (sign - 1)) != 0,
                };
                Ok(if holds { Moved::Done } else { Moved::Blocked })
            }
            Op::Allocate(start) => {
                state.memory.make_ready(*start)?;
                Ok(Moved::Done)
            }
            Op::Free(start) => {
                crate::api::pool::free_now(state, *start);
                Ok(Moved::Done)
            }
            Op::Graph(run) => run.step(state, context),
            Op::Nothing => Ok(Moved::Done),
        }
    }
}

impl Copy {
    /// A copy that has not begun.
    pub fn new(target: u64, source: u64, shape: Shape) -> Copy {
        Copy {
            target,
            source,
            shape,
            done: (0, 0),
            staged: None,
        }
    }

    fn is_over(&self) -> bool {
        self.done.0 >= self.shape.rows()
    }

    fn accesses(&self) -> Accesses {
        let rows = || (0..self.shape.rows()).map(|row| self.shape.row(row));
        let width = self.shape.width;
        let mut all = Accesses {
            writes: rows()
                .map(|(to, _)| self.target + to)
                .map(|at| (at, at + width))
                .collect(),
            ..Accesses::default()
        };
        if self.staged.is_none() {
            let reads = rows().map(|(_, from)| self.source + from);
            all.reads = reads.map(|at| (at, at + width)).collect();
        }
        all
    }

    /// Copies some bytes or rows.
    fn step(&mut self, state: &mut State) -> Result {
        let total = self.shape.rows() * self.shape.width;
        // Small ones in one go or two, large ones in up to eight.
        let parts = if total < 64 << 10 { 2 } else { 8 };
        let mut left = (total / (1 + state.random.below(parts))).max(1);
        while left > 0 && !self.is_over() {
            let (target, source) = self.shape.row(self.done.0);
            let bytes = (self.shape.width - self.done.1).min(left);
            let (target, source) = (target + self.done.1, source + self.done.1);
            self.part(state, target, source, bytes)?;
            left -= bytes;
            self.done.1 += bytes;
            if self.done.1 == self.shape.width {
                self.done = (self.done.0 + 1, 0);
            }
        }
        Ok(())
    }

    /// Copies bytes at two offsets.
    fn part(&self, state: &State, target: u64, source: u64, bytes: u64) -> Result {
        let targets = state.memory.pieces(self.target + target, bytes, true)?;
        let sources = match &self.staged {
            Some(staged) => vec![(staged.as_ptr() as u64 + source, bytes)],
            None => state.memory.pieces(self.source + source, bytes, true)?,
        };
        let mut sources = sources.into_iter();
        let mut from = sources.next().unwrap_or_default();
        for (mut to, mut length) in targets {
            while length > 0 {
                let n = from.1.min(length);
                // SAFETY: both ranges are memory of the driver or of the caller,
                // checked by `pieces`, and cannot be freed now (invariant 1).
                unsafe { std::ptr::copy(from.0 as *const u8, to as *mut u8, n as usize) };
                (to, length) = (to + n, length - n);
                from = (from.0 + n, from.1 - n);
                if from.1 == 0 {
                    match sources.next() {
                        Some(next) => from = next,
                        None => break,
                    }
                }
            }
        }
        Ok(())
    }
}

impl Fill {
    fn run(&self, state: &State) -> Result {
        let bytes = self.value.0.to_le_bytes();
        let width = self.value.1 as usize;
        for row in 0..self.height {
            let at = self.target + row * self.pitch;
            let mut phase = 0;
            for (view, length) in state.memory.pieces(at, self.width, false)? {
                if width == 1 {
                    // SAFETY: memory of the driver, checked by `pieces`, which
                    // cannot be freed now (invariant 1).
                    unsafe { std::ptr::write_bytes(view as *mut u8, bytes[0], length as usize) };
                    continue;
                }
                for i in 0..length {
                    // SAFETY: as above.
                    unsafe { ((view + i) as *mut u8).write(bytes[phase % width]) };
                    phase += 1;
                }
            }
        }
        Ok(())
    }
}

/// The driver's address of an aligned word.
fn word(state: &State, at: u64, bytes: u64) -> Result<u64> {
    if !at.is_multiple_of(bytes) {
        return Err(crate::fault::invalid(format!(
            "0x{at:x} is not a multiple of {bytes}"
        )));
    }
    let pieces = state.memory.pieces(at, bytes, false)?;
    match pieces[..] {
        [(view, _)] => Ok(view),
        _ => Err(crate::fault::invalid("a word across two mappings")),
    }
}

/// A kernel that has begun.
#[derive(Debug)]
pub struct Running {
    name: String,
    /// It is one of Osier's.
    own: bool,
    grid: Mutex<Grid>,
    /// What it may reach, and how that is opened.
    devices: Vec<usize>,
    ranges: Vec<(u64, u64)>,
    /// Multicast mappings that are given to its device.
    windows: Vec<Window>,
    isolation: Arc<Isolation>,
}

impl Running {
    /// Whether it is one of Osier's kernels.
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// Finds out what a kernel may reach.
    fn new(launch: &Launch, state: &mut State, context: Handle) -> Result<Running> {
        let device = state.context(context)?.device;
        let mut devices = vec![device];
        for peer in &state.context(context)?.peers {
            if let Some(peer) = state.contexts.get(peer) {
                devices.push(peer.device);
            }
        }
        let words =
            (launch.arguments.iter()).flat_map(|words| [*words as u64, (words >> 64) as u64]);
        for a in words.filter_map(|word| state.memory.find(word)) {
            if !a.ready {
                return Err(Fault::named(
                    abi::ERROR_ILLEGAL_STATE,
                    format!(
                        "use before allocation: kernel {} uses {} (hint: wait for an event of its stream)",
                        launch.name,
                        a.describe()
                    ),
                ));
            }
            let given = a.access >> device & 1 == 1;
            let reached = match a.kind {
                // Rights of their own, whatever peers were enabled.
                Kind::Pooled(_) | Kind::Mapped(_) | Kind::Multicast(_) => given,
                Kind::Device => given || devices.contains(&a.device),
                _ => true,
            };
            if !reached {
                return Err(Fault::named(
                    abi::ERROR_ILLEGAL_ADDRESS,
                    format!(
                        "kernel {} of device {device} uses {}, which was not opened for it",
                        launch.name,
                        a.describe()
                    ),
                ));
            }
        }
        let ranges: Vec<(u64, u64)> = match *state.memory.isolation {
            Isolation::Keys(_) | Isolation::Open => Vec::new(),
            Isolation::Windows => state
                .memory
                .all()
                .filter(|a| a.kind.is_device() && a.ready)
                .filter(|a| match a.kind {
                    Kind::Pooled(_) | Kind::Mapped(_) => a.access >> device & 1 == 1,
                    Kind::Multicast(_) => false,
                    _ => devices.iter().any(|d| a.access & (1 << d) != 0),
                })
                .map(|a| a.region)
                .collect(),
        };
        let seed = state.random.next();
        Ok(Running {
            own: launch.kernel.own,
            name: launch.name.clone(),
            grid: Mutex::new(Grid::new(launch.clone(), seed)),
            devices,
            ranges,
            windows: multicast::windows(state, device),
            isolation: state.memory.isolation.clone(),
        })
    }

    fn grid(&self) -> MutexGuard<'_, Grid> {
        self.grid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.grid().is_over()
    }

    /// Runs what can go on; without the driver's lock.
    fn pass(&self) -> Result<Pass> {
        let mut grid = self.grid();
        self.isolation.open(&self.devices, &self.ranges);
        isolation::kernel_runs(true);
        multicast::enter_kernel(&self.windows);
        let done = grid.pass();
        multicast::leave_kernel();
        isolation::kernel_runs(false);
        self.isolation.shut(&self.ranges);
        done
    }
}

/// A graph as an operation.
pub fn graph(graph: Arc<Graph>) -> Op {
    Op::Graph(Box::new(GraphRun::new(graph)))
}
