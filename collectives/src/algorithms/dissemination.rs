//! Dissemination barrier: in round k, rank r tells rank r + 2^k, modulo the ranks.
//!
//! # Sources
//! D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier Synchronization",
//! Int. J. Parallel Programming 17(1), 1988.

use crate::builder::Builder;
use crate::group::Group;

pub(super) fn barrier(b: &mut Builder, group: &Group) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let mut distance = 1;
    let mut round = 0;
    while distance < size {
        let tag = b.tag(round);
        b.raise(group.rank((index + distance) % size), tag);
        b.wait(group.rank((index + size - distance) % size), tag);
        distance *= 2;
        round += 1;
    }
}
