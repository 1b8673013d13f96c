//! Segment of a communicator's ranks on a host: flags, and slots that peers read.
//!
//! ```text
//! page of a rank      only that rank writes it, but for its last line
//! byte 0              how far its calls are over, whether it has left, where its slots lie
//!      64             flag, bytes, small data         of calls with an even number
//!      128            slot
//!      2048           flag, bytes, small data         of calls with an odd number
//!      2112           slot
//!      4032           magic, channel, ranks, next     (of the first page: the segment's head)
//!
//! flag                call u32 | phase u16 | seal u16
//! ```
//!
//! The lowest member makes the segment at its first call, and links it into its own list,
//! where the others find it by channel. It uses it again for another channel once all have
//! left.
//!
//! # Invariants
//! 1. Pages stay mapped as long as the job, which `rank` keeps; there are as many as the
//!    channel has members, and no index is larger. What lies there is atomics and raw bytes,
//!    read by copies (invariant 3 of `segment`).
//! 2. A flag is stored after all that it tells of, with release, and loaded with acquire:
//!    whoever sees it sees the data. It only grows: by calls, and by phases within one.
//! 3. A rank writes flag and slot of a call only when all others are done with its call of
//!    the same parity before (the layer above asks [`Collective::done`]).
//! 4. The content is not trusted: words that no correct peer writes are malformed.
//!
//! # Sources
//! Flags with one writer per line, numbered by call: R. Graham, G. Shipman, "MPI Support for
//! Multi-core Architectures: Optimized Shared Memory Collectives", EuroPVM/MPI 2008.

use super::rank::ShmRank;
use super::seal;
use crate::contract::{PeerMemory, TransportError, TransportErrorKind};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::OnceLock;

pub(crate) const PAGE_BYTES: u64 = 4096;
const SET_AT: [usize; 2] = [64, 2048];
const HEAD_AT: usize = 4032;
const LINE_BYTES: usize = 64;
/// Bytes beside a flag, in its line.
pub const BESIDE_FLAG_BYTES: usize = 40;
/// Bytes of the slot in a rank's page.
pub const PAGE_SLOT_BYTES: usize = 1920;
/// Bytes of a rank's slot elsewhere.
pub const SLOT_BYTES: usize = 32 << 10;
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
    /// Bytes of a contribution, and check bits of both words.
    bytes: AtomicU64,
    check: AtomicU64,
    data: [AtomicU64; BESIDE_FLAG_BYTES / 8],
}

const _: () = assert!(size_of::<FlagLine>() == LINE_BYTES && size_of::<Own>() == LINE_BYTES);
const _: () = assert!(SET_AT[0] + LINE_BYTES + PAGE_SLOT_BYTES <= SET_AT[1]);
const _: () = assert!(SET_AT[1] + LINE_BYTES + PAGE_SLOT_BYTES <= HEAD_AT);

/// Head of a segment.
#[repr(C, align(64))]
pub(crate) struct Head {
    magic: AtomicU64,
    channel: AtomicU64,
    members: AtomicU64,
    next: AtomicU64,
}

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
    /// and how far its rank is.
    pub phase: u16,
}

/// One rank's view of a segment.
pub struct Collective {
    base: *mut u8,
    own: u32,
    members: u32,
    channel: u64,
    /// The last call whose flag was raised here.
    last: Cell<u32>,
    slots: Option<*mut u8>,
    of_peers: Box<[OnceLock<usize>]>,
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
    /// Finds the segment of a channel, or makes it if this rank is the lowest member. None: it
    /// is not there yet.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn open(
        rank: &ShmRank,
        channel: u64,
        members: &[u32],
    ) -> Result<Option<Self>, TransportError> {
        let Some(&lowest) = members.iter().min() else {
            return Ok(None);
        };
        let own = members.iter().position(|m| *m as usize == rank.rank());
        let found = match lowest as usize == rank.rank() {
            true => Some(Self::make(rank, channel, members)?),
            false => Self::find(rank, lowest, channel, members.len())?,
        };
        Ok(found.map(|base| Self {
            base,
            own: own.unwrap_or(0) as u32,
            members: members.len() as u32,
            channel,
            last: Cell::new(0),
            slots: None,
            of_peers: members.iter().map(|_| OnceLock::new()).collect(),
            rank: rank.clone(),
        }))
    }

    fn find(
        rank: &ShmRank,
        lowest: u32,
        channel: u64,
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
                && head.members.load(Ordering::Relaxed) == members as u64;
            if alike {
                return Ok(rank.pages(offset, members));
            }
            offset = head.next.load(Ordering::Relaxed);
        }
        rank.count_malformed();
        Err(malformed("the list of segments", lowest))
    }

    fn make(rank: &ShmRank, channel: u64, members: &[u32]) -> Result<*mut u8, TransportError> {
        let mut made = rank.made_segments();
        let gone = |base: *mut u8, of: &[u32]| {
            of.iter().enumerate().all(|(at, member)| {
                let own = base.wrapping_add(at * PAGE_BYTES as usize).cast::<Own>();
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
        unsafe { &*self.page(peer).cast::<Own>() }
    }

    #[inline]
    fn line(&self, peer: u32, call: u32) -> &FlagLine {
        let at = SET_AT[(call & 1) as usize];
        // SAFETY: invariant 1.
        unsafe { &*self.page(peer).wrapping_add(at).cast::<FlagLine>() }
    }

    /// Raises this rank's flag: what was written to its page, its slots and whatever they name
    /// is seen by who sees the flag.
    #[inline]
    pub fn raise(&self, raised: Raised, bytes: u64) {
        self.last.set(raised.call);
        let line = self.line(self.own, raised.call);
        let word = u64::from(raised.call) << 32 | u64::from(raised.phase) << 16;
        let word = seal::sealed(word, FLAG);
        line.bytes.store(bytes, Ordering::Relaxed);
        line.check.store(seal::mix(word, bytes), Ordering::Relaxed);
        line.flag.store(word, Ordering::Release);
    }

    /// The flag of a peer for calls of this one's parity; none: it has raised none yet.
    ///
    /// # Errors
    /// Somebody wrote over it.
    #[inline]
    pub fn flag(&self, peer: u32, call: u32) -> Result<Option<Raised>, TransportError> {
        let word = self.line(peer, call).flag.load(Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        if seal::number(word) != FLAG {
            return Err(self.overwritten("a flag", peer));
        }
        Ok(Some(Raised {
            call: (word >> 32) as u32,
            phase: (word >> 16) as u16,
        }))
    }

    /// Bytes that a peer contributes to the call whose flag was seen.
    ///
    /// # Errors
    /// Somebody wrote over them.
    #[inline]
    pub fn bytes(&self, peer: u32, call: u32) -> Result<u64, TransportError> {
        let line = self.line(peer, call);
        // They are the same in each phase of a call; the check is of one of them.
        let mut tries = 0;
        loop {
            let word = line.flag.load(Ordering::Acquire);
            let bytes = line.bytes.load(Ordering::Relaxed);
            if line.check.load(Ordering::Relaxed) == seal::mix(word, bytes) {
                return Ok(bytes);
            }
            tries += 1;
            if tries > 1000 {
                return Err(self.overwritten("a flag", peer));
            }
            std::hint::spin_loop();
        }
    }

    #[cold]
    fn overwritten(&self, what: &str, peer: u32) -> TransportError {
        self.rank.count_malformed();
        malformed(what, peer)
    }

    /// Says where this rank's input and result lie, before the flag that lets peers read them.
    #[inline]
    pub fn publish(&self, call: u32, places: [u64; 2]) {
        let line = self.line(self.own, call);
        for (word, place) in line.data.iter().zip(places) {
            word.store(place, Ordering::Relaxed);
        }
    }

    /// Where those of a peer lie whose flag was seen.
    #[inline]
    pub fn published(&self, peer: u32, call: u32) -> [u64; 2] {
        let line = self.line(peer, call);
        [0, 1].map(|at: usize| line.data[at].load(Ordering::Relaxed))
    }

    /// Memory beside a rank's flag: [`BESIDE_FLAG_BYTES`] bytes.
    #[inline]
    fn beside_flag(&self, peer: u32, call: u32) -> *mut u8 {
        let at = SET_AT[(call & 1) as usize] + std::mem::offset_of!(FlagLine, data);
        self.page(peer).wrapping_add(at)
    }

    /// Says that all calls below this number are over here.
    #[inline]
    pub fn set_done(&self, below: u32) {
        let word = seal::sealed(u64::from(below) << 32, DONE);
        self.own_words(self.own).done.store(word, Ordering::Release);
    }

    /// Below which number all calls of a peer are over; none: it has said nothing yet.
    ///
    /// # Errors
    /// Somebody wrote over it.
    #[inline]
    pub fn done(&self, peer: u32) -> Result<Option<u32>, TransportError> {
        let word = self.own_words(peer).done.load(Ordering::Acquire);
        match word {
            0 => Ok(None),
            _ if seal::number(word) == DONE => Ok(Some((word >> 32) as u32)),
            _ => Err(self.overwritten("the number of calls", peer)),
        }
    }

    /// Whether a peer has dropped the channel.
    pub fn left(&self, peer: u32) -> bool {
        self.own_words(peer).left.load(Ordering::Acquire) != 0
    }

    /// Memory for what peers read in a call: [`PAGE_SLOT_BYTES`] in the page, or a slot of
    /// [`SLOT_BYTES`], which is made when first asked for.
    ///
    /// # Errors
    /// There is no memory for it, or it is never so long.
    #[inline]
    pub fn own_slot(&mut self, call: u32, bytes: usize) -> Result<*mut u8, TransportError> {
        if bytes <= PAGE_SLOT_BYTES {
            return Ok(self.page_slot(self.own, call, bytes));
        }
        if bytes > SLOT_BYTES {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("a slot of {bytes} bytes, at most {SLOT_BYTES}"),
            ));
        }
        let slots = match self.slots {
            Some(slots) => slots,
            None => self.make_slots()?,
        };
        Ok(slots.wrapping_add((call & 1) as usize * SLOT_BYTES))
    }

    #[cold]
    fn make_slots(&mut self) -> Result<*mut u8, TransportError> {
        let (offset, at) = self.rank.take_slots(2 * SLOT_BYTES as u64)?;
        self.slots = Some(at);
        let word = seal::sealed(offset << 16, SLOTS);
        self.own_words(self.own)
            .slots
            .store(word, Ordering::Release);
        Ok(at)
    }

    /// What is short lies in the flag's line.
    #[inline]
    fn page_slot(&self, peer: u32, call: u32, bytes: usize) -> *mut u8 {
        if bytes <= BESIDE_FLAG_BYTES {
            return self.beside_flag(peer, call);
        }
        let at = SET_AT[(call & 1) as usize] + LINE_BYTES;
        self.page(peer).wrapping_add(at)
    }

    /// The slot of a peer whose flag was seen.
    ///
    /// # Errors
    /// What the peer says of it is not true.
    #[inline]
    pub fn slot_of(
        &self,
        peer: u32,
        call: u32,
        bytes: usize,
    ) -> Result<PeerMemory, TransportError> {
        if bytes <= PAGE_SLOT_BYTES {
            let at = self.page_slot(peer, call, bytes);
            // SAFETY: invariant 1: inside the peer's page.
            return Ok(unsafe { PeerMemory::mapped(at, bytes) });
        }
        let slots = match self.of_peers[peer as usize].get() {
            Some(at) => *at as *mut u8,
            None => self.find_slots(peer)?,
        };
        let at = slots.wrapping_add((call & 1) as usize * SLOT_BYTES);
        // SAFETY: invariant 1: `find_slots` has checked both slots.
        Ok(unsafe { PeerMemory::mapped(at, bytes.min(SLOT_BYTES)) })
    }

    #[cold]
    fn find_slots(&self, peer: u32) -> Result<*mut u8, TransportError> {
        let word = self.own_words(peer).slots.load(Ordering::Acquire);
        let offset = word >> 16;
        let sealed = seal::sealed(offset << 16, SLOTS) == word;
        let at = sealed.then(|| self.rank.shared(offset, 2 * SLOT_BYTES as u64));
        let at = at
            .flatten()
            .ok_or_else(|| self.overwritten("a slot", peer))?;
        let known = self.of_peers[peer as usize].get_or_init(|| at.expose_provenance());
        Ok(std::ptr::with_exposed_provenance_mut(*known))
    }

    /// Gives the slots back, for later segments of this rank.
    pub(crate) fn close(&mut self) {
        if self.slots.take().is_some() {
            let offset = self.own_words(self.own).slots.load(Ordering::Relaxed) >> 16;
            self.rank.retire_slots(Retired {
                offset,
                base: self.base.expose_provenance(),
                own: self.own,
                members: self.members,
                channel: self.channel,
                last: self.last.get(),
            });
        }
        self.own_words(self.own).left.store(1, Ordering::Release);
    }
}

/// Slots whose rank has left their segment.
pub(crate) struct Retired {
    pub offset: u64,
    base: usize,
    own: u32,
    members: u32,
    channel: u64,
    last: u32,
}

impl Retired {
    /// Whether nobody reads them any more.
    pub(crate) fn is_quiet(&self) -> bool {
        let base: *mut u8 = std::ptr::with_exposed_provenance_mut(self.base);
        // SAFETY: invariant 1.
        if unsafe { head_at(base) }.channel.load(Ordering::Acquire) != self.channel {
            return true;
        }
        let mut peers = (0..self.members).filter(|peer| *peer != self.own);
        peers.all(|peer| {
            let own = base.wrapping_add(peer as usize * PAGE_BYTES as usize);
            // SAFETY: invariant 1.
            let own = unsafe { &*own.cast::<Own>() };
            let done = own.done.load(Ordering::Acquire);
            let past = ((done >> 32) as u32).wrapping_sub(self.last) as i32 > 0;
            own.left.load(Ordering::Acquire) != 0 || done != 0 && past
        })
    }
}
