//! Counters and settings of device messages and reductions of a rank, for tests.

use osier::Communicator;
use osier::internals::{core, lane, runs_on};
use osier_engine::protocol::device::Reductions;

/// How messages between the host and devices, and between devices, went on a
/// communicator of this rank so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Bytes that this rank's processor has copied for them, each time.
    pub copied: u64,
    /// Slots of shared memory that this rank has handed over.
    pub handed: u64,
    /// Slots of its device's memory that this rank has handed over.
    pub device_slots: u64,
    /// Slots of a peer's device that this rank has copied to its own before it unpacked
    /// them.
    pub copied_first: u64,
    /// Ends of messages that the processor has read from a device's memory, or written
    /// there, itself.
    pub bar1_windows: u64,
    /// Kernels of this rank that copied between its device memory and a peer's.
    pub kernels: u64,
    /// What they copied.
    pub kernel_bytes: u64,
    /// Combinations of collective calls that kernels of this rank have made.
    pub combined: u64,
    /// Bytes that calls whose steps the host takes have had copied from devices or to them.
    pub crossed: u64,
    /// Allocations of other processes that this rank has open now.
    pub mappings: usize,
}

/// How messages of devices went; of an intercommunicator, those of its collective calls.
pub fn device_traffic(comm: &Communicator) -> DeviceTraffic {
    let counters = lane(runs_on(comm)).lock().counters();
    DeviceTraffic {
        copied: counters.copied,
        handed: counters.handed,
        device_slots: counters.device_slots,
        copied_first: counters.copied_first,
        bar1_windows: counters.bar1_windows,
        kernels: counters.kernels,
        kernel_bytes: counters.kernel_bytes,
        combined: counters.combined,
        crossed: counters.crossed,
        mappings: core(comm).devices.mappings(),
    }
}

/// Whether reductions that are one kernel of each rank store by multicast here: those of
/// calls, then those of each graph.
pub fn exchanges_by_multicast(comm: &Communicator) -> Vec<bool> {
    let lane = lane(runs_on(comm)).lock();
    let exchanges = lane.executor.exchanges();
    exchanges.map(|exchange| exchange.has_multicast()).collect()
}

/// What messages of devices hold of a rank now: nothing, when they are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Bytes of slots of host memory.
    pub pinned: usize,
    /// Bytes of slots of its devices' memory.
    pub slots: usize,
    /// Descriptors that were asked for and have not come.
    pub awaited: usize,
    /// Transfers of this communicator.
    pub staged: usize,
    /// Transfers of this rank of which nobody knows that their device is done.
    pub under_way: usize,
}

/// What messages of devices hold of this rank.
pub fn device_use(comm: &Communicator) -> DeviceUse {
    let devices = &core(comm).devices;
    DeviceUse {
        pinned: devices.pool().used(),
        slots: devices.used_slots(),
        awaited: devices.descriptors.awaited(),
        staged: lane(comm).lock().staged_transfers(),
        under_way: devices.under_way(),
    }
}

/// Where reductions of this rank's device memory combine, from now on;
/// `OSIER_DEVICE_REDUCTIONS` says it at first.
pub fn reduce_devices(comm: &Communicator, where_: Reductions) {
    core(comm).devices.reduce(where_);
}

/// Has plans of a communicator chosen by these costs, also between groups, which
/// [`Communicator::adopt_costs`] refuses. Collective.
///
/// # Errors
/// If a rank dies.
pub fn plan_by(comm: &Communicator, costs: &osier::model::CallCosts) -> osier::Result<()> {
    runs_on(comm).adopt_costs(Some(costs)).map(drop)
}
