//! Measures the costs of collective calls, between ranks of a job: [`CallCosts`].
//!
//! Two ranks make calls one after the other; only the clock of one rank counts, and of each
//! kind the median of some batches. From the times
//!
//! ```text
//! A(m)   alternating broadcasts: the receiver of one sends the next
//! F, D   barriers: two flags in a row, and two that cross
//! G(m)   broadcasts of the same root: its time until the next send
//! X(m)   both ranks send at the same time: allgather, less the copy of a rank's own;
//!        for inline calls, allreduce in place, less the sum
//! S(n)   alternating broadcasts in n segments of 64 bytes
//! V, W   allgathers of 64 bytes: with counts, not inline, and without, inline
//! ```
//!
//! follow, `r` and `s` being the costs of a call that the executor runs and of its step,
//! and `c` the cost of an inline call:
//!
//! ```text
//! c      2 A(0) - F                           of one message, and of two
//! s      (S(16) - S(2)) / 14 - busy(64)       one more segment occupies either end
//! r      V - W + c - 3 s
//! one way(m) = A(m) - r - 2 s, or A(m) - c
//! busy(m)    = (X(m) - r - 3 s) / 2   if the exchange takes longer than one message
//!              G(m) - r - s           else, at most half of one way(m)
//! ```
//!
//! The planner's simulation computes these times from the costs; this is the inverse.
//!
//! In A and X a rank sends memory that it has just written, as programs do. Memory unchanged
//! between calls, as contributions may be, is still in the peer's caches when the peer reads
//! it, and takes half the time or less if messages exceed the nearest ones. So A
//! and X are also measured with unchanged memory.
//!
//! Before that, messages of some sizes are sent eagerly and by the system's copy
//! between processes, in turn: the difference gives the costs by which protocols are
//! chosen. A copy from an idle process underestimates the cost.
//!
//! If predictions by the table are far off, other work disturbed it: all is
//! measured again, up to three times in all, and of each time the shortest counts.

use super::devices::{Here, Lab};
use super::segment::SegmentTimes;
use super::{Apart, fit};
use crate::coll::IN_PLACE;
use crate::comm::Communicator;
use crate::model::DeviceCalls;
use crate::model::calls::{
    CallCosts, ClassCosts, MessageCost, ROW_BYTES, SegmentCosts, WorkCost, rise, round,
};
use osier_collectives::{Algorithm, Operation, Piecewise};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::reduce_local::reduce_local;
use osier_engine::protocol::cost::LinkCosts;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time for one kind of call of one size.
const BUDGET: Duration = Duration::from_millis(6);
/// Approximate duration of a batch of several calls.
const BATCH: Duration = Duration::from_micros(150);
const LEAST_BATCHES: usize = 3;
const MOST_BATCHES: usize = 41;
/// Sizes of messages; longer ones are split into segments anyway.
const LOGS: [u32; 16] = [0, 3, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22];
/// Broadcasts of one root show its busy time if its messages are sent eagerly.
const MOST_STREAMED: usize = 16 << 10;
/// An exchange longer than a message by this factor occupies both ends.
const LONGER: f64 = 1.05;
const SEGMENT: usize = 64;
/// Predictions with a larger error come from disturbed times: all is
/// measured again,
const SETTLED: f64 = 0.2;
/// up to this many times in all.
const MOST_PASSES: usize = 3;
/// Sizes of calls for the comparison with predictions.
const CHECKED_SIZES: [usize; 4] = [8, 1 << 10, 64 << 10, 1 << 20];
/// Sizes near which the system's copy begins to pay, if it does.
const ATTACH_SIZES: [usize; 5] = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// Rounds of both protocols, of which the shortest counts.
const ATTACH_ROUNDS: usize = 2;

impl Communicator {
    /// Measures the costs of collective calls between the ranks of this communicator, in
    /// well under a second per class of links. Collective, on one group; the result is
    /// rank 0's on all ranks. Plans are still chosen by the previous costs
    /// ([`Communicator::adopt_costs`] changes that).
    ///
    /// # Errors
    /// If there is one rank only, between two groups, or if a rank dies.
    #[track_caller]
    pub fn measure_call_costs(&self) -> Result<CallCosts> {
        Ok(self.measure(None)?.1)
    }

    /// As [`Communicator::measure_call_costs`], after measuring the costs of the system's copies
    /// between processes relative to eager messages: the other ones of these costs of links
    /// stay. Calls are measured by protocols chosen with the result. All ranks pass the same.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn measure_costs(&self, links: &LinkCosts) -> Result<(LinkCosts, CallCosts)> {
        self.measure(Some(*links))
    }

    #[track_caller]
    fn measure(&self, links: Option<LinkCosts>) -> Result<(LinkCosts, CallCosts)> {
        // The measured calls report their own errors.
        self.reported(self.may_measure())?;
        let ranks: Vec<u32> = self.group().world_ranks().map(|r| r as u32).collect();
        let mut classes: Vec<(String, usize)> = Vec::new();
        for rank in 1..ranks.len() {
            let class = match &self.member().agreed.places {
                Some(places) => places.class(ranks[0], ranks[rank]),
                None => "machine",
            };
            if !classes.iter().any(|(known, _)| known == class) {
                classes.push((class.to_owned(), rank));
            }
        }
        measure(self, &classes, links)
    }

    fn may_measure(&self) -> Result<()> {
        self.within()?;
        match self.size() {
            1 => Err(Error::new(
                ErrorKind::Unavailable,
                "costs of calls are measured between ranks, and there is one (hint: osier model measure)",
            )),
            _ => Ok(()),
        }
    }
}

/// Measures the classes of links between the first rank and others, one pair per
/// class. Before that, if `given` are costs of links, sets those of them that need messages.
/// Collective; the result is the first rank's.
///
/// # Errors
/// If a rank dies.
pub(crate) fn measure(
    comm: &Communicator,
    classes: &[(String, usize)],
    given: Option<LinkCosts>,
) -> Result<(LinkCosts, CallCosts)> {
    let mut links = given.unwrap_or(*comm.core().selection.costs());
    let mut table = CallCosts {
        classes: Vec::new(),
        row_ns: 0.0,
        run_ns: 0.0,
        step_ns: 0.0,
        copy: Vec::new(),
        combine: Vec::new(),
        error: 0.0,
        devices: None,
        segment: None,
        ranks_per_core: 0,
    };
    comm.barrier()?;
    // All at the same time, as ranks do in a collective.
    (table.copy, table.combine) = works();
    comm.barrier()?;
    let (copy, combine) = works();
    lower(&mut table.copy, &copy);
    lower(&mut table.combine, &combine);
    comm.barrier()?;
    let here = Here::on_all(comm)?;
    let mut lab = None;
    if comm.rank() == 0 {
        // The others are idle meanwhile, as in the measurement of links.
        lab = here.as_ref().and_then(Here::open);
        table.devices = lab.as_ref().map(Lab::works).transpose()?;
    }
    comm.barrier()?;
    let mut passes = 1;
    for (at, (class, partner)) in classes.iter().enumerate() {
        // Of the first rank, which has measured others before; its partners have not.
        let first = at == 0;
        let color = (comm.rank() == 0 || comm.rank() == *partner).then_some(0);
        if let Some(pair) = comm.split(color, 0)? {
            pair.promise_host();
            if first && given.is_some() {
                links = attached(&pair, links)?;
                links.uses = Some(super::uses::of(&pair, &links)?);
            }
            pair.choose_by(&links);
            let mut done = 0;
            let mut times = Times::of(&pair, &table)?;
            let mut in_segment = SegmentTimes::of(&pair)?;
            loop {
                times.add_to(&mut table, class);
                let costs = in_segment.as_ref().map(|times| times.costs(&table));
                if !first && let Some(added) = table.classes.last_mut() {
                    added.flags = costs.as_ref().map(SegmentCosts::flags);
                }
                if first {
                    table.segment = costs;
                    table.error = error(&pair, &table)?;
                    let again = passes < MOST_PASSES && table.error > SETTLED;
                    passes += usize::from(again);
                }
                done += 1;
                if done >= number(&pair, passes)? {
                    break;
                }
                // Other work disturbed it: repeat, and take the shorter of each time.
                table.classes.pop();
                times = times.or(&Times::of(&pair, &table)?);
                if let Some(before) = in_segment {
                    let again = SegmentTimes::of(&pair)?;
                    in_segment = Some(match &again {
                        Some(again) => before.or(again),
                        None => before,
                    });
                }
            }
        }
        // The others are idle meanwhile.
        comm.barrier()?;
    }
    if let Some(here) = &here {
        measure_devices(comm, (here, lab), &links, &mut table)?;
        // Kernels without any message are no costs of calls.
        let has_messages = |devices: &DeviceCalls| !devices.classes.is_empty();
        table.devices = table.devices.filter(has_messages);
    }
    let text = serde_json::to_vec(&table).unwrap_or_default();
    let table = comm.reported(crate::model::calls::parsed(&comm.first_says(text)?))?;
    let text = serde_json::to_vec(&links).unwrap_or_default();
    let links = serde_json::from_slice(&comm.first_says(text)?).unwrap_or(links);
    Ok((links, table))
}

/// Measures messages between devices: over each kind of links between the first rank's and
/// another's, and over the bus within each kind of part that holds both. Only ranks of such a
/// pair open their device. Collective.
fn measure_devices(
    comm: &Communicator,
    (here, mut lab): (&Here, Option<Lab>),
    links: &LinkCosts,
    table: &mut CallCosts,
) -> Result<()> {
    let (places, device_links) = comm.exchange_devices(Some(here.ordinal()))?;
    let mut known: Vec<String> = Vec::new();
    for partner in 1..comm.size() {
        let class = match device_links.device_links.between(0, partner as u32) {
            Some(device_link) => device_link.to_string(),
            None => places.class(0, partner as u32).to_owned(),
        };
        if known.contains(&class) {
            continue;
        }
        known.push(class.clone());
        let color = (comm.rank() == 0 || comm.rank() == partner).then_some(0);
        if let Some(pair) = comm.split(color, 0)? {
            if lab.is_none() {
                lab = here.open();
            }
            let mut both = [u32::from(lab.is_some())];
            pair.allreduce(&IN_PLACE, &mut both, crate::Op::Min)?;
            if let (Some(lab), [1]) = (&lab, both) {
                pair.choose_by(links);
                let messages = lab.messages(&pair, table)?;
                if let Some(devices) = &mut table.devices {
                    devices.classes.push(ClassCosts {
                        class,
                        messages,
                        kept: Vec::new(),
                        flags: None,
                    });
                }
            }
        }
        // The others are idle meanwhile.
        comm.barrier()?;
    }
    Ok(())
}

/// A number from the first rank.
fn number(pair: &Communicator, own: usize) -> Result<usize> {
    let said = pair.first_says(own.to_le_bytes().into())?;
    Ok(usize::from_le_bytes(said.try_into().unwrap_or_default()))
}

/// Error of predictions of chosen plans, at the median, as a fraction. Collective;
/// by the table of the first rank.
fn error(pair: &Communicator, table: &CallCosts) -> Result<f64> {
    pair.adopt_costs(Some(table))?;
    let most = CHECKED_SIZES[CHECKED_SIZES.len() - 1];
    let (mut sums, mut all) = (vec![0.0f64; most / 8], vec![0u8; 2 * most]);
    let send = vec![1u8; most];
    let mut off = Vec::new();
    let mut check = |operation, bytes, measured: f64| -> Result<()> {
        off.push((pair.explain(operation, bytes)?.ns() / measured - 1.0).abs());
        Ok(())
    };
    check(
        Operation::Barrier,
        0,
        median(pair, false, |_| pair.barrier())?,
    )?;
    for bytes in CHECKED_SIZES {
        let data = &mut all[..bytes];
        let ns = median(pair, false, |i| pair.bcast(&mut data[..], i % 2))?;
        check(Operation::Bcast, bytes, ns)?;
        let sum = &mut sums[..bytes / 8];
        let call = |_| pair.allreduce(&IN_PLACE, &mut sum[..], crate::Op::Sum);
        check(Operation::Allreduce, bytes, median(pair, false, call)?)?;
        let both = &mut all[..2 * bytes];
        let call = |_| pair.allgather(&send[..bytes], &mut both[..]);
        check(Operation::Allgather, bytes, median(pair, false, call)?)?;
    }
    Ok((1000.0 * middle(&mut off)).round() / 1000.0)
}

/// Costs of the system's copy relative to an eager message, from alternating messages of
/// this pair.
fn attached(pair: &Communicator, links: LinkCosts) -> Result<LinkCosts> {
    let never = LinkCosts {
        attach_call_ns: super::NOT_PERMITTED_NS,
        ..links
    };
    // So cheap that copies are not split between the ends, either.
    let always = LinkCosts {
        attach_call_ns: 1.0,
        attach_ns_per_byte: 1e-6,
        ..links
    };
    let mut data = vec![1u8; ATTACH_SIZES[ATTACH_SIZES.len() - 1]];
    pair.use_algorithm(Some((Algorithm::Linear, 1)));
    let mut times = Vec::new();
    for bytes in ATTACH_SIZES {
        let mut by = |costs: &LinkCosts| {
            pair.choose_by(costs);
            median(pair, false, |i| pair.bcast(&mut data[..bytes], i % 2))
        };
        let (mut copied, mut whole) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ATTACH_ROUNDS {
            copied = copied.min(by(&always)?);
            whole = whole.min(by(&never)?);
        }
        let dearer = copied - whole;
        let at_once = links.eager_ns(bytes);
        let copy = (at_once + dearer - 2.0 * links.latency_ns).max(at_once / 10.0);
        times.push((bytes as f64, copy));
    }
    pair.use_algorithm(None);
    let (attach_call_ns, attach_ns_per_byte) = fit::line(&times);
    let mine = LinkCosts {
        attach_call_ns,
        attach_ns_per_byte,
        ..links
    };
    let text = serde_json::to_vec(&mine).unwrap_or_default();
    Ok(serde_json::from_slice(&pair.first_says(text)?).unwrap_or(mine))
}

/// Measurements between two ranks, in ns.
struct Times {
    /// Two flags in a row.
    flags: f64,
    /// Two that cross.
    crossing: f64,
    /// Alternating, of an empty message, and by size.
    empty: f64,
    turns: Vec<f64>,
    stream: Vec<Option<f64>>,
    exchange: Vec<Option<f64>>,
    /// Alternating and exchanged, from unchanged memory.
    kept: Vec<Option<(f64, f64)>>,
    two_segments: f64,
    many_segments: f64,
    /// Without counts and with them.
    plain: f64,
    no_row: f64,
}

const MANY: u32 = 16;

impl Times {
    /// `own`: also the costs of copies and sums of the first rank.
    fn of(pair: &Communicator, own: &CallCosts) -> Result<Times> {
        let most = 1usize << LOGS[LOGS.len() - 1];
        let (send, mut buffer) = (vec![1u8; most], vec![1u8; 2 * most]);
        // A root's buffer stays unchanged.
        let mut unchanged = vec![1u8; most];
        let me = pair.rank();
        let with = |algorithm| pair.use_algorithm(Some((algorithm, 1)));
        with(Algorithm::Linear);
        let flags = median(pair, false, |_| pair.barrier())?;
        with(Algorithm::Dissemination);
        let crossing = median(pair, false, |_| pair.barrier())?;
        with(Algorithm::Linear);
        let empty = median(pair, false, |i| pair.bcast(&mut buffer[..0], i % 2))?;
        let (mut turns, mut stream) = (Vec::new(), Vec::new());
        let mut by_turns = Vec::new();
        for log in LOGS {
            let bytes = 1usize << log;
            let data = &mut buffer[..bytes];
            turns.push(median(pair, false, |i| pair.bcast(data, i % 2))?);
            stream.push(match bytes <= MOST_STREAMED {
                true => Some(median(pair, true, |_| pair.bcast(data, 0))?),
                false => None,
            });
            by_turns.push(match bytes as u64 > ROW_BYTES {
                true => Some(median(pair, false, |i| match i % 2 == me {
                    true => pair.bcast(&mut unchanged[..bytes], me),
                    false => pair.bcast(&mut buffer[..bytes], i % 2),
                })?),
                false => None,
            });
        }
        let (mut exchange, mut kept) = (Vec::new(), Vec::new());
        let mut sum = vec![0.0f64; ROW_BYTES as usize / 8];
        let curve = |works: &[WorkCost]| {
            let points: Vec<(f64, f64)> = works.iter().map(|w| (w.bytes as f64, w.ns)).collect();
            Piecewise::through(&points)
        };
        let (copies, sums) = (curve(&own.copy), curve(&own.combine));
        for (log, by_turns) in LOGS.into_iter().zip(by_turns) {
            let bytes = 1usize << log;
            let mut gathered = |algorithm| -> Result<f64> {
                with(algorithm);
                let data = &mut buffer[..2 * bytes];
                let call = |_| pair.allgather(&send[..bytes], &mut data[..]);
                Ok(median(pair, false, call)? - copies.at(bytes as f64))
            };
            kept.push(match by_turns {
                Some(turns) => Some((turns, gathered(Algorithm::Spread)?)),
                None => None,
            });
            exchange.push(if bytes as u64 > ROW_BYTES {
                Some(gathered(Algorithm::RecursiveDoubling)?)
            } else if bytes >= 8 {
                with(Algorithm::RecursiveDoubling);
                let data = &mut sum[..bytes / 8];
                let call = |_| pair.allreduce(&IN_PLACE, &mut data[..], crate::Op::Sum);
                Some(median(pair, false, call)? - sums.at(bytes as f64))
            } else {
                None
            });
        }
        let mut segments = |n: u32| {
            pair.use_algorithm(Some((Algorithm::Linear, n)));
            let data = &mut buffer[..n as usize * SEGMENT];
            median(pair, false, |i| pair.bcast(data, i % 2))
        };
        let (two_segments, many_segments) = (segments(2)?, segments(MANY)?);
        with(Algorithm::Spread);
        let (own, data) = (&send[..SEGMENT], &mut buffer[..2 * SEGMENT]);
        let plain = median(pair, false, |_| pair.allgather(own, &mut data[..]))?;
        let (counts, places) = ([SEGMENT; 2], [0, SEGMENT]);
        let call = |_| pair.allgatherv(own, &mut data[..], &counts, &places);
        let no_row = median(pair, false, call)?;
        pair.use_algorithm(None);
        Ok(Times {
            flags,
            crossing,
            empty,
            turns,
            stream,
            exchange,
            kept,
            two_segments,
            many_segments,
            plain,
            no_row,
        })
    }

    /// The shorter of each time.
    fn or(self, other: &Times) -> Times {
        let each = |a: Vec<f64>, b: &[f64]| a.into_iter().zip(b).map(|(a, b)| a.min(*b)).collect();
        let some = |a: Vec<Option<f64>>, b: &[Option<f64>]| {
            let both = a.into_iter().zip(b);
            both.map(|(a, b)| Some(a?.min((*b)?))).collect()
        };
        let pairs = |a: Vec<Option<(f64, f64)>>, b: &[Option<(f64, f64)>]| {
            let both = a.into_iter().zip(b);
            both.map(|(a, b)| {
                let (a, b) = (a?, (*b)?);
                Some((a.0.min(b.0), a.1.min(b.1)))
            })
            .collect()
        };
        Times {
            flags: self.flags.min(other.flags),
            crossing: self.crossing.min(other.crossing),
            empty: self.empty.min(other.empty),
            turns: each(self.turns, &other.turns),
            stream: some(self.stream, &other.stream),
            exchange: some(self.exchange, &other.exchange),
            kept: pairs(self.kept, &other.kept),
            two_segments: self.two_segments.min(other.two_segments),
            many_segments: self.many_segments.min(other.many_segments),
            plain: self.plain.min(other.plain),
            no_row: self.no_row.min(other.no_row),
        }
    }

    /// Costs of a class of links; of the first one also costs of calls.
    fn add_to(&self, table: &mut CallCosts, class: &str) {
        if table.classes.is_empty() {
            (table.run_ns, table.step_ns) = self.executor();
            table.row_ns = round(self.row());
        }
        let (messages, kept) = self.messages();
        table.classes.push(ClassCosts {
            class: class.to_owned(),
            messages,
            kept,
            flags: None,
        });
    }

    /// Cost of an inline call, beside its steps.
    fn row(&self) -> f64 {
        between(2.0 * self.empty - self.flags, 0.8 * self.empty)
    }

    /// Time for which a message of [`SEGMENT`] bytes occupies an end.
    fn segment_busy(&self) -> f64 {
        let at = LOGS.iter().position(|log| 1usize << log == SEGMENT);
        let at = at.expect("a size that was measured");
        let one_way = self.turns[at] - self.row();
        let stream = self.stream[at].map_or(one_way, |g| g - self.row());
        between(stream, one_way / 2.0)
    }

    /// Cost of a call that the executor runs, and of its step.
    fn executor(&self) -> (f64, f64) {
        let each = (self.many_segments - self.two_segments) / f64::from(MANY - 2);
        let step = (each - self.segment_busy()).max(0.0);
        let run = (self.no_row - self.plain + self.row() - 3.0 * step).max(0.0);
        (round(run), round(step))
    }

    /// Costs of messages, and of those from unchanged memory, where the executor runs the
    /// call.
    fn messages(&self) -> (Vec<MessageCost>, Vec<MessageCost>) {
        let (row, (run, step)) = (self.row(), self.executor());
        let flag = (self.flags - row) / 2.0;
        let crossing = self.crossing - row;
        let mut messages = vec![MessageCost {
            bytes: 0,
            one_way_ns: flag.max(self.flags / 20.0),
            busy_ns: match crossing > LONGER * flag {
                true => (crossing / 2.0).min(flag),
                false => flag / 2.0,
            },
        }];
        let mut kept = Vec::new();
        for (at, log) in LOGS.into_iter().enumerate() {
            let bytes = 1u64 << log;
            let (call, step) = match bytes > ROW_BYTES {
                true => (run, step),
                false => (row, 0.0),
            };
            let cost = |turns: f64, exchange: Option<f64>, stream: Option<f64>| {
                let least = turns / 10.0;
                let one_way_ns = (turns - call - 2.0 * step).max(least);
                let exchange = exchange.map(|x| x - call - 3.0 * step);
                let busy_ns = match (exchange, stream) {
                    (Some(x), _) if x > LONGER * one_way_ns => (x / 2.0).min(one_way_ns),
                    (_, Some(g)) => (g - call - step).max(least / 2.0).min(one_way_ns / 2.0),
                    _ => one_way_ns / 2.0,
                };
                MessageCost {
                    bytes,
                    one_way_ns,
                    busy_ns,
                }
            };
            messages.push(cost(self.turns[at], self.exchange[at], self.stream[at]));
            if let Some((turns, exchange)) = self.kept[at] {
                kept.push(cost(turns, Some(exchange), None));
            }
        }
        rise(&mut messages);
        rise(&mut kept);
        (messages, kept)
    }
}

/// `ns`, limited to 0 to `most`: beside other work differences of measurements
/// can be anything, also negative.
fn between(ns: f64, most: f64) -> f64 {
    ns.min(most).max(0.0)
}

/// The shorter of each time.
fn lower(works: &mut [WorkCost], other: &[WorkCost]) {
    for (work, other) in works.iter_mut().zip(other) {
        work.ns = work.ns.min(other.ns);
    }
}

/// Copies and sums of this rank.
fn works() -> (Vec<WorkCost>, Vec<WorkCost>) {
    let most = 16usize << 20;
    let mut memory = Apart::of(most / 8);
    let (from, to) = memory.both();
    let (mut copy, mut combine) = (Vec::new(), Vec::new());
    for log in [3, 6, 9, 12, 15, 18, 20, 22, 23, 24] {
        let (n, bytes) = ((1usize << log) / 8, 1u64 << log);
        let add = |works: &mut Vec<WorkCost>, body: &mut dyn FnMut()| {
            let before = works.last().map_or(0.1, |w: &WorkCost| w.ns);
            let ns = round(own_least(body)).max(before);
            works.push(WorkCost { bytes, ns });
        };
        add(&mut copy, &mut || {
            black_box(&mut to[..n]).copy_from_slice(black_box(&from[..n]));
        });
        add(&mut combine, &mut || {
            // Sums of ones stay finite.
            let sum = reduce_local(black_box(&from[..n]), &mut to[..n], crate::Op::Sum);
            black_box(sum).unwrap_or_default();
        });
    }
    (copy, combine)
}

/// Time of local work of one rank: the least of several, for what disturbs it only adds to it.
fn own_least(body: &mut dyn FnMut()) -> f64 {
    let mut times = Vec::new();
    let begin = Instant::now();
    let mut each = 1usize;
    body();
    while times.len() < LEAST_BATCHES
        || (begin.elapsed() < BUDGET / 4 && times.len() < MOST_BATCHES)
    {
        let start = Instant::now();
        (0..each).for_each(|_| body());
        let took = start.elapsed();
        if took < BATCH / 8 && times.is_empty() {
            each *= 4;
            continue;
        }
        times.push(took.as_nanos() as f64 / each as f64);
    }
    times.into_iter().fold(f64::INFINITY, f64::min)
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median time of a call, in ns; the first rank's. If `meets` is true, a batch ends when both
/// ranks have finished, for calls in which one does not wait for the other.
pub(super) fn median(
    pair: &Communicator,
    meets: bool,
    mut call: impl FnMut(usize) -> Result<()>,
) -> Result<f64> {
    let mut at = 0usize;
    let mut calls = |n: usize| -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..n {
            call(at)?;
            at += 1;
        }
        if meets {
            pair.barrier()?;
        }
        Ok(start.elapsed())
    };
    // An even number preserves the alternation.
    calls(4)?;
    let took = calls(8)?.as_secs_f64() / 8.0;
    let each = (BATCH.as_secs_f64() / took.max(1e-9)).ceil();
    let batches = BUDGET.as_secs_f64() / (each * took).max(1e-9);
    let plan = [each as u64, batches as u64];
    let mut text = Vec::new();
    for n in plan {
        text.extend(n.to_le_bytes());
    }
    let text = pair.first_says(text)?;
    let number = |at: usize| {
        let bytes: [u8; 8] = text[8 * at..8 * at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) as usize
    };
    let each = number(0).clamp(2, 1000).next_multiple_of(2);
    let batches = number(1).clamp(LEAST_BATCHES, MOST_BATCHES);
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        times.push(calls(each)?.as_nanos() as f64 / each as f64);
    }
    Ok(middle(&mut times))
}
