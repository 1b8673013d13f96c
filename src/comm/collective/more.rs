//! Collective calls that wait, with equal contributions: the others.

use super::ask::{Ask, Contribution, Destination, mismatch};
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::memory::{Buffers, Pieces, Sizes};
use crate::exec::operator::{Data, Reduction};
use crate::exec::run::Combiner;
use crate::p2p::Rank;
use crate::p2p::view::{Buffer, BufferMut, RawView};
use crate::trace::event::{ANY, Kind};
use osier_collectives::{Call, Operation};

impl Communicator {
    pub(super) fn one_group(&self) -> Result<()> {
        if !self.is_inter() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "not yet on an intercommunicator (hint: merge it)",
        ))
    }

    /// Combines the elements of all ranks, in rank order, at the root; elsewhere `recv`
    /// is not touched. The root may pass [`IN_PLACE`](crate::IN_PLACE). Collective.
    #[track_caller]
    pub fn reduce<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
        op: impl Reduction,
    ) -> Result<()> {
        let send = send.contribution().map(|view| view.raw());
        let recv = recv.view_mut().raw();
        let bytes = send.as_ref().unwrap_or(&recv).bytes();
        let _span = self.span(Kind::Reduce, ANY, ANY, bytes);
        let result = self
            .one_group()
            .and_then(|()| self.root(root))
            .and_then(|root| {
                let call = Call::new(Operation::Reduce, self.size() as u32).root(root as u32);
                let recv = (self.rank() == root).then_some(recv);
                // `call` waits for the run's end, so the operator outlives it.
                self.call(Ask::reduce(
                    call,
                    self.rank(),
                    send,
                    recv,
                    Combiner::lent(&op),
                ))
            });
        self.reported(result.map_err(|e| e.context("reduce")))
    }

    /// Gives each rank its share of the root's data, in rank order; elsewhere `send` is
    /// not looked at. The root may pass [`InPlace`](crate::InPlace) as `recv`: then
    /// its share stays where it is. Collective.
    #[track_caller]
    pub fn scatter<S: Buffer + ?Sized, R: Destination + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let send = send.view().raw();
        let recv = recv.destination().map(|view| view.raw());
        let bytes = recv.as_ref().map_or(0, RawView::bytes);
        let _span = self.span(Kind::Scatter, ANY, ANY, bytes);
        let result = self
            .one_group()
            .and_then(|()| self.root(root))
            .and_then(|root| self.call(Ask::scatter(self.size(), self.rank(), root, send, recv)));
        self.reported(result.map_err(|e| e.context("scatter")))
    }

    /// Sends an equal share to each rank and receives one from each, in rank order.
    /// With [`IN_PLACE`](crate::IN_PLACE) on all ranks the shares of `recv` are
    /// exchanged. Collective.
    #[track_caller]
    pub fn alltoall<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
    ) -> Result<()> {
        let send = send.contribution().map(|view| view.raw());
        let recv = recv.view_mut().raw();
        let _span = self.span(Kind::Alltoall, ANY, ANY, recv.bytes());
        let result = self
            .one_group()
            .and_then(|()| self.call(Ask::alltoall(self.size(), send, recv)));
        self.reported(result.map_err(|e| e.context("alltoall")))
    }

    /// Combines the elements of all ranks; each gets an equal share of the result, in
    /// rank order. Collective.
    #[track_caller]
    pub fn reduce_scatter_block<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
        &self,
        send: &S,
        recv: &mut R,
        op: impl Reduction,
    ) -> Result<()> {
        let send = send.view().raw();
        let recv = recv.view_mut().raw();
        let _span = self.span(Kind::Reduce, ANY, ANY, send.bytes());
        let result = self.one_group().and_then(|()| {
            let (size, each) = (self.size(), recv.bytes());
            let fit = op.fit(&Data(&send))?;
            let mut error = None;
            if send.bytes() != each * size {
                error = Some(mismatch(format!(
                    "{} bytes for {size} shares of {each}",
                    send.bytes()
                )));
            } else if send.as_contiguous().is_none() || recv.as_contiguous().is_none() {
                error = Some(Error::new(
                    ErrorKind::Unavailable,
                    "operands with gaps or on a device, not yet",
                ));
            }
            let buffers = Buffers {
                send: Pieces::Equal(send, each),
                recv: Pieces::Equal(recv, each),
                sizes: Sizes::Equal(each),
                unit: fit.unit,
            };
            let call = Call::new(Operation::ReduceScatter, size as u32);
            let mut ask = Ask::new(call, each, buffers).failed(error);
            // `call` waits for the run's end, so the operator outlives it.
            ask.combine((Combiner::lent(&op), fit));
            self.call(ask)
        });
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
        self.prefix(Operation::Scan, send, recv, &op)
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
        self.prefix(Operation::Exscan, send, recv, &op)
    }

    #[track_caller]
    fn prefix<S: Contribution + ?Sized, R: BufferMut + ?Sized>(
        &self,
        operation: Operation,
        send: &S,
        recv: &mut R,
        op: &dyn Reduction,
    ) -> Result<()> {
        let send = send.contribution().map(|view| view.raw());
        let recv = recv.view_mut().raw();
        let _span = self.span(Kind::Reduce, ANY, ANY, recv.bytes());
        let result = self.one_group().and_then(|()| {
            let call = Call::new(operation, self.size() as u32);
            // `call` waits for the run's end, so the operator outlives it.
            let combiner = Combiner::lent(op);
            self.call(Ask::reduce(call, self.rank(), send, Some(recv), combiner))
        });
        self.reported(result.map_err(|e| e.context(operation.name())))
    }
}

/// Combines two buffers of this rank: `inout = input op inout` (`MPI_Reduce_local`).
///
/// ```
/// let mut sum = [1, 2];
/// osier::reduce_local(&[10, 20], &mut sum, osier::Op::Sum)?;
/// assert_eq!(sum, [11, 22]);
/// # Ok::<(), osier::Error>(())
/// ```
///
/// # Errors
/// If the buffers differ in size, have gaps, lie on a device, or the operator is not
/// defined for them.
pub fn reduce_local<S: Buffer + ?Sized, R: BufferMut + ?Sized>(
    input: &S,
    inout: &mut R,
    op: impl Reduction,
) -> Result<()> {
    let (input, inout) = (input.view().raw(), inout.view_mut().raw());
    let fit = op.fit(&Data(&inout))?;
    if input.bytes() != inout.bytes() {
        return Err(mismatch(format!(
            "reduce_local: {} bytes and {}",
            input.bytes(),
            inout.bytes()
        )));
    }
    crate::exec::run::combine(&op, &fit, &input, &inout, &inout)
}
