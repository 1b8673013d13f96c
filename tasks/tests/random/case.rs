//! Random graphs, which depend on a seed alone, and what a naive interpreter makes of them.
//!
//! In each firing of a family that meets, every task gets the sum of what all of its tasks put: by a
//! collective, a node with a task on each rank, which the test adds.
//!
//! The crate that includes this file says in `api` where the names of tasks come from.

use super::api::{
    Child, Context, Description, Event, In, LocalGraph, Next, Out, Placement, Rule, Task, TaskError,
};
use super::chance::{Random, mix};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Adds the node of a family, by ranks and firings: where tasks put their parts, and get
/// the sum.
pub type AddNode<'a> = dyn Fn(&mut Description, usize, usize, u64) -> (In<u64>, Out<u64>) + 'a;

/// Edges between two families: of a port that `init` puts a message on, or not.
#[derive(Clone, Debug)]
pub struct Wire {
    from: usize,
    to: usize,
    begins: bool,
    slots: u32,
    seed: u64,
}

/// A graph in which every task fires the same number of times, with a message on each edge
/// each time. Edges that do not begin lead from a lower task to a higher one.
#[derive(Clone, Debug)]
pub struct Case {
    pub lens: Vec<usize>,
    placements: Vec<u64>,
    wires: Vec<Wire>,
    pub firings: u64,
    /// By family: each firing is done by a child graph.
    nested: Vec<bool>,
    /// By family: each firing takes the sum of all of its tasks.
    pub meets: Vec<bool>,
    exact: bool,
    /// Family and number of the task that fails, and at which firing.
    pub fails: Option<(usize, usize, u64)>,
}

impl Case {
    pub fn new(random: &mut Random) -> Case {
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
            meets: lens.iter().map(|_| random.below(4) == 0).collect(),
            lens,
            firings: 1 + random.below(9),
            exact: random.below(4) == 0,
            fails: None,
        }
    }

    /// Says on how many ranks it is run: a family that meets has tasks on each of them, and none
    /// of its firings waits for another one of the same number.
    pub fn settle(&mut self, ranks: usize) {
        for (family, meets) in self.meets.iter_mut().enumerate() {
            *meets &= self.lens[family] >= ranks;
            if *meets {
                self.placements[family] = CYCLIC;
                let own = |wire: &&mut Wire| wire.from == family && wire.to == family;
                self.wires
                    .iter_mut()
                    .filter(own)
                    .for_each(|wire| wire.begins = true);
            }
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

    /// What a task adds to the sum of its family, by its state.
    fn part(state: u64) -> u64 {
        mix([state, 7])
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
    pub fn interpret(&self) -> Vec<Vec<Option<u64>>> {
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
                    if self.meets[family] {
                        *state_of_task = state;
                        continue;
                    }
                    state = state.map(|state| self.step(family, state));
                    *state_of_task = state;
                    for (number, wire) in self.wires.iter().enumerate() {
                        if wire.from == family {
                            next[number][task] = state.map(|state| Case::message(state, number));
                        }
                    }
                }
                if !self.meets[family] {
                    continue;
                }
                // Of all, or none: one that has failed does not meet the others.
                let sum = states.iter().copied().try_fold(0, |sum: u64, state| {
                    Some(sum.wrapping_add(Case::part(state?)))
                });
                for (task, state) in states.iter_mut().enumerate() {
                    *state = state.zip(sum).map(|(state, sum)| mix([state, sum]));
                    *state = state.map(|state| self.step(family, state));
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
    pub fn needs(&self) -> Vec<Vec<Vec<Vec<bool>>>> {
        let of = |len: &usize| vec![false; *len];
        let none: Vec<Vec<bool>> = self.lens.iter().map(of).collect();
        let mut needs: Vec<Vec<Vec<Vec<bool>>>> = self
            .lens
            .iter()
            .map(|len| vec![none.clone(); *len])
            .collect();
        for (family, len) in self.lens.iter().enumerate() {
            let meets = self.meets[family];
            for task in 0..*len {
                let all = &mut needs[family][task][family];
                all.iter_mut()
                    .enumerate()
                    .for_each(|(other, needs)| *needs = meets || other == task);
            }
        }
        let mut more = true;
        while std::mem::take(&mut more) {
            for wire in &self.wires {
                for from in 0..self.lens[wire.from] {
                    let of_producer = needs[wire.from][from].clone();
                    for to in self.consumers(wire, from) {
                        // What one that meets the others needs, they all do.
                        let all = match self.meets[wire.to] {
                            true => 0..self.lens[wire.to],
                            false => to..to + 1,
                        };
                        for to in all {
                            let own = needs[wire.to][to].iter_mut().flatten();
                            for (own, theirs) in own.zip(of_producer.iter().flatten()) {
                                more |= *theirs && !*own;
                                *own |= *theirs;
                            }
                        }
                    }
                }
            }
        }
        needs
    }

    /// The graph, in which tasks leave their states at the end, and their ranks at once.
    pub fn describe(&self, ends: &Ends, add_node: &AddNode<'_>, ranks: usize) -> Description {
        let mut graph = Description::new();
        if self.exact {
            graph.exact_priorities();
        }
        let chain = LocalGraph::build(chain()).expect("a graph");
        let mut families = Vec::new();
        for (number, len) in self.lens.iter().enumerate() {
            let placement = match self.placements[number] {
                0 => Placement::Block,
                CYCLIC => Placement::Cyclic,
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
            let meets = self.meets[number].then(|| {
                let (part, sum) = (graph.output(*family, "part"), graph.input(*family, "sum"));
                let (input, output) = add_node(&mut graph, number, ranks, self.firings);
                graph.connect_here(part, input);
                graph.connect_here(output, sum);
                graph.rule(*family, Rule::Ports(numbers(&into)));
                (part, sum)
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
                meets,
                phase: Phase::Begins,
                ends: ends.clone(),
            });
        }
        graph
    }

    pub fn empty(&self) -> Vec<Vec<Option<u64>>> {
        self.lens.iter().map(|len| vec![None; *len]).collect()
    }

    pub fn ends(&self) -> Ends {
        Arc::new(Mutex::new(self.empty()))
    }
}

/// By family and number: the states of tasks that are done.
pub type Ends = Arc<Mutex<Vec<Vec<Option<u64>>>>>;

/// A placement.
const CYCLIC: u64 = 1;

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
    /// Where it puts its part of a sum, and gets the sum.
    meets: Option<(Out<u64>, In<u64>)>,
    phase: Phase,
    ends: Ends,
}

/// Of a firing of the interpreter, which may be several here.
enum Phase {
    /// It waits for messages of its wires.
    Begins,
    /// It waits for a sum.
    Meets,
    /// It waits for a child graph.
    UnderWay(Child, Arc<Link>),
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
        let phase = std::mem::replace(&mut self.phase, Phase::Begins);
        if let Phase::Begins = phase {
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
            if let Some((part, sum)) = self.meets {
                cx.put(part, &[Case::part(self.state)]);
                self.phase = Phase::Meets;
                return Ok(Next::When(Rule::Ports(vec![sum.number()])));
            }
        }
        if let Some((_, sum)) = self.meets.filter(|_| matches!(phase, Phase::Meets)) {
            let sum = cx.get(sum).ok_or("no sum")?[0];
            self.state = mix([self.state, sum]);
        }
        if let Phase::UnderWay(child, link) = phase {
            assert!(child.has_ended() && child.failure().is_none());
            self.state = link.end.load(Ordering::Acquire);
        } else {
            if let Some((chain, ended)) = &self.nested {
                let (state, end) = (self.state, AtomicU64::new(0));
                let link = Arc::new(Link { state, end });
                let child = cx.begin(chain, link.clone(), *ended);
                self.phase = Phase::UnderWay(child, link);
                return Ok(Next::When(Rule::Ports(vec![ended.number()])));
            }
            self.state = self.case.step(self.place.0, self.state);
        }
        self.firing += 1;
        let more = self.firing < self.case.firings;
        for (wire, port, begins) in &self.out {
            if !begins || more {
                self.put(cx, *wire, *port);
            }
        }
        if more {
            return Ok(match self.nested.is_some() || self.meets.is_some() {
                true => Next::When(Rule::Ports(numbers(&self.into))),
                false => Next::Wait,
            });
        }
        let (family, number) = self.place;
        self.ends.lock().expect("no panic")[family][number] = Some(self.state);
        Ok(Next::Done)
    }
}
