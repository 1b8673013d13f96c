//! The program itself, from options to report.

use std::path::{Path, PathBuf};

use osier::{Communicator, Error, ErrorKind, Op};

use super::decomposition::Decomposition;
use super::kernel;
use super::mode::Mode;
use super::options::{By, Options};
use super::picture;
use super::report::Report;
use super::sweeps::{self, Exchange, by_tasks, off_grid};
use super::unhidden::Unhidden;
use crate::cli::Failure;
use crate::progress::Progress;
use crate::variant::Workers;

/// Runs on all ranks of the communicator, which pass the same options.
/// Collective.
pub fn run(comm: &Communicator, options: &Options) -> std::result::Result<Report, Failure> {
    options.check().map_err(Failure::Options)?;
    let parts = Decomposition::new(comm.size(), options.grid, options.ranks);
    let parts = match options.by {
        By::Graph => parts.and_then(|parts| parts.over_tasks(options.factor)),
        By::Sync | By::Overlap | By::Ranks => parts,
    };
    let parts = parts.map_err(Failure::Options)?;
    let mode = Mode::new(parts.grid, options.mode).map_err(Failure::Options)?;
    let picture = picture_path(comm, options)?;

    let cart = comm.cart_create(&parts.ranks, &[false; 3])?;
    let cart = cart.ok_or_else(off_grid)?;
    let visible = comm.rank() == 0 && !options.quiet;
    let unhidden = match options.hidden {
        false => None,
        true => Some(Unhidden::measure(comm, options, &mode)?),
    };
    let progress = Progress::new("sweep", options.sweeps, visible);
    let by_messages =
        |exchange, progress| sweeps::by_messages(&cart, &parts, &mode, options, exchange, progress);
    let swept = match options.by {
        By::Sync | By::Ranks => by_messages(Exchange::Before, progress)?,
        By::Overlap => by_messages(Exchange::Beside, progress)?,
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
        unhidden,
        norms: swept.norms,
        max_error,
        error_limit: mode.error_limit(options.sweeps),
        amplitude: mode.amplitude(options.sweeps),
        checksum: checksum[0],
        place: swept.place,
        picture,
    })
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
