//! Residuals: what tasks wait for, in words, for `osier ps` and the reports of hangs.
//!
//! All is read beside the threads that run and fire tasks: edges and lines one by one, as they
//! are at that moment. Of a graph that stands still that is one picture.

use crate::describe::Explain;
use crate::instance::Instance;
use crate::rule::Rule;
use crate::shape::Source;
use crate::word::Standing;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most tasks that are looked at for one description.
const MOST_LOOKED_AT: u32 = 1 << 14;
/// Most edges or ports that are named of a task.
const MOST_NAMED: usize = 3;

/// A task's rule, written by its owner, read by anyone: kind, port << 3, messages << 32.
pub(crate) struct ToldRule(AtomicU64);

const ALL: u64 = 0;
const PORTS: u64 = 1;
const ANY: u64 = 2;
const COUNT: u64 = 3;
const OWN: u64 = 4;

impl ToldRule {
    pub fn new(rule: &Rule) -> Self {
        let told = Self(AtomicU64::new(0));
        told.set(rule);
        told
    }

    pub fn set(&self, rule: &Rule) {
        let told = match rule {
            Rule::All => ALL,
            Rule::Ports(_) => PORTS,
            Rule::Any => ANY,
            Rule::Count { port, messages } => {
                COUNT | u64::from(*port) << 3 | u64::from(*messages) << 32
            }
            Rule::Own => OWN,
        };
        self.0.store(told, Ordering::Relaxed);
    }
}

/// A rank that could end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// Of the graph: this one, if it is a task here.
    Graph(u32),
    /// Of the job.
    Job(u32),
}

/// A task that waits.
pub(crate) struct Residual {
    /// Who could end the wait.
    pub peer: Option<Peer>,
    /// The task, its rule, and what it lacks; or how the rank stands.
    pub text: String,
    /// Signals may end the wait, which anything may raise.
    pub by_events: bool,
}

/// When a task is described.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// First: its family explains what it waits for.
    Explained,
    /// It waits for another rank.
    Elsewhere,
    Here,
}

/// What a task lacks.
#[derive(Clone, Copy)]
enum Lack {
    /// A message on an edge.
    Message(u32),
    /// The same, and none will come.
    Ended(u32),
    /// A signal of an event.
    Event(u32),
    /// The same, which a child graph raises when it ends.
    Child(u32),
    /// The same, and none is left that could be raised.
    Silent(u32),
    /// Room, for messages of a branch to this rank.
    Room { output: u32, branch: u32 },
    /// Credit of a rank.
    Credit { output: u32, rank: u32 },
}

impl Instance {
    /// How the rank stands, and the first of these tasks that wait: those whose family explains it,
    /// those for other ranks, those for tasks here.
    pub(crate) fn residuals(&self, tasks: Range<u32>, most: usize) -> Vec<Residual> {
        let end = tasks.end.min(tasks.start.saturating_add(MOST_LOOKED_AT));
        let waiting: Vec<u32> = (tasks.start..end).filter(|t| self.waits(*t)).collect();
        let has_events = self.shape.has_events();
        // Those that are not looked at may wait for one.
        let mut any_by_events = has_events && end < tasks.end;
        let mut described: Vec<Residual> = Vec::new();
        for turn in [Turn::Explained, Turn::Elsewhere, Turn::Here] {
            for task in &waiting {
                let lacks = self.lacks_of(*task);
                let mut by_events = lacks.iter().any(|lack| matches!(lack, Lack::Event(_)));
                let mut peer = self.peer_of(&lacks).map(Peer::Graph);
                let explain = self.explain_of(*task);
                let own = match (explain.is_some(), peer) {
                    (true, _) => Turn::Explained,
                    (_, Some(Peer::Graph(peer))) if peer as usize != self.rank => Turn::Elsewhere,
                    _ => Turn::Here,
                };
                if own != turn {
                    continue;
                }
                let awaited = explain.map(|explain| explain(self.run));
                if by_events && let Some(awaited) = &awaited {
                    by_events = !awaited.certain;
                    peer = awaited.peers.first().copied().map(Peer::Job);
                }
                any_by_events |= by_events;
                if described.len() < most {
                    let mut text = self.text_of(*task, &lacks);
                    if let Some(awaited) = awaited {
                        text += &format!("; {}", awaited.text);
                    }
                    described.push(Residual {
                        peer,
                        text,
                        by_events,
                    });
                }
            }
        }
        let summary = Residual {
            peer: None,
            text: self.summary(&waiting),
            by_events: any_by_events,
        };
        described.insert(0, summary);
        described
    }

    fn summary(&self, waiting: &[u32]) -> String {
        let (left, all) = (self.tasks.len() - self.retired(), self.tasks.len());
        let of = if self.is_child() { "" } else { " of the rank" };
        let mut text = format!("{left} of {all} tasks{of} have not ended");
        if waiting.is_empty() {
            text += "; those of this worker run, or are about to";
        }
        if let Some(cycle) = self.cycle(waiting) {
            let around = cycle.iter().chain(cycle.first());
            let names: Vec<String> = around.map(|task| self.shape.name(*task)).collect();
            text += &format!("; cycle: {}", names.join(" -> "));
        }
        text
    }

    fn waits(&self, task: u32) -> bool {
        matches!(self.standing(task), Standing::Lacks(_) | Standing::Asking)
    }

    fn lacks_of(&self, task: u32) -> Vec<Lack> {
        let shape = &self.shape.tasks[task as usize];
        let mut lacks = Vec::new();
        for input in shape.inputs.clone() {
            let word = &self.edges[input as usize].word;
            if word.lacks().is_some() {
                lacks.push(match self.shape.event_of(input) {
                    None => Lack::Message(input),
                    Some(output) if self.events.may_be_raised(output) => Lack::Event(input),
                    Some(output) if self.children.has_child_of(output) => Lack::Child(input),
                    Some(_) => Lack::Silent(input),
                });
            } else if word.is_failed() {
                lacks.push(Lack::Ended(input));
            }
        }
        for output in shape.outputs.clone() {
            let of = &self.shape.outputs[output as usize];
            if let Some(branch) = of.here
                && !self.lines[output as usize].is_empty()
            {
                lacks.push(Lack::Room { output, branch });
            }
            for remote in of.remotes.clone() {
                if !self.remote_lines[remote as usize].is_empty() {
                    let rank = self.shape.remotes[remote as usize].rank;
                    lacks.push(Lack::Credit { output, rank });
                }
            }
        }
        lacks
    }

    /// The rank that could end a wait: another one rather than this one.
    fn peer_of(&self, lacks: &[Lack]) -> Option<u32> {
        let own = self.rank as u32;
        let ranks = lacks.iter().filter_map(|lack| match lack {
            Lack::Message(input) => Some(self.rank_of(*input)),
            Lack::Ended(_) | Lack::Event(_) | Lack::Child(_) | Lack::Silent(_) => None,
            Lack::Room { .. } => Some(own),
            Lack::Credit { rank, .. } => Some(*rank),
        });
        ranks.min_by_key(|rank| *rank == own)
    }

    /// The rank of an edge's producer.
    fn rank_of(&self, input: u32) -> u32 {
        let branch = self.shape.inputs[input as usize].branch;
        match self.shape.branches[branch as usize].source {
            Source::Here(_) => self.rank as u32,
            Source::Rank { rank, .. } => rank,
        }
    }

    fn text_of(&self, task: u32, lacks: &[Lack]) -> String {
        let mut text = format!("{}, {}", self.shape.name(task), self.rule_of(task));
        let named: Vec<String> = lacks
            .iter()
            .take(MOST_NAMED)
            .map(|l| self.text(*l))
            .collect();
        if !named.is_empty() {
            text += &format!(": {}", named.join(", "));
        }
        if lacks.len() > MOST_NAMED {
            text += &format!(" and {} more", lacks.len() - MOST_NAMED);
        }
        text
    }

    fn text(&self, lack: Lack) -> String {
        let port = |output: u32| {
            let task = self.shape.outputs[output as usize].task;
            let shape = &self.shape.tasks[task as usize];
            let port = (output - shape.outputs.start) as usize;
            &self.shape.families[shape.family as usize].outputs[port]
        };
        match lack {
            Lack::Message(input) => {
                let edge = self.shape.name_of_input(input);
                let come = self.edges[input as usize].word.messages();
                let come = if come == 0 {
                    "no message".into()
                } else {
                    format!("{come} come")
                };
                format!("{come} on {edge} of rank {}", self.rank_of(input))
            }
            Lack::Ended(input) => {
                let edge = self.shape.name_of_input(input);
                format!("none will come on {edge}, whose producer has ended")
            }
            Lack::Event(input) => format!("waits for event '{}'", self.port_of(input)),
            Lack::Child(input) => {
                format!(
                    "waits for event '{}', the end of its child",
                    self.port_of(input)
                )
            }
            Lack::Silent(input) => {
                format!(
                    "waits for event '{}', of which no signal is left",
                    self.port_of(input)
                )
            }
            Lack::Room { output, branch } => {
                let reader = self.slowest(branch);
                let reader = reader.map(|input| self.edges[input as usize].task);
                let reader = reader.map(|task| format!(", {} has not read", self.shape.name(task)));
                format!(
                    "no slot free for '{}'{}",
                    port(output),
                    reader.unwrap_or_default()
                )
            }
            Lack::Credit { output, rank } => {
                format!("no credit of rank {rank} for '{}'", port(output))
            }
        }
    }

    /// Name of the port that an edge ends in.
    fn port_of(&self, input: u32) -> &str {
        let edge = &self.shape.inputs[input as usize];
        let family = self.shape.tasks[edge.task as usize].family;
        &self.shape.families[family as usize].inputs[edge.port as usize]
    }

    fn explain_of(&self, task: u32) -> Option<&Explain> {
        let family = self.shape.tasks[task as usize].family;
        self.graph.families[family as usize].explain.as_deref()
    }

    fn rule_of(&self, task: u32) -> String {
        let told = self.told_rules[task as usize].0.load(Ordering::Relaxed);
        match told & 7 {
            PORTS => "rule ports".into(),
            ANY => "rule any".into(),
            COUNT => {
                let family = self.shape.tasks[task as usize].family;
                let port = (told as u32 >> 3) as usize;
                let ports = &self.shape.families[family as usize].inputs;
                let name = ports.get(port).map_or("?", String::as_str);
                format!("rule count {} on '{name}'", told >> 32)
            }
            OWN => "rule own".into(),
            _ => "rule all".into(),
        }
    }

    /// The edge of a branch here with most messages that are not read.
    fn slowest(&self, branch: u32) -> Option<u32> {
        let consumers = self.shape.branches[branch as usize].consumers.clone();
        let inputs = consumers.map(|c| self.shape.consumers[c as usize]);
        inputs.max_by_key(|input| self.edges[*input as usize].word.messages())
    }

    /// A shortest one of the cycles in which each task waits for the next, found by going from
    /// each of these to the first task here without which it cannot go on.
    fn cycle(&self, tasks: &[u32]) -> Option<Vec<u32>> {
        // By task: the walk that came to it first.
        let mut walks: BTreeMap<u32, u32> = BTreeMap::new();
        let mut shortest: Option<Vec<u32>> = None;
        for start in tasks {
            let (mut path, mut at) = (Vec::new(), Some(*start));
            while let Some(task) = at {
                match walks.get(&task) {
                    Some(walk) if walk == start => {
                        let from = path.iter().position(|on| *on == task).unwrap_or(0);
                        let cycle = path.split_off(from);
                        if shortest.as_ref().is_none_or(|s| cycle.len() < s.len()) {
                            shortest = Some(cycle);
                        }
                        break;
                    }
                    Some(_) => break,
                    None => {}
                }
                if walks.len() >= MOST_LOOKED_AT as usize {
                    break;
                }
                walks.insert(task, *start);
                path.push(task);
                at = self.needs(task);
            }
        }
        shortest.map(|mut cycle| {
            let lowest = (0..cycle.len()).min_by_key(|i| cycle[*i]).unwrap_or(0);
            cycle.rotate_left(lowest);
            cycle
        })
    }

    /// A waiting task here without which this one cannot go on.
    fn needs(&self, task: u32) -> Option<u32> {
        let lacks = self.lacks_of(task);
        let is_message =
            |lack: &&Lack| matches!(lack, Lack::Message(_) | Lack::Event(_) | Lack::Child(_));
        let messages = lacks.iter().filter(is_message);
        // Any of several may be enough for a rule that is asked.
        let one_of = self.standing(task) == Standing::Asking && messages.count() > 1;
        let next = |lack: &Lack| match *lack {
            Lack::Message(input) if !one_of => {
                let branch = self.shape.inputs[input as usize].branch;
                match self.shape.branches[branch as usize].source {
                    Source::Here(output) => Some(self.shape.outputs[output as usize].task),
                    Source::Rank { .. } => None,
                }
            }
            Lack::Room { branch, .. } => {
                let reader = self.slowest(branch)?;
                Some(self.edges[reader as usize].task)
            }
            _ => None,
        };
        lacks.iter().filter_map(next).find(|task| self.waits(*task))
    }
}
