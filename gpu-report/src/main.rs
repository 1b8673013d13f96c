//! What `./run` of the bundle starts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use osier_gpu_report::plan::{Machine, Part, tasks};
use osier_gpu_report::report::Mode;
use osier_gpu_report::run::{self, Options};

/// Tests and measures Osier on this machine's first GPU, and writes one report
#[derive(Parser)]
#[command(
    name = "run",
    version,
    after_help = "\
The folder gets report.txt for people, report.json for cargo xtask gpu-report, and
report.tar.xz with both, all logs, records and plots. They are written again after every
step: a run that is killed leaves what it had.

Needs Linux and an NVIDIA driver, no toolchain and no network. OSIER_DEBUG=cuda-library=PATH
names another library of the driver.

Ends with 0 if all went well, 1 if a step failed, 2 for bad usage, 77 where there is no GPU.

Examples:
  ./run --quick                    all parts within eight minutes
  ./run --quick --only pack,peers  two of them
  ./run /tmp/report                everything, for as long as it takes
  ./run --list --quick             what would be run"
)]
struct Args {
    /// End within eight minutes: small numbers of repetitions, and a limit for each step
    #[arg(long)]
    quick: bool,

    /// These parts alone, separated by commas
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,

    /// Print the steps, and run none
    #[arg(long)]
    list: bool,

    /// Folder of the bundle
    #[arg(long, value_name = "FOLDER", hide = true, default_value = ".")]
    bundle: PathBuf,

    /// Folder of the report
    #[arg(value_name = "FOLDER", default_value = "./osier-gpu-report")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mode = if args.quick { Mode::Quick } else { Mode::Full };
    let mut parts = match args.only.is_empty() {
        true => Part::ALL.to_vec(),
        false => args.only.clone(),
    };
    parts.sort();
    parts.dedup();
    if args.list {
        let machine = Machine {
            gpus: 1,
            ..Machine::default()
        };
        for task in tasks(&machine, mode, &parts) {
            let line = task.skip.unwrap_or_else(|| task.command.join(" "));
            println!(
                "{:<12} {:<34} {:>5} s  {line}",
                task.part.name(),
                task.name,
                task.limit
            );
        }
        return ExitCode::SUCCESS;
    }
    let absolute = |path: &PathBuf| std::path::absolute(path);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let shown = words.iter().filter(|word| !word.starts_with("--bundle"));
    let command = std::iter::once("./run".to_owned()).chain(shown.cloned());
    let ran = absolute(&args.bundle).and_then(|bundle| {
        run::run(&Options {
            bundle,
            folder: absolute(&args.folder)?,
            mode,
            parts,
            command: command.collect::<Vec<_>>().join(" "),
        })
    });
    match ran {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!(
                "run: cannot write {} or read the bundle: {e}",
                args.folder.display()
            );
            ExitCode::FAILURE
        }
    }
}
