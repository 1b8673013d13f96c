//! Operations that nobody waits for any more: given up before their end, or left to come
//! to it alone.
//!
//! # Invariants
//! 1. Memory that was borrowed is not touched once [`Lane::revoke`] has said true.
//! 2. A waker or an owner that is given up is dropped without the lane ([`super::owed`]).
//! 3. What is still to come of a message that nobody wants is discarded as it comes, so
//!    its sender goes on.

use super::lane::{Direction, Lane, State, Target};
use super::owed::Foreign;
use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use std::any::Any;

impl Lane {
    /// Takes back a receive that no message has met. False if it goes on:
    /// sends always do.
    pub fn cancel(&mut self, handle: u32) -> bool {
        let posted = self
            .ops
            .get(handle)
            .is_some_and(|op| op.direction == Direction::Receive && op.state == State::Posted);
        if posted {
            self.detach(handle);
        }
        posted
    }

    /// Nobody waits any more, and the operation goes on to its own end.
    pub fn let_go(&mut self, handle: u32) {
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        let mut waker = None;
        if let Some(rare) = &mut op.rare {
            waker = rare.waker.take();
            rare.notify = None;
        }
        self.owed.drop(waker.map(Foreign::Waker));
        match op.state {
            State::Done => drop(self.free(handle)),
            _ => op.detached = true,
        }
    }

    /// Gives the operation what it must keep alive.
    pub fn set_owner(&mut self, handle: u32, owner: Box<dyn Any + Send>) {
        let unused = match self.ops.get_mut(handle) {
            Some(op) => op.rare().owner.replace(owner),
            None => Some(owner),
        };
        self.owed.drop(unused.map(Foreign::Value));
    }

    /// Nobody waits any more: sends go on by themselves, receives that no
    /// message has met are cancelled, others go on into memory that the
    /// operation owns.
    pub fn detach(&mut self, handle: u32) {
        let Some(op) = self.ops.get_mut(handle) else {
            return;
        };
        let mut waker = None;
        if let Some(rare) = &mut op.rare {
            waker = rare.waker.take();
            rare.notify = None;
        }
        self.owed.drop(waker.map(Foreign::Waker));
        match (op.direction, op.state) {
            (_, State::Done) => drop(self.free(handle)),
            (Direction::Receive, State::Posted) => {
                if let Some(key) = op.posted.take() {
                    self.posted.cancel(key);
                }
                self.free(handle);
            }
            // Clones of a device's buffer name it still, so nothing may come there later.
            (Direction::Receive, _) if op.view.as_device().is_some() => {
                if !self.try_revoke(handle)
                    && let Some(op) = self.ops.get_mut(handle)
                {
                    op.detached = true;
                }
            }
            _ => op.detached = true,
        }
    }

    /// Makes an operation stop using its memory. True once it has; ask again
    /// after progress otherwise.
    pub fn revoke(&mut self, handle: u32) -> bool {
        let over = self.try_revoke(handle);
        if !over && listens() {
            let asked = self.asked(handle);
            hear(Asked {
                operation: Operation::Revoke,
                unreachable: false,
                ..asked
            });
        }
        over
    }

    fn try_revoke(&mut self, handle: u32) -> bool {
        let Some(op) = self.ops.get_mut(handle) else {
            return true;
        };
        let (state, direction) = (op.state, op.direction);
        match (direction, state) {
            (_, State::Done) => {
                self.free(handle);
                true
            }
            (Direction::Receive, State::Posted) => {
                self.detach(handle);
                true
            }
            (Direction::Receive, State::Pulling) => {
                if !self.stop_pull(handle) {
                    return false; // somebody writes our memory right now
                }
                self.free(handle);
                true
            }
            (Direction::Receive, _) => {
                if !self.stop_placed(handle) {
                    return false; // the sender's device may write our memory
                }
                self.open_window(handle);
                self.end_direct(handle);
                self.discard_rest(handle);
                self.free(handle);
                true
            }
            (Direction::Send, _) => self.revoke_send(handle, state),
        }
    }

    /// Nobody wants what is still to come of a message.
    pub(super) fn discard_rest(&mut self, handle: u32) {
        let Some(op) = self.ops.get(handle) else {
            return;
        };
        let left = op.total.saturating_sub(op.moved);
        if left == 0 {
            return; // whoever brings the last bytes forgets it
        }
        let incoming = &mut self.peers[op.peer as usize].incoming;
        for (_, target) in incoming {
            if *target == Target::Op(handle) {
                *target = Target::Discard(left);
            }
        }
    }
}
