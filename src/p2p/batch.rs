//! Several calls on one communicator under one lock, for layers above.

use super::persistent::Persistent;
use super::status::Status;
use super::transfer::Transfer;
use crate::comm::Communicator;
use osier_engine::error::Result;
use osier_engine::matching::Envelope;
use osier_engine::progress::cell::LaneGuard;
use osier_engine::progress::lane::Outcome;
use osier_engine::progress::window::Handle;
use osier_engine::view::OwnedBuffer;

/// Begins and ends transfers of one communicator without leaving it in between. The thread
/// makes no other call on the communicator meanwhile.
#[doc(hidden)]
pub struct Batch<'a> {
    comm: &'a Communicator,
    /// `None` while a call waits, or a handler of errors runs.
    lane: Option<LaneGuard<'a>>,
}

impl Communicator {
    /// Begins a batch; `None` where each call is recorded.
    #[doc(hidden)]
    #[inline]
    pub fn batch(&self) -> Option<Batch<'_>> {
        self.core().trace.is_none().then(|| Batch {
            comm: self,
            lane: Some(self.lane().lock()),
        })
    }
}

impl Batch<'_> {
    /// The end of a receive that has ended in its window, or whose message is there and
    /// short. `None` says nothing.
    #[inline(always)]
    pub fn end_short(&mut self, handle: Handle) -> Option<Outcome> {
        let lane = self.lane.as_mut()?;
        let bytes = lane.end_short(handle)?;
        let Envelope { source, tag } = lane.window_of();
        Some(Outcome { source, tag, bytes })
    }

    /// As [`Communicator::end_receive`].
    ///
    /// # Errors
    /// As [`Communicator::recv`], of the transfer.
    #[inline(always)]
    #[track_caller]
    pub fn end(&mut self, handle: Handle) -> Result<Outcome> {
        match self.end_short(handle) {
            Some(outcome) => Ok(outcome),
            None => self.end_slowly(handle),
        }
    }

    #[inline(never)]
    #[track_caller]
    fn end_slowly(&mut self, handle: Handle) -> Result<Outcome> {
        let ended = self.lane.as_mut().and_then(|lane| lane.end(handle));
        self.leave();
        let ended = match ended {
            Some(ended) => ended,
            None => self.comm.wait_long(handle),
        };
        let ended = self.comm.reported(ended);
        self.lane = Some(self.comm.lane().lock());
        ended
    }

    /// As [`Persistent::wait`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    #[track_caller]
    pub fn wait<B: OwnedBuffer>(&mut self, request: &mut Persistent<B>) -> Result<Status> {
        let transfer = request.transfer();
        match transfer.under_way() {
            Some(handle) if self.is_of(transfer) => {
                let ended = self.end(handle);
                transfer.forget();
                ended.map(Status::from)
            }
            _ => match transfer.take_success() {
                Some(status) => Ok(status),
                None => self.wait_slowly(request),
            },
        }
    }

    #[inline(never)]
    #[track_caller]
    fn wait_slowly<B: OwnedBuffer>(&mut self, request: &mut Persistent<B>) -> Result<Status> {
        self.leave();
        let ended = request.wait();
        self.lane = Some(self.comm.lane().lock());
        ended
    }

    /// Starts a request that has been started before, if no more is needed than to post it;
    /// false: nothing has happened.
    #[inline(always)]
    #[track_caller]
    pub fn start<B: OwnedBuffer>(&mut self, request: &mut Persistent<B>) -> bool {
        if !self.is_of(request.transfer()) {
            return false;
        }
        match &mut self.lane {
            Some(lane) => request.start_within(lane),
            None => false,
        }
    }

    /// Whether a transfer is of this communicator.
    #[inline(always)]
    fn is_of(&self, transfer: &Transfer) -> bool {
        std::ptr::eq(transfer.communicator().lane(), self.comm.lane())
    }

    fn leave(&mut self) {
        if let Some(mut lane) = self.lane.take() {
            self.comm.core().after(&mut lane);
        }
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}
