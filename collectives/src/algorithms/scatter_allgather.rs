//! Scatter and allgather: a broadcast that scatters down a binomial tree, then
//! spreads the pieces around a ring.
//!
//! What the scatter left behind on inner ranks is not sent to them again.
//!
//! # Sources
//! M. Barnett et al., "Interprocessor collective communication library", SHPCC 1994
//! (van de Geijn's broadcast).

use super::{binomial, ring};
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Region};

/// Bcast of `Recv`, which is cut into a piece per member.
pub(super) fn bcast(b: &mut Builder, group: &Group, root: u32) {
    b.phase();
    let size = group.size();
    if let Some(index) = group.index(b.rank) {
        let real = |i: u32| group.rank((i + root) % size);
        let relative = (index + size - root) % size;
        let family = binomial::family(size, relative);
        let tag = b.tag(0);
        let subtree = |i| Region::run(Buffer::Recv, i, binomial::subtree(size, i));
        if let Some(parent) = family.parent {
            b.recv(real(parent), tag, subtree(relative));
        }
        for child in family.children {
            b.send(real(child), tag, subtree(child));
        }
    }
    ring::spread(b, group, root, None, |i| binomial::subtree(size, i), |i| i);
}
