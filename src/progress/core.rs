//! What the lanes of a rank share: who is dead, where threads wait.
//!
//! A wait spins, then yields, then sleeps. One thread per rank sleeps on the
//! rank's doorbell and file descriptors; others that wait sleep on a condition
//! variable behind it and take its place in turn. Whoever finishes another
//! thread's operation while somebody sleeps wakes the sleepers.
//!
//! # Invariants
//! 1. `sleepers` is raised before a thread looks at its operation for the last
//!    time under the lane's lock, and whoever finishes an operation looks at
//!    `sleepers` afterwards under the same lock: one of the two sees the other.
//! 2. Every lane with operations under way is polled by every thread that
//!    waits, at the latest before it sleeps.

use super::cell::LaneCell;
use super::enqueued::Rung;
use super::lane::{IDLE_POLLS, Lane};
use super::pace;
use crate::check::{Check, Checks, Setting};
use crate::device::Devices;
use crate::diagnose::threads::{self, Inside};
use crate::diagnose::verdict::hangs;
use crate::diagnose::waits::{Asked, Waits, Watch, listen};
use crate::diagnose::watch::Watcher;
use crate::diagnose::{LONG, report};
use crate::p2p::buffered::Attached;
use crate::protocol::select::Selection;
use crate::trace::Tracer;
use crate::trace::event::{Event, Kind};
use osier_transports::shm::{Death, JobStatus, ShmRank, monotonic_ns};
use osier_transports::sim::SimNet;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

/// How this rank reaches its job.
pub(crate) enum Place {
    /// A job of one rank.
    Alone,
    Shm(ShmRank),
    Sim(SimNet, u32),
}

/// Polls in a row that find nothing before a thread looks at other lanes.
const LOOK_AROUND: u32 = 128;
/// Polls without result before a thread yields its core.
const SPIN_POLLS: u32 = 800;
/// The same where ranks share cores.
const SPIN_POLLS_SHARED: u32 = 8;
/// Yields without result before a thread sleeps.
const YIELDS: u32 = 1_000;
const YIELDS_SHARED: u32 = 2_000;
/// Of these, yields of a call that takes its steps itself, before it leaves them to a run:
/// what a rank on the same core sends next comes after a switch to it and back.
const DIRECT_YIELDS_SHARED: u32 = 64;
/// Longest sleep. After it a rank looks whether its waits have become long;
/// and a lost wake-up would end here.
const SLEEP: Duration = LONG;
/// Of the thread that makes progress for futures and streams.
const PROGRESS_THREAD: &str = "osier-progress";
/// Most lost messages named in a report of a lane.
const SHOWN: usize = 8;

/// Read by every call of every thread, and hardly ever written; on lines of its
/// own, so that nobody writes beside it.
#[repr(align(128))]
pub(crate) struct Core {
    pub place: Place,
    pub selection: Arc<Selection>,
    /// This rank's number in the job, and the job's size.
    pub rank: u32,
    pub ranks: u32,
    lanes: RwLock<Vec<Listed>>,
    /// Lanes of dropped communicators that still have something to send.
    lingering: Mutex<Vec<Arc<LaneCell>>>,
    sleepers: AtomicUsize,
    bed: Mutex<Bed>,
    changed: Condvar,
    shared_cores: bool,
    seen_deaths: AtomicU64,
    /// Whether lanes may be biased to a thread.
    pub biased: bool,
    /// The rank's buffer for buffered sends.
    pub attached: Attached,
    /// Requests that foreign executors wait for, and streams that wait.
    pub(super) futures: AtomicUsize,
    /// What graphs have begun.
    pub(super) rung: Rung,
    /// Polls in vain of callers that never sleep.
    idle_polls: AtomicU32,
    /// As it counts, but of ranks that share cores only: see [`Core::give_way`].
    asked_in_vain: AtomicU32,
    thread: OnceLock<std::thread::Thread>,
    closing: AtomicBool,
    /// What this rank's threads wait for.
    pub waits: Waits,
    /// Looks out for hangs where no launcher does.
    watcher: Mutex<Watcher>,
    /// Records what this rank does.
    pub trace: Option<Arc<Tracer>>,
    /// What is checked, and what was found.
    pub checks: Checks,
    /// What messages of devices need.
    pub devices: Arc<Devices>,
}

/// A communicator's lane, for as long as the communicator lives.
struct Listed {
    lane: Weak<LaneCell>,
    /// The ranks of the job behind its peers.
    members: Arc<[u32]>,
    /// The session that it stems from.
    session: Option<usize>,
}

/// What sleepers agree on.
#[derive(Default)]
struct Bed {
    /// A thread sleeps on the doorbell.
    leader: bool,
    /// Changes with whatever may concern a sleeper.
    events: u64,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(
        place: Place,
        rank: u32,
        ranks: u32,
        selection: Arc<Selection>,
        shared_cores: bool,
        trace: Option<Arc<Tracer>>,
        checks: Setting,
    ) -> Arc<Self> {
        let abort: Box<dyn Fn(i32) + Send + Sync> = match &place {
            Place::Shm(r) => {
                let own = r.clone();
                Box::new(move |code| own.job().abort(code))
            }
            Place::Alone | Place::Sim(..) => Box::new(|_| {}),
        };
        let waits = match &place {
            Place::Shm(r) => {
                let own = r.clone();
                Waits::new(r.job().id(), Box::new(move |words| own.publish(words)))
            }
            // Nobody else could read it.
            Place::Alone | Place::Sim(..) => Waits::new(monotonic_ns(), Box::new(|_| {})),
        };
        let shared = match &place {
            Place::Shm(r) => Some(r.clone()),
            Place::Alone | Place::Sim(..) => None,
        };
        let devices = Devices::new(shared, selection.costs());
        Arc::new(Self {
            place,
            waits,
            watcher: Mutex::default(),
            selection,
            rank,
            ranks,
            lanes: RwLock::default(),
            lingering: Mutex::default(),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::default(),
            changed: Condvar::new(),
            shared_cores,
            seen_deaths: AtomicU64::new(0),
            biased: super::cell::bias_offered(),
            attached: Attached::default(),
            futures: AtomicUsize::new(0),
            rung: Rung::default(),
            idle_polls: AtomicU32::new(1),
            asked_in_vain: AtomicU32::new(1),
            thread: OnceLock::new(),
            closing: AtomicBool::new(false),
            trace,
            checks: Checks::new(checks, rank, abort),
            devices: Arc::new(devices),
        })
    }

    /// Ends the job: this process, and by the launcher's hand the others.
    pub fn abort(&self, code: i32) -> ! {
        if let Place::Shm(r) = &self.place {
            r.job().abort(code);
        }
        std::process::exit(code)
    }

    pub fn add_lane(&self, lane: &Arc<LaneCell>, members: Arc<[u32]>, session: Option<usize>) {
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|listed| listed.lane.strong_count() > 0);
        lanes.push(Listed {
            lane: Arc::downgrade(lane),
            members,
            session,
        });
        drop(lanes);
        // A rank that died before the lane existed is dead on it, too.
        self.seen_deaths.store(0, Ordering::Relaxed);
    }

    /// Keeps a lane until its sends are over.
    pub fn linger(&self, lane: Arc<LaneCell>) {
        let mut lingering = lock(&self.lingering);
        lingering.retain(|l| l.lock().unfinished_sends());
        lingering.push(lane);
    }

    fn death_epoch(&self) -> u64 {
        match &self.place {
            Place::Alone => 0,
            Place::Shm(r) => u64::from(r.job().death_epoch()),
            Place::Sim(net, _) => net.death_epoch(),
        }
    }

    fn death(&self, rank: u32) -> Option<Death> {
        match &self.place {
            Place::Alone => None,
            Place::Shm(r) => r.job().death(rank as usize),
            Place::Sim(net, _) => net.is_dead(rank).then_some(Death::Signaled(9)),
        }
    }

    pub(super) fn each_lane(&self, mut f: impl FnMut(&Arc<LaneCell>, &[u32])) {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        for listed in lanes.iter() {
            if let Some(lane) = listed.lane.upgrade() {
                f(&lane, &listed.members);
            }
        }
    }

    /// Tells the lanes of deaths that they have not heard of.
    #[inline]
    pub fn check_deaths(&self) {
        let epoch = self.death_epoch();
        if epoch != self.seen_deaths.load(Ordering::Relaxed) {
            self.spread_deaths(epoch);
        }
    }

    #[cold]
    fn spread_deaths(&self, epoch: u64) {
        // First, so that a lane added meanwhile is told by the next round.
        self.seen_deaths.store(epoch, Ordering::Relaxed);
        self.each_lane(|lane, members| {
            let mut guard = lane.lock();
            for (peer, rank) in members.iter().enumerate() {
                if *rank == self.rank && !matches!(self.place, Place::Sim(..)) {
                    continue;
                }
                if guard.death(peer as u32).is_none()
                    && let Some(how) = self.death(*rank)
                {
                    guard.peer_died(peer as u32, how);
                }
            }
            self.after(&mut guard);
        });
    }

    /// To be called with a lane's lock after it made progress.
    #[inline]
    pub fn after(&self, lane: &mut Lane) {
        if lane.finished {
            lane.finished = false;
            if self.sleepers.load(Ordering::Relaxed) != 0 {
                self.wake_sleepers();
            }
        }
    }

    /// To be called after something has changed that a sleeper may wait for
    /// and that no lane knows of.
    pub fn wake_waiting(&self) {
        // Either a sleeper's last look sees the change, or we see the sleeper.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        match &self.place {
            Place::Shm(r) => r.wake(),
            Place::Sim(net, _) => net.notify(),
            Place::Alone => {}
        }
        lock(&self.bed).events += 1;
        self.changed.notify_all();
    }

    /// Polls every lane that nobody holds and that has anything under way.
    /// True if any made progress.
    pub fn progress_all(&self) -> bool {
        self.check_deaths();
        let mut any = false;
        self.each_lane(|lane, _| {
            if let Some(mut guard) = lane.try_lock_to_help() {
                any |= guard.progress();
                self.after(&mut guard);
            }
        });
        any
    }

    /// As `progress_all`, for callers that ask again and again and never sleep:
    /// looks now and then for peers that have dropped a communicator.
    pub fn progress_awake(&self) -> bool {
        if self.progress_all() {
            return true;
        }
        self.give_way();
        let idle = self.idle_polls.fetch_add(1, Ordering::Relaxed);
        idle.is_multiple_of(IDLE_POLLS) && self.check_closed()
    }

    /// For callers that have asked in vain, hold no lock and may ask again at once: where
    /// ranks share cores, somebody else may have to run before there is an answer.
    pub fn give_way(&self) {
        if self.shared_cores {
            let asked = self.asked_in_vain.fetch_add(1, Ordering::Relaxed);
            if asked.is_multiple_of(SPIN_POLLS_SHARED) {
                std::thread::yield_now();
            }
        }
    }

    /// Runs `f` under the lane's lock.
    #[inline]
    pub fn with<R>(&self, lane: &LaneCell, f: impl FnOnce(&mut Lane) -> R) -> R {
        let mut guard = lane.lock();
        let result = f(&mut guard);
        self.after(&mut guard);
        result
    }

    /// Progresses until `check` has a result. `check` runs under the lane's
    /// lock.
    #[inline]
    #[track_caller]
    pub fn wait<R>(&self, lane: &LaneCell, mut check: impl FnMut(&mut Lane) -> Option<R>) -> R {
        let mut watch = Watch::new(&self.waits, Location::caller(), true);
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
            if guard.progress() {
                guard.pace.found(idle);
                idle = 0;
                continue;
            }
            idle += 1;
            pace::pause(guard.pace.missed(idle));
            if idle == 1 && !attends {
                attends = true;
                self.attend(true);
            }
            if idle < spin && !idle.is_multiple_of(LOOK_AROUND) && !lane.wanted() {
                continue;
            }
            self.after(&mut guard);
            drop(guard);
            if self.progress_all() {
                // Who has just moved something for others is soon asked again: it gives
                // way before it sleeps once more.
                idle = idle.min(spin);
                helped = helped.wrapping_add(1);
                if helped.is_multiple_of(IDLE_POLLS) {
                    self.check_closed();
                }
            } else if idle >= spin
                && let Some(result) = self.idle(idle - spin, lane, &mut check, &mut watch)
            {
                self.attend(false);
                return result;
            }
            guard = lane.lock();
        }
    }

    /// Tells peers whether a thread of this rank waits: it would answer them
    /// at once. A hint; several threads may overwrite each other's.
    #[inline]
    fn attend(&self, waits: bool) {
        if let Place::Shm(r) = &self.place {
            r.attend(waits);
        }
    }

    /// As `wait`, for a check that takes locks itself.
    #[track_caller]
    pub fn wait_until<R>(&self, check: impl FnMut() -> Option<R>) -> R {
        self.wait_watched(check, Watch::new(&self.waits, Location::caller(), true))
    }

    /// As `wait_until`, for a check that runs code of the user's: other things
    /// than messages may end the wait.
    #[track_caller]
    pub fn drive<R>(&self, check: impl FnMut() -> Option<R>) -> R {
        self.wait_watched(check, Watch::new(&self.waits, Location::caller(), false))
    }

    #[track_caller]
    fn wait_watched<R>(&self, mut check: impl FnMut() -> Option<R>, mut watch: Watch<'_>) -> R {
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
            if idle < spin + yields {
                std::thread::yield_now();
                continue;
            }
            let mut result = None;
            self.sleep(|| {
                self.check_closed();
                if watch.is_long() {
                    let (found, heard) = listen(&mut check);
                    result = found;
                    watch.tell(heard);
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

    /// How many ranks of the job share a core, as all its ranks see it; 1 if none do or
    /// nobody knows.
    pub fn ranks_per_core(&self) -> u32 {
        match &self.place {
            Place::Shm(r) => match r.job().cores() {
                0 => 1,
                cores => r.job().ranks().div_ceil(cores) as u32,
            },
            Place::Alone | Place::Sim(..) => 1,
        }
    }

    /// How often a thread yields before it posts a receive that it waits for.
    #[inline]
    pub fn direct_yields(&self) -> u32 {
        match self.shared_cores {
            true => DIRECT_YIELDS_SHARED,
            false => 0,
        }
    }

    /// Polls in a row that find nothing before a thread gives way.
    #[inline]
    pub fn spin_polls(&self) -> u32 {
        if self.shared_cores {
            SPIN_POLLS_SHARED
        } else {
            SPIN_POLLS
        }
    }

    /// Yields or sleeps once; a result found on the way is returned.
    #[cold]
    fn idle<R>(
        &self,
        round: u32,
        lane: &LaneCell,
        check: &mut impl FnMut(&mut Lane) -> Option<R>,
        watch: &mut Watch<'_>,
    ) -> Option<R> {
        if round < self.yields() {
            std::thread::yield_now();
            return None;
        }
        let mut result = None;
        self.sleep(|| {
            let long = watch.is_long();
            let heard = self.with(lane, |lane| {
                lane.check_closed();
                lane.progress();
                if !long {
                    result = check(lane);
                    return None;
                }
                let (found, heard) = listen(|| check(lane));
                result = found;
                Some(heard)
            });
            if let Some(heard) = heard {
                watch.tell(heard);
            }
            result.is_none()
        });
        result
    }

    /// Forgets the lanes of dropped communicators whose sends are over, so
    /// that their peers learn of the end.
    fn forget_lingering(&self) {
        let mut over = Vec::new();
        lock(&self.lingering).retain(|lane| {
            let unfinished = lane.try_lock().is_none_or(|l| l.unfinished_sends());
            if !unfinished {
                over.push(lane.clone());
            }
            unfinished
        });
        for lane in over {
            self.report_lost(&lane);
        }
    }

    /// Names the messages of a closed lane that nobody received.
    fn report_lost(&self, lane: &LaneCell) {
        let lost = std::mem::take(&mut lane.lock().lost);
        for e in lost.iter().take(SHOWN) {
            self.say(&format!("drops a communicator, and a message is lost: {e}"));
        }
    }

    /// Sleeps until something may have changed. `quiet` is asked once the
    /// thread counts as a sleeper; false keeps it awake.
    pub fn sleep(&self, quiet: impl FnOnce() -> bool) {
        self.forget_lingering();
        if self.devices.is_busy() {
            // Nobody rings when a device is done.
            if quiet() && !self.poll_all() {
                std::thread::yield_now();
                self.tick();
            }
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = lock(&self.bed).events;
        let generation = match &self.place {
            Place::Sim(net, _) => net.generation(),
            _ => 0,
        };
        // A device may have begun after the first look.
        if quiet() && !self.devices.is_busy() {
            self.sleep_quiet(seen, generation);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn sleep_quiet(&self, seen: u64, generation: u64) {
        let mut bed = lock(&self.bed);
        if bed.events != seen {
            return;
        }
        if bed.leader || matches!(self.place, Place::Alone) {
            // Somebody else listens, or there is nobody to listen to; whoever
            // finishes an operation wakes us.
            drop(self.changed.wait_timeout(bed, SLEEP));
            if matches!(self.place, Place::Alone) {
                self.tick();
            }
            return;
        }
        bed.leader = true;
        drop(bed);
        match &self.place {
            Place::Shm(r) => r.sleep(&[], SLEEP, || !self.poll_all() && !self.check_closed()),
            Place::Sim(net, _) => {
                if !self.poll_all() {
                    net.wait_generation_change(generation, SLEEP);
                }
            }
            Place::Alone => {}
        }
        let mut bed = lock(&self.bed);
        bed.leader = false;
        bed.events += 1;
        drop(bed);
        self.changed.notify_all();
        self.tick();
    }

    /// Looks around, about every [`LONG`] while somebody sleeps: says what this
    /// rank waits for, complains of what takes too long, and finds out whether
    /// the job hangs if nobody else does.
    fn tick(&self) {
        if !self.waits.is_due() {
            return;
        }
        let Some((changes, certain)) = self.waits.before_look() else {
            return;
        };
        // In the simulated network a look moves the clock.
        let sure = certain
            && !matches!(self.place, Place::Sim(..))
            && self.futures.load(Ordering::Acquire) == 0
            && threads::all_inside(self.waits.job);
        let began = monotonic_ns();
        let look = if sure { self.look() } else { Look::default() };
        let calm = sure && !look.found;
        self.waits.after_look(changes, calm, look.moved, began);
        let stalled = self.waits.stalled();
        if !stalled.is_empty() {
            eprint!("{}", report::stall(self.rank, &stalled, monotonic_ns()));
        }
        if calm {
            self.look_out();
        }
    }

    /// Polls all lanes.
    fn look(&self) -> Look {
        let mut look = Look {
            found: self.death_epoch() != self.seen_deaths.load(Ordering::Relaxed),
            moved: 0,
        };
        self.each_lane(|lane, _| {
            self.with(lane, |lane| {
                look.found |= lane.progress() || lane.unsettled();
                look.moved = look.moved.wrapping_add(lane.moved());
            });
        });
        look
    }

    /// Reports a hang of a job that has no launcher to do so: its lowest
    /// living rank does.
    fn look_out(&self) {
        let mut watcher = lock(&self.watcher);
        let report = match &self.place {
            Place::Alone if hangs([self.waits.standing()]) => {
                watcher.tell(&[(0, self.waits.page())], 1)
            }
            Place::Shm(r) => {
                let job = r.job();
                let lowest = (0..job.ranks()).find(|r| job.death(*r).is_none());
                if job.watched() || lowest != Some(r.rank()) {
                    return;
                }
                JobStatus::of(job).ok().and_then(|s| watcher.look(&s))
            }
            _ => None,
        };
        if let Some(report) = report {
            eprintln!("osier: {report}");
        }
    }

    /// Polls every lane, those without operations too: somebody may wait for
    /// a message that it has not posted a receive for (a probe).
    fn poll_all(&self) -> bool {
        let mut any = self.death_epoch() != self.seen_deaths.load(Ordering::Relaxed);
        self.each_lane(|lane, _| any |= self.with(lane, Lane::progress));
        any
    }

    /// The lanes of a session, or all. Held weakly: what lingers has to go when it is over,
    /// for its peers' sake.
    fn lanes_of(&self, session: Option<usize>) -> Vec<Weak<LaneCell>> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        let theirs = |listed: &&Listed| session.is_none() || listed.session == session;
        let lanes = lanes.iter().filter(theirs);
        lanes.map(|listed| listed.lane.clone()).collect()
    }

    /// Progresses until no send is under way, or none of a session: what was sent and not
    /// waited for still reaches its receiver. Says on standard error what does not.
    #[track_caller]
    pub fn flush(&self, session: Option<usize>) {
        let lanes = self.lanes_of(session);
        let live = || lanes.iter().filter_map(Weak::upgrade);
        let unfinished = || live().any(|lane| lane.lock().unfinished_sends());
        let mut watch = Watch::new(&self.waits, Location::caller(), true);
        let mut idle = 0u32;
        while unfinished() {
            if self.progress_all() {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > 1000 {
                self.check_closed();
                self.sleep(|| {
                    let quiet = !self.progress_all();
                    if quiet && watch.is_long() {
                        watch.tell(self.asked_sends());
                    }
                    quiet
                });
            }
        }
        live().for_each(|lane| self.report_lost(&lane));
    }

    pub(super) fn say(&self, what: &str) {
        let mut err = std::io::stderr().lock();
        // Nobody is there to be told that it cannot be written.
        let _ = writeln!(err, "osier: rank {} {what}", self.rank);
    }

    /// The sends that the peers still need this rank for.
    fn asked_sends(&self) -> Vec<Asked> {
        let mut asked = Vec::new();
        self.each_lane(|lane, _| asked.extend(lane.lock().asked_sends()));
        asked
    }

    /// Ends what waits for ranks that have dropped their communicator. True if
    /// anything was learnt.
    fn check_closed(&self) -> bool {
        let mut any = false;
        self.each_lane(|lane, _| any |= self.with(lane, Lane::check_closed));
        any
    }

    /// Counts a request that a foreign executor waits for, or a stream, and has the
    /// progress thread run while there is any.
    pub fn future_waits(self: &Arc<Self>) {
        self.futures.fetch_add(1, Ordering::AcqRel);
        self.progress_thread().unpark();
        // It may sleep already, and not know of a device that has begun to work.
        self.wake_waiting();
    }

    fn progress_thread(self: &Arc<Self>) -> &std::thread::Thread {
        self.thread.get_or_init(|| {
            let core = Arc::downgrade(self);
            let spawned = std::thread::Builder::new()
                .name(PROGRESS_THREAD.into())
                .spawn(move || progress_thread(&core));
            match spawned {
                Ok(handle) => handle.thread().clone(),
                // Without a thread the futures' own polls make progress.
                Err(_) => std::thread::current(),
            }
        })
    }

    /// Whether there is a progress thread; starts it.
    pub(super) fn has_progress_thread(self: &Arc<Self>) -> bool {
        self.progress_thread().name() == Some(PROGRESS_THREAD)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// What streams wait for, lane by lane.
    pub(super) fn each_held(&self, mut f: impl FnMut(Vec<Asked>)) {
        self.each_lane(|lane, _| {
            if let Some(guard) = lane.try_lock_to_help() {
                f(guard.asked_held());
            }
        });
    }

    /// Takes back one `future_waits`.
    pub fn future_done(&self) {
        self.futures.fetch_sub(1, Ordering::AcqRel);
    }

    /// Reports what the program has left: to be called last.
    pub fn report_leaks(&self) {
        if !self.checks.has(Check::Leaks) {
            return;
        }
        self.each_lane(|lane, _| lane.lock().report_leaks(&self.checks));
        self.checks.report_handles();
    }

    /// Ends the progress thread.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.release_held();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        // Nobody else would put the recordings of a job of one rank together.
        if let (Place::Alone, Some(tracer)) = (&self.place, &self.trace)
            && let Err(e) = crate::trace::merge(tracer.folder(), Some(tracer.job()))
        {
            eprintln!("osier: {e}");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.waits.left();
    }
}

/// What a look at all lanes has shown.
#[derive(Default)]
struct Look {
    /// Something came, or something is under way.
    found: bool,
    /// Counts whatever the lanes have received or posted so far.
    moved: u64,
}

/// Runs while futures or streams wait, is parked otherwise, and ends with the core.
fn progress_thread(core: &Weak<Core>) {
    loop {
        let Some(core) = core.upgrade() else {
            return;
        };
        if core.is_closing() {
            return;
        }
        if core.futures.load(Ordering::Acquire) == 0 {
            let _inside = Inside::enter(core.waits.job);
            drop(core);
            std::thread::park_timeout(Duration::from_secs(1));
            continue;
        }
        drive(&core);
    }
}

/// Makes progress as long as futures or streams wait.
fn drive(core: &Core) {
    let mut idle = 0u32;
    // The driver's threads and others wait for streams, so their waits are ours to tell.
    let mut watch = None;
    while core.futures.load(Ordering::Acquire) != 0 && !core.is_closing() {
        if core.begin_rung() | core.progress_all() {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < 1000 {
            std::thread::yield_now();
            continue;
        }
        core.check_closed();
        core.sleep(|| {
            if core.begin_rung() | core.progress_all() {
                return false;
            }
            core.watch_held(&mut watch);
            true
        });
    }
}
