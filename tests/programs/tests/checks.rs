//! What `osier run --check` says of real jobs.

mod support;

use std::process::Command;
use support::{Done, EXERCISE, finish, job, launcher};

const AT: &str = "tests/programs/src/checks.rs:";

fn checked(checks: &str, what: &str) -> Done {
    finish(&mut job(2, &["--check", checks], &["check", what]))
}

/// The lines of a finding after the one that says so.
fn lines_after<'a>(done: &'a Done, start: &str) -> Vec<&'a str> {
    let mut lines = done.stderr.lines().skip_while(|l| !l.contains(start));
    assert!(lines.next().is_some(), "{start:?}: {}", done.stderr);
    lines.take(3).collect()
}

#[test]
fn clean_program_has_no_findings() {
    for what in ["fine", "interleaved", "alone"] {
        checked("all", what).quiet().through(&[0, 1]).code(0);
        checked("all,fatal", what).quiet().through(&[0, 1]).code(0);
    }
}

/// Each message is compared, and the job goes on.
#[test]
fn types_are_named_with_both_lines() {
    let done = checked("signature", "types");
    done.code(0).through(&[0, 1]);
    assert_eq!(done.stderr.matches("types do not match").count(), 2);
    let what = "osier: rank 1: types do not match: receive from rank 0, tag 7";
    let lines = lines_after(&done, what);
    let sent = lines[0].trim_start();
    assert!(sent.starts_with("sent") && sent.contains("f64 x 6") && sent.contains(AT));
    let expected = lines[1].trim_start();
    assert!(expected.starts_with("expected") && expected.contains("i64 x 6"));
    assert!(expected.contains(AT) && !sent.ends_with(&expected[expected.len() - 3..]));
}

#[test]
fn buffers_in_use_are_named_with_both_lines() {
    let done = checked("buffers", "overlap");
    done.code(0).through(&[0, 1]);
    let lines = lines_after(&done, "osier: rank 0: a buffer is in use by two transfers");
    for (line, tag) in lines.iter().zip(["tag 0", "tag 1"]) {
        assert!(line.contains("writes it") && line.contains(tag), "{line}");
        assert!(line.contains(AT), "{line}");
    }
    let done = checked("buffers", "changed");
    done.code(0).through(&[0, 1]);
    let lines = lines_after(
        &done,
        "a buffer has changed while it was sent: send to rank 1",
    );
    assert!(lines[0].contains(AT), "{lines:?}");
    // Nobody asked for the others.
    checked("signature,leaks", "overlap").quiet().code(0);
}

#[test]
fn leaks_are_named_at_the_end() {
    let done = checked("leaks", "request");
    done.code(0).through(&[0, 1]);
    assert_eq!(done.stderr.matches("leak:").count(), 1, "{}", done.stderr);
    let lines = lines_after(&done, "osier: rank 0: leak: a request was never completed");
    assert!(lines[0].contains(AT), "{lines:?}");
}

/// The first finding ends the job.
#[test]
fn fatal_ends_the_job() {
    for (checks, what) in [
        ("signature,fatal", "types"),
        ("buffers,fatal", "overlap"),
        ("fatal,all", "changed"),
        ("leaks,fatal", "request"),
    ] {
        let done = checked(checks, what);
        done.code(123);
        let findings = ["types do not match", "a buffer ", "leak:"];
        let count: usize = findings
            .iter()
            .map(|f| done.stderr.matches(f).count())
            .sum();
        assert_eq!(count, 1, "{}", done.stderr);
    }
}

#[test]
fn variable_enables_checks_unless_option_disables_them() {
    let mut command = job(2, &[], &["check", "types"]);
    finish(command.env("OSIER_CHECK", "signature"))
        .says("types do not match")
        .code(0);
    let mut command = job(2, &["--check", "off"], &["check", "types"]);
    finish(command.env("OSIER_CHECK", "signature"))
        .quiet()
        .code(0);
}

/// A rank that would check something else is refused at its start.
#[test]
fn rank_with_other_checks_than_its_job_is_refused() {
    for (of_job, of_rank) in [("off", "leaks"), ("signature", "signature,buffers")] {
        let script = format!(
            "if [ $OSIER_RANK = 1 ]; then export OSIER_CHECK={of_rank}; fi; exec {EXERCISE} join"
        );
        let mut command = Command::new(launcher());
        command.args([
            "run", "-n", "2", "--check", of_job, "--", "/bin/sh", "-c", &script,
        ]);
        finish(&mut command)
            .says(&format!(
                "OSIER_CHECK={of_rank} in rank 1, and {of_job} in the job"
            ))
            .says("hint: all ranks check the same")
            .code(9);
    }
    // The same in other words is the same.
    let script = format!(
        "OSIER_CHECK=windows,threads,collectives,ready,leaks,buffers,signature exec {EXERCISE} join"
    );
    let mut command = Command::new(launcher());
    command.args([
        "run", "-n", "2", "--check", "all", "--", "/bin/sh", "-c", &script,
    ]);
    finish(&mut command).quiet().code(0);
}

#[test]
fn unknown_checks_are_refused() {
    for wrong in ["types", "fatal", ""] {
        checked(wrong, "fine").says("hint").code(2);
    }
}
