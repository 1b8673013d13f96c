//! Choice of a plan: the cheapest by costs that all ranks share.
//!
//! All ranks of a job have the cost tables of the launcher, or the built-in
//! one, and know each other's positions; so they choose alike. Where the launcher has tables of
//! several states of the machine, the plan is taken that loses least over them. A communicator may switch
//! to another table, in a collective call. A choice is made once per machine, operation,
//! number of ranks and size class, and kept by the rank for all its communicators.

mod programs;
pub(crate) mod spaces;

pub(crate) use programs::Programs;

use crate::model::Agreed;
use crate::model::{CallCosts, Places, RankLinks};
use osier_collectives::{
    Algorithm, Association, Call, Choice, Machine, Model, OneKernel, Operation, Plan, Sizes,
    choose_for_all,
};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::lower::lower;
use osier_engine::exec::program::RunsOn;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// The plan of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    pub algorithm: Algorithm,
    pub segments: u32,
    /// Where the work runs, for device memory.
    pub runs_on: RunsOn,
}

#[derive(Clone, Copy, Hash, PartialEq, Eq)]
struct Key {
    machine: u64,
    operation: Operation,
    required: Association,
    varying: bool,
    size: u32,
    first_side: Option<u32>,
    class: u32,
    /// A reduction with another root than the first rank: some algorithms keep less of its order.
    turned: bool,
    /// For device memory.
    on_devices: bool,
    /// It may be one kernel of each rank.
    in_one_kernel: bool,
    /// Its flags may lie in the ranks' segment.
    in_segment: bool,
    /// Ranks may read plain memory of each other by the system.
    reads: bool,
}

/// What a call may be, besides messages of the host's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct May {
    pub on_devices: bool,
    pub in_one_kernel: bool,
    pub in_segment: bool,
    /// Ranks may read plain memory of each other by the system.
    pub reads: bool,
}

/// Choices of a rank so far.
#[derive(Default)]
pub(crate) struct Choices(Mutex<HashMap<Key, Chosen>>);

/// The planner's machine of a communicator's ranks, in each state that is known.
pub(crate) struct Described {
    /// Equal machines have equal numbers, in one process.
    pub id: u64,
    pub ranks_per_core: u32,
    /// The first is that of predictions.
    states: Vec<State>,
}

/// The machine in one state.
#[derive(Clone)]
struct State {
    table: CallCosts,
    machine: Machine,
    /// The same where other ranks share a core.
    otherwise: Option<Machine>,
    /// The same where buffers lie on devices, if the costs are known.
    devices: Option<Machine>,
}

impl Described {
    /// By these tables, one for each state.
    pub fn of(
        tables: Vec<CallCosts>,
        ranks: &[u32],
        ranks_per_core: u32,
        agreed: &Agreed,
        eager_bytes: usize,
        shares_segment: bool,
    ) -> Described {
        let places = agreed.places.as_ref();
        let mut hasher = DefaultHasher::new();
        let state = |table: CallCosts| {
            let here = table.shared_by(ranks_per_core);
            let machine = here.machine_of_host(ranks, places, eager_bytes, shares_segment);
            let unknown = RankLinks::default();
            let devices = here.machine_of_devices(ranks, places, &unknown, &machine);
            table.version().hash(&mut hasher);
            machine.places.hash(&mut hasher);
            machine.segment.is_some().hash(&mut hasher);
            State {
                table,
                otherwise: machine.dealt_otherwise(),
                machine,
                devices,
            }
        };
        let states = tables.into_iter().map(state).collect();
        Described {
            id: hasher.finish(),
            ranks_per_core,
            states,
        }
    }

    /// The table of predictions.
    pub(crate) fn table(&self) -> &CallCosts {
        &self.states[0].table
    }

    /// The tables of all states.
    pub(crate) fn tables(&self) -> Vec<CallCosts> {
        self.states
            .iter()
            .map(|state| state.table.clone())
            .collect()
    }

    /// The machine for buffers of the host, by state, and then as ranks may share cores besides.
    pub(crate) fn machines(&self) -> Vec<&Machine> {
        let first = self.states.iter().map(|state| &state.machine);
        let otherwise = self.states.iter().filter_map(|s| s.otherwise.as_ref());
        first.chain(otherwise).collect()
    }

    /// The same for buffers on devices, where their costs are known: empty if in no state.
    pub(crate) fn machines_of_devices(&self) -> Vec<&Machine> {
        let devices = self
            .states
            .iter()
            .filter_map(|state| state.devices.as_ref());
        devices.collect()
    }

    /// The same, with ranks placed by their devices for buffers there.
    pub(crate) fn with_devices(
        &self,
        places: &Places,
        device_links: &RankLinks,
        one_kernel: Option<OneKernel>,
    ) -> Described {
        let ranks: Vec<u32> = (0..places.ranks.len() as u32).collect();
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        if let Some(kernel) = &one_kernel {
            for log in 3..=16 {
                let ns = kernel.ns.at(f64::from(1 << log));
                ns.to_bits().hash(&mut hasher);
            }
        }
        device_links.device_links.hash(&mut hasher);
        let one_kernel = one_kernel.map(Arc::new);
        let state = |state: &State| {
            let eager_bytes = state.machine.eager_bytes as usize;
            let here = state.table.shared_by(self.ranks_per_core);
            let host = here.machine(&ranks, Some(places), eager_bytes);
            let mut devices = here.machine_of_devices(&ranks, Some(places), device_links, &host);
            if let Some(devices) = &mut devices {
                devices.one_kernel.clone_from(&one_kernel);
            }
            host.places.hash(&mut hasher);
            State {
                devices,
                ..state.clone()
            }
        };
        let states = self.states.iter().map(state).collect();
        Described {
            id: hasher.finish(),
            ranks_per_core: self.ranks_per_core,
            states,
        }
    }
}

/// All candidates for a call, what loses least over these states first.
pub(crate) fn ranking(states: &[&Machine], call: &Call, class: u32) -> Result<Choice> {
    let sizes = Sizes::Equal(bytes_of(class));
    choose_for_all(call, &sizes, states, Model::LogGp)
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))
}

/// The plan in a form that may run where buffers lie on devices: each step touches one run of
/// bytes there, on every rank. If several segments do not fit, one may.
fn that_stays(plan: &Plan) -> Option<Plan> {
    let fits = |plan: &Plan| {
        let call = plan.call();
        let fits = |rank| {
            let part = plan.part(rank);
            let cut = part.cut.max(1);
            let program = lower(call, &part).ok()?;
            let pieces = |buffer| call.pieces(rank, buffer, cut);
            program
                .lies_in_runs(call.has_places(), pieces)
                .then_some(())
        };
        (0..call.size).all(|rank| fits(rank).is_some())
    };
    if fits(plan) {
        return Some(plan.clone());
    }
    let whole = Plan::new(plan.call().clone(), plan.algorithm().clone(), 1).ok()?;
    fits(&whole).then_some(whole)
}

impl Choices {
    /// Plan of a call of a size class.
    pub(crate) fn of(
        &self,
        described: &Described,
        call: &Call,
        class: u32,
        may: May,
    ) -> Result<Chosen> {
        let May {
            on_devices,
            in_one_kernel,
            in_segment,
            reads,
        } = may;
        let devices = described.machines_of_devices();
        let on_devices = on_devices && !devices.is_empty();
        let key = Key {
            on_devices,
            in_one_kernel,
            in_segment,
            reads,
            machine: described.id,
            operation: call.operation,
            required: call.required,
            varying: call.varying,
            size: call.size,
            first_side: call.first_side,
            class,
            turned: call.operation.reduces() && call.root != 0,
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
        let machines = match on_devices {
            true => devices,
            false => described.machines(),
        };
        let choice = ranking(&machines, &alike, class)?;
        let kept = |plan: &Plan| {
            let kept = plan.algorithm().keeps(call);
            kept.is_some_and(|kept| !call.operation.reduces() || kept >= call.required)
        };
        let candidates = choice.ranking.iter();
        let suits = candidates
            .filter(|candidate| kept(&candidate.plan))
            .filter(|candidate| in_segment || !candidate.plan.algorithm().in_segment())
            .filter(|candidate| reads || !candidate.plan.algorithm().reads_in_place())
            .find_map(|candidate| match (on_devices, candidate.through_host) {
                (false, _) => Some((candidate.plan.clone(), RunsOn::ByCost)),
                (true, true) => Some((candidate.plan.clone(), RunsOn::Host)),
                (true, false) if *candidate.plan.algorithm() == Algorithm::OneKernel => {
                    in_one_kernel.then(|| (candidate.plan.clone(), RunsOn::OneKernel))
                }
                (true, false) => Some((that_stays(&candidate.plan)?, RunsOn::Device)),
            });
        let no_plan = || Error::new(ErrorKind::Unavailable, "no plan for this root");
        let (plan, runs_on) = suits.ok_or_else(no_plan)?;
        let chosen = Chosen {
            algorithm: plan.algorithm().clone(),
            segments: plan.segments(),
            runs_on,
        };
        lock().insert(key, chosen.clone());
        Ok(chosen)
    }
}

/// Size class: 0, and powers of two rounded up.
pub(crate) fn class_of(bytes: usize) -> u32 {
    match bytes {
        0 => 0,
        n => (n - 1).checked_ilog2().map_or(1, |log| log + 2),
    }
}

/// The largest size of a class.
pub(crate) fn bytes_of(class: u32) -> u64 {
    match class {
        0 => 0,
        class => 1u64 << (class - 1).min(62),
    }
}

#[cfg(test)]
mod tests;
