//! The library of gdrcopy, in so far as it is used: windows in the host's addresses on
//! plain device memory. There only with `OSIER_EMULATED_GDRCOPY=1`.
//!
//! A mapping is the device's own addresses, which the host may not touch; the copies take
//! the driver's view of the memory behind them.
//!
//! # Sources
//! gdrcopy 2.5, `gdrapi.h`.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, PoisonError};

use crate::driver::lock;
use crate::memory::{Allocation, Kind};
use crate::settings::settings;

const PAGE_BYTES: u64 = 64 << 10;

/// A run of pages that is pinned.
struct Pinned {
    handle: u64,
    start: u64,
    bytes: u64,
    mapped: bool,
}

/// What is pinned, and the last handle.
static PINNED: Mutex<(u64, Vec<Pinned>)> = Mutex::new((0, Vec::new()));

fn pinned<T>(f: impl FnOnce(&mut u64, &mut Vec<Pinned>) -> T) -> T {
    let mut all = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let (last, all) = &mut *all;
    f(last, all)
}

fn refuse(what: &str) -> c_int {
    if settings().print {
        eprintln!("emulated gdrcopy: {what}");
    }
    libc::EINVAL
}

/// `gdr_mh_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedHandle(pub c_ulong);

/// `gdr_open`: null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_open() -> *mut c_void {
    match settings().gdrcopy {
        true => std::ptr::dangling_mut(),
        false => std::ptr::null_mut(),
    }
}

/// `gdr_pin_buffer`.
///
/// # Safety
/// `handle` is a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_pin_buffer(
    _session: *mut c_void,
    start: c_ulong,
    bytes: usize,
    _token: u64,
    _space: u32,
    handle: *mut MappedHandle,
) -> c_int {
    if !start.is_multiple_of(PAGE_BYTES) || bytes == 0 {
        return refuse("gdr_pin_buffer: no whole pages");
    }
    let end = start + bytes as u64;
    let Ok(state) = lock() else {
        return libc::ENODEV;
    };
    // Whole pages: what else lies in them is not looked at before it is touched.
    let plain = |a: &Allocation| a.kind == Kind::Device && a.start < end && start < a.end();
    let any = state.memory.all().any(plain);
    drop(state);
    if !any {
        return refuse("gdr_pin_buffer: no plain device memory");
    }
    let fresh = pinned(|last, all| {
        *last += 1;
        all.push(Pinned {
            handle: *last,
            start,
            bytes: bytes as u64,
            mapped: false,
        });
        *last
    });
    // SAFETY: the caller's contract.
    unsafe { handle.write(MappedHandle(fresh)) };
    0
}

/// `gdr_unpin_buffer`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unpin_buffer(_session: *mut c_void, handle: MappedHandle) -> c_int {
    let found = pinned(|_, all| {
        let found = all.iter().position(|p| p.handle == handle.0 && !p.mapped);
        found.map(|at| all.swap_remove(at))
    });
    match found {
        Some(_) => 0,
        None => refuse("gdr_unpin_buffer: not pinned, or still mapped"),
    }
}

/// `gdr_map`.
///
/// # Safety
/// `at` is a place for one address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_map(
    _session: *mut c_void,
    handle: MappedHandle,
    at: *mut *mut c_void,
    bytes: usize,
) -> c_int {
    let start = pinned(|_, all| {
        let bytes = bytes as u64;
        let found = (all.iter_mut()).find(|p| p.handle == handle.0 && p.bytes == bytes)?;
        found.mapped = true;
        Some(found.start)
    });
    let Some(start) = start else {
        return refuse("gdr_map: not pinned so");
    };
    // SAFETY: the caller's contract.
    unsafe { at.write(start as *mut c_void) };
    0
}

/// `gdr_unmap`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unmap(
    _session: *mut c_void,
    handle: MappedHandle,
    _at: *mut c_void,
    _bytes: usize,
) -> c_int {
    let found = pinned(|_, all| {
        let found = (all.iter_mut()).find(|p| p.handle == handle.0 && p.mapped)?;
        found.mapped = false;
        Some(())
    });
    match found {
        Some(()) => 0,
        None => refuse("gdr_unmap: not mapped"),
    }
}

/// The driver's address of mapped memory; none, said aloud, if it is none.
fn view(handle: MappedHandle, at: u64, bytes: usize, call: &str) -> Option<u64> {
    let end = at + bytes as u64;
    let mapped = pinned(|_, all| {
        let holds = |p: &Pinned| at >= p.start && end <= p.start + p.bytes;
        all.iter()
            .any(|p| p.handle == handle.0 && p.mapped && holds(p))
    });
    let state = lock().ok()?;
    let found = state
        .memory
        .find(at)
        .filter(|a| mapped && a.ready && a.kind == Kind::Device && end <= a.end());
    match found {
        Some(a) => Some(a.view + (at - a.start)),
        None => {
            refuse(&format!(
                "{call}: 0x{at:x} is no mapped device memory that lives"
            ));
            None
        }
    }
}

/// `gdr_copy_to_mapping`.
///
/// # Safety
/// `bytes` bytes at `from` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_to_mapping(
    handle: MappedHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    let Some(view) = view(handle, to as u64, bytes, "gdr_copy_to_mapping") else {
        return libc::EINVAL;
    };
    // SAFETY: the driver's view of an allocation that holds so many bytes; the caller's
    // contract for the other side.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), view as *mut u8, bytes) };
    0
}

/// `gdr_copy_from_mapping`.
///
/// # Safety
/// `bytes` bytes at `to` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_copy_from_mapping(
    handle: MappedHandle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    let Some(view) = view(handle, from as u64, bytes, "gdr_copy_from_mapping") else {
        return libc::EINVAL;
    };
    // SAFETY: as above, the other way round.
    unsafe { std::ptr::copy_nonoverlapping(view as *const u8, to.cast::<u8>(), bytes) };
    0
}
