//! Runs of graphs over a lane of the engine: messages between ranks, waiting workers.
//!
//! The lane is the graph's own. A task that puts a message for another rank takes the lane's
//! lock for the message. A worker that polls the lane delivers what comes and queues the tasks
//! that it fired, once it has left the lock; another thread that polls it leaves them in the
//! inboxes of their homes. Where there is one worker, all that is done to tasks and messages is
//! done by its thread: others keep for it what comes.

use crate::failure::Failure;
use crate::graph::{Graph, Report};
use crate::instance::{Fired, Instance, NO_MORE, Outside};
use crate::orphan::ASKED;
use crate::worker::{Crew, Step, Worker};
use osier_engine::diagnose::page::Operation;
use osier_engine::diagnose::waits::{Asked, hear, listens};
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::edges::{self, EdgeSink, Post, What};
use osier_engine::progress::no_wait::{Named, Running};
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const _: () = assert!(NO_MORE == edges::NO_MORE && ASKED == edges::ASKED);

/// Tasks that a worker runs before it polls the graph's lane, and polls before it polls all
/// lanes.
const MOST_STEPS: u32 = 16;
const ROUNDS: u32 = 64;
/// Most tasks that a worker describes which waits.
const MOST_DESCRIBED: usize = 5;

/// The other ranks, as a run reaches them.
struct OverLane {
    core: Arc<Core>,
    lane: Arc<LaneCell>,
    run: u16,
}

impl Outside for OverLane {
    fn put(&self, rank: u32, place: u32, packed: &[u8]) {
        let run = self.run;
        self.core
            .with(&self.lane, |lane| lane.post_edge(run, rank, place, packed));
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

    fn ended(&self, rank: u32, place: u32) {
        let run = self.run;
        self.core
            .with(&self.lane, |lane| lane.post_edge_ended(run, rank, place));
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
#[derive(Default)]
struct Delivering(Vec<Post>);

impl Fired for Delivering {
    fn fired(&mut self, instance: &Instance, task: u32) {
        match is_polled_by_worker(instance) {
            true => FIRED.with_borrow_mut(|fired| fired.push(task)),
            false => instance.send_home(task),
        }
    }

    fn put(&mut self, _: &Instance, rank: u32, place: u32, packed: &[u8]) {
        self.post(rank, place, What::Elements(packed.to_vec()));
    }

    fn credit(&mut self, _: &Instance, rank: u32, place: u32, messages: u32) {
        self.post(rank, place, What::Credit(messages));
    }

    fn fail(&mut self, _: &Instance, rank: u32, place: u32, cause: &Failure) {
        self.post(rank, place, What::Failed(cause.to_string()));
    }

    fn ended(&mut self, _: &Instance, rank: u32, place: u32) {
        self.post(rank, place, What::Ended);
    }
}

impl Delivering {
    fn post(&mut self, peer: u32, place: u32, what: What) {
        self.0.push(Post { peer, place, what });
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
                    What::Ended => instance.ended_from(*peer, *place, delivering),
                }
            }
        }
    }
}

impl EdgeSink for Sink {
    fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.delivering.0)
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
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.deliver(peer, place, packed, delivering);
        }
        let what = What::Elements(packed.to_vec());
        self.leave(Left::Message(Post { peer, place, what }))
    }

    fn credit(&mut self, peer: u32, place: u32, messages: u32) -> bool {
        // Any thread may note a question; the worker may be in a task for long.
        if self.may_touch() || messages == ASKED {
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

    fn ended(&mut self, peer: u32, place: u32) -> bool {
        if self.may_touch() {
            let delivering = &mut self.delivering;
            return self.instance.ended_from(peer, place, delivering);
        }
        let what = What::Ended;
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

/// Runs a graph on this rank, by a number of workers, of which this thread is one. The other
/// ranks of the lane do the same, each when it comes to it; `run` counts the runs of the graph, the
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
    workers: usize,
) -> Result<Report, Arc<Failure>> {
    let (since, site) = (Instant::now(), Location::caller());
    let over_lane = OverLane {
        core: core.clone(),
        lane: lane.clone(),
        run,
    };
    let instance = Arc::new(graph.instance(workers, Some(Box::new(over_lane))));
    let sink = Sink {
        instance: instance.clone(),
        core: core.clone(),
        delivering: Delivering::default(),
        left: Vec::new(),
    };
    core.with(lane, |lane| lane.begin_edges(run, Box::new(sink)));
    let (crew, mut workers) = Crew::new(&instance);
    let _running = Running::begin(core);
    std::thread::scope(|scope| {
        if let Some((own, others)) = workers.split_last_mut() {
            for other in others {
                scope.spawn(|| work((core, lane, site), &instance, &crew, other));
            }
            work((core, lane, site), &instance, &crew, own);
        }
    });
    // What the last tasks sent leaves before this rank turns to something else.
    core.wait_on(lane, |lane| (!lane.unfinished_sends()).then_some(()));
    let sink = core.with(lane, |lane| {
        let sink = lane.end_edges();
        for (rank, place) in instance.take_questions() {
            lane.post_edge_ended(run, rank, place);
        }
        sink
    });
    drop(sink);
    match instance.failures().into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(Report {
            tasks: graph.shape().tasks.len(),
            took: since.elapsed(),
            workers: workers.iter().map(|worker| worker.counts).collect(),
        }),
    }
}

/// Runs tasks and handles messages until all tasks of the rank have ended.
fn work(
    (core, lane, site): (&Core, &LaneCell, &'static Location<'static>),
    instance: &Arc<Instance>,
    crew: &Crew,
    worker: &mut Worker,
) {
    let named = instance.clone();
    let _named = Named::by(move |task| {
        let shape = named.shape();
        format!("{} of rank {}", shape.name(task), shape.rank)
    });
    let instance: &Instance = instance;
    let this = std::ptr::from_ref(instance).addr();
    let steps = |worker: &mut Worker| {
        let mut any = false;
        for _ in 0..MOST_STEPS {
            if worker.step(instance, crew) == Step::Idle {
                break;
            }
            any = true;
        }
        any
    };
    let poll = |worker: &mut Worker| {
        let mut any = false;
        if let Some(mut guard) = lane.try_lock() {
            let before = POLLS.replace(this);
            any |= guard.progress_for_graph();
            POLLS.set(before);
            core.after(&mut guard);
            drop(guard);
            FIRED.with_borrow_mut(|fired| {
                fired
                    .drain(..)
                    .for_each(|task| worker.accept(instance, task));
            });
        }
        any
    };
    let spins = core.spin_polls();
    let mut idle_ns = 0;
    loop {
        let (mut round, mut idle) = (0u32, 0);
        while idle < spins {
            idle = if steps(worker) | poll(worker) {
                0
            } else {
                idle + 1
            };
            round = round.wrapping_add(1);
            if round.is_multiple_of(ROUNDS) {
                core.progress_all();
                if instance.has_ended() {
                    break;
                }
            }
        }
        // Yields and sleeps, with all lanes in view, until there is something to do. No task runs
        // meanwhile: reports take this thread for one that waits.
        let since = Instant::now();
        crew.without_work.fetch_add(1, Ordering::Relaxed);
        let ended = core.wait_for_tasks(site, || {
            if instance.has_ended() {
                return Some(true);
            }
            if poll(worker) || worker.has_work(instance, crew) {
                return Some(false);
            }
            if listens() {
                worker.look_for_ended(instance, crew);
                if worker.has_work(instance, crew) {
                    return Some(false);
                }
                describe(core, lane, instance, worker);
            }
            None
        });
        crew.without_work.fetch_sub(1, Ordering::Relaxed);
        idle_ns += since.elapsed().as_nanos() as u64;
        if ended {
            worker.counts.idle_ns = idle_ns;
            // Other workers may sleep.
            return core.wake_waiting();
        }
    }
}

/// Tells what the tasks of a worker wait for, which has waited for long.
#[cold]
fn describe(core: &Core, lane: &LaneCell, instance: &Instance, worker: &Worker) {
    for residual in instance.residuals(worker.home(instance), MOST_DESCRIBED) {
        let (peer, context) = core.with(lane, |lane| {
            let peer = residual.peer.map(|peer| lane.in_world(peer));
            (peer, lane.context())
        });
        hear(Asked {
            peer,
            context,
            what: Some(residual.text),
            ..Asked::of(Operation::Task)
        });
    }
}
