//! Sends: whole at once, or posted.

use super::failures::ended_over;
use super::lane::Lane;
use super::op::{Mode, Op, Outcome, Posted};
use super::pace::LONG_BYTES;
use super::port::describe;
use super::protocols::host_staged::check_ready_event;
use super::protocols::outbox;
use crate::error::Result;
use crate::slab;
use crate::trace::event::Kind;
use crate::view::RawView;
use crate::wire;
use osier_transports::AmHead;
use std::panic::Location;

impl Lane {
    /// Posts a send. The memory belongs to the operation until it completes.
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

    /// Sends a message whole, if nothing keeps it from leaving at once.
    ///
    /// The answer fits a register, and callers should keep to registers, too:
    /// a load that straddles fresh stores waits until the store buffer is
    /// empty, that is until the message's line has come from the peer.
    #[inline]
    pub fn send_now(&mut self, view: &RawView, dest: u32, tag: u32) -> bool {
        let bytes = view.bytes();
        let peer = &mut self.port.peers[dest as usize];
        let elsewhere = view.as_device().is_some();
        if bytes > peer.always_eager || elsewhere || peer.blocked || !peer.sender.take(bytes) {
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
        if bytes >= LONG_BYTES {
            return self.send_long(view, dest, head);
        }
        // SAFETY: invariant 1 of `view`: the caller's view is readable; the room is for all
        // of its bytes (invariant 2 of `protocols`).
        let fill = |to: *mut u8| unsafe { view.pack(0..bytes, to) };
        self.port.links.post_with(dest, head, bytes, fill).is_ok()
    }

    /// As [`Lane::send_whole`], of so many bytes that it matters how they are written.
    #[inline(never)]
    fn send_long(&mut self, view: &RawView, dest: u32, head: AmHead) -> bool {
        let bytes = view.bytes();
        let how = self.port.peers[dest as usize].whole_pace.next(bytes);
        let mut took_ns = 0;
        // SAFETY: invariant 1 of `view`: the caller's view is readable; the room is for all
        // of its bytes (invariant 2 of `protocols`).
        let fill = |to: *mut u8| took_ns = unsafe { how.pack(view, 0..bytes, to) };
        let posted = self.port.links.post_with(dest, head, bytes, fill).is_ok();
        if posted {
            let pace = &mut self.port.peers[dest as usize].whole_pace;
            pace.wrote(how, bytes, took_ns);
        }
        posted
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
        check_ready_event(&view)?;
        if self.is_revoked() {
            let what = describe("send to", Some(dest), tag, bytes, &self.port.links);
            return Err(self.port.revoked(&what));
        }
        if let Some(how) = self.port.peers[dest as usize].dead {
            let what = describe("send to", Some(dest), tag, bytes, &self.port.links);
            return Err(ended_over(&self.port.links, &what, dest, how));
        }
        let mut op = Op::send(view, dest, tag, mode, crossing);
        op.site = site;
        let handle = self.port.ops.insert(op).ok_or_else(slab::full)?;
        self.follow(handle);
        self.port.peers[dest as usize].starts.push_back(handle);
        self.port.peers[dest as usize].blocked = true;
        self.port.mark_busy(dest);
        outbox::push(&mut self.port);
        match self.take(handle) {
            Some(result) => result.map(Posted::Done),
            None => Ok(Posted::Pending(handle)),
        }
    }
}
