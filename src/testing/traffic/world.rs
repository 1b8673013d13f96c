//! The ranks of a run, played by one thread.

use super::memory::{Memory, Rng, contents, number, round};
use super::plan::{Plan, layout, shuffle};
use super::{Event, Report, Trace, Traffic};
use crate::error::{Error, ErrorKind};
use crate::matching::{Envelope, Pattern, TagPattern};
use crate::progress::lane::{Lane, Matched, Mode, Outcome, Posted};
use crate::progress::lane_receive::Direct;
use crate::progress::links::{Links, Remote};
use osier_transports::shm::Death;
use osier_transports::sim::SimNet;
use std::sync::Arc;

pub(super) type Check<T = ()> = Result<T, String>;

/// Rounds after which a network that is still busy is taken for a livelock.
const ROUNDS: usize = 200_000;
/// Largest message, but for one that corruption promises.
const LARGEST: usize = 1 << 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Planned,
    Pending,
    /// Asked to stop; the lane says when it has.
    Revoking,
    Sent,
    /// Delivered some time, but nobody says when.
    Detached,
    /// Never delivered.
    Withdrawn,
    /// Ended with the death of a rank, or by corruption.
    Lost,
}

pub(super) struct Message {
    pub context: usize,
    pub from: u32,
    pub to: u32,
    pub tag: u32,
    pub bytes: usize,
    pub layout: Option<usize>,
    pub mode: Mode,
    pub memory: Option<Memory>,
    pub handle: u32,
    pub state: Sending,
    pub posted: u64,
    pub ended: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Taken by a matched probe and not yet received.
    Matched,
    Pending,
    Revoking,
    Received,
    Truncated,
    /// Dropped, detached or revoked after it met a message.
    Consumed,
    /// Revoked before it met a message.
    Revoked,
    /// Its sender withdrew it.
    Withdrawn,
    Lost,
    /// Nothing was left that it accepts.
    Left,
}

pub(super) struct Receive {
    pub context: usize,
    pub rank: u32,
    pub pattern: Pattern,
    pub memory: Option<Memory>,
    pub handle: u32,
    pub state: Receiving,
    /// What a probe has promised.
    pub promised: Option<Outcome>,
    /// The message it got, by envelope and size.
    pub got: Option<Outcome>,
    /// The message it got, if its bytes tell.
    pub message: Option<usize>,
    /// The first bytes of one that is too short to tell.
    pub prefix: Vec<u8>,
    pub posted: u64,
    /// Known to be matched at this step.
    pub matched: u64,
}

pub(super) struct World<'t> {
    pub net: SimNet,
    pub ranks: u32,
    pub members: Vec<Vec<u32>>,
    /// By rank, then by context.
    pub lanes: Vec<Option<Lane>>,
    pub messages: Vec<Message>,
    pub receives: Vec<Receive>,
    pub alive: Vec<bool>,
    pub step: u64,
    pub report: Report,
    /// The rules do not hold: bytes were corrupted.
    pub lenient: bool,
    rng: Rng,
    plan: Plan,
    corruption: bool,
    /// Messages that each rank has not sent, last first.
    unsent: Vec<Vec<usize>>,
    /// Messages for which a receive is still to be posted.
    wanted: Vec<usize>,
    sends: Vec<usize>,
    receiving: Vec<usize>,
    matched: Vec<(usize, Matched)>,
    /// (who is to hear, who is dead)
    notices: Vec<(u32, u32)>,
    deaths: u64,
    trace: &'t mut Trace,
}

impl<'t> World<'t> {
    pub fn new(seed: u64, options: &Traffic, trace: &'t mut Trace) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng, seed, options);
        let net = SimNet::new(plan.sim.clone());
        let ranks = plan.sim.ranks;
        let selection = Arc::new(plan.selection.clone());
        let mut lanes = Vec::new();
        for rank in 0..ranks {
            for (context, members) in plan.members.iter().enumerate() {
                let end = net.endpoint(rank, context as u64 + 1, members);
                let own = peer_of(members, rank);
                let links = Links::new(own, Remote::Sim(end));
                let size = ranks as usize;
                lanes.push(Some(Lane::new(own, size, links, selection.clone())));
            }
        }
        for (rank, step) in &plan.deaths {
            net.kill_at_step(*rank, *step);
        }
        let mut unsent = vec![Vec::new(); ranks as usize];
        let mut messages = Vec::new();
        for (m, planned) in std::mem::take(&mut plan.messages).into_iter().enumerate() {
            unsent[planned.from as usize].push(m);
            messages.push(Message {
                context: planned.context,
                from: planned.from,
                to: planned.to,
                tag: planned.tag,
                bytes: planned.bytes,
                layout: planned.layout,
                mode: planned.mode,
                memory: None,
                handle: 0,
                state: Sending::Planned,
                posted: 0,
                ended: 0,
            });
        }
        unsent.iter_mut().for_each(|u| u.reverse());
        let mut wanted: Vec<usize> = (0..messages.len()).collect();
        shuffle(&mut rng, &mut wanted);
        Self {
            ranks,
            members: plan.members.clone(),
            lanes,
            messages,
            receives: Vec::new(),
            alive: vec![true; ranks as usize],
            step: 0,
            report: Report::default(),
            lenient: false,
            rng,
            plan,
            corruption: options.corruption,
            unsent,
            wanted,
            sends: Vec::new(),
            receiving: Vec::new(),
            matched: Vec::new(),
            notices: Vec::new(),
            deaths: 0,
            trace,
            net,
        }
    }

    pub fn play(mut self) -> Check<Report> {
        let mut extra = 20;
        while extra > 0 {
            if self.wanted.is_empty() && self.unsent.iter().all(Vec::is_empty) {
                extra -= 1;
            }
            self.step += 1;
            self.act()?;
            self.note_deaths();
        }
        self.settle()?;
        self.drain()?;
        self.leave()?;
        self.check()?;
        let stats = self.net.stats();
        self.report.runs = 1;
        self.report.refused = stats.refused;
        self.report.corrupted = stats.corrupted;
        self.report.deaths = self.net.death_epoch();
        self.report.virtual_ns = self.net.now_ns();
        self.report.trace_hash = self.net.trace_hash();
        Ok(self.report)
    }

    // Names.

    pub fn lane(&mut self, rank: u32, context: usize) -> &mut Lane {
        let at = rank as usize * self.members.len() + context;
        self.lanes[at].as_mut().expect("lanes stay until the end")
    }

    pub fn peer(&self, context: usize, rank: u32) -> u32 {
        peer_of(&self.members[context], rank)
    }

    /// Source and tag as the receiver sees them.
    pub fn envelope(&self, m: usize) -> Envelope {
        let m = &self.messages[m];
        Envelope {
            source: self.peer(m.context, m.from),
            tag: m.tag,
        }
    }

    fn contents(&self, m: usize) -> Vec<u8> {
        let Message {
            context,
            from,
            to,
            tag,
            bytes,
            ..
        } = self.messages[m];
        contents(m, short_key(context, from, to, tag, bytes), bytes)
    }

    pub fn describe_message(&self, m: usize) -> String {
        let Message {
            context,
            from,
            to,
            tag,
            bytes,
            layout,
            mode,
            state,
            ..
        } = self.messages[m];
        format!(
            "message {m} (rank {from} to {to}, context {context}, tag {tag}, {bytes} bytes, {mode:?}, layout {layout:?}, {state:?})"
        )
    }

    pub fn describe_receive(&self, r: usize) -> String {
        let Receive {
            context,
            rank,
            pattern,
            state,
            got,
            ..
        } = &self.receives[r];
        format!(
            "receive {r} (rank {rank}, context {context}, {pattern:?}, {state:?}, got {got:?}, message {:?})",
            self.receives[r].message
        )
    }

    fn trace_send(&mut self, what: &'static str, m: usize) {
        let msg = &self.messages[m];
        self.trace.push(Event {
            time_ns: self.net.now_ns(),
            rank: msg.from,
            context: msg.context,
            what,
            number: m,
            peer: Some(peer_of(&self.members[msg.context], msg.to)),
            tag: Some(msg.tag),
            bytes: msg.bytes,
        });
    }

    fn trace_receive(&mut self, what: &'static str, r: usize) {
        let receive = &self.receives[r];
        let got = receive.got;
        self.trace.push(Event {
            time_ns: self.net.now_ns(),
            rank: receive.rank,
            context: receive.context,
            what,
            number: r,
            peer: got.map(|g| g.source).or(receive.pattern.source),
            tag: got.map(|g| g.tag).or(match receive.pattern.tag {
                TagPattern::Exact(tag) => Some(tag),
                TagPattern::Any => None,
            }),
            bytes: got.map_or(receive.memory.as_ref().map_or(0, |m| m.room), |g| g.bytes),
        });
    }

    // Steps.

    fn act(&mut self) -> Check {
        let w = &self.plan.weights;
        let unsent = self.unsent.iter().any(|u| !u.is_empty());
        let hold = self.plan.late && unsent;
        let weights = [
            if unsent { w.send } else { 0 },
            if self.wanted.is_empty() || hold {
                0
            } else {
                w.receive
            },
            w.progress,
            w.clock,
            w.test,
            w.probe,
            w.revoke_receive,
            w.revoke_send,
            w.detach,
            if self.notices.is_empty() { 0 } else { w.notice },
            w.corrupt,
            usize::from(!self.matched.is_empty()) * 3,
        ];
        let mut at = self.rng.below(weights.iter().sum());
        let mut action = 0;
        while at >= weights[action] {
            at -= weights[action];
            action += 1;
        }
        match action {
            0 => self.send_some(),
            1 => self.receive_some(),
            2 => {
                let (rank, context) = self.somewhere();
                if self.alive[rank as usize] {
                    self.lane(rank, context).progress();
                }
                Ok(())
            }
            3 => {
                if self.rng.one_in(2) {
                    let ns = self.rng.below(20_000) as u64;
                    self.net.advance(ns);
                } else {
                    self.net.advance_to_next_event();
                }
                Ok(())
            }
            4 => self.harvest().map(drop),
            5 => self.probe(),
            6 => self.revoke_receive(),
            7 => self.revoke_send(),
            8 => self.detach(),
            9 => {
                let at = self.rng.below(self.notices.len());
                self.notice(at);
                Ok(())
            }
            10 => {
                if self.rng.one_in(8) {
                    let (a, b) = (self.somewhere().0, self.somewhere().0);
                    self.net.corrupt_next(a, b);
                }
                Ok(())
            }
            _ => {
                let at = self.rng.below(self.matched.len());
                self.receive_matched(at)
            }
        }
    }

    fn somewhere(&mut self) -> (u32, usize) {
        let rank = self.rng.below(self.ranks as usize) as u32;
        (rank, self.rng.below(self.members.len()))
    }

    fn note_deaths(&mut self) {
        if self.corruption && self.net.stats().corrupted > 0 {
            self.lenient = true;
        }
        let deaths = self.net.death_epoch();
        if deaths == self.deaths {
            return;
        }
        self.deaths = deaths;
        for dead in self.net.dead_ranks() {
            if !std::mem::replace(&mut self.alive[dead as usize], false) {
                continue;
            }
            self.unsent[dead as usize].clear();
            let survivors = (0..self.ranks).filter(|r| *r != dead);
            self.notices.extend(survivors.map(|r| (r, dead)));
        }
        let alive = &self.alive;
        self.notices.retain(|(to, _)| alive[*to as usize]);
        let messages = &self.messages;
        self.wanted
            .retain(|m| alive[messages[*m].to as usize] && alive[messages[*m].from as usize]);
        let receives = &self.receives;
        self.sends.retain(|m| alive[messages[*m].from as usize]);
        self.receiving.retain(|r| alive[receives[*r].rank as usize]);
        self.matched
            .retain(|(r, _)| alive[receives[*r].rank as usize]);
    }

    /// Tells a rank of a death.
    fn notice(&mut self, at: usize) {
        let (to, dead) = self.notices.swap_remove(at);
        for context in 0..self.members.len() {
            let peer = self.peer(context, dead);
            self.lane(to, context).peer_died(peer, Death::Signaled(9));
        }
        self.note_deaths();
    }

    // Sends.

    fn send_some(&mut self) -> Check {
        let start = self.rng.below(self.ranks as usize);
        for at in 0..self.ranks as usize {
            let rank = (start + at) % self.ranks as usize;
            if let Some(m) = self.unsent[rank].pop() {
                return self.send(m);
            }
        }
        Ok(())
    }

    fn send(&mut self, m: usize) -> Check {
        let message = self.contents(m);
        let step = self.step;
        let msg = &mut self.messages[m];
        let mut memory = Memory::new(msg.layout, msg.bytes);
        memory.fill(&message);
        let view = memory.view();
        msg.memory = Some(memory);
        msg.posted = step;
        msg.state = Sending::Pending;
        let (context, from, to, tag, mode) = (msg.context, msg.from, msg.to, msg.tag, msg.mode);
        self.report.sent += 1;
        self.trace_send("send", m);
        let peer = self.peer(context, to);
        let posted = self.lane(from, context).isend(view, peer, tag, mode);
        self.note_deaths();
        if !self.alive[from as usize] {
            return Ok(());
        }
        match posted {
            Ok(Posted::Pending(handle)) => {
                self.messages[m].handle = handle;
                self.sends.push(m);
                Ok(())
            }
            Ok(Posted::Done(outcome)) => self.sent(m, Ok(outcome)),
            Err(e) => self.sent(m, Err(e)),
        }
    }

    fn sent(&mut self, m: usize, result: Result<Outcome, Error>) -> Check {
        let peer = self.peer(self.messages[m].context, self.messages[m].to);
        let step = self.step;
        let msg = &mut self.messages[m];
        let revoking = msg.state == Sending::Revoking;
        msg.ended = step;
        if let Some(memory) = &mut msg.memory {
            memory.wipe();
        }
        let (state, what) = match &result {
            Ok(_) => (Sending::Sent, "sent"),
            Err(e) if revoking && e.kind() == ErrorKind::Cancelled => {
                self.report.withdrawn += 1;
                (Sending::Withdrawn, "withdrawn")
            }
            Err(_) => (Sending::Lost, "lost send"),
        };
        msg.state = state;
        let (dead, tag, bytes) = (!self.alive[msg.to as usize], msg.tag, msg.bytes);
        self.trace_send(what, m);
        if self.lenient {
            return Ok(());
        }
        let outcome = Outcome {
            source: peer,
            tag,
            bytes,
        };
        match (state, result) {
            (Sending::Lost, Err(e)) => {
                self.report.lost += 1;
                let named = e.to_string().contains(&format!("rank {peer} "));
                if e.kind() == ErrorKind::RankDead && dead && named {
                    return Ok(());
                }
                let what = self.describe_message(m);
                Err(format!("{what} ended with an error: {e:?}"))
            }
            (_, Ok(was)) if was != outcome => {
                let what = self.describe_message(m);
                Err(format!("{what} was sent as {was:?}"))
            }
            _ => Ok(()),
        }
    }

    fn revoke_send(&mut self) -> Check {
        if self.sends.is_empty() || !self.rng.one_in(2) {
            return Ok(());
        }
        let at = self.rng.below(self.sends.len());
        let m = self.sends[at];
        if self.messages[m].state == Sending::Pending {
            self.trace_send("revoke send", m);
            if self.end_send(m, true)? {
                self.sends.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Takes a send's result, or goes on to revoke it. True if it is over.
    fn end_send(&mut self, m: usize, revoke: bool) -> Check<bool> {
        let (from, context, handle) = {
            let m = &self.messages[m];
            (m.from, m.context, m.handle)
        };
        if let Some(result) = self.lane(from, context).take(handle) {
            return self.sent(m, result).map(|()| true);
        }
        if !revoke && self.messages[m].state != Sending::Revoking {
            return Ok(false);
        }
        let lane = self.lane(from, context);
        let delivered = lane.awaits_ack(handle);
        let over = lane.revoke(handle);
        let msg = &mut self.messages[m];
        msg.state = match (over, delivered) {
            (false, _) => Sending::Revoking,
            (true, true) => Sending::Detached,
            (true, false) => {
                self.report.withdrawn += 1;
                Sending::Withdrawn
            }
        };
        if over && let Some(memory) = &mut msg.memory {
            memory.wipe();
        }
        Ok(over)
    }

    fn detach(&mut self) -> Check {
        if self.rng.one_in(2) {
            if self.sends.is_empty() {
                return Ok(());
            }
            let at = self.rng.below(self.sends.len());
            let m = self.sends[at];
            if self.messages[m].state != Sending::Pending {
                return Ok(());
            }
            self.sends.swap_remove(at);
            self.trace_send("detach", m);
            let (from, context, handle) = {
                let m = &self.messages[m];
                (m.from, m.context, m.handle)
            };
            let memory = self.messages[m].memory.take();
            let lane = self.lane(from, context);
            let over = lane.is_done(handle);
            lane.set_owner(handle, Box::new(memory.map(|m| m.bytes)));
            lane.detach(handle);
            self.messages[m].ended = self.step;
            self.messages[m].state = if over {
                Sending::Sent
            } else {
                Sending::Detached
            };
        } else {
            if self.receiving.is_empty() {
                return Ok(());
            }
            let at = self.rng.below(self.receiving.len());
            let r = self.receiving[at];
            let receive = &mut self.receives[r];
            if receive.state != Receiving::Pending {
                return Ok(());
            }
            let (rank, context, handle) = (receive.rank, receive.context, receive.handle);
            if self.lane(rank, context).is_done(handle) {
                return Ok(());
            }
            self.receiving.swap_remove(at);
            self.trace_receive("detach receive", r);
            let memory = self.receives[r].memory.take();
            let step = self.step;
            let lane = self.lane(rank, context);
            let met = lane.met(handle);
            lane.set_owner(handle, Box::new(memory.map(|m| m.bytes)));
            lane.detach(handle);
            self.given_up(r, met, step);
        }
        self.report.detached += 1;
        Ok(())
    }

    /// A receive whose end nobody will hear of.
    fn given_up(&mut self, r: usize, met: Option<Outcome>, step: u64) {
        let receive = &mut self.receives[r];
        receive.got = met;
        receive.matched = step;
        receive.state = match met {
            Some(_) => Receiving::Consumed,
            None => Receiving::Revoked,
        };
    }

    // Receives.

    /// A pattern that accepts a message, more or less exactly.
    fn pattern_for(&mut self, m: usize) -> Pattern {
        let Envelope { source, tag } = self.envelope(m);
        let mut pattern = Pattern::exact(source, tag);
        if self.rng.below(8) < self.plan.wild {
            let which = self.rng.below(3);
            if which != 0 {
                pattern.source = None;
            }
            if which != 1 {
                pattern.tag = TagPattern::Any;
            }
        }
        pattern
    }

    fn receive_some(&mut self) -> Check {
        let Some(m) = self.wanted.pop() else {
            return Ok(());
        };
        let pattern = self.pattern_for(m);
        let (context, rank, bytes) = {
            let m = &self.messages[m];
            (m.context, m.to, m.bytes)
        };
        let layout = layout(&mut self.rng, bytes);
        let bytes = if self.rng.below(32) < self.plan.small {
            self.rng.below(bytes + 1)
        } else if self.rng.one_in(4) {
            bytes + self.rng.below(100)
        } else {
            bytes + 16 * usize::from(layout.is_some())
        };
        let memory = Memory::new(layout, round(layout, bytes));
        if self.rng.one_in(8) && self.receive_direct(rank, context, pattern)? {
            return Ok(());
        }
        self.receive(rank, context, pattern, memory, None)
    }

    fn new_receive(
        &mut self,
        rank: u32,
        context: usize,
        pattern: Pattern,
        memory: Option<Memory>,
        promised: Option<Outcome>,
    ) -> usize {
        self.receives.push(Receive {
            context,
            rank,
            pattern,
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
        rank: u32,
        context: usize,
        pattern: Pattern,
        mut memory: Memory,
        promised: Option<Outcome>,
    ) -> Check {
        let view = memory.view();
        let r = self.new_receive(rank, context, pattern, Some(memory), promised);
        self.trace_receive("receive", r);
        let posted = self.lane(rank, context).irecv(view, pattern);
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
    fn receive_direct(&mut self, rank: u32, context: usize, pattern: Pattern) -> Check<bool> {
        let lane = self.lane(rank, context);
        if !lane.idle() || lane.has_unexpected(pattern) {
            return Ok(false);
        }
        let mut memory = Memory::new(None, 4096);
        let view = memory.view();
        let direct = self.lane(rank, context).receive_direct(&view, pattern);
        self.note_deaths();
        if let Direct::Received(outcome) = direct {
            let r = self.new_receive(rank, context, pattern, Some(memory), None);
            self.trace_receive("direct receive", r);
            self.report.direct += 1;
            return self.received(r, Ok(outcome), None).map(|()| true);
        }
        Ok(false)
    }

    fn received(
        &mut self,
        r: usize,
        result: Result<Outcome, Error>,
        met: Option<Outcome>,
    ) -> Check {
        self.receives[r].matched = self.step;
        let room = self.receives[r].memory.as_ref().map_or(0, |m| m.room);
        let (state, what) = match &result {
            Ok(_) => (Receiving::Received, "received"),
            Err(e) => match e.kind() {
                ErrorKind::Truncated => (Receiving::Truncated, "received, truncated"),
                ErrorKind::Cancelled => (Receiving::Withdrawn, "withdrawn receive"),
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
                self.names_dead(r, e)
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

    /// Checks that an error names a dead rank on which the receive depends.
    fn names_dead(&self, r: usize, e: &Error) -> Check {
        let receive = &self.receives[r];
        let members = &self.members[receive.context];
        let text = e.to_string();
        let named = (0..self.ranks).any(|peer| {
            !self.alive[members[peer as usize] as usize]
                && receive.pattern.source.is_none_or(|s| s == peer)
                && text.contains(&format!("rank {peer} "))
        });
        if e.kind() == ErrorKind::RankDead && named {
            return Ok(());
        }
        let what = self.describe_receive(r);
        Err(format!("{what} ended with an error: {e:?}"))
    }

    fn untouched_outside(&mut self, r: usize, packed: usize) -> Check {
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
        let (Some(got), Some(memory)) = (receive.got, &receive.memory) else {
            return Err("a receive without an outcome".into());
        };
        let room = memory.room;
        let n = got.bytes.min(room);
        let bytes = memory.packed(n);
        let whole = receive.state == Receiving::Received;
        let envelope = Envelope {
            source: got.source,
            tag: got.tag,
        };
        let kept = receive.promised.is_none_or(|p| p == got);
        let fits = !whole || got.bytes <= room;
        let wrong = if !fits {
            Some("is larger than its buffer")
        } else if !receive.pattern.accepts(envelope) || got.source >= self.ranks {
            Some("is none that it accepts")
        } else if !kept {
            Some("is not what the probe saw")
        } else {
            self.wrong_bytes(r, got, &bytes)
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
        let from = self.members[context][got.source as usize];
        if got.bytes < super::memory::NUMBER_BYTES {
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
        self.receives[r].message = Some(m);
        let want = self.contents(m);
        (want[..bytes.len()] != *bytes).then_some("has wrong bytes")
    }

    fn revoke_receive(&mut self) -> Check {
        if self.receiving.is_empty() || !self.rng.one_in(2) {
            return Ok(());
        }
        let at = self.rng.below(self.receiving.len());
        let r = self.receiving[at];
        if self.receives[r].state == Receiving::Pending {
            self.trace_receive("revoke receive", r);
            if self.end_receive(r, true)? {
                self.receiving.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Takes a receive's result, or goes on to revoke it. True if it is over.
    fn end_receive(&mut self, r: usize, revoke: bool) -> Check<bool> {
        let Receive {
            rank,
            context,
            handle,
            state,
            ..
        } = self.receives[r];
        let step = self.step;
        let lane = self.lane(rank, context);
        let met = lane.met(handle);
        if let Some(result) = lane.take(handle) {
            return self.received(r, result, met).map(|()| true);
        }
        if !revoke && state != Receiving::Revoking {
            return Ok(false);
        }
        if !lane.revoke(handle) {
            self.receives[r].state = Receiving::Revoking;
            return Ok(false);
        }
        self.given_up(r, met, step);
        self.report.revoked += 1;
        let room = self.receives[r].memory.as_ref().map_or(0, |m| m.room);
        self.untouched_outside(r, room)?;
        Ok(true)
    }

    /// Takes the results of all operations that are over; says how many.
    fn harvest(&mut self) -> Check<usize> {
        let mut ended = 0;
        for at in (0..self.sends.len()).rev() {
            if self.end_send(self.sends[at], false)? {
                self.sends.swap_remove(at);
                ended += 1;
            }
        }
        for at in (0..self.receiving.len()).rev() {
            if self.end_receive(self.receiving[at], false)? {
                self.receiving.swap_remove(at);
                ended += 1;
            }
        }
        Ok(ended)
    }

    fn probe(&mut self) -> Check {
        let m = self.rng.below(self.messages.len());
        let pattern = self.pattern_for(m);
        let (rank, context) = (self.messages[m].to, self.messages[m].context);
        if !self.alive[rank as usize] {
            return Ok(());
        }
        if self.rng.one_in(2) {
            let Some(matched) = self.lane(rank, context).matched_probe(pattern) else {
                return Ok(());
            };
            let r = self.new_receive(rank, context, pattern, None, Some(matched.outcome));
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
        let Some(seen) = self.lane(rank, context).probe(pattern) else {
            return Ok(());
        };
        // Others may still take it unless it is received at once.
        let exact = Pattern::exact(seen.source, seen.tag);
        let memory = Memory::new(None, seen.bytes.min(LARGEST));
        self.report.probed += 1;
        self.receive(rank, context, exact, memory, Some(seen))
    }

    fn receive_matched(&mut self, at: usize) -> Check {
        let (r, matched) = self.matched.swap_remove(at);
        let (rank, context) = (self.receives[r].rank, self.receives[r].context);
        let bytes = matched.outcome.bytes.min(LARGEST);
        if self.rng.one_in(6) {
            self.trace_receive("drop matched", r);
            self.lane(rank, context).drop_matched(matched);
            self.receives[r].state = Receiving::Consumed;
            self.receives[r].posted = self.step;
            self.note_deaths();
            return Ok(());
        }
        let room = if self.rng.one_in(8) {
            self.rng.below(bytes + 1)
        } else {
            bytes
        };
        let mut memory = Memory::new(None, room);
        let view = memory.view();
        self.receives[r].memory = Some(memory);
        self.receives[r].got = None;
        self.trace_receive("receive matched", r);
        let posted = self.lane(rank, context).receive_matched(view, matched);
        // A synchronous send may end from here on.
        self.receives[r].posted = self.step;
        self.posted(r, posted)
    }

    // The end.

    /// Lets everything go on until nothing moves.
    fn settle(&mut self) -> Check {
        for _ in 0..ROUNDS {
            self.step += 1;
            let start = self.rng.below(self.lanes.len());
            let contexts = self.members.len();
            let mut any = false;
            for at in 0..self.lanes.len() {
                let at = (start + at) % self.lanes.len();
                if self.alive[at / contexts]
                    && let Some(lane) = &mut self.lanes[at]
                {
                    any |= lane.progress();
                    self.note_deaths();
                }
            }
            if any || self.harvest()? > 0 {
                continue;
            }
            self.note_deaths();
            if !self.matched.is_empty() {
                self.receive_matched(0)?;
            } else if !self.notices.is_empty() {
                self.notice(0);
            } else if !self.net.advance_to_next_event() && !self.revoking() {
                return Ok(());
            }
        }
        if self.lenient {
            return Ok(());
        }
        Err(format!("the network is busy after {ROUNDS} rounds"))
    }

    /// Whether the lanes were asked again and may have more to do.
    fn revoking(&self) -> bool {
        let contexts = self.members.len();
        self.lanes.iter().enumerate().any(|(at, lane)| {
            self.alive[at / contexts]
                && lane
                    .as_ref()
                    .is_some_and(|l| l.leftovers().queued > 0 && !self.lenient)
        }) && self.net.in_flight().messages > 0
    }

    /// Receives what nobody has asked for.
    fn drain(&mut self) -> Check {
        loop {
            let mut any = false;
            for rank in (0..self.ranks)
                .filter(|r| self.alive[*r as usize])
                .collect::<Vec<_>>()
            {
                for context in 0..self.members.len() {
                    let everything = Pattern {
                        source: None,
                        tag: TagPattern::Any,
                    };
                    while self.alive[rank as usize]
                        && let Some(seen) = self.lane(rank, context).probe(everything)
                    {
                        any = true;
                        self.step += 1;
                        let memory = Memory::new(None, seen.bytes.min(LARGEST));
                        self.receive(rank, context, everything, memory, Some(seen))?;
                    }
                }
            }
            self.settle()?;
            if !any {
                return Ok(());
            }
        }
    }

    /// Ends what nothing can end any more.
    fn leave(&mut self) -> Check {
        self.step += 1;
        if self.lenient {
            self.report.stuck = (self.sends.len() + self.receiving.len()) as u64;
            for r in 0..self.receives.len() {
                let room = self.receives[r].memory.as_ref().map_or(0, |m| m.room);
                self.untouched_outside(r, room)?;
            }
            return Ok(());
        }
        if let Some(m) = self.sends.first() {
            let what = self.describe_message(*m);
            return Err(format!("deadlock: {what} never ends"));
        }
        for r in std::mem::take(&mut self.receiving) {
            let Receive {
                rank,
                context,
                handle,
                pattern,
                ..
            } = self.receives[r];
            let lane = self.lane(rank, context);
            if let Some(met) = lane.met(handle) {
                let what = self.describe_receive(r);
                return Err(format!("deadlock: {what} has met {met:?} and never ends"));
            }
            let over = lane.revoke(handle);
            let members = &self.members[context];
            let hopeless = match pattern.source {
                Some(source) => !self.alive[members[source as usize] as usize],
                None => {
                    let alive = self.alive.iter().filter(|a| **a).count();
                    alive == 1 && self.ranks > 1
                }
            };
            self.receives[r].state = Receiving::Left;
            let what = self.describe_receive(r);
            if hopeless {
                return Err(format!("{what} waits for a dead rank"));
            }
            if !over {
                return Err(format!("{what} cannot be revoked though nothing came"));
            }
            self.untouched_outside(r, 0)?;
        }
        Ok(())
    }
}

pub(super) fn peer_of(members: &[u32], rank: u32) -> u32 {
    let at = members.iter().position(|m| *m == rank);
    at.expect("every rank is a member") as u32
}

/// What decides the bytes of a message that is too short for a number.
fn short_key(context: usize, from: u32, to: u32, tag: u32, bytes: usize) -> u64 {
    let parts = [
        context as u64,
        from.into(),
        to.into(),
        tag.into(),
        bytes as u64,
    ];
    parts.iter().fold(1, |key, part| key * 31 + part)
}
