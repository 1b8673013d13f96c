//! One rank's share of the matrix: blocks are filled, and the borders that they began with
//! are kept.
//!
//! # Invariants
//! 1. A block is filled once, by the rank that has it.
//! 2. Of a block only its left and top border are kept, a byte for each row and column.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::kernel;
use super::progress::Progress;
use super::scoring::Scoring;
use super::tiling::Tiling;

/// The share of one rank; its blocks may be filled by several threads.
#[derive(Debug)]
pub struct Matrix {
    /// Which rank has which block.
    pub tiling: Tiling,
    /// The rank.
    pub rank: usize,
    scoring: Scoring,
    /// The first sequence from its end.
    rows_up: Vec<u8>,
    /// The second sequence.
    columns: Vec<u8>,
    /// By the numbers of the blocks, left border first; `None` if borders are not kept.
    kept: Option<Vec<OnceLock<Box<[u8]>>>>,
    /// Sum of the lowest borders of this rank.
    lowest: AtomicU64,
    progress: Progress,
}

impl Matrix {
    /// An empty matrix of two sequences. Without `keep` there is only the score in the end.
    pub fn new(
        scoring: Scoring,
        [first, second]: [&[u8]; 2],
        tiling: Tiling,
        rank: usize,
        keep: bool,
        progress: Progress,
    ) -> Self {
        let blocks = tiling.blocks(rank);
        Self {
            tiling,
            rank,
            scoring,
            rows_up: first.iter().rev().copied().collect(),
            columns: second.into(),
            kept: keep.then(|| (0..blocks).map(|_| OnceLock::new()).collect()),
            lowest: AtomicU64::new(0),
            progress,
        }
    }

    /// Letters of some rows, from the bottom up.
    fn rows_up(&self, rows: Range<usize>) -> &[u8] {
        let all = self.rows_up.len();
        &self.rows_up[all - rows.end..all - rows.start]
    }

    /// The left border of a block of the first column.
    pub fn leftmost(&self, row: usize) -> Vec<u8> {
        vec![0; self.tiling.rows(row).len()]
    }

    /// The top border of a block of the first row.
    pub fn topmost(&self, column: usize) -> Vec<u8> {
        vec![0; self.tiling.columns(column).len()]
    }

    /// Fills a block of this rank, whose left and top border become the right and bottom one.
    pub fn fill(&self, block: [usize; 2], left: &mut [u8], top: &mut [u8]) {
        let [row, column] = block;
        if let Some(kept) = &self.kept {
            let first = kept[self.tiling.number(block)].set([&*left, &*top].concat().into());
            debug_assert!(first.is_ok(), "invariant 1");
        }
        let rows_up = self.rows_up(self.tiling.rows(row));
        let columns = &self.columns[self.tiling.columns(column)];
        kernel::fill(&self.scoring, rows_up, columns, left, top);
        if row + 1 == self.tiling.extents()[0] {
            let sum = top.iter().map(|difference| u64::from(*difference)).sum();
            self.lowest.fetch_add(sum, Ordering::Relaxed);
        }
        self.progress.advance();
    }

    /// The sum of the lowest borders of this rank's blocks. Over all ranks it is the score but
    /// for its gaps: the first column is 0.
    pub fn lowest(&self) -> u64 {
        self.lowest.load(Ordering::Relaxed)
    }

    /// The choices of a part of a block of this rank: from its first cell to this one, by the
    /// numbers of its letters. `None` if the borders were not kept.
    pub fn choices(&self, cell: [usize; 2]) -> Option<kernel::Choices> {
        let block = self.tiling.block_of(cell);
        let (rows, columns) = (self.tiling.rows(block[0]), self.tiling.columns(block[1]));
        let kept = self.kept.as_ref()?;
        let borders = kept.get(self.tiling.number(block))?.get()?;
        let (left, top) = borders.split_at(rows.len());
        let rows = rows.start..cell[0] + 1;
        let columns = columns.start..cell[1] + 1;
        let mut left = left[left.len() - rows.len()..].to_vec();
        let mut top = top[..columns.len()].to_vec();
        let (rows_up, columns) = (self.rows_up(rows), &self.columns[columns]);
        Some(kernel::choices(
            &self.scoring,
            rows_up,
            columns,
            &mut left,
            &mut top,
        ))
    }

    /// All blocks are filled.
    pub fn finish(&self) {
        self.progress.finish();
    }
}
