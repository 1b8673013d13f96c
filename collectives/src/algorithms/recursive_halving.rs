//! Recursive halving: a reduce_scatter in which partners, far ones first, exchange
//! halves of what is left.
//!
//! Far ones first, so that each rank ends with its own piece; this combines ranks
//! that are far apart first, so it is for operators that allow any association. A
//! group that is no power of two is folded: a pair is one leaf with two pieces.
//!
//! # Sources
//! R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.

use crate::balanced::Fold;
use crate::builder::Builder;
use crate::plan::{Buffer, Region};

/// Reduce_scatter over all ranks.
pub(super) fn reduce_scatter(b: &mut Builder) {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let fold = Fold::of(size);
    let rounds = fold.leaves.ilog2();
    let (first_tag, last_tag) = (b.tag(0), b.tag(rounds + 1));
    let result = Region::piece(Buffer::Recv, 0);
    let input = Region::run(Buffer::Send, 0, size);
    let sums = b.scratch(size);
    let within = |buffer, leaves: std::ops::Range<u32>| {
        let (first, end) = (fold.first(leaves.start), fold.first(leaves.end));
        Region::run(buffer, first, end - first)
    };
    let mut buffer = Buffer::Send;
    if let Some(partner) = fold.partner(rank) {
        if rank > partner {
            b.send(partner, first_tag, input);
            b.recv(partner, last_tag, result);
            return;
        }
        let theirs = Region::run(b.scratch(size), 0, size);
        b.recv(partner, first_tag, theirs);
        b.combine(input, theirs, Region::run(sums, 0, size));
        buffer = sums;
    }
    let leaf = fold.leaf(rank);
    let mut range = 0..fold.leaves;
    for round in 0..rounds {
        let mask = fold.leaves >> (round + 1);
        let other = fold.first(leaf ^ mask);
        let tag = b.tag(round + 1);
        let middle = range.start + mask;
        let (keep, give) = if leaf & mask == 0 {
            (range.start..middle, middle..range.end)
        } else {
            (middle..range.end, range.start..middle)
        };
        let theirs = within(b.scratch(size), keep.clone());
        b.recv(other, tag, theirs);
        b.send(other, tag, within(buffer, give));
        let (mine, into) = (within(buffer, keep.clone()), within(sums, keep.clone()));
        if leaf & mask == 0 {
            b.combine(mine, theirs, into);
        } else {
            b.combine(theirs, mine, into);
        }
        (buffer, range) = (sums, keep);
    }
    b.copy(Region::piece(buffer, rank), result);
    if let Some(partner) = fold.partner(rank) {
        b.send(partner, last_tag, Region::piece(buffer, partner));
    }
}
