//! Messages along edges that are longer than one of the transport's, and are copied: in parts,
//! each of which goes straight to the slot.
//!
//! ```text
//! EDGE_FIRST id:place, bytes, elements  -> room in the slot, the first elements there
//! EDGE_PART id:place, elements          -> more of them
//! EDGE id:place, elements               -> the rest: the consumers are told
//! ```
//!
//! # Invariants
//! 1. Room that a sink gave is used while the run is open, which has the sink, and until the
//!    sink is told that it is full. A branch has one message on its way at a time: long ones are
//!    refused meanwhile, and a run has one id.

use super::super::lane::Lane;
use super::{At, EdgeRun, place_of};
use crate::protocol::select::Memory;
use crate::view::RawView;
use crate::wire;

/// A message of which the first parts have come.
pub(super) struct Parts {
    /// None: it is malformed, and what follows of it is dropped.
    room: Option<RawView>,
    bytes: usize,
    filled: usize,
}

impl Parts {
    /// Copies the next part. False: the message is malformed.
    fn add(&mut self, part: &[u8]) -> bool {
        let fits = part.len() <= self.bytes - self.filled;
        let Some(room) = self.room.as_ref().filter(|_| fits) else {
            self.room = None;
            return false;
        };
        let to = self.filled..self.filled + part.len();
        // SAFETY: invariant 1: there is room for as many bytes.
        unsafe { room.unpack(to.clone(), part.as_ptr()) };
        self.filled = to.end;
        true
    }

    fn is_whole(&self) -> bool {
        self.room.is_some() && self.filled == self.bytes
    }
}

impl Lane {
    /// Most bytes of a message that is copied into messages of the transport. A peer that is a
    /// thread of this process reads longer ones where they lie; to others that is the eager limit.
    pub fn most_copied_of_edges(&self, peer: u32) -> usize {
        let state = &self.port.peers[peer as usize];
        let whole = state.always_eager;
        match self.port.links.sharing(peer).process {
            true => whole,
            false => state.selection.eager_max(Memory::Plain).max(whole),
        }
    }

    /// Posts a message of an edge, in parts if it is long, or keeps it until there is room.
    #[inline]
    pub fn post_edge(&mut self, run: EdgeRun, peer: u32, place: u32, packed: &[u8]) {
        let low = self.name_run(run, peer, place);
        let rest = match packed.len() <= self.port.peers[peer as usize].always_eager {
            true => packed,
            false => self.post_parts(peer, low, packed),
        };
        self.post_kept(peer, wire::head(wire::EDGE, 0, low, 0), rest);
    }

    /// Posts a message but for its last part, which is returned.
    fn post_parts<'a>(&mut self, peer: u32, low: u32, packed: &'a [u8]) -> &'a [u8] {
        let most = self.port.links.max_payload(peer);
        let costs = self.port.peers[peer as usize].selection.costs();
        let part = costs.fragment_bytes(packed.len()).clamp(1, most.max(1));
        if packed.len() <= part {
            return packed;
        }
        let length = (packed.len() as u64).to_le_bytes();
        let (first, mut rest) = packed.split_at(part.saturating_sub(length.len()));
        let head = wire::head(wire::EDGE_FIRST, 0, low, 0);
        self.post_filled(peer, head, length.len() + first.len(), |to| {
            // SAFETY: invariant 3 of `edges`: there is room for the length.
            unsafe { std::ptr::copy_nonoverlapping(length.as_ptr(), to, length.len()) };
            let to = to.wrapping_add(length.len());
            // SAFETY: invariant 3 of `edges`: and for the elements behind it.
            unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), to, first.len()) };
        });
        while rest.len() > part {
            let (next, more) = rest.split_at(part);
            self.post_kept(peer, wire::head(wire::EDGE_PART, 0, low, 0), next);
            rest = more;
        }
        rest
    }

    /// The first part of a message has come, to a run that may be touched. False: it is
    /// malformed.
    pub(super) fn begin_parts(&mut self, run: usize, at: At, payload: &[u8]) -> bool {
        let active = &mut self.edges.active[run];
        let Some((length, first)) = payload.split_first_chunk() else {
            return false;
        };
        let bytes = usize::try_from(u64::from_le_bytes(*length)).ok();
        let sink = active.sink.as_mut();
        let room = sink.zip(bytes).and_then(|(sink, bytes)| {
            let room = sink.room(at.0, place_of(at), bytes)?;
            Some(RawView::untyped(room, bytes))
        });
        let mut parts = Parts {
            bytes: bytes.unwrap_or(0),
            room,
            filled: 0,
        };
        let sound = parts.add(first);
        active.parts.insert(at, parts);
        self.post_for_run(run);
        sound
    }

    /// One more part has come. False: it is malformed.
    pub(super) fn add_part(&mut self, run: usize, at: At, part: &[u8]) -> bool {
        let parts = self.edges.active[run].parts.get_mut(&at);
        parts.is_some_and(|parts| parts.add(part))
    }

    /// The last part of a message has come, or a message of one piece. False: it is malformed.
    pub(super) fn end_parts(&mut self, run: usize, at: At, last: &[u8]) -> bool {
        let active = &mut self.edges.active[run];
        let Some(sink) = &mut active.sink else {
            return true;
        };
        let (peer, place) = (at.0, place_of(at));
        let sound = match active.parts.remove(&at) {
            None => sink.put(peer, place, last),
            Some(mut parts) => {
                let whole = parts.add(last) && parts.is_whole();
                if whole {
                    sink.arrived(peer, place);
                }
                whole
            }
        };
        self.post_for_run(run);
        sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_in(room: &mut [u8], bytes: usize) -> Parts {
        Parts {
            room: Some(RawView::untyped(room.as_mut_ptr(), room.len())),
            bytes,
            filled: 0,
        }
    }

    #[test]
    fn parts_fill_the_room_one_behind_the_other() {
        let mut room = [0; 10];
        let mut parts = parts_in(&mut room, 10);
        assert!(parts.add(&[1, 2, 3]) && parts.add(&[]) && parts.add(&[4, 5, 6, 7]));
        assert!(!parts.is_whole());
        assert!(parts.add(&[8, 9, 10]) && parts.is_whole());
        assert_eq!(room, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn parts_of_more_bytes_than_were_said_are_malformed() {
        let mut room = [0; 10];
        let mut parts = parts_in(&mut room, 5);
        assert!(parts.add(&[1; 4]));
        assert!(!parts.add(&[2; 2]), "beyond what the first part said");
        assert!(
            !parts.add(&[3]) && !parts.is_whole(),
            "nothing is taken behind that"
        );
        assert_eq!(room, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
    }
}
