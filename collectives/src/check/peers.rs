//! Validity and lifetime of reads of a peer's memory.
//!
//! Between two ranks only flags and messages order. A read is safe if
//! 1. all writes of the peer to what is read come before it, or after;
//! 2. no write to it, nor the end of the peer's part, where the buffer goes back to
//!    the user, can come before the read is over.
//!
//! Both are walks over the graph of all steps, so this is done only where a plan has
//! reads, and segments are taken one at a time: a lag orders within a rank, not
//! between ranks.

use super::execute::Execution;
use super::{Fault, Memory, Touch};
use crate::call::Call;
use crate::plan::{Buffer, Part, Region, Step};

pub(super) fn check(
    call: &Call,
    parts: &[Part],
    memories: &[Memory],
    execution: &Execution,
) -> Result<(), Fault> {
    let reads = |step: &Step| matches!(step, Step::Read { .. } | Step::Fold { .. });
    if !parts.iter().any(|p| p.steps.iter().any(reads)) {
        return Ok(());
    }
    let first = &execution.graph.first;
    let mut later: Vec<Vec<u32>> = vec![Vec::new(); first[parts.len()] as usize];
    for (rank, part) in parts.iter().enumerate() {
        for (at, step) in part.steps.iter().enumerate() {
            let global = first[rank] + at as u32;
            for dep in part.after(at as u32).iter().filter(|d| d.lag == 0) {
                later[(first[rank] + dep.step) as usize].push(global);
            }
            if let Step::Send { .. } | Step::Raise { .. } = step {
                later[global as usize].push(execution.graph.other_end[global as usize]);
            }
        }
    }
    let reach = |from: &[u32]| {
        let mut seen = vec![false; later.len()];
        let mut open = from.to_vec();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut seen[at as usize], true) {
                open.extend(&later[at as usize]);
            }
        }
        seen
    };
    for (rank, part) in parts.iter().enumerate() {
        let all: Vec<u32> = (first[rank]..first[rank + 1]).collect();
        let after_entry = reach(&all);
        let mut ends: Option<Vec<(usize, u32, Vec<bool>)>> = None;
        for (reader, other) in parts.iter().enumerate() {
            for (at, step) in other.steps.iter().enumerate() {
                let read: Vec<Region> = peers_data(step, rank as u32)
                    .map(|data| call.input_of_peer(rank as u32, data))
                    .collect();
                if read.is_empty() {
                    continue;
                }
                let slot = |data: &Region| match data.buffer {
                    Buffer::Scratch(k) => part.scratch[usize::from(k)].slot,
                    _ => false,
                };
                let global = first[reader] + at as u32;
                let fault = |what: String| Fault {
                    rank: reader as u32,
                    step: Some(at as u32),
                    segment: 0,
                    what: format!("{step:?} {what}"),
                };
                if !after_entry[global as usize] {
                    return Err(fault("may come before the peer has entered".into()));
                }
                let after_read = reach(&[global]);
                // The peer leaves when all of its steps are over, so one is enough. Its slots
                // stay.
                if !read.iter().all(slot) && !all.iter().any(|s| after_read[*s as usize]) {
                    return Err(fault("may come after the peer has left".into()));
                }
                let writes = ends.get_or_insert_with(|| {
                    let mut writes = Vec::new();
                    for (at, step) in part.steps.iter().enumerate() {
                        memories[rank].touches(step, 0, |touch| {
                            if let Touch::Write(cell) = touch {
                                let global = first[rank] + at as u32;
                                writes.push((cell, global, reach(&[global])));
                            }
                        });
                    }
                    writes
                });
                let memory = &memories[rank];
                for cell in read.iter().flat_map(|data| memory.region(*data, 0)) {
                    for (written, write, after_write) in writes.iter() {
                        if *written == cell
                            && !after_write[global as usize]
                            && !after_read[*write as usize]
                        {
                            return Err(fault("is not ordered with a write of the peer".into()));
                        }
                    }
                }
                if call.segments_share(part) {
                    return Err(fault("reads scratch that segments share".into()));
                }
            }
        }
    }
    Ok(())
}

/// What a step reads of this peer, as it names it.
fn peers_data(step: &Step, peer: u32) -> impl Iterator<Item = Region> {
    let both = match *step {
        Step::Read { from, data, .. } => [Some((Some(from), data)), None],
        Step::Fold { left, right, .. } => [left, right].map(|o| Some((o.of, o.data))),
        _ => [None, None],
    };
    let of_peer = move |(of, data)| (of == Some(peer)).then_some(data);
    both.into_iter().flatten().filter_map(of_peer)
}

impl Call {
    /// Is there scratch of `part` in which segments take turns?
    fn segments_share(&self, part: &Part) -> bool {
        // Slots are those of a call each.
        part.scratch.iter().any(|s| s.slots != 0 && !s.slot)
    }
}
