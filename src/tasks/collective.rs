//! Collectives as nodes of a task graph: a task on each rank that begins a call that does not
//! wait, and fires again when it has ended.
//!
//! ```text
//! tasks of this rank -> input -> begin(communicator, elements) -> future
//!                                future ends -> event -> output -> tasks of this rank
//! ```
//!
//! # Invariants
//! 1. A node begins its calls on communicators of its own, one after the other: the calls that
//!    meet are of the same run and firing, whatever else ranks begin in between. Runs that are
//!    under way at once have a communicator each.

use crate::comm::Communicator;
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_tasks::context::Context;
use osier_tasks::describe::{Description, Event, In, Out};
use osier_tasks::placement::Placement;
use osier_tasks::rule::Rule;
use osier_tasks::task::{Next, Task, TaskError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A collective as a node of a graph: a task on each rank, with the edges that the description
/// gives it.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// use osier::task::{Context, Description, Graph, Next, Node, Placement, Rule};
///
/// // Four tasks, of which each knows the sum of the squares of all in the end.
/// let mut squares = Description::new();
/// let cells = squares.family("cell", &[4], Placement::Block);
/// let (square, sum) = (squares.output::<u64>(cells, "square"), squares.input(cells, "sum"));
/// squares.begins(square);
/// let all = Node::new("sum of squares", 1).add(&mut squares, &comm, |comm, own: Vec<u64>| {
///     let own = vec![own.iter().sum::<u64>()];
///     let request = comm.iallreduce(own, vec![0u64], osier::Op::Sum)?;
///     Ok(async { request.await.map(|(_, sum)| sum) })
/// })?;
/// squares.connect_here(square, all.input);
/// squares.connect_here(all.output, sum);
/// struct Cell {
///     number: u64,
///     square: osier::task::Out<u64>,
///     sum: osier::task::In<u64>,
/// }
/// impl osier::task::Task for Cell {
///     fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, osier::task::TaskError> {
///         cx.put(self.square, &[self.number * self.number]);
///         Ok(Next::Wait)
///     }
///     fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, osier::task::TaskError> {
///         assert_eq!(cx.get(self.sum), Some(&[14][..]));
///         Ok(Next::Done)
///     }
/// }
/// squares.tasks(cells, move |[i]: [usize; 1]| Cell { number: i as u64, square, sum });
/// let graph = Graph::build(&comm, squares)?;
/// graph.run()?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    firings: u64,
    at_once: u32,
}

/// Ports of a [`Node`]: on each rank, of its task there.
#[derive(Debug)]
pub struct NodePorts<T, U> {
    /// A firing takes one message from each edge, in the order of the producers: what the call
    /// begins with.
    pub input: In<T>,
    /// What it ended with.
    pub output: Out<U>,
}

impl<T, U> Clone for NodePorts<T, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, U> Copy for NodePorts<T, U> {}

impl Node {
    /// A node that fires this often in a run.
    pub fn new(name: &str, firings: u64) -> Node {
        Node {
            name: name.into(),
            firings,
            at_once: 1,
        }
    }

    /// This many runs of the graph may be under way at once (1 unless said), each of which costs
    /// a communicator.
    pub fn at_once(mut self, runs: u32) -> Node {
        self.at_once = runs.max(1);
        self
    }

    /// Adds the node to a graph that is to be built on this communicator. `begin` begins a call
    /// that does not wait, with the elements of the messages of this rank; its future returns
    /// the elements that go on. Collective.
    ///
    /// # Errors
    /// As [`Communicator::dup`].
    #[track_caller]
    pub fn add<T, U, F>(
        self,
        graph: &mut Description,
        comm: &Communicator,
        begin: impl Fn(&Communicator, Vec<T>) -> Result<F> + Send + Sync + 'static,
    ) -> Result<NodePorts<T, U>>
    where
        T: Datatype,
        U: Datatype,
        F: Future<Output = Result<Vec<U>>> + Send + 'static,
    {
        let channels: Result<Vec<_>> = (0..self.at_once).map(|_| comm.dup()).collect();
        let channels: Arc<[Communicator]> = channels?.into();
        let family = graph.family(&self.name, &[comm.size()], Placement::Block);
        let (input, output) = (graph.input(family, "input"), graph.output(family, "output"));
        let ended = graph.event(family, "ended");
        graph.rule(family, Rule::Ports(vec![input.number()]));
        graph.limit_runs(self.at_once);
        let (begin, firings) = (Arc::new(begin), self.firings);
        graph.tasks(family, move |[_]: [usize; 1]| Firing {
            channels: channels.clone(),
            begin: begin.clone(),
            call: None,
            left: firings,
            input,
            output,
            ended,
        });
        Ok(NodePorts { input, output })
    }
}

type Call<U> = Pin<Box<dyn Future<Output = Result<Vec<U>>> + Send>>;

/// The task of a node on one rank.
struct Firing<T, U, B> {
    channels: Arc<[Communicator]>,
    begin: Arc<B>,
    call: Option<(Call<U>, Waker)>,
    left: u64,
    input: In<T>,
    output: Out<U>,
    ended: Event,
}

impl<T, U, B, F> Task for Firing<T, U, B>
where
    T: Datatype,
    U: Datatype,
    B: Fn(&Communicator, Vec<T>) -> Result<F> + Send + Sync + 'static,
    F: Future<Output = Result<Vec<U>>> + Send + 'static,
{
    fn init(&mut self, _: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        Ok(match self.left {
            0 => Next::Done,
            _ => Next::Wait,
        })
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let (mut call, waker) = match self.call.take() {
            Some(call) => call,
            None => {
                let messages = cx.each(self.input);
                let elements = messages.flat_map(|message| message.elements.iter().copied());
                let elements = elements.collect();
                let channel = (cx.run() as usize - 1) % self.channels.len();
                let call = (self.begin)(&self.channels[channel], elements)?;
                (
                    Box::pin(call) as Call<U>,
                    Waker::from(cx.signal(self.ended)),
                )
            }
        };
        match call
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
        {
            Poll::Pending => {
                self.call = Some((call, waker));
                Ok(Next::When(Rule::Ports(vec![self.ended.number()])))
            }
            Poll::Ready(result) => {
                cx.give(self.output, result?);
                self.left -= 1;
                Ok(match self.left {
                    0 => Next::Done,
                    _ => Next::When(Rule::Ports(vec![self.input.number()])),
                })
            }
        }
    }
}
