//! Executes any plan symbolically and proves its result.
//!
//! 1. Each rank's accesses to its memory are ordered by the plan's dependencies
//!    (`order.rs`), so the result depends on no schedule.
//! 2. Every message is told apart from all others, has both ends, and as many pieces
//!    of the same lengths at each.
//! 3. Therefore one execution in any order stands for all. It ends (no deadlock);
//!    every step finds its operands defined; no contribution is combined twice; and
//!    each rank ends with exactly what [`Call::expected`] says, in the order and the
//!    brackets that the plan claims.
//! 4. Barriers: what ends at a rank comes after what began at every other.
//! 5. What is read from a peer was there before, and stays until it was read: by a
//!    flag of the peer before, and a flag back that the peer awaits (`peers.rs`).
//!
//! # Invariants
//! It shares no code with the builder, so it finds the builder's mistakes.

mod execute;
pub(crate) mod graph;
mod order;
mod peers;
mod values;

use crate::algorithms::Plan;
use crate::builder::ROUNDS;
use crate::call::{Association, Call};
use crate::plan::{Buffer, Dep, Part, Region, Step};
use std::fmt;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub rank: u32,
    /// The step, if it is one's fault.
    pub step: Option<u32>,
    /// Its segment.
    pub segment: u32,
    /// In words.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(
                f,
                "rank {}, step {step}, segment {}: {}",
                self.rank, self.segment, self.what
            ),
            None => write!(f, "rank {}: {}", self.rank, self.what),
        }
    }
}

impl std::error::Error for Fault {}

/// What was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps of all ranks, once per segment.
    pub instances: u64,
    /// Messages and flags among them.
    pub messages: u64,
}

/// Checks all ranks' parts of a plan.
pub fn check(plan: &Plan) -> Result<Report, Fault> {
    let parts: Vec<Part> = (0..plan.call().size).map(|r| plan.part(r)).collect();
    check_parts(plan.call(), plan.association(), &parts)
}

/// Checks parts, one per rank, that claim to keep an association.
pub fn check_parts(call: &Call, association: Association, parts: &[Part]) -> Result<Report, Fault> {
    let first = &parts[0];
    for (rank, part) in parts.iter().enumerate() {
        if (part.rank, part.cut, part.segments) != (rank as u32, first.cut, first.segments) {
            return Err(Fault {
                rank: rank as u32,
                step: None,
                segment: 0,
                what: format!(
                    "part of rank {}, {} pieces in {} segments; rank 0 has {} in {}",
                    part.rank, part.cut, part.segments, first.cut, first.segments
                ),
            });
        }
    }
    let memories: Vec<Memory> = parts.iter().map(|p| Memory::of(call, p)).collect();
    for (part, memory) in parts.iter().zip(&memories) {
        well_formed(call, part, memory)?;
        order::check(part, memory)?;
    }
    let execution = execute::run(call, association, parts, &memories)?;
    peers::check(call, parts, &memories, &execution)?;
    Ok(execution.report)
}

/// Where each segment of each piece of a rank's buffers lies, as a cell.
pub(crate) struct Memory {
    /// Send, receive, scratch...: pieces, copies (segments or slots), first cell.
    buffers: Vec<(u32, u32, usize)>,
    cells: usize,
    /// The receive buffer overlaps the send buffer.
    shared: bool,
}

enum Touch {
    Read(usize),
    Write(usize),
}

impl Memory {
    fn of(call: &Call, part: &Part) -> Self {
        let mut buffers = Vec::new();
        let mut cells = 0;
        let user = [Buffer::Send, Buffer::Recv]
            .map(|b| (call.pieces(part.rank, b, part.cut), part.segments));
        let scratch = part.scratch.iter().map(|s| {
            let all = s.slots == 0;
            (s.pieces, if all { part.segments } else { s.slots })
        });
        for (pieces, copies) in user.into_iter().chain(scratch) {
            buffers.push((pieces, copies, cells));
            cells += pieces as usize * copies as usize;
        }
        Self {
            buffers,
            cells,
            shared: call.shares_memory(),
        }
    }

    fn cells(&self) -> usize {
        self.cells
    }

    fn number(buffer: Buffer) -> usize {
        match buffer {
            Buffer::Send => 0,
            Buffer::Recv => 1,
            Buffer::Scratch(k) => 2 + k as usize,
        }
    }

    /// Pieces of a buffer; 0 if there is none.
    fn pieces(&self, buffer: Buffer) -> u32 {
        self.buffers.get(Self::number(buffer)).map_or(0, |b| b.0)
    }

    fn cell(&self, buffer: Buffer, piece: u32, segment: u32) -> usize {
        let (_, copies, first) = self.buffers[Self::number(buffer)];
        first + piece as usize * copies as usize + (segment % copies) as usize
    }

    #[inline]
    fn region(&self, region: Region, segment: u32) -> impl Iterator<Item = usize> + '_ {
        let (pieces, copies, first) = self.buffers[Self::number(region.buffer)];
        let first = first + (segment % copies) as usize;
        region
            .indices(pieces)
            .map(move |piece| first + piece as usize * copies as usize)
    }

    /// Every access of a step to this rank's memory, reads first.
    #[inline]
    fn touches(&self, step: &Step, segment: u32, mut visit: impl FnMut(Touch)) {
        let read = |region: Region, visit: &mut dyn FnMut(Touch)| {
            for cell in self.region(region, segment) {
                visit(Touch::Read(cell));
            }
            if self.shared && region.buffer == Buffer::Send {
                let (_, copies, _) = self.buffers[1];
                for segment in 0..copies {
                    visit(Touch::Read(self.cell(Buffer::Recv, 0, segment)));
                }
            }
        };
        match *step {
            Step::Send { data, .. } => read(data, &mut visit),
            Step::Copy { from, .. } => read(from, &mut visit),
            Step::Combine { left, right, .. } => {
                read(left, &mut visit);
                read(right, &mut visit);
            }
            Step::Fold { left, right, .. } => {
                for operand in [left, right].iter().filter(|o| o.of.is_none()) {
                    read(operand.data, &mut visit);
                }
            }
            _ => {}
        }
        let written = match *step {
            Step::Recv { data, .. } => data,
            Step::Copy { to, .. } => to,
            Step::Combine { into, .. } | Step::Read { into, .. } | Step::Fold { into, .. } => into,
            _ => return,
        };
        for cell in self.region(written, segment) {
            visit(Touch::Write(cell));
        }
    }
}

/// In a segment: steps follow one another, and the flags of a phase are one word, which grows.
fn flags_grow(part: &Part) -> Result<(), Fault> {
    let mut phase = 0;
    let mut raised = false;
    for (at, step) in part.steps.iter().enumerate() {
        let at = at as u32;
        let fault = |what: &str| Fault {
            rank: part.rank,
            step: Some(at),
            segment: 0,
            what: format!("{step:?} {what}"),
        };
        let before = match at.checked_sub(1) {
            Some(step) => Some(Dep { step, lag: 0 }),
            // Of the segment before.
            None => (part.segments > 1).then_some(Dep {
                step: part.steps.len() as u32 - 1,
                lag: 1,
            }),
        };
        if !part.after(at).iter().copied().eq(before) {
            return Err(fault("does not follow the step before it"));
        }
        raised &= matches!(step, Step::Raise { .. });
        match *step {
            Step::Send { .. } | Step::Recv { .. } => return Err(fault("is a message")),
            Step::Raise { tag, .. } if tag % ROUNDS != 0 => return Err(fault("has a round")),
            Step::Raise { tag, .. } if tag > phase => (phase, raised) = (tag, true),
            Step::Raise { tag, .. } if tag == phase && raised => {}
            Step::Raise { .. } => return Err(fault("comes after a later flag")),
            _ => {}
        }
    }
    Ok(())
}

fn well_formed(call: &Call, part: &Part, memory: &Memory) -> Result<(), Fault> {
    if part.in_segment {
        flags_grow(part)?;
    }
    for (at, step) in part.steps.iter().enumerate() {
        let fault = |what: String| Fault {
            rank: part.rank,
            step: Some(at as u32),
            segment: 0,
            what: format!("{step:?} {what}"),
        };
        let there = |region: Region| {
            let pieces = memory.pieces(region.buffer);
            if region.count > pieces || region.run == 0 {
                return Err(fault(format!(
                    "names more than the {pieces} pieces there are"
                )));
            }
            if region.count > region.run && region.count > 1 {
                let mut all: Vec<u32> = region.indices(pieces).collect();
                all.sort_unstable();
                if all.windows(2).any(|w| w[0] == w[1]) {
                    return Err(fault("names a piece twice".into()));
                }
            }
            Ok(region)
        };
        let written = match *step {
            Step::Send { to: peer, data, .. } => {
                there(data)?;
                (Some(peer), None)
            }
            Step::Recv {
                from: peer, data, ..
            } => (Some(peer), Some(data)),
            Step::Copy { from, to } => {
                there(from)?;
                if from.count != to.count {
                    return Err(fault("copies between different numbers of pieces".into()));
                }
                (None, Some(to))
            }
            Step::Combine { left, right, into } => {
                there(left)?;
                there(right)?;
                if (left.count, right.count) != (into.count, into.count) {
                    return Err(fault("combines different numbers of pieces".into()));
                }
                for operand in [left, right] {
                    let same = operand.buffer == into.buffer && operand != into;
                    let pieces = memory.pieces(into.buffer);
                    if same
                        && into
                            .indices(pieces)
                            .any(|i| operand.indices(pieces).any(|o| o == i))
                    {
                        return Err(fault("overwrites part of an operand".into()));
                    }
                    if memory.shared
                        && operand.buffer == Buffer::Send
                        && into.buffer == Buffer::Recv
                    {
                        return Err(fault("overwrites what it reads, in place".into()));
                    }
                }
                (None, Some(into))
            }
            Step::Raise { to: peer, .. } | Step::Await { from: peer, .. } => (Some(peer), None),
            Step::Read { from, data, into } => {
                if data.count != into.count {
                    return Err(fault("copies between different numbers of pieces".into()));
                }
                (Some(from), Some(into))
            }
            Step::Fold { left, right, into } => {
                if (left.data.count, right.data.count) != (into.count, into.count) {
                    return Err(fault("combines different numbers of pieces".into()));
                }
                for operand in [left, right] {
                    if operand.of == Some(part.rank) || operand.of.is_some_and(|p| p >= call.size) {
                        return Err(fault("reads of a rank that is no peer".into()));
                    }
                    if operand.of.is_some() {
                        continue;
                    }
                    let data = there(operand.data)?;
                    let pieces = memory.pieces(into.buffer);
                    let within = |i| data.indices(pieces).any(|o| o == i);
                    if data.buffer == into.buffer
                        && data != into
                        && into.indices(pieces).any(within)
                    {
                        return Err(fault("overwrites part of an operand".into()));
                    }
                    if memory.shared && data.buffer == Buffer::Send && into.buffer == Buffer::Recv {
                        return Err(fault("overwrites what it reads, in place".into()));
                    }
                }
                (None, Some(into))
            }
        };
        if let Some(region) = written.1 {
            there(region)?;
            if region.buffer == Buffer::Send {
                return Err(fault("writes the send buffer".into()));
            }
        }
        if written.0.is_some_and(|peer| peer >= call.size) {
            return Err(fault("names a rank that is not there".into()));
        }
        if written.0 == Some(part.rank) {
            return Err(fault("names its own rank".into()));
        }
    }
    Ok(())
}
