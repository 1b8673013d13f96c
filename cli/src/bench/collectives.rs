//! `osier bench allreduce` and the other collectives: the time of a call, what the
//! model predicts, and what no plan can beat.
//!
//! Calls follow each other without a pause, and every rank takes its own median. A
//! result is compared before the table shows it.

use std::process::ExitCode;

use osier::plans::{Algorithm, Operation};
use osier::{BufferMut, Communicator, Contribution, Op};

use super::floor::{Cores, Gauge};
use super::options::{self, Plan};
use super::progress::Bar;
use super::report::{Record, number, write, write_records};
use super::{Bench, Failure, Result, plot, timing};

/// Root of those that have one.
const ROOT: usize = 0;
/// `--each` leaves out plans that are predicted to take this many times the best.
const HOPELESS: f64 = 20.0;

impl Bench {
    /// The collective that it measures, if it is one of those.
    pub fn operation(self) -> Option<Operation> {
        Some(match self {
            Bench::Barrier => Operation::Barrier,
            Bench::Bcast => Operation::Bcast,
            Bench::Gather => Operation::Gather,
            Bench::Allgather => Operation::Allgather,
            Bench::Allreduce => Operation::Allreduce,
            _ => return None,
        })
    }
}

/// A plan and what it should take.
struct Candidate {
    name: String,
    algorithm: Option<(Algorithm, u32)>,
    segments: u32,
    predicted: f64,
}

/// Seconds of a call over the ranks.
struct Times {
    mean: f64,
    min: f64,
    max: f64,
}

/// Measures all sizes as a rank of a job; rank 0 reports.
pub fn run(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
}

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    options::check_ranks(plan.bench, comm.size())?;
    let Some(operation) = plan.bench.operation() else {
        return Err(Failure::usage("not a collective"));
    };
    let cores = Cores::of(comm)?;
    let first = comm.rank() == 0;
    let transport = comm.transport((comm.rank() + 1) % comm.size())?;
    let mut table = first.then(|| Table::new(plan, operation, comm.size(), transport));
    let sizes: Vec<usize> = match operation {
        Operation::Barrier => vec![0],
        _ => plan.curves[0].shapes.iter().map(|s| s.bytes()).collect(),
    };
    for asked in sizes {
        // Sums are sums of doubles.
        let bytes = match operation.reduces() {
            true => asked.next_multiple_of(8).max(8),
            false => asked,
        };
        let candidates = candidates(plan, comm, operation, bytes)?;
        let mut gauge = match first {
            true => {
                Gauge::of_collective(cores.as_ref(), comm.size(), volume(operation, comm, bytes))?
            }
            false => Gauge::none(),
        };
        comm.barrier()?;
        gauge.sample()?;
        let mut rows = Vec::new();
        for candidate in candidates {
            if let Some(table) = &mut table {
                table.bar.show(
                    table.records.len(),
                    &format!("{bytes} B {}", candidate.name),
                );
            }
            comm.use_algorithm(candidate.algorithm.clone());
            let times = times(plan, comm, operation, bytes)?;
            rows.push((candidate, times));
        }
        comm.use_algorithm(None);
        comm.barrier()?;
        gauge.sample()?;
        if let Some(table) = &mut table {
            table.rows(bytes, &rows, gauge.seconds());
        }
    }
    comm.barrier()?;
    table.map_or(Ok(()), Table::finish)
}

/// The plans to be measured: the chosen one, or all that there are. The same at all
/// ranks, whose costs are.
fn candidates(
    plan: &Plan,
    comm: &Communicator,
    operation: Operation,
    bytes: usize,
) -> Result<Vec<Candidate>> {
    let choice = comm.explain(operation, bytes)?;
    let best = choice.ns();
    let of = |at: usize| {
        let candidate = &choice.ranking[at];
        let (algorithm, segments) = (candidate.plan.algorithm(), candidate.plan.segments());
        Candidate {
            name: algorithm.to_string(),
            // The chosen one is measured as users have it.
            algorithm: (at > 0).then(|| (algorithm.clone(), segments)),
            segments,
            predicted: candidate.ns * 1e-9,
        }
    };
    let wanted = (0..choice.ranking.len()).filter(|at| match &plan.algorithm {
        Some(wanted) => choice.ranking[*at].plan.algorithm() == wanted,
        None => *at == 0 || (plan.each && choice.ranking[*at].ns <= HOPELESS * best),
    });
    let found: Vec<Candidate> = wanted.map(of).collect();
    match (found.is_empty(), &plan.algorithm) {
        (true, Some(wanted)) => Err(Failure::usage(format!(
            "--algorithm {wanted} is not for {} here (hint: --each measures all that are)",
            operation.name()
        ))),
        _ => Ok(found),
    }
}

/// Bytes that some rank must take in, whatever the plan.
fn volume(operation: Operation, comm: &Communicator, bytes: usize) -> usize {
    match operation {
        Operation::Barrier => 0,
        Operation::Gather | Operation::Allgather | Operation::Alltoall => (comm.size() - 1) * bytes,
        _ => bytes,
    }
}

fn times(plan: &Plan, comm: &Communicator, operation: Operation, bytes: usize) -> Result<Times> {
    let (rank, size) = (comm.rank(), comm.size());
    let repeat = |call: &mut dyn FnMut() -> osier::Result<()>| {
        timing::measure(Some(comm), &plan.effort, |n| {
            for _ in 0..n {
                call()?;
            }
            Ok(())
        })
    };
    let wrong = |what: usize| {
        Failure::failed(format!(
            "{} of {bytes} bytes: rank {rank} has a wrong result at element {what}",
            operation.name()
        ))
    };
    let seconds = if operation.reduces() {
        let elements = bytes / 8;
        let send: Vec<f64> = (0..elements).map(|i| (rank + 1 + i % 7) as f64).collect();
        let mut recv = vec![0.0; elements];
        let seconds = repeat(&mut || combine(comm, operation, &send[..], &mut recv[..]))?;
        let sum = |i: usize| (0..size).map(|r| (r + 1 + i % 7) as f64).sum::<f64>();
        if let Some(at) = (0..elements).find(|i| recv[*i] != sum(*i)) {
            return Err(wrong(at));
        }
        seconds
    } else {
        let gathers = matches!(operation, Operation::Gather | Operation::Allgather);
        let send = vec![mark(rank); bytes];
        let mut recv = match gathers {
            true => vec![0u8; bytes * size],
            false if rank == ROOT => vec![mark(ROOT); bytes],
            false => vec![0u8; bytes],
        };
        let seconds = repeat(&mut || spread(comm, operation, &send[..], &mut recv[..]))?;
        let whole = operation != Operation::Gather || rank == ROOT;
        let right = |at: usize| match gathers {
            true => mark(at / bytes.max(1)),
            false => mark(ROOT),
        };
        if let Some(at) = (0..recv.len()).find(|at| whole && recv[*at] != right(*at)) {
            return Err(wrong(at));
        }
        seconds
    };
    let mut all = vec![0.0; size];
    comm.allgather(&[seconds.median][..], &mut all[..])?;
    Ok(Times {
        mean: all.iter().sum::<f64>() / size as f64,
        min: all.iter().copied().fold(f64::INFINITY, f64::min),
        max: all.iter().copied().fold(0.0, f64::max),
    })
}

fn mark(rank: usize) -> u8 {
    (1 + rank % 200) as u8
}

/// A call that moves bytes.
fn spread<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
    comm: &Communicator,
    operation: Operation,
    send: &S,
    recv: &mut R,
) -> osier::Result<()> {
    match operation {
        Operation::Barrier => comm.barrier(),
        Operation::Bcast => comm.bcast(recv, ROOT),
        Operation::Gather => comm.gather(send, recv, ROOT),
        _ => comm.allgather(send, recv),
    }
}

/// A call that adds up.
fn combine<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
    comm: &Communicator,
    operation: Operation,
    send: &S,
    recv: &mut R,
) -> osier::Result<()> {
    debug_assert_eq!(operation, Operation::Allreduce);
    comm.allreduce(send, recv, Op::Sum)
}

/// The table on standard output, and the files.
struct Table<'a> {
    plan: &'a Plan,
    name: &'static str,
    ranks: usize,
    transport: String,
    bar: Bar,
    records: Vec<Record>,
    curves: Vec<plot::Curve>,
    /// Of every plan: |predicted - measured| / measured.
    errors: Vec<f64>,
    /// Of every size: time of the chosen plan over the best measured one, less 1.
    regrets: Vec<f64>,
}

const HEADS: [&str; 7] = [
    "Avg (us)",
    "Min",
    "Max",
    "Predicted",
    "x Predicted",
    "Floor",
    "x Floor",
];

impl<'a> Table<'a> {
    fn new(plan: &'a Plan, operation: Operation, ranks: usize, transport: &str) -> Table<'a> {
        println!("# osier {}: {ranks} ranks, {transport}", operation.name());
        let mut line = format!("{:<12}", "# Size");
        for head in HEADS {
            line += &format!("{head:>12}");
        }
        println!("{line}  Plan");
        let curve = |label: &str| plot::Curve {
            label: label.into(),
            points: Vec::new(),
        };
        Table {
            plan,
            name: operation.name(),
            ranks,
            transport: transport.into(),
            bar: Bar::new(plan.curves[0].shapes.len(), plan.progress),
            records: Vec::new(),
            curves: vec![curve("measured"), curve("predicted")],
            errors: Vec::new(),
            regrets: Vec::new(),
        }
    }

    fn rows(&mut self, bytes: usize, rows: &[(Candidate, Times)], floor: Option<f64>) {
        self.bar.clear();
        let floor = floor.filter(|f| f.is_finite() && *f > 0.0);
        for (at, (candidate, times)) in rows.iter().enumerate() {
            let floor_us = floor.map_or(f64::NAN, |f| f * 1e6);
            let cells = [
                times.mean * 1e6,
                times.min * 1e6,
                times.max * 1e6,
                candidate.predicted * 1e6,
                times.mean / candidate.predicted,
                floor_us,
                times.mean * 1e6 / floor_us,
            ];
            let mut line = format!("{bytes:<12}");
            for cell in cells {
                line += &format!("{:>12}", number(cell));
            }
            let segments = match candidate.segments {
                1 => String::new(),
                n => format!(", {n} segments"),
            };
            println!("{line}  {}{segments}", candidate.name);
            self.errors
                .push((candidate.predicted - times.mean).abs() / times.mean);
            let mut record = |bench: String, value: f64| {
                self.records.push(Record {
                    bench,
                    layout: format!("{}{segments}", candidate.name),
                    memory: "plain".into(),
                    transport: self.transport.clone(),
                    threads: 1,
                    ranks: self.ranks,
                    bytes,
                    unit: "us",
                    value,
                    floor: floor.map(|f| f * 1e6),
                });
            };
            record(self.name.into(), times.mean * 1e6);
            record(
                format!("{}-predicted", self.name),
                candidate.predicted * 1e6,
            );
            if at == 0 {
                for (curve, value) in self
                    .curves
                    .iter_mut()
                    .zip([times.mean, candidate.predicted])
                {
                    curve.points.push(plot::Point {
                        bytes: bytes.max(1),
                        value: value * 1e6,
                        floor: floor.map(|f| f * 1e6),
                    });
                }
            }
        }
        let best = rows.iter().map(|(_, times)| times.mean);
        let best = best.fold(f64::INFINITY, f64::min);
        if let Some((_, chosen)) = rows.first() {
            self.regrets.push(chosen.mean / best - 1.0);
        }
    }

    fn finish(mut self) -> Result<()> {
        self.bar.clear();
        let percent = |values: &mut Vec<f64>| number(100.0 * timing::median(values));
        print!(
            "# prediction: off by {} % at the median of {} plans",
            percent(&mut self.errors),
            self.errors.len()
        );
        match self.plan.each {
            true => println!(
                "; regret of the choice: {} % at the median of {} sizes",
                percent(&mut self.regrets),
                self.regrets.len()
            ),
            false => println!(),
        }
        if let Some(file) = &self.plan.json {
            write_records(file, &self.records)?;
        }
        if let Some(file) = &self.plan.plot {
            let title = format!("osier bench {}, {} ranks", self.name, self.ranks);
            write(file, &plot::svg(&title, "us", &self.curves))?;
            println!("\n# plot: {}", file.display());
        }
        Ok(())
    }
}
