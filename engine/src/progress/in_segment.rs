//! The lane as the segment of its communicator's ranks: calls that are in flight there.
//!
//! # Invariants
//! 1. Calls are listed in the order in which the program makes them, on all ranks, from then
//!    until they end. Segment s of a call uses set (call + s) mod 2, and enters when this rank is
//!    done with the call that used the set before. A rank that writes for its peers enters when
//!    they, too, are done with the last call in which its flag or slot was written: so nobody
//!    reads them when they are written again. That may be some calls back, where others were
//!    roots; in calls whose slots change hands all ranks write all slots. A rank that writes
//!    nothing waits for nobody. Where the last write was for neighbors, and this one is, those
//!    are asked that the rank sends to: of what was before, all were done when that one entered.
//! 2. Below the lowest call that is listed, or behind the last, all are over, which peers are
//!    told when one ends, and when a segment of the lowest does.
//!    A persistent call has a list and sets of its own, where the calls are its starts: their
//!    order is that of one request, whatever others do.
//! 3. Turns are counted by calls in which all ranks write slots, and read those of all others,
//!    so they are equal on all ranks that make the same calls. Ranks that find another's bytes
//!    to differ begin to count anew.

pub mod persistent;
mod short_blocks;
pub mod short_calls;

pub use persistent::CallsOfPersistent;

use super::failures::ended;
use super::lane::Lane;
#[cfg(debug_assertions)]
use super::steps::{self, Phase};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::{Driver, NOBODY, REVOKED, instead_of_flags};
use crate::exec::in_segment::{At, FAILED, IN_ORDER, Part, Segment, Waited};
use crate::exec::program::Sets;
use crate::view::RawView;
use osier_transports::shm::{BESIDE_FLAG_BYTES, Done, Raised, Said};
use osier_transports::{Death, PeerMemory, TransportError, TransportErrorKind};

/// Calls of a lane in its segment.
#[derive(Debug, Default)]
pub struct SegmentCalls {
    /// In flight.
    begun: Vec<Begun>,
    /// The last that was made, by the sets that it uses.
    last: [Option<u32>; 2],
    /// The last that wrote this rank's flag or slot of each set.
    written: [Option<Written>; 2],
    /// The next turn of each set.
    turns: [u16; 2],
    /// How far each peer is known to be.
    peers: Vec<Known>,
    /// Calls that end when no peer reads what they have lent, with their last segment.
    lent: Vec<(u32, u16)>,
    /// A call has ended before the segment was there: peers are told when one enters.
    untold: bool,
}

/// A call that wrote a flag or slot of this rank.
#[derive(Clone, Copy, Debug)]
struct Written {
    call: u32,
    /// Only neighbors read it.
    of_neighbors: bool,
}

/// A call in flight.
#[derive(Clone, Copy, Debug)]
struct Begun {
    call: u32,
    /// As they were before it.
    before: Before,
    sets: Sets,
    /// Segments that are over.
    over: u16,
    /// Peers read memory of the program's in its place.
    lent: bool,
}

/// What used the sets of a rank before a call.
#[derive(Clone, Copy, Debug)]
struct Before {
    last: [Option<u32>; 2],
    written: [Option<Written>; 2],
    /// The turn of the call's first use of each.
    turns: [u16; 2],
}

/// Who reads what a rank writes in a call.
#[derive(Clone, Copy, Debug)]
enum Readers {
    All,
    /// Those that it sends to.
    Neighbors,
}

/// How far a peer is known to be.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    done: Option<Done>,
    /// The last flag that was seen: what is before it in its call is over there.
    seen: Option<At>,
}

/// Whether a number, which grows around the end of its type, is below another.
fn below(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn set_of(at: At) -> usize {
    ((at.call ^ u32::from(at.segment)) & 1) as usize
}

#[cold]
fn no_segment() -> Error {
    Error::new(ErrorKind::Closed, "the segment is not there")
}

/// Bits of progress for phases.
const PHASES: u16 = 8;

impl Known {
    /// Whether this segment of a call, and all before, are over.
    fn is_past(self, call: u32, segment: u16) -> bool {
        let done = self.done.is_some_and(|done| {
            below(call, done.call) || done.call == call && done.segments > segment
        });
        done || self
            .seen
            .is_some_and(|seen| seen.call == call && seen.segment > segment)
    }
}

impl SegmentCalls {
    /// How far all is over here, after this call has ended.
    #[inline]
    fn over(&self, call: u32) -> Done {
        let last = self.last.into_iter().flatten();
        let last = last.fold(
            call,
            |last, other| if below(last, other) { other } else { last },
        );
        let none = Done {
            call: last.wrapping_add(1),
            segments: 0,
        };
        self.begun
            .iter()
            .fold(none, |lowest, begun| match below(begun.call, lowest.call) {
                true => Done {
                    call: begun.call,
                    segments: begun.over,
                },
                false => lowest,
            })
    }

    #[inline]
    fn find(&self, call: u32) -> Option<&Begun> {
        self.begun.iter().find(|begun| begun.call == call)
    }

    /// Whose turn it is to write which slot.
    #[inline]
    fn turn(&self, at: At) -> u16 {
        let begun = self.find(at.call).filter(|begun| begun.sets.changes_hands);
        begun.map_or(0, |begun| {
            begun.before.turns[set_of(at)].wrapping_add(at.segment / 2)
        })
    }

    /// Counts the first use of a set by a call.
    #[inline(always)]
    fn uses(&mut self, set: usize, call: u32, sets: Sets) {
        self.last[set] = Some(call);
        if sets.writes || sets.changes_hands {
            let of_neighbors = sets.of_neighbors;
            self.written[set] = Some(Written { call, of_neighbors });
        }
    }

    #[inline(always)]
    fn before(&self) -> Before {
        Before {
            last: self.last,
            written: self.written,
            turns: self.turns,
        }
    }

    /// For a call that begins: the call before it that is to be over, and on which ranks.
    #[inline(always)]
    fn awaited(before: &Before, set: usize, sets: Sets) -> Option<(u32, Readers)> {
        if sets.changes_hands {
            return before.last[set].map(|call| (call, Readers::All));
        }
        let written = before.written[set].filter(|_| sets.writes)?;
        let readers = match sets.of_neighbors && written.of_neighbors {
            true => Readers::Neighbors,
            false => Readers::All,
        };
        Some((written.call, readers))
    }
}

impl Lane {
    /// The program makes a call whose flags lie in the segment.
    #[inline]
    pub fn begins_in_segment(&mut self, call: u32, sets: Sets) {
        let (of, segment) = (IN_ORDER, 0);
        self.begins_at(At { of, call, segment }, sets);
    }

    /// The same in any segment.
    #[inline]
    pub fn begins_at(&mut self, At { of, call, .. }: At, sets: Sets) {
        let calls = self.port.calls_in(of);
        let begun = Begun {
            call,
            before: calls.before(),
            sets,
            over: 0,
            lent: false,
        };
        for at in 0..sets.segments.min(2) as u16 {
            let set = set_of(At {
                of,
                call,
                segment: at,
            });
            calls.uses(set, call, sets);
            if sets.changes_hands {
                let uses = (sets.segments - u32::from(at)).div_ceil(2);
                calls.turns[set] = calls.turns[set].wrapping_add(uses as u16);
            }
        }
        calls.begun.push(begun);
    }

    /// Why nothing comes from a peer in a segment, if it is known that nothing will. Its words
    /// there are not read again: who looks for a flag again and again would keep the peer from
    /// writing them.
    #[inline]
    fn lost_in_segment(&mut self, peer: u32) -> Option<(Error, u32)> {
        if self.troubles == 0 && self.port.left_count == 0 {
            return None;
        }
        let gone = self.gone_in_segment(peer);
        gone.or_else(|| Some((self.revoked_error("collective")?, REVOKED)))
    }

    /// Why a peer takes part in no call any more.
    #[cold]
    pub(crate) fn gone_in_segment(&mut self, peer: u32) -> Option<(Error, u32)> {
        let member = self.port.members.get(peer as usize);
        let member = member.copied().unwrap_or(NOBODY);
        if let Some(how) = self.death(peer) {
            return Some((ended("collective", peer, how), member));
        }
        if self.port.peers[peer as usize].left.is_some() {
            let left = format!(
                "collective: rank {peer} has dropped the communicator (hint: all ranks make the \
                 same collective calls)"
            );
            return Some((Error::new(ErrorKind::Closed, left), member));
        }
        if self.port.peers[peer as usize].retired {
            return Some((self.port.revoked("collective"), REVOKED));
        }
        None
    }

    /// Whether a peer has failed in this call while the segment was not there: the error, and
    /// the failed rank of the job.
    #[inline]
    fn failed_without_flag(&mut self, at: At) -> Option<(Error, u32)> {
        if self.unexpected.is_empty() {
            return None;
        }
        let (peer, failed_rank) = self.poisoned_by(instead_of_flags(at.of, at.call))?;
        let e = self.meets_poison(peer, failed_rank);
        self.port.failed_rank = NOBODY;
        Some((e, failed_rank))
    }

    /// Whether a peer has raised the flag that says that it has failed in this call: the error,
    /// and the failed rank of the job.
    #[cold]
    pub(crate) fn failed_flag(&mut self, at: At, peer: u32) -> Result<Option<(Error, u32)>> {
        let set = set_of(at);
        let Some(collective) = self.port.links.collective(at.of)? else {
            return Ok(None);
        };
        let failed = match collective.flag(peer, set) {
            Ok(raised) => raised.is_some_and(|r| r.call == at.call && r.progress == FAILED),
            Err(e) => return Err(self.overwritten_in_segment(peer, e)),
        };
        if !failed {
            return Ok(None);
        }
        let failed_rank = collective.failed_for(peer, set);
        Ok(Some((
            self.meets_failed_flag(peer, failed_rank),
            failed_rank,
        )))
    }

    #[cold]
    fn meets_failed_flag(&mut self, peer: u32, failed_rank: u32) -> Error {
        let e = self.meets_poison(peer, failed_rank);
        self.port.failed_rank = NOBODY;
        e
    }

    /// What a peer has in the segment was overwritten: nothing of it is believed any more.
    #[cold]
    fn overwritten_in_segment(&mut self, peer: u32, e: TransportError) -> Error {
        if e.kind() == TransportErrorKind::Malformed {
            self.peer_ended(peer, Death::Overwritten);
        }
        Error::from(e).context("collective")
    }

    /// The first peer that is not done with what used the set before.
    #[inline]
    fn not_done(&mut self, at: At) -> Result<Option<u32>> {
        let calls = self.port.calls_in(at.of);
        let Some(begun) = calls.find(at.call) else {
            return Ok(None);
        };
        let (set, sets) = (set_of(at), begun.sets);
        let awaited = match at.segment.checked_sub(2) {
            Some(segment) if sets.writes => Some((at.call, segment, Readers::All)),
            Some(_) => None,
            None => {
                // This rank itself may still read slots, of which it would write one.
                if begun.before.last[set].is_some_and(|call| calls.find(call).is_some()) {
                    return Ok(Some(self.port.own));
                }
                let awaited = SegmentCalls::awaited(&begun.before, set, sets);
                awaited.map(|(call, readers)| (call, u16::MAX, readers))
            }
        };
        match awaited {
            Some((call, segment, readers)) => {
                let of = at.of;
                self.not_past(At { of, call, segment }, readers)
            }
            None => Ok(None),
        }
    }

    /// The first of these peers for which this segment of a call is not over.
    #[inline]
    fn not_past(&mut self, at: At, readers: Readers) -> Result<Option<u32>> {
        let peers = self.port.peers.len();
        let count = match readers {
            Readers::All => peers,
            Readers::Neighbors => self.port.sends_to.len(),
        };
        for number in 0..count {
            let peer = match readers {
                Readers::All => number as u32,
                Readers::Neighbors => self.port.sends_to[number],
            };
            if peer == self.port.own || self.is_past(at, peer)? {
                continue;
            }
            // A rank that is gone reads nothing any more.
            let any = self.troubles > 0 || self.port.left_count > 0;
            if !any || self.gone_in_segment(peer).is_none() {
                return Ok(Some(peer));
            }
        }
        Ok(None)
    }

    /// Whether this segment of a call, and all before, are over for a peer, as far as it has told.
    #[inline]
    pub(crate) fn is_past(&mut self, at: At, peer: u32) -> Result<bool> {
        let At { call, segment, .. } = at;
        let peers = self.port.peers.len();
        let calls = self.port.calls_in(at.of);
        if calls.peers.len() != peers {
            calls.peers.resize(peers, Known::default());
        }
        if calls.peers[peer as usize].is_past(call, segment) {
            return Ok(true);
        }
        let Some(collective) = self.port.links.collective(at.of)? else {
            return Ok(false);
        };
        match collective.done(peer) {
            Ok(done) => self.port.calls_in(at.of).peers[peer as usize].done = done,
            Err(e) => return Err(self.overwritten_in_segment(peer, e)),
        }
        let known = self.port.calls_in(at.of).peers[peer as usize];
        Ok(known.is_past(call, segment))
    }

    /// Tells peers of calls that have ended before the segment was there. Comes before this rank
    /// waits for a peer, since the peer may wait to be told.
    #[inline]
    fn tell_untold(&mut self, at: At) {
        if std::mem::take(&mut self.port.calls_in(at.of).untold) {
            let over = self.port.calls_in(at.of).over(at.call);
            self.say_done(at.of, over);
        }
    }

    #[inline]
    fn say_done(&mut self, of: u32, done: Done) {
        if let Ok(Some(collective)) = self.port.links.collective(of) {
            collective.set_done(done);
            self.port.links.wake_members();
        } else {
            self.port.calls_in(of).untold = true;
        }
    }
}

impl Segment for Lane {
    #[inline]
    fn rank(&self) -> u32 {
        self.port.own
    }

    #[inline]
    fn enter(&mut self, at: At, slot_bytes: usize) -> Waited<*mut u8> {
        if self.troubles != 0
            && let Some(e) = self.revoked_error("collective")
        {
            return Waited::Failed(e, REVOKED);
        }
        match self.port.links.collective(at.of) {
            Ok(Some(_)) => {}
            Ok(None) => {
                let members = self.port.members.iter().enumerate();
                let lowest = members.min_by_key(|(_, member)| **member);
                let lowest = lowest.map_or(0, |(peer, _)| peer as u32);
                if let Some((e, failed_rank)) = self.lost_in_segment(lowest) {
                    return Waited::Failed(e, failed_rank);
                }
                return match self.failed_without_flag(at) {
                    Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                    None => Waited::For(lowest),
                };
            }
            Err(e) => return Waited::Failed(Error::from(e).context("collective"), NOBODY),
        }
        self.tell_untold(at);
        match self.not_done(at) {
            Ok(None) => {}
            Ok(Some(peer)) => return Waited::For(peer),
            Err(e) => return Waited::Failed(e, NOBODY),
        }
        let turn = self.port.calls_in(at.of).turn(at);
        let slot = match self.port.links.collective(at.of) {
            Ok(Some(collective)) => collective.own_slot(set_of(at), slot_bytes, turn),
            _ => return Waited::For(self.port.own),
        };
        match slot {
            Ok(Ok(slot)) => Waited::Done(slot),
            Ok(Err(peer)) => {
                // Its turn is to write where another has not made its slots yet, which it
                // does when it enters, unless it fails before.
                self.port.links.wake_members();
                let failed = match self.failed_flag(at, peer) {
                    Ok(failed) => failed,
                    Err(e) => return Waited::Failed(e, NOBODY),
                };
                let failed = failed.or_else(|| self.failed_without_flag(at));
                match failed.or_else(|| self.lost_in_segment(peer)) {
                    Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                    None => Waited::For(peer),
                }
            }
            Err(e) => Waited::Failed(Error::from(e).context("collective"), NOBODY),
        }
    }

    fn publish(&mut self, at: At, input: &RawView, output: &RawView) -> Result<()> {
        let mut places = [0; 2];
        for (place, view) in places.iter_mut().zip([input, output]) {
            if view.bytes() == 0 {
                continue;
            }
            let place_of = |at: *mut u8| self.port.links.place_of(at, view.bytes());
            // A result with gaps is read by nobody.
            let Some(start) = view.as_contiguous() else {
                continue;
            };
            *place = place_of(start).ok_or_else(|| {
                let told = "the system refuses cross-memory attach between these processes";
                Error::new(ErrorKind::Unavailable, told)
            })?;
        }
        if let Some(collective) = self.port.links.collective(at.of)? {
            collective.publish(set_of(at), places);
        }
        Ok(())
    }

    #[inline]
    fn lend(&mut self, at: At, memory: Option<(*const u8, usize)>) -> bool {
        let place = memory.and_then(|(start, bytes)| self.port.links.lends(start, bytes));
        if place.is_some() {
            let begun = self.port.calls_in(at.of).begun.iter_mut();
            begun
                .filter(|begun| begun.call == at.call)
                .for_each(|begun| begun.lent = true);
        }
        if let Ok(Some(collective)) = self.port.links.collective(at.of) {
            collective.lend(set_of(at), place.unwrap_or(0));
        }
        place.is_some()
    }

    #[inline]
    fn raise(&mut self, at: At, phase: u16, bytes: u64) {
        let calls = self.port.calls_in(at.of);
        let begun = calls.find(at.call);
        let said = Said {
            bytes,
            done: calls.over(at.call).call,
            turn: begun.map_or(0, |begun| begun.before.turns[set_of(at)]),
        };
        let raised = Raised {
            call: at.call,
            progress: at.segment * PHASES + phase,
        };
        #[cfg(debug_assertions)]
        steps::at(Phase::Posts, steps::FLAG);
        if let Ok(Some(collective)) = self.port.links.collective(at.of) {
            collective.raise(set_of(at), raised, said);
            self.port.links.wake_members();
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Posted, steps::FLAG);
    }

    fn may_raise(&mut self, at: At) -> Waited<()> {
        if !matches!(self.port.links.collective(at.of), Ok(Some(_))) {
            return Waited::Done(());
        }
        self.tell_untold(at);
        match self.not_done(at) {
            Ok(Some(peer)) => Waited::For(peer),
            Ok(None) | Err(_) => Waited::Done(()),
        }
    }

    #[cold]
    fn raise_failed(&mut self, at: At, failed_rank: u32) {
        let raised = Raised {
            call: at.call,
            progress: FAILED,
        };
        if let Ok(Some(collective)) = self.port.links.collective(at.of) {
            // Peers may look at either set.
            for set in [0, 1] {
                if set == set_of(at) || at.segment > 0 {
                    collective.fail(set, raised, failed_rank);
                }
            }
            return self.port.links.wake_members();
        }
        // It is not there, and this call does not wait for it.
        let own = self.port.own;
        let calls = self.port.calls_in(at.of);
        let hear: Vec<u32> = match calls.find(at.call).is_some_and(|b| b.sets.of_neighbors) {
            true => self.port.sends_to.to_vec(),
            false => (0..self.port.peers.len() as u32).collect(),
        };
        for peer in hear.into_iter().filter(|p| *p != own) {
            self.poison(peer, instead_of_flags(at.of, at.call), failed_rank);
        }
    }

    #[inline]
    fn flag(&mut self, at: At, from: u32, phase: u16) -> Waited<u64> {
        let set = set_of(at);
        let collective = match self.port.links.collective(at.of) {
            Ok(Some(collective)) => collective,
            Ok(None) => {
                // Of a rank that has failed before it entered.
                let failed = self.failed_without_flag(at);
                return match failed.or_else(|| self.lost_in_segment(from)) {
                    Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                    None => Waited::For(from),
                };
            }
            Err(e) => return Waited::Failed(Error::from(e), NOBODY),
        };
        let raised = match collective.flag(from, set) {
            Ok(raised) => raised,
            Err(e) => return Waited::Failed(self.overwritten_in_segment(from, e), NOBODY),
        };
        let wanted = at.segment * PHASES + phase;
        let there =
            raised.filter(|r| below(at.call, r.call) || r.call == at.call && r.progress >= wanted);
        let Some(raised) = there else {
            let failed = self.failed_without_flag(at);
            return match failed.or_else(|| self.lost_in_segment(from)) {
                Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                None => Waited::For(from),
            };
        };
        if raised.call == at.call && raised.progress == FAILED {
            let failed_rank = collective.failed_for(from, set);
            return Waited::Failed(self.meets_failed_flag(from, failed_rank), failed_rank);
        }
        let said = match collective.said(from, set, at.call) {
            Ok(said) => said,
            Err(e) => return Waited::Failed(self.overwritten_in_segment(from, e), NOBODY),
        };
        let ranks = self.port.peers.len();
        let calls = self.port.calls_in(at.of);
        if calls.peers.len() <= from as usize {
            calls.peers.resize(ranks, Known::default());
        }
        let known = &mut calls.peers[from as usize];
        known.seen = Some(at);
        if known.done.is_none_or(|done| below(done.call, said.done)) {
            known.done = Some(Done {
                call: said.done,
                segments: 0,
            });
        }
        let begun = calls.find(at.call);
        let other = begun.is_some_and(|b| b.sets.changes_hands && b.before.turns[set] != said.turn);
        if other {
            self.turns_anew(at.of);
            let told = format!(
                "collective: rank {from} has made other collective calls before (hint: all ranks \
                 make the same collective calls, with the same counts)"
            );
            return Waited::Failed(Error::new(ErrorKind::Argument, told), NOBODY);
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Handled, steps::FLAG);
        Waited::Done(said.bytes)
    }

    #[cold]
    fn may_read(&mut self, at: At, from: u32) -> bool {
        self.is_revoked() && self.still_reads(at, from)
    }

    #[cold]
    fn turns_anew(&mut self, of: u32) {
        self.port.calls_in(of).turns = [0; 2];
    }

    #[inline]
    fn memory_of(&mut self, at: At, from: u32, part: Part, end: usize) -> Result<PeerMemory> {
        let turn = self.port.calls_in(at.of).turn(at);
        let Some(collective) = self.port.links.collective(at.of)? else {
            return Err(no_segment());
        };
        let memory = match part {
            Part::Slot(bytes) => {
                let place = match bytes > BESIDE_FLAG_BYTES {
                    true => collective.lent(from, set_of(at)),
                    false => 0,
                };
                match place {
                    0 => collective.slot_of(from, set_of(at), bytes, turn),
                    place => self.port.links.peer_memory(from, place, end),
                }
            }
            Part::Input | Part::Output => {
                let [input, output] = collective.published(from, set_of(at));
                let place = if part == Part::Input { input } else { output };
                self.port.links.peer_memory(from, place, end)
            }
        };
        memory.map_err(|e| self.overwritten_in_segment(from, e))
    }

    #[inline]
    fn own_room(&mut self, at: At, bytes: usize) -> Result<*mut u8> {
        let Some(collective) = self.port.links.collective(at.of)? else {
            return Err(no_segment());
        };
        collective
            .own_slot(set_of(at), bytes, 0)?
            .map_err(|_| no_segment())
    }

    #[inline]
    fn room_of(&mut self, at: At, from: u32, bytes: usize) -> Result<PeerMemory> {
        let Some(collective) = self.port.links.collective(at.of)? else {
            return Err(no_segment());
        };
        let memory = collective.slot_of(from, set_of(at), bytes, 0);
        memory.map_err(|e| self.overwritten_in_segment(from, e))
    }

    #[inline]
    fn leave(&mut self, at: At, last: bool) -> Waited<()> {
        let calls = self.port.calls_in(at.of);
        let listed = calls.begun.iter().position(|b| b.call == at.call);
        if let Some(listed) = listed {
            calls.begun[listed].over = at.segment + 1;
            if last {
                // Calls end in the order in which they were made, as a rule.
                let ended = match listed + 1 == calls.begun.len() {
                    true => calls.begun.pop(),
                    false => Some(calls.begun.remove(listed)),
                };
                let ended = ended.filter(|ended| ended.lent);
                if ended.is_some() {
                    calls.lent.push((at.call, at.segment));
                }
            }
            let over = calls.over(at.call);
            self.say_done(at.of, over);
        }
        if last && !self.port.calls_in(at.of).lent.is_empty() {
            return self.waits_for_readers(at);
        }
        Waited::Done(())
    }

    #[cold]
    fn lost_while_reading(&mut self, from: u32, e: Error) -> (Error, u32) {
        if let Some(lost) = self.lost_in_segment(from) {
            return lost;
        }
        let member = self.port.members.get(from as usize);
        match e.kind() {
            // The transport counts the ranks of the job, not ours.
            ErrorKind::RankDead => {
                let told = format!("collective: rank {from} is dead");
                let e = Error::new(ErrorKind::RankDead, told);
                (e, member.copied().unwrap_or(NOBODY))
            }
            _ => (e, NOBODY),
        }
    }
}

impl Lane {
    /// The ranks that this one sends to in calls of neighbors, which hear of it there.
    pub fn sends_to(&mut self, ranks: impl Iterator<Item = u32>) {
        let own = self.port.own;
        let mut ranks: Vec<u32> = ranks.filter(|rank| *rank != own).collect();
        ranks.sort_unstable();
        ranks.dedup();
        self.port.sends_to = ranks.into();
    }

    /// Makes a segment, if that is this rank's part: others find it there.
    pub fn makes_segment(&mut self, of: u32) {
        // An error is that of the first call.
        let _ = self.port.links.collective(of);
    }

    /// A call that has lent memory ends when no peer reads it.
    fn waits_for_readers(&mut self, at: At) -> Waited<()> {
        let lent = self.port.calls_in(at.of).lent.iter();
        let lent = lent.copied().enumerate();
        let Some((place, (call, segment))) = { lent }.find(|(_, l)| l.0 == at.call) else {
            return Waited::Done(());
        };
        // Of a peer whose words were overwritten nothing is known any more.
        let of = at.of;
        if let Ok(Some(peer)) = self.not_past(At { of, call, segment }, Readers::All) {
            return Waited::For(peer);
        }
        self.port.calls_in(of).lent.swap_remove(place);
        Waited::Done(())
    }
}
