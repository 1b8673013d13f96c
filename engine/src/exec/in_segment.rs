//! Steps of plans whose ranks share a segment: flags, slots, and reads of peers' memory.
//!
//! ```text
//! Enter     the segment is there, and peers are done with the call of this parity before
//! Publish   where this rank's input and result lie
//! Raise     how far this rank is, as a number that grows
//! Await     how far a peer is
//! Read      copies out of a peer's slot or buffer
//! Fold      combines out of them
//! Leave     this rank has completed the call, or one of its segments
//! ```
//!
//! They follow one another, in the executor and within a blocking call alike; what waits is
//! one flag at a time. A rank that fails says so in place of its flags, and leaves the call
//! only when its peers have read what it has published.
//!
//! # Invariants
//! 1. A peer's memory is read by address, never borrowed: by copies into memory of this rank,
//!    which functions of the user get, or by operators of the library. A peer that goes wrong
//!    makes wrong results.
//! 2. Views are those of the call's own memory (invariants 2 to 4 of `run`); the scratch that
//!    operands are copied to is this thread's, taken while it is used, and as long as is said.
//! 3. Nobody writes what a rank reads of a call before that rank is done with it: slots by
//!    invariant 3 of the segment, lent and published memory by the plan's last flags.

use super::cells::{self, Cells};
use super::inline::Desk;
use super::memory::BYTES_BITS;
use super::operator::Fitted;
use super::program::Action;
use super::run::copy;
use super::step::other_length;
use crate::error::{Error, ErrorKind, Result};
use crate::view::RawView;
use osier_collectives::{Buffer, Operand, Region};
use osier_datatype::{Element, Operator};
use osier_transports::PeerMemory;
use osier_transports::shm::BESIDE_FLAG_BYTES;
use std::cell::Cell;
use std::ops::Range;

/// The progress of a rank that has failed.
pub const FAILED: u16 = u16::MAX;
/// Segments of a call.
pub const MOST_SEGMENTS: u32 = 4096;
/// Bytes of a mapped operand that are combined at a time: with the result, half of a small
/// first-level cache.
const NEAR_BYTES: usize = 8 << 10;
/// Lines of shorter pieces are not taken: see [`PeerMemory::take_lines`].
pub(crate) const LEAST_TAKEN: usize = 256;
/// Shorter memory is copied to the slot: who lends waits for its readers.
pub(super) const LEAST_LENT: usize = 16 << 10;
/// The same of the root of a broadcast, which waits for nobody if it has copied.
pub(super) const LEAST_LENT_BY_ROOT: usize = 128 << 10;
/// Bytes of another process's operand that the kernel copies at a time.
const ATTACH_BYTES: usize = 64 << 10;

/// A segment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Where its flags lie: [`IN_ORDER`], or the number of a persistent call.
    pub of: u32,
    /// The number of the call there.
    pub call: u32,
    pub segment: u16,
}

/// The shared segment of calls that all ranks begin in one order.
pub const IN_ORDER: u32 = 0;

/// How far something is that waits for a peer.
pub enum Waited<T> {
    Done(T),
    /// For this peer.
    For(u32),
    /// Why it will not come, and the failed rank of the job.
    Failed(Error, u32),
}

/// What of a peer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its slot, of so many bytes.
    Slot(usize),
    Input,
    Output,
}

/// The segment of a rank's communicator.
pub trait Segment {
    /// This rank.
    fn rank(&self) -> u32;

    /// Begins a segment of a call: the memory that this rank writes for others.
    fn enter(&mut self, at: At, slot_bytes: usize) -> Waited<*mut u8>;

    /// Says where this rank's input and result lie.
    ///
    /// # Errors
    /// Peers cannot read them.
    fn publish(&mut self, at: At, input: &RawView, output: &RawView) -> Result<()>;

    /// Has peers read memory where it lies, in place of this rank's slot, until the call ends;
    /// false: some cannot. Without memory: they read the slot.
    fn lend(&mut self, at: At, memory: Option<(*const u8, usize)>) -> bool;

    /// Raises this rank's flag; `bytes` are those of its contribution.
    fn raise(&mut self, at: At, phase: u16, bytes: u64);

    /// Whether this rank may write its flag: peers are done with the call of this parity before.
    fn may_raise(&mut self, at: At) -> Waited<()>;

    /// Raises a flag that says that this rank has failed, for this one of the job.
    fn raise_failed(&mut self, at: At, failed_rank: u32);

    /// Whether a peer's flag is raised; what it contributes, in bytes.
    fn flag(&mut self, at: At, from: u32, phase: u16) -> Waited<u64>;

    /// Whether a peer may still read this rank's memory in a call, though nothing comes of it any
    /// more: it lives, and this rank takes no part as the communicator is revoked.
    fn may_read(&mut self, at: At, from: u32) -> bool;

    /// Ranks have made other calls: whose turn it is to write which slot is counted anew.
    fn turns_anew(&mut self, of: u32);

    /// Memory of a peer whose flag is raised, up to `end`.
    ///
    /// # Errors
    /// There is none there.
    fn memory_of(&mut self, at: At, from: u32, part: Part, end: usize) -> Result<PeerMemory>;

    /// Memory of `bytes` bytes in which this rank writes for its peers: beside the flag, in its
    /// page, or in a slot elsewhere. What goes beside the flag is asked for last.
    ///
    /// # Errors
    /// There is no memory for it.
    fn own_room(&mut self, at: At, bytes: usize) -> Result<*mut u8>;

    /// The same memory of a peer whose flag is raised.
    ///
    /// # Errors
    /// There is none.
    fn room_of(&mut self, at: At, from: u32, bytes: usize) -> Result<PeerMemory>;

    /// Ends a segment of a call, or its last: this rank reads nothing of it any more. A call
    /// that has lent memory ends when its peers do not, either.
    fn leave(&mut self, at: At, last: bool) -> Waited<()>;

    /// The failed rank of the job that an error in reading a peer's memory is for, and the
    /// error as this rank has it.
    fn lost_while_reading(&mut self, from: u32, e: Error) -> (Error, u32);
}

/// Where the regions of a plan in a segment lie.
pub trait Places {
    /// Own memory of a region, in one segment.
    fn own(&mut self, region: Region, segment: u16) -> RawView;

    /// The same where it has no gaps.
    fn contiguous(&mut self, region: Region, segment: u16) -> Option<Contiguous>;

    /// Where a peer's pieces lie in its slot, its input or its result, in one segment.
    fn of_peer(&mut self, peer: u32, region: Region, segment: u16) -> Range<usize>;

    /// Segments of the call.
    fn segments(&self) -> u32;

    /// Whether one rank reads each piece of a slot.
    fn one_reader(&self) -> bool;

    /// How long memory that goes to the slot is at least for peers to read it where it lies;
    /// `None` if they must not.
    fn least_lent(&self) -> Option<usize>;

    /// Bytes of what each rank contributes, as all know.
    fn bytes(&self) -> u64;

    /// Bytes of the slot.
    fn slot_bytes(&self) -> usize;

    /// Where it lies.
    fn set_slot(&mut self, at: *mut u8);

    /// Cells of the slot, where contributions differ.
    fn cells(&self) -> Cells {
        Cells(0)
    }

    /// What combines.
    fn operator(&self) -> Option<Fitted<'_>>;
}

/// How far a step is.
pub enum Taken {
    Done,
    /// It waits for this peer.
    Waits(u32),
    /// What it would take comes by a message.
    ByMessage,
    /// Its error, and the failed rank of the job.
    Failed(Error, u32),
}

impl Taken {
    fn of(result: Result<()>) -> Taken {
        match result {
            Ok(()) => Taken::Done,
            Err(e) => Taken::Failed(e, super::executor::NOBODY),
        }
    }
}

/// Contiguous memory of this rank's own, during a call.
#[derive(Clone, Copy, Debug)]
pub struct Contiguous {
    pub at: *mut u8,
    pub bytes: usize,
}

// SAFETY: invariant 2: memory of the call, which any thread that executes the step may use.
unsafe impl Send for Contiguous {}
// SAFETY: invariant 2: an address and a length, which do not change.
unsafe impl Sync for Contiguous {}

/// An operand that is combined, or a source that is copied.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    Own(Contiguous),
    /// A peer's memory, from this offset on.
    Peer(PeerMemory, usize),
}

#[inline]
fn source<S: Segment, P: Places>(
    segment: &mut S,
    places: &mut P,
    at: At,
    operand: Operand,
) -> Result<Source> {
    let Some(peer) = operand.of else {
        return Ok(Source::Own(own_contiguous(places, at, operand.data)?));
    };
    let part = match operand.data.buffer {
        Buffer::Scratch(_) => Part::Slot(places.slot_bytes()),
        Buffer::Send => Part::Input,
        Buffer::Recv => Part::Output,
    };
    let range = places.of_peer(peer, operand.data, at.segment);
    let memory = segment.memory_of(at, peer, part, range.end)?;
    Ok(Source::Peer(memory, range.start))
}

#[inline]
fn own_contiguous<P: Places>(places: &mut P, at: At, data: Region) -> Result<Contiguous> {
    places.contiguous(data, at.segment).ok_or_else(|| {
        let told = "operands with gaps cannot be combined in place";
        Error::new(ErrorKind::Argument, told)
    })
}

/// A combination, with its operands.
///
/// # Errors
/// What a peer says of its memory is not true.
#[inline]
pub fn operands<S: Segment, P: Places>(
    segment: &mut S,
    places: &mut P,
    at: At,
    (left, right, into): (Operand, Operand, Region),
) -> Result<(Source, Source, Contiguous)> {
    let left = source(segment, places, at, left)?;
    let right = source(segment, places, at, right)?;
    Ok((left, right, own_contiguous(places, at, into)?))
}

/// Takes one step. Steps of other plans are none of it.
#[inline]
pub fn execute<S: Segment, P: Places>(
    action: &Action,
    at: At,
    segment: &mut S,
    places: &mut P,
) -> Taken {
    match *action {
        Action::Enter => match segment.enter(at, places.slot_bytes()) {
            Waited::Done(slot) => {
                places.set_slot(slot);
                Taken::Done
            }
            Waited::For(peer) => Taken::Waits(peer),
            Waited::Failed(e, failed_rank) => Taken::Failed(e, failed_rank),
        },
        Action::Publish { input, output } => {
            let (input, output) = (places.own(input, 0), places.own(output, 0));
            Taken::of(segment.publish(at, &input, &output))
        }
        Action::Raise { phase } => {
            segment.raise(at, phase, places.bytes());
            Taken::Done
        }
        Action::Await { from, phase } => match segment.flag(at, from, phase) {
            Waited::Done(bytes) if bytes == places.bytes() => Taken::Done,
            Waited::Done(bytes) => {
                segment.turns_anew(at.of);
                let plain = |bytes: u64| bytes & ((1 << BYTES_BITS) - 1);
                let (bytes, own_bytes) = (plain(bytes), plain(places.bytes()));
                if bytes == own_bytes {
                    return Taken::of(Err(other_counts(from, segment.rank())));
                }
                let (own, room) = (segment.rank(), own_bytes as usize);
                // As a message of so many bytes ends.
                let kind = match bytes as usize > room {
                    true => ErrorKind::Truncated,
                    false => ErrorKind::Argument,
                };
                Taken::of(Err(other_length(kind, from, bytes as usize, own, room)))
            }
            Waited::For(peer) => Taken::Waits(peer),
            Waited::Failed(e, failed_rank) => Taken::Failed(e, failed_rank),
        },
        Action::Copy { from, to } => {
            let slot = is_slot(to) && places.slot_bytes() > BESIDE_FLAG_BYTES;
            let span = places.contiguous(from, at.segment);
            let least = places.least_lent().filter(|_| slot);
            let long = span.filter(|span| least.is_some_and(|least| span.bytes >= least));
            let memory = long.map(|span| (span.at.cast_const(), span.bytes));
            if slot && (segment.lend(at, memory) && memory.is_some()) {
                return Taken::Done;
            }
            match (span, places.contiguous(to, at.segment)) {
                (Some(from), Some(to)) if from.bytes == to.bytes => {
                    // SAFETY: invariant 2: as many bytes each; they may overlap.
                    unsafe { copy_short(from.at, to.at, from.bytes) };
                    Taken::Done
                }
                _ => {
                    let from = places.own(from, at.segment);
                    Taken::of(copy(&from, &places.own(to, at.segment)))
                }
            }
        }
        Action::Read { from, data, into } => {
            let source = source(segment, places, at, Operand::of_peer(from, data));
            let done = source.and_then(|source| {
                let bytes = match places.contiguous(into, at.segment) {
                    Some(into) => {
                        // SAFETY: invariant 2: as many bytes of this rank's own.
                        unsafe { source.copy_to(0, into.at, into.bytes) }?;
                        into.bytes
                    }
                    None => {
                        let into = places.own(into, at.segment);
                        unpack(&source, &into)?;
                        into.bytes()
                    }
                };
                source.take_lines(places.one_reader() && is_slot(data), bytes);
                Ok(())
            });
            of_peer(segment, from, done)
        }
        Action::Fold { left, right, into } => {
            // What lies beside the flag since a call before is no place of lent memory.
            if is_slot(into) && places.slot_bytes() > BESIDE_FLAG_BYTES {
                segment.lend(at, None);
            }
            let all = operands(segment, places, at, (left, right, into));
            let done = all.and_then(|(one, other, into)| {
                fold(
                    places.operator().ok_or_else(no_operator)?,
                    &one,
                    &other,
                    into,
                )?;
                let one_reader = places.one_reader();
                for (source, operand) in [(&one, left), (&other, right)] {
                    source.take_lines(one_reader && is_slot(operand.data), into.bytes);
                }
                Ok(())
            });
            of_peer(segment, left.of.or(right.of).unwrap_or(0), done)
        }
        Action::Leave => {
            let last = u32::from(at.segment) + 1 >= places.segments();
            match segment.leave(at, last) {
                Waited::Done(()) => Taken::Done,
                Waited::For(peer) => Taken::Waits(peer),
                Waited::Failed(e, failed_rank) => Taken::Failed(e, failed_rank),
            }
        }
        Action::Put { data, cell } => Taken::of(cells::put((data, cell), at, segment, places)),
        Action::Take { from, cell, into } => cells::take((from, cell, into), at, segment, places),
        // Messages are posted by the executor, once lengths are known.
        Action::SendLong { .. } | Action::ReceiveLong { .. } => Taken::ByMessage,
        Action::Send { .. }
        | Action::Receive { .. }
        | Action::Combine { .. }
        | Action::Exchange { .. } => Taken::of(Err(Error::new(
            ErrorKind::Unavailable,
            "a step of another kind in a plan of a segment",
        ))),
    }
}

/// What comes of reading a peer's memory.
#[inline]
fn of_peer<S: Segment>(segment: &mut S, peer: u32, done: Result<()>) -> Taken {
    match done {
        Ok(()) => Taken::Done,
        Err(e) => {
            let (e, failed_rank) = segment.lost_while_reading(peer, e);
            Taken::Failed(e, failed_rank)
        }
    }
}

fn is_slot(data: Region) -> bool {
    matches!(data.buffer, Buffer::Scratch(_))
}

#[cold]
fn other_count(has: usize, bytes: usize) -> Error {
    Error::new(
        ErrorKind::Argument,
        format!("{has} bytes into {bytes} (hint: all ranks pass the same count)"),
    )
}

#[cold]
fn other_counts(from: u32, own: u32) -> Error {
    let told = format!(
        "rank {from} passes other counts than rank {own} (hint: all ranks pass the same counts)"
    );
    Error::new(ErrorKind::Argument, told)
}

#[cold]
fn no_operator() -> Error {
    Error::new(ErrorKind::Argument, "a reduction without operator")
}

thread_local! {
    /// Warm memory for operands.
    static WARM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with warm memory of so many bytes.
fn with_warm<R>(bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut warm = WARM.try_with(Cell::take).unwrap_or_default();
    if warm.len() < bytes {
        warm.resize(bytes, 0);
    }
    let result = f(&mut warm[..bytes]);
    let _ = WARM.try_with(|kept| kept.set(warm));
    result
}

/// Copies `bytes` bytes, quickest if they are 4 or 8.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes; they may overlap.
#[inline]
pub(crate) unsafe fn copy_short(from: *const u8, to: *mut u8, bytes: usize) {
    match bytes {
        // As one load and one store.
        // SAFETY: invariant 2, by the caller's contract.
        8 => unsafe { std::ptr::copy(from, to, 8) },
        // SAFETY: invariant 2, by the caller's contract.
        4 => unsafe { std::ptr::copy(from, to, 4) },
        // SAFETY: invariant 2, by the caller's contract.
        _ => unsafe { std::ptr::copy(from, to, bytes) },
    }
}

/// Copies a source to memory with gaps.
///
/// # Errors
/// The lengths differ, or the peer's memory cannot be read.
pub(super) fn unpack(from: &Source, to: &RawView) -> Result<()> {
    let bytes = to.bytes();
    with_warm(ATTACH_BYTES.min(bytes), |warm| {
        let mut at = 0;
        while at < bytes {
            let n = warm.len().min(bytes - at);
            // SAFETY: invariant 2: the slice has `n` bytes.
            unsafe { from.copy_to(at, warm.as_mut_ptr(), n) }?;
            // SAFETY: invariant 2: the range is the view's, and the block is elsewhere.
            unsafe { to.unpack(at..at + n, warm.as_ptr()) };
            at += n;
        }
        Ok(())
    })
}

impl Source {
    /// Its address, if it is memory of this process or mapped. Only for copying from.
    #[inline]
    fn address(&self) -> Option<*const u8> {
        match self {
            Source::Own(span) => Some(span.at.cast_const()),
            Source::Peer(memory, offset) => memory.address().map(|at| at.wrapping_add(*offset)),
        }
    }

    /// That as many bytes of it are there.
    #[inline]
    fn has(&self, bytes: usize) -> Result<()> {
        let (fits, has) = match self {
            Source::Own(span) => (span.bytes == bytes, span.bytes),
            Source::Peer(memory, offset) => {
                let end = offset.checked_add(bytes);
                (end.is_some_and(|end| end <= memory.len()), memory.len())
            }
        };
        match fits {
            true => Ok(()),
            false => Err(other_count(has, bytes)),
        }
    }

    /// Copies some bytes of it.
    ///
    /// # Errors
    /// They are not there, or the peer's memory cannot be read.
    ///
    /// # Safety
    /// `to` is writable for `n` bytes, apart from the source.
    #[inline]
    unsafe fn copy_to(&self, at: usize, to: *mut u8, n: usize) -> Result<()> {
        match self {
            Source::Own(span) => {
                if at.checked_add(n).is_none_or(|end| end > span.bytes) {
                    return Err(other_count(span.bytes, at.saturating_add(n)));
                }
                // SAFETY: invariant 2, by the check and the caller's contract.
                unsafe { std::ptr::copy_nonoverlapping(span.at.wrapping_add(at), to, n) };
                Ok(())
            }
            // SAFETY: invariant 2, by the caller's contract.
            Source::Peer(memory, offset) => Ok(unsafe { memory.read(offset + at, to, n) }?),
        }
    }

    /// Takes the lines of what was read, of a slot that nobody else reads.
    #[inline]
    fn take_lines(&self, takes: bool, bytes: usize) {
        if let Source::Peer(memory, offset) = self
            && takes
            && bytes >= LEAST_TAKEN
        {
            take_lines(memory, *offset, bytes);
        }
    }
}

/// Takes the lines of what was read of a peer's slot, which nobody else reads.
#[inline]
pub(super) fn take_lines(memory: &PeerMemory, at: usize, bytes: usize) {
    // SAFETY: invariant 3.
    unsafe { memory.take_lines(at, bytes) };
}

/// `into = left op right`, of which operands are read where they lie, block by block.
///
/// # Errors
/// The operator's, or a peer's memory cannot be read.
#[inline]
pub fn fold(
    by: Fitted<'_>,
    left: &Source,
    right: &Source,
    Contiguous { at: to, bytes }: Contiguous,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    left.has(bytes)?;
    right.has(bytes)?;
    match by.known {
        Some(known) => fold_known(known, left, right, (to, bytes)),
        None => fold_copies(by, left, right, (to, bytes)),
    }
}

/// By an operator of the library, which reads operands by address.
#[inline]
fn fold_known(
    (operator, element): (Operator, Element),
    left: &Source,
    right: &Source,
    (to, bytes): (*mut u8, usize),
) -> Result<()> {
    let (left_at, right_at) = (left.address(), right.address());
    if let (Some(left), Some(right)) = (left_at, right_at) {
        // SAFETY: invariant 2: as many bytes each, of pieces that are apart, or one.
        return Ok(unsafe { operator.combine_raw(element, left, right, to, bytes) }?);
    }
    // The kernel copies.
    let step = (ATTACH_BYTES / element.size()).max(1) * element.size();
    let step = step.min(bytes);
    with_warm(2 * step, |warm| {
        let (first, second) = warm.split_at_mut(step);
        for at in (0..bytes).step_by(step) {
            let n = step.min(bytes - at);
            let here = |source: &Source, known: Option<*const u8>, room: &mut [u8]| match known {
                Some(known) => Ok(known.wrapping_add(at)),
                None => {
                    // SAFETY: invariant 2: room for `n` bytes.
                    unsafe { source.copy_to(at, room.as_mut_ptr(), n) }?;
                    Ok::<_, Error>(room.as_ptr())
                }
            };
            let left = here(left, left_at, &mut *first)?;
            let right = here(right, right_at, &mut *second)?;
            let to = to.wrapping_add(at);
            // SAFETY: invariant 2: as many bytes each, of pieces that are apart, or one.
            unsafe { operator.combine_raw(element, left, right, to, n) }?;
        }
        Ok(())
    })
}

/// By a function, which gets copies of this thread's.
fn fold_copies(
    Fitted { operator, fit, .. }: Fitted<'_>,
    left: &Source,
    right: &Source,
    (to, bytes): (*mut u8, usize),
) -> Result<()> {
    let far = |source: &Source| matches!(source, Source::Peer(m, _) if m.address().is_none());
    let most = match far(left) || far(right) {
        true => ATTACH_BYTES,
        false => NEAR_BYTES,
    };
    let step = (most / fit.unit).max(1) * fit.unit;
    let step = step.min(bytes);
    with_warm(2 * step, |warm| {
        let (first, second) = warm.split_at_mut(step);
        for at in (0..bytes).step_by(step) {
            let n = step.min(bytes - at);
            let (first, second) = (&mut first[..n], &mut second[..n]);
            // SAFETY: invariant 2: room for `n` bytes.
            unsafe { left.copy_to(at, first.as_mut_ptr(), n) }?;
            // SAFETY: invariant 2: room for `n` bytes.
            unsafe { right.copy_to(at, second.as_mut_ptr(), n) }?;
            operator.combine(fit, first, second)?;
            // SAFETY: invariant 2: as many bytes of the run's own.
            unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), to.wrapping_add(at), n) };
        }
        Ok(())
    })
}

impl Places for Desk<'_> {
    #[inline]
    fn own(&mut self, region: Region, segment: u16) -> RawView {
        let Contiguous { at, bytes } = self.place(region, segment);
        RawView::untyped(at, bytes)
    }

    #[inline]
    fn contiguous(&mut self, region: Region, segment: u16) -> Option<Contiguous> {
        Some(self.place(region, segment))
    }

    #[inline]
    fn of_peer(&mut self, _peer: u32, region: Region, segment: u16) -> Range<usize> {
        self.in_slot(region, segment)
    }

    #[inline]
    fn segments(&self) -> u32 {
        self.cut_into()
    }

    #[inline]
    fn one_reader(&self) -> bool {
        self.has_one_reader()
    }

    #[inline]
    fn least_lent(&self) -> Option<usize> {
        self.least_that_is_lent()
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.bytes_of_piece() as u64
    }

    #[inline]
    fn slot_bytes(&self) -> usize {
        self.bytes_of_slot()
    }

    #[inline]
    fn set_slot(&mut self, at: *mut u8) {
        self.slot_at(at);
    }

    #[inline]
    fn operator(&self) -> Option<Fitted<'_>> {
        self.combiner()
    }
}

#[cfg(test)]
mod tests {
    use super::super::operator::{Fit, Reduction};
    use super::*;
    use osier_collectives::Association;

    /// Subtraction, which neither commutes nor associates, of bytes.
    struct Minus;

    impl Reduction for Minus {
        fn fit(&self, _: &super::super::operator::Data<'_>) -> Result<Fit> {
            Ok(Fit::of_unit(1, Association::Balanced))
        }

        fn combine(&self, _: &Fit, left: &mut [u8], right: &[u8]) -> Result<()> {
            left.iter_mut()
                .zip(right)
                .for_each(|(l, r)| *l = l.wrapping_sub(*r));
            Ok(())
        }
    }

    fn view(bytes: &mut [u8]) -> Contiguous {
        Contiguous {
            at: bytes.as_mut_ptr(),
            bytes: bytes.len(),
        }
    }

    fn of_peer(bytes: &[u8]) -> Source {
        // SAFETY: invariant 3: the vector outlives its use.
        Source::Peer(
            unsafe { PeerMemory::mapped(bytes.as_ptr(), bytes.len()) },
            0,
        )
    }

    /// Operands may be a peer's or own, and the result take the place of an own one.
    #[test]
    fn folds_are_left_op_right_wherever_operands_lie() {
        let fit = Fit::of_unit(1, Association::Balanced);
        for bytes in [1, 7, NEAR_BYTES, 3 * NEAR_BYTES + 5] {
            let a: Vec<u8> = (0..bytes).map(|i| (i * 7 + 3) as u8).collect();
            let b: Vec<u8> = (0..bytes).map(|i| (i * 5 + 1) as u8).collect();
            let expected: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a.wrapping_sub(*b)).collect();
            for case in 0..5 {
                let (mut own_a, mut own_b, mut to) = (a.clone(), b.clone(), vec![0u8; bytes]);
                let (left, right, into) = match case {
                    0 => (of_peer(&a), of_peer(&b), view(&mut to)),
                    1 => (Source::Own(view(&mut own_a)), of_peer(&b), view(&mut to)),
                    2 => (of_peer(&a), Source::Own(view(&mut own_b)), view(&mut to)),
                    3 => (Source::Own(view(&mut own_a)), of_peer(&b), view(&mut own_a)),
                    _ => (of_peer(&a), Source::Own(view(&mut own_b)), view(&mut own_b)),
                };
                fold(Fitted::new(&Minus, &fit), &left, &right, into).expect("combined");
                let found = match case {
                    3 => &own_a,
                    4 => &own_b,
                    _ => &to,
                };
                assert_eq!(*found, expected, "case {case}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn reads_outside_of_a_peers_memory_are_errors() {
        let theirs = vec![1u8; 16];
        let mut to = vec![0u8; 17];
        // SAFETY: invariant 2: a vector of as many bytes.
        let read = unsafe { of_peer(&theirs).copy_to(0, to.as_mut_ptr(), 17) };
        let e = read.expect_err("too long");
        assert_eq!(to, [0; 17]);
        assert!(e.to_string().contains("17 bytes"), "{e}");
    }
}
