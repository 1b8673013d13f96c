//! A rank's messages to itself: one FIFO in private memory.
//!
//! ```text
//! slot, one cache line:
//! byte 0..8   8..12   12..14   14     15   16..64
//!      arg    bytes   aux      kind   0    payload of at most 48 bytes
//! ```
//!
//! Larger payloads lie in buffers that are used again, in the order of their
//! slots. Slots and buffers grow with the messages in flight, up to
//! [`MAX_MESSAGES`] and [`MAX_BYTES`]; beyond that a post is refused until
//! something was polled. Nothing is allocated per message once they have grown.
//!
//! # Invariants
//! 1. Slots `first..end` (numbers that wrap, taken modulo the number of slots,
//!    a power of two) hold the messages that are posted and not released.
//! 2. `buffers` holds the payloads of those among them with more than
//!    [`INLINE_BYTES`] bytes, in the same order.
//! 3. While a message is out, slot `first` and the buffer that belongs to it
//!    are neither written nor freed: slots that were replaced by a larger set
//!    wait in `retired` until the release.
//!
//! A [`RegionKey`] of kind [`RegionKind::Local`] is an address: it is only as
//! good as whoever made it, and must never be taken from another process.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PostError,
    RegionKey, RegionKind, Sharing, TransportError, TransportErrorKind,
};

/// Largest payload that lies in the slot itself.
pub const INLINE_BYTES: usize = 48;
/// Largest payload of one message.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 10;
/// Most messages that wait at a time.
pub const MAX_MESSAGES: usize = 256;
/// Most bytes of payloads beyond [`INLINE_BYTES`] that wait at a time.
pub const MAX_BYTES: usize = 1 << 20;

const FIRST_SLOTS: usize = 16;
const SMALLEST_BUFFER_BYTES: usize = 256;

#[repr(C, align(64))]
struct Slot {
    arg: u64,
    bytes: u32,
    aux: u16,
    kind: u8,
    payload: [u8; INLINE_BYTES],
}

type Slots = Box<[UnsafeCell<Slot>]>;

/// The channel of a rank with itself.
pub struct Loopback {
    own: Peer,
    first: u32,
    end: u32,
    out: bool,
    slots: Slots,
    buffers: VecDeque<Vec<u8>>,
    /// Bytes of payload in `buffers`.
    buffered_bytes: usize,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
    retired: Vec<Slots>,
}

impl Loopback {
    /// A channel with one member, which its owner calls `own`.
    pub fn new(own: Peer) -> Self {
        Self {
            own,
            first: 0,
            end: 0,
            out: false,
            slots: Box::default(),
            buffers: VecDeque::new(),
            buffered_bytes: 0,
            spare: Vec::new(),
            spare_bytes: 0,
            retired: Vec::new(),
        }
    }

    /// Number of messages that are posted and not released.
    pub fn waiting(&self) -> usize {
        self.end.wrapping_sub(self.first) as usize
    }

    #[inline]
    fn slot(&self, number: u32) -> *mut Slot {
        self.slots[number as usize & (self.slots.len() - 1)].get()
    }

    /// Makes sure that slot `end` is free.
    #[inline]
    fn reserve(&mut self) -> Result<(), PostError> {
        if self.waiting() < self.slots.len() {
            return Ok(());
        }
        self.grow()
    }

    #[cold]
    fn grow(&mut self) -> Result<(), PostError> {
        let old = self.slots.len();
        if old >= MAX_MESSAGES {
            return Err(PostError::Full);
        }
        let new: Slots = (0..(2 * old).max(FIRST_SLOTS))
            .map(|_| {
                UnsafeCell::new(Slot {
                    arg: 0,
                    bytes: 0,
                    aux: 0,
                    kind: 0,
                    payload: [0; INLINE_BYTES],
                })
            })
            .collect();
        for i in 0..old as u32 {
            let number = self.first.wrapping_add(i);
            let from = self.slot(number);
            let to = new[number as usize & (new.len() - 1)].get();
            // SAFETY: two allocations, both alive and aligned; nobody else
            // refers to the new one, and the old one is only read.
            unsafe { ptr::copy_nonoverlapping(from, to, 1) };
        }
        let replaced = std::mem::replace(&mut self.slots, new);
        if self.out {
            self.retired.push(replaced);
        }
        Ok(())
    }

    /// Writes the fixed part of slot `end` and appends it (invariant 1).
    #[inline]
    fn append(&mut self, head: AmHead, bytes: usize) {
        let slot = self.slot(self.end);
        // SAFETY: the slot is free (`reserve`), so nobody reads it.
        let slot = unsafe { &mut *slot };
        slot.arg = head.arg;
        slot.bytes = bytes as u32;
        slot.aux = head.aux;
        slot.kind = head.kind;
        self.end = self.end.wrapping_add(1);
    }

    #[inline(never)]
    fn post_buffered(
        &mut self,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::Invalid,
                format!("posting {bytes} bytes to self: a message has at most {MAX_PAYLOAD_BYTES}"),
            )));
        }
        if self.buffered_bytes + bytes > MAX_BYTES {
            return Err(PostError::Full);
        }
        self.reserve()?;
        let mut buffer = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= buffer.len();
        if buffer.len() < bytes {
            buffer = vec![0; bytes.next_power_of_two().max(SMALLEST_BUFFER_BYTES)];
        }
        fill(buffer.as_mut_ptr());
        self.buffers.push_back(buffer);
        self.buffered_bytes += bytes;
        self.append(head, bytes);
        Ok(())
    }

    #[cold]
    fn recycle(&mut self, bytes: usize) {
        self.buffered_bytes -= bytes;
        if let Some(buffer) = self.buffers.pop_front()
            && self.spare_bytes + buffer.len() <= 2 * MAX_BYTES
        {
            self.spare_bytes += buffer.len();
            self.spare.push(buffer);
        }
    }

    fn address(
        &self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, TransportError> {
        self.check(peer)?;
        if key.kind != RegionKind::Local {
            return Err(TransportError::new(
                TransportErrorKind::Malformed,
                format!("self reaches no region of kind {:?}", key.kind),
            ));
        }
        within(key, offset, bytes)
    }

    #[inline]
    fn check(&self, peer: Peer) -> Result<(), TransportError> {
        if peer == self.own {
            return Ok(());
        }
        Err(no_peer(peer))
    }
}

#[cold]
fn no_peer(peer: Peer) -> TransportError {
    TransportError::new(
        TransportErrorKind::Invalid,
        format!("self reaches no peer {peer}"),
    )
}

/// Address of `bytes` bytes at `offset` of a region whose base is an address.
pub(crate) fn within(key: &RegionKey, offset: u64, bytes: usize) -> Result<usize, TransportError> {
    offset
        .checked_add(bytes as u64)
        .filter(|end| *end <= key.bytes)
        .and_then(|_| usize::try_from(key.base.checked_add(offset)?).ok())
        .ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::Invalid,
                format!(
                    "{bytes} bytes at offset {offset} lie beyond a region of {} bytes",
                    key.bytes
                ),
            )
        })
}

/// Refuses an address where no atomic can be.
pub(crate) fn aligned(address: usize) -> Result<usize, TransportError> {
    if address.is_multiple_of(align_of::<AtomicU64>()) {
        return Ok(address);
    }
    Err(TransportError::new(
        TransportErrorKind::Invalid,
        format!("atomic at {address:#x}: not a multiple of 8"),
    ))
}

/// Performs `op` and returns the value before.
///
/// # Safety
/// `at` is aligned to 8, alive, and during the call reached only by atomics.
pub(crate) unsafe fn perform(at: *mut u64, op: AtomicOp) -> u64 {
    // SAFETY: by the caller's promise.
    op.apply(unsafe { AtomicU64::from_ptr(at) })
}

impl Endpoint for Loopback {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            transport: "self",
            inline_bytes: INLINE_BYTES,
            max_payload_bytes: MAX_PAYLOAD_BYTES,
            get: true,
            put: true,
            atomics: true,
            export_plain: true,
            runs: 1,
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
        if peer != self.own {
            return Err(PostError::Failed(no_peer(peer)));
        }
        if bytes > INLINE_BYTES {
            return self.post_buffered(head, bytes, fill);
        }
        self.reserve()?;
        let slot = self.slot(self.end);
        // SAFETY: the slot is alive; no reference is made.
        fill(unsafe { &raw mut (*slot).payload }.cast());
        self.append(head, bytes);
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Option<Incoming> {
        if self.first == self.end || self.out {
            return None;
        }
        let slot = self.slot(self.first);
        // SAFETY: the slot holds a message (invariant 1), and nobody writes
        // such a slot.
        let message = unsafe { &*slot };
        let bytes = message.bytes as usize;
        let at = if bytes <= INLINE_BYTES {
            message.payload.as_ptr()
        } else {
            self.buffers.front()?.as_ptr()
        };
        self.out = true;
        Some(Incoming {
            peer: self.own,
            head: AmHead {
                kind: message.kind,
                aux: message.aux,
                arg: message.arg,
            },
            // SAFETY: invariant 3, up to the release.
            payload: unsafe { ForeignBytes::new(at, bytes) },
            token: self.first,
        })
    }

    #[inline]
    fn release(&mut self, message: &Incoming) {
        debug_assert!(self.out && message.token == self.first, "not polled here");
        if !self.out || message.token != self.first {
            return;
        }
        self.out = false;
        self.first = self.first.wrapping_add(1);
        if message.payload.len() > INLINE_BYTES {
            self.recycle(message.payload.len());
        }
        if !self.retired.is_empty() {
            self.retired.clear();
        }
    }

    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        Ok(RegionKey {
            kind: RegionKind::Local,
            owner: 0,
            base: ptr.expose_provenance() as u64,
            bytes: bytes as u64,
        })
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        let from = ptr::with_exposed_provenance(self.address(peer, key, offset, bytes)?);
        // SAFETY: inside the region (checked), which its exporter keeps alive;
        // `to` by the caller's promise. They may overlap.
        unsafe { ptr::copy::<u8>(from, to, bytes) };
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
        let to = ptr::with_exposed_provenance_mut(self.address(peer, key, offset, bytes)?);
        // SAFETY: as in `get`, the other way round.
        unsafe { ptr::copy::<u8>(from, to, bytes) };
        Ok(OneSided::Done(0))
    }

    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        let at = aligned(self.address(peer, key, offset, size_of::<u64>())?)?;
        // SAFETY: inside the region and aligned (checked); its exporter keeps
        // it alive and uses atomics where peers do.
        let before = unsafe { perform(ptr::with_exposed_provenance_mut(at), op) };
        Ok(OneSided::Done(before))
    }

    fn sharing(&self, _peer: Peer) -> Sharing {
        Sharing::simulated(true)
    }

    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        let address = self.address(peer, key, 0, 0).ok()?;
        Some(ptr::with_exposed_provenance(address))
    }

    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        None
    }

    fn malformed(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(arg: u64) -> AmHead {
        AmHead {
            kind: arg as u8,
            aux: arg as u16,
            arg,
        }
    }

    fn pattern(n: u64, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (n as usize * 31 + i) as u8).collect()
    }

    fn receive(end: &mut Loopback, n: u64, bytes: usize) {
        let m = end.poll().unwrap();
        assert_eq!(m.head, head(n));
        // SAFETY: not yet released.
        assert_eq!(unsafe { m.payload.to_vec() }, pattern(n, bytes));
        end.release(&m);
    }

    #[test]
    fn keeps_order_and_bytes_of_every_size() {
        let sizes = [0, 1, 8, 47, 48, 49, 100, 257, 4096, 32768];
        let mut end = Loopback::new(3);
        let (mut posted, mut received) = (0, 0);
        let size = |n: u64| sizes[(n * 7 % 10) as usize];
        for round in 0..2000u64 {
            for _ in 0..round % 5 {
                match end.post(3, head(posted), &pattern(posted, size(posted))) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full) => break,
                    Err(PostError::Failed(e)) => panic!("{e}"),
                }
            }
            for _ in 0..(round / 7) % 5 {
                if received < posted {
                    receive(&mut end, received, size(received));
                    received += 1;
                }
            }
        }
        while received < posted {
            receive(&mut end, received, size(received));
            received += 1;
        }
        assert!(posted > 1000);
        assert!(end.poll().is_none());
    }

    #[test]
    fn is_bounded_and_recovers() {
        let mut end = Loopback::new(0);
        for (bytes, fits) in [(8, MAX_MESSAGES), (32768, 32), (4096, 256), (49, 256)] {
            for n in 0..fits as u64 {
                end.post(0, head(n), &pattern(n, bytes)).unwrap();
            }
            let called = std::cell::Cell::new(false);
            let full = end.post_with(0, head(9), bytes, |_| called.set(true));
            assert!(matches!(full, Err(PostError::Full)));
            assert!(!called.get());
            receive(&mut end, 0, bytes);
            end.post(0, head(fits as u64), &pattern(fits as u64, bytes))
                .unwrap();
            for n in 1..=fits as u64 {
                receive(&mut end, n, bytes);
            }
        }
        assert!(end.spare_bytes <= 2 * MAX_BYTES);
        assert_eq!(
            end.spare_bytes,
            end.spare.iter().map(Vec::len).sum::<usize>()
        );
    }

    #[test]
    fn a_message_that_is_out_stays_while_others_are_posted() {
        for bytes in [16, 1000] {
            let mut end = Loopback::new(0);
            end.post(0, head(0), &pattern(0, bytes)).unwrap();
            let m = end.poll().unwrap();
            for n in 1..MAX_MESSAGES as u64 {
                end.post(0, head(n), &pattern(n, bytes)).unwrap();
            }
            // SAFETY: not yet released.
            assert_eq!(unsafe { m.payload.to_vec() }, pattern(0, bytes));
            end.release(&m);
            assert!(end.retired.is_empty());
            for n in 1..MAX_MESSAGES as u64 {
                receive(&mut end, n, bytes);
            }
        }
    }

    #[test]
    fn steady_state_reuses_buffers() {
        let mut end = Loopback::new(0);
        let mut places = std::collections::HashSet::new();
        for n in 0..100 {
            end.post(0, head(n), &pattern(n, 1000)).unwrap();
            let m = end.poll().unwrap();
            places.insert(m.payload.as_ptr());
            end.release(&m);
        }
        assert_eq!(places.len(), 1);
        assert_eq!(end.slots.len(), FIRST_SLOTS);
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        let mut end = Loopback::new(1);
        let wrong = end.post(0, head(0), &[]);
        assert!(
            matches!(wrong, Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::Invalid)
        );
        let long = end.post(1, head(0), &vec![0; MAX_PAYLOAD_BYTES + 1]);
        assert!(
            matches!(long, Err(PostError::Failed(e)) if e.kind() == TransportErrorKind::Invalid)
        );
        assert_eq!(end.waiting(), 0);
    }

    #[test]
    fn one_sided() {
        let mut end = Loopback::new(0);
        let mut words = [1u64, 2, 3, 4];
        let at = words.as_mut_ptr();
        // SAFETY: `words` outlives every use of the key below.
        let key = unsafe { end.export(at.cast(), 32) }.unwrap();
        assert_eq!(RegionKey::from_wire(&key.to_wire()), Some(key));
        let mut two = [0u64; 2];
        // SAFETY: 16 bytes are writable.
        let done = unsafe { end.get(0, &key, 8, two.as_mut_ptr().cast(), 16) };
        assert_eq!(done.unwrap(), OneSided::Done(0));
        assert_eq!(two, [2, 3]);
        // SAFETY: 16 bytes are readable.
        let done = unsafe { end.put(0, &key, 16, two.as_ptr().cast(), 16) };
        assert_eq!(done.unwrap(), OneSided::Done(0));
        let mut run = |offset, op| end.atomic(0, &key, offset, op).map_err(|e| e.kind());
        assert_eq!(run(0, AtomicOp::Add(4)), Ok(OneSided::Done(1)));
        assert_eq!(run(0, AtomicOp::Swap(7)), Ok(OneSided::Done(5)));
        let (expected, new) = (6, 8);
        let swap = AtomicOp::CompareSwap { expected, new };
        assert_eq!(run(0, swap), Ok(OneSided::Done(7)));
        assert_eq!(run(0, AtomicOp::Load), Ok(OneSided::Done(7)));
        assert_eq!(
            run(4, AtomicOp::Load),
            Err(TransportErrorKind::Invalid),
            "unaligned"
        );
        assert_eq!(run(32, AtomicOp::Load), Err(TransportErrorKind::Invalid));
        assert_eq!(
            run(u64::MAX - 7, AtomicOp::Load),
            Err(TransportErrorKind::Invalid)
        );
        // SAFETY: refused before anything is touched.
        let beyond = unsafe { end.get(0, &key, 24, two.as_mut_ptr().cast(), 16) };
        assert_eq!(beyond.unwrap_err().kind(), TransportErrorKind::Invalid);
        let foreign = RegionKey {
            kind: RegionKind::Process,
            ..key
        };
        assert!(end.mapped(0, &foreign).is_none());
        assert_eq!(end.mapped(0, &key), Some(at.cast_const().cast()));
        assert_eq!(words, [7, 2, 2, 3]);
        assert!(end.poll_completion().is_none());
    }

    /// Prints, never fails: `cargo test --release -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn time_of_a_round() {
        let mut end = Loopback::new(0);
        for bytes in [8, 48, 49, 4096] {
            let payload = vec![1u8; bytes];
            let rounds = 2_000_000u32;
            let start = std::time::Instant::now();
            for n in 0..rounds {
                end.post(0, head(n.into()), std::hint::black_box(&payload))
                    .unwrap();
                let m = std::hint::black_box(end.poll().unwrap());
                end.release(&m);
            }
            let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds);
            println!("self, {bytes} bytes: {ns:.1} ns per post, poll and release");
        }
    }
}
