//! Example 4: 7-point Jacobi on a block-decomposed 3-D grid, checked against
//! the exact field. The work is done in `osier_examples::jacobi`.
//!
//! Exit code: 0, 1 if the field is wrong or communication fails, 2 if what was
//! asked for cannot be done.

use std::process::ExitCode;

use clap::Parser;
use osier::Communicator;
use osier_examples::cli::say_once;
use osier_examples::jacobi::{self, Failure, Options};

fn main() -> ExitCode {
    osier::run_code(|world| solve(&world))
}

/// What one rank does; its exit code.
fn solve(world: &Communicator) -> u8 {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => {
            say_once(world, || e.print().unwrap_or_default());
            return e.exit_code() as u8;
        }
    };
    let report = match jacobi::run(world, &options) {
        Ok(report) => report,
        Err(Failure::Options(e)) => {
            say_once(world, || eprintln!("jacobi3d: {e}"));
            return 2;
        }
        Err(Failure::Run(e)) => {
            eprintln!("jacobi3d: rank {}: {e}", world.rank());
            return 1;
        }
    };
    say_once(world, || {
        if !options.quiet {
            print!("{report}");
        }
        if options.checksum {
            println!("{:016x}", report.checksum);
        }
        if !report.passes() {
            eprintln!(
                "jacobi3d: the field is wrong: off by {:.3e}, at most {:.1e} is rounding",
                report.max_error, report.error_limit
            );
        }
    });
    u8::from(!report.passes())
}
