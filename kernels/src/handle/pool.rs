//! Stream-ordered pools that other processes open.
//!
//! Each process has one of its own for each device, made at its first use and kept until
//! the process ends, so that an importer that has opened it once never meets another for
//! it. Other libraries may have more, which come and go; the driver names a pool by its
//! handle, which a later one may get, so an importer keeps such a pool for one allocation.
//! A pool goes by a descriptor, each allocation by 64 bytes within it.
//!
//! # Invariants
//! 1. An allocation is freed by its importer before its exporter frees it, as the driver
//!    asks: what was imported is given back in the order of a stream, and whoever says
//!    that it is done says so when that stream has passed.
//! 2. An allocation is imported once at a time.
//!
//! # Sources
//! CUDA Driver API reference 12.0, stream ordered memory allocator; CUDA C++ Programming
//! Guide 12.0, section 11.9 (interprocess communication of pools).

use crate::device::Context;
use crate::driver::{Driver, abi};
use crate::error::Result;
use crate::memory::Memory;
use crate::stream::Stream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

impl Context {
    /// The pool of this process that others may open; made by the first that asks.
    ///
    /// # Errors
    /// The device has none, or the driver refuses.
    pub(crate) fn shared_pool(&self) -> Result<abi::MemoryPool> {
        self.shared_pool_or(|| {
            let driver = self.enter()?;
            let props = abi::PoolProps {
                kind: abi::ALLOCATION_PINNED,
                handle_kinds: abi::HANDLE_POSIX_FD,
                location: abi::Location {
                    kind: abi::LOCATION_DEVICE,
                    id: self.device(),
                },
                win32: std::ptr::null_mut(),
                most_bytes: 0,
                usage: 0,
                reserved: [0; 54],
            };
            let mut pool = abi::MemoryPool::NULL;
            // SAFETY: a place for one handle; the properties are complete.
            unsafe { driver.cuMemPoolCreate(&mut pool, &props) }?;
            keep_memory(&driver, pool);
            Ok(pool)
        })
    }

    /// Has the device's own pool keep its memory, unless somebody has said otherwise.
    pub(crate) fn keep_pool_memory(&self) {
        let Ok(driver) = self.enter() else {
            return;
        };
        let mut pool = abi::MemoryPool::NULL;
        // SAFETY: a place for one handle.
        if unsafe { driver.cuDeviceGetDefaultMemPool(&mut pool, self.device()) }.is_err() {
            return;
        }
        let mut bytes = 0u64;
        // SAFETY: the attribute is a number of 64 bits.
        let asked = unsafe {
            let at = (&raw mut bytes).cast();
            driver.cuMemPoolGetAttribute(pool, abi::POOL_RELEASE_THRESHOLD, at)
        };
        if asked.is_ok() && bytes == 0 {
            keep_memory(&driver, pool);
        }
    }
}

/// Has a pool keep its memory: a pool gives back what is free whenever a stream is
/// synchronized, and the next allocation maps anew, for a millisecond. What refuses goes on
/// as before.
fn keep_memory(driver: &Driver, pool: abi::MemoryPool) {
    let mut bytes = u64::MAX;
    let at = (&raw mut bytes).cast();
    // SAFETY: the attribute is a number of 64 bits.
    let _ = unsafe { driver.cuMemPoolSetAttribute(pool, abi::POOL_RELEASE_THRESHOLD, at) };
}

/// A descriptor of a pool, of which the caller holds memory.
pub(super) fn export(context: &Context, pool: abi::MemoryPool) -> Result<OwnedFd> {
    let driver = context.enter()?;
    let mut fd: i32 = -1;
    let place = (&raw mut fd).cast();
    // SAFETY: a descriptor is a C int; the pool lives, for its memory does.
    unsafe { driver.cuMemPoolExportToShareableHandle(place, pool, abi::HANDLE_POSIX_FD, 0) }?;
    // SAFETY: the driver made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Names an allocation of a pool within it. A driver may refuse to before the pool itself was
/// exported.
pub(super) fn pointer(context: &Context, pool: abi::MemoryPool, start: u64) -> Result<[u8; 64]> {
    let driver = context.enter()?;
    let mut handle = abi::IpcHandle([0; 64]);
    let mut name = || {
        // SAFETY: a place for one handle; an address of no pool is refused.
        unsafe { driver.cuMemPoolExportPointer(&mut handle, start) }
    };
    if name().is_err() {
        export(context, pool)?;
        name()?;
    }
    Ok(handle.0)
}

/// The pool of another process, open in this one until the last clone goes; memory of it
/// that is open keeps it, too.
#[derive(Debug, Clone)]
pub struct OpenPool(Arc<Open>);

#[derive(Debug)]
struct Open {
    context: Context,
    pool: abi::MemoryPool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: imported by `OpenPool::open`; the driver keeps what is in use.
            let _ = unsafe { driver.cuMemPoolDestroy(self.pool) };
        }
    }
}

impl OpenPool {
    /// Opens a pool for kernels of a device.
    ///
    /// # Errors
    /// It is no descriptor of a pool, the devices are not linked, or the driver refuses.
    pub fn open(context: &Context, descriptor: &OwnedFd) -> Result<OpenPool> {
        let driver = context.enter()?;
        let raw = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
        let mut pool = abi::MemoryPool::NULL;
        // SAFETY: a place for one handle; descriptors go by value in the pointer.
        unsafe {
            driver.cuMemPoolImportFromShareableHandle(&mut pool, raw, abi::HANDLE_POSIX_FD, 0)
        }?;
        let access = abi::AccessDesc {
            location: abi::Location {
                kind: abi::LOCATION_DEVICE,
                id: context.device(),
            },
            flags: abi::ACCESS_READ_WRITE,
        };
        // SAFETY: one description; the pool was just imported.
        unsafe { driver.cuMemPoolSetAccess(pool, &access, 1) }?;
        Ok(OpenPool(Arc::new(Open {
            context: context.clone(),
            pool,
        })))
    }

    /// Whether nobody else has it.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// An allocation of the pool, which the last clone gives back in the order of a
    /// stream: invariants 1 and 2.
    ///
    /// # Errors
    /// The bytes name no allocation of it, or the driver refuses.
    pub(super) fn import(
        &self,
        stream: &Stream,
        handle: [u8; 64],
        bytes: usize,
    ) -> Result<Arc<Memory>> {
        let driver = self.0.context.enter()?;
        let mut at = 0;
        // SAFETY: a place for one address; wrong bytes are refused.
        unsafe { driver.cuMemPoolImportPointer(&mut at, self.0.pool, &abi::IpcHandle(handle)) }?;
        Ok(Memory::lent(stream, at, bytes))
    }
}
