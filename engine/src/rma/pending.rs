//! An access that is under way behind the call that has begun it: messages, or operations of the
//! transport. Its bytes are its own.
//!
//! # Invariants
//! 1. Bytes that an access of the lane reads or writes are there until its ticket was taken: they
//!    are never given back while one is under way.

use super::MOST_UNDER_WAY;
use super::pieces::Pieces;
use crate::error::{Error, Result};
use crate::progress::access::{Begun, Ticket};
use crate::progress::lane::Lane;
use osier_transports::RegionKey;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::task::Waker;

/// What a call has begun.
#[derive(Debug)]
pub struct Pending {
    peer: u32,
    key: RegionKey,
    puts: bool,
    pieces: Pieces,
    under_way: VecDeque<Ticket>,
    /// What is written, or was read, packed.
    bytes: ManuallyDrop<Box<[u8]>>,
    failed: Option<Error>,
}

impl Pending {
    /// An access to pieces of a region, of which nothing is under way yet.
    pub(super) fn new(
        (peer, key): (u32, RegionKey),
        puts: bool,
        pieces: Pieces,
        bytes: Box<[u8]>,
    ) -> Self {
        Self {
            peer,
            key,
            puts,
            pieces,
            under_way: VecDeque::new(),
            bytes: ManuallyDrop::new(bytes),
            failed: None,
        }
    }

    /// Takes what has ended, and begins as much as may be under way. True: it is complete.
    pub fn advance(&mut self, lane: &mut Lane) -> bool {
        let failed = &mut self.failed;
        self.under_way
            .retain(|ticket| match lane.take_access(*ticket) {
                None => true,
                Some(end) => {
                    *failed = failed.take().or(end.err());
                    false
                }
            });
        while self.failed.is_none()
            && self.under_way.len() < MOST_UNDER_WAY
            && let Some((runs, packed)) = self.pieces.next_access()
        {
            let at = self.bytes.as_mut_ptr().wrapping_add(packed);
            let begun = match self.puts {
                // SAFETY: invariant 1: a part of the bytes.
                true => unsafe { lane.begin_put(self.peer, &self.key, runs, at) },
                // SAFETY: invariant 1: a part of the bytes, which no other access writes.
                false => unsafe { lane.begin_get(self.peer, &self.key, runs, at) },
            };
            match begun {
                Ok(Begun::Done(_)) => {}
                Ok(Begun::Under(ticket)) => self.under_way.push_back(ticket),
                Err(e) => self.failed = Some(e),
            }
        }
        self.under_way.is_empty()
    }

    /// Wakes a future when something of it ends.
    pub fn wake_at_end(&self, lane: &mut Lane, waker: &Waker) {
        for ticket in &self.under_way {
            lane.wake_at_end(*ticket, waker.clone());
        }
    }

    /// How a complete one has ended, and what was read.
    ///
    /// # Errors
    /// The peer has failed, or the transport.
    pub fn end(&mut self) -> Result<&[u8]> {
        match self.failed.take() {
            None => Ok(&self.bytes),
            Some(e) => Err(e),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.under_way.is_empty() {
            // SAFETY: invariant 1: nothing is under way; dropped once.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}
