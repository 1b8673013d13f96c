//! Neighbors of a rank on its communicator's topology, by block of a buffer.

use super::inter::argument;
use super::{Neighbor, Topology};
use osier_collectives::{Call, Neighbors, Operation};
use osier_engine::error::Result;
use std::sync::Arc;

/// Sources and destinations of a rank.
#[derive(Clone)]
pub(crate) struct Neighborhood {
    pub plan: Arc<Neighbors>,
    /// Blocks of the buffers.
    pub incoming: usize,
    pub outgoing: usize,
    /// The block of each source and destination of the plan.
    pub from: Vec<usize>,
    pub to: Vec<usize>,
}

impl Neighborhood {
    /// From neighbors by block; `None` where there is none. `order` is that of the plan's
    /// sources.
    fn new(
        rank: usize,
        sources: &[Option<usize>],
        destinations: &[Option<usize>],
        order: impl Iterator<Item = usize>,
    ) -> Self {
        let from: Vec<usize> = order.filter(|at| sources[*at].is_some()).collect();
        let to: Vec<usize> = (0..destinations.len())
            .filter(|at| destinations[*at].is_some())
            .collect();
        let ranks = |blocks: &[usize], all: &[Option<usize>]| -> Vec<u32> {
            blocks
                .iter()
                .filter_map(|at| all[*at])
                .map(|r| r as u32)
                .collect()
        };
        let plan = Neighbors::of_one(rank as u32, ranks(&from, sources), ranks(&to, destinations));
        Self {
            plan: Arc::new(plan),
            incoming: sources.len(),
            outgoing: destinations.len(),
            from,
            to,
        }
    }

    pub fn of(topology: &Topology, rank: usize) -> Result<Self> {
        match topology {
            Topology::Cart(cart) => {
                let mut blocks = Vec::with_capacity(2 * cart.dims().len());
                for dim in 0..cart.dims().len() {
                    let (below, above) = cart.shift(rank, dim, 1)?;
                    blocks.extend([below, above]);
                }
                let swapped = (0..blocks.len()).map(|at| at ^ 1);
                Ok(Self::new(rank, &blocks, &blocks, swapped))
            }
            Topology::Graph(graph) => {
                for one in 0..graph.nodes() {
                    let list = graph.neighbors(one)?;
                    for other in list {
                        let edges = |list: &[usize], to| list.iter().filter(|r| **r == to).count();
                        let (there, back) =
                            (edges(list, *other), edges(graph.neighbors(*other)?, one));
                        if there != back {
                            return Err(argument(format!(
                                "{there} edges from rank {one} to {other}, but {back} back (hint: neighborhood collectives want a symmetric graph; a distributed graph need not be)"
                            )));
                        }
                    }
                }
                let all: Vec<_> = graph.neighbors(rank)?.iter().copied().map(Some).collect();
                Ok(Self::new(rank, &all, &all, 0..all.len()))
            }
            Topology::DistGraph(graph) => {
                let ranks = |ends: &[Neighbor]| -> Vec<Option<usize>> {
                    ends.iter().map(|end| Some(end.rank)).collect()
                };
                let (sources, destinations) = (ranks(graph.sources()), ranks(graph.destinations()));
                Ok(Self::new(rank, &sources, &destinations, 0..sources.len()))
            }
        }
    }

    pub fn call(&self, operation: Operation, size: usize) -> Call {
        Call::new(operation, size as u32).on(self.plan.clone())
    }
}
