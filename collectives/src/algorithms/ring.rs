//! Ring: pieces travel around, each rank talks to its neighbours only.
//!
//! Moves the least data that is possible, in P - 1 rounds. Reductions begin each
//! piece at another rank, so they are for operators that allow any association.
//!
//! # Sources
//! P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", J. Parallel Distrib. Comput. 69(2), 2009.

use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Region};

/// Spreads the pieces of `Recv`, of which the member at index i has piece
/// `i + shift`, and the `has(i)` that follow it.
pub(super) fn spread(b: &mut Builder, group: &Group, root: u32, has: impl Fn(u32) -> u32) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let real = |i: u32| group.rank((i + root) % size);
    let index = (index + size - root) % size;
    let (next, previous) = ((index + 1) % size, (index + size - 1) % size);
    let known = |who: u32, piece: u32| (piece + size - who) % size < has(who);
    for round in 0..size - 1 {
        let tag = b.tag(round);
        let taken = (previous + size - round) % size;
        let given = (index + size - round) % size;
        if !known(index, taken) {
            b.recv(real(previous), tag, Region::piece(Buffer::Recv, taken));
        }
        if !known(next, given) {
            b.send(real(next), tag, Region::piece(Buffer::Recv, given));
        }
    }
}

/// Every member's piece to all.
pub(super) fn allgather(b: &mut Builder, group: &Group, own: Region) {
    if let Some(index) = group.index(b.rank) {
        b.copy(own, Region::piece(Buffer::Recv, index));
    }
    spread(b, group, 0, |_| 1);
}

/// Combines piece `i` of all at index i. Partial sums lie in `sums`, at their
/// number; returns where the own piece lies.
pub(super) fn reduce_scatter(b: &mut Builder, input: Region, sums: Buffer) -> Region {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let at = |buffer, piece| Region::piece(buffer, piece);
    let theirs = b.scratch(size);
    let mut mine = at(input.buffer, (rank + size - 1) % size);
    if size == 1 {
        return at(input.buffer, 0);
    }
    for round in 0..size - 1 {
        let tag = b.tag(round);
        let piece = (rank + 2 * size - 2 - round) % size;
        b.recv((rank + size - 1) % size, tag, at(theirs, piece));
        b.send((rank + 1) % size, tag, mine);
        mine = at(sums, piece);
        b.combine(at(theirs, piece), at(input.buffer, piece), mine);
    }
    mine
}
