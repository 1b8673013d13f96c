//! Whether each task can be fired at all: a fixed point over the edges. Pure.
//!
//! A task may be fired once its first rule may be met; then each of its output ports may
//! have messages. Ports on which `init` puts messages have them from the beginning. Ranks
//! tell each other which branches came to life, round by round, until none did.
//!
//! Rules may change while a graph runs, and counts are taken for met by one message; so a
//! graph that passes may still come to a halt, which the reports of waits name then.

use crate::build::BuildError;
use crate::rule::Rule;
use crate::shape::Shape;

/// What is known so far.
pub struct Firable<'a> {
    shape: &'a Shape,
    /// By edge into a task: a message may come.
    alive: Vec<bool>,
    fired: Vec<bool>,
    /// By edge: how many edges of its conjunction its task still lacks.
    lacking: Vec<u32>,
    /// Tasks that may be fired, and whose outputs have not come to life.
    pending: Vec<u32>,
    /// By rank: places of branches that have come to life since they were taken.
    news: Vec<Vec<u64>>,
}

impl<'a> Firable<'a> {
    pub fn new(shape: &'a Shape) -> Firable<'a> {
        let mut this = Firable {
            shape,
            alive: vec![false; shape.inputs.len()],
            fired: vec![false; shape.tasks.len()],
            lacking: vec![0; shape.tasks.len()],
            pending: Vec::new(),
            news: vec![Vec::new(); shape.ranks],
        };
        for (number, task) in shape.tasks.iter().enumerate() {
            let family = &shape.families[task.family as usize];
            let edges = task.inputs.clone();
            let named = edges.filter(|e| family.rule.names(shape.inputs[*e as usize].port));
            let named = named.count() as u32;
            this.lacking[number] = match family.rule.is_conjunction() {
                true => named,
                // Without edges nothing will ever come, but the graph is the user's.
                false => 1,
            };
            if this.lacking[number] == 0 {
                this.fire(number as u32);
            }
        }
        for task in &shape.tasks {
            let family = &shape.families[task.family as usize];
            let begins = family.begins.iter().zip(task.outputs.clone());
            for (_, output) in begins.filter(|(begins, _)| **begins) {
                this.live(output);
            }
        }
        this.settle();
        this
    }

    fn fire(&mut self, task: u32) {
        if !std::mem::replace(&mut self.fired[task as usize], true) {
            self.pending.push(task);
        }
    }

    fn settle(&mut self) {
        while let Some(task) = self.pending.pop() {
            for output in self.shape.tasks[task as usize].outputs.clone() {
                self.live(output);
            }
        }
    }

    /// An output port may have messages.
    fn live(&mut self, output: u32) {
        let output = &self.shape.outputs[output as usize];
        if let Some(branch) = output.here {
            self.live_branch(branch);
        }
        for remote in output.remotes.clone() {
            let remote = self.shape.remotes[remote as usize];
            self.news[remote.rank as usize].push(u64::from(remote.place));
        }
    }

    fn live_branch(&mut self, branch: u32) {
        let consumers = self.shape.branches[branch as usize].consumers.clone();
        for consumer in consumers {
            let input = self.shape.consumers[consumer as usize];
            if std::mem::replace(&mut self.alive[input as usize], true) {
                continue;
            }
            let edge = &self.shape.inputs[input as usize];
            let task = edge.task;
            let family = self.shape.tasks[task as usize].family as usize;
            let lacking = &mut self.lacking[task as usize];
            if self.shape.families[family].rule.names(edge.port) && *lacking > 0 {
                *lacking -= 1;
                if *lacking == 0 {
                    self.fire(task);
                }
            }
        }
    }

    /// What other ranks are to know since the last round, by rank.
    pub fn take_news(&mut self) -> Vec<Vec<u64>> {
        let ranks = self.news.len();
        std::mem::replace(&mut self.news, vec![Vec::new(); ranks])
    }

    /// Takes in what a rank tells.
    ///
    /// # Errors
    /// It names branches that do not exist.
    pub fn hear(&mut self, rank: usize, news: &[u64]) -> Result<(), BuildError> {
        for (word, place) in news.iter().enumerate() {
            let branches = self.shape.from_ranks[rank].clone();
            let branch = branches
                .clone()
                .nth(usize::try_from(*place).unwrap_or(usize::MAX));
            let branch = branch.ok_or(BuildError::Malformed { rank, word })?;
            self.live_branch(branch);
        }
        self.settle();
        Ok(())
    }

    /// The first task that nothing can fire.
    ///
    /// # Errors
    /// There is one.
    pub fn verdict(&self) -> Result<(), BuildError> {
        let Some(task) = self.fired.iter().position(|fired| !fired) else {
            return Ok(());
        };
        let shape = &self.shape.tasks[task];
        let rule = &self.shape.families[shape.family as usize].rule;
        let lacks = |input: &u32| {
            !self.alive[*input as usize] && rule.names(self.shape.inputs[*input as usize].port)
        };
        let waits_for = match (rule, shape.inputs.clone().find(lacks)) {
            (_, Some(input)) => self.shape.name_of_input(input),
            (Rule::All | Rule::Ports(_), None) => "nothing".into(),
            (_, None) => "a message, and no edge leads to it".into(),
        };
        Err(BuildError::Unfirable {
            task: self.shape.name(task as u32),
            rank: self.shape.rank,
            waits_for,
        })
    }
}
