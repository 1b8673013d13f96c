//! Whether all threads of this process wait inside Osier.
//!
//! Any thread of a process may hold a communicator and send. So a rank is
//! stuck for certain only if every thread that its process has is in a wait
//! that Osier knows of. The kernel says how many threads there are; the waits
//! count themselves.
//!
//! The count is the one thing of the core that belongs to the process and not
//! to a [`Universe`](crate::Universe): threads do, too.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that wait, by job. A process may hold ranks of several jobs, and a
/// wait in one of them says nothing about another.
static INSIDE: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<(u64, usize)>> {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, its thread counts as one that waits inside Osier: it does
/// nothing by itself and can be woken only by what ranks of its job do.
#[derive(Debug)]
pub struct Inside(u64);

impl Inside {
    /// Counts this thread for a job.
    pub fn enter(job: u64) -> Inside {
        let mut inside = lock();
        match inside.iter_mut().find(|(j, _)| *j == job) {
            Some((_, n)) => *n += 1,
            None => inside.push((job, 1)),
        }
        Inside(job)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = lock();
        if let Some((_, n)) = inside.iter_mut().find(|(j, _)| *j == self.0) {
            *n -= 1;
        }
        inside.retain(|(_, n)| *n > 0);
    }
}

/// Whether every thread of the process is inside, all in this job. False where
/// that is not known.
pub fn all_inside(job: u64) -> bool {
    let inside = lock();
    let [(only, n)] = inside[..] else {
        return false;
    };
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    only == job && threads.is_ok_and(|threads| threads == n)
}
