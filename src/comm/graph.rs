//! Graph topologies: neighbors as lists, given whole or by each rank.
//!
//! # Invariants
//! 1. Neighbor lists keep their order and multiplicity: an edge that was given
//!    twice is there twice.
//! 2. All neighbors are ranks of the communicator.
//!
//! # Sources
//! MPI 5.0, sections 8.5.3, 8.5.4 and 8.5.8. Ranks are never reordered, as the
//! standard permits.

use osier_engine::error::{Error, ErrorKind, Result};

fn no_sense(message: String) -> Error {
    Error::new(ErrorKind::Argument, message)
}

fn check_ranks(what: &str, ranks: &[usize], size: usize) -> Result<()> {
    match ranks.iter().find(|rank| **rank >= size) {
        None => Ok(()),
        Some(rank) => Err(Error::new(
            ErrorKind::Rank,
            format!(
                "{what} {rank} of {size} ranks (hint: ranks are 0 to {})",
                size - 1
            ),
        )),
    }
}

/// A graph that every rank knows whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTopology {
    /// Where the neighbors of each node end in `edges`.
    index: Box<[usize]>,
    edges: Box<[usize]>,
}

impl GraphTopology {
    /// A graph of `index.len()` nodes; the neighbors of node `i` are
    /// `edges[index[i - 1] .. index[i]]`, from 0 for the first. An edge need
    /// not be there in both directions.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if `index` is not ascending or does not end at the
    /// number of edges; of kind [`ErrorKind::Rank`], if an edge leads to no node.
    pub fn new(index: &[usize], edges: &[usize]) -> Result<Self> {
        if !index.is_sorted() {
            return Err(no_sense(format!(
                "graph index {index:?} is not ascending (hint: entry i is the number of neighbors of nodes 0 to i together)"
            )));
        }
        let last = index.last().copied().unwrap_or(0);
        if last != edges.len() {
            return Err(no_sense(format!(
                "a graph of {} edges whose index ends at {last} (hint: the last entry is the number of edges)",
                edges.len()
            )));
        }
        if !edges.is_empty() {
            check_ranks("an edge to node", edges, index.len())?;
        }
        Ok(Self {
            index: index.into(),
            edges: edges.into(),
        })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.index.len()
    }

    /// As it was given.
    pub fn index(&self) -> &[usize] {
        &self.index
    }

    /// As they were given.
    pub fn edges(&self) -> &[usize] {
        &self.edges
    }

    /// The neighbors of a rank.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Rank`], if there is no such rank.
    pub fn neighbors(&self, rank: usize) -> Result<&[usize]> {
        check_ranks("rank", &[rank], self.nodes())?;
        let from = if rank == 0 { 0 } else { self.index[rank - 1] };
        Ok(&self.edges[from..self.index[rank]])
    }
}

/// One end of an edge: the rank at the other end, and the edge's weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbor {
    /// The other rank.
    pub rank: usize,
    /// The weight; 1 where none was given.
    pub weight: u32,
}

/// What one rank knows of a distributed graph: its own edges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DistGraphTopology {
    sources: Box<[Neighbor]>,
    destinations: Box<[Neighbor]>,
    weighted: bool,
}

impl DistGraphTopology {
    /// The edges of one rank of `size`. No weights at all means unweighted.
    ///
    /// # Errors
    /// If a neighbor is no rank, or there are not as many weights as edges.
    pub(crate) fn adjacent(
        size: usize,
        sources: &[usize],
        source_weights: Option<&[u32]>,
        destinations: &[usize],
        destination_weights: Option<&[u32]>,
    ) -> Result<Self> {
        check_ranks("a source", sources, size)?;
        check_ranks("a destination", destinations, size)?;
        if source_weights.is_some() != destination_weights.is_some() {
            return Err(no_sense(
                "weights of sources without weights of destinations, or the reverse (hint: a graph is weighted or not; an empty list of edges has an empty list of weights)".into(),
            ));
        }
        Ok(Self {
            sources: weigh(sources, source_weights)?,
            destinations: weigh(destinations, destination_weights)?,
            weighted: source_weights.is_some(),
        })
    }

    pub(crate) fn from_edges(
        sources: Vec<Neighbor>,
        destinations: Vec<Neighbor>,
        weighted: bool,
    ) -> Self {
        Self {
            sources: sources.into(),
            destinations: destinations.into(),
            weighted,
        }
    }

    /// The ranks that this rank receives from.
    pub fn sources(&self) -> &[Neighbor] {
        &self.sources
    }

    /// The ranks that this rank sends to.
    pub fn destinations(&self) -> &[Neighbor] {
        &self.destinations
    }

    /// Whether weights were given.
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }
}

fn weigh(ranks: &[usize], weights: Option<&[u32]>) -> Result<Box<[Neighbor]>> {
    if let Some(weights) = weights
        && weights.len() != ranks.len()
    {
        return Err(no_sense(format!(
            "{} weights for {} edges (hint: one per edge)",
            weights.len(),
            ranks.len()
        )));
    }
    let weight = |i: usize| weights.map_or(1, |weights| weights[i]);
    let weighed = ranks.iter().enumerate();
    Ok(weighed
        .map(|(i, &rank)| Neighbor {
            rank,
            weight: weight(i),
        })
        .collect())
}

/// Edges that any rank contributes to a distributed graph.
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    /// Where each group of edges starts.
    pub sources: &'a [usize],
    /// How many edges start there.
    pub degrees: &'a [usize],
    /// Where they end, one group after the other.
    pub destinations: &'a [usize],
    /// Their weights, or none for all.
    pub weights: Option<&'a [u32]>,
}

impl Edges<'_> {
    /// All edges as (source, destination, weight).
    pub(crate) fn list(&self, size: usize) -> Result<Vec<(usize, Neighbor)>> {
        if self.sources.len() != self.degrees.len() {
            return Err(no_sense(format!(
                "{} degrees for {} sources (hint: one per source)",
                self.degrees.len(),
                self.sources.len()
            )));
        }
        let total = self
            .degrees
            .iter()
            .try_fold(0usize, |a, d| a.checked_add(*d));
        if total != Some(self.destinations.len()) {
            return Err(no_sense(format!(
                "degrees {:?} for {} destinations (hint: degrees add up to the number of destinations)",
                self.degrees,
                self.destinations.len()
            )));
        }
        check_ranks("a source", self.sources, size)?;
        check_ranks("a destination", self.destinations, size)?;
        let ends = weigh(self.destinations, self.weights)?;
        let starts = (self.sources.iter().zip(self.degrees))
            .flat_map(|(source, degree)| std::iter::repeat_n(*source, *degree));
        Ok(starts.zip(ends).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_as_in_the_standard() {
        // The example of MPI 5.0, section 8.5.3.
        let graph = GraphTopology::new(&[2, 3, 4, 6], &[1, 3, 0, 3, 0, 2]).expect("sound");
        let lists: Vec<&[usize]> = (0..4).map(|r| graph.neighbors(r).expect("node")).collect();
        assert_eq!(lists, [&[1, 3][..], &[0], &[3], &[0, 2]]);
        assert!(graph.neighbors(4).is_err());
        let none = GraphTopology::new(&[], &[]).expect("empty");
        assert_eq!(none.nodes(), 0);
        // Loops and double edges are allowed.
        let odd = GraphTopology::new(&[3, 3], &[0, 1, 1]).expect("odd");
        assert_eq!(odd.neighbors(0).expect("node"), [0, 1, 1]);
        assert!(odd.neighbors(1).expect("node").is_empty());
    }

    #[test]
    fn graphs_that_make_no_sense() {
        for (index, edges, part) in [
            (&[2, 1][..], &[0, 1][..], "ascending"),
            (&[1, 3], &[0, 1], "ends at 3"),
            (&[1, 2], &[0, 2], "node 2 of 2"),
            (&[], &[0], "ends at 0"),
        ] {
            let e = GraphTopology::new(index, edges).expect_err(part);
            assert!(e.to_string().contains(part), "{e}");
        }
        let edges = |sources, degrees, destinations, weights| Edges {
            sources,
            degrees,
            destinations,
            weights,
        };
        for (bad, part) in [
            (edges(&[0], &[], &[], None), "0 degrees for 1"),
            (edges(&[0], &[2], &[1], None), "add up"),
            (edges(&[9], &[1], &[1], None), "source 9"),
            (edges(&[0], &[1], &[9], None), "destination 9"),
            (edges(&[0], &[1], &[1], Some(&[])), "0 weights for 1"),
            (edges(&[0, 0], &[usize::MAX, 2], &[1], None), "add up"),
        ] {
            let e = bad.list(4).expect_err(part);
            assert!(e.to_string().contains(part), "{e}");
        }
    }
}
