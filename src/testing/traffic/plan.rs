//! What a seed decides before the first step.

use super::Traffic;
use super::act::Act;
use super::case::{Case, Net, Planned};
use super::dice::Rng;
use super::memory::{draw_layout, round};
use crate::protocol::cost::LinkCosts;
use crate::protocol::eager::LIMIT_BYTES;
use crate::protocol::select::{Memory, Selection};
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
        let sim = sim(rng, seed, ranks);
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
        Self {
            case: Case {
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

fn sim(rng: &mut Rng, seed: u64, ranks: u32) -> SimOptions {
    let least = rng.pick(&[0, 1, 500, 500]);
    let get = !rng.one_in(4);
    SimOptions {
        ranks,
        seed,
        latency_ns: least..=least + rng.pick(&[0, 10, 1000, 20_000]),
        ns_per_byte: rng.pick(&[0.0, 0.1, 0.1, 1.0]),
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
