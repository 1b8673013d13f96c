//! From options to a plan: sizes, curves, ranks.

use std::path::PathBuf;

use osier_collectives::Algorithm;
use osier_engine::protocol::select::Pipelining;

use super::by_copies::By;
use super::calls::Form;
use super::layout::{Pattern, Shape};
use super::{Args, Bench, Failure, Memory, Pipeline, Result};
use crate::collective::Wanted;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

/// A checked order of what to measure.
pub struct Plan {
    pub bench: Bench,
    pub ranks: usize,
    pub window: usize,
    /// Most threads of a rank.
    pub threads: usize,
    pub rotate: bool,
    /// All plans of a collective, or one.
    pub each: bool,
    pub algorithm: Option<Algorithm>,
    /// How a collective is called.
    pub form: Form,
    /// Whether costs are measured first.
    pub fresh: bool,
    /// Share of a GPU's threads that other work takes.
    pub busy: Option<f64>,
    pub effort: Effort,
    pub curves: Vec<Curve>,
    pub plot: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub progress: bool,
}

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub iterations: Option<u64>,
    pub warmup: Option<u64>,
    pub repetitions: Option<u64>,
}

/// One line of the plot.
#[derive(Clone)]
pub struct Curve {
    pub pattern: Pattern,
    /// The receiver's, where it is another.
    pub to_pattern: Option<Pattern>,
    /// Where the sender's and the receiver's buffers lie.
    pub from: Memory,
    pub to: Memory,
    /// When messages go in slots on the device.
    pub pipelining: Pipelining,
    /// Who moves bytes with gaps.
    pub by: By,
    /// One per size.
    pub shapes: Vec<Shape>,
    /// The receiver's, of as many bytes.
    pub receives: Vec<Shape>,
}

impl Curve {
    /// Its layouts, as a heading has them.
    pub fn layout(&self) -> String {
        match &self.to_pattern {
            Some(to) => format!("{} to {to}", self.pattern),
            None => self.pattern.to_string(),
        }
    }

    /// Where its buffers lie.
    pub fn places(&self) -> String {
        match self.from == self.to {
            true => self.from.name().into(),
            false => format!("{} to {}", self.from.name(), self.to.name()),
        }
    }

    /// How its messages go, if in no usual way.
    pub fn way(&self) -> Option<&'static str> {
        match self.pipelining {
            _ if self.by != By::Osier => self.by.name(),
            Pipelining::Auto => None,
            Pipelining::On => Some("in slots"),
            Pipelining::Off => Some("no slots"),
        }
    }

    /// Whether messages are those of devices.
    pub fn is_of_devices(&self) -> bool {
        self.from.is_of_a_device() || self.to.is_of_a_device()
    }
}

impl Plan {
    /// Checks the options against the benchmark.
    pub fn new(args: &Args) -> Result<Plan> {
        let bench = args.bench;
        let ranks = args.ranks.unwrap_or(match bench {
            Bench::MultiPair => 4,
            Bench::Faults => 8,
            Bench::Pack | Bench::Threads => 1,
            _ => 2,
        });
        check_ranks(bench, ranks)?;
        let sizes = sizes(args)?;
        let mut curves = Vec::new();
        for pattern in &args.layout {
            let mut shapes: Vec<Shape> = Vec::new();
            for size in &sizes {
                let shape = pattern
                    .shape(*size)
                    .map_err(|e| Failure::usage(format!("--layout {pattern}: {e}")))?;
                if shapes.last().is_none_or(|s| s.bytes() != shape.bytes()) {
                    shapes.push(shape);
                }
            }
            let receives = match &args.to_layout {
                Some(to) => shapes
                    .iter()
                    .map(|s| counterpart(s, to))
                    .collect::<Result<_>>()?,
                None => shapes.clone(),
            };
            let pipelining = |way: &Pipeline| way.pipelining();
            let ends = memories(args).into_iter();
            let each = ends.flat_map(|ends| args.pipeline.iter().map(move |way| (ends, way)));
            for ((from, to), way) in each {
                for by in &args.by {
                    // Models are the same in slots or not.
                    if *by != By::Osier && *way != args.pipeline[0] {
                        continue;
                    }
                    let both = shapes.iter().zip(&receives);
                    let can = both.filter(|(sent, received)| by.can(sent) && by.can(received));
                    let (shapes, receives) = can.map(|(a, b)| (a.clone(), b.clone())).unzip();
                    curves.push(Curve {
                        pipelining: pipelining(way),
                        by: *by,
                        pattern: pattern.clone(),
                        to_pattern: args.to_layout.clone(),
                        from,
                        to,
                        shapes,
                        receives,
                    });
                }
            }
        }
        check_devices(args, &curves)?;
        let algorithm = algorithm(args)?;
        if bench == Bench::Launch {
            let alone = args.layout == [Pattern::Contiguous] && args.memory == [Memory::Plain];
            if !alone || args.rotate {
                return Err(Failure::usage(
                    "launch sends no messages: it has no --layout, --memory or --rotate",
                ));
            }
        }
        if args.device && bench != Bench::Pack {
            return Err(Failure::usage(
                "--device is for the benchmark pack (hint: osier bench pack --device)",
            ));
        }
        if args.device
            && (args.layout != [Pattern::Contiguous]
                || args.memory != [Memory::Plain]
                || args.rotate)
        {
            return Err(Failure::usage(
                "pack --device has shapes of its own: no --layout, --memory or --rotate",
            ));
        }
        if bench != Bench::Datatype {
            let has_shapes = args.device || bench == Bench::Rma;
            let foreign = [
                (!args.shapes.is_empty() && !has_shapes, "--shapes"),
                (args.max_span.is_some() && !has_shapes, "--max-span"),
            ];
            if let Some((_, option)) = foreign.iter().find(|(given, _)| *given) {
                return Err(Failure::usage(format!(
                    "{option} is an option of datatype, rma and pack --device"
                )));
            }
            if args.export.is_some() {
                return Err(Failure::usage("--export is an option of datatype"));
            }
        } else if args.layout != [Pattern::Contiguous]
            || args.memory != [Memory::Plain]
            || args.rotate
            || args.plot.is_some()
        {
            return Err(Failure::usage(
                "datatype has shapes of its own: no --layout, --memory, --rotate or --plot",
            ));
        }
        if bench == Bench::Threads {
            let plain = args.layout == [Pattern::Contiguous] && args.memory == [Memory::Plain];
            if !plain || args.rotate || args.iterations.is_some() || args.warmup.is_some() {
                return Err(Failure::usage(
                    "threads has no --layout, --memory, --rotate, --iterations or --warmup",
                ));
            }
        } else if args.threads.is_some() {
            return Err(Failure::usage(
                "--threads is for the benchmark threads (hint: osier bench threads -t 2)",
            ));
        }
        if bench != Bench::Patterns && args.of_patterns.are_given() {
            return Err(Failure::usage(
                "--pattern, --program, --points, --workers, --block, --kernel, --steps, --radix, \
                 --period, --fraction and --output are options of patterns",
            ));
        }
        if bench == Bench::Pack && args.memory != [Memory::Plain] {
            return Err(Failure::usage("pack has no --memory: no peer reads it"));
        }
        for file in args.plot.iter().chain(&args.json) {
            check_folder(file)?;
        }
        Ok(Plan {
            bench,
            ranks,
            window: args.window,
            threads: args
                .threads
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get())),
            rotate: args.rotate,
            each: args.each,
            algorithm,
            form: args.form,
            fresh: args.fresh,
            busy: args.busy.map(|percent| f64::from(percent) / 100.0),
            effort: Effort {
                iterations: args.iterations,
                warmup: args.warmup,
                repetitions: args.repetitions,
            },
            curves,
            plot: args.plot.clone(),
            json: args.json.clone(),
            progress: args.progress,
        })
    }
}

/// The receiver's shape, which has as many bytes as the sender's.
fn counterpart(shape: &Shape, to: &Pattern) -> Result<Shape> {
    let told = |e: String| Failure::usage(format!("--to-layout {to}: {e}"));
    let found = to.shape(shape.bytes()).map_err(|e| told(e.to_string()))?;
    match found.bytes() == shape.bytes() {
        true => Ok(found),
        false => Err(told(format!(
            "the sender's payload is {} bytes, and this one has {} (hint: contiguous has any)",
            shape.bytes(),
            found.bytes()
        ))),
    }
}

/// Memory of sender and receiver of each curve.
fn memories(args: &Args) -> Vec<(Memory, Memory)> {
    if args.from.is_some() || args.to.is_some() {
        let or_plain = |memory: Option<Memory>| memory.unwrap_or(Memory::Plain);
        return vec![(or_plain(args.from), or_plain(args.to))];
    }
    args.memory
        .iter()
        .map(|memory| (*memory, *memory))
        .collect()
}

/// The algorithm that was asked for, if the benchmark has any.
fn algorithm(args: &Args) -> Result<Option<Algorithm>> {
    let is_collective = args.bench.operation().is_some();
    let asks = args.each || args.algorithm.is_some() || args.fresh || args.form != Form::Blocking;
    if asks && !is_collective {
        return Err(Failure::usage(format!(
            "{} has no --each, --algorithm, --form or --fresh: it is no collective",
            args.bench.name()
        )));
    }
    let known = |memory: &Memory| matches!(memory, Memory::Plain | Memory::Heap | Memory::Device);
    let plain = args.layout == [Pattern::Contiguous] && args.memory.iter().all(known);
    if is_collective && (!plain || args.rotate) {
        return Err(Failure::usage(
            "collectives have no --layout, --rotate, or --memory but plain, heap and device",
        ));
    }
    match &args.algorithm {
        None => Ok(None),
        Some(Wanted::Flat(flat)) => Ok(Some(flat.clone())),
        Some(Wanted::Levels | Wanted::HostCopies) => Err(Failure::usage(
            "--algorithm levels or host copies: ranks of one machine are measured on one level",
        )),
    }
}

/// Whether the benchmark sends from devices, if any was asked for.
fn check_devices(args: &Args, curves: &[Curve]) -> Result<()> {
    let of_devices = curves.iter().any(Curve::is_of_devices);
    let between = matches!(
        args.bench,
        Bench::Latency | Bench::Bandwidth | Bench::Bibandwidth
    );
    let is_collective = args.bench.operation().is_some();
    let ends = args.from.is_some() || args.to.is_some() || args.to_layout.is_some();
    let there = of_devices && !is_collective;
    if (there || ends || args.busy.is_some()) && !between {
        return Err(Failure::usage(format!(
            "{} has no --from, --to, --to-layout or --busy, nor memory of devices (hint: \
             latency, bandwidth and bibandwidth have)",
            args.bench.name()
        )));
    }
    if args.pipeline != [Pipeline::Auto] && !of_devices {
        return Err(Failure::usage(
            "--pipeline is about buffers of GPUs, and none lies there (hint: --memory device)",
        ));
    }
    let on_devices = |memory| matches!(memory, Memory::Device | Memory::Pool);
    let all_on = |c: &Curve| on_devices(c.from) && on_devices(c.to);
    let has_models = match is_collective {
        true => !args.by.contains(&By::Blocks),
        false => args.bench == Bench::Latency,
    };
    if args.by != [By::Osier] && !(has_models && curves.iter().all(all_on)) {
        return Err(Failure::usage(
            "--by is about latency between buffers of GPUs, and collectives of them by osier \
             and host (hint: osier bench latency --memory device --layout matrix --by \
             osier,blocks,host)",
        ));
    }
    if args.by != [By::Osier] && args.rotate {
        return Err(Failure::usage(
            "--by has models that reuse their buffers: no --rotate",
        ));
    }
    if args.busy.is_some() && !of_devices {
        return Err(Failure::usage(
            "--busy keeps a GPU busy, and no buffer lies there (hint: --memory device)",
        ));
    }
    Ok(())
}

/// Whether a benchmark can do with so many ranks.
pub fn check_ranks(bench: Bench, ranks: usize) -> Result<()> {
    let name = bench.name();
    match bench {
        Bench::Latency
        | Bench::Bandwidth
        | Bench::Bibandwidth
        | Bench::MessageRate
        | Bench::Datatype
            if ranks != 2 =>
        {
            Err(Failure::usage(format!(
                "{name} takes two ranks, not {ranks} (hint: multi-pair takes more)"
            )))
        }
        Bench::Tasks if ranks != 2 => Err(Failure::usage(format!(
            "{name} measures edges between two ranks, not {ranks}"
        ))),
        Bench::Rma if ranks != 2 => Err(Failure::usage(format!(
            "{name} measures accesses of one rank to another, not {ranks} ranks"
        ))),
        Bench::Faults if ranks < 2 => Err(Failure::usage(format!(
            "{name} takes two ranks or more, not {ranks}"
        ))),
        Bench::MultiPair if ranks < 2 || ranks % 2 == 1 => Err(Failure::usage(format!(
            "{name} takes an even number of ranks, not {ranks}"
        ))),
        Bench::Threads if ranks > 2 => Err(Failure::usage(format!(
            "{name} takes one rank or two, not {ranks}"
        ))),
        Bench::Pack if ranks != 1 => Err(Failure::usage(format!(
            "{name} takes one rank, not {ranks}"
        ))),
        _ => Ok(()),
    }
}

fn sizes(args: &Args) -> Result<Vec<usize>> {
    if !args.sizes.is_empty() {
        return Ok(args.sizes.clone());
    }
    let (min, max) = match args.bench {
        Bench::Latency | Bench::Bandwidth | Bench::Bibandwidth => (1, 4 * M),
        Bench::MessageRate | Bench::MultiPair => (1, 4 * K),
        Bench::Threads => (8, 8),
        Bench::Pack => (8, 4 * M),
        Bench::Launch
        | Bench::Datatype
        | Bench::Barrier
        | Bench::Tasks
        | Bench::Patterns
        | Bench::Rma => (1, 1),
        _ => match args.bench.operation() {
            Some(operation) if operation.reduces() => (8, M),
            _ => (1, M),
        },
    };
    // A bound of the user's beyond the default moves the other along.
    let (min, max) = match (args.min, args.max) {
        (Some(a), Some(b)) => (a, b),
        (Some(a), None) => (a, max.max(a)),
        (None, Some(b)) => (min.min(b), b),
        (None, None) => (min, max),
    };
    if min > max {
        return Err(Failure::usage(format!("--min {min} exceeds --max {max}")));
    }
    let mut sizes = Vec::new();
    let mut size = min;
    loop {
        sizes.push(size);
        size = (size + 1).next_power_of_two();
        if size > max {
            break;
        }
    }
    Ok(sizes)
}

/// The sizes that were asked for, else these.
pub fn sizes_or(args: &Args, default: &[usize]) -> Result<Vec<usize>> {
    match args.sizes.is_empty() && args.min.is_none() && args.max.is_none() {
        true => Ok(default.to_vec()),
        false => sizes(args),
    }
}

/// A size on the command line.
pub fn parse_size(text: &str) -> std::result::Result<usize, String> {
    osier::config::parse_bytes(text)
        .map_err(|e| e.to_string())
        .and_then(|n| {
            usize::try_from(n)
                .ok()
                .filter(|n| *n <= 1 << 40)
                .ok_or_else(|| format!("{text:?} exceeds any memory"))
        })
}

fn check_folder(file: &std::path::Path) -> Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => std::path::Path::new("."),
    };
    if folder.is_dir() && !file.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "cannot write {}: no such folder",
        file.display()
    )))
}
