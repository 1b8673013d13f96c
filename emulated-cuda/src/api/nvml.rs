//! The management library, in so far as it is used: which devices NVLinks join, as
//! `OSIER_EMULATED_LINKS` has it. Not there with `OSIER_EMULATED_NVML=0`.
//!
//! A handle is the device's number, from 1. Links come in the order of the devices that they
//! lead to, those into a switch last.
//!
//! # Sources
//! NVML API reference 12, device queries and NvLink methods.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::settings::settings;

/// `nvmlReturn_t`.
const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_FOUND: c_uint = 6;
const DRIVER_NOT_LOADED: c_uint = 9;

/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: usize = 18;

/// `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    short_bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [u8; 32],
}

/// The bus of a device, as the driver says it; of the switch.
fn bus(end: Option<usize>) -> c_uint {
    end.map_or(0xc1, |device| device as c_uint + 1)
}

fn device(handle: *mut c_void) -> Option<usize> {
    handle
        .addr()
        .checked_sub(1)
        .filter(|d| *d < settings().machine.gpus)
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    match settings().nvml {
        true => SUCCESS,
        false => DRIVER_NOT_LOADED,
    }
}

/// `nvmlDeviceGetHandleByPciBusId_v2`.
///
/// # Safety
/// `bus_id` is a text that ends with zero, `handle` a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    handle: *mut *mut c_void,
) -> c_uint {
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(bus_id) };
    let text = text.to_string_lossy().to_lowercase();
    let ends = |device: &usize| text.ends_with(&format!("0000:{:02x}:00.0", bus(Some(*device))));
    match (0..settings().machine.gpus).find(ends) {
        Some(found) => {
            // SAFETY: the caller's contract.
            unsafe { handle.write(std::ptr::without_provenance_mut(found + 1)) };
            SUCCESS
        }
        None => NOT_FOUND,
    }
}

/// `nvmlDeviceGetNvLinkState`.
///
/// # Safety
/// `state` is a place for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    handle: *mut c_void,
    link: c_uint,
    state: *mut c_uint,
) -> c_uint {
    let Some(device) = device(handle).filter(|_| (link as usize) < MOST_LINKS) else {
        return INVALID_ARGUMENT;
    };
    let ends = settings().links.ends(device, settings().machine.gpus);
    // SAFETY: the caller's contract.
    unsafe { state.write(c_uint::from((link as usize) < ends.len())) };
    SUCCESS
}

/// `nvmlDeviceGetNvLinkRemotePciInfo_v2`.
///
/// # Safety
/// `info` is a place for a description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    handle: *mut c_void,
    link: c_uint,
    info: *mut PciInfo,
) -> c_uint {
    let end = device(handle).and_then(|device| {
        let ends = settings().links.ends(device, settings().machine.gpus);
        ends.get(link as usize).copied()
    });
    let Some(end) = end else {
        return INVALID_ARGUMENT;
    };
    let bus = bus(end);
    let told = PciInfo {
        short_bus_id: text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        device_id: 0,
        subsystem_id: 0,
        bus_id: text(&format!("00000000:{bus:02X}:00.0")),
    };
    // SAFETY: the caller's contract.
    unsafe { info.write(told) };
    SUCCESS
}

fn text<const N: usize>(of: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes[..N - 1].iter_mut().zip(of.bytes()) {
        *to = from;
    }
    bytes
}

/// `nvmlDeviceGetP2PStatus`.
///
/// # Safety
/// `status` is a place for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: *mut c_void,
    other: *mut c_void,
    which: c_int,
    status: *mut c_int,
) -> c_uint {
    const BY_NVLINK: c_int = 2;
    const NOT_SUPPORTED: c_int = 5;
    let (Some(one), Some(other)) = (device(one), device(other)) else {
        return INVALID_ARGUMENT;
    };
    let link = settings().links.between(one, other);
    let holds = match which {
        BY_NVLINK => link.is_nvlink(),
        0 | 1 => link.reaches(),
        _ => return INVALID_ARGUMENT,
    };
    // SAFETY: the caller's contract.
    unsafe { status.write(if holds { 0 } else { NOT_SUPPORTED }) };
    SUCCESS
}
