//! The arguments of the kernels, field by field as in `kernels/cuda/*.cuh`, and
//! the tables behind them.
//!
//! # Invariants
//! 1. A word's width divides the plan's granularity, both addresses, and the
//!    distance between packed addresses and packed numbers.
//!    Kernels that shift words need none of this.
//! 2. Quotients by multiplication are used for word numbers below 2^31 only.

use super::transfer::widest;
use super::{DIMENSIONS, Dimension, Plan, Shape};
use std::ops::Range;

/// Threads of a thread block.
pub const THREADS: u32 = 256;

/// Words that a thread has under way.
pub const WORDS_PER_THREAD: u64 = 4;

/// Bytes of a word that is shifted.
pub const FUNNEL: usize = 8;

/// Such words that a thread has under way.
const UNITS_PER_THREAD: u64 = 2;

/// `osier_divisor`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Divisor {
    /// What is divided by.
    pub value: u64,
    /// For quotients by multiplication.
    pub magic: u32,
    /// The same.
    pub shift: u32,
}

impl Divisor {
    /// Prepares divisions by `value`, which is not 0.
    pub fn new(value: u64) -> Divisor {
        // Larger divisors meet 64-bit numbers only, or none that reaches them.
        let small = value.min(1 << 31);
        let shift = small.next_power_of_two().trailing_zeros();
        let magic = (((1u64 << shift) - small) << 32) / small + 1;
        Divisor {
            value,
            magic: magic as u32,
            shift,
        }
    }

    /// As the kernels divide.
    pub fn quotient(&self, n: u64, wide: bool) -> u64 {
        if wide {
            return n / self.value;
        }
        let n = n as u32;
        let high = ((u64::from(n) * u64::from(self.magic)) >> 32) as u32;
        u64::from(high.wrapping_add(n) >> self.shift)
    }
}

/// `osier_range`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    /// Address of the layout's origin, base included.
    pub layout: u64,
    /// Address of packed byte `start`.
    pub packed: u64,
    /// First packed byte.
    pub start: u64,
    /// Behind the last packed byte.
    pub end: u64,
    /// Whether word numbers need 64 bits.
    pub wide: u32,
    /// Nothing.
    pub unused: u32,
}

/// `osier_level`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct StridedLevel {
    /// Iterations.
    pub count: Divisor,
    /// Bytes between them.
    pub stride: i64,
}

/// `osier_strided`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Strided {
    /// What to move.
    pub range: Span,
    /// Words of a block.
    pub block: Divisor,
    /// Innermost first.
    pub level: [StridedLevel; 4],
}

/// `osier_dimension`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GeneralDimension {
    /// Iterations.
    pub count: Divisor,
    /// Bytes between them, without a table.
    pub stride: i64,
    /// Address of the table, or 0.
    pub table: u64,
    /// Whether its entries have 64 bits.
    pub wide: u32,
    /// Nothing.
    pub unused: u32,
}

/// `osier_list`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GeneralList {
    /// Address of the offsets, or 0.
    pub offsets: u64,
    /// Address of the packed bytes before each run.
    pub before: u64,
    /// Address of the hints.
    pub hints: u64,
    /// Whether offsets have 64 bits.
    pub wide_offsets: u32,
    /// Whether packed bytes before have 64 bits.
    pub wide_before: u32,
    /// log2 of the packed bytes between hints.
    pub shift: u32,
    /// Entries.
    pub runs: u32,
}

/// `osier_nest`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Nest {
    /// Words of a core.
    pub core: Divisor,
    /// The core's runs.
    pub list: GeneralList,
    /// Dimensions used.
    pub dimensions: u32,
    /// Nothing.
    pub unused: u32,
    /// Innermost first.
    pub dimension: [GeneralDimension; DIMENSIONS],
}

/// `osier_general`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct General {
    /// What to move.
    pub range: Span,
    /// Where it is.
    pub nest: Nest,
}

/// `osier_transpose`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Transpose {
    /// What to move: whole words.
    pub range: Span,
    /// Iterations of the inner loop.
    pub rows: u64,
    /// Iterations of the loop around it.
    pub columns: u64,
    /// Bytes between iterations of the inner loop.
    pub row_stride: i64,
    /// Iterations of a loop around both.
    pub planes: u64,
    /// Bytes between its iterations.
    pub plane_stride: i64,
}

/// The argument of one launch; lives on the stack until the driver has copied
/// it, so a box would cost more than the room.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    /// One run of so many bytes at this offset from the layout's address.
    Contiguous {
        /// Bytes behind the origin and base.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// For so many levels.
    Strided(usize, Strided),
    /// For the tile kernel.
    Transposed(Transpose),
    /// For the general kernel.
    General(General),
    /// For the kernels that shift; with strides alone, or lists.
    Funnel(bool, General),
}

/// One launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// The kernel's argument.
    pub argument: Argument,
    /// Bytes of a word.
    pub width: usize,
    /// Thread blocks with work to do; any smaller grid does it, too.
    pub blocks: u64,
}

/// Lists of a plan as one block of bytes, and where they are in it.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// For the device, at an address that 8 divides.
    pub bytes: Vec<u8>,
    /// Per dimension, outermost first: where, and whether 64 bits.
    places: Vec<Option<(u64, bool)>>,
    /// Relative addresses.
    pub(crate) list: Option<GeneralList>,
}

impl Tables {
    /// Writes the lists of a plan as narrow as they fit.
    pub fn new(plan: &Plan) -> Tables {
        let mut tables = Tables::default();
        for dimension in &plan.dimensions {
            let place = match dimension {
                Dimension::Stride { .. } => None,
                Dimension::Table { places, .. } => Some(tables.push_signed(places)),
            };
            tables.places.push(place);
        }
        if let Some(list) = &plan.list {
            let (offsets, wide_offsets) = tables.push_signed(&list.offsets);
            let wide_before = u32::try_from(plan.core_bytes).is_err();
            let before = tables.start();
            for &bytes in &list.before {
                match wide_before {
                    true => tables.bytes.extend(bytes.to_ne_bytes()),
                    false => tables.bytes.extend((bytes as u32).to_ne_bytes()),
                }
            }
            let runs = list.offsets.len() as u64;
            let shift = Tables::shift(plan.core_bytes, runs);
            let hints = tables.start();
            let last = plan.core_bytes.div_ceil(1 << shift);
            let mut run = 0;
            for hint in 0..=last {
                while run + 1 < list.before.len() && list.before[run + 1] <= hint << shift {
                    run += 1;
                }
                tables.bytes.extend((run as u32).to_ne_bytes());
            }
            tables.list = Some(GeneralList {
                offsets,
                before,
                hints,
                wide_offsets: wide_offsets.into(),
                wide_before: wide_before.into(),
                shift,
                runs: runs as u32,
            });
        }
        tables
    }

    /// log2 of the packed bytes between hints: about 4 runs, so that hints are a
    /// small part of the list; a core of few bytes has at least two hints.
    pub(crate) fn shift(core_bytes: u64, runs: u64) -> u32 {
        (core_bytes * 4 / runs).next_power_of_two().trailing_zeros()
    }

    /// Says where the table of a dimension is, and whether its entries have 64 bits.
    pub(crate) fn set_place(&mut self, dimension: usize, at: u64, wide: bool) {
        self.places[dimension] = Some((at, wide));
    }

    /// Where the next table begins.
    fn start(&mut self) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes.len() as u64
    }

    fn push_signed(&mut self, values: &[i64]) -> (u64, bool) {
        let start = self.start();
        let wide = values.iter().any(|&value| i32::try_from(value).is_err());
        for &value in values {
            match wide {
                true => self.bytes.extend(value.to_ne_bytes()),
                false => self.bytes.extend((value as i32).to_ne_bytes()),
            }
        }
        (start, wide)
    }
}

impl Launch {
    /// The launch that moves one run of bytes by the kernels for strides.
    pub fn of_run(layout: u64, packed: u64, bytes: u64) -> Launch {
        let width = widest(layout | packed);
        let words = bytes / width as u64;
        let mut argument = Strided {
            range: Span {
                layout,
                packed,
                start: 0,
                end: bytes,
                wide: u32::from(words >= 1 << 31),
                unused: 0,
            },
            // The ragged end belongs to it.
            block: Divisor::new(words + 1),
            ..Strided::default()
        };
        argument.level[0].count = Divisor::new(1);
        Launch {
            argument: Argument::Strided(1, argument),
            width,
            blocks: (words.max(1)).div_ceil(u64::from(THREADS) * WORDS_PER_THREAD),
        }
    }
}

impl Plan {
    /// The launch that moves the packed bytes `range`, between the layout whose
    /// origin is at address `origin` and packed bytes at address `packed`, which
    /// has the first of them. The plan's tables lie at address `tables`.
    ///
    /// `None` if there is nothing to do.
    pub fn launch(
        &self,
        tables: (&Tables, u64),
        origin: u64,
        packed: u64,
        range: Range<u64>,
    ) -> Option<Launch> {
        if range.is_empty() {
            return None;
        }
        let layout = origin.wrapping_add_signed(self.base);
        let width = widest(layout | packed.wrapping_sub(range.start) | self.granularity as u64);
        let words = |bytes: u64| bytes / width as u64;
        let mut span = Span {
            layout,
            packed,
            start: range.start,
            end: range.end,
            wide: u32::from(words(range.end) >= 1 << 31),
            unused: 0,
        };
        if let Some(regular) = self.funnel(width, tables.0, range.end - range.start) {
            span.wide = u32::from(range.end >= 1 << 31);
            let units = (range.end - range.start).div_ceil(FUNNEL as u64);
            return Some(Launch {
                argument: Argument::Funnel(
                    regular,
                    General {
                        range: span,
                        nest: self.nest(1, tables),
                    },
                ),
                width: FUNNEL,
                blocks: units.div_ceil(u64::from(THREADS) * UNITS_PER_THREAD),
            });
        }
        let count = words(range.end).saturating_sub(words(range.start)).max(1);
        let blocks = count.div_ceil(u64::from(THREADS) * WORDS_PER_THREAD);
        let argument = match self.shape() {
            Shape::Contiguous => Argument::Contiguous {
                offset: range.start,
                bytes: range.end - range.start,
            },
            Shape::Transposed { word }
                if width == word
                    && range.start.is_multiple_of(word as u64)
                    && range.end.is_multiple_of(word as u64) =>
            {
                let argument = self.transpose(span);
                return Some(Launch {
                    blocks: argument.rows.div_ceil(32)
                        * argument.columns.div_ceil(32)
                        * argument.planes,
                    argument: Argument::Transposed(argument),
                    width,
                });
            }
            Shape::Strided(_) | Shape::Transposed { .. } => {
                Argument::Strided(self.dimensions.len(), self.strided(span, width))
            }
            Shape::General => Argument::General(General {
                range: span,
                nest: self.nest(width, tables),
            }),
        };
        Some(Launch {
            argument,
            width,
            blocks,
        })
    }

    /// Whether words of `width` bytes are so narrow, and runs so long, that shifting
    /// wider ones pays, and if so, whether there are strides alone.
    fn funnel(&self, width: usize, tables: &Tables, bytes: u64) -> Option<bool> {
        if width > 2 || bytes < 2 * FUNNEL as u64 {
            return None;
        }
        let shape = self.shape();
        if shape == Shape::Contiguous {
            return None;
        }
        // Between hints there are four runs of average length, or up to eight.
        let run = (tables.list).map_or(self.core_bytes, |list| (1 << list.shift) / 4);
        let least = if width == 1 { FUNNEL } else { 4 * FUNNEL } as u64;
        (run >= least).then_some(shape != Shape::General || self.is_regular())
    }

    fn strides(&self) -> impl Iterator<Item = (u64, i64)> {
        self.dimensions
            .iter()
            .rev()
            .map(|dimension| match dimension {
                Dimension::Stride { count, stride } => (*count, *stride),
                Dimension::Table { count, .. } => (*count, 0),
            })
    }

    fn strided(&self, range: Span, width: usize) -> Strided {
        let mut argument = Strided {
            range,
            block: Divisor::new(self.core_bytes / width as u64),
            ..Strided::default()
        };
        for (level, (count, stride)) in argument.level.iter_mut().zip(self.strides()) {
            *level = StridedLevel {
                count: Divisor::new(count),
                stride,
            };
        }
        argument
    }

    fn transpose(&self, range: Span) -> Transpose {
        let mut strides = self.strides();
        let (rows, row_stride) = strides.next().unwrap_or((1, 0));
        let (columns, _) = strides.next().unwrap_or((1, 0));
        let (planes, plane_stride) = strides.next().unwrap_or((1, 0));
        Transpose {
            range,
            rows,
            columns,
            row_stride,
            planes,
            plane_stride,
        }
    }

    /// Where words of `width` bytes are; the plan's tables lie at an address.
    pub fn nest(&self, width: usize, (tables, at): (&Tables, u64)) -> Nest {
        let mut argument = Nest {
            core: Divisor::new(self.core_bytes / width as u64),
            dimensions: self.dimensions.len() as u32,
            ..Nest::default()
        };
        if let Some(list) = tables.list {
            argument.list = GeneralList {
                offsets: at + list.offsets,
                before: at + list.before,
                hints: at + list.hints,
                ..list
            };
        }
        let places = tables.places.iter().rev();
        for ((to, (count, stride)), place) in argument
            .dimension
            .iter_mut()
            .zip(self.strides())
            .zip(places)
        {
            *to = GeneralDimension {
                count: Divisor::new(count),
                stride,
                table: place.map_or(0, |(start, _)| at + start),
                wide: place.is_some_and(|(_, wide)| wide).into(),
                unused: 0,
            };
        }
        argument
    }
}
