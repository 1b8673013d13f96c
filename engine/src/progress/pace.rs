//! Which way of writing long fragments, or messages that are whole, is the quicker one to a
//! peer.
//!
//! A fragment goes to memory that the peer has read last. Near cores take its lines back at
//! the speed of a copy; far ones so slowly that stores past the caches are quicker, which take
//! no line from anybody. Which of the two holds nobody says, and it changes when threads are
//! moved; so both are timed now and then, by real fragments:
//!
//! ```text
//! fragment   0 1          2 3          4 .. 127
//!            the other    the present  the one that was quicker
//!            way, timed   way, timed
//! ```
//!
//! The lesser of the two times counts: what disturbs only adds. The peer reads what went past the
//! caches from further away, which nobody times here; so that way is taken only if it saves a
//! third.
//!
//! # Invariants
//! 1. The caller of [`Write::pack`] keeps the promises of [`RawView::pack`].

use crate::view::RawView;
use osier_transports::shm::monotonic_ns;
use std::ops::Range;

/// Fragments of a round.
const ROUND: u32 = 128;
/// Fragments that are timed, of each way.
const TIMED: u32 = 2;
/// Shorter fragments are written as ever.
pub(crate) const LONG_BYTES: usize = 8 << 10;

/// How a fragment is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub past_caches: bool,
    pub timed: bool,
}

impl Write {
    /// As all that is short.
    pub(crate) const PLAIN: Write = Write {
        past_caches: false,
        timed: false,
    };

    /// Packs part of a view so; the time that it took, if it was timed, in ns.
    ///
    /// # Safety
    /// As [`RawView::pack`].
    pub(crate) unsafe fn pack(self, view: &RawView, packed: Range<usize>, to: *mut u8) -> u64 {
        let began = self.timed.then(monotonic_ns);
        match self.past_caches {
            // SAFETY: invariant 1, which is all that is asked.
            true => unsafe { view.pack_past_caches(packed, to) },
            // SAFETY: invariant 1, which is all that is asked.
            false => unsafe { view.pack(packed, to) },
        }
        began.map_or(0, |began| monotonic_ns() - began)
    }
}

/// What was found out about writing to one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    past_caches: bool,
    /// Number of the next fragment in its round.
    next: u32,
    /// Least times in this round, in ps for a byte: of plain stores, and past the caches.
    ps_per_byte: [u64; 2],
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            past_caches: false,
            next: 0,
            ps_per_byte: [u64::MAX; 2],
        }
    }
}

impl Pace {
    /// How the next fragment is to be written, of so many bytes.
    pub(crate) fn next(&self, bytes: usize) -> Write {
        if bytes < LONG_BYTES {
            return Write::PLAIN;
        }
        Write {
            past_caches: self.past_caches != (self.next < TIMED),
            timed: self.next < 2 * TIMED,
        }
    }

    /// A fragment was written so, in this time if it was timed.
    pub(crate) fn wrote(&mut self, how: Write, bytes: usize, ns: u64) {
        if bytes < LONG_BYTES {
            return;
        }
        if how.timed {
            let least = &mut self.ps_per_byte[usize::from(how.past_caches)];
            *least = (*least).min(ns * 1000 / bytes as u64);
        }
        self.next += 1;
        if self.next == 2 * TIMED {
            let [plain, past] = self.ps_per_byte;
            self.past_caches = past.saturating_mul(3) <= plain.saturating_mul(2);
            self.ps_per_byte = [u64::MAX; 2];
        }
        self.next %= ROUND;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays rounds where a fragment takes so long plainly, and past the caches: how many of
    /// the last round went past them.
    fn played(pace: &mut Pace, plain_ns: u64, past_ns: u64) -> usize {
        let mut past = 0;
        for fragment in 0..2 * ROUND {
            let how = pace.next(LONG_BYTES);
            let ns = if how.past_caches { past_ns } else { plain_ns };
            // One of the two that are timed is disturbed.
            let disturbed = if fragment % 2 == 1 { 1_000_000 } else { 0 };
            pace.wrote(how, LONG_BYTES, ns + disturbed);
            past += usize::from(fragment >= ROUND && how.past_caches);
        }
        past
    }

    #[test]
    fn the_quicker_way_is_taken_and_the_other_looked_at() {
        let mut pace = Pace::default();
        let (few, most) = (TIMED as usize, (ROUND - TIMED) as usize);
        assert_eq!(played(&mut pace, 1000, 1400), few, "near");
        assert_eq!(played(&mut pace, 4000, 1400), most, "far");
        assert_eq!(
            played(&mut pace, 1000, 900),
            few,
            "near again, by too little"
        );
    }

    #[test]
    fn short_fragments_are_plain_and_not_counted() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            let how = pace.next(LONG_BYTES - 1);
            assert_eq!(how, Write::PLAIN);
            pace.wrote(how, LONG_BYTES - 1, 1);
        }
        assert!(pace.next(LONG_BYTES).timed && pace.next(LONG_BYTES).past_caches);
    }
}
