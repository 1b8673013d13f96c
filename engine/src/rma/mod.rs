//! Parts of windows, as a rank reaches them: reads, writes, updates, locks.
//!
//! | reach | reads and writes | locks | updates of elements |
//! |---|---|---|---|
//! | address | copies | atomics of the processor | the same, or under the part's lock |
//! | transport | its get and put | its atomics | under the part's lock |
//! | messages | messages, which the owner serves | the same | under the part's lock |
//!
//! All ranks update the elements of a part in one way, which its owner names when the window is
//! made: by atomics of the processor where all reach it by address, else under the part's lock.
//! Elements that no atomic fits (long ones, pairs, unaligned ones) go under the lock in both
//! cases; an element is always one or the other.
//!
//! Plain memory of another process is read and written by the system; short accesses to it, and
//! those of many runs, are made by its owner, while that waits ([`crate::progress::served`]).
//!
//! Each call ends when what it does can be seen by the part's owner.
//!
//! ```text
//! sync block of a part, one line for each word
//! byte 0          64                     96             128        192                    256
//!      lock of    words of a window      mark of an     lock of    parts that the owner   request
//!      epochs     with attached memory   owner that     updates    shares the locks of    for plain
//!                                        sleeps                                           memory
//! ```
//!
//! # Invariants
//! 1. A part's memory is there until all ranks have given the window back: its maker waits for
//!    them before it frees it. An address of a [`Place`] is that of its first byte.
//! 2. The caller checks that what a call touches lies inside the part.
//! 3. Memory of the caller is readable, or writable and nobody else's, until the call returns:
//!    it returns when no access to it is under way, also with an error.
//! 4. Memory of a part may change at any time: it is copied, or used by atomics.
//! 5. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! MPI 5.0, chapter 12. R. Gerstenberger, M. Besta, T. Hoefler, "Enabling Highly-Scalable Remote
//! Memory Access Programming with MPI-3 One Sided", SC 2013: locks by remote atomics, and no
//! work of the target. Here updates of a part are by one kind of atomics for all of its ranks.

pub mod pending;
pub mod pieces;
pub mod shares;
pub mod update;
pub mod watched;
pub mod ways;
pub mod word;

use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::access::{Begun, Limits, Reached};
use crate::progress::cell::LaneCell;
use crate::progress::core::Core;
use crate::progress::lane::Lane;
use crate::progress::served::{self, Access, Does, REQUEST_BYTES, Request};
use crate::protocol::cost::LinkCosts;
use crate::view::{RawView, copy_contiguous};
use osier_transports::shm::monotonic_ns;
use osier_transports::{AtomicOp, Death, RegionKey, RegionKind, full_fence};
use pending::Pending;
use pieces::Pieces;
use shares::{Left, Shares};
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use update::Update;
use ways::Way;
use word::{Hold, Holders, Tried};

/// Bytes of a sync block.
pub const SYNC_BYTES: usize = REQUEST_AT;
/// Of one whose owner is asked for accesses ([`Part::serve`]).
pub const SERVED_SYNC_BYTES: usize = REQUEST_AT + REQUEST_BYTES;
/// Bytes of the sync block of a part with these data.
pub fn sync_bytes(data: &RegionKey) -> usize {
    match is_private(data) {
        true => SERVED_SYNC_BYTES,
        false => SYNC_BYTES,
    }
}

/// Whether data are plain memory of a process.
fn is_private(data: &RegionKey) -> bool {
    data.kind == RegionKind::Process && data.bytes > 0
}

/// Its alignment: two lines, which processors fetch together.
pub const SYNC_ALIGN: usize = 128;
/// Bytes that a copy between two layouts takes through a buffer at a time.
const BOUNCE_BYTES: usize = 32 << 10;
/// Most accesses of one call under way. Not tuned.
const MOST_UNDER_WAY: usize = 16;
/// Polls between two attempts to take a lock that only the transport reaches. Not tuned.
const REMOTE_POLLS: u32 = 16;
/// Attempts to take a lock that another rank has, before this one does other things meanwhile.
/// Not tuned.
const SPINS: u32 = 64;
/// Attempts to take a lock before the one that has it is asked to wake this rank, which costs it
/// a system call: fewer than a thread makes before it sleeps. Not tuned.
const AWAKE_ATTEMPTS: u32 = 100;

/// Byte of the sync block: the owner sleeps until its part changes ([`watched`]).
const MARK_AT: usize = 96;

/// Byte of the sync block: which parts its owner has locked together with others ([`shares`]).
const SHARES_AT: usize = 192;
const _: () = assert!(SHARES_AT + 8 * shares::WORDS == REQUEST_AT);

/// Byte of the sync block: an access that the owner is asked for ([`served`]).
const REQUEST_AT: usize = 256;

/// What a request has room for.
pub const SERVED_LIMITS: Limits = Limits {
    runs: served::AREA_BYTES / served::NAME_BYTES,
    bytes: served::AREA_BYTES,
    name_bytes: served::NAME_BYTES,
};

/// Looks for the answer of an owner, which a core further away gives within a third of them.
/// Not tuned.
const ANSWER_LOOKS: u32 = 300;

/// An owner that does not answer and may sleep is woken and awaited where the other way takes at
/// least this long: some times of what the system takes to wake a thread. Not tuned.
const WORTH_WAKING_NS: f64 = 60_000.0;
/// Looks between two at the clock.
const LOOKS_PER_TIME: u32 = 64;

/// A lock of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOf {
    /// Of those who lock the part as such.
    Epochs,
    /// Of one update.
    Updates,
}

impl LockOf {
    /// Where its word lies in the sync block.
    const fn at(self) -> usize {
        match self {
            LockOf::Epochs => 0,
            LockOf::Updates => SYNC_ALIGN,
        }
    }
}

/// Memory of a peer's part.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Here, or mapped here.
    At(*mut u8),
    /// A region that the transport reaches.
    Region(RegionKey),
    /// One that its owner serves.
    Served(RegionKey),
}

// SAFETY: invariants 1 and 4: an address that is tied to no thread, used by copies and atomics.
unsafe impl Send for Place {}
// SAFETY: invariants 1 and 4, as for `Send`.
unsafe impl Sync for Place {}

/// A peer's part of a window.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    data: Place,
    /// Its sync block.
    sync: Place,
    bytes: usize,
    /// Elements are updated under the part's lock, by all ranks.
    by_lock: bool,
    /// Most bytes of one run that its owner is asked for ([`Part::serve`]); 0: it is not.
    served_bytes: usize,
}

/// The way to a peer.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    pub core: &'a Core,
    pub lane: &'a LaneCell,
    pub own: u32,
    pub peer: u32,
}

impl Path<'_> {
    /// Where a region of the peer is reached.
    pub fn place(&self, key: &RegionKey) -> Place {
        match self.lane.lock().reach_of(self.peer, key) {
            Reached::At(at) => Place::At(at),
            Reached::ByTransport => Place::Region(*key),
            Reached::ByMessages => Place::Served(*key),
        }
    }

    /// Begins accesses, as long as `next` has one more, and waits for all. The first error is
    /// returned when all are complete (invariant 3).
    fn each(&self, mut next: impl FnMut(&mut Lane) -> Option<Result<Begun>>) -> Result<u64> {
        let (mut value, mut failed) = (0, None);
        let mut under_way = VecDeque::new();
        let mut has_more = true;
        loop {
            self.core.with(self.lane, |lane| {
                while has_more && under_way.len() < MOST_UNDER_WAY {
                    match next(lane) {
                        Some(Ok(Begun::Done(v))) => value = v,
                        Some(Ok(Begun::Under(ticket))) => under_way.push_back(ticket),
                        Some(Err(e)) => {
                            failed = failed.take().or(Some(e));
                            has_more = false;
                        }
                        None => has_more = false,
                    }
                }
            });
            let Some(ticket) = under_way.pop_front() else {
                break;
            };
            match self
                .core
                .wait_on(self.lane, |lane| lane.take_access(ticket))
            {
                Ok(v) => value = v,
                Err(e) => {
                    failed = failed.take().or(Some(e));
                    has_more = false;
                }
            }
        }
        match failed {
            None => Ok(value),
            Some(e) => Err(e),
        }
    }

    /// The runs of a view of a region, in pieces that one access takes.
    fn pieces(&self, key: &RegionKey, view: &RawView) -> Pieces {
        let limits = self.lane.lock().access_limits(self.peer, key);
        Pieces::of(view, limits)
    }

    /// Wakes ranks that wait for a lock.
    #[cold]
    fn wake(&self) {
        let members = self.lane.lock().members();
        self.core.wake_ranks(&members);
        self.core.wake_waiting();
    }

    /// Wakes the peer, whose part has changed.
    #[cold]
    fn wake_peer(&self) {
        if self.peer == self.own {
            return self.core.wake_waiting();
        }
        let rank = self.lane.lock().world_rank(self.peer);
        rank.into_iter()
            .for_each(|rank| self.core.wake_ranks(&[rank]));
    }

    /// Members that have ended.
    fn ended_members(&self) -> Vec<u32> {
        let lane = self.lane.lock();
        let members = match lane.any_ended() {
            true => lane.members().len() as u32,
            false => 0,
        };
        (0..members).filter(|rank| lane.has_ended(*rank)).collect()
    }

    /// A member that has ended, and how: one that has failed, if any has, since others may have
    /// ended because of it.
    fn an_ended_member(&self) -> Option<(u32, Death)> {
        let ended = self.ended_members();
        let lane = self.lane.lock();
        let ended = ended.into_iter().filter_map(|r| Some((r, lane.death(r)?)));
        ended.min_by_key(|(_, how)| !how.is_failure())
    }

    /// The rank that has a lock alone, if it has ended.
    fn ended_holder(&self, held: Holders) -> Option<u32> {
        let rank = held.alone?;
        self.lane.lock().has_ended(rank).then_some(rank)
    }

    fn held_by_itself(&self) -> Error {
        Error::new(
            ErrorKind::WindowEpoch,
            format!(
                "the lock of rank {}'s part of a window: this rank has it (hint: unlock it first)",
                self.peer
            ),
        )
    }

    fn perhaps_held_by(&self, ended: u32) -> Error {
        Error::new(
            ErrorKind::RankDead,
            format!(
                "the lock of rank {}'s part of a window, which others share: rank {ended} has \
                 ended, and may have been one of them",
                self.peer
            ),
        )
    }

    fn held_by_ended(&self, ended: u32) -> Error {
        Error::new(
            ErrorKind::RankDead,
            format!(
                "the lock of rank {}'s part of a window: rank {ended} had it when it ended",
                self.peer
            ),
        )
    }
}

impl Place {
    /// Performs an atomic on eight aligned bytes; the value before.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    ///
    /// # Safety
    /// Invariants 1 and 2.
    #[inline(always)]
    unsafe fn atomic(&self, path: &Path<'_>, offset: usize, op: AtomicOp) -> Result<u64> {
        let at = match self {
            Place::At(at) => at.wrapping_add(offset),
            Place::Region(key) | Place::Served(key) => return far_atomic(path, key, offset, op),
        };
        // SAFETY: invariants 1, 2 and 4.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(op.apply(word))
    }
}

/// Writes the bytes at `from` to pieces of a region.
///
/// # Errors
/// As [`Place::atomic`].
///
/// # Safety
/// Invariants 1 to 3.
unsafe fn put_pieces(
    path: &Path<'_>,
    key: &RegionKey,
    pieces: &mut Pieces,
    from: *const u8,
) -> Result<()> {
    path.each(|lane| {
        let (runs, packed) = pieces.next_access()?;
        let from = from.wrapping_add(packed);
        // SAFETY: invariant 3: a part of the bytes, until all accesses are complete.
        Some(unsafe { lane.begin_put(path.peer, key, runs, from) })
    })?;
    Ok(())
}

/// Reads pieces of a region.
///
/// # Errors
/// As [`Place::atomic`].
///
/// # Safety
/// As [`put_pieces`].
unsafe fn get_pieces(
    path: &Path<'_>,
    key: &RegionKey,
    pieces: &mut Pieces,
    to: *mut u8,
) -> Result<()> {
    path.each(|lane| {
        let (runs, packed) = pieces.next_access()?;
        let to = to.wrapping_add(packed);
        // SAFETY: invariant 3: a part of the bytes, until all accesses are complete.
        Some(unsafe { lane.begin_get(path.peer, key, runs, to) })
    })?;
    Ok(())
}

/// An atomic on a region that is not reached by address.
#[inline(never)]
fn far_atomic(path: &Path<'_>, key: &RegionKey, offset: usize, op: AtomicOp) -> Result<u64> {
    let mut once = Some(op);
    path.each(|lane| {
        let op = once.take()?;
        Some(lane.begin_atomic(path.peer, key, offset as u64, op))
    })
}

/// A view whose addresses count from the first byte of a place that lies there.
fn placed(target: &RawView, at: *mut u8) -> RawView {
    RawView {
        origin: at.wrapping_add(target.origin.addr()),
        ..target.clone()
    }
}

/// The runs of a view, with the number of packed bytes before each.
fn each_run(view: &RawView, mut f: impl FnMut(Range<usize>, usize)) {
    let mut packed = 0;
    view.runs(|run| {
        let bytes = run.len();
        if bytes > 0 {
            f(run, packed);
        }
        packed += bytes;
    });
}

/// Copies between two views of host memory with as many bytes.
///
/// # Safety
/// Those of `from` are readable, those of `to` writable; both are apart.
unsafe fn copy(from: &RawView, to: &RawView) {
    let bytes = from.bytes();
    if let Some(at) = to.as_contiguous() {
        // SAFETY: invariant 5: all bytes.
        return unsafe { from.pack(0..bytes, at) };
    }
    if let Some(at) = from.as_contiguous() {
        // SAFETY: invariant 5: all bytes.
        return unsafe { to.unpack(0..bytes, at) };
    }
    let mut bounce = vec![0u8; bytes.min(BOUNCE_BYTES)];
    for start in (0..bytes).step_by(BOUNCE_BYTES) {
        let piece = start..(start + BOUNCE_BYTES).min(bytes);
        // SAFETY: invariant 5: a piece of the bytes, and a vector of as many.
        unsafe { from.pack(piece.clone(), bounce.as_mut_ptr()) };
        // SAFETY: invariant 5: as many bytes were written just now.
        unsafe { to.unpack(piece, bounce.as_ptr()) };
    }
}

/// How the word of a lock is read, and given back by a store.
fn by_store(word: &AtomicU64) -> (impl FnOnce() -> u64, impl FnOnce(u64)) {
    (
        || word.load(Ordering::Relaxed),
        |value| word.store(value, Ordering::Release),
    )
}

impl Part {
    /// A part of `bytes` bytes, and its sync block.
    ///
    /// # Safety
    /// Invariant 1, as long as the value or a copy of it is used. The sync block has
    /// [`SYNC_BYTES`] bytes, aligned to [`SYNC_ALIGN`], and is zeroed before any rank uses it;
    /// [`SERVED_SYNC_BYTES`], if the data are plain memory of a process.
    pub unsafe fn new(data: Place, sync: Place, bytes: usize, by_lock: bool) -> Self {
        Self {
            data,
            sync,
            bytes,
            by_lock,
            served_bytes: 0,
        }
    }

    /// The same, of an owner that serves it if the costs of the link say so ([`Part::serve`]).
    pub fn served_by(mut self, costs: &LinkCosts) -> Self {
        if matches!(&self.data, Place::Region(key) if is_private(key)) {
            self.served_bytes = ways::served_bytes(costs);
        }
        self
    }

    /// Whether its owner is asked for short accesses.
    pub fn is_served(&self) -> bool {
        self.served_bytes != 0
    }

    /// The request of a sync block.
    fn request(sync: *mut u8) -> *const Request {
        sync.wrapping_add(REQUEST_AT).cast()
    }

    /// Makes short accesses to a part of this rank's plain memory while a thread of it waits.
    ///
    /// # Safety
    /// The part and its sync block are there until [`Part::serve_no_more`] has returned.
    pub unsafe fn serve(core: &Core, sync: *mut u8, at: *mut u8, bytes: usize) {
        // SAFETY: invariant 5.
        unsafe {
            core.served
                .add(Self::request(sync), (at, bytes), update::change)
        };
    }

    /// Ends what [`Part::serve`] has begun for this sync block.
    pub fn serve_no_more(core: &Core, sync: *mut u8) {
        core.served.remove(Self::request(sync));
    }

    /// Other memory of the same rank, with the same sync block.
    ///
    /// # Safety
    /// Invariant 1, of `bytes` bytes there.
    pub unsafe fn beside(&self, data: Place, bytes: usize) -> Self {
        Self {
            data,
            bytes,
            served_bytes: 0,
            ..*self
        }
    }

    /// Whether the owner may be asked for an access now.
    #[inline]
    fn may_ask(&self, path: &Path<'_>) -> bool {
        // A rank of the same core answers when this one does not run.
        self.served_bytes != 0
            && !path.core.shares_cores()
            && !path.core.on_stack()
            && path.core.served.may_ask(path.peer)
    }

    /// The run of a target that its owner is asked for, and where its bytes lie here: few, one run
    /// on both sides.
    #[inline]
    fn short_run(
        &self,
        path: &Path<'_>,
        view: &RawView,
        target: &RawView,
    ) -> Option<(Range<u64>, *mut u8)> {
        let bytes = target.bytes();
        if bytes > self.served_bytes || bytes != view.bytes() || bytes == 0 {
            return None;
        }
        let (start, at) = (target.as_contiguous()?.addr() as u64, view.as_contiguous()?);
        let run = start..start + bytes as u64;
        self.may_ask(path).then_some((run, at))
    }

    /// Pieces of an access of several runs that its owner is asked for.
    fn served_pieces(&self, path: &Path<'_>, target: &RawView, reads: bool) -> Option<Pieces> {
        if self.served_bytes == 0 || target.as_contiguous().is_some() {
            return None;
        }
        let pieces = Pieces::of(target, SERVED_LIMITS);
        let costs = path.core.selection.costs();
        let asks = ways::asks_owner(target.bytes(), pieces.runs(), reads, costs);
        (asks && self.may_ask(path)).then_some(pieces)
    }

    /// Has the owner make an access to runs of its part, if it answers in time; `other_ns` is what
    /// the other way is expected to take, with all that comes behind this access. What is given to it
    /// comes from `given`, and what it answers goes to `here`, unless that is null.
    ///
    /// # Errors
    /// The owner has ended in the middle of it.
    ///
    /// # Safety
    /// Invariants 2 and 3: as many bytes as it is given and answers, which the area of a request has
    /// room for.
    #[track_caller]
    unsafe fn ask_owner(
        &self,
        path: &Path<'_>,
        (runs, does): (&[Range<u64>], Does),
        (given, here): (*const u8, *mut u8),
        other_ns: f64,
    ) -> Result<bool> {
        let Place::At(sync) = self.sync else {
            return Ok(false);
        };
        let access = Access::of(runs, does);
        // SAFETY: invariants 1 and 4: the request of the sync block.
        let request = unsafe { &*Self::request(sync) };
        // SAFETY: invariant 5: the caller's contract.
        if !unsafe { request.post(access, runs, given) } {
            return Ok(false);
        }
        let answered = || {
            // SAFETY: invariant 5: posted just now, and there is room for what it reads.
            let made = unsafe { request.answer(access, here) };
            made.inspect(|made| path.core.served.asked(path.peer, *made))
        };
        for _ in 0..ANSWER_LOOKS {
            if let Some(made) = answered() {
                return Ok(made);
            }
            std::hint::spin_loop();
        }
        // It may sleep, and would answer this one or the next.
        path.wake_peer();
        if other_ns >= WORTH_WAKING_NS {
            // No longer than the other way takes; if the owner computes, it is not asked for a number
            // of accesses.
            let until = monotonic_ns() + other_ns as u64;
            while monotonic_ns() < until {
                for _ in 0..LOOKS_PER_TIME {
                    if let Some(made) = answered() {
                        return Ok(made);
                    }
                    // The owner may ask this rank meanwhile.
                    path.core.serve();
                    std::hint::spin_loop();
                }
            }
        }
        path.core.served.asked(path.peer, false);
        match request.withdraw() {
            true => Ok(false),
            // SAFETY: invariant 5: the caller's contract.
            false => unsafe { self.await_answer(path, access, here, request) },
        }
    }

    /// Waits for an owner that has begun to make an access.
    ///
    /// # Safety
    /// The access was posted, and there is room for what it reads.
    #[cold]
    #[track_caller]
    unsafe fn await_answer(
        &self,
        path: &Path<'_>,
        access: Access,
        here: *mut u8,
        request: &Request,
    ) -> Result<bool> {
        path.core.wait_until(|| {
            // SAFETY: invariant 5: the caller's contract.
            if let Some(made) = unsafe { request.answer(access, here) } {
                return Some(Ok(made));
            }
            let lane = path.lane.lock();
            if lane.has_ended(path.peer) {
                let message = format!(
                    "access to rank {}, which has ended ({} bytes, shm)",
                    path.peer, access.bytes
                );
                return Some(Err(Error::new(ErrorKind::RankDead, message)));
            }
            if listens() {
                hear(Asked {
                    peer: lane.world_rank(path.peer),
                    context: lane.context(),
                    bytes: access.bytes,
                    ..Asked::of(Operation::Access)
                });
            }
            None
        })
    }

    /// A word of the sync block, behind those of the locks.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    pub fn word(&self, path: &Path<'_>, at: usize) -> Result<u64> {
        assert!(at.is_multiple_of(8) && at + 8 <= SYNC_BYTES, "word {at}");
        // SAFETY: invariants 1 and 2, by the assertion.
        unsafe { self.sync.atomic(path, at, AtomicOp::Load) }
    }

    /// Bytes of the part.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the part lies, if it is reached by address.
    #[inline]
    pub fn address(&self) -> Option<*mut u8> {
        match self.data {
            Place::At(at) => Some(at),
            Place::Region(_) | Place::Served(_) => None,
        }
    }

    /// How it is reached whatever its owner does.
    pub fn reach(&self) -> Way {
        match &self.data {
            Place::At(_) => Way::Address,
            Place::Region(key) if key.kind == RegionKind::Process => Way::System,
            Place::Region(_) => Way::Transport,
            Place::Served(_) => Way::Messages,
        }
    }

    /// Whether elements are updated under the part's lock.
    pub fn is_updated_by_lock(&self) -> bool {
        self.by_lock
    }

    /// Whether all of a view that counts from the part's first byte lies inside.
    #[inline]
    pub fn holds(&self, target: &RawView) -> bool {
        if target.bytes() == 0 {
            return true;
        }
        let (start, end) = target.span();
        start <= end && end <= self.bytes
    }

    /// An atomic on a lock's word.
    #[inline]
    fn apply(&self, path: &Path<'_>, lock: LockOf, op: AtomicOp) -> Result<u64> {
        // SAFETY: invariants 1 and 2: a word of the sync block.
        unsafe { self.sync.atomic(path, lock.at(), op) }
    }

    /// A lock's word, if it is reached by address.
    #[inline(always)]
    fn mapped_word(&self, lock: LockOf) -> Option<&AtomicU64> {
        let Place::At(sync) = self.sync else {
            return None;
        };
        let at = sync.wrapping_add(lock.at()).cast();
        // SAFETY: invariants 1 and 4: a word of the sync block, used by atomics alone.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Takes the lock of epochs alone, if that is one atomic of the processor; false: whatever else
    /// is to be done ([`Part::lock`]).
    #[inline(always)]
    pub fn lock_at_once(&self, own: u32) -> bool {
        let word = self.mapped_word(LockOf::Epochs);
        word.is_some_and(|word| word::take_free(word, own))
    }

    /// Gives the lock of epochs back that this rank has alone, behind all that it has written to a
    /// part that is reached by address; false: whatever else is to be done ([`Part::unlock`]).
    #[inline(always)]
    pub fn unlock_at_once(&self, own: u32) -> bool {
        let word = self.mapped_word(LockOf::Epochs);
        word.is_some_and(|word| word::give_back_unwaited(word, own))
    }

    /// Takes the lock of epochs; waits for others. `left` says what a rank that has ended leaves
    /// of this part's lock.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`]: a rank that had it has died; it has it no more then.
    #[inline]
    #[track_caller]
    pub fn lock(
        &self,
        path: &Path<'_>,
        hold: Hold,
        mut left: impl FnMut(u32) -> Result<Left>,
    ) -> Result<()> {
        self.take(path, LockOf::Epochs, hold, &mut left)
    }

    #[inline(never)]
    #[track_caller]
    fn take(
        &self,
        path: &Path<'_>,
        lock: LockOf,
        hold: Hold,
        left: &mut dyn FnMut(u32) -> Result<Left>,
    ) -> Result<()> {
        let apply = |op| self.apply(path, lock, op);
        match word::try_lock(hold, path.own, apply, || path.wake())? {
            Tried::Taken => Ok(()),
            Tried::Held(held) => self.await_lock(path, lock, hold, (held, left)),
        }
    }

    /// What this rank, which has ended, leaves of the lock of `part`.
    ///
    /// # Errors
    /// Its memory is not reached any more.
    pub fn left_of(&self, path: &Path<'_>, part: u32) -> Result<Left> {
        shares::left_by_ended(part, |at, op| {
            // SAFETY: invariants 1 and 2: a word of the sync block.
            unsafe { self.sync.atomic(path, SHARES_AT + 8 * at, op) }
        })
    }

    /// The list of parts that this rank has locked together with others; of the own part.
    pub fn shares(&self) -> Option<Shares<'_>> {
        let Place::At(at) = self.sync else {
            return None;
        };
        let list = at.wrapping_add(SHARES_AT).cast();
        // SAFETY: invariants 1 and 4: words of the own sync block, used by atomics alone.
        Some(Shares(unsafe { &*list }))
    }

    #[cold]
    #[track_caller]
    fn await_lock(
        &self,
        path: &Path<'_>,
        lock: LockOf,
        hold: Hold,
        (mut held, left): (Holders, &mut dyn FnMut(u32) -> Result<Left>),
    ) -> Result<()> {
        let apply = |op| self.apply(path, lock, op);
        if let Place::At(_) = self.sync {
            // Locks of updates are held for a moment.
            for _ in 0..path.core.spin_polls().min(SPINS) {
                std::hint::spin_loop();
                if let Tried::Taken = word::try_again(hold, path.own, false, apply)? {
                    return Ok(());
                }
            }
        }
        let mut attempts = 0u32;
        let mut attempt = || -> Option<Result<()>> {
            // A lock of updates is held by another thread of this rank, which gives it back.
            if held.alone == Some(path.own) && lock == LockOf::Epochs {
                return Some(Err(path.held_by_itself()));
            }
            if let Some(ended) = path.ended_holder(held) {
                let released = word::release_of(ended, apply, || path.wake());
                return Some(Err(match released {
                    Ok(_) => path.held_by_ended(ended),
                    Err(e) => e,
                }));
            }
            attempts = attempts.saturating_add(1);
            let marks = attempts > AWAKE_ATTEMPTS;
            if marks && held.shared > 0 {
                for ended in path.ended_members() {
                    let error = match left(ended) {
                        Ok(Left::Nothing) => continue,
                        Ok(Left::Perhaps) | Err(_) => path.perhaps_held_by(ended),
                        Ok(Left::Share) => {
                            let released = word::unlock(Hold::Shared, ended, apply, || path.wake());
                            released.err().unwrap_or_else(|| path.held_by_ended(ended))
                        }
                    };
                    return Some(Err(error));
                }
            }
            match word::try_again(hold, path.own, marks, apply) {
                Ok(Tried::Taken) => return Some(Ok(())),
                Ok(Tried::Held(now)) => held = now,
                Err(e) => return Some(Err(e)),
            }
            if listens() {
                let lane = path.lane.lock();
                hear(Asked {
                    peer: held.alone.and_then(|rank| lane.world_rank(rank)),
                    context: lane.context(),
                    ..Asked::of(Operation::WindowLock)
                });
            }
            None
        };
        if let Place::At(_) = self.sync {
            return path.core.wait_until(attempt);
        }
        // Each attempt waits for the transport.
        loop {
            if let Some(end) = attempt() {
                return end;
            }
            for _ in 0..REMOTE_POLLS {
                path.core.progress_awake();
            }
        }
    }

    #[cold]
    fn outside(&self, rank: u32, offset: usize, size: usize) -> Error {
        Error::new(
            ErrorKind::WindowRange,
            format!(
                "compare-and-swap with rank {rank}: {size} bytes at {offset} of a part of {} bytes",
                self.bytes
            ),
        )
    }

    /// Gives a lock of the part back, which this rank has.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    #[inline(always)]
    pub fn unlock(&self, path: &Path<'_>, lock: LockOf, hold: Hold) -> Result<()> {
        let apply = |op| self.apply(path, lock, op);
        let wake = || path.wake();
        match (lock, self.mapped_word(lock)) {
            // It is never shared.
            (LockOf::Updates, Some(word)) => {
                word::unlock_alone(path.own, by_store(word), apply, wake)
            }
            _ => word::unlock(hold, path.own, apply, wake),
        }
    }

    /// Takes the lock of updates, which is never shared.
    ///
    /// # Errors
    /// As [`Part::lock`].
    #[cold]
    fn take_updates(&self, path: &Path<'_>) -> Result<()> {
        let mut left = |_| Ok(Left::Nothing);
        self.take(path, LockOf::Updates, Hold::Exclusive, &mut left)
    }

    /// Runs `f` under the lock of updates.
    ///
    /// # Errors
    /// Those of `f`, and as [`Part::lock`].
    #[inline(always)]
    pub fn alone<R>(&self, path: &Path<'_>, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let word = self.mapped_word(LockOf::Updates);
        if !word.is_some_and(|word| word::take_free(word, path.own)) {
            self.take_updates(path)?;
        }
        let done = f();
        self.unlock(path, LockOf::Updates, Hold::Exclusive)?;
        done
    }

    /// As [`Part::alone`], of what cannot fail, where updates take the lock and that is one atomic;
    /// none: nothing has happened.
    #[inline(always)]
    pub fn alone_at_once<'p, R>(
        &self,
        own: u32,
        path: impl FnOnce() -> Path<'p>,
        f: impl FnOnce() -> R,
    ) -> Option<Result<R>> {
        let word = self.mapped_word(LockOf::Updates).filter(|_| self.by_lock)?;
        if !word::take_free(word, own) {
            return None;
        }
        let done = f();
        if word::give_back_alone(own, by_store(word)) {
            return Some(Ok(done));
        }
        Some(self.unlock_waited(&path()).map(|()| done))
    }

    #[cold]
    fn unlock_waited(&self, path: &Path<'_>) -> Result<()> {
        self.unlock(path, LockOf::Updates, Hold::Exclusive)
    }

    /// Wakes the part's owner, if it sleeps until what has been changed before does
    /// ([`Part::await_change`]).
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    #[inline]
    pub fn tell(&self, path: &Path<'_>) -> Result<()> {
        // SAFETY: invariants 1 and 2: a word of the sync block.
        if watched::is_to_wake(|op| unsafe { self.sync.atomic(path, MARK_AT, op) })? {
            path.wake_peer();
        }
        Ok(())
    }

    /// Waits until this rank's own part is as `wanted` finds it. It is asked again behind each
    /// [`Part::tell`] of others, and now and then; `what` describes it in reports.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if a rank of the window has died.
    #[track_caller]
    pub fn await_change<R>(
        &self,
        path: &Path<'_>,
        what: impl Fn() -> String,
        mut wanted: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let mut attempts = 0u32;
        path.core.wait_until(|| {
            attempts = attempts.saturating_add(1);
            if attempts > AWAKE_ATTEMPTS {
                // SAFETY: invariants 1 and 2: a word of the sync block.
                let marked = watched::mark(|op| unsafe { self.sync.atomic(path, MARK_AT, op) });
                if let Err(e) = marked {
                    return Some(Err(e));
                }
            }
            if let Some(found) = wanted() {
                return Some(Ok(found));
            }
            if attempts > AWAKE_ATTEMPTS
                && let Some((ended, how)) = path.an_ended_member()
            {
                let message = format!("{}: rank {ended} {how}", what());
                return Some(Err(Error::new(ErrorKind::RankDead, message)));
            }
            if listens() {
                hear(Asked {
                    context: path.lane.lock().context(),
                    what: Some(what()),
                    ..Asked::of(Operation::WaitUntil)
                });
            }
            None
        })
    }

    /// What has been written to the part before can be seen by its owner behind this.
    #[inline]
    pub fn flush(&self) {
        if let Place::At(_) = self.data {
            full_fence();
        }
    }

    /// Writes the bytes of `from` to those of `target`, a view of as many whose addresses count
    /// from the first byte of the part; how it went.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    ///
    /// # Safety
    /// Invariants 2 and 3; `from` is host memory and apart from the target.
    #[inline]
    #[track_caller]
    pub unsafe fn put(&self, path: &Path<'_>, from: &RawView, target: &RawView) -> Result<Way> {
        if let Some((run, at)) = self.short_run(path, from, target) {
            // SAFETY: invariants 2 and 3: no more bytes than a request has.
            if unsafe { self.ask_owner(path, (&[run], Does::Writes), (at, null_mut()), 0.0) }? {
                return Ok(Way::Owner);
            }
        }
        let key = match &self.data {
            Place::At(at) => {
                // SAFETY: invariants 1 to 3 and 5.
                unsafe { copy(from, &placed(target, *at)) };
                return Ok(Way::Address);
            }
            Place::Region(key) | Place::Served(key) => key,
        };
        let mut packed = Vec::new();
        let at = match from.as_contiguous() {
            Some(at) => at.cast_const(),
            None => {
                packed.resize(from.bytes(), 0);
                // SAFETY: invariant 3: all bytes, and a vector of as many.
                unsafe { from.pack(0..from.bytes(), packed.as_mut_ptr()) };
                packed.as_ptr()
            }
        };
        match self.served_pieces(path, target, false) {
            // SAFETY: invariants 1 to 3.
            Some(mut pieces) => unsafe { self.put_by_owner(path, key, &mut pieces, at) },
            None => {
                // SAFETY: invariants 1 to 3.
                unsafe { put_pieces(path, key, &mut path.pieces(key, target), at) }?;
                Ok(self.reach())
            }
        }
    }

    /// As [`Part::put`], of the bytes at `from` to runs of the part, none longer than
    /// [`SERVED_LIMITS`] has room for.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn put_runs(
        &self,
        path: &Path<'_>,
        runs: &[Range<u64>],
        from: *const u8,
    ) -> Result<Way> {
        let (Place::Region(key) | Place::Served(key)) = &self.data else {
            let mut at = from;
            for run in runs {
                let bytes = (run.end - run.start) as usize;
                let target =
                    RawView::untyped(std::ptr::without_provenance_mut(run.start as usize), bytes);
                // SAFETY: invariant 5: a part of the bytes.
                unsafe { self.put(path, &RawView::untyped(at.cast_mut(), bytes), &target) }?;
                at = at.wrapping_add(bytes);
            }
            return Ok(self.reach());
        };
        let mut asks = self.may_ask(path);
        let bytes = runs.iter().map(|run| run.end - run.start).sum::<u64>() as usize;
        // Most are one request.
        if asks && bytes + runs.len() * SERVED_LIMITS.name_bytes <= SERVED_LIMITS.bytes {
            let other_ns = ways::system_ns(bytes, runs.len(), path.core.selection.costs());
            let asked = (runs, Does::Writes);
            // SAFETY: invariants 2, 3 and 5: no more bytes than a request has.
            if unsafe { self.ask_owner(path, asked, (from, null_mut()), other_ns) }? {
                return Ok(Way::Owner);
            }
            asks = false;
        }
        let mut pieces = Pieces::of_runs(runs.to_vec(), SERVED_LIMITS);
        match asks {
            // SAFETY: invariant 5: the caller's contract.
            true => unsafe { self.put_by_owner(path, key, &mut pieces, from) },
            false => {
                pieces.otherwise(path.lane.lock().access_limits(path.peer, key));
                // SAFETY: invariant 5: the caller's contract.
                unsafe { put_pieces(path, key, &mut pieces, from) }?;
                Ok(self.reach())
            }
        }
    }

    /// Has the owner write pieces as long as it answers; the others go the other way.
    ///
    /// # Errors
    /// As [`Part::put`].
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    unsafe fn put_by_owner(
        &self,
        path: &Path<'_>,
        key: &RegionKey,
        pieces: &mut Pieces,
        from: *const u8,
    ) -> Result<Way> {
        let costs = path.core.selection.costs();
        let other_ns = ways::system_ns(pieces.bytes(), pieces.runs(), costs);
        while let Some((runs, packed)) = pieces.next_access() {
            let at = from.wrapping_add(packed).cast_mut();
            // SAFETY: invariants 2 and 3: no more bytes than a request has.
            if !unsafe { self.ask_owner(path, (runs, Does::Writes), (at, null_mut()), other_ns) }? {
                pieces.otherwise(path.lane.lock().access_limits(path.peer, key));
                // SAFETY: invariants 1 to 3.
                unsafe { put_pieces(path, key, pieces, from) }?;
                return Ok(self.reach());
            }
        }
        Ok(Way::Owner)
    }

    /// Reads the bytes of `target`, as [`Part::put`] has it, to those of `to`; how it went.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    ///
    /// # Safety
    /// Invariants 2 and 3; `to` is host memory and apart from the target.
    #[inline]
    #[track_caller]
    pub unsafe fn get(&self, path: &Path<'_>, to: &RawView, target: &RawView) -> Result<Way> {
        if let Some((run, at)) = self.short_run(path, to, target) {
            // SAFETY: invariants 2 and 3: no more bytes than a request has.
            if unsafe { self.ask_owner(path, (&[run], Does::Reads), (at, at), 0.0) }? {
                return Ok(Way::Owner);
            }
        }
        let key = match &self.data {
            Place::At(at) => {
                // SAFETY: invariants 1 to 3 and 5.
                unsafe { copy(&placed(target, *at), to) };
                return Ok(Way::Address);
            }
            Place::Region(key) | Place::Served(key) => key,
        };
        let mut packed = Vec::new();
        let at = match to.as_contiguous() {
            Some(at) => at,
            None => {
                packed.resize(to.bytes(), 0);
                packed.as_mut_ptr()
            }
        };
        let mut way = self.reach();
        // One request, if it is asked for at all.
        let mut pieces = self.served_pieces(path, target, true);
        if let Some((runs, _)) = pieces.as_mut().and_then(Pieces::next_access)
            // SAFETY: invariants 2 and 3: no more bytes than a request has.
            && unsafe { self.ask_owner(path, (runs, Does::Reads), (at, at), 0.0) }?
        {
            way = Way::Owner;
        } else {
            // SAFETY: invariants 1 to 3.
            unsafe { get_pieces(path, key, &mut path.pieces(key, target), at) }?;
        }
        if !packed.is_empty() {
            // SAFETY: invariant 3: all bytes, from a vector of as many.
            unsafe { to.unpack(0..to.bytes(), packed.as_ptr()) };
        }
        Ok(way)
    }

    /// The region of a part whose accesses may be under way behind a call.
    fn far(&self) -> Option<&RegionKey> {
        match &self.data {
            // A system call ends at once.
            Place::Region(key) if key.kind == RegionKind::Process => None,
            Place::Region(key) | Place::Served(key) => Some(key),
            Place::At(_) => None,
        }
    }

    /// As [`Part::put`], of a copy of the bytes: what is still under way then, if anything is.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn begin_put(
        &self,
        path: &Path<'_>,
        from: &RawView,
        target: &RawView,
    ) -> Result<(Way, Option<Pending>)> {
        let Some(key) = self.far() else {
            // SAFETY: invariant 5: the caller's contract.
            return Ok((unsafe { self.put(path, from, target) }?, None));
        };
        let mut bytes = vec![0u8; from.bytes()].into_boxed_slice();
        // SAFETY: invariant 3: all bytes, and as many.
        unsafe { from.pack(0..from.bytes(), bytes.as_mut_ptr()) };
        let pending = Pending::new((path.peer, *key), true, path.pieces(key, target), bytes);
        Ok((self.reach(), Some(pending)))
    }

    /// As [`Part::get`]: what is still under way then, if anything is; it has the bytes when it is
    /// complete, and `to` has not.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn begin_get(
        &self,
        path: &Path<'_>,
        to: &RawView,
        target: &RawView,
    ) -> Result<(Way, Option<Pending>)> {
        let Some(key) = self.far() else {
            // SAFETY: invariant 5: the caller's contract.
            return Ok((unsafe { self.get(path, to, target) }?, None));
        };
        let bytes = vec![0u8; to.bytes()].into_boxed_slice();
        let pending = Pending::new((path.peer, *key), false, path.pieces(key, target), bytes);
        Ok((self.reach(), Some(pending)))
    }

    /// Where the part lies, if all elements of `target` are updated by atomics.
    #[inline]
    fn atomic_at(&self, target: &RawView, update: &Update) -> Option<*mut u8> {
        let Place::At(at) = self.data else {
            return None;
        };
        let mut fits = !self.by_lock;
        target.runs(|run| {
            let whole = run.len().is_multiple_of(update.size());
            fits &= whole && update.is_atomic_at(at.wrapping_add(run.start));
        });
        fits.then_some(at)
    }

    /// Updates the elements of `target`, as [`Part::put`] has it, by the packed bytes `given`;
    /// what was there goes to the packed bytes `before`, if that is an address. Each element is
    /// updated at once, for all that update it.
    ///
    /// # Errors
    /// As [`Part::lock`].
    ///
    /// # Safety
    /// Invariants 2 and 3: as many bytes are readable at `given`, unless the update keeps, and
    /// writable at `before`.
    #[track_caller]
    pub unsafe fn update(
        &self,
        path: &Path<'_>,
        update: &Update,
        target: &RawView,
        given: *const u8,
        before: Option<*mut u8>,
    ) -> Result<()> {
        if let (Place::At(at), Some(start)) = (self.data, target.as_contiguous()) {
            let at = at.wrapping_add(start.addr());
            // SAFETY: invariant 5: the caller's contract.
            return unsafe { self.update_run(path, update, at, (given, before), target.bytes()) };
        }
        if let Some(at) = self.atomic_at(target, update) {
            each_run(target, |run, packed| {
                let to = at.wrapping_add(run.start);
                let before = before.map(|before| before.wrapping_add(packed));
                let given = given.wrapping_add(packed);
                // SAFETY: invariants 1 to 5; aligned, and updated by atomics by all ranks.
                unsafe { update.each(to, given, before, run.len()) };
            });
            return Ok(());
        }
        if let (Some(start), Some(number)) = (target.as_contiguous(), update.number())
            && self.changes_short(path, target.bytes())
        {
            let start = start.addr() as u64;
            let run = start..start + target.bytes() as u64;
            let to = before.unwrap_or(null_mut());
            return self.alone(path, || {
                // SAFETY: invariants 2 and 3; as many bytes.
                let made = unsafe { self.ask_to_change(path, run, number, (given, to)) }?;
                match made {
                    true => Ok(()),
                    // SAFETY: invariant 5: the caller's contract.
                    false => unsafe { self.update_from_here(path, update, target, given, before) },
                }
            });
        }
        // SAFETY: invariant 5: the caller's contract.
        self.alone(path, || unsafe {
            self.update_from_here(path, update, target, given, before)
        })
    }

    /// Whether the owner is asked for a change of bytes that it serves.
    #[inline]
    fn changes_short(&self, path: &Path<'_>, bytes: usize) -> bool {
        (1..=served::MOST_CHANGED.min(self.served_bytes)).contains(&bytes) && self.may_ask(path)
    }

    /// Has the owner change bytes of its part, of which this rank has the lock of updates; false: it
    /// has not.
    ///
    /// # Errors
    /// As [`Part::lock`].
    ///
    /// # Safety
    /// Invariants 2 and 3: [`served::MOST_CHANGED`] bytes at most; the bytes of the change are readable
    /// at `given`, and those of the run writable at `to`, unless that is null.
    #[track_caller]
    unsafe fn ask_to_change(
        &self,
        path: &Path<'_>,
        run: Range<u64>,
        number: u32,
        memory: (*const u8, *mut u8),
    ) -> Result<bool> {
        let asked = (&[run][..], Does::Changes(number));
        // SAFETY: invariant 5: the caller's contract.
        unsafe { self.ask_owner(path, asked, memory, 0.0) }
    }

    /// Updates elements that this rank reads and writes, and of which it has the lock of updates.
    ///
    /// # Errors
    /// As [`Part::lock`].
    ///
    /// # Safety
    /// As [`Part::update`].
    #[track_caller]
    unsafe fn update_from_here(
        &self,
        path: &Path<'_>,
        update: &Update,
        target: &RawView,
        given: *const u8,
        before: Option<*mut u8>,
    ) -> Result<()> {
        let bytes = target.bytes();
        let mut there = vec![0u8; bytes];
        let at = there.as_mut_ptr();
        let packed = RawView::untyped(at, bytes);
        // SAFETY: invariants 1, 2 and 5; the vector has as many bytes.
        unsafe { self.get(path, &packed, target) }?;
        if let Some(before) = before {
            // SAFETY: invariant 5; the vector has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(at, before, bytes) };
        }
        if update.keeps() {
            return Ok(());
        }
        // SAFETY: invariant 5; the vector has as many bytes, and is ours.
        unsafe { update.packed(at, given, bytes) }?;
        // SAFETY: invariants 1, 2 and 5; the vector has as many bytes.
        unsafe { self.put(path, &packed, target) }.map(drop)
    }

    /// As [`Part::update`], of elements that lie at an address, one after the other.
    ///
    /// # Errors
    /// As [`Part::lock`].
    ///
    /// # Safety
    /// As there; the part is used by address, and the bytes lie in it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn update_run(
        &self,
        path: &Path<'_>,
        update: &Update,
        at: *mut u8,
        (given, before): (*const u8, Option<*mut u8>),
        bytes: usize,
    ) -> Result<()> {
        if !self.by_lock && update.is_atomic_at(at) {
            // SAFETY: invariants 1 to 5; aligned, and updated by atomics by all ranks.
            unsafe { update.each(at, given, before, bytes) };
            return Ok(());
        }
        self.alone(path, || {
            if let Some(before) = before {
                // SAFETY: invariants 1, 2 and 5.
                unsafe { copy_contiguous(at, before, bytes) };
            }
            // SAFETY: invariants 1, 2, 4 and 5; this rank has the lock.
            unsafe { update.packed(at, given, bytes) }
        })
    }

    /// Replaces an element of `size` bytes at `offset` by `new`, if it is `expected`; what was
    /// there. All are in the lower bytes of words.
    ///
    /// # Errors
    /// As [`Part::lock`]; of kind [`ErrorKind::WindowRange`], if the element does not lie inside
    /// or has more than eight bytes.
    #[inline]
    #[track_caller]
    pub fn compare_and_swap(
        &self,
        path: &Path<'_>,
        (offset, size): (usize, usize),
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        if size > size_of::<u64>() || offset.checked_add(size).is_none_or(|end| end > self.bytes) {
            return Err(self.outside(path.peer, offset, size));
        }
        if let Place::At(at) = self.data {
            let at = at.wrapping_add(offset);
            let fits = matches!(size, 1 | 2 | 4 | 8) && at.addr().is_multiple_of(size);
            if !self.by_lock && fits {
                // SAFETY: invariants 1, 2 and 4; aligned, and updated by atomics by all ranks.
                return Ok(unsafe { update::compare_and_swap(at, size, expected, new) });
            }
            return self.alone(path, || {
                // SAFETY: invariants 1, 2 and 4; at most eight bytes.
                let there = unsafe { update::load(at, size) };
                if there == expected {
                    let from = (&raw const new).cast();
                    // SAFETY: invariants 1, 2 and 4; this rank has the lock.
                    unsafe { copy_contiguous(from, at, size) };
                }
                Ok(there)
            });
        }
        let mut there = 0u64;
        let word = RawView::untyped((&raw mut there).cast(), size);
        let next = RawView::untyped((&raw const new).cast_mut().cast(), size);
        let target = RawView::untyped(std::ptr::without_provenance_mut(offset), size);
        let asks = self.changes_short(path, size);
        self.alone(path, || {
            if asks {
                let run = offset as u64..(offset + size) as u64;
                let given = update::swap_of(expected, new, size);
                let memory = (given.as_ptr().cast(), word.origin);
                // SAFETY: invariants 2 and 3: words of our own.
                if unsafe { self.ask_to_change(path, run, update::SWAP, memory) }? {
                    // SAFETY: invariant 3: a word of our own, written just now.
                    return Ok(unsafe { word.origin.cast::<u64>().read() });
                }
            }
            // SAFETY: invariants 1 and 2; a word of our own.
            unsafe { self.get(path, &word, &target) }?;
            // SAFETY: invariant 3: a word of our own, written just now.
            let there = unsafe { word.origin.cast::<u64>().read() };
            if there == expected {
                // SAFETY: invariants 1 and 2; a word of our own.
                unsafe { self.put(path, &next, &target) }?;
            }
            Ok(there)
        })
    }
}
