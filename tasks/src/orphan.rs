//! Orphans: tasks that can no longer be fired, since those that were to send to them have ended.
//!
//! A task that ends tells nobody. A worker that has been without work for long looks at the tasks
//! that wait at home with it: whether a producer of this rank has ended it sees, and that of
//! another rank it asks about, once in a run.
//!
//! ```text
//! consumer's rank                    producer's rank
//! credit of ASKED messages      ->   the branch is asked about
//!                              <-    ended, when the task has, or its run
//! ```
//!
//! # Invariants
//! 1. The answer follows all messages of the branch: it is posted once the task has ended, which
//!    is after its last message was posted.
//! 2. Each question is answered once, if the task ends: by the thread that takes the mark away.
//!    Where a mark and an end miss each other, a worker without work or the end of the run
//!    finds the mark.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution"
//! (Tarragon), 2011, section 2.2, has the states; it knows no task that is left behind.

use crate::failure::{Cause, Failure};
use crate::instance::{Fired, Instance};
use crate::rule::Rule;
use crate::shape::Source;
use crate::word::Standing;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Credit that asks to be told of the end of a branch's producer.
pub const ASKED: u32 = u32::MAX - 1;

/// What ranks have asked each other.
pub(crate) struct Asks {
    /// By branch: its producer's rank was asked.
    of_branches: Box<[AtomicBool]>,
    /// By branch to another rank: it has asked, and was not answered.
    of_remotes: Box<[AtomicBool]>,
    /// Some rank has asked.
    any: AtomicBool,
}

impl Asks {
    pub fn new(branches: usize, remotes: usize) -> Self {
        let none = |count| (0..count).map(|_| AtomicBool::new(false)).collect();
        Self {
            of_branches: none(branches),
            of_remotes: none(remotes),
            any: AtomicBool::new(false),
        }
    }
}

impl Instance {
    /// Looks at tasks that wait: those whose producers of this rank have ended are told so, and
    /// other ranks are asked about theirs. Answers what was asked.
    pub(crate) fn look_for_ended(&self, tasks: Range<u32>, fired: &mut (impl Fired + ?Sized)) {
        for task in tasks {
            if matches!(self.standing(task), Standing::Owned | Standing::Ended) {
                continue;
            }
            for input in self.shape.tasks[task as usize].inputs.clone() {
                let edge = &self.edges[input as usize];
                if edge.word.lacks().is_none() {
                    continue;
                }
                match self.shape.branches[edge.branch as usize].source {
                    Source::Here(output) => {
                        let producer = self.shape.outputs[output as usize].task;
                        if self.standing(producer) == Standing::Ended {
                            self.producer_ended(edge.branch, fired);
                        }
                    }
                    Source::Rank { rank, place } => {
                        let asked = &self.asks.of_branches[edge.branch as usize];
                        if !asked.swap(true, Ordering::Relaxed) {
                            fired.credit(self, rank, place, ASKED);
                        }
                    }
                }
            }
        }
        if self.asks.any.load(Ordering::SeqCst) {
            (0..self.asks.of_remotes.len() as u32).for_each(|remote| self.answer(remote, fired));
        }
    }

    /// The producer of a branch has ended, and all that it sent has come.
    fn producer_ended(&self, branch: u32, fired: &mut (impl Fired + ?Sized)) {
        let inputs = self.shape.branches[branch as usize].consumers.clone();
        let edge = self.shape.consumers[inputs.start as usize];
        let (family, number, _) = self.shape.inputs[edge as usize].producer;
        let rank = match self.shape.branches[branch as usize].source {
            Source::Here(_) => self.rank,
            Source::Rank { rank, .. } => rank as usize,
        };
        let failure = Arc::new(Failure {
            task: self.shape.name_of(family, number),
            rank,
            cause: Cause::Ended,
        });
        self.fail_branch(branch, &failure, fired);
    }

    /// Another rank tells that the producer of a branch has ended. False: it is malformed.
    #[must_use]
    pub fn ended_from(&self, rank: u32, place: u32, fired: &mut (impl Fired + ?Sized)) -> bool {
        let Some(branch) = self.branch_from(rank, place) else {
            return false;
        };
        self.producer_ended(branch, fired);
        true
    }

    /// Another rank asks to be told of the end of a branch's producer. False: it is malformed.
    /// By any thread.
    #[must_use]
    pub fn asked(&self, rank: u32, place: u32, fired: &mut (impl Fired + ?Sized)) -> bool {
        let to_rank = self.shape.to_ranks.get(rank as usize);
        let Some(remote) = to_rank.and_then(|to| to.get(place as usize)).copied() else {
            return false;
        };
        self.asks.of_remotes[remote as usize].store(true, Ordering::SeqCst);
        self.asks.any.store(true, Ordering::SeqCst);
        self.answer(remote, fired);
        true
    }

    fn answer(&self, remote: u32, fired: &mut (impl Fired + ?Sized)) {
        let to = self.shape.remotes[remote as usize];
        let task = self.shape.outputs[to.output as usize].task;
        if self.standing(task) == Standing::Ended && self.take_question(remote) {
            fired.ended(self, to.rank, to.place);
        }
    }

    fn take_question(&self, remote: u32) -> bool {
        let asked = &self.asks.of_remotes[remote as usize];
        asked.load(Ordering::SeqCst) && asked.swap(false, Ordering::SeqCst)
    }

    /// A task has ended: answers who has asked about it.
    #[inline]
    pub(crate) fn answer_for(&self, task: u32, fired: &mut (impl Fired + ?Sized)) {
        if self.asks.any.load(Ordering::Relaxed) {
            for output in self.shape.tasks[task as usize].outputs.clone() {
                let remotes = self.shape.outputs[output as usize].remotes.clone();
                remotes.for_each(|remote| self.answer(remote, fired));
            }
        }
    }

    /// All tasks have ended: rank and place of the questions that no answer was sent to.
    pub(crate) fn take_questions(&self) -> impl Iterator<Item = (u32, u32)> {
        let asked = (0..self.asks.of_remotes.len() as u32).filter(|r| self.take_question(*r));
        asked.map(|remote| {
            let to = self.shape.remotes[remote as usize];
            (to.rank, to.place)
        })
    }

    /// Why a task can no longer be fired: an edge of its rule has no message, and its producer
    /// has ended.
    #[cold]
    pub(crate) fn orphaned(&self, task: u32, rule: &Rule, input: u32, producer: &Failure) -> Cause {
        let edge = self.shape.name_of_input(input);
        let what = match rule {
            Rule::All | Rule::Ports(_) => format!("no message comes on {edge}"),
            Rule::Any | Rule::Own => format!("no message comes, the last edge being {edge}"),
            Rule::Count { port, messages } => {
                let edges = self.shape.edges_of(task, *port);
                let come = edges.map(|e| self.edges[e as usize].word.messages());
                let come: u32 = come.sum();
                format!("{come} of {messages} messages have come, the last edge being {edge}")
            }
        };
        Cause::Orphan(format!("{what}: {producer}"))
    }
}
