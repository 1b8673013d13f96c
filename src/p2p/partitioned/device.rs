//! Partitioned transfers of a device's memory: a partition is ready from a ready event on, an
//! event or a stream's work so far, and the host does not wait for it.

use super::recv::Receiving;
use super::send::Sending;
use super::shape::{Partitions, Shape};
use super::{Side, is_active, is_started, revoke, start, status, test, wait};
use crate::comm::Communicator;
use crate::names::{Rank, Tag};
use crate::p2p::persistent::Startable;
use crate::p2p::status::Status;
use crate::p2p::waits::{Waitable, sealed};
use osier_datatype::Datatype;
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, Result};
use osier_kernels::{After, DeviceSlice};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A partitioned request of a device's memory: [`DevicePartitionedSend`] or
/// [`DevicePartitionedRecv`].
///
/// It keeps a counted handle of the memory; the other end may lie on the host. Counts and
/// the order of calls are those of [`Partitioned`](super::Partitioned). Ready events replace
/// `write` and `read`: work of streams writes a partition before the event that
/// [`pready`](DevicePartitioned::pready) names, and the library writes a receive's memory
/// behind the event that [`start`](DevicePartitioned::start) names. The types prove nothing
/// about clones of the handle: between these events and `wait` no work of the program may
/// write a partition of a send, or touch one of a receive that has not arrived.
///
/// Dropped while active, a send goes on with the partitions that are ready, and a receive
/// is given up: clones of the memory may be used at once.
pub struct DevicePartitioned<S: Side, T: Datatype> {
    side: Arc<S>,
    slice: DeviceSlice<T>,
    gives_up: bool,
}

/// A partitioned send; see [`Communicator::psend_init_device`].
pub type DevicePartitionedSend<T> = DevicePartitioned<Sending, T>;

/// A partitioned receive; see [`Communicator::precv_init_device`].
pub type DevicePartitionedRecv<T> = DevicePartitioned<Receiving, T>;

impl Communicator {
    /// As [`Communicator::psend_init`], of a device's memory. Each partition is marked with
    /// the ready event of its bytes: an event, or the work that a stream has got so far.
    ///
    /// ```no_run
    /// # fn f(comm: &osier::Communicator, stream: &osier::devices::Stream) -> osier::Result<()> {
    /// use osier::devices::DeviceSlice;
    /// let mut faces = DeviceSlice::<f64>::new(stream, 4096)?.into_inner();
    /// if comm.rank() == 0 {
    ///     let mut send = comm.psend_init_device(&faces, 4, 1, 0)?;
    ///     send.start()?;
    ///     for at in 0..4 {
    ///         // ... a kernel on `stream` that computes this partition ...
    ///         send.pready(at, stream)?;
    ///     }
    ///     send.wait()?;
    /// } else {
    ///     let mut recv = comm.precv_init_device(&mut faces, 4, 0, 0)?;
    ///     recv.start(stream)?; // may be written behind the stream's work so far
    ///     while !recv.parrived(0)? {}
    ///     // ... a kernel on any stream that reads the first partition ...
    ///     recv.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::psend_init`].
    #[track_caller]
    pub fn psend_init_device<T: Datatype>(
        &self,
        slice: &DeviceSlice<T>,
        partitions: impl Into<Partitions>,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<DevicePartitionedSend<T>> {
        let shape = Shape::new::<T>(partitions.into(), slice.len());
        let side = Sending::new(self, self.reported(shape)?, dest.into(), tag.into());
        Ok(DevicePartitioned {
            side: Arc::new(self.reported(side)?.of_device(slice.erased())),
            slice: slice.clone(),
            gives_up: false,
        })
    }

    /// As [`Communicator::precv_init`], into a device's memory. `&mut` tells which memory is
    /// written; the borrow ends with the call, since the request keeps a clone of the handle.
    ///
    /// # Errors
    /// As [`Communicator::precv_init`].
    pub fn precv_init_device<T: Datatype>(
        &self,
        slice: &mut DeviceSlice<T>,
        partitions: impl Into<Partitions>,
        source: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<DevicePartitionedRecv<T>> {
        let shape = Shape::receive::<T>(partitions.into(), slice.len());
        let side = Receiving::new(self, self.reported(shape)?, source.into(), tag.into());
        Ok(DevicePartitioned {
            side: Arc::new(self.reported(side)?.of_device(slice.erased())),
            slice: slice.clone(),
            gives_up: true,
        })
    }
}

impl<S: Side, T: Datatype> DevicePartitioned<S, T> {
    fn comm(&self) -> &Communicator {
        self.side.comm()
    }

    /// The memory; [`DevicePartitioned`] says when which part of it may be used.
    pub fn buffer(&self) -> &DeviceSlice<T> {
        &self.slice
    }

    /// Number of partitions at this end.
    pub fn partitions(&self) -> usize {
        self.side.shape().number
    }

    /// Whether the request was started and not waited for since.
    pub fn is_active(&self) -> bool {
        is_active(&*self.side)
    }

    /// As [`Partitioned::test`](super::Partitioned::test).
    pub fn test(&self) -> bool {
        test(&*self.side)
    }

    /// Waits until all partitions of a send were marked and have left the memory, or all of
    /// a receive have arrived; their bytes lie there for work that any stream gets from now
    /// on. The request is inactive then, and the memory the program's.
    ///
    /// # Errors
    /// As [`Partitioned::wait`](super::Partitioned::wait); of kind
    /// [`ErrorKind::Device`](crate::ErrorKind::Device), if the driver fails.
    #[track_caller]
    pub fn wait(&self) -> Result<Status> {
        wait(&*self.side)
    }

    /// As [`Partitioned::status`](super::Partitioned::status).
    pub fn status(&self) -> Option<Result<Status>> {
        status(&*self.side)
    }

    /// A ready event that is fixed now: work that a stream gets later is not waited for.
    fn settled(&self, ready_event: After) -> Result<After> {
        match ready_event {
            After::Stream(stream) => {
                let settled = self.slice.after_stream(&stream).settled()?;
                Ok(settled.ready_event().clone())
            }
            event => Ok(event),
        }
    }
}

impl<T: Datatype> DevicePartitionedSend<T> {
    /// Begins a transfer; no partition is ready yet.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument), if the request is active.
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        let started = start(&*self.side, std::ptr::null_mut());
        self.comm().reported(started)
    }

    /// Marks partition `at` as ready from `ready_event` on, for which the host does not
    /// wait. Any thread may mark, each partition once per start, in any order. No work may
    /// write the partition between the event and [`wait`](DevicePartitioned::wait).
    ///
    /// # Errors
    /// As [`Partitioned::pready`](super::Partitioned::pready); of kind
    /// [`ErrorKind::Device`](crate::ErrorKind::Device), if the driver fails.
    #[track_caller]
    pub fn pready(&self, at: usize, ready_event: impl Into<After>) -> Result<()> {
        let ready = self.side.pready(at, Some(&ready_event.into()));
        self.comm().reported(ready)
    }

    /// Marks each partition of a range, both ends included, in order, with one ready event.
    ///
    /// # Errors
    /// The first error of [`DevicePartitionedSend::pready`]; partitions behind it are not
    /// marked.
    #[track_caller]
    pub fn pready_range(
        &self,
        range: RangeInclusive<usize>,
        ready_event: impl Into<After>,
    ) -> Result<()> {
        self.all_ready(range, ready_event.into())
    }

    /// Marks each partition of a list, in its order, with one ready event.
    ///
    /// # Errors
    /// The first error of [`DevicePartitionedSend::pready`]; partitions behind it are not
    /// marked.
    #[track_caller]
    pub fn pready_list(&self, list: &[usize], ready_event: impl Into<After>) -> Result<()> {
        self.all_ready(list.iter().copied(), ready_event.into())
    }

    #[track_caller]
    fn all_ready(&self, all: impl Iterator<Item = usize>, ready_event: After) -> Result<()> {
        // One event for all.
        let ready_event = self.settled(ready_event);
        let ready_event = self.comm().reported(ready_event)?;
        for at in all {
            let ready = self.side.pready(at, Some(&ready_event));
            self.comm().reported(ready)?;
        }
        Ok(())
    }
}

impl<T: Datatype> DevicePartitionedRecv<T> {
    /// Begins a transfer into the memory, which the library may write from `ready_event` on:
    /// work that reads or writes the memory before belongs in front of it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument), if the request is active,
    /// and stays so. Of kind [`ErrorKind::Device`](crate::ErrorKind::Device), if the driver
    /// cannot record the event, or an error of [`wait`](DevicePartitioned::wait) that is known
    /// by now; the request is inactive then.
    #[track_caller]
    pub fn start(&mut self, ready_event: impl Into<After>) -> Result<()> {
        let started = self.start_unreported(ready_event.into());
        self.comm().reported(started)
    }

    #[track_caller]
    fn start_unreported(&self, ready_event: After) -> Result<()> {
        if self.is_active() {
            return Err(is_started());
        }
        self.side.set_ready_event(self.settled(ready_event)?);
        start(&*self.side, std::ptr::null_mut())
    }

    /// Makes progress; true if partition `at` of this end has arrived: its bytes lie there
    /// for work that any stream gets from now on. True also if the request is inactive.
    ///
    /// # Errors
    /// As [`Partitioned::parrived`](super::Partitioned::parrived).
    pub fn parrived(&self, at: usize) -> Result<bool> {
        self.comm().reported(self.side.parrived(at))
    }
}

impl<T: Datatype> Startable for DevicePartitionedSend<T> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        DevicePartitionedSend::start(self)
    }
}

/// Gives the request back, inactive, to be started again.
impl<S: Side, T: Datatype> Waitable for DevicePartitioned<S, T> {
    type Output = (Self, Status);

    fn test(&mut self) -> bool {
        DevicePartitioned::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<(Self, Status)> {
        let status = DevicePartitioned::wait(&self)?;
        Ok((self, status))
    }

    fn status(&mut self) -> Option<Result<Status>> {
        DevicePartitioned::status(self)
    }
}

impl<S: Side, T: Datatype> sealed::Notifies for DevicePartitioned<S, T> {
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

impl<S: Side, T: Datatype> Drop for DevicePartitioned<S, T> {
    fn drop(&mut self) {
        if !self.is_active() {
            return;
        }
        if self.gives_up {
            return revoke(&*self.side);
        }
        if let Some(parts) = self.side.parts() {
            let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(self.slice.erased());
            parts.detach(&owner);
        }
    }
}
