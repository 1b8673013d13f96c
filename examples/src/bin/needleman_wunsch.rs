//! Example 7: the best global alignment of two sequences, as a synchronous, a
//! hand-overlapped and two graph programs. The work is done in `osier_examples::align`.
//!
//! Exit code: 0, 1 if scores differ or communication fails, 2 if what was asked for cannot be
//! done or a file is wrong.

use std::process::ExitCode;

use osier::{Communicator, Result};
use osier_examples::align::{self, Failure, Options};
use osier_examples::cli::{self, say_once};

fn main() -> ExitCode {
    cli::run(solve)
}

/// What one rank does; its exit code.
fn solve(world: &Communicator, options: &Options) -> Result<u8> {
    let report = match align::run(world, options) {
        Ok(report) => report,
        Err(Failure::Input(what)) => {
            say_once(world, || eprintln!("needleman_wunsch: {what}"));
            return Ok(2);
        }
        Err(Failure::Run(e)) => return Err(e),
    };
    say_once(world, || {
        match options.quiet {
            true => println!("{}", report.score),
            false => print!("{report}"),
        }
        if !report.passes() {
            let score = report.score;
            eprintln!("needleman_wunsch: the matrix says {score}, and another score was found");
        }
    });
    Ok(u8::from(!report.passes()))
}
