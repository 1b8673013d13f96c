//! Leaked handles: `--check leaks`.
//!
//! # Invariants
//! 1. `FOLLOWS` is set before the first handle is made, and stays.
//! 2. The list of callers is locked while nothing else is.

use crate::abi::Handle;
use crate::attributes;
use crate::held;
use crate::objects::*;
use crate::state;
use crate::windows::WINDOWS;
use crate::work::{Pending, Sort, Work};
use osier_engine::check::{Check, Checks, Site};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

static FOLLOWS: AtomicBool = AtomicBool::new(false);
static CHECKS: OnceLock<Checks> = OnceLock::new();
/// The call that joined the job.
static BEGUN: Mutex<Option<Site>> = Mutex::new(None);
static CALLERS: Mutex<Option<HashMap<Handle, Site>>> = Mutex::new(None);

/// Begins to follow handles, if leaks are checked.
pub fn begin(checks: Checks) {
    let follows = checks.has(Check::Leaks);
    held::begin(&checks);
    *lock(&BEGUN) = follows.then(|| checks.site(Location::caller()));
    if CHECKS.set(checks).is_ok() {
        FOLLOWS.store(follows || held::follows(), Ordering::Release);
        if follows {
            // SAFETY: a function of C's convention that stays.
            unsafe { libc::atexit(at_exit) };
        }
    }
}

/// What is checked, once the rank has joined its job.
pub fn checks() -> Option<&'static Checks> {
    CHECKS.get()
}

/// Whether handles are followed.
#[inline(always)]
pub fn follows() -> bool {
    FOLLOWS.load(Ordering::Relaxed)
}

/// A handle was made.
#[inline]
pub fn made(handle: Handle) {
    if follows() {
        follow(handle);
    }
}

/// A handle was freed.
#[inline]
pub fn freed(handle: Handle) {
    if follows() {
        forget(handle);
    }
}

#[cold]
fn follow(handle: Handle) {
    if let Some(checks) = checks() {
        if !checks.has(Check::Leaks) {
            return;
        }
        let site = checks.site(Location::caller());
        lock(&CALLERS).get_or_insert_default().insert(handle, site);
    }
}

#[cold]
fn forget(handle: Handle) -> Option<Site> {
    if held::follows() {
        held::ended(handle);
    }
    lock(&CALLERS).get_or_insert_default().remove(&handle)
}

/// A request that nobody has completed or freed.
fn describe(pending: &Pending) -> String {
    let what = match &pending.work {
        Work::Sent | Work::Send(_) => "send",
        Work::Recv(_) | Work::Received { .. } | Work::Posted(_) => "receive",
        Work::Once(_, Sort::Receives) => "send and receive",
        Work::Once(_, Sort::Collective | Sort::Completed) => "collective call",
        Work::Once(_, Sort::Flush) => "flush of a buffer",
        Work::Generalized(..) => "generalized request",
        Work::Duplicate(_) => "communicator in the making",
        Work::PersistentSend(_) => "persistent send",
        Work::PersistentRecv(_) => "persistent receive",
        Work::PersistentCollective(_) => "persistent collective",
        Work::PartitionedSend(_) | Work::DeviceSend(_) => "partitioned send",
        Work::PartitionedRecv(_) | Work::DeviceRecv(_) => "partitioned receive",
    };
    match (pending.is_persistent(), pending.is_active()) {
        (true, true) => format!("a {what} that was started and neither completed nor freed"),
        (true, false) => format!("a {what} that was not freed"),
        (false, _) => format!("a {what} that was not completed"),
    }
}

fn ranks(n: usize) -> String {
    format!("of {n} rank{}", if n == 1 { "" } else { "s" })
}

fn named(name: &Mutex<Option<String>>, otherwise: String) -> String {
    match &*lock(name) {
        Some(name) if !name.is_empty() => format!("{name:?}, {otherwise}"),
        _ => otherwise,
    }
}

/// `MPI_Finalize`: what is left is a leak, but for what sessions still use.
pub fn at_finalize() {
    let looks = checks().is_some_and(|checks| checks.has(Check::Leaks));
    if looks && let Some(world) = state::predefined(false) {
        // Behind it all that was sent on the world's communicator has come, so that what
        // nobody has received is found. A rank that is no more has nothing to add.
        let _ = world.comm.barrier();
    }
    if SESSIONS.handles().is_empty() {
        report();
    }
}

/// Sessions, and what comes of them, may be freed until the process ends.
extern "C" fn at_exit() {
    if !state::aborts() {
        let _ = std::panic::catch_unwind(|| {
            if state::is_initialised() && !state::is_finalised() {
                report_unfinalized();
            } else {
                report();
            }
        });
    }
}

/// The process ends, and `MPI_Finalize` was not called.
fn report_unfinalized() {
    let Some(checks) = checks().filter(|checks| checks.has(Check::Leaks)) else {
        return;
    };
    let site = lock(&BEGUN).map_or_else(String::new, |site| format!("  joined at {site}\n"));
    let text = format!("leak: the process ends and has not called MPI_Finalize\n{site}");
    checks.report(Check::Leaks, text);
}

/// Reports the handles that are left, once.
fn report() {
    static ONCE: AtomicBool = AtomicBool::new(true);
    let Some(checks) = checks().filter(|checks| checks.has(Check::Leaks)) else {
        return;
    };
    if !ONCE.swap(false, Ordering::Relaxed) {
        return;
    }
    let left = |kind: &str, handle: Handle, what: String| {
        let site = forget(handle);
        checks.report_handle(kind, &what, site.as_ref());
    };
    for handle in REQUESTS.handles() {
        if let Some(pending) = REQUESTS.get(handle) {
            left("request", handle, describe(pending));
        }
    }
    for handle in MESSAGES.handles() {
        left("message", handle, "matched, and never received".into());
    }
    for handle in COMMS.handles() {
        if let Some(comm) = COMMS.get(handle) {
            let what = named(&comm.name, ranks(comm.comm.size()));
            left("communicator", handle, what);
        }
    }
    for handle in WINDOWS.handles() {
        if let Some(win) = WINDOWS.get(handle) {
            let what = named(&win.name, ranks(win.raw.comm().size()));
            left("window", handle, what);
        }
    }
    for handle in GROUPS.handles() {
        if let Ok(group) = group(handle) {
            left("group", handle, ranks(group.size()));
        }
    }
    for handle in TYPES.handles() {
        if let Some(ty) = TYPES.get(handle)
            && !ty.predefined
        {
            let what = named(&ty.name, ty.ty.signature().to_string());
            left("datatype", handle, what);
        }
    }
    for handle in OPS.handles() {
        left("operator", handle, "of a function of the program".into());
    }
    for handle in ERRHANDLERS.handles() {
        left(
            "error handler",
            handle,
            "of a function of the program".into(),
        );
    }
    for handle in INFOS.handles() {
        if let Some(info) = INFOS.get(handle) {
            let keys = lock(info).len();
            let s = if keys == 1 { "" } else { "s" };
            left("info", handle, format!("of {keys} key{s}"));
        }
    }
    for (number, kind) in attributes::left() {
        left("key", number, format!("of attributes of {kind}"));
    }
    for whose in crate::p2p::attached() {
        checks.report_handle("attached buffer", whose.0, whose.1.as_ref());
    }
    for handle in SESSIONS.handles() {
        left("session", handle, "never finalized".into());
    }
}
