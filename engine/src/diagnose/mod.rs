//! Hang diagnosis: waits of ranks, reports, and `osier ps`.
//!
//! ```text
//! Core::wait_on ..sleeps.. -> waits (this rank's long waits, its quiet time)
//!                       -> page  (words in the job's shared memory)
//! launcher, or the lowest rank -> watch -> verdict (pure) -> report (text)
//! osier ps                     -> watch -> page
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`verdict`] | when a job hangs for certain, and where waits form a cycle: pure |
//! | [`page`] | what a rank says of itself, as words |
//! | [`watch`] | reads the pages of a job |
//! | [`report`] | the text |
//! | `waits` | a rank's long waits, described by the waits themselves |
//! | [`threads`] | which threads of the process wait inside Osier |
//! | [`outside`] | whether the others sleep until one of them wakes them |
//!
//! A wait is registered only after it has slept for [`LONG`]. Shorter ones, and
//! all that spin, pay nothing.

pub mod outside;
pub mod page;
pub mod report;
pub mod settings;
pub mod threads;
pub mod verdict;
pub mod waits;
pub mod watch;

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// Writes a line of Osier's to standard error, in one call: a process that is killed
/// meanwhile has written all of it or nothing.
pub fn tell(line: impl Display) {
    let text = format!("osier: {line}\n");
    // There is nowhere to report that it cannot be written.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A wait that has slept this long is published.
pub const LONG: Duration = Duration::from_millis(100);
