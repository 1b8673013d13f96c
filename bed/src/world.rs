//! All ranks of a run, on one thread.

use super::Report;
use super::act::Act;
use super::case::{Case, How, Planned};
use super::dice::Rng;
use super::memory::{Memory, contents};
use super::partition::{PairKey, Parted};
use super::request::General;
use super::seat::{Seat, context_of};
use super::timeline::Timeline;
use osier_engine::check::{Checks, Setting};
use osier_engine::error::{Error, ErrorKind};
use osier_engine::matching::{Envelope, Pattern, TagPattern};
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::lane::{Matched, Mode, Outcome};
use osier_transports::Death;
use osier_transports::sim::SimNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    pub how: How,
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
    /// Its sender cancelled it.
    Withdrawn,
    Lost,
    /// Nothing was left that it accepts.
    Left,
    /// It may have met a message, and was lost in an exchange with the error
    /// of the other half.
    Unknown,
}

pub(super) struct Receive {
    /// By which acts name it.
    pub id: usize,
    pub context: usize,
    pub rank: u32,
    pub pattern: Pattern,
    pub memory: Option<Memory>,
    /// Packed bytes that its memory holds.
    pub room: usize,
    /// Number of the persistent request that it is a start of.
    pub group: Option<usize>,
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
    /// Ranks by peer; by rank, then by context.
    peers: Vec<Vec<u32>>,
    inter: Vec<bool>,
    /// By rank; the dead have none at the end.
    pub seats: Vec<Option<Seat>>,
    pub parted: Vec<Parted>,
    /// Partitions of all set-ups, of those that failed, too: each takes tags.
    pub part_tags: usize,
    /// Senders and receivers of partitioned transfers, as they were set up.
    pub pairs: BTreeMap<PairKey, (Vec<usize>, Vec<usize>)>,
    pub generals: BTreeMap<usize, General>,
    /// Attached buffers by rank and context; `None`: without a limit.
    pub buffers: BTreeMap<(u32, usize), Option<usize>>,
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
    /// (context, who lives, who is dead) where all that the dead had posted was
    /// there before its death was known.
    pub complete: BTreeSet<(usize, u32, u32)>,
    /// (context, who knows, who has failed): the step at which that was acknowledged first.
    pub acknowledged: BTreeMap<(usize, u32, u32), u64>,
    /// What was done, if somebody wants to know.
    pub acts: Option<Vec<Act>>,
    pub timeline: Option<Timeline>,
    pub each_step: bool,
    /// Results are taken after every act.
    pub harvests: bool,
    corruption: bool,
    deaths: u64,
}

impl World {
    pub fn new(case: &Case, rng: Rng, watch: &Watch) -> Self {
        let net = SimNet::new((&case.net).into());
        let ranks = case.net.ranks;
        let selection = Arc::new(case.selection());
        let of_env = Setting::from_env().expect("OSIER_CHECK makes sense");
        let checks = Setting::from_bits(case.checks | of_env.bits());
        let seat = |rank| Some(Seat::new(case, &net, rank, &selection, checks));
        let seats = (0..ranks).map(seat).collect();
        let contexts = case.members.len();
        let peers = (0..ranks).flat_map(|r| (0..contexts).map(move |c| (c, r)));
        for fault in &case.faults {
            net.inject(fault.into());
        }
        if watch.timeline {
            net.log();
        }
        // All messages of a persistent request are as its first.
        let mut first: HashMap<usize, usize> = HashMap::new();
        let as_first = case
            .messages
            .iter()
            .enumerate()
            .map(|(m, planned)| match planned.how {
                How::Persistent(group) => &case.messages[*first.entry(group).or_insert(m)],
                _ => planned,
            });
        let messages: Vec<&Planned> = as_first.collect();
        let messages = messages.into_iter().map(|planned| Message {
            how: planned.how,
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
            peers: peers.map(|(c, r)| case.peers(c, r)).collect(),
            inter: (0..contexts).map(|c| !case.sides(c).1.is_empty()).collect(),
            seats,
            parted: case.parted.clone(),
            part_tags: 0,
            pairs: BTreeMap::new(),
            generals: BTreeMap::new(),
            buffers: BTreeMap::new(),
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
            complete: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            acts: watch.record.then(Vec::new),
            timeline: watch.timeline.then(|| Timeline::new(ranks)),
            each_step: watch.each_step,
            harvests: case.harvests,
            corruption: case.corruption,
            deaths: 0,
            net,
        }
    }

    /// Lets all that is under way come to its end, and checks the rules.
    pub fn conclude(&mut self) -> Check<Report> {
        self.wind_up()?;
        self.drain()?;
        self.leave()?;
        let checks: Vec<Checks> = self
            .seats
            .iter()
            .flatten()
            .map(|s| s.core.checks.clone())
            .collect();
        self.check()?;
        for checks in checks {
            if let Some(finding) = checks.findings().first()
                && !self.lenient
            {
                return Err(format!("a false finding: {finding}"));
            }
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

    /// Number of contexts.
    pub fn contexts(&self) -> usize {
        self.inter.len()
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.peers.len()
    }

    pub fn is_inter(&self, context: usize) -> bool {
        self.inter[context]
    }

    /// What a living rank holds.
    pub fn seat(&self, rank: u32) -> &Seat {
        let seat = self.seats[rank as usize].as_ref();
        seat.expect("seats stay until the end")
    }

    pub fn seat_mut(&mut self, rank: u32) -> &mut Seat {
        let seat = self.seats[rank as usize].as_mut();
        seat.expect("seats stay until the end")
    }

    pub fn lane(&self, rank: u32, context: usize) -> LaneGuard<'_> {
        self.seat(rank).lane(context)
    }

    /// The ranks behind a rank's peers.
    pub fn peers(&self, context: usize, rank: u32) -> &[u32] {
        &self.peers[rank as usize * self.contexts() + context]
    }

    /// What a rank calls another, if it can send to it.
    pub fn peer_if(&self, context: usize, at: u32, of: u32) -> Option<u32> {
        let peers = self.peers(context, at);
        peers.iter().position(|p| *p == of).map(|p| p as u32)
    }

    /// What a rank calls another.
    pub fn peer(&self, context: usize, at: u32, of: u32) -> u32 {
        let peer = self.peer_if(context, at, of);
        peer.expect("messages go to peers")
    }

    /// Source and tag as the receiver sees them.
    pub fn envelope(&self, m: usize) -> Envelope {
        let m = &self.messages[m];
        Envelope {
            source: self.peer(m.context, m.to, m.from),
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
        if self.timeline.is_none() {
            return;
        }
        let receive = &self.receives[r];
        let from = receive.got.map(|g| g.source).or(receive.pattern.source);
        let peers = self.peers(receive.context, receive.rank);
        let from = from.map(|peer| peers[peer as usize]);
        let from = from.map_or("any".into(), |f| f.to_string());
        let tag = receive
            .got
            .map(|g| g.tag)
            .or(match receive.pattern.tag {
                TagPattern::Exact(tag) => Some(tag),
                TagPattern::Any => None,
            })
            .map_or("any tag".into(), |t| format!("tag {t}"));
        let bytes = receive.got.map_or(receive.room, |g| g.bytes);
        let text = format!(
            "{what} r{} (from {from}, {tag}, {bytes} B{})",
            receive.id,
            of(receive.context)
        );
        self.tell(receive.rank, text);
    }

    /// Tells the timeline of what a rank does.
    pub fn tell(&mut self, rank: u32, text: String) {
        if let Some(timeline) = &mut self.timeline {
            timeline.tell(rank, text);
        }
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
                let how = match self.net.has_finalized(dead) {
                    true => "finalizes",
                    false => "dies",
                };
                timeline.tell(dead, how.into());
            }
            let survivors = (0..self.ranks).filter(|r| *r != dead);
            self.notices.extend(survivors.map(|r| (r, dead)));
            for to in 0..self.ranks {
                if self.alive[to as usize] {
                    self.note_complete(to, dead);
                }
            }
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

    /// Notes where nothing of the dead's is on its way to a rank that does not
    /// know of the death yet.
    fn note_complete(&mut self, to: u32, dead: u32) {
        let mut contexts = vec![true; self.contexts()];
        self.net.each_message(|from, at, channel, _, _| {
            if (from, at) == (dead, to) {
                contexts[context_of(channel)] = false;
            }
        });
        for (context, all) in contexts.into_iter().enumerate() {
            let Some(peer) = self.peer_if(context, to, dead) else {
                continue;
            };
            let unknown = !self.lane(to, context).knows_dead(peer);
            if all && unknown {
                self.complete.insert((context, to, dead));
            }
        }
    }

    /// A rank finalizes, as soon as that would not wait: all that it has sent has come.
    pub fn finalize(&mut self, rank: u32) {
        let mut flying = self.net.in_flight().operations > 0;
        self.net
            .each_message(|from, _, _, _, _| flying |= from == rank);
        let lives = self.alive.get(rank as usize) == Some(&true);
        if !lives || flying || self.sends.iter().any(|m| self.messages[*m].from == rank) {
            return;
        }
        let sends = |context| self.lane(rank, context).unfinished_sends();
        if (0..self.contexts()).any(sends) {
            return;
        }
        self.net.finalize(rank);
        self.report.finalized += 1;
        self.note_deaths();
    }

    /// A rank goes on without those that it knows to have failed.
    pub fn acknowledge(&mut self, rank: u32, context: usize) {
        if self.alive.get(rank as usize) != Some(&true) || context >= self.contexts() {
            return;
        }
        let failed = self.lane(rank, context).acknowledge_failures();
        let peers = self.peers(context, rank);
        let failed: Vec<u32> = failed.into_iter().map(|peer| peers[peer]).collect();
        for failed in failed {
            self.report.acknowledged += 1;
            let key = (context, rank, failed);
            self.acknowledged.entry(key).or_insert(self.step);
            self.tell(rank, format!("goes on without {failed}{}", of(context)));
        }
    }

    /// Whether an error may be that of an operation which needs a rank that has ended.
    pub fn is_end_of(&self, rank: u32, e: &Error) -> bool {
        let kind = match self.net.has_finalized(rank) {
            true => ErrorKind::Closed,
            false => ErrorKind::RankDead,
        };
        !self.alive[rank as usize] && e.kind() == kind
    }

    /// Tells a rank of a death.
    pub fn notice(&mut self, at: usize) {
        let (to, dead) = self.notices.swap_remove(at);
        self.note_complete(to, dead);
        if let Some(timeline) = &mut self.timeline {
            timeline.tell(to, format!("hears of the end of {dead}"));
        }
        let how = match self.net.has_finalized(dead) {
            true => Death::Finalized,
            false => Death::Signaled(9),
        };
        for context in 0..self.contexts() {
            if let Some(peer) = self.peer_if(context, to, dead) {
                self.lane(to, context).peer_ended(peer, how);
            }
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
