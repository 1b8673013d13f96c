//! Endpoint contract of every transport: active messages, get, put and atomics.
//!
//! An [`Endpoint`] serves one *channel*: an opaque 64-bit number that all
//! members agree on, and a list of members. Members are named by their index
//! in that list ([`Peer`]). A transport knows no datatype, tag or
//! communicator: it moves active messages and bytes.
//!
//! # Invariants
//! 1. Active messages from one peer arrive in the order in which they were
//!    posted, each exactly once, unmodified. Nothing is promised between peers.
//! 2. [`PostError::Full`] has no effect: the caller may repeat the call after
//!    it polled. Whoever keeps polling lets its peers make room in the end.
//! 3. Between [`Endpoint::poll`] and [`Endpoint::release`] the payload stays
//!    where it is; at most one message is out at a time.
//! 4. Of the messages that a peer posted before it died a prefix is still delivered, in order: all
//!    of them where the transport is memory (`self`, `shm`, `sim`), those that have come where it
//!    is a network.
//!
//! # Sources
//! Active messages as the base of message passing: T. von Eicken, D. Culler,
//! S. Goldstein, K. Schauser, "Active Messages: a Mechanism for Integrated
//! Communication and Computation", ISCA 1992.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of a member in a channel's list of members.
pub type Peer = u32;

/// Version of everything that two ends say to each other. Tests compare it with the messages of
/// lanes (`engine/src/wire/version.rs`) and with what lies in shared memory (`shm/layout.rs`).
pub const WIRE_VERSION: u16 = 26;

/// What an endpoint can do; exchanged in the handshake of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the transport as in `osier info`.
    pub transport: &'static str,
    /// Largest payload that travels without a second memory access, in bytes.
    pub inline_bytes: usize,
    /// Largest payload of one active message, in bytes.
    pub max_payload_bytes: usize,
    /// One-sided reads of exported regions.
    pub get: bool,
    /// One-sided writes of exported regions.
    pub put: bool,
    /// 64-bit atomics on exported regions.
    pub atomics: bool,
    /// A region may be exported from plain memory of the process.
    pub export_plain: bool,
    /// Most runs of a region that one read or write takes ([`Endpoint::get_runs`]); at least 1.
    pub runs: usize,
}

/// What a rank shares with a peer, as the transport between them knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The process: the peer is a thread of it.
    pub process: bool,
    /// The number of the peer's process here, if it has one.
    pub process_id: Option<u32>,
    /// Numbers of processes: the peer's has the number here that it has for itself.
    pub process_numbers: bool,
    /// Host memory: each reads and writes what the other shows it, in place.
    pub host_memory: bool,
    /// Devices: each may open what the other exports of them.
    pub devices: bool,
}

impl Sharing {
    /// Of a rank with itself, and of one whose peers are elsewhere on a simulated network.
    pub const fn simulated(process: bool) -> Self {
        Self {
            process,
            process_id: None,
            process_numbers: true,
            host_memory: false,
            devices: false,
        }
    }
}

/// The fixed part of an active message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AmHead {
    /// Protocol's own number of the handler.
    pub kind: u8,
    /// Protocol's own small argument.
    pub aux: u16,
    /// Protocol's own argument.
    pub arg: u64,
}

/// Bytes that another process may change at any time: they are copied out,
/// never borrowed.
#[derive(Clone, Copy, Debug)]
pub struct ForeignBytes {
    ptr: *const u8,
    len: usize,
}

impl ForeignBytes {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped and readable until the message that holds
    /// this value is released.
    #[inline]
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// First byte. Only for copying from.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes to a new vector.
    ///
    /// # Safety
    /// The message that holds this value has not been released.
    pub unsafe fn to_vec(&self) -> Vec<u8> {
        let mut v = Vec::<u8>::with_capacity(self.len);
        // SAFETY: the vector has room for `len` bytes, and the source is
        // readable by the contract of `new`.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, v.as_mut_ptr(), self.len) };
        // SAFETY: the copy above initialised the first `len` bytes.
        unsafe { v.set_len(self.len) };
        v
    }
}

/// A message that [`Endpoint::poll`] hands out.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Who sent it.
    pub peer: Peer,
    /// Its fixed part.
    pub head: AmHead,
    /// Its bytes, valid until [`Endpoint::release`].
    pub payload: ForeignBytes,
    /// The endpoint's own.
    pub token: u32,
}

/// Where exported memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RegionKind {
    /// The job's shared segment, readable and writable by every member.
    Arena = 1,
    /// Osier's shared heap, mapped read-only by peers.
    Heap = 2,
    /// Private memory of a process, reached through the kernel.
    Process = 3,
    /// Memory of the same process, reached directly: of the rank itself, or
    /// of one that is another thread. Refused from any other process.
    Local = 4,
    /// A simulated machine.
    Sim = 5,
    /// Something of the same process that the layer above understands; no transport
    /// reaches it.
    Described = 6,
    /// Osier's shared heap, of a window: mapped by peers to read, write and use by atomics.
    Window = 7,
    /// Memory of a process on another host, by the number under which its owner keeps it.
    Network = 8,
}

/// Right to reach a region of a peer: what [`Endpoint::export`] returns and
/// a protocol sends along.
///
/// ```text
/// byte 0      1      2..4      4..8    8..16        16..24
///      kind   0      version   owner   base         bytes      (little endian)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKey {
    /// Kind of memory.
    pub kind: RegionKind,
    /// Owner's number in the job, or its process id for [`RegionKind::Process`]
    /// and, between ranks of one process, [`RegionKind::Local`].
    pub owner: u32,
    /// Offset in the segment, or address.
    pub base: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl RegionKey {
    /// Bytes of the wire form.
    pub const WIRE_BYTES: usize = 24;

    /// Writes the wire form.
    pub fn to_wire(&self) -> [u8; Self::WIRE_BYTES] {
        let mut w = [0; Self::WIRE_BYTES];
        w[0] = self.kind as u8;
        w[2..4].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        w[4..8].copy_from_slice(&self.owner.to_le_bytes());
        w[8..16].copy_from_slice(&self.base.to_le_bytes());
        w[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        w
    }

    /// Parses the wire form; `None` for anything that this version never
    /// writes.
    pub fn from_wire(w: &[u8]) -> Option<Self> {
        let w: &[u8; Self::WIRE_BYTES] = w.get(..Self::WIRE_BYTES)?.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(w[at..at + 8].try_into().unwrap_or([0; 8]));
        let kind = match w[0] {
            1 => RegionKind::Arena,
            2 => RegionKind::Heap,
            3 => RegionKind::Process,
            4 => RegionKind::Local,
            5 => RegionKind::Sim,
            6 => RegionKind::Described,
            7 => RegionKind::Window,
            8 => RegionKind::Network,
            _ => return None,
        };
        let (base, bytes) = (word(8), word(16));
        base.checked_add(bytes)?;
        (w[1] == 0 && u16::from_le_bytes([w[2], w[3]]) == WIRE_VERSION).then_some(Self {
            kind,
            owner: u32::from_le_bytes([w[4], w[5], w[6], w[7]]),
            base,
            bytes,
        })
    }
}

/// Memory of a peer that this rank may read: by address, or through the kernel.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory {
    /// The peer's process, where the address is one there.
    process: Option<u32>,
    base: usize,
    bytes: usize,
    /// Lines of fewer bytes are taken by their reader: none, where it may not write them.
    taken_below: usize,
}

// Addresses of memory that is not this process's alone, read by copies.
impl PeerMemory {
    /// Memory that is mapped here.
    ///
    /// # Safety
    /// It stays mapped and readable as long as this value is used.
    pub unsafe fn mapped(at: *const u8, bytes: usize) -> Self {
        Self {
            process: None,
            base: at.expose_provenance(),
            bytes,
            taken_below: 0,
        }
    }

    /// The same of memory that may be written, whose lines are taken where fewer bytes than
    /// these were read ([`PeerMemory::take_lines`]).
    ///
    /// # Safety
    /// As [`PeerMemory::mapped`].
    pub unsafe fn writable(at: *mut u8, bytes: usize, taken_below: usize) -> Self {
        Self {
            taken_below,
            // SAFETY: the caller's contract.
            ..unsafe { Self::mapped(at, bytes) }
        }
    }

    /// Memory of another process, which the kernel reads.
    pub(crate) fn of_process(process: u32, base: u64, bytes: usize) -> Self {
        Self {
            process: Some(process),
            base: base as usize,
            bytes,
            taken_below: 0,
        }
    }

    /// Takes the lines of bytes that were read, by writing to each what is there: then the rank
    /// that writes them next finds them in one cache, not in two. Nothing, where the memory is
    /// not to be written, or where lines of that many bytes are left.
    ///
    /// # Safety
    /// Nobody else writes these bytes until this rank has told that it has read them.
    #[inline]
    pub unsafe fn take_lines(&self, offset: usize, bytes: usize) {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        if bytes >= self.taken_below || !inside {
            return;
        }
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.base + offset);
        for at in (0..bytes).step_by(64) {
            let at = start.wrapping_add(at);
            // SAFETY: inside by the check, and by the caller's contract.
            let byte = unsafe { at.read_volatile() };
            // SAFETY: as above.
            unsafe { at.write_volatile(byte) };
        }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it is mapped, if it is. Only for copying from: a peer may change it at any time.
    #[inline]
    pub fn address(&self) -> Option<*const u8> {
        match self.process {
            None => Some(std::ptr::with_exposed_provenance(self.base)),
            Some(_) => None,
        }
    }

    /// Copies `bytes` bytes from `offset` on to `to`.
    ///
    /// # Errors
    /// They lie outside, or the kernel refuses.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes, and is no memory of this peer.
    #[inline]
    pub unsafe fn read(
        &self,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), TransportError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("{bytes} bytes at {offset} of {} of a peer", self.bytes),
            ));
        }
        match self.process {
            None => {
                let from = std::ptr::with_exposed_provenance::<u8>(self.base + offset);
                // SAFETY: readable by the contract of `mapped`, inside by the check; the
                // destination by the caller's contract. They may overlap where ranks are
                // threads and a program passes overlapping buffers.
                unsafe { std::ptr::copy(from, to, bytes) };
                Ok(())
            }
            // SAFETY: the caller's contract; the kernel checks the other side.
            Some(process) => unsafe {
                crate::shm::read_process(process, (self.base + offset) as u64, to, bytes)
            },
        }
    }
}

/// A 64-bit atomic on a region; each returns the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds, wrapping.
    Add(u64),
    /// Replaces.
    Swap(u64),
    /// Replaces `expected` by `new`.
    CompareSwap {
        /// Value that must be there.
        expected: u64,
        /// Value to write.
        new: u64,
    },
    /// Reads.
    Load,
}

impl AtomicOp {
    /// Performs it on a word of this process; the value before.
    #[inline]
    pub fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            AtomicOp::Add(n) => word.fetch_add(n, Ordering::AcqRel),
            AtomicOp::Swap(n) => word.swap(n, Ordering::AcqRel),
            AtomicOp::CompareSwap { expected, new } => word
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|before| before),
            AtomicOp::Load => word.load(Ordering::Acquire),
        }
    }
}

/// How a one-sided operation went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided {
    /// Finished; for an atomic with the value before.
    Done(u64),
    /// Under way; [`Endpoint::poll_completion`] names this number later, and
    /// the local memory belongs to the transport until then.
    Pending(u64),
}

/// Why a message could not be posted.
#[derive(Debug)]
pub enum PostError {
    /// No credit: poll, then try again.
    Full,
    /// It never can be.
    Failed(TransportError),
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The peer's process is gone.
    PeerDead,
    /// The peer has closed this channel, or has finalized.
    PeerClosed,
    /// No memory left, shared or private.
    OutOfMemory,
    /// The system forbids it.
    Permission,
    /// This machine or transport does not offer it.
    Unavailable,
    /// Bytes that no correct peer sends.
    Malformed,
    /// An argument that makes no sense.
    Invalid,
    /// Anything else that the system reports.
    System,
}

/// An error of a transport: what failed, and the cause as observed.
#[derive(Clone, Debug)]
pub struct TransportError {
    kind: TransportErrorKind,
    message: String,
}

impl TransportError {
    /// An error of the given kind.
    pub fn new(kind: TransportErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The error that the last system call left, with what was tried.
    pub fn last_os(what: impl fmt::Display) -> Self {
        Self::os(what, &std::io::Error::last_os_error())
    }

    /// A system error, with what was tried.
    pub fn os(what: impl fmt::Display, e: &std::io::Error) -> Self {
        let kind = match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TransportErrorKind::Permission,
            Some(libc::ENOMEM | libc::ENOSPC | libc::EFBIG) => TransportErrorKind::OutOfMemory,
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => TransportErrorKind::Unavailable,
            Some(libc::ESRCH) => TransportErrorKind::PeerDead,
            _ => TransportErrorKind::System,
        };
        let mut text = e.to_string();
        if let Some(at) = text.find(" (os error") {
            text.truncate(at);
        }
        Self::new(kind, format!("{what}: {}", text.to_lowercase()))
    }

    /// Its kind.
    pub fn kind(&self) -> TransportErrorKind {
        self.kind
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TransportError {}

/// Offset and bytes of the run of a transport that takes one at a time.
fn only_run(runs: &[Range<u64>]) -> Result<(u64, usize), TransportError> {
    match runs {
        [run] => Ok((run.start, run.end.saturating_sub(run.start) as usize)),
        _ => Err(TransportError::new(
            TransportErrorKind::Invalid,
            format!("{} runs in one access, which takes one", runs.len()),
        )),
    }
}

/// One member's end of a channel. Used by one thread at a time.
pub trait Endpoint {
    /// What this endpoint can do.
    fn capabilities(&self) -> Capabilities;

    /// Posts an active message whose `bytes` bytes of payload `fill` writes
    /// to the address that it is given; `fill` is called exactly once on
    /// success and never on failure.
    fn post_with(
        &mut self,
        peer: Peer,
        head: AmHead,
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), PostError>;

    /// Posts an active message with the payload given.
    #[inline]
    fn post(&mut self, peer: Peer, head: AmHead, payload: &[u8]) -> Result<(), PostError> {
        self.post_with(peer, head, payload.len(), |to| {
            // SAFETY: `post_with` hands out room for `payload.len()` bytes
            // that overlap nothing of ours.
            unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) }
        })
    }

    /// Asks once for a message. It must be given back by
    /// [`Endpoint::release`] before the next call.
    fn poll(&mut self) -> Option<Incoming>;

    /// Gives back a message.
    fn release(&mut self, message: &Incoming);

    /// Exports memory of this process so that peers can reach it, or says
    /// why not.
    ///
    /// # Safety
    /// The caller keeps `bytes` bytes at `ptr` alive until every peer that
    /// was given the key has said that it is done.
    unsafe fn export(&self, ptr: *const u8, bytes: usize) -> Result<RegionKey, TransportError>;

    /// Exports memory of this process so that peers can write it.
    ///
    /// # Safety
    /// As [`Endpoint::export`], and nobody else uses the memory meanwhile.
    unsafe fn export_writable(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: the caller's contract.
        unsafe { self.export(ptr, bytes) }
    }

    /// Exports memory of a window: all members may read and write it, and use its aligned words
    /// by atomics, as long as the window lives.
    ///
    /// # Safety
    /// The caller keeps `bytes` bytes at `ptr` alive until every member has said that it is
    /// done; whoever uses them meanwhile knows that others do, too.
    unsafe fn export_window(
        &self,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<RegionKey, TransportError> {
        // SAFETY: the caller's contract.
        unsafe { self.export_writable(ptr, bytes) }
    }

    /// Exports memory to one peer, which may write it if `write` says so: a
    /// better key where that peer shares more with this process than others.
    ///
    /// # Safety
    /// As [`Endpoint::export`], or [`Endpoint::export_writable`] if `write`.
    unsafe fn export_to(
        &self,
        peer: Peer,
        ptr: *mut u8,
        bytes: usize,
        write: bool,
    ) -> Result<RegionKey, TransportError> {
        let _ = peer;
        if write {
            // SAFETY: the caller's contract.
            unsafe { self.export_writable(ptr, bytes) }
        } else {
            // SAFETY: the caller's contract.
            unsafe { self.export(ptr, bytes) }
        }
    }

    /// What this rank shares with a peer.
    fn sharing(&self, peer: Peer) -> Sharing;

    /// Whether a thread of the peer waits in the library right now, so that it
    /// would answer at once. A hint, and false where it is not known.
    fn attending(&self, peer: Peer) -> bool {
        let _ = peer;
        false
    }

    /// Whether the system reads plain memory of a peer's process, as far as is known now: all that
    /// it says once the peer has joined.
    fn reads_process(&self, peer: Peer) -> bool {
        let _ = peer;
        false
    }

    /// Reads `bytes` bytes at `offset` of a peer's region to `to`.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes until the operation is done.
    unsafe fn get(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        to: *mut u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError>;

    /// Writes `bytes` bytes at `from` to `offset` of a peer's region.
    ///
    /// # Safety
    /// `from` is readable for `bytes` bytes until the operation is done.
    unsafe fn put(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<OneSided, TransportError>;

    /// Reads runs of a peer's region, given by their offsets, to `to`, one behind the other: at
    /// least one of them, and at most [`Capabilities::runs`].
    ///
    /// # Safety
    /// `to` is writable for the bytes of all until the operation is done.
    unsafe fn get_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        to: *mut u8,
    ) -> Result<OneSided, TransportError> {
        let (offset, bytes) = only_run(runs)?;
        // SAFETY: the caller's contract.
        unsafe { self.get(peer, key, offset, to, bytes) }
    }

    /// Writes the bytes at `from`, one behind the other, to runs of a peer's region, as
    /// [`Endpoint::get_runs`] has them.
    ///
    /// # Safety
    /// `from` is readable for the bytes of all until the operation is done.
    unsafe fn put_runs(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        runs: &[Range<u64>],
        from: *const u8,
    ) -> Result<OneSided, TransportError> {
        let (offset, bytes) = only_run(runs)?;
        // SAFETY: the caller's contract.
        unsafe { self.put(peer, key, offset, from, bytes) }
    }

    /// Performs an atomic on the 8 aligned bytes at `offset` of a peer's
    /// region.
    fn atomic(
        &mut self,
        peer: Peer,
        key: &RegionKey,
        offset: u64,
        op: AtomicOp,
    ) -> Result<OneSided, TransportError>;

    /// Address at which a peer's region can be read directly, if it is mapped
    /// (mapping it now if need be).
    fn mapped(&mut self, peer: Peer, key: &RegionKey) -> Option<*const u8>;

    /// The same of a region of [`Endpoint::export_window`]: there it can be written, too, and
    /// used by atomics, at the same time as others do.
    fn mapped_writable(&mut self, peer: Peer, key: &RegionKey) -> Option<*mut u8> {
        let _ = (peer, key);
        None
    }

    /// Number and outcome of a finished one-sided operation.
    fn poll_completion(&mut self) -> Option<(u64, Result<u64, TransportError>)>;

    /// Messages that this endpoint rejected because no correct peer sends
    /// them.
    fn malformed(&self) -> u64;
}
