//! A channel over shared memory.
//!
//! # Invariants
//! 1. `inbox` and each `sleeping` name atomics of control blocks in the head of the arena
//!    (invariant 6 of `segment`), which `rank` keeps mapped as long as the endpoint.
//! 2. A block is ours and fresh from `new_block`, and this endpoint its only producer; or
//!    `open_block` has checked it (invariant 3 of `rank`), and it was named once: in the
//!    inbox, or by the only producer of the ring before it. It is not re-used before its
//!    consumer has closed it or died (invariant 2 of `rank`). A peer that names one twice
//!    makes two readers of atomics, and harms its own messages only.
//! 3. The payload of a message lies inside ring, line, cell or area (invariants 8 of `ring`
//!    and of `mailbox`), stays until `release`, and its mapping as long as `rank`.
//! 4. [`ShmEndpoint::address`] hands out what lies inside a mapping (invariant 2 of
//!    `mapping`), or in this process, where the owner of the key keeps what it has exported
//!    (the contract of [`Endpoint::export`]).
//! 5. Callers vouch for their own memory by the contracts of [`Endpoint`].

use super::collective::Collective;
use super::mailbox::{MAIL_BYTES, Mail, Mailbox};
use super::rank::{Arrivals, Level, ShmRank};
use super::ring::{Consumer, Found, INLINE_BYTES, Producer};
use super::{cma, next, words};
use crate::Death;
use crate::by_rank::{ByRank, Sparse};
use crate::contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PeerMemory,
    PostError, RegionKey, RegionKind, Sharing, TransportError, TransportErrorKind,
};
use crate::full_fence;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// Largest payload of a message, in bytes: fragments of this size keep both
/// copies of a pipeline in the second-level cache.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 10;
/// Messages up to this size go in parts by the mailbox alone; the ring takes them whole.
const WHOLE_BYTES: usize = 16 << 10;
/// No ring from a peer yet.
const NO_RING: u32 = u32::MAX;
/// After so many messages taken, rings that peers have opened are adopted.
const ADOPT_EVERY: u32 = 64;
/// Cells that are posted to a small ring before it grows.
const SMALL_RING_CELLS: u64 = 16;
/// The same where the peer's ring has grown, so that this one carries the answers to a stream: to
/// make the pages of a ring took a tenth of a millisecond in the middle of that stream.
const ANSWER_CELLS: u64 = 4;
/// In the token of a message: it lies in the mailbox,
const MAIL: u32 = 1 << 31;
/// and its payload in the byte ring.
const MAIL_PAYLOAD: u32 = 1 << 30;

struct Tx {
    ring: Option<(Producer, u64, Level)>,
    /// Cells that are posted before a small ring grows.
    grows_after: u64,
    /// The mailbox that this rank and the peer share, for both directions.
    mail: Option<Mailbox>,
    /// Its block, if it is ours: that of the rank with the lower number, which
    /// makes it when its ring outgrows the first page.
    exchange: Option<u64>,
    /// Index of the ring from the peer, once there is one.
    from: u32,
    sleeping: *const AtomicU32,
}

impl Tx {
    fn new(rank: &ShmRank, destination: u32) -> Self {
        Self {
            ring: None,
            grows_after: SMALL_RING_CELLS,
            mail: None,
            exchange: None,
            from: NO_RING,
            sleeping: &raw const rank.job().control(destination as usize).sleeping,
        }
    }
}

struct Rx {
    ring: Consumer,
    /// The peer's exchange block, to be closed with the channel: until then we
    /// write it.
    exchange: Option<Consumer>,
    peer: Peer,
    source: u32,
    /// What comes was overwritten; nothing is read any more.
    overwritten: bool,
}

/// One rank's end of a channel.
pub struct ShmEndpoint {
    tx: ByRank<Tx>,
    /// Processes of peers and their namespaces, as they said when they were first asked about
    /// them: what is written there later changes nothing.
    processes: Sparse<(u32, u32)>,
    rx: Vec<Rx>,
    cursor: usize,
    busy: u32,
    /// The last message by a mailbox has crossed one of its peer.
    crossed: bool,
    inbox: *const AtomicU64,
    arrivals: Arc<Arrivals>,
    fence: bool,
    /// Peers that can no longer be heard, and whether all were told that have no ring yet.
    newly_cut_off: Vec<Peer>,
    told_of_inbox: bool,
    /// The segment for collectives, once there was one.
    collective: Option<Collective>,
    /// The same of persistent calls, by their numbers.
    of_persistent: Vec<Option<Box<Collective>>>,
    rank: ShmRank,
    channel: u64,
    members: Arc<[u32]>,
}

// SAFETY: invariants 1 and 2: the raw pointers name memory that `rank` keeps mapped;
// nothing is tied to a thread.
unsafe impl Send for ShmEndpoint {}

impl ShmEndpoint {
    pub(crate) fn new(
        rank: ShmRank,
        channel: u64,
        members: Arc<[u32]>,
        arrivals: Arc<Arrivals>,
    ) -> Self {
        Self {
            tx: ByRank::new(members.len(), |peer| Tx::new(&rank, members[peer])),
            processes: Sparse::new(members.len()),
            rx: Vec::new(),
            cursor: 0,
            busy: 0,
            crossed: false,
            inbox: rank.inbox(),
            arrivals,
            fence: rank.fence(),
            newly_cut_off: Vec::new(),
            told_of_inbox: false,
            collective: None,
            of_persistent: Vec::new(),
            rank,
            channel,
            members,
        }
    }

    /// Opens or enlarges the ring to a peer. `Ok(false)`: no credit for the
    /// change now.
    #[cold]
    fn grow(&mut self, peer: Peer, level: Level) -> Result<bool, TransportError> {
        let destination = self.members[peer as usize];
        let make = |peer| Tx::new(&self.rank, self.members[peer]);
        let Some(tx) = self.tx.get_or_make(peer as usize, make) else {
            return Ok(false);
        };
        if let Some((ring, _, _)) = &mut tx.ring
            && !ring.has_cells(1)
        {
            return Ok(false);
        }
        let announce = tx.ring.is_none();
        let block = self
            .rank
            .new_block(self.channel, destination, level, announce)?;
        // It continues behind the cell that tells the consumer of it.
        let base = tx.ring.as_ref().map_or(0, |(old, ..)| old.position() + 1);
        // SAFETY: invariant 2: a fresh block of ours; the only producer.
        let mut ring = unsafe { Producer::new(block.memory, base) };
        let checked = self.rank.checks_payloads();
        ring.check_payloads(checked);
        if let Some((mut old, offset, old_level)) = tx.ring.replace((ring, block.offset, level)) {
            let switched = old.post_switch(block.offset);
            debug_assert!(switched, "a cell was free");
            self.rank.retire_block(offset, old_level, destination);
        }
        let ours = (self.rank.rank() as u32) < destination;
        // What lies in a mailbox has no room for check bits.
        if ours && level != Level::Small && tx.mail.is_none() && !checked {
            self.open_exchange(peer);
        }
        Ok(true)
    }

    /// Makes the mailbox of a pair. Without memory for it there is none.
    fn open_exchange(&mut self, peer: Peer) {
        let destination = self.members[peer as usize];
        let made = self
            .rank
            .new_block(self.channel, destination, Level::Exchange, false);
        if let Ok(block) = made
            && let Some(tx) = self.tx.get_mut(peer as usize)
            && let Some((ring, ..)) = &mut tx.ring
        {
            let posted = ring.post_exchange(block.offset);
            debug_assert!(posted, "the ring is fresh");
            let area = (block.memory.payload, block.memory.payload_bytes as usize);
            // SAFETY: invariant 2: cleared with the block, which is not re-used before the
            // peer has closed it; this is its one end of side 0.
            tx.mail = Some(unsafe { Mailbox::new(block.mail, block.cross, area, 0) });
            tx.exchange = Some(block.offset);
        }
    }

    /// Whether a peer sleeps.
    #[inline]
    fn sleeping(&self, peer: Peer) -> &AtomicU32 {
        match self.tx.get(peer as usize) {
            // SAFETY: invariant 1.
            Some(tx) => unsafe { &*tx.sleeping },
            None => {
                let member = self.members[peer as usize] as usize;
                &self.rank.job().control(member).sleeping
            }
        }
    }

    #[inline]
    fn ring_bell(&self, peer: Peer) {
        if self.fence {
            full_fence();
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        let sleeping = self.sleeping(peer);
        if words::may_sleep(sleeping) {
            self.wake(peer, sleeping);
        }
    }

    /// To be called when a peer's ring has more room, which the peer was told: it may sleep
    /// with posts that had none.
    #[cold]
    fn room_made(&self, peer: Peer) {
        if self.fence {
            full_fence();
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        let sleeping = self.sleeping(peer);
        if words::may_starve(sleeping) {
            self.wake(peer, sleeping);
        }
    }

    #[cold]
    fn wake(&self, peer: Peer, sleeping: &AtomicU32) {
        if words::rouse(sleeping) {
            self.rank.job().ring(self.members[peer as usize] as usize);
        }
    }

    #[cold]
    fn post_slow(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        let Some(&destination) = self.members.get(peer as usize) else {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::Invalid,
                format!("peer {peer} of {}", self.members.len()),
            )));
        };
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::Invalid,
                format!("a message of {bytes} bytes, at most {MAX_PAYLOAD_BYTES}"),
            )));
        }
        if let Some(how) = self.rank.job().death(destination as usize) {
            return Err(PostError::Failed(dead(destination, how)));
        }
        let needed = match bytes {
            0..=512 => Level::Small,
            513..=4096 => Level::Medium,
            _ => Level::Large,
        };
        let tx = self.tx.get(peer as usize);
        let level = match tx.and_then(|tx| Some((tx, tx.ring.as_ref()?))) {
            None => Some(needed),
            Some((tx, (ring, _, level))) => {
                if ring.closed() {
                    return Err(PostError::Failed(TransportError::new(
                        TransportErrorKind::PeerClosed,
                        format!("rank {destination} of the job has dropped this channel"),
                    )));
                }
                let busy = *level == Level::Small && ring.posted() >= tx.grows_after;
                let wanted = if busy {
                    needed.max(Level::Medium)
                } else {
                    needed
                };
                (wanted > *level).then_some(wanted)
            }
        };
        if let Some(level) = level {
            let ring = self.tx.get(peer as usize).and_then(|tx| tx.ring.as_ref());
            let suffices = ring.is_some_and(|(_, _, level)| needed <= *level);
            match self.grow(peer, level) {
                Ok(true) => {}
                Ok(false) => return Err(self.full()),
                // It would only be quicker by a larger one.
                Err(e) if e.kind() == TransportErrorKind::OutOfMemory && suffices => {}
                Err(e) => return Err(PostError::Failed(e)),
            }
        }
        let tx = self.tx.get_mut(peer as usize);
        let Some((ring, _, _)) = tx.and_then(|tx| tx.ring.as_mut()) else {
            return Err(PostError::Full);
        };
        let head = (head.kind, head.aux, head.arg);
        if !ring.has_room(bytes) {
            return Err(self.full());
        }
        ring.post(head, bytes, fill);
        self.ring_bell(peer);
        Ok(())
    }

    /// Before it sleeps, this rank says that it wants room.
    fn full(&self) -> PostError {
        self.rank.starves();
        PostError::Full
    }

    /// Adopts rings that peers have opened.
    #[cold]
    fn adopt(&mut self) -> bool {
        // SAFETY: invariant 1.
        if unsafe { &*self.inbox }.load(Ordering::Relaxed) != 0 {
            self.rank.drain_inbox();
        }
        if self.arrivals.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        for block in self.arrivals.take() {
            let peer = self.members.iter().position(|m| *m == block.source);
            let known = self.rx.iter().any(|rx| rx.source == block.source);
            // SAFETY: invariant 2: the block was checked, and each is handed out once.
            let mut ring = unsafe { Consumer::new(block.memory, 0) };
            ring.check_payloads(self.rank.checks_payloads());
            ring.take_lines_below(self.rank.takes_lines_below());
            let make = |peer: usize| Tx::new(&self.rank, self.members[peer]);
            let tx = peer.and_then(|peer| Some((peer, self.tx.get_or_make(peer, make)?)));
            match tx {
                Some((peer, tx)) if !known && !block.exchange => {
                    tx.from = self.rx.len() as u32;
                    self.rx.push(Rx {
                        ring,
                        exchange: None,
                        peer: peer as Peer,
                        source: block.source,
                        overwritten: false,
                    });
                }
                _ => {
                    self.rank.count_malformed();
                    ring.close();
                }
            }
        }
        true
    }

    /// The message in a mailbox, or `None` for what is none.
    #[inline]
    fn open_mail(&mut self, at: usize, peer: Peer, mail: Mail) -> Option<Incoming> {
        let (head, payload, bytes, token) = match mail {
            Mail::Here {
                head,
                payload,
                bytes,
            } => (head, payload, bytes, MAIL),
            Mail::InRing {
                head,
                position,
                bytes,
            } => match self.rx[at].ring.payload(position, bytes) {
                Some(payload) => (head, payload, bytes as usize, MAIL | MAIL_PAYLOAD),
                None => return self.bad_mail(peer),
            },
            Mail::Malformed => return self.bad_mail(peer),
        };
        let (kind, aux, arg) = head;
        Some(Incoming {
            peer,
            head: AmHead { kind, aux, arg },
            // SAFETY: invariant 3.
            payload: unsafe { ForeignBytes::new(payload, bytes) },
            token: at as u32 | token,
        })
    }

    #[cold]
    fn bad_mail(&mut self, peer: Peer) -> Option<Incoming> {
        self.cut_off(peer);
        None
    }

    /// Somebody has written over what a peer sends. Where its next message begins is not
    /// known any more: nothing that comes from it is taken. The peer hears that its ring is
    /// closed.
    #[cold]
    pub fn cut_off(&mut self, peer: Peer) {
        self.rank.count_malformed();
        let Some(tx) = self.tx.get_mut(peer as usize) else {
            return;
        };
        let from = std::mem::replace(&mut tx.from, NO_RING);
        tx.mail = None;
        if let Some(rx) = self.rx.get_mut(from as usize) {
            rx.overwritten = true;
            rx.ring.close();
            self.newly_cut_off.push(peer);
            self.rank.tell_closed(rx.source);
        }
    }

    /// A peer that can no longer be heard, each once: what it sent was overwritten.
    #[cold]
    pub fn overwritten(&mut self) -> Option<Peer> {
        if self.rank.inbox_lost() && !std::mem::replace(&mut self.told_of_inbox, true) {
            let own = self.rank.rank() as u32;
            let heard: Vec<Peer> = self.rx.iter().map(|rx| rx.peer).collect();
            let all = self.members.iter().zip(0..);
            self.newly_cut_off.extend(
                all.filter(|(rank, peer)| **rank != own && !heard.contains(peer))
                    .map(|(_, peer)| peer),
            );
        }
        self.newly_cut_off.pop()
    }

    /// Handles what is no message.
    #[cold]
    fn special(&mut self, at: usize, found: Found) {
        let rx = &mut self.rx[at];
        let peer = rx.peer;
        let block = match found {
            Found::Switch(offset) | Found::Exchange(offset) => self.rank.open_block(offset),
            _ => None,
        };
        if let Some((block, _)) = block
            && block.source == rx.source
            && block.channel == self.channel
        {
            match found {
                Found::Switch(_) if !block.exchange => {
                    // The producer is in the next ring.
                    let _ = rx.ring.release();
                    let base = rx.ring.position();
                    rx.ring.close();
                    // SAFETY: invariant 2: checked, and named by the only producer of this
                    // ring.
                    rx.ring = unsafe { Consumer::new(block.memory, base) };
                    rx.ring.check_payloads(self.rank.checks_payloads());
                    rx.ring.take_lines_below(self.rank.takes_lines_below());
                    if let Some(tx) = self.tx.get_mut(peer as usize) {
                        tx.grows_after = ANSWER_CELLS;
                    }
                    return;
                }
                Found::Exchange(_) if block.exchange && rx.exchange.is_none() => {
                    let room = rx.ring.release();
                    let area = (block.memory.payload, block.memory.payload_bytes as usize);
                    // SAFETY: invariant 2: checked; cleared before it was named, and not
                    // re-used before we close it; the one end of side 1.
                    let mail = unsafe { Mailbox::new(block.mail, block.cross, area, 1) };
                    if let Some(tx) = self.tx.get_mut(rx.peer as usize) {
                        tx.mail = Some(mail);
                    }
                    // SAFETY: invariant 2; only to close it.
                    rx.exchange = Some(unsafe { Consumer::new(block.memory, 0) });
                    if room {
                        self.room_made(peer);
                    }
                    return;
                }
                _ => {}
            }
        }
        self.cut_off(peer);
    }

    /// Nothing has come in: one of the rings reports its credits.
    #[inline]
    fn rest(&mut self, at: usize) {
        let n = self.rx.len();
        let rx = &mut self.rx[if at < n { at } else { 0 }];
        let peer = rx.peer;
        if !rx.overwritten && rx.ring.rest() {
            self.room_made(peer);
        }
        self.cursor = at + 1;
    }

    /// Posts a message of at most eight bytes, `data` in memory order, and
    /// nothing but an argument of 32 bits; false if that needs the long way.
    #[inline]
    pub fn post_short(
        &mut self,
        peer: Peer,
        kind: u8,
        argument: u32,
        data: u64,
        bytes: usize,
    ) -> bool {
        let Some(tx) = self.tx.get_mut(peer as usize) else {
            return false;
        };
        let Some((ring, _, level)) = &mut tx.ring else {
            return false;
        };
        if *level == Level::Small {
            return false;
        }
        if let Some(mail) = &mut tx.mail {
            self.crossed = !mail.free();
            if !self.crossed {
                mail.post_short(ring.position(), (kind, 0, argument), data, bytes);
                self.ring_bell(peer);
                return true;
            }
            if mail.may_cross(bytes) {
                mail.post_cross(ring.position(), (kind, 0, argument), bytes, |to| {
                    // SAFETY: invariant 8 of `mailbox`: a cell takes at least eight bytes.
                    unsafe { to.cast::<u64>().write(data) }
                });
                self.ring_bell(peer);
                return true;
            }
            mail.acknowledge();
        }
        if !ring.post_short(kind, argument, data, bytes) {
            return false;
        }
        self.ring_bell(peer);
        true
    }

    /// Posts by the mailbox, if it is free and takes the message.
    #[inline]
    fn post_mail<F: FnOnce(*mut u8)>(
        (tx, crossed): (&mut Tx, &mut bool),
        head: AmHead,
        bytes: usize,
        fill: F,
    ) -> Result<(), F> {
        let Some((ring, _, level)) = &mut tx.ring else {
            return Err(fill);
        };
        let Some(mail) = &mut tx.mail else {
            return Err(fill);
        };
        let short = (head.kind, head.aux, head.arg as u32);
        let head = (head.kind, head.aux, head.arg);
        if *level == Level::Small {
            mail.acknowledge();
            return Err(fill);
        }
        *crossed = !mail.free();
        if *crossed {
            if head.2 >> 32 == 0 && mail.may_cross(bytes) {
                mail.post_cross(ring.position(), short, bytes, fill);
                return Ok(());
            }
            mail.acknowledge();
            return Err(fill);
        }
        if bytes <= MAIL_BYTES && head.2 >> 32 == 0 {
            mail.post(ring.position(), short, bytes, fill);
        } else if mail.has_area(bytes) {
            mail.post_area(ring.position(), head, bytes, fill);
        } else if bytes > INLINE_BYTES && ring.has_payload_room(bytes) {
            let at = ring.write_payload(bytes, fill);
            mail.post_ring(ring.position(), head, bytes, at);
        } else {
            mail.acknowledge();
            return Err(fill);
        }
        Ok(())
    }

    /// Enlarges the ring to a peer, if it is there, and memory and a cell for the change are.
    #[cold]
    fn grow_for_parts(&mut self, peer: Peer) -> bool {
        let Some(&destination) = self.members.get(peer as usize) else {
            return false;
        };
        let ring = self.tx.get(peer as usize).and_then(|tx| tx.ring.as_ref());
        let gone = self.rank.job().death(destination as usize).is_some()
            || ring.is_some_and(|(ring, ..)| ring.closed());
        !gone && matches!(self.grow(peer, Level::Large), Ok(true))
    }

    /// Posts a message in parts, of which the peer reads one while the next is written;
    /// `fill` writes a range of its bytes to an address. False: it needs
    /// [`Endpoint::post_with`], and nothing has happened.
    pub fn post_parts(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnMut(Range<usize>, *mut u8),
    ) -> bool {
        let large = |tx: &Tx| matches!(tx.ring, Some((_, _, Level::Large)));
        let long = bytes > WHOLE_BYTES;
        if !self.tx.get(peer as usize).is_some_and(large) && (!long || !self.grow_for_parts(peer)) {
            return false;
        }
        let Some(tx) = self.tx.get_mut(peer as usize) else {
            return false;
        };
        let Some((ring, ..)) = &mut tx.ring else {
            return false;
        };
        if let Some(mail) = &mut tx.mail
            && mail.has_area_for_parts(bytes)
            && mail.free()
        {
            mail.post_parts(
                ring.position(),
                (head.kind, head.aux, head.arg),
                bytes,
                fill,
            );
            self.ring_bell(peer);
            return true;
        }
        if !long || !ring.has_room_for_parts(bytes) {
            return false;
        }
        if let Some(mail) = &mut tx.mail {
            mail.acknowledge();
        }
        ring.post_parts((head.kind, head.aux, head.arg), bytes, fill);
        self.ring_bell(peer);
        true
    }

    /// Takes the next message of a peer, if it is of this kind and argument,
    /// without aux, and has at most `room` bytes: `copy` reads bytes from an address on to
    /// their place in the message.
    /// Returns its bytes. `None` says nothing: what is there may need [`Endpoint::poll`].
    #[inline(always)]
    pub fn take_next(
        &mut self,
        peer: Peer,
        kind: u8,
        argument: u32,
        room: usize,
        copy: impl FnMut(usize, *const u8, usize),
    ) -> Option<usize> {
        let tx = self.tx.get_mut(peer as usize)?;
        let from = tx.from;
        let rx = self.rx.get_mut(from as usize)?;
        let busy = self.busy.wrapping_add(1);
        if busy.is_multiple_of(ADOPT_EVERY) {
            return None; // for the long way, which adopts
        }
        let (ring, mail) = (&mut rx.ring, tx.mail.as_mut());
        let (bytes, more_room) = next::take_next(ring, mail, (kind, argument), room, copy)?;
        if more_room {
            self.room_made(peer);
        }
        self.busy = busy;
        self.cursor = from as usize + 1;
        Some(bytes)
    }

    /// Whether the last message by a mailbox went to a cell, because one of its peer was under
    /// way: to ask for that one early takes no line from anybody.
    #[inline]
    pub fn has_crossed(&self) -> bool {
        self.crossed
    }

    /// Whether a peer has dropped this channel.
    pub fn closed(&self, peer: Peer) -> bool {
        let ring = self.tx.get(peer as usize).and_then(|tx| tx.ring.as_ref());
        ring.is_some_and(|(ring, _, _)| ring.closed())
            || self.collective.as_ref().is_some_and(|c| c.left(peer))
            || self.of_persistent.iter().flatten().any(|c| c.left(peer))
    }

    /// The segment that the members share for collectives: number 0, or that of a persistent
    /// call; none as long as the lowest of them has not made it.
    ///
    /// # Errors
    /// There is no memory for it.
    #[inline]
    pub fn collective(&mut self, of: u32) -> Result<Option<&mut Collective>, TransportError> {
        if of > 0 {
            return self.collective_of(of);
        }
        if self.collective.is_none() {
            self.open_collective()?;
        }
        Ok(self.collective.as_mut())
    }

    /// The same, if it was there before.
    #[inline]
    pub fn opened_collective(&self) -> Option<&Collective> {
        self.collective.as_ref()
    }

    #[cold]
    fn open_collective(&mut self) -> Result<(), TransportError> {
        self.collective = Collective::open(&self.rank, (self.channel, 0), &self.members)?;
        Ok(())
    }

    /// That of a persistent call, as [`ShmEndpoint::collective`].
    fn collective_of(&mut self, of: u32) -> Result<Option<&mut Collective>, TransportError> {
        let at = of as usize;
        if self.of_persistent.len() <= at {
            self.of_persistent.resize_with(at + 1, || None);
        }
        if self.of_persistent[at].is_none() {
            let opened = Collective::open(&self.rank, (self.channel, of), &self.members)?;
            self.of_persistent[at] = opened.map(Box::new);
        }
        Ok(self.of_persistent[at].as_deref_mut())
    }

    /// This rank uses the segment of a persistent call no more; what it has made of it, later
    /// segments use, once all have left.
    pub fn leave_collective(&mut self, of: u32) {
        if !self.makes_collective() && self.collective_of(of).is_err() {
            return;
        }
        let known = self.of_persistent.get_mut(of as usize);
        if let Some(mut collective) = known.and_then(Option::take) {
            collective.close(false);
        }
    }

    /// Whether this rank is the lowest member, which makes the segment.
    fn makes_collective(&self) -> bool {
        self.members.iter().min() == Some(&(self.rank.rank() as u32))
    }

    /// Whether plans may have their flags in a segment: payloads there carry no check bits.
    pub fn has_collective(&self) -> bool {
        !self.rank.checks_payloads()
    }

    /// To be called after a flag was raised: wakes members that sleep.
    #[inline]
    pub fn wake_members(&self) {
        if self.fence {
            full_fence();
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        let own = self.rank.rank() as u32;
        for (peer, member) in (0..).zip(self.members.iter()) {
            let sleeping = self.sleeping(peer);
            if words::may_sleep(sleeping) && *member != own {
                self.wake(peer, sleeping);
            }
        }
    }

    /// Where memory of this process lies, in a word for peers; none where they cannot read it.
    #[inline]
    pub fn place_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        let (kind, base) = match self.rank.heap_offset(ptr, bytes) {
            Some(base) => (RegionKind::Heap, base),
            None if self.rank.cma_refused() => return None,
            None => (RegionKind::Process, ptr.expose_provenance() as u64),
        };
        Some((kind as u64) << 56 | base)
    }

    /// The same for members that read it by address, all of them; none where one does not.
    #[inline]
    pub fn lends(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        if let Some(base) = self.rank.heap_offset(ptr, bytes) {
            return Some((RegionKind::Heap as u64) << 56 | base);
        }
        let peers = 0..self.members.len() as Peer;
        let own = self.rank.rank() as u32;
        let mut others = peers.filter(|peer| self.members[*peer as usize] != own);
        let place = (RegionKind::Process as u64) << 56 | ptr.expose_provenance() as u64;
        others.all(|peer| self.here(peer)).then_some(place)
    }

    /// Memory of a peer that it has named by [`ShmEndpoint::place_of`].
    ///
    /// # Errors
    /// It lies outside of what the peer has, or cannot be read.
    #[inline]
    pub fn peer_memory(
        &self,
        peer: Peer,
        place: u64,
        bytes: usize,
    ) -> Result<PeerMemory, TransportError> {
        if bytes == 0 {
            // SAFETY: invariant 4: no byte of it is read.
            return Ok(unsafe { PeerMemory::mapped(std::ptr::NonNull::dangling().as_ptr(), 0) });
        }
        let base = place << 8 >> 8;
        let heap = (place >> 56) == RegionKind::Heap as u64;
        let plain = (place >> 56) == RegionKind::Process as u64;
        if heap && let Some(&member) = self.members.get(peer as usize) {
            let steps = self.rank.peer_heap(member as usize);
            if let Some(at) = steps.and_then(|steps| steps.at(base, bytes as u64).ok()) {
                // SAFETY: invariant 4: inside a mapping that lives as long as the rank.
                return Ok(unsafe { PeerMemory::mapped(at, bytes) });
            }
        }
        if plain {
            let process = self.process(peer).ok_or_else(elsewhere)?;
            if process == self.rank.pid() {
                let at = std::ptr::with_exposed_provenance(base as usize);
                // SAFETY: invariant 4: of this process, and the owner keeps it.
                return Ok(unsafe { PeerMemory::mapped(at, bytes) });
            }
            return Ok(PeerMemory::of_process(process, base, bytes));
        }
        self.rank.count_malformed();
        Err(TransportError::new(
            TransportErrorKind::Malformed,
            format!("a place that no rank names: {place:#x}, {bytes} bytes"),
        ))
    }

    fn process_key(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        if self.rank.cma_refused() {
            return Err(TransportError::new(
                TransportErrorKind::Unavailable,
                "the system refuses cross-memory attach between these processes",
            ));
        }
        Ok(RegionKey {
            kind: RegionKind::Process,
            owner: self.rank.pid(),
            base: ptr as u64,
            bytes: bytes as u64,
        })
    }

    /// A peer's process and the namespace in which its number counts, once it has joined.
    fn process_of(&self, peer: Peer) -> Option<(u32, u32)> {
        if let Some(known) = self.processes.get(peer as usize) {
            return Some(*known);
        }
        let member = *self.members.get(peer as usize)? as usize;
        let control = self.rank.job().control(member);
        let namespace = control.namespace.load(Ordering::Acquire);
        let pid = control.pid.load(Ordering::Relaxed);
        // The number comes first when a rank joins; both are there behind the second.
        match pid != 0 && namespace != 0 {
            true => (self.processes)
                .get_or_init(peer as usize, || (pid, namespace))
                .copied(),
            false => None,
        }
    }

    fn here(&self, peer: Peer) -> bool {
        self.process(peer) == Some(self.rank.pid())
    }

    /// That a key of a process is the peer's own: what it names is reached by number.
    fn check_owner(&self, peer: Peer, key: &RegionKey) -> Result<(), TransportError> {
        match self.process(peer) {
            None => Err(elsewhere()),
            Some(pid) if pid == key.owner => Ok(()),
            Some(pid) => Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("a key of process {}, from process {pid}", key.owner),
            )),
        }
    }

    /// The first byte of a region that only the system reaches, in its process, if runs of it lie
    /// inside; `None`: it is reached otherwise, or not at all.
    fn remote(
        &self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
    ) -> Result<Option<u64>, TransportError> {
        if let Some(run) = runs
            .iter()
            .find(|run| run.start > run.end || run.end > key.bytes)
        {
            let bytes = run.end.saturating_sub(run.start);
            return Err(outside(key, run.start, bytes));
        }
        if key.kind != RegionKind::Process || self.here(peer) {
            return Ok(None);
        }
        self.check_owner(peer, key)?;
        Ok(Some(key.base))
    }

    /// Notes that the system copies between processes no more, if that is the error.
    fn perhaps_refused(&self, e: &TransportError) {
        if matches!(
            e.kind(),
            TransportErrorKind::Permission | TransportErrorKind::Unavailable
        ) {
            self.rank.refuse_cma();
        }
    }

    /// The number of a peer's process, if it is one here.
    fn process(&self, peer: Peer) -> Option<u32> {
        let (pid, namespace) = self.process_of(peer)?;
        (namespace == self.rank.namespace()).then_some(pid)
    }

    /// Memory of a region of the arena, of a heap or of this process, if it
    /// can be reached by address.
    fn address(&self, peer: Peer, key: &RegionKey, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > key.bytes {
            return None;
        }
        let at = key.base.checked_add(offset)?;
        match key.kind {
            RegionKind::Arena => self.rank.job().segment().arena.at(at, bytes).ok(),
            RegionKind::Heap if self.members.get(peer as usize) == Some(&key.owner) => {
                let heap = self.rank.peer_heap(key.owner as usize)?;
                heap.at(at, bytes).ok()
            }
            RegionKind::Window if self.members.get(peer as usize) == Some(&key.owner) => {
                let heap = self.rank.peer_windows(key.owner as usize)?;
                heap.at(at, bytes).ok()
            }
            RegionKind::Local | RegionKind::Process
                if key.owner == self.rank.pid() && self.here(peer) =>
            {
                Some(std::ptr::with_exposed_provenance_mut(
                    usize::try_from(at).ok()?,
                ))
            }
            _ => None,
        }
    }
}

fn dead(rank: u32, how: Death) -> TransportError {
    let kind = match how.is_failure() {
        true => TransportErrorKind::PeerDead,
        false => TransportErrorKind::PeerClosed,
    };
    TransportError::new(kind, format!("rank {rank} of the job {how}"))
}

fn elsewhere() -> TransportError {
    TransportError::new(
        TransportErrorKind::Unavailable,
        "the peer lives in another process namespace",
    )
}

fn outside(key: &RegionKey, offset: u64, bytes: u64) -> TransportError {
    TransportError::new(
        TransportErrorKind::Invalid,
        format!(
            "{bytes} bytes at {offset} of a {:?} region of {} bytes cannot be reached",
            key.kind, key.bytes
        ),
    )
}

impl Endpoint for ShmEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            transport: "shm",
            inline_bytes: INLINE_BYTES,
            max_payload_bytes: MAX_PAYLOAD_BYTES,
            get: true,
            put: true,
            atomics: true,
            export_plain: !self.rank.cma_refused(),
            runs: cma::MOST_RUNS,
        }
    }

    #[inline]
    fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        let Some(tx) = self.tx.get_mut(peer as usize) else {
            return self.post_slow(peer, head, bytes, fill);
        };
        let fill = match Self::post_mail((tx, &mut self.crossed), head, bytes, fill) {
            Ok(()) => {
                self.ring_bell(peer);
                return Ok(());
            }
            Err(fill) => fill,
        };
        if let Some((ring, _, level)) = &mut tx.ring
            && *level != Level::Small
            && bytes <= ring.max_payload()
            && ring.has_room(bytes)
        {
            let head = (head.kind, head.aux, head.arg);
            ring.post(head, bytes, fill);
            self.ring_bell(peer);
            return Ok(());
        }
        self.post_slow(peer, head, bytes, fill)
    }

    #[inline]
    fn poll(&mut self) -> Option<Incoming> {
        'again: loop {
            let n = self.rx.len();
            let mut at = self.cursor;
            for _ in 0..n {
                if at >= n {
                    at = 0;
                }
                let rx = &mut self.rx[at];
                let peer = rx.peer;
                if rx.overwritten {
                    at += 1;
                    continue;
                }
                let found = rx.ring.poll();
                // After the ring: a message in it is younger than one that
                // names this position.
                if let Some(tx) = self.tx.get_mut(peer as usize)
                    && let Some(mail) = &mut tx.mail
                    && let Some(mail) = mail.poll(rx.ring.position())
                {
                    match self.open_mail(at, peer, mail) {
                        Some(message) => return Some(message),
                        None => continue,
                    }
                }
                match found {
                    None => at += 1,
                    Some(Found::Message {
                        head,
                        payload,
                        bytes,
                    }) => {
                        return Some(Incoming {
                            peer,
                            head: AmHead {
                                kind: head.0,
                                aux: head.1,
                                arg: head.2,
                            },
                            // SAFETY: invariant 3.
                            payload: unsafe { ForeignBytes::new(payload, bytes) },
                            token: at as u32,
                        });
                    }
                    // Polled again: the ring goes on after it, and `None`
                    // says that nothing is there in any ring.
                    Some(found) => {
                        self.special(at, found);
                        self.cursor = at;
                        continue 'again;
                    }
                }
            }
            if n > 0 {
                self.rest(at);
            }
            // SAFETY: invariant 1.
            let opened = unsafe { &*self.inbox }.load(Ordering::Relaxed) != 0
                || self.arrivals.waiting.load(Ordering::Relaxed) != 0;
            if !(opened && self.adopt()) {
                return None;
            }
        }
    }

    #[inline]
    fn release(&mut self, message: &Incoming) {
        let at = (message.token & !(MAIL | MAIL_PAYLOAD)) as usize;
        let rx = &mut self.rx[at];
        let mut room = false;
        if message.token & MAIL == 0 {
            room = rx.ring.release();
        } else {
            if message.token & MAIL_PAYLOAD != 0 {
                room = rx.ring.release_payload();
            }
            if let Some(tx) = self.tx.get_mut(rx.peer as usize)
                && let Some(mail) = &mut tx.mail
            {
                mail.release();
            }
        }
        if room {
            self.room_made(message.peer);
        }
        self.cursor = at + 1;
        self.busy = self.busy.wrapping_add(1);
        if self.busy.is_multiple_of(ADOPT_EVERY) {
            self.adopt();
        }
    }

    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        if !self.rank.checks_payloads()
            && let Some(base) = self.rank.heap_offset(ptr, bytes)
        {
            return Ok(RegionKey {
                kind: RegionKind::Heap,
                owner: self.rank.rank() as u32,
                base,
                bytes: bytes as u64,
            });
        }
        self.process_key(ptr, bytes)
    }

    unsafe fn export_writable(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // Peers map the heap read-only, so the kernel must write it, too.
        self.process_key(ptr, bytes)
    }

    unsafe fn export_window(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        if let Some(base) = self.rank.heap_offset(ptr, bytes) {
            return Ok(RegionKey {
                kind: RegionKind::Window,
                owner: self.rank.rank() as u32,
                base,
                bytes: bytes as u64,
            });
        }
        Ok(RegionKey {
            kind: RegionKind::Process,
            owner: self.rank.pid(),
            base: ptr.expose_provenance() as u64,
            bytes: bytes as u64,
        })
    }

    unsafe fn export_to(
        &self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
        write: bool,
    ) -> Result<RegionKey, TransportError> {
        if self.here(peer) {
            return Ok(RegionKey {
                kind: RegionKind::Local,
                owner: self.rank.pid(),
                base: ptr.expose_provenance() as u64,
                bytes: bytes as u64,
            });
        }
        let exported = if write {
            // SAFETY: invariant 5, by the caller's contract.
            unsafe { self.export_writable(ptr, bytes) }
        } else {
            // SAFETY: invariant 5, by the caller's contract.
            unsafe { self.export(ptr, bytes) }
        };
        match exported {
            Ok(key) if key.kind == RegionKind::Process && self.process(peer).is_none() => {
                Err(elsewhere())
            }
            exported => exported,
        }
    }

    /// That it is a thread of this process a peer says itself when it joins, so a key cannot
    /// make it look like one.
    fn sharing(&self, peer: Peer) -> Sharing {
        let process_id = self.process(peer);
        let process = process_id == Some(self.rank.pid());
        Sharing {
            process,
            process_id,
            process_numbers: process_id.is_some(),
            host_memory: true,
            devices: !process,
        }
    }

    fn attending(&self, peer: Peer) -> bool {
        let rank = self.members[peer as usize] as usize;
        let control = self.rank.job().control(rank);
        control.attending.load(Ordering::Relaxed) != 0
    }

    fn reads_process(&self, peer: Peer) -> bool {
        let process = self.process(peer);
        process.is_some_and(|pid| pid == self.rank.pid() || cma::permits(pid))
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        if let Some(from) = self.address(peer, key, offset, bytes as u64) {
            // SAFETY: invariant 4 for the source, 5 for the destination; they may overlap,
            // which `copy` allows.
            unsafe { std::ptr::copy(from, to, bytes) };
            return Ok(OneSided::Done(0));
        }
        if key.kind != RegionKind::Process
            || offset
                .checked_add(bytes as u64)
                .is_none_or(|e| e > key.bytes)
        {
            return Err(outside(key, offset, bytes as u64));
        }
        self.check_owner(peer, key)?;
        // SAFETY: invariant 5, for `to`.
        unsafe { cma::read(key.owner, key.base + offset, to, bytes) }
            .inspect_err(|e| self.perhaps_refused(e))?;
        Ok(OneSided::Done(0))
    }

    unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        if key.kind == RegionKind::Heap {
            return Err(TransportError::new(
                TransportErrorKind::Unavailable,
                "peers map the heap read-only; put needs a region of the arena, of a window or of \
                 a process",
            ));
        }
        if let Some(to) = self.address(peer, key, offset, bytes as u64) {
            // SAFETY: invariant 4 for the destination, 5 for the source; they may overlap.
            unsafe { std::ptr::copy(from, to, bytes) };
            return Ok(OneSided::Done(0));
        }
        if key.kind != RegionKind::Process
            || offset
                .checked_add(bytes as u64)
                .is_none_or(|e| e > key.bytes)
        {
            return Err(outside(key, offset, bytes as u64));
        }
        self.check_owner(peer, key)?;
        // SAFETY: invariant 5, for `from`.
        unsafe { cma::write(key.owner, key.base + offset, from, bytes) }?;
        Ok(OneSided::Done(0))
    }

    unsafe fn get_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        to: *mut u8,
    ) -> Result<OneSided, TransportError> {
        let Some(base) = self.remote(peer, key, runs)? else {
            let mut done = 0;
            for run in runs {
                let (at, bytes) = (to.wrapping_add(done), (run.end - run.start) as usize);
                // SAFETY: invariant 5: a part of the caller's memory.
                unsafe { self.get(peer, key, run.start, at, bytes) }?;
                done += bytes;
            }
            return Ok(OneSided::Done(0));
        };
        // SAFETY: invariant 5, for `to`.
        unsafe { cma::read_runs(key.owner, base, runs, to) }
            .inspect_err(|e| self.perhaps_refused(e))?;
        Ok(OneSided::Done(0))
    }

    unsafe fn put_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        from: *const u8,
    ) -> Result<OneSided, TransportError> {
        let Some(base) = self.remote(peer, key, runs)? else {
            let mut done = 0;
            for run in runs {
                let (at, bytes) = (from.wrapping_add(done), (run.end - run.start) as usize);
                // SAFETY: invariant 5: a part of the caller's memory.
                unsafe { self.put(peer, key, run.start, at, bytes) }?;
                done += bytes;
            }
            return Ok(OneSided::Done(0));
        };
        // SAFETY: invariant 5, for `from`.
        unsafe { cma::write_runs(key.owner, base, runs, from) }?;
        Ok(OneSided::Done(0))
    }

    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        let at = match key.kind {
            RegionKind::Heap => None,
            _ => self.address(peer, key, offset, 8),
        };
        if at.is_none() && matches!(key.kind, RegionKind::Heap | RegionKind::Process) {
            return Err(TransportError::new(
                TransportErrorKind::Unavailable,
                format!(
                    "atomics on {:?} memory of another process: only the arena and windows in \
                     the heap offer them",
                    key.kind
                ),
            ));
        }
        let Some(at) = at.filter(|p| (*p as usize).is_multiple_of(8)) else {
            return Err(outside(key, offset, 8));
        };
        // SAFETY: invariant 4; aligned by the check, and reached by atomics on all sides
        // while it is exported for them (invariant 5).
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) };
        Ok(OneSided::Done(op.apply(word)))
    }

    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        self.address(peer, key, 0, key.bytes)
            .map(|p| p.cast_const())
    }

    fn mapped_writable(&mut self, peer: Peer, key: &RegionKey) -> Option<*mut u8> {
        match key.kind {
            RegionKind::Heap => None,
            _ => self.address(peer, key, 0, key.bytes),
        }
    }

    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        None
    }

    fn malformed(&self) -> u64 {
        self.rank.malformed()
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.tx.each_mut(|peer, tx| {
            if let Some((_, offset, level)) = tx.ring.take() {
                self.rank.retire_block(offset, level, self.members[peer]);
            }
            if let Some(offset) = tx.exchange.take() {
                self.rank
                    .retire_block(offset, Level::Exchange, self.members[peer]);
            }
        });
        for rx in &mut self.rx {
            rx.ring.close();
            if let Some(exchange) = &mut rx.exchange {
                exchange.close();
            }
            self.rank.tell_closed(rx.source);
        }
        if self.members.len() > 1 && self.has_collective() {
            // Members may wait for a flag of this rank, also if it has raised none.
            if self.collective.is_none() && !self.makes_collective() {
                let _ = self.open_collective();
            }
            let all = self.of_persistent.iter_mut().flatten();
            let all = all.map(|of| &mut **of).chain(&mut self.collective);
            let mut any = false;
            for collective in all {
                collective.close(true);
                any = true;
            }
            if any {
                self.wake_members();
            }
        }
        self.rank.close_channel(self.channel);
    }
}
