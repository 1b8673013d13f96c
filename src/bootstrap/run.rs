//! Ranks as threads of one process, or on stacks of its workers, for
//! `osier run --ranks-per-process`.
//!
//! ```text
//! process of ranks 4 to 7      main thread: starts the others, waits
//!                              thread "rank 4": Universe, program
//!                              thread "rank 5": ...
//! ```
//!
//! # Invariants
//! 1. Each rank has a [`Universe`] of its own; ranks of one process share
//!    the address space and the attachment to the job.
//! 2. A process fails as a whole, as it does when it is killed: a rank that
//!    panics or ends with another code than 0 takes its process along.
//! 3. A rank that ends well has finalized, and is recorded so while the others go on: a rank
//!    that blocks for it gets an error rather than a hang.

use super::virtual_ranks::{Deal, on_stacks};
use super::{Universe, init, joined_rank, launcher};
use crate::comm::Communicator;
use crate::config;
use osier_engine::diagnose::tell;
use osier_engine::diagnose::threads::Inside;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_transports::Death;
use osier_transports::shm::Job;
use std::process::ExitCode;

/// Stack of a rank's thread, in bytes: as much as a main thread
/// has by default. Pages come with first use.
const STACK_BYTES: usize = 8 << 20;

/// Exit code of a process that panics, as in Rust.
const PANICKED: u8 = 101;

/// Error of a program.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a program as every rank of this process, and returns the
/// exit code for `main`.
///
/// Under `osier run --ranks-per-process K` that is K ranks, each a thread with
/// a communicator of all ranks of its own; otherwise it is one rank on the
/// calling thread, as with [`init`].
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     osier::run(|comm| {
///         println!("rank {} of {}", comm.rank(), comm.size());
///         comm.barrier()?;
///         Ok(())
///     })
/// }
/// ```
///
/// A rank that returns an error reports it on standard error, and its process
/// ends with code 1: a process fails with all of its ranks.
pub fn run(program: impl Fn(Communicator) -> std::result::Result<(), Failure> + Sync) -> ExitCode {
    run_code(|comm| reported(&program, comm))
}

/// As [`run`], for programs that choose their exit codes and report
/// their errors themselves.
pub fn run_code(program: impl Fn(Communicator) -> u8 + Sync) -> ExitCode {
    let code = match here() {
        Ok(1) => init().map(|universe| program(universe.world().clone())),
        Ok(ranks) => many(ranks, &program).map(|()| 0),
        Err(e) => Err(e),
    };
    ExitCode::from(code.unwrap_or_else(|e| {
        tell(e);
        1
    }))
}

/// As [`run`], with the ranks of this process as virtual ranks on this number of workers: see
/// [`crate::task::ranks`] for what these are.
///
/// Under `osier run --ranks-per-process K` that is K virtual ranks, otherwise one rank on the
/// calling thread. Where ranks are bound, a worker may use the processors of all of its ranks.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     // osier run -n 64 --ranks-per-process 32 -- program
///     osier::task::run_ranks(2, |comm| {
///         comm.barrier()?;
///         Ok(())
///     })
/// }
/// ```
pub fn run_ranks(
    workers: usize,
    program: impl Fn(Communicator) -> std::result::Result<(), Failure> + Sync,
) -> ExitCode {
    run_ranks_code(workers, |comm| reported(&program, comm))
}

/// As [`run_ranks`], for programs that choose their exit codes and report their errors
/// themselves.
pub fn run_ranks_code(workers: usize, program: impl Fn(Communicator) -> u8 + Sync) -> ExitCode {
    match here() {
        Ok(ranks) if ranks > 1 => match virtually(ranks, workers, &program) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                tell(e);
                ExitCode::FAILURE
            }
        },
        // It says what is wrong.
        _ => run_code(program),
    }
}

/// The exit code of a program; reports its error.
fn reported(
    program: impl Fn(Communicator) -> std::result::Result<(), Failure>,
    comm: Communicator,
) -> u8 {
    let (rank, size) = (comm.rank(), comm.size());
    match program(comm) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("rank {rank} of {size}: {e}");
            1
        }
    }
}

/// Number of ranks of this process.
pub(super) fn here() -> Result<usize> {
    config::check()?;
    if launcher::is_alone(&launcher::variable)? {
        return Ok(1);
    }
    Ok(config::process()?.ranks)
}

/// Refuses to be one rank where the launcher wants several.
pub(super) fn refuse_many() -> Result<()> {
    let ranks = here()?;
    if ranks == 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!(
            "the launcher wants {ranks} ranks in this process, and osier::init() and Session::init() make one (hint: enter through osier::run(|comm| ...), or start without --ranks-per-process)"
        ),
    ))
}

/// Processors of each rank of this process, as the launcher bound them; none
/// where ranks are not bound.
fn places(ranks: usize) -> Result<Vec<Vec<usize>>> {
    let cpus = config::process()?.cpus;
    Ok(match cpus.is_empty() {
        true => vec![Vec::new(); ranks],
        false => cpus,
    })
}

/// The job, and the first rank of this process.
fn joined_many() -> Result<(Job, usize)> {
    joined_rank()?.ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            "OSIER_JOB is set no longer (hint: it is for osier run to set)",
        )
    })
}

/// Ranks on stacks of their own.
fn virtually(
    ranks: usize,
    workers: usize,
    program: &(impl Fn(Communicator) -> u8 + Sync),
) -> Result<()> {
    let (job, first) = joined_many()?;
    let deal = Deal {
        job: job.id(),
        ranks: first..first + ranks,
        workers,
        places: &places(ranks)?,
    };
    let ended = |rank, code| match code {
        // It has finalized, or ended the process.
        0 => job.mark_dead(rank, Death::Exited(0)),
        // Invariant 2.
        _ => std::process::exit(code),
    };
    on_stacks(&deal, |rank| one(&job, rank, &[], program), ended).map(drop)
}

fn many(ranks: usize, program: &(impl Fn(Communicator) -> u8 + Sync)) -> Result<()> {
    let (job, first) = joined_many()?;
    let places = places(ranks)?;
    // From here on this thread only waits.
    let _inside = Inside::enter(job.id());
    std::thread::scope(|s| {
        for (cpus, rank) in places.iter().zip(first..) {
            let job = &job;
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .stack_size(STACK_BYTES)
                .spawn_scoped(s, move || {
                    let _guard = FailsTogether;
                    one(job, rank, cpus, program);
                    job.mark_dead(rank, Death::Exited(0));
                })
                .map_err(|e| {
                    Error::new(
                        ErrorKind::OutOfMemory,
                        format!("starting a thread for rank {rank}: {e}"),
                    )
                })
                // The started ones wait for the missing one.
                .unwrap_or_else(|e| leave(&e));
        }
    });
    Ok(())
}

/// One rank. Ends the process if it fails.
fn one(job: &Job, rank: usize, cpus: &[usize], program: &(impl Fn(Communicator) -> u8 + Sync)) {
    if !cpus.is_empty() {
        crate::model::confine(cpus);
    }
    let universe = Universe::launched(job, rank).unwrap_or_else(|e| leave(&e));
    let code = program(universe.world().clone());
    drop(universe);
    if code != 0 {
        std::process::exit(i32::from(code));
    }
}

fn leave(e: &Error) -> ! {
    tell(e);
    std::process::exit(1)
}

/// Ends the process when a rank unwinds (invariant 2).
struct FailsTogether;

impl Drop for FailsTogether {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(i32::from(PANICKED));
        }
    }
}
