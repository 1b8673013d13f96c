//! What work and messages of a simulated plan occupy: ranks, cores, ports and shared ways, each
//! by one at a time ([`super::simulate`]).

use super::machine::{Link, Machine};
use super::simulate::Model;
use crate::device_links::DeviceLink;
use std::collections::HashMap;

/// Share of a line's time that each of many takes which are read in a row: processors fetch several
/// at once.
const LINES_AT_ONCE: f64 = 1.0 / 3.0;

/// A step of a plan that left the core's caches while its other ranks ran, ns: a barrier and an
/// allreduce of 8 bytes of 64 ranks on two cores of an AMD EPYC of family 26, in one phase, take 35
/// and 150 us more than their turns alone.
const COLD_STEP_NS: f64 = 15.0;

/// A message as far as costs depend on it.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub bytes: f64,
    /// From memory that no step writes.
    pub kept: bool,
    /// From the host's memory, and to it.
    pub aside: bool,
}

impl Message {
    pub const FLAG: Message = Message {
        bytes: 0.0,
        kept: false,
        aside: false,
    };
}

/// Something that one message or computation uses at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    /// From when on it is free,
    free: f64,
    /// and for how long it was used.
    used: f64,
}

impl Way {
    fn take(&mut self, from: f64, ns: f64) {
        self.free = from + ns;
        self.used += ns;
    }
}

/// What messages need.
pub(super) struct Ways<'a> {
    machine: &'a Machine,
    model: Model,
    /// Bytes of what messages are parts of,
    whole: f64,
    /// and how many times as long they take as of that alone.
    beyond: f64,
    processor: Vec<Way>,
    /// By core,
    core: Vec<Way>,
    /// and by rank the core that it shares; empty: each rank has one of its own.
    core_of: Vec<usize>,
    /// By rank: of each instance of a step.
    pub step: Vec<f64>,
    /// By rank; with the host's memory aside, then by rank and distance for messages there.
    out: Vec<Way>,
    into: Vec<Way>,
    /// By rank: what its device computes.
    device: Vec<Way>,
    /// By sender and receiver that links of their own join: the port.
    joined: HashMap<(u32, u32), usize>,
    /// By rank: the numbers of the parts of the machine that it is in, inside out; `depth` of
    /// them for each.
    parts: Vec<u32>,
    depth: usize,
    /// Ways out of and into each part.
    shared: Vec<[Way; 2]>,
    pub messages: u64,
    pub bytes: Vec<f64>,
}

impl<'a> Ways<'a> {
    pub fn new(machine: &'a Machine, model: Model, size: u32, (whole, beyond): (f64, f64)) -> Self {
        let ranks = size as usize;
        let mut numbers: HashMap<&[u32], u32> = HashMap::new();
        let parts = machine.places[..ranks].iter().flat_map(|path| {
            let insideout = (1..=path.len()).rev();
            insideout.map(|length| &path[..length])
        });
        let parts = parts
            .map(|part| {
                let next = numbers.len() as u32;
                *numbers.entry(part).or_insert(next)
            })
            .collect();
        let mut ports = match machine.aside {
            Some(_) => ranks * (1 + machine.links.len()),
            None => ranks,
        };
        let mut joined = HashMap::new();
        if let Some(all) = &machine.joined {
            // First a port of each rank into switches.
            let (switches, mut direct) = (ports, ports + ranks);
            for (a, b, device_link) in all.device_links.pairs().filter(|(_, b, _)| *b < size) {
                for (from, to) in [(a, b), (b, a)] {
                    let port = match device_link {
                        DeviceLink::Switched(_) => switches + from as usize,
                        DeviceLink::Direct(_) | DeviceLink::Same => direct,
                    };
                    direct += usize::from(port == direct);
                    joined.insert((from, to), port);
                }
            }
            ports = direct;
        }
        let (cores, core_of) = match machine.shared_cores {
            Some(shared) => {
                let (cores, core) = shared.of(ranks);
                (cores, (0..ranks).map(core).collect())
            }
            None => (0, Vec::new()),
        };
        Self {
            machine,
            model,
            whole,
            beyond,
            processor: vec![Way::default(); ranks],
            core: vec![Way::default(); cores],
            core_of,
            step: vec![0.0; ranks],
            out: vec![Way::default(); ports],
            into: vec![Way::default(); ports],
            device: vec![Way::default(); if machine.aside.is_some() { ranks } else { 0 }],
            joined,
            parts,
            depth: machine.places[0].len(),
            shared: vec![[Way::default(); 2]; numbers.len()],
            messages: 0,
            bytes: vec![0.0; machine.links.len()],
        }
    }

    /// What a step takes that reads a line of a peer, beside what ranks measure that have a core each:
    /// where others run on its core meanwhile, neither the step is in the caches nor the line, if
    /// the peer is on another core; ns.
    pub(super) fn cold_ns(&self, rank: u32, peer: u32) -> f64 {
        let core = |rank: u32| self.core_of.get(rank as usize);
        let segment = self.machine.segment.as_ref();
        match (core(rank), core(peer)) {
            (None, _) => 0.0,
            (own, other) if own == other => COLD_STEP_NS,
            _ => COLD_STEP_NS + segment.map_or(0.0, |s| s.flag_ns(0) * LINES_AT_ONCE),
        }
    }

    /// For how long the busiest was used.
    pub fn most_used(&self) -> f64 {
        let all = self.processor.iter().chain(&self.core);
        let all = all.chain(&self.out).chain(&self.into);
        let all = all.chain(&self.device).chain(self.shared.iter().flatten());
        all.map(|way| way.used).fold(0.0, f64::max)
    }

    fn parts(&self, rank: u32) -> &[u32] {
        &self.parts[rank as usize * self.depth..][..self.depth]
    }

    /// How far apart two ranks are.
    fn distance(&self, a: u32, b: u32) -> usize {
        let mut pairs = self.parts(a).iter().zip(self.parts(b));
        pairs.position(|(a, b)| a == b).unwrap_or(self.depth)
    }

    /// Occupies a rank and its core; the time at which they are free again.
    pub fn work(&mut self, now: f64, rank: u32, ns: f64) -> f64 {
        let ns = ns + self.step[rank as usize];
        let way = &mut self.processor[rank as usize];
        let mut start = way.free.max(now);
        if let Some(core) = self.core_of.get(rank as usize) {
            let core = &mut self.core[*core];
            start = start.max(core.free);
            core.take(start, ns);
        }
        way.take(start, ns);
        way.free
    }

    /// Occupies a rank that leaves its core to others; the time at which it goes on.
    pub fn away(&mut self, now: f64, rank: u32, ns: f64) -> f64 {
        let left = self.work(now, rank, 0.0);
        let way = &mut self.processor[rank as usize];
        way.take(left, ns);
        way.free
    }

    /// Copies or combines: the processor does, or begins it on the device.
    pub fn compute(&mut self, now: f64, rank: u32, ns: f64) -> f64 {
        if self.machine.aside.is_none() {
            return self.work(now, rank, ns);
        }
        let begun = self.work(now, rank, 0.0);
        let way = &mut self.device[rank as usize];
        way.take(way.free.max(begun), ns);
        way.free
    }

    /// Copies between the device and the host's memory, on the device's own link.
    pub fn cross(&mut self, now: f64, rank: u32, bytes: f64, to_device: bool) -> f64 {
        let Some(aside) = &self.machine.aside else {
            return now;
        };
        let ns = match to_device {
            true => aside.to_device.of_part(bytes, self.whole),
            false => aside.to_host.of_part(bytes, self.whole),
        };
        let begun = self.work(now, rank, 0.0);
        let port = match to_device {
            true => &mut self.into[rank as usize],
            false => &mut self.out[rank as usize],
        };
        port.take(port.free.max(begun), ns);
        port.free
    }

    /// What a message costs, and the machine whose memory it is of.
    fn link(&self, from: u32, to: u32, m: Message) -> (&'a Machine, Option<DeviceLink>, Link) {
        let machine = match (&self.machine.aside, m.aside) {
            (Some(aside), true) => &aside.host,
            _ => self.machine,
        };
        let (device_link, curve) = match machine.joined {
            None => (None, machine.curve(self.distance(from, to), m.kept)),
            Some(_) => machine.way(from, to, m.kept),
        };
        let link = curve.of_part(m.bytes, self.whole);
        let link = match m.bytes > 0.0 && self.beyond > 1.0 {
            true => link.times(self.beyond),
            false => link,
        };
        (machine, device_link, link)
    }

    pub fn receive(&mut self, now: f64, from: u32, rank: u32, m: Message) -> f64 {
        match self.model {
            Model::Hockney => now,
            Model::LogGp => {
                let (_, _, link) = self.link(from, rank, m);
                self.work(now, rank, link.work_ns(m.bytes))
            }
        }
    }

    /// When the sender has its memory back, and when all is there.
    pub fn message(&mut self, now: f64, from: u32, to: u32, m: Message) -> (f64, f64) {
        let bytes = m.bytes;
        let distance = self.distance(from, to);
        let (machine, device_link, link) = self.link(from, to, m);
        // From the host's memory each distance has a way of its own, and so has a pair that
        // is joined.
        let port = |one: u32, other: u32| match (device_link, m.aside) {
            (Some(DeviceLink::Switched(_)), _) => self.joined[&(one, other)],
            (Some(DeviceLink::Direct(_) | DeviceLink::Same), _) => self.joined[&(from, to)],
            (None, true) => (1 + distance) * self.processor.len() + one as usize,
            (None, false) => one as usize,
        };
        let (out, into) = (port(from, to), port(to, from));
        let shares = if device_link.is_some() { 0 } else { distance };
        self.messages += 1;
        self.bytes[distance] += bytes;
        let wire = link.per_byte_ns * bytes;
        if self.model == Model::Hockney {
            let start = now.max(self.out[out].free).max(self.into[into].free);
            let ns = link.one_way_ns(bytes);
            self.out[out].take(start, ns);
            self.into[into].take(start, ns);
            return (start + ns, start + ns);
        }
        let worked = self.work(now, from, link.work_ns(bytes));
        let mut start = worked.max(self.out[out].free);
        let mut slowest = wire;
        for level in 1..=shares {
            let busy = machine.links[level].of(bytes).shared_per_byte_ns * bytes;
            if busy > 0.0 {
                let out = self.parts(from)[level - 1] as usize;
                let into = self.parts(to)[level - 1] as usize;
                let (out, into) = (self.shared[out][0].free, self.shared[into][1].free);
                start = start.max(out).max(into);
                slowest = slowest.max(busy);
            }
        }
        for level in 1..=shares {
            let busy = machine.links[level].of(bytes).shared_per_byte_ns * bytes;
            if busy > 0.0 {
                let out = self.parts(from)[level - 1] as usize;
                let into = self.parts(to)[level - 1] as usize;
                self.shared[out][0].take(start, busy);
                self.shared[into][1].take(start, busy);
            }
        }
        let port = link.gap_ns.max(wire);
        self.out[out].take(start, port);
        let into = &mut self.into[into];
        let arrival = (start + link.latency_ns + slowest).max(into.free + port);
        into.free = arrival;
        into.used += port;
        // A rounded difference must not turn time around.
        (start + slowest.max(0.0), arrival.max(now))
    }
}
