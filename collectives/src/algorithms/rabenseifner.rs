//! Rabenseifner: a reduce_scatter by recursive halving, then an allgather, or a
//! gather to the root.
//!
//! Nearest partners halve first, so each piece is combined in the balanced
//! association; the price is that whole ranges move in the order of reversed bits,
//! which costs nothing.
//!
//! # Sources
//! R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004;
//! R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.

use crate::balanced::Fold;
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Region};
use std::ops::Range;

/// Vectors are cut into this many pieces.
pub(super) fn cut(size: u32) -> u32 {
    Fold::of(size).leaves
}

fn at(buffer: Buffer, pieces: &Range<u32>) -> Region {
    Region::run(buffer, pieces.start, pieces.end - pieces.start)
}

/// Over all members, of what lies in `input`; to the root's index only, if there is one.
pub(super) fn reduce(b: &mut Builder, group: &Group, root: Option<u32>, input: Buffer) {
    b.phase();
    let Some(rank) = group.index(b.rank) else {
        return;
    };
    let fold = Fold::of(group.size());
    let rounds = fold.leaves.ilog2();
    let root_leaf = fold.leaf(root.unwrap_or(0));
    let holder = |leaf: u32| match root {
        Some(root) if leaf == root_leaf => root,
        _ => fold.first(leaf),
    };
    let mut buffer = input;
    let has_result = root.is_none_or(|root| root == rank);
    let sums = if has_result {
        Buffer::Recv
    } else {
        b.scratch(fold.leaves)
    };
    let all = 0..fold.leaves;
    let (first_tag, last_tag) = (b.tag(0), b.tag(2 * rounds + 1));
    let leaf = fold.leaf(rank);
    if let Some(partner) = fold.partner(rank) {
        if rank != holder(leaf) {
            b.send(group.rank(partner), first_tag, at(buffer, &all));
            if root.is_none() {
                b.recv(group.rank(partner), last_tag, at(sums, &all));
            }
            return;
        }
        let theirs = at(b.scratch(fold.leaves), &all);
        b.recv(group.rank(partner), first_tag, theirs);
        let (mine, into) = (at(buffer, &all), at(sums, &all));
        if rank < partner {
            b.combine(mine, theirs, into);
        } else {
            b.combine(theirs, mine, into);
        }
        buffer = sums;
    }
    let mut range = all.clone();
    for round in 0..rounds {
        let mask = 1 << round;
        let (other, tag) = (holder(leaf ^ mask), b.tag(round + 1));
        let middle = (range.start + range.end) / 2;
        let low = leaf & mask == 0;
        let (keep, give) = if low {
            (range.start..middle, middle..range.end)
        } else {
            (middle..range.end, range.start..middle)
        };
        let theirs = at(b.scratch(fold.leaves), &keep);
        b.recv(group.rank(other), tag, theirs);
        b.send(group.rank(other), tag, at(buffer, &give));
        let (mine, into) = (at(buffer, &keep), at(sums, &keep));
        if low {
            b.combine(mine, theirs, into);
        } else {
            b.combine(theirs, mine, into);
        }
        (buffer, range) = (sums, keep);
    }
    for round in (0..rounds).rev() {
        let mask = 1 << round;
        let (other, tag) = (holder(leaf ^ mask), b.tag(2 * rounds - round));
        let length = range.end - range.start;
        let sibling = if leaf & mask == 0 {
            range.end..range.end + length
        } else {
            range.start - length..range.start
        };
        if root.is_some() {
            if (leaf ^ root_leaf) & mask != 0 {
                b.send(group.rank(other), tag, at(sums, &range));
                return;
            }
            b.recv(group.rank(other), tag, at(sums, &sibling));
        } else {
            b.recv(group.rank(other), tag, at(sums, &sibling));
            b.send(group.rank(other), tag, at(sums, &range));
        }
        range = range.start.min(sibling.start)..range.end.max(sibling.end);
    }
    if rounds == 0 {
        b.copy(at(buffer, &all), at(sums, &all));
    }
    if let (Some(partner), None) = (fold.partner(rank), root) {
        b.send(group.rank(partner), last_tag, at(sums, &all));
    }
}
