//! The sending side of a partitioned transfer.

use super::parts::{IDLE, POSTING, Parts, WRITING};
use super::registry::Setup;
use super::shape::Shape;
use super::{HangInfo, PartitionedSend, SETUP, Side, no_partition, not_started};
use crate::comm::Communicator;
use crate::names::{Rank, Tag};
use crate::p2p::status::Status;
use osier_datatype::Datatype;
use osier_engine::completion::ready::Ready;
use osier_engine::device::Use;
use osier_engine::diagnose::page::Operation;
use osier_engine::diagnose::waits::{Unheard, listens};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::{Mode, Outcome, Posted};
use osier_engine::view::RawView;
use osier_kernels::{After, DeviceSlice};
use std::ops::{DerefMut, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// The sending side; see [`PartitionedSend`].
pub struct Sending {
    comm: Communicator,
    shape: Shape,
    parts: Parts,
    active: AtomicBool,
    /// The buffer while it is active.
    base: AtomicPtr<u8>,
    /// The buffer, if it is a device's.
    device: Option<DeviceSlice<u8>>,
    /// `None`: `PROC_NULL`.
    dest: Option<u32>,
    hang_info: HangInfo,
    /// Internal tag of the first partition.
    first: u32,
}

impl Sending {
    #[track_caller]
    pub(super) fn new(comm: &Communicator, shape: Shape, dest: Rank, tag: Tag) -> Result<Self> {
        let tag = tag.check()?;
        let dest = dest.check(comm.peer_count())?;
        let mut first = SETUP;
        if let Some(dest) = dest {
            first = comm.partitioned().reserve(shape.number)?;
            let setup = Setup {
                first,
                partitions: shape.number,
                bytes: shape.bytes(),
            };
            let words = Box::new(setup.words(tag));
            let raw = RawView::untyped((&raw const *words).cast_mut().cast(), 32);
            if let Posted::Pending(handle) = comm.isend_raw(raw, dest, SETUP, Mode::Standard)? {
                comm.core().with(comm.lane(), |lane| {
                    lane.set_owner(handle, words);
                    lane.detach(handle);
                });
            }
        }
        Ok(Self {
            parts: Parts::new(comm, shape.number),
            comm: comm.clone(),
            shape,
            active: AtomicBool::new(false),
            base: AtomicPtr::default(),
            device: None,
            hang_info: HangInfo::new(dest, tag),
            dest,
            first,
        })
    }

    /// Of a device's memory.
    pub(super) fn of_device(mut self, slice: DeviceSlice<u8>) -> Self {
        self.device = Some(slice);
        self
    }

    fn claim(&self, at: usize, to: u64) -> Result<&AtomicU64> {
        if !self.active.load(Ordering::Acquire) {
            return Err(not_started());
        }
        let state = self.parts.state(at);
        let state = state.ok_or_else(|| no_partition(at, self.shape.number))?;
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

    /// A partition for this thread alone, to be written (invariant 1 of the
    /// module above).
    fn claim_to_write(&self, at: usize) -> Result<Written<'_>> {
        if !self.shape.disjoint {
            return Err(Error::new(
                ErrorKind::Argument,
                "partitions that share bytes cannot be written one by one (hint: fill the buffer before the start)",
            ));
        }
        self.claim(at, WRITING).map(Written)
    }

    /// Sends a partition, of a device's memory from a ready event on.
    #[track_caller]
    pub(super) fn pready(&self, at: usize, ready_event: Option<&After>) -> Result<()> {
        self.claim(at, POSTING)?;
        let view = match (&self.device, ready_event) {
            (Some(slice), Some(ready_event)) => {
                self.shape.spot(at).on_device(slice, ready_event, Use::Read)
            }
            _ => self.view(at),
        };
        let posted = match (self.dest, view) {
            (Some(dest), Ok(part)) => {
                let tag = self.first + at as u32;
                self.comm.isend_raw(part, dest, tag, Mode::Standard)
            }
            (Some(_), Err(e)) => Err(e),
            (None, _) => Ok(Posted::Done(Outcome {
                source: 0,
                tag: 0,
                bytes: 0,
            })),
        };
        let result = self.parts.posted(at, self.comm.reported(posted));
        // A thread may sleep in `wait`.
        self.comm.core().wake_waiting();
        result
    }

    /// Reports the wait of a pending transfer to a thread that listens.
    #[cold]
    fn tell(&self) {
        let (idle, bytes) = (self.parts.idle(), self.shape.bytes());
        match idle {
            0 => {
                let open = self.parts.open() * bytes;
                self.hang_info
                    .hear(&self.comm, Operation::PartitionedSend, open);
            }
            _ => self
                .hang_info
                .hear(&self.comm, Operation::PartitionReady, idle * bytes),
        }
    }

    /// Whether all partitions that were marked have left.
    fn has_left(&self) -> bool {
        let whole = Unheard::begin();
        let settled = self.parts.posted_settled();
        drop(whole);
        if !settled && listens() {
            let open = (self.parts.open() - self.parts.idle()) * self.shape.bytes();
            self.hang_info
                .hear(&self.comm, Operation::PartitionedSend, open);
        }
        settled
    }

    fn view(&self, at: usize) -> Result<RawView> {
        self.shape.spot(at).on(self.base.load(Ordering::Relaxed))
    }
}

impl Side for Sending {
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
        self.parts.reset();
        Ok(())
    }

    fn is_over(&self) -> Result<bool> {
        let whole = Unheard::begin();
        let ended = self.parts.all_settled();
        drop(whole);
        if !ended && listens() {
            self.tell();
        }
        Ok(ended)
    }

    fn parts(&self) -> Option<&Parts> {
        Some(&self.parts)
    }

    fn outcome(&self) -> Status {
        Status::EMPTY
    }

    fn notify(&self, ready: &Arc<Ready>, token: u64) -> bool {
        let whole = Unheard::begin();
        let ended = self.parts.notify(ready, token);
        drop(whole);
        if !ended && listens() {
            self.tell();
        }
        ended
    }

    #[track_caller]
    fn complete(&self) -> Result<()> {
        let core = self.comm.core();
        core.wait_until(|| self.has_left().then_some(()));
        self.parts.result()?;
        match self.parts.idle() {
            0 => Ok(()),
            idle => Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "a scope ends, and {idle} of {} partitions of an active send were never marked ready (hint: its receiver waits for them)",
                    self.shape.number
                ),
            )),
        }
    }
}

/// Ends the state of a partition that is written, also on unwind.
struct Written<'a>(&'a AtomicU64);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

impl<T: Datatype, B: DerefMut<Target = [T]>> PartitionedSend<T, B> {
    /// Runs `f` on the elements of partition `at` of an active send that is not
    /// ready yet. Threads may write different partitions at a time, and a
    /// partition as often as they like before it is marked.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], and `f` does not run, if the request is not active,
    /// has no such partition, or another thread writes it; if it is ready already; if
    /// partitions share bytes; or if it is no run of whole elements
    /// ([`Partitioned::write_from`] writes those).
    ///
    /// [`Partitioned::write_from`]: super::Partitioned::write_from
    pub fn write<R>(&self, at: usize, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        let part = self.comm().reported(self.writable(at))?;
        let (_written, from, len) = part;
        // SAFETY: inside the buffer, and this thread's alone (invariant 1).
        let part = unsafe { std::slice::from_raw_parts_mut(from, len) };
        Ok(f(part))
    }

    fn writable(&self, at: usize) -> Result<(Written<'_>, *mut T, usize)> {
        let side = &self.side;
        let written = side.claim_to_write(at)?;
        let run = side.shape.elements(at).ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                format!("partition {at} is no run of whole elements (hint: write_from)"),
            )
        })?;
        let base = side.base.load(Ordering::Relaxed);
        Ok((written, self.elements(base, run.start), run.len()))
    }

    /// Copies `values` to partition `at` of an active send that is not ready yet:
    /// the elements of the partition, in the order of the layout.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if `values` has not the bytes of a partition; else as
    /// [`PartitionedSend::write`], but for runs. Nothing is written then.
    pub fn write_from(&self, at: usize, values: &[T]) -> Result<()> {
        let written = self.write_from_unreported(at, values);
        self.comm().reported(written)
    }

    fn write_from_unreported(&self, at: usize, values: &[T]) -> Result<()> {
        self.check_len(values.len())?;
        let _written = self.side.claim_to_write(at)?;
        let view = self.side.view(at)?;
        if let Some(run) = self.side.shape.elements(at) {
            let base = self.side.base.load(Ordering::Relaxed);
            let to = self.elements(base, run.start);
            // SAFETY: inside the buffer, as long as `values`, and this
            // thread's alone (invariant 1).
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, run.len()) };
            return Ok(());
        }
        // SAFETY: as above; elements under a layout have no padding, and are
        // as many bytes as the partition.
        unsafe { view.unpack(0..view.bytes(), values.as_ptr().cast()) };
        Ok(())
    }

    /// Marks partition `at` as ready (`MPI_Pready`): the library sends it, and the
    /// program may not write it before the next start. Any thread may mark, each
    /// partition once per start, in any order. What the thread wrote before is
    /// sent; the call does not wait for the receiver.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request is not active, has no such partition,
    /// the partition is ready already, or a thread writes it. Of kind
    /// [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if the receiver has failed or left,
    /// and of kind [`ErrorKind::OutOfMemory`], if there is no memory for the operation: the
    /// partition is marked then, and [`Partitioned::wait`](super::Partitioned::wait) returns
    /// the first of these errors again.
    #[track_caller]
    pub fn pready(&self, at: usize) -> Result<()> {
        let ready = self.side.pready(at, None);
        self.comm().reported(ready)
    }

    /// Marks each partition of a range, both ends included, in order
    /// (`MPI_Pready_range`).
    ///
    /// # Errors
    /// The first error of [`PartitionedSend::pready`]; partitions behind it are not marked.
    #[track_caller]
    pub fn pready_range(&self, range: RangeInclusive<usize>) -> Result<()> {
        for at in range {
            self.pready(at)?;
        }
        Ok(())
    }

    /// Marks each partition of a list, in its order (`MPI_Pready_list`).
    ///
    /// # Errors
    /// The first error of [`PartitionedSend::pready`]; partitions behind it are not marked.
    #[track_caller]
    pub fn pready_list(&self, list: &[usize]) -> Result<()> {
        for at in list {
            self.pready(*at)?;
        }
        Ok(())
    }
}
