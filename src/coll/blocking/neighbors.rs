//! Collective calls that wait, on the neighborhood of a grid or graph.

use super::counts::{all_given, all_wanted, one, one_plain};
use crate::coll::ask::given;
use crate::comm::{Communicator, Neighborhood};
use osier_collectives::{Call, Operation};
use osier_engine::error::Result;
use osier_engine::exec::inline::{Blocks, Side};
use osier_engine::trace::event::{ANY, Kind};
use osier_engine::view::{Buffer, BufferMut, Plain, RawView};

/// Equal blocks of a buffer without gaps, of which a plan has these; none of what a run looks at.
#[inline]
fn equal<'a>(view: &RawView, blocks: usize, which: &'a [usize]) -> Option<Side<'a>> {
    let bytes = view.bytes();
    let each = bytes.checked_div(blocks).unwrap_or(0);
    let side = Side::row(view.as_contiguous()?, each).of(which);
    side.lies_in(blocks, bytes, true).then_some(side)
}

/// The same of plain memory.
#[inline]
fn equal_plain(memory: Option<Plain>, blocks: usize, which: &[usize]) -> Option<Side<'_>> {
    let memory = memory?;
    let each = memory.bytes.checked_div(blocks).unwrap_or(0);
    let side = Side::row(memory.at, each).of(which);
    side.lies_in(blocks, memory.bytes, true).then_some(side)
}

/// The same of blocks of plain memory by counts and displacements.
#[inline]
fn placed_plain<'a>(
    memory: Option<Plain>,
    (counts, displacements): (&'a [usize], &'a [usize]),
    blocks: usize,
    which: &'a [usize],
    apart: bool,
) -> Option<Side<'a>> {
    let Plain { at, bytes, basic } = memory?;
    let side = Side::placed(at, basic.size(), counts, displacements).of(which);
    side.lies_in(blocks, bytes, apart).then_some(side)
}

/// As [`equal`], of blocks by counts and displacements.
#[inline]
fn placed<'a>(
    view: &RawView,
    (counts, displacements): (&'a [usize], &'a [usize]),
    blocks: usize,
    which: &'a [usize],
    apart: bool,
) -> Option<Side<'a>> {
    let (at, bytes) = (view.as_contiguous()?, view.element_bytes()?);
    let side = Side::placed(at, bytes, counts, displacements).of(which);
    side.lies_in(blocks, view.bytes(), apart).then_some(side)
}

impl Communicator {
    /// Who lies around this rank, if that is known by now.
    #[inline]
    fn near(&self) -> Option<&Neighborhood> {
        self.0.around.get()
    }

    /// A call on the neighborhood as far as its program's key needs it.
    #[inline]
    fn around_here(&self, operation: Operation) -> Call {
        Call::new(operation, self.size() as u32).varying()
    }

    /// Sends `send` to each destination of this rank in the communicator's topology, and
    /// receives equally much from each source, into equal blocks of `recv`. Collective.
    ///
    /// On a grid there are two neighbors per dimension, the one in the negative direction
    /// first; blocks of those that a grid which is not periodic lacks at its edge are left
    /// alone. A neighbor that is listed more than once has as many blocks, and the k-th
    /// from it is the k-th that it sends here.
    ///
    /// ```
    /// # osier::testing::ranks(4, |comm| {
    /// let line = comm.cart_create(&[4], &[false])?.expect("four ranks");
    /// let mut around = [99; 2];
    /// line.neighbor_allgather(&[line.rank() as i32], &mut around)?;
    /// let right = [[99, 1], [0, 2], [1, 3], [2, 99]];
    /// assert_eq!(around, right[line.rank()]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument), if the communicator has no
    /// topology, or a graph that is not symmetric; else as [`Communicator::bcast`].
    #[track_caller]
    pub fn neighbor_allgather<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let quick = self.near().and_then(|around| {
            let into = equal_plain(recv.plain_mut(), around.incoming, &around.from);
            let own = one_plain(send.plain());
            let blocks = own.zip(into).map(|(own, into)| Blocks::new(own, into));
            self.quick_blocks((Operation::NeighborAllgather, 0), blocks)
        });
        let ask = || {
            let recv = recv.view_mut().raw();
            self.neighbor_allgather_ask(given(send), Some(recv))
        };
        if let Some(result) = self.ended_quickly(quick, "neighbor_allgather", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Allgather, ANY, ANY, recv.bytes());
        let here = self.near().zip(send.as_ref()).and_then(|(around, send)| {
            let into = equal(&recv, around.incoming, &around.from)?;
            Some(Blocks::new(one(send)?, into))
        });
        let call = self.around_here(Operation::NeighborAllgather);
        let ask = || self.neighbor_allgather_ask(send, Some(recv));
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("neighbor_allgather")))
    }

    /// As [`Communicator::neighbor_allgather`]; sources may send different amounts. Counts
    /// and displacements are those of the blocks of `recv`, as in
    /// [`Communicator::allgatherv`].
    ///
    /// # Errors
    /// As [`Communicator::neighbor_allgather`] and [`Communicator::gatherv`].
    #[track_caller]
    pub fn neighbor_allgatherv<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<()> {
        let quick = self.near().and_then(|around| {
            let (blocks, sources) = ((counts, displacements), around.incoming);
            let into = placed_plain(recv.plain_mut(), blocks, sources, &around.from, true);
            let own = one_plain(send.plain());
            let blocks = own.zip(into).map(|(own, into)| Blocks::new(own, into));
            self.quick_blocks((Operation::NeighborAllgather, 0), blocks)
        });
        let ask = || {
            let recv = recv.view_mut().raw();
            self.neighbor_allgatherv_ask(given(send), Some(recv), counts, displacements)
        };
        if let Some(result) = self.ended_quickly(quick, "neighbor_allgatherv", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Allgather, ANY, ANY, recv.bytes());
        let here = self.near().zip(send.as_ref()).and_then(|(around, send)| {
            let blocks = (counts, displacements);
            let into = placed(&recv, blocks, around.incoming, &around.from, true)?;
            Some(Blocks::new(one(send)?, into))
        });
        let call = self.around_here(Operation::NeighborAllgather);
        let ask = || self.neighbor_allgatherv_ask(send, Some(recv), counts, displacements);
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("neighbor_allgatherv")))
    }

    /// Sends an equal block to each destination of this rank in the communicator's
    /// topology, and receives one from each source; blocks are as in
    /// [`Communicator::neighbor_allgather`]. Collective.
    ///
    /// On a grid what is sent in the negative direction comes from the positive one, also
    /// where a periodic dimension of one or two ranks has the same neighbor twice.
    ///
    /// ```
    /// # osier::testing::ranks(2, |comm| {
    /// let ring = comm.cart_create(&[2], &[true])?.expect("two ranks");
    /// let (here, there) = (ring.rank() as i32, 1 - ring.rank() as i32);
    /// let mut around = [0; 2];
    /// ring.neighbor_alltoall(&[-here, here], &mut around)?;
    /// assert_eq!(around, [there, -there]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::neighbor_allgather`].
    #[track_caller]
    pub fn neighbor_alltoall<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let quick = self.near().and_then(|around| {
            let from = equal_plain(send.plain(), around.outgoing, &around.to);
            let into = equal_plain(recv.plain_mut(), around.incoming, &around.from);
            let blocks = from.zip(into).map(|(from, into)| Blocks::new(from, into));
            self.quick_blocks((Operation::NeighborAlltoall, 0), blocks)
        });
        let ask = || {
            let recv = recv.view_mut().raw();
            self.neighbor_alltoall_ask(given(send), Some(recv))
        };
        if let Some(result) = self.ended_quickly(quick, "neighbor_alltoall", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Alltoall, ANY, ANY, recv.bytes());
        let here = self.near().zip(send.as_ref()).and_then(|(around, send)| {
            let from = equal(send, around.outgoing, &around.to)?;
            let into = equal(&recv, around.incoming, &around.from)?;
            Some(Blocks::new(from, into))
        });
        let call = self.around_here(Operation::NeighborAlltoall);
        let ask = || self.neighbor_alltoall_ask(send, Some(recv));
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("neighbor_alltoall")))
    }

    /// As [`Communicator::neighbor_alltoall`], with counts and displacements of the blocks
    /// as in [`Communicator::alltoallv`].
    ///
    /// # Errors
    /// As [`Communicator::neighbor_allgather`] and [`Communicator::gatherv`].
    #[track_caller]
    pub fn neighbor_alltoallv<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        send_blocks: (&[usize], &[usize]),
        recv: &mut R,
        recv_blocks: (&[usize], &[usize]),
    ) -> Result<()> {
        let quick = self.near().and_then(|around| {
            let (outgoing, incoming) = (around.outgoing, around.incoming);
            let from = placed_plain(send.plain(), send_blocks, outgoing, &around.to, false);
            let into = placed_plain(recv.plain_mut(), recv_blocks, incoming, &around.from, true);
            let blocks = from.zip(into).map(|(from, into)| Blocks::new(from, into));
            self.quick_blocks((Operation::NeighborAlltoall, 0), blocks)
        });
        let ask = || {
            let recv = recv.view_mut().raw();
            self.neighbor_alltoallv_ask(given(send), Some(recv), send_blocks, recv_blocks)
        };
        if let Some(result) = self.ended_quickly(quick, "neighbor_alltoallv", ask) {
            return result;
        }
        let (send, recv) = (given(send), recv.view_mut().raw());
        let _span = self.span(Kind::Alltoall, ANY, ANY, recv.bytes());
        let here = self.near().zip(send.as_ref()).and_then(|(around, send)| {
            let from = placed(send, send_blocks, around.outgoing, &around.to, false)?;
            let into = placed(&recv, recv_blocks, around.incoming, &around.from, true)?;
            Some(Blocks::new(from, into))
        });
        let call = self.around_here(Operation::NeighborAlltoall);
        let ask = || self.neighbor_alltoallv_ask(send, Some(recv), send_blocks, recv_blocks);
        let result = self.call_blocks(&call, here, ask);
        self.reported(result.map_err(|e| e.context("neighbor_alltoallv")))
    }

    /// As [`Communicator::neighbor_alltoall`], with a buffer of its own for each block: any
    /// layouts, such as the faces of a grid where they lie.
    ///
    /// # Errors
    /// As [`Communicator::neighbor_allgather`]; if there is not one buffer for each neighbor.
    #[track_caller]
    pub fn neighbor_alltoallw<S: Buffer, R: BufferMut>(
        &self,
        send: &[S],
        recv: &mut [R],
    ) -> Result<()> {
        let _span = self.span(Kind::Alltoall, ANY, ANY, 0);
        let ask = self.neighbor_alltoallw_ask(all_given(send), all_wanted(recv));
        let result = self.call_ask(ask);
        self.reported(result.map_err(|e| e.context("neighbor_alltoallw")))
    }
}
