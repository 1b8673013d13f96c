//! What a lane keeps of each peer.

use super::closing::Left;
use super::protocols::device_memory::Layouts;
use crate::protocol::eager::{ReceiverCredit, SenderCredit};
use osier_transports::AmHead;
use osier_transports::Death;
use std::collections::VecDeque;

/// Where the fragments of a peer's send go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Op(u32),
    Arrival(u32),
    /// Bytes still to come that nobody wants.
    Discard(usize),
}

/// On lines of its own, as invariant 3 of the lane's cell asks.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct PeerState {
    pub sender: SenderCredit,
    pub receiver: ReceiverCredit,
    pub control: VecDeque<AmHead>,
    pub starts: VecDeque<u32>,
    pub streams: VecDeque<u32>,
    pub incoming: Vec<(u32, Target)>,
    /// Layouts of devices' memory that were told.
    pub layouts: Option<Box<Layouts>>,
    /// How it has ended.
    pub dead: Option<Death>,
    /// Its failure is known to the program: receives from any source go on without it.
    pub acknowledged: bool,
    /// It has left, and all that it sent was handled.
    pub left: Option<Left>,
    /// It was sent something, so that the transport learns when it closes.
    pub asked: bool,
    /// It is about to be.
    pub to_ask: bool,
    pub busy: bool,
    /// Starts wait, or are checked, or it is dead: nothing may be sent past
    /// them.
    pub blocked: bool,
}

impl PeerState {
    /// Whether it has ended without finalizing.
    pub fn has_failed(&self) -> bool {
        self.dead.is_some_and(Death::is_failure)
    }
}
