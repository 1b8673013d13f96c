//! Ordering of the accesses of one rank.
//!
//! Walks the instances of a rank in the order of its part, which the dependencies
//! must agree with, and keeps for each the set of instances before it. Two accesses
//! to a piece of memory, one of which writes, must be ordered by that set.

use super::{Fault, Memory, Touch};
use crate::plan::Part;

const NONE: u32 = u32::MAX;

pub(super) fn check(part: &Part, memory: &Memory) -> Result<(), Fault> {
    let steps = part.steps.len();
    let instances = steps * part.segments as usize;
    let words = instances.div_ceil(64);
    let mut before = vec![0u64; words * instances];
    let mut writer = vec![NONE; memory.cells()];
    // Readers since: (instance, next) by head.
    let mut head = vec![NONE; memory.cells()];
    let mut list: Vec<(u32, u32)> = Vec::new();
    let fault = |at: u32, what: String| Fault {
        rank: part.rank,
        step: Some(at % steps as u32),
        segment: at / steps as u32,
        what,
    };
    for at in 0..instances as u32 {
        let (step, segment) = (at % steps as u32, at / steps as u32);
        let (past, rest) = before.split_at_mut(at as usize * words);
        let own = &mut rest[..words];
        for dep in part.after(step) {
            if dep.lag > segment {
                continue;
            }
            if dep.step as usize >= steps || (dep.lag == 0 && dep.step >= step) {
                return Err(fault(at, format!("waits for later step {}", dep.step)));
            }
            let dep = ((segment - dep.lag) * steps as u32 + dep.step) as usize;
            // All of an ancestor's ancestors lie in its own words and before.
            let upto = dep / 64 + 1;
            for (mine, theirs) in own.iter_mut().zip(&past[dep * words..dep * words + upto]) {
                *mine |= theirs;
            }
            own[dep / 64] |= 1 << (dep % 64);
        }
        let ordered = |other: u32| {
            other == NONE || other == at || own[other as usize / 64] >> (other % 64) & 1 == 1
        };
        let mut wrong = None;
        memory.touches(&part.steps[step as usize], segment, |touch| {
            let (cell, writes) = match touch {
                Touch::Read(cell) => (cell, false),
                Touch::Write(cell) => (cell, true),
            };
            if !ordered(writer[cell]) {
                wrong = wrong.or(Some(writer[cell]));
            }
            if writes {
                let mut reader = head[cell];
                while reader != NONE {
                    let (other, next) = list[reader as usize];
                    if !ordered(other) {
                        wrong = wrong.or(Some(other));
                    }
                    reader = next;
                }
                writer[cell] = at;
                head[cell] = NONE;
            } else {
                list.push((at, head[cell]));
                head[cell] = list.len() as u32 - 1;
            }
        });
        if let Some(other) = wrong {
            let (s, n) = (other % steps as u32, other / steps as u32);
            let what = format!(
                "touches a piece that step {s} ({:?}), segment {n}, touches, and nothing orders them",
                part.steps[s as usize]
            );
            return Err(fault(at, what));
        }
    }
    Ok(())
}
