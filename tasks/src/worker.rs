//! Workers: what the threads do that run the tasks of a rank.
//!
//! A worker has a queue for each band of priorities, an inbox for tasks that other threads
//! have fired and that are at home with it, and steals from the others when both are empty.
//! [`Worker::step`] does one thing and returns: a thread calls it in a loop, a simulation in
//! whatever order it likes.
//!
//! # Invariants
//! 1. A task is in one queue, inbox or hand at most; who has it owns it ([`crate::word`]).

use crate::instance::{Fired, Instance};
use crate::running::Runs;
use crossbeam_deque::{Steal, Stealer, Worker as Queue};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bands of priorities: above 0, 0, below 0. Within one the oldest task runs first.
const BANDS: usize = 3;
/// Tasks of this band run when nothing else is there, of this rank.
const LAST: usize = BANDS - 1;

/// Tasks that a worker is to run, by band: where nobody steals, a queue of one thread.
enum Ready {
    Alone([VecDeque<u32>; BANDS]),
    Shared([Queue<u32>; BANDS]),
}

impl Ready {
    fn new(alone: bool) -> Self {
        match alone {
            true => Ready::Alone(Default::default()),
            false => Ready::Shared(std::array::from_fn(|_| Queue::new_fifo())),
        }
    }

    #[inline]
    fn push(&mut self, band: usize, task: u32) {
        match self {
            Ready::Alone(queues) => queues[band].push_back(task),
            Ready::Shared(queues) => queues[band].push(task),
        }
    }

    #[inline]
    fn pop(&mut self, bands: Range<usize>) -> Option<u32> {
        match self {
            Ready::Alone(queues) => queues[bands].iter_mut().find_map(VecDeque::pop_front),
            Ready::Shared(queues) => queues[bands].iter().find_map(Queue::pop),
        }
    }

    fn len(&self) -> usize {
        match self {
            Ready::Alone(queues) => queues.iter().map(VecDeque::len).sum(),
            Ready::Shared(queues) => queues.iter().map(Queue::len).sum(),
        }
    }

    fn stealers(&self) -> Option<[Stealer<u32>; BANDS]> {
        match self {
            Ready::Alone(_) => None,
            Ready::Shared(queues) => Some(std::array::from_fn(|band| queues[band].stealer())),
        }
    }
}

/// What the workers of an instance share.
pub struct Crew {
    stealers: Vec<[Stealer<u32>; BANDS]>,
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
    /// Tasks that it ended.
    pub ended: u64,
    /// Time in which it yielded and slept for want of work, in ns.
    pub idle_ns: u64,
}

/// Most tasks that are looked at for orphans at a time.
const MOST_LOOKED_AT: u32 = 1 << 16;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It began or ran a task.
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
    /// Where it steals first.
    victims: Vec<u32>,
    /// Kept for its memory.
    taken: Vec<u32>,
    /// How many of its own tasks it has looked at, when it last looked for orphans.
    looked_at: u32,
    pub counts: Counts,
}

impl Crew {
    /// The workers of an instance.
    pub fn new(instance: &Instance) -> (Crew, Vec<Worker>) {
        let count = instance.workers.len() as u32;
        let workers: Vec<Worker> = (0..count)
            .map(|index| Worker {
                index,
                ready: Ready::new(instance.alone),
                to_begin: instance.at_home(index),
                taken: Vec::new(),
                looked_at: 0,
                victims: (1..count).map(|step| (index + step) % count).collect(),
                counts: Counts::default(),
            })
            .collect();
        let stealers = workers.iter().filter_map(|worker| worker.ready.stealers());
        let crew = Crew {
            stealers: stealers.collect(),
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
        if instance.tasks[task as usize].home != self.worker.index {
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
    fn retired(&mut self, instance: &Instance) {
        self.worker.counts.ended += 1;
        let state = &instance.workers[self.worker.index as usize];
        state
            .retired
            .store(self.worker.counts.ended as u32, Ordering::Release);
    }
}

impl Worker {
    /// Begins or runs one task, if there is one.
    #[inline]
    pub fn step(&mut self, instance: &Instance, crew: &Crew) -> Step {
        let mut at_work = AtWork { worker: self, crew };
        if let Some(task) = at_work.worker.to_begin.next() {
            instance.begin(task, &mut at_work);
            return Step::Ran;
        }
        let Some(task) = at_work.worker.next(instance, crew) else {
            return Step::Idle;
        };
        at_work.worker.counts.firings += 1;
        instance.run(task, &mut at_work);
        Step::Ran
    }

    /// Queues a task that this worker's thread has fired outside a step, or sends it home.
    pub(crate) fn accept(&mut self, instance: &Instance, task: u32) {
        match instance.tasks[task as usize].home == self.index {
            true => self.queue(instance, task),
            false => instance.send_home(task),
        }
    }

    /// Whether there is a task for it, which is then queued here.
    pub(crate) fn has_work(&mut self, instance: &Instance, crew: &Crew) -> bool {
        if !instance.workers[self.index as usize].inbox.is_empty() {
            self.take_inbox(instance, self.index);
        }
        if !self.to_begin.is_empty() || self.ready.len() > 0 {
            return true;
        }
        let task = self.next_of_others(instance, crew);
        task.inspect(|task| self.queue(instance, *task)).is_some()
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
        let band = match priority {
            1.. => 0,
            0 => 1,
            _ => LAST,
        };
        self.ready.push(band, task);
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
        for at in 0..self.victims.len() {
            let victim = self.victims[at];
            for band in bands.clone() {
                loop {
                    match crew.stealers[victim as usize][band].steal() {
                        Steal::Success(task) => {
                            self.counts.stolen += 1;
                            return Some(task);
                        }
                        Steal::Empty => break,
                        Steal::Retry => {}
                    }
                }
            }
        }
        self.take_inboxes(instance)
    }

    /// Tasks that were fired elsewhere and whose worker is busy.
    fn take_inboxes(&mut self, instance: &Instance) -> Option<u32> {
        for at in 0..self.victims.len() {
            let victim = self.victims[at];
            if !instance.workers[victim as usize].inbox.is_empty() {
                self.counts.stolen += self.take_inbox(instance, victim);
            }
        }
        self.ready.pop(0..BANDS)
    }
}
