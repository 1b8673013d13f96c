//! A one-way ring of single-line slots with a byte ring for larger payloads.
//!
//! One producer (a rank's lane) and one consumer (the same lane of a peer).
//! The smallest messages take one cache line, which carries flag, header and
//! payload together, so that one line crosses between the caches:
//!
//! ```text
//! byte 0        4      5     6      8        16                       64
//!      sequence kind   len   aux    arg      payload (len <= 48)
//!                      0xff                  position u64, bytes u32: payload ring
//!                      0xfe                  offset of the next ring's block
//! ```
//!
//! # Invariants
//! 1. Slot `i` of lap `l` is free exactly if the consumer has reported at
//!    least `i + (l - 1) * lines` consumed slots. The producer writes a slot
//!    only when it is free.
//! 2. The word that holds the sequence number is stored last, with release,
//!    and loaded first, with acquire: whoever sees the number sees the slot
//!    and its payload. Numbers repeat after 2^32 messages, laps long after
//!    `lines` of them, so an old slot never looks new.
//! 3. Payload positions grow for ever; position `p` lies at `p mod capacity`.
//!    A payload never wraps: what is left at the end is skipped.
//! 4. The consumer reports at the latest when an eighth of either ring is
//!    unreported, and a payload is at most a quarter of its ring, so a
//!    producer that waits is never forgotten.
//! 5. Only the producer writes slots and payload; only the consumer writes
//!    [`Control`]. A producer that dies leaves at most one unpublished slot
//!    in its own ring, which stalls nobody else.
//!
//! # Sources
//! Single-line slots with an in-band flag: the fast boxes of D. Buntinas,
//! G. Mercier, W. Gropp, "Design and Evaluation of Nemesis, a Scalable,
//! Low-Latency, Message-Passing Communication Subsystem", CCGrid 2006. Here
//! the flag is a sequence number, so that the consumer never writes a slot,
//! and credits return in batches on a line of their own.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::cell::UnsafeCell;

/// Payload bytes of a slot.
pub(crate) const INLINE_BYTES: usize = 48;
const LEN_RING: u8 = 0xff;
const LEN_SWITCH: u8 = 0xfe;
/// Payloads start on cache lines.
const PAYLOAD_ALIGN: u64 = 64;

/// One cache line of the ring.
#[repr(C, align(64))]
pub(crate) struct Line {
    word: AtomicU64,
    arg: AtomicU64,
    payload: UnsafeCell<[u8; INLINE_BYTES]>,
}

/// What the consumer tells the producer.
#[repr(C, align(64))]
pub(crate) struct Control {
    lines: AtomicU64,
    payload: AtomicU64,
    closed: AtomicU32,
}

#[cfg(test)]
impl Line {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            arg: AtomicU64::new(0),
            payload: UnsafeCell::new([0; INLINE_BYTES]),
        }
    }
}

#[cfg(test)]
impl Control {
    fn new() -> Self {
        Self {
            lines: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            closed: AtomicU32::new(0),
        }
    }
}

/// Where a ring lies. Both capacities are powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    pub control: *const Control,
    pub lines: *const Line,
    pub line_count: u64,
    pub payload: *mut u8,
    pub payload_bytes: u64,
}

// SAFETY: addresses in shared memory, tied to no thread; who may touch what is
// the business of the two ends.
unsafe impl Send for RingMemory {}

/// Kind, small argument and argument of a message.
pub(crate) type Head = (u8, u16, u64);

/// What the consumer found in a slot.
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
    /// A slot that no correct producer writes; skipped by `release`.
    Malformed,
}

/// The producer's end.
pub(crate) struct Producer {
    memory: RingMemory,
    next: u64,
    /// Slots that are known to be free end here.
    limit: u64,
    payload_next: u64,
    payload_seen: u64,
}

// SAFETY: a producer is an exclusive right to one end of a ring in memory that
// outlives it; nothing in it is tied to a thread.
unsafe impl Send for Producer {}

impl Producer {
    /// # Safety
    /// The memory stays valid as long as the producer, is zeroed, and there
    /// is one producer only.
    pub unsafe fn new(memory: RingMemory) -> Self {
        debug_assert!(memory.line_count.is_power_of_two());
        debug_assert!(memory.payload_bytes.is_power_of_two());
        Self {
            memory,
            next: 0,
            limit: memory.line_count,
            payload_next: 0,
            payload_seen: 0,
        }
    }

    /// Largest payload that this ring takes.
    #[inline]
    pub fn max_payload(&self) -> usize {
        ((self.memory.payload_bytes / 4) as usize).max(INLINE_BYTES)
    }

    /// Messages posted so far.
    pub fn posted(&self) -> u64 {
        self.next
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: valid by the contract of `new`; only atomics are inside.
        unsafe { &*self.memory.control }
    }

    #[inline]
    fn line(&self, at: u64) -> &Line {
        // SAFETY: masked, so inside the ring.
        let line = unsafe {
            self.memory
                .lines
                .add((at & (self.memory.line_count - 1)) as usize)
        };
        // SAFETY: valid by the contract of `new`; atomics and a cell inside.
        unsafe { &*line }
    }

    /// Whether the consumer has gone.
    pub fn closed(&self) -> bool {
        self.control().closed.load(Ordering::Acquire) != 0
    }

    /// Whether everything posted has been consumed, as far as reported.
    #[cfg(test)]
    fn drained(&self) -> bool {
        self.control().lines.load(Ordering::Acquire) == self.next
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_slot(&mut self) -> bool {
        if self.next < self.limit {
            return true;
        }
        self.refresh();
        self.next < self.limit
    }

    #[cold]
    fn refresh(&mut self) {
        // Acquire: the consumer's reads of a slot end before we write it.
        let consumed = self.control().lines.load(Ordering::Acquire).min(self.next);
        self.limit = self.limit.max(consumed + self.memory.line_count);
    }

    #[inline]
    fn publish(&mut self, head: Head, len: u8) {
        let line = self.line(self.next);
        line.arg.store(head.2, Ordering::Relaxed);
        let sequence = (self.next as u32).wrapping_add(1);
        let word = u64::from(sequence)
            | u64::from(head.0) << 32
            | u64::from(len) << 40
            | u64::from(head.1) << 48;
        line.word.store(word, Ordering::Release);
        self.next += 1;
    }

    /// Posts a message of at most [`INLINE_BYTES`]; a slot must be free.
    #[inline]
    pub fn post_inline(&mut self, head: Head, bytes: usize, fill: impl FnOnce(*mut u8)) {
        debug_assert!(bytes <= INLINE_BYTES && self.next < self.limit);
        fill(self.line(self.next).payload.get().cast());
        self.publish(head, bytes as u8);
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

    /// Whether a message of `bytes` bytes has credit.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.has_slot() && (bytes <= INLINE_BYTES || self.place(bytes).is_some())
    }

    /// Posts a message of at most [`Producer::max_payload`] bytes; false
    /// without a credit, and `fill` is not called then.
    pub fn post_ring(&mut self, head: Head, bytes: usize, fill: impl FnOnce(*mut u8)) -> bool {
        debug_assert!(bytes <= self.max_payload());
        if !self.has_slot() {
            return false;
        }
        let Some(at) = self.place(bytes) else {
            return false;
        };
        let capacity = self.memory.payload_bytes;
        let need = (bytes as u64).next_multiple_of(PAYLOAD_ALIGN);
        // SAFETY: masked, and `need` bytes from there fit by the skip above.
        fill(unsafe { self.memory.payload.add((at & (capacity - 1)) as usize) });
        self.payload_next = at + need;
        let to: *mut u8 = self.line(self.next).payload.get().cast();
        let position = at.to_le_bytes();
        let size = (bytes as u32).to_le_bytes();
        // SAFETY: the slot is free (invariant 1) and has 48 bytes.
        unsafe { std::ptr::copy_nonoverlapping(position.as_ptr(), to, 8) };
        // SAFETY: 8 is inside the slot's payload.
        let to = unsafe { to.add(8) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(size.as_ptr(), to, 4) };
        self.publish(head, LEN_RING);
        true
    }

    /// Tells the consumer to go on in another ring; false without a credit.
    pub fn post_switch(&mut self, block: u64) -> bool {
        if !self.has_slot() {
            return false;
        }
        let to: *mut u8 = self.line(self.next).payload.get().cast();
        // SAFETY: the slot is free (invariant 1) and has 48 bytes.
        unsafe { std::ptr::copy_nonoverlapping(block.to_le_bytes().as_ptr(), to, 8) };
        self.publish((0, 0, 0), LEN_SWITCH);
        true
    }
}

/// The consumer's end.
pub(crate) struct Consumer {
    memory: RingMemory,
    next: u64,
    reported: u64,
    payload_done: u64,
    payload_reported: u64,
    /// Where the payload of the message in hand ends.
    payload_end: u64,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// # Safety
    /// The memory stays mapped as long as the consumer, and there is one
    /// consumer only. Its content is not trusted.
    pub unsafe fn new(memory: RingMemory) -> Self {
        Self {
            memory,
            next: 0,
            reported: 0,
            payload_done: 0,
            payload_reported: 0,
            payload_end: 0,
        }
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: valid by the contract of `new`; only atomics are inside.
        unsafe { &*self.memory.control }
    }

    /// Asks once. A message found must be released before the next call.
    #[inline]
    pub fn poll(&mut self) -> Option<Found> {
        let at = (self.next & (self.memory.line_count - 1)) as usize;
        // SAFETY: masked, so inside the ring.
        let line = unsafe { self.memory.lines.add(at) };
        // SAFETY: valid by the contract of `new`; atomics and a cell inside.
        let line = unsafe { &*line };
        let word = line.word.load(Ordering::Acquire);
        if word as u32 != (self.next as u32).wrapping_add(1) {
            return None;
        }
        let head = (
            (word >> 32) as u8,
            (word >> 48) as u16,
            line.arg.load(Ordering::Relaxed),
        );
        let len = (word >> 40) as u8;
        let payload: *const u8 = line.payload.get().cast();
        if len as usize <= INLINE_BYTES {
            return Some(Found::Message {
                head,
                payload,
                bytes: len as usize,
            });
        }
        Some(self.open_large(head, len, payload))
    }

    fn open_large(&mut self, head: Head, len: u8, payload: *const u8) -> Found {
        let mut bytes = [0; 12];
        // SAFETY: the slot has 48 bytes of payload.
        unsafe { std::ptr::copy_nonoverlapping(payload, bytes.as_mut_ptr(), 12) };
        let position = u64::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]);
        if len == LEN_SWITCH {
            return Found::Switch(position);
        }
        let size = u64::from(u32::from_le_bytes([
            bytes[8], bytes[9], bytes[10], bytes[11],
        ]));
        let capacity = self.memory.payload_bytes;
        let in_ring = position & (capacity - 1);
        let end = position.saturating_add(size.next_multiple_of(PAYLOAD_ALIGN));
        let sound = len == LEN_RING
            && position >= self.payload_done
            && end - self.payload_done.min(end) <= 2 * capacity
            && in_ring + size <= capacity;
        if !sound {
            return Found::Malformed;
        }
        self.payload_end = end;
        Found::Message {
            head,
            // SAFETY: checked to lie inside the payload ring.
            payload: unsafe { self.memory.payload.add(in_ring as usize) },
            bytes: size as usize,
        }
    }

    /// Gives back the slot found last.
    #[inline]
    pub fn release(&mut self) {
        self.next += 1;
        self.payload_done = self.payload_done.max(self.payload_end);
        if self.next - self.reported >= self.memory.line_count / 8
            || self.payload_done - self.payload_reported >= self.memory.payload_bytes / 8
        {
            self.report();
        }
    }

    #[cold]
    fn report(&mut self) {
        // Release: our reads of the slots end before the producer writes them.
        let control = self.control();
        control.payload.store(self.payload_done, Ordering::Release);
        control.lines.store(self.next, Ordering::Release);
        self.reported = self.next;
        self.payload_reported = self.payload_done;
    }

    /// Tells the producer that nobody will read any more.
    pub fn close(&mut self) {
        self.report();
        self.control().closed.store(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory {
        control: Box<Control>,
        lines: Box<[Line]>,
        payload: Box<[u8]>,
    }

    impl Memory {
        fn new(lines: usize, payload: usize) -> Self {
            Self {
                control: Box::new(Control::new()),
                lines: (0..lines).map(|_| Line::new()).collect(),
                payload: vec![0; payload].into_boxed_slice(),
            }
        }

        fn ring(&mut self) -> RingMemory {
            RingMemory {
                control: &raw const *self.control,
                lines: self.lines.as_ptr(),
                line_count: self.lines.len() as u64,
                payload: self.payload.as_mut_ptr(),
                payload_bytes: self.payload.len() as u64,
            }
        }
    }

    fn put(p: &mut Producer, tag: u64, bytes: &[u8]) -> bool {
        let fill = |to: *mut u8| {
            // SAFETY: the ring hands out room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        };
        if bytes.len() <= INLINE_BYTES {
            let free = p.has_slot();
            if free {
                p.post_inline((1, 2, tag), bytes.len(), fill);
            }
            free
        } else {
            p.post_ring((1, 2, tag), bytes.len(), fill)
        }
    }

    fn take(c: &mut Consumer) -> Option<(u64, Vec<u8>)> {
        match c.poll()? {
            Found::Message {
                head,
                payload,
                bytes,
            } => {
                let mut v = vec![0; bytes];
                // SAFETY: the message is in hand.
                unsafe { std::ptr::copy_nonoverlapping(payload, v.as_mut_ptr(), bytes) };
                c.release();
                Some((head.2, v))
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn messages_of_all_sizes_arrive_in_order() {
        let mut m = Memory::new(8, 1024);
        // SAFETY: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring()) };
        // SAFETY: as above.
        let mut c = unsafe { Consumer::new(m.ring()) };
        let body = |n: u64| -> Vec<u8> {
            let bytes = (n * 37 % 257) as usize;
            (0..bytes).map(|i| (i as u64 * 7 + n) as u8).collect()
        };
        let (mut sent, mut got) = (0, 0);
        while got < 2000 {
            while sent < got + 1 + sent % 9 && put(&mut p, sent, &body(sent)) {
                sent += 1;
            }
            let (tag, bytes) = take(&mut c).expect("a message was posted");
            assert_eq!(tag, got);
            assert_eq!(bytes, body(got));
            got += 1;
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let mut m = Memory::new(8, 1024);
        // SAFETY: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring()) };
        // SAFETY: as above.
        let mut c = unsafe { Consumer::new(m.ring()) };
        for i in 0..8 {
            assert!(put(&mut p, i, b"x"));
        }
        assert!(!put(&mut p, 8, b"x"));
        assert!(take(&mut c).is_some());
        assert!(put(&mut p, 8, b"x"));
        for _ in 0..8 {
            assert!(take(&mut c).is_some());
        }
        assert!(take(&mut c).is_none());
        assert!(p.drained());
        let big = [5; 256];
        let mut posted = 0;
        while put(&mut p, 0, &big) {
            posted += 1;
        }
        assert_eq!(posted, 4, "four payloads of a quarter fill the ring");
        assert!(take(&mut c).is_some());
        assert!(put(&mut p, 0, &big));
    }

    #[cfg(not(loom))]
    #[test]
    fn malformed_slots_are_named() {
        let mut m = Memory::new(8, 1024);
        // SAFETY: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring()) };
        // SAFETY: as above.
        let mut c = unsafe { Consumer::new(m.ring()) };
        assert!(p.has_slot());
        p.publish((0, 0, 0), 60);
        assert!(matches!(c.poll(), Some(Found::Malformed)));
        c.release();
        let wrong = u64::MAX.to_le_bytes();
        let to: *mut u8 = p.line(p.next).payload.get().cast();
        // SAFETY: a free slot.
        unsafe { std::ptr::copy_nonoverlapping(wrong.as_ptr(), to, 8) };
        p.publish((0, 0, 0), LEN_RING);
        assert!(matches!(c.poll(), Some(Found::Malformed)));
        c.release();
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
            // SAFETY: the model joins the thread before the memory goes.
            let mut give = Give(unsafe { Producer::new(ring) });
            // SAFETY: as above.
            let mut c = unsafe { Consumer::new(ring) };
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
