//! Links between devices: peer access, and NVLinks.
//!
//! ```text
//! driver                 reached, atomics, rank of the link
//! management library     active links of a device, and where each leads:
//!   to the other device              n links between the two
//!   to no device, and the library    n links into a switch that joins both
//!   says that NVLink joins them
//! ```
//!
//! # Invariants
//! 1. Nothing is asked before somebody wants to know; where the management library is not
//!    there, links are unknown, with the reason, and all else is told.

use crate::device::{DeviceInfo, devices};
use crate::driver::nvml::{End, Managed, Nvml, PciPlace};
use crate::driver::{Driver, abi};
use crate::error::Result;
use std::sync::OnceLock;

/// NVLinks between two devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NvLinks {
    /// None.
    #[default]
    None,
    /// So many from one to the other.
    Direct(u32),
    /// So many from each into switches that join both.
    Switched(u32),
    /// Nobody tells; [`DeviceLinks::unknown`] says why.
    Unknown,
}

/// How a device is joined to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceLink {
    /// Its kernels can be given the other's memory.
    pub reached: bool,
    /// All atomic operations work there.
    pub atomics: bool,
    /// How good the link is beside others, by the driver: 0 is the best. None: not told.
    pub rank: Option<i32>,
    /// What carries it.
    pub nvlinks: NvLinks,
}

/// How the devices that the driver shows are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLinks {
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// By device, by the other.
    pub between: Vec<Vec<DeviceLink>>,
    /// Why nothing is known of NVLinks, if that is so.
    pub unknown: Option<String>,
}

/// How devices are joined: asks the driver, and the management library where there is one,
/// once.
///
/// # Errors
/// No driver, or it refuses; the same at every call.
pub fn device_links() -> Result<&'static DeviceLinks> {
    static FOUND: OnceLock<Result<DeviceLinks>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

fn find() -> Result<DeviceLinks> {
    let devices = devices()?;
    let driver = Driver::get()?;
    let (links, unknown) = match Nvml::get() {
        Ok(nvml) => (Some(Links::of(nvml, &devices)), None),
        Err(why) => (None, Some(why.to_string())),
    };
    let device_link = |one: usize, other: usize| {
        let (a, b) = (&devices[one], &devices[other]);
        if one == other {
            return DeviceLink {
                reached: true,
                atomics: true,
                rank: None,
                nvlinks: NvLinks::None,
            };
        }
        let told = |which| attribute(driver, which, a.ordinal, b.ordinal);
        DeviceLink {
            reached: a.peers.contains(&b.ordinal),
            atomics: told(abi::P2P_NATIVE_ATOMICS).is_ok_and(|value| value != 0),
            rank: told(abi::P2P_PERFORMANCE_RANK).ok(),
            nvlinks: match &links {
                Some(links) => links.between(one, other),
                None => NvLinks::Unknown,
            },
        }
    };
    let all = 0..devices.len();
    let between = all
        .clone()
        .map(|one| all.clone().map(|other| device_link(one, other)).collect())
        .collect();
    Ok(DeviceLinks {
        between,
        unknown,
        devices,
    })
}

/// NVLinks from a device to one that this process need not see, by its place on the PCI bus,
/// such as `0000:3a:00.0`: the management library shows what `CUDA_VISIBLE_DEVICES` hides.
pub fn nvlinks_to(from: &DeviceInfo, pci: &str) -> NvLinks {
    let (Ok(nvml), Some(place)) = (Nvml::get(), PciPlace::of(pci)) else {
        return NvLinks::Unknown;
    };
    let own = from.pci.as_deref().and_then(|own| nvml.device(own));
    let (Some(own), Some(other)) = (own, nvml.device(pci)) else {
        return NvLinks::Unknown;
    };
    match from.pci.as_deref().and_then(PciPlace::of) == Some(place) {
        // Slices of one device are at one place.
        true => NvLinks::None,
        false => counted(&nvml.ends(own), place, || nvml.joins(own, other)),
    }
}

fn attribute(driver: &Driver, which: u32, one: i32, other: i32) -> Result<i32> {
    let (mut value, mut from, mut to) = (0, 0, 0);
    // SAFETY: a place for one device.
    unsafe { driver.cuDeviceGet(&mut from, one) }?;
    // SAFETY: as above.
    unsafe { driver.cuDeviceGet(&mut to, other) }?;
    // SAFETY: a place for one number.
    unsafe { driver.cuDeviceGetP2PAttribute(&mut value, which, from, to) }?;
    Ok(value)
}

/// What the management library tells of each device.
struct Links {
    nvml: &'static Nvml,
    devices: Vec<Option<(Managed, PciPlace, Vec<End>)>>,
}

impl Links {
    fn of(nvml: &'static Nvml, devices: &[DeviceInfo]) -> Links {
        let told = |info: &DeviceInfo| {
            let bus_id = info.pci.as_ref()?;
            let device = nvml.device(bus_id)?;
            Some((device, PciPlace::of(bus_id)?, nvml.ends(device)))
        };
        Links {
            nvml,
            devices: devices.iter().map(told).collect(),
        }
    }

    fn between(&self, one: usize, other: usize) -> NvLinks {
        let (Some((a, _, ends)), Some((b, place, _))) = (&self.devices[one], &self.devices[other])
        else {
            return NvLinks::Unknown;
        };
        // Partitions of one device are at one place.
        if self.devices[one]
            .as_ref()
            .is_some_and(|own| own.1 == *place)
        {
            return NvLinks::None;
        }
        counted(ends, *place, || self.nvml.joins(*a, *b))
    }
}

/// What active links amount to between a device and the one at a place.
fn counted(ends: &[End], place: PciPlace, joins: impl FnOnce() -> Option<bool>) -> NvLinks {
    let many = |wanted: &dyn Fn(&End) -> bool| ends.iter().filter(|end| wanted(end)).count() as u32;
    let direct = many(&|end| *end == End::Device(place));
    let elsewhere = many(&|end| *end == End::Other);
    if direct + elsewhere == 0 {
        return NvLinks::None;
    }
    match joins() {
        Some(false) => NvLinks::None,
        _ if direct > 0 => NvLinks::Direct(direct),
        Some(true) => NvLinks::Switched(elsewhere),
        None => NvLinks::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_counted_by_where_they_lead() {
        let place = |text| PciPlace::of(text).expect("a place");
        let (near, far) = (place("0000:01:00.0"), place("0000:02:00.0"));
        let ends = [End::Device(near), End::Device(near), End::Device(far)];
        assert_eq!(counted(&ends, near, || Some(true)), NvLinks::Direct(2));
        assert_eq!(counted(&ends, near, || None), NvLinks::Direct(2));
        assert_eq!(counted(&ends, near, || Some(false)), NvLinks::None);
        assert_eq!(counted(&ends[..2], far, || Some(true)), NvLinks::None);
        let switch = [End::Other, End::Other, End::Other];
        assert_eq!(counted(&switch, far, || Some(true)), NvLinks::Switched(3));
        assert_eq!(counted(&switch, far, || None), NvLinks::Unknown);
        assert_eq!(counted(&[], far, || Some(true)), NvLinks::None);
    }
}
