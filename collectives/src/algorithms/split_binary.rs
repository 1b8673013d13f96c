//! Split binary tree: each half of the message goes down one half of a binary tree,
//! then partners of the two halves exchange theirs.
//!
//! ```text
//!            0              members below 1 get piece 0, those below 2 piece 1
//!        1       2          partners: the same place in either subtree; the last
//!      3   4   5   6        of an uneven tree gets its other half from the root
//! ```
//!
//! # Sources
//! J. Pješivac-Grbović et al., "Performance analysis of MPI collective operations",
//! Cluster Computing 10(2), 2007.

use super::k_ary;
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Region};

/// In which half an index is (0 or 1), and its partner in the other.
fn place(index: u32) -> (u32, u32) {
    // In level l indices run from 2^l - 1; the first half of them is below 1.
    let level = (index + 1).ilog2();
    let first = (1 << level) - 1;
    let half = 1 << (level - 1);
    if index - first < half {
        (0, index + half)
    } else {
        (1, index - half)
    }
}

/// Bcast of `Recv`, which is cut into two pieces.
pub(super) fn bcast(b: &mut Builder, group: &Group, root: u32) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let real = |i: u32| group.rank((i + root) % size);
    let relative = (index + size - root) % size;
    let (down, across) = (b.tag(0), b.tag(1));
    let piece = |half: u32| Region::piece(Buffer::Recv, half);
    let family = k_ary::family(2, size, relative);
    if relative == 0 {
        for (half, child) in family.children.iter().enumerate() {
            b.send(real(*child), down, piece(half as u32));
        }
        // Those without a partner.
        for alone in 1..size {
            let (half, partner) = place(alone);
            if partner >= size {
                b.send(real(alone), across, piece(1 - half));
            }
        }
        return;
    }
    let (half, partner) = place(relative);
    if let Some(parent) = family.parent {
        b.recv(real(parent), down, piece(half));
    }
    for child in &family.children {
        b.send(real(*child), down, piece(half));
    }
    let other = if partner < size { partner } else { 0 };
    b.recv(real(other), across, piece(1 - half));
    if partner < size {
        b.send(real(partner), across, piece(half));
    }
}
