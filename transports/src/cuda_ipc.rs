//! Descriptors of device memory between processes of one machine.
//!
//! Whoever wants descriptors binds a datagram socket at a name that the system chooses
//! and tells it, with a number of its own, over the job's channel; whoever has them
//! sends them there. No process is named by its number, so both may live in process
//! namespaces of their own; they share a network namespace, whose sockets these are.
//!
//! ```text
//! datagram  magic u32, count u32, number u64, left u64, bytes u64 of each piece
//!           + a descriptor for each piece
//! ```
//!
//! Any process of the machine may send to such a name. The system says with each datagram
//! which process of which user has sent it; one of another user is refused and counted, with
//! its descriptors.
//!
//! This module knows no CUDA: a descriptor is a descriptor.
//!
//! # Invariants
//! 1. A datagram that does not parse, or whose descriptors are not as many as it says,
//!    is dropped with its descriptors; a number that nobody waits for is its reader's to
//!    drop. Numbers come from a channel that strangers do not read.
//! 2. Nothing here waits, except what says so.
//! 3. A datagram is only looked at if the system says that a process of our user sent it.
//! 4. The structures of a system call are ours, initialized, and outlive the call; those that
//!    it fills in are as long as they say.
//! 5. A descriptor that a system call has just returned is owned by nobody else.
//! 6. A control room is aligned for its headers, and as long as its message says; headers
//!    are found in it by the system's own rules (cmsg(3)) and lie inside.
//!
//! # Sources
//! Linux man pages unix(7) (abstract names, autobind), cmsg(3).

use crate::contract::{TransportError, TransportErrorKind};
use std::io::{ErrorKind, Read};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a socket's name.
pub const NAME_BYTES: usize = 16;
/// Descriptors of one datagram; the system takes at most 253.
const PIECES: usize = 64;
const MAGIC: u32 = 0x4f53_4644;
const HEAD_BYTES: usize = 24;
const MAX_BYTES: usize = HEAD_BYTES + 8 * PIECES;
/// A header with the descriptors, and one with the sender.
const CONTROL_BYTES: usize = 16 + 4 * PIECES + 16 + size_of::<libc::ucred>() + 8;

/// Name of a socket: the system's, without its leading zero.
pub type Name = [u8; NAME_BYTES];

/// Room for control messages, aligned as they must be.
#[repr(C, align(16))]
struct Control([u8; CONTROL_BYTES]);

/// Some of the pieces that belong to a number.
#[derive(Debug)]
pub struct Pieces {
    /// Who asked for them.
    pub number: u64,
    /// The process that has sent them, as its number counts here; 0 if it does not.
    pub process: u32,
    /// Pieces that follow in other datagrams.
    pub left: u64,
    /// Bytes and descriptor of each.
    pub pieces: Vec<(u64, OwnedFd)>,
}

/// A datagram socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    name: Name,
    refused: AtomicU64,
}

impl Socket {
    /// A socket at a name of its own.
    ///
    /// # Errors
    /// The system refuses.
    pub fn bind() -> Result<Socket, TransportError> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: invariant 4.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return Err(TransportError::last_os("a socket for descriptors"));
        }
        // SAFETY: invariant 5.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let on: libc::c_int = 1;
        let bytes = size_of_val(&on) as libc::socklen_t;
        let option = (&raw const on).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PASSCRED);
        // SAFETY: invariant 4.
        let told = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, option, bytes) };
        if told != 0 {
            return Err(TransportError::last_os("the senders to a socket"));
        }
        let (address, _) = address(&[]);
        let family = size_of::<libc::sa_family_t>() as libc::socklen_t;
        // SAFETY: invariant 4; an address of the family alone asks the system for a name.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), family) };
        if bound != 0 {
            return Err(TransportError::last_os("a name for a socket"));
        }
        // SAFETY: invariant 4; all zeros are an address.
        let mut own: libc::sockaddr_un = unsafe { zeroed() };
        let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: invariant 4.
        let got = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut own).cast(), &mut length) };
        if got != 0 {
            return Err(TransportError::last_os("the name of a socket"));
        }
        let mut name = Name::default();
        let bytes = (length as usize).saturating_sub(family as usize + 1);
        for (to, from) in name.iter_mut().zip(&own.sun_path[1..]).take(bytes) {
            *to = *from as u8;
        }
        Ok(Socket {
            fd,
            name,
            refused: AtomicU64::new(0),
        })
    }

    /// Its name, for whoever is to send to it.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Datagrams that processes of other users have sent.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sleeps until a datagram is there, but not for longer than `patience`; whether one is.
    ///
    /// # Errors
    /// The system refuses.
    pub fn wait(&self, patience: Duration) -> Result<bool, TransportError> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: zero would mean not to sleep.
            let millis = left.as_millis() + u128::from(!left.is_zero());
            let mut entry = libc::pollfd {
                fd: self.fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: invariant 4; one entry.
            match unsafe { libc::poll(&mut entry, 1, millis.min(i32::MAX as u128) as i32) } {
                0 if left.is_zero() => return Ok(false),
                0 => {}
                1.. => return Ok(true),
                _ if std::io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
                _ => return Err(TransportError::last_os("waiting for descriptors")),
            }
        }
    }

    /// Takes a datagram, if one is there; what makes no sense is dropped.
    pub fn receive(&self) -> Option<Pieces> {
        loop {
            match self.take()? {
                Some(pieces) => return Some(pieces),
                None => continue,
            }
        }
    }

    /// `None`: nothing is there. `Some(None)`: nonsense was.
    fn take(&self) -> Option<Option<Pieces>> {
        let mut bytes = [0u8; MAX_BYTES];
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: invariant 4; all zeros are a message without anything.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control.0).cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: invariant 4.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, flags) };
        if got < 0 {
            return None;
        }
        let (fds, sender) = opened(&message);
        // SAFETY: invariant 4.
        let own = unsafe { libc::geteuid() };
        let Some(sender) = sender.filter(|sender| sender.uid == own) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Some(None);
        };
        let whole = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        let mut pieces = parse(&bytes[..got as usize], fds).filter(|_| whole);
        if let Some(pieces) = &mut pieces {
            pieces.process = sender.pid.cast_unsigned();
        }
        Some(pieces)
    }
}

/// Sends pieces to the socket that asked for them by a number.
///
/// # Errors
/// Nobody is there, its queue is full, or the system refuses.
pub fn send(to: &Name, number: u64, pieces: &[(u64, OwnedFd)]) -> Result<(), TransportError> {
    // SAFETY: invariant 4.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(TransportError::last_os("a socket for descriptors"));
    }
    // SAFETY: invariant 5.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut left = pieces.len();
    for some in pieces.chunks(PIECES) {
        left -= some.len();
        let mut bytes = Vec::with_capacity(MAX_BYTES);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend((some.len() as u32).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend((left as u64).to_le_bytes());
        for (piece, _) in some {
            bytes.extend(piece.to_le_bytes());
        }
        post(&fd, to, &mut bytes, some)?;
    }
    Ok(())
}

fn post(
    fd: &OwnedFd,
    to: &Name,
    bytes: &mut [u8],
    pieces: &[(u64, OwnedFd)],
) -> Result<(), TransportError> {
    let length = to.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
    let (mut address, address_bytes) = address(&to[..length]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    let fds: Vec<RawFd> = pieces.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    let fds_bytes = size_of_val(&fds[..]) as u32;
    // SAFETY: invariant 4; all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = address_bytes;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    // SAFETY: invariant 4: arithmetic on a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(fds_bytes) } as _;
    // SAFETY: invariant 6.
    let head = unsafe { libc::CMSG_FIRSTHDR(&message) };
    if head.is_null() {
        return Err(TransportError::new(
            TransportErrorKind::Invalid,
            "no room for descriptors",
        ));
    }
    let header = libc::cmsghdr {
        // SAFETY: invariant 4: arithmetic on a length.
        cmsg_len: unsafe { libc::CMSG_LEN(fds_bytes) } as _,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: invariant 6; the room holds the header and all descriptors.
    unsafe { head.write(header) };
    // SAFETY: invariant 6.
    let data = unsafe { libc::CMSG_DATA(head) };
    // SAFETY: invariant 6; the list has so many bytes, and so has the room.
    unsafe { std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), data, fds_bytes as usize) };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: invariant 4.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) };
    match sent < 0 {
        true => Err(TransportError::last_os("sending descriptors")),
        false => Ok(()),
    }
}

/// An abstract address; of an empty name, the family alone.
fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: invariant 4; all zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let bytes = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, bytes as libc::socklen_t)
}

/// All descriptors of a message, ours from here on, and who has sent it.
fn opened(message: &libc::msghdr) -> (Vec<OwnedFd>, Option<libc::ucred>) {
    let (mut all, mut sender) = (Vec::new(), None);
    // SAFETY: invariant 6; the system has filled the room in.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !head.is_null() {
        // SAFETY: invariant 6.
        let header = unsafe { head.read() };
        // SAFETY: invariant 4: arithmetic on a length.
        let empty = unsafe { libc::CMSG_LEN(0) } as usize;
        let bytes = (header.cmsg_len as usize).saturating_sub(empty);
        // SAFETY: invariant 6.
        let data = unsafe { libc::CMSG_DATA(head) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..bytes / size_of::<RawFd>() {
                    let at = data.cast::<RawFd>().wrapping_add(i);
                    // SAFETY: invariant 6: one of the descriptors that the header counts.
                    let fd = unsafe { at.read_unaligned() };
                    // SAFETY: invariant 5.
                    all.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: invariant 6: the header counts as many bytes.
                sender = Some(unsafe { data.cast::<libc::ucred>().read_unaligned() });
            }
            _ => {}
        }
        // SAFETY: invariant 6.
        head = unsafe { libc::CMSG_NXTHDR(message, head) };
    }
    (all, sender)
}

fn parse(mut bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Pieces> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let mut some = [0; N];
        bytes.read_exact(&mut some).ok()?;
        Some(some)
    }
    let magic = u32::from_le_bytes(take(&mut bytes)?);
    let count = u32::from_le_bytes(take(&mut bytes)?) as usize;
    let number = u64::from_le_bytes(take(&mut bytes)?);
    let left = u64::from_le_bytes(take(&mut bytes)?);
    if magic != MAGIC || count != fds.len() || bytes.len() != 8 * count {
        return None;
    }
    let mut pieces = Vec::with_capacity(count);
    for fd in fds {
        pieces.push((u64::from_le_bytes(take(&mut bytes)?), fd));
    }
    Some(Pieces {
        number,
        process: 0,
        left,
        pieces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        // SAFETY: invariant 4: a C string and flags.
        let fd = unsafe { libc::memfd_create(c"piece".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: invariant 5.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn inode(fd: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::from(fd.try_clone().expect("open"));
        file.metadata().expect("its data").ino()
    }

    #[test]
    fn descriptors_arrive_in_order() {
        let socket = Socket::bind().expect("a socket");
        assert!(socket.receive().is_none());
        for count in [0u64, 1, 2, 64, 65, 200] {
            let sent: Vec<(u64, OwnedFd)> = (0..count).map(|i| (i * 7, file())).collect();
            // An empty list says nothing, so nothing is sent.
            send(&socket.name(), count, &sent).expect("sent");
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let some = socket.receive().expect("a datagram");
                assert_eq!(some.number, count);
                got.extend(some.pieces);
                assert_eq!(some.left as usize, sent.len() - got.len());
            }
            let what = |pieces: &[(u64, OwnedFd)]| -> Vec<(u64, u64)> {
                pieces.iter().map(|(n, fd)| (*n, inode(fd))).collect()
            };
            assert_eq!(what(&got), what(&sent));
        }
        assert!(socket.receive().is_none());
    }

    #[test]
    fn nonsense_is_dropped() {
        let socket = Socket::bind().expect("a socket");
        let other = Socket::bind().expect("a socket");
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([0; 32]);
        let one = [(1, file())];
        // Fewer descriptors than it says; another magic; too short; too long.
        post(&other.fd, &socket.name(), &mut bytes.clone(), &one).expect("sent");
        bytes[0] ^= 1;
        post(&other.fd, &socket.name(), &mut bytes, &one).expect("sent");
        post(&other.fd, &socket.name(), &mut [1, 2, 3], &one).expect("sent");
        post(&other.fd, &socket.name(), &mut [0; MAX_BYTES + 8], &one).expect("sent");
        send(&socket.name(), 5, &one).expect("sent");
        assert_eq!(socket.receive().expect("the last").number, 5);
        assert!(socket.receive().is_none());
        // Nobody is there any more.
        let name = socket.name();
        drop(socket);
        assert!(send(&name, 5, &one).is_err());
    }

    /// A child that is nobody sends what is sound, with a descriptor.
    #[test]
    fn other_users_are_refused_and_counted() {
        // SAFETY: invariant 4.
        if unsafe { libc::geteuid() } != 0 {
            return crate::needs::missing("root", "only root can send as another user");
        }
        let socket = Socket::bind().expect("a socket");
        let (one, name) = ([(1, file())], socket.name());
        // A thread has a user of its own where the system is asked without the C library.
        let sent = std::thread::spawn(move || {
            // SAFETY: invariant 4; this thread alone changes its user.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            assert_eq!(rc, 0);
            send(&name, 7, &one)
        });
        sent.join().expect("no panic").expect("the system lets it");
        assert!(socket.receive().is_none());
        assert_eq!(socket.refused(), 1);
        send(&name, 8, &[(1, file())]).expect("sent");
        let own = socket.receive().expect("of our user");
        assert_eq!((own.number, own.process), (8, std::process::id()));
        assert_eq!(socket.refused(), 1);
    }
}
