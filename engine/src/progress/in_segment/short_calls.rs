//! Short calls on the lane: see [`crate::exec::short`].
//!
//! A call is taken here where nothing else is in flight in the segment. Whatever is unusual, a
//! peer that fails, has other counts, or is long in coming, is left to the steps of the program.
//!
//! # Invariants
//! 1. Places are within memory of the call, of the lengths that it depends on (invariant 1 of
//!    `short`), of this rank's slot, or of a slot of a peer whose flag was seen (invariants 1
//!    to 3 of the segment).

use super::{At, Begun, FAILED, Known, Lane, SegmentCalls, below};
#[cfg(debug_assertions)]
use crate::progress::steps::{self, Phase};
use crate::exec::in_segment::{LEAST_TAKEN, copy_short};
use crate::exec::inline::Desk;
use crate::exec::short::{Memory, Move, Place, ShortCall};
use osier_transports::PeerMemory;
use osier_transports::shm::{BESIDE_FLAG_BYTES, Done, Raised, Said};

/// How far a short call is.
pub enum Short {
    Done,
    /// Nothing of it was begun, nor counted.
    NotBegun,
    /// The steps of the program go on, from this one.
    Taken(Numbers, usize),
}

/// The numbers of a call.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Upper part of its tags.
    pub tags: u32,
    /// Its number in the segment.
    pub call: u32,
}

/// How far one move is.
enum Moved {
    Done,
    For(u32),
    Unusual,
}

impl SegmentCalls {
    /// The first peer of which it is not known that a call is over there.
    #[inline]
    fn not_known_past(&self, own: u32, call: u32) -> Option<u32> {
        let past = |known: &Known| known.done.is_some_and(|done| below(call, done.call));
        let mut peers = (0..).zip(&self.peers);
        let not = peers.find(|(peer, known)| *peer != own && !past(known));
        not.map(|(peer, _)| peer)
    }
}

impl Lane {
    /// Takes a short call. `wait` gets the peer and the number of polls that found nothing, and
    /// says whether to poll again.
    #[inline]
    pub fn run_short(
        &mut self,
        short: &ShortCall,
        desk: &mut Desk<'_>,
        mut wait: impl FnMut(&mut Lane, u32, u32) -> bool,
    ) -> Short {
        let number = self.executor.next_number();
        let set = (number & 1) as usize;
        let calls = &self.port.in_segment;
        let alone = calls.begun.is_empty() && calls.lent.is_empty() && !calls.untold;
        if !alone || calls.peers.len() != self.port.peers.len() {
            return Short::NotBegun;
        }
        if let Some(before) = calls.last[set] {
            let mut looks = 0;
            while let Some(peer) = self.not_past_before(before) {
                looks += 1;
                if !wait(self, peer, looks) {
                    return Short::NotBegun;
                }
            }
        }
        let turn = self.port.in_segment.turns[set];
        let in_turn = if short.program.changes_hands { turn } else { 0 };
        let Ok(Some(collective)) = self.port.links.collective() else {
            return Short::NotBegun;
        };
        let Ok(Ok(slot)) = collective.own_slot(set, short.slot_bytes, in_turn) else {
            return Short::NotBegun;
        };
        if short.slot_bytes > BESIDE_FLAG_BYTES {
            collective.lend(set, 0);
        }
        desk.slot_at(slot);
        // From here on it is counted.
        let numbers = Numbers {
            tags: self.executor.next_tags(),
            call: number,
        };
        let before = self.port.in_segment.last;
        let turns = self.port.in_segment.turns;
        self.port.in_segment.last[set] = Some(number);
        if short.program.changes_hands {
            self.port.in_segment.turns[set] = turn.wrapping_add(1);
        }
        for (taken, step) in short.moves.iter().enumerate() {
            let mut looks = 0;
            loop {
                match self.move_short(short, step, (number, turn), desk) {
                    Moved::Done => break,
                    Moved::For(peer) => {
                        looks += 1;
                        if wait(self, peer, looks) {
                            continue;
                        }
                    }
                    Moved::Unusual => {}
                }
                self.port.in_segment.begun.push(Begun {
                    call: number,
                    before,
                    turns,
                    changes_hands: short.program.changes_hands,
                    over: 0,
                    lent: false,
                });
                return Short::Taken(numbers, taken);
            }
        }
        Short::Done
    }

    /// The first peer for which the last call of a set is not over, as far as is known or seen.
    #[inline]
    fn not_past_before(&mut self, before: u32) -> Option<u32> {
        let own = self.port.own;
        let peer = self.port.in_segment.not_known_past(own, before)?;
        match self.not_past(before, u16::MAX) {
            Ok(peer) => peer,
            // For the steps to tell.
            Err(_) => Some(peer),
        }
    }

    #[inline]
    fn move_short(
        &mut self,
        short: &ShortCall,
        step: &Move,
        (call, turn): (u32, u16),
        desk: &mut Desk<'_>,
    ) -> Moved {
        let set = (call & 1) as usize;
        let changes_hands = short.program.changes_hands;
        let Ok(Some(collective)) = self.port.links.collective() else {
            return Moved::Unusual;
        };
        let from_peer = |place: Place| match place.of {
            Memory::Peer(peer) => {
                let long = short.slot_bytes > BESIDE_FLAG_BYTES;
                if long && collective.lent(peer, set) != 0 {
                    return None;
                }
                let in_turn = if changes_hands { turn } else { 0 };
                let slot = collective.slot_of(peer, set, short.slot_bytes, in_turn);
                slot.ok()
            }
            _ => None,
        };
        match *step {
            Move::Enter => Moved::Done,
            Move::Raise { phase } => {
                let said = Said {
                    bytes: short.of.bytes as u64,
                    done: call,
                    turn,
                };
                let raised = Raised {
                    call,
                    progress: phase,
                };
                #[cfg(debug_assertions)]
                steps::at(Phase::Posts, steps::FLAG);
                collective.raise(set, raised, said);
                self.port.links.wake_members();
                #[cfg(debug_assertions)]
                steps::at(Phase::Posted, steps::FLAG);
                Moved::Done
            }
            Move::Await { from, phase } => {
                let raised = match collective.flag(from, set) {
                    Ok(Some(raised)) => raised,
                    Ok(None) => return Moved::For(from),
                    Err(_) => return Moved::Unusual,
                };
                if raised.call != call || raised.progress < phase {
                    let late = below(raised.call, call) || raised.call == call;
                    return if late { Moved::For(from) } else { Moved::Unusual };
                }
                let Ok(said) = collective.said(from, set, call) else {
                    return Moved::Unusual;
                };
                let alike = said.bytes == short.of.bytes as u64
                    && (!changes_hands || said.turn == turn)
                    && raised.progress != FAILED;
                if !alike {
                    return Moved::Unusual;
                }
                let Some(known) = self.port.in_segment.peers.get_mut(from as usize) else {
                    return Moved::Unusual;
                };
                known.seen = Some(At { call, segment: 0 });
                if known.done.is_none_or(|done| below(done.call, said.done)) {
                    known.done = Some(Done {
                        call: said.done,
                        segments: 0,
                    });
                }
                #[cfg(debug_assertions)]
                steps::at(Phase::Handled, steps::FLAG);
                Moved::Done
            }
            Move::Copy { from, to, bytes } => {
                let peer = from_peer(from);
                let Some(source) = address(from, peer.as_ref(), desk) else {
                    return Moved::Unusual;
                };
                let into = desk.at(to.of).wrapping_add(to.offset as usize);
                // SAFETY: invariant 1: as many bytes each.
                unsafe { copy_short(source, into, bytes as usize) };
                take_lines(short, (from, peer), bytes);
                Moved::Done
            }
            Move::Fold {
                left,
                right,
                into,
                bytes,
            } => {
                let (of_left, of_right) = (from_peer(left), from_peer(right));
                let first = address(left, of_left.as_ref(), desk);
                let second = address(right, of_right.as_ref(), desk);
                let (Some(first), Some(second), Some((operator, element))) =
                    (first, second, short.of.known)
                else {
                    return Moved::Unusual;
                };
                let to = desk.at(into.of).wrapping_add(into.offset as usize);
                // SAFETY: invariant 1: as many bytes each, of pieces that are apart, or one.
                let done =
                    unsafe { operator.combine_raw(element, first, second, to, bytes as usize) };
                if done.is_err() {
                    return Moved::Unusual;
                }
                take_lines(short, (left, of_left), bytes);
                take_lines(short, (right, of_right), bytes);
                Moved::Done
            }
            Move::Leave => {
                collective.set_done(Done {
                    call: call.wrapping_add(1),
                    segments: 0,
                });
                self.port.links.wake_members();
                Moved::Done
            }
        }
    }
}

/// Where a source lies. None: a peer's, that is not where slots are.
#[inline]
fn address(place: Place, peer: Option<&PeerMemory>, desk: &mut Desk<'_>) -> Option<*const u8> {
    let base = match place.of {
        Memory::Peer(_) => peer?.address()?,
        own => desk.at(own),
    };
    Some(base.wrapping_add(place.offset as usize))
}

#[inline]
fn take_lines(short: &ShortCall, (place, peer): (Place, Option<PeerMemory>), bytes: u32) {
    if short.one_reader
        && bytes as usize >= LEAST_TAKEN
        && let Some(peer) = peer
    {
        // SAFETY: invariant 3 of `in_segment`: nobody else reads this piece of the slot.
        unsafe { peer.take_lines(place.offset as usize, bytes as usize) };
    }
}
