//! Cells: contributions of different lengths in a shared segment.
//!
//! The writer of a block and its reader alone know its length. So a rank's slot has one cell for
//! each rank that reads there, where the number of cells says, and a head with the length of the
//! block, in a place that does not hang on it:
//!
//! ```text
//! one cell      beside the flag   length, up to 24 bytes
//!               in the page       up to 1856 bytes
//! more cells    in the page       lengths, then cells of what is left
//! all           elsewhere         cells of 64 KiB in all, where a rank writes such a block
//! longer        a message, behind the flag
//! ```
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
/// Of a block beside a flag.
const BESIDE_BYTES: usize = BESIDE_FLAG_BYTES - HEAD_BYTES;

/// The number of cells of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells(pub u32);

/// Where a block lies: at byte `at` of a room of `room` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Room { room: usize, at: usize },
    Message,
}

impl Cells {
    /// Where the length of a block lies.
    #[inline]
    fn head(self, cell: u32) -> (usize, usize) {
        match self.0 {
            0 | 1 => (BESIDE_FLAG_BYTES, 0),
            _ => (PAGE_SLOT_BYTES, cell as usize * HEAD_BYTES),
        }
    }

    /// Where a block of `bytes` bytes lies.
    #[inline]
    pub fn place(self, cell: u32, bytes: usize) -> Place {
        let (cells, at) = (self.0.max(1) as usize, cell as usize);
        if cells == 1 && bytes <= BESIDE_BYTES {
            let (room, at) = (BESIDE_FLAG_BYTES, HEAD_BYTES);
            return Place::Room { room, at };
        }
        let heads = if cells == 1 { 0 } else { cells * HEAD_BYTES };
        let each = PAGE_SLOT_BYTES.saturating_sub(heads) / cells / 8 * 8;
        if bytes <= each {
            let (room, at) = (PAGE_SLOT_BYTES, heads + at * each);
            return Place::Room { room, at };
        }
        let each = SLOT_BYTES / cells / 64 * 64;
        match bytes <= each {
            true => Place::Room {
                room: SLOT_BYTES,
                at: at * each,
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
    let (head_room, head_at) = cells.head(cell);
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
    // What goes beside the flag is asked for last.
    let beside = match place {
        Place::Room { room, .. } if room == head_room => bytes,
        _ => 0,
    };
    let room = match head_room {
        BESIDE_FLAG_BYTES => HEAD_BYTES + beside,
        room => room,
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

/// The length of a peer's block, whose flag was seen.
///
/// # Errors
/// It has none there.
#[inline]
fn length<S: Segment>(cells: Cells, cell: u32, at: At, segment: &mut S, from: u32) -> Result<u64> {
    let (room, head_at) = cells.head(cell);
    let memory = segment.room_of(at, from, room)?;
    let mut length = [0u8; HEAD_BYTES];
    // SAFETY: invariant 1: as many bytes.
    unsafe { memory.read(head_at, length.as_mut_ptr(), HEAD_BYTES) }?;
    Ok(u64::from_ne_bytes(length))
}

/// Whether a peer's block, whose flag was seen, comes by a message.
///
/// # Errors
/// It has no slot.
pub fn comes_by_message<S: Segment>(
    cells: Cells,
    cell: u32,
    at: At,
    segment: &mut S,
    from: u32,
) -> Result<bool> {
    let bytes = length(cells, cell, at, segment, from)?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(cells.place(cell, bytes) == Place::Message)
}

/// Copies a peer's block from where it lies. A longer one comes by a message.
#[inline]
pub fn take<S: Segment, P: Places>(
    (from, cell, into): (u32, u32, Region),
    at: At,
    segment: &mut S,
    places: &mut P,
) -> Taken {
    let cells = places.cells();
    let done = (|| -> Result<Option<(usize, usize)>> {
        let bytes = length(cells, cell, at, segment, from)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let Place::Room { room, at: start } = cells.place(cell, bytes) else {
            return Ok(None);
        };
        let own = Own::of(into, at, places);
        let wanted = own.bytes();
        if bytes != wanted || bytes == 0 {
            return Ok(Some((bytes, wanted)));
        }
        let memory = segment.room_of(at, from, room)?;
        match own {
            // SAFETY: invariant 1: as many bytes of this rank's own.
            Own::Contiguous(span) => unsafe { memory.read(start, span.at, bytes) }?,
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
        for count in 1..=64u32 {
            let cells = Cells(count);
            for bytes in (0..2000).chain([3000, 20_000, 32_768, 65_536, 65_537]) {
                let mut taken: Vec<(usize, usize, usize)> = Vec::new();
                for cell in 0..count {
                    let (room, at) = cells.head(cell);
                    taken.push((room, at, at + HEAD_BYTES));
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
