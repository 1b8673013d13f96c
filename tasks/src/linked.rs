//! Runs over a lane of the engine: messages of edges between ranks, workers, waiting.
//!
//! The lane is the graph's own. A task that puts a message for another rank takes the lane's
//! lock for the message. A worker that polls the lane delivers what comes and queues the tasks
//! that it fired, once it has left the lock; another thread that polls it leaves them in the
//! inboxes of their homes. Where there is one worker, all that is done to tasks and messages is
//! done by its thread: the lane keeps for it what others poll, but for questions about ends of
//! tasks, which any thread answers ([`crate::orphan`]).
//!
//! One crew of threads may run several runs, of one graph or of several, at once: each thread
//! is a worker of each of them.

use crate::failure::Failure;
use crate::graph::Graph;
use crate::idle::{Idle, MEASURED_POLLS, UNTIMED_POLLS, Wait};
use crate::instance::Instance;
use crate::over_lane::{FIRED, Membership, OverLane, POLLS, Sink};
use crate::places::{Places, Processors};
use crate::progress::{Progress, Timesheet, Totals};
use crate::report::{Report, RunSettings};
use crate::residual::Peer;
use crate::traffic::EdgeTraffic;
use crate::watch::{RunTimeline, Times, Watch};
use crate::worker::{Counts, Crew, Step, Worker};
use osier_engine::diagnose::page::Operation;
use osier_engine::diagnose::waits::{Asked, hear, listens};
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::edges::EdgeRun;
use osier_engine::progress::lane::Lane;
use osier_engine::progress::no_wait::{GraphRuns, Named};
use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

/// Tasks that a worker runs before it polls the graph's lane: at most, and for at most about
/// this long, as long as tasks take what the last ones took.
const MOST_STEPS: u32 = 64;
const STEPS_NS: u64 = 2_000;
/// Polls of that lane before it polls all lanes: at most, and for how long.
const ROUNDS: u32 = 64;
const ROUNDS_NS: u64 = 20_000;
/// Most tasks of a run that a worker describes which waits.
const MOST_DESCRIBED: usize = 5;

/// A run that was opened on a lane: its messages are kept from now on.
pub struct Opened {
    graph: Graph,
    core: Arc<Core>,
    lane: Arc<LaneCell>,
    run: EdgeRun,
    /// It has begun, or is given up.
    taken: bool,
}

impl Opened {
    /// Opens the next run of a graph whose lane this is. `None`: too many are open.
    pub fn new(graph: &Graph, core: &Arc<Core>, lane: &Arc<LaneCell>) -> Option<Opened> {
        let run = core.with(lane, Lane::open_edges)?;
        Some(Opened {
            graph: graph.clone(),
            core: core.clone(),
            lane: lane.clone(),
            run,
            taken: false,
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.taken {
            self.core
                .with(&self.lane, |lane| lane.abandon_edges(self.run));
            self.graph.give_up(self.run.number());
        }
    }
}

/// A run while its crew is at it.
struct Running {
    opened: Opened,
    instance: Arc<Instance>,
    crew: Crew,
    traffic: Arc<EdgeTraffic>,
}

/// A thread of a crew: a worker of each of its runs.
struct Thread<'a> {
    runs: &'a [Running],
    workers: Vec<Worker>,
    crew: usize,
    /// Runs them.
    site: &'static Location<'static>,
    /// Tasks that it runs before it polls.
    steps: u32,
    /// Polls since it polled all lanes, and when it last ran tasks before that.
    rounds: u32,
    polled: Instant,
    /// When it last ran tasks, or ended a wait, and whether it ran tasks in its last turn.
    ran: Instant,
    was_busy: bool,
    /// Polls in a row that found nothing, unless it has waited otherwise since.
    polls: u32,
    idle: Idle,
    timesheet: Timesheet<'a>,
}

/// Runs what was opened on this rank, all of it at once, by a number of threads, of which this
/// is one. The other ranks do the same, each when it comes to it.
///
/// Of each run: what it did, or why a task of this rank failed, or needed one that did: the
/// first that did here.
#[track_caller]
pub fn run(
    opened: Vec<Opened>,
    settings: &RunSettings,
    processors: &'static dyn Processors,
) -> Vec<Result<Report, Arc<Failure>>> {
    let (since, site) = (Instant::now(), Location::caller());
    let Some(first) = opened.first() else {
        return Vec::new();
    };
    let core = first.core.clone();
    let threads = settings.workers.max(1);
    let progress = Progress::begin(
        &core,
        threads,
        settings.progress_thread,
        first.graph.choice(),
    );
    // One of two has one victim.
    let places = (threads > 2).then(|| Places::new(threads, processors));
    let of_graphs = GraphRuns::begin(&core);
    // Its address names the crew as long as it is there.
    let name = Box::new(0u8);
    let crew = std::ptr::from_ref(&*name).addr();
    let mut workers: Vec<Vec<Worker>> = (0..threads).map(|_| Vec::new()).collect();
    let mut runs = Vec::new();
    for (at, opened) in opened.into_iter().enumerate() {
        let member = Membership {
            crew,
            at: at as u32,
        };
        let (running, of_run) = begin(opened, settings, member, places.clone());
        for (thread, worker) in workers.iter_mut().zip(of_run) {
            thread.push(worker);
        }
        runs.push(running);
    }
    let mut crew: Vec<Thread<'_>> = workers
        .into_iter()
        .map(|workers| Thread {
            runs: &runs,
            workers,
            crew,
            site,
            steps: MOST_STEPS,
            rounds: 0,
            polled: since,
            ran: since,
            was_busy: false,
            polls: 0,
            idle: Idle::default(),
            timesheet: Timesheet::new(&progress, since),
        })
        .collect();
    std::thread::scope(|scope| {
        if let Some((own, others)) = crew.split_last_mut() {
            for other in others {
                scope.spawn(|| other.work(&core));
            }
            own.work(&core);
        }
    });
    let counts = |at: usize| {
        crew.iter()
            .map(|thread| thread.workers[at].counts)
            .collect()
    };
    let counts: Vec<_> = (0..runs.len()).map(counts).collect();
    drop(crew);
    let with_thread = progress.with_thread();
    drop((progress, of_graphs));
    let ended = |(running, workers)| {
        let report = end(running, workers, since);
        report.map(|report| Report {
            progress_thread: with_thread,
            ..report
        })
    };
    runs.into_iter().zip(counts).map(ended).collect()
}

fn begin(
    mut opened: Opened,
    settings: &RunSettings,
    member: Membership,
    places: Option<Arc<Places>>,
) -> (Running, Vec<Worker>) {
    opened.taken = true;
    let threads = settings.workers.max(1);
    let shape = opened.graph.shape().clone();
    let traffic = EdgeTraffic::new(shape.ranks);
    let over_lane = OverLane {
        core: opened.core.clone(),
        lane: opened.lane.clone(),
        run: opened.run,
        traffic: traffic.clone(),
    };
    let number = opened.run.number();
    let mut instance = opened
        .graph
        .instance(number, threads, Some(Box::new(over_lane)));
    let timeline = opened.core.with(&opened.lane, |lane| {
        let trace = lane.recorded()?;
        Some(RunTimeline::new(
            &shape,
            opened.graph.names(),
            trace,
            number,
        ))
    });
    let times = settings
        .times
        .then(|| Times::new(shape.tasks.len(), threads));
    instance.watch = Watch::new(times, timeline).map(Box::new);
    instance.places = places;
    let instance = Arc::new(instance);
    let sink = Sink::new(instance.clone(), member, traffic.clone());
    let begin = |lane: &mut Lane| lane.begin_edges(opened.run, Box::new(sink));
    opened.core.with(&opened.lane, begin);
    let (crew, workers) = Crew::new(&instance);
    let running = Running {
        opened,
        instance,
        crew,
        traffic,
    };
    (running, workers)
}

/// All tasks of a run have ended.
#[track_caller]
fn end(running: Running, workers: Vec<Counts>, since: Instant) -> Result<Report, Arc<Failure>> {
    let Opened {
        core, lane, run, ..
    } = &running.opened;
    // What the last tasks sent leaves before this rank turns to something else.
    core.wait_on(lane, |lane| lane.edges_have_left(*run).then_some(()));
    let instance = &running.instance;
    let sink = core.with(lane, |lane| {
        let sink = lane.end_edges(*run);
        for (rank, place) in instance.take_questions() {
            lane.post_edge_ended(*run, rank, place);
        }
        sink
    });
    drop(sink);
    if let Some(failure) = instance.failures().into_iter().next() {
        return Err(failure);
    }
    let times = instance.watch.as_ref().and_then(|watch| watch.times());
    let workers = workers.into_iter().enumerate();
    let workers = workers.map(|(number, counts)| Counts {
        in_tasks_ns: times.map(|times| times.of_worker_ns(number)),
        ..counts
    });
    Ok(Report {
        rank: instance.shape.rank,
        tasks: instance.shape.tasks.len(),
        took: since.elapsed(),
        progress_thread: false,
        workers: workers.collect(),
        peers: running.traffic.peers(),
        times_ns: times.map(Times::of_tasks_ns),
    })
}

impl Thread<'_> {
    /// Runs tasks: how many.
    #[inline]
    fn run_some(&mut self) -> u32 {
        let mut ran = 0u32;
        for (running, worker) in self.runs.iter().zip(&mut self.workers) {
            worker.take_events(&running.instance, &running.crew);
            for _ in 0..self.steps {
                if worker.step(&running.instance, &running.crew) == Step::Idle {
                    break;
                }
                ran += 1;
            }
        }
        ran
    }

    /// Handles messages: whether there were any. What they fired is queued.
    #[inline]
    fn poll(&mut self, core: &Core) -> bool {
        let mut any = false;
        for (at, running) in self.runs.iter().enumerate() {
            let lane = &running.opened.lane;
            let same = |before: &Running| Arc::ptr_eq(&before.opened.lane, lane);
            if at > 0 && self.runs[..at].iter().any(same) {
                continue;
            }
            if let Some(mut guard) = lane.try_lock() {
                let before = POLLS.replace(self.crew);
                any |= guard.progress_for_graph();
                POLLS.set(before);
                core.after(&mut guard);
                drop(guard);
                self.take_fired();
            }
        }
        any
    }

    /// Runs tasks, and handles messages: whether there were any.
    #[inline]
    fn turn(&mut self, core: &Core) -> bool {
        let ran = self.run_some();
        self.rounds += 1;
        if ran > 0 {
            self.measure(ran);
        } else {
            self.was_busy = false;
        }
        let mut any = self.poll(core) || ran > 0;
        if self.rounds >= ROUNDS {
            self.rounds = 0;
            self.polled = self.ran;
            let before = POLLS.replace(self.crew);
            any |= core.progress_tended();
            POLLS.set(before);
            self.take_fired();
        }
        any
    }

    /// Tasks have run: how many the next turn runs, and whether all lanes are polled in this one.
    fn measure(&mut self, ran: u32) {
        let now = Instant::now();
        let took_ns = (now - self.ran).as_nanos() as u64;
        if self.was_busy {
            let each_ns = took_ns / u64::from(ran);
            self.steps = (STEPS_NS / each_ns.max(1)).clamp(1, MOST_STEPS.into()) as u32;
        }
        (self.was_busy, self.ran) = (true, now);
        if (now - self.polled).as_nanos() as u64 >= ROUNDS_NS {
            self.rounds = ROUNDS;
            if self.timesheet.is_used() {
                self.note(now, ran, took_ns);
            }
        }
    }

    /// Tasks have run, in this time less that of the polls before them, which found nothing.
    #[cold]
    fn note(&mut self, now: Instant, ran: u32, within_ns: u64) {
        let ns = within_ns.saturating_sub(self.idle.polls_ns(self.polls.into()));
        if self.timesheet.ran(now, ran, ns) {
            self.tell(now);
        }
    }

    fn tell(&mut self, now: Instant) {
        let (idle_ns, awaiting_ns) = self.idle.total_ns();
        let seen = Totals {
            idle_ns,
            awaiting_ns,
            long_messages: self.runs.iter().map(|run| run.traffic.long()).sum(),
        };
        self.timesheet.tell(now, seen);
    }

    /// Looks on which processor it runs.
    fn look_where(&self) {
        if let (Some(run), Some(worker)) = (self.runs.first(), self.workers.first())
            && let Some(places) = &run.instance.places
        {
            places.look(worker.number());
        }
    }

    fn has_task(&self) -> bool {
        let mut all = self.runs.iter().zip(&self.workers);
        all.any(|(run, worker)| worker.has_task(&run.instance, &run.crew))
    }

    /// While it lives, calls that are refused name the tasks of these runs.
    fn named(&self) -> Named {
        let runs: Vec<_> = self.runs.iter().map(|run| run.instance.clone()).collect();
        Named::by(move |task, key| {
            let run = runs.iter().find(|run| run.key() == key)?;
            Some(format!(
                "{} of rank {}",
                run.shape.name(task),
                run.shape.rank
            ))
        })
    }

    /// Looks for tasks that can no longer be fired.
    #[cold]
    fn look_for_ended(&mut self) {
        for (run, worker) in self.runs.iter().zip(&mut self.workers) {
            worker.look_for_ended(&run.instance, &run.crew);
        }
    }

    /// Tells what the tasks at home with it wait for: it has waited for long.
    #[cold]
    fn describe(&self, core: &Core) {
        for (run, worker) in self.runs.iter().zip(&self.workers) {
            for residual in worker.residuals(&run.instance, MOST_DESCRIBED) {
                let (peer, context) = core.with(&run.opened.lane, |lane| {
                    let peer = residual.peer.map(|peer| match peer {
                        Peer::Graph(peer) => lane.in_world(peer),
                        Peer::Job(peer) => peer,
                    });
                    (peer, lane.context())
                });
                let operation = match residual.by_events {
                    true => Operation::Other,
                    false => Operation::Task,
                };
                hear(Asked {
                    peer,
                    context,
                    what: Some(residual.text),
                    ..Asked::of(operation)
                });
            }
        }
    }

    /// Messages of other ranks so far.
    fn arrived(&self) -> u64 {
        self.runs.iter().map(|run| run.traffic.arrived()).sum()
    }

    #[inline]
    fn take_fired(&mut self) {
        FIRED.with_borrow_mut(|fired| {
            for (at, task) in fired.drain(..) {
                let instance = &self.runs[at as usize].instance;
                self.workers[at as usize].accept(instance, task);
            }
        });
    }

    fn have_ended(&self) -> bool {
        self.runs.iter().all(|run| run.instance.has_ended())
    }

    /// Runs tasks and handles messages until all tasks of the rank have ended.
    fn work(&mut self, core: &Core) {
        let _named = self.named();
        let number = self.workers.first().map_or(0, Worker::number);
        let trace = core.trace.as_ref();
        let _track = trace.and_then(|trace| trace.track(format!("worker {number}")));
        let began = Instant::now();
        self.look_where();
        let spins = core.spin_polls();
        loop {
            let mut arrived = 0;
            let mut timed_since = None;
            while self.polls < spins {
                if self.turn(core) {
                    if self.polls > 0 {
                        let has_message = self.arrived() > arrived;
                        self.idle.add(Wait {
                            polls: self.polls,
                            ns: 0,
                            has_message,
                        });
                        self.polls = 0;
                    }
                } else {
                    self.polls += 1;
                    match self.polls {
                        1 => arrived = self.arrived(),
                        UNTIMED_POLLS => {
                            self.look_where();
                            timed_since = Some((self.polls, Instant::now()));
                        }
                        // Most waits end before the spinning does.
                        MEASURED_POLLS => {
                            let now = Instant::now();
                            self.measure_polls(timed_since.replace((self.polls, now)), now);
                        }
                        _ => {}
                    }
                }
                if self.rounds == 0 && self.have_ended() {
                    break;
                }
            }
            // Yields and sleeps, with all lanes in view, until there is something to do.
            let since = Instant::now();
            self.measure_polls(timed_since, since);
            let polls = std::mem::take(&mut self.polls);
            self.seek(1);
            // Tasks run outside of it, so that their time is not idle, and reports take this
            // thread for one that waits.
            let ended = core.wait_for_tasks(self.site, || {
                if self.have_ended() {
                    return Some(true);
                }
                if self.poll(core) || self.has_task() {
                    return Some(false);
                }
                if listens() {
                    self.look_for_ended();
                    if self.has_task() {
                        return Some(false);
                    }
                    self.describe(core);
                }
                None
            });
            self.seek(1u32.wrapping_neg());
            self.ran = Instant::now();
            self.look_where();
            self.idle.add(Wait {
                polls,
                ns: (self.ran - since).as_nanos() as u64,
                has_message: polls > 0 && self.arrived() > arrived,
            });
            if ended {
                return self.leave(core, began);
            }
        }
    }

    /// Notes what the polls took since some of them, which found nothing.
    fn measure_polls(&mut self, since: Option<(u32, Instant)>, now: Instant) {
        if let Some((polls, since)) = since.filter(|(polls, _)| *polls < self.polls) {
            let took = now.duration_since(since).as_nanos() as u64;
            self.idle.measured(self.polls - polls, took);
        }
    }

    /// All tasks have ended.
    fn leave(&mut self, core: &Core, began: Instant) {
        let now = Instant::now();
        let took_ns = (now - began).as_nanos() as u64;
        if self.idle.lacks_measure() {
            (0..UNTIMED_POLLS).for_each(|_| {
                self.turn(core);
            });
            self.idle
                .measured(UNTIMED_POLLS, now.elapsed().as_nanos() as u64);
        }
        if self.timesheet.is_used() {
            self.tell(now);
        }
        let idle = self.idle.total_ns();
        for worker in &mut self.workers {
            worker.counts.took_ns = took_ns;
            (worker.counts.idle_ns, worker.counts.awaiting_ns) = idle;
        }
        // Other workers may sleep.
        core.wake_waiting();
    }

    /// Tells the others that this thread looks for work, or has found some.
    fn seek(&self, more: u32) {
        for (run, worker) in self.runs.iter().zip(&self.workers) {
            worker.seek(&run.crew, more);
        }
    }
}
