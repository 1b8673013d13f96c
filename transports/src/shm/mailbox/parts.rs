//! Payloads of the area that are read while they are written.
//!
//! Such a payload is cut into parts. The first is there with the message in the line; each
//! other has a mark, a line of its own, which both directions use in turn, as they do the area:
//!
//! ```text
//! mark        number of the part, sealed    messages in parts so far, this one among them
//! ```
//!
//! The consumer copies what is there and awaits the rest for a while. If the rest does not
//! come, nothing has happened: [`Mailbox::poll`] finds the message once all of it is there.
//!
//! # Invariants
//! 1. A mark is stored with release behind its part, and loaded with acquire before the part
//!    is read. Both ends count the messages in parts, of either direction, so no mark of an
//!    earlier one is taken for that of the message at hand.
//!
//! # Sources
//! Pipelined copies in and out of shared memory: D. Buntinas, G. Mercier, W. Gropp,
//! "Implementation and Evaluation of Shared-Memory Communication and Synchronization
//! Operations in MPICH2 using the Nemesis Communication Subsystem", Parallel Computing 33(9),
//! 2007.

use super::{Head, IN_PARTS, Mail, Mailbox, first, is_order, seal};
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// Parts of a message at most.
pub(super) const MOST_PARTS: usize = 8;
/// Bytes of a part of a long message.
const LONG_PART_BYTES: usize = 8 << 10;
/// Messages up to this size have shorter parts,
const SHORT_BYTES: usize = 16 << 10;
/// of this size.
const SHORT_PART_BYTES: usize = 4 << 10;
/// The three of them, for the layout's test.
#[cfg(all(test, not(loom)))]
pub(crate) const LAYOUT: usize = LONG_PART_BYTES ^ SHORT_BYTES << 20 ^ SHORT_PART_BYTES << 40;
/// Loads of a mark before the consumer goes about something else.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 400 };

/// The mark of a part, on a line of its own.
#[repr(C, align(64))]
pub(super) struct Mark(AtomicU64);

impl Mark {
    #[cfg(test)]
    pub(super) fn new(number: usize) -> Self {
        Self(AtomicU64::new(mark(0, number)))
    }

    /// As of a part that has not been written.
    pub(super) fn clear(&self, number: usize) {
        self.0.store(mark(0, number), Ordering::Relaxed);
    }
}

/// What a mark holds.
fn mark(messages: u64, number: usize) -> u64 {
    seal::sealed(messages << 16, number as u64)
}

/// Bytes of a part of a message of `bytes` bytes.
#[inline]
fn part_bytes(bytes: usize) -> usize {
    match bytes <= SHORT_BYTES {
        true => SHORT_PART_BYTES,
        false => LONG_PART_BYTES,
    }
}

/// The bytes of a part.
#[inline]
fn part(number: usize, bytes: usize) -> Range<usize> {
    let start = number * part_bytes(bytes);
    start..(start + part_bytes(bytes)).min(bytes)
}

/// Parts of a message.
#[inline]
fn parts(bytes: usize) -> usize {
    bytes.div_ceil(part_bytes(bytes)).max(1)
}

/// How far a part is.
enum Written {
    Yes,
    NotYet,
    Malformed,
}

impl Mailbox {
    /// Whether the area is ours and takes a message of this size in parts.
    #[inline]
    pub fn has_area_for_parts(&self, bytes: usize) -> bool {
        self.has_area(bytes) && parts(bytes) <= MOST_PARTS
    }

    /// Posts a message in parts, which [`Mailbox::has_area_for_parts`] has admitted, to a free
    /// mailbox; `fill` writes a range of its bytes to an address.
    #[inline]
    pub fn post_parts(
        &mut self,
        position: u64,
        head: Head,
        bytes: usize,
        mut fill: impl FnMut(Range<usize>, *mut u8),
    ) {
        debug_assert!(self.has_area_for_parts(bytes));
        fill(part(0, bytes), self.area.0);
        self.turn = false;
        self.in_parts += 1;
        let half = self.half(self.side);
        half.payload[0].store(first(bytes as u64, head.2, 0), Ordering::Relaxed);
        self.publish(position, (head.0, head.1, head.2 as u32), IN_PARTS);
        for number in 1..parts(bytes) {
            let range = part(number, bytes);
            fill(range.clone(), self.area.0.wrapping_add(range.start));
            let written = mark(self.in_parts, number);
            self.mark(number).0.store(written, Ordering::Release);
        }
    }

    /// Whether the peer's line holds a message in parts.
    #[inline]
    pub fn shows_parts(&self) -> bool {
        let word = self.half(self.side ^ 1).word.load(Ordering::Relaxed);
        (word >> 24) as u8 == IN_PARTS
    }

    /// Takes the message in the line as [`Mailbox::take`] does, if it is one in parts; `copy`
    /// reads bytes from an address on to their place in the message.
    #[inline(never)]
    pub fn take_parts(
        &mut self,
        position: u64,
        (kind, argument): (u8, u32),
        room: usize,
        copy: &mut dyn FnMut(usize, *const u8, usize),
    ) -> Option<usize> {
        let half = self.half(self.side ^ 1);
        let word = half.word.load(Ordering::Acquire);
        let next = self.taken.wrapping_add(1);
        let wanted = u64::from(kind) << 16 | u64::from(IN_PARTS) << 24 | u64::from(argument) << 32;
        if word & !0xffff != wanted || !self.is_next(word) || self.given_up == Some(next) {
            return None;
        }
        let order = half.order.load(Ordering::Acquire);
        if order & 0xffff_0000_0000_ffff != position & 0xffff || !is_order(order) {
            return None;
        }
        let meta = half.payload[0].load(Ordering::Relaxed);
        let bytes = self.bytes_in_parts(meta, meta).filter(|n| *n <= room)?;
        for number in 0..parts(bytes) {
            if number > 0 && !self.await_part(number, next) {
                return None;
            }
            let range = part(number, bytes);
            copy(
                range.start,
                self.area.0.wrapping_add(range.start),
                range.len(),
            );
        }
        self.taken = next;
        self.old[0] = word;
        self.took_parts();
        self.look(order);
        Some(bytes)
    }

    /// The message in the line as [`Mailbox::poll`] tells of it; none as long as some of its
    /// parts are not written.
    pub(super) fn poll_parts(&self, head: Head, meta: u64) -> Option<Mail> {
        let Some(bytes) = self.bytes_in_parts(meta, head.2) else {
            return Some(Mail::Malformed);
        };
        for number in (1..parts(bytes)).rev() {
            match self.written(number) {
                Written::Yes => {}
                Written::NotYet => return None,
                Written::Malformed => return Some(Mail::Malformed),
            }
        }
        Some(Mail::Here {
            head,
            payload: self.area.0,
            bytes,
        })
    }

    /// The area is ours again.
    pub(super) fn took_parts(&mut self) {
        self.turn = true;
        self.in_parts += 1;
    }

    /// Bytes of the message in parts that the first word of the line's payload describes.
    fn bytes_in_parts(&self, meta: u64, argument: u64) -> Option<usize> {
        let bytes = meta & ((1 << super::BYTES_BITS) - 1);
        let sound = !self.turn
            && bytes <= self.area.1 as u64
            && parts(bytes as usize) <= MOST_PARTS
            && meta == first(bytes, argument, 0);
        sound.then_some(bytes as usize)
    }

    fn mark(&self, number: usize) -> &Mark {
        // SAFETY: invariant 7 of `mailbox`, by the contract of `new`.
        let cells = unsafe { &*self.cells };
        &cells.marks[number % MOST_PARTS]
    }

    /// How far a part of the message at hand is.
    #[inline]
    fn written(&self, number: usize) -> Written {
        let word = self.mark(number).0.load(Ordering::Acquire);
        let this = self.in_parts + 1;
        if word == mark(this, number) {
            return Written::Yes;
        }
        match seal::number(word) == number as u64 && word >> 16 < this {
            true => Written::NotYet,
            false => Written::Malformed,
        }
    }

    /// Whether a part comes while this end waits for it.
    #[inline]
    fn await_part(&mut self, number: usize, message: u16) -> bool {
        for _ in 0..PATIENCE {
            match self.written(number) {
                Written::Yes => return true,
                Written::NotYet => crate::sync::spin_loop(),
                Written::Malformed => return false,
            }
        }
        // Its copies would begin anew.
        self.given_up = Some(message);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cells, Line};
    use super::*;

    const KIND: u8 = 3;
    #[cfg(not(loom))]
    const AREA_BYTES: usize = MOST_PARTS * LONG_PART_BYTES;

    #[cfg(not(loom))]
    struct Shared {
        line: Line,
        cells: Cells,
        area: Vec<u64>,
    }

    #[cfg(not(loom))]
    impl Shared {
        fn new() -> Box<Self> {
            Box::new(Self {
                line: Line::new(),
                cells: Cells::new(),
                area: vec![0; AREA_BYTES / 8],
            })
        }

        fn ends(&mut self) -> [Mailbox; 2] {
            let area = (self.area.as_mut_ptr().cast(), AREA_BYTES);
            // SAFETY: invariant 7 of `mailbox`: the callers keep it while they use the ends.
            [0, 1].map(|side| unsafe { Mailbox::new(&self.line, &self.cells, area, side) })
        }
    }

    #[cfg(not(loom))]
    fn body(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes)
            .map(|i| (i * 31 + i / 251 + seed) as u8)
            .collect()
    }

    #[cfg(not(loom))]
    fn post(m: &mut Mailbox, argument: u32, bytes: &[u8], mut between: impl FnMut(usize)) {
        assert!(m.free() && m.has_area_for_parts(bytes.len()));
        let head = (KIND, 0, argument.into());
        m.post_parts(0, head, bytes.len(), |range, to| {
            between(range.start);
            let from = bytes[range.clone()].as_ptr();
            // SAFETY: invariant 8 of `mailbox`: room for the range.
            unsafe { std::ptr::copy_nonoverlapping(from, to, range.len()) }
        });
    }

    #[cfg(not(loom))]
    fn by_parts(m: &mut Mailbox, argument: u32, room: usize) -> Option<Vec<u8>> {
        let mut got = vec![0; room];
        let mut copy = |at: usize, from: *const u8, bytes: usize| {
            let to = got[at..at + bytes].as_mut_ptr();
            // SAFETY: invariant 8 of `mailbox` for what is read; `to` has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
        };
        let bytes = m.take_parts(0, (KIND, argument), room, &mut copy)?;
        got.truncate(bytes);
        Some(got)
    }

    #[cfg(not(loom))]
    fn polled(m: &mut Mailbox) -> Option<(u64, Vec<u8>)> {
        match m.poll(0)? {
            Mail::Here {
                head,
                payload,
                bytes,
            } => {
                let mut got = vec![0; bytes];
                // SAFETY: invariant 8 of `mailbox`: not released yet.
                unsafe { std::ptr::copy_nonoverlapping(payload, got.as_mut_ptr(), bytes) };
                m.release();
                Some((head.2, got))
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn messages_of_all_lengths_go_both_ways_and_are_taken_either_way() {
        let mut shared = Shared::new();
        let mut ends = shared.ends();
        let lengths = [1, 4096, 4097, 8192, 16_384, 16_385, 50_001, 65_536];
        for (round, &bytes) in lengths.iter().cycle().take(400).enumerate() {
            let [a, b] = &mut ends;
            let argument = (round % 3) as u32;
            let sent = body(bytes, round);
            // Whoever has read the last one writes the next.
            let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
            assert!(!to.has_area_for_parts(bytes), "the other's turn");
            assert!(!to.shows_parts() || by_parts(to, argument, bytes).is_none());
            post(from, argument, &sent, |_| {});
            assert!(!from.has_area_for_parts(bytes));
            assert!(to.shows_parts());
            assert!(by_parts(to, argument ^ 1, bytes).is_none(), "another one");
            assert!(by_parts(to, argument, bytes - 1).is_none(), "no room");
            match round % 5 {
                0 => assert_eq!(polled(to), Some((argument.into(), sent))),
                _ => assert_eq!(by_parts(to, argument, bytes), Some(sent)),
            }
            assert!(by_parts(to, argument, bytes).is_none(), "taken");
            assert!(polled(to).is_none(), "taken");
        }
        assert!(!ends[0].has_area_for_parts(AREA_BYTES + 1));
    }

    #[cfg(not(loom))]
    #[test]
    fn what_is_not_written_yet_is_no_message_and_stays_whole() {
        let mut shared = Shared::new();
        let [mut a, mut b] = shared.ends();
        for round in 0..3 {
            let sent = body(4 * LONG_PART_BYTES, round);
            let mut looks = 0;
            post(&mut a, 7, &sent, |start| {
                if start > 0 {
                    assert!(by_parts(&mut b, 7, sent.len()).is_none());
                    assert!(b.given_up.is_some());
                    assert!(polled(&mut b).is_none());
                    looks += 1;
                }
            });
            assert_eq!(looks, 3);
            assert!(by_parts(&mut b, 7, sent.len()).is_none(), "left to poll");
            assert_eq!(polled(&mut b), Some((7, sent)));
            let answer = body(2 * LONG_PART_BYTES, round);
            post(&mut b, 8, &answer, |_| {});
            assert_eq!(by_parts(&mut a, 8, answer.len()), Some(answer));
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn overwritten_marks_and_lengths_are_malformed() {
        for at in 1..4 {
            let mut shared = Shared::new();
            let [mut a, mut b] = shared.ends();
            post(&mut a, 7, &body(4 * LONG_PART_BYTES, 0), |_| {});
            a.mark(at).0.store(u64::MAX - 9, Ordering::Relaxed);
            assert!(by_parts(&mut b, 7, AREA_BYTES).is_none());
            assert!(matches!(b.poll(0), Some(Mail::Malformed)), "mark {at}");
        }
        let mut shared = Shared::new();
        let [mut a, mut b] = shared.ends();
        post(&mut a, 7, &body(LONG_PART_BYTES, 0), |_| {});
        let longer = first(AREA_BYTES as u64, 7, 1);
        a.half(0).payload[0].store(longer, Ordering::Relaxed);
        assert!(by_parts(&mut b, 7, AREA_BYTES).is_none());
        assert!(matches!(b.poll(0), Some(Mail::Malformed)));
    }

    /// Question and answer use area and marks in turn: no part is read before it is written,
    /// also behind marks of the message before. A word of the model stands for each part.
    #[cfg(loom)]
    #[test]
    fn loom_parts_are_read_behind_their_marks() {
        use loom::sync::Arc;
        const BYTES: usize = SHORT_PART_BYTES + 8;
        type Words = [AtomicU64; 2];
        fn put(m: &mut Mailbox, words: &Words, number: u64) {
            m.post_parts(0, (KIND, 0, 7), BYTES, |range, _| {
                words[range.start / SHORT_PART_BYTES].store(number, Ordering::Relaxed);
            });
        }
        fn take(m: &mut Mailbox, words: &Words, number: u64) {
            let check = |word: &AtomicU64| {
                assert_eq!(word.load(Ordering::Relaxed), number, "torn");
            };
            let mut copy = |at: usize, _: *const u8, _: usize| check(&words[at / SHORT_PART_BYTES]);
            while m.take_parts(0, (KIND, 7), BYTES, &mut copy).is_none() {
                if m.poll(0).is_some() {
                    words.iter().for_each(check);
                    return m.release();
                }
                loom::thread::yield_now();
            }
        }
        loom::model(|| {
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            let shared = Arc::new((Line::new(), Cells::new(), words));
            // Nobody reads it.
            let area = (std::ptr::dangling_mut(), BYTES);
            // SAFETY: invariant 7 of `mailbox`: the model joins the thread before it goes.
            let mut a = unsafe { Mailbox::new(&shared.0, &shared.1, area, 0) };
            // SAFETY: invariant 7 of `mailbox`: as for the other end.
            let mut b = unsafe { Mailbox::new(&shared.0, &shared.1, area, 1) };
            let theirs = shared.clone();
            let other = loom::thread::spawn(move || {
                put(&mut a, &theirs.2, 100);
                take(&mut a, &theirs.2, 200);
            });
            take(&mut b, &shared.2, 100);
            put(&mut b, &shared.2, 200);
            other.join().expect("it ends");
        });
    }
}
