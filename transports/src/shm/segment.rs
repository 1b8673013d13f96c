//! The nameless shared memory of a job: an arena that all ranks read and
//! write, and a heap with one window per rank.
//!
//! ```text
//! arena   0        4 KiB                                     granules of 64 KiB ...
//!         header   a control block, a status page per rank   rings
//! heap    window of rank 0 | window of rank 1 | ...      (sparse)
//! ```
//!
//! # Invariants
//! 1. Both files are memfds: they have no name and go with the last process
//!    that holds them.
//! 2. Memory is reserved before it is touched, so a machine or a limit that
//!    is full gives an error where memory is asked for, never a signal later.
//! 3. Another process may change any byte at any time: the arena is reached
//!    through atomics and raw pointers only.

use super::status::StatusPage;
use crate::contract::{TransportError, TransportErrorKind};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Changes with the layout of the arena's head.
pub(crate) const MAGIC: u64 = 0x4f53_4945_5230_0003;
pub(crate) const GRANULE: u64 = 64 << 10;
const HEADER_BYTES: u64 = 16 << 10;
/// Bytes that the launcher may leave in the header for all ranks.
pub const NOTE_BYTES: usize = 12 << 10;
const ARENA_BYTES: u64 = 64 << 30;
const HEAP_WINDOW_BYTES: u64 = 64 << 30;
const HEAP_TOTAL_BYTES: u64 = 8 << 40;

/// A shared mapping, unmapped on drop.
pub(crate) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is an address range of the process; it is tied to no
// thread, and what lies in it is reached by atomics and raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(fd: &OwnedFd, offset: u64, bytes: u64, write: bool) -> Result<Self, TransportError> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(TransportError::os(
                format!(
                    "mapping {} GiB of the job's shared memory (hint: is the address space limited by ulimit -v?)",
                    bytes >> 30
                ),
                &e,
            ));
        }
        Ok(Self {
            base: base.cast(),
            bytes: bytes as usize,
        })
    }

    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Address of `bytes` bytes at `offset`, if they lie inside.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: inside the mapping by the check.
        (end <= self.bytes as u64).then(|| unsafe { self.base.add(offset as usize) })
    }

    /// Offset of an address inside.
    pub fn offset_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        let offset = (ptr as usize).checked_sub(self.base as usize)?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset as u64)
    }

    /// Asks for huge pages, makes the pages present and reserves them.
    pub fn populate(&self, offset: u64, bytes: u64, huge: bool) -> Result<(), TransportError> {
        let Some(at) = self.at(offset, bytes) else {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                "the job's shared address range is used up",
            ));
        };
        if huge {
            // SAFETY: inside the mapping; advice only, its failure is harmless.
            unsafe { libc::madvise(at.cast(), bytes as usize, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: inside the mapping; populating changes no content.
        let rc = unsafe { libc::madvise(at.cast(), bytes as usize, libc::MADV_POPULATE_WRITE) };
        if rc == 0 {
            return Ok(());
        }
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() == Some(libc::EINVAL) {
            return Ok(()); // a kernel before 5.14: pages come with first use
        }
        Err(TransportError::os(
            format!("reserving {} KiB of shared memory", bytes >> 10),
            &e,
        ))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody holds an address inside any
        // more: every holder keeps the job that owns the mapping alive.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Head of the arena.
#[repr(C)]
pub(crate) struct JobHeader {
    pub magic: AtomicU64,
    pub ranks: AtomicU32,
    pub version: AtomicU32,
    pub limit_bytes: AtomicU64,
    pub heap_window: AtomicU64,
    pub job_id: AtomicU64,
    /// Whether posting needs a full fence because `membarrier` is absent.
    pub fence_required: AtomicU32,
    pub cores: AtomicU32,
    pub note_bytes: AtomicU32,
    /// A rank wants the job to end.
    pub aborted: AtomicU32,
    /// Process that made the job.
    pub creator: AtomicU32,
    /// Whether its maker looks out for hangs.
    pub watched: AtomicU32,
    /// What all ranks check, as bits that they understand.
    pub checks: AtomicU32,
    pad: [u64; 6],
    pub death_epoch: AtomicU32,
    pad2: [u64; 15],
    pub next_granule: AtomicU64,
    pub used_bytes: AtomicU64,
}

/// One rank's control block, one cache line per writer.
#[repr(C, align(128))]
pub(crate) struct RankControl {
    pub pid: AtomicU32,
    pub state: AtomicU32,
    pub death: AtomicU32,
    /// The process namespace in which `pid` counts: its inode.
    pub namespace: AtomicU32,
    pad: [u64; 14],
    pub sleeping: AtomicU32,
    pad2: [u64; 15],
    /// Whether a thread of the rank waits in the library.
    pub attending: AtomicU32,
    pad3: [u64; 15],
    /// Offset of the newest ring that a peer has opened to this rank; rings
    /// are linked through their headers.
    pub inbox: AtomicU64,
}

/// Makes a nameless file.
pub(crate) fn memfd(name: &std::ffi::CStr, bytes: u64) -> Result<OwnedFd, TransportError> {
    // SAFETY: a system call on a valid C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        let e = std::io::Error::last_os_error();
        return Err(TransportError::os(
            "creating shared memory (hint: memfd_create must be allowed by the system's filters)",
            &e,
        ));
    }
    // SAFETY: just created, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a system call on our own file.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(TransportError::last_os(format!(
            "sizing shared memory to {} GiB (hint: is the file size limited by ulimit -f?)",
            bytes >> 30
        )));
    }
    Ok(fd)
}

/// Both files of a job, the arena mapped.
pub(crate) struct Segment {
    pub arena_fd: OwnedFd,
    pub heap_fd: OwnedFd,
    pub arena: Mapping,
    ranks: usize,
}

impl Segment {
    pub fn create(ranks: usize, limit_bytes: u64, job_id: u64) -> Result<Self, TransportError> {
        let first = first_granule(ranks);
        let arena_fd = memfd(c"osier-arena", ARENA_BYTES)?;
        let window = (HEAP_TOTAL_BYTES / ranks as u64).min(HEAP_WINDOW_BYTES) & !((2 << 20) - 1);
        let heap_fd = memfd(c"osier-heap", window * ranks as u64)?;
        reserve(&arena_fd, 0, first * GRANULE)?;
        let arena = Mapping::new(&arena_fd, 0, ARENA_BYTES, true)?;
        let segment = Self {
            arena_fd,
            heap_fd,
            arena,
            ranks,
        };
        let h = segment.header();
        h.ranks.store(ranks as u32, Ordering::Relaxed);
        h.version
            .store(u32::from(crate::WIRE_VERSION), Ordering::Relaxed);
        h.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        h.heap_window.store(window, Ordering::Relaxed);
        h.job_id.store(job_id, Ordering::Relaxed);
        h.next_granule.store(first, Ordering::Relaxed);
        h.creator.store(std::process::id(), Ordering::Relaxed);
        h.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    pub fn attach(arena_fd: OwnedFd, heap_fd: OwnedFd) -> Result<Self, TransportError> {
        let arena = Mapping::new(&arena_fd, 0, ARENA_BYTES, true)?;
        let mut segment = Self {
            arena_fd,
            heap_fd,
            arena,
            ranks: 0,
        };
        let h = segment.header();
        let version = h.version.load(Ordering::Relaxed);
        if h.magic.load(Ordering::Acquire) != MAGIC || version != u32::from(crate::WIRE_VERSION) {
            return Err(TransportError::new(
                TransportErrorKind::Malformed,
                format!(
                    "the job's shared memory has wire version {version}, this library speaks {} (hint: launcher and program must come from one build of osier)",
                    crate::WIRE_VERSION
                ),
            ));
        }
        segment.ranks = h.ranks.load(Ordering::Relaxed) as usize;
        Ok(segment)
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn header(&self) -> &JobHeader {
        // SAFETY: the header lies at the start of the mapping, which is page
        // aligned and lives as long as `self`; it holds atomics only.
        unsafe { &*self.arena.base().cast::<JobHeader>() }
    }

    #[inline]
    pub fn control(&self, rank: usize) -> &RankControl {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: inside the reserved head of the arena by the assertion.
        unsafe { control_at(self.arena.base(), rank) }
    }

    /// The page on which a rank says how it is.
    pub fn status(&self, rank: usize) -> &StatusPage {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: inside the reserved head of the arena by the assertion.
        unsafe { status_at(self.arena.base(), self.ranks, rank) }
    }

    /// Counts bytes against the job's limit.
    pub fn charge(&self, bytes: u64) -> Result<(), TransportError> {
        let h = self.header();
        let limit = h.limit_bytes.load(Ordering::Relaxed);
        super::words::charge(&h.used_bytes, limit, bytes).map_err(|before| {
            TransportError::new(
                TransportErrorKind::OutOfMemory,
                format!(
                    "shared memory is full: {} KiB more wanted, {} of {} KiB used (hint: raise OSIER_SHM_LIMIT)",
                    bytes >> 10,
                    before >> 10,
                    limit >> 10
                ),
            )
        })
    }

    /// Gives back what `charge` counted.
    pub fn discharge(&self, bytes: u64) {
        self.header().used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserves fresh zeroed memory of the arena; returns its offset.
    pub fn reserve_granules(&self, bytes: u64) -> Result<u64, TransportError> {
        let granules = bytes.div_ceil(GRANULE);
        self.charge(granules * GRANULE)?;
        let next = &self.header().next_granule;
        let offset = next.fetch_add(granules, Ordering::Relaxed) * GRANULE;
        if offset + granules * GRANULE > self.arena.bytes() {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                format!("the job's {} GiB of arena are used up", ARENA_BYTES >> 30),
            ));
        }
        reserve(&self.arena_fd, offset, granules * GRANULE)
            .inspect_err(|_| self.discharge(granules * GRANULE))?;
        Ok(offset)
    }

    /// End of what was reserved of the arena so far.
    pub fn reserved_bytes(&self) -> u64 {
        let granules = self.header().next_granule.load(Ordering::Relaxed);
        granules.saturating_mul(GRANULE).min(self.arena.bytes())
    }

    /// Bytes that the launcher left for the ranks.
    pub fn note(&self) -> Vec<u8> {
        let n = (self.header().note_bytes.load(Ordering::Acquire) as usize).min(NOTE_BYTES);
        let mut v = vec![0; n];
        // SAFETY: the note fills the end of the header.
        let from = unsafe { self.arena.base().add(HEADER_BYTES as usize - NOTE_BYTES) };
        // SAFETY: at most NOTE_BYTES, inside the header.
        unsafe { std::ptr::copy_nonoverlapping(from, v.as_mut_ptr(), n) };
        v
    }

    /// Leaves bytes for the ranks.
    pub fn set_note(&self, note: &[u8]) {
        let n = note.len().min(NOTE_BYTES);
        // SAFETY: the note fills the end of the header.
        let to = unsafe { self.arena.base().add(HEADER_BYTES as usize - NOTE_BYTES) };
        // SAFETY: at most NOTE_BYTES, inside the header.
        unsafe { std::ptr::copy_nonoverlapping(note.as_ptr(), to, n) };
        self.header().note_bytes.store(n as u32, Ordering::Release);
    }
}

fn first_granule(ranks: usize) -> u64 {
    head_bytes(ranks).div_ceil(GRANULE)
}

/// Bytes in front of the granules.
pub(crate) fn head_bytes(ranks: usize) -> u64 {
    HEADER_BYTES + (ranks * (size_of::<RankControl>() + size_of::<StatusPage>())) as u64
}

/// # Safety
/// `base` is the start of a mapping of at least the job's head, which outlives
/// the reference; `rank` is one of its ranks.
#[inline]
pub(crate) unsafe fn control_at<'a>(base: *mut u8, rank: usize) -> &'a RankControl {
    let at = HEADER_BYTES as usize + rank * size_of::<RankControl>();
    // SAFETY: aligned to 128, atomics only, inside by the contract.
    unsafe { &*base.wrapping_add(at).cast::<RankControl>() }
}

/// # Safety
/// As [`control_at`], of a job of `ranks` ranks.
pub(crate) unsafe fn status_at<'a>(base: *mut u8, ranks: usize, rank: usize) -> &'a StatusPage {
    let controls = ranks * size_of::<RankControl>();
    let at = HEADER_BYTES as usize + controls + rank * size_of::<StatusPage>();
    // SAFETY: aligned to 128, atomics only, inside by the contract.
    unsafe { &*base.wrapping_add(at).cast::<StatusPage>() }
}

fn reserve(fd: &OwnedFd, offset: u64, bytes: u64) -> Result<(), TransportError> {
    loop {
        // SAFETY: a system call on our own file.
        let rc = unsafe { libc::fallocate(fd.as_raw_fd(), 0, offset as i64, bytes as i64) };
        if rc == 0 {
            return Ok(());
        }
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EINTR) {
            return Err(TransportError::os(
                format!(
                    "reserving {} KiB of shared memory (hint: memory or its limit is full)",
                    bytes >> 10
                ),
                &e,
            ));
        }
    }
}
