//! Rules that are checked at the end of a run.

use super::world::{Check, Message, Receive, Receiving, Sending, World};
use osier::internals::lane;
use osier_engine::matching::Envelope;
use osier_engine::progress::inspect::Leftovers;
use osier_engine::progress::lane::{Mode, Outcome};

impl World {
    pub(super) fn check(&mut self) -> Check {
        self.count();
        // The ends of dead ranks go first, so that nothing of theirs counts.
        for (seat, alive) in self.seats.iter_mut().zip(&self.alive) {
            if !alive {
                *seat = None;
            }
        }
        if self.lenient {
            self.seats.clear();
            return self.nothing_late();
        }
        self.nothing_left()?;
        self.credit_is_conserved()?;
        for seat in self.seats.iter().flatten() {
            seat.core.report_leaks();
        }
        self.seats.clear();
        self.nothing_late()?;
        let unsure = self.identify()?;
        self.exactly_once(&unsure)?;
        self.in_order()?;
        self.synchronous()
    }

    fn count(&mut self) {
        for seat in self.seats.iter().flatten() {
            for comm in &seat.comms {
                let c = lane(comm).lock().counters();
                self.report.unexpected += c.unexpected;
                self.report.announced += c.announced;
                self.report.pulled += c.pulled;
                self.report.malformed += c.malformed;
            }
        }
    }

    fn nothing_left(&mut self) -> Check {
        let contexts = self.contexts();
        for at in 0..self.lanes() {
            let (rank, context) = (at / contexts, at % contexts);
            if self.seats[rank].is_none() {
                continue;
            }
            let lane = self.lane(rank as u32, context);
            let left = lane.leftovers();
            if left != Leftovers::default() {
                return Err(format!("rank {rank}, context {context} keeps {left:?}"));
            }
            let malformed = lane.counters().malformed;
            if malformed > 0 {
                return Err(format!(
                    "rank {rank}, context {context} met {malformed} malformed messages"
                ));
            }
            let exports = self.net.exports(rank as u32);
            if exports > 0 {
                return Err(format!("rank {rank} keeps {exports} exports"));
            }
        }
        let flying = self.net.in_flight();
        if (flying.messages, flying.operations) != (0, 0) {
            return Err(format!("under way at the end: {flying:?}"));
        }
        Ok(())
    }

    fn credit_is_conserved(&mut self) -> Check {
        for context in 0..self.contexts() {
            for a in (0..self.ranks).filter(|r| self.alive[*r as usize]) {
                for b in (0..self.ranks).filter(|r| self.alive[*r as usize]) {
                    let names = (self.peer_if(context, a, b), self.peer_if(context, b, a));
                    let (Some(there), Some(back)) = names else {
                        continue;
                    };
                    let (out, _) = self.lane(a, context).credits(there);
                    let (_, owed) = self.lane(b, context).credits(back);
                    if out != owed {
                        return Err(format!(
                            "rank {a} has taken {out} of its credit with rank {b} in context {context}, which owes {owed}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Memory of operations that are over stayed as it was.
    pub(super) fn nothing_late(&self) -> Check {
        for (r, receive) in self.receives.iter().enumerate() {
            if !self.alive[receive.rank as usize] || self.lenient {
                continue;
            }
            if let Some(memory) = &receive.memory
                && !memory.is_untouched()
            {
                let what = self.describe_receive(r);
                return Err(format!("{what} was written after its end"));
            }
        }
        Ok(())
    }

    fn could_be(&self, r: &Receive, got: Outcome, m: &Message) -> bool {
        m.context == r.context
            && m.to == r.rank
            && m.from == self.peers(r.context, r.rank)[got.source as usize]
            && (m.tag, m.bytes) == (got.tag, got.bytes)
            && m.state != Sending::Planned
    }

    /// Finds out which message each receive got. Those that look alike are
    /// given in posting order; messages are unsure (true) where one that looks
    /// alike was cancelled or its sender died.
    fn identify(&mut self) -> Check<Vec<bool>> {
        let mut taken = vec![false; self.messages.len()];
        let mut unsure = vec![false; self.messages.len()];
        for r in 0..self.receives.len() {
            let Some(m) = self.receives[r].message else {
                continue;
            };
            if std::mem::replace(&mut taken[m], true) {
                let what = self.describe_message(m);
                return Err(format!("{what} was received twice"));
            }
        }
        for (r, receive) in self.receives.iter().enumerate() {
            if receive.state == Receiving::Unknown {
                // It may have taken any of these.
                for (m, msg) in self.messages.iter().enumerate() {
                    unsure[m] |= (msg.context, msg.to) == (receive.context, receive.rank)
                        && self.accepts(r, m);
                }
            }
        }
        for r in 0..self.receives.len() {
            let receive = &self.receives[r];
            let Some(got) = receive.got else { continue };
            if receive.message.is_some() || !self.alive[receive.rank as usize] {
                continue;
            }
            let alike: Vec<usize> = (0..self.messages.len())
                .filter(|m| !taken[*m] && self.could_be(receive, got, &self.messages[*m]))
                .collect();
            let doubtful = alike.iter().any(|m| {
                let state = self.messages[*m].state;
                let dead = !self.alive[self.messages[*m].from as usize];
                unsure[*m] || state == Sending::Withdrawn || dead
            });
            if doubtful {
                alike.iter().for_each(|m| unsure[*m] = true);
                continue;
            }
            let Some(&m) = alike.first() else {
                let what = self.describe_receive(r);
                return Err(format!("{what} got a message that nobody sent"));
            };
            taken[m] = true;
            self.receives[r].message = Some(m);
        }
        Ok(unsure)
    }

    fn exactly_once(&self, unsure: &[bool]) -> Check {
        let mut received = vec![false; self.messages.len()];
        for receive in &self.receives {
            if let Some(m) = receive.message {
                received[m] = true;
            }
        }
        let withdrawn = self
            .messages
            .iter()
            .filter(|m| m.state == Sending::Withdrawn)
            .count();
        for (m, msg) in self.messages.iter().enumerate() {
            if unsure[m] || !self.alive[msg.to as usize] {
                continue;
            }
            if !self.alive[msg.from as usize] {
                let there = self.complete.contains(&(msg.context, msg.to, msg.from));
                if there && msg.state == Sending::Sent && !received[m] {
                    let what = self.describe_message(m);
                    return Err(format!("{what} was lost, though sent before a death"));
                }
                continue;
            }
            let sent = match msg.state {
                Sending::Sent | Sending::Detached => true,
                // One that a shortened run leaves out.
                Sending::Withdrawn | Sending::Planned => false,
                _ => {
                    let what = self.describe_message(m);
                    return Err(format!("{what} has no end"));
                }
            };
            if sent != received[m] {
                let what = self.describe_message(m);
                return Err(format!(
                    "{what} was {}",
                    if sent { "lost" } else { "received" }
                ));
            }
        }
        let cut = |r: &&Receive| r.state == Receiving::Withdrawn;
        if self.receives.iter().filter(cut).count() > withdrawn && self.alive.iter().all(|a| *a) {
            return Err(format!(
                "more receives than the {withdrawn} cancelled sends were cancelled"
            ));
        }
        Ok(())
    }

    /// Whether a receive takes messages like this one, of its own context.
    fn accepts(&self, r: usize, m: usize) -> bool {
        let Envelope { source, tag } = self.envelope(m);
        self.receives[r].pattern.accepts(Envelope { source, tag })
    }

    pub(super) fn in_order(&self) -> Check {
        // Receives of a lane, in posting order.
        let mut lanes = vec![Vec::new(); self.lanes()];
        for (r, receive) in self.receives.iter().enumerate() {
            lanes[receive.rank as usize * self.contexts() + receive.context].push(r);
        }
        for lane in lanes {
            for (at, &s) in lane.iter().enumerate() {
                let Some(m) = self.receives[s].message else {
                    continue;
                };
                for &r in &lane[..at] {
                    self.pair(r, s, m)?;
                }
            }
        }
        Ok(())
    }

    /// Receive `r` was posted before `s`, which got `m`.
    fn pair(&self, r: usize, s: usize, m: usize) -> Check {
        if !self.accepts(r, m) {
            return Ok(());
        }
        let (first, second) = (&self.receives[r], &self.receives[s]);
        let wrong = match (first.state, first.message) {
            (_, Some(got)) => {
                // The same sender posted `m` first, or `got` was sent after
                // the later receive had its message.
                let same = self.messages[got].from == self.messages[m].from;
                same && self.before(m, got) || self.messages[got].posted > second.matched
            }
            (Receiving::Left, None) => true,
            (Receiving::Revoked, None) => first.matched > second.matched,
            _ => false,
        };
        if wrong {
            let (r, s, m) = (
                self.describe_receive(r),
                self.describe_receive(s),
                self.describe_message(m),
            );
            return Err(format!("overtaken: {r} did not get {m}, but {s} did"));
        }
        Ok(())
    }

    /// Whether a message was posted before another of the same sender.
    fn before(&self, a: usize, b: usize) -> bool {
        self.messages[a].posted < self.messages[b].posted
    }

    fn synchronous(&self) -> Check {
        for (r, receive) in self.receives.iter().enumerate() {
            let Some(m) = receive.message else { continue };
            let msg = &self.messages[m];
            if msg.mode == Mode::Synchronous
                && msg.state == Sending::Sent
                && msg.ended < receive.posted
            {
                let (r, m) = (self.describe_receive(r), self.describe_message(m));
                return Err(format!("{m} ended before {r} was posted"));
            }
        }
        Ok(())
    }
}
