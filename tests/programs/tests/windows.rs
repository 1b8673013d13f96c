//! Windows of processes: how they are reached, exact counters with more ranks than cores, targets
//! that are stopped, holders of locks that are killed.

mod support;

use support::{emulated, finish, job};

#[test]
fn counters_of_more_ranks_than_cores_end_exact() {
    for ranks in [2, 8] {
        let done = finish(&mut job(ranks, &[], &["windows", "counters", "200"]));
        let all: Vec<usize> = (0..ranks).collect();
        done.through(&all).code(0);
    }
}

/// Ranks that are threads of two processes count, too.
#[test]
fn counters_of_threads_and_processes_end_exact() {
    let options = ["--ranks-per-process", "2"];
    let done = finish(&mut job(
        4,
        &options,
        &["run", "windows", "counters", "100"],
    ));
    done.through(&[0, 1, 2, 3]).code(0);
}

#[test]
fn parts_are_reached_by_what_there_is() {
    let what = ["windows", "reach", "address", "cross-memory attach"];
    finish(&mut job(2, &[], &what)).through(&[0, 1]).code(0);
}

/// With a core for each rank, and with more ranks than cores.
#[test]
fn owners_that_wait_serve_short_accesses() {
    for ranks in [2, 4] {
        let all: Vec<usize> = (0..ranks).collect();
        let done = finish(&mut job(ranks, &[], &["windows", "served"]));
        done.through(&all).code(0);
    }
}

#[test]
fn layouts_with_gaps_go_to_plain_memory() {
    let done = finish(&mut job(2, &[], &["windows", "gaps"]));
    done.through(&[0, 1]).code(0);
}

/// What is delayed goes by messages.
#[test]
fn delayed_accesses_are_messages() {
    let what = ["windows", "reach", "messages", "messages"];
    let options = ["--delay", "200us"];
    finish(&mut job(2, &options, &what))
        .through(&[0, 1])
        .code(0);
    let what = ["windows", "counters", "5"];
    let options = ["--delay", "20us"];
    finish(&mut job(3, &options, &what))
        .through(&[0, 1, 2])
        .code(0);
}

#[test]
fn a_stopped_target_keeps_nobody_waiting() {
    let done = finish(&mut job(2, &[], &["windows", "stopped"]));
    done.through(&[0, 1]).code(0);
}

#[test]
fn locks_of_a_killed_rank_are_released() {
    let options = ["--on-death", "report"];
    let done = finish(&mut job(3, &options, &["windows", "killed"]));
    done.through(&[0, 2]);
}

/// Jobs of `device-windows`, by ranks, devices and ranks of a process, with links if they are named.
fn device_windows(jobs: &[(usize, &str, &str, &str)], more: &[&str]) {
    device_windows_of(jobs, more, &["device-windows"], "");
}

/// `waits`: that of `OSIER_EMULATED_WAITS`.
fn device_windows_of(
    jobs: &[(usize, &str, &str, &str)],
    more: &[&str],
    what: &[&str],
    waits: &str,
) {
    if !emulated() {
        return;
    }
    for &(ranks, gpus, each, links) in jobs {
        let all: Vec<usize> = (0..ranks).collect();
        let options = ["--emulate-gpus", gpus, "--ranks-per-process", each];
        let options = [&options[..], more].concat();
        let ways = match each {
            "1" => &[][..],
            _ => &["run"],
        };
        let mut command = job(ranks, &options, &[ways, what].concat());
        command.env("OSIER_EMULATED_WAITS", waits);
        if !links.is_empty() {
            command.env("OSIER_EMULATED_LINKS", links);
        }
        finish(&mut command).through(&all).code(0);
    }
}

/// Where no device reaches another all goes through pinned memory.
#[test]
fn parts_on_devices_that_are_not_linked_are_used_by_the_host() {
    device_windows(&[(2, "2", "1", "none"), (4, "2", "2", "none")], &[]);
}

/// What is delayed reaches no device of another process: owners serve.
#[test]
fn parts_on_devices_of_ranks_elsewhere_are_served() {
    let jobs = [
        (2, "1", "1", ""),
        (3, "2", "1", ""),
        (4, "2", "2", "none"),
        (4, "2", "2", "switch:4"),
    ];
    device_windows(&jobs, &["--delay", "10us"]);
}

/// A stream that puts to a part whose owner serves it goes on when that dies.
#[test]
fn streams_outlive_the_owners_of_parts() {
    if !emulated() {
        return;
    }
    let options = ["--emulate-gpus", "1", "--delay", "10us"];
    let options = [&options[..], &["--on-death", "report"]].concat();
    let done = finish(&mut job(2, &options, &["device-windows", "killed"]));
    done.through(&[0]);
}

/// What a thread does for streams, and what owners serve meanwhile, makes nothing that waits for these.
#[test]
fn streams_are_the_first_to_use_parts() {
    let first = &["device-windows", "first"];
    let jobs = [(2, "1", "1", ""), (2, "2", "1", "none")];
    device_windows_of(&jobs, &[], first, "all");
    device_windows_of(&jobs, &["--delay", "10us"], first, "all");
    device_windows_of(&[(4, "2", "2", "none")], &[], first, "all");
}

/// Of one device and of two, processes and threads.
#[test]
fn parts_on_devices_are_used_by_kernels() {
    // A bus between devices has no atomics; a switch of NVLinks has.
    let jobs = [
        (2, "1", "1", ""),
        (3, "2", "1", ""),
        (4, "2", "2", ""),
        (3, "2", "1", "switch:4"),
        (4, "2", "2", "switch:4"),
    ];
    device_windows(&jobs, &[]);
}
