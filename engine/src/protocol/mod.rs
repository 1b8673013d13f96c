//! Protocols: pure decisions about how a message travels.
//!
//! | file | duty |
//! |---|---|
//! | [`select`] | the one table: which protocols can carry a message, and the cheapest of them |
//! | [`states`] | the same by the costs of several states of the machine: least regret |
//! | [`cost`] | predicted time between memory of the host |
//! | [`device`] | predicted time and pipelines where an end is a device's |
//! | [`reach`] | whose device memory a rank can open |
//! | [`eager`] | credit of eager messages |
//!
//! Nothing here polls, posts or reads a clock: facts come in as arguments, and
//! `progress::protocols` carries the choice out.

pub mod cost;
pub mod device;
pub mod eager;
pub mod reach;
pub mod select;
pub mod states;
pub mod uses;

use std::fmt;

/// A protocol by name, in the order of [`select::TABLE`].
///
/// | protocol | copies by the host | handshake |
/// |---|---|---|
/// | eager | 2, a device's memory through pinned memory | none |
/// | fragments | 2 | RTS, CTS |
/// | get, mapped or by cross-memory attach | 1 | RTS, FIN |
/// | bounce buffers of the host | 0 or 1 | RTS, CTS, credits |
/// | get and put by a kernel | none, one launch | RTS, FIN |
/// | bounce buffers of the device | none, two launches a slot | RTS, CTS, credits |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The data goes with the first message; memory of a device by way of pinned memory.
    Eager,
    /// Rendezvous, then fragments that are copied into rings and out of them.
    Fragments,
    /// Rendezvous, then one copy from mapped memory of Osier's heap.
    GetMapped,
    /// Rendezvous, then one copy by the kernel (cross-memory attach).
    GetAttach,
    /// Rendezvous, then slots of shared host memory that are handed over.
    HostSlots,
    /// Rendezvous, then one kernel of the receiver reads, from layout to layout.
    DeviceGet,
    /// Rendezvous, then one kernel of the sender writes, from layout to layout.
    DevicePut,
    /// Rendezvous, then slots on the sender's device that are handed over.
    DeviceSlots,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Eager => "eager",
            Protocol::Fragments => "rendezvous, pipelined copy",
            Protocol::GetMapped => "rendezvous, get from the heap",
            Protocol::GetAttach => "rendezvous, cross-memory attach",
            Protocol::HostSlots => "rendezvous, host bounce buffers",
            Protocol::DeviceGet => "rendezvous, get by one kernel",
            Protocol::DevicePut => "rendezvous, put by one kernel",
            Protocol::DeviceSlots => "rendezvous, device bounce buffers",
        })
    }
}
