//! State that the lanes of a rank share: ended ranks, waiting threads.
//!
//! A wait spins, then yields, then sleeps. One thread per rank sleeps on the
//! rank's doorbell and file descriptors; others that wait sleep on a condition
//! variable behind it and take its place in turn. A thread that completes the
//! operation of another while threads sleep wakes the sleepers.
//!
//! # Invariants
//! 1. A thread raises `sleepers` before it checks its operation for the last
//!    time under the lane's lock, and a thread that completes an operation loads
//!    `sleepers` afterwards under the same lock: one of the two sees the other.
//! 2. Every thread that waits polls every lane with operations in flight, at the
//!    latest before it sleeps.

mod waiting;

use super::attached::Attached;
use super::cell::LaneCell;
use super::enqueued::Rung;
use super::lane::Lane;
use super::served::Served;
use super::suspend;
use crate::check::{Check, Checks, Setting};
use crate::device::Devices;
use crate::diagnose::outside::{Outside, Process};
use crate::diagnose::tell;
use crate::diagnose::threads::Inside;
use crate::diagnose::waits::{Asked, EndedBy, Waits, Watch};
use crate::diagnose::watch::Watcher;
use crate::protocol::select::Selection;
use crate::trace::Tracer;
use osier_transports::net::{HostMap, NetRank};
use osier_transports::shm::{ShmRank, monotonic_ns};
use osier_transports::sim::SimNet;
use osier_transports::{Death, full_fence};
use std::any::Any;
use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

/// How this rank reaches its job.
pub enum JobTransport {
    /// A job of one rank.
    Alone,
    Shm(ShmRank),
    Sim(SimNet, u32),
    /// A job on several hosts.
    Hosts(OnHosts),
}

/// A rank of a job on several hosts.
pub struct OnHosts {
    /// In the segment of its host.
    pub shm: ShmRank,
    /// On the network.
    pub net: NetRank,
    /// Which rank is where.
    pub map: HostMap,
}

impl JobTransport {
    /// The rank in the segment of its host, if there is one.
    #[inline]
    pub fn shm(&self) -> Option<&ShmRank> {
        match self {
            JobTransport::Shm(rank) => Some(rank),
            JobTransport::Hosts(hosts) => Some(&hosts.shm),
            JobTransport::Alone | JobTransport::Sim(..) => None,
        }
    }

    /// The place of a rank of the job in that segment; none if it is elsewhere.
    #[inline]
    pub fn place(&self, rank: u32) -> Option<usize> {
        match self {
            JobTransport::Shm(_) => Some(rank as usize),
            JobTransport::Hosts(hosts) => hosts.map.place(rank),
            JobTransport::Alone | JobTransport::Sim(..) => None,
        }
    }

    /// The number of this rank's host in the job; 0 where there is one.
    pub fn host(&self) -> u32 {
        match self {
            JobTransport::Hosts(hosts) => hosts.map.own(),
            _ => 0,
        }
    }

    /// The rank on the network, if other hosts are reached.
    #[inline]
    pub fn net(&self) -> Option<&NetRank> {
        match self {
            JobTransport::Hosts(hosts) => Some(&hosts.net),
            _ => None,
        }
    }
}

/// Of the thread that makes progress for futures and streams.
const PROGRESS_THREAD: &str = "osier-progress";
/// Most lost messages named in a report of a lane.
const SHOWN: usize = 8;

/// Read by every call of every thread, and hardly ever written; on lines of its
/// own, so that no thread writes beside it.
#[repr(align(128))]
pub struct Core {
    pub transport: JobTransport,
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
    /// Whether messages between processes are delayed.
    delayed: bool,
    /// Of a virtual rank: the thread that waits has others to run.
    on_stack: bool,
    seen_deaths: AtomicU64,
    /// A rank has ended, and what it sent before is delayed.
    deaths_wait: AtomicBool,
    /// Whether lanes may be biased to a thread.
    pub biased: bool,
    /// The rank's buffer for buffered sends.
    pub attached: Attached,
    /// Requests that foreign executors wait for, and streams that wait.
    pub(crate) futures: AtomicUsize,
    /// Groups of threads that poll in place of the progress thread.
    tended: AtomicUsize,
    /// Graphs of tasks that run on this rank.
    pub(crate) graphs: AtomicU32,
    /// What graphs have begun.
    pub(crate) rung: Rung,
    /// Polls in vain of callers that never sleep.
    idle_polls: AtomicU32,
    /// Calls of [`Core::check_deaths`].
    polls: AtomicU32,
    /// As it counts, but of ranks that share cores only: see [`Core::give_way`].
    asked_in_vain: AtomicU32,
    thread: OnceLock<std::thread::Thread>,
    closing: AtomicBool,
    /// What this rank's threads wait for.
    pub waits: Waits,
    /// Looks out for hangs where no launcher does.
    watcher: Mutex<Watcher>,
    /// Looks at the process's threads outside Osier.
    outside: Mutex<Outside>,
    /// Records what this rank does.
    pub trace: Option<Arc<Tracer>>,
    /// What is checked, and what was found.
    pub checks: Checks,
    /// What messages of devices need.
    pub devices: Arc<Devices>,
    /// Short accesses of peers to plain memory of windows.
    pub served: Served,
    /// A foreign launcher, which this rank notifies of its end.
    pub launcher: OnceLock<Box<dyn Launcher>>,
}

/// A launcher of others, as a rank of its job uses it.
pub trait Launcher: Send + Sync {
    /// The number of this rank's program in a job of several.
    fn application(&self) -> usize;

    /// Says good-bye, so that the end of this process is not taken for a failure.
    fn finish(&self);

    /// Has the launcher end the job with this code.
    fn abort(&self, code: i32);
}

/// A communicator's lane, for as long as the communicator lives.
struct Listed {
    lane: Weak<LaneCell>,
    /// The ranks of the job behind its peers.
    members: Arc<[u32]>,
    /// The session that it stems from.
    session: Option<usize>,
}

/// A lane that is worked on, and the ranks of the job behind its peers.
type Reached = (Arc<LaneCell>, Arc<[u32]>);

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

/// Polls of a rank from one look at all lanes to the next.
const POLLS_PER_LOOK: u32 = 512;

impl Core {
    pub fn new(
        transport: JobTransport,
        rank: u32,
        ranks: u32,
        selection: Arc<Selection>,
        shared_cores: bool,
        trace: Option<Arc<Tracer>>,
        checks: Setting,
    ) -> Arc<Self> {
        let abort: Box<dyn Fn(i32) + Send + Sync> = match transport.shm() {
            Some(r) => {
                // Not the rank: `Checks` may outlive it, and it finalizes when its last
                // user is gone.
                let job = r.job().clone();
                Box::new(move |code| job.abort(code))
            }
            None => Box::new(|_| {}),
        };
        let waits = match transport.shm() {
            Some(r) => {
                let own = r.clone();
                Waits::new(r.job().id(), Box::new(move |words| own.publish(words)))
            }
            // Nobody else could read it.
            None => Waits::new(monotonic_ns(), Box::new(|_| {})),
        };
        let shared = transport.shm().cloned();
        let delayed = matches!(&transport, JobTransport::Shm(r) if r.job().delay().is_some());
        let devices = Devices::new(shared, selection.costs());
        Arc::new(Self {
            transport,
            waits,
            watcher: Mutex::default(),
            outside: Mutex::new(Outside::new(Process::own())),
            selection,
            rank,
            ranks,
            lanes: RwLock::default(),
            lingering: Mutex::default(),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::default(),
            changed: Condvar::new(),
            shared_cores,
            delayed,
            on_stack: suspend::here().is_some(),
            seen_deaths: AtomicU64::new(0),
            deaths_wait: AtomicBool::new(false),
            biased: super::cell::bias_offered(),
            attached: Attached::default(),
            futures: AtomicUsize::new(0),
            tended: AtomicUsize::new(0),
            graphs: AtomicU32::new(0),
            rung: Rung::default(),
            idle_polls: AtomicU32::new(1),
            polls: AtomicU32::new(0),
            asked_in_vain: AtomicU32::new(1),
            thread: OnceLock::new(),
            closing: AtomicBool::new(false),
            trace,
            checks: Checks::new(checks, rank, abort),
            devices: Arc::new(devices),
            served: Served::default(),
            launcher: OnceLock::new(),
        })
    }

    /// Ends the job: this process, and by the launcher's hand the others.
    pub fn abort(&self, code: i32) -> ! {
        if let Some(r) = self.transport.shm() {
            r.job().abort(code);
        }
        if let Some(launcher) = self.launcher.get() {
            launcher.abort(code);
        }
        std::process::exit(code)
    }

    /// A list of members: that of a lane which has the same, if one does.
    pub fn shared_members(&self, members: Vec<u32>) -> Arc<[u32]> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        let same = lanes.iter().find(|listed| *listed.members == *members);
        match same {
            Some(listed) => listed.members.clone(),
            None => members.into(),
        }
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

    /// Keeps a lane until its sends are complete.
    pub fn linger(&self, lane: Arc<LaneCell>) {
        let mut all = std::mem::take(&mut *lock(&self.lingering));
        all.push(lane);
        self.linger_on(all, |lane| lane.lock().unfinished_sends());
    }

    /// Keeps the lanes that have something to send, and returns the others. Asks and drops
    /// lanes without a lock: both may run foreign code.
    fn linger_on(
        &self,
        all: Vec<Arc<LaneCell>>,
        unfinished: impl Fn(&LaneCell) -> bool,
    ) -> Vec<Arc<LaneCell>> {
        let (mut kept, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(|l| unfinished(l));
        lock(&self.lingering).append(&mut kept);
        ended
    }

    fn death_epoch(&self) -> u64 {
        match &self.transport {
            JobTransport::Alone => 0,
            JobTransport::Shm(r) => u64::from(r.job().death_epoch()),
            JobTransport::Sim(net, _) => net.death_epoch(),
            JobTransport::Hosts(on) => u64::from(on.shm.job().death_epoch()) + on.net.death_epoch(),
        }
    }

    fn death(&self, rank: u32) -> Option<Death> {
        match &self.transport {
            JobTransport::Alone => None,
            JobTransport::Shm(r) => r.job().death(rank as usize),
            JobTransport::Sim(net, _) if net.has_finalized(rank) => Some(Death::Finalized),
            JobTransport::Sim(net, _) => net.is_dead(rank).then_some(Death::Signaled(9)),
            JobTransport::Hosts(on) => {
                let of_net = || on.net.death(rank);
                match on.map.place(rank) {
                    Some(place) => {
                        let here = on.shm.job().death(place);
                        // In order it leaves by the segment.
                        here.or_else(|| of_net().filter(|how| how.is_failure()))
                    }
                    None => of_net(),
                }
            }
        }
    }

    /// Calls `f` for every lane. The list is not locked meanwhile: a lane that is released,
    /// or dropped because its communicator went, runs foreign code.
    pub(crate) fn each_lane(&self, mut f: impl FnMut(&Arc<LaneCell>, &Arc<[u32]>)) {
        // Kept by the thread, so that a poll allocates nothing. `f` may come here again.
        thread_local! {
            static KEPT: Cell<Vec<Reached>> = const { Cell::new(Vec::new()) };
        }
        let mut reached = KEPT.try_with(Cell::take).unwrap_or_default();
        {
            let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
            let alive = |listed: &Listed| Some((listed.lane.upgrade()?, listed.members.clone()));
            reached.extend(lanes.iter().filter_map(alive));
        }
        for (lane, members) in reached.drain(..) {
            f(&lane, &members);
        }
        // At the end of the thread there is nothing to keep it in.
        let _ = KEPT.try_with(|kept| kept.set(reached));
    }

    /// Passes deaths on to lanes that do not know them, behind what the dead have sent: that may
    /// be delayed. By callers that poll, and hold no lane.
    #[inline]
    pub fn check_deaths(&self) {
        let epoch = self.death_epoch();
        let news = epoch != self.seen_deaths.load(Ordering::Relaxed);
        let may_wait = self.delayed || self.transport.net().is_some();
        if news || may_wait && self.deaths_wait.load(Ordering::Relaxed) {
            self.spread_deaths(epoch);
        }
        // Threads may count one poll for two.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(POLLS_PER_LOOK) {
            self.look_at_all();
        }
    }

    /// Progresses lanes that have nothing in flight, too: others may need this rank there, to pass
    /// on a revocation or for an agreement that it has returned from.
    #[cold]
    fn look_at_all(&self) {
        self.each_lane(|lane, _| {
            self.with(lane, Lane::progress);
        });
    }

    #[cold]
    fn spread_deaths(&self, epoch: u64) {
        // First, so that the next round reaches a lane added meanwhile.
        self.seen_deaths.store(epoch, Ordering::Relaxed);
        self.deaths_wait.store(false, Ordering::Relaxed);
        self.each_lane(|lane, members| {
            let mut guard = lane.lock();
            for (peer, rank) in members.iter().enumerate() {
                if *rank == self.rank && !matches!(self.transport, JobTransport::Sim(..)) {
                    continue;
                }
                if guard.death(peer as u32).is_none()
                    && let Some(how) = self.death(*rank)
                {
                    // Nobody else may poll this lane.
                    let awaited = guard.is_awaited(peer as u32)
                        && (!guard.progress() || guard.is_awaited(peer as u32));
                    match awaited {
                        true => self.deaths_wait.store(true, Ordering::Relaxed),
                        false => guard.peer_ended(peer as u32, how),
                    }
                }
            }
            self.after(&mut guard);
        });
    }

    /// To be called with a lane's lock after it made progress.
    #[inline]
    pub fn after(&self, lane: &mut Lane) {
        if lane.take_finished() && self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    /// Looks for the ends of other ranks' processes from now on, for a job whose launcher
    /// records none.
    pub fn watch_processes(&self) {
        if let Some(rank) = self.transport.shm() {
            rank.watch_processes();
        }
    }

    /// Wakes sleepers after a change that they may wait for and that no lane
    /// sees.
    pub fn wake_waiting(&self) {
        // Either a sleeper's last check sees the change, or we see the sleeper.
        full_fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    /// Wakes other ranks, also those that are about to sleep: memory that they look at by
    /// themselves has changed.
    pub fn wake_ranks(&self, ranks: &[u32]) {
        match &self.transport {
            JobTransport::Shm(r) => {
                let others = ranks.iter().filter(|rank| **rank != self.rank);
                others.for_each(|rank| r.job().wake(*rank as usize));
            }
            JobTransport::Sim(net, _) => net.notify(),
            // Those of other hosts look at no memory of this one.
            JobTransport::Hosts(on) => {
                let others = ranks.iter().filter(|rank| **rank != self.rank);
                let places = others.filter_map(|rank| on.map.place(*rank));
                places.for_each(|place| on.shm.job().wake(place));
            }
            JobTransport::Alone => {}
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        // First: a virtual rank that parks looks at it behind its word.
        lock(&self.bed).events += 1;
        match &self.transport {
            JobTransport::Shm(r) => r.wake(),
            JobTransport::Hosts(on) => on.shm.wake(),
            JobTransport::Sim(net, _) => net.notify(),
            JobTransport::Alone => {}
        }
        self.changed.notify_all();
    }

    /// Polls every lane whose lock is free and that has operations in flight.
    /// True if any made progress.
    pub fn progress_all(&self) -> bool {
        self.check_deaths();
        let mut any = self.serve();
        self.each_lane(|lane, _| {
            if let Some(mut guard) = lane.try_lock_to_help() {
                any |= guard.progress();
                self.after(&mut guard);
            }
        });
        any
    }

    /// Makes short accesses to windows that peers ask for. True if there were any.
    #[inline]
    pub fn serve(&self) -> bool {
        self.served.serve(|| {
            if let Some(r) = self.transport.shm() {
                r.count_malformed();
            }
        })
    }

    /// Runs `f` under the lane's lock.
    #[inline]
    pub fn with<R>(&self, lane: &LaneCell, f: impl FnOnce(&mut Lane) -> R) -> R {
        let mut guard = lane.lock();
        let result = f(&mut guard);
        self.after(&mut guard);
        result
    }

    /// Forgets the lanes of dropped communicators whose sends are complete, so
    /// that their peers learn of the end.
    fn forget_lingering(&self) {
        let all = std::mem::take(&mut *lock(&self.lingering));
        if all.is_empty() {
            return;
        }
        let unfinished =
            |lane: &LaneCell| lane.try_lock().is_none_or(|lane| lane.unfinished_sends());
        for lane in self.linger_on(all, unfinished) {
            self.report_lost(&lane);
        }
    }

    /// Names the messages of a closed lane that were not received.
    fn report_lost(&self, lane: &LaneCell) {
        let lost = std::mem::take(&mut lane.lock().port.lost);
        for e in lost.iter().take(SHOWN) {
            self.say(&format!("drops a communicator, and a message is lost: {e}"));
        }
    }

    /// The lanes of a session, or all. Weak references: a lane that lingers goes when its
    /// sends are complete, for its peers' sake.
    fn lanes_of(&self, session: Option<usize>) -> Vec<Weak<LaneCell>> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        let theirs = |listed: &&Listed| session.is_none() || listed.session == session;
        let lanes = lanes.iter().filter(theirs);
        lanes.map(|listed| listed.lane.clone()).collect()
    }

    /// Progresses until no send is in flight, or none of a session: a message that no call
    /// waited for still reaches its receiver. Reports the others on standard error.
    #[track_caller]
    pub fn flush(&self, session: Option<usize>) {
        let lanes = self.lanes_of(session);
        let live = || lanes.iter().filter_map(Weak::upgrade);
        let unfinished = || live().any(|lane| lane.lock().unfinished_sends());
        let mut watch = Watch::new(&self.waits, Location::caller(), EndedBy::Ranks);
        let mut idle = 0u32;
        while unfinished() {
            if self.progress_all() {
                idle = 0;
                continue;
            }
            idle += 1;
            let spin = if self.on_stack { 0 } else { 1000 };
            if idle > spin {
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

    pub(crate) fn say(&self, what: &str) {
        tell(format_args!("rank {} {what}", self.rank));
    }

    /// The sends that the peers still need this rank for.
    fn asked_sends(&self) -> Vec<Asked> {
        let mut asked = Vec::new();
        self.each_lane(|lane, _| asked.extend(lane.lock().asked_sends()));
        asked
    }

    /// Unfinished sends whose memory's owner this is true of.
    pub fn asked_owned(&self, owner: &dyn Fn(&dyn Any) -> bool) -> Vec<Asked> {
        let mut asked = Vec::new();
        self.each_lane(|lane, _| asked.extend(lane.lock().asked_owned(owner)));
        asked
    }

    /// Whether a rank has left a communicator of ours.
    pub(crate) fn any_left(&self) -> bool {
        let mut any = false;
        self.each_lane(|lane, _| any = any || lane.lock().any_left());
        any
    }

    /// Takes note of ranks that have dropped their communicator, and ends sends to them. True if
    /// anything was learnt.
    fn check_closed(&self) -> bool {
        let mut any = false;
        self.each_lane(|lane, _| any |= self.with(lane, Lane::check_closed));
        any
    }

    /// Counts a request that a foreign executor waits for, or a stream, and has the
    /// progress thread run while there is any.
    pub fn future_waits(self: &Arc<Self>) {
        self.futures.fetch_add(1, Ordering::SeqCst);
        if !self.is_tended() {
            self.progress_thread().unpark();
        }
        // It may sleep already, and not know of a device that has begun to work.
        self.wake_waiting();
    }

    fn is_tended(&self) -> bool {
        self.tended.load(Ordering::SeqCst) > 0
    }

    /// Threads poll from now on, between other things and while they wait, until what is
    /// returned is dropped: the progress thread is not needed meanwhile.
    pub fn tend(self: &Arc<Self>) -> Tended {
        self.tended.fetch_add(1, Ordering::SeqCst);
        Tended(self.clone())
    }

    /// The progress thread polls, too, until what is returned is dropped.
    pub fn with_progress_thread(self: &Arc<Self>) -> WithThread {
        self.future_waits();
        WithThread(self.clone())
    }

    /// As [`Core::progress_all`], of threads that [tend](Core::tend).
    pub fn progress_tended(&self) -> bool {
        self.begin_rung() | self.progress_all()
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
    pub(crate) fn has_progress_thread(self: &Arc<Self>) -> bool {
        self.progress_thread().name() == Some(PROGRESS_THREAD)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// What streams and futures wait for.
    pub(crate) fn asked_by_others(&self) -> (Vec<Asked>, Vec<Asked>) {
        let (mut streams, mut futures) = (Vec::new(), Vec::new());
        self.each_lane(|lane, _| {
            if let Some(guard) = lane.try_lock_to_help() {
                streams.extend(guard.asked_held());
                futures.extend(guard.asked_awaited());
            }
        });
        (streams, futures)
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
        // Handles messages that have come, so that no report depends on timing.
        for _ in 0..64 {
            if !self.progress_all() {
                break;
            }
        }
        self.each_lane(|lane, _| lane.lock().report_leaks(&self.checks));
        self.checks.report_handles();
    }

    /// The rank leaves its job in order. Others learn of it once nothing of it is left in this
    /// process, or the process has ended.
    pub fn finalize(&self) {
        if let Some(net) = self.transport.net() {
            net.finalize();
        }
        if let Some(r) = self.transport.shm() {
            r.finalize();
        }
    }

    /// Ends the progress thread.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.release_held();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        // Nobody else would put the recordings of a job of one rank together.
        if let (JobTransport::Alone, Some(tracer)) = (&self.transport, &self.trace)
            && let Err(e) = crate::trace::merge(tracer.folder(), Some(tracer.job()))
        {
            tell(e);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.waits.left();
    }
}

/// Threads that poll: [`Core::tend`].
pub struct Tended(Arc<Core>);

impl Drop for Tended {
    fn drop(&mut self) {
        let core = &self.0;
        if core.tended.fetch_sub(1, Ordering::SeqCst) == 1
            && core.futures.load(Ordering::SeqCst) != 0
        {
            core.progress_thread().unpark();
        }
    }
}

/// The progress thread polls: [`Core::with_progress_thread`].
pub struct WithThread(Arc<Core>);

impl Drop for WithThread {
    fn drop(&mut self) {
        self.0.future_done();
    }
}

/// Runs while futures or streams wait and no other thread polls, is parked otherwise, and ends
/// with the core.
fn progress_thread(core: &Weak<Core>) {
    osier_kernels::own_thread();
    loop {
        osier_kernels::reap_graphs();
        let Some(core) = core.upgrade() else {
            return;
        };
        if core.is_closing() {
            return;
        }
        if core.futures.load(Ordering::SeqCst) == 0 || core.is_tended() {
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
    // Threads of the driver and executors wait for these: we report their waits.
    let mut watch = None;
    let needed = || core.futures.load(Ordering::SeqCst) != 0 && !core.is_tended();
    while needed() && !core.is_closing() {
        if core.begin_rung() | core.progress_all() {
            idle = 0;
            watch = None;
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
            core.watch_others(&mut watch);
            true
        });
    }
}
