//! Claims of user buffers: `--check buffers`.
//!
//! ```text
//! call: view of a buffer -> mapped? -> held by the call
//! a request is made       -> held by the request, with a sum of what it reads
//! the request is completed, or freed -> compared, released
//! a call returns          -> what it still has is released
//! ```
//!
//! Which thread may make a call is checked by [`threads`]: both follow calls from
//! [`enters`] to [`returns`].
//!
//! # Invariants
//! 1. Nothing runs here unless `FOLLOWS` is set, which happens before the first buffer.
//! 2. The list of requests is not locked while something is reported.
//! 3. A call releases its own buffers only: functions of the program that it runs may make
//!    calls, too.

use crate::abi::*;
use crate::call::On;
use crate::fail::{Fail, Res};
use crate::leaks;
use crate::mapped::{Flaw, flaw, overrun};
use crate::objects::lock;
use crate::threads;
use osier::{View, ViewMut};
use osier_engine::check::{Check, Checks, Hold, Region, Site};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// What requests have: those that persist keep their regions while they are inactive.
static REQUESTS: Mutex<Option<HashMap<Handle, Kept>>> = Mutex::new(None);

struct Kept {
    /// Of a request that persists.
    again: Vec<Region>,
    holds: Vec<Hold>,
}

/// The calls that a thread is in, the innermost last.
#[derive(Default)]
struct Calls {
    /// Buffers of all of them.
    holds: Vec<Hold>,
    /// How many of these were there when each call began.
    starts: Vec<usize>,
}

impl Calls {
    /// Takes the buffers of the innermost call.
    fn take(&mut self) -> Vec<Hold> {
        let start = self.starts.last().copied().unwrap_or(0);
        self.holds.split_off(start)
    }
}

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::default();
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
    CALLS.with_borrow_mut(|calls| calls.starts.push(calls.holds.len()));
    threads::enters(name, on);
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
    threads::returns();
    let had = CALLS.with_borrow_mut(|calls| {
        let had = calls.take();
        calls.starts.pop();
        had
    });
    drop(had);
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
    CALLS.with_borrow_mut(|calls| {
        let start = calls.starts.last().copied().unwrap_or(0);
        let own = &calls.holds[start..];
        let mixes = own.iter().any(|other| other.region().mixes_with(&region));
        calls.holds.push(hold);
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
    let mut holds = CALLS.with_borrow_mut(Calls::take);
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
    let mut holds = CALLS.with_borrow_mut(Calls::take);
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
