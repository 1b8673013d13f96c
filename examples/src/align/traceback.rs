//! The alignment: from the last cell back, block by block, each computed once more by the
//! rank that has its borders.

use osier::{Communicator, Error, ErrorKind, Result};

use super::alignment::Column;
use super::kernel;
use super::matrix::Matrix;

/// The columns of a best alignment of sequences of these lengths, the same at all ranks.
/// Of several best ones it is that of [`super::reference::align`]. Collective.
///
/// # Errors
/// Communication fails, or borders were not kept.
pub fn trace(comm: &Communicator, matrix: &Matrix, lengths: [usize; 2]) -> Result<Vec<Column>> {
    let mut at = lengths;
    let mut back = Vec::with_capacity(lengths[0] + lengths[1]);
    while at[0] > 0 && at[1] > 0 {
        let owner = matrix.tiling.owner(block_before(matrix, at));
        let mut steps = Vec::new();
        if owner == matrix.rank {
            steps = own_steps(matrix, at)?;
        }
        let mut count = [steps.len() as u64];
        comm.bcast(&mut count, owner)?;
        steps.resize(count[0] as usize, 0);
        comm.bcast(&mut steps, owner)?;
        for step in steps {
            let column = match step {
                kernel::PAIR => Column::Pair,
                kernel::ABOVE => Column::First,
                _ => Column::Second,
            };
            at = before(at, step);
            back.push(column);
        }
    }
    back.extend(std::iter::repeat_n(Column::First, at[0]));
    back.extend(std::iter::repeat_n(Column::Second, at[1]));
    back.reverse();
    Ok(back)
}

/// The block of the cell whose letters are the last of those numbers, both above 0.
fn block_before(matrix: &Matrix, at: [usize; 2]) -> [usize; 2] {
    matrix.tiling.block_of(at.map(|letters| letters - 1))
}

/// Steps back as long as they lead through blocks of this rank.
fn own_steps(matrix: &Matrix, mut at: [usize; 2]) -> Result<Vec<u8>> {
    let mut steps = Vec::new();
    while at[0] > 0 && at[1] > 0 {
        let block = block_before(matrix, at);
        if matrix.tiling.owner(block) != matrix.rank {
            break;
        }
        let choices = matrix.choices(at.map(|letters| letters - 1));
        let choices = choices.ok_or_else(|| {
            let what = format!("block {block:?} has no borders, expected those it was filled with");
            Error::new(ErrorKind::Argument, what)
        })?;
        let rows = matrix.tiling.rows(block[0]).start;
        let columns = matrix.tiling.columns(block[1]).start;
        while at[0] > rows && at[1] > columns {
            let step = choices.of(at[0] - 1 - rows, at[1] - 1 - columns);
            steps.push(step);
            at = before(at, step);
        }
    }
    Ok(steps)
}

/// Letters that are left before a step's column.
fn before([i, j]: [usize; 2], step: u8) -> [usize; 2] {
    match step {
        kernel::PAIR => [i - 1, j - 1],
        kernel::ABOVE => [i - 1, j],
        _ => [i, j - 1],
    }
}
