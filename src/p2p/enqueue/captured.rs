//! Operations that are captured in a graph, and done at each launch.
//!
//! ```text
//! graph            call: shut, ring | ... | wait until open
//! progress thread                   post ... done: open
//! ```
//!
//! The driver's thread only rings; the progress thread posts the operation, as it was
//! captured. By then the graph's work before it is done, so its buffer is valid.
//!
//! # Invariants
//! 1. The graph keeps what it rings, and that keeps the buffer and the communicator.
//! 2. A graph does not run beside itself, so a latch is shut behind all waits of the
//!    launch before. Of a graph that others made executable twice, launches that run at
//!    once wait for each other's operations.

use super::{Awaited, Enqueued, Kind, Once, State, address, lock, passed};
use crate::comm::Communicator;
use crate::p2p::status::Status;
use osier_engine::completion::hold::{Hold, Latch};
use osier_engine::diagnose::waits::{Asked, hear};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::enqueued::Launched;
use osier_engine::progress::lane::Posted;
use osier_engine::view::on_device::handed_over;
use osier_kernels::{Callback, DeviceView, Stream, Valve};
use std::sync::{Arc, Mutex};

/// A captured operation.
pub(super) struct Captured {
    comm: Communicator,
    kind: Kind,
    view: DeviceView<u8>,
    latch: Arc<Latch>,
    /// A stream without work, for ready events that have passed.
    idle: Stream,
    stream: usize,
    /// Of the last launch.
    last: Mutex<Option<Arc<Once>>>,
}

impl Captured {
    /// Captures the begin of an operation.
    pub fn new(
        comm: &Communicator,
        stream: &Stream,
        view: DeviceView<u8>,
        kind: Kind,
    ) -> Result<Arc<Captured>> {
        // A buffer that no launch could hand over is an error now.
        let idle = Stream::new(stream.context())?;
        let raw = handed_over(view.after(&passed(&idle)?), kind.usage());
        if let Some(memory) = raw.as_device() {
            memory.check()?;
        }
        let captured = Arc::new(Captured {
            comm: comm.clone(),
            kind,
            view,
            latch: Latch::new(Valve::new(stream.context())?),
            idle,
            stream: address(stream),
            last: Mutex::default(),
        });
        let rings = captured.clone();
        stream.call(&Callback::new(move || {
            rings.latch.shut();
            if !rings.comm.core().ring(rings.clone()) {
                rings.latch.ended();
            }
        }))?;
        Ok(captured)
    }

    /// Has a captured stream wait for each launch's operation.
    pub fn hold(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        if !stream.is_captured()? {
            return Err(Error::new(
                ErrorKind::Device,
                "a stream that is not captured waits for a captured operation (hint: wait \
                 inside of the capture, or for the graph)",
            ));
        }
        stream.keep(self.clone())?;
        Ok(self.latch.valve.hold(stream)?)
    }

    pub fn is_idle(&self) -> bool {
        self.latch.is_idle()
    }

    /// Tells a thread that listens what the last launch waits for.
    #[cold]
    pub fn tell(&self) {
        match lock(&self.last).clone() {
            Some(last) if !last.poll(&self.comm) => {}
            // A launch that no thread has begun yet.
            _ => hear(Asked::OTHER),
        }
    }

    pub fn result(&self) -> Option<Result<Status>> {
        let last = lock(&self.last).clone()?;
        last.poll(&self.comm);
        last.result()
    }

    fn post(&self) -> Result<Posted> {
        let raw = handed_over(self.view.after(&passed(&self.idle)?), self.kind.usage());
        self.kind.post(&self.comm, raw)
    }
}

impl Launched for Captured {
    fn begin(&self) {
        let comm = &self.comm;
        let (state, handle) = match self.post() {
            Ok(Posted::Pending(handle)) => {
                (State::Pending(Awaited::Operation(handle)), Some(handle))
            }
            Ok(Posted::Done(outcome)) => (
                State::Ended {
                    result: Ok(outcome.into()),
                    reported: false,
                },
                None,
            ),
            Err(e) => (
                State::Ended {
                    result: Err(e),
                    reported: false,
                },
                None,
            ),
        };
        *lock(&self.last) = Some(comm.on_streams().add(self.stream, state));
        match handle {
            Some(handle) => {
                let hold = Hold::launched(comm.core(), &self.latch);
                comm.core()
                    .with(comm.lane(), |lane| lane.hold(handle, hold));
            }
            None => self.latch.ended(),
        }
    }

    fn latch(&self) -> &Arc<Latch> {
        &self.latch
    }
}

/// Enqueued handles are shared between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Enqueued>();
};
