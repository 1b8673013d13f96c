//! A run as a value: what is sent over which network, and the acts in order.

use super::act::Act;
use super::partition::Parted;
use osier_engine::progress::lane::Mode;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::Selection;
use osier_transports::sim::{self, SimOptions};
use serde::{Deserialize, Serialize};

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum How {
    /// By an operation of the lane, which the bed knows by its handle.
    #[default]
    Lane,
    /// By a request, which the rank's wait set holds.
    Request,
    /// The same in ready mode.
    Ready,
    /// In buffered mode.
    Buffered,
    /// By a start of the persistent request of this number. All its messages
    /// are as the first of them in the list.
    Persistent(usize),
    /// With a receive into the same memory.
    Exchange,
}

/// A message that will be sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Planned {
    #[serde(default)]
    pub context: usize,
    pub from: u32,
    pub to: u32,
    pub tag: u32,
    pub bytes: usize,
    #[serde(default)]
    pub layout: Option<usize>,
    #[serde(default)]
    pub synchronous: bool,
    #[serde(default)]
    pub how: How,
}

impl Planned {
    pub fn mode(&self) -> Mode {
        match self.synchronous {
            true => Mode::Synchronous,
            false => Mode::Standard,
        }
    }
}

/// What decides how the network behaves; as [`SimOptions`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Net {
    pub ranks: u32,
    pub seed: u64,
    pub least_ns: u64,
    pub most_ns: u64,
    pub ns_per_byte: f64,
    pub capacity: usize,
    pub payload: usize,
    pub inline: usize,
    pub get: bool,
    pub put: bool,
    pub atomics: bool,
    pub mapped: bool,
    pub held: bool,
}

impl From<&SimOptions> for Net {
    fn from(o: &SimOptions) -> Self {
        Self {
            ranks: o.ranks,
            seed: o.seed,
            least_ns: *o.latency_ns.start(),
            most_ns: *o.latency_ns.end(),
            ns_per_byte: o.ns_per_byte,
            capacity: o.capacity_messages,
            payload: o.max_payload_bytes,
            inline: o.inline_bytes,
            get: o.get,
            put: o.put,
            atomics: o.atomics,
            mapped: o.mapped,
            held: o.held,
        }
    }
}

impl From<&Net> for SimOptions {
    fn from(n: &Net) -> Self {
        Self {
            ranks: n.ranks,
            seed: n.seed,
            latency_ns: n.least_ns..=n.most_ns,
            ns_per_byte: n.ns_per_byte,
            machine: None,
            capacity_messages: n.capacity,
            max_payload_bytes: n.payload,
            inline_bytes: n.inline,
            get: n.get,
            put: n.put,
            atomics: n.atomics,
            mapped: n.mapped,
            auto_advance: false,
            held: n.held,
        }
    }
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// A message is lost.
    Lose,
    /// A message arrives twice.
    Repeat,
    /// A message overtakes the one before.
    Overtake,
    /// A credit never returns.
    KeepCredit,
    /// A get or put misses its last byte.
    ShortCopy,
}

/// A fault of the network, for tests of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Rank that posts.
    pub from: u32,
    /// Rank that receives, or owns the region.
    pub to: u32,
    /// Kind of the message by its number on the wire; `None`: any.
    pub kind: Option<u8>,
    /// What goes wrong.
    pub what: Wrong,
}

impl From<&Fault> for sim::Fault {
    fn from(f: &Fault) -> Self {
        Self {
            from: f.from,
            to: f.to,
            kind: f.kind,
            what: match f.what {
                Wrong::Lose => sim::Wrong::Lose,
                Wrong::Repeat => sim::Wrong::Repeat,
                Wrong::Overtake => sim::Wrong::Overtake,
                Wrong::KeepCredit => sim::Wrong::KeepCredit,
                Wrong::ShortCopy => sim::Wrong::ShortCopy,
            },
        }
    }
}

/// All that decides a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub net: Net,
    pub costs: LinkCosts,
    /// Ranks by peer, for each context.
    pub members: Vec<Vec<u32>>,
    /// Of intercommunicators, how many of the members are on the first side; 0:
    /// all are in one group.
    #[serde(default)]
    pub first_sides: Vec<usize>,
    #[serde(default)]
    pub parted: Vec<Parted>,
    /// As `OSIER_CHECK`, in bits.
    #[serde(default)]
    pub checks: u32,
    pub messages: Vec<Planned>,
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Bytes may be corrupted: only rule 7 holds then.
    #[serde(default)]
    pub corruption: bool,
    /// Results are taken after every act.
    #[serde(default)]
    pub harvests: bool,
    pub acts: Vec<Act>,
}

impl Case {
    pub fn selection(&self) -> Selection {
        Selection::new(self.costs, self.net.inline)
    }

    /// The sides of a context's ranks; the second is empty unless it is an
    /// intercommunicator.
    pub fn sides(&self, context: usize) -> (&[u32], &[u32]) {
        let members = &self.members[context];
        match self.first_sides.get(context) {
            Some(&first) if first > 0 => members.split_at(first.min(members.len())),
            _ => (members, &[]),
        }
    }

    /// The ranks behind a rank's peers in a context.
    pub fn peers(&self, context: usize, rank: u32) -> Vec<u32> {
        let (first, second) = self.sides(context);
        if second.is_empty() {
            return first.to_vec();
        }
        let other = if first.contains(&rank) { second } else { first };
        other.iter().copied().chain([rank]).collect()
    }

    /// One line, to be played again.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("numbers, flags and lists")
    }

    /// Reads such a line.
    pub fn from_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|e| format!("no case: {e}"))
    }
}
