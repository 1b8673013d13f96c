//! Short calls on the lane: see [`crate::exec::short`].
//!
//! A call is taken here where nothing else is in flight in the segment. Whatever is unusual, a
//! peer that fails, has other counts, or is long in coming, is left to the steps of the program.
//!
//! # Invariants
//! 1. Places are within memory of the call, of the lengths that it depends on (invariant 1 of
//!    `short`), of this rank's slot, or of a slot of a peer whose flag was seen (invariants 1
//!    to 3 of the segment).

use super::{Before, Begun, FAILED, Known, Lane, Readers, SegmentCalls, below};
use crate::exec::in_segment::{At, IN_ORDER, LEAST_TAKEN, copy_short};
use crate::exec::inline::Room;
use crate::exec::program::Sets;
use crate::exec::short::{Awaited, Memory, Move, Place, ShortCall};
#[cfg(debug_assertions)]
use crate::progress::steps::{self, Phase};
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

/// What all ranks of a call say with their flags.
#[derive(Clone, Copy)]
pub(super) struct Alike {
    pub bytes: usize,
    /// Turns count.
    pub changes_hands: bool,
}

impl Alike {
    fn of(short: &ShortCall) -> Alike {
        Alike {
            bytes: short.bytes,
            changes_hands: short.changes_hands,
        }
    }
}

/// How far a peer is.
pub(super) enum Look {
    There,
    Late,
    Unusual,
}

/// A call in flight, as its flags tell.
#[derive(Clone, Copy)]
pub(super) struct InFlight {
    pub call: u32,
    pub set: usize,
    pub turn: u16,
    /// Of slots, where they change hands.
    pub in_turn: u16,
}

impl SegmentCalls {
    /// The first peer that is not known to have completed a call.
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
        let sets = short.program.sets();
        if let Some((before, _)) = SegmentCalls::awaited(&calls.before(), set, sets) {
            let mut looks = 0;
            while let Some(peer) = self.not_past_before(before) {
                looks += 1;
                if !wait(self, peer, looks) {
                    return Short::NotBegun;
                }
            }
        }
        let turn = self.port.in_segment.turns[set];
        let at = InFlight {
            call: number,
            set,
            turn,
            in_turn: if short.changes_hands { turn } else { 0 },
        };
        let Ok(Some(collective)) = self.port.links.collective(IN_ORDER) else {
            return Short::NotBegun;
        };
        let Ok(Ok(slot)) = collective.own_slot(set, short.slot_bytes, at.in_turn) else {
            return Short::NotBegun;
        };
        if short.slot_bytes > BESIDE_FLAG_BYTES {
            collective.lend(set, 0);
        }
        room.slot_at(slot);
        for step in &*short.before {
            if !take(step, short, at, collective, room) {
                return Short::NotBegun;
            }
        }
        if let Some(phase) = short.raised {
            raise(Alike::of(short), at, phase, collective);
            self.port.links.wake_members();
        }
        let (numbers, before) = self.counted(number, set, sets);
        if short.changes_hands {
            self.port.in_segment.turns[set] = turn.wrapping_add(1);
        }
        let come = self.await_flags((Alike::of(short), at), &short.awaited, wait);
        let taken = short.first_awaited() + come;
        if come < short.awaited.len() {
            return self.left_to_steps(sets, before, (numbers, taken));
        }
        let Some(collective) = self.port.links.opened_collective() else {
            return self.left_to_steps(sets, before, (numbers, taken));
        };
        for (taken, step) in (taken..).zip(&*short.behind) {
            if !take(step, short, at, collective, room) {
                return self.left_to_steps(sets, before, (numbers, taken));
            }
        }
        collective.set_done(Done {
            call: number.wrapping_add(1),
            segments: 0,
        });
        self.port.links.wake_members();
        Short::Done
    }

    /// Counts a call, once its peers have what they need; its numbers, and what used the sets
    /// before.
    #[inline(always)]
    pub(super) fn counted(&mut self, call: u32, set: usize, sets: Sets) -> (Numbers, Before) {
        let tags = self.executor.next_tags();
        let calls = &mut self.port.in_segment;
        let before = calls.before();
        calls.uses(set, call, sets);
        (Numbers { tags, call }, before)
    }

    /// Waits for the flags of peers, one after the other; how many are raised when it ends, which
    /// is before all are if one is unusual or `wait` says so.
    #[inline(always)]
    pub(super) fn await_flags(
        &mut self,
        (all, at): (Alike, InFlight),
        awaited: &[Awaited],
        mut wait: impl FnMut(&mut Lane, u32, u32) -> bool,
    ) -> usize {
        for (come, peer) in awaited.iter().enumerate() {
            let mut looks = 0;
            loop {
                match self.look(all, at, *peer) {
                    Look::There => break,
                    Look::Late => looks += 1,
                    Look::Unusual => return come,
                }
                if !wait(self, peer.from, looks) {
                    return come;
                }
            }
        }
        awaited.len()
    }

    /// Leaves a call to the steps of its program, behind what was taken of it.
    #[cold]
    pub(super) fn left_to_steps(
        &mut self,
        sets: Sets,
        before: Before,
        (numbers, taken): (Numbers, usize),
    ) -> Short {
        self.port.in_segment.begun.push(Begun {
            call: numbers.call,
            before,
            sets,
            over: 0,
            lent: false,
        });
        Short::Taken(numbers, taken)
    }

    /// The first peer for which the last call of a set is not over, as far as is known or seen.
    #[inline]
    fn not_past_before(&mut self, before: u32) -> Option<u32> {
        let own = self.port.own;
        let peer = self.port.in_segment.not_known_past(own, before)?;
        let (of, call, segment) = (IN_ORDER, before, u16::MAX);
        match self.not_past(At { of, call, segment }, Readers::All) {
            Ok(peer) => peer,
            // For the steps to tell.
            Err(_) => Some(peer),
        }
    }

    /// Whether a peer's flag is raised.
    #[inline(always)]
    pub(super) fn look(&mut self, all: Alike, at: InFlight, peer: Awaited) -> Look {
        let Awaited { from, phase } = peer;
        let Some(collective) = self.port.links.opened_collective() else {
            return Look::Unusual;
        };
        let raised = match collective.flag(from, at.set) {
            Ok(Some(raised)) => raised,
            Ok(None) => return Look::Late,
            Err(_) => return Look::Unusual,
        };
        if raised.call != at.call || raised.progress < phase {
            let late = raised.call == at.call || below(raised.call, at.call);
            return if late { Look::Late } else { Look::Unusual };
        }
        let Ok(said) = collective.said(from, at.set, at.call) else {
            return Look::Unusual;
        };
        let alike = said.bytes == all.bytes as u64
            && (!all.changes_hands || said.turn == at.turn)
            && raised.progress != FAILED;
        let known = self.port.in_segment.peers.get_mut(from as usize);
        let Some(known) = known.filter(|_| alike) else {
            return Look::Unusual;
        };
        if known.done.is_none_or(|done| below(done.call, said.done)) {
            known.done = Some(Done {
                call: said.done,
                segments: 0,
            });
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Handled, steps::FLAG);
        Look::There
    }
}

#[inline(always)]
pub(super) fn raise(all: Alike, at: InFlight, phase: u16, collective: &Collective) {
    let said = Said {
        bytes: all.bytes as u64,
        done: at.call,
        turn: at.turn,
    };
    let raised = Raised {
        call: at.call,
        progress: phase,
    };
    #[cfg(debug_assertions)]
    steps::at(Phase::Posts, steps::FLAG);
    collective.raise(at.set, raised, said);
    #[cfg(debug_assertions)]
    steps::at(Phase::Posted, steps::FLAG);
}

/// Takes a move; false: what it reads is elsewhere.
#[inline]
fn take(
    step: &Move,
    short: &ShortCall,
    at: InFlight,
    collective: &Collective,
    room: &mut Room,
) -> bool {
    let source = |place: Place, room: &mut Room| {
        let base = match place.of {
            Memory::Peer(peer) => slot_of(short, at, peer, collective)?,
            own => room.at(own).cast_const(),
        };
        Some(base.wrapping_add(place.offset as usize))
    };
    match *step {
        Move::Copy { from, to, bytes } => {
            let Some(source) = source(from, room) else {
                return false;
            };
            let into = room.at(to.of).wrapping_add(to.offset as usize);
            // SAFETY: invariant 1: as many bytes each.
            unsafe { copy_short(source, into, bytes as usize) };
            take_lines(short, at, (from, bytes), collective);
        }
        Move::Fold {
            left,
            right,
            into,
            bytes,
        } => {
            let (Some(first), Some(second)) = (source(left, room), source(right, room)) else {
                return false;
            };
            let to = room.at(into.of).wrapping_add(into.offset as usize);
            let length = bytes as usize;
            match (short.few, short.known) {
                (Some(function), _) if length <= FEW_BYTES => {
                    // SAFETY: invariant 1: as many bytes each, of pieces that are apart, or one.
                    unsafe { function(first, second, to, length) };
                }
                (_, Some((operator, element))) => {
                    // SAFETY: invariant 1: as many bytes each, of pieces that are apart, or one.
                    let done = unsafe { operator.combine_raw(element, first, second, to, length) };
                    if done.is_err() {
                        return false;
                    }
                }
                (_, None) => return false,
            }
            take_lines(short, at, (left, bytes), collective);
            take_lines(short, at, (right, bytes), collective);
        }
    }
    true
}

/// Where a peer's slot lies. None: not where slots are.
#[inline]
fn slot_of(
    short: &ShortCall,
    at: InFlight,
    peer: u32,
    collective: &Collective,
) -> Option<*const u8> {
    let bytes = short.slot_bytes;
    if bytes <= BESIDE_FLAG_BYTES {
        return Some(collective.beside_flag(peer, at.set));
    }
    if collective.lent(peer, at.set) != 0 {
        return None;
    }
    let slot = collective.slot_of(peer, at.set, bytes, at.in_turn);
    slot.ok()?.address()
}

#[inline]
fn take_lines(
    short: &ShortCall,
    at: InFlight,
    (place, bytes): (Place, u32),
    collective: &Collective,
) {
    let bytes = bytes as usize;
    if short.one_reader
        && bytes >= LEAST_TAKEN
        && let Memory::Peer(peer) = place.of
        && let Ok(slot) = collective.slot_of(peer, at.set, short.slot_bytes, at.in_turn)
    {
        // SAFETY: invariant 3 of `in_segment`: nobody else reads this piece of the slot.
        unsafe { slot.take_lines(place.offset as usize, bytes) };
    }
}
