//! Every collective call once more: as a future that owns its buffers, as a persistent
//! request, and both of memory that a scope borrows.
//!
//! The forms differ in the owner of the memory and the begin of the run; the same function
//! as for the blocking call makes the request for a plan.

use super::ask::{Contribution, Destination, OwnedContribution, OwnedDestination, given, wanted};
use super::blocking::counts::{all_given, all_wanted};
use super::persistent::{PersistentCollective, ScopedPersistentCollective};
use super::requests::Collective;
use super::scoped::ScopedCollective;
use crate::comm::Communicator;
use crate::names::Rank;
use crate::p2p::Scope;
use osier_engine::error::Result;
use osier_engine::exec::operator::Reduction;
use osier_engine::exec::run::Combiner;
use osier_engine::view::{Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, RawView};
use std::sync::Arc;

/// Passes both buffers to `look`.
fn each<S: Contribution + ?Sized, R: Destination + ?Sized>(
    send: &S,
    recv: &mut R,
    look: &mut dyn FnMut(RawView),
) {
    [given(send), wanted(recv)]
        .into_iter()
        .flatten()
        .for_each(look);
}

/// An operator that may borrow for as long as a scope.
pub(crate) fn owned<'a>(op: impl Reduction + 'a) -> Combiner {
    let op: Arc<dyn Reduction + 'a> = Arc::new(op);
    Combiner::shared(op)
}

/// Calls of two buffers: what each may be where it is owned and where it is borrowed,
/// the other arguments in their order, and an operator.
macro_rules! two_buffers {
    (
        $name:ident: $begin:ident, $init:ident, $ask:ident,
        $OwnedS:ident $S:ident, $OwnedR:ident $R:ident
        $(, $arg:ident: $T:ty = $pass:expr)* $(; $op:ident)?
    ) => {
        impl Communicator {
            #[doc = concat!("Begins a [`Communicator::", stringify!($name), "`]; the buffers belong to the request.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank may be returned by this call, all others by
            /// [`Collective::wait`]. The buffers are dropped with the error.
            #[track_caller]
            pub fn $begin<S: $OwnedS, R: $OwnedR>(
                &self,
                send: S,
                mut recv: R,
                $($arg: $T,)*
                $($op: impl Reduction + 'static,)?
            ) -> Result<Collective<(S, R)>> {
                let (from, to) = (given(&send), wanted(&mut recv));
                let ask = self.$ask(from, to, $($pass,)* $(owned($op),)?);
                self.under_way(ask, (send, recv))
            }

            #[doc = concat!("Sets up a [`Communicator::", stringify!($name), "`], to be started again and again; the buffers belong to the request. Collective.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank are returned by this call, all others by
            /// [`PersistentCollective::start`] or [`PersistentCollective::wait`].
            pub fn $init<S: $OwnedS, R: $OwnedR>(
                &self,
                send: S,
                mut recv: R,
                $($arg: $T,)*
                $($op: impl Reduction + 'static,)?
            ) -> Result<PersistentCollective<(S, R)>> {
                let (from, to) = (given(&send), wanted(&mut recv));
                let ask = self.$ask(from, to, $($pass,)* $(owned($op),)?);
                self.set_up(ask, (send, recv), |(send, recv), look| each(send, recv, look))
            }
        }

        impl<'scope, 'env> Scope<'scope, 'env> {
            #[doc = concat!("Begins a [`Communicator::", stringify!($name), "`] of memory that the scope borrows.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank may be returned by this call, all others by
            /// [`ScopedCollective::wait`], or by the scope.
            #[track_caller]
            pub fn $begin<S: $S + ?Sized, R: $R + ?Sized>(
                &'scope self,
                send: &'scope S,
                recv: &'scope mut R,
                $($arg: $T,)*
                $($op: impl Reduction + 'scope,)?
            ) -> Result<ScopedCollective<'scope>> {
                let (from, to) = (given(send), wanted(recv));
                let ask = self.communicator().$ask(from, to, $($pass,)* $(owned($op),)?);
                ScopedCollective::begin(self, ask)
            }

            #[doc = concat!("Sets up a [`Communicator::", stringify!($name), "`] of memory that the scope borrows, to be started again and again. Collective.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank are returned by this call, all others by
            /// [`ScopedPersistentCollective::start`] or [`ScopedPersistentCollective::wait`].
            pub fn $init<S: $S + ?Sized, R: $R + ?Sized>(
                &'scope self,
                send: &'scope mut S,
                recv: &'scope mut R,
                $($arg: $T,)*
                $($op: impl Reduction + 'scope,)?
            ) -> Result<ScopedPersistentCollective<'scope, 'env, (&'scope mut S, &'scope mut R)>> {
                let (from, to) = (given(&*send), wanted(&mut *recv));
                let ask = self.communicator().$ask(from, to, $($pass,)* $(owned($op),)?);
                ScopedPersistentCollective::new(self, ask, (send, recv), |(send, recv), look| each(&**send, &mut **recv, look))
            }
        }
    };
}

two_buffers!(gather: igather, gather_init, gather_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    root: impl Into<Rank> = root.into());
two_buffers!(gatherv: igatherv, gatherv_init, gatherv_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    counts: &[usize] = counts, displacements: &[usize] = displacements,
    root: impl Into<Rank> = root.into());
two_buffers!(scatter: iscatter, scatter_init, scatter_ask,
    OwnedBuffer Buffer, OwnedDestination Destination,
    root: impl Into<Rank> = root.into());
two_buffers!(scatterv: iscatterv, scatterv_init, scatterv_ask,
    OwnedBuffer Buffer, OwnedDestination Destination,
    counts: &[usize] = counts, displacements: &[usize] = displacements,
    root: impl Into<Rank> = root.into());
two_buffers!(allgather: iallgather, allgather_init, allgather_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut);
two_buffers!(allgatherv: iallgatherv, allgatherv_init, allgatherv_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    counts: &[usize] = counts, displacements: &[usize] = displacements);
two_buffers!(alltoall: ialltoall, alltoall_init, alltoall_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut);
two_buffers!(alltoallv: ialltoallv, alltoallv_init, alltoallv_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    send_blocks: (&[usize], &[usize]) = send_blocks,
    recv_blocks: (&[usize], &[usize]) = recv_blocks);
two_buffers!(reduce: ireduce, reduce_init, reduce_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    root: impl Into<Rank> = root.into(); op);
two_buffers!(allreduce: iallreduce, allreduce_init, allreduce_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut; op);
two_buffers!(reduce_scatter_block: ireduce_scatter_block, reduce_scatter_block_init,
    reduce_scatter_block_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut; op);
two_buffers!(reduce_scatter: ireduce_scatter, reduce_scatter_init, reduce_scatter_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut,
    counts: &[usize] = counts; op);
two_buffers!(scan: iscan, scan_init, scan_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut; op);
two_buffers!(exscan: iexscan, exscan_init, exscan_ask,
    OwnedContribution Contribution, OwnedBufferMut BufferMut; op);
two_buffers!(neighbor_allgather: ineighbor_allgather, neighbor_allgather_init,
    neighbor_allgather_ask, OwnedBuffer Buffer, OwnedBufferMut BufferMut);
two_buffers!(neighbor_allgatherv: ineighbor_allgatherv, neighbor_allgatherv_init,
    neighbor_allgatherv_ask, OwnedBuffer Buffer, OwnedBufferMut BufferMut,
    counts: &[usize] = counts, displacements: &[usize] = displacements);
two_buffers!(neighbor_alltoall: ineighbor_alltoall, neighbor_alltoall_init,
    neighbor_alltoall_ask, OwnedBuffer Buffer, OwnedBufferMut BufferMut);
two_buffers!(neighbor_alltoallv: ineighbor_alltoallv, neighbor_alltoallv_init,
    neighbor_alltoallv_ask, OwnedBuffer Buffer, OwnedBufferMut BufferMut,
    send_blocks: (&[usize], &[usize]) = send_blocks,
    recv_blocks: (&[usize], &[usize]) = recv_blocks);

/// Calls of a buffer for each block.
macro_rules! many_buffers {
    ($name:ident: $begin:ident, $init:ident, $ask:ident) => {
        impl Communicator {
            #[doc = concat!("Begins a [`Communicator::", stringify!($name), "`]; the buffers belong to the request.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank may be returned by this call, all others by
            /// [`Collective::wait`]. The buffers are dropped with the error.
            #[track_caller]
            pub fn $begin<S: OwnedBuffer, R: OwnedBufferMut>(
                &self,
                send: Vec<S>,
                mut recv: Vec<R>,
            ) -> Result<Collective<(Vec<S>, Vec<R>)>> {
                let ask = self.$ask(all_given(&send), all_wanted(&mut recv));
                self.under_way(ask, (send, recv))
            }

            #[doc = concat!("Sets up a [`Communicator::", stringify!($name), "`], to be started again and again; the buffers belong to the request. Collective.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank are returned by this call, all others by
            /// [`PersistentCollective::start`] or [`PersistentCollective::wait`].
            pub fn $init<S: OwnedBuffer, R: OwnedBufferMut>(
                &self,
                send: Vec<S>,
                mut recv: Vec<R>,
            ) -> Result<PersistentCollective<(Vec<S>, Vec<R>)>> {
                let ask = self.$ask(all_given(&send), all_wanted(&mut recv));
                self.set_up(ask, (send, recv), |(send, recv), look| {
                    all_given(send).into_iter().for_each(&mut *look);
                    all_wanted(recv).into_iter().for_each(look);
                })
            }
        }

        impl<'scope, 'env> Scope<'scope, 'env> {
            #[doc = concat!("Begins a [`Communicator::", stringify!($name), "`] of memory that the scope borrows.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Communicator::", stringify!($name), "`].")]
            /// Errors in the arguments of this rank may be returned by this call, all others by
            /// [`ScopedCollective::wait`], or by the scope.
            #[track_caller]
            pub fn $begin<S: Buffer, R: BufferMut>(
                &'scope self,
                send: &'scope [S],
                recv: &'scope mut [R],
            ) -> Result<ScopedCollective<'scope>> {
                let ask = self.communicator().$ask(all_given(send), all_wanted(recv));
                ScopedCollective::begin(self, ask)
            }
        }
    };
}

many_buffers!(alltoallw: ialltoallw, alltoallw_init, alltoallw_ask);
many_buffers!(neighbor_alltoallw: ineighbor_alltoallw, neighbor_alltoallw_init,
    neighbor_alltoallw_ask);

impl Communicator {
    /// Begins a [`Communicator::barrier`].
    ///
    /// # Errors
    /// As [`Communicator::barrier`]. Errors in the arguments of this rank may be returned by this
    /// call, all others by [`Collective::wait`]. The buffers are dropped with the error.
    #[track_caller]
    pub fn ibarrier(&self) -> Result<Collective<()>> {
        self.under_way(Ok(self.barrier_ask()), ())
    }

    /// Sets up a [`Communicator::barrier`], to be started again and again. Collective.
    ///
    /// # Errors
    /// As [`Communicator::barrier`]. Errors in the arguments of this rank are returned by this
    /// call, all others by [`PersistentCollective::start`] or [`PersistentCollective::wait`].
    pub fn barrier_init(&self) -> Result<PersistentCollective<()>> {
        self.set_up(Ok(self.barrier_ask()), (), |(), _| ())
    }

    /// Begins a [`Communicator::bcast`]; the buffer belongs to the request.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]. Errors in the arguments of this rank may be returned by this
    /// call, all others by [`Collective::wait`]. The buffers are dropped with the error.
    #[track_caller]
    pub fn ibcast<B: OwnedBufferMut>(
        &self,
        mut data: B,
        root: impl Into<Rank>,
    ) -> Result<Collective<B>> {
        let ask = self.bcast_ask(wanted(&mut data), root.into());
        self.under_way(ask, data)
    }

    /// Sets up a [`Communicator::bcast`], to be started again and again; the buffer
    /// belongs to the request. Collective.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]. Errors in the arguments of this rank are returned by this call,
    /// all others by [`PersistentCollective::start`] or [`PersistentCollective::wait`].
    pub fn bcast_init<B: OwnedBufferMut>(
        &self,
        mut data: B,
        root: impl Into<Rank>,
    ) -> Result<PersistentCollective<B>> {
        let ask = self.bcast_ask(wanted(&mut data), root.into());
        self.set_up(ask, data, |data, look| {
            wanted(data).into_iter().for_each(look)
        })
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Begins a [`Communicator::barrier`].
    ///
    /// # Errors
    /// As [`Communicator::barrier`]. Errors in the arguments of this rank may be returned by this
    /// call, all others by [`ScopedCollective::wait`], or by the scope.
    #[track_caller]
    pub fn ibarrier(&'scope self) -> Result<ScopedCollective<'scope>> {
        ScopedCollective::begin(self, Ok(self.communicator().barrier_ask()))
    }

    /// Begins a [`Communicator::bcast`] of memory that the scope borrows.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]. Errors in the arguments of this rank may be returned by this
    /// call, all others by [`ScopedCollective::wait`], or by the scope.
    #[track_caller]
    pub fn ibcast<B: BufferMut + ?Sized>(
        &'scope self,
        data: &'scope mut B,
        root: impl Into<Rank>,
    ) -> Result<ScopedCollective<'scope>> {
        let ask = self.communicator().bcast_ask(wanted(data), root.into());
        ScopedCollective::begin(self, ask)
    }

    /// Sets up a [`Communicator::bcast`] of memory that the scope borrows, to be started
    /// again and again. Collective.
    ///
    /// # Errors
    /// As [`Communicator::bcast`]. Errors in the arguments of this rank are returned by this call,
    /// all others by [`ScopedPersistentCollective::start`] or [`ScopedPersistentCollective::wait`].
    pub fn bcast_init<B: BufferMut + ?Sized>(
        &'scope self,
        data: &'scope mut B,
        root: impl Into<Rank>,
    ) -> Result<ScopedPersistentCollective<'scope, 'env, &'scope mut B>> {
        let ask = self
            .communicator()
            .bcast_ask(wanted(&mut *data), root.into());
        ScopedPersistentCollective::new(self, ask, data, |data, look| {
            wanted(&mut **data).into_iter().for_each(look)
        })
    }
}
