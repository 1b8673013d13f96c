//! A pattern as a graph of persistent tasks, one for each block of points and phase.
//!
//! A task computes the points of its block one after the other. Its output holds the cells of
//! those that any other block needs, goes to every block that needs any of them, and a task fires
//! once all blocks that it needs any of have sent theirs: fewer firings and messages than with a
//! task for each point, and less freedom. Blocks fire at every step, those without points in it
//! too.
//!
//! Phases are those of [`super::graph`]; where there is one only, a task keeps its own output of
//! the last step, else it sends it to itself.

use osier::task::{Context, Description, In, Next, Out, Placement, Task, TaskError};
use smallvec::SmallVec;
use std::ops::Range;

use super::Run;
use super::kernel::{Cell, Kernel};

#[derive(Clone, Copy)]
struct Ports {
    output: Out<u64>,
    inputs: In<u64>,
}

/// The points of a block.
fn points_of(run: &Run, block: usize) -> Range<usize> {
    block * run.block..((block + 1) * run.block).min(run.graph.width)
}

/// The other blocks that a block needs by a dependence set, ascending; itself too where it sends
/// to itself.
fn producers(run: &Run, set: usize, block: usize) -> Vec<usize> {
    let points = points_of(run, block).flat_map(|i| run.graph.dependences(set, i));
    let own = (run.graph.sets() > 1).then_some(block);
    let all = points
        .map(|j| j / run.block)
        .filter(|other| *other != block);
    let mut all: Vec<usize> = all.chain(own).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The points of a block that are sent, ascending: those that other blocks need by a dependence
/// set, or itself where it sends to itself.
fn sent(run: &Run, set: usize, block: usize) -> Vec<usize> {
    let (own, to_itself) = (points_of(run, block), run.graph.sets() > 1);
    let consumers = (0..run.graph.width).filter(|i| to_itself || !own.contains(i));
    let needed = consumers.flat_map(|i| run.graph.dependences(set, i));
    let mut needed: Vec<usize> = needed.filter(|j| own.contains(j)).collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

/// The graph of a run.
pub fn describe(run: &Run) -> Description {
    let phases = run.graph.sets();
    let blocks = run.graph.width.div_ceil(run.block);
    let all_producers = |block: usize| (0..phases).map(move |set| producers(run, set, block));
    let has_edges = (0..blocks).any(|b| all_producers(b).any(|all| !all.is_empty()));
    let mut graph = Description::new();
    let family = graph.family("block", &[blocks, phases], Placement::Grid(run.grid()));
    let ports = has_edges.then(|| {
        let output = graph.output::<u64>(family, "output");
        let inputs = graph.input::<u64>(family, "inputs");
        graph.begins(output);
        let run = run.clone();
        graph.connect(output, inputs, move |[from, phase]: [usize; 2]| {
            let next = (phase + 1) % phases;
            let set = run.graph.set_at(next + phases);
            let needs = |block: &usize| producers(&run, set, *block).contains(&from);
            let consumers: Vec<usize> = (0..blocks).filter(needs).collect();
            consumers.into_iter().map(move |block| [block, next])
        });
        Ports { output, inputs }
    });
    let run = run.clone();
    graph.tasks(family, move |[block, phase]: [usize; 2]| {
        Block::new(&run, ports, block, phase)
    });
    graph
}

/// An input of a point: where it lies.
struct Need {
    point: usize,
    /// Which message, in the order of arrival; `None`: the task's own output.
    message: Option<usize>,
    /// In words.
    at: usize,
}

/// A block in the steps of one phase.
struct Block {
    run: Run,
    points: Range<usize>,
    step: usize,
    phases: usize,
    kernel: Kernel,
    ports: Option<Ports>,
    /// By point: its inputs in the order of the contract.
    needs: Vec<Vec<Need>>,
    /// Of the last step, and of this one.
    before: Vec<u64>,
    output: Vec<u64>,
    /// Where in it the cells are that are sent, and those; none: all of it is sent.
    sent_from: Vec<usize>,
    message: Vec<u64>,
}

impl Block {
    fn new(run: &Run, ports: Option<Ports>, block: usize, phase: usize) -> Block {
        let phases = run.graph.sets();
        let set = run.graph.set_at(phase + phases);
        let producers = producers(run, set, block);
        let messages: Vec<Vec<usize>> = producers.iter().map(|p| sent(run, set, *p)).collect();
        let need = |j: usize| {
            let message = producers.iter().position(|other| *other == j / run.block);
            let place = message.and_then(|m| messages[m].binary_search(&j).ok());
            Need {
                point: j,
                message,
                at: place.unwrap_or(j % run.block) * run.words,
            }
        };
        let points = points_of(run, block);
        let next = run.graph.set_at((phase + 1) % phases + phases);
        let is_sent = sent(run, next, block).into_iter();
        let mut sent_from: Vec<usize> = is_sent.map(|j| (j - points.start) * run.words).collect();
        if sent_from.len() == points.len() {
            sent_from.clear();
        }
        let needs = points.clone().map(|i| {
            let all = run.graph.dependences(set, i).into_iter();
            all.map(need).collect()
        });
        let words = points.len() * run.words;
        Block {
            needs: needs.collect(),
            points,
            step: phase,
            phases,
            kernel: run.kernel,
            ports,
            before: vec![0; words],
            output: vec![0; words],
            message: vec![0; sent_from.len() * run.words],
            sent_from,
            run: run.clone(),
        }
    }

    /// Runs the points of a step.
    fn compute(&mut self, cx: &Context<'_>) -> std::result::Result<Next, TaskError> {
        let (graph, words, t) = (&self.run.graph, self.run.words, self.step);
        let row = graph.row(t);
        let before = match t {
            0 => 0..0,
            _ => graph.row(t - 1),
        };
        let messages = self.ports.iter();
        let messages = messages.flat_map(|ports| cx.each(ports.inputs).map(|m| m.elements));
        let messages: SmallVec<[&[u64]; 8]> = match t {
            0 => SmallVec::new(),
            _ => messages.collect(),
        };
        for (at, i) in self.points.clone().enumerate() {
            if !row.contains(&i) {
                continue;
            }
            for need in &self.needs[at] {
                if !before.contains(&need.point) {
                    continue;
                }
                let expected = Cell {
                    step: t - 1,
                    point: need.point,
                    graph: graph.number,
                };
                let output = match need.message {
                    Some(message) => messages.get(message).copied().unwrap_or_default(),
                    None => &self.before[..],
                };
                let input = output.get(need.at..need.at + words).unwrap_or_default();
                expected.check(input, words)?;
            }
            let cell = Cell {
                step: t,
                point: i,
                graph: graph.number,
            };
            cell.fill(&mut self.output[at * words..][..words]);
            self.kernel.run();
        }
        let steps = graph.steps;
        if let Some(ports) = self.ports
            && t + 1 < steps
        {
            match self.sent_from.is_empty() {
                true => cx.put(ports.output, &self.output),
                false => {
                    let cells = self.message.chunks_exact_mut(words);
                    for (cell, from) in cells.zip(&self.sent_from) {
                        cell.copy_from_slice(&self.output[*from..][..words]);
                    }
                    cx.put(ports.output, &self.message);
                }
            }
        }
        std::mem::swap(&mut self.before, &mut self.output);
        self.step += self.phases;
        match self.step < steps {
            true => Ok(Next::Wait),
            false => Ok(Next::Done),
        }
    }
}

impl Task for Block {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        match self.step {
            step if step >= self.run.graph.steps => Ok(Next::Done),
            0 => self.compute(cx),
            _ => Ok(Next::Wait),
        }
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        self.compute(cx)
    }
}
