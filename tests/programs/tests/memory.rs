//! Shared memory that is scarce, watched, or written over by a rank.

mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;
use support::{EXERCISE, finish, job, launcher, needs};

/// `ulimit -v`, for the launcher and its ranks.
#[test]
fn a_job_runs_in_little_address_space() {
    let mut job = job(2, &[], &["sizes"]);
    let limit = libc::rlimit {
        rlim_cur: 2 << 30,
        rlim_max: 2 << 30,
    };
    let lower = move || {
        // SAFETY: a system call on a structure of ours.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only a system call is made.
    unsafe { job.pre_exec(lower) };
    finish(&mut job).quiet().through(&[0, 1]).code(0);
}

/// The ranks alone: their launcher has all the room that there is.
#[test]
fn ranks_run_in_little_address_space() {
    let shell = format!("ulimit -v 2097152; exec {EXERCISE} sizes");
    let mut command = Command::new(launcher());
    command.args(["run", "-n", "2", "--", "sh", "-c", &shell]);
    finish(command.env_remove("OSIER_SHM_LIMIT"))
        .quiet()
        .through(&[0, 1])
        .code(0);
}

/// Under valgrind, which has a smaller address space, runs one thread at a time, and knows
/// no barrier between processes.
#[test]
fn valgrind_finds_nothing_in_a_job_of_two() {
    if !needs::program("valgrind", "valgrind") {
        return;
    }
    let mut command = Command::new(launcher());
    command
        .args(["run", "-n", "2", "--", "valgrind", "-q"])
        .args(["--error-exitcode=99", EXERCISE, "some-sizes"])
        .env_remove("OSIER_SHM_LIMIT");
    finish(&mut command).through(&[0, 1]).code(0);
}

/// `--check payload`: what a rank writes over messages reaches no program.
#[test]
fn payloads_that_were_written_over_are_found() {
    for seed in 100..110 {
        let options = [
            "--on-hang",
            "kill",
            "--timeout",
            "100",
            "--check",
            "payload",
        ];
        let done = finish(&mut job(3, &options, &["scribble", &seed.to_string()]));
        let fine = matches!(done.code, Some(0 | 3));
        assert!(fine, "seed {seed}: {:?}\n{}", done.code, done.stderr);
        // The memory of the program itself lies in the heap.
        let changed = done.stdout.lines().any(|l| !l.ends_with(" 0 changed"));
        let heap = done.stderr.contains("of osier-heap");
        assert!(
            heap || !changed,
            "seed {seed}: {}\n{}",
            done.stdout,
            done.stderr
        );
    }
}

/// Seeds of `exercise scribble`: `cargo xtask soak scribble` runs more.
#[test]
fn what_a_rank_writes_over_memory_is_survived_or_told() {
    let mut told = 0;
    for seed in 0..12 {
        let options = ["--on-hang", "kill", "--timeout", "100"];
        let done = finish(&mut job(3, &options, &["scribble", &seed.to_string()]));
        // Through, or an error of a rank (`scribbles::TOLD`).
        let fine = matches!(done.code, Some(0 | 3));
        assert!(fine, "seed {seed}: {:?}\n{}", done.code, done.stderr);
        told += u32::from(done.code == Some(3));
    }
    println!("told in {told} of 12 jobs");
}
