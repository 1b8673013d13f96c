//! A collective in simulation: the ranks' parts are summed, and those who wait are told by an event.
//!
//! What the layer above does with a request's future and its waker, a task does here with a sum
//! that all ranks see; a rank that fails, or whose task ends before its last call, fails the calls
//! that have not ended, as a communicator does that a rank has left.

use osier_tasks::context::Context;
use osier_tasks::describe::{Description, Event, In, Out};
use osier_tasks::event::Signal;
use osier_tasks::placement::Placement;
use osier_tasks::rule::Rule;
use osier_tasks::task::{Next, Task, TaskError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What tasks say of a call that a rank does not take part in.
pub const FAILED: &str = "a rank has left the collective";

/// The collectives of a job.
#[derive(Default)]
pub struct Meeting(Mutex<Ranks>);

#[derive(Default)]
struct Ranks {
    /// By node and firing.
    calls: BTreeMap<(usize, u64), Call>,
    /// Nodes, or all, that a rank has left.
    left: Vec<usize>,
    all_left: bool,
}

#[derive(Default)]
struct Call {
    sum: u64,
    ranks: usize,
    complete: bool,
    waiting: Vec<Signal>,
}

impl Ranks {
    fn has_left(&self, node: usize) -> bool {
        self.all_left || self.left.contains(&node)
    }

    /// Wakes who waits in calls that will not be complete.
    fn wake(&mut self) -> Vec<Signal> {
        let mut woken = Vec::new();
        let (left, all) = (self.left.clone(), self.all_left);
        for ((node, _), call) in &mut self.calls {
            if (all || left.contains(node)) && !call.complete {
                woken.append(&mut call.waiting);
            }
        }
        woken
    }
}

impl Meeting {
    /// A run begins.
    pub fn begin(&self) {
        *self.0.lock().expect("no panic") = Ranks::default();
    }

    /// A rank has failed.
    pub fn fail(&self) {
        let mut ranks = self.0.lock().expect("no panic");
        ranks.all_left = true;
        let woken = ranks.wake();
        drop(ranks);
        woken.iter().for_each(Signal::raise);
    }

    fn leave(&self, node: usize) {
        let mut ranks = self.0.lock().expect("no panic");
        ranks.left.push(node);
        let woken = ranks.wake();
        drop(ranks);
        woken.iter().for_each(Signal::raise);
    }

    /// A rank begins a call, with its part.
    fn arrive(&self, at: (usize, u64), part: u64, ranks: usize, signal: Signal) {
        let mut all = self.0.lock().expect("no panic");
        let call = all.calls.entry(at).or_default();
        call.sum = call.sum.wrapping_add(part);
        call.ranks += 1;
        call.waiting.push(signal);
        let woken = match call.ranks == ranks && !all.has_left(at.0) {
            true => {
                let call = all.calls.entry(at).or_default();
                call.complete = true;
                std::mem::take(&mut call.waiting)
            }
            false => all.wake(),
        };
        drop(all);
        woken.iter().for_each(Signal::raise);
    }

    /// The sum, once all ranks have begun the call.
    fn sum(&self, at: (usize, u64)) -> Result<Option<u64>, TaskError> {
        let all = self.0.lock().expect("no panic");
        match all.calls.get(&at) {
            Some(call) if call.complete => Ok(Some(call.sum)),
            _ if all.has_left(at.0) => Err(FAILED.into()),
            _ => Ok(None),
        }
    }

    /// Adds a node with a task on each rank, which sums what comes there in each firing.
    pub fn add(
        self: &Arc<Self>,
        graph: &mut Description,
        node: usize,
        ranks: usize,
        firings: u64,
    ) -> (In<u64>, Out<u64>) {
        let family = graph.family(&format!("node{node}"), &[ranks], Placement::Block);
        let (input, output) = (graph.input(family, "parts"), graph.output(family, "sum"));
        let ended = graph.event(family, "ended");
        graph.rule(family, Rule::Ports(vec![input.number()]));
        let meeting = self.clone();
        graph.tasks(family, move |[_]: [usize; 1]| Meets {
            meeting: meeting.clone(),
            node,
            ranks,
            firing: 0,
            left: firings,
            waits: false,
            ports: (input, output, ended),
        });
        (input, output)
    }
}

/// The task of a node on one rank.
pub struct Meets {
    meeting: Arc<Meeting>,
    node: usize,
    ranks: usize,
    firing: u64,
    left: u64,
    waits: bool,
    ports: (In<u64>, Out<u64>, Event),
}

impl Drop for Meets {
    fn drop(&mut self) {
        if self.left > 0 {
            self.meeting.leave(self.node);
        }
    }
}

impl Task for Meets {
    fn init(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let (input, output, ended) = self.ports;
        let at = (self.node, self.firing);
        if !self.waits {
            let parts = cx.each(input).flat_map(|message| message.elements);
            let part = parts.fold(0, |sum: u64, part| sum.wrapping_add(*part));
            self.meeting.arrive(at, part, self.ranks, cx.signal(ended));
            self.waits = true;
        }
        let Some(sum) = self.meeting.sum(at)? else {
            return Ok(Next::When(Rule::Ports(vec![ended.number()])));
        };
        cx.put(output, &[sum]);
        self.waits = false;
        self.firing += 1;
        self.left -= 1;
        Ok(match self.left {
            0 => Next::Done,
            _ => Next::When(Rule::Ports(vec![input.number()])),
        })
    }
}
