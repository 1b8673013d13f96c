//! The arguments of the kernels, field by field as in `kernels/cuda/*.cuh`, and
//! the tables behind them.
//!
//! # Invariants
//! 1. A word's width divides the plan's granularity, both addresses, and the
//!    distance between packed addresses and packed numbers.
//! 2. Word numbers are below 2^63, and below 2^31 where a launch is not wide.

use super::boxes::{BOXES, KernelBox};
use super::period::Period;
use super::rows::RowBlocks;
use super::transfer::widest;
use super::transpose::Transpose;
use super::{DIMENSIONS, Dimension, List, Plan, Shape};
use std::ops::Range;

/// Threads of a thread block.
pub const THREADS: u32 = 256;

/// Words that a thread has under way.
pub const WORDS_PER_THREAD: u64 = 4;

/// Bytes that a warp takes at once: fewer of small messages, so that all warps of a
/// device have some.
const CHUNK: [u64; 2] = [512, 4096];
/// The most of packs of wider words, whose warps ask fewer questions for a chunk.
const PACK_CHUNK: u64 = 2048;
const CHUNKS: u64 = 8192;

/// Runs of so many bytes are found one by one, others word by word.
pub(crate) const LONG: u64 = 512;

/// Units of a core that is written out word by word, at most.
const MAP: u64 = 4096;

/// Units of the next core behind it: a thread takes 8 bytes at once.
const AHEAD: u64 = 7;

/// Words that a row of blocks has at least, if the kernels are to take it as one.
const ROW: u64 = 128;

/// `osier_divisor`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Divisor {
    /// What is divided by.
    pub value: u64,
    /// For quotients of numbers below 2^63.
    pub wide_magic: u64,
    /// For those of numbers below 2^31.
    pub magic: u32,
    /// The same.
    pub shift: u32,
    /// Of numbers below 2^63.
    pub wide_shift: u32,
    /// Nothing.
    pub unused: u32,
}

impl Divisor {
    /// Prepares divisions by `value`, which is not 0 and at most 2^63.
    pub fn new(value: u64) -> Divisor {
        let wide_shift = value.next_power_of_two().trailing_zeros();
        let rest = u128::from((1u64 << wide_shift) - value);
        let wide_magic = (rest << 64) / u128::from(value) + 1;
        // Larger divisors meet 64-bit numbers only, or none that reaches them.
        let small = value.min(1 << 31);
        let shift = small.next_power_of_two().trailing_zeros();
        let magic = (((1u64 << shift) - small) << 32) / small + 1;
        Divisor {
            value,
            wide_magic: wide_magic as u64,
            magic: magic as u32,
            shift,
            wide_shift,
            unused: 0,
        }
    }

    /// As the kernels divide.
    pub fn quotient(&self, n: u64, wide: bool) -> u64 {
        if wide {
            let high = (u128::from(n) * u128::from(self.wide_magic)) >> 64;
            return (high as u64).wrapping_add(n) >> self.wide_shift;
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
    /// Words that a warp takes at once.
    pub chunk: u32,
}

impl Span {
    /// Chunks of its whole words of `width` bytes, of which there are fewer than 2^32.
    fn chunks(&self, width: u64) -> u32 {
        let words = (self.end / width).saturating_sub(self.start.div_ceil(width));
        words.div_ceil(self.chunk.into()) as u32
    }
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
    /// Address of the packed bytes before each entry.
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
    /// The core's runs or rows.
    pub list: GeneralList,
    /// Address of the core's map, or 0.
    pub map: u64,
    /// log2 of the words in a unit of the map.
    pub map_shift: u32,
    /// Dimensions used.
    pub dimensions: u32,
    /// Innermost first.
    pub dimension: [GeneralDimension; DIMENSIONS],
    /// Boxes of the core, or none.
    pub boxes: u32,
    /// Whether the list is one of rows, whose blocks the first box has.
    pub rows: u32,
    /// The boxes.
    pub box_of: [KernelBox; BOXES],
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

/// `osier_runs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Runs {
    /// What to move.
    pub range: Span,
    /// Where the runs are.
    pub list: GeneralList,
    /// Chunks of the range.
    pub chunks: u32,
    /// Nothing.
    pub unused: u32,
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
    /// For the tile kernel, as it packs.
    Transposed(Transpose),
    /// For the kernel of long listed runs.
    Runs(Runs),
    /// For the general kernel.
    General(General),
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
    map: Option<Map>,
    period: Option<Period>,
}

/// A core that is written out: where each unit of it is, whatever loops and lists it is
/// made of.
#[derive(Debug, Clone, Copy)]
struct Map {
    /// Where in the tables.
    at: u64,
    /// Bytes of a unit.
    unit: usize,
    /// Dimensions of the plan that are inside, and the packed bytes of them.
    dimensions: usize,
    core_bytes: u64,
}

impl Map {
    /// What is written out of a plan: the core, and as many loops around it as fit. Only
    /// short runs want it, and packs of so many bytes that the table does not matter.
    fn of(plan: &Plan) -> Option<Map> {
        let unit = plan.granularity as u64;
        // The base is part of the address, which is a multiple of 16 without it as a rule.
        let narrow = widest(unit | plan.base as u64) <= 2;
        let run_bytes = match &plan.list {
            None => plan.core_bytes,
            Some(List {
                blocks: Some(blocks),
                ..
            }) => blocks.bytes,
            Some(list) => plan.core_bytes / (list.offsets.len() as u64).max(1),
        };
        if run_bytes >= LONG || !plan.boxes.is_empty() {
            return None;
        }
        // Rows of blocks are as quick, if they are long; so are kernels for strides, if
        // words are wide.
        let rows = plan.dimensions.last().is_some_and(|dimension| {
            let words = dimension.count() * plan.core_bytes / unit;
            match (narrow, dimension) {
                (false, _) => words >= ROW,
                (true, Dimension::Stride { .. }) => words >= 4 * ROW && plan.core_bytes >= 8,
                (true, Dimension::Table { .. }) => false,
            }
        });
        let strides = !narrow && plan.is_regular() && plan.dimensions.len() <= 4;
        if plan.list.is_none() && (rows || strides || plan.dimensions.is_empty()) {
            return None;
        }
        let (mut dimensions, mut core_bytes) = (0, plan.core_bytes);
        for dimension in plan.dimensions.iter().rev() {
            if let Dimension::Table { places, .. } = dimension
                && places.is_empty()
            {
                break;
            }
            let bytes = core_bytes.saturating_mul(dimension.count());
            if bytes / unit > MAP {
                break;
            }
            (dimensions, core_bytes) = (dimensions + 1, bytes);
        }
        let units = core_bytes / unit;
        let map = Map {
            at: 0,
            unit: plan.granularity,
            dimensions,
            core_bytes,
        };
        (units <= MAP && plan.bytes >= 32 * units).then_some(map)
    }

    /// Where each unit of the core is; none if that does not fit 32 bits.
    fn offsets(&self, plan: &Plan) -> Option<Vec<i32>> {
        let unit = self.unit as u64;
        let inner = &plan.dimensions[plan.dimensions.len() - self.dimensions..];
        let around = plan.dimensions.iter().rev().nth(self.dimensions);
        let next = match around {
            Some(Dimension::Stride { stride, .. }) => *stride,
            _ => 0,
        };
        let place = |number: u64| {
            let byte = number * unit;
            let (core, mut rest) = (byte % plan.core_bytes, byte / plan.core_bytes);
            let mut offset = match &plan.list {
                None => core as i64,
                Some(list) => list.place(core),
            };
            for dimension in inner.iter().rev() {
                let (index, outer) = (rest % dimension.count(), rest / dimension.count());
                offset += match dimension {
                    Dimension::Stride { stride, .. } => index as i64 * stride,
                    Dimension::Table { places, .. } => places[index as usize],
                };
                rest = outer;
            }
            i128::from(offset) + i128::from(rest) * i128::from(next)
        };
        (0..self.core_bytes / unit + AHEAD)
            .map(|number| i32::try_from(place(number)).ok())
            .collect()
    }
}

impl Tables {
    /// Writes the lists of a plan as narrow as they fit.
    pub fn new(plan: &Plan) -> Tables {
        let mut tables = Tables::of_dimensions(plan);
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
        if let Some(map) = Map::of(plan)
            && let Some(offsets) = map.offsets(plan)
        {
            let at = tables.start();
            let bytes = offsets.iter().flat_map(|offset| offset.to_ne_bytes());
            tables.bytes.extend(bytes);
            tables.map = Some(Map { at, ..map });
        }
        tables.period = Period::of(plan);
        tables
    }

    /// After how many bytes the layout comes again; none, if these are many.
    pub(crate) fn period(&self) -> Option<&Period> {
        self.period.as_ref()
    }

    /// The lists of the loops, without the core's.
    pub(crate) fn of_dimensions(plan: &Plan) -> Tables {
        let mut tables = Tables::default();
        for dimension in &plan.dimensions {
            let place = match dimension {
                Dimension::Stride { .. } => None,
                Dimension::Table { places, .. } => Some(tables.push_signed(places)),
            };
            tables.places.push(place);
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

/// Words of `width` bytes that a warp takes at once, of so many bytes in all, and thread
/// blocks that have some.
pub(crate) fn chunks(bytes: u64, width: usize) -> (u32, u64) {
    chunks_of(bytes, width, CHUNK[1])
}

/// The same of a pack.
fn pack_chunks(bytes: u64, width: usize) -> (u32, u64) {
    let most = if width > 2 { PACK_CHUNK } else { CHUNK[1] };
    chunks_of(bytes, width, most)
}

fn chunks_of(bytes: u64, width: usize, most: u64) -> (u32, u64) {
    let chunk = (bytes / CHUNKS).next_power_of_two();
    let chunk = chunk.clamp(CHUNK[0], most);
    let warps = u64::from(THREADS) / 32;
    let blocks = bytes.div_ceil(chunk).div_ceil(warps);
    ((chunk / width as u64) as u32, blocks)
}

impl Launch {
    /// The launch that moves one run of bytes by the kernels for strides.
    pub fn of_run(layout: u64, packed: u64, bytes: u64) -> Launch {
        let width = widest(layout | packed);
        let words = bytes / width as u64;
        let (chunk, chunks) = pack_chunks(bytes, width);
        let range = Span {
            layout,
            packed,
            start: 0,
            end: bytes,
            wide: u32::from(words >= 1 << 31),
            chunk,
        };
        // The ragged end belongs to it.
        let block = Divisor::new(words + 1);
        if width <= 2 {
            let nest = Nest {
                core: block,
                ..Nest::default()
            };
            return Launch {
                argument: Argument::General(General { range, nest }),
                width,
                blocks: chunks,
            };
        }
        let mut argument = Strided {
            range,
            block,
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
        let first_packed = packed.wrapping_sub(range.start);
        let width = widest(layout | first_packed | self.granularity as u64);
        let words = |bytes: u64| bytes / width as u64;
        let (chunk, chunks) = pack_chunks(range.end - range.start, width);
        let span = Span {
            layout,
            packed,
            start: range.start,
            end: range.end,
            wide: u32::from(words(range.end) >= 1 << 31),
            chunk,
        };
        if let Some(tiles) = Transpose::packing(self, layout, first_packed, width, &range) {
            return Some(Launch::of_tiles(tiles, width));
        }
        let count = words(range.end).saturating_sub(words(range.start)).max(1);
        let blocks = count.div_ceil(u64::from(THREADS) * WORDS_PER_THREAD);
        if let Some(list) = self.long_runs(width, &span, tables) {
            return Some(Launch {
                argument: Argument::Runs(Runs {
                    range: span,
                    list,
                    chunks: span.chunks(width as u64),
                    unused: 0,
                }),
                width,
                blocks: chunks,
            });
        }
        let argument = match self.shape() {
            Shape::Contiguous => Argument::Contiguous {
                offset: range.start,
                bytes: range.end - range.start,
            },
            Shape::Strided(_) | Shape::Transposed { .. } if !self.in_chunks(width, tables.0) => {
                Argument::Strided(self.dimensions.len(), self.strided(span, width))
            }
            _ => {
                let nest = self.nest(width, tables);
                return Some(Launch {
                    argument: Argument::General(General { range: span, nest }),
                    width,
                    blocks: chunks,
                });
            }
        };
        Some(Launch {
            argument,
            width,
            blocks,
        })
    }

    /// The list, if there is nothing around it and its runs are long ones of words that
    /// need no shifts: for the kernel of such runs, whose packed bytes have 32 bits.
    fn long_runs(
        &self,
        width: usize,
        span: &Span,
        (tables, at): (&Tables, u64),
    ) -> Option<GeneralList> {
        let list = tables.list.filter(|list| list.wide_before == 0)?;
        let long = self.core_bytes / u64::from(list.runs.max(1)) >= LONG;
        let runs = self.row_blocks().is_none() && self.boxes.is_empty() && tables.map.is_none();
        let plain = self.dimensions.is_empty() && runs;
        let fits = width > 2 && span.end <= u64::from(u32::MAX);
        (long && plain && fits).then(|| GeneralList {
            offsets: at + list.offsets,
            before: at + list.before,
            hints: at + list.hints,
            ..list
        })
    }

    /// What the rows of the core's list are made of.
    fn row_blocks(&self) -> Option<RowBlocks> {
        self.list.as_ref().and_then(|list| list.blocks)
    }

    /// Whether a layout of strides alone is better taken chunk by chunk: words are so
    /// narrow that wider ones pay, made by shifts or of several.
    fn in_chunks(&self, width: usize, tables: &Tables) -> bool {
        let row = self.dimensions.last().map_or(1, Dimension::count);
        let words = row.saturating_mul(self.core_bytes) / width as u64;
        width <= 2 && (tables.map.is_some() || words >= 4 * ROW)
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

    /// Where words of `width` bytes are; the plan's tables lie at an address.
    pub fn nest(&self, width: usize, (tables, at): (&Tables, u64)) -> Nest {
        let map = tables.map.filter(|map| map.unit >= width);
        let core_bytes = map.map_or(self.core_bytes, |map| map.core_bytes);
        let inside = map.map_or(0, |map| map.dimensions);
        let mut argument = Nest {
            core: Divisor::new(core_bytes / width as u64),
            dimensions: (self.dimensions.len() - inside) as u32,
            ..Nest::default()
        };
        argument.boxes = self.boxes.len() as u32;
        for (to, each) in argument.box_of.iter_mut().zip(&self.boxes) {
            *to = KernelBox::new(each, width);
        }
        match (map, tables.list) {
            (Some(map), _) => {
                argument.map = at + map.at;
                argument.map_shift = (map.unit / width).trailing_zeros();
            }
            (None, Some(list)) => {
                argument.list = GeneralList {
                    offsets: at + list.offsets,
                    before: at + list.before,
                    hints: at + list.hints,
                    ..list
                };
                if let Some(blocks) = self.row_blocks() {
                    argument.rows = 1;
                    argument.box_of[0] = blocks.kernel_box(width);
                }
            }
            (None, None) => {}
        }
        let places = tables.places.iter().rev();
        for ((to, (count, stride)), place) in argument
            .dimension
            .iter_mut()
            .zip(self.strides().skip(inside))
            .zip(places.skip(inside))
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
