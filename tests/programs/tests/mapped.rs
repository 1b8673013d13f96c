//! Two processes that open each other's device memory, on one emulated device and on two.

mod support;

use support::{EXERCISE, finish, job};

/// Whether the emulated driver was built beside the launcher; it needs a C++ compiler.
fn emulated() -> bool {
    let beside = std::path::Path::new(EXERCISE).with_file_name("libosier_emulated_cuda.so");
    let there = beside.is_file();
    if !there {
        eprintln!("SKIPPED: {} was not built", beside.display());
    }
    there
}

/// Two ranks that do something with each other's memory.
#[track_caller]
fn mapped(gpus: &str, variables: &[(&str, &str)], what: &[&str]) -> support::Done {
    let what = [&["mapped"], what].concat();
    let mut command = job(2, &["--emulate-gpus", gpus], &what);
    let done = finish(command.envs(variables.iter().copied()));
    done.through(&[0, 1]).code(0);
    done
}

/// Descriptors go by a socket, one for each piece.
#[test]
fn mapped_memory_is_copied_by_one_kernel() {
    if emulated() {
        mapped("2", &[], &["matrix", "mapped", "pool", "kernel"]).quiet();
        mapped("1", &[], &["pieces"]).quiet();
        // What cannot be exported goes another way.
        let fails: Vec<String> = (1..40)
            .map(|n| format!("cuMemExportToShareableHandle:{n}"))
            .collect();
        let fails = [
            ("OSIER_EMULATED_FAIL", &*fails.join(",")),
            ("OSIER_EMULATED_QUIET", "1"),
        ];
        mapped("1", &fails, &["matrix", "mapped", "plain", "host"]).says("descriptors");
    }
}

/// The pool goes by a socket, once; each message names its memory within.
#[test]
fn memory_of_an_exportable_pool_is_copied_by_one_kernel() {
    if emulated() {
        for gpus in ["1", "2"] {
            mapped(gpus, &[], &["matrix", "exportable", "exportable", "kernel"]).quiet();
        }
        mapped("1", &[], &["both", "exportable"]).quiet();
        // What cannot be opened goes another way.
        for call in [
            "cuMemPoolExportToShareableHandle",
            "cuMemPoolImportFromShareableHandle",
        ] {
            let fails: Vec<String> = (1..40).map(|n| format!("{call}:{n}")).collect();
            let fails = [
                ("OSIER_EMULATED_FAIL", &*fails.join(",")),
                ("OSIER_EMULATED_QUIET", "1"),
            ];
            mapped("1", &fails, &["matrix", "exportable", "plain", "host"]);
        }
    }
}

/// Named once, with the cost.
#[test]
fn memory_that_cannot_be_opened_goes_through_the_host() {
    if emulated() {
        mapped("1", &[], &["matrix", "pool", "plain", "host"]).says("was not made to be exported");
        let apart = [("OSIER_EMULATED_LINKS", "none")];
        mapped("2", &apart, &["matrix", "plain", "plain", "host"]).says("not linked");
        let none = [("OSIER_DEVICE_MAPPINGS", "0")];
        mapped("1", &none, &["matrix", "plain", "plain", "host"]);
    }
}

/// Two ranks with one process number, each in a namespace of its own.
#[test]
fn descriptors_cross_namespaces_of_processes() {
    let allowed = std::process::Command::new("unshare")
        .args(["-Urpf", "true"])
        .status();
    if !emulated() || !allowed.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: no namespaces of processes");
    }
    let run = |from: &str, way: &str| {
        let mut command = std::process::Command::new(support::launcher());
        command
            .args(["run", "-n", "2", "--emulate-gpus", "1", "--"])
            .args(["unshare", "-Urpf", "--kill-child", EXERCISE])
            .args(["mapped", "matrix", from, "pool", way])
            .env_remove("OSIER_SHM_LIMIT");
        let done = finish(&mut command);
        done.through(&[0, 1]).code(0);
        done
    };
    run("mapped", "kernel").quiet();
    run("plain", "host").says("namespace");
}

#[test]
fn an_address_that_is_used_again_does_not_meet_the_old_memory() {
    if emulated() {
        mapped("1", &[("OSIER_EMULATED_ADDRESSES", "reused")], &["again"]).quiet();
    }
}

#[test]
fn mappings_are_bounded() {
    if emulated() {
        for most in ["0", "1", "2", "4"] {
            mapped("1", &[("OSIER_DEVICE_MAPPINGS", most)], &["limit", most]);
        }
        mapped("1", &[("OSIER_DEVICE_MAPPED", "250000")], &["limit", "2"]);
    }
}

#[test]
fn two_processes_export_to_each_other_at_once() {
    if emulated() {
        for gpus in ["1", "2"] {
            mapped(gpus, &[], &["both", "plain"]).quiet();
        }
    }
}

/// With events of processes, and where these cannot be had.
#[test]
fn a_late_producer_is_awaited_by_nobody() {
    if emulated() {
        mapped("1", &[], &["late"]).quiet();
        let fails: Vec<String> = (1..40)
            .map(|n| format!("cuIpcGetEventHandle:{n}"))
            .collect();
        let quiet = ("OSIER_EMULATED_QUIET", "1");
        mapped(
            "1",
            &[("OSIER_EMULATED_FAIL", &fails.join(",")), quiet],
            &["late"],
        );
        let fails: Vec<String> = (1..40)
            .map(|n| format!("cuIpcOpenEventHandle:{n}"))
            .collect();
        mapped(
            "1",
            &[("OSIER_EMULATED_FAIL", &fails.join(",")), quiet],
            &["late"],
        );
    }
}

#[test]
fn a_rank_is_killed_while_its_memory_is_open() {
    if !emulated() {
        return;
    }
    for when in ["late", "announced", "receiving"] {
        let options = ["--on-death", "report", "--emulate-gpus", "1"];
        finish(&mut job(2, &options, &["mapped", "dies", when]))
            .says("rank 1 of 2")
            .through(&[0])
            .code(137);
    }
}
