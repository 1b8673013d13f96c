//! Example 16: Jacobi's method that loses ranks and ends with the right answer.
//!
//! ```text
//! sweeps ... copy ... sweeps ... copy ... sweeps ..x   rank 1 dies
//!             \ each rank's rows are at its neighbour, too
//!              '-> revoke, shrink; the neighbour has rank 1's rows besides its own;
//!                  all go on from the copies
//! ```
//!
//! Ranks have rows of a square field. Now and then each sends its rows to a neighbour. Such a
//! copy counts when all have agreed that all is copied: who dies before or in the agreement
//! leaves the one before in force, at every rank. When a call fails, a rank revokes the
//! communicator, so that those that wait for others learn of it; then all that live shrink it. What
//! is lost is a rank together with the neighbour that has its copy.
//!
//! After W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013, and G. Zheng, L. Shi, L. Kale, "FTC-Charm++:
//! an in-memory checkpoint-based fault tolerant runtime", CLUSTER 2004: copies in the memory of a
//! partner.

use std::process::{Command, ExitCode};

use clap::Parser;
use osier::{Communicator, Error, ErrorKind, Group, Result};

/// Sweep over a field, lose ranks on the way, and go on from their neighbours' copies
#[derive(Parser)]
#[command(
    name = "survivors",
    after_help = "Examples:
  osier run --on-death report -n 4 -- survivors
  osier run --on-death report -n 6 -- survivors --lose 1@60,4@61,0@130 --copy-every 20"
)]
struct Options {
    /// Rows and columns of the field
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u32).range(8..=4096))]
    grid: u32,

    /// Sweeps over all of it
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sweeps: u32,

    /// Sweeps from one copy to the next
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    copy_every: u32,

    /// Ranks that kill themselves, each before a sweep [default: rank 1 behind half of them]
    #[arg(long, value_name = "RANK@SWEEP", value_delimiter = ',', value_parser = loss)]
    lose: Vec<(usize, u32)>,
}

fn loss(text: &str) -> std::result::Result<(usize, u32), String> {
    let parts = text.split_once('@');
    let numbers = parts.and_then(|(rank, sweep)| Some((rank.parse().ok()?, sweep.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?} is no rank and sweep (hint: 1@110)"))
}

fn main() -> ExitCode {
    osier_examples::cli::run(survive)
}

/// Some rows of the field, at a sweep.
#[derive(Clone, Default)]
struct Rows {
    first: usize,
    cells: Vec<f64>,
}

/// What a rank goes back to: at which sweep, among whom, its own rows and those that it keeps.
struct Copy {
    sweep: u32,
    group: Group,
    own: Rows,
    kept: Vec<(usize, Rows)>,
}

const UP: u32 = 1;
const DOWN: u32 = 2;
const COPIES: u32 = 3;

/// Who keeps a rank's rows: the next rank, which has those that follow; for the last one the rank
/// before.
fn keeper(rank: usize, size: usize) -> usize {
    match rank + 1 < size {
        true => rank + 1,
        false => rank.saturating_sub(1),
    }
}

/// The upper edge of the field is held at 1, and so are its left and right edges in part.
fn at_first(row: usize, column: usize, n: usize) -> f64 {
    let edge = column == 0 || column + 1 == n;
    match (row, edge) {
        (0, _) => 1.0,
        (row, true) => 1.0 - row as f64 / n as f64,
        _ => 0.0,
    }
}

fn rows_at_first(rows: std::ops::Range<usize>, n: usize) -> Rows {
    let first = rows.start;
    let cells = rows.flat_map(|row| (0..n).map(move |column| at_first(row, column, n)));
    Rows {
        first,
        cells: cells.collect(),
    }
}

/// One sweep, given the rows above and below, where there are any.
fn swept(rows: &Rows, above: Option<&[f64]>, below: Option<&[f64]>, n: usize) -> Vec<f64> {
    let mut after = rows.cells.clone();
    let count = rows.cells.len() / n;
    let row = |at: usize| &rows.cells[at * n..][..n];
    for at in 0..count {
        let above = if at > 0 { Some(row(at - 1)) } else { above };
        let below = if at + 1 < count {
            Some(row(at + 1))
        } else {
            below
        };
        // The field's own edges stay.
        let (Some(above), Some(below)) = (above, below) else {
            continue;
        };
        let here = row(at);
        for column in 1..n - 1 {
            let around = (above[column] + below[column]) + (here[column - 1] + here[column + 1]);
            after[at * n + column] = 0.25 * around;
        }
    }
    after
}

/// Exchanges edges with the neighbours, and sweeps.
fn sweep(comm: &Communicator, rows: &mut Rows, n: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (mut above, mut below) = (vec![0.0; n], vec![0.0; n]);
    let last = rows.cells.len() - n;
    comm.scope(|s| {
        if rank > 0 {
            s.irecv(&mut above, rank - 1, DOWN)?;
            s.isend(&rows.cells[..n], rank - 1, UP)?;
        }
        if rank + 1 < size {
            s.irecv(&mut below, rank + 1, UP)?;
            s.isend(&rows.cells[last..], rank + 1, DOWN)?;
        }
        Ok(())
    })?;
    let above = (rank > 0).then_some(&above[..]);
    let below = (rank + 1 < size).then_some(&below[..]);
    rows.cells = swept(rows, above, below, n);
    Ok(())
}

/// Sends the rows to their keeper, and receives those that this rank keeps.
fn exchanged(comm: &Communicator, rows: &Rows, n: usize) -> Result<Vec<(usize, Rows)>> {
    let (rank, size) = (comm.rank(), comm.size());
    if size == 1 {
        return Ok(Vec::new());
    }
    let first = comm.isend(vec![rows.first as u64], keeper(rank, size), COPIES)?;
    let cells = comm.isend(rows.cells.clone(), keeper(rank, size), COPIES)?;
    let mut kept = Vec::new();
    for from in (0..size).filter(|from| *from != rank && keeper(*from, size) == rank) {
        let (first, _) = comm.recv_vec::<u64>(from, COPIES)?;
        let (cells, _) = comm.recv_vec::<f64>(from, COPIES)?;
        if first.len() != 1 || cells.len() % n != 0 {
            return Err(Error::new(
                ErrorKind::Malformed,
                "a copy is of no whole rows",
            ));
        }
        let first = first[0] as usize;
        kept.push((from, Rows { first, cells }));
    }
    first.wait()?;
    cells.wait()?;
    Ok(kept)
}

/// Copies all rows, if all that take part say that it is done: the same at every rank.
fn copied(comm: &Communicator, rows: &Rows, sweep: u32, n: usize) -> Result<Option<Copy>> {
    let exchanged = exchanged(comm, rows, n);
    if exchanged.is_err() {
        comm.revoke();
    }
    let agreed = comm.agree(u64::from(exchanged.is_ok()))?;
    let counts = agreed.flags & 1 == 1 && agreed.failed.is_empty();
    Ok(match exchanged {
        Ok(kept) if counts => Some(Copy {
            sweep,
            group: comm.group().clone(),
            own: rows.clone(),
            kept,
        }),
        _ => None,
    })
}

/// The rows that this rank has from here on: its own, and those that it keeps of ranks that are not
/// among the living.
fn taken_over(copy: &Copy, own: usize, living: &Group) -> Result<Rows> {
    let size = copy.group.size();
    let lives = |rank: usize| {
        let of_job = copy.group.world_rank(rank);
        of_job.is_some_and(|of_job| living.rank_of(of_job).is_some())
    };
    let mut rows = copy.own.clone();
    for lost in (0..size).filter(|rank| !lives(*rank)) {
        let keeper = keeper(lost, size);
        if keeper == lost || !lives(keeper) {
            return Err(Error::new(
                ErrorKind::RankDead,
                format!("ranks {lost} and {keeper} are lost, and so are the rows of rank {lost}"),
            ));
        }
        if keeper != own {
            continue;
        }
        for (_, kept) in copy.kept.iter().filter(|(from, _)| *from == lost) {
            if kept.first < rows.first {
                rows.cells = [&kept.cells[..], &rows.cells].concat();
                rows.first = kept.first;
            } else {
                rows.cells.extend(&kept.cells);
            }
        }
    }
    Ok(rows)
}

/// Ends this process as a machine does that fails.
fn dies() -> ! {
    let pid = std::process::id().to_string();
    let _ = Command::new("kill").args(["-9", &pid]).status();
    std::process::abort()
}

/// Before which sweeps a rank dies.
fn losses_of(rank: usize, size: usize, options: &Options) -> Result<Vec<u32>> {
    let middle = (1, options.sweeps * 11 / 20);
    let lose = match options.lose.is_empty() {
        true if size > 1 => vec![middle],
        _ => options.lose.clone(),
    };
    let strange = lose
        .iter()
        .find(|(r, sweep)| *r >= size || *sweep >= options.sweeps);
    if let Some((lost, sweep)) = strange {
        let (last, end) = (size - 1, options.sweeps - 1);
        return Err(Error::new(
            ErrorKind::Argument,
            format!(
                "--lose {lost}@{sweep}: there is no such rank or sweep (hint: ranks are 0 to \
                 {last}, sweeps 0 to {end})"
            ),
        ));
    }
    let own = lose.iter().filter(|(lost, _)| *lost == rank);
    Ok(own.map(|(_, sweep)| *sweep).collect())
}

fn survive(world: &Communicator, options: &Options) -> Result<u8> {
    let n = options.grid as usize;
    let me = world.rank();
    let mut comm = world.dup()?;
    let (rank, size) = (comm.rank(), comm.size());
    if size > n {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("{size} ranks for {n} rows (hint: --grid {size})"),
        ));
    }
    let share = |rank: usize| rank * n / size;
    let mut rows = rows_at_first(share(rank)..share(rank + 1), n);
    let mut losses = losses_of(me, size, options)?;
    let mut at = 0;
    let mut copy: Option<Copy> = None;
    let mut went_back = 0;
    loop {
        if losses.iter().any(|sweep| *sweep <= at) {
            dies();
        }
        losses.retain(|sweep| *sweep > at);
        // No rank leaves before all have agreed that all is done.
        let due = copy.is_none() || at.is_multiple_of(options.copy_every) || at == options.sweeps;
        let fresh = copy
            .as_ref()
            .is_none_or(|copy| copy.sweep != at || copy.group != *comm.group());
        let done = match due && fresh {
            true => copied(&comm, &rows, at, n).map(|copied| {
                let counts = copied.is_some();
                copy = copied.or(copy.take());
                counts
            }),
            false if at == options.sweeps => break,
            false => sweep(&comm, &mut rows, n).map(|()| {
                at += 1;
                true
            }),
        };
        match done {
            Ok(true) => continue,
            Ok(false) => {}
            Err(e) if matches!(e.kind(), ErrorKind::RankDead | ErrorKind::Revoked) => {
                // Others may wait for this rank, or be at the end of a copy, which is for all.
                comm.revoke();
                comm.agree(0)?;
            }
            Err(e) => return Err(e),
        }
        comm = comm.shrink()?;
        let Some(before) = &copy else {
            return Err(Error::new(
                ErrorKind::RankDead,
                "a rank is lost before the first copy",
            ));
        };
        let own = before.group.rank_of(me).unwrap_or_default();
        rows = taken_over(before, own, comm.group())?;
        went_back += at - before.sweep;
        at = before.sweep;
    }
    finish(&comm, &rows, options, (size, went_back))
}

/// Whether the field is that of one rank that has lost none, bit for bit.
fn finish(comm: &Communicator, rows: &Rows, options: &Options, told: (usize, u32)) -> Result<u8> {
    let n = options.grid as usize;
    let mut whole = rows_at_first(0..n, n);
    for _ in 0..options.sweeps {
        whole.cells = swept(&whole, None, None, n);
    }
    let here = &whole.cells[rows.first * n..][..rows.cells.len()];
    let bits = |cells: &[f64]| cells.iter().map(|c| c.to_bits()).collect::<Vec<_>>();
    let counted = [
        rows.cells.len() as u64,
        u64::from(bits(here) != bits(&rows.cells)),
    ];
    let mut all = [0u64; 2];
    comm.allreduce(&counted, &mut all, osier::Op::Sum)?;
    let right = all == [(n * n) as u64, 0];
    if comm.rank() == 0 {
        let (began, went_back) = told;
        println!(
            "{} sweeps over {n} x {n} cells: {began} ranks began, {} ended, {went_back} sweeps were \
             done again",
            options.sweeps,
            comm.size(),
        );
        println!(
            "{}",
            match right {
                true => "every element is that of an undisturbed run",
                false => "WRONG: the field is not that of an undisturbed run",
            }
        );
    }
    Ok(u8::from(!right))
}
