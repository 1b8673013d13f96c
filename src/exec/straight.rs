//! Short programs in one row: a call that waits anyway runs them itself, without a run.
//!
//! A message of a few bytes takes a tenth of a microsecond; a schedule, operations and
//! their events take several. So a program of few steps, all of whose regions are the
//! whole vector or nothing, is kept in the order in which one thread would take its
//! steps, and its memory is three addresses. What does not go through at once is left
//! to a run, which takes up the program where this has come to ([`Begun`]).
//!
//! # Invariants
//! 1. A step comes after all that it waits for. What sends comes before what receives,
//!    as far as that allows, so that two ranks in one row do not wait for each other;
//!    if they do, the wait has an end, and the run posts all receives.
//! 2. A scratch buffer holds one vector, of at most [`MOST_BYTES`]; a run that takes up
//!    the program copies it to its own.

use super::memory::Memory;
use super::program::Action;
use crate::p2p::view::RawView;
use osier_collectives::{Buffer, Lengths, Region, Scratch};
use std::mem::MaybeUninit;

/// Bytes of a vector: as much as always leaves at once.
pub(crate) const MOST_BYTES: usize = 2048;
/// Steps of a program.
const MOST_STEPS: usize = 64;
/// Scratch buffers of a program.
const MOST_SCRATCH: usize = 4;

/// Steps in an order that one thread can take.
#[derive(Debug)]
pub(crate) struct Straight {
    order: Box<[u32]>,
    scratch: usize,
}

/// `MOST_BYTES` in scratch.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([MaybeUninit<u8>; MOST_BYTES]);

/// Contiguous memory of the host that a straight program works on.
#[derive(Clone, Copy)]
pub(crate) struct Small {
    pub send: *mut u8,
    pub recv: *mut u8,
    /// Of both.
    pub bytes: usize,
}

/// The same, with the scratch buffers.
pub(crate) struct Desk {
    small: Small,
    scratch: [Line; MOST_SCRATCH],
}

/// What is done of a program that a run takes up.
#[derive(Clone)]
pub(crate) struct Begun {
    /// Upper part of the messages' tags.
    pub tags: u32,
    /// Steps that are over, by bits.
    pub done: u64,
    /// The scratch buffers, one after the other,
    scratch: Vec<MaybeUninit<u8>>,
    /// and bytes of each.
    bytes: usize,
}

impl Straight {
    /// The order of a program's steps, each with what it waits for; none if it is too
    /// long or its pieces are too many.
    pub fn new(
        actions: &[Action],
        before: &[Vec<u32>],
        scratch: &[Scratch],
        cut: u32,
    ) -> Option<Straight> {
        let whole = |lengths: &Lengths| matches!(lengths, Lengths::Rotated(0) | Lengths::All(0));
        let single = |s: &Scratch| s.pieces == 1 && whole(&s.lengths);
        if actions.len() > MOST_STEPS
            || scratch.len() > MOST_SCRATCH
            || cut != 1
            || !scratch.iter().all(single)
            || !actions.iter().all(is_whole)
        {
            return None;
        }
        let mut order = Vec::with_capacity(actions.len());
        let mut done = 0u64;
        while order.len() < actions.len() {
            let ready = |step: &usize| {
                done & 1 << step == 0 && before[*step].iter().all(|b| done & 1 << b != 0)
            };
            let receives = |step: &usize| matches!(actions[*step], Action::Receive { .. });
            let mut steps = (0..actions.len()).filter(ready);
            let next = steps
                .clone()
                .find(|step| !receives(step))
                .or(steps.next())?;
            done |= 1 << next;
            order.push(next as u32);
        }
        Some(Straight {
            order: order.into(),
            scratch: scratch.len(),
        })
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Which step comes at this place; none behind the last.
    #[inline]
    pub fn step(&self, at: usize) -> Option<u32> {
        self.order.get(at).copied()
    }

    /// For a run that takes up the program after `taken` steps.
    pub fn begun(&self, taken: usize, tags: u32, desk: &Desk) -> Begun {
        Begun {
            tags,
            done: self.order[..taken]
                .iter()
                .fold(0, |all, step| all | 1 << step),
            scratch: desk.scratch[..self.scratch]
                .iter()
                .flat_map(|line| &line.0[..desk.small.bytes])
                .copied()
                .collect(),
            bytes: desk.small.bytes,
        }
    }
}

fn is_whole(action: &Action) -> bool {
    let whole = |r: &Region| r.count == 0 || (r.count == 1 && r.first == 0);
    match action {
        Action::Send { data, .. } | Action::Receive { data, .. } => whole(data),
        Action::Copy { from, to } => whole(from) && whole(to),
        Action::Combine { left, right, into } => whole(left) && whole(right) && whole(into),
    }
}

impl Small {
    /// Both as long; `None` for what is long or has gaps.
    #[inline]
    pub fn new(send: Option<&RawView>, recv: Option<&RawView>) -> Option<Small> {
        let address = |view: Option<&RawView>| match view {
            Some(view) => view.as_contiguous(),
            None => Some(std::ptr::null_mut()),
        };
        let bytes = match (send, recv) {
            (Some(send), Some(recv)) if send.bytes() != recv.bytes() => return None,
            (Some(view), _) | (None, Some(view)) => view.bytes(),
            (None, None) => 0,
        };
        if bytes > MOST_BYTES {
            return None;
        }
        Some(Small {
            send: address(send)?,
            recv: address(recv)?,
            bytes,
        })
    }
}

impl Desk {
    #[inline]
    pub fn new(small: Small) -> Self {
        Self {
            small,
            scratch: [Line([MaybeUninit::uninit(); MOST_BYTES]); MOST_SCRATCH],
        }
    }

    /// What a region is.
    #[inline]
    pub fn view(&mut self, region: Region) -> RawView {
        let bytes = match region.count {
            0 => 0,
            _ => self.small.bytes,
        };
        let at = match region.buffer {
            Buffer::Send => self.small.send,
            Buffer::Recv => self.small.recv,
            Buffer::Scratch(k) => self.scratch[k as usize].0.as_mut_ptr().cast(),
        };
        RawView::untyped(at, bytes)
    }
}

impl Begun {
    /// Copies the scratch buffers to those of a run.
    pub fn hand_over(&self, memory: &Memory) {
        for (k, line) in self.scratch.chunks(self.bytes.max(1)).enumerate() {
            let to = memory.view(Region::piece(Buffer::Scratch(k as u16), 0), 0);
            let bytes = to.bytes().min(line.len());
            if let Some(to) = to.as_contiguous() {
                // SAFETY: the run's own, of as many bytes; what was never written there
                // is read by no step.
                unsafe { std::ptr::copy_nonoverlapping(line.as_ptr().cast(), to, bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::lower::lower;
    use osier_collectives::{Algorithm, Call, Operation, Plan};

    /// Orders keep what must come before.
    #[test]
    fn what_sends_comes_first_and_nothing_too_early() {
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
        let straight = Straight::new(&actions, &before, &[], 1).expect("short");
        let order: Vec<u32> = (0..5).map_while(|at| straight.step(at)).collect();
        assert_eq!(order, [1, 0, 3, 2]);
        let circle = [vec![1], vec![0], vec![], vec![]];
        assert!(Straight::new(&actions, &circle, &[], 1).is_none());
        let part = Action::Copy {
            from: Region::piece(Buffer::Send, 1),
            to: nothing,
        };
        assert!(Straight::new(&[part], &[vec![]], &[], 1).is_none());
    }

    /// The planner knows what is straight: it costs no run.
    #[test]
    fn rows_of_the_planner_are_straight() {
        for operation in Operation::ALL.into_iter().filter(|o| o.cuts_freely()) {
            for (algorithm, ranks) in Algorithm::FLAT
                .into_iter()
                .flat_map(|a| (2..7).map(move |ranks| (a.clone(), ranks)))
            {
                let Ok(plan) = Plan::new(Call::new(operation, ranks), algorithm, 1) else {
                    continue;
                };
                for rank in 0..ranks {
                    let part = plan.part(rank);
                    let fits = part.steps().len() <= MOST_STEPS
                        && part.scratch.len() <= MOST_SCRATCH
                        && part.scratch.iter().all(|s| s.pieces == 1);
                    let straight = lower(&part).expect("a program").straight.is_some();
                    assert_eq!(
                        straight,
                        fits && part.is_a_row(),
                        "{operation:?} by {} of {rank} of {ranks}",
                        plan.algorithm()
                    );
                }
            }
        }
    }

    /// What is meant to be quick is straight.
    #[test]
    fn small_calls_are_straight() {
        for ranks in 2..9 {
            for (operation, algorithm) in [
                (Operation::Barrier, Algorithm::Dissemination),
                (Operation::Allreduce, Algorithm::RecursiveDoubling),
            ] {
                let plan = Plan::new(Call::new(operation, ranks), algorithm, 1);
                let Ok(plan) = plan else { continue };
                for rank in 0..ranks {
                    let program = lower(&plan.part(rank)).expect("a program");
                    assert!(
                        program.straight.is_some(),
                        "{operation:?} of {rank} of {ranks}"
                    );
                }
            }
        }
    }
}
