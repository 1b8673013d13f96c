//! A pattern as a program of messages: non-blocking receives and sends of each step, a wait for
//! all, then the tasks of the rank in order.
//!
//! One message for each edge between ranks; inputs from the rank itself are copied. The program
//! for MPI in `benches/peers/patterns.c` does the same.
//!
//! # Sources
//! E. Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
//! Performance", SC20: the program for MPI in its form without barriers.

use std::ops::Range;
use std::time::Instant;

use osier::Communicator;

use super::kernel::Cell;
use super::{Failure, Result, Run};

/// Seconds of each repetition, after one that warms up.
pub fn measure(comm: &Communicator, run: &Run) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for repetition in 0..=run.repetitions {
        comm.barrier()?;
        let since = Instant::now();
        schedule(comm, run)?;
        comm.barrier()?;
        if repetition > 0 {
            seconds.push(since.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// An edge from or to another point.
struct Edge {
    point: usize,
    /// The other rank, and the tag between them; `None` on this rank.
    remote: Option<(usize, i32)>,
}

/// Edges of a point in one dependence set.
struct Edges {
    inputs: Vec<Edge>,
    /// To other ranks only.
    outputs: Vec<Edge>,
}

fn edges_of(run: &Run, rank: usize, set: usize, point: usize) -> Edges {
    let local = |point: usize| point - run.points_of(run.rank_of(point)).start;
    let tag = |producer: usize, consumer: usize| (local(producer) * 256 + local(consumer)) as i32;
    let edge = |other: usize, tag: i32| {
        let owner = run.rank_of(other);
        Edge {
            point: other,
            remote: (owner != rank).then_some((owner, tag)),
        }
    };
    let inputs = run.graph.dependences(set, point).into_iter();
    let outputs = run.graph.consumers(set, point).into_iter();
    let mut outputs: Vec<Edge> = outputs.map(|i| edge(i, tag(point, i))).collect();
    outputs.retain(|edge| edge.remote.is_some());
    Edges {
        inputs: inputs.map(|j| edge(j, tag(j, point))).collect(),
        outputs,
    }
}

/// All steps: the memory that they need included.
fn schedule(comm: &Communicator, run: &Run) -> Result<()> {
    let (graph, words, rank) = (&run.graph, run.words, comm.rank());
    let own = run.points_of(rank);
    let sets: Vec<Vec<Edges>> = (0..graph.sets())
        .map(|set| own.clone().map(|i| edges_of(run, rank, set, i)).collect())
        .collect();
    let lengths = sets.iter().flatten().map(|edges| edges.inputs.len());
    let most = lengths.max().unwrap_or(0);
    let mut inputs = vec![0u64; own.len() * most.max(1) * words];
    let mut outputs = vec![0u64; own.len() * words];
    let mut before = 0..0;
    for t in 0..graph.steps {
        let row = graph.row(t);
        let edges = &sets[graph.set_at(t)];
        let step = Step {
            own: &own,
            before: &before,
            row: &row,
            words,
        };
        step.exchange(comm, edges, &mut inputs, &outputs)?;
        for i in step.own_of(&row) {
            let at = i - own.start;
            let mut got = inputs[at * most.max(1) * words..].chunks_exact(words);
            for edge in &edges[at].inputs {
                if !before.contains(&edge.point) {
                    continue;
                }
                let expected = Cell {
                    step: t - 1,
                    point: edge.point,
                    graph: graph.number,
                };
                let input = got.next().unwrap_or_default();
                expected
                    .check(input, words)
                    .map_err(|wrong| Failure::failed(format!("step {t}, point {i}: {wrong}")))?;
            }
            let cell = Cell {
                step: t,
                point: i,
                graph: graph.number,
            };
            cell.fill(&mut outputs[at * words..][..words]);
            run.kernel.run();
        }
        before = row;
    }
    Ok(())
}

/// One step of a rank.
struct Step<'a> {
    own: &'a Range<usize>,
    /// Points of the step before, and of this one.
    before: &'a Range<usize>,
    row: &'a Range<usize>,
    words: usize,
}

impl Step<'_> {
    fn own_of(&self, row: &Range<usize>) -> Range<usize> {
        let (own, end) = (self.own, self.own.end.min(row.end));
        own.start.max(row.start).min(end)..end
    }

    /// Inputs of this step, from the outputs of the one before.
    fn exchange(
        &self,
        comm: &Communicator,
        edges: &[Edges],
        inputs: &mut [u64],
        outputs: &[u64],
    ) -> Result<()> {
        if self.before.is_empty() {
            return Ok(());
        }
        let Step { own, words, .. } = *self;
        let of_a_point = inputs.len() / own.len();
        let output = |point: usize| &outputs[(point - own.start) * words..][..words];
        comm.scope(|scope| {
            let points = inputs
                .chunks_exact_mut(of_a_point)
                .zip(edges)
                .zip(own.clone());
            for ((inputs, edges), i) in points {
                if self.row.contains(&i) {
                    let mut inputs = inputs.chunks_exact_mut(words);
                    for edge in &edges.inputs {
                        if !self.before.contains(&edge.point) {
                            continue;
                        }
                        let Some(input) = inputs.next() else { break };
                        match edge.remote {
                            Some((rank, tag)) => drop(scope.irecv(input, rank, tag)?),
                            None => input.copy_from_slice(output(edge.point)),
                        }
                    }
                }
                if self.before.contains(&i) {
                    for edge in &edges.outputs {
                        if let (Some((rank, tag)), true) =
                            (edge.remote, self.row.contains(&edge.point))
                        {
                            scope.isend(output(i), rank, tag)?;
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(())
    }
}
