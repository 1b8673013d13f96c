//! Plans of a communicator: the machine they are chosen for, and the costs.

use crate::choice::{Described, class_of, ranking};
use crate::comm::Communicator;
use crate::model::calls::parsed;
use crate::model::{CallCosts, DeviceCalls};
use osier_collectives::{Call, Choice, Operation};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::Memory;
use osier_kernels::Driver;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Fewest bytes of a share of which plans may read plain memory of other ranks: slots hold shorter
/// ones. Not tuned.
const LEAST_READ: usize = 32 << 10;

impl Communicator {
    /// The machine of this communicator's ranks, made where it is asked for first.
    pub(crate) fn described(&self) -> Arc<Described> {
        let runs = self.runs_on();
        let mut kept = runs
            .0
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(described) = &*kept {
            return described.clone();
        }
        let described = Arc::new(runs.describe(self.member().agreed.tables()));
        *kept = Some(described.clone());
        described
    }

    /// Whether calls may have plans whose flags lie in a segment, of those of which all ranks know
    /// that memory is the host's (`spaces`).
    pub(crate) fn shares_segment(&self) -> bool {
        self.lane().lock().has_segment()
    }

    /// The same of calls on a neighborhood, which ask nothing. All ranks of a host have a driver,
    /// or none has.
    pub(crate) fn shares_segment_of_neighbors(&self) -> bool {
        self.lane().lock().has_segment() && !Driver::is_there()
    }

    /// All ranks promise that memory of their calls is the host's, and enqueue none, also where
    /// there are devices. Collective.
    pub(crate) fn promise_host(&self) {
        self.0.spaces.of_host.store(true, Ordering::Relaxed);
    }

    /// Whether all ranks read plain memory of each other, as far as they have told.
    pub(crate) fn reads(&self) -> bool {
        self.0.reads.get() == Some(&true)
    }

    /// Finds out with all ranks whether they read plain memory of each other, before the first
    /// blocking call for whose bytes a plan may. Collective: what decides is the same on all.
    ///
    /// # Errors
    /// A rank has failed.
    #[track_caller]
    pub(crate) fn agree_to_read(&self, bytes: usize) -> Result<()> {
        let may = bytes >= LEAST_READ && self.core().shares_cores() && !self.is_inter();
        if !may || self.0.reads.get().is_some() || !self.shares_segment_of_neighbors() {
            return Ok(());
        }
        let own = u8::from(self.lane().lock().reads_processes());
        let mut all = 0u8;
        self.allreduce(&own, &mut all, crate::Op::Min)?;
        self.0.reads.get_or_init(|| all == 1);
        Ok(())
    }

    fn describe(&self, tables: Vec<CallCosts>) -> Described {
        let ranks: Vec<u32> = self.group().world_ranks().map(|r| r as u32).collect();
        let eager_bytes = self.core().selection.eager_max(Memory::Plain);
        let ranks_per_core = self.core().ranks_per_core();
        Described::of(
            tables,
            &ranks,
            ranks_per_core,
            &self.member().agreed,
            eager_bytes,
            self.shares_segment(),
        )
    }

    /// The plans for an operation on `bytes` bytes, by predicted time, the one that
    /// calls use first; and those left out, and why. Of reductions, for
    /// operators that round. On an intercommunicator, of this side; on a neighborhood, where
    /// all ranks know the whole of it: on grids and graphs.
    ///
    /// ```
    /// use osier_collectives::Operation;
    ///
    /// let universe = osier::init()?;
    /// let choice = universe.world().explain(Operation::Allreduce, 1 << 20)?;
    /// println!("{choice}"); // the chosen plan, the runner-up, ...; what was left out
    /// # Ok::<(), osier::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Unavailable`], if no algorithm implements the operation, or it is
    /// one of neighbors on a distributed graph; of kind [`ErrorKind::Argument`], if it is one
    /// of neighbors and the communicator has no topology.
    #[doc(hidden)]
    pub fn explain(&self, operation: Operation, bytes: usize) -> Result<Choice> {
        let described = self.described();
        let mut call = Call::new(operation, self.size() as u32);
        if operation.of_neighbors() {
            call = call.on(self.reported(self.all_around())?).varying();
        }
        self.reported(ranking(&described.machines(), &call, class_of(bytes)))
    }

    /// As [`Communicator::explain`], of buffers in memory of devices: by what messages,
    /// copies and combinations cost there, beside plans through the host's memory.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Unavailable`], if no algorithm implements the operation, or the
    /// costs of this communicator have none of devices.
    #[doc(hidden)]
    pub fn explain_on_devices(&self, operation: Operation, bytes: usize) -> Result<Choice> {
        let described = self.described();
        let call = Call::new(operation, self.size() as u32);
        let unknown = || {
            Error::new(
                ErrorKind::Unavailable,
                "no costs of devices are known (hint: osier model measure, where a device is)",
            )
        };
        let machines = described.machines_of_devices();
        if machines.is_empty() {
            return self.reported(Err(unknown()));
        }
        self.reported(ranking(&machines, &call, class_of(bytes)))
    }

    /// The costs by which plans are chosen here: equal on all ranks. Where the job has costs of
    /// several states of the machine, those of predictions.
    pub fn call_costs(&self) -> CallCosts {
        self.described().table().clone()
    }

    /// How long a line took between two cores where the job's costs were measured, in ns, by
    /// state of the machine; predictions are of the first.
    #[doc(hidden)]
    pub fn lines_ns(&self) -> Vec<Option<f64>> {
        self.member().agreed.lines_ns()
    }

    /// Has protocols of this communicator's messages chosen by these costs.
    pub(crate) fn choose_by(&self, costs: &LinkCosts) {
        let selection = Arc::new(self.core().selection.by(*costs));
        self.core()
            .with(self.lane(), |lane| lane.use_selection(selection));
    }

    /// Adopts other costs: those of the first rank that passes some, on all ranks.
    /// From the next call on plans are chosen by them; if no rank has any, by the job's
    /// own, of all states of the machine that it knows. A table that makes no sense counts as
    /// none. Collective, on one group.
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
    /// Of kind [`ErrorKind::Communicator`], on an intercommunicator; else as
    /// [`Communicator::allreduce`].
    #[track_caller]
    pub fn adopt_costs(&self, costs: Option<&CallCosts>) -> Result<u64> {
        // The calls that it makes report what fails in them.
        self.reported(self.within())?;
        let mine = costs.and_then(|costs| costs.clone().checked().ok());
        let mut first = [match mine {
            Some(_) => self.rank() as u64,
            None => self.size() as u64,
        }];
        self.allreduce(&super::IN_PLACE, &mut first, crate::Op::Min)?;
        let first = first[0] as usize;
        let tables = match first < self.size() {
            true => {
                let text = mine.map(|mine| serde_json::to_vec(&mine).unwrap_or_default());
                vec![self.reported(parsed(&self.says(first, text.unwrap_or_default())?))?]
            }
            false => self.member().agreed.tables(),
        };
        let described = self.describe(tables);
        let version = described.table().version();
        self.0
            .spaces
            .forget(!described.machines_of_devices().is_empty());
        let mut kept = self
            .0
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = Some(Arc::new(described));
        drop(kept);
        // What was made for the old costs.
        self.core()
            .with(self.lane(), |lane| lane.executor.forget_programs());
        Ok(version)
    }

    /// Has plans for memory of devices, by built-in costs where none were measured. All ranks
    /// do it in the same place.
    pub(crate) fn know_devices(&self) {
        let agreed = &self.member().agreed;
        if self.0.spaces.matter.load(Ordering::Relaxed) {
            return;
        }
        let mut tables = self.described().tables();
        for (table, links) in tables.iter_mut().zip(agreed.links_by_state()) {
            table.devices = Some(DeviceCalls::estimated(&links));
        }
        let described = self.describe(tables);
        self.0.spaces.forget(true);
        let kept = &self.0.described;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(described));
        self.core()
            .with(self.lane(), |lane| lane.executor.forget_programs());
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
