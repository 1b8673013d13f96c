//! A slower network than there is: what another process posts is visible that much later.
//!
//! [`Delayed`] stands between the engine and a transport. Its posts carry the time, and its
//! poll keeps a message until its time has come:
//!
//! ```text
//! payload   byte 0..8                      8..
//!           time of the post, ns           what was posted
//!
//! due = max(time of the post, end of the one before) + bytes x time per byte + latency
//!       '------------- end of this one, of the same peer -------------'
//! ```
//!
//! So a message that is cut into fragments takes as long as one that is not, and messages of
//! one peer on one channel share a link. The sender does nothing more after its post: it may
//! compute, leave or die meanwhile, as with a network.
//!
//! Whatever would bypass messages is refused between processes: exports, reads in place,
//! devices. [`Endpoint::sharing`] says that such peers share nothing, so protocols go by
//! messages, and each of their steps is delayed by itself. Threads of one process reach each
//! other as without a delay.
//!
//! # Invariants
//! 1. Messages of one peer are handed out in the order of the transport below, none before
//!    its time: due times of a peer never fall, equal ones go by number, and what is handed
//!    out without being held has no message of its peer before it.
//! 2. What is held is owned: it was copied, and released below. No more is taken from below
//!    once [`HELD_BYTES`] are held; senders then lack credit, as without a delay.
//! 3. The message that is out lies in `out`, below or as a copy, until it is released: so its
//!    payload stays where it is (invariant 3 of [`crate::contract`]).
//! 4. Payloads of other ranks are read by copies, before their release; a time that no clock
//!    has reached counts as now.
//! 5. Memory of the caller goes below as it is, under the contract of the function of that
//!    name; what a post writes lies in the room that the transport below gives.
//!
//! # Sources
//! Latency and gap per byte: A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman, "LogGP:
//! Incorporating Long Messages into the LogP Model", SPAA 1995, section 2. Here both are added
//! to what the machine takes itself.

use crate::contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PostError,
    RegionKey, Sharing, TransportError, TransportErrorKind,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// What a message carries in front, in bytes.
const STAMP_BYTES: usize = 8;
/// Payloads stay multiples of this, so that elements are not cut where they were whole before.
const PAYLOAD_ALIGN: usize = 64;
/// Most bytes that one endpoint holds, rounded up to a message.
pub const HELD_BYTES: usize = 64 << 20;
/// What a held message takes beside its payload, in bytes.
const HELD_OVERHEAD_BYTES: usize = size_of::<Reverse<Held>>();
/// Messages that one poll takes from below: a flood does not keep it from those that are due.
const TAKEN_AT_ONCE: usize = 64;
/// Buffers that are kept for the next messages, and the largest of them.
const SPARE_BUFFERS: usize = 64;
const SPARE_BYTES: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// How much later messages between processes are visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Of each message, in ns.
    pub latency_ns: u64,
    /// Added for each MiB of payload, in ns.
    pub ns_per_mib: u64,
}

impl Delay {
    /// Largest value of either, in ns: a minute.
    pub const MOST_NS: u64 = 60_000_000_000;

    /// What a payload adds, in ns.
    fn of_bytes(&self, bytes: usize) -> u64 {
        match self.ns_per_mib {
            0 => 0,
            per_mib => (u128::from(per_mib) * bytes as u128 / u128::from(MIB)) as u64,
        }
    }
}

impl fmt::Display for Delay {
    /// As in `20us and 100us per MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let time = |ns: u64| {
            let whole = |(unit, _): &&(u64, &str)| ns > 0 && ns.is_multiple_of(*unit);
            let (unit, name) = units.iter().find(whole).unwrap_or(&(1, "ns"));
            format!("{}{name}", ns / unit)
        };
        f.write_str(&time(self.latency_ns))?;
        match self.ns_per_mib {
            0 => Ok(()),
            per_mib => write!(f, " and {} per MiB", time(per_mib)),
        }
    }
}

/// What is known of a peer's messages.
#[derive(Clone, Copy, Default)]
struct Link {
    /// When the last byte that was taken from below has passed.
    free_at_ns: u64,
    /// Messages held.
    held: usize,
}

/// A message before its time.
struct Held {
    due_ns: u64,
    /// In the order of the transport below.
    number: u64,
    peer: Peer,
    head: AmHead,
    payload: Vec<u8>,
}

impl Held {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The message that a poll has handed out.
enum Out {
    Below(Incoming),
    Copy(Vec<u8>),
}

/// What became of a message from below.
enum Taken {
    Shown(Incoming),
    Kept,
}

/// An endpoint whose messages from other processes are visible later.
///
/// `now_ns` is a clock that all ranks share, such as [`crate::shm::monotonic_ns`].
pub struct Delayed<E, C = fn() -> u64> {
    below: E,
    delay: Delay,
    now_ns: C,
    name: &'static str,
    held: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    /// By peer, as far as any was heard.
    links: Vec<Link>,
    numbered: u64,
    out: Option<Out>,
    spare: Vec<Vec<u8>>,
    malformed: u64,
}

impl<E: Endpoint, C: Fn() -> u64> Delayed<E, C> {
    /// Delays what comes through `below`, whose peers are delayed alike; `name` is that of the
    /// transport in tables and messages.
    pub fn new(below: E, delay: Delay, now_ns: C, name: &'static str) -> Self {
        Self {
            below,
            delay,
            now_ns,
            name,
            held: BinaryHeap::new(),
            held_bytes: 0,
            links: Vec::new(),
            numbered: 0,
            out: None,
            spare: Vec::new(),
            malformed: 0,
        }
    }

    /// By how much messages are delayed.
    pub fn delay(&self) -> Delay {
        self.delay
    }

    /// The transport below.
    pub fn below(&self) -> &E {
        &self.below
    }

    /// The same, for what is not a message.
    pub fn below_mut(&mut self) -> &mut E {
        &mut self.below
    }

    /// When the next message that is held is due, in ns of the clock.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.due_ns)
    }

    /// Whether a message of a peer was posted and not handed out yet. Not while a message is
    /// out.
    pub fn is_awaited(&mut self, peer: Peer) -> bool {
        while self.has_room() {
            let Some(message) = self.below.poll() else {
                return self.links.get(peer as usize).is_some_and(|l| l.held > 0);
            };
            self.take(&message, false);
        }
        true
    }

    fn has_room(&self) -> bool {
        self.held_bytes < HELD_BYTES
    }

    /// Takes a message from below: shows it, if it may and its time has come, else holds it.
    fn take(&mut self, message: &Incoming, may_show: bool) -> Taken {
        let Some(bytes) = message.payload.len().checked_sub(STAMP_BYTES) else {
            self.malformed += 1;
            self.below.release(message);
            return Taken::Kept;
        };
        let at = message.peer as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, Link::default());
        }
        let from = message.payload.as_ptr();
        // A peer has joined before it posts, so it is known whose thread it is.
        let (due_ns, is_due) = match self.below.sharing(message.peer).process {
            true => (0, true),
            false => {
                let mut stamp = [0; STAMP_BYTES];
                // SAFETY: invariant 4: not released yet, and as long as the stamp.
                unsafe {
                    std::ptr::copy_nonoverlapping(from, stamp.as_mut_ptr(), STAMP_BYTES);
                }
                let now = (self.now_ns)();
                let posted = u64::from_le_bytes(stamp).min(now);
                let link = &mut self.links[at];
                let begin = posted.max(link.free_at_ns);
                link.free_at_ns = begin.saturating_add(self.delay.of_bytes(bytes));
                let due = link.free_at_ns.saturating_add(self.delay.latency_ns);
                (due, due <= now)
            }
        };
        let from = from.wrapping_add(STAMP_BYTES);
        let link = &mut self.links[at];
        if may_show && is_due && link.held == 0 {
            self.out = Some(Out::Below(*message));
            return Taken::Shown(Incoming {
                // SAFETY: invariant 3: what lies behind the stamp, until the release.
                payload: unsafe { ForeignBytes::new(from, bytes) },
                ..*message
            });
        }
        link.held += 1;
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.resize(bytes, 0);
        // SAFETY: invariant 4: not released yet; the buffer is ours and as long.
        unsafe { std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr(), bytes) };
        self.below.release(message);
        self.held_bytes += bytes + HELD_OVERHEAD_BYTES;
        self.numbered += 1;
        self.held.push(Reverse(Held {
            due_ns,
            number: self.numbered,
            peer: message.peer,
            head: message.head,
            payload,
        }));
        Taken::Kept
    }

    /// Hands out the earliest message that is held, if its time has come.
    fn show_due(&mut self) -> Option<Incoming> {
        let due = self.next_due_ns()?;
        if due > (self.now_ns)() {
            return None;
        }
        let Reverse(held) = self.held.pop()?;
        let bytes = held.payload.len();
        self.held_bytes -= bytes + HELD_OVERHEAD_BYTES;
        self.links[held.peer as usize].held -= 1;
        let payload = held.payload.as_ptr();
        self.out = Some(Out::Copy(held.payload));
        Some(Incoming {
            peer: held.peer,
            head: held.head,
            // SAFETY: invariant 3: the buffer lies in `out` until the release.
            payload: unsafe { ForeignBytes::new(payload, bytes) },
            token: 0,
        })
    }

    /// Whether a peer is a thread of this process, which nothing delays.
    fn is_here(&self, peer: Peer) -> bool {
        self.below.sharing(peer).process
    }
}

fn apart() -> TransportError {
    TransportError::new(
        TransportErrorKind::Unavailable,
        "messages between these processes are delayed, which memory read in place could not be",
    )
}

impl<E: Endpoint, C: Fn() -> u64> Endpoint for Delayed<E, C> {
    fn capabilities(&self) -> Capabilities {
        let below = self.below.capabilities();
        let most = below.max_payload_bytes.saturating_sub(STAMP_BYTES);
        Capabilities {
            transport: self.name,
            inline_bytes: below.inline_bytes.saturating_sub(STAMP_BYTES),
            max_payload_bytes: match most {
                0..PAYLOAD_ALIGN => most,
                _ => most - most % PAYLOAD_ALIGN,
            },
            get: false,
            put: false,
            atomics: false,
            export_plain: false,
            runs: 1,
        }
    }

    fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        let now_ns = &self.now_ns;
        self.below.post_with(peer, head, bytes + STAMP_BYTES, |to| {
            fill(to.wrapping_add(STAMP_BYTES));
            let stamp = now_ns().to_le_bytes();
            // SAFETY: invariant 5: room for the stamp in front.
            unsafe { std::ptr::copy_nonoverlapping(stamp.as_ptr(), to, STAMP_BYTES) };
        })
    }

    fn poll(&mut self) -> Option<Incoming> {
        if let Some(due) = self.show_due() {
            return Some(due);
        }
        let before = self.numbered;
        for _ in 0..TAKEN_AT_ONCE {
            if !self.has_room() {
                break;
            }
            let Some(message) = self.below.poll() else {
                break;
            };
            if let Taken::Shown(message) = self.take(&message, true) {
                return Some(message);
            }
        }
        match self.numbered == before {
            true => None,
            false => self.show_due(),
        }
    }

    fn release(&mut self, _message: &Incoming) {
        match self.out.take() {
            Some(Out::Below(message)) => self.below.release(&message),
            Some(Out::Copy(mut buffer))
                if self.spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES =>
            {
                buffer.clear();
                self.spare.push(buffer);
            }
            Some(Out::Copy(_)) | None => {}
        }
    }

    unsafe fn export(&self, _ptr: *const u8, _bytes: usize) -> Result<RegionKey, TransportError> {
        Err(apart())
    }

    unsafe fn export_to(
        &self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
        write: bool,
    ) -> Result<RegionKey, TransportError> {
        match self.is_here(peer) {
            // SAFETY: invariant 5.
            true => unsafe { self.below.export_to(peer, ptr, bytes, write) },
            false => Err(apart()),
        }
    }

    /// Members of this process reach it.
    unsafe fn export_window(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: invariant 5.
        unsafe { self.below.export_window(ptr, bytes) }
    }

    /// Other processes share nothing: what is in place could not be delayed.
    fn sharing(&self, peer: Peer) -> Sharing {
        let below = self.below.sharing(peer);
        match below.process {
            true => below,
            false => Sharing {
                host_memory: false,
                devices: false,
                ..below
            },
        }
    }

    fn attending(&self, peer: Peer) -> bool {
        self.is_here(peer) && self.below.attending(peer)
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        match self.is_here(peer) {
            // SAFETY: invariant 5.
            true => unsafe { self.below.get(peer, key, offset, to, bytes) },
            false => Err(apart()),
        }
    }

    unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        match self.is_here(peer) {
            // SAFETY: invariant 5.
            true => unsafe { self.below.put(peer, key, offset, from, bytes) },
            false => Err(apart()),
        }
    }

    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        match self.is_here(peer) {
            true => self.below.atomic(peer, key, offset, op),
            false => Err(apart()),
        }
    }

    fn mapped_writable(&mut self, peer: Peer, key: &RegionKey) -> Option<*mut u8> {
        match self.is_here(peer) {
            true => self.below.mapped_writable(peer, key),
            false => None,
        }
    }

    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        match self.is_here(peer) {
            true => self.below.mapped(peer, key),
            false => None,
        }
    }

    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        self.below.poll_completion()
    }

    fn malformed(&self) -> u64 {
        self.below.malformed() + self.malformed
    }
}

#[cfg(test)]
mod tests;
