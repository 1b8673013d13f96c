//! The real engine on a simulated network: the test bed of matching, protocols
//! and progress.
//!
//! Only tests use it. Of the library it takes what programs take, and for the rest
//! [`osier::internals`].
//!
//! One thread plays all ranks. A run is a list of acts: sends and receives of
//! every kind, turns of a rank's progress, moves of the virtual clock or single
//! arrivals, revokes, detaches, probes, deaths, corruption. [`run`] draws the
//! list from a seed; [`explore_all`] plays all lists of small jobs within a
//! bound. A list that breaks a rule is cut down, told as a timeline, and
//! repeated by one line ([`replay`]).
//!
//! ```text
//! plan, draw        a seed -> acts          explore, scenario, jobs   a job -> all its acts
//! act               one act on the world    world, send, receive, settle
//! seat              what a rank holds       request, partition
//! invariants        after a step            oracle              at the end
//! collectives       collective calls, which have rules of their own
//! shrink, timeline  a failure for people    case                a run as a value
//! devices, words    for other tests: counters and settings of devices, malformed messages
//! ```
//!
//! # What is checked
//! 1. Each message that was not cancelled is received exactly once, into the
//!    memory of its receive and nowhere else, with its own bytes, source, tag
//!    and size; too long a message is an error that names both sizes.
//! 2. Messages do not overtake. For messages `a` before `b` of one sender: if
//!    the receive that got `b` also accepts `a`, it was posted after the one
//!    that got `a`. For receives `r` before `s`: `r` does not stay without a
//!    message, or get one that was sent later, when `s` got what `r` accepts.
//! 3. A synchronous send ends only once a receive was posted for its message.
//! 4. Every operation ends, unless nothing was sent that it accepts; memory is
//!    not touched after the end of its operation.
//! 5. At the end nothing is left: no operation, message, export or queue entry;
//!    what a sender has taken of its credit is what the receiver owes.
//! 6. With deaths: operations end with data or an error that names the dead
//!    rank, and 1 to 5 hold among the others. What a rank had sent whole, and
//!    was there before its death was known, is received. A receive from any source fails
//!    for each death that is not acknowledged, and for no other as long as anybody lives;
//!    none is posted meanwhile. One that only finalized ranks could meet does not end by
//!    itself, is revoked like any other, and ends with their names where a wait gives it up.
//! 7. Requests of all kinds keep 1 to 6, and what is their own: a persistent one
//!    starts only when it is inactive; a buffered send gives its memory back at
//!    once, and its buffer is empty in the end; a partition that is said to have
//!    come holds its bytes; what is cancelled has met no message; a wait set
//!    gives back each request once; a generalised request asks and frees once.
//! 8. With corrupted bytes: no panic, no hang of the engine itself, and no byte
//!    outside of a posted buffer is written. Wrong data and operations that
//!    never end are then allowed.
//!
//! ```
//! use osier_bed::{Traffic, run};
//!
//! let report = run(7, &Traffic::default()).unwrap();
//! assert!(report.received > 0);
//! ```

#![deny(unsafe_code)]

mod act;
mod case;
mod collectives;
pub mod devices;
mod dice;
mod draw;
mod explore;
mod hangs;
mod invariants;
mod jobs;
mod memory;
mod oracle;
mod partition;
mod plan;
mod play;
mod receive;
mod request;
mod scenario;
mod seat;
mod send;
mod settle;
mod shrink;
mod timeline;
pub mod words;
mod world;

use osier_engine::check::Setting;
use std::fmt;
use std::ops::RangeInclusive;

pub use case::{Fault, Wrong};
pub use collectives::{Calls, collectives};
pub use explore::{Bounds, Explored, explore_all};
pub use play::{replay, run};

/// What kind of traffic.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// How many ranks there may be.
    pub ranks: RangeInclusive<u32>,
    /// How many messages there may be, but for floods beyond the credit.
    pub messages: RangeInclusive<usize>,
    /// Whether ranks die, or finalize before the others.
    pub deaths: bool,
    /// Whether bytes are corrupted on their way.
    pub corruption: bool,
    /// Whether programs also have requests of all kinds, wait sets, attached
    /// buffers, partitioned transfers and intercommunicators, and not only the
    /// operations of a lane.
    pub requests: bool,
    /// What is checked besides, as `OSIER_CHECK` says.
    pub checks: Setting,
    /// Whether the invariants are checked after every step of every run, and
    /// not only of every sixteenth.
    pub every_step: bool,
    /// What goes wrong on purpose.
    pub faults: Vec<Fault>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            ranks: 2..=5,
            messages: 5..=40,
            deaths: false,
            corruption: false,
            requests: true,
            checks: Setting::OFF,
            every_step: false,
            faults: Vec::new(),
        }
    }
}

macro_rules! report {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// What happened in a run, or in many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Report {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl std::ops::AddAssign for Report {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

report! {
    /// Runs.
    runs
    /// Sends posted.
    sent
    /// Messages received whole.
    received
    /// Messages received cut off.
    truncated
    /// Bytes received.
    bytes
    /// Messages that came before their receive.
    unexpected
    /// Messages that were announced.
    announced
    /// Messages that the receiver read itself.
    pulled
    /// Posts refused for lack of room.
    refused
    /// Messages received without posting a receive.
    direct
    /// Messages seen by a probe and then received.
    probed
    /// Messages taken by a matched probe.
    matched
    /// Messages that their sender cancelled.
    withdrawn
    /// Receives revoked before or while a message came.
    revoked
    /// Operations detached.
    detached
    /// Receives cancelled before a message came.
    cancelled
    /// Sends in ready mode.
    ready
    /// Sends in buffered mode.
    buffered
    /// Sends in buffered mode for which there was no room.
    full
    /// Waits for an empty buffer.
    flushed
    /// Starts of persistent requests.
    persistent
    /// Messages sent from memory into which another was received.
    exchanged
    /// Partitions sent.
    partitions
    /// Generalised requests.
    general
    /// Requests that a wait set gave back.
    waited
    /// Messages over intercommunicators.
    across
    /// Ranks that died or finalized.
    deaths
    /// Ranks that finalized.
    finalized
    /// Failures that were acknowledged, by rank and communicator.
    acknowledged
    /// Operations that ended with the number of a rank that has ended.
    lost
    /// Receives from any source that ended with a failure.
    told
    /// Receives that waits gave up, because all that could meet them had finalized.
    resigned
    /// Messages corrupted.
    corrupted
    /// Messages that the engine refused as malformed.
    malformed
    /// Receives whose bytes were wrong because of corruption.
    damaged
    /// Operations that never ended because of corruption.
    stuck
    /// Virtual time.
    virtual_ns
    /// Depends on every delivery; the sum over many runs repeats, too.
    trace_hash
}

/// A run that broke a rule, cut down.
#[derive(Default)]
pub struct Failure {
    /// The rule that was broken.
    pub what: String,
    /// How it was found.
    pub origin: String,
    /// Messages in what is left of the run.
    pub messages: usize,
    /// Acts in what is left of the run.
    pub acts: usize,
    /// Ranks in what is left of the run.
    pub ranks: u32,
    /// What happens in it: one column per rank, one line per step.
    pub timeline: Vec<String>,
    /// It in one line, for [`replay`].
    pub case: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.timeline {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.what)?;
        let Self {
            origin,
            messages,
            acts,
            ranks,
            ..
        } = self;
        writeln!(
            f,
            "found by {origin}; cut down to {acts} acts, {messages} messages, {ranks} ranks"
        )?;
        write!(
            f,
            "repeat: OSIER_TEST='case={}' cargo test -p osier-bed --test engine_sim one_case -- --ignored --nocapture",
            self.case.replace(',', ",,")
        )
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}
