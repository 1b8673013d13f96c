//! What is seen of each call of a task, if it was asked for: its time, and spans and messages
//! for a timeline.
//!
//! A message along an edge is known at both ends by the run, the two ranks, the place of its
//! branch in the letter between them, and its number on the branch; of a branch within a rank
//! by the branch.
//!
//! # Invariants
//! 1. The numbers of a task and its output ports are changed by its owner only, those of a
//!    worker by its thread.
//! 2. Messages of a branch are numbered in the order of their puts, which is the one in which
//!    they are written or sent.

use crate::shape::{Shape, Source};
use osier_engine::progress::traced::LaneTrace;
use osier_engine::trace::event::{Event, Kind, Phase};
use osier_engine::trace::family::Family;
use osier_engine::trace::{Tracer, now_ns};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A call of a task's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Init,
    Inject,
    Execute,
}

/// A call, and who calls.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub task: u32,
    pub code: Code,
    pub firing: u64,
    pub worker: u32,
}

/// What is seen of a run.
pub(crate) struct Watch {
    times: Option<Times>,
    timeline: Option<RunTimeline>,
}

/// Time in calls, in ns, by task and by worker.
pub(crate) struct Times {
    tasks: Box<[AtomicU64]>,
    workers: Box<[OfWorker]>,
}

#[derive(Default)]
#[repr(align(128))]
struct OfWorker(AtomicU64);

/// A run in a timeline.
pub(crate) struct RunTimeline {
    tracer: Arc<Tracer>,
    context: u64,
    run: u32,
    rank: u32,
    /// The ranks of the job behind those of the graph.
    members: Arc<[u32]>,
    families: Arc<[Family]>,
    /// Messages put, by output port for this rank, and by branch to another one.
    here: Box<[AtomicU32]>,
    remote: Box<[AtomicU32]>,
}

impl Watch {
    /// `None`: nothing is to be seen.
    pub fn new(times: Option<Times>, timeline: Option<RunTimeline>) -> Option<Watch> {
        (times.is_some() || timeline.is_some()).then_some(Watch { times, timeline })
    }

    /// Calls a task's code, and sees it. `offered` tells which messages of an edge are the
    /// call's: number of the first, and how many.
    #[cold]
    pub fn call<R>(
        &self,
        shape: &Shape,
        offered: impl Fn(u32) -> (u32, u32),
        call: Call,
        code: impl FnOnce() -> R,
    ) -> R {
        let since = now_ns();
        if let Some(timeline) = &self.timeline {
            timeline.begin(shape, offered, call, since);
        }
        let result = code();
        let now = now_ns();
        if let Some(timeline) = &self.timeline {
            timeline.record(Event {
                time_ns: now,
                phase: Phase::End,
                ..Event::of(kind_of(call.code))
            });
        }
        if let Some(times) = &self.times {
            times.add(call, now.saturating_sub(since));
        }
        result
    }

    /// A task puts a message on an output port. By its owner.
    #[cold]
    pub fn put(&self, shape: &Shape, output: u32, bytes: usize) {
        if let Some(timeline) = &self.timeline {
            timeline.put(shape, output, bytes);
        }
    }

    /// The times, if they were asked for.
    pub fn times(&self) -> Option<&Times> {
        self.times.as_ref()
    }
}

impl Times {
    pub fn new(tasks: usize, workers: usize) -> Times {
        Times {
            tasks: (0..tasks).map(|_| AtomicU64::new(0)).collect(),
            workers: (0..workers).map(|_| OfWorker::default()).collect(),
        }
    }

    fn add(&self, call: Call, took_ns: u64) {
        let (task, worker) = (call.task as usize, call.worker as usize);
        for sum in [&self.tasks[task], &self.workers[worker].0] {
            // Invariant 1.
            sum.store(sum.load(Ordering::Relaxed) + took_ns, Ordering::Relaxed);
        }
    }

    /// Time in the calls of each task, in ns.
    pub fn of_tasks_ns(&self) -> Vec<u64> {
        let times = self.tasks.iter().map(|ns| ns.load(Ordering::Relaxed));
        times.collect()
    }

    /// Time in the calls by a worker, in ns.
    pub fn of_worker_ns(&self, worker: usize) -> u64 {
        self.workers[worker].0.load(Ordering::Relaxed)
    }
}

impl RunTimeline {
    /// A run over a lane that is recorded. The families are those of the shape.
    pub fn new(shape: &Shape, families: &Arc<[Family]>, lane: &LaneTrace, run: u32) -> RunTimeline {
        let zeros = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
        RunTimeline {
            tracer: lane.tracer().clone(),
            context: lane.context(),
            run,
            rank: shape.rank as u32,
            members: lane.members().clone(),
            families: families.clone(),
            here: zeros(shape.outputs.len()),
            remote: zeros(shape.remotes.len()),
        }
    }

    fn record(&self, event: Event) {
        self.tracer.record(event);
    }

    fn begin(&self, shape: &Shape, offered: impl Fn(u32) -> (u32, u32), call: Call, since_ns: u64) {
        let task = &shape.tasks[call.task as usize];
        let event = Event {
            phase: Phase::Begin,
            time_ns: since_ns,
            context: self.context,
            bytes: call.firing,
            tag: self.run,
            number: task.number,
            ..Event::of(kind_of(call.code))
        };
        self.tracer
            .record_of(event, &self.families[task.family as usize]);
        if call.code == Code::Init {
            return;
        }
        for input in task.inputs.clone() {
            let (first, offered) = offered(input);
            let branch = shape.inputs[input as usize].branch;
            let (from, place) = match shape.branches[branch as usize].source {
                Source::Here(_) => (self.rank, branch),
                Source::Rank { rank, place } => (rank, place),
            };
            for message in 0..offered {
                let number = first.wrapping_add(message);
                self.end(Kind::TaskRead, from, (place, number), since_ns, None);
            }
        }
    }

    fn put(&self, shape: &Shape, output: u32, bytes: usize) {
        let now = now_ns();
        // Invariants 1 and 2.
        let next = |count: &AtomicU32| {
            let number = count.load(Ordering::Relaxed);
            count.store(number.wrapping_add(1), Ordering::Relaxed);
            number
        };
        let port = &shape.outputs[output as usize];
        if let Some(branch) = port.here {
            let number = next(&self.here[output as usize]);
            self.end(Kind::TaskPut, self.rank, (branch, number), now, Some(bytes));
        }
        for remote in port.remotes.clone() {
            let to = shape.remotes[remote as usize];
            let number = next(&self.remote[remote as usize]);
            self.end(Kind::TaskPut, to.rank, (to.place, number), now, Some(bytes));
        }
    }

    /// Records an end of a message: place of its branch, and number there.
    fn end(
        &self,
        kind: Kind,
        peer: u32,
        (place, number): (u32, u32),
        at_ns: u64,
        bytes: Option<usize>,
    ) {
        self.record(Event {
            time_ns: at_ns,
            context: self.context,
            peer,
            world: self.members[peer as usize],
            tag: self.run,
            bytes: bytes.unwrap_or(0) as u64,
            number: u64::from(place) << 32 | u64::from(number),
            ..Event::of(kind)
        });
    }
}

fn kind_of(code: Code) -> Kind {
    match code {
        Code::Init => Kind::TaskInit,
        Code::Inject => Kind::TaskInject,
        Code::Execute => Kind::TaskExecute,
    }
}
