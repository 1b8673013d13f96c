//! Simulation of a plan on a machine in virtual time.
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
//! Whoever asks first is served first. Copies and combinations occupy the processor. Of ranks
//! that share a core ([`SharedCores`](super::SharedCores)) one works at a time; those that wait
//! for flags leave it to the others.
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

use super::combining::combining_ns;
use super::footprint::{beyond, reach};
use super::machine::{Machine, Segment, Sizes};
use super::ways::{Message, Ways};
use crate::algorithms::Plan;
use crate::call::Operation;
use crate::check::Fault;
use crate::check::graph::{Graph, NONE};
use crate::plan::{Buffer, Part, Region, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    /// For how long what was used most was used: a processor, a port, a shared way.
    pub most_used_ns: f64,
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
    let graph = Graph::of(parts)?;
    let time = play(plan, parts, &graph, sizes, machine, model, Until::END)?;
    Ok(time.unwrap_or_default())
}

/// How far a plan is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    /// So many segments.
    pub segments: u32,
    /// To this time: of what takes longer that alone is said.
    pub ns: f64,
}

impl Until {
    /// All of it.
    pub const END: Self = Self {
        segments: u32::MAX,
        ns: f64::INFINITY,
    };
}

/// Plays no more than the first `ahead` segments; what the others take follows from how much
/// longer these take than half of them, a pipeline that is full keeps its pace, and from what
/// a segment uses most. When the last rank is done; none if that is later than `longest_ns`.
///
/// # Errors
/// As [`simulate`].
pub(crate) fn play_ahead(
    joined: (&Plan, &[Part], &Graph),
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
    ahead: u32,
    longest_ns: f64,
) -> Result<Option<f64>, Fault> {
    let (plan, parts, graph) = joined;
    let first = |segments| {
        let until = Until {
            segments,
            ns: longest_ns,
        };
        play(plan, parts, graph, sizes, machine, model, until)
    };
    if graph.segments <= ahead {
        return Ok(first(ahead)?.map(|time| time.last_ns));
    }
    let (Some(half), Some(all)) = (first(ahead / 2)?, first(ahead)?) else {
        return Ok(None);
    };
    let more = f64::from(graph.segments - ahead);
    let ranks = all.ranks_ns.iter().zip(&half.ranks_ns);
    // By rank, for one that is slow may be early at first. What segments far apart have to
    // share is not yet seen when the first are on their way.
    let last = ranks.fold(0.0f64, |last, (all, half)| {
        last.max(all + more * (all - half) / f64::from(ahead - ahead / 2))
    });
    let last = last.max(all.last_ns + more * all.most_used_ns / f64::from(ahead));
    Ok((last <= longest_ns).then_some(last))
}

/// An instance of a step that was not yet carried out.
#[derive(Clone, Copy, Default)]
struct Waiting {
    /// When what it waits for is over, as far as it is.
    ready_at: f64,
    /// For how much it waits.
    open: u32,
    posted: bool,
    arrived: bool,
}

/// Sets of flags and slots that segments use in turn.
const SETS: u32 = 2;

/// Who waits in a segment for those that still use its set.
struct Sets {
    /// First steps of ranks that write: they wait until all are done with what used the set before.
    writers: Vec<u32>,
    /// Ranks that have steps.
    ranks: u32,
    /// By segment, how many ranks are done, and when the last is.
    ended: Vec<(u32, f64)>,
}

impl Sets {
    fn new(parts: &[Part], graph: &Graph, segments: u32) -> Self {
        let takes_part = |part: &&Part| part.in_segment && !part.steps().is_empty();
        let ranks = parts.iter().filter(takes_part);
        let writers = ranks.clone().filter(|part| part.writes_for_peers());
        let writers = writers.map(|part| graph.first[part.rank as usize]);
        Self {
            writers: match segments > SETS {
                true => writers.collect(),
                false => Vec::new(),
            },
            ranks: ranks.count() as u32,
            ended: vec![(0, 0.0); segments as usize],
        }
    }

    /// Instances that wait for a segment before.
    fn waiting(&self, total: u32) -> impl Iterator<Item = u32> {
        let later = SETS..self.ended.len() as u32;
        later.flat_map(move |segment| self.writers.iter().map(move |w| segment * total + w))
    }

    /// A rank is done with a segment: when the last is, once all are, if anybody waits for that.
    fn ended(&mut self, segment: u32, end: f64) -> Option<f64> {
        let waits = segment + SETS < self.ended.len() as u32 && !self.writers.is_empty();
        let (ranks, last) = self.ended.get_mut(segment as usize).filter(|_| waits)?;
        *ranks += 1;
        *last = last.max(end);
        (*ranks == self.ranks).then_some(*last)
    }
}

/// Plays parts whose graph was made before. None if it takes longer than it may.
///
/// # Errors
/// As [`simulate`].
pub(crate) fn play(
    plan: &Plan,
    parts: &[Part],
    graph: &Graph,
    sizes: &Sizes,
    machine: &Machine,
    model: Model,
    until: Until,
) -> Result<Option<Time>, Fault> {
    let call = plan.call();
    let segments = graph.segments.min(until.segments);
    let instances = graph.total as usize * segments as usize;
    let mut waiting = vec![Waiting::default(); instances];
    graph.open(parts, segments, |instance, open| {
        waiting[instance as usize].open = open;
    });
    let mut sets = Sets::new(parts, graph, segments);
    for instance in sets.waiting(graph.total) {
        waiting[instance as usize].open += 1;
    }
    let whole = sizes.uncut();
    for part in parts.iter().filter(|part| part.in_segment) {
        let pieces = part.scratch.iter().filter(|s| s.slot).map(|s| s.pieces);
        let pieces = pieces.max().unwrap_or(0);
        let bytes = whole * f64::from(pieces) / f64::from(part.cut.max(1));
        let cuts = graph.segments == 1 || machine.cuts_slots_of(call.operation);
        let fits = |segment: &Segment| cuts && segment.fits(bytes, pieces, graph.segments);
        if !machine.segment.as_deref().is_some_and(fits) {
            return Ok(None);
        }
    }
    let reach = reach(call, parts, sizes, machine).max(whole);
    let beyond = beyond(machine, whole, reach);
    let mut ways = Ways::new(machine, model, call.size, (whole, beyond));
    for part in parts {
        let most = machine.executor.row_bytes;
        let in_row = |pieces| {
            let short = part.in_segment || f64::from(pieces) * whole <= most;
            matches!(sizes, Sizes::Equal(_)) && short
        };
        let rank = part.rank as usize;
        let direct = part.in_segment
            && call.operation != Operation::Barrier
            && !part.scratch.iter().any(|s| s.slot);
        let row = match part.in_segment {
            true => part.row_of_segment(call),
            false => part.row_pieces(call),
        };
        if !direct && row.is_some_and(in_row) {
            ways.work(0.0, rank as u32, machine.executor.row_ns);
            let segment = (machine.segment.as_ref()).filter(|_| part.in_segment);
            if let Some(segment) = segment.filter(|_| segments > 1 || part.cut > 1) {
                ways.step[rank] = segment.step_ns;
            }
        } else {
            ways.work(0.0, rank as u32, machine.executor.run_ns);
            ways.step[rank] = machine.executor.step_ns;
        }
    }
    let mut ranks_ns = vec![0.0f64; call.size as usize];
    let mut queue: BinaryHeap<Reverse<(At, What, u32)>> = (0..instances as u32)
        .filter(|i| waiting[*i as usize].open == 0)
        .map(|i| {
            let step = graph.step(parts, i % graph.total);
            Reverse((At::ns(0.0), What::begins(&step), i))
        })
        .collect();
    let mut done = 0;
    // Instances that the completed step was the last to hold back, and from when on they may run.
    let mut released: Vec<(u32, f64)> = Vec::new();
    while let Some(Reverse((At(now), what, instance))) = queue.pop() {
        let now = f64::from_bits(now);
        if now > until.ns {
            return Ok(None);
        }
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
                let this = &mut waiting[instance as usize];
                this.open -= 1;
                this.ready_at = this.ready_at.max(now);
                if this.open == 0 {
                    queue.push(Reverse((At::ns(this.ready_at), What::Turn, instance)));
                }
                None
            }
            (Step::Recv { from, data, .. }, What::Arrival) => {
                let this = &mut waiting[instance as usize];
                this.arrived = true;
                let here = this.posted;
                here.then(|| (instance, ways.receive(now, from, rank, sent(data))))
            }
            (Step::Recv { from, data, .. }, _) => {
                let this = &mut waiting[instance as usize];
                this.posted = true;
                let m = sent(data);
                if this.arrived {
                    Some((instance, ways.receive(now, from, rank, m)))
                } else if m.bytes > machine.eager_bytes && waiting[other as usize].posted {
                    let (sent, arrival) = ways.message(now, from, rank, m);
                    queue.push(Reverse((At::ns(arrival), What::Arrival, instance)));
                    Some((other, sent))
                } else {
                    None
                }
            }
            (Step::Send { to, data, .. }, _) => {
                waiting[instance as usize].posted = true;
                let m = message(data);
                (m.bytes <= machine.eager_bytes || waiting[other as usize].posted).then(|| {
                    let (sent, arrival) = ways.message(now, rank, to, m);
                    queue.push(Reverse((At::ns(arrival), What::Arrival, other)));
                    (instance, sent)
                })
            }
            (Step::Raise { to, .. }, _) if part.in_segment => {
                let sent = ways.work(now, rank, 0.0);
                let distance = machine.distance(rank, to);
                let segment = machine.segment.as_ref();
                let arrival = sent + segment.map_or(0.0, |s| s.flag_ns(distance));
                queue.push(Reverse((At::ns(arrival), What::Arrival, other)));
                Some((instance, sent))
            }
            (Step::Await { from, .. }, _) if part.in_segment => {
                // Whoever comes back has awaited all flags of a phase.
                let before = at
                    .checked_sub(1)
                    .map(|before| part.steps()[before as usize]);
                let first = !matches!(before, Some(Step::Await { .. }));
                let segment = machine.segment.as_ref();
                match first {
                    true => {
                        let away = segment.map_or(0.0, |s| s.switch_ns);
                        Some((instance, ways.away(now, rank, away)))
                    }
                    false => {
                        let line = ways.cold_ns(rank, from);
                        Some((instance, ways.work(now, rank, line)))
                    }
                }
            }
            (Step::Raise { to, .. }, _) => {
                let (sent, arrival) = ways.message(now, rank, to, Message::FLAG);
                queue.push(Reverse((At::ns(arrival), What::Arrival, other)));
                Some((instance, sent))
            }
            (Step::Await { from, .. }, _) => {
                Some((instance, ways.receive(now, from, rank, Message::FLAG)))
            }
            (Step::Copy { from, to }, _) if part.is_slot(to) => {
                let segment = machine.segment.as_ref();
                let m = bytes(from);
                let work = segment.map_or(0.0, |s| s.write.of_part(m, whole));
                let work = work.max(machine.copy.of_part(m, reach));
                Some((instance, ways.work(now, rank, work)))
            }
            (Step::Copy { from, to }, _) => {
                let m = bytes(from);
                Some((
                    instance,
                    match (aside(from), aside(to)) {
                        (false, false) => ways.compute(now, rank, machine.copy.of_part(m, reach)),
                        (from, _) => ways.cross(now, rank, m, from),
                    },
                ))
            }
            (Step::Combine { left, .. }, _) => {
                let ns = combining_ns(machine, part, at, (bytes(left), reach));
                Some((instance, ways.compute(now, rank, ns)))
            }
            (Step::Read { from, data, .. }, _) if part.in_segment => {
                let ends = (rank, from);
                let work = from_peer(machine, ends, data.buffer, (bytes(data), whole));
                let work = work + ways.cold_ns(rank, from);
                Some((instance, ways.work(now, rank, work * beyond)))
            }
            (Step::Fold { left, right, into }, _) => {
                let m = bytes(into);
                let peers = [left, right].into_iter();
                let peers = peers.filter_map(|o| Some((o.of?, o.data.buffer)));
                let read: f64 = peers
                    .map(|(peer, buffer)| {
                        from_peer(machine, (rank, peer), buffer, (m, whole))
                            + ways.cold_ns(rank, peer)
                    })
                    .sum();
                let slot = machine.segment.as_ref().filter(|_| part.is_slot(into));
                let written = slot.map_or(0.0, |s| s.write.of_part(m, whole));
                let work = read + written + machine.combine.of_part(m, whole);
                Some((instance, ways.work(now, rank, work * beyond)))
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
        if graph.first[rank as usize + 1] == global + 1
            && let Some(last) = sets.ended(segment, end)
        {
            let host = machine.segment.as_ref();
            let seen = last + host.map_or(0.0, |s| s.switch_ns + s.flag_ns(0));
            let later = (segment + SETS) * graph.total;
            released.extend(sets.writers.iter().map(|writer| (later + writer, seen)));
        }
        let later = graph.later(global).iter();
        let later = later.filter(|(_, lag)| segment + lag < segments);
        released.extend(later.map(|(step, lag)| ((segment + lag) * graph.total + step, end)));
        for (instance, at) in released.drain(..) {
            let this = &mut waiting[instance as usize];
            this.ready_at = this.ready_at.max(at);
            this.open -= 1;
            if this.open == 0 {
                let what = What::begins(&graph.step(parts, instance % graph.total));
                queue.push(Reverse((At::ns(this.ready_at), what, instance)));
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
    let last_ns = ranks_ns.iter().copied().fold(0.0, f64::max);
    Ok((last_ns <= until.ns).then_some(Time {
        most_used_ns: ways.most_used(),
        last_ns,
        ranks_ns,
        messages: ways.messages,
        bytes: ways.bytes,
    }))
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

/// What it costs to have bytes from a peer's slot, or from its plain memory.
fn from_peer(
    machine: &Machine,
    (rank, peer): (u32, u32),
    buffer: Buffer,
    (bytes, whole): (f64, f64),
) -> f64 {
    let costs = machine.segment.as_ref();
    costs.map_or(0.0, |costs| match buffer {
        Buffer::Scratch(_) => {
            let distance = machine.distance(rank, peer);
            costs.read(distance).of_part(bytes, whole)
        }
        _ => (costs.attach.as_ref()).map_or(f64::INFINITY, |a| a.of_part(bytes, whole)),
    })
}
