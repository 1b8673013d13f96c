//! Graphs: captured from streams, made executable, run in any order that their
//! edges allow.
//!
//! # Invariants
//! 1. A node comes after nodes of lower index only.

use std::sync::Arc;

use crate::abi::Handle;
use crate::driver::State;
use crate::fault::Result;
use crate::order::Accesses;
use crate::work::{Moved, Op};

/// An operation and what it comes after.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Nodes before it.
    pub after: Vec<usize>,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its nodes.
    pub nodes: Vec<Node>,
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
            // The worker steps again afterwards; the node is over then.
            Moved::Unlocked(job) => {
                self.running[pick].1 = Op::Nothing;
                Ok(Moved::Unlocked(job))
            }
            other => Ok(other),
        }
    }

    /// Whether a node tells the host something, or waits for it.
    pub fn meets_host(&self) -> bool {
        let meets = |node: &Node| matches!(node.op, Op::Host(..) | Op::Write(..) | Op::Await(..));
        self.graph.nodes.iter().any(meets)
    }

    /// True when the last node is over.
    pub fn is_over(&self) -> bool {
        self.done.iter().all(|&d| d)
    }
}
