//! One rank's end of one channel.

use std::collections::BTreeMap;
use std::ptr;

use super::SimNet;
use super::fault::{Did, SimEvent};
use super::rng::Rng;
use super::state::{Message, State, dead};
use crate::contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PostError,
    RegionKey, RegionKind, Sharing, TransportError, TransportErrorKind,
};
use crate::loopback::{aligned, perform, within};

const NO_PEER: Peer = Peer::MAX;
const NO_LINK: u32 = u32::MAX;

/// One rank's end of one channel of a [`SimNet`].
pub struct SimEndpoint {
    net: SimNet,
    rank: u32,
    channel: u64,
    members: Box<[u32]>,
    /// By rank.
    peer_of: Box<[Peer]>,
    /// By peer; made on first use.
    links: Box<[u32]>,
    mailbox: u32,
    current: Option<Message>,
    token: u32,
    /// By due time and number.
    operations: BTreeMap<(u64, u64), Operation>,
    last_operation: u64,
    rng: Rng,
    malformed: u64,
}

struct Operation {
    key: RegionKey,
    /// Address in the region.
    there: usize,
    what: What,
}

enum What {
    Get { to: usize, bytes: usize },
    Put { from: usize, bytes: usize },
    Atomic(AtomicOp),
}

impl SimEndpoint {
    pub(super) fn open(net: SimNet, rank: u32, channel: u64, members: &[u32]) -> Self {
        let mut state = net.lock();
        let mut peer_of = vec![NO_PEER; state.options.ranks as usize].into_boxed_slice();
        for (peer, member) in members.iter().enumerate() {
            assert!(*member < state.options.ranks, "no rank {member}");
            let place = &mut peer_of[*member as usize];
            assert!(*place == NO_PEER, "rank {member} is a member twice");
            *place = peer as Peer;
        }
        assert!(
            peer_of.get(rank as usize).is_some_and(|p| *p != NO_PEER),
            "rank {rank} is no member"
        );
        let mailbox = state.open(channel, rank);
        let seed = state.options.seed;
        drop(state);
        let Some(mailbox) = mailbox else {
            panic!("rank {rank} has an endpoint of channel {channel} already");
        };
        Self {
            rank,
            channel,
            members: members.into(),
            peer_of,
            links: vec![NO_LINK; members.len()].into(),
            mailbox,
            current: None,
            token: 0,
            operations: BTreeMap::new(),
            last_operation: 0,
            rng: Rng::of(&[seed, 3, rank.into(), channel]),
            malformed: 0,
            net,
        }
    }

    /// The network it belongs to.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// The rank that owns it.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The channel's number.
    pub fn channel(&self) -> u64 {
        self.channel
    }

    /// The channel's members.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Whether a peer has dropped its end of the channel, once everything that
    /// it posted here before has been polled.
    pub fn closed(&self, peer: Peer) -> bool {
        let Some(rank) = self.members.get(peer as usize) else {
            return false;
        };
        self.net.lock().closed(self.channel, *rank, self.mailbox)
    }

    fn member(&self, peer: Peer) -> Result<u32, TransportError> {
        self.members.get(peer as usize).copied().ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::Invalid,
                format!("no peer {peer} among {}", self.members.len()),
            )
        })
    }

    /// Checks what the caller alone can see, and starts an operation.
    fn start(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        there: usize,
        what: What,
        offered: impl FnOnce(&State) -> bool,
    ) -> Result<OneSided, TransportError> {
        let owner = self.member(peer)?;
        if key.kind != RegionKind::Sim || key.owner != owner {
            return Err(TransportError::new(
                TransportErrorKind::Malformed,
                format!(
                    "rank {owner} has no region of kind {:?} of owner {}",
                    key.kind, key.owner
                ),
            ));
        }
        let mut state = self.net.lock();
        if !state.step(self.rank) {
            return Err(dead(self.rank));
        }
        if !offered(&state) {
            return Err(unavailable());
        }
        let (there_bytes, back_bytes) = match &what {
            What::Get { bytes, .. } => (0, *bytes),
            What::Put { bytes, .. } => (*bytes, 0),
            What::Atomic(_) => (8, 8),
        };
        let (now_ns, there_and_back) = (state.now_ns, [(self.rank, owner), (owner, self.rank)]);
        let [out, back] = there_and_back;
        let there_ns = state.arrival_ns(&mut self.rng, now_ns, out, there_bytes);
        let mut due_ns = state.arrival_ns(&mut self.rng, there_ns, back, back_bytes);
        if state.options.held {
            due_ns = u64::MAX;
            state.hold_operation(self.rank, self.channel, self.last_operation + 1);
        } else {
            state.schedule(due_ns);
        }
        let event = SimEvent {
            time_ns: state.now_ns,
            what: Did::Start,
            from: self.rank,
            to: owner,
            channel: self.channel,
            kind: 0,
            bytes: there_bytes.max(back_bytes),
        };
        state.note(event);
        state.stats.operations += 1;
        state.in_flight.operations += 1;
        state.changed();
        self.last_operation += 1;
        let key = *key;
        let operation = Operation { key, there, what };
        self.operations
            .insert((due_ns, self.last_operation), operation);
        Ok(OneSided::Pending(self.last_operation))
    }
}

#[cold]
fn unavailable() -> TransportError {
    TransportError::new(
        TransportErrorKind::Unavailable,
        "this simulated network does not offer it",
    )
}

impl Operation {
    fn bytes(&self) -> usize {
        match self.what {
            What::Get { bytes, .. } | What::Put { bytes, .. } => bytes,
            What::Atomic(_) => size_of::<u64>(),
        }
    }

    /// Forgets the last byte.
    fn cut(&mut self) {
        if let What::Get { bytes, .. } | What::Put { bytes, .. } = &mut self.what {
            *bytes = bytes.saturating_sub(1);
        }
    }

    /// Does it.
    ///
    /// # Safety
    /// The region may be touched ([`State::reachable`]) and `there` was
    /// checked to be inside; the local memory belongs to this operation.
    unsafe fn perform(self) -> u64 {
        match self.what {
            What::Get { to, bytes } => {
                let from = ptr::with_exposed_provenance::<u8>(self.there);
                let to = ptr::with_exposed_provenance_mut(to);
                // SAFETY: by the caller's promise; they may overlap.
                unsafe { ptr::copy(from, to, bytes) };
                0
            }
            What::Put { from, bytes } => {
                let from = ptr::with_exposed_provenance::<u8>(from);
                let to = ptr::with_exposed_provenance_mut(self.there);
                // SAFETY: by the caller's promise; they may overlap.
                unsafe { ptr::copy(from, to, bytes) };
                0
            }
            What::Atomic(op) => {
                let at = ptr::with_exposed_provenance_mut(self.there);
                // SAFETY: aligned (checked at the start), alive by the
                // caller's promise.
                unsafe { perform(at, op) }
            }
        }
    }
}

impl Endpoint for SimEndpoint {
    fn attending(&self, _peer: Peer) -> bool {
        true // so that what depends on it is played
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.net.lock();
        let o = &state.options;
        Capabilities {
            transport: "sim",
            inline_bytes: o.inline_bytes,
            max_payload_bytes: o.max_payload_bytes,
            get: o.get,
            put: o.put,
            atomics: o.atomics,
            export_plain: o.get || o.put || o.atomics,
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
        let to = self.member(peer).map_err(PostError::Failed)?;
        let mut state = self.net.lock();
        if bytes > state.options.max_payload_bytes {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::Invalid,
                format!(
                    "posting {bytes} bytes to rank {to}: a message has at most {}",
                    state.options.max_payload_bytes
                ),
            )));
        }
        let link = &mut self.links[peer as usize];
        if *link == NO_LINK {
            *link = state.link(self.rank, to, self.channel);
        }
        let link = *link;
        let mut payload = state.begin_post(link, bytes)?;
        // `fill` may ask the network something.
        drop(state);
        fill(payload.as_mut_ptr());
        self.net.lock().finish_post(link, head, bytes, payload);
        Ok(())
    }

    fn poll(&mut self) -> Option<Incoming> {
        debug_assert!(self.current.is_none(), "a message is out");
        if self.current.is_some() {
            return None;
        }
        let mut state = self.net.lock();
        if !state.step(self.rank) {
            return None;
        }
        let mut may_advance = state.options.auto_advance;
        loop {
            let Some(message) = state.take_due(self.mailbox) else {
                if std::mem::take(&mut may_advance) && state.advance_to_next_event() {
                    continue;
                }
                return None;
            };
            let peer = self.peer_of[message.from as usize];
            if peer == NO_PEER {
                self.malformed += 1;
                state.give_back(message);
                continue;
            }
            self.token = self.token.wrapping_add(1);
            let incoming = Incoming {
                peer,
                head: message.head,
                // SAFETY: the buffer stays in `current`, untouched, until the
                // release.
                payload: unsafe { ForeignBytes::new(message.payload.as_ptr(), message.bytes) },
                token: self.token,
            };
            self.current = Some(message);
            return Some(incoming);
        }
    }

    fn release(&mut self, message: &Incoming) {
        debug_assert_eq!(message.token, self.token, "not polled here");
        if message.token != self.token {
            return;
        }
        if let Some(m) = self.current.take() {
            self.net.lock().give_back(m);
        }
    }

    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError> {
        let mut state = self.net.lock();
        if !state.step(self.rank) {
            return Err(dead(self.rank));
        }
        let o = &state.options;
        if !(o.get || o.put || o.atomics || o.mapped) {
            return Err(unavailable());
        }
        let key = RegionKey {
            kind: RegionKind::Sim,
            owner: self.rank,
            base: ptr.expose_provenance() as u64,
            bytes: bytes as u64,
        };
        state.register(&key);
        Ok(key)
    }

    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        let there = within(key, offset, bytes)?;
        let to = to.expose_provenance();
        self.start(peer, key, there, What::Get { to, bytes }, |s| s.options.get)
    }

    unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError> {
        let there = within(key, offset, bytes)?;
        let from = from.expose_provenance();
        let what = What::Put { from, bytes };
        self.start(peer, key, there, what, |s| s.options.put)
    }

    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError> {
        let there = aligned(within(key, offset, size_of::<u64>())?)?;
        let what = What::Atomic(op);
        self.start(peer, key, there, what, |s| s.options.atomics)
    }

    fn sharing(&self, _peer: Peer) -> Sharing {
        Sharing::simulated(false)
    }

    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8> {
        let owner = self.member(peer).ok()?;
        let mut state = self.net.lock();
        let alive = state.step(self.rank);
        let ours = key.kind == RegionKind::Sim && key.owner == owner;
        if !(alive && ours && state.options.mapped) || state.reachable(key).is_err() {
            return None;
        }
        Some(ptr::with_exposed_provenance(within(key, 0, 0).ok()?))
    }

    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)> {
        let mut state = self.net.lock();
        let alive = state.step(self.rank);
        let (mut due_ns, mut number) = *self.operations.first_key_value()?.0;
        if alive && state.options.held {
            number = state.take_ready(self.rank, self.channel)?;
            due_ns = u64::MAX;
        } else if alive {
            if due_ns > state.now_ns && state.options.auto_advance {
                state.advance_to_next_event();
            }
            if due_ns > state.now_ns {
                return None;
            }
        }
        let mut operation = self.operations.remove(&(due_ns, number))?;
        if state.cuts_copy(self.rank, operation.key.owner) {
            operation.cut();
        }
        let event = SimEvent {
            time_ns: state.now_ns,
            what: Did::End,
            from: self.rank,
            to: operation.key.owner,
            channel: self.channel,
            kind: 0,
            bytes: operation.bytes(),
        };
        state.note(event);
        let outcome = if alive {
            state.reachable(&operation.key)
        } else {
            Err(dead(self.rank))
        };
        let outcome = outcome.map(|()| {
            // SAFETY: just found reachable, and the lock is held: neither
            // `kill` nor `forget_exports` returns before this is done.
            // The local memory is ours until we return (contract of `get`
            // and `put`).
            unsafe { operation.perform() }
        });
        state.in_flight.operations -= 1;
        state.stats.failed_operations += u64::from(outcome.is_err());
        state.trace_operation(self.rank, self.channel, number);
        Some((number, outcome))
    }

    fn malformed(&self) -> u64 {
        self.malformed
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        let mut state = self.net.lock();
        if let Some(m) = self.current.take() {
            state.give_back(m);
        }
        state.in_flight.operations -= self.operations.len();
        state.forget_operations(self.rank, self.channel);
        state.close(self.mailbox);
    }
}
