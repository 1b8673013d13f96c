//! Segment of a communicator's ranks on a host: flags, and slots that peers read.
//!
//! ```text
//! page of a rank
//! byte 0              flag, bytes, small data         set 0
//!      64             slot
//!      2048           flag, bytes, small data         set 1
//!      2112           slot
//!      3968           how far its calls are over, whether it has left, where its slots lie
//!      4032           magic, channel, ranks, next, of (of the first page: the segment's head)
//!
//! flag                call u32 | progress u16 | seal u16
//! said with it        done u32 | turn u16 | check u16
//! ```
//!
//! The sets are used in turn, by calls and by the segments of one.
//!
//! Only its rank writes a page, but for slots, which change hands: in the call whose turn is t
//! rank r writes the slot of rank r + t. If that is the slot that it has read in the turn
//! before, its lines are in its cache. Where data flows one way, who has read a slot
//! writes to its lines, for the same reason.
//!
//! The lowest member makes the segment at its first call, and links it into its own list,
//! where the others find it by channel. It uses it again for another channel once all have
//! left. A channel has one for the calls that begin in one order, number 0, and one for each
//! persistent call, by its number: those begin in any order.
//!
//! # Invariants
//! 1. Pages stay mapped as long as the job, which `rank` keeps; there are as many as the
//!    channel has members, and no index is larger. What lies there is atomics and raw bytes,
//!    read by copies (invariant 3 of `segment`).
//! 2. A flag is stored after all that it tells of, with release, and loaded with acquire:
//!    whoever sees it sees the data. It only grows: by calls, and by progress within one.
//! 3. A rank writes flag and slot of a set only when all others are done with what used the
//!    set before (the layer above asks [`Collective::done`]); in one call, turns
//!    are equal on all ranks, so each slot has one writer.
//! 4. The content is not trusted: words that no correct peer writes are malformed.
//! 5. What goes beside a flag is staged in memory of this rank's own, by whoever has the
//!    segment, and goes to the line with the flag: to a line that a peer looks at again and
//!    again, stores that are apart go one by one, each for a transfer of the line.
//!
//! # Sources
//! Slots that change hands: measured on two cores of a virtual EPYC (Zen 4), near each other,
//! 2026-11-25: two ranks exchange 16 KiB and add them in 0.87 us, in 1.06 us if each writes to
//! the lines that it has read, and in 2.4 us otherwise; 64 KiB in 3.4, 4.5 and 9.8 us.
//! Flags with one writer per line, numbered by call: R. Graham, G. Shipman, "MPI Support for
//! Multi-core Architectures: Optimized Shared Memory Collectives", EuroPVM/MPI 2008.

use super::rank::ShmRank;
use super::seal;
use crate::contract::{PeerMemory, TransportError, TransportErrorKind};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::cell::{Cell, UnsafeCell};
use std::sync::OnceLock;

pub(crate) const PAGE_BYTES: u64 = 4096;
const SET_AT: [usize; 2] = [0, 2048];
const OWN_AT: usize = 3968;
const HEAD_AT: usize = 4032;
const LINE_BYTES: usize = 64;
/// Bytes beside a flag, in its line.
pub const BESIDE_FLAG_BYTES: usize = 32;
/// Bytes of the slot in a rank's page.
pub const PAGE_SLOT_BYTES: usize = 1856;
/// Most bytes of a rank's slot elsewhere: room for 256 KiB, and for the lines by which shares of a
/// vector are longer than the mean. Its pages come when they are used.
pub const SLOT_BYTES: usize = 264 << 10;
const MAGIC: u64 = 0x4f53_4945_5243_0000;
/// Seals of flags, and of what a rank says of itself.
const FLAG: u64 = 0x464c;
const DONE: u64 = 0x444e;
const SLOTS: u64 = 0x534c;
/// Segments in a list: the rest is a cycle.
const MOST_LISTED: usize = 1 << 20;

/// What a rank says of itself.
#[repr(C, align(64))]
struct Own {
    done: AtomicU64,
    left: AtomicU32,
    slots: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct FlagLine {
    flag: AtomicU64,
    /// Bytes of a contribution, and what is said with them: written once in a call.
    bytes: AtomicU64,
    said: AtomicU64,
    /// Of a rank that fails: for which.
    failed: AtomicU64,
    data: [AtomicU64; BESIDE_FLAG_BYTES / 8],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FlagLine>() == LINE_BYTES && size_of::<Own>() == LINE_BYTES);
const _: () = assert!(SET_AT[0] + LINE_BYTES + PAGE_SLOT_BYTES <= SET_AT[1]);
const _: () = assert!(SET_AT[1] + LINE_BYTES + PAGE_SLOT_BYTES <= OWN_AT);

/// Head of a segment.
#[repr(C, align(64))]
pub(crate) struct Head {
    magic: AtomicU64,
    channel: AtomicU64,
    members: AtomicU64,
    next: AtomicU64,
    /// Which of its channel.
    of: AtomicU64,
}

/// Where the last field is, for the digest of what lies in shared memory.
#[cfg(test)]
pub(crate) const HEAD_OF_AT: usize = std::mem::offset_of!(Head, of);
/// Words of [`Own::left`]: a member uses this segment no more, or no segment of the channel.
const LEFT_SEGMENT: u32 = 1;
const LEFT_CHANNEL: u32 = 2;

/// A segment of the lowest member's own.
pub(crate) struct Made {
    offset: u64,
    room: usize,
    members: Vec<u32>,
}

/// What a flag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// The number of the call,
    pub call: u32,
    /// and how far its rank is, as a number that grows.
    pub progress: u16,
}

/// How far the calls of a rank are over: all below this number, and so many segments of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number.
    pub call: u32,
    /// Segments.
    pub segments: u16,
}

/// What is said with a flag, by each of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Bytes of a contribution.
    pub bytes: u64,
    /// Below this number all calls are over at the rank.
    pub done: u32,
    /// Whose turn it is to write which slot.
    pub turn: u16,
}

impl Said {
    /// The second word, which has check bits of both and of the call.
    fn word(self, call: u32) -> u64 {
        let upper = u64::from(self.done) << 32 | u64::from(self.turn) << 16;
        let sum = seal::mix(seal::mix(u64::from(call), self.bytes), upper);
        upper | sum >> 48
    }
}

/// Bytes beside a flag, before it is raised.
#[repr(align(64))]
#[derive(Default)]
struct Beside(UnsafeCell<[u64; BESIDE_FLAG_BYTES / 8]>);

/// One rank's view of a segment.
pub struct Collective {
    base: *mut u8,
    own: u32,
    members: u32,
    channel: u64,
    of: u32,
    /// By set, the last call whose flag was raised here.
    last: [Cell<Option<u32>>; 2],
    /// What goes beside each flag of a call, by set,
    staged: Box<[Beside; 2]>,
    /// and the number of its words.
    staged_words: [Cell<usize>; 2],
    slots: Option<*mut u8>,
    of_peers: Box<[OnceLock<usize>]>,
    /// Lines of fewer bytes of a slot are taken by who reads them.
    taken_below: usize,
    /// The memory is mapped as long as it.
    rank: ShmRank,
}

// SAFETY: invariant 1: addresses of shared memory, tied to no thread.
unsafe impl Send for Collective {}

fn malformed(what: &str, peer: u32) -> TransportError {
    TransportError::new(
        TransportErrorKind::Malformed,
        format!("{what} of rank {peer} was overwritten"),
    )
}

/// Zeroes the pages of a segment, which nobody reads.
fn clear(base: *mut u8, members: usize) {
    let words = members * PAGE_BYTES as usize / 8;
    let head = HEAD_AT / 8..(HEAD_AT + LINE_BYTES) / 8;
    for at in (0..words).filter(|at| !head.contains(at)) {
        // SAFETY: invariant 1: inside the pages, aligned, an atomic.
        unsafe { &*base.cast::<AtomicU64>().wrapping_add(at) }.store(0, Ordering::Relaxed);
    }
}

/// The head of a segment whose first page is at an address.
///
/// # Safety
/// The page is mapped as long as the head is used.
unsafe fn head_at<'a>(base: *mut u8) -> &'a Head {
    // SAFETY: invariant 1; aligned, as pages are.
    unsafe { &*base.wrapping_add(HEAD_AT).cast::<Head>() }
}

impl Collective {
    /// Finds a segment of a channel, or makes it if this rank is the lowest member. None: it
    /// is not there yet.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn open(
        rank: &ShmRank,
        (channel, of): (u64, u32),
        members: &[u32],
    ) -> Result<Option<Self>, TransportError> {
        let Some(&lowest) = members.iter().min() else {
            return Ok(None);
        };
        let own = members.iter().position(|m| *m as usize == rank.rank());
        let found = match lowest as usize == rank.rank() {
            true => Some(Self::make(rank, (channel, of), members)?),
            false => Self::find(rank, lowest, (channel, of), members.len())?,
        };
        Ok(found.map(|base| Self {
            base,
            own: own.unwrap_or(0) as u32,
            members: members.len() as u32,
            channel,
            of,
            last: [const { Cell::new(None) }; 2],
            staged: Box::default(),
            staged_words: [const { Cell::new(0) }; 2],
            slots: None,
            of_peers: members.iter().map(|_| OnceLock::new()).collect(),
            taken_below: rank.takes_lines_below(),
            rank: rank.clone(),
        }))
    }

    fn find(
        rank: &ShmRank,
        lowest: u32,
        (channel, of): (u64, u32),
        members: usize,
    ) -> Result<Option<*mut u8>, TransportError> {
        let mut offset = rank.segments_of(lowest).load(Ordering::Acquire);
        for _ in 0..MOST_LISTED {
            if offset == 0 {
                return Ok(None);
            }
            let Some(base) = rank.pages(offset, 1) else {
                rank.count_malformed();
                return Err(malformed("the list of segments", lowest));
            };
            // SAFETY: invariant 1.
            let head = unsafe { head_at(base) };
            if head.magic.load(Ordering::Relaxed) != MAGIC {
                rank.count_malformed();
                return Err(malformed("the list of segments", lowest));
            }
            // Acquire: the pages were cleared before.
            let alike = head.channel.load(Ordering::Acquire) == channel
                && head.of.load(Ordering::Relaxed) == u64::from(of)
                && head.members.load(Ordering::Relaxed) == members as u64;
            if alike {
                return Ok(rank.pages(offset, members));
            }
            offset = head.next.load(Ordering::Relaxed);
        }
        rank.count_malformed();
        Err(malformed("the list of segments", lowest))
    }

    fn make(
        rank: &ShmRank,
        (channel, of): (u64, u32),
        members: &[u32],
    ) -> Result<*mut u8, TransportError> {
        let mut made = rank.made_segments();
        let gone = |base: *mut u8, of: &[u32]| {
            of.iter().enumerate().all(|(at, member)| {
                let own = base.wrapping_add(at * PAGE_BYTES as usize + OWN_AT);
                let own = own.cast::<Own>();
                // SAFETY: invariant 1: `room` pages, no fewer than members.
                let left = unsafe { &*own }.left.load(Ordering::Acquire) != 0;
                left || rank.job().death(*member as usize).is_some()
            })
        };
        for old in made.iter_mut().filter(|old| old.room >= members.len()) {
            let Some(base) = rank.pages(old.offset, old.room) else {
                continue;
            };
            if gone(base, &old.members) {
                // SAFETY: invariant 1.
                let head = unsafe { head_at(base) };
                head.channel.store(0, Ordering::Relaxed);
                clear(base, old.room);
                old.members = members.to_vec();
                head.members.store(members.len() as u64, Ordering::Relaxed);
                head.of.store(of.into(), Ordering::Relaxed);
                head.channel.store(channel, Ordering::Release);
                return Ok(base);
            }
        }
        let offset = rank.allocate_pages(members.len() as u64 * PAGE_BYTES)?;
        let Some(base) = rank.pages(offset, members.len()) else {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                "the job's arena is used up",
            ));
        };
        clear(base, members.len());
        // SAFETY: invariant 1.
        let head = unsafe { head_at(base) };
        let list = rank.segments_of(rank.rank() as u32);
        head.next
            .store(list.load(Ordering::Relaxed), Ordering::Relaxed);
        head.members.store(members.len() as u64, Ordering::Relaxed);
        head.of.store(of.into(), Ordering::Relaxed);
        head.channel.store(channel, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Relaxed);
        // Only this rank writes its list.
        list.store(offset, Ordering::Release);
        made.push(Made {
            offset,
            room: members.len(),
            members: members.to_vec(),
        });
        Ok(base)
    }

    #[inline]
    fn page(&self, peer: u32) -> *mut u8 {
        debug_assert!(peer < self.members);
        let peer = peer.min(self.members - 1) as usize;
        self.base.wrapping_add(peer * PAGE_BYTES as usize)
    }

    #[inline]
    fn own_words(&self, peer: u32) -> &Own {
        // SAFETY: invariant 1.
        unsafe { &*self.page(peer).wrapping_add(OWN_AT).cast::<Own>() }
    }

    #[inline]
    fn line(&self, peer: u32, set: usize) -> &FlagLine {
        let at = SET_AT[set & 1];
        // SAFETY: invariant 1.
        unsafe { &*self.page(peer).wrapping_add(at).cast::<FlagLine>() }
    }

    /// Raises this rank's flag: what was written to its page, its slots and whatever they name
    /// is seen by who sees the flag. What is said with it is heard with the first of a call.
    #[inline]
    pub fn raise(&self, set: usize, raised: Raised, said: Said) {
        let line = self.line(self.own, set);
        if self.last[set & 1].replace(Some(raised.call)) != Some(raised.call) {
            line.bytes.store(said.bytes, Ordering::Relaxed);
            line.said.store(said.word(raised.call), Ordering::Relaxed);
        }
        let staged = self.staged[set & 1].0.get().cast::<u64>();
        let words = self.staged_words[set & 1].get();
        for (at, word) in line.data.iter().enumerate().take(words) {
            // Word by word, as it was written: a longer load would wait until stores of before
            // have left the processor.
            // SAFETY: invariant 5: inside, and nobody else uses it now.
            let value = unsafe { staged.wrapping_add(at).read_volatile() };
            word.store(value, Ordering::Relaxed);
        }
        let word = u64::from(raised.call) << 32 | u64::from(raised.progress) << 16;
        line.flag.store(seal::sealed(word, FLAG), Ordering::Release);
    }

    /// Raises a flag that says that this rank fails, for this one of the job. Nothing else is
    /// said with it, and nothing else of the set is written: peers may still read there.
    pub fn fail(&self, set: usize, raised: Raised, failed: u32) {
        let line = self.line(self.own, set);
        line.failed.store(failed.into(), Ordering::Relaxed);
        let word = u64::from(raised.call) << 32 | u64::from(raised.progress) << 16;
        line.flag.store(seal::sealed(word, FLAG), Ordering::Release);
    }

    /// For which rank of the job a peer fails, whose flag says that it does.
    pub fn failed_for(&self, peer: u32, set: usize) -> u32 {
        self.line(peer, set).failed.load(Ordering::Relaxed) as u32
    }

    /// The flag of a peer in a set; none: it has raised none yet.
    ///
    /// # Errors
    /// Somebody wrote over it.
    #[inline]
    pub fn flag(&self, peer: u32, set: usize) -> Result<Option<Raised>, TransportError> {
        let word = self.line(peer, set).flag.load(Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        if seal::number(word) != FLAG {
            return Err(self.overwritten("a flag", peer));
        }
        Ok(Some(Raised {
            call: (word >> 32) as u32,
            progress: (word >> 16) as u16,
        }))
    }

    /// What a peer has said with its flag for this call, which was seen.
    ///
    /// # Errors
    /// Somebody wrote over it.
    #[inline]
    pub fn said(&self, peer: u32, set: usize, call: u32) -> Result<Said, TransportError> {
        let line = self.line(peer, set);
        let word = line.said.load(Ordering::Relaxed);
        let said = Said {
            bytes: line.bytes.load(Ordering::Relaxed),
            done: (word >> 32) as u32,
            turn: (word >> 16) as u16,
        };
        match said.word(call) == word {
            true => Ok(said),
            false => Err(self.overwritten("a flag", peer)),
        }
    }

    #[cold]
    fn overwritten(&self, what: &str, peer: u32) -> TransportError {
        self.rank.count_malformed();
        malformed(what, peer)
    }

    /// Says where this rank's input and result lie, before the flag that lets peers read them.
    #[inline]
    pub fn publish(&self, set: usize, places: [u64; 2]) {
        self.stage(set, places);
    }

    #[inline]
    fn stage<const N: usize>(&self, set: usize, words: [u64; N]) {
        const { assert!(N <= BESIDE_FLAG_BYTES / 8) };
        // SAFETY: invariant 5: there is room, and nobody else uses it now.
        unsafe { self.staged[set & 1].0.get().cast::<[u64; N]>().write(words) };
        self.staged_words[set & 1].set(N);
    }

    /// Says that a peer finds what it reads in this slot elsewhere, by this word; 0: there.
    #[inline]
    pub fn lend(&self, set: usize, place: u64) {
        self.stage(set, [place]);
    }

    /// Where a peer that has lent it instead of its slot has what is read.
    #[inline]
    pub fn lent(&self, peer: u32, set: usize) -> u64 {
        self.line(peer, set).data[0].load(Ordering::Relaxed)
    }

    /// Where those of a peer lie whose flag was seen.
    #[inline]
    pub fn published(&self, peer: u32, set: usize) -> [u64; 2] {
        let line = self.line(peer, set);
        [0, 1].map(|at: usize| line.data[at].load(Ordering::Relaxed))
    }

    /// Memory beside a rank's flag: [`BESIDE_FLAG_BYTES`] bytes.
    #[inline]
    pub fn beside_flag(&self, peer: u32, set: usize) -> *mut u8 {
        let at = SET_AT[set & 1] + std::mem::offset_of!(FlagLine, data);
        self.page(peer).wrapping_add(at)
    }

    /// Says how far calls are over here.
    #[inline]
    pub fn set_done(&self, done: Done) {
        let word = u64::from(done.call) << 32 | u64::from(done.segments) << 16;
        let word = seal::sealed(word, DONE);
        self.own_words(self.own).done.store(word, Ordering::Release);
    }

    /// How far calls of a peer are over; none: it has said nothing yet.
    ///
    /// # Errors
    /// Somebody wrote over it.
    #[inline]
    pub fn done(&self, peer: u32) -> Result<Option<Done>, TransportError> {
        let word = self.own_words(peer).done.load(Ordering::Acquire);
        match word {
            0 => Ok(None),
            _ if seal::number(word) == DONE => Ok(Some(Done {
                call: (word >> 32) as u32,
                segments: (word >> 16) as u16,
            })),
            _ => Err(self.overwritten("the number of calls", peer)),
        }
    }

    /// Whether a peer has dropped the channel.
    pub fn left(&self, peer: u32) -> bool {
        self.own_words(peer).left.load(Ordering::Acquire) == LEFT_CHANNEL
    }

    /// Whose slot a rank writes in this turn.
    #[inline]
    fn slot_in_turn(&self, rank: u32, turn: u16) -> u32 {
        match turn {
            0 => rank,
            _ => (rank + u32::from(turn)) % self.members,
        }
    }

    /// Memory for what peers read in a call: what goes beside the flag, [`PAGE_SLOT_BYTES`] in
    /// a page, or a slot of [`SLOT_BYTES`], which is made when first asked for. The rank that has
    /// not made its own
    /// yet, if it is that one's turn.
    ///
    /// # Errors
    /// There is no memory for it, or it is never so long.
    #[inline]
    pub fn own_slot(
        &mut self,
        set: usize,
        bytes: usize,
        turn: u16,
    ) -> Result<Result<*mut u8, u32>, TransportError> {
        let staged = if bytes <= BESIDE_FLAG_BYTES { bytes } else { 0 };
        self.staged_words[set & 1].set(staged.div_ceil(8));
        if bytes <= BESIDE_FLAG_BYTES {
            return Ok(Ok(self.staged[set & 1].0.get().cast()));
        }
        let whose = self.slot_in_turn(self.own, turn);
        if bytes <= PAGE_SLOT_BYTES {
            return Ok(Ok(self.page_slot(whose, set)));
        }
        if bytes > SLOT_BYTES {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("a slot of {bytes} bytes, at most {SLOT_BYTES}"),
            ));
        }
        if self.slots.is_none() {
            self.make_slots()?;
        }
        let slots = self.slots_of(whose)?;
        Ok(slots
            .map(|at| at.wrapping_add((set & 1) * SLOT_BYTES))
            .ok_or(whose))
    }

    #[cold]
    fn make_slots(&mut self) -> Result<(), TransportError> {
        let (offset, at) = self.rank.take_slots(2 * SLOT_BYTES as u64)?;
        self.slots = Some(at);
        let word = seal::sealed(offset << 16, SLOTS);
        self.own_words(self.own)
            .slots
            .store(word, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn page_slot(&self, rank: u32, set: usize) -> *mut u8 {
        let at = SET_AT[set & 1] + LINE_BYTES;
        self.page(rank).wrapping_add(at)
    }

    /// The slot that a peer has written whose flag was seen.
    ///
    /// # Errors
    /// What is said of it is not true.
    #[inline]
    pub fn slot_of(
        &self,
        peer: u32,
        set: usize,
        bytes: usize,
        turn: u16,
    ) -> Result<PeerMemory, TransportError> {
        let whose = || self.slot_in_turn(peer, turn);
        let at = if bytes <= BESIDE_FLAG_BYTES {
            self.beside_flag(peer, set)
        } else if bytes <= PAGE_SLOT_BYTES {
            self.page_slot(whose(), set)
        } else {
            let slots = self.slots_of(whose())?;
            let slots = slots.ok_or_else(|| self.overwritten("a slot", peer))?;
            slots.wrapping_add((set & 1) * SLOT_BYTES)
        };
        // SAFETY: invariant 1: inside a page, or both slots, which `find_slots` has checked.
        Ok(unsafe { PeerMemory::writable(at, bytes.min(SLOT_BYTES), self.taken_below) })
    }

    /// Both slots of a rank; none: it has made none yet.
    #[inline]
    fn slots_of(&self, rank: u32) -> Result<Option<*mut u8>, TransportError> {
        match self.of_peers[rank as usize].get() {
            Some(at) => Ok(Some(std::ptr::with_exposed_provenance_mut(*at))),
            None => self.find_slots(rank),
        }
    }

    #[cold]
    fn find_slots(&self, rank: u32) -> Result<Option<*mut u8>, TransportError> {
        let word = self.own_words(rank).slots.load(Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        let offset = word >> 16;
        let sealed = seal::sealed(offset << 16, SLOTS) == word;
        let at = sealed.then(|| self.rank.shared(offset, 2 * SLOT_BYTES as u64));
        let at = at
            .flatten()
            .ok_or_else(|| self.overwritten("a slot", rank))?;
        let known = self.of_peers[rank as usize].get_or_init(|| at.expose_provenance());
        Ok(Some(std::ptr::with_exposed_provenance_mut(*known)))
    }

    /// Gives the slots back, for later segments of this rank, which uses this one no more, or
    /// none of the channel.
    pub(crate) fn close(&mut self, whole_channel: bool) {
        if self.slots.take().is_some() {
            let offset = self.own_words(self.own).slots.load(Ordering::Relaxed) >> 16;
            self.rank.retire_slots(Retired {
                offset,
                base: self.base.expose_provenance(),
                own: self.own,
                members: self.members,
                channel: self.channel,
                of: self.of,
                last: (self.last.iter().filter_map(Cell::get))
                    .reduce(|a, b| if (a.wrapping_sub(b) as i32) < 0 { b } else { a })
                    .unwrap_or(0),
            });
        }
        let left = match whole_channel {
            true => LEFT_CHANNEL,
            false => LEFT_SEGMENT,
        };
        self.own_words(self.own).left.store(left, Ordering::Release);
    }
}

/// Slots whose rank has left their segment.
pub(crate) struct Retired {
    pub offset: u64,
    base: usize,
    own: u32,
    members: u32,
    channel: u64,
    of: u32,
    last: u32,
}

impl Retired {
    /// Whether nobody reads them any more.
    pub(crate) fn is_quiet(&self) -> bool {
        let base: *mut u8 = std::ptr::with_exposed_provenance_mut(self.base);
        // SAFETY: invariant 1.
        let head = unsafe { head_at(base) };
        let same = head.channel.load(Ordering::Acquire) == self.channel
            && head.of.load(Ordering::Relaxed) == u64::from(self.of);
        if !same {
            return true;
        }
        let mut peers = (0..self.members).filter(|peer| *peer != self.own);
        peers.all(|peer| {
            let own = base.wrapping_add(peer as usize * PAGE_BYTES as usize + OWN_AT);
            // SAFETY: invariant 1.
            let own = unsafe { &*own.cast::<Own>() };
            let done = own.done.load(Ordering::Acquire);
            let past = ((done >> 32) as u32).wrapping_sub(self.last) as i32 > 0;
            own.left.load(Ordering::Acquire) != 0 || done != 0 && past
        })
    }
}

#[cfg(all(test, loom))]
mod under_loom {
    use crate::sync::{AtomicU64, Ordering};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// Flags and slots of two ranks, by rank and set, and how far each is done.
    struct Shared {
        flags: [[AtomicU64; 2]; 2],
        slots: [[UnsafeCell<u64>; 2]; 2],
        done: [AtomicU64; 2],
    }

    // SAFETY: invariant 3: the accesses are what the model checks.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new() -> Arc<Shared> {
            Arc::new(Shared {
                flags: [(); 2].map(|()| [(); 2].map(|()| AtomicU64::new(0))),
                slots: [(); 2].map(|()| [(); 2].map(|()| UnsafeCell::new(0))),
                done: [(); 2].map(|()| AtomicU64::new(0)),
            })
        }

        fn write(&self, rank: usize, set: usize, value: u64) {
            // SAFETY: invariant 3: the model finds whoever else uses it meanwhile.
            self.slots[rank][set].with_mut(|at| unsafe { *at = value });
        }

        fn read(&self, rank: usize, set: usize) -> u64 {
            // SAFETY: invariant 3: the model finds whoever writes it meanwhile.
            self.slots[rank][set].with(|at| unsafe { *at })
        }

        fn wait(word: &AtomicU64, least: u64) {
            // Acquire: what was written before the word is seen.
            while word.load(Ordering::Acquire) < least {
                thread::yield_now();
            }
        }
    }

    /// Both write, slots change hands: the flag of a call says that its rank is done with all
    /// before (invariants 2 and 3).
    #[test]
    fn slots_that_change_hands_have_one_user() {
        loom::model(|| {
            let shared = Shared::new();
            let rank = |own: usize| {
                let shared = shared.clone();
                move || {
                    for call in 0..4u64 {
                        let (set, turn) = (call as usize % 2, call as usize / 2);
                        shared.write((own + turn) % 2, set, 10 * call + own as u64);
                        // Release: the slot is written before.
                        shared.flags[own][set].store(call + 1, Ordering::Release);
                        let peer = 1 - own;
                        Shared::wait(&shared.flags[peer][set], call + 1);
                        let found = shared.read((peer + turn) % 2, set);
                        assert_eq!(found, 10 * call + peer as u64);
                    }
                }
            };
            let other = thread::spawn(rank(1));
            rank(0)();
            other.join().expect("no fault");
        });
    }

    /// Each combines a slice, whose sum takes its place in the own slot between two flags: nobody
    /// else has read it there (invariant 2, and the plan).
    #[test]
    fn a_sum_takes_the_place_of_its_slice() {
        loom::model(|| {
            // By rank and slice: the sets of `Shared` are the slices here.
            let shared = Shared::new();
            let rank = |own: usize| {
                let shared = shared.clone();
                move || {
                    let peer = 1 - own;
                    let input = |rank: usize, slice: usize| 10 * rank as u64 + slice as u64 + 1;
                    for slice in [0, 1] {
                        shared.write(own, slice, input(own, slice));
                    }
                    // Release: both slices are written before.
                    shared.flags[own][0].store(1, Ordering::Release);
                    Shared::wait(&shared.flags[peer][0], 1);
                    let sum = input(own, own) + shared.read(peer, own);
                    shared.write(own, own, sum);
                    // Release: the sum is written before.
                    shared.flags[own][0].store(2, Ordering::Release);
                    Shared::wait(&shared.flags[peer][0], 2);
                    let theirs = shared.read(peer, peer);
                    assert_eq!(theirs, input(0, peer) + input(1, peer));
                }
            };
            let other = thread::spawn(rank(1));
            rank(0)();
            other.join().expect("no fault");
        });
    }

    /// One writes, one reads: the writer waits for the reader's number (invariant 3).
    #[test]
    fn a_slot_is_written_again_when_its_reader_is_done() {
        loom::model(|| {
            let shared = Shared::new();
            let reader = {
                let shared = shared.clone();
                move || {
                    for call in 0..4u64 {
                        let set = call as usize % 2;
                        Shared::wait(&shared.flags[0][set], call + 1);
                        assert_eq!(shared.read(0, set), call);
                        // Release: the slot is read before.
                        shared.done[1].store(call + 1, Ordering::Release);
                    }
                }
            };
            let other = thread::spawn(reader);
            for call in 0..4u64 {
                let set = call as usize % 2;
                Shared::wait(&shared.done[1], (call + 1).saturating_sub(2));
                shared.write(0, set, call);
                shared.flags[0][set].store(call + 1, Ordering::Release);
            }
            other.join().expect("no fault");
        });
    }
}
