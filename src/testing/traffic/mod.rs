//! Random traffic through the real engine on a simulated network: the test bed
//! of matching, protocols and progress.
//!
//! One thread plays all ranks. It posts sends and receives of every kind, lets
//! ranks make progress in random turns, moves the virtual clock, revokes,
//! detaches and probes; ranks may die and messages may be corrupted. The seed
//! decides everything, so a failure is repeated by its seed.
//!
//! # What is checked
//! 1. Each message that was not withdrawn is received exactly once, into the
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
//!    rank, and 1 to 5 hold among the others.
//! 7. With corrupted bytes: no panic, no hang of the engine itself, and no byte
//!    outside of a posted buffer is written. Wrong data and operations that
//!    never end are then allowed.
//!
//! ```
//! use osier::testing::traffic::{Traffic, run};
//!
//! let report = run(7, &Traffic::default()).unwrap();
//! assert!(report.received > 0);
//! ```

mod memory;
mod oracle;
mod plan;
mod world;

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What kind of traffic.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// How many ranks there may be.
    pub ranks: RangeInclusive<u32>,
    /// How many messages there may be, but for floods beyond the credit.
    pub messages: RangeInclusive<usize>,
    /// Whether ranks die.
    pub deaths: bool,
    /// Whether bytes are corrupted on their way.
    pub corruption: bool,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            ranks: 2..=5,
            messages: 5..=40,
            deaths: false,
            corruption: false,
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
    /// Messages that their sender withdrew.
    withdrawn
    /// Receives revoked before or while a message came.
    revoked
    /// Operations detached.
    detached
    /// Ranks that died.
    deaths
    /// Operations that ended with the number of a dead rank.
    lost
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

/// A run that broke a rule.
pub struct Failure {
    /// Repeats it.
    pub seed: u64,
    /// What kind of traffic it was.
    pub options: Traffic,
    /// The rule that was broken.
    pub what: String,
    /// What happened last.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "with {:?}", self.options)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// Events kept for a failure.
const TRACE: usize = 300;

#[derive(Clone, Copy)]
struct Event {
    time_ns: u64,
    rank: u32,
    context: usize,
    what: &'static str,
    /// Number of the message or receive.
    number: usize,
    peer: Option<u32>,
    tag: Option<u32>,
    bytes: usize,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event {
            time_ns,
            rank,
            context,
            what,
            number,
            bytes,
            ..
        } = self;
        write!(
            f,
            "{time_ns:>9} ns  rank {rank} context {context}: {what} {number}"
        )?;
        match self.peer {
            Some(peer) => write!(f, ", peer {peer}")?,
            None => write!(f, ", any peer")?,
        }
        match self.tag {
            Some(tag) => write!(f, ", tag {tag}")?,
            None => write!(f, ", any tag")?,
        }
        write!(f, ", {bytes} bytes")
    }
}

#[derive(Default)]
struct Trace(VecDeque<Event>);

impl Trace {
    fn push(&mut self, event: Event) {
        if self.0.len() == TRACE {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }
}

/// Plays the traffic of one seed.
///
/// # Errors
/// The first rule of the module's list that was broken.
pub fn run(seed: u64, options: &Traffic) -> Result<Report, Failure> {
    let mut trace = Trace::default();
    let played = catch_unwind(AssertUnwindSafe(|| {
        world::World::new(seed, options, &mut trace).play()
    }));
    let what = match played {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(what)) => what,
        Err(panic) => match panic.downcast::<String>() {
            Ok(text) => format!("panic: {text}"),
            Err(other) => match other.downcast::<&str>() {
                Ok(text) => format!("panic: {text}"),
                Err(_) => "panic".into(),
            },
        },
    };
    Err(Failure {
        seed,
        options: options.clone(),
        what,
        trace: trace.0.iter().map(Event::to_string).collect(),
    })
}
