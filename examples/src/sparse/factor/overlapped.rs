//! Right-looking with look-ahead: the columns of the next supernodes are factored and sent as
//! soon as they have all updates, before those further ahead are updated, and receives of
//! the next panels are posted ahead.
//!
//! # Sources
//! I. Yamazaki, X. Li, "New Scheduling Strategies and Hybrid Programming for a Parallel
//! Right-looking Sparse LU Factorization Algorithm on Multicore Cluster Systems", IPDPS 2012
//! (look-ahead window).

use super::super::analysis::Analysis;
use super::super::meter::Meter;
use super::{Deal, Factors};
use osier::{Communicator, Request, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Factors the columns of this rank with a window of `ahead` supernodes. Collective.
///
/// # Errors
/// As [`Communicator::isend`] and [`Communicator::irecv`].
pub fn overlapped(
    comm: &Communicator,
    analysis: &Analysis,
    deal: Deal,
    ahead: usize,
    meter: &Meter,
) -> Result<Factors> {
    let symbolic = &analysis.symbolic;
    let count = symbolic.supernodes();
    let mut rank = Rank {
        comm,
        analysis,
        deal,
        meter,
        factors: Factors::filled(analysis, deal),
        left: (0..count).map(|k| symbolic.updates_of(k).len()).collect(),
        sends: VecDeque::new(),
    };
    let mut needed = (0..count).filter(|k| deal.receives(symbolic, *k));
    let mut posted = VecDeque::new();
    let post = |k: usize| comm.irecv(vec![0.0; symbolic.panel_length(k)], deal.owner(k), k as u32);
    for k in needed.by_ref().take(ahead.max(1)) {
        posted.push_back(post(k)?);
    }
    for k in 0..ahead.min(count) {
        rank.factor_if_ready(k)?;
    }
    for k in 0..count {
        if k + ahead < count {
            rank.factor_if_ready(k + ahead)?;
        }
        let panel = if deal.is_own(k) {
            std::mem::take(&mut rank.factors.columns[k])
        } else if deal.receives(symbolic, k) {
            let request = posted.pop_front().expect("posted in this order");
            let (panel, _) = request.wait()?;
            if let Some(next) = needed.next() {
                posted.push_back(post(next)?);
            }
            panel
        } else {
            continue;
        };
        // Targets ascend: those in the window come first.
        for block in symbolic.updates_by(k) {
            let target = symbolic.blocks()[*block as usize].target as usize;
            if deal.is_own(target) {
                rank.factors.update(symbolic, *block, &panel);
                rank.left[target] -= 1;
                if target <= k + ahead {
                    rank.factor_if_ready(target)?;
                }
            }
        }
        if deal.is_own(k) {
            rank.factors.columns[k] = panel;
        }
    }
    for sent in rank.sends {
        sent.wait()?;
    }
    Ok(rank.factors)
}

struct Rank<'a> {
    comm: &'a Communicator,
    analysis: &'a Analysis,
    deal: Deal,
    meter: &'a Meter,
    factors: Factors,
    /// Updates that each column still lacks.
    left: Vec<usize>,
    /// Panels on their way.
    sends: VecDeque<Request<Arc<[f64]>>>,
}

impl Rank<'_> {
    /// Factors an own column that lacks no update, and begins to send its panel. Called once
    /// more for a column when its last update was before it came into the window.
    fn factor_if_ready(&mut self, k: usize) -> Result<()> {
        if !self.deal.is_own(k) || self.left[k] > 0 {
            return Ok(());
        }
        let symbolic = &self.analysis.symbolic;
        self.factors.factor(self.analysis, k);
        let ranks = self.deal.needed_by(symbolic, k);
        if !ranks.is_empty() {
            let panel = &self.factors.columns[k][..symbolic.panel_length(k)];
            let panel: Arc<[f64]> = panel.into();
            for rank in ranks {
                let sent = self.comm.isend(panel.clone(), rank, k as u32)?;
                self.sends.push_back(sent);
            }
        }
        while self.sends.front_mut().is_some_and(Request::test) {
            self.sends.pop_front();
        }
        self.meter.factored();
        Ok(())
    }
}
