//! Ranks on one machine, through one nameless shared segment.
//!
//! A job ([`Job`]) is two memfds and a doorbell per rank. Each lane of a rank
//! opens a ring to a peer when it first sends there; rings start with one
//! page and grow with traffic, so memory follows the pairs that talk.

mod cma;
mod collective;
mod endpoint;
mod fork;
mod heap;
mod job;
#[cfg(all(test, not(loom)))]
mod layout;
mod mailbox;
mod mapping;
mod meeting;
mod next;
mod ranges;
mod rank;
mod ring;
mod seal;
mod segment;
mod serve;
mod shared_heap;
mod status;
mod wait;
mod watch;
mod words;

pub(crate) use cma::read as read_process;
pub use collective::{
    BESIDE_FLAG_BYTES, Collective, Done, PAGE_SLOT_BYTES, Raised, SLOT_BYTES, Said,
};
pub use endpoint::{MAX_PAYLOAD_BYTES, ShmEndpoint};
pub use job::{Job, JobOptions, MAX_RANKS, check_description, describe};
pub use meeting::{Meeting, meeting_place};
pub use rank::{Parked, ShmRank};
pub use segment::NOTE_BYTES;
pub use serve::{SHARED_FROM_BYTES, SharedAlloc, serve};
pub use shared_heap::SharedHeap;
pub use status::{JobStatus, STATUS_WORDS, monotonic_ns};

#[cfg(all(test, not(loom)))]
mod tests;
