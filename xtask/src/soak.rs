//! `soak`: the long random tests, which print the seed that repeats them.

use crate::steps::{Result, cargo, run as run_command};
use clap::ValueEnum;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, ValueEnum)]
enum Room {
    /// Matching, protocols and progress over the simulated transport
    Engine,
    /// Random types against the naive typemap
    Datatype,
    /// Random types on a device against typemap and host: the emulated driver, or
    /// the one that OSIER_CUDA_LIBRARY names
    GpuDatatype,
}

/// Options of `soak`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask soak engine --seconds 600
  cargo xtask soak engine --seed 42
  cargo xtask soak engine --runs 1000000 --seed 0
  cargo xtask soak datatype --trees 10000000 --seconds 3600
  cargo xtask soak gpu-datatype --trees 10000000 --seconds 7200")]
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
    /// Of engine: as many random programs, however long it takes, with seeds in a row
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// Seed of a run to repeat [default: from the clock, printed]
    #[arg(long, value_name = "X")]
    seed: Option<u64>,
}

/// `cargo xtask soak`.
pub fn run(args: &Args) -> Result {
    crate::setup::linker()?;
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64 & 0xffff_ffff)
    });
    let (package, test) = match args.room {
        Room::Engine => ("osier", "engine_sim"),
        Room::Datatype => ("osier-datatype", "trees"),
        Room::GpuDatatype => ("osier-kernels", "trees"),
    };
    match args.runs {
        Some(runs) => println!("seed {seed}, {runs} runs"),
        None => println!("seed {seed}, {} s", args.seconds),
    }
    let named = std::env::var_os("OSIER_CUDA_LIBRARY").is_some_and(|name| !name.is_empty());
    if matches!(args.room, Room::GpuDatatype) && !named {
        crate::setup::cplusplus()?;
        run_command(cargo().args(["build", "--release", "-p", "osier-emulated-cuda"]))?;
    }
    let mut command = cargo();
    if let Some(trees) = args.trees {
        command.env("OSIER_SOAK_TREES", trees.to_string());
    }
    if let Some(runs) = args.runs {
        command.env("OSIER_SOAK_RUNS", runs.to_string());
    }
    let done = run_command(
        command
            .env("OSIER_SOAK_SECONDS", args.seconds.to_string())
            .env("OSIER_SOAK_SEED", seed.to_string())
            .args(["test", "--release", "-p", package, "--test", test])
            .args(["--", "--ignored", "soak", "--nocapture"]),
    );
    done.map_err(|e| format!("seed {seed}: {e}"))
}
