//! What a rank keeps of its peers on other hosts: connections, channels, regions, requests.
//!
//! ```text
//! socket --> scratch --> message of the channel that is polled: handed out in place
//!                        of another channel: copied to its queue
//!                        piece of a region: read from the socket to where it was wanted
//! ```
//!
//! # Invariants
//! 1. While a message is lent from the scratch buffer, that is neither read into nor moved.
//! 2. The memory of a request is written between [`State::get`] and its completion alone;
//!    what comes for a channel that was dropped is read to nowhere.
//! 3. A peer that has ended stays so: no connection of it is taken, nothing of it counts.
//! 4. The memory of a region is read between [`State::export`] and [`State::withdraw`] alone.

use super::ends::{Cause, Ends, Record, goes_on};
use super::frame::{FrameKind, GET_BYTES, GetBody, HEAD_BYTES, Head, MESSAGE_BYTES, Refusal};
use super::hello::Verdict;
use super::map::HostMap;
use super::news::is_silence;
use super::out::{Out, Serve};
use crate::contract::{
    AmHead, Peer, PostError, RegionKey, RegionKind, TransportError, TransportErrorKind,
};
use crate::death::Death;
use crate::spans::Spans;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, sendmsg};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Bytes of messages of a channel, with their heads, that a peer may have sent and this rank not
/// released.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Bytes read from a socket at once.
const SCRATCH_BYTES: usize = 128 << 10;
/// Connections up to this number are read in turn, without asking which has something.
const READ_IN_TURN: usize = 4;
/// Reads of one poll that find no message for it.
const READS: usize = 8;
/// Bytes for channels that this rank has not opened yet, of one peer.
const EARLY_BYTES: usize = 64 << 20;
/// Requests of one peer under way.
const MOST_SERVED: usize = 1 << 16;
/// In the data of an event that is no connection's.
pub(super) const NOTE: u64 = u64::MAX;

/// How a peer is reached.
enum Link {
    /// Nobody has asked for it.
    Unused,
    /// It is being called.
    Dialing,
    Open(Stream),
    Ended(Death),
}

struct Stream {
    socket: TcpStream,
    /// Number of the next frame that comes.
    sequence: u32,
    /// The begin of a frame whose end has not come.
    partial: Vec<u8>,
    /// A piece whose rest is read to where it belongs.
    direct: Option<(u64, usize)>,
    /// Something has come by it.
    heard: bool,
    /// It is to be told when there is room.
    watched: bool,
    /// It has failed, and the exchange of news is to say who has ended.
    lost: bool,
}

/// A peer on another host.
struct Remote {
    rank: u32,
    link: Link,
    out: Out,
    /// Requests of ours that it has not answered.
    asked: usize,
    /// Bytes of its messages for channels that this rank has not opened.
    early_bytes: usize,
    /// Why its connection ended, or could not be made.
    why: String,
}

/// A peer as a member of a channel.
struct Member {
    peer: Peer,
    /// Bytes that it has not given back.
    sent: usize,
    /// Bytes to give back to it.
    owed: usize,
    /// Bytes of it that came and were not given back, those owed included: at most
    /// [`WINDOW_BYTES`].
    held: usize,
    /// Messages of it in the queue.
    queued: usize,
    closed: bool,
}

/// A message that waits to be polled.
struct Queued {
    slot: usize,
    head: AmHead,
    payload: Vec<u8>,
}

struct Channel {
    members: Arc<[u32]>,
    /// By slot of the remote.
    by_slot: HashMap<usize, Member>,
    queue: VecDeque<Queued>,
    completions: VecDeque<(u64, Result<u64, TransportError>)>,
    /// A message that is out.
    current: Option<Current>,
}

struct Current {
    slot: usize,
    payload: Payload,
}

enum Payload {
    Owned(Vec<u8>),
    /// Bytes of the scratch buffer.
    Lent(usize),
}

struct Region {
    at: *const u8,
    bytes: usize,
    /// Who may read it: one peer, or all.
    reader: Option<u32>,
}

struct Request {
    slot: usize,
    channel: u64,
    /// Where bytes go; null: nowhere.
    to: *mut u8,
    left: usize,
}

struct Scratch {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    slot: usize,
    lent: bool,
}

/// A message that a channel polled.
pub(super) struct Polled {
    pub peer: Peer,
    pub head: AmHead,
    pub payload: *const u8,
    pub bytes: usize,
}

/// Counts of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were closed as what came by them was malformed.
    pub malformed: u64,
    /// Handshakes that failed: other programs, jobs, keys, versions, and silence.
    pub refused: u64,
    /// Connections of ranks that had been declared dead.
    pub fenced: u64,
    /// Bytes sent, with heads.
    pub sent_bytes: u64,
    /// Bytes received, with heads.
    pub received_bytes: u64,
}

pub(super) struct State {
    rank: u32,
    remotes: Vec<Remote>,
    slots: HashMap<u32, usize>,
    /// Slots of open connections.
    open: Vec<usize>,
    cursor: usize,
    ready: VecDeque<usize>,
    /// Slots whose sockets had no room.
    blocked: Vec<usize>,
    channels: HashMap<u64, Channel>,
    early: HashMap<u64, Vec<Queued>>,
    /// Channels that peers have closed before this rank opened them.
    early_closed: HashMap<u64, Vec<usize>>,
    closed: Spans,
    regions: HashMap<u64, Region>,
    next_region: u64,
    requests: HashMap<u64, Request>,
    next_request: u64,
    scratch: Scratch,
    pub epoll: Epoll,
    /// Changes when a peer ends.
    pub epoch: u64,
    /// Which ranks of the job have ended, connected or not.
    pub ends: Ends,
    /// What this rank alone knows of ends; true if it is sure, as of one that it has cut off
    /// itself.
    pub reports: Vec<(u32, Cause, bool)>,
    /// Where ranks are.
    map: Option<HostMap>,
    /// Why all others go on without this rank.
    apart: Option<String>,
    /// This rank leaves the job.
    leaves: bool,
    pub counts: NetCounts,
    /// Peers to be called.
    pub wanted: Vec<u32>,
}

// SAFETY: invariants 2 and 4: addresses that their owners keep, tied to no thread.
unsafe impl Send for State {}

fn no_peer(peer: Peer, of: usize) -> TransportError {
    TransportError::new(
        TransportErrorKind::Invalid,
        format!("no peer {peer} among {of}"),
    )
}

impl Stream {
    /// It has failed: it is neither read nor written any more, and wakes nobody.
    fn lose(&mut self, epoll: &Epoll) {
        self.lost = true;
        // A socket that failed may be forgotten already.
        let _ = epoll.delete(&self.socket);
    }
}

impl Remote {
    fn ended(&self) -> Option<TransportError> {
        let Link::Ended(how) = self.link else {
            return None;
        };
        let kind = match how {
            Death::Finalized => TransportErrorKind::PeerClosed,
            _ => TransportErrorKind::PeerDead,
        };
        let why = match self.why.is_empty() {
            true => String::new(),
            false => format!(": {}", self.why),
        };
        Some(TransportError::new(
            kind,
            format!("rank {} {how}{why}", self.rank),
        ))
    }
}

impl State {
    pub fn new(rank: u32, epoll: Epoll) -> Self {
        Self {
            rank,
            remotes: Vec::new(),
            slots: HashMap::new(),
            open: Vec::new(),
            cursor: 0,
            ready: VecDeque::new(),
            blocked: Vec::new(),
            channels: HashMap::new(),
            early: HashMap::new(),
            early_closed: HashMap::new(),
            closed: Spans::default(),
            regions: HashMap::new(),
            next_region: 1,
            requests: HashMap::new(),
            next_request: 1,
            scratch: Scratch {
                bytes: vec![0; SCRATCH_BYTES].into(),
                begin: 0,
                end: 0,
                slot: 0,
                lent: false,
            },
            epoll,
            epoch: 0,
            ends: Ends::default(),
            reports: Vec::new(),
            map: None,
            apart: None,
            leaves: false,
            counts: NetCounts::default(),
            wanted: Vec::new(),
        }
    }

    /// Learns of ends of all ranks from now on.
    pub fn attend(&mut self, map: HostMap) {
        self.ends = Ends::new(map.ranks() as u32);
        self.map = Some(map);
    }

    fn slot(&mut self, rank: u32) -> usize {
        if let Some(slot) = self.slots.get(&rank) {
            return *slot;
        }
        let how = self.death(rank);
        self.remotes.push(Remote {
            rank,
            link: how.map_or(Link::Unused, Link::Ended),
            out: Out::default(),
            asked: 0,
            early_bytes: 0,
            why: self.why(rank).unwrap_or_default(),
        });
        self.slots.insert(rank, self.remotes.len() - 1);
        self.remotes.len() - 1
    }

    /// Opens a channel.
    pub fn open(&mut self, number: u64, members: Arc<[u32]>) {
        let mut channel = Channel {
            members,
            by_slot: HashMap::new(),
            queue: VecDeque::new(),
            completions: VecDeque::new(),
            current: None,
        };
        for message in self.early.remove(&number).unwrap_or_default() {
            let remote = &mut self.remotes[message.slot];
            remote.early_bytes -= message.payload.len();
            match channel.member(message.slot, remote.rank) {
                Some(member) => {
                    member.queued += 1;
                    member.held += message.payload.len() + HEAD_BYTES;
                    channel.queue.push_back(message);
                }
                None => self.counts.malformed += 1,
            }
        }
        for slot in self.early_closed.remove(&number).unwrap_or_default() {
            if let Some(member) = channel.member(slot, self.remotes[slot].rank) {
                member.closed = true;
            }
        }
        self.channels.insert(number, channel);
    }

    /// Drops a channel, and tells those that it was used with.
    pub fn close(&mut self, number: u64) {
        let Some(mut channel) = self.channels.remove(&number) else {
            return;
        };
        if let Some(current) = channel.current.take() {
            self.give_back(&current.payload);
        }
        self.closed.insert(number);
        for request in self.requests.values_mut() {
            if request.channel == number {
                // Invariant 2.
                request.to = std::ptr::null_mut();
            }
        }
        for (slot, member) in &channel.by_slot {
            let open = matches!(self.remotes[*slot].link, Link::Open(_) | Link::Dialing);
            if open && !member.closed {
                self.say(*slot, Head::control(FrameKind::Close, number, 0), &[]);
            }
        }
    }

    /// Sends a frame that needs no room.
    fn say(&mut self, slot: usize, head: Head, payload: &[u8]) {
        let remote = &mut self.remotes[slot];
        if matches!(remote.link, Link::Open(_) | Link::Dialing) {
            remote.out.push(head, payload);
            self.flush(slot);
        }
    }

    /// Posts a message.
    pub fn post(
        &mut self,
        channel: u64,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError> {
        let rank = self.rank_of(channel, peer).map_err(PostError::Failed)?;
        if bytes > MESSAGE_BYTES {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::Invalid,
                format!(
                    "posting {bytes} bytes to rank {rank}: a message has at most {MESSAGE_BYTES}"
                ),
            )));
        }
        let slot = self.slot(rank);
        let remote = &mut self.remotes[slot];
        if let Some(e) = remote.ended() {
            return Err(PostError::Failed(e));
        }
        let members = self.channels.get_mut(&channel);
        let Some(member) = members.and_then(|c| c.member_at(slot, peer)) else {
            return Err(PostError::Failed(no_peer(peer, 0)));
        };
        if member.closed {
            return Err(PostError::Failed(TransportError::new(
                TransportErrorKind::PeerClosed,
                format!("rank {rank} has dropped the communicator"),
            )));
        }
        if remote.out.is_full() || member.sent + bytes + HEAD_BYTES > WINDOW_BYTES {
            return Err(PostError::Full);
        }
        member.sent += bytes + HEAD_BYTES;
        let head = Head {
            kind: FrameKind::Message,
            am: head,
            channel,
            sequence: 0,
            bytes: bytes as u32,
        };
        remote.out.push_with(head, fill);
        self.reach(slot);
        Ok(())
    }

    /// Has what waits for a peer leave, or the peer be called.
    fn reach(&mut self, slot: usize) {
        let remote = &mut self.remotes[slot];
        if matches!(remote.link, Link::Unused) {
            remote.link = Link::Dialing;
            self.wanted.push(remote.rank);
        } else {
            self.flush(slot);
        }
    }

    fn rank_of(&self, channel: u64, peer: Peer) -> Result<u32, TransportError> {
        let channel = self.channels.get(&channel);
        let members = channel.map_or(0, |c| c.members.len());
        let rank = channel.and_then(|c| c.members.get(peer as usize));
        rank.copied()
            .filter(|rank| *rank != self.rank)
            .ok_or_else(|| no_peer(peer, members))
    }

    /// Writes what the socket takes.
    fn flush(&mut self, slot: usize) {
        let remote = &mut self.remotes[slot];
        let Link::Open(stream) = &mut remote.link else {
            return;
        };
        if stream.lost {
            return;
        }
        if !stream.heard {
            // Who has called may still think better of it, and calls or is called again.
            return;
        }
        while !remote.out.is_empty() {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let parts = remote.out.parts();
            let fd = stream.socket.as_raw_fd();
            match sendmsg::<()>(fd, &parts, &[], flags, None) {
                Ok(n) => {
                    remote.out.leave(n);
                    self.counts.sent_bytes += n as u64;
                }
                Err(nix::Error::EAGAIN) => {
                    if !self.blocked.contains(&slot) {
                        self.blocked.push(slot);
                        watch(&self.epoll, stream, slot, true);
                    }
                    return;
                }
                Err(nix::Error::EINTR) => {}
                Err(e) if is_silence(&e.into()) && self.ends.are_exchanged() => {
                    stream.lose(&self.epoll);
                    return self.reports.push((remote.rank, Cause::Silent, false));
                }
                Err(e) => {
                    // What it has sent before is read first; the reader finds the end.
                    let _ = stream.socket.shutdown(std::net::Shutdown::Write);
                    remote.why = format!("sending: {}", std::io::Error::from(e));
                    remote.out = Out::default();
                    return;
                }
            }
        }
        self.blocked.retain(|one| *one != slot);
    }

    /// Tries again what had no room.
    fn flush_blocked(&mut self) {
        for at in (0..self.blocked.len()).rev() {
            // The flush may have taken several away.
            if let Some(slot) = self.blocked.get(at).copied() {
                self.flush(slot);
            }
        }
    }

    /// Next message of a channel, in place where that is possible; [`State::release`] gives it
    /// back.
    /// Sockets are only read if `reads` says so.
    pub fn poll(&mut self, channel: u64, reads: bool) -> Option<Polled> {
        let own = self.channels.get_mut(&channel)?;
        if own.current.is_some() {
            return None;
        }
        if let Some(message) = own.queue.pop_front() {
            let member = own.by_slot.get_mut(&message.slot)?;
            member.queued -= 1;
            let polled = Polled {
                peer: member.peer,
                head: message.head,
                payload: message.payload.as_ptr(),
                bytes: message.payload.len(),
            };
            own.current = Some(Current {
                slot: message.slot,
                payload: Payload::Owned(message.payload),
            });
            return Some(polled);
        }
        self.progress(channel, reads)
    }

    /// Sends and receives what can be, up to a message of a channel.
    fn progress(&mut self, channel: u64, reads: bool) -> Option<Polled> {
        if reads {
            self.flush_blocked();
        }
        for _ in 0..READS {
            if self.scratch.lent {
                break; // invariant 1
            }
            while let Some(head) = self.next_frame() {
                if let Some(polled) = self.take(head, channel) {
                    return Some(polled);
                }
            }
            if !reads || !self.read() {
                break;
            }
        }
        None
    }

    /// The head of the next whole frame in the scratch buffer, whose payload lies at its begin;
    /// of a piece, whatever of it is there. What is left of a frame is kept.
    fn next_frame(&mut self) -> Option<Head> {
        let scratch = &mut self.scratch;
        let there = &scratch.bytes[scratch.begin..scratch.end];
        if there.is_empty() {
            return None;
        }
        let slot = scratch.slot;
        let Link::Open(stream) = &mut self.remotes[slot].link else {
            scratch.begin = scratch.end;
            return None;
        };
        let Some(head) = there.first_chunk::<HEAD_BYTES>() else {
            stream.partial.extend_from_slice(there);
            scratch.begin = scratch.end;
            return None;
        };
        let head = match Head::of_wire(head, stream.sequence) {
            Ok(head) => head,
            Err(e) => {
                self.malformed(slot, e);
                return None;
            }
        };
        let whole = HEAD_BYTES + head.bytes as usize;
        if head.kind != FrameKind::Piece && there.len() < whole {
            stream.partial.extend_from_slice(there);
            scratch.begin = scratch.end;
            return None;
        }
        stream.sequence = stream.sequence.wrapping_add(1);
        scratch.begin += HEAD_BYTES;
        Some(head)
    }

    /// What came by a connection is no correct peer's.
    #[cold]
    fn malformed(&mut self, slot: usize, what: impl std::fmt::Display) {
        self.counts.malformed += 1;
        self.end(
            slot,
            Death::Disconnected,
            &format!("what it sent is malformed: {what}"),
        );
    }

    /// Handles a frame whose payload begins the scratch buffer.
    fn take(&mut self, head: Head, polled: u64) -> Option<Polled> {
        let slot = self.scratch.slot;
        let bytes = head.bytes as usize;
        match head.kind {
            FrameKind::Message => return self.take_message(head, polled),
            FrameKind::Piece => self.take_piece(head),
            FrameKind::Credit => {
                // Of a channel that is closed here nobody misses it.
                if let Some(channel) = self.channels.get_mut(&head.channel) {
                    let back = usize::try_from(head.am.arg).unwrap_or(usize::MAX);
                    let member = channel.by_slot.get_mut(&slot);
                    let left = member.as_ref().and_then(|m| m.sent.checked_sub(back));
                    match member.zip(left) {
                        Some((member, left)) => member.sent = left,
                        None => self.malformed(slot, "more credit than was used"),
                    }
                }
            }
            FrameKind::Get => {
                let payload = &self.scratch.bytes[self.scratch.begin..][..bytes];
                if let Some(body) = GetBody::of_wire(payload) {
                    self.scratch.begin += bytes;
                    self.serve(slot, head.channel, head.am.arg, body);
                }
            }
            FrameKind::Refused => {
                let number = head.am.arg;
                match self.requests.get(&number) {
                    Some(request) if request.slot == slot => {
                        let (kind, what) = match Refusal::of_wire(head.am.aux) {
                            Refusal::Withdrawn => (TransportErrorKind::Malformed, "is not there"),
                            Refusal::Outside => (TransportErrorKind::Invalid, "is shorter"),
                        };
                        let rank = self.remotes[slot].rank;
                        let text = format!("a region of rank {rank} {what}");
                        self.ends_request(number, Err(TransportError::new(kind, text)));
                    }
                    _ => self.malformed(slot, "a refusal of nothing"),
                }
            }
            FrameKind::Close => match self.channels.get_mut(&head.channel) {
                Some(channel) => {
                    if let Some(member) = channel.member(slot, self.remotes[slot].rank) {
                        member.closed = true;
                    }
                }
                None if self.closed.contains(head.channel) => {}
                None => self
                    .early_closed
                    .entry(head.channel)
                    .or_default()
                    .push(slot),
            },
            FrameKind::Leave => {
                self.end(slot, Death::Finalized, "");
            }
        }
        None
    }

    fn take_message(&mut self, head: Head, polled: u64) -> Option<Polled> {
        let (slot, bytes) = (self.scratch.slot, head.bytes as usize);
        let begin = self.scratch.begin;
        let rank = self.remotes[slot].rank;
        let Some(channel) = self.channels.get_mut(&head.channel) else {
            let payload = self.scratch.bytes[begin..begin + bytes].to_vec();
            self.scratch.begin += bytes;
            self.take_early(slot, head, payload);
            return None;
        };
        let is_free = channel.current.is_none();
        let Some(member) = channel.member(slot, rank) else {
            self.malformed(slot, format!("a message of channel {:x}", head.channel));
            return None;
        };
        member.held += bytes + HEAD_BYTES;
        if member.held > WINDOW_BYTES {
            self.malformed(slot, "messages without credit");
            return None;
        }
        if polled == head.channel && member.queued == 0 && is_free {
            let peer = member.peer;
            channel.current = Some(Current {
                slot,
                payload: Payload::Lent(bytes),
            });
            self.scratch.lent = true;
            return Some(Polled {
                peer,
                head: head.am,
                payload: self.scratch.bytes[begin..].as_ptr(),
                bytes,
            });
        }
        member.queued += 1;
        channel.queue.push_back(Queued {
            slot,
            head: head.am,
            payload: self.scratch.bytes[begin..begin + bytes].to_vec(),
        });
        self.scratch.begin += bytes;
        None
    }

    /// A message of a channel that this rank has not opened, or has closed.
    fn take_early(&mut self, slot: usize, head: Head, payload: Vec<u8>) {
        if self.closed.contains(head.channel) {
            return self.say(slot, Head::control(FrameKind::Close, head.channel, 0), &[]);
        }
        let remote = &mut self.remotes[slot];
        remote.early_bytes += payload.len();
        if remote.early_bytes > EARLY_BYTES {
            return self.malformed(slot, "too many messages of channels that are not open");
        }
        self.early.entry(head.channel).or_default().push(Queued {
            slot,
            head: head.am,
            payload,
        });
    }

    fn take_piece(&mut self, head: Head) {
        let (slot, bytes) = (self.scratch.slot, head.bytes as usize);
        let number = head.am.arg;
        let request = self.requests.get(&number);
        if request.is_none_or(|r| r.slot != slot || r.left < bytes) {
            return self.malformed(slot, "bytes that nobody has asked for");
        }
        let there = bytes.min(self.scratch.end - self.scratch.begin);
        self.arrived(number, there, true);
        self.scratch.begin += there;
        if there < bytes
            && let Link::Open(stream) = &mut self.remotes[slot].link
        {
            stream.direct = Some((number, bytes - there));
        }
    }

    /// Bytes of a request are there: in the scratch buffer, or where they belong.
    fn arrived(&mut self, number: u64, bytes: usize, in_scratch: bool) {
        let Some(request) = self.requests.get_mut(&number) else {
            return;
        };
        if !request.to.is_null() {
            if in_scratch {
                let from = self.scratch.bytes[self.scratch.begin..][..bytes].as_ptr();
                // SAFETY: invariant 2: at least as many bytes are left of the request's memory.
                unsafe { std::ptr::copy_nonoverlapping(from, request.to, bytes) };
            }
            request.to = request.to.wrapping_add(bytes);
        }
        request.left -= bytes;
        if request.left == 0 {
            self.ends_request(number, Ok(0));
        }
    }

    fn ends_request(&mut self, number: u64, result: Result<u64, TransportError>) {
        let Some(request) = self.requests.remove(&number) else {
            return;
        };
        self.remotes[request.slot].asked -= 1;
        if let Some(channel) = self.channels.get_mut(&request.channel) {
            channel.completions.push_back((number, result));
        }
    }

    /// Reads from one socket. False: none has anything.
    fn read(&mut self) -> bool {
        if self.open.len() <= READ_IN_TURN {
            for _ in 0..self.open.len() {
                self.cursor = (self.cursor + 1) % self.open.len();
                let slot = self.open[self.cursor];
                if self.read_from(slot) {
                    return true;
                }
                if self.open.is_empty() {
                    break;
                }
            }
            return false;
        }
        if self.ready.is_empty() {
            let mut events = [EpollEvent::empty(); 32];
            let n = self
                .epoll
                .wait(&mut events, EpollTimeout::ZERO)
                .unwrap_or(0);
            let of = events[..n].iter().filter(|event| event.data() != NOTE);
            self.ready.extend(of.map(|event| event.data() as usize));
        }
        while let Some(slot) = self.ready.pop_front() {
            if self.read_from(slot) {
                return true;
            }
        }
        false
    }

    /// Reads from a socket: the rest of a piece to where it belongs, and whatever follows to the
    /// scratch buffer, which is empty. True if anything has come, its end included.
    fn read_from(&mut self, slot: usize) -> bool {
        let remote = &mut self.remotes[slot];
        let asked = remote.asked > 0;
        let Link::Open(stream) = &mut remote.link else {
            return false;
        };
        if stream.lost {
            return false;
        }
        let scratch = &mut self.scratch;
        scratch.slot = slot;
        scratch.begin = 0;
        scratch.end = stream.partial.len();
        scratch.bytes[..scratch.end].copy_from_slice(&stream.partial);
        // Where a piece is due, no more than a head is read ahead of it.
        let most = match asked {
            false => scratch.bytes.len(),
            true => match scratch.bytes[..scratch.end].first_chunk::<HEAD_BYTES>() {
                None => HEAD_BYTES,
                Some(head) => {
                    let head = Head::of_wire(head, stream.sequence);
                    HEAD_BYTES + head.map_or(0, |head| head.bytes as usize)
                }
            },
        };
        let (number, left) = stream.direct.unwrap_or_default();
        let request = self.requests.get(&number).filter(|_| left > 0);
        let to = request.map_or(std::ptr::null_mut(), |request| request.to);
        let result = match (left, to.is_null()) {
            (0, _) => stream.socket.read(&mut scratch.bytes[scratch.end..most]),
            // Nobody wants the rest.
            (_, true) => {
                let some = left.min(scratch.bytes.len());
                stream.socket.read(&mut scratch.bytes[..some])
            }
            (_, false) => {
                // SAFETY: invariant 2: as many bytes are left of the request's memory.
                let room = unsafe { std::slice::from_raw_parts_mut(to, left) };
                let parts = &mut [
                    IoSliceMut::new(room),
                    IoSliceMut::new(&mut scratch.bytes[..most]),
                ];
                stream.socket.read_vectored(parts)
            }
        };
        if !matches!(result, Ok(1..)) {
            // What is partial stays where it was.
            scratch.end = 0;
        }
        let n = match result {
            Ok(0) => {
                let withdrawn = !stream.heard && remote.why.is_empty();
                if !withdrawn && self.ends.are_exchanged() {
                    // Either may be dead for the others: the exchange of news decides.
                    stream.lose(&self.epoll);
                    self.reports.push((remote.rank, Cause::Lost, false));
                    return false;
                }
                let why = match remote.why.is_empty() {
                    true => "it closed the connection".to_owned(),
                    false => remote.why.clone(),
                };
                match withdrawn {
                    true => self.forget(slot),
                    false => self.end(slot, Death::Disconnected, &why),
                }
                return true;
            }
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            Err(e) if e.kind() == ErrorKind::Interrupted => return true,
            Err(e) if self.ends.are_exchanged() => {
                stream.lose(&self.epoll);
                remote.why = format!("receiving: {e}");
                let cause = match is_silence(&e) {
                    true => Cause::Silent,
                    false => Cause::Lost,
                };
                self.reports.push((remote.rank, cause, false));
                return false;
            }
            Err(e) => {
                self.end(slot, Death::Disconnected, &format!("receiving: {e}"));
                return true;
            }
        };
        let first = !std::mem::replace(&mut stream.heard, true);
        self.counts.received_bytes += n as u64;
        stream.partial.clear();
        if left == 0 {
            scratch.end += n;
            if first {
                self.flush(slot);
            }
            return true;
        }
        let of_piece = n.min(left);
        stream.direct = (of_piece < left).then_some((number, left - of_piece));
        scratch.end = n - of_piece;
        self.arrived(number, of_piece, false);
        true
    }

    /// Gives back the message that a channel has out.
    pub fn release(&mut self, channel: u64) {
        let Some(own) = self.channels.get_mut(&channel) else {
            return;
        };
        let Some(current) = own.current.take() else {
            return;
        };
        let bytes = match &current.payload {
            Payload::Owned(payload) => payload.len(),
            Payload::Lent(bytes) => *bytes,
        };
        let mut back = 0;
        if let Some(member) = own.by_slot.get_mut(&current.slot) {
            member.owed += bytes + HEAD_BYTES;
            if member.owed >= WINDOW_BYTES / 2 {
                back = std::mem::take(&mut member.owed);
                member.held -= back;
            }
        }
        self.give_back(&current.payload);
        if back > 0 {
            let head = Head::control(FrameKind::Credit, channel, back as u64);
            self.say(current.slot, head, &[]);
        }
    }

    fn give_back(&mut self, payload: &Payload) {
        if let Payload::Lent(bytes) = payload {
            self.scratch.lent = false;
            self.scratch.begin += bytes;
        }
    }

    /// Announces memory that a peer, or all, may read.
    pub fn export(&mut self, at: *const u8, bytes: usize, reader: Option<u32>) -> RegionKey {
        let number = self.next_region;
        self.next_region += 1;
        self.regions.insert(number, Region { at, bytes, reader });
        RegionKey {
            kind: RegionKind::Network,
            owner: self.rank,
            base: number,
            bytes: bytes as u64,
        }
    }

    /// The world rank of a peer that may be the reader of a region.
    pub fn reader(&self, channel: u64, peer: Peer) -> Result<u32, TransportError> {
        self.rank_of(channel, peer)
    }

    /// Takes a region back: its memory is the caller's again.
    pub fn withdraw(&mut self, number: u64) {
        if self.regions.remove(&number).is_some() {
            for slot in 0..self.remotes.len() {
                self.remotes[slot].out.withdraw(number);
            }
        }
    }

    fn serve(&mut self, slot: usize, channel: u64, number: u64, body: GetBody) {
        let remote = &mut self.remotes[slot];
        let region = self.regions.get(&body.region);
        let region = region.filter(|region| region.reader.is_none_or(|r| r == remote.rank));
        let Some(region) = region else {
            remote.out.refuse(channel, number, Refusal::Withdrawn);
            return self.flush(slot);
        };
        let end = body.offset.checked_add(body.bytes);
        if end.is_none_or(|end| end > region.bytes as u64) || body.bytes == 0 {
            remote.out.refuse(channel, number, Refusal::Outside);
            return self.flush(slot);
        }
        if remote.out.requests() >= MOST_SERVED {
            return self.malformed(slot, "too many requests");
        }
        remote.out.serve(Serve {
            number,
            region: body.region,
            channel,
            at: region.at.wrapping_add(body.offset as usize),
            left: body.bytes as usize,
        });
        self.flush(slot);
    }

    /// Asks for bytes of a peer's region.
    ///
    /// # Errors
    /// The key is of no region of that peer, or the peer has ended.
    pub fn get(
        &mut self,
        channel: u64,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<Option<u64>, TransportError> {
        let rank = self.rank_of(channel, peer)?;
        if key.kind != RegionKind::Network || key.owner != rank {
            return Err(TransportError::new(
                TransportErrorKind::Malformed,
                format!(
                    "rank {rank} has no region of kind {:?} of owner {}",
                    key.kind, key.owner
                ),
            ));
        }
        if offset
            .checked_add(bytes as u64)
            .is_none_or(|end| end > key.bytes)
        {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("{bytes} bytes at {offset} of {}", key.bytes),
            ));
        }
        if bytes == 0 {
            return Ok(None);
        }
        let slot = self.slot(rank);
        if let Some(e) = self.remotes[slot].ended() {
            return Err(e);
        }
        let number = self.next_request;
        self.next_request += 1;
        let request = Request {
            slot,
            channel,
            to,
            left: bytes,
        };
        self.requests.insert(number, request);
        let body = GetBody {
            region: key.base,
            offset,
            bytes: bytes as u64,
        };
        let remote = &mut self.remotes[slot];
        remote.asked += 1;
        let head = Head::control(FrameKind::Get, channel, number);
        remote.out.push(head, &body.to_wire());
        debug_assert_eq!(body.to_wire().len(), GET_BYTES);
        self.reach(slot);
        Ok(Some(number))
    }

    pub fn completion(&mut self, channel: u64) -> Option<(u64, Result<u64, TransportError>)> {
        self.channels.get_mut(&channel)?.completions.pop_front()
    }

    /// Whether a peer has dropped the channel, and all that it sent before was polled.
    pub fn is_closed(&self, channel: u64, peer: Peer) -> bool {
        let member = self.known_member(channel, peer);
        member.is_some_and(|member| member.closed && member.queued == 0)
    }

    /// Whether messages of a peer wait to be polled.
    pub fn is_awaited(&self, channel: u64, peer: Peer) -> bool {
        let member = self.known_member(channel, peer);
        member.is_some_and(|member| member.queued > 0)
    }

    fn known_member(&self, channel: u64, peer: Peer) -> Option<&Member> {
        let rank = self.rank_of(channel, peer).ok()?;
        let slot = self.slots.get(&rank)?;
        self.channels.get(&channel)?.by_slot.get(slot)
    }

    /// How a peer ended, if it has.
    pub fn death(&self, rank: u32) -> Option<Death> {
        if self.apart.is_some() {
            return Some(Death::Apart);
        }
        match self.slots.get(&rank) {
            Some(slot) => match self.remotes[*slot].link {
                Link::Ended(how) => Some(how),
                _ => None,
            },
            None => self.ends.cause(rank).map(Cause::death),
        }
    }

    /// Why, in words.
    pub fn why(&self, rank: u32) -> Option<String> {
        if let Some(why) = &self.apart {
            return Some(why.clone());
        }
        let why = match self.slots.get(&rank) {
            Some(slot) => self.remotes[*slot].why.clone(),
            None => self.found_by(rank).unwrap_or_default(),
        };
        let host = self.map.as_ref().and_then(|map| map.name(rank));
        match host.filter(|_| !why.starts_with("on host ")) {
            Some(host) if why.is_empty() => Some(format!("on host {host}")),
            Some(host) => Some(format!("on host {host}, {why}")),
            None => (!why.is_empty()).then_some(why),
        }
    }

    /// Who has found that a rank has failed, in words, if another rank has.
    fn found_by(&self, rank: u32) -> Option<String> {
        let by = self.ends.by(rank).filter(|by| *by != self.rank)?;
        Some(format!("as rank {by} has found"))
    }

    /// Takes note of ends of ranks, and decides whether this rank goes on: those of which nothing
    /// was known, and of these the ones that have an open connection, which is the first to say
    /// more. `tie` is of [`goes_on`].
    pub fn learn(&mut self, records: &[Record], tie: bool) -> (Vec<Record>, Vec<Record>) {
        let (mut new, mut open) = (Vec::new(), Vec::new());
        for record in records {
            let fresh = self.ends.learn(*record);
            let each = |rank| Record::of(rank, record.cause, record.by);
            new.extend(fresh.into_iter().map(each));
        }
        self.epoch += u64::from(!new.is_empty());
        // First of all: nothing may go on meanwhile.
        if let Some(record) = new.iter().find(|record| record.first == self.rank)
            && record.cause != Cause::Finalized
        {
            let how = record.cause.death();
            self.part(format!("rank {} says that this rank {how}", record.by));
        }
        if new.iter().any(|record| record.cause.is_doubtful())
            && let Err(why) = goes_on(&self.ends, tie)
        {
            self.part(why);
        }
        let own = self.rank;
        for record in new.iter().filter(|record| record.first != own) {
            let Some(slot) = self.slots.get(&record.first).copied() else {
                continue;
            };
            match self.remotes[slot].link {
                Link::Ended(_) => {}
                // What it has sent is read first.
                Link::Open(ref stream) if !stream.lost && record.cause != Cause::Silent => {
                    open.push(*record);
                }
                _ => self.give_up(record.first, record.cause),
            }
        }
        (new, open)
    }

    /// Ends what there is with a rank that has ended.
    pub fn give_up(&mut self, rank: u32, cause: Cause) {
        let found = self.found_by(rank);
        if let Some(slot) = self.slots.get(&rank) {
            let why = found.unwrap_or_else(|| self.remotes[*slot].why.clone());
            self.end(*slot, cause.death(), &why);
        }
    }

    /// Whether something of a rank is to be read yet, its end included.
    pub fn is_unread(&self, rank: u32) -> bool {
        let Some(slot) = self.slots.get(&rank) else {
            return false;
        };
        let Link::Open(stream) = &self.remotes[*slot].link else {
            return false;
        };
        let scratch = &self.scratch;
        let in_scratch = scratch.slot == *slot && scratch.begin < scratch.end;
        let peeked = stream.socket.peek(&mut [0]);
        let nothing = matches!(&peeked, Err(e) if e.kind() == ErrorKind::WouldBlock);
        !stream.lost && (in_scratch || !nothing)
    }

    /// All others go on without this rank.
    pub fn part(&mut self, why: String) {
        if self.apart.is_none() {
            for slot in 0..self.remotes.len() {
                self.end(slot, Death::Apart, &why);
            }
            self.apart = Some(why);
            self.epoch += 1;
        }
    }

    /// Has the next frame of a peer count as malformed.
    #[cfg(test)]
    pub fn garble(&mut self, rank: u32) {
        let slot = self.slot(rank);
        if let Link::Open(stream) = &mut self.remotes[slot].link {
            stream.sequence += 1;
        }
    }

    /// Why all others go on without this rank, if they do.
    pub fn why_apart(&self) -> Option<String> {
        self.apart.clone()
    }

    /// A peer has ended (invariant 3).
    pub fn end(&mut self, slot: usize, how: Death, why: &str) {
        let remote = &mut self.remotes[slot];
        if matches!(remote.link, Link::Ended(_)) {
            return;
        }
        remote.link = Link::Ended(how);
        remote.out = Out::default();
        remote.why = why.to_owned();
        let known = self.ends.cause(remote.rank).is_some();
        if !matches!(how, Death::Finalized | Death::Apart) && !known && !self.leaves {
            self.reports.push((remote.rank, Cause::of_death(how), true));
        }
        if self.scratch.slot == slot && !self.scratch.lent {
            self.scratch.begin = self.scratch.end;
        }
        self.open.retain(|one| *one != slot);
        self.blocked.retain(|one| *one != slot);
        self.epoch += 1;
        let lost: Vec<u64> = (self.requests.iter())
            .filter(|(_, request)| request.slot == slot)
            .map(|(number, _)| *number)
            .collect();
        let e = self.remotes[slot].ended();
        for number in lost {
            if let Some(e) = &e {
                self.ends_request(number, Err(e.clone()));
            }
        }
    }

    /// The end of the peer that has called, before it said anything: it has thought better of
    /// it, or has ended, which the next call will find out.
    fn forget(&mut self, slot: usize) {
        self.open.retain(|one| *one != slot);
        self.blocked.retain(|one| *one != slot);
        let remote = &mut self.remotes[slot];
        remote.link = Link::Unused;
        if !remote.out.is_empty() {
            self.reach(slot);
        }
    }

    /// The peer cannot be called; `here` says that this rank is to blame.
    pub fn unreachable(&mut self, rank: u32, why: &str, here: bool) {
        let slot = self.slot(rank);
        if matches!(self.remotes[slot].link, Link::Dialing) {
            let reports = self.reports.len();
            self.end(slot, Death::Unreachable, why);
            if here {
                self.reports.truncate(reports);
            }
        }
    }

    /// The peer says that it leaves, or has left.
    pub fn finalized(&mut self, rank: u32) {
        let slot = self.slot(rank);
        self.end(slot, Death::Finalized, "");
    }

    /// Whether a call to a peer is still wanted.
    pub fn is_dialing(&self, rank: u32) -> bool {
        let slot = self.slots.get(&rank);
        slot.is_some_and(|slot| matches!(self.remotes[*slot].link, Link::Dialing))
    }

    /// Decides about a peer that calls. Where both call, the call of the lower rank stays. Who is
    /// cut off decides nothing.
    pub fn decide(&mut self, rank: u32) -> Option<Verdict> {
        if self.apart.is_some() {
            return None;
        }
        Some(self.decide_here(rank))
    }

    fn decide_here(&mut self, rank: u32) -> Verdict {
        let slot = self.slot(rank);
        // Who leaves still lets those in that it has something for.
        let waits = matches!(self.remotes[slot].link, Link::Dialing);
        if self.leaves && !waits {
            return Verdict::Leaves;
        }
        match self.remotes[slot].link {
            Link::Unused => Verdict::Accepted,
            Link::Dialing if rank < self.rank => Verdict::Accepted,
            Link::Dialing => Verdict::Crossed,
            Link::Open(_) => Verdict::There,
            Link::Ended(_) => {
                self.counts.fenced += 1;
                Verdict::Fenced
            }
        }
    }

    /// Takes a connection that has passed its handshake.
    pub fn adopt(&mut self, rank: u32, socket: TcpStream, called: bool) {
        let slot = self.slot(rank);
        if !matches!(self.remotes[slot].link, Link::Unused | Link::Dialing) {
            return;
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
        if let Err(e) = self.epoll.add(&socket, event) {
            let why = format!("watching its connection: {}", std::io::Error::from(e));
            return self.end(slot, Death::Disconnected, &why);
        }
        self.remotes[slot].link = Link::Open(Stream {
            socket,
            sequence: 0,
            partial: Vec::new(),
            direct: None,
            // Whoever called says something at once.
            heard: !called,
            watched: false,
            lost: false,
        });
        self.open.push(slot);
        self.counts.connections += 1;
        self.flush(slot);
    }

    /// Has the sleeper's events tell of room where a socket has none, and nowhere else.
    pub fn watch_blocked(&mut self) {
        for slot in self.open.clone() {
            let blocked = self.blocked.contains(&slot);
            if let Link::Open(stream) = &mut self.remotes[slot].link {
                watch(&self.epoll, stream, slot, blocked);
            }
        }
    }

    /// Says good-bye to all.
    pub fn leave(&mut self) {
        self.leaves = true;
        for slot in 0..self.remotes.len() {
            // Also to those that are still being called.
            self.say(slot, Head::control(FrameKind::Leave, 0, 0), &[]);
        }
    }

    /// Whether the peers' systems have all that this rank has sent; reads to nowhere what still
    /// comes.
    pub fn has_left(&mut self) -> bool {
        self.flush_blocked();
        let waits = |r: &Remote| matches!(r.link, Link::Dialing) && !r.out.is_empty();
        let mut all = !self.remotes.iter().any(waits);
        for slot in self.open.clone() {
            let Link::Open(stream) = &mut self.remotes[slot].link else {
                continue;
            };
            let mut gone = false;
            while !gone {
                match stream.socket.read(&mut self.scratch.bytes) {
                    Ok(0) => gone = true,
                    // Whoever has called is sure of it now, and is told.
                    Ok(_) => stream.heard = true,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => gone = true,
                }
            }
            self.flush(slot);
            let remote = &self.remotes[slot];
            all &= gone || remote.out.is_empty() && unsent(stream_of(remote)) == 0;
        }
        all
    }

    /// Closes all connections, as the end of the process would.
    pub fn kill(&mut self) {
        self.leaves = true;
        for slot in 0..self.remotes.len() {
            self.end(slot, Death::Disconnected, "this rank has ended");
        }
    }

    /// Bytes that a rank's part of all this takes, for tests.
    pub fn heap_bytes(&self) -> usize {
        let remotes = self.remotes.iter().map(|r| {
            let stream = match &r.link {
                Link::Open(stream) => stream.partial.capacity(),
                _ => 0,
            };
            size_of::<Remote>() + r.out.heap_bytes() + r.why.capacity() + stream
        });
        let channels = self.channels.values().map(|c| {
            let queued = c
                .queue
                .iter()
                .map(|q| size_of::<Queued>() + q.payload.capacity());
            size_of::<Channel>()
                + c.by_slot.capacity() * (size_of::<Member>() + 16)
                + queued.sum::<usize>()
        });
        SCRATCH_BYTES
            + remotes.sum::<usize>()
            + channels.sum::<usize>()
            + self.requests.capacity() * size_of::<Request>()
            + self.regions.capacity() * size_of::<Region>()
    }
}

/// Has the events tell of room in a socket, or not.
fn watch(epoll: &Epoll, stream: &mut Stream, slot: usize, room: bool) {
    if stream.watched == room {
        return;
    }
    let flags = match room {
        true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        false => EpollFlags::EPOLLIN,
    };
    let mut event = EpollEvent::new(flags, slot as u64);
    if epoll.modify(&stream.socket, &mut event).is_ok() {
        stream.watched = room;
    }
}

fn stream_of(remote: &Remote) -> Option<&TcpStream> {
    match &remote.link {
        Link::Open(stream) => Some(&stream.socket),
        _ => None,
    }
}

/// Bytes that the peer's system has not acknowledged.
pub(super) fn unsent(socket: Option<&TcpStream>) -> i32 {
    let Some(socket) = socket else {
        return 0;
    };
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one number to a place of ours.
    let got = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if got == 0 { bytes } else { 0 }
}

impl Channel {
    /// A remote as a member; none if it is not one.
    fn member(&mut self, slot: usize, rank: u32) -> Option<&mut Member> {
        if !self.by_slot.contains_key(&slot) {
            let at = match self.members.get(rank as usize) {
                Some(member) if *member == rank => rank as usize,
                _ => self.members.iter().position(|member| *member == rank)?,
            };
            return self.member_at(slot, at as Peer);
        }
        self.by_slot.get_mut(&slot)
    }

    fn member_at(&mut self, slot: usize, peer: Peer) -> Option<&mut Member> {
        Some(self.by_slot.entry(slot).or_insert(Member {
            peer,
            sent: 0,
            owed: 0,
            held: 0,
            queued: 0,
            closed: false,
        }))
    }
}
