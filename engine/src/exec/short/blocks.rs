//! Calls of contributions that differ, as far as they do not hang on lengths.
//!
//! ```text
//! Enter   Put, Copy ...   Raise   Await ...   Take, Copy ...   messages   Leave
//!         before                  awaited     behind
//! ```
//!
//! Lengths may differ from call to call, so what is kept is where the steps stand; each block's place
//! follows from its length ([`crate::exec::cells`]).

use super::Awaited;
use crate::exec::program::{Action, Program};
use std::ops::Range;
use std::sync::Arc;

/// Such a call.
#[derive(Debug)]
pub struct ShortBlocks {
    /// Steps before the flag, and behind the flags of peers.
    pub before: Range<usize>,
    pub raised: Option<u16>,
    pub awaited: Box<[Awaited]>,
    pub behind: Range<usize>,
    pub program: Arc<Program>,
}

impl ShortBlocks {
    /// None: its steps are in another order.
    pub fn new(program: &Arc<Program>) -> Option<Self> {
        let row = program.row();
        let steps = program.actions.get(..row)?;
        if program.cells == 0 || !matches!(steps.first(), Some(Action::Enter)) {
            return None;
        }
        let from = |start: usize, of: fn(&Action) -> bool| {
            start + steps[start..].iter().take_while(|step| of(step)).count()
        };
        let before = from(1, |step| {
            matches!(step, Action::Put { .. } | Action::Copy { .. })
        });
        let (raised, after) = match steps.get(before) {
            Some(Action::Raise { phase }) => (Some(*phase), before + 1),
            _ => (None, before),
        };
        let behind = from(after, |step| matches!(step, Action::Await { .. }));
        let end = from(behind, |step| {
            matches!(step, Action::Take { .. } | Action::Copy { .. })
        });
        let awaited = steps[after..behind].iter().filter_map(|step| match step {
            Action::Await { from, phase } => Some(Awaited {
                from: *from,
                phase: *phase,
            }),
            _ => None,
        });
        (end == row).then(|| Self {
            before: 1..before,
            raised,
            awaited: awaited.collect(),
            behind: behind..row,
            program: program.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lower::lower;
    use osier_collectives::{Algorithm, Call, Neighbors, Operation, Plan};

    /// All plans with cells are in that order.
    #[test]
    fn plans_with_cells_are_kept() {
        let mut kept = 0;
        for operation in Operation::ALL {
            for ranks in [2, 3, 5] {
                let mut call = Call::new(operation, ranks).varying();
                if operation.of_neighbors() {
                    let ring = |step| (0..ranks).map(|r| vec![(r + step) % ranks, r]).collect();
                    call = call.on(Arc::new(Neighbors {
                        sources: ring(ranks - 1),
                        destinations: ring(1),
                        ..Neighbors::default()
                    }));
                }
                let Ok(plan) = Plan::new(call, Algorithm::OnePhase, 1) else {
                    continue;
                };
                for rank in 0..ranks {
                    let program = lower(plan.call(), &plan.part(rank)).expect("a program");
                    let cells = program.cells;
                    let short = ShortBlocks::new(&Arc::new(program));
                    assert_eq!(short.is_some(), cells > 0, "{operation:?} of {ranks}");
                    kept += usize::from(short.is_some());
                }
            }
        }
        assert!(kept >= 60, "{kept}");
    }
}
