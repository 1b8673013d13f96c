//! What leaves by a connection, in order: short frames, and pieces of regions between them.
//!
//! ```text
//! front    frames, the last may be the head of a piece
//! piece    what is left of that piece, in memory of the user
//! rear     frames that were posted since
//! serves   requests whose next pieces go when `rear` has gone
//! ```
//!
//! # Invariants
//! 1. The bytes of a piece lie in a region that is exported: [`Out::withdraw`] copies what is
//!    left of them before the region's owner has its memory back.

use super::frame::{FrameKind, Head, PIECE_BYTES, Refusal};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes of frames from which on no message is taken.
const MOST_BYTES: usize = 1 << 20;
/// Capacity that a buffer keeps when it is empty.
const KEPT_BYTES: usize = 16 << 10;

/// A request for bytes of a region.
#[derive(Debug)]
pub(super) struct Serve {
    /// The asker's number.
    pub number: u64,
    pub region: u64,
    pub channel: u64,
    /// What is left, by address.
    pub at: *const u8,
    pub left: usize,
}

/// A piece under way.
struct Piece {
    region: u64,
    at: *const u8,
    left: usize,
}

/// What leaves by a connection.
#[derive(Default)]
pub(super) struct Out {
    front: Vec<u8>,
    /// Bytes of `front` that have left.
    gone: usize,
    piece: Option<Piece>,
    rear: Vec<u8>,
    serves: VecDeque<Serve>,
    /// Number of the next frame.
    sequence: u32,
}

// SAFETY: invariant 1: addresses of exported memory, tied to no thread.
unsafe impl Send for Out {}

impl Out {
    /// Whether nothing waits to leave.
    pub fn is_empty(&self) -> bool {
        self.front.len() == self.gone && self.piece.is_none() && self.serves.is_empty()
    }

    /// Whether the queue is at its limit, and takes no message.
    pub fn is_full(&self) -> bool {
        self.front.len() - self.gone + self.rear.len() > MOST_BYTES
    }

    /// Appends a frame whose payload `fill` writes.
    pub fn push_with(&mut self, head: Head, fill: impl FnOnce(*mut u8)) {
        let head = Head {
            sequence: self.sequence,
            ..head
        };
        self.sequence = self.sequence.wrapping_add(1);
        let to = match self.piece {
            None => &mut self.front,
            Some(_) => &mut self.rear,
        };
        to.extend(head.to_wire());
        let begin = to.len();
        let bytes = head.bytes as usize;
        to.resize(begin + bytes, 0);
        fill(to[begin..].as_mut_ptr());
    }

    /// Appends a frame.
    pub fn push(&mut self, mut head: Head, payload: &[u8]) {
        head.bytes = payload.len() as u32;
        // SAFETY: `push_with` hands out room for the head's bytes, which overlap nothing.
        self.push_with(head, |to| unsafe {
            std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len());
        });
    }

    /// Takes a request.
    pub fn serve(&mut self, serve: Serve) {
        self.serves.push_back(serve);
        self.next_piece();
    }

    /// Begins a piece if none is under way: requests take turns.
    fn next_piece(&mut self) {
        if self.piece.is_some() {
            return;
        }
        let Some(mut serve) = self.serves.pop_front() else {
            return;
        };
        let bytes = serve.left.min(PIECE_BYTES);
        let head = Head {
            sequence: self.sequence,
            bytes: bytes as u32,
            ..Head::control(FrameKind::Piece, serve.channel, serve.number)
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.front.extend(head.to_wire());
        self.piece = Some(Piece {
            region: serve.region,
            at: serve.at,
            left: bytes,
        });
        serve.at = serve.at.wrapping_add(bytes);
        serve.left -= bytes;
        if serve.left > 0 {
            self.serves.push_back(serve);
        }
    }

    /// What may leave now, in at most two parts.
    pub fn parts(&self) -> [IoSlice<'_>; 2] {
        let piece: &[u8] = match &self.piece {
            None => &[],
            // SAFETY: invariant 1; nobody writes it meanwhile, by the contract of `export`.
            Some(piece) => unsafe { std::slice::from_raw_parts(piece.at, piece.left) },
        };
        [IoSlice::new(&self.front[self.gone..]), IoSlice::new(piece)]
    }

    /// The first `bytes` bytes of the parts have left.
    pub fn leave(&mut self, bytes: usize) {
        let of_front = bytes.min(self.front.len() - self.gone);
        self.gone += of_front;
        if let Some(piece) = &mut self.piece {
            let of_piece = bytes - of_front;
            piece.at = piece.at.wrapping_add(of_piece);
            piece.left -= of_piece;
            if piece.left == 0 {
                self.piece = None;
            }
        }
        if self.gone == self.front.len() {
            self.front.clear();
            self.front.shrink_to(KEPT_BYTES);
            self.gone = 0;
        }
        if self.piece.is_none() {
            match self.front.is_empty() {
                true => std::mem::swap(&mut self.front, &mut self.rear),
                false => self.front.append(&mut self.rear),
            }
            self.next_piece();
        }
    }

    /// The owner of a region has its memory back behind this call: what is left of a piece is
    /// copied, and the rest of its requests is refused.
    pub fn withdraw(&mut self, region: u64) {
        let mut refused = Vec::new();
        self.serves.retain(|serve| {
            let stays = serve.region != region;
            if !stays {
                refused.push((serve.channel, serve.number));
            }
            stays
        });
        if let Some(piece) = self.piece.take_if(|piece| piece.region == region) {
            // SAFETY: invariant 1.
            let left = unsafe { std::slice::from_raw_parts(piece.at, piece.left) };
            self.front.extend_from_slice(left);
            self.front.append(&mut self.rear);
            self.next_piece();
        }
        for (channel, number) in refused {
            self.refuse(channel, number, Refusal::Withdrawn);
        }
    }

    /// Requests that are not answered yet.
    pub fn requests(&self) -> usize {
        self.serves.len()
    }

    /// Bytes of memory that it takes.
    pub fn heap_bytes(&self) -> usize {
        self.front.capacity() + self.rear.capacity() + self.serves.capacity() * size_of::<Serve>()
    }

    /// Answers a request that is not served.
    pub fn refuse(&mut self, channel: u64, number: u64, why: Refusal) {
        let mut head = Head::control(FrameKind::Refused, channel, number);
        head.am.aux = why as u16;
        self.push(head, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::HEAD_BYTES;
    use super::*;
    use crate::contract::AmHead;
    use proptest::prelude::*;

    /// Heads and payloads of all that has left.
    fn frames(mut bytes: &[u8]) -> Vec<(Head, Vec<u8>)> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(HEAD_BYTES);
            let head = head.try_into().expect("a head");
            let head = Head::of_wire(head, all.len() as u32).expect("sound");
            let (payload, rest) = rest.split_at(head.bytes as usize);
            all.push((head, payload.to_vec()));
            bytes = rest;
        }
        all
    }

    /// Takes at most `most` bytes off the queue.
    fn step(out: &mut Out, most: usize, to: &mut Vec<u8>) {
        let mut n = 0;
        for part in out.parts() {
            let some = part.len().min(most - n);
            to.extend_from_slice(&part[..some]);
            n += some;
        }
        out.leave(n);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Post(usize),
        Serve(usize),
        Leave(usize),
        Withdraw(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => (0usize..3000).prop_map(Act::Post),
            2 => (1usize..400_000).prop_map(Act::Serve),
            6 => (1usize..100_000).prop_map(Act::Leave),
            1 => (0usize..6).prop_map(Act::Withdraw),
        ];
        proptest::collection::vec(act, 1..60)
    }

    proptest! {
        /// Messages leave in order and whole, requests in order of their bytes; what was
        /// withdrawn is refused, and its memory is not read again.
        #[test]
        fn all_leaves_in_order(acts in acts()) {
            let mut out = Out::default();
            let mut memory: Vec<(Vec<u8>, bool)> = Vec::new();
            let (mut posted, mut gone) = (Vec::new(), Vec::new());
            for act in acts {
                match act {
                    Act::Post(bytes) => {
                        let am = AmHead { kind: 1, aux: 2, arg: posted.len() as u64 };
                        let head = Head { am, ..Head::control(FrameKind::Message, 4, 0) };
                        let payload = vec![posted.len() as u8; bytes];
                        out.push(head, &payload);
                        posted.push(payload);
                    }
                    Act::Serve(bytes) => {
                        let number = memory.len() as u64;
                        let of = |at: usize| (at as u64 * 31 + number * 7) as u8;
                        let bytes: Vec<u8> = (0..bytes).map(of).collect();
                        let (at, left) = (bytes.as_ptr(), bytes.len());
                        out.serve(Serve { number, region: number, channel: 4, at, left });
                        memory.push((bytes, true));
                    }
                    Act::Leave(most) => step(&mut out, most, &mut gone),
                    Act::Withdraw(which) => {
                        if let Some((bytes, there)) = memory.get_mut(which) && *there {
                            out.withdraw(which as u64);
                            *there = false;
                            // What it had is no longer there to be read.
                            let kept = bytes.clone();
                            bytes.fill(0xee);
                            *bytes = kept;
                        }
                    }
                }
            }
            while !out.is_empty() {
                step(&mut out, 1 << 20, &mut gone);
            }
            let mut messages = Vec::new();
            let mut served: Vec<(Vec<u8>, bool)> = vec![Default::default(); memory.len()];
            for (head, payload) in frames(&gone) {
                match head.kind {
                    FrameKind::Message => messages.push(payload),
                    FrameKind::Piece => {
                        let (bytes, refused) = &mut served[head.am.arg as usize];
                        prop_assert!(!*refused);
                        bytes.extend(payload);
                    }
                    FrameKind::Refused => served[head.am.arg as usize].1 = true,
                    _ => prop_assert!(false),
                }
            }
            prop_assert_eq!(messages, posted);
            for ((bytes, there), (served, refused)) in memory.iter().zip(&served) {
                prop_assert!(bytes.starts_with(served));
                prop_assert!(!*refused || !*there);
                prop_assert!(*refused || bytes.len() == served.len());
            }
        }
    }

    #[test]
    fn short_frames_wait_for_one_piece_alone() {
        let memory = vec![7u8; 10 * PIECE_BYTES];
        let mut out = Out::default();
        let (at, left) = (memory.as_ptr(), memory.len());
        out.serve(Serve {
            number: 0,
            region: 0,
            channel: 4,
            at,
            left,
        });
        out.push(Head::control(FrameKind::Credit, 4, 1), &[]);
        let mut gone = Vec::new();
        step(&mut out, 1 << 20, &mut gone);
        assert_eq!(frames(&gone).len(), 1);
        step(&mut out, 1 << 20, &mut gone);
        let kinds: Vec<_> = frames(&gone).iter().map(|(head, _)| head.kind).collect();
        assert_eq!(
            kinds[..3],
            [FrameKind::Piece, FrameKind::Credit, FrameKind::Piece]
        );
    }
}
