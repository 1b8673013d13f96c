//! Right-looking, one supernode after the other: its owner factors the panel and sends it to
//! each rank that needs it, and the others wait for it, by blocking calls.

use super::super::analysis::Analysis;
use super::super::meter::Meter;
use super::{Deal, Factors};
use osier::{Communicator, Result};

/// Factors the columns of this rank. Collective.
///
/// # Errors
/// As [`Communicator::send`] and [`Communicator::recv`].
pub fn synchronous(
    comm: &Communicator,
    analysis: &Analysis,
    deal: Deal,
    meter: &Meter,
) -> Result<Factors> {
    let symbolic = &analysis.symbolic;
    let mut factors = Factors::filled(analysis, deal);
    let mut received = Vec::new();
    for k in 0..symbolic.supernodes() {
        let length = symbolic.panel_length(k);
        let panel = if deal.is_own(k) {
            factors.factor(analysis, k);
            for rank in deal.needed_by(symbolic, k) {
                comm.send(&factors.columns[k][..length], rank, 0)?;
            }
            meter.factored();
            std::mem::take(&mut factors.columns[k])
        } else if deal.receives(symbolic, k) {
            received.resize(length, 0.0);
            comm.recv(&mut received[..], deal.owner(k), 0)?;
            std::mem::take(&mut received)
        } else {
            continue;
        };
        for block in symbolic.updates_by(k) {
            let target = symbolic.blocks()[*block as usize].target as usize;
            if deal.is_own(target) {
                factors.update(symbolic, *block, &panel);
            }
        }
        match deal.is_own(k) {
            true => factors.columns[k] = panel,
            false => received = panel,
        }
    }
    Ok(factors)
}
