//! Shape: the tasks of one rank and their edges, as they were built. Immutable.

use crate::describe::Element;
use crate::rule::Rule;
use std::any::TypeId;
use std::ops::Range;

/// A family on one rank.
#[derive(Clone, Debug)]
pub struct FamilyShape {
    pub name: String,
    pub extents: Vec<usize>,
    pub tasks: Range<u32>,
    /// Its input ports.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub rule: Rule,
    /// Of its output ports: whether `init` puts messages there.
    pub begins: Vec<bool>,
    /// Of its output ports: whether signals put messages there.
    pub events: Vec<bool>,
    /// Where the elements of its output ports begin in [`Shape::elements`].
    pub elements: u32,
}

/// A task of this rank.
#[derive(Clone, Debug)]
pub struct TaskShape {
    pub family: u32,
    /// In its family.
    pub number: u64,
    /// Edges into it.
    pub inputs: Range<u32>,
    /// Where the ends of its input ports are in [`Shape::port_ends`].
    pub ports: u32,
    /// Types of their elements, in [`Shape::input_types`].
    pub types: Range<u32>,
    /// Its output ports.
    pub outputs: Range<u32>,
}

/// An edge into a task of this rank.
#[derive(Clone, Debug)]
pub struct InputShape {
    pub task: u32,
    pub port: u32,
    pub branch: u32,
    /// Family, number and output port of the producer.
    pub producer: (u32, u64, u32),
    pub label: u32,
}

/// Where a branch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An output port of this rank.
    Here(u32),
    /// Another rank, with its place in that rank's letter.
    Rank { rank: u32, place: u32 },
}

/// How many messages of a branch may be unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// A power of two.
    pub slots: u32,
    /// As how many of these a message counts that does not lie in its slot; at most one more than
    /// half of them, so that credit that is not sent yet never keeps one back.
    pub long: u32,
}

impl Window {
    /// As how many slots a message counts.
    #[inline]
    pub fn weight(self, is_long: bool) -> u32 {
        if is_long { self.long } else { 1 }
    }
}

/// The edges from an output port to the tasks of this rank.
#[derive(Clone, Debug)]
pub struct BranchShape {
    pub source: Source,
    pub window: Window,
    /// In [`Shape::consumers`].
    pub consumers: Range<u32>,
    /// Of its messages, in [`Shape::elements`].
    pub element: u32,
}

/// An output port of a task of this rank.
#[derive(Clone, Debug)]
pub struct OutputShape {
    pub task: u32,
    /// The branch to this rank.
    pub here: Option<u32>,
    /// Branches to others, in [`Shape::remotes`].
    pub remotes: Range<u32>,
    pub element: u32,
    /// Of its branches to other ranks.
    pub window: Window,
}

/// A branch to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteShape {
    pub rank: u32,
    /// In the letter to it.
    pub place: u32,
    pub output: u32,
}

/// The tasks of one rank and their edges. Immutable.
#[derive(Clone, Debug)]
pub struct Shape {
    pub rank: usize,
    pub ranks: usize,
    pub families: Vec<FamilyShape>,
    pub tasks: Vec<TaskShape>,
    pub port_ends: Vec<u32>,
    /// Of the input ports of all families.
    pub input_types: Vec<TypeId>,
    pub inputs: Vec<InputShape>,
    pub branches: Vec<BranchShape>,
    /// Edges into tasks, by branch.
    pub consumers: Vec<u32>,
    pub outputs: Vec<OutputShape>,
    pub remotes: Vec<RemoteShape>,
    /// By rank: the branches from it, by their place in its letter.
    pub from_ranks: Vec<Range<u32>>,
    /// By rank: the branches to it, by their place in the letter.
    pub to_ranks: Vec<Vec<u32>>,
    /// Of the output ports of all families.
    pub elements: Vec<Element>,
}

impl Shape {
    /// Coordinates of a task.
    pub fn at(&self, task: u32) -> Vec<usize> {
        let task = &self.tasks[task as usize];
        self.coordinates(task.family, task.number)
    }

    /// Coordinates of a task of any rank.
    pub fn coordinates(&self, family: u32, mut number: u64) -> Vec<usize> {
        let extents = &self.families[family as usize].extents;
        let mut at = vec![0; extents.len()];
        for (at, extent) in at.iter_mut().zip(extents).rev() {
            *at = (number % *extent as u64) as usize;
            number /= *extent as u64;
        }
        at
    }

    /// Name of a task in messages.
    pub fn name(&self, task: u32) -> String {
        let shape = &self.tasks[task as usize];
        self.name_of(shape.family, shape.number)
    }

    /// Name of a task of any rank in messages.
    pub fn name_of(&self, family: u32, number: u64) -> String {
        let name = &self.families[family as usize].name;
        name_of(name, &self.coordinates(family, number))
    }

    /// An edge into a task in messages: `'left' (from cell[2, 1].right)`.
    pub fn name_of_input(&self, input: u32) -> String {
        let edge = &self.inputs[input as usize];
        let task = &self.tasks[edge.task as usize];
        let (family, number, port) = edge.producer;
        format!(
            "'{}' (from {}.{})",
            self.families[task.family as usize].inputs[edge.port as usize],
            self.name_of(family, number),
            self.families[family as usize].outputs[port as usize]
        )
    }

    /// Of an edge that is that of an event: the output port, of the task that it leads to.
    pub fn event_of(&self, input: u32) -> Option<u32> {
        let edge = &self.inputs[input as usize];
        let (family, _, port) = edge.producer;
        let output = self.tasks[edge.task as usize].outputs.start + port;
        self.families[family as usize].events[port as usize].then_some(output)
    }

    /// Whether any task may wait for an event.
    pub fn has_events(&self) -> bool {
        self.families
            .iter()
            .any(|family| family.events.contains(&true))
    }

    /// The edges into a port of a task.
    pub fn edges_of(&self, task: u32, port: u32) -> Range<u32> {
        self.edges_into(&self.tasks[task as usize], port)
    }

    /// The same of a task that was looked up.
    #[inline]
    pub fn edges_into(&self, task: &TaskShape, port: u32) -> Range<u32> {
        let end = self.port_ends[(task.ports + port) as usize];
        let from = match port {
            0 => task.inputs.start,
            _ => self.port_ends[(task.ports + port) as usize - 1],
        };
        from..end
    }
}

/// The name of a task in messages: `cell[3, 1]`.
pub fn name_of(family: &str, at: &[usize]) -> String {
    format!("{family}{at:?}")
}
