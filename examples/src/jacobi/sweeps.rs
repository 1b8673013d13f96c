//! The sweeps of a rank, by messages or as tasks, timed.

use std::time::{Duration, Instant};

use osier::task::{Counts, RunSettings};
use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::decomposition::{Block, Decomposition};
use super::field::Field;
use super::kernel;
use super::mode::Mode;
use super::options::{Options, Triple};
use super::rows::Old;
use super::tasks::{Plan, Tasks};
use crate::cli::Failure;
use crate::gpu::Gpu;
use crate::progress::Progress;
use crate::variant::idle_share;

/// What the sweeps of a rank came to.
pub struct Swept {
    /// Seconds from the first exchange to the last sweep.
    pub seconds: f64,
    /// Share of the time in communication, or without work.
    pub share: f64,
    /// Sweeps done, and the residual norm.
    pub norms: Vec<(usize, f64)>,
    /// Of this rank's blocks.
    pub fields: Vec<(Block, Vec<f64>)>,
    /// Where the field was.
    pub place: String,
    /// Of a graph: what the workers of this rank did.
    pub workers: Option<Vec<Counts>>,
}

/// The error of a rank without a place in the grid of ranks.
pub fn off_grid() -> Error {
    Error::new(ErrorKind::Rank, "a rank that is not on the grid of ranks")
}

/// When the faces of a sweep are exchanged by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Before it.
    Before,
    /// While points are swept that need none.
    Beside,
    /// Not at all: the field is wrong.
    Never,
}

/// Sweeps one block of each rank, whose faces are sent and received.
///
/// # Errors
/// Memory is full at a rank, or communication fails.
pub fn by_messages(
    cart: &Communicator,
    parts: &Decomposition,
    mode: &Mode,
    options: &Options,
    exchange: Exchange,
    mut progress: Progress,
) -> std::result::Result<Swept, Failure> {
    let mut rank = Rank::new(cart, parts, options.device)?;
    let block = rank.block;
    rank.field
        .start(|values| kernel::start(values, &block, mode))?;
    let mut norms = Vec::new();
    cart.barrier()?;
    let begin = Instant::now();
    rank.talking = Duration::ZERO;
    for done in 0..options.sweeps {
        match exchange {
            Exchange::Before => rank.exchange()?,
            Exchange::Beside => rank.talking += rank.field.exchange_and_sweep(cart)?,
            Exchange::Never => {}
        }
        if options.norm_every != 0 && done % options.norm_every == 0 {
            let norm = rank.residual(parts)?;
            norms.push((done, norm));
            progress.say(|| format!("|r| {norm:.3e}"));
        }
        rank.field.sweep()?;
        progress.advance(done + 1);
    }
    rank.field.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    let talking = rank.talking.as_secs_f64();
    progress.finish();

    rank.exchange()?;
    norms.push((options.sweeps, rank.residual(parts)?));
    Ok(Swept {
        seconds,
        share: if seconds > 0.0 {
            talking / seconds
        } else {
            0.0
        },
        norms,
        place: rank.field.place(),
        fields: vec![(block, rank.field.into_values()?)],
        workers: None,
    })
}

/// Sweeps the blocks of each rank as tasks.
///
/// # Errors
/// Memory is full at a rank, communication fails, or a task has.
pub fn by_tasks(
    cart: &Communicator,
    parts: &Decomposition,
    mode: &Mode,
    options: &Options,
    progress: Progress,
) -> std::result::Result<Swept, Failure> {
    let plan = Plan {
        parts,
        coords: coords_of(cart)?,
        mode,
        sweeps: options.sweeps,
        norm_every: options.norm_every,
    };
    let Some(tasks) = Tasks::new(cart, &plan, progress)? else {
        return Err(no_memory(parts, None));
    };
    cart.barrier()?;
    let begin = Instant::now();
    let settings = RunSettings {
        workers: options.workers(),
        progress_thread: options.progress_thread.map(Into::into).unwrap_or_default(),
        ..RunSettings::default()
    };
    let ran = tasks.sweep(&settings)?;
    let seconds = begin.elapsed().as_secs_f64();
    let workers = ran.map_or_else(Vec::new, |report| report.workers);

    let squares = tasks.residual_squares(cart)?;
    let last = squares.len().saturating_sub(1);
    let sweeps = |at: usize| match at == last {
        true => options.sweeps,
        false => at * options.norm_every,
    };
    let norms = squares.iter().enumerate();
    let norms = norms.map(|(at, sum)| (sweeps(at), norm_of(*sum, parts)));
    Ok(Swept {
        seconds,
        share: idle_share(&workers, options.workers(), seconds),
        norms: norms.collect(),
        fields: tasks.into_fields(),
        place: "host".into(),
        workers: Some(workers),
    })
}

fn coords_of(cart: &Communicator) -> Result<[usize; 3]> {
    let topology = cart.cart().ok_or_else(off_grid)?;
    let coords = topology.coords_of(cart.rank()).map_err(Error::from)?;
    coords.try_into().map_err(|_| off_grid())
}

/// Ranks without memory, if their number is known.
fn no_memory(parts: &Decomposition, ranks: Option<u32>) -> Failure {
    let all: usize = parts.ranks.iter().product();
    let who = match ranks {
        Some(ranks) => format!("{ranks} of {all} ranks have"),
        None => "a rank has".into(),
    };
    Failure::Options(Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "--grid {}: {who} no memory for two arrays of about {} MiB (hint: take a smaller grid)",
            Triple::from_zyx(parts.grid),
            (parts.points() / all * size_of::<f64>()) >> 20
        ),
    ))
}

/// Norm of the residual, as the integral over a domain whose longest edge is 1.
fn norm_of(squares: f64, parts: &Decomposition) -> f64 {
    let longest = parts.grid.into_iter().max().unwrap_or(0);
    let spacing = 1.0 / (longest as f64 + 1.0);
    // r = (sum of neighbors - 6 u) / h^2, and h^3 is the volume of a point.
    (squares * spacing.powi(3)).sqrt() / spacing.powi(2)
}

/// The share of this rank in a run by messages.
struct Rank<'a> {
    /// With the topology of the grid of ranks.
    comm: &'a Communicator,
    block: Block,
    field: Field,
    /// Time in communication.
    talking: Duration,
}

impl<'a> Rank<'a> {
    fn new(
        cart: &'a Communicator,
        parts: &Decomposition,
        device: bool,
    ) -> std::result::Result<Self, Failure> {
        let block = parts.block(&coords_of(cart)?);
        // All ranks must agree to go on, or some would wait for the others.
        let field = match device {
            false => Field::on_host(cart, &block)?,
            true => match Gpu::of(cart) {
                Ok(gpu) => Field::on_device(cart, &block, gpu)?,
                // The same at all ranks of a machine.
                Err(e) => return Err(Failure::Options(Error::from(e).context("--device"))),
            },
        };
        let mut failed = [0u32];
        cart.allreduce(&[u32::from(field.is_none())], &mut failed, Op::Sum)?;
        let Some(field) = field.filter(|_| failed[0] == 0) else {
            return Err(no_memory(parts, Some(failed[0])));
        };
        Ok(Self {
            comm: cart,
            block,
            field,
            talking: Duration::ZERO,
        })
    }

    fn exchange(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.field.exchange(self.comm)?;
        self.talking += begin.elapsed();
        Ok(())
    }

    /// Norm of the residual over all ranks. The ghosts must be filled.
    fn residual(&mut self, parts: &Decomposition) -> Result<f64> {
        let squares = kernel::residual_squares(&Old::new(self.field.values()?, &self.block));
        let mut sum = [0.0];
        let begin = Instant::now();
        self.comm.allreduce(&[squares], &mut sum, Op::Sum)?;
        self.talking += begin.elapsed();
        Ok(norm_of(sum[0], parts))
    }
}
