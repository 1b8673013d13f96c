//! State of a lane for each peer.

use super::closing::Left;
use super::edges::Kept;
use super::pace::Pace;
use super::protocols::device_memory::Layouts;
use super::trial::Trials;
use crate::protocol::eager::{ReceiverCredit, SenderCredit};
use crate::protocol::select::Selection;
use osier_transports::AmHead;
use osier_transports::Death;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where the fragments of a peer's send go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Op(u32),
    Arrival(u32),
    /// Bytes still to come that have no receive.
    Discard(usize),
}

/// On lines of its own, as invariant 3 of the lane's cell asks.
#[repr(align(64))]
pub(crate) struct PeerState {
    /// Largest message that is always eager and one piece.
    pub always_eager: usize,
    pub sender: SenderCredit,
    pub receiver: ReceiverCredit,
    pub control: VecDeque<AmHead>,
    pub starts: VecDeque<u32>,
    pub streams: VecDeque<u32>,
    /// Messages along edges that wait for room.
    pub edges: VecDeque<Kept>,
    pub incoming: Vec<(u32, Target)>,
    /// The protocols of messages to it and from it.
    pub selection: Arc<Selection>,
    /// How long fragments are written, and long messages that are whole.
    pub pace: Pace,
    pub whole_pace: Pace,
    /// How long messages that it announces take, one way and the other.
    pub trials: Option<Box<Trials>>,
    /// Layouts of devices' memory that both have sent.
    pub layouts: Option<Box<Layouts>>,
    /// How it has ended.
    pub dead: Option<Death>,
    /// The program has acknowledged its failure: receives from any source ignore it.
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
    /// A peer that takes payloads of at most `max_payload_bytes`.
    pub fn new(selection: Arc<Selection>, max_payload_bytes: usize) -> Self {
        Self {
            always_eager: selection.whole_bytes(max_payload_bytes),
            sender: SenderCredit::default(),
            receiver: ReceiverCredit::default(),
            control: VecDeque::new(),
            starts: VecDeque::new(),
            streams: VecDeque::new(),
            edges: VecDeque::new(),
            incoming: Vec::new(),
            selection,
            pace: Pace::default(),
            whole_pace: Pace::default(),
            trials: None,
            layouts: None,
            dead: None,
            acknowledged: false,
            left: None,
            asked: false,
            to_ask: false,
            busy: false,
            blocked: false,
        }
    }

    /// Protocols are chosen by other costs from now on. Any two ends understand each other,
    /// whatever either chooses by.
    pub fn select_by(&mut self, selection: Arc<Selection>, max_payload_bytes: usize) {
        self.always_eager = selection.whole_bytes(max_payload_bytes);
        self.selection = selection;
    }

    /// Whether it has ended without finalizing.
    pub fn has_failed(&self) -> bool {
        self.dead.is_some_and(Death::is_failure)
    }
}
