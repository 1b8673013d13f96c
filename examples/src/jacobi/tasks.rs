//! The sweeps as a graph of tasks: each has a block, and is called when all its neighbors have
//! swept theirs as often.
//!
//! ```text
//! init:     put on six sides
//! execute:  sweep; put on six sides       (the last time: nothing)
//! put:      a face to another rank; to a block of this rank an empty message: it may read now
//! ```
//!
//! A rank has several blocks, so that it sweeps one while faces of another are on their way.
//! The blocks of a rank lie in memory that its tasks share, and a task reads the points behind
//! its sides where its neighbors have them, or in the face that has come from another rank.
//! Blocks that border on another rank go first.
//!
//! The graph runs twice: for the sweeps, which are timed, and once more for the points behind
//! the sides, which the last residual needs.
//!
//! # Invariants
//! 1. A block has two arrays: sweep `k`, counted from 0, reads array `k % 2` of it and of its
//!    neighbors, and writes the other one. A task puts the messages of sweep `k + 1` after sweep
//!    `k`, when it no longer reads its neighbors, and has written what they are to read. So a
//!    task that has the messages of a sweep finds no array in use by another one, and no lock is
//!    waited for.
//! 2. The mutex of a block is locked by its own task during a call only, and by others when no
//!    run is under way.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! DFM 2011, section 3.1: Jacobi in 3-D as a graph with several tasks for each core. Priorities
//! and shared arrays are ours.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use osier::task::{
    Context, Description, Graph, In, Next, Out, Placement, Report, RunSettings, Task, TaskError,
};
use osier::{Communicator, Op, Result};

use super::decomposition::{Block, Decomposition};
use super::kernel;
use super::layers::{copy_face, face_points};
use super::mode::Mode;
use super::rows::{Behind, Old};
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
    blocks: Vec<Body>,
    swept: AtomicUsize,
    progress: Mutex<Progress>,
}

/// A block with its field.
struct Body {
    block: Block,
    /// Read and written in turn (invariant 1).
    arrays: [RwLock<Vec<f64>>; 2],
    state: Mutex<State>,
}

/// An array that is read.
type Reading<'a> = RwLockReadGuard<'a, Vec<f64>>;

/// How far a block has come.
#[derive(Default)]
struct State {
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
            .map(|at| Body::new(&parts.block(at), plan.mode))
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
        let blocks = &self.shared.blocks;
        let norms = blocks.first();
        let norms = norms.map_or(0, |body| lock(&body.state).squares.len());
        for norm in 0..norms {
            // One summand of each is not 0, so the sum over ranks does not round.
            let (mut own, mut each) = (vec![0.0; all], vec![0.0; all]);
            for (number, body) in self.numbers.iter().zip(blocks) {
                own[*number] = lock(&body.state).squares[norm];
            }
            comm.allreduce(&own, &mut each, Op::Sum)?;
            squares.push(each.iter().sum());
        }
        Ok(squares)
    }

    /// The field of this rank, block by block.
    pub fn into_fields(self) -> Vec<(Block, Vec<f64>)> {
        let bodies = self.shared.blocks.iter();
        bodies
            .map(|body| {
                let array = &body.arrays[lock(&body.state).done % 2];
                // No task is left.
                let mut array = array.write().unwrap_or_else(PoisonError::into_inner);
                (body.block, std::mem::take(&mut *array))
            })
            .collect()
    }
}

impl Body {
    fn new(block: &Block, mode: &Mode) -> Option<Body> {
        let (mut old, new) = (zeros(block.elements())?, zeros(block.elements())?);
        kernel::start(&mut old, block, mode);
        Some(Body {
            block: *block,
            arrays: [old, new].map(RwLock::new),
            state: Mutex::default(),
        })
    }

    /// The array that a sweep reads.
    fn read(&self, sweep: usize) -> std::result::Result<Reading<'_>, TaskError> {
        match self.arrays[sweep % 2].try_read() {
            Ok(array) => Ok(array),
            // Its task has failed, which the graph reports.
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => Err(self.in_use("written", sweep)),
        }
    }

    /// The array that a sweep writes.
    fn write(
        &self,
        sweep: usize,
    ) -> std::result::Result<RwLockWriteGuard<'_, Vec<f64>>, TaskError> {
        match self.arrays[(sweep + 1) % 2].try_write() {
            Ok(array) => Ok(array),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => Err(self.in_use("in use", sweep)),
        }
    }

    /// The error of a graph whose edges do not say who may read and write.
    #[cold]
    fn in_use(&self, how: &str, sweep: usize) -> TaskError {
        let [z, y, x] = self.block.first;
        format!("sweep {sweep}: the block at {x}, {y}, {z} is {how}").into()
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
    let rank = move |at: [usize; 3]| [0, 1, 2].map(|d| at[d] / parts.factor[d]);
    graph.priority(blocks, move |at: [usize; 3]| {
        let mut others = (0..6).filter_map(|side| neighbor(at, side, extents));
        i32::from(others.any(|other| rank(other) != rank(at)))
    });
    let shared = shared.clone();
    graph.tasks(blocks, move |at: [usize; 3]| Sweeper {
        index: shared.index(at),
        shared: shared.clone(),
        outs,
        ins,
        sides: [0, 1, 2, 3, 4, 5].map(|side| match neighbor(at, side, extents) {
            None => Side::Boundary,
            Some(other) if rank(other) == rank(at) => Side::Here(shared.index(other)),
            Some(_) => Side::Rank(Vec::new()),
        }),
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

/// What is behind a side of a block.
enum Side {
    /// The boundary of the grid: ghosts, which are 0.
    Boundary,
    /// A block of this rank, by its index.
    Here(usize),
    /// A block of another rank, and memory for the next face.
    Rank(Vec<f64>),
}

/// A task.
struct Sweeper {
    shared: Arc<Shared>,
    index: usize,
    outs: Outs,
    ins: Ins,
    sides: [Side; 6],
}

impl Sweeper {
    /// Gathers the faces for other ranks.
    fn gather(&mut self, block: &Block, field: &[f64]) {
        for (side, behind) in self.sides.iter_mut().enumerate() {
            if let Side::Rank(face) = behind {
                face.clear();
                copy_face(field, block, side, face);
            }
        }
    }

    /// Tells the neighbors that this block is swept.
    fn put_sides(&mut self, cx: &Context<'_>) {
        for (side, behind) in self.sides.iter_mut().enumerate() {
            match behind {
                Side::Boundary => {}
                Side::Here(_) => cx.put(self.outs[side], &[]),
                Side::Rank(face) => cx.give(self.outs[side], std::mem::take(face)),
            }
        }
    }

    /// Takes the faces of other ranks.
    fn take_faces(
        &mut self,
        cx: &mut Context<'_>,
        block: &Block,
    ) -> std::result::Result<(), TaskError> {
        for (side, behind) in self.sides.iter_mut().enumerate() {
            if let Side::Rank(face) = behind {
                *face = cx.take(self.ins[side]).ok_or("a face is missing")?;
                let expected = face_points(block, side);
                if face.len() != expected {
                    let len = face.len();
                    let text =
                        format!("a face of {len} points for side {side}, expected {expected}");
                    return Err(text.into());
                }
            }
        }
        Ok(())
    }

    /// One sweep, and the residual before it; false after the last one.
    fn sweep(&mut self, state: &mut State) -> std::result::Result<bool, TaskError> {
        let (shared, done) = (self.shared.clone(), state.done);
        let body = &shared.blocks[self.index];
        let ended = done == shared.sweeps;
        let due = shared.norm_every != 0 && done.is_multiple_of(shared.norm_every);

        let field = body.read(done)?;
        let mut others: [Option<(Reading<'_>, &Block)>; 6] = Default::default();
        for (behind, other) in self.sides.iter().zip(&mut others) {
            if let Side::Here(index) = behind {
                let neighbor = &shared.blocks[*index];
                *other = Some((neighbor.read(done)?, &neighbor.block));
            }
        }
        let behind = |side: usize| match (&self.sides[side], &others[side]) {
            (_, Some((field, block))) => Behind::Neighbor(field, block),
            (Side::Rank(face), None) => Behind::Face(face),
            (_, None) => Behind::Ghosts,
        };
        let old = Old {
            field: &field,
            block: &body.block,
            behind: [0, 1, 2, 3, 4, 5].map(behind),
        };
        if ended || due {
            state.squares.push(kernel::residual_squares(&old));
        }
        if ended {
            return Ok(false);
        }
        let mut new = body.write(done)?;
        kernel::sweep(&old, &mut new, &kernel::interior(&body.block), || {});
        state.done += 1;
        self.gather(&body.block, &new);
        shared.count_sweep();
        Ok(state.done < shared.sweeps)
    }
}

impl Task for Sweeper {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        let body = &shared.blocks[self.index];
        let done = lock(&body.state).done;
        self.gather(&body.block, &body.read(done)?);
        self.put_sides(cx);
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let shared = self.shared.clone();
        let body = &shared.blocks[self.index];
        self.take_faces(cx, &body.block)?;
        let goes_on = self.sweep(&mut lock(&body.state))?;
        if !goes_on {
            return Ok(Next::Done);
        }
        self.put_sides(cx);
        Ok(Next::Wait)
    }
}
