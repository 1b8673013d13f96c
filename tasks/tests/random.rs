//! Random graphs against a naive interpreter: the same bits for any number of ranks and
//! workers, and any order of events; where a task or a rank fails, of all that does not need its
//! messages.

#[path = "../../tests/asked.rs"]
mod asked;
mod common;

use common::{Job, Random, build, mix, on_threads};
use osier_tasks::child::{Child, LocalGraph};
use osier_tasks::context::Context;
use osier_tasks::describe::{Description, Event, In, Out};
use osier_tasks::graph::{Graph, OneRank};
use osier_tasks::placement::Placement;
use osier_tasks::rule::Rule;
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
    /// By family: each firing is done by a child graph.
    nested: Vec<bool>,
    exact: bool,
    /// Family and number of the task that fails, and at which firing.
    fails: Option<(usize, usize, u64)>,
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
            nested: lens.iter().map(|_| random.below(4) == 0).collect(),
            lens,
            firings: 1 + random.below(9),
            exact: random.below(4) == 0,
            fails: None,
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

    /// What becomes of a state at the end of a firing.
    fn step(&self, family: usize, state: u64) -> u64 {
        match self.nested[family] {
            false => mix([state]),
            true => (0..CHAIN).fold(state, |state, at| mix([state, at])),
        }
    }

    /// The states of all tasks at the end, one task after the other; `None` of those that have
    /// failed, or needed a message of one that had.
    fn interpret(&self) -> Vec<Vec<Option<u64>>> {
        let start = |family: usize, number: usize| Some(mix([family as u64, number as u64]));
        let mut states: Vec<Vec<Option<u64>>> = self
            .lens
            .iter()
            .enumerate()
            .map(|(family, len)| (0..*len).map(|number| start(family, number)).collect())
            .collect();
        // By wire and producer: what came last.
        let mut sent: Vec<Vec<Option<Vec<u64>>>> = Vec::new();
        for (number, wire) in self.wires.iter().enumerate() {
            let of = |from: usize| states[wire.from][from].map(|s| Case::message(s, number));
            sent.push((0..self.lens[wire.from]).map(of).collect());
        }
        for firing in 0..self.firings {
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
                                let message = source[number][from].as_ref();
                                state = state.zip(message).map(|(state, message)| {
                                    let head = [state, from as u64];
                                    mix(head.into_iter().chain(message.iter().copied()))
                                });
                            }
                        }
                    }
                    if self.fails == Some((family, task, firing)) {
                        state = None;
                    }
                    state = state.map(|state| self.step(family, state));
                    *state_of_task = state;
                    for (number, wire) in self.wires.iter().enumerate() {
                        if wire.from == family {
                            next[number][task] = state.map(|state| Case::message(state, number));
                        }
                    }
                }
            }
            sent = next;
        }
        states
    }

    /// Whether a message of the second task may reach the first, over any number of others.
    fn needs(&self) -> Vec<Vec<Vec<Vec<bool>>>> {
        let of = |len: &usize| vec![false; *len];
        let none: Vec<Vec<bool>> = self.lens.iter().map(of).collect();
        let mut needs: Vec<Vec<Vec<Vec<bool>>>> = self
            .lens
            .iter()
            .map(|len| vec![none.clone(); *len])
            .collect();
        for (family, len) in self.lens.iter().enumerate() {
            (0..*len).for_each(|task| needs[family][task][family][task] = true);
        }
        let mut more = true;
        while std::mem::take(&mut more) {
            for wire in &self.wires {
                for from in 0..self.lens[wire.from] {
                    let of_producer = needs[wire.from][from].clone();
                    for to in self.consumers(wire, from) {
                        let own = needs[wire.to][to].iter_mut().flatten();
                        for (own, theirs) in own.zip(of_producer.iter().flatten()) {
                            more |= *theirs && !*own;
                            *own |= *theirs;
                        }
                    }
                }
            }
        }
        needs
    }

    /// The graph, in which tasks leave their states at the end, and their ranks at once.
    fn describe(&self, ends: &Ends, ranks: usize) -> Description {
        let mut graph = Description::new();
        if self.exact {
            graph.exact_priorities();
        }
        let chain = LocalGraph::build(chain()).expect("a graph");
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
            let nested = self.nested[number].then(|| {
                let ended = graph.event(*family, "chain has ended");
                graph.rule(*family, Rule::Ports(numbers(&into)));
                (chain.clone(), ended)
            });
            graph.priority(*family, |[i]: [usize; 1]| i as i32 - 1);
            let (ends, case) = (ends.clone(), self.clone());
            graph.tasks(*family, move |[at]: [usize; 1]| Mixer {
                state: mix([number as u64, at as u64]),
                place: (number, at),
                into: into.clone(),
                out: out.clone(),
                firing: 0,
                case: case.clone(),
                nested: nested.clone(),
                under_way: None,
                ends: ends.clone(),
            });
        }
        graph
    }

    fn empty(&self) -> Vec<Vec<Option<u64>>> {
        self.lens.iter().map(|len| vec![None; *len]).collect()
    }

    fn ends(&self) -> Ends {
        Arc::new(Mutex::new(self.empty()))
    }
}

/// By family and number: the states of tasks that are done.
type Ends = Arc<Mutex<Vec<Vec<Option<u64>>>>>;

/// Tasks of a child graph.
const CHAIN: u64 = 3;

/// What a child graph begins with, and ends with.
struct Link {
    state: u64,
    end: AtomicU64,
}

/// A row of tasks that mix a state.
fn chain() -> Description {
    let mut graph = Description::new();
    let links = graph.family("link", &[CHAIN as usize], Placement::Block);
    let (out, into) = (graph.output::<u64>(links, "out"), graph.input(links, "in"));
    let last = CHAIN as usize - 1;
    graph.connect(out, into, move |[i]: [usize; 1]| {
        (i < last).then_some([i + 1])
    });
    graph.tasks(links, move |[i]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            let link = cx.argument::<Link>().ok_or("no state")?;
            let state = cx.get(into).map_or(link.state, |message| message[0]);
            let state = mix([state, i as u64]);
            link.end.store(state, Ordering::Release);
            cx.put(out, &[state]);
            Ok(Next::Done)
        }
    });
    graph
}

fn numbers(ports: &[In<u64>]) -> Vec<u32> {
    ports.iter().map(|port| port.number()).collect()
}

struct Mixer {
    state: u64,
    place: (usize, usize),
    into: Vec<In<u64>>,
    out: Vec<(usize, Out<u64>, bool)>,
    firing: u64,
    case: Case,
    nested: Option<(LocalGraph, Event)>,
    under_way: Option<(Child, Arc<Link>)>,
    ends: Ends,
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
        if let Some((child, link)) = self.under_way.take() {
            assert!(child.has_ended() && child.failure().is_none());
            self.state = link.end.load(Ordering::Acquire);
        } else {
            for port in &self.into {
                for received in cx.each(*port) {
                    let elements = received.elements.iter().copied();
                    let head = [self.state, received.from_number()];
                    self.state = mix(head.into_iter().chain(elements));
                }
            }
            let (family, number) = self.place;
            if self.case.fails == Some((family, number, self.firing)) {
                return Err("it was asked to".into());
            }
            if let Some((chain, ended)) = &self.nested {
                let (state, end) = (self.state, AtomicU64::new(0));
                let link = Arc::new(Link { state, end });
                let child = cx.begin(chain, link.clone(), *ended);
                self.under_way = Some((child, link));
                return Ok(Next::When(Rule::Ports(vec![ended.number()])));
            }
            self.state = self.case.step(family, self.state);
        }
        self.firing += 1;
        let more = self.firing < self.case.firings;
        for (wire, port, begins) in &self.out {
            if !begins || more {
                self.put(cx, *wire, *port);
            }
        }
        if more {
            return Ok(match self.nested {
                Some(_) => Next::When(Rule::Ports(numbers(&self.into))),
                None => Next::Wait,
            });
        }
        let (family, number) = self.place;
        self.ends.lock().expect("no panic")[family][number] = Some(self.state);
        Ok(Next::Done)
    }
}

/// Plays the case of a seed twice over, on some ranks and workers, in an order that the seed
/// decides; then with a task that fails, and with a rank that does.
fn play(seed: u64) {
    let mut random = Random(seed);
    let mut case = Case::new(&mut random);
    let expected = case.interpret();
    let ranks = 1 + random.below(4) as usize;
    let workers = 1 + random.below(3) as usize;
    let ends = case.ends();
    let named = |case: &Case| format!("seed {seed}, {ranks} ranks of {workers} workers, {case:#?}");
    let built = |case: &Case| -> Vec<Graph> {
        let graphs = build(ranks, || case.describe(&ends, ranks));
        let graphs: Result<Vec<Graph>, _> = graphs.into_iter().collect();
        graphs.unwrap_or_else(|e| panic!("{e}: {}", named(case)))
    };
    let graphs = built(&case);
    let mut run = |case: &Case, graphs: &[Graph], dead: Option<usize>| {
        *ends.lock().expect("no panic") = case.empty();
        let mut job = Job::new(graphs, workers);
        if let Some(rank) = dead {
            job.some(random.below(400), &mut random);
            job.fail(rank);
        }
        let ended = job.run(&mut random);
        assert!(ended, "halts: {:#?}, {}", job.standing(), named(case));
        (job.failures(), ends.lock().expect("no panic").clone())
    };
    for _again in 0..2 {
        let (failures, ended) = run(&case, &graphs, None);
        assert_eq!(failures, Vec::<String>::new());
        assert_eq!(ended, expected, "{}", named(&case));
    }
    match seed % 4 {
        0 => {
            let family = seed as usize / 4 % case.lens.len();
            let task = seed as usize / 8 % case.lens[family];
            case.fails = Some((family, task, seed / 16 % case.firings));
            let (failures, ended) = run(&case, &built(&case), None);
            assert_eq!(ended, case.interpret(), "{}", named(&case));
            let name = format!("task family{family}[{task}] of rank");
            let told = |text: &String| text.contains(&name) && text.contains("it was asked to");
            assert!(
                !failures.is_empty() && failures.iter().all(told),
                "{failures:?}"
            );
        }
        1 if ranks > 1 => {
            let dead = seed as usize / 4 % ranks;
            let (_, ended) = run(&case, &graphs, Some(dead));
            let lost = |family: usize, number: usize| {
                let shape = graphs[dead].shape();
                let mut tasks = shape.tasks.iter();
                tasks.any(|t| t.family as usize == family && t.number == number as u64)
            };
            let needs = case.needs();
            for (family, ended) in ended.iter().enumerate() {
                for (task, ended) in ended.iter().enumerate() {
                    let name = || format!("family{family}[{task}], {dead} fails, {}", named(&case));
                    if ended.is_some() {
                        assert_eq!(*ended, expected[family][task], "{}", name());
                        continue;
                    }
                    let of_lost = needs[family][task].iter().enumerate();
                    let mut needed = of_lost.flat_map(|(family, tasks)| {
                        let tasks = tasks.iter().enumerate();
                        tasks.map(move |(task, needs)| (family, task, *needs))
                    });
                    let excused = needed.any(|(family, task, needs)| needs && lost(family, task));
                    assert!(excused, "{}", name());
                }
            }
        }
        _ => {}
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
