//! `soak`: the long random tests, which print the seed that repeats them.

use crate::steps::{Result, cargo, run as run_command};
use clap::ValueEnum;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, ValueEnum)]
enum Room {
    /// Matching, protocols and progress over the simulated transport
    Engine,
}

/// Options of `soak`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask soak engine --seconds 600
  cargo xtask soak engine --seed 42")]
pub struct Args {
    /// What to test
    #[arg(value_enum)]
    room: Room,
    /// How long
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
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
    };
    println!("seed {seed}, {} s", args.seconds);
    let done = run_command(
        cargo()
            .env("OSIER_SOAK_SECONDS", args.seconds.to_string())
            .env("OSIER_SOAK_SEED", seed.to_string())
            .args(["test", "--release", "-p", package, "--test", test])
            .args(["--", "--ignored", "soak", "--nocapture"]),
    );
    done.map_err(|e| format!("seed {seed}: {e}"))
}
