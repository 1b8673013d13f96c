//! Short calls of plain memory: before a view of it is made, or anything is asked of its type.
//!
//! A call that is kept ([`osier_engine::exec::short`]) has been through all of that once, with the
//! same operation, root, bytes, operator and types. A call that is not kept, or cannot be taken
//! now, goes on as if it had not been looked up.

use super::ask::Ask;
use super::inline::Here;
use crate::comm::Communicator;
use osier_collectives::Operation;
use osier_datatype::{Element, Operator};
use osier_engine::check::Check;
use osier_engine::error::Result;
use osier_engine::exec::inline::Small;
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::short::Depends;
use osier_engine::view::Plain;

/// How far a call is. None: nothing has happened. Otherwise what a run takes up, unless it has ended.
pub(crate) type Quick = Option<Option<Here>>;

impl Communicator {
    /// A reduction whose input and result have as many elements of one type. `into` is `Some(None)`
    /// at a rank that gets no result.
    #[inline]
    pub(crate) fn quick_reduction<R: Reduction>(
        &self,
        call: (Operation, u32),
        from: Option<Plain>,
        into: Option<Option<Plain>>,
        op: &R,
    ) -> Quick {
        let (from, into) = (from?, into?);
        if into.is_some_and(|into| (into.bytes, into.basic) != (from.bytes, from.basic)) {
            return None;
        }
        let into = into.map_or(std::ptr::null_mut(), |into| into.at);
        self.quick_combined(
            call,
            (from.at, into, from.bytes),
            op.predefined_on(from.basic),
        )
    }

    /// A reduction of which each rank gets an equal share.
    #[inline]
    pub(crate) fn quick_shares<R: Reduction>(
        &self,
        from: Option<Plain>,
        into: Option<Plain>,
        op: &R,
    ) -> Quick {
        let (from, into) = (from?, into?);
        if from.basic != into.basic || from.bytes != into.bytes * self.size() {
            return None;
        }
        let memory = (from.at, into.at, into.bytes);
        self.quick_combined(
            (Operation::ReduceScatter, 0),
            memory,
            op.predefined_on(from.basic),
        )
    }

    #[inline]
    fn quick_combined(
        &self,
        call: (Operation, u32),
        memory: (*mut u8, *mut u8, usize),
        known: Option<(Operator, Element)>,
    ) -> Quick {
        known?;
        self.quick(call, memory, known)
    }

    /// A call from and to memory, in pieces of `bytes` bytes.
    #[inline]
    pub(crate) fn quick(
        &self,
        call: (Operation, u32),
        (send, recv, bytes): (*mut u8, *mut u8, usize),
        known: Option<(Operator, Element)>,
    ) -> Quick {
        let core = self.core();
        if core.records_or_refuses() || self.is_inter() || core.checks.has(Check::Collectives) {
            return None;
        }
        // Where buffers may lie on devices, ranks count such calls.
        if self.counts(call.0, bytes) {
            return None;
        }
        let of = Depends::of(call, bytes, known);
        let mut lane = self.lane().lock();
        if !lane.idle() {
            return None;
        }
        let short = lane.executor.short_calls.take(&of)?;
        Some(self.run_short(lane, short, Small { send, recv, bytes }))
    }

    /// The end of such a call, if anything has happened. What it asks for is only worked out where
    /// a run is needed.
    #[inline]
    #[track_caller]
    pub(crate) fn ended_quickly(
        &self,
        quick: Quick,
        name: &'static str,
        ask: impl FnOnce() -> Result<Ask>,
    ) -> Option<Result<()>> {
        // No closure: the caller's source line passes through.
        match quick {
            None => None,
            Some(None) => Some(Ok(())),
            Some(begun) => {
                let result = self.ended(begun, ask);
                Some(self.reported(result.map_err(|e| e.context(name))))
            }
        }
    }
}
