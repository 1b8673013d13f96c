//! Requests of the public interface in a run: sends, receives, persistent ones,
//! exchanges, generalised ones, and the wait set in which they all are.
//!
//! What a request gives back is checked by the same rules as operations that
//! the bed holds by their handles.

use super::case::How;
use super::memory::Memory;
use super::receive::ToReceive;
use super::world::{Check, Receiving, Sending, World};
use osier::internals::{self, Handles, Home, Notifies};
use osier::persistent::Persistent;
use osier::requests::{
    Callbacks, Completer, FlushRequest, GeneralizedRequest, SendRecvReplace, Waitable,
};
use osier::{ANY_SOURCE, ANY_TAG, Request, Source, Status, TagSelector};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{Pattern, TagPattern};
use osier_engine::progress::lane::{Mode, Outcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a request in a wait set is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Send(usize),
    Receive(usize),
    /// A message, and the receive into its memory.
    Exchange(usize, usize),
    General(usize),
    Flush(usize),
}

/// Any of them.
pub(super) enum Held {
    Request(Request<Memory>),
    Persistent(Persistent<Memory>),
    Exchange(SendRecvReplace<Memory>),
    General(GeneralizedRequest),
    Flush(FlushRequest),
}

/// What one gives back.
pub(super) struct Back {
    pub result: Result<Status>,
    pub memory: Option<Memory>,
    pub persistent: Option<Persistent<Memory>>,
}

impl Back {
    fn of(result: Result<Status>) -> Self {
        Self {
            result,
            memory: None,
            persistent: None,
        }
    }

    fn with(output: Result<(Memory, Status)>) -> Self {
        match output {
            Ok((memory, status)) => Self {
                memory: Some(memory),
                ..Self::of(Ok(status))
            },
            Err(e) => Self::of(Err(e)),
        }
    }
}

impl Held {
    /// Operations of a lane that it holds; of an exchange, the send and the receive.
    fn handles(&self) -> [Option<u32>; 2] {
        match self {
            Held::Request(r) => r.handles(),
            Held::Persistent(p) => p.handles(),
            Held::Exchange(e) => e.handles(),
            Held::General(_) | Held::Flush(_) => [None; 2],
        }
    }

    /// Number of operations of a lane that it holds.
    pub fn operations(&self) -> usize {
        self.handles().iter().flatten().count()
    }

    /// The operation of the receive in it, if that is not known to be over.
    fn receive_handle(&self) -> Option<u32> {
        match self {
            Held::Exchange(_) => self.handles()[1],
            _ => self.handles()[0],
        }
    }

    fn cancel(&mut self) -> bool {
        match self {
            Held::Request(r) => r.cancel(),
            Held::Persistent(p) => p.cancel(),
            Held::General(g) => {
                g.cancel();
                false
            }
            Held::Exchange(_) | Held::Flush(_) => false,
        }
    }
}

impl Waitable for Held {
    type Output = Back;

    fn test(&mut self) -> bool {
        match self {
            Held::Request(r) => r.test(),
            Held::Persistent(p) => p.test(),
            Held::Exchange(e) => e.test(),
            Held::General(g) => g.test(),
            Held::Flush(f) => f.test(),
        }
    }

    fn finish(self) -> Result<Back> {
        Ok(match self {
            Held::Request(r) => Back::with(r.wait()),
            Held::Persistent(mut p) => {
                let result = p.wait();
                Back {
                    persistent: Some(p),
                    ..Back::of(result)
                }
            }
            Held::Exchange(e) => Back::with(e.wait()),
            Held::General(g) => Back::of(g.wait()),
            Held::Flush(f) => Back::of(f.wait()),
        })
    }

    fn status(&mut self) -> Option<Result<Status>> {
        match self {
            Held::Request(r) => r.status(),
            Held::Persistent(p) => p.status(),
            Held::Exchange(e) => e.status(),
            Held::General(g) => g.status(),
            Held::Flush(f) => f.status(),
        }
    }
}

impl Notifies for Held {
    fn home(&self) -> Home<'_> {
        match self {
            Held::Request(r) => r.home(),
            Held::Persistent(p) => p.home(),
            Held::Exchange(e) => e.home(),
            Held::General(g) => g.home(),
            Held::Flush(f) => f.home(),
        }
    }

    fn raise(&self, e: Error) -> Error {
        match self {
            Held::Request(r) => r.raise(e),
            Held::Persistent(p) => p.raise(e),
            Held::Exchange(x) => x.raise(e),
            Held::General(g) => g.raise(e),
            Held::Flush(f) => f.raise(e),
        }
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        match self {
            Held::Request(r) => r.notify(ready, token),
            Held::Persistent(p) => p.notify(ready, token),
            Held::Exchange(e) => e.notify(ready, token),
            Held::General(g) => g.notify(ready, token),
            Held::Flush(f) => f.notify(ready, token),
        }
    }
}

/// A generalised request, seen by its program.
pub(super) struct General {
    pub rank: u32,
    completer: Option<Completer>,
    dropped: bool,
    queried: Arc<AtomicU32>,
    freed: Arc<AtomicU32>,
}

impl General {
    pub fn is_open(&self) -> bool {
        self.completer.is_some()
    }
}

/// As arguments of the public interface.
fn arguments(pattern: Pattern) -> (Source, TagSelector) {
    let source = pattern.source.map_or(ANY_SOURCE, Source::from);
    let tag = match pattern.tag {
        TagPattern::Exact(tag) => tag.into(),
        TagPattern::Any => ANY_TAG,
    };
    (source, tag)
}

/// What a request says, as a lane would.
fn outcome(status: Status) -> Outcome {
    Outcome {
        source: status.source().unwrap_or_default() as u32,
        tag: status.tag().unwrap_or_default(),
        bytes: status.bytes(),
    }
}

impl World {
    /// Sends by a request that the wait set holds.
    pub fn send_by_request(&mut self, m: usize, ready: bool) -> Check {
        let memory = self.filled(m);
        let (context, from, to, tag, mode) = self.route(m);
        let peer = self.peer(context, from, to) as usize;
        let comm = &self.seat(from).comms[context];
        let request = match mode {
            Mode::Synchronous => comm.issend(memory, peer, tag),
            _ if ready => comm.irsend(memory, peer, tag),
            _ => comm.isend(memory, peer, tag),
        };
        self.report.ready += u64::from(ready);
        self.note_deaths();
        if !self.alive[from as usize] {
            return Ok(());
        }
        match request {
            Ok(request) => {
                let held = Held::Request(request);
                self.seat_mut(from).add(Key::Send(m), context, held)
            }
            Err(e) => self.sent(m, Err(e)),
        }
    }

    /// Whether a message can be sent now: its persistent request is inactive.
    pub fn can_send(&self, m: usize) -> bool {
        let How::Persistent(_) = self.messages[m].how else {
            return true;
        };
        let same = |key: Key| match key {
            Key::Send(other) => self.messages[other].how == self.messages[m].how,
            _ => false,
        };
        let seat = &self.seats[self.messages[m].from as usize];
        seat.as_ref().is_none_or(|seat| seat.find(same).is_none())
    }

    /// Starts the persistent send that the message belongs to; false if it is
    /// active.
    pub fn start_send(&mut self, m: usize, group: usize) -> Check<bool> {
        let (context, from, to, tag, mode) = self.route(m);
        if !self.can_send(m) {
            return Ok(false);
        }
        let memory = self.filled(m);
        let peer = self.peer(context, from, to) as usize;
        let seat = self.seat_mut(from);
        let mut request = match seat.sends.remove(&group) {
            Some(mut request) => {
                *request.buffer_mut().map_err(|e| format!("{e:?}"))? = memory;
                request
            }
            None => match mode {
                Mode::Synchronous => seat.comms[context].ssend_init(memory, peer, tag),
                _ => seat.comms[context].send_init(memory, peer, tag),
            }
            .map_err(|e| format!("a persistent send: {e:?}"))?,
        };
        let started = request.start();
        self.report.persistent += 1;
        self.note_deaths();
        if !self.alive[from as usize] {
            return Ok(true);
        }
        match started {
            Ok(()) => {
                let again = request.start().map_err(|e| e.kind());
                if again != Err(ErrorKind::Argument) {
                    return Err(format!("a start of an active request gives {again:?}"));
                }
                let held = Held::Persistent(request);
                self.seat_mut(from).add(Key::Send(m), context, held)?;
            }
            Err(e) => {
                self.seat_mut(from).sends.insert(group, request);
                self.sent(m, Err(e))?;
            }
        }
        Ok(true)
    }

    /// Posts a receive by a request that the wait set holds.
    pub fn receive_by_request(&mut self, to: &ToReceive, memory: Memory) -> Check {
        let (source, tag) = arguments(to.pattern);
        let r = self.new_receive(to, None, memory.room, None);
        self.trace_receive("receive", r);
        let request = self.seat(to.rank).comms[to.context].irecv(memory, source, tag);
        self.note_deaths();
        if !self.alive[to.rank as usize] {
            return Ok(());
        }
        match request {
            Ok(request) => {
                let held = Held::Request(request);
                let seat = self.seat_mut(to.rank);
                seat.add(Key::Receive(r), to.context, held)
            }
            Err(e) => self.received(r, Err(e), None),
        }
    }

    /// Starts a persistent receive; what it accepts is said by its first
    /// start. Nothing if it is active.
    pub fn start_receive(&mut self, to: &ToReceive, memory: Memory, group: usize) -> Check {
        let receives = &self.receives;
        let same = |l: &super::seat::Listed| matches!(l.key, Key::Receive(r) if receives[r].group == Some(group));
        if self.seat(to.rank).listed.iter().any(same) {
            return Ok(());
        }
        let (source, tag) = arguments(to.pattern);
        let seat = self.seat_mut(to.rank);
        let mut request = match seat.receives.remove(&group) {
            Some(request) => request,
            None => seat.comms[to.context]
                .recv_init(memory, source, tag)
                .map_err(|e| format!("a persistent receive: {e:?}"))?,
        };
        let room = request.buffer().map_err(|e| format!("{e:?}"))?.room;
        let first = self.receives.iter().find(|r| r.group == Some(group));
        let to = ToReceive {
            pattern: first.map_or(to.pattern, |r| r.pattern),
            context: first.map_or(to.context, |r| r.context),
            ..*to
        };
        let r = self.new_receive(&to, None, room, None);
        self.receives[r].group = Some(group);
        self.trace_receive("start receive", r);
        let started = request.start();
        self.report.persistent += 1;
        self.note_deaths();
        if !self.alive[to.rank as usize] {
            return Ok(());
        }
        let seat = self.seat_mut(to.rank);
        match started {
            Ok(()) => seat.add(Key::Receive(r), to.context, Held::Persistent(request)),
            Err(e) => {
                seat.receives.insert(group, request);
                self.received(r, Err(e), None)
            }
        }
    }

    /// Sends a message and receives another into its memory.
    pub fn exchange(&mut self, m: usize, id: usize, pattern: Pattern) -> Check {
        self.messages[m].mode = Mode::Standard;
        let memory = self.filled(m);
        let (context, rank, to, tag, _) = self.route(m);
        let peer = self.peer(context, rank, to) as usize;
        let room = memory.room;
        let to = ToReceive {
            id,
            rank,
            context,
            pattern,
        };
        let r = self.new_receive(&to, None, room, None);
        self.trace_receive("receive in exchange", r);
        let (source, recv_tag) = arguments(pattern);
        let comm = &self.seat(rank).comms[context];
        let posted = comm.isendrecv_replace(memory, peer, tag, source, recv_tag);
        self.report.exchanged += 1;
        self.note_deaths();
        if !self.alive[rank as usize] {
            return Ok(());
        }
        match posted {
            Ok(request) => {
                let key = Key::Exchange(m, r);
                self.seat_mut(rank)
                    .add(key, context, Held::Exchange(request))
            }
            Err(e) => self.exchange_failed(m, r, &e, false),
        }
    }

    /// An exchange gave an error and kept the memory: the send may have gone
    /// through, and the receive may have met a message.
    fn exchange_failed(&mut self, m: usize, r: usize, e: &Error, begun: bool) -> Check {
        let step = self.step;
        let gone = !self.alive[self.messages[m].to as usize];
        self.messages[m].ended = step;
        self.messages[m].state = match (gone, begun) {
            (true, _) => Sending::Lost,
            (false, true) => Sending::Detached,
            // Its receive failed first: as if it had never been asked for.
            (false, false) => Sending::Planned,
        };
        self.receives[r].matched = step;
        self.receives[r].state = Receiving::Unknown;
        self.trace_receive("lost exchange", r);
        if self.lenient {
            return Ok(());
        }
        self.report.lost += 1;
        self.names_dead(r, e, true)
    }

    /// Takes back a receive that no message has met.
    pub fn cancel(&mut self, id: usize) -> Check {
        let step = self.step;
        if let Some(at) = self.under_way(id) {
            let r = self.receiving[at];
            let receive = &self.receives[r];
            let (rank, context, handle) = (receive.rank, receive.context, receive.handle);
            if receive.state != Receiving::Pending {
                return Ok(());
            }
            let mut lane = self.lane(rank, context);
            let met = lane.met(handle).is_some() || lane.is_done(handle);
            let cancelled = lane.cancel(handle);
            drop(lane);
            self.cancelled(r, met, cancelled)?;
            if cancelled {
                self.receiving.swap_remove(at);
                self.given_up(r, None, step);
                self.untouched_outside(r, 0)?;
            }
            return Ok(());
        }
        let receives = &self.receives;
        let of = |key: Key| match key {
            Key::Receive(r) => receives[r].id == id && receives[r].state == Receiving::Pending,
            _ => false,
        };
        let found = (0..self.ranks).find_map(|rank| {
            let seat = self.seats[rank as usize].as_ref()?;
            Some((rank, seat.find(of)?))
        });
        let Some((rank, at)) = found.filter(|(rank, _)| self.alive[*rank as usize]) else {
            return Ok(());
        };
        let seat = self.seat_mut(rank);
        let listed = seat.listed[at];
        let Some(held) = seat.set.get_mut(listed.entry) else {
            return Err("a request is listed that is not in the set".into());
        };
        let Some(handle) = held.receive_handle() else {
            return Ok(());
        };
        let cancelled = held.cancel();
        let lane = seat.lane(listed.context);
        let met = !cancelled && (lane.met(handle).is_some() || lane.is_done(handle));
        drop(lane);
        if let Key::Receive(r) = listed.key {
            self.cancelled(r, met, cancelled)?;
            if cancelled {
                // The set gives it back.
                self.receives[r].state = Receiving::Revoking;
                self.receives[r].matched = step;
            }
        }
        Ok(())
    }

    fn cancelled(&mut self, r: usize, met: bool, cancelled: bool) -> Check {
        self.trace_receive(
            if cancelled {
                "cancelled"
            } else {
                "cancel in vain"
            },
            r,
        );
        self.report.cancelled += u64::from(cancelled);
        if met == cancelled {
            let what = self.describe_receive(r);
            return Err(format!("{what}: cancel gives {cancelled}"));
        }
        Ok(())
    }

    /// Begins a generalised request.
    pub fn begin_general(&mut self, id: usize, rank: u32) -> Check {
        if self.generals.contains_key(&id) {
            return Ok(());
        }
        let (queried, freed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (asks, frees) = (queried.clone(), freed.clone());
        let callbacks = Callbacks::new()
            .query(move || {
                asks.fetch_add(1, Ordering::Relaxed);
                Ok(Status::new(id, id as u32, 8 * id))
            })
            .free(move || {
                frees.fetch_add(1, Ordering::Relaxed);
            });
        let (request, completer) = self.seat(rank).comms[0].generalized_request(callbacks);
        let general = General {
            rank,
            completer: Some(completer),
            dropped: false,
            queried,
            freed,
        };
        self.generals.insert(id, general);
        let held = Held::General(request);
        self.seat_mut(rank).add(Key::General(id), 0, held)
    }

    /// Completes a generalised request, or drops its completer.
    pub fn finish_general(&mut self, id: usize, drops: bool) {
        let Some(general) = self.generals.get_mut(&id) else {
            return;
        };
        if let Some(completer) = general.completer.take() {
            general.dropped = drops;
            if drops {
                drop(completer);
            } else {
                completer.complete();
            }
        }
    }

    fn general_ended(&mut self, id: usize, result: &Result<Status>) -> Check {
        let Some(general) = self.generals.get(&id) else {
            return Err("a generalised request that nobody began".into());
        };
        self.report.general += 1;
        let (queried, freed) = (&general.queried, &general.freed);
        let calls = (
            queried.load(Ordering::Relaxed),
            freed.load(Ordering::Relaxed),
        );
        let expected = match general.dropped {
            true => (0, 1),
            false => (1, 1),
        };
        let fine = match result {
            Ok(status) => !general.dropped && *status == Status::new(id, id as u32, 8 * id),
            Err(e) => general.dropped && e.kind() == ErrorKind::Cancelled,
        };
        if general.is_open() || calls != expected || !fine {
            return Err(format!(
                "generalised request {id} ends with {result:?}, (query, free) called {calls:?} times"
            ));
        }
        Ok(())
    }

    /// Takes the results of a rank's requests that are over; says how many.
    pub fn harvest_set(&mut self, rank: u32) -> Check<usize> {
        let mut ended = 0;
        while let Some((key, back)) = self.seat_mut(rank).next() {
            ended += 1;
            self.report.waited += 1;
            self.ended(rank, key, back)?;
        }
        Ok(ended)
    }

    fn ended(&mut self, rank: u32, key: Key, mut back: Back) -> Check {
        match key {
            Key::Send(m) => {
                let how = self.messages[m].how;
                if let (Some(request), How::Persistent(group)) = (back.persistent.take(), how) {
                    self.seat_mut(rank).sends.insert(group, request);
                }
                self.sent(m, back.result.map(outcome))
            }
            Key::Receive(r) => self.receive_ended(rank, r, back),
            Key::Exchange(m, r) => match back.result {
                Ok(status) => {
                    let peer = self.peer(self.messages[m].context, rank, self.messages[m].to);
                    let was = Outcome {
                        source: peer,
                        tag: self.messages[m].tag,
                        bytes: self.messages[m].bytes,
                    };
                    self.sent(m, Ok(was))?;
                    let sent = self.contents(m);
                    let mut memory = back.memory.take();
                    let kept = memory.as_mut().is_none_or(|memory| {
                        let n = status.bytes().min(memory.room);
                        memory.rest_is(n, &sent)
                    });
                    self.receives[r].memory = memory;
                    if !kept && !self.lenient {
                        let what = self.describe_receive(r);
                        return Err(format!("{what}: bytes behind its message were written"));
                    }
                    self.received(r, Ok(outcome(status)), None)
                }
                Err(e) if matches!(e.kind(), ErrorKind::RankDead | ErrorKind::Closed) => {
                    self.exchange_failed(m, r, &e, true)
                }
                Err(e) => {
                    self.messages[m].state = Sending::Detached;
                    self.received(r, Err(e), None)
                }
            },
            Key::General(id) => self.general_ended(id, &back.result),
            Key::Flush(_) => {
                self.report.flushed += 1;
                Ok(())
            }
        }
    }

    fn receive_ended(&mut self, rank: u32, r: usize, mut back: Back) -> Check {
        let group = self.receives[r].group;
        if let Some(request) = &mut back.persistent {
            // Taken out, so that a late write into it shows.
            let buffer = request.buffer_mut().map_err(|e| format!("{e:?}"))?;
            let fresh = buffer.fresh();
            back.memory = Some(std::mem::replace(buffer, fresh));
        }
        self.receives[r].memory = back.memory.take();
        match back.result {
            Ok(status) if status.cancelled() => {
                if self.receives[r].state != Receiving::Revoking {
                    let what = self.describe_receive(r);
                    return Err(format!("{what} was cancelled, and nobody asked for it"));
                }
                let step = self.receives[r].matched;
                self.given_up(r, None, step);
                self.untouched_outside(r, 0)?;
            }
            result => self.received(r, result.map(outcome), None)?,
        }
        if let (Some(mut request), Some(group)) = (back.persistent, group) {
            // Every second start has the same memory as the one before.
            if r % 2 == 1
                && let Some(memory) = self.receives[r].memory.take()
            {
                *request.buffer_mut().map_err(|e| format!("{e:?}"))? = memory;
            }
            self.seat_mut(rank).receives.insert(group, request);
        }
        Ok(())
    }

    /// Ends the requests of a rank that nothing can end any more.
    pub fn leave_set(&mut self, rank: u32) -> Check {
        while let Some(&listed) = self.seat(rank).listed.first() {
            let context = listed.context;
            let handle = internals::member(&mut self.seat_mut(rank).set, listed.entry);
            let handle = handle.and_then(|held| held.receive_handle());
            match listed.key {
                Key::Send(m) => {
                    let what = self.describe_message(m);
                    return Err(format!("deadlock: {what} never ends"));
                }
                Key::General(id) => {
                    return Err(format!("deadlock: generalised request {id} never ends"));
                }
                Key::Flush(_) => {
                    let live = internals::attached(&self.seat(rank).comms[context]).live();
                    return Err(format!(
                        "deadlock: rank {rank} has {live:?} messages in a buffer for ever"
                    ));
                }
                Key::Receive(r) => {
                    self.must_be_left(r, handle)?;
                    drop(self.seat_mut(rank).remove(0));
                }
                Key::Exchange(m, r) => {
                    self.must_be_left(r, handle)?;
                    let held = self.seat_mut(rank).remove(0);
                    let sending = match &held {
                        Some(Held::Exchange(e)) => e.handles()[0],
                        _ => None,
                    };
                    if sending.is_some_and(|h| !self.lane(rank, context).is_done(h)) {
                        let what = self.describe_message(m);
                        return Err(format!("deadlock: {what} never ends"));
                    }
                    drop(held);
                    self.messages[m].state = Sending::Detached;
                }
            }
        }
        Ok(())
    }
}
