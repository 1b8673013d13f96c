//! Partitioned transfers in a run.
//!
//! The k-th start of a receiver gets the bytes of the k-th start of its sender,
//! which is the one that was set up as the receiver was, counted by ranks and
//! tag. A partition that is said to have arrived holds its bytes.

use super::act::Act;
use super::memory::contents;
use super::world::{Check, World};
use osier::internals::parts_settled;
use osier::partitioned::{PartitionedRecv, PartitionedSend};
use osier_engine::error::{Error, ErrorKind};
use osier_engine::matching::{INTERNAL_TAG, Pattern, TagPattern};
use osier_engine::progress::lane::PARTITIONED_TAG;
use serde::{Deserialize, Serialize};

/// A partitioned transfer that will be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parted {
    #[serde(default)]
    pub context: usize,
    pub from: u32,
    pub to: u32,
    pub tag: u32,
    /// Of the whole; a multiple of both numbers of partitions. The same in all
    /// transfers between two ranks with one tag.
    pub bytes: usize,
    /// Partitions of the sender, and of the receiver.
    pub sends: usize,
    pub receives: usize,
}

pub(super) struct Sender {
    pub context: usize,
    pub request: PartitionedSend<u8>,
    pub starts: usize,
    /// Starts that are over without an error.
    done: usize,
    /// Its setup was on its way at once. If not, it may die with it: nobody
    /// waits for a setup.
    set_up: bool,
    /// Partitions of this start that are ready.
    ready: Vec<bool>,
}

pub(super) struct Receiver {
    pub context: usize,
    pub request: PartitionedRecv<u8>,
    pub starts: usize,
    active: bool,
}

/// Numbers of contents that no message has.
const NUMBERS: usize = 1 << 40;

impl World {
    fn part_contents(&self, q: usize, start: usize) -> Vec<u8> {
        contents(
            NUMBERS + q * 1000 + start,
            (q * 31 + start) as u64,
            self.parted[q].bytes,
        )
    }

    /// Starts a sender, setting it up before its first start.
    pub fn part_send(&mut self, q: usize) -> Check {
        let Some(p) = self.parted.get(q).cloned() else {
            return Ok(());
        };
        if !self.alive[p.from as usize] {
            return Ok(());
        }
        let peer = self.peer(p.context, p.from, p.to) as usize;
        if !self.seat(p.from).senders.contains_key(&q) {
            self.part_tags += p.sends;
        }
        let seat = self.seat_mut(p.from);
        if !seat.senders.contains_key(&q) {
            let buffer = vec![0u8; p.bytes];
            let before = seat.lane(p.context).leftovers().operations;
            let request = seat.comms[p.context].psend_init(buffer, p.sends, peer, p.tag);
            self.note_deaths();
            if !self.alive[p.from as usize] {
                return Ok(());
            }
            let request = match request {
                Ok(request) => request,
                Err(e) => return self.part_lost(p.from, p.to, &e),
            };
            let sender = Sender {
                context: p.context,
                request,
                starts: 0,
                done: 0,
                set_up: self.lane(p.from, p.context).leftovers().operations == before,
                ready: vec![false; p.sends],
            };
            self.seat_mut(p.from).senders.insert(q, sender);
            self.pairs.entry(key_of(&p)).or_default().0.push(q);
        }
        let Some(sender) = self.seat_mut(p.from).senders.get_mut(&q) else {
            return Ok(());
        };
        if sender.request.is_active() {
            return Ok(());
        }
        sender
            .request
            .start()
            .map_err(|e| format!("a partitioned send cannot start: {e:?}"))?;
        sender.starts += 1;
        sender.ready.fill(false);
        self.tell(p.from, format!("start p{q} (to {}, {} B)", p.to, p.bytes));
        Ok(())
    }

    /// Writes a partition and says that it is ready.
    pub fn part_ready(&mut self, q: usize, at: usize) -> Check {
        let Some(p) = self.parted.get(q).cloned() else {
            return Ok(());
        };
        if !self.alive[p.from as usize] || at >= p.sends {
            return Ok(());
        }
        let Some(start) = self.seat(p.from).senders.get(&q).map(|s| s.starts) else {
            return Ok(());
        };
        let bytes = self.part_contents(q, start);
        let Some(sender) = self.seat_mut(p.from).senders.get_mut(&q) else {
            return Ok(());
        };
        if !sender.request.is_active() || std::mem::replace(&mut sender.ready[at], true) {
            return Ok(());
        }
        let each = p.bytes / p.sends;
        sender
            .request
            .write(at, |part| {
                part.copy_from_slice(&bytes[at * each..(at + 1) * each]);
            })
            .map_err(|e| format!("a partition cannot be written: {e:?}"))?;
        let ready = sender.request.pready(at);
        let twice = sender.request.pready(at).map_err(|e| e.kind());
        self.tell(p.from, format!("p{q}[{at}] is ready"));
        self.note_deaths();
        if !self.alive[p.from as usize] {
            return Ok(());
        }
        if twice != Err(ErrorKind::Argument) {
            return Err(format!("a partition that is ready twice gives {twice:?}"));
        }
        self.report.partitions += 1;
        match ready {
            Ok(()) => Ok(()),
            Err(e) => self.part_lost(p.from, p.to, &e),
        }
    }

    /// Starts a receiver, setting it up before its first start.
    pub fn part_receive(&mut self, q: usize) -> Check {
        let Some(p) = self.parted.get(q).cloned() else {
            return Ok(());
        };
        if !self.alive[p.to as usize] {
            return Ok(());
        }
        let peer = self.peer(p.context, p.to, p.from) as usize;
        let seat = self.seat_mut(p.to);
        if !seat.receivers.contains_key(&q) {
            let buffer = vec![0u8; p.bytes];
            let request = seat.comms[p.context]
                .precv_init(buffer, p.receives, peer, p.tag)
                .map_err(|e| format!("a partitioned receive: {e:?}"))?;
            let receiver = Receiver {
                context: p.context,
                request,
                starts: 0,
                active: false,
            };
            seat.receivers.insert(q, receiver);
            self.pairs.entry(key_of(&p)).or_default().1.push(q);
        }
        let Some(receiver) = self.seat_mut(p.to).receivers.get_mut(&q) else {
            return Ok(());
        };
        if receiver.active {
            return Ok(());
        }
        receiver.starts += 1;
        let started = receiver.request.start();
        receiver.active = started.is_ok();
        self.tell(p.to, format!("start p{q} (from {})", p.from));
        self.note_deaths();
        match started {
            Err(e) if self.alive[p.to as usize] => self.part_missed(q, &e),
            _ => Ok(()),
        }
    }

    /// Asks whether a partition has come, and reads it.
    pub fn part_look(&mut self, q: usize, at: usize) -> Check {
        let Some(p) = self.parted.get(q).cloned() else {
            return Ok(());
        };
        if !self.alive[p.to as usize] || at >= p.receives {
            return Ok(());
        }
        let Some(receiver) = self.seat(p.to).receivers.get(&q) else {
            return Ok(());
        };
        if !receiver.active {
            return Ok(());
        }
        let start = receiver.starts;
        let arrived = receiver.request.parrived(at);
        let part = match &arrived {
            Ok(true) => receiver.request.read(at).ok().map(<[u8]>::to_vec),
            _ => None,
        };
        self.note_deaths();
        if !self.alive[p.to as usize] {
            return Ok(());
        }
        match (arrived, part) {
            (Ok(false), _) => Ok(()),
            (Ok(true), Some(part)) => {
                let each = p.bytes / p.receives;
                self.part_is(q, start, at * each, &part)
            }
            (Ok(true), None) if !self.lenient => Err(format!("p{q}[{at}] came, cannot be read")),
            (Ok(true), None) => Ok(()),
            (Err(e), _) => self.part_missed(q, &e),
        }
    }

    /// Compares bytes of a receiver with those that its sender wrote.
    fn part_is(&mut self, q: usize, start: usize, at: usize, part: &[u8]) -> Check {
        if self.lenient {
            return Ok(());
        }
        let (sends, receives) = &self.pairs[&key_of(&self.parted[q])];
        let number = receives.iter().position(|r| *r == q).unwrap_or(usize::MAX);
        let Some(&sender) = sends.get(number) else {
            // One that died while it was set up is not among them.
            return match self.alive[self.parted[q].from as usize] {
                true => Err(format!("p{q} gets what nobody has set up")),
                false => Ok(()),
            };
        };
        if self.part_contents(sender, start)[at..at + part.len()] != *part {
            return Err(format!(
                "start {start} of p{q} has wrong bytes from {at} on, of p{sender}"
            ));
        }
        Ok(())
    }

    /// An end hears of an error: the other end must be dead.
    fn part_lost(&mut self, own: u32, other: u32, e: &Error) -> Check {
        self.report.lost += 1;
        if self.lenient || self.is_end_of(other, e) {
            return Ok(());
        }
        Err(format!(
            "rank {own}: a partitioned transfer with rank {other} ended with an error: {e:?}"
        ))
    }

    /// Takes the results of a rank's partitioned transfers that are over.
    pub fn harvest_parts(&mut self, rank: u32) -> Check<usize> {
        let mut ended = 0;
        let seat = self.seat(rank);
        let sends: Vec<usize> = seat.senders.keys().copied().collect();
        let receives: Vec<usize> = seat.receivers.keys().copied().collect();
        for q in sends {
            let Some(sender) = self.seat(rank).senders.get(&q) else {
                continue;
            };
            if !parts_settled(&sender.request) {
                continue;
            }
            ended += 1;
            match sender.request.wait() {
                Ok(_) => self.part_sent(rank, q),
                Err(e) => {
                    let to = self.parted[q].to;
                    self.part_lost(rank, to, &e)?;
                }
            }
        }
        for q in receives {
            let seat = self.seat(rank);
            let Some(receiver) = seat.receivers.get(&q).filter(|r| r.active) else {
                continue;
            };
            let over = parts_settled(&receiver.request);
            let start = receiver.starts;
            self.note_deaths();
            if !self.alive[rank as usize] {
                return Ok(ended);
            }
            if over {
                ended += 1;
                self.part_received(q, start)?;
            }
        }
        Ok(ended)
    }

    fn part_sent(&mut self, rank: u32, q: usize) {
        if let Some(sender) = self.seat_mut(rank).senders.get_mut(&q) {
            sender.done = sender.starts;
        }
    }

    /// A receiver hears of an error: nothing that its sender had sent whole may
    /// be lost with it.
    fn part_missed(&mut self, q: usize, e: &Error) -> Check {
        let p = self.parted[q].clone();
        self.part_lost(p.to, p.from, e)?;
        if self.lenient || !self.complete.contains(&(p.context, p.to, p.from)) {
            return Ok(());
        }
        let start = self.seat(p.to).receivers.get(&q).map_or(0, |r| r.starts);
        let (sends, receives) = &self.pairs[&key_of(&p)];
        let number = receives.iter().position(|r| *r == q);
        let sender = number.and_then(|n| sends.get(n));
        let sender = sender.and_then(|s| self.seat(p.from).senders.get(s));
        match sender {
            Some(sender) if sender.set_up && start <= sender.done => Err(format!(
                "start {start} of p{q} was lost, though sent before a death: {e:?}"
            )),
            _ => Ok(()),
        }
    }

    fn part_received(&mut self, q: usize, start: usize) -> Check {
        let p = self.parted[q].clone();
        let Some(receiver) = self.seat_mut(p.to).receivers.get_mut(&q) else {
            return Ok(());
        };
        receiver.active = false;
        let result = receiver.request.wait();
        let bytes = receiver.request.buffer().map(|b| b.to_vec());
        self.tell(p.to, format!("p{q} is over: {:?}", result.is_ok()));
        match result {
            Ok(_) => {
                let bytes = bytes.map_err(|e| format!("an inactive receive: {e:?}"))?;
                self.part_is(q, start, 0, &bytes)
            }
            Err(e) => self.part_missed(q, &e),
        }
    }

    /// How often the ends of a transfer were started.
    pub fn part_starts(&self, q: usize) -> (usize, usize) {
        let p = &self.parted[q];
        let sender = self.seat(p.from).senders.get(&q);
        let receiver = self.seat(p.to).receivers.get(&q);
        (
            sender.map_or(0, |s| s.starts),
            receiver.map_or(0, |r| r.starts),
        )
    }

    /// Whether a rank's end of a transfer may start.
    pub fn part_is_idle(&self, q: usize, rank: u32) -> bool {
        let seat = self.seat(rank);
        let sends = seat.senders.get(&q).is_some_and(|s| s.request.is_active());
        !sends && seat.receivers.get(&q).is_none_or(|r| !r.active)
    }

    /// Brings both ends of each transfer to the same number of starts, and all
    /// partitions on their way. True if there was anything to do.
    pub fn balance_parts(&mut self) -> Check<bool> {
        let mut acts = Vec::new();
        for (key, (sends, receives)) in &self.pairs {
            let &(_, from, to, _) = key;
            let lives = |rank: u32| self.alive[rank as usize];
            // Set up, or the next that can be.
            let nth = |set_up: &[usize], n: usize| {
                set_up.get(n).copied().or_else(|| {
                    let all = (0..self.parted.len()).filter(|q| key_of(&self.parted[*q]) == *key);
                    all.filter(|q| !set_up.contains(q)).nth(n - set_up.len())
                })
            };
            for n in 0..sends.len().max(receives.len()) {
                let (Some(s), Some(r)) = (nth(sends, n), nth(receives, n)) else {
                    continue;
                };
                let (mut sent, mut sending) = (0, false);
                if lives(from)
                    && let Some(sender) = self.seat(from).senders.get(&s)
                {
                    (sent, sending) = (sender.starts, sender.request.is_active());
                    let missing =
                        (0..sender.ready.len()).filter(|at| sending && !sender.ready[*at]);
                    acts.extend(missing.map(|at| Act::PartReady { q: s, at }));
                }
                if !lives(from) || !lives(to) {
                    continue;
                }
                let (mut received, mut receiving) = (0, false);
                if let Some(receiver) = self.seat(to).receivers.get(&r) {
                    (received, receiving) = (receiver.starts, receiver.active);
                }
                if sent > received && !receiving {
                    acts.push(Act::PartReceive(r));
                } else if received > sent && !sending {
                    acts.push(Act::PartSend(s));
                }
            }
        }
        for act in &acts {
            self.perform(*act)?;
        }
        Ok(!acts.is_empty())
    }

    /// What is active once everything else is over.
    pub fn leave_parts(&self, rank: u32) -> Check {
        let seat = self.seat(rank);
        let sends = seat.senders.iter().filter(|(_, s)| s.request.is_active());
        let receives = seat.receivers.iter().filter(|(_, r)| r.active);
        if let Some(q) = sends.map(|s| s.0).chain(receives.map(|r| r.0)).next() {
            return Err(format!("deadlock: p{q} of rank {rank} never ends"));
        }
        Ok(())
    }

    /// Drops what the dead have sent of partitions that nobody will ask for.
    pub fn drain_parts(&mut self) {
        if self.parted.is_empty() || self.alive.iter().all(|a| *a) {
            return;
        }
        // Of setups.
        let first = INTERNAL_TAG | PARTITIONED_TAG;
        for rank in 0..self.ranks {
            if !self.alive[rank as usize] {
                continue;
            }
            for context in 0..self.contexts() {
                for tag in first..=first + self.part_tags as u32 {
                    let pattern = Pattern {
                        source: None,
                        tag: TagPattern::Exact(tag),
                    };
                    let mut lane = self.lane(rank, context);
                    while let Some(matched) = lane.matched_probe(pattern) {
                        lane.drop_matched(matched);
                    }
                }
            }
        }
        self.note_deaths();
    }
}

/// What transfers have in common that meet in the order of their set-up.
pub(super) type PairKey = (usize, u32, u32, u32);

fn key_of(p: &Parted) -> PairKey {
    (p.context, p.from, p.to, p.tag)
}
