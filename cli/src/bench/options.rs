//! From options to a plan: sizes, curves, ranks.

use std::path::PathBuf;

use super::layout::{Pattern, Shape};
use super::{Args, Bench, Failure, Memory, Result};

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
    pub memory: Memory,
    /// One per size.
    pub shapes: Vec<Shape>,
}

impl Plan {
    /// Checks the options against the benchmark.
    pub fn new(args: &Args) -> Result<Plan> {
        let bench = args.bench;
        let ranks = args.ranks.unwrap_or(match bench {
            Bench::MultiPair => 4,
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
            for memory in &args.memory {
                curves.push(Curve {
                    pattern: pattern.clone(),
                    memory: *memory,
                    shapes: shapes.clone(),
                });
            }
        }
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
            let foreign = [
                (!args.shapes.is_empty() && !args.device, "--shapes"),
                (args.max_span.is_some() && !args.device, "--max-span"),
                (args.export.is_some(), "--export"),
            ];
            if let Some((_, option)) = foreign.iter().find(|(given, _)| *given) {
                return Err(Failure::usage(format!("{option} is an option of datatype")));
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
        Bench::Launch | Bench::Datatype => (1, 1),
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
