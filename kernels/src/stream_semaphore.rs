//! Stream semaphores: the host holds a stream, and lets it go on.
//!
//! An event cannot hold a stream for what has not been queued yet, such as the arrival of
//! a message. A semaphore can: it is a word in pinned memory. The stream waits until the word
//! has a value, which the host stores.
//!
//! ```text
//! Semaphore    shut --open--> open          a number that only grows: the word is used again
//! Valve   shut <-> open                as often as a graph is launched
//! ```
//!
//! # Invariants
//! 1. A word of a [`StreamSemaphore`] never gets less, so whoever waits for its last user passes.
//! 2. A semaphore that is dropped is open: no stream waits for what nobody will do.
//! 3. Nothing of this crate waits for the whole device while a semaphore is shut, or a graph
//!    runs that may shut a valve: what would, such as giving memory back, comes later
//!    ([`Context::unless_held`]).
//! 4. The words' memory lives as long as the process: a stream may look at a word long
//!    after its semaphore was opened.
//!
//! # What to know
//! The driver does not see this order. Streams that share a queue of the device's hardware
//! hold each other up: a device has eight queues or 32, and streams of one priority share
//! them. So while the host may hold a stream ([`Context::holds_streams`]), nothing of messages
//! is queued behind an event that has not passed; it would hold up messages that the event
//! waits for. And calls that wait for the whole device wait for the host, too.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream memory operations.

use crate::device::Context;
use crate::error::{DeviceError, Result};
use crate::memory::Memory;
use crate::stream::{Event, Stream};
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Words of a page; each has a line of the cache, as the device reads it again and again.
const WORDS: usize = 1024;
const WORD_BYTES: usize = 64;

/// Wait until the word, as a signed number, is not less.
const WAIT_GREATER: c_uint = 0;
const WAIT_EQUAL: c_uint = 1;
/// The driver offers it, the device does not.
const NOT_SUPPORTED: u32 = 801;

/// The words of one device that nobody uses: those of semaphores, those of valves, which
/// go up and down, and those that streams raise.
#[derive(Debug, Default)]
pub(crate) struct StreamSemaphores {
    free: [Mutex<Vec<Free>>; 3],
    /// Words that a stream still raises, and up to which number.
    late: Mutex<Vec<(Free, u32)>>,
    /// Semaphores and valves that are shut, and kernels that wait for other ranks.
    shut: AtomicUsize,
    /// Valves that there are: a graph may shut its one whenever it runs.
    valves: AtomicUsize,
    /// Held while something waits for the device: no semaphore is made meanwhile, and no graph
    /// is launched. Valves are shut by the driver's threads, which must not wait.
    waiting: Mutex<()>,
    /// The last event of each launch of a graph that may shut valves.
    launches: Mutex<Vec<Event>>,
}

impl StreamSemaphores {
    /// Whether streams may be held by the host.
    pub fn any_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst) != 0
    }

    /// Whether a stream may wait for the host now, or before work that it has comes to its turn.
    pub fn any_holds(&self) -> bool {
        self.any_shut() || self.valves.load(Ordering::SeqCst) != 0
    }

    /// Makes words ahead, of which the driver would have to make memory later.
    pub fn stock(&self, context: &Context) -> Result<()> {
        for list in &self.free {
            let mut free = lock(list);
            if free.is_empty() {
                *free = Page::fresh(context)?;
            }
        }
        Ok(())
    }

    /// Launches a graph that may shut valves, with the event behind it.
    pub fn launch(&self, launch: impl FnOnce() -> Result<Event>) -> Result<Event> {
        let _waiting = lock(&self.waiting);
        let event = launch()?;
        let mut launches = lock(&self.launches);
        launches.retain(|last| !last.is_passed().unwrap_or(true));
        launches.push(event.clone());
        Ok(event)
    }

    /// Whether such a launch is under way. Failed work shuts nothing any more.
    fn any_launched(&self) -> bool {
        let mut launches = lock(&self.launches);
        launches.retain(|last| !last.is_passed().unwrap_or(true));
        !launches.is_empty()
    }

    /// Frees the words that have come to their last number.
    fn reap_late(&self, free: &mut Vec<Free>) {
        let mut late = lock(&self.late);
        let come =
            |((page, at), last): &mut (Free, u32)| page.word(*at).load(Ordering::Acquire) == *last;
        free.extend(late.extract_if(.., come).map(|(word, _)| word));
    }
}

impl Context {
    /// Whether the host holds a stream now, or a graph may have it hold one: what may wait for the
    /// device, such as making pinned memory, should come later.
    pub fn is_held(&self) -> bool {
        self.unless_held(|| ()).is_none()
    }

    /// Does what may wait for the whole device, unless the host holds a stream or a graph may
    /// have it hold one meanwhile: then `None`. Graphs that others have captured are launched
    /// unseen, so while one of them lives nothing is done.
    pub(crate) fn unless_held<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let semaphores = self.semaphores();
        let _waiting = lock(&semaphores.waiting);
        let held =
            semaphores.any_shut() || semaphores.any_launched() || self.captures().any_of_others();
        (!held).then(act)
    }
}

type Free = (Arc<Page>, usize);

const SEMAPHORES: usize = 0;
const VALVES: usize = 1;
pub(crate) const RAISED: usize = 2;

#[derive(Debug)]
struct Page {
    memory: Arc<Memory>,
    host: Words,
}

impl Page {
    /// A page, and its words.
    fn fresh(context: &Context) -> Result<Vec<Free>> {
        let memory = Memory::pinned(context, WORDS * WORD_BYTES)?;
        let lost = || DeviceError::Unavailable("pinned memory has no host address".into());
        let host = memory.host().ok_or_else(lost)?;
        // SAFETY: fresh memory of this size.
        unsafe { std::ptr::write_bytes(host, 0, WORDS * WORD_BYTES) };
        let page = Arc::new(Page {
            memory,
            host: Words(host),
        });
        Ok((0..WORDS).map(|at| (page.clone(), at)).collect())
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        let at = self.host.0.wrapping_add(at * WORD_BYTES);
        // SAFETY: inside the page, aligned; devices read it, or write it whole.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }
}

/// Words in pinned memory.
#[derive(Debug)]
struct Words(*mut u8);

// SAFETY: the words are atomics, in memory that the page owns.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One word, until it is given back.
#[derive(Debug)]
pub(crate) struct Word {
    context: Context,
    page: Arc<Page>,
    at: usize,
    list: usize,
    /// A stream raises it up to this number.
    until: Option<u32>,
}

impl Word {
    pub fn new(context: &Context, list: usize) -> Result<Word> {
        let mut free = lock(&context.semaphores().free[list]);
        if free.is_empty() && list == RAISED {
            context.semaphores().reap_late(&mut free);
        }
        if free.is_empty() {
            *free = Page::fresh(context)?;
        }
        let missing = || DeviceError::Unavailable("no semaphore is left".into());
        let (page, at) = free.pop().ok_or_else(missing)?;
        Ok(Word {
            context: context.clone(),
            page,
            at,
            list,
            until: None,
        })
    }

    fn word(&self) -> &AtomicU32 {
        self.page.word(self.at)
    }

    /// Dropped, it is free when it has come to this number.
    pub fn free_at(&mut self, last: u32) {
        self.until = Some(last);
    }

    /// What it is.
    pub fn get(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Has a stream store a value when the work before is done.
    pub fn store_on(&self, stream: &Stream, value: u32) -> Result<()> {
        let driver = stream.context().enter()?;
        // SAFETY: a word in pinned memory that lives as long as the process.
        unsafe { driver.cuStreamWriteValue32_v2(stream.raw(), self.address(), value, 0) }
    }

    pub fn address(&self) -> u64 {
        self.page.memory.address() + (self.at * WORD_BYTES) as u64
    }

    pub fn set(&self, value: u32) {
        self.word().store(value, Ordering::Release);
    }

    /// Makes a stream wait for the word.
    fn hold(&self, stream: &Stream, value: u32, how: c_uint) -> Result<()> {
        if stream.context() != &self.context {
            return Err(DeviceError::WrongDevice {
                what: "wait for",
                memory: self.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        let driver = stream.context().enter()?;
        // SAFETY: a word in pinned memory that lives as long as the process.
        let queued =
            unsafe { driver.cuStreamWaitValue32_v2(stream.raw(), self.address(), value, how) };
        queued.map_err(|error| match error.code() {
            Some(NOT_SUPPORTED) => DeviceError::Unavailable(
                "streams of this device cannot wait for words in memory (hint: wait on the \
                 host instead)"
                    .into(),
            ),
            _ => error,
        })
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        let (semaphores, word) = (self.context.semaphores(), (self.page.clone(), self.at));
        match self.until {
            Some(last) if self.get() != last => lock(&semaphores.late).push((word, last)),
            _ => lock(&semaphores.free[self.list]).push(word),
        }
    }
}

/// Holds streams until it is opened, once.
#[derive(Debug)]
pub struct StreamSemaphore {
    place: Word,
    turn: u32,
}

impl StreamSemaphore {
    /// A semaphore for streams of a device, shut.
    ///
    /// # Errors
    /// Out of pinned memory.
    pub fn new(context: &Context) -> Result<StreamSemaphore> {
        let place = Word::new(context, SEMAPHORES)?;
        let semaphores = context.semaphores();
        // Another rank's first uses of the device may wait until no stream is held.
        let preparation = lock(context.preparation());
        let waiting = lock(&semaphores.waiting);
        semaphores.shut.fetch_add(1, Ordering::SeqCst);
        drop((waiting, preparation));
        let turn = place.word().load(Ordering::Relaxed).wrapping_add(1);
        Ok(StreamSemaphore { place, turn })
    }

    /// Holds the work that is queued on a stream from now on until the semaphore is open; the
    /// host does not wait.
    ///
    /// # Errors
    /// A stream of another device, or the driver refuses.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        self.place.hold(stream, self.turn, WAIT_GREATER)
    }

    /// Opens it.
    pub fn open(self) {}
}

impl Drop for StreamSemaphore {
    fn drop(&mut self) {
        self.place.set(self.turn);
        let semaphores = self.place.context.semaphores();
        semaphores.shut.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A kernel that waits for other ranks: while it lives nothing waits for the whole device,
/// as invariant 3 says of semaphores.
#[derive(Debug)]
pub(crate) struct KernelWaits(Context);

impl KernelWaits {
    /// Before the kernel is launched.
    pub fn begin(context: &Context) -> KernelWaits {
        let semaphores = context.semaphores();
        // Another rank's first uses of the device may wait until no stream is held.
        let preparation = lock(context.preparation());
        let waiting = lock(&semaphores.waiting);
        semaphores.shut.fetch_add(1, Ordering::SeqCst);
        drop((waiting, preparation));
        KernelWaits(context.clone())
    }
}

impl Drop for KernelWaits {
    fn drop(&mut self) {
        let semaphores = self.0.semaphores();
        semaphores.shut.fetch_sub(1, Ordering::SeqCst);
    }
}

const SHUT: u32 = 0;
const OPEN: u32 = 1;

/// Holds the streams of a graph, as often as it is shut.
#[derive(Debug)]
pub struct Valve {
    place: Word,
    shut: AtomicBool,
}

impl Valve {
    /// A valve for streams of a device, open.
    ///
    /// # Errors
    /// Out of pinned memory.
    pub fn new(context: &Context) -> Result<Valve> {
        let place = Word::new(context, VALVES)?;
        place.set(OPEN);
        (context.semaphores().valves).fetch_add(1, Ordering::SeqCst);
        let shut = AtomicBool::new(false);
        Ok(Valve { place, shut })
    }

    /// As [`StreamSemaphore::hold`], for streams that are captured: at each launch.
    ///
    /// # Errors
    /// As [`StreamSemaphore::hold`].
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        self.place.hold(stream, OPEN, WAIT_EQUAL)
    }

    /// Opens or shuts it; may be called by a [`Callback`](crate::Callback).
    pub fn set(&self, open: bool) {
        let semaphores = self.place.context.semaphores();
        let was_shut = self.shut.swap(!open, Ordering::SeqCst);
        if !open && !was_shut {
            semaphores.shut.fetch_add(1, Ordering::SeqCst);
        }
        self.place.set(if open { OPEN } else { SHUT });
        if open && was_shut {
            semaphores.shut.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Valve {
    fn drop(&mut self) {
        self.set(true);
        let semaphores = self.place.context.semaphores();
        semaphores.valves.fetch_sub(1, Ordering::SeqCst);
    }
}
