//! Sends: posting, ends, revoking.

use super::case::How;
use super::memory::Memory;
use super::request::{Held, Key};
use super::world::{Check, Sending, World};
use osier::internals::attached;
use osier_engine::error::{Error, ErrorKind};
use osier_engine::progress::lane::{Mode, Outcome, Posted};

impl World {
    /// Memory with a message that is about to be sent.
    pub fn filled(&mut self, m: usize) -> Memory {
        let message = self.contents(m);
        let step = self.step;
        let msg = &mut self.messages[m];
        let mut memory = Memory::new(msg.layout, msg.bytes);
        memory.fill(&message);
        msg.posted = step;
        msg.state = Sending::Pending;
        self.report.sent += 1;
        self.report.across += u64::from(self.is_inter(self.messages[m].context));
        self.trace_send("send", m);
        memory
    }

    /// Context, sender, receiver, tag and mode of a message.
    pub fn route(&self, m: usize) -> (usize, u32, u32, u32, Mode) {
        let m = &self.messages[m];
        (m.context, m.from, m.to, m.tag, m.mode)
    }

    pub fn send(&mut self, m: usize) -> Check<bool> {
        match self.messages[m].how {
            How::Lane => self.send_by_lane(m)?,
            How::Request | How::Exchange => self.send_by_request(m, false)?,
            How::Ready => self.send_by_request(m, true)?,
            How::Buffered => self.send_buffered(m)?,
            How::Persistent(group) => return self.start_send(m, group),
        }
        Ok(true)
    }

    fn send_by_lane(&mut self, m: usize) -> Check {
        let mut memory = self.filled(m);
        let view = memory.raw();
        self.messages[m].memory = Some(memory);
        let (context, from, to, tag, mode) = self.route(m);
        let peer = self.peer(context, from, to);
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

    /// Gives a communicator a buffer.
    pub fn attach(&mut self, rank: u32, context: usize, bytes: Option<usize>) -> Check {
        let comm = &self.seat(rank).comms[context];
        let there = attached(comm).live().is_some();
        let attached = match bytes {
            Some(bytes) => comm.attach_buffer(vec![0; bytes]),
            None => comm.attach_automatic(),
        };
        if attached.is_ok() == there {
            return Err(format!(
                "a buffer is there: {there}; attaching gives {attached:?}"
            ));
        }
        if !there {
            self.buffers.insert((rank, context), bytes);
        }
        Ok(())
    }

    /// Waits in the set until a communicator's buffer is empty.
    pub fn flush(&mut self, id: usize, rank: u32, context: usize) -> Check {
        let request = self.seat(rank).comms[context].iflush_buffer();
        let held = Held::Flush(request);
        self.seat_mut(rank).add(Key::Flush(id), context, held)
    }

    fn send_buffered(&mut self, m: usize) -> Check {
        self.messages[m].mode = Mode::Standard;
        let mut memory = self.filled(m);
        let (context, from, to, tag, _) = self.route(m);
        let peer = self.peer(context, from, to) as usize;
        let comm = &self.seat(from).comms[context];
        let live = attached(comm).live();
        let result = comm.bsend(&memory, peer, tag);
        // The memory is the program's again, whatever comes.
        memory.wipe();
        self.note_deaths();
        if !self.alive[from as usize] {
            return Ok(());
        }
        let capacity = self.buffers.get(&(from, context)).copied();
        match result {
            Ok(()) => {
                self.report.buffered += 1;
                self.messages[m].ended = self.step;
                self.messages[m].state = Sending::Detached;
                if capacity.is_none() {
                    return Err("a buffered send without a buffer".into());
                }
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Buffer => {
                let bytes = self.messages[m].bytes;
                let room = match capacity {
                    None => false,
                    Some(None) => true,
                    Some(Some(capacity)) => bytes <= capacity && live == Some(0),
                };
                self.report.full += 1;
                // As if it had never been asked for.
                self.messages[m].state = Sending::Planned;
                self.trace_send("no room for", m);
                if room {
                    return Err(format!("a buffered send of {bytes} bytes has room: {e:?}"));
                }
                Ok(())
            }
            Err(e) => self.sent(m, Err(e)),
        }
    }

    pub fn sent(&mut self, m: usize, result: Result<Outcome, Error>) -> Check {
        let (context, from, to, ..) = self.route(m);
        let peer = self.peer(context, from, to);
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
                (Sending::Withdrawn, "cancelled")
            }
            Err(_) => (Sending::Lost, "lost send"),
        };
        msg.state = state;
        let (to, tag, bytes) = (msg.to, msg.tag, msg.bytes);
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
                if self.is_end_of(to, &e) && named {
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
        let result = self.lane(from, context).take(handle);
        if let Some(result) = result {
            return self.sent(m, result).map(|()| true);
        }
        if !revoke && self.messages[m].state != Sending::Revoking {
            return Ok(false);
        }
        let mut lane = self.lane(from, context);
        let delivered = lane.awaits_ack(handle);
        let over = lane.revoke(handle);
        drop(lane);
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
        let mut lane = self.lane(from, context);
        let over = lane.is_done(handle);
        lane.set_owner(handle, Box::new(memory.map(|m| m.bytes)));
        lane.detach(handle);
        drop(lane);
        self.messages[m].ended = self.step;
        self.messages[m].state = if over {
            Sending::Sent
        } else {
            Sending::Detached
        };
        self.report.detached += 1;
    }
}
