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

/// The canonical form of blocks (length, offset), which may touch or be empty.
///
/// Most lists have neither and are narrow: they are copied into narrow arrays, which
/// are then looked through.
pub(crate) fn listed(blocks: impl ExactSizeIterator<Item = (usize, isize)> + Clone) -> Form {
    let mut blocks = blocks;
    let first = loop {
        match blocks.clone().next() {
            None => return Form::empty(),
            Some((0, _)) => _ = blocks.next(),
            Some((_, first)) => break first,
        }
    };
    let n = blocks.len();
    let mut offsets = vec![0i32; n];
    let mut lengths = vec![0u32; n];
    let wide = wide::run(|| {
        let mut wide = 0;
        let places = offsets.iter_mut().zip(lengths.iter_mut());
        for ((at, run), (length, offset)) in places.zip(blocks.clone()) {
            let offset = (offset as i64).wrapping_sub(first as i64);
            (*at, *run) = (offset as i32, length as u32);
            wide |= (*at as i64 ^ offset) | (length >> 32) as i64;
        }
        wide
    });
    if wide != 0 || !(apart(&offsets, &lengths) || join(&mut offsets, &mut lengths)) {
        return far(blocks);
    }
    compress(first as i64, &offsets, &lengths)
        .unwrap_or_else(|| Form::list(first, List::narrow(offsets, lengths)))
}

/// Whether no block is empty or touches the next; in groups, to stop early.
fn apart(offsets: &[i32], lengths: &[u32]) -> bool {
    const GROUP: usize = 1024;
    let groups = offsets.chunks(GROUP).zip(lengths.chunks(GROUP));
    let mut next = offsets.chunks(GROUP).skip(1).map(|group| group[0]);
    for (offsets, lengths) in groups {
        let met = wide::run(|| {
            let mut met = 0;
            for &length in lengths {
                met |= u32::from(length == 0);
            }
            for ((&a, &b), &length) in offsets.iter().zip(&offsets[1..]).zip(lengths) {
                met |= u32::from(a.wrapping_add_unsigned(length) == b);
            }
            met
        });
        let end = |at: &i32| at.wrapping_add_unsigned(lengths[lengths.len() - 1]);
        if met != 0 || (next.next()).is_some_and(|b| offsets.last().map(end) == Some(b)) {
            return false;
        }
    }
    true
}

/// Joins blocks that touch and drops empty ones, in place; false if a length no longer
/// fits. Without a branch on whether blocks touch. The first block is not empty.
fn join(offsets: &mut Vec<i32>, lengths: &mut Vec<u32>) -> bool {
    let (mut at, mut run, mut last, mut fits) = (0i64, 0u64, 0, true);
    for i in 0..offsets.len() {
        let (offset, length) = (i64::from(offsets[i]), u64::from(lengths[i]));
        let joins = (at.wrapping_add_unsigned(run) == offset) | (length == 0);
        // Masks, because a condition comes back as a branch.
        let keep = -i64::from(joins);
        at = (at & keep) | (offset & !keep);
        run = (run & keep as u64) + length;
        last += usize::from(!joins);
        offsets[last] = at as i32;
        lengths[last] = run as u32;
        fits &= run as u32 as u64 == run;
    }
    offsets.truncate(last + 1);
    lengths.truncate(last + 1);
    fits
}

/// [`listed`] for blocks that take wide numbers.
fn far(blocks: impl ExactSizeIterator<Item = (usize, isize)>) -> Form {
    let mut runs = Runs::with_capacity(blocks.len());
    for (length, offset) in blocks {
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
