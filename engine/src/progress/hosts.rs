//! Members of a lane on several hosts: those of this host by shared memory, the others by a
//! network.
//!
//! # Invariants
//! 1. Whoever calls an unsafe function here keeps the contract of the endpoint's function of that
//!    name, to which memory and length go as they are.

use osier_transports::net::NetEndpoint;
use osier_transports::shm::ShmEndpoint;
use osier_transports::{
    AmHead, AtomicOp, Capabilities, Endpoint, Incoming, OneSided, Peer, PostError, RegionKey,
    RegionKind, Sharing, TransportError,
};

/// Polls of shared memory to one of the network, which takes a system call. Not tuned.
const NEAR_POLLS: u32 = 4;

/// Members on this host and on others.
pub struct Hosts {
    near: Option<ShmEndpoint>,
    /// The members on this host, in order; their places are those of the near endpoint.
    near_peers: Box<[Peer]>,
    far: NetEndpoint,
    polls: u32,
}

impl Hosts {
    /// `near_peers` are the members on this host, in order, and those of `near`; `far` has all.
    pub fn new(near: Option<ShmEndpoint>, near_peers: Box<[Peer]>, far: NetEndpoint) -> Self {
        Self {
            near,
            near_peers,
            far,
            polls: 0,
        }
    }

    /// The place of a member among those of this host.
    #[inline]
    fn near_of(&self, peer: Peer) -> Option<Peer> {
        self.near.as_ref()?;
        let at = self.near_peers.binary_search(&peer).ok()?;
        Some(at as Peer)
    }

    /// The near endpoint and the place of a member there.
    #[inline]
    pub fn near(&mut self, peer: Peer) -> Option<(&mut ShmEndpoint, Peer)> {
        let at = self.near_of(peer)?;
        Some((self.near.as_mut()?, at))
    }

    /// Whether a member is on this host.
    pub fn is_near(&self, peer: Peer) -> bool {
        self.near_of(peer).is_some()
    }

    /// Whether there are others of this host, whatever they are.
    pub fn near_capabilities(&self) -> Option<Capabilities> {
        self.near.as_ref().map(Endpoint::capabilities)
    }

    /// Whether a peer has dropped the channel.
    pub fn closed(&self, peer: Peer) -> bool {
        match (self.near_of(peer), &self.near) {
            (Some(at), Some(near)) => near.closed(at),
            _ => self.far.closed(peer),
        }
    }

    /// Whether messages of a peer have come that were not polled.
    pub fn is_awaited(&self, peer: Peer) -> bool {
        !self.is_near(peer) && self.far.is_awaited(peer)
    }

    /// Why a peer cannot be reached any more, in words, if it is on another host or has been
    /// given up by one.
    pub fn why(&self, peer: Peer) -> Option<String> {
        self.far.why(peer)
    }

    /// Takes a region back.
    pub fn unexport(&self, key: &RegionKey) {
        self.far.unexport(key);
    }

    /// A peer whose messages were overwritten, each once.
    pub fn overwritten(&mut self) -> Option<Peer> {
        let at = self.near.as_mut()?.overwritten()?;
        self.near_peers.get(at as usize).copied()
    }
}

/// Calls the endpoint that reaches a peer, by its number there.
macro_rules! to_peer {
    ($self:ident, $peer:ident, $e:ident => $call:expr) => {
        match ($self.near_of($peer), &mut $self.near) {
            (Some($peer), Some($e)) => $call,
            _ => {
                let $e = &mut $self.far;
                $call
            }
        }
    };
}

/// The same of calls that change nothing.
macro_rules! of_peer {
    ($self:ident, $peer:ident, $e:ident => $call:expr) => {
        match ($self.near_of($peer), &$self.near) {
            (Some($peer), Some($e)) => $call,
            _ => {
                let $e = &$self.far;
                $call
            }
        }
    };
}

impl Endpoint for Hosts {
    /// What holds for all members.
    fn capabilities(&self) -> Capabilities {
        self.far.capabilities()
    }

    fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        to_peer!(self, peer, e => e.post_with(peer, head, bytes, fill))
    }

    fn poll(&mut self) -> Option<Incoming> {
        if let Some(near) = &mut self.near {
            if let Some(message) = near.poll() {
                let peer = self.near_peers.get(message.peer as usize);
                let peer = peer.copied().unwrap_or(message.peer);
                return Some(Incoming { peer, ..message });
            }
            self.polls = self.polls.wrapping_add(1);
            if !self.polls.is_multiple_of(NEAR_POLLS) {
                return self.far.poll_received();
            }
        }
        self.far.poll()
    }

    fn release(&mut self, message: &Incoming) {
        let peer = message.peer;
        to_peer!(self, peer, e => e.release(&Incoming { peer, ..*message }));
    }

    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        // SAFETY: invariant 1.
        unsafe { self.far.export(ptr, bytes) }
    }

    /// A name for members of this host, to whom memory may be mapped; the others reach it by
    /// messages.
    unsafe fn export_window(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        match &self.near {
            // SAFETY: invariant 1.
            Some(near) => unsafe { near.export_window(ptr, bytes) },
            // SAFETY: invariant 1.
            None => unsafe { self.far.export_window(ptr, bytes) },
        }
    }

    unsafe fn export_to(
        &self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
        write: bool,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: invariant 1.
        of_peer!(self, peer, e => unsafe { e.export_to(peer, ptr, bytes, write) })
    }

    fn sharing(&self, peer: Peer) -> Sharing {
        of_peer!(self, peer, e => e.sharing(peer))
    }

    fn attending(&self, peer: Peer) -> bool {
        of_peer!(self, peer, e => e.attending(peer))
    }

    fn reads_process(&self, peer: Peer) -> bool {
        of_peer!(self, peer, e => e.reads_process(peer))
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.get(peer, key, offset, to, bytes) })
    }

    unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.put(peer, key, offset, from, bytes) })
    }

    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        to_peer!(self, peer, e => e.atomic(peer, key, offset, op))
    }

    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        to_peer!(self, peer, e => e.mapped(peer, key))
    }

    fn mapped_writable(&mut self, peer: Peer, key: &RegionKey) -> Option<*mut u8> {
        to_peer!(self, peer, e => e.mapped_writable(peer, key))
    }

    /// Of the network alone: operations on shared memory are done when they return.
    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        self.far.poll_completion()
    }

    fn malformed(&self) -> u64 {
        self.near.as_ref().map_or(0, Endpoint::malformed) + self.far.malformed()
    }
}

/// Whether a key names memory that a network keeps account of.
pub(super) fn is_kept(key: &RegionKey) -> bool {
    key.kind == RegionKind::Network
}
