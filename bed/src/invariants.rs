//! Invariants that are checked after every step.
//!
//! 1. Every credit of the network belongs to a message on its way.
//! 2. What a sender has taken of its eager credit is on its way, waits to be
//!    received, or is owed, and nothing else.
//! 3. Every operation of a lane is one that somebody waits for, or detached:
//!    none is lost, and none ends twice.
//!    Nor are more messages in an attached buffer than were sent from it.
//! 4. Memory of operations that are over stays as it is.
//! 5. Messages have not overtaken each other so far.
//! 6. No message is malformed.
//! 7. While a failure is not acknowledged, no receive from any source is posted.

use super::case::How;
use super::seat::context_of;
use super::world::{Check, Receiving, Sending, World};
use osier::internals::attached;
use osier_engine::protocol::eager;
use osier_engine::wire;

impl World {
    /// Checks the list above.
    pub fn invariants(&mut self) -> Check {
        self.note_deaths();
        if self.lenient {
            return Ok(());
        }
        self.net.audit()?;
        self.credit_adds_up()?;
        self.operations_are_ours()?;
        self.buffers_add_up()?;
        self.no_late_write()?;
        self.in_order()?;
        self.none_from_any_is_posted()?;
        self.nothing_malformed()
    }

    fn none_from_any_is_posted(&self) -> Check {
        for at in 0..self.lanes() {
            let (rank, context) = (at / self.contexts(), at % self.contexts());
            if self.alive[rank] && self.lane(rank as u32, context).breaks_acknowledgement() {
                return Err(format!(
                    "rank {rank}, context {context}: a receive from any source is posted, and a failure not acknowledged"
                ));
            }
        }
        Ok(())
    }

    fn nothing_malformed(&self) -> Check {
        for at in 0..self.lanes() {
            let (rank, context) = (at / self.contexts(), at % self.contexts());
            let malformed = match self.alive[rank] {
                true => self.lane(rank as u32, context).counters().malformed,
                false => 0,
            };
            if malformed > 0 {
                return Err(format!(
                    "rank {rank}, context {context} met {malformed} malformed messages"
                ));
            }
        }
        Ok(())
    }

    fn credit_adds_up(&self) -> Check {
        // Eager bytes and returned credit on their way, by context, from, to.
        let ranks = self.ranks as usize;
        let mut flying = vec![(0u64, 0u64); self.contexts() * ranks * ranks];
        let link = |context: usize, from: u32, to: u32| {
            (context * ranks + from as usize) * ranks + to as usize
        };
        self.net.each_message(|from, to, channel, head, payload| {
            let Some(sum) = flying.get_mut(link(context_of(channel), from, to)) else {
                return;
            };
            match head.kind {
                wire::EAGER => sum.0 += eager::cost(payload.len()),
                wire::EAGER_FIRST => {
                    let total = payload
                        .first_chunk::<{ wire::TOTAL_BYTES }>()
                        .map_or(0, |t| u64::from_le_bytes(*t));
                    // Check bits lie above.
                    sum.0 += eager::cost((total & 0xffff_ffff) as usize);
                }
                wire::CREDIT => sum.1 += u64::from(wire::halves(head.arg).0),
                _ => {}
            }
        });
        for context in 0..self.contexts() {
            for from in 0..self.ranks {
                for to in 0..self.ranks {
                    if !self.alive[from as usize] || !self.alive[to as usize] {
                        continue;
                    }
                    let names = (
                        self.peer_if(context, from, to),
                        self.peer_if(context, to, from),
                    );
                    let (Some(b), Some(a)) = names else {
                        continue;
                    };
                    let sender = self.lane(from, context);
                    if from == to && sender.talks_to_itself() {
                        continue; // its messages to itself cannot be seen
                    }
                    let (out, _) = sender.credits(b);
                    drop(sender);
                    let receiver = self.lane(to, context);
                    let (_, owed) = receiver.credits(a);
                    let (kept, queued) = (receiver.unreceived(a), receiver.queued_credit(a));
                    let there = flying[link(context, from, to)].0;
                    let back = flying[link(context, to, from)].1 + queued;
                    if out != owed + kept + there + back {
                        return Err(format!(
                            "credit is lost: rank {from} has taken {out} with rank {to} in context {context}, of which {there} are on their way, {kept} wait, {owed} are owed and {back} return"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn operations_are_ours(&mut self) -> Check {
        let contexts = self.contexts();
        let mut ours = vec![0; self.lanes()];
        for m in &self.sends {
            let m = &self.messages[*m];
            ours[m.from as usize * contexts + m.context] += 1;
        }
        for r in &self.receiving {
            let r = &self.receives[*r];
            ours[r.rank as usize * contexts + r.context] += 1;
        }
        for (at, ours) in ours.into_iter().enumerate() {
            let (rank, context) = ((at / contexts) as u32, at % contexts);
            if !self.alive[rank as usize] {
                continue;
            }
            let has = self.lane(rank, context).attended();
            let wanted = ours + self.seat_mut(rank).operations(context);
            if has != wanted {
                return Err(format!(
                    "rank {rank}, context {context} has {has} operations that somebody waits for, not {wanted}"
                ));
            }
        }
        Ok(())
    }

    /// What is in a buffer was sent from it, and no receive has taken it yet.
    fn buffers_add_up(&self) -> Check {
        for &(rank, context) in self.buffers.keys() {
            if !self.alive[rank as usize] {
                continue;
            }
            let live = attached(&self.seat(rank).comms[context]).live();
            let detached = self.messages.iter().filter(|m| {
                (m.from, m.context) == (rank, context)
                    && m.how == How::Buffered
                    && m.state == Sending::Detached
            });
            let most = detached.count();
            if live.is_none_or(|live| live > most) {
                return Err(format!(
                    "rank {rank} has {live:?} messages in a buffer, and has sent {most} by it"
                ));
            }
        }
        Ok(())
    }

    fn no_late_write(&self) -> Check {
        for (r, receive) in self.receives.iter().enumerate() {
            let under_way = matches!(
                receive.state,
                Receiving::Pending | Receiving::Revoking | Receiving::Matched
            );
            if under_way || !self.alive[receive.rank as usize] {
                continue;
            }
            if receive.memory.as_ref().is_some_and(|m| !m.is_untouched()) {
                let what = self.describe_receive(r);
                return Err(format!("{what} was written after its end"));
            }
        }
        Ok(())
    }
}
