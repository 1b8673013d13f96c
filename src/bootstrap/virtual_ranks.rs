//! Virtual ranks: more ranks than threads, each on a stack of its own.
//!
//! | here | duty |
//! |---|---|
//! | [`ranks`], [`ranks_async`] | a job of virtual ranks in this process |
//! | `on_stacks` | ranks dealt to workers, ends and panics of ranks |
//! | `drive` | the future of a rank |
//!
//! The scheduler of a worker is [`osier_tasks::stacks`].

use crate::bootstrap::Universe;
use crate::comm::Communicator;
use osier_engine::check::Setting;
use osier_engine::diagnose::threads::Inside;
use osier_engine::diagnose::waits::listens;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Core;
use osier_engine::progress::suspend::{self, Awaits};
use osier_tasks::stacks::{self, RankBody, SPINS, SPINS_SHARED};
use osier_transports::Death;
use osier_transports::shm::{Job, JobOptions, MAX_RANKS};
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Runs `f` as `n` virtual ranks of a job in this process, on `workers` threads; the results in
/// rank order.
///
/// A virtual rank has a stack of its own (2 MiB, with a guard page) and no thread. A worker is a
/// thread that runs a block of neighboring ranks in turn; the calling thread is the first. A
/// rank stays on its worker. Where a call of the library would wait, the other ranks of the
/// worker run, so any number of ranks may wait for each other on one worker. To them the
/// communicator is the same as to ranks that are processes or threads.
///
/// What waits without the library stops the worker and all its ranks: a lock that another rank
/// holds, a channel, a sleep. A rank that computes for long, or polls for what no call of the
/// library tells, lets the others run by [`give_turn`]. Variables of a thread are those of its worker,
/// shared by its ranks.
///
/// A panic of a rank is passed on after all have ended; for the others the rank is dead.
///
/// ```
/// // 64 ranks on one thread, each of which sends to the next.
/// let sums = osier::task::ranks(64, 1, |comm| {
///     let (next, previous) = ((comm.rank() + 1) % 64, (comm.rank() + 63) % 64);
///     let mut got = [0usize];
///     comm.sendrecv(&[comm.rank()], next, 0, &mut got, previous, 0)?;
///     assert_eq!(got, [previous]);
///     let mut sum = [0usize];
///     comm.allreduce(&got, &mut sum, osier::Op::Sum)?;
///     Ok::<_, osier::Error>(sum[0])
/// })?;
/// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 64 * 63 / 2)));
/// # Ok::<(), osier::Error>(())
/// ```
///
/// # Errors
/// Of kind [`ErrorKind::Argument`], if there is no rank or no worker, or there are more ranks
/// than a job can have; of kind [`ErrorKind::OutOfMemory`], if there is no memory for the stacks
/// or no thread for a worker; of kind [`ErrorKind::Config`], if a variable of the environment is
/// wrong.
pub fn ranks<R: Send>(
    n: usize,
    workers: usize,
    f: impl Fn(Communicator) -> R + Sync,
) -> Result<Vec<R>> {
    if n == 0 || n > MAX_RANKS || workers == 0 {
        return Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{n} virtual ranks on {workers} workers (hint: from 1 to {MAX_RANKS} ranks, on 1 worker at least)"
            ),
        ));
    }
    let options = JobOptions {
        ranks: n,
        limit_bytes: None,
    };
    let job = Job::create(&options)?;
    job.set_checks(Setting::from_env()?.bits());
    let outcomes = on_stacks(
        &Deal {
            job: job.id(),
            ranks: 0..n,
            workers,
            places: &[],
        },
        |rank| Universe::join(&job, rank).map(|universe| f(universe.world().clone())),
        |rank, code| job.mark_dead(rank, Death::Exited(code)),
    )?;
    let ended =
        |outcome: RankResult<Result<R>>| outcome.unwrap_or_else(|panic| resume_unwind(panic));
    outcomes.into_iter().map(ended).collect()
}

/// As [`ranks`], with an asynchronous function. Its future is polled by the rank's worker only,
/// so what it keeps need not be `Send`; it is polled again when its waker was called, and a
/// request that it awaits ends.
///
/// ```
/// let sums = osier::task::ranks_async(8, 2, async |comm| {
///     let (next, previous) = ((comm.rank() + 1) % 8, (comm.rank() + 7) % 8);
///     let got = comm.irecv(vec![0usize], previous, 0)?;
///     comm.isend(vec![comm.rank()], next, 0)?.await?;
///     let (got, _) = got.await?;
///     Ok::<_, osier::Error>(got[0])
/// })?;
/// assert_eq!(sums[0].as_ref().ok(), Some(&7));
/// # Ok::<(), osier::Error>(())
/// ```
///
/// # Errors
/// As [`ranks`].
pub fn ranks_async<R: Send>(
    n: usize,
    workers: usize,
    f: impl AsyncFn(Communicator) -> R + Sync,
) -> Result<Vec<R>> {
    ranks(n, workers, |comm| {
        let core = comm.core().clone();
        drive(&core, f(comm))
    })
}

/// Lets the other ranks of this worker run, and returns when this one is at its turn again.
/// False where this is no virtual rank: nothing has happened.
pub fn give_turn() -> bool {
    suspend::turn(true)
}

/// How a rank has ended: an error is a panic's payload.
pub(crate) type RankResult<R> = thread::Result<R>;

/// Ranks that are to be dealt to workers.
pub(crate) struct Deal<'a> {
    /// Number of the job.
    pub job: u64,
    pub ranks: Range<usize>,
    pub workers: usize,
    /// Processors of each rank; none where ranks are not bound.
    pub places: &'a [Vec<usize>],
}

/// Runs each rank on a stack of its own. `ended` is told of each end, with 101 of a panic.
pub(crate) fn on_stacks<R: Send>(
    deal: &Deal<'_>,
    rank: impl Fn(usize) -> R + Sync,
    ended: impl Fn(usize, i32) + Sync,
) -> Result<Vec<RankResult<R>>> {
    let n = deal.ranks.len();
    let workers = deal.workers.clamp(1, n.max(1));
    let mut all_stacks = stacks::stacks(n)?;
    let outcomes: Vec<Mutex<Option<RankResult<R>>>> = (0..n).map(|_| Mutex::new(None)).collect();
    let body = |at: usize| {
        let number = deal.ranks.start + at;
        let outcome = catch_unwind(AssertUnwindSafe(|| rank(number)));
        ended(number, if outcome.is_ok() { 0 } else { 101 });
        *outcomes[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    };
    let spins = match thread::available_parallelism().is_ok_and(|cores| cores.get() >= workers) {
        true => SPINS,
        false => SPINS_SHARED,
    };
    let work = |block: Range<usize>, stacks| {
        let cpus: Vec<usize> = deal.places.get(block.clone()).unwrap_or_default().concat();
        if !cpus.is_empty() {
            crate::model::confine(&cpus);
        }
        let body = &body;
        let bodies = block.map(|at| Box::new(move || body(at)) as RankBody<'_>);
        // Each body keeps its own panic.
        stacks::run(bodies.collect(), stacks, spins);
    };
    let block = |worker: usize| n * worker / workers..n * (worker + 1) / workers;
    let missing = thread::scope(|s| {
        let (mut missing, mut others) = (None, Vec::new());
        for worker in (1..workers).rev() {
            let (own, work) = (block(worker), &work);
            let stacks = all_stacks.split_off(own.start);
            let started = thread::Builder::new()
                .name(format!("worker {worker}"))
                .spawn_scoped(s, {
                    let own = own.clone();
                    move || work(own, stacks)
                });
            match started {
                Ok(thread) => others.push(thread),
                Err(e) => {
                    // The others are not to wait for its ranks.
                    own.for_each(|at| ended(deal.ranks.start + at, 1));
                    missing = Some(Error::new(
                        ErrorKind::OutOfMemory,
                        format!("starting a thread for worker {worker}: {e}"),
                    ));
                }
            }
        }
        work(block(0), all_stacks);
        // From here on this thread only waits.
        let _inside = Inside::enter(deal.job);
        for other in others {
            if let Err(panic) = other.join() {
                resume_unwind(panic);
            }
        }
        missing
    });
    if let Some(e) = missing {
        return Err(e);
    }
    let outcome = |outcome: Mutex<Option<RankResult<R>>>| {
        let outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.expect("each rank has ended")
    };
    Ok(outcomes.into_iter().map(outcome).collect())
}

/// Whether a future is to be polled.
struct Woken {
    woken: AtomicBool,
    core: Weak<Core>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Some(core) = self.core.upgrade()
        {
            core.wake_waiting();
        }
    }
}

/// Runs a future to its end; polls it when it was woken, and makes progress for it.
#[track_caller]
fn drive<F: Future>(core: &Arc<Core>, future: F) -> F::Output {
    let woken = Arc::new(Woken {
        woken: AtomicBool::new(true),
        core: Arc::downgrade(core),
    });
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    core.drive(|| {
        // A wait that lasts long describes what it awaits.
        if !woken.woken.swap(false, Ordering::AcqRel) && !listens() {
            return None;
        }
        let _awaits = Awaits::begin();
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    })
}
