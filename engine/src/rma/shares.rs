//! Which parts a rank has locked together with others: so that, if it ends, its shares are known.
//!
//! A word of a lock counts shared holders, and does not say who they are. Each rank notes the parts
//! in its own sync block, where the others read it when it has ended:
//!
//! ```text
//! word    0: free;  else bit 0..2 state, bit 2.. part + 1
//! state   1: it takes or gives back the lock;  2: it has it
//! last word   shares that had no room
//! ```
//!
//! # Invariants
//! 1. A share in state 2 is counted in the part's lock. One in state 1 may be.
//! 2. A share of a rank that has ended is taken out of the lock by the one that has replaced its
//!    word by 0.

use super::AtomicOp;
use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a list.
pub const WORDS: usize = 8;
/// The last one, of shares that had no room.
const MORE: usize = WORDS - 1;
const CHANGING: u64 = 1;
const HELD: u64 = 2;

fn word_of(part: u32, state: u64) -> u64 {
    (u64::from(part) + 1) << 2 | state
}

/// The own list of a rank.
pub struct Shares<'a>(pub &'a [AtomicU64; WORDS]);

impl Shares<'_> {
    /// Before a lock is taken. Where it is noted, to be given to [`Shares::held`].
    pub fn takes(&self, part: u32) -> usize {
        let word = word_of(part, CHANGING);
        for (at, share) in self.0[..MORE].iter().enumerate() {
            let swapped = share.load(Ordering::Relaxed) == 0
                && (share.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)).is_ok();
            if swapped {
                return at;
            }
        }
        self.0[MORE].fetch_add(1, Ordering::AcqRel);
        MORE
    }

    /// The lock was taken.
    pub fn held(&self, part: u32, at: usize) {
        if at != MORE {
            self.0[at].store(word_of(part, HELD), Ordering::Release);
        }
    }

    /// The lock was not taken after all.
    pub fn left(&self, at: usize) {
        match at {
            MORE => drop(self.0[MORE].fetch_sub(1, Ordering::AcqRel)),
            at => self.0[at].store(0, Ordering::Release),
        }
    }

    /// Before a lock is given back. Where it is noted, for [`Shares::left`].
    pub fn gives(&self, part: u32) -> usize {
        let (held, gives) = (word_of(part, HELD), word_of(part, CHANGING));
        let mut shares = self.0[..MORE].iter();
        let found = shares.position(|share| {
            share.load(Ordering::Relaxed) == held
                && (share.compare_exchange(held, gives, Ordering::AcqRel, Ordering::Relaxed))
                    .is_ok()
        });
        found.unwrap_or(MORE)
    }
}

/// What a rank that has ended leaves of a part's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A share that the caller takes out of the lock.
    Share,
    /// Perhaps a share: it ended while it took the lock or gave it back, or it had many.
    Perhaps,
    Nothing,
}

/// What a rank that has ended leaves of a part's lock. `apply` performs an atomic on a word of
/// its list, and gives the value before.
///
/// # Errors
/// Those of `apply`.
pub fn left_by_ended(
    part: u32,
    mut apply: impl FnMut(usize, AtomicOp) -> Result<u64>,
) -> Result<Left> {
    let mut left = Left::Nothing;
    for at in 0..MORE {
        let seen = apply(at, AtomicOp::Load)?;
        if seen == word_of(part, HELD) {
            let taken = AtomicOp::CompareSwap {
                expected: seen,
                new: 0,
            };
            if apply(at, taken)? == seen {
                return Ok(Left::Share);
            }
        } else if seen == word_of(part, CHANGING) {
            left = Left::Perhaps;
        }
    }
    match apply(MORE, AtomicOp::Load)? {
        0 => Ok(left),
        _ => Ok(Left::Perhaps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(list: &[AtomicU64; WORDS], part: u32) -> Left {
        left_by_ended(part, |at, op| Ok(op.apply(&list[at]))).expect("no errors")
    }

    #[test]
    fn shares_are_found_once_in_each_state() {
        let list = Default::default();
        let shares = Shares(&list);
        assert_eq!(left(&list, 3), Left::Nothing);
        let at = shares.takes(3);
        assert_eq!(left(&list, 3), Left::Perhaps);
        assert_eq!(left(&list, 2), Left::Nothing, "another part");
        shares.held(3, at);
        assert_eq!(left(&list, 2), Left::Nothing, "another part");
        assert_eq!(left(&list, 3), Left::Share);
        assert_eq!(left(&list, 3), Left::Nothing, "taken");
        let at = shares.takes(3);
        shares.held(3, at);
        let at = shares.gives(3);
        assert_eq!(left(&list, 3), Left::Perhaps);
        shares.left(at);
        assert_eq!(left(&list, 3), Left::Nothing);
    }

    /// Two shares of one part, as two threads have them, and more than there is room for.
    #[test]
    fn many_shares_are_counted() {
        let list = Default::default();
        let shares = Shares(&list);
        for part in [5, 5, 0, 1, 2, 3, 4, 6, 7] {
            let at = shares.takes(part);
            shares.held(part, at);
        }
        assert_eq!(list[MORE].load(Ordering::Relaxed), 2);
        for part in [6, 7] {
            shares.left(shares.gives(part));
        }
        assert_eq!(list[MORE].load(Ordering::Relaxed), 0);
        assert_eq!(left(&list, 5), Left::Share);
        assert_eq!(left(&list, 5), Left::Share);
        assert_eq!(left(&list, 5), Left::Nothing);
        shares.left(shares.gives(2));
        let at = shares.takes(9);
        assert_ne!(at, MORE, "there is room again");
        shares.left(at);
    }
}
