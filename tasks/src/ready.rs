//! Tasks that are ready to run: queues of the workers of a run.
//!
//! By bands of priorities, each a queue of its own for each worker, from which others steal; or in
//! the exact order of priorities, one queue for all.

use crossbeam_deque::{Steal, Stealer, Worker as Queue};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bands of priorities: above 0, 0, below 0. Within one the oldest task runs first.
pub(crate) const BANDS: usize = 3;
/// Tasks of this band run when nothing else is there, of this rank.
pub(crate) const LAST: usize = BANDS - 1;

fn band_of(priority: i32) -> usize {
    match priority {
        1.. => 0,
        0 => 1,
        _ => LAST,
    }
}

/// Tasks by priority; of equal ones the oldest first.
#[derive(Default)]
pub(crate) struct Exact {
    /// Those in `queue`, to be looked at without its lock.
    len: AtomicUsize,
    queue: Mutex<(u64, BinaryHeap<(i32, Reverse<u64>, u32)>)>,
}

impl Exact {
    fn lock(&self) -> MutexGuard<'_, (u64, BinaryHeap<(i32, Reverse<u64>, u32)>)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, priority: i32, task: u32) {
        let mut queue = self.lock();
        queue.0 += 1;
        let number = Reverse(queue.0);
        queue.1.push((priority, number, task));
        self.len.store(queue.1.len(), Ordering::Relaxed);
    }

    fn pop(&self) -> Option<u32> {
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut queue = self.lock();
        let task = queue.1.pop();
        self.len.store(queue.1.len(), Ordering::Relaxed);
        task.map(|(.., task)| task)
    }
}

/// Tasks that a worker is to run: where nobody steals, queues of one thread.
pub(crate) enum Ready {
    Alone([VecDeque<u32>; BANDS]),
    Stolen([Queue<u32>; BANDS]),
    Exact(Arc<Exact>),
}

/// What of the queues of a run all workers reach.
pub(crate) enum Shared {
    Nothing,
    Stolen(Vec<[Stealer<u32>; BANDS]>),
}

impl Ready {
    /// The queues of a number of workers.
    pub fn of(workers: usize, exact: bool) -> (Vec<Ready>, Shared) {
        if exact {
            let queue = Arc::new(Exact::default());
            let all = (0..workers).map(|_| Ready::Exact(queue.clone()));
            return (all.collect(), Shared::Nothing);
        }
        if workers == 1 {
            return (vec![Ready::Alone(Default::default())], Shared::Nothing);
        }
        let queues = || -> [Queue<u32>; BANDS] { std::array::from_fn(|_| Queue::new_fifo()) };
        let all: Vec<_> = (0..workers).map(|_| queues()).collect();
        let stealers = all
            .iter()
            .map(|queues| std::array::from_fn(|band| queues[band].stealer()));
        let shared = Shared::Stolen(stealers.collect());
        (all.into_iter().map(Ready::Stolen).collect(), shared)
    }

    #[inline]
    pub fn push(&mut self, priority: i32, task: u32) {
        match self {
            Ready::Alone(queues) => queues[band_of(priority)].push_back(task),
            Ready::Stolen(queues) => queues[band_of(priority)].push(task),
            Ready::Exact(queue) => queue.push(priority, task),
        }
    }

    #[inline]
    pub fn pop(&mut self, bands: Range<usize>) -> Option<u32> {
        match self {
            Ready::Alone(queues) => queues[bands].iter_mut().find_map(VecDeque::pop_front),
            Ready::Stolen(queues) => queues[bands].iter().find_map(Queue::pop),
            Ready::Exact(queue) => queue.pop(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Ready::Alone(queues) => queues.iter().map(VecDeque::len).sum(),
            Ready::Stolen(queues) => queues.iter().map(Queue::len).sum(),
            Ready::Exact(queue) => queue.len.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    /// Whether there is nothing to take of another worker.
    pub fn is_empty(&self, victim: u32) -> bool {
        match self {
            Shared::Nothing => true,
            Shared::Stolen(stealers) => stealers[victim as usize].iter().all(Stealer::is_empty),
        }
    }

    /// Takes a task of another worker.
    pub fn steal(&self, victim: u32, bands: Range<usize>) -> Option<u32> {
        let Shared::Stolen(stealers) = self else {
            return None;
        };
        for band in bands {
            loop {
                match stealers[victim as usize][band].steal() {
                    Steal::Success(task) => return Some(task),
                    Steal::Empty => break,
                    Steal::Retry => {}
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_exact_order_is_by_priority_and_age() {
        let (mut workers, _) = Ready::of(2, true);
        for (task, priority) in [(0, 3), (1, -7), (2, 3), (3, 9), (4, 0), (5, i32::MIN)] {
            workers[task as usize % 2].push(priority, task);
        }
        assert_eq!(workers[0].len(), 6);
        let order: Vec<_> = (0..6)
            .map(|at| workers[at % 2].pop(0..BANDS).expect("a task"))
            .collect();
        assert_eq!(order, [3, 0, 2, 4, 1, 5]);
        assert_eq!(workers[1].pop(0..BANDS), None);
    }
}
