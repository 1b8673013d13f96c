//! Cancelled and detached operations.
//!
//! # Invariants
//! 1. Memory that was borrowed is not touched once [`Lane::revoke`] has said true.
//! 2. A waker or an owner that is given up is dropped without the lane ([`super::owed`]).
//! 3. The rest of a message without a receive is discarded as it comes, so its sender
//!    completes.

use super::lane::Lane;
use super::op::{Op, Protocol};
use super::protocols::{self, device_put, host_staged, outbox};
use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use crate::exec::foreign::Foreign;
use std::any::Any;

impl Lane {
    /// Cancels a receive that no message has matched. False if one has, and for
    /// every send.
    pub fn cancel(&mut self, handle: u32) -> bool {
        let posted = self.port.ops.get(handle).is_some_and(Op::is_posted);
        if posted {
            self.detach(handle);
        }
        posted
    }

    /// No caller waits any more; the operation completes by itself.
    pub fn let_go(&mut self, handle: u32) {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return;
        };
        let mut waker = None;
        if let Some(rare) = &mut op.rare {
            waker = rare.waker.take();
            rare.notify = None;
        }
        self.port.owed.drop(waker.map(Foreign::Waker));
        match op.is_done() {
            true => drop(self.port.free(handle)),
            false => op.detached = true,
        }
    }

    /// Gives the operation what it must keep alive.
    pub fn set_owner(&mut self, handle: u32, owner: Box<dyn Any + Send>) {
        let unused = match self.port.ops.get_mut(handle) {
            Some(op) => op.rare().owner.replace(owner),
            None => Some(owner),
        };
        self.port.owed.drop(unused.map(Foreign::Value));
    }

    /// No caller waits any more: sends complete by themselves, receives that no
    /// message has matched are cancelled, others complete into memory that the
    /// operation owns.
    pub fn detach(&mut self, handle: u32) {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return;
        };
        let mut waker = None;
        if let Some(rare) = &mut op.rare {
            waker = rare.waker.take();
            rare.notify = None;
        }
        self.port.owed.drop(waker.map(Foreign::Waker));
        let lent = op.is_receive() && op.view.as_device().is_some();
        match &mut op.protocol {
            Protocol::Done { .. } => drop(self.port.free(handle)),
            Protocol::Posted(key) => {
                if let Some(key) = key.take() {
                    self.posted.outside_mut().cancel(key);
                }
                self.port.free(handle);
            }
            // Clones of a device's buffer name it still, so nothing may come there later.
            _ if lent => {
                if !self.try_revoke(handle)
                    && let Some(op) = self.port.ops.get_mut(handle)
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
        let ended = self.try_revoke(handle);
        if !ended && listens() {
            let asked = self.asked(handle);
            hear(Asked {
                operation: Operation::Revoke,
                unreachable: false,
                ..asked
            });
        }
        ended
    }

    fn try_revoke(&mut self, handle: u32) -> bool {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return true;
        };
        match &op.protocol {
            Protocol::Done { .. } => {
                self.port.free(handle);
                true
            }
            Protocol::Posted(_) => {
                self.detach(handle);
                true
            }
            Protocol::Reading => {
                if !self.get.stop_pull(&mut self.port, handle) {
                    return false; // somebody writes our memory right now
                }
                self.port.free(handle);
                true
            }
            Protocol::Stream(_) | Protocol::Device(_) | Protocol::Draining if op.is_receive() => {
                if !device_put::stop_placed(&mut self.port, handle) {
                    return false; // the sender's device may write our memory
                }
                host_staged::open_window(&mut self.port, handle);
                protocols::end_device_work(&mut self.port, handle);
                self.port.discard_rest(handle);
                self.port.free(handle);
                true
            }
            _ => outbox::revoke_send(&mut self.port, handle),
        }
    }
}
