//! Child graphs: graphs that a task begins while it runs, on its rank, by its run's workers.
//!
//! A child graph is not collective: it is built of one rank's tasks, once, and run as often as is
//! wanted, several runs at once too. Its last task raises a signal of the task that began it. What
//! a run of it needs is freed when it has ended.
//!
//! # Invariants
//! 1. A child is counted from its begin until its last task has ended and its failure, if any, is
//!    known; the run that began it does not end before.
//! 2. Each worker of the run takes its worker of the child once.
//! 3. A child that has not ended is in the list, or its signal has been raised.

use crate::event::{Signal, WakeWorkers};
use crate::failure::Failure;
use crate::graph::{Graph, OneRank};
use crate::instance::{Instance, Outside};
use crate::residual::Residual;
use crate::worker::{Crew, Step, Worker};
use crate::{build::BuildError, describe::Description};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A graph of tasks of one rank, which tasks begin: built once, run as often as is wanted.
#[derive(Clone)]
pub struct LocalGraph(pub(crate) Graph);

impl fmt::Debug for LocalGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalGraph {{ {} tasks }}", self.0.shape().tasks.len())
    }
}

impl LocalGraph {
    /// Builds a graph whose tasks are all of the rank that runs it; placements count for one rank.
    ///
    /// # Errors
    /// The description is no graph.
    pub fn build(description: Description) -> Result<LocalGraph, BuildError> {
        Graph::build(description, &mut OneRank).map(LocalGraph)
    }
}

/// What a run hands to its tasks.
pub type Argument = Arc<dyn Any + Send + Sync>;

/// The child graphs of a run.
#[derive(Default)]
pub(crate) struct Children {
    /// Those that have not ended (invariant 1).
    live: AtomicU32,
    /// Counts those that were begun.
    begun: AtomicU32,
    list: Mutex<Vec<Arc<ChildRun>>>,
}

pub(crate) struct ChildRun {
    instance: Instance,
    crew: Crew,
    workers: Mutex<Vec<Option<Worker>>>,
    parent: Signal,
    ending: AtomicBool,
    end: OnceLock<Option<Arc<Failure>>>,
}

/// A run of a child graph.
#[derive(Clone)]
pub struct Child(Arc<ChildRun>);

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Child {{ ended: {} }}", self.has_ended())
    }
}

impl Child {
    /// Whether all of its tasks have ended.
    pub fn has_ended(&self) -> bool {
        self.0.end.get().is_some()
    }

    /// The first failure of one of its tasks, once it has ended.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.0.end.get().cloned().flatten()
    }
}

/// A child graph has no other rank.
struct Inside(WakeWorkers);

impl Outside for Inside {
    fn put(&self, _: u32, _: u32, _: &[u8]) {}
    fn credit(&self, _: u32, _: u32, _: u32) {}
    fn fail(&self, _: u32, _: u32, _: &Failure) {}
    fn ended(&self, _: u32, _: u32) {}

    fn wake(&self) {
        (self.0)();
    }

    fn waker(&self) -> WakeWorkers {
        let wake = self.0.clone();
        Arc::new(move || wake())
    }
}

impl Children {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<ChildRun>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all have ended.
    pub fn have_ended(&self) -> bool {
        self.live.load(Ordering::SeqCst) == 0
    }

    /// How often one was begun.
    #[inline]
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Begins a run of a child graph.
    pub fn begin(
        &self,
        parent: &Instance,
        graph: &LocalGraph,
        argument: Argument,
        signal: Signal,
    ) -> Child {
        let inside = Inside(parent.waker());
        let (workers, run) = (parent.workers.len(), parent.run);
        let mut instance = graph.0.instance(run, workers, Some(Box::new(inside)));
        instance.argument = Some(argument);
        instance.places = parent.places.clone();
        instance.rank = parent.rank;
        let (crew, workers) = Crew::new(&instance);
        let child = Arc::new(ChildRun {
            instance,
            crew,
            workers: Mutex::new(workers.into_iter().map(Some).collect()),
            parent: signal,
            ending: AtomicBool::new(false),
            end: OnceLock::new(),
        });
        self.live.fetch_add(1, Ordering::SeqCst);
        if child.instance.has_ended() {
            child.end(self);
        } else {
            self.list().push(child.clone());
            self.begun.fetch_add(1, Ordering::Release);
            parent.wake();
        }
        Child(child)
    }

    /// Whether a child has not ended that raises the event of this output port.
    pub fn has_child_of(&self, output: u32) -> bool {
        self.list()
            .iter()
            .any(|child| child.parent.output() == output)
    }

    /// The children that a worker has not seen, with its worker of each.
    #[cold]
    pub fn adopt(&self, worker: u32, into: &mut Vec<(Arc<ChildRun>, Worker)>) {
        for child in &*self.list() {
            let mut workers = child.workers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = workers[worker as usize].take() {
                into.push((child.clone(), own));
            }
        }
    }
}

impl ChildRun {
    /// A worker does one thing for the child. `None`: it has ended.
    pub fn step(self: &Arc<Self>, worker: &mut Worker, of: &Children) -> Option<Step> {
        if self.end.get().is_some() {
            return None;
        }
        let step = worker.step(&self.instance, &self.crew);
        if step == Step::Idle && self.instance.has_ended() {
            self.end(of);
            return None;
        }
        Some(step)
    }

    /// Whether a worker has something to do for the child.
    pub fn has_work(&self, worker: &Worker) -> bool {
        self.instance.has_ended() || worker.has_task(&self.instance, &self.crew)
    }

    /// As [`Worker::seek`], of its worker.
    pub fn seek(&self, worker: &Worker, more: u32) {
        worker.seek(&self.crew, more);
    }

    /// As [`Worker::look_for_ended`], of its worker.
    pub fn look_for_ended(&self, worker: &mut Worker) {
        worker.look_for_ended(&self.instance, &self.crew);
    }

    /// What its tasks wait for that are at home with a worker. The task that began it is one of
    /// `of`.
    pub fn residuals(&self, of: &Instance, worker: &Worker, most: usize) -> Vec<Residual> {
        let task = of.shape.outputs[self.parent.output() as usize].task;
        let mut residuals = worker.residuals(&self.instance, most);
        for residual in &mut residuals {
            residual.text = format!("child of {}: {}", of.shape.name(task), residual.text);
        }
        residuals
    }

    fn end(self: &Arc<Self>, of: &Children) {
        if self.ending.swap(true, Ordering::AcqRel) {
            return;
        }
        let _ = self.end.set(self.instance.failures().into_iter().next());
        self.parent.raise();
        // Invariant 3.
        of.list().retain(|child| !Arc::ptr_eq(child, self));
        of.live.fetch_sub(1, Ordering::SeqCst);
    }
}
