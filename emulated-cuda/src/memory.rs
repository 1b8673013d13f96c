//! All memory that the driver knows: where it lies, who may use it, what it was.
//!
//! Device addresses come from one reserved range of the process. Behind them are
//! memfds, each mapped a second time for the driver ([`File`]); see
//! [`crate::isolation`]. An allocation ends where a page ends, as far as its
//! alignment of 256 bytes allows, and a closed page follows: a kernel that runs
//! beyond it faults. A freed address is not used again for as long as possible,
//! so its use has a name.
//!
//! # Invariants
//! 1. `live` holds no two overlapping ranges.
//! 2. The view of an allocation is mapped, and readable and writable by the
//!    driver, while the allocation is in `live`.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::abi;
use crate::fault::{Fault, Result, invalid};
use crate::isolation::{self, Isolation, Wanted};
use crate::ranges::{PAGE, Ranges, pages};
use crate::sanitizer;
use crate::settings::settings;

/// Begin of the names of files.
const NAME: &str = "osier-emulated-gpu-";
/// Device addresses of the process.
const SPAN: u64 = 16 << 40;
/// Bytes that the file of a device or pool can hold, used and freed.
pub const FILE_SPAN: u64 = 1 << 40;
/// What `cuMemAlloc` aligns to.
const ALIGNMENT: u64 = 256;
/// Fresh memory up to this size is filled, so that reading it is noticed.
const POISONED: u64 = 1 << 20;

/// A memfd with the driver's own mapping of it.
#[derive(Debug)]
pub struct File {
    fd: OwnedFd,
    /// The driver's mapping.
    pub view: u64,
    /// Bytes mapped.
    pub bytes: u64,
}

impl File {
    /// A new sparse file.
    pub fn create(bytes: u64) -> Result<Arc<File>> {
        File::create_on(0, bytes)
    }

    /// A new sparse file whose name says on which device it lies, for those who
    /// get nothing but its descriptor.
    pub fn create_on(device: usize, bytes: u64) -> Result<Arc<File>> {
        File::create_named(&format!("{NAME}{device}"), bytes)
    }

    /// A new sparse file of a name.
    pub fn create_named(name: &str, bytes: u64) -> Result<Arc<File>> {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: a C string and flags.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(os("cannot make a memory file"));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) } != 0 {
            return Err(os("cannot size a memory file"));
        }
        File::map(fd, 0, bytes)
    }

    /// Maps a part of a file of another process.
    pub fn map(fd: OwnedFd, offset: u64, bytes: u64) -> Result<Arc<File>> {
        // SAFETY: a new mapping, checked below.
        let view = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                offset as i64,
            )
        };
        if view == libc::MAP_FAILED {
            return Err(os("cannot map a memory file"));
        }
        Ok(Arc::new(File {
            fd,
            view: view as u64,
            bytes,
        }))
    }

    /// The name of a file of which only the descriptor is known.
    pub fn name_of(fd: &OwnedFd) -> Result<String> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .map_err(|_| invalid("no open descriptor"))?;
        Ok(link.to_string_lossy().into_owned())
    }

    /// Device and bytes of a file of which only the descriptor is known.
    pub fn inspect(fd: &OwnedFd) -> Result<(usize, u64)> {
        let text = File::name_of(fd)?;
        let device = text
            .split_once(NAME)
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| invalid(format!("the descriptor is {text}, not exported memory")))?;
        let file = fd
            .try_clone()
            .map_err(|_| os("cannot duplicate a descriptor"))?;
        let bytes = std::fs::File::from(file).metadata().map_or(0, |m| m.len());
        Ok((device, bytes))
    }

    /// The descriptor's number.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The descriptor again, for somebody else.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        self.fd
            .try_clone()
            .map_err(|_| os("cannot duplicate a memory file"))
    }

    /// Gives the pages of a range back to the system.
    fn punch(&self, offset: u64, bytes: u64) {
        // SAFETY: an open descriptor; pages of a freed range, which no one uses.
        unsafe {
            libc::fallocate(
                self.fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as i64,
                bytes as i64,
            )
        };
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`; allocations hold the file (invariant 2).
        unsafe { libc::munmap(self.view as *mut _, self.bytes as usize) };
    }
}

/// A file from which ranges are handed out: of a device or a pool.
#[derive(Debug)]
pub struct Arena {
    /// The file.
    pub file: Arc<File>,
    /// What is in use.
    pub ranges: Ranges,
}

impl Arena {
    /// An empty one on a device.
    pub fn new(device: usize) -> Result<Arena> {
        Ok(Arena {
            file: File::create_on(device, FILE_SPAN)?,
            ranges: Ranges::new(0, FILE_SPAN),
        })
    }
}

/// Where memory came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc` and the like.
    Device,
    /// A pool, in stream order.
    Pooled(abi::Handle),
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuIpcOpenMemHandle`, or a pointer imported into a pool.
    Imported,
    /// `cuMemMap`.
    Mapped(abi::Handle),
    /// `cuMemMap` of a multicast object.
    Multicast(abi::Handle),
}

impl Kind {
    /// True for memory that the host may not touch.
    pub fn is_device(self) -> bool {
        !matches!(self, Kind::Managed | Kind::Pinned | Kind::Registered)
    }

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device memory",
            Kind::Pooled(_) => "stream-ordered memory",
            Kind::Managed => "managed memory",
            Kind::Pinned => "pinned memory",
            Kind::Registered => "registered memory",
            Kind::Imported => "imported memory",
            Kind::Mapped(_) => "mapped memory",
            Kind::Multicast(_) => "a multicast mapping",
        }
    }
}

/// A range of memory in use.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where it came from.
    pub kind: Kind,
    /// Device that it lies on.
    pub device: usize,
    /// Context in which it was made.
    pub context: abi::Handle,
    /// Unique number.
    pub id: u64,
    /// The driver's address of the first byte.
    pub view: u64,
    /// Whole pages at the user's addresses.
    pub region: (u64, u64),
    /// The file behind it, and where.
    pub file: Option<(Arc<File>, u64)>,
    /// Devices whose kernels may reach it (bits), besides peers of `device`.
    pub access: u64,
    /// False until the allocation has happened in stream order.
    pub ready: bool,
    /// True once a free is queued.
    pub freeing: bool,
}

impl Allocation {
    /// The device that alone may reach it; none: several may.
    fn owner(&self) -> Option<usize> {
        Some(self.device).filter(|device| self.access & !(1 << device) == 0)
    }

    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// For messages.
    pub fn describe(&self) -> String {
        format!(
            "{} of {} bytes at 0x{:x} on device {}",
            self.kind.name(),
            self.bytes,
            self.start,
            self.device
        )
    }
}

#[derive(Debug)]
struct Freed {
    end: u64,
    text: String,
}

/// All memory of the process.
#[derive(Debug)]
pub struct Memory {
    /// How device memory is closed to the host.
    pub isolation: Arc<Isolation>,
    addresses: Ranges,
    live: BTreeMap<u64, Allocation>,
    freed: BTreeMap<u64, Freed>,
    /// `cuMemAddressReserve`: start to bytes.
    pub reserved: BTreeMap<u64, u64>,
    next_id: u64,
    /// What was allocated at addresses that others may have had before; who compares
    /// accesses takes them.
    pub born: Vec<(u64, u64)>,
}

impl Memory {
    /// Reserves the device addresses.
    pub fn new(devices: usize, isolation: Wanted) -> Result<Memory> {
        // SAFETY: a new mapping without access, checked below.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SPAN as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(os("cannot reserve device addresses"));
        }
        // Reservations of `cuMemAddressReserve` are at multiples of 2 MiB.
        let start = (base as u64).next_multiple_of(2 << 20);
        let end = base as u64 + SPAN;
        isolation::watch(start, end);
        Ok(Memory {
            isolation: Arc::new(Isolation::new(devices, isolation)),
            addresses: Ranges::new(start, end).reusing(settings().reuse),
            live: BTreeMap::new(),
            freed: BTreeMap::new(),
            reserved: BTreeMap::new(),
            next_id: 1,
            born: Vec::new(),
        })
    }

    /// Takes device addresses for a mapping of whole pages.
    pub fn take_addresses(&mut self, bytes: u64, alignment: u64) -> Result<u64> {
        let at = self.addresses.take(bytes, alignment.max(PAGE));
        at.ok_or_else(|| Fault::named(abi::ERROR_OUT_OF_MEMORY, "no device addresses are left"))
    }

    /// Gives addresses back.
    pub fn give_addresses(&mut self, start: u64) {
        self.addresses.give(start);
    }

    /// Device memory out of an arena: mapped now, or with [`Memory::make_ready`].
    pub fn allocate(
        &mut self,
        arena: &mut Arena,
        bytes: u64,
        kind: Kind,
        device: usize,
        context: abi::Handle,
    ) -> Result<u64> {
        let length = pages(bytes);
        let offset = arena
            .ranges
            .take(length, PAGE)
            .ok_or_else(|| Fault::plain(abi::ERROR_OUT_OF_MEMORY))?;
        let region = self.take_addresses(length + PAGE, PAGE)?;
        let shift = length - bytes.next_multiple_of(ALIGNMENT).min(length);
        let view = arena.file.view + offset + shift;
        let start = self.insert(Allocation {
            start: region + shift,
            bytes,
            kind,
            device,
            context,
            id: 0,
            view,
            region: (region, length),
            file: Some((arena.file.clone(), offset + shift)),
            access: 1 << device,
            ready: false,
            freeing: false,
        });
        if bytes <= POISONED {
            // SAFETY: the view of a fresh range, which nothing else uses.
            unsafe { std::ptr::write_bytes(view as *mut u8, 0xa5, bytes as usize) };
        }
        Ok(start)
    }

    /// Maps the user's addresses of an allocation and closes them to the host.
    pub fn make_ready(&mut self, start: u64) -> Result {
        let Some(allocation) = self.live.get_mut(&start) else {
            return Err(Fault::plain(abi::ERROR_INVALID_VALUE));
        };
        allocation.ready = true;
        let allocation = allocation.clone();
        self.map_region(&allocation)
    }

    /// Maps the user's pages of an allocation.
    pub fn map_region(&self, allocation: &Allocation) -> Result {
        let Some((file, offset)) = &allocation.file else {
            return Ok(());
        };
        let (region, length) = allocation.region;
        let offset = offset - (allocation.start - region);
        // SAFETY: the range was taken from our reserved addresses for this
        // allocation alone.
        let mapped = unsafe {
            libc::mmap(
                region as *mut _,
                length as usize,
                libc::PROT_NONE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                file.fd(),
                offset as i64,
            )
        };
        if mapped == libc::MAP_FAILED {
            let live = self.live.len();
            return Err(os(&format!(
                "cannot map device memory beside {live} live allocations (hint: each takes two of \
                 the mappings that vm.max_map_count allows a process)"
            )));
        }
        self.isolation.close(region, length, allocation.owner());
        let used = allocation.start..allocation.end();
        sanitizer::reveal(region..region + length, used);
        Ok(())
    }

    /// Says anew who may reach the user's pages of an allocation, which are mapped: the key is
    /// another one where several devices may.
    pub fn regroup(&self, allocation: &Allocation) {
        if let Isolation::Keys(_) = *self.isolation {
            let (region, length) = allocation.region;
            self.isolation.close(region, length, allocation.owner());
        }
    }

    /// Closes the user's pages for good.
    pub fn unmap_region(&self, region: (u64, u64)) {
        // SAFETY: pages of our reserved addresses, whose allocation is gone.
        unsafe {
            libc::mmap(
                region.0 as *mut _,
                region.1 as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
    }

    /// Enters an allocation and returns its start.
    pub fn insert(&mut self, mut allocation: Allocation) -> u64 {
        allocation.id = self.next_id;
        self.next_id += 1;
        let (start, end) = (allocation.start, allocation.end());
        let gone: Vec<u64> = self
            .freed
            .range(..end)
            .rev()
            .take_while(|(_, f)| f.end > start)
            .map(|(&s, _)| s)
            .collect();
        if settings().reuse {
            self.born.push((start, end));
        }
        for start in gone {
            self.freed.remove(&start);
        }
        self.live.insert(start, allocation);
        start
    }

    /// The allocation that holds an address.
    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, found) = self.live.range(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// As [`Memory::find`], to change it.
    pub fn find_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, found) = self.live.range_mut(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// An allocation by its first address; else an error that names what is there.
    pub fn exact(&self, start: u64) -> Result<&Allocation> {
        match self.find(start) {
            Some(found) if found.start == start => Ok(found),
            Some(found) => Err(invalid(format!(
                "0x{start:x} is {} bytes into {}, not its begin",
                start - found.start,
                found.describe()
            ))),
            None => Err(self.unknown(start)),
        }
    }

    /// Why an address is in no allocation.
    pub fn unknown(&self, address: u64) -> Fault {
        if let Some((&start, freed)) = self.freed.range(..=address).next_back()
            && address < freed.end
        {
            return invalid(format!(
                "use after free: 0x{address:x} is byte {} of freed {}",
                address - start,
                freed.text
            ));
        }
        if let Some((_, below)) = self.live.range(..=address).next_back()
            && address < below.region.0 + below.region.1 + PAGE
            && below.kind.is_device()
        {
            return invalid(format!(
                "out of bounds: 0x{address:x} is {} bytes behind the end of {}",
                address - below.end(),
                below.describe()
            ));
        }
        invalid(format!("0x{address:x} is no address of device memory"))
    }

    /// Takes an allocation out; its memory goes back.
    pub fn remove(&mut self, start: u64, arena: Option<&mut Arena>) -> Option<Allocation> {
        let gone = self.live.remove(&start)?;
        if gone.kind.is_device() {
            self.unmap_region(gone.region);
            self.addresses.give(gone.region.0);
        }
        if let (Some(arena), Some((file, offset))) = (arena, &gone.file) {
            let offset = offset - (gone.start - gone.region.0);
            file.punch(offset, gone.region.1);
            arena.ranges.give(offset);
        }
        self.freed.insert(
            start,
            Freed {
                end: gone.end(),
                text: gone.describe(),
            },
        );
        // What was freed longest ago is forgotten.
        if self.freed.len() > 100_000 {
            self.freed.pop_first();
        }
        Some(gone)
    }

    /// Removes a mapping of `cuMemMap`: the addresses stay reserved.
    pub fn remove_mapping(&mut self, start: u64) -> Option<Allocation> {
        let gone = self.live.remove(&start)?;
        self.unmap_region(gone.region);
        self.freed.insert(
            start,
            Freed {
                end: gone.end(),
                text: gone.describe(),
            },
        );
        Some(gone)
    }

    /// All allocations.
    pub fn all(&self) -> impl Iterator<Item = &Allocation> {
        self.live.values()
    }

    /// Pieces of a range as the driver's addresses and bytes. Other addresses
    /// than the driver's own memory are taken for pageable host memory, if the
    /// caller says that they may be.
    pub fn pieces(&self, start: u64, bytes: u64, host: bool) -> Result<Vec<(u64, u64)>> {
        let mut pieces = Vec::new();
        let (mut at, end) = (start, start.saturating_add(bytes));
        while at < end {
            let Some(found) = self.find(at) else {
                if host && at == start && self.is_pageable(at) {
                    return Ok(vec![(start, bytes)]);
                }
                return Err(self.unknown(at));
            };
            if !found.ready {
                return Err(Fault::named(
                    abi::ERROR_ILLEGAL_STATE,
                    format!(
                        "use before allocation: {} exists only after work of its stream (hint: wait for an event of it)",
                        found.describe()
                    ),
                ));
            }
            if matches!(found.kind, Kind::Multicast(_)) {
                return Err(invalid(format!(
                    "{} is for multimem instructions of kernels alone",
                    found.describe()
                )));
            }
            if found.access == 0 {
                return Err(Fault::named(
                    abi::ERROR_ILLEGAL_ADDRESS,
                    format!(
                        "{} was given to no device (hint: cuMemSetAccess)",
                        found.describe()
                    ),
                ));
            }
            let stop = found.end().min(end);
            // A host buffer may be larger than the part of it that is registered.
            if found.kind == Kind::Registered && host && stop < end {
                return Ok(vec![(start, bytes)]);
            }
            pieces.push((found.view + (at - found.start), stop - at));
            at = stop;
        }
        Ok(pieces)
    }

    /// True for an address that the driver has never handed out.
    pub fn is_pageable(&self, address: u64) -> bool {
        let (start, end) = self.addresses.bounds();
        self.find(address).is_none() && !(start..end).contains(&address)
    }
}

/// An error of the system with its text.
pub fn os(what: &str) -> Fault {
    let e = std::io::Error::last_os_error();
    let code = match e.raw_os_error() {
        Some(libc::ENOMEM) => abi::ERROR_OUT_OF_MEMORY,
        _ => abi::ERROR_OPERATING_SYSTEM,
    };
    Fault::named(code, format!("{what}: {e}"))
}
