//! Short calls of contributions that differ, on the lane: see [`crate::exec::short::ShortBlocks`].
//!
//! As in [`super::short_calls`], a call is taken here where nothing else is in flight in the segment,
//! and whatever is unusual is left to the steps of the program.

use super::short_calls::{Alike, InFlight, Short, raise};
use super::{Known, Lane, Readers, SegmentCalls};
use crate::exec::cells;
use crate::exec::in_segment::Places;
use crate::exec::in_segment::{At, IN_ORDER, Taken, copy_short};
use crate::exec::inline::Blocks;
use crate::exec::program::Action;
use crate::exec::short::ShortBlocks;
use osier_transports::shm::Done;

/// What is said with the flags of such a call.
const NOTHING: Alike = Alike {
    bytes: 0,
    changes_hands: false,
};

impl Lane {
    /// Takes such a call. `wait` is as in [`Lane::run_short`].
    #[inline]
    pub fn run_short_blocks(
        &mut self,
        short: &ShortBlocks,
        blocks: &mut Blocks<'_>,
        mut wait: impl FnMut(&mut Lane, u32, u32) -> bool,
    ) -> Short {
        let number = self.executor.next_number();
        let set = (number & 1) as usize;
        let sets = short.program.sets();
        let calls = &self.port.in_segment;
        let alone = calls.begun.is_empty() && calls.lent.is_empty() && !calls.untold;
        if !alone || calls.peers.len() != self.port.peers.len() {
            return Short::NotBegun;
        }
        if let Some((before, readers)) = SegmentCalls::awaited(&calls.before(), set, sets) {
            let mut looks = 0;
            while let Some(peer) = self.not_past_last(before, readers) {
                looks += 1;
                if !wait(self, peer, looks) {
                    return Short::NotBegun;
                }
            }
        }
        let (turn, in_turn) = (self.port.in_segment.turns[set], 0);
        let flags = InFlight {
            call: number,
            set,
            turn,
            in_turn,
        };
        let at = At {
            of: IN_ORDER,
            call: number,
            segment: 0,
        };
        let Ok(Some(collective)) = self.port.links.collective(IN_ORDER) else {
            return Short::NotBegun;
        };
        // Nothing goes beside the flag but what is put there.
        if !matches!(collective.own_slot(set, 0, 0), Ok(Ok(_))) {
            return Short::NotBegun;
        }
        for step in &short.program.actions[short.before.clone()] {
            let done = match *step {
                Action::Put { data, cell } => cells::put((data, cell), at, self, blocks).is_ok(),
                Action::Copy { from, to } => copied(blocks, (from, to)),
                _ => false,
            };
            if !done {
                return Short::NotBegun;
            }
        }
        if let Some(phase) = short.raised
            && let Some(collective) = self.port.links.opened_collective()
        {
            raise(NOTHING, flags, phase, collective);
            self.port.links.wake_members();
        }
        let (numbers, before) = self.counted(number, set, sets);
        let come = self.await_flags((NOTHING, flags), &short.awaited, wait);
        let taken = short.behind.start - short.awaited.len() + come;
        if come < short.awaited.len() {
            return self.left_to_steps(sets, before, (numbers, taken));
        }
        for (taken, step) in (taken..).zip(&short.program.actions[short.behind.clone()]) {
            let done = match *step {
                Action::Take { from, cell, into } => {
                    let taken = cells::take((from, cell, into), at, self, blocks);
                    matches!(taken, Taken::Done)
                }
                Action::Copy { from, to } => copied(blocks, (from, to)),
                _ => false,
            };
            if !done {
                // It takes the step again.
                return self.left_to_steps(sets, before, (numbers, taken));
            }
        }
        if let Some(collective) = self.port.links.opened_collective() {
            collective.set_done(Done {
                call: number.wrapping_add(1),
                segments: 0,
            });
            self.port.links.wake_members();
        }
        Short::Done
    }

    /// The first of these peers for which a call is not over, as far as is known or seen.
    #[inline]
    fn not_past_last(&mut self, call: u32, readers: Readers) -> Option<u32> {
        let past = |known: &Known| known.done.is_some_and(|done| super::below(call, done.call));
        let (own, known) = (self.port.own, &self.port.in_segment.peers);
        let late = match readers {
            Readers::All => {
                let mut all = (0..).zip(known);
                all.find(|(peer, known)| *peer != own && !past(known))
                    .map(|(peer, _)| peer)
            }
            Readers::Neighbors => {
                let mut all = self.port.sends_to.iter().copied();
                all.find(|peer| !past(&known[*peer as usize]))
            }
        }?;
        let (of, segment) = (IN_ORDER, u16::MAX);
        match self.not_past(At { of, call, segment }, readers) {
            Ok(peer) => peer,
            // For the steps to tell.
            Err(_) => Some(late),
        }
    }
}

/// Copies a block within the rank; false: lengths differ.
#[inline]
fn copied(
    blocks: &mut Blocks<'_>,
    (from, to): (osier_collectives::Region, osier_collectives::Region),
) -> bool {
    let (Some(from), Some(to)) = (blocks.contiguous(from, 0), blocks.contiguous(to, 0)) else {
        return false;
    };
    if from.bytes != to.bytes {
        return false;
    }
    // SAFETY: invariant 2 of `exec::in_segment`: as many bytes each, of the call's own.
    unsafe { copy_short(from.at, to.at, from.bytes) };
    true
}
