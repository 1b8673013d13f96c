//! The sending half of a lane: starts, streams, control messages.

use super::lane::{Direction, Lane, Mode, Op, Outcome, Posted, State, describe};
use super::lane_deaths::ended;
use super::lane_runs::{NO_RUN, NOBODY};
use super::offers::Offering;
use super::staged::{Source, Stage, check_moment};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::select::Memory;
use crate::trace::event::Kind;
use crate::view::RawView;
use crate::wire;
use osier_transports::{PostError, RegionKind, TransportError, TransportErrorKind};
use std::panic::Location;

/// Fragments posted per peer before the lane polls again.
const FRAGMENTS_PER_ROUND: usize = 8;

pub(super) enum Step {
    Moved,
    Full,
    /// A device has not packed it yet.
    NotReady,
    Failed(TransportError),
    /// A device has failed.
    Broken(Error),
}

impl Lane {
    /// Posts a send. The memory belongs to the operation until it is over.
    #[inline]
    #[track_caller]
    pub fn isend(&mut self, view: RawView, dest: u32, tag: u32, mode: Mode) -> Result<Posted> {
        if mode != Mode::Synchronous && self.send_now(&view, dest, tag) {
            return Ok(Posted::Done(Outcome {
                source: dest,
                tag,
                bytes: view.bytes(),
            }));
        }
        self.isend_from(view, dest, tag, mode, false, Location::caller())
    }

    /// Sends a message whole, if nothing stands in its way.
    ///
    /// The answer fits a register, and callers should keep to registers, too:
    /// a load that straddles fresh stores waits until the store buffer is
    /// empty, that is until the message's line has come from the peer.
    #[inline]
    pub fn send_now(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let peer = &mut self.peers[dest as usize];
        let elsewhere = view.as_device().is_some();
        if bytes > self.always_eager || elsewhere || peer.blocked || !peer.sender.take(bytes) {
            return false;
        }
        if self.trace.is_some() {
            return self.post_recorded(view, dest, tag);
        }
        self.has_just_sent();
        self.post_at_once(view, dest, tag)
    }

    #[inline]
    fn post_at_once(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let posted = view
            .short()
            .is_some_and(|data| self.links.post_short(dest, wire::EAGER, tag, data, bytes));
        if posted || self.send_whole(view, dest, tag) {
            return true;
        }
        self.peers[dest as usize]
            .sender
            .give(crate::protocol::eager::cost(bytes));
        false
    }

    #[cold]
    fn post_recorded(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let since = self.trace_stamp();
        let posted = self.post_at_once(view, dest, tag);
        if posted {
            self.trace_start(Kind::Eager, dest, tag, view.bytes(), since);
        }
        posted
    }

    fn send_whole(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let head = wire::head(wire::EAGER, 0, tag, 0);
        // SAFETY: the view is readable by the caller's contract, and the
        // endpoint hands out room for all of its bytes.
        let fill = |to: *mut u8| unsafe { view.pack(0..bytes, to) };
        self.links.post_with(dest, head, bytes, fill).is_ok()
    }

    /// Posts a send that could not leave at once, of this line of the user's; one that
    /// crosses belongs to a run that receives at the same time.
    #[cold]
    pub(super) fn isend_from(
        &mut self,
        view: RawView,
        dest: u32,
        tag: u32,
        mode: Mode,
        crossing: bool,
        site: &'static Location<'static>,
    ) -> Result<Posted> {
        let bytes = view.bytes();
        check_moment(&view)?;
        if let Some(how) = self.peers[dest as usize].dead {
            let what = describe("send to", Some(dest), tag, bytes, &self.links);
            return Err(ended(&what, dest, how));
        }
        let mut op = Op::new(Direction::Send, State::Starting, view, dest, tag);
        op.site = site;
        op.total = bytes;
        op.synchronous = mode == Mode::Synchronous;
        op.ready = mode == Mode::Ready;
        op.crossing = crossing;
        let handle = self.ops.insert(op).ok_or_else(too_many)?;
        self.follow(handle);
        self.peers[dest as usize].starts.push_back(handle);
        self.peers[dest as usize].blocked = true;
        self.mark_busy(dest);
        self.push();
        match self.take(handle) {
            Some(result) => result.map(Posted::Done),
            None => Ok(Posted::Pending(handle)),
        }
    }

    /// Posts what is queued, as far as there is credit. True if anything left.
    pub(super) fn push(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.busy.len() {
            let peer = self.busy[at];
            any |= self.push_peer(peer);
            let state = &mut self.peers[peer as usize];
            if state.control.is_empty() && state.starts.is_empty() && state.streams.is_empty() {
                state.busy = false;
                self.busy.swap_remove(at);
            } else {
                at += 1;
            }
        }
        any
    }

    fn push_peer(&mut self, peer: u32) -> bool {
        let mut any = false;
        while let Some(&head) = self.peers[peer as usize].control.front() {
            match self.links.post_with(peer, head, 0, |_| {}) {
                Err(PostError::Full) => return any,
                // Kept for later, but it does not hide from sends that memory
                // is full.
                Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::OutOfMemory => break,
                Ok(()) | Err(PostError::Failed(_)) => {
                    self.peers[peer as usize].control.pop_front();
                    any = true;
                }
            }
        }
        while let Some(&handle) = self.peers[peer as usize].starts.front() {
            // What its producer waits for may be behind it.
            let hurry = self.peers[peer as usize].starts.len() > 1;
            match self.start(handle, hurry) {
                Step::Full => return any,
                // Fragments of other messages go on: its producer may need them.
                Step::NotReady => break,
                Step::Moved => {
                    self.peers[peer as usize].starts.pop_front();
                }
                Step::Failed(e) => {
                    self.peers[peer as usize].starts.pop_front();
                    self.fail(handle, &e);
                }
                Step::Broken(e) => {
                    // Its turn comes again, to tell the receiver.
                    self.breaks(handle, e);
                }
            }
            any = true;
        }
        let state = &mut self.peers[peer as usize];
        state.blocked = !state.starts.is_empty() || state.dead.is_some() || self.check.is_some();
        for _ in 0..FRAGMENTS_PER_ROUND {
            let Some(handle) = self.peers[peer as usize].streams.pop_front() else {
                break;
            };
            match self.fragment(handle) {
                Step::Full => {
                    self.peers[peer as usize].streams.push_front(handle);
                    return any;
                }
                Step::NotReady => {
                    self.peers[peer as usize].streams.push_back(handle);
                    continue;
                }
                Step::Moved => {
                    let more = self.ops.get_mut(handle).is_some_and(|op| {
                        op.state == State::Streaming && op.moved < op.total.min(op.window())
                    });
                    if more && !self.waits_for_receiver(handle) {
                        self.peers[peer as usize].streams.push_back(handle);
                    }
                }
                Step::Broken(e) => self.break_off(peer, handle, e),
                Step::Failed(e) => {
                    // The receiver waits for the rest.
                    self.withdraw(peer, handle);
                    self.fail(handle, &e);
                }
            }
            any = true;
        }
        any
    }

    fn fail(&mut self, handle: u32, e: &TransportError) {
        let kind = Error::from(e.clone()).kind();
        let what = self.describe(handle);
        let error = match self.ops.get(handle).map(|op| op.peer) {
            // The transport counts the ranks of the job, not ours.
            Some(peer) if kind == ErrorKind::RankDead => {
                Error::new(kind, format!("{what}: rank {peer} is dead"))
            }
            _ => Error::new(kind, format!("{what}: {e}")),
        };
        self.finish(handle, Some(error));
    }

    /// Posts the first message of a send; in a hurry, it is rather announced than kept
    /// waiting for a producer.
    fn start(&mut self, handle: u32, hurry: bool) -> Step {
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved; // revoked meanwhile
        };
        let (peer, bytes, crossing) = (op.peer, op.total, op.crossing);
        if op.has_failed() {
            return self.announce(handle);
        }
        let on_device = op.view.as_device().is_some();
        let mut at_once = on_device && self.goes_at_once(handle);
        self.scratch_of = None;
        if on_device {
            // A long message is announced at once, and packed meanwhile.
            let offered = match at_once {
                true => Offering::None,
                false => self.offer(handle),
            };
            match offered {
                Offering::Made | Offering::None => {}
                Offering::Full => return Step::Full,
                Offering::Failed(e) => return Step::Failed(e),
                Offering::Broken(e) => return Step::Broken(e),
            }
            let made = matches!(offered, Offering::Made);
            if at_once || (!made && self.device_key(handle).is_none()) {
                match self.source(handle) {
                    Ok(Source::NotReady) if at_once => match self.must_not_wait(handle, hurry) {
                        true => at_once = false,
                        false => return Step::NotReady,
                    },
                    Ok(_) => {}
                    Err(e) => return Step::Broken(e),
                }
            }
        }
        if self.check.is_some() {
            match self.tell(handle) {
                Ok(()) => {}
                Err(PostError::Full) => return Step::Full,
                Err(PostError::Failed(e)) => return Step::Failed(e),
            }
        }
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved;
        };
        let mut memory = Memory::Private;
        if bytes > self.always_eager
            && let Some(ptr) = op.view.as_contiguous()
        {
            if op.key().is_none() {
                // SAFETY: the operation keeps the memory until FINISH.
                let key = unsafe { self.links.export(peer, ptr, bytes) }.ok();
                if key.is_some()
                    && let Some(rare) = self.rare(handle)
                {
                    rare.key = key;
                }
            }
            memory = match self.ops.get(handle).and_then(Op::key).map(|k| k.kind) {
                Some(RegionKind::Heap) => Memory::Heap,
                // Within a process too (`Local`), so that a send waits for
                // its receive from the same size on wherever ranks live.
                Some(_) => Memory::Plain,
                None => Memory::Private,
            };
        }
        let eager = match on_device {
            true => at_once,
            false if crossing => bytes <= self.selection.crossing_max(memory),
            false => bytes <= self.selection.eager_max(memory),
        };
        let credit = eager && self.peers[peer as usize].sender.take(bytes);
        let step = match credit {
            true => self.start_eager(handle),
            false => self.announce(handle),
        };
        if credit && !matches!(step, Step::Moved) {
            self.peers[peer as usize]
                .sender
                .give(crate::protocol::eager::cost(bytes));
        }
        if let Step::Moved = step
            && let Some(op) = self.ops.get_mut(handle)
            && op.state != State::Announced
            && let Some(key) = op.take_key()
        {
            self.links.unexport(&key);
        }
        step
    }

    fn start_eager(&mut self, handle: u32) -> Step {
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved;
        };
        let (peer, tag, bytes) = (op.peer, op.tag, op.total);
        let fragment = self.fragment_bytes(peer, bytes);
        let since = self.trace_stamp();
        let checked = self.check.as_ref().map_or(0, |_| wire::CHECKED);
        let source = match self.source(handle) {
            Ok(Source::NotReady) => return Step::NotReady,
            Ok(source) => source,
            Err(e) => return Step::Broken(e),
        };
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved;
        };
        let aux = u16::from(op.synchronous) | checked;
        let whole = bytes <= fragment;
        let (kind, moved, payload) = match whole {
            true => (wire::EAGER, bytes, bytes),
            false => (wire::FIRST, fragment - wire::TOTAL_BYTES, fragment),
        };
        let view = &op.view;
        let fill = |to: *mut u8| {
            let mut to = to;
            if !whole {
                let total = wire::first_total(bytes as u64, tag).to_le_bytes();
                // SAFETY: room for a fragment, which is larger than this.
                unsafe { std::ptr::copy_nonoverlapping(total.as_ptr(), to, wire::TOTAL_BYTES) };
                to = to.wrapping_add(wire::TOTAL_BYTES);
            }
            // SAFETY: the view is readable until the operation is over, and
            // the room ends after these bytes.
            unsafe { source.put(view, 0..moved, to) };
        };
        let head = wire::head(kind, aux, tag, handle);
        match self.links.post_with(peer, head, payload, fill) {
            Ok(()) => {}
            Err(PostError::Full) => return Step::Full,
            Err(PostError::Failed(e)) => return Step::Failed(e),
        }
        op.moved = moved;
        self.took(handle, moved);
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved;
        };
        if whole {
            self.trace_start(Kind::Eager, peer, tag, bytes, since);
            self.sent(handle);
        } else {
            op.state = State::Streaming;
            self.peers[peer as usize].streams.push_back(handle);
            self.trace_start(Kind::First, peer, tag, bytes, since);
        }
        Step::Moved
    }

    fn announce(&mut self, handle: u32) -> Step {
        let checked = self.check.as_ref().map_or(0, |_| wire::CHECKED);
        let described = self.device_key(handle);
        let offered = self.offered(handle);
        let Some(op) = self.ops.get_mut(handle) else {
            return Step::Moved;
        };
        let (peer, tag) = (op.peer, op.tag);
        let reach = match (op.key().or(described), offered) {
            (Some(key), _) => wire::Reach::Key(key),
            (None, Some(offer)) => wire::Reach::Offer(offer),
            (None, None) => wire::Reach::Nothing,
        };
        let since = match &self.trace {
            None => 0,
            Some(_) => crate::trace::now_ns(),
        };
        let announcement = wire::Announcement {
            total: op.total as u64,
            reach,
        };
        let (body, n, mut aux) = announcement.to_wire();
        aux |= checked;
        if let Some(memory) = op.view.as_device() {
            aux |= wire::ON_DEVICE;
            if memory.is_late() {
                aux |= wire::LATE;
            }
        }
        let head = wire::head(wire::ANNOUNCE, aux, tag, handle);
        let fill = |to: *mut u8| {
            // SAFETY: room for `n` bytes.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, n) }
        };
        match self.links.post_with(peer, head, n, fill) {
            Ok(()) => {}
            Err(PostError::Full) => return Step::Full,
            Err(PostError::Failed(e)) => return Step::Failed(e),
        }
        op.state = State::Announced;
        let bytes = op.total;
        self.counters.announced += 1;
        self.trace_start(Kind::Announce, peer, tag, bytes, since);
        Step::Moved
    }

    fn fragment_bytes(&self, peer: u32, bytes: usize) -> usize {
        self.selection
            .costs()
            .fragment_bytes(bytes)
            .min(self.links.max_payload(peer))
    }

    /// Posts the next fragment of a stream.
    fn fragment(&mut self, handle: u32) -> Step {
        let Some(op) = self.ops.get(handle) else {
            return Step::Moved; // revoked meanwhile
        };
        if op.state != State::Streaming {
            return Step::Moved;
        }
        let (peer, at) = (op.peer, op.moved);
        if self.hands_over(handle) {
            return self.hand(handle);
        }
        let Some(op) = self.ops.get(handle) else {
            return Step::Moved;
        };
        let open = op.total.min(op.window());
        if at >= open {
            return Step::Moved; // until the receiver asks for more
        }
        let mut n = self.fragment_bytes(peer, op.total).min(open - at);
        let source = match self.source(handle) {
            Ok(Source::NotReady) => return Step::NotReady,
            Ok(source) => source,
            Err(e) => return Step::Broken(e),
        };
        if let Source::Packed(_, ready) = source {
            n = n.min(ready);
        }
        let Some(op) = self.ops.get(handle) else {
            return Step::Moved;
        };
        let since = self.trace_stamp();
        let head = wire::head(wire::FRAGMENT, 0, handle, 0);
        let view = &op.view;
        // SAFETY: the view is readable until the operation is over, and the
        // endpoint hands out room for `n` bytes.
        let fill = |to: *mut u8| unsafe { source.put(view, at..at + n, to) };
        match self.links.post_with(peer, head, n, fill) {
            Ok(()) => {}
            Err(PostError::Full) => return Step::Full,
            Err(PostError::Failed(e)) => return Step::Failed(e),
        }
        self.took(handle, n);
        self.trace_piece(Kind::Fragment, peer, n, since);
        if let Some(op) = self.ops.get_mut(handle) {
            op.moved += n;
            if op.moved == op.total {
                self.sent(handle);
            }
        }
        Step::Moved
    }

    /// All bytes of a send have left its memory.
    pub(super) fn sent(&mut self, handle: u32) {
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        if op.synchronous && !op.acked {
            op.state = State::AwaitAck;
        } else {
            self.finish(handle, None);
        }
    }

    pub(super) fn send_op(&mut self, peer: u32, handle: u32) -> Option<&mut Op> {
        self.ops
            .get_mut(handle)
            .filter(|op| op.direction == Direction::Send && op.peer == peer)
    }

    pub(super) fn on_go(&mut self, peer: u32, handle: u32, units: u16) -> bool {
        let Some(op) = self.send_op(peer, handle) else {
            return false;
        };
        let more = usize::from(units) * wire::WINDOW_BYTES;
        match (op.state, op.rare.as_ref().and_then(|rare| rare.window)) {
            (State::Announced, _) => {
                if op.has_failed() {
                    return self.tell_failure(peer, handle);
                }
                if units != 0 {
                    op.rare().window = Some(more);
                }
            }
            (State::Streaming, Some(window)) => {
                let stopped = op.moved >= window;
                op.rare().window = (units != 0).then(|| window.saturating_add(more));
                if stopped {
                    self.peers[peer as usize].streams.push_back(handle);
                    self.mark_busy(peer);
                }
                return true;
            }
            // It was revoked; the receiver has not heard of it yet.
            (State::Withdrawn, _) => return true,
            _ => return false,
        }
        if op.acked {
            // We have asked to withdraw it. The receiver has an answer to
            // that under way unless it was pulling when it was asked and fell
            // back to fragments; then it answers now, and once in any case.
            self.withdraw(peer, handle);
            return true;
        }
        self.stream(peer, handle);
        true
    }

    /// The receiver wants the bytes of an announced message.
    pub(super) fn stream(&mut self, peer: u32, handle: u32) {
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        op.acked = true;
        op.state = State::Streaming;
        if let Some(rare) = &mut op.rare {
            rare.offer = None;
        }
        if let Some(Stage::Out(stage)) = op.stage() {
            stage.meet();
        }
        if let Some(key) = op.take_key() {
            self.links.unexport(&key);
        }
        self.peers[peer as usize].streams.push_back(handle);
        self.mark_busy(peer);
        self.trace_piece(Kind::Go, peer, 0, self.trace_stamp());
    }

    pub(super) fn on_finish(&mut self, peer: u32, handle: u32, outcome: u16) -> bool {
        let Some(op) = self.send_op(peer, handle) else {
            return false;
        };
        if outcome == wire::OUTCOME_CLOSED {
            return self.refused(handle);
        }
        if !matches!(op.state, State::Announced | State::Withdrawn) {
            return false;
        }
        self.trace_piece(Kind::Finish, peer, 0, self.trace_stamp());
        let rare = self.ops.get_mut(handle).and_then(|op| op.rare.as_mut());
        let broken = rare.and_then(|rare| rare.error.take());
        if broken.is_some() {
            self.finish(handle, broken);
        } else if outcome == wire::OUTCOME_WITHDRAWN {
            let e = Error::new(
                ErrorKind::Cancelled,
                format!("{}: withdrawn", self.describe(handle)),
            );
            self.finish(handle, Some(e));
        } else {
            let gone = self.freed(handle);
            self.finish(handle, gone);
        }
        true
    }

    pub(super) fn on_ack(&mut self, peer: u32, handle: u32) -> bool {
        self.trace_piece(Kind::Ack, peer, 0, self.trace_stamp());
        let Some(op) = self.send_op(peer, handle) else {
            return false;
        };
        match op.state {
            State::AwaitAck => self.finish(handle, None),
            State::Streaming if op.synchronous => op.acked = true,
            State::Withdrawn => {}
            _ => return false,
        }
        true
    }

    /// Stops a send from reading its memory. True once it has.
    pub(super) fn revoke_send(&mut self, handle: u32, state: State) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return true;
        };
        let peer = op.peer;
        match state {
            State::Starting => {
                // A start that found no room may have exported its memory.
                let key = op.take_key();
                self.peers[peer as usize].starts.retain(|h| *h != handle);
                self.free(handle);
                if let Some(key) = key {
                    self.links.unexport(&key);
                }
                true
            }
            State::AwaitAck => {
                let owner = op.forget_memory();
                op.detached = true;
                self.owed.drop(owner);
                true
            }
            // The receiver has all of it, and gives the chunks back.
            State::Streaming if op.moved == op.total => {
                let owner = op.forget_memory();
                op.detached = true;
                self.owed.drop(owner);
                true
            }
            State::Streaming => {
                // The handle stays until the receiver answers, so that what it
                // says meanwhile meets no other operation.
                op.state = State::Withdrawn;
                let owner = op.forget_memory();
                op.detached = true;
                self.owed.drop(owner);
                self.peers[peer as usize].streams.retain(|h| *h != handle);
                self.withdraw(peer, handle);
                true
            }
            _ if self.writes(handle) => self.stop_writing(handle),
            // The peer may read our memory until it answers.
            _ => {
                let Some(op) = self.ops.get_mut(handle) else {
                    return true;
                };
                if !op.acked {
                    op.acked = true; // asked once
                    self.withdraw(peer, handle);
                }
                false
            }
        }
    }

    /// Tells the receiver of a send that its rest will not come; where a run owes it, in
    /// the same message for whose death, so that there is one answer to each step.
    pub(super) fn withdraw(&mut self, peer: u32, handle: u32) {
        let blame = self.ops.get(handle).and_then(|op| {
            let given_up = op.rare.as_ref().and_then(|rare| rare.blame);
            given_up.or((op.run != NO_RUN).then_some(NOBODY))
        });
        let aux = blame.map_or(0, |_| wire::OF_RUN);
        self.control(
            peer,
            wire::head(wire::WITHDRAW, aux, handle, blame.unwrap_or(0)),
        );
    }
}

pub(super) fn too_many() -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "more than 16 million operations under way (hint: complete requests before posting more)",
    )
}
