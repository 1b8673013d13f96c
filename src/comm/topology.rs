//! Topology of a communicator.

use super::graph::{DistGraphTopology, GraphTopology};
use super::{CartTopology, Communicator};

/// How the ranks of a communicator lie to each other.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Topology {
    /// On a grid.
    Cart(CartTopology),
    /// As a graph that every rank knows whole.
    Graph(GraphTopology),
    /// As a graph of which every rank knows its own edges.
    DistGraph(DistGraphTopology),
}

impl Communicator {
    /// The topology, if the communicator has one (`MPI_Topo_test`).
    pub fn topology(&self) -> Option<&Topology> {
        self.0.topology.as_ref()
    }

    /// The grid, if the communicator has one.
    pub fn cart(&self) -> Option<&CartTopology> {
        match self.topology()? {
            Topology::Cart(cart) => Some(cart),
            _ => None,
        }
    }

    /// The graph, if the communicator has one that every rank knows whole.
    pub fn graph(&self) -> Option<&GraphTopology> {
        match self.topology()? {
            Topology::Graph(graph) => Some(graph),
            _ => None,
        }
    }

    /// This rank's edges, if the communicator has a distributed graph.
    pub fn dist_graph(&self) -> Option<&DistGraphTopology> {
        match self.topology()? {
            Topology::DistGraph(graph) => Some(graph),
            _ => None,
        }
    }
}
