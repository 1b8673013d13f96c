//! Whether a thread may make a call: `--check threads`.
//!
//! ```text
//! a call begins          -> does the level of MPI_Init_thread allow it?
//! a communicator is freed -> is another thread in a call on it?
//! MPI_Finalize           -> the main thread? as many threads as the level allows?
//! ```
//!
//! # Invariants
//! 1. The list of calls is not locked while something is reported, or the program runs.
//! 2. Every call that begins while this is checked is in the list until it returns, also
//!    one that any thread may make: a call that returns takes out its own entry.
//!
//! # Sources
//! MPI 5.0, section 11.6 (MPI and threads).

use crate::abi::*;
use crate::call::On;
use crate::leaks;
use crate::objects::lock;
use crate::state;
use osier_engine::check::{Check, Checks, Site};
use std::panic::Location;
use std::sync::Mutex;
use std::thread::ThreadId;

/// A call that a thread is in.
struct Call {
    thread: ThreadId,
    /// `None` of a call that any thread may make at any time.
    bound: Option<Bound>,
}

/// A call that the thread level allows, or does not.
struct Bound {
    /// Null of a call that has no communicator.
    comm: Handle,
    site: Site,
}

/// The last one of a thread is the innermost.
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// Beginnings of the names of calls without a communicator that the thread level binds.
const BOUND: [&str; 4] = ["MPI_Wait", "MPI_Test", "MPI_Start", "MPI_Finalize"];

fn checks() -> Option<&'static Checks> {
    leaks::checks().filter(|checks| checks.has(Check::Threads))
}

/// A call begins.
pub fn enters(name: &str, on: On) {
    let Some(checks) = checks() else {
        return;
    };
    let is_bound = state::is_initialised() && !state::is_finalised();
    let comm = match on {
        On::Comm(handle) if is_bound => Some(handle),
        On::Own if is_bound && BOUND.iter().any(|bound| name.starts_with(bound)) => {
            Some(MPI_COMM_NULL)
        }
        _ => None,
    };
    let thread = std::thread::current().id();
    let is_other = |call: &Call| call.thread != thread && call.bound.is_some();
    let bound = comm.map(|comm| Bound {
        comm,
        site: here(checks),
    });
    let mut calls = lock(&CALLS);
    let others = bound.is_some() && calls.iter().any(is_other);
    calls.push(Call { thread, bound });
    drop(calls);
    if comm.is_some() {
        check_level(checks, others);
        if name == "MPI_Finalize" {
            check_finalize(checks);
        }
    }
}

/// The innermost call of this thread returns.
pub fn returns() {
    if checks().is_none() {
        return;
    }
    let own = std::thread::current().id();
    let mut calls = lock(&CALLS);
    // None of `MPI_Init`: nothing was checked when it began.
    if let Some(at) = calls.iter().rposition(|call| call.thread == own) {
        calls.remove(at);
    }
}

/// A communicator is freed; whether another thread is in a call on it, which is reported.
pub fn frees(handle: Handle) -> bool {
    let Some(checks) = checks() else {
        return false;
    };
    let own = std::thread::current().id();
    let calls = lock(&CALLS);
    let mut others = calls.iter().filter(|call| call.thread != own);
    let used = others.find_map(|call| call.bound.as_ref().filter(|bound| bound.comm == handle));
    let used = used.map(|bound| bound.site.to_string());
    drop(calls);
    let Some(used) = used else {
        return false;
    };
    let site = here(checks);
    let text = format!(
        "a communicator is freed while another thread makes a call on it\n  freed at {site}\n  the other call at {used}\n  (hint: let the threads meet before the communicator is freed)\n"
    );
    checks.report(Check::Threads, text);
    true
}

/// Reports a call that the thread level does not allow now.
fn check_level(checks: &Checks, others: bool) {
    let main_only = "a thread that is not the main one makes a call";
    let (what, level) = match state::level() {
        MPI_THREAD_SINGLE if !state::is_main() => (main_only, "MPI_THREAD_SINGLE"),
        MPI_THREAD_FUNNELED if !state::is_main() => (main_only, "MPI_THREAD_FUNNELED"),
        MPI_THREAD_SERIALIZED if others => (
            "two threads are in calls at the same time",
            "MPI_THREAD_SERIALIZED",
        ),
        _ => return,
    };
    let site = here(checks);
    let text = format!(
        "{what}, and MPI was initialised with {level}\n  called at {site}\n  (hint: MPI_Init_thread with the level that the program needs)\n"
    );
    checks.report(Check::Threads, text);
}

/// Whether the thread may end MPI, and whether the process kept to the level it asked for.
fn check_finalize(checks: &Checks) {
    let site = here(checks);
    if !state::is_main() {
        let text = format!(
            "MPI_Finalize on a thread that is not the main one\n  called at {site}\n  (hint: the thread that called MPI_Init calls MPI_Finalize)\n"
        );
        checks.report(Check::Threads, text);
    }
    let threads = threads_of_program();
    if state::level() == MPI_THREAD_SINGLE && threads > 1 {
        let text = format!(
            "the process has {threads} threads, and MPI was initialised with MPI_THREAD_SINGLE\n  called at {site}\n  (hint: MPI_Init_thread with MPI_THREAD_FUNNELED, if only the main thread makes calls)\n"
        );
        checks.report(Check::Threads, text);
    }
}

/// Threads of this process without those that Osier and the CUDA driver have started; 0
/// where the kernel does not tell.
fn threads_of_program() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let is_of_library = |task: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("osier") || name.starts_with("cuda")
    };
    tasks.flatten().filter(|task| !is_of_library(task)).count()
}

fn here(checks: &Checks) -> Site {
    checks.site(Location::caller())
}
