//! Maximal runs of a layout, one after the other.
//!
//! The iterator finds a row of equidistant blocks by index (one division per
//! level, one search per sequence) and then steps along it; touching blocks
//! join on the way out.

use crate::Layout;
use crate::form::{Body, Form, Level};

/// Iterator over the maximal runs (offset, length) of a layout.
#[derive(Clone)]
pub struct Blocks<'a> {
    form: &'a Form,
    count: usize,
    extent: isize,
    /// Index of the next block to find, of all instances.
    next: usize,
    row: Row,
    held: Option<(isize, usize)>,
}

/// Blocks left of a row found before.
#[derive(Clone, Copy)]
struct Row {
    offset: isize,
    length: usize,
    stride: isize,
    left: usize,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(layout: &'a Layout, count: usize) -> Blocks<'a> {
        Blocks {
            form: layout.form(),
            count,
            extent: layout.extent(),
            next: 0,
            row: Row {
                offset: 0,
                length: 0,
                stride: 0,
                left: 0,
            },
            held: None,
        }
    }

    /// The next block, touching ones apart.
    #[inline]
    fn step(&mut self) -> Option<(isize, usize)> {
        if self.row.left == 0 {
            let runs = self.form.runs;
            if runs == 0 || self.next / runs >= self.count {
                return None;
            }
            let instance = self.next / runs;
            let origin = (instance as isize).wrapping_mul(self.extent);
            self.row = row(self.form, &self.form.levels, origin, self.next % runs);
            self.next += self.row.left;
        }
        let block = (self.row.offset, self.row.length);
        self.row.left -= 1;
        self.row.offset = self.row.offset.wrapping_add(self.row.stride);
        Some(block)
    }
}

impl Iterator for Blocks<'_> {
    type Item = (isize, usize);

    fn next(&mut self) -> Option<(isize, usize)> {
        let (start, mut length) = match self.held.take() {
            Some(held) => held,
            None => self.step()?,
        };
        while let Some((next, more)) = self.step() {
            if start.wrapping_add(length as isize) == next {
                length += more;
            } else {
                self.held = Some((next, more));
                break;
            }
        }
        Some((start, length))
    }
}

/// The row of blocks that starts with number `index` of a form.
fn row(form: &Form, levels: &[Level], origin: isize, mut index: usize) -> Row {
    let mut at = origin.wrapping_add(form.base);
    let body_runs = form.body_runs();
    if let (Body::Block, Some((inner, outer))) = (&form.body, levels.split_last()) {
        let first = index % inner.count;
        index /= inner.count;
        for level in outer.iter().rev() {
            let i = index % level.count;
            index /= level.count;
            at = at.wrapping_add((i as isize).wrapping_mul(level.stride));
        }
        return Row {
            offset: at.wrapping_add((first as isize).wrapping_mul(inner.stride)),
            length: form.body_bytes,
            stride: inner.stride,
            left: inner.count - first,
        };
    }
    let within = index % body_runs;
    index /= body_runs;
    for level in levels.iter().rev() {
        let i = index % level.count;
        index /= level.count;
        at = at.wrapping_add((i as isize).wrapping_mul(level.stride));
    }
    match &form.body {
        Body::Block => Row {
            offset: at,
            length: form.body_bytes,
            stride: 0,
            left: 1,
        },
        Body::List(list) => {
            let (offset, length) = list.block(within);
            Row {
                offset: at.wrapping_add(offset),
                length,
                stride: 0,
                left: 1,
            }
        }
        Body::Each(offsets, inner) => {
            let (i, within) = (within / inner.runs, within % inner.runs);
            row(inner, &inner.levels, at.wrapping_add(offsets.at(i)), within)
        }
        Body::Sequence(sequence) => {
            let i = sequence
                .runs_before
                .partition_point(|&before| before <= within)
                - 1;
            let part = &sequence.parts[i];
            row(part, &part.levels, at, within - sequence.runs_before[i])
        }
    }
}
