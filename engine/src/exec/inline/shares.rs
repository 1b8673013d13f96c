//! Memory of a short reduction whose shares differ, as all ranks know.
//!
//! Shares lie one behind the other in the vector. In one segment those of a slot do, too, that of
//! the rank behind the writer first; in several, each has room for a segment of the longest. So it
//! is in a run's memory ([`super::super::memory`]).
//!
//! # Invariants
//! 1. The send buffer has all shares, the result this rank's, and a scratch buffer a segment of
//!    that.

use super::Begun;
use super::desk::Line;
use crate::exec::in_segment::{Contiguous, Places};
use crate::exec::memory::{contributed, longest_share, longest_slot, share, shares_behind};
use crate::exec::operator::Fitted;
use crate::exec::program::Program;
use crate::view::RawView;
use osier_collectives::{Buffer, Region};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a line of scratch.
const LINE_BYTES: usize = size_of::<Line>();

thread_local! {
    /// Warm memory for scratch.
    static WARM: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// The vector and the result of a call, on this rank.
pub struct Shares<'a> {
    send: *mut u8,
    recv: *mut u8,
    /// Of each rank, in elements of these bytes.
    counts: &'a [usize],
    unit: usize,
    rank: usize,
    by: Fitted<'a>,
    /// Bytes of the longest,
    longest: usize,
    /// and what all ranks must have alike.
    bytes: u64,
    /// Of the steps of a program: segments, the scratch buffer that peers read and its address, and
    /// lines of each of the others.
    segments: u32,
    slot: u16,
    slot_at: *mut u8,
    one_reader: bool,
    least_lent: Option<usize>,
    scratch: Vec<Line>,
    lines_each: usize,
}

impl<'a> Shares<'a> {
    /// Of buffers without gaps, as long as the counts say.
    #[must_use]
    pub fn new(
        (send, recv): (*mut u8, *mut u8),
        counts: &'a [usize],
        rank: usize,
        by: Fitted<'a>,
    ) -> Self {
        let unit = by.fit.unit;
        let longest = counts.iter().copied().max().unwrap_or(0);
        Self {
            send,
            recv,
            counts,
            unit,
            rank,
            by,
            longest: longest * unit,
            bytes: contributed(counts.iter().map(|count| count * unit)),
            segments: 1,
            slot: 0,
            slot_at: std::ptr::null_mut(),
            one_reader: false,
            least_lent: None,
            scratch: Vec::new(),
            lines_each: 0,
        }
    }

    /// Bytes of the longest share.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// For the steps of this program; false: it has others.
    pub fn work_in(&mut self, program: &Program) -> bool {
        let slot = program.scratch.iter().position(|scratch| scratch.slot);
        let (Some(slot), true) = (slot, program.in_segment && program.cells == 0) else {
            return false;
        };
        self.segments = program.graph.segments();
        self.slot = slot as u16;
        (self.one_reader, self.least_lent) = (program.one_reader, program.least_lent);
        let buffers = program.scratch.len() - 1;
        if buffers > 0 {
            let own = self.counts[self.rank] * self.unit;
            let bytes = longest_share(own, self.unit, self.segments);
            self.lines_each = bytes.div_ceil(LINE_BYTES).max(1);
            self.scratch = WARM.try_with(Cell::take).unwrap_or_default();
            let lines = self.lines_each * (buffers + 1);
            if self.scratch.len() < lines {
                let line = Line([MaybeUninit::uninit(); LINE_BYTES]);
                self.scratch.resize(lines, line);
            }
        }
        true
    }

    /// For a run that takes up the program after `taken` steps: what lies in scratch is used
    /// between two waits only.
    #[must_use]
    pub fn begun(&self, taken: usize, tags: u32) -> Begun {
        let slot = (!self.slot_at.is_null()).then(|| self.slot_at.expose_provenance());
        Begun {
            slot,
            ..Begun::in_cells(taken, tags)
        }
    }

    /// Shares of the vector.
    #[inline]
    fn in_vector(&self, first: u32, count: u32) -> Range<usize> {
        let sum = |counts: &[usize]| counts.iter().sum::<usize>() * self.unit;
        let (first, end) = (first as usize, (first + count) as usize);
        let start = sum(&self.counts[..first]);
        start..start + sum(&self.counts[first..end])
    }

    /// The range of a segment within `bytes` bytes.
    #[inline]
    fn share(&self, bytes: usize, segment: u16) -> Range<usize> {
        let (segment, of) = (u32::from(segment), self.segments);
        share(bytes, self.unit, segment, of)..share(bytes, self.unit, segment + 1, of)
    }

    #[inline]
    fn in_segment(&self, whole: Range<usize>, segment: u16) -> Range<usize> {
        let within = self.share(whole.len(), segment);
        whole.start + within.start..whole.start + within.end
    }

    /// Bytes of a share in a slot, of a call in several segments.
    #[inline]
    fn room(&self) -> usize {
        longest_share(self.longest, self.unit, self.segments)
    }

    /// Where pieces of a rank's slot lie there.
    #[inline]
    fn in_slot(&self, of: usize, region: Region, segment: u16) -> Range<usize> {
        let (first, count) = (region.first as usize, region.count as usize);
        let range = shares_behind(of, first, count, |rank| {
            self.counts[rank % self.counts.len()] * self.unit
        });
        if self.segments == 1 {
            return range;
        }
        let start = first * self.room();
        start..start + self.share(range.len(), segment).len()
    }
}

impl Drop for Shares<'_> {
    fn drop(&mut self) {
        if !self.scratch.is_empty() {
            let scratch = std::mem::take(&mut self.scratch);
            // Of a thread that ends, it is freed.
            let _ = WARM.try_with(|kept| kept.set(scratch));
        }
    }
}

impl Places for Shares<'_> {
    fn own(&mut self, region: Region, segment: u16) -> RawView {
        let place = self.contiguous(region, segment);
        place.map_or_else(RawView::empty, |place| {
            RawView::untyped(place.at, place.bytes)
        })
    }

    #[inline]
    fn contiguous(&mut self, region: Region, segment: u16) -> Option<Contiguous> {
        let own = self.counts[self.rank] * self.unit;
        let (base, range) = match region.buffer {
            Buffer::Send => {
                let whole = self.in_vector(region.first, region.count);
                (self.send, self.in_segment(whole, segment))
            }
            Buffer::Recv => (self.recv, self.in_segment(0..own, segment)),
            Buffer::Scratch(k) if k == self.slot => {
                (self.slot_at, self.in_slot(self.rank, region, segment))
            }
            Buffer::Scratch(k) => {
                let lines: *mut u8 = self.scratch.as_mut_ptr().cast();
                let at = lines.wrapping_add(usize::from(k) * self.lines_each * LINE_BYTES);
                (at, 0..self.share(own, segment).len())
            }
        };
        Some(Contiguous {
            at: base.wrapping_add(range.start),
            bytes: range.len(),
        })
    }

    #[inline]
    fn of_peer(&mut self, peer: u32, region: Region, segment: u16) -> Range<usize> {
        self.in_slot(peer as usize, region, segment)
    }

    fn segments(&self) -> u32 {
        self.segments
    }

    fn one_reader(&self) -> bool {
        self.one_reader
    }

    fn least_lent(&self) -> Option<usize> {
        self.least_lent
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn slot_bytes(&self) -> usize {
        match self.segments {
            1 => longest_slot(self.counts.iter().map(|count| count * self.unit)),
            _ => (self.counts.len() - 1) * self.room(),
        }
    }

    fn set_slot(&mut self, at: *mut u8) {
        self.slot_at = at;
    }

    #[inline]
    fn operator(&self) -> Option<Fitted<'_>> {
        Some(self.by)
    }
}
