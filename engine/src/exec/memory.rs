//! Memory of a run: where the pieces of its buffers lie.
//!
//! A piece is a range of a buffer's packed bytes; what layout these have in memory is
//! the view's affair. A segment of a piece is a share of it, at whole elements.
//!
//! # Invariants
//! 1. Lengths of pieces and segments follow from what all ranks agree on: the bytes of
//!    the call, and its element.
//! 2. Scratch is packed and starts at multiples of 64 bytes. It is not moved while the
//!    run lives. It is the device's where the buffers are, but for what the plan keeps
//!    aside: that is the host's, and kernels reach it.

use super::in_segment::Contiguous;
use super::program::Program;
use crate::exec::on_device::{Combining, Scratch as OnDevice};
use crate::view::RawView;
use osier_collectives::{Buffer, Lengths, Region};
use osier_kernels::DeviceError;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// How a buffer of the program's user is cut into pieces. Clones share lists.
#[derive(Clone, Debug, Default)]
pub enum Pieces {
    /// The buffer does not exist.
    #[default]
    None,
    /// Into pieces of these bytes.
    Equal(RawView, usize),
    /// Into as many pieces as the algorithm wants, of about equal size.
    Cut(RawView),
    /// At these ranges of the packed bytes.
    Ranges(RawView, Arc<[Range<usize>]>),
    /// Each lies somewhere of its own.
    Listed(Arc<[RawView]>),
}

impl Pieces {
    /// The buffer, if it is one.
    pub fn whole(&self) -> Option<&RawView> {
        match self {
            Pieces::Equal(view, _) | Pieces::Cut(view) | Pieces::Ranges(view, _) => Some(view),
            Pieces::None | Pieces::Listed(_) => None,
        }
    }

    /// All memory that they lie in.
    pub fn memory(&self) -> &[RawView] {
        match self {
            Pieces::None => &[],
            Pieces::Equal(view, _) | Pieces::Cut(view) | Pieces::Ranges(view, _) => {
                std::slice::from_ref(view)
            }
            Pieces::Listed(views) => views,
        }
    }

    /// Mean bytes of a piece of a vector that is cut into `cut`.
    pub fn mean_bytes(&self, cut: u32) -> usize {
        let mean = |bytes: usize, pieces: usize| bytes.div_ceil(pieces.max(1));
        match self {
            Pieces::None => 0,
            Pieces::Equal(_, each) => *each,
            Pieces::Cut(view) => mean(view.bytes(), cut as usize),
            Pieces::Ranges(_, ranges) => mean(ranges.iter().map(Range::len).sum(), ranges.len()),
            Pieces::Listed(views) => mean(views.iter().map(RawView::bytes).sum(), views.len()),
        }
    }

    /// Whether pieces that nothing cuts begin and end at multiples of `of` packed bytes
    /// of their buffer.
    pub fn are_multiples(&self, of: usize) -> bool {
        let whole = |bytes: usize| bytes.is_multiple_of(of.max(1));
        match self {
            Pieces::None | Pieces::Cut(_) | Pieces::Listed(_) => true,
            Pieces::Equal(_, each) => whole(*each),
            Pieces::Ranges(_, ranges) => ranges.iter().all(|r| whole(r.start) && whole(r.end)),
        }
    }

    /// The same pieces of other memory, if there is some in place of each.
    pub fn mapped(&self, by: impl Fn(&RawView) -> Option<RawView>) -> Option<Pieces> {
        Some(match self {
            Pieces::None => Pieces::None,
            Pieces::Equal(view, each) => Pieces::Equal(by(view)?, *each),
            Pieces::Cut(view) => Pieces::Cut(by(view)?),
            Pieces::Ranges(view, ranges) => Pieces::Ranges(by(view)?, ranges.clone()),
            Pieces::Listed(views) => Pieces::Listed(views.iter().map(by).collect::<Option<_>>()?),
        })
    }

    /// The same pieces of other memory.
    pub fn replace(&mut self, mut by: impl FnMut(&RawView) -> RawView) {
        match self {
            Pieces::None => {}
            Pieces::Equal(view, _) | Pieces::Cut(view) | Pieces::Ranges(view, _) => {
                *view = by(view);
            }
            Pieces::Listed(views) => *views = views.iter().map(by).collect(),
        }
    }
}

/// Bits of a contribution's bytes, where a digest follows.
pub const BYTES_BITS: u32 = 40;

/// The bytes of shares that all ranks know, with a digest of their lengths above [`BYTES_BITS`].
pub(super) fn contributed(shares: impl Iterator<Item = usize>) -> u64 {
    let mix = |(bytes, sum): (u64, u64), n: usize| {
        let sum = (sum ^ n as u64).wrapping_mul(0x0100_0000_01b3);
        (bytes.wrapping_add(n as u64), sum)
    };
    let (bytes, sum) = shares.fold((0, 0xcbf2_9ce4_8422_2325), mix);
    bytes & ((1 << BYTES_BITS) - 1) | sum >> 24 << BYTES_BITS
}

/// How long pieces are, for those that lie in scratch.
#[derive(Clone, Debug, Default)]
pub enum Sizes {
    #[default]
    Empty,
    /// All of these bytes.
    Equal(usize),
    /// A vector of these bytes, cut.
    Cut(usize),
    /// Each its own.
    Each(Arc<[usize]>),
}

/// What a run works on.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    pub send: Pieces,
    pub recv: Pieces,
    pub sizes: Sizes,
    /// Bytes of an element, which is never cut; 1 if nothing is combined.
    pub unit: usize,
}

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Line(#[expect(dead_code, reason = "room")] [MaybeUninit<u8>; 64]);

/// One scratch buffer.
#[derive(Debug, Default)]
struct Room {
    /// Of the first piece, in the block.
    offset: usize,
    /// Where its pieces' starts stand in `starts`.
    starts: usize,
    slots: u32,
    /// Bytes of each of these.
    room: usize,
    /// In the host's memory, of a run on a device.
    aside: bool,
    /// In the segment that the ranks share.
    slot: bool,
}

/// The memory of one run.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: Buffers,
    rooms: Vec<Room>,
    starts: Vec<usize>,
    block: Vec<Line>,
    /// The same for runs on a device.
    on_device: Option<OnDevice>,
    /// Of the host, aside.
    pinned: Option<OnDevice>,
    /// The block's bytes.
    base: RawView,
    /// Those aside, as messages have them, and as kernels.
    aside: (RawView, RawView),
    /// The slot that peers read, and its bytes.
    slot: RawView,
    slot_bytes: usize,
    cut: u32,
    segments: u32,
}

/// Bytes of the longest slot of shares, each of which has those of all other ranks.
pub(super) fn longest_slot(shares: impl Iterator<Item = usize>) -> usize {
    let least = |(sum, least): (usize, usize), n: usize| (sum + n, least.min(n));
    let (sum, least) = shares.fold((0, usize::MAX), least);
    sum - least.min(sum)
}

/// Where `count` shares from the `first` on lie in a rank's slot, which begins with the share of the
/// rank behind it; `bytes` has those of a rank, or of one that is a number of ranks further.
#[inline]
pub(super) fn shares_behind(
    rank: usize,
    first: usize,
    count: usize,
    bytes: impl Fn(usize) -> usize,
) -> Range<usize> {
    let sum = |from: usize, n: usize| (from..from + n).map(&bytes).sum::<usize>();
    let start = sum(rank + 1, first);
    start..start + sum(rank + 1 + first, count)
}

/// Bounds of share `at` of `of` shares of `bytes` bytes, in whole units.
pub(super) fn share(bytes: usize, unit: usize, at: u32, of: u32) -> usize {
    if of == 1 {
        return if at == 0 { 0 } else { bytes };
    }
    if at >= of {
        return bytes;
    }
    let bound = |n: usize| (n as u128 * u128::from(at) / u128::from(of)) as usize;
    if unit > 1 {
        bound(bytes / unit) * unit
    } else if bytes >= 64 * of as usize {
        bound(bytes) & !63
    } else {
        bound(bytes)
    }
}

/// Bytes of the longest of so many shares, to whole lines.
pub(super) fn longest_share(bytes: usize, unit: usize, shares: u32) -> usize {
    let (shares, unit) = (shares.max(1) as usize, unit.max(1));
    // A share is at most one unit, or 64 bytes, longer than the mean.
    (bytes.div_ceil(shares) + unit.max(64))
        .next_multiple_of(64)
        .min(bytes.next_multiple_of(64))
}

impl Memory {
    /// Begins, or begins again with other buffers, of the host or of a device.
    ///
    /// # Errors
    /// The device has no room for scratch; the run must fail.
    pub fn begin(
        &mut self,
        program: &Program,
        buffers: Buffers,
        on: Option<&Combining>,
    ) -> Result<(), DeviceError> {
        self.buffers = buffers;
        self.cut = program.cut;
        self.segments = program.graph.segments();
        self.rooms.clear();
        self.starts.clear();
        let mut ends = [0usize; 3];
        for scratch in &program.scratch {
            let aside = scratch.aside && on.is_some();
            let end = match scratch.slot {
                true => &mut ends[2],
                false => &mut ends[usize::from(aside)],
            };
            let first = self.starts.len();
            let mut at = 0;
            let mut longest = 0;
            for piece in 0..scratch.pieces {
                let like = match scratch.lengths {
                    Lengths::Rotated(by) => piece + by,
                    Lengths::All(like) => like,
                };
                let bytes = self.size_like(like);
                self.starts.push(at);
                longest = longest.max(bytes);
                at += bytes;
            }
            self.starts.push(at);
            if let (true, Sizes::Each(each)) = (scratch.slot, &self.buffers.sizes) {
                // As long on all ranks.
                longest = each.iter().copied().max().unwrap_or(0);
            }
            let slot = if scratch.slots == 0 {
                0
            } else {
                self.longest_share(longest)
            };
            self.rooms.push(Room {
                offset: *end,
                starts: first,
                slots: scratch.slots,
                room: slot,
                aside,
                slot: scratch.slot,
            });
            let bytes = match scratch.slots {
                0 => at,
                slots => slot * slots as usize * scratch.pieces as usize,
            };
            *end += bytes;
            if !scratch.slot {
                *end = end.next_multiple_of(64);
            }
        }
        let [end, aside, slot] = ends;
        let has_slot = program.scratch.iter().any(|scratch| scratch.slot);
        self.slot_bytes = match &self.buffers.sizes {
            Sizes::Each(each) if has_slot && self.segments == 1 => {
                longest_slot(each.iter().copied())
            }
            _ => slot,
        };
        if let Some(on) = on {
            (self.base, self.aside) = Default::default();
            if end > 0 {
                self.base = on.scratch(&mut self.on_device, end + on.element.size())?;
            }
            if aside > 0 {
                self.aside = on.aside(&mut self.pinned, aside + on.element.size())?;
            }
            return Ok(());
        }
        if self.block.capacity() * 64 < end {
            // Nothing is cleared: no step reads what none has written.
            self.block = Vec::with_capacity(end.div_ceil(64));
        }
        self.base = RawView::untyped(self.block.as_mut_ptr().cast(), self.block.capacity() * 64);
        Ok(())
    }

    /// Forgets the buffers.
    pub fn end(&mut self) {
        self.buffers = Buffers::default();
        (self.base, self.aside) = Default::default();
        self.slot = RawView::default();
        if self.block.capacity() > KEPT_LINES {
            self.block = Vec::new();
        }
        for kept in [&mut self.on_device, &mut self.pinned] {
            kept.take_if(|kept| kept.bytes() > KEPT_ON_DEVICE);
        }
    }

    /// Frees memory that is only worth keeping for the next run.
    pub fn trim(&mut self) {
        if self.block.capacity() > SPARE_LINES {
            self.block = Vec::new();
        }
    }

    /// Segments of the program.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    fn longest_share(&self, bytes: usize) -> usize {
        longest_share(bytes, self.buffers.unit, self.segments)
    }

    /// Bytes of a scratch piece that is like piece `like` of the call.
    fn size_like(&self, like: u32) -> usize {
        match &self.buffers.sizes {
            Sizes::Empty => 0,
            Sizes::Equal(bytes) => *bytes,
            Sizes::Cut(bytes) => {
                let range = self.cut_range(*bytes, like % self.cut);
                range.len()
            }
            Sizes::Each(each) if each.is_empty() => 0,
            Sizes::Each(each) => each[like as usize % each.len()],
        }
    }

    fn cut_range(&self, bytes: usize, piece: u32) -> Range<usize> {
        let unit = self.buffers.unit;
        share(bytes, unit, piece, self.cut)..share(bytes, unit, piece + 1, self.cut)
    }

    /// The share of a piece's bytes that a segment is.
    fn segment(&self, bytes: usize, segment: u32) -> Range<usize> {
        let unit = self.buffers.unit;
        share(bytes, unit, segment, self.segments)..share(bytes, unit, segment + 1, self.segments)
    }

    /// Pieces of a buffer.
    fn pieces(&self, buffer: Buffer) -> u32 {
        let pieces = match buffer {
            Buffer::Send => &self.buffers.send,
            Buffer::Recv => &self.buffers.recv,
            Buffer::Scratch(k) => {
                let room = &self.rooms[k as usize];
                let next = self.rooms.get(k as usize + 1);
                let end = next.map_or(self.starts.len(), |next| next.starts);
                return (end - room.starts - 1) as u32;
            }
        };
        match pieces {
            Pieces::None => 0,
            Pieces::Equal(view, each) => view.bytes().checked_div(*each).unwrap_or(1).max(1) as u32,
            Pieces::Cut(_) => self.cut,
            Pieces::Ranges(_, ranges) => ranges.len() as u32,
            Pieces::Listed(views) => views.len() as u32,
        }
    }

    /// Where one segment of one piece is; none: in no buffer.
    fn place(&self, buffer: Buffer, piece: u32, segment: u32) -> Option<(&RawView, Range<usize>)> {
        let pieces = match buffer {
            Buffer::Send => &self.buffers.send,
            Buffer::Recv => &self.buffers.recv,
            Buffer::Scratch(k) => {
                let base = match self.rooms[usize::from(k)] {
                    Room { slot: true, .. } => &self.slot,
                    Room { aside: true, .. } => &self.aside.0,
                    _ => &self.base,
                };
                return Some((base, self.scratch(k, piece, segment)));
            }
        };
        let within = |view, whole: Range<usize>| {
            let range = self.segment(whole.len(), segment);
            Some((view, whole.start + range.start..whole.start + range.end))
        };
        match pieces {
            Pieces::None => None,
            Pieces::Equal(view, each) => {
                let start = piece as usize * each;
                within(view, start..start + each)
            }
            Pieces::Cut(view) => within(view, self.cut_range(view.bytes(), piece)),
            Pieces::Ranges(view, ranges) => within(view, ranges[piece as usize].clone()),
            Pieces::Listed(views) => {
                let view = &views[piece as usize];
                within(view, 0..view.bytes())
            }
        }
    }

    /// One segment of one piece.
    fn piece(&self, buffer: Buffer, piece: u32, segment: u32) -> RawView {
        match self.place(buffer, piece, segment) {
            Some((view, range)) => view.section(range),
            None => RawView::empty(),
        }
    }

    fn scratch(&self, k: u16, piece: u32, segment: u32) -> Range<usize> {
        let room = &self.rooms[k as usize];
        let at = room.starts + piece as usize;
        let (start, end) = (self.starts[at], self.starts[at + 1]);
        let range = self.segment(end - start, segment);
        let within = match room.slots {
            0 => start + range.start,
            slots => ((piece * slots + segment % slots) as usize) * room.room,
        };
        let start = room.offset + within;
        start..start + range.len()
    }

    /// What a region is in one segment.
    #[inline]
    pub fn view(&self, region: Region, segment: u32) -> RawView {
        if region.count == 0 {
            return RawView::empty();
        }
        if region.count == 1 {
            let pieces = self.pieces(region.buffer);
            let piece = if region.first < pieces {
                region.first
            } else {
                region.first % pieces
            };
            return self.piece(region.buffer, piece, segment);
        }
        let mut pieces = region.indices(self.pieces(region.buffer));
        let first = self.place(region.buffer, region.first, segment);
        if let Some((view, first)) = first.filter(|(view, _)| view.as_device().is_some()) {
            // One behind the other, as [`Program::lies_in_runs`] has found of all regions.
            let last = region.first + region.count - 1;
            let last = self.place(region.buffer, last, segment);
            return view.section(first.start..last.map_or(first.end, |(_, last)| last.end));
        }
        RawView::joined(
            &mut pieces
                .by_ref()
                .map(|p| self.piece(region.buffer, p, segment)),
        )
    }

    /// Bytes of the slot that peers read.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// It lies here.
    pub fn set_slot(&mut self, at: *mut u8) {
        self.slot = RawView::untyped(at, self.slot_bytes);
    }

    /// Where pieces of a peer lie in its slot, its input or its result, which are cut as this
    /// rank's.
    pub fn of_peer(&self, peer: u32, region: Region, segment: u32) -> Range<usize> {
        if let (Buffer::Scratch(k), Sizes::Each(_)) = (region.buffer, &self.buffers.sizes) {
            let (first, count) = (region.first as usize, region.count as usize);
            let range = shares_behind(peer as usize, first, count, |rank| {
                self.size_like(rank as u32)
            });
            if self.segments == 1 {
                return range;
            }
            let start = self.scratch(k, region.first, segment).start;
            return start..start + self.segment(range.len(), segment).len();
        }
        let last = region.first + region.count.max(1) - 1;
        let within = |whole: Range<usize>| {
            let range = self.segment(whole.len(), segment);
            whole.start + range.start..whole.start + range.end
        };
        let of = |piece: u32| match (region.buffer, &self.buffers.sizes) {
            (Buffer::Scratch(k), _) => self.scratch(k, piece, segment),
            (_, Sizes::Equal(each)) => within(piece as usize * each..(piece as usize + 1) * each),
            (_, Sizes::Cut(bytes)) => within(self.cut_range(*bytes, piece)),
            // Such calls have no plans that read peers.
            (_, Sizes::Empty | Sizes::Each(_)) => 0..0,
        };
        of(region.first).start..of(last).end
    }

    /// Bytes of a rank's contribution, where all contribute alike; of shares that differ and that
    /// all ranks know, see [`contributed`].
    pub fn contributed(&self) -> u64 {
        match &self.buffers.sizes {
            Sizes::Equal(bytes) | Sizes::Cut(bytes) => *bytes as u64,
            Sizes::Each(each) => contributed(each.iter().copied()),
            Sizes::Empty => 0,
        }
    }

    fn is_aside(&self, buffer: Buffer) -> bool {
        match buffer {
            Buffer::Scratch(k) => self.rooms[usize::from(k)].aside,
            _ => false,
        }
    }

    /// As [`Memory::view`], of a run on a device, as kernels reach it.
    pub fn for_kernels(&self, region: Region, segment: u32) -> RawView {
        let view = self.view(region, segment);
        let (host, kernels) = &self.aside;
        match (view.as_contiguous(), host.as_contiguous()) {
            (Some(at), Some(first)) if self.is_aside(region.buffer) => {
                let start = at as usize - first as usize;
                kernels.section(start..start + view.bytes())
            }
            _ => view,
        }
    }

    /// Where a region lies in one segment, if that is one run of bytes of the host.
    pub fn lies_in(&self, region: Region, segment: u32) -> Option<Contiguous> {
        let mut pieces = self.views(region, segment);
        let first = pieces.next()?;
        let at = first.as_contiguous()?;
        let mut bytes = first.bytes();
        for piece in pieces {
            if piece.as_contiguous()? != at.wrapping_add(bytes) {
                return None;
            }
            bytes += piece.bytes();
        }
        Some(Contiguous { at, bytes })
    }

    /// The pieces of a region in one segment, one by one.
    pub fn views(&self, region: Region, segment: u32) -> impl Iterator<Item = RawView> + '_ {
        let pieces = region.indices(self.pieces(region.buffer));
        pieces.map(move |p| self.piece(region.buffer, p, segment))
    }
}

/// Scratch that is kept for the next run: 16 MiB, since fresh pages cost more than what is
/// done there;
const KEPT_LINES: usize = 1 << 18;
/// for those that may follow beside it: 1 MiB each;
const SPARE_LINES: usize = 1 << 14;
/// and of a device, whose allocations take longer, these bytes.
const KEPT_ON_DEVICE: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_units_without_gaps() {
        for (bytes, unit) in [
            (0, 1),
            (7, 1),
            (100_000, 1),
            (96, 8),
            (24, 8),
            (17 * 12, 12),
        ] {
            for of in [1, 2, 3, 7, 64] {
                let mut end = 0;
                for at in 0..of {
                    let (from, to) = (share(bytes, unit, at, of), share(bytes, unit, at + 1, of));
                    assert_eq!(from, end);
                    assert!(to >= from && to <= bytes && from.is_multiple_of(unit));
                    end = to;
                }
                assert_eq!(end, bytes);
            }
        }
    }
}
