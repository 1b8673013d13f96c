//! The `osier` command.
//!
//! | module | subcommand |
//! |---|---|
//! | [`bench`] | `osier bench`: times and rates beside the machine's floor |
//! | [`docs`] | `osier docs`: pages of the documentation, for `cargo xtask docs` |
//! | [`explain`] | `osier explain`: why a message goes the way it goes, why a collective has its plan |
//! | [`info`] | `osier info`: what this machine offers; the table of protocols |
//! | [`model`], [`scale`] | `osier model`: what the machine costs, and what follows at scale |
//! | [`mpiexec`] | the options of other launchers, under their names |
//! | [`ps`] | `osier ps`: running jobs, and what their ranks wait for |
//! | [`say`] | what tools print, where nobody may read it |
//! | [`run`] | `osier run`: starts the ranks of a job and stays with them to the end |
//! | [`topo`] | `osier topo`: the machine, ranks on it, and what collectives send between them |
//! | [`trace`] | `osier trace`: timelines that a launcher has not put together |

#[macro_use]
mod say;

mod bench;
mod collective;
mod docs;
mod explain;
mod info;
mod model;
mod mpiexec;
mod ps;
mod run;
mod scale;
mod topo;
mod trace;

use mpiexec::Asked;
use std::ffi::OsString;
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
    Bench(Box<bench::Args>),
    #[command(hide = true)]
    Docs(docs::Args),
    /// Say how a message would travel, or which plan a collective has, and why
    #[command(subcommand)]
    Explain(explain::Command),
    Info(info::Args),
    Model(model::Args),
    Ps(ps::Args),
    Topo(topo::Args),
    /// Timelines of what ranks did
    #[command(subcommand)]
    Trace(trace::Command),
}

/// What we are asked for, under whatever name.
fn asked() -> Result<Asked, String> {
    let mut given: Vec<OsString> = std::env::args_os().collect();
    let mut asked = Asked::default();
    if given.first().is_some_and(mpiexec::is_ours) {
        asked = mpiexec::translate(given.split_off(1), &|name| std::env::var(name).ok())?;
        given.append(&mut asked.arguments);
    }
    asked.arguments = given;
    Ok(asked)
}

fn main() -> ExitCode {
    let asked = match asked() {
        Ok(asked) => asked,
        Err(message) => {
            eprintln!("mpiexec: {message}");
            return ExitCode::from(2);
        }
    };
    for note in &asked.notes {
        eprintln!("mpiexec: {note}");
    }
    let command = match Cli::try_parse_from(asked.arguments) {
        Ok(cli) => cli.command,
        Err(e) => {
            if let Err(e) = e.print() {
                say::cannot_write(&e);
            }
            say::flush();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    if let Err(e) = osier::config::check_names() {
        eprintln!("osier: {e}");
        return ExitCode::from(2);
    }
    let code = match command {
        Command::Run(mut args) => {
            args.sections = asked.sections;
            run::main(&args)
        }
        Command::Bench(args) => bench::main(&args),
        Command::Docs(args) => docs::main(&args),
        Command::Explain(command) => explain::main(&command),
        Command::Info(args) => info::main(&args),
        Command::Model(args) => model::main(&args),
        Command::Ps(args) => ps::main(&args),
        Command::Topo(args) => topo::main(&args),
        Command::Trace(command) => trace::main(&command),
    };
    say::flush();
    code
}
