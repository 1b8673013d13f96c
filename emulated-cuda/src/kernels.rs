//! Kernels by name, and how a grid runs: block by block, thread by thread.
//!
//! Threads of a block run one after the other on one fiber, until one meets a
//! barrier: it stays behind on its fiber, and the next thread gets another. When
//! all wait, all go on. So a kernel without barriers costs a call per thread.
//! Blocks run in an order drawn by seed, and threads forward or backward.
//!
//! # Invariants
//! 1. `Run` is used by the worker thread only, as are the fibers.
//! 2. A library's table lives as long as the process.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi;
use crate::fault::{Fault, Result, say};
use crate::fiber::{self, Fiber};
use crate::isolation;
use crate::random::Random;
use crate::record;
use crate::settings::settings;

/// `osier_launch_state` of the shim.
#[repr(C)]
struct LaunchState {
    thread: [u32; 3],
    block: [u32; 3],
    block_dim: [u32; 3],
    grid_dim: [u32; 3],
    shared: *mut c_void,
    barrier: extern "C" fn(),
    trap: extern "C" fn(*const c_char),
    access: Option<extern "C" fn(*const c_void, usize, c_int)>,
}

#[repr(C)]
struct TableEntry {
    name: *const c_char,
    call: extern "C" fn(*mut *mut c_void),
    argument_bytes: *const usize,
    arguments: usize,
}

#[repr(C)]
struct Library {
    version: u32,
    state: *mut LaunchState,
    kernels: *const TableEntry,
    count: usize,
    next: *const Library,
}

#[cfg(has_kernels)]
unsafe extern "C" {
    static osier_kernels: Library;
}

/// A kernel of some library.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    call: extern "C" fn(*mut *mut c_void),
    state: *mut LaunchState,
    /// Bytes of each argument.
    pub argument_bytes: &'static [usize],
}

// SAFETY: `state` is only written by the worker thread (invariant 1).
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Finds a kernel by its name.
pub fn find(name: &str) -> Option<Kernel> {
    known().kernels.get(name).copied()
}

/// What the process has.
#[derive(Default)]
struct Known {
    kernels: HashMap<String, Kernel>,
    /// Images that were loaded: their bytes, and their kernels.
    images: Vec<(Vec<u8>, BTreeSet<String>)>,
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        Mutex::new(Known {
            kernels: table(),
            images: Vec::new(),
        })
    });
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kernels of an image: a library for the host, as bytes. The same bytes are loaded
/// once.
///
/// # Errors
/// The loader takes no such library, or it has no table of kernels.
pub fn load(image: &[u8]) -> Result<BTreeSet<String>> {
    let mut known = known();
    if let Some((_, names)) = known.images.iter().find(|(bytes, _)| bytes == image) {
        return Ok(names.clone());
    }
    let refused = |what: &str| Fault::named(abi::ERROR_INVALID_IMAGE, what);
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"osier-kernels".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(refused("no memory for a library of kernels"));
    }
    // SAFETY: a descriptor of our own.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if file.write_all(image).is_err() {
        return Err(refused("a library of kernels cannot be written to memory"));
    }
    let mut added = HashMap::new();
    open(&mut added, &path).map_err(|why| refused(&format!("an image for the host {why}")))?;
    let names: BTreeSet<String> = added.keys().cloned().collect();
    known.kernels.extend(added);
    known.images.push((image.to_vec(), names.clone()));
    Ok(names)
}

fn table() -> HashMap<String, Kernel> {
    let mut found = HashMap::new();
    #[cfg(has_kernels)]
    add(&mut found, &raw const osier_kernels);
    for path in &settings().kernels {
        let Ok(c_path) = CString::new(path.as_str()) else {
            continue;
        };
        if let Err(why) = open(&mut found, &c_path) {
            say(&format!("OSIER_EMULATED_KERNELS: {path} {why}"));
        }
    }
    found
}

/// Loads a library and adds its kernels; else says why not.
fn open(found: &mut HashMap<String, Kernel>, path: &CStr) -> std::result::Result<(), &'static str> {
    // SAFETY: a C string; loading runs only what the linker has put there, for the
    // shim has no constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err("cannot be loaded");
    }
    // SAFETY: an open library and a C string.
    let symbol = unsafe { libc::dlsym(library, c"osier_kernels".as_ptr()) };
    if symbol.is_null() {
        return Err("has no kernels");
    }
    add(found, symbol.cast());
    Ok(())
}

fn add(found: &mut HashMap<String, Kernel>, mut library: *const Library) {
    while !library.is_null() {
        // SAFETY: a library's table as the shim lays it out (invariant 2).
        let this = unsafe { &*library };
        if this.version != 2 {
            say("a library of kernels was built for another version of the emulated driver");
            return;
        }
        for index in 0..this.count {
            let entry = this.kernels.wrapping_add(index);
            // SAFETY: the table has `count` entries, of which this is one.
            let entry = unsafe { &*entry };
            // SAFETY: a literal of the library.
            let name = unsafe { CStr::from_ptr(entry.name) };
            // SAFETY: the array has `arguments` entries.
            let argument_bytes =
                unsafe { std::slice::from_raw_parts(entry.argument_bytes, entry.arguments) };
            found.insert(
                name.to_string_lossy().into_owned(),
                Kernel {
                    call: entry.call,
                    state: this.state,
                    argument_bytes,
                },
            );
        }
        library = this.next;
    }
}

/// A kernel with its arguments, copied at the launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its name, for errors.
    pub name: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
    /// Arguments, each at a multiple of 16 bytes.
    pub arguments: Vec<u128>,
    /// Where each argument begins, in units of 16 bytes.
    pub places: Vec<usize>,
}

/// What the fibers and the scheduler share.
struct Run {
    launch: *const Launch,
    pointers: RefCell<Vec<*mut c_void>>,
    /// The next thread to begin, in the order of this block.
    next: Cell<usize>,
    threads: usize,
    backward: Cell<bool>,
    waits: Cell<bool>,
    ended: Cell<usize>,
    trapped: RefCell<Option<String>>,
}

thread_local! {
    static RUN: Cell<*const Run> = const { Cell::new(std::ptr::null()) };
    static FIBERS: RefCell<Vec<Fiber>> = const { RefCell::new(Vec::new()) };
}

/// The run of this thread; only called below `run`.
fn current() -> &'static Run {
    // SAFETY: `run` has set it to a value that lives until it returns, and all
    // callers are fibers that end before that.
    unsafe { &*RUN.get() }
}

extern "C" fn barrier() {
    current().waits.set(true);
    fiber::give_back();
}

extern "C" fn trap(what: *const c_char) {
    // SAFETY: a literal of the shim.
    let what = unsafe { CStr::from_ptr(what) };
    *current().trapped.borrow_mut() = Some(what.to_string_lossy().into_owned());
    loop {
        fiber::give_back();
    }
}

fn position(run: &Run, launch: &Launch, order: usize) -> [u32; 3] {
    let flat = match run.backward.get() {
        true => run.threads - 1 - order,
        false => order,
    };
    unflatten(flat as u64, launch.block)
}

fn unflatten(flat: u64, dim: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(dim[0]), u64::from(dim[1]));
    [
        (flat % x) as u32,
        (flat / x % y) as u32,
        (flat / (x * y)) as u32,
    ]
}

/// A fiber's life: threads, one after the other.
extern "C" fn fiber_main() {
    let run = current();
    // SAFETY: `run` keeps the launch alive.
    let launch = unsafe { &*run.launch };
    let state = launch.kernel.state;
    while run.next.get() < run.threads {
        let order = run.next.get();
        run.next.set(order + 1);
        let thread = position(run, launch, order);
        // SAFETY: only this thread uses the state (invariant 1).
        unsafe { (*state).thread = thread };
        let arguments = run.pointers.as_ptr();
        // SAFETY: nobody else borrows the pointers while kernels run.
        let arguments = unsafe { (*arguments).as_mut_ptr() };
        (launch.kernel.call)(arguments);
        run.ended.set(run.ended.get() + 1);
    }
    run.waits.set(false);
    loop {
        fiber::give_back();
    }
}

/// Runs all blocks. The memory of the kernel is open.
pub fn run(launch: &mut Launch, seed: u64) -> Result {
    let mut random = Random::new(seed);
    let threads = launch.block.iter().product::<u32>() as usize;
    let blocks: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
    let mut shared = vec![0u128; launch.shared_bytes.div_ceil(16).max(1)];
    let base = launch.arguments.as_mut_ptr();
    let pointers = launch
        .places
        .iter()
        .map(|&at| base.wrapping_add(at).cast::<c_void>())
        .collect();
    let run = Run {
        launch,
        pointers: RefCell::new(pointers),
        next: Cell::new(0),
        threads,
        backward: Cell::new(false),
        waits: Cell::new(false),
        ended: Cell::new(0),
        trapped: RefCell::new(None),
    };
    RUN.set(&run);
    let state = launch.kernel.state;
    let first = random.below(blocks.max(1));
    let backward = random.below(2) == 1;
    let mut done = Ok(());
    for index in 0..blocks {
        let index = if backward { blocks - 1 - index } else { index };
        let block = unflatten((index + first) % blocks, launch.grid);
        // Shared memory holds no defined values when a block begins.
        shared.fill(0xa5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5);
        // SAFETY: only this thread uses the state (invariant 1).
        unsafe {
            *state = LaunchState {
                thread: [0; 3],
                block,
                block_dim: launch.block,
                grid_dim: launch.grid,
                shared: shared.as_mut_ptr().cast(),
                barrier,
                trap,
                access: settings().order.then_some(record::note),
            }
        };
        run.next.set(0);
        run.ended.set(0);
        run.backward.set(random.below(2) == 1);
        done = one_block(&run, launch, state);
        if done.is_err() {
            break;
        }
    }
    RUN.set(std::ptr::null());
    done
}

fn one_block(run: &Run, launch: &Launch, state: *mut LaunchState) -> Result {
    FIBERS.with_borrow_mut(|fibers| {
        // Fibers that wait at the barrier, with the thread that each carries.
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        let mut used = 0;
        while run.next.get() < run.threads {
            if used == fibers.len() {
                fibers.push(Fiber::new().ok_or_else(|| {
                    Fault::named(abi::ERROR_LAUNCH_OUT_OF_RESOURCES, "no memory for stacks")
                })?);
            }
            let fiber = &fibers[used];
            fiber.begin(fiber_main);
            run.waits.set(false);
            fiber.run();
            check(run, launch)?;
            if run.waits.get() {
                waiting.push((used, run.next.get() - 1));
                used += 1;
            }
        }
        while !waiting.is_empty() {
            if run.ended.get() > 0 {
                let (ended, wait) = (run.ended.get(), waiting.len());
                return Err(Fault::named(
                    abi::ERROR_LAUNCH_FAILED,
                    format!(
                        "kernel {}: {wait} threads of a block wait at a barrier that {ended} never reach",
                        launch.name
                    ),
                ));
            }
            let mut still = Vec::new();
            for &(fiber, order) in &waiting {
                let thread = position(run, launch, order);
                // SAFETY: only this thread uses the state (`run`'s invariant 1).
                unsafe { (*state).thread = thread };
                run.waits.set(false);
                fibers[fiber].run();
                check(run, launch)?;
                if run.waits.get() {
                    still.push((fiber, order));
                }
            }
            waiting = still;
        }
        Ok(())
    })
}

fn check(run: &Run, launch: &Launch) -> Result {
    if let Some(what) = run.trapped.borrow_mut().take() {
        return Err(Fault::named(
            abi::ERROR_LAUNCH_FAILED,
            format!("kernel {}: {what}", launch.name),
        ));
    }
    match isolation::caught() {
        0 => Ok(()),
        address => Err(Fault::named(
            abi::ERROR_ILLEGAL_ADDRESS,
            format!("kernel {} touches 0x{address:x}", launch.name),
        )),
    }
}
