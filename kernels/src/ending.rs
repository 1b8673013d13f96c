//! The end of an operation: what tells that the last of its work is done.
//!
//! A short kernel on a stream for messages says so itself, and is all that is queued. Behind
//! anything else an event is recorded.
//!
//! ```text
//! short   launch, which stores the number
//! else    launch or copy | event | store of the number
//! ```
//!
//! # How short
//! Blocks of a grid know nothing of each other, so what tells its end has one block. That is
//! what a launch of at most [`ROUNDS`] blocks gets. A block has about a thousand words under
//! way, or 4 KiB, and a round of them takes little more than one latency of memory: some
//! 0.8 us, so four rounds take 2 or 3 us longer than one round of four blocks. The two calls
//! that are saved, and what they have the device do behind the kernel, are expected to take as
//! long. All of this is arithmetic; nothing was measured.

use crate::copy::note_behind;
use crate::error::Result;
use crate::launch::{Grid, Last, launch_telling};
use crate::memory::Memory;
use crate::stream::{Event, Stream};
use std::sync::Arc;

/// Most blocks with work to do whose work one block does.
const ROUNDS: u64 = 4;

/// One operation on a stream, until its end is noted.
pub(crate) struct Ending<'a> {
    stream: &'a Stream,
    /// The end of the last work, if that tells it itself.
    told: Option<Event>,
}

impl Ending<'_> {
    /// Of what is queued on a stream from now on.
    pub fn new(stream: &Stream) -> Ending<'_> {
        Ending { stream, told: None }
    }

    /// Whether a launch of so many blocks tells its end.
    pub fn tells(&self, blocks: u64) -> bool {
        blocks <= ROUNDS && self.stream.completion().is_some()
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// As [`launch`](crate::launch::launch); the kernel takes a word.
    ///
    /// # Errors
    /// As [`launch`](crate::launch::launch).
    pub unsafe fn launch<A: Copy>(
        &mut self,
        name: &'static str,
        grid: Grid,
        argument: &A,
    ) -> Result<()> {
        self.told = None;
        let stream = self.stream;
        match stream.completion() {
            Some(completion) if grid.blocks == 1 || self.tells(grid.useful) => {
                let launch = |last| {
                    // SAFETY: the caller's contract; words stay as long as the process.
                    unsafe { launch_telling(stream, name, Grid::ONE, argument, last) }
                };
                let number = completion.told_by(launch)?;
                self.told = Some(Event::told(stream, number));
                Ok(())
            }
            // SAFETY: the caller's contract.
            _ => unsafe { launch_telling(stream, name, grid, argument, Last::default()) },
        }
    }

    /// Queues something else.
    pub fn queue(&mut self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        self.told = None;
        work(self.stream)
    }

    /// The event behind which all of it is done, noted with the memory it touches.
    pub fn note<'m>(self, touched: impl IntoIterator<Item = &'m Arc<Memory>>) -> Result<Event> {
        let event = match self.told {
            Some(event) => event,
            None => self.stream.record()?,
        };
        note_behind(self.stream, event, touched)
    }
}
