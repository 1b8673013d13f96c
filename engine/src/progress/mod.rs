//! The only loop that polls.
//!
//! A [`lane::Lane`] is the engine of one communicator on one rank: matching,
//! protocols and links, single-threaded, behind one lock ([`cell::LaneCell`]).
//! Communicators share no lane, so they share no lock. [`core::Core`] is what
//! a rank's lanes have in common: where they sleep, who is dead.

mod arrival;
pub mod attached;
mod biased;
pub mod cell;
pub mod checked;
mod chunks;
pub mod core;
pub mod enqueued;
pub mod inspect;
pub mod lane;
mod lane_abandon;
mod lane_close;
mod lane_deaths;
mod lane_pull;
pub mod lane_receive;
pub mod lane_runs;
mod lane_send;
pub mod links;
mod mapped;
mod offers;
pub mod op;
pub mod owed;
pub mod pace;
mod peer;
mod place;
pub mod port;
mod reached;
mod slab;
mod staged;
#[cfg(debug_assertions)]
pub mod steps;
mod sync;
pub mod traced;
