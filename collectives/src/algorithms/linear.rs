//! Linear (flat): the root exchanges with every rank itself.
//!
//! The only way to gather and scatter contributions of different lengths, which
//! nobody but the root and the owner knows. Reductions combine at the root, in the
//! balanced association. Neighborhoods have no other algorithm here.

use super::tree::Family;
use crate::balanced;
use crate::builder::Builder;
use crate::group::Group;
use crate::neighbors::occurrence;
use crate::plan::{Buffer, Region};

pub(super) fn family(size: u32, index: u32) -> Family {
    Family {
        parent: (index > 0).then_some(0),
        children: if index == 0 {
            (1..size).collect()
        } else {
            Vec::new()
        },
    }
}

/// Gathers into the root's `Recv`, from the side that is `others`.
pub(super) fn gather(b: &mut Builder, others: &Group) {
    b.phase();
    let (rank, root, tag) = (b.rank, b.call.root, b.tag(0));
    let own = Region::piece(Buffer::Send, 0);
    if rank != root {
        if others.index(rank).is_some() {
            b.send(root, tag, own);
        }
        return;
    }
    for index in 0..others.size() {
        let place = Region::piece(Buffer::Recv, index);
        match others.rank(index) {
            me if me == root => b.copy(b.call.own(root), place),
            other => {
                b.recv(other, tag, place);
            }
        }
    }
}

/// Scatters the root's `Send` to the side that is `others`.
pub(super) fn scatter(b: &mut Builder, others: &Group) {
    b.phase();
    let (rank, root, tag) = (b.rank, b.call.root, b.tag(0));
    let place = Region::piece(Buffer::Recv, 0);
    if rank != root {
        if others.index(rank).is_some() {
            b.recv(root, tag, place);
        }
        return;
    }
    for index in 0..others.size() {
        let piece = Region::piece(Buffer::Send, index);
        match others.rank(index) {
            me if me == root => {
                if !b.call.in_place {
                    b.copy(piece, place);
                }
            }
            other => {
                b.send(other, tag, piece);
            }
        }
    }
}

/// Everybody's vector to the root, which combines them.
pub(super) fn reduce(b: &mut Builder, group: &Group) {
    b.phase();
    let (rank, root, tag) = (b.rank, b.call.root, b.tag(0));
    let input = b.input();
    if rank != root {
        b.send(root, tag, input);
        return;
    }
    let (size, cut) = (group.size(), input.count);
    let room = b.scratch(size * cut);
    let place = |i: u32| Region::run(room, i * cut, cut);
    for index in 0..size {
        let from = group.rank(index);
        if from != root {
            b.recv(from, tag, place(index));
        }
    }
    let operand = |i: u32| {
        if group.rank(i) == root {
            input
        } else {
            place(i)
        }
    };
    let result = b.vector(Buffer::Recv);
    combine_all(b, size, operand, result);
}

/// Combines operands in the balanced association into `result`, in place where an
/// operand lies in scratch.
pub(super) fn combine_all(
    b: &mut Builder,
    size: u32,
    operand: impl Fn(u32) -> Region,
    result: Region,
) {
    let mut left_to_do = size - 1;
    if left_to_do == 0 {
        b.copy(operand(0), result);
        return;
    }
    balanced::reduce(size, operand, |left, right| {
        left_to_do -= 1;
        let into = if left_to_do == 0 {
            result
        } else if matches!(left.buffer, Buffer::Scratch(_)) {
            left
        } else {
            right
        };
        b.combine(left, right, into);
        into
    });
}

/// To all destinations, from all sources.
pub(super) fn neighbors(b: &mut Builder) {
    b.phase();
    let rank = b.rank;
    let (sources, destinations) = (b.call.sources(rank), b.call.destinations(rank));
    for (at, from) in sources.iter().enumerate() {
        if *from != rank {
            let tag = b.tag(occurrence(sources, at));
            b.recv(*from, tag, Region::piece(Buffer::Recv, at as u32));
        }
    }
    let mut own = sources.iter().enumerate().filter(|(_, s)| **s == rank);
    for (at, to) in destinations.iter().enumerate() {
        let piece = match b.call.operation {
            crate::Operation::NeighborAllgather => 0,
            _ => at as u32,
        };
        let data = Region::piece(Buffer::Send, piece);
        if *to != rank {
            let tag = b.tag(occurrence(destinations, at));
            b.send(*to, tag, data);
        } else if let Some((slot, _)) = own.next() {
            b.copy(data, Region::piece(Buffer::Recv, slot as u32));
        }
    }
}
