//! The frame of an example: options that all ranks read alike, and an exit code.

use std::fmt;
use std::process::ExitCode;

use clap::Parser;
use osier::{Communicator, Error, Result};

/// Why a run came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// What was asked for cannot be done. All ranks have the same.
    Options(Error),
    /// Something went wrong at this rank.
    Run(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Options(e) | Failure::Run(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Run(e)
    }
}

/// As [`run`], of a program that knows bad options from other failures. `show` prints, at
/// rank 0, what a run found out, and tells whether it is right.
///
/// The exit code is 0, 1 if the result is wrong or the run fails, 2 if what was asked for
/// cannot be done.
pub fn run_checked<O: Parser, R>(
    program: impl Fn(&Communicator, &O) -> std::result::Result<R, Failure> + Sync,
    show: impl Fn(&O, &R, bool) -> bool + Sync,
) -> ExitCode {
    run_checked_on(|_| None, program, show)
}

/// As [`run_checked`], on virtual ranks where `workers` tells on how many threads of a process.
pub fn run_checked_on<O: Parser, R>(
    workers: impl Fn(&O) -> Option<usize>,
    program: impl Fn(&Communicator, &O) -> std::result::Result<R, Failure> + Sync,
    show: impl Fn(&O, &R, bool) -> bool + Sync,
) -> ExitCode {
    let rank = |world: Communicator| {
        let options = match O::try_parse() {
            Ok(options) => options,
            Err(e) => {
                say_once(&world, || e.print().unwrap_or_default());
                return e.exit_code() as u8;
            }
        };
        let name = O::command().get_name().to_owned();
        match program(&world, &options) {
            Ok(result) => {
                let print = world.rank() == 0;
                let right = show(&options, &result, print);
                // Before any rank ends with a failure.
                say_once(&world, || ());
                u8::from(!right)
            }
            Err(Failure::Options(e)) => {
                say_once(&world, || eprintln!("{name}: {e}"));
                2
            }
            Err(Failure::Run(e)) => {
                eprintln!("{name}: rank {}: {e}", world.rank());
                1
            }
        }
    };
    // Ranks say what is wrong with options.
    let on = O::try_parse().ok().and_then(|options| workers(&options));
    match on {
        Some(workers) => osier::task::run_ranks_code(workers, rank),
        None => osier::run_code(rank),
    }
}

/// Runs an example on all ranks of the job. What is wrong with the options is said by
/// rank 0 alone; an error by the rank that has it.
pub fn run<O: Parser>(example: impl Fn(&Communicator, &O) -> Result<u8> + Sync) -> ExitCode {
    osier::run_code(|world| {
        let options = match O::try_parse() {
            Ok(options) => options,
            Err(e) => {
                say_once(&world, || e.print().unwrap_or_default());
                return e.exit_code() as u8;
            }
        };
        match example(&world, &options) {
            Ok(code) => code,
            Err(e) => {
                eprintln!("{}: rank {}: {e}", O::command().get_name(), world.rank());
                1
            }
        }
    })
}

/// Says what all ranks find out alike: at rank 0, and before any of them goes on, for
/// the launcher ends the others when one ends with a failure. Every rank must call it.
pub fn say_once(world: &Communicator, what: impl FnOnce()) {
    if world.rank() == 0 {
        what();
    }
    // That a rank is gone by now changes nothing for who says it.
    world.barrier().ok();
}
