//! Allreduces that are one kernel of each rank, in jobs of real processes, and of threads.

mod support;

use support::{Done, emulated, finish, hidden_job, job};

/// A job of ranks with a device each.
fn passes(ranks: usize, what: &str) {
    let gpus = ranks.to_string();
    let all: Vec<usize> = (0..ranks).collect();
    let options = ["--emulate-gpus", &gpus];
    finish(&mut job(ranks, &options, &["one-kernel", what]))
        .through(&all)
        .code(0);
}

/// As threads of one process.
fn passes_in_threads(ranks: usize, what: &str) {
    let (gpus, all): (_, Vec<usize>) = (ranks.to_string(), (0..ranks).collect());
    let options = ["--emulate-gpus", &gpus, "--ranks-per-process", &gpus];
    finish(&mut job(ranks, &options, &["run", "one-kernel", what]))
        .through(&all)
        .code(0);
}

#[test]
fn reductions_of_all_lengths_are_one_kernel() {
    if emulated() {
        passes(2, "sizes");
        passes(5, "sizes");
        passes_in_threads(3, "sizes");
    }
}

/// Where each rank sees its own device alone.
#[test]
fn hidden_devices_reduce_in_one_kernel() {
    if emulated() {
        finish(&mut hidden_job(3, 3, &["one-kernel", "sizes"]))
            .through(&[0, 1, 2])
            .code(0);
    }
}

#[test]
fn memory_that_lies_elsewhere_goes_through_pinned_memory() {
    if emulated() {
        passes(3, "memory");
        passes_in_threads(4, "memory");
    }
}

#[test]
fn streams_wait_for_ranks_in_the_kernel() {
    if emulated() {
        passes(2, "enqueued");
        passes_in_threads(4, "enqueued");
    }
}

#[test]
fn calls_that_fail_or_differ_are_named() {
    if emulated() {
        passes(2, "failures");
        passes(3, "failures");
    }
}

#[test]
fn ranks_that_share_a_device_do_not() {
    if emulated() {
        finish(&mut job(
            3,
            &["--emulate-gpus", "2"],
            &["one-kernel", "shared"],
        ))
        .through(&[0, 1, 2])
        .code(0);
    }
}

#[test]
fn kernels_do_not_wait_for_a_rank_that_died() {
    if emulated() {
        let options = ["--on-death", "report", "--emulate-gpus", "3"];
        finish(&mut job(3, &options, &["one-kernel", "death"]))
            .says("rank 2 of 3")
            .through(&[0, 1])
            .code(134);
    }
}

#[test]
fn a_kernel_that_waits_long_is_reported() {
    if emulated() {
        let mut command = job(2, &["--emulate-gpus", "2"], &["one-kernel", "late"]);
        let done: Done = finish(command.env("OSIER_STALL", "1s"));
        done.through(&[0, 1])
            .says("rank 0 has waited for 1")
            .says("receive, peer 1, tag collective")
            .code(0);
    }
}

#[test]
fn graphs_reduce_without_the_host() {
    if emulated() {
        passes(2, "captured");
        passes_in_threads(3, "captured");
    }
}

#[test]
fn graphs_do_not_wait_for_a_rank_that_died() {
    if emulated() {
        let options = ["--on-death", "report", "--emulate-gpus", "3"];
        finish(&mut job(3, &options, &["one-kernel", "captured-death"]))
            .says("rank 2 of 3")
            .through(&[0, 1])
            .code(134);
    }
}
