//! Which plan: the cheapest by costs that all ranks share.
//!
//! All ranks of a job have the table of costs that the launcher left, or the built-in
//! one, and know each other's places; so they choose alike. A communicator may go over
//! to another table, in a collective call. A choice is made once per machine, operation,
//! number of ranks and size class, and kept by the rank for all its communicators.

use super::ask::{Ask, bytes_of, class_of};
use crate::comm::{Communicator, IN_PLACE};
use crate::model::calls::{Agreed, parsed};
use crate::model::{CallCosts, Places, RankJoints};
use osier_collectives::{
    Algorithm, Association, Call, Choice, Machine, Model, Operation, Plan, Sizes, choose,
};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::lower::lower;
use osier_engine::exec::program::Place;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::Memory;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// What is used for a call.
#[derive(Clone, Debug)]
pub(in crate::comm) struct Chosen {
    pub algorithm: Algorithm,
    pub segments: u32,
    /// Where it works, of memory of devices.
    pub place: Place,
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
    /// A reduction to another rank than the first: some algorithms keep less of its order.
    turned: bool,
    /// For memory of devices.
    on_devices: bool,
}

/// What a rank has chosen so far.
#[derive(Default)]
pub(in crate::comm) struct Choices(Mutex<HashMap<Key, Chosen>>);

/// The planner's machine of a communicator's ranks.
pub(in crate::comm) struct Described {
    /// Equal machines have equal numbers, in one process.
    id: u64,
    table: CallCosts,
    ranks_per_core: u32,
    machine: Machine,
    /// The same where buffers lie on devices, if anybody knows what that costs.
    devices: Option<Machine>,
}

impl Described {
    fn of(
        table: CallCosts,
        ranks: &[u32],
        ranks_per_core: u32,
        agreed: &Agreed,
        eager_bytes: usize,
    ) -> Described {
        let here = table.shared_by(ranks_per_core);
        let machine = here.machine(ranks, agreed.places.as_ref(), eager_bytes);
        let unknown = RankJoints::default();
        let devices = here.machine_of_devices(ranks, agreed.places.as_ref(), &unknown, &machine);
        let mut hasher = DefaultHasher::new();
        table.version().hash(&mut hasher);
        machine.places.hash(&mut hasher);
        Described {
            id: hasher.finish(),
            table,
            ranks_per_core,
            machine,
            devices,
        }
    }
}

impl Described {
    /// The same, with ranks placed by their devices for what lies there.
    pub(super) fn with_devices(&self, places: &Places, joints: &RankJoints) -> Described {
        let ranks: Vec<u32> = (0..places.ranks.len() as u32).collect();
        let eager_bytes = self.machine.eager_bytes as usize;
        let here = self.table.shared_by(self.ranks_per_core);
        let host = here.machine(&ranks, Some(places), eager_bytes);
        let devices = here.machine_of_devices(&ranks, Some(places), joints, &host);
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        joints.joints.hash(&mut hasher);
        host.places.hash(&mut hasher);
        Described {
            id: hasher.finish(),
            table: self.table.clone(),
            ranks_per_core: self.ranks_per_core,
            machine: self.machine.clone(),
            devices,
        }
    }
}

/// All candidates for a call, best first.
fn ranking(machine: &Machine, call: &Call, class: u32) -> Result<Choice> {
    let sizes = Sizes::Equal(bytes_of(class));
    choose(call, &sizes, machine, Model::LogGp)
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))
}

/// A plan as it may run where buffers lie on devices: all that a step touches is a run of
/// bytes there, on every rank. What is not in several segments may be in one.
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
    /// What to use for a call of a size class.
    pub(super) fn of(&self, described: &Described, ask: &Ask) -> Result<Chosen> {
        let (call, class) = (&ask.call, ask.class);
        let devices = described.devices.as_ref().filter(|_| ask.on_devices);
        let key = Key {
            on_devices: devices.is_some(),
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
        let choice = ranking(devices.unwrap_or(&described.machine), &alike, class)?;
        let kept = |plan: &Plan| {
            let kept = plan.algorithm().keeps(call);
            kept.is_some_and(|kept| !call.operation.reduces() || kept >= call.required)
        };
        let candidates = choice.ranking.iter();
        let suits = candidates
            .filter(|candidate| kept(&candidate.plan))
            .find_map(|candidate| match (devices, candidate.through_host) {
                (None, _) => Some((candidate.plan.clone(), Place::ByCost)),
                (Some(_), true) => Some((candidate.plan.clone(), Place::Host)),
                (Some(_), false) => Some((that_stays(&candidate.plan)?, Place::Device)),
            });
        let no_plan = || Error::new(ErrorKind::Unavailable, "no plan for this root");
        let (plan, place) = suits.ok_or_else(no_plan)?;
        let chosen = Chosen {
            algorithm: plan.algorithm().clone(),
            segments: plan.segments(),
            place,
        };
        lock().insert(key, chosen.clone());
        Ok(chosen)
    }
}

impl Communicator {
    /// The machine of this communicator's ranks, made where it is asked for first.
    pub(super) fn described(&self) -> Arc<Described> {
        let runs = self.runs_on();
        let mut kept = runs
            .0
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(described) = &*kept {
            return described.clone();
        }
        let described = Arc::new(runs.describe(self.member().agreed.table()));
        *kept = Some(described.clone());
        described
    }

    fn describe(&self, table: CallCosts) -> Described {
        let ranks: Vec<u32> = self.group().world_ranks().map(|r| r as u32).collect();
        let eager_bytes = self.core().selection.eager_max(Memory::Plain);
        let ranks_per_core = self.core().ranks_per_core();
        Described::of(
            table,
            &ranks,
            ranks_per_core,
            &self.member().agreed,
            eager_bytes,
        )
    }

    /// Which plans there are for an operation on so many bytes, by predicted time, the
    /// one that calls use first; and what was left out, and why. Of reductions, for
    /// operators that round. On an intercommunicator, of this side; on a neighbourhood, where
    /// all ranks know the whole of it: on grids and graphs.
    ///
    /// ```
    /// use osier::plans::Operation;
    ///
    /// let universe = osier::init()?;
    /// let choice = universe.world().explain(Operation::Allreduce, 1 << 20)?;
    /// println!("{choice}"); // the chosen plan, the runner-up, ...; what was left out
    /// # Ok::<(), osier::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no algorithm is for the operation.
    pub fn explain(&self, operation: Operation, bytes: usize) -> Result<Choice> {
        let described = self.described();
        let mut call = Call::new(operation, self.size() as u32);
        if operation.of_neighbors() {
            call = call.on(self.reported(self.all_around())?);
        }
        self.reported(ranking(&described.machine, &call, class_of(bytes)))
    }

    /// As [`Communicator::explain`], of buffers in memory of devices: by what messages,
    /// copies and combinations cost there, beside plans through the host's memory.
    ///
    /// # Errors
    /// If no algorithm is for the operation, or the costs of this communicator know nothing
    /// of devices.
    pub fn explain_on_devices(&self, operation: Operation, bytes: usize) -> Result<Choice> {
        let described = self.described();
        let call = Call::new(operation, self.size() as u32);
        let unknown = || {
            Error::new(
                ErrorKind::Unavailable,
                "no costs of devices are known (hint: osier model measure, where a device is)",
            )
        };
        let machine = self.reported(described.devices.as_ref().ok_or_else(unknown))?;
        self.reported(ranking(machine, &call, class_of(bytes)))
    }

    /// The costs by which plans are chosen here: equal on all ranks.
    pub fn call_costs(&self) -> CallCosts {
        self.described().table.clone()
    }

    /// Has protocols of this communicator's messages chosen by these costs.
    pub(crate) fn choose_by(&self, costs: &LinkCosts) {
        let selection = Arc::new(self.core().selection.by(*costs));
        self.core()
            .with(self.lane(), |lane| lane.use_selection(selection));
    }

    /// Goes over to other costs: those of the first rank that passes some, on all ranks.
    /// From the next call on plans are chosen by them; if no rank has any, by the job's
    /// own. A table that makes no sense counts as none. Collective, on one group.
    /// Communicators made of this one later begin with the job's costs.
    ///
    /// Returns the table's number, the same on all ranks.
    ///
    /// ```
    /// let universe = osier::init()?;
    /// let world = universe.world();
    /// let mine = world.call_costs();
    /// world.adopt_costs(Some(&mine))?;
    /// # Ok::<(), osier::Error>(())
    /// ```
    ///
    /// # Errors
    /// Between two groups, or if a rank dies.
    #[track_caller]
    pub fn adopt_costs(&self, costs: Option<&CallCosts>) -> Result<u64> {
        // The calls that it makes report what fails in them.
        self.reported(self.within())?;
        let mine = costs.and_then(|costs| costs.clone().checked().ok());
        let mut first = [match mine {
            Some(_) => self.rank() as u64,
            None => self.size() as u64,
        }];
        self.allreduce(&IN_PLACE, &mut first, crate::Op::Min)?;
        let first = first[0] as usize;
        let table = match first < self.size() {
            true => {
                let text = mine.map(|mine| serde_json::to_vec(&mine).unwrap_or_default());
                self.reported(parsed(&self.says(first, text.unwrap_or_default())?))?
            }
            false => self.member().agreed.table(),
        };
        let described = self.describe(table);
        let version = described.table.version();
        self.0.spaces.forget(described.devices.is_some());
        let mut kept = self
            .0
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = Some(Arc::new(described));
        drop(kept);
        // What was made for the old costs.
        self.core().with(
            self.lane(),
            osier_engine::progress::lane::Lane::forget_programs,
        );
        Ok(version)
    }

    /// Bytes of one rank, at all.
    fn says(&self, rank: usize, mut text: Vec<u8>) -> Result<Vec<u8>> {
        let mut bytes = [text.len() as u64];
        self.bcast(&mut bytes, rank)?;
        text.resize(bytes[0] as usize, 0);
        self.bcast(&mut text[..], rank)?;
        Ok(text)
    }

    /// Bytes of rank 0, at all.
    pub(crate) fn first_says(&self, text: Vec<u8>) -> Result<Vec<u8>> {
        self.says(0, text)
    }
}
