//! What ranks wait for: hangs that explain themselves, and `osier ps`.
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
//! | `waits` | a rank's long waits; told by the waits themselves |
//! | [`threads`] | whether all threads of the process wait inside Osier |
//!
//! A wait is registered only after it has slept for [`LONG`]. Shorter ones, and
//! all that spin, pay nothing.

pub mod page;
pub mod report;
pub mod threads;
pub mod verdict;
pub(crate) mod waits;
pub mod watch;

use std::time::Duration;

/// A wait that has slept for so long is told to others.
pub const LONG: Duration = Duration::from_millis(100);
