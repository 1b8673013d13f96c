//! The receiving half of a lane: matching, unpacking, pulling.
//!
//! # Invariants
//! 1. The view of a call is writable for its bytes until the call returns, or the receive
//!    that it posts is complete (invariant 1 of the view); the callers of a lane vouch
//!    for that.
//! 2. What an unexpected message holds is a vector of ours, whose capacity is reserved
//!    before bytes are appended.
//! 3. `receive_bytes` gets a length and as many readable bytes: a part of a payload
//!    that is not released (invariant 1 of the protocols), or such a vector.

use super::arrival::{Arrival, Arrived, Rts};
use super::closing::is_internal;
use super::failures::ended_over;
use super::lane::{HANDLED_BETWEEN_POSTS, Lane, Matched};
use super::op::{Op, Outcome, Posted, Protocol};
use super::peer::Target;
use super::port::describe;
use super::protocols::host_staged::check_ready_event;
use super::protocols::{device_memory, host_staged, rendezvous};
use super::window::POSTS_PER_POLL;
use crate::diagnose::waits::resigns;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::NO_RUN;
use crate::matching::{Envelope, Pattern, TagPattern};
use crate::trace::event::Kind;
use crate::view::RawView;
use crate::wire;
use osier_transports::Incoming;
use std::panic::Location;

/// Messages that a new receive examines before it is posted.
const EARLY_POLLS: usize = 4;
/// Messages that one call gives to posted receives before it looks after other things.
const SERVED_AT_ONCE: usize = 64;

impl Lane {
    /// Posts a receive. The memory belongs to the operation until it completes.
    #[inline]
    #[track_caller]
    pub fn irecv(&mut self, view: RawView, pattern: Pattern) -> Result<Posted> {
        if let (Some(source), TagPattern::Exact(tag)) = (pattern.source, pattern.tag)
            && view.as_device().is_none()
            && self.is_plain()
        {
            if let Some(posted) = self.receive_at_once(&view, source, tag) {
                return Ok(posted);
            }
            // A message that was looked at may have been a revocation.
            if self.unexpected.is_empty() && self.troubles == 0 {
                let posted = self.post_exact(view, source, tag);
                return posted.map(Posted::Pending).ok_or_else(crate::slab::full);
            }
            return self.post(view, pattern);
        }
        self.irecv_any(view, pattern)
    }

    #[track_caller]
    fn irecv_any(&mut self, view: RawView, pattern: Pattern) -> Result<Posted> {
        if view.as_device().is_none()
            && !self.is_revoked()
            && let Some(posted) = self.receive_early(&view, pattern)
        {
            return Ok(posted);
        }
        self.post(view, pattern)
    }

    /// Whether receives of one source and tag may take the shortest way: nobody checks or
    /// records, no peer has ended, and the communicator is not revoked.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.port.check.is_none() && self.port.trace.is_none() && self.troubles == 0
    }

    /// Receives a message of one source and tag, if it looks and it is there, or posts its receive
    /// if the first part of it is. Receives posted before get theirs first. Where [`Lane::is_plain`],
    /// of memory of the host.
    #[inline]
    #[track_caller]
    pub fn receive_at_once(&mut self, view: &RawView, source: u32, tag: u32) -> Option<Posted> {
        let pattern = Pattern::exact(source, tag);
        // First, so that nothing happens between a probe and its receive.
        if self.has_unexpected(pattern) {
            return None;
        }
        if !self.posted.is_empty() {
            self.serve_early();
        }
        if !self.may_receive_directly(pattern) {
            return None;
        }
        // What a rank sends itself takes no line from anybody.
        if source == self.port.own {
            return self.receive_polled(view, pattern);
        }
        if !self.early_look.is_due() {
            return None;
        }
        if let Some(bytes) = self.receive_next(view, source, tag) {
            self.early_look.found();
            return Some(Posted::Done(Outcome { source, tag, bytes }));
        }
        let posted = self.receive_polled(view, pattern);
        match posted {
            Some(_) => self.early_look.found(),
            None => self.early_look.missed(),
        }
        posted
    }

    /// As [`Lane::receive_early`], after a look that found no short message.
    #[inline(never)]
    #[track_caller]
    fn receive_polled(&mut self, view: &RawView, pattern: Pattern) -> Option<Posted> {
        self.receive_early(view, pattern)
    }

    /// Gives messages that are there to posted receives, before one more is posted.
    #[inline]
    fn serve_early(&mut self) {
        if self.unpolled != 0 {
            self.unpolled -= 1;
            return;
        }
        for _ in 0..EARLY_POLLS {
            if self.serve_first() {
                continue;
            }
            if self.posted.is_empty() {
                return;
            }
            let Some(message) = &self.port.links.poll() else {
                self.unpolled = POSTS_PER_POLL - 1;
                return;
            };
            self.handle(message);
        }
    }

    /// Gives the receive that was posted first its message, if that is the next of its source,
    /// short and there; where all that are posted name one source and tag. No more is known
    /// of a message that stays.
    #[inline]
    fn serve_first(&mut self) -> bool {
        if self.posted.in_window() != 0 {
            return self.serve_window();
        }
        let Some((Envelope { source, tag }, handle)) = self.posted.outside().alone() else {
            return false;
        };
        let port = &mut self.port;
        let Some(op) = port.ops.get_mut(handle) else {
            return false;
        };
        if op.view.as_device().is_some() {
            return false;
        }
        let (view, room) = (&op.view, op.view.bytes());
        // SAFETY: invariants 1 and 3 of `protocols`: payload and pending view, within `room`.
        let copy = |at, from, bytes| unsafe { view.unpack(at..at + bytes, from) };
        let taken = port.links.take_next(source, wire::EAGER, tag, room, copy);
        let Some(bytes) = taken else {
            return false;
        };
        self.posted.outside_mut().take_alone();
        op.total = bytes;
        if op.rare.is_none() && op.run == NO_RUN && !op.detached {
            op.protocol = Protocol::Done { met: true };
            port.finished = true;
        } else {
            op.stream();
            port.received(handle);
        }
        self.moved += 1;
        self.credit(source, bytes);
        true
    }

    /// As [`Lane::take`], but for messages that are there and short: the receives that were
    /// posted first get theirs, up to this one.
    #[inline]
    pub fn take_served(&mut self, handle: u32) -> Option<Result<Outcome>> {
        if !self.port.is_done(handle) && self.is_plain() {
            // A peer whose messages these are may wait for room, as sends of this rank do.
            let at_once = match self.port.busy.is_empty() {
                true => SERVED_AT_ONCE,
                false => HANDLED_BETWEEN_POSTS,
            };
            for _ in 0..at_once {
                if !self.serve_first() || self.port.is_done(handle) {
                    break;
                }
            }
        }
        self.take(handle)
    }

    /// Whether no message waits for its receive.
    #[inline]
    pub fn expects_all(&self) -> bool {
        self.unexpected.is_empty()
    }

    /// Posts a receive of memory of the host from one source with one tag; `None` without
    /// room for its operation. Where [`Lane::is_plain`] and [`Lane::expects_all`].
    // Into its callers, so that what it is given and makes stays in registers.
    #[inline(always)]
    #[track_caller]
    pub fn post_exact(&mut self, view: RawView, source: u32, tag: u32) -> Option<u32> {
        self.settle_window();
        let (handle, place) = self.port.ops.vacant()?;
        let queue = self.posted.outside_mut();
        let key = queue.post_exact(Envelope { source, tag }, handle);
        let mut op = Op::receive(view, Pattern::exact(source, tag), source, tag);
        op.protocol = Protocol::Posted(Some(key));
        place.fill(op);
        Some(handle)
    }

    /// Looks whether the message is there already, so that the receive need
    /// not be posted: a stream of small messages is often ahead of the
    /// receives. Receives posted before get theirs first.
    #[inline]
    #[track_caller]
    fn receive_early(&mut self, view: &RawView, pattern: Pattern) -> Option<Posted> {
        for _ in 0..EARLY_POLLS {
            // First, so that nothing happens between a probe and its receive.
            if self.has_unexpected(pattern) {
                return None;
            }
            if !self.posted.is_empty() {
                let message = &self.port.links.poll()?;
                self.handle(message);
                continue;
            }
            match self.receive_direct(view, pattern, true) {
                Direct::Received(outcome) => return Some(Posted::Done(outcome)),
                Direct::Begun(handle) => return Some(Posted::Pending(handle)),
                Direct::Nothing => return None,
                Direct::Other => {}
            }
        }
        None
    }

    #[track_caller]
    pub(crate) fn post(&mut self, view: RawView, pattern: Pattern) -> Result<Posted> {
        check_ready_event(&view)?;
        if self.is_revoked() {
            self.refuse_dead(&view, pattern)?;
        }
        let arrived = if self.unexpected.is_empty() {
            None
        } else {
            self.unexpected.take(pattern)
        };
        if let Some((_, arrival)) = arrived {
            return self.receive_arrival(view, arrival);
        }
        self.refuse_dead(&view, pattern)?;
        self.post_expected(view, pattern).map(Posted::Pending)
    }

    /// Posts a receive whose message has not come yet.
    #[track_caller]
    fn post_expected(&mut self, view: RawView, pattern: Pattern) -> Result<u32> {
        let handle = self.receive_op(view, pattern)?;
        let queue = self.posted.queue(&mut self.port.ops);
        let key = queue.post(pattern, handle);
        if let Some(op) = self.port.ops.get_mut(handle) {
            op.protocol = Protocol::Posted(Some(key));
        }
        Ok(handle)
    }

    /// Receives a message that a matched probe took.
    #[track_caller]
    pub fn receive_matched(&mut self, view: RawView, matched: Matched) -> Result<Posted> {
        if self.arrivals.get(matched.arrival).is_none() {
            return Err(self.gone(&view, matched.outcome));
        }
        self.receive_arrival(view, matched.arrival)
    }

    /// Why a message that a matched probe took is not there any more.
    #[cold]
    fn gone(&self, view: &RawView, was: Outcome) -> Error {
        let (peer, room) = (was.source, view.bytes());
        let what = describe("receive from", Some(peer), was.tag, room, &self.port.links);
        match self.port.peers[peer as usize].dead {
            Some(how) => ended_over(&self.port.links, &what, peer, how),
            None => Error::new(
                ErrorKind::Cancelled,
                format!("{what}: the sender cancelled it"),
            ),
        }
    }

    /// Drops the message of a matched probe that no call received, as if it
    /// was received, so that its sender completes.
    pub fn drop_matched(&mut self, matched: Matched) {
        if let Ok(Posted::Pending(handle)) = self.receive_arrival(RawView::empty(), matched.arrival)
        {
            self.detach(handle);
        }
    }

    /// Asks once for a message that goes straight to `view`, without posting
    /// a receive. Only while nothing else is posted and nothing unexpected matches. If the call
    /// `may_begin` a receive, one is posted for a message of which only the first part is there,
    /// so that its bytes go straight to `view`, too.
    #[inline]
    #[track_caller]
    pub fn receive_direct(&mut self, view: &RawView, pattern: Pattern, may_begin: bool) -> Direct {
        debug_assert!(self.posted.is_empty());
        // By reference: what is copied straight after it was written waits for
        // the stores before it.
        let Some(message) = &self.port.links.poll() else {
            return Direct::Nothing;
        };
        if message.head.kind == wire::EAGER && message.head.aux == 0 {
            let (tag, _) = wire::halves(message.head.arg);
            let envelope = Envelope {
                source: message.peer,
                tag,
            };
            let bytes = message.payload.len();
            if pattern.accepts(envelope) && bytes <= view.bytes() {
                let since = self.port.trace_stamp();
                // SAFETY: invariant 1 for the view, which has as many bytes; invariant 1 of
                // `protocols` for the payload.
                unsafe { view.unpack(0..bytes, message.payload.as_ptr()) };
                self.port.links.release(message);
                self.credit(message.peer, bytes);
                let number = self.port.trace_handled(message.peer, wire::EAGER);
                self.port
                    .trace_received(message.peer, tag, bytes, number, since);
                return Direct::Received(Outcome {
                    source: message.peer,
                    tag,
                    bytes,
                });
            }
        }
        let begins = may_begin && matches!(message.head.kind, wire::EAGER_FIRST | wire::RTS);
        if begins && let Some(handle) = self.post_for(view, pattern, message) {
            self.handle(message);
            return Direct::Begun(handle);
        }
        self.handle(message);
        Direct::Other
    }

    /// Posts a receive that takes a message, if it does.
    #[track_caller]
    fn post_for(&mut self, view: &RawView, pattern: Pattern, message: &Incoming) -> Option<u32> {
        let (tag, _) = wire::halves(message.head.arg);
        let envelope = Envelope {
            source: message.peer,
            tag,
        };
        // What has outlived its sender is dropped.
        let lost = self.port.peers[message.peer as usize].dead.is_some();
        let takes = pattern.accepts(envelope) && !lost;
        // Without room for its operation it is a message that nobody expects.
        takes.then(|| self.post_expected(view.clone(), pattern).ok())?
    }

    /// Asks once for the next message of `source`, if it is short and has this
    /// tag; returns its bytes. `None` says nothing. Under the conditions of
    /// [`Lane::receive_direct`], and where no trace records.
    #[inline]
    pub fn receive_next(&mut self, view: &RawView, source: u32, tag: u32) -> Option<usize> {
        // SAFETY: invariant 1, and invariant 1 of `protocols`: view and payload, within `room`.
        let copy = |at, from, bytes| unsafe { view.unpack(at..at + bytes, from) };
        let room = view.bytes();
        let bytes = self
            .port
            .links
            .take_next(source, wire::EAGER, tag, room, copy)?;
        self.credit(source, bytes);
        Some(bytes)
    }

    /// Whether a receive of `pattern` may search for its message before it is
    /// posted.
    #[inline]
    pub fn may_receive_directly(&mut self, pattern: Pattern) -> bool {
        self.idle() && !self.has_unexpected(pattern)
    }

    /// Whether nothing is posted or in flight, so that
    /// [`Lane::receive_direct`] may be used. A lane that checks posts all
    /// receives, so that it is known which were.
    #[inline]
    pub fn idle(&self) -> bool {
        self.port.check.is_none()
            && !self.port.is_revoked
            && self.posted.is_empty()
            && self.port.busy.is_empty()
            && self.get.is_idle()
    }

    /// Why a probe for these messages fails, if it does: a rank has failed, or a wait
    /// resigns because all that could send have left.
    pub fn dead_source(&self, pattern: Pattern) -> Option<Error> {
        let e = self.refuse_dead(&RawView::empty(), pattern).err();
        e.or_else(|| match resigns() {
            true => self.left_source(pattern, &self.describe_probe(pattern)),
            false => None,
        })
    }

    /// Why a message of the library itself will never come, if so.
    pub fn lost_source(&self, pattern: Pattern) -> Option<Error> {
        let e = self.refuse_dead(&RawView::empty(), pattern).err();
        e.or_else(|| self.left_source(pattern, &self.describe_probe(pattern)))
    }

    fn describe_probe(&self, pattern: Pattern) -> String {
        let source = pattern.source;
        match pattern.tag {
            TagPattern::Exact(tag) => describe("probe for", source, tag, 0, &self.port.links),
            TagPattern::Any => {
                let who = source.map_or("any rank".into(), |s| format!("rank {s}"));
                format!("probe for {who}, any tag")
            }
        }
    }

    /// Whether an unexpected message matches.
    #[inline]
    pub fn has_unexpected(&mut self, pattern: Pattern) -> bool {
        !self.unexpected.is_empty() && self.unexpected.peek(pattern).is_some()
    }

    fn refuse_dead(&self, view: &RawView, pattern: Pattern) -> Result<()> {
        if self.is_revoked() {
            let what = self.describe_receive(view, pattern);
            return Err(self.port.revoked(&what));
        }
        let finalized = || {
            let source = pattern.source.filter(|_| is_internal(pattern))?;
            // Nobody could cancel it.
            Some((source, self.port.peers[source as usize].dead?))
        };
        let Some((peer, how)) = self.failed_source(pattern).or_else(finalized) else {
            return Ok(());
        };
        let what = self.describe_receive(view, pattern);
        Err(ended_over(&self.port.links, &what, peer, how))
    }

    #[cold]
    fn describe_receive(&self, view: &RawView, pattern: Pattern) -> String {
        let tag = match pattern.tag {
            TagPattern::Exact(tag) => tag,
            TagPattern::Any => 0,
        };
        let (source, bytes) = (pattern.source, view.bytes());
        describe("receive from", source, tag, bytes, &self.port.links)
    }

    #[track_caller]
    fn receive_op(&mut self, view: RawView, pattern: Pattern) -> Result<u32> {
        let tag = match pattern.tag {
            TagPattern::Exact(tag) => tag,
            TagPattern::Any => 0,
        };
        let source = pattern.source.unwrap_or(self.port.own);
        let op = Op::receive(view, pattern, source, tag);
        let handle = self.port.ops.insert(op).ok_or_else(crate::slab::full)?;
        self.follow(handle);
        Ok(handle)
    }

    #[track_caller]
    fn receive_arrival(&mut self, view: RawView, arrival: u32) -> Result<Posted> {
        let Some(Arrived {
            what,
            envelope,
            number,
            check_body,
            ..
        }) = self.arrivals.remove(arrival)
        else {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "the probed message is gone (hint: receive a matched message once)",
            ));
        };
        let peer = envelope.source;
        let outcome = |bytes| Outcome {
            source: peer,
            tag: envelope.tag,
            bytes,
        };
        if let Arrival::Poison { failed_rank } = what {
            return Err(self.meets_poison(peer, failed_rank));
        }
        if let Some(check_body) = &check_body {
            let bytes = what.bytes();
            self.compare(
                &view,
                check_body,
                peer,
                envelope.tag,
                bytes,
                Location::caller(),
            );
        }
        if let (Arrival::Whole { data, ack }, None) = (&what, view.as_device()) {
            self.follow_shortly(&view, peer, envelope.tag, Location::caller());
            let bytes = data.len();
            let fits = bytes.min(view.bytes());
            let since = self.port.trace_stamp();
            // SAFETY: invariants 1 and 2: `fits` is cut to the lengths of both.
            unsafe { view.unpack(0..fits, data.as_ptr()) };
            self.port
                .trace_received(peer, envelope.tag, bytes, number, since);
            self.credit(peer, bytes);
            if let Some(send) = *ack {
                self.port.control(peer, wire::head(wire::ACK, 0, send, 0));
            }
            if let Arrival::Whole { data, .. } = what {
                self.recycle(data);
            }
            if bytes <= view.bytes() {
                return Ok(Posted::Done(outcome(bytes)));
            }
            // The error is the receive's, not the call's that posted it.
            let handle = self.receive_op(view, Pattern::exact(peer, envelope.tag))?;
            if let Some(op) = self.port.ops.get_mut(handle) {
                op.total = bytes;
            }
            self.port.received(handle);
            return Ok(Posted::Pending(handle));
        }
        let total = what.bytes();
        let pattern = Pattern::exact(peer, envelope.tag);
        let handle = self.receive_op(view, pattern)?;
        if let Some(op) = self.port.ops.get_mut(handle) {
            op.number = number;
        }
        match what {
            // To a device.
            Arrival::Whole { data, ack } => {
                self.begin_stream(handle, envelope, data.len());
                if let Some(send) = ack {
                    self.port.control(peer, wire::head(wire::ACK, 0, send, 0));
                }
                self.credit(peer, data.len());
                self.receive_bytes(handle, data.as_ptr(), data.len());
                self.recycle(data);
            }
            Arrival::Stream {
                send,
                total,
                data,
                ack,
            } => {
                self.begin_stream(handle, envelope, total);
                if ack {
                    self.port.control(peer, wire::head(wire::ACK, 0, send, 0));
                }
                self.credit(peer, total);
                if data.len() < total {
                    for (_, target) in &mut self.port.peers[peer as usize].incoming {
                        if *target == Target::Arrival(arrival) {
                            *target = Target::Op(handle);
                        }
                    }
                }
                self.receive_bytes(handle, data.as_ptr(), data.len());
            }
            Arrival::Rts { send, total, offer } => {
                self.begin_rendezvous(handle, envelope, send, total, &offer);
            }
            Arrival::Poison { .. } => {}
        }
        if self.succeeded(handle) {
            return Ok(Posted::Done(outcome(total)));
        }
        Ok(Posted::Pending(handle))
    }

    /// A receive has this message's bytes: its sender gets its credit back.
    #[inline]
    pub(super) fn credit(&mut self, peer: u32, bytes: usize) {
        if let Some(amount) = self.port.peers[peer as usize].receiver.received(bytes) {
            self.port
                .control(peer, wire::head(wire::CREDIT, 0, amount, 0));
        }
    }

    pub(crate) fn on_eager(&mut self, message: &Incoming, tag: u32, send: u32) -> bool {
        if self.window_takes(message, tag) {
            return true;
        }
        let peer = message.peer;
        let bytes = message.payload.len();
        let envelope = Envelope { source: peer, tag };
        let wants_ack = message.head.aux & 1 != 0;
        let check_body = self.take_check_body(peer, message.head.aux);
        let Some(handle) = self.posted.take(envelope, &mut self.port.ops) else {
            let mut data = self.buffer(bytes);
            // SAFETY: invariant 1 of `protocols`: not released yet.
            unsafe { append(&mut data, message.payload.as_ptr(), bytes) };
            let ack = wants_ack.then_some(send);
            return self
                .arrive(envelope, Arrival::Whole { data, ack }, check_body)
                .is_some();
        };
        if let Some(check_body) = check_body {
            self.compare_op(handle, &check_body, peer, tag, bytes);
        }
        let Some(op) = self.port.ops.get_mut(handle) else {
            return false;
        };
        op.stream();
        op.peer = peer;
        op.tag = tag;
        op.total = bytes;
        op.number = self.port.handling;
        if op.view.as_device().is_some() {
            self.receive_bytes(handle, message.payload.as_ptr(), bytes);
        } else {
            let fits = bytes.min(op.view.bytes());
            // SAFETY: invariant 3 of `protocols`: the receive is pending, the payload is not
            // released (invariant 1 of `protocols`), and `fits` is cut to the lengths of
            // both.
            unsafe { op.view.unpack(0..fits, message.payload.as_ptr()) };
            self.port.received(handle);
        }
        self.credit(peer, bytes);
        if wants_ack {
            self.port.control(peer, wire::head(wire::ACK, 0, send, 0));
        }
        true
    }

    pub(crate) fn arrive(
        &mut self,
        envelope: Envelope,
        mut what: Arrival,
        check_body: Option<Box<wire::CheckBody>>,
    ) -> Option<u32> {
        if let Some(check_body) = &check_body
            && check_body.ready
        {
            self.not_posted(check_body, envelope, what.bytes());
        }
        self.port.counters.unexpected += 1;
        self.port.finished = true; // somebody may sleep in a probe
        let bytes = what.bytes();
        if (self.port.refusing || self.port.is_revoked)
            && let Some(send) = what.take_answer()
        {
            self.refuse_send(envelope.source, send);
        }
        let arrival = self.arrivals.insert(Arrived {
            what,
            queued: None,
            envelope,
            number: self.port.handling,
            check_body,
        })?;
        self.port.trace_piece(
            Kind::Unexpected,
            envelope.source,
            bytes,
            self.port.trace_stamp(),
        );
        let key = self.unexpected.push(envelope, arrival);
        if let Some(a) = self.arrivals.get_mut(arrival) {
            a.queued = Some(key);
        }
        Some(arrival)
    }

    pub(crate) fn on_first(&mut self, message: &Incoming, tag: u32, send: u32) -> bool {
        let peer = message.peer;
        let Some(n) = message.payload.len().checked_sub(wire::TOTAL_BYTES) else {
            return false;
        };
        let mut total = [0; wire::TOTAL_BYTES];
        let from = message.payload.as_ptr();
        // SAFETY: invariant 1 of `protocols`: not released yet, long enough by the check
        // above.
        unsafe { std::ptr::copy_nonoverlapping(from, total.as_mut_ptr(), wire::TOTAL_BYTES) };
        let Some(total) = wire::open_eager_first_total(u64::from_le_bytes(total), tag) else {
            // Neither its length nor its fragments are known.
            self.port.links.cut_off(peer);
            return false;
        };
        // Eager bytes are bounded by credit, so a larger total is nonsense
        // and must not make us reserve memory.
        if total > crate::protocol::eager::LIMIT_BYTES || total <= n as u64 {
            return false;
        }
        let total = total as usize;
        let from = from.wrapping_add(wire::TOTAL_BYTES);
        let envelope = Envelope { source: peer, tag };
        let wants_ack = message.head.aux & 1 != 0;
        let check_body = self.take_check_body(peer, message.head.aux);
        match self.posted.take(envelope, &mut self.port.ops) {
            Some(handle) => {
                if let Some(check_body) = check_body {
                    self.compare_op(handle, &check_body, peer, tag, total);
                }
                self.number(handle);
                self.begin_stream(handle, envelope, total);
                self.port.peers[peer as usize]
                    .incoming
                    .push((send, Target::Op(handle)));
                self.receive_bytes(handle, from, n);
                self.credit(peer, total);
                if wants_ack {
                    self.port.control(peer, wire::head(wire::ACK, 0, send, 0));
                }
                true
            }
            None => {
                let mut data = self.buffer(total);
                data.reserve(total);
                // SAFETY: invariant 1 of `protocols`: not released yet, `n` bytes behind the
                // total.
                unsafe { append(&mut data, from, n) };
                let arrival = Arrival::Stream {
                    send,
                    total,
                    data,
                    ack: wants_ack,
                };
                let Some(arrival) = self.arrive(envelope, arrival, check_body) else {
                    return false;
                };
                self.port.peers[peer as usize]
                    .incoming
                    .push((send, Target::Arrival(arrival)));
                true
            }
        }
    }

    /// The receive is met by the message that is being handled.
    #[inline]
    fn number(&mut self, handle: u32) {
        if self.port.handling != 0
            && let Some(op) = self.port.ops.get_mut(handle)
        {
            op.number = self.port.handling;
        }
    }

    fn begin_stream(&mut self, handle: u32, envelope: Envelope, total: usize) {
        if let Some(op) = self.port.ops.get_mut(handle) {
            op.stream();
            op.peer = envelope.source;
            op.tag = envelope.tag;
            op.total = total;
        }
    }

    /// Takes the next bytes of a stream into a receive.
    fn receive_bytes(&mut self, handle: u32, from: *const u8, bytes: usize) {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return;
        };
        if op.view.as_device().is_some() && op.total > 0 {
            return host_staged::stage_bytes(&mut self.port, handle, from, bytes);
        }
        let moved = op.received();
        let at = moved.min(op.view.bytes());
        let end = (moved + bytes).min(op.view.bytes());
        // SAFETY: invariant 3 for the bytes; the receive is pending (invariant 3 of
        // `protocols`), and the range is cut to its view.
        unsafe { op.view.unpack(at..end, from) };
        op.receive_more(bytes);
        if moved + bytes >= op.total {
            self.port.received(handle);
        }
    }

    pub(crate) fn on_fragment(&mut self, message: &Incoming, send: u32) -> bool {
        let incoming = &mut self.port.peers[message.peer as usize].incoming;
        let Some(at) = incoming.iter().position(|(s, _)| *s == send) else {
            return false;
        };
        let bytes = message.payload.len();
        let from = message.payload.as_ptr();
        let since = self.port.trace_stamp();
        let incoming = &mut self.port.peers[message.peer as usize].incoming;
        let left = match &mut incoming[at].1 {
            Target::Discard(left) => {
                *left = left.saturating_sub(bytes);
                *left
            }
            Target::Op(handle) => {
                let handle = *handle;
                let Some(left) = self.port.ops.get(handle).map(|op| op.total - op.received())
                else {
                    return false;
                };
                if bytes > left {
                    return false;
                }
                self.receive_bytes(handle, from, bytes);
                left - bytes
            }
            Target::Arrival(arrival) => {
                match self.arrivals.get_mut(*arrival).map(|a| &mut a.what) {
                    Some(Arrival::Stream { total, data, .. }) if data.len() + bytes <= *total => {
                        // SAFETY: invariant 1 of `protocols`: not released yet.
                        unsafe { append(data, from, bytes) };
                        *total - data.len()
                    }
                    _ => return false,
                }
            }
        };
        self.port
            .trace_piece(Kind::FragmentIn, message.peer, bytes, since);
        if left == 0 {
            self.port.peers[message.peer as usize].incoming.remove(at);
        }
        true
    }

    pub(crate) fn on_rts(&mut self, message: &Incoming, tag: u32, send: u32) -> bool {
        if message.payload.len() > wire::RtsBody::MAX_BYTES {
            return false;
        }
        let mut body = [0; wire::RtsBody::MAX_BYTES];
        let n = message.payload.len();
        let from = message.payload.as_ptr();
        // SAFETY: invariant 1 of `protocols`: not released yet, at most the array's length.
        unsafe { std::ptr::copy_nonoverlapping(from, body.as_mut_ptr(), n) };
        let Some(a) = wire::RtsBody::from_wire(&body[..n], message.head.aux) else {
            return false;
        };
        let (key, memory) = match a.reach {
            wire::Reach::Nothing => (None, None),
            wire::Reach::Key(key) => (Some(key), None),
            wire::Reach::Offer(offer) => (
                None,
                Some(device_memory::remote(&mut self.port, message.peer, offer)),
            ),
        };
        let envelope = Envelope {
            source: message.peer,
            tag,
        };
        let total = a.total as usize;
        let offer = Rts {
            key,
            on_device: message.head.aux & wire::ON_DEVICE != 0,
            late: message.head.aux & wire::LATE != 0,
            memory,
        };
        let check_body = self.take_check_body(message.peer, message.head.aux);
        match self.posted.take(envelope, &mut self.port.ops) {
            Some(handle) => {
                if let Some(check_body) = check_body {
                    self.compare_op(handle, &check_body, message.peer, tag, total);
                }
                self.number(handle);
                self.begin_rendezvous(handle, envelope, send, total, &offer);
                true
            }
            None if self.is_revoked() => {
                self.refuse_send(message.peer, send);
                true
            }
            None => self
                .arrive(envelope, Arrival::Rts { send, total, offer }, check_body)
                .is_some(),
        }
    }

    fn begin_rendezvous(
        &mut self,
        handle: u32,
        envelope: Envelope,
        send: u32,
        total: usize,
        offer: &Rts,
    ) {
        self.begin_stream(handle, envelope, total);
        let peer = envelope.source;
        self.port
            .trace_piece(Kind::Matched, peer, total, self.port.trace_stamp());
        if total == 0 {
            self.port
                .control(peer, wire::head(wire::FIN, wire::OUTCOME_DONE, send, 0));
            return self.port.received(handle);
        }
        let pulled = rendezvous::answer(&mut self.port, handle, peer, send, offer);
        if let Some(key) = pulled {
            self.get.begin_pull(&mut self.port, handle, peer, send, key);
        }
    }

    pub(crate) fn on_cancel(&mut self, peer: u32, send: u32, aux: u16, blame: u32) -> bool {
        let failed_rank = (aux & wire::OF_RUN != 0).then_some(blame);
        let answer = wire::head(wire::FIN, wire::OUTCOME_CANCELLED, send, 0);
        let incoming = &mut self.port.peers[peer as usize].incoming;
        if let Some(at) = incoming.iter().position(|(s, _)| *s == send) {
            let (_, target) = incoming.remove(at);
            match target {
                Target::Op(handle) => match failed_rank {
                    Some(failed_rank) => self.finish_poisoned(handle, peer, failed_rank),
                    None => {
                        let e = Error::new(
                            ErrorKind::Cancelled,
                            format!("{}: the sender cancelled it", self.port.describe(handle)),
                        );
                        self.port.finish(handle, Some(e));
                    }
                },
                Target::Arrival(arrival) => self.cancel_arrival(arrival, failed_rank),
                Target::Discard(_) => {}
            }
            self.port.control(peer, answer);
            return true;
        }
        let found = self.arrivals.handles().find(|a| {
            self.arrivals.get(*a).is_some_and(|a| {
                a.envelope.source == peer
                    && matches!(a.what, Arrival::Rts { send: s, .. } if s == send)
            })
        });
        if let Some(arrival) = found {
            self.cancel_arrival(arrival, failed_rank);
            self.port.control(peer, answer);
        }
        // Otherwise it is being pulled, or was; FIN says so.
        true
    }

    /// Forgets a message, or puts poison in its place: the receive that it is owed to is
    /// not posted yet.
    fn cancel_arrival(&mut self, arrival: u32, failed_rank: Option<u32>) {
        let Some(arrived) = self.arrivals.get_mut(arrival) else {
            return;
        };
        let peer = arrived.envelope.source;
        let what = match failed_rank {
            Some(failed_rank) => {
                arrived.check_body = None;
                std::mem::replace(&mut arrived.what, Arrival::Poison { failed_rank })
            }
            None => {
                let queued = arrived.queued;
                if let Some(key) = queued {
                    self.unexpected.remove(key);
                }
                match self.arrivals.remove(arrival) {
                    Some(arrived) => arrived.what,
                    None => return,
                }
            }
        };
        match what {
            Arrival::Rts { .. } | Arrival::Poison { .. } => {}
            Arrival::Whole { data, .. } => self.credit(peer, data.len()),
            Arrival::Stream { total, .. } => self.credit(peer, total),
        }
    }
}

/// What [`Lane::receive_direct`] met.
pub enum Direct {
    /// Nothing has come.
    Nothing,
    /// The message, now in the view.
    Received(Outcome),
    /// Its first part: this receive was posted for it.
    Begun(u32),
    /// Something else, which has been handled.
    Other,
}

/// Appends foreign bytes to a buffer.
///
/// # Safety
/// `bytes` bytes at `from` are readable.
unsafe fn append(to: &mut Vec<u8>, from: *const u8, bytes: usize) {
    to.reserve(bytes);
    // SAFETY: invariant 2: inside the reserved capacity.
    let end = unsafe { to.as_mut_ptr().add(to.len()) };
    // SAFETY: invariant 2: reserved above; by the caller's contract as many bytes are
    // readable.
    unsafe { std::ptr::copy_nonoverlapping(from, end, bytes) };
    // SAFETY: invariant 2: initialised by the copy.
    unsafe { to.set_len(to.len() + bytes) };
}
