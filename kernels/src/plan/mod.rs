//! Pack plans from committed layouts: pure, the same for all devices.
//!
//! ```text
//! Layout x count --Plan--> dimensions over a core     (this file)
//!                            |-- tables: one block of bytes for the device, made
//!                            |   in parts where lists are long           (parts.rs)
//!                            |-- arguments of one kernel, for one range  (arguments.rs)
//!                            |-- a core of a few boxes                    (boxes.rs)
//!                            |-- a core of ragged rows                     (rows.rs)
//!                            |-- one word along the lines of the other   (transpose.rs)
//!                            `-- two plans: from layout to layout        (transfer.rs)
//!                                           the same, with a period       (period.rs)
//!                                           left = left op right         (reduction.rs)
//! ```
//!
//! A packed byte's place is found by division: its number in units of the core
//! gives one index per dimension. A dimension is regular (a stride) or a table of
//! places; the core is one block, a few boxes, or a list of runs of any length, or of
//! rows of equal blocks, with the packed bytes before each and hints into it. So any type
//! tree is one kernel, whose warps all do the same work, however many runs there are.
//!
//! | layout | plan | list bytes |
//! |---|---|---|
//! | one run | [`Shape::Contiguous`] | none |
//! | blocks under up to 4 strides | [`Shape::Strided`] | none |
//! | the same, one word a block, adjacent along the outer loop | [`Shape::Transposed`] | none |
//! | up to 16 boxes of blocks under 3 strides | [`Shape::General`] | none |
//! | equal blocks at listed places, nested as one likes | [`Shape::General`] | 4 or 8 per place |
//! | rows of equal blocks at one distance, of any length | [`Shape::General`] | 8 to 16 per row of one core, and 4 per hint |
//! | all else | [`Shape::General`] | 8 to 16 per run of one core, and 4 per hint |
//!
//! Where a general kernel takes one of these, because words are narrow or runs short, a core
//! of at most 4096 units is written out besides, if that is an eighth of what is packed or
//! less: 4 bytes a unit.
//!
//! # Invariants
//! 1. Pack order is kept.
//! 2. `granularity` divides every offset, stride, place and length.
//! 3. A list holds one core, whatever loops are around it.
//!
//! # Sources
//! Equal units with a start found by search, after merge-based work distribution:
//! D. Merrill and M. Garland, Merge-based parallel sparse matrix-vector
//! multiplication, SC 2016. Lists of units for any type on a GPU: W. Wu, G.
//! Bosilca, R. vandeVaart, S. Jeaugey and J. Dongarra, GPU-aware non-contiguous
//! data movement in Open MPI, HPDC 2016; there a warp takes a piece of one block,
//! here a chunk of the stream.

pub mod arguments;
pub mod boxes;
pub mod interpret;
pub mod parts;
pub mod period;
pub mod reduction;
pub mod rows;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod transpose;
pub mod update;

use boxes::PlanBox;
use osier_datatype::{Core, Layout, Level, Nest, Places, Runs, TypeError};
use rows::RowBlocks;

/// Loops around a core that a kernel takes.
pub const DIMENSIONS: usize = 8;

/// Words are at most so many bytes.
pub const WIDEST: usize = 16;

/// One loop, outermost first in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// Iterations at a constant distance in bytes.
    Stride {
        /// Iterations.
        count: u64,
        /// Bytes between them.
        stride: i64,
    },
    /// Iterations at listed places in bytes.
    Table {
        /// Iterations.
        count: u64,
        /// The places; none if tables were made of them already.
        places: Vec<i64>,
    },
}

impl Dimension {
    /// Iterations.
    pub fn count(&self) -> u64 {
        match self {
            Dimension::Stride { count, .. } => *count,
            Dimension::Table { count, .. } => *count,
        }
    }
}

/// Runs of any length, or rows of any length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// Where each entry begins, in bytes.
    pub offsets: Vec<i64>,
    /// Packed bytes before each.
    pub before: Vec<u64>,
    /// What rows are made of; none, if entries are runs.
    pub blocks: Option<RowBlocks>,
}

impl List {
    /// A list without entries, which are elsewhere.
    fn without_entries(blocks: Option<RowBlocks>) -> List {
        List {
            blocks,
            ..List::default()
        }
    }

    /// Where a packed byte of the core is.
    fn place(&self, byte: u64) -> i64 {
        let entry = self.before.partition_point(|&before| before <= byte) - 1;
        let inside = byte - self.before[entry];
        let inside = (self.blocks).map_or(inside as i64, |blocks| blocks.place(inside));
        self.offsets[entry].wrapping_add(inside)
    }
}

/// Which kernel does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One run: a copy.
    Contiguous,
    /// Blocks under so many strides.
    Strided(usize),
    /// One-word blocks through a tile.
    Transposed {
        /// Bytes of a block.
        word: usize,
    },
    /// Anything.
    General,
}

/// How to copy `count` instances of a layout.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Added to all offsets.
    pub base: i64,
    /// Loops, outermost first.
    pub dimensions: Vec<Dimension>,
    /// The core's runs or rows; none if it is one block.
    pub list: Option<List>,
    /// The core's boxes; none if it is one block or listed.
    pub boxes: Vec<PlanBox>,
    /// Packed bytes of the core.
    pub core_bytes: u64,
    /// Packed bytes of all.
    pub bytes: u64,
    /// A power of two, at most [`WIDEST`]: invariant 2. The base is left out: it
    /// is part of the address.
    pub granularity: usize,
}

/// What a long list is made of.
pub(crate) enum Source<'a> {
    /// A dimension's places.
    Entries(Entries<'a>),
    /// A core's runs or rows.
    Walk(Walk<'a>),
}

/// Places, by number.
#[derive(Clone, Copy)]
pub(crate) enum Entries<'a> {
    Places(Places<'a>),
    /// Of equal length.
    Runs(Runs<'a>),
}

impl Entries<'_> {
    pub fn len(&self) -> usize {
        match self {
            Entries::Places(places) => places.len(),
            Entries::Runs(runs) => runs.len(),
        }
    }

    pub fn at(&self, index: usize) -> i64 {
        match self {
            Entries::Places(places) => places.at(index) as i64,
            Entries::Runs(runs) => runs.at(index).0 as i64,
        }
    }
}

/// Runs or rows of a core, or of a nest with its levels, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    nest: Nest<'a>,
    /// The nest's levels belong to it.
    levels: &'a [Level],
    /// What rows are made of; none, if runs are told.
    blocks: Option<RowBlocks>,
}

impl Walk<'_> {
    fn instances(&self) -> usize {
        self.levels.iter().map(|level| level.count).product()
    }

    /// Number of runs, touching ones apart, or of rows.
    pub fn entries(&self) -> usize {
        let of_core = match self.blocks {
            Some(_) => self.nest.core_rows(),
            None => self.nest.core_runs(),
        };
        of_core.saturating_mul(self.instances())
    }

    /// What rows are made of; none, if entries are runs.
    pub fn blocks(&self) -> Option<RowBlocks> {
        self.blocks
    }

    /// Where the first entry is.
    pub fn base(&self) -> i64 {
        self.nest.base() as i64
    }

    /// Calls `each` with the offset of all entries and their packed bytes.
    pub fn each(&self, each: &mut dyn FnMut(isize, usize)) {
        for number in 0..self.instances() {
            let (mut rest, mut at) = (number, 0isize);
            for level in self.levels.iter().rev() {
                at = at.wrapping_add(((rest % level.count) as isize).wrapping_mul(level.stride));
                rest /= level.count;
            }
            match self.blocks {
                Some(_) => (self.nest).for_each_core_row(|offset, length, _, blocks| {
                    each(at.wrapping_add(offset), length * blocks);
                }),
                None => (self.nest)
                    .for_each_core_run(|offset, length| each(at.wrapping_add(offset), length)),
            }
        }
    }
}

/// A plan without its lists, and what these are made of.
pub(crate) struct Outline<'a> {
    plan: Plan,
    tables: Vec<(usize, Entries<'a>)>,
    list: Option<Walk<'a>>,
}

impl<'a> Outline<'a> {
    /// Takes over one nest, and those inside of it.
    fn descend(&mut self, nest: Nest<'a>) {
        let core = nest.core();
        let places = match core {
            Core::List(runs) => usize::from(runs.equal_length().is_some()),
            Core::Each(_, inner) => 1 + inner.levels().len(),
            _ => 0,
        };
        let plan = &mut self.plan;
        // What does not fit is written out; instances and this nest's levels must.
        if plan.dimensions.len() + nest.levels().len() + places > DIMENSIONS {
            return self.walk(nest, nest.levels());
        }
        for level in nest.levels() {
            plan.push_stride(level.count as u64, level.stride as i64);
        }
        if let Some(mut boxes) = boxes::of_core(nest) {
            let base = boxes[0].base;
            for each in &mut boxes {
                each.base = each.base.wrapping_sub(base);
            }
            plan.base += base;
            plan.core_bytes = nest.core_bytes() as u64;
            plan.boxes = boxes;
            return;
        }
        match core {
            Core::Block => {
                plan.base += nest.base() as i64;
                plan.core_bytes = nest.core_bytes() as u64;
            }
            Core::List(runs) if runs.equal_length().is_some() => {
                plan.base += nest.base() as i64;
                plan.core_bytes = runs.at(0).1 as u64;
                self.table(Entries::Runs(runs));
            }
            Core::Each(places, inner) => {
                plan.base += nest.base() as i64;
                self.table(Entries::Places(places));
                self.descend(inner);
            }
            _ => self.walk(nest, &[]),
        }
    }

    fn table(&mut self, entries: Entries<'a>) {
        self.tables.push((self.plan.dimensions.len(), entries));
        self.plan.dimensions.push(Dimension::Table {
            count: entries.len() as u64,
            places: Vec::new(),
        });
    }

    fn walk(&mut self, nest: Nest<'a>, levels: &'a [Level]) {
        let walk = Walk {
            nest,
            levels,
            blocks: RowBlocks::of_core(nest),
        };
        self.plan.core_bytes = (nest.core_bytes() * walk.instances()) as u64;
        self.list = Some(walk);
    }

    /// The dimension with the longest list, none for the core; and its entries.
    pub fn longest(&self) -> (Option<usize>, usize) {
        let entries = self.list.map_or(0, |walk| walk.entries());
        let tables = self.tables.iter();
        let tables = tables.map(|(at, places)| (Some(*at), places.len()));
        let most = |a: (_, usize), b: (_, usize)| if a.1 >= b.1 { a } else { b };
        tables.fold((None, entries), most)
    }

    /// The plan with all of its lists.
    pub fn complete(mut self) -> Plan {
        for (at, entries) in std::mem::take(&mut self.tables) {
            self.plan.fill(at, entries);
        }
        if let Some(walk) = self.list {
            self.plan.write_out(walk);
        }
        self.plan.merge();
        self.plan.granularity = self.plan.granularity();
        self.plan
    }

    /// The plan with all of its lists but one, of a dimension or of the core.
    pub fn but(mut self, which: Option<usize>) -> (Plan, Source<'a>) {
        let mut source = None;
        for (at, entries) in std::mem::take(&mut self.tables) {
            match Some(at) == which {
                true => source = Some(Source::Entries(entries)),
                false => self.plan.fill(at, entries),
            }
        }
        if let Some(walk) = self.list {
            match which {
                None => source = Some(Source::Walk(walk)),
                Some(_) => self.plan.write_out(walk),
            }
        }
        let Some(source) = source else {
            unreachable!("the longest list is one of them");
        };
        if which.is_some() {
            self.plan.merge();
        }
        (self.plan, source)
    }
}

impl Plan {
    /// Plans `count` instances.
    ///
    /// # Errors
    /// More than `isize::MAX` bytes.
    pub fn new(layout: &Layout, count: usize) -> Result<Plan, TypeError> {
        Ok(Plan::outline(layout, count)?.complete())
    }

    /// Entries of the longest list of `count` instances.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn entries(layout: &Layout, count: usize) -> Result<usize, TypeError> {
        Ok(Plan::outline(layout, count)?.longest().1)
    }

    /// Plans `count` instances, without making lists.
    pub(crate) fn outline(layout: &Layout, count: usize) -> Result<Outline<'_>, TypeError> {
        let bytes = layout.pack_size(count)? as u64;
        let plan = Plan {
            base: 0,
            dimensions: Vec::new(),
            list: None,
            boxes: Vec::new(),
            core_bytes: 0,
            bytes,
            granularity: WIDEST,
        };
        let mut outline = Outline {
            tables: Vec::new(),
            list: None,
            plan,
        };
        if bytes > 0 {
            if count > 1 {
                (outline.plan).push_stride(count as u64, layout.extent() as i64);
            }
            outline.descend(layout.nest());
        }
        Ok(outline)
    }

    /// Writes the places of a dimension.
    fn fill(&mut self, at: usize, entries: Entries<'_>) {
        if let Dimension::Table { places, .. } = &mut self.dimensions[at] {
            places.extend((0..entries.len()).map(|i| entries.at(i)));
        }
    }

    /// Forgets the entries of lists, which are on the device now.
    pub(crate) fn shed(&mut self) {
        for dimension in &mut self.dimensions {
            if let Dimension::Table { places, .. } = dimension {
                *places = Vec::new();
            }
        }
        if let Some(list) = &mut self.list {
            *list = List::without_entries(list.blocks);
        }
    }

    /// Makes the core a list of what is walked; runs that touch join.
    fn write_out(&mut self, walk: Walk<'_>) {
        let mut list = List::without_entries(walk.blocks);
        let (mut packed, mut end) = (0u64, None);
        walk.each(&mut |offset, length| {
            if end != Some(offset) {
                list.offsets.push(offset as i64);
                list.before.push(packed);
            }
            packed += length as u64;
            if list.blocks.is_none() {
                end = Some(offset.wrapping_add(length as isize));
            }
        });
        self.core_bytes = packed;
        if let (None, &[only]) = (list.blocks, &list.offsets[..]) {
            self.base += only;
        } else {
            self.list = Some(list);
        }
    }

    /// Joins what the canonical form could not, with the instances around it.
    fn merge(&mut self) {
        if self.list.is_none()
            && self.boxes.is_empty()
            && let Some(&Dimension::Stride { count, stride }) = self.dimensions.last()
            && stride == self.core_bytes as i64
        {
            self.core_bytes *= count;
            self.dimensions.pop();
            self.merge();
        }
    }

    fn push_stride(&mut self, count: u64, stride: i64) {
        if let Some(Dimension::Stride {
            count: outer,
            stride: far,
        }) = self.dimensions.last_mut()
            && i128::from(*far) == i128::from(count) * i128::from(stride)
        {
            (*outer, *far) = (*outer * count, stride);
            return;
        }
        self.dimensions.push(Dimension::Stride { count, stride });
    }

    fn granularity(&self) -> usize {
        let boxes = self.boxes.iter().map(PlanBox::bits);
        let mut bits = boxes.fold(self.core_bytes, |bits, each| bits | each);
        for dimension in &self.dimensions {
            bits |= match dimension {
                Dimension::Stride { stride, .. } => *stride as u64,
                Dimension::Table { places, .. } => {
                    places.iter().fold(0, |bits, &at| bits | at as u64)
                }
            };
        }
        if let Some(list) = &self.list {
            bits = list.offsets.iter().fold(bits, |bits, &at| bits | at as u64);
            bits = list.before.iter().fold(bits, |bits, &at| bits | at);
            bits |= list.blocks.map_or(0, |blocks| blocks.bits());
        }
        1 << bits.trailing_zeros().min(WIDEST.trailing_zeros())
    }

    /// Whether there are strides alone, no list.
    pub(crate) fn is_regular(&self) -> bool {
        let stride = |dimension: &Dimension| matches!(dimension, Dimension::Stride { .. });
        let one_block = self.list.is_none() && self.boxes.is_empty();
        one_block && self.dimensions.iter().all(stride)
    }

    /// Which kernel does it.
    pub fn shape(&self) -> Shape {
        if self.list.is_some() || !self.boxes.is_empty() {
            return Shape::General;
        }
        // Asked at each launch, so nothing is allocated here.
        let mut strides = [(0, 0); DIMENSIONS];
        for (place, dimension) in strides.iter_mut().zip(&self.dimensions) {
            match dimension {
                Dimension::Stride { count, stride } => *place = (*count, *stride),
                Dimension::Table { .. } => return Shape::General,
            }
        }
        let word = self.core_bytes;
        let strides = &strides[..self.dimensions.len().min(DIMENSIONS)];
        match *strides {
            [] => Shape::Contiguous,
            // Rows that are as short as a few words are no tiles.
            [.., (columns, adjacent), (rows, _)]
                if strides.len() <= 3
                    && adjacent.unsigned_abs() == word
                    && word.is_power_of_two()
                    && word as usize == self.granularity
                    && columns >= 8
                    && rows >= 8 =>
            {
                Shape::Transposed {
                    word: word as usize,
                }
            }
            _ if strides.len() <= 4 => Shape::Strided(strides.len()),
            _ => Shape::General,
        }
    }
}
