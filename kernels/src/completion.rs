//! Completion of a stream's work, seen by the host without the driver.
//!
//! A message's progress asks again and again whether its work is done. A query of the driver
//! takes its locks and some hundred nanoseconds; a word in pinned memory takes a load. Who
//! raises the word:
//!
//! ```text
//! last store   the kernel itself: the launch is all that is queued
//! event        an event is recorded, and the stream stores the number behind it
//! ```
//!
//! A number that a kernel has stored says that the work before it has succeeded: failed work
//! runs no kernel behind it. Behind an event, the event is asked once, so that an error is
//! never read as completion.
//!
//! # Invariants
//! 1. Numbers are queued in their order: a kernel with its number, an event with the store
//!    behind it.
//! 2. What never raises the word, because work has failed, is found by asking the driver, now
//!    and then: the event, or the stream.
//! 3. A word gets another owner when the last number that was queued has come.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream memory operations (a write is behind the work
//! before it, and its memory visible). PTX ISA 8.0, memory consistency model: a release at
//! system scope behind a barrier covers what all threads of the block have written.

use crate::debug;
use crate::device::Context;
use crate::error::Result;
use crate::launch::Last;
use crate::stream::Stream;
use crate::stream_semaphore::{RAISED, Word};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most looks at a word between two queries of the driver, and the most time: a caller that
/// has waited long polls seldom.
const LOOKS: u32 = 256;
const SILENCE: Duration = Duration::from_millis(1);

impl Context {
    /// Whether streams for messages have words, so that short kernels tell their end themselves
    /// and nothing is queued behind them.
    pub fn tells_ends(&self) -> bool {
        let events = debug::value(debug::DEVICE_COMPLETION).is_some_and(|how| how == "events");
        !events && self.can_raise_words()
    }
}

/// The word of a stream.
#[derive(Debug)]
pub(crate) struct Completion {
    word: Word,
    last: Mutex<u32>,
}

impl Completion {
    /// For a stream of a device; none where the driver has no such words, or the developer
    /// wants events alone.
    pub fn of(context: &Context) -> Option<Arc<Completion>> {
        if !context.tells_ends() {
            return None;
        }
        let word = Word::new(context, RAISED).ok()?;
        let last = Mutex::new(word.get());
        Some(Arc::new(Completion { word, last }))
    }

    /// Queues what `record` does, and the word behind it.
    pub fn behind<T>(
        self: &Arc<Self>,
        stream: &Stream,
        record: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<Number>)> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = record()?;
        let number = last.wrapping_add(1);
        let told = self.word.store_on(stream, number);
        if told.is_err() {
            stream.context().cannot_raise_words();
            return Ok((recorded, None));
        }
        *last = number;
        Ok((recorded, Some(self.number(number))))
    }

    /// Queues a kernel that raises the word with its last store.
    ///
    /// # Errors
    /// Those of `launch`: nothing was queued then.
    pub fn told_by(self: &Arc<Self>, launch: impl FnOnce(Last) -> Result<()>) -> Result<Number> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let number = last.wrapping_add(1);
        launch(Last::new(self.word.address(), number))?;
        *last = number;
        Ok(self.number(number))
    }

    fn number(self: &Arc<Self>, number: u32) -> Number {
        Number {
            completion: self.clone(),
            number,
            looks: Looks::default(),
            passed: AtomicBool::new(false),
        }
    }
}

impl Drop for Completion {
    /// Invariant 3: a stream may be dropped before its work is done.
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.word.free_at(*last);
    }
}

/// One point of a stream.
#[derive(Debug)]
pub(crate) struct Number {
    completion: Arc<Completion>,
    number: u32,
    looks: Looks,
    passed: AtomicBool,
}

/// Looks at a word that were in vain.
#[derive(Clone, Debug)]
pub(crate) struct Looks(Arc<(AtomicU32, Mutex<Instant>)>);

impl Default for Looks {
    fn default() -> Looks {
        Looks(Arc::new((AtomicU32::new(0), Mutex::new(Instant::now()))))
    }
}

impl Looks {
    /// Counts one; whether it is time to ask the driver.
    pub fn long(&self) -> bool {
        let (looks, asked) = &*self.0;
        let looks = looks.fetch_add(1, Ordering::Relaxed);
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let long = looks % LOOKS == LOOKS - 1 || now.duration_since(*asked) >= SILENCE;
        if long {
            *asked = now;
        }
        long
    }
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It has passed, and that is known.
    Passed,
    /// The word has come.
    Raised,
    /// It is time to ask the driver.
    Ask,
    /// Work is under way.
    NotYet,
}

impl Number {
    /// Looks at the word.
    pub fn look(&self) -> Seen {
        if self.passed.load(Ordering::Acquire) {
            return Seen::Passed;
        }
        match self.is_raised() {
            true => Seen::Raised,
            false if self.looks.long() => Seen::Ask,
            false => Seen::NotYet,
        }
    }

    /// How far the word is beyond it.
    fn ahead(&self) -> i32 {
        let word = self.completion.word.get();
        word.wrapping_sub(self.number).cast_signed()
    }

    /// Whether the word has come.
    pub fn is_raised(&self) -> bool {
        self.passed.load(Ordering::Acquire) || self.ahead() >= 0
    }

    /// Whether a later number has come: the work of this one is over for the driver, too.
    pub fn is_behind(&self) -> bool {
        self.ahead() > 0
    }

    /// The number itself.
    pub fn value(&self) -> u32 {
        self.number
    }

    /// Whoever can tell has said that it has passed.
    pub fn has_passed(&self) {
        self.passed.store(true, Ordering::Release);
    }
}
