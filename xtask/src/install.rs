//! `install`: the C interface where programs find it.

pub mod layout;

use crate::setup;
use crate::steps::{Result, cargo, root, run as run_command, target_dir};
use layout::Parts;
use std::path::{Path, PathBuf};

/// Options of `install`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask install --prefix ~/osier
  PATH=~/osier/bin:$PATH mpicc -o ring ring.c && mpiexec -n 4 ./ring")]
pub struct Args {
    /// Where to; bin, include and lib are made below it
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// What was built without optimisation, for tests
    #[arg(long)]
    debug: bool,
}

impl Args {
    /// Optimised, below this folder.
    pub fn release(prefix: &Path) -> Args {
        Args {
            prefix: prefix.to_owned(),
            debug: false,
        }
    }

    /// Not optimised, below this folder.
    pub fn debug(prefix: &Path) -> Args {
        Args {
            prefix: prefix.to_owned(),
            debug: true,
        }
    }
}

/// `cargo xtask install`.
pub fn run(args: &Args) -> Result {
    setup::linker()?;
    let mut build = cargo();
    build.args([
        "build",
        "-p",
        "osier-capi",
        "-p",
        "osier-cli",
        "-p",
        "osier-preload",
    ]);
    if !args.debug {
        build.arg("--release");
    }
    run_command(&mut build)?;
    let built = target_dir().join(if args.debug { "debug" } else { "release" });
    let prefix = std::path::absolute(&args.prefix).map_err(|e| e.to_string())?;
    layout::put(
        &Parts {
            launcher: &built.join("osier"),
            library: &built.join("libmpi_abi.so"),
            heap: &built.join("libosier_heap.so"),
            headers: &root().join("capi/include"),
        },
        &prefix,
    )?;
    println!("installed in {}", prefix.display());
    Ok(())
}
