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
//!    through atomics, raw pointers and copies only, and what was read from it once is
//!    not read again where its value decided what may be touched.
//! 4. A system call on a descriptor and numbers, or on a structure of ours that outlives
//!    the call, touches no other memory of the process.
//! 5. A descriptor that a system call has just returned is owned by nobody else.
//! 6. The head of the arena is header, control blocks, status pages, in this order, each
//!    aligned for what it holds and made of atomics only. `head` maps all of it, for as
//!    many ranks as `ranks` says, which was read once; no rank's number is larger.

use super::mapping::{FIRST_STEP_BYTES, Mapping, Steps};
use super::status::StatusPage;
use crate::contract::{TransportError, TransportErrorKind};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Changes with the layout of the arena: its head, rings and mailboxes.
pub(crate) const MAGIC: u64 = 0x4f53_4945_5230_0004;
pub(crate) const GRANULE: u64 = 64 << 10;
const HEADER_BYTES: u64 = 16 << 10;
/// Bytes that the launcher may leave in the header for all ranks.
pub const NOTE_BYTES: usize = 12 << 10;
const ARENA_BYTES: u64 = 64 << 30;
const HEAP_WINDOW_BYTES: u64 = 64 << 30;
const HEAP_TOTAL_BYTES: u64 = 8 << 40;

// The head of the largest job lies in the first step of the arena.
const _: () = assert!(head_bytes(super::MAX_RANKS) < FIRST_STEP_BYTES);

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
    /// Whether messages between processes are delayed, and how: see [`crate::delay::Delay`].
    pub delayed: AtomicU32,
    pub delay_latency_ns: AtomicU64,
    pub delay_ns_per_mib: AtomicU64,
    pad: [u64; 4],
    pub death_epoch: AtomicU32,
    pad2: [u64; 15],
    pub next_granule: AtomicU64,
    pub used_bytes: AtomicU64,
}

/// One rank's control block, one cache line per writer.
#[repr(C, align(128))]
pub(crate) struct RankControl {
    pub pid: AtomicU32,
    /// Set by the rank itself when it has sent all that it had to send and leaves the job.
    pub finalizes: AtomicU32,
    /// How it ended, as [`super::job::Death`] in a word; 0 before. Written once.
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
    /// Offset of the newest segment for collectives that the rank has made; they are linked
    /// through their heads.
    pub segments: AtomicU64,
}

/// Makes a nameless file, which nobody can shrink.
pub(crate) fn memfd(name: &std::ffi::CStr, bytes: u64) -> Result<OwnedFd, TransportError> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: invariant 4; the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        let e = std::io::Error::last_os_error();
        return Err(TransportError::os(
            "creating shared memory (hint: memfd_create must be allowed by the system's filters)",
            &e,
        ));
    }
    // SAFETY: invariant 5: just created, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: invariant 4.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(TransportError::last_os(format!(
            "sizing shared memory to {} GiB (hint: is the file size limited by ulimit -f?)",
            bytes >> 30
        )));
    }
    // SAFETY: invariant 4. A refusal leaves the file as it is.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    Ok(fd)
}

/// Both files of a job, the head of the arena mapped.
pub(crate) struct Segment {
    pub arena: Steps,
    pub heap_fd: Arc<OwnedFd>,
    /// Header, control blocks and status pages.
    head: Mapping,
    ranks: usize,
    heap_window: u64,
}

impl Segment {
    pub fn create(ranks: usize, limit_bytes: u64, job_id: u64) -> Result<Self, TransportError> {
        let first = first_granule(ranks);
        let arena_fd = memfd(c"osier-arena", ARENA_BYTES)?;
        let window = (HEAP_TOTAL_BYTES / ranks as u64).min(HEAP_WINDOW_BYTES) & !((2 << 20) - 1);
        let heap_fd = Arc::new(memfd(c"osier-heap", window * ranks as u64)?);
        reserve(&arena_fd, 0, first * GRANULE)?;
        let segment = Self {
            head: Mapping::new(&arena_fd, 0, head_bytes(ranks), true)?,
            arena: Steps::new(Arc::new(arena_fd), 0, ARENA_BYTES, true),
            heap_fd,
            ranks,
            heap_window: window,
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
        let (head, ranks) = map_head(&arena_fd, true)?;
        // SAFETY: invariants 3 and 6.
        let header = unsafe { header_at(head.base()) };
        let heap_window = header.heap_window.load(Ordering::Relaxed);
        Ok(Self {
            arena: Steps::new(Arc::new(arena_fd), 0, ARENA_BYTES, true),
            heap_fd: Arc::new(heap_fd),
            head,
            ranks,
            heap_window: heap_window.min(HEAP_WINDOW_BYTES),
        })
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// A rank's part of the heap.
    pub fn window(&self, rank: usize, write: bool) -> Steps {
        let start = self.heap_window * rank as u64;
        Steps::new(self.heap_fd.clone(), start, self.heap_window, write).huge()
    }

    pub fn header(&self) -> &JobHeader {
        // SAFETY: invariants 3 and 6; the mapping lives as long as `self`.
        unsafe { header_at(self.head.base()) }
    }

    #[inline]
    pub fn control(&self, rank: usize) -> &RankControl {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: invariant 6, by the assertion; the mapping lives as long as `self`.
        unsafe { control_at(self.head.base(), rank) }
    }

    /// The page on which a rank says how it is.
    pub fn status(&self, rank: usize) -> &StatusPage {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: invariant 6, by the assertion; the mapping lives as long as `self`.
        unsafe { status_at(self.head.base(), self.ranks, rank) }
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

    /// Reserves fresh zeroed memory of the arena, within one step of it; returns its
    /// offset.
    pub fn reserve_granules(&self, bytes: u64) -> Result<u64, TransportError> {
        let granules = bytes.div_ceil(GRANULE);
        self.charge(granules * GRANULE)?;
        self.take_granules(granules)
            .inspect_err(|_| self.discharge(granules * GRANULE))
    }

    fn take_granules(&self, granules: u64) -> Result<u64, TransportError> {
        let next = &self.header().next_granule;
        let mut offset = 0;
        let fits = |at: u64| {
            let at = at.max(first_granule(self.ranks)).checked_mul(GRANULE)?;
            offset = self.arena.fit(at, granules * GRANULE)?;
            Some(offset / GRANULE + granules)
        };
        if next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_err()
        {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                format!("the job's {} GiB of arena are used up", ARENA_BYTES >> 30),
            ));
        }
        let bytes = granules * GRANULE;
        reserve(self.arena.file(), offset, bytes)?;
        let base = self.arena.at(offset, bytes)?;
        // A rank that wrote where it must not may have made the counter smaller: memory
        // that somebody uses is not handed out again.
        let fresh = (0..bytes).step_by(4096).all(|page| {
            // SAFETY: inside by invariant 2 of `mapping`, aligned, an atomic (invariant 3).
            let word = unsafe { &*base.wrapping_add(page as usize).cast::<AtomicU64>() };
            word.load(Ordering::Relaxed) == 0
        });
        match fresh {
            true => Ok(offset),
            false => Err(TransportError::new(
                TransportErrorKind::Malformed,
                format!(
                    "the job's shared memory was overwritten: its arena is in use at {offset:#x}, where it should be free"
                ),
            )),
        }
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
        let from = self
            .head
            .base()
            .wrapping_add(HEADER_BYTES as usize - NOTE_BYTES);
        // SAFETY: at most NOTE_BYTES, which fill the end of the header (invariant 6); a copy
        // (invariant 3).
        unsafe { std::ptr::copy_nonoverlapping(from, v.as_mut_ptr(), n) };
        v
    }

    /// Leaves bytes for the ranks.
    pub fn set_note(&self, note: &[u8]) {
        let n = note.len().min(NOTE_BYTES);
        let to = self
            .head
            .base()
            .wrapping_add(HEADER_BYTES as usize - NOTE_BYTES);
        // SAFETY: at most NOTE_BYTES, which fill the end of the header (invariant 6); a copy
        // (invariant 3).
        unsafe { std::ptr::copy_nonoverlapping(note.as_ptr(), to, n) };
        self.header().note_bytes.store(n as u32, Ordering::Release);
    }
}

fn first_granule(ranks: usize) -> u64 {
    head_bytes(ranks).div_ceil(GRANULE)
}

/// Bytes in front of the granules.
pub(crate) const fn head_bytes(ranks: usize) -> u64 {
    HEADER_BYTES + (ranks * (size_of::<RankControl>() + size_of::<StatusPage>())) as u64
}

/// Maps the head of a job's arena, and checks that it is one of this version; how many
/// ranks the job has.
pub(crate) fn map_head(arena: &OwnedFd, write: bool) -> Result<(Mapping, usize), TransportError> {
    let malformed = |what: String| Err(TransportError::new(TransportErrorKind::Malformed, what));
    let length = length_of(arena)?;
    if length < head_bytes(0) {
        return malformed(format!(
            "a file of {length} bytes is no job's shared memory (hint: OSIER_JOB is only valid in a process that osier run started)"
        ));
    }
    let first = Mapping::new(arena, 0, head_bytes(0), false)?;
    // SAFETY: invariants 3 and 6.
    let header = unsafe { header_at(first.base()) };
    let version = header.version.load(Ordering::Relaxed);
    if header.magic.load(Ordering::Acquire) != MAGIC || version != u32::from(crate::WIRE_VERSION) {
        return malformed(format!(
            "the job's shared memory has wire version {version}, this library speaks {} (hint: launcher and program must come from one build of osier)",
            crate::WIRE_VERSION
        ));
    }
    let ranks = header.ranks.load(Ordering::Relaxed) as usize;
    if ranks > super::MAX_RANKS || length < head_bytes(ranks) {
        return malformed(format!(
            "the job's shared memory is of {ranks} ranks (hint: OSIER_JOB is only valid in a process that osier run started)"
        ));
    }
    Ok((Mapping::new(arena, 0, head_bytes(ranks), write)?, ranks))
}

fn length_of(file: &OwnedFd) -> Result<u64, TransportError> {
    // SAFETY: invariant 4; all zeros are a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: invariant 4; the structure is ours.
    if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(TransportError::last_os("the length of shared memory"));
    }
    Ok(stat.st_size as u64)
}

/// # Safety
/// `base` is the start of a mapping of at least the header, which outlives the reference.
#[inline]
pub(crate) unsafe fn header_at<'a>(base: *mut u8) -> &'a JobHeader {
    // SAFETY: invariant 6, by the contract; atomics only (invariant 3).
    unsafe { &*base.cast::<JobHeader>() }
}

/// # Safety
/// `base` is the start of a mapping of at least the job's head, which outlives
/// the reference; `rank` is one of its ranks.
#[inline]
pub(crate) unsafe fn control_at<'a>(base: *mut u8, rank: usize) -> &'a RankControl {
    let at = HEADER_BYTES as usize + rank * size_of::<RankControl>();
    // SAFETY: invariant 6, by the contract; atomics only (invariant 3).
    unsafe { &*base.wrapping_add(at).cast::<RankControl>() }
}

/// # Safety
/// As [`control_at`], of a job of `ranks` ranks.
pub(crate) unsafe fn status_at<'a>(base: *mut u8, ranks: usize, rank: usize) -> &'a StatusPage {
    let controls = ranks * size_of::<RankControl>();
    let at = HEADER_BYTES as usize + controls + rank * size_of::<StatusPage>();
    // SAFETY: invariant 6, by the contract; atomics only (invariant 3).
    unsafe { &*base.wrapping_add(at).cast::<StatusPage>() }
}

fn reserve(fd: &OwnedFd, offset: u64, bytes: u64) -> Result<(), TransportError> {
    loop {
        // SAFETY: invariant 4.
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
