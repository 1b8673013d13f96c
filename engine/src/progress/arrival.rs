//! Unexpected messages: their state until a receive matches.

use super::protocols::device_memory::Remote;
use crate::matching::{Envelope, UnexpectedKey};
use crate::wire;
use osier_transports::RegionKey;

/// A message that no receive has asked for.
pub(crate) enum Arrival {
    Whole {
        data: Vec<u8>,
        ack: Option<u32>,
    },
    Stream {
        send: u32,
        total: usize,
        data: Vec<u8>,
        ack: bool,
    },
    Rts {
        send: u32,
        total: usize,
        offer: Rts,
    },
    /// In place of a message: its run has failed.
    Poison {
        failed_rank: u32,
    },
}

/// What a sender says of the memory that it announces.
#[derive(Debug)]
pub(crate) struct Rts {
    pub key: Option<RegionKey>,
    pub on_device: bool,
    /// Its bytes were not valid yet: they wait for a stream of the user's.
    pub late: bool,
    /// Device memory that may be opened here.
    pub memory: Option<Box<Remote>>,
}

impl Arrival {
    pub fn bytes(&self) -> usize {
        match self {
            Arrival::Whole { data, .. } => data.len(),
            Arrival::Stream { total, .. } | Arrival::Rts { total, .. } => *total,
            Arrival::Poison { .. } => 0,
        }
    }

    /// The send that waits until a receive has met it, if one does, which is being answered.
    pub fn take_answer(&mut self) -> Option<u32> {
        match self {
            Arrival::Whole { ack, .. } => ack.take(),
            Arrival::Stream { send, ack, .. } => std::mem::take(ack).then_some(*send),
            Arrival::Rts { send, .. } => Some(*send),
            Arrival::Poison { .. } => None,
        }
    }
}

pub(crate) struct Arrived {
    pub what: Arrival,
    /// Its place in the queue, unless a matched probe took it out.
    pub queued: Option<UnexpectedKey>,
    pub envelope: Envelope,
    /// Its number in a timeline, or 0.
    pub number: u32,
    /// The CHECK of its sender, if it is checked.
    pub check_body: Option<Box<wire::CheckBody>>,
}
