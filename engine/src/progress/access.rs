//! One-sided access of a lane to memory that peers have exported as parts of a window.
//!
//! ```text
//! begin_put, begin_get, begin_atomic -> Done(value)
//!                                    -> Under(ticket), then take_access(ticket) -> value
//! ```
//!
//! Where the transport has no one-sided operations they are messages, which the owner of the
//! memory serves when it polls. A run is its offset and its bytes:
//!
//! ```text
//! origin                               owner
//! ACCESS get, key, runs             -> ACCESS_DATA bytes, in pieces
//! ACCESS put, key, runs, bytes      -> ACCESS_DONE
//! ACCESS atomic, key, run, operands -> ACCESS_DONE value before
//! ```
//!
//! # Invariants
//! 1. The local memory of an access is used by nobody else until its ticket was taken, and its
//!    owner keeps it as long: the contract of `begin_put` and `begin_get`.
//! 2. A ticket is taken once, by the call that has begun the access.
//! 3. Memory that this rank has exported for a window stays where it is until it is unexported:
//!    the contract of `export_window`. Messages reach what lies inside, and nothing else.
//! 4. The room that a transport grants holds as many bytes as were asked for; a payload is
//!    readable until its message is released.

use super::lane::Lane;
use super::port::Port;
use crate::diagnose::page::Operation;
use crate::diagnose::waits::{Asked, hear, listens};
use crate::error::{Error, Result};
use crate::exec::foreign::Foreign;
use crate::wire;
use osier_transports::{
    AtomicOp, Capabilities, Incoming, OneSided, RegionKey, RegionKind, Sharing, TransportError,
    TransportErrorKind,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// An access that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// How an access goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is complete; of an atomic, the value before.
    Done(u64),
    /// Under way.
    Under(Ticket),
}

/// What one access to a region takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Runs; at least 1.
    pub runs: usize,
    /// Bytes of all together, those that name a run among them; more than these.
    pub bytes: usize,
    /// Bytes that name a run.
    pub name_bytes: usize,
}

/// How this rank reaches a region of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By address, also with atomics.
    At(*mut u8),
    /// By operations of the transport.
    ByTransport,
    /// By messages, which its owner serves.
    ByMessages,
}

type End = std::result::Result<u64, TransportError>;

struct Open {
    peer: u32,
    bytes: usize,
    by: By,
    end: Option<End>,
    /// Of a future that waits for it.
    waker: Option<Waker>,
}

/// Who works on an access.
enum By {
    /// The transport, under this number.
    Transport(u64),
    /// The owner; of a get, where the bytes go, and how many have come.
    Owner(*mut u8, usize),
}

// SAFETY: invariant 1: an address that is tied to no thread.
unsafe impl Send for By {}

/// Memory that this rank has exported.
struct Exported {
    key: RegionKey,
    at: *mut u8,
}

// SAFETY: invariant 3: an address that is tied to no thread.
unsafe impl Send for Exported {}

/// Accesses of a lane that are under way, or complete and not taken.
#[derive(Default)]
pub(crate) struct Accesses {
    open: BTreeMap<Ticket, Open>,
    /// The last ticket.
    last: u64,
    /// Those without an end.
    under_way: usize,
    exported: Vec<Exported>,
    /// Of accesses that have ended.
    woken: Vec<Waker>,
}

impl Accesses {
    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    pub fn len(&self) -> usize {
        self.under_way
    }

    fn begin(&mut self, peer: u32, bytes: usize, by: By) -> Ticket {
        self.last += 1;
        self.under_way += 1;
        let ticket = Ticket(self.last);
        let open = Open {
            peer,
            bytes,
            by,
            end: None,
            waker: None,
        };
        self.open.insert(ticket, open);
        ticket
    }

    fn end(&mut self, ticket: Ticket, end: End) {
        if let Some(open) = self.open.get_mut(&ticket)
            && open.end.is_none()
        {
            open.end = Some(end);
            self.under_way -= 1;
            self.woken.extend(open.waker.take());
        }
    }

    /// The transport has ended an operation. False: it is none of these.
    pub fn ended(&mut self, number: u64, end: &End) -> bool {
        let is_it = |o: &Open| matches!(o.by, By::Transport(n) if n == number && o.end.is_none());
        let found = self.open.iter().find(|(_, open)| is_it(open));
        let Some((&ticket, _)) = found else {
            return false;
        };
        self.end(ticket, end.clone());
        true
    }

    /// The access that an owner's answer is for.
    fn asked(&mut self, peer: u32, low: u32) -> Option<(Ticket, &mut Open)> {
        let is_it = |ticket: &Ticket, open: &Open| {
            let asked = matches!(open.by, By::Owner(..)) && open.end.is_none();
            ticket.0 as u32 == low && open.peer == peer && asked
        };
        let mut open = self.open.iter_mut();
        let (ticket, open) = open.find(|(ticket, open)| is_it(ticket, open))?;
        Some((*ticket, open))
    }

    /// A peer answers no more. True if an access waited for it.
    pub fn peer_is_gone(&mut self, peer: u32, how: &str) -> bool {
        let waits = |o: &Open| o.peer == peer && o.end.is_none() && matches!(o.by, By::Owner(..));
        let all = self.open.iter().filter(|(_, open)| waits(open));
        let all: Vec<Ticket> = all.map(|(ticket, _)| *ticket).collect();
        for ticket in &all {
            let e = TransportError::new(TransportErrorKind::PeerDead, format!("rank {peer} {how}"));
            self.end(*ticket, Err(e));
        }
        !all.is_empty()
    }

    /// Where bytes of a region lie that this rank has exported.
    fn place(&self, key: &RegionKey, offset: u64, bytes: u64) -> Option<*mut u8> {
        let exported = self.exported.iter().find(|e| e.key == *key)?;
        let end = offset.checked_add(bytes)?;
        (end <= key.bytes).then(|| exported.at.wrapping_add(offset as usize))
    }
}

/// What a message asks for, in the aux of its head.
const GET: u16 = 0;
const PUT: u16 = 1;
const ADD: u16 = 2;
const SWAP: u16 = 3;
const COMPARE_SWAP: u16 = 4;
const LOAD: u16 = 5;
/// Bits of the aux that say what is asked for; the number of runs is above.
const KIND_BITS: u32 = 3;
/// In the aux of ACCESS_DONE: the owner refuses it.
const REFUSED: u16 = 1;
/// Bytes that name a run: its offset, and how many it has.
const RUN_BYTES: usize = 16;
/// Most runs of a message; the rest of the aux has room for more.
const MOST_RUNS: usize = 1024;
const _: () = assert!(MOST_RUNS <= (u16::MAX >> KIND_BITS) as usize);
/// Most bytes of a put or a get by one message, with those that name runs: an owner without room
/// for its answers keeps as many for each.
const PIECE_BYTES: usize = 32 << 10;

impl Port {
    /// Has futures woken whose accesses have ended.
    pub(crate) fn wake_ended_accesses(&mut self) {
        for waker in self.accesses.woken.drain(..) {
            self.owed.wake(Some(waker));
        }
    }
}

impl Lane {
    /// Exports memory of a window to all members.
    ///
    /// # Errors
    /// The transport cannot.
    ///
    /// # Safety
    /// As [`osier_transports::Endpoint::export_window`].
    pub unsafe fn export_window(&mut self, at: *mut u8, bytes: usize) -> Result<RegionKey> {
        // SAFETY: invariants 1 and 3: the caller's contract.
        let key = match unsafe { self.port.links.export_window(at, bytes) } {
            Ok(key) => key,
            // Messages need a name for it alone.
            Err(e) if e.kind() == TransportErrorKind::Unavailable => RegionKey {
                kind: RegionKind::Described,
                owner: self.port.own,
                base: at.expose_provenance() as u64,
                bytes: bytes as u64,
            },
            Err(e) => return Err(e.into()),
        };
        self.port.accesses.exported.push(Exported { key, at });
        Ok(key)
    }

    /// Takes back what [`Lane::export_window`] has exported.
    pub fn unexport_window(&mut self, key: &RegionKey) {
        self.port.links.unexport(key);
        let exported = &mut self.port.accesses.exported;
        if let Some(at) = exported.iter().position(|e| e.key == *key) {
            exported.swap_remove(at);
        }
    }

    /// What this rank shares with a member.
    pub fn sharing(&self, peer: u32) -> Sharing {
        self.port.links.sharing(peer)
    }

    /// Whether the system reads plain memory of all members' processes, as far as is known.
    pub fn reads_processes(&mut self) -> bool {
        let links = &mut self.port.links;
        let own = self.port.own;
        (0..self.port.peers.len() as u32).all(|peer| peer == own || links.reads_process(peer))
    }

    /// How a region of a peer's part of a window is reached.
    pub fn reach_of(&mut self, peer: u32, key: &RegionKey) -> Reached {
        let own = peer == self.port.own;
        if let Some(at) = own
            .then(|| self.port.accesses.place(key, 0, key.bytes))
            .flatten()
        {
            return Reached::At(at);
        }
        if let Some(at) = self.port.links.mapped_writable(peer, key) {
            return Reached::At(at);
        }
        match self.is_one_sided(key) {
            true => Reached::ByTransport,
            false => Reached::ByMessages,
        }
    }

    /// Whether peers use a region of this rank without its help.
    pub fn is_used_without_us(&self, key: &RegionKey) -> bool {
        let mut peers = 0..self.port.peers.len() as u32;
        self.is_one_sided(key) || peers.all(|peer| self.is_reached_by_address(peer, key))
    }

    /// Whether the transport has operations for a region.
    fn is_one_sided(&self, key: &RegionKey) -> bool {
        if key.kind == RegionKind::Described {
            return false;
        }
        let plain = key.kind == RegionKind::Process;
        let can = |c: Capabilities| c.get && c.put && c.atomics && (c.export_plain || !plain);
        self.port.links.capabilities().is_some_and(can)
    }

    /// What one access to a region takes.
    pub fn access_limits(&self, peer: u32, key: &RegionKey) -> Limits {
        if self.is_one_sided(key) {
            let can = self.port.links.capabilities();
            return Limits {
                runs: can.map_or(1, |can| can.runs),
                bytes: usize::MAX,
                name_bytes: 0,
            };
        }
        let most = self.port.links.max_payload(peer);
        let most = most.saturating_sub(RegionKey::WIRE_BYTES);
        Limits {
            runs: MOST_RUNS,
            bytes: most.clamp(RUN_BYTES + 1, PIECE_BYTES),
            name_bytes: RUN_BYTES,
        }
    }

    /// Whether a peer uses exported memory of a window by address.
    pub fn is_reached_by_address(&self, peer: u32, key: &RegionKey) -> bool {
        let sharing = self.port.links.sharing(peer);
        let mapped = key.kind == RegionKind::Window && sharing.host_memory;
        peer == self.port.own || sharing.process || mapped
    }

    /// The rank in the job of a member.
    pub fn world_rank(&self, rank: u32) -> Option<u32> {
        self.port.members.get(rank as usize).copied()
    }

    /// Whether a member has ended.
    pub fn has_ended(&self, rank: u32) -> bool {
        let peers = &self.port.peers;
        (rank as usize) < peers.len() && peers[rank as usize].dead.is_some()
    }

    /// The rank in the job of a member that has ended, if any has.
    pub fn an_ended_rank(&self) -> Option<u32> {
        if !self.any_ended() {
            return None;
        }
        let ended = self.port.peers.those(|state| state.dead.is_some());
        self.world_rank(*ended.first()?)
    }

    /// Whether a member may have ended.
    pub fn any_ended(&self) -> bool {
        self.troubles != 0
    }

    /// The ranks in the job of all members.
    pub fn members(&self) -> Arc<[u32]> {
        self.port.members.clone()
    }

    /// Begins to read runs of a peer's region, as many as [`Lane::access_limits`] says.
    ///
    /// # Errors
    /// The transport cannot, or the peer has ended.
    ///
    /// # Safety
    /// `to` is writable for the bytes of all until the access is complete, and nothing else uses
    /// it.
    pub unsafe fn begin_get(
        &mut self,
        peer: u32,
        key: &RegionKey,
        runs: &[Range<u64>],
        to: *mut u8,
    ) -> Result<Begun> {
        if !self.is_one_sided(key) {
            return self.ask(peer, (GET, key), runs, By::Owner(to, 0), &[]);
        }
        // SAFETY: invariants 1 and 3: the caller's contract.
        let begun = unsafe { self.port.links.get_runs(peer, key, runs, to) };
        self.begun("get from", peer, bytes_of(runs), begun)
    }

    /// Begins to write the bytes at `from` to runs of a peer's region.
    ///
    /// # Errors
    /// As [`Lane::begin_get`].
    ///
    /// # Safety
    /// `from` is readable for the bytes of all until the access is complete, and nobody writes
    /// them.
    pub unsafe fn begin_put(
        &mut self,
        peer: u32,
        key: &RegionKey,
        runs: &[Range<u64>],
        from: *const u8,
    ) -> Result<Begun> {
        let bytes = bytes_of(runs);
        if !self.is_one_sided(key) {
            // SAFETY: invariants 1 and 3: the caller's contract.
            let data = unsafe { std::slice::from_raw_parts(from, bytes) };
            let by = By::Owner(std::ptr::null_mut(), 0);
            return self.ask(peer, (PUT, key), runs, by, data);
        }
        // SAFETY: invariants 1 and 3: the caller's contract.
        let begun = unsafe { self.port.links.put_runs(peer, key, runs, from) };
        self.begun("put to", peer, bytes, begun)
    }

    /// Begins an atomic on eight aligned bytes of a peer's region.
    ///
    /// # Errors
    /// As [`Lane::begin_get`].
    pub fn begin_atomic(
        &mut self,
        peer: u32,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<Begun> {
        if !self.is_one_sided(key) {
            let (kind, operands) = match op {
                AtomicOp::Add(n) => (ADD, [n, 0]),
                AtomicOp::Swap(n) => (SWAP, [n, 0]),
                AtomicOp::CompareSwap { expected, new } => (COMPARE_SWAP, [expected, new]),
                AtomicOp::Load => (LOAD, [0, 0]),
            };
            let mut data = [0u8; 16];
            data[..8].copy_from_slice(&operands[0].to_le_bytes());
            data[8..].copy_from_slice(&operands[1].to_le_bytes());
            let by = By::Owner(std::ptr::null_mut(), 0);
            let word = offset..offset + size_of::<u64>() as u64;
            return self.ask(peer, (kind, key), &[word], by, &data);
        }
        let begun = self.port.links.atomic(peer, key, offset, op);
        self.begun("atomic at", peer, size_of::<u64>(), begun)
    }

    /// Asks the owner of memory for an access.
    fn ask(
        &mut self,
        peer: u32,
        (kind, key): (u16, &RegionKey),
        runs: &[Range<u64>],
        by: By,
        data: &[u8],
    ) -> Result<Begun> {
        let bytes = bytes_of(runs);
        let state = &self.port.peers[peer as usize];
        if let Some(how) = state.dead {
            let e = TransportError::new(TransportErrorKind::PeerDead, format!("it {how}"));
            return Err(self.access_failed("access to", peer, bytes, e));
        }
        let ticket = self.port.accesses.begin(peer, bytes, by);
        let aux = kind | (runs.len() as u16) << KIND_BITS;
        let head = wire::head(wire::ACCESS, aux, ticket.0 as u32, bytes as u32);
        self.post_kept_parts(peer, head, [&named(key, runs), data]);
        Ok(Begun::Under(ticket))
    }

    /// Serves an access of a peer. False: it is malformed.
    pub(crate) fn on_access(&mut self, message: &Incoming, ticket: u32, bytes: u32) -> bool {
        let served = self.serve(message, u64::from(bytes));
        let refused = served.is_none();
        let peer = message.peer;
        match served {
            Some(Served::Data(runs)) => self.answer(peer, ticket, &runs, bytes as usize),
            Some(Served::Value(value)) => {
                let head = wire::head(wire::ACCESS_DONE, 0, ticket, 0);
                self.post_kept(peer, head, &value.to_le_bytes());
            }
            None => {
                let head = wire::head(wire::ACCESS_DONE, REFUSED, ticket, 0);
                self.post_kept(peer, head, &0u64.to_le_bytes());
            }
        }
        !refused
    }

    /// Sends the bytes of a get, one run behind the other, in pieces.
    fn answer(&mut self, peer: u32, ticket: u32, runs: &[Place], bytes: usize) {
        let most = self.port.links.max_payload(peer).max(1);
        let mut runs = runs.iter().copied();
        // What is left of the run that was begun.
        let mut open = (std::ptr::null_mut::<u8>(), 0);
        let mut left = bytes;
        loop {
            let n = left.min(most);
            let (mut parts, mut room) = (Vec::new(), n);
            while room > 0 {
                if open.1 == 0 {
                    let Some(next) = runs.next() else { break };
                    open = next;
                }
                let now = open.1.min(room);
                parts.push((open.0, now));
                open = (open.0.wrapping_add(now), open.1 - now);
                room -= now;
            }
            let head = wire::head(wire::ACCESS_DATA, 0, ticket, 0);
            self.post_filled(peer, head, n, |to| {
                let mut done = 0;
                for (from, bytes) in &parts {
                    // SAFETY: invariants 3 and 4: inside of both.
                    unsafe { std::ptr::copy(from.cast_const(), to.wrapping_add(done), *bytes) };
                    done += bytes;
                }
            });
            left -= n;
            if left == 0 {
                break;
            }
        }
    }

    /// Does what a peer asks for, if it is for memory that it may use.
    fn serve(&mut self, message: &Incoming, bytes: u64) -> Option<Served> {
        // SAFETY: invariant 4: not released yet.
        let payload = unsafe { message.payload.to_vec() };
        let (key, rest) = payload.split_at_checked(RegionKey::WIRE_BYTES)?;
        let key = RegionKey::from_wire(key)?;
        let (kind, runs) = (
            message.head.aux & ((1 << KIND_BITS) - 1),
            usize::from(message.head.aux >> KIND_BITS),
        );
        let (runs, data) = rest.split_at_checked(runs * RUN_BYTES)?;
        let (mut places, mut sum) = (Vec::new(), 0u64);
        for run in runs.chunks_exact(RUN_BYTES) {
            let (offset, n) = (number(&run[..8]), number(&run[8..]));
            let at = (self.port.accesses).place(&key, offset, n)?;
            sum = sum.checked_add(n)?;
            places.push((at, usize::try_from(n).ok()?));
        }
        if sum != bytes {
            return None;
        }
        match kind {
            GET if data.is_empty() => return Some(Served::Data(places)),
            PUT if data.len() as u64 == bytes => {
                let mut done = 0;
                for (at, n) in places {
                    let from = data[done..done + n].as_ptr();
                    // SAFETY: invariant 3, and a part of the payload.
                    unsafe { std::ptr::copy_nonoverlapping(from, at, n) };
                    done += n;
                }
                return Some(Served::Value(0));
            }
            _ => {}
        }
        let (data, [(at, 8)]): (&[u8; 16], _) = (data.try_into().ok()?, &places[..]) else {
            return None;
        };
        let (one, two) = (number(&data[..8]), number(&data[8..]));
        if !at.addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: invariant 3: aligned, and used by atomics.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        Some(Served::Value(match kind {
            ADD => word.fetch_add(one, Ordering::AcqRel),
            SWAP => word.swap(one, Ordering::AcqRel),
            LOAD => word.load(Ordering::Acquire),
            COMPARE_SWAP => word
                .compare_exchange(one, two, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|before| before),
            _ => return None,
        }))
    }

    /// Bytes of a get. False: they are malformed.
    pub(crate) fn on_access_data(&mut self, message: &Incoming, ticket: u32) -> bool {
        let Some((ticket, open)) = self.port.accesses.asked(message.peer, ticket) else {
            return false;
        };
        let By::Owner(to, got) = &mut open.by else {
            return false;
        };
        let n = message.payload.len();
        if to.is_null() || n > open.bytes - *got {
            return false;
        }
        let at = to.wrapping_add(*got);
        // SAFETY: invariants 1 and 4: inside the memory of the get.
        unsafe { std::ptr::copy_nonoverlapping(message.payload.as_ptr(), at, n) };
        *got += n;
        if *got == open.bytes {
            self.port.accesses.end(ticket, Ok(0));
            self.port.wake_ended_accesses();
            self.port.finished = true;
        }
        true
    }

    /// The end of an access. False: it is malformed.
    pub(crate) fn on_access_done(&mut self, message: &Incoming, ticket: u32) -> bool {
        let mut value = [0u8; 8];
        if message.payload.len() != value.len() {
            return false;
        }
        let from = message.payload.as_ptr();
        // SAFETY: invariant 4: as long as the array.
        unsafe { std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), value.len()) };
        let Some((ticket, _)) = self.port.accesses.asked(message.peer, ticket) else {
            return false;
        };
        let end = match message.head.aux {
            REFUSED => Err(TransportError::new(
                TransportErrorKind::Invalid,
                "its owner has no such memory in the window",
            )),
            _ => Ok(u64::from_le_bytes(value)),
        };
        self.port.accesses.end(ticket, end);
        self.port.wake_ended_accesses();
        self.port.finished = true;
        true
    }

    fn begun(
        &mut self,
        what: &str,
        peer: u32,
        bytes: usize,
        begun: std::result::Result<OneSided, TransportError>,
    ) -> Result<Begun> {
        match begun {
            Ok(OneSided::Done(value)) => Ok(Begun::Done(value)),
            Ok(OneSided::Pending(number)) => {
                let by = By::Transport(number);
                Ok(Begun::Under(self.port.accesses.begin(peer, bytes, by)))
            }
            Err(e) => Err(self.access_failed(what, peer, bytes, e)),
        }
    }

    #[cold]
    fn access_failed(&self, what: &str, peer: u32, bytes: usize, e: TransportError) -> Error {
        let by = self.port.links.transport(peer);
        Error::from(e).context(format_args!("{what} rank {peer} ({bytes} bytes, {by})"))
    }

    /// Wakes a future when an access ends that is under way.
    pub fn wake_at_end(&mut self, ticket: Ticket, waker: Waker) {
        if let Some(open) = self.port.accesses.open.get_mut(&ticket)
            && open.end.is_none()
        {
            let before = open.waker.replace(waker);
            self.port.owed.drop(before.map(Foreign::Waker));
        }
    }

    /// The end of an access; none while it is under way.
    pub fn take_access(&mut self, ticket: Ticket) -> Option<Result<u64>> {
        let open = self.port.accesses.open.get(&ticket)?;
        let (peer, bytes) = (open.peer, open.bytes);
        if open.end.is_none() {
            if listens() {
                hear(Asked {
                    peer: self.world_rank(peer),
                    context: self.port.context,
                    bytes: bytes as u64,
                    ..Asked::of(Operation::Access)
                });
            }
            return None;
        }
        let end = self.port.accesses.open.remove(&ticket)?.end?;
        Some(end.map_err(|e| self.access_failed("access to", peer, bytes, e)))
    }
}

/// What serving an access has to answer.
enum Served {
    Data(Vec<Place>),
    Value(u64),
}

/// Bytes of this rank, and how many.
type Place = (*mut u8, usize);

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn bytes_of(runs: &[Range<u64>]) -> usize {
    runs.iter().map(|run| (run.end - run.start) as usize).sum()
}

/// Which memory a message is about.
fn named(key: &RegionKey, runs: &[Range<u64>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RegionKey::WIRE_BYTES + runs.len() * RUN_BYTES);
    bytes.extend(key.to_wire());
    for run in runs {
        bytes.extend(run.start.to_le_bytes());
        bytes.extend((run.end - run.start).to_le_bytes());
    }
    bytes
}
