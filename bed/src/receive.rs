//! Receives and probes: posting, ends, revoking, and what they got.

use super::memory::{Memory, NUMBER_BYTES, contents, number};
use super::world::{Check, LARGEST, Receive, Receiving, Sending, World, short_key};
use osier_engine::error::{Error, ErrorKind};
use osier_engine::matching::{Envelope, Pattern};
use osier_engine::progress::lane::{Outcome, Posted};
use osier_engine::progress::receive::Direct;

/// A receive to post.
pub(super) struct ToReceive {
    pub id: usize,
    pub rank: u32,
    pub context: usize,
    pub pattern: Pattern,
}

impl World {
    pub fn new_receive(
        &mut self,
        to: &ToReceive,
        memory: Option<Memory>,
        room: usize,
        promised: Option<Outcome>,
    ) -> usize {
        self.receives.push(Receive {
            room,
            group: None,
            id: to.id,
            context: to.context,
            rank: to.rank,
            pattern: to.pattern,
            memory,
            handle: 0,
            state: Receiving::Pending,
            promised,
            got: None,
            message: None,
            prefix: Vec::new(),
            posted: self.step,
            matched: u64::MAX,
        });
        self.receives.len() - 1
    }

    /// Posts a receive.
    pub fn receive(
        &mut self,
        to: &ToReceive,
        mut memory: Memory,
        promised: Option<Outcome>,
    ) -> Check {
        let view = memory.raw();
        let room = memory.room;
        let r = self.new_receive(to, Some(memory), room, promised);
        self.trace_receive("receive", r);
        let posted = self.lane(to.rank, to.context).irecv(view, to.pattern);
        self.posted(r, posted)
    }

    fn posted(&mut self, r: usize, posted: Result<Posted, Error>) -> Check {
        self.note_deaths();
        let receive = &mut self.receives[r];
        receive.state = Receiving::Pending;
        if !self.alive[receive.rank as usize] {
            return Ok(());
        }
        match posted {
            Ok(Posted::Pending(handle)) => {
                receive.handle = handle;
                self.receiving.push(r);
                Ok(())
            }
            Ok(Posted::Done(outcome)) => self.received(r, Ok(outcome), None),
            Err(e) => self.received(r, Err(e), None),
        }
    }

    /// Takes a message without posting a receive, as a blocking receive does.
    pub fn receive_direct(&mut self, to: &ToReceive) -> Check<bool> {
        let mut lane = self.lane(to.rank, to.context);
        let posts = !lane.idle() || lane.has_unexpected(to.pattern);
        drop(lane);
        if posts {
            return Ok(false);
        }
        let mut memory = Memory::new(None, 4096);
        let view = memory.raw();
        let direct = self
            .lane(to.rank, to.context)
            .receive_direct(&view, to.pattern, true);
        self.note_deaths();
        let room = memory.room;
        match direct {
            Direct::Received(outcome) => {
                let r = self.new_receive(to, Some(memory), room, None);
                self.trace_receive("direct receive", r);
                self.report.direct += 1;
                self.received(r, Ok(outcome), None).map(|()| true)
            }
            Direct::Begun(handle) => {
                let r = self.new_receive(to, Some(memory), room, None);
                self.trace_receive("direct receive of a first part", r);
                self.report.direct += 1;
                self.posted(r, Ok(Posted::Pending(handle))).map(|()| true)
            }
            Direct::Nothing | Direct::Other => Ok(false),
        }
    }

    pub fn received(
        &mut self,
        r: usize,
        result: Result<Outcome, Error>,
        met: Option<Outcome>,
    ) -> Check {
        self.receives[r].matched = self.step;
        let room = self.receives[r].room;
        let (state, what) = match &result {
            Ok(_) => (Receiving::Received, "received"),
            Err(e) => match e.kind() {
                ErrorKind::Truncated => (Receiving::Truncated, "received, truncated"),
                ErrorKind::Cancelled => (Receiving::Withdrawn, "cancelled receive"),
                _ => (Receiving::Lost, "lost receive"),
            },
        };
        self.receives[r].state = state;
        self.receives[r].got = match &result {
            Ok(outcome) => Some(*outcome),
            Err(_) if state == Receiving::Truncated => met,
            Err(_) => None,
        };
        if let Err(e) = &result
            && state == Receiving::Truncated
        {
            self.truncation(r, e, room)?;
        }
        self.trace_receive(what, r);
        match (state, &result) {
            (Receiving::Received | Receiving::Truncated, _) => self.verify(r),
            (Receiving::Withdrawn, _) => self.untouched_outside(r, room),
            (_, Err(e)) => {
                self.untouched_outside(r, room)?;
                if self.lenient {
                    return Ok(());
                }
                self.report.lost += 1;
                self.names_dead(r, e, false)
            }
            _ => Ok(()),
        }
    }

    /// Checks the text of a truncation and takes the message's envelope from
    /// it.
    fn truncation(&mut self, r: usize, e: &Error, room: usize) -> Check {
        let text = e.to_string();
        let numbers: Vec<usize> = text
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok())
            .collect();
        let &[source, tag, buffer, bytes, also] = &numbers[..] else {
            return Err(format!("a truncation that says \"{text}\""));
        };
        let got = Outcome {
            source: source as u32,
            tag: tag as u32,
            bytes,
        };
        let met = self.receives[r].got.replace(got);
        if (buffer, also) != (room, room) || bytes <= room || met.is_some_and(|m| m != got) {
            let what = self.describe_receive(r);
            return Err(format!("{what} into {room} bytes: \"{text}\""));
        }
        Ok(())
    }

    /// Checks that an error names a rank that has ended and on which the receive depends,
    /// or `any` of them.
    pub fn names_dead(&mut self, r: usize, e: &Error, any: bool) -> Check {
        let receive = &self.receives[r];
        let (context, own) = (receive.context, receive.rank);
        // A matched probe has tied it to one message, which no acknowledgment excuses.
        let matched = receive.promised.map(|message| message.source);
        let (source, posted) = (receive.pattern.source.or(matched), receive.posted);
        let peers = self.peers(context, own);
        let text = e.to_string();
        let someone = peers
            .iter()
            .any(|rank| *rank != own && self.alive[*rank as usize]);
        // A receive that was posted does not end because ranks have finalized.
        let ends = |rank: u32| match any {
            true => self.is_end_of(rank, e),
            false => self.is_end_of(rank, e) && !self.net.has_finalized(rank),
        };
        let named = peers.iter().enumerate().any(|(peer, rank)| {
            let acknowledged = self.acknowledged.get(&(context, own, *rank));
            let told = !someone || acknowledged.is_none_or(|step| posted <= *step);
            ends(*rank)
                && (any || source.map_or(told, |s| s as usize == peer))
                && text.contains(&format!("rank {peer} "))
        });
        if named {
            self.report.told += u64::from(!any && source.is_none());
            return Ok(());
        }
        let what = self.describe_receive(r);
        Err(format!("{what} ended with an error: {e:?}"))
    }

    pub fn untouched_outside(&mut self, r: usize, packed: usize) -> Check {
        if let Some(memory) = &mut self.receives[r].memory
            && !memory.rest_is_untouched(packed.min(memory.room))
        {
            let what = self.describe_receive(r);
            return Err(format!("{what}: bytes outside of it were written"));
        }
        Ok(())
    }

    /// Checks what a receive got.
    fn verify(&mut self, r: usize) -> Check {
        let receive = &self.receives[r];
        let Some(got) = receive.got else {
            return Err("a receive without an outcome".into());
        };
        let room = receive.room;
        let n = got.bytes.min(room);
        // A request keeps its memory when it gives an error.
        let bytes = receive.memory.as_ref().map(|m| m.packed(n));
        let whole = receive.state == Receiving::Received;
        let envelope = Envelope {
            source: got.source,
            tag: got.tag,
        };
        let kept = receive.promised.is_none_or(|p| p == got);
        let fits = !whole || got.bytes <= room;
        let wrong = if !fits {
            Some("is larger than its buffer")
        } else if !receive.pattern.accepts(envelope)
            || got.source as usize >= self.peers(receive.context, receive.rank).len()
        {
            Some("is none that it accepts")
        } else if !kept {
            Some("is not what the probe saw")
        } else {
            bytes.and_then(|bytes| self.wrong_bytes(r, got, &bytes))
        };
        self.report.bytes += n as u64;
        self.report.received += u64::from(whole);
        self.report.truncated += u64::from(!whole);
        self.untouched_outside(r, if self.lenient { room } else { n })?;
        match wrong {
            Some(_) if self.lenient && fits => {
                self.report.damaged += 1;
                Ok(())
            }
            Some(wrong) => {
                let what = self.describe_receive(r);
                Err(format!("the message of {what} {wrong}"))
            }
            None => Ok(()),
        }
    }

    /// Compares the bytes of a receive with those of the message.
    fn wrong_bytes(&mut self, r: usize, got: Outcome, bytes: &[u8]) -> Option<&'static str> {
        let (context, to) = (self.receives[r].context, self.receives[r].rank);
        let from = self.peers(context, to)[got.source as usize];
        if got.bytes < NUMBER_BYTES {
            let key = short_key(context, from, to, got.tag, got.bytes);
            let want = contents(0, key, got.bytes);
            return (want[..bytes.len()] != *bytes).then_some("has wrong bytes");
        }
        let Some(m) = number(bytes) else {
            self.receives[r].prefix = bytes.to_vec();
            return None;
        };
        let Some(msg) = self.messages.get(m) else {
            return Some("has a wrong number");
        };
        let same = (msg.context, msg.from, msg.to, msg.tag, msg.bytes)
            == (context, from, to, got.tag, got.bytes);
        if !same || msg.state == Sending::Planned {
            return Some("has the bytes of another one");
        }
        if self.receives.iter().any(|r| r.message == Some(m)) {
            return Some("was received before");
        }
        self.receives[r].message = Some(m);
        let want = self.contents(m);
        (want[..bytes.len()] != *bytes).then_some("has wrong bytes")
    }

    /// The place of the receive with that id, among those under way.
    pub fn under_way(&self, id: usize) -> Option<usize> {
        let receives = &self.receives;
        self.receiving.iter().position(|r| receives[*r].id == id)
    }

    pub fn revoke_receive(&mut self, id: usize) -> Check {
        let Some(at) = self.under_way(id) else {
            return Ok(());
        };
        let r = self.receiving[at];
        if self.receives[r].state == Receiving::Pending {
            self.trace_receive("revoke receive", r);
            if self.end_receive(r, true)? {
                self.receiving.swap_remove(at);
            }
        }
        Ok(())
    }

    pub fn detach_receive(&mut self, id: usize) {
        let Some(at) = self.under_way(id) else {
            return;
        };
        let r = self.receiving[at];
        let receive = &self.receives[r];
        if receive.state != Receiving::Pending {
            return;
        }
        let (rank, context, handle) = (receive.rank, receive.context, receive.handle);
        let over = self.lane(rank, context).is_done(handle);
        if over {
            return;
        }
        self.receiving.swap_remove(at);
        self.trace_receive("detach receive", r);
        let memory = self.receives[r].memory.take();
        let step = self.step;
        let mut lane = self.lane(rank, context);
        let met = lane.met(handle);
        lane.set_owner(handle, Box::new(memory.map(|m| m.bytes)));
        lane.detach(handle);
        drop(lane);
        self.given_up(r, met, step);
        self.report.detached += 1;
    }

    /// A receive whose end nobody will hear of.
    pub fn given_up(&mut self, r: usize, met: Option<Outcome>, step: u64) {
        let receive = &mut self.receives[r];
        receive.got = met;
        receive.matched = step;
        receive.state = match met {
            Some(_) => Receiving::Consumed,
            None => Receiving::Revoked,
        };
    }

    /// Takes a receive's result, or goes on to revoke it. True if it is over.
    pub fn end_receive(&mut self, r: usize, revoke: bool) -> Check<bool> {
        let Receive {
            rank,
            context,
            handle,
            state,
            ..
        } = self.receives[r];
        let step = self.step;
        let mut lane = self.lane(rank, context);
        let met = lane.met(handle);
        let result = lane.take(handle);
        drop(lane);
        if let Some(result) = result {
            return self.received(r, result, met).map(|()| true);
        }
        if !revoke && state != Receiving::Revoking {
            return Ok(false);
        }
        let revoked = self.lane(rank, context).revoke(handle);
        if !revoked {
            self.receives[r].state = Receiving::Revoking;
            return Ok(false);
        }
        self.given_up(r, met, step);
        self.report.revoked += 1;
        let room = self.receives[r].room;
        self.untouched_outside(r, room)?;
        Ok(true)
    }

    /// Looks for a message and receives what it sees, or takes it out of the
    /// queue.
    pub fn probe(&mut self, to: &ToReceive, takes: bool) -> Check {
        let (rank, context) = (to.rank, to.context);
        if takes {
            let matched = self.lane(rank, context).matched_probe(to.pattern);
            let Some(matched) = matched else {
                return Ok(());
            };
            let r = self.new_receive(to, None, 0, Some(matched.outcome));
            let step = self.step;
            let receive = &mut self.receives[r];
            receive.state = Receiving::Matched;
            receive.got = Some(matched.outcome);
            receive.matched = step;
            self.trace_receive("matched probe", r);
            self.report.matched += 1;
            self.matched.push((r, matched));
            return Ok(());
        }
        let seen = self.lane(rank, context).probe(to.pattern);
        let Some(seen) = seen else {
            return Ok(());
        };
        // Others may still take it unless it is received at once.
        let to = ToReceive {
            pattern: Pattern::exact(seen.source, seen.tag),
            ..*to
        };
        let memory = Memory::new(None, seen.bytes.min(LARGEST));
        self.report.probed += 1;
        self.receive(&to, memory, Some(seen))
    }

    /// Receives what a matched probe took, into a buffer of `room` bytes;
    /// `None`: drops it.
    pub fn receive_matched(&mut self, at: usize, room: Option<usize>) -> Check {
        let (r, matched) = self.matched.swap_remove(at);
        let (rank, context) = (self.receives[r].rank, self.receives[r].context);
        let Some(room) = room else {
            self.trace_receive("drop matched", r);
            self.lane(rank, context).drop_matched(matched);
            self.receives[r].state = Receiving::Consumed;
            self.receives[r].posted = self.step;
            self.note_deaths();
            return Ok(());
        };
        let mut memory = Memory::new(None, room);
        let view = memory.raw();
        self.receives[r].room = memory.room;
        self.receives[r].memory = Some(memory);
        self.receives[r].got = None;
        self.trace_receive("receive matched", r);
        let posted = self.lane(rank, context).receive_matched(view, matched);
        // A synchronous send may end from here on.
        self.receives[r].posted = self.step;
        self.posted(r, posted)
    }
}
