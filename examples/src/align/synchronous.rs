//! The ring with blocking calls: receive a border, fill a block, send its border.
//!
//! # Invariants
//! 1. After rank 0 has sent border `s` of its blocks, it has received all borders up to
//!    `s - (ranks - 1)` of the last rank. A send may therefore wait for its receive: around
//!    the ring nobody waits for itself.

use std::collections::VecDeque;

use osier::{Communicator, Result};

use super::ring::{Link, Place};

/// The link of one of at least two ranks.
pub struct Blocking<'a> {
    comm: &'a Communicator,
    place: Place,
    sent: usize,
    received: usize,
    /// Of rank 0: borders for its next column.
    early: VecDeque<Vec<u8>>,
}

const TAG: u32 = 0;

impl<'a> Blocking<'a> {
    /// The link of a rank.
    pub fn new(comm: &'a Communicator, place: Place) -> Self {
        Self {
            comm,
            place,
            sent: 0,
            received: 0,
            early: VecDeque::new(),
        }
    }

    /// Whether the border that comes next has to be received with the next send
    /// (invariant 1). The other ranks receive when they need it.
    fn is_due(&self) -> bool {
        self.place.rank == 0
            && self.received < self.place.borders()
            && self.received + self.place.ranks - 1 <= self.sent
    }
}

impl Link for Blocking<'_> {
    fn take(&mut self) -> Result<Vec<u8>> {
        if let Some(border) = self.early.pop_front() {
            return Ok(border);
        }
        let mut border = self.place.room(self.received);
        self.comm.recv(&mut border, self.place.previous(), TAG)?;
        self.received += 1;
        Ok(border)
    }

    fn give(&mut self, border: Vec<u8>) -> Result<()> {
        let next = self.place.next();
        if self.is_due() {
            let (previous, mut early) = (self.place.previous(), self.place.room(self.received));
            self.comm
                .sendrecv(&border, next, TAG, &mut early, previous, TAG)?;
            self.early.push_back(early);
            self.received += 1;
        } else {
            self.comm.send(&border, next, TAG)?;
        }
        self.sent += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
