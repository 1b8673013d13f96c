//! From block lists back to strides: rules 5 and 6 of the canonical form.

use crate::form::Form;
use crate::list::{Length, List, Offset};
use crate::wide;

/// Collects blocks in pack order and joins those that touch.
#[derive(Default)]
pub(crate) struct Runs {
    offsets: Vec<i64>,
    lengths: Vec<u64>,
}

impl Runs {
    pub fn with_capacity(blocks: usize) -> Runs {
        Runs {
            offsets: Vec::with_capacity(blocks),
            lengths: Vec::with_capacity(blocks),
        }
    }

    #[inline]
    pub fn push(&mut self, offset: isize, length: usize) {
        if let (Some(&start), Some(last)) = (self.offsets.last(), self.lengths.last_mut())
            && start.wrapping_add_unsigned(*last) == offset as i64
        {
            *last += length as u64;
            return;
        }
        self.offsets.push(offset as i64);
        self.lengths.push(length as u64);
    }

    /// Adds all blocks of a form.
    pub fn extend(&mut self, form: &Form) {
        form.for_each_row(0, &mut |offset, length, stride, count| {
            self.row(offset, length, stride, count);
        });
    }

    /// Adds blocks at a constant distance.
    #[inline]
    fn row(&mut self, offset: isize, length: usize, stride: isize, count: usize) {
        if count < 4 || isize::try_from(length) == Ok(stride) {
            for i in 0..count as isize {
                self.push(offset.wrapping_add(stride.wrapping_mul(i)), length);
            }
            return;
        }
        // Only the first of them may touch what was before.
        self.push(offset, length);
        let rest = 1..count as i64;
        let (offset, stride) = (offset as i64, stride as i64);
        let offsets = rest.map(|i| offset.wrapping_add(stride.wrapping_mul(i)));
        self.offsets.extend(offsets);
        self.lengths.resize(self.offsets.len(), length as u64);
    }

    pub fn into_form(self) -> Form {
        let first = self.offsets.first().copied().unwrap_or(0);
        compress(first, &self.offsets, &self.lengths).unwrap_or_else(|| {
            Form::list(
                first as isize,
                List::new(first, &self.offsets, &self.lengths),
            )
        })
    }
}

/// The canonical form of blocks, of which `block` tells length and offset and which may
/// touch or be empty.
///
/// Most lists are narrow: [`joined`] brings them into narrow arrays, joined already.
/// `block` should own what it captures: what it reads by reference might be written by
/// the loop, as far as the compiler knows, and then nothing is vectorised.
pub(crate) fn listed<T>(blocks: &[T], block: impl Fn(&T) -> (usize, isize) + Copy) -> Form {
    let Some(at) = blocks.iter().position(|entry| block(entry).0 > 0) else {
        return Form::empty();
    };
    let blocks = &blocks[at..];
    let (_, first) = block(&blocks[0]);
    let Some((offsets, lengths)) = joined(blocks, block) else {
        return far(blocks, block);
    };
    compress(first as i64, &offsets, &lengths)
        .unwrap_or_else(|| Form::list(first, List::narrow(offsets, lengths)))
}

/// Offsets from the first block, and lengths, of the maximal runs of blocks; none if
/// they take wide numbers. The first block is not empty.
///
/// Each block is looked at once: a group is narrowed into starts and ends, behind the
/// run that the group before left open, and leaves as it is where nothing touches. What
/// touches is pushed together without a branch on whether it does.
fn joined<T>(
    blocks: &[T],
    block: impl Fn(&T) -> (usize, isize) + Copy,
) -> Option<(Vec<i32>, Vec<u32>)> {
    let (length, first) = block(&blocks[0]);
    let mut group = Group::new(i32::try_from(length).ok()?);
    let mut offsets = Vec::with_capacity(blocks.len());
    let mut lengths = Vec::with_capacity(blocks.len());
    for blocks in blocks[1..].chunks(GROUP) {
        let blocks = blocks.iter().map(move |entry| {
            let (length, offset) = block(entry);
            (length as i64, (offset as i64).wrapping_sub(first as i64))
        });
        let runs = wide::run(|| group.take(blocks))?;
        let (starts, ends) = (&group.starts[..runs], &group.ends[..runs]);
        offsets.extend_from_slice(starts);
        let length = |(start, end): (&i32, &i32)| end.wrapping_sub(*start) as u32;
        lengths.extend(starts.iter().zip(ends).map(length));
        group.leave_open(runs);
    }
    let (start, end) = group.open();
    offsets.push(start);
    lengths.push(end.wrapping_sub(start) as u32);
    Some((offsets, lengths))
}

/// Blocks looked at together.
const GROUP: usize = 256;

/// Where blocks start and end; the first is the run that is still open.
struct Group {
    starts: [i32; GROUP + 1],
    ends: [i32; GROUP + 1],
}

impl Group {
    fn new(end: i32) -> Group {
        let mut ends = [0; GROUP + 1];
        ends[0] = end;
        Group {
            starts: [0; GROUP + 1],
            ends,
        }
    }

    /// The run that is still open.
    fn open(&self) -> (i32, i32) {
        (self.starts[0], self.ends[0])
    }

    /// The last run stays open for what comes.
    fn leave_open(&mut self, last: usize) {
        (self.starts[0], self.ends[0]) = (self.starts[last], self.ends[last]);
    }

    /// Joins blocks (length, offset) to the open run and to each other; the number of
    /// runs that are over, behind which the open one lies. None if they are wide.
    #[inline(always)]
    fn take(&mut self, blocks: impl ExactSizeIterator<Item = (i64, i64)>) -> Option<usize> {
        let n = blocks.len();
        let (mut wide, mut empty) = (0, 0);
        let places = self.starts[1..=n].iter_mut().zip(&mut self.ends[1..=n]);
        for ((start, end), (length, offset)) in places.zip(blocks) {
            let last = offset.wrapping_add(length);
            (*start, *end) = (offset as i32, last as i32);
            wide |= (i64::from(*start) ^ offset) | (i64::from(*end) ^ last) | (length >> 31);
            empty |= i32::from(length == 0);
        }
        if wide != 0 {
            return None;
        }
        let n = if empty == 0 { n } else { self.drop_empty(n) };
        let touch = |met: i32, (start, end): (&i32, &i32)| met | i32::from(start == end);
        let met = self.starts[1..=n].iter().zip(&self.ends[..n]);
        if met.fold(0, touch) == 0 {
            return Some(n);
        }
        Some(self.join(n))
    }

    /// Of the blocks behind the open run, only those with bytes stay.
    fn drop_empty(&mut self, n: usize) -> usize {
        let mut kept = 0;
        for i in 1..=n {
            let (start, end) = (self.starts[i], self.ends[i]);
            (self.starts[kept + 1], self.ends[kept + 1]) = (start, end);
            kept += usize::from(start != end);
        }
        kept
    }

    #[inline(always)]
    fn join(&mut self, n: usize) -> usize {
        let (mut runs, mut before) = (0, self.ends[0]);
        for i in 1..=n {
            let (start, end) = (self.starts[i], self.ends[i]);
            // At most `i`, and what is written too early is written again.
            (self.starts[runs + 1], self.ends[runs]) = (start, before);
            runs += usize::from(start != before);
            before = end;
        }
        self.ends[runs] = before;
        runs
    }
}

/// [`listed`] for blocks that take wide numbers.
fn far<T>(blocks: &[T], block: impl Fn(&T) -> (usize, isize)) -> Form {
    let mut runs = Runs::with_capacity(blocks.len());
    for (length, offset) in blocks.iter().map(block) {
        if length > 0 {
            runs.push(offset, length);
        }
    }
    runs.into_form()
}

/// The canonical form of maximal runs at `first` and the given offsets, which
/// have one origin; none for a list that does not repeat itself.
fn compress<O: Offset, L: Length>(first: i64, offsets: &[O], lengths: &[L]) -> Option<Form> {
    match offsets.len() {
        0 => return Some(Form::empty()),
        1 => return Some(Form::block(first as isize, lengths[0].bytes())),
        _ => {}
    }
    let n = offsets.len();
    let repeats = |p: usize| {
        // A look at both ends spares most comparisons of all.
        let ends = lengths[p] == lengths[0] && lengths[n - 1] == lengths[n - 1 - p];
        ends.then_some(move || lengths[p..] == lengths[..n - p])
    };
    let (part, distance) = period(offsets, repeats)?;
    let (offsets, lengths) = (&offsets[..part], &lengths[..part]);
    let inner = compress(first, offsets, lengths).unwrap_or_else(|| {
        Form::list(
            first as isize,
            List::new(offsets[0].wide(), offsets, lengths),
        )
    });
    Some(inner.nest(n / part, distance))
}

/// One form at each of these displacements.
pub(crate) fn repeat(offsets: &[i64], inner: Form) -> Form {
    match offsets.len() {
        0 => return Form::empty(),
        1 => return inner.shifted(offsets[0] as isize),
        _ => {}
    }
    match period(offsets, |_| Some(|| true)) {
        Some((part, distance)) => {
            let count = offsets.len() / part;
            repeat(&offsets[..part], inner).nest(count, distance)
        }
        None => Form::each(
            offsets[0] as isize,
            crate::list::Offsets::new(offsets[0], offsets),
            inner,
        ),
    }
}

/// The shortest part of a list that, repeated at a constant distance, makes the
/// whole: its number of entries and the distance. `repeats(p)` is nothing if the
/// rest of the entries cannot agree, or else says whether it does.
///
/// Every divisor of the length is tried, shortest first; a wrong one fails
/// after about as many entries as repeat, so irregular lists cost a few
/// comparisons and regular ones one pass per nesting level.
fn period<O: Offset, R: FnOnce() -> bool>(
    offsets: &[O],
    repeats: impl Fn(usize) -> Option<R>,
) -> Option<(usize, isize)> {
    let n = offsets.len();
    let fits = |p: usize| {
        let rest = repeats(p)?;
        let distance = offsets[p].wide().wrapping_sub(offsets[0].wide());
        let same = same_distance(&offsets[..n - p], &offsets[p..], distance);
        (same && rest()).then_some((p, distance as isize))
    };
    let mut large = Vec::new();
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            if d < n
                && let found @ Some(_) = fits(d)
            {
                return found;
            }
            if d > 1 && d * d != n {
                large.push(n / d);
            }
        }
        d += 1;
    }
    large.into_iter().rev().find_map(fits)
}

/// Whether `b[i] - a[i]` is the same everywhere; in groups, so that it is
/// vectorised and yet stops early.
fn same_distance<O: Offset>(a: &[O], b: &[O], distance: i64) -> bool {
    const GROUP: usize = 16;
    let mut a = a.chunks(GROUP);
    let mut b = b.chunks(GROUP);
    while let (Some(x), Some(y)) = (a.next(), b.next()) {
        let differs = x.iter().zip(y).fold(0, |d, (x, y)| {
            d | (y.wide().wrapping_sub(x.wide()) ^ distance)
        });
        if differs != 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::Body;

    /// Blocks of a form, those of lists.
    fn runs(form: &Form) -> Vec<(isize, usize)> {
        let mut runs = Vec::new();
        form.for_each_row(0, &mut |offset, length, stride, count| {
            let at = |i: isize| (offset + stride * i, length);
            runs.extend((0..count as isize).map(at));
        });
        runs
    }

    /// Joins one block after the other.
    fn naive(blocks: &[(usize, isize)]) -> Vec<(isize, usize)> {
        let mut runs: Vec<(isize, usize)> = Vec::new();
        for &(length, offset) in blocks.iter().filter(|block| block.0 > 0) {
            match runs.last_mut() {
                Some((start, run)) if *start + *run as isize == offset => *run += length,
                _ => runs.push((offset, length)),
            }
        }
        runs
    }

    /// Lists around the size of a group, with blocks that touch and empty ones, in all
    /// shares.
    #[test]
    fn joins_as_one_after_the_other_would() {
        let mut state = 7u64;
        let mut next = move |n: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 33) % n
        };
        for round in 0..2000 {
            let n = [1, 2, 255, 256, 257, 258, 511, 513, 700][round % 9];
            let (touching, empty) = (next(101), [0, 0, 10, 60, 100][next(5) as usize]);
            let mut at = next(1000) as isize - 500;
            let blocks: Vec<(usize, isize)> = (0..n)
                .map(|_| {
                    if next(100) >= touching {
                        at += next(40) as isize - 13;
                    }
                    let length = match next(100) < empty {
                        true => 0,
                        false => 1 + next(9) as usize,
                    };
                    let block = (length, at);
                    at += length as isize;
                    block
                })
                .collect();
            let expected = naive(&blocks);
            assert_eq!(runs(&listed(&blocks, |&block| block)), expected, "{round}");
            // The way of wide lists gives the same form.
            let narrow = listed(&blocks, |&block| block);
            if !expected.is_empty() {
                assert_eq!(narrow, far(&blocks, |&block| block), "{round}");
            }
        }
    }

    #[test]
    fn wide_lists_are_listed_too() {
        let far_apart = [(4, 0), (4, 4), (8, 1 << 40), (1 << 33, 1 << 41)];
        let form = listed(&far_apart, |&block| block);
        assert!(matches!(form.body, Body::List(_)));
        assert_eq!(runs(&form), [(0, 8), (1 << 40, 8), (1 << 41, 1 << 33)]);
    }
}
