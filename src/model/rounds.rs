//! Measures what collective calls cost, between ranks of a job: [`CallCosts`].
//!
//! Two ranks make calls one behind the other; a rank's clock alone counts, and of each
//! kind the median of some batches. From the times
//!
//! ```text
//! A(m)   broadcasts by turns: what one rank sent, it receives next
//! G(m)   broadcasts of the same rank: how soon it can send again
//! X(m)   both ranks send at the same time: allgather, less the copy of a rank's own;
//!        where calls are rows of steps, allreduce in place, less the sum
//! S(n)   broadcasts by turns in n segments of 64 bytes
//! ```
//!
//! follow, `r` and `s` being what a call and a step cost where a call is no row of steps
//! (0 where it is):
//!
//! ```text
//! s      (S(16) - S(2)) / 14 - busy(64)       a segment more keeps either end busy
//! r      S(2) - 3 s - one way(64) - busy(64)
//! one way(m) = A(m) - r - 2 s
//! busy(m)    = (X(m) - r - 3 s) / 2   if the exchange takes longer than one message
//!              G(m) - r - s           else, at most half of one way(m)
//! ```
//!
//! That is what the planner's simulation makes of them, turned around.
//!
//! In A and X a rank sends what it has just written, as programs do. What stays unchanged
//! between calls, as the send buffers of most benchmarks, is still in the peer's caches,
//! and takes half the time or less where messages do not fit the nearest ones.

use super::calls::{CallCosts, ClassCosts, MessageCost, ROW_BYTES, WorkCost, rise, round};
use crate::comm::{Communicator, IN_PLACE};
use crate::error::Result;
use osier_collectives::{Algorithm, Piecewise};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time for one kind of call of one size.
const BUDGET: Duration = Duration::from_millis(8);
/// A batch takes about so long, or one call.
const BATCH: Duration = Duration::from_micros(150);
const LEAST_BATCHES: usize = 3;
const MOST_BATCHES: usize = 41;
/// Sizes of messages; ends at what is cut into pieces anyway.
const LOGS: [u32; 16] = [0, 3, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22];
/// Broadcasts of one rank say how busy it is where its messages leave at once.
const MOST_STREAMED: usize = 16 << 10;
/// An exchange that takes so much longer than a message keeps both ends busy.
const LONGER: f64 = 1.05;
const SEGMENT: usize = 64;

/// Measures the classes of links between the first rank and others, each with one of
/// them. Collective; the result is the first rank's.
///
/// # Errors
/// If a rank dies.
pub(crate) fn measure(comm: &Communicator, classes: &[(String, usize)]) -> Result<CallCosts> {
    let mut table = CallCosts {
        classes: Vec::new(),
        run_ns: 0.0,
        step_ns: 0.0,
        copy: Vec::new(),
        combine: Vec::new(),
    };
    if comm.rank() == 0 {
        (table.copy, table.combine) = works();
    }
    comm.barrier()?;
    for (class, partner) in classes {
        let color = (comm.rank() == 0 || comm.rank() == *partner).then_some(0);
        if let Some(pair) = comm.split(color, 0)? {
            let times = Times::of(&pair, &table)?;
            if table.classes.is_empty() {
                (table.run_ns, table.step_ns) = times.executor();
            }
            table.classes.push(ClassCosts {
                class: class.clone(),
                messages: times.messages(),
            });
        }
        // The others are quiet meanwhile.
        comm.barrier()?;
    }
    let text = serde_json::to_vec(&table).unwrap_or_default();
    comm.reported(super::calls::parsed(&comm.first_says(text)?))
}

/// What was measured between two ranks, in ns.
struct Times {
    barrier: f64,
    /// By turns, by size: from an empty call's on.
    turns: Vec<f64>,
    stream: Vec<Option<f64>>,
    exchange: Vec<Option<f64>>,
    two_segments: f64,
    many_segments: f64,
}

const MANY: u32 = 16;

impl Times {
    /// `own`: with what copies and sums of the first rank cost.
    fn of(pair: &Communicator, own: &CallCosts) -> Result<Times> {
        let most = 1usize << LOGS[LOGS.len() - 1];
        let (send, mut buffer) = (vec![1u8; most], vec![1u8; 2 * most]);
        pair.use_algorithm(Some((Algorithm::Dissemination, 1)));
        let barrier = median(pair, false, |_| pair.barrier())?;
        pair.use_algorithm(Some((Algorithm::Linear, 1)));
        let (mut turns, mut stream) = (Vec::new(), Vec::new());
        for log in LOGS {
            let data = &mut buffer[..1 << log];
            turns.push(median(pair, false, |i| pair.bcast(data, i % 2))?);
            stream.push(match data.len() <= MOST_STREAMED {
                true => Some(median(pair, true, |_| pair.bcast(data, 0))?),
                false => None,
            });
        }
        let mut exchange = Vec::new();
        let mut sum = vec![0.0f64; ROW_BYTES as usize / 8];
        let curve = |works: &[WorkCost]| {
            let points: Vec<(f64, f64)> = works.iter().map(|w| (w.bytes as f64, w.ns)).collect();
            Piecewise::through(&points)
        };
        let (copies, sums) = (curve(&own.copy), curve(&own.combine));
        for log in LOGS {
            let bytes = 1usize << log;
            exchange.push(if bytes as u64 > ROW_BYTES {
                pair.use_algorithm(Some((Algorithm::RecursiveDoubling, 1)));
                let data = &mut buffer[..2 * bytes];
                let call = |_| pair.allgather(&send[..bytes], &mut data[..]);
                Some(median(pair, false, call)? - copies.at(bytes as f64))
            } else if bytes >= 8 {
                pair.use_algorithm(Some((Algorithm::RecursiveDoubling, 1)));
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
        pair.use_algorithm(None);
        Ok(Times {
            barrier,
            turns,
            stream,
            exchange,
            two_segments,
            many_segments,
        })
    }

    fn at(&self, bytes: usize) -> (f64, f64) {
        let at = LOGS.iter().position(|log| 1usize << log == bytes);
        let at = at.expect("a size that was measured");
        let one_way = self.turns[at];
        let stream = self.stream[at].unwrap_or(one_way);
        (one_way, stream.min(one_way / 2.0))
    }

    /// What a call and a step cost that are no row.
    fn executor(&self) -> (f64, f64) {
        let (one_way, busy) = self.at(SEGMENT);
        let each = (self.many_segments - self.two_segments) / f64::from(MANY - 2);
        let step = (each - busy).max(0.0);
        let run = (self.two_segments - 3.0 * step - one_way - busy).max(0.0);
        (round(run), round(step))
    }

    fn messages(&self) -> Vec<MessageCost> {
        let (run, step) = self.executor();
        let (_, busy) = self.at(1);
        let mut messages = vec![MessageCost {
            bytes: 0,
            one_way_ns: self.barrier,
            busy_ns: busy.min(self.barrier / 2.0),
        }];
        for (at, log) in LOGS.into_iter().enumerate() {
            let bytes = 1u64 << log;
            let (run, step) = match bytes > ROW_BYTES {
                true => (run, step),
                false => (0.0, 0.0),
            };
            let least = self.turns[at] / 10.0;
            let one_way_ns = (self.turns[at] - run - 2.0 * step).max(least);
            let exchange = self.exchange[at].map(|x| x - run - 3.0 * step);
            let busy_ns = match (exchange, self.stream[at]) {
                (Some(x), _) if x > LONGER * one_way_ns => (x / 2.0).min(one_way_ns),
                (_, Some(g)) => (g - run - step).max(least / 2.0).min(one_way_ns / 2.0),
                _ => one_way_ns / 2.0,
            };
            messages.push(MessageCost {
                bytes,
                one_way_ns,
                busy_ns,
            });
        }
        rise(&mut messages);
        messages
    }
}

/// Copies and sums of this rank.
fn works() -> (Vec<WorkCost>, Vec<WorkCost>) {
    let most = 4usize << 20;
    let from = vec![1.0f64; most / 8];
    let mut to = vec![1.0f64; most / 8];
    let (mut copy, mut combine) = (Vec::new(), Vec::new());
    for log in [3, 6, 9, 12, 15, 18, 20, 22] {
        let (n, bytes) = ((1usize << log) / 8, 1u64 << log);
        let add = |works: &mut Vec<WorkCost>, body: &mut dyn FnMut()| {
            let before = works.last().map_or(0.1, |w: &WorkCost| w.ns);
            let ns = round(own_median(body)).max(before);
            works.push(WorkCost { bytes, ns });
        };
        add(&mut copy, &mut || {
            black_box(&mut to[..n]).copy_from_slice(black_box(&from[..n]));
        });
        add(&mut combine, &mut || {
            // Sums of ones stay finite.
            let sum = crate::reduce_local(black_box(&from[..n]), &mut to[..n], crate::Op::Sum);
            black_box(sum).unwrap_or_default();
        });
    }
    (copy, combine)
}

/// Median time of what one rank does by itself.
fn own_median(body: &mut dyn FnMut()) -> f64 {
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
    middle(&mut times)
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median time of a call, in ns; the first rank's. If it `meets`, a batch ends when both
/// ranks are through, for calls in which one does not wait for the other.
fn median(
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
    // An even number keeps turns.
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
