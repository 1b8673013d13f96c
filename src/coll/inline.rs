//! Short calls of little data: their plans run inline, within the call, as far as messages
//! end at once.
//!
//! The lane is locked from the first step to the last. A message that must wait for longer
//! than a short poll, an error, an operator that may panic, and a call that is recorded or
//! checked continue as a run, so that errors, reports and deaths have one path. Other ranks see
//! no difference: the messages are the same.

use super::ask::{Ask, key_of};
use crate::choice::class_of;
use crate::comm::Communicator;
use osier_collectives::{Call, Operation};
use osier_datatype::{Element, Operator};
use osier_engine::check::Check;
use osier_engine::error::{Error, Result};
use osier_engine::exec::inline::{
    self, Begun, Call as InlineCall, Desk, InlineSchedule, Refused, Small,
};
use osier_engine::exec::operator::{Data, Fit, Fitted, Reduction};
use osier_engine::exec::program::{Action, Program};
use osier_engine::exec::short::{Depends, ShortCall};
use osier_engine::exec::step::{Messages, Started};
use osier_engine::matching::Pattern;
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::in_segment::short_calls::{Numbers, Short};
use osier_engine::progress::lane::Lane;
use osier_engine::view::RawView;

/// The driver of an inline schedule: a blocking call that holds the lane.
struct Caller<'a> {
    comm: &'a Communicator,
    lane: LaneGuard<'a>,
    /// Where the lane keeps the program.
    program: usize,
}

impl Messages for Caller<'_> {
    type Later = Refused;

    #[inline]
    fn own(&self) -> u32 {
        self.comm.rank() as u32
    }

    #[inline]
    fn send(&mut self, view: &RawView, to: u32, tag: u32) -> Result<Started<Refused>> {
        let sent = !self.lane.knows_dead(to) && self.lane.send_now(view, to, tag);
        Ok(match sent {
            true => Started::Done(view.bytes()),
            false => Started::Later(Refused),
        })
    }

    #[inline]
    fn receive(&mut self, view: &RawView, from: u32, tag: u32) -> Result<Started<Refused>> {
        let lane = &mut self.lane;
        if !lane.may_receive_directly(Pattern::exact(from, tag)) || lane.knows_dead(from) {
            return Ok(Started::Later(Refused));
        }
        let bytes = self.comm.receive_here(lane, view, from, tag);
        Ok(bytes.map_or(Started::Later(Refused), Started::Done))
    }
}

impl InlineCall for Caller<'_> {
    #[inline]
    fn step(&self, at: usize) -> Option<Action> {
        self.lane.executor.inline_step(self.program, at)
    }
}

/// Looks for a flag before a call becomes a run, where cores are not shared: some tens of
/// microseconds.
const FLAG_LOOKS: u32 = 4000;
/// Between two polls for messages, which peers may need before they come to the call.
const LOOKS_PER_POLL: u32 = 256;
const YIELDS_PER_POLL: u32 = 16;
/// Where cores are shared, whoever is to raise the flag may need this one.
const FLAG_LOOKS_SHARED: u32 = 8;
/// Yields there before a call becomes a run: each leaves the core to all that share it, so flags
/// come after a few. A rank that does something else meanwhile takes some milliseconds.
const FLAG_YIELDS: u32 = 1000;

impl Communicator {
    /// A peer's flag is not raised after so many looks: waits a little. False: it takes too
    /// long.
    #[inline]
    fn looks_again(&self, lane: &mut Lane, peer: u32, looks: u32) -> bool {
        if looks < FLAG_LOOKS_SHARED {
            // Once: measured with two ranks that raise their flags at the same time, a longer
            // pause, and one before the first look, cost more than looks that come too early.
            std::hint::spin_loop();
            return true;
        }
        self.looks_longer(lane, peer, looks)
    }

    #[cold]
    fn looks_longer(&self, lane: &mut Lane, peer: u32, looks: u32) -> bool {
        if lane.knows_dead(peer) || self.lane().wanted() {
            return false;
        }
        if self.core().shares_cores() {
            if looks.is_multiple_of(YIELDS_PER_POLL) {
                lane.progress();
            }
            std::thread::yield_now();
            return looks < FLAG_LOOKS_SHARED + FLAG_YIELDS;
        }
        if looks.is_multiple_of(LOOKS_PER_POLL) {
            lane.progress();
        }
        std::hint::spin_loop();
        looks < FLAG_LOOKS
    }
}

/// A reduction that may run here.
pub(crate) struct SmallReduction<'a> {
    call: Call,
    small: Small,
    operator: &'a dyn Reduction,
    fit: Fit,
    known: (Operator, Element),
}

impl<'a> SmallReduction<'a> {
    /// None if the operator is not one of the library's for elements of `data`.
    #[inline]
    fn new<R: Reduction>(
        mut call: Call,
        small: Small,
        operator: &'a R,
        data: &RawView,
    ) -> Option<Self> {
        let fit = operator.fit(&Data(data)).ok()?;
        let known = operator.predefined(&fit)?;
        call.required = fit.association;
        Some(Self {
            call,
            small,
            operator,
            fit,
            known,
        })
    }
}

impl Communicator {
    /// Memory that a call may work on here; none where a run is needed anyway.
    #[inline]
    pub(crate) fn small(&self, send: Option<&RawView>, recv: Option<&RawView>) -> Option<Small> {
        let core = self.core();
        if core.trace.is_some() || self.is_inter() || core.checks.has(Check::Collectives) {
            return None;
        }
        Small::new(send, recv)
    }

    /// The same of a call in pieces: their number per buffer, and the bytes of each.
    #[inline]
    pub(crate) fn small_pieces(
        &self,
        send: Option<(&RawView, usize)>,
        recv: Option<(&RawView, usize)>,
        bytes: usize,
    ) -> Option<Small> {
        let core = self.core();
        if core.trace.is_some() || self.is_inter() || core.checks.has(Check::Collectives) {
            return None;
        }
        Small::of_pieces(send, recv, bytes)
    }

    /// The same of a reduction, with an operator that cannot panic.
    #[inline]
    pub(crate) fn small_reduction<'a, R: Reduction>(
        &self,
        mut call: Call,
        send: Option<&RawView>,
        recv: Option<&RawView>,
        operator: &'a R,
    ) -> Option<SmallReduction<'a>> {
        // What differs in type is for the ask to name.
        if let (Some(send), Some(recv)) = (send, recv)
            && !send.alike(recv)
        {
            return None;
        }
        call.in_place = send.is_none();
        SmallReduction::new(call, self.small(send, recv)?, operator, send.or(recv)?)
    }

    /// The same of one that leaves each rank an equal share.
    #[inline]
    pub(crate) fn small_shares<'a, R: Reduction>(
        &self,
        send: Option<&RawView>,
        recv: &RawView,
        operator: &'a R,
    ) -> Option<SmallReduction<'a>> {
        // In place there is more to copy: a run does it.
        let send = send.filter(|send| send.alike(recv))?;
        let size = self.size();
        let small = self.small_pieces(Some((send, size)), Some((recv, 1)), recv.bytes())?;
        let call = Call::new(Operation::ReduceScatter, size as u32);
        SmallReduction::new(call, small, operator, recv)
    }

    /// Runs a reduction to its end.
    #[inline]
    #[track_caller]
    pub(crate) fn call_reducing(
        &self,
        here: Option<SmallReduction<'_>>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let alone = |here: &SmallReduction<'_>| {
            let class = class_of(here.small.bytes);
            self.takes_alone(&here.call, class)
        };
        match here {
            // It was counted: its plan is the host's.
            Some(here) if alone(&here) => self.call_reducing_on_host(Some(here), ask),
            _ => self.call(ask()?),
        }
    }

    /// As [`Communicator::call_reducing`], of memory that is the host's on all ranks.
    #[inline]
    #[track_caller]
    pub(crate) fn call_reducing_on_host(
        &self,
        here: Option<SmallReduction<'_>>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let ask = || {
            ask().map(|ask| Ask {
                of_host: true,
                ..ask
            })
        };
        match here {
            None => self.call(ask()?),
            Some(here) => {
                let by = Fitted {
                    operator: here.operator,
                    fit: &here.fit,
                    known: Some(here.known),
                };
                self.call_small(&here.call, Some(here.small), Some(by), ask)
            }
        }
    }

    /// Runs a call to its end. What it asks for is only worked out where a run is needed.
    #[inline]
    #[track_caller]
    pub(crate) fn call_small(
        &self,
        call: &Call,
        small: Option<Small>,
        by: Option<Fitted<'_>>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let begun = match small {
            Some(small) => {
                let key = key_of(call, class_of(small.bytes));
                self.run_here(key, small, by)
            }
            None => Some(None),
        };
        match begun {
            None => Ok(()),
            Some(begun) => self.take_up(begun, ask()?),
        }
    }

    /// Runs it as far as possible: `None` if that is to its end.
    #[inline]
    fn run_here(
        &self,
        key: u64,
        small: Small,
        by: Option<Fitted<'_>>,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let mut lane = self.lane().lock();
        let of = Depends {
            key,
            bytes: small.bytes,
            known: by.and_then(|by| by.known),
        };
        if lane.idle()
            && let Some(short) = lane.executor.short_calls.take(&of)
        {
            return self.run_short(lane, short, small, by);
        }
        self.run_steps(lane, of, small, by)
    }

    /// A call that is worked out.
    #[inline]
    fn run_short(
        &self,
        mut lane: LaneGuard<'_>,
        short: Box<ShortCall>,
        small: Small,
        by: Option<Fitted<'_>>,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let mut desk = Desk::new(small, by);
        let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
        let end = lane.run_short(&short, &mut desk, wait);
        if let Short::Done = end {
            lane.executor.short_calls.keep(short);
            self.core().after(&mut lane);
            return None;
        }
        self.continue_short(lane, short, &mut desk, end)
    }

    #[cold]
    fn continue_short(
        &self,
        mut lane: LaneGuard<'_>,
        short: Box<ShortCall>,
        desk: &mut Desk<'_>,
        end: Short,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let program = short.program.clone();
        lane.executor.short_calls.keep(short);
        if let Some(with) = program.inline.as_ref().and_then(InlineSchedule::in_segment) {
            desk.work_in(with);
        }
        let from = match end {
            Short::Taken(numbers, taken) => (numbers, taken),
            Short::Done | Short::NotBegun => (self.begin_in_segment(&mut lane, &program), 0),
        };
        self.run_in_segment(lane, &program, from, desk)
    }

    #[inline]
    fn begin_in_segment(&self, lane: &mut Lane, program: &Program) -> Numbers {
        let tags = lane.executor.next_tags();
        let call = lane.executor.number_of(tags);
        let with = program.inline.as_ref().and_then(InlineSchedule::in_segment);
        let segments = with.map_or(1, |with| with.segments);
        lane.begins_in_segment(call, segments, program.changes_hands);
        Numbers { tags, call }
    }

    /// A call whose steps are taken as they are.
    fn run_steps(
        &self,
        mut lane: LaneGuard<'_>,
        of: Depends,
        small: Small,
        by: Option<Fitted<'_>>,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let kept = lane.executor.inline_program(of.key, small.bytes);
        let Some((program, steps)) = kept.filter(|_| lane.idle()) else {
            return Some(None);
        };
        if let Some((program, with)) = lane.executor.inline_in_segment(program) {
            let with = with.of_unit(by.map_or(1, |by| by.fit.unit));
            let mut desk = Desk::new(small, by);
            desk.work_in(with);
            if lane.executor.short_calls.is_wanted(&of)
                && let Some(short) = ShortCall::new(of, &program, &desk)
            {
                lane.executor.short_calls.keep(Box::new(short));
            }
            let numbers = self.begin_in_segment(&mut lane, &program);
            return self.run_in_segment(lane, &program, (numbers, 0), &mut desk);
        }
        let tags = lane.executor.next_tags();
        let mut desk = Desk::new(small, by);
        let mut caller = Caller {
            comm: self,
            lane,
            program,
        };
        let (taken, error) = inline::run(&mut caller, tags, &mut desk);
        let mut lane = caller.lane;
        if taken == steps && error.is_none() {
            self.core().after(&mut lane);
            return None;
        }
        let begun = lane.executor.begun(program, taken, tags, &desk);
        Some(begun.map(|begun| (begun, error)))
    }

    /// The same where flags lie in the ranks' segment, behind the first `taken` steps.
    #[inline]
    fn run_in_segment(
        &self,
        mut lane: LaneGuard<'_>,
        program: &Program,
        (numbers, taken): (Numbers, usize),
        desk: &mut Desk<'_>,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let Numbers { tags, call } = numbers;
        let actions = &program.actions;
        let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
        let (taken, error) = inline::run_in_segment(&mut *lane, (actions, call, taken), desk, wait);
        if taken == actions.len() * desk.cut_into() as usize && error.is_none() {
            self.core().after(&mut lane);
            return None;
        }
        let begun = program.inline.as_ref();
        let begun = begun.map(|inline| inline.begun(taken, tags, desk));
        Some(begun.map(|begun| (begun, error.map(|(e, _)| e))))
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn take_up(&self, begun: Option<(Begun, Option<Error>)>, mut ask: Ask) -> Result<()> {
        if let Some((begun, error)) = begun {
            ask.begun = Some(begun);
            ask = ask.failed(error);
        }
        self.call(ask)
    }
}
