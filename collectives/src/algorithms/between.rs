//! Between two groups: the collectives of intercommunicators.
//!
//! Trees run within a side, which has ranks of its own for that; one leader of each
//! side (its first rank, or the root) crosses. Where every message has to cross
//! anyhow (gather, scatter, alltoall) it does so directly.
//!
//! # Sources
//! MPI 5.0, section 6.2.3.

use super::tree::{self, Tree};
use super::{binomial, linear};
use crate::builder::Builder;
use crate::call::Operation;
use crate::group::Group;
use crate::plan::{Buffer, Region};

/// The plan of the call's operation, if it is one between groups.
pub(super) fn build(b: &mut Builder) {
    let (rank, root) = (b.rank, b.call.root);
    let group = |(first, size)| Group::Range { first, size };
    let mine = group(b.call.side(rank));
    let others = group(b.call.others(rank));
    // The side that is not the root's.
    let far = group(b.call.others(root));
    let leader = far.rank(0);
    let family = Tree::Binomial.of(&mine, 0, rank);
    let (first, other_first) = (mine.rank(0), others.rank(0));
    match b.call.operation {
        Operation::Barrier => {
            b.phase();
            let (up, across, down) = (b.tag(0), b.tag(1), b.tag(2));
            for child in &family.children {
                b.wait(*child, up);
            }
            match family.parent {
                Some(parent) => {
                    b.raise(parent, up);
                    b.wait(parent, down);
                }
                None => {
                    b.raise(other_first, across);
                    b.wait(other_first, across);
                }
            }
            for child in &family.children {
                b.raise(*child, down);
            }
        }
        Operation::Bcast => {
            let data = b.vector(Buffer::Recv);
            cross(b, root, leader, data, data);
            let family = Tree::Binomial.of(&far, 0, rank);
            tree::bcast(b, &family, data);
        }
        Operation::Gather => linear::gather(b, &far),
        Operation::Scatter => linear::scatter(b, &far),
        // Nobody knows how long the contributions of its own side are.
        Operation::Allgather if b.call.varying => {
            b.phase();
            let tag = b.tag(0);
            let (own, count) = (rank - first, others.size());
            for k in 0..count {
                let from = (own % count + count - k) % count;
                b.recv(others.rank(from), tag, Region::piece(Buffer::Recv, from));
            }
            for k in 0..count {
                let to = others.rank((own + k) % count);
                b.send(to, tag, Region::piece(Buffer::Send, 0));
            }
        }
        Operation::ReduceScatter => {
            let pieces = b.call.vector_pieces();
            let vector = |buffer| Region::run(buffer, 0, pieces);
            let sum = binomial::reduce(b, &mine, 0, vector(Buffer::Send), None);
            let theirs = match rank == first {
                true => b.scratch(pieces),
                false => Buffer::Recv,
            };
            exchange(b, first, other_first, sum, vector(theirs));
            b.phase();
            let tag = b.tag(0);
            let place = Region::piece(Buffer::Recv, 0);
            if rank != first {
                b.recv(first, tag, place);
                return;
            }
            for at in 1..mine.size() {
                b.send(mine.rank(at), tag, Region::piece(theirs, at));
            }
            b.copy(Region::piece(theirs, 0), place);
        }
        Operation::Alltoall => {
            b.phase();
            let tag = b.tag(0);
            let (own, count) = (rank - first, others.size());
            for k in 0..count {
                let from = (own % count + count - k) % count;
                b.recv(others.rank(from), tag, Region::piece(Buffer::Recv, from));
            }
            for k in 0..count {
                let to = (own + k) % count;
                b.send(others.rank(to), tag, Region::piece(Buffer::Send, to));
            }
        }
        Operation::Allgather => {
            let all = if rank == first {
                b.scratch(mine.size())
            } else {
                Buffer::Recv
            };
            let own = Region::piece(Buffer::Send, 0);
            binomial::gather(b, &mine, 0, own, all);
            let (give, take) = (
                Region::run(all, 0, mine.size()),
                Region::run(Buffer::Recv, 0, others.size()),
            );
            exchange(b, first, other_first, give, take);
            tree::bcast(b, &family, take);
        }
        Operation::Reduce => {
            let input = b.vector(Buffer::Send);
            let sum = binomial::reduce(b, &far, 0, input, None);
            let result = b.vector(Buffer::Recv);
            cross(b, leader, root, sum, result);
        }
        Operation::Allreduce => {
            let input = b.vector(Buffer::Send);
            let sum = binomial::reduce(b, &mine, 0, input, None);
            let result = b.vector(Buffer::Recv);
            exchange(b, first, other_first, sum, result);
            tree::bcast(b, &family, result);
        }
        other => unreachable!("{} has no plan between groups", other.name()),
    }
}

/// One message from `from` to `to`.
fn cross(b: &mut Builder, from: u32, to: u32, give: Region, take: Region) {
    b.phase();
    let tag = b.tag(0);
    if b.rank == from {
        b.send(to, tag, give);
    } else if b.rank == to {
        b.recv(from, tag, take);
    }
}

/// The leaders exchange.
fn exchange(b: &mut Builder, first: u32, other: u32, give: Region, take: Region) {
    b.phase();
    let tag = b.tag(0);
    if b.rank == first {
        b.recv(other, tag, take);
        b.send(other, tag, give);
    }
}
