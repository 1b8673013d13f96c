//! Handles by which another process opens memory and events: plain data, to be sent.
//!
//! Memory from plain allocations goes by a handle of 64 bytes for the whole
//! allocation, mapped memory by a file descriptor, memory of an exportable pool by both.
//!
//! # Invariants
//! 1. A handle names an allocation, not an address: the place inside travels
//!    with it.
//! 2. The driver maps an allocation once per process; whoever opens it twice
//!    must keep the first (a cache by handle is the transport's duty).

mod key;
mod pool;

pub(crate) use key::Allocation;
pub use key::{Key, Made};
pub use pool::OpenPool;

use crate::device::Context;
use crate::driver::abi;
use crate::error::Result;
use crate::memory::Memory;
use std::ops::Range;
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
        Ok(MemoryHandle {
            bytes: MemoryHandle::at(memory.context(), memory.address())?,
            allocation_bytes: memory.bytes(),
        })
    }

    /// The driver's handle of the allocation that begins at an address.
    fn at(context: &Context, start: u64) -> Result<[u8; 64]> {
        let driver = context.enter()?;
        let mut handle = abi::IpcHandle([0; 64]);
        // SAFETY: a place for one handle; an address of no memory is refused.
        unsafe { driver.cuIpcGetMemHandle(&mut handle, start) }?;
        Ok(handle.0)
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

/// Bytes and descriptor of a piece of mapped memory.
pub type Piece = (u64, OwnedFd);

/// Exports mapped memory as descriptors, one for each piece that a range of addresses
/// touches; of memory of a pool, the pool, as a piece without bytes.
///
/// # Errors
/// There is other memory in the range, or the driver refuses.
pub fn export_pieces(context: &Context, range: Range<u64>) -> Result<Vec<Piece>> {
    let first = key::Allocation::at(context, range.start)?;
    if matches!(first.made, Made::SharedPool | Made::OtherPool) {
        return Ok(vec![(0, pool::export(context, first.pool())?)]);
    }
    let driver = context.enter()?;
    let mut pieces = Vec::new();
    for piece in key::pieces(context, range)? {
        let mut handle = 0;
        // SAFETY: a place for one handle; what is no mapped memory is refused.
        unsafe { driver.cuMemRetainAllocationHandle(&mut handle, piece.start) }?;
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast();
        // SAFETY: a descriptor is a C int; the handle is held.
        let exported =
            unsafe { driver.cuMemExportToShareableHandle(place, handle, abi::HANDLE_POSIX_FD, 0) };
        // SAFETY: retained above.
        unsafe { driver.cuMemRelease(handle) }?;
        exported?;
        // SAFETY: the driver made the descriptor for us.
        pieces.push((piece.bytes, unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    Ok(pieces)
}

/// Maps the pieces of another process in a row.
///
/// # Errors
/// One is no descriptor of memory, a size is wrong, or the driver refuses.
pub fn import_pieces(context: &Context, pieces: &[Piece]) -> Result<Arc<Memory>> {
    let driver = context.enter()?;
    let mut opened = Vec::new();
    let mut total = 0usize;
    for (bytes, fd) in pieces {
        let mut handle = 0;
        let raw = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: a place for one handle; descriptors go by value in the pointer.
        let imported = unsafe {
            driver.cuMemImportFromShareableHandle(&mut handle, raw, abi::HANDLE_POSIX_FD)
        };
        let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
        let fits = total.checked_add(bytes);
        if let (Ok(()), Some(sum)) = (&imported, fits) {
            opened.push((handle, bytes));
            total = sum;
            continue;
        }
        for (handle, _) in opened {
            // SAFETY: imported above.
            let _ = unsafe { driver.cuMemRelease(handle) };
        }
        imported?;
        return Err(crate::DeviceError::Unavailable(
            "more memory than there is".into(),
        ));
    }
    Memory::map(context, opened, total)
}
