//! Kernels by name: those that are linked, of libraries that the environment names, and of
//! images that were loaded. How they run is in [`grid`](crate::grid).
//!
//! # Invariants
//! 1. A library's state is written by the worker thread only.
//! 2. A library's table lives as long as the process.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi;
use crate::fault::{Fault, Result, say};
use crate::grid::LaunchState;
use crate::settings::settings;

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
    /// Calls it for one thread, with the addresses of its arguments.
    pub call: extern "C" fn(*mut *mut c_void),
    /// What its threads know of themselves.
    pub state: *mut LaunchState,
    /// Bytes of each argument.
    pub argument_bytes: &'static [usize],
    /// It is one of Osier's, not of the program's.
    pub own: bool,
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
    add(&mut found, &raw const osier_kernels, true);
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
    add(found, symbol.cast(), false);
    Ok(())
}

fn add(found: &mut HashMap<String, Kernel>, mut library: *const Library, own: bool) {
    while !library.is_null() {
        // SAFETY: a library's table as the shim lays it out (invariant 2).
        let this = unsafe { &*library };
        if this.version != 6 {
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
                    own,
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
    /// Blocks that the device runs at a time.
    pub resident: usize,
}
