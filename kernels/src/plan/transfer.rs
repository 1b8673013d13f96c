//! From one layout to another in one launch, without packed bytes between.
//!
//! Both plans number the same packed stream; a warp takes a chunk of it and
//! finds its place on both sides. A side of one run is better served by the
//! kernels that pack and unpack.
//!
//! # Invariants
//! 1. A word's width divides both granularities and both addresses, so that it is
//!    whole on both sides.

use super::arguments::{Nest, Tables, chunks};
use super::period::PeriodArgument;
use super::transpose::{Transpose, exchanged};
use super::{Plan, WIDEST};
use std::ops::Range;

/// `osier_side`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Side {
    /// Address of the layout's origin, base included.
    pub layout: u64,
    /// Where packed words are.
    pub nest: Nest,
}

/// `osier_copy`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyArgument {
    /// Where words are read.
    pub from: Side,
    /// Where they are written.
    pub to: Side,
    /// First packed byte.
    pub start: u64,
    /// Behind the last packed byte.
    pub end: u64,
    /// Whether word numbers need 64 bits.
    pub wide: u32,
    /// Words that a warp takes at once.
    pub chunk: u32,
}

/// A plan, its tables at an address, and its origin at another.
#[derive(Debug, Clone, Copy)]
pub struct PlacedPlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its tables.
    pub tables: &'a Tables,
    /// Where these are.
    pub tables_at: u64,
    /// The layout's origin.
    pub origin: u64,
}

impl<'a> PlacedPlan<'a> {
    /// The same for an origin elsewhere.
    pub fn moved_to(self, origin: u64) -> PlacedPlan<'a> {
        PlacedPlan { origin, ..self }
    }

    /// The origin, base included.
    pub fn layout(&self) -> u64 {
        self.origin.wrapping_add_signed(self.plan.base)
    }

    /// The side of a launch with words of `width` bytes.
    pub fn side(&self, width: usize) -> Side {
        Side {
            layout: self.layout(),
            nest: self.plan.nest(width, (self.tables, self.tables_at)),
        }
    }
}

/// The widest word that suits all of these numbers.
pub(crate) fn widest(bits: u64) -> usize {
    1 << bits.trailing_zeros().min(WIDEST.trailing_zeros())
}

/// The argument of one launch from layout to layout.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy)]
pub enum TransferArgument {
    /// For the kernel that finds both sides chunk by chunk.
    Layouts(CopyArgument),
    /// For the tile kernel.
    Transposed(Transpose),
    /// For the kernel of common periods.
    Periods(PeriodArgument),
}

/// One launch from layout to layout.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// The kernel's argument.
    pub argument: TransferArgument,
    /// Bytes of a word.
    pub width: usize,
    /// Thread blocks with work to do; any smaller grid does it, too.
    pub blocks: u64,
}

impl Transfer {
    /// The launch that copies the packed bytes `range`; none if that is nothing.
    pub fn new(from: PlacedPlan<'_>, to: PlacedPlan<'_>, range: Range<u64>) -> Option<Transfer> {
        if range.is_empty() {
            return None;
        }
        let all = |side: &PlacedPlan<'_>| range == (0..side.plan.bytes);
        if all(&from)
            && all(&to)
            && let Some([read, written]) = exchanged(from.plan, to.plan)
        {
            let tables = [&read, &written].map(Tables::of_dimensions);
            let place = |plan, tables, origin| PlacedPlan {
                plan,
                tables,
                tables_at: 0,
                origin,
            };
            let from = place(&read, &tables[0], from.origin);
            let to = place(&written, &tables[1], to.origin);
            return Some(Transfer::chunk_by_chunk(from, to, range));
        }
        let width = width(&from, &to);
        if let Some(tiles) = Transpose::between(from, to, width, &range) {
            return Some(Transfer {
                argument: TransferArgument::Transposed(tiles),
                width,
                blocks: tiles.tiles.into(),
            });
        }
        if let Some((argument, blocks)) = PeriodArgument::between(&from, &to, &range) {
            return Some(Transfer {
                argument: TransferArgument::Periods(argument),
                width,
                blocks,
            });
        }
        Some(Transfer::chunk_by_chunk(from, to, range))
    }

    fn chunk_by_chunk(from: PlacedPlan<'_>, to: PlacedPlan<'_>, range: Range<u64>) -> Transfer {
        let width = width(&from, &to);
        let words = |bytes: u64| bytes / width as u64;
        let (chunk, blocks) = chunks(range.end - range.start, width);
        Transfer {
            argument: TransferArgument::Layouts(CopyArgument {
                from: from.side(width),
                to: to.side(width),
                start: range.start,
                end: range.end,
                wide: u32::from(words(range.end) >= 1 << 31),
                chunk,
            }),
            width,
            blocks,
        }
    }
}

/// The widest word that suits both sides.
fn width(from: &PlacedPlan<'_>, to: &PlacedPlan<'_>) -> usize {
    let addresses = from.layout() | to.layout();
    widest(addresses | (from.plan.granularity | to.plan.granularity) as u64)
}
