//! Multicast: one address behind which memory of several devices lies, which a switch of
//! NVLinks stores to at once.
//!
//! ```text
//! one rank:   create -> export -> join ---+                     +-> bind ---+
//! others:     import ------------> join --+-- all have joined --+-> bind --+-- all have bound -> kernels
//! ```
//!
//! A group has as many devices as it was made for; each joins, and binds memory of its own.
//! A rank that binds gets a [`MulticastWindow`], by whose address kernels store to what all
//! have bound. No other access goes by that address.
//!
//! # Invariants
//! 1. What was bound stays the group's for as long as a process has the group or a window of
//!    it: a rank that goes takes nothing away from kernels of the others.
//!
//! # Sources
//! CUDA Driver API reference 12.1: multicast object management; virtual memory management.

use crate::device::Context;
use crate::driver::{NOT_SUPPORTED, SYSTEM_NOT_READY, abi};
use crate::error::{DeviceError, Result};
use crate::memory::{Memory, Region};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Devices whose memory is bound to one address; cheap to clone.
#[derive(Debug, Clone)]
pub struct MulticastGroup(Arc<Group>);

#[derive(Debug)]
struct Group {
    context: Context,
    handle: abi::AllocationHandle,
    devices: usize,
    bytes: usize,
    granularity: usize,
}

impl MulticastGroup {
    /// Bytes of the wire form.
    pub const WIRE_BYTES: usize = 12;

    /// Whether a device can be of a group.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] says why not.
    pub fn available(context: &Context) -> Result<()> {
        let driver = context.enter()?;
        let why = if !driver.has("cuMulticastCreate") {
            "the driver has no multicast (hint: CUDA 12.1 and newer have)".into()
        } else if !context.has_multicast() {
            format!(
                "device {} has no multicast (hint: it takes capability 9.0 and an NVSwitch)",
                context.ordinal()
            )
        } else {
            return Ok(());
        };
        Err(DeviceError::Unavailable(why))
    }

    /// A group for so many devices, each of which binds so many bytes, rounded up.
    ///
    /// # Errors
    /// There is no multicast ([`DeviceError::Unavailable`]), or the driver refuses.
    pub fn create(context: &Context, devices: usize, bytes: usize) -> Result<MulticastGroup> {
        MulticastGroup::available(context)?;
        let mut prop = property(devices, bytes);
        let granularity = granularity(context, &prop)?;
        prop.bytes = bytes.max(1).next_multiple_of(granularity);
        let driver = context.enter()?;
        let mut handle = 0;
        // SAFETY: a place for one handle; the property is complete.
        unsafe { driver.cuMulticastCreate(&mut handle, &prop) }.map_err(reason)?;
        Ok(MulticastGroup(Arc::new(Group {
            context: context.clone(),
            handle,
            devices,
            bytes: prop.bytes,
            granularity,
        })))
    }

    /// What another process imports the group by: bytes and a descriptor.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn export(&self) -> Result<([u8; Self::WIRE_BYTES], OwnedFd)> {
        let driver = self.0.context.enter()?;
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast();
        // SAFETY: a descriptor is a C int; the handle is held.
        unsafe {
            driver.cuMemExportToShareableHandle(place, self.0.handle, abi::HANDLE_POSIX_FD, 0)
        }?;
        // SAFETY: the driver made the descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut wire = [0; Self::WIRE_BYTES];
        wire[..4].copy_from_slice(&(self.0.devices as u32).to_le_bytes());
        wire[4..].copy_from_slice(&(self.0.bytes as u64).to_le_bytes());
        Ok((wire, fd))
    }

    /// The group of another rank, of this process or another.
    ///
    /// # Errors
    /// There is no multicast ([`DeviceError::Unavailable`]); the bytes are none of a group, or
    /// the driver refuses the descriptor.
    pub fn import(context: &Context, wire: &[u8], descriptor: &OwnedFd) -> Result<MulticastGroup> {
        MulticastGroup::available(context)?;
        let (devices, bytes) =
            parsed(wire).ok_or_else(|| DeviceError::Unavailable("no multicast group".into()))?;
        let granularity = granularity(context, &property(devices, bytes))?;
        let driver = context.enter()?;
        let raw = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
        let mut handle = 0;
        // SAFETY: a place for one handle; descriptors go by value in the pointer.
        unsafe { driver.cuMemImportFromShareableHandle(&mut handle, raw, abi::HANDLE_POSIX_FD) }
            .map_err(reason)?;
        Ok(MulticastGroup(Arc::new(Group {
            context: context.clone(),
            handle,
            devices,
            bytes,
            granularity,
        })))
    }

    /// Devices of the group when all have joined.
    pub fn devices(&self) -> usize {
        self.0.devices
    }

    /// Bytes that each device binds.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Adds a device, once. It cannot leave.
    ///
    /// # Errors
    /// It has no multicast, or is not on the switch of the others; the group is full.
    pub fn join(&self, context: &Context) -> Result<()> {
        MulticastGroup::available(context)?;
        let driver = context.enter()?;
        // SAFETY: the handle is held.
        unsafe { driver.cuMulticastAddDevice(self.0.handle, context.device()) }.map_err(reason)
    }

    /// Binds memory, mapped and of one piece, of at least [`MulticastGroup::bytes`], and
    /// gives its device the address for all. Called when all devices have joined: the driver
    /// waits for those that have not. Kernels use the window when all devices have bound.
    ///
    /// # Errors
    /// Other memory, or of a device that has not joined; the switch has no room left; the
    /// driver refuses.
    pub fn bind(&self, memory: &Arc<Memory>) -> Result<MulticastWindow> {
        let group = &*self.0;
        let piece = match memory.region() {
            Region::Mapped { pieces, .. } => match pieces[..] {
                [(handle, bytes)] if bytes >= group.bytes => Some(handle),
                _ => None,
            },
            _ => None,
        };
        let other = || {
            DeviceError::Unavailable(format!(
                "a multicast group binds mapped memory of one piece of {} bytes",
                group.bytes
            ))
        };
        let piece = piece.ok_or_else(other)?;
        let context = memory.context();
        let driver = context.enter()?;
        // SAFETY: both handles are held, and the driver holds the memory from now on.
        unsafe { driver.cuMulticastBindMem(group.handle, 0, piece, 0, group.bytes, 0) }
            .map_err(reason)?;
        let mapped = Memory::map_kept(context, group.handle, group.bytes, group.granularity)?;
        Ok(MulticastWindow {
            mapped,
            bound: memory.clone(),
            group: self.clone(),
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: the handle is ours; windows hold what they have mapped.
            let _ = unsafe { driver.cuMemRelease(self.handle) };
        }
    }
}

/// What one device has bound, and the address for all; cheap to clone.
#[derive(Debug, Clone)]
pub struct MulticastWindow {
    mapped: Arc<Memory>,
    bound: Arc<Memory>,
    group: MulticastGroup,
}

impl MulticastWindow {
    /// The address, for kernels of the device that has bound: where each device's memory
    /// begins.
    pub fn address(&self) -> u64 {
        self.mapped.address()
    }

    /// The memory that was bound.
    pub fn bound(&self) -> &Arc<Memory> {
        &self.bound
    }

    /// Whose window it is.
    pub fn group(&self) -> &MulticastGroup {
        &self.group
    }

    pub(crate) fn mapped(&self) -> &Arc<Memory> {
        &self.mapped
    }
}

/// Devices and bytes of a wire form; `None` for what is never written.
fn parsed(wire: &[u8]) -> Option<(usize, usize)> {
    let wire: &[u8; MulticastGroup::WIRE_BYTES] = wire.try_into().ok()?;
    let devices = u32::from_le_bytes(wire[..4].try_into().ok()?);
    let bytes = u64::from_le_bytes(wire[4..].try_into().ok()?);
    let sound = devices > 0 && (1..=isize::MAX as u64).contains(&bytes);
    sound.then_some((devices as usize, bytes as usize))
}

fn property(devices: usize, bytes: usize) -> abi::MulticastProp {
    abi::MulticastProp {
        devices: devices as u32,
        bytes,
        handle_kinds: u64::from(abi::HANDLE_POSIX_FD),
        flags: 0,
    }
}

fn granularity(context: &Context, prop: &abi::MulticastProp) -> Result<usize> {
    let driver = context.enter()?;
    let mut bytes = 0;
    // SAFETY: a place for one number; the property is complete.
    unsafe { driver.cuMulticastGetGranularity(&mut bytes, prop, abi::GRANULARITY_MINIMUM) }
        .map_err(reason)?;
    Ok(bytes.max(1))
}

/// What a machine lacks is unavailable: a switch that does multicast, or its manager.
fn reason(error: DeviceError) -> DeviceError {
    match error.code() {
        Some(NOT_SUPPORTED | SYSTEM_NOT_READY) => DeviceError::Unavailable(format!(
            "no multicast: {error} (hint: does the fabric manager run?)"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_forms_are_parsed() {
        let mut wire = [0; MulticastGroup::WIRE_BYTES];
        assert_eq!(parsed(&wire), None);
        wire[0] = 8;
        assert_eq!(parsed(&wire), None);
        wire[6] = 2;
        assert_eq!(parsed(&wire), Some((8, 2 << 16)));
        assert_eq!(parsed(&wire[1..]), None);
        wire[11] = 0x80;
        assert_eq!(parsed(&wire), None);
    }
}
