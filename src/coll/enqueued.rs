//! Collective calls enqueued on a stream of a device.
//!
//! As sends and receives there ([`OnStream`]): the run begins behind the stream's work so
//! far, the stream waits for its end, and the host for nothing. On a captured stream a call
//! sets up a persistent one, which each launch of the graph starts
//! ([`OnStream::capture_collective`]).
//!
//! # Invariants
//! 1. A call that fails at this rank takes part as one that has failed, so that the numbers
//!    of calls stay alike: also where it returns the error of an earlier operation.

use super::ask::{Ask, InPlace, mismatch};
use super::in_flight::SetUp;
use super::nonblocking::owned;
use crate::comm::Communicator;
use crate::names::Rank;
use crate::p2p::enqueue::{Awaited, Enqueued, OnStream, State, Work};
use osier_engine::check::Site;
use osier_engine::device::Use;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::executor;
use osier_engine::exec::operator::{Data, Reduction};
use osier_engine::exec::reduce_local;
use osier_engine::view::RawView;
use osier_engine::view::on_device::{DeviceBuffer, raw_of};
use osier_kernels::{After, DeviceSlice, Packer, copy};
use std::panic::Location;

/// What a rank puts into an enqueued collective: a [`DeviceBuffer`], or
/// [`IN_PLACE`](crate::IN_PLACE).
pub trait DeviceContribution {
    /// The memory, and from when on it may be used; `None`: the data lies where the result
    /// will.
    #[doc(hidden)]
    fn behind(&self, after: &After) -> Option<Behind>;
}

/// Memory, and from when it is valid.
#[doc(hidden)]
pub struct Behind(RawView);

impl<B: DeviceBuffer> DeviceContribution for B {
    fn behind(&self, after: &After) -> Option<Behind> {
        Some(Behind(raw_of(self, after, Use::Read)))
    }
}

impl DeviceContribution for InPlace {
    fn behind(&self, _: &After) -> Option<Behind> {
        None
    }
}

fn given<S: DeviceContribution>(send: &S, after: &After) -> Option<RawView> {
    send.behind(after).map(|behind| behind.0)
}

fn wanted<R: DeviceBuffer>(recv: &R, after: &After) -> Option<RawView> {
    Some(raw_of(recv, after, Use::Write))
}

/// A call that each launch of a graph begins.
struct Captured {
    set_up: SetUp,
    site: Site,
}

impl Work for Captured {
    fn check(&self) -> Result<()> {
        self.set_up.check()
    }

    fn begin(&self, comm: &Communicator) -> State {
        let name = self.set_up.name();
        match comm.launch_set_up(&self.set_up, &[], self.site) {
            Ok(id) => State::Pending(Awaited::Run(id, name)),
            Err(e) => State::ended(Err(e.context(name))),
        }
    }
}

impl OnStream<'_> {
    /// Begins a call behind the stream's work, and has the stream wait for it. `ask` is told
    /// from when on buffers may be used.
    #[track_caller]
    fn collective(&self, ask: impl FnOnce(&After) -> Result<Ask>) -> Result<Enqueued> {
        let (comm, stream) = self.parts();
        comm.reported(comm.core().need_progress_thread())?;
        if comm.reported(stream.is_captured().map_err(Error::from))? {
            // A launch begins it when the work before it is done.
            return self.capture_collective(ask(&After::Now));
        }
        let mut ask = comm.reported(ask(&After::from(stream)))?;
        // Streams come to their calls in any order.
        ask.not_in_segment();
        let (name, earlier) = (ask.name, self.earlier().err());
        ask.defers = false;
        ask.stream = Some(stream.clone());
        let runs = comm.runs_on();
        let begun = runs.begin(ask.failed(earlier.clone()));
        let id = comm.reported(begun.map_err(|e| e.context(name)))?;
        if let Some(e) = earlier {
            let nothing = Box::new(());
            runs.core()
                .with(runs.lane(), |lane| executor::detach(lane, id, nothing));
            return Err(comm.raise(e));
        }
        let lane = runs.lane();
        let there = runs
            .core()
            .with(lane, |lane| lane.executor.is_on_stream(id));
        match there {
            // The stream waits in the kernel.
            true => Ok(self.begun_collective(id, name)),
            false => self.hold_collective(id, name),
        }
    }

    /// Has each launch of the captured graph begin the call, and wait for it.
    #[track_caller]
    fn capture_collective(&self, ask: Result<Ask>) -> Result<Enqueued> {
        let (comm, _) = self.parts();
        let ask = ask.map(|mut ask| {
            ask.not_in_segment();
            ask.failed(self.earlier().err())
        });
        let (mut ask, numbers) = comm.ask_of_set_up(ask)?;
        if ask.in_one_kernel
            && let Some(enqueued) = self.capture_exchange(&ask, numbers.1)?
        {
            return Ok(enqueued);
        }
        ask.may_be_in_one_kernel(false);
        let set_up = comm.set_up_known(ask, numbers, |_| ())?;
        let site = comm.core().checks.site(Location::caller());
        self.hold_captured(Box::new(Captured { set_up, site }))
    }

    /// Enqueues a [`Communicator::barrier`](crate::Communicator::barrier): the stream goes
    /// on when the streams of all ranks have come here.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn barrier(&self) -> Result<Enqueued> {
        let (comm, stream) = self.parts();
        self.collective(|after| {
            let mut ask = comm.barrier_ask();
            if let After::Now = after {
                return Ok(ask);
            }
            let here = DeviceSlice::<u8>::new(stream, 1).and_then(|byte| {
                copy::fill(stream, &byte, 0)?;
                Ok(raw_of(&byte.into_inner(), after, Use::Read))
            });
            match here {
                Ok(here) => ask.behind = Some(here),
                Err(e) => ask = ask.failed(Some(e.into())),
            }
            Ok(ask)
        })
    }

    /// Enqueues a [`Communicator::bcast`](crate::Communicator::bcast).
    ///
    /// ```no_run
    /// # fn main() -> osier::Result<()> {
    /// # use osier::devices::{Context, DeviceSlice, Stream};
    /// let universe = osier::init()?;
    /// let stream = Stream::new(&Context::new(0)?)?;
    /// let mut weights = DeviceSlice::<f32>::new(&stream, 1 << 20)?.into_inner();
    /// let on = universe.world().on_stream(&stream);
    /// // Kernels that write the weights at rank 0, then:
    /// on.bcast(&mut weights, 0)?;
    /// // Kernels that read them, everywhere.
    /// on.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn bcast<B: DeviceBuffer>(&self, data: &mut B, root: impl Into<Rank>) -> Result<Enqueued> {
        let (comm, root) = (self.parts().0, root.into());
        self.collective(|after| comm.bcast_ask(wanted(data, after), root))
    }
}

impl OnStream<'_> {
    /// Enqueues a [`reduce_local`](crate::operators::reduce_local): `inout = input op inout`, by a kernel
    /// behind the stream's work so far. Nobody waits.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument), if the buffers differ in
    /// bytes; of kind [`ErrorKind::Datatype`](crate::ErrorKind::Datatype), if the operator is
    /// not defined for the elements; of kind
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), if no kernel combines the
    /// buffers: they have gaps, lie on another device than the stream, or the operator is a
    /// function; of kind [`ErrorKind::Device`](crate::ErrorKind::Device), if the driver fails.
    #[track_caller]
    pub fn reduce_local<S: DeviceBuffer, R: DeviceBuffer>(
        &self,
        input: &S,
        inout: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let (comm, stream) = self.parts();
        let queued = || -> Result<()> {
            // Behind the stream's work, as the kernel comes there.
            let from = raw_of(input, &After::Now, Use::Read);
            let into = raw_of(inout, &After::Now, Use::Write);
            let fit = op.fit(&Data(&into))?;
            if from.bytes() != into.bytes() {
                return Err(mismatch(format!(
                    "input of {} bytes, inout of {} (hint: both have the same count)",
                    from.bytes(),
                    into.bytes()
                )));
            }
            if into.bytes() == 0 {
                return Ok(());
            }
            let packer = Packer::new(stream.context());
            let begun = reduce_local::begin(&op, &fit, &from, &into, &packer, stream);
            let none = || {
                let told = "no kernel combines these buffers (hint: osier::operators::reduce_local goes \
                            through the host then)";
                Err(Error::new(ErrorKind::Unavailable, told))
            };
            begun.unwrap_or_else(none).map(drop)
        };
        comm.reported(queued().map_err(|e| e.context("reduce_local")))
    }
}

/// Calls of two buffers: what stands between them and behind, as in the call that waits.
macro_rules! on_stream {
    (
        $name:ident, $ask:ident, $S:ident $(($($at:ident: $At:ty),*))?
        $(, $arg:ident: $T:ty = $pass:expr)* $(; $op:ident)?
    ) => {
        impl OnStream<'_> {
            #[doc = concat!("Enqueues a [`Communicator::", stringify!($name), "`](crate::Communicator::", stringify!($name), ").")]
            ///
            /// # Errors
            /// As [`OnStream::send`].
            #[track_caller]
            pub fn $name<S: $S, R: DeviceBuffer>(
                &self,
                send: &S,
                $($($at: $At,)*)?
                recv: &mut R,
                $($arg: $T,)*
                $($op: impl Reduction + 'static,)?
            ) -> Result<Enqueued> {
                let (comm, _) = self.parts();
                self.collective(|after| {
                    let (from, to) = (given(send, after), wanted(recv, after));
                    comm.$ask(from, to, $($($at,)*)? $($pass,)* $(owned($op),)?)
                })
            }
        }
    };
}

on_stream!(gather, gather_ask, DeviceContribution, root: impl Into<Rank> = root.into());
on_stream!(gatherv, gatherv_ask, DeviceContribution,
    counts: &[usize] = counts, displacements: &[usize] = displacements,
    root: impl Into<Rank> = root.into());
on_stream!(scatter, scatter_ask, DeviceBuffer, root: impl Into<Rank> = root.into());
on_stream!(scatterv, scatterv_ask, DeviceBuffer (counts: &[usize], displacements: &[usize]),
    root: impl Into<Rank> = root.into());
on_stream!(allgather, allgather_ask, DeviceContribution);
on_stream!(allgatherv, allgatherv_ask, DeviceContribution,
    counts: &[usize] = counts, displacements: &[usize] = displacements);
on_stream!(alltoall, alltoall_ask, DeviceContribution);
on_stream!(alltoallv, alltoallv_ask, DeviceContribution (send_blocks: (&[usize], &[usize])),
    recv_blocks: (&[usize], &[usize]) = recv_blocks);
on_stream!(reduce, reduce_ask, DeviceContribution, root: impl Into<Rank> = root.into(); op);
on_stream!(allreduce, allreduce_ask, DeviceContribution; op);
on_stream!(reduce_scatter_block, reduce_scatter_block_ask, DeviceContribution; op);
on_stream!(reduce_scatter, reduce_scatter_ask, DeviceContribution,
    counts: &[usize] = counts; op);
on_stream!(scan, scan_ask, DeviceContribution; op);
on_stream!(exscan, exscan_ask, DeviceContribution; op);
on_stream!(neighbor_allgather, neighbor_allgather_ask, DeviceBuffer);
on_stream!(neighbor_allgatherv, neighbor_allgatherv_ask, DeviceBuffer,
    counts: &[usize] = counts, displacements: &[usize] = displacements);
on_stream!(neighbor_alltoall, neighbor_alltoall_ask, DeviceBuffer);
on_stream!(neighbor_alltoallv, neighbor_alltoallv_ask, DeviceBuffer (send_blocks: (&[usize], &[usize])),
    recv_blocks: (&[usize], &[usize]) = recv_blocks);

/// Calls of a buffer for each block.
macro_rules! blocks_on_stream {
    ($name:ident, $ask:ident) => {
        impl OnStream<'_> {
            #[doc = concat!("Enqueues a [`Communicator::", stringify!($name), "`](crate::Communicator::", stringify!($name), ").")]
            ///
            /// # Errors
            /// As [`OnStream::send`].
            #[track_caller]
            pub fn $name<S: DeviceBuffer, R: DeviceBuffer>(
                &self,
                send: &[S],
                recv: &mut [R],
            ) -> Result<Enqueued> {
                let (comm, _) = self.parts();
                self.collective(|after| {
                    let from = send.iter().map(|b| raw_of(b, after, Use::Read)).collect();
                    let to = recv.iter().map(|b| raw_of(b, after, Use::Write)).collect();
                    comm.$ask(from, to)
                })
            }
        }
    };
}

blocks_on_stream!(alltoallw, alltoallw_ask);
blocks_on_stream!(neighbor_alltoallw, neighbor_alltoallw_ask);
