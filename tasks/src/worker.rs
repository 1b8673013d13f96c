//! Workers: what the threads do that run the tasks of a rank.
//!
//! A worker has a queue for each band of priorities, an inbox for tasks that other threads
//! have fired and that are at home with it, and steals from the others when both are empty.
//! [`Worker::step`] does one thing and returns: a thread calls it in a loop, a simulation in
//! whatever order it likes.
//!
//! # Invariants
//! 1. A task is in one queue, inbox or hand at most; who has it owns it ([`crate::word`]).

use crate::child::{ChildRun, Children};
use crate::instance::{Fired, Instance};
use crate::places::Places;
use crate::ready::{BANDS, LAST, Ready, Shared};
use crate::residual::Residual;
use crate::running::Runs;
use crate::victims::{Distance, Victims};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the workers of an instance share.
pub struct Crew {
    shared: Shared,
    /// Workers that look for work, or sleep.
    pub(crate) without_work: AtomicU32,
}

/// What a worker has done in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Firings, each a call of `execute` but for tasks that ended by a failure.
    pub firings: u64,
    /// Tasks that it took from another worker's queue or inbox.
    pub stolen: u64,
    /// Of those, by [`Distance`] of the other worker's processor from its own, in the order of
    /// [`Distance::ALL`]. Nobody looks where there are fewer than three workers.
    pub stolen_within: [u64; Distance::ALL.len()],
    /// Tasks that it ended.
    pub ended: u64,
    /// From its first task until all tasks of the rank had ended, in ns.
    pub took_ns: u64,
    /// Of that, time in which it found neither a task nor a message, in ns: polls that found
    /// nothing, counted, times what one takes, and yields and sleep, measured.
    pub idle_ns: u64,
    /// Of `idle_ns`, waits in which a message of another rank came. How much of one the
    /// message was on its way is not known here: it may have been sent late.
    pub awaiting_ns: u64,
    /// Time in calls of tasks, in ns, if it was asked for
    /// ([`RunSettings::times`](crate::report::RunSettings::times)).
    pub in_tasks_ns: Option<u64>,
}

impl Counts {
    /// Time with work, in ns: tasks, and what the runtime did for them and for messages.
    pub fn busy_ns(&self) -> u64 {
        self.took_ns.saturating_sub(self.idle_ns)
    }

    fn add_stolen(&mut self, tasks: u64, distance: Option<Distance>) {
        self.stolen += tasks;
        if let Some(distance) = distance {
            self.stolen_within[distance as usize] += tasks;
        }
    }
}

/// Most tasks that are looked at for orphans at a time.
const MOST_LOOKED_AT: u32 = 1 << 16;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It began or ran a task, or took note of events.
    Ran,
    /// There was none.
    Idle,
}

/// A worker of a run.
pub struct Worker {
    index: u32,
    ready: Ready,
    /// Own tasks that have not begun.
    to_begin: Range<u32>,
    /// From whom it steals, and for which changes of their places that is the order.
    victims: Victims,
    places_seen: u32,
    /// Kept for its memory.
    taken: Vec<u32>,
    /// How many of its own tasks it has looked at, when it last looked for orphans.
    looked_at: u32,
    /// Its workers of child graphs that have not ended, how many were begun when it took them,
    /// which had the last turn, and whose turn it is: theirs or its own tasks'.
    children: Vec<(Arc<ChildRun>, Worker)>,
    adopted: u32,
    next_child: usize,
    turn: u32,
    pub counts: Counts,
}

impl Crew {
    /// The workers of an instance.
    pub fn new(instance: &Instance) -> (Crew, Vec<Worker>) {
        let count = instance.workers.len();
        let (queues, shared) = Ready::of(count, instance.is_exact());
        let count = count as u32;
        let workers = queues
            .into_iter()
            .zip(0..count)
            .map(|(ready, index)| Worker {
                index,
                ready,
                to_begin: instance.at_home(index),
                taken: Vec::new(),
                looked_at: 0,
                children: Vec::new(),
                adopted: 0,
                next_child: 0,
                turn: 0,
                victims: Victims::new(count, index, instance.run, |_| None),
                places_seen: 0,
                counts: Counts::default(),
            });
        let workers = workers.collect();
        let crew = Crew {
            shared,
            without_work: AtomicU32::new(0),
        };
        (crew, workers)
    }
}

/// A worker while it runs a task.
struct AtWork<'a> {
    worker: &'a mut Worker,
    crew: &'a Crew,
}

impl Fired for AtWork<'_> {
    #[inline]
    fn fired(&mut self, instance: &Instance, task: u32) {
        let home = instance.tasks[task as usize].home;
        if home != self.worker.index && !matches!(self.worker.ready, Ready::Exact(_)) {
            return instance.send_home(task);
        }
        self.worker.queue(instance, task);
        // A hint: the task is run here in any case.
        if self.crew.without_work.load(Ordering::Relaxed) > 0 && self.worker.ready.len() > 1 {
            instance.wake();
        }
    }
}

impl Runs for AtWork<'_> {
    fn index(&self) -> u32 {
        self.worker.index
    }

    fn retired(&mut self, instance: &Instance) {
        self.worker.counts.ended += 1;
        let state = &instance.workers[self.worker.index as usize];
        state
            .retired
            .store(self.worker.counts.ended as u32, Ordering::Release);
    }
}

impl Worker {
    /// Begins or runs one task, if there is one; of child graphs by turns with its own.
    #[inline]
    pub fn step(&mut self, instance: &Instance, crew: &Crew) -> Step {
        let children = !self.children.is_empty() || instance.children.begun() != self.adopted;
        if children {
            self.turn = self.turn.wrapping_add(1);
            if self.turn.is_multiple_of(2) && self.step_child(&instance.children) == Step::Ran {
                return Step::Ran;
            }
        }
        let step = self.step_own(instance, crew);
        match step {
            Step::Idle if children => self.step_child(&instance.children),
            step => step,
        }
    }

    #[inline]
    fn step_own(&mut self, instance: &Instance, crew: &Crew) -> Step {
        let mut at_work = AtWork { worker: self, crew };
        if let Some(task) = at_work.worker.to_begin.next() {
            instance.begin(task, &mut at_work);
            return Step::Ran;
        }
        let Some(task) = at_work.worker.next(instance, crew) else {
            // Tasks that wait for events come last: the others have something to do.
            return match instance.events.settle(instance, &mut at_work) {
                true => Step::Ran,
                false => Step::Idle,
            };
        };
        at_work.worker.counts.firings += 1;
        instance.run(task, &mut at_work);
        Step::Ran
    }

    /// Does one thing for a child graph, by turns.
    #[cold]
    fn step_child(&mut self, children: &Children) -> Step {
        let begun = children.begun();
        if begun != self.adopted {
            self.adopted = begun;
            children.adopt(self.index, &mut self.children);
        }
        let mut idle = 0;
        while idle < self.children.len() {
            self.next_child = (self.next_child + 1) % self.children.len();
            let (child, worker) = &mut self.children[self.next_child];
            match child.step(worker, children) {
                Some(Step::Ran) => return Step::Ran,
                Some(Step::Idle) => idle += 1,
                None => {
                    // Its end has fired a task.
                    self.children.swap_remove(self.next_child);
                    return Step::Ran;
                }
            }
        }
        Step::Idle
    }

    /// Fires the tasks whose events have happened. True: there were any.
    #[inline]
    pub(crate) fn take_events(&mut self, instance: &Instance, crew: &Crew) -> bool {
        let mut at_work = AtWork { worker: self, crew };
        instance.events.settle(instance, &mut at_work)
    }

    /// Its number among those of the rank.
    pub fn number(&self) -> u32 {
        self.index
    }

    /// Whether there may be a task to begin or to run. Another worker may take it first.
    pub(crate) fn has_task(&self, instance: &Instance, crew: &Crew) -> bool {
        let of_child = |(child, worker): &(Arc<ChildRun>, Worker)| child.has_work(worker);
        let has_inbox = |worker: u32| !instance.workers[worker as usize].inbox.is_empty();
        let has_queue = |victim: u32| !crew.shared.is_empty(victim);
        !self.to_begin.is_empty()
            || instance.children.begun() != self.adopted
            || instance.events.are_raised()
            || self.ready.len() > 0
            || has_inbox(self.index)
            || self.victims.iter().any(|v| has_queue(*v) || has_inbox(*v))
            || self.children.iter().any(of_child)
    }

    /// Tells the others, of its children too, that it looks for work (1), or has found some (-1).
    /// It takes no children in between.
    pub(crate) fn seek(&self, crew: &Crew, more: u32) {
        crew.without_work.fetch_add(more, Ordering::Relaxed);
        for (child, worker) in &self.children {
            child.seek(worker, more);
        }
    }

    /// What tasks wait for that are at home with it, and those of its children.
    #[cold]
    pub(crate) fn residuals(&self, instance: &Instance, most: usize) -> Vec<Residual> {
        let mut residuals = instance.residuals(self.home(instance), most);
        for (child, worker) in &self.children {
            let left = (2 * most).saturating_sub(residuals.len()).min(most);
            if left > 0 {
                residuals.extend(child.residuals(instance, worker, left));
            }
        }
        residuals
    }

    /// Queues a task that this worker's thread has fired outside a step, or sends it home.
    pub(crate) fn accept(&mut self, instance: &Instance, task: u32) {
        match instance.tasks[task as usize].home == self.index {
            true => self.queue(instance, task),
            false => instance.send_home(task),
        }
    }

    /// Looks for orphans among its own tasks, as many as keep it no longer than a few
    /// milliseconds from what comes meanwhile; the next look goes on from there.
    #[cold]
    pub fn look_for_ended(&mut self, instance: &Instance, crew: &Crew) {
        let home = self.home(instance);
        let from = home.start + self.looked_at;
        let to = home.end.min(from.saturating_add(MOST_LOOKED_AT));
        self.looked_at = if to == home.end { 0 } else { to - home.start };
        let mut at_work = AtWork { worker: self, crew };
        instance.look_for_ended(from..to, &mut at_work);
        for (child, worker) in &mut self.children {
            child.look_for_ended(worker);
        }
    }

    /// Tasks that are at home with it.
    pub(crate) fn home(&self, instance: &Instance) -> Range<u32> {
        instance.at_home(self.index)
    }

    #[inline]
    fn queue(&mut self, instance: &Instance, task: u32) {
        let priority = instance.tasks[task as usize]
            .priority
            .load(Ordering::Relaxed);
        self.ready.push(priority, task);
    }

    #[inline]
    fn next(&mut self, instance: &Instance, crew: &Crew) -> Option<u32> {
        if !instance.workers[self.index as usize].inbox.is_empty() {
            self.take_inbox(instance, self.index);
        }
        if let Some(task) = self.ready.pop(0..LAST) {
            return Some(task);
        }
        self.next_of_others(instance, crew)
    }

    fn next_of_others(&mut self, instance: &Instance, crew: &Crew) -> Option<u32> {
        if self.victims.is_empty() {
            return self.ready.pop(LAST..BANDS);
        }
        self.steal(instance, crew, 0..LAST)
            .or_else(|| self.ready.pop(LAST..BANDS))
            .or_else(|| self.steal(instance, crew, LAST..BANDS))
    }

    /// Queues what is in a worker's inbox: how many tasks.
    #[cold]
    fn take_inbox(&mut self, instance: &Instance, of: u32) -> u64 {
        let mut taken = std::mem::take(&mut self.taken);
        instance.empty_inbox(of, |task| taken.push(task));
        for task in &taken {
            self.queue(instance, *task);
        }
        let count = taken.len() as u64;
        taken.clear();
        self.taken = taken;
        count
    }

    #[cold]
    fn steal(&mut self, instance: &Instance, crew: &Crew, bands: Range<usize>) -> Option<u32> {
        if let Some(places) = &instance.places {
            self.follow(places, instance);
        }
        for (victim, distance) in self.victims.drawn() {
            if let Some(task) = crew.shared.steal(victim, bands.clone()) {
                self.counts.add_stolen(1, distance);
                return Some(task);
            }
        }
        self.take_inboxes(instance)
    }

    /// Steals in the order of the places where the workers are now.
    fn follow(&mut self, places: &Places, instance: &Instance) {
        let changes = places.changes();
        if changes != self.places_seen {
            self.places_seen = changes;
            let (own, workers) = (self.index, instance.workers.len() as u32);
            let distance = |worker| places.distance(own, worker);
            self.victims.arrange(workers, own, distance);
        }
    }

    /// Tasks that were fired elsewhere and whose worker is busy.
    fn take_inboxes(&mut self, instance: &Instance) -> Option<u32> {
        let mut victims = std::mem::take(&mut self.victims);
        for (victim, distance) in victims.drawn() {
            if !instance.workers[victim as usize].inbox.is_empty() {
                let stolen = self.take_inbox(instance, victim);
                self.counts.add_stolen(stolen, distance);
            }
        }
        self.victims = victims;
        self.ready.pop(0..BANDS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::describe::Description;
    use crate::graph::{Graph, OneRank};
    use crate::placement::Placement;
    use crate::places::Processors;
    use crate::task::Next;

    /// Two packages of two caches of two processors; all threads run on one of them.
    struct Machine(AtomicU32);

    impl Processors for Machine {
        fn here(&self) -> Option<u32> {
            Some(self.0.load(Ordering::Relaxed))
        }

        fn distance(&self, one: u32, other: u32) -> Option<Distance> {
            let parts = [
                (1, Distance::Core),
                (2, Distance::L3Cache),
                (4, Distance::Package),
            ];
            let mut parts = parts.into_iter();
            let part = parts.find(|(width, _)| one / width == other / width);
            Some(part.map_or(Distance::Machine, |(_, distance)| distance))
        }
    }

    /// Four workers with two tasks each, of which the first one runs all.
    fn stolen_from(processors: [u32; 4]) -> (Vec<u32>, Counts) {
        static MACHINE: Machine = Machine(AtomicU32::new(0));
        let mut graph = Description::new();
        let family = graph.family("task", &[8], Placement::Block);
        graph.tasks(family, |_: [usize; 1]| |_: &mut Context<'_>| Ok(Next::Done));
        let graph = Graph::build(graph, &mut OneRank).expect("a graph");
        let mut instance = graph.instance(1, 4, None);
        let places = Places::new(4, &MACHINE);
        for (worker, processor) in (0..).zip(processors) {
            MACHINE.0.store(processor, Ordering::Relaxed);
            places.look(worker);
        }
        instance.places = Some(places);
        let (crew, mut workers) = Crew::new(&instance);
        for worker in &mut workers {
            while !worker.to_begin.is_empty() {
                assert_eq!(worker.step(&instance, &crew), Step::Ran);
            }
        }
        let mut victims = Vec::new();
        let queued = |worker: &Worker| worker.ready.len();
        while !instance.has_ended() {
            let before: Vec<usize> = workers.iter().map(queued).collect();
            assert_eq!(workers[0].step(&instance, &crew), Step::Ran);
            let fewer = (0..4).find(|at| queued(&workers[*at]) < before[*at]);
            victims.extend(fewer.map(|at| at as u32));
        }
        (victims, workers[0].counts)
    }

    #[test]
    fn the_nearest_is_stolen_from_first() {
        let (victims, counts) = stolen_from([0, 7, 1, 2]);
        assert_eq!(victims, [0, 0, 2, 2, 3, 3, 1, 1]);
        assert_eq!(
            (counts.stolen, counts.stolen_within),
            (6, [0, 0, 2, 0, 2, 2])
        );
        let (victims, counts) = stolen_from([5, 6, 3, 5]);
        assert_eq!(victims, [0, 0, 3, 3, 1, 1, 2, 2]);
        assert_eq!(
            (counts.stolen, counts.stolen_within),
            (6, [2, 0, 0, 0, 2, 2])
        );
    }
}
