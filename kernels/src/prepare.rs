//! First uses ahead of time.
//!
//! A driver loads a kernel when it is first asked for, and may wait for all work of the
//! device then; so it may when it makes memory. While the host holds a stream that never
//! ends: what opens the stream is a message, which waits for the kernel. So whoever is about
//! to hold streams has all of it done first.
//!
//! # Sources
//! CUDA C++ Programming Guide 12.2, lazy loading: "loading a kernel might require context
//! synchronization", and concurrent execution is not to be relied on before all are loaded.

use crate::cache::{STAGE_BYTES, STAGES};
use crate::device::Context;
use crate::error::Result;
use crate::memory::Memory;
use crate::ptx;
use crate::stream::Stream;

/// Streams that are made before any is held: transfers that may need one at a time. Of more,
/// each makes its own. On an H200 (driver 580) a rank stood in `cuStreamCreateWithPriority`
/// while another rank of its process held a stream.
const STREAMS: usize = 96;

/// Events that are made ahead.
const EVENTS: usize = 64;

impl Context {
    /// Loads the kernels of messages and reductions, and makes the events, words and pinned
    /// memory that this crate uses for them, so that no later call has to wait for work of
    /// the device; then does `also`, what the caller wants to be ahead of that. The first
    /// call takes as long as that takes. While the host holds a stream already, or where
    /// the driver refuses, nothing is done, and the answer is `false`: what is missing is
    /// made when it is used. No stream is held while this is under way.
    pub fn prepare(&self, also: impl FnOnce()) -> bool {
        let once = self.preparation();
        let mut done = once.lock().unwrap_or_else(|e| e.into_inner());
        if self.semaphores().any_shut() {
            return false;
        }
        if !*done {
            *done = self.enter().is_ok() && self.make_ahead().is_ok();
        }
        if *done {
            also();
        }
        *done
    }

    fn make_ahead(&self) -> Result<()> {
        let used = |stem: &&str| match *stem {
            "baseline" => false,
            "exchange_multicast" => self.has_multicast(),
            _ => true,
        };
        for stem in ptx::modules().filter(used) {
            self.kernels().load_all(self, stem)?;
        }
        let events = (0..EVENTS).map(|_| self.take_event());
        for event in events.collect::<Result<Vec<_>>>()? {
            self.give_event(event);
        }
        let streams = (0..STREAMS).map(|_| Stream::uncaptured(self));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        for stream in streams {
            self.give_stream(stream);
        }
        self.semaphores().stock(self)?;
        // They are kept when they go.
        let stages = (0..STAGES).map(|_| Memory::pinned(self, STAGE_BYTES));
        stages.collect::<Result<Vec<_>>>().map(drop)
    }
}
