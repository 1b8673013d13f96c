//! Two processes that open each other's device memory, on one emulated device and on two.

mod support;

use support::{EXERCISE, driver_calls, emulated, finish, hidden_job, job, settings};

/// Two ranks that do something with each other's memory.
#[track_caller]
fn mapped(gpus: &str, variables: &[(&str, &str)], what: &[&str]) -> support::Done {
    let what = [&["mapped"], what].concat();
    let mut command = job(2, &["--emulate-gpus", gpus], &what);
    settings(&mut command, variables);
    let done = finish(&mut command);
    done.through(&[0, 1]).code(0);
    done
}

/// Cells of memory kinds: the sender's, the receiver's, and how messages must go.
const OPENED: &[&str] = &[
    "plain-plain-kernel",
    // Descriptors go by a socket, one for each piece.
    "mapped-pool-kernel",
    // The pool goes by a socket, once; each message names its memory within.
    "exportable-managed-kernel",
    // As well, once for each allocation.
    "others-pool-kernel",
];
const WRITTEN: &[&str] = &[
    "pool-plain-put",
    "pool-mapped-put",
    "pool-exportable-put",
    "managed-plain-put",
    "pinned-plain-put",
    "private-others-put",
];
const PACKED: &[&str] = &[
    "pool-pool-slots",
    "managed-pool-slots",
    "pinned-managed-slots",
    "unexported-private-slots",
];
/// Where devices are not linked.
const APART: &[&str] = &[
    "plain-plain-host",
    "pool-exportable-host",
    "exportable-mapped-host",
    "mapped-managed-host",
    "managed-pinned-host",
    "pinned-pool-host",
    "others-unexported-host",
];

const SLOW_LINK: &str = r#"{ "format": 1, "costs": { "latency_ns": 250, "overhead_ns": 150,
    "copy_ns_per_byte": 0.1, "mapped_ns_per_byte": 0.06, "attach_call_ns": 2500,
    "attach_ns_per_byte": 0.08, "device": { "launch_ns": 6000, "copy_ns": 5000,
    "block_ns_per_byte": 0.1, "pack_ns_per_byte": [0.0007, 0.0009, 0.002],
    "to_host_ns_per_byte": 0.02, "to_device_ns_per_byte": 0.02,
    "peer_ns_per_byte": 0.02, "peer_block_ns_per_byte": 1.0 } } }"#;

fn cells(all: &[&[&'static str]]) -> Vec<&'static str> {
    [&["counted"], &all.concat()[..]].concat()
}

#[test]
fn memory_that_can_be_opened_is_copied_by_one_kernel() {
    if emulated() {
        for gpus in ["1", "2"] {
            mapped(gpus, &[], &cells(&[OPENED])).quiet();
        }
        mapped("1", &[], &["pieces"]).quiet();
    }
}

/// Blocks of a list are told in parts, once.
#[test]
fn long_lists_of_blocks_are_copied_by_one_kernel() {
    if emulated() {
        mapped("1", &[], &["listed", "plain", "kernel"]);
        mapped("2", &[], &["listed", "mapped", "kernel"]);
        let turns = [("OSIER_EMULATED_MPS", "0")];
        mapped("1", &turns, &["listed", "plain", "lower"]);
    }
}

/// Where processes take turns on a device, one of them works for both, and of what neither
/// can do for the other copy engines do what they can.
#[test]
fn processes_that_take_turns_leave_the_work_to_one_of_them() {
    if emulated() {
        let turns = [("OSIER_EMULATED_MPS", "0")];
        let lower = ["plain-plain-lower", "mapped-exportable-lower"];
        mapped("1", &turns, &cells(&[&lower, WRITTEN]));
        mapped("1", &turns, &["short", "turns"]).quiet();
        let mut sample = job(2, &["--emulate-gpus", "1"], &["matrix", "device", "sample"]);
        settings(&mut sample, &turns);
        finish(&mut sample).through(&[0, 1]).code(0);
        for (mps, kernels) in [("0", false), ("1", true)] {
            let mut runs = job(2, &["--emulate-gpus", "1"], &["mapped", "runs"]);
            settings(&mut runs, &[("OSIER_EMULATED_MPS", mps)]);
            let calls = driver_calls(&mut runs, &[0, 1]);
            let launched = calls.iter().any(|call| call.contains("cuLaunchKernel"));
            assert_eq!(launched, kernels, "{calls:?}");
        }
    }
}

/// Named once, with the cost; nothing crosses the host.
#[test]
fn memory_that_cannot_be_opened_is_written_from_or_packed_on_the_device() {
    if emulated() {
        for gpus in ["1", "2"] {
            let done = mapped(gpus, &[], &cells(&[WRITTEN, PACKED]));
            done.says("two kernels instead of one: its pool was not made to be exported")
                .says("managed memory moves");
        }
    }
}

/// Which way is chosen, by what is predicted to be quickest.
#[test]
fn short_message_takes_the_fastest_protocol() {
    if emulated() {
        mapped("1", &[], &["short", "bounced"]).quiet();
        let gdrcopy = [("OSIER_EMULATED_GDRCOPY", "1")];
        mapped("1", &gdrcopy, &["short", "BAR1 window"]).quiet();
        mapped("1", &[("device-eager", "0")], &["short", "announced"]);
        // Launches that are seen sooner than copies: kernels move runs.
        let costs = std::env::temp_dir().join(format!("osier-launch-{}", std::process::id()));
        let quick = SLOW_LINK.replace("6000, \"copy_ns\": 5000", "4000, \"copy_ns\": 7000");
        assert!(quick != SLOW_LINK);
        std::fs::write(&costs, quick).expect("a file");
        let quick = [("OSIER_COSTS", costs.to_str().expect("a path"))];
        mapped("1", &quick, &["short", "bounced"]).quiet();
        let _ = std::fs::remove_file(&costs);
    }
}

#[test]
fn slots_on_the_device_are_forced_and_forbidden() {
    if emulated() {
        // Two slots in all, with copies to the own device.
        let on = [("pipeline", "on"), ("device-slots", "512K")];
        mapped(
            "2",
            &on,
            &cells(&[&["plain-plain-slots", "exportable-plain-slots"]]),
        )
        .quiet();
        mapped("1", &on, &["edges", "unpacked"]);
        // A link over which kernels read blocks slowly.
        let costs = std::env::temp_dir().join(format!("osier-link-{}", std::process::id()));
        std::fs::write(&costs, SLOW_LINK).expect("a file");
        let slow = costs.to_str().expect("a path");
        mapped(
            "2",
            &[on[0], on[1], ("OSIER_COSTS", slow)],
            &["edges", "copied"],
        );
        let _ = std::fs::remove_file(&costs);
        let off = [("pipeline", "off")];
        mapped("1", &off, &cells(&[&["pool-pool-host", "pool-plain-put"]]))
            .says("pinned memory of the host");
    }
}

/// What cannot be had goes another way.
#[test]
fn what_the_driver_refuses_goes_through_the_host() {
    if emulated() {
        let apart = [("OSIER_EMULATED_LINKS", "none")];
        mapped("2", &apart, &cells(&[APART])).says("not linked");
        for (call, cell) in [
            ("cuMemExportToShareableHandle", "mapped-plain-host"),
            ("cuMemExportToShareableHandle", "pool-mapped-host"),
            (
                "cuMemPoolImportFromShareableHandle",
                "exportable-plain-host",
            ),
        ] {
            let fails: Vec<String> = (1..60).map(|n| format!("{call}:{n}")).collect();
            let fails = [
                ("OSIER_EMULATED_FAIL", &*fails.join(",")),
                ("OSIER_EMULATED_QUIET", "1"),
            ];
            mapped("1", &fails, &cells(&[&[cell]])).says("go through pinned memory");
        }
    }
}

/// Each rank sees a device of its own alone (`CUDA_VISIBLE_DEVICES`): the driver opens the
/// memory of the others all the same, or refuses once.
#[test]
fn devices_that_are_hidden_are_tried_once() {
    if !emulated() {
        return;
    }
    let hidden = |gpus: usize, variables: &[(&str, &str)], what: &[&str]| {
        let mut command = hidden_job(2, gpus, &[&["mapped"], what].concat());
        settings(&mut command, variables);
        let done = finish(&mut command);
        done.through(&[0, 1]).code(0);
        done
    };
    for cell in OPENED {
        hidden(2, &[], &cells(&[&[cell]])).quiet();
    }
    hidden(2, &[], &cells(&[OPENED, WRITTEN, PACKED])).says("two kernels instead of one");
    // Each cell is the first message of a job, and all of them follow each other.
    let closed = [("OSIER_EMULATED_HIDDEN", "closed")];
    for cell in APART {
        hidden(2, &closed, &cells(&[&[cell]]));
    }
    hidden(2, &closed, &cells(&[APART])).says("go through pinned memory");
    // Two slices of one GPU: one place on the bus, nothing shared.
    let slices = [("OSIER_EMULATED_MIG", "2")];
    hidden(1, &slices, &cells(&[APART])).says("go through pinned memory");
}

#[test]
fn a_launch_that_is_refused_harms_its_message_alone() {
    if emulated() {
        let fails = [
            ("OSIER_EMULATED_FAIL", "cuLaunchKernel:2,cuLaunchKernel:5"),
            ("OSIER_EMULATED_QUIET", "1"),
        ];
        for [from, to] in [["plain", "pool"], ["pool", "plain"], ["pool", "pool"]] {
            mapped("1", &fails, &["refused", from, to]);
        }
    }
}

#[test]
fn a_receive_is_dropped_that_its_sender_writes() {
    if emulated() {
        mapped("1", &[], &["dropped", "pool", "plain"]).quiet();
        mapped("1", &[], &["dropped", "pool", "pool"]);
    }
}

/// Two ranks with one process number, each in a namespace of its own.
#[test]
fn descriptors_cross_namespaces_of_processes() {
    let allowed = std::process::Command::new("unshare")
        .args(["-Urpf", "true"])
        .status();
    if !emulated() {
        return;
    }
    if !allowed.is_ok_and(|status| status.success()) {
        return support::needs::missing("namespaces", "unshare -Urpf fails");
    }
    let run = |from: &str, way: &str| {
        let mut command = std::process::Command::new(support::launcher());
        command
            .args(["run", "-n", "2", "--emulate-gpus", "1", "--"])
            .args(["unshare", "-Urpf", "--kill-child", EXERCISE])
            .args(["mapped", "counted", &format!("{from}-pool-{way}")])
            .env_remove("OSIER_SHM_LIMIT");
        let done = finish(&mut command);
        done.through(&[0, 1]).code(0);
        done
    };
    run("mapped", "kernel").quiet();
    run("exportable", "kernel").quiet();
    run("others", "kernel").quiet();
    run("plain", "slots").says("namespace");
}

#[test]
fn an_address_that_is_used_again_does_not_meet_the_old_memory() {
    if emulated() {
        mapped("1", &[("OSIER_EMULATED_ADDRESSES", "reused")], &["again"]).quiet();
    }
}

/// A message that is never over must not keep what is stale open.
#[test]
fn an_address_is_used_again_under_steady_traffic() {
    if emulated() {
        let mut command = job(3, &["--emulate-gpus", "1"], &["mapped", "steady"]);
        settings(&mut command, &[("OSIER_EMULATED_ADDRESSES", "reused")]);
        finish(&mut command).through(&[0, 1, 2]).code(0).quiet();
    }
}

/// Whatever the driver makes only when no stream is held was made before.
#[test]
fn first_messages_come_behind_held_streams() {
    if emulated() {
        mapped("1", &[("OSIER_EMULATED_WAITS", "all")], &["first"]).quiet();
        mapped("2", &[("OSIER_EMULATED_WAITS", "all")], &["first"]).quiet();
        // Slots of the host, which each process has to register.
        let unlinked = [
            ("OSIER_EMULATED_WAITS", "all"),
            ("OSIER_EMULATED_LINKS", "none"),
        ];
        mapped("2", &unlinked, &["first"]);
    }
}

/// A driver takes about 1,000 works that wait in a stream: calls that have it wait for more than
/// 128 operations wait themselves, and that is reported once.
#[test]
fn calls_wait_while_a_stream_of_a_process_is_full() {
    if emulated() {
        let done = mapped("1", &[], &["deep"]);
        done.says("waits for 128 operations");
        assert_eq!(done.stderr.matches("waits for 128 operations").count(), 1);
    }
}

#[test]
fn mappings_are_bounded() {
    if emulated() {
        for most in ["0", "1", "2", "4"] {
            mapped("1", &[("device-mappings", most)], &["limit", most]);
        }
        mapped("1", &[("device-mapped", "250000")], &["limit", "2"]);
    }
}

#[test]
fn two_processes_export_to_each_other_at_once() {
    if emulated() {
        for (gpus, made) in [
            ("1", "exportable"),
            ("1", "pool"),
            ("2", "plain"),
            ("2", "pool"),
        ] {
            mapped(gpus, &[], &["both", made]);
        }
    }
}

/// With events of processes, and where these cannot be had.
#[test]
fn late_producer_delays_no_other_message() {
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
        for [from, to] in [["plain", "plain"], ["pool", "plain"], ["pool", "pool"]] {
            let options = ["--on-death", "report", "--emulate-gpus", "1"];
            finish(&mut job(2, &options, &["mapped", "dies", when, from, to]))
                .says("rank 1 of 2")
                .through(&[0])
                .code(137);
        }
    }
}
