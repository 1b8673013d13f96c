//! Buffers of the program that calls have: `--check buffers`; and whether the thread may
//! make the call: `--check threads`.
//!
//! ```text
//! call: view of a buffer -> mapped? -> held by the call
//! a request is made       -> held by the request, with a sum of what it reads
//! the request is completed, or freed -> compared, released
//! a call returns          -> what it still has is released
//! ```
//!
//! # Invariants
//! 1. Nothing runs here unless `FOLLOWS` is set, which happens before the first buffer.
//! 2. The list of requests is not locked while something is reported.

use crate::abi::*;
use crate::call::On;
use crate::fail::{Fail, Res};
use crate::leaks;
use crate::mapped::{Flaw, flaw, overrun};
use crate::objects::lock;
use crate::state;
use osier::check::{Check, Checks, Hold, Region, Site};
use osier::{View, ViewMut};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// What requests have: those that persist keep their regions while they are inactive.
static REQUESTS: Mutex<Option<HashMap<Handle, Kept>>> = Mutex::new(None);

struct Kept {
    /// Of a request that persists.
    again: Vec<Region>,
    holds: Vec<Hold>,
}

/// A call that a thread is in.
struct Inside {
    thread: ThreadId,
    /// Null of a call that has no communicator.
    comm: Handle,
    site: Site,
}

/// The calls that threads are in, if threads are checked: the last of a thread is the
/// innermost.
static INSIDE: Mutex<Vec<Inside>> = Mutex::new(Vec::new());

/// Calls without a communicator that not every thread may make.
const BOUND: [&str; 4] = ["MPI_Wait", "MPI_Test", "MPI_Start", "MPI_Finalize"];

thread_local! {
    /// Of the call that this thread is in.
    static CALL: RefCell<Vec<Hold>> = const { RefCell::new(Vec::new()) };
}

/// Begins to follow buffers.
pub fn begin(checks: &Checks) {
    let follows = checks.has(Check::Buffers) || checks.has(Check::Threads);
    FOLLOWS.store(follows, Ordering::Release);
}

/// Whether buffers are followed.
#[inline]
pub fn follows() -> bool {
    FOLLOWS.load(Ordering::Relaxed)
}

/// A call reads a buffer.
#[inline]
pub fn reads(view: &View<'_>) -> Res {
    match follows() {
        true => hold(Region::read(view)),
        false => Ok(()),
    }
}

/// A call writes a buffer.
#[inline]
pub fn writes(view: &ViewMut<'_>) -> Res {
    match follows() {
        true => hold(Region::written(view)),
        false => Ok(()),
    }
}

/// A call reads a buffer that it writes at other ranks.
#[inline]
pub fn reads_of(view: &ViewMut<'_>) -> Res {
    match follows() {
        true => hold(Region::read_of(view)),
        false => Ok(()),
    }
}

/// A call begins.
#[inline]
pub fn enters(name: &str, on: On) {
    if follows() {
        enter(name, on);
    }
}

#[cold]
fn enter(name: &str, on: On) {
    let Some(checks) = leaks::checks() else {
        return;
    };
    if !checks.has(Check::Threads) || !state::is_initialised() || state::is_finalised() {
        return;
    }
    let comm = match on {
        On::Comm(handle) => handle,
        On::Own if BOUND.iter().any(|bound| name.starts_with(bound)) => MPI_COMM_NULL,
        _ => return,
    };
    let thread = std::thread::current().id();
    let site = here(checks);
    let mut inside = lock(&INSIDE);
    let other = inside.iter().any(|call| call.thread != thread);
    inside.push(Inside { thread, comm, site });
    drop(inside);
    check_thread(checks, other);
    if name == "MPI_Finalize" {
        check_finalize(checks);
    }
}

/// The call returns.
#[inline]
pub fn returns() {
    if follows() {
        release();
    }
}

#[cold]
fn release() {
    let had = CALL.take();
    drop(had);
    let own = std::thread::current().id();
    let mut inside = lock(&INSIDE);
    if let Some(at) = inside.iter().rposition(|call| call.thread == own) {
        inside.remove(at);
    }
}

/// A communicator is freed; whether another thread is in a call on it, which is reported.
pub fn frees(handle: Handle) -> bool {
    let Some(checks) = leaks::checks().filter(|checks| checks.has(Check::Threads)) else {
        return false;
    };
    let own = std::thread::current().id();
    let calls = lock(&INSIDE);
    let used = calls
        .iter()
        .find(|call| call.thread != own && call.comm == handle)
        .map(|call| call.site.to_string());
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

/// Whether this thread may make a call now.
fn check_thread(checks: &Checks, other: bool) {
    let (level, name) = match state::level() {
        MPI_THREAD_SINGLE => (state::level(), "MPI_THREAD_SINGLE"),
        MPI_THREAD_FUNNELED => (state::level(), "MPI_THREAD_FUNNELED"),
        MPI_THREAD_SERIALIZED => (state::level(), "MPI_THREAD_SERIALIZED"),
        _ => return,
    };
    let what = match level {
        MPI_THREAD_SERIALIZED if other => "two threads are in calls at the same time",
        MPI_THREAD_SERIALIZED => return,
        _ if !state::is_main() => "a thread that is not the main one makes a call",
        _ => return,
    };
    let site = here(checks);
    let text = format!(
        "{what}, and MPI was initialised with {name}\n  called at {site}\n  (hint: MPI_Init_thread with the level that the program needs)\n"
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

/// Threads of this process but for those of libraries that name theirs; 0 where the kernel
/// does not tell.
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

#[cold]
fn hold(region: Option<Region>) -> Res {
    let (Some(region), Some(checks)) = (region, leaks::checks()) else {
        return Ok(());
    };
    if !checks.has(Check::Buffers) {
        return Ok(());
    }
    let site = here(checks);
    if let Some(flaw) = flaw(&region).or_else(|| overrun(&region)) {
        let (what, hint) = match flaw {
            Flaw::Unmapped(at) => (
                format!("a buffer is not mapped to its end: nothing lies at {at:#x}"),
                "the count, or a displacement, is too large, or the memory was given back",
            ),
            Flaw::ReadOnly(at) => (
                format!("a buffer cannot be written: {at:#x} is read only"),
                "a constant, or a file that is mapped for reading",
            ),
            Flaw::BeyondFrame(at) => (
                format!("a buffer overruns the variables of its function, which end at {at:#x}"),
                "the count is larger than the array, or the datatype larger than its elements",
            ),
        };
        let reads = if region.is_written() {
            "writes"
        } else {
            "reads"
        };
        let text = format!("{what}\n  {reads} it  at {site}\n  (hint: {hint})\n");
        checks.report(Check::Buffers, text);
        return Err(Fail::new(MPI_ERR_BUFFER, what));
    }
    let hold = checks.hold(&region, site);
    CALL.with_borrow_mut(|call| {
        let mixes = call.iter().any(|other| other.region().mixes_with(&region));
        call.push(hold);
        match mixes {
            // Named, and not to be carried out: copies rely on it.
            true => Err(Fail::new(
                MPI_ERR_BUFFER,
                "a buffer to send from overlaps one to receive into (hint: MPI_IN_PLACE)",
            )),
            false => Ok(()),
        }
    })
}

/// A request has what the call has had so far; one that persists, when it is started.
#[cold]
pub fn attach(request: Handle, persists: bool) {
    let mut holds = CALL.take();
    let mut again = Vec::new();
    if persists {
        again = holds.drain(..).map(|hold| hold.region().clone()).collect();
    }
    for hold in &mut holds {
        hold.seal();
    }
    if again.is_empty() && holds.is_empty() {
        return;
    }
    let mut requests = lock(&REQUESTS);
    let kept = Kept { again, holds };
    requests.get_or_insert_default().insert(request, kept);
}

/// A request that persists is about to be started.
pub fn starts(request: Handle) -> Res {
    if !follows() {
        return Ok(());
    }
    let again = {
        let requests = lock(&REQUESTS);
        let kept = requests.as_ref().and_then(|all| all.get(&request));
        kept.map(|kept| kept.again.clone()).unwrap_or_default()
    };
    again.into_iter().try_for_each(|region| hold(Some(region)))
}

/// It was started.
pub fn started(request: Handle) {
    if !follows() {
        return;
    }
    let mut holds = CALL.take();
    for hold in &mut holds {
        hold.seal();
    }
    if let Some(kept) = lock(&REQUESTS).get_or_insert_default().get_mut(&request) {
        kept.holds = holds;
    }
}

/// A persistent request is complete, and inactive again.
pub fn completed(request: Handle) {
    if follows() {
        let mut requests = lock(&REQUESTS);
        let kept = requests.get_or_insert_default().get_mut(&request);
        let holds = kept.map(|kept| std::mem::take(&mut kept.holds));
        drop(requests);
        end(holds.unwrap_or_default());
    }
}

/// A request is no more.
#[cold]
pub fn ended(request: Handle) {
    let had = lock(&REQUESTS).get_or_insert_default().remove(&request);
    if let Some(kept) = had {
        end(kept.holds);
    }
}

fn end(holds: Vec<Hold>) {
    for hold in holds {
        match flaw(hold.region()) {
            None => hold.end(),
            // Whoever gave it back has no data left to compare.
            Some(_) => drop(hold),
        }
    }
}
