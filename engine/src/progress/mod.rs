//! The only loop that polls.
//!
//! A [`lane::Lane`] is the engine of one communicator on one rank: matching,
//! protocols and links, single-threaded, behind one lock ([`cell::LaneCell`]).
//! Communicators share no lane, so they share no lock. [`core::Core`] is the
//! state that a rank's lanes share: sleeping threads, dead ranks.

pub mod access;
mod agreements;
mod arrival;
pub mod attached;
pub mod backoff;
mod biased;
mod cancel;
pub mod cell;
pub mod checked;
mod closing;
pub mod core;
mod driver;
mod early_look;
pub mod edges;
pub mod enqueued;
mod failures;
pub mod hosts;
pub mod in_segment;
pub mod inspect;
pub mod lane;
pub mod links;
pub mod no_wait;
pub mod op;
pub mod owed;
pub(crate) mod pace;
mod peer;
mod poison;
pub mod port;
mod protocols;
pub mod receive;
mod revocation;
mod send;
pub mod served;
#[cfg(debug_assertions)]
pub mod steps;
pub mod suspend;
mod sync;
pub mod traced;
pub(crate) mod trial;
pub mod window;
