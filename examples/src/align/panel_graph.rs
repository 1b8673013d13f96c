//! A graph with a task for each row of blocks, which fires once for each of its blocks and
//! puts that block's bottom border: the grain of the pipeline is a block, that of the tasks a
//! panel.

use std::sync::Arc;

use osier::task::{Context, Description, Graph, Next, Placement};
use osier::{Communicator, Result};

use super::matrix::Matrix;

/// How panels are scheduled.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Panels nearer to the top run first.
    pub priority: bool,
    /// Blocks that a panel may be ahead of the one below.
    pub window: u32,
}

/// What a panel does with its blocks, from the left to the right.
pub trait Panel: Send + 'static {
    /// Fills the next block below this border, `None` at the top of the matrix, and returns
    /// its bottom border.
    fn fill(&mut self, column: usize, top: Option<Vec<u8>>) -> Vec<u8>;
}

/// Builds the graph. Collective.
///
/// # Errors
/// As [`Graph::build`].
pub fn build(comm: &Communicator, matrix: &Arc<Matrix>, schedule: Schedule) -> Result<Graph> {
    let extents = matrix.tiling.extents();
    let matrix = matrix.clone();
    let panel = move |row| Filler {
        left: matrix.leftmost(row),
        row,
        matrix: matrix.clone(),
    };
    Graph::build(comm, describe(extents, comm.size(), schedule, panel))
}

/// The graph of a matrix of this many rows and columns of blocks, whose panels are made by
/// their numbers.
pub fn describe<P: Panel>(
    [rows, columns]: [usize; 2],
    ranks: usize,
    schedule: Schedule,
    panel: impl Fn(usize) -> P + Send + Sync + 'static,
) -> Description {
    let mut graph = Description::new();
    let panels = graph.family("panel", &[rows], by_rows(1, ranks));
    // A port without edges is refused.
    let downwards = (rows > 1).then(|| {
        let from = graph.output::<u8>(panels, "bottom");
        let to = graph.input::<u8>(panels, "top");
        graph.slots(from, schedule.window);
        graph.connect(from, to, move |[row]: [usize; 1]| {
            (row + 1 < rows).then_some([row + 1])
        });
        (from, to)
    });
    if schedule.priority {
        graph.exact_priorities();
        graph.priority(panels, |[row]: [usize; 1]| -(row as i32));
    }
    graph.tasks(panels, move |[row]: [usize; 1]| {
        let mut panel = panel(row);
        let mut column = 0;
        move |cx: &mut Context<'_>| {
            let top = downwards.and_then(|(_, port)| cx.take(port));
            let bottom = panel.fill(column, top);
            if let Some((port, _)) = downwards {
                cx.give(port, bottom);
            }
            column += 1;
            Ok(match column == columns {
                true => Next::Done,
                false => Next::Wait,
            })
        }
    });
    graph
}

/// A panel of a matrix.
struct Filler {
    matrix: Arc<Matrix>,
    row: usize,
    left: Vec<u8>,
}

impl Panel for Filler {
    fn fill(&mut self, column: usize, top: Option<Vec<u8>>) -> Vec<u8> {
        let mut border = top.unwrap_or_else(|| self.matrix.topmost(column));
        self.matrix
            .fill([self.row, column], &mut self.left, &mut border);
        border
    }
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
