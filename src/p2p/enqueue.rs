//! Operations enqueued on a stream of a device.
//!
//! [`Communicator::on_stream`] says on which; the call returns at once.
//!
//! ```text
//! stream   kernel | send | kernel | recv | kernel
//!                   ^      ^        ^      ^
//!                   |      |        |      the message lies in the buffer
//!                   |      |        the buffer may be written
//!                   |      the buffer may be used again
//!                   the buffer's bytes are valid
//! ```
//!
//! No thread of the host waits: an event says when the stream has come to the operation,
//! and a stream semaphore stops the stream until that completes. The rank's progress thread makes
//! progress as long as a stream waits.
//!
//! An operation takes its place among the rank's messages when it is enqueued; one that
//! is captured in a graph, whenever a launch comes to it ([`captured`]).
//!
//! # Invariants
//! 1. A stream continues when its operation completes, also with an error.
//! 2. An error is returned once: by the handle, or by the next call on the stream.
//!
//! # Sources
//! H. Zhou et al., "MPIX Stream: An Explicit Solution to Hybrid MPI+X Programming",
//! EuroMPI 2022: operations that are enqueued on a communicator's stream. NCCL's calls
//! take the stream as an argument; here [`OnStream`] is both.

mod captured;
mod copied;
mod in_graph;
mod once;

use super::status::Status;
use crate::comm::Communicator;
use crate::names::{self, Rank, Source, Tag, TagSelector};
pub(crate) use captured::Work;
use captured::{Captured, Message};
use in_graph::InGraph;
use once::Once;
pub(crate) use once::{Awaited, MOST_HELD, State};
use osier_engine::completion::hold::Hold;
use osier_engine::device::{UnderWay, Use};
use osier_engine::diagnose::waits::listens;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::Pattern;
use osier_engine::progress::lane::{Mode, Posted};
use osier_engine::progress::owed::Later;
use osier_engine::view::RawView;
use osier_engine::view::on_device::{DeviceBuffer, handed_over};
use osier_kernels::exchange;
use osier_kernels::{After, DeviceError, Ordered, Stream, StreamSemaphore};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator and the stream on which its operations are enqueued; see
/// [`Communicator::on_stream`].
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a> {
    comm: &'a Communicator,
    stream: &'a Stream,
}

/// An enqueued operation. It continues if this is dropped; cheap to clone.
#[derive(Clone, Debug)]
pub struct Enqueued {
    comm: Communicator,
    what: What,
}

#[derive(Clone)]
enum What {
    Once(Arc<Once>),
    Captured(Arc<Captured>),
    /// All of it is a kernel of a graph.
    InGraph(Arc<InGraph>),
}

impl std::fmt::Debug for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            What::Once(_) => "an operation",
            What::Captured(_) => "a captured operation",
            What::InGraph(_) => "a captured kernel",
        })
    }
}

/// What is enqueued.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Send { dest: u32, tag: u32, mode: Mode },
    Receive(Pattern),
}

impl Kind {
    fn usage(self) -> Use {
        match self {
            Kind::Send { .. } => Use::Read,
            Kind::Receive(_) => Use::Write,
        }
    }

    #[track_caller]
    fn post(self, comm: &Communicator, view: RawView) -> Result<Posted> {
        if let Some(memory) = view.as_device() {
            memory.check()?;
        }
        match self {
            Kind::Send { dest, tag, mode } => comm.isend_raw(view, dest, tag, mode),
            Kind::Receive(pattern) => comm.irecv_raw(view, pattern),
        }
    }
}

impl Communicator {
    /// This communicator on a stream: its operations are enqueued there, as kernels are,
    /// and the calls return at once.
    ///
    /// A send begins when the stream's work so far is done, and a receive writes its
    /// buffer then; what is queued on the stream afterwards comes behind the operation's
    /// end. Memory is of the stream's device, or pinned. In a [`Graph::capture`], or in a
    /// capture of another library such as torch, the operation is done at each launch. To
    /// capture a collective call is collective as well, as for persistent calls; the ranks may
    /// launch their graphs in different orders.
    ///
    /// ```no_run
    /// use osier::devices::{Context, DeviceSlice, Stream, copy};
    ///
    /// # fn main() -> osier::Result<()> {
    /// let universe = osier::init()?;
    /// let comm = universe.world();
    /// let stream = Stream::new(&Context::new(0)?)?;
    /// let mut halo = DeviceSlice::<f64>::new(&stream, 1 << 20)?.into_inner();
    /// if comm.rank() == 0 {
    ///     copy::fill(&stream, &halo.after_stream(&stream), 0)?; // any kernel
    ///     comm.on_stream(&stream).send(&halo, 1, 0)?;
    ///     copy::fill(&stream, &halo.after_stream(&stream), 1)?; // behind the send
    /// } else {
    ///     comm.on_stream(&stream).recv(&mut halo, 0, 0)?;
    ///     // Kernels that are queued here find the message.
    /// }
    /// comm.on_stream(&stream).synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// After an operation that fails the stream continues, with the old bytes of the buffer.
    /// [`Enqueued::status`] returns the error, else the next call for the same stream, which
    /// then does nothing else.
    ///
    /// A collective that one rank enqueues, all enqueue: it meets no call that waits, as
    /// nonblocking calls of MPI meet no blocking ones.
    ///
    /// A stream waits for 128 operations at most: a call that has it wait for one more waits
    /// itself until one of them completes, as drivers take a limited number of works that wait.
    ///
    /// [`Graph::capture`]: crate::devices::Graph::capture
    pub fn on_stream<'a>(&'a self, stream: &'a Stream) -> OnStream<'a> {
        self.core().devices.prepare(stream.context());
        OnStream { comm: self, stream }
    }
}

impl OnStream<'_> {
    /// Enqueues a send (standard mode): the stream continues when the buffer may be used
    /// again.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`] or [`ErrorKind::Tag`], if there is no such rank or tag; of
    /// kind [`ErrorKind::RankDead`] or [`ErrorKind::Closed`], if the destination has failed or
    /// left; of kind [`ErrorKind::Device`], if the driver fails; of kind [`ErrorKind::System`],
    /// if no thread can make progress for the stream. The error of an operation enqueued on this
    /// stream before, if no call has returned it: nothing is enqueued then. What fails later is
    /// an error of [`Enqueued::status`].
    #[track_caller]
    pub fn send<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        let begun = self.isend(buffer, dest, tag)?;
        self.held(begun)
    }

    /// Enqueues a send (synchronous mode): the stream continues when the receiver has begun
    /// to receive.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn ssend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        let begun = self.issend(buffer, dest, tag)?;
        self.held(begun)
    }

    /// As [`OnStream::send`], where the caller knows that the receive is posted (ready
    /// mode).
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn rsend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        let begun = self.begin_send(buffer, dest.into(), tag.into(), Mode::Ready)?;
        self.held(begun)
    }

    /// Enqueues a receive: the stream continues when the message lies in the buffer.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn recv<B: DeviceBuffer>(
        &self,
        buffer: &mut B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Enqueued> {
        let begun = self.irecv(buffer, source, tag)?;
        self.held(begun)
    }

    /// Enqueues a send and a receive at the same time; what is returned is the receive.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn sendrecv<S: DeviceBuffer, R: DeviceBuffer>(
        &self,
        send: &S,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        recv: &mut R,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<Enqueued> {
        let received = self.irecv(recv, source, recv_tag)?;
        match self.isend(send, dest, send_tag) {
            Ok(sent) => {
                self.held(sent)?;
                self.held(received)
            }
            Err(e) => {
                received.revoke();
                Err(e)
            }
        }
    }

    /// Has the stream wait for what has begun, which is taken back if it cannot.
    #[track_caller]
    fn held(&self, begun: Enqueued) -> Result<Enqueued> {
        match self.wait(&begun) {
            Ok(()) => Ok(begun),
            Err(e) => {
                begun.revoke();
                Err(e)
            }
        }
    }

    /// Enqueues the begin of a send: the stream continues at once, and may wait later
    /// ([`OnStream::wait`]). No work may write the buffer before.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn isend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        self.begin_send(buffer, dest.into(), tag.into(), Mode::Standard)
    }

    /// As [`OnStream::isend`], in synchronous mode.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn issend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        self.begin_send(buffer, dest.into(), tag.into(), Mode::Synchronous)
    }

    /// Enqueues the begin of a receive: the stream continues at once, and may wait later
    /// ([`OnStream::wait`]). No work may use the buffer before.
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn irecv<B: DeviceBuffer>(
        &self,
        buffer: &mut B,
        source: impl Into<Source>,
        tag: impl Into<TagSelector>,
    ) -> Result<Enqueued> {
        let pattern = names::pattern(source.into(), tag.into(), self.comm.peer_count());
        match self.comm.reported(pattern)? {
            Some(pattern) => self.begin(buffer, Kind::Receive(pattern)),
            None => self.nobody(),
        }
    }

    #[track_caller]
    fn begin_send<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: Rank,
        tag: Tag,
        mode: Mode,
    ) -> Result<Enqueued> {
        let tag = self.comm.reported(tag.check())?;
        match self.comm.reported(dest.check(self.comm.peer_count()))? {
            Some(dest) => self.begin(buffer, Kind::Send { dest, tag, mode }),
            None => self.nobody(),
        }
    }

    #[track_caller]
    fn nobody(&self) -> Result<Enqueued> {
        self.comm.reported(self.earlier())?;
        Ok(self.enqueued(State::ended(Ok(Status::EMPTY))))
    }

    #[track_caller]
    fn begin<B: DeviceBuffer>(&self, buffer: &B, kind: Kind) -> Result<Enqueued> {
        let begun = self.begin_unreported(buffer, kind);
        self.comm.reported(begun)
    }

    #[track_caller]
    fn begin_unreported<B: DeviceBuffer>(&self, buffer: &B, kind: Kind) -> Result<Enqueued> {
        self.earlier()?;
        self.comm.core().need_progress_thread()?;
        let view = buffer.device_view()?;
        if self.stream.is_captured()? {
            // A launch begins it when the work before it is done.
            let view = handed_over(Ordered::new(view, After::Now), kind.usage());
            return self.captured(Box::new(Message { kind, view }));
        }
        let view = handed_over(view.after_stream(self.stream), kind.usage());
        let posted = kind.post(self.comm, view)?;
        Ok(self.enqueued(State::begun(Ok(posted))))
    }

    fn captured(&self, work: Box<dyn Work>) -> Result<Enqueued> {
        let captured = Captured::new(self.comm, self.stream, work)?;
        Ok(Enqueued {
            comm: self.comm.clone(),
            what: What::Captured(captured),
        })
    }

    fn enqueued(&self, state: State) -> Enqueued {
        let once = self.comm.on_streams().add(address(self.stream), state);
        Enqueued {
            comm: self.comm.clone(),
            what: What::Once(once),
        }
    }

    /// Of which communicator, and on which stream.
    pub(crate) fn parts(&self) -> (&Communicator, &Stream) {
        (self.comm, self.stream)
    }

    /// Has the stream wait for a run that has begun.
    #[track_caller]
    pub(crate) fn hold_collective(&self, id: u32, name: &'static str) -> Result<Enqueued> {
        self.held(self.enqueued(State::Pending(Awaited::Run(id, name))))
    }

    /// What a captured kernel does at each launch.
    pub(crate) fn in_graph(&self, kernel: exchange::InGraph, name: &'static str) -> Enqueued {
        let in_graph = Arc::new(InGraph::new(self.comm, address(self.stream), kernel, name));
        self.comm.on_streams().add_in_graph(&in_graph);
        // As long as the graph, so that it is told of.
        let kept = self.stream.keep(in_graph.clone());
        debug_assert!(kept.is_ok(), "it was captured");
        Enqueued {
            comm: self.comm.clone(),
            what: What::InGraph(in_graph),
        }
    }

    /// A run that has begun on the stream itself.
    pub(crate) fn begun_collective(&self, id: u32, name: &'static str) -> Enqueued {
        let run = Awaited::Run(id, name);
        run.hold(self.comm, Hold::by_kernel(self.comm.core()));
        self.enqueued(State::Pending(run))
    }

    /// Has a captured stream begin what each launch is to do, and wait for it.
    #[track_caller]
    pub(crate) fn hold_captured(&self, work: Box<dyn Work>) -> Result<Enqueued> {
        let begun = self.comm.reported(self.captured(work))?;
        self.held(begun)
    }

    /// The error of an operation on this stream that no call has returned.
    pub(crate) fn earlier(&self) -> Result<()> {
        let (comm, stream) = (self.comm, address(self.stream));
        match comm.on_streams().first_error(comm, stream) {
            Some(e) => Err(e.context("an operation enqueued earlier")),
            None => Ok(()),
        }
    }

    /// Makes the stream wait until an operation completes that was enqueued on this stream
    /// or another.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Device`], if the stream is captured and the operation is not, or
    /// the reverse, or the driver fails.
    #[track_caller]
    pub fn wait(&self, enqueued: &Enqueued) -> Result<()> {
        let waits = self.wait_unreported(enqueued);
        self.comm.reported(waits)
    }

    #[track_caller]
    fn wait_unreported(&self, enqueued: &Enqueued) -> Result<()> {
        let captured = self.stream.is_captured()?;
        match &enqueued.what {
            What::Captured(operation) => operation.hold(self.stream),
            What::InGraph(kernel) => kernel.hold(self.stream),
            What::Once(_) if captured => Err(DeviceError::Capture(
                "a wait for an operation that was enqueued outside of the capture (hint: \
                 enqueue it inside, or wait before the capture)",
            )
            .into()),
            What::Once(once) => {
                if !matches!(*lock(&once.state), State::Pending(_)) {
                    return Ok(());
                }
                let (comm, stream) = (&enqueued.comm, address(self.stream));
                comm.on_streams().make_room(comm, stream);
                let semaphore = StreamSemaphore::new(self.stream.context())?;
                semaphore.hold(self.stream)?;
                once.held_by(stream);
                let hold = Hold::new(comm.core(), semaphore);
                let _later = Later::begin(comm.lane());
                // Nobody takes the result meanwhile: a handle could be another's then.
                let state = lock(&once.state);
                if let State::Pending(awaited) = *state {
                    awaited.hold(comm, hold);
                }
                Ok(())
            }
        }
    }

    /// Has the stream wait for all of several operations.
    ///
    /// # Errors
    /// As [`OnStream::wait`].
    #[track_caller]
    pub fn wait_all<'e>(&self, all: impl IntoIterator<Item = &'e Enqueued>) -> Result<()> {
        for enqueued in all {
            self.wait(enqueued)?;
        }
        Ok(())
    }

    /// Cannot be enqueued: whether to receive, and how much, is decided by the host.
    ///
    /// # Errors
    /// Always, of kind [`ErrorKind::Unavailable`]; the hint names the calls to use.
    pub fn probe(&self, _source: impl Into<Source>, _tag: impl Into<TagSelector>) -> Result<()> {
        let e = Error::new(
            ErrorKind::Unavailable,
            "a probe enqueued on a stream: its answer is for the host (hint: \
             Communicator::probe, or a receive that is long enough and Enqueued::status)",
        );
        Err(self.comm.raise(e))
    }

    /// Waits on the host until all work of the stream is done, operations of this
    /// communicator among it. The diagnosis of hangs sees a thread that waits here, and none
    /// that waits in the driver.
    ///
    /// # Errors
    /// The first error of an operation on this stream that no call has returned; of kind
    /// [`ErrorKind::Device`], if the stream's work failed.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let (comm, stream) = (self.comm, address(self.stream));
        comm.reported(comm.may_wait("synchronize"))?;
        comm.core()
            .wait_until(|| (!comm.on_streams().is_pending(comm, stream)).then_some(()));
        let done = self.stream.synchronize().map_err(Error::from);
        self.comm.reported(self.earlier().and(done))
    }
}

fn address(stream: &Stream) -> usize {
    stream.as_raw() as usize
}

impl Enqueued {
    /// Whether it is complete; of a captured one, whether no launch of it is in flight.
    /// Makes progress.
    pub fn is_over(&self) -> bool {
        self.comm.core().progress_awake();
        match &self.what {
            What::Once(once) => once.poll(&self.comm),
            What::Captured(captured) => captured.is_idle(),
            What::InGraph(kernel) => kernel.is_idle(),
        }
    }

    /// The status if it is complete, else none; of a captured one, that of the last launch.
    /// Makes progress.
    pub fn status(&self) -> Option<Result<Status>> {
        if !self.is_over() {
            return None;
        }
        let result = match &self.what {
            What::Once(once) => once.result(),
            What::Captured(captured) => captured.result(),
            What::InGraph(kernel) => kernel.result(),
        };
        result.map(|result| self.comm.reported(result))
    }

    /// Waits on the host until it is complete.
    ///
    /// # Errors
    /// The operation has failed.
    #[track_caller]
    pub fn wait(&self) -> Result<Status> {
        self.comm.reported(self.comm.may_wait("wait"))?;
        let core = self.comm.core();
        // Nobody rings when the kernel ends.
        let in_graph = matches!(self.what, What::InGraph(_));
        let _busy = in_graph.then(|| UnderWay::new(&core.devices));
        let result = core.wait_until(|| match &self.what {
            What::Once(once) => once.poll(&self.comm).then(|| once.result()),
            What::Captured(captured) => {
                let idle = captured.is_idle();
                if !idle && listens() {
                    captured.tell();
                }
                idle.then(|| captured.result())
            }
            What::InGraph(kernel) => kernel.is_idle().then(|| kernel.result()),
        });
        self.comm.reported(result.unwrap_or(Ok(Status::EMPTY)))
    }

    /// Revokes it on the host: streams that wait for it continue.
    #[track_caller]
    fn revoke(&self) {
        if let What::Once(once) = &self.what {
            let mut state = lock(&once.state);
            if let State::Pending(awaited) = *state {
                *state = State::Ended {
                    result: Ok(Status::CANCELLED),
                    reported: true,
                };
                drop(state);
                match awaited {
                    Awaited::Operation(handle) => self.comm.revoke_raw(handle),
                    Awaited::Run(id, _) => self.comm.give_up_collective(id),
                }
            }
        }
    }
}
