//! The sweeps as a graph of tasks: each has a block with its ghosts, and is called when the
//! faces of all its neighbors have come.
//!
//! ```text
//! init:     put six faces
//! execute:  ghosts <- six faces; sweep; put six faces       (the last time: nothing)
//! ```
//!
//! A rank has several blocks, so that it sweeps one while faces of another are on their way.
//! Faces between blocks of one rank change their owner and are not copied; their memory comes
//! back with the neighbor's next face. Blocks that border on another rank go first.
//!
//! The graph runs twice: for the sweeps, which are timed, and once more for the ghosts that
//! the last residual needs.
//!
//! # Invariants
//! 1. Blocks outlive the runs; a task locks its own during a call, and nobody else does
//!    before the run has ended.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! DFM 2011, section 3.1: Jacobi in 3-D as a graph with several tasks for each core. Priorities
//! and the memory of faces are ours.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use osier::task::{
    Context, Description, Graph, In, Next, Out, Placement, Report, RunSettings, Task, TaskError,
};
use osier::{Communicator, Op, Result};

use super::decomposition::{Block, Decomposition};
use super::kernel;
use super::layers::{copy_face, fill_ghosts};
use super::mode::Mode;
use crate::progress::Progress;
use crate::variant::{lock, zeros};

/// The blocks of a rank, and the graph of all.
pub struct Tasks {
    graph: Graph,
    shared: Arc<Shared>,
    parts: Decomposition,
    /// Numbers of this rank's tasks in the graph, in ascending order.
    numbers: Vec<usize>,
}

/// What the tasks of a rank share.
struct Shared {
    parts: Decomposition,
    /// Of this rank in the grid of ranks.
    coords: [usize; 3],
    sweeps: usize,
    norm_every: usize,
    /// In row-major order.
    blocks: Vec<Mutex<Body>>,
    swept: AtomicUsize,
    progress: Mutex<Progress>,
}

/// A block with its field.
struct Body {
    block: Block,
    old: Vec<f64>,
    new: Vec<f64>,
    /// Sweeps so far.
    done: usize,
    /// Squares of the residual, whenever its norm is wanted.
    squares: Vec<f64>,
}

/// What a rank's blocks of a graph are to do.
pub struct Plan<'a> {
    /// Points, ranks and tasks.
    pub parts: &'a Decomposition,
    /// Coordinates of the rank.
    pub coords: [usize; 3],
    /// What the field begins with.
    pub mode: &'a Mode,
    /// Sweeps.
    pub sweeps: usize,
    /// Sweeps between two residuals; 0: only one at the end.
    pub norm_every: usize,
}

impl Tasks {
    /// The blocks of a rank and the graph; none if memory is full at any rank. Collective.
    ///
    /// # Errors
    /// Communication fails.
    pub fn new(comm: &Communicator, plan: &Plan<'_>, progress: Progress) -> Result<Option<Tasks>> {
        let parts = *plan.parts;
        let own = parts.of_rank(&plan.coords);
        let bodies: Option<Vec<_>> = own
            .iter()
            .map(|at| Body::new(&parts.block(at), plan.mode).map(Mutex::new))
            .collect();
        let mut failed = [0u32];
        comm.allreduce(&[u32::from(bodies.is_none())], &mut failed, Op::Sum)?;
        let Some(blocks) = bodies.filter(|_| failed[0] == 0) else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            parts,
            coords: plan.coords,
            sweeps: plan.sweeps,
            norm_every: plan.norm_every,
            blocks,
            swept: AtomicUsize::new(0),
            progress: Mutex::new(progress),
        });
        let [_, ny, nx] = parts.blocks();
        let numbers = own.iter().map(|[z, y, x]| (z * ny + y) * nx + x).collect();
        Ok(Some(Tasks {
            graph: Graph::build(comm, describe(&shared))?,
            shared,
            parts,
            numbers,
        }))
    }

    /// All sweeps, run so; none if there is nothing to sweep.
    ///
    /// # Errors
    /// A task has failed.
    pub fn sweep(&self, settings: &RunSettings) -> Result<Option<Report>> {
        match self.shared.sweeps {
            0 => Ok(None),
            _ => self.graph.run_with(settings).map(Some),
        }
    }

    /// Ends the progress bar, and finds the residuals of all sweeps and that of the end:
    /// the sum of squares over the grid for each. The same for every number of ranks that
    /// has the same tasks. Collective.
    ///
    /// # Errors
    /// A task or communication has failed.
    pub fn residual_squares(&self, comm: &Communicator) -> Result<Vec<f64>> {
        let progress = std::mem::replace(&mut *lock(&self.shared.progress), Progress::Silent);
        progress.finish();
        self.graph.run()?;
        let mut squares = Vec::new();
        let all: usize = self.parts.blocks().iter().product();
        let norms = self
            .shared
            .blocks
            .first()
            .map_or(0, |b| lock(b).squares.len());
        for norm in 0..norms {
            // One summand of each is not 0, so the sum over ranks does not round.
            let (mut own, mut each) = (vec![0.0; all], vec![0.0; all]);
            for (number, body) in self.numbers.iter().zip(&self.shared.blocks) {
                own[*number] = lock(body).squares[norm];
            }
            comm.allreduce(&own, &mut each, Op::Sum)?;
            squares.push(each.iter().sum());
        }
        Ok(squares)
    }

    /// The field of this rank, block by block.
    pub fn into_fields(self) -> Vec<(Block, Vec<f64>)> {
        let bodies = self.shared.blocks.iter().map(lock);
        bodies
            .map(|mut body| (body.block, std::mem::take(&mut body.old)))
            .collect()
    }
}

impl Body {
    fn new(block: &Block, mode: &Mode) -> Option<Body> {
        let (mut old, new) = (zeros(block.elements())?, zeros(block.elements())?);
        kernel::start(&mut old, block, mode);
        Some(Body {
            block: *block,
            old,
            new,
            done: 0,
            squares: Vec::new(),
        })
    }
}

/// Ports by side: a message that leaves at one side comes in at the neighbor's other side.
type Outs = [Out<f64>; 6];
type Ins = [In<f64>; 6];

fn describe(shared: &Arc<Shared>) -> Description {
    const NAMES: [&str; 6] = ["down", "up", "south", "north", "west", "east"];
    let (extents, parts) = (shared.parts.blocks(), shared.parts);
    let mut graph = Description::new();
    let placement = Placement::Grid(parts.ranks.into());
    let blocks = graph.family("block", &extents, placement);
    let outs = NAMES.map(|name| graph.output::<f64>(blocks, name));
    let ins = NAMES.map(|name| graph.input::<f64>(blocks, name));
    for side in 0..6 {
        graph.begins(outs[side]);
        graph.connect(outs[side], ins[side ^ 1], move |at: [usize; 3]| {
            neighbor(at, side, extents)
        });
    }
    graph.priority(blocks, move |at: [usize; 3]| {
        let rank = |at: [usize; 3]| [0, 1, 2].map(|d| at[d] / parts.factor[d]);
        let mut others = (0..6).filter_map(|side| neighbor(at, side, extents));
        i32::from(others.any(|other| rank(other) != rank(at)))
    });
    let shared = shared.clone();
    graph.tasks(blocks, move |at: [usize; 3]| Sweeper {
        index: shared.index(at),
        shared: shared.clone(),
        outs,
        ins,
        has: [0, 1, 2, 3, 4, 5].map(|side| neighbor(at, side, extents).is_some()),
        spare: Default::default(),
    });
    graph
}

/// Coordinates of the block behind a side.
fn neighbor(mut at: [usize; 3], side: usize, extents: [usize; 3]) -> Option<[usize; 3]> {
    let d = side / 2;
    at[d] = match side % 2 {
        0 => at[d].checked_sub(1)?,
        _ => Some(at[d] + 1).filter(|next| *next < extents[d])?,
    };
    Some(at)
}

impl Shared {
    /// Of the block of this rank at these coordinates.
    fn index(&self, at: [usize; 3]) -> usize {
        let factor = self.parts.factor;
        (0..3).fold(0, |index, d| {
            index * factor[d] + at[d] - self.coords[d] * factor[d]
        })
    }

    fn count_sweep(&self) {
        let swept = self.swept.fetch_add(1, Ordering::Relaxed) + 1;
        // Another worker draws otherwise.
        if let Ok(mut progress) = self.progress.try_lock() {
            progress.advance(swept / self.blocks.len());
        }
    }
}

/// A task.
struct Sweeper {
    shared: Arc<Shared>,
    index: usize,
    outs: Outs,
    ins: Ins,
    /// Whether there is a block behind each side.
    has: [bool; 6],
    /// Memory of faces, for the next.
    spare: [Vec<f64>; 6],
}

impl Sweeper {
    fn put_faces(&mut self, cx: &Context<'_>, body: &Body) {
        for side in (0..6).filter(|side| self.has[*side]) {
            let mut face = std::mem::take(&mut self.spare[side]);
            face.clear();
            copy_face(&body.old, &body.block, side, &mut face);
            cx.give(self.outs[side], face);
        }
    }
}

impl Task for Sweeper {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        self.put_faces(cx, &lock(&shared.blocks[self.index]));
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        let mut guard = lock(&shared.blocks[self.index]);
        let body = &mut *guard;
        for side in (0..6).filter(|side| self.has[*side]) {
            let face = cx.take(self.ins[side]).ok_or("a face is missing")?;
            fill_ghosts(&mut body.old, &body.block, side, &face)?;
            self.spare[side] = face;
        }
        let ended = body.done == shared.sweeps;
        let due = shared.norm_every != 0 && body.done.is_multiple_of(shared.norm_every);
        if ended || due {
            let squares = kernel::residual_squares(&body.old, &body.block);
            body.squares.push(squares);
        }
        if ended {
            return Ok(Next::Done);
        }
        let points = kernel::interior(&body.block);
        kernel::sweep(&body.old, &mut body.new, &body.block, &points, || {});
        std::mem::swap(&mut body.old, &mut body.new);
        body.done += 1;
        shared.count_sweep();
        if body.done == shared.sweeps {
            return Ok(Next::Done);
        }
        self.put_faces(cx, body);
        Ok(Next::Wait)
    }
}
