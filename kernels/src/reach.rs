//! Memory of other devices of this process, for the kernels of one.
//!
//! | memory | what opens it | for |
//! |---|---|---|
//! | plain | `cuCtxEnablePeerAccess` | all plain memory of that device |
//! | of a pool | `cuMemPoolSetAccess` | all of the pool, later allocations too |
//! | mapped | `cuMemSetAccess` | its pieces |
//! | pinned, managed | nothing | |
//!
//! # Invariants
//! 1. An allocation is said to be reached by a device only after the driver has agreed.
//! 2. Nothing is taken back: memory that was opened for a device stays open for it.
//!
//! # Sources
//! CUDA Driver API reference 12.0: peer context memory access, stream ordered memory
//! allocator, virtual memory management.

use crate::device::{Context, Link};
use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::handle::{Allocation, Made};
use crate::memory::{Memory, Space};

impl Context {
    /// Lets kernels and copies of this device reach some memory of this process; the driver
    /// opens each allocation once.
    ///
    /// # Errors
    /// It is memory of a device that is not linked, or the driver refuses.
    pub fn reach(&self, memory: &Memory) -> Result<()> {
        let home = memory.context();
        let elsewhere = matches!(memory.space(), Space::Device(_)) && home != self;
        if !elsewhere || memory.is_reached_by(self) {
            return Ok(());
        }
        if self.link(&home.id()) != Link::Linked {
            return Err(DeviceError::Unavailable(format!(
                "device {} does not reach the memory of device {}",
                self.ordinal(),
                home.ordinal()
            )));
        }
        let (mut at, end) = (memory.address(), memory.address() + memory.bytes() as u64);
        loop {
            let found = Allocation::at(home, at)?;
            self.opens_once(found.identity, || self.open_for(home, &found))?;
            at = found.start.saturating_add(found.bytes.max(1));
            if at >= end {
                break;
            }
        }
        memory.reached_by(self);
        Ok(())
    }

    fn open_for(&self, home: &Context, found: &Allocation) -> Result<()> {
        let access = abi::AccessDesc {
            location: abi::Location {
                kind: abi::LOCATION_DEVICE,
                id: self.device(),
            },
            flags: abi::ACCESS_READ_WRITE,
        };
        match found.made {
            Made::Plain => self.enable_peer(home),
            Made::Pool | Made::SharedPool | Made::OtherPool => {
                let driver = home.enter()?;
                // SAFETY: one description; memory of the pool is held by the caller.
                unsafe { driver.cuMemPoolSetAccess(found.pool(), &access, 1) }
            }
            Made::Mapped | Made::PrivateMapped => {
                let driver = home.enter()?;
                let bytes = usize::try_from(found.bytes).unwrap_or(usize::MAX);
                // SAFETY: one description of a piece that is mapped.
                unsafe { driver.cuMemSetAccess(found.start, bytes, &access, 1) }
            }
            Made::Managed | Made::Pinned => Ok(()),
        }
    }
}
