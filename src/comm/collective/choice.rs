//! Which plan: the cheapest by costs that all ranks share.
//!
//! All ranks of a job have the costs that the launcher read, or the built-in ones; so
//! they choose alike. A choice is made once per operation, number of ranks and size
//! class, and kept by the rank for all its communicators.

use super::ask::{bytes_of, class_of};
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::core::Core;
use crate::protocol::select::{Memory, Selection};
use osier_collectives::{
    Algorithm, Association, Call, Choice, Link, Machine, Model, Operation, Sizes, choose,
};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Algorithm and number of segments.
type Chosen = (Algorithm, u32);

#[derive(Clone, Copy, Hash, PartialEq, Eq)]
struct Key {
    operation: Operation,
    required: Association,
    varying: bool,
    size: u32,
    first_side: Option<u32>,
    class: u32,
}

/// What a rank has chosen so far.
#[derive(Default)]
pub(in crate::comm) struct Choices(Mutex<HashMap<Key, Chosen>>);

/// The machine as the planner sees it: all ranks equally far from each other.
fn machine(size: u32, selection: &Selection) -> Machine {
    let costs = selection.costs();
    // What a message costs beyond its latency is half of what one more in a stream does
    // at either end.
    let overhead_ns = costs.overhead_ns / 2.0;
    let link = Link {
        latency_ns: (costs.latency_ns - 2.0 * overhead_ns).max(10.0),
        overhead_ns,
        gap_ns: costs.overhead_ns,
        per_byte_ns: costs.copy_ns_per_byte,
        shared_per_byte_ns: 0.0,
    };
    Machine {
        combine_ns: costs.copy_ns_per_byte,
        copy_ns: costs.copy_ns_per_byte,
        eager_bytes: selection.eager_max(Memory::Plain) as f64,
        ..Machine::flat(size, link)
    }
}

/// All candidates for a call, best first.
fn ranking(core: &Core, call: &Call, class: u32) -> Result<Choice> {
    let machine = machine(call.size, &core.selection);
    let sizes = Sizes::Equal(bytes_of(class));
    choose(call, &sizes, &machine, Model::LogGp)
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))
}

impl Choices {
    /// What to use for a call of a size class.
    pub(super) fn of(&self, core: &Core, call: &Call, class: u32) -> Result<Chosen> {
        let key = Key {
            operation: call.operation,
            required: call.required,
            varying: call.varying,
            size: call.size,
            first_side: call.first_side,
            class,
        };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chosen) = lock().get(&key) {
            return Ok(chosen.clone());
        }
        // Ranks may differ in whether they work in place, and all roots are alike.
        let alike = Call {
            in_place: false,
            root: 0,
            ..call.clone()
        };
        let choice = ranking(core, &alike, class)?;
        let suits = choice
            .ranking
            .iter()
            .find(|candidate| {
                candidate
                    .plan
                    .algorithm()
                    .keeps(call)
                    .is_some_and(|kept| !call.operation.reduces() || kept >= call.required)
            })
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "no plan for this root"))?;
        let chosen = (suits.plan.algorithm().clone(), suits.plan.segments());
        lock().insert(key, chosen.clone());
        Ok(chosen)
    }
}

impl Communicator {
    /// Which plans there are for an operation on so many bytes, by predicted time, the
    /// one that calls use first; and what was left out, and why. Of reductions, for
    /// operators that round. On an intercommunicator, of this side.
    ///
    /// # Errors
    /// If no algorithm is for the operation.
    pub fn explain(&self, operation: Operation, bytes: usize) -> Result<Choice> {
        let call = Call::new(operation, self.size() as u32);
        self.reported(ranking(self.core(), &call, class_of(bytes)))
    }
}
