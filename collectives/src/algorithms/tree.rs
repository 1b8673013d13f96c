//! Trees, and the collectives over any of them.
//!
//! A family is what a rank knows of a tree: its parent and its children, in the
//! order in which they are sent to. Reductions over trees combine as the tree says,
//! so they are for operators that allow any association; `binomial.rs` has the one
//! that keeps the balanced one.

use super::{binomial, chain, k_ary, linear, postal};
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::Region;

/// A shape of tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// All are the root's children.
    Linear,
    /// Each has one child.
    Chain,
    /// Each has up to k children.
    KAry(u32),
    /// Child i of the root has a subtree of half of what remains.
    Binomial,
    /// A message is under way for as long as its sender needs for so many.
    Postal(u32),
}

/// Parent and children of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// None at the root, and for who is no member.
    pub parent: Option<u32>,
    /// The first is sent to first.
    pub children: Vec<u32>,
}

impl Tree {
    /// The family of index `index` in a tree of `size` with root 0.
    pub fn family(self, size: u32, index: u32) -> Family {
        match self {
            Self::Linear => linear::family(size, index),
            Self::Chain => chain::family(size, index),
            Self::KAry(k) => k_ary::family(k, size, index),
            Self::Binomial => binomial::family(size, index),
            Self::Postal(reach) => postal::family(reach, size, index),
        }
    }

    /// The family of a rank in the tree over a group whose root has index `root`.
    pub fn of(self, group: &Group, root: u32, rank: u32) -> Family {
        let size = group.size();
        let Some(index) = group.index(rank) else {
            return Family::default();
        };
        let real = |i: u32| group.rank((i + root) % size);
        let family = self.family(size, (index + size - root) % size);
        Family {
            parent: family.parent.map(real),
            children: family.children.into_iter().map(real).collect(),
        }
    }
}

/// Sends a region down the tree.
pub(super) fn bcast(b: &mut Builder, family: &Family, data: Region) {
    b.phase();
    let tag = b.tag(0);
    if let Some(parent) = family.parent {
        b.recv(parent, tag, data);
    }
    for child in &family.children {
        b.send(*child, tag, data);
    }
}

/// Combines inputs up the tree, in the tree's order. Returns where the result lies
/// at the root. Partial results go to `place`, where there is one.
pub(super) fn reduce(
    b: &mut Builder,
    family: &Family,
    input: Region,
    place: Option<Region>,
) -> Region {
    b.phase();
    let tag = b.tag(0);
    let mut sum = input;
    for child in family.children.iter().rev() {
        let theirs = Region::run(b.scratch(input.count), 0, input.count);
        b.recv(*child, tag, theirs);
        let into = place.unwrap_or(if sum == input { theirs } else { sum });
        b.combine(sum, theirs, into);
        sum = into;
    }
    if let Some(parent) = family.parent {
        b.send(parent, tag, sum);
    }
    sum
}

/// Flags up the tree and down again; between, what the roots do among themselves.
pub(super) fn barrier(b: &mut Builder, family: &Family, across: impl FnOnce(&mut Builder)) {
    b.phase();
    let (up, down) = (b.tag(0), b.tag(1));
    for child in family.children.iter().rev() {
        b.wait(*child, up);
    }
    if let Some(parent) = family.parent {
        b.raise(parent, up);
    }
    across(b);
    if let Some(parent) = family.parent {
        b.wait(parent, down);
    }
    for child in &family.children {
        b.raise(*child, down);
    }
}
