//! Overlap test: whether a layout touches a byte twice. Exact, but for layouts that no program
//! has.
//!
//! Nested strides: two blocks of widths `a` and `b` share a byte if the
//! difference of their offsets lies strictly between `-b` and `a`. The offsets
//! are sums of index x stride, so the question is whether a sum of differences
//! reaches that window. A depth-first search, largest stride first, visits only
//! the indices from which the remaining levels still reach it: one or two per
//! level for the usual nests.
//!
//! Rows of blocks at one distance, as those of a triangle: two rows whose blocks never share a
//! byte modulo the distance share none at all. This costs a sort of the rows, not of their
//! blocks; where such bytes meet, it says nothing.
//!
//! Everything else: blocks of both, sorted by offset, in one sweep.
//!
//! Strides can be contrived so that the search takes for ever (whether a sum of given
//! numbers reaches another is hard). It gives up after [`VISITS`], and the sweep answers; of
//! more than [`SWEPT`] blocks the answer is yes, which refuses them for receiving. A layout
//! of more bytes than its span has touches one twice, however it is made.

use crate::Layout;
use crate::form::{Body, Form, Level};
use std::ops::ControlFlow::{self, Break, Continue};

/// Index vectors that a search visits before it gives up; usual nests need some ten.
const VISITS: u32 = 1 << 20;
/// Most blocks that a sweep looks at.
const SWEPT: usize = 1 << 26;

/// Differences `index * stride` with `low <= index <= high`.
#[derive(Clone, Copy)]
struct Steps {
    low: i128,
    high: i128,
    stride: i128,
}

/// Whether `count` instances touch a byte twice.
pub(crate) fn with_itself(layout: &Layout, count: usize) -> bool {
    let (low, high) = layout.span(count);
    match layout.packed_bytes(count) {
        None => return true,
        Some(bytes) if bytes as i128 > high as i128 - low as i128 => return true,
        Some(_) => {}
    }
    if let Some((levels, width)) = strided(layout, count) {
        // Two distinct index vectors: the first unlike index may be taken as
        // positive, the ones before it as equal.
        let mut visits = VISITS;
        let found = (0..levels.len()).try_for_each(|i| {
            let count = levels[i].count as i128;
            let mut steps = vec![Steps {
                low: 1,
                high: count - 1,
                stride: levels[i].stride as i128,
            }];
            steps.extend(levels[i + 1..].iter().map(|level| Steps {
                low: 1 - level.count as i128,
                high: level.count as i128 - 1,
                stride: level.stride as i128,
            }));
            reaches(&mut steps, 0, -(width as i128), width as i128, &mut visits)
        });
        if let Some(answer) = answer(found) {
            return answer;
        }
    }
    if interleaved(layout, count) {
        return false;
    }
    if blocks_of(layout, count) > SWEPT {
        return true;
    }
    let mut end = isize::MIN;
    let ascending = layout.blocks(count).all(|(offset, length)| {
        let behind = offset >= end;
        end = offset.wrapping_add(length as isize);
        behind
    });
    if ascending {
        return false;
    }
    let mut blocks: Vec<_> = layout.blocks(count).collect();
    blocks.sort_unstable();
    blocks
        .windows(2)
        .any(|pair| pair[0].0.wrapping_add(pair[0].1 as isize) > pair[1].0)
}

/// Whether `count` of `a` and `b_count` of `b`, `b_offset` further, share a byte.
pub(crate) fn between(
    a: &Layout,
    count: usize,
    b: &Layout,
    b_count: usize,
    b_offset: isize,
) -> bool {
    let (a_low, a_high) = a.span(count);
    let (b_low, b_high) = b.span(b_count);
    if a_low == a_high || b_low == b_high {
        return false;
    }
    let shift = b_offset as i128;
    if a_high as i128 <= b_low as i128 + shift || b_high as i128 + shift <= a_low as i128 {
        return false;
    }
    if let (Some((a_levels, a_width)), Some((b_levels, b_width))) =
        (strided(a, count), strided(b, b_count))
    {
        let start = b.form().base as i128 + shift - a.form().base as i128;
        let steps = |levels: Vec<Level>, sign: i128| {
            levels.into_iter().map(move |level| Steps {
                low: 0,
                high: level.count as i128 - 1,
                stride: sign * level.stride as i128,
            })
        };
        let all = steps(a_levels, -1).chain(steps(b_levels, 1)).collect();
        let mut all = joined(all);
        let (low, high, mut visits) = (-(b_width as i128), a_width as i128, VISITS);
        if let Some(answer) = answer(reaches(&mut all, start, low, high, &mut visits)) {
            return answer;
        }
    }
    if blocks_of(a, count).max(blocks_of(b, b_count)) > SWEPT {
        return true;
    }
    let sorted = |layout: &Layout, count, shift: i128| {
        let mut blocks: Vec<(i128, i128)> = layout
            .blocks(count)
            .map(|(offset, length)| (offset as i128 + shift, length as i128))
            .collect();
        blocks.sort_unstable();
        blocks
    };
    let (a, b) = (sorted(a, count, 0), sorted(b, b_count, shift));
    let (mut i, mut j) = (0, 0);
    while let (Some(&(x, n)), Some(&(y, m))) = (a.get(i), b.get(j)) {
        if x < y + m && y < x + n {
            return true;
        }
        // Blocks of one layout may overlap each other: drop the one that ends
        // first, it cannot meet anything that comes later on the other side.
        if x + n <= y + m { i += 1 } else { j += 1 }
    }
    false
}

/// Blocks of a row on average, from which on rows are looked at instead.
const ROW_BLOCKS: usize = 4;

/// Whether all blocks lie in rows of one distance, and those of different rows at different
/// places modulo that distance. False also where rows are short or many.
fn interleaved(layout: &Layout, count: usize) -> bool {
    let form = layout.form();
    let rows = form.rows();
    if rows > form.runs / ROW_BLOCKS || rows.saturating_mul(count) > SWEPT {
        return false;
    }
    let mut distance = 0;
    form.for_each_row(0, &mut |_, _, stride, blocks| {
        if blocks > 1 && distance == 0 {
            distance = stride.unsigned_abs();
        }
    });
    if distance == 0 {
        return false;
    }
    // Where each row's blocks are modulo the distance, and their length.
    let (mut windows, mut alike) = (Vec::new(), true);
    for instance in 0..count as i128 {
        let origin = instance * layout.extent() as i128;
        form.for_each_row(0, &mut |offset, length, stride, blocks| {
            let place = (origin + offset as i128).rem_euclid(distance as i128);
            alike &= blocks == 1 || stride.unsigned_abs() == distance;
            windows.push((place as usize, length));
        });
        if !alike {
            return false;
        }
    }
    windows.sort_unstable();
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
        return false;
    };
    // The first window comes again behind the last one.
    let apart = |pair: &[(usize, usize)]| pair[1].0 - pair[0].0 >= pair[0].1;
    windows.windows(2).all(apart) && first.0 + (distance - last.0) >= last.1
}

/// Levels and width, if the layout is nested strides.
fn strided(layout: &Layout, count: usize) -> Option<(Vec<Level>, usize)> {
    let form: &Form = layout.form();
    if !matches!(form.body, Body::Block) {
        return None;
    }
    let mut levels = form.levels.clone();
    let mut width = form.body_bytes;
    if count > 1 {
        if levels.is_empty() && isize::try_from(width) == Ok(layout.extent()) {
            width = layout.packed_bytes(count)?;
        } else {
            levels.insert(
                0,
                Level {
                    count,
                    stride: layout.extent(),
                },
            );
        }
    }
    Some((levels, width))
}

/// Levels of one stride joined: their indices add up.
fn joined(mut steps: Vec<Steps>) -> Vec<Steps> {
    for step in &mut steps {
        if step.stride < 0 {
            *step = Steps {
                low: -step.high,
                high: -step.low,
                stride: -step.stride,
            };
        }
    }
    steps.sort_by_key(|step| step.stride);
    steps.dedup_by(|next, kept| {
        let same = next.stride == kept.stride;
        if same {
            kept.low += next.low;
            kept.high += next.high;
        }
        same
    });
    steps
}

/// Number of blocks of `count` instances; touching blocks count separately.
fn blocks_of(layout: &Layout, count: usize) -> usize {
    layout.form().runs.saturating_mul(count)
}

/// What ends a search: a byte in common, or too many visits.
enum End {
    Shared,
    TooMany,
}

fn answer(searched: ControlFlow<End>) -> Option<bool> {
    match searched {
        Continue(()) => Some(false),
        Break(End::Shared) => Some(true),
        Break(End::TooMany) => None,
    }
}

/// Whether `start` plus some sum of steps lies strictly between `low` and `high`.
fn reaches(
    steps: &mut [Steps],
    start: i128,
    low: i128,
    high: i128,
    visits: &mut u32,
) -> ControlFlow<End> {
    for step in steps.iter_mut() {
        if step.stride < 0 {
            *step = Steps {
                low: -step.high,
                high: -step.low,
                stride: -step.stride,
            };
        }
    }
    steps.sort_by_key(|step| std::cmp::Reverse(step.stride));
    search(steps, start, low, high, visits)
}

fn search(
    steps: &[Steps],
    start: i128,
    low: i128,
    high: i128,
    visits: &mut u32,
) -> ControlFlow<End> {
    *visits = match visits.checked_sub(1) {
        Some(left) => left,
        None => return Break(End::TooMany),
    };
    let Some((step, inner)) = steps.split_first() else {
        return match low < start && start < high {
            true => Break(End::Shared),
            false => Continue(()),
        };
    };
    if step.low > step.high {
        return Continue(());
    }
    let (down, up) = inner.iter().fold((0, 0), |(down, up), s| {
        (down + s.low * s.stride, up + s.high * s.stride)
    });
    if step.stride == 0 {
        return search(inner, start, low, high, visits);
    }
    // start + i * stride + [down, up] meets the open window (low, high).
    let first = (low + 1 - up - start).div_euclid(step.stride);
    let first = if first * step.stride < low + 1 - up - start {
        first + 1
    } else {
        first
    };
    let last = (high - 1 - down - start).div_euclid(step.stride);
    (first.max(step.low)..=last.min(step.high))
        .try_for_each(|i| search(inner, start + i * step.stride, low, high, visits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Basic, Type};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Levels of two iterations whose strides are near multiples of each other: searched
    /// without a bound, each adds a factor.
    fn contrived(levels: u32) -> Layout {
        let mut ty = Type::basic(Basic::U8);
        for level in 0..levels {
            let stride = (1isize << 40) + (7 << level) + (1 << (level / 2));
            ty = Type::hvector(2, 1, stride, &ty).expect("a type");
        }
        ty.commit().expect("a layout")
    }

    /// Hangs without a bound; the guard is some thousand times what it takes.
    #[test]
    fn contrived_strides_end() {
        let (told, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let many = contrived(52);
            told.send(many.self_overlaps(1)).expect("heard");
            told.send(many.overlaps(1, &contrived(50), 1, 3))
                .expect("heard");
        });
        for _ in 0..2 {
            let guard = Duration::from_secs(120);
            assert!(heard.recv_timeout(guard).expect("it ends"), "not known");
        }
    }

    #[test]
    fn what_the_search_gives_up_the_sweep_answers() {
        let (mut blocks, layout) = (Vec::new(), contrived(16));
        blocks.extend(layout.blocks(1).map(|(at, _)| at));
        blocks.sort_unstable();
        let twice = blocks.windows(2).any(|w| w[0] == w[1]);
        assert_eq!(layout.self_overlaps(1), twice);
        assert_eq!(blocks.len(), 1 << 16);
    }

    /// Rows of 1 to 300 blocks of a word at one distance, the first block of each further on.
    fn ragged(words: isize, apart: isize) -> Layout {
        let word = Type::contiguous(words.cast_unsigned(), &Type::basic(Basic::F64));
        let word = word.expect("a type");
        let rows = (1..=300).map(|row: isize| {
            let blocks = Type::hvector(row.cast_unsigned(), 1, 2400, &word).expect("a type");
            (1, (300 - row) * apart, blocks)
        });
        let ty = Type::structure(&rows.collect::<Vec<_>>()).expect("a type");
        ty.commit().expect("a layout")
    }

    /// Rows are told apart by their places modulo their distance; where that says nothing, the
    /// sweep answers.
    #[test]
    fn rows_of_one_distance() {
        for (words, apart, by_rows, overlap) in [
            (1, 8, true, false),
            (2, 8, false, true),
            // One behind the other: at the same places modulo the distance.
            (1, 2400 * 300, false, false),
            // Each row a distance and a word behind the one before.
            (1, 2408, true, false),
            (1, -8, true, false),
        ] {
            let layout = ragged(words, apart);
            assert_eq!(interleaved(&layout, 1), by_rows, "{words}, {apart}");
            assert_eq!(with_itself(&layout, 1), overlap, "{words}, {apart}");
        }
        // The second of two instances begins inside of the first.
        let word = Type::basic(Basic::F64);
        let half = Type::hvector(400, 1, 1600, &word).expect("a type");
        let other = Type::hvector(200, 1, 1600, &word).expect("a type");
        let ty = Type::structure(&[(1, 0, half), (1, 80, other)]).expect("a type");
        for (extent, overlap) in [(8, false), (80, true), (1600, true), (0, true)] {
            let ty = Type::resized(0, extent, &ty).expect("a type");
            let layout = ty.commit().expect("a layout");
            assert_eq!(layout.self_overlaps(2), overlap, "{extent}");
        }
    }

    #[test]
    fn more_bytes_than_the_span_overlap() {
        let ty = Type::hvector(1 << 40, 1, 0, &Type::basic(Basic::F64)).expect("a type");
        assert!(ty.commit().expect("a layout").self_overlaps(1));
    }
}
