//! Who handles messages while tasks run: the workers between tasks, or a thread besides them.
//!
//! A message that takes several steps stands still while the workers of either side are inside
//! tasks, up to as long as a task runs for each step. A thread that takes these steps costs the
//! workers processor time, and wakes up late if it sleeps; so it is no use beside short tasks,
//! nor where nobody waits. Unless it is told, a run measures which is the case:
//!
//! ```text
//! without thread -> with thread      tasks are long, long messages go, and the workers wait
//!                                    for messages or there is a core for the thread
//! with thread -> without thread      tasks are short, or no long messages go, for some time
//! ```
//!
//! What was chosen holds for later runs of the graph, in which it is measured on. The rule is pure
//! ([`ThreadChoice`]): times and counts come in.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution"
//! (Tarragon), 2011, section 3.2: neither a thread for messages nor workers that do both is the
//! faster one everywhere. The choice by measured times is ours.

use crate::report::ProgressThread;
use osier_engine::progress::core::{Core, JobTransport, Tended, WithThread};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// Tasks that run at least this long are long: some 500 times the latency of a short message
/// between near cores, and longer than a thread takes to wake up. Not tuned.
const LONG_TASK_NS: u64 = 100_000;
/// Bytes of a message from which it may take several steps. Not tuned.
pub(crate) const LONG_MESSAGE_BYTES: usize = 8 << 10;
/// Time of workers after which the choice is looked at.
const WINDOW_NS: u64 = 20_000_000;
/// Time after which a worker tells what it did.
const TELL_NS: u64 = 2_000_000;
/// Workers wait for messages if they do so for one part in this many of their time.
const AWAITING_PARTS: u64 = 8;
/// Windows in a row that speak against the thread before it is given up: the messages of long
/// tasks are far apart.
const MOST_AGAINST: u32 = 8;

/// Who handles messages while a crew runs tasks.
pub(crate) struct Progress {
    core: Arc<Core>,
    poller: Mutex<Poller>,
    /// Of the graph; none if it was told.
    choice: Option<Arc<Mutex<ThreadChoice>>>,
    /// The job has a core for the thread of each rank.
    has_core: bool,
}

impl Progress {
    /// Of a crew that is about to begin.
    pub fn begin(
        core: &Arc<Core>,
        workers: usize,
        told: ProgressThread,
        choice: &Arc<Mutex<ThreadChoice>>,
    ) -> Progress {
        // On a simulated network nothing depends on the clock; the thread of a virtual rank has
        // others to run.
        let measures = matches!(core.transport, JobTransport::Shm(_)) && !core.on_stack();
        let choice = match told {
            ProgressThread::Auto if measures => Some(choice.clone()),
            _ => None,
        };
        let with_thread = match &choice {
            Some(choice) => lock(choice).with_thread(),
            None => told == ProgressThread::Always,
        };
        Progress {
            poller: Mutex::new(Poller::of(core, with_thread)),
            choice,
            has_core: core.cores_per_rank() > workers,
            core: core.clone(),
        }
    }

    /// A worker has spent time. False: others are telling theirs; it tells later.
    fn tell(&self, spent: Spent) -> bool {
        let Some(choice) = &self.choice else {
            return true;
        };
        let mut choice = match choice.try_lock() {
            Ok(choice) => choice,
            Err(TryLockError::Poisoned(choice)) => choice.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let with_thread = choice.tell(spent, self.has_core);
        drop(choice);
        let mut poller = lock(&self.poller);
        if poller.is_thread() != with_thread {
            // The new one is there before the old one goes.
            *poller = Poller::of(&self.core, with_thread);
        }
        true
    }

    /// Whether a thread handles messages now.
    pub fn with_thread(&self) -> bool {
        lock(&self.poller).is_thread()
    }
}

/// What a worker has seen of a run so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Time without a task or a message.
    pub idle_ns: u64,
    /// Of that, waits in which a message of another rank came.
    pub awaiting_ns: u64,
    /// Long messages of the rank.
    pub long_messages: u64,
}

/// How a worker spends its time, as it tells the others.
pub(crate) struct Timesheet<'a> {
    progress: &'a Progress,
    /// When it last told, and what it had seen by then.
    told: Instant,
    before: Totals,
    /// Since then.
    in_long_ns: u64,
}

impl<'a> Timesheet<'a> {
    /// Of a worker of a run that begins now.
    pub fn new(progress: &'a Progress, now: Instant) -> Timesheet<'a> {
        Timesheet {
            progress,
            told: now,
            before: Totals::default(),
            in_long_ns: 0,
        }
    }

    /// Whether it is to be told.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.progress.choice.is_some()
    }

    /// Some tasks took this time, up to now. True: it is time to tell.
    pub fn ran(&mut self, now: Instant, tasks: u32, ns: u64) -> bool {
        if ns / u64::from(tasks.max(1)) >= LONG_TASK_NS {
            self.in_long_ns += ns;
        }
        (now - self.told).as_nanos() as u64 >= TELL_NS
    }

    /// Tells how it has spent its time since it last did.
    pub fn tell(&mut self, now: Instant, seen: Totals) {
        let since = |seen: u64, before: u64| seen.saturating_sub(before);
        let before = self.before;
        let spent = Spent {
            all_ns: (now - self.told).as_nanos() as u64,
            idle_ns: since(seen.idle_ns, before.idle_ns),
            awaiting_ns: since(seen.awaiting_ns, before.awaiting_ns),
            in_long_ns: self.in_long_ns,
            long_messages: since(seen.long_messages, before.long_messages),
        };
        if self.progress.tell(spent) {
            (self.told, self.before, self.in_long_ns) = (now, seen, 0);
        }
    }
}

/// Whether a graph is run with a progress thread, by what its workers measure.
#[derive(Clone, Debug, Default)]
pub struct ThreadChoice {
    with_thread: bool,
    /// In this window.
    spent: Spent,
    /// Windows in a row that spoke against the thread.
    against: u32,
}

impl ThreadChoice {
    /// Whether there is to be a thread.
    fn with_thread(&self) -> bool {
        self.with_thread
    }

    /// Workers have spent time, and there is a core for the thread or none: whether there is to
    /// be a thread from now on.
    fn tell(&mut self, spent: Spent, has_core: bool) -> bool {
        self.spent.add(spent);
        if self.spent.all_ns < WINDOW_NS {
            return self.with_thread;
        }
        let spent = std::mem::take(&mut self.spent);
        let busy_ns = spent.all_ns.saturating_sub(spent.idle_ns);
        let has_long_tasks = spent.in_long_ns > 0 && 2 * spent.in_long_ns >= busy_ns;
        let is_for = has_long_tasks && spent.long_messages > 0;
        if self.with_thread {
            self.against = if is_for { 0 } else { self.against + 1 };
            self.with_thread = self.against < MOST_AGAINST;
        } else {
            self.against = 0;
            let waits = AWAITING_PARTS * spent.awaiting_ns >= spent.all_ns;
            self.with_thread = is_for && (waits || has_core);
        }
        self.with_thread
    }
}

/// How workers have spent their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    /// In all, in ns.
    all_ns: u64,
    /// Of that, without a task or a message.
    idle_ns: u64,
    /// Of the idle time, waits in which a message of another rank came.
    awaiting_ns: u64,
    /// In turns whose tasks were long.
    in_long_ns: u64,
    /// Long messages that went or came meanwhile.
    long_messages: u64,
}

impl Spent {
    fn add(&mut self, more: Spent) {
        self.all_ns += more.all_ns;
        self.idle_ns += more.idle_ns;
        self.awaiting_ns += more.awaiting_ns;
        self.in_long_ns += more.in_long_ns;
        self.long_messages += more.long_messages;
    }
}

/// Who polls for a crew, until it is dropped.
enum Poller {
    Workers { _tended: Tended },
    Thread { _thread: WithThread },
}

impl Poller {
    fn of(core: &Arc<Core>, with_thread: bool) -> Poller {
        match with_thread {
            true => Poller::Thread {
                _thread: core.with_progress_thread(),
            },
            false => Poller::Workers {
                _tended: core.tend(),
            },
        }
    }

    fn is_thread(&self) -> bool {
        matches!(self, Poller::Thread { .. })
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A window with long tasks and messages, whose workers wait for an eighth.
    const FOR: Spent = Spent {
        all_ns: WINDOW_NS,
        idle_ns: WINDOW_NS / 2,
        awaiting_ns: WINDOW_NS / 8,
        in_long_ns: WINDOW_NS / 4,
        long_messages: 1,
    };

    #[test]
    fn long_tasks_that_wait_for_long_messages_get_a_thread() {
        let with = |spent, has_core| ThreadChoice::default().tell(spent, has_core);
        assert!(with(FOR, false));
        let awaiting_ns = FOR.awaiting_ns - 1;
        assert!(!with(Spent { awaiting_ns, ..FOR }, false), "hardly waits");
        assert!(with(Spent { awaiting_ns, ..FOR }, true), "but has a core");
        let in_long_ns = FOR.in_long_ns - 1;
        for has_core in [false, true] {
            assert!(!with(Spent { in_long_ns, ..FOR }, has_core), "short tasks");
            let long_messages = 0;
            assert!(
                !with(
                    Spent {
                        long_messages,
                        ..FOR
                    },
                    has_core
                ),
                "short messages"
            );
        }
        let idle = Spent {
            idle_ns: WINDOW_NS,
            in_long_ns: 0,
            ..FOR
        };
        assert!(!with(idle, true), "no tasks");
    }

    #[test]
    fn nothing_is_chosen_before_the_end_of_a_window() {
        let mut choice = ThreadChoice::default();
        let part = Spent {
            all_ns: WINDOW_NS / 4,
            idle_ns: WINDOW_NS / 8,
            awaiting_ns: WINDOW_NS / 16,
            in_long_ns: WINDOW_NS / 8,
            long_messages: 0,
        };
        let with_message = Spent {
            long_messages: 1,
            ..part
        };
        for spent in [part, with_message, part] {
            assert!(!choice.tell(spent, false));
        }
        assert!(choice.tell(part, false));
    }

    #[test]
    fn a_thread_is_given_up_after_some_windows_against_it() {
        let mut choice = ThreadChoice::default();
        let waits_no_more = Spent {
            awaiting_ns: 0,
            ..FOR
        };
        let against = Spent {
            long_messages: 0,
            ..FOR
        };
        assert!(choice.tell(FOR, false));
        for _ in 0..20 {
            assert!(choice.tell(waits_no_more, false), "the thread may be why");
        }
        for _ in 0..2 {
            for _ in 1..MOST_AGAINST {
                assert!(choice.tell(against, false));
            }
            assert!(choice.tell(FOR, false), "one for it");
        }
        for _ in 1..MOST_AGAINST {
            assert!(choice.tell(against, false));
        }
        assert!(!choice.tell(against, false));
        assert!(!choice.tell(against, true));
        assert!(choice.tell(FOR, false), "again");
    }
}
