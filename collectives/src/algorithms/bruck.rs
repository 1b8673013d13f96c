//! Bruck: rounds of doubling distance for any number of ranks.
//!
//! Allgather doubles what each has; alltoall sends, in round k, all that has still
//! to go a distance with bit k set. Both are rotated at the ends.
//!
//! # Sources
//! J. Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", IEEE TPDS 8(11), 1997.

use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Lengths, Region};

/// Every member's piece to all.
pub(super) fn allgather(b: &mut Builder, group: &Group, own: Region) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let all = b.scratch_like(size, Lengths::Rotated(index));
    let mut have = 1;
    let mut round = 0;
    while have < size {
        let count = have.min(size - have);
        let tag = b.tag(round);
        let from = group.rank((index + have) % size);
        let to = group.rank((index + size - have) % size);
        b.recv(from, tag, Region::run(all, have, count));
        let mine = match round {
            0 => own,
            _ => Region::run(all, 0, count),
        };
        b.send(to, tag, mine);
        if round == 0 {
            b.copy(own, Region::piece(all, 0));
        }
        have += count;
        round += 1;
    }
    if size == 1 {
        b.copy(own, Region::piece(all, 0));
    }
    b.copy(
        Region::run(all, 0, size),
        Region::run(Buffer::Recv, index, size),
    );
}

/// Equal pieces between all ranks.
pub(super) fn alltoall(b: &mut Builder) {
    b.phase();
    let (rank, size) = (b.rank, b.call.size);
    let all = b.scratch(size);
    let input = b.call.input(rank);
    b.copy(Region::run(input, rank, size), Region::run(all, 0, size));
    let rooms = [b.scratch(size.div_ceil(2)), b.scratch(size.div_ceil(2))];
    let mut distance = 1;
    let mut round = 0;
    while distance < size {
        let tag = b.tag(round);
        // Those with this bit set.
        let count = (0..size).filter(|j| j & distance != 0).count() as u32;
        let part = Region::runs(all, distance, count, distance, 2 * distance);
        let packed = Region::run(rooms[round as usize % 2], 0, count);
        b.copy(part, packed);
        b.recv((rank + size - distance) % size, tag, part);
        b.send((rank + distance) % size, tag, packed);
        distance *= 2;
        round += 1;
    }
    // Piece j came from rank - j.
    b.copy(
        Region::run(all, 0, size),
        Region::runs(Buffer::Recv, rank, size, 1, size - 1),
    );
}
