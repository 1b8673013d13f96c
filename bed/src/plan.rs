//! The network, ranks and settings that a seed draws before the first step.

use super::Traffic;
use super::act::Act;
use super::case::{Case, How, Net, Planned};
use super::dice::Rng;
use super::memory::{draw_layout, round};
use super::partition::Parted;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::eager::LIMIT_BYTES;
use osier_engine::protocol::select::{Memory, Selection};
use osier_engine::wire::CheckBody;
use osier_transports::sim::SimOptions;

/// How often each kind of step is taken.
#[derive(Clone)]
pub(super) struct Weights {
    pub send: usize,
    pub receive: usize,
    pub progress: usize,
    pub clock: usize,
    pub test: usize,
    pub probe: usize,
    pub revoke_receive: usize,
    pub revoke_send: usize,
    pub detach: usize,
    pub notice: usize,
    pub corrupt: usize,
    /// What only requests can do.
    pub extra: usize,
    pub finalize: usize,
    pub acknowledge: usize,
}

pub(super) struct Plan {
    /// Without the acts, but for the deaths.
    pub case: Case,
    pub weights: Weights,
    /// Receives with a wildcard, out of 8.
    pub wild: usize,
    /// Receives that are too small, out of 32.
    pub small: usize,
    /// Receives are posted after the sends.
    pub late: bool,
}

impl Plan {
    pub fn new(rng: &mut Rng, seed: u64, options: &Traffic) -> Self {
        let (least, most) = (*options.ranks.start(), *options.ranks.end());
        let ranks = least + rng.below((most - least + 1) as usize) as u32;
        let mut sim = sim(rng, seed, ranks);
        if options.checks.is_on() {
            // What is told of a message travels in one.
            sim.max_payload_bytes = sim.max_payload_bytes.max(CheckBody::MAX_BYTES);
        }
        let latency = rng.pick(&[80.0, 0.5, 1.0, 2.0, 8.0, 8.0]);
        let costs = LinkCosts {
            latency_ns: latency,
            ..LinkCosts::default()
        };
        let selection = Selection::new(costs, sim.inline_bytes);
        let identity: Vec<u32> = (0..ranks).collect();
        let mut members = vec![identity.clone()];
        if rng.one_in(3) {
            let mut shuffled = identity;
            shuffle(rng, &mut shuffled);
            members.push(shuffled);
        }
        let flood = !options.corruption && sim.max_payload_bytes >= 2048 && rng.one_in(64);
        let (least, most) = (*options.messages.start(), *options.messages.end());
        let count = least + rng.below(most - least + 1);
        let tags = 1 + rng.below(4);
        let mut messages: Vec<Planned> = (0..count)
            .map(|_| message(rng, &sim, &selection, members.len(), tags))
            .collect();
        if flood {
            let bytes = selection.eager_max(Memory::Private).min(60_000);
            let count = (LIMIT_BYTES as usize / (bytes + 64) + 10).min(400);
            let (from, to) = (rng.below(ranks as usize), rng.below(ranks as usize));
            messages.extend((0..count).map(|i| Planned {
                context: 0,
                from: from as u32,
                to: to as u32,
                tag: rng.below(tags) as u32,
                bytes: bytes - i % 8,
                layout: None,
                synchronous: false,
                how: How::Lane,
            }));
        }
        let revokes = rng.one_in(2);
        let weights = Weights {
            send: 1 + rng.below(8),
            receive: 1 + rng.below(8),
            progress: 1 + rng.below(24),
            clock: 1 + rng.below(8),
            test: rng.below(4),
            probe: rng.below(4),
            revoke_receive: usize::from(revokes) * rng.below(3),
            revoke_send: usize::from(revokes) * rng.below(3),
            detach: usize::from(rng.one_in(3)),
            notice: 2,
            corrupt: usize::from(options.corruption) * (1 + rng.below(2)),
            extra: usize::from(options.requests) * 4,
            // Not of lanes only: seeds of those are kept.
            finalize: match options.deaths && options.requests {
                true => rng.below(2),
                false => 0,
            },
            acknowledge: match options.deaths && options.requests {
                true => rng.below(3),
                false => 0,
            },
        };
        let mut acts = Vec::new();
        if options.deaths {
            let mut victims: Vec<u32> = (0..ranks).collect();
            shuffle(rng, &mut victims);
            victims.truncate(if rng.one_in(4) {
                1 + rng.below(ranks as usize)
            } else {
                1
            });
            for rank in victims {
                let scale = 1 << (3 + rng.below(7));
                let calls = 1 + rng.below(scale) as u64;
                acts.push(Act::DieAt { rank, calls });
            }
        }
        let mut more = More {
            rng: Rng::new(seed ^ 0xB5AD_4ECE_DA1C_E2A9),
            ranks,
            first_sides: Vec::new(),
            parted: Vec::new(),
            acts: Vec::new(),
        };
        if options.requests {
            more.plan(&mut members, &mut messages);
        }
        acts.extend(more.acts);
        Self {
            case: Case {
                first_sides: more.first_sides,
                parted: more.parted,
                checks: options.checks.bits(),
                net: Net::from(&sim),
                costs,
                members,
                messages,
                faults: Vec::new(),
                corruption: options.corruption,
                harvests: false,
                acts,
            },
            weights,
            wild: rng.below(6),
            small: rng.below(3),
            late: flood || rng.one_in(12),
        }
    }
}

pub(super) fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last + 1));
    }
}

pub(super) fn sim(rng: &mut Rng, seed: u64, ranks: u32) -> SimOptions {
    let least = rng.pick(&[0, 1, 500, 500]);
    let get = !rng.one_in(4);
    SimOptions {
        ranks,
        seed,
        latency_ns: least..=least + rng.pick(&[0, 10, 1000, 20_000]),
        ns_per_byte: rng.pick(&[0.0, 0.1, 0.1, 1.0]),
        machine: None,
        capacity_messages: rng.pick(&[1, 2, 3, 8, 64]),
        max_payload_bytes: rng.pick(&[64, 100, 2048, 2056, 32 << 10, 32 << 10]),
        inline_bytes: 48,
        get,
        put: !rng.one_in(3),
        atomics: rng.one_in(2),
        mapped: rng.one_in(3),
        auto_advance: false,
        held: false,
    }
}

fn message(
    rng: &mut Rng,
    sim: &SimOptions,
    selection: &Selection,
    contexts: usize,
    tags: usize,
) -> Planned {
    let ranks = sim.ranks as usize;
    let bytes = size(rng, sim, selection);
    let layout = draw_layout(rng, bytes);
    let bytes = round(layout, bytes);
    Planned {
        context: rng.below(contexts),
        from: rng.below(ranks) as u32,
        to: rng.below(ranks) as u32,
        tag: rng.below(tags) as u32,
        bytes,
        layout,
        synchronous: rng.one_in(4),
        how: How::Lane,
    }
}

/// What a plan has beyond operations of lanes. Drawn from dice of its own, so
/// that the rest of a seed is the same without it.
struct More {
    rng: Rng,
    ranks: u32,
    first_sides: Vec<usize>,
    parted: Vec<Parted>,
    acts: Vec<Act>,
}

impl More {
    fn plan(&mut self, members: &mut Vec<Vec<u32>>, messages: &mut Vec<Planned>) {
        if self.ranks > 1 && self.rng.one_in(3) {
            self.intercommunicator(members, messages);
        }
        for message in messages.iter_mut() {
            if self.rng.one_in(2) {
                let all = [
                    How::Request,
                    How::Request,
                    How::Ready,
                    How::Buffered,
                    How::Exchange,
                ];
                message.how = self.rng.pick(&all);
            }
        }
        for group in 0..self.rng.below(3) {
            let at = self.rng.below(messages.len());
            messages[at].how = How::Persistent(group);
            for _ in 0..1 + self.rng.below(3) {
                messages.push(messages[at].clone());
            }
        }
        let contexts = members.len();
        if messages.iter().any(|m| m.how == How::Buffered) {
            for rank in 0..self.ranks {
                let context = self.rng.below(contexts);
                let bytes = [
                    None,
                    Some(0),
                    Some(40),
                    Some(400),
                    Some(5000),
                    Some(1 << 20),
                ];
                let bytes = self.rng.pick(&bytes);
                self.acts.push(Act::Attach {
                    rank,
                    context,
                    bytes,
                });
            }
        }
        if self.rng.one_in(3) {
            for _ in 0..1 + self.rng.below(3) {
                let parted = self.parted(members);
                self.parted.push(parted);
            }
        }
    }

    /// Two sides, and some of the messages go from one to the other.
    fn intercommunicator(&mut self, members: &mut Vec<Vec<u32>>, messages: &mut [Planned]) {
        let mut all: Vec<u32> = (0..self.ranks).collect();
        shuffle(&mut self.rng, &mut all);
        self.first_sides = vec![0; members.len()];
        self.first_sides.push(1 + self.rng.below(all.len() - 1));
        members.push(all);
        let context = members.len() - 1;
        for message in messages {
            if self.rng.one_in(3) {
                (message.from, message.to) = self.across(members, context);
                message.context = context;
            }
        }
    }

    /// Two ranks that can send to each other.
    fn across(&mut self, members: &[Vec<u32>], context: usize) -> (u32, u32) {
        let members = &members[context];
        let first = self.first_sides.get(context).copied().unwrap_or(0);
        let at = self.rng.below(members.len());
        let other = match first {
            0 => self.rng.below(members.len()),
            first if at < first => first + self.rng.below(members.len() - first),
            first => self.rng.below(first),
        };
        (members[at], members[other])
    }

    fn parted(&mut self, members: &[Vec<u32>]) -> Parted {
        let context = self.rng.below(members.len());
        let (from, to) = self.across(members, context);
        let tag = self.rng.below(3);
        let counts = [1, 2, 3, 4, 6, 12];
        Parted {
            context,
            from,
            to,
            tag: tag as u32,
            bytes: [24, 960, 24_000][tag],
            sends: self.rng.pick(&counts),
            receives: self.rng.pick(&counts),
        }
    }
}

fn size(rng: &mut Rng, sim: &SimOptions, selection: &Selection) -> usize {
    let eager = selection.eager_max(Memory::Private);
    let payload = sim.max_payload_bytes;
    let most = if payload < 2048 { payload * 40 } else { 60_000 };
    if payload >= 2048 && rng.one_in(600) {
        return LIMIT_BYTES as usize - 65 + rng.below(200);
    }
    let bytes = match rng.below(12) {
        0 => 0,
        1..3 => rng.below(16),
        3..5 => rng.below(200),
        5..9 => {
            let edges = [48, selection.always_eager(), 2048, 4096, payload, eager];
            let edge = rng.pick(&edges) * rng.pick(&[1, 1, 1, 2]);
            (edge + rng.below(3)).saturating_sub(1 + 8 * usize::from(rng.one_in(6)))
        }
        9..11 => rng.below(4 * eager.min(4096)),
        _ => rng.below(20_000),
    };
    bytes.min(most)
}
