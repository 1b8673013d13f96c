//! What another process opens memory and events with: plain data, to be sent.
//!
//! Memory from plain allocations goes by a handle of 64 bytes for the whole
//! allocation, mapped memory by a file descriptor.
//!
//! # Invariants
//! 1. A handle names an allocation, not an address: the place inside travels
//!    with it.
//! 2. The driver maps an allocation once per process; whoever opens it twice
//!    must keep the first (a cache by handle is the transport's duty).

use crate::device::Context;
use crate::driver::abi;
use crate::error::Result;
use crate::memory::{Memory, Region};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Names an event in other processes of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventHandle(pub [u8; 64]);

/// Names a plain allocation in other processes of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryHandle {
    /// The driver's handle.
    pub bytes: [u8; 64],
    /// The allocation's size.
    pub allocation_bytes: usize,
}

impl MemoryHandle {
    /// The handle of a plain allocation.
    ///
    /// # Errors
    /// The memory cannot be shared in this way (pool, mapped, managed, host).
    pub fn of(memory: &Memory) -> Result<MemoryHandle> {
        let driver = memory.context().enter()?;
        let mut handle = abi::IpcHandle([0; 64]);
        // SAFETY: a place for one handle; the memory lives.
        unsafe { driver.cuIpcGetMemHandle(&mut handle, memory.address()) }?;
        Ok(MemoryHandle {
            bytes: handle.0,
            allocation_bytes: memory.bytes(),
        })
    }

    /// Maps the allocation of another process into this one.
    ///
    /// # Safety
    /// The exporter keeps the allocation until the last clone is dropped here,
    /// and the size is the exporter's.
    ///
    /// # Errors
    /// The handle is one of this process or of no allocation; no peer access.
    pub unsafe fn open(&self, context: &Context) -> Result<Arc<Memory>> {
        let driver = context.enter()?;
        let mut at = 0;
        // SAFETY: a place for one address; a wrong handle is refused.
        unsafe {
            driver.cuIpcOpenMemHandle_v2(
                &mut at,
                abi::IpcHandle(self.bytes),
                abi::IPC_LAZY_ENABLE_PEER_ACCESS,
            )
        }?;
        Ok(Memory::opened(context, at, self.allocation_bytes))
    }
}

/// Exports mapped memory as a file descriptor.
///
/// # Errors
/// The memory is not mapped memory, or the driver refuses.
pub fn export_fd(memory: &Memory) -> Result<OwnedFd> {
    let driver = memory.context().enter()?;
    let Region::Mapped { handle, .. } = memory.region() else {
        return Err(crate::DeviceError::Unavailable(
            "only mapped memory has a file descriptor".into(),
        ));
    };
    let mut fd: i32 = -1;
    let place = (&raw mut fd).cast();
    // SAFETY: a descriptor is a C int; the allocation lives.
    unsafe { driver.cuMemExportToShareableHandle(place, *handle, abi::HANDLE_POSIX_FD, 0) }?;
    // SAFETY: the driver made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps the memory behind a descriptor of another process.
///
/// # Errors
/// It is no descriptor of memory, the size is wrong, or the driver refuses.
pub fn import_fd(context: &Context, fd: &OwnedFd, bytes: usize) -> Result<Arc<Memory>> {
    let driver = context.enter()?;
    let mut handle = 0;
    let raw = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
    // SAFETY: a place for one handle; descriptors go by value in the pointer.
    unsafe { driver.cuMemImportFromShareableHandle(&mut handle, raw, abi::HANDLE_POSIX_FD) }?;
    Memory::map(context, handle, bytes)
}
