//! A simulated network inside one process: virtual clock, seeded delays,
//! reordering between pairs, one-sided operations, death, corrupted bytes.
//!
//! A [`SimNet`] holds everything; a [`SimEndpoint`] is one rank's end of one
//! channel. Three ways to drive it:
//!
//! - One thread plays all ranks. It polls whom it wants in the order it wants,
//!   and moves the clock by [`SimNet::advance_to_next_event`] when nobody has
//!   anything to do. The seed then decides the whole run; where that returns
//!   false and nobody has work, the ranks are deadlocked.
//! - Each rank has a thread ([`SimOptions::auto_advance`]). A poll that finds
//!   nothing due moves the clock itself, and an idle thread sleeps in
//!   [`SimNet::wait_generation_change`].
//!
//! - Whoever explores schedules decides what arrives next
//!   ([`SimOptions::held`], [`SimNet::held`], [`SimNet::let_through`]). Then
//!   there is no time and no seed: the decisions are the run.
//!
//! # Rules
//! 1. A message is due at the time of its post, plus a random latency, plus
//!    its bytes times [`SimOptions::ns_per_byte`], and never before an earlier
//!    one of the same sender, receiver and channel.
//!    On a [`SimMachine`] places of ranks say how long it takes.
//! 2. A pair of ranks has [`SimOptions::capacity_messages`] credits per
//!    channel, taken by a post and returned by the release.
//! 3. A message to an endpoint that does not exist yet waits for it; one to an
//!    endpoint that was dropped vanishes. [`SimEndpoint::closed`] tells of the
//!    drop once everything that the peer had posted has been polled.
//! 4. One-sided operations finish in any order. Bytes are read and written
//!    when [`Endpoint::poll_completion`] reports the end and not before, so
//!    that memory which is used too early or too long shows; a released
//!    payload is overwritten for the same reason.
//! 5. A dead rank's calls fail with `PeerDead`, its own number in the text.
//!    What it posted before still arrives, what was sent to it vanishes, its
//!    pending operations and those on its regions end with `PeerDead`.
//! 6. A region is reached only as it was exported: another owner, kind, base
//!    or size is `Malformed`, bytes beyond its end are `Invalid`. What the
//!    caller alone can see is refused by the call, the rest at completion.
//!
//! [`Endpoint::poll_completion`]: crate::contract::Endpoint::poll_completion

mod endpoint;
mod fault;
mod machine;
mod rng;
mod state;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::state::State;
use crate::contract::RegionKey;

pub use self::endpoint::SimEndpoint;
pub use self::fault::{Did, Fault, Held, SimEvent, Wrong};
pub use self::machine::{SimLink, SimMachine};

/// How a simulated network behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Number of ranks.
    pub ranks: u32,
    /// Decides all delays.
    pub seed: u64,
    /// Least and most latency of a message, or of one way of a one-sided
    /// operation.
    pub latency_ns: RangeInclusive<u64>,
    /// Time that each byte adds.
    pub ns_per_byte: f64,
    /// Where ranks are in a machine, and what its links take: in place of the two above.
    pub machine: Option<Arc<SimMachine>>,
    /// Messages under way per sender, receiver and channel; at least 1.
    pub capacity_messages: usize,
    /// Largest payload of one message.
    pub max_payload_bytes: usize,
    /// What [`Capabilities::inline_bytes`] says.
    ///
    /// [`Capabilities::inline_bytes`]: crate::contract::Capabilities::inline_bytes
    pub inline_bytes: usize,
    /// Whether regions can be read.
    pub get: bool,
    /// Whether regions can be written.
    pub put: bool,
    /// Whether there are atomics.
    pub atomics: bool,
    /// Whether regions are mapped by peers.
    pub mapped: bool,
    /// Whether a poll that finds nothing due moves the clock to the next
    /// event.
    pub auto_advance: bool,
    /// Whether messages and one-sided operations stay on their way until
    /// [`SimNet::let_through`] says so, whatever the clock says.
    pub held: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            ranks: 2,
            seed: 0,
            latency_ns: 500..=20_000,
            ns_per_byte: 0.1,
            machine: None,
            capacity_messages: 64,
            max_payload_bytes: 32 << 10,
            inline_bytes: 48,
            get: true,
            put: true,
            atomics: true,
            mapped: false,
            auto_advance: false,
            held: false,
        }
    }
}

/// What happened so far.
///
/// `posted = delivered + dropped_dead + dropped_closed + in flight` holds at
/// any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages posted.
    pub posted: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Messages polled.
    pub delivered: u64,
    /// Messages that vanished because the receiver died.
    pub dropped_dead: u64,
    /// Messages that vanished because the receiver had dropped its endpoint.
    pub dropped_closed: u64,
    /// Messages corrupted on request.
    pub corrupted: u64,
    /// Posts refused for lack of credit.
    pub refused: u64,
    /// One-sided operations started.
    pub operations: u64,
    /// One-sided operations that ended with an error.
    pub failed_operations: u64,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Messages posted and not yet polled.
    pub messages: usize,
    /// One-sided operations whose end was not yet reported.
    pub operations: usize,
}

/// A simulated network; clones are handles of the same one.
#[derive(Clone)]
pub struct SimNet {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    wake: Arc<Condvar>,
}

impl SimNet {
    /// A network in which nothing happened yet, at time 0.
    pub fn new(options: SimOptions) -> Self {
        let wake = Arc::new(Condvar::new());
        let state = Mutex::new(State::new(options, wake.clone()));
        Self {
            inner: Arc::new(Inner { state, wake }),
        }
    }

    /// The end of a channel that belongs to `own`, whose members are numbered
    /// by their place in `members`.
    ///
    /// # Panics
    /// If `members` names a rank twice, a rank that does not exist, or not
    /// `own`, or if this endpoint exists already.
    pub fn endpoint(&self, own: u32, channel: u64, members: &[u32]) -> SimEndpoint {
        SimEndpoint::open(self.clone(), own, channel, members)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A rank that panics elsewhere leaves nothing half done here.
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The options it was made with.
    pub fn options(&self) -> SimOptions {
        self.lock().options.clone()
    }

    /// The virtual time.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Moves the clock.
    pub fn advance(&self, ns: u64) {
        self.lock().advance(ns);
    }

    /// Moves the clock to the next time at which a message or an operation
    /// becomes due; false if there is none ahead (what is due already and was
    /// not polled does not count). Of what is held, lets the first through.
    pub fn advance_to_next_event(&self) -> bool {
        self.lock().advance_to_next_event()
    }

    /// Lets a rank die now. When this returns, nothing touches its memory any
    /// more.
    ///
    /// # Panics
    /// If there is no such rank; so do all methods that take one.
    pub fn kill(&self, rank: u32) {
        self.lock().kill(rank);
    }

    /// Lets a rank leave in order: as [`SimNet::kill`], and
    /// [`SimNet::has_finalized`] tells of it. One that is dead stays so.
    pub fn finalize(&self, rank: u32) {
        self.lock().finalize(rank);
    }

    /// Whether a rank that is dead has left in order.
    pub fn has_finalized(&self, rank: u32) -> bool {
        self.lock().has_finalized(rank)
    }

    /// Lets a rank die of its `step`-th call of an endpoint (the first is 1),
    /// which fails without effect; of the next call if it made as many
    /// already. Each call counts but for [`Endpoint::release`] and those that
    /// say what the endpoint is.
    ///
    /// [`Endpoint::release`]: crate::contract::Endpoint::release
    pub fn kill_at_step(&self, rank: u32, step: u64) {
        self.lock().kill_at_step(rank, step);
    }

    /// Number of calls that a rank made, those after its death not counted.
    pub fn steps(&self, rank: u32) -> u64 {
        self.lock().steps[rank as usize]
    }

    /// Whether a rank is dead.
    pub fn is_dead(&self, rank: u32) -> bool {
        self.lock().is_dead(rank)
    }

    /// All ranks that are dead, in order.
    pub fn dead_ranks(&self) -> Vec<u32> {
        self.lock().dead_ranks()
    }

    /// Number of deaths so far.
    pub fn death_epoch(&self) -> u64 {
        self.lock().deaths
    }

    /// Changes one byte (kind, aux, arg or payload) of the next message that
    /// `from` posts to a living `to`; asked twice, of the next two.
    pub fn corrupt_next(&self, from: u32, to: u32) {
        self.lock().corrupt_next(from, to);
    }

    /// What is on its way and held: the first message of each link, in the
    /// order in which the links were first used, then the operations.
    pub fn held(&self) -> Vec<Held> {
        self.lock().held()
    }

    /// Lets something that is held arrive; the next poll of its receiver finds
    /// it behind what has arrived before. False if it is not there.
    pub fn let_through(&self, held: Held) -> bool {
        self.lock().let_through(held)
    }

    /// Has polls let through what is held, one after the other, each once polls of any rank have found
    /// nothing for some time: the first of [`SimNet::held`], but where `choices` say otherwise, by
    /// the number of the step and the place in the list. For ranks whose polls alone move the
    /// clock ([`SimOptions::auto_advance`]) and that run in turn on one thread, beside which nobody
    /// polls: the same choices give the same run.
    pub fn schedule(&self, choices: &[(u32, u8)]) {
        self.lock().schedule = Some(state::Schedule::new(choices));
    }

    /// What there was to choose from at each step of [`SimNet::schedule`] so far.
    pub fn choices(&self) -> Vec<u8> {
        let state = self.lock();
        let widths = state.schedule.as_ref().map(|s| s.widths.clone());
        widths.unwrap_or_default()
    }

    /// Number of messages and ended operations that polls of an endpoint
    /// would find now.
    pub fn due(&self, channel: u64, rank: u32) -> usize {
        self.lock().due(channel, rank)
    }

    /// Calls `f` with sender, receiver, channel, head and payload of every
    /// message that was posted and not yet polled. `f` must not call the
    /// network.
    pub fn each_message(&self, f: impl FnMut(u32, u32, u64, crate::AmHead, &[u8])) {
        self.lock().each_message(f);
    }

    /// Checks that every credit that is taken belongs to a message; to be
    /// called while no endpoint has a message in hand.
    ///
    /// # Errors
    /// A sentence that names the link.
    pub fn audit(&self) -> Result<(), String> {
        self.lock().audit()
    }

    /// Lets something go wrong with the first message or operation that fits.
    pub fn inject(&self, fault: Fault) {
        self.lock().inject(fault);
    }

    /// Keeps a log from now on.
    pub fn log(&self) {
        self.lock().log.get_or_insert_default();
    }

    /// What was logged since the last call.
    pub fn take_log(&self) -> Vec<SimEvent> {
        self.lock()
            .log
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Takes back one export of a region; false if there is none.
    pub fn unexport(&self, key: &RegionKey) -> bool {
        self.lock().unregister(key)
    }

    /// Takes back all exports of a rank. When this returns, nothing touches
    /// them any more.
    pub fn forget_exports(&self, rank: u32) {
        self.lock().forget_exports(rank);
    }

    /// Number of a rank's exports that were not taken back.
    pub fn exports(&self, rank: u32) -> usize {
        self.lock().exports(rank)
    }

    /// What is under way.
    pub fn in_flight(&self) -> InFlight {
        self.lock().in_flight
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// A hash of all deliveries in their order (time, sender, receiver,
    /// channel, kind and size) and of all ends of one-sided operations.
    /// Equal runs have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace_hash
    }

    /// A number that grows whenever something happens that an idle rank may
    /// wait for: a post, a release, an operation, a death, a move of the clock.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Sleeps while the generation is `seen`, at most that long; returns the
    /// generation. Take `seen` before the polls that found nothing.
    pub fn wait_generation_change(&self, seen: u64, timeout: Duration) -> u64 {
        let start = Instant::now();
        let mut state = self.lock();
        while state.generation == seen {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            state.sleepers += 1;
            state = self
                .inner
                .wake
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.sleepers -= 1;
        }
        state.generation
    }

    /// Wakes all sleepers, for news that the network does not know of.
    pub fn notify(&self) {
        self.lock().changed();
    }
}
