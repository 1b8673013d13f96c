//! Registry of this process's threads that wait inside Osier.
//!
//! Any thread of a process may hold a communicator and send. So a rank is
//! stuck for certain only if every thread that its process has is in a wait
//! that Osier knows of. The kernel lists the threads; the waits name theirs. A thread that runs
//! virtual ranks is in a wait when all of these are.
//!
//! The list is the one thing of the core that belongs to the process and not
//! to a `Universe`: threads do, too.

use super::outside::Process;
use std::any::Any;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that wait, with the job of the wait. A process may hold ranks of several jobs, and
/// a wait in one of them says nothing about another.
static INSIDE: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<(u64, u32)>> {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernel's number of this thread; 0, which no thread has, where it is not known.
fn this_thread() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").ok();
    let number = link.as_deref().and_then(|l| l.file_name()?.to_str());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// While it lives, its thread counts as one that waits inside Osier: it does
/// nothing by itself and can be woken only by what ranks of its job do. Of a virtual rank: while
/// all of its worker's do.
pub struct Inside(Of);

enum Of {
    Thread(u64, u32),
    Rank(#[expect(dead_code, reason = "dropped with it")] Box<dyn Any>),
}

/// Counts a wait of the virtual rank that runs here, for a job, until what it returns is dropped;
/// `None`: none does.
pub(crate) type CountRank = fn(u64) -> Option<Box<dyn Any>>;

thread_local! {
    static COUNT_RANK: Cell<Option<CountRank>> = const { Cell::new(None) };
}

/// This thread runs virtual ranks, whose waits are counted so.
pub(crate) fn count_ranks_by(count: CountRank) {
    COUNT_RANK.set(Some(count));
}

impl Inside {
    /// Counts this thread for a job, or this virtual rank.
    pub fn enter(job: u64) -> Inside {
        match COUNT_RANK.get().and_then(|count| count(job)) {
            Some(rank) => Inside(Of::Rank(rank)),
            None => Inside::of_thread(job),
        }
    }

    /// Counts this thread.
    pub(crate) fn of_thread(job: u64) -> Inside {
        let thread = this_thread();
        lock().push((job, thread));
        Inside(Of::Thread(job, thread))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Of::Thread(job, thread) = self.0 else {
            return;
        };
        let mut inside = lock();
        if let Some(at) = inside.iter().position(|e| *e == (job, thread)) {
            inside.swap_remove(at);
        }
    }
}

/// The threads that are not inside. `None` where that is not known, and where a thread waits
/// in another job, which may wake it.
pub fn outside(job: u64) -> Option<Vec<u32>> {
    let inside = lock();
    if inside.iter().any(|(j, _)| *j != job) {
        return None;
    }
    let mut threads = Process::own().threads()?;
    threads.retain(|t| !inside.iter().any(|(_, inside)| t == inside));
    Some(threads)
}

/// Whether every thread of the process is inside, all in this job. False where
/// that is not known.
pub fn all_inside(job: u64) -> bool {
    outside(job).is_some_and(|outside| outside.is_empty())
}
