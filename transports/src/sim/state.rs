//! What the simulated network holds: mailboxes, links, clock, exports, deaths.
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
//! 5. Each link and each endpoint draws delays from a random stream of its
//!    own, whatever the others do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Condvar};

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
}

pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) now_ns: u64,
    sequence: u64,
    mailboxes: Vec<Mailbox>,
    mailbox_of: HashMap<(u64, u32), u32>,
    links: Vec<Link>,
    messages: Vec<Message>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Times at which something becomes due. One that has passed, or whose
    /// message was dropped, does no harm.
    events: BinaryHeap<Reverse<u64>>,
    exports: BTreeMap<(u32, u64, u64), u32>,
    dead: Vec<bool>,
    pub(super) deaths: u64,
    pub(super) steps: Vec<u64>,
    kill_at: Vec<u64>,
    corrupt: Vec<(u32, u32)>,
    corrupt_rng: Rng,
    pub(super) stats: Stats,
    pub(super) in_flight: InFlight,
    pub(super) trace_hash: u64,
    pub(super) generation: u64,
    pub(super) sleepers: u32,
    wake: Arc<Condvar>,
}

impl State {
    pub(super) fn new(options: SimOptions, wake: Arc<Condvar>) -> Self {
        let ranks = options.ranks as usize;
        let corrupt_rng = Rng::of(&[options.seed, 1]);
        Self {
            options,
            now_ns: 0,
            sequence: 0,
            mailboxes: Vec::new(),
            mailbox_of: HashMap::new(),
            links: Vec::new(),
            messages: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            events: BinaryHeap::new(),
            exports: BTreeMap::new(),
            dead: vec![false; ranks],
            deaths: 0,
            steps: vec![0; ranks],
            kill_at: vec![u64::MAX; ranks],
            corrupt: Vec::new(),
            corrupt_rng,
            stats: Stats::default(),
            in_flight: InFlight::default(),
            trace_hash: 0,
            generation: 0,
            sleepers: 0,
            wake,
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

    /// A random time from now at which `bytes` bytes have crossed.
    pub(super) fn arrival_ns(&self, rng: &mut Rng, bytes: usize) -> u64 {
        let (least, most) = (
            *self.options.latency_ns.start(),
            *self.options.latency_ns.end(),
        );
        let spread = most.saturating_sub(least).saturating_add(1);
        let carried = bytes as f64 * self.options.ns_per_byte;
        self.now_ns
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
    }

    /// Drops all messages of a mailbox and returns how many there were.
    fn empty(&mut self, mailbox: u32) -> u64 {
        let waiting = std::mem::take(&mut self.mailboxes[mailbox as usize].waiting);
        for Reverse((_, _, at)) in &waiting {
            let message = self.take_message(*at);
            self.give_back(message.link, message.bytes, message.payload);
        }
        waiting.len() as u64
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
        let Mailbox { rank, door, .. } = self.mailboxes[mailbox as usize];
        let mut message = Message {
            from,
            head,
            bytes,
            payload,
            link,
        };
        self.stats.posted += 1;
        self.stats.bytes += bytes as u64;
        self.links[link as usize].in_flight += 1;
        self.in_flight.messages += 1;
        if self.is_dead(rank) || door == Door::Closed {
            if self.is_dead(rank) {
                self.stats.dropped_dead += 1;
            } else {
                self.stats.dropped_closed += 1;
            }
            self.in_flight.messages -= 1;
            self.give_back(link, bytes, message.payload);
            return;
        }
        self.damage(rank, &mut message);
        let mut rng = self.links[link as usize].rng.clone();
        let arrival_ns = self.arrival_ns(&mut rng, bytes);
        let of = &mut self.links[link as usize];
        of.rng = rng;
        of.last_due_ns = of.last_due_ns.max(arrival_ns);
        let due_ns = of.last_due_ns;
        self.schedule(due_ns);
        self.sequence += 1;
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
        let entry = Reverse((due_ns, self.sequence, at));
        self.mailboxes[mailbox as usize].waiting.push(entry);
        self.changed();
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
    pub(super) fn give_back(&mut self, link: u32, bytes: usize, mut payload: Vec<u8>) {
        self.links[link as usize].in_flight -= 1;
        payload[..bytes].fill(RELEASED);
        self.spare.push(payload);
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
