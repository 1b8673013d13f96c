//! Apertures: windows in the processor's addresses through which it reads and writes a
//! device's memory itself, by the library of gdrcopy.
//!
//! For a few bytes that is quicker than to ask the device for a copy: writes are posted and
//! combined, reads wait for the bus one by one. The library and its kernel module are no
//! part of the driver, so they are looked for when the first aperture is wanted;
//! `OSIER_GDRCOPY_LIBRARY` names the library, or says `off`.
//!
//! Served is plain memory that this crate has allocated: pools and mapped memory cannot be
//! pinned for the bus unless they were made for it, and of memory of others nobody says
//! when it goes.
//!
//! # Invariants
//! 1. An aperture lies in an allocation that lives: it belongs to its [`Memory`], and goes
//!    before that is given back.
//! 2. What is missing is unavailable with a reason, and asked for once.
//!
//! # Sources
//! gdrcopy 2.5, `gdrapi.h`. Its header warns that work which was queued before the
//! processor writes need not see what it wrote; work that is queued later does.
//! Not tested on hardware.

use crate::driver::Driver;
use crate::error::{DeviceError, Result};
use crate::memory::{Memory, Region, Space};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The variable that names gdrcopy's library.
pub const LIBRARY_VARIABLE: &str = "OSIER_GDRCOPY_LIBRARY";

const LIBRARIES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Pages of a device, of which whole ones are pinned.
const PAGE_BYTES: u64 = 64 << 10;
/// Bytes of an aperture, at multiples of its size: the space for them on the bus is short.
const APERTURE_BYTES: u64 = 2 << 20;
/// Apertures of one allocation.
const MOST: usize = 8;

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
        let named = std::env::var(LIBRARY_VARIABLE).unwrap_or_default();
        if named == "off" {
            let why = format!("{LIBRARY_VARIABLE}=off");
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

/// Whether apertures can be opened at all.
///
/// # Errors
/// Why not, the same at every call.
pub fn available() -> Result<()> {
    Library::get().map(drop)
}

/// A run of pages of a device, mapped.
struct Aperture {
    library: &'static Library,
    handle: Handle,
    host: *mut u8,
    start: u64,
    bytes: usize,
}

// SAFETY: an address that is tied to no thread.
unsafe impl Send for Aperture {}

impl Aperture {
    fn open(library: &'static Library, start: u64, end: u64) -> Result<Aperture> {
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
        Ok(Aperture {
            library,
            handle,
            host: host.cast(),
            start,
            bytes,
        })
    }

    fn holds(&self, at: u64, bytes: usize) -> bool {
        at >= self.start && at + bytes as u64 <= self.start + self.bytes as u64
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        let host = self.host.cast();
        // SAFETY: mapped by `open`.
        unsafe { (self.library.unmap)(self.library.session, self.handle, host, self.bytes) };
        // SAFETY: pinned by `open`, mapped no longer.
        unsafe { (self.library.unpin)(self.library.session, self.handle) };
    }
}

/// What an allocation has open.
#[derive(Default)]
pub(crate) struct Apertures {
    open: Vec<Aperture>,
    /// One could not be opened: none is tried again.
    refused: bool,
}

impl std::fmt::Debug for Apertures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Apertures({})", self.open.len())
    }
}

impl Memory {
    /// Whether the processor reaches some bytes at an address by an aperture; opened now,
    /// if it can be.
    pub fn has_aperture(&self, at: u64, bytes: usize) -> bool {
        self.opened_aperture(at, bytes).is_some()
    }

    fn opened_aperture(&self, at: u64, bytes: usize) -> Option<Opened<'_>> {
        let device = matches!(self.space(), Space::Device(_));
        let library = Library::get().ok()?;
        if !device || !matches!(self.region(), Region::Plain) {
            return None;
        }
        let mut all = lock(self.apertures());
        let (start, end) = (self.address(), self.address() + self.bytes() as u64);
        let last = at.checked_add(bytes as u64)?;
        if at < start || last > end {
            return None;
        }
        let found = all.open.iter().position(|open| open.holds(at, bytes));
        if let Some(found) = found {
            return Some(Opened(all, found));
        }
        let low = at / APERTURE_BYTES * APERTURE_BYTES;
        let (low, high) = (
            low.max(start / PAGE_BYTES * PAGE_BYTES),
            (low + APERTURE_BYTES).min(end.next_multiple_of(PAGE_BYTES)),
        );
        if last > high || all.refused || all.open.len() == MOST {
            return None;
        }
        match Aperture::open(library, low, high) {
            Ok(fresh) => {
                all.open.push(fresh);
                let found = all.open.len() - 1;
                Some(Opened(all, found))
            }
            Err(_) => {
                all.refused = true;
                None
            }
        }
    }

    /// Reads bytes by the processor; what the device writes meanwhile may be among them or
    /// not.
    ///
    /// # Errors
    /// There is no aperture.
    pub fn read_through_aperture(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let opened = self.opened_aperture(at, to.len()).ok_or_else(none)?;
        let (aperture, place) = opened.at(at);
        // SAFETY: mapped for as long as the lock is held, checked to hold so many bytes.
        let code = unsafe {
            (aperture.library.read)(aperture.handle, to.as_mut_ptr().cast(), place, to.len())
        };
        told("gdr_copy_from_mapping", code)
    }

    /// Writes bytes by the processor. Work that is queued afterwards sees them.
    ///
    /// # Errors
    /// There is no aperture.
    pub fn write_through_aperture(&self, at: u64, from: &[u8]) -> Result<()> {
        let opened = self.opened_aperture(at, from.len()).ok_or_else(none)?;
        let (aperture, place) = opened.at(at);
        // SAFETY: as in `read_through_aperture`.
        let code = unsafe {
            (aperture.library.write)(aperture.handle, place, from.as_ptr().cast(), from.len())
        };
        told("gdr_copy_to_mapping", code)
    }
}

/// An aperture that stays open meanwhile.
struct Opened<'a>(MutexGuard<'a, Apertures>, usize);

impl Opened<'_> {
    fn at(&self, at: u64) -> (&Aperture, *mut c_void) {
        let aperture = &self.0.open[self.1];
        let place = aperture.host.wrapping_add((at - aperture.start) as usize);
        (aperture, place.cast())
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

fn lock(apertures: &Mutex<Apertures>) -> MutexGuard<'_, Apertures> {
    apertures.lock().unwrap_or_else(PoisonError::into_inner)
}
