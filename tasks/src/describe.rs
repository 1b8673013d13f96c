//! Descriptions of graphs: families of tasks, their ports, edges between them. Pure.
//!
//! Every rank makes the same description. Nothing of it grows with the number of tasks:
//! spaces, placements and edges are functions, which a rank asks about its own tasks.

use crate::layout::Consumers;
use crate::placement::Placement;
use crate::rule::Rule;
use crate::space::{Space, SpaceError};
use crate::task::Task;
use osier_datatype::{Datatype, Layout};
use std::any::TypeId;
use std::marker::PhantomData;

/// What a message of a port consists of.
#[derive(Clone, Debug)]
pub struct Element {
    pub bytes: usize,
    pub align: usize,
    /// A value is its packed form.
    pub dense: bool,
    pub layout: Layout,
    pub name: &'static str,
    pub id: TypeId,
}

impl Element {
    pub fn of<T: Datatype>() -> Element {
        Element {
            bytes: size_of::<T>(),
            align: align_of::<T>(),
            dense: T::DENSE,
            layout: T::layout(),
            name: std::any::type_name::<T>(),
            id: TypeId::of::<T>(),
        }
    }
}

/// A port of each task of a family.
#[derive(Clone, Debug)]
pub struct Port {
    pub name: String,
    pub element: Element,
    /// Of an output: messages of it that one rank keeps until its consumers have read them.
    pub slots: Option<u32>,
    /// Of an output: `init` puts messages there.
    pub begins: bool,
    /// Of an output: signals put messages there.
    pub event: bool,
}

/// Makes a task by its coordinates.
pub type Make = dyn Fn(&[usize]) -> Box<dyn Task> + Send + Sync;
/// A number of each task by its coordinates.
pub type Number = dyn Fn(&[usize]) -> i32 + Send + Sync;

/// What a task waits for besides messages, as its family tells, for reports.
pub struct Awaited {
    /// In words.
    pub text: String,
    /// Ranks of the job that could end the wait for an event.
    pub peers: Vec<u32>,
    /// Nothing else raises the event.
    pub certain: bool,
}

/// What the task of a rank waits for in a run, by its number.
pub type Explain = dyn Fn(u32) -> Awaited + Send + Sync;

/// Told that this rank takes no part in a run that it has opened, by its number.
pub type GivenUp = dyn Fn(u32) + Send + Sync;

/// Tasks of one kind, over the coordinates of a space.
pub struct FamilyDescription {
    pub name: String,
    pub space: Space,
    pub placement: Placement,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub rule: Rule,
    pub make: Option<Box<Make>>,
    pub priority: Option<Box<Number>>,
    /// Of a family with one task on each rank.
    pub explain: Option<Box<Explain>>,
    pub given_up: Option<Box<GivenUp>>,
}

/// Edges from an output port of each task of one family to an input port of tasks of
/// another, or the same.
pub struct Edges {
    pub from: (u32, u32),
    pub to: (u32, u32),
    pub label: u32,
    /// To all tasks of the consumers' family on the producer's rank, whatever `consumers` says.
    pub here: bool,
    pub consumers: Box<Consumers>,
}

impl Edges {
    /// Tells them from parallel edges between the same ports.
    pub fn label(&mut self, label: u32) -> &mut Self {
        self.label = label;
        self
    }
}

/// A family, of the description that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(pub(crate) u32);

/// An output port, whose messages are sequences of `T`.
#[derive(Debug)]
pub struct Out<T>(pub(crate) u32, pub(crate) u32, PhantomData<fn(T)>);

/// An input port, whose messages are sequences of `T`.
#[derive(Debug)]
pub struct In<T>(pub(crate) u32, pub(crate) u32, PhantomData<fn() -> T>);

impl<T> Out<T> {
    /// Its number among the outputs of its family.
    pub fn number(self) -> u32 {
        self.1
    }
}

impl<T> In<T> {
    /// Its number among the inputs of its family, for [`Rule`]s.
    pub fn number(self) -> u32 {
        self.1
    }
}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

/// An event port, for which tasks wait by its number: [`Description::event`].
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub(crate) output: Out<u8>,
    input: In<u8>,
}

impl Event {
    /// Its number among the inputs of its family, for [`Rule`]s.
    pub fn number(self) -> u32 {
        self.input.1
    }
}

/// Events of a port that are kept: one of the firing, and one that has come since.
const EVENTS: u32 = 2;

/// A graph as it is described. What is wrong with it is found when it is built.
#[derive(Default)]
pub struct Description {
    pub(crate) families: Vec<FamilyDescription>,
    pub(crate) edges: Vec<Edges>,
    /// Extents that are no space, with their family's name.
    pub(crate) refused: Vec<(String, SpaceError)>,
    /// Most runs at once, where that is limited.
    pub(crate) most_runs: Option<u32>,
    pub(crate) exact: bool,
}

impl Description {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family: a task for each coordinate below `extents`.
    pub fn family(&mut self, name: &str, extents: &[usize], placement: Placement) -> Family {
        let space = Space::new(extents).unwrap_or_else(|e| {
            self.refused.push((name.into(), e));
            Space::new(&[0]).expect("an empty space")
        });
        self.families.push(FamilyDescription {
            name: name.into(),
            space,
            placement,
            inputs: Vec::new(),
            outputs: Vec::new(),
            rule: Rule::default(),
            make: None,
            priority: None,
            explain: None,
            given_up: None,
        });
        Family(self.families.len() as u32 - 1)
    }

    /// Adds an output port to the tasks of a family.
    pub fn output<T: Datatype>(&mut self, family: Family, name: &str) -> Out<T> {
        let outputs = &mut self.families[family.0 as usize].outputs;
        outputs.push(port::<T>(name));
        Out(family.0, outputs.len() as u32 - 1, PhantomData)
    }

    /// Adds an input port to the tasks of a family.
    pub fn input<T: Datatype>(&mut self, family: Family, name: &str) -> In<T> {
        let inputs = &mut self.families[family.0 as usize].inputs;
        inputs.push(port::<T>(name));
        In(family.0, inputs.len() as u32 - 1, PhantomData)
    }

    /// Adds an event port to the tasks of a family: a firing waits there for a
    /// [`Signal`](crate::event::Signal), which anything may raise.
    pub fn event(&mut self, family: Family, name: &str) -> Event {
        let (output, input) = (self.output(family, name), self.input(family, name));
        self.slots(output, EVENTS);
        self.begins(output);
        self.output_mut(output).event = true;
        self.connect_by(output, input, Box::new(|at, tell| tell(at)));
        Event { output, input }
    }

    /// No more runs than this are under way at once.
    pub fn limit_runs(&mut self, most: u32) {
        let limit = self.most_runs.unwrap_or(u32::MAX);
        self.most_runs = Some(limit.min(most.max(1)));
    }

    fn output_mut<T>(&mut self, port: Out<T>) -> &mut Port {
        &mut self.families[port.0 as usize].outputs[port.1 as usize]
    }

    /// How many messages of this port a rank keeps for consumers that have not read them;
    /// at least 1. A message beyond them waits at its producer, which does not fire again
    /// before it has left. By default 8, or 2 where an element has more than 32 bytes; of messages
    /// of at most 32 bytes to another rank 64.
    pub fn slots<T>(&mut self, port: Out<T>, slots: u32) {
        self.output_mut(port).slots = Some(slots.max(1));
    }

    /// Says that `init` puts messages there: they break cycles.
    pub fn begins<T>(&mut self, port: Out<T>) {
        self.output_mut(port).begins = true;
    }

    /// Adds edges: from the output port of each task to the input port of the tasks whose
    /// coordinates `consumers` returns for it. Asked on the producer's rank only.
    pub fn connect<T: Datatype, const N: usize, const M: usize, I>(
        &mut self,
        from: Out<T>,
        to: In<T>,
        consumers: impl Fn([usize; N]) -> I + Send + Sync + 'static,
    ) -> &mut Edges
    where
        I: IntoIterator<Item = [usize; M]>,
    {
        let consumers = move |at: &[usize], tell: &mut dyn FnMut(&[usize])| {
            for to in consumers(array(at)) {
                tell(&to);
            }
        };
        self.connect_by(from, to, Box::new(consumers))
    }

    /// Adds edges from the output port of each task to the input port of each task of the other
    /// family that is on the same rank.
    pub fn connect_here<T: Datatype>(&mut self, from: Out<T>, to: In<T>) -> &mut Edges {
        let edges = self.connect_by(from, to, Box::new(|_, _| {}));
        edges.here = true;
        edges
    }

    /// Adds edges of a shape of [`crate::layout`], or of any function over slices.
    pub fn connect_by<T: Datatype>(
        &mut self,
        from: Out<T>,
        to: In<T>,
        consumers: Box<Consumers>,
    ) -> &mut Edges {
        self.edges.push(Edges {
            from: (from.0, from.1),
            to: (to.0, to.1),
            label: 0,
            here: false,
            consumers,
        });
        self.edges.last_mut().expect("just added")
    }

    /// Says how the tasks of a family are made, on the rank that has them, for each run.
    pub fn tasks<T: Task, const N: usize>(
        &mut self,
        family: Family,
        make: impl Fn([usize; N]) -> T + Send + Sync + 'static,
    ) {
        let make = move |at: &[usize]| Box::new(make(array(at))) as Box<dyn Task>;
        self.families[family.0 as usize].make = Some(Box::new(make));
    }

    /// The firing rule that the tasks of a family begin with.
    pub fn rule(&mut self, family: Family, rule: Rule) {
        self.families[family.0 as usize].rule = rule;
    }

    /// The priority that each task of a family begins with: higher ones run first, and those
    /// below 0 when nothing else is there.
    pub fn priority<const N: usize>(
        &mut self,
        family: Family,
        priority: impl Fn([usize; N]) -> i32 + Send + Sync + 'static,
    ) {
        let priority = move |at: &[usize]| priority(array(at));
        self.families[family.0 as usize].priority = Some(Box::new(priority));
    }

    /// Says how reports tell what the one task of each rank waits for; asked by threads without
    /// work, while the task waits. For layers above.
    #[doc(hidden)]
    pub fn explain(
        &mut self,
        family: Family,
        explain: impl Fn(u32) -> Awaited + Send + Sync + 'static,
    ) {
        self.families[family.0 as usize].explain = Some(Box::new(explain));
    }

    /// Says what is to be done where this rank takes no part in a run that it has opened. For
    /// layers above.
    #[doc(hidden)]
    pub fn on_given_up(&mut self, family: Family, f: impl Fn(u32) + Send + Sync + 'static) {
        self.families[family.0 as usize].given_up = Some(Box::new(f));
    }

    /// Of the tasks of a rank that are ready, one of the highest priority runs, the oldest first:
    /// by one queue for all workers. Otherwise only the signs of priorities count, and each worker
    /// has queues of its own.
    pub fn exact_priorities(&mut self) {
        self.exact = true;
    }

    /// A number that descriptions which differ hardly share: of names, spaces, ports, types
    /// and edges between ports. Ranks compare it.
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes.iter().chain(&(bytes.len() as u32).to_le_bytes()) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        };
        for family in &self.families {
            add(family.name.as_bytes());
            for extent in family.space.extents() {
                add(&(*extent as u64).to_le_bytes());
            }
            for ports in [&family.inputs, &family.outputs] {
                add(&(ports.len() as u64).to_le_bytes());
                for port in ports {
                    add(port.name.as_bytes());
                    add(&port.element.layout.signature().hash().to_le_bytes());
                    add(&port.slots.unwrap_or(0).to_le_bytes());
                }
            }
        }
        for edges in &self.edges {
            for number in [
                edges.from.0,
                edges.from.1,
                edges.to.0,
                edges.to.1,
                edges.label,
                edges.here.into(),
            ] {
                add(&number.to_le_bytes());
            }
        }
        hash
    }
}

fn port<T: Datatype>(name: &str) -> Port {
    Port {
        name: name.into(),
        element: Element::of::<T>(),
        slots: None,
        begins: false,
        event: false,
    }
}

/// Coordinates as an array.
///
/// # Panics
/// The function was written for another number of dimensions than the space has.
fn array<const N: usize>(at: &[usize]) -> [usize; N] {
    at.try_into().unwrap_or_else(|_| {
        panic!(
            "a function of {N} coordinates for a family of {} (hint: as many as its extents)",
            at.len()
        )
    })
}
