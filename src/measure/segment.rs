//! Costs of flags and slots in the segment that ranks share, from calls of two ranks.
//!
//! ```text
//! F     barriers in one phase:                  c + flag
//! G(m)  allgathers in one phase:                c + write(m) + flag + read(m) + copy(m)
//! G4    the same of 64 bytes in four segments:  G(64) + 28 step + 3 flag
//! ```
//!
//! `c` is what an inline call costs, which [`super::rounds`] has found. How much
//! of write(m) + read(m) is which two ranks do not tell. Both ranks do the same at the same time, as in the plans that
//! are chosen by these costs.

use super::rounds::median;
use crate::comm::Communicator;
use crate::model::calls::{CallCosts, SegmentCosts, WorkCost, round};
use osier_collectives::{Algorithm, Piecewise};
use osier_engine::error::Result;

/// Sizes of what goes through slots.
const SLOT_LOGS: [u32; 10] = [3, 6, 8, 10, 11, 12, 13, 14, 15, 16];

/// The size of those in segments,
const CUT_AT: usize = 1;
const CUT_LOG: u32 = SLOT_LOGS[CUT_AT];
/// their segments, and the steps of each.
const SEGMENTS: u32 = 4;
const STEPS: u32 = 7;

/// Share of a writer in what a piece costs that goes through a slot.
const WRITTEN: f64 = 0.4;

/// What was measured, in ns.
pub(super) struct SegmentTimes {
    barrier: f64,
    /// Allgathers, by size.
    slots: Vec<f64>,
    /// The second of them in segments.
    cut: f64,
}

impl SegmentTimes {
    /// None: the ranks share no segment.
    pub(super) fn of(pair: &Communicator) -> Result<Option<SegmentTimes>> {
        if !pair.shares_segment() {
            return Ok(None);
        }
        let most = 1usize << SLOT_LOGS[SLOT_LOGS.len() - 1];
        let (send, mut recv) = (vec![1u8; most], vec![1u8; 2 * most]);
        pair.use_algorithm(Some((Algorithm::OnePhase, 1)));
        let barrier = median(pair, false, |_| pair.barrier())?;
        let mut slots = Vec::new();
        for log in SLOT_LOGS {
            let bytes = 1usize << log;
            let data = &mut recv[..2 * bytes];
            let call = |_| pair.allgather(&send[..bytes], &mut data[..]);
            slots.push(median(pair, false, call)?);
        }
        let data = &mut recv[..2 << CUT_LOG];
        pair.use_algorithm(Some((Algorithm::OnePhase, SEGMENTS)));
        let cut = median(pair, false, |_| {
            pair.allgather(&send[..1 << CUT_LOG], &mut data[..])
        })?;
        pair.use_algorithm(None);
        Ok(Some(SegmentTimes {
            barrier,
            slots,
            cut,
        }))
    }

    /// The shorter of each time.
    pub fn or(self, other: &SegmentTimes) -> SegmentTimes {
        let slots = self.slots.into_iter().zip(&other.slots);
        SegmentTimes {
            barrier: self.barrier.min(other.barrier),
            slots: slots.map(|(a, b)| a.min(*b)).collect(),
            cut: self.cut.min(other.cut),
        }
    }

    /// The costs, where the table has those of calls.
    pub fn costs(&self, table: &CallCosts) -> SegmentCosts {
        let points: Vec<(f64, f64)> = (table.copy.iter())
            .map(|w| (w.bytes as f64, w.ns))
            .collect();
        let copy = Piecewise::through(&points);
        let flag = (self.barrier - table.row_ns).max(self.barrier / 5.0);
        let (mut write, mut read) = (Vec::new(), Vec::new());
        let push = |works: &mut Vec<WorkCost>, log: u32, ns: f64| {
            let before = works.last().map_or(0.1, |w: &WorkCost| w.ns);
            works.push(WorkCost {
                bytes: 1 << log,
                ns: round(ns.max(before)),
            });
        };
        for (log, gathered) in SLOT_LOGS.into_iter().zip(&self.slots) {
            let bytes = f64::from(1u32 << log);
            let both = gathered - table.row_ns - flag - copy.at(bytes);
            let both = both.max(gathered / 10.0);
            push(&mut write, log, WRITTEN * both);
            push(&mut read, log, (1.0 - WRITTEN) * both);
        }
        let whole = self.slots[CUT_AT];
        let more = self.cut - whole - f64::from(SEGMENTS - 1) * flag;
        let step = more.max(0.0) / f64::from(SEGMENTS * STEPS);
        SegmentCosts {
            flag_ns: round(flag),
            step_ns: round(step),
            switch_ns: 0.0,
            write,
            read,
            attach: Vec::new(),
        }
    }
}
