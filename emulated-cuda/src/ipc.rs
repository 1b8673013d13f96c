//! What other processes open: events as counters in a shared page, memory and
//! events as handles that name a descriptor of their process.
//!
//! A handle holds the process, its descriptor, and where in it. Whoever opens it
//! goes through `/proc/PID/fd`, which the system allows between processes of one
//! user; so the exporter must be alive at that moment, as with the real driver.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Handle, Opaque64};
use crate::driver::driver;
use crate::fault::{Result, invalid};
use crate::memory::{Allocation, File, Kind};
use crate::ranges::PAGE;

const MAGIC: u64 = 0x4f53_4945_5250_4943;

/// Allocations that this process has opened of others by handles, for tests of leaks. Not
/// an entry point of the real driver.
#[unsafe(no_mangle)]
pub extern "C" fn osier_emulated_opened() -> u64 {
    let opened = |a: &&Allocation| a.kind == Kind::Imported;
    driver().map_or(0, |d| d.lock().memory.all().filter(opened).count() as u64)
}

/// An event's counters, seen by several processes.
#[derive(Debug)]
pub struct SharedEvent {
    /// The page.
    pub file: Arc<File>,
}

impl SharedEvent {
    /// Counters at zero.
    pub fn create() -> Result<Arc<SharedEvent>> {
        Ok(Arc::new(SharedEvent {
            file: File::create(PAGE)?,
        }))
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        let at = (self.file.view + 8 * index) as *mut u64;
        // SAFETY: an aligned word of the page, which lives as long as `file`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// One more record is asked for; returns its number.
    pub fn record(&self) -> u64 {
        self.word(0).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last record asked for.
    pub fn recorded(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    /// A record has happened.
    pub fn happen(&self, generation: u64) {
        self.word(1).fetch_max(generation, Ordering::AcqRel);
    }

    /// The last record that has happened.
    pub fn happened(&self) -> u64 {
        self.word(1).load(Ordering::Acquire)
    }
}

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// 1 memory, 2 event, 3 memory of a pool.
    pub kind: u32,
    /// Process of the exporter.
    pub process: u32,
    /// Its descriptor.
    pub fd: u32,
    /// Device of the memory.
    pub device: u32,
    /// Where in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Exporter's address.
    pub address: u64,
    /// Process namespace of the exporter.
    pub namespace: u64,
    /// The allocation's number in its process; of events 0.
    pub id: u64,
}

/// The process namespace of this process; handles are of no use in another.
pub fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Memory of another process that is open: it is mapped once, however often it is opened.
#[derive(Debug)]
pub struct Opened {
    /// What it was opened by.
    pub ticket: Ticket,
    /// In which context.
    pub context: Handle,
    /// Where it is mapped.
    pub start: u64,
    /// How often it was opened and not closed.
    pub count: usize,
}

impl Ticket {
    /// Of a descriptor of a process of this namespace, to open it.
    pub fn of_descriptor(process: u32, fd: u32) -> Ticket {
        Ticket {
            kind: 0,
            process,
            fd,
            device: 0,
            offset: 0,
            bytes: 0,
            address: 0,
            namespace: namespace(),
            id: 0,
        }
    }

    /// Whether the exporter has had both at one address: the one is gone, and a driver
    /// maps the other only when that one is closed.
    pub fn overlaps(&self, other: &Ticket) -> bool {
        let apart = self.address + self.bytes <= other.address
            || other.address + other.bytes <= self.address;
        (self.process, self.device) == (other.process, other.device) && !apart
    }

    /// As bytes of a handle.
    pub fn seal(self) -> Opaque64 {
        let words = [
            MAGIC,
            u64::from(self.kind) | u64::from(self.device) << 32,
            u64::from(self.process) | u64::from(self.fd) << 32,
            self.offset,
            self.bytes,
            self.address,
            self.namespace,
            self.id,
        ];
        let mut bytes = [0; 64];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        Opaque64(bytes)
    }

    /// From the bytes of a handle.
    pub fn open(handle: &Opaque64, kind: u32) -> Result<Ticket> {
        let word = |i: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&handle.0[8 * i..8 * i + 8]);
            u64::from_le_bytes(bytes)
        };
        let found = Ticket {
            kind: word(1) as u32,
            device: (word(1) >> 32) as u32,
            process: word(2) as u32,
            fd: (word(2) >> 32) as u32,
            offset: word(3),
            bytes: word(4),
            address: word(5),
            namespace: word(6),
            id: word(7),
        };
        if word(0) != MAGIC || found.kind != kind {
            return Err(invalid("the bytes are no handle of this kind"));
        }
        Ok(found)
    }

    /// The exporter's descriptor, for us.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        if self.namespace != namespace() {
            return Err(invalid(
                "the handle comes from another process namespace (hint: pass a descriptor)",
            ));
        }
        let path = format!("/proc/{}/fd/{}", self.process, self.fd);
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .map(OwnedFd::from)
            .map_err(|e| {
                invalid(format!(
                    "cannot open the handle of process {}: {e} (hint: the exporter must be alive)",
                    self.process
                ))
            })
    }
}
