//! Suspension of a virtual rank: what a wait does in place of blocking its thread.
//!
//! A virtual rank runs on a stack of its own, and its worker, a thread, has many. The scheduler
//! of a worker is not here (crate `tasks`): it implements [`Switch`] and says by [`enter`] whose
//! stack runs. Every place of the library that spins, yields or sleeps asks [`here`] first.
//!
//! ```text
//! wait of a virtual rank    finds nothing -> Turn, Poll, Poll ..    polls in turn
//!                           still nothing -> Roused                 its worker watches a word
//! test, probe in a loop     finds nothing -> Poll
//! ```
//!
//! # Invariants
//! 1. A virtual rank stays on its worker: what is told apart by thread (the lock of a lane, warm
//!    memory, recordings) stays right.
//! 2. No rank is suspended while it holds a lane or a lock of the library, nor within code that
//!    is run as a lane is released: [`NoSuspension`] marks the latter, and [`here`] is none there. So a
//!    waker, a `Drop` or an operator that waits blocks its worker.
//! 3. What a check has set for its thread ([`crate::diagnose::waits`], [`Awaits`]), and the task
//!    that its rank is in ([`super::no_wait`]), is put aside while the rank is suspended.
//! 4. A worker counts as a thread that waits inside Osier while all of its ranks that have not
//!    ended do, and not before.
//! 5. A rank that is suspended while it unwinds does not make others look as if they did:
//!    [`unwinds`] in place of [`std::thread::panicking`].

use crate::diagnose::threads::{Inside, count_ranks_by};
use crate::diagnose::waits::Listening;
use crate::progress::no_wait::TaskAside;
use crate::progress::owed;
use osier_transports::shm::Parked;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// When a suspended rank is to go on.
pub enum SuspendUntil {
    /// After the other ranks of its worker have had their turn.
    Turn,
    /// The same, of a rank that has only asked, and found nothing, since its last turn.
    Poll,
    /// The same, but nothing is lost if its worker first sleeps for about a millisecond: what it
    /// waits for tells nobody.
    While,
    /// Once it is roused, or after this time.
    Roused(Parked, Duration),
}

/// What a suspended rank does when it runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Goes on.
    Run,
    /// It is parked: looks whether something has come, and is suspended again if not.
    Look,
}

/// Switches from a rank's stack to its worker's.
pub trait Switch {
    /// Suspends the rank that runs. Returns when its worker resumes it.
    fn switch(&self, until: SuspendUntil) -> Resumed;
}

/// A virtual rank, for the code that runs on its stack.
pub struct Stack {
    switch: Box<dyn Switch>,
    /// Registered waits.
    inside: Cell<u32>,
    /// It was suspended while it unwound.
    unwinds: Cell<bool>,
}

/// The ranks of this thread.
#[derive(Default)]
struct WorkerCounts {
    /// That have not ended,
    live: usize,
    /// those of them that wait inside Osier,
    inside: usize,
    /// the job in which they do; none where it is not the same,
    job: Option<u64>,
    /// and the thread's entry while all are.
    listed: Option<Inside>,
    /// WorkerCounts that are suspended while they unwind.
    unwinding: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Stack>>> = const { RefCell::new(None) };
    static RANKS: RefCell<WorkerCounts> = RefCell::new(WorkerCounts::default());
    static BOUND: Cell<u32> = const { Cell::new(0) };
    static AWAITS: Cell<bool> = const { Cell::new(false) };
}

impl Stack {
    pub fn new(switch: Box<dyn Switch>) -> Rc<Stack> {
        Rc::new(Stack {
            switch,
            inside: Cell::new(0),
            unwinds: Cell::new(false),
        })
    }

    /// Suspends this rank, which runs.
    pub fn suspend(&self, until: SuspendUntil) -> Resumed {
        debug_assert_eq!((owed::locks_held(), lanes::held()), (0, 0), "invariant 2");
        let listening = Listening::put_aside();
        let awaits = AWAITS.replace(false);
        let task = TaskAside::put();
        let unwinds = std::thread::panicking() && unwinds();
        if unwinds {
            self.unwinds.set(true);
            RANKS.with_borrow_mut(|ranks| ranks.unwinding += 1);
        }
        let resumed = self.switch.switch(until);
        if unwinds {
            RANKS.with_borrow_mut(|ranks| ranks.unwinding -= 1);
        }
        task.bring_back();
        AWAITS.set(awaits);
        listening.bring_back();
        resumed
    }

    /// Lets the other ranks of the worker have a turn; the first or a later one since something
    /// was found.
    pub fn turn(&self, first: bool) {
        self.suspend(if first {
            SuspendUntil::Turn
        } else {
            SuspendUntil::Poll
        });
    }
}

/// The virtual rank whose stack this is, if it may be suspended.
#[inline]
pub fn here() -> Option<Rc<Stack>> {
    // At the end of the thread there is none.
    let current = CURRENT.try_with(|current| current.borrow().clone());
    let current = current.ok().flatten()?;
    (BOUND.get() == 0 && owed::locks_held() == 0).then_some(current)
}

/// Lets the other ranks of this worker have a turn, as [`Stack::turn`]; false where this is no
/// virtual rank.
#[inline]
pub fn turn(first: bool) -> bool {
    let here = here();
    if let Some(here) = &here {
        here.turn(first);
    }
    here.is_some()
}

/// To be called by the worker as it goes to a rank's stack, or comes back (none); what was there.
pub fn enter(stack: Option<Rc<Stack>>) -> Option<Rc<Stack>> {
    CURRENT.with(|current| current.replace(stack))
}

/// While it lives, this thread is a worker with virtual ranks.
pub struct RankCount(WorkerCounts);

impl RankCount {
    /// With this number of ranks. A virtual rank may begin to be a worker itself.
    pub fn begin(ranks: usize) -> RankCount {
        count_ranks_by(|job| Some(Box::new(WaitsInside::begin(job)?)));
        let live = WorkerCounts {
            live: ranks,
            ..WorkerCounts::default()
        };
        RankCount(RANKS.replace(live))
    }

    /// One of its ranks has ended.
    pub fn ended(&self) {
        with_ranks(|ranks| ranks.live -= 1);
    }
}

impl Drop for RankCount {
    fn drop(&mut self) {
        RANKS.set(std::mem::take(&mut self.0));
    }
}

/// Changes the counts of this worker, and lists or unlists it (invariant 4).
fn with_ranks(change: impl FnOnce(&mut WorkerCounts)) {
    let unlisted = RANKS.with_borrow_mut(|ranks| {
        change(ranks);
        let all = ranks.live > 0 && ranks.inside == ranks.live;
        match ranks.job {
            Some(job) if all => {
                if ranks.listed.is_none() {
                    ranks.listed = Some(Inside::of_thread(job));
                }
                None
            }
            _ => ranks.listed.take(),
        }
    });
    drop(unlisted);
}

/// A registered wait of a virtual rank.
struct WaitsInside(Rc<Stack>);

impl WaitsInside {
    /// Of the rank whose stack this is; none of a thread.
    fn begin(job: u64) -> Option<WaitsInside> {
        let stack = here()?;
        let before = stack.inside.replace(stack.inside.get() + 1);
        if before == 0 {
            with_ranks(|ranks| {
                ranks.job = match ranks.inside {
                    0 => Some(job),
                    _ => ranks.job.filter(|other| *other == job),
                };
                ranks.inside += 1;
            });
        }
        Some(WaitsInside(stack))
    }
}

impl Drop for WaitsInside {
    fn drop(&mut self) {
        let inside = self.0.inside.get() - 1;
        self.0.inside.set(inside);
        if inside == 0 {
            with_ranks(|ranks| ranks.inside -= 1);
        }
    }
}

/// While it lives, this thread runs foreign code on behalf of a lane that it has released:
/// nothing is suspended (invariant 2).
pub(crate) struct NoSuspension(());

impl NoSuspension {
    pub fn begin() -> NoSuspension {
        BOUND.set(BOUND.get() + 1);
        NoSuspension(())
    }
}

impl Drop for NoSuspension {
    fn drop(&mut self) {
        BOUND.set(BOUND.get() - 1);
    }
}

/// While it lives, this thread polls a future of a virtual rank, or of a task, whose thread makes
/// progress for all that the future awaits, and says what that is.
pub struct Awaits(bool);

impl Awaits {
    pub fn begin() -> Awaits {
        Awaits(AWAITS.replace(true))
    }
}

impl Drop for Awaits {
    fn drop(&mut self) {
        AWAITS.set(self.0);
    }
}

/// Lanes whose lock this thread has, in builds with assertions.
pub(crate) mod lanes {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    /// Their number; 0 in builds without assertions.
    pub fn held() -> u32 {
        HELD.get()
    }

    /// A lane was locked, or released (-1).
    #[inline(always)]
    pub fn count(change: i32) {
        if cfg!(debug_assertions) {
            // At the end of a thread nobody is suspended.
            let _ = HELD.try_with(|held| held.set(held.get().wrapping_add_signed(change)));
        }
    }
}

/// Whether who polls a future here makes progress for it.
#[inline]
pub fn awaits() -> bool {
    AWAITS.get()
}

/// Whether this thread unwinds, or this virtual rank: another that was suspended meanwhile does
/// not count.
pub fn unwinds() -> bool {
    if !std::thread::panicking() {
        return false;
    }
    let own = CURRENT.with_borrow(|current| current.as_ref().is_some_and(|s| s.unwinds.get()));
    own || RANKS.with_borrow(|ranks| ranks.unwinding == 0)
}
