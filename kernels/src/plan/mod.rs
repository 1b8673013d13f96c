//! What to copy, from a committed layout: pure, the same for all devices.
//!
//! ```text
//! Layout x count --Plan--> dimensions over a core     (this file)
//!                            |-- tables: one block of bytes for the device
//!                            |-- arguments of one kernel, for one range  (arguments.rs)
//!                            `-- two plans: from layout to layout        (transfer.rs)
//!                                           left = left op right         (reduction.rs)
//! ```
//!
//! A packed byte's place is found by division: its number in units of the core
//! gives one index per dimension. A dimension is regular (a stride) or a table of
//! places; the core is one block, or a list of runs of any length with the packed
//! bytes before each and hints into it. So any type tree is one kernel, whose
//! threads all do the same work, however many runs there are.
//!
//! | layout | plan | list bytes |
//! |---|---|---|
//! | one run | [`Shape::Contiguous`] | none |
//! | blocks under up to 4 strides | [`Shape::Strided`] | none |
//! | the same, one word a block, adjacent along the outer loop | [`Shape::Transposed`] | none |
//! | equal blocks at listed places, nested as one likes | [`Shape::General`] | 4 or 8 per place |
//! | all else | [`Shape::General`] | 8 to 16 per run of one core, and 4 per hint |
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
//! here a thread takes a word of the stream.

pub mod arguments;
pub mod interpret;
pub mod reduction;
#[cfg(test)]
mod tests;
pub mod transfer;

use osier_datatype::{Core, Layout, Nest, TypeError};

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
    Table(Vec<i64>),
}

impl Dimension {
    /// Iterations.
    pub fn count(&self) -> u64 {
        match self {
            Dimension::Stride { count, .. } => *count,
            Dimension::Table(places) => places.len() as u64,
        }
    }
}

/// Runs of any length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// Where each run is, in bytes.
    pub offsets: Vec<i64>,
    /// Packed bytes before each.
    pub before: Vec<u64>,
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
    /// The core's runs; none if it is one block.
    pub list: Option<List>,
    /// Packed bytes of the core.
    pub core_bytes: u64,
    /// Packed bytes of all.
    pub bytes: u64,
    /// A power of two, at most [`WIDEST`]: invariant 2. The base is left out: it
    /// is part of the address.
    pub granularity: usize,
}

impl Plan {
    /// Plans `count` instances.
    ///
    /// # Errors
    /// More than `isize::MAX` bytes.
    pub fn new(layout: &Layout, count: usize) -> Result<Plan, TypeError> {
        let bytes = layout.pack_size(count)? as u64;
        let mut plan = Plan {
            base: 0,
            dimensions: Vec::new(),
            list: None,
            core_bytes: 0,
            bytes,
            granularity: WIDEST,
        };
        if bytes == 0 {
            return Ok(plan);
        }
        if count > 1 {
            plan.push_stride(count as u64, layout.extent() as i64);
        }
        plan.descend(layout.nest());
        plan.merge();
        plan.granularity = plan.granularity();
        Ok(plan)
    }

    /// Takes over one nest, and those inside of it.
    fn descend(&mut self, nest: Nest<'_>) {
        let core = nest.core();
        let places = match core {
            Core::List(runs) => usize::from(runs.equal_length().is_some()),
            Core::Each(_, inner) => 1 + inner.levels().len(),
            _ => 0,
        };
        // What does not fit is written out; instances and this nest's levels must.
        if self.dimensions.len() + nest.levels().len() + places > DIMENSIONS {
            return self.flatten(nest);
        }
        for level in nest.levels() {
            self.push_stride(level.count as u64, level.stride as i64);
        }
        match core {
            Core::Block => {
                self.base += nest.base() as i64;
                self.core_bytes = nest.core_bytes() as u64;
            }
            Core::List(runs) if runs.equal_length().is_some() => {
                self.base += nest.base() as i64;
                let places = (0..runs.len()).map(|i| runs.at(i).0 as i64).collect();
                self.dimensions.push(Dimension::Table(places));
                self.core_bytes = runs.at(0).1 as u64;
            }
            Core::Each(places, inner) => {
                self.base += nest.base() as i64;
                let places = (0..places.len()).map(|i| places.at(i) as i64).collect();
                self.dimensions.push(Dimension::Table(places));
                self.descend(inner);
            }
            _ => self.write_out(|each| nest.for_each_core_run(each)),
        }
    }

    /// Writes a nest out, levels and all.
    fn flatten(&mut self, nest: Nest<'_>) {
        let levels = nest.levels();
        self.write_out(|each| {
            let total: usize = levels.iter().map(|level| level.count).product();
            for number in 0..total {
                let (mut rest, mut at) = (number, 0isize);
                for level in levels.iter().rev() {
                    at =
                        at.wrapping_add(((rest % level.count) as isize).wrapping_mul(level.stride));
                    rest /= level.count;
                }
                nest.for_each_core_run(|offset, length| each(at.wrapping_add(offset), length));
            }
        });
    }

    /// Makes the core a list of the runs that `walk` tells; touching ones join.
    fn write_out(&mut self, walk: impl FnOnce(&mut dyn FnMut(isize, usize))) {
        let mut list = List::default();
        let (mut packed, mut end) = (0u64, None);
        walk(&mut |offset, length| {
            if end != Some(offset) {
                list.offsets.push(offset as i64);
                list.before.push(packed);
            }
            packed += length as u64;
            end = Some(offset.wrapping_add(length as isize));
        });
        self.core_bytes = packed;
        if let [only] = list.offsets[..] {
            self.base += only;
        } else {
            self.list = Some(list);
        }
    }

    /// Joins what the canonical form could not, with the instances around it.
    fn merge(&mut self) {
        if self.list.is_none()
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
        let mut bits = self.core_bytes;
        for dimension in &self.dimensions {
            bits |= match dimension {
                Dimension::Stride { stride, .. } => *stride as u64,
                Dimension::Table(places) => places.iter().fold(0, |bits, &at| bits | at as u64),
            };
        }
        if let Some(list) = &self.list {
            bits = list.offsets.iter().fold(bits, |bits, &at| bits | at as u64);
            bits = list.before.iter().fold(bits, |bits, &at| bits | at);
        }
        1 << bits.trailing_zeros().min(WIDEST.trailing_zeros())
    }

    /// Which kernel does it.
    pub fn shape(&self) -> Shape {
        if self.list.is_some() {
            return Shape::General;
        }
        let mut strides = Vec::with_capacity(self.dimensions.len());
        for dimension in &self.dimensions {
            match dimension {
                Dimension::Stride { count, stride } => strides.push((*count, *stride)),
                Dimension::Table(_) => return Shape::General,
            }
        }
        let word = self.core_bytes;
        match strides[..] {
            [] => Shape::Contiguous,
            // Rows that are as short as a few words are no tiles.
            [.., (columns, adjacent), (rows, _)]
                if strides.len() <= 3
                    && adjacent == word as i64
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
