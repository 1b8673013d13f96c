//! From block lists back to strides: rules 5 and 6 of the canonical form.

use crate::form::Form;
use crate::list::{Length, List, Offset};

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
        form.for_each_run(0, &mut |offset, length| self.push(offset, length));
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
/// One pass without a branch on whether blocks touch, into arrays as narrow as
/// most lists are; lists that turn out wider take the pass again.
pub(crate) fn listed(blocks: impl ExactSizeIterator<Item = (usize, isize)> + Clone) -> Form {
    let mut rest = blocks.clone().skip_while(|&(length, _)| length == 0);
    let Some((length, first)) = rest.next() else {
        return Form::empty();
    };
    let mut offsets = vec![0i32; blocks.len()];
    let mut lengths = vec![0u32; blocks.len()];
    let (mut at, mut run, mut last, mut fits) = (0i64, length as u64, 0, true);
    lengths[0] = run as u32;
    for (length, offset) in rest {
        let offset = (offset as i64).wrapping_sub(first as i64);
        let joins = (at.wrapping_add_unsigned(run) == offset) | (length == 0);
        // Masks, because a condition comes back as a branch.
        let keep = -i64::from(joins);
        at = (at & keep) | (offset & !keep);
        run = (run & keep as u64) + length as u64;
        last += usize::from(!joins);
        offsets[last] = at as i32;
        lengths[last] = run as u32;
        fits &= (at as i32 as i64 == at) & (run as u32 as u64 == run);
    }
    if !fits || run as u32 as u64 != run {
        let mut runs = Runs::with_capacity(blocks.len());
        for (length, offset) in blocks {
            if length > 0 {
                runs.push(offset, length);
            }
        }
        return runs.into_form();
    }
    offsets.truncate(last + 1);
    lengths.truncate(last + 1);
    compress(first as i64, &offsets, &lengths)
        .unwrap_or_else(|| Form::list(first, List::narrow(offsets, lengths)))
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
    let (part, distance) = period(offsets, |p| lengths[p..] == lengths[..n - p])?;
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
    match period(offsets, |_| true) {
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
/// whole: its number of entries and the distance. `repeats(p)` says whether the
/// rest of the entries agrees as well.
///
/// Every divisor of the length is tried, shortest first; a wrong one fails
/// after about as many entries as repeat, so irregular lists cost a few
/// comparisons and regular ones one pass per nesting level.
fn period<O: Offset>(offsets: &[O], repeats: impl Fn(usize) -> bool) -> Option<(usize, isize)> {
    let n = offsets.len();
    let fits = |p: usize| {
        let distance = offsets[p].wide().wrapping_sub(offsets[0].wide());
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
