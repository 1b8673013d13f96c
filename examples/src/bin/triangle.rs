//! Example 5: the lower triangle of a matrix, out of full storage and into packed
//! storage, as factorisations exchange it, on the host or in the memory of GPUs.
//!
//! ```text
//! full storage, by columns      packed storage (LAPACK's "L")
//!   a . . .
//!   b e . .                     a b c d e f g h i j
//!   c f h .             -->
//!   d g i j
//! ```
//!
//! Both ends have the same elements in the same order, so their types match although
//! one has a block per column and the other has one block. The rank beside us sends us
//! its triangle at the same time; the packed one then goes back into the upper triangle
//! of a full matrix, by rows, which transposes it.

use std::process::ExitCode;

use clap::Parser;
use osier::buffers::Region;
use osier::{Communicator, Datatype, Result, Type};
use osier_examples::exchange::{Exchange, Space, report};

/// Exchange lower triangles of matrices of doubles between pairs of ranks
#[derive(Parser)]
#[command(
    name = "triangle",
    after_help = "Examples:
  osier run -n 2 -- triangle
  osier run -n 2 -- triangle --device -N 8192 --repeat 20"
)]
struct Options {
    /// Rows and columns
    #[arg(short = 'N', long, value_name = "N", default_value_t = 200)]
    rows: usize,

    /// Keep the matrices in the memory of a GPU, or of an emulated one
    #[arg(long)]
    device: bool,

    /// Repetitions, for the time
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
}

fn main() -> ExitCode {
    osier_examples::cli::run(triangles)
}

fn triangles(world: &Communicator, options: &Options) -> Result<u8> {
    let n = options.rows;
    let (rank, size) = (world.rank(), world.size());
    // With an odd number the last one talks to itself.
    let partner = if rank ^ 1 < size { rank ^ 1 } else { rank };
    let value = |rank: usize, row: usize, column: usize| (rank * n * n + row * n + column) as f64;
    let element = f64::datatype();
    let place = Space::of(world, options.device)?;

    let by_columns: Vec<f64> = (0..n * n).map(|i| value(rank, i % n, i / n)).collect();
    // Column c begins at its diagonal and has n - c elements.
    let columns: Vec<_> = (0..n).map(|c| (n - c, (c * n + c).cast_signed())).collect();
    let triangle = Type::indexed(&columns, &element)?.commit()?;
    let elements = n * (n + 1) / 2;
    let packed_type = Type::contiguous(elements, &element)?.commit()?;
    let pack = Exchange {
        sends: vec![(Region::new(triangle), partner)],
        receives: vec![(Region::new(packed_type.clone()), partner)],
    };
    let mut packed = vec![0.0; elements];
    let there = pack.run(world, &place, &by_columns, &mut packed, options.repeat)?;
    let lower = (0..n).flat_map(|c| (c..n).map(move |r| value(partner, r, c)));
    let mut wrong = packed.iter().zip(lower).filter(|(a, b)| **a != *b).count();

    // Column c of the lower triangle becomes row c of the upper one: in storage by
    // columns every n-th element from the diagonal on.
    let rows = (0..n)
        .map(|c| {
            let row = Type::vector(n - c, 1, n.cast_signed(), &element)?;
            let at = ((c * n + c) * size_of::<f64>()).cast_signed();
            Ok((1, at, row))
        })
        .collect::<Result<Vec<_>>>()?;
    let upper = Type::structure(&rows)?.commit()?;
    let unpack = Exchange {
        sends: vec![(Region::new(packed_type), partner)],
        receives: vec![(Region::new(upper), partner)],
    };
    let mut symmetric = vec![-1.0; n * n];
    let back = unpack.run(world, &place, &packed, &mut symmetric, options.repeat)?;
    for (i, found) in symmetric.iter().enumerate() {
        let (row, column) = (i % n, i / n);
        // What lies below the diagonal was not sent, and is as it was.
        let right = match row <= column {
            true => value(rank, column, row),
            false => -1.0,
        };
        wrong += usize::from(*found != right);
    }
    let bytes = pack.bytes() + unpack.bytes();
    let what = format!("lower triangles of {n} x {n}: full to packed to transposed");
    report(world, &what, &place, (bytes, there.and(back)), wrong)
}
