//! The report of hangs knows every call that blocks. The sources say which there are: every
//! function that waits is in [`WAITS`], with programs that block in it for ever, and each of
//! these is reported with the name of its operation.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use support::{Done, finish, job};

/// A function that waits, by file and name, and what shows that its waits are reported.
type Wait = (&'static str, &'static str, Shown);

enum Shown {
    /// Programs of `exercise blocks` that block there, with the line of the report.
    By(&'static [(&'static str, &'static str)]),
    /// No wait there can last while all ranks wait inside Osier.
    Ends(&'static str),
    /// What it waits for is told by others.
    Told(&'static str),
}

use Shown::{By, Ends, Told};

const WAITS: &[Wait] = &[
    (
        "src/p2p/blocking.rs",
        "probe",
        By(&[("probe", "0 probe 1 7 world")]),
    ),
    (
        "src/p2p/blocking.rs",
        "mprobe",
        By(&[("mprobe", "0 probe 1 7 world")]),
    ),
    (
        "src/p2p/started.rs",
        "wait_long",
        By(&[
            ("recv", "0 receive 1 7 world 8"),
            ("recv-any", "0 receive any any world 8"),
            ("recv-vec", "0 probe 1 7 world"),
            ("send", "0 send 1 7 world 8388608"),
            ("ssend", "0 synchronous send 1 7 world 8"),
            ("sendrecv", "0 receive 1 7 world 8"),
            ("sendrecv-replace", "0 receive 1 7 world 8"),
            ("request", "0 receive 1 7 world 8"),
            ("exchange", "0 receive 1 7 world 8"),
            ("wait-all", "0 receive 1 7 world 8"),
            ("persistent", "0 receive 1 7 world 8"),
            ("scoped-request", "0 receive 1 7 world 8"),
        ]),
    ),
    (
        "src/p2p/started.rs",
        "wait_many",
        By(&[("scope", "0 receive 1 7 world 8")]),
    ),
    (
        "src/p2p/blocking.rs",
        "revoke_raw",
        Ends("a peer that waits inside Osier answers"),
    ),
    (
        "src/p2p/waits.rs",
        "wait_one",
        By(&[
            ("wait-any", "0 receive 1 7 world 8"),
            ("wait-some", "0 receive 1 7 world 8"),
            ("first-over", "0 receive 1 7 world 8"),
            ("pready-any", "0 pready 1 3 world 64"),
            ("generalized-any", "0 generalized request any any world"),
            ("iflush-any", "0 buffered send 1 7 world 8388608"),
        ]),
    ),
    (
        "src/p2p/waitset.rs",
        "wait",
        By(&[
            ("set", "0 receive 1 7 world 8"),
            ("precv-set", "0 partitioned receive 1 3 world 64"),
        ]),
    ),
    (
        "src/p2p/partitioned/mod.rs",
        "wait",
        By(&[
            ("pready", "0 pready 1 3 world 16"),
            ("psend", "0 partitioned send 1 3 world 8388608"),
            ("precv", "0 partitioned receive 1 3 world 64"),
            ("precv-unready", "0 partitioned receive 1 3 world 16"),
        ]),
    ),
    (
        "src/p2p/partitioned/send.rs",
        "complete",
        By(&[("scoped-psend", "0 partitioned send 1 3 world 8388608")]),
    ),
    (
        "src/p2p/partitioned/recv.rs",
        "complete",
        By(&[("scoped-precv", "0 partitioned receive 1 3 world 8")]),
    ),
    (
        "src/p2p/enqueue.rs",
        "synchronize",
        Told("a device may do anything: OSIER_STALL tells"),
    ),
    (
        "src/p2p/enqueue.rs",
        "wait",
        Told("a device may do anything: OSIER_STALL tells"),
    ),
    (
        "src/coll/one_kernel.rs",
        "await_exchanged",
        Ends("all ranks launch the same kernels in the same call, or say that they cannot"),
    ),
    (
        "src/p2p/enqueue/once.rs",
        "make_room",
        Told("a device may do anything: OSIER_STALL tells"),
    ),
    (
        "src/p2p/generalized.rs",
        "wait",
        By(&[("generalized", "0 generalized request any any world")]),
    ),
    (
        "engine/src/progress/attached.rs",
        "detach",
        By(&[("detach", "0 buffered send 1 7 world 8388608")]),
    ),
    (
        "engine/src/progress/attached.rs",
        "flush",
        By(&[("flush", "0 buffered send 1 7 world 8388608")]),
    ),
    (
        "src/p2p/buffered.rs",
        "wait",
        By(&[("iflush", "0 buffered send 1 7 world 8388608")]),
    ),
    (
        "src/p2p/request.rs",
        "block_on",
        Told("a future may wait for anything: OSIER_STALL, in hangs.rs"),
    ),
    (
        "src/comm/mod.rs",
        "flush_sends",
        By(&[("flush-sends", "0 send 1 7 world 8388608")]),
    ),
    (
        "src/comm/sends.rs",
        "finish",
        Ends("the receivers take them in the same call, from which they have come already"),
    ),
    (
        "src/comm/meeting.rs",
        "receive",
        By(&[
            ("session", "0 receive 1 collective -"),
            ("two-sessions", "0 receive 1 collective -"),
        ]),
    ),
    (
        "src/comm/meeting.rs",
        "sort",
        Ends("its sender has begun to send, and waits inside Osier"),
    ),
    (
        "src/create/agreement.rs",
        "wait",
        By(&[
            ("agree", "0 receive 1 collective world"),
            ("shrink", "0 receive 1 collective world"),
        ]),
    ),
    (
        "src/create/topology.rs",
        "next_of_any",
        Ends("its senders were counted before, in the same call"),
    ),
    (
        "src/coll/mod.rs",
        "await_run",
        By(&[
            ("barrier", "0 receive 1 collective world"),
            ("split", "0 receive 1 collective world"),
            ("graph", "0 receive 1 collective world"),
        ]),
    ),
    (
        "src/coll/mod.rs",
        "drop",
        Ends("a call that is given up waits for nobody"),
    ),
    (
        "src/coll/in_flight.rs",
        "wait",
        By(&[
            ("ibarrier", "0 receive 1 collective world"),
            ("scoped-barrier", "0 receive 1 collective world"),
            ("persistent-barrier", "0 receive 1 collective world"),
        ]),
    ),
    (
        "src/coll/in_flight.rs",
        "give_up_collective",
        Ends("a call that is given up waits for nobody"),
    ),
    (
        "tasks/src/linked.rs",
        "work",
        By(&[("tasks", "0 task 1 -")]),
    ),
    (
        "tasks/src/linked.rs",
        "end",
        Ends("ranks that wait take messages of edges"),
    ),
    (
        "tasks/src/stacks.rs",
        "run",
        Told("the worker of virtual ranks: each that waits is told"),
    ),
    (
        "src/bootstrap/virtual_ranks.rs",
        "drive",
        Told("the future of a virtual rank: what it awaits is told"),
    ),
    (
        "engine/src/rma/mod.rs",
        "each",
        Ends("a transport ends its accesses without the peer"),
    ),
    (
        "engine/src/rma/mod.rs",
        "await_answer",
        Ends("an owner is in the middle of a copy, or has ended"),
    ),
    (
        "engine/src/rma/mod.rs",
        "await_change",
        By(&[("wait-until", "0 wait until - -")]),
    ),
    (
        "engine/src/rma/mod.rs",
        "await_lock",
        By(&[("window-lock", "0 window lock 1 -")]),
    ),
    (
        "src/one_sided/combined.rs",
        "write_kept",
        Ends("another thread's writes end without the peer"),
    ),
    (
        "src/one_sided/device.rs",
        "loan",
        Ends("the transfer that has the memory ends without the peer"),
    ),
    (
        "src/one_sided/device.rs",
        "run",
        Ends("a kernel or a copy of a device ends without the peer"),
    ),
    (
        "src/one_sided/device.rs",
        "settle_enqueued",
        Ends("the work of a stream ends without the peer"),
    ),
    (
        "src/one_sided/requests.rs",
        "settle",
        Ends("an owner that computes has a thread that serves accesses"),
    ),
    (
        "src/one_sided/requests.rs",
        "wait",
        Ends("an owner that computes has a thread that serves accesses"),
    ),
    (
        "src/one_sided/streams.rs",
        "enqueue_by_thread",
        Ends("accesses that streams wait for end, with an error if their owner has died"),
    ),
    (
        "src/comm/member.rs",
        "drop",
        Told("the barrier of a window that was dropped: its messages are told"),
    ),
    (
        "engine/src/progress/core.rs",
        "flush",
        By(&[("finalize", "0 send 1 7 world 8388608")]),
    ),
    (
        "engine/src/progress/core.rs",
        "drive",
        Told("the progress thread: who waits for it is told"),
    ),
    (
        "engine/src/progress/core.rs",
        "progress_thread",
        Told("the progress thread, while there is nothing to do"),
    ),
    (
        "engine/src/progress/enqueued.rs",
        "watch_others",
        Told("the progress thread: what streams and futures wait for"),
    ),
];

/// How a thread gives itself up to the system in `src`. The waiting primitives are in
/// `progress/core/waiting.rs`; everything that does not use them is in [`WAITS`] or below.
const PRIMITIVES: &[&str] = &[
    ".wait_on(",
    ".wait_until(",
    ".wait_for_tasks(",
    ".drive(",
    ".sleep(",
    "Watch::new(",
    ".wait_timeout(",
    ".wait_while(",
    "Condvar::new",
    "thread::sleep",
    "thread::park",
    "park_timeout(",
    ".recv()",
    ".recv_timeout(",
    "libc::poll",
    "libc::ppoll",
    "libc::read(",
    "Barrier::new",
];

/// Files that may use them for anything.
const APART: &[&str] = &[
    "engine/src/progress/core/waiting.rs", // the primitives themselves
    "src/testing/",                        // what tests use
];

/// Uses that are no waits, or of processes that are no ranks.
const NO_WAIT: &[(&str, &str)] = &[
    ("engine/src/progress/core.rs", "new"),
    ("tasks/src/linked.rs", "begin"),    // watches calls
    ("src/measure/attach.rs", "live"),   // a child process of a measurement
    ("src/one_sided/far.rs", "run"),     // a thread that serves
    ("src/one_sided/streams.rs", "run"), // a thread that makes accesses
    ("src/one_sided/team.rs", "watch"),  // a thread that looks every few ms
];

fn sources(folder: &Path, to: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            sources(&path, to);
        } else if path.extension().is_some_and(|e| e == "rs") {
            to.push(path);
        }
    }
}

/// The name of the function that a line declares.
fn declared(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let at = words.find("fn ")?;
    let before = words[..at].trim();
    let qualified = before.split_whitespace().all(|w| {
        w.starts_with("pub") || w.ends_with(')') || ["const", "unsafe", "async"].contains(&w)
    });
    let name = &words[at + 3..];
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (qualified && end > 0).then(|| &name[..end])
}

/// Functions that call a primitive, by file and name.
fn waiting() -> BTreeSet<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("engine/src"), &mut files);
    sources(&root.join("tasks/src"), &mut files);
    let mut found = BTreeSet::new();
    for path in files {
        let name = path.strip_prefix(&root).expect("inside").to_string_lossy();
        if APART.iter().any(|apart| name.starts_with(apart)) || name.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let mut function = String::new();
        for line in text.lines() {
            if line.trim() == "mod tests {" {
                break;
            }
            if line.trim_start().starts_with("//") {
                continue;
            }
            if let Some(name) = declared(line) {
                function = name.to_owned();
            }
            if PRIMITIVES.iter().any(|p| line.contains(p)) {
                found.insert((name.to_string(), function.clone()));
            }
        }
    }
    found
}

#[test]
fn the_table_has_every_function_that_waits() {
    let found = waiting();
    let is = |file: &str, function: &str, (f, n): &(String, String)| f == file && n == function;
    for (file, function, _) in WAITS {
        let there = found.iter().any(|found| is(file, function, found));
        assert!(there, "{file}: {function} waits no more: take it off WAITS");
    }
    for found in &found {
        let known = WAITS.iter().any(|(f, n, _)| is(f, n, found));
        let exempt = NO_WAIT.iter().any(|(f, n)| is(f, n, found));
        assert!(
            known || exempt,
            "{}: {} waits, and WAITS does not have it: add it, with a program that blocks there",
            found.0,
            found.1
        );
    }
}

#[test]
fn functions_are_found_by_their_declarations() {
    assert_eq!(declared("    pub fn wait(self) {"), Some("wait"));
    assert_eq!(declared("pub(crate) fn a<R>(f: impl Fn()) {"), Some("a"));
    assert_eq!(declared("    let x = f(|fn_| fn_ + 1);"), None);
    assert_eq!(declared("    f: fn (u32),"), None);
    assert!(waiting().len() > 20);
}

/// The line of the report that begins so, columns apart by one space.
fn has_line(done: &Done, start: &str) -> bool {
    let squeeze = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
    done.stderr.lines().any(|l| squeeze(l).starts_with(start))
}

#[test]
fn every_call_that_blocks_is_reported_by_its_name() {
    let mut programs = Vec::new();
    for (_, _, shown) in WAITS {
        match shown {
            By(these) => programs.extend(these.iter()),
            Ends(why) | Told(why) => assert!(!why.is_empty()),
        }
    }
    let next = Mutex::new(programs.iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                while let Some((program, line)) = { next.lock().expect("sound").next() } {
                    let done = finish(&mut job(
                        2,
                        &["--on-hang", "kill", "--timeout", "60"],
                        &["blocks", program],
                    ));
                    let said = done.stderr.matches("the job hangs").count();
                    if done.code != Some(125) || said != 1 || !has_line(&done, line) {
                        let what = (program, line, done.code, done.stderr);
                        failed.lock().expect("sound").push(what);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("sound");
    assert!(failed.is_empty(), "{failed:#?}");
}
