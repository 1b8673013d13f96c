//! How long a plan takes: its steps, played on a machine in virtual time.
//!
//! A message begins when it is posted (above `eager_bytes`: at both ends) and what it
//! needs is free. Two models say what that is:
//!
//! ```text
//!            sender                   between              receiver
//! Hockney    port: alpha + beta m                          port: the same time
//! LogGP      processor: o + o' m      L + G m              processor: o + o' m
//!            port: max(g, G m)        shared ways: G' m    port: max(g, G m)
//! ```
//!
//! The numbers may differ by size. Where both ends of a message work at it at the same
//! time, L + G m is negative: the receiver begins before the sender is done.
//!
//! Whoever asks first is served first. Copies and combinations occupy the processor.
//! Shared ways are those out of and into the parts of the machine in which both ends
//! are not: all ranks of a node share its way out. On devices ([`Aside`](super::Aside))
//! kernels copy and combine beside the processor, and what lies in the host's memory has
//! ports of its own. Links between devices ([`Joined`](crate::Joined)) have ports of their
//! own, too, one for each pair or, into a switch, one for each device, and leave no part of
//! the machine by its shared way.
//!
//! # Sources
//! R. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994;
//! A. Alexandrov et al., "LogGP", SPAA 1995.

use super::machine::{Link, Machine, Sizes};
use crate::algorithms::Plan;
use crate::check::Fault;
use crate::check::graph::{Graph, NONE};
use crate::joints::Joint;
use crate::plan::{Buffer, Part, Region, Step};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What a message costs whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// `alpha + beta m` per message; one message out and one in at a time.
    Hockney,
    /// Latency, overhead, gap, gap per byte; shared ways.
    LogGp,
}

/// What a plan was found to take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Time {
    /// When the last rank is done.
    pub last_ns: f64,
    /// When each rank is done.
    pub ranks_ns: Vec<f64>,
    /// Messages and flags.
    pub messages: u64,
    /// Bytes in messages, by distance.
    pub bytes: Vec<f64>,
}

/// Plays a plan of which all ranks begin at 0.
///
/// # Errors
/// If the plan is broken: a message without another end, or a deadlock.
pub fn simulate(
    plan: &Plan,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<Time, Fault> {
    let parts: Vec<Part> = (0..plan.call().size).map(|r| plan.part(r)).collect();
    simulate_parts(plan, &parts, sizes, machine, model)
}

/// A time as its bits, which order as the number does: none is negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct At(u64);

impl At {
    fn ns(ns: f64) -> Self {
        debug_assert!(ns >= 0.0);
        Self(ns.to_bits())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// All that a receive waits for is over. First of what happens at a time, so that
    /// messages leave in the order of their senders.
    Posted,
    /// A message or flag has come.
    Arrival,
    /// All that another instance waits for is over.
    Turn,
}

impl What {
    fn begins(step: &Step) -> Self {
        match step {
            Step::Recv { .. } => Self::Posted,
            _ => Self::Turn,
        }
    }
}

/// Plays parts that were made before; for several sizes of one plan.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_parts(
    plan: &Plan,
    parts: &[Part],
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
) -> Result<Time, Fault> {
    let call = plan.call();
    let graph = Graph::of(parts)?;
    let instances = graph.instances();
    let mut open = graph.open(parts);
    let whole = sizes.uncut();
    let mut ways = Ways::new(machine, model, call.size, whole);
    for part in parts {
        let most = machine.executor.row_bytes;
        let in_row = |pieces| matches!(sizes, Sizes::Equal(_)) && f64::from(pieces) * whole <= most;
        let rank = part.rank as usize;
        if part.row_pieces(call).is_some_and(in_row) {
            ways.processor[rank] = machine.executor.row_ns;
        } else {
            ways.processor[rank] = machine.executor.run_ns;
            ways.step[rank] = machine.executor.step_ns;
        }
    }
    let mut ranks_ns = vec![0.0f64; call.size as usize];
    // When what an instance waits for is over; when it was posted, and had arrived.
    let mut ready_at = vec![0.0f64; instances];
    let mut posted = vec![false; instances];
    let mut arrived = vec![false; instances];
    let mut queue: BinaryHeap<Reverse<(At, What, u32)>> = (0..instances as u32)
        .filter(|i| open[*i as usize] == 0)
        .map(|i| {
            let step = graph.step(parts, i % graph.total);
            Reverse((At::ns(0.0), What::begins(&step), i))
        })
        .collect();
    let mut done = 0;
    while let Some(Reverse((At(now), what, instance))) = queue.pop() {
        let now = f64::from_bits(now);
        let (segment, global) = (instance / graph.total, instance % graph.total);
        let (rank, at) = graph.place(global);
        let part = &parts[rank as usize];
        let other = match graph.other_end[global as usize] {
            NONE => instance,
            end => segment * graph.total + end,
        };
        let bytes = |region| sizes.bytes(call, part, region);
        let aside = |region| machine.aside.is_some() && is_aside(part, region);
        let message = |data| Message {
            bytes: bytes(data),
            kept: is_kept(data),
            aside: aside(data),
        };
        // A message that is received: how long, and from what memory.
        let sent = |data| {
            let (sender, _) = graph.place(other % graph.total);
            let from = graph.step(parts, other % graph.total);
            let (kept, aside) = match from {
                Step::Send { data, .. } => (
                    is_kept(data),
                    machine.aside.is_some() && is_aside(&parts[sender as usize], data),
                ),
                _ => (false, false),
            };
            Message {
                bytes: bytes(data),
                kept,
                aside,
            }
        };
        // What is over, and when.
        let over = match (part.steps()[at as usize], what) {
            (Step::Await { .. }, What::Arrival) => {
                open[instance as usize] -= 1;
                let ready = &mut ready_at[instance as usize];
                *ready = ready.max(now);
                if open[instance as usize] == 0 {
                    queue.push(Reverse((At::ns(*ready), What::Turn, instance)));
                }
                None
            }
            (Step::Recv { from, data, .. }, What::Arrival) => {
                arrived[instance as usize] = true;
                let here = posted[instance as usize];
                here.then(|| (instance, ways.receive(now, from, rank, sent(data))))
            }
            (Step::Recv { from, data, .. }, _) => {
                posted[instance as usize] = true;
                let m = sent(data);
                if arrived[instance as usize] {
                    Some((instance, ways.receive(now, from, rank, m)))
                } else if m.bytes > machine.eager_bytes && posted[other as usize] {
                    let (sent, arrival) = ways.message(now, from, rank, m);
                    queue.push(Reverse((At::ns(arrival), What::Arrival, instance)));
                    Some((other, sent))
                } else {
                    None
                }
            }
            (Step::Send { to, data, .. }, _) => {
                posted[instance as usize] = true;
                let m = message(data);
                (m.bytes <= machine.eager_bytes || posted[other as usize]).then(|| {
                    let (sent, arrival) = ways.message(now, rank, to, m);
                    queue.push(Reverse((At::ns(arrival), What::Arrival, other)));
                    (instance, sent)
                })
            }
            (Step::Raise { to, .. }, _) => {
                let (sent, arrival) = ways.message(now, rank, to, Message::FLAG);
                queue.push(Reverse((At::ns(arrival), What::Arrival, other)));
                Some((instance, sent))
            }
            (Step::Await { from, .. }, _) => {
                Some((instance, ways.receive(now, from, rank, Message::FLAG)))
            }
            (Step::Copy { from, to }, _) => {
                let m = bytes(from);
                Some((
                    instance,
                    match (aside(from), aside(to)) {
                        (false, false) => ways.compute(now, rank, machine.copy.of_part(m, whole)),
                        (from, _) => ways.cross(now, rank, m, from),
                    },
                ))
            }
            (Step::Combine { left, right, into }, _) => {
                let m = bytes(left);
                let mut work = machine.combine.of_part(m, whole);
                // Operators work in place: a third vector takes a copy first.
                if into != left && into != right {
                    work += machine.copy.of_part(m, whole);
                }
                Some((instance, ways.compute(now, rank, work)))
            }
            (Step::Read { from, data, .. }, _) => {
                let (_, arrival) = ways.message(now, from, rank, message(data));
                Some((instance, arrival))
            }
        };
        let Some((finished, end)) = over else {
            continue;
        };
        done += 1;
        let (segment, global) = (finished / graph.total, finished % graph.total);
        let (rank, _) = graph.place(global);
        ranks_ns[rank as usize] = ranks_ns[rank as usize].max(end);
        for (step, lag) in graph.later(global) {
            if segment + lag < graph.segments {
                let later = ((segment + lag) * graph.total + step) as usize;
                ready_at[later] = ready_at[later].max(end);
                open[later] -= 1;
                if open[later] == 0 {
                    let what = What::begins(&graph.step(parts, *step));
                    queue.push(Reverse((At::ns(ready_at[later]), what, later as u32)));
                }
            }
        }
    }
    if done < instances {
        return Err(Fault {
            rank: 0,
            step: None,
            segment: 0,
            what: format!(
                "{} of {instances} steps never come to run",
                instances - done
            ),
        });
    }
    Ok(Time {
        last_ns: ranks_ns.iter().copied().fold(0.0, f64::max),
        ranks_ns,
        messages: ways.messages,
        bytes: ways.bytes,
    })
}

/// Whether a message comes from the memory of the program, which no step writes.
fn is_kept(data: Region) -> bool {
    data.buffer == Buffer::Send
}

/// Whether it lies in the host's memory, wherever the call's buffers do.
fn is_aside(part: &Part, data: Region) -> bool {
    match data.buffer {
        Buffer::Scratch(k) => part.scratch[usize::from(k)].aside,
        _ => false,
    }
}

/// A message as far as costs depend on it.
#[derive(Clone, Copy)]
struct Message {
    bytes: f64,
    /// From memory that no step writes.
    kept: bool,
    /// From the host's memory, and to it.
    aside: bool,
}

impl Message {
    const FLAG: Message = Message {
        bytes: 0.0,
        kept: false,
        aside: false,
    };
}

/// When what messages need is free.
struct Ways<'a> {
    machine: &'a Machine,
    model: Model,
    /// Bytes of what messages are parts of.
    whole: f64,
    processor: Vec<f64>,
    /// By rank: of each instance of a step.
    step: Vec<f64>,
    /// By rank; with the host's memory aside, then by rank and distance for messages there.
    out: Vec<f64>,
    into: Vec<f64>,
    /// By rank: what its device computes.
    device: Vec<f64>,
    /// By sender and receiver that links of their own join: the port.
    joined: HashMap<(u32, u32), usize>,
    /// By rank: the numbers of the parts of the machine that it is in, inside out.
    parts: Vec<Vec<u32>>,
    /// Ways out of and into each part.
    shared: Vec<[f64; 2]>,
    messages: u64,
    bytes: Vec<f64>,
}

impl<'a> Ways<'a> {
    fn new(machine: &'a Machine, model: Model, size: u32, whole: f64) -> Self {
        let ranks = size as usize;
        let mut numbers: HashMap<&[u32], u32> = HashMap::new();
        let parts = machine.places[..ranks]
            .iter()
            .map(|path| {
                let insideout = (1..=path.len()).rev();
                insideout
                    .map(|length| {
                        let next = numbers.len() as u32;
                        *numbers.entry(&path[..length]).or_insert(next)
                    })
                    .collect()
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
            for (a, b, joint) in all.joints.pairs().filter(|(_, b, _)| *b < size) {
                for (from, to) in [(a, b), (b, a)] {
                    let port = match joint {
                        Joint::Switched(_) => switches + from as usize,
                        Joint::Direct(_) | Joint::Same => direct,
                    };
                    direct += usize::from(port == direct);
                    joined.insert((from, to), port);
                }
            }
            ports = direct;
        }
        Self {
            machine,
            model,
            whole,
            processor: vec![0.0; ranks],
            step: vec![0.0; ranks],
            out: vec![0.0; ports],
            into: vec![0.0; ports],
            device: vec![0.0; if machine.aside.is_some() { ranks } else { 0 }],
            joined,
            parts,
            shared: vec![[0.0; 2]; numbers.len()],
            messages: 0,
            bytes: vec![0.0; machine.links.len()],
        }
    }

    /// Occupies a rank's processor; when it is over.
    fn work(&mut self, now: f64, rank: u32, ns: f64) -> f64 {
        let free = &mut self.processor[rank as usize];
        *free = free.max(now) + ns + self.step[rank as usize];
        *free
    }

    /// Copies or combines: the processor does, or begins it on the device.
    fn compute(&mut self, now: f64, rank: u32, ns: f64) -> f64 {
        if self.machine.aside.is_none() {
            return self.work(now, rank, ns);
        }
        let begun = self.work(now, rank, 0.0);
        let free = &mut self.device[rank as usize];
        *free = free.max(begun) + ns;
        *free
    }

    /// Copies between the device and the host's memory, on the device's own link.
    fn cross(&mut self, now: f64, rank: u32, bytes: f64, to_device: bool) -> f64 {
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
        *port = port.max(begun) + ns;
        *port
    }

    /// What a message costs, and the machine whose memory it is of.
    fn link(&self, from: u32, to: u32, m: Message) -> (&'a Machine, Option<Joint>, Link) {
        let machine = match (&self.machine.aside, m.aside) {
            (Some(aside), true) => &aside.host,
            _ => self.machine,
        };
        let (joint, curve) = machine.way(from, to, m.kept);
        (machine, joint, curve.of_part(m.bytes, self.whole))
    }

    fn receive(&mut self, now: f64, from: u32, rank: u32, m: Message) -> f64 {
        match self.model {
            Model::Hockney => now,
            Model::LogGp => {
                let (_, _, link) = self.link(from, rank, m);
                self.work(now, rank, link.work_ns(m.bytes))
            }
        }
    }

    /// When the sender has its memory back, and when all is there.
    fn message(&mut self, now: f64, from: u32, to: u32, m: Message) -> (f64, f64) {
        let bytes = m.bytes;
        let distance = self.machine.distance(from, to);
        let (machine, joint, link) = self.link(from, to, m);
        let (a, b) = (from as usize, to as usize);
        // From the host's memory each distance has a way of its own, and so has a pair that
        // is joined.
        let port = |one: u32, other: u32| match (joint, m.aside) {
            (Some(Joint::Switched(_)), _) => self.joined[&(one, other)],
            (Some(Joint::Direct(_) | Joint::Same), _) => self.joined[&(from, to)],
            (None, true) => (1 + distance) * self.processor.len() + one as usize,
            (None, false) => one as usize,
        };
        let (out, into) = (port(from, to), port(to, from));
        let shares = if joint.is_some() { 0 } else { distance };
        self.messages += 1;
        self.bytes[distance] += bytes;
        let wire = link.per_byte_ns * bytes;
        if self.model == Model::Hockney {
            let start = now.max(self.out[out]).max(self.into[into]);
            let end = start + link.one_way_ns(bytes);
            (self.out[out], self.into[into]) = (end, end);
            return (end, end);
        }
        let worked = self.work(now, from, link.work_ns(bytes));
        let mut start = worked.max(self.out[out]);
        let mut slowest = wire;
        for level in 1..=shares {
            let busy = machine.links[level].of(bytes).shared_per_byte_ns * bytes;
            if busy > 0.0 {
                let out = self.parts[a][level - 1] as usize;
                let into = self.parts[b][level - 1] as usize;
                start = start.max(self.shared[out][0]).max(self.shared[into][1]);
                slowest = slowest.max(busy);
            }
        }
        for level in 1..=shares {
            let busy = machine.links[level].of(bytes).shared_per_byte_ns * bytes;
            if busy > 0.0 {
                self.shared[self.parts[a][level - 1] as usize][0] = start + busy;
                self.shared[self.parts[b][level - 1] as usize][1] = start + busy;
            }
        }
        let port = link.gap_ns.max(wire);
        self.out[out] = start + port;
        let arrival = (start + link.latency_ns + slowest).max(self.into[into] + port);
        self.into[into] = arrival;
        // A rounded difference must not turn time around.
        (start + slowest.max(0.0), arrival.max(now))
    }
}
