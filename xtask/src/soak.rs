//! `soak`: the long random tests, which print the seed that repeats them.

mod attacks;

use crate::cells::{self, Way};
use crate::steps::{Result, cargo, run as run_command, target_dir};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a job of cells may take; it is some hundred times shorter.
const GUARD_S: &str = "120";

/// Runs of agreements, unless others are asked for: half a minute.
const AGREEMENTS: u64 = 1_000_000;

#[derive(Clone, Copy, ValueEnum)]
enum Room {
    /// Matching, protocols and progress over the simulated transport
    Engine,
    /// Random types against the naive typemap
    Datatype,
    /// Random types on a device against typemap and host: the emulated driver, or
    /// the one that OSIER_DEBUG=cuda-library names
    GpuDatatype,
    /// Random task graphs against a naive interpreter, on simulated ranks and workers
    Tasks,
    /// Random programs of windows beside a sequential memory, over the simulated network
    Windows,
    /// Agreements about failures, of ranks that die in the middle of them
    Agreements,
    /// Messages between all kinds of memory, in all layouts, on all ways, on the emulated
    /// driver, with streams and peers that are late
    Devices,
    /// A rank that writes over the job's shared memory, while real processes exchange
    /// messages of all protocols
    Scribble,
    /// Kills of ranks and launchers, of the host and of emulated devices
    Kills,
}

/// Options of `soak`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask soak engine --seconds 600
  cargo xtask soak engine --seed 42
  cargo xtask soak engine --runs 1000000 --seed 0
  cargo xtask soak datatype --trees 10000000 --seconds 3600
  cargo xtask soak tasks --runs 1000000 --seed 0
  cargo xtask soak windows --runs 1000000 --seed 0
  cargo xtask soak agreements --runs 10000000
  cargo xtask soak gpu-datatype --trees 10000000 --seconds 7200
  cargo xtask soak devices --seeds 0..1000
  cargo xtask soak scribble --seeds 0..500
  cargo xtask soak kills --runs 500")]
pub struct Args {
    /// What to test
    #[arg(value_enum)]
    room: Room,
    /// How long
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// Of datatype and gpu-datatype: as many types, unless the time is up before
    #[arg(long, value_name = "N")]
    trees: Option<u64>,
    /// Of engine, tasks, windows, agreements and kills: as many random programs, however long it takes, with seeds in a
    /// row; windows plays 64 in a job
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Seed of a run to repeat [default: from the clock, printed]
    #[arg(long, value_name = "X")]
    seed: Option<u64>,
    /// Of devices, scribble and kills: these seeds, however long it takes; each is a job
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    seeds: Option<Range<u64>>,
}

fn parse_range(text: &str) -> std::result::Result<Range<u64>, String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|e| format!("{text:?}: {e} (hint: as in 0..1000)"))
    };
    match text.split_once("..") {
        Some((a, b)) => match number(a)?..number(b)? {
            none if none.is_empty() => {
                Err("no seeds (hint: the first one, and one behind the last, as in 0..1000)".into())
            }
            seeds => Ok(seeds),
        },
        None => number(text).map(|a| a..a + 1),
    }
}

/// `cargo xtask soak`.
pub fn run(args: &Args) -> Result {
    crate::setup::linker()?;
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64 & 0xffff_ffff)
    });
    match args.room {
        Room::Agreements => {
            let runs = args.runs.unwrap_or(AGREEMENTS);
            return run_command(
                cargo()
                    .env("OSIER_TEST", format!("agreements={runs}"))
                    .args(["test", "--release", "-p", "osier-engine", "--lib", "--"])
                    .arg("all_that_decide_decide_the_same"),
            );
        }
        Room::Devices => return jobs(args, seed, "devices", device_job),
        Room::Scribble => return jobs(args, seed, "scribble", attacks::scribble),
        Room::Kills => return jobs(args, seed, "kills", attacks::kill),
        _ => {}
    }
    let (package, test) = match args.room {
        Room::Engine => ("osier-bed", "engine_sim"),
        Room::Datatype => ("osier-datatype", "trees"),
        Room::Tasks => ("osier-tasks", "random"),
        Room::Windows => ("osier-test-programs", "ranks"),
        _ => ("osier-kernels", "trees"),
    };
    match args.runs {
        Some(runs) => println!("seed {seed}, {runs} runs"),
        None => println!("seed {seed}, {} s", args.seconds),
    }
    let named = std::env::var("OSIER_DEBUG").is_ok_and(|text| text.contains("cuda-library="));
    if matches!(args.room, Room::GpuDatatype) && !named {
        crate::setup::cplusplus()?;
        run_command(cargo().args(["build", "--release", "-p", "osier-emulated-cuda"]))?;
    }
    let mut command = cargo();
    let mut settings = format!("seconds={},seed={seed}", args.seconds);
    for (key, value) in [("trees", args.trees), ("runs", args.runs)] {
        if let Some(value) = value {
            settings += &format!(",{key}={value}");
        }
    }
    let done = run_command(
        command
            .env("OSIER_TEST", settings)
            .args(["test", "--release", "-p", package, "--test", test])
            .args(["--", "--ignored", "soak", "--nocapture"]),
    );
    done.map_err(|e| format!("seed {seed}: {e}"))
}

/// What has come of a job, in a word; or what is wrong.
type Outcome = std::result::Result<&'static str, String>;

/// Jobs by seed, as many at a time as the machine has pairs of processors, at least two.
fn jobs(args: &Args, first: u64, mode: &str, job: fn(&Path, u64) -> Outcome) -> Result {
    crate::setup::cplusplus()?;
    run_command(cargo().args(["build", "--workspace", "--lib", "--bins"]))?;
    let folder = target_dir().join("debug");
    let seeds = match (&args.seeds, args.runs) {
        (Some(seeds), _) => Some(seeds.clone()),
        (None, Some(runs)) => Some(first..first.saturating_add(runs)),
        (None, None) => None,
    };
    let end = match &seeds {
        Some(_) => None,
        None => Some(Instant::now() + Duration::from_secs(args.seconds)),
    };
    let bar = match &seeds {
        Some(seeds) => indicatif::ProgressBar::new(seeds.end.saturating_sub(seeds.start)),
        None => indicatif::ProgressBar::new_spinner(),
    };
    let seeds = seeds.unwrap_or(first..u64::MAX);
    println!("seeds from {}", seeds.start);
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(None::<String>);
    let outcomes = Mutex::new(BTreeMap::<&str, u64>::new());
    let at_once = std::thread::available_parallelism().map_or(2, |n| (n.get() / 2).max(2));
    std::thread::scope(|s| {
        for _ in 0..at_once {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let over = end.is_some_and(|end| Instant::now() > end);
                    let stop = failed.lock().map_or(true, |failed| failed.is_some());
                    if seed >= seeds.end || over || stop {
                        return;
                    }
                    match job(&folder, seed) {
                        Ok(what) => {
                            if let Ok(mut outcomes) = outcomes.lock() {
                                *outcomes.entry(what).or_default() += 1;
                            }
                        }
                        Err(e) => {
                            if let Ok(mut failed) = failed.lock() {
                                let repeat = format!("{seed}..{}", seed + 1);
                                failed.get_or_insert(format!(
                                    "{e}\nrepeat: cargo xtask soak {mode} --seeds {repeat}"
                                ));
                            }
                            return;
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.abandon();
    println!("{} jobs", bar.position());
    for (what, n) in outcomes.into_inner().unwrap_or_default() {
        println!("  {n} {what}");
    }
    failed
        .into_inner()
        .unwrap_or(None)
        .map_or(Ok(()), Err::<(), _>)
}

/// The job of a seed: its cells, and what is different in the machine.
fn device_job(folder: &Path, seed: u64) -> Outcome {
    let (way, variables) = cells::job(seed);
    let program = folder.join("exercise").display().to_string();
    let mut command = Command::new("timeout");
    command
        .arg(GUARD_S)
        .arg(folder.join("osier"))
        .arg("run")
        .args(cells::arguments(way, &program, &seed.to_string()))
        .envs(cells::environment(variables))
        .stdin(Stdio::null());
    if way != Way::Unshared {
        command.env_remove("OSIER_SHM_LIMIT");
    }
    let done = command.output().map_err(|e| format!("timeout: {e}"))?;
    if done.status.success() {
        return Ok("passed");
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!(
        "seed {seed}, {}: {}\n{}{}",
        way.name(),
        done.status,
        text(&done.stdout),
        text(&done.stderr)
    ))
}
