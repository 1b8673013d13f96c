//! Rendezvous by get: the receiver reads the sender's memory; a sender that waits puts the
//! rear part (shared pull).
//!
//! ```text
//! receiver                         sender
//! reads bytes 0 .. k
//! REAR_PUT                   ->    writes bytes k .. n
//!                            <-    REAR_DONE
//! FIN                        ->
//! ```
//!
//! The receiver reads. While the sender waits anyway it writes the rear part,
//! so that both processors copy; a sender that computes is left alone, and so is one that
//! has a message of ours to read.
//!
//! # Invariants
//! 1. A pull that has shared its memory ends only after REAR_DONE, or after the
//!    sender's death: no peer writes memory that a receive has given back.
//! 2. Each REAR_PUT is answered by one REAR_DONE.
//! 3. At most one slice of a pull or push is in flight.
//! 4. A region that is read has the length of the message that was announced with it
//!    (what says otherwise is refused as it comes), and a pull reads neither more than
//!    that nor more than the view has room for.
//! 5. A pull of an operand that is combined as it comes reads what no peer has mapped to the
//!    operand's room, which has as many bytes and is the receive's, and combines it from there
//!    at the end. Another owns its bounce buffer, in which the slice that was read last lies: it is
//!    neither moved nor resized while a slice is in flight.
//! 6. A push reads its send's memory, from the rear part's first byte to the message's
//!    end, while that send is announced, so pending: a receiver ends the message
//!    only after it was answered. Of one that does not wait, nothing is read.

use super::rendezvous;
use crate::error::{Error, ErrorKind};
use crate::progress::op::Protocol;
use crate::progress::port::Port;
use crate::trace::event::Kind;
use crate::wire;
use osier_transports::{Death, Incoming, OneSided, RegionKey, TransportError, TransportErrorKind};
use std::collections::VecDeque;

/// Bytes moved before the lane polls again.
const SLICE_BYTES: usize = 4 << 20;
/// Bytes read at a time into a buffer from which a layout is filled.
const BOUNCE_BYTES: usize = 64 << 10;

/// What the sender does for a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Nothing, or it is done.
    No,
    /// It writes our memory from the wanted bytes on.
    Under(RegionKey),
}

/// A receive that reads the sender's memory.
pub(crate) struct Pull {
    op: u32,
    peer: u32,
    send: u32,
    key: RegionKey,
    /// Bytes read so far, and to be read.
    at: usize,
    wanted: usize,
    /// Bytes that the receive has room for.
    room: usize,
    pending: Option<u64>,
    slice: usize,
    bounce: Vec<u8>,
    /// It reads to the room of an operand.
    to_room: bool,
    share: Share,
    failed: Option<TransportError>,
}

/// A send that writes the rear part of its message.
pub(crate) struct Push {
    op: u32,
    peer: u32,
    receive: u32,
    key: RegionKey,
    from: usize,
    at: usize,
    end: usize,
    pending: Option<u64>,
    slice: usize,
}

/// Rendezvous by get: the receives that read, and the sends that write a rear part.
#[derive(Default)]
pub(crate) struct Get {
    pulls: VecDeque<Pull>,
    pushes: VecDeque<Push>,
}

impl Get {
    /// Whether nothing is in flight.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty() && self.pushes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.pulls.len() + self.pushes.len()
    }

    pub(crate) fn begin_pull(
        &mut self,
        port: &mut Port,
        handle: u32,
        peer: u32,
        send: u32,
        key: RegionKey,
    ) {
        let Some(op) = port.ops.get_mut(handle) else {
            return;
        };
        op.protocol = Protocol::Reading;
        let (total, room) = (op.total, op.view.bytes());
        let mut pull = Pull {
            op: handle,
            peer,
            send,
            key,
            at: 0,
            wanted: total.min(room),
            room: total.min(room),
            pending: None,
            slice: 0,
            bounce: Vec::new(),
            to_room: false,
            share: Share::No,
            failed: None,
        };
        pull.to_room = op.view.operand_room().is_some() && port.links.mapped(peer, &key).is_none();
        let to = match pull.to_room {
            true => op.view.operand_room(),
            false => op.view.as_contiguous(),
        };
        if total <= room
            && let Some(to) = to
            && port.links.attending(peer)
            && !self.exchanges(port, peer)
        {
            self.share(port, &mut pull, to, total);
        }
        port.counters.pulled += 1;
        self.pulls.push_back(pull);
        self.advance_one_sided(port);
    }

    /// Whether the peer has something of ours to read: then both copy anyway, and what it
    /// wrote here would be one message more, and lines that change hands.
    fn exchanges(&self, port: &mut Port, peer: u32) -> bool {
        port.ops
            .first_values()
            .any(|op| op.is_announced() && op.peer == peer)
    }

    /// Asks the sender to write the rear part of a message.
    fn share(&mut self, port: &mut Port, pull: &mut Pull, to: *mut u8, total: usize) {
        let mapped = port.links.mapped(pull.peer, &pull.key).is_some();
        let from = port.peers[pull.peer as usize]
            .selection
            .share(total, mapped);
        if from >= total {
            return;
        }
        let rear = to.wrapping_add(from);
        // SAFETY: invariant 1: the receive keeps its memory until the sender has answered,
        // and nothing else uses the rear part.
        let exported = unsafe { port.links.export_writable(pull.peer, rear, total - from) };
        let Ok(key) = exported else {
            return;
        };
        let body = wire::RearPutBody {
            key,
            from: from as u64,
        }
        .to_wire();
        let head = wire::head(wire::REAR_PUT, 0, pull.send, pull.op);
        let fill = |at: *mut u8| {
            // SAFETY: invariant 2 of `protocols`: room for the body.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), at, body.len()) }
        };
        let clear = port.peers[pull.peer as usize].control.is_empty();
        if clear
            && port
                .links
                .post_with(pull.peer, head, body.len(), fill)
                .is_ok()
        {
            pull.wanted = from;
            pull.share = Share::Under(key);
        } else {
            port.links.unexport(&key);
        }
    }

    pub(crate) fn on_rear_put(
        &mut self,
        port: &mut Port,
        message: &Incoming,
        send: u32,
        receive: u32,
    ) -> bool {
        let mut body = [0; wire::RearPutBody::BYTES];
        if message.payload.len() != body.len() {
            return false;
        }
        // SAFETY: invariant 1 of `protocols`: not released yet, as long as the array.
        unsafe {
            std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
        }
        let peer = message.peer;
        let fits = wire::RearPutBody::from_wire(&body).and_then(|share| {
            let op = port.ops.get(send)?;
            let from = usize::try_from(share.from).ok()?;
            let sound = op.is_announced()
                && op.peer == peer
                && op.view.as_contiguous().is_some()
                && from < op.total
                && share.key.bytes == (op.total - from) as u64;
            sound.then_some((share.key, from, op.total))
        });
        let Some((key, from, end)) = fits else {
            // Cancelling meanwhile, or nonsense: the receiver helps itself.
            port.control(peer, wire::head(wire::REAR_DONE, 1, receive, 0));
            return true;
        };
        self.pushes.push_back(Push {
            op: send,
            peer,
            receive,
            key,
            from,
            at: from,
            end,
            pending: None,
            slice: 0,
        });
        true
    }

    pub(crate) fn on_rear_done(
        &mut self,
        port: &mut Port,
        peer: u32,
        receive: u32,
        refused: bool,
    ) -> bool {
        let under = |p: &Pull| p.op == receive && p.peer == peer && p.share != Share::No;
        let Some(pull) = self.pulls.iter_mut().find(|p| under(p)) else {
            return false;
        };
        if let Share::Under(key) = std::mem::replace(&mut pull.share, Share::No) {
            port.links.unexport(&key);
        }
        if refused && pull.failed.is_none() {
            pull.wanted = pull.room;
        }
        true
    }

    /// Moves pulls and pushes on. True if anything moved.
    pub(crate) fn advance_one_sided(&mut self, port: &mut Port) -> bool {
        let mut any = false;
        while let Some((number, result)) = port.links.poll_completion() {
            any = true;
            if port.accesses.ended(number, &result) {
                port.wake_ended_accesses();
                port.finished = true;
                continue;
            }
            self.completed(port, number, result.map(drop));
        }
        for _ in 0..self.pulls.len() {
            let Some(mut pull) = self.pulls.pop_front() else {
                break;
            };
            if pull.pending.is_none() && pull.at < pull.wanted && pull.failed.is_none() {
                any = true;
                let (since, before) = (port.trace_stamp(), pull.at);
                self.read_slice(port, &mut pull);
                port.trace_piece(Kind::Pull, pull.peer, pull.at - before, since);
            }
            let open = pull.pending.is_some()
                || pull.share != Share::No
                || (pull.at < pull.wanted && pull.failed.is_none());
            if open {
                self.pulls.push_back(pull);
            } else {
                any = true;
                self.end_pull(port, pull);
            }
        }
        for _ in 0..self.pushes.len() {
            let Some(mut push) = self.pushes.pop_front() else {
                break;
            };
            if push.pending.is_some() {
                self.pushes.push_back(push);
                continue;
            }
            any = true;
            let (since, before) = (port.trace_stamp(), push.at);
            let written = self.write_slice(port, &mut push);
            port.trace_piece(Kind::Push, push.peer, push.at - before, since);
            match written {
                Ok(false) => self.pushes.push_back(push),
                Ok(true) => self.answer_push(port, &push, 0),
                Err(_) => self.answer_push(port, &push, 1),
            }
        }
        any
    }

    fn completed(&mut self, port: &mut Port, number: u64, result: Result<(), TransportError>) {
        if let Some(pull) = self.pulls.iter_mut().find(|p| p.pending == Some(number)) {
            pull.pending = None;
            match result {
                Ok(()) => {
                    if !pull.bounce.is_empty()
                        && let Some(op) = port.ops.get(pull.op)
                    {
                        let slice = pull.at..pull.at + pull.slice;
                        // SAFETY: invariant 5: the bounce buffer holds the slice; the receive
                        // is pending (invariant 3 of `protocols`).
                        unsafe { op.view.unpack(slice, pull.bounce.as_ptr()) };
                    }
                    pull.at += pull.slice;
                }
                Err(e) => pull.failed = Some(e),
            }
            return;
        }
        let Some(at) = self.pushes.iter().position(|p| p.pending == Some(number)) else {
            // Of a push whose peer has died.
            return;
        };
        let push = &mut self.pushes[at];
        push.pending = None;
        match result {
            Ok(()) => push.at += push.slice,
            Err(_) => {
                if let Some(push) = self.pushes.remove(at) {
                    self.answer_push(port, &push, 1);
                }
            }
        }
    }

    /// Reads the next slice of a pull.
    fn read_slice(&mut self, port: &mut Port, pull: &mut Pull) {
        let Some(op) = port.ops.get(pull.op) else {
            pull.at = pull.wanted;
            return;
        };
        let n = (pull.wanted - pull.at).min(SLICE_BYTES);
        if let Some(from) = port.links.mapped(pull.peer, &pull.key) {
            let from = from.wrapping_add(pull.at);
            // SAFETY: invariant 4: `mapped` says that the whole region is readable; the
            // receive is pending (invariant 3 of `protocols`).
            unsafe { op.view.unpack(pull.at..pull.at + n, from) };
            pull.at += n;
            return;
        }
        let to = match pull.to_room {
            true => op.view.operand_room(),
            false => op.view.as_contiguous(),
        };
        let (to, n) = match to {
            Some(to) => (to.wrapping_add(pull.at), n),
            None => {
                pull.bounce.resize(BOUNCE_BYTES.min(pull.wanted), 0);
                (pull.bounce.as_mut_ptr(), n.min(pull.bounce.len()))
            }
        };
        pull.slice = n;
        // SAFETY: invariants 3 and 5: the bounce buffer, or the view of a pending
        // receive (invariant 3 of `protocols`), is writable until the slice ends.
        let got = unsafe { port.links.get(pull.peer, &pull.key, pull.at as u64, to, n) };
        match got {
            Ok(OneSided::Pending(number)) => pull.pending = Some(number),
            Ok(OneSided::Done(_)) => {
                if !pull.bounce.is_empty() {
                    // SAFETY: invariant 5: the bounce buffer holds the slice; the receive is
                    // pending (invariant 3 of `protocols`).
                    unsafe { op.view.unpack(pull.at..pull.at + n, pull.bounce.as_ptr()) };
                }
                pull.at += n;
            }
            Err(e) => pull.failed = Some(e),
        }
    }

    fn end_pull(&mut self, port: &mut Port, pull: Pull) {
        let Some(e) = &pull.failed else {
            port.control(
                pull.peer,
                wire::head(wire::FIN, wire::OUTCOME_DONE, pull.send, 0),
            );
            let op = port.ops.get(pull.op).filter(|_| pull.to_room);
            if let Some(op) = op
                && let Some(room) = op.view.operand_room()
            {
                // SAFETY: invariant 5: all is there; the receive is pending (invariant 3 of
                // `protocols`).
                unsafe { op.view.unpack(0..pull.room, room) };
            }
            return port.received(pull.op);
        };
        use TransportErrorKind as T;
        if matches!(e.kind(), T::Permission | T::Unavailable)
            && let Some(op) = port.ops.get_mut(pull.op)
        {
            // The memory cannot be read after all; fragments can.
            op.stream();
            return rendezvous::ask_fragments(port, pull.op, pull.peer, pull.send);
        }
        port.control(
            pull.peer,
            wire::head(wire::FIN, wire::OUTCOME_CANCELLED, pull.send, 0),
        );
        let kind = Error::from(e.clone()).kind();
        let what = port.describe(pull.op);
        let error = match kind {
            // The transport counts the ranks of the job, not ours.
            ErrorKind::RankDead => Error::new(kind, format!("{what}: rank {} is dead", pull.peer)),
            _ => Error::new(kind, format!("{what}: {e}")),
        };
        port.finish(pull.op, Some(error));
    }

    /// Writes the next slice of a push. True if it was the last.
    fn write_slice(&mut self, port: &mut Port, push: &mut Push) -> Result<bool, TransportError> {
        let op = port.ops.get(push.op).filter(|op| op.is_announced());
        let Some(from) = op.and_then(|op| op.view.as_contiguous()) else {
            return Ok(true); // no correct receiver goes on before it is answered
        };
        let n = (push.end - push.at).min(SLICE_BYTES);
        if n == 0 {
            return Ok(true);
        }
        push.slice = n;
        let offset = (push.at - push.from) as u64;
        let from = from.wrapping_add(push.at);
        // SAFETY: invariant 6: `n` bytes are left of the send's memory, and it is announced.
        match unsafe { port.links.put(push.peer, &push.key, offset, from, n) }? {
            OneSided::Pending(number) => push.pending = Some(number),
            OneSided::Done(_) => push.at += n,
        }
        Ok(push.pending.is_none() && push.at == push.end)
    }

    fn answer_push(&mut self, port: &mut Port, push: &Push, refused: u16) {
        port.control(
            push.peer,
            wire::head(wire::REAR_DONE, refused, push.receive, 0),
        );
    }

    /// Ends the pull of a receive that gives its memory back. False while a
    /// peer may still write it.
    pub(crate) fn stop_pull(&mut self, port: &mut Port, handle: u32) -> bool {
        let Some(at) = self.pulls.iter().position(|p| p.op == handle) else {
            return true;
        };
        let pull = &mut self.pulls[at];
        if pull.pending.is_some() || pull.share != Share::No {
            return false;
        }
        if let Some(pull) = self.pulls.remove(at) {
            port.control(
                pull.peer,
                wire::head(wire::FIN, wire::OUTCOME_DONE, pull.send, 0),
            );
        }
        true
    }

    /// A peer has died: drops the pushes to it. A slice in flight ends
    /// first.
    pub(crate) fn forget_pushes(&mut self, peer: u32) {
        self.pushes
            .retain(|p| p.peer != peer || p.pending.is_some());
    }

    /// A peer has died: it will not write the rest of what it shared.
    pub(crate) fn fail_shared_pulls(&mut self, port: &mut Port, peer: u32, how: Death) {
        while let Some(at) = self
            .pulls
            .iter()
            .position(|p| p.peer == peer && p.share != Share::No && p.pending.is_none())
        {
            let Some(pull) = self.pulls.remove(at) else {
                return;
            };
            if let Share::Under(key) = pull.share {
                port.links.unexport(&key);
            }
            let e = port.death_error(pull.op, peer, how);
            port.finish(pull.op, Some(e));
        }
        // A slice in flight ends first; then the pull fails.
        for pull in &mut self.pulls {
            if pull.peer == peer
                && let Share::Under(key) = std::mem::replace(&mut pull.share, Share::No)
            {
                port.links.unexport(&key);
                pull.failed = Some(TransportError::new(
                    TransportErrorKind::PeerDead,
                    "its sender has died",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::lane::{Lane, Mode, Posted};
    use crate::progress::links::{Links, Remote};
    use crate::protocol::cost::LinkCosts;
    use crate::protocol::select::Selection;
    use crate::view::RawView;
    use std::sync::Arc;

    /// A receiver that asks for fragments while the sender still writes breaks the rules; the
    /// sender's memory may be gone by then.
    #[test]
    fn a_push_of_a_send_that_gave_its_memory_back_reads_nothing() {
        let selection = Arc::new(Selection::new(LinkCosts::default(), 48));
        let mut lane = Lane::new(0, 1, Links::new(0, Remote::None), selection);
        let (mut sent, mut room) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
        let view = RawView::untyped(sent.as_mut_ptr(), sent.len());
        let Ok(Posted::Pending(handle)) = lane.isend(view, 0, 1, Mode::Synchronous) else {
            panic!("nobody receives it");
        };
        let links = &mut lane.port.links;
        // SAFETY: invariant 4 of `protocols`: the room lives until the end of the test.
        let key = unsafe { links.export_writable(0, room.as_mut_ptr(), room.len()) };
        let mut push = Push {
            op: handle,
            peer: 0,
            receive: 0,
            key: key.expect("a key"),
            from: 0,
            at: 0,
            end: sent.len(),
            pending: None,
            slice: 0,
        };
        let written = lane.get.write_slice(&mut lane.port, &mut push);
        assert_eq!(written.ok(), Some(true));
        assert_eq!(sent, room);
        room.fill(0);
        rendezvous::grant(&mut lane.port, 0, handle, None);
        assert!(lane.revoke(handle));
        push.at = 0;
        let written = lane.get.write_slice(&mut lane.port, &mut push);
        assert_eq!(written.ok(), Some(true));
        assert!(room.iter().all(|byte| *byte == 0));
    }
}
