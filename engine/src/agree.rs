//! Agreement of the members of a communicator about their failures, though more fail meanwhile.
//! Pure: messages and ends of ranks go in, messages come out.
//!
//! ```text
//! member        lowest living member: the coordinator
//!  CONTRIBUTE  ->  waits for all that live
//!              <-  PROPOSE  one value of all contributions
//!  ACCEPT      ->  waits for all that live
//!              <-  DECIDE
//! ```
//!
//! A coordinator decides when all that live have accepted its value. When it ends, the next one
//! hears from all what they have accepted, and proposes that of the last coordinator again. So
//! what anybody has decided, also one that has ended since, all decide (uniform agreement).
//! Whoever has decided answers later coordinators though its call has returned.
//!
//! Ends of ranks are certain here: whoever is declared dead is heard no more, and learns that all
//! others go on without it; it decides nothing then ([`Agreements::cut_off`]).
//!
//! # Invariants
//! 1. A rank accepts values of coordinators in the order of their ranks: lower ones have ended.
//! 2. A value that was decided was accepted by all that lived then.
//!
//! # Sources
//! T. D. Chandra, S. Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems",
//! J. ACM 43(2), 1996: rotating coordinators. D. Buntinas, "Scalable Distributed Consensus to
//! Support MPI Fault Tolerance", IPDPS 2012: the three phases, and what a new root takes over.

use std::collections::{BTreeMap, BTreeSet};

/// What members agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The bits that all have set.
    pub flags: u64,
    /// Ranks that have failed.
    pub failed: BTreeSet<u32>,
    /// Of these, the ones whose failure all have acknowledged.
    pub acknowledged: BTreeSet<u32>,
    /// A number that no other agreement gives, if it was the coordinator's to give.
    pub number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Contribute {
        value: Value,
        accepted: Option<(u32, Value)>,
    },
    Propose {
        round: u32,
        value: Value,
    },
    Accept {
        round: u32,
    },
    Decide {
        value: Value,
    },
}

#[derive(Default)]
struct Instance {
    /// What this rank has contributed.
    own: Option<Value>,
    /// What it has accepted, and whose.
    accepted: Option<(u32, Value)>,
    decided: Option<Value>,
    /// Somebody has taken the result.
    taken: bool,
    /// As coordinator: what members have contributed, with what they have accepted.
    heard: BTreeMap<u32, (Value, Option<(u32, Value)>)>,
    /// What it has proposed, and who has accepted that.
    proposed: Option<(Value, BTreeSet<u32>)>,
}

/// Agreements of a communicator, seen by one of its members.
pub struct Agreements {
    own: u32,
    size: u32,
    gone: BTreeSet<u32>,
    /// Of these, the ones that have failed.
    failed: BTreeSet<u32>,
    instances: BTreeMap<u64, Instance>,
    next: u64,
    /// All others go on without this rank.
    apart: bool,
}

/// Messages to leave, each for one member.
pub type Out = Vec<(u32, Vec<u8>)>;

/// Decided agreements whose results are kept for later coordinators. A member begins the next
/// one behind the end of its last, so others are behind by as many as it has at once.
const KEPT: usize = 64;

impl Agreements {
    /// Of member `own` of `size`, before anybody has ended.
    pub fn new(own: u32, size: u32) -> Self {
        Self {
            own,
            size,
            gone: BTreeSet::new(),
            failed: BTreeSet::new(),
            instances: BTreeMap::new(),
            next: 0,
            apart: false,
        }
    }

    fn coordinator(&self) -> u32 {
        let living = |rank: &u32| !self.gone.contains(rank);
        (0..self.size).find(living).unwrap_or(self.own)
    }

    /// Takes part in the next agreement; its number.
    pub fn begin(&mut self, value: Value, out: &mut Out) -> u64 {
        let number = self.next;
        self.next += 1;
        let at = self.instances.entry(number).or_default();
        at.own = Some(value);
        self.contribute(number, out);
        number
    }

    /// The result of an agreement, once. An error: this rank takes part in none any more.
    pub fn take(&mut self, number: u64) -> Option<Result<Value, CutOff>> {
        let at = self.instances.get_mut(&number)?;
        let Some(value) = &at.decided else {
            return self.apart.then_some(Err(CutOff));
        };
        let value = value.clone();
        at.taken = true;
        while self.instances.len() > KEPT {
            match self.instances.first_entry() {
                Some(first) if first.get().taken => drop(first.remove()),
                _ => break,
            }
        }
        Some(Ok(value))
    }

    /// A member that this rank waits for in an agreement that is not decided.
    pub fn awaits(&self, number: u64) -> Option<u32> {
        let coordinator = self.coordinator();
        if coordinator != self.own {
            return Some(coordinator);
        }
        let at = self.instances.get(&number)?;
        let mut living = (0..self.size).filter(|rank| !self.gone.contains(rank));
        match &at.proposed {
            Some((_, accepted)) => living.find(|rank| !accepted.contains(rank)),
            None => living.find(|rank| !at.heard.contains_key(rank)),
        }
    }

    /// All others go on without this rank: it decides nothing any more.
    pub fn cut_off(&mut self) {
        self.apart = true;
    }

    /// A member has ended or left, and nothing of it comes any more.
    pub fn ended(&mut self, rank: u32, failed: bool, out: &mut Out) {
        let before = self.coordinator();
        if !self.gone.insert(rank) {
            return;
        }
        if failed {
            self.failed.insert(rank);
        }
        let numbers: Vec<u64> = self.instances.keys().copied().collect();
        for number in numbers {
            if self.coordinator() != before {
                self.contribute(number, out);
            }
            self.advance(number, out);
        }
    }

    /// Takes a message of a member. False: it is malformed.
    pub fn take_message(&mut self, from: u32, bytes: &[u8], out: &mut Out) -> bool {
        let Some((number, message)) = parse(bytes, self.size) else {
            return false;
        };
        // A member is ahead by what it has begun, and that it does when this rank has done so, too.
        let first = self
            .instances
            .first_key_value()
            .map_or(0, |(first, _)| *first);
        if number < first || number > self.next.saturating_add(KEPT as u64) {
            return number < first;
        }
        self.receive(from, number, message, out);
        true
    }

    /// Says to the coordinator what this rank has to say.
    fn contribute(&mut self, number: u64, out: &mut Out) {
        let coordinator = self.coordinator();
        let Some(at) = self.instances.get(&number) else {
            return;
        };
        let message = match (&at.decided, &at.own) {
            (Some(value), _) => Message::Decide {
                value: value.clone(),
            },
            (None, Some(value)) => Message::Contribute {
                value: value.clone(),
                accepted: at.accepted.clone(),
            },
            (None, None) => return,
        };
        self.send(coordinator, number, message, out);
    }

    fn send(&mut self, to: u32, number: u64, message: Message, out: &mut Out) {
        if to == self.own {
            self.receive(to, number, message, out);
        } else if !self.gone.contains(&to) {
            out.push((to, to_wire(number, &message)));
        }
    }

    fn receive(&mut self, from: u32, number: u64, message: Message, out: &mut Out) {
        if self.apart {
            return;
        }
        let at = self.instances.entry(number).or_default();
        match message {
            Message::Contribute { value, accepted } => {
                if let Some(value) = at.decided.clone() {
                    return self.send(from, number, Message::Decide { value }, out);
                }
                at.heard.insert(from, (value, accepted));
                self.advance(number, out);
            }
            Message::Propose { round, value } => {
                if let Some(value) = at.decided.clone() {
                    return self.send(from, number, Message::Decide { value }, out);
                }
                // Invariant 1.
                if at.accepted.as_ref().is_none_or(|(last, _)| *last <= round) {
                    at.accepted = Some((round, value));
                    self.send(from, number, Message::Accept { round }, out);
                }
            }
            Message::Accept { round } => {
                if let Some((_, accepted)) = &mut at.proposed
                    && round == self.own
                {
                    accepted.insert(from);
                }
                self.advance(number, out);
            }
            Message::Decide { value } => {
                if at.decided.is_some() {
                    return;
                }
                at.decided = Some(value.clone());
                at.proposed = None;
                let heard = std::mem::take(&mut at.heard);
                let message = Message::Decide { value };
                if self.coordinator() == self.own {
                    return self.tell_all(number, &message, out);
                }
                // Who knows already that this rank is to be the coordinator.
                for rank in heard.into_keys().filter(|rank| *rank != from) {
                    self.send(rank, number, message.clone(), out);
                }
            }
        }
    }

    fn tell_all(&mut self, number: u64, message: &Message, out: &mut Out) {
        let own = self.own;
        for rank in (0..self.size).filter(|rank| *rank != own) {
            self.send(rank, number, message.clone(), out);
        }
    }

    /// As coordinator: proposes when all that live have contributed, and decides when all have
    /// accepted.
    fn advance(&mut self, number: u64, out: &mut Out) {
        if self.coordinator() != self.own || self.apart {
            return;
        }
        let living: Vec<u32> = (0..self.size)
            .filter(|rank| !self.gone.contains(rank))
            .collect();
        let Some(at) = self.instances.get_mut(&number) else {
            return;
        };
        if at.decided.is_some() {
            return;
        }
        if let Some((value, accepted)) = &at.proposed {
            if living.iter().all(|rank| accepted.contains(rank)) {
                let value = value.clone();
                // Also here: it is the first that knows.
                self.receive(self.own, number, Message::Decide { value }, out);
            }
            return;
        }
        if !living.iter().all(|rank| at.heard.contains_key(rank)) {
            return;
        }
        let accepted = at
            .heard
            .values()
            .filter_map(|(_, accepted)| accepted.as_ref());
        let last = accepted.max_by_key(|(round, _)| *round);
        let value = match last {
            Some((_, value)) => value.clone(),
            None => combined(
                at.heard.values().map(|(value, _)| value),
                &self.failed,
                || at.own.as_ref().map_or(0, |own| own.number),
            ),
        };
        at.proposed = Some((value.clone(), BTreeSet::new()));
        let round = self.own;
        let message = Message::Propose { round, value };
        self.tell_all(number, &message, out);
        self.receive(round, number, message, out);
    }
}

/// This rank takes part in no agreement any more, as all others go on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff;

/// One value of all contributions; `failed` is what the coordinator knows besides.
fn combined<'a>(
    of: impl Iterator<Item = &'a Value> + Clone,
    failed: &BTreeSet<u32>,
    number: impl FnOnce() -> u64,
) -> Value {
    let mut all = failed.clone();
    of.clone().for_each(|value| all.extend(&value.failed));
    let acknowledged = |rank: &&u32| of.clone().all(|value| value.acknowledged.contains(*rank));
    Value {
        flags: of
            .clone()
            .fold(u64::MAX, |flags, value| flags & value.flags),
        acknowledged: all.iter().filter(acknowledged).copied().collect(),
        failed: all,
        number: number(),
    }
}

const CONTRIBUTE: u8 = 1;
const PROPOSE: u8 = 2;
const ACCEPT: u8 = 3;
const DECIDE: u8 = 4;

/// A message: number u64, kind u8, and as the kind asks for a round u32 and a value, or two of
/// them; a value is flags u64, number u64, and two sets: how many u32, ranks u32.
fn to_wire(number: u64, message: &Message) -> Vec<u8> {
    let mut w = number.to_le_bytes().to_vec();
    let put = |w: &mut Vec<u8>, value: &Value| {
        w.extend(value.flags.to_le_bytes());
        w.extend(value.number.to_le_bytes());
        for set in [&value.failed, &value.acknowledged] {
            w.extend((set.len() as u32).to_le_bytes());
            set.iter().for_each(|rank| w.extend(rank.to_le_bytes()));
        }
    };
    match message {
        Message::Contribute { value, accepted } => {
            w.push(CONTRIBUTE);
            put(&mut w, value);
            if let Some((round, value)) = accepted {
                w.extend(round.to_le_bytes());
                put(&mut w, value);
            }
        }
        Message::Propose { round, value } => {
            w.push(PROPOSE);
            w.extend(round.to_le_bytes());
            put(&mut w, value);
        }
        Message::Accept { round } => {
            w.push(ACCEPT);
            w.extend(round.to_le_bytes());
        }
        Message::Decide { value } => {
            w.push(DECIDE);
            put(&mut w, value);
        }
    }
    w
}

/// Reads [`to_wire`]; nothing if it is something else.
fn parse(mut bytes: &[u8], size: u32) -> Option<(u64, Message)> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (first, rest) = bytes.split_first_chunk::<N>()?;
        *bytes = rest;
        Some(*first)
    }
    let word = |bytes: &mut &[u8]| take::<4>(bytes).map(u32::from_le_bytes);
    let long = |bytes: &mut &[u8]| take::<8>(bytes).map(u64::from_le_bytes);
    let set = |bytes: &mut &[u8]| {
        let ranks = word(bytes)?;
        let mut set = BTreeSet::new();
        for _ in 0..ranks {
            let rank = word(bytes).filter(|rank| *rank < size)?;
            // In order, each once: one form of a set.
            if set.last().is_some_and(|last| *last >= rank) {
                return None;
            }
            set.insert(rank);
        }
        Some(set)
    };
    let value = |bytes: &mut &[u8]| {
        Some(Value {
            flags: long(bytes)?,
            number: long(bytes)?,
            failed: set(bytes)?,
            acknowledged: set(bytes)?,
        })
    };
    let round = |bytes: &mut &[u8]| word(bytes).filter(|rank| *rank < size);
    let number = long(&mut bytes)?;
    let [kind] = take::<1>(&mut bytes)?;
    let message = match kind {
        CONTRIBUTE => Message::Contribute {
            value: value(&mut bytes)?,
            accepted: match bytes.is_empty() {
                true => None,
                false => Some((round(&mut bytes)?, value(&mut bytes)?)),
            },
        },
        PROPOSE => Message::Propose {
            round: round(&mut bytes)?,
            value: value(&mut bytes)?,
        },
        ACCEPT => Message::Accept {
            round: round(&mut bytes)?,
        },
        DECIDE => Message::Decide {
            value: value(&mut bytes)?,
        },
        _ => return None,
    };
    bytes.is_empty().then_some((number, message))
}

#[cfg(test)]
mod tests {
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
                        ..Value::default()
                    };
                    self.members[a as usize].begin(value, &mut out);
                    a
                }
                1 => {
                    self.news.retain(|news| *news != (a, b));
                    // Nothing of it is heard any more.
                    self.wires.remove(&(b, a));
                    self.members[a as usize].ended(b, true, &mut out);
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

    /// Counts that are asked for by `OSIER_AGREEMENTS`, as `cargo xtask soak` does.
    #[test]
    fn all_that_decide_decide_the_same() {
        let asked = std::env::var("OSIER_AGREEMENTS").ok();
        let seeds: u64 = asked.map_or(10_000, |text| text.parse().expect("a number"));
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
        member.ended(1, true, &mut out);
        assert_eq!(member.take(number), Some(Err(CutOff)));
        assert_eq!(out, []);
    }

    fn values() -> impl Strategy<Value = Value> {
        let sets = || proptest::collection::btree_set(0u32..50, 0..9);
        (any::<u64>(), any::<u64>(), sets(), sets()).prop_map(|(flags, number, failed, known)| {
            Value {
                flags,
                failed,
                acknowledged: known,
                number,
            }
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
}
