//! Blocks of one word that are adjacent on one side along the lines of the other: they go
//! through tiles.
//!
//! Packing, unpacking, and copies between layouts are one kernel: a side is an address and
//! the distances of its lines and planes. Of a range only the planes and columns that it
//! touches are planned.
//!
//! # Invariants
//! 1. The packed number of a word is (plane x columns + column) x rows + row.
//! 2. A tile's number, and with it each index of a tile, has 31 bits.

use super::arguments::{Divisor, Launch};
use super::transfer::PlacedPlan;
use super::{Dimension, Plan, Shape};
use std::ops::Range;

/// Words of 1 and 2 bytes are moved so many bytes at a time, if both sides suit that.
const GROUP_BYTES: usize = 4;

/// Groups of a tile in each direction.
const TILE: u64 = 32;

/// `osier_tile_side`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TileSide {
    /// Address of the first word.
    pub at: u64,
    /// Bytes between lines; the words of a line are adjacent.
    pub line: i64,
    /// Bytes between planes.
    pub plane: i64,
}

/// `osier_transpose`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Transpose {
    /// Where words are read.
    pub from: TileSide,
    /// Where they are written.
    pub to: TileSide,
    /// First packed word.
    pub first: u64,
    /// Behind the last packed word.
    pub last: u64,
    /// Lines of `from`, words of a line of `to`.
    pub from_lines: u64,
    /// Lines of `to`, words of a line of `from`.
    pub to_lines: u64,
    /// Tiles along packed lines.
    pub inner: Divisor,
    /// Tiles across them.
    pub outer: Divisor,
    /// Tiles of all planes.
    pub tiles: u32,
    /// Whether packed lines are those of `from`.
    pub unpacks: u32,
    /// Whether lines begin anywhere and have any number of words.
    pub shifted: u32,
    /// Whether all words of all lines are to be moved.
    pub whole: u32,
}

/// Loops around words: columns are adjacent in the layout, rows in the packed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loops {
    pub word: usize,
    pub rows: u64,
    pub row_stride: i64,
    pub columns: u64,
    /// Columns lie one before the other.
    pub backward: bool,
    pub planes: u64,
    pub plane_stride: i64,
}

impl Loops {
    /// The loops of a plan that goes through tiles.
    pub fn of(plan: &Plan) -> Option<Loops> {
        let Shape::Transposed { word } = plan.shape() else {
            return None;
        };
        let mut strides = plan.strides();
        let (rows, row_stride) = strides.next()?;
        let (columns, adjacent) = strides.next()?;
        let (planes, plane_stride) = strides.next().unwrap_or((1, 0));
        Some(Loops {
            word,
            rows,
            row_stride,
            columns,
            backward: adjacent < 0,
            planes,
            plane_stride,
        })
    }

    fn words(&self) -> u64 {
        self.rows * self.columns * self.planes
    }

    /// The layout's side of a launch.
    fn side(&self, at: u64) -> TileSide {
        TileSide {
            at,
            line: self.row_stride,
            plane: self.plane_stride,
        }
    }

    /// Packed bytes as a side; packed byte 0 is at an address.
    fn packed(&self, at: u64) -> TileSide {
        let line = self.rows as i64 * self.word as i64;
        TileSide {
            at,
            line,
            plane: line.wrapping_mul(self.columns as i64),
        }
    }

    /// Where a plan has the packed lines, relative to its origin and base: none, unless the
    /// words of a line are adjacent, and lines and planes at equal distances.
    fn lines_in(&self, plan: &Plan) -> Option<TileSide> {
        if !plan.is_regular() {
            return None;
        }
        let word = self.word as u64;
        let core = (plan.core_bytes / word, word as i64);
        let mut loops = std::iter::once(core).chain(plan.strides());
        let mut inner = loops.next()?;
        let mut take = |count: u64| {
            while inner.0 == 1 {
                inner = loops.next()?;
            }
            let stride = inner.1;
            inner = match inner.0.is_multiple_of(count) {
                true => (inner.0 / count, stride.checked_mul(count as i64)?),
                false => return None,
            };
            Some(stride)
        };
        let adjacent = take(self.rows)?;
        let line = take(self.columns)?;
        let plane = match self.planes {
            1 => 0,
            planes => take(planes)?,
        };
        (adjacent == word as i64).then_some(TileSide { at: 0, line, plane })
    }
}

impl TileSide {
    fn advance(&mut self, count: u64, stride: i64) {
        self.at = (self.at).wrapping_add_signed((count as i64).wrapping_mul(stride));
    }
}

impl Transpose {
    /// Moves the packed words `range` from the layout of `loops` to a side with packed lines.
    /// None, if that is more than the kernel numbers.
    fn new(
        loops: &Loops,
        mut from: TileSide,
        mut to: TileSide,
        range: Range<u64>,
    ) -> Option<Transpose> {
        let word = loops.word as u64;
        let (rows, mut columns) = (loops.rows, loops.columns);
        let (mut first, mut last) = (range.start, range.end);
        if loops.backward {
            // From the last column on: numbers of words go down, so all are to be moved.
            if first > 0 || last < loops.words() {
                return None;
            }
            from.at = from.at.wrapping_sub((columns - 1) * word);
            let behind = (columns as i64 - 1).wrapping_mul(to.line);
            to.at = to.at.wrapping_add_signed(behind);
            to.line = to.line.wrapping_neg();
        }
        let group = (GROUP_BYTES / loops.word).max(1) as u64;
        let shifted = group > 1 && !Transpose::suits(loops, &from, &to, &range);
        let whole = if shifted { 1 } else { group };
        let plane = first / (rows * columns);
        let planes = last.div_ceil(rows * columns) - plane;
        from.advance(plane, from.plane);
        to.advance(plane, to.plane);
        first -= plane * rows * columns;
        last -= plane * rows * columns;
        if planes == 1 && !loops.backward {
            let before = first / rows / whole * whole;
            columns = last.div_ceil(rows).next_multiple_of(whole) - before;
            from.advance(before, word as i64);
            to.advance(before, to.line);
            first -= before * rows;
            last -= before * rows;
        }
        let inner = rows.div_ceil(TILE * group);
        let outer = columns.div_ceil(TILE * group);
        let tiles = u128::from(inner) * u128::from(outer) * u128::from(planes);
        if tiles >= 1 << 31 {
            return None;
        }
        Some(Transpose {
            from,
            to,
            first,
            last,
            from_lines: rows,
            to_lines: columns,
            inner: Divisor::new(inner),
            outer: Divisor::new(outer),
            tiles: tiles as u32,
            unpacks: 0,
            shifted: shifted.into(),
            whole: u32::from(first == 0 && last == rows * columns * planes),
        })
    }

    /// Whether all groups of both sides are aligned and whole.
    fn suits(loops: &Loops, from: &TileSide, to: &TileSide, range: &Range<u64>) -> bool {
        let group = (GROUP_BYTES / loops.word).max(1) as u64;
        let bytes = from.at | to.at | from.line as u64 | to.line as u64;
        let planes = match loops.planes {
            1 => 0,
            _ => from.plane as u64 | to.plane as u64,
        };
        let words = loops.rows | loops.columns | range.start | range.end;
        (bytes | planes).is_multiple_of(GROUP_BYTES as u64) && words.is_multiple_of(group)
    }

    /// The same the other way.
    pub fn reversed(self) -> Transpose {
        Transpose {
            from: self.to,
            to: self.from,
            from_lines: self.to_lines,
            to_lines: self.from_lines,
            unpacks: 1 - self.unpacks,
            ..self
        }
    }

    /// From the layout of a plan at an address to packed bytes, whose byte 0 is at another,
    /// for a range of packed bytes. None, where other kernels are to do it.
    pub(crate) fn packing(
        plan: &Plan,
        layout: u64,
        packed: u64,
        width: usize,
        range: &Range<u64>,
    ) -> Option<Transpose> {
        let loops = Loops::of(plan)?;
        let words = whole_words(&loops, width, range)?;
        Transpose::new(&loops, loops.side(layout), loops.packed(packed), words)
    }

    /// From layout to layout, if one has its words adjacent along the lines of the other.
    pub(crate) fn between(
        from: PlacedPlan<'_>,
        to: PlacedPlan<'_>,
        width: usize,
        range: &Range<u64>,
    ) -> Option<Transpose> {
        let one_way = |side: PlacedPlan<'_>, other: PlacedPlan<'_>| {
            let loops = Loops::of(side.plan)?;
            let words = whole_words(&loops, width, range)?;
            let lines = TileSide {
                at: other.layout(),
                ..loops.lines_in(other.plan)?
            };
            Transpose::new(&loops, loops.side(side.layout()), lines, words)
        };
        one_way(from, to).or_else(|| Some(one_way(to, from)?.reversed()))
    }

    /// Where a packed word is read and written.
    pub(crate) fn places(&self, word_bytes: usize, number: u64) -> (u64, u64) {
        let (rows, columns) = match self.unpacks {
            0 => (self.from_lines, self.to_lines),
            _ => (self.to_lines, self.from_lines),
        };
        let (column, row) = (number / rows, number % rows);
        let (plane, column) = (column / columns, column % columns);
        let place = |side: &TileSide, line: u64, inside: u64| {
            let line = (line as i64).wrapping_mul(side.line);
            let plane = (plane as i64).wrapping_mul(side.plane);
            let at = side.at.wrapping_add_signed(line.wrapping_add(plane));
            at.wrapping_add(inside * word_bytes as u64)
        };
        match self.unpacks {
            0 => (place(&self.from, row, column), place(&self.to, column, row)),
            _ => (place(&self.from, column, row), place(&self.to, row, column)),
        }
    }
}

/// A range in words, if it cuts none and words are as wide as accesses may be.
fn whole_words(loops: &Loops, width: usize, range: &Range<u64>) -> Option<Range<u64>> {
    let word = loops.word as u64;
    let whole = range.start.is_multiple_of(word) && range.end.is_multiple_of(word);
    (whole && width == loops.word).then_some(range.start / word..range.end / word)
}

/// Two plans of the same columns, with loops exchanged on both sides: rows of adjacent
/// words. For all packed bytes alone, whose order among each other does not matter.
pub(crate) fn exchanged(from: &Plan, to: &Plan) -> Option<[Plan; 2]> {
    let (read, written) = (Loops::of(from)?, Loops::of(to)?);
    let same = |a: &Loops, b: &Loops| {
        (a.word, a.rows, a.columns, a.planes, a.backward)
            == (b.word, b.rows, b.columns, b.planes, b.backward)
    };
    if !same(&read, &written) {
        return None;
    }
    let rows = |plan: &Plan, loops: &Loops| {
        let core_bytes = loops.columns * loops.word as u64;
        let mut exchanged = Plan {
            // The lowest address of a row.
            base: match loops.backward {
                true => plan.base - (core_bytes as i64 - loops.word as i64),
                false => plan.base,
            },
            dimensions: Vec::new(),
            list: None,
            boxes: Vec::new(),
            core_bytes,
            bytes: plan.bytes,
            granularity: 0,
        };
        if loops.planes > 1 {
            exchanged.push_stride(loops.planes, loops.plane_stride);
        }
        exchanged.push_stride(loops.rows, loops.row_stride);
        exchanged.merge();
        exchanged.granularity = exchanged.granularity();
        exchanged
    };
    Some([rows(from, &read), rows(to, &written)])
}

impl Launch {
    /// Thread blocks with a tile to move.
    pub(crate) fn of_tiles(argument: Transpose, width: usize) -> Launch {
        Launch {
            blocks: u64::from(argument.tiles),
            argument: super::arguments::Argument::Transposed(argument),
            width,
        }
    }
}

impl Plan {
    /// Counts and strides, innermost first.
    pub(crate) fn strides(&self) -> impl Iterator<Item = (u64, i64)> {
        let stride = |dimension: &Dimension| match dimension {
            Dimension::Stride { count, stride } => (*count, *stride),
            Dimension::Table { count, .. } => (*count, 0),
        };
        self.dimensions.iter().rev().map(stride)
    }
}
