//! `demo`: the main job, then two tables; `smoke` is its small form for CI.

use crate::setup;
use crate::steps::{Result, Steps, cargo, root, run as run_command, target_dir};
use std::path::PathBuf;
use std::process::Command;

/// Options of `demo`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask demo
  cargo xtask demo -- --grid 128 --sweeps 200")]
pub struct Args {
    /// Handed to jacobi3d
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// `cargo xtask demo`.
pub fn run(args: &Args) -> Result {
    setup::linker()?;
    let osier = build()?;
    let output = root().join("demo-output");
    let mut steps = Steps::default();
    steps.step("jacobi3d on 4 ranks", || {
        jacobi(&osier, &output, &args.args, "auto")
    });
    for bench in ["latency", "bandwidth"] {
        steps.step(&format!("{bench} on 2 ranks"), || {
            let mut command = Command::new(&osier);
            run_command(command.args(["bench", bench]).env("OSIER_MODEL", "auto"))
        });
    }
    steps.finish()?;
    println!("\nthe picture is in {}", output.display());
    Ok(())
}

/// A small run of the main job, with the programs that the tests have built: a release
/// would take longer than all of it.
pub fn smoke() -> Result {
    run_command(cargo().args(["test", "--workspace", "--no-run"]))?;
    let osier = target_dir().join("debug/osier");
    let small = ["--grid", "32", "--sweeps", "20"].map(String::from);
    jacobi(
        &osier,
        &target_dir().join("xtask/demo-smoke"),
        &small,
        "built-in",
    )
}

/// Builds launcher and programs in release; the path of `osier`.
pub fn build() -> Result<PathBuf> {
    run_command(cargo().args([
        "build",
        "--release",
        "-p",
        "osier-cli",
        "-p",
        "osier-examples",
    ]))?;
    Ok(target_dir().join("release/osier"))
}

/// `costs`: those by which the job chooses. Commands of cargo have built-in ones, which are another
/// processor's.
fn jacobi(osier: &PathBuf, output: &PathBuf, args: &[String], costs: &str) -> Result {
    std::fs::create_dir_all(output)
        .map_err(|e| format!("cannot make the folder {}: {e}", output.display()))?;
    run_command(
        Command::new(osier)
            .current_dir(output)
            .env("OSIER_MODEL", costs)
            .args(["run", "-n", "4", "--", "jacobi3d", "--output", "."])
            .args(args),
    )
}
