//! Pairs against naive twins: programs played one step after the other, of which every value is
//! named by what it came to be of.

use super::*;
use crate::exec::lower::lower;
use osier_collectives::{Algorithm, Association, Call, Lengths, Operation, Plan};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

fn named(by: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    by.hash(&mut hasher);
    hasher.finish()
}

/// Plays a program: all that it sends, and the result. Receives of these pairs leave nothing in
/// scratch; what they receive is combined.
fn play(actions: &[Action], scratch: &[Scratch], pairs: &[Pair]) -> (Vec<u64>, Vec<u64>) {
    const USERS: u32 = 64;
    let mut memory: BTreeMap<(Buffer, u32), u64> = BTreeMap::new();
    let places = |region: &Region| -> Vec<(Buffer, u32)> {
        let pieces = match region.buffer {
            Buffer::Scratch(k) => scratch[usize::from(k)].pieces,
            _ => USERS,
        };
        let buffer = region.buffer;
        region
            .indices(pieces)
            .map(|piece| (buffer, piece))
            .collect()
    };
    let read = |memory: &BTreeMap<_, u64>, region: &Region| -> Vec<u64> {
        let values = places(region).into_iter();
        values
            .map(|p| *memory.get(&p).unwrap_or(&named(p)))
            .collect()
    };
    let write = |memory: &mut BTreeMap<_, u64>, region: &Region, values: &[u64]| {
        memory.extend(places(region).into_iter().zip(values.iter().copied()));
    };
    let mut sent = Vec::new();
    for (step, action) in actions.iter().enumerate() {
        let step = step as u32;
        match action {
            Action::Send { data, .. } => sent.extend(read(&memory, data)),
            Action::Receive { data, .. } => {
                let fused = pairs.iter().any(|pair| pair.receive == step);
                let values = (0..data.count).map(|at| named((step, at, fused)));
                write(&mut memory, data, &values.collect::<Vec<_>>());
            }
            Action::Copy { from, to } => {
                let values = read(&memory, from);
                write(&mut memory, to, &values);
            }
            Action::Combine { left, right, into } => {
                let mut operands = [left, right].map(|region| read(&memory, region));
                if let Some(pair) = pairs.iter().find(|pair| pair.combine == step) {
                    let incoming = &mut operands[usize::from(!pair.is_left)];
                    for (at, value) in (0u32..).zip(incoming.iter_mut()) {
                        *value = named((pair.receive, at, false));
                    }
                }
                let [left, right] = operands;
                let values: Vec<u64> = left.into_iter().zip(right).map(named).collect();
                write(&mut memory, into, &values);
            }
            other => panic!("{other:?} in a plan of messages"),
        }
    }
    let result = (0..USERS).map(|piece| Region::piece(Buffer::Recv, piece));
    let result = result.flat_map(|piece| read(&memory, &piece)).collect();
    (sent, result)
}

/// A pair that plays as the steps one by one.
fn plays_alike(actions: &[Action], scratch: &[Scratch], pairs: &[Pair]) -> bool {
    play(actions, scratch, &[]) == play(actions, scratch, pairs)
}

const REDUCING: [Operation; 5] = [
    Operation::Reduce,
    Operation::Allreduce,
    Operation::ReduceScatter,
    Operation::Scan,
    Operation::Exscan,
];

/// What plans send and leave as their result does not hang on what receives of pairs leave in
/// scratch; and most that is received to be combined is in a pair.
#[test]
fn plans_with_pairs_give_the_same_values() {
    let (mut pairs, mut combinations) = (0, 0);
    for operation in REDUCING {
        for (algorithm, size) in
            (Algorithm::FLAT.into_iter()).flat_map(|a| (2..14).map(move |size| (a.clone(), size)))
        {
            for in_place in [false, true] {
                let mut call = Call::new(operation, size).root(size / 3);
                call.required = Association::Any;
                let call = if in_place { call.in_place() } else { call };
                let Ok(plan) = Plan::new(call, algorithm.clone(), 1) else {
                    continue;
                };
                for rank in 0..size {
                    let part = plan.part(rank);
                    let program = lower(plan.call(), &part).expect("a program");
                    let told = format!("{operation:?} by {algorithm} of {rank} of {size}");
                    let (actions, found) = (&program.actions, &program.pairs);
                    assert!(plays_alike(actions, &part.scratch, found), "{told}");
                    pairs += found.len();
                    let combine = |a: &&Action| matches!(a, Action::Combine { .. });
                    combinations += actions.iter().filter(combine).count();
                }
            }
        }
    }
    // Some scans use what they receive twice, and some combine two results.
    assert!(pairs * 5 > combinations * 4, "{pairs} of {combinations}");
}

#[test]
fn plans_that_are_meant_to_combine_what_comes_do() {
    let pairs = |operation, algorithm, size, rank| {
        let mut call = Call::new(operation, size);
        call.required = Association::Any;
        let plan = Plan::new(call, algorithm, 1).expect("a plan");
        let program = lower(plan.call(), &plan.part(rank)).expect("a program");
        program.pairs.len()
    };
    use Algorithm as A;
    assert_eq!(pairs(Operation::Allreduce, A::RecursiveDoubling, 8, 3), 3);
    assert_eq!(pairs(Operation::Allreduce, A::Rabenseifner, 8, 3), 3);
    assert_eq!(pairs(Operation::Allreduce, A::Ring, 8, 3), 7);
    assert_eq!(pairs(Operation::Reduce, A::Binomial, 8, 0), 3);
    assert_eq!(
        pairs(Operation::ReduceScatter, A::RecursiveHalving, 8, 5),
        3
    );
    assert_eq!(pairs(Operation::Bcast, A::Binomial, 8, 5), 0);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = (self.0)
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % n.max(1)
    }

    fn region(&mut self) -> Region {
        let buffer = match self.below(4) {
            0 => Buffer::Recv,
            k => Buffer::Scratch(k as u16 % 2),
        };
        Region::run(buffer, self.below(3), 1 + self.below(2))
    }
}

/// Of random programs, in which most receives are read by several steps, by none, in part, or are
/// written over: pairs play alike, alone and together, and none is left out that is one.
#[test]
fn pairs_of_random_programs_are_those_that_play_alike() {
    let scratch = Scratch {
        pieces: 4,
        lengths: Lengths::Rotated(0),
        slots: 0,
        aside: false,
        slot: false,
        changes_hands: false,
        one_reader: false,
    };
    let scratch = [scratch, scratch];
    let (mut found, mut others) = (0, 0);
    for seed in 0..4000 {
        let mut random = Random(seed);
        let steps = 2 + random.below(7);
        let actions: Vec<Action> = (0..steps)
            .map(|tag| match random.below(5) {
                0 | 1 => Action::Receive {
                    from: 1,
                    tag,
                    data: random.region(),
                },
                2 => Action::Send {
                    to: 1,
                    tag,
                    data: random.region(),
                },
                _ => {
                    let [mut left, mut right, mut into] = [(); 3].map(|()| random.region());
                    (right.count, into.count) = (left.count, left.count);
                    (left.run, right.run, into.run) = (left.count, left.count, left.count);
                    Action::Combine { left, right, into }
                }
            })
            .collect();
        // All steps wait for all before.
        let before: Vec<Vec<Edge>> = (0..steps)
            .map(|step| (0..step).map(|step| Edge { step, lag: 0 }).collect())
            .collect();
        let pairs = pairs(&actions, &before, &scratch);
        assert!(plays_alike(&actions, &scratch, &pairs), "seed {seed}");
        found += pairs.len();
        for (receive, combine) in (0..steps).flat_map(|r| (r + 1..steps).map(move |c| (r, c))) {
            for is_left in [true, false] {
                let pair = Pair {
                    receive,
                    combine,
                    is_left,
                };
                if pairs.contains(&pair) {
                    assert!(plays_alike(&actions, &scratch, &[pair]), "seed {seed}");
                    continue;
                }
                // What is never read again may be anything, so only a pair that is meant to be
                // one is told from others: its message is read by this step alone. Of two
                // messages, the last is taken.
                let alone = reads_alone(&actions, &scratch, pair);
                let later = receives_later(&actions, pair);
                assert!(!alone || later, "seed {seed}: {pair:?} is left out");
                others += 1;
            }
        }
    }
    assert!(found > 200 && others > 10_000, "{found}, {others}");
}

/// Whether the other operand is a later message.
fn receives_later(actions: &[Action], pair: Pair) -> bool {
    let Action::Combine { left, right, .. } = actions[pair.combine as usize] else {
        return false;
    };
    let own = if pair.is_left { right } else { left };
    let between = &actions[pair.receive as usize + 1..pair.combine as usize];
    let mut messages = between.iter().filter_map(|action| match action {
        Action::Receive { data, .. } => Some(*data),
        _ => None,
    });
    messages.any(|data| data == own)
}

/// The naive twin of the rule: every access to every piece is looked at.
fn reads_alone(actions: &[Action], scratch: &[Scratch], pair: Pair) -> bool {
    let (Action::Receive { data, .. }, Action::Combine { left, right, into }) = (
        actions[pair.receive as usize],
        actions[pair.combine as usize],
    ) else {
        return false;
    };
    let Buffer::Scratch(k) = data.buffer else {
        return false;
    };
    let pieces = scratch[usize::from(k)].pieces;
    let mine: Vec<u32> = data.indices(pieces).collect();
    let touches = |region: &Region, piece: u32| {
        region.buffer == data.buffer && region.indices(pieces).any(|p| p == piece)
    };
    let apart = |region: &Region| !mine.iter().any(|piece| touches(region, *piece));
    let (incoming, own) = match pair.is_left {
        true => (left, right),
        false => (right, left),
    };
    if incoming != data || !apart(&own) || !(into == data || apart(&into)) {
        return false;
    }
    mine.iter().all(|piece| {
        for (step, action) in (0..).zip(actions).skip(pair.receive as usize + 1) {
            let (reads, writes) = match action {
                Action::Send { data, .. } => (vec![*data], None),
                Action::Receive { data, .. } => (vec![], Some(*data)),
                Action::Combine { left, right, into } => (vec![*left, *right], Some(*into)),
                _ => (vec![], None),
            };
            let is_read = reads.iter().any(|region| touches(region, *piece));
            let is_written = writes.is_some_and(|region| touches(&region, *piece));
            match step == pair.combine {
                true if is_written => return true,
                true => {}
                false if is_read => return false,
                // Before it is combined, or behind.
                false if is_written => return step > pair.combine,
                false => {}
            }
        }
        true
    })
}
