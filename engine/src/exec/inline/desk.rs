//! Memory of a short call: its buffers, its slot, and scratch on the stack or warm; and where the
//! regions of a plan lie in it.

use super::super::in_segment::Contiguous;
use super::super::memory::{longest_share, share};
use super::super::operator::Fitted;
use super::super::run::combine;
use super::super::short;
use super::super::step::Regions;
use super::{MOST_BYTES, MOST_SCRATCH};
use crate::error::{Error, ErrorKind, Result};
use crate::view::RawView;
use osier_collectives::{Buffer, Region};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// What the steps of a segment need.
#[derive(Clone, Copy, Debug, Default)]
pub struct InSegment {
    /// The scratch buffer that peers read, and its pieces.
    pub(super) slot: Option<(u16, usize)>,
    /// Scratch buffers, and the most pieces of one besides the slot.
    pub(super) buffers: usize,
    pub(super) pieces: usize,
    /// Pieces of the call's vector, of which scratch buffers besides the slot are like this
    /// rank's; if there are several,
    pub(super) cut: u32,
    pub(super) rank: u32,
    /// the bytes of the longest in a slot.
    pub(super) longest: usize,
    /// Segments of the call.
    pub segments: u32,
    /// Bytes of an element, which is not cut.
    pub(super) unit: usize,
    /// Slots change hands.
    pub changes_hands: bool,
    /// One rank reads each piece of a slot.
    pub one_reader: bool,
    /// Peers may read what goes to the slot where it lies.
    pub(super) least_lent: Option<usize>,
}

impl InSegment {
    /// Of elements of `unit` bytes.
    #[must_use]
    pub fn of_unit(mut self, unit: usize) -> Self {
        self.unit = unit;
        self
    }

    /// Where a piece of a vector that is cut lies in it.
    #[inline]
    fn piece(&self, bytes: usize, piece: u32) -> Range<usize> {
        let bound = |at| share(bytes, self.unit, at, self.cut);
        bound(piece)..bound(piece + 1)
    }

    /// Lines of each scratch buffer, of pieces of these bytes.
    #[inline]
    fn lines_each(&self, bytes: usize) -> usize {
        self.pieces.saturating_mul(bytes).div_ceil(MOST_BYTES)
    }

    /// Bytes of all.
    #[inline]
    pub(super) fn scratch_bytes(&self, bytes: usize) -> usize {
        let all = self.lines_each(bytes).saturating_mul(self.buffers);
        all.saturating_mul(MOST_BYTES)
    }
}

/// `MOST_BYTES` in scratch.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Line(pub(super) [MaybeUninit<u8>; MOST_BYTES]);

/// Contiguous memory of the host that an inline schedule works on.
#[derive(Clone, Copy)]
pub struct Small {
    pub send: *mut u8,
    pub recv: *mut u8,
    /// Of a piece.
    pub bytes: usize,
}

/// The same, with scratch buffers and operator.
pub struct Desk<'a> {
    pub(super) small: Small,
    /// Of steps of a segment, and where the slot lies.
    in_segment: InSegment,
    pub(super) slot: *mut u8,
    /// The operator of a call that combines, and what it combines there.
    operator: Option<Fitted<'a>>,
    scratch: [Line; MOST_SCRATCH],
    /// In their place, where they are longer or more: this thread's warm memory,
    warm: Vec<Line>,
    /// and the number of lines of each buffer there.
    lines_each: usize,
}

/// Memory of a short call.
pub struct Room {
    small: Small,
    slot: *mut u8,
    scratch: [Line; MOST_SCRATCH],
}

impl Room {
    /// Its slot is not there yet.
    #[inline]
    pub fn new(small: Small) -> Self {
        Self {
            small,
            slot: std::ptr::null_mut(),
            scratch: [Line([MaybeUninit::uninit(); MOST_BYTES]); MOST_SCRATCH],
        }
    }

    #[inline]
    pub(crate) fn slot_at(&mut self, at: *mut u8) {
        self.slot = at;
    }

    /// Where moves of a short call find their memory, but for peers'.
    #[inline]
    pub(crate) fn at(&mut self, memory: short::Memory) -> *mut u8 {
        match memory {
            short::Memory::Send => self.small.send,
            short::Memory::Recv => self.small.recv,
            short::Memory::Scratch => self.scratch.as_mut_ptr().cast(),
            short::Memory::Slot | short::Memory::Peer(_) => self.slot,
        }
    }
}

thread_local! {
    /// Warm memory for scratch.
    static WARM: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

impl Small {
    /// Both as long; `None` for what is long or has gaps.
    #[inline]
    pub fn new(send: Option<&RawView>, recv: Option<&RawView>) -> Option<Small> {
        let bytes = match (send, recv) {
            (Some(send), Some(recv)) if send.bytes() != recv.bytes() => return None,
            (Some(view), _) | (None, Some(view)) => view.bytes(),
            (None, None) => 0,
        };
        Self::within(send, recv, bytes)
    }

    /// In pieces of these bytes, which make up each buffer; `None` for memory that is long
    /// or has gaps.
    #[inline]
    pub fn of_pieces(
        send: Option<(&RawView, usize)>,
        recv: Option<(&RawView, usize)>,
        bytes: usize,
    ) -> Option<Small> {
        let whole = |side: Option<(&RawView, usize)>| {
            side.is_none_or(|(view, pieces)| view.bytes() == bytes * pieces)
        };
        if !whole(send) || !whole(recv) {
            return None;
        }
        Self::within(send.map(|s| s.0), recv.map(|r| r.0), bytes)
    }

    #[inline]
    fn within(send: Option<&RawView>, recv: Option<&RawView>, bytes: usize) -> Option<Small> {
        let address = |view: Option<&RawView>| match view {
            Some(view) => view.as_contiguous(),
            None => Some(std::ptr::null_mut()),
        };
        Some(Small {
            send: address(send)?,
            recv: address(recv)?,
            bytes,
        })
    }
}

impl<'a> Desk<'a> {
    #[inline]
    pub fn new(small: Small, operator: Option<Fitted<'a>>) -> Self {
        Self {
            small,
            in_segment: InSegment::default(),
            slot: std::ptr::null_mut(),
            operator,
            scratch: [Line([MaybeUninit::uninit(); MOST_BYTES]); MOST_SCRATCH],
            warm: Vec::new(),
            lines_each: 1,
        }
    }
}

impl Drop for Desk<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.warm.is_empty() {
            let warm = std::mem::take(&mut self.warm);
            // Of a thread that ends, it is freed.
            let _ = WARM.try_with(|kept| kept.set(warm));
        }
    }
}

impl Desk<'_> {
    /// For steps of a segment. In place: to move a desk would copy its scratch.
    #[inline]
    pub fn work_in(&mut self, in_segment: InSegment) {
        self.in_segment = in_segment;
        if in_segment.cut > 1 && in_segment.segments > 1 {
            let pieces = 0..in_segment.cut;
            let bytes = pieces.map(|p| in_segment.piece(self.small.bytes, p).len());
            self.in_segment.longest = bytes.max().unwrap_or(0);
        }
        let lines_each = in_segment.lines_each(self.small.bytes);
        if in_segment.pieces > 0 && (lines_each > 1 || in_segment.buffers > MOST_SCRATCH) {
            self.work_on_warm(lines_each);
        }
    }

    #[cold]
    fn work_on_warm(&mut self, lines_each: usize) {
        self.lines_each = lines_each.max(1);
        let lines = self.in_segment.buffers * self.lines_each;
        self.warm = WARM.try_with(Cell::take).unwrap_or_default();
        if self.warm.len() < lines {
            let line = Line([MaybeUninit::uninit(); MOST_BYTES]);
            self.warm.resize(lines, line);
        }
    }

    #[inline]
    pub(super) fn is_slot(&self, k: u16) -> bool {
        self.in_segment.slot.is_some_and(|slot| slot.0 == k)
    }

    /// The lines of a scratch buffer.
    #[inline]
    pub(super) fn lines(&self, k: usize) -> &[Line] {
        match self.warm.is_empty() {
            true => &self.scratch[k..=k],
            false => &self.warm[k * self.lines_each..][..self.lines_each],
        }
    }

    #[inline]
    fn scratch_at(&mut self, k: usize) -> *mut u8 {
        let lines = match self.warm.is_empty() {
            true => &mut self.scratch[k..=k],
            false => &mut self.warm[k * self.lines_each..][..self.lines_each],
        };
        lines.as_mut_ptr().cast()
    }

    pub(in crate::exec) fn slot_at(&mut self, at: *mut u8) {
        self.slot = at;
    }

    pub(in crate::exec) fn bytes_of_piece(&self) -> usize {
        self.small.bytes
    }

    /// Segments of the call.
    pub fn cut_into(&self) -> u32 {
        self.in_segment.segments
    }

    pub(in crate::exec) fn least_that_is_lent(&self) -> Option<usize> {
        self.in_segment.least_lent
    }

    pub(in crate::exec) fn has_one_reader(&self) -> bool {
        self.in_segment.one_reader
    }

    #[inline]
    pub(in crate::exec) fn combiner(&self) -> Option<Fitted<'_>> {
        self.operator
    }

    /// The range of a segment within `bytes` bytes.
    #[inline]
    fn share(&self, bytes: usize, segment: u16) -> Range<usize> {
        let of = self.in_segment.segments;
        if of <= 1 {
            return 0..bytes;
        }
        let unit = self.in_segment.unit;
        let segment = u32::from(segment);
        share(bytes, unit, segment, of)..share(bytes, unit, segment + 1, of)
    }

    /// Bytes of a piece in the slot, where all have as much room.
    #[inline]
    fn slot_piece(&self) -> usize {
        let longest = match self.in_segment.cut {
            0 | 1 => self.small.bytes,
            _ => self.in_segment.longest,
        };
        match self.in_segment.segments {
            0 | 1 => longest,
            segments => longest_share(longest, self.in_segment.unit, segments),
        }
    }

    /// Whether pieces lie in the slot as they do in the vector.
    #[inline]
    fn is_image(&self) -> bool {
        self.in_segment.cut > 1 && self.in_segment.segments <= 1
    }

    #[inline]
    pub(in crate::exec) fn bytes_of_slot(&self) -> usize {
        match (self.in_segment.slot, self.is_image()) {
            (None, _) => 0,
            (_, true) => self.small.bytes,
            (Some((_, pieces)), false) => pieces * self.slot_piece(),
        }
    }

    /// Where pieces lie in the call's buffers: pieces of one length, or of a vector.
    #[inline]
    fn in_buffer(&self, region: Region, segment: u16) -> Range<usize> {
        let each = self.small.bytes;
        let (first, count) = (region.first as usize, region.count as usize);
        let whole = match (self.in_segment.cut, region.count) {
            (0 | 1, _) => first * each..(first + count) * each,
            (_, 0) => 0..0,
            (_, count) => {
                let first = self.in_segment.piece(each, region.first);
                let last = self.in_segment.piece(each, region.first + count - 1);
                first.start..last.end
            }
        };
        if self.in_segment.segments <= 1 {
            return whole;
        }
        let within = self.share(whole.len(), segment);
        whole.start + within.start..whole.start + within.end
    }

    /// Where pieces lie in a slot.
    #[inline]
    pub(in crate::exec) fn in_slot(&self, region: Region, segment: u16) -> Range<usize> {
        let range = self.in_buffer(region, segment);
        if self.is_image() {
            return range;
        }
        let start = region.first as usize * self.slot_piece();
        start..start + range.len()
    }

    /// Where a region lies of a call that is not cut, by its offset there.
    pub(in crate::exec) fn offset(&self, region: Region) -> (short::Memory, Range<usize>) {
        match region.buffer {
            Buffer::Scratch(k) if self.is_slot(k) => (short::Memory::Slot, self.in_slot(region, 0)),
            Buffer::Scratch(k) => {
                let lines = usize::from(k) * MOST_BYTES;
                let range = self.in_buffer(region, 0);
                (
                    short::Memory::Scratch,
                    lines + range.start..lines + range.end,
                )
            }
            Buffer::Send => (short::Memory::Send, self.in_buffer(region, 0)),
            Buffer::Recv => (short::Memory::Recv, self.in_buffer(region, 0)),
        }
    }

    /// Whether the call is in one piece, and scratch within the desk.
    pub(in crate::exec) fn has_short_scratch(&self) -> bool {
        let with = &self.in_segment;
        let whole = with.cut <= 1 && with.segments <= 1;
        whole && self.warm.is_empty() && with.lines_each(self.small.bytes) <= 1
    }

    /// Takes over from a short call: its slot, and what it has in scratch.
    pub fn goes_on(&mut self, room: &Room) {
        self.slot = room.slot;
        self.scratch = room.scratch;
    }

    /// Memory of a region, in one segment.
    #[inline]
    pub(in crate::exec) fn place(&mut self, region: Region, segment: u16) -> Contiguous {
        let (start, range) = match region.buffer {
            Buffer::Scratch(k) if self.is_slot(k) => (self.slot, self.in_slot(region, segment)),
            // Of a vector that is cut, it is like this rank's piece.
            Buffer::Scratch(k) if self.in_segment.cut > 1 => {
                let piece = Region::piece(Buffer::Recv, self.in_segment.rank);
                let bytes = self.in_buffer(piece, segment).len();
                (self.scratch_at(k.into()), 0..bytes)
            }
            Buffer::Scratch(k) => (self.scratch_at(k.into()), self.in_buffer(region, segment)),
            // Of no bytes, the address does not matter.
            Buffer::Send => (self.small.send, self.in_buffer(region, segment)),
            Buffer::Recv => (self.small.recv, self.in_buffer(region, segment)),
        };
        Contiguous {
            at: start.wrapping_add(range.start),
            bytes: range.len(),
        }
    }
}

impl Regions for Desk<'_> {
    #[inline]
    fn view(&mut self, region: Region, _segment: u32) -> RawView {
        let Contiguous { at, bytes } = self.place(region, 0);
        RawView::untyped(at, bytes)
    }

    #[inline]
    fn combine(&mut self, [left, right, into]: [Region; 3], segment: u32) -> Result<()> {
        let (left, right) = (self.view(left, segment), self.view(right, segment));
        let into = self.view(into, segment);
        match &self.operator {
            Some(by) => combine(by.operator, by.fit, &left, &right, &into),
            None => Err(Error::new(
                ErrorKind::Argument,
                "a reduction without operator",
            )),
        }
    }
}
