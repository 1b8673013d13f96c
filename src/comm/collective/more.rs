//! Collective calls that wait, with equal contributions: the others.

use super::ask::{Contribution, Destination, given, wanted};
use crate::comm::Communicator;
use crate::names::Rank;
use osier_collectives::{Call, Operation};
use osier_engine::error::Result;
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::run::Combiner;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Buffer, BufferMut, RawView};

impl Communicator {
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
    /// not looked at. The root may pass [`InPlace`](crate::InPlace) as `recv`: then
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
