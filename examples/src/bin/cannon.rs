//! Example 7: dense matrix product by Cannon's algorithm, in 2-D and 2.5-D, checked bit by
//! bit. The work is done in `osier_examples::cannon`.

use std::process::ExitCode;

use osier_examples::cannon::{self, Options, Report};
use osier_examples::cli::run_checked;

fn main() -> ExitCode {
    run_checked(cannon::run, show)
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
    if let Some(checked) = report.checked.filter(|checked| !checked.passes()) {
        eprintln!(
            "cannon: C is wrong: {} entries have other bits than the same sums; off from a triple loop by {:.3e}, {:.1} times what rounding can do",
            checked.other_bits, checked.largest, checked.of_limit
        );
    }
    report.passes()
}
