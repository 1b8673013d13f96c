//! Executor: plans in flight on one lane.
//!
//! It starts steps as their inputs arrive, takes the ends of the operations that they became,
//! and starts the steps that waited for them. Its state ([`Executor`]) is a field of the lane;
//! what it needs of the lane's other parts is [`Driver`].
//!
//! ```text
//! Running -> Ended
//!         -> Failing -> Ended     a step failed, here or at a peer
//! ```
//!
//! # Invariants
//! 1. An operation of a run names it and the instance; its end is an event of the run,
//!    which [`advance`] handles.
//! 2. A run that fails sends POISON in place of each message that it owes, or a cancelled
//!    send that is one in place of the rest, and posts a receive without memory for each
//!    that is owed to it: each receive meets one message or one poison, peers that wait get
//!    an error, and nothing of the run is left over for a later one.
//! 3. A run completes when no operation uses its memory, not before.
//! 4. A run is taken out of its slot while it is advanced, so a driver that is called
//!    meanwhile reaches every run but this one.
//!
//! # Sources
//! Failure as a poisoned input that spreads along the graph: M. Bauer, S. Treichler,
//! E. Slaughter, A. Aiken, "Legion", SC 2012, and its runtime Realm.

mod cells;
mod devices;
mod exchange;
mod receives;
mod segment;

pub use devices::advance_device_steps;
pub use exchange::{Gone, Lost, differs, rank_failed};
pub use receives::{received_directly, stop_deferring};
pub use segment::advance_flags;

use self::devices::{begin_device_step, copy_across, works_on};
use self::exchange::begin_exchange;
use self::receives::receive;
use self::segment::segment_step;
use super::foreign::Foreign;
use super::in_segment::{At, Segment};
use super::inline::{Begun, Desk, InSegment};
use super::program::{Action, Program, TAG_BITS};
use super::run::{Combination, Phase, Run, Work};
use super::short::ShortCalls;
use super::step::{self, Messages, Started, Taken};
use crate::check::Site;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::device::Devices;
use crate::error::{Error, ErrorKind, Result};
use crate::matching::INTERNAL_TAG;
use crate::slab::{self, Slab};
use crate::view::RawView;
use osier_kernels::exchange::Exchange;
use std::any::Any;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// The run of an operation that belongs to none.
pub const NO_RUN: u32 = u32::MAX;
/// The failed rank, where it is not known.
pub const NOBODY: u32 = u32::MAX;
/// In place of a failed rank: the communicator is revoked.
pub const REVOKED: u32 = u32::MAX - 1;
/// Bits of a tag for the number of a run.
const SEQUENCE_BITS: u32 = 10;
/// Of the tags of persistent calls.
const PERSISTENT: u32 = 1 << (TAG_BITS + SEQUENCE_BITS);
/// Tags of a run's messages to itself, which no program has.
const TO_HOST: u32 = 8;
const TO_DEVICE: u32 = 16;
const WITHIN: u32 = 24;
const COPY_TAGS: u32 = 8;
/// Tag of what a rank sends that cannot take its part in an exchange.
const EXCHANGE: u32 = 32;
/// Tags of what a rank sends that fails while the segment of its flags is not there.
const NO_SEGMENT: u32 = 40;
/// Runs and programs that are kept to be used again.
const SPARE_RUNS: usize = 8;
const KEPT_PROGRAMS: usize = 256;

/// Upper part of the tags of a persistent call.
fn persistent_tags(sequence: u32) -> u32 {
    INTERNAL_TAG | PERSISTENT | (sequence % (1 << SEQUENCE_BITS)) << TAG_BITS
}

/// Tag of what a rank sends that fails in a call while the segment of its flags is not there.
pub fn instead_of_flags(of: u32, call: u32) -> u32 {
    match of.checked_sub(1) {
        None => INTERNAL_TAG | (call % (1 << SEQUENCE_BITS)) << TAG_BITS | NO_SEGMENT,
        // It has the tags of one call, whose runs are told apart below the phases of programs.
        Some(sequence) => persistent_tags(sequence) | (NO_SEGMENT + 1 + call % 1024),
    }
}

/// An operation of a run has ended.
pub struct StepEnd {
    pub run: u32,
    pub instance: u32,
    pub handle: u32,
    /// The failed rank of the job, or [`NOBODY`].
    pub failed_rank: u32,
}

/// How an operation has ended.
pub struct OperationEnd {
    pub peer: u32,
    /// Bytes of a receive's memory; none of a send.
    pub room: Option<usize>,
    /// Bytes of its message.
    pub result: Result<usize>,
}

/// How a user's function that combines has ended: a panic, or its result.
pub type Combined = std::thread::Result<Result<()>>;

/// What the executor needs of the lane that it is a part of.
pub trait Driver: Segment {
    fn executor(&mut self) -> &mut Executor;

    /// This rank.
    fn own(&self) -> u32;

    /// Posts a send, of this call of the user; one that crosses belongs to a run that
    /// receives at the same time.
    ///
    /// # Errors
    /// Those of a send; [`Driver::failed rank`] has the rank.
    fn post_send(
        &mut self,
        view: RawView,
        to: u32,
        tag: u32,
        crossing: bool,
        site: Site,
    ) -> Result<Started<u32>>;

    /// Posts a receive, of this call of the user.
    ///
    /// # Errors
    /// Those of a receive; [`Driver::failed rank`] has the rank.
    fn post_receive(
        &mut self,
        view: RawView,
        from: u32,
        tag: u32,
        site: Site,
    ) -> Result<Started<u32>>;

    /// Makes an operation a step of a run: its end is an event of it, which comes at once
    /// if the operation has ended.
    fn adopt(&mut self, handle: u32, run: u32, instance: u32);

    /// Whether there is an event.
    fn has_ends(&self) -> bool;

    /// The oldest event.
    fn next_end(&mut self) -> Option<StepEnd>;

    /// Frees an operation that has ended, and returns its end; none if there is none.
    fn take_end(&mut self, handle: u32) -> Option<OperationEnd>;

    /// Operations of a run that have not ended.
    fn operations(&self, run: u32) -> Vec<u32>;

    /// Tells a thread that asks what these wait for.
    fn hear(&self, run: u32);

    /// Makes an operation of a failing run stop using its memory: the instance that it
    /// belongs to, or none where its end will be an event.
    fn stop(&mut self, handle: u32, failed_rank: u32) -> Option<u32>;

    /// Receives a message into nothing.
    fn discard(&mut self, from: u32, tag: u32);

    /// Tells a receive of a peer that its message will not come, and for which failed rank.
    fn poison(&mut self, to: u32, tag: u32, failed_rank: u32);

    /// The failed rank of the job for which the last post failed, with this error and for
    /// this peer; [`NOBODY`] if none did.
    fn failed_rank(&mut self, peer: u32, error: &Error) -> u32;

    fn devices(&self) -> &Arc<Devices>;

    /// Whether ranks of the lane can take no part in this exchange: they have ended, or say so
    /// by a poison of this tag.
    fn lost(&mut self, tag: u32) -> Option<Lost>;

    /// Ranks of the lane.
    fn size(&self) -> u32;

    /// Counts a combination that a kernel makes.
    fn count_combined(&mut self);

    /// Counts bytes that a device copies from or to memory of the host in its memory's place.
    fn count_crossed(&mut self, bytes: usize);

    /// Runs a user's function once the lane's lock is free, and then calls [`combined`].
    fn combine(&mut self, run: u32, instance: u32, combination: Combination);

    /// Drops a value once the lane's lock is free.
    fn drop_later(&mut self, value: Option<Foreign>);

    /// Calls the waker of a completed run once the lane's lock is free, and has the lane's
    /// waiters poll again.
    fn run_is_over(&mut self, waker: Option<Waker>);
}

/// The plans in flight on a lane, and the programs that it keeps.
#[derive(Default)]
pub struct Executor {
    /// Empty while a run is advanced.
    slots: Slab<Option<Box<Run>>>,
    /// Those whose steps a device takes now.
    working: Vec<u32>,
    /// Those that wait for a flag in the ranks' segment.
    awaiting: Vec<u32>,
    #[expect(clippy::vec_box, reason = "boxes to be used again")]
    spare: Vec<Box<Run>>,
    programs: Vec<(u64, Arc<Program>)>,
    pub short_calls: ShortCalls,
    /// Combinations that took no step of their own: their operands were combined as they came.
    pub fused: u64,
    sequence: u32,
    /// Of persistent calls.
    reserved: u32,
    /// For reductions in one kernel, where all ranks have opened each other's inboxes,
    exchange: Option<Arc<Exchange>>,
    /// and in graphs that were captured.
    captured: Vec<Weak<Exchange>>,
}

/// How a run has ended.
pub struct End {
    pub result: Result<()>,
    /// A panic of the program's operator, which belongs to the thread that waits.
    pub panic: Option<Box<dyn Any + Send>>,
}

impl Executor {
    /// Number of runs whose ends were not taken.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether devices take steps of any.
    #[inline]
    pub fn uses_devices(&self) -> bool {
        !self.working.is_empty()
    }

    /// Whether any waits for a flag in the ranks' segment.
    #[inline]
    pub fn awaits_flags(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// The peer whose flag a run waits for, and the run's tags.
    pub fn awaits_flag(&self, id: u32) -> Option<(u32, u32)> {
        let run = self.run(id)?;
        run.awaits.map(|(_, peer)| (peer, run.tags))
    }

    /// The number of a call with these tags: one of the last.
    #[inline]
    pub fn number_of(&self, tags: u32) -> u32 {
        let last = self.sequence.wrapping_sub(1);
        let back = last.wrapping_sub(tags >> TAG_BITS) % (1 << SEQUENCE_BITS);
        last.wrapping_sub(back)
    }

    /// Whether a device takes a step that waits for no other rank.
    pub fn devices_work(&self) -> bool {
        let works = |(_, work): &(u32, Work)| match work {
            Work::Exchange(exchanging) => !exchanging.waits_for_ranks(),
            Work::Kernel(_) => true,
        };
        let mut runs = self.working.iter().filter_map(|id| self.run(*id));
        runs.any(|run| run.works.iter().any(works))
    }

    /// Whether a run waits for all other ranks, in a kernel; its tags.
    pub fn waits_in_kernel(&self, id: u32) -> Option<u32> {
        let waits = |(_, work): &(u32, Work)| match work {
            Work::Exchange(exchanging) => exchanging.waits_for_ranks(),
            Work::Kernel(_) => false,
        };
        let run = self.run(id)?;
        run.works.iter().any(waits).then_some(run.tags | EXCHANGE)
    }

    /// Whether a run without a waiting thread is in flight.
    pub fn unfinished(&self) -> bool {
        !self.slots.is_empty()
            && self.slots.handles().any(|run| {
                let run = self.slots.get(run).and_then(Option::as_ref);
                run.is_some_and(|run| (run.detached || !run.holds.is_empty()) && !run.is_over())
            })
    }

    /// Whether any run may read memory of peers in a segment.
    pub fn any_reads(&self) -> bool {
        self.slots.handles().any(|run| {
            let run = self.slots.get(run).and_then(Option::as_ref);
            run.is_none_or(|run| run.may_read())
        })
    }

    /// Room for a run.
    pub fn spare_run(&mut self) -> Box<Run> {
        self.spare.pop().unwrap_or_default()
    }

    /// A program that was kept.
    #[inline]
    pub fn program(&self, key: u64) -> Option<Arc<Program>> {
        let kept = self.programs.iter().find(|(k, _)| *k == key)?;
        Some(kept.1.clone())
    }

    /// Where a program that was kept stands, and how many steps its inline form has, if it
    /// has one whose pieces may have this many bytes.
    #[inline]
    pub fn inline_program(&self, key: u64, bytes: usize) -> Option<(usize, usize)> {
        let at = self.programs.iter().position(|(k, _)| *k == key)?;
        let inline = self.programs[at].1.inline.as_ref()?;
        inline.fits(bytes).then(|| (at, inline.len()))
    }

    /// Such a program, and what its steps need, if they are those of a segment.
    #[inline]
    pub fn inline_in_segment(&self, program: usize) -> Option<(Arc<Program>, InSegment)> {
        let program = &self.programs.get(program)?.1;
        let with = program.inline.as_ref()?.in_segment()?;
        Some((program.clone(), with))
    }

    /// A step of such a program.
    #[inline]
    pub fn inline_step(&self, program: usize, at: usize) -> Option<Action> {
        let program = &self.programs.get(program)?.1;
        let step = program.inline.as_ref()?.step(at)?;
        Some(program.actions[step as usize])
    }

    /// For a run that takes up such a program after `taken` steps.
    #[cold]
    pub fn begun(&self, program: usize, taken: usize, tags: u32, desk: &Desk<'_>) -> Option<Begun> {
        let inline = self.programs.get(program)?.1.inline.as_ref()?;
        Some(inline.begun(taken, tags, desk))
    }

    /// Keeps a program.
    pub fn keep_program(&mut self, key: u64, program: Arc<Program>) {
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.truncate(KEPT_PROGRAMS / 2);
            self.short_calls.clear();
        }
        self.programs.push((key, program));
    }

    /// Forgets all programs.
    pub fn forget_programs(&mut self) {
        self.programs.clear();
        self.short_calls.clear();
    }

    /// The number of the next call.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.sequence
    }

    /// Upper part of the tags of the next run: all ranks begin their runs in the same
    /// order.
    #[inline]
    pub fn next_tags(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        INTERNAL_TAG | (sequence % (1 << SEQUENCE_BITS)) << TAG_BITS
    }

    /// The number of a persistent call, from 1 on, and the upper part of the tags of all of its
    /// runs: all ranks set them up in the same order, and start them in any.
    pub fn reserve_tags(&mut self) -> (u32, u32) {
        let sequence = self.reserved;
        self.reserved = sequence.wrapping_add(1);
        (self.reserved, persistent_tags(sequence))
    }

    /// Reductions may be one kernel of each rank from now on.
    pub fn exchange_by(&mut self, exchange: Option<Arc<Exchange>>) {
        self.exchange = exchange;
    }

    /// Names a few exchanges that belong to no run, for a rank that fails in them.
    pub fn exchange_tag(&mut self) -> u32 {
        self.next_tags() | EXCHANGE
    }

    /// How they are.
    pub fn exchange(&self) -> Option<&Arc<Exchange>> {
        self.exchange.as_ref()
    }

    /// A graph has an exchange of its own, whose waits end when a rank does.
    pub fn exchange_in_graph(&mut self, exchange: &Arc<Exchange>) {
        // Calls of one graph have one in common.
        let other = |one: &Weak<Exchange>| one.as_ptr() != Arc::as_ptr(exchange);
        (self.captured).retain(|one| one.strong_count() > 0 && other(one));
        self.captured.push(Arc::downgrade(exchange));
    }

    /// Of calls, and of graphs that live.
    pub fn exchanges(&self) -> impl Iterator<Item = Arc<Exchange>> + '_ {
        let captured = self.captured.iter().filter_map(Weak::upgrade);
        self.exchange.iter().cloned().chain(captured)
    }

    /// Ranks have ended: launches of graphs do not wait for them.
    pub fn stop_graphs(&mut self, gone: Gone) {
        for exchange in self.captured.iter().filter_map(Weak::upgrade) {
            gone.stop(&exchange);
        }
    }

    /// Whether all that is left of a run is on a stream of the user's, or nothing is.
    pub fn is_on_stream(&self, id: u32) -> bool {
        let on = |work: &(u32, Work)| match &work.1 {
            Work::Exchange(exchanging) => exchanging.is_on_stream(),
            Work::Kernel(_) => false,
        };
        let run = self.run(id);
        run.is_some_and(|run| {
            let alone = run.in_flight == 1 && run.works.len() == 1;
            run.is_over() || alone && on(&run.works[0])
        })
    }

    fn run(&self, id: u32) -> Option<&Run> {
        self.slots.get(id)?.as_deref()
    }

    fn run_mut(&mut self, id: u32) -> Option<&mut Run> {
        self.slots.get_mut(id)?.as_deref_mut()
    }

    /// Invariant 4.
    fn take_out(&mut self, id: u32) -> Option<Box<Run>> {
        self.slots.get_mut(id).and_then(Option::take)
    }

    /// Holds a stream until a run completes; not at all if it has completed.
    pub fn hold(&mut self, id: u32, hold: Hold) {
        if let Some(run) = self.run_mut(id).filter(|run| !run.is_over()) {
            run.holds.push(hold);
        }
    }

    /// Releases the streams that wait for a run.
    pub fn release(&mut self, id: u32) {
        if let Some(run) = self.run_mut(id) {
            run.holds.clear();
        }
    }

    /// Runs that streams wait for.
    pub fn held(&self) -> impl Iterator<Item = u32> {
        let all = self.slots.handles();
        all.filter(|id| self.run(*id).is_some_and(|run| !run.holds.is_empty()))
    }

    /// Runs that futures wait for, with their wakers and the names of their collectives.
    pub fn wakers(&self) -> impl Iterator<Item = (u32, &Waker, &'static str)> {
        self.awaited().filter_map(|id| {
            let run = self.run(id)?;
            Some((id, run.waker.as_ref()?, run.name))
        })
    }

    /// Runs that futures wait for.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let all = self.slots.handles();
        all.filter(|id| self.run(*id).is_some_and(|run| run.waker.is_some()))
    }
}

/// Starts a run, or fails it with this error. Its buffers belong to it until it completes.
///
/// # Errors
/// There are too many runs.
pub fn begin<D: Driver>(driver: &mut D, mut run: Box<Run>, error: Option<Error>) -> Result<u32> {
    let Some(id) = driver.executor().slots.insert(None) else {
        return Err(slab::full());
    };
    run.id = id;
    let revoked = |e: &Error| e.kind() == ErrorKind::Revoked;
    let cause = if error.as_ref().is_some_and(revoked) {
        REVOKED
    } else {
        NOBODY
    };
    start(driver, &mut run, error, cause);
    put_back(driver, run);
    Ok(id)
}

fn start<D: Driver>(driver: &mut D, run: &mut Run, error: Option<Error>, failed_rank: u32) {
    run.schedule.begin(&run.program.graph);
    run.phase = Phase::Running;
    if let Some(e) = error {
        fail(driver, run, e, failed_rank);
    }
    if !run.before.is_empty() {
        let before = std::mem::take(&mut run.before);
        copy_across(driver, run, before, TO_HOST);
    }
    go_on(driver, run);
}

/// The run that follows a complete one starts, or fails as the one before, or does not
/// start on any rank.
#[cold]
fn follow<D: Driver>(driver: &mut D, run: &mut Run) {
    let Some(then) = run.then.take() else {
        return;
    };
    let then = *then;
    let failed = run.error.take();
    let verdict = match failed {
        None => (then.judge)(&run.kept),
        Some(_) => None,
    };
    let before = run.become_next(then.run);
    let failed_rank = before.failed_rank();
    recycle(driver, before);
    match verdict {
        Some(e) => {
            if run.program.in_segment {
                let (of, call, segment) = (run.number_of, run.number, 0);
                // It has lent nothing.
                let _ = driver.leave(At { of, call, segment }, true);
            }
            run.error = Some(e);
            run.phase = Phase::Ended;
        }
        None => start(driver, run, failed.or(then.error), failed_rank),
    }
}

fn put_back<D: Driver>(driver: &mut D, mut run: Box<Run>) {
    let id = run.id;
    if run.is_over() {
        driver.run_is_over(run.waker.take());
        run.holds.clear();
        if let Some((ready, token)) = run.notify.take() {
            ready.push(token);
        }
        if run.detached {
            driver.executor().slots.discard(id);
            return recycle(driver, run);
        }
    }
    if let Some(slot) = driver.executor().slots.get_mut(id) {
        *slot = Some(run);
    }
}

fn recycle<D: Driver>(driver: &mut D, mut run: Box<Run>) {
    if let Some(then) = run.then.take() {
        recycle(driver, then.run);
    }
    driver.drop_later(run.waker.take().map(Foreign::Waker));
    driver.drop_later(run.owner.take().map(Foreign::Value));
    driver.drop_later(run.panic.take().map(Foreign::Value));
    if let Some((combiner, _)) = run.combiner.take()
        && combiner.is_foreign()
    {
        driver.drop_later(Some(Foreign::Operator(combiner)));
    }
    run.clear();
    let spare = &mut driver.executor().spare;
    if !spare.is_empty() {
        run.memory.trim();
    }
    if spare.len() < SPARE_RUNS {
        spare.push(run);
    }
}

/// Starts every step whose inputs are there, and ends the run behind the last.
#[inline]
fn go_on<D: Driver>(driver: &mut D, run: &mut Run) {
    if run.copies > 0 && run.phase == Phase::Running {
        return;
    }
    while let Some(instance) = run.next_step() {
        begin_step(driver, run, instance);
    }
    let settled = run.in_flight == 0 && run.deferred.is_empty();
    if settled && !run.is_over() && run.schedule.is_over(&run.program.graph) {
        if run.phase == Phase::Running && !run.after.is_empty() {
            let after = std::mem::take(&mut run.after);
            copy_across(driver, run, after, TO_DEVICE);
            if run.in_flight > 0 {
                return;
            }
        }
        if run.phase == Phase::Running
            && let Err(e) = run.deliver()
        {
            run.error = Some(e);
        }
        if run.then.is_some() {
            return follow(driver, run);
        }
        run.phase = Phase::Ended;
    }
}

/// Messages of one run, as operations of the lane.
struct Posting<'a, D> {
    driver: &'a mut D,
    site: Site,
    crossing: bool,
}

impl<D: Driver> Messages for Posting<'_, D> {
    type Later = u32;

    fn own(&self) -> u32 {
        self.driver.own()
    }

    #[inline]
    fn send(&mut self, view: &RawView, to: u32, tag: u32) -> Result<Started<u32>> {
        self.driver
            .post_send(view.clone(), to, tag, self.crossing, self.site)
    }

    #[inline]
    fn receive(&mut self, view: &RawView, from: u32, tag: u32) -> Result<Started<u32>> {
        self.driver.post_receive(view.clone(), from, tag, self.site)
    }
}

fn begin_step<D: Driver>(driver: &mut D, run: &mut Run, instance: u32) {
    if run.was_done(instance) {
        return run.complete(instance);
    }
    if run.program.in_segment {
        return segment_step(driver, run, instance);
    }
    let (action, segment) = run.place(instance);
    if run.phase == Phase::Failing {
        give_up_step(driver, run, action, segment);
        return run.complete(instance);
    }
    if let Some(combined) = run.was_combined(instance) {
        driver.executor().fused += 1;
        let taken = combined.map_or_else(|e| Taken::Failed(e, None), |()| Taken::Done);
        return settle(driver, run, instance, taken);
    }
    match action {
        Action::Receive { .. } if run.defers => run.deferred.push(instance),
        Action::Receive { .. } => receive(driver, run, instance),
        Action::Exchange { from, into } => begin_exchange(driver, run, instance, (from, into)),
        Action::Copy { .. } | Action::Combine { .. } if run.on_device.is_some() => {
            begin_device_step(driver, run, instance);
        }
        Action::Combine { .. } if run.combines_by_foreign_code() => {
            match run.combination(action, segment) {
                Ok(work) => {
                    // The run's memory and operator outlive it: it counts as an operation.
                    run.in_flight += 1;
                    driver.combine(run.id, instance, work);
                }
                Err(e) => settle(driver, run, instance, Taken::Failed(e, None)),
            }
        }
        _ => execute(driver, run, instance),
    }
}

/// Takes a step that the host takes.
#[inline]
fn execute<D: Driver>(driver: &mut D, run: &mut Run, instance: u32) {
    let (action, segment) = run.place(instance);
    let mut messages = Posting {
        driver,
        site: run.site(),
        crossing: run.crosses(instance),
    };
    let taken = step::execute((action, segment), run.tags, &mut &*run, &mut messages);
    settle(driver, run, instance, taken);
}

/// Invariant 2, of a step that has not begun.
fn give_up_step<D: Driver>(driver: &mut D, run: &Run, action: Action, segment: u32) {
    let own = driver.own();
    match action {
        Action::Send { to, tag, .. } => {
            driver.poison(to, step::tag_of(run.tags, tag, segment), run.failed_rank());
        }
        Action::Receive { from, tag, .. } => {
            driver.discard(from, step::tag_of(run.tags, tag, segment));
        }
        Action::Exchange { .. } => {
            let failed = driver.executor().exchange().map(|it| it.launch_failed());
            if !matches!(failed, Some(Ok(_))) {
                // Its kernel cannot say so.
                let tag = run.tags | EXCHANGE;
                for peer in (0..driver.size()).filter(|peer| *peer != own) {
                    driver.poison(peer, tag, run.failed_rank());
                }
            }
        }
        // Those of a segment are given up by [`segment_step`].
        _ => {}
    }
}

/// Notes how far a step has come.
#[inline]
fn settle<D: Driver>(driver: &mut D, run: &mut Run, instance: u32, taken: Taken<u32>) {
    match taken {
        Taken::Done => run.complete(instance),
        Taken::Later(handle) => {
            run.in_flight += 1;
            driver.adopt(handle, run.id, instance);
        }
        Taken::Failed(e, peer) => {
            let failed_rank = peer.map_or(NOBODY, |peer| driver.failed_rank(peer, &e));
            run.complete(instance);
            fail(driver, run, e, failed_rank);
        }
    }
}

/// A user's function that takes a step has returned, or panicked.
#[cold]
pub fn combined<D: Driver>(driver: &mut D, id: u32, instance: u32, end: Combined) {
    let Some(mut run) = driver.executor().take_out(id) else {
        debug_assert!(false, "a run outlives its steps");
        return;
    };
    run.in_flight -= 1;
    run.complete(instance);
    let failed = match end {
        Ok(result) => result.err(),
        Err(payload) => {
            driver.drop_later(run.panic.replace(payload).map(Foreign::Value));
            Some(Error::new(ErrorKind::User, "the operator panicked"))
        }
    };
    if let Some(e) = failed {
        fail(driver, &mut run, e, NOBODY);
    }
    go_on(driver, &mut run);
    put_back(driver, run);
}

/// Fails a run: notifies its peers, and makes its operations give their memory back.
#[cold]
fn fail<D: Driver>(driver: &mut D, run: &mut Run, e: Error, failed_rank: u32) {
    if run.error.is_none() {
        run.error = Some(e);
    }
    if run.phase != Phase::Running {
        return;
    }
    run.phase = Phase::Failing;
    run.set_failed_rank(failed_rank);
    if let Some((instance, _)) = run.awaits {
        let (action, _) = run.place(instance);
        // What peers read stays.
        let needless = match action {
            Action::Await { .. } => !run.published && run.program.cells == 0,
            _ => matches!(action, Action::Enter),
        };
        if needless {
            run.awaits = None;
            run.in_flight -= 1;
            run.complete(instance);
        }
    }
    for instance in std::mem::take(&mut run.deferred) {
        let (action, segment) = run.place(instance);
        give_up_step(driver, run, action, segment);
        run.complete(instance);
    }
    for handle in driver.operations(run.id) {
        if let Some(instance) = driver.stop(handle, run.failed_rank()) {
            run.in_flight -= 1;
            run.complete(instance);
        }
    }
}

/// Handles the operations of runs that have ended. True if any had.
#[inline]
pub fn advance<D: Driver>(driver: &mut D) -> bool {
    driver.has_ends() && handle_ends(driver)
}

#[cold]
fn handle_ends<D: Driver>(driver: &mut D) -> bool {
    let mut any = false;
    while let Some(event) = driver.next_end() {
        step_ended(driver, &event);
        any = true;
    }
    any
}

fn step_ended<D: Driver>(driver: &mut D, event: &StepEnd) {
    let Some(end) = driver.take_end(event.handle) else {
        return;
    };
    let Some(mut run) = driver.executor().take_out(event.run) else {
        return;
    };
    run.in_flight -= 1;
    let failed = match (end.result, end.room) {
        (Ok(bytes), Some(room)) => step::received(end.peer, bytes, driver.own(), room)
            .err()
            .map(|e| (e, NOBODY)),
        (Ok(_), None) => None,
        (Err(e), _) if event.failed_rank != NOBODY => Some((e, event.failed_rank)),
        (Err(e), _) => {
            let failed_rank = driver.failed_rank(end.peer, &e);
            Some((e, failed_rank))
        }
    };
    run.complete(event.instance);
    if let Some((e, failed_rank)) = failed {
        fail(driver, &mut run, e, failed_rank);
    }
    go_on(driver, &mut run);
    put_back(driver, run);
}

/// Whether a run is complete.
#[inline]
pub fn is_over<D: Driver>(driver: &mut D, id: u32) -> bool {
    advance(driver);
    driver.executor().run(id).is_none_or(Run::is_over)
}

/// How a run has ended, once it has; frees it.
#[inline]
pub fn take<D: Driver>(driver: &mut D, id: u32) -> Option<End> {
    if !is_over(driver, id) {
        driver.hear(id);
        return None;
    }
    let Some(mut run) = driver.executor().slots.remove(id).flatten() else {
        let e = Error::new(
            ErrorKind::Argument,
            "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
        );
        return Some(End {
            result: Err(e),
            panic: None,
        });
    };
    let end = End {
        result: run.error.take().map_or(Ok(()), Err),
        panic: run.panic.take(),
    };
    recycle(driver, run);
    Some(end)
}

/// Cancels a run: it completes as soon as its memory is free.
pub fn cancel<D: Driver>(driver: &mut D, id: u32) {
    cancel_for(driver, id, NOBODY);
}

/// As [`cancel`], because a rank of the job has failed, which the others are told.
pub fn cancel_for<D: Driver>(driver: &mut D, id: u32, failed_rank: u32) {
    let Some(mut run) = driver.executor().take_out(id) else {
        return;
    };
    if run.phase == Phase::Running {
        let e = Error::new(ErrorKind::Cancelled, "the collective was given up");
        fail(driver, &mut run, e, failed_rank);
        go_on(driver, &mut run);
    }
    put_back(driver, run);
}

/// Calls a waker when a run completes.
pub fn set_waker<D: Driver>(driver: &mut D, id: u32, waker: Waker) {
    let unused = match driver.executor().run_mut(id) {
        Some(run) => run.waker.replace(waker),
        None => Some(waker),
    };
    driver.drop_later(unused.map(Foreign::Waker));
}

/// Pushes `token` to a list when a run completes. False if it is complete already; nothing
/// is pushed then.
pub fn notify<D: Driver>(driver: &mut D, id: u32, ready: &Arc<Ready>, token: u64) -> bool {
    if is_over(driver, id) {
        return false;
    }
    if let Some(run) = driver.executor().run_mut(id) {
        run.notify = Some((ready.clone(), token));
    }
    driver.hear(id);
    true
}

/// Detaches a run: it completes without a waiter, with what it must keep alive.
pub fn detach<D: Driver>(driver: &mut D, id: u32, owner: Box<dyn Any + Send>) {
    let Some(mut run) = driver.executor().take_out(id) else {
        return driver.drop_later(Some(Foreign::Value(owner)));
    };
    driver.drop_later(run.waker.take().map(Foreign::Waker));
    run.notify = None;
    driver.drop_later(run.owner.replace(owner).map(Foreign::Value));
    run.detached = true;
    put_back(driver, run);
}

#[cfg(test)]
mod tests;
