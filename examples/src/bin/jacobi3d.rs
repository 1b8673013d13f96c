//! Example 4: 7-point Jacobi on a block-decomposed 3-D grid, checked against
//! the exact field. The work is done in `osier_examples::jacobi`.

use std::process::ExitCode;

use osier_examples::cli::run_checked_on;
use osier_examples::jacobi::{self, Options, Report};

fn main() -> ExitCode {
    run_checked_on(Options::virtual_workers, jacobi::run, show)
}

fn show(options: &Options, report: &Report, print: bool) -> bool {
    if !print {
        return report.passes();
    }
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
    report.passes()
}
