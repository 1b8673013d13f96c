//! Checks of what a program does with messages: `OSIER_CHECK`.
//!
//! | check | finds |
//! |---|---|
//! | `signature` | a message whose types are not those of its receive |
//! | `buffers` | memory that a transfer owns and another transfer writes, or that changes while it is sent |
//! | `ready` | a ready-mode send that comes before its receive is posted |
//! | `leaks` | requests, communicators and handles that are left when the rank leaves its job |
//! | `collectives` | ranks of a communicator that make different collective calls: a round before each asks (`coll/agree.rs`) |
//! | `windows` | accesses to a part of a window that conflict (`one_sided/check`) |
//! | `threads` | in C: calls of threads that `MPI_Init_thread` was not asked for, communicators that another thread still uses when they are freed (`capi/src/threads.rs`) |
//!
//! `payload`, which is asked for by name, finds messages whose bytes are overwritten in
//! shared memory: the transport adds check bits to all that goes through rings, and uses
//! neither mailboxes nor the heaps of peers. What does not match is an error of the
//! operation, as is any other damage to that memory.
//!
//! What is found is printed once, with the source lines of both sides, and
//! counted. With `fatal` the job ends. All ranks of a job check the same: a
//! launcher leaves the setting in the job.
//!
//! Off, nothing of this runs: a lane that checks keeps its peers `blocked`, a
//! state that every send asks for anyway, and marks its messages by a bit
//! that every receive asks for anyway. One question is new: a lane that checks
//! posts every receive, and so asks whether it does.
//!
//! # Invariants
//! 1. No lock of a lane is taken while the findings or claims are locked.
//! 2. A claim lives exactly as long as the operation may use its memory.

mod claims;
mod finding;
mod regions;

pub use crate::site::{Callers, Site};
pub use claims::{Claim, Claims};
pub use finding::Finding;
pub use finding::{Side, mismatch};
pub use regions::{Hold, Region};

use crate::diagnose::tell;
use crate::error::{Error, ErrorKind, Result};
use crate::site::Layer;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Types of sender and receiver.
    Signature,
    /// Memory that transfers own.
    Buffers,
    /// What is left at the end.
    Leaks,
    /// Receives of ready-mode sends.
    Ready,
    /// Whether all ranks make the same collective calls.
    Collectives,
    /// Calls of threads that the program did not ask for when it initialised MPI, which only
    /// a C program can make.
    Threads,
    /// Accesses to windows.
    Windows,
}

impl Check {
    /// All, in the order of their bits.
    pub const ALL: [Check; 7] = [
        Check::Signature,
        Check::Buffers,
        Check::Leaks,
        Check::Ready,
        Check::Collectives,
        Check::Threads,
        Check::Windows,
    ];

    /// Its name in `OSIER_CHECK`.
    pub fn name(self) -> &'static str {
        match self {
            Check::Signature => "signature",
            Check::Buffers => "buffers",
            Check::Leaks => "leaks",
            Check::Ready => "ready",
            Check::Collectives => "collectives",
            Check::Threads => "threads",
            Check::Windows => "windows",
        }
    }
}

/// What is checked, as `OSIER_CHECK` says.
///
/// ```
/// use osier_engine::check::{Check, Setting};
///
/// let setting: Setting = "signature,fatal".parse()?;
/// assert!(setting.has(Check::Signature) && !setting.has(Check::Leaks));
/// assert_eq!(setting.to_string(), "signature,fatal");
/// assert!("signatures".parse::<Setting>().is_err());
/// # Ok::<(), osier::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting(u32);

const FATAL: u32 = 1 << 16;
const PAYLOAD: u32 = 1 << 17;

impl Setting {
    /// Nothing is checked.
    pub const OFF: Setting = Setting(0);

    /// Whether this is checked.
    pub fn has(self, check: Check) -> bool {
        self.0 & 1 << check as u32 != 0
    }

    /// Whether anything is checked.
    pub fn is_on(self) -> bool {
        Check::ALL.iter().any(|check| self.has(*check))
    }

    /// Whether payloads in shared memory are checked.
    pub fn has_payload(self) -> bool {
        self.0 & PAYLOAD != 0
    }

    /// Whether the first finding ends the job.
    pub fn is_fatal(self) -> bool {
        self.0 & FATAL != 0
    }

    /// As bits, for the job.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The setting that [`Setting::bits`] encodes.
    pub fn from_bits(bits: u32) -> Setting {
        Setting(bits)
    }

    /// What the environment asks for.
    pub fn from_env() -> Result<Setting> {
        match crate::env::value("OSIER_CHECK") {
            Some(text) => text.parse::<Self>().map_err(|e| e.context("OSIER_CHECK")),
            None => Ok(Setting::OFF),
        }
    }
}

impl std::str::FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Setting> {
        let mut bits = 0;
        for word in text.split(',').map(str::trim) {
            bits |= match word {
                "off" => 0,
                "all" => (1 << Check::ALL.len()) - 1,
                "fatal" => FATAL,
                "payload" => PAYLOAD,
                _ => match Check::ALL.iter().find(|check| check.name() == word) {
                    Some(check) => 1 << *check as u32,
                    None => {
                        return Err(Error::new(
                            ErrorKind::Config,
                            format!(
                                "{} is no check (hint: signature, buffers, leaks, ready, collectives, threads, windows, all or off, payload, and fatal, separated by commas)",
                                crate::env::shown(word)
                            ),
                        ));
                    }
                },
            };
        }
        if bits == FATAL {
            return Err(Error::new(
                ErrorKind::Config,
                "fatal without a check has no effect (hint: all,fatal)",
            ));
        }
        Ok(Setting(bits))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = Check::ALL.iter().filter(|check| self.has(**check));
        let mut words: Vec<_> = on.map(|check| check.name()).collect();
        if self.has_payload() {
            words.push("payload");
        }
        if self.is_fatal() {
            words.push("fatal");
        }
        match words.is_empty() {
            true => f.write_str("off"),
            false => f.write_str(&words.join(",")),
        }
    }
}

/// Exit code of a job that a finding ends.
pub const EXIT_CODE: i32 = 123;

/// Most findings that are kept, and printed, of each kind.
const KEPT: usize = 64;

/// What a rank checks, and what it has found so far. Clones are the same; they
/// outlive the `Universe`, which finds leaks as it ends.
#[derive(Clone)]
pub struct Checks(Arc<Inner>);

struct Inner {
    setting: Setting,
    rank: u32,
    counts: [AtomicU64; Check::ALL.len()],
    found: Mutex<Vec<Finding>>,
    claims: Mutex<Claims>,
    handles: Mutex<Handles>,
    /// Names callers in another language.
    layer: Layer,
    /// Has the other ranks end, and the job with this exit code.
    abort: Box<dyn Fn(i32) + Send + Sync>,
}

#[derive(Default)]
struct Handles {
    next: u64,
    /// In the order in which they were made.
    alive: BTreeMap<u64, (&'static str, String, Site)>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checks {{ {} }}", self.0.setting)
    }
}

impl Checks {
    pub fn new(setting: Setting, rank: u32, abort: impl Fn(i32) + Send + Sync + 'static) -> Checks {
        Checks(Arc::new(Inner {
            setting,
            rank,
            counts: Default::default(),
            found: Mutex::default(),
            claims: Mutex::default(),
            handles: Mutex::default(),
            layer: Layer::new(),
            abort: Box::new(abort),
        }))
    }

    /// What is checked.
    pub fn setting(&self) -> Setting {
        self.0.setting
    }

    /// Whether this is checked.
    pub fn has(&self, check: Check) -> bool {
        self.0.setting.has(check)
    }

    /// Whether anything is checked that concerns each message.
    pub fn follows_messages(&self) -> bool {
        [Check::Signature, Check::Buffers, Check::Ready]
            .into_iter()
            .any(|check| self.has(check))
    }

    /// Number of findings of a kind.
    pub fn count(&self, check: Check) -> u64 {
        self.0.counts[check as usize].load(Ordering::Relaxed)
    }

    /// The first findings, at most 64 of each kind.
    pub fn findings(&self) -> Vec<Finding> {
        lock(&self.0.found).clone()
    }

    /// Prints and counts a finding: a line that says what, and lines below it. Also for
    /// layers above, of what only they see.
    #[cold]
    pub fn report(&self, check: Check, text: String) {
        let before = self.0.counts[check as usize].fetch_add(1, Ordering::Relaxed);
        if before < KEPT as u64 {
            let name = check.name();
            let last = match before + 1 == KEPT as u64 {
                true => format!("\n  (further findings of {name} are only counted)"),
                false => String::new(),
            };
            tell(format_args!(
                "rank {}: {}{last}",
                self.0.rank,
                text.trim_end_matches('\n')
            ));
            lock(&self.0.found).push(Finding { check, text });
        }
        if self.0.setting.is_fatal() {
            (self.0.abort)(EXIT_CODE);
            std::process::exit(EXIT_CODE);
        }
    }

    pub fn claims(&self) -> MutexGuard<'_, Claims> {
        lock(&self.0.claims)
    }

    /// Counts a handle that the program is to free before it leaves the job:
    /// for layers that hand out raw handles, such as a C interface's types.
    /// A handle that is not dropped by then is a leak, reported with the caller's line.
    #[track_caller]
    pub fn track(&self, kind: &'static str, name: impl Into<String>) -> Tracked {
        if !self.has(Check::Leaks) {
            return Tracked(None);
        }
        let mut handles = lock(&self.0.handles);
        handles.next += 1;
        let number = handles.next;
        let handle = (kind, name.into(), self.site(Location::caller()));
        handles.alive.insert(number, handle);
        Tracked(Some((self.clone(), number)))
    }

    /// Reports a handle that is left: for layers that keep a list of their own.
    pub fn report_handle(&self, kind: &str, name: &str, site: Option<&Site>) {
        let created = site.map_or_else(String::new, |site| format!("  created at {site}\n"));
        let text = format!(
            "leak: {} {kind} is left at the end: {name}\n{created}",
            article(kind)
        );
        self.report(Check::Leaks, text);
    }

    /// Has callers in another language named.
    pub fn name_callers(&self, callers: Callers) {
        // The first layer keeps it: there is one program.
        let _ = self.0.layer.set(callers);
    }

    /// Whether the program is in another language.
    pub fn is_foreign(&self) -> bool {
        self.0.layer.get().is_some()
    }

    /// The place of the call that this thread is in, to be named in a finding; costs an
    /// unwinding of the stack where the program is in another language.
    pub fn site(&self, line: &'static Location<'static>) -> Site {
        match self.0.setting.is_on() {
            true => Site::here(&self.0.layer, line),
            false => line.into(),
        }
    }

    /// Reports the handles that are left.
    pub fn report_handles(&self) {
        let left = std::mem::take(&mut lock(&self.0.handles).alive);
        for (kind, name, site) in left.into_values() {
            self.report_handle(kind, &name, Some(&site));
        }
    }
}

fn article(word: &str) -> &'static str {
    match word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        true => "an",
        false => "a",
    }
}

/// Keeps a handle from being reported once it is dropped.
#[must_use = "dropping it says that the handle was freed"]
pub struct Tracked(Option<(Checks, u64)>);

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some((checks, number)) = &self.0 {
            lock(&checks.0.handles).alive.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_words() {
        let parse = |text: &str| text.parse::<Setting>();
        assert_eq!(
            parse("all").expect("all").to_string(),
            "signature,buffers,leaks,ready,collectives,threads,windows"
        );
        assert_eq!(parse("off").expect("off"), Setting::OFF);
        let some = parse(" leaks , fatal ").expect("some");
        assert!(some.is_fatal() && some.has(Check::Leaks) && !some.has(Check::Buffers));
        assert_eq!(Setting::from_bits(some.bits()), some);
        let payload = parse("payload").expect("payload");
        assert!(payload.has_payload() && !payload.is_on() && !some.has_payload());
        assert_eq!(payload.to_string(), "payload");
        for bad in ["", "types", "fatal", "signature;leaks", "off,fatal"] {
            let e = parse(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }

    #[test]
    fn handles_that_are_freed_are_no_leak() {
        let checks = Checks::new("leaks".parse().expect("a setting"), 0, |_| {});
        let freed = checks.track("datatype", "f64 x 3");
        let kept = checks.track("datatype", "i32 x 2");
        drop(freed);
        checks.report_handles();
        assert_eq!(checks.count(Check::Leaks), 1);
        let text = checks.findings()[0].to_string();
        assert!(text.contains("i32 x 2") && text.contains(file!()), "{text}");
        drop(kept);
    }
}
