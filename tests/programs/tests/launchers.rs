//! Rust programs under launchers of others: those that speak PMI-1, and those whose jobs
//! cannot be joined.

#[allow(dead_code, reason = "shared with the tests of C programs")]
#[path = "support/pmi.rs"]
mod pmi;
mod support;

use pmi::Server;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};
use support::{EXERCISE, alone, finish, job};

/// Variables by which launchers tell a process that it is one of several.
const FOREIGN: [(&[(&str, &str)], &str); 5] = [
    (
        &[("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "1")],
        "Open MPI's mpirun started this process as one of 2",
    ),
    (
        &[("SLURM_STEP_NUM_TASKS", "4"), ("PMIX_RANK", "3")],
        "srun --mpi=pmix started this process as one of 4",
    ),
    (
        &[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_NTASKS", "4")],
        "srun started this process as one of 4",
    ),
    (
        &[("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("PMI_PORT", "h:1")],
        "PMI_SIZE without PMI_FD",
    ),
    (&[("PMIX_RANK", "0")], "a launcher that speaks PMIx"),
];

struct Ended {
    codes: Vec<Option<i32>>,
    stdout: String,
    stderr: String,
}

/// Runs `exercise WHAT` on so many ranks of a launcher that speaks PMI-1.
fn launched(what: &[&str], ranks: usize) -> (Ended, std::sync::Arc<Server>) {
    let server = Server::new(ranks, None);
    let start = |rank| server.start(Command::new(EXERCISE).args(what), rank, ranks);
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let mut ended = Ended {
        codes: Vec::new(),
        stdout: String::new(),
        stderr: String::new(),
    };
    for child in children {
        let output = child.wait_with_output().expect("its end");
        ended.codes.push(output.status.code());
        ended.stdout += &String::from_utf8_lossy(&output.stdout);
        ended.stderr += &String::from_utf8_lossy(&output.stderr);
    }
    (ended, server)
}

#[test]
fn ranks_meet_under_a_launcher_that_speaks_pmi() {
    for ranks in [2, 3] {
        for what in [&["sizes"][..], &["run", "sizes"]] {
            let (ended, server) = launched(what, ranks);
            let all: Vec<String> = (0..ranks)
                .map(|r| format!("rank {r} is through\n"))
                .collect();
            assert_eq!(ended.codes, vec![Some(0); ranks], "{}", ended.stderr);
            assert_eq!((ended.stdout, ended.stderr), (all.concat(), String::new()));
            assert_eq!(server.finished(), ranks, "{what:?}");
        }
    }
}

#[test]
fn the_only_rank_says_good_bye() {
    let (ended, server) = launched(&["join"], 1);
    assert_eq!(ended.stdout, "rank 0 of 1\n", "{}", ended.stderr);
    assert_eq!((ended.codes, server.finished()), (vec![Some(0)], 1));
}

#[test]
fn a_session_joins_too() {
    let (ended, server) = launched(&["session"], 2);
    assert_eq!(ended.stdout, "rank 0\nrank 1\n", "{}", ended.stderr);
    assert_eq!(server.finished(), 2);
}

#[test]
fn a_process_joins_once() {
    let (ended, _) = launched(&["once-more", "a process joins once"], 2);
    assert_eq!(ended.codes, [Some(0); 2], "{}", ended.stderr);
}

/// A rank that fails says no good-bye, so its launcher ends the job.
#[test]
fn failures_are_told_to_the_launcher() {
    let server = Server::new(1, None);
    let start = |what| {
        let child = server.start(Command::new(EXERCISE).args(what), 0, 1);
        child.wait_with_output().expect("its end").status.code()
    };
    assert_eq!(start(["child", "an error that nobody has"]), Some(101));
    assert_eq!(server.finished(), 0);
}

#[test]
fn children_of_ranks_are_no_ranks() {
    let (ended, server) = launched(&["child", "a child process of a rank is no rank"], 2);
    assert_eq!(ended.codes, [Some(0); 2], "{}", ended.stderr);
    assert_eq!(server.finished(), 2);
    finish(&mut job(2, &[], &["child", "already taken"]))
        .through(&[0, 1])
        .code(0);
    // With ranks as threads the child is no process of several ranks.
    finish(&mut job(
        2,
        &["--ranks-per-process", "2", "--env", "OSIER_ALONE=1"],
        &["run", "sizes"],
    ))
    .through(&[0, 1])
    .code(0);
}

/// A launcher whose values are of another version, or garbled, is refused by what is wrong.
#[test]
fn values_that_cannot_be_parsed_are_refused() {
    let bad = "cmd=get_result rc=0 value=1/-/another-boot/1/elsewhere";
    let server = Server::new(2, Some(("get", bad)));
    let start = |rank| server.start(Command::new(EXERCISE).arg("join"), rank, 2);
    let children: Vec<Child> = (0..2).map(start).collect();
    for child in children {
        let output = child.wait_with_output().expect("its end");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(9), "{text}");
        assert!(text.contains("osier-job"), "{text}");
        assert!(text.contains("the same version"), "{text}");
    }
    assert_eq!(server.finished(), 0);
}

#[test]
fn jobs_that_cannot_be_joined_are_refused() {
    for (environment, says) in FOREIGN {
        let refused = alone(environment);
        refused
            .code(9)
            .says(says)
            .says("osier run")
            .says("OSIER_ALONE=1");
        assert_eq!(refused.stdout, "", "{environment:?}");
        let mut threads = Command::new(EXERCISE);
        threads
            .args(["run", "sizes"])
            .envs(environment.iter().copied());
        finish(&mut threads).code(1).says(says);
        // On purpose.
        let mut wanted = environment.to_vec();
        wanted.push(("OSIER_ALONE", "1"));
        let alone = alone(&wanted);
        alone.code(0).quiet();
        assert_eq!(alone.stdout, "rank 0 of 1\n");
    }
}

/// Variables of `osier run` that it does not write are errors, and not as if there were none.
#[test]
fn garbled_variables_are_refused() {
    for (variables, says) in [
        (
            &[("OSIER_JOB", &b"\xff"[..]), ("OSIER_RANK", b"0")][..],
            "OSIER_JOB",
        ),
        (
            &[("OSIER_JOB", b"2:3,4,5"), ("OSIER_RANK", b"\xff")],
            "OSIER_RANK",
        ),
        (
            &[
                ("OSIER_JOB", b"2:3,4,5;ranks=4000000000"),
                ("OSIER_RANK", b"0"),
            ],
            "ranks=4000000000",
        ),
        (&[("OSIER_RANKS_HERE", b"2")], "in OSIER_JOB"),
        (&[("OSIER_ALONE", b"\xff")], "OSIER_ALONE"),
    ] {
        let variables = variables.iter().map(|(k, v)| (k, OsStr::from_bytes(v)));
        finish(Command::new(EXERCISE).arg("join").envs(variables))
            .code(9)
            .says(says);
    }
}

#[test]
fn osier_run_works_below_other_launchers() {
    for (environment, _) in FOREIGN {
        let mut command = job(2, &[], &["sizes"]);
        command.envs(environment.iter().copied());
        // A variable that its ranks do not inherit.
        finish(command.env("OSIER_ALONE", "1"))
            .through(&[0, 1])
            .code(0);
    }
}
