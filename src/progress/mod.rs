//! The only loop that polls.
//!
//! A [`lane::Lane`] is the engine of one communicator on one rank: matching,
//! protocols and links, single-threaded, behind one lock ([`cell::LaneCell`]).
//! Communicators share no lane, so they share no lock. [`core::Core`] is what
//! a rank's lanes have in common: where they sleep, who is dead.

pub(crate) mod attached;
mod biased;
pub(crate) mod cell;
pub(crate) mod checked;
mod chunks;
pub(crate) mod core;
pub(crate) mod enqueued;
pub(crate) mod inspect;
pub(crate) mod lane;
mod lane_abandon;
mod lane_close;
mod lane_deaths;
mod lane_pull;
pub(crate) mod lane_receive;
pub(crate) mod lane_runs;
mod lane_send;
pub(crate) mod links;
mod mapped;
mod offers;
pub(crate) mod owed;
pub(crate) mod pace;
mod place;
mod reached;
mod slab;
mod staged;
#[cfg(debug_assertions)]
pub(crate) mod steps;
mod sync;
pub(crate) mod traced;
