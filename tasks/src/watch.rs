//! What is seen of each call of a task, if it was asked for: its time.
//!
//! # Invariants
//! 1. The numbers of a task are changed by its owner only, those of a worker by its thread.

use osier_engine::trace::now_ns;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// By task and by worker: time in calls, in ns.
    tasks: Box<[AtomicU64]>,
    workers: Box<[OfWorker]>,
}

#[derive(Default)]
#[repr(align(128))]
struct OfWorker(AtomicU64);

impl Watch {
    pub fn new(tasks: usize, workers: usize) -> Watch {
        Watch {
            tasks: (0..tasks).map(|_| AtomicU64::new(0)).collect(),
            workers: (0..workers).map(|_| OfWorker::default()).collect(),
        }
    }

    /// Calls a task's code, and sees what it does.
    #[cold]
    pub fn call<R>(&self, call: Call, code: impl FnOnce() -> R) -> R {
        let since = now_ns();
        let result = code();
        let took = now_ns().saturating_sub(since);
        for sum in [
            &self.tasks[call.task as usize],
            &self.workers[call.worker as usize].0,
        ] {
            // Invariant 1.
            sum.store(sum.load(Ordering::Relaxed) + took, Ordering::Relaxed);
        }
        result
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
