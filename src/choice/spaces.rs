//! Memo of the memory spaces that collective calls of a kind use.

use osier_collectives::{Association, Operation};
use osier_kernels::exchange::Exchange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Calls that are counted together.
pub(crate) type Kind = (Operation, Association, u32);

/// Agreement of the ranks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub on_devices: bool,
    /// Some memory lies on devices.
    pub any: bool,
    /// The largest of any rank.
    pub class: u32,
}

impl Found {
    /// From two answers: all memory lies on devices, some does.
    pub fn new(all: bool, any: bool, class: u32) -> Found {
        Found {
            on_devices: all && any,
            any,
            class,
        }
    }
}

/// Knowledge of all ranks about calls of a kind.
#[derive(Clone, Copy, Default)]
struct Known {
    calls: u64,
    /// None: nobody has asked yet.
    found: Option<Found>,
}

/// Knowledge on a communicator.
pub(crate) struct Spaces {
    /// Costs know devices; changed in collective calls only.
    pub matter: AtomicBool,
    /// The ranks have promised each other that memory is the host's.
    pub of_host: AtomicBool,
    /// Ranks know where their devices are.
    pub placed: AtomicBool,
    /// They have opened each other's inboxes: reductions may be one kernel of each.
    pub exchanges: AtomicBool,
    /// What they enqueue lies on these devices.
    pub linked: AtomicBool,
    /// Exchanges of captured graphs.
    pub of_graphs: Mutex<OfGraphs>,
    kinds: Mutex<Kinds>,
}

/// Kinds of calls that were made: there are few, and calls of one kind come in a row.
#[derive(Default)]
struct Kinds {
    all: Vec<(Kind, Known)>,
    last: usize,
}

impl Kinds {
    fn of(&mut self, kind: Kind) -> &mut Known {
        if self
            .all
            .get(self.last)
            .is_none_or(|(other, _)| *other != kind)
        {
            let found = self.all.iter().position(|(other, _)| *other == kind);
            self.last = found.unwrap_or(self.all.len());
            if found.is_none() {
                self.all.push((kind, Known::default()));
            }
        }
        &mut self.all[self.last].1
    }
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
            of_host: AtomicBool::new(false),
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
        *self.kinds() = Kinds::default();
    }

    /// Result for a kind, if ranks have asked, and whether this call asks again.
    pub fn of(&self, kind: Kind, counts: bool) -> (Option<Found>, bool) {
        let mut kinds = self.kinds();
        let known = kinds.of(kind);
        known.calls += u64::from(counts);
        (known.found, counts && known.calls.is_power_of_two())
    }

    /// Counts a call that a rank may take step by step by itself. False: it asks, or memory of
    /// such calls lies on devices; then it is not counted yet.
    pub fn counts_alone(&self, kind: Kind) -> bool {
        let mut kinds = self.kinds();
        let known = kinds.of(kind);
        let of_host = known.found.is_some_and(|found| !found.any);
        let alone = of_host && !(known.calls + 1).is_power_of_two();
        known.calls += u64::from(alone);
        alone
    }

    pub fn learn(&self, kind: Kind, found: Found) {
        self.kinds().of(kind).found = Some(found);
    }

    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
