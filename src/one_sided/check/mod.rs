//! Checks of accesses to windows: `OSIER_CHECK=windows`.
//!
//! A rank notes its accesses, and tells the ranks whose parts they were to: at a fence, with the
//! end of an epoch of start and complete, when it gives a lock back. Each rank looks for
//! [`conflicts`] among the accesses to its own part.
//!
//! ```text
//! access -> note -> open (until a flush or unlock, where calls do not complete)
//!                -> pending -> batch to the target -> kept there, conflicts reported
//! ```
//!
//! Off, nothing of this runs. On, all accesses go the way that asks.

mod conflicts;
mod record;

use crate::comm::Communicator;
use crate::p2p::Request;
use conflicts::{Access, Kept, Within};
use osier_engine::check::{Check, Checks};
use osier_engine::diagnose::tell;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::update::Change;
use osier_engine::view::RawView;
use osier_transports::shm::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of messages with batches, on the window's communicator.
const TAG: i32 = 3;
/// Most runs of bytes of an access that is looked at.
const MOST_RUNS: usize = 1 << 16;
/// Accesses to a part after which it is told, at the next call.
const TOLD_AT: usize = 256;

/// What an access does, as its call says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    Put,
    Get,
    Update(Change),
    Swap,
}

impl Does {
    fn kind(self, own: bool) -> conflicts::Kind {
        use conflicts::Kind;
        match self {
            Does::Put if own => Kind::Store,
            Does::Get if own => Kind::Load,
            Does::Put => Kind::Put,
            Does::Get => Kind::Get,
            Does::Update(change) => Kind::Update(change),
            Does::Swap => Kind::Swap,
        }
    }
}

/// What is known of a window's accesses on one rank.
pub(super) struct Watch {
    checks: Checks,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fences: u64,
    /// Targets of the epoch that `start` has opened.
    started: Vec<usize>,
    /// How often each rank was started.
    starts: BTreeMap<usize, u64>,
    /// Exposures of the own part so far, and whether one is open.
    exposures: u64,
    is_posted: bool,
    /// Exposures to each rank, in order.
    posts: BTreeMap<usize, Vec<u64>>,
    /// Locks of each part that this rank has.
    locked: BTreeMap<usize, u32>,
    on_all: u32,
    /// Accesses that a flush is to complete, by target.
    open: BTreeMap<usize, Vec<Access>>,
    /// Accesses that targets have not been told of.
    pending: BTreeMap<usize, Vec<Access>>,
    /// Batches that each rank was sent, and has sent, since the last fence.
    sent: BTreeMap<usize, u64>,
    received: BTreeMap<usize, u64>,
    /// Batches of each rank that have closed an epoch, and that nobody has waited for.
    closed: BTreeMap<usize, u64>,
    sends: Vec<Request<Vec<u8>>>,
    kept: Kept,
    /// Pairs of lines that were reported.
    reported: BTreeSet<(String, String)>,
    /// Accesses that were not looked at.
    unseen: u64,
}

/// The bytes of a view, in order and merged; `None`: they are too many runs.
fn runs_of(target: &RawView) -> Option<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut too_many = false;
    target.runs(|run| {
        let run = run.start as u64..run.end as u64;
        let is_full = runs.len() == MOST_RUNS;
        match runs.last_mut() {
            _ if run.is_empty() || too_many => {}
            Some(last) if last.end == run.start => last.end = run.end,
            _ if is_full => too_many = true,
            _ => runs.push(run),
        }
    });
    runs.sort_by_key(|run| run.start);
    runs.dedup_by(|next, before| {
        let touch = next.start <= before.end;
        if touch {
            before.end = before.end.max(next.end);
        }
        touch
    });
    (!too_many).then_some(runs)
}

impl Watch {
    /// If `OSIER_CHECK` asks for it.
    pub fn of(comm: &Communicator) -> Option<Self> {
        let checks = &comm.core().checks;
        checks.has(Check::Windows).then(|| Self {
            checks: checks.clone(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an access is complete when its call returns.
    fn calls_complete(&self) -> bool {
        !self.checks.is_foreign()
    }

    /// Of the clock by which accesses are told apart.
    pub fn now(&self) -> u64 {
        monotonic_ns()
    }

    /// Notes an access that was made since `begun`.
    #[track_caller]
    pub fn note(
        &self,
        comm: &Communicator,
        does: Does,
        rank: usize,
        target: &RawView,
        begun: u64,
    ) -> Result<()> {
        let (line, time) = (Location::caller(), begun..monotonic_ns());
        let own = comm.rank();
        if rank == own && matches!(does, Does::Update(Change::Keep)) {
            // A rank that polls.
            return Ok(());
        }
        let mut state = self.state();
        let state = &mut *state;
        let Some(runs) = runs_of(target) else {
            state.unseen += 1;
            return Ok(());
        };
        let locked = state.on_all > 0 || state.locked.contains_key(&rank);
        let within = if locked {
            Within::Lock
        } else if rank == own {
            let exposures = match state.is_posted {
                true => state.exposures,
                false => u64::MAX,
            };
            Within::Own {
                fences: state.fences,
                exposures,
            }
        } else if state.started.contains(&rank) {
            Within::Exposure(state.starts.get(&rank).copied().unwrap_or(0))
        } else {
            Within::Fences(state.fences)
        };
        let access = Access {
            origin: own as u32,
            kind: does.kind(rank == own && !locked),
            within,
            time,
            runs,
            site: self.checks.site(line).to_string(),
        };
        let is_open = !self.calls_complete() && within == Within::Lock;
        match is_open {
            true => state.open.entry(rank).or_default().push(access),
            false => state.pending.entry(rank).or_default().push(access),
        }
        if state.pending.get(&rank).is_some_and(|p| p.len() >= TOLD_AT) {
            self.tell(state, comm, rank, false)?;
        }
        self.hear_what_came(state, comm)
    }

    /// Tells a rank of accesses to its part.
    fn tell(
        &self,
        state: &mut State,
        comm: &Communicator,
        rank: usize,
        closes: bool,
    ) -> Result<()> {
        let pending = state.pending.remove(&rank).unwrap_or_default();
        if rank == comm.rank() {
            pending
                .into_iter()
                .for_each(|access| self.keep(state, comm, access));
            return Ok(());
        }
        if pending.is_empty() && !closes {
            return Ok(());
        }
        state.sends.retain_mut(|send| !send.test());
        let batch = record::to_wire(closes, &pending);
        state.sends.push(comm.isend(batch, rank, TAG)?);
        *state.sent.entry(rank).or_default() += 1;
        Ok(())
    }

    /// Looks for conflicts of an access to the own part with others.
    fn keep(&self, state: &mut State, comm: &Communicator, access: Access) {
        let (own, reported) = (comm.rank(), &mut state.reported);
        state.kept.add(access, self.calls_complete(), |one, two, bytes| {
            let lines = (one.site.clone(), two.site.clone());
            if !reported.insert(lines) {
                return;
            }
            let name = |access: &Access| {
                let verb = access.kind.verb();
                format!("  {verb} by rank {} at {}\n", access.origin, access.site)
            };
            let (start, end) = (bytes.start, bytes.end);
            let what = format!(
                "conflict: {} and {} of bytes {start} to {end} of rank {own}'s part of a window, \
                 which nothing orders\n{}{}",
                one.kind.verb(),
                two.kind.verb(),
                name(one),
                name(two)
            );
            self.checks.report(Check::Windows, what);
        });
    }

    /// Takes a batch of a rank.
    fn take(&self, state: &mut State, comm: &Communicator, rank: usize) -> Result<()> {
        let (wire, _) = comm.recv_vec::<u8>(rank, TAG)?;
        let Some((closes, accesses)) = record::from_wire(rank as u32, &wire) else {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "{} bytes of rank {rank} about accesses to a window",
                    wire.len()
                ),
            ));
        };
        *state.received.entry(rank).or_default() += 1;
        *state.closed.entry(rank).or_default() += u64::from(closes);
        for mut access in accesses {
            if let Within::Exposure(number) = access.within {
                // Their number of the epoch is ours of the exposure.
                let posts = state.posts.get(&rank);
                let exposure = posts.and_then(|posts| posts.get(number.checked_sub(1)? as usize));
                access.within = exposure.map_or(Within::Lock, |n| Within::Exposure(*n));
            }
            self.keep(state, comm, access);
        }
        Ok(())
    }

    fn hear_what_came(&self, state: &mut State, comm: &Communicator) -> Result<()> {
        while let Some(status) = comm.iprobe(crate::ANY_SOURCE, TAG)? {
            let source = status.source();
            source.map_or(Ok(()), |source| self.take(state, comm, source))?;
        }
        Ok(())
    }

    /// A part was locked.
    pub fn locked(&self, rank: usize) {
        *self.state().locked.entry(rank).or_default() += 1;
    }

    /// An epoch on all parts was opened.
    pub fn locked_all(&self) {
        self.state().on_all += 1;
    }

    /// Accesses to some parts are complete: behind a flush, and before the lock is given back.
    pub fn flushed(&self, comm: &Communicator, ranks: Option<usize>) -> Result<()> {
        let mut state = self.state();
        let state = &mut *state;
        let now = monotonic_ns();
        let touched = |of: &BTreeMap<usize, Vec<Access>>| -> Vec<usize> {
            let all = of.keys().copied();
            all.filter(|rank| ranks.is_none_or(|one| one == *rank))
                .collect()
        };
        for rank in touched(&state.open) {
            let mut open = state.open.remove(&rank).unwrap_or_default();
            open.iter_mut().for_each(|access| access.time.end = now);
            state.pending.entry(rank).or_default().append(&mut open);
        }
        for rank in touched(&state.pending) {
            self.tell(state, comm, rank, false)?;
        }
        self.hear_what_came(state, comm)
    }

    /// A lock was given back.
    pub fn unlocked(&self, rank: usize) {
        let mut state = self.state();
        if let Some(locks) = state.locked.get_mut(&rank) {
            *locks -= 1;
            if *locks == 0 {
                state.locked.remove(&rank);
            }
        }
    }

    pub fn unlocked_all(&self) {
        let mut state = self.state();
        state.on_all = state.on_all.saturating_sub(1);
    }

    /// The own part may be used by some ranks.
    pub fn posted(&self, origins: &[usize]) {
        let mut state = self.state();
        state.exposures += 1;
        state.is_posted = true;
        let number = state.exposures;
        for origin in origins {
            state.posts.entry(*origin).or_default().push(number);
        }
    }

    /// Parts of some ranks may be used.
    pub fn started(&self, targets: &[usize]) {
        let mut state = self.state();
        state.started = targets.to_vec();
        for target in targets {
            *state.starts.entry(*target).or_default() += 1;
        }
    }

    /// Before the ranks are told that their parts are used no more.
    pub fn completes(&self, comm: &Communicator, targets: &[usize]) -> Result<()> {
        let mut state = self.state();
        let state = &mut *state;
        state.started.clear();
        let mut targets = targets.iter();
        targets.try_for_each(|target| self.tell(state, comm, *target, true))
    }

    /// All ranks have told that they use the own part no more.
    pub fn waited(&self, comm: &Communicator, origins: &[usize]) -> Result<()> {
        let mut state = self.state();
        let state = &mut *state;
        state.is_posted = false;
        self.tell(state, comm, comm.rank(), false)?;
        for origin in origins.iter().filter(|origin| **origin != comm.rank()) {
            while state.closed.get(origin).is_none_or(|closed| *closed == 0) {
                self.take(state, comm, *origin)?;
            }
            *state.closed.entry(*origin).or_default() -= 1;
        }
        Ok(())
    }

    /// All ranks are at a fence, or give the window back: each hears of all accesses to its part.
    /// Collective.
    #[track_caller]
    pub fn fenced(&self, comm: &Communicator) -> Result<()> {
        self.flushed(comm, None)?;
        let mut state = self.state();
        let state = &mut *state;
        let sent = (0..comm.size()).map(|rank| state.sent.remove(&rank).unwrap_or(0));
        let sent: Vec<u64> = sent.collect();
        let mut expected = vec![0u64; comm.size()];
        comm.alltoall(&sent, &mut expected)?;
        for (rank, expected) in expected.iter().enumerate() {
            while state.received.get(&rank).copied().unwrap_or(0) < *expected {
                self.take(state, comm, rank)?;
            }
        }
        state.received.clear();
        for send in std::mem::take(&mut state.sends) {
            send.wait()?;
        }
        // Whatever follows begins behind all of these.
        let kept = std::mem::take(&mut state.kept);
        let unseen = std::mem::take(&mut state.unseen) + kept.dropped;
        if unseen > 0 {
            tell(format_args!(
                "rank {}: {unseen} accesses to windows were not looked at: more than {} between \
                 fences, or of more than {MOST_RUNS} blocks",
                comm.rank(),
                conflicts::KEPT
            ));
        }
        state.fences += 1;
        Ok(())
    }
}
