//! A graph with a task for each row of blocks, which fires once for each of its blocks and
//! puts that block's bottom border: the grain of the pipeline is a block, that of the tasks a
//! panel.

use std::sync::Arc;

use osier::task::{Context, Description, Graph, Next, Placement};
use osier::{Communicator, Result};

use super::matrix::Matrix;

/// Builds the graph; a panel may be a window of blocks ahead of the one below. With
/// `priority` panels nearer to the top run first. Collective.
///
/// # Errors
/// As [`Graph::build`].
pub fn build(
    comm: &Communicator,
    matrix: &Arc<Matrix>,
    priority: bool,
    window: u32,
) -> Result<Graph> {
    let [rows, columns] = matrix.tiling.extents();
    let mut graph = Description::new();
    let panels = graph.family("panel", &[rows], by_rows(1, comm.size()));
    // A port without edges is refused.
    let downwards = (rows > 1).then(|| {
        let from = graph.output::<u8>(panels, "bottom");
        let to = graph.input::<u8>(panels, "top");
        graph.slots(from, window);
        graph.connect(from, to, move |[row]: [usize; 1]| {
            (row + 1 < rows).then_some([row + 1])
        });
        (from, to)
    });
    if priority {
        graph.exact_priorities();
        graph.priority(panels, |[row]: [usize; 1]| -(row as i32));
    }
    let matrix = matrix.clone();
    graph.tasks(panels, move |[row]: [usize; 1]| {
        let matrix = matrix.clone();
        let mut left = matrix.leftmost(row);
        let mut column = 0;
        move |cx: &mut Context<'_>| {
            let top = downwards.and_then(|(_, port)| cx.take(port));
            let mut top = top.unwrap_or_else(|| matrix.topmost(column));
            matrix.fill([row, column], &mut left, &mut top);
            if let Some((port, _)) = downwards {
                cx.give(port, top);
            }
            column += 1;
            Ok(match column == columns {
                true => Next::Done,
                false => Next::Wait,
            })
        }
    });
    Graph::build(comm, graph)
}

/// Rows of blocks in turn over the ranks, of a space of this many dimensions whose first is
/// the rows: [`super::tiling::Deal::Rows`].
pub fn by_rows(dimensions: usize, ranks: usize) -> Placement {
    let mut grid = vec![1; dimensions];
    grid[0] = ranks;
    Placement::BlockCyclic {
        block: vec![1; dimensions],
        grid,
    }
}
