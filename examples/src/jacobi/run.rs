//! The program itself, from options to report.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::decomposition::{Block, Decomposition};
use super::field::Field;
use super::kernel;
use super::mode::Mode;
use super::options::{Options, Triple};
use super::picture;
use super::progress::Progress;
use super::report::Report;
use crate::gpu::Gpu;

/// Why a run came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// What was asked for cannot be done. All ranks have the same.
    Options(Error),
    /// Something went wrong at this rank.
    Run(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Options(e) | Failure::Run(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Run(e)
    }
}

/// The share of this rank in the run.
struct Rank {
    /// With the topology of the grid of ranks.
    comm: Communicator,
    block: Block,
    field: Field,
    /// Time in communication.
    talking: Duration,
}

/// Runs on all ranks of the communicator, which pass the same options.
/// Collective.
pub fn run(comm: &Communicator, options: &Options) -> std::result::Result<Report, Failure> {
    let parts =
        Decomposition::new(comm.size(), options.grid, options.ranks).map_err(Failure::Options)?;
    let mode = Mode::new(parts.grid, options.mode).map_err(Failure::Options)?;
    let picture = picture_path(comm, options)?;

    let mut rank = Rank::new(comm, &parts, options.device)?;
    let block = rank.block;
    rank.field
        .start(|values| kernel::start(values, &block, &mode))?;

    let mut norms = Vec::new();
    let visible = comm.rank() == 0 && !options.quiet;
    let mut progress = Progress::new(options.sweeps, visible);
    comm.barrier()?;
    let begin = Instant::now();
    rank.talking = Duration::ZERO;
    for done in 0..options.sweeps {
        rank.exchange()?;
        if options.norm_every != 0 && done % options.norm_every == 0 {
            let norm = rank.residual(&parts)?;
            norms.push((done, norm));
            progress.norm(norm);
        }
        rank.field.sweep()?;
        progress.swept(done + 1);
    }
    rank.field.finish()?;
    let elapsed = begin.elapsed().as_secs_f64();
    let talking = rank.talking.as_secs_f64();
    progress.finish();

    // Everything below checks and reports.
    rank.exchange()?;
    norms.push((options.sweeps, rank.residual(&parts)?));
    let decay = mode.decay(options.sweeps);
    let error = kernel::max_error(rank.field.values()?, &block, &mode, decay);
    let share = if elapsed > 0.0 {
        talking / elapsed
    } else {
        0.0
    };
    let mut largest = [0.0; 3];
    comm.allreduce(&[elapsed, share, error], &mut largest, Op::Max)?;
    let [seconds, max_share, max_error] = largest;
    let mut sum = [0.0];
    comm.allreduce(&[share], &mut sum, Op::Sum)?;
    let hash = kernel::checksum(rank.field.values()?, &block, parts.grid);
    let mut checksum = [0];
    comm.allreduce(&[hash], &mut checksum, Op::Sum)?;

    if let Some(path) = &picture {
        let slice = picture::collect(&rank.comm, &parts, &block, rank.field.values()?)?;
        if let Some(slice) = slice {
            let title = format!(
                "jacobi3d: grid {}, middle z slice after {} sweeps",
                options.grid, options.sweeps
            );
            slice.write(path, &title)?;
        }
    }
    Ok(Report {
        decomposition: parts,
        sweeps: options.sweeps,
        seconds,
        communication: (max_share, sum[0] / comm.size() as f64),
        norms,
        max_error,
        error_limit: mode.error_limit(options.sweeps),
        amplitude: mode.amplitude(options.sweeps),
        checksum: checksum[0],
        place: rank.field.place(),
        picture,
    })
}

impl Rank {
    fn new(
        comm: &Communicator,
        parts: &Decomposition,
        device: bool,
    ) -> std::result::Result<Self, Failure> {
        let cart = comm.cart_create(&parts.ranks, &[false; 3])?;
        let off_grid = || Error::new(ErrorKind::Rank, "a rank that is not on the grid of ranks");
        let cart = cart.ok_or_else(off_grid)?;
        let topology = cart.cart().ok_or_else(off_grid)?;
        let coords = topology.coords_of(cart.rank()).map_err(Error::from)?;
        let block = parts.block(&coords);

        // All ranks must agree to go on, or some would wait for the others.
        let field = match device {
            false => Field::on_host(&cart, &block)?,
            true => match Gpu::of(&cart) {
                Ok(gpu) => Field::on_device(&cart, &block, gpu)?,
                // The same at all ranks of a machine.
                Err(e) => return Err(Failure::Options(Error::from(e).context("--device"))),
            },
        };
        let mut failed = [0u32];
        cart.allreduce(&[u32::from(field.is_none())], &mut failed, Op::Sum)?;
        let Some(field) = field.filter(|_| failed[0] == 0) else {
            let grid = Triple::from_zyx(parts.grid);
            return Err(Failure::Options(Error::new(
                ErrorKind::OutOfMemory,
                format!(
                    "--grid {grid}: {} of {} ranks have no memory for two arrays of about {} MiB (hint: take a smaller grid)",
                    failed[0],
                    cart.size(),
                    (parts.points() / cart.size() * size_of::<f64>()) >> 20
                ),
            )));
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
        self.field.exchange(&self.comm)?;
        self.talking += begin.elapsed();
        Ok(())
    }

    /// Norm of the residual over all ranks, as the integral over a domain
    /// whose longest edge is 1. The ghosts must be filled.
    fn residual(&mut self, parts: &Decomposition) -> Result<f64> {
        let squares = kernel::residual_squares(self.field.values()?, &self.block);
        let mut sum = [0.0];
        let begin = Instant::now();
        self.comm.allreduce(&[squares], &mut sum, Op::Sum)?;
        self.talking += begin.elapsed();
        let longest = parts.grid.into_iter().max().unwrap_or(0);
        let spacing = 1.0 / (longest as f64 + 1.0);
        // r = (sum of neighbors - 6 u) / h^2, and h^3 is the volume of a point.
        Ok((sum[0] * spacing.powi(3)).sqrt() / spacing.powi(2))
    }
}

/// Path of the picture, if there is to be one. Rank 0 tries the folder now: a
/// long run whose picture cannot be written would be a pity.
fn picture_path(
    comm: &Communicator,
    options: &Options,
) -> std::result::Result<Option<PathBuf>, Failure> {
    if options.no_picture {
        return Ok(None);
    }
    let tried = if comm.rank() == 0 {
        try_folder(&options.output)
    } else {
        Ok(())
    };
    let mut failed = [u8::from(tried.is_err())];
    comm.bcast(&mut failed, 0)?;
    if failed[0] != 0 {
        let cause = tried.map_or_else(|e| e.to_string(), |()| "see rank 0".to_owned());
        return Err(Failure::Options(Error::new(
            ErrorKind::Argument,
            format!(
                "--output {}: cannot write there: {cause} (hint: choose another folder, or --no-picture)",
                options.output.display()
            ),
        )));
    }
    Ok(Some(options.output.join("jacobi3d.png")))
}

fn try_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".jacobi3d-{}", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(&probe)
}
