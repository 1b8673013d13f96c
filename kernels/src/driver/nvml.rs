//! NVIDIA's management library: NVLinks between devices.
//!
//! The driver says who reaches whom, not by what. The management library does; it is no
//! part of the driver, so it is looked for when somebody asks for links, and never at
//! start. The key
//! `nvml-library` of `OSIER_DEBUG` names the library, or says `off`. A driver that brings its
//! own, as the emulated one does, is asked itself.
//!
//! # Invariants
//! 1. What is missing is unavailable with a reason, and looked for once.
//! 2. The library stays open and initialised for as long as the process lives.
//!
//! # Sources
//! NVML API reference 12, device queries and NvLink methods. Through an NVSwitch a link's
//! remote end is no device: there `nvmlDeviceGetP2PStatus` says who is joined.
//! Not tested on hardware.

use super::Driver;
use crate::debug::{self, NVML_LIBRARY};
use crate::error::{DeviceError, Result};
use crate::files;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const LIBRARY: &str = "libnvidia-ml.so.1";

/// No device has as many links; 18 is the most today.
const MOST_LINKS: c_uint = 64;
/// `NVML_ERROR_INVALID_ARGUMENT`: there is no link of this number.
const INVALID_ARGUMENT: c_uint = 2;
/// `NVML_FEATURE_ENABLED`: the link is active.
const ENABLED: c_uint = 1;
/// `NVML_P2P_CAPS_INDEX_NVLINK`, `NVML_P2P_STATUS_OK`.
const BY_NVLINK: c_int = 2;
const STATUS_OK: c_int = 0;

/// `nvmlDevice_t`.
type Handle = *mut c_void;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    short_bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [u8; 32],
}

type InitFn = unsafe extern "C" fn() -> c_uint;
type ByBusIdFn = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_uint;
type StateFn = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_uint;
type RemoteFn = unsafe extern "C" fn(Handle, c_uint, *mut PciInfo) -> c_uint;
type StatusFn = unsafe extern "C" fn(Handle, Handle, c_int, *mut c_int) -> c_uint;

/// The library.
pub(crate) struct Nvml {
    by_bus_id: ByBusIdFn,
    state: StateFn,
    remote: RemoteFn,
    status: StatusFn,
    /// None if it is the driver's.
    _library: Option<libloading::Library>,
}

/// A device as the library knows it.
#[derive(Clone, Copy)]
pub(crate) struct Managed(Handle);

/// Where an active link of a device leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// To the device at this place of the PCI bus.
    Device(PciPlace),
    /// To no device: a switch, or one that the library does not show.
    Other,
}

/// Domain, bus, device: the two libraries write them with different digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciPlace(u32, u32, u32);

impl PciPlace {
    /// Of a text such as `0000:3a:00.0`.
    pub fn of(text: &str) -> Option<PciPlace> {
        let mut parts = text.trim().split(':');
        let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
        let (domain, bus) = (number()?, number()?);
        let device = parts.next()?.split('.').next()?;
        Some(PciPlace(domain, bus, u32::from_str_radix(device, 16).ok()?))
    }
}

impl Nvml {
    /// The process's library.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] with the reason, the same at every call.
    pub fn get() -> Result<&'static Nvml> {
        static LOADED: OnceLock<Result<Nvml>> = OnceLock::new();
        LOADED
            .get_or_init(Nvml::load)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load() -> Result<Nvml> {
        let named = debug::value(NVML_LIBRARY).unwrap_or_default();
        let named = named.to_string_lossy();
        if named == "off" {
            let why = format!("{}={NVML_LIBRARY}=off", debug::VARIABLE);
            return Err(DeviceError::Unavailable(why));
        }
        let driver = Driver::get()?.loaded();
        // SAFETY: the signature is that of the header.
        if unsafe { driver.get::<InitFn>(b"nvmlInit_v2\0") }.is_ok() {
            return Nvml::of(driver);
        }
        let name = if named.is_empty() { LIBRARY } else { &named };
        files::may_be_loaded(name.as_ref())
            .map_err(|why| DeviceError::Unavailable(format!("cannot load {name}: {why}")))?;
        // SAFETY: the library's initialisers run; it is the system's, or one that the user
        // names.
        let library = unsafe { libloading::Library::new(name) }.map_err(|_| {
            DeviceError::Unavailable(format!(
                "cannot load {name} (hint: it comes with the driver's tools)"
            ))
        })?;
        let mut found = Nvml::of(&library)?;
        found._library = Some(library);
        Ok(found)
    }

    fn of(from: &libloading::Library) -> Result<Nvml> {
        macro_rules! function {
            ($name:literal, $ty:ty) => {{
                // SAFETY: the signature is that of the header.
                let found = unsafe { from.get::<$ty>(concat!($name, "\0").as_bytes()) };
                *found.map_err(|_| {
                    let why = concat!("the management library has no ", $name);
                    DeviceError::Unavailable(why.into())
                })?
            }};
        }
        let found = Nvml {
            by_bus_id: function!("nvmlDeviceGetHandleByPciBusId_v2", ByBusIdFn),
            state: function!("nvmlDeviceGetNvLinkState", StateFn),
            remote: function!("nvmlDeviceGetNvLinkRemotePciInfo_v2", RemoteFn),
            status: function!("nvmlDeviceGetP2PStatus", StatusFn),
            _library: None,
        };
        let init = function!("nvmlInit_v2", InitFn);
        // SAFETY: any thread may initialise, any number of times.
        match unsafe { init() } {
            0 => Ok(found),
            code => Err(DeviceError::Unavailable(format!(
                "nvmlInit_v2 has failed with {code}"
            ))),
        }
    }

    /// The device at a place of the PCI bus, if the library shows it.
    pub fn device(&self, bus_id: &str) -> Option<Managed> {
        let text = CString::new(bus_id).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a text that ends with zero, a place for one handle.
        match unsafe { (self.by_bus_id)(text.as_ptr(), &mut handle) } {
            0 => Some(Managed(handle)),
            _ => None,
        }
    }

    /// Where each active link of a device leads.
    pub fn ends(&self, device: Managed) -> Vec<End> {
        let mut ends = Vec::new();
        for link in 0..MOST_LINKS {
            let mut state = 0;
            // SAFETY: a handle of the library's, a place for one number.
            match unsafe { (self.state)(device.0, link, &mut state) } {
                0 if state == ENABLED => ends.push(self.end(device, link)),
                INVALID_ARGUMENT => break,
                // Not active, or this product has none of this number.
                _ => {}
            }
        }
        ends
    }

    fn end(&self, device: Managed, link: c_uint) -> End {
        let mut info = PciInfo::default();
        // SAFETY: a handle of the library's, a place for the description.
        if unsafe { (self.remote)(device.0, link, &mut info) } != 0 {
            return End::Other;
        }
        let end = info.bus_id.iter().position(|b| *b == 0);
        let text = String::from_utf8_lossy(&info.bus_id[..end.unwrap_or(info.bus_id.len())]);
        match PciPlace::of(&text) {
            // A switch has a place, too, and is none of the library's devices.
            Some(place) if self.device(&text).is_some() => End::Device(place),
            _ => End::Other,
        }
    }

    /// Whether one device reaches the other's memory over NVLinks. None: it does not say.
    pub fn joins(&self, one: Managed, other: Managed) -> Option<bool> {
        let mut status = 0;
        // SAFETY: handles of the library's, a place for one number.
        match unsafe { (self.status)(one.0, other.0, BY_NVLINK, &mut status) } {
            0 => Some(status == STATUS_OK),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_equal_however_many_digits_they_have() {
        let short = PciPlace::of("0000:3a:00.0");
        assert_eq!(short, PciPlace::of("00000000:3A:00.0"));
        assert_ne!(short, PciPlace::of("0001:3a:00.0"));
        assert_eq!(PciPlace::of(""), None);
        assert_eq!(PciPlace::of("0000:3a"), None);
    }

    /// As the header lays it out.
    #[test]
    fn descriptions_are_as_long_as_the_header_says() {
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(std::mem::offset_of!(PciInfo, bus_id), 36);
    }
}
