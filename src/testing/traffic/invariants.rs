//! What holds after every step, not only at the end.
//!
//! 1. Every credit of the network belongs to a message on its way.
//! 2. What a sender has taken of its eager credit is on its way, waits to be
//!    received, or is owed, and nothing else.
//! 3. Every operation of a lane is one that somebody waits for, or detached:
//!    none is lost, and none ends twice.
//! 4. Memory of operations that are over stays as it is.
//! 5. Messages have not overtaken each other so far.
//! 6. No message is malformed.

use super::world::{Check, Receiving, World};
use crate::protocol::eager;
use crate::wire;
use std::collections::HashMap;

impl World {
    /// Checks the list above.
    pub fn invariants(&mut self) -> Check {
        if self.lenient {
            return Ok(());
        }
        self.net.audit()?;
        self.credit_adds_up()?;
        self.operations_are_ours()?;
        self.no_late_write()?;
        self.in_order()?;
        self.nothing_malformed()
    }

    fn nothing_malformed(&self) -> Check {
        for (at, lane) in self.lanes.iter().enumerate() {
            let (rank, context) = (at / self.members.len(), at % self.members.len());
            let malformed = lane.as_ref().map_or(0, |l| l.counters().malformed);
            if malformed > 0 && !self.net.is_dead(rank as u32) {
                return Err(format!(
                    "rank {rank}, context {context} met {malformed} malformed messages"
                ));
            }
        }
        Ok(())
    }

    fn credit_adds_up(&self) -> Check {
        // Eager bytes and returned credit on their way, by (from, to, channel).
        let mut flying: HashMap<(u32, u32, u64), (u64, u64)> = HashMap::new();
        self.net.each_message(|from, to, channel, head, payload| {
            let sum = flying.entry((from, to, channel)).or_default();
            match head.kind {
                wire::EAGER => sum.0 += eager::cost(payload.len()),
                wire::FIRST => {
                    let total = payload
                        .first_chunk::<{ wire::TOTAL_BYTES }>()
                        .map_or(0, |t| u64::from_le_bytes(*t));
                    sum.0 += eager::cost(total as usize);
                }
                wire::CREDIT => sum.1 += u64::from(wire::halves(head.arg).0),
                _ => {}
            }
        });
        let contexts = self.members.len();
        for (context, members) in self.members.iter().enumerate() {
            let channel = context as u64 + 1;
            for (a, &from) in members.iter().enumerate() {
                for (b, &to) in members.iter().enumerate() {
                    if self.net.is_dead(from) || self.net.is_dead(to) {
                        continue;
                    }
                    let lane = |rank: u32| self.lanes[rank as usize * contexts + context].as_ref();
                    let (Some(sender), Some(receiver)) = (lane(from), lane(to)) else {
                        continue;
                    };
                    if from == to && sender.talks_to_itself() {
                        continue; // its messages to itself cannot be seen
                    }
                    let (out, _) = sender.credits(b as u32);
                    let (_, owed) = receiver.credits(a as u32);
                    let kept = receiver.unreceived(a as u32) + receiver.queued_credit(a as u32);
                    let (there, _) = flying
                        .get(&(from, to, channel))
                        .copied()
                        .unwrap_or_default();
                    let (_, back) = flying
                        .get(&(to, from, channel))
                        .copied()
                        .unwrap_or_default();
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

    fn operations_are_ours(&self) -> Check {
        let contexts = self.members.len();
        let mut ours = vec![0; self.lanes.len()];
        for m in &self.sends {
            let m = &self.messages[*m];
            ours[m.from as usize * contexts + m.context] += 1;
        }
        for r in &self.receiving {
            let r = &self.receives[*r];
            ours[r.rank as usize * contexts + r.context] += 1;
        }
        for (at, lane) in self.lanes.iter().enumerate() {
            let (rank, context) = (at / contexts, at % contexts);
            let Some(lane) = lane else { continue };
            if self.net.is_dead(rank as u32) {
                continue;
            }
            let (has, wanted) = (lane.attended(), ours[at]);
            if has != wanted {
                return Err(format!(
                    "rank {rank}, context {context} has {has} operations that somebody waits for, not {wanted}"
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
            if under_way || self.net.is_dead(receive.rank) {
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
