//! The receiving side of a partitioned transfer.

use super::parts::Parts;
use super::registry::{Setup, SetupKey};
use super::shape::{Pieces, Shape};
use super::{HangInfo, PartitionedRecv, Side, lock, no_partition, not_started};
use crate::comm::Communicator;
use crate::names::{Rank, Tag};
use crate::p2p::status::Status;
use osier_datatype::Datatype;
use osier_engine::completion::ready::Ready;
use osier_engine::device::Use;
use osier_engine::diagnose::page::Operation;
use osier_engine::diagnose::waits::{Unheard, listens};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::Pattern;
use osier_engine::progress::lane::Outcome;
use osier_engine::progress::owed::Later;
use osier_kernels::{After, DeviceSlice};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The receiving side; see [`PartitionedRecv`].
pub struct Receiving {
    comm: Communicator,
    shape: Shape,
    /// `None`: `PROC_NULL`.
    place: Option<SetupKey>,
    hang_info: HangInfo,
    /// Locked to meet the sender, and to post.
    meeting: Mutex<()>,
    /// The sender's partitions, once known.
    met: OnceLock<Result<Met>>,
    /// The receives of this start are posted.
    posted: AtomicBool,
    active: AtomicBool,
    /// The buffer while it is active.
    base: AtomicPtr<u8>,
    /// The buffer, if it is a device's, and when it may be written.
    device: Option<(DeviceSlice<u8>, Mutex<Option<After>>)>,
}

/// The sender, once its setup has come.
struct Met {
    setup: Setup,
    pieces: Pieces,
    parts: Parts,
}

impl Receiving {
    pub(super) fn new(comm: &Communicator, shape: Shape, source: Rank, tag: Tag) -> Result<Self> {
        let tag = tag.check()?;
        let source = source.check(comm.peer_count())?;
        Ok(Self {
            hang_info: HangInfo::new(source, tag),
            place: source.map(|source| comm.partitioned().expect(comm, source, tag)),
            comm: comm.clone(),
            shape,
            meeting: Mutex::new(()),
            met: OnceLock::new(),
            posted: AtomicBool::new(false),
            active: AtomicBool::new(false),
            base: AtomicPtr::default(),
            device: None,
        })
    }

    /// Of a device's memory.
    pub(super) fn of_device(mut self, slice: DeviceSlice<u8>) -> Self {
        self.device = Some((slice, Mutex::new(None)));
        self
    }

    /// When the next start may write a device's memory.
    pub(super) fn set_ready_event(&self, ready_event: After) {
        if let Some((_, kept)) = &self.device {
            *lock(kept) = Some(ready_event);
        }
    }

    /// Meets the sender if it has set up, and posts the receives.
    #[track_caller]
    fn advance(&self) -> Result<Option<&Met>> {
        if let Some(place) = self.place
            && !self.posted.load(Ordering::Acquire)
        {
            if let Some(found) = self.poll_setup(place) {
                // The handler runs without a lock.
                let met = found.and_then(|setup| self.meet(setup, place));
                let _ = self.met.set(self.comm.reported(met));
            }
            let _later = Later::begin(self.comm.lane());
            let _meeting = lock(&self.meeting);
            if let Some(Ok(met)) = self.met.get()
                && !self.posted.load(Ordering::Relaxed)
            {
                self.post(met, place);
                self.posted.store(true, Ordering::Release);
            }
        }
        match self.met.get() {
            Some(Ok(met)) => Ok(Some(met)),
            Some(Err(e)) => Err(e.clone()),
            None => Ok(None),
        }
    }

    /// The sender's setup, or why it will not come; given out once.
    #[track_caller]
    fn poll_setup(&self, place: SetupKey) -> Option<Result<Setup>> {
        let _later = Later::begin(self.comm.lane());
        let _meeting = lock(&self.meeting);
        if self.met.get().is_some() {
            return None;
        }
        match self.comm.partitioned().find(&self.comm, place) {
            Ok(setup) => setup.map(Ok),
            Err(e) => {
                self.comm.partitioned().give_up(&self.comm, place);
                Some(Err(e))
            }
        }
    }

    fn meet(&self, setup: Setup, place: SetupKey) -> Result<Met> {
        let here = self.shape.number * self.shape.bytes();
        if !setup.has_tags() {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "partitioned receive from rank {}, tag {}: a setup of {} partitions from internal tag {:#x} on",
                    place.source, place.tag, setup.partitions, setup.first
                ),
            ));
        }
        // As of any message, there may be more room than is sent.
        let sent = setup.partitions.checked_mul(setup.bytes);
        if sent.is_none_or(|sent| sent > here) {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!(
                    "partitioned receive from rank {}, tag {}: the sender has {} partitions of {} bytes, the receiver {} of {}",
                    place.source,
                    place.tag,
                    setup.partitions,
                    setup.bytes,
                    self.shape.number,
                    self.shape.bytes()
                ),
            ));
        }
        Ok(Met {
            pieces: self.shape.pieces(setup.partitions, setup.bytes)?,
            parts: Parts::new(&self.comm, setup.partitions),
            setup,
        })
    }

    #[track_caller]
    fn post(&self, met: &Met, place: SetupKey) {
        let base = self.base.load(Ordering::Relaxed);
        for at in 0..met.setup.partitions {
            let pattern = Pattern::exact(place.source, met.setup.first + at as u32);
            // No closure: the caller's source line passes through.
            let spot = self.shape.piece(&met.pieces, at);
            let view = match &self.device {
                None => spot.on(base),
                Some((slice, ready_event)) => match &*lock(ready_event) {
                    Some(ready_event) => spot.on_device(slice, ready_event, Use::Write),
                    None => Err(not_started()),
                },
            };
            let posted = match view {
                Ok(view) => self.comm.irecv_raw(view, pattern),
                Err(e) => Err(e),
            };
            // The error is the transfer's.
            let _ = met.parts.posted(at, posted);
        }
    }

    /// Reports the wait of a pending transfer to a thread that listens.
    #[cold]
    fn tell(&self) {
        let bytes = match self.met.get() {
            Some(Ok(met)) => met.parts.open() * met.setup.bytes,
            _ => self.shape.number * self.shape.bytes(),
        };
        let operation = Operation::PartitionedReceive;
        self.hang_info.hear(&self.comm, operation, bytes);
    }

    #[track_caller]
    pub(super) fn parrived(&self, at: usize) -> Result<bool> {
        if at >= self.shape.number {
            return Err(no_partition(at, self.shape.number));
        }
        if !self.active.load(Ordering::Acquire) || self.has_arrived(at)? {
            return Ok(true);
        }
        self.comm.core().progress_awake();
        self.has_arrived(at)
    }

    #[track_caller]
    fn has_arrived(&self, at: usize) -> Result<bool> {
        if self.place.is_none() {
            return Ok(true);
        }
        let Some(met) = self.advance()? else {
            return Ok(false);
        };
        let sent = met.setup.partitions;
        let (here, there) = match (self.shape.bytes(), met.setup.bytes) {
            // Nothing is in them, but they arrive: by their shares of the number.
            (0, _) | (_, 0) => (sent, self.shape.number),
            bytes => bytes,
        };
        // Where there is more room than is sent, the last partitions overlap none.
        let end = ((at + 1) * here).div_ceil(there).min(sent);
        let overlapping = (at * here / there).min(end)..end;
        if !overlapping.clone().all(|i| met.parts.settle(i)) {
            return Ok(false);
        }
        // What ended with an error has not come.
        if overlapping.clone().any(|i| met.parts.has_failed(i)) {
            met.parts.peek()?;
        }
        Ok(true)
    }
}

impl Side for Receiving {
    fn comm(&self) -> &Communicator {
        &self.comm
    }

    fn active(&self) -> &AtomicBool {
        &self.active
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    #[track_caller]
    fn begin(&self, base: *mut u8) -> Result<()> {
        self.hang_info.begin(&self.comm);
        self.base.store(base, Ordering::Relaxed);
        self.posted.store(false, Ordering::Relaxed);
        if let Some(Ok(met)) = self.met.get() {
            met.parts.reset();
        }
        self.advance().map(drop)
    }

    #[track_caller]
    fn is_over(&self) -> Result<bool> {
        let whole = Unheard::begin();
        let ended =
            self.place.is_none() || self.advance()?.is_some_and(|met| met.parts.all_settled());
        drop(whole);
        if !ended && listens() {
            self.tell();
        }
        Ok(ended)
    }

    fn parts(&self) -> Option<&Parts> {
        Some(&self.met.get()?.as_ref().ok()?.parts)
    }

    fn outcome(&self) -> Status {
        match self.place {
            None => Status::EMPTY,
            Some(place) => Status::from(Outcome {
                source: place.source,
                tag: place.tag,
                bytes: match self.met.get() {
                    Some(Ok(met)) => met.setup.partitions * met.setup.bytes,
                    _ => 0,
                },
            }),
        }
    }

    fn notify(&self, ready: &Arc<Ready>, token: u64) -> bool {
        let Some(place) = self.place else {
            return true;
        };
        // First, so that nothing comes between the check and the wait.
        if self.met.get().is_none() {
            self.comm.partitioned().notify(place.source, ready, token);
        }
        let whole = Unheard::begin();
        let ended = match self.advance() {
            Ok(Some(met)) => met.parts.notify(ready, token),
            Ok(None) => false,
            Err(_) => true,
        };
        drop(whole);
        if !ended && listens() {
            self.tell();
        }
        ended
    }

    #[track_caller]
    fn complete(&self) -> Result<()> {
        self.comm.core().wait_until(|| match self.is_over() {
            Ok(false) => None,
            ended => Some(ended.map(drop)),
        })?;
        self.parts().map_or(Ok(()), Parts::result)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if let (Some(place), None) = (self.place, self.met.get()) {
            self.comm.partitioned().give_up(&self.comm, place);
        }
    }
}

impl<T: Datatype, B: DerefMut<Target = [T]>> PartitionedRecv<T, B> {
    /// Makes progress; true if partition `at` of this end has arrived
    /// (`MPI_Parrived`): any thread may [`read`](super::Partitioned::read) it, while
    /// others are under way. True also if the request is inactive.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request has no such partition; else as
    /// [`Partitioned::wait`](super::Partitioned::wait), if the partition will not arrive. Other
    /// partitions may have.
    pub fn parrived(&self, at: usize) -> Result<bool> {
        self.comm().reported(self.side.parrived(at))
    }

    /// The elements of partition `at`, which has arrived; others may be under way.
    /// The borrow ends before the next start, which overwrites them.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request has no such partition, it has not
    /// arrived, or it is no run of whole elements ([`Partitioned::read_into`] reads those);
    /// else as [`Partitioned::parrived`](super::Partitioned::parrived).
    ///
    /// [`Partitioned::read_into`]: super::Partitioned::read_into
    pub fn read(&self, at: usize) -> Result<&[T]> {
        self.comm().reported(self.read_unreported(at))
    }

    fn read_unreported(&self, at: usize) -> Result<&[T]> {
        let base = self.arrived(at)?;
        let run = self.side.shape.elements(at).ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                format!("partition {at} is no run of whole elements (hint: read_into)"),
            )
        })?;
        let from = self.elements(base, run.start);
        // SAFETY: inside the buffer, and nothing is written there before the
        // next start, which needs `&mut` (invariant 2).
        Ok(unsafe { std::slice::from_raw_parts(from, run.len()) })
    }

    /// Copies partition `at`, which has arrived, to `values`: its elements, in the
    /// order of the layout.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if `values` has not the bytes of a partition; else as
    /// [`PartitionedRecv::read`], but for runs. Nothing is copied then.
    pub fn read_into(&self, at: usize, values: &mut [T]) -> Result<()> {
        let read = self.read_into_unreported(at, values);
        self.comm().reported(read)
    }

    fn read_into_unreported(&self, at: usize, values: &mut [T]) -> Result<()> {
        self.check_len(values.len())?;
        if self
            .side
            .shape
            .elements(at.min(self.side.shape.number - 1))
            .is_some()
        {
            values.copy_from_slice(self.read_unreported(at)?);
            return Ok(());
        }
        let view = self.side.shape.spot(at).on(self.arrived(at)?)?;
        // SAFETY: inside the buffer, which nothing writes there (invariant 2);
        // as long as `values`, whose elements have no padding.
        unsafe { view.pack(0..view.bytes(), values.as_mut_ptr().cast()) };
        Ok(())
    }

    /// Where the buffer lies, if a partition has arrived.
    fn arrived(&self, at: usize) -> Result<*mut u8> {
        if !self.side.parrived(at)? {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("partition {at} has not arrived (hint: parrived says when)"),
            ));
        }
        if self.is_active() {
            return Ok(self.side.base.load(Ordering::Relaxed));
        }
        // The buffer may have been moved or exchanged since.
        match &self.buffer {
            Some(buffer) if buffer.len() == self.side.shape.len => {
                Ok(buffer.as_ptr().cast_mut().cast())
            }
            buffer => Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "the buffer has {} elements now, and was set up with {} (hint: keep its length)",
                    buffer.as_ref().map_or(0, |buffer| buffer.len()),
                    self.side.shape.len
                ),
            )),
        }
    }
}
