//! The program itself, from options to report.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use osier::task::RunSettings;
use osier::{Communicator, Error, ErrorKind, Op, Result};

use super::alignment::Alignment;
use super::matrix::Matrix;
use super::options::{Options, Variant};
use super::overlapped::Posted;
use super::progress::Progress;
use super::report::{Aligned, Report};
use super::ring::{self, Alone, Place};
use super::scoring::Scoring;
use super::synchronous::Blocking;
use super::tiling::{Deal, Tiling};
use super::{block_graph, input, panel_graph, reference, traceback};
use crate::picture_file::PictureFile;

/// Why a run came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// What was asked for cannot be done, or a file is wrong. All ranks have the same.
    Input(String),
    /// Something went wrong at this rank.
    Run(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(what) => what.fmt(f),
            Failure::Run(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Run(e)
    }
}

/// Blocks of a matrix, at most: each rank has a few words for each of its own.
const MOST_BLOCKS: usize = 1 << 26;

/// Runs on all ranks of the communicator, which pass the same options. Collective.
///
/// # Errors
/// What was asked for cannot be done, or something went wrong.
pub fn run(comm: &Communicator, options: &Options) -> std::result::Result<Report, Failure> {
    options.check().map_err(Failure::Input)?;
    let scoring = Scoring::new(options.alike, options.unlike, options.gap)
        .map_err(|e| Failure::Input(format!("--match, --mismatch, --gap: {e}")))?;
    let input = input::load(comm, options)?.map_err(Failure::Input)?;
    let picture = PictureFile::open_if(comm, options.picture.as_deref())?;
    let picture = picture.map_err(|e| Failure::Input(e.to_string()))?;
    let letters = [0, 1].map(|at| &input.sequences[at].letters[..]);
    let lengths = letters.map(<[u8]>::len);
    let deal = match options.by.is_graph() {
        true => Deal::Rows,
        false => Deal::Columns,
    };
    let tiling = Tiling::new(lengths, options.block, deal, comm.size());
    let extents = tiling.extents();
    if extents[0].saturating_mul(extents[1]) > MOST_BLOCKS {
        return Err(Failure::Input(format!(
            "--block {}: {} x {} blocks, expected at most {MOST_BLOCKS} (hint: a larger block)",
            options.block, extents[0], extents[1]
        )));
    }
    let progress = match comm.rank() == 0 && !options.quiet {
        true => Progress::new(tiling.blocks(0)),
        false => Progress::silent(),
    };
    let keep = !options.score_only;
    let matrix = Matrix::new(scoring, letters, tiling, comm.rank(), keep, progress);
    let matrix = Arc::new(matrix);
    let times = fill(comm, &matrix, options, picture)?;
    matrix.finish();

    let mut lowest = [0u64];
    comm.allreduce(&[matrix.lowest()], &mut lowest, Op::Sum)?;
    let gaps = (lengths[0] + lengths[1]) as i64 * i64::from(scoring.gap);
    let score = lowest[0] as i64 + gaps;
    let begin = Instant::now();
    let mut alignment = None;
    if keep {
        let columns = traceback::trace(comm, &matrix, lengths)?;
        let sequences = Alignment::new(&columns, letters[0], letters[1]);
        let score = sequences.as_ref().map(|aligned| aligned.score(&scoring));
        alignment = Some(Aligned {
            columns,
            sequences,
            score,
        });
    }
    let tracing = begin.elapsed().as_secs_f64();
    let mut slowest = [0.0; 3];
    let own = [times.building, times.filling, tracing];
    comm.allreduce(&own, &mut slowest, Op::Max)?;
    let mut firings = [0; 2];
    comm.allreduce(&times.firings, &mut firings, Op::Sum)?;
    let mut expected = None;
    if options.check {
        let mut score = [0];
        if comm.rank() == 0 {
            score[0] = reference::score(&scoring, letters[0], letters[1]);
        }
        comm.bcast(&mut score, 0)?;
        expected = Some(score[0]);
    }
    let names = [0, 1].map(|at| &input.sequences[at].name[..]);
    let report = Report {
        sequences: [0, 1].map(|at| (names[at].to_owned(), lengths[at])),
        scoring,
        by: options.by,
        threads: (comm.size(), options.workers),
        blocks: (extents, options.block),
        building: slowest[0],
        filling: slowest[1],
        tracing: slowest[2],
        firings,
        score,
        expected,
        alignment,
        output: options.output.clone(),
    };
    if let (Some(file), Some(path)) = (input.output, &options.output) {
        let aligned = report.alignment.as_ref().and_then(|a| a.sequences.as_ref());
        write(file, path, &report, aligned, names)?;
    }
    Ok(report)
}

/// What filling took at this rank.
#[derive(Default)]
struct Filled {
    building: f64,
    filling: f64,
    firings: [u64; 2],
}

fn fill(
    comm: &Communicator,
    matrix: &Arc<Matrix>,
    options: &Options,
    picture: Option<PictureFile>,
) -> Result<Filled> {
    let mut filled = Filled::default();
    let begin = Instant::now();
    let graph = match options.by {
        Variant::Blocks => Some(block_graph::build(comm, matrix, options.priority)?),
        Variant::Panels => {
            let schedule = panel_graph::Schedule {
                priority: options.priority,
                window: options.window,
            };
            Some(panel_graph::build(comm, matrix, schedule)?)
        }
        Variant::Sync | Variant::Overlap => None,
    };
    if let Some(graph) = graph {
        filled.building = begin.elapsed().as_secs_f64();
        comm.barrier()?;
        let begin = Instant::now();
        let report = graph.run_with(&RunSettings {
            workers: options.workers,
            times: picture.is_some(),
            ..RunSettings::default()
        })?;
        filled.filling = begin.elapsed().as_secs_f64();
        if let Some(picture) = picture {
            picture.draw_graph(&graph, &report)?;
        }
        for worker in report.workers {
            filled.firings[0] += worker.firings;
            filled.firings[1] += worker.stolen;
        }
        return Ok(filled);
    }
    comm.barrier()?;
    let begin = Instant::now();
    let place = Place::of(comm, matrix);
    match options.by {
        _ if comm.size() == 1 => ring::fill(matrix, &place, &mut Alone::default())?,
        Variant::Overlap => {
            let window = options.window as usize;
            let mut link = Posted::new(comm, place.clone(), window)?;
            ring::fill(matrix, &place, &mut link)?;
        }
        _ => ring::fill(matrix, &place, &mut Blocking::new(comm, place.clone()))?,
    }
    filled.filling = begin.elapsed().as_secs_f64();
    Ok(filled)
}

/// Writes report and alignment.
fn write(
    file: File,
    path: &Path,
    report: &Report,
    aligned: Option<&Alignment>,
    names: [&str; 2],
) -> Result<()> {
    let mut to = BufWriter::new(file);
    let mut written = write!(to, "{report}");
    if let Some(aligned) = aligned {
        written = written.and_then(|()| aligned.write(&mut to, names));
    }
    written.and_then(|()| to.flush()).map_err(|e| {
        let what = format!("--output {}: cannot be written: {e}", path.display());
        Error::new(ErrorKind::System, what)
    })
}
