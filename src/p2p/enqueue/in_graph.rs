//! Kernels of captured graphs that are all of an operation: the host has no part in a launch.
//!
//! Each launch writes how it has ended into a word of the host. The word is of the last one:
//! an error is told until a launch behind it succeeds.

use super::lock;
use crate::comm::Communicator;
use crate::p2p::status::Status;
use osier_engine::completion::hold::Hold;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::executor::{Driver, differs, rank_failed};
use osier_kernels::exchange::{self, Verdict};
use osier_kernels::{DeviceError, Stream};
use std::sync::Mutex;

/// A captured kernel.
pub(super) struct InGraph {
    comm: Communicator,
    kernel: exchange::InGraph,
    stream: usize,
    name: &'static str,
    /// A call has returned the error that the word says.
    reported: Mutex<bool>,
    /// While a launch may wait for other ranks.
    #[allow(dead_code, reason = "it is only kept")]
    hold: Hold,
}

impl InGraph {
    pub fn new(
        comm: &Communicator,
        stream: usize,
        kernel: exchange::InGraph,
        name: &'static str,
    ) -> InGraph {
        InGraph {
            comm: comm.clone(),
            kernel,
            stream,
            name,
            reported: Mutex::new(false),
            hold: Hold::by_kernel(comm.core()),
        }
    }

    pub fn is_of(&self, stream: usize) -> bool {
        self.stream == stream
    }

    /// Whether no launch is known to be in flight.
    pub fn is_idle(&self) -> bool {
        self.kernel.verdict().is_some()
    }

    /// How the last launch has ended, which counts as returned; none: it is in flight.
    pub fn result(&self) -> Option<Result<Status>> {
        let verdict = self.kernel.verdict()?;
        *lock(&self.reported) = verdict != Verdict::Fine;
        Some(self.error(verdict).map_or(Ok(Status::EMPTY), Err))
    }

    /// An error that no call has returned; it counts as returned now.
    pub fn unreported(&self) -> Option<Error> {
        let verdict = self.kernel.verdict()?;
        let e = self.error(verdict);
        let before = std::mem::replace(&mut *lock(&self.reported), e.is_some());
        e.filter(|_| !before)
    }

    fn error(&self, verdict: Verdict) -> Option<Error> {
        let runs = self.comm.runs_on();
        let e = match verdict {
            Verdict::Fine => return None,
            Verdict::Failed(rank) => rank_failed(rank),
            Verdict::Differs(rank) => differs(rank, runs.rank()),
            Verdict::Stopped => {
                let lost = runs.core().with(runs.lane(), |lane| lane.lost(u32::MAX));
                let stopped = || {
                    let told = "the kernel of a graph was told to stop, as a rank took no part";
                    Error::new(ErrorKind::Cancelled, told)
                };
                lost.map_or_else(stopped, |lost| lost.error)
            }
        };
        Some(e.context(self.name))
    }

    /// Has a captured stream wait for it.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        if !stream.is_captured()? {
            return Err(Error::from(DeviceError::Capture(
                "a stream that is not captured waits for a captured operation (hint: wait \
                 inside of the capture, or for the graph)",
            )));
        }
        Ok(stream.wait(self.kernel.event())?)
    }
}
