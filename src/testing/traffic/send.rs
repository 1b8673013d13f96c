//! Sends: posting, ends, revoking.

use super::memory::Memory;
use super::world::{Check, Sending, World};
use crate::error::{Error, ErrorKind};
use crate::progress::lane::{Outcome, Posted};

impl World {
    pub fn send(&mut self, m: usize) -> Check {
        let message = self.contents(m);
        let step = self.step;
        let msg = &mut self.messages[m];
        let mut memory = Memory::new(msg.layout, msg.bytes);
        memory.fill(&message);
        let view = memory.view();
        msg.memory = Some(memory);
        msg.posted = step;
        msg.state = Sending::Pending;
        let (context, from, to, tag, mode) = (msg.context, msg.from, msg.to, msg.tag, msg.mode);
        self.report.sent += 1;
        self.trace_send("send", m);
        let peer = self.peer(context, to);
        let posted = self.lane(from, context).isend(view, peer, tag, mode);
        self.note_deaths();
        if !self.alive[from as usize] {
            return Ok(());
        }
        match posted {
            Ok(Posted::Pending(handle)) => {
                self.messages[m].handle = handle;
                self.sends.push(m);
                Ok(())
            }
            Ok(Posted::Done(outcome)) => self.sent(m, Ok(outcome)),
            Err(e) => self.sent(m, Err(e)),
        }
    }

    fn sent(&mut self, m: usize, result: Result<Outcome, Error>) -> Check {
        let peer = self.peer(self.messages[m].context, self.messages[m].to);
        let step = self.step;
        let msg = &mut self.messages[m];
        let revoking = msg.state == Sending::Revoking;
        msg.ended = step;
        if let Some(memory) = &mut msg.memory {
            memory.wipe();
        }
        let (state, what) = match &result {
            Ok(_) => (Sending::Sent, "sent"),
            Err(e) if revoking && e.kind() == ErrorKind::Cancelled => {
                self.report.withdrawn += 1;
                (Sending::Withdrawn, "withdrawn")
            }
            Err(_) => (Sending::Lost, "lost send"),
        };
        msg.state = state;
        let (dead, tag, bytes) = (!self.alive[msg.to as usize], msg.tag, msg.bytes);
        self.trace_send(what, m);
        if self.lenient {
            return Ok(());
        }
        let outcome = Outcome {
            source: peer,
            tag,
            bytes,
        };
        match (state, result) {
            (Sending::Lost, Err(e)) => {
                self.report.lost += 1;
                let named = e.to_string().contains(&format!("rank {peer} "));
                if e.kind() == ErrorKind::RankDead && dead && named {
                    return Ok(());
                }
                let what = self.describe_message(m);
                Err(format!("{what} ended with an error: {e:?}"))
            }
            (_, Ok(was)) if was != outcome => {
                let what = self.describe_message(m);
                Err(format!("{what} was sent as {was:?}"))
            }
            _ => Ok(()),
        }
    }

    pub fn revoke_send(&mut self, m: usize) -> Check {
        let Some(at) = self.sends.iter().position(|s| *s == m) else {
            return Ok(());
        };
        if self.messages[m].state == Sending::Pending {
            self.trace_send("revoke send", m);
            if self.end_send(m, true)? {
                self.sends.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Takes a send's result, or goes on to revoke it. True if it is over.
    pub fn end_send(&mut self, m: usize, revoke: bool) -> Check<bool> {
        let (from, context, handle) = {
            let m = &self.messages[m];
            (m.from, m.context, m.handle)
        };
        if let Some(result) = self.lane(from, context).take(handle) {
            return self.sent(m, result).map(|()| true);
        }
        if !revoke && self.messages[m].state != Sending::Revoking {
            return Ok(false);
        }
        let lane = self.lane(from, context);
        let delivered = lane.awaits_ack(handle);
        let over = lane.revoke(handle);
        let msg = &mut self.messages[m];
        msg.state = match (over, delivered) {
            (false, _) => Sending::Revoking,
            (true, true) => Sending::Detached,
            (true, false) => {
                self.report.withdrawn += 1;
                Sending::Withdrawn
            }
        };
        if over && let Some(memory) = &mut msg.memory {
            memory.wipe();
        }
        Ok(over)
    }

    pub fn detach_send(&mut self, m: usize) {
        let Some(at) = self.sends.iter().position(|s| *s == m) else {
            return;
        };
        if self.messages[m].state != Sending::Pending {
            return;
        }
        self.sends.swap_remove(at);
        self.trace_send("detach", m);
        let (from, context, handle) = {
            let m = &self.messages[m];
            (m.from, m.context, m.handle)
        };
        let memory = self.messages[m].memory.take();
        let lane = self.lane(from, context);
        let over = lane.is_done(handle);
        lane.set_owner(handle, Box::new(memory.map(|m| m.bytes)));
        lane.detach(handle);
        self.messages[m].ended = self.step;
        self.messages[m].state = if over {
            Sending::Sent
        } else {
            Sending::Detached
        };
        self.report.detached += 1;
    }
}
