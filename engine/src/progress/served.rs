//! Short accesses to plain memory of this rank that it serves while it waits.
//!
//! A system call reads or writes plain memory of another process, which takes longer than a few
//! lines of memory from core to core. So the owner of a part has a request in memory that both map,
//! and looks at it as often as it polls:
//!
//! ```text
//! origin   free   -> claimed, writes what it asks for -> posted
//! owner    posted -> taken, reads or writes its part  -> done, or refused
//! origin   done   -> reads the bytes                  -> free
//!          posted -> wanted, if no answer comes in time, and calls the system
//! ```
//!
//! An owner that computes does not answer. After a timeout the origin goes the other way for a
//! number of accesses, which doubles with each timeout (exponential backoff). An owner that sleeps
//! is woken, finds that it is wanted, and stays awake for a while.
//!
//! # Invariants
//! 1. An access is made exactly once: a compare-and-swap takes it out of `posted`, either the
//!    owner's, which then makes it, or the origin's, which then uses the system call.
//! 2. A request is written by the origin that has claimed it, and by the owner that has taken it.
//!    It is not trusted: each name is read once, and what lies outside of the part or the area is
//!    refused and counted.
//! 3. A part and its request are there until [`Served::remove`] has returned: the contract of
//!    [`Served::add`].
//! 4. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! R. Gerstenberger, M. Besta, T. Hoefler, "Enabling Highly-Scalable Remote Memory Access
//! Programming with MPI-3 One Sided", SC 2013, has no part of the target in any access; here it
//! helps where it waits anyway.

#[cfg(not(loom))]
use crate::view::copy_contiguous;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 4096;
/// Bytes of the area in which it has what it moves: names of runs in front, if there are several.
/// The first 96 lie in the request's first two lines, which processors fetch together.
pub const AREA_BYTES: usize = REQUEST_BYTES - 4 * size_of::<u64>();
/// Bytes that name a run: its offset, and how many it has.
pub const NAME_BYTES: usize = 16;
#[cfg(not(loom))]
const WORDS: usize = AREA_BYTES / 8;
#[cfg(loom)]
const WORDS: usize = 2;
#[cfg(not(loom))]
const _: () = assert!(size_of::<Request>() == REQUEST_BYTES);

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const POSTED: u64 = 2;
const TAKEN: u64 = 3;
const DONE: u64 = 4;
const REFUSED: u64 = 5;
/// Free; an origin has timed out.
const WANTED: u64 = 6;

/// In the word of the length: the owner is to write,
const WRITES: u64 = 1 << 63;
/// or to change what is there.
const CHANGES: u64 = 1 << 62;

/// Most bytes that an access changes.
pub const MOST_CHANGED: usize = 32;
/// Bit of a change that is given twice as many bytes as it changes.
pub const GIVEN_TWICE: u32 = 1 << 31;
/// Changes the bytes at `there` by those that are given for them; false: the change is none. What
/// the number says is the caller's of [`Served::add`].
///
/// # Safety
/// `bytes` bytes at `there` are readable and writable, and as many are readable at `given`, or twice
/// as many.
pub type Change = unsafe fn(number: u32, there: *mut u8, given: *const u8, bytes: usize) -> bool;

/// Peers that origins tell apart, by their numbers' lower bits.
const PEERS: usize = 64;
/// Accesses that are not asked for after the first timeout, and the most: more than these take
/// longer than an owner that was woken stays awake. Not tuned.
const FEWEST_SKIPPED: u32 = 16;
const MOST_SKIPPED: u32 = 256;

/// A short access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Of the first run.
    pub offset: u64,
    /// Of all runs.
    pub bytes: u64,
    /// Several are named in the area, the bytes follow.
    pub runs: u64,
    pub does: Does,
}

/// What an owner does with the bytes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It reads them.
    Reads,
    /// It writes those that come with it.
    Writes,
    /// It changes them, one run, by a change of this number; what was there is the answer.
    Changes(u32),
}

impl Access {
    /// An access to runs of a part, at least one.
    pub fn of(runs: &[Range<u64>], does: Does) -> Self {
        Self {
            offset: runs.first().map_or(0, |run| run.start),
            bytes: runs.iter().map(|run| run.end - run.start).sum(),
            runs: runs.len() as u64,
            does,
        }
    }

    /// Bytes that come with it.
    fn given(self) -> usize {
        match self.does {
            Does::Reads => 0,
            Does::Writes => self.bytes as usize,
            Does::Changes(number) if number & GIVEN_TWICE != 0 => 2 * self.bytes as usize,
            Does::Changes(_) => self.bytes as usize,
        }
    }

    /// The words that say how many bytes, how many runs, and what is done.
    fn to_words(self) -> [u64; 2] {
        match self.does {
            Does::Reads => [self.bytes, self.runs],
            Does::Writes => [self.bytes | WRITES, self.runs],
            Does::Changes(number) => [self.bytes | CHANGES, u64::from(number)],
        }
    }

    fn from_words(offset: u64, [bytes, runs]: [u64; 2]) -> Self {
        let (does, runs) = match (bytes & WRITES != 0, bytes & CHANGES != 0) {
            (true, _) => (Does::Writes, runs),
            (false, true) => (Does::Changes(runs as u32), 1),
            (false, false) => (Does::Reads, runs),
        };
        Self {
            offset,
            bytes: bytes & !(WRITES | CHANGES),
            runs,
            does,
        }
    }

    /// Bytes of the area that names take.
    fn names(self) -> usize {
        match self.runs {
            0 | 1 => 0,
            runs => (runs as usize).saturating_mul(NAME_BYTES),
        }
    }

    /// Whether the area has room for it.
    fn fits(self) -> bool {
        if matches!(self.does, Does::Changes(_)) && self.bytes > MOST_CHANGED as u64 {
            return false;
        }
        let bytes = self.names().checked_add(self.bytes as usize);
        bytes.is_some_and(|bytes| bytes <= AREA_BYTES)
    }
}

/// An access that the owner of a part is asked for. Zeroed, it is free.
#[derive(Debug)]
#[repr(C)]
pub struct Request {
    state: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    runs: AtomicU64,
    /// Copied by the origin or the owner, whichever has claimed or taken the request.
    area: [AtomicU64; WORDS],
}

impl Default for Request {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            state: zero(),
            offset: zero(),
            bytes: zero(),
            runs: zero(),
            area: std::array::from_fn(|_| zero()),
        }
    }
}

impl Request {
    /// Copies bytes to the area.
    ///
    /// # Safety
    /// Invariant 2: the request is this rank's; the area has room there, and `from` as many bytes.
    #[inline]
    #[cfg(not(loom))]
    unsafe fn fill(&self, at: usize, from: *const u8, bytes: usize) {
        let to = (&raw const self.area).cast_mut().cast::<u8>();
        // SAFETY: invariant 4: the caller's contract.
        unsafe { copy_contiguous(from, to.wrapping_add(at), bytes) };
    }

    /// Copies bytes from the area.
    ///
    /// # Safety
    /// As [`Request::fill`]; `to` has room.
    #[inline]
    #[cfg(not(loom))]
    unsafe fn empty(&self, at: usize, to: *mut u8, bytes: usize) {
        let from = (&raw const self.area).cast::<u8>();
        // SAFETY: invariant 4: the caller's contract.
        unsafe { copy_contiguous(from.wrapping_add(at), to, bytes) };
    }

    /// Copies words to the area one by one, which loom follows.
    ///
    /// # Safety
    /// `from` has as many whole words.
    #[cfg(loom)]
    unsafe fn fill(&self, at: usize, from: *const u8, bytes: usize) {
        for word in 0..bytes / 8 {
            // SAFETY: invariant 4: the caller's contract.
            let value = unsafe { from.cast::<u64>().add(word).read_unaligned() };
            self.area[at / 8 + word].store(value, Ordering::Relaxed);
        }
    }

    /// Copies words from the area one by one.
    ///
    /// # Safety
    /// `to` has room for as many whole words.
    #[cfg(loom)]
    unsafe fn empty(&self, at: usize, to: *mut u8, bytes: usize) {
        for word in 0..bytes / 8 {
            let value = self.area[at / 8 + word].load(Ordering::Relaxed);
            // SAFETY: invariant 4: the caller's contract.
            unsafe { to.cast::<u64>().add(word).write_unaligned(value) };
        }
    }

    /// Asks for an access to runs of a part; what it is given comes from `from`, one run behind the
    /// other. False: another origin has the request.
    ///
    /// # Safety
    /// The runs fit into the area with their names. `from` has the bytes that the access is given.
    #[inline]
    pub unsafe fn post(&self, access: Access, runs: &[Range<u64>], from: *const u8) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let claims = || {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = (self.state).compare_exchange(state, CLAIMED, order.0, order.1);
            claimed.is_ok()
        };
        if !matches!(state, FREE | WANTED) || !claims() {
            return false;
        }
        let [bytes, how] = access.to_words();
        self.offset.store(access.offset, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.runs.store(how, Ordering::Relaxed);
        if runs.len() > 1 {
            for (at, run) in runs.iter().enumerate() {
                let name = [run.start, run.end - run.start];
                let from = name.as_ptr().cast();
                // SAFETY: invariant 2: it was claimed; there is room by the caller's contract.
                unsafe { self.fill(at * NAME_BYTES, from, NAME_BYTES) };
            }
        }
        if access.given() > 0 {
            // SAFETY: invariant 2: it was claimed; there is room by the caller's contract.
            unsafe { self.fill(access.names(), from, access.given()) };
        }
        self.state.store(POSTED, Ordering::Release);
        true
    }

    /// Whether the owner has made the access that was posted, or has refused it; none: neither.
    /// What it has read, or what it has changed was, goes to `to`, unless that is null.
    ///
    /// # Safety
    /// The access is the one that this rank has posted last; `to` has room for its bytes, or is null.
    #[inline]
    pub unsafe fn answer(&self, access: Access, to: *mut u8) -> Option<bool> {
        let state = self.state.load(Ordering::Acquire);
        if state != DONE && state != REFUSED {
            return None;
        }
        if access.does != Does::Writes && !to.is_null() {
            // SAFETY: invariant 2: it is this rank's again; it fitted when it was posted.
            unsafe { self.empty(access.names(), to, access.bytes as usize) };
        }
        self.state.store(FREE, Ordering::Release);
        Some(state == DONE)
    }

    /// Takes back what was posted. False: its owner makes it (invariant 1).
    pub fn withdraw(&self) -> bool {
        let order = (Ordering::Release, Ordering::Relaxed);
        let taken = (self.state).compare_exchange(POSTED, WANTED, order.0, order.1);
        taken.is_ok()
    }

    /// Makes an access that was posted, if there is one: `make` moves the bytes and returns whether
    /// the access is sound; the area has room for it.
    #[inline]
    fn serve(&self, make: impl FnOnce(Access) -> bool) -> Found {
        let state = self.state.load(Ordering::Relaxed);
        let takes = |to| {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let taken = (self.state).compare_exchange(state, to, order.0, order.1);
            taken.is_ok()
        };
        match state {
            POSTED if takes(TAKEN) => {}
            WANTED if takes(FREE) => return Found::Wanted,
            _ => return Found::Nothing,
        }
        let words = [&self.bytes, &self.runs].map(|word| word.load(Ordering::Relaxed));
        let access = Access::from_words(self.offset.load(Ordering::Relaxed), words);
        let sound = access.fits() && make(access);
        let end = if sound { DONE } else { REFUSED };
        self.state.store(end, Ordering::Release);
        if sound { Found::Made } else { Found::Refused }
    }

    /// A run that is named in the area.
    fn name(&self, at: usize) -> (u64, u64) {
        let mut name = [0u64; 2];
        // SAFETY: invariant 2: the owner has taken it; names fit, as was checked.
        unsafe { self.empty(at * NAME_BYTES, name.as_mut_ptr().cast(), NAME_BYTES) };
        (name[0], name[1])
    }
}

/// What an owner has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// An origin has timed out.
    Wanted,
    /// An access, which was made.
    Made,
    /// An access that is not sound.
    Refused,
}

/// A part of this rank.
struct Part {
    request: *const Request,
    at: *mut u8,
    bytes: usize,
    change: Change,
}

// SAFETY: invariant 3: addresses that are tied to no thread.
unsafe impl Send for Part {}

impl Part {
    /// Makes an access of a peer.
    fn serve(&self) -> Found {
        // SAFETY: invariant 3.
        let request = unsafe { &*self.request };
        request.serve(|access| {
            if let Does::Changes(number) = access.does {
                return self.change(request, access, number);
            }
            let (mut at, mut left) = (access.names(), access.bytes);
            for run in 0..access.runs as usize {
                let (offset, bytes) = match access.runs {
                    1 => (access.offset, access.bytes),
                    _ => request.name(run),
                };
                let end = offset.checked_add(bytes);
                if bytes > left || end.is_none_or(|end| end > self.bytes as u64) {
                    return false;
                }
                let (place, n) = (self.at.wrapping_add(offset as usize), bytes as usize);
                match access.does {
                    // SAFETY: invariants 2 and 3: inside the part, and of the area.
                    Does::Writes => unsafe { request.empty(at, place, n) },
                    // SAFETY: invariants 2 and 3: inside the part, and of the area.
                    _ => unsafe { request.fill(at, place, n) },
                }
                at += n;
                left -= bytes;
            }
            left == 0
        })
    }

    /// Changes bytes of the part; what was there goes to the area.
    fn change(&self, request: &Request, access: Access, number: u32) -> bool {
        let end = access.offset.checked_add(access.bytes);
        if end.is_none_or(|end| end > self.bytes as u64) {
            return false;
        }
        let (place, bytes) = (
            self.at.wrapping_add(access.offset as usize),
            access.bytes as usize,
        );
        // Others may write the area meanwhile.
        let mut given = [0u64; 2 * MOST_CHANGED / 8];
        // SAFETY: invariant 2: it fits, and twice as many bytes are the most.
        unsafe { request.empty(0, given.as_mut_ptr().cast(), access.given()) };
        let mut before = [0u64; MOST_CHANGED / 8];
        // SAFETY: invariant 3: inside the part; it fits.
        unsafe { std::ptr::copy(place, before.as_mut_ptr().cast(), bytes) };
        // SAFETY: invariants 2 and 3: inside the part, and as many were given.
        let changed = unsafe { (self.change)(number, place, given.as_ptr().cast(), bytes) };
        if changed {
            // SAFETY: invariant 2: it fits.
            unsafe { request.fill(0, before.as_ptr().cast(), bytes) };
        }
        changed
    }
}

/// The parts of a rank that it serves, and how its peers answer.
pub struct Served {
    /// Number of parts.
    number: AtomicUsize,
    parts: Mutex<Vec<Part>>,
    /// By the lower bits of a peer: accesses that do not ask it, and above how many they were last.
    patience: [AtomicU32; PEERS],
}

impl Default for Served {
    fn default() -> Self {
        Self {
            number: AtomicUsize::new(0),
            parts: Mutex::default(),
            patience: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Served {
    /// Serves accesses to `bytes` bytes at `at` from now on, which may be changed by `change`.
    ///
    /// # Safety
    /// Both are there until [`Served::remove`] has returned for this request.
    pub unsafe fn add(
        &self,
        request: *const Request,
        (at, bytes): (*mut u8, usize),
        change: Change,
    ) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(Part {
            request,
            at,
            bytes,
            change,
        });
        self.number.store(parts.len(), Ordering::Release);
    }

    /// Serves no more what is asked for by a request.
    pub fn remove(&self, request: *const Request) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.request != request);
        self.number.store(parts.len(), Ordering::Release);
    }

    /// Makes accesses that peers ask for; `refused` is called for each that is not sound. True if
    /// there were any, or a peer has timed out.
    #[inline]
    pub fn serve(&self, refused: impl FnMut()) -> bool {
        self.number.load(Ordering::Relaxed) != 0 && self.serve_parts(refused)
    }

    #[inline(never)]
    fn serve_parts(&self, mut refused: impl FnMut()) -> bool {
        // Another thread is at it, or parts are added.
        let Ok(parts) = self.parts.try_lock() else {
            return false;
        };
        let mut any = false;
        for found in parts.iter().map(Part::serve) {
            any |= found != Found::Nothing;
            if found == Found::Refused {
                refused();
            }
        }
        any
    }

    /// Whether a peer is asked for the next access.
    #[inline]
    pub fn may_ask(&self, peer: u32) -> bool {
        let patience = &self.patience[peer as usize % PEERS];
        let skipped = patience.load(Ordering::Relaxed);
        let left = skipped & 0xffff;
        if left != 0 {
            // Another thread's may be lost.
            patience.store(skipped - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// A peer has answered, or not in time.
    #[inline]
    pub fn asked(&self, peer: u32, answered: bool) {
        let patience = &self.patience[peer as usize % PEERS];
        if answered {
            return patience.store(0, Ordering::Relaxed);
        }
        let last = patience.load(Ordering::Relaxed) >> 16;
        let skipped = (2 * last).clamp(FEWEST_SKIPPED, MOST_SKIPPED);
        patience.store(skipped << 16 | skipped, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// An access to one run.
    fn one(run: Range<u64>, does: Does) -> Access {
        Access::of(std::slice::from_ref(&run), does)
    }

    /// Adds a byte to each, or replaces a word.
    unsafe fn add_or_swap(number: u32, there: *mut u8, given: *const u8, bytes: usize) -> bool {
        match number {
            7 => {
                for at in 0..bytes {
                    // SAFETY: invariant 4: a byte of the caller's.
                    let byte = unsafe { &mut *there.wrapping_add(at) };
                    // SAFETY: invariant 4: a byte of the caller's.
                    *byte += unsafe { *given.wrapping_add(at) };
                }
            }
            GIVEN_TWICE => {
                let given = given.wrapping_add(bytes);
                // SAFETY: invariant 4: bytes of the caller's.
                unsafe { std::ptr::copy_nonoverlapping(given, there, bytes) };
            }
            _ => return false,
        }
        true
    }

    fn posts(request: &Request, access: Access, runs: &[Range<u64>], from: &[u8]) -> bool {
        // SAFETY: invariant 4: the tests' accesses fit, and have as many bytes.
        unsafe { request.post(access, runs, from.as_ptr()) }
    }

    fn answers(request: &Request, access: Access) -> Option<(bool, Vec<u8>)> {
        let mut to = vec![0; AREA_BYTES];
        // SAFETY: invariant 4: the access was posted; the vector has room for all.
        let made = unsafe { request.answer(access, to.as_mut_ptr()) }?;
        to.truncate(match access.does {
            Does::Writes => 0,
            _ => access.bytes as usize,
        });
        Some((made, to))
    }

    #[test]
    fn accesses_are_made_inside_of_a_part() {
        let (served, refused) = (Served::default(), Cell::new(0));
        let serve = || served.serve(|| refused.set(refused.get() + 1));
        let request = Request::default();
        let mut part = [0u8; 32];
        // SAFETY: invariant 3: both are there until `remove`.
        unsafe {
            served.add(
                &raw const request,
                (part.as_mut_ptr(), part.len()),
                add_or_swap,
            )
        };
        assert!(!serve());
        let write = one(8..24, Does::Writes);
        let sevens = [7; 16];
        assert!(posts(&request, write, &[], &sevens));
        assert!(!posts(&request, write, &[], &sevens), "it is not free");
        assert_eq!(answers(&request, write), None);
        assert!(serve());
        assert!(!request.withdraw());
        assert_eq!(answers(&request, write), Some((true, vec![])));
        let read = one(4..13, Does::Reads);
        assert!(posts(&request, read, &[], &[]));
        assert!(serve());
        let there = vec![0, 0, 0, 0, 7, 7, 7, 7, 7];
        assert_eq!(answers(&request, read), Some((true, there)));
        for run in [24..33, 33..33, u64::MAX - 1..u64::MAX] {
            for does in [Does::Reads, Does::Writes, Does::Changes(7)] {
                let outside = one(run.clone(), does);
                assert!(posts(&request, outside, &[], &[1; 9]));
                assert!(serve());
                assert!(!answers(&request, outside).unwrap().0);
            }
        }
        assert!(posts(&request, write, &[], &sevens) && request.withdraw());
        assert!(serve(), "it is wanted");
        assert!(!serve());
        assert!(posts(&request, write, &[], &sevens) && request.withdraw());
        assert!(posts(&request, write, &[], &sevens) && request.withdraw());
        assert!(serve());
        served.remove(&raw const request);
        assert!(posts(&request, write, &[], &sevens));
        assert!(!serve());
        assert_eq!(refused.get(), 9);
        assert_eq!(part[8..24], sevens);
        assert!(part[..8].iter().chain(&part[24..]).all(|byte| *byte == 0));
    }

    #[test]
    fn runs_are_named_in_the_area() {
        let (served, refused) = (Served::default(), Cell::new(0));
        let serve = || served.serve(|| refused.set(refused.get() + 1));
        let request = Request::default();
        let mut part = [0u8; 32];
        // SAFETY: invariant 3: both are there until `remove`.
        unsafe {
            served.add(
                &raw const request,
                (part.as_mut_ptr(), part.len()),
                add_or_swap,
            )
        };
        let runs = [20..22, 3..6, 31..32];
        let write = Access::of(&runs, Does::Writes);
        assert!(posts(&request, write, &runs, &[1, 2, 3, 4, 5, 6]));
        assert!(serve());
        assert_eq!(answers(&request, write), Some((true, vec![])));
        let read = Access::of(&runs, Does::Reads);
        assert!(posts(&request, read, &runs, &[]));
        assert!(serve());
        assert_eq!(
            answers(&request, read),
            Some((true, vec![1, 2, 3, 4, 5, 6]))
        );
        // What no correct peer asks for.
        let all = Access::of(&runs, Does::Reads);
        let lies = [
            Access { bytes: 7, ..all },
            Access { bytes: 5, ..all },
            Access { runs: 0, ..all },
            Access { runs: 2, ..all },
            Access { runs: 300, ..all },
            Access {
                runs: u64::MAX,
                ..all
            },
            Access {
                bytes: AREA_BYTES as u64,
                ..all
            },
            Access {
                bytes: CHANGES - 1,
                ..all
            },
        ];
        for lie in lies {
            assert!(posts(&request, lie, &runs, &[]));
            assert!(serve());
            assert_eq!(
                request.state.swap(FREE, Ordering::Relaxed),
                REFUSED,
                "{lie:?}"
            );
        }
        let outside = [20..22, 30..33];
        let read = Access::of(&outside, Does::Reads);
        assert!(posts(&request, read, &outside, &[]));
        assert!(serve());
        assert!(!answers(&request, read).unwrap().0);
        assert_eq!(refused.get(), lies.len() + 1);
        served.remove(&raw const request);
        let written: Vec<_> = (0..32u8).filter(|at| part[usize::from(*at)] != 0).collect();
        assert_eq!(written, [3, 4, 5, 20, 21, 31]);
    }

    #[test]
    fn bytes_are_changed_and_what_they_were_comes_back() {
        let (served, refused) = (Served::default(), Cell::new(0));
        let serve = || served.serve(|| refused.set(refused.get() + 1));
        let request = Request::default();
        let mut part = [1u8; 64];
        // SAFETY: invariant 3: both are there until `remove`.
        unsafe {
            served.add(
                &raw const request,
                (part.as_mut_ptr(), part.len()),
                add_or_swap,
            )
        };
        let ask = |run: Range<u64>, number: u32, given: &[u8]| {
            let access = one(run, Does::Changes(number));
            assert!(posts(&request, access, &[], given));
            assert!(serve());
            answers(&request, access).expect("an answer")
        };
        assert_eq!(ask(8..12, 7, &[4, 5, 6, 7]), (true, vec![1; 4]));
        assert_eq!(ask(7..11, 7, &[1; 4]), (true, vec![1, 5, 6, 7]));
        let swapped = ask(6..10, GIVEN_TWICE, &[0, 0, 0, 0, 8, 9, 8, 9]);
        assert_eq!(swapped, (true, vec![1, 2, 6, 7]));
        assert_eq!(ask(0..32, 7, &[1; 32]).1[6..12], [8, 9, 8, 9, 8, 8]);
        // A change that is none, and of too many bytes.
        assert!(!ask(0..4, 6, &[1; 4]).0);
        assert!(!ask(0..33, 7, &[1; 33]).0);
        assert_eq!(refused.get(), 2);
        served.remove(&raw const request);
        assert_eq!(part[6..12], [9, 10, 9, 10, 9, 9]);
    }

    #[test]
    fn who_does_not_answer_is_asked_seldom() {
        let served = Served::default();
        let mut skipped = Vec::new();
        for _ in 0..12 {
            assert!(served.may_ask(3) && served.may_ask(4));
            served.asked(3, false);
            let mut n = 0;
            while !served.may_ask(3) {
                n += 1;
            }
            skipped.push(n);
        }
        assert_eq!(skipped[..4], [16, 32, 64, 128]);
        assert_eq!(skipped[11], 256);
        served.asked(3, true);
        assert!(served.may_ask(3) && served.may_ask(3));
        served.asked(3, false);
        assert_eq!((0..).find(|_| served.may_ask(3)), Some(16));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Accesses that the owner makes or their origins make another way: each is made once.
    #[test]
    fn loom_an_access_is_made_once() {
        loom::model(|| {
            let request = Arc::new(Request::default());
            let writes = Arc::new(AtomicUsize::new(0));
            let origins: Vec<_> = (1..=2u64)
                .map(|number| {
                    let (request, writes) = (request.clone(), writes.clone());
                    thread::spawn(move || {
                        let run = number..number + 8;
                        let access = Access::of(std::slice::from_ref(&run), Does::Writes);
                        let from = (&raw const number).cast();
                        // SAFETY: invariant 4: a word, which the area has room for.
                        if unsafe { request.post(access, &[], from) } {
                            if request.withdraw() {
                                writes.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                            // SAFETY: invariant 4: it was posted, and reads nothing.
                            while unsafe { request.answer(access, std::ptr::null_mut()) }.is_none()
                            {
                                thread::yield_now();
                            }
                        } else {
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                request.serve(|access| {
                    let mut number = 0u64;
                    // SAFETY: invariant 2: it was taken; a word.
                    unsafe { request.empty(0, (&raw mut number).cast(), 8) };
                    assert_eq!(access.offset, number, "bytes of one origin");
                    writes.fetch_add(1, Ordering::Relaxed);
                    true
                });
                thread::yield_now();
            }
            for origin in origins {
                origin.join().expect("no panic");
            }
            assert_eq!(writes.load(Ordering::Relaxed), 2);
        });
    }

    /// What the owner reads, its origin has.
    #[test]
    fn loom_bytes_are_there_with_the_answer() {
        loom::model(|| {
            let request = Arc::new(Request::default());
            let access = Access::of(std::slice::from_ref(&(0..16)), Does::Reads);
            // SAFETY: invariant 4: it writes nothing.
            assert!(unsafe { request.post(access, &[], std::ptr::null()) });
            let owner = {
                let request = request.clone();
                thread::spawn(move || {
                    request.serve(|_| {
                        let words = [3u64, 4];
                        // SAFETY: invariant 2: it was taken; two words.
                        unsafe { request.fill(0, words.as_ptr().cast(), 16) };
                        true
                    })
                })
            };
            let mut words = [0u64; 2];
            // SAFETY: invariant 4: it was posted; there is room for two words.
            while unsafe { request.answer(access, words.as_mut_ptr().cast()) }.is_none() {
                thread::yield_now();
            }
            assert_eq!(words, [3, 4]);
            owner.join().expect("no panic");
        });
    }
}
