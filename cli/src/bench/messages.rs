//! Benchmarks between ranks: ping-pong and windows.

use std::process::ExitCode;

use osier::{Buffer, BufferMut, Communicator};

use super::buffers::Pool;
use super::by_copies::{By, End};
use super::floor::{Cores, Gauge};
use super::gpu::{Busy, DevicePool, Gpu, Incoming, Outgoing};
use super::layout::Shape;
use super::options::{self, Curve, Plan};
use super::report::{Report, Row};
use super::timing::{self, Seconds};
use super::{Bench, Failure, Memory, Result};

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
    let gpu = match plan.curves.iter().any(Curve::is_of_devices) {
        true => Some(Gpu::of(comm)?),
        false => None,
    };
    let mut busy = None;
    if let (Some(gpu), true) = (&gpu, first) {
        println!("# on {}", gpu.name);
        busy = plan.busy.map(|share| Busy::new(gpu, share)).transpose()?;
    }
    for curve in &plan.curves {
        if let Some(report) = &mut report {
            report.begin(curve);
        }
        for (shape, other) in curve.shapes.iter().zip(&curve.receives) {
            if let Some(report) = &mut report {
                report.announce(shape.bytes());
            }
            let mut gauge = match (&gpu, first) {
                (Some(gpu), true) if curve.is_of_devices() => {
                    Gauge::of_devices(gpu, curve, shape.bytes())
                }
                (_, true) => Gauge::new(plan, cores.as_ref(), shape.bytes())?,
                (_, false) => Gauge::none(),
            };
            let bed = Bed {
                plan,
                curve,
                send: shape,
                receive: other,
                comm,
                pair: &pair,
                gpu: gpu.as_ref(),
            };
            osier::testing::pipeline_devices(comm, curve.pipelining);
            comm.barrier()?;
            gauge.sample()?;
            let rows = one(&bed)?;
            comm.barrier()?;
            gauge.sample()?;
            if let Some(report) = &mut report {
                let floor = gauge.seconds();
                for value in rows {
                    report.row(&value.row(shape.bytes(), floor))?;
                }
            }
        }
    }
    comm.barrier()?;
    drop(busy);
    report.map_or(Ok(()), Report::finish)
}

/// What one value is measured with.
struct Bed<'a> {
    plan: &'a Plan,
    curve: &'a Curve,
    send: &'a Shape,
    receive: &'a Shape,
    comm: &'a Communicator,
    pair: &'a Pair,
    gpu: Option<&'a Gpu>,
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
            spread: Some(self.seconds.spread_of(convert)),
            floor,
            by_hand: None,
        }
    }
}

fn one(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let Bed {
        plan,
        send,
        comm,
        pair,
        ..
    } = *bed;
    let windows = |both| bed.run(What::Windows { both });
    let in_window = plan.window as f64;
    let bytes = send.bytes() as f64;
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
        Bench::Latency => vec![time(bed.run(What::PingPong)?)],
        Bench::Bandwidth => vec![rate(windows(false)?, "MB/s", bytes * 1e-6, in_window)],
        Bench::Bibandwidth => vec![rate(windows(true)?, "MB/s", 2e-6 * bytes, in_window)],
        Bench::MessageRate => vec![rate(windows(false)?, "msg/s", 1.0, in_window)],
        Bench::MultiPair => {
            let latency = over_pairs(bed.run(What::PingPong)?, comm, pair)?;
            let window = over_pairs(windows(false)?, comm, pair)?;
            let pairs = pair.pairs as f64;
            let mut messages = rate(window, "msg/s", pairs, in_window);
            if let Scale::Rate { messages, .. } = &mut messages.scale {
                // One-way times say nothing about the rate of a window.
                *messages = f64::NAN;
            }
            vec![time(latency), messages]
        }
        _ => Vec::new(),
    })
}

/// The mean over the pairs, each having taken its own median.
fn over_pairs(mine: Seconds, comm: &Communicator, pair: &Pair) -> Result<Seconds> {
    let mine = match pair.lower {
        true => [
            mine.median,
            mine.min,
            mine.p99,
            mine.spread[0],
            mine.spread[1],
        ],
        false => [0.0; 5],
    };
    let mut sum = [0.0; 5];
    comm.allreduce(&mine, &mut sum, osier::Op::Sum)?;
    let [median, min, p99, least, greatest] = sum.map(|s| s / pair.pairs as f64);
    Ok(Seconds {
        median,
        min,
        p99,
        spread: [least, greatest],
    })
}

fn mark(rank: usize) -> u8 {
    (1 + rank % 200) as u8
}

/// What is repeated.
#[derive(Clone, Copy)]
enum What {
    /// A round trip.
    PingPong,
    /// A window of messages and its answer.
    Windows { both: bool },
}

/// Slots on the host, or where a GPU reaches them.
enum Slots {
    Host(Pool),
    Device(DevicePool),
}

impl Slots {
    fn outgoing(&self, shape: &Shape) -> Result<Vec<Outgoing<'_>>> {
        Ok(match self {
            Slots::Host(pool) => {
                let views = pool.views(shape)?.into_iter();
                views.map(Outgoing::Host).collect()
            }
            Slots::Device(pool) => {
                let views = pool.views(shape)?.into_iter();
                views.map(Outgoing::Device).collect()
            }
        })
    }

    fn incoming(&mut self, shape: &Shape) -> Result<Vec<Incoming<'_>>> {
        Ok(match self {
            Slots::Host(pool) => {
                let views = pool.views_mut(shape)?.into_iter();
                views.map(Incoming::Host).collect()
            }
            Slots::Device(pool) => {
                let views = pool.views(shape)?.into_iter();
                views.map(Incoming::Device).collect()
            }
        })
    }
}

impl Bed<'_> {
    fn slots(&self, memory: Memory, shape: &Shape, reused: usize, fill: u8) -> Result<Slots> {
        let (span, rotate) = (shape.span(), self.plan.rotate);
        Ok(match (memory.is_of_a_device(), self.gpu) {
            (true, Some(gpu)) => {
                Slots::Device(DevicePool::new(gpu, memory, span, rotate, reused, fill)?)
            }
            _ => Slots::Host(Pool::new(
                Some(self.comm),
                memory,
                span,
                rotate,
                reused,
                fill,
            )?),
        })
    }

    /// Seconds of one of what is repeated.
    fn run(&self, what: What) -> Result<Seconds> {
        // Sends may share a buffer; receives that are posted together may not.
        let reused = match what {
            What::PingPong => 1,
            What::Windows { .. } => self.plan.window,
        };
        let from = self.slots(self.curve.from, self.send, 1, mark(self.comm.rank()))?;
        let mut to = self.slots(self.curve.to, self.receive, reused, 0)?;
        let seconds = match (&from, &mut to) {
            (Slots::Device(from), Slots::Device(to)) if self.curve.by != By::Osier => {
                self.ping_pong_by_copies(from, to)
            }
            (Slots::Host(from), Slots::Host(to)) => self.repeat(
                what,
                &from.views(self.send)?,
                &mut to.views_mut(self.receive)?,
            ),
            (from, to) => self.repeat(
                what,
                &from.outgoing(self.send)?,
                &mut to.incoming(self.receive)?,
            ),
        }?;
        if !matches!(what, What::Windows { both: false }) || !self.pair.lower {
            self.verify(&to)?;
        }
        Ok(seconds)
    }

    fn repeat<S: Buffer, R: BufferMut>(
        &self,
        what: What,
        sends: &[S],
        receives: &mut [R],
    ) -> Result<Seconds> {
        match what {
            What::PingPong => self.ping_pong(sends, receives),
            What::Windows { both } => self.windows(both, sends, receives),
        }
    }

    fn ping_pong<S: Buffer, R: BufferMut>(
        &self,
        sends: &[S],
        receives: &mut [R],
    ) -> Result<Seconds> {
        let (comm, peer) = (self.comm, self.pair.peer);
        let (mut out, mut into) = (0, 0);
        timing::measure(Some(comm), &self.plan.effort, |n| {
            for _ in 0..n {
                if self.pair.lower {
                    comm.send(&sends[out], peer, DATA)?;
                    comm.recv(&mut receives[into], peer, DATA)?;
                } else {
                    comm.recv(&mut receives[into], peer, DATA)?;
                    comm.send(&sends[out], peer, DATA)?;
                }
                out += 1;
                if out == sends.len() {
                    out = 0;
                }
                into += 1;
                if into == receives.len() {
                    into = 0;
                }
            }
            Ok(())
        })
    }

    /// The same without kernels.
    fn ping_pong_by_copies(&self, from: &DevicePool, to: &DevicePool) -> Result<Seconds> {
        let Some(gpu) = self.gpu else {
            return Err(Failure::failed("no GPU"));
        };
        let (comm, peer, by) = (self.comm, self.pair.peer, self.curve.by);
        let mut send = End::new(gpu, by, self.send, &from.slot(0)?)?;
        let mut receive = End::new(gpu, by, self.receive, &to.slot(0)?)?;
        timing::measure(Some(comm), &self.plan.effort, |n| {
            for _ in 0..n {
                if self.pair.lower {
                    send.send(comm, peer, DATA)?;
                    receive.recv(comm, peer, DATA)?;
                } else {
                    receive.recv(comm, peer, DATA)?;
                    send.send(comm, peer, DATA)?;
                }
            }
            Ok(())
        })
    }

    fn windows<S: Buffer, R: BufferMut>(
        &self,
        both: bool,
        sends: &[S],
        receives: &mut [R],
    ) -> Result<Seconds> {
        let (comm, peer, window) = (self.comm, self.pair.peer, self.plan.window);
        let lower = self.pair.lower;
        let (send, receive) = (lower || both, !lower || both);
        let (mut out, mut into) = (0, 0);
        timing::measure(Some(comm), &self.plan.effort, |n| {
            let mut answer = 0u8;
            for _ in 0..n {
                comm.scope(|s| {
                    if receive {
                        for view in round(receives, &mut into, window) {
                            s.irecv(view, peer, DATA)?;
                        }
                    }
                    if send {
                        for _ in 0..window {
                            s.isend(next(sends, &mut out), peer, DATA)?;
                        }
                    }
                    Ok(())
                })?;
                if lower {
                    comm.recv(&mut answer, peer, ANSWER)?;
                } else {
                    comm.send(&answer, peer, ANSWER)?;
                }
            }
            Ok(())
        })
    }

    /// Whether the first slot holds what the peer sent.
    fn verify(&self, to: &Slots) -> Result<()> {
        let (shape, peer) = (self.receive, self.pair.peer);
        let on_device;
        let slot = match to {
            Slots::Host(pool) => pool.slot(0),
            Slots::Device(pool) => {
                on_device = pool.first()?;
                &on_device
            }
        };
        let mut packed = vec![0; shape.bytes()];
        shape
            .layout
            .pack(slot, 0, 1, 0..packed.len(), &mut packed)
            .map_err(|e| Failure::failed(e.to_string()))?;
        match packed.iter().position(|b| *b != mark(peer)) {
            None => Ok(()),
            Some(at) => Err(Failure::failed(format!(
                "a message of {} bytes from rank {peer} arrived with a wrong byte at {at}",
                packed.len()
            ))),
        }
    }
}

fn next<'a, S>(views: &'a [S], at: &mut usize) -> &'a S {
    let view = &views[*at];
    *at = (*at + 1) % views.len();
    view
}

/// The next `n` views, walking round.
fn round<'a, R>(views: &'a mut [R], at: &mut usize, n: usize) -> impl Iterator<Item = &'a mut R> {
    let len = views.len();
    let (head, tail) = views.split_at_mut(*at);
    *at = (*at + n) % len;
    tail.iter_mut().chain(head).take(n)
}
