//! Collective calls that wait, in which ranks contribute different amounts.
//!
//! Blocks are given by counts and displacements in elements: of a slice in its own, of a
//! view in instances of its layout.

use crate::coll::ask::counts::in_slots;
use crate::coll::ask::{Contribution, Destination, given, wanted};
use crate::coll::inline::of_host;
use crate::comm::Communicator;
use crate::names::Rank;
use osier_collectives::{Call, Operation};
use osier_engine::error::Result;
use osier_engine::exec::inline::{Blocks, Lie, Side};
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::run::Combiner;
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Buffer, BufferMut, Plain, RawView};

/// No buffer.
const NO_BLOCKS: Side<'_> = Side {
    at: std::ptr::null_mut(),
    bytes: 0,
    blocks: Lie::Row,
    which: None,
};

/// A buffer that is one block.
pub(super) fn one(view: &RawView) -> Option<Side<'static>> {
    Some(Side::row(view.as_contiguous()?, view.bytes()))
}

/// The same of plain memory.
#[inline]
pub(super) fn one_plain(memory: Option<Plain>) -> Option<Side<'static>> {
    memory.map(|memory| Side::row(memory.at, memory.bytes))
}

fn bytes(view: Option<&RawView>) -> usize {
    view.map_or(0, RawView::bytes)
}

/// The memory of several buffers.
pub(crate) fn all_given<B: Buffer>(buffers: &[B]) -> Vec<RawView> {
    buffers.iter().map(|buffer| buffer.view().raw()).collect()
}

/// As [`all_given`], to write.
pub(crate) fn all_wanted<B: BufferMut>(buffers: &mut [B]) -> Vec<RawView> {
    let views = buffers.iter_mut().map(|buffer| buffer.view_mut().raw());
    views.collect()
}

impl Communicator {
    /// Collects the elements of all ranks at the root: rank r's in the r-th block of
    /// `recv`. `recv`, `counts` and `displacements` matter at the root only, which may pass
    /// [`IN_PLACE`](crate::IN_PLACE). Collective; on an intercommunicator the root gets the
    /// other side's.
    ///
    /// Counts and displacements are in elements of a slice, or in instances of a view's layout.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let mine = vec![comm.rank(); comm.rank()]; // none, one, two
    /// let mut all = [9usize; 4];
    /// comm.gatherv(&mine, &mut all, &[0, 1, 2], &[0, 0, 2], 0)?;
    /// if comm.rank() == 0 {
    ///     assert_eq!(all, [1, 9, 2, 2]);
    /// }
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::bcast`]; of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument),
    /// if there is not one count and displacement for each block, or a block reaches out of its
    /// buffer; of kind [`ErrorKind::Datatype`](crate::ErrorKind::Datatype), if data has no
    /// known type to count in.
    #[track_caller]
    pub fn gatherv<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        counts: &[usize],
        displacements: &[usize],
        root: impl Into<Rank>,
    ) -> Result<()> {
        let root = root.into();
        let quick = match root.check(self.size()) {
            Ok(Some(to)) => {
                let own = one_plain(send.plain_contribution());
                let recv = match self.rank() as u32 == to {
                    true => self.plain_side(recv.plain_mut(), (counts, displacements), true),
                    false => Some(NO_BLOCKS),
                };
                let blocks = own.zip(recv).map(|(send, recv)| Blocks::new(send, recv));
                self.quick_blocks((Operation::Gather, to), blocks)
            }
            _ => None,
        };
        let ask = || {
            let recv = recv.view_mut().raw();
            self.gatherv_ask(given(send), Some(recv), counts, displacements, root)
        };
        if let Some(result) = self.ended_quickly(quick, "gatherv", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Gather, ANY, ANY, bytes(send.as_ref()));
        let mut call = Call::new(Operation::Gather, self.size() as u32).varying();
        let mut here = None;
        if let Ok(Some(to)) = root.check(self.size())
            && let Some(send) = &send
        {
            call = call.root(to);
            let recv = match self.rank() as u32 == to {
                true => self.side(&recv, counts, displacements, true),
                false => Some(NO_BLOCKS),
            };
            here = one(send).zip(recv);
        }
        let here = here.map(|(send, recv)| Blocks::new(send, recv));
        let ask = || self.gatherv_ask(send, Some(recv), counts, displacements, root);
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("gatherv")))
    }

    /// Gives each rank its block of the root's elements: the reverse of
    /// [`Communicator::gatherv`]. The root may pass [`InPlace`](crate::collectives::InPlace) as `recv`.
    /// Collective.
    ///
    /// # Errors
    /// As [`Communicator::gatherv`].
    #[track_caller]
    pub fn scatterv<S: Buffer + ?Sized, R: Destination + ?Sized>(
        &self,
        send: &S,
        counts: &[usize],
        displacements: &[usize],
        recv: &mut R,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let (send, recv) = (given(send), wanted(recv));
        let _span = self.span(Kind::Scatter, ANY, ANY, bytes(recv.as_ref()));
        let root = root.into();
        let mut call = Call::new(Operation::Scatter, self.size() as u32).varying();
        let mut here = None;
        if let Ok(Some(of)) = root.check(self.size())
            && let Some(recv) = &recv
        {
            call = call.root(of);
            let send = match self.rank() as u32 == of {
                true => (send.as_ref())
                    .and_then(|send| self.side(send, counts, displacements, false))
                    .filter(|send| send.bytes_of(self.rank()) == recv.bytes()),
                false => Some(NO_BLOCKS),
            };
            here = send.zip(one(recv));
        }
        let here = here.map(|(send, recv)| Blocks::new(send, recv));
        let ask = || self.scatterv_ask(send, recv, counts, displacements, root);
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("scatterv")))
    }

    /// Collects the elements of all ranks at all ranks: rank r's in the r-th block. All
    /// pass the same counts; with [`IN_PLACE`](crate::IN_PLACE) a rank's own lie in its
    /// block. Collective; on an intercommunicator each side gets the other's.
    ///
    /// # Errors
    /// As [`Communicator::gatherv`].
    #[track_caller]
    pub fn allgatherv<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<()> {
        let row = self.equal_row(counts, displacements);
        let quick = match (row, send.plain_contribution(), recv.plain_mut()) {
            (Some(count), Some(from), Some(into))
                if from.bytes == count.saturating_mul(into.basic.size())
                    && into.bytes == from.bytes * self.size() =>
            {
                let memory = (from.at, into.at, from.bytes);
                self.quick((Operation::Allgather, 0), memory, None)
            }
            _ => None,
        };
        let ask = || {
            let recv = recv.view_mut().raw();
            self.allgatherv_ask(given(send), Some(recv), counts, displacements)
        };
        if let Some(result) = self.ended_quickly(quick, "allgatherv", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Allgather, ANY, ANY, bytes(send.as_ref()));
        let mut call = Call::new(Operation::Allgather, self.size() as u32);
        if send.is_none() {
            call = call.in_place();
        }
        let each = row.and_then(|count| recv.element_bytes()?.checked_mul(count));
        let own = send.as_ref().map(|send| (send, 1));
        let small = each.and_then(|each| self.small_pieces(own, Some((&recv, self.size())), each));
        let differs = self.equal_blocks(counts).is_none();
        let here =
            (send.as_ref().filter(|_| differs && in_slots(&recv, counts))).and_then(|send| {
                let own = one(send)?;
                let recv = self.side(&recv, counts, displacements, true)?;
                let alike = recv.bytes_of(self.rank()) == send.bytes();
                alike.then(|| Blocks::new(own, recv))
            });
        let ask = || self.allgatherv_ask(send, Some(recv), counts, displacements);
        let result = match here {
            Some(_) => self.call_blocks(&call.varying(), here, ask),
            None => self.call_small(&call, small, ask),
        };
        self.reported(result.map_err(|e| e.context("allgatherv")))
    }

    /// Sends the r-th block to rank r, and receives one from each rank. With
    /// [`IN_PLACE`](crate::IN_PLACE) on all ranks the blocks of `recv` are exchanged, and
    /// those to send are not read. Collective; on an intercommunicator with the ranks
    /// of the other side.
    ///
    /// # Errors
    /// As [`Communicator::gatherv`].
    #[track_caller]
    pub fn alltoallv<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        send_blocks: (&[usize], &[usize]),
        recv: &mut R,
        recv_blocks: (&[usize], &[usize]),
    ) -> Result<()> {
        let from = self.plain_side(send.plain_contribution(), send_blocks, false);
        let into = self.plain_side(recv.plain_mut(), recv_blocks, true);
        let blocks = from.zip(into).map(|(from, into)| Blocks::new(from, into));
        let quick = self.quick_blocks((Operation::Alltoall, 0), blocks);
        let ask = || {
            let recv = recv.view_mut().raw();
            self.alltoallv_ask(given(send), Some(recv), send_blocks, recv_blocks)
        };
        if let Some(result) = self.ended_quickly(quick, "alltoallv", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Alltoall, ANY, ANY, bytes(send.as_ref()));
        let call = Call::new(Operation::Alltoall, self.size() as u32).varying();
        let here = send.as_ref().and_then(|send| {
            let from = self.side(send, send_blocks.0, send_blocks.1, false)?;
            let into = self.side(&recv, recv_blocks.0, recv_blocks.1, true)?;
            let alike = from.bytes_of(self.rank()) == into.bytes_of(self.rank());
            alike.then(|| Blocks::new(from, into))
        });
        let ask = || self.alltoallv_ask(send, Some(recv), send_blocks, recv_blocks);
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("alltoallv")))
    }

    /// As [`Communicator::alltoallv`], with a buffer of its own for each rank: any
    /// layouts. Collective.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]; of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument),
    /// if there is not one buffer for each rank.
    #[track_caller]
    pub fn alltoallw<S: Buffer, R: BufferMut>(&self, send: &[S], recv: &mut [R]) -> Result<()> {
        let _span = self.span(Kind::Alltoall, ANY, ANY, 0);
        let ask = self.alltoallw_ask(all_given(send), all_wanted(recv));
        let result = self.call_ask(ask);
        self.reported(result.map_err(|e| e.context("alltoallw")))
    }

    /// Combines the elements of all ranks; rank r gets the next `counts[r]` elements of
    /// the result. All pass the same counts. With [`IN_PLACE`](crate::IN_PLACE) on all ranks
    /// the input is `recv`, and the share lies at its front. Collective; on an
    /// intercommunicator each side gets the shares of the other's, by its own counts, and
    /// equally many elements are combined on both.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`] and [`Communicator::gatherv`].
    ///
    /// # Panics
    /// As [`Communicator::allreduce`].
    #[track_caller]
    pub fn reduce_scatter<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        counts: &[usize],
        op: impl Reduction,
    ) -> Result<()> {
        // All ranks have the same counts.
        let quick = match (self.equal_shares(counts), recv.plain_mut()) {
            (Some(count), Some(into))
                if count.checked_mul(into.basic.size()) == Some(into.bytes) =>
            {
                self.quick_shares(send.plain_contribution(), Some(into), &op)
            }
            _ => None,
        };
        // The call waits for the run's end, so the operator outlives it.
        let ask = || {
            let recv = recv.view_mut().raw();
            let ask = self.reduce_scatter_ask(given(send), Some(recv), counts, Combiner::lent(&op));
            ask.map(of_host)
        };
        if let Some(result) = self.ended_quickly(quick, "reduce_scatter", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes(send.as_ref()));
        let result = match self.are_equal_shares(counts, send.as_ref(), &recv) {
            true => self.scatter_shares(send, recv, &op),
            false => self.call_shares(send, recv, counts, &op),
        };
        self.reported(result.map_err(|e| e.context("reduce_scatter")))
    }

    /// The blocks of plain memory.
    #[inline]
    fn plain_side<'a>(
        &self,
        memory: Option<Plain>,
        (counts, displacements): (&'a [usize], &'a [usize]),
        apart: bool,
    ) -> Option<Side<'a>> {
        let Plain { at, bytes, basic } = memory?;
        let side = Side::placed(at, basic.size(), counts, displacements);
        side.lies_in(self.size(), bytes, apart).then_some(side)
    }

    /// The blocks of a buffer without gaps, in a call within one group; none of what a run looks at.
    #[inline]
    fn side<'a>(
        &self,
        view: &RawView,
        counts: &'a [usize],
        displacements: &'a [usize],
        apart: bool,
    ) -> Option<Side<'a>> {
        let bytes = view.element_bytes()?;
        let side = Side::placed(view.as_contiguous()?, bytes, counts, displacements);
        let lies = side.lies_in(self.size(), view.bytes(), apart);
        (lies && !self.is_inter()).then_some(side)
    }

    /// The count of each block, if all are equal and lie one behind the other, and plans are those
    /// of equal contributions.
    #[inline]
    fn equal_row(&self, counts: &[usize], displacements: &[usize]) -> Option<usize> {
        let count = self.equal_blocks(counts)?;
        let mut starts = displacements.iter().zip((0..).map(|rank| rank * count));
        let row = displacements.len() == counts.len() && starts.all(|(start, at)| *start == at);
        row.then_some(count)
    }

    /// Whether all counts are equal, and both buffers are as long as they say.
    #[inline]
    fn are_equal_shares(&self, counts: &[usize], send: Option<&RawView>, recv: &RawView) -> bool {
        let (Some(share), Some(send)) = (self.equal_shares(counts), send) else {
            return false;
        };
        let each = send
            .element_bytes()
            .and_then(|bytes| bytes.checked_mul(share));
        each == Some(recv.bytes()) && recv.bytes().checked_mul(counts.len()) == Some(send.bytes())
    }
}
