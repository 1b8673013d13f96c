//! Blocking send, receive and probe.

use super::message::Message;
use super::started::Begun;
use super::status::Status;
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
use osier_datatype::Datatype;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{Pattern, TagPattern};
use osier_engine::progress::backoff;
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::lane::{Lane, Mode, Outcome, Posted};
use osier_engine::progress::no_wait::refused;
use osier_engine::progress::receive::Direct;
use osier_engine::progress::suspend;
use osier_engine::progress::window::Handle;
use osier_engine::trace::event::{ANY, Event, Kind};
use osier_engine::trace::{Span, now_ns};
use osier_engine::view::{Buffer, BufferMut, RawView};
use std::panic::Location;

/// Polls for a message that goes straight to its buffer, before the receive
/// is posted like any other.
const DIRECT_POLLS: u32 = 150;
/// Turns of the other ranks of a worker, with a poll after each, in place of these.
const DIRECT_TURNS: u32 = 4;

impl Communicator {
    /// Sends, and returns when the buffer may be used again (standard mode).
    ///
    /// The message is what `buffer` describes: the elements of a slice, or the bytes of a
    /// [`View`](crate::View) in the order of its datatype. The receiver may use another layout
    /// and other counts; the number of bytes, and the predefined types in their order, are the
    /// same on both sides. Whether the call waits for a receive depends on the size, so two
    /// ranks that send to each other first, and receive then, may wait for ever.
    ///
    /// Messages of one sender on one communicator do not overtake each other: of two that a
    /// receive could take, it takes the one that was sent first. To
    /// [`PROC_NULL`](crate::PROC_NULL) nothing is sent.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// if comm.rank() == 0 {
    ///     comm.send(&[1.5f64, 2.5], 1, 7)?;
    /// } else {
    ///     let mut two = [0.0f64; 2];
    ///     let status = comm.recv(&mut two, 0, 7)?;
    ///     assert_eq!((two, status.count::<f64>()), ([1.5, 2.5], Some(2)));
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank, or the tag
    /// lies outside of 0 to 2^31 - 1; nothing is sent then. Of kind [`ErrorKind::RankDead`] or
    /// [`ErrorKind::Closed`], if the destination has failed, or has dropped the communicator or
    /// finalized, before the message was handed over. Of kind [`ErrorKind::Cancelled`], if the
    /// receiver gave up the transfer; of kind [`ErrorKind::OutOfMemory`], if there is no memory
    /// for the operation; of kind [`ErrorKind::Device`], if the memory is a device's and its
    /// driver fails.
    #[inline]
    #[track_caller]
    pub fn send<B: Buffer + ?Sized>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let (dest, tag) = (dest.into(), tag.into());
        if self.send_at_once(buffer, dest, tag) {
            return Ok(());
        }
        let tag = self.reported(tag.check())?;
        match self.reported(dest.check(self.peer_count()))? {
            Some(dest) => {
                self.reported(self.send_raw(buffer.view().raw(), dest, tag, Mode::Standard))
            }
            None => Ok(()),
        }
    }

    /// Sends a message if it can leave at once, for layers above that need no request then.
    /// False: it needs a request, and nothing has happened.
    #[doc(hidden)]
    #[inline]
    pub fn send_at_once<B: Buffer + ?Sized>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> bool {
        let (dest, tag) = (dest.into(), tag.into());
        let known = names::exact(dest.into(), tag.into(), self.peer_count());
        known.is_some_and(|(dest, tag)| {
            !self.core().records_or_refuses()
                && buffer.lend(|view| self.send_now(view.as_raw(), dest, tag))
        })
    }

    /// Sends, and returns when the receiver has begun to receive
    /// (synchronous mode).
    ///
    /// # Errors
    /// As [`Communicator::send`].
    #[track_caller]
    pub fn ssend<B: Buffer + ?Sized>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let tag = self.reported(tag.into().check())?;
        match self.reported(dest.into().check(self.peer_count()))? {
            Some(dest) => {
                self.reported(self.send_raw(buffer.view().raw(), dest, tag, Mode::Synchronous))
            }
            None => Ok(()),
        }
    }

    /// As [`Communicator::send`], where the caller knows that the receive is
    /// posted (ready mode). Osier needs no such promise: the message is a
    /// standard one, also when the receive comes later. With
    /// `OSIER_CHECK=ready` a receive that is not posted is found, and named
    /// with the line of the send.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    #[inline]
    #[track_caller]
    pub fn rsend<B: Buffer + ?Sized>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<()> {
        let tag = self.reported(tag.into().check())?;
        match self.reported(dest.into().check(self.peer_count()))? {
            Some(dest) => self.reported(self.send_raw(buffer.view().raw(), dest, tag, Mode::Ready)),
            None => Ok(()),
        }
    }

    /// Receives into a buffer that may be larger than the message. A longer
    /// message is an error that names both sizes; the buffer then holds its
    /// beginning, and the rest is dropped.
    ///
    /// Messages of one sender come in the order in which they were sent; with
    /// [`ANY_SOURCE`](crate::ANY_SOURCE) or [`ANY_TAG`](crate::ANY_TAG) the status says whose
    /// it was. Two receives that wait for the same message get theirs in the order in which
    /// they were posted. From [`PROC_NULL`](crate::PROC_NULL) nothing is received, and the
    /// status is empty.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Truncated`], if the message is longer than the buffer;
    /// [`Error::envelope`] has its source and tag. Of kind [`ErrorKind::Rank`] or
    /// [`ErrorKind::Tag`], if there is no such source or tag. Of kind [`ErrorKind::RankDead`] or
    /// [`ErrorKind::Closed`], if the source has failed or left and no message of it is left;
    /// from any source, if any rank has failed that was not acknowledged
    /// ([`Communicator::acknowledge_failures`]), or no rank is left that could send. Of kind
    /// [`ErrorKind::Cancelled`], if the sender gave up the message; of kind
    /// [`ErrorKind::OutOfMemory`], if there is no memory for the operation; of kind
    /// [`ErrorKind::Device`], if the memory is a device's and its driver fails.
    #[inline]
    #[track_caller]
    pub fn recv<B: BufferMut + ?Sized>(
        &self,
        buffer: &mut B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Status> {
        let (source, tag) = (source.into(), tag.into());
        if let Some((source, tag)) = names::exact(source, tag, self.peer_count())
            && let Some(begun) =
                buffer.lend_mut(|view| self.receive_short(view.as_raw(), source, tag))
        {
            return match begun {
                Begun::Received(bytes) => Ok(Status::new(source as usize, tag, bytes)),
                Begun::Posted(handle) => Ok(self.reported(self.wait_handle(handle))?.into()),
            };
        }
        match self.reported(names::pattern(source, tag, self.peer_count()))? {
            Some(pattern) => Ok(self
                .reported(self.recv_posted(buffer.view_mut().raw(), pattern))?
                .into()),
            None => Ok(Status::EMPTY),
        }
    }

    /// Receives a message of any length into a new vector.
    ///
    /// The vector has as many elements as the message.
    ///
    /// # Errors
    /// As [`Communicator::recv`], except that nothing is too long; of kind
    /// [`ErrorKind::Datatype`], if the message is no whole number of elements.
    #[track_caller]
    pub fn recv_vec<T: Datatype>(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<(Vec<T>, Status)> {
        self.mprobe(source, tag)?.recv_vec()
    }

    /// Sends one message and receives another at the same time.
    ///
    /// Both proceed at the same time, so ranks may exchange messages in a circle. The status is
    /// the receive's.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    /// let mut got = [0u32];
    /// comm.sendrecv(&[comm.rank() as u32], next, 0, &mut got, previous, 0)?;
    /// assert_eq!(got, [previous as u32]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send`] and [`Communicator::recv`]. If the send fails, the receive is
    /// given up.
    #[track_caller]
    pub fn sendrecv<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        recv: &mut R,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<Status> {
        let send_tag = self.reported(send_tag.into().check())?;
        let dest = self.reported(dest.into().check(self.peer_count()))?;
        let pattern = self.reported(names::pattern(
            source.into(),
            recv_tag.into(),
            self.peer_count(),
        ))?;
        self.reported(self.may_wait("sendrecv"))?;
        let _span = self.span(Kind::SendRecv, dest.unwrap_or(ANY), send_tag, 0);
        let sent = send.view().raw();
        // What leaves at once does so first: a receive that is posted before holds it up.
        if let (Some(dest), Some(pattern), None) = (dest, pattern, &self.core().trace)
            && self.send_now(&sent, dest, send_tag)
        {
            let received = self.recv_raw(recv.view_mut().raw(), pattern);
            return Ok(self.reported(received)?.into());
        }
        let received = match pattern {
            Some(pattern) => Some(self.reported(self.irecv_raw(recv.view_mut().raw(), pattern))?),
            None => None,
        };
        if let Some(dest) = dest
            && let Err(e) = self.send_raw(sent, dest, send_tag, Mode::Standard)
        {
            if let Some(Posted::Pending(handle)) = received {
                self.revoke_raw(handle);
            }
            return Err(self.raise(e));
        }
        match received {
            Some(posted) => Ok(self.reported(self.wait_raw(posted))?.into()),
            None => Ok(Status::EMPTY),
        }
    }

    /// Waits for a message without receiving it.
    ///
    /// The status has the source, the tag and the size of the message that a receive with the
    /// same arguments would take. Another thread may take it first; [`Communicator::mprobe`]
    /// excludes that.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// if comm.rank() == 0 {
    ///     comm.send(&[1u16, 2, 3], 1, 0)?;
    /// } else {
    ///     let status = comm.probe(osier::ANY_SOURCE, 0)?;
    ///     let mut all = vec![0u16; status.count::<u16>().unwrap_or(0)];
    ///     comm.recv(&mut all, status.source(), 0)?;
    ///     assert_eq!(all, [1, 2, 3]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such source or tag; of
    /// kind [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if no message is there and a
    /// receive would end so (see [`Communicator::recv`]).
    #[track_caller]
    pub fn probe(&self, source: impl Into<Source>, tag: impl Into<TagSelector>) -> Result<Status> {
        let Some(pattern) =
            self.reported(names::pattern(source.into(), tag.into(), self.peer_count()))?
        else {
            return Ok(Status::EMPTY);
        };
        self.reported(self.may_wait("probe"))?;
        let _span = self.span_receive(Kind::Probe, pattern, 0);
        let found = self
            .core()
            .wait_on(self.lane(), |lane| match lane.probe(pattern) {
                Some(outcome) => Some(Ok(outcome.into())),
                None => {
                    lane.probes(pattern.source);
                    lane.dead_source(pattern).map(Err)
                }
            });
        self.reported(found)
    }

    /// Asks whether a message is there.
    ///
    /// # Errors
    /// As [`Communicator::probe`].
    #[track_caller]
    pub fn iprobe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Option<Status>> {
        let Some(pattern) =
            self.reported(names::pattern(source.into(), tag.into(), self.peer_count()))?
        else {
            return Ok(Some(Status::EMPTY));
        };
        self.core().check_deaths();
        let asked = self.trace_ask();
        let found = self.core().with(self.lane(), |lane| {
            lane.progress();
            match lane.probe(pattern) {
                Some(outcome) => Ok(Some(Status::from(outcome))),
                None => lane.dead_source(pattern).map_or(Ok(None), Err),
            }
        });
        if matches!(found, Ok(None)) {
            self.core().give_way();
        } else {
            self.trace_found(Kind::Iprobe, asked, Some(Location::caller()));
        }
        self.reported(found)
    }

    /// Waits for a message and takes it out of the queue: no other call can
    /// receive it.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// if comm.rank() == 0 {
    ///     comm.send(&[1u16, 2, 3], 1, 0)?;
    /// } else {
    ///     let (all, _) = comm.mprobe(0, 0)?.recv_vec::<u16>()?;
    ///     assert_eq!(all, [1, 2, 3]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::probe`].
    #[track_caller]
    pub fn mprobe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Message> {
        let Some(pattern) =
            self.reported(names::pattern(source.into(), tag.into(), self.peer_count()))?
        else {
            return Ok(Message::from_nobody(self));
        };
        self.reported(self.may_wait("mprobe"))?;
        let _span = self.span_receive(Kind::Probe, pattern, 0);
        let found = self
            .core()
            .wait_on(self.lane(), |lane| match lane.matched_probe(pattern) {
                Some(matched) => Some(Ok(Message::new(self, matched))),
                None => {
                    lane.probes(pattern.source);
                    lane.dead_source(pattern).map(Err)
                }
            });
        self.reported(found)
    }

    /// Asks whether a message is there, and takes it out of the queue if so.
    ///
    /// # Errors
    /// As [`Communicator::probe`].
    #[track_caller]
    pub fn improbe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Option<Message>> {
        let Some(pattern) =
            self.reported(names::pattern(source.into(), tag.into(), self.peer_count()))?
        else {
            return Ok(Some(Message::from_nobody(self)));
        };
        self.core().check_deaths();
        let asked = self.trace_ask();
        let found = self.core().with(self.lane(), |lane| {
            lane.progress();
            match lane.matched_probe(pattern) {
                Some(matched) => Ok(Some(Message::new(self, matched))),
                None => lane.dead_source(pattern).map_or(Ok(None), Err),
            }
        });
        if matches!(found, Ok(None)) {
            self.core().give_way();
        } else {
            self.trace_found(Kind::Iprobe, asked, Some(Location::caller()));
        }
        self.reported(found)
    }

    /// An error in a task of a graph, where no call waits.
    #[inline]
    pub(crate) fn may_wait(&self, call: &str) -> Result<()> {
        match self.core().must_not_wait() {
            true => Err(refused(call)),
            false => Ok(()),
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn send_raw(&self, view: RawView, dest: u32, tag: u32, mode: Mode) -> Result<()> {
        self.may_wait("send")?;
        let _span = self.span(Kind::Send, dest, tag, view.bytes());
        if mode != Mode::Synchronous && self.send_now(&view, dest, tag) {
            return Ok(());
        }
        let posted = self.isend_unseen(view, dest, tag, mode)?;
        self.wait_raw(posted).map(drop)
    }

    /// Sends a message whole, if nothing keeps it from leaving at once.
    #[inline]
    pub(crate) fn send_now(&self, view: &RawView, dest: u32, tag: u32) -> bool {
        self.lane().lock().send_now(view, dest, tag)
    }

    #[inline]
    #[track_caller]
    pub(crate) fn isend_raw(
        &self,
        view: RawView,
        dest: u32,
        tag: u32,
        mode: Mode,
    ) -> Result<Posted> {
        let _span = self.span(Kind::Isend, dest, tag, view.bytes());
        self.isend_unseen(view, dest, tag, mode)
    }

    /// As [`Communicator::isend_raw`], within a call that is recorded already.
    #[inline]
    #[track_caller]
    pub(crate) fn isend_unseen(
        &self,
        view: RawView,
        dest: u32,
        tag: u32,
        mode: Mode,
    ) -> Result<Posted> {
        // No closure: the caller's source line passes through.
        let mut lane = self.lane().lock();
        let posted = lane.isend(view, dest, tag, mode);
        self.core().after(&mut lane);
        posted
    }

    #[inline]
    #[track_caller]
    pub(crate) fn irecv_raw(&self, view: RawView, pattern: Pattern) -> Result<Posted> {
        let _span = self.span_receive(Kind::Irecv, pattern, view.bytes());
        let mut lane = self.lane().lock();
        let posted = lane.irecv(view, pattern);
        self.core().after(&mut lane);
        posted
    }

    /// Waits a while for a short message, and receives it; `None`: receive it
    /// by a request.
    #[inline]
    #[track_caller]
    fn receive_short(&self, view: &RawView, source: u32, tag: u32) -> Option<Begun> {
        if self.core().records_or_refuses() || view.as_device().is_some() {
            return None;
        }
        let mut lane = self.lane().lock();
        if !lane.may_receive_directly(Pattern::exact(source, tag)) {
            return None;
        }
        let begun = self.begin_here(&mut lane, view, (source, tag), true);
        if begun.is_none() && self.core().on_stack() {
            return self.begin_in_turns(lane, view, (source, tag));
        }
        if let Some(Begun::Posted(_)) = begun {
            self.core().after(&mut lane);
        }
        begun
    }

    /// The same of a virtual rank: the others of its worker have their turns, one of which may
    /// send the message.
    #[inline(never)]
    fn begin_in_turns<'a>(
        &'a self,
        mut lane: LaneGuard<'a>,
        view: &RawView,
        (source, tag): (u32, u32),
    ) -> Option<Begun> {
        let pattern = Pattern::exact(source, tag);
        for turn in 0..DIRECT_TURNS {
            self.core().after(&mut lane);
            drop(lane);
            if !suspend::turn(turn == 0) {
                return None;
            }
            lane = self.lane().lock();
            if !lane.may_receive_directly(pattern) {
                return None;
            }
            if let Some(bytes) = lane.receive_next(view, source, tag) {
                return Some(Begun::Received(bytes));
            }
            match lane.receive_direct(view, pattern, true) {
                Direct::Nothing => {}
                Direct::Received(outcome) => return Some(Begun::Received(outcome.bytes)),
                Direct::Begun(handle) => {
                    self.core().after(&mut lane);
                    return Some(Begun::Posted(Handle::of_op(handle)));
                }
                Direct::Other => return None,
            }
        }
        None
    }

    /// Waits a while for a short message, with the lane in hand. Under the conditions
    /// of [`Lane::receive_direct`].
    #[inline]
    pub(crate) fn receive_here(
        &self,
        lane: &mut Lane,
        view: &RawView,
        source: u32,
        tag: u32,
    ) -> Option<usize> {
        match self.begin_here(lane, view, (source, tag), false)? {
            Begun::Received(bytes) => Some(bytes),
            // This call begins none.
            Begun::Posted(_) => None,
        }
    }

    /// The same, and a receive is posted for a message whose first part comes, if the call
    /// `may_begin` one.
    #[inline]
    #[track_caller]
    fn begin_here(
        &self,
        lane: &mut Lane,
        view: &RawView,
        (source, tag): (u32, u32),
        may_begin: bool,
    ) -> Option<Begun> {
        // An answer takes a while: a poll now would only take the line away
        // from the peer that is about to write it.
        if !lane.take_just_sent()
            && let Some(bytes) = lane.receive_next(view, source, tag)
        {
            return Some(Begun::Received(bytes));
        }
        if self.core().on_stack() {
            // Another rank of this thread may have to send first: not with the lane in hand.
            return None;
        }
        self.await_short(lane, view, (source, tag), may_begin)
    }

    #[inline(never)]
    #[track_caller]
    fn await_short(
        &self,
        lane: &mut Lane,
        view: &RawView,
        (source, tag): (u32, u32),
        may_begin: bool,
    ) -> Option<Begun> {
        let pattern = Pattern::exact(source, tag);
        let most = DIRECT_POLLS.min(self.core().spin_polls());
        let mut yields = self.core().direct_yields();
        let mut misses = 1; // of the caller
        loop {
            backoff::pause(lane.quiet_after(misses));
            if let Some(bytes) = lane.receive_next(view, source, tag) {
                lane.found_after(misses);
                return Some(Begun::Received(bytes));
            }
            if self.lane().wanted() {
                return None;
            }
            if misses >= most {
                // Whoever is to send may need this core.
                if yields == 0 {
                    return None;
                }
                yields -= 1;
                std::thread::yield_now();
            }
            match lane.receive_direct(view, pattern, may_begin) {
                Direct::Nothing => misses += 1,
                Direct::Received(outcome) => {
                    lane.found_after(misses);
                    return Some(Begun::Received(outcome.bytes));
                }
                Direct::Begun(handle) => {
                    lane.found_after(misses);
                    return Some(Begun::Posted(Handle::of_op(handle)));
                }
                Direct::Other => return None,
            }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn recv_raw(&self, view: RawView, pattern: Pattern) -> Result<Outcome> {
        if let (Some(source), TagPattern::Exact(tag)) = (pattern.source, pattern.tag)
            && let Some(begun) = self.receive_short(&view, source, tag)
        {
            return match begun {
                Begun::Received(bytes) => Ok(Outcome { source, tag, bytes }),
                Begun::Posted(handle) => self.wait_handle(handle),
            };
        }
        self.recv_posted(view, pattern)
    }

    /// Receives what [`Communicator::receive_short`] has not: by a post, in the
    /// end.
    #[track_caller]
    fn recv_posted(&self, view: RawView, pattern: Pattern) -> Result<Outcome> {
        self.may_wait("recv")?;
        let _span = self.span_receive(Kind::Recv, pattern, view.bytes());
        let mut lane = self.lane().lock();
        let waited = pattern.is_exact() && self.core().trace.is_none();
        if !waited && view.as_device().is_none() && lane.may_receive_directly(pattern) {
            let most = DIRECT_POLLS.min(self.core().spin_polls());
            let mut misses = 0;
            while misses < most && !self.lane().wanted() {
                match lane.receive_direct(&view, pattern, true) {
                    Direct::Begun(handle) => {
                        lane.found_after(misses);
                        self.core().after(&mut lane);
                        drop(lane);
                        return self.wait_raw(Posted::Pending(handle));
                    }
                    Direct::Nothing => {
                        misses += 1;
                        backoff::pause(lane.quiet_after(misses));
                    }
                    Direct::Received(outcome) => {
                        lane.found_after(misses);
                        return Ok(outcome);
                    }
                    Direct::Other => break,
                }
            }
        }
        let posted = lane.irecv(view, pattern);
        self.core().after(&mut lane);
        drop(lane);
        self.wait_raw(posted?)
    }

    /// Begins to record a call, if anybody records.
    #[inline]
    #[track_caller]
    pub(crate) fn span(&self, kind: Kind, peer: u32, tag: u32, bytes: usize) -> Span {
        match &self.core().trace {
            None => Span::OFF,
            Some(tracer) => tracer.call(
                Event {
                    context: self.context(),
                    bytes: bytes as u64,
                    peer,
                    tag,
                    ..Event::of(kind)
                },
                Location::caller(),
            ),
        }
    }

    /// Start of a call that does not wait; 0 unless a trace records.
    #[inline]
    pub(crate) fn trace_ask(&self) -> u64 {
        match &self.core().trace {
            None => 0,
            Some(_) => now_ns(),
        }
    }

    /// Records a call that has found what it asked for. Those in vain are not
    /// recorded: a loop of them would push everything else out of the ring.
    #[inline]
    pub(crate) fn trace_found(
        &self,
        kind: Kind,
        since_ns: u64,
        site: Option<&'static Location<'static>>,
    ) {
        if since_ns != 0
            && let Some(tracer) = &self.core().trace
        {
            let event = Event {
                time_ns: since_ns,
                duration_ns: now_ns().saturating_sub(since_ns),
                context: self.context(),
                ..Event::of(kind)
            };
            match site {
                Some(site) => tracer.record_at(event, site),
                None => tracer.record(event),
            }
        }
    }

    #[inline]
    #[track_caller]
    fn span_receive(&self, kind: Kind, pattern: Pattern, bytes: usize) -> Span {
        let tag = match pattern.tag {
            TagPattern::Exact(tag) => tag,
            TagPattern::Any => ANY,
        };
        self.span(kind, pattern.source.unwrap_or(ANY), tag, bytes)
    }

    /// Makes an operation stop using its memory, whatever becomes of its
    /// message.
    #[track_caller]
    pub(crate) fn revoke_raw(&self, handle: u32) {
        self.core()
            .wait_on(self.lane(), |lane| lane.revoke(handle).then_some(()));
    }
}

pub(crate) fn elements<T: Datatype>(bytes: usize) -> Result<usize> {
    let status = Status::from(Outcome {
        source: 0,
        tag: 0,
        bytes,
    });
    status.count::<T>().ok_or_else(|| {
        Error::new(
            ErrorKind::Datatype,
            format!(
                "a message of {bytes} bytes is no whole number of {} ({} bytes each)",
                std::any::type_name::<T>(),
                if T::DENSE {
                    size_of::<T>()
                } else {
                    T::layout().size()
                }
            ),
        )
    })
}
