//! The program itself, from options to report.

use std::time::Instant;

use osier::task::{self, RunSettings};
use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::check::{Checked, check};
use super::messages::Blocks;
use super::options::Options;
use super::plan::Plan;
use super::report::Report;
use super::tasks::Tasks;
use crate::cli::Failure;
use crate::hash;
use crate::picture_file::PictureFile;
use crate::progress::Progress;
use crate::variant::{By, Workers, idle_share};

/// What the products of a rank came to.
struct Multiplied {
    /// Seconds of each product.
    seconds: Vec<f64>,
    /// Share of the time in communication, or without a task.
    share: f64,
    /// This rank's blocks of C, and where they lie.
    results: Vec<((usize, usize), Vec<f64>)>,
    /// Of a graph: what the workers did.
    workers: Option<Workers>,
}

/// Runs on all ranks of the communicator, which pass the same options. Collective.
///
/// # Errors
/// As [`Failure`].
pub fn run(comm: &Communicator, options: &Options) -> std::result::Result<Report, Failure> {
    options.check().map_err(Failure::Options)?;
    let plan = Plan::new(comm.size(), options).map_err(Failure::Options)?;
    let multiplied = match options.by {
        By::Sync | By::Overlap => by_messages(comm, &plan, options)?,
        By::Graph => {
            let picture = PictureFile::open_if(comm, options.picture.as_deref())?;
            let picture = picture.map_err(Failure::Options)?;
            by_tasks(comm, &plan, options, picture)?
        }
    };
    let own: Vec<f64> = multiplied
        .seconds
        .iter()
        .copied()
        .chain([multiplied.share])
        .collect();
    let mut seconds = vec![0.0; own.len()];
    comm.allreduce(&own, &mut seconds, Op::Max)?;
    let most = seconds.pop().unwrap_or(0.0);
    seconds.sort_by(f64::total_cmp);
    let mut sum = [0.0];
    comm.allreduce(&[multiplied.share], &mut sum, Op::Sum)?;
    let mut checksum = [0];
    let hashes = multiplied
        .results
        .iter()
        .map(|(place, c)| hash_of(&plan, *place, c));
    comm.allreduce(&[hashes.fold(0, u64::wrapping_add)], &mut checksum, Op::Sum)?;
    let checked = match options.no_check {
        true => None,
        false => Some(check_all(comm, &plan, options, &multiplied.results)?),
    };
    Ok(Report {
        by: options.by,
        plan,
        ranks: comm.size(),
        seconds,
        waiting: (most, sum[0] / comm.size() as f64),
        workers: multiplied.workers,
        checked,
        checksum: checksum[0],
    })
}

/// A bar over the steps of rank 0, this many of each product.
fn progress(comm: &Communicator, options: &Options, steps: usize) -> Progress {
    let visible = comm.rank() == 0 && !options.quiet;
    Progress::new("step", steps * options.repeat as usize, visible)
}

fn by_messages(
    comm: &Communicator,
    plan: &Plan,
    options: &Options,
) -> std::result::Result<Multiplied, Failure> {
    let blocks = Blocks::new(comm, plan, options.seed);
    let mut failed = [0u32];
    comm.allreduce(&[u32::from(blocks.is_none())], &mut failed, Op::Sum)?;
    let Some(mut blocks) = blocks.filter(|_| failed[0] == 0) else {
        return Err(no_memory(plan));
    };
    let mut progress = progress(comm, options, plan.steps(0).len());
    let (mut seconds, mut talking, mut steps) = (Vec::new(), 0.0, 0);
    for _ in 0..options.repeat {
        comm.barrier()?;
        let begin = Instant::now();
        let talked = blocks.run(options.by, || {
            steps += 1;
            progress.advance(steps);
        })?;
        talking += talked.as_secs_f64();
        seconds.push(begin.elapsed().as_secs_f64());
    }
    progress.finish();
    let all: f64 = seconds.iter().sum();
    Ok(Multiplied {
        share: if all > 0.0 { talking / all } else { 0.0 },
        seconds,
        results: blocks.into_result().into_iter().collect(),
        workers: None,
    })
}

fn by_tasks(
    comm: &Communicator,
    plan: &Plan,
    options: &Options,
    picture: Option<PictureFile>,
) -> std::result::Result<Multiplied, Failure> {
    let places = (0..plan.places()).map(|number| plan.place(number));
    let own = places.filter(|place| plan.rank(*place, comm.size()) == comm.rank());
    let steps = own.map(|[_, _, layer]| plan.steps(layer).len()).sum();
    let progress = progress(comm, options, steps);
    let Some(tasks) = Tasks::new(comm, plan, options.seed, progress)? else {
        return Err(no_memory(plan));
    };
    let settings = RunSettings {
        workers: options.workers(),
        times: picture.is_some(),
        ..RunSettings::default()
    };
    let (mut seconds, mut counts) = (Vec::new(), Vec::new());
    let mut last = task::Report::default();
    for _ in 0..options.repeat {
        comm.barrier()?;
        let begin = Instant::now();
        last = tasks.run(&settings)?;
        seconds.push(begin.elapsed().as_secs_f64());
        counts.extend_from_slice(&last.workers);
    }
    if let Some(picture) = picture {
        tasks.draw(picture, &last)?;
    }
    Ok(Multiplied {
        share: idle_share(&counts, options.workers(), seconds.iter().sum()),
        seconds,
        results: tasks.into_results(),
        workers: Some(Workers::of(comm, options.workers(), &counts)?),
    })
}

fn no_memory(plan: &Plan) -> Failure {
    Failure::Options(Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "--n {}: a rank has no memory for its blocks of up to {1}x{1} entries (hint: take smaller matrices)",
            plan.n,
            plan.largest()
        ),
    ))
}

fn hash_of(plan: &Plan, (i, j): (usize, usize), c: &[f64]) -> u64 {
    let (rows, columns) = (plan.range(i), plan.range(j));
    let rows = rows.zip(c.chunks_exact(columns.len()));
    rows.fold(0, |sum, (row, values)| {
        let first = row as u64 * plan.n as u64 + columns.start as u64;
        hash::checksum(values, first).wrapping_add(sum)
    })
}

/// Checks each block of C at the rank that has it. Collective.
fn check_all(
    comm: &Communicator,
    plan: &Plan,
    options: &Options,
    results: &[((usize, usize), Vec<f64>)],
) -> Result<Checked> {
    let mut own = Checked::default();
    for (place, c) in results {
        let one = check(plan, options.seed, *place, c);
        own.other_bits += one.other_bits;
        own.largest = own.largest.max(one.largest);
        own.of_limit = own.of_limit.max(one.of_limit);
    }
    let mut bits = [0];
    comm.allreduce(&[own.other_bits], &mut bits, Op::Sum)?;
    let mut most = [0.0; 2];
    comm.allreduce(&[own.largest, own.of_limit], &mut most, Op::Max)?;
    Ok(Checked {
        other_bits: bits[0],
        largest: most[0],
        of_limit: most[1],
    })
}
