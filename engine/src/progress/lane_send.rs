//! The sending half of a lane: starts, streams, control messages.

use super::lane::Lane;
use super::lane_deaths::ended;
use super::lane_runs::{NO_RUN, NOBODY};
use super::lane_send;
use super::offers::Offering;
use super::op::{Direction, Mode, Op, Outcome, Posted, State};
use super::peer::Target;
use super::port::{Port, describe};
use super::staged::{Source, Stage, check_moment};
use super::{chunks, offers, place, staged};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::select::Memory;
use crate::trace::event::Kind;
use crate::view::RawView;
use crate::wire;
use osier_transports::{PostError, RegionKind, TransportError, TransportErrorKind};
use std::panic::Location;

/// Fragments posted per peer before the lane polls again.
const FRAGMENTS_PER_ROUND: usize = 8;

pub(crate) enum Step {
    Moved,
    Full,
    /// A device has not packed it yet.
    NotReady,
    Failed(TransportError),
    /// A device has failed.
    Broken(Error),
}

/// Posts what is queued, as far as there is credit. True if anything left.
pub(crate) fn push(port: &mut Port) -> bool {
    let mut any = false;
    let mut at = 0;
    while at < port.busy.len() {
        let peer = port.busy[at];
        any |= push_peer(port, peer);
        let state = &mut port.peers[peer as usize];
        if state.control.is_empty() && state.starts.is_empty() && state.streams.is_empty() {
            state.busy = false;
            port.busy.swap_remove(at);
        } else {
            at += 1;
        }
    }
    any
}

pub(crate) fn push_peer(port: &mut Port, peer: u32) -> bool {
    let mut any = false;
    while let Some(&head) = port.peers[peer as usize].control.front() {
        match port.links.post_with(peer, head, 0, |_| {}) {
            Err(PostError::Full) => return any,
            // Kept for later, but it does not hide from sends that memory
            // is full.
            Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::OutOfMemory => break,
            Ok(()) | Err(PostError::Failed(_)) => {
                port.peers[peer as usize].control.pop_front();
                any = true;
            }
        }
    }
    while let Some(&handle) = port.peers[peer as usize].starts.front() {
        // What its producer waits for may be behind it.
        let hurry = port.peers[peer as usize].starts.len() > 1;
        match start(port, handle, hurry) {
            Step::Full => return any,
            // Fragments of other messages go on: its producer may need them.
            Step::NotReady => break,
            Step::Moved => {
                port.peers[peer as usize].starts.pop_front();
            }
            Step::Failed(e) => {
                port.peers[peer as usize].starts.pop_front();
                fail(port, handle, &e);
            }
            Step::Broken(e) => {
                // Its turn comes again, to tell the receiver.
                staged::breaks(port, handle, e);
            }
        }
        any = true;
    }
    let state = &mut port.peers[peer as usize];
    state.blocked = !state.starts.is_empty() || state.dead.is_some() || port.check.is_some();
    for _ in 0..FRAGMENTS_PER_ROUND {
        let Some(handle) = port.peers[peer as usize].streams.pop_front() else {
            break;
        };
        match fragment(port, handle) {
            Step::Full => {
                port.peers[peer as usize].streams.push_front(handle);
                return any;
            }
            Step::NotReady => {
                port.peers[peer as usize].streams.push_back(handle);
                continue;
            }
            Step::Moved => {
                let more = port.ops.get_mut(handle).is_some_and(|op| {
                    op.state == State::Streaming && op.moved < op.total.min(op.window())
                });
                if more && !chunks::waits_for_receiver(port, handle) {
                    port.peers[peer as usize].streams.push_back(handle);
                }
            }
            Step::Broken(e) => chunks::break_off(port, peer, handle, e),
            Step::Failed(e) => {
                // The receiver waits for the rest.
                withdraw(port, peer, handle);
                fail(port, handle, &e);
            }
        }
        any = true;
    }
    any
}

pub(crate) fn fail(port: &mut Port, handle: u32, e: &TransportError) {
    let kind = Error::from(e.clone()).kind();
    let what = port.describe(handle);
    let error = match port.ops.get(handle).map(|op| op.peer) {
        // The transport counts the ranks of the job, not ours.
        Some(peer) if kind == ErrorKind::RankDead => {
            Error::new(kind, format!("{what}: rank {peer} is dead"))
        }
        _ => Error::new(kind, format!("{what}: {e}")),
    };
    port.finish(handle, Some(error));
}

/// Posts the first message of a send; in a hurry, it is rather announced than kept
/// waiting for a producer.
pub(crate) fn start(port: &mut Port, handle: u32, hurry: bool) -> Step {
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved; // revoked meanwhile
    };
    let (peer, bytes, crossing) = (op.peer, op.total, op.crossing);
    if op.has_failed() {
        return announce(port, handle);
    }
    let on_device = op.view.as_device().is_some();
    let mut at_once = on_device && staged::goes_at_once(port, handle);
    port.scratch_of = None;
    if on_device {
        // A long message is announced at once, and packed meanwhile.
        let offered = match at_once {
            true => Offering::None,
            false => offers::offer(port, handle),
        };
        match offered {
            Offering::Made | Offering::None => {}
            Offering::Full => return Step::Full,
            Offering::Failed(e) => return Step::Failed(e),
            Offering::Broken(e) => return Step::Broken(e),
        }
        let made = matches!(offered, Offering::Made);
        if at_once || (!made && staged::device_key(port, handle).is_none()) {
            match staged::source(port, handle) {
                Ok(Source::NotReady) if at_once => match staged::must_not_wait(port, handle, hurry)
                {
                    true => at_once = false,
                    false => return Step::NotReady,
                },
                Ok(_) => {}
                Err(e) => return Step::Broken(e),
            }
        }
    }
    if port.check.is_some() {
        match port.tell(handle) {
            Ok(()) => {}
            Err(PostError::Full) => return Step::Full,
            Err(PostError::Failed(e)) => return Step::Failed(e),
        }
    }
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let mut memory = Memory::Private;
    if bytes > port.always_eager
        && let Some(ptr) = op.view.as_contiguous()
    {
        if op.key().is_none() {
            // SAFETY: the operation keeps the memory until FINISH.
            let key = unsafe { port.links.export(peer, ptr, bytes) }.ok();
            if key.is_some()
                && let Some(rare) = port.rare(handle)
            {
                rare.key = key;
            }
        }
        memory = match port.ops.get(handle).and_then(Op::key).map(|k| k.kind) {
            Some(RegionKind::Heap) => Memory::Heap,
            // Within a process too (`Local`), so that a send waits for
            // its receive from the same size on wherever ranks live.
            Some(_) => Memory::Plain,
            None => Memory::Private,
        };
    }
    let eager = match on_device {
        true => at_once,
        false if crossing => bytes <= port.selection.crossing_max(memory),
        false => bytes <= port.selection.eager_max(memory),
    };
    let credit = eager && port.peers[peer as usize].sender.take(bytes);
    let step = match credit {
        true => start_eager(port, handle),
        false => announce(port, handle),
    };
    if credit && !matches!(step, Step::Moved) {
        port.peers[peer as usize]
            .sender
            .give(crate::protocol::eager::cost(bytes));
    }
    if let Step::Moved = step
        && let Some(op) = port.ops.get_mut(handle)
        && op.state != State::Announced
        && let Some(key) = op.take_key()
    {
        port.links.unexport(&key);
    }
    step
}

pub(crate) fn start_eager(port: &mut Port, handle: u32) -> Step {
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let (peer, tag, bytes) = (op.peer, op.tag, op.total);
    let fragment = fragment_bytes(port, peer, bytes);
    let since = port.trace_stamp();
    let checked = port.check.as_ref().map_or(0, |_| wire::CHECKED);
    let source = match staged::source(port, handle) {
        Ok(Source::NotReady) => return Step::NotReady,
        Ok(source) => source,
        Err(e) => return Step::Broken(e),
    };
    let Some(op) = port.ops.get_mut(handle) else {
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
    match port.links.post_with(peer, head, payload, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    op.moved = moved;
    staged::took(port, handle, moved);
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    if whole {
        port.trace_start(Kind::Eager, peer, tag, bytes, since);
        sent(port, handle);
    } else {
        op.state = State::Streaming;
        port.peers[peer as usize].streams.push_back(handle);
        port.trace_start(Kind::First, peer, tag, bytes, since);
    }
    Step::Moved
}

pub(crate) fn announce(port: &mut Port, handle: u32) -> Step {
    let checked = port.check.as_ref().map_or(0, |_| wire::CHECKED);
    let described = staged::device_key(port, handle);
    let offered = offers::offered(port, handle);
    let Some(op) = port.ops.get_mut(handle) else {
        return Step::Moved;
    };
    let (peer, tag) = (op.peer, op.tag);
    let reach = match (op.key().or(described), offered) {
        (Some(key), _) => wire::Reach::Key(key),
        (None, Some(offer)) => wire::Reach::Offer(offer),
        (None, None) => wire::Reach::Nothing,
    };
    let since = match &port.trace {
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
    match port.links.post_with(peer, head, n, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    op.state = State::Announced;
    let bytes = op.total;
    port.counters.announced += 1;
    port.trace_start(Kind::Announce, peer, tag, bytes, since);
    Step::Moved
}

pub(crate) fn fragment_bytes(port: &Port, peer: u32, bytes: usize) -> usize {
    port.selection
        .costs()
        .fragment_bytes(bytes)
        .min(port.links.max_payload(peer))
}

/// Posts the next fragment of a stream.
pub(crate) fn fragment(port: &mut Port, handle: u32) -> Step {
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved; // revoked meanwhile
    };
    if op.state != State::Streaming {
        return Step::Moved;
    }
    let (peer, at) = (op.peer, op.moved);
    if chunks::hands_over(port, handle) {
        return chunks::hand(port, handle);
    }
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved;
    };
    let open = op.total.min(op.window());
    if at >= open {
        return Step::Moved; // until the receiver asks for more
    }
    let mut n = fragment_bytes(port, peer, op.total).min(open - at);
    let source = match staged::source(port, handle) {
        Ok(Source::NotReady) => return Step::NotReady,
        Ok(source) => source,
        Err(e) => return Step::Broken(e),
    };
    if let Source::Packed(_, ready) = source {
        n = n.min(ready);
    }
    let Some(op) = port.ops.get(handle) else {
        return Step::Moved;
    };
    let since = port.trace_stamp();
    let head = wire::head(wire::FRAGMENT, 0, handle, 0);
    let view = &op.view;
    // SAFETY: the view is readable until the operation is over, and the
    // endpoint hands out room for `n` bytes.
    let fill = |to: *mut u8| unsafe { source.put(view, at..at + n, to) };
    match port.links.post_with(peer, head, n, fill) {
        Ok(()) => {}
        Err(PostError::Full) => return Step::Full,
        Err(PostError::Failed(e)) => return Step::Failed(e),
    }
    staged::took(port, handle, n);
    port.trace_piece(Kind::Fragment, peer, n, since);
    if let Some(op) = port.ops.get_mut(handle) {
        op.moved += n;
        if op.moved == op.total {
            sent(port, handle);
        }
    }
    Step::Moved
}

/// All bytes of a send have left its memory.
pub(crate) fn sent(port: &mut Port, handle: u32) {
    let Some(op) = port.ops.get_mut(handle) else {
        return;
    };
    if op.synchronous && !op.acked {
        op.state = State::AwaitAck;
    } else {
        port.finish(handle, None);
    }
}

pub(crate) fn on_go(port: &mut Port, peer: u32, handle: u32, units: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    let more = usize::from(units) * wire::WINDOW_BYTES;
    match (op.state, op.rare.as_ref().and_then(|rare| rare.window)) {
        (State::Announced, _) => {
            if op.has_failed() {
                return staged::tell_failure(port, peer, handle);
            }
            if units != 0 {
                op.rare().window = Some(more);
            }
        }
        (State::Streaming, Some(window)) => {
            let stopped = op.moved >= window;
            op.rare().window = (units != 0).then(|| window.saturating_add(more));
            if stopped {
                port.peers[peer as usize].streams.push_back(handle);
                port.mark_busy(peer);
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
        withdraw(port, peer, handle);
        return true;
    }
    stream(port, peer, handle);
    true
}

/// The receiver wants the bytes of an announced message.
pub(crate) fn stream(port: &mut Port, peer: u32, handle: u32) {
    let Some(op) = port.ops.get_mut(handle) else {
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
        port.links.unexport(&key);
    }
    port.peers[peer as usize].streams.push_back(handle);
    port.mark_busy(peer);
    port.trace_piece(Kind::Go, peer, 0, port.trace_stamp());
}

pub(crate) fn on_finish(port: &mut Port, peer: u32, handle: u32, outcome: u16) -> bool {
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    if outcome == wire::OUTCOME_CLOSED {
        return port.refused(handle);
    }
    if !matches!(op.state, State::Announced | State::Withdrawn) {
        return false;
    }
    port.trace_piece(Kind::Finish, peer, 0, port.trace_stamp());
    let rare = port.ops.get_mut(handle).and_then(|op| op.rare.as_mut());
    let broken = rare.and_then(|rare| rare.error.take());
    if broken.is_some() {
        port.finish(handle, broken);
    } else if outcome == wire::OUTCOME_WITHDRAWN {
        let e = Error::new(
            ErrorKind::Cancelled,
            format!("{}: withdrawn", port.describe(handle)),
        );
        port.finish(handle, Some(e));
    } else {
        let gone = staged::freed(port, handle);
        port.finish(handle, gone);
    }
    true
}

pub(crate) fn on_ack(port: &mut Port, peer: u32, handle: u32) -> bool {
    port.trace_piece(Kind::Ack, peer, 0, port.trace_stamp());
    let Some(op) = port.send_op(peer, handle) else {
        return false;
    };
    match op.state {
        State::AwaitAck => port.finish(handle, None),
        State::Streaming if op.synchronous => op.acked = true,
        State::Withdrawn => {}
        _ => return false,
    }
    true
}

/// Stops a send from reading its memory. True once it has.
pub(crate) fn revoke_send(port: &mut Port, handle: u32, state: State) -> bool {
    let Some(op) = port.ops.get_mut(handle) else {
        return true;
    };
    let peer = op.peer;
    match state {
        State::Starting => {
            // A start that found no room may have exported its memory.
            let key = op.take_key();
            port.peers[peer as usize].starts.retain(|h| *h != handle);
            port.free(handle);
            if let Some(key) = key {
                port.links.unexport(&key);
            }
            true
        }
        State::AwaitAck => {
            let owner = op.forget_memory();
            op.detached = true;
            port.owed.drop(owner);
            true
        }
        // The receiver has all of it, and gives the chunks back.
        State::Streaming if op.moved == op.total => {
            let owner = op.forget_memory();
            op.detached = true;
            port.owed.drop(owner);
            true
        }
        State::Streaming => {
            // The handle stays until the receiver answers, so that what it
            // says meanwhile meets no other operation.
            op.state = State::Withdrawn;
            let owner = op.forget_memory();
            op.detached = true;
            port.owed.drop(owner);
            port.peers[peer as usize].streams.retain(|h| *h != handle);
            withdraw(port, peer, handle);
            true
        }
        _ if place::writes(port, handle) => place::stop_writing(port, handle),
        // The peer may read our memory until it answers.
        _ => {
            let Some(op) = port.ops.get_mut(handle) else {
                return true;
            };
            if !op.acked {
                op.acked = true; // asked once
                withdraw(port, peer, handle);
            }
            false
        }
    }
}

/// Tells the receiver of a send that its rest will not come; where a run owes it, in
/// the same message for whose death, so that there is one answer to each step.
pub(crate) fn withdraw(port: &mut Port, peer: u32, handle: u32) {
    let blame = port.ops.get(handle).and_then(|op| {
        let given_up = op.rare.as_ref().and_then(|rare| rare.blame);
        given_up.or((op.run != NO_RUN).then_some(NOBODY))
    });
    let aux = blame.map_or(0, |_| wire::OF_RUN);
    port.control(
        peer,
        wire::head(wire::WITHDRAW, aux, handle, blame.unwrap_or(0)),
    );
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
        let peer = &mut self.port.peers[dest as usize];
        let elsewhere = view.as_device().is_some();
        if bytes > self.port.always_eager || elsewhere || peer.blocked || !peer.sender.take(bytes) {
            return false;
        }
        if self.port.trace.is_some() {
            return self.post_recorded(view, dest, tag);
        }
        self.has_just_sent();
        self.post_at_once(view, dest, tag)
    }

    #[inline]
    fn post_at_once(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let posted = view.short().is_some_and(|data| {
            self.port
                .links
                .post_short(dest, wire::EAGER, tag, data, bytes)
        });
        if posted || self.send_whole(view, dest, tag) {
            return true;
        }
        self.port.peers[dest as usize]
            .sender
            .give(crate::protocol::eager::cost(bytes));
        false
    }

    #[cold]
    fn post_recorded(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let since = self.port.trace_stamp();
        let posted = self.post_at_once(view, dest, tag);
        if posted {
            self.port
                .trace_start(Kind::Eager, dest, tag, view.bytes(), since);
        }
        posted
    }

    fn send_whole(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let head = wire::head(wire::EAGER, 0, tag, 0);
        // SAFETY: the view is readable by the caller's contract, and the
        // endpoint hands out room for all of its bytes.
        let fill = |to: *mut u8| unsafe { view.pack(0..bytes, to) };
        self.port.links.post_with(dest, head, bytes, fill).is_ok()
    }

    /// Posts a send that could not leave at once, of this line of the user's; one that
    /// crosses belongs to a run that receives at the same time.
    #[cold]
    pub(crate) fn isend_from(
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
        if let Some(how) = self.port.peers[dest as usize].dead {
            let what = describe("send to", Some(dest), tag, bytes, &self.port.links);
            return Err(ended(&what, dest, how));
        }
        let mut op = Op::new(Direction::Send, State::Starting, view, dest, tag);
        op.site = site;
        op.total = bytes;
        op.synchronous = mode == Mode::Synchronous;
        op.ready = mode == Mode::Ready;
        op.crossing = crossing;
        let handle = self.port.ops.insert(op).ok_or_else(too_many)?;
        self.follow(handle);
        self.port.peers[dest as usize].starts.push_back(handle);
        self.port.peers[dest as usize].blocked = true;
        self.port.mark_busy(dest);
        lane_send::push(&mut self.port);
        match self.take(handle) {
            Some(result) => result.map(Posted::Done),
            None => Ok(Posted::Pending(handle)),
        }
    }
}

pub(crate) fn ask_fragments(port: &mut Port, handle: u32, peer: u32, send: u32) {
    if let Some(how) = port.peers[peer as usize].dead {
        let e = port.death_error(handle, peer, how);
        return port.finish(handle, Some(e));
    }
    port.peers[peer as usize]
        .incoming
        .push((send, Target::Op(handle)));
    if port
        .ops
        .get(handle)
        .is_some_and(|op| op.view.as_device().is_some())
    {
        return staged::open_stepwise(port, handle, send);
    }
    port.control(peer, wire::head(wire::GO, 0, send, 0));
}

pub(crate) fn too_many() -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "more than 16 million operations under way (hint: complete requests before posting more)",
    )
}
