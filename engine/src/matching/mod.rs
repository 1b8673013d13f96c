//! Matching: which receive gets which message, within one communicator.
//!
//! ```text
//! message arrives -> PostedQueue::take  -- none --> UnexpectedQueue::push
//! receive posted  -> UnexpectedQueue::take -- none --> PostedQueue::post
//! ```
//!
//! One pair of queues serves one communicator; the caller holds the lock
//! around both steps of a row. The queues know ranks and tags as numbers and
//! nothing about requests, payloads or transports.
//!
//! # Invariants
//! 1. Messages do not overtake: of the posted receives that match a message
//!    the one posted first gets it, of the waiting messages that match a
//!    receive the one that arrived first is taken, wildcards included.
//! 2. A tag with [`INTERNAL_TAG`] set is seen only by patterns that name it.
//! 3. Every operation takes expected constant time, whatever the number of
//!    entries; [`PostedQueue::iter`] and [`PostedQueue::take_all_from`] take
//!    time in that number.
//! 4. Steady traffic allocates nothing. A burst's memory is given back once
//!    the queue has run empty some more times without needing it.
//!
//! # Cost
//! Nanoseconds for a post and a take together (in brackets: push and take),
//! oldest first, by entries that wait meanwhile:
//!
//! ```text
//!                          1          1000       100 000
//! exact, tags in turn   12 (17)     12 (19)     19 (24)
//! exact, scattered      12 (18)     19 (25)     68 (93)   cache and TLB misses
//! any tag               20 (30)     20 (30)     23 (34)
//! any source            22 (32)     23 (29)     29 (41)
//! any source and tag    14 (19)     15 (21)     15 (25)
//! ```
//!
//! Least of three medians by `tests/timing.rs`, release build, 2 virtual cores
//! of an Intel Xeon with 2 MiB of L2 each, 2026-11-21, other work on the
//! machine; the medians of one row differed by up to 2 x.
//!
//! # Sources
//! - M. Flajslik, J. Dinan, K. Underwood, "Mitigating MPI Message Matching
//!   Misery", ISC 2016: hash bins with posting order to arbitrate between
//!   exact and wildcard receives. Here the wildcard kinds have an index each
//!   instead of one ordered list.
//! - D. Knuth, TAOCP vol. 3, section 6.4: multiplicative hashing, chaining.

mod chains;
mod posted;
mod slab;
mod unexpected;

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

pub use posted::{PostedKey, PostedQueue};
pub use unexpected::{UnexpectedKey, UnexpectedQueue};

/// The bit that marks a tag of internal traffic, such as collective calls.
pub const INTERNAL_TAG: u32 = 0x8000_0000;

/// Source and tag of a message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Rank of the sender in the communicator.
    pub source: u32,
    /// The tag, with [`INTERNAL_TAG`] set for internal traffic.
    pub tag: u32,
}

impl Envelope {
    /// Whether this is internal traffic, hidden from [`TagPattern::Any`].
    #[inline]
    pub fn is_internal(self) -> bool {
        self.tag & INTERNAL_TAG != 0
    }

    #[inline]
    fn key(self) -> u64 {
        u64::from(self.source) << 32 | u64::from(self.tag)
    }

    #[inline]
    fn from_key(key: u64) -> Self {
        Self {
            source: (key >> 32) as u32,
            tag: key as u32,
        }
    }
}

/// The tags that a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagPattern {
    /// This tag only; may be an internal one.
    Exact(u32),
    /// Any tag without [`INTERNAL_TAG`].
    Any,
}

/// The messages that a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Rank of the sender, or `None` for any.
    pub source: Option<u32>,
    /// Accepted tags.
    pub tag: TagPattern,
}

impl Pattern {
    /// One source, one tag.
    #[inline]
    pub fn exact(source: u32, tag: u32) -> Self {
        Self {
            source: Some(source),
            tag: TagPattern::Exact(tag),
        }
    }

    /// Whether it names a source and a tag.
    #[inline]
    pub fn is_exact(self) -> bool {
        self.source.is_some() && matches!(self.tag, TagPattern::Exact(_))
    }

    /// Whether a message with this envelope satisfies the pattern.
    #[inline]
    pub fn accepts(self, envelope: Envelope) -> bool {
        self.source.is_none_or(|source| source == envelope.source)
            && match self.tag {
                TagPattern::Exact(tag) => tag == envelope.tag,
                TagPattern::Any => !envelope.is_internal(),
            }
    }
}
