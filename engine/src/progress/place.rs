//! Messages that the sender's device writes to the receiver's memory.
//!
//! ```text
//! sender                              receiver
//! ANNOUNCE total, offer         ->    (match) cannot open that, but may be opened
//!                               <-    [LAYOUT slot]
//!                               <-    PLACE offer
//! opens the memory, or finds it
//! open; one kernel, from layout
//! to layout
//! PLACED                        ->
//! ```
//!
//! The sender does as a receiver does that reads ([`super::mapped`]), the other way
//! round. What it cannot open it answers by PLACED, not written, and the message goes
//! another way.
//!
//! # Invariants
//! 1. From PLACE to PLACED, or the sender's death, the receive keeps its memory: who
//!    revokes it asks the sender to give up, and waits for PLACED.
//! 2. A PLACE is answered by one PLACED, or by WITHDRAW.
//! 3. A sender queues its kernel when both moments have passed; until then either side
//!    can give up.

use super::lane::{Direction, Lane, Op, Target};
use super::offers::Remote;
use super::staged::Stage;
use crate::device::UnderWay;
use crate::device::export::{Moment, Told as ToldEvent};
use crate::error::{Error, ErrorKind};
use crate::protocol::reach::Pipelining;
use crate::wire;
use crate::wire::offer::{Offer, Told, When};
use osier_kernels::BusId;
use osier_kernels::handle::Key;
use osier_transports::{AmHead, Incoming, PostError};

/// A receive into memory that the sender's device writes.
#[derive(Debug)]
pub(super) struct Placed {
    send: u32,
    /// The sender's device.
    device: BusId,
    key: Key,
    origin: u64,
    /// Ours until the sender has answered.
    event: Option<ToldEvent>,
    /// While it has not been said.
    unsaid: Option<UnderWay>,
    /// The sender was asked to give up.
    stopped: bool,
}

impl Placed {
    /// What tells the sender that it is over, before it was told anything else.
    pub fn end(&self) -> AmHead {
        wire::head(wire::FINISH, wire::OUTCOME_DONE, self.send, 0)
    }

    /// Whether the sender was not told yet.
    pub fn is_under_way(&self) -> bool {
        self.unsaid.is_some()
    }
}

impl Lane {
    /// Asks the sender of an announced message to write it to our memory. False: it
    /// cannot.
    pub(super) fn begin_place(
        &mut self,
        handle: u32,
        peer: u32,
        send: u32,
        remote: &Remote,
    ) -> bool {
        let memory = (self.ops.get(handle)).and_then(|op| op.view.as_device().cloned());
        let Some((memory, Ok((key, origin)))) = memory.map(|m| (m.clone(), m.key())) else {
            return false;
        };
        let tells = self.links.counts_alike(peer);
        let event = match memory.moment(&self.devices, tells) {
            Ok(Moment::Passed) => None,
            Ok(Moment::Event(told)) => Some(told),
            Ok(Moment::Later) | Err(_) => return false,
        };
        let placed = Placed {
            send,
            device: remote.offer.key.device,
            key,
            origin,
            event,
            unsaid: Some(UnderWay::new(&self.devices)),
            stopped: false,
        };
        if let Some(rare) = self.rare(handle) {
            rare.stage = Some(Stage::Placed(Box::new(placed)));
        }
        self.await_device(handle);
        self.staged.push(handle);
        self.advance_placed(handle);
        true
    }

    fn placed(&mut self, handle: u32) -> Option<&mut Placed> {
        match self.ops.get_mut(handle).and_then(Op::stage)? {
            Stage::Placed(placed) => Some(placed),
            _ => None,
        }
    }

    /// Tells the sender where our memory is. True if it moved.
    pub(super) fn advance_placed(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get(handle) else {
            return false;
        };
        let (peer, memory) = (op.peer, op.view.as_device().cloned());
        let (Some(memory), Some(placed)) = (memory, self.placed(handle)) else {
            return false;
        };
        if placed.unsaid.is_none() {
            return false;
        }
        let (send, device) = (placed.send, placed.device);
        let (key, mut origin) = (placed.key, placed.origin);
        let event = placed.event.as_ref().map(|told| told.handle);
        let when = event.map_or(When::Passed, When::Event);
        let (layout, mut count) = memory.instances();
        let told = match layout.contiguous_at(count) {
            Some(base) => {
                origin = origin.wrapping_add_signed(base as i64);
                count *= layout.size();
                Ok(Told::Run)
            }
            None => self.tell_layout(peer, layout),
        };
        let layout = match told {
            Ok(Told::Not) => {
                self.go_otherwise(handle, peer, send, &device);
                return true;
            }
            Ok(layout) => layout,
            Err(PostError::Full) => return false,
            Err(PostError::Failed(_)) => {
                self.go_otherwise(handle, peer, send, &device);
                return true;
            }
        };
        let offer = Offer {
            key,
            origin,
            count: count as u64,
            layout,
            when,
        };
        let body = offer.to_wire();
        let fill = |to: *mut u8| {
            // SAFETY: room for the body.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) }
        };
        let head = wire::head(wire::PLACE, 0, send, handle);
        if self.links.post_with(peer, head, body.len(), fill).is_err() {
            return false;
        }
        if let Some(placed) = self.placed(handle) {
            placed.unsaid = None;
        }
        self.peers[peer as usize]
            .incoming
            .push((send, Target::Op(handle)));
        true
    }

    /// Goes on with a message that was not written: in chunks.
    fn go_otherwise(&mut self, handle: u32, peer: u32, send: u32, device: &BusId) {
        if let Some(rare) = self.rare(handle) {
            rare.stage = None;
        }
        let pipelines = self.devices.pipelining() != Pipelining::Off;
        if !pipelines || !self.begin_on_device(handle, peer, send, device) {
            self.go_without(handle, peer, send);
        }
    }

    /// The receiver of an announced message wants it written to its memory, or not any
    /// more.
    pub(super) fn on_place(&mut self, message: &Incoming, send: u32, receive: u32) -> bool {
        let peer = message.peer;
        if message.head.aux & wire::GIVE_UP != 0 {
            if self.writes_to(send, receive) {
                self.go_without(send, peer, receive);
                self.finish(send, None);
            }
            return true;
        }
        if message.payload.len() != Offer::BYTES {
            return false;
        }
        let mut body = [0; Offer::BYTES];
        // SAFETY: not released yet, as long as the array.
        unsafe {
            std::ptr::copy_nonoverlapping(message.payload.as_ptr(), body.as_mut_ptr(), body.len());
        }
        // Whoever places knows the moment, or does not place.
        let offer = Offer::from_wire(&body).filter(|offer| offer.when != When::Told);
        let Some(offer) = offer else {
            return false;
        };
        if let Err(sound) = self.may_answer(peer, send) {
            return sound;
        }
        let remote = self.remote(peer, Box::new(offer));
        if self.begin_mapped(send, peer, receive, &remote) != Ok(true) {
            self.go_without(send, peer, receive);
        }
        true
    }

    /// Whether a send writes its receiver's memory, or is about to.
    pub(super) fn writes(&mut self, handle: u32) -> bool {
        let stage = self.ops.get_mut(handle).and_then(Op::stage);
        matches!(stage, Some(Stage::Mapped(mapped)) if mapped.writes)
    }

    /// Whether a send is about to write to a receive.
    fn writes_to(&mut self, handle: u32, receive: u32) -> bool {
        let stage = self.ops.get_mut(handle).and_then(Op::stage);
        matches!(stage, Some(Stage::Mapped(m)) if m.writes && m.waits_for(receive))
    }

    /// Gives up to write. False: the send is to be asked again.
    pub(super) fn stop_writing(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return true;
        };
        let peer = op.peer;
        let receive = match op.stage() {
            Some(Stage::Mapped(mapped)) if mapped.is_idle() => mapped.other,
            _ => return false, // a kernel runs
        };
        op.acked = true;
        self.go_without(handle, peer, receive);
        self.withdraw(peer, handle);
        false
    }

    /// The sender has written a message to our memory, or not.
    pub(super) fn on_placed(&mut self, peer: u32, handle: u32, aux: u16) -> bool {
        let theirs = |op: &&mut Op| op.direction == Direction::Receive && op.peer == peer;
        let Some(op) = self.ops.get_mut(handle).filter(theirs) else {
            return false;
        };
        let Some(Stage::Placed(placed)) = op.stage() else {
            return false;
        };
        if placed.is_under_way() {
            return false;
        }
        let (send, device, stopped) = (placed.send, placed.device, placed.stopped);
        if let Some(rare) = &mut op.rare {
            rare.stage = None;
        }
        let incoming = &mut self.peers[peer as usize].incoming;
        incoming.retain(|(s, _)| *s != send);
        match (aux & wire::NOT_WRITTEN != 0, stopped) {
            (false, _) => self.received(handle),
            (true, false) => self.go_otherwise(handle, peer, send, &device),
            (true, true) => {
                let what = self.describe(handle);
                let e = Error::new(ErrorKind::Cancelled, format!("{what}: given up"));
                self.finish(handle, Some(e));
            }
        }
        true
    }

    /// Whether the sender's device may write a receive's memory.
    pub fn is_placed(&mut self, handle: u32) -> bool {
        self.placed(handle)
            .is_some_and(|placed| !placed.is_under_way())
    }

    /// Asks the sender not to write, where it may. True: nobody writes our memory.
    pub(super) fn stop_placed(&mut self, handle: u32) -> bool {
        let Some(peer) = self.ops.get(handle).map(|op| op.peer) else {
            return true;
        };
        let Some(placed) = self.placed(handle) else {
            return true;
        };
        if placed.is_under_way() {
            return true;
        }
        if !std::mem::replace(&mut placed.stopped, true) {
            let send = placed.send;
            self.control(peer, wire::head(wire::PLACE, wire::GIVE_UP, send, handle));
        }
        false
    }
}
