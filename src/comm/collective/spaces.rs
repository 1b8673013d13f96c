//! Do the buffers of a call lie on devices, at all ranks?
//!
//! All ranks must have one plan, and none knows where the others' buffers are. Any plan is
//! right for any memory, so what ranks agree on may be out of date; it must only be the same
//! for all. Calls of one kind and size class are counted; at the first, second, fourth,
//! eighth... of them ranks ask each other. So n calls cost log n rounds, calls that change
//! where their buffers are get another plan before they have been made twice as often, and
//! calls that do not wait use what was found before them.
//!
//! # Invariants
//! 1. Nobody asks unless the agreed costs know devices: jobs without them pay one load.
//! 2. Who asks, and when, depends on what all ranks have alike: the order of calls, their
//!    operation, size class and association, and the form of the call.
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

/// What all ranks know of calls of a kind.
#[derive(Clone, Copy, Default)]
struct Known {
    calls: u64,
    on_devices: bool,
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
    fn of(&self, kind: Kind, counts: bool) -> (bool, bool) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.calls += u64::from(counts);
        (known.on_devices, counts && known.calls.is_power_of_two())
    }

    fn learn(&self, kind: Kind, on_devices: bool) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.get_or_insert_default().entry(kind).or_default();
        known.on_devices = on_devices;
    }
}

impl Communicator {
    /// Has a call planned for memory of devices, if all ranks know that it lies there. One
    /// that `waits` asks them now and then.
    #[inline]
    #[track_caller]
    pub(super) fn know_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        if !self.0.spaces.matter.load(Ordering::Relaxed) || ask.on_devices {
            return Ok(());
        }
        self.ask_spaces(ask, waits)
    }

    #[cold]
    #[track_caller]
    fn ask_spaces(&self, ask: &mut Ask, waits: bool) -> Result<()> {
        let call = &ask.call;
        // What a rank may take step by step, what has one plan only, and what nobody knows
        // the bytes of, which goes through the host but in reductions.
        let small = bytes_of(ask.class) / 2 < ROW_BYTES;
        let of_counts = call.varying && !call.operation.reduces();
        let other = call.first_side.is_some() || call.operation.of_neighbors() || ask.idle;
        let other = other || of_counts;
        if small || other || self.core().checks.has(Check::Collectives) || self.size() == 1 {
            return Ok(());
        }
        let kind = (call.operation, call.required, ask.class);
        let (mut on_devices, asks) = self.0.spaces.of(kind, waits);
        if asks {
            let mut all = [u32::from(ask.lies_on_devices())];
            self.allreduce_in_place(&mut all, &crate::Op::Min)?;
            on_devices = all[0] == 1;
            self.0.spaces.learn(kind, on_devices);
            if on_devices {
                self.place_devices(ask)?;
            }
        }
        if on_devices {
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
