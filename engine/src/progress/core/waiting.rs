//! Waiting of a thread: it spins, then yields, then sleeps. A virtual rank leaves its thread to
//! others in place of each ([`suspend`]).
//!
//! What the stages hold to stands at the head of [`super`].

use super::{Core, JobTransport, lock};
use crate::diagnose::threads;
use crate::diagnose::waits::{EndedBy, Observed, Watch, is_hopeless, listen, resign};
use crate::diagnose::{LONG, report, watch};
use crate::progress::backoff;
use crate::progress::cell::LaneCell;
use crate::progress::lane::{IDLE_POLLS, Lane};
use crate::progress::suspend::{self, Resumed, SuspendUntil};
use crate::trace::event::{Event, Kind};
use osier_transports::shm::{JobStatus, monotonic_ns};
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Polls in a row that find nothing before a thread polls other lanes.
const LOOK_AROUND: u32 = 128;
/// Polls in a row behind which a pause is short, and nothing is learned from it.
const QUIET_POLLS: u32 = 3;
/// Polls without result before a thread yields its core.
const SPIN_POLLS: u32 = 800;
/// The same where ranks share cores.
const SPIN_POLLS_SHARED: u32 = 8;
/// The same of a virtual rank: another may have to run first, and a turn of it costs less than
/// the polls.
const SPIN_POLLS_ON_STACK: u32 = 1;
/// Turns that a virtual rank leaves to the others of its worker before it parks.
const TURNS: u32 = 16;
/// Yields without result before a thread sleeps.
const YIELDS: u32 = 1_000;
const YIELDS_SHARED: u32 = 2_000;
/// Of these, yields of a call that takes its steps itself, before it leaves them to a run:
/// what a rank on the same core sends next comes after a switch to it and back.
const DIRECT_YIELDS_SHARED: u32 = 64;
/// Longest sleep. After it a rank checks whether its waits have become long;
/// and a lost wake-up would end here.
const SLEEP: Duration = LONG;
/// So long before a delayed message is visible a thread is awake: the system wakes it up to tens of
/// us late. Not tuned.
const AWAKE_BEFORE_NS: u64 = 100_000;
/// Result of one poll of all lanes.
#[derive(Default)]
struct LanesPolled {
    /// A message came, or an operation is in flight.
    found: bool,
    /// Counts whatever the lanes have received or posted so far.
    moved: u64,
}

/// Yields before a wait sleeps, unless it has done so often enough: a virtual rank to the
/// others of its worker, whose turns take no system call.
fn yields_once(round: u32, most: u32, watch: &mut Watch<'_>) -> bool {
    if let Some(here) = suspend::here() {
        let turns = round < TURNS;
        if turns {
            here.turn(round == 0);
        }
        return turns;
    }
    let yields = watch.may_yield(round, most);
    if yields {
        std::thread::yield_now();
    }
    yields
}

impl Core {
    /// As `progress_all`, for callers that poll in a loop and never sleep: checks
    /// now and then for peers that have dropped a communicator.
    pub fn progress_awake(&self) -> bool {
        if self.progress_all() {
            return true;
        }
        self.give_way();
        let idle = self.idle_polls.fetch_add(1, Ordering::Relaxed);
        idle.is_multiple_of(IDLE_POLLS) && self.check_closed()
    }

    /// Yields, for callers whose polls found nothing, hold no lock and may poll at once: where
    /// ranks share cores, another may have to run before there is an answer.
    pub fn give_way(&self) {
        if self.on_stack && (suspend::awaits() || suspend::turn(false)) {
            return;
        }
        if self.shared_cores {
            let asked = self.asked_in_vain.fetch_add(1, Ordering::Relaxed);
            if asked.is_multiple_of(SPIN_POLLS_SHARED) {
                std::thread::yield_now();
            }
        }
    }

    /// As [`Core::give_way`], of virtual ranks alone: the others of its worker have to run where
    /// a program polls in a loop.
    #[inline]
    pub fn give_turn(&self) {
        if self.on_stack && !suspend::awaits() {
            suspend::turn(false);
        }
    }

    /// Progresses until `check` has a result. `check` runs under the lane's
    /// lock.
    #[inline]
    #[track_caller]
    pub fn wait_on<R>(&self, lane: &LaneCell, mut check: impl FnMut(&mut Lane) -> Option<R>) -> R {
        let mut watch = Watch::new(&self.waits, Location::caller(), EndedBy::Ranks);
        let mut guard = lane.lock();
        let spin = self.spin_polls();
        let (mut idle, mut helped) = (0u32, 0u32);
        let mut attends = false;
        loop {
            if let Some(result) = check(&mut guard) {
                self.after(&mut guard);
                if attends {
                    self.attend(false);
                }
                return result;
            }
            if guard.owes() {
                // Foreign code runs without a lane; it may be what we wait for.
                self.after(&mut guard);
                drop(guard);
                guard = lane.lock();
                continue;
            }
            if guard.progress() {
                guard.found_after(idle);
                idle = 0;
                continue;
            }
            if self.serve() {
                // More come soon.
                idle = idle.min(QUIET_POLLS);
                continue;
            }
            idle += 1;
            if !self.on_stack {
                backoff::pause(guard.quiet_after(idle));
                if idle == 1 && !attends {
                    attends = true;
                    self.attend(true);
                }
            }
            if idle < spin && !idle.is_multiple_of(LOOK_AROUND) && !lane.wanted() {
                continue;
            }
            self.after(&mut guard);
            drop(guard);
            if self.progress_all() {
                // A thread that has just moved something for others is soon needed again:
                // it yields before it sleeps once more.
                idle = idle.min(spin);
                helped = helped.wrapping_add(1);
                if helped.is_multiple_of(IDLE_POLLS) {
                    self.check_closed();
                }
            } else if idle >= spin
                && let Some(result) = self.idle(idle - spin, lane, &mut check, &mut watch)
            {
                if attends {
                    self.attend(false);
                }
                return result;
            }
            guard = lane.lock();
        }
    }

    /// Tells peers whether a thread of this rank waits: it would answer them
    /// at once. A hint; several threads may overwrite each other's.
    #[inline]
    fn attend(&self, waits: bool) {
        if let Some(r) = self.transport.shm() {
            r.attend(waits);
        }
    }

    /// As `wait_on`, for a check that takes locks itself.
    #[track_caller]
    pub fn wait_until<R>(&self, check: impl FnMut() -> Option<R>) -> R {
        let watch = Watch::new(&self.waits, Location::caller(), EndedBy::Ranks);
        self.wait_watched(check, watch, true)
    }

    /// As `wait_until`, for a check that runs code of the user's: other things
    /// than messages may end the wait, so it does not resign. Futures that no rank is left
    /// to end do so themselves when they are polled.
    #[track_caller]
    pub fn drive<R>(&self, check: impl FnMut() -> Option<R>) -> R {
        let watch = Watch::new(&self.waits, Location::caller(), EndedBy::Anything);
        self.wait_watched(check, watch, false)
    }

    /// As `wait_until`, for a worker of a graph, whose check says what its tasks wait for. It
    /// does not resign: the graph learns itself of ranks that have left. `site` runs the graph.
    #[track_caller]
    pub fn wait_for_tasks<R>(
        &self,
        site: &'static Location<'static>,
        check: impl FnMut() -> Option<R>,
    ) -> R {
        let watch = Watch::new(&self.waits, site, EndedBy::Ranks);
        self.wait_watched(check, watch, false)
    }

    #[track_caller]
    fn wait_watched<R>(
        &self,
        mut check: impl FnMut() -> Option<R>,
        mut watch: Watch<'_>,
        resigns: bool,
    ) -> R {
        let _span = self
            .trace
            .as_ref()
            .map(|t| t.call(Event::of(Kind::Wait), Location::caller()));
        let mut idle = 0u32;
        loop {
            if let Some(result) = check() {
                return result;
            }
            if self.progress_all() {
                idle = 0;
                continue;
            }
            idle += 1;
            let (spin, yields) = (self.spin_polls() / 4, self.yields());
            if idle < spin {
                continue;
            }
            if yields_once(idle - spin, yields, &mut watch) {
                continue;
            }
            let mut result = None;
            self.sleep(|| {
                self.check_closed();
                let (long, left) = (watch.is_long(), resigns && self.any_left());
                if long || left {
                    let (found, heard) = listen(&mut check);
                    result = found;
                    if result.is_none() && left && is_hopeless(&heard) {
                        result = resign(&mut check);
                    }
                    if result.is_none() && long {
                        watch.tell(heard);
                    }
                } else {
                    result = check();
                }
                result.is_none()
            });
            if let Some(result) = result {
                return result;
            }
        }
    }

    fn yields(&self) -> u32 {
        if self.shared_cores {
            YIELDS_SHARED
        } else {
            YIELDS
        }
    }

    /// Number of ranks of the job that share a core, the same on all ranks; 1 if none do
    /// or it is unknown.
    pub fn ranks_per_core(&self) -> u32 {
        match &self.transport {
            JobTransport::Shm(r) => match r.job().cores() {
                0 => 1,
                cores => r.job().ranks().div_ceil(cores) as u32,
            },
            JobTransport::Hosts(on) => on.map.ranks_per_core(),
            JobTransport::Alone | JobTransport::Sim(..) => 1,
        }
    }

    /// Cores that the job has for each rank, rounded down, the same on all ranks; 0 if unknown.
    pub fn cores_per_rank(&self) -> usize {
        match &self.transport {
            JobTransport::Shm(r) => r.job().cores() / r.job().ranks(),
            JobTransport::Hosts(on) => on.map.cores_per_rank() as usize,
            JobTransport::Alone | JobTransport::Sim(..) => 0,
        }
    }

    /// Whether ranks of the job share cores.
    #[inline]
    pub fn shares_cores(&self) -> bool {
        self.shared_cores
    }

    /// How often a thread yields before it posts a receive that it waits for.
    #[inline]
    pub fn direct_yields(&self) -> u32 {
        match self.shared_cores && !self.on_stack {
            true => DIRECT_YIELDS_SHARED,
            false => 0,
        }
    }

    /// Polls in a row that find nothing before a thread yields.
    #[inline]
    pub fn spin_polls(&self) -> u32 {
        if self.on_stack {
            SPIN_POLLS_ON_STACK
        } else if self.shared_cores {
            SPIN_POLLS_SHARED
        } else {
            SPIN_POLLS
        }
    }

    /// Whether this is a virtual rank's: a thread that waits for it has others to run.
    #[inline]
    pub fn on_stack(&self) -> bool {
        self.on_stack
    }

    /// Yields or sleeps once; returns a result that it finds before.
    #[cold]
    fn idle<R>(
        &self,
        round: u32,
        lane: &LaneCell,
        check: &mut impl FnMut(&mut Lane) -> Option<R>,
        watch: &mut Watch<'_>,
    ) -> Option<R> {
        if yields_once(round, self.yields(), watch) {
            return None;
        }
        let mut result = None;
        self.sleep(|| {
            let long = watch.is_long();
            let heard = self.with(lane, |lane| {
                lane.check_closed();
                lane.progress();
                if !long && !lane.any_left() {
                    result = check(lane);
                    return None;
                }
                let (found, heard) = listen(|| check(lane));
                result = found;
                if result.is_none() && is_hopeless(&heard) {
                    result = resign(|| check(lane));
                }
                (long && result.is_none()).then_some(heard)
            });
            if let Some(heard) = heard {
                watch.tell(heard);
            }
            result.is_none()
        });
        result
    }

    /// Sleeps until something may have changed. `quiet` is asked once the
    /// thread counts as a sleeper; false keeps it awake.
    pub fn sleep(&self, quiet: impl FnOnce() -> bool) {
        self.forget_lingering();
        if self.devices.is_busy() || self.sleep_time().is_zero() {
            // Nobody rings when a device is done, or a delayed message is visible.
            if quiet() && !self.poll_all() {
                if !suspend::turn(false) {
                    std::thread::yield_now();
                }
                self.tick();
            }
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = lock(&self.bed).events;
        let generation = match &self.transport {
            JobTransport::Sim(net, _) => net.generation(),
            _ => 0,
        };
        // A device may have begun after the first check.
        if quiet() && !self.devices.is_busy() {
            self.sleep_quiet(seen, generation);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// How long a thread may sleep: until shortly before the next delayed message is visible.
    fn sleep_time(&self) -> Duration {
        if !self.delayed {
            return SLEEP;
        }
        let mut next: Option<u64> = None;
        self.each_lane(|lane, _| {
            let due = lane.lock().next_due_ns();
            next = next.into_iter().chain(due).min();
        });
        let Some(next) = next else {
            return SLEEP;
        };
        let left = next.saturating_sub(monotonic_ns() + AWAKE_BEFORE_NS);
        Duration::from_nanos(left).min(SLEEP)
    }

    fn sleep_quiet(&self, seen: u64, generation: u64) {
        let mut bed = lock(&self.bed);
        if bed.events != seen {
            return;
        }
        if bed.leader || matches!(self.transport, JobTransport::Alone) {
            // Another thread listens, or there is no peer; the thread that
            // completes an operation wakes us.
            match suspend::here() {
                Some(here) => {
                    drop(bed);
                    here.suspend(SuspendUntil::While);
                }
                None => drop(self.changed.wait_timeout(bed, SLEEP)),
            }
            if matches!(self.transport, JobTransport::Alone) {
                self.tick();
            }
            return;
        }
        bed.leader = true;
        drop(bed);
        match (&self.transport, suspend::here()) {
            (JobTransport::Shm(r), None) => {
                let quiet = || !self.poll_all() && !self.check_closed();
                r.sleep(&[], || self.sleep_time(), quiet);
            }
            (JobTransport::Shm(r), Some(here)) => r.park(
                // What a thread of this rank has ended before the word said so.
                || !self.poll_all() && !self.check_closed() && lock(&self.bed).events == seen,
                |parked| {
                    let until = SuspendUntil::Roused(parked, self.sleep_time());
                    here.suspend(until) == Resumed::Look
                },
            ),
            (JobTransport::Hosts(on), None) => {
                let events = on.net.events();
                let quiet = || !self.poll_all() && !self.check_closed();
                on.shm.sleep(&[events], || self.sleep_time(), quiet);
            }
            // Its thread runs others, and looks again: nobody would rouse it for the network.
            (JobTransport::Hosts(_), Some(here)) => {
                if !self.poll_all() {
                    here.suspend(SuspendUntil::While);
                }
            }
            (JobTransport::Sim(net, _), here) => match (self.poll_all(), here) {
                (true, _) => {}
                (false, Some(here)) => {
                    here.suspend(SuspendUntil::While);
                }
                (false, None) => {
                    net.wait_generation_change(generation, SLEEP);
                }
            },
            (JobTransport::Alone, _) => {}
        }
        let mut bed = lock(&self.bed);
        bed.leader = false;
        bed.events += 1;
        drop(bed);
        self.changed.notify_all();
        self.tick();
    }

    /// Runs about every [`LONG`] while a thread sleeps: publishes the waits of this
    /// rank, reports those that are too long, and finds out whether the job hangs
    /// if no other rank does.
    fn tick(&self) {
        if !self.waits.is_due() {
            return;
        }
        let Some((changes, ends)) = self.waits.before_look() else {
            return;
        };
        // In the simulated network a poll moves the clock.
        let known = ends < EndedBy::Anything && !matches!(self.transport, JobTransport::Sim(..));
        let sure = known
            && ends == EndedBy::Ranks
            && self.futures.load(Ordering::Acquire) == 0
            && threads::all_inside(self.waits.job);
        if known && !sure && !self.waits.is_outside_due() {
            self.report_stalls();
            return;
        }
        let began = monotonic_ns();
        let outside = || lock(&self.outside).observe(&threads::outside(self.waits.job)?);
        let asleep = (known && !sure).then(outside);
        let polled = match sure || matches!(asleep, Some(Some(_))) {
            true => self.poll_lanes(),
            false => LanesPolled::default(),
        };
        let (calm, moved) = (!polled.found, polled.moved);
        let still = match &asleep {
            None => sure && calm,
            Some(asleep) => asleep.is_some() && calm,
        };
        let observed = match asleep {
            Some(asleep) => Observed::Outside {
                calm,
                moved,
                asleep,
            },
            None if sure => Observed::Inside { calm, moved },
            None => Observed::Nothing,
        };
        self.waits.after_observation(changes, observed, began);
        self.report_stalls();
        if still {
            self.watch_for_hangs();
        }
    }

    /// Reports waits that have lasted too long.
    fn report_stalls(&self) {
        let stalled = self.waits.stalled();
        if !stalled.is_empty() {
            eprint!("{}", report::stall(self.rank, &stalled, monotonic_ns()));
        }
    }

    /// Polls all lanes.
    fn poll_lanes(&self) -> LanesPolled {
        let mut polled = LanesPolled {
            found: self.death_epoch() != self.seen_deaths.load(Ordering::Relaxed),
            moved: 0,
        };
        self.each_lane(|lane, _| {
            self.with(lane, |lane| {
                polled.found |= lane.progress() || lane.unsettled();
                polled.moved = polled.moved.wrapping_add(lane.moved());
            });
        });
        polled
    }

    /// Reports a hang of a job that has no launcher to do so: its lowest
    /// living rank does.
    fn watch_for_hangs(&self) {
        let mut watcher = lock(&self.watcher);
        let patience = self.waits.patience.get().copied();
        let report = match &self.transport {
            JobTransport::Alone => {
                let verdict = watch::verdict([self.waits.standing()], patience);
                verdict.and_then(|sure| watcher.tell(sure, &[(0, self.waits.page())], &[], 1))
            }
            JobTransport::Shm(r) => {
                let job = r.job();
                let lowest = (0..job.ranks()).find(|r| job.death(*r).is_none());
                if job.watched() || lowest != Some(r.rank()) {
                    return;
                }
                JobStatus::of(job)
                    .ok()
                    .and_then(|s| watcher.observe(&s, patience))
            }
            _ => None,
        };
        if let Some(report) = report {
            crate::diagnose::tell(report.text);
        }
    }

    /// Polls every lane, those without operations too: a thread may wait for a
    /// message without a posted receive (a probe).
    fn poll_all(&self) -> bool {
        let mut any = self.death_epoch() != self.seen_deaths.load(Ordering::Relaxed);
        any |= self.serve();
        self.each_lane(|lane, _| any |= self.with(lane, Lane::progress));
        any
    }
}
