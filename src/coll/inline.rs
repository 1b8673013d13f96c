//! Short calls of little data: run by the call itself, as far as that goes.
//!
//! The lane is held from the first step to the last. What must wait for longer than a
//! short look, what fails, what may panic, and what somebody records or checks, goes on
//! as a run, so that errors, reports and deaths have one way. Other ranks see no
//! difference: the messages are the same.

use super::ask::{Ask, key_of, mismatch};
use crate::choice::class_of;
use crate::comm::Communicator;
use osier_collectives::Call;
use osier_engine::check::Check;
use osier_engine::error::{Error, Result};
use osier_engine::exec::operator::{Data, Fit, Reduction};
use osier_engine::exec::program::Action;
use osier_engine::exec::run::{combine, copy};
use osier_engine::exec::straight::{Begun, Desk, Small};
use osier_engine::matching::Pattern;
use osier_engine::progress::lane::Lane;
use osier_engine::view::RawView;

/// The operator of a call, and what it combines there.
pub(crate) type Operands<'a> = Option<(&'a dyn Reduction, Fit)>;

/// What became of a step.
enum Taken {
    Whole,
    /// A run must take it.
    Not,
    /// A message from this rank, of so many bytes instead of so many.
    Short(u32, usize, usize),
}

/// A reduction that may run here.
pub(crate) struct SmallReduction<'a> {
    call: Call,
    small: Small,
    operator: &'a dyn Reduction,
    fit: Fit,
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

    /// The same of a call in pieces: so many of each buffer, each of so many bytes.
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
    pub(crate) fn small_reduction<'a>(
        &self,
        mut call: Call,
        send: Option<&RawView>,
        recv: Option<&RawView>,
        operator: &'a dyn Reduction,
    ) -> Option<SmallReduction<'a>> {
        // What differs in type is for the ask to name.
        if let (Some(send), Some(recv)) = (send, recv)
            && !send.alike(recv)
        {
            return None;
        }
        let small = self.small(send, recv)?;
        let fit = operator.fit(&Data(send.or(recv)?)).ok()?;
        operator.predefined(&fit)?;
        call.required = fit.association;
        call.in_place = send.is_none();
        Some(SmallReduction {
            call,
            small,
            operator,
            fit,
        })
    }

    /// Runs a reduction to its end.
    #[inline]
    #[track_caller]
    pub(crate) fn call_reducing(
        &self,
        here: Option<SmallReduction<'_>>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        match here {
            None => self.call(ask()?),
            Some(here) => {
                let operands = Some((here.operator, here.fit));
                self.call_small(&here.call, Some(here.small), operands, ask)
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
        operands: Operands<'_>,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Result<()> {
        let begun = match small {
            Some(small) => {
                let key = key_of(call, class_of(small.bytes));
                self.run_here(key, small, operands)
            }
            None => Some(None),
        };
        match begun {
            None => Ok(()),
            Some(begun) => self.take_up(begun, ask()?),
        }
    }

    /// Runs it as far as it goes: `None` if that is to its end.
    #[inline]
    fn run_here(
        &self,
        key: u64,
        small: Small,
        operands: Operands<'_>,
    ) -> Option<Option<(Begun, Option<Error>)>> {
        let mut lane = self.lane().lock();
        let Some((program, steps)) = lane.straight(key, small.bytes).filter(|_| lane.idle()) else {
            return Some(None);
        };
        let tags = lane.next_tags();
        let mut desk = Desk::new(small);
        let mut taken = 0;
        let mut error = None;
        while let Some(action) = lane.straight_step(program, taken) {
            match self.step_here(&mut lane, action, tags, &mut desk, &operands) {
                Taken::Whole => taken += 1,
                Taken::Not => break,
                Taken::Short(from, bytes, wanted) => {
                    taken += 1;
                    error = Some(mismatch(format!(
                        "rank {from} sent {bytes} bytes, rank {} expected {wanted} (hint: all ranks pass the same count)",
                        self.rank(),
                    )));
                    break;
                }
            }
        }
        if taken == steps && error.is_none() {
            self.core().after(&mut lane);
            return None;
        }
        let begun = lane.begun(program, taken, tags, &desk);
        Some(begun.map(|begun| (begun, error)))
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

    #[inline]
    fn step_here(
        &self,
        lane: &mut Lane,
        action: Action,
        tags: u32,
        desk: &mut Desk,
        operands: &Operands<'_>,
    ) -> Taken {
        let whole = match action {
            Action::Send { to, tag, data } => {
                let view = desk.view(data);
                !lane.knows_dead(to) && lane.send_now(&view, to, tags | tag)
            }
            Action::Receive { from, tag, data } => {
                let (view, tag) = (desk.view(data), tags | tag);
                let pattern = Pattern::exact(from, tag);
                if !lane.may_receive_directly(pattern) || lane.knows_dead(from) {
                    return Taken::Not;
                }
                match self.receive_here(lane, &view, from, tag) {
                    None => false,
                    Some(got) if got == view.bytes() => true,
                    Some(got) => return Taken::Short(from, got, view.bytes()),
                }
            }
            Action::Copy { from, to } => copy(&desk.view(from), &desk.view(to)).is_ok(),
            Action::Combine { left, right, into } => {
                let (left, right, into) = (desk.view(left), desk.view(right), desk.view(into));
                operands.as_ref().is_some_and(|(operator, fit)| {
                    combine(*operator, fit, &left, &right, &into).is_ok()
                })
            }
        };
        if whole { Taken::Whole } else { Taken::Not }
    }
}
