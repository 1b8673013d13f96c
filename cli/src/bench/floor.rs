//! Floor of the machine: flags, copies, rings of lines.
//!
//! Measured by rank 0 while the others wait, with threads of its own on the
//! ranks' cores: a cache line does not care whose it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use osier::Communicator;

use super::buffers::Pool;
use super::gpu::Gpu;
use super::options::{Curve, Effort, Plan};
use super::timing::{self, median};
use super::{Bench, Failure, Memory, Result};
use crate::run;

/// Payload that travels in the line of the flag itself.
const IN_LINE_BYTES: usize = 56;
/// Looks at a flag before the core is offered to others.
const PATIENCE: u32 = 1 << 14;
const ROUND_TRIPS: u64 = 4000;
const RING_LINES: usize = 256;
const RING_WORDS: u64 = 100_000;
const BATCHES: usize = 5;

/// The processors of the first two ranks.
pub struct Cores([usize; 2]);

impl Cores {
    /// `None` where ranks share one. Collective.
    pub fn of(comm: &Communicator) -> Result<Option<Cores>> {
        let mut all = vec![0u64; comm.size()];
        comm.allgather(&[current() as u64], &mut all)?;
        let first = all[0] as usize;
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() == all.len() {
            return Ok(all.get(1).map(|second| Cores([first, *second as usize])));
        }
        // Ranks that are not bound may meet on a processor by chance.
        let allowed = run::allowed_cpus().unwrap_or_default();
        let other = allowed.iter().find(|cpu| **cpu != first);
        Ok(other
            .filter(|_| allowed.len() >= all.len())
            .map(|other| Cores([first, *other])))
    }
}

impl Cores {
    /// How long a line takes from the first to the second, in ns, as costs tell it.
    pub fn line_ns(&self) -> Option<f64> {
        osier::model::line_between_ns(self.0)
    }
}

fn current() -> usize {
    // SAFETY: a system call without pointers.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// Samples of one floor.
pub struct Gauge {
    flag: Option<[usize; 2]>,
    /// So many one behind the other.
    flags: u32,
    ring: Option<[usize; 2]>,
    copy: Option<(Pool, Pool, usize)>,
    /// A copy between memories of devices.
    device: Option<(Gpu, Memory, Memory, usize)>,
    samples: Vec<f64>,
}

impl Gauge {
    /// The floor of a benchmark at one size.
    pub fn new(plan: &Plan, cores: Option<&Cores>, bytes: usize) -> Result<Gauge> {
        let mut gauge = Gauge::none();
        let Some(Cores(cores)) = cores else {
            return Ok(gauge);
        };
        let (mut copy, mut slots) = (false, 1);
        match plan.bench {
            Bench::Latency | Bench::MultiPair => {
                gauge.flag = Some(*cores);
                copy = bytes > IN_LINE_BYTES;
            }
            Bench::Bandwidth | Bench::Bibandwidth => {
                copy = true;
                slots = plan.window;
            }
            Bench::MessageRate => gauge.ring = Some(*cores),
            // These have none, or one of their own.
            _ => {}
        }
        if copy {
            let pool =
                |slots, fill| Pool::new(None, Memory::Plain, bytes, plan.rotate, slots, fill);
            gauge.copy = Some((pool(1, 1)?, pool(slots, 0)?, bytes));
        }
        Ok(gauge)
    }

    /// The floor of messages of devices.
    pub fn of_devices(gpu: &Gpu, curve: &Curve, bytes: usize) -> Gauge {
        Gauge {
            device: Some((gpu.clone(), curve.from, curve.to, bytes)),
            ..Gauge::none()
        }
    }

    /// The floor of a collective: a flag per doubling of those who know, and a copy of
    /// what somebody must take in.
    pub fn of_collective(cores: Option<&Cores>, ranks: usize, bytes: usize) -> Result<Gauge> {
        let mut gauge = Gauge::none();
        if let Some(Cores(cores)) = cores {
            gauge.flag = Some(*cores);
            gauge.flags = ranks.next_power_of_two().ilog2();
            if bytes > IN_LINE_BYTES {
                let pool = |fill| Pool::new(None, Memory::Plain, bytes, false, 1, fill);
                gauge.copy = Some((pool(1)?, pool(0)?, bytes));
            }
        }
        Ok(gauge)
    }

    /// No floor.
    pub fn none() -> Gauge {
        Gauge {
            device: None,
            flag: None,
            flags: 1,
            ring: None,
            copy: None,
            samples: Vec::new(),
        }
    }

    /// Measures once more.
    pub fn sample(&mut self) -> Result<()> {
        if let Some(cores) = self.ring {
            self.samples.push(ring(cores)?);
            return Ok(());
        }
        if let Some((gpu, from, to, bytes)) = &self.device {
            self.samples.push(gpu.copy_seconds(*from, *to, *bytes)?);
            return Ok(());
        }
        if self.flag.is_none() && self.copy.is_none() {
            return Ok(());
        }
        let mut seconds = 0.0;
        if let Some(cores) = self.flag {
            seconds += f64::from(self.flags) * flag(cores)?;
        }
        if let Some((from, to, bytes)) = &mut self.copy {
            seconds += copy(from, to, *bytes)?;
        }
        self.samples.push(seconds);
        Ok(())
    }

    /// Seconds one way, or of one message.
    pub fn seconds(mut self) -> Option<f64> {
        (!self.samples.is_empty()).then(|| median(&mut self.samples))
    }
}

/// Seconds of a copy from slot to slot.
pub fn copy(from: &Pool, to: &mut Pool, bytes: usize) -> Result<f64> {
    let (slot_from, slot_to) = (from.slot_bytes(), to.slot_bytes());
    let (mut a, mut b) = (0, 0);
    let (slots_from, slots_to) = (from.slots(), to.slots());
    let source = from.all();
    let target = to.all_mut();
    let effort = Effort {
        iterations: None,
        warmup: None,
        repetitions: Some(3),
    };
    let seconds = timing::measure(None, &effort, |n| {
        for _ in 0..n {
            let source = &source[a * slot_from..][..bytes];
            let target = &mut target[b * slot_to..][..bytes];
            target.copy_from_slice(std::hint::black_box(source));
            std::hint::black_box(target);
            a = if a + 1 == slots_from { 0 } else { a + 1 };
            b = if b + 1 == slots_to { 0 } else { b + 1 };
        }
        Ok(())
    })?;
    Ok(seconds.median)
}

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn wait_for(line: &Line, wanted: impl Fn(u64) -> bool) -> u64 {
    let mut looks = 0;
    loop {
        let value = line.0.load(Ordering::Acquire);
        if wanted(value) {
            return value;
        }
        looks += 1;
        if looks == PATIENCE {
            looks = 0;
            std::thread::yield_now();
        }
    }
}

/// Runs the two sides on their processors and returns what the second says.
fn on_cores<R: Send>(
    cores: [usize; 2],
    first: impl FnOnce() + Send,
    second: impl FnOnce() -> R + Send,
) -> Result<R> {
    // Both run even if they cannot be bound, so that neither waits in vain.
    std::thread::scope(|s| {
        let first = s.spawn(move || {
            let bound = run::bind_to(cores[0]);
            first();
            bound
        });
        let second = s.spawn(move || (run::bind_to(cores[1]), second()));
        let gone = || Failure::failed("a thread of the floor measurement panicked");
        first.join().map_err(|_| gone())?.ok();
        let (bound, result) = second.join().map_err(|_| gone())?;
        bound.map_err(|e| {
            let cpu = cores[1];
            Failure::failed(format!("floor: cannot run on processor {cpu}: {e}"))
        })?;
        Ok(result)
    })
}

/// Seconds of a line's way from one core to another: half a round trip.
fn flag(cores: [usize; 2]) -> Result<f64> {
    let line = Line::default();
    let trips = ROUND_TRIPS * (BATCHES as u64 + 1);
    let mut batches = on_cores(
        cores,
        || {
            for trip in 0..trips {
                wait_for(&line, |v| v == 2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
            }
        },
        || {
            let mut batches = Vec::new();
            let mut trip = 0;
            // The first batch warms up.
            for batch in 0..=BATCHES {
                let start = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    line.0.store(2 * trip + 1, Ordering::Release);
                    wait_for(&line, |v| v == 2 * trip + 2);
                    trip += 1;
                }
                if batch > 0 {
                    batches.push(start.elapsed().as_secs_f64());
                }
            }
            batches
        },
    )?;
    Ok(median(&mut batches) / (2 * ROUND_TRIPS) as f64)
}

/// Seconds of one word through a ring with one line a word.
fn ring(cores: [usize; 2]) -> Result<f64> {
    let lines: Vec<Line> = (0..RING_LINES).map(|_| Line::default()).collect();
    let taken = Line::default();
    let lines = &lines[..];
    let words = RING_WORDS * (BATCHES as u64 + 1);
    let report_every = RING_LINES as u64 / 4;
    let mut batches = on_cores(
        cores,
        || {
            let mut known = 0;
            for word in 0..words {
                if word - known == RING_LINES as u64 {
                    known = wait_for(&taken, |t| t > known);
                }
                let line = &lines[word as usize % RING_LINES];
                line.0.store(word + 1, Ordering::Release);
            }
        },
        || {
            let mut batches = Vec::new();
            let mut start = Instant::now();
            for word in 0..words {
                let line = &lines[word as usize % RING_LINES];
                wait_for(line, |v| v == word + 1);
                if (word + 1) % report_every == 0 {
                    taken.0.store(word + 1, Ordering::Release);
                }
                if (word + 1) % RING_WORDS == 0 {
                    let now = Instant::now();
                    batches.push((now - start).as_secs_f64());
                    start = now;
                }
            }
            // The first batch warms up.
            batches.split_off(1)
        },
    )?;
    Ok(median(&mut batches) / RING_WORDS as f64)
}
