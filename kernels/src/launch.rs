//! The kernels of one device: modules loaded at first use, functions by name.
//!
//! Binaries for the device's architecture (cubins) are taken where they lie, so that
//! nothing is compiled at first use: in the folder that `OSIER_CUBINS` names, else in
//! `cubins` beside the executable. `cargo xtask kernels --cubins` makes them. Else the
//! driver compiles the embedded PTX, and keeps what it made.
//!
//! # Invariants
//! 1. A module is loaded once per context, and lives as long: until the process ends.
//! 2. A launch for the whole device has a thread block for each piece of work, not only those
//!    that are resident at once: blocks then begin in the order of memory, where resident ones
//!    that go on to further pieces drift apart. On an H200 a copy of 256 MiB by words of 8
//!    bytes reads 2,051 GB/s so, 1,881 with 8 blocks for each multiprocessor; the driver's
//!    copy 2,097. Kernels that search long are the exception (`Grid::resident`; decision 0302).
//! 3. A binary is of the same source as the PTX: the source's digest is in its name.
//!    One that the driver refuses is passed over.

use crate::device::{BLOCKS_PER_MULTIPROCESSOR, Context};
use crate::driver::{Driver, abi};
use crate::error::{DeviceError, Result};
use crate::plan::arguments::THREADS;
use crate::ptx;
use crate::stream::Stream;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

/// A binary of the kernels is no longer.
const MOST_IMAGE_BYTES: u64 = 1 << 30;

/// The driver cannot compile PTX of this version.
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// Modules, each loaded when a kernel of it is first asked for.
#[derive(Default)]
pub(crate) struct Kernels {
    loaded: Mutex<Loaded>,
    /// Thread blocks that may be waiting for other devices at once.
    pub waiting: AtomicU32,
}

/// What a module was loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The embedded PTX, compiled by the driver.
    Ptx,
    /// A binary.
    Cubin(PathBuf),
}

/// The variable that names a folder of binaries.
pub const CUBINS_VARIABLE: &str = "OSIER_CUBINS";

#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, (abi::Module, Image)>,
    functions: HashMap<Box<str>, Kernel>,
}

/// A kernel of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub function: abi::Function,
    /// Thread blocks of [`THREADS`] threads that the device runs at once.
    pub resident: u32,
}

impl Kernel {
    fn new(context: &Context, driver: &Driver, function: abi::Function) -> Kernel {
        let mut blocks = 0;
        // SAFETY: a place for one number; the function is of the current context.
        let told = unsafe {
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function,
                THREADS as i32,
                0,
            )
        };
        let each = match told {
            Ok(()) if blocks > 0 => blocks as u32,
            _ => BLOCKS_PER_MULTIPROCESSOR,
        };
        Kernel {
            function,
            resident: context.multiprocessors() * each,
        }
    }
}

impl Kernels {
    /// A kernel by name; the name of its module is part of it.
    pub fn kernel(&self, context: &Context, name: &str) -> Result<Kernel> {
        let mut loaded = self.loaded.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(&kernel) = loaded.functions.get(name) {
            return Ok(kernel);
        }
        let absent = || DeviceError::Unavailable(format!("there is no kernel {name}"));
        let driver = context.enter()?;
        let stem = ptx::modules()
            .find(|stem| name.contains(stem))
            .ok_or_else(absent)?;
        let module = match loaded.modules.get(stem) {
            Some(&(module, _)) => module,
            None => {
                let text = ptx::text(stem)?;
                let (module, image) = match cubin(&driver, context.capability(), stem, &text) {
                    Some((module, path)) => (module, Image::Cubin(path)),
                    None => (load(&driver, stem, &text)?, Image::Ptx),
                };
                loaded.modules.insert(stem, (module, image));
                module
            }
        };
        let symbol = CString::new(name).map_err(|_| absent())?;
        let mut function = abi::Function::NULL;
        // SAFETY: a place for one function; the name ends with zero.
        unsafe { driver.cuModuleGetFunction(&mut function, module, symbol.as_ptr()) }?;
        let kernel = Kernel::new(context, &driver, function);
        loaded.functions.insert(name.into(), kernel);
        Ok(kernel)
    }
}

impl Kernels {
    /// Loads a module with all of its kernels.
    pub fn load_all(&self, context: &Context, stem: &'static str) -> Result<()> {
        let text = ptx::text(stem)?;
        for name in ptx::entries(&text) {
            self.kernel(context, name)?;
        }
        Ok(())
    }
}

/// The modules that a device has loaded, and from what.
pub fn images(context: &Context) -> Vec<(&'static str, Image)> {
    let loaded = context.kernels().loaded.lock();
    let loaded = loaded.unwrap_or_else(|e| e.into_inner());
    let modules = loaded.modules.iter();
    let mut images: Vec<_> = modules
        .map(|(stem, (_, image))| (*stem, image.clone()))
        .collect();
    images.sort_by_key(|(stem, _)| *stem);
    images
}

/// The file of a module's binary: for all devices of one major version, and of the
/// source that the PTX is of.
fn cubin_name(stem: &str, text: &str, (major, _): (i32, i32)) -> Option<String> {
    let digest = text
        .lines()
        .find_map(|line| line.strip_prefix("// source: "))?;
    Some(format!("{stem}-{digest}.sm_{major}0.cubin"))
}

/// A module from a binary, where there is one that the driver takes.
fn cubin(
    driver: &Driver,
    capability: (i32, i32),
    stem: &str,
    text: &str,
) -> Option<(abi::Module, PathBuf)> {
    let name = cubin_name(stem, text, capability)?;
    let named = std::env::var_os(CUBINS_VARIABLE).filter(|folder| !folder.is_empty());
    let folder = match named {
        Some(folder) => PathBuf::from(folder),
        None => std::env::current_exe().ok()?.parent()?.join("cubins"),
    };
    let path = folder.join(name);
    let image = crate::files::read(&path, MOST_IMAGE_BYTES).ok()?;
    let mut module = abi::Module::NULL;
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    let at = image.as_ptr().cast::<c_void>();
    // SAFETY: a place for one module; the file is a binary that xtask made, or one
    // that the user put there under its name.
    unsafe { driver.cuModuleLoadDataEx(&mut module, at, 0, options, values) }.ok()?;
    Some((module, path))
}

/// Compiles a module for the current device.
fn load(driver: &Driver, name: &str, text: &str) -> Result<abi::Module> {
    let image = CString::new(text)
        .map_err(|_| DeviceError::Unavailable(format!("the kernels of {name} hold a zero byte")))?;
    let mut module = abi::Module::NULL;
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    let at = image.as_ptr().cast::<c_void>();
    // SAFETY: a place for one module; the image ends with zero.
    match unsafe { driver.cuModuleLoadDataEx(&mut module, at, 0, options, values) } {
        Ok(()) => Ok(module),
        Err(error) if error.code() == Some(UNSUPPORTED_PTX_VERSION) => {
            let needed = match name {
                "exchange_multicast" => "12.1",
                _ => "12.0",
            };
            Err(DeviceError::Unavailable(format!(
                "the driver is too old for the kernels of {name}, which need CUDA {needed}: {error}"
            )))
        }
        Err(error) => Err(error),
    }
}

/// A kernel of an image of the user; its module stays.
pub(crate) fn load_user(context: &Context, image: &[u8], entry: &str) -> Result<Kernel> {
    let driver = context.enter()?;
    // Text must end with zero, and a binary is none the worse for it.
    let mut bytes = image.to_vec();
    bytes.push(0);
    let mut module = abi::Module::NULL;
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    let at = bytes.as_ptr().cast::<c_void>();
    // SAFETY: a place for one module; the image ends with zero.
    unsafe { driver.cuModuleLoadDataEx(&mut module, at, 0, options, values) }?;
    let symbol = CString::new(entry)
        .map_err(|_| DeviceError::Unavailable(format!("there is no kernel {entry:?}")))?;
    let mut function = abi::Function::NULL;
    // SAFETY: a place for one function; the name ends with zero.
    unsafe { driver.cuModuleGetFunction(&mut function, module, symbol.as_ptr()) }?;
    Ok(Kernel::new(context, &driver, function))
}

/// Thread blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// That have work to do.
    pub useful: u64,
    /// That are launched.
    pub blocks: u32,
    /// No more than are resident at once: for kernels that ask many questions before they
    /// move a chunk, where blocks that go on are quicker than blocks that begin.
    pub resident: bool,
}

impl Grid {
    /// One block, which does all of the work.
    pub const ONE: Grid = Grid {
        useful: 1,
        blocks: 1,
        resident: false,
    };
}

/// `osier_last`: the word that a kernel raises with its last store, or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    word: u64,
    number: u32,
    unused: u32,
}

impl Last {
    /// The word at an address, which gets a number; the grid has one block.
    pub fn new(word: u64, number: u32) -> Last {
        Last {
            word,
            number,
            unused: 0,
        }
    }
}

/// Queues a kernel of [`THREADS`] threads a block that takes its word as a second argument.
///
/// # Safety
/// As [`launch`]; the word is pinned memory that stays as long.
///
/// # Errors
/// As [`launch`].
pub(crate) unsafe fn launch_telling<A: Copy>(
    stream: &Stream,
    name: &'static str,
    grid: Grid,
    argument: &A,
    last: Last,
) -> Result<()> {
    let context = stream.context();
    let kernel = context.kernels().kernel(context, name)?;
    let mut arguments = [
        std::ptr::from_ref(argument).cast_mut().cast::<c_void>(),
        std::ptr::from_ref(&last).cast_mut().cast::<c_void>(),
    ];
    let blocks = match grid.resident {
        true => grid.blocks.min(kernel.resident),
        false => grid.blocks,
    };
    // SAFETY: the caller's contract.
    unsafe { launch_function(stream, kernel.function, blocks, THREADS, &mut arguments) }
}

/// Queues one kernel with one argument: `grid` thread blocks of `threads` threads.
///
/// # Safety
/// `A` is the kernel's parameter in layout, and what it points at stays valid
/// until the kernel is over.
///
/// # Errors
/// There is no such kernel, or the driver refuses.
pub unsafe fn launch<A: Copy>(
    stream: &Stream,
    name: &'static str,
    grid: u32,
    threads: u32,
    argument: &A,
) -> Result<()> {
    let context = stream.context();
    let kernel = context.kernels().kernel(context, name)?;
    let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
    // SAFETY: the caller's contract.
    unsafe { launch_function(stream, kernel.function, grid, threads, &mut arguments) }
}

/// Queues a kernel with the addresses of its arguments.
///
/// # Safety
/// The arguments are the kernel's, and what they point at stays valid until the
/// kernel is over.
pub(crate) unsafe fn launch_function(
    stream: &Stream,
    function: abi::Function,
    grid: u32,
    threads: u32,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    let driver = stream.context().enter()?;
    // SAFETY: the caller's contract; the driver copies the arguments here.
    unsafe {
        driver.cuLaunchKernel(
            function,
            grid,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream.raw(),
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}
