//! The program itself, from options to report.

use std::sync::Arc;
use std::time::Instant;

use osier::{Communicator, Error, ErrorKind, Op};

use super::analysis::symbolic::Widths;
use super::analysis::{Analysis, Ordering};
use super::factor::{Deal, Factors, by_graph, flops, overlapped, synchronous};
use super::load::load;
use super::matrix::{Matrix, largest};
use super::meter::Meter;
use super::options::{By, Options, Order};
use super::picture;
use super::read::BadFile;
use super::report::Report;
use super::solve::solve;
use crate::cli::Failure;
use crate::picture_file::PictureFile;

impl From<BadFile> for Failure {
    fn from(e: BadFile) -> Self {
        refused(e.to_string())
    }
}

fn refused(what: impl Into<String>) -> Failure {
    Failure::Options(Error::new(ErrorKind::Argument, what.into()))
}

/// Runs on all ranks of the communicator, which pass the same options. Collective.
///
/// # Errors
/// The file is bad, its matrix structurally singular, or options do not fit each other;
/// communication fails.
pub fn run(comm: &Communicator, options: &Options) -> Result<Report, Failure> {
    if options.by != By::Graph && options.workers > 1 {
        return Err(refused(
            "--workers above 1 without a graph (hint: --by graph, or more ranks)",
        ));
    }
    let order = match (options.order, options.convection) {
        (None | Some(Order::Dissection), Some(points)) => Ordering::Dissection(points as usize),
        (None | Some(Order::Degree), _) => Ordering::Degree,
        (Some(Order::Dissection), None) => {
            return Err(refused(
                "--order dissection of a file (hint: --order degree)",
            ));
        }
    };
    let source = load(comm, options)??;
    let picture = PictureFile::open_if(comm, options.picture.as_deref())?;
    let picture = picture.map_err(Failure::Options)?;
    let widths = Widths {
        most: options.width as usize,
        relaxed: !options.exact,
    };
    comm.barrier()?;
    let begin = Instant::now();
    let analysis = Arc::new(Analysis::new(&source, order, widths)?);
    let analysed = begin.elapsed().as_secs_f64();

    let symbolic = &analysis.symbolic;
    let deal = Deal {
        ranks: comm.size(),
        rank: comm.rank(),
        block: options.block as usize,
    };
    let visible = comm.rank() == 0 && !options.quiet;
    let meter = Arc::new(Meter::new(deal.own(symbolic).count(), visible));
    let (factors, [build, factor]) = factorize(comm, options, &analysis, deal, &meter)?;
    meter.finish();

    let begin = Instant::now();
    let solved = Solved::new(
        comm,
        options.refine,
        &source.matrix,
        &analysis,
        deal,
        &factors,
    )?;
    let solving = begin.elapsed().as_secs_f64();

    if let Some(file) = picture {
        file.draw(|file| picture::draw(file, symbolic, deal))?;
    }

    let mut most = [0.0; 5];
    let upper = factors.largest_of_upper(symbolic);
    comm.allreduce(
        &[analysed, build, factor, solving, upper],
        &mut most,
        Op::Max,
    )?;
    let [analysed, build, factor, solving, upper] = most;
    let mut sums = [0u64; 2];
    let own = [factors.replaced, factors.checksum(symbolic)];
    comm.allreduce(&own, &mut sums, Op::Sum)?;
    let [replaced, checksum] = sums;
    let all = || 0..symbolic.supernodes();
    Ok(Report {
        size: (source.matrix.rows(), source.matrix.entries()),
        name: source.name,
        title: source.title,
        by: options.by,
        ranks: (comm.size(), options.workers as usize),
        supernodes: (symbolic.supernodes(), symbolic.blocks().len()),
        stored: all().map(|k| symbolic.length(k) as u64).sum(),
        flops: all().map(|k| flops(symbolic, k)).sum(),
        seconds: [analysed, build, factor, solving],
        replaced,
        growth: upper / analysis.matrix.largest(),
        residuals: solved.residuals,
        residual_limit: solved.limit,
        error: solved.error,
        checksum,
    })
}

/// The factors of this rank, and seconds of building a graph and of the factorization.
fn factorize(
    comm: &Communicator,
    options: &Options,
    analysis: &Arc<Analysis>,
    deal: Deal,
    meter: &Arc<Meter>,
) -> osier::Result<(Factors, [f64; 2])> {
    comm.barrier()?;
    let begin = Instant::now();
    let seconds = |begin: Instant| begin.elapsed().as_secs_f64();
    match options.by {
        By::Sync => {
            let factors = synchronous(comm, analysis, deal, meter)?;
            Ok((factors, [0.0, seconds(begin)]))
        }
        By::Overlap => {
            let factors = overlapped(comm, analysis, deal, options.ahead as usize, meter)?;
            Ok((factors, [0.0, seconds(begin)]))
        }
        By::Graph => {
            let built = by_graph(comm, analysis, deal, meter)?;
            comm.barrier()?;
            let build = seconds(begin);
            let begin = Instant::now();
            let (factors, _) = built.run(options.workers as usize)?;
            Ok((factors, [build, seconds(begin)]))
        }
    }
}

/// A solution whose exact values are known.
struct Solved {
    residuals: Vec<f64>,
    limit: f64,
    error: f64,
}

impl Solved {
    fn new(
        comm: &Communicator,
        refine: u32,
        matrix: &Matrix,
        analysis: &Analysis,
        deal: Deal,
        factors: &Factors,
    ) -> osier::Result<Self> {
        let n = matrix.columns();
        let exact: Vec<f64> = (0..n).map(|i| 1.0 + i as f64 / n as f64).collect();
        let right = matrix.times(&exact);
        let (norm, in_row) = matrix.row_norm();
        let measure = |x: &[f64]| {
            let rest = matrix.residual(x, &right);
            let share = largest(&rest) / (norm * largest(x) + largest(&right));
            (rest, share)
        };
        let mut x = solve(comm, analysis, deal, factors, &right)?;
        let (mut rest, mut residual) = measure(&x);
        let mut residuals = vec![residual];
        // All ranks compute the same, and end at the same step.
        for _ in 0..refine {
            let step = solve(comm, analysis, deal, factors, &rest)?;
            let better: Vec<f64> = x.iter().zip(&step).map(|(x, step)| x + step).collect();
            let (next, share) = measure(&better);
            residuals.push(share);
            if share >= residual || share.is_nan() {
                break;
            }
            let slow = share > residual / 2.0;
            (x, rest, residual) = (better, next, share);
            if slow {
                break;
            }
        }
        let difference: Vec<f64> = x.iter().zip(&exact).map(|(x, exact)| x - exact).collect();
        Ok(Solved {
            residuals,
            // What computing a residual of as many terms rounds, some times.
            limit: 4.0 * (in_row as f64 + 2.0) * f64::EPSILON,
            error: largest(&difference) / largest(&exact),
        })
    }
}
