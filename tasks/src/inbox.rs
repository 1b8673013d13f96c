//! Inbox of a worker: tasks that other threads have fired and that are at home there.
//!
//! A stack whose links lie in an array beside it, one per task, so that nothing is allocated;
//! who empties it takes all at once.
//!
//! # Invariants
//! 1. A task is in one inbox at most, once: its owner puts it there, and the thread that
//!    takes it owns it ([`crate::word`]).
//! 2. What the thread that put a task there wrote before is visible to the one that takes it.

use crate::sync::{AtomicU32, Ordering};

/// Tasks by number.
#[derive(Debug)]
pub struct Inbox(AtomicU32);

/// The link of a task, to the one that was put before it.
#[derive(Debug)]
pub struct Link(AtomicU32);

const EMPTY: u32 = u32::MAX;

impl Link {
    pub fn new() -> Self {
        Self(AtomicU32::new(EMPTY))
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    pub fn new() -> Self {
        Self(AtomicU32::new(EMPTY))
    }

    /// Puts a task in. True: it was empty, so its worker may sleep.
    pub fn put(&self, task: u32, links: &[Link]) -> bool {
        let link = &links[task as usize];
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.0.store(head, Ordering::Relaxed);
            // SeqCst: before the look whether the worker sleeps.
            match self
                .0
                .compare_exchange_weak(head, task, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return head == EMPTY,
                Err(now) => head = now,
            }
        }
    }

    /// Whether it looks empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == EMPTY
    }

    /// Takes all, the oldest first.
    pub fn take(&self, links: &[Link], mut each: impl FnMut(u32)) {
        let mut at = self.0.swap(EMPTY, Ordering::AcqRel);
        // The oldest is at the end: turn the links round.
        let mut oldest = EMPTY;
        while at != EMPTY {
            let link = &links[at as usize];
            let before = link.0.load(Ordering::Relaxed);
            link.0.store(oldest, Ordering::Relaxed);
            oldest = at;
            at = before;
        }
        while oldest != EMPTY {
            let next = links[oldest as usize].0.load(Ordering::Relaxed);
            each(oldest);
            oldest = next;
        }
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn tasks_come_out_in_the_order_in_which_they_were_put() {
        let links: Vec<Link> = (0..5).map(|_| Link::new()).collect();
        let inbox = Inbox::new();
        assert!(inbox.put(3, &links));
        assert!(!inbox.put(0, &links));
        assert!(!inbox.put(4, &links));
        let mut taken = Vec::new();
        inbox.take(&links, |task| taken.push(task));
        assert_eq!(taken, [3, 0, 4]);
        assert!(inbox.is_empty());
    }

    /// Two threads put, a third takes meanwhile: nothing is lost or comes twice.
    #[cfg(loom)]
    #[test]
    fn loom_nothing_is_lost() {
        use loom::sync::Arc;
        loom::model(|| {
            let links: Vec<Link> = (0..3).map(|_| Link::new()).collect();
            let shared = Arc::new((Inbox::new(), links));
            let putters: Vec<_> = [vec![0], vec![1, 2]]
                .into_iter()
                .map(|tasks| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        for task in tasks {
                            shared.0.put(task, &shared.1);
                        }
                    })
                })
                .collect();
            let mut taken = Vec::new();
            shared.0.take(&shared.1, |task| taken.push(task));
            for putter in putters {
                putter.join().expect("it ends");
            }
            shared.0.take(&shared.1, |task| taken.push(task));
            taken.sort_unstable();
            assert_eq!(taken, [0, 1, 2]);
        });
    }
}
