//! The `osier` command.
//!
//! | module | subcommand |
//! |---|---|
//! | [`run`] | `osier run`: starts the ranks of a job and stays with them to the end |

mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Message passing for ranks whose data is rarely contiguous.
#[derive(Debug, Parser)]
#[command(name = "osier", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program as a job of N ranks on this machine
    Run(run::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::main(&args),
    }
}
