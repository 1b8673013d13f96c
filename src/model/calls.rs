//! Costs of collective calls: the table that all ranks of a job agree on, and the
//! planner's machine made from it.
//!
//! A message of a collective costs as much as between two otherwise idle ranks:
//! the time from its send to the end of its receive, and the time for which it occupies either
//! processor, by size, for each class of links. A class is the innermost part of the
//! machine that contains both ranks.
//!
//! # Invariants
//! 1. All ranks of a job have the same table: the launcher leaves it before they start.
//!    It changes only in a collective call ([`crate::Communicator::adopt_costs`]).
//! 2. Points are in order of size, with finite times above 0, and no message takes less
//!    than a shorter one ([`CallCosts::checked`]).

use crate::model::{DeviceCalls, Gpu, NOT_PERMITTED_NS, Part};
use osier_collectives::{
    Curve, Executor, Machine, Piecewise, Point, Segment, SharedCores, Topology,
};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::{AT_ONCE_BYTES, Memory, Selection};
use osier_transports::shm::SLOT_BYTES;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of a vector up to which a call may run inline.
pub(crate) const ROW_BYTES: u64 = osier_engine::exec::inline::MOST_BYTES as u64;

/// Costs of messages of one size between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageCost {
    /// Size of the message.
    pub bytes: u64,
    /// From its send to the end of its receive, in ns, if both ends are idle.
    pub one_way_ns: f64,
    /// Time for which it occupies the processor of either end, in ns.
    pub busy_ns: f64,
}

/// Costs of messages over one class of links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassCosts {
    /// The innermost part of the machine that contains both ends: `core`, `l3cache`,
    /// `numanode`, `package`, `machine`.
    pub class: String,
    /// By size.
    pub messages: Vec<MessageCost>,
    /// Of messages from memory that no call before has written, from some size on; if empty,
    /// they cost as others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<MessageCost>,
    /// What flags cost over these links; none: as over those of [`CallCosts::segment`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<FlagCosts>,
}

/// What plans whose flags lie in a segment cost over one class of links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlagCosts {
    /// From a flag's store until the rank that waits for it goes on, in ns.
    pub flag_ns: f64,
    /// Copies out of a peer's slot.
    pub read: Vec<WorkCost>,
}

/// Cost of work of one size for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkCost {
    /// Bytes of the result.
    pub bytes: u64,
    /// In ns.
    pub ns: f64,
}

/// Costs of collective calls on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCosts {
    /// By class of links; only existing ones.
    pub classes: Vec<ClassCosts>,
    /// Beginning and ending an inline call, in ns.
    #[serde(default)]
    pub row_ns: f64,
    /// The same of a call that the executor runs.
    pub run_ns: f64,
    /// Each step of such a call, in ns.
    pub step_ns: f64,
    /// Copies within a rank.
    pub copy: Vec<WorkCost>,
    /// Combining two vectors: sums of doubles.
    pub combine: Vec<WorkCost>,
    /// Error of predictions by this table where it was measured, at the median, as a
    /// fraction of the measurement.
    #[serde(default = "unknown_error")]
    pub error: f64,
    /// The same for buffers in device memory, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceCalls>,
    /// Flags and slots in the memory that the ranks of a host share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<SegmentCosts>,
    /// Ranks that share a core, which [`CallCosts::shared_by`] tells; 0 where none do.
    #[serde(skip)]
    pub ranks_per_core: u32,
}

/// What calls cost whose flags lie in a segment that their ranks share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentCosts {
    /// From a flag's store until the rank that waits for it goes on, in ns.
    pub flag_ns: f64,
    /// Each step of a call of several segments, in ns.
    #[serde(default = "unknown_step")]
    pub step_ns: f64,
    /// For how long a rank that waits leaves its core to those that share it: of ranks that
    /// do, which [`CallCosts::shared_by`] tells.
    #[serde(skip)]
    pub switch_ns: f64,
    /// Copies into a slot that peers have read.
    pub write: Vec<WorkCost>,
    /// Copies out of a peer's slot.
    pub read: Vec<WorkCost>,
    /// Copies out of plain memory of a peer by the system, which the costs of messages tell; none:
    /// it does not permit them, or that is not known.
    #[serde(skip)]
    pub attach: Vec<WorkCost>,
}

impl SegmentCosts {
    /// Estimate from the costs of messages.
    fn estimated(links: &LinkCosts) -> SegmentCosts {
        let line = |start: f64, ns_per_byte: f64| -> Vec<WorkCost> {
            [0, 4 << 20]
                .map(|bytes: u64| WorkCost {
                    bytes,
                    ns: start + bytes as f64 * ns_per_byte,
                })
                .into()
        };
        SegmentCosts {
            flag_ns: links.latency_ns / 2.0,
            step_ns: unknown_step(),
            switch_ns: 0.0,
            write: line(10.0, 2.0 * links.copy_ns_per_byte),
            read: line(10.0, links.copy_ns_per_byte),
            attach: Vec::new(),
        }
    }

    /// Takes up what was measured of the system's copies.
    pub(crate) fn know_links(&mut self, links: &LinkCosts) {
        let ns = |bytes: u64| links.attach_call_ns + bytes as f64 * links.attach_ns_per_byte;
        let point = |bytes: u64| WorkCost {
            bytes,
            ns: round(ns(bytes)),
        };
        self.attach = match links.attach_call_ns < NOT_PERMITTED_NS {
            true => vec![point(0), point(4 << 20)],
            false => Vec::new(),
        };
    }

    /// Its curves, by name.
    fn works(&self) -> [(&'static str, &[WorkCost]); 2] {
        [
            ("calls.segment.write", &self.write),
            ("calls.segment.read", &self.read),
        ]
    }

    /// Those that depend on the peer.
    pub(crate) fn flags(&self) -> FlagCosts {
        FlagCosts {
            flag_ns: self.flag_ns,
            read: self.read.clone(),
        }
    }

    /// As the planner has it, for links of these classes by distance.
    pub(crate) fn planned(&self, by_distance: &[&ClassCosts]) -> Segment {
        let apart = |class: &&ClassCosts| match &class.flags {
            Some(flags) => (flags.flag_ns, line(&flags.read)),
            None => (self.flag_ns, line(&self.read)),
        };
        let differ = by_distance.iter().any(|class| class.flags.is_some());
        Segment {
            apart: match differ {
                true => by_distance.iter().map(apart).collect(),
                false => Vec::new(),
            },
            flag_ns: self.flag_ns,
            step_ns: self.step_ns,
            switch_ns: self.switch_ns,
            write: line(&self.write),
            read: line(&self.read),
            // Slots are quicker where each rank has its core.
            attach: (self.switch_ns > 0.0 && !self.attach.is_empty()).then(|| line(&self.attach)),
            slot_bytes: match self.switch_ns > 0.0 {
                true => SLOT_BYTES as u64,
                false => SLOT_BYTES as u64 / 2,
            },
        }
    }
}

/// A step of a call in a segment that is not worked out before, where it was not measured: three
/// runs of `osier model measure` on an AMD EPYC of family 25 (2 virtual cores, near), 2026-11-25.
fn unknown_step() -> f64 {
    24.0
}

/// Error of a table that was never compared with measurements.
fn unknown_error() -> f64 {
    0.5
}

/// Switching a core to another rank by a yield: 1.2 us where two processes alternate on a core,
/// 1.7 to 1.9 where 8 to 32 do (2-core virtual machine, AMD EPYC of family 25, Linux 6.18,
/// 2026-11-25; 2.2 to 2.6 us of two on 2026-11-22).
const SWITCH_NS: f64 = 1700.0;
/// Turns of all ranks of a core for a message that is waited for: exchanges of 16 KiB by 4 and
/// 16 ranks on two cores take 1.8 to 1.9 times what one turn predicts (the same machine and day).
const MESSAGE_TURNS: f64 = 2.0;

/// Classes of links, innermost first.
const CLASSES: [&str; 8] = [
    "pu",
    "core",
    "l3cache",
    "pcieswitch",
    "numanode",
    "package",
    "machine",
    "network",
];

impl CallCosts {
    /// Estimate from the costs of messages alone, where no call was measured.
    pub fn estimated(links: &LinkCosts) -> CallCosts {
        let selection = Selection::new(*links, AT_ONCE_BYTES);
        let eager = selection.eager_max(Memory::Plain);
        let mut messages: Vec<MessageCost> = Vec::new();
        for log in [0, 3, 6, 9, 11, 13, 14, 15, 16, 18, 20, 22] {
            let bytes = 1usize << log;
            let protocol = selection.choose(bytes, Memory::Plain);
            let one_way_ns = selection.predicted_ns(bytes, protocol);
            let copied = bytes as f64 * links.copy_ns_per_byte;
            let busy_ns = match bytes <= eager {
                true => (links.overhead_ns / 2.0 + copied).min(one_way_ns / 2.0),
                // Both ends copy, or wait for the other's copy.
                false => one_way_ns,
            };
            messages.push(MessageCost {
                bytes: bytes as u64,
                one_way_ns,
                busy_ns,
            });
        }
        rise(&mut messages);
        let work = |ns_per_byte: f64| -> Vec<WorkCost> {
            [(0, 20.0), (4 << 20, ns_per_byte * f64::from(4 << 20))]
                .map(|(bytes, ns)| WorkCost { bytes, ns })
                .into()
        };
        CallCosts {
            classes: vec![ClassCosts {
                class: "machine".into(),
                messages,
                kept: Vec::new(),
                flags: None,
            }],
            row_ns: 0.0,
            // As on the machine of the built-in costs of links: a rough estimate.
            run_ns: 500.0,
            step_ns: 100.0,
            copy: work(links.copy_ns_per_byte),
            combine: work(links.copy_ns_per_byte),
            error: unknown_error(),
            devices: None,
            segment: Some(SegmentCosts::estimated(links)),
            ranks_per_core: 0,
        }
    }

    /// Returns itself, if its numbers are valid.
    ///
    /// # Errors
    /// The invalid number.
    pub fn checked(self) -> std::result::Result<CallCosts, String> {
        let rising = |name: &str, points: &[(u64, f64)]| {
            if points.len() < 2 {
                return Err(format!("{name}: {} points, expected 2", points.len()));
            }
            for (bytes, ns) in points {
                if !(ns.is_finite() && *ns > 0.0) {
                    return Err(format!(
                        "{name} at {bytes} bytes is {ns}, expected more than 0"
                    ));
                }
            }
            match points
                .windows(2)
                .find(|w| w[0].0 >= w[1].0 || w[0].1 > w[1].1)
            {
                Some(w) => Err(format!("{name} falls from {:?} to {:?}", w[0], w[1])),
                None => Ok(()),
            }
        };
        let on_devices = self.devices.as_ref();
        let of_devices = on_devices.map_or(&[][..], |devices| &devices.classes);
        if self.classes.is_empty() || on_devices.is_some() && of_devices.is_empty() {
            return Err("calls.classes is empty".into());
        }
        for class in self.classes.iter().chain(of_devices) {
            for messages in [&class.messages, &class.kept] {
                if messages.is_empty() && !class.messages.is_empty() {
                    continue;
                }
                let points = |ns: fn(&MessageCost) -> f64| -> Vec<(u64, f64)> {
                    messages.iter().map(|m| (m.bytes, ns(m))).collect()
                };
                rising(&class.class, &points(|m| m.one_way_ns))?;
                rising(&class.class, &points(|m| m.busy_ns))?;
                if let Some(m) = messages.iter().find(|m| m.busy_ns > m.one_way_ns) {
                    return Err(format!(
                        "{}: {} bytes keep an end busy for longer than they take",
                        class.class, m.bytes
                    ));
                }
            }
        }
        let works: [(_, &[WorkCost]); 2] =
            [("calls.copy", &self.copy), ("calls.combine", &self.combine)];
        let there = on_devices.map(DeviceCalls::works);
        let shared = self.segment.as_ref().map(SegmentCosts::works);
        let others = there.into_iter().flatten();
        for (name, works) in (works.into_iter().chain(others)).chain(shared.into_iter().flatten()) {
            let points: Vec<(u64, f64)> = works.iter().map(|w| (w.bytes, w.ns)).collect();
            rising(name, &points)?;
        }
        for flags in self.classes.iter().filter_map(|c| c.flags.as_ref()) {
            let points: Vec<(u64, f64)> = flags.read.iter().map(|w| (w.bytes, w.ns)).collect();
            rising("flags.read", &points)?;
            if !(flags.flag_ns.is_finite() && flags.flag_ns >= 0.0) {
                return Err(format!(
                    "flags.flag_ns is {}, expected 0 or more",
                    flags.flag_ns
                ));
            }
        }
        for (name, ns) in [
            ("calls.row_ns", self.row_ns),
            ("calls.run_ns", self.run_ns),
            ("calls.step_ns", self.step_ns),
            ("calls.error", self.error),
            (
                "calls.segment.flag_ns",
                self.segment.as_ref().map_or(0.0, |s| s.flag_ns),
            ),
            (
                "calls.segment.step_ns",
                self.segment.as_ref().map_or(0.0, |s| s.step_ns),
            ),
        ] {
            if !(ns.is_finite() && ns >= 0.0) {
                return Err(format!("{name} is {ns}, expected 0 or more"));
            }
        }
        Ok(self)
    }

    /// Digest of the table: equal tables have equal digests.
    pub fn version(&self) -> u64 {
        // FNV-1a of its text: the same on all machines.
        let text = serde_json::to_vec(self).unwrap_or_default();
        text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// The same where each core is shared by this number of ranks: one of them works at a time,
    /// and a rank that waits leaves the core to all others, once for each phase of a segment, and
    /// more often for a message.
    pub fn shared_by(&self, ranks_per_core: u32) -> CallCosts {
        let mut table = self.clone();
        if ranks_per_core <= 1 {
            return table;
        }
        let switches = f64::from(ranks_per_core - 1) * SWITCH_NS;
        for m in table
            .classes
            .iter_mut()
            .flat_map(|c| c.messages.iter_mut().chain(&mut c.kept))
        {
            m.one_way_ns += MESSAGE_TURNS * switches;
        }
        if let Some(segment) = &mut table.segment {
            segment.switch_ns = switches;
        }
        table.ranks_per_core = ranks_per_core;
        table
    }

    /// The same for plans of buffers of the host; with flags and slots, if the ranks share a
    /// segment and their costs are known.
    pub fn machine_of_host(
        &self,
        ranks: &[u32],
        places: Option<&Places>,
        eager_bytes: usize,
        shares_segment: bool,
    ) -> Machine {
        let mut machine = self.machine(ranks, places, eager_bytes);
        let costs = self.segment.as_ref().filter(|_| shares_segment);
        let (_, classes) = paths(ranks, places);
        let by_distance = classes.iter().map(|name| class(&self.classes, name));
        let by_distance: Vec<&ClassCosts> = by_distance.collect();
        machine.segment = costs.map(|costs| Arc::new(costs.planned(&by_distance)));
        machine
    }

    /// The planner's machine of these ranks of a job, for messages alone. Above `eager_bytes` messages wait
    /// for both ends.
    pub fn machine(&self, ranks: &[u32], places: Option<&Places>, eager_bytes: usize) -> Machine {
        let curve = |class: &str, kept: bool| curve(&self.classes, class, kept);
        let (paths, classes) = paths(ranks, places);
        Machine {
            places: paths.into(),
            links: classes.iter().map(|class| curve(class, false)).collect(),
            kept: classes.iter().map(|class| curve(class, true)).collect(),
            combine: line(&self.combine),
            copy: line(&self.copy),
            eager_bytes: eager_bytes as f64,
            executor: Executor {
                row_bytes: ROW_BYTES as f64,
                row_ns: self.row_ns,
                run_ns: self.run_ns,
                step_ns: self.step_ns,
            },
            shared_cores: (self.ranks_per_core > 1).then_some(SharedCores {
                ranks_per_core: self.ranks_per_core,
                in_blocks: false,
            }),
            error: self.error,
            aside: None,
            joined: None,
            one_kernel: None,
            segment: None,
        }
    }
}

/// Costs of a class of links; of the next farther measured one, or else of the
/// farthest.
fn class<'a>(classes: &'a [ClassCosts], wanted: &str) -> &'a ClassCosts {
    let order = |class: &str| {
        let at = CLASSES.iter().position(|c| *c == class);
        at.unwrap_or(CLASSES.len() - 2)
    };
    let (named, wanted) = (wanted, order(wanted));
    let apart = |c: &&ClassCosts| {
        let at = order(&c.class);
        match at >= wanted {
            true => at - wanted,
            false => CLASSES.len() + wanted - at,
        }
    };
    // Links between pairs of devices stand for no other class, unless there are only such.
    let own = |c: &ClassCosts| is_device_link(&c.class);
    if let Some(found) = classes.iter().find(|c| own(c) && c.class == named) {
        return found;
    }
    let nearest = classes.iter().filter(|c| !own(c)).min_by_key(apart);
    let nearest = nearest.or(classes.first());
    nearest.expect("a table has a class")
}

/// Whether a class is one of links between pairs of devices, and not a part of the machine.
fn is_device_link(class: &str) -> bool {
    class == "same" || class.starts_with("NV")
}

/// Costs of messages of a class by size, from unchanged buffers or others.
pub(super) fn curve(classes: &[ClassCosts], wanted: &str, kept: bool) -> Curve {
    let class = class(classes, wanted);
    let rest: &[MessageCost] = if kept { &class.kept } else { &[] };
    let from = rest.first().map_or(u64::MAX, |m| m.bytes);
    let short = class.messages.iter().filter(|m| m.bytes < from);
    let points: Vec<Point> = short
        .chain(rest)
        .map(|m| Point {
            bytes: m.bytes as f64,
            one_way_ns: m.one_way_ns,
            busy_ns: m.busy_ns,
        })
        .collect();
    Curve::measured(&points)
}

/// Cost of work by size.
pub(super) fn line(works: &[WorkCost]) -> Piecewise {
    let points: Vec<(f64, f64)> = works.iter().map(|w| (w.bytes as f64, w.ns)).collect();
    Piecewise::through(&points)
}

/// Paths of some ranks of a job, and the class of links by distance.
pub(super) fn paths(ranks: &[u32], places: Option<&Places>) -> (Vec<Vec<u32>>, Vec<String>) {
    match places {
        Some(places) => places.of_ranks(ranks),
        None => (vec![Vec::new(); ranks.len()], vec!["machine".to_owned()]),
    }
}

/// Makes costs of messages grow with size, and limits occupation of an end to the
/// duration.
pub(crate) fn rise(messages: &mut [MessageCost]) {
    let (mut one_way, mut busy) = (0.1f64, 0.1f64);
    for m in messages {
        one_way = one_way.max(m.one_way_ns);
        busy = busy.max(m.busy_ns).min(one_way);
        (m.one_way_ns, m.busy_ns) = (round(one_way), round(busy));
    }
}

/// Rounded to a tenth of a nanosecond: finer digits are noise, and make long texts.
pub(crate) fn round(ns: f64) -> f64 {
    (ns * 10.0).round() / 10.0
}

/// Positions of the ranks of a job in its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Names of levels, outermost first.
    pub levels: Vec<String>,
    /// By rank: the number of the part at each level; none where a rank spans several.
    pub ranks: Vec<Vec<Option<u32>>>,
}

impl Places {
    /// Of ranks that are bound to these processors each.
    pub fn of(machine: &Part, bound: &[Vec<usize>]) -> Places {
        let mut levels: Vec<String> = Vec::new();
        let mut part = machine;
        while let Some(inner) = part.parts.first() {
            levels.push(inner.level.to_owned());
            part = inner;
        }
        let path = |cpus: &Vec<usize>| {
            let mut part = Some(machine);
            let level = |_: &String| {
                let holds = |p: &&Part| cpus.iter().all(|c| p.processors.contains(c));
                part = part?.parts.iter().find(holds);
                part.map(|p| p.number)
            };
            levels.iter().map(level).collect()
        };
        let ranks = bound.iter().map(path).collect();
        Places { levels, ranks }
    }

    /// Of ranks that have these GPUs round robin: the memory node and the PCIe switch of each.
    pub fn of_gpus(gpus: &[&Gpu], ranks: u32) -> Places {
        let place = |rank: u32| match gpus.len() {
            0 => vec![None; 2],
            n => gpus[rank as usize % n].place().to_vec(),
        };
        Places {
            levels: ["numanode", "pcieswitch"].map(str::to_owned).into(),
            ranks: (0..ranks).map(place).collect(),
        }
    }

    /// As levels and paths, without levels that carry no information.
    pub fn topology(&self) -> Topology {
        let levels: Vec<&str> = self.levels.iter().map(String::as_str).collect();
        Topology::of(&levels, &self.ranks).simplified()
    }

    /// The innermost part that contains two ranks.
    pub fn class(&self, a: u32, b: u32) -> &str {
        let path = |rank: u32| self.ranks.get(rank as usize).map_or(&[][..], |p| p);
        let both = path(a).iter().zip(path(b));
        let common = both.take_while(|(a, b)| a.is_some() && a == b).count();
        match common {
            0 => "machine",
            n => &self.levels[n - 1],
        }
    }

    /// Paths of some ranks of the job, and the class of links by distance.
    fn of_ranks(&self, ranks: &[u32]) -> (Vec<Vec<u32>>, Vec<String>) {
        let known = |rank: &u32| self.ranks.get(*rank as usize).cloned();
        let unknown = || vec![None; self.levels.len()];
        let some = Places {
            levels: self.levels.clone(),
            ranks: ranks
                .iter()
                .map(|r| known(r).unwrap_or_else(unknown))
                .collect(),
        };
        let topology = some.topology();
        let paths = topology.places().to_vec();
        let distances = topology.levels().len() + 1;
        let mut classes = vec![None; distances];
        // From the first rank of each innermost part: all pairs at a distance are alike.
        let mut firsts: Vec<usize> = Vec::new();
        for rank in 0..ranks.len() {
            let mut near = firsts.iter().filter(|f| paths[**f] == paths[rank]);
            if let Some(first) = near.next() {
                if classes[0].is_none() {
                    classes[0] = Some(some.class(*first as u32, rank as u32).to_owned());
                }
                continue;
            }
            for first in &firsts {
                let (a, b) = (&paths[*first], &paths[rank]);
                let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                let class = &mut classes[a.len() - common];
                if class.is_none() {
                    *class = Some(some.class(*first as u32, rank as u32).to_owned());
                }
            }
            firsts.push(rank);
        }
        // A distance without a pair costs as much as the next.
        let mut last = "machine".to_owned();
        for class in classes.iter_mut().rev() {
            match class {
                Some(class) => last.clone_from(class),
                None => *class = Some(last.clone()),
            }
        }
        (paths, classes.into_iter().flatten().collect())
    }
}

/// Refuses an invalid table.
pub(crate) fn refused(what: String) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("costs of calls: {what} (hint: osier model measure)"),
    )
}

/// A table from another rank.
pub(crate) fn parsed(text: &[u8]) -> Result<CallCosts> {
    let table: CallCosts = serde_json::from_slice(text).map_err(|e| refused(e.to_string()))?;
    table.checked().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        let rank = |package, cache, core| vec![Some(package), Some(cache), Some(core)];
        Places {
            levels: ["package", "l3cache", "core"].map(str::to_owned).into(),
            ranks: vec![
                rank(0, 0, 0),
                rank(0, 0, 1),
                rank(0, 1, 2),
                rank(1, 2, 4),
                vec![Some(1), None, None],
            ],
        }
    }

    #[test]
    fn links_are_of_the_innermost_part_that_holds_both_ends() {
        let places = places();
        assert_eq!(places.class(0, 1), "l3cache");
        assert_eq!(places.class(0, 2), "package");
        assert_eq!(places.class(3, 4), "package");
        assert_eq!(places.class(0, 3), "machine");
        assert_eq!(places.class(0, 99), "machine");
        let (paths, classes) = places.of_ranks(&[0, 1, 2, 3]);
        assert!(paths.iter().all(|p| p.len() == 2), "{paths:?}");
        assert_eq!(classes, ["l3cache", "package", "machine"]);
        // Two ranks define no levels, only the link between them.
        assert_eq!(
            places.of_ranks(&[1, 0]),
            (vec![vec![]; 2], vec!["l3cache".into()])
        );
        assert_eq!(
            places.of_ranks(&[2]),
            (vec![vec![]], vec!["machine".into()])
        );
    }

    #[test]
    fn machines_have_the_costs_of_their_classes() {
        let mut table = CallCosts::estimated(&LinkCosts::default());
        let mut near = table.classes[0].clone();
        near.class = "l3cache".into();
        for m in &mut near.messages {
            m.one_way_ns /= 2.0;
            m.busy_ns /= 2.0;
        }
        table.classes.push(near);
        let machine = table.machine(&[0, 1, 2, 3], Some(&places()), 8192);
        assert_eq!(machine.links.len(), 3);
        let at = |distance: usize| machine.links[distance].of(8.0).one_way_ns(8.0);
        assert!((2.0 * at(0) - at(2)).abs() < 1.0);
        // Unmeasured classes cost as the farther one.
        assert!((at(1) - at(2)).abs() < 1e-9);
        assert_eq!(machine.distance(0, 1), 0);
        assert_eq!(machine.distance(0, 3), 2);
    }

    #[test]
    fn ranks_that_share_cores_wait_for_switches() {
        let table = CallCosts::estimated(&LinkCosts::default());
        assert_eq!(table.shared_by(1), table);
        let shared = table.shared_by(3).checked().unwrap();
        let at = |table: &CallCosts| table.classes[0].messages[0];
        let (alone, both) = (at(&table), at(&shared));
        let turns = 2.0 * MESSAGE_TURNS * SWITCH_NS;
        assert!((both.one_way_ns - alone.one_way_ns - turns).abs() < 1e-6);
        assert_eq!(both.busy_ns, alone.busy_ns);
        let away = |table: &CallCosts| table.segment.as_ref().map(|s| s.switch_ns);
        assert_eq!(away(&table), Some(0.0));
        assert_eq!(away(&shared), Some(2.0 * SWITCH_NS));
    }

    #[test]
    fn estimates_make_sense_and_tables_tell_themselves_apart() {
        let table = CallCosts::estimated(&LinkCosts::default())
            .checked()
            .unwrap();
        let mut other = table.clone();
        other.run_ns += 1.0;
        assert_ne!(table.version(), other.version());
        let text = serde_json::to_vec(&table).unwrap();
        assert_eq!(parsed(&text).unwrap(), table);
        for spoil in [
            |t: &mut CallCosts| t.run_ns = f64::NAN,
            |t: &mut CallCosts| t.classes.clear(),
            |t: &mut CallCosts| t.copy.clear(),
            |t: &mut CallCosts| t.combine[1].ns = 0.0,
            |t: &mut CallCosts| t.classes[0].messages.swap(0, 1),
            |t: &mut CallCosts| t.classes[0].kept = vec![t.classes[0].messages[0]; 2],
            |t: &mut CallCosts| t.classes[0].messages[2].busy_ns = 1e9,
        ] {
            let mut bad = table.clone();
            spoil(&mut bad);
            assert!(bad.clone().checked().is_err(), "{bad:?}");
        }
    }
}
