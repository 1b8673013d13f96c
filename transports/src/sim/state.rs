//! State of the simulated network: mailboxes, links, clock, exports, deaths.
//!
//! ```text
//! post -> link (credit, last due) -> mailbox (heap by due time) -> poll -> release
//! ```
//!
//! # Invariants
//! 1. A link is one (sender, receiver, channel). The due times on a link never
//!    decrease, and equal ones are ordered by sequence number: messages on a
//!    link stay in order.
//! 2. `Link::in_flight` counts its messages that are posted and not released;
//!    it never exceeds the capacity.
//! 3. Posted = delivered + dropped + waiting in mailboxes.
//! 4. Mailboxes that are closed, or whose rank is dead, are empty.
//!    So are the links to them of what they hold.
//! 5. Each link and each endpoint draws delays from a random stream of its
//!    own, whatever the others do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Condvar};

use super::fault::{Did, Fault, Held, SimEvent, Wrong};
use super::machine::Ways;
use super::rng::Rng;
use super::{InFlight, SimOptions, Stats};
use crate::contract::{AmHead, PostError, RegionKey, TransportError, TransportErrorKind};

/// A released payload is overwritten with this, so that a late read shows.
const RELEASED: u8 = 0xDD;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    /// The endpoint does not exist yet; messages wait for it.
    Awaited,
    Open,
    Closed,
}

struct Mailbox {
    rank: u32,
    door: Door,
    /// (due, sequence number, index in `messages`), earliest first.
    waiting: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

struct Link {
    from: u32,
    mailbox: u32,
    channel: u64,
    in_flight: usize,
    last_due_ns: u64,
    rng: Rng,
    /// Messages that wait to be let through, in order.
    held: VecDeque<u32>,
}

/// A one-sided operation that waits to be let through.
struct Waiting {
    rank: u32,
    channel: u64,
    number: u64,
    ready: bool,
}

/// A message on its way, or in a receiver's hand.
#[derive(Default)]
pub(super) struct Message {
    pub(super) from: u32,
    pub(super) head: AmHead,
    pub(super) bytes: usize,
    /// At least `bytes` long.
    pub(super) payload: Vec<u8>,
    pub(super) link: u32,
    /// A fault: its credit does not return.
    pub(super) keeps_credit: bool,
}

pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) now_ns: u64,
    /// Those of the machine, if there is one.
    ways: Option<Ways>,
    sequence: u64,
    mailboxes: Vec<Mailbox>,
    mailbox_of: BTreeMap<(u64, u32), u32>,
    links: Vec<Link>,
    messages: Vec<Message>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Times at which something becomes due. One that has passed, or whose
    /// message was dropped, does no harm.
    events: BinaryHeap<Reverse<u64>>,
    exports: BTreeMap<(u32, u64, u64), u32>,
    dead: Vec<bool>,
    /// Of these, those that left in order.
    finalized: Vec<bool>,
    pub(super) deaths: u64,
    pub(super) steps: Vec<u64>,
    kill_at: Vec<u64>,
    corrupt: Vec<(u32, u32)>,
    corrupt_rng: Rng,
    faults: Vec<Fault>,
    operations: Vec<Waiting>,
    pub(super) log: Option<Vec<SimEvent>>,
    pub(super) stats: Stats,
    pub(super) in_flight: InFlight,
    pub(super) trace_hash: u64,
    pub(super) generation: u64,
    pub(super) sleepers: u32,
    wake: Arc<Condvar>,
    pub(super) schedule: Option<Schedule>,
}

/// Polls for each rank that find nothing until all are taken to have nothing to do: a rank polls each
/// of its channels a few times in a row. Not tuned.
const QUIET_POLLS: u64 = 24;

/// Which of what is held goes on, step by step.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Where it is not the first: (step, which).
    choices: Vec<(u32, u8)>,
    /// What there was to choose from at each step so far.
    pub(super) widths: Vec<u8>,
    /// Polls that found nothing since something has happened, and what had happened then.
    quiet: u64,
    seen: (u64, u64, usize),
}

impl Schedule {
    pub(super) fn new(choices: &[(u32, u8)]) -> Self {
        Self {
            choices: choices.to_vec(),
            ..Self::default()
        }
    }
}

impl State {
    pub(super) fn new(options: SimOptions, wake: Arc<Condvar>) -> Self {
        let ranks = options.ranks as usize;
        let corrupt_rng = Rng::of(&[options.seed, 1]);
        let ways = options.machine.as_deref().cloned().map(Ways::new);
        Self {
            options,
            ways,
            now_ns: 0,
            sequence: 0,
            mailboxes: Vec::new(),
            mailbox_of: BTreeMap::new(),
            links: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            events: BinaryHeap::new(),
            exports: BTreeMap::new(),
            dead: vec![false; ranks],
            finalized: vec![false; ranks],
            deaths: 0,
            steps: vec![0; ranks],
            kill_at: vec![u64::MAX; ranks],
            corrupt: Vec::new(),
            corrupt_rng,
            faults: Vec::new(),
            operations: Vec::new(),
            log: None,
            stats: Stats::default(),
            in_flight: InFlight::default(),
            trace_hash: 0,
            generation: 0,
            sleepers: 0,
            wake,
            schedule: None,
        }
    }

    /// Something happened that a sleeper may wait for.
    pub(super) fn changed(&mut self) {
        self.generation += 1;
        if self.sleepers > 0 {
            self.wake.notify_all();
        }
    }

    // Clock.

    pub(super) fn advance(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
        self.changed();
    }

    pub(super) fn advance_to_next_event(&mut self) -> bool {
        if self.options.held {
            return match self.schedule.take() {
                Some(mut schedule) => {
                    let moved = self.go_on_by(&mut schedule);
                    self.schedule = Some(schedule);
                    moved
                }
                None => self.let_first_through(),
            };
        }
        while let Some(Reverse(due_ns)) = self.events.pop() {
            if due_ns > self.now_ns {
                self.now_ns = due_ns;
                self.changed();
                return true;
            }
        }
        false
    }

    /// Notes that something becomes due at that time.
    pub(super) fn schedule(&mut self, due_ns: u64) {
        if due_ns > self.now_ns {
            self.events.push(Reverse(due_ns));
        }
    }

    /// When `bytes` bytes have crossed from a rank to another that leave at some time.
    pub(super) fn arrival_ns(
        &mut self,
        rng: &mut Rng,
        start_ns: u64,
        (from, to): (u32, u32),
        bytes: usize,
    ) -> u64 {
        if let Some(ways) = &mut self.ways {
            // An answer occupies ways from now on, not from when its question comes: else what
            // leaves before would wait behind it.
            let arrival_ns = ways.arrival_ns(self.now_ns, from, to, bytes);
            return arrival_ns + (start_ns - self.now_ns);
        }
        let (least, most) = (
            *self.options.latency_ns.start(),
            *self.options.latency_ns.end(),
        );
        let spread = most.saturating_sub(least).saturating_add(1);
        let carried = bytes as f64 * self.options.ns_per_byte;
        start_ns
            .saturating_add(least)
            .saturating_add(rng.below(spread))
            .saturating_add(carried as u64)
    }

    // Life and death.

    pub(super) fn is_dead(&self, rank: u32) -> bool {
        self.dead[rank as usize]
    }

    pub(super) fn dead_ranks(&self) -> Vec<u32> {
        (0..self.options.ranks)
            .filter(|r| self.is_dead(*r))
            .collect()
    }

    pub(super) fn kill_at_step(&mut self, rank: u32, step: u64) {
        self.kill_at[rank as usize] = step;
    }

    /// Counts a call of a rank; false if it is dead or dies of it.
    pub(super) fn step(&mut self, rank: u32) -> bool {
        let r = rank as usize;
        if self.dead[r] {
            return false;
        }
        self.steps[r] += 1;
        if self.steps[r] >= self.kill_at[r] {
            self.kill(rank);
            return false;
        }
        true
    }

    pub(super) fn finalize(&mut self, rank: u32) {
        if !self.is_dead(rank) {
            self.finalized[rank as usize] = true;
            self.kill(rank);
        }
    }

    pub(super) fn has_finalized(&self, rank: u32) -> bool {
        self.finalized[rank as usize]
    }

    pub(super) fn kill(&mut self, rank: u32) {
        if std::mem::replace(&mut self.dead[rank as usize], true) {
            return;
        }
        self.deaths += 1;
        for at in 0..self.mailboxes.len() {
            if self.mailboxes[at].rank == rank {
                self.stats.dropped_dead += self.empty(at as u32);
            }
        }
        self.changed();
    }

    // Mailboxes and links.

    fn mailbox(&mut self, channel: u64, rank: u32) -> u32 {
        *self.mailbox_of.entry((channel, rank)).or_insert_with(|| {
            self.mailboxes.push(Mailbox {
                rank,
                door: Door::Awaited,
                waiting: BinaryHeap::new(),
            });
            self.mailboxes.len() as u32 - 1
        })
    }

    /// The mailbox of a new endpoint; `None` if it has one already.
    pub(super) fn open(&mut self, channel: u64, rank: u32) -> Option<u32> {
        let at = self.mailbox(channel, rank);
        let door = &mut self.mailboxes[at as usize].door;
        (std::mem::replace(door, Door::Open) != Door::Open).then_some(at)
    }

    pub(super) fn close(&mut self, mailbox: u32) {
        self.mailboxes[mailbox as usize].door = Door::Closed;
        self.stats.dropped_closed += self.empty(mailbox);
        self.changed();
    }

    /// Whether a rank has dropped its end of a channel, and nothing that it
    /// posted to `mailbox` before is on its way.
    pub(super) fn closed(&self, channel: u64, rank: u32, mailbox: u32) -> bool {
        let Some(at) = self.mailbox_of.get(&(channel, rank)) else {
            return false;
        };
        self.mailboxes[*at as usize].door == Door::Closed
            && !self.mailboxes[mailbox as usize]
                .waiting
                .iter()
                .any(|Reverse((_, _, m))| self.messages[*m as usize].from == rank)
            && !self
                .links
                .iter()
                .any(|l| l.mailbox == mailbox && l.from == rank && !l.held.is_empty())
    }

    /// Drops all messages of a mailbox and returns how many there were.
    fn empty(&mut self, mailbox: u32) -> u64 {
        let waiting = std::mem::take(&mut self.mailboxes[mailbox as usize].waiting);
        let mut dropped: Vec<u32> = waiting.iter().map(|Reverse((_, _, at))| *at).collect();
        for link in &mut self.links {
            if link.mailbox == mailbox {
                dropped.extend(std::mem::take(&mut link.held));
            }
        }
        for at in &dropped {
            let message = self.take_message(*at);
            self.note_message(Did::Drop, &message);
            self.give_back(message);
        }
        dropped.len() as u64
    }

    pub(super) fn link(&mut self, from: u32, to: u32, channel: u64) -> u32 {
        let mailbox = self.mailbox(channel, to);
        self.links.push(Link {
            from,
            mailbox,
            channel,
            in_flight: 0,
            last_due_ns: 0,
            rng: Rng::of(&[self.options.seed, 2, from.into(), to.into(), channel]),
            held: VecDeque::new(),
        });
        self.links.len() as u32 - 1
    }

    // Messages.

    /// Room for a message on that link. Nothing is taken until
    /// [`Self::finish_post`]: a link has one sender, so its credit stays.
    pub(super) fn begin_post(&mut self, link: u32, bytes: usize) -> Result<Vec<u8>, PostError> {
        let Link {
            from, in_flight, ..
        } = self.links[link as usize];
        if !self.step(from) {
            return Err(PostError::Failed(dead(from)));
        }
        if in_flight >= self.options.capacity_messages.max(1) {
            self.stats.refused += 1;
            return Err(PostError::Full);
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        if payload.len() < bytes {
            payload.resize(bytes, RELEASED);
        }
        Ok(payload)
    }

    pub(super) fn finish_post(&mut self, link: u32, head: AmHead, bytes: usize, payload: Vec<u8>) {
        let Link { from, mailbox, .. } = self.links[link as usize];
        let rank = self.mailboxes[mailbox as usize].rank;
        let mut message = Message {
            from,
            head,
            bytes,
            payload,
            link,
            keeps_credit: false,
        };
        self.note_message(Did::Post, &message);
        let fault = self.fault(&message, rank);
        match fault {
            Some(Wrong::Lose) => {
                self.count_post(link, bytes);
                self.stats.dropped_dead += 1;
                self.in_flight.messages -= 1;
                self.note_message(Did::Drop, &message);
                return self.give_back(message);
            }
            Some(Wrong::KeepCredit) => message.keeps_credit = true,
            Some(Wrong::Repeat) => {
                let again = Message {
                    payload: message.payload.clone(),
                    ..message
                };
                self.send(again, rank);
            }
            _ => {}
        }
        self.send(message, rank);
        if fault == Some(Wrong::Overtake) {
            self.overtake(link);
        }
    }

    fn count_post(&mut self, link: u32, bytes: usize) {
        self.stats.posted += 1;
        self.stats.bytes += bytes as u64;
        self.links[link as usize].in_flight += 1;
        self.in_flight.messages += 1;
    }

    /// Puts a message on its way.
    fn send(&mut self, mut message: Message, rank: u32) {
        let (link, bytes) = (message.link, message.bytes);
        self.count_post(link, bytes);
        let mailbox = self.links[link as usize].mailbox;
        let closed = self.mailboxes[mailbox as usize].door == Door::Closed;
        if self.is_dead(rank) || closed {
            if self.is_dead(rank) {
                self.stats.dropped_dead += 1;
            } else {
                self.stats.dropped_closed += 1;
            }
            self.in_flight.messages -= 1;
            self.note_message(Did::Drop, &message);
            return self.give_back(message);
        }
        self.damage(rank, &mut message);
        let at = match self.free.pop() {
            Some(at) => {
                self.messages[at as usize] = message;
                at
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        };
        if self.options.held {
            self.links[link as usize].held.push_back(at);
            return self.changed();
        }
        let mut rng = self.links[link as usize].rng.clone();
        let ends = (self.links[link as usize].from, rank);
        let arrival_ns = self.arrival_ns(&mut rng, self.now_ns, ends, bytes);
        let of = &mut self.links[link as usize];
        of.rng = rng;
        of.last_due_ns = of.last_due_ns.max(arrival_ns);
        let due_ns = of.last_due_ns;
        self.schedule(due_ns);
        self.enter(mailbox, due_ns, at);
    }

    fn enter(&mut self, mailbox: u32, due_ns: u64, at: u32) {
        self.sequence += 1;
        let entry = Reverse((due_ns, self.sequence, at));
        self.mailboxes[mailbox as usize].waiting.push(entry);
        self.changed();
    }

    // Messages and operations that are let through one by one.

    pub(super) fn held(&self) -> Vec<Held> {
        let messages = self.links.iter().filter(|l| !l.held.is_empty());
        let messages = messages.map(|l| Held::Message {
            from: l.from,
            to: self.mailboxes[l.mailbox as usize].rank,
            channel: l.channel,
        });
        let operations = self.operations.iter().filter(|o| !o.ready);
        let operations = operations.map(|o| Held::Operation {
            rank: o.rank,
            channel: o.channel,
            number: o.number,
        });
        messages.chain(operations).collect()
    }

    pub(super) fn let_through(&mut self, held: Held) -> bool {
        match held {
            Held::Message { from, to, channel } => {
                let Some(&mailbox) = self.mailbox_of.get(&(channel, to)) else {
                    return false;
                };
                let of = |l: &&mut Link| l.from == from && l.mailbox == mailbox;
                let Some(at) = self
                    .links
                    .iter_mut()
                    .find(of)
                    .and_then(|l| l.held.pop_front())
                else {
                    return false;
                };
                self.enter(mailbox, self.now_ns, at);
            }
            Held::Operation {
                rank,
                channel,
                number,
            } => {
                let of =
                    |o: &&mut Waiting| (o.rank, o.channel, o.number) == (rank, channel, number);
                let Some(operation) = self.operations.iter_mut().find(of) else {
                    return false;
                };
                if std::mem::replace(&mut operation.ready, true) {
                    return false;
                }
                self.changed();
            }
        }
        true
    }

    /// A poll has found nothing: after a number of those, lets through what the schedule says.
    fn go_on_by(&mut self, schedule: &mut Schedule) -> bool {
        let operations = self.operations.len();
        let seen = (self.generation, self.stats.posted, operations);
        if std::mem::replace(&mut schedule.seen, seen) != seen {
            schedule.quiet = 0;
        }
        schedule.quiet += 1;
        if schedule.quiet < QUIET_POLLS * u64::from(self.options.ranks) {
            return false;
        }
        schedule.quiet = 0;
        let held = self.held();
        if held.is_empty() {
            return false;
        }
        let step = schedule.widths.len() as u32;
        schedule.widths.push(held.len().min(u8::MAX.into()) as u8);
        let choice = schedule.choices.iter().find(|(at, _)| *at == step);
        let choice = choice.map_or(0, |(_, choice)| usize::from(*choice));
        self.let_through(held[choice.min(held.len() - 1)])
    }

    fn let_first_through(&mut self) -> bool {
        match self.held().first() {
            Some(held) => self.let_through(*held),
            None => false,
        }
    }

    pub(super) fn hold_operation(&mut self, rank: u32, channel: u64, number: u64) {
        self.operations.push(Waiting {
            rank,
            channel,
            number,
            ready: false,
        });
    }

    /// Number of an operation of this endpoint that was let through.
    pub(super) fn take_ready(&mut self, rank: u32, channel: u64) -> Option<u64> {
        let of = |o: &Waiting| o.ready && (o.rank, o.channel) == (rank, channel);
        let at = self.operations.iter().position(of)?;
        Some(self.operations.remove(at).number)
    }

    pub(super) fn forget_operations(&mut self, rank: u32, channel: u64) {
        self.operations
            .retain(|o| (o.rank, o.channel) != (rank, channel));
    }

    /// Messages that a poll of this endpoint would find now.
    pub(super) fn due(&self, channel: u64, rank: u32) -> usize {
        let Some(at) = self.mailbox_of.get(&(channel, rank)) else {
            return 0;
        };
        let messages = self.mailboxes[*at as usize].waiting.iter();
        let due = messages.filter(|Reverse((due_ns, ..))| *due_ns <= self.now_ns);
        let ready = |o: &&Waiting| o.ready && (o.rank, o.channel) == (rank, channel);
        due.count() + self.operations.iter().filter(ready).count()
    }

    /// Calls `f` with sender, receiver, channel, head and payload of every
    /// message that was posted and not polled.
    pub(super) fn each_message(&self, mut f: impl FnMut(u32, u32, u64, AmHead, &[u8])) {
        let mut show = |at: u32| {
            let m = &self.messages[at as usize];
            let link = &self.links[m.link as usize];
            let to = self.mailboxes[link.mailbox as usize].rank;
            f(m.from, to, link.channel, m.head, &m.payload[..m.bytes]);
        };
        for mailbox in &self.mailboxes {
            mailbox
                .waiting
                .iter()
                .for_each(|Reverse((_, _, at))| show(*at));
        }
        for link in &self.links {
            link.held.iter().for_each(|at| show(*at));
        }
    }

    /// Checks invariant 2 where no message is in a receiver's hand.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut count = vec![0; self.links.len()];
        for mailbox in &self.mailboxes {
            for Reverse((_, _, at)) in &mailbox.waiting {
                count[self.messages[*at as usize].link as usize] += 1;
            }
        }
        for (link, count) in self.links.iter().zip(count) {
            let waiting = count + link.held.len();
            if waiting != link.in_flight {
                return Err(format!(
                    "from rank {} to rank {} on channel {}, {} credits are taken for {waiting} messages",
                    link.from,
                    self.mailboxes[link.mailbox as usize].rank,
                    link.channel,
                    link.in_flight
                ));
            }
        }
        Ok(())
    }

    // Faults and the log.

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// The fault that waits for this message.
    fn fault(&mut self, message: &Message, to: u32) -> Option<Wrong> {
        if self.faults.is_empty() {
            return None;
        }
        let has_one_before = self.links[message.link as usize].in_flight > 0;
        let at = self.faults.iter().position(|f| {
            (f.from, f.to) == (message.from, to)
                && f.kind.is_none_or(|k| k == message.head.kind)
                && f.what != Wrong::ShortCopy
                && (f.what != Wrong::Overtake || has_one_before)
        })?;
        Some(self.faults.remove(at).what)
    }

    /// Whether this operation is to miss a byte.
    pub(super) fn cuts_copy(&mut self, rank: u32, owner: u32) -> bool {
        let of = |f: &Fault| f.what == Wrong::ShortCopy && (f.from, f.to) == (rank, owner);
        let at = self.faults.iter().position(of);
        at.map(|at| self.faults.remove(at)).is_some()
    }

    /// Exchanges the last two messages of a link.
    fn overtake(&mut self, link: u32) {
        let held: Vec<u32> = self.links[link as usize].held.iter().copied().collect();
        let mailbox = &self.mailboxes[self.links[link as usize].mailbox as usize];
        let mut waiting: Vec<(u64, u32)> = mailbox
            .waiting
            .iter()
            .filter(|Reverse((_, _, at))| self.messages[*at as usize].link == link)
            .map(|Reverse((_, sequence, at))| (*sequence, *at))
            .collect();
        waiting.sort_unstable();
        let order: Vec<u32> = waiting.into_iter().map(|(_, at)| at).chain(held).collect();
        if let [.., a, b] = order[..] {
            self.messages.swap(a as usize, b as usize);
        }
    }

    fn note_message(&mut self, what: Did, message: &Message) {
        if self.log.is_none() {
            return;
        }
        let link = &self.links[message.link as usize];
        let event = SimEvent {
            time_ns: self.now_ns,
            what,
            from: message.from,
            to: self.mailboxes[link.mailbox as usize].rank,
            channel: link.channel,
            kind: message.head.kind,
            bytes: message.bytes,
        };
        self.note(event);
    }

    pub(super) fn note(&mut self, event: SimEvent) {
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    pub(super) fn corrupt_next(&mut self, from: u32, to: u32) {
        self.corrupt.push((from, to));
    }

    /// Changes one byte if [`Self::corrupt_next`] asked for it.
    fn damage(&mut self, to: u32, message: &mut Message) {
        let pair = (message.from, to);
        let Some(asked) = self.corrupt.iter().position(|p| *p == pair) else {
            return;
        };
        self.corrupt.remove(asked);
        self.stats.corrupted += 1;
        let flip = 1 + self.corrupt_rng.below(255) as u8;
        let at = self.corrupt_rng.below(11 + message.bytes as u64) as usize;
        let head = &mut message.head;
        match at {
            0 => head.kind ^= flip,
            1..3 => head.aux ^= u16::from(flip) << (8 * (at - 1)),
            3..11 => head.arg ^= u64::from(flip) << (8 * (at - 3)),
            _ => message.payload[at - 11] ^= flip,
        }
    }

    /// The first message that is due in a mailbox.
    pub(super) fn take_due(&mut self, mailbox: u32) -> Option<Message> {
        let waiting = &mut self.mailboxes[mailbox as usize].waiting;
        let Reverse((due_ns, _, at)) = *waiting.peek()?;
        if due_ns > self.now_ns {
            return None;
        }
        waiting.pop();
        let message = self.take_message(at);
        self.note_message(Did::Deliver, &message);
        self.stats.delivered += 1;
        let Link { from, channel, .. } = self.links[message.link as usize];
        let to = self.mailboxes[mailbox as usize].rank;
        self.trace_hash = Rng::of(&[
            self.trace_hash,
            self.now_ns,
            u64::from(from) << 32 | u64::from(to),
            channel,
            u64::from(message.head.kind) << 48 | message.bytes as u64,
        ])
        .next();
        Some(message)
    }

    fn take_message(&mut self, at: u32) -> Message {
        self.free.push(at);
        self.in_flight.messages -= 1;
        std::mem::take(&mut self.messages[at as usize])
    }

    /// Returns the credit and the buffer of a message.
    pub(super) fn give_back(&mut self, mut message: Message) {
        if !message.keeps_credit {
            self.links[message.link as usize].in_flight -= 1;
        }
        message.payload[..message.bytes].fill(RELEASED);
        self.spare.push(message.payload);
        self.changed();
    }

    /// Notes the end of a one-sided operation in the trace.
    pub(super) fn trace_operation(&mut self, rank: u32, channel: u64, number: u64) {
        let of = [
            self.trace_hash,
            self.now_ns,
            u64::from(rank),
            channel,
            number,
        ];
        self.trace_hash = Rng::of(&of).next();
    }

    // Exports.

    pub(super) fn register(&mut self, key: &RegionKey) {
        *self
            .exports
            .entry((key.owner, key.base, key.bytes))
            .or_insert(0) += 1;
    }

    pub(super) fn unregister(&mut self, key: &RegionKey) -> bool {
        let entry = (key.owner, key.base, key.bytes);
        let Some(count) = self.exports.get_mut(&entry) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.exports.remove(&entry);
        }
        true
    }

    pub(super) fn forget_exports(&mut self, rank: u32) {
        self.exports.retain(|(owner, _, _), _| *owner != rank);
    }

    pub(super) fn exports(&self, rank: u32) -> usize {
        self.exports
            .range((rank, 0, 0)..=(rank, u64::MAX, u64::MAX))
            .map(|(_, count)| *count as usize)
            .sum()
    }

    /// Whether the region of a key may be touched now.
    pub(super) fn reachable(&self, key: &RegionKey) -> Result<(), TransportError> {
        if self.is_dead(key.owner) {
            return Err(dead(key.owner));
        }
        if self.exports.contains_key(&(key.owner, key.base, key.bytes)) {
            return Ok(());
        }
        Err(TransportError::new(
            TransportErrorKind::Malformed,
            format!(
                "rank {} exports no region of {} bytes at {:#x}",
                key.owner, key.bytes, key.base
            ),
        ))
    }
}

#[cold]
pub(super) fn dead(rank: u32) -> TransportError {
    TransportError::new(
        TransportErrorKind::PeerDead,
        format!("rank {rank} of the simulation is dead"),
    )
}
