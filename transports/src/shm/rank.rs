//! A rank's attachment to a job: arena, inbox of newly opened rings, heap, sleep.
//!
//! # Invariants
//! 1. A ring's block is written whole before it is linked into the receiver's
//!    inbox by one compare-and-swap; a sender that dies before has changed
//!    nothing that others see, one that dies after has left a sound ring.
//! 2. A block is re-used only after its consumer has closed it or has ended: its process,
//!    or all that could read the block.
//! 3. Blocks are checked before use: bounds, magic, shape, addressee. What
//!    fails is dropped and counted.
//! 4. A [`Block`] names memory of the arena that is mapped as long as the job, which every
//!    holder of a rank keeps; it is as long as its level says, a level was read once, and
//!    what lies there is atomics, or raw bytes of a payload.

use super::collective::{Made, PAGE_BYTES, Retired};
use super::endpoint::ShmEndpoint;
use super::heap::Heap;
use super::job::Job;
use super::mailbox;
use super::mapping::{self, Steps};
use super::ring::{Cell, Control, LEFT_BYTES, RingMemory};
use super::segment::{self, GRANULE};
use super::shared_heap::SharedHeap;
use super::{cma, wait, words};
use crate::Death;
use crate::contract::{TransportError, TransportErrorKind, WIRE_VERSION};
use crate::spans::Spans;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

const BLOCK_MAGIC: u64 = 0x4f53_4945_5252_0000;
/// In an exchange block.
const MAIL_AT: u64 = 192;
const CELLS_AT: u64 = 256;
/// In an exchange block, behind its one cell.
const CROSS_AT: u64 = 512;

/// Sizes of a ring: memory follows traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// One page: a few messages to this peer.
    Small = 0,
    /// A stream of small messages.
    Medium = 1,
    /// Fragments of large ones.
    Large = 2,
    /// No ring: a mailbox with the memory for its payloads.
    Exchange = 3,
}

impl Level {
    pub(crate) const ALL: [Level; 4] = [Level::Small, Level::Medium, Level::Large, Level::Exchange];

    pub(crate) fn cells(self) -> u64 {
        [64, 512, 1024, 1][self as usize]
    }

    pub(crate) fn payload_bytes(self) -> u64 {
        [2 << 10, 64 << 10, 256 << 10, 64 << 10][self as usize]
    }

    /// Offset of the payload ring: on a page of its own, so that the
    /// processor's prefetchers follow a payload from its first line.
    fn payload_at(self) -> u64 {
        let cells_end = CELLS_AT + self.cells() * size_of::<Cell>() as u64;
        match self {
            Level::Small => cells_end,
            _ => cells_end.next_multiple_of(4096),
        }
    }

    fn block_bytes(self) -> u64 {
        (self.payload_at() + self.payload_bytes()).next_multiple_of(4096)
    }
}

#[repr(C, align(64))]
struct BlockHeader {
    magic: AtomicU64,
    channel: AtomicU64,
    /// Next block of the receiver's inbox.
    next: AtomicU64,
    source: AtomicU32,
    destination: AtomicU32,
    level: AtomicU32,
    capabilities: AtomicU32,
}

/// A block that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub offset: u64,
    pub channel: u64,
    pub source: u32,
    pub memory: RingMemory,
    /// Whether it is an exchange block, and the line of its mailbox.
    pub exchange: bool,
    pub mail: *const mailbox::Line,
    /// Its cells for messages that cross.
    pub cross: *const mailbox::Cells,
}

// SAFETY: invariant 4: addresses in shared memory, tied to no thread.
unsafe impl Send for Block {}

#[derive(Default)]
struct Arena {
    free: [Vec<u64>; 4],
    /// Blocks that their consumers may still read.
    retired: Vec<(u64, Level, u32)>,
    page: u64,
    page_end: u64,
}

#[derive(Default)]
struct Channels {
    open: HashMap<u64, Arc<Arrivals>>,
    /// Rings of channels that this rank has not opened yet.
    early: HashMap<u64, Vec<Block>>,
    closed: Spans,
}

/// Rings that peers have opened and the endpoint has not adopted yet.
pub(crate) type Arrivals = words::Arrivals<Block>;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Inner {
    job: Job,
    rank: u32,
    arena: Mutex<Arena>,
    channels: Mutex<Channels>,
    heap: Arc<Heap>,
    peer_heaps: Vec<OnceLock<Steps>>,
    /// The same, mapped to be written where windows lie.
    peer_windows: Vec<OnceLock<Steps>>,
    malformed: AtomicU64,
    /// The list of new rings was overwritten.
    inbox_lost: AtomicU32,
    cma_refused: AtomicU32,
    fence: bool,
    /// This process, and where its number counts: asking costs system calls.
    pid: u32,
    namespace: u32,
    /// Payloads carry check bits.
    payloads: AtomicU32,
    leaves_lines: AtomicU32,
    /// A post found no room.
    starved: AtomicU32,
    /// 1: this rank looks for the ends of others' processes.
    watches: AtomicU32,
    /// Segments for collectives that this rank has made,
    segments: Mutex<Vec<Made>>,
    /// and memory for slots that no segment uses any more.
    slots: Mutex<Vec<Retired>>,
}

/// The last endpoint and the last user of the rank are gone: peers may learn that it has
/// finalized, and use its blocks again (invariant 2).
impl Drop for Inner {
    fn drop(&mut self) {
        self.heap.close();
        if !self.heap.is_unused() {
            // Somebody uses its memory still, as invariant 1 of `shared_heap` allows.
            std::mem::forget(self.heap.clone());
        }
        let rank = self.rank as usize;
        // A child process that was forked is not the rank.
        let here = self.pid == std::process::id();
        if here && self.job.control(rank).finalizes.load(Ordering::Relaxed) != 0 {
            self.job.mark_dead(rank, Death::Finalized);
        }
    }
}

/// A rank of a job. Clones are the same rank.
#[derive(Clone)]
pub struct ShmRank(Arc<Inner>);

impl ShmRank {
    /// Takes a rank's place in the job.
    pub fn join(job: &Job, rank: usize) -> Result<ShmRank, TransportError> {
        job.claim(rank)?;
        cma::allow();
        let mut fence = job
            .segment()
            .header()
            .fence_required
            .load(Ordering::Relaxed)
            != 0;
        if !fence && !wait::register() {
            fence = true;
            job.segment()
                .header()
                .fence_required
                .store(1, Ordering::Relaxed);
        }
        Ok(ShmRank(Arc::new(Inner {
            job: job.clone(),
            rank: rank as u32,
            arena: Mutex::default(),
            channels: Mutex::default(),
            heap: Heap::new(job.clone(), rank),
            peer_heaps: (0..job.ranks()).map(|_| OnceLock::new()).collect(),
            peer_windows: (0..job.ranks()).map(|_| OnceLock::new()).collect(),
            malformed: AtomicU64::new(0),
            inbox_lost: AtomicU32::new(0),
            cma_refused: AtomicU32::new(0),
            fence,
            pid: std::process::id(),
            namespace: super::job::namespace(),
            payloads: AtomicU32::new(0),
            leaves_lines: AtomicU32::new(0),
            starved: AtomicU32::new(0),
            watches: AtomicU32::new(0),
            segments: Mutex::default(),
            slots: Mutex::default(),
        })))
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.0.job
    }

    /// This rank's number in the job.
    pub fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// This process.
    #[inline]
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The process namespace in which its number counts.
    #[inline]
    pub(crate) fn namespace(&self) -> u32 {
        self.0.namespace
    }

    /// Has all payloads in rings carry check bits, so that it is seen when somebody writes
    /// over them. By all ranks of a job, before they open channels.
    pub fn check_payloads(&self) {
        self.0.payloads.store(1, Ordering::Relaxed);
    }

    /// Whether payloads carry check bits.
    pub(crate) fn checks_payloads(&self) -> bool {
        self.0.payloads.load(Ordering::Relaxed) != 0
    }

    /// Has this rank leave the lines of long payloads and slots that it has read to their
    /// writer, in place of taking them: which of the two is faster, the processor decides.
    /// Before it opens channels.
    pub fn leave_lines(&self) {
        self.0.leaves_lines.store(1, Ordering::Relaxed);
    }

    /// Lines of fewer bytes than these are taken by who reads them.
    pub(crate) fn takes_lines_below(&self) -> usize {
        match self.0.leaves_lines.load(Ordering::Relaxed) {
            0 => usize::MAX,
            _ => LEFT_BYTES,
        }
    }

    /// Opens a channel to the given ranks of the job.
    pub fn endpoint(&self, channel: u64, members: impl Into<Arc<[u32]>>) -> ShmEndpoint {
        let arrivals = Arc::new(Arrivals::default());
        let mut channels = lock(&self.0.channels);
        for block in channels.early.remove(&channel).unwrap_or_default() {
            arrivals.add(block);
        }
        channels.open.insert(channel, arrivals.clone());
        drop(channels);
        ShmEndpoint::new(self.clone(), channel, members.into(), arrivals)
    }

    /// Whether senders must fence after publishing.
    pub(crate) fn fence(&self) -> bool {
        self.0.fence
    }

    /// Blocks and messages that were rejected.
    pub fn malformed(&self) -> u64 {
        self.0.malformed.load(Ordering::Relaxed)
    }

    /// Counts words of a peer in shared memory that no correct peer writes.
    pub fn count_malformed(&self) {
        self.0.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether rings that peers have opened may have been lost.
    pub(crate) fn inbox_lost(&self) -> bool {
        self.0.inbox_lost.load(Ordering::Relaxed) != 0
    }

    /// Closes a channel: what arrives for it later is dropped.
    pub(crate) fn close_channel(&self, channel: u64) {
        let mut channels = lock(&self.0.channels);
        channels.closed.insert(channel);
        if let Some(arrivals) = channels.open.remove(&channel) {
            for block in arrivals.take() {
                self.close_block(&block);
            }
        }
    }

    /// Says that this rank has sent all that it had to send and leaves the job. It has
    /// finalized once the last clone of `self` is dropped, or its process ends.
    pub fn finalize(&self) {
        let word = &self.0.job.control(self.rank()).finalizes;
        word.store(1, Ordering::Release);
    }

    /// The word that peers change when they open a ring to this rank.
    pub(crate) fn inbox(&self) -> &AtomicU64 {
        &self.0.job.control(self.rank()).inbox
    }

    /// Closes a ring that nobody will read.
    fn close_block(&self, block: &Block) {
        // SAFETY: invariants 3 and 4: the block was checked, and nobody else consumes it.
        unsafe { super::ring::Consumer::new(block.memory, 0) }.close();
        self.tell_closed(block.source);
    }

    /// Wakes a rank whose ring was closed: it may wait for what will not come.
    pub(crate) fn tell_closed(&self, source: u32) {
        // Either its last look before it sleeps sees the close, or we see its
        // flag.
        crate::full_fence();
        let sleeping = &self.0.job.control(source as usize).sleeping;
        if words::may_sleep(sleeping) && words::rouse(sleeping) {
            self.0.job.ring(source as usize);
        }
    }

    /// Hands newly opened rings to their channels.
    #[cold]
    pub(crate) fn drain_inbox(&self) {
        let mut offset = words::take_list(self.inbox());
        let mut blocks = Vec::new();
        while offset != 0 {
            // The second is a cycle.
            let block = self.open_block(offset).filter(|_| blocks.len() <= 1 << 20);
            let Some((block, next)) = block else {
                self.count_malformed();
                self.0.inbox_lost.store(1, Ordering::Relaxed);
                break;
            };
            blocks.push(block);
            offset = next;
        }
        let mut channels = lock(&self.0.channels);
        for block in blocks.into_iter().rev() {
            if channels.closed.contains(block.channel) {
                self.close_block(&block);
            } else if let Some(arrivals) = channels.open.get(&block.channel) {
                arrivals.add(block);
            } else {
                channels.early.entry(block.channel).or_default().push(block);
            }
        }
    }

    /// Checks the block at an offset that a peer named.
    pub(crate) fn open_block(&self, offset: u64) -> Option<(Block, u64)> {
        let arena = &self.0.job.segment().arena;
        if !offset.is_multiple_of(4096) {
            return None;
        }
        let header = match arena.at(offset, Level::Small.block_bytes()) {
            Ok(header) => header.cast::<BlockHeader>(),
            Err(e) if e.kind() == TransportErrorKind::Malformed => return None,
            Err(e) => {
                // What the peer sends there cannot be read: silence would be a hang.
                eprintln!(
                    "osier: rank {}: no memory for a ring of a peer: {e}",
                    self.0.rank
                );
                return None;
            }
        };
        // SAFETY: invariant 4: inside the arena, aligned to a page.
        let header = unsafe { &*header };
        let level = *Level::ALL.get(header.level.load(Ordering::Relaxed) as usize)?;
        let source = header.source.load(Ordering::Relaxed);
        let sound = header.magic.load(Ordering::Acquire) == BLOCK_MAGIC | u64::from(WIRE_VERSION)
            && header.destination.load(Ordering::Relaxed) == self.0.rank
            && (source as usize) < self.0.job.ranks();
        if !sound {
            return None;
        }
        let block = Block {
            offset,
            channel: header.channel.load(Ordering::Relaxed),
            source,
            memory: self.memory(offset, level)?,
            exchange: level == Level::Exchange,
            mail: self.mail(offset)?,
            cross: self.cross(offset)?,
        };
        Some((block, header.next.load(Ordering::Relaxed)))
    }

    fn mail(&self, offset: u64) -> Option<*const mailbox::Line> {
        let base = self.0.job.segment().arena.at(offset, CELLS_AT).ok()?;
        Some(base.wrapping_add(MAIL_AT as usize).cast())
    }

    fn cross(&self, offset: u64) -> Option<*const mailbox::Cells> {
        let end = CROSS_AT + size_of::<mailbox::Cells>() as u64;
        let base = self.0.job.segment().arena.at(offset, end).ok()?;
        Some(base.wrapping_add(CROSS_AT as usize).cast())
    }

    fn memory(&self, offset: u64, level: Level) -> Option<RingMemory> {
        let arena = &self.0.job.segment().arena;
        let base = arena.at(offset, level.block_bytes()).ok()?;
        let at = |bytes: u64| base.wrapping_add(bytes as usize);
        Some(RingMemory {
            control: at(64).cast::<Control>(),
            cells: at(CELLS_AT).cast::<Cell>(),
            cell_bits: level.cells().ilog2(),
            payload: at(level.payload_at()),
            payload_bytes: level.payload_bytes(),
        })
    }

    /// Makes a ring to a peer; `announce` links it into the peer's inbox.
    pub(crate) fn new_block(
        &self,
        channel: u64,
        destination: u32,
        level: Level,
        announce: bool,
    ) -> Result<Block, TransportError> {
        let offset = self.allocate(level)?;
        let segment = self.0.job.segment();
        let base = segment.arena.at(offset, level.block_bytes())?;
        let (Some(memory), Some(mail), Some(cross)) = (
            self.memory(offset, level),
            self.mail(offset),
            self.cross(offset),
        ) else {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                "the job's arena is used up",
            ));
        };
        // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
        unsafe { mapping::populate(base, level.block_bytes(), false) }?;
        let head_bytes = match level {
            Level::Exchange => CROSS_AT as usize + size_of::<mailbox::Cells>(),
            _ => (CELLS_AT + level.cells() * size_of::<Cell>() as u64) as usize,
        };
        // SAFETY: our own block, which no consumer reads yet (invariant 2).
        unsafe { std::ptr::write_bytes(base, 0, head_bytes) };
        match level {
            // SAFETY: invariants 2 and 4: ours alone until it is announced, and as long as
            // both.
            Level::Exchange => unsafe { mailbox::clear(mail, cross) },
            // SAFETY: invariants 2 and 4.
            _ => unsafe { memory.clear() },
        }
        // SAFETY: invariant 4: inside the arena, aligned to a page.
        let header = unsafe { &*base.cast::<BlockHeader>() };
        header.channel.store(channel, Ordering::Relaxed);
        header.source.store(self.0.rank, Ordering::Relaxed);
        header.destination.store(destination, Ordering::Relaxed);
        header.level.store(level as u32, Ordering::Relaxed);
        header
            .magic
            .store(BLOCK_MAGIC | u64::from(WIRE_VERSION), Ordering::Release);
        if announce {
            let inbox = &self.0.job.control(destination as usize).inbox;
            words::link(inbox, &header.next, offset);
        }
        Ok(Block {
            offset,
            channel,
            source: self.0.rank,
            memory,
            exchange: level == Level::Exchange,
            mail,
            cross,
        })
    }

    fn allocate(&self, level: Level) -> Result<u64, TransportError> {
        let mut arena = lock(&self.0.arena);
        if let Some(offset) = arena.free[level as usize].pop() {
            return Ok(offset);
        }
        let mut kept = Vec::with_capacity(arena.retired.len());
        for (offset, l, destination) in std::mem::take(&mut arena.retired) {
            if self.block_closed(offset, l) || self.0.job.death(destination as usize).is_some() {
                arena.free[l as usize].push(offset);
            } else {
                kept.push((offset, l, destination));
            }
        }
        arena.retired = kept;
        if let Some(offset) = arena.free[level as usize].pop() {
            return Ok(offset);
        }
        let bytes = level.block_bytes();
        if bytes >= GRANULE {
            return self.0.job.segment().reserve_granules(bytes);
        }
        self.carve(&mut arena, bytes)
    }

    /// Pages of a granule, of which blocks of several sizes share one; what is left of one is
    /// given up.
    fn carve(&self, arena: &mut Arena, bytes: u64) -> Result<u64, TransportError> {
        if arena.page + bytes > arena.page_end {
            arena.page = self.0.job.segment().reserve_granules(GRANULE)?;
            arena.page_end = arena.page + GRANULE;
        }
        let offset = arena.page;
        arena.page += bytes;
        Ok(offset)
    }

    /// The newest segment for collectives that a rank has made.
    pub(crate) fn segments_of(&self, rank: u32) -> &AtomicU64 {
        &self.0.job.control(rank as usize).segments
    }

    /// Those that this rank has made.
    pub(crate) fn made_segments(&self) -> MutexGuard<'_, Vec<Made>> {
        lock(&self.0.segments)
    }

    /// Pages of the arena for a segment: their offset.
    pub(crate) fn allocate_pages(&self, bytes: u64) -> Result<u64, TransportError> {
        let segment = self.0.job.segment();
        let offset = match bytes >= GRANULE {
            true => segment.reserve_granules(bytes)?,
            false => self.carve(&mut lock(&self.0.arena), bytes)?,
        };
        let at = segment.arena.at(offset, bytes)?;
        // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
        unsafe { mapping::populate(at, bytes, true) }?;
        Ok(offset)
    }

    /// Address of so many pages at an offset that a peer has named.
    pub(crate) fn pages(&self, offset: u64, pages: usize) -> Option<*mut u8> {
        let segment = self.0.job.segment();
        let bytes = pages as u64 * PAGE_BYTES;
        let inside = offset.is_multiple_of(PAGE_BYTES)
            && offset >= segment::head_bytes(self.0.job.ranks())
            && offset.checked_add(bytes)? <= segment.reserved_bytes();
        inside.then(|| segment.arena.at(offset, bytes).ok())?
    }

    /// Memory for the slots of a segment.
    pub(crate) fn take_slots(&self, bytes: u64) -> Result<(u64, *mut u8), TransportError> {
        let mut retired = lock(&self.0.slots);
        if let Some(at) = retired.iter().position(Retired::is_quiet) {
            let offset = retired.swap_remove(at).offset;
            let at = self.0.job.segment().arena.at(offset, bytes)?;
            return Ok((offset, at));
        }
        drop(retired);
        self.reserve_shared(bytes)
    }

    /// Takes it back, to be used once nobody reads it any more.
    pub(crate) fn retire_slots(&self, slots: Retired) {
        lock(&self.0.slots).push(slots);
    }

    fn block_closed(&self, offset: u64, level: Level) -> bool {
        self.memory(offset, level).is_some_and(|m| {
            // SAFETY: invariant 4; this producer only reads the consumer's flag.
            unsafe { super::ring::Producer::new(m, 0) }.closed()
        })
    }

    /// Gives up a ring of this rank; its memory is re-used once the consumer
    /// has closed it.
    pub(crate) fn retire_block(&self, offset: u64, level: Level, destination: u32) {
        lock(&self.0.arena)
            .retired
            .push((offset, level, destination));
    }

    /// Allocates zeroed memory that peers can read directly, aligned to a power of two.
    pub fn heap_alloc(&self, bytes: usize, align: usize) -> Result<*mut u8, TransportError> {
        self.0.heap.alloc(bytes, align)
    }

    /// This rank's heap, to be used after it has left the job, too.
    pub fn heap(&self) -> SharedHeap {
        SharedHeap::new(&self.0.heap)
    }

    /// Gives back heap memory.
    ///
    /// # Safety
    /// `ptr` came from [`ShmRank::heap_alloc`], is given back once, and no transfer uses it.
    pub unsafe fn heap_free(&self, ptr: *mut u8) {
        self.0.heap.free(ptr);
    }

    /// Reserves fresh zeroed memory of the arena, which all ranks read and write: its
    /// offset, by which peers find it, and its address. It stays until the job ends.
    ///
    /// # Errors
    /// The job's memory is full ([`TransportErrorKind::OutOfMemory`]).
    pub fn reserve_shared(&self, bytes: u64) -> Result<(u64, *mut u8), TransportError> {
        let segment = self.0.job.segment();
        let offset = segment.reserve_granules(bytes)?;
        let at = segment.arena.at(offset, bytes)?;
        // SAFETY: invariant 2 of `mapping`: `at` has returned the address.
        unsafe { mapping::populate(at, bytes, true) }?;
        Ok((offset, at))
    }

    /// Address of memory that a peer has reserved; none for what nobody reserved.
    pub fn shared(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let segment = self.0.job.segment();
        let reserved = offset.is_multiple_of(GRANULE)
            && offset >= segment::head_bytes(self.0.job.ranks())
            && offset.checked_add(bytes)? <= segment.reserved_bytes();
        reserved.then(|| segment.arena.at(offset, bytes).ok())?
    }

    /// Offset of heap memory in this rank's window.
    #[inline]
    pub(crate) fn heap_offset(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        self.0.heap.offset_of(ptr, bytes)
    }

    /// A peer's heap, mapped read-only where it is used.
    pub(crate) fn peer_heap(&self, rank: usize) -> Option<&Steps> {
        let heap = self.0.peer_heaps.get(rank)?;
        Some(heap.get_or_init(|| self.0.job.segment().window(rank, false)))
    }

    /// A peer's heap, mapped to be written where it is used: for memory of windows alone.
    pub(crate) fn peer_windows(&self, rank: usize) -> Option<&Steps> {
        let heap = self.0.peer_windows.get(rank)?;
        Some(heap.get_or_init(|| self.0.job.segment().window(rank, true)))
    }

    pub(crate) fn cma_refused(&self) -> bool {
        self.0.cma_refused.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn refuse_cma(&self) {
        self.0.cma_refused.store(1, Ordering::Relaxed);
    }

    /// A post of this rank has found no room. If a thread sleeps meanwhile that does not
    /// know, it may sleep for its time: it has nothing to do with the post.
    #[inline]
    pub(crate) fn starves(&self) {
        self.0.starved.store(1, Ordering::Relaxed);
    }

    /// Sleeps until a peer posts, a descriptor of `others` is readable or
    /// time is up, which is asked last; also until there is more room, if a post has found none during
    /// `idle`. That is asked once more after the flag is set, should try again what
    /// waits to be posted, and nothing sleeps if it says false.
    pub fn sleep(
        &self,
        others: &[i32],
        timeout: impl FnOnce() -> Duration,
        idle: impl FnOnce() -> bool,
    ) {
        let control = self.0.job.control(self.rank());
        let barrier = || match self.0.fence {
            true => crate::full_fence(),
            false => wait::barrier_all(),
        };
        let bell = self.0.job.bell(self.rank());
        let starved = &self.0.starved;
        let look = || {
            starved.store(0, Ordering::Relaxed);
            match (idle(), starved.load(Ordering::Relaxed)) {
                (false, _) => words::Idle::No,
                (true, 0) => words::Idle::Yes,
                (true, _) => words::Idle::Starved,
            }
        };
        words::rest(&control.sleeping, barrier, look, || {
            let woken = wait::sleep(bell, others, timeout());
            if !woken && self.0.watches.load(Ordering::Relaxed) != 0 {
                self.look_for_ended();
            }
        });
    }

    /// As [`ShmRank::sleep`], for a rank whose thread runs other ranks meanwhile: `away` leaves
    /// this one, and returns when it is to go on (false) or to look once more (true). That is
    /// asked once more, too, before the thread sleeps: see [`Parked`].
    pub fn park(&self, mut idle: impl FnMut() -> bool, mut away: impl FnMut(Parked) -> bool) {
        let starved = &self.0.starved;
        let look = || {
            starved.store(0, Ordering::Relaxed);
            match (idle(), starved.load(Ordering::Relaxed)) {
                (false, _) => words::Idle::No,
                (true, 0) => words::Idle::Yes,
                (true, _) => words::Idle::Starved,
            }
        };
        let sleeping = &self.0.job.control(self.rank()).sleeping;
        words::park(sleeping, crate::full_fence, look, || {
            away(Parked(self.clone()))
        });
        if self.0.watches.load(Ordering::Relaxed) != 0 {
            self.look_for_ended();
        }
    }

    /// From now on this rank looks for the ends of others' processes whenever it has slept for
    /// its time: where no launcher records them.
    pub fn watch_processes(&self) {
        self.0.watches.store(1, Ordering::Relaxed);
    }

    /// Says whether a thread of this rank waits in the library.
    #[inline]
    pub fn attend(&self, waits: bool) {
        self.0
            .job
            .control(self.rank())
            .attending
            .store(u32::from(waits), Ordering::Relaxed);
    }

    /// Writes the first words of this rank's page. Not by two threads at once.
    pub fn publish(&self, words: &[u64]) {
        self.0.job.segment().status(self.rank()).write(words);
    }

    /// Wakes this rank's sleeping thread, also one that is about to sleep.
    pub fn wake(&self) {
        self.0.job.wake(self.rank());
    }
}

/// A rank that is parked, for the thread that runs it.
///
/// A thread that wants to sleep has each of its parked ranks want its bell, passes
/// [`Parked::barrier`], has each look once more, and sleeps at all their bells.
pub struct Parked(ShmRank);

impl Parked {
    fn sleeping(&self) -> &AtomicU32 {
        &self.0.0.job.control(self.0.rank()).sleeping
    }

    /// Whether a peer has posted to it, or made room for it.
    #[inline]
    pub fn is_roused(&self) -> bool {
        words::is_roused(self.sleeping())
    }

    /// Has peers ring its bell. False: it is roused.
    pub fn want_bell(&self) -> bool {
        words::want_bell(self.sleeping())
    }

    /// Has peers ring no bell: its thread is awake.
    pub fn want_no_bell(&self) {
        words::want_no_bell(self.sleeping());
    }

    /// Whether peers are to ring its bell, and none has roused it.
    pub fn wants_bell(&self) -> bool {
        words::wants_bell(self.sleeping())
    }

    /// A barrier that all senders of their jobs pass.
    pub fn barrier<'a>(mut parked: impl Iterator<Item = &'a Parked>) {
        match parked.all(|p| p.0.0.fence) {
            true => crate::full_fence(),
            false => wait::barrier_all(),
        }
    }

    /// Sleeps until one of the bells rings or time is up, which may be after some ms; resets
    /// the bells. Without any it sleeps for that time.
    pub fn sleep_at<'a>(bells: impl Iterator<Item = &'a Parked>, timeout: Duration) {
        wait::sleep_at(bells.map(|p| p.0.0.job.bell(p.0.rank())), timeout);
    }
}
