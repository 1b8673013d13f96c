//! Context ids: the numbers that tell a communicator from all others.
//!
//! ```text
//! 63            40 39                    0
//! | rank + 1      | count of that rank    |      0 in the upper part: built in
//! ```
//!
//! A rank hands out numbers from a counter of its own, so no two ranks ever
//! have to agree on what is free, as they must where ids are few and re-used.
//! What ranks do agree on, for each communicator, is who hands out its number:
//!
//! | made by | who hands out | how the others learn it |
//! |---|---|---|
//! | world | none: [`WORLD`] | built in |
//! | own | this rank | no other needs it |
//! | dup, idup, split, create, topologies | rank 0 of the parent | on the parent |
//! | create_group, create_from_group | the group's rank 0 | up and down a tree over the meeting ([`super::meeting`]) |
//! | intercomm_create | of the two leaders, the one with the lower world rank | leader to leader over the meeting, then within each side |
//! | dup, split, create, merge on an intercommunicator | rank 0 of its first side | on the intercommunicator, then within each side |
//! | intercomm_create_from_groups | as create_from_group, over both groups | over the meeting |
//!
//! An intercommunicator takes four numbers in a row: its own, one for the hidden
//! communicator of each side, on which the side talks with itself, and one for that of
//! both, on which collectives run.
//!
//! # Invariants
//! 1. A number is handed out at most once by its rank, and carries the rank: it
//!    is unique in the job, and never used again while the job lives.
//! 2. All members of a communicator have the same number, and no other rank has
//!    it: it travels only in the answer to the call that made the communicator.
//! 3. A call that fails may use a number up. There are 2^40 per rank; when they
//!    are gone, calls fail and nothing wraps around.
//!
//! # Sources
//! MPI 5.0, sections 7.4 and 7.6. W. Gropp, R. Thakur, "Thread-Safety in an MPI
//! Implementation: Requirements and Analysis", Parallel Computing 33(9), 2007,
//! section 5.3: why agreement on a free id needs care when threads create
//! communicators at once. With ids that are never re-used, nothing is shared.

use osier_engine::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Context of the communicator of all ranks.
pub(crate) const WORLD: u64 = 1;
/// Context of the meeting: ranks that share no communicator.
pub(crate) const MEETING: u64 = 2;

const COUNT_BITS: u32 = 40;

/// The numbers of one rank.
pub(crate) struct Contexts {
    base: u64,
    used: AtomicU64,
}

impl Contexts {
    pub fn new(rank: u32) -> Self {
        Self {
            base: (u64::from(rank) + 1) << COUNT_BITS,
            used: AtomicU64::new(0),
        }
    }

    /// The first of `count` consecutive numbers that were never used.
    pub fn take(&self, count: u64) -> Result<u64> {
        let fits = |used: u64| {
            used.checked_add(count)
                .filter(|used| *used < 1 << COUNT_BITS)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map(|before| self.base + before)
            .map_err(|_| {
                Error::new(
                    ErrorKind::Unavailable,
                    "this rank has handed out all of its 2^40 context ids",
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_and_never_wrap_around() {
        let contexts = Contexts::new(3);
        assert_eq!(contexts.take(3).expect("new"), 4 << 40);
        assert_eq!(contexts.take(1).expect("new"), (4 << 40) + 3);
        contexts.used.store((1 << 40) - 3, Ordering::Relaxed);
        assert!(contexts.take(3).is_err() && contexts.take(u64::MAX).is_err());
        assert_eq!(contexts.take(2).expect("left"), (5 << 40) - 3);
        assert!(contexts.take(1).is_err());
    }
}
