//! Neighbors of a rank on its communicator's topology, by block of a buffer.

use super::inter::argument;
use super::{Neighbor, Topology};
use osier_collectives::{Call, CellOf, Neighbors, Operation, cell_at, occurrence};
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

/// Cells of some sources, in a list of all; none if one is not known.
fn placed(sources: usize, cells: Vec<(usize, Option<CellOf>)>) -> Option<Vec<CellOf>> {
    let mut all = vec![CellOf::default(); sources];
    for (at, cell) in cells {
        all[at] = cell?;
    }
    Some(all)
}

impl Neighborhood {
    /// From neighbors by block; `None` where there is none. `order` is that of the plan's
    /// sources; `of` has the destinations of other ranks, where this one knows them.
    fn new(
        rank: usize,
        (sources, destinations): (&[Option<usize>], &[Option<usize>]),
        order: impl Iterator<Item = usize>,
        of: Option<&dyn Fn(usize) -> Result<Vec<u32>>>,
    ) -> Result<Self> {
        let from: Vec<usize> = order.filter(|at| sources[*at].is_some()).collect();
        let to: Vec<usize> = (0..destinations.len())
            .filter(|at| destinations[*at].is_some())
            .collect();
        let ranks = |blocks: &[usize], all: &[Option<usize>]| -> Vec<u32> {
            let here = blocks.iter().filter_map(|at| all[*at]);
            here.map(|r| r as u32).collect()
        };
        let own = rank as u32;
        let mut plan = Neighbors::of_one(own, ranks(&from, sources), ranks(&to, destinations));
        if let Some(of) = of {
            let list = &plan.sources[0];
            let mut cells = Vec::with_capacity(list.len());
            for (at, source) in list
                .iter()
                .enumerate()
                .filter(|(_, source)| **source != own)
            {
                let theirs = of(*source as usize)?;
                cells.push((at, cell_at(*source, &theirs, own, occurrence(list, at))));
            }
            plan.cells = placed(list.len(), cells);
        }
        Ok(Self {
            plan: Arc::new(plan),
            incoming: sources.len(),
            outgoing: destinations.len(),
            from,
            to,
        })
    }

    pub fn of(topology: &Topology, rank: usize) -> Result<Self> {
        match topology {
            Topology::Cart(cart) => {
                let blocks_of = |rank: usize| -> Result<Vec<Option<usize>>> {
                    let mut blocks = Vec::with_capacity(2 * cart.dims().len());
                    for dim in 0..cart.dims().len() {
                        let (below, above) = cart.shift(rank, dim, 1)?;
                        blocks.extend([below, above]);
                    }
                    Ok(blocks)
                };
                let destinations = |rank: usize| {
                    let there = blocks_of(rank)?.into_iter().flatten();
                    Ok(there.map(|r| r as u32).collect())
                };
                let blocks = blocks_of(rank)?;
                let swapped = (0..blocks.len()).map(|at| at ^ 1);
                Self::new(rank, (&blocks, &blocks), swapped, Some(&destinations))
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
                let destinations = |rank: usize| {
                    let list = graph.neighbors(rank)?.iter();
                    Ok(list.map(|r| *r as u32).collect())
                };
                let all: Vec<_> = graph.neighbors(rank)?.iter().copied().map(Some).collect();
                Self::new(rank, (&all, &all), 0..all.len(), Some(&destinations))
            }
            Topology::DistGraph(graph) => {
                let ranks = |ends: &[Neighbor]| -> Vec<Option<usize>> {
                    ends.iter().map(|end| Some(end.rank)).collect()
                };
                let (sources, destinations) = (ranks(graph.sources()), ranks(graph.destinations()));
                let order = 0..sources.len();
                Self::new(rank, (&sources, &destinations), order, None)
            }
        }
    }

    /// The cell of each edge to another rank, and that rank.
    pub fn own_cells(&self) -> impl Iterator<Item = (u32, CellOf)> + '_ {
        let own = self.plan.only;
        let others = || (self.plan.destinations[0].iter()).filter(move |to| Some(**to) != own);
        let of = others().count() as u32;
        let cells = (0..).map(move |cell| CellOf { cell, of });
        others().copied().zip(cells)
    }

    /// The sources that are other ranks, by their places in the plan.
    pub fn other_sources(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let own = self.plan.only;
        let all = self.plan.sources[0].iter().copied().enumerate();
        all.filter(move |(_, source)| Some(*source) != own)
    }

    /// With the cells of these sources.
    pub fn with_cells(mut self, cells: Vec<(usize, Option<CellOf>)>) -> Self {
        let mut plan = Neighbors::clone(&self.plan);
        plan.cells = placed(plan.sources[0].len(), cells);
        self.plan = Arc::new(plan);
        self
    }

    pub fn call(&self, operation: Operation, size: usize) -> Call {
        Call::new(operation, size as u32).on(self.plan.clone())
    }
}
