//! Cells: contributions of different lengths in a shared segment.
//!
//! The writer of a block and its reader alone know its length. So a rank's slot has one cell for
//! each rank that reads there, where the number of cells says, and a head with the length of the
//! block, in a place that does not hang on it:
//!
//! ```text
//! one cell      beside the flag   length, up to 24 bytes
//!               in the page       up to 1856 bytes
//! two           beside the flag   length, up to 8 bytes, of each
//!               in the page       up to 896 bytes each
//! more          in the page       cells, each with its length at the front
//! all           elsewhere         cells of 64 KiB in all, where a rank writes such a block
//! longer        a message, behind the flag
//! too many      all blocks are messages, whose lengths nobody reads
//! ```
//!
//! A length and a short block lie in one line, so a reader has two lines to fetch, the flag's and
//! that one, or the flag's alone.
//!
//! Steps follow one another as in other plans of a segment, but for messages: those leave when the
//! flag is raised, and come when the head was read, all at a time.
//!
//! # Invariants
//! 1. A cell and its head are inside the room that [`Segment::own_room`] or [`Segment::room_of`]
//!    gives, for lengths that [`Cells::place`] has put there.
//! 2. The head is written in each call before the flag is raised, so a rank that has seen the flag
//!    reads the length of this call's block. What it says is not trusted beyond its place.

use super::in_segment::{
    self, At, Contiguous, LEAST_TAKEN, Places, Segment, Taken, take_lines, unpack,
};
use super::run::copy;
use super::step::other_length;
use crate::error::{ErrorKind, Result};
use crate::view::RawView;
use osier_collectives::Region;
use osier_transports::PeerMemory;
use osier_transports::shm::{BESIDE_FLAG_BYTES, PAGE_SLOT_BYTES, SLOT_BYTES};

/// Bytes of the length of a block.
const HEAD_BYTES: usize = 8;
/// Cells whose lengths lie beside a flag.
const MOST_BESIDE: usize = 2;
/// Cells in a page have room for a length and as much again, so there are no more.
const MOST_CELLS: usize = PAGE_SLOT_BYTES / (2 * HEAD_BYTES);
/// Longer cells of a page begin with a line.
const LONG_CELL: usize = 256;
const LINE_BYTES: usize = 64;

/// The number of cells of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells(pub u32);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub at: u32,
    pub of: Cells,
}

/// Where a block lies: at byte `at` of a room of `room` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Room { room: usize, at: usize },
    Message,
}

impl Cells {
    #[inline]
    fn count(self) -> usize {
        self.0.max(1) as usize
    }

    /// Bytes of a cell in the page.
    #[inline]
    fn in_page(self) -> usize {
        let each = PAGE_SLOT_BYTES / self.count();
        each - each % if each >= LONG_CELL { LINE_BYTES } else { 8 }
    }

    /// Where the length of a block lies; none where there are too many.
    #[inline]
    fn head(self, cell: u32) -> Option<(usize, usize)> {
        let cell = cell as usize;
        match self.count() {
            cells @ ..=MOST_BESIDE => Some((BESIDE_FLAG_BYTES, cell * (BESIDE_FLAG_BYTES / cells))),
            ..=MOST_CELLS => Some((PAGE_SLOT_BYTES, cell * self.in_page())),
            _ => None,
        }
    }

    /// Where a block of `bytes` bytes lies.
    #[inline]
    pub fn place(self, cell: u32, bytes: usize) -> Place {
        let Some((room, head)) = self.head(cell) else {
            return Place::Message;
        };
        let (cells, cell) = (self.count(), cell as usize);
        let beside = room == BESIDE_FLAG_BYTES;
        if beside && bytes <= BESIDE_FLAG_BYTES / cells - HEAD_BYTES {
            let at = head + HEAD_BYTES;
            return Place::Room { room, at };
        }
        let each = self.in_page();
        let front = if beside { 0 } else { HEAD_BYTES };
        if bytes <= each - front {
            let (room, at) = (PAGE_SLOT_BYTES, cell * each + front);
            return Place::Room { room, at };
        }
        let each = SLOT_BYTES / cells / LINE_BYTES * LINE_BYTES;
        match bytes <= each {
            true => Place::Room {
                room: SLOT_BYTES,
                at: cell * each,
            },
            false => Place::Message,
        }
    }
}

/// A block in this rank's memory.
enum Own {
    Contiguous(Contiguous),
    View(RawView),
}

impl Own {
    #[inline]
    fn of<P: Places>(region: Region, at: At, places: &mut P) -> Own {
        match places.contiguous(region, at.segment) {
            Some(span) => Own::Contiguous(span),
            None => Own::View(places.own(region, at.segment)),
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        match self {
            Own::Contiguous(span) => span.bytes,
            Own::View(view) => view.bytes(),
        }
    }
}

/// Puts a block, and its length, where its reader finds them; of a longer one the length.
///
/// # Errors
/// There is no memory for it.
#[inline]
pub fn put<S: Segment, P: Places>(
    (data, cell): (Region, u32),
    at: At,
    segment: &mut S,
    places: &mut P,
) -> Result<()> {
    let cells = places.cells();
    let own = Own::of(data, at, places);
    let bytes = own.bytes();
    let Some((head_room, head_at)) = cells.head(cell) else {
        return Ok(());
    };
    let place = cells.place(cell, bytes);
    let write = |to: *mut u8| -> Result<()> {
        match &own {
            // SAFETY: invariant 1: room for as many bytes, apart from memory of the call.
            Own::Contiguous(span) => unsafe { in_segment::copy_short(span.at, to, bytes) },
            Own::View(view) => copy(view, &RawView::untyped(to, bytes))?,
        }
        Ok(())
    };
    if let Place::Room { room, at: from } = place
        && room != head_room
    {
        write(segment.own_room(at, room)?.wrapping_add(from))?;
    }
    // What goes beside the flag is asked for last, as much as is there.
    let beside = match place {
        Place::Room { room, .. } if room == head_room => bytes,
        _ => 0,
    };
    let room = match cells.count() {
        1 => HEAD_BYTES + beside,
        _ => head_room,
    };
    let base = segment.own_room(at, room)?;
    let head = base.wrapping_add(head_at).cast::<u64>();
    // SAFETY: invariant 1: inside the room, at a multiple of 8.
    unsafe { head.write(bytes as u64) };
    match place {
        Place::Room { room, at } if room == head_room => write(base.wrapping_add(at)),
        _ => Ok(()),
    }
}

/// The length of a peer's block, whose flag was seen, and the room of bytes where that stands.
///
/// # Errors
/// It has none there.
#[inline]
fn length<S: Segment>(
    cell: Cell,
    at: At,
    segment: &mut S,
    from: u32,
) -> Result<(usize, Option<(usize, PeerMemory)>)> {
    let Some((room, head_at)) = cell.of.head(cell.at) else {
        // As of a message.
        return Ok((usize::MAX, None));
    };
    let memory = segment.room_of(at, from, room)?;
    let mut length = [0u8; HEAD_BYTES];
    // SAFETY: invariant 1: as many bytes.
    unsafe { read(&memory, head_at, length.as_mut_ptr(), HEAD_BYTES) }?;
    let bytes = usize::try_from(u64::from_ne_bytes(length)).unwrap_or(usize::MAX);
    Ok((bytes, Some((room, memory))))
}

/// Copies from a peer's memory, of a few bytes without a call.
///
/// # Errors
/// They are not there.
///
/// # Safety
/// `to` is writable for as many bytes.
#[inline]
unsafe fn read(memory: &PeerMemory, from: usize, to: *mut u8, bytes: usize) -> Result<()> {
    let inside = from
        .checked_add(bytes)
        .is_some_and(|end| end <= memory.len());
    match memory.address().filter(|_| inside) {
        Some(start) => {
            // SAFETY: invariant 1: as many bytes each.
            unsafe { in_segment::copy_short(start.wrapping_add(from), to, bytes) };
            Ok(())
        }
        // SAFETY: invariant 1: by the caller's contract.
        None => Ok(unsafe { memory.read(from, to, bytes) }?),
    }
}

/// Whether a peer's block, whose flag was seen, comes by a message.
///
/// # Errors
/// It has no slot.
pub fn comes_by_message<S: Segment>(
    cell: Cell,
    at: At,
    segment: &mut S,
    from: u32,
) -> Result<bool> {
    let (bytes, _) = length(cell, at, segment, from)?;
    Ok(cell.of.place(cell.at, bytes) == Place::Message)
}

/// Copies a peer's block from where it lies. A longer one comes by a message.
#[inline]
pub fn take<S: Segment, P: Places>(
    (from, cell, into): (u32, Cell, Region),
    at: At,
    segment: &mut S,
    places: &mut P,
) -> Taken {
    let done = (|| -> Result<Option<(usize, usize)>> {
        let (bytes, head) = length(cell, at, segment, from)?;
        let Place::Room { room, at: start } = cell.of.place(cell.at, bytes) else {
            return Ok(None);
        };
        let own = Own::of(into, at, places);
        let wanted = own.bytes();
        if bytes != wanted || bytes == 0 {
            return Ok(Some((bytes, wanted)));
        }
        let memory = match head {
            Some((same, memory)) if same == room => memory,
            _ => segment.room_of(at, from, room)?,
        };
        match own {
            // SAFETY: invariant 1: as many bytes of this rank's own.
            Own::Contiguous(span) => unsafe { read(&memory, start, span.at, bytes) }?,
            Own::View(view) => unpack_from(memory, start, &view)?,
        }
        if places.one_reader() && room != BESIDE_FLAG_BYTES && bytes >= LEAST_TAKEN {
            take_lines(&memory, start, bytes);
        }
        Ok(Some((bytes, wanted)))
    })();
    match done {
        Ok(None) => Taken::ByMessage,
        Ok(Some((bytes, wanted))) if bytes == wanted => Taken::Done,
        Ok(Some((bytes, wanted))) => {
            // The errors that a message of this length would end with.
            let kind = match bytes > wanted {
                true => ErrorKind::Truncated,
                false => ErrorKind::Argument,
            };
            let e = other_length(kind, from, bytes, segment.rank(), wanted);
            Taken::Failed(e, super::executor::NOBODY)
        }
        Err(e) => {
            let (e, failed_rank) = segment.lost_while_reading(from, e);
            Taken::Failed(e, failed_rank)
        }
    }
}

fn unpack_from(memory: PeerMemory, start: usize, into: &RawView) -> Result<()> {
    unpack(&in_segment::Source::Peer(memory, start), into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of all lengths lie inside, and apart from each other and from the heads.
    #[test]
    fn cells_lie_apart() {
        for count in 1..=130u32 {
            let cells = Cells(count);
            for bytes in (0..2000).chain([3000, 20_000, 32_768, 65_536, 65_537]) {
                let mut taken: Vec<(usize, usize, usize)> = Vec::new();
                for cell in 0..count {
                    let Some((room, at)) = cells.head(cell) else {
                        assert!(count > 100 && cells.place(cell, bytes) == Place::Message);
                        continue;
                    };
                    taken.push((room, at, at + HEAD_BYTES));
                    assert!(at.is_multiple_of(8) && at + HEAD_BYTES <= room);
                    match cells.place(cell, bytes) {
                        Place::Room { room, at } => {
                            assert!(
                                at.is_multiple_of(8) && at + bytes <= room,
                                "{count} {bytes}"
                            );
                            taken.push((room, at, at + bytes));
                        }
                        Place::Message => assert!(bytes > SLOT_BYTES / count as usize - 64),
                    }
                }
                taken.sort_unstable();
                for pair in taken.windows(2) {
                    let apart = pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
                    assert!(apart, "{count} cells, {bytes} bytes: {pair:?}");
                }
            }
        }
    }
}
