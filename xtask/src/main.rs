//! Developer commands: `cargo xtask check|quick|test|demo|docs|soak|kernels|gpu-bundle|gpu-report|compare|suites`.
//!
//! Each command sets up what it needs, says what it installs and why, and
//! returns the first failure as its exit code.

mod abi;
mod bundle;
#[allow(dead_code)]
#[path = "../../tests/programs/src/matrix/cells.rs"]
mod cells;
mod checked;
#[allow(dead_code, reason = "shared with the tests of the C interface")]
mod checking;
mod compare;
mod demo;
mod docs;
mod gpu_report;
mod install;
mod invariants;
mod kernels;
mod lacks;
mod layers;
mod quick;
#[allow(dead_code)]
#[path = "../../emulated-cuda/scan.rs"]
mod scan;
mod setup;
mod soak;
mod steps;
mod suites;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer commands of Osier.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
#[command(after_help = "Examples:
  cargo xtask quick                 of what a change touches, in a minute
  cargo xtask check                 formatting, lints, documentation
  cargo xtask test                  everything that CI runs
  cargo xtask demo                  the main job and two tables
  cargo xtask soak engine --seconds 600
  cargo xtask compare --json compare.json --update-docs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, clippy and rustdoc, warnings denied
    Check,
    /// The first answer on a change: format, lints, unit tests and seeds of what it touches
    Quick(quick::Args),
    /// Every test; exactly what CI runs
    Test(test::Args),
    /// The main job on four ranks, then latency and bandwidth beside the machine's floor
    Demo(demo::Args),
    /// The long random tests of one room
    Soak(soak::Args),
    /// Header and coverage of the C interface, from its tables
    Abi,
    /// What checks find in wrong programs: the page, and the programs of others
    Checking(checked::Args),
    /// Pages of the documentation that follow from the code
    Docs,
    /// The C interface below a folder: library, header, compiler wrappers, launcher
    Install(install::Args),
    /// CUDA kernels to PTX, or the check that they match
    Kernels(kernels::Args),
    /// Tests and benchmarks of the device as a folder for a machine with a GPU
    GpuBundle(bundle::Args),
    /// Keeps a report of the bundle, and writes its tables into the documentation
    GpuReport(gpu_report::Args),
    /// Open MPI, MPICH and Intel MPI beside Osier in one run
    Compare(compare::Args),
    /// Programs of others, from folders: built on the C interface, and run
    Suites(suites::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Check => test::check(),
        Command::Quick(args) => quick::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Abi => abi::run(),
        Command::Checking(args) => checked::run(&args),
        Command::Docs => docs::run(),
        Command::Install(args) => install::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::GpuBundle(args) => bundle::run(&args),
        Command::GpuReport(args) => gpu_report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Suites(args) => suites::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
