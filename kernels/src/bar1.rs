//! BAR1 windows: windows in the processor's addresses through which it reads and writes a
//! device's memory itself, by the library of gdrcopy.
//!
//! For a few bytes that is quicker than to ask the device for a copy: writes are posted and
//! combined, reads wait for the bus one by one. The library and its kernel module are no
//! part of the driver, so they are looked for when the first BAR1 window is wanted;
//! the key `gdrcopy-library` of `OSIER_DEBUG` names the library, or says `off`.
//!
//! Served is plain memory: pools and mapped memory cannot be pinned for the bus unless they
//! were made for it. Of memory that other libraries keep nobody says when it goes; so its
//! BAR1 windows belong to the context, by the driver's number of the allocation.
//!
//! # Invariants
//! 1. A BAR1 window is used only in an allocation that lives. One of our own belongs to its
//!    [`Memory`], and goes before that is given back; of another library's the driver is
//!    asked for the allocation's number before each use.
//! 2. What is missing is unavailable with a reason, and asked for once.
//! 3. BAR1 windows are few: `MOST` of an allocation of ours, `MOST_OF_OTHERS` of a
//!    device's other memory, of which those go that have outlived their allocations.
//!
//! # Sources
//! gdrcopy 2.5, `gdrapi.h`. Its header warns that work which was queued before the
//! processor writes need not see what it wrote; work that is queued later does.
//! Not tested on hardware.

use crate::classify::buffer;
use crate::debug::{self, GDRCOPY_LIBRARY};
use crate::driver::Driver;
use crate::error::{DeviceError, Result};
use crate::files;
use crate::handle::Made;
use crate::memory::{Memory, Region, Space};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const LIBRARIES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Pages of a device, of which whole ones are pinned.
const PAGE_BYTES: u64 = 64 << 10;
/// Bytes of a BAR1 window, at multiples of its size: the space for them on the bus is short.
const BAR1_BYTES: u64 = 2 << 20;
/// BAR1 windows of one allocation.
const MOST: usize = 8;
/// BAR1 windows of a device's memory that other libraries keep.
const MOST_OF_OTHERS: usize = 32;
/// In place of a number: the BAR1 windows are of one allocation. The driver's begin with 1.
const OWN: u64 = 0;
/// Where there is no room, the driver is asked which have outlived their allocations once in
/// so many times.
const MISSES: u32 = 64;

/// `gdr_t`.
type Session = *mut c_void;

/// `gdr_mh_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle(c_ulong);

type OpenFn = unsafe extern "C" fn() -> Session;
type PinFn = unsafe extern "C" fn(Session, c_ulong, usize, u64, u32, *mut Handle) -> c_int;
type UnpinFn = unsafe extern "C" fn(Session, Handle) -> c_int;
type MapFn = unsafe extern "C" fn(Session, Handle, *mut *mut c_void, usize) -> c_int;
type UnmapFn = unsafe extern "C" fn(Session, Handle, *mut c_void, usize) -> c_int;
type WriteFn = unsafe extern "C" fn(Handle, *mut c_void, *const c_void, usize) -> c_int;
type ReadFn = unsafe extern "C" fn(Handle, *mut c_void, *const c_void, usize) -> c_int;

/// The library, with its connection to the kernel module.
struct Library {
    session: Session,
    pin: PinFn,
    unpin: UnpinFn,
    map: MapFn,
    unmap: UnmapFn,
    write: WriteFn,
    read: ReadFn,
    /// Open for as long as the process lives; none if it is the driver's.
    _library: Option<libloading::Library>,
}

// SAFETY: the library locks what its session holds.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The process's library: invariant 2.
    fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
        LIBRARY
            .get_or_init(Library::load)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load() -> Result<Library> {
        let named = debug::value(GDRCOPY_LIBRARY).unwrap_or_default();
        let named = named.to_string_lossy();
        if named == "off" {
            let why = format!("{}={GDRCOPY_LIBRARY}=off", debug::VARIABLE);
            return Err(DeviceError::Unavailable(why));
        }
        // A driver that brings its own knows its own addresses.
        let driver = Driver::get()?.loaded();
        // SAFETY: the signature is that of the header.
        let own = unsafe { driver.get::<OpenFn>(b"gdr_open\0") }.is_ok();
        if own {
            return Library::of(driver);
        }
        let names: Vec<&str> = match named.is_empty() {
            true => LIBRARIES.to_vec(),
            false => vec![&named],
        };
        let mut why = None;
        for name in names {
            files::may_be_loaded(name.as_ref())
                .map_err(|why| DeviceError::Unavailable(format!("cannot load {name}: {why}")))?;
            // SAFETY: the library's initialisers run; it is the system's, or one that the
            // user names.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => {
                    let mut found = Library::of(&library)?;
                    found._library = Some(library);
                    return Ok(found);
                }
                Err(_) => {
                    why.get_or_insert(format!(
                        "cannot load {name} (hint: install gdrcopy's library)"
                    ));
                }
            }
        }
        Err(DeviceError::Unavailable(why.unwrap_or_default()))
    }

    fn of(from: &libloading::Library) -> Result<Library> {
        let missing = |_| DeviceError::Unavailable("the library of gdrcopy is too old".into());
        macro_rules! function {
            ($name:literal, $ty:ty) => {{
                // SAFETY: the signature is that of the header.
                let found = unsafe { from.get::<$ty>(concat!($name, "\0").as_bytes()) };
                *found.map_err(missing)?
            }};
        }
        let open = function!("gdr_open", OpenFn);
        // SAFETY: any thread may open.
        let session = unsafe { open() };
        if session.is_null() {
            let why = "gdr_open has failed (hint: is the kernel module gdrdrv loaded?)";
            return Err(DeviceError::Unavailable(why.into()));
        }
        Ok(Library {
            session,
            pin: function!("gdr_pin_buffer", PinFn),
            unpin: function!("gdr_unpin_buffer", UnpinFn),
            map: function!("gdr_map", MapFn),
            unmap: function!("gdr_unmap", UnmapFn),
            write: function!("gdr_copy_to_mapping", WriteFn),
            read: function!("gdr_copy_from_mapping", ReadFn),
            _library: None,
        })
    }
}

/// Whether BAR1 windows can be opened at all.
///
/// # Errors
/// Why not, the same at every call.
pub fn available() -> Result<()> {
    Library::get().map(drop)
}

/// A run of pages of a device, mapped.
struct Bar1Window {
    library: &'static Library,
    handle: Handle,
    host: *mut u8,
    start: u64,
    bytes: usize,
}

// SAFETY: an address that is tied to no thread.
unsafe impl Send for Bar1Window {}

impl Bar1Window {
    fn open(library: &'static Library, start: u64, end: u64) -> Result<Bar1Window> {
        let failed = |call: &str, code: c_int| {
            DeviceError::Unavailable(format!("{call} has failed with {code}"))
        };
        let bytes = (end - start) as usize;
        let mut handle = Handle(0);
        // SAFETY: a place for one handle; pages of an allocation that lives.
        let code = unsafe { (library.pin)(library.session, start, bytes, 0, 0, &mut handle) };
        if code != 0 {
            return Err(failed("gdr_pin_buffer", code));
        }
        let mut host = std::ptr::null_mut();
        // SAFETY: a place for one address; pinned above.
        let code = unsafe { (library.map)(library.session, handle, &mut host, bytes) };
        if code != 0 {
            // SAFETY: pinned above, not mapped.
            unsafe { (library.unpin)(library.session, handle) };
            return Err(failed("gdr_map", code));
        }
        Ok(Bar1Window {
            library,
            handle,
            host: host.cast(),
            start,
            bytes,
        })
    }

    /// Where the processor finds an address of the device.
    fn place(&self, at: u64) -> *mut c_void {
        self.host.wrapping_add((at - self.start) as usize).cast()
    }
}

impl Drop for Bar1Window {
    fn drop(&mut self) {
        let host = self.host.cast();
        // SAFETY: mapped by `open`.
        unsafe { (self.library.unmap)(self.library.session, self.handle, host, self.bytes) };
        // SAFETY: pinned by `open`, mapped no longer.
        unsafe { (self.library.unpin)(self.library.session, self.handle) };
    }
}

/// A part of an allocation.
struct Part {
    /// The driver's number of the allocation, or [`OWN`].
    number: u64,
    start: u64,
    end: u64,
    /// An address in it that was asked for.
    asked: u64,
    /// None: the allocation cannot be reached so, and is not tried again.
    bar1: Option<Bar1Window>,
}

impl Part {
    fn holds(&self, number: u64, at: u64, bytes: usize) -> bool {
        self.number == number && at >= self.start && at + bytes as u64 <= self.end
    }
}

/// What is open of an allocation, or of a device's memory that other libraries keep.
#[derive(Default)]
pub(crate) struct Bar1Windows {
    parts: Vec<Part>,
    misses: u32,
}

impl std::fmt::Debug for Bar1Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bar1Windows({})", self.parts.len())
    }
}

impl Bar1Windows {
    /// The BAR1 window for some bytes of an allocation, which is our own, or another library's
    /// with the driver's number; opened now if it can be.
    fn of(&mut self, memory: &Memory, number: u64, at: u64, bytes: usize) -> Option<&Bar1Window> {
        let library = Library::get().ok()?;
        let known = |part: &Part| part.holds(number, at, bytes);
        if let Some(known) = self.parts.iter().position(known) {
            return self.parts[known].bar1.as_ref();
        }
        let all = memory.address()..memory.address() + memory.bytes() as u64;
        let low = at / BAR1_BYTES * BAR1_BYTES;
        let start = low.max(all.start / PAGE_BYTES * PAGE_BYTES);
        let end = (low + BAR1_BYTES).min(all.end.next_multiple_of(PAGE_BYTES));
        if at + bytes as u64 > end {
            return None;
        }
        let lives = |part: &Part| buffer(memory.context(), part.asked) == Ok(part.number);
        // Whoever had the addresses before may be gone.
        self.parts.retain(|part| {
            let elsewhere = part.end <= start || end <= part.start;
            elsewhere || part.number == number || lives(part)
        });
        let most = if number == OWN { MOST } else { MOST_OF_OTHERS };
        if self.parts.len() >= most {
            self.misses = self.misses.wrapping_add(1);
            if number == OWN || self.misses % MISSES != 1 {
                return None;
            }
            self.parts.retain(lives);
            if self.parts.len() >= most {
                return None;
            }
        }
        let plain = number == OWN || Made::of(memory) == Ok(Made::Plain);
        let bar1 = plain.then(|| Bar1Window::open(library, start, end).ok());
        let bar1 = bar1.flatten();
        let (start, end) = match &bar1 {
            Some(_) => (start, end),
            None => (all.start, all.end),
        };
        self.parts.push(Part {
            number,
            start,
            end,
            asked: at,
            bar1,
        });
        self.parts.last()?.bar1.as_ref()
    }
}

impl Memory {
    /// Whether the processor reaches some bytes at an address by a BAR1 window; opened now,
    /// if it can be.
    pub fn has_bar1(&self, at: u64, bytes: usize) -> bool {
        self.with_bar1(at, bytes, |_| ()).is_some()
    }

    /// Does something with the BAR1 window for some bytes, which stays open meanwhile.
    fn with_bar1<R>(
        &self,
        at: u64,
        bytes: usize,
        then: impl FnOnce(&Bar1Window) -> R,
    ) -> Option<R> {
        Library::get().ok()?;
        let all = self.address()..self.address() + self.bytes() as u64;
        let last = at.checked_add(bytes as u64)?;
        if !matches!(self.space(), Space::Device(_)) || at < all.start || last > all.end {
            return None;
        }
        match self.region() {
            Region::Plain(_) | Region::Managed => {
                let mut own = lock(self.bar1_windows());
                own.of(self, OWN, at, bytes).map(then)
            }
            Region::Foreign {
                buffer: Some(number),
            } => {
                let mut others = lock(self.context().bar1_windows_of_others());
                // Behind the lock: nothing is older than the answer.
                self.check_lives().ok()?;
                others.of(self, *number, at, bytes).map(then)
            }
            _ => None,
        }
    }

    /// Reads bytes by the processor; what the device writes meanwhile may be among them or
    /// not.
    ///
    /// # Errors
    /// There is no BAR1 window.
    pub fn read_through_bar1(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let bytes = to.len();
        let read = |bar1: &Bar1Window| {
            let place = bar1.place(at);
            // SAFETY: mapped for as long as the lock is held, checked to have this length.
            unsafe { (bar1.library.read)(bar1.handle, to.as_mut_ptr().cast(), place, bytes) }
        };
        let code = self.with_bar1(at, bytes, read).ok_or_else(none)?;
        told("gdr_copy_from_mapping", code)
    }

    /// Writes bytes by the processor. Work that is queued afterwards sees them.
    ///
    /// # Errors
    /// There is no BAR1 window.
    pub fn write_through_bar1(&self, at: u64, from: &[u8]) -> Result<()> {
        let write = |bar1: &Bar1Window| {
            let place = bar1.place(at);
            // SAFETY: mapped for as long as the lock is held, checked to hold so many bytes.
            unsafe { (bar1.library.write)(bar1.handle, place, from.as_ptr().cast(), from.len()) }
        };
        let code = self.with_bar1(at, from.len(), write).ok_or_else(none)?;
        told("gdr_copy_to_mapping", code)
    }
}

fn none() -> DeviceError {
    DeviceError::Unavailable("the processor does not reach this memory".into())
}

fn told(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(DeviceError::Unavailable(format!(
            "{call} has failed with {code}"
        ))),
    }
}

fn lock(bar1_windows: &Mutex<Bar1Windows>) -> MutexGuard<'_, Bar1Windows> {
    bar1_windows.lock().unwrap_or_else(PoisonError::into_inner)
}
