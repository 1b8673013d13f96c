//! Jobs that stand still beside threads outside Osier: those that will for ever are said to
//! hang probably, and those that only look so are not.

mod support;

use osier_kernels::debug::Debug as _;
use std::sync::Mutex;
use support::{Done, finish, job};

/// How long a job stands still here before it probably hangs. The programs that only look
/// stuck stand still for six times as long.
const PATIENCE: (&str, &str) = ("probable-hang", "300ms");

/// What rank 0 sleeps in, with a part of the report.
const STUCK: &[(&str, &str)] = &[
    ("park", "(helper) sleeps outside Osier: futex 0x"),
    ("both", "rank 1: thread "),
    ("mutex", "(helper) sleeps outside Osier: futex 0x"),
    ("condition", "(helper) sleeps outside Osier: futex 0x"),
    ("channel", "(helper) sleeps outside Osier: futex 0x"),
    ("scope", "(exercise) sleeps outside Osier: futex 0x"),
    ("join", "(exercise) sleeps outside Osier: futex 0x"),
    ("pool", "sleeps outside Osier: futex 0x"),
    ("barrier", "sleeps outside Osier: futex 0x"),
    ("semaphore", "(helper) sleeps outside Osier: futex 0x"),
    ("rwlock", "(helper) sleeps outside Osier: futex 0x"),
    ("once", "sleeps outside Osier: futex 0x"),
    ("priority-mutex", "(helper) sleeps outside Osier: futex 0x"),
    (
        "epoll",
        "(helper) sleeps outside Osier: epoll of descriptor ",
    ),
    ("epoll-pair", "(helper) sleeps outside Osier: epoll of"),
    ("generalized", "generalized request"),
    ("pready", "pready"),
    ("future", "futex 0x"),
    ("collective-future", "collective"),
    ("silent", "(exercise) sleeps outside Osier: futex 0x"),
    ("all-silent", "rank 1: thread "),
];

/// What comes late.
const LOOKS_STUCK: &[&str] = &[
    "sleep",
    "compute",
    "time-out",
    "ticks",
    "timer-thread",
    "mutex-of-computing",
    "join-computing",
    "threads",
    "timerfd",
    "epoll-timerfd",
    "signalfd",
    "pipe-ranks",
    "pipe-child",
    "wait-child",
    "poll",
    "epoll-pipe",
    "epoll-pair-of-child",
    "socket",
    "flock",
    "fcntl-lock",
    "eventfd-of-child",
    "epoll-eventfd-of-child",
    "shared-futex",
    "semaphores-of-system-v",
    "sigwait",
    "signal-handler",
    "alarm",
    "posix-timer",
    "traced",
    "other-job",
    "stop",
    "future-of-time",
    "future-beside-timer",
    "future-of-computing-peer",
    "peer-computes",
    "silent-sleep",
    "silent-compute",
    "silent-time-out",
    "silent-timer-thread",
    "silent-join-computing",
    "silent-pipe-child",
    "silent-wait-child",
    "silent-shared-futex",
    "silent-signal-handler",
    "silent-epoll-eventfd-of-child",
];

/// Runs all, several at a time; what went wrong.
fn each<T: Sync>(all: &[T], run: impl Fn(&T) -> Option<String> + Sync) -> Vec<String> {
    let next = Mutex::new(all.iter());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                while let Some(one) = { next.lock().expect("sound").next() } {
                    let found = run(one);
                    wrong.lock().expect("sound").extend(found);
                }
            });
        }
    });
    wrong.into_inner().expect("sound")
}

fn wrong(what: &str, done: &Done) -> String {
    let Done { code, stderr, .. } = done;
    format!("{what}: {code:?}\n{stderr}")
}

fn still(options: &[&str], what: &[&str]) -> Done {
    let options = [&["--timeout", "100"], options].concat();
    finish(job(2, &options, what).debug(PATIENCE.0, PATIENCE.1))
}

#[test]
fn jobs_that_are_stuck_beside_sleeping_threads_probably_hang() {
    let wrongs = each(STUCK, |(how, part)| {
        let done = still(&["--on-hang", "kill-probable"], &["stuck", how]);
        let said = done.stderr.matches("the job probably hangs").count();
        let right = done.code == Some(125) && said == 1 && done.stderr.contains(part);
        (!right).then(|| wrong(how, &done))
    });
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

#[test]
fn jobs_that_only_look_stuck_are_left_alone() {
    let wrongs = each(LOOKS_STUCK, |how| {
        let done = still(&["--on-hang", "kill-probable"], &["looks-stuck", how]);
        let right = done.code == Some(0) && done.stderr.is_empty();
        let through = done.stdout.matches("is through").count() == 2;
        (!right || !through).then(|| wrong(how, &done))
    });
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

#[test]
fn ranks_that_share_a_process_are_asleep_together() {
    let options = ["--on-hang", "kill-probable", "--ranks-per-process", "2"];
    still(&options, &["run", "stuck", "park"])
        .code(125)
        .says("the job probably hangs")
        .says("rank 0: thread ")
        .says("rank 1: thread ");
}

/// A rank that died is named, and `kill` leaves a job alone that only probably hangs.
#[test]
fn a_probable_hang_names_failed_ranks_and_is_not_killed_by_kill() {
    let mut command = job(
        3,
        &[
            "--on-death",
            "report",
            "--on-hang",
            "kill",
            "--timeout",
            "3",
        ],
        &["stuck", "failed"],
    );
    finish(command.debug(PATIENCE.0, PATIENCE.1))
        .says("the job probably hangs")
        .says("  rank 1 has failed (signal 9)\n")
        .says("--timeout")
        .code(124);
}

#[test]
fn the_time_to_a_probable_hang_can_be_set_and_switched_off() {
    let options = ["--on-hang", "kill-probable", "--timeout", "2"];
    let mut off = job(2, &options, &["stuck", "park"]);
    let done = finish(off.debug(PATIENCE.0, "off"));
    done.code(124);
    assert!(!done.stderr.contains("probably"), "{}", done.stderr);
    let mut bad = job(2, &[], &["stuck", "park"]);
    finish(bad.debug(PATIENCE.0, "soon"))
        .code(2)
        .says(PATIENCE.0);
}
