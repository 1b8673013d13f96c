//! Blocking collectives: they return when this rank's part is complete.

pub(crate) mod counts;
mod neighbors;

use super::ask::{Contribution, Destination, given, wanted};
use super::inline::of_host;
use crate::comm::Communicator;
use crate::names::Rank;
use osier_collectives::{Call, Operation};
use osier_datatype::Datatype;
use osier_engine::error::Result;
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::run::Combiner;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Buffer, BufferMut, Plain, RawView};

impl Communicator {
    /// Returns when all ranks have called it. Collective.
    ///
    /// No rank leaves it before all have come. Messages are not waited for: a send that was
    /// begun may still be in flight.
    ///
    /// Collective calls of one communicator are made by all its ranks in the same order, each
    /// as the same call; messages of `send` and `recv` never meet theirs.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// comm.barrier()?;
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`](crate::ErrorKind::RankDead) or
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), if a rank has failed or left without
    /// having done its part; of kind [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), if
    /// the call has failed on another rank, whose own error says why. A rank whose part was
    /// complete before has succeeded, so ranks may differ. All later collective calls of a
    /// communicator with a failed rank fail; after other errors it can be used again.
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
        self.call_small(&call, small, || Ok(self.barrier_ask()))
    }

    /// Copies the root's data to all ranks. Collective; all pass equally many elements
    /// of the same types, in whatever layout. On an intercommunicator the root's side
    /// passes [`ROOT`](crate::ROOT) at the root and [`PROC_NULL`](crate::PROC_NULL)
    /// elsewhere, the other side the root's rank, and only that side's data changes.
    /// The same holds for all calls with a root: it exchanges data with the other side.
    ///
    /// The buffer is the rank's own again when the call returns; others may not have their data
    /// yet.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut data = if comm.rank() == 1 { [1, 2, 3] } else { [0; 3] };
    /// comm.bcast(&mut data, 1)?;
    /// assert_eq!(data, [1, 2, 3]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::barrier`]. Of kind [`ErrorKind::Rank`](crate::ErrorKind::Rank), if a
    /// rank that is named does not exist; of kind
    /// [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) or
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument), if ranks pass different numbers of
    /// bytes, as far as they meet, or sizes that ranks cannot share equally; of kind
    /// [`ErrorKind::Buffer`](crate::ErrorKind::Buffer), if data lie in place where they may
    /// not; of kind [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), if there is no
    /// memory for the call; of kind [`ErrorKind::Device`](crate::ErrorKind::Device), if memory
    /// is a device's and its driver fails. A rank with such an error takes part as one that has
    /// failed, so the others are not left waiting.
    #[track_caller]
    pub fn bcast<B: BufferMut + ?Sized>(&self, data: &mut B, root: impl Into<Rank>) -> Result<()> {
        let root = root.into();
        let quick = match (data.plain_mut(), root.check(self.size())) {
            (Some(Plain { at, bytes, .. }), Ok(Some(root))) => {
                let memory = (std::ptr::null_mut(), at, bytes);
                self.quick((Operation::Bcast, root), memory, None)
            }
            _ => None,
        };
        let ask = || self.bcast_ask(Some(data.view_mut().raw()), root);
        if let Some(result) = self.ended_quickly(quick, "bcast", ask) {
            return result;
        }
        let view = data.view_mut().raw();
        let _span = self.span(Kind::Bcast, ANY, ANY, view.bytes());
        let result = self.bcast_to(view, root);
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
        self.call_small(&call, small, || self.bcast_ask(Some(view), root))
    }

    #[track_caller]
    pub(crate) fn bcast_from<T: Datatype>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.bcast_view(data.view_mut().raw(), root)
    }

    /// Collects equal contributions from all ranks at the root, in rank order. Other
    /// ranks' `recv` is not touched. The root may pass [`IN_PLACE`](crate::IN_PLACE):
    /// then its contribution lies in its place of `recv`. Collective.
    ///
    /// `recv` of the root has room for as many elements as all ranks send.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut all = [0usize; 3];
    /// comm.gather(&[comm.rank() * 10], &mut all, 0)?;
    /// if comm.rank() == 0 {
    ///     assert_eq!(all, [0, 10, 20]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`].
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
        let result = self.call_small(&call, small, || self.gather_ask(send, Some(recv), root));
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
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut all = [0usize; 6];
    /// comm.allgather(&[comm.rank(), 7], &mut all)?;
    /// assert_eq!(all, [0, 7, 1, 7, 2, 7]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`].
    #[track_caller]
    pub fn allgather<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let quick = match (send.plain_contribution(), recv.plain_mut()) {
            (Some(from), Some(into)) if into.bytes == from.bytes * self.size() => {
                let memory = (from.at, into.at, from.bytes);
                self.quick((Operation::Allgather, 0), memory, None)
            }
            _ => None,
        };
        let ask = || self.allgather_ask(given(send), Some(recv.view_mut().raw()));
        if let Some(result) = self.ended_quickly(quick, "allgather", ask) {
            return result;
        }
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
        let result = self.call_small(&call, small, || self.allgather_ask(send, Some(recv)));
        self.reported(result.map_err(|e| e.context("allgather")))
    }

    /// Combines the elements of all ranks, in rank order, and gives every rank the
    /// result. The association depends on the number of ranks alone where results
    /// round, so equal inputs give equal bits. Collective; with
    /// [`IN_PLACE`](crate::IN_PLACE) on all ranks the input lies in `recv`. On an
    /// intercommunicator each side gets the combination of the other's.
    ///
    /// Element by element: all ranks pass equally many, of one type.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut sums = [0.0f64; 2];
    /// comm.allreduce(&[1.0, comm.rank() as f64], &mut sums, osier::Op::Sum)?;
    /// assert_eq!(sums, [3.0, 3.0]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`]; of kind [`ErrorKind::Datatype`](crate::ErrorKind::Datatype),
    /// if the operator is not defined for the elements, or their type is not known.
    ///
    /// # Panics
    /// If the operator is a function that panics.
    #[track_caller]
    pub fn allreduce<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let memory = (send.plain_contribution(), recv.plain_mut().map(Some));
        let quick = self.quick_reduction((Operation::Allreduce, 0), memory.0, memory.1, &op);
        let ask = || {
            let recv = recv.view_mut().raw();
            let ask = self.allreduce_ask(given(send), Some(recv), Combiner::lent(&op));
            ask.map(of_host)
        };
        if let Some(result) = self.ended_quickly(quick, "allreduce", ask) {
            return result;
        }
        let send = given(send);
        let recv = recv.view_mut().raw();
        let _span = self.span(Kind::Allreduce, ANY, ANY, recv.bytes());
        let result = self.allreduce_views(send, recv, &op);
        self.reported(result.map_err(|e| e.context("allreduce")))
    }

    #[inline]
    #[track_caller]
    fn allreduce_views<R: Reduction>(
        &self,
        send: Option<RawView>,
        recv: RawView,
        op: &R,
    ) -> Result<()> {
        let call = Call::new(Operation::Allreduce, self.size() as u32);
        let here = self.small_reduction(call, send.as_ref(), Some(&recv));
        self.call_reducing(here, op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.allreduce_ask(send.clone(), Some(recv.clone()), Combiner::lent(op))
        })
    }

    /// Of memory of the host, on all ranks.
    #[track_caller]
    pub(crate) fn allreduce_in_place<T: Datatype>(
        &self,
        data: &mut [T],
        op: &dyn Reduction,
    ) -> Result<()> {
        let recv = data.view_mut().raw();
        let call = Call::new(Operation::Allreduce, self.size() as u32);
        let here = self.small_reduction(call, None, Some(&recv));
        self.call_reducing_on_host(here, &op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.allreduce_ask(None, Some(recv.clone()), Combiner::lent(op))
        })
    }

    /// Combines the elements of all ranks, in rank order, at the root; elsewhere `recv`
    /// is not touched. The root may pass [`IN_PLACE`](crate::IN_PLACE). Collective; on an
    /// intercommunicator the root gets the combination of the other side's.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut largest = [0usize];
    /// comm.reduce(&[comm.rank() + 4], &mut largest, 2, osier::Op::Max)?;
    /// if comm.rank() == 2 {
    ///     assert_eq!(largest, [6]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    ///
    /// # Panics
    /// As [`Communicator::allreduce`].
    #[track_caller]
    pub fn reduce<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
        op: impl Reduction,
    ) -> Result<()> {
        let root = root.into();
        let quick = match root.check(self.size()) {
            Ok(Some(to)) => {
                let into = match self.rank() as u32 == to {
                    true => recv.plain_mut().map(Some),
                    false => Some(None),
                };
                let from = send.plain_contribution();
                self.quick_reduction((Operation::Reduce, to), from, into, &op)
            }
            _ => None,
        };
        let ask = || {
            let recv = recv.view_mut().raw();
            let ask = self.reduce_ask(given(send), Some(recv), root, Combiner::lent(&op));
            ask.map(of_host)
        };
        if let Some(result) = self.ended_quickly(quick, "reduce", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let bytes = send.as_ref().unwrap_or(&recv).bytes();
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes);
        let mut here = None;
        if let Ok(Some(to)) = root.check(self.size()) {
            let call = Call::new(Operation::Reduce, self.size() as u32).root(to);
            let recv = Some(&recv).filter(|_| self.rank() as u32 == to);
            here = self.small_reduction(call, send.as_ref(), recv);
        }
        let result = self.call_reducing(here, &op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.reduce_ask(send.clone(), Some(recv.clone()), root, Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("reduce")))
    }

    /// Gives each rank its share of the root's data, in rank order; elsewhere `send` is
    /// not read. The root may pass [`InPlace`](crate::collectives::InPlace) as `recv`: then
    /// its share stays where it is. Collective; on an intercommunicator the other side
    /// gets the shares.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let all = [10usize, 20, 30];
    /// let mut mine = [0usize];
    /// comm.scatter(&all, &mut mine, 0)?; // the others' `all` is not read
    /// assert_eq!(mine, [10 * (comm.rank() + 1)]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`].
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
        let result = self.call_small(&call, small, || self.scatter_ask(send, recv, root));
        self.reported(result.map_err(|e| e.context("scatter")))
    }

    /// Sends an equal share to each rank and receives one from each, in rank order.
    /// With [`IN_PLACE`](crate::IN_PLACE) on all ranks the shares of `recv` are
    /// exchanged. Collective; on an intercommunicator with the ranks of the other side.
    ///
    /// A share is the buffer's elements by the number of ranks.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mine = [0, 1, 2].map(|to| 10 * comm.rank() + to);
    /// let mut theirs = [0usize; 3];
    /// comm.alltoall(&mine, &mut theirs)?;
    /// assert_eq!(theirs, [0, 1, 2].map(|from| 10 * from + comm.rank()));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`].
    #[track_caller]
    pub fn alltoall<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let size = self.size();
        if self.core().shares_cores() {
            let told = self.agree_to_read(recv.view_mut().bytes() / size);
            self.reported(told.map_err(|e| e.context("alltoall")))?;
        }
        let quick = match (send.plain_contribution(), recv.plain_mut()) {
            (Some(from), Some(into))
                if from.bytes == into.bytes && into.bytes.is_multiple_of(size) =>
            {
                let memory = (from.at, into.at, into.bytes / size);
                self.quick((Operation::Alltoall, 0), memory, None)
            }
            _ => None,
        };
        let ask = || self.alltoall_ask(given(send), Some(recv.view_mut().raw()));
        if let Some(result) = self.ended_quickly(quick, "alltoall", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Alltoall, ANY, ANY, recv.bytes());
        let mut call = Call::new(Operation::Alltoall, self.size() as u32);
        if send.is_none() {
            call = call.in_place();
        }
        let shares = send.as_ref().map(|send| (send, self.size()));
        let each = recv.bytes() / self.size();
        let small = self.small_pieces(shares, Some((&recv, self.size())), each);
        let result = self.call_small(&call, small, || self.alltoall_ask(send, Some(recv)));
        self.reported(result.map_err(|e| e.context("alltoall")))
    }

    /// Combines the elements of all ranks; each gets an equal share of the result, in
    /// rank order. With [`IN_PLACE`](crate::IN_PLACE) on all ranks the input is `recv`, and
    /// the share lies at its front. Collective; on an intercommunicator each side gets the
    /// shares of the other's, and equally many bytes are combined on both.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    ///
    /// # Panics
    /// As [`Communicator::allreduce`].
    #[track_caller]
    pub fn reduce_scatter_block<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let quick = self.quick_shares(send.plain_contribution(), recv.plain_mut(), &op);
        let ask = || {
            let recv = recv.view_mut().raw();
            let ask = self.reduce_scatter_block_ask(given(send), Some(recv), Combiner::lent(&op));
            ask.map(of_host)
        };
        if let Some(result) = self.ended_quickly(quick, "reduce_scatter_block", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let bytes = send.as_ref().unwrap_or(&recv).bytes();
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes);
        let result = self.scatter_shares(send, recv, &op);
        self.reported(result.map_err(|e| e.context("reduce_scatter_block")))
    }

    /// Combines the elements of all ranks, of which each gets an equal share.
    #[inline]
    #[track_caller]
    pub(super) fn scatter_shares<R: Reduction>(
        &self,
        send: Option<RawView>,
        recv: RawView,
        op: &R,
    ) -> Result<()> {
        let here = self.small_shares(send.as_ref(), &recv);
        self.call_reducing(here, op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.reduce_scatter_block_ask(send.clone(), Some(recv.clone()), Combiner::lent(op))
        })
    }

    /// Combines the elements of ranks 0 to this one, in rank order. Collective.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mut sum = [0usize];
    /// comm.scan(&[comm.rank() + 1], &mut sum, osier::Op::Sum)?;
    /// assert_eq!(sum, [[1], [3], [6]][comm.rank()]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::allreduce`]; of kind
    /// [`ErrorKind::Communicator`](crate::ErrorKind::Communicator), on an intercommunicator.
    ///
    /// # Panics
    /// As [`Communicator::allreduce`].
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
        let here = self.small_reduction(call, send.as_ref(), Some(&recv));
        let result = self.call_reducing(here, &op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.scan_ask(send.clone(), Some(recv.clone()), Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("scan")))
    }

    /// Combines the elements of the ranks before this one, in rank order; on rank 0
    /// `recv` is not touched. Collective.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`]; of kind
    /// [`ErrorKind::Communicator`](crate::ErrorKind::Communicator), on an intercommunicator.
    ///
    /// # Panics
    /// As [`Communicator::allreduce`].
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
        let here = self.small_reduction(call, send.as_ref(), Some(&recv));
        let result = self.call_reducing(here, &op, || {
            // The call waits for the run's end, so the operator outlives it.
            self.exscan_ask(send.clone(), Some(recv.clone()), Combiner::lent(&op))
        });
        self.reported(result.map_err(|e| e.context("exscan")))
    }
}
