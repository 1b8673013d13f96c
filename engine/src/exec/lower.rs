//! Programs from plans of collectives.
//!
//! A plan identifies messages by (from, to, tag, segment). A message has 20 bits for
//! that: phase, round and segment, each modulo its bits. Messages of one pair with the
//! same bits are put behind each other, at both ends in the order
//! of the steps; then they match in that order, because messages do not overtake.

use super::cells::{Cell, Cells};
use super::fused;
use super::graph::{Edge, Graph};
use super::in_segment::{LEAST_LENT, LEAST_LENT_BY_ROOT};
use super::inline::InlineSchedule;
use super::program::{Action, Program, RunsOn, SEGMENT_TAGS};
use crate::error::{Error, ErrorKind, Result};
use osier_collectives::{Buffer, Call, Operation, Part, Region, Step, occurrence, readers_of_cell};
use std::collections::HashMap;

/// Rounds of a phase in a plan's tags.
const ROUNDS: u32 = 1 << 20;
const PHASE_TAGS: u32 = 7;
const ROUND_TAGS: u32 = 4096;

fn tag(of_plan: u32) -> u32 {
    let (phase, round) = (of_plan / ROUNDS, of_plan % ROUNDS);
    // 0 is left for messages that belong to no program.
    let phase = phase.wrapping_sub(1) % PHASE_TAGS + 1;
    (phase * ROUND_TAGS + round % ROUND_TAGS) * SEGMENT_TAGS
}

/// Makes a program of one rank's part of a call.
///
/// # Errors
/// If the part reads the memory of other ranks, and has no flags in a segment.
pub fn lower(call: &Call, part: &Part) -> Result<Program> {
    match (part.in_segment, call.varying) {
        (true, true) if !call.operation.reduces() => return Ok(with_cells(call, part)),
        (true, _) => return Ok(in_segment(call, part)),
        (false, _) => {}
    }
    let nothing = Region::run(Buffer::Recv, 0, 0);
    // Where a piece is does not hang on how many there are.
    let placed = |data: Region| match data.buffer {
        Buffer::Scratch(_) => data,
        user => match call.pieces(part.rank, user, part.cut.max(1)) {
            0 => data,
            pieces => Region {
                first: data.first % pieces,
                ..data
            },
        },
    };
    let actions: Vec<Action> = part
        .steps()
        .iter()
        .map(|step| {
            Ok(match *step {
                Step::Send { to, tag: t, data } => Action::Send {
                    to,
                    tag: tag(t),
                    data: placed(data),
                },
                Step::Recv { from, tag: t, data } => Action::Receive {
                    from,
                    tag: tag(t),
                    data: placed(data),
                },
                Step::Raise { to, tag: t } => Action::Send {
                    to,
                    tag: tag(t),
                    data: nothing,
                },
                Step::Await { from, tag: t } => Action::Receive {
                    from,
                    tag: tag(t),
                    data: nothing,
                },
                Step::Copy { from, to } => Action::Copy {
                    from: placed(from),
                    to: placed(to),
                },
                Step::Combine { left, right, into } => Action::Combine {
                    left: placed(left),
                    right: placed(right),
                    into: placed(into),
                },
                Step::Read { .. } | Step::Fold { .. } => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "a plan that reads the memory of other ranks",
                    ));
                }
            })
        })
        .collect::<Result<_>>()?;
    let mut last: HashMap<(bool, u32, u32), u32> = HashMap::new();
    let before: Vec<Vec<Edge>> = actions
        .iter()
        .enumerate()
        .map(|(step, action)| {
            let step = step as u32;
            let mut list: Vec<Edge> = part
                .after(step)
                .iter()
                .map(|dep| Edge {
                    step: dep.step,
                    lag: dep.lag,
                })
                .collect();
            let alike = match *action {
                Action::Send { to, tag, .. } => last.insert((true, to, tag), step),
                Action::Receive { from, tag, .. } => last.insert((false, from, tag), step),
                _ => None,
            };
            if let Some(alike) = alike {
                let edge = Edge {
                    step: alike,
                    lag: 0,
                };
                if !list.contains(&edge) {
                    list.push(edge);
                }
            }
            list
        })
        .collect();
    let cut = part.cut.max(1);
    let crossing = crossing(&actions, &before);
    let pairs = fused::pairs(&actions, &before, &part.scratch);
    let inline = part.row_pieces(call).and_then(|pieces| {
        let before: Vec<Vec<u32>> = before
            .iter()
            .map(|list| list.iter().map(|edge| edge.step).collect())
            .collect();
        InlineSchedule::new(&actions, &before, &part.scratch, pieces)
    });
    Ok(Program {
        graph: Graph::new(part.segments, before.into_iter()),
        actions,
        scratch: part.scratch.clone(),
        cut,
        crossing,
        pairs,
        inline,
        ..Program::default()
    })
}

/// Makes a program whose ranks share a segment: the flags of a phase are one.
fn in_segment(call: &Call, part: &Part) -> Program {
    let phase = |tag: u32| (tag / ROUNDS) as u16;
    let cut = part.cut.max(1);
    let whole = |buffer| Region::run(buffer, 0, call.pieces(part.rank, buffer, cut));
    let is_slot = part.scratch.iter().any(|s| s.slot);
    let publishes = !is_slot
        && call.operation != Operation::Barrier
        && (part.steps().iter()).any(|s| matches!(s, Step::Raise { tag, .. } if phase(*tag) == 1));
    let mut actions = vec![Action::Enter];
    if publishes {
        let input = match call.operation {
            Operation::Gather | Operation::Allgather => call.own(part.rank),
            _ => whole(call.input(part.rank)),
        };
        actions.push(Action::Publish {
            input,
            output: whole(Buffer::Recv),
        });
    }
    for step in part.steps() {
        let action = match *step {
            Step::Raise { tag, .. } => Action::Raise { phase: phase(tag) },
            Step::Await { from, tag } => Action::Await {
                from,
                phase: phase(tag),
            },
            Step::Copy { from, to } => Action::Copy { from, to },
            Step::Read { from, data, into } => Action::Read { from, data, into },
            Step::Fold { left, right, into } => Action::Fold { left, right, into },
            // The checker refuses messages in such plans.
            Step::Send { .. } | Step::Recv { .. } | Step::Combine { .. } => continue,
        };
        if actions.last() != Some(&action) {
            actions.push(action);
        }
    }
    actions.push(Action::Leave);
    // Segments follow one another, too: their flags are one word.
    let last = actions.len() as u32 - 1;
    let before = |step: u32| -> Vec<Edge> {
        match step.checked_sub(1) {
            Some(step) => vec![Edge { step, lag: 0 }],
            None if part.segments > 1 => vec![Edge { step: last, lag: 1 }],
            None => Vec::new(),
        }
    };
    let segments = part.segments.max(1);
    let to_slot = |s: &&Step| matches!(s, Step::Copy { to, .. } if part.is_slot(*to));
    let folds_to_slot = |s: &Step| matches!(s, Step::Fold { into, .. } if part.is_slot(*into));
    let written_later = part.steps().iter().any(folds_to_slot);
    let mut copies = part.steps().iter().filter(to_slot);
    let least_lent = match (copies.next(), copies.next()) {
        (Some(Step::Copy { from, to }), None) if to.first == 0 && !written_later => {
            match from.buffer {
                // Of a broadcast the root writes nothing.
                _ if call.operation == Operation::Bcast => Some(LEAST_LENT_BY_ROOT),
                Buffer::Send if !call.shares_memory() => Some(LEAST_LENT),
                _ => None,
            }
        }
        _ => None,
    };
    let row = part.row_of_segment(call);
    let inline = row
        .filter(|_| !publishes && (is_slot || reads_nobody(part)))
        .map(|_| InlineSchedule::of_segment(actions.len() as u32, part, least_lent));
    Program {
        graph: Graph::new(segments, (0..actions.len() as u32).map(before)),
        actions,
        scratch: part.scratch.clone(),
        cut,
        inline,
        in_segment: true,
        least_lent,
        changes_hands: part.scratch.iter().any(|s| s.changes_hands),
        one_reader: part.scratch.iter().any(|s| s.one_reader),
        publishes,
        writes: part.writes_for_peers(),
        ..Program::default()
    }
}

/// The same of contributions that differ: each slot has cells, and what is longer than its cell is
/// a message. Messages leave behind the flag, and come when the length was read.
fn with_cells(call: &Call, part: &Part) -> Program {
    let phase = |tag: u32| (tag / ROUNDS) as u16;
    // The k-th block between two ranks has a tag of its own.
    let message = |nth: u32| tag(ROUNDS + nth);
    let cells = part.scratch.iter().find(|s| s.slot).map_or(1, |s| s.pieces);
    let of_neighbors = call.operation.of_neighbors();
    let sources = call.sources(part.rank);
    let mut actions = vec![Action::Enter];
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for step in part.steps() {
        let action = match *step {
            Step::Raise { tag, .. } => Action::Raise { phase: phase(tag) },
            Step::Await { from, tag } => Action::Await {
                from,
                phase: phase(tag),
            },
            Step::Copy { from, to } if part.is_slot(to) => {
                let (data, cell) = (from, to.first);
                for (to, nth) in readers_of_cell(call, part.rank, cell) {
                    sends.push(Action::SendLong {
                        to,
                        tag: message(nth),
                        data,
                        cell,
                    });
                }
                Action::Put { data, cell }
            }
            Step::Copy { from, to } => Action::Copy { from, to },
            Step::Read { from, data, into } => {
                let at = into.first as usize;
                let (nth, of) = match of_neighbors {
                    true => (
                        occurrence(sources, at),
                        call.cell_of(part.rank, at).map_or(1, |cell| cell.of),
                    ),
                    false => (0, cells),
                };
                let cell = Cell {
                    at: data.first,
                    of: Cells(of),
                };
                receives.push((
                    actions.len() as u32,
                    Action::ReceiveLong {
                        from,
                        tag: message(nth),
                        cell,
                        into,
                    },
                ));
                Action::Take { from, cell, into }
            }
            // Such plans have none.
            Step::Send { .. } | Step::Recv { .. } | Step::Combine { .. } | Step::Fold { .. } => {
                continue;
            }
        };
        if actions.last() != Some(&action) {
            actions.push(action);
        }
    }
    let row = actions.len() as u32;
    let raised = actions
        .iter()
        .position(|a| matches!(a, Action::Raise { .. }));
    let edge = |step: u32| Edge { step, lag: 0 };
    let mut before: Vec<Vec<Edge>> = vec![Vec::new()];
    before.extend((1..row).map(|step| vec![edge(step - 1)]));
    for action in sends {
        before.push(raised.map(|at| edge(at as u32)).into_iter().collect());
        actions.push(action);
    }
    for (taken, action) in receives {
        before.push(vec![edge(taken)]);
        actions.push(action);
    }
    let messages = row..actions.len() as u32;
    before.push(std::iter::once(row - 1).chain(messages).map(edge).collect());
    actions.push(Action::Leave);
    Program {
        graph: Graph::new(1, before.into_iter()),
        actions,
        // Cells follow from lengths; what is this rank's alone comes before them.
        scratch: part
            .scratch
            .iter()
            .take_while(|s| !s.slot)
            .cloned()
            .collect(),
        cut: 1,
        in_segment: true,
        one_reader: part.scratch.iter().any(|s| s.one_reader),
        cells,
        of_neighbors,
        writes: part.writes_for_peers(),
        ..Program::default()
    }
}

fn reads_nobody(part: &Part) -> bool {
    let reads = |s: &Step| matches!(s, Step::Read { .. } | Step::Fold { .. });
    !part.steps().iter().any(reads)
}

/// Makes a program of a reduction to all ranks that is one kernel of each rank's device; the
/// kernel does what the plan's steps do.
pub fn in_one_kernel(call: &Call, rank: u32) -> Program {
    let vector = |buffer| Region::run(buffer, 0, 1);
    let (from, into) = (vector(call.input(rank)), vector(Buffer::Recv));
    Program {
        graph: Graph::new(1, [Vec::new()].into_iter()),
        actions: vec![Action::Exchange { from, into }],
        cut: 1,
        runs_on: RunsOn::OneKernel,
        ..Program::default()
    }
}

/// Which steps send to somebody while some receive waits for none of them, nor they for
/// it, by bits: the rank has two messages to see to at the same time. None of a long
/// program.
fn crossing(actions: &[Action], before: &[Vec<Edge>]) -> u128 {
    let steps = actions.len();
    if steps > u128::BITS as usize {
        return 0;
    }
    // What each step waits for, in the end. Edges may point forward, so as often as
    // anything is added.
    let mut waits = vec![0u128; steps];
    loop {
        let mut more = false;
        for (step, list) in before.iter().enumerate() {
            let all = list.iter().fold(waits[step], |all, edge| {
                all | 1 << edge.step | waits[edge.step as usize]
            });
            more |= all != waits[step];
            waits[step] = all;
        }
        if !more {
            break;
        }
    }
    let of = |want: fn(&Action) -> bool| {
        let steps = actions.iter().enumerate();
        steps.filter(move |(_, a)| want(a)).map(|(step, _)| step)
    };
    of(|a| matches!(a, Action::Send { .. }))
        .filter(|send| {
            of(|a| matches!(a, Action::Receive { .. }))
                .any(|receive| waits[*send] >> receive & 1 == 0 && waits[receive] >> send & 1 == 0)
        })
        .fold(0, |all, send| all | 1 << send)
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_collectives::{Algorithm, Operation, Plan};

    /// Exchanges cross, trees do not.
    #[test]
    fn sends_cross_where_the_rank_receives_meanwhile() {
        let crossing = |operation, algorithm, rank| {
            let plan = Plan::new(Call::new(operation, 4), algorithm, 1).expect("a plan");
            lower(plan.call(), &plan.part(rank))
                .expect("a program")
                .crossing
        };
        for rank in 0..4 {
            let doubling = Algorithm::RecursiveDoubling;
            assert_ne!(crossing(Operation::Allgather, doubling.clone(), rank), 0);
            assert_ne!(crossing(Operation::Allreduce, doubling, rank), 0);
            assert_ne!(crossing(Operation::Alltoall, Algorithm::Pairwise, rank), 0);
            assert_eq!(crossing(Operation::Bcast, Algorithm::Binomial, rank), 0);
            assert_eq!(crossing(Operation::Reduce, Algorithm::Binomial, rank), 0);
        }
    }
}
