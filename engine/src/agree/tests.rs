//! Agreements against their definition.

#[path = "../../../tests/asked.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "other tests use it, and more of it"
)]
mod asked;

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A network that delivers between each pair in order, ranks that die in the middle of what
/// they send, and others that learn of it at any time.
struct World {
    seed: u64,
    members: Vec<Agreements>,
    alive: Vec<bool>,
    wires: BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// What each has decided, dead or alive, by number.
    decided: Vec<Vec<Value>>,
    /// Who has to learn of whose end.
    news: Vec<(u32, u32)>,
    given: Vec<Vec<u64>>,
}

impl World {
    fn new(n: u32, seed: u64) -> Self {
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            members: (0..n).map(|own| Agreements::new(own, n)).collect(),
            alive: vec![true; n as usize],
            wires: BTreeMap::new(),
            decided: vec![Vec::new(); n as usize],
            news: Vec::new(),
            given: vec![Vec::new(); n as usize],
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 16) as usize % below.max(1)
    }

    /// What a rank sends, of which some may be lost as it dies.
    fn send(&mut self, from: u32, out: Out, deaths: usize) {
        let dies = deaths > 0 && self.random(12) == 0 && self.living() > 1;
        let sent = if dies {
            self.random(out.len() + 1)
        } else {
            out.len()
        };
        for (to, bytes) in out.into_iter().take(sent) {
            self.wires.entry((from, to)).or_default().push_back(bytes);
        }
        if dies {
            self.alive[from as usize] = false;
            let others = (0..self.members.len() as u32).filter(|one| *one != from);
            self.news.extend(others.map(|one| (one, from)));
        }
    }

    fn living(&self) -> usize {
        self.alive.iter().filter(|alive| **alive).count()
    }

    fn dead(&self) -> usize {
        self.alive.len() - self.living()
    }

    /// Lets one thing happen. False: nothing is left to happen.
    fn step(&mut self, rounds: usize, deaths: usize) -> bool {
        let deaths = deaths.saturating_sub(self.dead());
        // Begin, learn, deliver, take.
        let mut choices: Vec<(u8, u32, u32)> = Vec::new();
        for rank in 0..self.members.len() as u32 {
            if !self.alive[rank as usize] {
                continue;
            }
            let begun = self.given[rank as usize].len();
            let ended = self.decided[rank as usize].len();
            if begun < rounds && begun == ended {
                choices.push((0, rank, 0));
            }
        }
        for (rank, of) in &self.news {
            if self.alive[*rank as usize] {
                choices.push((1, *rank, *of));
            }
        }
        for ((from, to), wire) in &self.wires {
            if !wire.is_empty() && self.alive[*to as usize] {
                choices.push((2, *from, *to));
            }
        }
        if choices.is_empty() {
            return false;
        }
        let at = self.random(choices.len());
        let mut out = Vec::new();
        let (what, a, b) = choices[at];
        let acts = match what {
            0 => {
                let flags = !(1 << self.random(8));
                self.given[a as usize].push(flags);
                let value = Value {
                    flags,
                    number: u64::from(a) << 32 | self.given[a as usize].len() as u64,
                    calls: 1 << (a % 3),
                    ..Value::default()
                };
                self.members[a as usize].begin(value, &mut out);
                a
            }
            1 => {
                self.news.retain(|news| *news != (a, b));
                // Nothing of it is heard any more.
                self.wires.remove(&(b, a));
                self.members[a as usize].ended(b, &mut out);
                a
            }
            _ => {
                let bytes = self.wires.get_mut(&(a, b)).and_then(VecDeque::pop_front);
                let bytes = bytes.expect("a message");
                assert!(self.members[b as usize].take_message(a, &bytes, &mut out));
                b
            }
        };
        let number = self.decided[acts as usize].len() as u64;
        if let Some(value) = self.members[acts as usize].take(number) {
            // Before anything leaves: it may die at once.
            self.decided[acts as usize].push(value.expect("not cut off"));
        }
        self.send(acts, out, deaths);
        true
    }

    /// The definition: all that decide, decide the same; all that live decide; of bits those
    /// are set that all have set who are not among the failed, and only the dead have failed.
    fn check(&self, rounds: usize) {
        for number in 0..rounds {
            let mut first: Option<&Value> = None;
            for (rank, decided) in self.decided.iter().enumerate() {
                match (decided.get(number), first) {
                    (Some(value), Some(first)) => assert_eq!(value, first, "{number}"),
                    (Some(value), None) => first = Some(value),
                    (None, _) => assert!(!self.alive[rank], "rank {rank} waits"),
                }
            }
            let value = first.expect("somebody lives");
            for rank in &value.failed {
                assert!(!self.alive[*rank as usize], "rank {rank} lives");
            }
            let mut flags = [u64::MAX; 2];
            for (rank, given) in self.given.iter().enumerate() {
                let Some(given) = given.get(number) else {
                    assert!(value.failed.contains(&(rank as u32)), "it gave nothing");
                    continue;
                };
                flags[0] &= given;
                if !value.failed.contains(&(rank as u32)) {
                    flags[1] &= given;
                }
            }
            assert_eq!(value.flags & !flags[1], 0, "a bit that one has not set");
            assert_eq!(flags[0] & !value.flags, 0, "a bit that all have set");
        }
    }
}

fn runs(n: u32, rounds: usize, deaths: usize, seed: u64) {
    let mut world = World::new(n, seed);
    let mut steps = 0;
    while world.step(rounds, deaths) {
        steps += 1;
        assert!(steps < 1_000_000, "it does not end");
    }
    world.check(rounds);
}

/// 10 000 runs; `cargo xtask soak agreements` asks for a million.
#[test]
fn all_that_decide_decide_the_same() {
    let seeds = asked::number("agreements").unwrap_or(10_000);
    for seed in 0..seeds {
        let n = 1 + (seed % 7) as u32;
        runs(
            n,
            1 + (seed / 7 % 3) as usize,
            (seed / 21 % 8) as usize,
            seed,
        );
    }
}

#[test]
fn failures_are_acknowledged_by_all_or_not() {
    let value = |acknowledged: &[u32]| Value {
        flags: 3,
        failed: BTreeSet::from([2, 4]),
        acknowledged: acknowledged.iter().copied().collect(),
        number: 0,
        calls: 1,
    };
    let all = [value(&[2, 4]), value(&[2])];
    let one = combined(all.iter(), &BTreeSet::from([7]), || 9);
    assert_eq!(one.failed, BTreeSet::from([2, 4, 7]));
    assert_eq!(one.acknowledged, BTreeSet::from([2]));
    assert_eq!((one.flags, one.number), (3, 9));
}

#[test]
fn who_is_cut_off_decides_nothing() {
    let mut member = Agreements::new(0, 2);
    let mut out = Vec::new();
    let number = member.begin(Value::default(), &mut out);
    member.cut_off();
    member.ended(1, &mut out);
    assert_eq!(member.take(number), Some(Err(CutOff)));
    assert_eq!(out, []);
}

fn values() -> impl Strategy<Value = Value> {
    let sets = || proptest::collection::btree_set(0u32..50, 0..9);
    let numbers = (any::<u64>(), any::<u64>(), any::<u8>());
    (numbers, sets(), sets()).prop_map(|((flags, number, calls), failed, known)| Value {
        calls,
        flags,
        failed,
        acknowledged: known,
        number,
    })
}

proptest! {
    #[test]
    fn messages_survive_the_way(
        number: u64,
        value in values(),
        accepted in proptest::option::of((0u32..50, values())),
        kind in 0..4,
        cut: prop::sample::Index,
    ) {
        let message = match kind {
            0 => Message::Contribute { value, accepted },
            1 => Message::Propose { round: 7, value },
            2 => Message::Accept { round: 49 },
            _ => Message::Decide { value },
        };
        let wire = to_wire(number, &message);
        let has_accepted = matches!(&message, Message::Contribute { accepted: Some(_), .. });
        prop_assert_eq!(parse(&wire, 50), Some((number, message)));
        let at = cut.index(wire.len());
        // Half of a contribution is one without what was accepted.
        prop_assert!(has_accepted || parse(&wire[..at], 50).is_none());
    }

    #[test]
    fn noise_is_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some((number, message)) = parse(&bytes, 1000) {
            prop_assert_eq!(to_wire(number, &message), bytes);
        }
    }
}
