//! Spread: everything to everybody at once, each rank beginning with its neighbor.
//!
//! Nothing waits, so the transport sees all messages. As reduce_scatter each rank
//! gets all contributions to its piece and combines them in the balanced
//! association: as little data as around a ring, in any number of ranks.
//!
//! # Sources
//! For alltoall: B. W. Barrett et al., Open MPI's "basic linear" algorithm, which
//! posts all requests at once; the order of ranks is that of a spread-out exchange
//! in Thakur, Rabenseifner, Gropp, 2005.

use super::linear::combine_all;
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Lengths, Region};

/// What is exchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    Alltoall,
    ReduceScatter,
}

/// Where pieces lie.
pub(super) struct Places {
    source: Buffer,
    target: Buffer,
    own: Region,
}

impl Places {
    pub(super) fn outgoing(&self, to: u32) -> Region {
        Region::piece(self.source, to)
    }
    pub(super) fn incoming(&self, from: u32) -> Region {
        Region::piece(self.target, from)
    }
}

/// Where the pieces of an alltoall leave from. In place that is a copy: what goes out must not wait
/// for what comes in, or the reverse.
pub(super) fn outgoing(b: &mut Builder) -> Buffer {
    let (rank, size) = (b.rank, b.call.size);
    let source = b.call.input(rank);
    if source != Buffer::Recv {
        return source;
    }
    let room = b.scratch(size);
    for other in (0..size).filter(|r| *r != rank) {
        b.copy(Region::piece(source, other), Region::piece(room, other));
    }
    room
}

pub(super) fn prepare(b: &mut Builder, what: Exchange) -> Places {
    let (rank, size) = (b.rank, b.call.size);
    match what {
        Exchange::Alltoall => Places {
            source: outgoing(b),
            target: Buffer::Recv,
            own: Region::piece(Buffer::Recv, rank),
        },
        Exchange::ReduceScatter => Places {
            source: b.call.input(rank),
            target: b.scratch_like(size, Lengths::All(rank)),
            own: Region::piece(b.call.input(rank), rank),
        },
    }
}

pub(super) fn conclude(b: &mut Builder, what: Exchange, places: &Places) {
    let (rank, size) = (b.rank, b.call.size);
    if what == Exchange::Alltoall {
        // Last: what peers wait for has left by then. In place there is nothing to copy.
        b.copy(
            Region::piece(b.call.input(rank), rank),
            Region::piece(Buffer::Recv, rank),
        );
        return;
    }
    let operand = |i: u32| match i {
        own if own == rank => places.own,
        other => places.incoming(other),
    };
    let result = Region::piece(Buffer::Recv, 0);
    if b.call.shares_memory() {
        let sum = places.incoming(rank);
        combine_all(b, size, operand, sum);
        b.copy(sum, result);
    } else {
        combine_all(b, size, operand, result);
    }
}

/// Alltoall or reduce_scatter.
pub(super) fn exchange(b: &mut Builder, what: Exchange) {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let places = prepare(b, what);
    for distance in 1..size {
        let from = (rank + size - distance) % size;
        b.recv(from, b.tag(0), places.incoming(from));
    }
    for distance in 1..size {
        let to = (rank + distance) % size;
        b.send(to, b.tag(0), places.outgoing(to));
    }
    conclude(b, what, &places);
}

/// Everybody's vector to all, which combine them.
pub(super) fn allreduce(b: &mut Builder) {
    b.phase();
    let (rank, size, tag) = (b.rank, b.call.size, b.tag(0));
    let (input, result) = (b.input(), b.vector(Buffer::Recv));
    let room = b.scratch(size);
    for distance in 1..size {
        let from = (rank + size - distance) % size;
        b.recv(from, tag, Region::piece(room, from));
    }
    for distance in 1..size {
        b.send((rank + distance) % size, tag, input);
    }
    let operand = |i: u32| match i == rank {
        true => input,
        false => Region::piece(room, i),
    };
    combine_all(b, size, operand, result);
}

/// Every member's piece to all.
pub(super) fn allgather(b: &mut Builder, group: &Group, own: Region) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let tag = b.tag(0);
    for distance in 1..size {
        let from = (index + size - distance) % size;
        b.recv(group.rank(from), tag, Region::piece(Buffer::Recv, from));
    }
    for distance in 1..size {
        let to = (index + distance) % size;
        b.send(group.rank(to), tag, own);
    }
    b.copy(own, Region::piece(Buffer::Recv, index));
}
