//! The next message of a peer, from its mailbox or its ring, for who waits for just this one.
//!
//! ```text
//! mailbox: the next message, of this position?   -> taken from there
//! ring:    a message in the next cell?           no -> nothing is said
//! mailbox: a message of this position by now?    yes -> nothing is said
//!          -> the message that was seen in the ring
//! ```
//!
//! # Invariants
//! 1. What is taken from the ring was seen there before the mailbox was asked the last time:
//!    a message in the mailbox that comes before it was posted before it, so it is seen, too
//!    (invariant 3 of `mailbox`). One that the ring shows only later says nothing of that.

use super::mailbox::Mailbox;
use super::ring::Consumer;

/// Takes the next message, if it is of this kind and argument, without aux, and has at most
/// `room` bytes: `copy` reads bytes from an address on to their place in the message. Its
/// bytes, and whether the producer has more room in the ring now. `None` says nothing: what is
/// there may need a poll.
#[inline(always)]
pub(super) fn take_next(
    ring: &mut Consumer,
    mut mail: Option<&mut Mailbox>,
    (kind, argument): (u8, u32),
    room: usize,
    mut copy: impl FnMut(usize, *const u8, usize),
) -> Option<(usize, bool)> {
    let position = ring.position();
    if let Some(mail) = mail.as_deref_mut().filter(|m| !m.is_still()) {
        let whole = |from, bytes| copy(0, from, bytes);
        let mut taken = mail.take(position, kind, argument, room, whole);
        if taken.is_none() && mail.shows_parts() {
            taken = mail.take_parts(position, (kind, argument), room, &mut copy);
        }
        if let Some(bytes) = taken {
            return Some((bytes, false));
        }
    }
    let short = ring.peek_short(kind, argument);
    let long = match short {
        Some(_) => None,
        None => Some(ring.peek_long(kind, argument)?),
    };
    // After the ring (invariant 1).
    let moved = mail.filter(|m| !m.is_still());
    if moved.is_some_and(|m| m.waits(position)) {
        return None;
    }
    match (short, long) {
        (Some((data, bytes)), _) if bytes <= room => {
            copy(0, (&raw const data).cast(), bytes);
            Some((bytes, ring.pass()))
        }
        (None, Some(long)) if long.is_in_parts() => ring.take_parts(long, room, &mut copy),
        (None, Some(long)) => ring.take_long(long, room, &mut copy),
        _ => None,
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::super::mailbox::{Cells, Line};
    use super::super::ring::Producer;
    use super::super::ring::tests::Memory;
    use super::*;
    use loom::sync::Arc;

    const NO_AREA: (*mut u8, usize) = (std::ptr::null_mut(), 0);
    const HEAD: (u8, u32) = (3, 7);
    /// More than a cell takes, and no more than two.
    const MOST: usize = 9;

    /// Of two cells, whichever way.
    fn post_long(p: &mut Producer, parts: bool, number: u8) {
        let head = (HEAD.0, 0, HEAD.1.into());
        if parts {
            assert!(p.has_room_for_parts(1));
            return p.post_parts(head, 1, |_, to| {
                // SAFETY: invariant 4 of `ring`: room for a byte.
                unsafe { to.write(number) }
            });
        }
        assert!(p.has_room(MOST));
        p.post(head, MOST, |to| {
            // SAFETY: invariant 4 of `ring`: room for as many bytes.
            unsafe { to.write_bytes(number, MOST) }
        });
    }

    fn post_mail(m: &mut Mailbox, position: u64, number: u8) {
        assert!(m.free());
        m.post(position, (HEAD.0, 0, HEAD.1), 1, |to| {
            // SAFETY: invariant 8 of `mailbox`: room for a byte.
            unsafe { to.write(number) }
        });
    }

    fn take(ring: &mut Consumer, mail: &mut Mailbox) -> Option<u8> {
        let mut number = 0;
        let copy = |_: usize, from: *const u8, _: usize| {
            // SAFETY: invariant 8 of `ring` and of `mailbox`: a byte of the message.
            number = unsafe { from.read() };
        };
        take_next(ring, Some(mail), HEAD, MOST, copy).map(|_| number)
    }

    /// Fails if the cell of the lap before counts as a message seen in the ring.
    #[test]
    fn loom_a_message_in_parts_passes_none_in_the_mailbox() {
        messages_keep_their_order(true);
    }

    /// The same.
    #[test]
    fn loom_a_message_of_two_cells_passes_none_in_the_mailbox() {
        messages_keep_their_order(false);
    }

    /// A message in the mailbox and one behind it in the ring, whose cell holds one of the same
    /// form from the lap before.
    fn messages_keep_their_order(parts: bool) {
        loom::model(move || {
            // Of one message: the next one begins in the same cell.
            let mut memory = Box::new(Memory::new(2, 1024));
            let ring = memory.ring();
            let shared = Arc::new((Line::new(), Cells::new()));
            // SAFETY: invariant 7 of `ring`: the model joins the thread before the memory goes.
            let mut p = unsafe { Producer::new(ring, 0) };
            // SAFETY: as the producer (invariant 7 of `ring`).
            let mut c = unsafe { Consumer::new(ring, 0) };
            // SAFETY: invariant 7 of `mailbox`: the lines live as long as the model.
            let mut a = unsafe { Mailbox::new(&shared.0, &shared.1, NO_AREA, 0) };
            // SAFETY: invariant 7 of `mailbox`: the lines live as long as the model.
            let mut b = unsafe { Mailbox::new(&shared.0, &shared.1, NO_AREA, 1) };
            post_long(&mut p, parts, 1);
            assert_eq!(take(&mut c, &mut b), Some(1));
            let _ = c.rest();
            let producer = loom::thread::spawn(move || {
                post_mail(&mut a, p.position(), 2);
                post_long(&mut p, parts, 3);
            });
            for number in [2, 3] {
                let taken = loop {
                    if let Some(taken) = take(&mut c, &mut b) {
                        break taken;
                    }
                    loom::thread::yield_now();
                };
                assert_eq!(taken, number);
            }
            producer.join().expect("the producer ends");
            drop(memory);
        });
    }
}
