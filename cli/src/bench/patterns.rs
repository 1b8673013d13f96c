//! `osier bench patterns`: tasks with the dependences of a pattern, over a task graph and over
//! messages; what a task costs beside the work that it does.
//!
//! Every point of every step is a task: it checks each of its inputs, computes, and hands its
//! output to the points of the next step that need it. The kernel's work is halved from size to
//! size; the smallest granularity at which half of the processors' peak is left tells what the
//! rest costs.
//!
//! | module | duty |
//! |---|---|
//! | [`dependences`] | which points a point needs |
//! | [`kernel`] | work, output and validation of a task |
//! | [`graph`], [`blocks`] | persistent tasks, for each point or for a block of them |
//! | [`messages`] | the non-blocking program over a communicator |
//! | [`bare`] | the loop that a runtime cannot do without, and the kernel alone |
//!
//! # Sources
//! Patterns, kernel and metric after E. Slaughter et al., "Task Bench: A Parameterized Benchmark
//! for Evaluating Parallel Runtime Performance", SC20. Numbers of this program are not results
//! of Task Bench.

mod bare;
mod blocks;
mod dependences;
mod graph;
mod kernel;
mod messages;

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use osier::Communicator;
use serde::Serialize;

use super::progress::Bar;
use super::{Args, Failure, Result};
use dependences::{Dependence, PointGraph};
use kernel::{CELL_BYTES, Kernel};

/// What a repetition takes where the number of steps is not told.
const REPETITION: Duration = Duration::from_millis(40);
const REPETITIONS: u64 = 5;
/// Of a task's cost besides its kernel, for the choice of the number of steps.
const GUESS_NS: f64 = 500.0;
const LEAST_STEPS: usize = 10;
const MOST_STEPS: usize = 20_000;
/// Iterations of the kernel by default: from tasks of about 1 ms downwards.
const MOST_ITERATIONS: u64 = 1 << 19;
const LEAST_ITERATIONS: u64 = 1 << 4;
/// Points of a rank: tags of messages have a byte for the consumer.
const MOST_POINTS: usize = 128;
const MOST_OUTPUT_BYTES: usize = 1 << 24;

/// Options of `patterns`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Dependences between points, of `patterns` [default: stencil_1d]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pattern: Option<Dependence>,

    /// What runs the tasks of `patterns` [default: graph]
    #[arg(long, value_enum, value_name = "WHAT")]
    program: Option<PatternProgram>,

    /// Points of each core, of `patterns` [default: 8]
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MOST_POINTS as u64))]
    points: Option<usize>,

    /// Workers of each rank, of `patterns` over a graph [default: 1]
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256))]
    workers: Option<usize>,

    /// Points that one task of a graph computes at each step, of `patterns`; a divisor of those of
    /// a rank [default: 1]
    #[arg(long, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MOST_POINTS as u64))]
    block: Option<usize>,

    /// Iterations of a task's kernel, a row each [default: 524288 down to 16 by halves]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    kernel: Vec<u64>,

    /// Timesteps of each row, or one number for all [default: as many as take 40 ms]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',',
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=u64::from(u32::MAX)))]
    steps: Vec<usize>,

    /// Dependences of nearest and spread, candidates of random_nearest [default: 3]
    #[arg(long, value_name = "R")]
    radix: Option<usize>,

    /// Dependence sets of spread and random_nearest [default: 3]
    #[arg(long, value_name = "P")]
    period: Option<usize>,

    /// Share of its candidates that random_nearest takes [default: 0.25]
    #[arg(long, value_name = "F")]
    fraction: Option<f64>,

    /// Bytes of a task's output, a multiple of 16 [default: 16]
    #[arg(long, value_name = "SIZE", value_parser = super::parse_size)]
    output: Option<usize>,
}

/// What runs the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PatternProgram {
    /// A task graph
    Graph,
    /// Non-blocking messages of a communicator, step by step
    Messages,
    /// A loop of one thread that does what a runtime cannot do without, of trivial and no_comm
    Bare,
    /// The kernel alone
    Kernel,
}

impl Options {
    /// Whether any was given.
    pub fn are_given(&self) -> bool {
        self.pattern.is_some()
            || self.program.is_some()
            || self.points.is_some()
            || self.workers.is_some()
            || self.block.is_some()
            || !self.kernel.is_empty()
            || !self.steps.is_empty()
            || self.radix.is_some()
            || self.period.is_some()
            || self.fraction.is_some()
            || self.output.is_some()
    }

    /// Whether a rank has several workers, which need several cores.
    pub fn has_workers(&self) -> bool {
        self.workers.is_some_and(|workers| workers > 1)
    }
}

/// What is measured in one row.
#[derive(Clone)]
struct Run {
    /// With its number of steps.
    graph: PointGraph,
    iterations: u64,
    kernel: Kernel,
    /// Of 64 bits, of an output.
    words: usize,
    ranks: usize,
    workers: usize,
    /// Points of a task of a graph.
    block: usize,
    repetitions: u64,
}

impl Run {
    /// Ranks over the tasks and phases of a graph.
    fn grid(&self) -> Vec<usize> {
        vec![self.ranks, 1]
    }

    /// The points of a rank.
    fn points_of(&self, rank: usize) -> Range<usize> {
        let first = |rank: usize| rank * self.graph.width / self.ranks;
        first(rank)..first(rank + 1)
    }

    /// The rank of a point.
    fn rank_of(&self, point: usize) -> usize {
        ((point + 1) * self.ranks).div_ceil(self.graph.width) - 1
    }
}

/// A row, as JSON has it; the program for MPI prints the same.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    pattern: String,
    program: String,
    ranks: usize,
    workers: usize,
    block: usize,
    width: usize,
    steps: usize,
    iterations: u64,
    output_bytes: usize,
    tasks: u64,
    /// Of the dependences, in hexadecimal digits.
    graph: String,
    /// Mean of the repetitions.
    seconds: f64,
    flops_per_s: f64,
}

impl Line {
    /// Elapsed time of a core for each task, us.
    fn granularity_us(&self) -> f64 {
        self.seconds * 1e6 * (self.ranks * self.workers) as f64 / self.tasks as f64
    }
}

/// Checks the options before a job is started.
///
/// # Errors
/// What does not fit.
pub fn check(args: &Args, ranks: usize) -> Result<()> {
    if args.plot.is_some() || !args.sizes.is_empty() || args.iterations.is_some() {
        return Err(Failure::usage(
            "patterns has no --plot, --sizes or --iterations (hint: --kernel, --steps)",
        ));
    }
    let options = &args.of_patterns;
    let program = options.program.unwrap_or(PatternProgram::Graph);
    if (options.has_workers() || options.block.is_some()) && program != PatternProgram::Graph {
        return Err(Failure::usage(
            "--workers and --block are about graphs: other programs have one thread a rank",
        ));
    }
    if program == PatternProgram::Bare {
        let dependence = options.pattern.unwrap_or(Dependence::Stencil1d);
        if !matches!(dependence, Dependence::Trivial | Dependence::NoComm) || ranks != 1 {
            return Err(Failure::usage(
                "the bare loop is one of one thread, for trivial and no_comm (hint: -n 1)",
            ));
        }
    }
    let rows = options.kernel.len();
    if options.steps.len() > 1 && options.steps.len() != rows {
        return Err(Failure::usage(format!(
            "--steps has {} numbers for {rows} of --kernel",
            options.steps.len()
        )));
    }
    for (_, steps) in sizes(options) {
        run_of(args, ranks, 0, steps.unwrap_or(MOST_STEPS))?;
    }
    Ok(())
}

/// Iterations and steps of the rows; steps where they were given.
fn sizes(options: &Options) -> Vec<(u64, Option<usize>)> {
    let mut kernels = options.kernel.clone();
    if kernels.is_empty() {
        let halves = std::iter::successors(Some(MOST_ITERATIONS), |n| Some(n / 2));
        kernels = halves.take_while(|n| *n >= LEAST_ITERATIONS).collect();
    }
    let steps = |at: usize| match options.steps.len() {
        1 => Some(options.steps[0]),
        _ => options.steps.get(at).copied(),
    };
    let rows = kernels.into_iter().enumerate();
    rows.map(|(at, iterations)| (iterations, steps(at)))
        .collect()
}

fn run_of(args: &Args, ranks: usize, iterations: u64, steps: usize) -> Result<Run> {
    let options = &args.of_patterns;
    let workers = options.workers.unwrap_or(1);
    let points = options.points.unwrap_or(8);
    let output = options.output.unwrap_or(CELL_BYTES);
    if output == 0 || !output.is_multiple_of(CELL_BYTES) || output > MOST_OUTPUT_BYTES {
        return Err(Failure::usage(format!(
            "--output {output}: a multiple of {CELL_BYTES} bytes, at most {MOST_OUTPUT_BYTES}"
        )));
    }
    if points * workers > MOST_POINTS {
        return Err(Failure::usage(format!(
            "{points} points for each of {workers} workers: a rank has at most {MOST_POINTS}"
        )));
    }
    let block = options.block.unwrap_or(1);
    if !(points * workers).is_multiple_of(block) {
        return Err(Failure::usage(format!(
            "--block {block} does not divide the {} points of a rank",
            points * workers
        )));
    }
    let graph = PointGraph {
        dependence: options.pattern.unwrap_or(Dependence::Stencil1d),
        steps,
        width: points * workers * ranks,
        radix: options.radix.unwrap_or(3),
        period: options.period.unwrap_or(3),
        fraction: options.fraction.unwrap_or(0.25),
        number: 0,
    };
    graph.check().map_err(Failure::usage)?;
    Ok(Run {
        graph,
        iterations,
        kernel: Kernel::new(iterations),
        words: output / 8,
        ranks,
        workers,
        block,
        repetitions: args.repetitions.unwrap_or(REPETITIONS),
    })
}

/// Measures as a rank of a job; rank 0 reports.
pub fn run(args: &Args) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(args, &comm)))
}

fn measure(args: &Args, comm: &Communicator) -> Result<()> {
    check(args, comm.size())?;
    let options = &args.of_patterns;
    let program = options.program.unwrap_or(PatternProgram::Graph);
    let sizes = sizes(options);
    let mut bar = Bar::new(sizes.len(), args.progress && comm.rank() == 0);
    let ns = kernel_ns(comm)?;
    let mut lines = Vec::new();
    for (at, (iterations, steps)) in sizes.into_iter().enumerate() {
        let first = run_of(args, comm.size(), iterations, MOST_STEPS)?;
        let steps = steps.unwrap_or_else(|| steps_for(&first, ns));
        let run = run_of(args, comm.size(), iterations, steps)?;
        if at == 0 && comm.rank() == 0 {
            println!("{}", heading(&run, program));
        }
        bar.show(at, &format!("{iterations} iterations, {steps} steps"));
        let seconds = match program {
            PatternProgram::Graph => graph::measure(comm, &run)?,
            PatternProgram::Messages => messages::measure(comm, &run)?,
            PatternProgram::Bare => bare::measure(&run)?,
            PatternProgram::Kernel => bare::kernels(comm, &run)?,
        };
        bar.clear();
        if comm.rank() == 0 {
            let line = line_of(&run, program, &seconds);
            println!(
                "{:>12} {:>8} {:>10} {:>12.3} {:>15.3} {:>12.3}",
                line.iterations,
                line.steps,
                line.tasks,
                1e3 * line.seconds,
                line.granularity_us(),
                1e-9 * line.flops_per_s
            );
            lines.push(line);
        }
    }
    if let (Some(file), 0) = (&args.json, comm.rank()) {
        let text = serde_json::to_string(&lines).map_err(|e| Failure::failed(e.to_string()))?;
        super::report::write(file, &(text + "\n"))?;
    }
    Ok(())
}

fn heading(run: &Run, program: PatternProgram) -> String {
    format!(
        "# osier patterns: {} of {} points, {} bytes; {}, {} ranks x {} workers; every \
         input checked\n{:>12} {:>8} {:>10} {:>12} {:>15} {:>12}",
        run.graph.dependence.name(),
        run.graph.width,
        8 * run.words,
        name_of(program),
        run.ranks,
        run.workers,
        "iterations",
        "steps",
        "tasks",
        "elapsed, ms",
        "granularity, us",
        "Gflop/s"
    )
}

fn name_of(program: PatternProgram) -> String {
    let value = program.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn line_of(run: &Run, program: PatternProgram, seconds: &[f64]) -> Line {
    let seconds = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let tasks = run.graph.tasks();
    Line {
        bench: "patterns",
        pattern: run.graph.dependence.name(),
        program: name_of(program),
        ranks: run.ranks,
        workers: run.workers,
        block: run.block,
        width: run.graph.width,
        steps: run.graph.steps,
        iterations: run.iterations,
        output_bytes: 8 * run.words,
        tasks,
        graph: format!("{:016x}", run.graph.digest()),
        seconds,
        flops_per_s: tasks as f64 * Kernel::flops(run.iterations) / seconds,
    }
}

/// ns of an iteration of the kernel, of rank 0.
fn kernel_ns(comm: &Communicator) -> Result<f64> {
    const ITERATIONS: u64 = 1 << 18;
    let mut ns = [0.0];
    for _ in 0..3 {
        let since = Instant::now();
        Kernel::new(ITERATIONS).run();
        ns = [since.elapsed().as_nanos() as f64 / ITERATIONS as f64];
    }
    comm.bcast(&mut ns, 0)?;
    Ok(ns[0])
}

/// Steps of which a repetition takes about 40 ms.
fn steps_for(run: &Run, kernel_ns: f64) -> usize {
    let points = (run.graph.width / (run.ranks * run.workers)) as f64;
    let step_ns = points * (run.iterations as f64 * kernel_ns + GUESS_NS);
    let steps = REPETITION.as_nanos() as f64 / step_ns;
    // A sweep has to fill and to drain.
    let least = match run.graph.dependence {
        Dependence::Dom => 4 * run.graph.width,
        _ => LEAST_STEPS,
    };
    (steps as usize).clamp(least, MOST_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_points_are_those_of_their_ranks() {
        for (width, ranks) in [(16, 2), (6, 3), (7, 3), (5, 5), (8, 1)] {
            let run = Run {
                graph: PointGraph {
                    dependence: Dependence::Trivial,
                    steps: 1,
                    width,
                    radix: 3,
                    period: 3,
                    fraction: 0.25,
                    number: 0,
                },
                iterations: 0,
                kernel: Kernel::new(0),
                words: 2,
                ranks,
                workers: 1,
                block: 1,
                repetitions: 1,
            };
            for point in 0..width {
                assert!(run.points_of(run.rank_of(point)).contains(&point));
            }
        }
    }
}
