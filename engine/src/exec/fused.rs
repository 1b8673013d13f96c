//! Receives that combine: a receive into scratch and the combination that alone reads it there
//! are taken as one, so that the operand goes from the ring to the result.
//!
//! ```text
//! Receive   from peer -> theirs                Receive   from peer: into = mine op incoming
//! Combine   into = mine op theirs
//! ```
//!
//! The plan stays as it is: both steps, and what they wait for. A receive whose combination
//! waits for nothing else when it is posted gets the view of an operand ([`Incoming`]) in place
//! of scratch, and when it ends the combination is complete, too. Any other is received to
//! scratch, as where the operator is a function of the user's, or memory has gaps: so a rank
//! that sends what it is to combine into, and waits for its peer to do the same, waits for
//! nothing more than before.
//!
//! # Invariants
//! 1. Of a pair in [`pairs`], no step reads what the receive leaves in scratch but the
//!    combination, which waits for the receive; its other operand and its result lie elsewhere,
//!    or the result takes the message's place.
//! 2. A receive combines only if its combination waits for it alone. So all that is ordered
//!    before the combination is complete, and all that is ordered behind it has not begun: its
//!    operand and its result are used by nothing else (invariant 3 of `run`).
//! 3. An operand belongs to one receive of a run, from its first post or look to its end: what
//!    was combined of it before it was posted stays counted.

use super::graph::Edge;
use super::program::Action;
use super::run::{Phase, Run};
use crate::view::RawView;
use crate::view::combining::Incoming;
use osier_collectives::{Buffer, Region, Scratch};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Operands that are kept to be used again.
const SPARE: usize = 8;

/// A receive and the combination of what it receives, by their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub receive: u32,
    pub combine: u32,
    /// What is received is the left operand.
    pub is_left: bool,
}

/// What a piece of scratch holds.
#[derive(Clone, Copy)]
enum Holds {
    /// A message that was not read yet,
    Message(u32),
    /// or was combined.
    Combined(u32),
}

/// Pairs of a program, in the order of their receives: the actions in an order in which one
/// thread could take them, and what each waits for.
pub fn pairs(actions: &[Action], before: &[Vec<Edge>], scratch: &[Scratch]) -> Vec<Pair> {
    let pieces = |region: &Region| {
        let number = match region.buffer {
            Buffer::Scratch(k) => scratch.get(usize::from(k)).filter(|s| !s.slot),
            Buffer::Send | Buffer::Recv => None,
        };
        let region = *region;
        number.into_iter().flat_map(move |s| {
            let buffer = region.buffer;
            region.indices(s.pieces).map(move |piece| (buffer, piece))
        })
    };
    let mut holds: HashMap<(Buffer, u32), Holds> = HashMap::new();
    let mut found: Vec<Option<Pair>> = vec![None; actions.len()];
    let mut spoiled = vec![false; actions.len()];
    for (step, action) in actions.iter().enumerate() {
        let step = step as u32;
        let (reads, writes): (&[Region], Option<Region>) = match action {
            Action::Send { data, .. } => (&[*data], None),
            Action::Receive { data, .. } => (&[], Some(*data)),
            Action::Copy { from, to } => (&[*from], Some(*to)),
            Action::Combine { left, right, into } => (&[*left, *right], Some(*into)),
            Action::Exchange { from, into } => (&[*from], Some(*into)),
            // Of segments, which have no receives.
            _ => (&[], None),
        };
        let message = |region: &Region| {
            let mut of = pieces(region).map(|piece| match holds.get(&piece) {
                Some(Holds::Message(receive)) => Some(*receive),
                _ => None,
            });
            let first = of.next().flatten()?;
            of.all(|other| other == Some(first)).then_some(first)
        };
        let fits = |pair: &Pair| {
            let Action::Receive { data, .. } = actions[pair.receive as usize] else {
                return false;
            };
            let incoming = reads[usize::from(!pair.is_left)];
            let own = reads[usize::from(pair.is_left)];
            let apart = |region: &Region| {
                pieces(region).all(|piece| pieces(&incoming).all(|other| other != piece))
            };
            let receive = pair.receive;
            let waits = before[step as usize].contains(&Edge {
                step: receive,
                lag: 0,
            });
            let elsewhere = apart(&own) && writes.is_some_and(|to| to == data || apart(&to));
            waits && incoming == data && elsewhere
        };
        let operand = |at: usize| {
            Some(Pair {
                receive: message(reads.get(at)?)?,
                combine: step,
                is_left: at == 0,
            })
        };
        let operands = match action {
            Action::Combine { .. } => 0..2,
            _ => 0..0,
        };
        // Of two messages, the one that is received last.
        let pair = operands.filter_map(operand).filter(fits);
        let pair = pair.max_by_key(|pair| pair.receive);
        for piece in reads.iter().flat_map(pieces) {
            match holds.get(&piece) {
                Some(Holds::Message(receive)) if pair.is_some_and(|p| p.receive == *receive) => {}
                Some(Holds::Message(receive) | Holds::Combined(receive)) => {
                    spoiled[*receive as usize] = true;
                }
                None => {}
            }
        }
        if let Some(pair) = pair {
            found[pair.receive as usize] = Some(pair);
            let incoming = reads[usize::from(!pair.is_left)];
            holds.extend(pieces(&incoming).map(|piece| (piece, Holds::Combined(pair.receive))));
        }
        for piece in writes.iter().flat_map(pieces) {
            match action {
                Action::Receive { .. } => holds.insert(piece, Holds::Message(step)),
                _ => holds.remove(&piece),
            };
        }
    }
    let found = found.into_iter().zip(spoiled);
    found
        .filter_map(|(pair, spoiled)| pair.filter(|_| !spoiled))
        .collect()
}

/// Of a run: the operands that are combined as they come.
#[derive(Debug, Default)]
pub struct Fused {
    /// Instances of the receive and the combination, of receives that have not ended.
    open: Vec<(u32, u32, Arc<Incoming>)>,
    /// Combinations whose receives have ended, and whether all of the operand came.
    ended: Vec<(u32, bool)>,
    /// Receives that are posted behind what is sent now.
    postponed: VecDeque<u32>,
    spare: Vec<Arc<Incoming>>,
}

impl Fused {
    /// Forgets all but room.
    pub fn clear(&mut self) {
        let open = self.open.drain(..).map(|(.., incoming)| incoming);
        self.spare.extend(open);
        self.spare.truncate(SPARE);
        self.ended.clear();
        self.postponed.clear();
    }

    /// A receive has ended, if it is one.
    #[inline]
    pub fn received(&mut self, receive: u32) {
        if !self.open.is_empty() {
            self.end(receive);
        }
    }

    fn end(&mut self, receive: u32) {
        let Some(at) = self.open.iter().position(|open| open.0 == receive) else {
            return;
        };
        let (_, combine, incoming) = self.open.swap_remove(at);
        self.ended.push((combine, incoming.is_whole()));
        self.spare.push(incoming);
    }

    /// Whether a combination is complete when it would begin: `Some(false)`, if its operand was
    /// to be combined as it came, and did not come.
    #[inline]
    pub fn take_combined(&mut self, combine: u32) -> Option<bool> {
        if self.ended.is_empty() {
            return None;
        }
        let at = self.ended.iter().position(|ended| ended.0 == combine)?;
        Some(self.ended.swap_remove(at).1)
    }

    fn of(&self, receive: u32) -> Option<&Arc<Incoming>> {
        let open = self.open.iter().find(|open| open.0 == receive)?;
        Some(&open.2)
    }

    /// Adds an operand, in memory that was used before if there is some.
    fn add(&mut self, receive: u32, combine: u32, new: Incoming) -> RawView {
        let incoming = match self.spare.pop() {
            Some(mut kept) => match Arc::get_mut(&mut kept) {
                Some(room) => {
                    *room = new;
                    kept
                }
                None => Arc::new(new),
            },
            None => Arc::new(new),
        };
        let view = RawView::combining(&incoming);
        self.open.push((receive, combine, incoming));
        view
    }
}

impl Run {
    /// Where a receive puts its message: to an operand that is combined, or to its region.
    pub fn destination(&mut self, receive: u32) -> RawView {
        if let Some(view) = self.operand(receive) {
            return view;
        }
        match self.place(receive) {
            (Action::Receive { data, .. }, segment) => self.memory.view(data, segment),
            _ => RawView::empty(),
        }
    }

    /// The instance next to begin.
    #[inline]
    pub fn next_step(&mut self) -> Option<u32> {
        loop {
            match self.schedule.next() {
                Some(instance) if self.waits_to_combine(instance) => {
                    self.fused.postponed.push_back(instance);
                }
                Some(instance) => return Some(instance),
                None => return self.fused.postponed.pop_front(),
            }
        }
    }

    /// The combination of what a receive brings, where it may be combined as it comes.
    #[inline]
    fn pair_of(&self, receive: u32) -> Option<(Pair, u32)> {
        let pairs = &self.program.pairs;
        if pairs.is_empty() || self.on_device.is_some() || self.phase != Phase::Running {
            return None;
        }
        let steps = self.program.graph.steps();
        let (segment, step) = (receive / steps, receive % steps);
        let at = pairs.binary_search_by_key(&step, |pair| pair.receive);
        let pair = pairs[at.ok()?];
        Some((pair, segment * steps + pair.combine))
    }

    /// Whether a receive may combine once what is sent now has left.
    #[inline]
    fn waits_to_combine(&self, receive: u32) -> bool {
        let combine = self.pair_of(receive).map(|(_, combine)| combine);
        combine.is_some_and(|c| self.schedule.pending(&self.program.graph, c) > 1)
    }

    /// The view of an operand, for a receive that combines.
    fn operand(&mut self, receive: u32) -> Option<RawView> {
        let (pair, combine) = self.pair_of(receive)?;
        if let Some(incoming) = self.fused.of(receive) {
            return Some(RawView::combining(incoming));
        }
        // Invariant 2.
        if self.schedule.pending(&self.program.graph, combine) != 1 {
            return None;
        }
        let (Action::Combine { left, right, into }, segment) = self.place(combine) else {
            return None;
        };
        let (combiner, fit) = self.combiner.as_ref()?;
        let known = combiner.get().predefined(fit)?;
        let (theirs, own) = match pair.is_left {
            true => (left, right),
            false => (right, left),
        };
        let theirs = self.memory.lies_in(theirs, segment)?;
        let own = self.memory.lies_in(own, segment)?;
        let into = self.memory.lies_in(into, segment)?;
        let bytes = theirs.bytes;
        if bytes == 0 || own.bytes != bytes || into.bytes != bytes {
            return None;
        }
        let places = (own.at.cast_const(), into.at, theirs.at);
        let incoming = Incoming::new(known, pair.is_left, places, bytes)?;
        Some(self.fused.add(receive, combine, incoming))
    }
}

#[cfg(test)]
mod tests;
