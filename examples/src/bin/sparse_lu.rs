//! Sparse LU factorization with static pivots over supernodes, by blocking calls, with
//! look-ahead, or as a task graph. The work is done in `osier_examples::sparse`.
//!
//! Exit code: 0, 1 if the residual is too large or communication fails, 2 if what was asked
//! for cannot be done.

use std::process::ExitCode;

use clap::Parser;
use osier::Communicator;
use osier_examples::cli::say_once;
use osier_examples::sparse::{self, Failure, Options};

fn main() -> ExitCode {
    osier::run_code(|world| factor_and_solve(&world))
}

/// What one rank does; its exit code.
fn factor_and_solve(world: &Communicator) -> u8 {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => {
            say_once(world, || e.print().unwrap_or_default());
            return e.exit_code() as u8;
        }
    };
    let report = match sparse::run(world, &options) {
        Ok(report) => report,
        Err(Failure::Options(e)) => {
            say_once(world, || eprintln!("sparse_lu: {e}"));
            return 2;
        }
        Err(Failure::Run(e)) => {
            eprintln!("sparse_lu: rank {}: {e}", world.rank());
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
                "sparse_lu: the residual is {:.3e}, expected at most {:.1e}",
                report.residual(),
                report.residual_limit
            );
        }
    });
    u8::from(!report.passes())
}
