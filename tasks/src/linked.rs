//! Runs of graphs over a lane of the engine: messages between ranks, waiting workers.
//!
//! The lane is the graph's own. A task that puts a message for another rank takes the lane's
//! lock for the message. A worker that polls the lane delivers what comes and queues the tasks
//! that it fired, once it has left the lock; another thread that polls it leaves them in the
//! inboxes of their homes. Where there is one worker, all that is done to tasks and messages is
//! done by its thread: others keep for it what comes.

use crate::failure::Failure;
use crate::graph::Graph;
use crate::idle::{Idle, UNTIMED_POLLS, Wait};
use crate::instance::{Fired, Instance, NO_MORE, Outside};
use crate::report::{PeerCounts, Report, RunSettings, Volume};
use crate::watch::{RunTimeline, Times, Watch};
use crate::worker::{Counts, Crew, Step, Worker};
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::edges::{self, EdgeSink, Post, What};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const _: () = assert!(NO_MORE == edges::NO_MORE);

/// Tasks that a worker runs before it polls the graph's lane, and polls before it polls all
/// lanes.
const MOST_STEPS: u32 = 16;
const ROUNDS: u32 = 64;

/// The other ranks, as a run reaches them.
struct OverLane {
    core: Arc<Core>,
    lane: Arc<LaneCell>,
    run: u16,
    traffic: Arc<EdgeTraffic>,
}

/// What goes between this rank and others in a run. Counted under the lane's lock.
struct EdgeTraffic {
    sent: Box<[Meter]>,
    received: Box<[Meter]>,
    /// Messages received from all ranks.
    arrived: AtomicU64,
}

#[derive(Default)]
struct Meter {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// Adds to a number that one thread at a time changes.
#[inline]
fn add(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl Meter {
    #[inline]
    fn add(&self, bytes: usize) {
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }

    fn volume(&self) -> Volume {
        Volume {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl EdgeTraffic {
    fn new(ranks: usize) -> Arc<EdgeTraffic> {
        let meters = || (0..ranks).map(|_| Meter::default()).collect();
        Arc::new(EdgeTraffic {
            sent: meters(),
            received: meters(),
            arrived: AtomicU64::new(0),
        })
    }

    /// A message is sent. The rank is one of the graph.
    #[inline]
    fn send(&self, rank: u32, bytes: usize) {
        self.sent[rank as usize].add(bytes);
    }

    /// A message has come, from a rank of the lane.
    #[inline]
    fn receive(&self, rank: u32, bytes: usize) {
        self.received[rank as usize].add(bytes);
        add(&self.arrived, 1);
    }

    fn peers(&self) -> Vec<PeerCounts> {
        let peers = self.sent.iter().zip(&self.received);
        let peers = peers.map(|(sent, received)| PeerCounts {
            sent: sent.volume(),
            received: received.volume(),
        });
        peers.collect()
    }
}

impl Outside for OverLane {
    fn put(&self, rank: u32, place: u32, packed: &[u8]) {
        let run = self.run;
        self.core.with(&self.lane, |lane| {
            self.traffic.send(rank, packed.len());
            lane.post_edge(run, rank, place, packed);
        });
    }

    fn credit(&self, rank: u32, place: u32, messages: u32) {
        let run = self.run;
        self.core.with(&self.lane, |lane| {
            lane.post_edge_credit(run, rank, place, messages);
        });
    }

    fn fail(&self, rank: u32, place: u32, cause: &Failure) {
        let (run, why) = (self.run, cause.to_string());
        self.core.with(&self.lane, |lane| {
            lane.post_edge_failed(run, rank, place, &why);
        });
    }

    fn wake(&self) {
        self.core.wake_waiting();
    }
}

thread_local! {
    /// The run whose worker this thread is while it polls the lane: the address of its
    /// instance, or 0; and the tasks that it has fired meanwhile.
    static POLLS: Cell<usize> = const { Cell::new(0) };
    static FIRED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

fn is_polled_by_worker(instance: &Instance) -> bool {
    POLLS.get() == std::ptr::from_ref(instance).addr()
}

/// A thread that handles messages under the lane's lock: what it is to send waits until the
/// lane can post it.
struct Delivering {
    posts: Vec<Post>,
    traffic: Arc<EdgeTraffic>,
}

impl Fired for Delivering {
    fn fired(&mut self, instance: &Instance, task: u32) {
        match is_polled_by_worker(instance) {
            true => FIRED.with_borrow_mut(|fired| fired.push(task)),
            false => instance.send_home(task),
        }
    }

    fn put(&mut self, _: &Instance, rank: u32, place: u32, packed: &[u8]) {
        self.traffic.send(rank, packed.len());
        self.post(rank, place, What::Elements(packed.to_vec()));
    }

    fn credit(&mut self, _: &Instance, rank: u32, place: u32, messages: u32) {
        self.post(rank, place, What::Credit(messages));
    }

    fn fail(&mut self, _: &Instance, rank: u32, place: u32, cause: &Failure) {
        self.post(rank, place, What::Failed(cause.to_string()));
    }
}

impl Delivering {
    fn post(&mut self, peer: u32, place: u32, what: What) {
        self.posts.push(Post { peer, place, what });
    }
}

/// What a thread that may not touch the run has left its worker.
enum Left {
    Message(Post),
    Gone {
        peer: u32,
        how: String,
        orderly: bool,
    },
}

/// The run as its lane knows it.
struct Sink {
    instance: Arc<Instance>,
    core: Arc<Core>,
    delivering: Delivering,
    /// In the order in which it came.
    left: Vec<Left>,
}

impl Sink {
    /// Whether this thread may touch the run.
    #[inline]
    fn may_touch(&self) -> bool {
        // A worker has settled what was left before it polls, under the same lock.
        !self.instance.alone || is_polled_by_worker(&self.instance)
    }

    #[cold]
    fn leave(&mut self, left: Left) -> bool {
        self.left.push(left);
        self.core.wake_waiting();
        true
    }

    fn take(&mut self, left: &Left) -> bool {
        match left {
            Left::Gone { peer, how, orderly } => {
                self.instance
                    .lose(*peer, how, *orderly, &mut self.delivering);
                true
            }
            Left::Message(Post { peer, place, what }) => {
                let (instance, delivering) = (&self.instance, &mut self.delivering);
                match what {
                    What::Elements(packed) => instance.deliver(*peer, *place, packed, delivering),
                    What::Credit(messages) => instance.credit(*peer, *place, *messages, delivering),
                    What::Failed(why) => instance.fail_from(*peer, *place, why, delivering),
                }
            }
        }
    }
}

impl EdgeSink for Sink {
    fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.delivering.posts)
    }

    fn settle(&mut self) -> u64 {
        let mut malformed = 0;
        for left in std::mem::take(&mut self.left) {
            malformed += u64::from(!self.take(&left));
        }
        malformed
    }

    #[inline]
    fn put(&mut self, peer: u32, place: u32, packed: &[u8]) -> bool {
        self.delivering.traffic.receive(peer, packed.len());
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.deliver(peer, place, packed, delivering);
        }
        let what = What::Elements(packed.to_vec());
        self.leave(Left::Message(Post { peer, place, what }))
    }

    fn credit(&mut self, peer: u32, place: u32, messages: u32) -> bool {
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.credit(peer, place, messages, delivering);
        }
        let what = What::Credit(messages);
        self.leave(Left::Message(Post { peer, place, what }))
    }

    fn has_branch(&self, peer: u32, place: u32) -> bool {
        self.instance.branch_from(peer, place).is_some()
    }

    fn failed(&mut self, peer: u32, place: u32, why: &str) -> bool {
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.fail_from(peer, place, why, delivering);
        }
        let what = What::Failed(why.into());
        self.leave(Left::Message(Post { peer, place, what }))
    }

    fn gone(&mut self, peer: u32, how: &str, orderly: bool) {
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.lose(peer, how, orderly, delivering);
        }
        let how = how.into();
        self.leave(Left::Gone { peer, how, orderly });
    }
}

/// Runs a graph on this rank, by its workers, of which this thread is one. The other ranks of
/// the lane do the same, each when it comes to it; `run` counts the runs of the graph, the
/// same on all ranks, from 1.
///
/// # Errors
/// A task of this rank failed, or needed one that did: the first that did here.
#[track_caller]
pub fn run(
    graph: &Graph,
    core: &Arc<Core>,
    lane: &Arc<LaneCell>,
    run: u16,
    settings: &RunSettings,
) -> Result<Report, Arc<Failure>> {
    let since = Instant::now();
    let shape = graph.shape();
    let traffic = EdgeTraffic::new(shape.ranks);
    let over_lane = OverLane {
        core: core.clone(),
        lane: lane.clone(),
        run,
        traffic: traffic.clone(),
    };
    let count = settings.workers.max(1);
    let mut instance = graph.instance(count, Some(Box::new(over_lane)));
    let timeline = core.with(lane, |lane| {
        let trace = lane.recorded()?;
        Some(RunTimeline::new(shape, graph.names(), trace, run))
    });
    let times = settings.times.then(|| Times::new(shape.tasks.len(), count));
    instance.watch = Watch::new(times, timeline).map(Box::new);
    let instance = Arc::new(instance);
    let sink = Sink {
        instance: instance.clone(),
        core: core.clone(),
        delivering: Delivering {
            posts: Vec::new(),
            traffic: traffic.clone(),
        },
        left: Vec::new(),
    };
    core.with(lane, |lane| lane.begin_edges(run, Box::new(sink)));
    let (crew, mut workers) = Crew::new(&instance);
    std::thread::scope(|scope| {
        let at = At {
            core,
            lane,
            instance: &instance,
            crew: &crew,
            traffic: &traffic,
        };
        if let Some((own, others)) = workers.split_last_mut() {
            for other in others {
                scope.spawn(move || work(at, other));
            }
            work(at, own);
        }
    });
    // What the last tasks sent leaves before this rank turns to something else.
    core.wait_on(lane, |lane| (!lane.unfinished_sends()).then_some(()));
    let sink = core.with(lane, |lane| lane.end_edges());
    drop(sink);
    if let Some(failure) = instance.failures().into_iter().next() {
        return Err(failure);
    }
    let times = instance.watch.as_ref().and_then(|watch| watch.times());
    let workers = workers.iter().enumerate().map(|(number, worker)| Counts {
        in_tasks_ns: times.map(|times| times.of_worker_ns(number)),
        ..worker.counts
    });
    Ok(Report {
        rank: shape.rank,
        tasks: shape.tasks.len(),
        took: since.elapsed(),
        workers: workers.collect(),
        peers: traffic.peers(),
        times_ns: times.map(Times::of_tasks_ns),
    })
}

/// Where a worker works.
#[derive(Clone, Copy)]
struct At<'a> {
    core: &'a Core,
    lane: &'a LaneCell,
    instance: &'a Instance,
    crew: &'a Crew,
    traffic: &'a EdgeTraffic,
}

impl At<'_> {
    /// Runs tasks: whether there was one.
    #[inline]
    fn run_some(self, worker: &mut Worker) -> bool {
        let mut any = false;
        for _ in 0..MOST_STEPS {
            if worker.step(self.instance, self.crew) == Step::Idle {
                break;
            }
            any = true;
        }
        any
    }

    /// Handles messages: whether there was one. What they fired is queued.
    #[inline]
    fn poll(self, worker: &mut Worker) -> bool {
        let Some(mut guard) = self.lane.try_lock() else {
            return false;
        };
        let before = POLLS.replace(std::ptr::from_ref(self.instance).addr());
        let any = guard.progress_for_graph();
        POLLS.set(before);
        self.core.after(&mut guard);
        drop(guard);
        FIRED.with_borrow_mut(|fired| {
            fired
                .drain(..)
                .for_each(|task| worker.accept(self.instance, task));
        });
        any
    }

    /// Runs tasks, and handles messages: whether there were any.
    #[inline]
    fn turn(self, worker: &mut Worker) -> bool {
        let any = self.run_some(worker);
        self.poll(worker) || any
    }

    fn arrived(self) -> u64 {
        self.traffic.arrived.load(Ordering::Relaxed)
    }
}

/// Runs tasks and handles messages until all tasks of the rank have ended.
#[track_caller]
fn work(at: At<'_>, worker: &mut Worker) {
    let trace = at.core.trace.as_ref();
    let _track = trace.and_then(|trace| trace.track(format!("worker {}", worker.number())));
    let began = Instant::now();
    let spins = at.core.spin_polls();
    let mut idle = Idle::default();
    loop {
        let (mut round, mut polls, mut arrived) = (0u32, 0, 0);
        let mut timed_since = None;
        loop {
            if at.turn(worker) {
                if polls > 0 {
                    let has_message = at.arrived() > arrived;
                    idle.add(Wait {
                        polls,
                        ns: 0,
                        has_message,
                    });
                    polls = 0;
                }
            } else {
                polls += 1;
                match polls {
                    1 => arrived = at.arrived(),
                    UNTIMED_POLLS => timed_since = Some(Instant::now()),
                    _ => {}
                }
            }
            if polls >= spins {
                break;
            }
            round = round.wrapping_add(1);
            if round.is_multiple_of(ROUNDS) {
                at.core.progress_all();
                if at.instance.has_ended() {
                    break;
                }
            }
        }
        // Yields and sleeps, with all lanes in view, until there is something to do.
        let since = Instant::now();
        if let Some(timed_since) = timed_since.filter(|_| polls > UNTIMED_POLLS) {
            let took = since.duration_since(timed_since).as_nanos() as u64;
            idle.measured(polls - UNTIMED_POLLS, took);
        }
        at.crew.without_work.fetch_add(1, Ordering::Relaxed);
        // Tasks run outside of it, so that their time is not idle.
        let ended = at.core.drive(|| match at.instance.has_ended() {
            true => Some(true),
            false => (at.poll(worker) || worker.has_task(at.instance, at.crew)).then_some(false),
        });
        at.crew.without_work.fetch_sub(1, Ordering::Relaxed);
        idle.add(Wait {
            polls,
            ns: since.elapsed().as_nanos() as u64,
            has_message: polls > 0 && at.arrived() > arrived,
        });
        if ended {
            worker.counts.took_ns = began.elapsed().as_nanos() as u64;
            if idle.lacks_measure() {
                let since = Instant::now();
                (0..UNTIMED_POLLS).for_each(|_| {
                    at.turn(worker);
                });
                idle.measured(UNTIMED_POLLS, since.elapsed().as_nanos() as u64);
            }
            (worker.counts.idle_ns, worker.counts.awaiting_ns) = idle.total_ns();
            // Other workers may sleep.
            return at.core.wake_waiting();
        }
    }
}
