//! Partitioned transfers: one message whose parts become ready, and arrive, one
//! by one; any thread may say so of any part.
//!
//! ```text
//! psend_init   SETUP tag, first internal tag, partitions, bytes  -> precv_init
//! pready(i)    partition i, under an internal tag of its own     -> its place
//! ```
//!
//! The sender reserves one internal tag per partition and tells the receiver,
//! once. From then on each partition is a message that goes straight to its
//! place; the receiver need not have the same number of partitions. The k-th
//! setup from a rank with a tag is for the k-th `precv_init` of that rank and
//! tag.
//!
//! # Invariants
//! 1. A partition of an active send is written only in state WRITING, which one
//!    thread has, and read by a transfer only after POSTING. It does not go
//!    back before the next start, which takes `&mut`.
//! 2. A partition of an active receive is read only if every message that
//!    overlaps it has arrived. No message comes there before the next start.
//! 3. Dropped while active, the buffer lives until no transfer uses it.
//!
//! # Sources
//! MPI 5.0, chapter 4. There a program writes to a buffer that the library
//! reads; here `write` hands out one partition at a time.

use super::names::{self, Rank, Source, Tag};
use super::persistent::Startable;
use super::view::{OwnedBufferMut, RawView};
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::matching::{INTERNAL_TAG, Pattern};
use crate::progress::lane::{Mode, PARTITIONED_TAG, Posted};
use osier_datatype::Datatype;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::{DerefMut, Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Internal tags of partitioned transfers; the first is for setups.
const SETUP: u32 = INTERNAL_TAG | PARTITIONED_TAG;
const TAGS: u32 = 0x3FFF_FFFF;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a sender says about a transfer, once.
#[derive(Clone, Copy, Debug)]
struct Setup {
    /// Internal tag of the first partition.
    first: u32,
    partitions: usize,
    /// Bytes of a partition.
    bytes: usize,
}

/// What a communicator knows of partitioned transfers.
#[derive(Default)]
pub(crate) struct Registry {
    /// Internal tags handed out.
    tags: AtomicU32,
    setups: Mutex<Setups>,
}

#[derive(Default)]
struct Setups {
    /// Per source and tag: how many receives were set up, and how many setups
    /// have come.
    counts: HashMap<(u32, u32), (u64, u64)>,
    /// Setups that have come, by their number.
    arrived: HashMap<(u32, u32, u64), Setup>,
}

impl Registry {
    fn reserve(&self, partitions: usize) -> Result<u32> {
        let wanted = u32::try_from(partitions).unwrap_or(u32::MAX);
        self.tags
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(wanted).filter(|n| *n <= TAGS)
            })
            .map(|used| SETUP + 1 + used)
            .map_err(|used| {
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!("{partitions} partitions after {used} on this communicator, which has room for {TAGS} (hint: dup gives another)"),
                )
            })
    }
}

// States of a partition.
const IDLE: u64 = 0;
const WRITING: u64 = 1;
const POSTING: u64 = 2;
const DONE: u64 = 3;
/// With the handle in the low half.
const PENDING: u64 = 1 << 32;

/// Both ends: messages of a transfer and how they stand.
struct Parts {
    comm: Communicator,
    states: Box<[AtomicU64]>,
    /// Those before are done.
    cursor: AtomicUsize,
    error: Mutex<Option<Error>>,
}

impl Parts {
    fn new(comm: &Communicator, count: usize) -> Self {
        Self {
            comm: comm.clone(),
            states: (0..count).map(|_| AtomicU64::new(IDLE)).collect(),
            cursor: AtomicUsize::new(0),
            error: Mutex::new(None),
        }
    }

    fn reset(&self) {
        self.cursor.store(0, Ordering::Relaxed);
        for state in &self.states {
            state.store(IDLE, Ordering::Relaxed);
        }
    }

    /// Records what became of a post.
    fn posted(&self, at: usize, posted: Result<Posted>) -> Result<()> {
        let (state, result) = match posted {
            Ok(Posted::Done(_)) => (DONE, Ok(())),
            Ok(Posted::Pending(handle)) => (PENDING | u64::from(handle), Ok(())),
            Err(e) => {
                self.fail(e.clone());
                (DONE, Err(e))
            }
        };
        self.states[at].store(state, Ordering::Release);
        result
    }

    fn fail(&self, e: Error) {
        lock(&self.error).get_or_insert(e);
    }

    /// Whether the transfer of a partition is over; takes its result.
    fn settle(&self, at: usize) -> bool {
        let state = self.states[at].load(Ordering::Acquire);
        if state & PENDING == 0 {
            return state == DONE;
        }
        let core = self.comm.core();
        // Only one of several threads gets the result; the others ask again.
        let result = core.with(self.comm.lane(), |lane| lane.take(state as u32));
        match result {
            Some(result) => {
                if let Err(e) = result {
                    self.fail(e);
                }
                self.states[at].store(DONE, Ordering::Release);
                true
            }
            None => false,
        }
    }

    fn all_settled(&self) -> bool {
        let mut at = self.cursor.load(Ordering::Relaxed);
        while at < self.states.len() && self.settle(at) {
            at += 1;
        }
        self.cursor.fetch_max(at, Ordering::Relaxed);
        at == self.states.len()
    }

    fn result(&self) -> Result<()> {
        match lock(&self.error).take() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Lets what is under way go on with its memory's owner.
    fn detach<B: Send + Sync + 'static>(&self, owner: &Arc<B>) {
        self.comm.core().with(self.comm.lane(), |lane| {
            for state in &self.states {
                let state = state.load(Ordering::Acquire);
                if state & PENDING != 0 {
                    lane.set_owner(state as u32, Box::new(owner.clone()));
                    lane.detach(state as u32);
                }
            }
        });
    }
}

/// Elements of a partition; an error if the buffer is not cut evenly.
fn per_partition(len: usize, partitions: usize) -> Result<usize> {
    if partitions == 0 || !len.is_multiple_of(partitions) {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("{len} elements in {partitions} partitions (hint: all have the same number)"),
        ));
    }
    Ok(len / partitions)
}

fn element_bytes<T: Datatype>() -> usize {
    if T::DENSE {
        size_of::<T>()
    } else {
        T::layout().size()
    }
}

fn no_partition(at: usize, partitions: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("partition {at} of {partitions}"),
    )
}

fn not_started() -> Error {
    Error::new(
        ErrorKind::Argument,
        "a partitioned request that is not active (hint: start it first)",
    )
}

fn is_started() -> Error {
    Error::new(
        ErrorKind::Argument,
        "a partitioned request that is active (hint: wait for it first)",
    )
}

impl Communicator {
    /// Sets up a send in equal partitions of a buffer that the request owns.
    /// It meets the `precv_init` of the receiver in the order of the calls with
    /// this tag, and no other receive.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// if comm.rank() == 0 {
    ///     let mut send = comm.psend_init(vec![0u64; 1200], 4, 1, 0)?;
    ///     send.start()?;
    ///     std::thread::scope(|s| {
    ///         for at in 0..4 {
    ///             let send = &send;
    ///             s.spawn(move || {
    ///                 send.write(at, |part| part.fill(at as u64)).unwrap();
    ///                 send.pready(at).unwrap();
    ///             });
    ///         }
    ///     });
    ///     send.wait()?;
    /// } else {
    ///     let mut recv = comm.precv_init(vec![0u64; 1200], 6, 0, 0)?;
    ///     recv.start()?;
    ///     while !recv.parrived(0)? {}
    ///     assert_eq!(recv.read(0)?, [0; 200]);
    ///     recv.wait()?;
    ///     assert_eq!(recv.buffer()?[1199], 3);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    #[track_caller]
    pub fn psend_init<T: Datatype, B>(
        &self,
        buffer: B,
        partitions: usize,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedSend<T, B>>
    where
        B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
    {
        let tag = tag.into().check()?;
        let dest = dest.into().check(self.peer_count())?;
        let each = per_partition(buffer.len(), partitions)?;
        let mut first = SETUP;
        if let Some(dest) = dest {
            first = self.partitioned().reserve(partitions)?;
            let bytes = each * element_bytes::<T>();
            let setup = [tag.into(), first.into(), partitions as u64, bytes as u64];
            let setup: Box<[u64; 4]> = Box::new(setup);
            let raw = RawView::untyped((&raw const *setup).cast_mut().cast(), 32);
            if let Posted::Pending(handle) = self.isend_raw(raw, dest, SETUP, Mode::Standard)? {
                self.core().with(self.lane(), |lane| {
                    lane.set_owner(handle, setup);
                    lane.detach(handle);
                });
            }
        }
        Ok(PartitionedSend {
            parts: Parts::new(self, partitions),
            active: AtomicBool::new(false),
            dest,
            first,
            each,
            base: std::ptr::null_mut(),
            buffer: Some(buffer),
        })
    }

    /// Sets up a receive in equal partitions, not necessarily as many as the
    /// sender's, into a buffer that the request owns. Both ends have the same
    /// number of bytes.
    pub fn precv_init<T: Datatype, B>(
        &self,
        buffer: B,
        partitions: usize,
        source: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedRecv<T, B>>
    where
        B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
    {
        let tag = tag.into().check()?;
        let source: Source = source.into().into();
        let pattern = names::pattern(source, Tag::from(tag).into(), self.peer_count())?;
        let each = per_partition(buffer.len(), partitions)?;
        let mut number = 0;
        if let Some(source) = pattern.and_then(|p| p.source) {
            let mut setups = lock(&self.partitioned().setups);
            let counts = setups.counts.entry((source, tag)).or_default();
            number = counts.0;
            counts.0 += 1;
        }
        Ok(PartitionedRecv {
            comm: self.clone(),
            meeting: Mutex::new(()),
            met: OnceLock::new(),
            posted: AtomicBool::new(false),
            active: AtomicBool::new(false),
            source: pattern.and_then(|p| p.source),
            tag,
            number,
            partitions,
            each,
            base: std::ptr::null_mut(),
            buffer: Some(buffer),
            element: PhantomData,
        })
    }
}

/// Ends the state of a partition that is written, also on unwind.
struct Written<'a>(&'a AtomicU64);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

/// A partitioned send; see [`Communicator::psend_init`]. Threads share it by
/// reference.
///
/// Memory that is borrowed cannot be handed over, nor the buffer be held across
/// a start:
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut data = [0u64; 4];
/// let send = comm.psend_init(&mut data[..], 2, 1, 0)?; // could be leaked
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut send = comm.psend_init(vec![0u64; 4], 2, 1, 0)?;
/// let buffer = send.buffer_mut()?;
/// send.start()?;
/// buffer[0] = 1; // only `write` may, partition by partition
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
/// let mut send = comm.psend_init(vec![0u64; 4], 2, 1, 0)?;
/// send.start()?;
/// let mut kept: Option<&mut [u64]> = None;
/// send.write(0, |part| kept = Some(part))?; // it may be ready soon
/// # Ok(())
/// # }
/// ```
pub struct PartitionedSend<T: Datatype, B: OwnedBufferMut + Sync = Vec<T>> {
    parts: Parts,
    active: AtomicBool,
    dest: Option<u32>,
    first: u32,
    /// Elements of a partition.
    each: usize,
    /// First element, while active.
    base: *mut T,
    buffer: Option<B>,
}

// SAFETY: `base` points into the buffer, which is `Send`; `T` is `Send`.
unsafe impl<T: Datatype, B: OwnedBufferMut + Sync> Send for PartitionedSend<T, B> {}
// SAFETY: the elements are reached under invariant 1 while active, and through
// a `Sync` buffer otherwise.
unsafe impl<T: Datatype, B: OwnedBufferMut + Sync> Sync for PartitionedSend<T, B> {}

impl<T: Datatype, B> PartitionedSend<T, B>
where
    B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
{
    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        self.parts.states.len()
    }

    /// Begins a transfer; no partition is ready yet. An error if it is active.
    pub fn start(&mut self) -> Result<()> {
        let needed = self.each * self.partitions();
        let buffer = self.buffer.as_mut().ok_or_else(is_started)?;
        if *self.active.get_mut() {
            return Err(is_started());
        }
        if buffer.len() != needed {
            return Err(exchanged(buffer.len(), needed));
        }
        self.base = buffer.as_mut_ptr();
        self.parts.reset();
        *self.active.get_mut() = true;
        Ok(())
    }

    /// Runs `f` on the elements of a partition of an active send that is not
    /// ready yet. An error if another thread is at it.
    pub fn write<R>(&self, at: usize, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        let _written = Written(self.claim(at, WRITING)?);
        let from = self.base.wrapping_add(at * self.each);
        // SAFETY: inside the buffer, and this thread's alone (invariant 1).
        let part = unsafe { std::slice::from_raw_parts_mut(from, self.each) };
        Ok(f(part))
    }

    fn claim(&self, at: usize, to: u64) -> Result<&AtomicU64> {
        if !self.active.load(Ordering::Acquire) {
            return Err(not_started());
        }
        let partitions = self.partitions();
        let state = self.parts.states.get(at);
        let state = state.ok_or_else(|| no_partition(at, partitions))?;
        match state.compare_exchange(IDLE, to, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(state),
            Err(now) => Err(Error::new(
                ErrorKind::Argument,
                match now {
                    WRITING => format!("partition {at} is being written"),
                    _ => format!("partition {at} is marked ready already"),
                },
            )),
        }
    }

    /// Says that a partition may be sent. Any thread may.
    #[track_caller]
    pub fn pready(&self, at: usize) -> Result<()> {
        self.claim(at, POSTING)?;
        let posted = match self.dest {
            Some(dest) => {
                let part = slice_view(self.base, at * self.each..(at + 1) * self.each);
                let tag = self.first + at as u32;
                self.parts.comm.isend_raw(part, dest, tag, Mode::Standard)
            }
            None => Ok(Posted::Done(crate::progress::lane::Outcome {
                source: 0,
                tag: 0,
                bytes: 0,
            })),
        };
        let result = self.parts.posted(at, posted);
        // Somebody may sleep in `wait`.
        self.parts.comm.core().wake_waiting();
        result
    }

    /// As [`PartitionedSend::pready`] for each partition of a range.
    #[track_caller]
    pub fn pready_range(&self, range: RangeInclusive<usize>) -> Result<()> {
        for at in range {
            self.pready(at)?;
        }
        Ok(())
    }

    /// As [`PartitionedSend::pready`] for each partition of a list.
    #[track_caller]
    pub fn pready_list(&self, list: &[usize]) -> Result<()> {
        for at in list {
            self.pready(*at)?;
        }
        Ok(())
    }

    /// Makes progress and asks whether all partitions were ready and have left
    /// the buffer. An inactive request is over.
    pub fn test(&self) -> bool {
        if !self.active.load(Ordering::Acquire) {
            return true;
        }
        let core = self.parts.comm.core();
        if !self.parts.all_settled() {
            core.progress_all();
        }
        self.parts.all_settled()
    }

    /// Waits until all partitions were ready and have left the buffer; the
    /// request is inactive then. Others may say meanwhile what is ready.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let core = self.parts.comm.core();
        core.wait_until(|| self.parts.all_settled().then_some(()));
        self.active.store(false, Ordering::Release);
        self.parts.result()
    }

    /// The buffer. An error while the request is active.
    pub fn buffer(&self) -> Result<&B> {
        match &self.buffer {
            Some(buffer) if !self.active.load(Ordering::Acquire) => Ok(buffer),
            _ => Err(is_started()),
        }
    }

    /// The buffer, to fill it. An error while the request is active.
    pub fn buffer_mut(&mut self) -> Result<&mut B> {
        match &mut self.buffer {
            Some(buffer) if !*self.active.get_mut() => Ok(buffer),
            _ => Err(is_started()),
        }
    }

    /// Waits, and gives back the buffer.
    #[track_caller]
    pub fn into_buffer(mut self) -> Result<B> {
        self.wait()?;
        self.buffer.take().ok_or_else(is_started)
    }
}

fn exchanged(len: usize, needed: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("the buffer has {len} elements now, and was set up with {needed}"),
    )
}

/// Elements of a buffer by index.
fn slice_view<T: Datatype>(base: *mut T, elements: Range<usize>) -> RawView {
    RawView::of_slice(base.wrapping_add(elements.start), elements.len())
}

impl<T: Datatype, B> Startable for PartitionedSend<T, B>
where
    B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
{
    fn start(&mut self) -> Result<()> {
        PartitionedSend::start(self)
    }
}

impl<T: Datatype, B: OwnedBufferMut + Sync> Drop for PartitionedSend<T, B> {
    fn drop(&mut self) {
        if *self.active.get_mut()
            && let Some(buffer) = self.buffer.take()
        {
            self.parts.detach(&Arc::new(buffer));
        }
    }
}

/// A partitioned receive; see [`Communicator::precv_init`]. Threads share it by
/// reference.
pub struct PartitionedRecv<T: Datatype, B: OwnedBufferMut + Sync = Vec<T>> {
    comm: Communicator,
    /// Held to meet the sender, and to post.
    meeting: Mutex<()>,
    /// The sender's partitions, once known.
    met: OnceLock<Result<(Setup, Parts)>>,
    /// The receives of this start are posted.
    posted: AtomicBool,
    active: AtomicBool,
    source: Option<u32>,
    tag: u32,
    number: u64,
    partitions: usize,
    each: usize,
    base: *mut T,
    buffer: Option<B>,
    element: PhantomData<T>,
}

// SAFETY: `base` points into the buffer, which is `Send`; `T` is `Send`.
unsafe impl<T: Datatype, B: OwnedBufferMut + Sync> Send for PartitionedRecv<T, B> {}
// SAFETY: elements are only read through a shared reference, under invariant 2.
unsafe impl<T: Datatype, B: OwnedBufferMut + Sync> Sync for PartitionedRecv<T, B> {}

impl<T: Datatype, B> PartitionedRecv<T, B>
where
    B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
{
    /// Number of partitions at this end.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Begins a transfer. An error if it is active.
    pub fn start(&mut self) -> Result<()> {
        let needed = self.each * self.partitions;
        let buffer = self.buffer.as_mut().ok_or_else(is_started)?;
        if *self.active.get_mut() {
            return Err(is_started());
        }
        if buffer.len() != needed {
            return Err(exchanged(buffer.len(), needed));
        }
        self.base = buffer.as_mut_ptr();
        *self.posted.get_mut() = false;
        *self.active.get_mut() = true;
        if let Some(Ok((_, parts))) = self.met.get() {
            parts.reset();
        }
        self.advance().map(drop)
    }

    /// Meets the sender if it has set up, and posts the receives.
    fn advance(&self) -> Result<Option<&(Setup, Parts)>> {
        if !self.posted.load(Ordering::Acquire) {
            let _meeting = lock(&self.meeting);
            if self.met.get().is_none() {
                let Some(setup) = self.find_setup()? else {
                    return Ok(None);
                };
                let checked = self.check(setup).map(|()| {
                    let parts = Parts::new(&self.comm, setup.partitions);
                    (setup, parts)
                });
                let _ = self.met.set(checked);
            }
            if let Some(Ok((setup, parts))) = self.met.get()
                && !self.posted.load(Ordering::Relaxed)
            {
                self.post(setup, parts);
                self.posted.store(true, Ordering::Release);
            }
        }
        match self.met.get() {
            Some(Ok(met)) => Ok(Some(met)),
            Some(Err(e)) => Err(e.clone()),
            None => Ok(None),
        }
    }

    fn check(&self, setup: Setup) -> Result<()> {
        let element = element_bytes::<T>();
        let here = self.partitions * self.each * element;
        let what = || format!("partitioned receive, tag {}", self.tag);
        if setup.partitions.checked_mul(setup.bytes) != Some(here) {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "{}: the sender has {} partitions of {} bytes, the receiver {} of {}",
                    what(),
                    setup.partitions,
                    setup.bytes,
                    self.partitions,
                    self.each * element
                ),
            ));
        }
        if !T::DENSE && element != 0 && !setup.bytes.is_multiple_of(element) {
            return Err(Error::new(
                ErrorKind::Datatype,
                format!(
                    "{}: the sender's partitions of {} bytes end within an element of {element}",
                    what(),
                    setup.bytes
                ),
            ));
        }
        Ok(())
    }

    fn find_setup(&self) -> Result<Option<Setup>> {
        let Some(source) = self.source else {
            return Ok(None);
        };
        let registry = self.comm.partitioned();
        let mut setups = lock(&registry.setups);
        let wanted = (source, self.tag, self.number);
        let pattern = Pattern::exact(source, SETUP);
        loop {
            if let Some(setup) = setups.arrived.remove(&wanted) {
                return Ok(Some(setup));
            }
            let core = self.comm.core();
            core.check_deaths();
            let found = core.with(self.comm.lane(), |lane| {
                lane.progress();
                match lane.matched_probe(pattern) {
                    Some(matched) => Ok(Some(matched)),
                    None => {
                        lane.probed = Some(source);
                        lane.dead_source(pattern).map_or(Ok(None), Err)
                    }
                }
            })?;
            let Some(matched) = found else {
                return Ok(None);
            };
            let message = super::message::Message::new(&self.comm, matched);
            let mut setup = [0u64; 4];
            message.recv(&mut setup)?;
            let tag = setup[0] as u32;
            let counts = setups.counts.entry((source, tag)).or_default();
            let number = counts.1;
            counts.1 += 1;
            let setup = Setup {
                first: setup[1] as u32,
                partitions: setup[2] as usize,
                bytes: setup[3] as usize,
            };
            setups.arrived.insert((source, tag, number), setup);
        }
    }

    fn post(&self, setup: &Setup, parts: &Parts) {
        let Some(source) = self.source else {
            return;
        };
        for at in 0..setup.partitions {
            let view = if T::DENSE {
                let from = self.base.cast::<u8>().wrapping_add(at * setup.bytes);
                RawView::dense::<T>(from, setup.bytes)
            } else {
                let each = setup.bytes.checked_div(element_bytes::<T>()).unwrap_or(0);
                slice_view(self.base, at * each..(at + 1) * each)
            };
            let pattern = Pattern::exact(source, setup.first + at as u32);
            // The error is the transfer's.
            let _ = parts.posted(at, self.comm.irecv_raw(view, pattern));
        }
    }

    /// Whether the elements of a partition at this end have come. Makes
    /// progress. True if the request is inactive.
    pub fn parrived(&self, at: usize) -> Result<bool> {
        if at >= self.partitions {
            return Err(no_partition(at, self.partitions));
        }
        if !self.active.load(Ordering::Acquire) || self.source.is_none() {
            return Ok(true);
        }
        let Some((setup, parts)) = self.advance()? else {
            return Ok(false);
        };
        let bytes = self.each * element_bytes::<T>();
        if bytes == 0 {
            return Ok(true);
        }
        let overlapping = at * bytes / setup.bytes..((at + 1) * bytes).div_ceil(setup.bytes);
        let arrived = || overlapping.clone().all(|i| parts.settle(i));
        if arrived() {
            return Ok(true);
        }
        self.comm.core().progress_all();
        Ok(arrived())
    }

    /// The elements of a partition that has arrived, also while others are
    /// under way.
    pub fn read(&self, at: usize) -> Result<&[T]> {
        if !self.parrived(at)? {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("partition {at} has not arrived (hint: parrived says when)"),
            ));
        }
        if !self.active.load(Ordering::Acquire) {
            let buffer = self.buffer.as_ref().ok_or_else(not_started)?;
            return Ok(&buffer[at * self.each..(at + 1) * self.each]);
        }
        let from = self.base.wrapping_add(at * self.each);
        // SAFETY: inside the buffer, and nothing is written there before the
        // next start, which needs `&mut` (invariant 2).
        Ok(unsafe { std::slice::from_raw_parts(from, self.each) })
    }

    fn is_over(&self) -> Result<bool> {
        Ok(self.source.is_none()
            || self
                .advance()?
                .is_some_and(|(_, parts)| parts.all_settled()))
    }

    /// Makes progress and asks whether all has come. An inactive request is
    /// over, and one that cannot be received.
    pub fn test(&self) -> bool {
        if !self.active.load(Ordering::Acquire) || self.is_over().unwrap_or(true) {
            return true;
        }
        self.comm.core().progress_all();
        self.is_over().unwrap_or(true)
    }

    /// Waits until all has come; the request is inactive then.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let over = self.comm.core().wait_until(|| match self.is_over() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        });
        self.active.store(false, Ordering::Release);
        over?;
        match self.met.get() {
            Some(Ok((_, parts))) => parts.result(),
            _ => Ok(()),
        }
    }

    /// The buffer. An error while the request is active.
    pub fn buffer(&self) -> Result<&B> {
        match &self.buffer {
            Some(buffer) if !self.active.load(Ordering::Acquire) => Ok(buffer),
            _ => Err(is_started()),
        }
    }

    /// The buffer, mutably. An error while the request is active.
    pub fn buffer_mut(&mut self) -> Result<&mut B> {
        match &mut self.buffer {
            Some(buffer) if !*self.active.get_mut() => Ok(buffer),
            _ => Err(is_started()),
        }
    }

    /// Waits, and gives back the buffer.
    #[track_caller]
    pub fn into_buffer(mut self) -> Result<B> {
        self.wait()?;
        self.buffer.take().ok_or_else(is_started)
    }
}

impl<T: Datatype, B> Startable for PartitionedRecv<T, B>
where
    B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
{
    fn start(&mut self) -> Result<()> {
        PartitionedRecv::start(self)
    }
}

impl<T: Datatype, B: OwnedBufferMut + Sync> Drop for PartitionedRecv<T, B> {
    fn drop(&mut self) {
        if *self.active.get_mut()
            && let Some(Ok((_, parts))) = self.met.get()
            && let Some(buffer) = self.buffer.take()
        {
            parts.detach(&Arc::new(buffer));
        }
    }
}
