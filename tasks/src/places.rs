//! On which processors the workers of a run were last seen.
//!
//! The launcher binds a rank to a set of processors, and the system moves the rank's threads
//! among them. A worker looks where it is when it begins and when it has had nothing to do. A
//! place that is out of date makes a way longer, and nothing wrong.

use crate::victims::Distance;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The processors of this machine, as a run asks about them.
pub trait Processors: Send + Sync {
    /// The one on which the calling thread runs, if the system tells.
    fn here(&self) -> Option<u32>;
    /// How far two are apart, if that is known.
    fn distance(&self, one: u32, other: u32) -> Option<Distance>;
}

/// Of a worker that was not seen on a processor.
const NOWHERE: u32 = u32::MAX;

/// The processors of the workers of a run.
pub struct Places {
    processors: &'static dyn Processors,
    /// By worker.
    of: Box<[AtomicU32]>,
    /// Counts what changes in `of`.
    changes: AtomicU32,
}

impl Places {
    /// Of a number of workers, none of which was seen.
    pub fn new(workers: usize, processors: &'static dyn Processors) -> Arc<Places> {
        Arc::new(Places {
            processors,
            of: (0..workers).map(|_| AtomicU32::new(NOWHERE)).collect(),
            changes: AtomicU32::new(0),
        })
    }

    /// The calling thread is this worker.
    pub fn look(&self, worker: u32) {
        let here = self.processors.here().unwrap_or(NOWHERE);
        let place = &self.of[worker as usize];
        if place.load(Ordering::Relaxed) != here {
            place.store(here, Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Changes with the places.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// How far two workers were apart when they were last seen, if that is known.
    pub fn distance(&self, one: u32, other: u32) -> Option<Distance> {
        let [one, other] = [one, other].map(|w| self.of[w as usize].load(Ordering::Relaxed));
        match one == NOWHERE || other == NOWHERE {
            true => None,
            false => self.processors.distance(one, other),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Processors two to a core; all threads run on one.
    struct Pairs(AtomicU32);

    impl Processors for Pairs {
        fn here(&self) -> Option<u32> {
            Some(self.0.load(Ordering::Relaxed)).filter(|here| *here < 100)
        }

        fn distance(&self, one: u32, other: u32) -> Option<Distance> {
            Some(match one / 2 == other / 2 {
                true => Distance::Core,
                false => Distance::Package,
            })
        }
    }

    #[test]
    fn workers_are_where_they_were_last_seen() {
        static PAIRS: Pairs = Pairs(AtomicU32::new(4));
        let places = Places::new(3, &PAIRS);
        places.look(0);
        assert_eq!((places.changes(), places.distance(0, 1)), (1, None));
        PAIRS.0.store(5, Ordering::Relaxed);
        places.look(1);
        places.look(1);
        let distance = places.distance(0, 1);
        assert_eq!((places.changes(), distance), (2, Some(Distance::Core)));
        PAIRS.0.store(6, Ordering::Relaxed);
        places.look(1);
        let distance = places.distance(1, 0);
        assert_eq!((places.changes(), distance), (3, Some(Distance::Package)));
        PAIRS.0.store(100, Ordering::Relaxed);
        places.look(0);
        assert_eq!((places.changes(), places.distance(0, 1)), (4, None));
    }
}
