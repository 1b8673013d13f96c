//! A message that a matched probe took out of the queue.

use super::blocking::elements;
use super::status::Status;
use crate::comm::Communicator;
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::progress::lane::{Matched, Posted};
use osier_engine::view::zeroed_vec;
use osier_engine::view::{Buffer, BufferMut, RawView};

/// A message that only its holder can receive. Dropping it drops the message.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// if comm.rank() == 0 {
///     comm.send(&[4u8, 5], 1, 0)?;
/// } else {
///     let message = comm.mprobe(osier::ANY_SOURCE, osier::ANY_TAG)?;
///     let mut bytes = vec![0u8; message.status().bytes()];
///     message.recv(&mut bytes)?;
///     assert_eq!(bytes, [4, 5]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Debug)]
pub struct Message {
    comm: Communicator,
    matched: Option<Matched>,
    status: Status,
}

impl Message {
    pub(crate) fn new(comm: &Communicator, matched: Matched) -> Self {
        Self {
            comm: comm.clone(),
            matched: Some(matched),
            status: matched.outcome.into(),
        }
    }

    pub(crate) fn from_nobody(comm: &Communicator) -> Self {
        Self {
            comm: comm.clone(),
            matched: None,
            status: Status::EMPTY,
        }
    }

    /// Source, tag and size.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Truncated`](crate::ErrorKind::Truncated), if the message is longer
    /// than the buffer; else as [`Communicator::recv`], of a sender that fails or gives up the
    /// message before all of it has come.
    #[track_caller]
    pub fn recv<B: BufferMut + ?Sized>(mut self, buffer: &mut B) -> Result<Status> {
        let received = self.recv_raw(buffer.view_mut().raw());
        self.comm.reported(received)
    }

    /// Receives it into a new vector.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Datatype`](crate::ErrorKind::Datatype), if the message is no whole
    /// number of elements; of kind [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// if there is no memory for them; else as [`Message::recv`].
    #[track_caller]
    pub fn recv_vec<T: Datatype>(mut self) -> Result<(Vec<T>, Status)> {
        let room = elements::<T>(self.status.bytes()).and_then(zeroed_vec::<T>);
        let mut v = self.comm.reported(room)?;
        let received = self.recv_raw(v.view_mut().raw());
        let status = self.comm.reported(received)?;
        debug_assert_eq!(v.view().bytes(), status.bytes());
        Ok((v, status))
    }

    #[track_caller]
    pub(super) fn recv_raw(&mut self, view: RawView) -> Result<Status> {
        match self.post(view)? {
            Some(posted) => Ok(self.comm.wait_raw(posted)?.into()),
            None => Ok(self.status),
        }
    }

    /// Begins to receive it; `None` if its source is `PROC_NULL`.
    #[track_caller]
    pub(super) fn post(&mut self, view: RawView) -> Result<Option<Posted>> {
        let Some(matched) = self.matched.take() else {
            return Ok(None);
        };
        let comm = &self.comm;
        let mut lane = comm.lane().lock();
        let posted = lane.receive_matched(view, matched);
        comm.core().after(&mut lane);
        posted.map(Some)
    }

    pub(super) fn communicator(&self) -> &Communicator {
        &self.comm
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(matched) = self.matched.take() {
            self.comm
                .core()
                .with(self.comm.lane(), |lane| lane.drop_matched(matched));
        }
    }
}
