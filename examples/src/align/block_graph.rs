//! A graph with a task for each block, which fires once: its borders go right and down.
//!
//! The corner goes with neither: borders are differences.

use std::sync::Arc;

use osier::task::{Context, Description, Graph, Next};
use osier::{Communicator, Result};

use super::matrix::Matrix;
use super::panel_graph::by_rows;

/// Builds the graph. With `priority` blocks nearer to the first one run first. Collective.
///
/// # Errors
/// As [`Graph::build`].
pub fn build(comm: &Communicator, matrix: &Arc<Matrix>, priority: bool) -> Result<Graph> {
    let [rows, columns] = matrix.tiling.extents();
    let mut graph = Description::new();
    let blocks = graph.family("block", &[rows, columns], by_rows(2, comm.size()));
    // A port without edges is refused.
    let rightwards = (columns > 1).then(|| {
        let from = graph.output::<u8>(blocks, "right");
        let to = graph.input::<u8>(blocks, "left");
        graph.slots(from, 1);
        graph.connect(from, to, move |[row, column]: [usize; 2]| {
            (column + 1 < columns).then_some([row, column + 1])
        });
        (from, to)
    });
    let downwards = (rows > 1).then(|| {
        let from = graph.output::<u8>(blocks, "bottom");
        let to = graph.input::<u8>(blocks, "top");
        graph.slots(from, 1);
        graph.connect(from, to, move |[row, column]: [usize; 2]| {
            (row + 1 < rows).then_some([row + 1, column])
        });
        (from, to)
    });
    if priority {
        graph.exact_priorities();
        graph.priority(blocks, |[row, column]: [usize; 2]| -((row + column) as i32));
    }
    let matrix = matrix.clone();
    graph.tasks(blocks, move |[row, column]: [usize; 2]| {
        let matrix = matrix.clone();
        move |cx: &mut Context<'_>| {
            let left = rightwards.and_then(|(_, port)| cx.take(port));
            let mut left = left.unwrap_or_else(|| matrix.leftmost(row));
            let top = downwards.and_then(|(_, port)| cx.take(port));
            let mut top = top.unwrap_or_else(|| matrix.topmost(column));
            matrix.fill([row, column], &mut left, &mut top);
            if let Some((port, _)) = rightwards {
                cx.give(port, left);
            }
            if let Some((port, _)) = downwards {
                cx.give(port, top);
            }
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph)
}
