//! The canonical form: nested strides over a body, and its rewrite rules.
//!
//! ```text
//! Form = base + levels over a body       bytes at base + i1*stride1 + i2*stride2 + ...
//! body = Block                           one run of bytes
//!      | List                            blocks at listed offsets
//!      | Each                            one form at listed offsets
//!      | Sequence                        unlike forms, one after the other
//! ```
//!
//! # Rewrite rules
//!
//! | | from | to | done by |
//! |---|---|---|---|
//! | 1 | no payload; a level of count 0 | the empty form | `nest`, `lower` |
//! | 2 | a level of count 1 | its body | `nest` |
//! | 3 | a block under a level whose stride is its length | a longer block | `nest` |
//! | 4 | a level over a level whose stride is the reach of the inner one (count x stride) | one level: loops collapse | `nest` |
//! | 5 | neighbors of a list that touch in pack order | one block | `compress` |
//! | 6 | a list that repeats itself at a constant distance | a level over the shortest part that repeats, and so on inside | `compress` |
//! | 7 | a body other than a block of at most [`FLATTEN`] blocks; a sequence of up to 8 blocks a part | the list of its blocks, then 5 and 6 | `lower` |
//! | 8 | a sequence inside of a sequence | its parts | `lower` |
//! | 9 | a sequence, or a list, of forms that differ in place alone | a level over one of them if the places are equidistant, as by 6; else `Each`, then 7 | `lower`, `compress` |
//!
//! Rules 6 and 9 find strides in disguise: an index list that was written out
//! from nested loops comes back as these loops, however many blocks it has. A
//! sequence of like nests is tried by 9 before it is flattened by 7, which gives
//! the same form and costs the parts instead of their blocks.
//!
//! Pack order is kept by every rule; nothing is ever sorted.
//!
//! Nested strides without touching iterations are unique: rules 3 and 4 leave
//! the innermost count equal to the longest arithmetic progression at the start
//! of the block sequence, and so on outwards. Where iterations touch (such as
//! `contiguous` of a `vector` without `resized`) or a list exceeds [`FLATTEN`],
//! two forms may remain for one layout; comparison then falls back to blocks.

use crate::list::{List, Offsets};

/// Forms with up to so many blocks flatten to one list.
pub(crate) const FLATTEN: usize = 256;

/// One loop of a strided layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level {
    /// Iterations.
    pub count: usize,
    /// Distance between them, in bytes.
    pub stride: isize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Form {
    /// Added to all offsets inside.
    pub base: isize,
    /// Outermost first.
    pub levels: Vec<Level>,
    pub body: Body,
    /// Packed bytes of the body.
    pub body_bytes: usize,
    /// Packed bytes over all levels.
    pub bytes: usize,
    /// Blocks over all levels, touching ones counted apart; saturating.
    pub runs: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// `body_bytes` bytes at the base.
    Block,
    List(List),
    Each(Offsets, Box<Form>),
    Sequence(Sequence),
}

/// Forms one after the other, found by packed byte or by block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub parts: Box<[Form]>,
    /// Packed bytes before each part.
    pub bytes_before: Box<[usize]>,
    /// Blocks before each part.
    pub runs_before: Box<[usize]>,
}

impl Form {
    pub fn empty() -> Form {
        Form::block(0, 0)
    }

    pub fn block(base: isize, length: usize) -> Form {
        Form {
            base,
            levels: Vec::new(),
            body: Body::Block,
            body_bytes: length,
            bytes: length,
            runs: usize::from(length > 0),
        }
    }

    pub fn list(base: isize, list: List) -> Form {
        let bytes = list.bytes();
        Form {
            base,
            levels: Vec::new(),
            runs: list.len(),
            body: Body::List(list),
            body_bytes: bytes,
            bytes,
        }
    }

    /// One form at each offset; the caller has at least two.
    pub fn each(base: isize, offsets: Offsets, mut inner: Form) -> Form {
        let bytes = offsets.len() * inner.bytes;
        let within = std::mem::take(&mut inner.base);
        Form {
            base: base.wrapping_add(within),
            levels: Vec::new(),
            runs: offsets.len().saturating_mul(inner.runs),
            body: Body::Each(offsets, Box::new(inner)),
            body_bytes: bytes,
            bytes,
        }
    }

    /// Unlike forms, none of them empty; the caller has at least two.
    pub fn sequence(mut parts: Vec<Form>) -> Form {
        let base = parts.first().map_or(0, |part| part.base);
        for part in &mut parts {
            part.base = part.base.wrapping_sub(base);
        }
        let (mut bytes, mut runs) = (0, 0usize);
        let mut bytes_before = Vec::with_capacity(parts.len());
        let mut runs_before = Vec::with_capacity(parts.len());
        for part in &parts {
            bytes_before.push(bytes);
            runs_before.push(runs);
            bytes += part.bytes;
            runs = runs.saturating_add(part.runs);
        }
        Form {
            base,
            levels: Vec::new(),
            body: Body::Sequence(Sequence {
                parts: parts.into(),
                bytes_before: bytes_before.into(),
                runs_before: runs_before.into(),
            }),
            body_bytes: bytes,
            bytes,
            runs,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn shifted(mut self, by: isize) -> Form {
        if !self.is_empty() {
            self.base = self.base.wrapping_add(by);
        }
        self
    }

    /// Whether the form is one run.
    pub fn as_block(&self) -> Option<(isize, usize)> {
        (self.levels.is_empty() && matches!(self.body, Body::Block))
            .then_some((self.base, self.body_bytes))
    }

    /// Blocks of one body.
    pub fn body_runs(&self) -> usize {
        match &self.body {
            Body::Block => usize::from(self.body_bytes > 0),
            Body::List(list) => list.len(),
            Body::Each(offsets, inner) => offsets.len().saturating_mul(inner.runs),
            Body::Sequence(sequence) => sequence
                .parts
                .iter()
                .fold(0, |runs, part| runs.saturating_add(part.runs)),
        }
    }

    /// Rows of blocks over all levels, as [`Form::for_each_row`] tells them; saturating.
    pub fn rows(&self) -> usize {
        let around = match (&self.body, self.levels.as_slice()) {
            (Body::Block, [outer @ .., _]) => outer,
            (_, levels) => levels,
        };
        around.iter().fold(self.body_rows(), |rows, level| {
            rows.saturating_mul(level.count)
        })
    }

    /// The same of one body.
    pub fn body_rows(&self) -> usize {
        match &self.body {
            Body::Block => usize::from(self.body_bytes > 0),
            Body::List(list) => list.len(),
            Body::Each(offsets, inner) => offsets.len().saturating_mul(inner.rows()),
            Body::Sequence(sequence) => (sequence.parts.iter())
                .fold(0, |rows: usize, part| rows.saturating_add(part.rows())),
        }
    }

    /// `count` of these forms, `stride` bytes apart: rules 1 to 4.
    pub fn nest(mut self, count: usize, stride: isize) -> Form {
        if count == 0 || self.is_empty() {
            return Form::empty();
        }
        if count == 1 {
            return self;
        }
        self.bytes *= count;
        match self.levels.first_mut() {
            None if matches!(self.body, Body::Block)
                && isize::try_from(self.body_bytes) == Ok(stride) =>
            {
                self.body_bytes = self.bytes;
                return self;
            }
            Some(inner) if reach(*inner) == stride as i128 => {
                inner.count *= count;
            }
            _ => self.levels.insert(0, Level { count, stride }),
        }
        self.runs = self.runs.saturating_mul(count);
        self
    }

    /// Calls `each` with offset, length, distance and number of rows of blocks, in
    /// pack order; touching ones may come apart.
    pub fn for_each_row(&self, origin: isize, each: &mut impl FnMut(isize, usize, isize, usize)) {
        self.level_rows(&self.levels, origin.wrapping_add(self.base), each);
    }

    /// Calls `each` with offset and length of all blocks of one body, in pack order;
    /// touching ones may come apart.
    pub fn for_each_body_run(&self, each: &mut impl FnMut(isize, usize)) {
        self.for_each_body_row(&mut |offset, length, stride, count| {
            for i in 0..count as isize {
                each(offset.wrapping_add(stride.wrapping_mul(i)), length);
            }
        });
    }

    /// As [`Form::for_each_row`], of one body with its base.
    pub fn for_each_body_row(&self, each: &mut impl FnMut(isize, usize, isize, usize)) {
        self.level_rows(&[], self.base, each);
    }

    fn level_rows(
        &self,
        levels: &[Level],
        at: isize,
        each: &mut impl FnMut(isize, usize, isize, usize),
    ) {
        if let (&[level], Body::Block) = (levels, &self.body) {
            return each(at, self.body_bytes, level.stride, level.count);
        }
        if let Some((level, inner)) = levels.split_first() {
            let mut at = at;
            for _ in 0..level.count {
                self.level_rows(inner, at, each);
                at = at.wrapping_add(level.stride);
            }
            return;
        }
        match &self.body {
            Body::Block if self.body_bytes == 0 => {}
            Body::Block => each(at, self.body_bytes, 0, 1),
            Body::List(list) => {
                for i in 0..list.len() {
                    let (offset, length) = list.block(i);
                    each(at.wrapping_add(offset), length, 0, 1);
                }
            }
            Body::Each(offsets, inner) => {
                for i in 0..offsets.len() {
                    inner.for_each_row(at.wrapping_add(offsets.at(i)), each);
                }
            }
            Body::Sequence(sequence) => {
                for part in &sequence.parts {
                    part.for_each_row(at, each);
                }
            }
        }
    }

    /// Offset of the first byte in pack order.
    pub fn first(&self) -> isize {
        match &self.body {
            Body::Block | Body::List(_) => self.base,
            Body::Each(_, inner) => self.base.wrapping_add(inner.first()),
            Body::Sequence(sequence) => self.base.wrapping_add(sequence.parts[0].first()),
        }
    }

    /// One past the last byte in pack order.
    pub fn last_end(&self) -> isize {
        self.levels
            .iter()
            .fold(self.base.wrapping_add(self.body_end()), |end, level| {
                end.wrapping_add((level.count as isize - 1).wrapping_mul(level.stride))
            })
    }

    /// One past the last byte of the first body, relative to the base.
    fn body_end(&self) -> isize {
        match &self.body {
            Body::Block => self.body_bytes as isize,
            Body::List(list) => {
                let (offset, length) = list.block(list.len() - 1);
                offset.wrapping_add(length as isize)
            }
            Body::Each(offsets, inner) => {
                offsets.at(offsets.len() - 1).wrapping_add(inner.last_end())
            }
            Body::Sequence(sequence) => sequence.parts[sequence.parts.len() - 1].last_end(),
        }
    }

    /// Whether copies at this distance touch: the last byte of one is followed
    /// by the first of the next.
    pub fn touches_itself(&self, stride: isize) -> bool {
        !self.is_empty() && self.last_end() == self.first().wrapping_add(stride)
    }

    /// Maximal runs: those of `runs` less the touching ones.
    pub fn maximal_runs(&self) -> usize {
        let mut runs = match &self.body {
            Body::Block | Body::List(_) => self.body_runs(),
            Body::Each(offsets, inner) => {
                let span = inner.last_end().wrapping_sub(inner.first());
                let joins = (1..offsets.len())
                    .filter(|&i| offsets.at(i).wrapping_sub(offsets.at(i - 1)) == span)
                    .count();
                offsets.len().saturating_mul(inner.maximal_runs()) - joins
            }
            Body::Sequence(sequence) => {
                let parts = &sequence.parts;
                let joins = parts
                    .windows(2)
                    .filter(|pair| pair[0].last_end() == pair[1].first())
                    .count();
                parts.iter().fold(0usize, |runs, part| {
                    runs.saturating_add(part.maximal_runs())
                }) - joins
            }
        };
        let (first, mut end) = (self.first(), self.base.wrapping_add(self.body_end()));
        for level in self.levels.iter().rev() {
            let joins = first.wrapping_add(level.stride) == end;
            runs = runs.saturating_mul(level.count);
            if joins {
                runs -= level.count - 1;
            }
            end = end.wrapping_add((level.count as isize - 1).wrapping_mul(level.stride));
        }
        runs
    }

    /// A power of two that divides every offset, length and stride, at most 64.
    pub fn granularity(&self) -> usize {
        64.min(1 << self.bits().trailing_zeros().min(6))
    }

    fn bits(&self) -> usize {
        let mut bits = self.base as usize | self.body_bytes;
        for level in &self.levels {
            bits |= level.stride as usize;
        }
        bits | match &self.body {
            Body::Block => 0,
            Body::List(list) => list.bits(),
            Body::Each(offsets, inner) => offsets.bits() | inner.bits(),
            Body::Sequence(sequence) => sequence.parts.iter().fold(0, |b, part| b | part.bits()),
        }
    }
}

/// Count x stride, without overflow.
pub(crate) fn reach(level: Level) -> i128 {
    level.count as i128 * level.stride as i128
}
