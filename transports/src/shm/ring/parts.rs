//! Messages whose payload is read while it is written.
//!
//! A payload is cut into parts, each published by a cell of its own, so that the consumer
//! copies one while the producer writes the next:
//!
//! ```text
//! parts       lap  kind 0x44  argument   upper half, aux, 0            once part 0 is written
//!             lap  check     bytes u32   position u64
//!             lap  number of the part    check of the position         for each part behind
//! ```
//!
//! [`Consumer::take_parts`] copies what is there and awaits the rest for a while. If the rest
//! does not come, nothing has happened: the payload stays as it is until all of it is there,
//! and [`Consumer::poll`] finds it then, as any other.
//!
//! # Invariants
//! 1. A part's cell is stored with release behind the part, and loaded with acquire before the
//!    part is read (invariant 3 of `ring`, for each part).
//! 2. What the consumer writes to the lines of a part before all are there are the bytes that
//!    they hold.
//!
//! # Sources
//! Pipelined copies in and out of shared memory: D. Buntinas, G. Mercier, W. Gropp,
//! "Implementation and Evaluation of Shared-Memory Communication and Synchronization
//! Operations in MPICH2 using the Nemesis Communication Subsystem", Parallel Computing 33(9),
//! 2007.

use super::whole::Seen;
use super::{Consumer, Found, Head, PARTS, PAYLOAD_ALIGN, Producer, SHORT_BYTES, ring_check, seal};
use crate::sync::Ordering;
use std::ops::Range;

/// Bytes of a part.
pub(crate) const PART_BYTES: usize = 8 << 10;
/// Loads of a part's cell before its consumer goes about something else.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 400 };

/// Cells of a message of `bytes` bytes.
fn cells(bytes: usize) -> u64 {
    1 + bytes.div_ceil(PART_BYTES).max(1) as u64
}

/// The bytes of a part.
fn part(number: usize, bytes: usize) -> Range<usize> {
    let start = number * PART_BYTES;
    start..(start + PART_BYTES).min(bytes)
}

/// What a part's cell holds behind its number.
fn mark(number: usize, position: u64) -> (u64, u64) {
    ((number as u64) << 16, seal::check(position))
}

impl Producer {
    /// Whether a message in parts has credit. None has where payloads carry check bits, which
    /// are known at their end.
    #[inline]
    pub fn has_room_for_parts(&mut self, bytes: usize) -> bool {
        !self.payloads && self.has_cells(cells(bytes)) && self.has_payload_room(bytes)
    }

    /// Posts a message for which [`Producer::has_room_for_parts`] has just said yes; `fill`
    /// writes a range of its bytes to an address.
    #[inline]
    pub fn post_parts(
        &mut self,
        head: Head,
        bytes: usize,
        mut fill: impl FnMut(Range<usize>, *mut u8),
    ) {
        let mut to = std::ptr::null_mut::<u8>();
        let at = self.write_payload(bytes, |payload| {
            to = payload;
            fill(part(0, bytes), payload);
        });
        let data = head.2 >> 32 | u64::from(head.1) << 32;
        let second = self.cell(self.next + 1);
        second.data.store(at, Ordering::Relaxed);
        let upper = (bytes as u64) << 32 | ring_check(data, at, None) << 16;
        let word = seal::sealed(upper, self.memory.lap(self.next + 1));
        second.word.store(word, Ordering::Relaxed);
        let word = self.word(head.0, PARTS, head.2 as u32);
        let first = self.next;
        self.publish(word, data, cells(bytes));
        for (number, cell) in (1..bytes.div_ceil(PART_BYTES)).zip(first + 2..) {
            let range = part(number, bytes);
            fill(range.clone(), to.wrapping_add(range.start));
            let (upper, mark) = mark(number, at);
            let word = seal::sealed(upper, self.memory.lap(cell));
            let cell = self.cell(cell);
            cell.data.store(mark, Ordering::Relaxed);
            cell.word.store(word, Ordering::Release);
        }
    }
}

/// How far a part is.
enum Written {
    Yes,
    NotYet,
    Malformed,
}

impl Consumer {
    /// How far a part of the message at the next cell is, whose payload lies there.
    #[inline]
    fn written(&self, number: usize, position: u64) -> Written {
        let at = self.next + 1 + number as u64;
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(at) };
        let word = cell.word.load(Ordering::Acquire);
        let (upper, mark) = mark(number, position);
        if word == seal::sealed(upper, self.memory.lap(at))
            && cell.data.load(Ordering::Relaxed) == mark
        {
            return Written::Yes;
        }
        match self.memory.is_old(at, word) {
            true => Written::NotYet,
            false => Written::Malformed,
        }
    }

    /// The same of the part and of all before it.
    fn all_written(&self, parts: usize, position: u64) -> Written {
        for number in (1..parts).rev() {
            match self.written(number, position) {
                Written::Yes => {}
                other => return other,
            }
        }
        Written::Yes
    }

    /// Position, bytes and place of the payload of a message in parts at the next cell, whose
    /// first word and data are these.
    #[inline]
    fn parts_of(&mut self, word: u64, data: u64) -> Option<(u64, usize, *const u8)> {
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let second = unsafe { self.memory.cell(self.next + 1) };
        let position = second.data.load(Ordering::Relaxed);
        let second = second.word.load(Ordering::Relaxed);
        let bytes = second >> 32;
        let payload = self.payload(position, bytes)?;
        let sound = seal::number(second) == self.memory.lap(self.next + 1)
            && second >> 16 & 0xffff == ring_check(data, position, None)
            && word >> 24 & 0xff == u64::from(PARTS);
        sound.then_some((position, bytes as usize, payload))
    }

    /// A message in parts; none as long as some are not written.
    pub(super) fn open_parts(&mut self, word: u64, data: u64, head: Head) -> Option<Found> {
        self.end = self.next + 2;
        let Some((position, bytes, payload)) = self.parts_of(word, data) else {
            return Some(Found::Malformed);
        };
        self.end = self.next + cells(bytes);
        match self.all_written(bytes.div_ceil(PART_BYTES), position) {
            Written::Yes => Some(Found::Message {
                head,
                payload,
                bytes,
            }),
            Written::NotYet => None,
            Written::Malformed => Some(Found::Malformed),
        }
    }

    /// Takes a message in parts that [`Consumer::peek_long`] has just seen, as
    /// [`Consumer::take_long`] takes others. Called from there, streams of 16 KiB ran at
    /// 16,500 MB/s, not 22,000.
    #[inline(never)]
    pub fn take_parts(
        &mut self,
        Seen(word): Seen,
        room: usize,
        copy: &mut dyn FnMut(usize, *const u8, usize),
    ) -> Option<(usize, bool)> {
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let data = cell.data.load(Ordering::Relaxed);
        if data != 0 || self.given_up == Some(self.next) {
            return None;
        }
        let (position, bytes, payload) = self.parts_of(word, data)?;
        if bytes > room {
            return None;
        }
        for number in 0..bytes.div_ceil(PART_BYTES) {
            if number > 0 && !self.await_part(number, position) {
                return None;
            }
            let range = part(number, bytes);
            let from = payload.wrapping_add(range.start);
            copy(range.start, from, range.len());
            if range.len() < self.taken_below {
                self.keep_lines(from.cast_mut(), range.len());
            }
        }
        self.next += cells(bytes);
        self.payload_begin = self.payload_end;
        Some((bytes, self.release_payload()))
    }

    /// Whether a part comes while this consumer waits for it.
    #[inline]
    fn await_part(&mut self, number: usize, position: u64) -> bool {
        for _ in 0..PATIENCE {
            match self.written(number, position) {
                Written::Yes => return true,
                Written::NotYet => crate::sync::spin_loop(),
                Written::Malformed => return false,
            }
        }
        // Its copies would begin anew.
        self.given_up = Some(self.next);
        false
    }

    /// Takes the lines of a part from the producer's cache (invariant 2).
    #[inline]
    fn keep_lines(&self, from: *mut u8, bytes: usize) {
        for line in (0..bytes).step_by(PAYLOAD_ALIGN as usize) {
            let at = from.wrapping_add(line);
            // SAFETY: invariant 8 of `ring`: inside the byte ring.
            let byte = unsafe { at.read_volatile() };
            // SAFETY: invariants 6 and 8 of `ring`: inside the byte ring, ours until reported.
            unsafe { at.write_volatile(byte) };
        }
    }
}

const _: () = assert!(SHORT_BYTES < PARTS as usize);

#[cfg(test)]
mod tests {
    use super::super::tests::Memory;
    use super::*;

    const KIND: u8 = 3;
    const ARGUMENT: u32 = 0x1234_5678;
    const HEAD: Head = (KIND, 0, ARGUMENT as u64);

    fn body(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes)
            .map(|i| (i * 31 + i / 251 + seed) as u8)
            .collect()
    }

    fn post(p: &mut Producer, head: Head, bytes: &[u8], mut between: impl FnMut(usize)) -> bool {
        if !p.has_room_for_parts(bytes.len()) {
            return false;
        }
        p.post_parts(head, bytes.len(), |range, to| {
            between(range.start);
            let from = bytes[range.clone()].as_ptr();
            // SAFETY: invariant 4 of `ring`: room for the range.
            unsafe { std::ptr::copy_nonoverlapping(from, to, range.len()) }
        });
        true
    }

    fn by_parts(
        c: &mut Consumer,
        argument: u32,
        room: usize,
        copy: &mut dyn FnMut(usize, *const u8, usize),
    ) -> Option<(usize, bool)> {
        let seen = c.peek_long(KIND, argument)?;
        c.take_parts(seen, room, copy)
    }

    /// Takes a message while it is written, or whole where that is not possible; true, if it
    /// was taken by parts.
    fn take(c: &mut Consumer, room: usize) -> Option<(Vec<u8>, bool)> {
        let mut got = vec![0; room];
        let mut copy = |at: usize, from: *const u8, bytes: usize| {
            let to = got[at..at + bytes].as_mut_ptr();
            // SAFETY: invariant 8 of `ring` for what is read; `to` has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
        };
        if let Some((bytes, _)) = by_parts(c, ARGUMENT, room, &mut copy) {
            got.truncate(bytes);
            return Some((got, true));
        }
        match c.poll()? {
            Found::Message { payload, bytes, .. } => {
                let mut got = vec![0; bytes];
                // SAFETY: invariant 8 of `ring`: the message is in hand.
                unsafe { std::ptr::copy_nonoverlapping(payload, got.as_mut_ptr(), bytes) };
                let _ = c.release();
                Some((got, false))
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn messages_of_all_lengths_are_taken_either_way() {
        let mut m = Memory::new(64, 256 << 10);
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        let lengths = [1, 4095, 4096, 4097, 8192, 20_000, 65_535, 65_536];
        for (round, &bytes) in lengths.iter().cycle().take(200).enumerate() {
            let sent = body(bytes, round);
            assert!(post(&mut p, HEAD, &sent, |_| {}));
            // Another argument, and less room, are for `poll`.
            let other = |_: usize, _: *const u8, _: usize| panic!("another message");
            assert!(by_parts(&mut c, ARGUMENT ^ 1, bytes, &mut { other }).is_none());
            assert!(by_parts(&mut c, ARGUMENT, bytes - 1, &mut { other }).is_none());
            let room = if round % 3 == 0 { 0 } else { bytes };
            assert_eq!(take(&mut c, room), Some((sent, room > 0)), "{bytes} bytes");
            assert!(take(&mut c, bytes).is_none());
            assert!(
                c.peek_long(KIND, ARGUMENT).is_none(),
                "of the lap before at most"
            );
            let _ = c.rest();
        }
        assert!(
            !p.has_room_for_parts((64 << 10) + 1),
            "a quarter of the ring"
        );
        p.check_payloads(true);
        assert!(!p.has_room_for_parts(8192), "check bits stand in front");
    }

    #[cfg(not(loom))]
    #[test]
    fn what_is_not_written_yet_is_no_message_and_stays_whole() {
        let mut m = Memory::new(64, 256 << 10);
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        let sent = body(4 * PART_BYTES, 7);
        let mut looks = 0;
        // The consumer looks before each part but the first is written, and waits once.
        assert!(post(&mut p, HEAD, &sent, |start| {
            if start > 0 {
                assert!(take(&mut c, sent.len()).is_none());
                assert!(c.given_up.is_some());
                looks += 1;
            }
        }));
        assert_eq!(looks, 3);
        // Of what it has copied meanwhile it has changed nothing.
        assert_eq!(take(&mut c, sent.len()), Some((sent.clone(), false)));
        assert!(post(&mut p, HEAD, &sent, |_| {}));
        assert_eq!(take(&mut c, sent.len()), Some((sent, true)), "the next one");
    }

    #[cfg(not(loom))]
    #[test]
    fn overwritten_cells_are_malformed() {
        for cell in 1..4 {
            let mut m = Memory::new(64, 256 << 10);
            // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
            let mut p = unsafe { Producer::new(m.ring(), 0) };
            // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
            let mut c = unsafe { Consumer::new(m.ring(), 0) };
            assert!(post(&mut p, HEAD, &body(3 * PART_BYTES, 0), |_| {}));
            p.cell(cell).word.store(u64::MAX - 9, Ordering::Relaxed);
            let mut copy = |_: usize, _: *const u8, _: usize| {};
            assert!(by_parts(&mut c, ARGUMENT, 1 << 20, &mut copy).is_none());
            assert!(matches!(c.poll(), Some(Found::Malformed)), "cell {cell}");
        }
    }

    #[cfg(loom)]
    #[test]
    fn loom_parts_are_read_behind_their_cells() {
        loom::model(|| {
            let mut m = Box::new(Memory::new(4, 64 << 10));
            let ring = m.ring();
            struct Give(Producer);
            // SAFETY: invariant 7 of `ring`: the model joins the thread before the memory goes.
            let mut give = Give(unsafe { Producer::new(ring, 0) });
            // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
            let mut c = unsafe { Consumer::new(m.ring(), 0) };
            let sent = body(PART_BYTES + 8, 1);
            let expected = sent.clone();
            let t = loom::thread::spawn(move || assert!(post(&mut give.0, HEAD, &sent, |_| {})));
            let got = loop {
                if let Some((got, _)) = take(&mut c, PART_BYTES + 8) {
                    break got;
                }
                loom::thread::yield_now();
            };
            assert_eq!(got, expected);
            t.join().expect("the producer ends");
            drop(m);
        });
    }
}
