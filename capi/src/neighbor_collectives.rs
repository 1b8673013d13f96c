//! Collective calls of a topology's neighbors.

use crate::abi::*;
use crate::buffers::{Address, view, view_mut};
use crate::call::{On, mpi};
use crate::collectives::collective;
use crate::fail::{Fail, Int, Res, bad_topology, count};
use crate::objects::{Comm, comm};
use crate::p2p::pend;
use crate::vector_collectives::{V, blocks};
use crate::work::{Sort, Work};
use osier::topology::Topology;

/// How many neighbors send to this rank, and how many it sends to.
pub(crate) fn neighbors(c: &Comm) -> Res<(usize, usize)> {
    match c.comm.topology() {
        Some(Topology::Cart(cart)) => Ok((2 * cart.dims().len(), 2 * cart.dims().len())),
        Some(Topology::Graph(graph)) => {
            let n = graph.neighbors(c.comm.rank())?.len();
            Ok((n, n))
        }
        Some(Topology::DistGraph(graph)) => Ok((graph.sources().len(), graph.destinations().len())),
        _ => Err(bad_topology(
            "a call with neighbors on a communicator that has no topology",
        )),
    }
}

fn times<N: Int>(n: usize, each: N) -> Res<Count> {
    Ok((count(each)? * n) as Count)
}

collective! {
    fn MPI_Neighbor_allgather, MPI_Neighbor_allgather_c, MPI_Ineighbor_allgather, MPI_Ineighbor_allgather_c, MPI_Neighbor_allgather_init, MPI_Neighbor_allgather_init_c:
    ineighbor_allgather neighbor_allgather_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        let (from, _) = neighbors(c)?;
        (view(sendbuf, sendcount, sendtype)?, view_mut(recvbuf, times(from, recvcount)?, recvtype)?)
    }
    wait c.comm.neighbor_allgather(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Neighbor_allgatherv, MPI_Neighbor_allgatherv_c, MPI_Ineighbor_allgatherv, MPI_Ineighbor_allgatherv_c, MPI_Neighbor_allgatherv_init, MPI_Neighbor_allgatherv_init_c:
    ineighbor_allgatherv neighbor_allgatherv_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address,
        recvcounts: *const N, at: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        let (from, _) = neighbors(c)?;
        let send = view(sendbuf, sendcount, sendtype)?;
        (send, blocks(from, recvcounts, at)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let b = blocks(neighbors(c)?.0, recvcounts, at)?;
        c.comm.neighbor_allgatherv(&s, &mut r, &b.counts, &b.at)
    };
    rest(
        &blocks(neighbors(c)?.0, recvcounts, at)?.counts,
        &blocks(neighbors(c)?.0, recvcounts, at)?.at
    ) Fail::from;
}

collective! {
    fn MPI_Neighbor_alltoall, MPI_Neighbor_alltoall_c, MPI_Ineighbor_alltoall, MPI_Ineighbor_alltoall_c, MPI_Neighbor_alltoall_init, MPI_Neighbor_alltoall_init_c:
    ineighbor_alltoall neighbor_alltoall_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        let (from, to) = neighbors(c)?;
        let send = view(sendbuf, times(to, sendcount)?, sendtype)?;
        (send, view_mut(recvbuf, times(from, recvcount)?, recvtype)?)
    }
    wait c.comm.neighbor_alltoall(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Neighbor_alltoallv, MPI_Neighbor_alltoallv_c, MPI_Ineighbor_alltoallv, MPI_Ineighbor_alltoallv_c, MPI_Neighbor_alltoallv_init, MPI_Neighbor_alltoallv_init_c:
    ineighbor_alltoallv neighbor_alltoallv_init<N>(
        sendbuf: Address, sendcounts: *const N, sendat: *const V<N>, sendtype: Handle,
        recvbuf: Address, recvcounts: *const N, recvat: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        let (from, to) = neighbors(c)?;
        let send = blocks(to, sendcounts, sendat)?.view(sendbuf, sendtype)?;
        (send, blocks(from, recvcounts, recvat)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let (from, to) = neighbors(c)?;
        let (to, from) = (blocks(to, sendcounts, sendat)?, blocks(from, recvcounts, recvat)?);
        c.comm.neighbor_alltoallv(&s, to.pair(), &mut r, from.pair())
    };
    rest(
        blocks(neighbors(c)?.1, sendcounts, sendat)?.pair(),
        blocks(neighbors(c)?.0, recvcounts, recvat)?.pair()
    ) Fail::from;
}
