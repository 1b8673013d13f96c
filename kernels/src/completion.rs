//! Completion of a stream's work, seen by the host without the driver.
//!
//! A message's progress asks again and again whether its work is done. A query of the driver
//! takes its locks and some hundred nanoseconds; a word in pinned memory, which the stream
//! raises behind each event, takes a load. When the word says so the event is asked once,
//! so that an error is never read as completion.
//!
//! # Invariants
//! 1. A word and its event are queued together, in the order of the numbers.
//! 2. What never raises the word, because work before has failed, is found by asking the
//!    event, now and then.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream memory operations (a write is behind the work
//! before it, and its memory visible).

use crate::debug;
use crate::device::Context;
use crate::error::Result;
use crate::stream::Stream;
use crate::stream_semaphore::{RAISED, Word};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most looks at a word between two queries of the driver, and the most time: a caller that
/// has waited long polls seldom.
const LOOKS: u32 = 256;
const SILENCE: Duration = Duration::from_millis(1);

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
        let events = debug::value(debug::DEVICE_COMPLETION).is_some_and(|how| how == "events");
        if events || !context.can_raise_words() {
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
        let number = Number {
            completion: self.clone(),
            number,
            looks: Looks::default(),
            passed: AtomicBool::new(false),
        };
        Ok((recorded, Some(number)))
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
    /// It was asked before, and had passed.
    Passed,
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
        let ahead = self.completion.word.get().wrapping_sub(self.number);
        let raised = ahead.cast_signed() >= 0;
        match raised || self.looks.long() {
            true => Seen::Ask,
            false => Seen::NotYet,
        }
    }

    /// The driver has said that it has passed.
    pub fn has_passed(&self) {
        self.passed.store(true, Ordering::Release);
    }
}
