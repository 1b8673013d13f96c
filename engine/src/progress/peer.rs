//! State of a lane for each peer.
//!
//! Of peers behind the first ones it is made when it is to be changed: a lane of a large job has
//! the states of those that its rank has to do with.

use super::closing::Left;
use super::edges::Kept;
use super::links::Links;
use super::pace::Pace;
use super::protocols::device_memory::Layouts;
use super::trial::Trials;
use crate::protocol::eager::{ReceiverCredit, SenderCredit};
use crate::protocol::select::Selection;
use osier_transports::AmHead;
use osier_transports::Death;
use osier_transports::by_rank::ByRank;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
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
    /// The communicator is revoked, and no call of it is in flight.
    pub retired: bool,
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
            retired: false,
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

    /// A state as this one was when it was made, if nothing was done with it.
    fn anew(&self) -> Self {
        let mut state = Self::new(self.selection.clone(), 0);
        (state.always_eager, state.blocked) = (self.always_eager, self.blocked);
        state
    }

    /// Whether it has ended without finalizing.
    pub fn has_failed(&self) -> bool {
        self.dead.is_some_and(Death::is_failure)
    }
}

/// The peers of a lane. One that has no state yet reads as one that nothing was done with.
pub(crate) struct Peers {
    states: ByRank<PeerState>,
    /// What a state that is not there yet is like.
    untouched: PeerState,
}

impl Peers {
    /// The peers of rank `own` among `ranks` ranks, with the protocols that `selection` chooses.
    pub fn new(own: u32, ranks: usize, links: &Links, selection: &Arc<Selection>) -> Self {
        let chosen = links.selections(selection);
        let make = |peer: usize| {
            let (peer, chosen) = (peer as u32, chosen.to(links, peer as u32));
            PeerState::new(chosen.clone(), links.max_payload(peer))
        };
        let mut states = ByRank::new(ranks, make);
        let unlike = |peer: &usize| *peer == own as usize || chosen.differs(links, *peer as u32);
        for peer in (0..ranks).filter(unlike) {
            states.get_or_make(peer, make);
        }
        let untouched = PeerState::new(chosen.far.clone(), links.max_payload_of_others());
        Self { states, untouched }
    }

    /// Their number.
    #[inline]
    pub fn len(&self) -> usize {
        self.states.ranks()
    }

    /// Protocols are chosen by other costs from now on.
    pub fn select_by(&mut self, links: &Links, selection: &Arc<Selection>) {
        let chosen = links.selections(selection);
        self.states.each_mut(|peer, state| {
            let peer = peer as u32;
            state.select_by(chosen.to(links, peer).clone(), links.max_payload(peer));
        });
        (self.untouched).select_by(chosen.far.clone(), links.max_payload_of_others());
    }

    /// From now on nothing is sent to a peer but by the way that looks at everything.
    pub fn block(&mut self) {
        self.states.each_mut(|_, state| state.blocked = true);
        self.untouched.blocked = true;
    }

    /// The states that are there, by peer.
    pub fn each(&self, f: impl FnMut(usize, &PeerState)) {
        self.states.each(f);
    }

    /// Those of which something holds, by rank.
    pub fn those(&self, holds: impl Fn(&PeerState) -> bool) -> Vec<u32> {
        let mut those = Vec::new();
        let mut look = |peer: usize, state: &PeerState| {
            if holds(state) {
                those.push(peer as u32);
            }
        };
        self.states.each(&mut look);
        those
    }

    #[cold]
    fn untouched(&self, peer: usize) -> &PeerState {
        match peer < self.len() {
            true => &self.untouched,
            false => missing(peer, self.len()),
        }
    }
}

/// An index beyond the last peer, as of a slice.
#[cold]
fn missing(peer: usize, ranks: usize) -> ! {
    panic!("no peer {peer} of {ranks}")
}

impl Index<usize> for Peers {
    type Output = PeerState;

    #[inline]
    fn index(&self, peer: usize) -> &PeerState {
        match self.states.get(peer) {
            Some(state) => state,
            None => self.untouched(peer),
        }
    }
}

impl IndexMut<usize> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: usize) -> &mut PeerState {
        let (ranks, untouched) = (self.states.ranks(), &self.untouched);
        match self.states.get_or_make(peer, |_| untouched.anew()) {
            Some(state) => state,
            None => missing(peer, ranks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::links::Remote;
    use crate::protocol::cost::LinkCosts;

    const RANKS: usize = 65_536;
    const OWN: u32 = 40_000;

    fn selection() -> Arc<Selection> {
        Arc::new(Selection::new(LinkCosts::default(), 48))
    }

    fn peers() -> Peers {
        let links = Links::new(OWN, Remote::None);
        Peers::new(OWN, RANKS, &links, &selection())
    }

    fn there(peers: &Peers) -> Vec<u32> {
        peers.those(|_| true)
    }

    #[test]
    fn states_are_made_when_they_are_to_be_changed() {
        let mut peers = peers();
        let first = there(&peers).len();
        assert!(first <= 64, "{first} states before anything was done");
        assert_eq!(there(&peers).last(), Some(&OWN));
        for peer in (0..RANKS).step_by(1021) {
            assert!(peers[peer].control.is_empty());
        }
        assert_eq!(there(&peers).len(), first);
        let used: Vec<u32> = (0..64).map(|n| 1000 + 1000 * n).collect();
        for peer in &used {
            peers[*peer as usize].busy = true;
        }
        assert!(there(&peers).len() <= first + used.len());
        assert_eq!(peers.those(|state| state.busy), used);
    }

    #[test]
    fn states_that_come_later_are_like_the_others() {
        let mut peers = peers();
        peers.block();
        peers[50_000].busy = true;
        assert!(peers[50_000].blocked && peers[60_000].blocked && peers[0].blocked);
        let other = selection();
        peers.select_by(&Links::new(OWN, Remote::None), &other);
        for peer in [0, 50_000, 60_000] {
            assert!(Arc::ptr_eq(&peers[peer].selection, &other));
            peers[peer].busy = true;
            assert!(Arc::ptr_eq(&peers[peer].selection, &other));
        }
    }

    #[test]
    #[should_panic(expected = "no peer 65536 of 65536")]
    fn there_is_no_peer_behind_the_last() {
        assert!(!peers()[RANKS].busy);
    }
}
