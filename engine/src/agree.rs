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
//! Failure detection is perfect here: messages of a rank that was declared dead are ignored, and
//! it learns that the others go on without it; it decides nothing then ([`Agreements::cut_off`]).
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
    /// Ranks that have failed, or left.
    pub failed: BTreeSet<u32>,
    /// Of these, the ones whose failure all have acknowledged.
    pub acknowledged: BTreeSet<u32>,
    /// A number that no other agreement gives, if it was the coordinator's to give.
    pub number: u64,
    /// What members have called, a bit for each call.
    pub calls: u8,
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
    /// Members that have ended or left.
    gone: BTreeSet<u32>,
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
            instances: BTreeMap::new(),
            next: 0,
            apart: false,
        }
    }

    fn coordinator(&self) -> u32 {
        let living = |rank: &u32| !self.gone.contains(rank);
        (0..self.size).find(living).unwrap_or(self.own)
    }

    /// Takes part in the next agreement, where [`Agreements::may_begin`]; its number.
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
        let decided = self
            .instances
            .get(&number)
            .and_then(|at| at.decided.as_ref());
        let Some(value) = decided else {
            return self.apart.then_some(Err(CutOff));
        };
        let value = value.clone();
        self.give_up(number);
        Some(Ok(value))
    }

    /// The result of an agreement that was begun is not taken any more.
    pub fn give_up(&mut self, number: u64) {
        if let Some(at) = self.instances.get_mut(&number) {
            at.taken = true;
        }
        while self.instances.len() > KEPT {
            let over = |at: &Instance| at.taken && at.decided.is_some();
            match self.instances.first_entry() {
                Some(first) if over(first.get()) => drop(first.remove()),
                _ => break,
            }
        }
    }

    /// Whether all others go on without this rank.
    pub fn is_cut_off(&self) -> bool {
        self.apart
    }

    /// Whether the result of an agreement can be taken.
    pub fn is_over(&self, number: u64) -> bool {
        let decided = |at: &Instance| at.decided.is_some();
        self.apart || self.instances.get(&number).is_some_and(decided)
    }

    /// Whether this rank may begin the next agreement: the last that it has begun is decided.
    pub fn may_begin(&self) -> bool {
        !self.apart
            && self
                .next
                .checked_sub(1)
                .is_none_or(|last| self.is_over(last))
    }

    /// A member that this rank waits for in the last agreement that it has begun.
    pub fn awaits(&self) -> Option<u32> {
        let number = self.next.checked_sub(1)?;
        if self.is_over(number) {
            return None;
        }
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
    pub fn ended(&mut self, rank: u32, out: &mut Out) {
        let before = self.coordinator();
        if !self.gone.insert(rank) {
            return;
        }
        let numbers: Vec<u64> = self.instances.keys().copied().collect();
        for number in numbers {
            // Whoever has not decided an agreement has begun none behind it, so this rank has
            // begun one more at most.
            if self.coordinator() != before && number + 2 >= self.next {
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
                &self.gone,
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
        calls: of.fold(0, |calls, value| calls | value.calls),
    }
}

const CONTRIBUTE: u8 = 1;
const PROPOSE: u8 = 2;
const ACCEPT: u8 = 3;
const DECIDE: u8 = 4;

/// A message: number u64, kind u8, and as the kind asks for a round u32 and a value, or two of
/// them; a value is flags u64, number u64, calls u8, and two sets: how many u32,
/// ranks u32.
fn to_wire(number: u64, message: &Message) -> Vec<u8> {
    let mut w = number.to_le_bytes().to_vec();
    let put = |w: &mut Vec<u8>, value: &Value| {
        w.extend(value.flags.to_le_bytes());
        w.extend(value.number.to_le_bytes());
        w.push(value.calls);
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
            calls: take::<1>(bytes)?[0],
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
mod tests;
