//! Threads of one rank, each with a communicator of its own.
//!
//! With one rank each thread exchanges with itself; with two, thread i of one
//! rank with thread i of the other. All threads run for a while at the same
//! time; the rate counts the messages of all.

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use osier::Communicator;

use super::options::Plan;
use super::report::{Report, Row};
use super::timing::median;
use super::{Failure, Result};
use crate::run;

/// What a repetition takes.
const REPETITION: Duration = Duration::from_millis(30);
const REPETITIONS: u64 = 9;
/// Exchanges between two looks at the clock of the repetition.
const BATCH: u64 = 64;
const TAG: i32 = 1;

/// Measures 1 to T threads as a rank of a job; rank 0 reports.
pub fn run(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
}

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    let ranks = comm.size();
    super::options::check_ranks(plan.bench, ranks)?;
    let peer = ranks - 1 - comm.rank();
    let comms: Vec<Communicator> = (0..plan.threads)
        .map(|_| comm.dup())
        .collect::<osier::Result<_>>()?;
    let first = comm.rank() == 0;
    let mut report = first
        .then(|| comm.transport(peer).map(|by| Report::new(plan, ranks, by)))
        .transpose()?;
    for curve in &plan.curves {
        if let Some(report) = &mut report {
            report.begin(curve);
        }
        for shape in &curve.shapes {
            let bytes = shape.bytes();
            let mut alone = None;
            for threads in 1..=plan.threads {
                if let Some(report) = &mut report {
                    report.announce(bytes);
                }
                let mut rates = rates(plan, comm, &comms[..threads], peer, bytes)?;
                let value = median(&mut rates);
                let one = *alone.get_or_insert(value);
                if let Some(report) = &mut report {
                    report.row(&Row {
                        threads,
                        bytes,
                        unit: "msg/s",
                        value,
                        best: rates[rates.len() - 1],
                        p99: rates[0],
                        spread: Some([rates[0], rates[rates.len() - 1]]),
                        floor: None,
                        by_hand: (threads > 1).then_some(one),
                    })?;
                }
            }
        }
    }
    comm.barrier()?;
    report.map_or(Ok(()), Report::finish)
}

/// Messages per second that the threads of this rank receive, of each
/// repetition.
fn rates(
    plan: &Plan,
    comm: &Communicator,
    comms: &[Communicator],
    peer: usize,
    bytes: usize,
) -> Result<Vec<f64>> {
    let cpus = run::allowed_cpus().unwrap_or_default();
    let mut rates = Vec::new();
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        comm.barrier()?;
        let ready = Barrier::new(comms.len());
        let over = AtomicBool::new(false);
        let threads = comms.len();
        let exchanged: Vec<Result<(u64, Duration)>> = std::thread::scope(|s| {
            let spawned: Vec<_> = comms
                .iter()
                .enumerate()
                .map(|(at, own)| {
                    let (ready, over, cpus) = (&ready, &over, &cpus);
                    let place = comm.rank() * threads + at;
                    s.spawn(move || {
                        if !cpus.is_empty() {
                            // Unbound is noisier and no error.
                            let _ = run::bind_to(cpus[place % cpus.len()]);
                        }
                        ready.wait();
                        exchange(own, peer, bytes, over)
                    })
                })
                .collect();
            let joined = spawned.into_iter().map(|thread| thread.join());
            joined
                .map(|r| r.unwrap_or_else(|_| Err(Failure::failed("a thread panicked"))))
                .collect()
        });
        let mut rate = 0.0;
        for thread in exchanged {
            let (messages, took) = thread?;
            rate += messages as f64 / took.as_secs_f64();
        }
        rates.push(rate);
    }
    Ok(rates)
}

/// A buffer that shares no pair of cache lines with another thread's: threads
/// that end leave their part of the heap to others, and a small vector may come
/// to lie beside one of another thread.
struct OwnLines {
    memory: Vec<u8>,
    bytes: usize,
}

impl OwnLines {
    const PAIR: usize = 128;

    fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes.next_multiple_of(Self::PAIR) + Self::PAIR];
        Self { memory, bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.memory.as_ptr().align_offset(Self::PAIR);
        &mut self.memory[at..at + self.bytes]
    }
}

/// Exchanges until the time of a repetition is over. Both ends agree on the
/// end: the lower rank says with each message whether it is the last.
fn exchange(
    comm: &Communicator,
    peer: usize,
    bytes: usize,
    over: &AtomicBool,
) -> Result<(u64, Duration)> {
    let me = comm.rank();
    let (mut out, mut into) = (OwnLines::new(bytes.max(1)), OwnLines::new(bytes.max(1)));
    let (out, into) = (out.bytes(), into.bytes());
    let begin = Instant::now();
    let mut messages = 0;
    loop {
        for at in 0..BATCH {
            let last = at + 1 == BATCH && me <= peer && {
                // All threads of a rank stop together, or those that are left
                // would have the machine to themselves.
                if begin.elapsed() >= REPETITION {
                    over.store(true, Ordering::Relaxed);
                }
                over.load(Ordering::Relaxed)
            };
            out[0] = u8::from(last);
            comm.sendrecv(out, peer, TAG, into, peer, TAG)?;
            messages += 1;
            if last || (me > peer && into[0] != 0) {
                return Ok((messages, begin.elapsed()));
            }
        }
    }
}
