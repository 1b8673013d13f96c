//! Task graphs on the ranks of a communicator; the runtime is a crate below this one.

use crate::comm::Communicator;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_tasks::describe::Description;
use osier_tasks::graph::{self, Ranks, Report};
use osier_tasks::linked;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A graph of tasks over the ranks of a communicator: built once, run as often as is wanted.
///
/// All ranks describe the same graph; each has the tasks that placement gives it.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::task::{Context, Description, Graph, Next, Placement};
///
/// // A row of tasks, each of which adds its number to what comes from the left.
/// let mut row = Description::new();
/// let cells = row.family("cell", &[5], Placement::Block);
/// let (right, left) = (row.output::<u64>(cells, "right"), row.input::<u64>(cells, "left"));
/// row.connect(right, left, |[i]: [usize; 1]| (i < 4).then_some([i + 1]));
/// row.tasks(cells, move |[i]: [usize; 1]| {
///     move |cx: &mut Context<'_>| {
///         let sum = cx.get(left).map_or(0, |message| message[0]) + i as u64;
///         cx.put(right, &[sum]);
///         if i == 4 {
///             assert_eq!(sum, 10);
///         }
///         Ok(Next::Done)
///     }
/// });
/// let graph = Graph::build(&comm, row)?;
/// let report = graph.run()?;
/// assert_eq!(report.tasks, if comm.rank() == 0 { 3 } else { 2 });
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct Graph {
    graph: graph::Graph,
    /// Of the graph alone.
    comm: Communicator,
    /// Runs begun so far; held by the one that runs.
    runs: Mutex<u16>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, edges) = (self.tasks(), self.graph.shape().inputs.len());
        write!(f, "Graph {{ {tasks} tasks here, {edges} edges into them }}")
    }
}

impl Graph {
    /// Builds a graph: asks placement and edges about this rank's tasks, and tells the other
    /// ranks of the edges that lead there. Collective.
    ///
    /// Time and memory are those of a rank's own tasks and edges, unless placement is a
    /// function, which is asked about all.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], the same on all ranks, if the description is no graph:
    /// edges out of range, twice or between other types, ports without edges, tasks placed on
    /// ranks that do not exist or that nothing can fire. Of kind
    /// [`ErrorKind::Communicator`], if it is an intercommunicator. As
    /// [`Communicator::alltoallv`].
    #[track_caller]
    pub fn build(comm: &Communicator, description: Description) -> Result<Graph> {
        let own = comm.dup()?;
        own.core().with(own.lane(), |lane| lane.becomes_graphs());
        let mut ranks = OverCommunicator {
            comm: &own,
            failed: None,
        };
        let built = graph::Graph::build(description, &mut ranks);
        if let Some(e) = ranks.failed {
            return Err(e.context("building a graph"));
        }
        let built = built.map_err(|e| Error::new(ErrorKind::Argument, e.to_string()));
        let graph = own.reported(built)?;
        Ok(Graph {
            graph,
            comm: own,
            runs: Mutex::new(0),
        })
    }

    /// Number of tasks on this rank.
    pub fn tasks(&self) -> usize {
        self.graph.shape().tasks.len()
    }

    /// Runs the graph: makes this rank's tasks, and runs them until all have ended. Other ranks
    /// do the same, each when it comes to it; a rank returns when its own tasks have ended and
    /// what they sent has left.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Task`], if a task of this rank returned an error or panicked, or
    /// needed the messages of one that did, on whichever rank, or of one that has ended without
    /// having sent them: the first that did, with its coordinates and rank. Tasks that do not
    /// depend on it have run. Calls that wait, this one too, are such errors in a task.
    #[track_caller]
    pub fn run(&self) -> Result<Report> {
        self.run_by(1)
    }

    /// As [`Graph::run`], by this number of workers, of which the calling thread is one; 0 is
    /// taken for 1.
    ///
    /// # Errors
    /// As [`Graph::run`].
    #[track_caller]
    pub fn run_by(&self, workers: usize) -> Result<Report> {
        self.comm.reported(self.comm.may_wait("run"))?;
        // Another thread's run of this graph goes first.
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs = runs.wrapping_add(1);
        let (core, lane) = (self.comm.core(), &self.comm.0.lane);
        let ended = linked::run(&self.graph, core, lane, *runs, workers);
        let ended = ended.map_err(|failure| Error::new(ErrorKind::Task, failure.to_string()));
        self.comm.reported(ended)
    }
}

/// Ranks that build a graph.
struct OverCommunicator<'a> {
    comm: &'a Communicator,
    /// Why an exchange did not come about; later ones are not tried.
    failed: Option<Error>,
}

impl OverCommunicator<'_> {
    fn try_exchange(&self, letters: &[Vec<u64>]) -> Result<Vec<Vec<u64>>> {
        let ranks = self.comm.size();
        let lengths: Vec<u64> = letters.iter().map(|letter| letter.len() as u64).collect();
        let mut into = vec![0u64; ranks];
        self.comm.alltoall(&lengths, &mut into)?;
        let places = |lengths: &[u64]| {
            let counts: Vec<usize> = lengths.iter().map(|len| *len as usize).collect();
            let starts = counts.iter().scan(0, |at, count| {
                *at += count;
                Some(*at - count)
            });
            let starts: Vec<usize> = starts.collect();
            (counts, starts)
        };
        let (send, recv) = (places(&lengths), places(&into));
        let words: Vec<u64> = letters.concat();
        let mut got = vec![0u64; recv.0.iter().sum()];
        self.comm
            .alltoallv(&words, (&send.0, &send.1), &mut got, (&recv.0, &recv.1))?;
        let of = |rank: usize| got[recv.1[rank]..][..recv.0[rank]].to_vec();
        Ok((0..ranks).map(of).collect())
    }
}

impl Ranks for OverCommunicator<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn exchange(&mut self, letters: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
        if self.failed.is_none() {
            match self.try_exchange(&letters) {
                Ok(got) => return got,
                Err(e) => self.failed = Some(e),
            }
        }
        // Ends the rounds of the others' news.
        vec![vec![0]; letters.len()]
    }
}
