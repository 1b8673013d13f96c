//! Binomial tree: whoever has the data passes it on, so holders double each round.
//!
//! Gather and scatter move whole subtrees, whose ranks are neighbors. The reduction
//! runs in the folded group, between indices that differ in one bit, and so keeps
//! the balanced association for any root.
//!
//! # Sources
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", IJHPCA 19(1), 2005. The order of roots by exclusive or
//! instead of rotation is ours, for the association.

use super::tree::Family;
use crate::balanced::Fold;
use crate::builder::Builder;
use crate::group::Group;
use crate::plan::{Buffer, Region};

pub(super) fn family(size: u32, index: u32) -> Family {
    let below = if index == 0 {
        size.next_power_of_two()
    } else {
        1 << index.trailing_zeros()
    };
    let mut children = Vec::new();
    let mut distance = below / 2;
    while distance > 0 {
        if index + distance < size {
            children.push(index + distance);
        }
        distance /= 2;
    }
    Family {
        parent: (index > 0).then(|| index & (index - 1)),
        children,
    }
}

/// Members of the subtree of `index`, itself included; they follow it.
pub(super) fn subtree(size: u32, index: u32) -> u32 {
    if index == 0 {
        size
    } else {
        (1 << index.trailing_zeros()).min(size - index)
    }
}

/// The balanced reduction to index `root`. Returns where the result lies there.
/// Partial results go to `place`, where there is one.
pub(super) fn reduce(
    b: &mut Builder,
    group: &Group,
    root: u32,
    input: Region,
    place: Option<Region>,
) -> Region {
    b.phase();
    let Some(index) = group.index(b.rank) else {
        return input;
    };
    let fold = Fold::of(group.size());
    let root_leaf = fold.leaf(root);
    // Of a pair, the root holds the value, else the first.
    let holder = |leaf: u32| {
        if leaf == root_leaf {
            root
        } else {
            fold.first(leaf)
        }
    };
    let mut sum = input;
    let take = |b: &mut Builder, from: u32, tag: u32, mine_is_left: bool, sum: Region| {
        let theirs = Region::run(b.scratch(input.count), 0, input.count);
        b.recv(group.rank(from), tag, theirs);
        let into = place.unwrap_or(if sum == input { theirs } else { sum });
        let (left, right) = if mine_is_left {
            (sum, theirs)
        } else {
            (theirs, sum)
        };
        b.combine(left, right, into);
        into
    };
    let leaf = fold.leaf(index);
    if let Some(partner) = fold.partner(index) {
        let tag = b.tag(0);
        if index != holder(leaf) {
            b.send(group.rank(partner), tag, input);
            return input;
        }
        sum = take(b, partner, tag, index < partner, sum);
    }
    let mut mask = 1;
    let mut round = 1;
    while mask < fold.leaves {
        let other = holder(leaf ^ mask);
        let tag = b.tag(round);
        if (leaf ^ root_leaf) & mask != 0 {
            b.send(group.rank(other), tag, sum);
            return sum;
        }
        sum = take(b, other, tag, leaf & mask == 0, sum);
        mask *= 2;
        round += 1;
    }
    sum
}

/// Equal contributions to the root's `place`; each member's lies in `own`. Members'
/// contributions are wherever `place` begins, in the order of the group.
pub(super) fn gather(b: &mut Builder, group: &Group, root: u32, own: Region, place: Buffer) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let tag = b.tag(0);
    let real = |i: u32| group.rank((i + root) % size);
    let relative = (index + size - root) % size;
    let family = family(size, relative);
    if family.children.is_empty() && relative > 0 {
        if let Some(parent) = family.parent {
            b.send(real(parent), tag, own);
        }
        return;
    }
    let all = subtree(size, relative);
    let (buffer, first) = if relative == 0 {
        (place, root)
    } else {
        (b.scratch(all), 0)
    };
    b.copy(own, Region::piece(buffer, first));
    for child in family.children.iter().rev() {
        let theirs = Region::run(buffer, first + child - relative, subtree(size, *child));
        b.recv(real(*child), tag, theirs);
    }
    if let Some(parent) = family.parent {
        b.send(real(parent), tag, Region::run(buffer, first, all));
    }
}

/// Equal pieces of the root's `Send` to all.
pub(super) fn scatter(b: &mut Builder, group: &Group, root: u32) {
    b.phase();
    let size = group.size();
    let Some(index) = group.index(b.rank) else {
        return;
    };
    let tag = b.tag(0);
    let real = |i: u32| group.rank((i + root) % size);
    let relative = (index + size - root) % size;
    let family = family(size, relative);
    let place = Region::piece(Buffer::Recv, 0);
    if let (Some(parent), true) = (family.parent, family.children.is_empty()) {
        b.recv(real(parent), tag, place);
        return;
    }
    let (buffer, first) = match family.parent {
        None => (Buffer::Send, root),
        Some(parent) => {
            let all = subtree(size, relative);
            let buffer = b.scratch(all);
            b.recv(real(parent), tag, Region::run(buffer, 0, all));
            (buffer, 0)
        }
    };
    for child in &family.children {
        let theirs = Region::run(buffer, first + child - relative, subtree(size, *child));
        b.send(real(*child), tag, theirs);
    }
    if !(relative == 0 && b.call.in_place) {
        b.copy(Region::piece(buffer, first), place);
    }
}
