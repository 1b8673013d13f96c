//! The program itself, from options to report.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use osier::task::{Counts, RunSettings};
use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::decomposition::{Block, Decomposition};
use super::field::Field;
use super::kernel;
use super::mode::Mode;
use super::options::{Options, Triple};
use super::picture;
use super::report::Report;
use super::tasks::{Plan, Tasks};
use crate::cli::Failure;
use crate::gpu::Gpu;
use crate::progress::Progress;
use crate::variant::{By, Workers, idle_share};

/// What the sweeps of a rank came to.
struct Swept {
    /// Seconds from the first exchange to the last sweep.
    seconds: f64,
    /// Share of the time in communication, or without work.
    share: f64,
    /// Sweeps done, and the residual norm.
    norms: Vec<(usize, f64)>,
    /// Of this rank's blocks.
    fields: Vec<(Block, Vec<f64>)>,
    /// Where the field was.
    place: String,
    /// Of a graph: what the workers of this rank did.
    workers: Option<Vec<Counts>>,
}

/// Runs on all ranks of the communicator, which pass the same options.
/// Collective.
pub fn run(comm: &Communicator, options: &Options) -> std::result::Result<Report, Failure> {
    options.check().map_err(Failure::Options)?;
    let parts = Decomposition::new(comm.size(), options.grid, options.ranks);
    let parts = match options.by {
        By::Graph => parts.and_then(|parts| parts.over_tasks(options.factor)),
        By::Sync | By::Overlap => parts,
    };
    let parts = parts.map_err(Failure::Options)?;
    let mode = Mode::new(parts.grid, options.mode).map_err(Failure::Options)?;
    let picture = picture_path(comm, options)?;

    let cart = comm.cart_create(&parts.ranks, &[false; 3])?;
    let cart = cart.ok_or_else(off_grid)?;
    let visible = comm.rank() == 0 && !options.quiet;
    let progress = Progress::new("sweep", options.sweeps, visible);
    let swept = match options.by {
        By::Sync | By::Overlap => by_messages(&cart, &parts, &mode, options, progress)?,
        By::Graph => by_tasks(&cart, &parts, &mode, options, progress)?,
    };

    // Everything below checks and reports.
    let decay = mode.decay(options.sweeps);
    let fields = &swept.fields;
    let errors = fields
        .iter()
        .map(|(block, field)| kernel::max_error(field, block, &mode, decay));
    let error = errors.fold(0.0, f64::max);
    let mut largest = [0.0; 3];
    let own = [swept.seconds, swept.share, error];
    comm.allreduce(&own, &mut largest, Op::Max)?;
    let [seconds, max_share, max_error] = largest;
    let mut sum = [0.0];
    comm.allreduce(&[swept.share], &mut sum, Op::Sum)?;
    let hashes = fields
        .iter()
        .map(|(block, field)| kernel::checksum(field, block, parts.grid));
    let hash = hashes.fold(0, u64::wrapping_add);
    let mut checksum = [0];
    comm.allreduce(&[hash], &mut checksum, Op::Sum)?;
    let workers = match &swept.workers {
        None => None,
        Some(counts) => Some(Workers::of(comm, options.workers(), counts)?),
    };

    if let Some(path) = &picture {
        let slice = picture::collect(&cart, &parts, fields)?;
        if let Some(slice) = slice {
            let title = format!(
                "jacobi3d: grid {}, middle z slice after {} sweeps",
                options.grid, options.sweeps
            );
            slice.write(path, &title)?;
        }
    }
    Ok(Report {
        by: options.by,
        decomposition: parts,
        sweeps: options.sweeps,
        seconds,
        waiting: (max_share, sum[0] / comm.size() as f64),
        workers,
        norms: swept.norms,
        max_error,
        error_limit: mode.error_limit(options.sweeps),
        amplitude: mode.amplitude(options.sweeps),
        checksum: checksum[0],
        place: swept.place,
        picture,
    })
}

fn off_grid() -> Error {
    Error::new(ErrorKind::Rank, "a rank that is not on the grid of ranks")
}

/// Sweeps one block of each rank, whose faces are sent and received.
fn by_messages(
    cart: &Communicator,
    parts: &Decomposition,
    mode: &Mode,
    options: &Options,
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
        match options.by {
            By::Overlap => rank.talking += rank.field.exchange_and_sweep(cart)?,
            By::Sync | By::Graph => rank.exchange()?,
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
fn by_tasks(
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
        let squares = kernel::residual_squares(self.field.values()?, &self.block);
        let mut sum = [0.0];
        let begin = Instant::now();
        self.comm.allreduce(&[squares], &mut sum, Op::Sum)?;
        self.talking += begin.elapsed();
        Ok(norm_of(sum[0], parts))
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
