//! The library of gdrcopy, in so far as it is used: windows in the host's addresses on
//! plain device memory. There only with `OSIER_EMULATED_GDRCOPY=1`.
//!
//! A mapping is the device's own addresses, which the host may not touch; the copies take
//! the driver's view of the memory behind them.
//!
//! # Sources
//! gdrcopy 2.5, `gdrapi.h`.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::Mutex;

use crate::driver::lock;
use crate::memory::{Allocation, Kind};
use crate::settings::settings;

const PAGE_BYTES: u64 = 64 << 10;

/// What is pinned: handle, start, bytes, mapped.
static PINNED: Mutex<(u64, Vec<(u64, u64, u64, bool)>)> = Mutex::new((1, Vec::new()));

fn pinned<T>(f: impl FnOnce(&mut (u64, Vec<(u64, u64, u64, bool)>)) -> T) -> T {
    f(&mut PINNED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner))
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
    let fresh = pinned(|(next, all)| {
        *next += 1;
        all.push((*next, start, bytes as u64, false));
        *next
    });
    // SAFETY: the caller's contract.
    unsafe { handle.write(MappedHandle(fresh)) };
    0
}

/// `gdr_unpin_buffer`.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unpin_buffer(_session: *mut c_void, handle: MappedHandle) -> c_int {
    let found = pinned(|(_, all)| {
        let found = all.iter().position(|p| p.0 == handle.0 && !p.3);
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
    let start = pinned(|(_, all)| {
        let found = all
            .iter_mut()
            .find(|p| p.0 == handle.0 && p.2 == bytes as u64)?;
        found.3 = true;
        Some(found.1)
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
    let found = pinned(|(_, all)| {
        let found = all.iter_mut().find(|p| p.0 == handle.0 && p.3)?;
        found.3 = false;
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
    let mapped = pinned(|(_, all)| {
        let holds =
            |p: &&(u64, u64, u64, bool)| p.0 == handle.0 && p.3 && at >= p.1 && end <= p.1 + p.2;
        all.iter().any(|p| holds(&p))
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
