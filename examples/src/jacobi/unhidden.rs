//! What the sweeps take where no communication is hidden, and where there is none: the times
//! beside which that of another variant tells how much it hides.
//!
//! Both are runs of the synchronous program, with a rank for each worker. Of virtual ranks, the
//! first of each worker take part; the others wait.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! DFM 2011, section 3.1: the variants that are compared. That the measurement is part of the
//! program is ours.

use std::time::Duration;

use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::decomposition::Decomposition;
use super::mode::Mode;
use super::options::{By, Options};
use super::sweeps::{Exchange, by_messages, off_grid};
use crate::cli::Failure;
use crate::progress::Progress;

/// Times of all sweeps, of the slowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unhidden {
    /// Of the synchronous program.
    pub synchronous: Duration,
    /// Of the same without its exchanges.
    pub without: Duration,
}

impl Unhidden {
    /// Runs both. Collective.
    ///
    /// # Errors
    /// The grid does not fit the ranks, memory is full, or communication fails.
    pub fn measure(
        comm: &Communicator,
        options: &Options,
        mode: &Mode,
    ) -> std::result::Result<Unhidden, Failure> {
        let taking_part = match options.by {
            By::Ranks => one_a_worker(comm, options.workers())?,
            By::Sync | By::Overlap | By::Graph => Some(comm.clone()),
        };
        let measured = match &taking_part {
            Some(comm) => match seconds(comm, options, mode) {
                Err(Failure::Run(e)) => return Err(Failure::Run(e)),
                measured => measured,
            },
            None => Ok([0.0; 2]),
        };
        let own = match &measured {
            Ok([synchronous, without]) => [*synchronous, *without, 0.0],
            Err(_) => [0.0, 0.0, 1.0],
        };
        let mut all = [0.0; 3];
        comm.allreduce(&own, &mut all, Op::Max)?;
        let [synchronous, without, failed] = all;
        match (measured, failed > 0.0) {
            (Ok(_), false) => Ok(Unhidden {
                synchronous: Duration::from_secs_f64(synchronous),
                without: Duration::from_secs_f64(without),
            }),
            // Rank 0 takes part, and tells why.
            (Ok(_), true) => Err(Failure::Options(Error::new(
                ErrorKind::Argument,
                "--hidden: the synchronous program does not run: see rank 0",
            ))),
            (Err(e), _) => Err(e),
        }
    }
}

/// Of the synchronous program, and of it without its exchanges.
fn seconds(
    comm: &Communicator,
    options: &Options,
    mode: &Mode,
) -> std::result::Result<[f64; 2], Failure> {
    let ranks = options.ranks.filter(|_| options.by != By::Ranks);
    let parts = Decomposition::new(comm.size(), options.grid, ranks);
    let parts = parts.map_err(Failure::Options)?;
    let cart = comm.cart_create(&parts.ranks, &[false; 3])?;
    let cart = cart.ok_or_else(off_grid)?;
    let visible = comm.rank() == 0 && !options.quiet;
    let options = Options {
        norm_every: 0,
        ..options.clone()
    };
    let time = |step, exchange| {
        let progress = Progress::new(step, options.sweeps, visible);
        by_messages(&cart, &parts, mode, &options, exchange, progress).map(|swept| swept.seconds)
    };
    Ok([
        time("synchronous sweep", Exchange::Before)?,
        time("sweep without exchange", Exchange::Never)?,
    ])
}

/// The virtual ranks that are the first of a worker; none for the others. Workers have
/// neighboring ranks, as [`osier::task::ranks`] says.
fn one_a_worker(comm: &Communicator, workers: usize) -> Result<Option<Communicator>> {
    let key = comm.rank() as i64;
    let process = comm.split(Some(std::process::id()), key)?;
    let process = process.ok_or_else(off_grid)?;
    let (ranks, at) = (process.size(), process.rank());
    let workers = workers.clamp(1, ranks);
    let is_first = (0..workers).any(|worker| ranks * worker / workers == at);
    comm.split(is_first.then_some(0), key)
}
