//! Protocols: pure decisions about how a message travels.
//!
//! | file | protocol | copies | handshake |
//! |---|---|---|---|
//! | [`eager`] | the data goes at once, in one message or in fragments | 2 | none |
//! | [`reach`] | memory of devices: the receiver's kernel reads the sender's | 1 | one |
//! | [`rendezvous`] | the receiver answers an announcement: it asks for fragments, or reads the sender's memory itself | 2 or 1 | one |
//!
//! [`cost`] predicts the time of each, [`select`] takes the cheapest. Nothing
//! here polls, posts or reads a clock: events come in as arguments, actions go
//! out as values, and `progress` carries them out.

pub mod cost;
pub mod device;
pub mod eager;
pub mod reach;
pub mod rendezvous;
pub mod select;
