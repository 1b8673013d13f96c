//! The reference: one supernode after the other updates all columns that its rows meet.

use super::super::analysis::Analysis;
use super::{Deal, Factors};

/// Factors a matrix without communication.
pub fn sequential(analysis: &Analysis) -> Factors {
    let alone = Deal {
        ranks: 1,
        rank: 0,
        block: 1,
    };
    let symbolic = &analysis.symbolic;
    let mut factors = Factors::filled(analysis, alone);
    for k in 0..symbolic.supernodes() {
        factors.factor(analysis, k);
        let panel = std::mem::take(&mut factors.columns[k]);
        for block in symbolic.updates_by(k) {
            factors.update(symbolic, *block, &panel);
        }
        factors.columns[k] = panel;
    }
    factors
}
