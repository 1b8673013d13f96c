//! Blocking collectives: they return when this rank's part is complete.

pub(crate) mod counts;
mod neighbors;

use super::ask::{Contribution, Destination, given, wanted};
use crate::comm::Communicator;
use crate::names::Rank;
use osier_collectives::{Call, Operation};
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::run::Combiner;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Buffer, BufferMut, RawView};

impl Communicator {
    /// Returns when all ranks have called it. Collective.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let _span = self.span(Kind::Barrier, ANY, ANY, 0);
        let result = self.barrier_within();
        self.reported(result.map_err(|e| e.context("barrier")))
    }

    #[track_caller]
    pub(crate) fn barrier_within(&self) -> Result<()> {
        let call = Call::new(Operation::Barrier, self.size() as u32);
        let small = self.small(None, None);
        self.call_small(&call, small, None, || Ok(self.barrier_ask()))
    }

    /// Copies the root's data to all ranks. Collective; all pass equally many elements
    /// of the same types, in whatever layout. On an intercommunicator the root's side
    /// passes [`ROOT`](crate::ROOT) at the root and [`PROC_NULL`](crate::PROC_NULL)
    /// elsewhere, the other side the root's rank, and only that side's data changes.
    /// The same holds for all calls with a root: it exchanges data with the other side.
    #[track_caller]
    pub fn bcast<B: BufferMut + ?Sized>(&self, data: &mut B, root: impl Into<Rank>) -> Result<()> {
        let view = data.view_mut().raw();
        let _span = self.span(Kind::Bcast, ANY, ANY, view.bytes());
        let result = self.bcast_to(view, root.into());
        self.reported(result.map_err(|e| e.context("bcast")))
    }

    #[track_caller]
    pub(crate) fn bcast_view(&self, view: RawView, root: usize) -> Result<()> {
        self.bcast_to(view, root.into())
    }

    #[inline]
    #[track_caller]
    fn bcast_to(&self, view: RawView, root: Rank) -> Result<()> {
        let mut call = Call::new(Operation::Bcast, self.size() as u32);
        let mut small = self.small(None, Some(&view));
        match root.check(self.size()) {
            Ok(Some(root)) => call = call.root(root),
            // Which is an error, or the business of two groups.
            _ => small = None,
        }
        self.call_small(&call, small, None, || self.bcast_ask(Some(view), root))
    }

    #[track_caller]
    pub(crate) fn bcast_from<T: Datatype>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.bcast_view(data.view_mut().raw(), root)
    }

    /// Collects equal contributions from all ranks at the root, in rank order. Other
    /// ranks' `recv` is not touched. The root may pass [`IN_PLACE`](crate::IN_PLACE):
    /// then its contribution lies in its place of `recv`. Collective.
    #[track_caller]
    pub fn gather<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let send = given(send);
        let recv = recv.view_mut().raw();
        let bytes = send.as_ref().map_or(0, RawView::bytes);
        let _span = self.span(Kind::Gather, ANY, ANY, bytes);
        let root = root.into();
        let mut call = Call::new(Operation::Gather, self.size() as u32);
        let mut small = None;
        if let Ok(Some(to)) = root.check(self.size())
            && let Some(send) = &send
        {
            call = call.root(to);
            let collected = Some((&recv, self.size())).filter(|_| self.rank() as u32 == to);
            small = self.small_pieces(Some((send, 1)), collected, send.bytes());
        }
        let result = self.call_small(&call, small, None, || {
            self.gather_ask(send, Some(recv), root)
        });
        self.reported(result.map_err(|e| e.context("gather")))
    }

    #[track_caller]
    pub(crate) fn gather_views(
        &self,
        send: Option<RawView>,
        recv: RawView,
        root: usize,
    ) -> Result<()> {
        self.call(self.gather_ask(send, Some(recv), root.into())?)
    }

    #[track_caller]
    pub(crate) fn gather_raw<T: Datatype>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        self.gather_views(Some(send.view().raw()), recv.view_mut().raw(), root)
    }

    /// Collects equal contributions from all ranks at all ranks. Collective; with
    /// [`IN_PLACE`](crate::IN_PLACE) a rank's contribution lies in its place of `recv`.
    /// On an intercommunicator each side gets the other's.
    #[track_caller]
    pub fn allgather<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let send = given(send);
        let recv = recv.view_mut().raw();
        let bytes = send.as_ref().map_or(0, RawView::bytes);
        let _span = self.span(Kind::Allgather, ANY, ANY, bytes);
        let mut call = Call::new(Operation::Allgather, self.size() as u32);
        let mut each = bytes;
        if send.is_none() {
            call = call.in_place();
            each = recv.bytes() / self.size();
        }
        let own = send.as_ref().map(|send| (send, 1));
        let small = self.small_pieces(own, Some((&recv, self.size())), each);
        let result = self.call_small(&call, small, None, || self.allgather_ask(send, Some(recv)));
        self.reported(result.map_err(|e| e.context("allgather")))
    }

    /// Combines the elements of all ranks, in rank order, and gives every rank the
    /// result. The association depends on the number of ranks alone where results
    /// round, so equal inputs give equal bits. Collective; with
    /// [`IN_PLACE`](crate::IN_PLACE) on all ranks the input lies in `recv`. On an
    /// intercommunicator each side gets the combination of the other's.
    #[track_caller]
    pub fn allreduce<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let send = given(send);
        let recv = recv.view_mut().raw();
        let _span = self.span(Kind::Allreduce, ANY, ANY, recv.bytes());
        let result = self.allreduce_views(send, recv, &op);
        self.reported(result.map_err(|e| e.context("allreduce")))
    }

    #[track_caller]
    pub(crate) fn allreduce_views(
        &self,
        send: Option<RawView>,
        recv: RawView,
        op: &dyn Reduction,
    ) -> Result<()> {
        let call = Call::new(Operation::Allreduce, self.size() as u32);
        let here = self.small_reduction(call, send.as_ref(), Some(&recv), op);
        self.call_reducing(here, || {
            // The call waits for the run's end, so the operator outlives it.
            self.allreduce_ask(send, Some(recv), Combiner::lent(op))
        })
    }

    #[track_caller]
    pub(crate) fn allreduce_in_place<T: Datatype>(
        &self,
        data: &mut [T],
        op: &dyn Reduction,
    ) -> Result<()> {
        self.allreduce_views(None, data.view_mut().raw(), op)
    }

    /// Combines the elements of all ranks, in rank order, at the root; elsewhere `recv`
    /// is not touched. The root may pass [`IN_PLACE`](crate::IN_PLACE). Collective; on an
    /// intercommunicator the root gets the combination of the other side's.
    #[track_caller]
    pub fn reduce<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
        op: impl Reduction,
    ) -> Result<()> {
        let (send, recv) = (given(send), recv.view_mut().raw());
        let bytes = send.as_ref().unwrap_or(&recv).bytes();
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes);
        let root = root.into();
        let mut here = None;
        if let Ok(Some(to)) = root.check(self.size()) {
            let call = Call::new(Operation::Reduce, self.size() as u32).root(to);
            let recv = Some(&recv).filter(|_| self.rank() as u32 == to);
            here = self.small_reduction(call, send.as_ref(), recv, &op);
        }
        let result = self.call_reducing(here, || {
            // The call waits for the run's end, so the operator outlives it.
            self.reduce_ask(send, Some(recv), root, Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("reduce")))
    }

    /// Gives each rank its share of the root's data, in rank order; elsewhere `send` is
    /// not looked at. The root may pass [`InPlace`](crate::collectives::InPlace) as `recv`: then
    /// its share stays where it is. Collective; on an intercommunicator the other side
    /// gets the shares.
    #[track_caller]
    pub fn scatter<S: Buffer + ?Sized, R: Destination + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let (send, recv) = (given(send), wanted(recv));
        let bytes = recv.as_ref().map_or(0, RawView::bytes);
        let _span = self.span(Kind::Scatter, ANY, ANY, bytes);
        let root = root.into();
        let mut call = Call::new(Operation::Scatter, self.size() as u32);
        let mut small = None;
        if let Ok(Some(from)) = root.check(self.size())
            && let Some(recv) = &recv
        {
            call = call.root(from);
            let sends = self.rank() as u32 == from;
            let shares = send.as_ref().filter(|_| sends);
            let shares = shares.map(|send| (send, self.size()));
            if shares.is_some() == sends {
                small = self.small_pieces(shares, Some((recv, 1)), recv.bytes());
            }
        }
        let result = self.call_small(&call, small, None, || self.scatter_ask(send, recv, root));
        self.reported(result.map_err(|e| e.context("scatter")))
    }

    /// Sends an equal share to each rank and receives one from each, in rank order.
    /// With [`IN_PLACE`](crate::IN_PLACE) on all ranks the shares of `recv` are
    /// exchanged. Collective; on an intercommunicator with the ranks of the other side.
    #[track_caller]
    pub fn alltoall<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Alltoall, ANY, ANY, recv.bytes());
        let mut call = Call::new(Operation::Alltoall, self.size() as u32);
        if send.is_none() {
            call = call.in_place();
        }
        let shares = send.as_ref().map(|send| (send, self.size()));
        let each = recv.bytes() / self.size();
        let small = self.small_pieces(shares, Some((&recv, self.size())), each);
        let result = self.call_small(&call, small, None, || self.alltoall_ask(send, Some(recv)));
        self.reported(result.map_err(|e| e.context("alltoall")))
    }

    /// Combines the elements of all ranks; each gets an equal share of the result, in
    /// rank order. With [`IN_PLACE`](crate::IN_PLACE) on all ranks the input is `recv`, and
    /// the share lies at its front. Collective; on an intercommunicator each side gets the
    /// shares of the other's, and equally many bytes are combined on both.
    #[track_caller]
    pub fn reduce_scatter_block<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let (send, recv) = (given(send), recv.view_mut().raw());
        let bytes = send.as_ref().unwrap_or(&recv).bytes();
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes);
        // `call` waits for the run's end, so the operator outlives it.
        let ask = self.reduce_scatter_block_ask(send, Some(recv), Combiner::lent(&op));
        let result = self.call_ask(ask);
        self.reported(result.map_err(|e| e.context("reduce_scatter_block")))
    }

    /// Combines the elements of ranks 0 to this one, in rank order. Collective.
    #[track_caller]
    pub fn scan<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Reduce, ANY, ANY, recv.bytes());
        let call = Call::new(Operation::Scan, self.size() as u32);
        let here = self.small_reduction(call, send.as_ref(), Some(&recv), &op);
        let result = self.call_reducing(here, || {
            // The call waits for the run's end, so the operator outlives it.
            self.scan_ask(send, Some(recv), Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("scan")))
    }

    /// Combines the elements of the ranks before this one, in rank order; on rank 0
    /// `recv` is not touched. Collective.
    #[track_caller]
    pub fn exscan<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Reduce, ANY, ANY, recv.bytes());
        let call = Call::new(Operation::Exscan, self.size() as u32);
        let here = self.small_reduction(call, send.as_ref(), Some(&recv), &op);
        let result = self.call_reducing(here, || {
            // The call waits for the run's end, so the operator outlives it.
            self.exscan_ask(send, Some(recv), Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("exscan")))
    }
}
