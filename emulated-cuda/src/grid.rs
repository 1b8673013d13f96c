//! How a grid runs: block by block, thread by thread.
//!
//! Threads of a block run one after the other on one fiber, until one meets a barrier or
//! sleeps: it stays behind on its fiber, and the next thread gets another. When all wait at
//! the barrier, all go on. So a kernel without either costs a call per thread. Blocks run in an
//! order drawn by seed, and threads forward or backward.
//!
//! ```text
//! pass:  blocks that have begun, a turn each -> blocks that may begin -> over, or the next pass
//! turn:  threads that have not begun, those that sleep; all of them, if they are at the barrier
//! ```
//!
//! A thread that looks at memory until another writes it calls `__nanosleep` in between. It
//! sleeps until the next pass: other blocks run, and between passes other work of the driver,
//! kernels among it. Blocks begin while fewer are under way than the device runs at a time; a
//! grid whose first blocks wait for one beyond that hangs, as it does on a device.
//!
//! # Invariants
//! 1. A grid is used by the worker thread only, as are the fibers.
//! 2. While a block has a turn, `RUN` is its run.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;

use crate::abi::{self, Code};
use crate::fault::{Fault, Result};
use crate::fiber::{self, Fiber};
use crate::isolation;
use crate::kernel_order;
use crate::kernels::Launch;
use crate::multicast;
use crate::random::Random;
use crate::record;
use crate::settings::settings;

/// `osier_launch_state` of the shim.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchState {
    thread: [u32; 3],
    block: [u32; 3],
    block_dim: [u32; 3],
    grid_dim: [u32; 3],
    shared: *mut c_void,
    barrier: extern "C" fn(),
    warp_barrier: extern "C" fn(),
    vote: extern "C" fn(c_int) -> u32,
    sleep: extern "C" fn(),
    trap: extern "C" fn(*const c_char),
    access: Option<extern "C" fn(*const c_void, usize, c_int)>,
    atomic: extern "C" fn(*const c_void, c_int, c_int, usize, u64, u64),
    multimem: extern "C" fn(*mut c_void, *const c_void, usize, usize),
}

/// How far a grid has come in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// All of its threads have ended.
    Over,
    /// Some went on.
    Moved,
    /// All sleep as before.
    Waits,
}

/// Threads of a warp.
const WARP: usize = 32;

/// Why a fiber has given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Ended,
    Barrier,
    WarpBarrier,
    Sleep,
}

/// What the fibers of a block and the scheduler share.
struct Run {
    launch: *const Launch,
    arguments: *mut *mut c_void,
    /// The next thread to begin, in the order of this block.
    next: Cell<usize>,
    threads: usize,
    backward: bool,
    why: Cell<Why>,
    ended: Cell<usize>,
    /// Threads that have said yes on their way to the barrier, and at the last one.
    votes: Cell<u32>,
    counted: Cell<u32>,
    trapped: RefCell<Option<Fault>>,
}

thread_local! {
    static RUN: Cell<*const Run> = const { Cell::new(std::ptr::null()) };
    static SPARE: RefCell<Vec<Fiber>> = const { RefCell::new(Vec::new()) };
}

/// The run of this thread; only called by fibers.
fn current() -> &'static Run {
    // SAFETY: invariant 2; a block, which keeps its run, outlives its turns and its fibers.
    unsafe { &*RUN.get() }
}

extern "C" fn barrier() {
    current().why.set(Why::Barrier);
    fiber::give_back();
}

extern "C" fn warp_barrier() {
    current().why.set(Why::WarpBarrier);
    fiber::give_back();
}

extern "C" fn vote(yes: c_int) -> u32 {
    let run = current();
    run.votes.set(run.votes.get() + u32::from(yes != 0));
    barrier();
    current().counted.get()
}

extern "C" fn sleep() {
    current().why.set(Why::Sleep);
    fiber::give_back();
}

extern "C" fn trap(what: *const c_char) {
    // SAFETY: a literal of the shim.
    let what = unsafe { CStr::from_ptr(what) };
    fail(
        abi::ERROR_LAUNCH_FAILED,
        what.to_string_lossy().into_owned(),
    )
}

/// Ends the kernel of which a thread calls this. Nothing of the thread's frames is dropped.
pub fn fail(code: Code, what: String) -> ! {
    let told = format!("kernel {}: {what}", current().launch().name);
    drop(what);
    *current().trapped.borrow_mut() = Some(Fault::named(code, told));
    loop {
        fiber::give_back();
    }
}

fn flatten([x, y, z]: [u32; 3], dim: [u32; 3]) -> u64 {
    let row = u64::from(z) * u64::from(dim[1]) + u64::from(y);
    row * u64::from(dim[0]) + u64::from(x)
}

fn unflatten(flat: u64, dim: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(dim[0]), u64::from(dim[1]));
    [
        (flat % x) as u32,
        (flat / x % y) as u32,
        (flat / (x * y)) as u32,
    ]
}

impl Run {
    fn launch(&self) -> &Launch {
        // SAFETY: the grid keeps the launch where it is.
        unsafe { &*self.launch }
    }

    /// Says which thread goes on.
    fn enter(&self, order: usize) {
        let flat = match self.backward {
            true => self.threads - 1 - order,
            false => order,
        };
        let launch = self.launch();
        // SAFETY: only this thread uses the state (invariant 1).
        unsafe { (*launch.kernel.state).thread = unflatten(flat as u64, launch.block) };
    }

    fn check(&self) -> Result {
        let name = &self.launch().name;
        if let Some(fault) = self.trapped.borrow_mut().take() {
            return Err(fault);
        }
        match isolation::caught() {
            0 => Ok(()),
            address => Err(Fault::named(
                abi::ERROR_ILLEGAL_ADDRESS,
                format!("kernel {name} touches 0x{address:x}"),
            )),
        }
    }
}

/// A fiber's life: threads, one after the other.
extern "C" fn fiber_main() {
    let run = current();
    while run.next.get() < run.threads {
        let order = run.next.get();
        run.next.set(order + 1);
        run.enter(order);
        (run.launch().kernel.call)(run.arguments);
        run.ended.set(run.ended.get() + 1);
    }
    run.why.set(Why::Ended);
    loop {
        fiber::give_back();
    }
}

/// A block that has begun. Its fibers carry a thread each, by its order in the block, and
/// change the run, so that nobody has it alone.
struct Block {
    run: Rc<Run>,
    index: [u32; 3],
    shared: Vec<u128>,
    at_barrier: Vec<(Fiber, usize)>,
    at_warp_barrier: Vec<(Fiber, usize)>,
    asleep: Vec<(Fiber, usize)>,
}

impl Block {
    fn is_over(&self) -> bool {
        self.run.next.get() == self.run.threads
            && self.at_barrier.is_empty()
            && self.at_warp_barrier.is_empty()
            && self.asleep.is_empty()
    }

    /// Runs a fiber until it gives back, and puts it where it belongs. True unless it sleeps.
    fn resume(&mut self, fiber: Fiber, order: Option<usize>) -> Result<bool> {
        self.run.why.set(Why::Ended);
        if let Some(order) = order {
            self.run.enter(order);
        }
        fiber.run();
        self.run.check()?;
        let order = order.unwrap_or_else(|| self.run.next.get() - 1);
        match self.run.why.get() {
            Why::Ended => SPARE.with_borrow_mut(|spare| spare.push(fiber)),
            Why::Barrier => self.at_barrier.push((fiber, order)),
            Why::WarpBarrier => self.at_warp_barrier.push((fiber, order)),
            Why::Sleep => {
                self.asleep.push((fiber, order));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A turn: true if any thread has gone on.
    fn turn(&mut self) -> Result<bool> {
        let run = self.run.clone();
        let launch = run.launch();
        // SAFETY: only this thread uses the state (invariant 1).
        unsafe {
            *launch.kernel.state = LaunchState {
                thread: [0; 3],
                block: self.index,
                block_dim: launch.block,
                grid_dim: launch.grid,
                shared: self.shared.as_mut_ptr().cast(),
                barrier,
                warp_barrier,
                vote,
                sleep,
                trap,
                access: settings().order.then_some(record::note),
                atomic: kernel_order::atomic,
                multimem: multicast::store,
            }
        };
        RUN.set(Rc::as_ptr(&self.run));
        kernel_order::block(flatten(self.index, launch.grid));
        let mut moved = false;
        while self.run.next.get() < self.run.threads {
            let spare = SPARE.with_borrow_mut(Vec::pop).or_else(Fiber::new);
            let fiber = spare.ok_or_else(|| {
                Fault::named(abi::ERROR_LAUNCH_OUT_OF_RESOURCES, "no memory for stacks")
            })?;
            fiber.begin(fiber_main);
            self.resume(fiber, None)?;
            moved = true;
        }
        for (fiber, order) in std::mem::take(&mut self.asleep) {
            moved |= self.resume(fiber, Some(order))?;
        }
        loop {
            while self.pass_warps()? {
                moved = true;
            }
            let waits = !self.asleep.is_empty() || !self.at_warp_barrier.is_empty();
            if waits || self.at_barrier.is_empty() {
                break;
            }
            let ended = self.run.ended.get();
            if ended > 0 {
                return Err(Fault::named(
                    abi::ERROR_LAUNCH_FAILED,
                    format!(
                        "kernel {}: {} threads of a block wait at a barrier that {ended} never \
                         reach",
                        self.run.launch().name,
                        self.at_barrier.len(),
                    ),
                ));
            }
            self.run.counted.set(self.run.votes.take());
            for (fiber, order) in std::mem::take(&mut self.at_barrier) {
                self.resume(fiber, Some(order))?;
            }
            moved = true;
        }
        match self.at_warp_barrier.len() {
            stuck if stuck > 0 && self.asleep.is_empty() => Err(Fault::named(
                abi::ERROR_LAUNCH_FAILED,
                format!(
                    "kernel {}: {stuck} threads wait at a barrier of a warp that the others never \
                     reach",
                    self.run.launch().name,
                ),
            )),
            _ => Ok(moved),
        }
    }

    /// Lets warps go on whose threads have all come to their barrier. True if any has.
    fn pass_warps(&mut self) -> Result<bool> {
        let threads = self.run.threads;
        let warp = |order: usize| match self.run.backward {
            true => (threads - 1 - order) / WARP,
            false => order / WARP,
        };
        let come = &self.at_warp_barrier;
        let is_whole = |which: usize| {
            let here = come.iter().filter(|(_, order)| warp(*order) == which);
            here.count() == WARP.min(threads - which * WARP)
        };
        let whole: Vec<usize> = (0..threads.div_ceil(WARP))
            .filter(|w| is_whole(*w))
            .collect();
        if whole.is_empty() {
            return Ok(false);
        }
        let goes = |(_, order): &(Fiber, usize)| whole.contains(&warp(*order));
        let all = std::mem::take(&mut self.at_warp_barrier);
        let (on, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(goes);
        self.at_warp_barrier = stay;
        for (fiber, order) in on {
            self.resume(fiber, Some(order))?;
        }
        Ok(true)
    }
}

/// A launched kernel, and how far it has come.
pub struct Grid {
    launch: Box<Launch>,
    arguments: Vec<*mut c_void>,
    random: Random,
    blocks: u64,
    /// In which order they begin: from which one, and in which direction.
    first: u64,
    backward: bool,
    begun: u64,
    under_way: Vec<Block>,
    /// One that has ended, whose memory the next one takes.
    spare: Option<Block>,
}

// SAFETY: invariant 1: it is made and used by the worker thread, counts of runs included.
unsafe impl Send for Grid {}

impl std::fmt::Debug for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} of {} blocks",
            self.launch.name, self.begun, self.blocks
        )
    }
}

impl Grid {
    /// One that has not begun.
    pub fn new(launch: Launch, seed: u64) -> Grid {
        let mut launch = Box::new(launch);
        let base = launch.arguments.as_mut_ptr();
        let places = launch.places.iter();
        let arguments = places.map(|&at| base.wrapping_add(at).cast()).collect();
        let blocks = launch.grid.iter().map(|&n| u64::from(n)).product();
        let mut random = Random::new(seed);
        Grid {
            launch,
            arguments,
            blocks,
            first: random.below(blocks.max(1)),
            backward: random.below(2) == 1,
            random,
            begun: 0,
            under_way: Vec::new(),
            spare: None,
        }
    }

    /// Whether all of its threads have ended.
    pub fn is_over(&self) -> bool {
        self.begun == self.blocks && self.under_way.is_empty()
    }

    /// Lets every thread go on that can. The memory of the kernel is open.
    pub fn pass(&mut self) -> Result<Pass> {
        let mut moved = false;
        for block in &mut self.under_way {
            moved |= block.turn()?;
        }
        self.under_way.retain(|block| !block.is_over());
        while self.begun < self.blocks && self.under_way.len() < self.launch.resident {
            let mut block = self.begin();
            block.turn()?;
            match block.is_over() {
                true => self.spare = Some(block),
                false => self.under_way.push(block),
            }
            moved = true;
        }
        Ok(match (self.is_over(), moved) {
            (true, _) => Pass::Over,
            (false, true) => Pass::Moved,
            (false, false) => Pass::Waits,
        })
    }

    fn begin(&mut self) -> Block {
        let last = self.blocks - 1;
        let at = match self.backward {
            true => last - self.begun,
            false => self.begun,
        };
        self.begun += 1;
        let launch = &*self.launch;
        let run = Rc::new(Run {
            launch,
            arguments: self.arguments.as_mut_ptr(),
            next: Cell::new(0),
            threads: launch.block.iter().product::<u32>() as usize,
            backward: self.random.below(2) == 1,
            why: Cell::new(Why::Ended),
            ended: Cell::new(0),
            votes: Cell::new(0),
            counted: Cell::new(0),
            trapped: RefCell::new(None),
        });
        let index = unflatten((at + self.first) % self.blocks, launch.grid);
        let mut block = match self.spare.take() {
            Some(mut block) => {
                (block.run, block.index) = (run, index);
                block
            }
            None => Block {
                run,
                index,
                shared: vec![0; launch.shared_bytes.div_ceil(16).max(1)],
                at_barrier: Vec::new(),
                at_warp_barrier: Vec::new(),
                asleep: Vec::new(),
            },
        };
        // Shared memory holds no defined values when a block begins.
        block.shared.fill(0xa5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5);
        block
    }
}
