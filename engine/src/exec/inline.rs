//! Inline schedules: short plans that a blocking call runs itself, without a run.
//!
//! A message of a few bytes takes a tenth of a microsecond; a schedule, operations and
//! their events take several. So a program of few steps, all of whose regions are
//! contiguous pieces of one length, keeps its steps in an order in which one thread can
//! take them, and its memory is some addresses. The steps are those of every plan
//! ([`super::step::execute`]); the driver is the call, which sends and receives at once or
//! not at all. A step that does not end at once is left to a run, which takes up the program
//! from there ([`Begun`]).
//!
//! # Invariants
//! 1. A step comes after all that it waits for. Sends come before receives as far as that
//!    allows, so that two ranks with the same order do not wait for each other; if they do,
//!    the wait has an end, and the run posts all receives.
//! 2. A region, and a scratch buffer, has at most [`MOST_BYTES`], and in a segment as many lines
//!    as its pieces need; a run that takes up the program copies scratch to its own.

mod blocks;
mod desk;
mod shares;

pub use self::blocks::{Blocks, Lie, Side};
pub use self::desk::{Desk, InSegment, Room, Small};
pub use self::shares::Shares;

use super::in_segment::{self, At, IN_ORDER, Places, Segment};
use super::memory::{Memory, longest_share};
use super::program::Action;
use super::step::{self, Messages, Taken};
use crate::error::Error;
use crate::protocol::select::AT_ONCE_BYTES;
use osier_collectives::{Buffer, Part, Region, Scratch};
use osier_transports::shm::SLOT_BYTES;
use std::mem::MaybeUninit;

/// Bytes of a message: as much as always leaves at once.
pub const MOST_BYTES: usize = AT_ONCE_BYTES;
/// Steps of a program.
const MOST_STEPS: usize = 128;
/// Scratch buffers of a program.
const MOST_SCRATCH: usize = 4;
/// A piece of a vector that is cut is at most so much longer than the mean, of elements of no more.
const LONGER: usize = 64;
/// Bytes of scratch of a program whose steps are those of a segment.
const MOST_SCRATCH_BYTES: usize = 2 << 20;

/// Steps in an order that one thread can take.
#[derive(Debug)]
pub struct InlineSchedule {
    order: Box<[u32]>,
    /// Pieces of each scratch buffer,
    scratch: Box<[u32]>,
    /// and of the longest region.
    pieces: usize,
    /// Steps are those of a segment.
    in_segment: Option<InSegment>,
}

/// What is done of a program that a run takes up.
#[derive(Clone)]
pub struct Begun {
    /// Upper part of the messages' tags.
    pub tags: u32,
    /// Complete steps, by bits.
    pub done: u128,
    /// The same of steps of a segment, which follow one another: so many instances.
    pub taken: u32,
    /// The address of the slot that peers read, if the call has one by now.
    pub slot: Option<usize>,
    /// The scratch buffers, piece after piece,
    scratch: Vec<MaybeUninit<u8>>,
    /// pieces of each,
    pieces: Box<[u32]>,
    /// and bytes of a piece.
    bytes: usize,
}

impl InlineSchedule {
    /// The order of steps, each with its dependencies; none if there are too many. Regions and
    /// scratch buffers have at most these pieces.
    pub fn new(
        actions: &[Action],
        before: &[Vec<u32>],
        scratch: &[Scratch],
        pieces: u32,
    ) -> Option<InlineSchedule> {
        if actions.len() > MOST_STEPS || scratch.len() > MOST_SCRATCH {
            return None;
        }
        let mut order = Vec::with_capacity(actions.len());
        let mut done = 0u128;
        while order.len() < actions.len() {
            let ready = |step: &usize| {
                done & 1 << step == 0 && before[*step].iter().all(|b| done & 1 << b != 0)
            };
            let rank = |step: &usize| match actions[*step] {
                Action::Send { .. } => 0,
                Action::Copy { .. } | Action::Combine { .. } | Action::Exchange { .. } => 1,
                Action::Receive { .. } => 2,
                // They follow one another.
                _ => 0,
            };
            let next = (0..actions.len()).filter(ready).min_by_key(rank)?;
            done |= 1 << next;
            order.push(next as u32);
        }
        Some(InlineSchedule {
            order: order.into(),
            scratch: scratch.iter().map(|s| s.pieces).collect(),
            pieces: pieces as usize,
            in_segment: None,
        })
    }

    /// So many steps of a segment, which follow one another, and whether peers may read what goes
    /// to the slot where it lies.
    pub fn of_segment(steps: u32, part: &Part, least_lent: Option<usize>) -> Self {
        let scratch = &part.scratch;
        let slot = scratch.iter().position(|s| s.slot);
        let others = scratch.iter().filter(|s| !s.slot);
        let pieces = others.map(|s| s.pieces as usize).max().unwrap_or(0);
        Self {
            order: (0..steps).collect(),
            scratch: scratch.iter().map(|s| s.pieces).collect(),
            pieces,
            in_segment: Some(InSegment {
                slot: slot.map(|k| (k as u16, scratch[k].pieces as usize)),
                buffers: scratch.len(),
                pieces,
                cut: part.cut.max(1),
                rank: part.rank,
                longest: 0,
                segments: part.segments.max(1),
                unit: 1,
                changes_hands: slot.is_some_and(|k| scratch[k].changes_hands),
                one_reader: slot.is_some_and(|k| scratch[k].one_reader),
                least_lent,
            }),
        }
    }

    /// Whether there is room for pieces of these bytes.
    #[inline]
    pub fn fits(&self, bytes: usize) -> bool {
        let most = |pieces: usize, most| bytes.saturating_mul(pieces) <= most;
        let Some(with) = &self.in_segment else {
            return most(self.pieces, MOST_BYTES);
        };
        let segments = with.segments as usize;
        let cut = with.cut as usize;
        let slot = with.slot.map_or(0, |slot| match (segments, cut) {
            (1, 1) => slot.1.saturating_mul(bytes),
            (1, _) => bytes,
            _ => {
                let longest = bytes.div_ceil(cut) + if cut > 1 { LONGER } else { 0 };
                slot.1
                    .saturating_mul(longest_share(longest, 1, with.segments))
            }
        });
        slot <= SLOT_BYTES && with.scratch_bytes(bytes) <= MOST_SCRATCH_BYTES
    }

    /// What the steps of a segment need, if they are such.
    #[inline]
    pub fn in_segment(&self) -> Option<InSegment> {
        self.in_segment
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Which step comes at this place; none behind the last.
    #[inline]
    pub fn step(&self, at: usize) -> Option<u32> {
        self.order.get(at).copied()
    }

    /// For a run that takes up the program after `taken` steps.
    pub fn begun(&self, taken: usize, tags: u32, desk: &Desk<'_>) -> Begun {
        Begun {
            tags,
            done: match self.in_segment {
                Some(_) => 0,
                None => (self.order[..taken].iter()).fold(0, |all, step| all | 1 << step),
            },
            taken: taken as u32,
            slot: (!desk.slot.is_null()).then(|| desk.slot.expose_provenance()),
            scratch: (self.scratch.iter().enumerate())
                // What peers read stays where it is.
                .filter(|(k, _)| !desk.is_slot(*k as u16))
                .flat_map(|(k, pieces)| {
                    let bytes = desk.lines(k).iter().flat_map(|line| &line.0);
                    bytes.take(*pieces as usize * desk.small.bytes)
                })
                .copied()
                .collect(),
            pieces: {
                let pieces = self.scratch.iter().enumerate();
                pieces
                    .map(|(k, p)| if desk.is_slot(k as u16) { 0 } else { *p })
                    .collect()
            },
            bytes: desk.small.bytes,
        }
    }
}

/// A message cannot end at once: a run takes the step.
pub struct Refused;

/// The driver of an inline schedule: messages that end at once, and the steps of the
/// program, which is kept elsewhere.
pub trait Call: Messages<Later = Refused> {
    /// A step of the program; none behind the last.
    fn step(&self, at: usize) -> Option<Action>;
}

/// Runs a program as far as its messages end at once: the steps that were taken, and the
/// error of the last of them.
#[inline]
pub fn run<C: Call>(call: &mut C, tags: u32, desk: &mut Desk<'_>) -> (usize, Option<Error>) {
    let mut taken = 0;
    while let Some(action) = call.step(taken) {
        match step::execute((action, 0), tags, desk, call) {
            Taken::Done => taken += 1,
            Taken::Later(Refused) => break,
            Taken::Failed(e, _) => return (taken + 1, Some(e)),
        }
    }
    (taken, None)
}

/// Runs the steps of a segment, behind the first `taken`, as far as flags are raised in time: the
/// instances that were taken, and the error of the last of them. `wait` gets the peer and the
/// number of polls that found nothing, and says whether to poll again.
#[inline]
pub fn run_in_segment<S: Segment>(
    segment: &mut S,
    (actions, call, mut taken): (&[Action], u32, usize),
    desk: &mut impl Places,
    mut wait: impl FnMut(&mut S, u32, u32) -> bool,
) -> (usize, Option<(Error, u32)>) {
    for number in 0..desk.segments() as u16 {
        let at = At {
            of: IN_ORDER,
            call,
            segment: number,
        };
        let before = usize::from(number) * actions.len();
        let ahead = actions.get(taken - before..).unwrap_or(&[]);
        for action in ahead {
            let mut looks = 0;
            loop {
                match in_segment::execute(action, at, segment, desk) {
                    in_segment::Taken::Done => break,
                    in_segment::Taken::Waits(peer) => {
                        looks += 1;
                        if !wait(segment, peer, looks) {
                            return (taken, None);
                        }
                    }
                    // A run sends and receives.
                    in_segment::Taken::ByMessage => return (taken, None),
                    in_segment::Taken::Failed(e, failed_rank) => {
                        return (taken + 1, Some((e, failed_rank)));
                    }
                }
            }
            taken += 1;
        }
    }
    (taken, None)
}

impl Begun {
    /// Copies the scratch buffers to those of a run.
    pub fn hand_over(&self, memory: &Memory) {
        let mut lines = self.scratch.chunks(self.bytes.max(1));
        for (k, pieces) in self.pieces.iter().enumerate() {
            for (piece, line) in (0..*pieces).zip(&mut lines) {
                let to = memory.view(Region::piece(Buffer::Scratch(k as u16), piece), 0);
                let bytes = to.bytes().min(line.len());
                if let Some(to) = to.as_contiguous() {
                    // SAFETY: invariant 2 of `memory`: scratch of the run alone, of no fewer
                    // bytes, as the line has no fewer; what was never written there is read
                    // by no step.
                    unsafe { std::ptr::copy_nonoverlapping(line.as_ptr().cast(), to, bytes) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lower::lower;
    use crate::view::RawView;
    use osier_collectives::{Algorithm, Call, Operation, Plan};

    /// Orders keep dependencies.
    #[test]
    fn sends_come_first_and_dependencies_hold() {
        let nothing = Region::run(Buffer::Recv, 0, 0);
        let send = |to| Action::Send {
            to,
            tag: 0,
            data: nothing,
        };
        let receive = |from| Action::Receive {
            from,
            tag: 0,
            data: nothing,
        };
        let actions = [receive(1), send(1), receive(2), send(2)];
        let before = [vec![], vec![], vec![1], vec![0]];
        let inline = InlineSchedule::new(&actions, &before, &[], 1).expect("short");
        let order: Vec<u32> = (0..5).map_while(|at| inline.step(at)).collect();
        assert_eq!(order, [1, 0, 3, 2]);
        let circle = [vec![1], vec![0], vec![], vec![]];
        assert!(InlineSchedule::new(&actions, &circle, &[], 1).is_none());
        assert!(inline.fits(MOST_BYTES) && !inline.fits(MOST_BYTES + 1));
    }

    /// The planner and the executor agree on which plans run inline.
    #[test]
    fn short_plans_have_inline_schedules() {
        for operation in Operation::ALL {
            for (algorithm, ranks) in Algorithm::FLAT
                .into_iter()
                .flat_map(|a| (2..7).map(move |ranks| (a.clone(), ranks)))
            {
                let Ok(plan) = Plan::new(Call::new(operation, ranks), algorithm, 1) else {
                    continue;
                };
                for rank in 0..ranks {
                    let part = plan.part(rank);
                    let fits =
                        part.steps().len() <= MOST_STEPS && part.scratch.len() <= MOST_SCRATCH;
                    let program = lower(plan.call(), &part).expect("a program");
                    assert_eq!(
                        program.inline.is_some(),
                        fits && part.row_pieces(plan.call()).is_some(),
                        "{operation:?} by {} of {rank} of {ranks}",
                        plan.algorithm()
                    );
                }
            }
        }
    }

    /// Plans in a segment run inline however many ranks there are, and as long as slots have room.
    #[test]
    fn plans_in_a_segment_are_inline() {
        for ranks in [2, 5, 16, 64] {
            for algorithm in [Algorithm::OnePhase, Algorithm::TwoPhases] {
                let call = Call::new(Operation::Allreduce, ranks);
                let plan = Plan::new(call, algorithm.clone(), 1).expect("for the call");
                for rank in [0, ranks - 1] {
                    let program = lower(plan.call(), &plan.part(rank)).expect("a program");
                    let inline = program.inline.expect("an order");
                    let told = format!("{algorithm} of {rank} of {ranks}");
                    assert!(inline.fits(SLOT_BYTES), "{told}");
                    assert!(!inline.fits(SLOT_BYTES + 1), "{told}");
                }
            }
        }
    }

    /// Pieces of a vector that is cut lie where a run has them, and scratch is long enough.
    #[test]
    fn cut_vectors_lie_in_slots_as_in_runs() {
        let plan = |segments| {
            let call = Call::new(Operation::Allreduce, 3);
            Plan::new(call, Algorithm::TwoPhases, segments).expect("for the call")
        };
        let mut vector = vec![0u8; 5000 * 8];
        let bytes = vector.len();
        for segments in [1, 4] {
            let plan = plan(segments);
            let program = lower(plan.call(), &plan.part(1)).expect("a program");
            let with = program.inline.and_then(|inline| inline.in_segment());
            let recv = RawView::untyped(vector.as_mut_ptr(), bytes);
            let small = Small::new(None, Some(&recv)).expect("contiguous");
            let mut desk = Desk::new(small, None);
            desk.work_in(with.expect("of a segment").of_unit(8));
            let mut end = 0;
            for piece in 0..3 {
                for segment in 0..segments as u16 {
                    let here = desk.place(Region::piece(Buffer::Recv, piece), segment);
                    assert_eq!(here.at.addr(), vector.as_ptr().addr() + end);
                    let slot = desk.in_slot(Region::piece(Buffer::Scratch(0), piece), segment);
                    assert_eq!(slot.len(), here.bytes);
                    assert!(slot.end <= desk.bytes_of_slot());
                    end += here.bytes;
                }
            }
            assert_eq!(end, bytes, "{segments} segments");
        }
    }

    /// Calls that are meant to be quick run inline.
    #[test]
    fn small_calls_are_inline() {
        for ranks in 2..9 {
            for (operation, algorithm) in [
                (Operation::Barrier, Algorithm::Dissemination),
                (Operation::Barrier, Algorithm::Linear),
                (Operation::Allreduce, Algorithm::RecursiveDoubling),
                (Operation::Allgather, Algorithm::Spread),
                (Operation::Allgather, Algorithm::Ring),
                (Operation::Alltoall, Algorithm::Pairwise),
                (Operation::Gather, Algorithm::Linear),
                (Operation::Scatter, Algorithm::Linear),
            ] {
                let plan = Plan::new(Call::new(operation, ranks), algorithm, 1);
                let Ok(plan) = plan else { continue };
                for rank in 0..ranks {
                    let program = lower(plan.call(), &plan.part(rank)).expect("a program");
                    assert!(
                        program.inline.is_some(),
                        "{operation:?} of {rank} of {ranks}"
                    );
                }
            }
        }
    }
}
