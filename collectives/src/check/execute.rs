//! One symbolic execution of all ranks.
//!
//! A send ends when its receive has been posted, as a rendezvous does, so a plan that
//! passes needs no buffers of the transport. Flags do not wait.

use super::graph::{Graph, NONE};
use super::values::{Expr, Map, UNDEFINED, Values};
use super::{Fault, Memory, Report};
use crate::balanced;
use crate::call::{Association, Call, Expected, Operation};
use crate::plan::{Buffer, Lengths, Part, Region, Step};

/// What a cell holds: an expression of a piece, in a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    expr: Expr,
    piece: u32,
    segment: u32,
}

const NOTHING: Value = Value {
    expr: UNDEFINED,
    piece: 0,
    segment: 0,
};

/// What the execution found, for further checks.
pub(super) struct Execution {
    pub(super) report: Report,
    pub(super) graph: Graph,
}

struct Run<'a> {
    call: &'a Call,
    parts: &'a [Part],
    memories: &'a [Memory],
    values: Values,
    cells: Vec<Vec<Value>>,
    /// Payload of messages under way, and where each begins.
    wire: Vec<Value>,
    sent_at: Vec<u32>,
    /// The balanced expressions over runs of ranks: first, count.
    trees: Map<(u32, u32), Expr>,
}

pub(super) fn run(
    call: &Call,
    association: Association,
    parts: &[Part],
    memories: &[Memory],
) -> Result<Execution, Fault> {
    let graph = Graph::of(parts)?;
    let (total, segments) = (graph.total, graph.segments);
    let instances = graph.instances();
    let mut open = vec![0u32; instances];
    graph.open(parts, graph.segments, |instance, waits| {
        open[instance as usize] = waits;
    });
    // Instance: segment * total + step among all.
    let mut ready: Vec<u32> = (0..instances as u32)
        .filter(|i| open[*i as usize] == 0)
        .collect();

    let mut run = Run {
        call,
        parts,
        memories,
        values: Values::new(call.size),
        cells: memories.iter().map(|m| vec![NOTHING; m.cells()]).collect(),
        wire: Vec::new(),
        sent_at: vec![0; instances],
        trees: Map::default(),
    };
    run.begin(segments);
    let mut knows = Knowledge::of(call, instances);
    let mut report = Report::default();
    // Messages whose other end has been posted.
    let mut posted = vec![false; instances];
    while let Some(next) = ready.pop() {
        let (segment, global) = (next / total, next % total);
        let other = match graph.other_end[global as usize] {
            NONE => next,
            end => segment * total + end,
        };
        let kind = graph.step(parts, global);
        let both = match kind {
            Step::Send { .. } => [Some(next), Some(other)],
            Step::Recv { .. } => [Some(other), Some(next)],
            _ => [Some(next), None],
        };
        if both[1].is_some() && !posted[other as usize] {
            posted[next as usize] = true;
            continue;
        }
        for instance in both.into_iter().flatten() {
            let global = instance % total;
            let (rank, step) = graph.place(global);
            let sender = both[0].unwrap_or(instance);
            run.step(rank, step, segment, instance, sender)?;
            report.instances += 1;
            knows.enter(instance, rank);
            let flag =
                matches!(kind, Step::Raise { .. }).then_some((graph.other_end[global as usize], 0));
            report.messages += u64::from(flag.is_some() || both[1] == Some(instance));
            for (step, lag) in graph.later(global).iter().copied().chain(flag) {
                if segment + lag < segments {
                    let later = (segment + lag) * total + step;
                    knows.pass(instance, later);
                    open[later as usize] -= 1;
                    if open[later as usize] == 0 {
                        ready.push(later);
                    }
                }
            }
        }
    }
    if report.instances < instances as u64 {
        let stuck = (0..instances).find(|i| open[*i] > 0).unwrap_or(0) as u32;
        let (segment, global) = (stuck / total, stuck % total);
        let (rank, step) = graph.place(global);
        let doing = graph.step(parts, global);
        return Err(Fault {
            rank,
            step: Some(step),
            segment,
            what: format!("deadlock: {doing:?} never comes to run"),
        });
    }
    run.end(association, segments)?;
    if call.operation == Operation::Barrier {
        knows.all_know(parts, &graph.first, total)?;
    }
    Ok(Execution { report, graph })
}

impl Run<'_> {
    fn begin(&mut self, segments: u32) {
        for rank in 0..self.call.size {
            let memory = &self.memories[rank as usize];
            for buffer in [Buffer::Send, Buffer::Recv] {
                for at in 0..memory.pieces(buffer) {
                    let Some(piece) = self.call.initial(rank, buffer, at) else {
                        continue;
                    };
                    for segment in 0..segments {
                        let cell = memory.cell(buffer, at, segment);
                        self.cells[rank as usize][cell] = Value {
                            expr: Values::own(rank),
                            piece,
                            segment,
                        };
                    }
                }
            }
        }
    }

    /// How long a value is, as a number to compare; only where lengths differ.
    fn length(&self, value: Value) -> Option<u64> {
        if !self.call.varying {
            return None;
        }
        let owner = u64::from(self.values.owner(value.expr).unwrap_or(0));
        Some(match self.call.operation {
            Operation::Gather | Operation::Allgather => owner,
            Operation::Alltoall | Operation::NeighborAlltoall | Operation::NeighborAllgather => {
                (owner << 32) | u64::from(value.piece)
            }
            _ => u64::from(value.piece),
        })
    }

    /// How long a piece of a buffer is, in the same numbers.
    fn room(&self, rank: u32, buffer: Buffer, piece: u32) -> Option<u64> {
        match buffer {
            Buffer::Send => None,
            Buffer::Recv => match self.call.expected(rank, piece) {
                Expected::Piece { rank, piece } => self.length(Value {
                    expr: Values::own(rank),
                    piece,
                    segment: 0,
                }),
                Expected::Combined { piece, .. } => Some(u64::from(piece)),
                Expected::Nothing => None,
            },
            Buffer::Scratch(k) => match self.call.operation {
                Operation::Allgather | Operation::ReduceScatter => {
                    let scratch = self.parts[rank as usize].scratch[k as usize];
                    Some(match scratch.lengths {
                        Lengths::Rotated(by) => {
                            (u64::from(piece) + u64::from(by)) % u64::from(self.call.size)
                        }
                        Lengths::All(like) => u64::from(like),
                    })
                }
                _ => None,
            },
        }
    }

    fn fault(&self, rank: u32, step: u32, segment: u32, what: String) -> Fault {
        Fault {
            rank,
            step: Some(step),
            segment,
            what: format!(
                "{:?} {what}",
                self.parts[rank as usize].steps[step as usize]
            ),
        }
    }

    fn step(
        &mut self,
        rank: u32,
        step: u32,
        segment: u32,
        instance: u32,
        sender: u32,
    ) -> Result<(), Fault> {
        let doing = self.parts[rank as usize].steps[step as usize];
        let memory = &self.memories[rank as usize];
        let start = self.wire.len();
        match doing {
            Step::Send { data, .. } => {
                self.sent_at[instance as usize] = start as u32;
                let cells = &self.cells[rank as usize];
                self.wire
                    .extend(memory.region(data, segment).map(|cell| cells[cell]));
                if self.wire[start..].iter().any(|v| v.expr == UNDEFINED) {
                    return Err(self.fault(rank, step, segment, "sends what is not there".into()));
                }
            }
            Step::Recv { data, .. } => {
                let at = self.sent_at[sender as usize] as usize;
                self.put(rank, step, segment, data, at)?;
            }
            Step::Copy { from, to } => {
                let cells = &self.cells[rank as usize];
                self.wire
                    .extend(memory.region(from, segment).map(|cell| cells[cell]));
                self.put(rank, step, segment, to, start)?;
                self.wire.truncate(start);
            }
            Step::Read { from, data, into } => {
                let data = self.call.input_of_peer(from, data);
                let peer = &self.memories[from as usize];
                if data.count > peer.pieces(data.buffer) {
                    let what = "reads more than the peer has".into();
                    return Err(self.fault(rank, step, segment, what));
                }
                let cells = &self.cells[from as usize];
                self.wire
                    .extend(peer.region(data, segment).map(|cell| cells[cell]));
                self.put(rank, step, segment, into, start)?;
                self.wire.truncate(start);
            }
            Step::Combine { left, right, into } => {
                let lefts = memory.region(left, segment);
                let operands = lefts.zip(memory.region(right, segment));
                for ((left, right), into) in operands.zip(memory.region(into, segment)) {
                    let cells = &self.cells[rank as usize];
                    let (l, r) = (cells[left], cells[right]);
                    self.cells[rank as usize][into] = self
                        .combined(l, r)
                        .map_err(|what| self.fault(rank, step, segment, what))?;
                }
            }
            Step::Fold { left, right, into } => {
                for operand in [left, right] {
                    let whose = operand.of.unwrap_or(rank);
                    let data = match operand.of {
                        Some(peer) => self.call.input_of_peer(peer, operand.data),
                        None => operand.data,
                    };
                    let memory = &self.memories[whose as usize];
                    if data.count > memory.pieces(data.buffer) {
                        let what = "reads more than the peer has".into();
                        return Err(self.fault(rank, step, segment, what));
                    }
                    let cells = &self.cells[whose as usize];
                    self.wire
                        .extend(memory.region(data, segment).map(|cell| cells[cell]));
                }
                let count = into.count as usize;
                for (i, cell) in self.memories[rank as usize]
                    .region(into, segment)
                    .enumerate()
                {
                    let (l, r) = (self.wire[start + i], self.wire[start + count + i]);
                    self.cells[rank as usize][cell] = self
                        .combined(l, r)
                        .map_err(|what| self.fault(rank, step, segment, what))?;
                }
                self.wire.truncate(start);
            }
            Step::Raise { .. } | Step::Await { .. } => {}
        }
        Ok(())
    }

    /// Combines two values of one piece.
    fn combined(&mut self, left: Value, right: Value) -> Result<Value, String> {
        if left.expr == UNDEFINED || right.expr == UNDEFINED {
            return Err("combines what is not there".into());
        }
        if (left.piece, left.segment) != (right.piece, right.segment) {
            return Err(format!(
                "combines piece {} with piece {}",
                left.piece, right.piece
            ));
        }
        match self.values.combine(left.expr, right.expr) {
            Ok(expr) => Ok(Value { expr, ..left }),
            Err(twice) => Err(format!("has the contribution of rank {twice} twice")),
        }
    }

    /// Stores values of the wire from `at` on.
    fn put(
        &mut self,
        rank: u32,
        step: u32,
        segment: u32,
        to: Region,
        at: usize,
    ) -> Result<(), Fault> {
        let memory = &self.memories[rank as usize];
        for (i, cell) in memory.region(to, segment).enumerate() {
            let value = self.wire[at + i];
            if value.expr == UNDEFINED {
                let what = "copies what is not there".into();
                return Err(self.fault(rank, step, segment, what));
            }
            if value.segment != segment {
                let what = format!("gets segment {}", value.segment);
                return Err(self.fault(rank, step, segment, what));
            }
            self.cells[rank as usize][cell] = value;
        }
        if self.call.varying {
            let pieces = memory.pieces(to.buffer);
            for (i, piece) in to.indices(pieces).enumerate() {
                let (has, room) = (
                    self.length(self.wire[at + i]),
                    self.room(rank, to.buffer, piece),
                );
                if room.is_some() && has != room {
                    let what = format!("has other lengths at piece {piece}: {has:?}, {room:?}");
                    return Err(self.fault(rank, step, segment, what));
                }
            }
        }
        Ok(())
    }

    /// Is the result what the call defines?
    fn end(&mut self, association: Association, segments: u32) -> Result<(), Fault> {
        for rank in 0..self.call.size {
            for at in 0..self.memories[rank as usize].pieces(Buffer::Recv) {
                let expected = self.call.expected(rank, at);
                for segment in 0..segments {
                    let cell = self.memories[rank as usize].cell(Buffer::Recv, at, segment);
                    let value = self.cells[rank as usize][cell];
                    self.compare(association, expected, value)
                        .map_err(|what| Fault {
                            rank,
                            step: None,
                            segment,
                            what: format!("piece {at} of the result {what}"),
                        })?;
                }
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        association: Association,
        expected: Expected,
        value: Value,
    ) -> Result<(), String> {
        if expected != Expected::Nothing && value.expr == UNDEFINED {
            return Err("was never written".into());
        }
        match expected {
            Expected::Nothing => Ok(()),
            Expected::Piece { rank, piece } => {
                if (value.expr, value.piece) == (Values::own(rank), piece) {
                    return Ok(());
                }
                let owner = self.values.owner(value.expr);
                Err(format!(
                    "is piece {} of rank {owner:?}, not piece {piece} of rank {rank}",
                    value.piece
                ))
            }
            Expected::Combined {
                first,
                count,
                piece,
            } => {
                if value.piece != piece {
                    return Err(format!("is piece {}, not {piece}", value.piece));
                }
                let end = first + count;
                self.values
                    .covers(value.expr, first, end)
                    .map_err(|rank| format!("lacks rank {rank}, or has it wrongly"))?;
                if association >= Association::Ordered
                    && !self.values.is_run(value.expr, first, end)
                {
                    return Err("is not combined in rank order".into());
                }
                if association == Association::Balanced {
                    if self.trees.get(&(first, count)) == Some(&value.expr) {
                        return Ok(());
                    }
                    let values = &mut self.values;
                    let own = |i| Values::own(first + i);
                    let combine = |a, b| values.combine(a, b).expect("each rank once");
                    let tree = match self.call.operation {
                        Operation::Scan | Operation::Exscan => {
                            balanced::prefix(count, own, combine)
                        }
                        _ => balanced::reduce(count, own, combine),
                    };
                    self.trees.insert((first, count), tree);
                    if tree != value.expr {
                        return Err("is combined with other brackets".into());
                    }
                }
                Ok(())
            }
        }
    }
}

/// For barriers: whose entering each instance comes after.
struct Knowledge {
    words: usize,
    sets: Vec<u64>,
}

impl Knowledge {
    fn of(call: &Call, instances: usize) -> Self {
        let words = if call.operation == Operation::Barrier {
            call.size.div_ceil(64) as usize
        } else {
            0
        };
        Self {
            words,
            sets: vec![0; words * instances],
        }
    }

    fn enter(&mut self, instance: u32, rank: u32) {
        if self.words > 0 {
            let at = instance as usize * self.words + rank as usize / 64;
            self.sets[at] |= 1 << (rank % 64);
        }
    }

    fn pass(&mut self, from: u32, to: u32) {
        for word in 0..self.words {
            let set = self.sets[from as usize * self.words + word];
            self.sets[to as usize * self.words + word] |= set;
        }
    }

    fn all_know(&self, parts: &[Part], first: &[u32], total: u32) -> Result<(), Fault> {
        let ranks = parts.len() as u32;
        for rank in 0..ranks {
            let mut all = vec![0u64; self.words];
            all[rank as usize / 64] |= 1 << (rank % 64);
            for step in first[rank as usize]..first[rank as usize + 1] {
                for segment in 0..parts[0].segments {
                    let at = (segment * total + step) as usize * self.words;
                    for (word, mine) in all.iter_mut().enumerate() {
                        *mine |= self.sets[at + word];
                    }
                }
            }
            let missing = (0..ranks).find(|r| all[*r as usize / 64] >> (r % 64) & 1 == 0);
            if let Some(missing) = missing {
                return Err(Fault {
                    rank,
                    step: None,
                    segment: 0,
                    what: format!("leaves the barrier without knowing of rank {missing}"),
                });
            }
        }
        Ok(())
    }
}
