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
use crate::exec::in_segment::{LEAST_TAKEN, copy_short};
use crate::exec::inline::Room;
use crate::exec::short::{Memory, Move, Place, ShortCall};
use crate::progress::links::Links;
use crate::progress::port::Port;
#[cfg(debug_assertions)]
use crate::progress::steps::{self, Phase};
use osier_transports::PeerMemory;
use osier_transports::shm::{BESIDE_FLAG_BYTES, Collective, Done, Raised, Said};

/// More is combined with the widest registers.
const FEW_BYTES: usize = 64;

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
        room: &mut Room,
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
        room.slot_at(slot);
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
        let mut taken = 0;
        let mut looks = 0;
        loop {
            let Port {
                links, in_segment, ..
            } = &mut self.port;
            let Some(collective) = links.opened_collective() else {
                return Short::NotBegun;
            };
            let mut taking = Taking {
                short,
                links,
                collective,
                peers: &mut in_segment.peers,
                call: number,
                set,
                turn,
                in_turn,
            };
            let before_all = taken;
            let peer = match taking.take(&mut taken, room) {
                Moved::Done => return Short::Done,
                Moved::For(peer) => Some(peer),
                Moved::Unusual => None,
            };
            looks = if taken == before_all { looks + 1 } else { 1 };
            if peer.is_some_and(|peer| wait(self, peer, looks)) {
                continue;
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
}

/// A call in flight, between two polls for messages.
struct Taking<'a> {
    short: &'a ShortCall,
    links: &'a Links,
    collective: &'a Collective,
    peers: &'a mut [Known],
    call: u32,
    set: usize,
    turn: u16,
    /// Of slots, where they change hands.
    in_turn: u16,
}

impl Taking<'_> {
    /// Takes moves, until one waits.
    #[inline]
    fn take(&mut self, taken: &mut usize, room: &mut Room) -> Moved {
        for step in &self.short.moves[*taken..] {
            let moved = match *step {
                Move::Enter => Moved::Done,
                Move::Raise { phase } => self.raise(phase),
                Move::Await { from, phase } => self.look(from, phase),
                Move::Copy { from, to, bytes } => self.copy((from, to), bytes, room),
                Move::Fold {
                    left,
                    right,
                    into,
                    bytes,
                } => self.fold([left, right, into], bytes, room),
                Move::Leave => {
                    let done = Done {
                        call: self.call.wrapping_add(1),
                        segments: 0,
                    };
                    self.collective.set_done(done);
                    self.links.wake_members();
                    Moved::Done
                }
            };
            match moved {
                Moved::Done => *taken += 1,
                waits => return waits,
            }
        }
        Moved::Done
    }

    #[inline]
    fn raise(&self, phase: u16) -> Moved {
        let said = Said {
            bytes: self.short.of.bytes as u64,
            done: self.call,
            turn: self.turn,
        };
        let raised = Raised {
            call: self.call,
            progress: phase,
        };
        #[cfg(debug_assertions)]
        steps::at(Phase::Posts, steps::FLAG);
        self.collective.raise(self.set, raised, said);
        self.links.wake_members();
        #[cfg(debug_assertions)]
        steps::at(Phase::Posted, steps::FLAG);
        Moved::Done
    }

    /// Whether a peer's flag is raised.
    #[inline]
    fn look(&mut self, from: u32, phase: u16) -> Moved {
        let raised = match self.collective.flag(from, self.set) {
            Ok(Some(raised)) => raised,
            Ok(None) => return Moved::For(from),
            Err(_) => return Moved::Unusual,
        };
        if raised.call != self.call || raised.progress < phase {
            let late = raised.call == self.call || below(raised.call, self.call);
            return if late {
                Moved::For(from)
            } else {
                Moved::Unusual
            };
        }
        let Ok(said) = self.collective.said(from, self.set, self.call) else {
            return Moved::Unusual;
        };
        let alike = said.bytes == self.short.of.bytes as u64
            && (!self.short.program.changes_hands || said.turn == self.turn)
            && raised.progress != FAILED;
        let Some(known) = self.peers.get_mut(from as usize).filter(|_| alike) else {
            return Moved::Unusual;
        };
        known.seen = Some(At {
            call: self.call,
            segment: 0,
        });
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

    #[inline]
    fn copy(&self, (from, to): (Place, Place), bytes: u32, room: &mut Room) -> Moved {
        let Some(source) = self.source(from, room) else {
            return Moved::Unusual;
        };
        let into = room.at(to.of).wrapping_add(to.offset as usize);
        // SAFETY: invariant 1: as many bytes each.
        unsafe { copy_short(source, into, bytes as usize) };
        self.take_lines(from, bytes);
        Moved::Done
    }

    #[inline]
    fn fold(&self, [left, right, into]: [Place; 3], bytes: u32, room: &mut Room) -> Moved {
        let (first, second) = (self.source(left, room), self.source(right, room));
        let (Some(first), Some(second)) = (first, second) else {
            return Moved::Unusual;
        };
        let to = room.at(into.of).wrapping_add(into.offset as usize);
        let length = bytes as usize;
        match (self.short.few, self.short.of.known) {
            (Some(function), _) if length <= FEW_BYTES => {
                // SAFETY: invariant 1: as many bytes each, of pieces that are apart, or one.
                unsafe { function(first, second, to, length) };
            }
            (_, Some((operator, element))) => {
                // SAFETY: invariant 1: as many bytes each, of pieces that are apart, or one.
                let done = unsafe { operator.combine_raw(element, first, second, to, length) };
                if done.is_err() {
                    return Moved::Unusual;
                }
            }
            (_, None) => return Moved::Unusual,
        }
        self.take_lines(left, bytes);
        self.take_lines(right, bytes);
        Moved::Done
    }

    /// Where a source lies. None: a peer's, that is not where slots are.
    #[inline]
    fn source(&self, place: Place, room: &mut Room) -> Option<*const u8> {
        let base = match place.of {
            Memory::Peer(peer) => self.slot_of(peer)?.address()?,
            own => room.at(own),
        };
        Some(base.wrapping_add(place.offset as usize))
    }

    #[inline]
    fn slot_of(&self, peer: u32) -> Option<PeerMemory> {
        let bytes = self.short.slot_bytes;
        if bytes > BESIDE_FLAG_BYTES && self.collective.lent(peer, self.set) != 0 {
            return None;
        }
        let slot = (self.collective).slot_of(peer, self.set, bytes, self.in_turn);
        slot.ok()
    }

    #[inline]
    fn take_lines(&self, place: Place, bytes: u32) {
        if self.short.one_reader
            && bytes as usize >= LEAST_TAKEN
            && let Memory::Peer(peer) = place.of
            && let Some(slot) = self.slot_of(peer)
        {
            // SAFETY: invariant 3 of `in_segment`: nobody else reads this piece of the slot.
            unsafe { slot.take_lines(place.offset as usize, bytes as usize) };
        }
    }
}
