//! Cores of ragged rows: many rows of equal blocks at one distance, each of a length of its own
//! (triangles, trapezoids, bands). Their list has an entry for each row, not for each block.
//!
//! ```text
//! layout   a.......b.......c.......d      row of 4 blocks     entry: offset of a, 0 before it
//!           e.......f.......g                      3                 offset of e, 4 blocks before
//!            h.......i                             2                 offset of h, 7 blocks before
//! packed   a b c d e f g h i
//! ```
//!
//! A packed byte's row is found as a run is. Inside of the row, its block is found by a division:
//! the place grows with each block by the distance, less the block's length.
//!
//! # Invariants
//! 1. A row has less than 2^31 packed bytes; the bytes by which places grow with a block have 32
//!    bits.

use super::arguments::{Divisor, LONG};
use super::boxes::KernelBox;
use osier_datatype::Nest;

/// Blocks of a row on average, at least: an entry of a row costs more than one of a run, by the
/// division.
const LEAST_BLOCKS: usize = 4;

/// The blocks of all rows of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBlocks {
    /// Bytes of a block.
    pub bytes: u64,
    /// Bytes from a block to the next one of its row.
    pub distance: i64,
}

impl RowBlocks {
    /// Those of a nest's core; none, if it has rows of several kinds, or few blocks in a row, or
    /// blocks so long that each is better found by itself.
    pub(crate) fn of_core(nest: Nest<'_>) -> Option<RowBlocks> {
        if nest.core_runs() / LEAST_BLOCKS < nest.core_rows() {
            return None;
        }
        let (mut bytes, mut distance, mut alike) = (None, None, true);
        nest.for_each_core_row(|_, length, apart, blocks| {
            alike &= *bytes.get_or_insert(length) == length;
            // One block is a row at any distance.
            alike &= blocks == 1 || *distance.get_or_insert(apart) == apart;
            let row = length.checked_mul(blocks);
            alike &= row.is_some_and(|row| i32::try_from(row).is_ok());
        });
        let blocks = RowBlocks {
            bytes: bytes? as u64,
            distance: distance? as i64,
        };
        let takes = alike && blocks.bytes < LONG && i32::try_from(blocks.step()).is_ok();
        takes.then_some(blocks)
    }

    /// Bytes by which places grow with each block, besides its own.
    fn step(&self) -> i64 {
        self.distance.wrapping_sub(self.bytes as i64)
    }

    /// Where a packed byte of a row is, behind the row's first.
    pub(crate) fn place(&self, byte: u64) -> i64 {
        let block = (byte / self.bytes) as i64;
        (byte as i64).wrapping_add(block.wrapping_mul(self.step()))
    }

    /// All numbers that a word's width must divide.
    pub(crate) fn bits(&self) -> u64 {
        self.bytes | self.distance as u64
    }

    /// A row without an end, for words of this many bytes: its place and length are in the list.
    pub(crate) fn kernel_box(&self, width: usize) -> KernelBox {
        let words = self.bytes / width as u64;
        // Numbers of blocks are below 2^31 (invariant 1): further quotients are 0.
        let none = Divisor::new(1 << 31);
        let divisors = [Divisor::new(words), none, none];
        KernelBox {
            base: 0,
            start: 0,
            block: words as u32,
            magic: divisors.map(|divisor| divisor.magic),
            shift: divisors.map(|divisor| divisor.shift),
            step: [self.step() as i32, 0, 0],
            unused: 0,
        }
    }
}
