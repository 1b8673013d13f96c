//! The endpoints of one lane: itself, and what reaches the others.
//!
//! # Invariants
//! 1. Whoever calls an unsafe function here keeps the contract of the endpoint's function
//!    of that name, to which peer, memory and length go as they are.

use super::hosts::{self, Hosts};
#[cfg(debug_assertions)]
use super::steps::{self, Phase};
use crate::protocol::select::Selection;
use osier_transports::delay::Delayed;
use osier_transports::loopback::Loopback;
use osier_transports::shm::{Collective, ShmEndpoint};
use osier_transports::sim::SimEndpoint;
use osier_transports::{
    AmHead, AtomicOp, Capabilities, Endpoint, Incoming, OneSided, Peer, PeerMemory, PostError,
    RegionKey, RegionKind, Sharing, TransportError, TransportErrorKind,
};
use std::ops::Range;
use std::sync::Arc;

/// The transport that reaches the other members.
#[expect(
    clippy::large_enum_variant,
    reason = "the usual one is the large one, and on the way of each message"
)]
pub enum Remote {
    /// There are no others.
    None,
    Shm(ShmEndpoint),
    Sim(SimEndpoint),
    /// Shared memory whose messages from other processes are visible later.
    Delayed(Box<Delayed<ShmEndpoint>>),
    /// Members on several hosts.
    Hosts(Box<Hosts>),
}

/// Selections by which protocols to peers are chosen.
pub struct Selections {
    near: Arc<Selection>,
    /// To peers of other processes, if these are delayed; to those on other hosts, if there are
    /// any. Else the same as that of near ones.
    pub far: Arc<Selection>,
}

impl Selections {
    /// Whether protocols to a peer are not chosen as to those of other processes.
    pub fn differs(&self, links: &Links, peer: Peer) -> bool {
        !Arc::ptr_eq(&self.near, &self.far) && links.is_near(peer)
    }

    /// That of a peer.
    pub fn to(&self, links: &Links, peer: Peer) -> &Arc<Selection> {
        match self.differs(links, peer) {
            true => &self.near,
            false => &self.far,
        }
    }
}

pub struct Links {
    own: Peer,
    loopback: Loopback,
    remote: Remote,
}

/// A short message as any endpoint takes it.
fn short(kind: u8, arg: u32, data: u64) -> (AmHead, [u8; 8]) {
    let (aux, arg) = (0, arg.into());
    (AmHead { kind, aux, arg }, data.to_ne_bytes())
}

fn nobody() -> TransportError {
    TransportError::new(TransportErrorKind::Invalid, "this job has one rank")
}

/// Calls the endpoint that reaches a peer.
macro_rules! to_peer {
    ($self:ident, $peer:expr, $e:ident => $call:expr, none: $none:expr) => {
        if $peer == $self.own {
            let $e = &mut $self.loopback;
            $call
        } else {
            match &mut $self.remote {
                Remote::Shm($e) => $call,
                Remote::Sim($e) => $call,
                Remote::Delayed($e) => $call,
                Remote::Hosts($e) => $call,
                Remote::None => $none,
            }
        }
    };
}

impl Links {
    pub fn new(own: Peer, remote: Remote) -> Self {
        Self {
            own,
            loopback: Loopback::new(own),
            remote,
        }
    }

    /// Number of messages to this rank itself in flight.
    pub fn looped(&self) -> usize {
        self.loopback.waiting()
    }

    /// Name of the transport to a peer.
    pub fn transport(&self, peer: Peer) -> &'static str {
        if peer == self.own {
            return "self";
        }
        match &self.remote {
            // Nothing delays it.
            Remote::Delayed(e) if e.sharing(peer).process => e.below().capabilities().transport,
            Remote::Hosts(e) if e.is_near(peer) => {
                e.near_capabilities().map_or("none", |c| c.transport)
            }
            _ => self.capabilities().map_or("none", |c| c.transport),
        }
    }

    /// What the transport to the others can do.
    pub fn capabilities(&self) -> Option<Capabilities> {
        match &self.remote {
            Remote::None => None,
            Remote::Shm(e) => Some(e.capabilities()),
            Remote::Sim(e) => Some(e.capabilities()),
            Remote::Delayed(e) => Some(e.capabilities()),
            Remote::Hosts(e) => Some(e.capabilities()),
        }
    }

    /// By which selection protocols are chosen: that of the machine, or where what a peer posts is
    /// delayed, one that knows of it.
    pub fn selections(&self, selection: &Arc<Selection>) -> Selections {
        let far = match &self.remote {
            Remote::Delayed(e) if e.delay().latency_ns > 0 => {
                Arc::new(selection.later(e.delay().latency_ns))
            }
            Remote::Hosts(_) => Arc::new(selection.over_network()),
            _ => selection.clone(),
        };
        let near = selection.clone();
        Selections { near, far }
    }

    /// Whether a peer is near, where others are delayed or on other hosts.
    fn is_near(&self, peer: Peer) -> bool {
        match &self.remote {
            Remote::Hosts(e) => peer == self.own || e.is_near(peer),
            _ => self.sharing(peer).process,
        }
    }

    /// Whether the end of a peer is not told before something was sent to it.
    pub fn is_told_late(&self, peer: Peer) -> bool {
        matches!(&self.remote, Remote::Hosts(e) if peer != self.own && !e.is_near(peer))
    }

    /// Largest payload of one message to a peer.
    pub fn max_payload(&self, peer: Peer) -> usize {
        match peer == self.own {
            true => self.loopback.capabilities().max_payload_bytes,
            false => self.max_payload_of_others(),
        }
    }

    /// Largest payload of one message to another rank.
    pub fn max_payload_of_others(&self) -> usize {
        self.capabilities().map_or(0, |c| c.max_payload_bytes)
    }

    #[inline]
    pub fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        if peer == self.own {
            return self.loopback.post_with(peer, head, bytes, fill);
        }
        #[cfg(debug_assertions)]
        steps::at(Phase::Posts, head.kind);
        let posted = match &mut self.remote {
            Remote::Shm(e) => e.post_with(peer, head, bytes, fill),
            Remote::Sim(e) => e.post_with(peer, head, bytes, fill),
            Remote::Delayed(e) => e.post_with(peer, head, bytes, fill),
            Remote::Hosts(e) => e.post_with(peer, head, bytes, fill),
            Remote::None => Err(PostError::Failed(nobody())),
        };
        #[cfg(debug_assertions)]
        if posted.is_ok() {
            steps::at(Phase::Posted, head.kind);
        }
        posted
    }

    /// Posts a message of at most eight bytes without more than a 32-bit
    /// argument; false if it needs [`Links::post_with`].
    #[inline]
    pub fn post_short(&mut self, peer: Peer, kind: u8, arg: u32, data: u64, bytes: usize) -> bool {
        match &mut self.remote {
            Remote::Shm(e) if peer != self.own => e.post_short(peer, kind, arg, data, bytes),
            // No shorter there, but the engine's short path runs.
            Remote::Sim(e) if peer != self.own => {
                let (head, data) = short(kind, arg, data);
                e.post(peer, head, &data[..bytes.min(8)]).is_ok()
            }
            Remote::Delayed(e) if peer != self.own => {
                let (head, data) = short(kind, arg, data);
                e.post(peer, head, &data[..bytes.min(8)]).is_ok()
            }
            Remote::Hosts(e) if peer != self.own => match e.near(peer) {
                Some((near, peer)) => near.post_short(peer, kind, arg, data, bytes),
                None => {
                    let (head, data) = short(kind, arg, data);
                    e.post(peer, head, &data[..bytes.min(8)]).is_ok()
                }
            },
            _ => false,
        }
    }

    #[inline(always)]
    pub fn poll(&mut self) -> Option<Incoming> {
        if let Some(m) = self.loopback.poll() {
            return Some(m);
        }
        match &mut self.remote {
            Remote::Shm(e) => e.poll(),
            Remote::Sim(e) => e.poll(),
            Remote::Delayed(e) => e.poll(),
            Remote::Hosts(e) => e.poll(),
            Remote::None => None,
        }
    }

    /// Whether a peer reads a long message while it is written.
    #[inline]
    pub fn has_parts(&self, peer: Peer) -> bool {
        match &self.remote {
            Remote::Shm(_) => peer != self.own,
            Remote::Hosts(e) => peer != self.own && e.is_near(peer),
            _ => false,
        }
    }

    /// Posts a message of which the peer reads one part while the next is written: `fill`
    /// writes a range of its bytes to an address. False: it needs [`Links::post_with`].
    #[inline]
    pub fn post_parts(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnMut(Range<usize>, *mut u8),
    ) -> bool {
        let (e, peer) = match &mut self.remote {
            _ if peer == self.own => return false,
            Remote::Shm(e) => (e, peer),
            Remote::Hosts(e) => match e.near(peer) {
                Some(near) => near,
                None => return false,
            },
            _ => return false,
        };
        #[cfg(debug_assertions)]
        steps::at(Phase::Posts, head.kind);
        let posted = e.post_parts(peer, head, bytes, fill);
        #[cfg(debug_assertions)]
        if posted {
            steps::at(Phase::Posted, head.kind);
        }
        posted
    }

    /// Takes the next message of a peer, if it is of this kind and argument and has at most
    /// `room` bytes: `copy` reads bytes from an address on to their place in the message. `None`
    /// says nothing: what is there may need [`Links::poll`].
    #[inline(always)]
    pub fn take_next(
        &mut self,
        peer: Peer,
        kind: u8,
        arg: u32,
        room: usize,
        copy: impl FnMut(usize, *const u8, usize),
    ) -> Option<usize> {
        match &mut self.remote {
            Remote::Shm(e) if peer != self.own => e.take_next(peer, kind, arg, room, copy),
            Remote::Hosts(e) if peer != self.own => {
                let (near, peer) = e.near(peer)?;
                near.take_next(peer, kind, arg, room, copy)
            }
            _ => None,
        }
    }

    /// Whether the last short message has crossed one of its peer.
    #[inline]
    pub fn has_crossed(&self) -> bool {
        matches!(&self.remote, Remote::Shm(e) if e.has_crossed())
    }

    /// Gives a message back to its endpoint.
    #[inline]
    pub fn release(&mut self, message: &Incoming) {
        if message.peer == self.own {
            return self.loopback.release(message);
        }
        match &mut self.remote {
            Remote::Shm(e) => e.release(message),
            Remote::Sim(e) => e.release(message),
            Remote::Delayed(e) => e.release(message),
            Remote::Hosts(e) => e.release(message),
            Remote::None => {}
        }
    }

    /// Exports memory to one peer.
    ///
    /// # Safety
    /// As [`Endpoint::export`].
    pub unsafe fn export(
        &mut self,
        peer: Peer,
        ptr: *const u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.export_to(peer, ptr.cast_mut(), bytes, false) }, none: Err(nobody()))
    }

    /// Exports memory that one peer will write.
    ///
    /// # Safety
    /// As [`Endpoint::export_writable`].
    pub unsafe fn export_writable(
        &mut self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.export_to(peer, ptr, bytes, true) }, none: Err(nobody()))
    }

    /// Exports memory of a window to all members.
    ///
    /// # Safety
    /// As [`Endpoint::export_window`].
    pub unsafe fn export_window(
        &mut self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        match &self.remote {
            // SAFETY: invariant 1.
            Remote::Shm(e) => unsafe { e.export_window(ptr, bytes) },
            // SAFETY: invariant 1.
            Remote::Sim(e) => unsafe { e.export_window(ptr, bytes) },
            // SAFETY: invariant 1.
            Remote::Delayed(e) => unsafe { e.export_window(ptr, bytes) },
            // SAFETY: invariant 1.
            Remote::Hosts(e) => unsafe { e.export_window(ptr, bytes) },
            // SAFETY: invariant 1.
            Remote::None => unsafe { self.loopback.export_window(ptr, bytes) },
        }
    }

    /// Whether a peer would answer at once.
    pub fn attending(&mut self, peer: Peer) -> bool {
        to_peer!(self, peer, e => e.attending(peer), none: false)
    }

    /// Whether the system reads plain memory of a peer's process.
    pub fn reads_process(&mut self, peer: Peer) -> bool {
        to_peer!(self, peer, e => e.reads_process(peer), none: false)
    }

    /// # Safety
    /// As [`Endpoint::put`].
    pub unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.put(peer, key, offset, from, bytes) }, none: Err(nobody()))
    }

    /// # Safety
    /// As [`Endpoint::put_runs`].
    pub unsafe fn put_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        from: *const u8,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.put_runs(peer, key, runs, from) }, none: Err(nobody()))
    }

    /// What this rank shares with a peer.
    pub fn sharing(&self, peer: Peer) -> Sharing {
        match &self.remote {
            _ if peer == self.own => Sharing::simulated(true),
            Remote::Shm(e) => e.sharing(peer),
            Remote::Sim(e) => e.sharing(peer),
            Remote::Delayed(e) => e.sharing(peer),
            Remote::Hosts(e) => e.sharing(peer),
            Remote::None => Sharing::simulated(false),
        }
    }

    /// The segment that the members share for collectives, number 0, or for a persistent call;
    /// none where they share no memory, or as long as the lowest of them has not made it.
    #[inline]
    pub fn collective(&mut self, of: u32) -> Result<Option<&mut Collective>, TransportError> {
        match &mut self.remote {
            Remote::Shm(e) => e.collective(of),
            Remote::Sim(_) | Remote::Delayed(_) | Remote::Hosts(_) | Remote::None => Ok(None),
        }
    }

    /// This rank uses the segment of a persistent call no more.
    pub fn leave_collective(&mut self, of: u32) {
        if let Remote::Shm(e) = &mut self.remote {
            e.leave_collective(of);
        }
    }

    /// That of number 0, if it was there before.
    #[inline]
    pub fn opened_collective(&self) -> Option<&Collective> {
        match &self.remote {
            Remote::Shm(e) => e.opened_collective(),
            Remote::Sim(_) | Remote::Delayed(_) | Remote::Hosts(_) | Remote::None => None,
        }
    }

    /// Whether the members may have one.
    pub fn has_collective(&self) -> bool {
        matches!(&self.remote, Remote::Shm(e) if e.has_collective())
    }

    /// To be called after a flag was raised there.
    #[inline]
    pub fn wake_members(&self) {
        if let Remote::Shm(e) = &self.remote {
            e.wake_members();
        }
    }

    /// Where memory of this process lies, in a word for peers; none where they cannot read it.
    #[inline]
    pub fn place_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        match &self.remote {
            Remote::Shm(e) => e.place_of(ptr, bytes),
            Remote::Sim(_) | Remote::Delayed(_) | Remote::Hosts(_) | Remote::None => None,
        }
    }

    /// The same for members that all read it by address.
    #[inline]
    pub fn lends(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        match &self.remote {
            Remote::Shm(e) => e.lends(ptr, bytes),
            Remote::Sim(_) | Remote::Delayed(_) | Remote::Hosts(_) | Remote::None => None,
        }
    }

    /// Memory of a peer that it has named so.
    ///
    /// # Errors
    /// It cannot be read.
    #[inline]
    pub fn peer_memory(
        &self,
        peer: Peer,
        place: u64,
        bytes: usize,
    ) -> Result<PeerMemory, TransportError> {
        match &self.remote {
            Remote::Shm(e) => e.peer_memory(peer, place, bytes),
            Remote::Sim(_) | Remote::Delayed(_) | Remote::Hosts(_) | Remote::None => Err(nobody()),
        }
    }

    /// Cancels an export where the transport keeps account of them.
    pub fn unexport(&mut self, key: &RegionKey) {
        // A key of our own loopback may name the same memory.
        if key.kind == RegionKind::Sim
            && let Remote::Sim(e) = &self.remote
        {
            e.net().unexport(key);
        }
        if hosts::is_kept(key)
            && let Remote::Hosts(e) = &self.remote
        {
            e.unexport(key);
        }
    }

    /// # Safety
    /// As [`Endpoint::get`].
    pub unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.get(peer, key, offset, to, bytes) }, none: Err(nobody()))
    }

    /// # Safety
    /// As [`Endpoint::get_runs`].
    pub unsafe fn get_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        to: *mut u8,
    ) -> Result<OneSided, TransportError> {
        // SAFETY: invariant 1.
        to_peer!(self, peer, e => unsafe { e.get_runs(peer, key, runs, to) }, none: Err(nobody()))
    }

    /// Performs an atomic on eight aligned bytes of a peer's region.
    pub fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        to_peer!(self, peer, e => e.atomic(peer, key, offset, op), none: Err(nobody()))
    }

    /// Where a region of a window lies, if it can be used by address.
    pub fn mapped_writable(&mut self, peer: Peer, key: &RegionKey) -> Option<*mut u8> {
        to_peer!(self, peer, e => e.mapped_writable(peer, key), none: None)
    }

    pub fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        to_peer!(self, peer, e => e.mapped(peer, key), none: None)
    }

    pub fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        match &mut self.remote {
            Remote::Sim(e) => e.poll_completion(),
            Remote::Delayed(e) => e.poll_completion(),
            Remote::Hosts(e) => e.poll_completion(),
            Remote::Shm(e) => e.poll_completion(),
            Remote::None => None,
        }
    }

    /// Whether a peer has dropped the channel, as far as the transport knows, and nothing that it
    /// sent before is delayed.
    pub fn closed(&mut self, peer: Peer) -> bool {
        match &mut self.remote {
            Remote::Shm(e) if peer != self.own => e.closed(peer),
            Remote::Sim(e) if peer != self.own => e.closed(peer),
            Remote::Delayed(e) if peer != self.own => e.below().closed(peer) && !e.is_awaited(peer),
            Remote::Hosts(e) if peer != self.own => e.closed(peer),
            _ => false,
        }
    }

    /// Why a peer cannot be reached any more, where the transport knows more than how it ended.
    #[cold]
    pub fn why(&self, peer: Peer) -> Option<String> {
        match &self.remote {
            Remote::Hosts(e) if peer != self.own => e.why(peer),
            _ => None,
        }
    }

    /// Whether what a peer has sent is delayed and has not been polled yet.
    pub fn is_awaited(&mut self, peer: Peer) -> bool {
        match &mut self.remote {
            Remote::Delayed(e) if peer != self.own => e.is_awaited(peer),
            Remote::Hosts(e) if peer != self.own => e.is_awaited(peer),
            _ => false,
        }
    }

    /// When the next delayed message may be polled, by the machine's monotonic clock in ns;
    /// none if no message is delayed.
    pub fn next_due_ns(&self) -> Option<u64> {
        match &self.remote {
            Remote::Delayed(e) => e.next_due_ns(),
            _ => None,
        }
    }

    /// A peer whose messages were overwritten, each once.
    pub fn overwritten(&mut self) -> Option<Peer> {
        match &mut self.remote {
            Remote::Shm(e) => e.overwritten(),
            Remote::Delayed(e) => e.below_mut().overwritten(),
            Remote::Hosts(e) => e.overwritten(),
            _ => None,
        }
    }

    /// A message of this peer was overwritten: nothing more is taken from it, and
    /// [`Links::overwritten`] names it.
    #[cold]
    pub fn cut_off(&mut self, peer: Peer) {
        match &mut self.remote {
            Remote::Shm(e) if peer != self.own => e.cut_off(peer),
            Remote::Delayed(e) if peer != self.own => e.below_mut().cut_off(peer),
            Remote::Hosts(e) => {
                if let Some((near, peer)) = e.near(peer) {
                    near.cut_off(peer);
                }
            }
            _ => {}
        }
    }

    /// Messages that the transport rejected.
    pub fn malformed(&self) -> u64 {
        match &self.remote {
            Remote::Shm(e) => e.malformed(),
            Remote::Sim(e) => e.malformed(),
            Remote::Delayed(e) => e.malformed(),
            Remote::Hosts(e) => e.malformed(),
            Remote::None => 0,
        }
    }
}
