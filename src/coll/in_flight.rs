//! State of one collective in flight, as its caller sees it.
//!
//! ```text
//! Idle -> Pending -> Done -> Idle
//! ```
//!
//! # Invariants
//! 1. While it is pending the run may use its buffers; in all other states nothing does.
//! 2. A result is taken once.

use super::Launch;
use super::ask::Ask;
use crate::choice::bytes_of;
use crate::comm::Communicator;
use crate::p2p::{Status, is_driven};
use osier_engine::check::{Check, Site};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::executor::{self, End};
use osier_engine::exec::memory::Buffers;
use osier_engine::exec::program::Program;
use osier_engine::progress::core::Core;
use osier_engine::progress::suspend;
use osier_engine::view::RawView;
use osier_transports::shm::PAGE_SLOT_BYTES;
use std::any::Any;
use std::panic::{Location, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

enum State {
    Idle,
    Pending(u32),
    Done(Result<()>),
}

/// A call that was begun.
pub(crate) struct InFlight {
    comm: Communicator,
    name: &'static str,
    state: State,
    /// Counted among those that a foreign executor waits for.
    counted: bool,
}

impl InFlight {
    /// Of a call that is not begun yet.
    pub fn idle(comm: &Communicator, name: &'static str) -> Self {
        Self {
            comm: comm.clone(),
            name,
            state: State::Idle,
            counted: false,
        }
    }

    /// A run has begun.
    pub fn begin(&mut self, id: u32) {
        self.state = State::Pending(id);
    }

    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    pub fn core(&self) -> &Arc<Core> {
        self.comm.core()
    }

    /// The run, while it is not known to be complete.
    pub fn run(&self) -> Option<u32> {
        match self.state {
            State::Pending(id) => Some(id),
            State::Idle | State::Done(_) => None,
        }
    }

    /// Whether it was begun, and its result not taken.
    pub fn is_active(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Makes progress; true if it is complete.
    pub fn test(&mut self) -> bool {
        let State::Pending(id) = self.state else {
            return true;
        };
        let runs = self.comm.runs_on();
        runs.core().check_deaths();
        let end = runs.core().with(runs.lane(), |lane| {
            if !executor::is_over(lane, id) {
                lane.progress_awake();
            }
            executor::take(lane, id)
        });
        if end.is_none() {
            runs.core().give_turn();
        }
        self.ended(end)
    }

    fn ended(&mut self, end: Option<End>) -> bool {
        let Some(end) = end else {
            return false;
        };
        self.uncount();
        self.state = State::Done(end.result.map_err(|e| e.context(self.name)));
        if let Some(panic) = end.panic {
            resume_unwind(panic);
        }
        true
    }

    /// Waits for the end, and takes the result.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        if let State::Pending(id) = self.state {
            self.comm.reported(self.comm.may_wait(self.name))?;
            let runs = self.comm.runs_on();
            let end = runs
                .core()
                .wait_on(runs.lane(), |lane| executor::take(lane, id));
            self.ended(Some(end));
        }
        self.take()
    }

    /// The result of a complete run.
    #[track_caller]
    pub fn take(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Done(result) => self.comm.reported(result),
            _ => Err(self.comm.raise(Error::new(
                ErrorKind::Argument,
                "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
            ))),
        }
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }

    /// As a future: ready when it is complete.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.test() {
            return Poll::Ready(());
        }
        let State::Pending(id) = self.state else {
            return Poll::Ready(());
        };
        let driven = is_driven(context.waker());
        let mut waker = (!driven).then(|| context.waker().clone());
        let runs = self.comm.runs_on();
        let ended = runs.core().with(runs.lane(), |lane| {
            if let Some(waker) = waker.take() {
                executor::set_waker(lane, id, waker);
            }
            executor::is_over(lane, id)
        });
        if ended && self.test() {
            return Poll::Ready(());
        }
        if !driven && !suspend::awaits() && !self.counted {
            self.counted = true;
            self.comm.core().future_waits();
        }
        Poll::Pending
    }

    /// The status if it is complete. Leaves it as it is.
    pub fn status(&mut self) -> Option<Result<Status>> {
        if !self.test() {
            return None;
        }
        match &mut self.state {
            State::Done(Err(e)) => Some(Err(self.comm.raise_in_place(e))),
            _ => Some(Ok(Status::empty())),
        }
    }

    /// Has `token` left in `ready` at the end; true if that is now.
    pub fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let State::Pending(id) = self.state else {
            return true;
        };
        let runs = self.comm.runs_on();
        let end = runs.core().with(runs.lane(), |lane| {
            if executor::notify(lane, id, ready, token) {
                return None;
            }
            executor::take(lane, id)
        });
        self.ended(end)
    }

    /// Ends the run, because a rank of the job has failed: the others are told.
    pub fn give_up_for(&mut self, failed_rank: u32) {
        self.uncount();
        if let State::Pending(id) = self.state {
            let runs = self.comm.runs_on();
            (runs.core()).with(runs.lane(), |lane| {
                executor::cancel_for(lane, id, failed_rank);
            });
            self.comm.give_up_collective(id);
        }
        self.state = State::Idle;
    }

    /// Detaches the run, which keeps the memory that it uses.
    pub fn let_go(&mut self, owner: impl FnOnce() -> Box<dyn Any + Send>) {
        self.uncount();
        if let State::Pending(id) = self.state {
            let runs = self.comm.runs_on();
            let owner = owner();
            runs.core()
                .with(runs.lane(), |lane| executor::detach(lane, id, owner));
        }
        self.state = State::Idle;
    }
}

impl Communicator {
    /// Begins a call that does not wait.
    #[track_caller]
    pub(crate) fn begin_ask(&self, ask: Result<Ask>) -> Result<InFlight> {
        let (name, begun) = match ask {
            Ok(mut ask) => {
                ask.defers = false;
                let runs = self.runs_on();
                if runs.asks_where() {
                    // It may wait for a stream, and that for what the program does later.
                    ask.not_in_segment();
                }
                (ask.name, runs.begin(ask))
            }
            Err(e) => ("collective", Err(e)),
        };
        let id = self.reported(begun.map_err(|e| e.context(name)))?;
        let mut under_way = InFlight::idle(self, name);
        under_way.begin(id);
        Ok(under_way)
    }

    /// Ends a run as soon as its memory is free.
    pub(crate) fn give_up_collective(&self, id: u32) {
        let runs = self.runs_on();
        runs.core()
            .with(runs.lane(), |lane| executor::cancel(lane, id));
        drop(
            runs.core()
                .wait_on(runs.lane(), |lane| executor::take(lane, id)),
        );
    }

    /// Waits for the end of a run whose request is gone.
    #[track_caller]
    pub(crate) fn finish_collective(&self, id: u32) -> Result<()> {
        self.runs_on().finish(id)
    }
}

/// A persistent call as it was set up.
pub(crate) struct SetUp {
    ask: Ask,
    program: Arc<Program>,
    tags: u32,
    /// Where its flags lie, if its program has some there.
    segment: OwnSegment,
    /// Identifies its memory.
    mark: u64,
    /// Memory of a device is handed over anew at each start, with the ready event from which
    /// its bytes are valid.
    on_device: bool,
}

/// The segment of a persistent call, which is left with the request.
struct OwnSegment {
    /// None: its plan has no flags.
    comm: Option<Communicator>,
    number: u32,
}

impl Drop for OwnSegment {
    fn drop(&mut self) {
        if let Some(comm) = &self.comm {
            let number = self.number;
            comm.core()
                .with(comm.lane(), |lane| lane.leaves_persistent(number));
        }
    }
}

/// Most pages of the segments of a communicator's persistent calls, by which all ranks know
/// which calls have one.
const MOST_PAGES: usize = 4096;
/// The same of calls whose slots may lie elsewhere, of 64 KiB for each set.
const MOST_LONG: usize = 512;

/// Whether a persistent call may have flags in a segment: by its number, the ranks and the size
/// class, which all ranks know.
fn has_segment(number: u32, ranks: usize, class: u32) -> bool {
    let short = bytes_of(class).saturating_mul(ranks as u64) <= PAGE_SLOT_BYTES as u64;
    let most = if short { MOST_PAGES } else { MOST_LONG };
    (number as usize).saturating_mul(ranks) <= most
}

/// The memory of a persistent call's buffers, as they are at a start.
#[derive(Default)]
pub(crate) struct Seen {
    mark: u64,
    /// Where any lies on a device.
    fresh: Vec<RawView>,
}

impl Seen {
    fn add(&mut self, view: RawView, keep: bool) {
        self.mark = (self.mark.wrapping_mul(0x0100_0000_01b3)).wrapping_add(view.mark());
        if keep {
            self.fresh.push(view);
        }
    }
}

impl SetUp {
    pub fn name(&self) -> &'static str {
        self.ask.name
    }

    /// An error of its buffers that every start would have.
    pub(crate) fn check(&self) -> Result<()> {
        let Buffers { send, recv, .. } = &self.ask.buffers;
        let all = send.memory().iter().chain(recv.memory());
        let mut on_devices = all.filter_map(RawView::as_device);
        Ok(on_devices.try_for_each(|memory| memory.check())?)
    }

    /// Lists the views of the buffers.
    pub fn inspect(&self, each: impl FnOnce(&mut dyn FnMut(RawView))) -> Seen {
        let mut seen = Seen::default();
        each(&mut |view| seen.add(view, self.on_device));
        seen
    }
}

impl Communicator {
    /// Sets up a persistent call: chooses its plan, and reserves its tags.
    pub(crate) fn set_up_ask(
        &self,
        ask: Result<Ask>,
        each: impl FnOnce(&mut dyn FnMut(RawView)),
    ) -> Result<SetUp> {
        let (mut ask, numbers) = self.ask_of_set_up(ask)?;
        // Starts come in any order, exchanges in that of the calls.
        ask.may_be_in_one_kernel(false);
        self.set_up_known(ask, numbers, each)
    }

    /// What all ranks know of a persistent call, its number and its tags.
    pub(crate) fn ask_of_set_up(&self, ask: Result<Ask>) -> Result<(Ask, (u32, u32))> {
        let runs = self.runs_on();
        let numbers = runs.lane().lock().executor.reserve_tags();
        let mut ask = self.reported(ask)?;
        ask.defers = false;
        if !has_segment(numbers.0, runs.size(), ask.class) {
            // It is begun in any order.
            ask.not_in_segment();
        }
        // The round that checks calls comes at each start.
        let asks = !runs.core().checks.has(Check::Collectives);
        self.reported(runs.know_spaces(&mut ask, asks))?;
        Ok((ask, numbers))
    }

    /// Sets it up.
    pub(crate) fn set_up_known(
        &self,
        mut ask: Ask,
        (number, tags): (u32, u32),
        each: impl FnOnce(&mut dyn FnMut(RawView)),
    ) -> Result<SetUp> {
        let runs = self.runs_on();
        // The others have asked this rank.
        if let Some(e) = ask.error.take() {
            return self.reported(Err(e.context(ask.name)));
        }
        let program = self.reported(runs.program_of(&ask))?;
        if program.of_neighbors {
            // Starts wait for neighbors, and for no other rank to make it.
            runs.lane().lock().makes_segment(number);
        }
        let mut seen = Seen::default();
        each(&mut |view| seen.add(view, false));
        let Buffers { send, recv, .. } = &ask.buffers;
        let mut memory = send.memory().iter().chain(recv.memory());
        Ok(SetUp {
            on_device: memory.any(|view| view.as_device().is_some()),
            segment: OwnSegment {
                comm: program.in_segment.then(|| runs.clone()),
                number,
            },
            program,
            tags,
            mark: seen.mark,
            ask,
        })
    }

    /// Begins a persistent call once more.
    #[track_caller]
    pub(crate) fn start_set_up(&self, set_up: &SetUp, seen: Seen) -> Result<u32> {
        if seen.mark != set_up.mark {
            return self.reported(Err(Error::new(
                ErrorKind::Argument,
                "the buffers of a persistent collective are not those that it was set up with (hint: fill them where they are, or set up another)",
            )));
        }
        let site = self.core().checks.site(Location::caller());
        self.reported(self.launch_set_up(set_up, &seen.fresh, site))
    }

    /// Begins it with memory as it was set up, but for what is `fresh`.
    pub(crate) fn launch_set_up(
        &self,
        set_up: &SetUp,
        fresh: &[RawView],
        site: Site,
    ) -> Result<u32> {
        let runs = self.runs_on();
        let mut ask = set_up.ask.clone();
        if set_up.on_device {
            let again = |old: &RawView| {
                let same = fresh.iter().find(|view| view.mark() == old.mark());
                same.unwrap_or(old).clone()
            };
            ask.buffers.send.replace(again);
            ask.buffers.recv.replace(again);
        }
        let round = runs.round(&ask, site)?;
        let call = Launch {
            staged: ask.settle(runs, &set_up.program),
            program: set_up.program.clone(),
            tags: set_up.tags,
            of: set_up.segment.number,
            site,
            round,
        };
        runs.launch(&mut runs.lane().lock(), ask, call)
    }
}
