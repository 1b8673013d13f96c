//! Example 2: the transpose of a matrix that is spread over the ranks by rows, on the
//! host or in the memory of GPUs.
//!
//! ```text
//!          columns of rank 0   of rank 1
//! rank 0   a b                 c d            rank 0   a e i m
//!          e f                 g h     -->             b f j n
//! rank 1   i j                 k l            rank 1   c g k o
//!          m n                 o p                     d h l p
//! ```
//!
//! The sender's type walks down the columns of a block, the receiver's along
//! the rows of its place: the block is transposed on the way, and nobody packs.

use std::process::ExitCode;

use clap::Parser;
use osier::buffers::Region;
use osier::{Communicator, Datatype, Order, Result, Type};
use osier_examples::exchange::{Exchange, Space, report};

/// Transpose a matrix of doubles that is spread over the ranks by rows
#[derive(Parser)]
#[command(
    name = "transpose",
    after_help = "Examples:
  osier run -n 4 -- transpose
  osier run -n 2 -- transpose --device --block 4096 --repeat 20"
)]
struct Options {
    /// Rows of a rank; the matrix has as many columns as rows
    #[arg(long, value_name = "ROWS", default_value_t = 64)]
    block: usize,

    /// Keep the matrix in the memory of a GPU, or of an emulated one
    #[arg(long)]
    device: bool,

    /// Repetitions, for the time
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
}

fn main() -> ExitCode {
    osier_examples::cli::run(transpose)
}

fn transpose(world: &Communicator, options: &Options) -> Result<u8> {
    let (rank, size, rows) = (world.rank(), world.size(), options.block);
    let n = rows * size;
    let element = f64::datatype();
    let value = |row: usize, column: usize| (row * n + column) as f64;

    let mine = rank * rows..(rank + 1) * rows;
    let matrix: Vec<f64> = mine
        .clone()
        .flat_map(|row| (0..n).map(move |column| value(row, column)))
        .collect();
    let mut transposed = vec![0.0; rows * n];

    // A column of a block: every n-th element. Its extent is set to that of
    // one element, so that the next column begins right behind.
    let column = Type::vector(rows, 1, n as isize, &element)?;
    let column = Type::resized(0, size_of::<f64>() as isize, &column)?;
    let columns = Type::contiguous(rows, &column)?.commit()?;

    let mut exchange = Exchange::default();
    for peer in 0..size {
        let mut block = Region::new(columns.clone());
        block.origin = peer * rows;
        exchange.sends.push((block, peer));
        // Where the block from each rank belongs in the transposed rows.
        let place = Type::subarray(
            &[rows, n],
            &[rows; 2],
            &[0, peer * rows],
            Order::C,
            &element,
        )?;
        exchange.receives.push((Region::new(place.commit()?), peer));
    }

    let place = Space::of(world, options.device)?;
    let seconds = exchange.run(world, &place, &matrix, &mut transposed, options.repeat)?;

    let right = mine.flat_map(|row| (0..n).map(move |column| value(column, row)));
    let wrong = transposed
        .iter()
        .zip(right)
        .filter(|(a, b)| **a != *b)
        .count();
    let what = format!("transposed a {n} x {n} matrix over {size} ranks");
    report(world, &what, &place, (exchange.bytes(), seconds), wrong)
}
