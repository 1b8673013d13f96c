//! What programs share that do the same work in three ways: their names, what is computed
//! while messages are in flight, and what the workers of a graph did.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use osier::requests::ScopedRequest;
use osier::task::Counts;
use osier::{Communicator, Error, ErrorKind, Op, Result};

/// How messages and computation follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Exchange, then compute.
    Sync,
    /// Compute what needs no message while messages are on their way.
    Overlap,
    /// A graph of tasks, several for each rank.
    Graph,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Sync => "sync",
            By::Overlap => "overlap",
            By::Graph => "graph",
        })
    }
}

impl By {
    /// Refuses options of tasks where there are none: their names, and whether they are given.
    ///
    /// # Errors
    /// One is given.
    pub fn check_task_options(self, options: &[(&str, bool)]) -> Result<()> {
        let given = options.iter().find(|(_, given)| *given);
        match (self, given) {
            (By::Sync | By::Overlap, Some((name, _))) => Err(Error::new(
                ErrorKind::Argument,
                format!("{name} with --by {self}: there are no tasks (hint: --by graph)"),
            )),
            _ => Ok(()),
        }
    }
}

/// Computes while requests are in flight, then waits for them. `compute` is passed a function
/// that makes progress, to be called between parts of the work. Returns the time of `compute`.
///
/// # Errors
/// A request has failed.
pub fn compute_beside(
    mut requests: Vec<ScopedRequest<'_>>,
    compute: impl FnOnce(&mut dyn FnMut()),
) -> Result<Duration> {
    let begin = Instant::now();
    // A test of one request makes progress for all.
    let mut first = 0;
    compute(&mut || {
        while requests.get_mut(first).is_some_and(ScopedRequest::test) {
            first += 1;
        }
    });
    let computed = begin.elapsed();
    for request in requests {
        request.wait()?;
    }
    Ok(computed)
}

/// What the workers of all ranks did in one or more runs of a graph.
#[derive(Clone, Debug)]
pub struct Workers {
    /// Workers of each rank.
    pub per_rank: usize,
    /// Calls of tasks.
    pub firings: u64,
    /// Calls by another worker than the task's own.
    pub stolen: u64,
}

impl Workers {
    /// Adds up over all ranks. Collective.
    ///
    /// # Errors
    /// Communication fails.
    pub fn of(comm: &Communicator, per_rank: usize, counts: &[Counts]) -> Result<Workers> {
        let own: [u64; 2] = [
            counts.iter().map(|worker| worker.firings).sum(),
            counts.iter().map(|worker| worker.stolen).sum(),
        ];
        let mut all = [0; 2];
        comm.allreduce(&own, &mut all, Op::Sum)?;
        Ok(Workers {
            per_rank,
            firings: all[0],
            stolen: all[1],
        })
    }
}

/// Share of the time that a rank's workers had no task, of a run that took `seconds`.
pub fn idle_share(counts: &[Counts], per_rank: usize, seconds: f64) -> f64 {
    let idle_ns: u64 = counts.iter().map(|worker| worker.idle_ns).sum();
    match seconds > 0.0 {
        true => 1e-9 * idle_ns as f64 / (seconds * per_rank as f64),
        false => 0.0,
    }
}

/// Lines of a report: of a rank's time, the largest and the mean share in
/// communication, or of its workers without a task.
pub fn shares(workers: Option<&Workers>, (max, mean): (f64, f64)) -> Vec<(&'static str, String)> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let Some(workers) = workers else {
        let (mean, max) = (percent(mean), percent(max));
        let text = format!("mean {mean}, most {max} of a rank's time, waiting included");
        return vec![("communication", text)];
    };
    let (mean, least) = (percent(1.0 - mean), percent(1.0 - max));
    let busy = format!("mean {mean}, least {least} of a rank's time");
    let firings = format!("{}, {} of them stolen", workers.firings, workers.stolen);
    vec![("workers busy", busy), ("firings", firings)]
}

/// Locks a mutex, also after a panic of its holder: the graph has reported that by then.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Zeros, or nothing if memory is full.
pub fn zeros(elements: usize) -> Option<Vec<f64>> {
    let mut values = Vec::new();
    values.try_reserve_exact(elements).ok()?;
    values.resize(elements, 0.0);
    Some(values)
}
