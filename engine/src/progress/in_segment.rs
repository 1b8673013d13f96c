//! The lane as the segment of its communicator's ranks: calls that are in flight there.
//!
//! # Invariants
//! 1. Calls are listed in the order in which the program makes them, on all ranks, from then
//!    until they end. One of some parity enters when all peers are done with the one of this
//!    parity before: so nobody reads flag and slot when they are written again.
//! 2. Below the lowest call that is listed, or behind the last, all are over, which peers are
//!    told when one ends.

use super::failures::ended;
use super::lane::Lane;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::NOBODY;
use crate::exec::in_segment::{FAILED, Part, Segment, Waited};
use crate::view::RawView;
use osier_transports::shm::Raised;
use osier_transports::{Death, PeerMemory, TransportErrorKind};

/// Calls of a lane in its segment.
#[derive(Debug, Default)]
pub struct SegmentCalls {
    /// In flight, and the one of the same parity before each.
    begun: Vec<(u32, Option<u32>)>,
    /// The last that was made, by parity.
    last: [Option<u32>; 2],
    /// Below which number all calls of each peer are known to be over.
    done: Vec<Option<u32>>,
    /// A call has ended before the segment was there: peers are told when one enters.
    untold: bool,
}

impl SegmentCalls {
    /// Below which number all calls are over here, after this one has ended.
    fn over(&self, call: u32) -> u32 {
        let last = self.last.into_iter().flatten();
        let last = last.fold(
            call,
            |last, other| if below(last, other) { other } else { last },
        );
        let begun = self.begun.iter().map(|(begun, _)| *begun);
        begun.fold(last.wrapping_add(1), |lowest, other| {
            if below(other, lowest) { other } else { lowest }
        })
    }
}

/// Whether a number, which grows around the end of its type, is below another.
fn below(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Lane {
    /// The program makes a call whose flags lie in the segment.
    #[inline]
    pub fn begins_in_segment(&mut self, call: u32) {
        let calls = &mut self.port.in_segment;
        let before = calls.last[(call & 1) as usize].replace(call);
        calls.begun.push((call, before));
    }

    /// Why nothing comes from a peer in a segment, if it is known that nothing will. Its words
    /// there are not read again: who looks for a flag again and again would keep the peer from
    /// writing them.
    #[inline]
    fn lost_in_segment(&mut self, peer: u32) -> Option<(Error, u32)> {
        if self.dead_count == 0 && self.port.left_count == 0 {
            return None;
        }
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
        None
    }

    /// What a peer has in the segment was overwritten: nothing of it is believed any more.
    #[cold]
    fn overwritten_in_segment(&mut self, peer: u32, e: osier_transports::TransportError) -> Error {
        if e.kind() == TransportErrorKind::Malformed {
            self.peer_ended(peer, Death::Overwritten);
        }
        Error::from(e).context("collective")
    }

    /// The first peer that is not done with the call of this parity before.
    #[inline]
    fn not_done(&mut self, call: u32) -> Result<Option<u32>> {
        let calls = &mut self.port.in_segment;
        let listed = calls.begun.iter().find(|(begun, _)| *begun == call);
        let Some(last) = listed.and_then(|(_, before)| *before) else {
            return Ok(None);
        };
        let peers = self.port.peers.len();
        calls.done.resize(peers, None);
        let past = |done: Option<u32>| done.is_some_and(|done| below(last, done));
        for peer in 0..peers as u32 {
            if peer == self.port.own || past(self.port.in_segment.done[peer as usize]) {
                continue;
            }
            let Some(collective) = self.port.links.collective()? else {
                return Ok(Some(peer));
            };
            let done = collective.done(peer);
            match done {
                Ok(done) if past(done) => self.port.in_segment.done[peer as usize] = done,
                // It reads nothing any more.
                _ if self.lost_in_segment(peer).is_some() => {}
                Ok(_) => return Ok(Some(peer)),
                Err(e) => return Err(self.overwritten_in_segment(peer, e)),
            }
        }
        Ok(None)
    }
}

impl Segment for Lane {
    #[inline]
    fn rank(&self) -> u32 {
        self.port.own
    }

    #[inline]
    fn enter(&mut self, call: u32, slot_bytes: usize) -> Waited<*mut u8> {
        match self.port.links.collective() {
            Ok(Some(_)) => {}
            Ok(None) => {
                let members = self.port.members.iter().enumerate();
                let lowest = members.min_by_key(|(_, member)| **member);
                let lowest = lowest.map_or(0, |(peer, _)| peer as u32);
                return match self.lost_in_segment(lowest) {
                    Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                    None => Waited::For(lowest),
                };
            }
            Err(e) => return Waited::Failed(Error::from(e).context("collective"), NOBODY),
        }
        match self.not_done(call) {
            Ok(None) => {}
            Ok(Some(peer)) => return Waited::For(peer),
            Err(e) => return Waited::Failed(e, NOBODY),
        }
        if std::mem::take(&mut self.port.in_segment.untold) {
            let over = self.port.in_segment.over(call);
            if let Ok(Some(collective)) = self.port.links.collective() {
                collective.set_done(over);
                self.port.links.wake_members();
            }
        }
        let slot = match self.port.links.collective() {
            Ok(Some(collective)) => collective.own_slot(call, slot_bytes),
            _ => return Waited::For(self.port.own),
        };
        match slot {
            Ok(slot) => Waited::Done(slot),
            Err(e) => Waited::Failed(Error::from(e).context("collective"), NOBODY),
        }
    }

    fn publish(&mut self, call: u32, input: &RawView, output: &RawView) -> Result<()> {
        let mut places = [0; 2];
        for (place, view) in places.iter_mut().zip([input, output]) {
            if view.bytes() == 0 {
                continue;
            }
            let place_of = |at: *mut u8| self.port.links.place_of(at, view.bytes());
            // A result with gaps is read by nobody.
            let Some(at) = view.as_contiguous() else {
                continue;
            };
            *place = place_of(at).ok_or_else(|| {
                let told = "the system refuses cross-memory attach between these processes";
                Error::new(ErrorKind::Unavailable, told)
            })?;
        }
        if let Some(collective) = self.port.links.collective()? {
            collective.publish(call, places);
        }
        Ok(())
    }

    #[inline]
    fn raise(&mut self, call: u32, phase: u16, bytes: u64) {
        if let Ok(Some(collective)) = self.port.links.collective() {
            collective.raise(Raised { call, phase }, bytes);
            self.port.links.wake_members();
        }
    }

    #[inline]
    fn flag(&mut self, call: u32, from: u32, phase: u16) -> Waited<u64> {
        let collective = match self.port.links.collective() {
            Ok(Some(collective)) => collective,
            Ok(None) => return Waited::For(from),
            Err(e) => return Waited::Failed(Error::from(e), NOBODY),
        };
        let raised = match collective.flag(from, call) {
            Ok(raised) => raised,
            Err(e) => return Waited::Failed(self.overwritten_in_segment(from, e), NOBODY),
        };
        let there = raised.filter(|r| below(call, r.call) || r.call == call && r.phase >= phase);
        let Some(raised) = there else {
            return match self.lost_in_segment(from) {
                Some((e, failed_rank)) => Waited::Failed(e, failed_rank),
                None => Waited::For(from),
            };
        };
        let bytes = match collective.bytes(from, call) {
            Ok(bytes) => bytes,
            Err(e) => return Waited::Failed(self.overwritten_in_segment(from, e), NOBODY),
        };
        if raised.call == call && raised.phase == FAILED {
            let failed_rank = bytes as u32;
            let e = self.meets_poison(from, failed_rank);
            self.port.failed_rank = NOBODY;
            return Waited::Failed(e, failed_rank);
        }
        Waited::Done(bytes)
    }

    #[inline]
    fn memory_of(&mut self, call: u32, from: u32, part: Part, end: usize) -> Result<PeerMemory> {
        let Some(collective) = self.port.links.collective()? else {
            return Err(Error::new(ErrorKind::Closed, "the segment is not there"));
        };
        let memory = match part {
            Part::Slot(bytes) => collective.slot_of(from, call, bytes),
            Part::Input | Part::Output => {
                let [input, output] = collective.published(from, call);
                let place = if part == Part::Input { input } else { output };
                self.port.links.peer_memory(from, place, end)
            }
        };
        memory.map_err(|e| self.overwritten_in_segment(from, e))
    }

    #[inline]
    fn leave(&mut self, call: u32) {
        let calls = &mut self.port.in_segment;
        calls.begun.retain(|(begun, _)| *begun != call);
        let over = calls.over(call);
        if let Ok(Some(collective)) = self.port.links.collective() {
            collective.set_done(over);
            self.port.links.wake_members();
        } else {
            self.port.in_segment.untold = true;
        }
    }
}
