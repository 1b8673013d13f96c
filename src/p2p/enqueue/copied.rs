//! Operations that send a copy: the stream makes it in memory of its own.

use super::{Enqueued, OnStream};
use crate::names::{Rank, Source, Tag, TagSelector};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::Mode;
use osier_engine::view::on_device::DeviceBuffer;
use osier_kernels::{DeviceSlice, DeviceView};

impl OnStream<'_> {
    /// Enqueues a buffered send: the stream copies the message and continues; the
    /// result is the send of the copy. The memory is the stream's, in sequence with its
    /// work, as with MPI's automatic buffering (MPI 5.0, section 3.6); nothing is attached.
    ///
    /// # Errors
    /// As [`OnStream::send`]; out of memory; the stream is captured (what a launch would
    /// copy to belongs to no launch).
    #[track_caller]
    pub fn bsend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        let copy = self.copied(buffer);
        let copy = self.comm.reported(copy)?;
        self.isend(&copy, dest, tag)
    }

    /// As [`OnStream::isend`], where the caller knows that the receive is posted (ready
    /// mode).
    ///
    /// # Errors
    /// As [`OnStream::send`].
    #[track_caller]
    pub fn irsend<B: DeviceBuffer>(
        &self,
        buffer: &B,
        dest: impl Into<Rank>,
        tag: impl Into<Tag>,
    ) -> Result<Enqueued> {
        self.begin_send(buffer, dest.into(), tag.into(), Mode::Ready)
    }

    /// Enqueues a send of a buffer and a receive into the same; what is returned is the
    /// receive.
    ///
    /// # Errors
    /// As [`OnStream::bsend`].
    #[track_caller]
    pub fn sendrecv_replace<B: DeviceBuffer>(
        &self,
        buffer: &mut B,
        dest: impl Into<Rank>,
        send_tag: impl Into<Tag>,
        source: impl Into<Source>,
        recv_tag: impl Into<TagSelector>,
    ) -> Result<Enqueued> {
        let copy = self.copied(buffer);
        let copy = self.comm.reported(copy)?;
        self.sendrecv(&copy, dest, send_tag, buffer, source, recv_tag)
    }

    /// A copy of the same layout, made by the stream behind its work so far.
    fn copied<B: DeviceBuffer>(&self, buffer: &B) -> Result<DeviceView<B::Element>> {
        if self.stream.is_captured()? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a send of a copy in a captured graph: the copy would belong to all launches (hint: copy within the graph, and send that)",
            ));
        }
        let view = buffer.device_view()?;
        let (low, high) = view.layout().span(view.count());
        let element = size_of::<B::Element>().max(1);
        let origin = low.min(0).unsigned_abs().div_ceil(element);
        let end = high.max(0).unsigned_abs().div_ceil(element);
        let place = DeviceSlice::<B::Element>::new(self.stream, origin + end)?.into_inner();
        let copy = DeviceView::new(&place, origin, view.layout(), view.count())?;
        let bytes = view.packed_bytes();
        if bytes > 0 {
            let (from, to) = (
                view.after_stream(self.stream),
                copy.after_stream(self.stream),
            );
            let devices = &self.comm.core().devices;
            devices.copy(self.stream, &from, &to, bytes)?;
        }
        Ok(copy)
    }
}
