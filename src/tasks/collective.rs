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
//! 2. A call that only futures of its communicator are to wake ends by messages of other ranks
//!    alone: as many of these futures have the task's waker as there are holders of its signal
//!    besides the task and the channel.
//! 3. A task that ends before its last call has ended closes the channel: other ranks would wait
//!    for it in that call, or a later one.

use crate::comm::Communicator;
use osier_datatype::Datatype;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::suspend::Awaits;
use osier_tasks::context::Context;
use osier_tasks::describe::{Awaited, Description, Event, In, Out};
use osier_tasks::event::Signal;
use osier_tasks::placement::Placement;
use osier_tasks::rule::Rule;
use osier_tasks::task::{Next, Task, TaskError};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A collective as a node of a graph: a task on each rank, with the edges that the description
/// gives it. Where one of these tasks fails, the calls of the others fail, too, and so do those of
/// later runs: the node's communicator is closed.
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
        let channels = (0..self.at_once).map(|_| comm.dup().map(Channel::new));
        let channels: Arc<[Channel]> = channels.collect::<Result<_>>()?;
        let family = graph.family(&self.name, &[comm.size()], Placement::Block);
        let (input, output) = (graph.input(family, "input"), graph.output(family, "output"));
        let ended = graph.event(family, "ended");
        graph.rule(family, Rule::Ports(vec![input.number()]));
        graph.limit_runs(self.at_once);
        let told = channels.clone();
        graph.explain(family, move |run| channel_of(&told, run).awaited());
        // Invariant 3.
        let told = channels.clone();
        graph.on_given_up(family, move |run| channel_of(&told, run).close());
        let (begin, firings) = (Arc::new(begin), self.firings);
        graph.tasks(family, move |[_]: [usize; 1]| Firing {
            channels: channels.clone(),
            run: 0,
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

/// The communicator of a node for a run, and its calls there, for reports.
struct Channel {
    /// `None`: a run of this rank has failed (invariant 3).
    comm: Mutex<Option<Communicator>>,
    /// In this run.
    begun: AtomicU64,
    /// Fires the task when the call that is under way has ended.
    under_way: Mutex<Option<Signal>>,
}

/// That of a run, by its number.
fn channel_of(channels: &[Channel], run: u32) -> &Channel {
    &channels[(run as usize).wrapping_sub(1) % channels.len()]
}

/// Of a channel, of its task and of a description: who holds the signal of a call besides the
/// futures that it awaits.
const HOLDERS: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    fn new(comm: Communicator) -> Channel {
        Channel {
            comm: Mutex::new(Some(comm)),
            begun: AtomicU64::new(0),
            under_way: Mutex::default(),
        }
    }

    fn under_way(&self) -> MutexGuard<'_, Option<Signal>> {
        lock(&self.under_way)
    }

    /// The communicator.
    ///
    /// # Errors
    /// It was closed.
    fn comm(&self) -> Result<Communicator> {
        lock(&self.comm).clone().ok_or_else(|| {
            let text = "a node of which a run has failed on this rank (hint: build the graph anew)";
            Error::new(ErrorKind::Closed, text)
        })
    }

    fn close(&self) {
        let comm = lock(&self.comm).take();
        drop(comm);
    }

    /// What the node waits for on this rank.
    fn awaited(&self) -> Awaited {
        let (signal, begun) = (self.under_way().clone(), self.begun.load(Ordering::Relaxed));
        let Some(signal) = signal else {
            return Awaited {
                text: format!("call {} has not begun here", begun + 1),
                peers: Vec::new(),
                certain: true,
            };
        };
        let waker = Waker::from(signal.clone());
        let Ok(comm) = self.comm() else {
            return Awaited {
                text: format!("call {begun} has failed"),
                peers: Vec::new(),
                certain: false,
            };
        };
        let runs = comm.runs_on();
        let by = runs
            .core()
            .with(runs.lane(), |lane| lane.awaited_by(&waker));
        // Invariant 2.
        let only = by.futures > 0 && signal.holders() == HOLDERS + by.futures;
        let mut peers: Vec<u32> = by.asked.iter().filter_map(|asked| asked.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let ranks: Vec<String> = peers.iter().map(u32::to_string).collect();
        let what = by.collective.filter(|name| !name.is_empty());
        let what = what.map_or_else(String::new, |name| format!(", {name},"));
        let text = match ranks.len() {
            0 => format!("call {begun}{what} is under way"),
            1 => format!("call {begun}{what} waits for rank {}", ranks[0]),
            _ => format!("call {begun}{what} waits for ranks {}", ranks.join(", ")),
        };
        Awaited {
            text,
            certain: only && !peers.is_empty(),
            peers,
        }
    }
}

type Call<U> = Pin<Box<dyn Future<Output = Result<Vec<U>>> + Send>>;

/// The task of a node on one rank.
struct Firing<T, U, B> {
    channels: Arc<[Channel]>,
    /// The run.
    run: u32,
    begin: Arc<B>,
    call: Option<(Call<U>, Waker)>,
    left: u64,
    input: In<T>,
    output: Out<U>,
    ended: Event,
}

impl<T, U, B> Drop for Firing<T, U, B> {
    fn drop(&mut self) {
        if self.run == 0 {
            return;
        }
        let channel = channel_of(&self.channels, self.run);
        *channel.under_way() = None;
        self.call = None;
        if self.left > 0 {
            channel.close();
        }
    }
}

impl<T, U, B, F> Task for Firing<T, U, B>
where
    T: Datatype,
    U: Datatype,
    B: Fn(&Communicator, Vec<T>) -> Result<F> + Send + Sync + 'static,
    F: Future<Output = Result<Vec<U>>> + Send + 'static,
{
    fn init(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        self.run = cx.run();
        channel_of(&self.channels, self.run)
            .begun
            .store(0, Ordering::Relaxed);
        Ok(match self.left {
            0 => Next::Done,
            _ => Next::Wait,
        })
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> std::result::Result<Next, TaskError> {
        let channel = channel_of(&self.channels, self.run);
        let (mut call, waker) = match self.call.take() {
            Some(call) => call,
            None => {
                let messages = cx.each(self.input);
                let elements = messages.flat_map(|message| message.elements.iter().copied());
                let elements = elements.collect();
                channel.begun.fetch_add(1, Ordering::Relaxed);
                let call = (self.begin)(&channel.comm()?, elements)?;
                let signal = cx.signal(self.ended);
                *channel.under_way() = Some(signal.clone());
                (Box::pin(call) as Call<U>, Waker::from(signal))
            }
        };
        // The workers of the run make progress for it.
        let awaits = Awaits::begin();
        let polled = call
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker));
        drop(awaits);
        match polled {
            Poll::Pending => {
                self.call = Some((call, waker));
                Ok(Next::When(Rule::Ports(vec![self.ended.number()])))
            }
            Poll::Ready(result) => {
                *channel.under_way() = None;
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
