//! Short calls: plans of one phase, worked out for one length, operator and type.
//!
//! An 8-byte allreduce of two ranks is six steps, which wait 40 ns for a cache line; to find
//! the program and to work out where each region lies takes longer. So a communicator keeps
//! what it has worked out for the calls that it makes again and again: moves between places,
//! each an offset within memory that the call knows. The lane takes them
//! ([`crate::progress::in_segment::short_calls`]); what is unusual, it leaves to the steps of the
//! program, which go on from there, one for one.
//!
//! # Invariants
//! 1. A move reads and writes inside its memory: offsets and lengths are those of the regions of
//!    a checked plan, for buffers of the length that the call depends on.

mod blocks;

pub use self::blocks::ShortBlocks;

use super::in_segment::LEAST_LENT;
use super::inline::Desk;
use super::program::{Action, Program};
use osier_collectives::{Call, Operand, Operation, Region};
use osier_datatype::{CombineFew, Element, Operator};
use std::sync::Arc;

/// Bytes of a slot: of longer ones, the copies count.
const MOST_SLOT_BYTES: usize = 8 << 10;
const _: () = assert!(MOST_SLOT_BYTES < LEAST_LENT);

/// What a short call depends on, but for the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depends {
    /// Operation, root, whether data lie in place, and what is combined.
    call: u64,
    /// Bytes of a piece.
    bytes: usize,
}

impl Depends {
    /// On a call of pieces of these bytes, which combines by this operator.
    #[inline]
    pub fn new(call: &Call, bytes: usize, known: Option<(Operator, Element)>) -> Self {
        let mut of = Self::of((call.operation, call.root), bytes, known);
        of.call |= u64::from(call.in_place) << 5;
        of
    }

    /// The same of a call whose data do not lie in place.
    #[inline]
    pub fn of(
        (operation, root): (Operation, u32),
        bytes: usize,
        known: Option<(Operator, Element)>,
    ) -> Self {
        let combined = match known {
            None => 0,
            Some((operator, Element::Basic(basic))) => (operator as u64 + 1) << 8 | basic as u64,
            Some((operator, Element::Pair { value, index })) => {
                (operator as u64 + 1) << 8 | value as u64 | (index as u64 + 1) << 12
            }
        };
        Self {
            call: operation as u64 | combined << 6 | u64::from(root) << 32,
            bytes,
        }
    }
}

/// Where a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Send,
    Recv,
    Scratch,
    /// What this rank writes for its peers,
    Slot,
    /// and what a peer has written.
    Peer(u32),
}

/// A place, by its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub of: Memory,
    pub offset: u32,
}

/// A step of a program with its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Copy {
        from: Place,
        to: Place,
        bytes: u32,
    },
    Fold {
        left: Place,
        right: Place,
        into: Place,
        bytes: u32,
    },
}

/// A peer's flag, and how far it is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    pub from: u32,
    pub phase: u16,
}

/// A call that is worked out: the moves before its flag or those of peers, the flag, the flags of
/// peers that it awaits, and the moves behind them.
#[derive(Debug)]
pub struct ShortCall {
    pub of: Depends,
    /// Of a piece.
    pub bytes: usize,
    pub before: Box<[Move]>,
    pub raised: Option<u16>,
    pub awaited: Box<[Awaited]>,
    pub behind: Box<[Move]>,
    pub slot_bytes: usize,
    pub known: Option<(Operator, Element)>,
    /// The operator as a function, where there is one.
    pub few: Option<CombineFew>,
    /// All ranks write slots, and read those of all others, in turns.
    pub changes_hands: bool,
    /// One rank reads each piece of a slot.
    pub one_reader: bool,
    /// Whose steps these are, one for one.
    pub program: Arc<Program>,
}

impl ShortCall {
    /// None: it is not short, not of one phase, or cannot be combined here.
    pub fn new(
        of: Depends,
        known: Option<(Operator, Element)>,
        program: &Arc<Program>,
        desk: &Desk<'_>,
    ) -> Option<Self> {
        let slot_bytes = desk.bytes_of_slot();
        let short = desk.has_short_scratch() && slot_bytes <= MOST_SLOT_BYTES;
        if !short || !program.in_segment || program.publishes {
            return None;
        }
        if let Some((operator, element)) = known {
            let mut none = [0u8; 0];
            operator.combine(element, &mut none, &[]).ok()?;
        }
        let [Action::Enter, steps @ .., Action::Leave] = &program.actions[..] else {
            return None;
        };
        let (mut before, mut raised, mut awaited) = (Vec::new(), None, Vec::new());
        let mut behind = Vec::new();
        for step in steps {
            match *step {
                Action::Raise { phase } if raised.is_none() && awaited.is_empty() => {
                    before = std::mem::take(&mut behind);
                    raised = Some(phase);
                }
                // Of a rank that raises no flag, what does not need its peers comes before theirs.
                Action::Await { from, phase }
                    if behind.is_empty() || raised.is_none() && awaited.is_empty() =>
                {
                    before.append(&mut behind);
                    awaited.push(Awaited { from, phase });
                }
                _ => behind.push(moved(desk, known.is_some(), step)?),
            }
        }
        Some(Self {
            of,
            bytes: desk.bytes_of_piece(),
            before: before.into(),
            raised,
            awaited: awaited.into(),
            behind: behind.into(),
            slot_bytes,
            known,
            few: known.and_then(|(operator, element)| operator.for_few(element)),
            changes_hands: program.changes_hands,
            one_reader: program.one_reader,
            program: program.clone(),
        })
    }

    /// The number of the first step that awaits a flag.
    #[inline]
    pub fn first_awaited(&self) -> usize {
        1 + self.before.len() + usize::from(self.raised.is_some())
    }
}

fn moved(desk: &Desk<'_>, combines: bool, step: &Action) -> Option<Move> {
    match *step {
        Action::Copy { from, to } => copied(desk, Operand::own(from), to),
        Action::Read { from, data, into } => copied(desk, Operand::of_peer(from, data), into),
        Action::Fold { left, right, into } if combines => {
            let (left, left_bytes) = place(desk, left)?;
            let (right, right_bytes) = place(desk, right)?;
            let (into, bytes) = place(desk, Operand::own(into))?;
            (left_bytes == bytes && right_bytes == bytes).then_some(Move::Fold {
                left,
                right,
                into,
                bytes,
            })
        }
        _ => None,
    }
}

fn copied(desk: &Desk<'_>, from: Operand, to: Region) -> Option<Move> {
    let (from, from_bytes) = place(desk, from)?;
    let (to, bytes) = place(desk, Operand::own(to))?;
    (from_bytes == bytes).then_some(Move::Copy { from, to, bytes })
}

/// Where an operand lies, and its bytes. None: elsewhere than in slots, of a peer.
fn place(desk: &Desk<'_>, operand: Operand) -> Option<(Place, u32)> {
    let (own, range) = desk.offset(operand.data);
    let of = match (operand.of, own) {
        (None, own) => own,
        (Some(peer), Memory::Slot) => Memory::Peer(peer),
        (Some(_), _) => return None,
    };
    let offset = u32::try_from(range.start).ok()?;
    let bytes = u32::try_from(range.len()).ok()?;
    Some((Place { of, offset }, bytes))
}

/// Short calls that are kept.
pub struct ShortCalls {
    kept: [Kept; KEPT],
    /// Of contributions that differ: one for each operation and root.
    blocks: Vec<(Blocks, Option<Box<ShortBlocks>>)>,
}

/// Operation and root of a call of contributions that differ.
type Blocks = (Operation, u32);

/// So many of those.
const KEPT_BLOCKS: usize = 16;

/// Places for them,
const KEPT: usize = 128;
/// in sets of this number: calls that a program makes in turn do not drive each other out.
const WAYS: usize = 4;

#[derive(Default)]
struct Kept {
    call: Option<Box<ShortCall>>,
    /// One of the last calls that were looked up in this set and not found: it is worked out the
    /// second time.
    missed: Option<Depends>,
}

impl Default for ShortCalls {
    fn default() -> Self {
        Self {
            kept: std::array::from_fn(|_| Kept::default()),
            blocks: Vec::new(),
        }
    }
}

impl ShortCalls {
    #[inline]
    fn at(of: &Depends) -> usize {
        let mixed = (of.call ^ (of.bytes as u64) << 24).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 48) as usize % KEPT
    }

    /// Takes one out, while it is used.
    #[inline]
    pub fn take(&mut self, of: &Depends) -> Option<Box<ShortCall>> {
        let first = Self::at(of);
        (0..WAYS).find_map(|way| {
            let kept = &mut self.kept[first ^ way];
            kept.call.take_if(|call| call.of == *of)
        })
    }

    /// Puts one back, or a new one.
    #[inline]
    pub fn keep(&mut self, call: Box<ShortCall>) {
        let first = Self::at(&call.of);
        let empty = (0..WAYS).find(|way| self.kept[first ^ way].call.is_none());
        self.kept[first ^ empty.unwrap_or(WAYS - 1)].call = Some(call);
    }

    /// Whether a call is to be worked out: not what comes only once.
    pub fn is_wanted(&mut self, of: &Depends) -> bool {
        let set = Self::at(of) / WAYS * WAYS;
        let set = &mut self.kept[set..set + WAYS];
        let mut last = Some(*of);
        set.iter_mut().any(|kept| {
            std::mem::swap(&mut kept.missed, &mut last);
            last == Some(*of)
        })
    }

    /// Takes out the call of contributions that differ, while it is used.
    #[inline]
    pub fn take_blocks(&mut self, of: (Operation, u32)) -> Option<Box<ShortBlocks>> {
        let kept = self.blocks.iter_mut().find(|(call, _)| *call == of)?;
        kept.1.take()
    }

    /// Puts it back, or a new one, unless there are many.
    #[inline]
    pub fn keep_blocks(&mut self, of: (Operation, u32), call: Box<ShortBlocks>) {
        if let Some(kept) = self.blocks.iter_mut().find(|(other, _)| *other == of) {
            kept.1 = Some(call);
        } else if self.blocks.len() < KEPT_BLOCKS {
            self.blocks.push((of, Some(call)));
        }
    }

    /// Whether one is kept.
    pub fn has_blocks(&self, of: (Operation, u32)) -> bool {
        self.blocks.iter().any(|(other, _)| *other == of)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::inline::Small;
    use crate::exec::lower::lower;
    use osier_collectives::{Algorithm, Plan};
    use osier_datatype::Basic;

    fn program(operation: Operation, ranks: u32, rank: u32) -> Option<Arc<Program>> {
        let plan = Plan::new(Call::new(operation, ranks), Algorithm::OnePhase, 1).ok()?;
        let program = lower(plan.call(), &plan.part(rank)).expect("a program");
        Some(Arc::new(program))
    }

    fn short(program: &Arc<Program>, bytes: usize) -> Option<ShortCall> {
        let mut memory = vec![0u8; 64 << 10];
        let small = Small {
            send: memory.as_mut_ptr(),
            recv: memory.as_mut_ptr(),
            bytes,
        };
        let mut desk = Desk::new(small, None);
        desk.work_in(program.inline.as_ref()?.in_segment()?);
        let known = Some((Operator::Sum, Element::Basic(Basic::F64)));
        let of = Depends::new(&Call::new(Operation::Barrier, 2), bytes, known);
        ShortCall::new(of, known, program, &desk)
    }

    fn moves(call: &ShortCall) -> impl Iterator<Item = &Move> {
        call.before.iter().chain(&call.behind)
    }

    /// Short calls of one phase are worked out, step by step.
    #[test]
    fn calls_of_one_phase_are_short() {
        let mut worked_out = 0;
        for operation in Operation::ALL {
            for (ranks, rank) in [(2, 0), (2, 1), (3, 1), (4, 3), (7, 0)] {
                let Some(program) = program(operation, ranks, rank) else {
                    continue;
                };
                let told = format!("{operation:?} of {rank} of {ranks}");
                let call = short(&program, 8).expect(&told);
                // All but the first and the last.
                let steps = call.first_awaited() - 1 + call.awaited.len() + call.behind.len();
                assert_eq!(steps + 2, program.actions.len(), "{told}");
                worked_out += 1;
                assert!(
                    short(&program, 64 << 10).is_none() || call.slot_bytes == 0,
                    "{told}"
                );
            }
        }
        assert!(worked_out >= 50, "{worked_out}");
    }

    /// Two pieces of a slot of an alltoall, and their places.
    #[test]
    fn places_are_those_of_the_regions() {
        let program = program(Operation::Alltoall, 3, 1).expect("for the call");
        let call = short(&program, 16).expect("short");
        assert_eq!(call.slot_bytes, 32);
        let copies: Vec<_> = moves(&call)
            .filter_map(|step| match step {
                Move::Copy {
                    from,
                    to,
                    bytes: 16,
                } => Some((from.of, from.offset, to.of, to.offset)),
                _ => None,
            })
            .collect();
        assert!(
            copies.contains(&(Memory::Send, 16, Memory::Recv, 16)),
            "{copies:?}"
        );
        let read = |peer| copies.iter().filter(|c| c.0 == Memory::Peer(peer)).count();
        assert_eq!([0, 1, 2].map(read), [1, 0, 1]);
    }

    /// Whatever differs in a call, another is kept.
    #[test]
    fn calls_that_differ_depend_on_other_things() {
        let f64 = Element::Basic(Basic::F64);
        let pair = Element::Pair {
            value: Basic::F64,
            index: Basic::I32,
        };
        let sum = Some((Operator::Sum, f64));
        let call = |operation| Call::new(operation, 4);
        let reduce = call(Operation::Reduce);
        let all = [
            Depends::new(&reduce, 8, sum),
            Depends::new(&reduce.clone().root(1), 8, sum),
            Depends::new(&call(Operation::Allreduce), 8, sum),
            Depends::new(&call(Operation::Allreduce).in_place(), 8, sum),
            Depends::new(&reduce, 16, sum),
            Depends::new(&reduce, 8, None),
            Depends::new(&reduce, 8, Some((Operator::Max, f64))),
            Depends::new(
                &reduce,
                8,
                Some((Operator::Sum, Element::Basic(Basic::I64))),
            ),
            Depends::new(&reduce, 8, Some((Operator::MinLoc, pair))),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == one), Some(at));
        }
    }

    #[test]
    fn calls_are_worked_out_when_they_come_a_second_time() {
        let mut kept = ShortCalls::default();
        let call = short(&program(Operation::Barrier, 2, 0).expect("a plan"), 0).expect("short");
        let (of, other) = (
            call.of,
            Depends {
                bytes: 8,
                ..call.of
            },
        );
        assert!(kept.take(&of).is_none());
        assert!(!kept.is_wanted(&of) && kept.is_wanted(&of));
        kept.keep(Box::new(call));
        assert!(kept.take(&other).is_none());
        let call = kept.take(&of).expect("it is kept");
        assert!(kept.take(&of).is_none(), "while it is used");
        kept.keep(call);
        kept.clear();
        assert!(kept.take(&of).is_none());
    }

    /// As where roots take turns.
    #[test]
    fn calls_that_are_made_in_turn_are_worked_out() {
        let mut kept = ShortCalls::default();
        let of = |root| Depends::of((Operation::Bcast, root), 8, None);
        assert!((0..16).all(|root| !kept.is_wanted(&of(root))));
        assert!((0..16).all(|root| kept.is_wanted(&of(root))));
    }

    /// Calls of one place are kept beside each other, as many as it has ways.
    #[test]
    fn calls_that_share_a_place_do_not_drive_each_other_out() {
        let mut kept = ShortCalls::default();
        let program = program(Operation::Barrier, 2, 0).expect("a plan");
        let mut calls: Vec<ShortCall> = Vec::new();
        for bytes in 0..1 << 12 {
            let mut call = short(&program, 0).expect("short");
            call.of.bytes = bytes;
            let same = |first: &ShortCall| ShortCalls::at(&first.of) == ShortCalls::at(&call.of);
            if calls.len() <= WAYS && calls.first().is_none_or(same) {
                calls.push(call);
            }
        }
        let all: Vec<Depends> = calls.iter().map(|call| call.of).collect();
        assert_eq!(all.len(), WAYS + 1);
        let last = calls.pop().expect("one more than there are ways");
        calls.into_iter().for_each(|call| kept.keep(Box::new(call)));
        for round in 0..3 {
            for of in &all[..WAYS] {
                let call = kept
                    .take(of)
                    .unwrap_or_else(|| panic!("{of:?}, round {round}"));
                kept.keep(call);
            }
        }
        // One more takes the place of one.
        kept.keep(Box::new(last));
        let left = all.iter().filter(|of| kept.take(of).is_some());
        assert_eq!(left.count(), WAYS);
    }
}
