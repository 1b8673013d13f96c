//! Random graphs against a naive interpreter: the same bits for any number of ranks and
//! workers, and any order of events.

#[path = "../../tests/asked.rs"]
mod asked;
mod common;

use common::{Job, Random, build, mix, on_threads};
use osier_tasks::context::Context;
use osier_tasks::describe::{Description, In, Out};
use osier_tasks::graph::{Graph, OneRank};
use osier_tasks::placement::Placement;
use osier_tasks::task::{Next, Task, TaskError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Edges between two families: of a port that `init` puts a message on, or not.
#[derive(Clone, Debug)]
struct Wire {
    from: usize,
    to: usize,
    begins: bool,
    slots: u32,
    seed: u64,
}

/// A graph in which every task fires the same number of times, with a message on each edge
/// each time. Edges that do not begin lead from a lower task to a higher one.
#[derive(Clone, Debug)]
struct Case {
    lens: Vec<usize>,
    placements: Vec<u64>,
    wires: Vec<Wire>,
    firings: u64,
}

impl Case {
    fn new(random: &mut Random) -> Case {
        let lens: Vec<usize> = (0..1 + random.below(3))
            .map(|_| 1 + random.below(7) as usize)
            .collect();
        let families = lens.len() as u64;
        let wires = (0..1 + random.below(5)).map(|_| {
            let (a, b) = (
                random.below(families) as usize,
                random.below(families) as usize,
            );
            let begins = random.below(2) == 0;
            let (from, to) = if begins { (a, b) } else { (a.min(b), a.max(b)) };
            Wire {
                from,
                to,
                begins,
                slots: 1 + random.below(4) as u32,
                seed: random.below(1 << 30),
            }
        });
        Case {
            wires: wires.collect(),
            placements: lens.iter().map(|_| random.below(4)).collect(),
            lens,
            firings: 1 + random.below(9),
        }
    }

    fn consumers(&self, wire: &Wire, from: usize) -> Vec<usize> {
        let forward = wire.from == wire.to && !wire.begins;
        let first = if forward { from + 1 } else { 0 };
        (first..self.lens[wire.to])
            .filter(|to| mix([wire.seed, from as u64, *to as u64]).is_multiple_of(3))
            .collect()
    }

    /// What a task puts on a port, by its state.
    fn message(state: u64, wire: usize) -> Vec<u64> {
        let seed = mix([state, wire as u64]);
        (0..seed % 11).map(|at| mix([seed, at])).collect()
    }

    /// The states of all tasks at the end, one task after the other.
    fn interpret(&self) -> Vec<Vec<u64>> {
        let start = |family: usize, number: usize| mix([family as u64, number as u64]);
        let mut states: Vec<Vec<u64>> = self
            .lens
            .iter()
            .enumerate()
            .map(|(family, len)| (0..*len).map(|number| start(family, number)).collect())
            .collect();
        // By wire and producer: what came last.
        let mut sent: Vec<Vec<Vec<u64>>> = Vec::new();
        for (number, wire) in self.wires.iter().enumerate() {
            let of = |from: usize| Case::message(states[wire.from][from], number);
            sent.push((0..self.lens[wire.from]).map(of).collect());
        }
        for _ in 0..self.firings {
            let mut next = sent.clone();
            for (family, states) in states.iter_mut().enumerate() {
                for (task, state_of_task) in states.iter_mut().enumerate() {
                    let mut state = *state_of_task;
                    for (number, wire) in self.wires.iter().enumerate() {
                        if wire.to != family {
                            continue;
                        }
                        for from in 0..self.lens[wire.from] {
                            if self.consumers(wire, from).contains(&task) {
                                let source = if wire.begins { &sent } else { &next };
                                let message = source[number][from].iter().copied();
                                state = mix([state, from as u64].into_iter().chain(message));
                            }
                        }
                    }
                    state = mix([state]);
                    *state_of_task = state;
                    for (number, wire) in self.wires.iter().enumerate() {
                        if wire.from == family {
                            next[number][task] = Case::message(state, number);
                        }
                    }
                }
            }
            sent = next;
        }
        states
    }

    fn describe(&self, ends: &Arc<Mutex<Vec<Vec<u64>>>>, ranks: usize) -> Description {
        let mut graph = Description::new();
        let mut families = Vec::new();
        for (number, len) in self.lens.iter().enumerate() {
            let placement = match self.placements[number] {
                0 => Placement::Block,
                1 => Placement::Cyclic,
                2 => Placement::BlockCyclic {
                    block: vec![2],
                    grid: vec![ranks],
                },
                _ => Placement::Function(Arc::new(move |at| mix([at[0] as u64]) as usize % ranks)),
            };
            families.push(graph.family(&format!("family{number}"), &[*len], placement));
        }
        let mut ports = Vec::new();
        for (number, wire) in self.wires.iter().enumerate() {
            let name = format!("wire{number}");
            let out: Out<u64> = graph.output(families[wire.from], &name);
            let into: In<u64> = graph.input(families[wire.to], &name);
            graph.slots(out, wire.slots);
            if wire.begins {
                graph.begins(out);
            }
            let (case, wire) = (self.clone(), wire.clone());
            graph.connect(out, into, move |[from]: [usize; 1]| {
                case.consumers(&wire, from).into_iter().map(|to| [to])
            });
            ports.push((out, into));
        }
        for (number, family) in families.iter().enumerate() {
            let of = |end: fn(&Wire) -> usize| {
                let wires = self.wires.iter().enumerate();
                let own = wires.filter(|(_, wire)| end(wire) == number);
                own.map(|(wire, _)| wire).collect::<Vec<_>>()
            };
            let (into, out) = (of(|wire| wire.to), of(|wire| wire.from));
            let into: Vec<_> = into.iter().map(|wire| ports[*wire].1).collect();
            let out: Vec<_> = out
                .iter()
                .map(|wire| (*wire, ports[*wire].0, self.wires[*wire].begins))
                .collect();
            let (ends, firings) = (ends.clone(), self.firings);
            graph.tasks(*family, move |[at]: [usize; 1]| Mixer {
                state: mix([number as u64, at as u64]),
                place: (number, at),
                into: into.clone(),
                out: out.clone(),
                left: firings,
                ends: ends.clone(),
            });
        }
        graph
    }

    fn empty(&self) -> Vec<Vec<u64>> {
        self.lens.iter().map(|len| vec![0; *len]).collect()
    }

    fn ends(&self) -> Arc<Mutex<Vec<Vec<u64>>>> {
        Arc::new(Mutex::new(self.empty()))
    }
}

struct Mixer {
    state: u64,
    place: (usize, usize),
    into: Vec<In<u64>>,
    out: Vec<(usize, Out<u64>, bool)>,
    left: u64,
    ends: Arc<Mutex<Vec<Vec<u64>>>>,
}

impl Mixer {
    fn put(&self, cx: &Context<'_>, wire: usize, port: Out<u64>) {
        let message = Case::message(self.state, wire);
        match message.len() % 2 {
            0 => cx.put(port, &message),
            _ => cx.give(port, message),
        }
    }
}

impl Task for Mixer {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        for (wire, port, begins) in &self.out {
            if *begins {
                self.put(cx, *wire, *port);
            }
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        for port in &self.into {
            for received in cx.each(*port) {
                let elements = received.elements.iter().copied();
                let head = [self.state, received.from_number()];
                self.state = mix(head.into_iter().chain(elements));
            }
        }
        self.state = mix([self.state]);
        self.left -= 1;
        for (wire, port, begins) in &self.out {
            if !begins || self.left > 0 {
                self.put(cx, *wire, *port);
            }
        }
        if self.left > 0 {
            return Ok(Next::Wait);
        }
        let (family, number) = self.place;
        self.ends.lock().expect("no panic")[family][number] = self.state;
        Ok(Next::Done)
    }
}

/// Plays the case of a seed twice over, on some ranks and workers, in an order that the seed
/// decides.
fn play(seed: u64) {
    let mut random = Random(seed);
    let case = Case::new(&mut random);
    let expected = case.interpret();
    let ranks = 1 + random.below(4) as usize;
    let workers = 1 + random.below(3) as usize;
    let ends = case.ends();
    let named = || format!("seed {seed}, {ranks} ranks of {workers} workers, {case:#?}");
    let graphs = build(ranks, || case.describe(&ends, ranks));
    let graphs: Result<Vec<Graph>, _> = graphs.into_iter().collect();
    let graphs = graphs.unwrap_or_else(|e| panic!("{e}: {}", named()));
    for _again in 0..2 {
        *ends.lock().expect("no panic") = case.empty();
        let mut job = Job::new(&graphs, workers);
        assert!(
            job.run(&mut random),
            "halts: {:#?}, {}",
            job.standing(),
            named()
        );
        assert_eq!(job.failures(), Vec::<String>::new());
        assert_eq!(*ends.lock().expect("no panic"), expected, "{}", named());
    }
}

/// `OSIER_TEST=graphs=N` says how many.
#[test]
fn any_ranks_workers_and_order_give_the_bits_of_the_interpreter() {
    let graphs = asked::number("graphs").unwrap_or(10_000);
    (0..graphs).for_each(play);
}

/// `cargo xtask soak tasks`.
#[test]
#[ignore = "runs as long as OSIER_TEST says"]
fn soak() {
    let seed = asked::number("seed").unwrap_or(0);
    let runs = asked::number("runs");
    let seconds = asked::number("seconds").unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let more = match runs {
                        Some(runs) => number < runs,
                        None => Instant::now() < end,
                    };
                    if !more {
                        return;
                    }
                    play(seed.wrapping_add(number));
                }
            });
        }
    });
    let played = next.into_inner().min(runs.unwrap_or(u64::MAX));
    println!("{played} graphs, seeds from {seed}");
}

#[test]
fn threads_give_the_bits_of_the_interpreter() {
    let mut random = Random(11);
    for number in 0..300 {
        let mut case = Case::new(&mut random);
        case.firings *= 20;
        let expected = case.interpret();
        let ends = case.ends();
        let graph = Graph::build(case.describe(&ends, 1), &mut OneRank)
            .unwrap_or_else(|e| panic!("case {number}: {e}"));
        let ended: u64 = on_threads(&graph, 3)
            .iter()
            .map(|worker| worker.ended)
            .sum();
        assert_eq!(ended as usize, case.lens.iter().sum::<usize>());
        let ends = ends.lock().expect("no panic");
        assert_eq!(*ends, expected, "case {number}: {case:#?}");
    }
}
