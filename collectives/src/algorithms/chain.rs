//! Chain: each passes on to the next. With segments, a pipeline.
//!
//! As scan it combines from left to right: in rank order, with other brackets than
//! the balanced ones. As reduction to the first rank it combines from the right.

use super::tree::Family;
use crate::builder::Builder;
use crate::call::Operation;
use crate::plan::{Buffer, Region};

pub(super) fn family(size: u32, index: u32) -> Family {
    Family {
        parent: index.checked_sub(1),
        children: if index + 1 < size {
            vec![index + 1]
        } else {
            Vec::new()
        },
    }
}

/// Scan and exscan.
pub(super) fn scan(b: &mut Builder) {
    b.phase();
    let (rank, size, tag) = (b.rank, b.call.size, b.tag(0));
    let exclusive = b.call.operation == Operation::Exscan;
    let input = b.input();
    let result = b.vector(Buffer::Recv);
    if !exclusive {
        if rank == 0 {
            b.copy(input, result);
        } else {
            let before = Region::run(b.scratch(input.count), 0, input.count);
            b.recv(rank - 1, tag, before);
            b.combine(before, input, result);
        }
        if rank + 1 < size {
            b.send(rank + 1, tag, result);
        }
        return;
    }
    if rank == 0 {
        if size > 1 {
            b.send(1, tag, input);
        }
        return;
    }
    // In place the input lies where the result will.
    let last = rank + 1 == size;
    let with_scratch = !last && b.call.in_place;
    let before = if with_scratch {
        Region::run(b.scratch(input.count), 0, input.count)
    } else {
        result
    };
    b.recv(rank - 1, tag, before);
    if !last {
        let total = Region::run(b.scratch(input.count), 0, input.count);
        b.combine(before, input, total);
        b.send(rank + 1, tag, total);
        b.copy(before, result);
    }
}
