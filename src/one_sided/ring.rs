//! What kernels of a team post for ranks elsewhere, and the host's half of it.
//!
//! ```text
//! kernel                               thread of the team
//! takes a ticket, waits for its place
//! writes the place, then `turn`   ->   reads it, begins the access
//!                                 <-   `before`, then `done`, then `free`
//! ```
//!
//! The place of a ticket is its rest by the number of places. `turn`, `done` and `free` only grow: each
//! is the last ticket, and one, of which it holds. A place is given back by the thread, but by the
//! kernel where that reads `before`. Accesses for one rank begin in the order of their tickets, and
//! [`super::far`] makes them in that order; they may end in another.
//!
//! # Invariants
//! 1. The places are pinned memory of the ring's, zeroed before a kernel has them, and used by atomics
//!    alone.
//! 2. A kernel posts memory that it may use until `done` says that it was: the contract of
//!    `DeviceTeam::launch`.
//!
//! # Sources
//! NVSHMEM documentation 2.10: kernels post to a thread of the host where they reach no memory.
//! D. Vyukov, bounded queue of many producers (1024cores.net, 2010): places that count turns.

use super::far::{Asking, Bytes, Local, Signal, What};
use super::raw::RawWindow;
use osier_datatype::{Layout, Operator};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::update::Change;
use osier_kernels::{After, Context, DeviceSlice, DeviceView, Memory, Ordered};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Places of a ring. Not tuned.
pub(super) const SLOTS: u32 = 64;

/// `osier_slot` of `osier_device.cuh`.
#[repr(C, align(128))]
struct Slot {
    turn: AtomicU64,
    what: AtomicU64,
    local: AtomicU64,
    remote: AtomicU64,
    bytes: AtomicU64,
    word: AtomicU64,
    value: AtomicU64,
    _unused: AtomicU64,
    done: AtomicU64,
    before: AtomicU64,
    free: AtomicU64,
    _unused_too: [AtomicU64; 5],
}

const _: () = assert!(size_of::<Slot>() == 128);

/// Numbers of `osier_posted`.
const PUT: u32 = 0;
const PUT_SIGNAL_SET: u32 = 1;
const PUT_SIGNAL_ADD: u32 = 2;
const GET: u32 = 3;
const SIGNAL_SET: u32 = 4;
const SIGNAL_ADD: u32 = 5;
const SIGNAL_FETCH_ADD: u32 = 6;

/// What a kernel has posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    ticket: u64,
    what: u32,
    rank: usize,
    local: u64,
    remote: u64,
    bytes: usize,
    word: u64,
    value: u64,
}

/// One that is under way.
struct UnderWay {
    posted: Posted,
    asking: Asking,
}

/// The ring of a team.
pub(super) struct Ring {
    window: RawWindow,
    /// Of each rank's heap.
    heap_bytes: usize,
    memory: Arc<Memory>,
    touched: Arc<Touched>,
    /// The next ticket.
    next: u64,
    under_way: Vec<UnderWay>,
}

impl Ring {
    /// `heap_bytes`: bytes of each rank's heap.
    pub fn new(
        (window, heap_bytes): (&RawWindow, usize),
        context: &Context,
        touched: &Arc<Touched>,
    ) -> Result<Self> {
        let bytes = SLOTS as usize * size_of::<Slot>();
        let memory = Memory::pinned(context, bytes)?;
        let ring = Self {
            window: window.clone(),
            heap_bytes,
            memory,
            touched: touched.clone(),
            next: 0,
            under_way: Vec::new(),
        };
        let at = ring
            .memory
            .host()
            .filter(|at| at.cast::<Slot>().is_aligned());
        let at = at.ok_or_else(|| {
            let message = "pinned memory that the host reaches at no multiple of 128 bytes";
            Error::new(ErrorKind::Device, message)
        })?;
        // SAFETY: invariant 1: as many bytes, of which no kernel knows yet.
        unsafe { at.write_bytes(0, bytes) };
        Ok(ring)
    }

    /// The memory of the places, and where kernels have it.
    pub fn memory(&self) -> Result<(Arc<Memory>, u64)> {
        let at = DeviceSlice::<u64>::of(self.memory.clone())?.address();
        Ok((self.memory.clone(), at))
    }

    /// The place of a ticket.
    fn slot(&self, ticket: u64) -> Option<&Slot> {
        let slots = self.memory.host()?.cast::<Slot>();
        let at = slots.wrapping_add((ticket % u64::from(SLOTS)) as usize);
        // SAFETY: invariant 1: one of the places.
        Some(unsafe { &*at })
    }

    fn posted(&self) -> Option<Posted> {
        let ticket = self.next;
        let slot = self.slot(ticket)?;
        if slot.turn.load(Ordering::Acquire) != ticket + 1 {
            return None;
        }
        let word = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let what = word(&slot.what);
        Some(Posted {
            ticket,
            what: what as u32,
            rank: (what >> 32) as usize,
            local: word(&slot.local),
            remote: word(&slot.remote),
            bytes: word(&slot.bytes) as usize,
            word: word(&slot.word),
            value: word(&slot.value),
        })
    }

    /// Begins what was posted, and ends what is complete. True: there was any.
    ///
    /// # Errors
    /// An access has failed; the ring is not to be used any more.
    pub fn advance(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some(posted) = self.posted() {
            self.next += 1;
            moved = true;
            match self.begin(&posted)? {
                Some(asking) => self.under_way.push(UnderWay { posted, asking }),
                None => self.end(&posted, 0),
            }
        }
        let mut at = 0;
        while at < self.under_way.len() {
            if !self.under_way[at].asking.test() {
                at += 1;
                continue;
            }
            let UnderWay { posted, asking } = self.under_way.remove(at);
            let (before, _) = asking.wait()?;
            self.end(&posted, before);
            moved = true;
        }
        Ok(moved)
    }

    /// None: there is nothing to do.
    fn begin(&self, posted: &Posted) -> Result<Option<Asking>> {
        let far = self.window.far(posted.rank).ok_or_else(|| {
            let message = format!(
                "a kernel has posted an access to rank {}, which is none elsewhere",
                posted.rank
            );
            Error::new(ErrorKind::Rank, message)
        })?;
        let change = match posted.what {
            PUT | GET => None,
            PUT_SIGNAL_SET | SIGNAL_SET => Some(Change::Replace),
            PUT_SIGNAL_ADD | SIGNAL_ADD | SIGNAL_FETCH_ADD => Some(Change::Combine(Operator::Sum)),
            what => {
                let message = format!("a kernel has posted {what}, which is no access");
                return Err(Error::new(ErrorKind::Malformed, message));
            }
        };
        let local = match posted.bytes {
            0 => None,
            _ => Some(Local::Device(self.local(posted)?)),
        };
        self.check(posted.rank, posted.remote, posted.bytes)?;
        if change.is_some() {
            self.check(posted.rank, posted.word, size_of::<u64>())?;
        }
        let signal = change.map(|change| Signal {
            at: posted.word,
            change,
            value: posted.value,
        });
        let bytes = |at: u64, bytes: usize| (Layout::of::<u8>(), bytes, at as isize);
        let there = bytes(posted.remote, posted.bytes);
        let (what, rank) = (posted.what, posted.rank);
        Ok(match signal {
            // Of no bytes, or none is to be moved.
            None if local.is_none() => None,
            Some(Signal { at, change, value }) if local.is_none() => {
                let what = What::Signal { change, value };
                Some(far.begin(rank, (what, None), bytes(at, 8), None, None)?)
            }
            _ if what == GET => Some(far.begin(rank, (What::Get, None), there, None, local)?),
            signal => Some(far.begin(rank, (What::Put, signal), there, local, None)?),
        })
    }

    /// Whether bytes of a rank lie in its heap.
    fn check(&self, rank: usize, at: u64, bytes: usize) -> Result<()> {
        let end = at.checked_add(bytes as u64);
        if end.is_some_and(|end| end <= self.heap_bytes as u64) {
            return Ok(());
        }
        let message = format!(
            "a kernel has posted an access to {bytes} bytes from {} on of rank {rank}, whose heap has {}",
            at.cast_signed(),
            self.heap_bytes
        );
        Err(Error::new(ErrorKind::WindowRange, message))
    }

    /// What the kernel has named of its own device.
    fn local(&self, posted: &Posted) -> Result<Bytes> {
        let (at, bytes) = (posted.local, posted.bytes);
        let own = self
            .window
            .own_on_device()
            .map(|part| part.memory().clone());
        let touched = self.touched.all();
        let all = own.into_iter().chain(touched);
        let holds = |memory: &Arc<Memory>| {
            let before = at.checked_sub(memory.address());
            let end = before.and_then(|before| before.checked_add(bytes as u64));
            end.is_some_and(|end| end <= memory.bytes() as u64)
        };
        let memory = { all }.find(holds).ok_or_else(|| {
            let message = format!(
                "a kernel has posted an access with {bytes} bytes at {at:#x}, which lie in no \
                 memory that its launch has named"
            );
            Error::new(ErrorKind::Argument, message)
        })?;
        let before = (at - memory.address()) as usize;
        let slice = DeviceSlice::<u8>::of(memory)?.slice(before..before + bytes)?;
        // Invariant 2.
        Ok(Ordered::new(DeviceView::of(&slice)?, After::Now))
    }

    fn end(&self, posted: &Posted, before: u64) {
        if let Some(slot) = self.slot(posted.ticket) {
            slot.before.store(before, Ordering::Relaxed);
            slot.done.store(posted.ticket + 1, Ordering::Release);
            if posted.what != SIGNAL_FETCH_ADD {
                slot.free.store(posted.ticket + 1, Ordering::Release);
            }
        }
    }
}

/// Memory beside the heap that kernels of a team use.
#[derive(Default)]
pub(super) struct Touched(Mutex<Vec<Weak<Memory>>>);

impl Touched {
    /// A launch names them, and keeps them until it has completed.
    pub fn add(&self, memory: &[&Arc<Memory>]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|memory| memory.strong_count() > 0);
        for memory in memory {
            let new = Arc::downgrade(memory);
            if !all.iter().any(|known| known.ptr_eq(&new)) {
                all.push(new);
            }
        }
    }

    fn all(&self) -> Vec<Arc<Memory>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}
