//! Partitioned transfers: one message whose partitions become ready and arrive
//! one by one; any thread may mark or ask for any partition.
//!
//! ```text
//! psend_init   SETUP tag, first internal tag, partitions, bytes  -> precv_init
//! pready(i)    partition i, under an internal tag of its own     -> its place
//! ```
//!
//! The sender reserves one internal tag per partition and sends the first to the
//! receiver, once. From then on each partition is a message that goes straight to its
//! place; the receiver need not have the same number of partitions, nor the
//! same layout.
//!
//! | module | duty |
//! |---|---|
//! | `shape` | how a buffer is cut |
//! | `parts` | the messages of a transfer |
//! | `registry` | how receives find their senders |
//! | `send`, `recv` | what each side does |
//! | `device` | transfers of a device's memory |
//!
//! # Invariants
//! 1. A partition of an active send is written only in state WRITING, which one
//!    thread has, and read by a transfer only after POSTING. It does not go
//!    back before the next start, which takes `&mut`.
//! 2. A partition of an active receive is read only if every message that
//!    overlaps it has arrived. No message comes there before the next start.
//! 3. Dropped while active, an owned buffer lives until no transfer uses it; a
//!    borrowed one belongs to a scope, which completes or revokes the transfer.
//!
//! # Sources
//! MPI 5.0, chapter 4. There a program writes to a buffer that the library
//! reads; here `write` hands out one partition at a time.

mod device;
mod parts;
mod recv;
mod registry;
mod send;
mod shape;

pub use device::{DevicePartitioned, DevicePartitionedRecv, DevicePartitionedSend};
pub use recv::Receiving;
pub use send::Sending;
pub use shape::Partitions;

use super::persistent::Startable;
use super::scope::Scope;
use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use crate::names::{Rank, Tag};
use osier_datatype::Datatype;
use osier_engine::check::Site;
use osier_engine::completion::ready::Ready;
use osier_engine::diagnose::page::{Operation, WaitTag};
use osier_engine::diagnose::waits::{Asked, hear};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::INTERNAL_TAG;
use osier_engine::progress::lane::PARTITIONED_TAG;
use osier_engine::view::OwnedBufferMut;
use parts::Parts;
use shape::Shape;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Internal tags of partitioned transfers; the first is for setups.
const SETUP: u32 = INTERNAL_TAG | PARTITIONED_TAG;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One side of a transfer, as requests and scopes know it. Its memory is
/// named by address, and valid while it is active.
pub trait Side: Send + Sync + 'static {
    /// The communicator.
    fn comm(&self) -> &Communicator;
    /// Whether it was started and not waited for since.
    fn active(&self) -> &AtomicBool;
    /// How its buffer is cut.
    fn shape(&self) -> &Shape;
    /// Begins a transfer of the buffer at `base`.
    #[track_caller]
    fn begin(&self, base: *mut u8) -> Result<()>;
    /// Whether nothing uses the buffer any more.
    #[track_caller]
    fn is_over(&self) -> Result<bool>;
    /// The messages, if it is known which there are.
    fn parts(&self) -> Option<&Parts>;
    /// The status of a transfer that completed without an error.
    fn outcome(&self) -> Status;
    /// Pushes a number to `ready` when more is known. True if it is complete.
    fn notify(&self, ready: &Arc<Ready>, token: u64) -> bool;
    /// Waits for the partitions that are sure to end, when a scope ends.
    #[track_caller]
    fn complete(&self) -> Result<()>;
}

/// Data of a transfer for hang reports.
struct HangInfo {
    /// `None`: `PROC_NULL`.
    peer: Option<u32>,
    tag: u32,
    /// The line that started it last.
    started: Mutex<Option<Site>>,
}

impl HangInfo {
    fn new(peer: Option<u32>, tag: u32) -> HangInfo {
        HangInfo {
            peer,
            tag,
            started: Mutex::new(None),
        }
    }

    #[track_caller]
    fn begin(&self, comm: &Communicator) {
        *lock(&self.started) = Some(comm.core().checks.site(Location::caller()));
    }

    /// Reports to a thread that listens.
    #[cold]
    fn hear(&self, comm: &Communicator, operation: Operation, bytes: usize) {
        let peer = |peer| comm.core().with(comm.lane(), |lane| lane.in_world(peer));
        hear(Asked {
            peer: self.peer.map(peer),
            tag: WaitTag::Exact(self.tag),
            context: comm.context(),
            bytes: bytes as u64,
            posted: *lock(&self.started),
            ..Asked::of(operation)
        });
    }
}

fn is_active(side: &dyn Side) -> bool {
    side.active().load(Ordering::Acquire)
}

#[track_caller]
fn ended(side: &dyn Side) -> Option<Result<()>> {
    match side.is_over() {
        Ok(false) => None,
        ended => Some(ended.map(drop)),
    }
}

/// Begins a transfer of the buffer at `base`.
#[track_caller]
fn start(side: &dyn Side, base: *mut u8) -> Result<()> {
    if side.active().swap(true, Ordering::AcqRel) {
        return Err(is_started());
    }
    let begun = side.begin(base);
    if begun.is_err() {
        side.active().store(false, Ordering::Release);
    }
    begun
}

#[track_caller]
fn test(side: &dyn Side) -> bool {
    if !is_active(side) || ended(side).is_some() {
        return true;
    }
    side.comm().core().progress_awake();
    ended(side).is_some()
}

#[track_caller]
fn wait(side: &dyn Side) -> Result<Status> {
    if !is_active(side) {
        return Ok(Status::EMPTY);
    }
    let comm = side.comm();
    if comm.core().must_not_wait() && ended(side).is_none() {
        return comm.reported(comm.may_wait("wait").map(|()| Status::EMPTY));
    }
    let ended = comm.core().wait_until(|| ended(side));
    side.active().store(false, Ordering::Release);
    let result = match (ended, side.parts()) {
        (Ok(()), Some(parts)) => parts.result(),
        (ended, _) => ended,
    };
    let status = side.outcome();
    side.comm().reported(result.map(|()| status))
}

#[track_caller]
fn status(side: &dyn Side) -> Option<Result<Status>> {
    if !is_active(side) {
        return Some(Ok(Status::EMPTY));
    }
    if !test(side) {
        return None;
    }
    let result = match (ended(side)?, side.parts()) {
        (Ok(()), Some(parts)) => parts.peek(),
        (ended, _) => ended,
    };
    Some(side.comm().reported(result.map(|()| side.outcome())))
}

/// Stops the transfer of memory that a scope borrows, if it is active.
#[track_caller]
pub(super) fn revoke(side: &dyn Side) {
    if side.active().swap(false, Ordering::AcqRel)
        && let Some(parts) = side.parts()
    {
        parts.revoke();
    }
}

/// Completes it.
#[track_caller]
pub(super) fn complete(side: &dyn Side) -> Result<()> {
    if !side.active().load(Ordering::Acquire) {
        return Ok(());
    }
    let result = side.complete();
    side.active().store(false, Ordering::Release);
    result
}

fn no_partition(at: usize, partitions: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("no partition {at} of {partitions} (hint: they count from 0)"),
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

/// A partitioned request: a transfer that is set up once and started any number
/// of times, whose partitions become ready or arrive one by one.
///
/// [`PartitionedSend`] and [`PartitionedRecv`] are its two kinds. Threads share
/// it by reference.
///
/// # Order of calls
/// `psend_init` and `precv_init`; then for each transfer `start` on both sides,
/// [`pready`](Partitioned::pready) once for each partition of the sender, and
/// [`wait`](Partitioned::wait) on both sides. The n-th start of the sender meets
/// the n-th start of the receiver; either may come first. Partitions may be
/// marked in any order and arrive in any order.
///
/// # Counts
/// `at` counts partitions of this end, from 0. The ends may have different
/// numbers of partitions, and different layouts: both cut the same packed
/// stream of bytes, in the order of the partitions. A partition of the receiver
/// has arrived once every partition of the sender that overlaps it has. The
/// receiver may have room for more bytes than are sent, never for fewer.
///
/// # Buffers
/// | state | who may touch the buffer |
/// |---|---|
/// | inactive | the program: [`buffer`](Partitioned::buffer), [`buffer_mut`](Partitioned::buffer_mut) |
/// | active send, partition not ready | one thread per partition: [`write`](Partitioned::write), [`write_from`](Partitioned::write_from) |
/// | active send, partition ready | the library reads it; the program may not touch it before `wait` |
/// | active receive, partition not arrived | the library writes it |
/// | active receive, partition arrived | any thread reads it: [`read`](Partitioned::read), [`read_into`](Partitioned::read_into) |
///
/// Only `wait` makes a request inactive; `test` and `status` do not.
///
/// A dropped request that is active keeps its owned buffer until the library no
/// longer uses it; memory that a [`Scope`] lends belongs to the scope. The
/// compiler refuses borrowed memory without a scope, a buffer that is kept across
/// a start, and a partition that is kept behind its `write`:
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
pub struct Partitioned<S: Side, T: Datatype, B: DerefMut<Target = [T]> = Vec<T>> {
    side: Arc<S>,
    buffer: Option<B>,
    /// Makes an owner of the buffer, unless a scope has lent it.
    keep: Option<fn(B) -> Arc<dyn Any + Send + Sync>>,
}

/// A partitioned send; see [`Communicator::psend_init`].
pub type PartitionedSend<T, B = Vec<T>> = Partitioned<Sending, T, B>;

/// A partitioned receive; see [`Communicator::precv_init`].
pub type PartitionedRecv<T, B = Vec<T>> = Partitioned<Receiving, T, B>;

/// The buffer of a partitioned request of a [`Scope`]: derefs to the slice that the scope
/// borrows. [`Partitioned::buffer`] returns it while the request is inactive.
pub struct ScopedSlice<'scope, T> {
    at: *mut T,
    len: usize,
    lent: PhantomData<&'scope mut [T]>,
}

impl<'scope, T> ScopedSlice<'scope, T> {
    fn new(memory: &'scope mut [T]) -> Self {
        Self {
            at: memory.as_mut_ptr(),
            len: memory.len(),
            lent: PhantomData,
        }
    }
}

// SAFETY: equivalent to a `&mut [T]`.
unsafe impl<T: Send> Send for ScopedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ScopedSlice<'_, T> {}

impl<T> Deref for ScopedSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: a borrowed slice; requests hand this out while inactive.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T> DerefMut for ScopedSlice<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed mutably, so by no other.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

fn owner<B: Send + Sync + 'static>(buffer: B) -> Arc<dyn Any + Send + Sync> {
    Arc::new(buffer)
}

impl Communicator {
    /// Sets up a partitioned send of a buffer that the request owns
    /// (`MPI_Psend_init`).
    ///
    /// A number as `partitions` cuts the elements of the buffer into equal runs;
    /// [`Partitions::of`] makes each partition of instances of a datatype. The
    /// n-th `psend_init` to a rank with a tag meets the n-th `precv_init` there
    /// from this rank with the same tag, on the same communicator, and no other
    /// receive. The call does not wait for the receiver and sends no partition.
    /// To [`PROC_NULL`](crate::PROC_NULL) nothing is sent: a transfer is complete
    /// when all partitions are marked.
    ///
    /// [`Partitioned`] lists the order of calls, the counts, and who may touch the
    /// buffer when.
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
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there are no partitions, or the number does not
    /// divide the elements of the buffer; of kind [`ErrorKind::Datatype`], if instances of
    /// the datatype reach beyond the buffer, or its elements have padding; of kind
    /// [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank or tag; of kind
    /// [`ErrorKind::OutOfMemory`], if the sends of this communicator have more than 2^30 - 1 partitions;
    /// of kind [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if the receiver has failed or
    /// left. The buffer is dropped with the error.
    #[track_caller]
    pub fn psend_init<T: Datatype, B>(
        &self,
        buffer: B,
        partitions: impl Into<Partitions>,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedSend<T, B>>
    where
        B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
    {
        let shape = Shape::new::<T>(partitions.into(), buffer.len());
        let side = Sending::new(self, self.reported(shape)?, dest.into(), tag.into());
        Ok(Partitioned {
            side: Arc::new(self.reported(side)?),
            buffer: Some(buffer),
            keep: Some(owner),
        })
    }

    /// Sets up a partitioned receive into a buffer that the request owns
    /// (`MPI_Precv_init`).
    ///
    /// The number of partitions and their layout need not be the sender's; the
    /// bytes of all partitions must be at least the sender's. The call is local:
    /// it neither waits for the sender nor learns its number of bytes, which the
    /// first [`start`](Partitioned::start), [`parrived`](Partitioned::parrived) or
    /// [`wait`](Partitioned::wait) after the sender's setup checks. From
    /// [`PROC_NULL`](crate::PROC_NULL) all partitions have arrived at once, with an
    /// empty status. The sender is named: neither
    /// [`ANY_SOURCE`](crate::ANY_SOURCE) nor [`ANY_TAG`](crate::ANY_TAG) is taken.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// if comm.rank() == 0 {
    ///     let mut send = comm.psend_init((0..8u32).collect::<Vec<_>>(), 2, 1, 0)?;
    ///     send.start()?;
    ///     send.pready_list(&[1, 0])?;
    ///     send.wait()?;
    /// } else {
    ///     // Four partitions of two elements for the sender's two of four.
    ///     let mut recv = comm.precv_init(vec![0u32; 8], 4, 0, 0)?;
    ///     recv.start()?;
    ///     while !recv.parrived(3)? {}
    ///     assert_eq!(recv.read(3)?, [6, 7]); // others may be under way
    ///     assert_eq!(recv.wait()?.bytes(), 32);
    ///     assert_eq!(recv.buffer()?[..2], [0, 1]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there are no partitions, or the number does not
    /// divide the elements of the buffer; of kind [`ErrorKind::Datatype`], if instances of
    /// the datatype reach beyond the buffer or overlap, or its elements have padding; of kind
    /// [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank or tag. The buffer
    /// is dropped with the error.
    pub fn precv_init<T: Datatype, B>(
        &self,
        buffer: B,
        partitions: impl Into<Partitions>,
        source: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedRecv<T, B>>
    where
        B: OwnedBufferMut + DerefMut<Target = [T]> + Sync,
    {
        let shape = Shape::receive::<T>(partitions.into(), buffer.len());
        let side = Receiving::new(self, self.reported(shape)?, source.into(), tag.into());
        Ok(Partitioned {
            side: Arc::new(self.reported(side)?),
            buffer: Some(buffer),
            keep: Some(owner),
        })
    }
}

impl<'scope> Scope<'scope, '_> {
    /// As [`Communicator::psend_init`], of memory that the scope borrows. The end
    /// of the scope waits for the partitions that are ready, and returns an error
    /// of kind [`ErrorKind::Argument`] if an active send has others.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let peer = 1 - comm.rank();
    /// let (mine, mut theirs) = (&mut [7u64; 8], [0u64; 8]);
    /// comm.scope(|s| {
    ///     let mut send = s.psend_init(mine, 2, peer, 0)?;
    ///     let mut recv = s.precv_init(&mut theirs, 4, peer, 0)?;
    ///     recv.start()?;
    ///     send.start()?;
    ///     send.pready_range(0..=1)
    /// })?;
    /// assert_eq!(theirs, [7; 8]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// The memory stays lent until the scope ends:
    ///
    /// ```compile_fail
    /// # fn f(comm: &osier::Communicator) -> osier::Result<()> {
    /// let mut data = [0u64; 4];
    /// comm.scope(|s| {
    ///     let mut send = s.psend_init(&mut data, 2, 1, 0)?;
    ///     send.start()?;
    ///     data[0] = 1;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::psend_init`]; the memory stays borrowed.
    #[track_caller]
    pub fn psend_init<T: Datatype>(
        &'scope self,
        memory: &'scope mut [T],
        partitions: impl Into<Partitions>,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedSend<T, ScopedSlice<'scope, T>>> {
        let comm = self.communicator();
        let shape = Shape::new::<T>(partitions.into(), memory.len());
        let side = Sending::new(comm, comm.reported(shape)?, dest.into(), tag.into());
        Ok(self.lend(Arc::new(comm.reported(side)?), memory))
    }

    /// As [`Communicator::precv_init`], into memory that the scope borrows. The
    /// end of the scope waits for all partitions of an active receive.
    ///
    /// # Errors
    /// As [`Communicator::precv_init`]; the memory stays borrowed.
    pub fn precv_init<T: Datatype>(
        &'scope self,
        memory: &'scope mut [T],
        partitions: impl Into<Partitions>,
        source: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<PartitionedRecv<T, ScopedSlice<'scope, T>>> {
        let comm = self.communicator();
        let shape = Shape::receive::<T>(partitions.into(), memory.len());
        let side = Receiving::new(comm, comm.reported(shape)?, source.into(), tag.into());
        Ok(self.lend(Arc::new(comm.reported(side)?), memory))
    }

    fn lend<S: Side, T: Datatype>(
        &'scope self,
        side: Arc<S>,
        memory: &'scope mut [T],
    ) -> Partitioned<S, T, ScopedSlice<'scope, T>> {
        self.host(side.clone());
        Partitioned {
            side,
            buffer: Some(ScopedSlice::new(memory)),
            keep: None,
        }
    }
}

impl<S: Side, T: Datatype, B: DerefMut<Target = [T]>> Partitioned<S, T, B> {
    fn comm(&self) -> &Communicator {
        self.side.comm()
    }

    /// Number of partitions at this end.
    pub fn partitions(&self) -> usize {
        self.side.shape().number
    }

    /// Whether the request was started and not waited for since.
    pub fn is_active(&self) -> bool {
        is_active(&*self.side)
    }

    /// Begins a transfer of the buffer (`MPI_Start`). Of a send no partition is
    /// ready yet; a receive may be written at once. Neither waits for the other
    /// side: partitions that come before the receiver's start wait for it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request is active, and stays so, or its buffer
    /// has another length than when it was set up. Of a receive also the errors of
    /// [`Partitioned::wait`] that are known by now; the request is inactive then.
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        // No closure: the caller's source line passes through.
        let started = self.start_unreported();
        self.comm().reported(started)
    }

    #[track_caller]
    fn start_unreported(&mut self) -> Result<()> {
        let needed = self.side.shape().len;
        if self.is_active() {
            return Err(is_started());
        }
        let buffer = self.buffer.as_mut().ok_or_else(is_started)?;
        if buffer.len() != needed {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "the buffer has {} elements now, and was set up with {needed} (hint: keep its length)",
                    buffer.len()
                ),
            ));
        }
        let base = buffer.as_mut_ptr().cast();
        start(&*self.side, base)
    }

    /// Whether it is active and complete; makes no progress.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_active() && self.side.is_over().unwrap_or(true)
    }

    /// Operations of the lane that are its own.
    pub(crate) fn under_way(&self) -> usize {
        self.side.parts().map_or(0, Parts::under_way)
    }

    /// Makes progress; true if all partitions were marked and have left the
    /// buffer, or all have arrived, and also if the transfer has failed or the
    /// request is inactive. Leaves the request active: [`Partitioned::wait`]
    /// returns the error and frees the buffer.
    pub fn test(&self) -> bool {
        test(&*self.side)
    }

    /// Waits until all partitions of a send were marked and have left the buffer,
    /// or all partitions of a receive have arrived. The request is inactive then
    /// and the buffer the program's. Other threads may mark partitions meanwhile.
    ///
    /// The status of a receive has source, tag and bytes of all partitions; that
    /// of a send, and of an inactive request, is empty.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if the peer has failed or
    /// left; of kind [`ErrorKind::Truncated`], if the sender's partitions have more bytes than
    /// the receiver's; of kind [`ErrorKind::Malformed`], if the peer's setup makes no sense.
    /// The request is inactive then, too. Of several errors the first is returned.
    #[track_caller]
    pub fn wait(&self) -> Result<Status> {
        wait(&*self.side)
    }

    /// Makes progress; the status if [`Partitioned::test`] would be true. Leaves the
    /// request active. The error inside is that of [`Partitioned::wait`].
    pub fn status(&self) -> Option<Result<Status>> {
        status(&*self.side)
    }

    /// The buffer of an inactive request.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the request is active.
    pub fn buffer(&self) -> Result<&B> {
        match &self.buffer {
            Some(buffer) if !self.is_active() => Ok(buffer),
            _ => Err(self.comm().raise(is_started())),
        }
    }

    /// The buffer of an inactive request, to fill it. It may be exchanged for another of the
    /// same length.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the request is active.
    pub fn buffer_mut(&mut self) -> Result<&mut B> {
        match &mut self.buffer {
            Some(buffer) if !self.side.active().load(Ordering::Acquire) => Ok(buffer),
            _ => Err(self.side.comm().raise(is_started())),
        }
    }

    /// Waits, and gives back the buffer.
    ///
    /// # Errors
    /// As [`Partitioned::wait`]; the buffer is dropped then.
    #[track_caller]
    pub fn into_buffer(mut self) -> Result<B> {
        self.wait()?;
        let buffer = self.buffer.take().ok_or_else(is_started);
        self.comm().reported(buffer)
    }

    /// Elements of the buffer while it is active: from `first` on, `len`.
    fn elements(&self, base: *mut u8, first: usize) -> *mut T {
        base.cast::<T>().wrapping_add(first)
    }

    /// That a slice is as long as a partition.
    fn check_len(&self, len: usize) -> Result<()> {
        let bytes = self.side.shape().bytes();
        let own = match T::DENSE {
            true => size_of::<T>(),
            false => T::layout().size(),
        };
        if len.checked_mul(own) == Some(bytes) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{len} elements of {own} bytes for a partition of {bytes} bytes (hint: pass a whole partition)"
            ),
        ))
    }
}

impl<S: Side, T: Datatype, B: DerefMut<Target = [T]>> Startable for Partitioned<S, T, B> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        Partitioned::start(self)
    }
}

/// Gives the request back, inactive, to be started again.
impl<S: Side, T: Datatype, B: DerefMut<Target = [T]>> Waitable for Partitioned<S, T, B> {
    type Output = (Self, Status);

    fn test(&mut self) -> bool {
        Partitioned::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<(Self, Status)> {
        let status = Partitioned::wait(&self)?;
        Ok((self, status))
    }

    fn status(&mut self) -> Option<Result<Status>> {
        Partitioned::status(self)
    }
}

impl<S: Side, T: Datatype, B: DerefMut<Target = [T]>> sealed::Notifies for Partitioned<S, T, B> {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(self.comm().core())
    }

    fn raise(&self, e: Error) -> Error {
        self.comm().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        !self.is_active() || self.side.notify(ready, token)
    }
}

impl<S: Side, T: Datatype, B: DerefMut<Target = [T]>> Drop for Partitioned<S, T, B> {
    fn drop(&mut self) {
        if self.is_active()
            && let (Some(keep), Some(buffer)) = (self.keep, self.buffer.take())
            && let Some(parts) = self.side.parts()
        {
            parts.detach(&keep(buffer));
        }
    }
}
