//! Receives that are begun and ended by a handle of the lane.

use crate::comm::Communicator;
use crate::names::{self, Source, TagSelector};
use crate::p2p::elements::Elements;
use osier_engine::error::{Error, Result};
use osier_engine::matching::{Pattern, TagPattern};
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::lane::{Outcome, Posted};
use osier_engine::progress::window::Handle;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Plain, RawView};

#[doc(hidden)]
pub use osier_engine::progress::window::Begun;

/// A transfer that has begun.
pub(super) enum Started {
    Done(Outcome),
    Pending(Handle),
}

impl From<Posted> for Started {
    #[inline]
    fn from(posted: Posted) -> Self {
        match posted {
            Posted::Done(outcome) => Started::Done(outcome),
            Posted::Pending(op) => Started::Pending(Handle::of_op(op)),
        }
    }
}

impl Started {
    #[inline(always)]
    pub fn of_receive(begun: Begun, source: u32, tag: u32) -> Self {
        match begun {
            Begun::Received(bytes) => Started::Done(Outcome { source, tag, bytes }),
            Begun::Posted(handle) => Started::Pending(handle),
        }
    }
}

impl Communicator {
    /// Begins to receive what names its source and tag, for layers above that keep handles
    /// for requests; `None`: it needs a request, and nothing has happened.
    ///
    /// # Safety
    /// The memory stays, and nothing else uses it, until [`Communicator::end_receive`] has
    /// returned for the handle, or the request of [`Communicator::adopt_receive`] is complete.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub unsafe fn begin_receive(
        &self,
        memory: &mut Elements,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Option<Begun> {
        let (source, tag) = names::exact(source.into(), tag.into(), self.peer_count())?;
        let mut lane = self.lane().lock();
        let Plain { at, bytes, .. } = memory.whole();
        if let Some(posted) = lane.post_behind(at, bytes, source, tag) {
            lane.release_as_it_was();
            return Some(Begun::Posted(posted));
        }
        self.begin_locked(lane, memory.shown_mut().as_raw(), source, tag)
    }

    /// The same of memory that its caller vouches for.
    #[inline(always)]
    #[track_caller]
    pub(super) fn begin_view(&self, view: &RawView, source: u32, tag: u32) -> Option<Begun> {
        let mut lane = self.lane().lock();
        if let Some(origin) = view.as_contiguous()
            && let Some(posted) = lane.post_behind(origin, view.bytes(), source, tag)
        {
            lane.release_as_it_was();
            return Some(Begun::Posted(posted));
        }
        self.begin_locked(lane, view, source, tag)
    }

    /// The same, if it can be posted behind others as it is.
    #[inline(always)]
    pub(super) fn post_view(&self, view: &RawView, source: u32, tag: u32) -> Option<Begun> {
        let mut lane = self.lane().lock();
        let posted = lane.post_behind(view.as_contiguous()?, view.bytes(), source, tag)?;
        lane.release_as_it_was();
        Some(Begun::Posted(posted))
    }

    #[inline(never)]
    #[track_caller]
    fn begin_locked(
        &self,
        mut lane: LaneGuard<'_>,
        view: &RawView,
        source: u32,
        tag: u32,
    ) -> Option<Begun> {
        let begun = lane.begin_exact(view, source, tag);
        self.core().after(&mut lane);
        begun
    }

    /// Begins to receive.
    #[inline]
    #[track_caller]
    pub(super) fn start_receive(&self, view: RawView, pattern: Pattern) -> Result<Started> {
        if let (Some(source), TagPattern::Exact(tag)) = (pattern.source, pattern.tag)
            && let Some(begun) = self.begin_view(&view, source, tag)
        {
            return Ok(Started::of_receive(begun, source, tag));
        }
        self.irecv_raw(view, pattern).map(Started::from)
    }

    /// Waits for a receive that [`Communicator::begin_receive`] has posted.
    ///
    /// # Errors
    /// As [`Communicator::recv`], of the transfer.
    #[doc(hidden)]
    #[inline]
    #[track_caller]
    pub fn end_receive(&self, handle: Handle) -> Result<Outcome> {
        let ended = self.wait_handle(handle);
        self.reported(ended)
    }

    /// The result of a transfer that is complete, or whose message is there and short.
    #[inline]
    fn end_early(&self, handle: Handle) -> Option<Result<Outcome>> {
        if self.core().trace.is_some() {
            return None;
        }
        let mut lane = self.lane().lock();
        let ended = lane.end(handle);
        self.core().after(&mut lane);
        ended
    }

    /// Waits for a transfer.
    #[inline]
    #[track_caller]
    pub(super) fn wait_handle(&self, handle: Handle) -> Result<Outcome> {
        match self.end_early(handle) {
            Some(ended) => ended,
            None => self.wait_long(handle),
        }
    }

    #[inline(never)]
    #[track_caller]
    pub(super) fn wait_long(&self, handle: Handle) -> Result<Outcome> {
        let _span = self.span(Kind::Wait, ANY, ANY, 0);
        self.core().wait_on(self.lane(), |lane| lane.end(handle))
    }

    #[track_caller]
    pub(crate) fn wait_raw(&self, posted: Posted) -> Result<Outcome> {
        match posted {
            Posted::Done(outcome) => Ok(outcome),
            Posted::Pending(op) => self.wait_handle(Handle::of_op(op)),
        }
    }

    /// Waits for all; returns the first error.
    #[track_caller]
    pub(super) fn wait_many(&self, handles: Vec<Option<Handle>>) -> Option<Error> {
        let count = match self.core().trace {
            None => 0,
            Some(_) => handles.iter().flatten().count(),
        };
        let mut left = handles.into_iter().flatten();
        let mut next = left.next();
        let mut first = None;
        if next.is_some() {
            let _span = self.span(Kind::WaitAll, ANY, ANY, count);
            self.core().wait_on(self.lane(), |lane| {
                while let Some(handle) = next {
                    if let Err(e) = lane.end(handle)? {
                        first.get_or_insert(e);
                    }
                    next = left.next();
                }
                Some(())
            });
        }
        first
    }

    /// As [`Communicator::revoke_raw`], of either kind.
    #[track_caller]
    pub(super) fn revoke_handle(&self, handle: Handle) {
        let op = self.core().with(self.lane(), |lane| lane.settle(handle));
        self.revoke_raw(op);
    }
}
