//! Example 2: the transpose of a matrix that is spread over the ranks by rows.
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

use osier::{Datatype, Order, Region, Regions, Result, Type, View};

/// Rows and columns of a block; the matrix has as many blocks each way as
/// there are ranks.
const BLOCK: usize = 64;

fn main() -> Result<()> {
    let universe = osier::init()?;
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let n = BLOCK * size;
    let element = f64::datatype();
    let value = |row: usize, column: usize| (row * n + column) as f64;

    let rows = rank * BLOCK..(rank + 1) * BLOCK;
    let matrix: Vec<f64> = rows
        .clone()
        .flat_map(|row| (0..n).map(move |column| value(row, column)))
        .collect();
    let mut transposed = vec![0.0; BLOCK * n];

    // A column of a block: every n-th element. Its extent is set to that of
    // one element, so that the next column begins right behind.
    let column = Type::vector(BLOCK, 1, n as isize, &element)?;
    let column = Type::resized(0, size_of::<f64>() as isize, &column)?.commit()?;

    // Where the block from each rank belongs in the transposed rows.
    let place = |from: usize| {
        let block = Type::subarray(
            &[BLOCK, n],
            &[BLOCK, BLOCK],
            &[0, from * BLOCK],
            Order::C,
            &element,
        )?;
        Ok(Region::new(block.commit()?))
    };
    let places = Regions::new(vec![], (0..size).map(place).collect::<Result<_>>()?)?;
    let blocks = (0..size)
        .map(|to| View::new(&matrix, to * BLOCK, &column, BLOCK))
        .collect::<Result<Vec<_>>>()?;

    world.scope(|s| {
        let places = s.regions(&mut transposed, &places)?;
        for from in 0..size {
            places.irecv(from, from, 0)?;
        }
        for (to, block) in blocks.iter().enumerate() {
            s.isend(block, to, 0)?;
        }
        Ok(())
    })?;

    let right = rows.flat_map(|row| (0..n).map(move |column| value(column, row)));
    assert!(transposed.into_iter().eq(right), "rank {rank}");
    let mut verified = [0u64];
    world.allreduce(&[(BLOCK * n) as u64], &mut verified, osier::Op::Sum)?;
    if rank == 0 {
        println!(
            "transposed a {n} x {n} matrix over {size} ranks, {} elements right",
            verified[0]
        );
    }
    Ok(())
}
