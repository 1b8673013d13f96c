//! Benchmarks between ranks: ping-pong and windows.

use std::process::ExitCode;

use osier::{Communicator, View, ViewMut};

use super::buffers::Pool;
use super::floor::{Cores, Gauge};
use super::layout::Shape;
use super::options::{self, Curve, Plan};
use super::report::{Report, Row};
use super::timing::{self, Seconds};
use super::{Bench, Failure, Result};

const DATA: i32 = 1;
const ANSWER: i32 = 2;

/// Measures all curves as a rank of a job, or several as threads; rank 0
/// reports.
pub fn run(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
}

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    options::check_ranks(plan.bench, comm.size())?;
    let pair = Pair::of(comm);
    let cores = Cores::of(comm)?;
    let first = comm.rank() == 0;
    let transport = comm.transport(pair.peer)?;
    let mut report = first.then(|| Report::new(plan, comm.size(), transport));
    for curve in &plan.curves {
        if let Some(report) = &mut report {
            report.begin(curve);
        }
        for shape in &curve.shapes {
            if let Some(report) = &mut report {
                report.announce(shape.bytes());
            }
            let mut gauge = match first {
                true => Gauge::new(plan, cores.as_ref(), shape.bytes())?,
                false => Gauge::none(),
            };
            comm.barrier()?;
            gauge.sample()?;
            let rows = one(plan, curve, shape, comm, &pair)?;
            comm.barrier()?;
            gauge.sample()?;
            if let Some(report) = &mut report {
                let floor = gauge.seconds();
                for value in rows {
                    report.row(&value.row(shape.bytes(), floor));
                }
            }
        }
    }
    comm.barrier()?;
    report.map_or(Ok(()), Report::finish)
}

/// Who talks with whom: the lower half of the ranks with the upper.
struct Pair {
    peer: usize,
    lower: bool,
    pairs: usize,
}

impl Pair {
    fn of(comm: &Communicator) -> Pair {
        let pairs = comm.size() / 2;
        let lower = comm.rank() < pairs;
        let peer = if lower {
            comm.rank() + pairs
        } else {
            comm.rank() - pairs
        };
        Pair { peer, lower, pairs }
    }
}

/// A measurement and what it counts.
struct Value {
    seconds: Seconds,
    unit: &'static str,
    /// From seconds of an iteration to the unit.
    scale: Scale,
}

enum Scale {
    /// value = seconds x this.
    Time(f64),
    /// value = this / seconds; the floor is per message, of which an iteration
    /// has so many.
    Rate { amount: f64, messages: f64 },
}

impl Value {
    fn row(&self, bytes: usize, floor: Option<f64>) -> Row {
        let convert = |seconds: f64| match self.scale {
            Scale::Time(factor) => seconds * factor,
            Scale::Rate { amount, .. } => amount / seconds,
        };
        let floor = floor.map(|floor| match self.scale {
            // A floor is one way already.
            Scale::Time(_) => floor * 1e6,
            Scale::Rate { amount, messages } => amount / (floor * messages),
        });
        Row {
            threads: 1,
            bytes,
            unit: self.unit,
            value: convert(self.seconds.median),
            best: convert(self.seconds.min),
            p99: convert(self.seconds.p99),
            floor,
            by_hand: None,
        }
    }
}

fn one(
    plan: &Plan,
    curve: &Curve,
    shape: &Shape,
    comm: &Communicator,
    pair: &Pair,
) -> Result<Vec<Value>> {
    let windows = |both| windows(plan, curve, shape, comm, pair, both);
    let in_window = plan.window as f64;
    let bytes = shape.bytes() as f64;
    let time = |seconds| Value {
        seconds,
        unit: "us",
        scale: Scale::Time(0.5e6),
    };
    let rate = |seconds, unit, each: f64, messages: f64| Value {
        seconds,
        unit,
        scale: Scale::Rate {
            amount: each * messages,
            messages,
        },
    };
    Ok(match plan.bench {
        Bench::Latency => vec![time(ping_pong(plan, curve, shape, comm, pair)?)],
        Bench::Bandwidth => vec![rate(windows(false)?, "MB/s", bytes * 1e-6, in_window)],
        Bench::Bibandwidth => vec![rate(windows(true)?, "MB/s", 2e-6 * bytes, in_window)],
        Bench::MessageRate => vec![rate(windows(false)?, "msg/s", 1.0, in_window)],
        Bench::MultiPair => {
            let latency = over_pairs(ping_pong(plan, curve, shape, comm, pair)?, comm, pair)?;
            let window = over_pairs(windows(false)?, comm, pair)?;
            let pairs = pair.pairs as f64;
            let mut messages = rate(window, "msg/s", pairs, in_window);
            if let Scale::Rate { messages, .. } = &mut messages.scale {
                // One-way times say nothing about the rate of a window.
                *messages = f64::NAN;
            }
            vec![time(latency), messages]
        }
        Bench::Pack | Bench::Datatype | Bench::Threads | Bench::Launch => Vec::new(),
    })
}

/// The mean over the pairs, each having taken its own median.
fn over_pairs(mine: Seconds, comm: &Communicator, pair: &Pair) -> Result<Seconds> {
    let mine = match pair.lower {
        true => [mine.median, mine.min, mine.p99],
        false => [0.0; 3],
    };
    let mut sum = [0.0; 3];
    comm.allreduce(&mine, &mut sum, osier::Op::Sum)?;
    let [median, min, p99] = sum.map(|s| s / pair.pairs as f64);
    Ok(Seconds { median, min, p99 })
}

fn mark(rank: usize) -> u8 {
    (1 + rank % 200) as u8
}

/// Seconds of a round trip.
fn ping_pong(
    plan: &Plan,
    curve: &Curve,
    shape: &Shape,
    comm: &Communicator,
    pair: &Pair,
) -> Result<Seconds> {
    let (rotate, span) = (plan.rotate, shape.span());
    let mine = mark(comm.rank());
    let from = Pool::new(Some(comm), curve.memory, span, rotate, 1, mine)?;
    let mut to = Pool::new(Some(comm), curve.memory, span, rotate, 1, 0)?;
    let sends = from.views(shape)?;
    let mut receives = to.views_mut(shape)?;
    let peer = pair.peer;
    let mut at = 0;
    let seconds = timing::measure(Some(comm), &plan.effort, |n| {
        for _ in 0..n {
            if pair.lower {
                comm.send(&sends[at], peer, DATA)?;
                comm.recv(&mut receives[at], peer, DATA)?;
            } else {
                comm.recv(&mut receives[at], peer, DATA)?;
                comm.send(&sends[at], peer, DATA)?;
            }
            at += 1;
            if at == sends.len() {
                at = 0;
            }
        }
        Ok(())
    })?;
    drop(receives);
    verify(&to, shape, peer)?;
    Ok(seconds)
}

/// Seconds of a window of messages and its answer.
fn windows(
    plan: &Plan,
    curve: &Curve,
    shape: &Shape,
    comm: &Communicator,
    pair: &Pair,
    both: bool,
) -> Result<Seconds> {
    let (rotate, span, window) = (plan.rotate, shape.span(), plan.window);
    // Sends may share a buffer; receives that are posted together may not.
    let mine = mark(comm.rank());
    let from = Pool::new(Some(comm), curve.memory, span, rotate, 1, mine)?;
    let mut to = Pool::new(Some(comm), curve.memory, span, rotate, window, 0)?;
    let sends = from.views(shape)?;
    let mut receives = to.views_mut(shape)?;
    let (send, receive) = (pair.lower || both, !pair.lower || both);
    let peer = pair.peer;
    let (mut out, mut into) = (0, 0);
    let seconds = timing::measure(Some(comm), &plan.effort, |n| {
        let mut answer = 0u8;
        for _ in 0..n {
            comm.scope(|s| {
                if receive {
                    for view in round(&mut receives, &mut into, window) {
                        s.irecv(view, peer, DATA)?;
                    }
                }
                if send {
                    for _ in 0..window {
                        s.isend(next(&sends, &mut out), peer, DATA)?;
                    }
                }
                Ok(())
            })?;
            if pair.lower {
                comm.recv(&mut answer, peer, ANSWER)?;
            } else {
                comm.send(&answer, peer, ANSWER)?;
            }
        }
        Ok(())
    })?;
    drop(receives);
    if receive {
        verify(&to, shape, peer)?;
    }
    Ok(seconds)
}

fn next<'a, 'b>(views: &'a [View<'b>], at: &mut usize) -> &'a View<'b> {
    let view = &views[*at];
    *at = (*at + 1) % views.len();
    view
}

/// The next `n` views, walking round.
fn round<'a, 'b>(
    views: &'a mut [ViewMut<'b>],
    at: &mut usize,
    n: usize,
) -> impl Iterator<Item = &'a mut ViewMut<'b>> {
    let len = views.len();
    let (head, tail) = views.split_at_mut(*at);
    *at = (*at + n) % len;
    tail.iter_mut().chain(head).take(n)
}

/// Whether the first slot holds what the peer sent.
fn verify(pool: &Pool, shape: &Shape, peer: usize) -> Result<()> {
    let mut packed = vec![0; shape.bytes()];
    shape
        .layout
        .pack(pool.slot(0), 0, 1, 0..packed.len(), &mut packed)
        .map_err(|e| Failure::failed(e.to_string()))?;
    match packed.iter().position(|b| *b != mark(peer)) {
        None => Ok(()),
        Some(at) => Err(Failure::failed(format!(
            "a message of {} bytes from rank {peer} arrived with a wrong byte at {at}",
            packed.len()
        ))),
    }
}
