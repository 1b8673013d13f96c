//! The frame of an example: options that all ranks read alike, and an exit code.

use std::process::ExitCode;

use clap::Parser;
use osier::{Communicator, Result};

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
