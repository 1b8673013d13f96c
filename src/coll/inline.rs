//! Short calls of little data: their plans run inline, within the call, as far as messages
//! end at once.
//!
//! The lane is locked from the first step to the last. A message that must wait for longer
//! than a short poll, an error, an operator that may panic, and a call that is recorded or
//! checked continue as a run, so that errors, reports and deaths have one path. Other ranks see
//! no difference: the messages are the same.

use super::ask::counts::MIDDLE_BYTES;
use super::ask::{Ask, key_of};
use super::short::Quick;
use crate::choice::class_of;
use crate::comm::Communicator;
use osier_collectives::{Call, Operation};
use osier_engine::check::Check;
use osier_engine::error::{Error, Result};
use osier_engine::exec::inline::{
    self, Begun, Blocks, Call as InlineCall, Desk, InlineSchedule, Refused, Room, Shares, Small,
};
use osier_engine::exec::operator::{Data, Fit, Fitted, Reduction};
use osier_engine::exec::program::{Action, Program};
use osier_engine::exec::run::Combiner;
use osier_engine::exec::short::{Depends, ShortBlocks, ShortCall};
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
        if lane.knows_dead(peer) || self.lane().wanted() || self.core().on_stack() {
            return false;
        }
        let shares = self.core().shares_cores();
        let every = if shares {
            YIELDS_PER_POLL
        } else {
            LOOKS_PER_POLL
        };
        if looks.is_multiple_of(every) {
            lane.progress_in_call();
        }
        if lane.is_revoked() {
            return false;
        }
        if shares {
            std::thread::yield_now();
            return looks < FLAG_LOOKS_SHARED + FLAG_YIELDS;
        }
        self.core().serve();
        std::hint::spin_loop();
        looks < FLAG_LOOKS
    }
}

/// What a run takes up: steps that are done, and the error of the last; none, of a call of which
/// no step is.
pub(super) type Here = Option<(Begun, Option<Error>)>;

pub(super) fn of_host(ask: Ask) -> Ask {
    Ask {
        of_host: true,
        ..ask
    }
}

#[inline]
fn begin_in_segment(lane: &mut Lane, program: &Program) -> Numbers {
    let tags = lane.executor.next_tags();
    let call = lane.executor.number_of(tags);
    lane.begins_in_segment(call, program.sets());
    Numbers { tags, call }
}

/// A reduction that may run here.
pub(crate) struct SmallReduction<'a> {
    call: Call,
    small: Small,
    /// What is combined, for the operator to look at.
    data: &'a RawView,
}

impl Communicator {
    /// Memory that a call may work on here; none where a run is needed anyway.
    #[inline]
    pub(crate) fn small(&self, send: Option<&RawView>, recv: Option<&RawView>) -> Option<Small> {
        let core = self.core();
        if core.records_or_refuses() || self.is_inter() || core.checks.has(Check::Collectives) {
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
        if core.records_or_refuses() || self.is_inter() || core.checks.has(Check::Collectives) {
            return None;
        }
        Small::of_pieces(send, recv, bytes)
    }

    /// The same of a reduction.
    #[inline]
    pub(crate) fn small_reduction<'a>(
        &self,
        mut call: Call,
        send: Option<&'a RawView>,
        recv: Option<&'a RawView>,
    ) -> Option<SmallReduction<'a>> {
        // What differs in type is for the ask to name.
        if let (Some(send), Some(recv)) = (send, recv)
            && !send.alike(recv)
        {
            return None;
        }
        call.in_place = send.is_none();
        Some(SmallReduction {
            call,
            small: self.small(send, recv)?,
            data: send.or(recv)?,
        })
    }

    /// The same of one that leaves each rank an equal share.
    #[inline]
    pub(crate) fn small_shares<'a>(
        &self,
        send: Option<&RawView>,
        recv: &'a RawView,
    ) -> Option<SmallReduction<'a>> {
        // In place there is more to copy: a run does it.
        let send = send.filter(|send| send.alike(recv))?;
        let size = self.size();
        Some(SmallReduction {
            call: Call::new(Operation::ReduceScatter, size as u32),
            small: self.small_pieces(Some((send, size)), Some((recv, 1)), recv.bytes())?,
            data: recv,
        })
    }

    /// Runs a reduction to its end.
    #[inline]
    #[track_caller]
    pub(crate) fn call_reducing<R: Reduction>(
        &self,
        here: Option<SmallReduction<'_>>,
        op: &R,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        match here {
            Some(here) if !self.asks_where() => self.call_short_reduction(here, op, ask),
            Some(here) => self.call_small_reduction(here, op, true, ask),
            None => self.call(ask()?),
        }
    }

    /// As [`Communicator::call_reducing`], of memory that is the host's on all ranks.
    #[inline]
    #[track_caller]
    pub(crate) fn call_reducing_on_host<R: Reduction>(
        &self,
        here: Option<SmallReduction<'_>>,
        op: &R,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        match here {
            Some(here) => self.call_short_reduction(here, op, || ask().map(of_host)),
            None => self.call(of_host(ask()?)),
        }
    }

    /// One of which a short call may be kept: with an operator of the library, on data of one
    /// type.
    #[inline]
    #[track_caller]
    fn call_short_reduction<R: Reduction>(
        &self,
        here: SmallReduction<'_>,
        op: &R,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let element = here.data.element();
        if let Some(known) = element.and_then(|element| op.predefined_on(element)) {
            let of = Depends::new(&here.call, here.small.bytes, Some(known));
            let mut lane = self.lane().lock();
            if lane.idle()
                && let Some(short) = lane.executor.short_calls.take(&of)
            {
                let begun = self.run_short(lane, short, here.small);
                return self.ended(begun, || ask().map(of_host));
            }
        }
        self.call_small_reduction(here, op, false, ask)
    }

    /// One whose plan is looked up. Where its memory may lie on devices it is counted, on all ranks
    /// alike: whatever a rank has kept.
    #[inline(never)]
    #[track_caller]
    fn call_small_reduction(
        &self,
        here: SmallReduction<'_>,
        op: &dyn Reduction,
        may_lie_on_devices: bool,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let SmallReduction {
            mut call,
            small,
            data,
        } = here;
        let fit = op.fit(&Data(data)).ok();
        let known = fit.as_ref().and_then(|fit| op.predefined(fit));
        // An operator that may panic is a run's.
        let (Some(fit), Some(known)) = (fit, known) else {
            return self.call(ask()?);
        };
        let of = Depends::new(&call, small.bytes, Some(known));
        call.required = fit.association;
        if may_lie_on_devices && !self.takes_alone(&call, class_of(small.bytes)) {
            return self.call(ask()?);
        }
        // Its plan is the host's.
        let mut lane = self.lane().lock();
        if may_lie_on_devices
            && lane.idle()
            && let Some(short) = lane.executor.short_calls.take(&of)
        {
            let begun = self.run_short(lane, short, small);
            return self.ended(begun, || ask().map(of_host));
        }
        let by = Fitted {
            operator: op,
            fit: &fit,
            known: Some(known),
        };
        let begun = self.run_steps(lane, &call, small, Some(by));
        self.ended(begun, || ask().map(of_host))
    }

    /// Runs a call to its end. What it asks for is only worked out where a run is needed.
    #[inline]
    #[track_caller]
    pub(crate) fn call_small(
        &self,
        call: &Call,
        small: Option<Small>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let alone = |small: &Small| self.takes_alone(call, class_of(small.bytes));
        let Some(small) = small.filter(alone) else {
            return self.call(ask()?);
        };
        let ask = || ask().map(of_host);
        let mut lane = self.lane().lock();
        if lane.idle()
            && let Some(short) =
                (lane.executor.short_calls).take(&Depends::new(call, small.bytes, None))
        {
            let begun = self.run_short(lane, short, small);
            return self.ended(begun, ask);
        }
        let begun = self.run_steps(lane, call, small, None);
        self.ended(begun, ask)
    }

    /// What comes of a call that has run here as far as possible.
    #[inline]
    #[track_caller]
    pub(super) fn ended(
        &self,
        begun: Option<Here>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        match begun {
            None => Ok(()),
            Some(here) => self.take_up(here, ask()?),
        }
    }

    /// Runs a call that is worked out as far as possible: `None` if that is to its end.
    #[inline]
    pub(super) fn run_short(
        &self,
        mut lane: LaneGuard<'_>,
        short: Box<ShortCall>,
        small: Small,
    ) -> Option<Here> {
        let mut room = Room::new(small);
        let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
        let end = lane.run_short(&short, &mut room, wait);
        if let Short::Done = end {
            lane.executor.short_calls.keep(short);
            self.core().after(&mut lane);
            return None;
        }
        self.go_on(lane, short, (small, &room, end))
    }

    /// Takes the steps of its program from there.
    #[cold]
    #[inline(never)]
    fn go_on(
        &self,
        mut lane: LaneGuard<'_>,
        short: Box<ShortCall>,
        (small, room, end): (Small, &Room, Short),
    ) -> Option<Here> {
        let (program, known) = (short.program.clone(), short.known);
        lane.executor.short_calls.keep(short);
        let fit = known.map(|(operator, element)| (operator, Fit::of_element(operator, element)));
        let by = fit.as_ref().map(|(operator, fit)| Fitted {
            operator,
            fit,
            known,
        });
        let mut desk = Desk::new(small, by);
        if let Some(with) = program.inline.as_ref().and_then(InlineSchedule::in_segment) {
            desk.work_in(with);
        }
        let from = match end {
            Short::Taken(numbers, taken) => {
                desk.goes_on(room);
                (numbers, taken)
            }
            Short::Done | Short::NotBegun => (begin_in_segment(&mut lane, &program), 0),
        };
        self.run_in_segment(lane, &program, from, &mut desk)
    }

    /// Takes the steps of a call as far as possible: `None` if that is to its end.
    #[inline(never)]
    fn run_steps(
        &self,
        mut lane: LaneGuard<'_>,
        call: &Call,
        small: Small,
        by: Option<Fitted<'_>>,
    ) -> Option<Here> {
        let key = key_of(call, class_of(small.bytes));
        let kept = lane.executor.inline_program(key, small.bytes);
        let Some((program, steps)) = kept.filter(|_| lane.idle()) else {
            return Some(None);
        };
        if let Some((program, with)) = lane.executor.inline_in_segment(program) {
            let with = with.of_unit(by.map_or(1, |by| by.fit.unit));
            let mut desk = Desk::new(small, by);
            desk.work_in(with);
            let known = by.and_then(|by| by.known);
            let of = Depends::new(call, small.bytes, known);
            if lane.executor.short_calls.is_wanted(&of)
                && let Some(short) = ShortCall::new(of, known, &program, &desk)
            {
                lane.executor.short_calls.keep(Box::new(short));
            }
            let numbers = begin_in_segment(&mut lane, &program);
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

    /// Runs a call of contributions that differ to its end: of which this rank has these blocks, if
    /// it may run here.
    #[inline]
    #[track_caller]
    pub(crate) fn call_blocks(
        &self,
        call: &Call,
        blocks: Option<Blocks<'_>>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let alone = |_: &Blocks<'_>| self.takes_alone(call, class_of(MIDDLE_BYTES));
        let Some(blocks) = blocks.filter(alone) else {
            return self.call(ask()?);
        };
        let ask = || ask().map(of_host);
        match self.quick_blocks((call.operation, call.root), Some(blocks)) {
            Some(begun) => self.ended(begun, ask),
            None => self.ended(self.run_blocks(call, blocks), ask),
        }
    }

    /// As [`Communicator::quick`](super::short), of contributions that differ.
    #[inline]
    pub(crate) fn quick_blocks(&self, of: (Operation, u32), blocks: Option<Blocks<'_>>) -> Quick {
        let (blocks, core) = (blocks?, self.core());
        // Where buffers may lie on devices, ranks count all of these.
        if !of.0.of_neighbors() && self.asks_where() {
            return None;
        }
        if core.records_or_refuses() || self.is_inter() || core.checks.has(Check::Collectives) {
            return None;
        }
        let mut lane = self.lane().lock();
        if !lane.idle() {
            return None;
        }
        let short = lane.executor.short_calls.take_blocks(of)?;
        let end = blocks.in_cells(&short.program).map(|mut blocks| {
            let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
            let end = lane.run_short_blocks(&short, &mut blocks, wait);
            (end, blocks)
        });
        let program = match &end {
            Some((Short::Taken(..), _)) => Some(short.program.clone()),
            _ => None,
        };
        lane.executor.short_calls.keep_blocks(of, short);
        match (end, program) {
            (Some((Short::Done, _)), _) => {
                self.core().after(&mut lane);
                Some(None)
            }
            (Some((Short::Taken(numbers, taken), blocks)), Some(program)) => {
                Some(self.run_blocks_from(lane, &program, (numbers, taken), blocks))
            }
            _ => None,
        }
    }

    /// Takes its steps as far as possible: `None` if that is to its end.
    fn run_blocks(&self, call: &Call, mut blocks: Blocks<'_>) -> Option<Here> {
        let core = self.core();
        if core.records_or_refuses() || self.is_inter() || core.checks.has(Check::Collectives) {
            return Some(None);
        }
        let mut lane = self.lane().lock();
        let key = key_of(call, class_of(MIDDLE_BYTES));
        let program = lane.executor.program(key).filter(|_| lane.idle());
        let Some(program) = program else {
            return Some(None);
        };
        let Some(here) = blocks.in_cells(&program) else {
            return Some(None);
        };
        blocks = here;
        let of = (call.operation, call.root);
        if !lane.executor.short_calls.has_blocks(of)
            && let Some(short) = ShortBlocks::new(&program)
        {
            lane.executor.short_calls.keep_blocks(of, Box::new(short));
        }
        let numbers = begin_in_segment(&mut lane, &program);
        self.run_blocks_from(lane, &program, (numbers, 0), blocks)
    }

    /// The same, behind the first `taken` steps.
    #[inline(never)]
    fn run_blocks_from(
        &self,
        mut lane: LaneGuard<'_>,
        program: &Program,
        (numbers, taken): (Numbers, usize),
        mut blocks: Blocks<'_>,
    ) -> Option<Here> {
        let Numbers { tags, call } = numbers;
        let (actions, row) = (&program.actions, program.row());
        let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
        let of = (&actions[..row], call, taken);
        let (taken, error) = inline::run_in_segment(&mut *lane, of, &mut blocks, wait);
        // Nothing was sent, and what is received is for a run.
        let leaves = (&actions[actions.len() - 1..], call, 0);
        if taken == row && error.is_none() {
            let (left, _) = inline::run_in_segment(&mut *lane, leaves, &mut blocks, wait);
            if left == 1 {
                self.core().after(&mut lane);
                return None;
            }
        }
        // The step that has failed is the run's to give up.
        let taken = taken - usize::from(error.is_some());
        Some(Some((Begun::in_cells(taken, tags), error.map(|(e, _)| e))))
    }

    /// Runs a reduction whose shares differ to its end.
    #[track_caller]
    pub(crate) fn call_shares<R: Reduction>(
        &self,
        send: Option<RawView>,
        recv: RawView,
        counts: &[usize],
        op: &R,
    ) -> Result<()> {
        let fit = (send.as_ref()).and_then(|send| op.fit(&Data(send)).ok());
        let begun = match (&send, &fit) {
            (Some(send), Some(fit)) => self.run_shares(send, &recv, counts, op, fit),
            _ => Some(None),
        };
        // The call waits for the run's end, so the operator outlives it.
        self.ended(begun, || {
            self.reduce_scatter_ask(send, Some(recv), counts, Combiner::lent(op))
        })
    }

    /// Takes its steps as far as possible: `None` if that is to its end.
    fn run_shares(
        &self,
        send: &RawView,
        recv: &RawView,
        counts: &[usize],
        op: &dyn Reduction,
        fit: &Fit,
    ) -> Option<Here> {
        let core = self.core();
        let recorded = core.records_or_refuses() || core.checks.has(Check::Collectives);
        let (known, rank) = (op.predefined(fit), self.rank());
        let bytes = |count: usize| count.checked_mul(fit.unit);
        let fits = counts.len() == self.size()
            && bytes(counts[rank]) == Some(recv.bytes())
            && bytes(counts.iter().sum()) == Some(send.bytes());
        let (Some(from), Some(into)) = (send.as_contiguous(), recv.as_contiguous()) else {
            return Some(None);
        };
        // An operator that may panic is a run's, and memory that may lie on devices.
        let elsewhere = known.is_none() || self.asks_where();
        if recorded || self.is_inter() || elsewhere || !fits || !send.alike(recv) {
            return Some(None);
        }
        let operator = op;
        let mut shares = Shares::new(
            (from, into),
            counts,
            rank,
            Fitted {
                operator,
                fit,
                known,
            },
        );
        let call = Call::new(Operation::ReduceScatter, self.size() as u32).varying();
        let key = key_of(&call.requires(fit.association), class_of(shares.longest()));
        let mut lane = self.lane().lock();
        let program = lane.executor.program(key).filter(|_| lane.idle());
        let Some(program) = program.filter(|program| shares.work_in(program)) else {
            return Some(None);
        };
        let Numbers { tags, call } = begin_in_segment(&mut lane, &program);
        let wait = |lane: &mut Lane, peer, looks| self.looks_again(lane, peer, looks);
        let of = (&program.actions[..], call, 0);
        let (taken, error) = inline::run_in_segment(&mut *lane, of, &mut shares, wait);
        let all = program.actions.len() * program.graph.segments() as usize;
        if taken == all && error.is_none() {
            self.core().after(&mut lane);
            return None;
        }
        let begun = shares.begun(taken, tags);
        Some(Some((begun, error.map(|(e, _)| e))))
    }

    /// The same where flags lie in the ranks' segment, behind the first `taken` steps.
    #[inline]
    fn run_in_segment(
        &self,
        mut lane: LaneGuard<'_>,
        program: &Program,
        (numbers, taken): (Numbers, usize),
        desk: &mut Desk<'_>,
    ) -> Option<Here> {
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
    fn take_up(&self, begun: Here, mut ask: Ask) -> Result<()> {
        if let Some((begun, error)) = begun {
            ask.begun = Some(begun);
            ask = ask.failed(error);
        }
        self.call(ask)
    }
}
