//! Recursive doubling: in round k, indices that differ in bit k exchange all they
//! have.
//!
//! Reductions fold the group to a power of two first and keep the balanced
//! association on every rank. Scans need no fold: who has no partner skips a round,
//! and sums that nobody would use are not sent.
//!
//! # Sources
//! R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005. For scans: the same
//! exchange, with what comes from the left.

use crate::balanced::Fold;
use crate::builder::Builder;
use crate::call::Operation;
use crate::group::Group;
use crate::plan::{Buffer, Region};

/// Combines `input` of all members into `result` on each. If `input` was combined
/// before, it may be `result` itself.
pub(super) fn allreduce(b: &mut Builder, group: &Group, input: Region, result: Region) {
    b.phase();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let fold = Fold::of(group.size());
    let rounds = fold.leaves.ilog2();
    let (first_tag, last_tag) = (b.tag(0), b.tag(rounds + 1));
    let mut sum = input;
    if let Some(partner) = fold.partner(index) {
        let other = group.rank(partner);
        if index > partner {
            b.send(other, first_tag, input);
            b.recv(other, last_tag, result);
            return;
        }
        let theirs = Region::run(b.scratch(input.count), 0, input.count);
        b.recv(other, first_tag, theirs);
        b.combine(sum, theirs, result);
        sum = result;
    }
    let leaf = fold.leaf(index);
    for round in 0..rounds {
        let mask = 1 << round;
        let other = group.rank(fold.first(leaf ^ mask));
        let tag = b.tag(round + 1);
        let theirs = Region::run(b.scratch(input.count), 0, input.count);
        b.recv(other, tag, theirs);
        b.send(other, tag, sum);
        let (left, right) = if leaf & mask == 0 {
            (sum, theirs)
        } else {
            (theirs, sum)
        };
        b.combine(left, right, result);
        sum = result;
    }
    if let Some(partner) = fold.partner(index) {
        b.send(group.rank(partner), last_tag, sum);
    } else {
        b.copy(sum, result);
    }
}

/// Of 2^k members, each with one piece at its index of `Recv`. The own one leaves from where
/// it is, so that nobody waits for its copy: what peers have read, and is not written again,
/// stays in their caches.
pub(super) fn allgather(b: &mut Builder, group: &Group, own: Region) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    for round in 0..size.ilog2() {
        let mask = 1 << round;
        let (other, tag) = (group.rank(index ^ mask), b.tag(round));
        let first = index & !(mask - 1);
        let mine = match round {
            0 => own,
            _ => Region::run(Buffer::Recv, first, mask),
        };
        b.recv(other, tag, Region::run(Buffer::Recv, first ^ mask, mask));
        b.send(other, tag, mine);
        if round == 0 {
            b.copy(own, Region::piece(Buffer::Recv, index));
        }
    }
    if size == 1 {
        b.copy(own, Region::piece(Buffer::Recv, index));
    }
}

/// Folded to a power of two.
pub(super) fn barrier(b: &mut Builder, group: &Group) {
    b.phase();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let fold = Fold::of(group.size());
    let rounds = fold.leaves.ilog2();
    let (first, last) = (b.tag(0), b.tag(rounds + 1));
    if let Some(partner) = fold.partner(index) {
        let other = group.rank(partner);
        if index > partner {
            b.raise(other, first);
            b.wait(other, last);
            return;
        }
        b.wait(other, first);
    }
    let leaf = fold.leaf(index);
    for round in 0..rounds {
        let (other, tag) = (
            group.rank(fold.first(leaf ^ (1 << round))),
            b.tag(round + 1),
        );
        b.raise(other, tag);
        b.wait(other, tag);
    }
    if let Some(partner) = fold.partner(index) {
        b.raise(group.rank(partner), last);
    }
}

/// Will what `index` gets from the right in round `round` still be of use? It is if
/// itself, or somebody further left to whom it comes, has a partner to the right in
/// a later round.
fn of_use(size: u32, index: u32, round: u32) -> bool {
    let low = (2 << round) - 1;
    (round + 1..u32::BITS - size.leading_zeros()).any(|later| {
        let mask = 1 << later;
        index & mask == 0 && ((index & !(mask - 1)) | (index & low)) + mask < size
    })
}

/// Scan and exscan of all ranks.
pub(super) fn scan(b: &mut Builder) {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let input = b.input();
    let result = b.vector(Buffer::Recv);
    let cut = input.count;
    let exclusive = b.call.operation == Operation::Exscan;
    // In place, the result would overwrite what is still to be sent.
    let mut block = input;
    let sent = (0..u32::BITS - size.leading_zeros()).any(|round| {
        let partner = rank ^ (1 << round);
        let gives = partner > rank || of_use(size, partner, round);
        partner < size && (gives || of_use(size, rank, round))
    });
    if input == result && rank > 0 && sent {
        block = Region::run(b.scratch(cut), 0, cut);
        b.copy(input, block);
    }
    let mut total = if exclusive { None } else { Some(block) };
    let mut mask = 1;
    let mut round = 0;
    let mut room = None;
    while mask < size {
        let partner = rank ^ mask;
        let tag = b.tag(round);
        if partner < size {
            let left = partner < rank;
            let keeps = of_use(size, rank, round);
            let takes = left || keeps;
            let gives = !left || of_use(size, partner, round);
            let theirs = Region::run(b.scratch(cut), 0, cut);
            if takes {
                b.recv(partner, tag, theirs);
            }
            if gives {
                b.send(partner, tag, block);
            }
            if left {
                match total {
                    None => b.copy(theirs, result),
                    Some(sum) => {
                        b.combine(theirs, sum, result);
                    }
                }
                total = Some(result);
            }
            if keeps {
                let room = *room.get_or_insert_with(|| Region::run(b.scratch(cut), 0, cut));
                let (l, r) = if left {
                    (theirs, block)
                } else {
                    (block, theirs)
                };
                b.combine(l, r, room);
                block = room;
            }
        }
        mask *= 2;
        round += 1;
    }
    if let Some(sum) = total {
        b.copy(sum, result);
    }
}
