//! A collective call: operation, ranks, root and buffers.
//!
//! A call is what all ranks agree on. It names no sizes: a plan is in pieces, and
//! how long a piece is only the executor and the costs want to know.
//!
//! # Invariants
//! 1. A piece is one contribution (gather and its like), or a part of a vector that
//!    all ranks have (broadcasts and reductions).
//! 2. `pieces` and `expected` are the definition of every collective, which the
//!    checker holds plans against. No algorithm uses `expected`.
//!
//! # Sources
//! MPI 5.0, chapter 6 (definitions, in place, intercommunicators), section 8.6
//! (neighborhoods).

use crate::neighbors::{CellOf, Neighbors, occurrence};
use crate::plan::{Buffer, Region};
use std::sync::Arc;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Nobody leaves before all have entered.
    Barrier,
    /// The root's vector to all. The buffer is `Recv` on every rank.
    Bcast,
    /// Every rank's contribution to the root.
    Gather,
    /// A contribution of the root's to every rank.
    Scatter,
    /// Every rank's contribution to every rank.
    Allgather,
    /// A contribution of every rank to every other.
    Alltoall,
    /// The combination of all vectors at the root.
    Reduce,
    /// The combination of all vectors at all ranks.
    Allreduce,
    /// Piece r of the combination at rank r.
    ReduceScatter,
    /// The combination of the vectors of ranks 0 to r at rank r.
    Scan,
    /// The same without r's own; nothing at rank 0.
    Exscan,
    /// Own contribution to all destinations, one from each source.
    NeighborAllgather,
    /// One contribution to each destination, one from each source.
    NeighborAlltoall,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 13] = [
        Self::Barrier,
        Self::Bcast,
        Self::Gather,
        Self::Scatter,
        Self::Allgather,
        Self::Alltoall,
        Self::Reduce,
        Self::Allreduce,
        Self::ReduceScatter,
        Self::Scan,
        Self::Exscan,
        Self::NeighborAllgather,
        Self::NeighborAlltoall,
    ];

    /// Does it combine elements?
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Self::Reduce | Self::Allreduce | Self::ReduceScatter | Self::Scan | Self::Exscan
        )
    }

    /// Has it a root?
    pub const fn rooted(self) -> bool {
        matches!(
            self,
            Self::Bcast | Self::Gather | Self::Scatter | Self::Reduce
        )
    }

    /// Do all ranks hold the same vector, which an algorithm may cut as it likes?
    pub const fn cuts_freely(self) -> bool {
        matches!(
            self,
            Self::Bcast | Self::Reduce | Self::Allreduce | Self::Scan | Self::Exscan
        )
    }

    /// Is it one of neighbors?
    pub const fn of_neighbors(self) -> bool {
        matches!(self, Self::NeighborAllgather | Self::NeighborAlltoall)
    }

    /// Is it defined in place (within one group)?
    pub const fn has_in_place(self) -> bool {
        !(matches!(self, Self::Barrier | Self::Bcast) || self.of_neighbors())
    }

    /// The name of the call.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Bcast => "bcast",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Allgather => "allgather",
            Self::Alltoall => "alltoall",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::NeighborAllgather => "neighbor_allgather",
            Self::NeighborAlltoall => "neighbor_alltoall",
        }
    }
}

/// How the operands of a reduction are combined: what a call requires, and what an
/// algorithm keeps. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Association {
    /// Each operand once, in any order: for operators that are commutative and
    /// exact, such as sums of integers.
    Any,
    /// In rank order, with any brackets: exact and not commutative.
    Ordered,
    /// In rank order, by the one tree that depends on the number of ranks alone
    /// ([`crate::balanced`]): for all that rounds, and whatever is not known to be
    /// exact.
    Balanced,
}

/// A collective call, without its sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub operation: Operation,
    /// Ranks; on an intercommunicator those of both sides.
    pub size: u32,
    /// The root, where there is one.
    pub root: u32,
    /// Contributions may differ in length (the forms in v and w). A rank then knows
    /// the lengths of what it sends and receives itself; of allgather and
    /// reduce_scatter all.
    pub varying: bool,
    /// The input lies where the output will.
    pub in_place: bool,
    /// What brackets the operator allows.
    pub required: Association,
    /// The neighborhood, for the operations on one.
    pub neighbors: Option<Arc<Neighbors>>,
    /// On an intercommunicator: ranks below this one are one side, the others the
    /// other.
    pub first_side: Option<u32>,
}

/// What must lie in a piece of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whatever.
    Nothing,
    /// Piece `piece` of `rank`'s input.
    Piece {
        /// Whose.
        rank: u32,
        /// Which of its pieces.
        piece: u32,
    },
    /// The combination of piece `piece` of ranks `first` to `first + count - 1`.
    Combined {
        /// First rank.
        first: u32,
        /// Ranks.
        count: u32,
        /// Which piece.
        piece: u32,
    },
}

impl Call {
    /// A call on `size` ranks with root 0, equal contributions, not in place, with
    /// the strictest association.
    pub fn new(operation: Operation, size: u32) -> Self {
        assert!(size > 0, "a communicator has at least one rank");
        Self {
            operation,
            size,
            root: 0,
            varying: false,
            in_place: false,
            required: Association::Balanced,
            neighbors: None,
            first_side: None,
        }
    }

    /// With this root.
    pub fn root(mut self, root: u32) -> Self {
        assert!(root < self.size, "root {root} of {} ranks", self.size);
        self.root = root;
        self
    }

    /// In place.
    pub fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }

    /// With contributions of different lengths.
    pub fn varying(mut self) -> Self {
        self.varying = true;
        self
    }

    /// With these demands on brackets.
    pub fn requires(mut self, association: Association) -> Self {
        self.required = association;
        self
    }

    /// On this neighborhood.
    pub fn on(mut self, neighbors: Arc<Neighbors>) -> Self {
        let lists = match neighbors.only {
            None => self.size as usize,
            Some(_) => 1,
        };
        assert_eq!(neighbors.sources.len(), lists);
        assert_eq!(neighbors.destinations.len(), lists);
        self.neighbors = Some(neighbors);
        self
    }

    /// Between ranks below `first` and the others.
    pub fn between(mut self, first: u32) -> Self {
        assert!(0 < first && first < self.size, "both sides have ranks");
        self.first_side = Some(first);
        self
    }

    /// First rank and number of ranks on the side of `rank`; without sides, all.
    pub fn side(&self, rank: u32) -> (u32, u32) {
        match self.first_side {
            None => (0, self.size),
            Some(first) if rank < first => (0, first),
            Some(first) => (first, self.size - first),
        }
    }

    /// Those that `rank` exchanges data with: all, or the other side.
    pub fn others(&self, rank: u32) -> (u32, u32) {
        match self.first_side {
            None => (0, self.size),
            Some(first) if rank < first => (first, self.size - first),
            Some(first) => (0, first),
        }
    }

    /// Pieces of a rank's buffer, if a vector is cut into `cut`. 0: the rank has no
    /// such buffer.
    pub fn pieces(&self, rank: u32, buffer: Buffer, cut: u32) -> u32 {
        use Operation as O;
        let at_root = rank == self.root;
        let (_, others) = self.others(rank);
        let crosses = self.first_side.is_some();
        // On an intercommunicator the root's side has no other part.
        let takes_part = !crosses || at_root || self.side(rank) != self.side(self.root);
        match (self.operation, buffer) {
            (_, Buffer::Scratch(_)) | (O::Barrier | O::Bcast, Buffer::Send) => 0,
            (O::Barrier, _) => 0,
            (O::Bcast, _) => cut * u32::from(takes_part),
            (O::Gather, Buffer::Send) if crosses => u32::from(takes_part && !at_root),
            (O::Gather, Buffer::Send) => u32::from(!(at_root && self.in_place)),
            (O::Gather, _) => others * u32::from(at_root),
            (O::Scatter, Buffer::Send) => others * u32::from(at_root),
            (O::Scatter, _) if crosses => u32::from(takes_part && !at_root),
            (O::Scatter, _) => u32::from(!(at_root && self.in_place)),
            (O::Allgather, Buffer::Send) => u32::from(!self.in_place),
            (O::Allgather, _) => others,
            (O::Alltoall, Buffer::Send) => others * u32::from(!self.in_place),
            (O::Alltoall, _) => others,
            (O::Reduce, Buffer::Send) if crosses => cut * u32::from(takes_part && !at_root),
            (O::Reduce, Buffer::Send) => cut * u32::from(!(at_root && self.in_place)),
            (O::Reduce, _) => cut * u32::from(at_root),
            (O::Allreduce | O::Scan | O::Exscan, Buffer::Send) => cut * u32::from(!self.in_place),
            (O::Allreduce | O::Scan | O::Exscan, _) => cut,
            // In place the input lies where the output will begin, piece by piece
            // elsewhere: the two share memory (see `shares_memory`).
            (O::ReduceScatter, Buffer::Send) => self.vector_pieces(),
            (O::ReduceScatter, _) => 1,
            (O::NeighborAllgather, Buffer::Send) => 1,
            (O::NeighborAlltoall, Buffer::Send) => self.destinations(rank).len() as u32,
            (O::NeighborAllgather | O::NeighborAlltoall, _) => self.sources(rank).len() as u32,
        }
    }

    /// Pieces of the vectors that a reduce_scatter combines. Between groups each side cuts
    /// them for its own ranks, and the pieces behind these are empty: what crosses is
    /// whole vectors, however they are cut.
    pub fn vector_pieces(&self) -> u32 {
        match self.first_side {
            None => self.size,
            Some(first) => first.max(self.size - first),
        }
    }

    /// Contributions, of its own size each, that a rank's slot has room for.
    pub fn slots(&self) -> u32 {
        match self.operation {
            Operation::Barrier => 0,
            Operation::Scatter => self.size,
            // The size of a reduce_scatter is that of a share.
            Operation::Alltoall | Operation::ReduceScatter => self.size - 1,
            Operation::NeighborAlltoall => {
                let ranks = 0..self.size;
                ranks.map(|rank| self.cells(rank)).max().unwrap_or(1)
            }
            _ => 1,
        }
    }

    /// Is each contribution, or each share of one, read by one rank?
    pub fn has_one_reader(&self) -> bool {
        use Operation as O;
        let by_root = matches!(
            self.operation,
            O::Gather | O::Scatter | O::Reduce | O::Alltoall | O::NeighborAlltoall
        );
        by_root || self.size == 2
    }

    /// Do pieces of a buffer lie where a rank says, not one behind the other?
    pub fn has_places(&self) -> bool {
        self.operation.of_neighbors() || (self.varying && !self.operation.reduces())
    }

    /// Does the receive buffer overlap the send buffer, at other places?
    pub fn shares_memory(&self) -> bool {
        self.in_place && self.operation == Operation::ReduceScatter
    }

    /// Where a rank's neighbors are that it receives from.
    pub fn sources(&self, rank: u32) -> &[u32] {
        self.neighbors
            .as_ref()
            .map_or(&[], |n| n.of(&n.sources, rank))
    }

    /// Where a rank's neighbors are that it sends to.
    pub fn destinations(&self, rank: u32) -> &[u32] {
        self.neighbors
            .as_ref()
            .map_or(&[], |n| n.of(&n.destinations, rank))
    }

    /// Cells of a rank's slot on a neighborhood: one for each edge to another rank, or one that
    /// all read.
    pub fn cells(&self, rank: u32) -> u32 {
        let others = self.destinations(rank).iter().filter(|to| **to != rank);
        match self.operation {
            Operation::NeighborAlltoall => (others.count() as u32).max(1),
            _ => 1,
        }
    }

    /// The cell that holds the block of a rank's source `at`, which is another rank; none where the
    /// rank does not know.
    pub fn cell_of(&self, rank: u32, at: usize) -> Option<CellOf> {
        match self.operation {
            Operation::NeighborAlltoall => self.neighbors.as_ref()?.cell_of(rank, at),
            _ => Some(CellOf { cell: 0, of: 1 }),
        }
    }

    /// The buffer that holds a rank's input.
    pub fn input(&self, rank: u32) -> Buffer {
        match self.operation {
            Operation::Bcast => Buffer::Recv,
            _ if !self.in_place || !self.operation.has_in_place() => Buffer::Send,
            Operation::Gather | Operation::Reduce if rank != self.root => Buffer::Send,
            Operation::Scatter | Operation::ReduceScatter => Buffer::Send,
            _ => Buffer::Recv,
        }
    }

    /// Where a rank's own contribution lies: of gather and allgather.
    pub fn own(&self, rank: u32) -> Region {
        match self.input(rank) {
            Buffer::Recv => Region::piece(Buffer::Recv, rank),
            buffer => Region::piece(buffer, 0),
        }
    }

    /// Pieces of a peer's buffer as a plan names them: its input, wherever it lies, is
    /// [`Buffer::Send`], and of a gather and an allgather what it contributes is piece 0.
    pub fn input_of_peer(&self, peer: u32, data: Region) -> Region {
        match (data.buffer, self.operation) {
            (Buffer::Send, Operation::Gather | Operation::Allgather) => self.own(peer),
            (Buffer::Send, _) => Region {
                buffer: self.input(peer),
                ..data
            },
            _ => data,
        }
    }

    /// What a piece of a buffer holds at the start: the piece of `rank`'s input
    /// that it is.
    pub fn initial(&self, rank: u32, buffer: Buffer, piece: u32) -> Option<u32> {
        if buffer != self.input(rank) {
            return None;
        }
        match self.operation {
            Operation::Bcast => (rank == self.root).then_some(piece),
            Operation::Gather | Operation::Allgather if buffer == Buffer::Recv => {
                (piece == rank).then_some(0)
            }
            _ => Some(piece),
        }
    }

    /// What a piece of a rank's receive buffer must hold at the end.
    pub fn expected(&self, rank: u32, piece: u32) -> Expected {
        use Operation as O;
        let (first, count) = self.others(rank);
        let side = self.side(rank);
        match self.operation {
            O::Barrier => Expected::Nothing,
            O::Bcast => Expected::Piece {
                rank: self.root,
                piece,
            },
            O::Gather | O::Allgather => Expected::Piece {
                rank: first + piece,
                piece: 0,
            },
            O::Scatter => Expected::Piece {
                rank: self.root,
                piece: match self.first_side {
                    None => rank,
                    Some(_) => rank - side.0,
                },
            },
            O::Alltoall => Expected::Piece {
                rank: first + piece,
                piece: rank - side.0,
            },
            O::Reduce | O::Allreduce => Expected::Combined {
                first,
                count,
                piece,
            },
            O::ReduceScatter => Expected::Combined {
                first,
                count,
                piece: rank - side.0,
            },
            O::Scan => Expected::Combined {
                first: 0,
                count: rank + 1,
                piece,
            },
            O::Exscan if rank == 0 => Expected::Nothing,
            O::Exscan => Expected::Combined {
                first: 0,
                count: rank,
                piece,
            },
            O::NeighborAllgather => Expected::Piece {
                rank: self.sources(rank)[piece as usize],
                piece: 0,
            },
            O::NeighborAlltoall => {
                // The k-th edge from a rank is met by the k-th edge to the other.
                let sources = self.sources(rank);
                let from = sources[piece as usize];
                let nth = occurrence(sources, piece as usize);
                let piece = self
                    .destinations(from)
                    .iter()
                    .enumerate()
                    .filter(|(_, to)| **to == rank)
                    .nth(nth as usize)
                    .map_or(u32::MAX, |(at, _)| at as u32);
                Expected::Piece { rank: from, piece }
            }
        }
    }
}
