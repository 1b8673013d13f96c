//! Messages of several cells, or with a payload in the byte ring, for who waits for just this
//! message.

use super::{Consumer, Found, LONG, PARTS, RING, seal};
use crate::sync::Ordering;

/// First word of the message in the next cell, as it was seen there.
#[derive(Clone, Copy)]
pub(crate) struct Seen(pub(super) u64);

impl Seen {
    /// Whether it comes part by part ([`Consumer::take_parts`]).
    #[inline(always)]
    pub fn is_in_parts(self) -> bool {
        (self.0 >> 24) as u8 == PARTS
    }
}

impl Consumer {
    /// The message in the next cell, if it has more than that cell and is of this kind and
    /// argument. Of this lap, and with acquire: what was posted before it is seen after this.
    #[inline(always)]
    pub fn peek_long(&self, kind: u8, argument: u32) -> Option<Seen> {
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let word = cell.word.load(Ordering::Acquire);
        let wanted = u64::from(kind) << 16 | u64::from(argument) << 32;
        let is_wanted = word & !0xff00_ffff == wanted
            && matches!((word >> 24) as u8, LONG | RING | PARTS)
            && seal::number(word) == self.memory.lap(self.next);
        is_wanted.then_some(Seen(word))
    }

    /// Takes the message that [`Consumer::peek_long`] has just seen, if it is not in parts, is
    /// without aux and has at most `room` bytes: `copy` reads bytes from an address on to their place in the
    /// message. Its bytes, and whether the producer has more room now. `None` says nothing:
    /// what is there may need [`Consumer::poll`].
    #[inline(never)]
    pub fn take_long(
        &mut self,
        seen: Seen,
        room: usize,
        copy: &mut dyn FnMut(usize, *const u8, usize),
    ) -> Option<(usize, bool)> {
        let form = (seen.0 >> 24) as u8;
        if seen.is_in_parts() {
            return None;
        }
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let data = cell.data.load(Ordering::Relaxed);
        let Found::Message {
            head: (_, aux, argument),
            payload,
            bytes,
        } = self.open(seen.0, data, form)?
        else {
            return None;
        };
        if aux != 0 || argument >> 32 != 0 || bytes > room {
            return None;
        }
        copy(0, payload, bytes);
        let from = self.next;
        let more_room = self.release();
        self.ahead.took_cells(&self.memory, from, self.next);
        Some((bytes, more_room))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Memory;
    use super::super::{Found, Head, Producer};
    use super::*;

    const HEAD: Head = (3, 0, 0x1234_5678);
    const LENGTHS: [usize; 8] = [9, 14, 60, 96, 97, 500, 1024, 4096];

    fn body(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 + seed) as u8).collect()
    }

    fn post(p: &mut Producer, head: Head, bytes: &[u8]) {
        assert!(p.has_room(bytes.len()));
        p.post(head, bytes.len(), |to| {
            // SAFETY: invariant 4 of `ring`: room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        });
    }

    fn take(c: &mut Consumer, room: usize) -> Option<Vec<u8>> {
        let seen = c.peek_long(HEAD.0, HEAD.2 as u32)?;
        let mut got = vec![0; room];
        let mut copy = |at: usize, from: *const u8, bytes: usize| {
            let to = got[at..at + bytes].as_mut_ptr();
            // SAFETY: invariant 8 of `ring` for what is read; `to` has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
        };
        let (bytes, _) = c.take_long(seen, room, &mut copy)?;
        got.truncate(bytes);
        Some(got)
    }

    fn poll(c: &mut Consumer) -> Option<(Head, Vec<u8>)> {
        let Found::Message {
            head,
            payload,
            bytes,
        } = c.poll()?
        else {
            return None;
        };
        let mut got = vec![0; bytes];
        // SAFETY: invariant 8 of `ring`: the message is in hand.
        unsafe { std::ptr::copy_nonoverlapping(payload, got.as_mut_ptr(), bytes) };
        let _ = c.release();
        Some((head, got))
    }

    #[test]
    fn what_is_taken_is_what_a_poll_finds() {
        let mut m = Memory::new(16, 16 << 10);
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        for (round, &bytes) in LENGTHS.iter().cycle().take(400).enumerate() {
            assert!(take(&mut c, bytes).is_none(), "of the lap before at most");
            let sent = body(bytes, round);
            post(&mut p, HEAD, &sent);
            assert!(take(&mut c, bytes - 1).is_none(), "no room");
            match round % 3 {
                0 => assert_eq!(poll(&mut c), Some((HEAD, sent))),
                _ => assert_eq!(take(&mut c, bytes + round % 2), Some(sent)),
            }
            let _ = c.rest();
        }
    }

    #[test]
    fn what_is_not_wanted_stays_for_a_poll() {
        let mut m = Memory::new(64, 64 << 10);
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut p = unsafe { Producer::new(m.ring(), 0) };
        // SAFETY: invariant 7 of `ring`: `m` outlives both ends.
        let mut c = unsafe { Consumer::new(m.ring(), 0) };
        let (kind, aux, argument) = HEAD;
        let others = [
            (kind + 1, aux, argument),
            (kind, aux, argument + 1),
            (kind, 1, argument),
            (kind, aux, argument | 1 << 32),
        ];
        for head in others {
            for bytes in [9, 500] {
                let sent = body(bytes, 1);
                post(&mut p, head, &sent);
                assert!(take(&mut c, bytes).is_none(), "{head:?}");
                assert_eq!(poll(&mut c), Some((head, sent)));
            }
        }
        // Of one cell; and one whose cell somebody has written over.
        post(&mut p, HEAD, b"short");
        assert!(c.peek_long(kind, argument as u32).is_none());
        assert!(poll(&mut c).is_some());
        for bytes in [9, 500] {
            let at = p.posted() + 1;
            post(&mut p, HEAD, &body(bytes, 2));
            p.cell(at).word.store(u64::MAX - 9, Ordering::Relaxed);
            assert!(take(&mut c, bytes).is_none());
            assert!(matches!(c.poll(), Some(Found::Malformed)), "{bytes} bytes");
            let _ = c.release();
        }
    }
}
