//! `osier bench allreduce` and the other collectives: the time of a call, what the
//! model predicts, and what no plan can beat.
//!
//! Calls follow each other without a pause, roots taking turns, and every rank takes its
//! own median. A result is compared before the table shows it. The share of a
//! non-blocking call that overlaps is found as in the OSU suite: between its begin and
//! its wait each rank computes for as long as the call alone takes, and what the whole
//! takes longer than the computation did not overlap.

use std::process::ExitCode;

use std::time::{Duration, Instant};

use osier::{Communicator, ErrorKind};
use osier_collectives::{Algorithm, Choice, Operation};

use super::by_copies::By;
use super::calls::{Calls, Form};
use super::floor::{Cores, Gauge};
use super::gpu::Gpu;
use super::options::{self, Curve, Plan};
use super::progress::Bar;
use super::report::{Record, Records, number, write};
use super::timing::{self, Seconds};
use super::{Failure, Memory, Result, plot};

/// `--each` leaves out plans that are predicted to take this many times the best.
const HOPELESS: f64 = 20.0;

/// A plan and what it should take.
struct Candidate {
    name: String,
    algorithm: Option<(Algorithm, u32)>,
    segments: u32,
    /// Not a number: nobody knows.
    predicted: f64,
    /// Of buffers on devices: they go through the host.
    through_host: bool,
}

impl Candidate {
    /// Has the communicator's calls use it.
    fn begin(&self, comm: &Communicator, on_devices: bool) {
        match self.algorithm.clone() {
            Some((algorithm, segments)) if on_devices => {
                comm.use_algorithm_on_devices(algorithm, segments, !self.through_host);
            }
            chosen => comm.use_algorithm(chosen),
        }
    }
}

/// Seconds of a call over the ranks.
struct Times {
    mean: f64,
    min: f64,
    max: f64,
    /// Least and greatest of the repetitions, means of the ranks.
    spread: [f64; 2],
    /// Share of the call that other work hides, of 1.
    overlap: Option<f64>,
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
    let first = comm.rank() == 0;
    if plan.fresh {
        let costs = comm.measure_call_costs()?;
        comm.adopt_costs(Some(&costs))?;
    }
    // Neighbors are those on a ring.
    let ring = match operation.of_neighbors() {
        true => comm.cart_create(&[comm.size()], &[true])?,
        false => None,
    };
    let comm = ring.as_ref().unwrap_or(comm);
    let cores = Cores::of(comm)?;
    let transport = comm.transport((comm.rank() + 1) % comm.size())?;
    let crowded = cores.is_none() && comm.size() > 1;
    let gpu = match plan.curves.iter().any(Curve::is_of_devices) {
        true => Some(Gpu::of(comm)?),
        false => None,
    };
    if let (Some(gpu), true) = (&gpu, first) {
        println!("# on {}", gpu.name);
    }
    let told = match first {
        true => distances(plan, comm, cores.as_ref()),
        false => Vec::new(),
    };
    let mut table = first.then(|| Table::new(plan, comm.size(), transport, crowded, &told));
    let sizes: Vec<usize> = match operation {
        Operation::Barrier => vec![0],
        _ => plan.curves[0].shapes.iter().map(|s| s.bytes()).collect(),
    };
    let each = sizes
        .iter()
        .flat_map(|asked| plan.curves.iter().map(move |c| (*asked, c)));
    for (asked, curve) in each {
        // Sums are sums of doubles.
        let bytes = match operation.reduces() {
            true => asked.next_multiple_of(8).max(8),
            false => asked,
        };
        let on_devices = curve.is_of_devices();
        let candidates = candidates(plan, curve, comm, operation, bytes)?;
        let taken = volume(operation, comm, bytes);
        let mut gauge = match (&gpu, first) {
            (Some(gpu), true) if on_devices => Gauge::of_devices(gpu, curve, taken),
            (_, true) => Gauge::of_collective(cores.as_ref(), comm.size(), taken)?,
            (_, false) => Gauge::none(),
        };
        comm.barrier()?;
        gauge.sample()?;
        let mut rows = Vec::new();
        for candidate in candidates {
            if let Some(table) = &mut table {
                table.bar.show(
                    table.records.all().len(),
                    &format!("{bytes} B {}", candidate.name),
                );
            }
            candidate.begin(comm, on_devices);
            let gpu = gpu.as_ref().filter(|_| on_devices);
            let times = times(plan, curve, gpu, comm, bytes)?;
            rows.push((candidate, times));
        }
        comm.use_algorithm(None);
        comm.barrier()?;
        gauge.sample()?;
        if let Some(table) = &mut table {
            table.rows(curve, bytes, &rows, gauge.seconds())?;
        }
    }
    comm.barrier()?;
    table.map_or(Ok(()), Table::finish)
}

/// How far the cores of the first two ranks are from each other now, and where the costs were
/// measured by which plans are chosen and predicted. Of the first rank, while the others wait.
fn distances(plan: &Plan, comm: &Communicator, cores: Option<&Cores>) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(line_ns) = cores.and_then(Cores::line_ns) {
        told.push(format!("a line takes {line_ns:.0} ns from core to core"));
    }
    // Fresh costs are of the cores as they are.
    if !plan.fresh {
        let states = crate::model::states(&comm.lines_ns());
        told.extend(
            states
                .iter()
                .flat_map(|text| text.lines().map(str::to_owned)),
        );
    }
    told
}

/// The plans to be measured: the chosen one, or all that there are. The same at all
/// ranks, whose costs are.
fn candidates(
    plan: &Plan,
    curve: &Curve,
    comm: &Communicator,
    operation: Operation,
    bytes: usize,
) -> Result<Vec<Candidate>> {
    if let Some(model) = curve.by.name() {
        return Ok(vec![Candidate {
            name: model.into(),
            algorithm: None,
            segments: 1,
            predicted: f64::NAN,
            through_host: false,
        }]);
    }
    let (choice, known) = match curve.is_of_devices() {
        false => (comm.explain(operation, bytes)?, true),
        true => match comm.explain_on_devices(operation, bytes) {
            Ok(choice) => (choice, true),
            Err(e) if e.kind() == ErrorKind::Unavailable => {
                (comm.explain(operation, bytes)?, false)
            }
            Err(e) => return Err(e.into()),
        },
    };
    let best = choice.ns();
    let of = |at: usize| {
        let candidate = &choice.ranking[at];
        let (algorithm, segments) = (candidate.plan.algorithm(), candidate.plan.segments());
        Candidate {
            name: candidate.name(),
            // The chosen one is measured as users have it.
            algorithm: (at > 0).then(|| (algorithm.clone(), segments)),
            segments,
            predicted: if known { candidate.ns * 1e-9 } else { f64::NAN },
            through_host: candidate.through_host,
        }
    };
    let wanted = (0..choice.ranking.len()).filter(|at| match &plan.algorithm {
        Some(wanted) => choice.ranking[*at].plan.algorithm() == wanted,
        None => *at == 0 || (plan.each && choice.ranking[*at].ns <= HOPELESS * best),
    });
    let mut found: Vec<Candidate> = wanted.map(of).collect();
    if let (true, Some(wanted)) = (found.is_empty(), &plan.algorithm) {
        found.extend(of_no_cost(wanted, &choice));
    }
    match (found.is_empty(), &plan.algorithm) {
        (true, Some(wanted)) => Err(Failure::usage(format!(
            "--algorithm {wanted} is not for {} here (hint: --each measures all that are)",
            operation.name()
        ))),
        _ => Ok(found),
    }
}

/// A plan that can be carried out and is no candidate, where calls may have their flags in a
/// segment: peers read plain memory through the kernel, of which no costs are known, or blocks
/// that are no parts of the machine.
fn of_no_cost(wanted: &Algorithm, choice: &Choice) -> Option<Candidate> {
    let known = matches!(
        wanted,
        Algorithm::Direct | Algorithm::DirectSlices | Algorithm::Blocks(_)
    );
    let in_segment = |c: &osier_collectives::Candidate| c.plan.algorithm().in_segment();
    let is_for = wanted.keeps(choice.plan().call()).is_some();
    (known && is_for && choice.ranking.iter().any(in_segment)).then(|| Candidate {
        name: wanted.to_string(),
        algorithm: Some((wanted.clone(), 1)),
        segments: 1,
        predicted: f64::NAN,
        through_host: false,
    })
}

/// Bytes that some rank must take in, whatever the plan.
fn volume(operation: Operation, comm: &Communicator, bytes: usize) -> usize {
    match operation {
        Operation::Barrier => 0,
        Operation::Gather | Operation::Allgather | Operation::Alltoall => (comm.size() - 1) * bytes,
        Operation::NeighborAllgather | Operation::NeighborAlltoall => 2 * bytes,
        _ => bytes,
    }
}

fn times(
    plan: &Plan,
    curve: &Curve,
    gpu: Option<&Gpu>,
    comm: &Communicator,
    bytes: usize,
) -> Result<Times> {
    let mut calls = Calls::new(plan.bench, comm, plan.form, bytes);
    if let Some(gpu) = gpu {
        calls = calls.on_device(gpu, curve.by == By::Host)?;
    }
    if curve.from == Memory::Heap {
        calls = calls.on_heap()?;
    }
    let alone = repeat(plan, comm, &mut calls, &|| ())?;
    let overlap = match plan.form {
        Form::Blocking => None,
        _ => {
            // All compute for as long: the longest of the ranks' times.
            let longest = over_ranks(comm, alone.median)?.1;
            let whole = repeat(plan, comm, &mut calls, &|| compute(longest))?;
            let (whole, _) = over_ranks(comm, whole.median)?;
            Some((1.0 - (whole - longest) / longest).clamp(0.0, 1.0))
        }
    };
    calls.once_around()?;
    calls.fetch()?;
    if let Some(at) = calls.wrong() {
        return Err(Failure::failed(format!(
            "{} of {bytes} bytes: rank {} has a wrong result at element {at}",
            plan.bench.name(),
            comm.rank()
        )));
    }
    let mut all = vec![0.0; comm.size()];
    comm.allgather(&[alone.median][..], &mut all[..])?;
    let [least, greatest] = alone.spread;
    Ok(Times {
        spread: [over_ranks(comm, least)?.0, over_ranks(comm, greatest)?.0],
        mean: all.iter().sum::<f64>() / all.len() as f64,
        min: all.iter().copied().fold(f64::INFINITY, f64::min),
        max: all.iter().copied().fold(0.0, f64::max),
        overlap,
    })
}

/// Seconds of a call and the work in it, of this rank.
fn repeat(
    plan: &Plan,
    comm: &Communicator,
    calls: &mut Calls<'_>,
    work: &dyn Fn(),
) -> Result<Seconds> {
    let mut measured = None;
    let mut failed = None;
    let made = calls.make(work, &mut |call| {
        let seconds = timing::measure(Some(comm), &plan.effort, |n| {
            for _ in 0..n {
                call()?;
            }
            Ok(())
        });
        match seconds {
            Ok(seconds) => measured = Some(seconds),
            Err(e) => failed = Some(e),
        }
        Ok(())
    });
    made?;
    match (failed, measured) {
        (Some(e), _) => Err(e),
        (None, seconds) => seconds.ok_or_else(|| Failure::usage("not a collective")),
    }
}

/// Mean and longest over the ranks.
fn over_ranks(comm: &Communicator, seconds: f64) -> Result<(f64, f64)> {
    let mut all = vec![0.0; comm.size()];
    comm.allgather(&[seconds][..], &mut all[..])?;
    let longest = all.iter().copied().fold(0.0, f64::max);
    Ok((all.iter().sum::<f64>() / all.len() as f64, longest))
}

/// The curves of a plan.
fn order(plan: &Plan) -> String {
    let told = |curve: &Curve| match curve.way() {
        Some(way) => format!("{} {way}", curve.places()),
        None => curve.places(),
    };
    let all: Vec<String> = plan.curves.iter().map(told).collect();
    all.join("; ")
}

/// Keeps the processor busy, without a call of the library.
fn compute(seconds: f64) {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The table on standard output, and the files.
struct Table<'a> {
    plan: &'a Plan,
    name: &'static str,
    ranks: usize,
    transport: String,
    bar: Bar,
    records: Records,
    curves: Vec<plot::Curve>,
    /// Of every plan: |predicted - measured| / measured.
    errors: Vec<f64>,
    /// The same of the chosen ones.
    chosen: Vec<f64>,
    /// Of every size: time of the chosen plan over the best measured one, less 1.
    regrets: Vec<f64>,
}

const HEADS: [&str; 7] = [
    "Avg (us)",
    "Min (us)",
    "Max (us)",
    "Predicted",
    "x Predicted",
    "Floor",
    "x Floor",
];

impl<'a> Table<'a> {
    /// `told`: how far the cores are from each other, and of which states the costs are.
    fn new(
        plan: &'a Plan,
        ranks: usize,
        transport: &str,
        crowded: bool,
        told: &[String],
    ) -> Table<'a> {
        let crowded = match crowded {
            true => " that share cores",
            false => "",
        };
        println!(
            "# osier {}, {}: {ranks} ranks{crowded}, {transport}",
            plan.bench.name(),
            plan.form.name()
        );
        if plan.curves.len() > 1 {
            println!("# of each size, in this order: {}", order(plan));
        }
        for line in told {
            println!("# {line}");
        }
        let mut line = format!("{:<12}", "# Size");
        for head in HEADS {
            line += &format!("{head:>12}");
        }
        if plan.form != Form::Blocking {
            line += &format!("{:>12}", "Overlap %");
        }
        println!("{line}  Plan");
        Table {
            plan,
            name: plan.bench.name(),
            ranks,
            transport: transport.into(),
            bar: Bar::new(plan.curves[0].shapes.len(), plan.progress),
            records: Records::new(plan.json.as_ref()),
            curves: Vec::new(),
            errors: Vec::new(),
            chosen: Vec::new(),
            regrets: Vec::new(),
        }
    }

    fn rows(
        &mut self,
        curve: &Curve,
        bytes: usize,
        rows: &[(Candidate, Times)],
        floor: Option<f64>,
    ) -> Result<()> {
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
            if let Some(overlap) = times.overlap {
                line += &format!("{:>12.1}", 100.0 * overlap);
            }
            let segments = match candidate.segments {
                1 => String::new(),
                n => format!(", {n} segments"),
            };
            println!("{line}  {}{segments}", candidate.name);
            if candidate.predicted.is_finite() {
                let error = (candidate.predicted - times.mean).abs() / times.mean;
                self.errors.push(error);
                if at == 0 {
                    self.chosen.push(error);
                }
            }
            let plan = format!("{}{segments}", candidate.name);
            let mut record = |bench: String, unit: &str, value: f64, spread| {
                self.records.push(Record {
                    memory: curve.places(),
                    transport: self.transport.clone(),
                    ranks: self.ranks,
                    unit: unit.into(),
                    value,
                    spread,
                    floor: floor.map(|f| f * 1e6),
                    library: curve.by.library().into(),
                    ..Record::new(bench, &plan, bytes)
                })
            };
            let spread = times.spread.map(|seconds| seconds * 1e6);
            record(self.name.into(), "us", times.mean * 1e6, Some(spread))?;
            if candidate.predicted.is_finite() {
                record(
                    format!("{}-predicted", self.name),
                    "us",
                    candidate.predicted * 1e6,
                    None,
                )?;
            }
            if let Some(overlap) = times.overlap {
                record(format!("{}-overlap", self.name), "%", 100.0 * overlap, None)?;
            }
            if at == 0 {
                let label = match curve.way() {
                    Some(way) => format!("{}, {way}", curve.places()),
                    None => curve.places(),
                };
                self.draw(label.clone(), bytes, times.mean, floor);
                if candidate.predicted.is_finite() {
                    self.draw(
                        format!("{label}, predicted"),
                        bytes,
                        candidate.predicted,
                        floor,
                    );
                }
            }
        }
        if curve.way().is_some() {
            return Ok(());
        }
        let best = rows.iter().map(|(_, times)| times.mean);
        let best = best.fold(f64::INFINITY, f64::min);
        if let Some((_, chosen)) = rows.first() {
            self.regrets.push(chosen.mean / best - 1.0);
        }
        Ok(())
    }

    /// Adds a point to a curve of the plot.
    fn draw(&mut self, label: String, bytes: usize, seconds: f64, floor: Option<f64>) {
        let known = self.curves.iter().position(|curve| curve.label == label);
        let at = known.unwrap_or_else(|| {
            let points = Vec::new();
            self.curves.push(plot::Curve { label, points });
            self.curves.len() - 1
        });
        self.curves[at].points.push(plot::Point {
            bytes: bytes.max(1),
            value: seconds * 1e6,
            floor: floor.map(|f| f * 1e6),
        });
    }

    fn finish(mut self) -> Result<()> {
        self.bar.clear();
        let percent = |values: &mut Vec<f64>| match values.is_empty() {
            true => "unknown".to_owned(),
            false => number(100.0 * timing::median(values)),
        };
        if self.errors.is_empty() {
            println!(
                "# prediction: none, {}",
                match self.plan.curves.iter().any(Curve::is_of_devices) {
                    true => "no costs of devices are known (hint: --fresh measures them)",
                    false => "this plan has no costs and is never chosen",
                }
            );
            return self.keep();
        }
        print!(
            "# prediction: off by {} % at the median of {} plans ({} % of the chosen)",
            percent(&mut self.errors),
            self.errors.len(),
            percent(&mut self.chosen)
        );
        match self.plan.each {
            true => println!(
                "; regret of the choice: {} % at the median of {} sizes",
                percent(&mut self.regrets),
                self.regrets.len()
            ),
            false => println!(),
        }
        self.keep()
    }

    /// Writes the files.
    fn keep(self) -> Result<()> {
        if let Some(file) = &self.plan.plot {
            let title = format!("osier bench {}, {} ranks", self.name, self.ranks);
            write(file, &plot::svg(&title, "us", &self.curves))?;
            println!("\n# plot: {}", file.display());
        }
        Ok(())
    }
}
