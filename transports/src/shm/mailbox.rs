//! Mailbox: one cache line per pair of ranks for a message that need not queue, in either
//! direction.
//!
//! A ring costs a line per direction: the line of an answer is not the line of
//! the question, and both must be taken back from the cache that read them
//! last. In a mailbox question and answer share a line, so that whoever reads
//! the question already has the line into which the answer goes.
//!
//! ```text
//! half        0 of the rank with the lower number, 1 of the other
//! byte        0         2     3     4          8         10     12   14   16     32
//!             sequence  kind  form  argument   position  check  ack  aux  payload
//! form        bytes of the payload (<= 16)
//!             0x41: payload is check << 20 | bytes u32, upper half of the argument,
//!                   position u64 in the byte ring
//!             0x42: payload is check << 20 | bytes u32, upper half of the argument; the
//!                   bytes lie in the area; check covers up to 128 of them
//!             0x43: as 0x42 without check of the bytes, of which the first part is there
//!                   ([`parts`])
//! ```
//!
//! Sequence numbers are sealed with the rest of their word ([`super::seal`]); `check` covers
//! position, ack and aux. A first word that is neither the next message nor what was there
//! last was overwritten by somebody else.
//!
//! The same holds for larger payloads: beside the line lies an area that both
//! directions use in turn. Whoever has read a question from it owns its lines
//! when it writes the answer there.
//!
//! Messages that cross, as in an exchange or a barrier, would wait for each other's
//! acks, and fight for one line. Each direction has two cells of its own for them, a
//! line each: whoever posts before it knows that its last message was read uses these
//! in turn.
//!
//! ```text
//! cell        0 and 1 of side 0, 0 and 1 of side 1
//! byte        0 .. 16 as a half, but form is at most 48     16
//!             position, ack and aux                         payload
//! ```
//!
//! # Invariants
//! 1. A rank writes only its own half, and a new message only when the peer has
//!    acknowledged all before; to a cell only when it has acknowledged the last one in
//!    it. Acks travel with the peer's messages, or beside one that the peer must give to
//!    its ring (else two messages that cross would close the mailbox for ever), never
//!    alone: a stream in one direction uses the ring after its first messages, and the
//!    lines stay where they are. In an exchange, the peer's message of one round tells
//!    that it has read ours of the round before, so two cells are enough for ever.
//! 2. The first word is stored last, with release, and loaded first, with
//!    acquire: whoever sees its sequence number sees the whole half.
//! 3. `position` is the producer's position in its ring when it wrote the
//!    half. The consumer takes the message when it has given back exactly the
//!    cells before, and it looks here between the look that shows it a message
//!    in the cell at that position and taking that one: the order of posting is
//!    kept. A message is in the half before a later one is in the ring, so
//!    a consumer that sees the later one sees it. If the later one were taken first, the
//!    position would be behind, and this one never be taken.
//! 4. The area belongs to the side that has the turn: at first side 0, then
//!    whoever has given back the last message in it. Only that side writes it,
//!    and gives the turn away with the message.
//! 5. The content is not trusted: a form that no correct peer writes is
//!    malformed.
//! 6. Line and cells have one sequence of numbers: the next message is the one with the
//!    next number, wherever it lies. Numbers come again after 65536 messages, so what
//!    was taken long ago is renumbered before it could look like the next.
//!
//! 7. Line, cells and area stay mapped as long as the mailbox (its maker sees to that), and
//!    are as long as their types and the area's bytes say, which are never read from shared
//!    memory. Line and cells are atomics only; an index is masked.
//! 8. What `fill` and `copy` are given lies inside line, cell or area, for as many bytes.
//!
//! # Sources
//! Measured on a 2-core virtual Sapphire Rapids, 2026-11-21: one line that two
//! cores write in turn takes 84 ns one way, two lines 180 to 196 ns.

pub(crate) mod parts;

use super::ring::Head;
use super::seal;
use crate::sync::{AtomicU64, Ordering};
use parts::{MOST_PARTS, Mark};

/// Payload bytes that travel in the line.
pub(crate) const MAIL_BYTES: usize = 16;
/// Payload bytes that travel in a cell.
pub(crate) const CROSS_BYTES: usize = 48;
/// Messages, of 65536 that numbers tell apart.
const RENUMBERED_EVERY: u16 = 1 << 14;
const RING: u8 = 0x41;
const AREA: u8 = 0x42;
const IN_PARTS: u8 = 0x43;
/// The upper bits of a first word that is no message.
const NOTHING: u64 = 0x6e6f_7468_fefe << 16;
/// Bits of the bytes of a message in area or ring; check bits lie above.
const BYTES_BITS: u32 = 20;
/// Bytes of a message in the area that its check bits cover.
const CHECKED_BYTES: usize = 128;

/// What one rank writes.
#[repr(C, align(32))]
struct Half {
    word: AtomicU64,
    order: AtomicU64,
    payload: [AtomicU64; 2],
}

/// A line in shared memory, zeroed at first.
#[repr(C, align(64))]
pub(crate) struct Line {
    halves: [Half; 2],
}

/// A message to a peer whose message is under way to us. Two lines each: processors
/// fetch pairs.
#[repr(C, align(128))]
struct Cell {
    word: AtomicU64,
    order: AtomicU64,
    payload: [AtomicU64; 6],
}

/// The cells of both sides, and the marks of parts, zeroed at first.
#[repr(C)]
pub(crate) struct Cells {
    cells: [[Cell; 2]; 2],
    marks: [Mark; MOST_PARTS],
}

#[cfg(test)]
impl Line {
    pub(super) fn new() -> Self {
        let half = || Half {
            word: AtomicU64::new(seal::sealed(NOTHING, 0)),
            order: AtomicU64::new(0),
            payload: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Self {
            halves: [half(), half()],
        }
    }
}

#[cfg(test)]
impl Cells {
    pub(super) fn new() -> Self {
        let cell = || Cell {
            word: AtomicU64::new(seal::sealed(NOTHING, 0)),
            order: AtomicU64::new(0),
            payload: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            cells: [[cell(), cell()], [cell(), cell()]],
            marks: std::array::from_fn(Mark::new),
        }
    }
}

/// What lies in a mailbox.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mail {
    /// A message whose payload lies in the line.
    Here {
        head: Head,
        payload: *const u8,
        bytes: usize,
    },
    /// A message whose payload lies in the byte ring.
    InRing {
        head: Head,
        position: u64,
        bytes: u64,
    },
    /// What no correct peer writes.
    Malformed,
}

/// Address and bytes of the memory that both directions use in turn.
pub(crate) type Area = (*mut u8, usize);

/// One rank's end of a mailbox.
pub(crate) struct Mailbox {
    line: *const Line,
    cells: *const Cells,
    area: Area,
    /// Whether the area is ours to write.
    turn: bool,
    /// Which half is ours.
    side: usize,
    /// Sequence number of the last message sent.
    sent: u16,
    /// Sequence number of the last message taken,
    taken: u16,
    /// and of the last one that the peer has been told of.
    acked: u16,
    /// Of ours: the last one that the peer is known to have taken,
    heard: u16,
    /// and what its half said of that when we last looked.
    seen: u64,
    /// Sequence numbers of the messages in our half and in our cells.
    mailed: u16,
    crossed: [u16; 2],
    /// The cell that is next, of ours and of the peer's.
    next: usize,
    theirs: usize,
    /// What was polled last lies in a cell.
    in_cell: bool,
    /// Position and aux of the last message in the line, as in its second word.
    order: u64,
    /// First words of the peer's line and cells when we last took a message there.
    old: [u64; 3],
    /// Messages in parts so far, in both directions.
    in_parts: u64,
    /// The one whose parts did not come in time.
    given_up: Option<u16>,
}

// SAFETY: invariants 1 and 7: the only right to one end of a line in memory that outlives
// it; nothing in it is tied to a thread.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// # Safety
    /// The line, the cells and the area stay mapped as long as the mailbox, line and cells
    /// were zeroed and [`clear`]ed before either end was made, and there is one end per side.
    /// Their content is not trusted.
    pub unsafe fn new(line: *const Line, cells: *const Cells, area: Area, side: usize) -> Self {
        debug_assert!(side < 2);
        Self {
            line,
            cells,
            area,
            turn: side == 0,
            side,
            sent: 0,
            taken: 0,
            acked: 0,
            heard: 0,
            seen: 0,
            mailed: 0,
            crossed: [0; 2],
            next: 0,
            theirs: 0,
            in_cell: false,
            order: 0,
            old: [seal::sealed(NOTHING, 0); 3],
            in_parts: 0,
            given_up: None,
        }
    }

    #[inline]
    fn half(&self, side: usize) -> &Half {
        // SAFETY: invariant 7, by the contract of `new`.
        let line = unsafe { &*self.line };
        &line.halves[side & 1]
    }

    #[inline]
    fn cell(&self, side: usize, at: usize) -> &Cell {
        // SAFETY: invariant 7, by the contract of `new`.
        let cells = unsafe { &*self.cells };
        &cells.cells[side & 1][at & 1]
    }

    /// Whether the peer has read all messages.
    #[inline]
    pub fn free(&mut self) -> bool {
        if self.heard == self.sent {
            return true;
        }
        // Acquire: the peer's reads of our half end before we write it.
        let order = self.half(self.side ^ 1).order.load(Ordering::Acquire);
        self.look(order);
        self.heard == self.sent
    }

    /// What the peer's half says of ours. It may be older than what a cell has said,
    /// but what has changed since the last look is not old enough to be mistaken: we
    /// look whenever we post before we know that the last message was read.
    #[inline]
    fn look(&mut self, order: u64) {
        if order != self.seen {
            self.seen = order;
            self.hear(order);
        }
    }

    /// The peer has taken our messages up to the one that a second word names.
    #[inline]
    fn hear(&mut self, order: u64) {
        let ack = (order >> 32) as u16;
        if !is_order(order) {
            return; // overwritten: without an ack the ring takes what we send
        }
        if self.sent.wrapping_sub(ack) < self.sent.wrapping_sub(self.heard) {
            self.heard = ack;
        }
    }

    /// Whether a message of so many bytes has a free cell; after [`Mailbox::free`] has
    /// said no.
    #[inline]
    pub fn may_cross(&self, bytes: usize) -> bool {
        let unread = self.sent.wrapping_sub(self.heard);
        let since = self.sent.wrapping_sub(self.crossed[self.next & 1]);
        bytes <= CROSS_BYTES && since >= unread
    }

    /// Posts a message by the cell that [`Mailbox::may_cross`] has found.
    #[inline]
    pub fn post_cross(
        &mut self,
        position: u64,
        head: (u8, u16, u32),
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) {
        debug_assert!(self.may_cross(bytes));
        self.count();
        let at = self.next & 1;
        self.next = at ^ 1;
        self.crossed[at] = self.sent;
        let cell = self.cell(self.side, at);
        // The peer does not read it before the word is stored.
        fill((&raw const cell.payload).cast_mut().cast());
        // Release: as in `publish`.
        let order = order(position, self.taken, head.1);
        cell.order.store(order, Ordering::Release);
        cell.word
            .store(word(self.sent, head, bytes as u8), Ordering::Release);
        self.acked = self.taken;
    }

    /// Posts a message of at most eight bytes, `data` in memory order, to a
    /// free mailbox. `position` is that of the ring.
    #[inline]
    pub fn post_short(&mut self, position: u64, head: (u8, u16, u32), data: u64, bytes: usize) {
        debug_assert!(bytes <= 8);
        let half = self.half(self.side);
        half.payload[0].store(data, Ordering::Relaxed);
        self.publish(position, head, bytes as u8);
    }

    /// Posts a message of at most [`MAIL_BYTES`] bytes, which `fill` writes,
    /// to a free mailbox.
    #[inline]
    pub fn post(
        &mut self,
        position: u64,
        head: (u8, u16, u32),
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) {
        debug_assert!(bytes <= MAIL_BYTES);
        // The peer does not read it before `publish`.
        fill((&raw const self.half(self.side).payload).cast_mut().cast());
        self.publish(position, head, bytes as u8);
    }

    /// Whether the area is ours and takes so many bytes.
    #[inline]
    pub fn has_area(&self, bytes: usize) -> bool {
        self.turn && bytes <= self.area.1
    }

    /// Posts a message whose payload `fill` writes to the area, which
    /// [`Mailbox::has_area`] has offered, to a free mailbox.
    #[inline]
    pub fn post_area(
        &mut self,
        position: u64,
        head: Head,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) {
        debug_assert!(self.has_area(bytes));
        fill(self.area.0);
        self.turn = false;
        let half = self.half(self.side);
        let first = first(bytes as u64, head.2, self.check_area(bytes, head.2));
        half.payload[0].store(first, Ordering::Relaxed);
        self.publish(position, (head.0, head.1, head.2 as u32), AREA);
    }

    /// Posts a message whose payload lies at `at` of the byte ring to a free
    /// mailbox.
    #[inline]
    pub fn post_ring(&mut self, position: u64, head: Head, bytes: usize, at: u64) {
        let half = self.half(self.side);
        let first = first(bytes as u64, head.2, at);
        half.payload[0].store(first, Ordering::Relaxed);
        half.payload[1].store(at, Ordering::Relaxed);
        self.publish(position, (head.0, head.1, head.2 as u32), RING);
    }

    #[inline]
    fn publish(&mut self, position: u64, head: (u8, u16, u32), form: u8) {
        self.count();
        self.mailed = self.sent;
        self.order = position & 0xffff | u64::from(head.1) << 48;
        let word = word(self.sent, head, form);
        let half = self.half(self.side);
        // Release: whoever sees the ack knows that our reads are over.
        let order = order(position, self.taken, head.1);
        half.order.store(order, Ordering::Release);
        half.word.store(word, Ordering::Release);
        self.acked = self.taken;
    }

    /// The next number.
    #[inline]
    fn count(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        if self.sent.is_multiple_of(RENUMBERED_EVERY) {
            self.renumber();
        }
    }

    /// Gives what the peer has taken the number of the last message that it has: it
    /// waits for later ones.
    #[cold]
    fn renumber(&mut self) {
        // The number just counted is of a message that is not posted yet.
        let unread = self.sent.wrapping_sub(self.heard);
        let (sent, heard) = (self.sent, self.heard);
        let old = |number: u16| sent.wrapping_sub(number) >= unread;
        let nothing = seal::sealed(NOTHING, heard.into());
        if old(self.mailed) {
            self.half(self.side).word.store(nothing, Ordering::Release);
            self.mailed = heard;
        }
        for at in 0..2 {
            if old(self.crossed[at]) {
                self.cell(self.side, at)
                    .word
                    .store(nothing, Ordering::Release);
                self.crossed[at] = heard;
            }
        }
    }

    /// To be called with a message that goes to the ring: the peer hears what
    /// it has not heard yet.
    #[inline]
    pub fn acknowledge(&mut self) {
        if self.acked != self.taken {
            self.acked = self.taken;
            // Nothing else changes: the message there may not be taken yet.
            let order = order(self.order, self.taken, (self.order >> 48) as u16);
            let half = self.half(self.side);
            half.order.store(order, Ordering::Release);
        }
    }

    /// Asks once, with the consumer's position in the ring. What is found
    /// must be released before the next call.
    #[inline]
    pub fn poll(&mut self, position: u64) -> Option<Mail> {
        let half = self.half(self.side ^ 1);
        let word = half.word.load(Ordering::Acquire);
        if !self.is_next(word) {
            if word != self.old[0] {
                if !self.renumbered(word) {
                    return Some(Mail::Malformed);
                }
                self.old[0] = word;
            }
            return self.poll_cell(position);
        }
        self.in_cell = false;
        let half = self.half(self.side ^ 1);
        let order = half.order.load(Ordering::Relaxed);
        if !is_order(order) {
            return Some(Mail::Malformed);
        }
        if order as u16 != position as u16 {
            return None;
        }
        let form = (word >> 24) as u8;
        let mut head = ((word >> 16) as u8, (order >> 48) as u16, word >> 32);
        if form as usize <= MAIL_BYTES {
            return Some(Mail::Here {
                head,
                payload: (&raw const half.payload).cast(),
                bytes: form as usize,
            });
        }
        let meta = half.payload[0].load(Ordering::Relaxed);
        let bytes = meta & ((1 << BYTES_BITS) - 1);
        head.2 |= meta >> 32 << 32;
        Some(if form == AREA {
            if self.turn
                || bytes > self.area.1 as u64
                || meta != first(bytes, head.2, self.check_area(bytes as usize, head.2))
            {
                return Some(Mail::Malformed);
            }
            Mail::Here {
                head,
                payload: self.area.0,
                bytes: bytes as usize,
            }
        } else if form == IN_PARTS {
            return self.poll_parts(head, meta);
        } else if form == RING {
            let position = half.payload[1].load(Ordering::Relaxed);
            if meta != first(bytes, head.2, position) {
                return Some(Mail::Malformed);
            }
            Mail::InRing {
                head,
                bytes,
                position,
            }
        } else {
            Mail::Malformed
        })
    }

    fn poll_cell(&mut self, position: u64) -> Option<Mail> {
        let cell = self.cell(self.side ^ 1, self.theirs);
        let word = cell.word.load(Ordering::Acquire);
        if !self.is_next(word) {
            let at = 1 + (self.theirs & 1);
            if word != self.old[at] {
                // A later message, behind one that came to the line meanwhile?
                let line = self.half(self.side ^ 1).word.load(Ordering::Acquire);
                if !self.is_next(line) && !self.renumbered(word) {
                    return Some(Mail::Malformed);
                }
                if !self.is_next(line) {
                    self.old[at] = word;
                }
            }
            return None;
        }
        let order = cell.order.load(Ordering::Acquire);
        if !is_order(order) {
            return Some(Mail::Malformed);
        }
        if order as u16 != position as u16 {
            return None;
        }
        let bytes = usize::from((word >> 24) as u8);
        let payload = (&raw const cell.payload).cast();
        self.in_cell = true;
        Some(if bytes <= CROSS_BYTES {
            Mail::Here {
                head: ((word >> 16) as u8, (order >> 48) as u16, word >> 32),
                payload,
                bytes,
            }
        } else {
            Mail::Malformed
        })
    }

    /// Whether a first word is of the next message.
    #[inline(always)]
    fn is_next(&self, word: u64) -> bool {
        seal::number(word) == u64::from(self.taken.wrapping_add(1))
    }

    /// Whether a first word says that there is nothing.
    #[cold]
    fn renumbered(&self, word: u64) -> bool {
        word & !0xffff == NOTHING
    }

    /// Check bits of what lies in the area, if it is short and of a message with an argument
    /// of 64 bits: data of the program goes without.
    #[inline]
    fn check_area(&self, bytes: usize, argument: u64) -> u64 {
        if argument >> 32 == 0 || bytes > CHECKED_BYTES.min(self.area.1) {
            return 0;
        }
        // SAFETY: invariant 7: the area has so many bytes.
        unsafe { seal::check_bytes(self.area.0, bytes) }
    }

    /// Takes the message there if it is of this kind and argument, without aux,
    /// with at most `room` bytes and none of them in the byte ring; `copy`
    /// reads them. What else is there, [`Mailbox::poll`] tells.
    #[inline(always)]
    pub fn take(
        &mut self,
        position: u64,
        kind: u8,
        argument: u32,
        room: usize,
        copy: impl FnOnce(*const u8, usize),
    ) -> Option<usize> {
        let half = self.half(self.side ^ 1);
        let word = half.word.load(Ordering::Acquire);
        let next = self.taken.wrapping_add(1);
        let wanted = u64::from(kind) << 16 | u64::from(argument) << 32;
        if word & !0xff00_ffff != wanted || !self.is_next(word) {
            if word != self.old[0] {
                return None; // what it is, `poll` tells
            }
            return self.take_cell(position, wanted, room, copy);
        }
        let order = half.order.load(Ordering::Acquire);
        if order & 0xffff_0000_0000_ffff != position & 0xffff || !is_order(order) {
            return None;
        }
        let form = (word >> 24) as u8;
        let bytes = if form as usize <= MAIL_BYTES {
            let bytes = form as usize;
            if bytes > room {
                return None;
            }
            copy((&raw const half.payload).cast(), bytes);
            bytes
        } else {
            let meta = half.payload[0].load(Ordering::Relaxed);
            let bytes = meta & ((1 << BYTES_BITS) - 1);
            let most = room.min(self.area.1) as u64;
            if form != AREA
                || self.turn
                || bytes > most
                || meta != first(bytes, meta, self.check_area(bytes as usize, meta))
            {
                return None;
            }
            copy(self.area.0, bytes as usize);
            self.turn = true;
            bytes as usize
        };
        self.taken = next;
        self.old[0] = word;
        self.look(order);
        Some(bytes)
    }

    #[inline(always)]
    fn take_cell(
        &mut self,
        position: u64,
        wanted: u64,
        room: usize,
        copy: impl FnOnce(*const u8, usize),
    ) -> Option<usize> {
        let cell = self.cell(self.side ^ 1, self.theirs);
        let word = cell.word.load(Ordering::Acquire);
        if word & !0xff00_ffff != wanted || !self.is_next(word) {
            return None;
        }
        let order = cell.order.load(Ordering::Acquire);
        if order & 0xffff_0000_0000_ffff != position & 0xffff || !is_order(order) {
            return None;
        }
        let bytes = usize::from((word >> 24) as u8);
        if bytes > room.min(CROSS_BYTES) {
            return None;
        }
        copy((&raw const cell.payload).cast(), bytes);
        self.taken = self.taken.wrapping_add(1);
        self.old[1 + (self.theirs & 1)] = word;
        self.theirs ^= 1;
        self.hear(order);
        Some(bytes)
    }

    /// Whether line and cell are as they were when the last message was taken there, so that
    /// nothing has come by them.
    #[inline(always)]
    pub fn is_still(&self) -> bool {
        let line = self.half(self.side ^ 1).word.load(Ordering::Acquire);
        let cell = self.cell(self.side ^ 1, self.theirs);
        let cell = cell.word.load(Ordering::Acquire);
        line == self.old[0] && cell == self.old[1 + (self.theirs & 1)]
    }

    /// Whether a message is there that comes before the ring's next, or something that
    /// [`Mailbox::poll`] must look at.
    #[inline]
    pub fn waits(&self, position: u64) -> bool {
        let found = |order: &AtomicU64| {
            let order = order.load(Ordering::Relaxed);
            order as u16 == position as u16 || !is_order(order)
        };
        let half = self.half(self.side ^ 1);
        let word = half.word.load(Ordering::Acquire);
        if self.is_next(word) {
            return found(&half.order);
        }
        if word != self.old[0] {
            return true;
        }
        let cell = self.cell(self.side ^ 1, self.theirs);
        let word = cell.word.load(Ordering::Acquire);
        match self.is_next(word) {
            true => found(&cell.order),
            false => word != self.old[1 + (self.theirs & 1)],
        }
    }

    /// Gives back the message found. The peer hears of it with our next one.
    #[inline]
    pub fn release(&mut self) {
        self.taken = self.taken.wrapping_add(1);
        if self.in_cell {
            let cell = self.cell(self.side ^ 1, self.theirs);
            let word = cell.word.load(Ordering::Relaxed);
            let order = cell.order.load(Ordering::Acquire);
            self.old[1 + (self.theirs & 1)] = word;
            self.theirs ^= 1;
            return self.hear(order);
        }
        // Of the peer, or of nobody if it was malformed.
        let half = self.half(self.side ^ 1);
        let (word, order) = (
            half.word.load(Ordering::Relaxed),
            half.order.load(Ordering::Acquire),
        );
        self.old[0] = word;
        match (word >> 24) as u8 {
            AREA => self.turn = true,
            IN_PARTS => self.took_parts(),
            _ => {}
        }
        self.look(order);
    }
}

/// The first word of a message.
#[inline]
fn word(sequence: u16, (kind, _, argument): (u8, u16, u32), form: u8) -> u64 {
    let upper = u64::from(kind) << 16 | u64::from(form) << 24 | u64::from(argument) << 32;
    seal::sealed(upper, sequence.into())
}

/// The second word of a message.
#[inline]
fn order(position: u64, ack: u16, aux: u16) -> u64 {
    let rest = position & 0xffff | u64::from(ack) << 32 | u64::from(aux) << 48;
    rest | seal::check(rest) << 16
}

/// Whether a second word is as it was written.
#[inline(always)]
fn is_order(order: u64) -> bool {
    order >> 16 & 0xffff == seal::check(order & !0xffff_0000)
}

/// What describes a payload in area or ring: its bytes, the argument's upper half, check
/// bits of both and of something else.
#[inline]
fn first(bytes: u64, argument: u64, what: u64) -> u64 {
    let rest = bytes | argument >> 32 << 32;
    let check = seal::check(seal::mix(rest, what)) & 0xfff;
    rest | check << BYTES_BITS
}

/// Makes line and cells fresh, in which nothing has been written.
///
/// # Safety
/// Both are valid and zeroed, and no end has been made.
pub(crate) unsafe fn clear(line: *const Line, cells: *const Cells) {
    let fresh = seal::sealed(NOTHING, 0);
    // SAFETY: invariant 7, which the caller upholds.
    let line = unsafe { &*line };
    // SAFETY: invariant 7, which the caller upholds.
    let cells = unsafe { &*cells };
    for half in &line.halves {
        half.word.store(fresh, Ordering::Relaxed);
    }
    for cell in cells.cells.iter().flatten() {
        cell.word.store(fresh, Ordering::Relaxed);
    }
    for (number, mark) in cells.marks.iter().enumerate() {
        mark.clear(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_AREA: Area = (std::ptr::null_mut(), 0);

    fn ends((line, cells): &(Line, Cells)) -> (Mailbox, Mailbox) {
        // SAFETY: invariant 7: the callers keep the lines while they use the ends.
        let a = unsafe { Mailbox::new(line, cells, NO_AREA, 0) };
        // SAFETY: invariant 7: the callers keep the lines while they use the ends.
        let b = unsafe { Mailbox::new(line, cells, NO_AREA, 1) };
        (a, b)
    }

    #[cfg(not(loom))]
    fn take(m: &mut Mailbox, position: u64) -> Option<(Head, Vec<u8>)> {
        match m.poll(position)? {
            Mail::Here {
                head,
                payload,
                bytes,
            } => {
                let mut v = vec![0; bytes];
                // SAFETY: invariant 8: not released yet.
                unsafe { std::ptr::copy_nonoverlapping(payload, v.as_mut_ptr(), bytes) };
                m.release();
                Some((head, v))
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[cfg(not(loom))]
    fn put(m: &mut Mailbox, position: u64, n: u32, bytes: &[u8]) {
        assert!(m.free());
        m.post(position, (3, 5, n), bytes.len(), |to| {
            // SAFETY: invariant 8: room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        });
    }

    #[cfg(not(loom))]
    #[test]
    fn question_and_answer_share_the_line() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        // Longer than sequence numbers last.
        for n in 0..70_000u32 {
            let bytes: Vec<u8> = (0..n % 17).map(|k| (k + n) as u8).collect();
            put(&mut a, 7, n, &bytes);
            assert!(!a.free(), "the first is not read yet");
            assert_eq!(take(&mut b, 7), Some(((3, 5, u64::from(n)), bytes.clone())));
            assert!(take(&mut b, 7).is_none());
            put(&mut b, 9, n, &bytes);
            assert_eq!(take(&mut a, 9), Some(((3, 5, u64::from(n)), bytes)));
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn messages_that_cross_do_not_close_it() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        put(&mut a, 0, 1, b"a");
        put(&mut b, 0, 2, b"b");
        assert!(take(&mut a, 0).is_some() && take(&mut b, 0).is_some());
        assert!(!a.free() && !b.free(), "neither has told the other");
        a.acknowledge();
        assert!(b.free() && !a.free());
        put(&mut b, 0, 3, b"again");
        assert!(a.free());
        assert_eq!(take(&mut a, 0).map(|m| m.1), Some(b"again".to_vec()));
    }

    /// As the endpoint does: by the line if that is free, else by a cell.
    #[cfg(not(loom))]
    fn put_anyhow(m: &mut Mailbox, position: u64, n: u32, bytes: &[u8]) -> bool {
        if m.free() {
            put(m, position, n, bytes);
            return true;
        }
        let may = m.may_cross(bytes.len());
        if may {
            m.post_cross(position, (3, 5, n), bytes.len(), |to| {
                // SAFETY: invariant 8: room for that many bytes.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
            });
        }
        may
    }

    #[cfg(not(loom))]
    #[test]
    fn exchanges_go_on_for_ever_whoever_is_first() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        for n in 0..140_000u32 {
            let bytes: Vec<u8> = (0..n % 17).map(|k| (k + n) as u8).collect();
            // Whoever is ahead posts for the next round before the other has posted.
            assert!(put_anyhow(&mut a, 7, n, &bytes));
            if n % 3 == 0 {
                assert!(put_anyhow(&mut b, 9, n, &bytes));
                assert_eq!(take(&mut a, 9), Some(((3, 5, u64::from(n)), bytes.clone())));
                assert_eq!(take(&mut b, 7), Some(((3, 5, u64::from(n)), bytes)));
            } else {
                assert_eq!(take(&mut b, 7), Some(((3, 5, u64::from(n)), bytes.clone())));
                assert!(put_anyhow(&mut b, 9, n, &bytes));
                let mut got = Vec::new();
                let copy = |from: *const u8, bytes: usize| {
                    // SAFETY: invariant 8.
                    got.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
                };
                // Aux is not 0, so it is not for this one.
                assert_eq!(a.take(9, 3, n, 16, copy), None);
                assert_eq!(take(&mut a, 9), Some(((3, 5, u64::from(n)), bytes)));
            }
        }
    }

    /// Numbers come again: nothing that was taken long ago is taken once more.
    #[cfg(not(loom))]
    #[test]
    fn what_lies_there_for_long_is_not_the_next_message() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        for how in 0..3 {
            for n in 0..70_000u32 {
                // Tags come again, too.
                let tag = n % 1024;
                let message = ((3, 5, u64::from(tag)), n.to_le_bytes().to_vec());
                assert!(take(&mut b, 7).is_none(), "{how} {n}");
                assert!(put_anyhow(&mut a, 7, tag, &message.1));
                if how == 1 {
                    assert_eq!(take(&mut b, 7).as_ref(), Some(&message), "{how} {n}");
                }
                assert!(take(&mut a, 9).is_none(), "{how} {n}");
                assert!(put_anyhow(&mut b, 9, tag, &message.1));
                if how != 1 {
                    assert_eq!(take(&mut b, 7).as_ref(), Some(&message), "{how} {n}");
                }
                assert_eq!(take(&mut a, 9), Some(message), "{how} {n}");
            }
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn a_stream_ends_where_nothing_is_read() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        for round in 0..40_000u32 {
            for n in 0..3 {
                assert!(put_anyhow(&mut a, 0, n, &[n as u8; 40][..16]));
            }
            assert!(!put_anyhow(&mut a, 0, 3, b""), "three are unread");
            for n in 0..3 {
                let got = take(&mut b, 0).expect("in order");
                assert_eq!(got.0.2, n, "round {round}");
            }
            assert!(take(&mut b, 0).is_none());
            assert!(!put_anyhow(&mut a, 0, 3, b""), "nobody has said it");
            b.acknowledge();
            b.acked = b.taken.wrapping_sub(1); // says it again, which changes nothing
            b.acknowledge();
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn large_payloads_cross_too() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        put(&mut a, 0, 0, b"");
        assert!(!a.free() && a.may_cross(48) && !a.may_cross(49));
        assert!(put_anyhow(&mut a, 0, 1, &[7; 48]));
        assert!(take(&mut b, 0).is_some());
        assert_eq!(take(&mut b, 0).map(|m| m.1), Some(vec![7; 48]));
        // Nobody writes such a form.
        a.post_cross(0, (1, 0, 0), 0, |_| {});
        let cell = a.cell(0, a.next ^ 1);
        cell.word
            .store(word(a.sent, (1, 0, 0), 49), Ordering::Release);
        assert!(matches!(b.poll(0), Some(Mail::Malformed)));
        b.release();
        assert!(b.poll(0).is_none());
    }

    #[cfg(not(loom))]
    #[test]
    fn a_message_waits_for_its_place_in_the_ring() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        put(&mut a, 3, 1, b"fourth");
        for before in 0..3 {
            assert!(take(&mut b, before).is_none());
        }
        // What we have read is told while ours is not taken yet.
        put(&mut b, 0, 2, b"x");
        assert!(take(&mut a, 0).is_some());
        a.acknowledge();
        assert_eq!(take(&mut b, 3).map(|m| m.1), Some(b"fourth".to_vec()));
    }

    #[cfg(not(loom))]
    #[test]
    fn a_form_that_nobody_writes_is_malformed() {
        let line = (Line::new(), Cells::new());
        let (mut a, mut b) = ends(&line);
        // The area has no bytes here.
        a.half(0).payload[0].store(1, Ordering::Relaxed);
        for form in [17, 0x3f, 0x40, 0x42, 0x43, 0xff] {
            a.publish(0, (1, 0, 0), form);
            assert!(matches!(b.poll(0), Some(Mail::Malformed)));
            b.release();
        }
    }

    /// The real mailbox beside a stand-in for the ring (one counted cell): a
    /// message in the line and a later one in the ring are taken in the order
    /// of posting, and the line is not written while it is read.
    #[cfg(loom)]
    #[test]
    fn loom_mailbox_and_ring_keep_the_order() {
        use loom::sync::Arc;
        loom::model(|| {
            let shared = Arc::new((Line::new(), Cells::new(), AtomicU64::new(0)));
            let theirs = shared.clone();
            let producer = loom::thread::spawn(move || {
                // SAFETY: invariant 7: the model joins the thread before the line goes.
                let mut a = unsafe { Mailbox::new(&theirs.0, &theirs.1, NO_AREA, 0) };
                assert!(a.free());
                a.post_ring(0, (1, 0, 10), 5, 50);
                theirs.2.store(1, Ordering::Release); // the ring's cell 0
                while !a.free() {
                    loom::thread::yield_now();
                }
                a.post_ring(1, (1, 0, 11), 6, 60);
            });
            // SAFETY: invariant 7: the model joins the thread before the line goes.
            let mut b = unsafe { Mailbox::new(&shared.0, &shared.1, NO_AREA, 1) };
            let mut position = 0;
            let mut order = Vec::new();
            while order.len() < 3 {
                // As the endpoint does: ring first, then the line.
                let in_ring = position == 0 && shared.2.load(Ordering::Acquire) == 1;
                if let Some(mail) = b.poll(position) {
                    let Mail::InRing {
                        head,
                        position: at,
                        bytes,
                    } = mail
                    else {
                        panic!("{mail:?}");
                    };
                    assert_eq!(at, bytes * 10, "torn");
                    order.push(head.2);
                    b.release();
                    b.acknowledge();
                } else if in_ring {
                    order.push(0);
                    position = 1;
                } else {
                    loom::thread::yield_now();
                }
            }
            assert_eq!(order, [10, 0, 11]);
            producer.join().expect("the producer ends");
        });
    }

    /// Two ends that exchange round after round: each message is whole, and comes in its
    /// round.
    #[cfg(loom)]
    #[test]
    fn loom_exchanges_are_whole() {
        use loom::sync::Arc;
        fn rounds(mut m: Mailbox) {
            for round in 1..4u32 {
                let fill = |to: *mut u8| {
                    // SAFETY: invariant 8: an atomic word of the payload, which only this end writes.
                    let at = unsafe { &*to.cast::<AtomicU64>() };
                    at.store(u64::from(round) * 10, Ordering::Relaxed);
                };
                if m.free() {
                    m.post(0, (1, 0, round), 8, fill);
                } else {
                    assert!(m.may_cross(8), "a cell is free in an exchange");
                    m.post_cross(0, (1, 0, round), 8, fill);
                }
                let mut got = 0;
                let copy = |from: *const u8, _: usize| {
                    // SAFETY: invariant 8: an atomic word of the payload, read.
                    let at = unsafe { &*from.cast::<AtomicU64>() };
                    got = at.load(Ordering::Relaxed);
                };
                let mut copy = Some(copy);
                loop {
                    let copy = |from, n| copy.take().expect("once")(from, n);
                    if m.take(0, 1, round, 8, copy).is_some() {
                        break;
                    }
                    loom::thread::yield_now();
                }
                drop(copy);
                assert_eq!(got, u64::from(round) * 10, "torn");
            }
        }
        loom::model(|| {
            let shared = Arc::new((Line::new(), Cells::new()));
            let theirs = shared.clone();
            let other = loom::thread::spawn(move || {
                // SAFETY: invariant 7: the lines live as long as the model.
                rounds(unsafe { Mailbox::new(&theirs.0, &theirs.1, NO_AREA, 0) });
            });
            // SAFETY: invariant 7: the lines live as long as the model.
            rounds(unsafe { Mailbox::new(&shared.0, &shared.1, NO_AREA, 1) });
            other.join().expect("it ends");
        });
    }
}
