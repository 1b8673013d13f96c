//! Progress of the blocks of rank 0, drawn by whichever thread fills them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::progress;

/// Blocks that are filled. A thread does not wait for another that draws.
#[derive(Debug)]
pub struct Progress {
    done: AtomicUsize,
    drawn: Mutex<progress::Progress>,
}

impl Progress {
    /// Draws nothing.
    pub fn silent() -> Self {
        Self::of(progress::Progress::Silent)
    }

    /// Of a number of blocks, none of which are filled.
    pub fn new(blocks: usize) -> Self {
        Self::of(progress::Progress::new("block of rank 0", blocks, true))
    }

    fn of(drawn: progress::Progress) -> Self {
        Self {
            done: AtomicUsize::new(0),
            drawn: Mutex::new(drawn),
        }
    }

    /// One more block is filled.
    pub fn advance(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Ok(mut drawn) = self.drawn.try_lock() {
            drawn.advance(done);
        }
    }

    /// All is done; the bar stays.
    pub fn finish(&self) {
        if let Ok(mut drawn) = self.drawn.lock() {
            std::mem::replace(&mut *drawn, progress::Progress::Silent).finish();
        }
    }
}
