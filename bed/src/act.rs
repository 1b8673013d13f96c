//! One act on the ranks: post, progress, clock, arrival, revoke, death, corruption.
//!
//! A run is a list of acts. Random traffic and the exploration of schedules
//! only differ in who makes the list; a list that broke a rule can be played
//! again, cut down and printed. An act that makes no sense where it stands
//! (a revoke of what has ended, a call of a dead rank) does nothing, so that
//! any part of a list is a list.

use super::memory::{Memory, round};
use super::receive::ToReceive;
use super::seat::channel;
use super::world::{Check, LARGEST, Sending, World};
use osier_engine::matching::{Pattern, TagPattern};
use osier_transports::sim::Held;
use serde::{Deserialize, Serialize};

/// What a receive or probe accepts; `None`: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Want {
    /// Peer in the context.
    pub source: Option<u32>,
    pub tag: Option<u32>,
}

impl Want {
    pub const ANY: Want = Want {
        source: None,
        tag: None,
    };

    pub fn pattern(self) -> Pattern {
        Pattern {
            source: self.source,
            tag: self.tag.map_or(TagPattern::Any, TagPattern::Exact),
        }
    }
}

/// How a receive is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum By {
    /// As an operation of the lane, which the bed knows by its handle.
    #[default]
    Lane,
    /// By a request, which the rank's wait set holds.
    Request,
    /// By a start of its persistent request of this number.
    Persistent(usize),
}

/// One step of a run. Messages are named by their number, receives by an
/// arbitrary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Act {
    Send(usize),
    Receive {
        id: usize,
        rank: u32,
        context: usize,
        want: Want,
        layout: Option<usize>,
        room: usize,
        /// Take a message that is there without posting, if that can be.
        direct: bool,
        #[serde(default)]
        by: By,
    },
    Progress {
        rank: u32,
        context: usize,
    },
    Advance(u64),
    NextEvent,
    Harvest,
    Probe {
        id: usize,
        rank: u32,
        context: usize,
        want: Want,
        /// Out of the queue: a matched probe.
        takes: bool,
    },
    /// `room`: `None` drops the message.
    ReceiveMatched {
        id: usize,
        room: Option<usize>,
    },
    RevokeSend(usize),
    RevokeReceive(usize),
    DetachSend(usize),
    DetachReceive(usize),
    Notice {
        to: u32,
        dead: u32,
    },
    Corrupt {
        from: u32,
        to: u32,
    },
    /// The rank dies of its `calls`-th call of an endpoint from here on.
    DieAt {
        rank: u32,
        calls: u64,
    },
    /// The rank finalizes, if it has nothing to send any more and all that it sent has come.
    Finalize {
        rank: u32,
    },
    /// A rank goes on without those that it knows to have failed.
    Acknowledge {
        rank: u32,
        context: usize,
    },
    /// Every lane makes progress, from this one on.
    Round(usize),
    /// The first held message of a link arrives.
    Arrive {
        from: u32,
        to: u32,
        context: usize,
    },
    /// A held one-sided operation ends.
    Complete {
        rank: u32,
        context: usize,
        number: u64,
    },
    /// Sends a message, and receives another into its memory.
    Exchange {
        m: usize,
        id: usize,
        want: Want,
    },
    /// Cancels a receive.
    Cancel(usize),
    /// Gives a communicator a buffer; `None`: without a limit.
    Attach {
        rank: u32,
        context: usize,
        bytes: Option<usize>,
    },
    /// Waits in the set until the buffer is empty.
    Flush {
        id: usize,
        rank: u32,
        context: usize,
    },
    /// A generalised request begins, and ends.
    Begin {
        id: usize,
        rank: u32,
    },
    Finish {
        id: usize,
        drops: bool,
    },
    /// The ends of a partitioned transfer start.
    PartSend(usize),
    PartReceive(usize),
    PartReady {
        q: usize,
        at: usize,
    },
    /// Asks for a partition at the receiver.
    PartLook {
        q: usize,
        at: usize,
    },
}

impl Act {
    /// The rank that acts, or to which something happens.
    pub fn rank(self, messages: &[super::case::Planned]) -> Option<u32> {
        match self {
            Act::Send(m) | Act::RevokeSend(m) | Act::DetachSend(m) | Act::Exchange { m, .. } => {
                messages.get(m).map(|m| m.from)
            }
            Act::Receive { rank, .. }
            | Act::Progress { rank, .. }
            | Act::Probe { rank, .. }
            | Act::DieAt { rank, .. }
            | Act::Finalize { rank }
            | Act::Acknowledge { rank, .. }
            | Act::Attach { rank, .. }
            | Act::Flush { rank, .. }
            | Act::Begin { rank, .. }
            | Act::Complete { rank, .. } => Some(rank),
            Act::Notice { to, .. } | Act::Arrive { to, .. } => Some(to),
            _ => None,
        }
    }
}

impl World {
    /// Does one act; says whether anything moved, as far as the act can tell.
    pub fn perform(&mut self, act: Act) -> Check<bool> {
        self.begin(act);
        let moved = self.act(act)?;
        self.note_deaths();
        if self.harvests {
            self.harvest()?;
        }
        self.end()?;
        Ok(moved)
    }

    /// Notes an act.
    pub fn begin(&mut self, act: Act) {
        self.step += 1;
        if let Some(acts) = &mut self.acts {
            acts.push(act);
        }
    }

    /// Looks at what an act has done.
    pub fn end(&mut self) -> Check {
        if let Some(timeline) = &mut self.timeline {
            timeline.step(self.step, self.net.take_log());
        }
        if self.each_step {
            self.invariants()?;
        }
        Ok(())
    }

    fn lives(&self, rank: u32) -> bool {
        self.alive.get(rank as usize) == Some(&true)
    }

    fn act(&mut self, act: Act) -> Check<bool> {
        match act {
            Act::Send(m) => {
                let planned = |m: &super::world::Message| m.state == Sending::Planned;
                if self.messages.get(m).is_some_and(planned) && self.lives(self.messages[m].from) {
                    self.send(m)?;
                }
            }
            Act::Receive {
                id,
                rank,
                context,
                want,
                layout,
                room,
                direct,
                by,
            } => {
                if !self.lives(rank) {
                    return Ok(false);
                }
                let pattern = want.pattern();
                let to = ToReceive {
                    id,
                    rank,
                    context,
                    pattern,
                };
                if direct && self.receive_direct(&to)? {
                    return Ok(true);
                }
                let memory = Memory::new(layout, round(layout, room));
                match by {
                    By::Lane => self.receive(&to, memory, None)?,
                    By::Request => self.receive_by_request(&to, memory)?,
                    By::Persistent(group) => self.start_receive(&to, memory, group)?,
                }
            }
            Act::Progress { rank, context } => {
                return Ok(self.lives(rank) && self.lane(rank, context).progress());
            }
            Act::Advance(ns) => self.net.advance(ns),
            Act::NextEvent => return Ok(self.net.advance_to_next_event()),
            Act::Harvest => return Ok(self.harvest()? > 0),
            Act::Probe {
                id,
                rank,
                context,
                want,
                takes,
            } => {
                if self.lives(rank) {
                    let pattern = want.pattern();
                    let to = ToReceive {
                        id,
                        rank,
                        context,
                        pattern,
                    };
                    self.probe(&to, takes)?;
                }
            }
            Act::ReceiveMatched { id, room } => {
                let receives = &self.receives;
                let of = |(r, _): &(usize, _)| receives[*r].id == id;
                if let Some(at) = self.matched.iter().position(of) {
                    self.receive_matched(at, room)?;
                }
            }
            Act::RevokeSend(m) => self.revoke_send(m)?,
            Act::RevokeReceive(id) => self.revoke_receive(id)?,
            Act::DetachSend(m) => self.detach_send(m),
            Act::DetachReceive(id) => self.detach_receive(id),
            Act::Notice { to, dead } => {
                if let Some(at) = self.notices.iter().position(|n| *n == (to, dead)) {
                    self.notice(at);
                }
            }
            Act::Corrupt { from, to } => self.net.corrupt_next(from, to),
            Act::DieAt { rank, calls } => {
                let step = self.net.steps(rank) + calls;
                self.net.kill_at_step(rank, step);
            }
            Act::Finalize { rank } => self.finalize(rank),
            Act::Acknowledge { rank, context } => self.acknowledge(rank, context),
            Act::Round(start) => {
                return Ok(self.round(start % self.lanes()) || self.harvest()? > 0);
            }
            Act::Arrive { from, to, context } => {
                let channel = channel(context);
                let held = Held::Message { from, to, channel };
                return Ok(self.net.let_through(held));
            }
            Act::Complete {
                rank,
                context,
                number,
            } => {
                let channel = channel(context);
                return Ok(self.net.let_through(Held::Operation {
                    rank,
                    channel,
                    number,
                }));
            }
            Act::Exchange { m, id, want } => {
                let planned = |m: &super::world::Message| m.state == Sending::Planned;
                if self.messages.get(m).is_some_and(planned) && self.lives(self.messages[m].from) {
                    self.exchange(m, id, want.pattern())?;
                }
            }
            Act::Cancel(id) => self.cancel(id)?,
            Act::Attach {
                rank,
                context,
                bytes,
            } => {
                if self.lives(rank) {
                    self.attach(rank, context, bytes)?;
                }
            }
            Act::Flush { id, rank, context } => {
                if self.lives(rank) {
                    self.flush(id, rank, context)?;
                }
            }
            Act::Begin { id, rank } => {
                if self.lives(rank) {
                    self.begin_general(id, rank)?;
                }
            }
            Act::Finish { id, drops } => self.finish_general(id, drops),
            Act::PartSend(q) => self.part_send(q)?,
            Act::PartReceive(q) => self.part_receive(q)?,
            Act::PartReady { q, at } => self.part_ready(q, at)?,
            Act::PartLook { q, at } => self.part_look(q, at)?,
        }
        Ok(true)
    }

    /// What becomes of a message that a matched probe took.
    pub fn draw_matched(&mut self, at: usize) -> Act {
        let (r, matched) = &self.matched[at];
        let (id, bytes) = (self.receives[*r].id, matched.outcome.bytes.min(LARGEST));
        let room = if self.rng.one_in(6) {
            None
        } else if self.rng.one_in(8) {
            Some(self.rng.below(bytes + 1))
        } else {
            Some(bytes)
        };
        Act::ReceiveMatched { id, room }
    }
}
