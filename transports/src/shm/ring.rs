//! A one-way ring of 16-byte cells with a byte ring for larger payloads.
//!
//! One producer (a rank's lane) and one consumer (the same lane of a peer). A
//! small message and its flag share a cache line, so one line crosses between
//! the caches; up to four messages share it, so a stream of them costs a
//! quarter of a line each. That matters because the next store waits in the
//! store buffer until the line has come from the consumer.
//!
//! ```text
//! byte        0    2    3     4          8                   16
//! short       lap  kind bytes argument   payload (<= 8 bytes)
//! long        lap  kind 0x40  argument   upper half, aux, check << 7 | bytes
//!             lap  payload (14 bytes)                            ... repeated
//! ring        lap  kind 0x41  argument   upper half, aux, 0
//!             lap  check     bytes u32   position u64
//! parts       lap  kind 0x44  argument   as ring, and a cell per part ([`parts`])
//! switch      lap  0    0x42  check      offset of the next ring's block
//! exchange    lap  0    0x43  check      offset of the pair's exchange block
//! ```
//!
//! Laps are sealed with the rest of their word ([`super::seal`]); `check` covers the second
//! words, and the payload of a long message. A cell that shows neither its lap nor the one
//! before was overwritten by somebody else; what its producer sends cannot be read any more.
//!
//! A line that the consumer has only read costs the producer several times a line that the
//! consumer has written. So the consumer writes a byte to each line of a payload, unless it is
//! short, before it gives it back; what the line holds then nobody reads.
//!
//! # Invariants
//! 1. Cell `i` of lap `l` is free exactly if the consumer has reported at
//!    least `i + (l - 1) * cells` consumed cells. The producer writes a cell
//!    only when it is free.
//! 2. Every cell belongs to exactly one message per lap, and its first word is then
//!    sealed with that lap's number. A cell that is not yet written shows
//!    the lap before, whatever payload it carried.
//! 3. The first word of a message is stored last, with release, and loaded
//!    first, with acquire: whoever sees its lap sees the whole message.
//! 4. Payload positions grow for ever; position `p` lies at `p mod capacity`.
//!    A payload never wraps: what is left at the end is skipped.
//! 5. The consumer reports at the latest when half of either ring is
//!    unreported, and when it rests; a payload is at most a quarter of its
//!    ring, so a producer that waits is never forgotten. One that sleeps is woken
//!    by the endpoint, which each report is told to.
//! 6. Only the producer writes cells and payload that the consumer has reported; only the
//!    consumer writes [`Control`], and a payload that it has read and not reported. A
//!    producer that dies leaves at most one unpublished message in its own ring, which
//!    stalls nobody else.
//! 7. [`RingMemory`] names memory that stays mapped as long as its [`Producer`] and
//!    [`Consumer`] (their maker sees to that), and is long enough for both capacities,
//!    which are powers of two and never read from shared memory: a masked index lies
//!    inside. Control and cells are atomics only.
//! 8. A payload that is found lies inside the byte ring, wherever the producer says.
//!
//! # Sources
//! Small slots with an in-band flag: the fast boxes of D. Buntinas,
//! G. Mercier, W. Gropp, "Design and Evaluation of Nemesis, a Scalable,
//! Low-Latency, Message-Passing Communication Subsystem", CCGrid 2006. Here
//! the flag is a lap number, so that the consumer never writes a cell, and
//! credits return in batches on a line of their own.

mod ahead;
pub(super) mod parts;
mod whole;

use self::ahead::Ahead;
use super::seal;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Payload bytes that travel in cells.
pub(crate) const INLINE_BYTES: usize = 96;
/// Payload bytes of a message of one cell.
const SHORT_BYTES: usize = 8;
/// Payload bytes of a continuation cell.
const PART_BYTES: usize = 14;
const LONG: u8 = 0x40;
const RING: u8 = 0x41;
const SWITCH: u8 = 0x42;
const EXCHANGE: u8 = 0x43;
const PARTS: u8 = 0x44;
/// Bits of the bytes of a long message; check bits lie above.
const LONG_BITS: u32 = 7;
/// What a consumer says that reads no more.
const CLOSED: u32 = 0x434c_4f53;
/// Payloads start on cache lines.
const PAYLOAD_ALIGN: u64 = 64;

/// Lines of payloads from this size on are written by their reader,
const OWNED_BYTES: usize = 1 << 10;
/// and above this size left, where the machine's costs say that that is faster.
pub(crate) const LEFT_BYTES: usize = 8 << 10;

/// A quarter of a cache line.
#[repr(C, align(16))]
pub(crate) struct Cell {
    word: AtomicU64,
    data: AtomicU64,
}

/// What the consumer tells the producer.
#[repr(C, align(64))]
pub(crate) struct Control {
    cells: AtomicU64,
    payload: AtomicU64,
    closed: AtomicU32,
}

#[cfg(test)]
impl Cell {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(seal::sealed(0, 0)),
            data: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
impl Control {
    fn new() -> Self {
        Self {
            cells: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            closed: AtomicU32::new(0),
        }
    }
}

/// Where a ring lies. Both capacities are powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    pub control: *const Control,
    pub cells: *const Cell,
    /// Binary logarithm of the number of cells.
    pub cell_bits: u32,
    pub payload: *mut u8,
    pub payload_bytes: u64,
}

// SAFETY: invariant 7: addresses in shared memory, tied to no thread; who may touch what is
// invariant 6, which the two ends uphold.
unsafe impl Send for RingMemory {}

impl RingMemory {
    #[inline]
    pub fn cell_count(&self) -> u64 {
        1 << self.cell_bits
    }

    /// # Safety
    /// The memory is valid for the life that the caller gives the reference.
    #[inline]
    unsafe fn cell<'a>(&self, at: u64) -> &'a Cell {
        let at = (at & (self.cell_count() - 1)) as usize;
        // SAFETY: invariant 7, which the caller upholds.
        unsafe { &*self.cells.wrapping_add(at) }
    }

    /// Number that a cell is sealed with when it is written at this position.
    #[inline]
    fn lap(&self, at: u64) -> u64 {
        // Never that of fresh cells in the first lap.
        ((at >> self.cell_bits) + 1) & 0xffff
    }

    /// Whether a word at this position is of the lap before.
    #[inline]
    fn is_old(&self, at: u64, word: u64) -> bool {
        seal::number(word) == (at >> self.cell_bits) & 0xffff
    }

    /// Makes cells fresh, which have been written in no lap.
    ///
    /// # Safety
    /// The memory is valid, and there is no producer and no consumer yet.
    pub unsafe fn clear(&self) {
        for at in 0..self.cell_count() {
            // SAFETY: the caller's contract (invariant 7).
            let cell = unsafe { self.cell(at) };
            cell.word.store(seal::sealed(0, 0), Ordering::Relaxed);
        }
    }
}

/// Kind, small argument and argument of a message.
pub(crate) type Head = (u8, u16, u64);

/// What the consumer found in a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A message.
    Message {
        head: Head,
        payload: *const u8,
        bytes: usize,
    },
    /// The producer goes on in the ring whose block lies there.
    Switch(u64),
    /// There lies the block of the pair's mailbox.
    Exchange(u64),
    /// A cell that no correct producer writes; skipped by `release`.
    Malformed,
}

/// The producer's end.
pub(crate) struct Producer {
    memory: RingMemory,
    /// Cells of the rings that this one continues.
    base: u64,
    next: u64,
    /// Cells that are known to be free end here.
    limit: u64,
    payload_next: u64,
    payload_seen: u64,
    /// Payloads carry check bits: none is short, which has no room for them.
    payloads: bool,
}

// SAFETY: invariants 6 and 7: the only right to write one end of a ring, in memory that
// outlives it; nothing in it is tied to a thread.
unsafe impl Send for Producer {}

impl Producer {
    /// # Safety
    /// The memory stays valid as long as the producer, is zeroed, and there
    /// is one producer only.
    pub unsafe fn new(memory: RingMemory, base: u64) -> Self {
        debug_assert!(memory.cell_bits < 32);
        debug_assert!(memory.payload_bytes.is_power_of_two());
        Self {
            memory,
            base,
            next: 0,
            limit: memory.cell_count(),
            payload_next: 0,
            payload_seen: 0,
            payloads: false,
        }
    }

    /// Whether payloads carry check bits; the consumer must ask for the same.
    pub fn check_payloads(&mut self, check: bool) {
        self.payloads = check;
    }

    /// Largest payload that this ring takes.
    #[inline]
    pub fn max_payload(&self) -> usize {
        ((self.memory.payload_bytes / 4) as usize).max(INLINE_BYTES)
    }

    /// Cells written so far.
    pub fn posted(&self) -> u64 {
        self.next
    }

    /// Cells written so far, those of earlier rings of the same stream too:
    /// where a message that travels beside the ring stands in its order.
    #[inline]
    pub fn position(&self) -> u64 {
        self.base + self.next
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: invariant 7, by the contract of `new`.
        unsafe { &*self.memory.control }
    }

    #[inline]
    fn cell(&self, at: u64) -> &Cell {
        // SAFETY: invariant 7, by the contract of `new`.
        unsafe { self.memory.cell(at) }
    }

    /// Whether the consumer has gone.
    pub fn closed(&self) -> bool {
        self.control().closed.load(Ordering::Acquire) == CLOSED
    }

    /// Whether everything posted has been consumed, as far as reported.
    #[cfg(test)]
    fn drained(&self) -> bool {
        self.control().cells.load(Ordering::Acquire) == self.next
    }

    /// Whether so many cells are free.
    #[inline]
    pub fn has_cells(&mut self, cells: u64) -> bool {
        self.next + cells <= self.limit || self.refresh(cells)
    }

    #[cold]
    fn refresh(&mut self, cells: u64) -> bool {
        // Acquire: the consumer's reads of a cell end before we write it.
        let consumed = self.control().cells.load(Ordering::Acquire).min(self.next);
        self.limit = self.limit.max(consumed + self.memory.cell_count());
        self.next + cells <= self.limit
    }

    /// First word of a message at the next cell.
    #[inline]
    fn word(&self, kind: u8, form: u8, argument: u32) -> u64 {
        let upper = u64::from(kind) << 16 | u64::from(form) << 24 | u64::from(argument) << 32;
        seal::sealed(upper, self.memory.lap(self.next))
    }

    /// Publishes the message of `cells` cells at the next cell.
    #[inline]
    fn publish(&mut self, word: u64, data: u64, cells: u64) {
        let cell = self.cell(self.next);
        cell.data.store(data, Ordering::Relaxed);
        cell.word.store(word, Ordering::Release);
        self.next += cells;
    }

    /// Posts a message of one cell; false without a credit.
    #[inline]
    pub fn post_short(&mut self, kind: u8, argument: u32, data: u64, bytes: usize) -> bool {
        debug_assert!(bytes <= SHORT_BYTES);
        if self.payloads || !self.has_cells(1) {
            return false;
        }
        let word = self.word(kind, bytes as u8, argument);
        self.publish(word, data, 1);
        true
    }

    /// Whether a message of `bytes` bytes has credit.
    #[inline]
    pub fn has_room(&mut self, bytes: usize) -> bool {
        if bytes <= INLINE_BYTES {
            self.has_cells(1 + bytes.div_ceil(PART_BYTES) as u64)
        } else {
            self.has_cells(2) && self.place(bytes).is_some()
        }
    }

    /// Posts a message for which [`Producer::has_room`] has just said yes.
    #[inline]
    pub fn post(&mut self, head: Head, bytes: usize, fill: impl FnOnce(*mut u8)) {
        if bytes <= SHORT_BYTES && head.1 == 0 && head.2 >> 32 == 0 && !self.payloads {
            let mut data = 0u64;
            fill((&raw mut data).cast());
            let word = self.word(head.0, bytes as u8, head.2 as u32);
            self.publish(word, data, 1);
        } else if bytes <= INLINE_BYTES {
            self.post_long(head, bytes, fill);
        } else {
            self.post_ring(head, bytes, fill);
        }
    }

    fn post_long(&mut self, head: Head, bytes: usize, fill: impl FnOnce(*mut u8)) {
        const PARTS: usize = INLINE_BYTES.div_ceil(PART_BYTES);
        let mut payload = [0u8; PARTS * PART_BYTES];
        fill(payload.as_mut_ptr());
        let parts = bytes.div_ceil(PART_BYTES);
        let data = head.2 >> 32 | u64::from(head.1) << 32 | (bytes as u64) << 48;
        let mut sum = data;
        for (i, part) in payload.chunks_exact(PART_BYTES).take(parts).enumerate() {
            let at = self.next + 1 + i as u64;
            let mut bytes = [0u8; 16];
            bytes[2..].copy_from_slice(part);
            let whole = u128::from_le_bytes(bytes);
            let cell = self.cell(at);
            let second = (whole >> 64) as u64;
            sum = seal::mix(sum, second);
            cell.data.store(second, Ordering::Relaxed);
            let word = seal::sealed(whole as u64, self.memory.lap(at));
            cell.word.store(word, Ordering::Relaxed);
        }
        let data = data | long_check(sum);
        let word = self.word(head.0, LONG, head.2 as u32);
        self.publish(word, data, 1 + parts as u64);
    }

    /// Position of `bytes` bytes of payload, if there is credit for them.
    fn place(&mut self, bytes: usize) -> Option<u64> {
        let capacity = self.memory.payload_bytes;
        let need = (bytes as u64).next_multiple_of(PAYLOAD_ALIGN);
        let mut at = self.payload_next;
        let in_ring = at & (capacity - 1);
        if in_ring + need > capacity {
            at += capacity - in_ring;
        }
        if at + need > self.payload_seen + capacity {
            let seen = self.control().payload.load(Ordering::Acquire);
            self.payload_seen = self.payload_seen.max(seen.min(self.payload_next));
            if at + need > self.payload_seen + capacity {
                return None;
            }
        }
        Some(at)
    }

    /// Whether the byte ring has credit for a payload.
    #[inline]
    pub fn has_payload_room(&mut self, bytes: usize) -> bool {
        bytes <= self.max_payload() && self.place(bytes).is_some()
    }

    /// Writes a payload, for which there is room, to the byte ring; returns
    /// its position.
    #[inline]
    pub fn write_payload(&mut self, bytes: usize, fill: impl FnOnce(*mut u8)) -> u64 {
        debug_assert!(bytes <= self.max_payload());
        let Some(at) = self.place(bytes) else {
            debug_assert!(false, "room was asked for");
            return self.payload_next;
        };
        let capacity = self.memory.payload_bytes;
        let need = (bytes as u64).next_multiple_of(PAYLOAD_ALIGN);
        // Masked, and `need` bytes from there fit by `place` (invariants 4 and 7).
        let offset = (at & (capacity - 1)) as usize;
        fill(self.memory.payload.wrapping_add(offset));
        self.payload_next = at + need;
        at
    }

    fn post_ring(&mut self, head: Head, bytes: usize, fill: impl FnOnce(*mut u8)) {
        let at = self.write_payload(bytes, fill);
        let second = self.cell(self.next + 1);
        second.data.store(at, Ordering::Relaxed);
        let data = head.2 >> 32 | u64::from(head.1) << 32;
        let in_ring = (at & (self.memory.payload_bytes - 1)) as usize;
        let payload = self.memory.payload.wrapping_add(in_ring).cast_const();
        let check = ring_check(data, at, self.payloads.then_some((payload, bytes)));
        let upper = (bytes as u64) << 32 | check << 16;
        let word = seal::sealed(upper, self.memory.lap(self.next + 1));
        second.word.store(word, Ordering::Relaxed);
        let word = self.word(head.0, RING, head.2 as u32);
        self.publish(word, data, 2);
    }

    /// Tells the consumer to go on in another ring; false without a credit.
    pub fn post_switch(&mut self, block: u64) -> bool {
        self.post_block(SWITCH, block)
    }

    /// Tells the consumer where the mailbox lies; false without a credit.
    pub fn post_exchange(&mut self, block: u64) -> bool {
        self.post_block(EXCHANGE, block)
    }

    fn post_block(&mut self, form: u8, block: u64) -> bool {
        if !self.has_cells(1) {
            return false;
        }
        let word = self.word(0, form, seal::check(block) as u32);
        self.publish(word, block, 1);
        true
    }
}

/// Check bits of a message in the byte ring: of its second words, and of a payload there.
#[inline]
fn ring_check(data: u64, position: u64, payload: Option<(*const u8, usize)>) -> u64 {
    let sum = seal::mix(data, position);
    seal::check(match payload {
        // SAFETY: invariant 8: it lies inside the byte ring, for as many bytes.
        Some((from, bytes)) => seal::mix(sum, unsafe { seal::check_bytes(from, bytes) }),
        None => sum,
    })
}

/// Check bits of the second words of a long message, above its bytes.
#[inline]
fn long_check(sum: u64) -> u64 {
    let bits = 16 - LONG_BITS;
    (seal::check(sum) & ((1 << bits) - 1)) << (48 + LONG_BITS)
}

/// The consumer's end.
pub(crate) struct Consumer {
    memory: RingMemory,
    /// Cells of the rings that this one continues.
    base: u64,
    next: u64,
    /// Where the message in hand ends.
    end: u64,
    reported: u64,
    payload_done: u64,
    payload_reported: u64,
    /// Where the payload of the message in hand lies.
    payload_begin: u64,
    payload_end: u64,
    /// Payload of a long message, put together.
    gathered: Box<[u8; GATHER]>,
    /// Payloads carry check bits.
    payloads: bool,
    /// The cell of a message whose parts did not come while this consumer waited.
    given_up: Option<u64>,
    /// Lines of shorter payloads are taken from the producer's cache.
    taken_below: usize,
    ahead: Ahead,
}

const GATHER: usize = INLINE_BYTES.div_ceil(PART_BYTES) * PART_BYTES;

// SAFETY: invariants 6 and 7, as for `Producer`: the only right to the other end.
unsafe impl Send for Consumer {}

impl Consumer {
    /// # Safety
    /// The memory stays mapped as long as the consumer, and there is one
    /// consumer only. Its content is not trusted.
    pub unsafe fn new(memory: RingMemory, base: u64) -> Self {
        Self {
            memory,
            base,
            next: 0,
            end: 0,
            reported: 0,
            payload_done: 0,
            payload_reported: 0,
            payload_begin: 0,
            payload_end: 0,
            gathered: Box::new([0; GATHER]),
            payloads: false,
            given_up: None,
            taken_below: usize::MAX,
            ahead: Ahead::default(),
        }
    }

    /// Whether payloads carry check bits, as the producer does it.
    pub fn check_payloads(&mut self, check: bool) {
        self.payloads = check;
    }

    /// Has only lines of payloads of fewer bytes taken from the producer's cache.
    pub fn take_lines_below(&mut self, bytes: usize) {
        self.taken_below = bytes;
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: invariant 7, by the contract of `new`.
        unsafe { &*self.memory.control }
    }

    /// Cells given back so far, those of earlier rings of the stream too.
    #[inline]
    pub fn position(&self) -> u64 {
        self.base + self.next
    }

    /// Asks once. A message found must be released before the next call that
    /// finds another; until then the answer is the same.
    #[inline]
    pub fn poll(&mut self) -> Option<Found> {
        // SAFETY: invariant 7, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let word = cell.word.load(Ordering::Acquire);
        if seal::number(word) != self.memory.lap(self.next) {
            return self.nothing(word);
        }
        let form = (word >> 24) as u8;
        if form as usize <= SHORT_BYTES {
            self.end = self.next + 1;
            // Out of the ring at once: the cell is an atomic of the producer's.
            let data = cell.data.load(Ordering::Relaxed).to_ne_bytes();
            self.gathered[..SHORT_BYTES].copy_from_slice(&data);
            return Some(Found::Message {
                head: ((word >> 16) as u8, 0, word >> 32),
                payload: self.gathered.as_ptr(),
                bytes: form as usize,
            });
        }
        let data = cell.data.load(Ordering::Relaxed);
        self.open(word, data, form)
    }

    /// There is no message: it has not been written yet, or somebody else wrote there.
    #[inline]
    fn nothing(&mut self, word: u64) -> Option<Found> {
        self.ahead.nothing();
        if self.memory.is_old(self.next, word) {
            return None;
        }
        self.end = self.next + 1;
        Some(Found::Malformed)
    }

    /// The message in the next cell if it is short and of this kind and
    /// argument: its bytes, and how many they are. [`Consumer::pass`] takes it.
    /// What else is there, [`Consumer::poll`] tells.
    #[inline(always)]
    pub fn peek_short(&self, kind: u8, argument: u32) -> Option<(u64, usize)> {
        // SAFETY: invariant 7, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let word = cell.word.load(Ordering::Acquire);
        let wanted = u64::from(kind) << 16 | u64::from(argument) << 32;
        let bytes = (word >> 24) as u8 as usize;
        if word & !0xff00_ffff != wanted
            || seal::number(word) != self.memory.lap(self.next)
            || bytes > SHORT_BYTES
        {
            return None;
        }
        Some((cell.data.load(Ordering::Relaxed), bytes))
    }

    /// Takes the message that [`Consumer::peek_short`] has found. True, as of all that gives
    /// something back, if the producer has more room now: it may sleep until then.
    #[inline]
    #[must_use]
    pub fn pass(&mut self) -> bool {
        self.next += 1;
        self.ahead.took(&self.memory, self.next);
        self.report_at(2)
    }

    fn open(&mut self, word: u64, data: u64, form: u8) -> Option<Found> {
        let kind = (word >> 16) as u8;
        let head = (kind, (data >> 32) as u16, word >> 32 | data << 32);
        self.end = self.next + 1;
        Some(match form {
            SWITCH | EXCHANGE if word >> 32 != seal::check(data) => Found::Malformed,
            SWITCH => Found::Switch(data),
            EXCHANGE => Found::Exchange(data),
            LONG => self.gather(head, data),
            RING => self.open_ring(head),
            PARTS => return self.open_parts(word, data, head),
            _ => Found::Malformed,
        })
    }

    fn gather(&mut self, head: Head, data: u64) -> Found {
        let bytes = (data >> 48) as usize & ((1 << LONG_BITS) - 1);
        let mut sum = data & !(u64::MAX << (48 + LONG_BITS));
        if bytes > INLINE_BYTES {
            return Found::Malformed;
        }
        let parts = bytes.div_ceil(PART_BYTES);
        self.end = self.next + 1 + parts as u64;
        for (i, part) in self
            .gathered
            .chunks_exact_mut(PART_BYTES)
            .take(parts)
            .enumerate()
        {
            // SAFETY: invariant 7, by the contract of `new`.
            let cell = unsafe { self.memory.cell(self.next + 1 + i as u64) };
            let word = cell.word.load(Ordering::Relaxed);
            let second = cell.data.load(Ordering::Relaxed);
            if seal::number(word) != self.memory.lap(self.next + 1 + i as u64) {
                return Found::Malformed;
            }
            sum = seal::mix(sum, second);
            let whole = u128::from(word) | u128::from(second) << 64;
            part.copy_from_slice(&whole.to_le_bytes()[2..]);
        }
        if long_check(sum) != data & u64::MAX << (48 + LONG_BITS) {
            return Found::Malformed;
        }
        Found::Message {
            head,
            payload: self.gathered.as_ptr(),
            bytes,
        }
    }

    fn open_ring(&mut self, head: Head) -> Found {
        self.end = self.next + 2;
        // SAFETY: invariant 7, by the contract of `new`.
        let second = unsafe { self.memory.cell(self.next + 1) };
        let position = second.data.load(Ordering::Relaxed);
        let word = second.word.load(Ordering::Relaxed);
        let size = word >> 32;
        let data = head.2 >> 32 | u64::from(head.1) << 32;
        let Some(payload) = self.payload(position, size) else {
            return Found::Malformed;
        };
        let bytes = size as usize;
        let check = ring_check(data, position, self.payloads.then_some((payload, bytes)));
        if seal::number(word) != self.memory.lap(self.next + 1) || word >> 16 & 0xffff != check {
            return Found::Malformed;
        }
        Found::Message {
            head,
            payload,
            bytes,
        }
    }

    /// Payload at a position of the byte ring, until the next release;
    /// `None` for one that no correct producer names.
    #[inline]
    pub fn payload(&mut self, position: u64, bytes: u64) -> Option<*const u8> {
        let capacity = self.memory.payload_bytes;
        let in_ring = position & (capacity - 1);
        if bytes > capacity {
            return None;
        }
        let end = position.saturating_add(bytes.next_multiple_of(PAYLOAD_ALIGN));
        let sound = position >= self.payload_done
            && end - self.payload_done.min(end) <= 2 * capacity
            && in_ring + bytes <= capacity;
        if !sound {
            return None;
        }
        self.payload_begin = position;
        self.payload_end = end;
        // Inside (invariant 8).
        Some(self.memory.payload.wrapping_add(in_ring as usize))
    }

    /// Gives back the message found last.
    #[inline]
    #[must_use]
    pub fn release(&mut self) -> bool {
        self.next = self.end;
        self.release_payload()
    }

    /// Gives back the payload asked for last.
    #[inline]
    #[must_use]
    pub fn release_payload(&mut self) -> bool {
        let bytes = (self.payload_end - self.payload_begin) as usize;
        // Of exactly that size, streams are faster whose lines are taken.
        if (OWNED_BYTES..=self.taken_below).contains(&bytes) {
            self.own_payload();
        }
        self.payload_begin = self.payload_end;
        self.payload_done = self.payload_done.max(self.payload_end);
        // Reported at the latest here, and before that when nothing comes in:
        // the store must fetch a line from the producer, and an answer would
        // wait behind it in the store buffer.
        self.report_at(2)
    }

    /// Takes the lines of the payload in hand from the producer's cache.
    fn own_payload(&mut self) {
        let bytes = (self.payload_end - self.payload_begin) as usize;
        let in_ring = (self.payload_begin & (self.memory.payload_bytes - 1)) as usize;
        let at = self.memory.payload.wrapping_add(in_ring);
        for line in (0..bytes).step_by(PAYLOAD_ALIGN as usize) {
            // SAFETY: invariant 8: inside the byte ring; ours until it is reported
            // (invariant 6).
            unsafe { at.wrapping_add(line).write_volatile(0) };
        }
    }

    /// Whether one part in so many of either ring is unreported.
    #[inline]
    fn unreported(&self, part: u64) -> bool {
        self.next - self.reported >= self.memory.cell_count() / part
            || self.payload_done - self.payload_reported >= self.memory.payload_bytes / part
    }

    /// To be called when nothing has come in.
    #[inline]
    #[must_use]
    pub fn rest(&mut self) -> bool {
        if self.overwritten() {
            self.report();
            return true;
        }
        self.report_at(8)
    }

    /// Whether what we have reported is not there any more: only we write it.
    #[inline]
    fn overwritten(&self) -> bool {
        let control = self.control();
        control.cells.load(Ordering::Relaxed) != self.reported
            || control.payload.load(Ordering::Relaxed) != self.payload_reported
    }

    /// Reports if one part in so many is unreported.
    #[inline]
    fn report_at(&mut self, part: u64) -> bool {
        let due = self.unreported(part);
        if due {
            self.report();
        }
        due
    }

    #[cold]
    fn report(&mut self) {
        // Release: our reads of the cells end before the producer writes them.
        let control = self.control();
        control.payload.store(self.payload_done, Ordering::Release);
        control.cells.store(self.next, Ordering::Release);
        self.reported = self.next;
        self.payload_reported = self.payload_done;
    }

    /// Tells the producer that nobody will read any more.
    pub fn close(&mut self) {
        self.report();
        self.control().closed.store(CLOSED, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::shm) struct Memory {
        control: Box<Control>,
        cells: Box<[Cell]>,
        payload: Box<[u8]>,
    }

    impl Memory {
        pub fn new(cells: usize, payload: usize) -> Self {
            Self {
                control: Box::new(Control::new()),
                cells: (0..cells).map(|_| Cell::new()).collect(),
                payload: vec![0; payload].into_boxed_slice(),
            }
        }

        pub fn ring(&mut self) -> RingMemory {
            RingMemory {
                control: &raw const *self.control,
                cells: self.cells.as_ptr(),
                cell_bits: self.cells.len().ilog2(),
                payload: self.payload.as_mut_ptr(),
                payload_bytes: self.payload.len() as u64,
            }
        }
    }

    fn put(p: &mut Producer, tag: u64, bytes: &[u8]) -> bool {
        if !p.has_room(bytes.len()) {
            return false;
        }
        p.post((1, (tag % 3) as u16, tag), bytes.len(), |to| {
            // SAFETY: invariant 4: the ring hands out room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        });
        true
    }

    fn take(c: &mut Consumer) -> Option<(u64, Vec<u8>)> {
        match c.poll()? {
            Found::Message {
                head,
                payload,
                bytes,
            } => {
                let mut v = vec![0; bytes];
                // SAFETY: invariant 8: the message is in hand.
                unsafe { std::ptr::copy_nonoverlapping(payload, v.as_mut_ptr(), bytes) };
                let _ = c.release();
                Some((head.2, v))
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn messages_of_all_sizes_arrive_in_order() {
        let mut m = Memory::new(16, 1024);
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        let body = |n: u64| -> Vec<u8> {
            let bytes = (n * 37 % 257) as usize;
            (0..bytes).map(|i| (i as u64 * 7 + n) as u8).collect()
        };
        let (mut sent, mut got) = (0, 0);
        while got < 2000 {
            while sent < got + 1 + sent % 9 && put(&mut p, sent, &body(sent)) {
                sent += 1;
            }
            let _ = c.rest();
            let (tag, bytes) = take(&mut c).expect("a message was posted");
            assert_eq!(tag, got);
            assert_eq!(bytes, body(got));
            got += 1;
        }
    }

    /// Which payloads change when they are given back: those whose lines their reader takes.
    #[cfg(not(loom))]
    #[test]
    fn lines_are_taken_or_left() {
        for (bytes, below, taken) in [
            (512, usize::MAX, false),
            (1 << 10, usize::MAX, true),
            (LEFT_BYTES, usize::MAX, true),
            (LEFT_BYTES, LEFT_BYTES, true),
            (LEFT_BYTES + 1, LEFT_BYTES, false),
        ] {
            let mut m = Memory::new(64, 64 << 10);
            // SAFETY: invariant 7: `m` outlives both ends.
            let mut p = unsafe { Producer::new(m.ring(), 0) };
            // SAFETY: invariant 7: `m` outlives both ends.
            let mut c = unsafe { Consumer::new(m.ring(), 0) };
            c.take_lines_below(below);
            assert!(put(&mut p, 7, &vec![9; bytes]));
            let Some(Found::Message { payload, .. }) = c.poll() else {
                panic!("a message was posted");
            };
            let _ = c.release();
            // SAFETY: invariant 8: inside the byte ring, which nobody writes.
            let byte = unsafe { payload.read() };
            assert_eq!(byte, if taken { 0 } else { 9 }, "{bytes} {below}");
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let mut m = Memory::new(8, 1024);
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        for _ in 0..4 {
            assert!(p.has_cells(2));
            assert!(p.post_short(1, 0, 7, 8));
            assert!(p.post_short(1, 0, 7, 8));
        }
        assert!(!p.post_short(1, 8, 7, 8));
        assert!(take(&mut c).is_some());
        let _ = c.rest();
        assert!(p.post_short(1, 8, 7, 8));
        for _ in 0..8 {
            assert!(take(&mut c).is_some());
        }
        assert!(take(&mut c).is_none());
        let _ = c.rest();
        assert!(p.drained());
        let big = [5; 256];
        let mut posted = 0;
        while put(&mut p, 0, &big) {
            posted += 1;
        }
        assert_eq!(posted, 4, "four payloads of a quarter fill the ring");
        assert!(take(&mut c).is_some());
        let _ = c.rest();
        assert!(put(&mut p, 0, &big));
    }

    #[cfg(not(loom))]
    #[test]
    fn payload_that_looks_like_a_flag_is_no_message() {
        let mut m = Memory::new(16, 1024);
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        // Every word of the payload is the flag of one of the next laps.
        for lap in 0..200u64 {
            let bytes: Vec<u8> = (0..40u64)
                .flat_map(|i| (lap + i % 4).to_le_bytes())
                .collect();
            for n in [8, 96, 60, 14, 15, 28, 1, 0] {
                assert!(put(&mut p, lap * 3, &bytes[..n]));
                assert_eq!(take(&mut c), Some((lap * 3, bytes[..n].to_vec())));
                assert!(take(&mut c).is_none());
                let _ = c.rest();
            }
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn malformed_cells_are_named() {
        let mut m = Memory::new(8, 1024);
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        for form in [9, 0x3f, 0x45, 0xff] {
            let word = p.word(1, form, 0);
            p.publish(word, 0, 1);
            assert!(matches!(c.poll(), Some(Found::Malformed)));
            let _ = c.release();
        }
        let word = p.word(1, LONG, 0);
        p.publish(word, 97 << 48, 1);
        assert!(matches!(c.poll(), Some(Found::Malformed)));
        let _ = c.release();
        p.cell(p.next + 1)
            .data
            .store(u64::MAX - 100, Ordering::Relaxed);
        let word = p.word(1, RING, 0);
        p.publish(word, 0, 2);
        assert!(matches!(c.poll(), Some(Found::Malformed)));
        let _ = c.release();
        let _ = c.rest();
        assert!(put(&mut p, 9, b"good"));
        assert_eq!(take(&mut c), Some((9, b"good".to_vec())));
    }

    #[cfg(loom)]
    #[test]
    fn loom_no_slot_is_lost_or_overwritten() {
        loom::model(|| {
            let mut m = Box::new(Memory::new(2, 256));
            let ring = m.ring();
            struct Give(Producer);
            // SAFETY: invariant 7: the model joins the thread before the memory goes.
            let mut give = Give(unsafe { Producer::new(ring, 0) });
            // SAFETY: invariant 7: `m` outlives both ends.
            let mut c = unsafe { Consumer::new(ring, 0) };
            let t = loom::thread::spawn(move || {
                for i in 0..4u64 {
                    while !put(&mut give.0, i, &i.to_le_bytes()) {
                        loom::thread::yield_now();
                    }
                }
            });
            for i in 0..4u64 {
                let got = loop {
                    if let Some(got) = take(&mut c) {
                        break got;
                    }
                    loom::thread::yield_now();
                };
                assert_eq!(got, (i, i.to_le_bytes().to_vec()));
            }
            t.join().expect("the producer ends");
            drop(m);
        });
    }
}
