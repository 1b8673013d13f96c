//! A pattern as a graph of persistent tasks: one for each point and phase.
//!
//! A pattern with several dependence sets has as many phases. The task of a point and a phase
//! stands for every step of that phase, so that its edges, and its firing rule, stay the same:
//! nothing is chosen at each step, and nothing is sent that no task needs.
//!
//! ```text
//! steps     0        1        2        3
//! point 0  (0,0) -> (0,1) -> (0,2) -> (0,0) ...      three phases
//!               \         \        \
//! point 1  (1,0) -> (1,1) -> (1,2) -> (1,0) ...
//! ```
//!
//! One `put` sends an output to all its consumers, one message to a rank. Tasks of step 0, which
//! no message fires, run in `init`.

use osier::Communicator;
use osier::task::{Context, Description, Graph, In, Next, Out, Placement, Rule, Task, TaskError};
use smallvec::SmallVec;
use std::time::Instant;

use super::dependences::Dependence;
use super::kernel::{Cell, Kernel};
use super::{Result, Run, blocks};

/// Seconds of each repetition, after one that warms up.
pub fn measure(comm: &Communicator, run: &Run) -> Result<Vec<f64>> {
    let description = match run.block {
        1 => describe(run),
        _ => blocks::describe(run),
    };
    let graph = Graph::build(comm, description)?;
    let mut seconds = Vec::new();
    for repetition in 0..=run.repetitions {
        comm.barrier()?;
        let since = Instant::now();
        graph.run_by(run.workers)?;
        comm.barrier()?;
        if repetition > 0 {
            seconds.push(since.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// Ports of a family; a pattern without dependences has none.
#[derive(Clone, Copy)]
struct Ports {
    output: Out<u64>,
    /// All inputs, but of a sweep that from the point itself, which its first task lacks.
    inputs: In<u64>,
    own: Option<In<u64>>,
}

fn describe(run: &Run) -> Description {
    let points = run.graph;
    let phases = points.sets();
    let mut graph = Description::new();
    let family = graph.family(
        "point",
        &[points.width, phases],
        Placement::Grid(run.grid()),
    );
    let ports = points.has_edges().then(|| {
        let output = graph.output::<u64>(family, "output");
        let inputs = graph.input::<u64>(family, "inputs");
        graph.begins(output);
        let own = match points.dependence {
            // A sweep of one point has no left neighbors.
            Dependence::Dom if points.width > 1 => {
                let own = graph.input::<u64>(family, "own");
                graph.connect(output, own, |at: [usize; 2]| [at]);
                graph.rule(family, Rule::Ports(vec![inputs.number()]));
                Some(own)
            }
            _ => None,
        };
        let skips_own = own.is_some();
        graph.connect(output, inputs, move |[j, phase]: [usize; 2]| {
            let next = (phase + 1) % phases;
            let all = points.consumers(points.set_at(next + phases), j);
            all.into_iter()
                .filter(move |i| !(skips_own && *i == j))
                .map(move |i| [i, next])
        });
        Ports {
            output,
            inputs,
            own,
        }
    });
    let run = run.clone();
    graph.tasks(family, move |[i, phase]: [usize; 2]| {
        Point::new(&run, ports, i, phase)
    });
    graph
}

/// A point in the steps of one phase.
struct Point {
    at: usize,
    /// The step that it runs next, and the end of its steps.
    step: usize,
    end: usize,
    phases: usize,
    number: u32,
    /// Steps of the graph.
    steps: usize,
    kernel: Kernel,
    ports: Option<Ports>,
    /// Producers in the order in which messages are read.
    producers: Vec<usize>,
    /// Where the inputs of the contract's order are among those; empty if it is the same.
    order: Vec<usize>,
    output: Vec<u64>,
}

impl Point {
    fn new(run: &Run, ports: Option<Ports>, at: usize, phase: usize) -> Point {
        let points = &run.graph;
        let phases = points.sets();
        let steps = points.steps_of(at);
        let contract = points.dependences(points.set_at(phase + phases), at);
        let mut producers = contract.clone();
        producers.sort_unstable();
        let place = |j: &usize| producers.partition_point(|other| other < j);
        let order = match contract == producers {
            true => Vec::new(),
            false => contract.iter().map(place).collect(),
        };
        Point {
            at,
            // The first of its steps that are of this phase.
            step: steps.start + (phase + phases - steps.start % phases) % phases,
            end: steps.end,
            phases,
            number: points.number,
            steps: points.steps,
            kernel: run.kernel,
            ports,
            producers,
            order,
            output: vec![0; run.words],
        }
    }

    /// Checks a message of a producer.
    #[inline]
    fn check(&self, producer: usize, elements: &[u64]) -> std::result::Result<(), TaskError> {
        let cell = Cell {
            step: self.step - 1,
            point: producer,
            graph: self.number,
        };
        Ok(cell.check(elements, self.output.len())?)
    }

    /// Checks all inputs, in the order of the contract.
    #[inline]
    fn check_all(&self, cx: &Context<'_>, ports: Ports) -> std::result::Result<(), TaskError> {
        let mut seen = 0;
        if self.order.is_empty() {
            for (message, producer) in cx.each(ports.inputs).zip(&self.producers) {
                self.check(*producer, message.elements)?;
                seen += 1;
            }
        } else {
            let messages = cx.each(ports.inputs).map(|message| message.elements);
            let messages: SmallVec<[&[u64]; 8]> = messages.collect();
            for place in &self.order {
                let message = messages.get(*place).ok_or("an input lacks")?;
                self.check(self.producers[*place], message)?;
                seen += 1;
            }
        }
        // Of a sweep: its left neighbor, if it has one, and then itself, but in its first step.
        if let Some(own) = ports.own
            && let Some(message) = cx.get(own)
        {
            self.check(self.at, message)?;
            seen += 1;
        }
        let first = ports.own.is_some() && self.step == self.at;
        match seen + usize::from(first) == self.producers.len() {
            true => Ok(()),
            false => Err(format!(
                "step {} of point {} has {seen} inputs, expected {}",
                self.step,
                self.at,
                self.producers.len()
            )
            .into()),
        }
    }

    /// Computes, sends, goes on to the next step of the phase.
    #[inline]
    fn compute(&mut self, cx: &Context<'_>) -> Next {
        let cell = Cell {
            step: self.step,
            point: self.at,
            graph: self.number,
        };
        cell.fill(&mut self.output);
        self.kernel.run();
        if let Some(ports) = self.ports
            && self.step + 1 < self.steps
        {
            cx.put(ports.output, &self.output);
        }
        self.step += self.phases;
        match self.step < self.end {
            true => Next::Wait,
            false => Next::Done,
        }
    }
}

impl Task for Point {
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        match self.step {
            step if step >= self.end => Ok(Next::Done),
            0 => match (self.compute(cx), self.ports) {
                (Next::Wait, Some(Ports { own: Some(_), .. })) => Ok(Next::When(Rule::All)),
                (next, _) => Ok(next),
            },
            _ => Ok(Next::Wait),
        }
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        if let Some(ports) = self.ports {
            self.check_all(cx, ports)?;
        }
        let first = self.step == self.at;
        match (self.compute(cx), self.ports) {
            (Next::Wait, Some(Ports { own: Some(_), .. })) if first => Ok(Next::When(Rule::All)),
            (next, _) => Ok(next),
        }
    }
}
