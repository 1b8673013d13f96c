//! From buffers to asks: calls on neighborhoods.
//!
//! A plan has lists of sources and destinations, where the k-th edge from a rank is met
//! by the k-th edge to the other. Buffers have a block for each edge, in the order of the
//! topology:
//!
//! | topology | blocks | edges without a neighbor |
//! |---|---|---|
//! | grid | per dimension the negative direction, then the positive | beyond an edge that is not periodic: blocks that are left alone |
//! | graph | as `GraphTopology::neighbors`, in both directions | |
//! | distributed graph | as its sources, and as its destinations | |
//!
//! On a grid what is sent in the negative direction comes from the positive one. Where a
//! dimension is so short that both are the same rank, order must tell them apart: a plan
//! lists the sources of a grid with the two directions swapped, destinations as they are;
//! then the k-th meets the k-th.
//!
//! # Sources
//! MPI 5.0, section 8.6, and its advice to implementors on dimensions of 1 and 2 ranks.

use super::counts::{Blocks, apart, listed, ranges};
use super::{Ask, mismatch};
use crate::comm::{Communicator, Neighborhood, Topology};
use osier_collectives::{Neighbors, Operation};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::exec::memory::Pieces;
use osier_engine::view::RawView;
use std::ops::Range;
use std::sync::Arc;

/// The plan's pieces of a buffer with these blocks.
fn pieces(view: RawView, blocks: Vec<Range<usize>>, which: &[usize]) -> Pieces {
    let all = which.iter().map(|at| blocks[*at].clone());
    Pieces::Ranges(view, all.collect())
}

fn listed_views(views: &[RawView], which: &[usize]) -> Pieces {
    Pieces::Listed(which.iter().map(|at| views[*at].clone()).collect())
}

/// Equal blocks.
fn equal(view: &RawView, blocks: usize, what: &str) -> Result<Vec<Range<usize>>> {
    let bytes = view.bytes();
    let each = bytes.checked_div(blocks).unwrap_or(0);
    if each * blocks != bytes {
        return Err(mismatch(format!(
            "{bytes} bytes for {blocks} {what} (hint: equal blocks for each)"
        )));
    }
    Ok((0..blocks).map(|at| at * each..(at + 1) * each).collect())
}

impl Communicator {
    fn neighborhood(&self) -> Result<&Topology> {
        self.topology().ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                "the communicator has no neighborhood (hint: cart_create and dist_graph_create_adjacent make one that has)",
            )
        })
    }

    /// The neighbors of all ranks, in the order of plans.
    pub(crate) fn all_around(&self) -> Result<Arc<Neighbors>> {
        let topology = self.neighborhood()?;
        if let Topology::DistGraph(_) = topology {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a rank of a distributed graph knows its own neighbors alone (hint: grids and graphs are known whole)",
            ));
        }
        let mut all = Neighbors::default();
        for rank in 0..self.size() {
            let around = Neighborhood::of(topology, rank)?;
            all.sources.extend_from_slice(&around.plan.sources);
            all.destinations
                .extend_from_slice(&around.plan.destinations);
        }
        Ok(Arc::new(all))
    }

    pub(crate) fn around(&self) -> Result<&Neighborhood> {
        if let Some(around) = self.0.around.get() {
            return Ok(around);
        }
        let topology = self.neighborhood()?;
        let around = Neighborhood::of(topology, self.rank())?;
        Ok(self.knows_around(around))
    }

    /// Who lies around this rank is known from now on.
    pub(crate) fn knows_around(&self, around: Neighborhood) -> &Neighborhood {
        let to = around.plan.destinations[0].iter().copied();
        self.lane().lock().sends_to(to);
        self.0.around.get_or_init(|| around)
    }

    pub(crate) fn neighbor_allgather_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
    ) -> Result<Ask> {
        let (send, recv) = (send.unwrap_or_default(), recv.unwrap_or_default());
        let blocks = self
            .around()
            .and_then(|around| equal(&recv, around.incoming, "sources"));
        self.spread_ask("neighbor_allgather", send, recv, blocks)
    }

    pub(crate) fn neighbor_allgatherv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        counts: &[usize],
        displacements: &[usize],
    ) -> Result<Ask> {
        let (send, recv) = (send.unwrap_or_default(), recv.unwrap_or_default());
        let blocks = self
            .around()
            .and_then(|around| apart(&recv, (counts, displacements), around.incoming, "sources"));
        self.spread_ask("neighbor_allgatherv", send, recv, blocks)
    }

    fn spread_ask(
        &self,
        name: &'static str,
        send: RawView,
        recv: RawView,
        blocks: Result<Vec<Range<usize>>>,
    ) -> Result<Ask> {
        let around = self.around()?;
        let call = around.call(Operation::NeighborAllgather, self.size());
        let bytes = send.bytes();
        let recv = blocks.map(|blocks| pieces(recv, blocks, &around.from));
        Ok(listed(
            name,
            call,
            Ok(Pieces::Equal(send, bytes)),
            recv,
            Vec::new(),
        ))
    }

    pub(crate) fn neighbor_alltoall_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
    ) -> Result<Ask> {
        let (send, recv) = (send.unwrap_or_default(), recv.unwrap_or_default());
        let around = self.around()?;
        let from = equal(&send, around.outgoing, "destinations");
        let into = equal(&recv, around.incoming, "sources");
        Ok(self.swap_ask("neighbor_alltoall", around, (send, from), (recv, into)))
    }

    pub(crate) fn neighbor_alltoallv_ask(
        &self,
        send: Option<RawView>,
        recv: Option<RawView>,
        send_blocks: Blocks<'_>,
        recv_blocks: Blocks<'_>,
    ) -> Result<Ask> {
        let (send, recv) = (send.unwrap_or_default(), recv.unwrap_or_default());
        let around = self.around()?;
        let from = ranges(&send, send_blocks, around.outgoing, "destinations");
        let into = apart(&recv, recv_blocks, around.incoming, "sources");
        Ok(self.swap_ask("neighbor_alltoallv", around, (send, from), (recv, into)))
    }

    fn swap_ask(
        &self,
        name: &'static str,
        around: &Neighborhood,
        (send, from): (RawView, Result<Vec<Range<usize>>>),
        (recv, into): (RawView, Result<Vec<Range<usize>>>),
    ) -> Ask {
        let call = around.call(Operation::NeighborAlltoall, self.size());
        let send = from.map(|from| pieces(send, from, &around.to));
        let recv = into.map(|into| pieces(recv, into, &around.from));
        listed(name, call, send, recv, Vec::new())
    }

    pub(crate) fn neighbor_alltoallw_ask(
        &self,
        send: Vec<RawView>,
        recv: Vec<RawView>,
    ) -> Result<Ask> {
        let around = self.around()?;
        let all = |views: &[RawView], blocks: usize, which: &[usize], what: &str| {
            if views.len() != blocks {
                return Err(mismatch(format!(
                    "{} buffers for {blocks} {what} (hint: one for each)",
                    views.len()
                )));
            }
            Ok(listed_views(views, which))
        };
        let call = around.call(Operation::NeighborAlltoall, self.size());
        let send = all(&send, around.outgoing, &around.to, "destinations");
        let recv = all(&recv, around.incoming, &around.from, "sources");
        Ok(listed("neighbor_alltoallw", call, send, recv, Vec::new()))
    }
}
