//! From block lists back to strides: rules 5 and 6 of the canonical form.

use crate::form::Form;
use crate::list::List;

/// Collects blocks in pack order and joins those that touch.
#[derive(Default)]
pub(crate) struct Runs {
    offsets: Vec<i64>,
    lengths: Vec<usize>,
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
            && start.wrapping_add(*last as i64) == offset as i64
        {
            *last += length;
            return;
        }
        self.offsets.push(offset as i64);
        self.lengths.push(length);
    }

    /// Adds all blocks of a form.
    pub fn extend(&mut self, form: &Form) {
        form.for_each_run(0, &mut |offset, length| self.push(offset, length));
    }

    pub fn into_form(self) -> Form {
        compress(&self.offsets, &self.lengths)
    }
}

/// The canonical form of maximal runs.
fn compress(offsets: &[i64], lengths: &[usize]) -> Form {
    match offsets.len() {
        0 => return Form::empty(),
        1 => return Form::block(offsets[0] as isize, lengths[0]),
        _ => {}
    }
    match period(offsets, |p| lengths[p..] == lengths[..lengths.len() - p]) {
        Some((part, distance)) => {
            let count = offsets.len() / part;
            compress(&offsets[..part], &lengths[..part]).nest(count, distance)
        }
        None => Form::list(offsets[0] as isize, List::new(offsets, lengths)),
    }
}

/// One form at each of these displacements.
pub(crate) fn repeat(offsets: &[i64], inner: Form) -> Form {
    match offsets.len() {
        0 => return Form::empty(),
        1 => return inner.shifted(offsets[0] as isize),
        _ => {}
    }
    match period(offsets, |_| true) {
        Some((part, distance)) => {
            let count = offsets.len() / part;
            repeat(&offsets[..part], inner).nest(count, distance)
        }
        None => Form::each(
            offsets[0] as isize,
            crate::list::Offsets::new(offsets),
            inner,
        ),
    }
}

/// The shortest part of a list that, repeated at a constant distance, makes the
/// whole: its number of entries and the distance. `repeats(p)` says whether the
/// rest of the entries agrees as well.
///
/// Every divisor of the length is tried, shortest first; a wrong one fails
/// after about as many entries as repeat, so irregular lists cost a few
/// comparisons and regular ones one pass per nesting level.
fn period(offsets: &[i64], repeats: impl Fn(usize) -> bool) -> Option<(usize, isize)> {
    let n = offsets.len();
    let fits = |p: usize| {
        let distance = offsets[p].wrapping_sub(offsets[0]);
        let same = same_distance(&offsets[..n - p], &offsets[p..], distance);
        (same && repeats(p)).then_some((p, distance as isize))
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
fn same_distance(a: &[i64], b: &[i64], distance: i64) -> bool {
    const GROUP: usize = 16;
    let mut a = a.chunks(GROUP);
    let mut b = b.chunks(GROUP);
    while let (Some(x), Some(y)) = (a.next(), b.next()) {
        let differs = x
            .iter()
            .zip(y)
            .fold(0, |d, (x, y)| d | (y.wrapping_sub(*x) ^ distance));
        if differs != 0 {
            return false;
        }
    }
    true
}
