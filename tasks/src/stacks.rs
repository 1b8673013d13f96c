//! Virtual ranks: many ranks on one worker, each on a stack of its own.
//!
//! A worker is a thread. It resumes its ranks in turn; one that waits gives its turn to the
//! others, and after some turns without result parks: its worker then looks at one word of it, which
//! peers clear, and comes back to it once that is done. A worker all of whose ranks are parked
//! spins, yields, and sleeps at their bells.
//!
//! ```text
//! resume a rank -> it waits -> Turn, Poll  again in the next round
//!                              While       again in the next round; a sleep is short
//!                              Roused      once its word is 0, or time is up
//!                  it ends  -> its stack is kept for another
//! all parked    -> spin, yield -> want bells, barrier, each looks once more -> sleep
//! ```
//!
//! # Invariants
//! 1. A rank's stack is resumed by the thread that made it only, and by nobody else while it
//!    runs. The yielder of a stack is used by code on that stack, so while it exists.
//! 2. All ranks end before [`run`] returns or unwinds, or the process ends: bodies may borrow
//!    what outlives the call. A panic of a body ends at the foot of its stack.
//! 3. A worker sleeps only after each parked rank has wanted its bell, a barrier that all
//!    senders pass, and a look of each rank, in this order: what was posted before is found,
//!    what is posted later rings.
//! 4. A post that neither the look of a rank that parks nor its sender has noticed is found by
//!    one of the looks that parked ranks have in turn while their worker does not sleep.
//!
//! Invariants of what is suspended stand at the head of [`suspend`].
//!
//! # Sources
//! Ranks as user-level threads that are switched where they block: C. Huang, O. Lawlor,
//! L. V. Kalé, "Adaptive MPI", LCPC 2003, sections 3 and 4. Here a rank stays on its worker and
//! nothing of the process is made private to it. Stacks and switches: the crate `corosensei`.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use osier_engine::diagnose::tell;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::suspend::{self, RankCount, Resumed, Stack, SuspendUntil, Switch};
use osier_transports::shm::{Parked, monotonic_ns};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a rank's stack, as a thread of Rust has by default. Pages come with first use.
pub const STACK_BYTES: usize = 2 << 20;
/// Most stacks that are kept for ranks to come.
const MOST_KEPT: usize = 256;
/// Rounds without a roused rank before a worker yields its core,
pub const SPINS: u32 = 2_000;
/// the same where workers share cores,
pub const SPINS_SHARED: u32 = 16;
/// and rounds with a yield each before it sleeps.
const YIELDS: u32 = 200;
/// Rounds of ranks that poll between two yields.
const POLLS_PER_YIELD: u32 = 8;
/// Rounds between two looks at the clock, and of one parked rank.
const ROUNDS_PER_LOOK: u32 = 64;
/// Longest sleep while a rank waits for what tells nobody.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// What a rank does: it runs on its stack, to its end.
pub type RankBody<'a> = Box<dyn FnOnce() + 'a>;

/// Stacks of ranks that have ended.
static KEPT: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

fn kept() -> std::sync::MutexGuard<'static, Vec<DefaultStack>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many stacks with a guard page each, those that are kept first.
///
/// # Errors
/// There is no memory for them.
pub fn stacks(number: usize) -> Result<Vec<DefaultStack>> {
    let stack = |_| {
        if let Some(stack) = kept().pop() {
            return Ok(stack);
        }
        DefaultStack::new(STACK_BYTES).map_err(|e| {
            let what = format!("a stack of {STACK_BYTES} bytes for one of {number} virtual ranks");
            Error::new(ErrorKind::OutOfMemory, format!("{what}: {e}"))
        })
    };
    (0..number).map(stack).collect()
}

/// What a rank and its worker tell each other.
struct Handover {
    /// Of the stack; set first of all.
    yielder: Cell<*const Yielder<Resumed, ()>>,
    /// What the rank waits for.
    until: RefCell<SuspendUntil>,
}

struct FromStack(Rc<Handover>);

impl Switch for FromStack {
    fn switch(&self, until: SuspendUntil) -> Resumed {
        self.0.until.replace(until);
        // SAFETY: invariant 1: this runs on the stack of the yielder, which its first frame
        // holds.
        let yielder = unsafe { &*self.0.yielder.get() };
        yielder.suspend(())
    }
}

/// How a body ended; an error is a panic's payload.
pub type BodyResult = std::result::Result<(), Box<dyn Any + Send>>;

enum State {
    Turn,
    Poll,
    While,
    Parked { parked: Parked, until_ns: u64 },
    Ended,
}

/// A rank as its worker sees it.
struct OnStack {
    /// None of one that has ended.
    coroutine: Option<Coroutine<Resumed, (), BodyResult>>,
    stack: Rc<Stack>,
    seat: Rc<Handover>,
    state: State,
    ended: BodyResult,
}

impl OnStack {
    fn new(body: RankBody<'_>, stack: DefaultStack) -> OnStack {
        let seat = Rc::new(Handover {
            yielder: Cell::new(std::ptr::null()),
            until: RefCell::new(SuspendUntil::Turn),
        });
        let own = seat.clone();
        let on_stack = move |yielder: &Yielder<Resumed, ()>, _: Resumed| {
            own.yielder.set(std::ptr::from_ref(yielder));
            catch_unwind(AssertUnwindSafe(body))
        };
        // SAFETY: invariant 2: what the body borrows outlives `run`, and so this coroutine,
        // which has ended by then.
        let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, on_stack) };
        OnStack {
            coroutine: Some(coroutine),
            stack: Stack::new(Box::new(FromStack(seat.clone()))),
            seat,
            state: State::Turn,
            ended: Ok(()),
        }
    }

    /// Goes to its stack, until it is suspended or ends.
    fn resume(&mut self, how: Resumed) {
        let Some(coroutine) = &mut self.coroutine else {
            return;
        };
        // Nothing of the rank is kept here while it runs: it may leave its job.
        let was_until_ns = match std::mem::replace(&mut self.state, State::Turn) {
            State::Parked { until_ns, .. } => until_ns,
            _ => u64::MAX,
        };
        let outer = suspend::enter(Some(self.stack.clone()));
        let result = coroutine.resume(how);
        suspend::enter(outer);
        self.state = match result {
            CoroutineResult::Return(ended) => {
                self.ended = ended;
                if let Some(coroutine) = self.coroutine.take() {
                    let mut kept = kept();
                    if kept.len() < MOST_KEPT {
                        kept.push(coroutine.into_stack());
                    }
                }
                State::Ended
            }
            CoroutineResult::Yield(()) => {
                match (self.seat.until.replace(SuspendUntil::Turn), how) {
                    (SuspendUntil::Turn, _) => State::Turn,
                    (SuspendUntil::Poll, _) => State::Poll,
                    (SuspendUntil::While, _) => State::While,
                    (SuspendUntil::Roused(parked, time), how) => State::Parked {
                        parked,
                        // A look does not make a wait longer.
                        until_ns: match how {
                            Resumed::Look => was_until_ns,
                            Resumed::Run => monotonic_ns() + time.as_nanos() as u64,
                        },
                    },
                }
            }
        };
    }

    fn parked(&self) -> Option<&Parked> {
        match &self.state {
            State::Parked { parked, .. } => Some(parked),
            _ => None,
        }
    }

    /// Parked, and its peers are to ring.
    fn wants_bell(&self) -> bool {
        self.parked().is_some_and(Parked::wants_bell)
    }
}

/// The ranks of a worker.
struct StackWorker {
    members: Vec<OnStack>,
    /// That have not ended.
    live: usize,
    count: RankCount,
}

/// Runs bodies on stacks of their own, in turn, until all have ended; how each has. A worker
/// whose core is its own spins for some time before it yields ([`SPINS`], [`SPINS_SHARED`]).
/// There is a stack for each.
pub fn run(bodies: Vec<RankBody<'_>>, stacks: Vec<DefaultStack>, spins: u32) -> Vec<BodyResult> {
    assert_eq!(bodies.len(), stacks.len(), "a stack for each rank");
    let with_stacks = bodies.into_iter().zip(stacks);
    let members: Vec<_> = with_stacks.map(|(b, s)| OnStack::new(b, s)).collect();
    let mut crew = StackWorker {
        live: members.len(),
        count: RankCount::begin(members.len()),
        members,
    };
    let (mut rounds, mut idle) = (0u32, 0u32);
    while crew.live > 0 {
        rounds = rounds.wrapping_add(1);
        let round = crew.round(rounds);
        idle = if round.moved {
            0
        } else {
            idle.saturating_add(1)
        };
        if idle < spins {
            if !round.polls {
                std::hint::spin_loop();
            }
        } else if round.polls {
            if idle.is_multiple_of(POLLS_PER_YIELD) {
                std::thread::yield_now();
            }
        } else if idle - spins < YIELDS {
            std::thread::yield_now();
        } else {
            crew.sleep();
            // The next round looks at the clock.
            rounds = ROUNDS_PER_LOOK - 1;
        }
    }
    let members = std::mem::take(&mut crew.members);
    members.into_iter().map(|member| member.ended).collect()
}

/// What a round has found.
struct RoundResult {
    /// A rank was roused, has ended, or has done something in its turn.
    moved: bool,
    /// A rank polls in its turns.
    polls: bool,
}

impl StackWorker {
    fn round(&mut self, number: u32) -> RoundResult {
        let looks = number.is_multiple_of(ROUNDS_PER_LOOK);
        let now = if looks { monotonic_ns() } else { 0 };
        let looks_at = (number / ROUNDS_PER_LOOK) as usize % self.members.len();
        let mut round = RoundResult {
            moved: false,
            polls: false,
        };
        for at in 0..self.members.len() {
            let how = match &self.members[at].state {
                State::Ended => continue,
                State::Turn => {
                    round.moved = true;
                    Resumed::Run
                }
                State::Poll => {
                    round.polls = true;
                    Resumed::Run
                }
                State::While => Resumed::Run,
                State::Parked { parked, until_ns } => {
                    let roused = parked.is_roused();
                    round.moved |= roused;
                    if roused || now >= *until_ns {
                        Resumed::Run
                    } else if looks && at == looks_at {
                        Resumed::Look
                    } else {
                        continue;
                    }
                }
            };
            round.moved |= self.resume(at, how);
        }
        round
    }

    /// Resumes a rank; whether it has ended.
    fn resume(&mut self, at: usize, how: Resumed) -> bool {
        self.members[at].resume(how);
        let ended = matches!(self.members[at].state, State::Ended);
        if ended {
            self.live -= 1;
            self.count.ended();
        }
        ended
    }

    fn parked(&self) -> impl Iterator<Item = &Parked> {
        self.members.iter().filter_map(OnStack::parked)
    }

    /// Sleeps until a rank is roused or its time is up (invariant 3).
    fn sleep(&mut self) {
        let mut calm = self.parked().all(Parked::want_bell);
        if calm {
            Parked::barrier(self.parked());
            for at in 0..self.members.len() {
                if self.members[at].parked().is_some() {
                    self.resume(at, Resumed::Look);
                    calm &= self.members[at].wants_bell();
                }
                if !calm {
                    break;
                }
            }
        }
        if calm {
            Parked::sleep_at(self.parked(), longest(&self.members));
        }
        self.parked().for_each(Parked::want_no_bell);
    }
}

impl Drop for StackWorker {
    /// Ends the process where ranks would be left in the middle (invariant 2).
    fn drop(&mut self) {
        if self.live > 0 {
            let left = self.live;
            tell(format_args!(
                "a worker ends before {left} of its virtual ranks; the process ends"
            ));
            std::process::abort();
        }
    }
}

/// Time until the first rank is to go on anyway.
fn longest(members: &[OnStack]) -> Duration {
    let now = monotonic_ns();
    let time = |member: &OnStack| match &member.state {
        State::Parked { until_ns, .. } => Some(Duration::from_nanos(until_ns.saturating_sub(now))),
        State::While => Some(SHORT_SLEEP),
        State::Turn | State::Poll | State::Ended => None,
    };
    members.iter().filter_map(time).min().unwrap_or(SHORT_SLEEP)
}
