//! The ranks of a run, played by one thread: what they hold, and who is alive.

use super::Report;
use super::act::Act;
use super::case::Case;
use super::dice::Rng;
use super::memory::{Memory, contents};
use super::timeline::Timeline;
use crate::check::{Checks, Setting};
use crate::matching::{Envelope, Pattern, TagPattern};
use crate::progress::lane::{Lane, Matched, Mode, Outcome};
use crate::progress::links::{Links, Remote};
use osier_transports::shm::Death;
use osier_transports::sim::SimNet;
use std::sync::Arc;

pub(super) type Check<T = ()> = Result<T, String>;

/// Largest message, but for one that corruption promises.
pub(super) const LARGEST: usize = 1 << 22;

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
    /// By which acts name it.
    pub id: usize,
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

/// How closely a run is looked at.
#[derive(Default)]
pub(super) struct Watch {
    /// The invariants are checked after every step, not only at the end.
    pub each_step: bool,
    /// Keep the acts, so that the run can be repeated.
    pub record: bool,
    /// Tell what happens.
    pub timeline: bool,
}

pub(super) struct World {
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
    /// Draws where the acts leave a choice.
    pub rng: Rng,
    /// Sends and receives that are under way.
    pub sends: Vec<usize>,
    pub receiving: Vec<usize>,
    /// Messages taken by a matched probe.
    pub matched: Vec<(usize, Matched)>,
    /// (who is to hear, who is dead)
    pub notices: Vec<(u32, u32)>,
    /// What was done, if somebody wants to know.
    pub acts: Option<Vec<Act>>,
    pub timeline: Option<Timeline>,
    pub each_step: bool,
    /// Results are taken after every act.
    pub harvests: bool,
    corruption: bool,
    deaths: u64,
    /// As `OSIER_CHECK` asks.
    checks: Checks,
}

impl World {
    pub fn new(case: &Case, rng: Rng, watch: &Watch) -> Self {
        let net = SimNet::new((&case.net).into());
        let ranks = case.net.ranks;
        let selection = Arc::new(case.selection());
        let mut lanes = Vec::new();
        // One for all ranks: their memory is apart.
        let setting = Setting::from_env().expect("OSIER_CHECK makes sense");
        let checks = Checks::new(setting, 0, |_| {});
        for rank in 0..ranks {
            for (context, members) in case.members.iter().enumerate() {
                let end = net.endpoint(rank, context as u64 + 1, members);
                let own = peer_of(members, rank);
                let links = Links::new(own, Remote::Sim(end));
                let size = ranks as usize;
                let mut lane = Lane::new(own, size, links, selection.clone());
                if checks.follows_messages() {
                    lane.check_with(checks.clone());
                }
                lanes.push(Some(lane));
            }
        }
        for fault in &case.faults {
            net.inject(fault.into());
        }
        if watch.timeline {
            net.log();
        }
        let messages = case.messages.iter().map(|planned| Message {
            context: planned.context,
            from: planned.from,
            to: planned.to,
            tag: planned.tag,
            bytes: planned.bytes,
            layout: planned.layout,
            mode: planned.mode(),
            memory: None,
            handle: 0,
            state: Sending::Planned,
            posted: 0,
            ended: 0,
        });
        Self {
            ranks,
            members: case.members.clone(),
            lanes,
            messages: messages.collect(),
            receives: Vec::new(),
            alive: vec![true; ranks as usize],
            step: 0,
            report: Report::default(),
            lenient: false,
            rng,
            sends: Vec::new(),
            receiving: Vec::new(),
            matched: Vec::new(),
            notices: Vec::new(),
            acts: watch.record.then(Vec::new),
            timeline: watch.timeline.then(|| Timeline::new(ranks)),
            each_step: watch.each_step,
            harvests: case.harvests,
            corruption: case.corruption,
            deaths: 0,
            checks,
            net,
        }
    }

    /// Lets all that is under way come to its end, and checks the rules.
    pub fn conclude(&mut self) -> Check<Report> {
        self.settle()?;
        self.drain()?;
        self.leave()?;
        self.check()?;
        if let Some(finding) = self.checks.findings().first()
            && !self.lenient
        {
            return Err(format!("a false finding: {finding}"));
        }
        let stats = self.net.stats();
        self.report.runs = 1;
        self.report.refused = stats.refused;
        self.report.corrupted = stats.corrupted;
        self.report.deaths = self.net.death_epoch();
        self.report.virtual_ns = self.net.now_ns();
        self.report.trace_hash = self.net.trace_hash();
        Ok(self.report)
    }

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

    pub fn contents(&self, m: usize) -> Vec<u8> {
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

    /// Tells the timeline of a send.
    pub fn trace_send(&mut self, what: &str, m: usize) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        let Message {
            from,
            to,
            tag,
            bytes,
            context,
            ..
        } = self.messages[m];
        let text = format!("{what} {m} (to {to}, tag {tag}, {bytes} B{})", of(context));
        timeline.tell(from, text);
    }

    /// Tells the timeline of a receive.
    pub fn trace_receive(&mut self, what: &str, r: usize) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        let receive = &self.receives[r];
        let from = receive.got.map(|g| g.source).or(receive.pattern.source);
        let from = from.map(|peer| self.members[receive.context][peer as usize]);
        let from = from.map_or("any".into(), |f| f.to_string());
        let tag = receive
            .got
            .map(|g| g.tag)
            .or(match receive.pattern.tag {
                TagPattern::Exact(tag) => Some(tag),
                TagPattern::Any => None,
            })
            .map_or("any tag".into(), |t| format!("tag {t}"));
        let room = receive.memory.as_ref().map_or(0, |m| m.room);
        let bytes = receive.got.map_or(room, |g| g.bytes);
        let text = format!(
            "{what} r{} (from {from}, {tag}, {bytes} B{})",
            receive.id,
            of(receive.context)
        );
        timeline.tell(receive.rank, text);
    }

    pub fn note_deaths(&mut self) {
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
            if let Some(timeline) = &mut self.timeline {
                timeline.tell(dead, "dies".into());
            }
            let survivors = (0..self.ranks).filter(|r| *r != dead);
            self.notices.extend(survivors.map(|r| (r, dead)));
        }
        let alive = &self.alive;
        self.notices.retain(|(to, _)| alive[*to as usize]);
        let messages = &self.messages;
        let receives = &self.receives;
        self.sends.retain(|m| alive[messages[*m].from as usize]);
        self.receiving.retain(|r| alive[receives[*r].rank as usize]);
        self.matched
            .retain(|(r, _)| alive[receives[*r].rank as usize]);
    }

    /// Tells a rank of a death.
    pub fn notice(&mut self, at: usize) {
        let (to, dead) = self.notices.swap_remove(at);
        if let Some(timeline) = &mut self.timeline {
            timeline.tell(to, format!("hears that {dead} is dead"));
        }
        for context in 0..self.members.len() {
            let peer = self.peer(context, dead);
            self.lane(to, context).peer_died(peer, Death::Signaled(9));
        }
        self.note_deaths();
    }
}

/// Names a context, unless it is the first.
fn of(context: usize) -> String {
    match context {
        0 => String::new(),
        context => format!(", context {context}"),
    }
}

pub(super) fn peer_of(members: &[u32], rank: u32) -> u32 {
    let at = members.iter().position(|m| *m == rank);
    at.expect("every rank is a member") as u32
}

/// What decides the bytes of a message that is too short for a number.
pub(super) fn short_key(context: usize, from: u32, to: u32, tag: u32, bytes: usize) -> u64 {
    let parts = [
        context as u64,
        from.into(),
        to.into(),
        tag.into(),
        bytes as u64,
    ];
    parts.iter().fold(1, |key, part| key * 31 + part)
}
