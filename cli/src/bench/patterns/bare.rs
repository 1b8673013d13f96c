//! What no runtime can do without, on one thread: dependences that are counted, a queue of ready
//! tasks, calls through a pointer under `catch_unwind`, 16 bytes read and written for each edge.
//! And the kernel alone, which tells the processors' peak.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use osier::Communicator;

use super::dependences::Dependence;
use super::kernel::{CELL_WORDS, Cell};
use super::{Failure, Result, Run};

/// Seconds of each repetition of the loop, after one that warms up; of `trivial` and `no_comm`.
pub fn measure(run: &Run) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for repetition in 0..=run.repetitions {
        let since = Instant::now();
        bare_loop(run)?;
        if repetition > 0 {
            seconds.push(since.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// Seconds of each repetition of the kernels alone, on all ranks at the same time.
pub fn kernels(comm: &Communicator, run: &Run) -> Result<Vec<f64>> {
    let own = run.points_of(comm.rank());
    let rows = (0..run.graph.steps).map(|t| run.graph.row(t));
    let all = rows.map(|row| {
        own.end
            .min(row.end)
            .saturating_sub(own.start.max(row.start))
    });
    let all: usize = all.sum();
    let mut seconds = Vec::new();
    for repetition in 0..=run.repetitions {
        comm.barrier()?;
        let since = Instant::now();
        for _ in 0..all {
            run.kernel.run();
        }
        comm.barrier()?;
        if repetition > 0 {
            seconds.push(since.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// A task of the loop, which needs its own output of the step before, or nothing.
struct Slot {
    lacking: [AtomicU32; 2],
    /// By parity of the step.
    inputs: [[u64; CELL_WORDS]; 2],
}

type Ready = VecDeque<u32>;
/// True: the task has ended.
type Body<'a> = Box<dyn FnMut(&mut [Slot], &mut Ready) -> std::result::Result<bool, Failure> + 'a>;

fn bare_loop(run: &Run) -> Result<()> {
    let width = run.graph.width;
    let edges = u32::from(run.graph.dependence == Dependence::NoComm);
    let mut slots: Vec<Slot> = (0..width)
        .map(|_| Slot {
            lacking: [AtomicU32::new(0), AtomicU32::new(edges)],
            inputs: [[0; CELL_WORDS]; 2],
        })
        .collect();
    let mut bodies: Vec<Body<'_>> = (0..width).map(|i| body(run, i, edges)).collect();
    let mut ready: Ready = (0..width as u32).collect();
    let mut ended = 0;
    while ended < width {
        let halted = || Failure::failed("the bare loop has no task that is ready");
        let task = ready.pop_front().ok_or_else(halted)?;
        let body = &mut bodies[task as usize];
        let called = catch_unwind(AssertUnwindSafe(|| body(&mut slots, &mut ready)));
        let called = called.map_err(|_| Failure::failed("a task of the bare loop panicked"))?;
        ended += usize::from(called?);
    }
    Ok(())
}

fn body(run: &Run, i: usize, edges: u32) -> Body<'_> {
    let mut t = 0;
    Box::new(move |slots, ready| {
        let parity = t % 2;
        let cell = Cell {
            step: t,
            point: i,
            graph: run.graph.number,
        };
        if edges > 0 && t > 0 {
            let expected = Cell {
                step: t - 1,
                ..cell
            };
            expected
                .check(&slots[i].inputs[parity], CELL_WORDS)
                .map_err(|wrong| Failure::failed(wrong.to_string()))?;
        }
        run.kernel.run();
        t += 1;
        if t == run.graph.steps {
            return Ok(true);
        }
        let slot = &mut slots[i];
        slot.lacking[parity].store(edges, Ordering::Relaxed);
        if edges > 0 {
            cell.fill(&mut slot.inputs[1 - parity]);
        }
        if edges == 0 || slot.lacking[1 - parity].fetch_sub(1, Ordering::AcqRel) == 1 {
            ready.push_back(i as u32);
        }
        Ok(false)
    })
}
