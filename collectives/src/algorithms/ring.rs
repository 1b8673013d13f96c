//! Ring: pieces travel around, each rank talks to its neighbors only.
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

/// Spreads the pieces of `Recv`. Counted from the root, the member at index i has
/// piece i, and of those that follow it as many that they are `has(i)`. Where piece i
/// lies, `at` says; the own one may lie elsewhere yet: it leaves from there, and is copied
/// meanwhile.
pub(super) fn spread(
    b: &mut Builder,
    group: &Group,
    root: u32,
    own: Option<Region>,
    has: impl Fn(u32) -> u32,
    at: impl Fn(u32) -> u32,
) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let real = |i: u32| group.rank((i + root) % size);
    let index = (index + size - root) % size;
    let (next, previous) = ((index + 1) % size, (index + size - 1) % size);
    let known = |who: u32, piece: u32| (piece + size - who) % size < has(who);
    let copy = |b: &mut Builder| {
        if let Some(own) = own {
            b.copy(own, Region::piece(Buffer::Recv, at(index)));
        }
    };
    for round in 0..size - 1 {
        let tag = b.tag(round);
        let taken = (previous + size - round) % size;
        let given = (index + size - round) % size;
        if !known(index, taken) {
            b.recv(real(previous), tag, Region::piece(Buffer::Recv, at(taken)));
        }
        if !known(next, given) {
            let mine = own.filter(|_| round == 0);
            let given = mine.unwrap_or(Region::piece(Buffer::Recv, at(given)));
            b.send(real(next), tag, given);
        }
        if round == 0 {
            copy(b);
        }
    }
    if size == 1 {
        copy(b);
    }
}

/// Every member's piece to all, at the number of its rank.
pub(super) fn allgather(b: &mut Builder, group: &Group, own: Region) {
    spread(b, group, 0, Some(own), |_| 1, |i| group.rank(i));
}

/// Combines piece r of all at rank r. Partial sums lie in `sums`, at their number;
/// returns where the own piece lies.
pub(super) fn reduce_scatter(
    b: &mut Builder,
    group: &Group,
    input: Region,
    sums: Buffer,
) -> Region {
    b.phase();
    let size = group.size();
    let index = group.index(b.rank).expect("all ranks take part");
    let at = |buffer, piece| Region::piece(buffer, group.rank(piece % size));
    if size == 1 {
        return at(input.buffer, 0);
    }
    let theirs = b.scratch(size);
    let (next, previous) = (
        group.rank((index + 1) % size),
        group.rank((index + size - 1) % size),
    );
    let mut mine = at(input.buffer, index + size - 1);
    for round in 0..size - 1 {
        let tag = b.tag(round);
        let piece = index + 2 * size - 2 - round;
        b.recv(previous, tag, at(theirs, piece));
        b.send(next, tag, mine);
        mine = at(sums, piece);
        b.combine(at(theirs, piece), at(input.buffer, piece), mine);
    }
    mine
}
