//! Do the buffers of a call lie on devices, at all ranks?
//!
//! All ranks must have one plan, and none knows where the others' buffers are. Any plan is
//! right for any memory, so what ranks agree on may be out of date; it must only be the same
//! for all. Calls of one kind and size class are counted; at the first, second, fourth,
//! eighth... of them ranks ask each other. So n calls cost log n rounds, calls that change
//! where their buffers are get another plan before they have been made twice as often, and
//! calls that do not wait use what was found before them.
//!
//! What is asked: whether all memory lies on devices, and any; and the size class, for calls
//! whose bytes ranks do not all know: with counts, and between groups, where who looks on
//! knows none. Calls on neighbourhoods ask nothing: they have one plan, and each rank decides
//! for itself what stays on its device (`stays`).
//!
//! Where calls are checked, the round before each call (`agree`) has the answers: calls that
//! wait wait for it first.
//!
//! # Invariants
//! 1. Nobody asks unless the agreed costs know devices: jobs without them pay one load.
//! 2. Who asks, and when, depends on what all ranks have alike: the order of calls, their
//!    operation, the form of the call, and, where all know them, size class and association.
//! 3. Calls that a rank may take step by step by itself (`straight`) ask nothing: others
//!    would wait for it.

use super::ask::{Ask, bytes_of};
use crate::check::Check;
use crate::comm::Communicator;
use crate::error::Result;
use crate::model::calls::ROW_BYTES;
use crate::model::{Gpu, Places};
use osier_collectives::{Association, Operation};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Calls that are counted together.
type Kind = (Operation, Association, u32);

/// In place of the size class of a kind whose bytes are exchanged.
const ANY_CLASS: u32 = u32::MAX;

/// What ranks agree on.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    on_devices: bool,
    /// The largest of any rank.
    class: u32,
}

impl Found {
    /// From whether all memory lies on devices, and any.
    pub fn new(all: bool, any: bool, class: u32) -> Found {
        Found {
            on_devices: all && any,
            class,
        }
    }
}

/// What all ranks know of calls of a kind.
#[derive(Clone, Copy, Default)]
struct Known {
    calls: u64,
    found: Found,
}

/// What is known on a communicator.
pub(in crate::comm) struct Spaces {
    /// Costs know devices; changed in collective calls only.
    matter: AtomicBool,
    /// Ranks know where their devices are.
    placed: AtomicBool,
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

    /// Begins anew, by other costs.
    pub fn forget(&self, matter: bool) {
        self.matter.store(matter, Ordering::Relaxed);
        self.placed.store(false, Ordering::Relaxed);
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What is known of a kind, and whether it is to be asked now.
    fn of(&self, kind: Kind, counts: bool) -> (Found, bool) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.calls += u64::from(counts);
        (known.found, counts && known.calls.is_power_of_two())
    }

    fn learn(&self, kind: Kind, found: Found) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.found = found;
    }
}

/// The kind of a call, and whether all ranks know its size class. None: one that asks nothing.
fn kind_of(ask: &Ask) -> Option<(Kind, bool)> {
    let call = &ask.call;
    if call.operation == Operation::Barrier || call.operation.of_neighbors() {
        return None;
    }
    // Who looks on knows neither bytes nor operator.
    if call.has_places() || call.first_side.is_some() {
        return Some(((call.operation, Association::Any, ANY_CLASS), false));
    }
    // What a rank may take step by step.
    let small = bytes_of(ask.class) / 2 < ROW_BYTES;
    (!small).then_some(((call.operation, call.required, ask.class), true))
}

impl Communicator {
    /// Has a call planned for memory of devices, if all ranks know that it lies there. One
    /// that `waits` asks them now and then.
    #[inline]
    #[track_caller]
    pub(super) fn know_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        let known = ask.on_devices || ask.agreed.is_some();
        if known || !self.0.spaces.matter.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.ask_spaces(ask, waits)
    }

    #[cold]
    #[track_caller]
    fn ask_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        let Some((kind, sized)) = kind_of(ask).filter(|_| self.size() > 1) else {
            return Ok(());
        };
        let checked = self.core().checks.has(Check::Collectives);
        let (mut found, asks) = self.0.spaces.of(kind, waits);
        if checked && waits {
            let answers = self.round_first(ask)?;
            found = Found::default();
            // A rank whose own call has failed may have asked nothing.
            if let Some(answers) = answers {
                found = answers;
                self.0.spaces.learn(kind, found);
            }
        } else if asks {
            let (all, any, class) = ask.spaces();
            let mut mine = [u32::from(all), u32::from(!any), ANY_CLASS - class];
            self.allreduce_in_place(&mut mine, &crate::Op::Min)?;
            found = Found::new(mine[0] == 1, mine[1] == 0, ANY_CLASS - mine[2]);
            self.0.spaces.learn(kind, found);
        }
        if found.on_devices {
            if asks || (checked && waits) {
                self.place_devices(ask)?;
            }
            if !sized {
                ask.class = found.class;
            }
            ask.for_devices();
        }
        Ok(())
    }

    /// Ranks tell each other where their devices are: once, when all are known to use one.
    /// Plans for devices are made for these places, so chains go through one PCIe switch
    /// after the other.
    #[track_caller]
    fn place_devices(&self, ask: &Ask) -> Result<()> {
        if self.0.spaces.placed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = ask.device().and_then(Gpu::here);
        let own = own.map_or([None; 2], |gpu| gpu.place());
        // What is not known is 0.
        let mut all = vec![[0u64; 2]; self.size()];
        all[self.rank()] = own.map(|at| at.map_or(0, |at| u64::from(at) + 1));
        let mut all = all.concat();
        self.allreduce_in_place(&mut all, &crate::Op::Max)?;
        let known = |at: &u64| at.checked_sub(1).map(|at| at as u32);
        let places = Places {
            levels: ["numanode", "pcieswitch"].map(str::to_owned).into(),
            ranks: all
                .chunks_exact(2)
                .map(|place| place.iter().map(known).collect())
                .collect(),
        };
        let described = Arc::new(self.described().with_devices(&places));
        let kept = &self.0.described;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(described);
        self.0.spaces.placed.store(true, Ordering::Relaxed);
        Ok(())
    }
}
