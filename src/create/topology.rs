//! Communicators with a topology.

use super::split::{Wish, others_arguments};
use crate::coll::TOPOLOGY;
use crate::comm::{
    CartTopology, Communicator, DistGraphTopology, Edges, GraphTopology, Neighbor, Neighborhood,
    Sends, Topology,
};
use crate::p2p::Message;
use osier_collectives::CellOf;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{Pattern, TagPattern};
use osier_engine::view::BufferMut;

fn fits(need: usize, size: usize, hint: &str) -> Result<()> {
    if need <= size {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Argument,
        format!("{need} ranks over a communicator of {size} (hint: {hint})"),
    ))
}

impl Communicator {
    fn no_topology_between_groups(&self) -> Result<()> {
        if !self.is_inter() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Communicator,
            "an intercommunicator has no topology (hint: merge gives one communicator of both groups)",
        ))
    }

    /// A Cartesian grid over the first ranks; `None` for ranks beyond it.
    /// Ranks keep their order (row-major). Collective.
    ///
    /// ```
    /// # osier::testing::ranks(4, |comm| {
    /// let mut dims = [0, 0];
    /// osier::topology::dims_create(comm.size(), &mut dims)?;
    /// let grid = comm.cart_create(&dims, &[true, false])?.expect("a place for all");
    /// let cart = grid.cart().expect("a grid");
    /// assert_eq!(cart.coords_of(grid.rank())?, [comm.rank() / 2, comm.rank() % 2]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the grid has more places than the communicator has
    /// ranks, or dimensions and periods differ in number; of kind [`ErrorKind::Communicator`],
    /// on an intercommunicator; else as [`Communicator::split`].
    #[track_caller]
    pub fn cart_create(&self, dims: &[usize], periods: &[bool]) -> Result<Option<Self>> {
        let made = self.cart_wish(dims, periods);
        self.reported(self.make_first(made))
    }

    fn cart_wish(&self, dims: &[usize], periods: &[bool]) -> Result<(usize, Topology)> {
        self.no_topology_between_groups()?;
        let topology = CartTopology::new(dims, periods)?;
        let need = topology.size();
        fits(need, self.size(), "dims_create finds a grid that fits")
            .map_err(|e| e.context("a grid"))?;
        Ok((need, Topology::Cart(topology)))
    }

    /// A graph over the first `index.len()` ranks; `None` for ranks beyond it.
    /// All ranks pass the whole graph ([`GraphTopology::new`]). `reorder`
    /// permits other ranks, which is not made use of. Collective.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the graph has more ranks than the communicator; of
    /// kind [`ErrorKind::Communicator`], on an intercommunicator; else as
    /// [`GraphTopology::new`] and [`Communicator::split`].
    #[track_caller]
    pub fn graph_create(
        &self,
        index: &[usize],
        edges: &[usize],
        reorder: bool,
    ) -> Result<Option<Self>> {
        let _ = reorder;
        let made = self.graph_wish(index, edges);
        self.reported(self.make_first(made))
    }

    fn graph_wish(&self, index: &[usize], edges: &[usize]) -> Result<(usize, Topology)> {
        self.no_topology_between_groups()?;
        let topology = GraphTopology::new(index, edges)?;
        let need = topology.nodes();
        fits(need, self.size(), "one node per rank").map_err(|e| e.context("a graph"))?;
        Ok((need, Topology::Graph(topology)))
    }

    /// A communicator of the first ranks with a topology.
    #[track_caller]
    fn make_first(&self, made: Result<(usize, Topology)>) -> Result<Option<Self>> {
        self.no_topology_between_groups()?;
        let wish = made.map(|(need, topology)| Wish {
            color: (self.rank() < need).then_some(0),
            key: self.rank() as i64,
            topology: Some(topology),
        });
        self.make(wish)
    }

    /// The rank that this rank would have on a grid; `None` if it would be
    /// beyond it. Ranks are never reordered, so it is this rank's own number.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`] or [`ErrorKind::Communicator`], as
    /// [`Communicator::cart_create`].
    pub fn cart_map(&self, dims: &[usize], periods: &[bool]) -> Result<Option<usize>> {
        let (need, _) = self.reported(self.cart_wish(dims, periods))?;
        Ok((self.rank() < need).then_some(self.rank()))
    }

    /// The rank that this rank would have in a graph; `None` if it would be
    /// beyond it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`] or [`ErrorKind::Communicator`], as
    /// [`Communicator::graph_create`].
    pub fn graph_map(&self, index: &[usize], edges: &[usize]) -> Result<Option<usize>> {
        let (need, _) = self.reported(self.graph_wish(index, edges))?;
        Ok((self.rank() < need).then_some(self.rank()))
    }

    /// The grids of fewer dimensions in which the dropped coordinates are
    /// equal; `remain` says which dimensions stay. Collective.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the communicator has no grid, or `remain` has
    /// another number of entries than the grid has dimensions; else as [`Communicator::split`].
    #[track_caller]
    pub fn cart_sub(&self, remain: &[bool]) -> Result<Self> {
        // All ranks know alike whether there is a grid; the rest they exchange.
        let cart = self.reported(self.cart().ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                "the communicator has no grid (hint: cart_create makes one that has)",
            )
        }))?;
        let sub = self.make(self.cart_sub_wish(cart, remain)).and_then(|sub| {
            sub.ok_or_else(|| Error::new(ErrorKind::Argument, "every rank has a part of the grid"))
        });
        self.reported(sub)
    }

    fn cart_sub_wish(&self, cart: &CartTopology, remain: &[bool]) -> Result<Wish> {
        let (slice, place, topology) = cart.sub(self.rank(), remain)?;
        Ok(Wish {
            color: Some(slice as u32),
            key: place as i64,
            topology: Some(Topology::Cart(topology)),
        })
    }

    /// A distributed graph: each rank names the edges that end and begin at
    /// itself. `weights` are those of the sources and those of the
    /// destinations, on all ranks or on none. `reorder` permits other ranks,
    /// which is not made use of. Collective.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let (left, right) = ((comm.rank() + 2) % 3, (comm.rank() + 1) % 3);
    /// let ring = comm.dist_graph_create_adjacent(&[left], &[right], None, false)?;
    /// let mut from = [9usize];
    /// ring.neighbor_allgather(&[ring.rank()], &mut from)?;
    /// assert_eq!(from, [left]);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the graph names ranks that do not exist, or weights
    /// differ from edges in number; of kind [`ErrorKind::Communicator`], on an
    /// intercommunicator; else as [`Communicator::split`].
    #[track_caller]
    pub fn dist_graph_create_adjacent(
        &self,
        sources: &[usize],
        destinations: &[usize],
        weights: Option<(&[u32], &[u32])>,
        reorder: bool,
    ) -> Result<Self> {
        let _ = reorder;
        let topology = self.no_topology_between_groups().and_then(|()| {
            DistGraphTopology::adjacent(
                self.size(),
                sources,
                weights.map(|w| w.0),
                destinations,
                weights.map(|w| w.1),
            )
        });
        self.reported(self.make_all(topology))
    }

    #[track_caller]
    fn make_all(&self, topology: Result<DistGraphTopology>) -> Result<Self> {
        self.no_topology_between_groups()?;
        let wish = topology.map(|topology| Wish {
            color: Some(0),
            key: self.rank() as i64,
            topology: Some(Topology::DistGraph(topology)),
        });
        let made = self.make(wish)?;
        let made = made
            .ok_or_else(|| Error::new(ErrorKind::Argument, "every rank takes part in the graph"))?;
        made.learn_cells()?;
        Ok(made)
    }

    /// Ranks tell those that they send to where their blocks will lie: in which cells of their
    /// slots.
    #[track_caller]
    fn learn_cells(&self) -> Result<()> {
        if !self.shares_segment_of_neighbors() {
            return Ok(());
        }
        let Some(topology) = self.topology() else {
            return Ok(());
        };
        let around = Neighborhood::of(topology, self.rank())?;
        let mut sends = Sends::new(self.core(), self.lane());
        for (to, CellOf { cell, of }) in around.own_cells() {
            sends.post(vec![cell, of], to, TOPOLOGY)?;
        }
        let mut cells = Vec::new();
        for (at, from) in around.other_sources() {
            let mut told = [0u32; 2];
            self.take_view(told[..].view_mut().raw(), from as usize, TOPOLOGY)?;
            let [cell, of] = told;
            if cell >= of {
                let told = format!("rank {from} says cell {cell} of {of}");
                return Err(Error::new(ErrorKind::Argument, told));
            }
            cells.push((at, Some(CellOf { cell, of })));
        }
        sends.finish()?;
        self.knows_around(around.with_cells(cells));
        Ok(())
    }

    /// A distributed graph: each rank names any edges, its own or others', on
    /// all ranks with weights or on none. A rank's neighbors are in the order
    /// of the ranks that named them. `reorder` permits other ranks, which is
    /// not made use of. Collective.
    ///
    /// # Errors
    /// As [`Communicator::dist_graph_create_adjacent`]; of kind [`ErrorKind::Argument`], if
    /// some ranks give weights and others none.
    #[track_caller]
    pub fn dist_graph_create(&self, edges: Edges<'_>, reorder: bool) -> Result<Self> {
        let _ = reorder;
        let made = self
            .no_topology_between_groups()
            .and_then(|()| self.make_dist_graph(edges));
        self.reported(made)
    }

    #[track_caller]
    fn make_dist_graph(&self, edges: Edges<'_>) -> Result<Self> {
        let size = self.size();
        let list = edges.list(size);
        // Counts of messages to each rank, and of ranks with an error, with edges,
        // with weights for them, with weights for none.
        let mut mail: Vec<Vec<[u64; 3]>> = vec![Vec::new(); size];
        for &(source, to) in list.iter().flatten() {
            let weight = u64::from(to.weight);
            mail[source].push([OUT, to.rank as u64, weight]);
            mail[to.rank].push([IN, source as u64, weight]);
        }
        let mut counts: Vec<u64> = mail.iter().map(|m| u64::from(!m.is_empty())).collect();
        let some = list.as_ref().is_ok_and(|list| !list.is_empty());
        let given = edges.weights.is_some();
        let (weighted, unused) = (some && given, !some && given);
        counts.extend([list.is_err(), some, weighted, unused].map(u64::from));
        self.allreduce_in_place(&mut counts, &osier_datatype::Operator::Sum)?;
        list?;
        let [bad, some, weighted] = [counts[size], counts[size + 1], counts[size + 2]];
        if bad != 0 {
            return Err(others_arguments());
        }
        if weighted != 0 && weighted != some {
            return Err(Error::new(
                ErrorKind::Argument,
                format!(
                    "{weighted} of {some} ranks with edges gave weights (hint: all give weights, or none)"
                ),
            ));
        }
        let mut sends = Sends::new(self.core(), self.lane());
        for (to, rows) in mail.into_iter().enumerate() {
            if !rows.is_empty() {
                sends.post(rows, to as u32, TOPOLOGY)?;
            }
        }
        let mut received = Vec::new();
        for _ in 0..counts[self.rank()] {
            let message = self.next_of_any(TOPOLOGY)?;
            let from = message.status().source();
            received.push((from, message.recv_vec::<[u64; 3]>()?.0));
        }
        sends.finish()?;
        received.sort_by_key(|(from, _)| *from);
        let (mut sources, mut destinations) = (Vec::new(), Vec::new());
        for [direction, rank, weight] in received.into_iter().flat_map(|(_, rows)| rows) {
            let end = Neighbor {
                rank: rank as usize,
                weight: weight as u32,
            };
            if direction == OUT {
                destinations.push(end);
            } else {
                sources.push(end);
            }
        }
        // In a graph without edges, ranks that pass an empty list of weights decide.
        let weighted = weighted != 0 || some == 0 && counts[size + 3] != 0;
        let topology = DistGraphTopology::from_edges(sources, destinations, weighted);
        self.make_all(Ok(topology))
    }

    /// The next message of the library itself from any rank.
    #[track_caller]
    fn next_of_any(&self, tag: u32) -> Result<Message> {
        let any = Pattern {
            source: None,
            tag: TagPattern::Exact(tag),
        };
        let peers = 0..self.peer_count() as u32;
        self.core().wait_on(self.lane(), |lane| {
            if let Some(matched) = lane.matched_probe(any) {
                return Some(Ok(Message::new(self, matched)));
            }
            // Who has died may have been about to send.
            let mut dead = peers.clone();
            dead.find_map(|peer| lane.lost_source(Pattern::exact(peer, tag)))
                .map(Err)
        })
    }
}

/// Directions of an edge, as seen by the rank that gets it.
const OUT: u64 = 0;
const IN: u64 = 1;
