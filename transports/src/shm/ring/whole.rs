//! Messages of several cells, or with a payload in the byte ring, for who waits for just this
//! message.

use super::{Consumer, Found, LONG, PARTS, RING};
use crate::sync::Ordering;

impl Consumer {
    /// Whether the next cell may begin a message of more than one cell.
    #[inline(always)]
    pub fn has_long(&self) -> bool {
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let form = (cell.word.load(Ordering::Acquire) >> 24) as u8;
        matches!(form, LONG | RING | PARTS)
    }

    /// Takes the message in the next cell, which [`Consumer::has_long`] has seen, if it is of
    /// this kind and argument, without aux, and has at most `room` bytes: `copy` reads bytes
    /// from an address on to their place in the message. Its bytes, and whether the producer
    /// has more room now. `None` says nothing: what is there may need [`Consumer::poll`].
    #[inline(never)]
    pub fn take_long(
        &mut self,
        kind: u8,
        argument: u32,
        room: usize,
        copy: &mut dyn FnMut(usize, *const u8, usize),
    ) -> Option<(usize, bool)> {
        // SAFETY: invariant 7 of `ring`, by the contract of `new`.
        let cell = unsafe { self.memory.cell(self.next) };
        let word = cell.word.load(Ordering::Acquire);
        if (word >> 24) as u8 == PARTS {
            return self.take_parts(kind, argument, room, copy);
        }
        let Found::Message {
            head,
            payload,
            bytes,
        } = self.poll()?
        else {
            return None;
        };
        if head != (kind, 0, argument.into()) || bytes > room {
            return None;
        }
        copy(0, payload, bytes);
        let next = self.next;
        let more_room = self.release();
        self.ahead.took_cells(&self.memory, next, self.next);
        Some((bytes, more_room))
    }
}
