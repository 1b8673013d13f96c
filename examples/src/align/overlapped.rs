//! The ring overlapped by hand: a sliding window of posted receives and of sends under way.
//!
//! # Invariants
//! 1. At most a window of receives is posted, and at most a window of sends is left under way.
//! 2. Rank 0 posts the next receive when one has completed, and keeps the borders for its next
//!    column. So the last rank's sends complete whatever rank 0 waits for, then those of the
//!    rank before it, and so on: nobody waits for itself.
//! 3. The other ranks post the next receive when a border is taken, so that a rank that runs
//!    ahead of them finds no memory to fill.

use std::collections::VecDeque;

use osier::requests::WaitSet;
use osier::{Communicator, Request, Result};

use super::ring::{Link, Place};

/// What a request was.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Sent,
    /// The border of this number has come.
    Received(usize),
}

/// The link of one of at least two ranks.
pub struct Posted<'a> {
    comm: &'a Communicator,
    place: Place,
    window: usize,
    transfers: WaitSet<Transfer, Request<Vec<u8>>>,
    sending: usize,
    /// Receives that were posted so far, and those of them that are not complete.
    posted: usize,
    open: usize,
    /// Borders taken so far.
    taken: usize,
    /// Borders from number `taken` on.
    arrived: VecDeque<Option<Vec<u8>>>,
}

const TAG: u32 = 0;

impl<'a> Posted<'a> {
    /// The link of a rank, with a window of at least 1; posts the first receives.
    ///
    /// # Errors
    /// Communication fails.
    pub fn new(comm: &'a Communicator, place: Place, window: usize) -> Result<Self> {
        let mut link = Self {
            comm,
            place,
            window: window.max(1),
            transfers: WaitSet::new(),
            sending: 0,
            posted: 0,
            open: 0,
            taken: 0,
            arrived: VecDeque::new(),
        };
        link.post()?;
        Ok(link)
    }

    /// Posts receives while the window has room.
    fn post(&mut self) -> Result<()> {
        while self.posted < self.place.borders() {
            let used = match self.place.rank {
                0 => self.open,
                _ => self.posted - self.taken,
            };
            if used >= self.window {
                break;
            }
            let room = self.place.room(self.posted);
            let request = self.comm.irecv(room, self.place.previous(), TAG)?;
            self.transfers
                .add(Transfer::Received(self.posted), request)?;
            self.arrived.push_back(None);
            self.posted += 1;
            self.open += 1;
        }
        Ok(())
    }

    fn ended(&mut self, transfer: Transfer, border: Vec<u8>) -> Result<()> {
        match transfer {
            Transfer::Sent => self.sending -= 1,
            Transfer::Received(number) => {
                self.arrived[number - self.taken] = Some(border);
                self.open -= 1;
                self.post()?;
            }
        }
        Ok(())
    }

    /// Waits for the end of a transfer.
    fn wait(&mut self) -> Result<()> {
        if let Some((transfer, result)) = self.transfers.wait() {
            self.ended(transfer, result?.0)?;
        }
        Ok(())
    }
}

impl Link for Posted<'_> {
    fn take(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(Some(_)) = self.arrived.front()
                && let Some(Some(border)) = self.arrived.pop_front()
            {
                self.taken += 1;
                self.post()?;
                return Ok(border);
            }
            self.wait()?;
        }
    }

    fn give(&mut self, border: Vec<u8>) -> Result<()> {
        let request = self.comm.isend(border, self.place.next(), TAG)?;
        self.transfers.add(Transfer::Sent, request)?;
        self.sending += 1;
        while let Some((transfer, result)) = self.transfers.test() {
            self.ended(transfer, result?.0)?;
        }
        while self.sending > self.window {
            self.wait()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while self.sending > 0 {
            self.wait()?;
        }
        Ok(())
    }
}
