//! Trees per level, whose leaders keep a copy in memory of the host.
//!
//! A leader feeds the next node, the next socket and the next device of its own group. From
//! a device's memory all three messages leave through the device's one link, and each gets
//! a third of it. With a copy in the host's memory only the last does:
//!
//! ```text
//!           next node, next socket              next node, next socket
//!                 ^                                    ^
//! host      [copy] <------------- received there ------'
//!              |  one copy to the device
//! device    [data] --> next device of the group --> ...
//! ```
//!
//! The root copies to the host once. Reductions go the other way: leaders combine on the
//! device, so all operands cross its link, and what is gained is the host's way between
//! groups, where that is wider.
//!
//! # Invariants
//! 1. Messages of levels below `from` are of the call's own memory at both ends, those of
//!    the levels from there on of the host's at both ends.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, section 5.2.4 and figure 5.2. There leaders receive
//! explicitly into pinned memory in any case; here it is one candidate among others, and
//! where a network card is as near to the device as to the host, costs speak against it.

use super::hierarchical::Hierarchy;
use super::tree;
use crate::builder::Builder;
use crate::call::Operation;
use crate::plan::{Buffer, Region};

/// The plan of the call's operation, with copies in the host's memory for messages of
/// level `from` and those further out.
pub(super) fn build(b: &mut Builder, levels: &Hierarchy, from: usize) {
    let result = b.vector(Buffer::Recv);
    match b.call.operation {
        Operation::Bcast => bcast(b, levels, from, result),
        Operation::Reduce => {
            let at_root = b.rank == b.call.root;
            let sum = reduce(b, levels, from, at_root.then_some(result));
            if at_root {
                b.copy(sum, result);
            }
        }
        Operation::Allreduce => {
            let sum = reduce(b, levels, from, Some(result));
            if b.rank == levels.root() {
                b.copy(sum, result);
            }
            bcast(b, levels, from, result);
        }
        other => unreachable!("{} has no plan of leaders", other.name()),
    }
}

fn aside(b: &mut Builder, like: Region) -> Region {
    Region::run(b.scratch_aside(like.count), 0, like.count)
}

fn bcast(b: &mut Builder, levels: &Hierarchy, from: usize, data: Region) {
    b.phase();
    let tag = b.tag(0);
    let near = levels.family_within(b.rank, 0..from);
    let far = levels.family_within(b.rank, from..levels.levels());
    let mut copied = None;
    if far.parent.is_some() || !far.children.is_empty() {
        let copy = aside(b, data);
        match far.parent {
            Some(parent) => {
                b.recv(parent, tag, copy);
            }
            None => {
                copied = Some(b.next());
                b.copy(data, copy);
            }
        }
        for child in &far.children {
            b.send(*child, tag, copy);
        }
        if far.parent.is_some() {
            b.copy(copy, data);
        }
    } else if let Some(parent) = near.parent {
        b.recv(parent, tag, data);
    }
    for child in &near.children {
        // All of it is there at once: a segment that is not on the host yet goes before one
        // that would only run ahead within the group.
        if let Some(copied) = copied {
            b.after(copied);
        }
        b.send(*child, tag, data);
    }
}

/// Where the result lies at the root. Partial results go to `place`, where there is one.
fn reduce(b: &mut Builder, levels: &Hierarchy, from: usize, place: Option<Region>) -> Region {
    let near = levels.family_within(b.rank, 0..from);
    let far = levels.family_within(b.rank, from..levels.levels());
    let input = b.input();
    let mut sum = tree::reduce(b, &near, input, place);
    b.phase();
    let tag = b.tag(0);
    for child in far.children.iter().rev() {
        let copy = aside(b, input);
        b.recv(*child, tag, copy);
        let theirs = Region::run(b.scratch(input.count), 0, input.count);
        b.copy(copy, theirs);
        let into = place.unwrap_or(if sum == input { theirs } else { sum });
        b.combine(sum, theirs, into);
        sum = into;
    }
    if let Some(parent) = far.parent {
        let copy = aside(b, input);
        b.copy(sum, copy);
        b.send(parent, tag, copy);
    }
    sum
}
