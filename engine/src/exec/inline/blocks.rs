//! Memory of a short call whose contributions differ: blocks at places of their own.

use super::Begun;
use crate::exec::cells::{Cells, Place};
use crate::exec::in_segment::{Contiguous, Places};
use crate::exec::operator::Fitted;
use crate::exec::program::{Action, Program};
use crate::view::RawView;
use osier_collectives::{Buffer, Region};
use std::ops::Range;

/// Blocks of a buffer without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub at: *mut u8,
    /// Of an element, or of each block.
    pub bytes: usize,
    pub blocks: Lie<'a>,
    /// Which block a piece of the plan is, where that is not its number.
    pub which: Option<&'a [usize]>,
}

/// How blocks lie.
#[derive(Clone, Copy, Debug)]
pub enum Lie<'a> {
    /// One behind the other, equally long.
    Row,
    /// By counts and displacements, in elements.
    Placed(&'a [usize], &'a [usize]),
}

impl<'a> Side<'a> {
    /// By counts and displacements in elements of these bytes.
    #[inline]
    #[must_use]
    pub fn placed(
        at: *mut u8,
        bytes: usize,
        counts: &'a [usize],
        displacements: &'a [usize],
    ) -> Self {
        Self {
            at,
            bytes,
            blocks: Lie::Placed(counts, displacements),
            which: None,
        }
    }

    /// Of these bytes each.
    #[inline]
    #[must_use]
    pub fn row(at: *mut u8, bytes: usize) -> Self {
        Self {
            at,
            bytes,
            blocks: Lie::Row,
            which: None,
        }
    }

    /// Of which the plan has these.
    #[inline]
    #[must_use]
    pub fn of(self, which: &'a [usize]) -> Self {
        let which = Some(which);
        Self { which, ..self }
    }

    #[inline]
    fn block(&self, piece: u32) -> Range<usize> {
        let piece = piece as usize;
        let block = self.which.map_or(piece, |which| which[piece]);
        match self.blocks {
            Lie::Row => block * self.bytes..(block + 1) * self.bytes,
            Lie::Placed(counts, displacements) => {
                let start = displacements[block] * self.bytes;
                start..start + counts[block] * self.bytes
            }
        }
    }

    /// Bytes of a block.
    #[inline]
    #[must_use]
    pub fn bytes_of(&self, block: usize) -> usize {
        match self.blocks {
            Lie::Row => self.bytes,
            Lie::Placed(counts, _) => counts[block] * self.bytes,
        }
    }

    /// Whether there are `blocks` blocks inside of a buffer of `length` bytes; those that are
    /// written must be in order and `apart`. Others are for a run.
    #[inline]
    pub fn lies_in(&self, blocks: usize, length: usize, apart: bool) -> bool {
        let mut end = 0usize;
        let Lie::Placed(counts, displacements) = self.blocks else {
            return self.bytes.checked_mul(blocks) == Some(length);
        };
        counts.len() == blocks
            && displacements.len() == blocks
            && counts.iter().zip(displacements).all(|(n, at)| {
                let inside = at.checked_add(*n);
                let inside = inside.and_then(|end| end.checked_mul(self.bytes));
                let behind = !apart || *n == 0 || *at >= end;
                end = if *n == 0 { end } else { at.saturating_add(*n) };
                behind && inside.is_some_and(|end| end <= length)
            })
    }
}

/// The blocks of a call, on this rank.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub send: Side<'a>,
    pub recv: Side<'a>,
    cells: u32,
    one_reader: bool,
}

impl<'a> Blocks<'a> {
    #[must_use]
    pub fn new(send: Side<'a>, recv: Side<'a>) -> Self {
        Self {
            send,
            recv,
            cells: 0,
            one_reader: false,
        }
    }

    /// The same for the steps of this program, if it has cells in which all blocks have room that
    /// this rank puts there.
    #[must_use]
    pub fn in_cells(mut self, program: &Program) -> Option<Self> {
        if program.cells == 0 {
            return None;
        }
        (self.cells, self.one_reader) = (program.cells, program.one_reader);
        let fits = |action: &Action| match *action {
            Action::Put { data, cell } => {
                let bytes = self.place(data).len();
                Cells(self.cells).place(cell, bytes) != Place::Message
            }
            _ => true,
        };
        program.actions.iter().all(fits).then_some(self)
    }

    #[inline]
    fn side(&self, buffer: Buffer) -> &Side<'a> {
        match buffer {
            Buffer::Send => &self.send,
            _ => &self.recv,
        }
    }

    #[inline]
    fn place(&self, region: Region) -> Range<usize> {
        self.side(region.buffer).block(region.first)
    }
}

impl Places for Blocks<'_> {
    #[inline]
    fn own(&mut self, region: Region, _segment: u16) -> RawView {
        let range = self.place(region);
        let at = self.side(region.buffer).at.wrapping_add(range.start);
        RawView::untyped(at, range.len())
    }

    #[inline]
    fn contiguous(&mut self, region: Region, _segment: u16) -> Option<Contiguous> {
        let range = self.place(region);
        let at = self.side(region.buffer).at.wrapping_add(range.start);
        let bytes = range.len();
        Some(Contiguous { at, bytes })
    }

    fn of_peer(&mut self, _peer: u32, _region: Region, _segment: u16) -> Range<usize> {
        // No step reads what is not in a cell.
        0..0
    }

    fn segments(&self) -> u32 {
        1
    }

    #[inline]
    fn one_reader(&self) -> bool {
        self.one_reader
    }

    fn least_lent(&self) -> Option<usize> {
        None
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn slot_bytes(&self) -> usize {
        0
    }

    fn set_slot(&mut self, _at: *mut u8) {}

    #[inline]
    fn cells(&self) -> Cells {
        Cells(self.cells)
    }

    fn operator(&self) -> Option<Fitted<'_>> {
        None
    }
}

impl Begun {
    /// For a run that takes up a program with cells after `taken` steps.
    pub fn in_cells(taken: usize, tags: u32) -> Begun {
        Begun {
            tags,
            done: 0,
            taken: taken as u32,
            slot: None,
            scratch: Vec::new(),
            pieces: Box::default(),
            bytes: 0,
        }
    }
}
