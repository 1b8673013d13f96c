//! Memo of the memory spaces that collective calls of a kind use.

use osier_collectives::{Association, Operation};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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
    kinds: Mutex<Option<HashMap<Kind, Known>>>,
}

impl Spaces {
    pub fn new(matter: bool) -> Spaces {
        Spaces {
            matter: AtomicBool::new(matter),
            placed: AtomicBool::new(false),
            kinds: Mutex::default(),
        }
    }

    /// Begins anew, with other costs.
    pub fn forget(&self, matter: bool) {
        self.matter.store(matter, Ordering::Relaxed);
        self.placed.store(false, Ordering::Relaxed);
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Result for a kind, and whether this call asks again.
    pub fn of(&self, kind: Kind, counts: bool) -> (Found, bool) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.calls += u64::from(counts);
        (known.found, counts && known.calls.is_power_of_two())
    }

    pub fn learn(&self, kind: Kind, found: Found) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.found = found;
    }
}
