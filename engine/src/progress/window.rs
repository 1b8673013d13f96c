//! Posted receives that are no operations: a window of one source and one tag.
//!
//! A loop that posts many receives of one peer and waits for all needs of each no more than
//! where its bytes go. Such a receive is an entry of 32 bytes in posting order; its messages
//! come in that order, so nothing is searched. It becomes an operation when anything but the
//! next short message or its end concerns it.
//!
//! ```text
//! numbers     first        waiting        next
//!               | done ...   | waiting ...  |
//! entry       Waiting -> Done -> Taken           a whole message came
//!                     -> Op -> Taken             it is an operation now
//!                     -> Lost -> Taken           there was no room for one
//!             Done    -> Op                      its owner wants more than its end
//! ```
//!
//! # Invariants
//! 1. Entries from `first` to `next` exist, none else; those from `waiting` on wait, and no
//!    other. Numbers wrap; their difference is at most the length of the list.
//! 2. While an entry waits, the queue of posted receives is empty: what waits in the window
//!    was posted before all that is in the queue.
//! 3. All that wait name `envelope`, whose source is another rank, and memory of the host in
//!    order, which belongs to the receive (invariant 1 of the view).
//! 4. While an entry waits, nobody checks or records, and no peer is known to have ended:
//!    what changes that settles the window first.

use super::lane::Lane;
use super::op::{Op, Outcome, Posted, Protocol};
use crate::diagnose::waits::{listens, resigns};
use crate::error::Result;
use crate::matching::{Envelope, Pattern, PostedQueue};
use crate::slab::{self, Slab};
use crate::view::{RawView, copy_contiguous};
use crate::wire;
use osier_transports::Incoming;
use std::panic::Location;

/// Entries of a new window, and the most there are; both powers of two.
const LEAST: usize = 64;
const MOST: usize = 4096;
/// A handle that no operation has.
const NO_OP: u32 = u32::MAX;

/// A transfer under way, as its owner names it to the lane: an operation by its handle, or a
/// receive of the window by its number and a bit. One word, as all that is handed on from
/// call to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u64);

/// The bit of a receive of the window.
const IN_WINDOW: u64 = 1 << 32;

impl Handle {
    /// Of an operation.
    #[inline(always)]
    pub fn of_op(op: u32) -> Self {
        Self(op.into())
    }

    #[inline(always)]
    fn of_number(number: u32) -> Self {
        Self(IN_WINDOW | u64::from(number))
    }

    /// Handle of the operation, or number in the window.
    #[inline(always)]
    fn named(self) -> Named {
        match self.0 & IN_WINDOW {
            0 => Named::Op(self.0 as u32),
            _ => Named::InWindow(self.0 as u32),
        }
    }
}

enum Named {
    Op(u32),
    InWindow(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// With the bytes of its message.
    Done,
    /// With its handle.
    Op,
    Lost,
    Taken,
}

#[derive(Clone, Copy)]
struct Entry {
    origin: *mut u8,
    room: usize,
    site: &'static Location<'static>,
    /// As its state says.
    value: u32,
    state: State,
}

const _: () = assert!(size_of::<Entry>() == 32);

// SAFETY: invariant 3: an address that its receive may write, on any thread.
unsafe impl Send for Entry {}

impl Entry {
    /// The memory that it receives into.
    #[inline]
    fn view(&self) -> RawView {
        RawView::untyped(self.origin, self.room)
    }

    /// As an operation, which is not posted.
    #[cold]
    fn to_op(self, envelope: Envelope) -> Op {
        let Envelope { source, tag } = envelope;
        let mut op = Op::receive(self.view(), Pattern::exact(source, tag), source, tag);
        op.site = self.site;
        op
    }
}

/// Receives that are posted: in the window, or in the queue.
pub(crate) struct PostedReceives {
    queue: PostedQueue,
    /// Their number is a power of two, or nothing.
    entries: Vec<Entry>,
    envelope: Envelope,
    first: u32,
    waiting: u32,
    next: u32,
}

impl PostedReceives {
    pub const fn new() -> Self {
        Self {
            queue: PostedQueue::new(),
            entries: Vec::new(),
            envelope: Envelope { source: 0, tag: 0 },
            first: 0,
            waiting: 0,
            next: 0,
        }
    }

    /// Number of receives that wait.
    pub fn len(&self) -> usize {
        self.queue.len() + self.in_window()
    }

    /// Whether no receive waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == self.next && self.queue.is_empty()
    }

    /// Number of receives that wait in the window.
    #[inline]
    pub fn in_window(&self) -> usize {
        self.next.wrapping_sub(self.waiting) as usize
    }

    /// The queue, in which all receives are that wait.
    #[inline]
    pub fn queue(&mut self, ops: &mut Slab<Op>) -> &mut PostedQueue {
        if self.waiting != self.next {
            self.settle(ops);
        }
        &mut self.queue
    }

    /// The queue, for what concerns no receive of the window.
    #[inline]
    pub fn outside(&self) -> &PostedQueue {
        &self.queue
    }

    /// The same to be changed: nothing may be posted there while an entry waits.
    #[inline]
    pub fn outside_mut(&mut self) -> &mut PostedQueue {
        &mut self.queue
    }

    /// The sources that receives name, as often as they are named.
    pub fn sources(&self) -> impl Iterator<Item = u32> {
        let here = (self.waiting != self.next).then_some(self.envelope.source);
        self.queue.sources().chain(here)
    }

    /// Whether any receive takes messages of any source.
    pub fn takes_from_any(&self) -> bool {
        self.queue.takes_from_any()
    }

    /// Removes the earliest posted receive that accepts a message; its handle.
    #[inline]
    pub fn take(&mut self, envelope: Envelope, ops: &mut Slab<Op>) -> Option<u32> {
        if self.waiting == self.next {
            return self.queue.take(envelope);
        }
        self.take_waiting(envelope, ops)
    }

    #[cold]
    fn take_waiting(&mut self, envelope: Envelope, ops: &mut Slab<Op>) -> Option<u32> {
        while self.waiting != self.next && self.envelope == envelope {
            if let Some(handle) = self.make_op(self.waiting, ops) {
                self.waiting = self.waiting.wrapping_add(1);
                return Some(handle);
            }
            // It is lost; the message is the next one's.
            self.waiting = self.waiting.wrapping_add(1);
        }
        None
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries
            .get(number as usize & self.entries.len().wrapping_sub(1))
    }

    #[inline(always)]
    fn entry_mut(&mut self, number: u32) -> Option<&mut Entry> {
        let mask = self.entries.len().wrapping_sub(1);
        self.entries.get_mut(number as usize & mask)
    }

    /// Whether receives of this source and tag wait in the window.
    #[inline(always)]
    fn holds(&self, envelope: Envelope) -> bool {
        self.waiting != self.next && self.envelope == envelope
    }

    /// Whether this one waits in the window.
    #[inline(always)]
    fn waits(&self, number: u32) -> bool {
        number.wrapping_sub(self.waiting) < self.next.wrapping_sub(self.waiting)
    }

    /// Posts behind those that are in the window; `None` if it is full.
    #[inline(always)]
    fn push(
        &mut self,
        origin: *mut u8,
        room: usize,
        site: &'static Location<'static>,
    ) -> Option<Handle> {
        let number = self.next;
        if number.wrapping_sub(self.first) as usize >= self.entries.len() && !self.grow() {
            return None;
        }
        *self.entry_mut(number)? = Entry {
            origin,
            room,
            site,
            value: 0,
            state: State::Waiting,
        };
        self.next = number.wrapping_add(1);
        Some(Handle::of_number(number))
    }

    /// Posts in the window, if it is empty or has receives of this source and tag; `None`: it
    /// has others, or is full, or the queue has some.
    #[track_caller]
    fn post(
        &mut self,
        origin: *mut u8,
        room: usize,
        envelope: Envelope,
        ops: &mut Slab<Op>,
    ) -> Option<Handle> {
        if !self.queue.is_empty() {
            return None;
        }
        if self.envelope != envelope {
            if self.waiting != self.next {
                return None;
            }
            self.turn_to(envelope, ops);
        }
        self.push(origin, room, Location::caller())
    }

    #[cold]
    fn grow(&mut self) -> bool {
        let had = self.entries.len();
        if had >= MOST {
            return false;
        }
        let nothing = Entry {
            origin: std::ptr::null_mut(),
            room: 0,
            site: Location::caller(),
            value: 0,
            state: State::Taken,
        };
        let now = (had * 2).max(LEAST);
        let mut entries = vec![nothing; now];
        let mut number = self.first;
        while number != self.next {
            if let Some(entry) = self.entry(number) {
                entries[number as usize & (now - 1)] = *entry;
            }
            number = number.wrapping_add(1);
        }
        self.entries = entries;
        true
    }

    /// Makes room for receives of another source and tag, where none waits: what has ended
    /// and was not taken becomes operations.
    #[cold]
    fn turn_to(&mut self, envelope: Envelope, ops: &mut Slab<Op>) {
        debug_assert!(self.waiting == self.next);
        let mut number = self.first;
        while number != self.next {
            if self.entry(number).is_some_and(|e| e.state == State::Done) {
                self.make_op(number, ops);
            }
            number = number.wrapping_add(1);
        }
        self.envelope = envelope;
    }

    /// Makes operations of all that wait.
    #[cold]
    fn settle(&mut self, ops: &mut Slab<Op>) {
        while self.waiting != self.next {
            let number = self.waiting;
            self.waiting = number.wrapping_add(1);
            let Some(handle) = self.make_op(number, ops) else {
                continue;
            };
            let key = self.queue.post_exact(self.envelope, handle);
            if let Some(op) = ops.get_mut(handle) {
                op.protocol = Protocol::Posted(Some(key));
            }
        }
    }

    /// Makes an operation of one, which is not posted; `None` without room: it is lost.
    fn make_op(&mut self, number: u32, ops: &mut Slab<Op>) -> Option<u32> {
        let envelope = self.envelope;
        let entry = self.entry_mut(number)?;
        let mut op = entry.to_op(envelope);
        if entry.state == State::Done {
            op.total = entry.value as usize;
            op.protocol = Protocol::Done { met: true };
        }
        let made = ops.insert(op);
        (entry.state, entry.value) = match made {
            Some(handle) => (State::Op, handle),
            None => (State::Lost, 0),
        };
        made
    }

    /// One that is not taken.
    #[inline(always)]
    fn get(&self, number: u32) -> Option<&Entry> {
        let is_there = number.wrapping_sub(self.first) < self.next.wrapping_sub(self.first);
        self.entry(number)
            .filter(|entry| is_there && entry.state != State::Taken)
    }

    /// The one that has waited longest has its message.
    #[inline(always)]
    fn served(&mut self, bytes: usize) {
        let number = self.waiting;
        if let Some(entry) = self.entry_mut(number) {
            (entry.state, entry.value) = (State::Done, bytes as u32);
        }
        self.waiting = number.wrapping_add(1);
    }

    /// The operation of one that is not taken, which names it from now on.
    fn op_of(&mut self, number: u32, ops: &mut Slab<Op>) -> Option<u32> {
        if self.waits(number) {
            self.settle(ops);
        }
        let &Entry { state, value, .. } = self.get(number)?;
        match state {
            State::Op => Some(value),
            State::Done => self.make_op(number, ops),
            State::Waiting | State::Lost | State::Taken => None,
        }
    }

    /// Its owner names it no more.
    #[inline(always)]
    fn forget(&mut self, number: u32) {
        if let Some(entry) = self.entry_mut(number) {
            entry.state = State::Taken;
        }
        while self.first != self.waiting
            && self
                .entry(self.first)
                .is_some_and(|e| e.state == State::Taken)
        {
            self.first = self.first.wrapping_add(1);
        }
    }
}

impl Default for PostedReceives {
    fn default() -> Self {
        Self::new()
    }
}

/// What came of a receive.
#[derive(Clone, Copy, Debug)]
pub enum Begun {
    /// Received this number of bytes.
    Received(usize),
    /// Posted.
    Posted(Handle),
}

impl Lane {
    /// Posts a receive of memory in order behind others of this source and tag that wait in
    /// the window, without a look for their messages; `None`: there are none, it is time to
    /// look, or there is no room. Nothing else changes, least of all what a thread may wait
    /// for.
    #[inline(always)]
    #[track_caller]
    pub fn post_behind(
        &mut self,
        origin: *mut u8,
        bytes: usize,
        source: u32,
        tag: u32,
    ) -> Option<Handle> {
        if !self.posted.holds(Envelope { source, tag }) || self.unpolled == 0 {
            return None;
        }
        self.unpolled -= 1;
        self.posted.push(origin, bytes, Location::caller())
    }

    /// Receives a message of one source and tag, if it is there, or posts its receive;
    /// `None`: it needs [`Lane::irecv`], and nothing has happened.
    #[inline]
    #[track_caller]
    pub fn begin_exact(&mut self, view: &RawView, source: u32, tag: u32) -> Option<Begun> {
        let envelope = Envelope { source, tag };
        if self.posted.holds(envelope) && view.as_contiguous().is_some() {
            // Nothing unexpected is of this source and tag (invariant 2).
            self.serve_window_early();
            if self.posted.in_window() != 0 {
                let posted = self
                    .posted
                    .push(view.origin, view.bytes, Location::caller());
                return posted.map(Begun::Posted);
            }
        }
        self.begin_alone(view, envelope)
    }

    #[inline]
    #[track_caller]
    fn begin_alone(&mut self, view: &RawView, envelope: Envelope) -> Option<Begun> {
        let Envelope { source, tag } = envelope;
        if !self.is_plain() || view.as_device().is_some() {
            return None;
        }
        match self.receive_at_once(view, source, tag) {
            Some(Posted::Done(outcome)) => return Some(Begun::Received(outcome.bytes)),
            Some(Posted::Pending(handle)) => {
                return Some(Begun::Posted(Handle::of_op(handle)));
            }
            None => {}
        }
        // A message that was looked at may have been a revocation.
        if !self.expects_all() || self.troubles != 0 {
            return None;
        }
        if view.as_contiguous().is_some() && source != self.port.own {
            let (posted, ops) = (&mut self.posted, &mut self.port.ops);
            if let Some(at) = posted.post(view.origin, view.bytes, envelope, ops) {
                return Some(Begun::Posted(at));
            }
        }
        let posted = self.post_exact(view.clone(), source, tag);
        posted.map(|handle| Begun::Posted(Handle::of_op(handle)))
    }

    /// Gives the receive that waits longest in the window its message, if that is the next of
    /// its source and there; where one waits. No more is known of a message that stays.
    #[inline(always)]
    pub(crate) fn serve_window(&mut self) -> bool {
        let posted = &self.posted;
        let Envelope { source, tag } = posted.envelope;
        let Some(entry) = posted.entry(posted.waiting) else {
            return false;
        };
        let &Entry { origin, room, .. } = entry;
        let copy = |at, from, bytes| {
            // SAFETY: invariant 3, and invariants 1 and 3 of `protocols`: payload and memory
            // of the receive, within its room.
            unsafe { copy_contiguous(from, origin.wrapping_add(at), bytes) }
        };
        let links = &mut self.port.links;
        let taken = links.take_next(source, wire::EAGER, tag, room, copy);
        let Some(bytes) = taken else {
            return false;
        };
        self.window_served(source, bytes);
        true
    }

    /// The receive that has waited longest has its message.
    #[inline(always)]
    fn window_served(&mut self, source: u32, bytes: usize) {
        self.posted.served(bytes);
        self.port.finished = true;
        self.moved += 1;
        self.credit(source, bytes);
    }

    /// A whole message for the receive that has waited longest in the window; false if it is
    /// not for it, or not whole, or too long.
    #[inline]
    pub(crate) fn window_takes(&mut self, message: &Incoming, tag: u32) -> bool {
        let (source, bytes) = (message.peer, message.payload.len());
        if !self.posted.holds(Envelope { source, tag }) || message.head.aux != 0 {
            return false;
        }
        let Some(entry) = self.posted.entry(self.posted.waiting) else {
            return false;
        };
        if bytes > entry.room {
            return false;
        }
        let from = message.payload.as_ptr();
        // SAFETY: invariant 3, and invariants 1 and 3 of `protocols`: the payload is not
        // released, and the receive has room for it.
        unsafe { copy_contiguous(from, entry.origin, bytes) };
        self.window_served(source, bytes);
        true
    }

    /// Gives messages that are there to receives of the window, before one more is posted.
    #[inline]
    fn serve_window_early(&mut self) {
        if self.unpolled != 0 {
            self.unpolled -= 1;
            return;
        }
        for _ in 0..EARLY {
            if !self.serve_window() {
                self.unpolled = POSTS_PER_POLL - 1;
                return;
            }
            if self.posted.in_window() == 0 {
                return;
            }
        }
    }

    /// Makes operations of all receives that wait in the window.
    #[inline]
    pub(crate) fn settle_window(&mut self) {
        self.posted.queue(&mut self.port.ops);
    }

    /// The operation of a transfer, which its owner names so from now on.
    #[cold]
    pub fn settle(&mut self, handle: Handle) -> u32 {
        match handle.named() {
            Named::Op(op) => op,
            Named::InWindow(number) => {
                let op = self.op_in_window(number).unwrap_or(NO_OP);
                if self.posted.get(number).is_some() {
                    self.posted.forget(number);
                }
                op
            }
        }
    }

    /// The operation of a transfer that is not over; its owner goes on to name it as before.
    pub fn op_of(&mut self, handle: Handle) -> Option<u32> {
        match handle.named() {
            Named::Op(op) => Some(op),
            Named::InWindow(number) => self.op_in_window(number),
        }
    }

    /// As [`Lane::cancel`], of either kind.
    pub fn cancel_posted(&mut self, handle: Handle) -> bool {
        let cancelled = self.op_of(handle).is_some_and(|op| self.cancel(op));
        if cancelled && let Named::InWindow(number) = handle.named() {
            self.posted.forget(number);
        }
        cancelled
    }

    fn op_in_window(&mut self, number: u32) -> Option<u32> {
        self.posted.op_of(number, &mut self.port.ops)
    }

    /// As [`Lane::is_done`].
    #[inline]
    pub fn is_over(&self, handle: Handle) -> bool {
        let number = match handle.named() {
            Named::Op(op) => return self.is_done(op),
            Named::InWindow(number) => number,
        };
        match self.posted.get(number) {
            Some(entry) if entry.state == State::Op => self.is_done(entry.value),
            Some(entry) => entry.state != State::Waiting,
            None => true,
        }
    }

    /// As [`Lane::take_served`], of either kind.
    #[inline]
    pub fn end(&mut self, handle: Handle) -> Option<Result<Outcome>> {
        if let Some(bytes) = self.end_short(handle) {
            let Envelope { source, tag } = self.posted.envelope;
            return Some(Ok(Outcome { source, tag, bytes }));
        }
        self.end_otherwise(handle)
    }

    /// The bytes of a receive of the window that has ended, or whose message is there and
    /// short: those that wait longer get theirs first. `None` says nothing. Source and tag
    /// are [`Lane::window_of`].
    #[inline(always)]
    pub fn end_short(&mut self, handle: Handle) -> Option<usize> {
        let Named::InWindow(number) = handle.named() else {
            return None;
        };
        while self.posted.waits(number) {
            if !self.serve_window() {
                return None;
            }
        }
        let entry = self.posted.get(number)?;
        if entry.state != State::Done {
            return None;
        }
        let bytes = entry.value as usize;
        self.posted.forget(number);
        Some(bytes)
    }

    /// Source and tag of what waits in the window, and of what has ended there.
    #[inline]
    pub fn window_of(&self) -> Envelope {
        self.posted.envelope
    }

    #[inline(never)]
    fn end_otherwise(&mut self, handle: Handle) -> Option<Result<Outcome>> {
        let number = match handle.named() {
            Named::Op(op) => return self.take_served(op),
            Named::InWindow(number) => number,
        };
        if self.posted.waits(number) {
            if !listens() && !resigns() {
                return None;
            }
            // A thread that listens hears of operations.
            self.settle_window();
        }
        let (state, value) = match self.posted.get(number) {
            Some(entry) => (entry.state, entry.value),
            // Another thread has taken it, which `take` says of such a handle.
            None => (State::Op, NO_OP),
        };
        let ended = match state {
            State::Lost => Some(Err(slab::full())),
            _ => self.take(value),
        };
        if ended.is_some() && value != NO_OP {
            self.posted.forget(number);
        }
        ended
    }
}

/// Messages that a new receive gives to those before it.
const EARLY: usize = 4;
/// Receives that are posted behind others without a poll after one that found nothing: so
/// many messages share a line, which a poll takes from the peer that writes it.
pub(super) const POSTS_PER_POLL: u32 = 8;

#[cfg(test)]
mod tests;
