//! One member's end of a channel over a network.
//!
//! # Invariants
//! 1. A message that is out lies in the state's scratch buffer, which is neither read into nor
//!    moved while it is lent, or in a buffer that the channel keeps, until it is released.

use super::frame::MESSAGE_BYTES;
use super::rank::{NetRank, unavailable};
use crate::contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PostError,
    RegionKey, RegionKind, Sharing, TransportError,
};
use std::sync::Arc;

/// Name of the transport.
pub(super) const NAME: &str = "tcp";
/// Messages up to this size are copied into frames by their sender.
const INLINE_BYTES: usize = 4 << 10;

/// One member's end of a channel over a network.
pub struct NetEndpoint {
    rank: NetRank,
    channel: u64,
    members: Arc<[u32]>,
}

impl NetEndpoint {
    pub(super) fn new(rank: NetRank, channel: u64, members: Arc<[u32]>) -> Self {
        Self {
            rank,
            channel,
            members,
        }
    }

    /// As [`Endpoint::poll`], of what this process has received already: takes no system call.
    pub fn poll_received(&mut self) -> Option<Incoming> {
        self.poll_reading(false)
    }

    fn poll_reading(&mut self, reads: bool) -> Option<Incoming> {
        let polled = self.rank.with(|state| state.poll(self.channel, reads))?;
        Some(Incoming {
            peer: polled.peer,
            head: polled.head,
            // SAFETY: invariant 1.
            payload: unsafe { ForeignBytes::new(polled.payload, polled.bytes) },
            token: 0,
        })
    }

    /// The rank that it belongs to.
    pub fn rank(&self) -> &NetRank {
        &self.rank
    }

    /// Whether a peer has dropped the channel, and all that it sent before was polled.
    pub fn closed(&self, peer: Peer) -> bool {
        self.rank.state().is_closed(self.channel, peer)
    }

    /// Whether messages of a peer have come that were not polled.
    pub fn is_awaited(&self, peer: Peer) -> bool {
        self.rank.state().is_awaited(self.channel, peer)
    }

    /// Why the connection to a peer has ended, or was not made, in words.
    pub fn why(&self, peer: Peer) -> Option<String> {
        self.rank.why(*self.members.get(peer as usize)?)
    }

    /// Takes a region back: its memory is the caller's again.
    pub fn unexport(&self, key: &RegionKey) {
        if key.kind == RegionKind::Network && key.owner == self.rank.rank() {
            self.rank.state().withdraw(key.base);
        }
    }
}

impl Endpoint for NetEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            transport: NAME,
            inline_bytes: INLINE_BYTES,
            max_payload_bytes: MESSAGE_BYTES,
            get: true,
            put: false,
            atomics: false,
            export_plain: true,
            runs: 1,
        }
    }

    fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        self.rank
            .with(|state| state.post(self.channel, peer, head, bytes, fill))
    }

    fn poll(&mut self) -> Option<Incoming> {
        self.poll_reading(true)
    }

    fn release(&mut self, _message: &Incoming) {
        self.rank.with(|state| state.release(self.channel));
    }

    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        Ok(self.rank.state().export(ptr, bytes, None))
    }

    unsafe fn export_writable(
        &self,
        _ptr: *mut u8,
        _bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        Err(unavailable("memory that peers write"))
    }

    unsafe fn export_to(
        &self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
        write: bool,
    ) -> Result<RegionKey, TransportError> {
        if write {
            return Err(unavailable("memory that a peer writes"));
        }
        let mut state = self.rank.state();
        let reader = state.reader(self.channel, peer)?;
        Ok(state.export(ptr, bytes, Some(reader)))
    }

    fn sharing(&self, _peer: Peer) -> Sharing {
        Sharing {
            process: false,
            process_id: None,
            process_numbers: false,
            host_memory: false,
            devices: false,
        }
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        let asked = self
            .rank
            .with(|state| state.get(self.channel, peer, key, offset, to, bytes))?;
        Ok(asked.map_or(OneSided::Done(0), OneSided::Pending))
    }

    unsafe fn put(
        &mut self,
        _peer: Peer,
        _key: &RegionKey,
        _offset: u64,
        _from: *const u8,
        _bytes: usize,
    ) -> Result<OneSided, TransportError> {
        Err(unavailable("writing memory of a peer"))
    }

    fn atomic(
        &mut self,
        _peer: Peer,
        _key: &RegionKey,
        _offset: u64,
        _op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        Err(unavailable("an atomic on memory of a peer"))
    }

    fn mapped(&mut self, _peer: Peer, _key: &RegionKey) -> Option<*const u8> {
        None
    }

    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        self.rank.with(|state| state.completion(self.channel))
    }

    fn malformed(&self) -> u64 {
        self.rank.counts().malformed
    }
}

impl Drop for NetEndpoint {
    fn drop(&mut self) {
        self.rank.with(|state| state.close(self.channel));
    }
}
