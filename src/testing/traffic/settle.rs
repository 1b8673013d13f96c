//! The end of a run: everything goes on until nothing moves, what is left is
//! received, what can never end is given up.

use super::act::{Act, Want};
use super::hangs::Hangs;
use super::memory::Memory;
use super::receive::ToReceive;
use super::world::{Check, LARGEST, Receive, Receiving, World};

/// Rounds after which a network that is still busy is taken for a livelock.
const ROUNDS: usize = 200_000;

impl World {
    /// Takes the results of all operations that are over; says how many.
    pub fn harvest(&mut self) -> Check<usize> {
        let mut ended = 0;
        for at in (0..self.sends.len()).rev() {
            if self.end_send(self.sends[at], false)? {
                self.sends.swap_remove(at);
                ended += 1;
            }
        }
        for at in (0..self.receiving.len()).rev() {
            if self.end_receive(self.receiving[at], false)? {
                self.receiving.swap_remove(at);
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Every lane makes progress once, from the given one on.
    pub fn round(&mut self, start: usize) -> bool {
        let contexts = self.members.len();
        let mut any = false;
        for at in 0..self.lanes.len() {
            let at = (start + at) % self.lanes.len();
            if self.alive[at / contexts]
                && let Some(lane) = &mut self.lanes[at]
            {
                any |= lane.progress();
                self.note_deaths();
            }
        }
        any
    }

    /// Lets everything go on until nothing moves.
    pub fn settle(&mut self) -> Check {
        let mut hung = Hangs::default();
        for _ in 0..ROUNDS {
            let start = self.rng.below(self.lanes.len());
            if self.perform(Act::Round(start))? {
                hung.moved()?;
                continue;
            }
            // One rank after the other, as they wake up.
            let rank = start / self.members.len();
            if self.alive[rank] && !self.lenient {
                self.look(rank, &mut hung)?;
                self.hangs(&mut hung);
            }
            if !self.matched.is_empty() {
                hung.stir();
                let act = self.draw_matched(0);
                self.perform(act)?;
            } else if let Some(&(to, dead)) = self.notices.first() {
                hung.stir();
                self.perform(Act::Notice { to, dead })?;
            } else if !self.perform(Act::NextEvent)? && !self.revoking() {
                if !self.lenient {
                    self.must_hang(&mut hung)?;
                }
                if self.notices.is_empty() {
                    return Ok(());
                }
            }
        }
        if self.lenient {
            return Ok(());
        }
        Err(format!("the network is busy after {ROUNDS} rounds"))
    }

    /// Whether the lanes were asked again and may have more to do.
    fn revoking(&self) -> bool {
        let contexts = self.members.len();
        self.lanes.iter().enumerate().any(|(at, lane)| {
            self.alive[at / contexts]
                && lane
                    .as_ref()
                    .is_some_and(|l| l.leftovers().queued > 0 && !self.lenient)
        }) && self.net.in_flight().messages > 0
    }

    /// Receives what nobody has asked for.
    pub fn drain(&mut self) -> Check {
        loop {
            let mut any = false;
            for rank in (0..self.ranks)
                .filter(|r| self.alive[*r as usize])
                .collect::<Vec<_>>()
            {
                for context in 0..self.members.len() {
                    let want = Want::ANY;
                    while self.alive[rank as usize]
                        && let Some(seen) = self.lane(rank, context).probe(want.pattern())
                    {
                        any = true;
                        let room = seen.bytes.min(LARGEST);
                        let to = ToReceive {
                            id: self.receives.len(),
                            rank,
                            context,
                            pattern: want.pattern(),
                        };
                        self.begin(Act::Receive {
                            id: to.id,
                            rank,
                            context,
                            want,
                            layout: None,
                            room,
                            direct: false,
                        });
                        self.receive(&to, Memory::new(None, room), Some(seen))?;
                        self.end()?;
                    }
                }
            }
            self.settle()?;
            if !any {
                return Ok(());
            }
        }
    }

    /// Ends what nothing can end any more.
    pub fn leave(&mut self) -> Check {
        self.step += 1;
        if self.lenient {
            self.report.stuck = (self.sends.len() + self.receiving.len()) as u64;
            for r in 0..self.receives.len() {
                let room = self.receives[r].memory.as_ref().map_or(0, |m| m.room);
                self.untouched_outside(r, room)?;
            }
            return Ok(());
        }
        if let Some(m) = self.sends.first() {
            let what = self.describe_message(*m);
            return Err(format!("deadlock: {what} never ends"));
        }
        for r in std::mem::take(&mut self.receiving) {
            let Receive {
                rank,
                context,
                handle,
                pattern,
                ..
            } = self.receives[r];
            let lane = self.lane(rank, context);
            if let Some(met) = lane.met(handle) {
                let what = self.describe_receive(r);
                return Err(format!("deadlock: {what} has met {met:?} and never ends"));
            }
            let over = lane.revoke(handle);
            let members = &self.members[context];
            let hopeless = match pattern.source {
                Some(source) => !self.alive[members[source as usize] as usize],
                None => {
                    let alive = self.alive.iter().filter(|a| **a).count();
                    alive == 1 && self.ranks > 1
                }
            };
            self.receives[r].state = Receiving::Left;
            let what = self.describe_receive(r);
            if hopeless {
                return Err(format!("{what} waits for a dead rank"));
            }
            if !over {
                return Err(format!("{what} cannot be revoked though nothing came"));
            }
            self.untouched_outside(r, 0)?;
        }
        Ok(())
    }
}
