//! Graphs: captured from streams, made executable, run in any order that their
//! edges allow.
//!
//! # Invariants
//! 1. A node comes after nodes of lower index only.

use std::cell::Cell;
use std::sync::Arc;

use crate::abi::{self, Handle};
use crate::driver::{State, driver};
use crate::fault::{Fault, Result};
use crate::order::Accesses;
use crate::work::{HostFunction, Moved, Op};

/// An operation and what it comes after.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Nodes before it.
    pub after: Vec<usize>,
}

/// Something of the user that graphs keep, counted by the user too. Executable graphs and
/// launches count as copies of the graph do.
#[derive(Debug)]
pub struct UserObject {
    argument: usize,
    destroy: HostFunction,
}

impl UserObject {
    /// One whose destructor is called when the last count goes.
    pub fn new(argument: usize, destroy: HostFunction) -> Arc<UserObject> {
        Arc::new(UserObject { argument, destroy })
    }
}

impl Drop for UserObject {
    /// On the thread of host functions, which may not call the driver.
    fn drop(&mut self) {
        crate::worker::call(self.destroy, self.argument);
    }
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// What it keeps; one entry for each count.
    pub kept: Vec<(Handle, Arc<UserObject>)>,
}

impl Graph {
    /// Adds a node and returns its index.
    pub fn add(&mut self, op: Op, after: Vec<usize>) -> usize {
        self.nodes.push(Node { op, after });
        self.nodes.len() - 1
    }

    /// True if every node is, or comes before, one of these.
    pub fn all_before(&self, ends: &[usize]) -> bool {
        let mut seen = vec![false; self.nodes.len()];
        let mut open = ends.to_vec();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                open.extend(&self.nodes[node].after);
            }
        }
        seen.iter().all(|&s| s)
    }
}

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    /// The stream in which it began, and must end.
    pub origin: Handle,
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL` is 0, thread-local 1, relaxed 2.
    pub mode: u32,
    /// The thread that has begun it.
    pub thread: std::thread::ThreadId,
    /// What was captured so far.
    pub graph: Graph,
    /// A call that is not allowed has been made.
    pub spoiled: bool,
    /// Unique number.
    pub id: u64,
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: the mode in which every thread begins.
pub const CAPTURE_GLOBAL: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_RELAXED: u32 = 2;

thread_local! {
    /// How the thread takes part in what captures forbid.
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(CAPTURE_GLOBAL) };
}

/// Refuses a call that captures under way forbid, of a driver that is initialised.
pub fn refuse_unsafe(what: &str) -> Result {
    match driver() {
        Ok(driver) => driver.lock().refuse_unsafe(what),
        Err(_) => Ok(()),
    }
}

impl State {
    /// A capture under way, if nothing has spoiled it.
    pub fn capture(&mut self, graph: Handle) -> Result<&mut Capture> {
        self.captures
            .get_mut(&graph)
            .filter(|c| !c.spoiled)
            .ok_or_else(|| Fault::plain(abi::ERROR_STREAM_CAPTURE_INVALIDATED))
    }

    /// An error for calls that may be unsafe while this thread, or another one, captures, by
    /// the modes of the captures and of the thread; spoils those captures.
    fn refuse_unsafe(&mut self, what: &str) -> Result {
        let mode = CAPTURE_MODE.get();
        let me = std::thread::current().id();
        let hindered = |c: &&mut Capture| match (mode, c.mode) {
            (CAPTURE_RELAXED, _) | (_, CAPTURE_RELAXED) => false,
            (_, _) if c.thread == me => true,
            (CAPTURE_GLOBAL, CAPTURE_GLOBAL) => true,
            _ => false,
        };
        let mut any = false;
        for capture in self.captures.values_mut().filter(hindered) {
            capture.spoiled = true;
            any = true;
        }
        match any {
            false => Ok(()),
            true => Err(Fault::named(
                abi::ERROR_STREAM_CAPTURE_UNSUPPORTED,
                format!("{what} while a stream is being captured in a mode that forbids it"),
            )),
        }
    }

    /// An error for calls that a capturing stream does not allow; spoils the capture.
    pub fn refuse_capture(&mut self, stream: Handle, what: &str) -> Result {
        let Some((graph, _)) = self.stream_mut(stream)?.capture else {
            return Ok(());
        };
        if let Some(capture) = self.captures.get_mut(&graph) {
            capture.spoiled = true;
        }
        Err(Fault::named(
            abi::ERROR_STREAM_CAPTURE_UNSUPPORTED,
            format!("{what} while its stream is being captured into a graph"),
        ))
    }
}

/// A launched graph, and how far it has come.
#[derive(Clone, Debug)]
pub struct GraphRun {
    graph: Arc<Graph>,
    done: Vec<bool>,
    /// Nodes that have begun.
    running: Vec<(usize, Op)>,
    begun: Vec<bool>,
}

impl GraphRun {
    /// One that has not begun.
    pub fn new(graph: Arc<Graph>) -> GraphRun {
        let n = graph.nodes.len();
        GraphRun {
            graph,
            done: vec![false; n],
            running: Vec::new(),
            begun: vec![false; n],
        }
    }

    /// What its nodes use.
    pub fn uses(&self, state: &State) -> Vec<(u64, u64)> {
        let nodes = self.graph.nodes.iter();
        nodes.flat_map(|node| node.op.uses(state)).collect()
    }

    /// What its nodes touch, kernels apart.
    pub fn accesses(&self, state: &State) -> Accesses {
        let mut all = Accesses::default();
        for node in &self.graph.nodes {
            all.extend(node.op.accesses(state));
        }
        all
    }

    /// Moves one of the nodes on whose predecessors are over.
    pub fn step(&mut self, state: &mut State, context: Handle) -> Result<Moved> {
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if !self.begun[index] && node.after.iter().all(|&a| self.done[a]) {
                self.begun[index] = true;
                self.running.push((index, node.op.clone()));
            }
        }
        if self.running.is_empty() {
            return Ok(Moved::Done);
        }
        let pick = state.random.below(self.running.len() as u64) as usize;
        let moved = self.running[pick].1.step(state, context)?;
        match moved {
            Moved::Done => {
                let (index, _) = self.running.swap_remove(pick);
                self.done[index] = true;
                Ok(match self.done.iter().all(|&d| d) {
                    true => Moved::Done,
                    false => Moved::More,
                })
            }
            // The worker steps again afterwards, also when the node has ended.
            other => Ok(other),
        }
    }

    /// Whether a node tells the host something, or waits for it.
    pub fn meets_host(&self) -> bool {
        let meets = |node: &Node| matches!(node.op, Op::Host(..) | Op::Write(..) | Op::Await(..));
        self.graph.nodes.iter().any(meets)
    }
}
