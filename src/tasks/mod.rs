//! Task graphs on the ranks of a communicator, and virtual ranks; the runtime is a crate below
//! this one.

mod collective;
mod processors;

pub use collective::{Node, NodePorts};

use crate::comm::Communicator;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::edges::MOST_RUNS;
use osier_tasks::describe::Description;
use osier_tasks::failure::Failure;
use osier_tasks::graph::{self, Ranks};
use osier_tasks::linked;
use osier_tasks::report::{Report, RunSettings};
use processors::ThisMachine;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The run that was opened last, and where the number of runs at once is limited: those
    /// that are open, by their number modulo that.
    open: Mutex<(u32, Vec<bool>)>,
}

/// A run of a graph that was opened and has not begun: [`Graph::open`]. Dropped, it ends the
/// tasks of other ranks that need messages of this one, and collectives that are tasks of the
/// graph: those fail in later runs, too.
pub struct Run<'a> {
    graph: &'a Graph,
    opened: linked::Opened,
    _place: Place<'a>,
}

/// The place of a run among those that may be open.
struct Place<'a> {
    graph: &'a Graph,
    at: Option<usize>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.graph.opened().1[at] = false;
        }
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run {{ of {:?} }}", self.graph)
    }
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
        let places = vec![false; graph.most_runs().unwrap_or(0) as usize];
        Ok(Graph {
            graph,
            comm: own,
            open: Mutex::new((0, places)),
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
        self.run_with(&RunSettings {
            workers,
            ..RunSettings::default()
        })
    }

    /// As [`Graph::run`], with settings. The report, printed, is a table:
    ///
    /// ```
    /// # osier::testing::ranks(1, |comm| {
    /// # use osier::task::{Context, Description, Graph, Next, Placement, RunSettings};
    /// # let mut tasks = Description::new();
    /// # let family = tasks.family("task", &[5], Placement::Block);
    /// # tasks.tasks(family, |_: [usize; 1]| |_: &mut Context<'_>| Ok(Next::Done));
    /// # let graph = Graph::build(&comm, tasks)?;
    /// let report = graph.run_with(&RunSettings { workers: 2, times: true, ..RunSettings::default() })?;
    /// println!("{report}");
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Graph::run`].
    #[track_caller]
    pub fn run_with(&self, settings: &RunSettings) -> Result<Report> {
        self.comm.reported(self.comm.may_wait("run"))?;
        self.open()?.run_with(settings)
    }

    /// Opens the next run, which begins later, on this thread or another: several may be under
    /// way at once, each with tasks of its own. The runs that ranks open one after the other
    /// belong together, in that order.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if 32 runs of this graph are open, or as many as its
    /// [`Node`]s allow.
    #[track_caller]
    pub fn open(&self) -> Result<Run<'_>> {
        let (run, at) = self.comm.reported(self.try_open())?;
        Ok(Run {
            graph: self,
            opened: run,
            _place: Place { graph: self, at },
        })
    }

    fn try_open(&self) -> Result<(linked::Opened, Option<usize>)> {
        let refused = |most: usize| {
            let hint = match most < MOST_RUNS {
                true => " (hint: Node::at_once)",
                false => "",
            };
            let text = format!("a run of a graph of which {most} are open{hint}");
            Error::new(ErrorKind::Argument, text)
        };
        let mut opened = self.opened();
        let (last, places) = &mut *opened;
        let at = (!places.is_empty()).then(|| *last as usize % places.len());
        if at.is_some_and(|at| places[at]) {
            return Err(refused(places.len()));
        }
        let (core, lane) = (self.comm.core(), &self.comm.0.lane);
        let run = linked::Opened::new(&self.graph, core, lane);
        let run = run.ok_or_else(|| refused(MOST_RUNS))?;
        *last = last.wrapping_add(1);
        if let Some(at) = at {
            places[at] = true;
        }
        Ok((run, at))
    }

    fn opened(&self) -> MutexGuard<'_, (u32, Vec<bool>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run<'_> {
    /// As [`Graph::run_by`], of this run.
    ///
    /// # Errors
    /// As [`Graph::run`].
    #[track_caller]
    pub fn run_by(self, workers: usize) -> Result<Report> {
        self.run_with(&RunSettings {
            workers,
            ..RunSettings::default()
        })
    }

    /// As [`Graph::run_with`], of this run.
    ///
    /// # Errors
    /// As [`Graph::run`].
    #[track_caller]
    pub fn run_with(self, settings: &RunSettings) -> Result<Report> {
        let comm = &self.graph.comm;
        comm.reported(comm.may_wait("run"))?;
        let mut ended = linked::run(vec![self.opened], settings, &ThisMachine);
        comm.reported(ended.pop().map_or_else(
            || Err(Error::new(ErrorKind::Task, "a run that did not begin")),
            |ended| ended.map_err(failed),
        ))
    }
}

/// Runs these at once, of one graph or of several over ranks of one job, by the workers of the
/// settings, each of which is a worker of each run.
///
/// # Errors
/// As [`Graph::run`], of each run. Of kind [`ErrorKind::Argument`], if they are of several ranks
/// of this process.
#[track_caller]
pub fn run_together(runs: Vec<Run<'_>>, settings: &RunSettings) -> Vec<Result<Report>> {
    let Some(comm) = runs.first().map(|run| &run.graph.comm) else {
        return Vec::new();
    };
    // The threads wait with one rank's lanes in view.
    let same = |run: &Run<'_>| Arc::ptr_eq(run.graph.comm.core(), comm.core());
    let refused = match runs.iter().all(same) {
        true => comm.may_wait("run_together").err(),
        false => Some(Error::new(
            ErrorKind::Argument,
            "runs together of graphs of several ranks (hint: those of one rank)",
        )),
    };
    if let Some(e) = refused {
        return runs.iter().map(|_| Err(e.clone())).collect();
    }
    // Their places are free once they have ended.
    let split = runs.into_iter().map(|run| (run.opened, run._place));
    let (opened, _places): (Vec<_>, Vec<_>) = split.unzip();
    let ended = linked::run(opened, settings, &ThisMachine);
    ended.into_iter().map(|e| e.map_err(failed)).collect()
}

fn failed(failure: Arc<Failure>) -> Error {
    Error::new(ErrorKind::Task, failure.to_string())
}

/// Pictures.
impl Graph {
    /// A picture of the graph, an SVG document, the same on all ranks. Collective: a rank knows
    /// its own tasks only.
    ///
    /// While all ranks together have at most 64 tasks and 256 edges, it shows these, colored
    /// by rank, with the longest path of tasks marked. Of larger graphs it shows families, with
    /// their extents, placement, rule and ports, and how many edges lead from port to port.
    /// Edges of ports that begin are dashed, and no part of a path.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// # use osier::task::{Context, Description, Graph, Next, Placement};
    /// # let mut row = Description::new();
    /// # let cells = row.family("cell", &[5], Placement::Block);
    /// # let (right, left) = (row.output::<u64>(cells, "right"), row.input::<u64>(cells, "left"));
    /// # row.connect(right, left, |[i]: [usize; 1]| (i < 4).then_some([i + 1]));
    /// # row.tasks(cells, |_: [usize; 1]| |_: &mut Context<'_>| Ok(Next::Done));
    /// let graph = Graph::build(&comm, row)?;
    /// let picture = graph.picture()?;
    /// # let folder = std::env::temp_dir();
    /// if comm.rank() == 0 {
    ///     std::fs::write(folder.join("graph.svg"), picture).expect("a file");
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::alltoallv`].
    #[track_caller]
    pub fn picture(&self) -> Result<String> {
        self.drawn(None)
    }

    /// As [`Graph::picture`], with the time that each task, or family, took in a run; the path
    /// is the one that took longest, as if each task ran once. Each rank gives its report.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], the same on all ranks, if the report of a rank has no
    /// times ([`RunSettings::times`]), or is of another graph. As [`Graph::picture`].
    #[track_caller]
    pub fn picture_of(&self, report: &Report) -> Result<String> {
        self.drawn(Some(report))
    }

    #[track_caller]
    fn drawn(&self, report: Option<&Report>) -> Result<String> {
        let mut ranks = OverCommunicator {
            comm: &self.comm,
            failed: None,
        };
        let picture = self.graph.picture(report, &mut ranks);
        if let Some(e) = ranks.failed {
            return Err(e.context("drawing a graph"));
        }
        let picture = picture.map_err(|e| Error::new(ErrorKind::Argument, e.to_string()));
        Ok(self.comm.reported(picture)?.svg())
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
