//! Allocations of unmodified programs in the shared heap, by `--shared-heap`.

use super::{Ended, build, ended, needs, place, run, source, start, start_with, text};
use std::process::Command;

fn is_through((code, stdout, stderr): Ended) {
    assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
}

#[test]
fn allocations_of_c() {
    let Some(program) = build("heap") else { return };
    for ranks in [1, 2, 3] {
        is_through(start(&program, ranks));
        is_through(start_with(&program, ranks, &["--shared-heap"], &["all"]));
    }
    is_through(start_with(
        &program,
        2,
        &["--env", "OSIER_HEAP=all"],
        &["all"],
    ));
    let (code, _, stderr) = start_with(&program, 2, &["--env", "OSIER_HEAP=some"], &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("OSIER_HEAP"), "{stderr}");
}

#[test]
fn allocations_of_an_installed_launcher() {
    let (Some(place), Some(program)) = (place(), build("heap")) else {
        return;
    };
    let mut command = Command::new(place.join("bin/mpiexec"));
    let options = ["-timeout", super::GUARD, "-n", "2", "--shared-heap"];
    is_through(ended(&run(command
        .args(options)
        .args([text(&program), "all"]))));
}

#[test]
fn no_address_space_is_reserved_beyond_a_limit() {
    let Some(program) = build("heap") else { return };
    // In KiB: the program needs about a third, with stacks and libraries.
    let line = "ulimit -v 1000000 && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh"]);
    command.arg(super::target().join("osier"));
    let options = ["run", "-n", "2", "--timeout", super::GUARD, "--shared-heap"];
    is_through(ended(&run(command.args(options).args([
        "--",
        text(&program),
        "all",
    ]))));
}

#[test]
fn allocations_of_python() {
    let Some(place) = place() else { return };
    if !needs::program("python", "python3") {
        return;
    }
    let script = source("heap.py");
    let mut command = Command::new(place.join("bin/mpiexec"));
    command.env("MPI_LIBRARY", place.join("lib/libmpi_abi.so.1"));
    let options = ["-timeout", super::GUARD, "-n", "2", "--shared-heap"];
    let done = ended(&run(command.args(options).args(["python3", text(&script)])));
    assert_eq!(
        (done.0, done.1.as_str()),
        (Some(0), "through\nthrough\n"),
        "{}",
        done.2
    );
}
