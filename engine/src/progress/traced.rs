//! Timeline events of a lane: protocol phases, and the ends of messages.
//!
//! Every function does nothing, at the price of a branch, unless a trace
//! records.

use super::port::Port;

use crate::trace::event::{Event, Kind};
use crate::trace::{Tracer, now_ns};
use crate::wire;
use std::sync::Arc;

/// A lane's part in a recording.
pub struct LaneTrace {
    tracer: Arc<Tracer>,
    context: u64,
    /// The ranks of the job behind the peers.
    members: Arc<[u32]>,
    /// Starts posted to each peer, and handled from each: both ends count the
    /// same messages in the same order.
    sent: Vec<u32>,
    handled: Vec<u32>,
}

impl LaneTrace {
    pub fn new(tracer: Arc<Tracer>, context: u64, members: Arc<[u32]>) -> Box<Self> {
        Box::new(Self {
            tracer,
            context,
            sent: vec![0; members.len()],
            handled: vec![0; members.len()],
            members,
        })
    }

    /// Who records.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// The communicator's number, the same on all ranks.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The ranks of the job behind the peers.
    pub fn members(&self) -> &Arc<[u32]> {
        &self.members
    }

    fn record(&self, event: Event, peer: u32, since_ns: u64) {
        self.tracer.record(Event {
            time_ns: since_ns,
            duration_ns: now_ns().saturating_sub(since_ns),
            context: self.context,
            peer,
            world: self.members[peer as usize],
            ..event
        });
    }
}

/// The next number of a message; 0 is none.
fn next(count: &mut u32) -> u32 {
    *count = count.checked_add(1).unwrap_or(1);
    *count
}

impl Port {
    /// Start of an event; 0 unless a trace records.
    #[inline]
    pub(crate) fn trace_stamp(&self) -> u64 {
        match &self.trace {
            None => 0,
            Some(_) => now_ns(),
        }
    }

    /// A message has started, `since_ns` when its start was begun.
    #[inline]
    pub(crate) fn trace_start(
        &mut self,
        kind: Kind,
        peer: u32,
        tag: u32,
        bytes: usize,
        since_ns: u64,
    ) {
        if since_ns != 0 {
            self.trace_start_on(kind, peer, tag, bytes, since_ns);
        }
    }

    #[cold]
    fn trace_start_on(&mut self, kind: Kind, peer: u32, tag: u32, bytes: usize, since_ns: u64) {
        if let Some(trace) = &mut self.trace {
            let event = Event {
                tag,
                bytes: bytes as u64,
                number: u64::from(next(&mut trace.sent[peer as usize])),
                ..Event::of(kind)
            };
            trace.record(event, peer, since_ns);
        }
    }

    /// A piece of a message was moved, or something was said about it.
    #[inline]
    pub(crate) fn trace_piece(&self, kind: Kind, peer: u32, bytes: usize, since_ns: u64) {
        if since_ns != 0 {
            self.trace_piece_on(kind, peer, bytes, since_ns);
        }
    }

    #[cold]
    fn trace_piece_on(&self, kind: Kind, peer: u32, bytes: usize, since_ns: u64) {
        if let Some(trace) = &self.trace {
            let event = Event {
                bytes: bytes as u64,
                ..Event::of(kind)
            };
            trace.record(event, peer, since_ns);
        }
    }

    /// Counts an active message that begins a message of a peer; its number.
    #[inline]
    pub(crate) fn trace_handled(&mut self, peer: u32, kind: u8) -> u32 {
        match &mut self.trace {
            Some(trace) if matches!(kind, wire::EAGER | wire::EAGER_FIRST | wire::RTS) => {
                next(&mut trace.handled[peer as usize])
            }
            _ => 0,
        }
    }

    /// A receive has all of its message.
    #[inline]
    pub(crate) fn trace_received(
        &self,
        peer: u32,
        tag: u32,
        bytes: usize,
        number: u32,
        since: u64,
    ) {
        if number != 0 {
            self.trace_received_on(peer, tag, bytes, number, since);
        }
    }

    #[cold]
    fn trace_received_on(&self, peer: u32, tag: u32, bytes: usize, number: u32, since_ns: u64) {
        if let Some(trace) = &self.trace {
            let event = Event {
                tag,
                bytes: bytes as u64,
                number: u64::from(number),
                ..Event::of(Kind::Received)
            };
            let since_ns = if since_ns == 0 { now_ns() } else { since_ns };
            trace.record(event, peer, since_ns);
        }
    }
}
