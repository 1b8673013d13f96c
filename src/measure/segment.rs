//! Costs of flags and slots in the segment that ranks share, from calls of two ranks.
//!
//! ```text
//! F     barriers in one phase:                  c + flag
//! G(m)  allgathers in one phase:                c + write(m) + flag + read(m) + copy(m)
//! A(m)  alltoalls in one phase:                 c + write(2 m) + flag + read(m) + copy(m)
//! D(m)  allgathers that read plain memory:      r + 6 s + 2 flag + attach(m) + copy(m)
//! ```
//!
//! `c`, `r` and `s` are what an inline call, a run and its step cost, which
//! [`super::rounds`] has found. Both ranks do the same at the same time, as in the plans that
//! are chosen by these costs.

use super::rounds::median;
use crate::comm::Communicator;
use crate::model::calls::{CallCosts, SegmentCosts, WorkCost, round};
use osier_collectives::{Algorithm, Piecewise};
use osier_engine::error::Result;
use osier_transports::shm::SLOT_BYTES;

/// Sizes of what goes through slots,
const SLOT_LOGS: [u32; 9] = [3, 6, 8, 10, 11, 12, 13, 14, 15];
/// and of what is read where it lies.
const DIRECT_LOGS: [u32; 8] = [10, 12, 14, 15, 16, 18, 20, 22];

/// What was measured, in ns.
pub(super) struct SegmentTimes {
    barrier: f64,
    /// By size: allgathers and, where two pieces fit a slot, alltoalls.
    slots: Vec<(f64, Option<f64>)>,
    direct: Vec<f64>,
}

impl SegmentTimes {
    /// None: the ranks share no segment.
    pub(super) fn of(pair: &Communicator) -> Result<Option<SegmentTimes>> {
        if !pair.lane().lock().has_segment() {
            return Ok(None);
        }
        let most = 1usize << DIRECT_LOGS[DIRECT_LOGS.len() - 1];
        let (send, mut recv) = (vec![1u8; most], vec![1u8; 2 * most]);
        pair.use_algorithm(Some((Algorithm::OnePhase, 1)));
        let barrier = median(pair, false, |_| pair.barrier())?;
        let mut slots = Vec::new();
        for log in SLOT_LOGS {
            let bytes = 1usize << log;
            let data = &mut recv[..2 * bytes];
            let gathered = median(pair, false, |_| {
                pair.allgather(&send[..bytes], &mut data[..])
            })?;
            let exchanged = match 2 * bytes <= SLOT_BYTES {
                true => Some(median(pair, false, |_| {
                    pair.alltoall(&send[..2 * bytes], &mut data[..])
                })?),
                false => None,
            };
            slots.push((gathered, exchanged));
        }
        pair.use_algorithm(Some((Algorithm::Direct, 1)));
        let mut direct = Vec::new();
        for log in DIRECT_LOGS {
            let bytes = 1usize << log;
            let data = &mut recv[..2 * bytes];
            let call = |_| pair.allgather(&send[..bytes], &mut data[..]);
            direct.push(median(pair, false, call)?);
        }
        pair.use_algorithm(None);
        Ok(Some(SegmentTimes {
            barrier,
            slots,
            direct,
        }))
    }

    /// The shorter of each time.
    pub fn or(self, other: &SegmentTimes) -> SegmentTimes {
        let slots = self.slots.into_iter().zip(&other.slots);
        let direct = self.direct.into_iter().zip(&other.direct);
        SegmentTimes {
            barrier: self.barrier.min(other.barrier),
            slots: slots
                .map(|(a, b)| (a.0.min(b.0), a.1.zip(b.1).map(|(a, b)| a.min(b))))
                .collect(),
            direct: direct.map(|(a, b)| a.min(*b)).collect(),
        }
    }

    /// The costs, where the table has those of calls.
    pub fn costs(&self, table: &CallCosts) -> SegmentCosts {
        let points: Vec<(f64, f64)> = (table.copy.iter())
            .map(|w| (w.bytes as f64, w.ns))
            .collect();
        let copy = Piecewise::through(&points);
        let flag = (self.barrier - table.row_ns).max(self.barrier / 5.0);
        let (mut write, mut read, mut attach) = (Vec::new(), Vec::new(), Vec::new());
        let push = |works: &mut Vec<WorkCost>, log: u32, ns: f64| {
            let before = works.last().map_or(0.1, |w: &WorkCost| w.ns);
            works.push(WorkCost {
                bytes: 1 << log,
                ns: round(ns.max(before)),
            });
        };
        let mut share = 0.5;
        for (log, (gathered, exchanged)) in SLOT_LOGS.into_iter().zip(&self.slots) {
            let bytes = f64::from(1u32 << log);
            let both = gathered - table.row_ns - flag - copy.at(bytes);
            let both = both.max(gathered / 10.0);
            if let Some(exchanged) = exchanged {
                share = ((exchanged - gathered) / both).clamp(0.2, 0.8);
            }
            push(&mut write, log, share * both);
            push(&mut read, log, (1.0 - share) * both);
        }
        for (log, direct) in DIRECT_LOGS.into_iter().zip(&self.direct) {
            let bytes = f64::from(1u32 << log);
            let steps = table.run_ns + 6.0 * table.step_ns;
            let ns = direct - steps - 2.0 * flag - copy.at(bytes);
            push(&mut attach, log, ns.max(direct / 4.0));
        }
        SegmentCosts {
            flag_ns: round(flag),
            write,
            read,
            attach,
        }
    }
}
