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
//! 2. Words of a request are written by the origin that has claimed it, and by the owner that has
//!    taken it. They are not trusted: what lies outside of the part is refused and counted.
//! 3. A part and its request are there until [`Served::remove`] has returned: the contract of
//!    [`Served::add`].
//!
//! # Sources
//! R. Gerstenberger, M. Besta, T. Hoefler, "Enabling Highly-Scalable Remote Memory Access
//! Programming with MPI-3 One Sided", SC 2013, has no part of the target in any access; here it
//! helps where it waits anyway.

use crate::view::copy_contiguous;
use std::sync::{Mutex, PoisonError};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Words of an access.
pub const WORDS: usize = 13;
/// Most bytes of one.
pub const MOST_BYTES: usize = 8 * WORDS;
/// Bytes of a request: two lines, which processors fetch together.
pub const REQUEST_BYTES: usize = 128;
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

/// In the word of the length: the owner is to write.
const WRITES: u64 = 1 << 63;

/// Peers that origins tell apart, by their numbers' lower bits.
const PEERS: usize = 64;
/// Accesses that are not asked for after the first timeout, and the most. Not tuned.
const FEWEST_SKIPPED: u32 = 16;
const MOST_SKIPPED: u32 = 4096;

/// A short access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub offset: u64,
    pub bytes: u64,
    /// The owner writes the bytes that come with it; else it reads them.
    pub writes: bool,
}

impl Access {
    /// Words that its bytes take.
    fn words(self) -> usize {
        (self.bytes as usize).div_ceil(8).min(WORDS)
    }
}

/// An access that the owner of a part is asked for. Zeroed, it is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Request {
    state: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Request {
    /// Asks for an access. False: another origin has the request.
    #[inline]
    pub fn post(&self, access: Access, words: &[u64; WORDS]) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let claims = || {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = (self.state).compare_exchange(state, CLAIMED, order.0, order.1);
            claimed.is_ok()
        };
        if !matches!(state, FREE | WANTED) || !claims() {
            return false;
        }
        let bytes = access.bytes | if access.writes { WRITES } else { 0 };
        self.offset.store(access.offset, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        if access.writes {
            for (to, word) in self.words.iter().zip(&words[..access.words()]) {
                to.store(*word, Ordering::Relaxed);
            }
        }
        self.state.store(POSTED, Ordering::Release);
        true
    }

    /// Whether the owner has made the access that was posted, or has refused it; none: neither.
    /// What it has read is in `words`.
    #[inline]
    pub fn answer(&self, access: Access, words: &mut [u64; WORDS]) -> Option<bool> {
        let state = self.state.load(Ordering::Acquire);
        if state != DONE && state != REFUSED {
            return None;
        }
        if !access.writes {
            for (word, from) in words[..access.words()].iter_mut().zip(&self.words) {
                *word = from.load(Ordering::Relaxed);
            }
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

    /// Makes an access that was posted, if there is one: `make` has the bytes that are to be
    /// written in the words, or writes those that it reads; it returns whether the access is sound.
    #[inline]
    pub fn serve(&self, make: impl FnOnce(Access, &mut [u64; WORDS]) -> bool) -> Found {
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
        let bytes = self.bytes.load(Ordering::Relaxed);
        let access = Access {
            offset: self.offset.load(Ordering::Relaxed),
            bytes: bytes & !WRITES,
            writes: bytes & WRITES != 0,
        };
        let mut words = [0; WORDS];
        let used = access.words();
        if access.writes {
            for (word, from) in words[..used].iter_mut().zip(&self.words) {
                *word = from.load(Ordering::Relaxed);
            }
        }
        let sound = access.bytes <= MOST_BYTES as u64 && make(access, &mut words);
        if sound && !access.writes {
            for (to, word) in self.words.iter().zip(&words[..used]) {
                to.store(*word, Ordering::Relaxed);
            }
        }
        let end = if sound { DONE } else { REFUSED };
        self.state.store(end, Ordering::Release);
        if sound { Found::Made } else { Found::Refused }
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
}

// SAFETY: invariant 3: addresses that are tied to no thread.
unsafe impl Send for Part {}

impl Part {
    /// Makes an access of a peer.
    fn serve(&self) -> Found {
        // SAFETY: invariant 3.
        let request = unsafe { &*self.request };
        request.serve(|access, words| {
            let end = access.offset.checked_add(access.bytes);
            if end.is_none_or(|end| end > self.bytes as u64) {
                return false;
            }
            let (at, bytes) = (
                self.at.wrapping_add(access.offset as usize),
                access.bytes as usize,
            );
            let here: *mut u8 = words.as_mut_ptr().cast();
            let (from, to) = match access.writes {
                true => (here, at),
                false => (at, here),
            };
            // SAFETY: invariants 2 and 3: inside the part, and no more than the words have.
            unsafe { copy_contiguous(from, to, bytes) };
            true
        })
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
    /// Serves accesses to `bytes` bytes at `at` from now on.
    ///
    /// # Safety
    /// Both are there until [`Served::remove`] has returned for this request.
    pub unsafe fn add(&self, request: *const Request, at: *mut u8, bytes: usize) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.push(Part { request, at, bytes });
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

    const WRITE: Access = Access {
        offset: 8,
        bytes: 16,
        writes: true,
    };

    #[test]
    fn accesses_are_made_inside_of_a_part() {
        let (served, refused) = (Served::default(), Cell::new(0));
        let serve = || served.serve(|| refused.set(refused.get() + 1));
        let request = Request::default();
        let mut part = [0u8; 32];
        // SAFETY: invariant 3: both are there until `remove`.
        unsafe { served.add(&raw const request, part.as_mut_ptr(), part.len()) };
        assert!(!serve());
        let mut words = [7; WORDS];
        assert!(request.post(WRITE, &words));
        assert!(!request.post(WRITE, &words), "it is not free");
        assert_eq!(request.answer(WRITE, &mut words), None);
        assert!(serve());
        assert!(!request.withdraw());
        assert_eq!(request.answer(WRITE, &mut words), Some(true));
        let reads = Access {
            offset: 4,
            bytes: 9,
            writes: false,
        };
        assert!(request.post(reads, &words));
        assert!(serve());
        assert_eq!(request.answer(reads, &mut words), Some(true));
        let bytes: Vec<u8> = words[..2].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(bytes[..9], [0, 0, 0, 0, 7, 0, 0, 0, 0]);
        for (offset, bytes) in [(24, 9), (33, 0), (u64::MAX, 1), (0, 105)] {
            let outside = Access {
                offset,
                bytes,
                writes: bytes % 2 == 0,
            };
            assert!(request.post(outside, &words));
            assert!(serve());
            assert_eq!(request.answer(outside, &mut words), Some(false));
        }
        assert!(request.post(WRITE, &words) && request.withdraw());
        assert!(serve(), "it is wanted");
        assert!(!serve());
        assert!(request.post(WRITE, &words) && request.withdraw());
        assert!(request.post(WRITE, &words) && request.withdraw());
        assert!(serve());
        served.remove(&raw const request);
        assert!(request.post(WRITE, &words));
        assert!(!serve());
        assert_eq!(refused.get(), 4);
        assert_eq!(
            part[8..24],
            [7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
        );
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
        assert_eq!(skipped[11], 4096);
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
                        let access = Access {
                            offset: number,
                            bytes: 8,
                            writes: true,
                        };
                        let mut words = [0; WORDS];
                        words[0] = number;
                        if request.post(access, &words) {
                            if request.withdraw() {
                                writes.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                            while request.answer(access, &mut words).is_none() {
                                thread::yield_now();
                            }
                        } else {
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                request.serve(|access, words| {
                    assert_eq!(access.offset, words[0], "words of one origin");
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
            let access = Access {
                offset: 0,
                bytes: 16,
                writes: false,
            };
            assert!(request.post(access, &[0; WORDS]));
            let owner = {
                let request = request.clone();
                thread::spawn(move || {
                    request.serve(|_, words| {
                        words[..2].copy_from_slice(&[3, 4]);
                        true
                    })
                })
            };
            let mut words = [0; WORDS];
            while request.answer(access, &mut words).is_none() {
                thread::yield_now();
            }
            assert_eq!(words[..2], [3, 4]);
            owner.join().expect("no panic");
        });
    }
}
