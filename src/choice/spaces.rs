//! Memo of the memory spaces that collective calls of a kind use.

use osier_collectives::{Association, Operation};
use osier_kernels::exchange::Exchange;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

/// Calls that are counted together.
pub(crate) type Kind = (Operation, Association, u32);

/// Agreement of the ranks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub on_devices: bool,
    /// The largest of any rank.
    pub class: u32,
}

impl Found {
    /// From two answers: all memory lies on devices, some does.
    pub fn new(all: bool, any: bool, class: u32) -> Found {
        Found {
            on_devices: all && any,
            class,
        }
    }
}

/// Knowledge of all ranks about calls of a kind.
#[derive(Clone, Copy, Default)]
struct Known {
    calls: u64,
    found: Found,
}

/// Knowledge on a communicator.
pub(crate) struct Spaces {
    /// Costs know devices; changed in collective calls only.
    pub matter: AtomicBool,
    /// Ranks know where their devices are.
    pub placed: AtomicBool,
    /// They have opened each other's inboxes: reductions may be one kernel of each.
    pub exchanges: AtomicBool,
    /// What they enqueue lies on these devices.
    pub linked: AtomicBool,
    /// Exchanges of captured graphs.
    pub of_graphs: Mutex<OfGraphs>,
    kinds: Mutex<Option<HashMap<Kind, Known>>>,
}

/// Exchanges that were made for graphs: how many, and the last one's capture. Ranks make them
/// together.
#[derive(Default)]
pub(crate) struct OfGraphs {
    pub made: u64,
    pub last: Option<(u64, Weak<Exchange>)>,
}

impl Spaces {
    pub fn new(matter: bool) -> Spaces {
        Spaces {
            matter: AtomicBool::new(matter),
            placed: AtomicBool::new(false),
            exchanges: AtomicBool::new(false),
            linked: AtomicBool::new(false),
            of_graphs: Mutex::default(),
            kinds: Mutex::default(),
        }
    }

    /// Begins anew, with other costs.
    pub fn forget(&self, matter: bool) {
        self.matter.store(matter, Ordering::Relaxed);
        self.placed.store(false, Ordering::Relaxed);
        self.exchanges.store(false, Ordering::Relaxed);
        self.linked.store(false, Ordering::Relaxed);
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Result for a kind, and whether this call asks again.
    pub fn of(&self, kind: Kind, counts: bool) -> (Found, bool) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.calls += u64::from(counts);
        (known.found, counts && known.calls.is_power_of_two())
    }

    /// Counts a call that a rank may take step by step by itself. False: it asks, or its
    /// memory lies on devices; then it is not counted yet.
    pub fn counts_alone(&self, kind: Kind) -> bool {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        let alone = !known.found.on_devices && !(known.calls + 1).is_power_of_two();
        known.calls += u64::from(alone);
        alone
    }

    pub fn learn(&self, kind: Kind, found: Found) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.found = found;
    }
}
