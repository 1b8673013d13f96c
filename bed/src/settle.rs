//! End of a run: progress until quiescence, late receives, cancellation of the rest.

use super::act::{Act, By, Want};
use super::hangs::Hangs;
use super::memory::Memory;
use super::receive::ToReceive;
use super::world::{Check, LARGEST, Receive, Receiving, World};
use osier::internals::attached;
use osier_engine::error::ErrorKind;

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
        for rank in 0..self.ranks {
            if self.alive[rank as usize] {
                ended += self.harvest_set(rank)?;
            }
            if self.alive[rank as usize] && self.seat(rank).has_parts() {
                // A receiver that meets its sender may have asked for more.
                let before = self.net.generation();
                ended += self.harvest_parts(rank)?;
                ended += usize::from(self.net.generation() != before);
            }
        }
        Ok(ended)
    }

    /// Every lane makes progress once, from the given one on.
    pub fn round(&mut self, start: usize) -> bool {
        let contexts = self.contexts();
        let mut any = false;
        for at in 0..self.lanes() {
            let at = (start + at) % self.lanes();
            let (rank, context) = (at / contexts, at % contexts);
            if self.alive[rank] && self.seats[rank].is_some() {
                any |= self.lane(rank as u32, context).progress();
                self.note_deaths();
            }
        }
        any
    }

    /// Ends what the program itself has to end, until nothing is left to do.
    pub fn wind_up(&mut self) -> Check {
        loop {
            self.settle()?;
            let open = self.generals.iter().filter(|(_, g)| g.is_open());
            let open: Vec<(usize, u32)> = open.map(|(id, g)| (*id, g.rank)).collect();
            let mut any = false;
            for (id, rank) in open {
                any |= self.alive[rank as usize];
                self.perform(Act::Finish { id, drops: false })?;
            }
            if !self.lenient {
                any |= self.balance_parts()?;
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// Lets everything go on until nothing moves.
    pub fn settle(&mut self) -> Check {
        let mut hung = Hangs::default();
        for _ in 0..ROUNDS {
            let start = self.rng.below(self.lanes());
            if self.perform(Act::Round(start))? {
                hung.moved()?;
                continue;
            }
            // One rank after the other, as they wake up.
            let rank = start / self.contexts();
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
                if !self.lenient && self.must_hang(&mut hung)? {
                    continue;
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
        let contexts = self.contexts();
        let queued = (0..self.lanes()).any(|at| {
            let rank = at / contexts;
            self.alive[rank]
                && self.lane(rank as u32, at % contexts).leftovers().queued > 0
                && !self.lenient
        });
        queued && self.net.in_flight().messages > 0
    }

    /// Receives what nobody has asked for.
    pub fn drain(&mut self) -> Check {
        loop {
            let mut any = false;
            for rank in (0..self.ranks)
                .filter(|r| self.alive[*r as usize])
                .collect::<Vec<_>>()
            {
                for context in 0..self.contexts() {
                    let want = Want::ANY;
                    while self.alive[rank as usize] {
                        let seen = self.lane(rank, context).probe(want.pattern());
                        let Some(seen) = seen else {
                            break;
                        };
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
                            by: By::Lane,
                        });
                        self.receive(&to, Memory::new(None, room), Some(seen))?;
                        self.end()?;
                    }
                }
            }
            self.drain_parts();
            self.wind_up()?;
            if !any {
                return Ok(());
            }
        }
    }

    /// Ends what nothing can end any more.
    pub fn leave(&mut self) -> Check {
        self.step += 1;
        if self.lenient {
            let held = self.seats.iter().flatten().map(|seat| seat.listed.len());
            let operations = self.sends.len() + self.receiving.len();
            self.report.stuck = (operations + held.sum::<usize>()) as u64;
            for r in 0..self.receives.len() {
                let room = self.receives[r].room;
                self.untouched_outside(r, room)?;
            }
            return Ok(());
        }
        if let Some(m) = self.sends.first() {
            let what = self.describe_message(*m);
            return Err(format!("deadlock: {what} never ends"));
        }
        for r in std::mem::take(&mut self.receiving) {
            self.must_be_left(r, Some(self.receives[r].handle))?;
            let Receive {
                rank,
                context,
                handle,
                ..
            } = self.receives[r];
            if self.gives_up(r)? {
                continue;
            }
            let over = self.lane(rank, context).revoke(handle);
            if !over {
                let what = self.describe_receive(r);
                return Err(format!("{what} cannot be revoked though nothing came"));
            }
        }
        for rank in 0..self.ranks {
            if self.alive[rank as usize] {
                self.leave_set(rank)?;
                self.leave_parts(rank)?;
            }
        }
        self.give_buffers_back()
    }

    /// A receive that does not end: nothing has come for it, and its sender, or
    /// one that it may have, lives.
    pub fn must_be_left(&mut self, r: usize, handle: Option<u32>) -> Check {
        let Receive {
            rank,
            context,
            pattern,
            ..
        } = self.receives[r];
        let met = handle.map(|handle| self.lane(rank, context).met(handle));
        let what = self.describe_receive(r);
        match met {
            Some(None) => {}
            Some(Some(met)) => {
                return Err(format!("deadlock: {what} has met {met:?} and never ends"));
            }
            None => return Err(format!("deadlock: {what} is over, and its request is not")),
        }
        let peers = self.peers(context, rank);
        let failed = |peer: u32| {
            let ended = !self.alive[peer as usize];
            peer != rank && ended && !self.net.has_finalized(peer)
        };
        let others = || peers.iter().filter(|peer| **peer != rank);
        let told = |peer: &u32| self.acknowledged.contains_key(&(context, rank, *peer));
        let hopeless = match pattern.source {
            Some(source) => failed(peers[source as usize]),
            None => {
                let all = others().count() > 0 && others().all(|peer| failed(*peer));
                all || others().any(|peer| failed(*peer) && !told(peer))
            }
        };
        self.receives[r].state = Receiving::Left;
        if hopeless {
            return Err(format!("{what} waits for a dead rank"));
        }
        self.untouched_outside(r, 0)
    }

    /// A blocking wait for a receive that stays gives up if, and only if, all that could
    /// meet it have ended; it names them then. Half of the receives are asked.
    fn gives_up(&mut self, r: usize) -> Check<bool> {
        let Receive {
            rank,
            context,
            pattern,
            handle,
            ..
        } = self.receives[r];
        let peers = self.peers(context, rank);
        let ended = |peer: &u32| *peer == rank || !self.alive[*peer as usize];
        let all = match pattern.source {
            Some(source) => peers[source as usize] != rank && ended(&peers[source as usize]),
            None => peers.iter().all(ended) && peers.iter().any(|peer| *peer != rank),
        };
        if r.is_multiple_of(2) && all {
            return Ok(false);
        }
        let names: Vec<String> = (0..peers.len())
            .filter(|peer| match pattern.source {
                Some(source) => source as usize == *peer,
                None => peers[*peer] != rank,
            })
            .map(|peer| format!("rank {peer} "))
            .collect();
        let mut lane = self.lane(rank, context);
        let gave_up = lane.resign(handle);
        let result = match gave_up {
            true => lane.take(handle),
            false => None,
        };
        drop(lane);
        let what = self.describe_receive(r);
        match result {
            None if gave_up == all => Ok(false),
            Some(Err(e)) if all && e.kind() == ErrorKind::Closed => {
                let text = e.to_string();
                if let Some(name) = names.iter().find(|name| !text.contains(*name)) {
                    return Err(format!("{what} gives up without a word of {name}: {text}"));
                }
                self.report.resigned += 1;
                Ok(true)
            }
            other => Err(format!("{what} gives up: {other:?}, which is right: {all}")),
        }
    }

    /// All is delivered: buffers are empty, and come back as they were given.
    fn give_buffers_back(&mut self) -> Check {
        for (&(rank, context), &bytes) in &self.buffers {
            if !self.alive[rank as usize] {
                continue;
            }
            let comm = &self.seat(rank).comms[context];
            let live = attached(comm).live();
            if live != Some(0) {
                return Err(format!(
                    "{live:?} messages are left in a buffer of rank {rank}"
                ));
            }
            let back = comm.detach_buffer().map(|b| b.len());
            if back != bytes {
                return Err(format!(
                    "a buffer of {bytes:?} bytes comes back as {back:?}"
                ));
            }
        }
        Ok(())
    }
}
