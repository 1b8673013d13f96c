//! Building a graph: from its description to the tasks and edges of one rank. Pure.
//!
//! ```text
//! Outline::new        own tasks; asks the edges of these; what other ranks are to know
//! (exchange)          Outline::letters -> each rank
//! Outline::assemble   Shape: own tasks, their edges in and out
//! Firable             rounds of (exchange): can each task be fired at all?
//! ```
//!
//! The edges from one output port of one task to the tasks of one rank are a *branch*: one
//! message for all of them. A branch has a number on either side, which is its place in the
//! letter from the producer's rank.
//!
//! # Invariants
//! 1. Time and memory are those of a rank's own tasks and edges, but for placements by a
//!    function.
//! 2. Edges into a port are in the order of family, number, port and label of their
//!    producers, whatever the placement.
//! 3. A letter is checked word by word: nothing in it is used before.

use crate::describe::{Description, Port};
use crate::placement::{Placed, PlacementError};
use crate::rule::Rule;
use crate::shape::{
    BranchShape, FamilyShape, InputShape, OutputShape, RemoteShape, Shape, Source, TaskShape,
    Window, name_of,
};
use crate::slot::most_short;
use crate::space::SpaceError;
use crate::word::MOST_EDGES;
use std::fmt;

/// Slots of a branch, unless the port says otherwise: of elements that fit into them, and of
/// longer ones.
const SLOTS_OF_SMALL: u32 = 8;
const SLOTS: u32 = 2;
/// Factor of the slots of a branch from another rank, so that credit, a message of its own, is
/// rarely sent; and the number of slots that a message counts for which does not lie in one.
const SLOTS_BETWEEN_RANKS: u32 = 8;
/// Most branches from one rank to another.
pub const MOST_PLACES: u32 = 1 << 26;
/// More are not worth their memory.
const MOST_SLOTS: u32 = 1 << 16;

/// Why a description is no graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    Space {
        family: String,
        error: SpaceError,
    },
    Placement {
        family: String,
        error: PlacementError,
    },
    /// A family of which nothing says how its tasks are made.
    NoTasks {
        family: String,
    },
    /// A port without any edges in the description.
    Dangling {
        port: String,
    },
    /// Edges between ports of other element types, or between ports that do not exist.
    Mistyped {
        from: String,
        to: String,
    },
    /// A rule that names a port which the family has not.
    Rule {
        family: String,
        rule: Rule,
    },
    OutOfRange {
        producer: String,
        at: Vec<usize>,
        consumers: String,
        extents: Vec<usize>,
    },
    Twice {
        producer: String,
        consumer: String,
    },
    /// More tasks, edges or slots than a rank can number, or edges than a task can count.
    TooMany,
    /// A rank whose description is another one.
    Differs {
        rank: usize,
    },
    /// A rank that tells of edges which the description has not.
    Malformed {
        rank: usize,
        word: usize,
    },
    /// What another rank found.
    Found {
        rank: usize,
        text: String,
    },
    Unfirable {
        task: String,
        rank: usize,
        waits_for: String,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Space { family, error } => write!(f, "family '{family}': {error}"),
            BuildError::Placement { family, error } => write!(f, "family '{family}': {error}"),
            BuildError::NoTasks { family } => write!(
                f,
                "family '{family}' has no tasks (hint: Description::tasks says how they are made)"
            ),
            BuildError::Dangling { port } => write!(
                f,
                "port {port} has no edges (hint: Description::connect, or leave the port out)"
            ),
            BuildError::Mistyped { from, to } => write!(
                f,
                "edges from {from} to {to} (hint: both ports are of this graph, and of one type)"
            ),
            BuildError::Rule { family, rule } => {
                write!(f, "family '{family}' has no port that {rule:?} names")
            }
            BuildError::OutOfRange {
                producer,
                at,
                consumers,
                extents,
            } => write!(
                f,
                "an edge from {producer} to {at:?} of '{consumers}', whose extents are {extents:?}"
            ),
            BuildError::Twice { producer, consumer } => write!(
                f,
                "two edges from {producer} to {consumer} (hint: parallel edges have labels, or \
                 ports of their own)"
            ),
            BuildError::TooMany => write!(
                f,
                "more than 2^32 tasks, edges or slots of one rank, 2^26 output ports whose \
                 messages go from one rank to another, or 2^22 edges into one task"
            ),
            BuildError::Differs { rank } => write!(
                f,
                "rank {rank} describes another graph (hint: all ranks make the same description)"
            ),
            BuildError::Malformed { rank, word } => write!(
                f,
                "rank {rank} tells of edges that the graph has not (word {word} of its letter)"
            ),
            BuildError::Found { rank, text } => write!(f, "{text} (found by rank {rank})"),
            BuildError::Unfirable {
                task,
                rank,
                waits_for,
            } => write!(
                f,
                "nothing can fire {task} of rank {rank}: it waits for {waits_for} (hint: a cycle \
                 begins with messages of `init`, which Description::begins declares)"
            ),
        }
    }
}

impl std::error::Error for BuildError {}

/// What a rank knows of a graph by itself.
pub struct Outline {
    rank: usize,
    ranks: usize,
    families: Vec<FamilyOutline>,
    /// By rank: what it is to know, in words.
    letters: Vec<Vec<u64>>,
}

struct FamilyOutline {
    placed: Placed,
    /// Numbers of the own tasks.
    own: Vec<u64>,
}

/// Words in front of the edges of a branch: family, number and output port of the producer,
/// and how many edges there are.
const BRANCH_WORDS: usize = 4;

impl Outline {
    /// Asks the description about the tasks of a rank.
    ///
    /// # Errors
    /// The description is no graph, as far as this rank sees.
    pub fn new(graph: &Description, rank: usize, ranks: usize) -> Result<Outline, BuildError> {
        if let Some((family, error)) = graph.refused.first().cloned() {
            return Err(BuildError::Space { family, error });
        }
        check_declarations(graph)?;
        let mut families = Vec::new();
        for family in &graph.families {
            let refused = |error| BuildError::Placement {
                family: family.name.clone(),
                error,
            };
            let placed = Placed::new(&family.placement, &family.space, ranks).map_err(refused)?;
            let own = placed.own(rank).map_err(refused)?;
            families.push(FamilyOutline { placed, own });
        }
        let mut outline = Outline {
            rank,
            ranks,
            families,
            letters: vec![Vec::new(); ranks],
        };
        outline.ask_edges(graph)?;
        Ok(outline)
    }

    fn ask_edges(&mut self, graph: &Description) -> Result<(), BuildError> {
        // By rank and input: the edges of the port that is being asked about.
        let mut found: Vec<(usize, u64, u64)> = Vec::new();
        for (family, outline) in self.families.iter().enumerate() {
            let description = &graph.families[family];
            let mut at = vec![0; description.space.extents().len()];
            for number in &outline.own {
                description.space.write_at(*number, &mut at);
                for port in 0..description.outputs.len() {
                    found.clear();
                    let mut wrong = None;
                    for (which, edges) in graph.edges.iter().enumerate() {
                        if edges.from != (family as u32, port as u32) {
                            continue;
                        }
                        if edges.here {
                            let own = &self.families[edges.to.0 as usize].own;
                            found.extend(own.iter().map(|to| (self.rank, which as u64, *to)));
                        }
                        let consumers = &graph.families[edges.to.0 as usize];
                        let placed = &self.families[edges.to.0 as usize].placed;
                        (edges.consumers)(&at, &mut |to| {
                            let Some(consumer) = consumers.space.number(to) else {
                                wrong.get_or_insert_with(|| BuildError::OutOfRange {
                                    producer: name_of_port(graph, family, *number, port),
                                    at: to.into(),
                                    consumers: consumers.name.clone(),
                                    extents: consumers.space.extents().into(),
                                });
                                return;
                            };
                            match placed.owner(to) {
                                Ok(rank) => found.push((rank, which as u64, consumer)),
                                Err(error) => {
                                    wrong.get_or_insert_with(|| BuildError::Placement {
                                        family: consumers.name.clone(),
                                        error,
                                    });
                                }
                            }
                        });
                    }
                    if let Some(wrong) = wrong {
                        return Err(wrong);
                    }
                    found.sort_unstable();
                    check_twice(graph, (family, *number, port), &found)?;
                    for branch in found.chunk_by(|a, b| a.0 == b.0) {
                        let letter = &mut self.letters[branch[0].0];
                        letter.extend([family as u64, *number, port as u64, branch.len() as u64]);
                        letter.extend(branch.iter().flat_map(|(_, edges, to)| [*edges, *to]));
                    }
                }
            }
        }
        Ok(())
    }

    /// What each rank is to get: the branches to it, in words. This rank's own are among
    /// them.
    pub fn letters(&self) -> &[Vec<u64>] {
        &self.letters
    }

    /// The tasks of this rank, once it has the letters of all.
    ///
    /// # Errors
    /// A letter is malformed, or a rank has more tasks or edges than can be numbered.
    pub fn assemble(self, graph: &Description, letters: &[Vec<u64>]) -> Result<Shape, BuildError> {
        Assembly::new(graph, self)?.run(letters)
    }
}

/// Edges that cannot be told apart: same ports, same tasks, same label.
fn check_twice(
    graph: &Description,
    (family, number, port): (usize, u64, usize),
    found: &[(usize, u64, u64)],
) -> Result<(), BuildError> {
    let same = |edges: u64| {
        let edges = &graph.edges[edges as usize];
        (edges.to, edges.label)
    };
    let mut ends: Vec<_> = found
        .iter()
        .map(|(_, edges, to)| (same(*edges), *to))
        .collect();
    ends.sort_unstable();
    match ends.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let ((to, _), consumer) = pair[0];
            let into = &graph.families[to.0 as usize];
            Err(BuildError::Twice {
                producer: name_of_port(graph, family, number, port),
                consumer: format!(
                    "{}.{}",
                    name_of(&into.name, &into.space.at(consumer)),
                    into.inputs[to.1 as usize].name
                ),
            })
        }
    }
}

fn check_declarations(graph: &Description) -> Result<(), BuildError> {
    for edges in &graph.edges {
        let family = |number: u32| graph.families.get(number as usize);
        let from = family(edges.from.0).and_then(|f| f.outputs.get(edges.from.1 as usize));
        let to = family(edges.to.0).and_then(|f| f.inputs.get(edges.to.1 as usize));
        let named = |port: Option<&Port>| match port {
            Some(port) => format!("'{}' of {}", port.name, port.element.name),
            None => "a port that is not there".into(),
        };
        if from.map(|port| port.element.id) != to.map(|port| port.element.id) || from.is_none() {
            return Err(BuildError::Mistyped {
                from: named(from),
                to: named(to),
            });
        }
    }
    for (number, family) in graph.families.iter().enumerate() {
        let number = number as u32;
        if family.make.is_none() {
            return Err(BuildError::NoTasks {
                family: family.name.clone(),
            });
        }
        let dangling = |port: &str| BuildError::Dangling {
            port: format!("'{port}' of family '{}'", family.name),
        };
        for (port, input) in family.inputs.iter().enumerate() {
            let to = (number, port as u32);
            if !graph.edges.iter().any(|edges| edges.to == to) {
                return Err(dangling(&input.name));
            }
        }
        for (port, output) in family.outputs.iter().enumerate() {
            let from = (number, port as u32);
            if !graph.edges.iter().any(|edges| edges.from == from) {
                return Err(dangling(&output.name));
            }
        }
        let has = |port: u32| (port as usize) < family.inputs.len();
        let sound = match &family.rule {
            Rule::Ports(ports) => ports.iter().all(|port| has(*port)),
            Rule::Count { port, .. } => has(*port),
            Rule::All | Rule::Any | Rule::Own => true,
        };
        if !sound {
            return Err(BuildError::Rule {
                family: family.name.clone(),
                rule: family.rule.clone(),
            });
        }
    }
    Ok(())
}

fn name_of_port(graph: &Description, family: usize, number: u64, port: usize) -> String {
    let family = &graph.families[family];
    format!(
        "{}.{}",
        name_of(&family.name, &family.space.at(number)),
        family.outputs[port].name
    )
}

/// A branch that a letter tells of.
struct Told {
    source: Source,
    producer: (u32, u64, u32),
    /// Edges of the description, and own tasks.
    edges: Vec<(u32, u32)>,
}

struct Assembly<'a> {
    graph: &'a Description,
    outline: Outline,
    shape: Shape,
}

impl<'a> Assembly<'a> {
    fn new(graph: &'a Description, outline: Outline) -> Result<Self, BuildError> {
        let mut shape = Shape {
            rank: outline.rank,
            ranks: outline.ranks,
            families: Vec::new(),
            tasks: Vec::new(),
            port_ends: Vec::new(),
            input_types: Vec::new(),
            inputs: Vec::new(),
            branches: Vec::new(),
            consumers: Vec::new(),
            outputs: Vec::new(),
            remotes: Vec::new(),
            from_ranks: Vec::new(),
            to_ranks: vec![Vec::new(); outline.ranks],
            elements: Vec::new(),
        };
        for (number, family) in graph.families.iter().enumerate() {
            let from = small(shape.tasks.len())?;
            let elements = small(shape.elements.len())?;
            let first_type = small(shape.input_types.len())?;
            let types = family.inputs.iter().map(|port| port.element.id);
            shape.input_types.extend(types);
            let types = first_type..small(shape.input_types.len())?;
            shape
                .elements
                .extend(family.outputs.iter().map(|port| port.element.clone()));
            for own in &outline.families[number].own {
                let task = small(shape.tasks.len())?;
                let outputs = small(shape.outputs.len())?;
                for (port, output) in family.outputs.iter().enumerate() {
                    let element = elements + port as u32;
                    shape.outputs.push(OutputShape {
                        task,
                        here: None,
                        remotes: 0..0,
                        element,
                        window: Window::between_ranks(output),
                    });
                }
                shape.tasks.push(TaskShape {
                    family: number as u32,
                    number: *own,
                    inputs: 0..0,
                    ports: 0,
                    types: types.clone(),
                    outputs: outputs..small(shape.outputs.len())?,
                });
            }
            shape.families.push(FamilyShape {
                name: family.name.clone(),
                extents: family.space.extents().into(),
                tasks: from..small(shape.tasks.len())?,
                inputs: family.inputs.iter().map(|port| port.name.clone()).collect(),
                outputs: family
                    .outputs
                    .iter()
                    .map(|port| port.name.clone())
                    .collect(),
                rule: family.rule.clone(),
                begins: family.outputs.iter().map(|port| port.begins).collect(),
                events: family.outputs.iter().map(|port| port.event).collect(),
                elements,
            });
        }
        Ok(Self {
            graph,
            outline,
            shape,
        })
    }

    fn run(mut self, letters: &[Vec<u64>]) -> Result<Shape, BuildError> {
        let mut told = Vec::new();
        for (rank, letter) in letters.iter().enumerate() {
            let first = told.len();
            self.read(rank, letter, &mut told)?;
            self.shape
                .from_ranks
                .push(small(first)?..small(told.len())?);
        }
        self.lay_inputs(&told)?;
        self.lay_branches(&told)?;
        self.lay_remotes()?;
        Ok(self.shape)
    }

    /// The own task of a family with this number.
    fn own(&self, family: usize, number: u64) -> Option<u32> {
        let at = self.outline.families[family]
            .own
            .binary_search(&number)
            .ok()?;
        Some(self.shape.families[family].tasks.start + at as u32)
    }

    fn read(&self, rank: usize, letter: &[u64], told: &mut Vec<Told>) -> Result<(), BuildError> {
        let mut at = 0;
        let mut place = 0;
        while at < letter.len() {
            let read = self.read_branch(rank, place, &letter[at..]);
            let branch = read.ok_or(BuildError::Malformed { rank, word: at })?;
            at += BRANCH_WORDS + 2 * branch.edges.len();
            place += 1;
            told.push(branch);
        }
        Ok(())
    }

    fn read_branch(&self, rank: usize, place: u32, words: &[u64]) -> Option<Told> {
        let (head, rest) = words.split_first_chunk::<BRANCH_WORDS>()?;
        let [family, number, port, count] = *head;
        let description = self.graph.families.get(usize::try_from(family).ok()?)?;
        let port = u32::try_from(port).ok()?;
        description.outputs.get(port as usize)?;
        if number >= description.space.len() || count == 0 {
            return None;
        }
        let family = family as u32;
        let placed = &self.outline.families[family as usize].placed;
        if placed.owner(&description.space.at(number)).ok()? != rank {
            return None;
        }
        let words = rest.get(..usize::try_from(count.checked_mul(2)?).ok()?)?;
        let mut edges = Vec::with_capacity(words.len() / 2);
        for pair in words.chunks_exact(2) {
            let which = u32::try_from(pair[0]).ok()?;
            let declared = self.graph.edges.get(which as usize)?;
            if declared.from != (family, port) {
                return None;
            }
            edges.push((which, self.own(declared.to.0 as usize, pair[1])?));
        }
        let source = match rank == self.outline.rank {
            true => {
                let task = self.own(family as usize, number)?;
                Source::Here(self.shape.tasks[task as usize].outputs.start + port)
            }
            false => Source::Rank {
                rank: rank as u32,
                place,
            },
        };
        Some(Told {
            source,
            producer: (family, number, port),
            edges,
        })
    }

    /// The edges into each task, by port (invariant 2).
    fn lay_inputs(&mut self, told: &[Told]) -> Result<(), BuildError> {
        let mut all = Vec::new();
        for (branch, told) in told.iter().enumerate() {
            for (which, task) in &told.edges {
                let declared = &self.graph.edges[*which as usize];
                all.push(InputShape {
                    task: *task,
                    port: declared.to.1,
                    branch: small(branch)?,
                    producer: told.producer,
                    label: declared.label,
                });
            }
        }
        small(all.len())?;
        all.sort_unstable_by_key(|edge| (edge.task, edge.port, edge.producer, edge.label));
        let mut at = 0;
        for task in 0..self.shape.tasks.len() {
            let family = self.shape.tasks[task].family as usize;
            self.shape.tasks[task].ports = small(self.shape.port_ends.len())?;
            let from = at;
            for port in 0..self.graph.families[family].inputs.len() {
                let here =
                    |edge: &InputShape| edge.task as usize == task && edge.port as usize == port;
                at += all[at..].iter().take_while(|edge| here(edge)).count();
                self.shape.port_ends.push(at as u32);
            }
            if at - from > MOST_EDGES as usize {
                return Err(BuildError::TooMany);
            }
            self.shape.tasks[task].inputs = from as u32..at as u32;
        }
        self.shape.inputs = all;
        Ok(())
    }

    fn lay_branches(&mut self, told: &[Told]) -> Result<(), BuildError> {
        let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); told.len()];
        for (input, edge) in self.shape.inputs.iter().enumerate() {
            consumers[edge.branch as usize].push(input as u32);
        }
        for (branch, (told, consumers)) in told.iter().zip(consumers).enumerate() {
            let from = small(self.shape.consumers.len())?;
            self.shape.consumers.extend(consumers);
            let (family, _, port) = told.producer;
            let element = self.shape.families[family as usize].elements + port;
            let output = &self.graph.families[family as usize].outputs[port as usize];
            let window = match told.source {
                Source::Here(_) => Window::here(output),
                Source::Rank { .. } => Window::between_ranks(output),
            };
            if let Source::Here(output) = told.source {
                self.shape.outputs[output as usize].here = Some(branch as u32);
            }
            self.shape.branches.push(BranchShape {
                source: told.source,
                window,
                consumers: from..small(self.shape.consumers.len())?,
                element,
            });
        }
        let slots = self.shape.branches.iter();
        small(slots.map(|branch| branch.window.slots as usize).sum()).map(drop)
    }

    /// The branches to other ranks, as the own letters tell of them.
    fn lay_remotes(&mut self) -> Result<(), BuildError> {
        let mut all = Vec::new();
        for (rank, letter) in self.outline.letters.iter().enumerate() {
            if rank == self.outline.rank {
                continue;
            }
            let mut at = 0;
            let mut place = 0;
            while at < letter.len() {
                let (family, number, port) = (letter[at], letter[at + 1], letter[at + 2]);
                let task = self.own(family as usize, number);
                let task = task.ok_or(BuildError::Malformed { rank, word: at })?;
                let output = self.shape.tasks[task as usize].outputs.start + port as u32;
                all.push(RemoteShape {
                    rank: rank as u32,
                    place,
                    output,
                });
                at += BRANCH_WORDS + 2 * letter[at + 3] as usize;
                place += 1;
            }
        }
        all.sort_unstable_by_key(|remote| (remote.output, remote.rank));
        for (number, remote) in all.iter().enumerate() {
            let number = small(number)?;
            let remotes = &mut self.shape.outputs[remote.output as usize].remotes;
            match remotes.start == remotes.end {
                true => *remotes = number..number + 1,
                false => remotes.end = number + 1,
            }
            let to_rank = &mut self.shape.to_ranks[remote.rank as usize];
            if to_rank.len() <= remote.place as usize {
                to_rank.resize(remote.place as usize + 1, 0);
            }
            to_rank[remote.place as usize] = number;
            if to_rank.len() > MOST_PLACES as usize {
                return Err(BuildError::TooMany);
            }
        }
        self.shape.remotes = all;
        Ok(())
    }
}

impl Window {
    /// Of a branch within a rank.
    fn here(port: &Port) -> Window {
        let usual = match most_short(&port.element) > 0 {
            true => SLOTS_OF_SMALL,
            false => SLOTS,
        };
        let slots = port.slots.unwrap_or(usual);
        Window {
            slots: slots.clamp(1, MOST_SLOTS).next_power_of_two(),
            long: 1,
        }
    }

    /// Of a branch from another rank.
    fn between_ranks(port: &Port) -> Window {
        let here = Window::here(port);
        if port.slots.is_some() || most_short(&port.element) == 0 {
            return here;
        }
        Window {
            slots: here.slots * SLOTS_BETWEEN_RANKS,
            long: SLOTS_BETWEEN_RANKS,
        }
    }
}

fn small(number: usize) -> Result<u32, BuildError> {
    u32::try_from(number).map_err(|_| BuildError::TooMany)
}

#[cfg(test)]
mod tests;
